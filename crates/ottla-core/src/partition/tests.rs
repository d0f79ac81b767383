//! The rules of eos-semantics 2.1, 2.2 and 2.4 through the whole shard, by the numbers of its scenarios (section
//! 7), and random histories against a naive model.

use proptest::prelude::*;

use crate::command::CommandBody;
use crate::decision::Reply;
use crate::testing::{NOBODY, START_MS, Shard, batch, plain, transactional};
use ottla_protocol::messages as m;

const P: i64 = 7;

/// Scenario 1: the first batch is appended, the same batch again is a duplicate of it.
#[test]
fn scenario_1_first_batch_and_its_duplicate() {
    let mut shard = Shard::new();
    assert_eq!(shard.send(9, plain(P, 0, 0), 5), (0, 0));
    assert_eq!(shard.send(9, plain(P, 0, 0), 5), (0, 0));
    assert_eq!(shard.offsets(0), (0, 5, 5));
    shard.assert_loads();
}

/// Scenarios 2 and 14 (H9): five batches are remembered, also through a snapshot and a replay; the sixth last
/// is out of order.
/// Public cases: RP#3039, RP#3038 (36).
#[test]
fn scenario_2_five_batches_are_remembered() {
    let mut shard = Shard::new();
    for sequence in 0..6 {
        assert_eq!(shard.send(9, plain(P, 0, sequence), 1), (0, i64::from(sequence)));
    }
    for _ in 0..2 {
        for sequence in 1..6 {
            assert_eq!(
                shard.send(9, plain(P, 0, sequence), 1),
                (0, i64::from(sequence)),
                "resend of {sequence}"
            );
        }
        assert_eq!(shard.send(9, plain(P, 0, 0), 1).0, 45);
        assert_eq!(shard.offsets(0).2, 6);
        shard.reload();
    }
    assert_eq!(shard.send(9, plain(P, 0, 6), 1), (0, 6));
}

/// Scenario 3: only the next sequence or an exact remembered range passes.
#[test]
fn scenario_3_gaps_and_overlaps() {
    let mut shard = Shard::new();
    assert_eq!(shard.send(9, plain(P, 0, 0), 5).0, 0);
    for (sequence, records) in [(6, 1), (3, 4), (0, 3), (2, 3), (4, 1)] {
        assert_eq!(shard.send(9, plain(P, 0, sequence), records).0, 45, "{records} from {sequence}");
    }
    assert_eq!(shard.send(9, plain(P, 0, 5), 1), (0, 5));
    assert_eq!(shard.send(9, plain(P, 0, 0), 6).0, 45, "two remembered ranges in one batch");
    assert_eq!(shard.offsets(0).2, 6);
}

/// Scenario 4: after 2147483647 comes 0, also inside a batch.
/// Public cases: KAFKA-5283, KAFKA-7692 (40).
#[test]
fn scenario_4_sequences_wrap() {
    let mut shard = Shard::new();
    assert_eq!(shard.send(9, plain(P, 0, i32::MAX), 1).0, 0);
    assert_eq!(shard.send(9, plain(P, 0, 1), 1).0, 45);
    assert_eq!(shard.send(9, plain(P, 0, 0), 1).0, 0);
    for _ in 0..2 {
        assert_eq!(shard.send_to(1, 9, plain(P, 0, i32::MAX - 10), 21), (0, 0), "21 records across the wrap");
    }
    let slot = shard.state.partitions.slot(shard.partition(1)).expect("exists");
    assert_eq!(shard.state.partitions.producer(slot, P).expect("known").last_sequence(), 9);
    assert_eq!(shard.send_to(1, 9, plain(P, 0, 11), 1).0, 45);
    assert_eq!(shard.send_to(1, 9, plain(P, 0, 10), 1), (0, 21));
}

/// Scenario 5: an older epoch is fenced, a newer one starts at 0 and forgets the old batches.
#[test]
fn scenario_5_a_new_epoch_starts_at_zero() {
    let mut shard = Shard::new();
    let table = [
        (3, 0, 2, 0),
        (2, 0, 1, 47),
        (4, 5, 1, 45),
        (3, 2, 1, 0), // not fenced by what was refused
        (4, 0, 1, 0),
        (3, 0, 2, 47),
        (4, 0, 1, 0), // a duplicate
    ];
    for (epoch, sequence, records, code) in table {
        assert_eq!(
            shard.send(9, plain(P, epoch, sequence), records).0,
            code,
            "epoch {epoch} sequence {sequence}"
        );
    }
    assert_eq!(shard.offsets(0).2, 4);
    shard.assert_loads();
}

/// Scenario 6: a producer without state may start anywhere, with transactions v2 only at 0.
#[test]
fn scenario_6_no_state() {
    let mut shard = Shard::new();
    assert_eq!(shard.send(9, plain(P, 0, 57), 1).0, 0);
    assert_eq!(shard.send(9, plain(P, 0, 59), 1).0, 45);
    assert_eq!(shard.send(9, plain(P, 0, 58), 1).0, 0);
    let (id, epoch) = shard.init("x");
    assert_eq!(shard.send_to(1, 12, transactional(id, epoch, 57), 1).0, 45);
    assert_eq!(shard.offsets(1), (0, 0, 0));
    assert_eq!(shard.send_to(1, 12, transactional(id, epoch, 0), 1).0, 0);
    assert_eq!(shard.end(5, (id, epoch), true).0, 0);
    let (id, epoch) = shard.init("x");
    assert_eq!(shard.add((id, epoch), 2), 0);
    assert_eq!(shard.send_to(2, 11, transactional(id, epoch, 57), 1).0, 0);
}

/// Scenario 7: after a marker of a new epoch, data of that epoch starts at 0 and the old epoch is fenced.
#[test]
fn scenario_7_a_marker_with_a_new_epoch_resets_sequences() {
    let mut shard = Shard::new();
    assert_eq!(shard.send(9, plain(P, 0, 0), 2).0, 0);
    assert_eq!(shard.marker(0, (P, 1), false, 0, 0), 0);
    shard.reload();
    for (epoch, sequence, records, code) in [(1, 2, 1, 45), (0, 2, 1, 47), (0, 0, 2, 47)] {
        assert_eq!(shard.send(9, plain(P, epoch, sequence), records).0, code);
    }
    assert_eq!(shard.send(9, plain(P, 1, 0), 1), (0, 3));
}

/// Scenario 8: a v1 marker keeps the epoch, so sequences go on; a resend after the transaction ended is known.
#[test]
fn scenario_8_sequences_continue_after_a_v1_commit() {
    let mut shard = Shard::new();
    let pair @ (id, epoch) = shard.init("x");
    assert_eq!(shard.add(pair, 0), 0);
    assert_eq!(shard.send(11, transactional(id, epoch, 0), 5), (0, 0));
    assert_eq!(shard.end(4, pair, true).0, 0);
    for version in [9, 11] {
        assert_eq!(
            shard.send(version, transactional(id, epoch, 0), 5),
            (0, 0),
            "resend by Produce {version}"
        );
    }
    assert_eq!(shard.offsets(0), (0, 6, 6));
    assert_eq!(shard.add(pair, 0), 0);
    assert_eq!(shard.send(11, transactional(id, epoch, 0), 2).0, 45);
    assert_eq!(shard.send(11, transactional(id, epoch, 5), 1), (0, 6), "the refusal leaves nothing behind");
    assert_eq!(shard.end(4, pair, false).0, 0);
    shard.assert_loads();
}

/// Scenario 9: data outside of the transaction that its producer has open is refused.
#[test]
fn scenario_9_plain_data_inside_a_transaction() {
    let mut shard = Shard::new();
    let pair @ (id, epoch) = shard.init("x");
    assert_eq!(shard.send(12, transactional(id, epoch, 0), 1).0, 0);
    assert_eq!(shard.send(12, plain(id, epoch, 1), 1).0, 48);
    assert_eq!(shard.send(12, transactional(id, epoch, 1), 1).0, 0);
    assert_eq!(shard.end(5, pair, true).0, 0);
}

/// Scenario 10: a marker of an older coordinator is refused, also after a load.
#[test]
fn scenario_10_an_older_coordinator_is_fenced() {
    let mut shard = Shard::new();
    for (coordinator_epoch, code) in [(5, 0), (4, 52), (5, 0), (6, 0), (5, 52)] {
        assert_eq!(
            shard.marker(0, (P, 0), true, coordinator_epoch, 0),
            code,
            "coordinator epoch {coordinator_epoch}"
        );
    }
    assert_eq!(shard.offsets(0).2, 3);
    shard.reload();
    assert_eq!(shard.marker(0, (P, 0), true, 5, 0), 52);
    assert_eq!(shard.marker(0, (P, -1), true, 4, 0), 47, "the epoch comes first");
}

/// Scenario 11: a v1 marker needs an epoch not below the producer's, a v2 marker a higher one, or no open
/// transaction (a retry), or the largest epoch there is.
#[test]
fn scenario_11_epochs_of_markers() {
    let mut shard = Shard::with(|config| config.transaction_partition_verification_enable = false);
    for partition in 0..2 {
        assert_eq!(shard.send_to(partition, 11, transactional(P, 5, 0), 1).0, 0);
    }
    for version in [0, 1, 2] {
        assert_eq!(shard.marker(0, (P, 3), false, 0, version), 47, "epoch 3, transaction version {version}");
    }
    assert_eq!(shard.marker(0, (P, 5), false, 0, 2), 47);
    assert_eq!(shard.offsets(0), (0, 0, 1));
    assert_eq!(shard.marker(0, (P, 5), false, 0, 1), 0);
    assert_eq!(shard.offsets(0), (0, 2, 2));
    assert_eq!(shard.marker(1, (P, 6), false, 0, 2), 0);
    assert_eq!(shard.offsets(1), (0, 2, 2));
    assert_eq!(shard.marker(1, (P, 6), false, 0, 2), 0, "a retry");
    assert_eq!(shard.offsets(1), (0, 3, 3));

    assert_eq!(shard.send_to(2, 11, transactional(P, i16::MAX, 0), 1).0, 0);
    assert_eq!(shard.marker(2, (P, i16::MAX - 1), false, 0, 2), 47);
    assert_eq!(shard.marker(2, (P, i16::MAX), false, 0, 2), 0);
    assert_eq!(shard.offsets(2), (0, 2, 2));
    shard.assert_loads();
}

/// Scenario 12: a marker of an unknown producer is written and its epoch tracked, nothing is listed as aborted.
#[test]
fn scenario_12_a_marker_of_an_unknown_producer() {
    let mut shard = Shard::new();
    assert_eq!(shard.marker(0, (P, 7), false, 0, 0), 0);
    assert_eq!(shard.offsets(0), (0, 1, 1));
    assert!(shard.bounds(0).aborted.is_empty());
    assert_eq!(shard.send(9, plain(P, 6, 0), 1).0, 47);
    assert_eq!(shard.send(9, plain(P, 7, 0), 1).0, 0);
}

/// Scenario 13 and 86: idle producers are forgotten by the broker's own time, not one with an open transaction,
/// and a replay forgets the same.
#[test]
fn scenario_13_idle_producers_expire() {
    let mut shard = Shard::with(|config| config.producer_id_expiration_check_interval_ms = 1000);
    let (id, epoch) = shard.init("x");
    assert_eq!(shard.send(9, plain(P, 0, 0), 1).0, 0);
    assert_eq!(shard.send(12, transactional(id, epoch, 0), 1).0, 0);
    let slot = shard.state.partitions.slot(shard.partition(0)).expect("exists");
    shard.now_ms += 86_399_999;
    assert_eq!(shard.send(9, plain(P + 1, 0, 0), 1).0, 0);
    shard.run(0, CommandBody::Tick);
    assert!(shard.state.partitions.producer(slot, P).is_some());
    shard.now_ms += 1001;
    assert!(shard.state.next_deadline().is_some_and(|deadline| deadline.0 <= shard.now_ms));
    // Its transaction was aborted by timeout meanwhile; only the plain producer is idle long enough.
    shard.run(0, CommandBody::Tick);
    let known = |shard: &Shard| {
        let producers = shard.state.partitions.producers_of(slot);
        producers.iter().map(|producer| producer.producer_id()).collect::<Vec<_>>()
    };
    assert_eq!(known(&shard), sorted([id, P + 1]));
    assert_eq!(shard.send(9, plain(P, 0, 57), 1).0, 0, "a forgotten producer may start anywhere");
    shard.reload();
    assert_eq!(known(&shard).len(), 3);
}

fn sorted(mut producer_ids: [i64; 2]) -> Vec<i64> {
    producer_ids.sort_unstable();
    producer_ids.to_vec()
}

/// Scenarios 19 and 20: the aborted index names what a fetch may meet, and nothing before the fetch.
#[test]
fn scenarios_19_20_aborted_transactions() {
    let mut shard = Shard::with(|config| config.transaction_partition_verification_enable = false);
    let (a, b) = (P, P + 1);
    assert_eq!(shard.send(11, transactional(a, 0, 0), 2), (0, 0));
    assert_eq!(shard.send(11, transactional(b, 0, 0), 2), (0, 2));
    assert_eq!(shard.send(11, transactional(a, 0, 2), 1), (0, 4));
    assert_eq!(shard.offsets(0).1, 0);
    assert_eq!(shard.marker(0, (a, 0), false, 0, 0), 0);
    assert_eq!(shard.offsets(0).1, 2);
    assert_eq!(shard.marker(0, (b, 0), true, 0, 0), 0);
    assert_eq!(shard.offsets(0), (0, 7, 7));
    for _ in 0..2 {
        let aborted = shard.bounds(0).aborted;
        assert_eq!(aborted.lookup(0, 7), [(a, 0)]);
        assert_eq!(aborted.lookup(5, 7), [(a, 0)]);
        assert_eq!(aborted.lookup(6, 7), []);
        assert_eq!(aborted.iter().next().expect("one").last_stable_offset, 2);
        shard.reload();
    }
}

/// Scenario 21: an aborted transaction in front of the fetch is not listed, so that the producer's later,
/// committed one is read.
#[test]
fn scenario_21_the_next_transaction_of_the_same_producer() {
    let mut shard = Shard::with(|config| config.transaction_partition_verification_enable = false);
    assert_eq!(shard.send(11, transactional(P, 0, 0), 1), (0, 0));
    assert_eq!(shard.marker(0, (P, 0), false, 0, 0), 0);
    assert_eq!(shard.send(11, transactional(P, 0, 1), 1), (0, 2));
    assert_eq!(shard.marker(0, (P, 0), true, 0, 0), 0);
    assert_eq!(shard.bounds(0).aborted.lookup(2, 4), []);
    assert_eq!(shard.bounds(0).aborted.lookup(1, 4), [(P, 0)]);
}

/// Scenario 23: the last stable offset is the start of the oldest open transaction.
#[test]
fn scenario_23_two_open_transactions() {
    let mut shard = Shard::with(|config| config.transaction_partition_verification_enable = false);
    assert_eq!(shard.send(9, NOBODY, 10).0, 0);
    assert_eq!(shard.send(11, transactional(P, 0, 0), 10), (0, 10));
    assert_eq!(shard.send(11, transactional(P + 1, 0, 0), 5), (0, 20));
    assert_eq!(shard.offsets(0), (0, 10, 25));
    assert_eq!(shard.marker(0, (P, 0), true, 0, 0), 0);
    assert_eq!(shard.offsets(0), (0, 20, 26));
    shard.reload();
    assert_eq!(shard.offsets(0), (0, 20, 26));
}

/// Scenario 26: deleting records inside an open transaction clamps the last stable offset exactly to the log
/// start, and the log start is a record, so it survives a load.
#[test]
fn scenario_26_records_deleted_inside_a_transaction() {
    let mut shard = Shard::with(|config| config.transaction_partition_verification_enable = false);
    assert_eq!(shard.send(11, transactional(P, 0, 0), 10), (0, 0));
    let partition = m::delete_records_request::DeleteRecordsPartition {
        partition_index: 0,
        offset: 4,
        ..Default::default()
    };
    let topic = m::delete_records_request::DeleteRecordsTopic {
        name: "t".into(),
        partitions: vec![partition],
        ..Default::default()
    };
    let request = m::DeleteRecordsRequest { topics: vec![topic], ..Default::default() };
    let answer = shard.answer(2, CommandBody::DeleteRecords(request));
    assert_eq!(answer.rests_on, shard.state.position());
    let Reply::DeleteRecords(response) = answer.reply else { panic!("DeleteRecords is answered") };
    assert_eq!(
        (response.topics[0].partitions[0].error_code, response.topics[0].partitions[0].low_watermark),
        (0, 4)
    );
    assert_eq!(shard.offsets(0), (4, 4, 10));
    shard.reload();
    assert_eq!(shard.offsets(0), (4, 4, 10));
    assert_eq!(shard.marker(0, (P, 0), true, 0, 0), 0);
    assert_eq!(shard.offsets(0), (4, 11, 11));
}

/// Leader epochs: a topic's first is 0, each tenure that appends begins a new one, and deleted records take
/// their epochs along.
#[test]
fn leader_epochs() {
    let mut shard = Shard::new();
    assert_eq!(shard.bounds(0).leader_epoch, 0);
    for tenure in 0..3 {
        assert_eq!(shard.send(9, NOBODY, 10).0, 0);
        assert_eq!(shard.bounds(0).leader_epoch, tenure);
        shard.reload();
    }
    assert_eq!(*shard.bounds(0).leader_epochs, [(0, 0), (1, 10), (2, 20)]);
    let slot = shard.state.partitions.slot(shard.partition(0)).expect("exists");
    shard.state.partitions.set_log_start_offset(slot, 15);
    assert_eq!(*shard.bounds(0).leader_epochs, [(1, 10), (2, 20)]);
}

/// DescribeProducers: who is there, in which state, and the errors.
#[test]
fn describe_producers() {
    let mut shard = Shard::new();
    let (id, epoch) = shard.init("x");
    assert_eq!(shard.send(12, transactional(id, epoch, 0), 3).0, 0);
    assert_eq!(shard.send(9, plain(P + 100_000, 2, 9), 1).0, 0);
    assert_eq!(shard.marker(0, (P + 200_000, 4), false, 6, 0), 0);
    let topics = [("t", vec![0, 9, 0]), ("none", vec![0]), ("a b", vec![0])]
        .into_iter()
        .map(|(name, partition_indexes)| m::describe_producers_request::TopicRequest {
            name: name.into(),
            partition_indexes,
            ..Default::default()
        })
        .collect();
    let request = m::DescribeProducersRequest { topics, ..Default::default() };
    let Reply::DescribeProducers(response) = shard.ask(0, CommandBody::DescribeProducers(request)) else {
        panic!("DescribeProducers is answered")
    };
    let codes: Vec<i16> = response
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|partition| partition.error_code)
        .collect();
    assert_eq!(codes, [0, 3, 42, 3, 17]);
    let producers: Vec<_> = response.topics[0].partitions[0]
        .active_producers
        .iter()
        .map(|p| {
            (
                p.producer_id,
                p.producer_epoch,
                p.last_sequence,
                p.coordinator_epoch,
                p.current_txn_start_offset,
            )
        })
        .collect();
    assert_eq!(producers, [(id, 0, 2, -1, 0), (P + 100_000, 2, 9, -1, -1), (P + 200_000, 4, -1, 6, -1)]);
    assert_eq!(response.topics[0].partitions[0].active_producers[0].last_timestamp, START_MS - 3);
}

/// The ceiling on producers refuses new ones and forgets nobody.
#[test]
fn the_ceiling_refuses_new_producers() {
    let mut shard = Shard::with(|config| config.limits.producers_max = 2);
    assert_eq!(shard.send(9, plain(1, 0, 0), 1).0, 0);
    assert_eq!(shard.send(9, plain(2, 0, 0), 1).0, 0);
    assert_eq!(shard.send(9, plain(3, 0, 0), 1).0, 44);
    assert_eq!(shard.send(9, NOBODY, 1).0, 0);
    for producer_id in [1, 2] {
        assert_eq!(shard.send(9, plain(producer_id, 0, 0), 1).0, 0, "a resend is still known");
        assert_eq!(shard.send(9, plain(producer_id, 0, 1), 1).0, 0);
    }
}

/// What happened to a partition, as the naive model remembers it.
#[derive(Clone, Copy, Debug)]
struct Event {
    producer_id: i64,
    epoch: i16,
    /// Sequence of the first record and number of records; none for a marker.
    data: Option<(i32, i32)>,
    transactional: bool,
    commit: bool,
    coordinator_epoch: i32,
    offset: i64,
}

/// The whole history; every question is answered by reading all of it.
#[derive(Default)]
struct Model {
    events: Vec<Event>,
    end: i64,
}

impl Model {
    fn of(&self, producer_id: i64) -> impl DoubleEndedIterator<Item = &Event> {
        self.events.iter().filter(move |event| event.producer_id == producer_id)
    }

    fn epoch(&self, producer_id: i64) -> Option<i16> {
        self.of(producer_id).next_back().map(|event| event.epoch)
    }

    /// Data of the current epoch since that epoch began, oldest first.
    fn batches(&self, producer_id: i64) -> Vec<&Event> {
        let epoch = self.epoch(producer_id);
        let mut batches: Vec<_> = self
            .of(producer_id)
            .rev()
            .take_while(|event| Some(event.epoch) == epoch)
            .filter(|event| event.data.is_some())
            .collect();
        batches.reverse();
        batches
    }

    fn open(&self, producer_id: i64) -> Option<i64> {
        let mut first = None;
        for event in self.of(producer_id) {
            match event.data {
                Some(_) if event.transactional => first = first.or(Some(event.offset)),
                Some(_) => {}
                None => first = None,
            }
        }
        first
    }

    fn last_stable_offset(&self) -> i64 {
        (0..PRODUCERS).filter_map(|producer_id| self.open(producer_id)).min().unwrap_or(self.end)
    }

    fn send(
        &mut self,
        producer_id: i64,
        epoch: i16,
        sequence: i32,
        records: i32,
        transactional: bool,
    ) -> (i16, i64) {
        let batches = self.batches(producer_id);
        let current = self.epoch(producer_id);
        if current == Some(epoch)
            && let Some(same) =
                batches.iter().rev().take(5).find(|event| event.data == Some((sequence, records)))
        {
            return (0, same.offset);
        }
        if current.is_some_and(|current| epoch < current) {
            return (47, -1);
        }
        let expected = match (current, batches.last()) {
            (None, _) => sequence,
            (Some(current), Some(last)) if current == epoch => {
                let (first, count) = last.data.expect("data");
                first + count
            }
            (Some(_), _) => 0,
        };
        if sequence != expected {
            return (45, -1);
        }
        if !transactional && self.open(producer_id).is_some() {
            return (48, -1);
        }
        let offset = self.end;
        self.end += i64::from(records);
        let data = Some((sequence, records));
        self.events.push(Event {
            producer_id,
            epoch,
            data,
            transactional,
            commit: false,
            coordinator_epoch: -1,
            offset,
        });
        (0, offset)
    }

    fn marker(
        &mut self,
        producer_id: i64,
        epoch: i16,
        commit: bool,
        coordinator_epoch: i32,
        version: i8,
    ) -> i16 {
        if let Some(current) = self.epoch(producer_id) {
            let is_fenced = match version {
                2 if epoch == current => self.open(producer_id).is_some(),
                _ => epoch < current,
            };
            if is_fenced {
                return 47;
            }
        }
        let stored = self
            .of(producer_id)
            .rev()
            .find(|event| event.data.is_none())
            .map_or(-1, |event| event.coordinator_epoch);
        if coordinator_epoch < stored {
            return 52;
        }
        let offset = self.end;
        self.end += 1;
        self.events.push(Event {
            producer_id,
            epoch,
            data: None,
            transactional: true,
            commit,
            coordinator_epoch,
            offset,
        });
        0
    }

    /// The definition: transactions that were aborted, may have records in the range, and end behind its start.
    fn aborted(&self, from: i64, upper: i64) -> Vec<(i64, i64)> {
        let mut found = Vec::new();
        for (index, marker) in self.events.iter().enumerate() {
            if marker.data.is_none() && !marker.commit && marker.offset >= from {
                let before = Model { events: self.events[..index].to_vec(), end: marker.offset };
                found.extend(
                    before
                        .open(marker.producer_id)
                        .filter(|first| *first < upper)
                        .map(|first| (marker.producer_id, first)),
                );
            }
        }
        found.sort_unstable_by_key(|(producer_id, first)| (*first, *producer_id));
        found
    }
}

const PRODUCERS: i64 = 3;

#[derive(Clone, Debug)]
enum Action {
    /// Send; the sequence is relative to the next one.
    Send {
        producer_id: i64,
        epoch: i16,
        delta: i32,
        records: i32,
        transactional: bool,
    },
    /// A batch of before, again.
    Resend {
        index: prop::sample::Index,
    },
    Marker {
        producer_id: i64,
        epoch: i16,
        commit: bool,
        coordinator_epoch: i32,
        version: i8,
    },
    Reload,
}

fn action() -> impl Strategy<Value = Action> {
    let send = (0..PRODUCERS, 0i16..3, prop_oneof![8 => Just(0), 1 => -3i32..4], 1i32..4, any::<bool>())
        .prop_map(|(producer_id, epoch, delta, records, transactional)| Action::Send {
            producer_id,
            epoch,
            delta,
            records,
            transactional,
        });
    let marker = (0..PRODUCERS, 0i16..4, any::<bool>(), 0i32..3, 0i8..3).prop_map(
        |(producer_id, epoch, commit, coordinator_epoch, version)| Action::Marker {
            producer_id,
            epoch,
            commit,
            coordinator_epoch,
            version,
        },
    );
    prop_oneof![
        12 => send,
        4 => any::<prop::sample::Index>().prop_map(|index| Action::Resend { index }),
        4 => marker,
        1 => Just(Action::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Any history of sends, resends, markers and crashes: every answer, the bounds and the aborted index are
    /// those of a model that answers each question by reading the whole history.
    #[test]
    fn equals_the_naive_model(actions in prop::collection::vec(action(), 1..80)) {
        let mut shard = Shard::with(|config| {
            config.transaction_partition_verification_enable = false;
            config.offsets_topic_num_partitions = 1;
            config.transaction_state_log_num_partitions = 1;
        });
        let mut model = Model::default();
        let mut sent = Vec::new();
        for action in actions {
            let (producer_id, epoch, sequence, records, transactional) = match action {
                Action::Reload => {
                    shard.reload();
                    continue;
                }
                Action::Marker { producer_id, epoch, commit, coordinator_epoch, version } => {
                    let code = shard.marker(0, (producer_id, epoch), commit, coordinator_epoch, version);
                    prop_assert_eq!(code, model.marker(producer_id, epoch, commit, coordinator_epoch, version));
                    continue;
                }
                Action::Resend { index } => match sent.is_empty() {
                    true => continue,
                    false => *index.get(&sent),
                },
                Action::Send { producer_id, epoch, delta, records, transactional } => {
                    let last = model.batches(producer_id).last().and_then(|event| event.data);
                    let same_epoch = model.epoch(producer_id) == Some(epoch);
                    let next = last.filter(|_| same_epoch).map_or(0, |(first, count)| first + count);
                    (producer_id, epoch, (next + delta).max(0), records, transactional)
                }
            };
            sent.push((producer_id, epoch, sequence, records, transactional));
            let from = crate::testing::From { producer_id, producer_epoch: epoch, sequence, transactional };
            let wanted = model.send(producer_id, epoch, sequence, records, transactional);
            prop_assert_eq!(shard.send(11, from, records), wanted);
        }
        prop_assert_eq!(shard.offsets(0), (0, model.last_stable_offset(), model.end));
        let aborted = shard.bounds(0).aborted;
        for from in (0..model.end).step_by(3) {
            for upper in [from + 1, from + 7, model.end] {
                prop_assert_eq!(aborted.lookup(from, upper), model.aborted(from, upper));
            }
        }
        shard.assert_loads();
    }
}

/// The same partition twice in one request: decided one after the other, each against what the other left.
#[test]
fn one_partition_twice_in_a_request() {
    let mut shard = Shard::new();
    let batches = vec![
        (0, batch(plain(P, 0, 0), 2)),
        (0, batch(plain(P, 0, 2), 1)),
        (0, batch(plain(P, 0, 0), 2)),
        (0, batch(plain(P, 0, 9), 1)),
    ];
    let answers: Vec<_> = shard
        .produce(9, None, batches)
        .iter()
        .map(|answer| (answer.error_code, answer.base_offset))
        .collect();
    assert_eq!(answers, [(0, 0), (0, 2), (0, 0), (45, -1)]);
    let pair @ (id, epoch) = shard.init("x");
    let batches =
        vec![(1, batch(transactional(id, epoch, 0), 1)), (1, batch(transactional(id, epoch, 1), 1))];
    let answers: Vec<_> =
        shard.produce(12, Some("x"), batches).iter().map(|answer| answer.error_code).collect();
    assert_eq!(answers, [0, 0]);
    assert_eq!(shard.end(5, pair, true).0, 0);
    assert_eq!(shard.offsets(1), (0, 3, 3));
    shard.assert_loads();
}
