//! Produce as a request: its own errors, verification and implicit addition, what each version is told, acks.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::produce_response::PartitionProduceResponse;
use ottla_protocol::types::Uuid;

use super::produce_code;
use crate::command::{CommandBody, ProducePartition};
use crate::decision::Reply;
use crate::testing::{NOBODY, Shard, batch, plain, produce_to, transactional};

const P: i64 = 7;

fn codes(responses: &[PartitionProduceResponse]) -> Vec<i16> {
    responses.iter().map(|response| response.error_code).collect()
}

/// Scenarios 16 and 17 and eos-semantics 1.3 step 1: 53, 49 and 21 for the request as a whole.
#[test]
fn scenario_17_errors_of_the_request() {
    let mut shard = Shard::new();
    let two = |one, other| vec![(0, batch(one, 1)), (1, batch(other, 1))];
    let answers = shard.produce(11, None, two(transactional(P, 0, 0), NOBODY));
    assert_eq!(codes(&answers), [53, 53]);
    let answers = shard.produce(11, Some("x"), two(transactional(P, 0, 0), transactional(P, 1, 0)));
    assert_eq!(codes(&answers), [49, 49]);
    for acks in [-2, 2] {
        let mut command = produce_to(("t", shard.topic_id("t")), None, two(NOBODY, NOBODY));
        command.acks = acks;
        let Reply::Produce(response) = shard.ask(9, CommandBody::Produce(command)) else {
            panic!("answered")
        };
        assert_eq!(codes(&response.responses[0].partition_responses), [21, 21]);
    }
    assert_eq!((shard.offsets(0).2, shard.offsets(1).2), (0, 0));
}

/// Topics that do not exist: 3 by name, 100 by id; partitions: 3. Internal topics: 17, whatever
/// the client calls itself.
#[test]
fn topics_and_partitions() {
    let mut shard = Shard::new();
    let id = shard.topic_id("t");
    let ask = |shard: &mut Shard, version, topic, partition| {
        let command = produce_to(topic, None, vec![(partition, batch(NOBODY, 1))]);
        let Reply::Produce(response) = shard.ask(version, CommandBody::Produce(command)) else {
            panic!("answered")
        };
        let partition = &response.responses[0].partition_responses[0];
        (partition.error_code, partition.base_offset)
    };
    assert_eq!(ask(&mut shard, 12, ("none", Uuid::ZERO), 0), (3, -1));
    assert_eq!(ask(&mut shard, 13, ("", Uuid([77; 16])), 0), (100, -1));
    assert_eq!(ask(&mut shard, 13, ("", Uuid::ZERO), 0), (100, -1));
    assert_eq!(ask(&mut shard, 13, ("", id), 3), (3, -1));
    assert_eq!(ask(&mut shard, 13, ("", id), -1), (3, -1));
    assert_eq!(ask(&mut shard, 13, ("", id), 0), (0, 0));
    assert_eq!(
        ask(&mut shard, 12, ("t", Uuid::ZERO), 0),
        (0, 1),
        "a topic that the published view did not have"
    );
    assert_eq!(
        ask(&mut shard, 12, ("t", Uuid([77; 16])), 0),
        (0, 2),
        "a topic that was made again meanwhile"
    );
    assert_eq!(ask(&mut shard, 13, ("", crate::cluster::CONTROL_TOPIC_ID), 0), (100, -1));
    assert_eq!(ask(&mut shard, 12, ("__consumer_offsets", Uuid::ZERO), 0), (17, -1));
    shard.client_id = "__admin_client".into();
    assert_eq!(ask(&mut shard, 12, ("__consumer_offsets", Uuid::ZERO), 0), (17, -1));
}

/// What the connection refused goes into the answer, beside partitions that pass.
#[test]
fn refusals_of_the_connection() {
    let mut shard = Shard::new();
    let refused = PartitionProduceResponse { error_code: 2, base_offset: -1, ..Default::default() };
    let mut command = produce_to(("t", shard.topic_id("t")), None, vec![(1, batch(NOBODY, 1))]);
    command.topics[0].partitions.insert(0, ProducePartition { partition: 2, batch: Err(refused) });
    let Reply::Produce(response) = shard.ask(9, CommandBody::Produce(command)) else { panic!("answered") };
    let answers: Vec<_> = response.responses[0]
        .partition_responses
        .iter()
        .map(|answer| (answer.index, answer.error_code))
        .collect();
    assert_eq!(answers, [(2, 2), (1, 0)]);
}

/// Scenario 54: without AddPartitionsToTxn 48 up to version 10, 120 with 11, nothing appended.
#[test]
fn scenario_54_verification() {
    let mut shard = Shard::new();
    let pair @ (id, epoch) = shard.init("x");
    for (version, code) in [(3, 48), (9, 48), (10, 48), (11, 120)] {
        assert_eq!(shard.send(version, transactional(id, epoch, 0), 1).0, code, "Produce {version}");
    }
    assert_eq!(shard.send(11, transactional(id + 1, epoch, 0), 1).0, 49);
    assert_eq!(shard.send(11, transactional(id, epoch + 1, 0), 1).0, 47);
    assert_eq!(shard.offsets(0).2, 0);
    assert_eq!(shard.add(pair, 0), 0);
    assert_eq!(shard.send(9, transactional(id, epoch, 0), 1).0, 0);
    assert_eq!(
        shard.send_to(1, 9, transactional(id, epoch, 0), 1).0,
        48,
        "the other partition was not added"
    );
}

/// Scenario 57: sequence 0 was refused by verification, so sequence 1 must not overtake it.
/// Public cases: KAFKA-14920 (45).
#[test]
fn scenario_57_overtaking() {
    let mut shard = Shard::new();
    let pair @ (id, epoch) = shard.init("x");
    assert_eq!(shard.send(11, transactional(id, epoch, 0), 1).0, 120);
    assert_eq!(shard.add(pair, 0), 0);
    for _ in 0..2 {
        assert_eq!(shard.send(11, transactional(id, epoch, 1), 1).0, 45);
    }
    assert_eq!(shard.send(11, transactional(id, epoch, 0), 1), (0, 0));
    assert_eq!(shard.send(11, transactional(id, epoch, 1), 1), (0, 1));
    assert!(shard.state.volatile.verifications.is_empty());
    assert_eq!(shard.end(4, pair, true).0, 0);
}

/// H13: a late duplicate of an ended transaction leaves nothing behind that would stop the next one.
#[test]
fn a_late_duplicate_does_not_stop_the_next_transaction() {
    let mut shard = Shard::new();
    let pair @ (id, epoch) = shard.init("x");
    assert_eq!(shard.add(pair, 0), 0);
    for sequence in 0..7 {
        assert_eq!(shard.send(11, transactional(id, epoch, sequence), 1).0, 0);
    }
    assert_eq!(shard.end(4, pair, true).0, 0);
    assert_eq!(shard.send(11, transactional(id, epoch, 6), 1), (0, 6), "a remembered batch");
    assert_eq!(shard.send(11, transactional(id, epoch, 0), 1).0, 120, "one that is forgotten");
    assert_eq!(shard.add(pair, 0), 0);
    assert_eq!(shard.send(11, transactional(id, epoch, 7), 1), (0, 8));
    assert_eq!(shard.end(4, pair, true).0, 0);
}

/// Scenarios 58 and 60: version 12 begins the transaction and adds the partition, in the decision that appends;
/// the epoch before is refused.
#[test]
fn scenario_58_implicit_addition() {
    let mut shard = Shard::new();
    let pair @ (id, epoch) = shard.init("x");
    let before = shard.log.len();
    let batches =
        vec![(0, batch(transactional(id, epoch, 0), 1)), (2, batch(transactional(id, epoch, 0), 1))];
    assert_eq!(codes(&shard.produce(12, Some("x"), batches)), [0, 0]);
    let entries = &shard.log[before].entries;
    assert_eq!(
        (shard.log.len(), entries.len()),
        (before + 1, 3),
        "one decision: the coordinator's record and two batches"
    );
    assert_eq!(shard.send(12, transactional(id, epoch, 1), 1).0, 0);
    assert_eq!(shard.log[before + 1].entries.len(), 1, "a partition that is there is not written again");
    let (code, next) = shard.end(5, pair, true);
    assert_eq!((code, next), (0, (id, epoch + 1)));
    assert_eq!((shard.offsets(0), shard.offsets(2)), ((0, 3, 3), (0, 2, 2)));
    assert_eq!(shard.send(12, transactional(id, epoch, 2), 1).0, 47);
    assert_eq!(shard.send(12, transactional(id, epoch, 1), 1).0, 47, "a duplicate of an epoch that is over");
    assert_eq!(shard.send(12, transactional(id, epoch + 1, 1), 1).0, 45);
    assert_eq!(shard.send(12, transactional(id, epoch + 1, 0), 1).0, 0);
    shard.reload();
    assert_eq!(shard.offsets(0).1, 3);
    assert_eq!(shard.end(5, next, false).0, 0);
    assert_eq!(shard.bounds(0).aborted.lookup(0, 100), [(id, 3)]);
}

/// Scenario 63: with verification off a v1 batch passes without its coordinator; v2 is not touched by it.
#[test]
fn scenario_63_verification_off() {
    let mut shard = Shard::with(|config| config.transaction_partition_verification_enable = false);
    assert_eq!(shard.send(9, transactional(P, 0, 0), 1).0, 0);
    assert_eq!(shard.offsets(0), (0, 0, 1));
    assert_eq!(shard.send_to(1, 12, transactional(P, 0, 0), 1).0, 49);
    assert_eq!(shard.marker(0, (P, 0), false, 0, 0), 0);
    assert_eq!(shard.offsets(0), (0, 2, 2));
}

/// Eos-semantics 4.5: what each version of Produce is told about the coordinator's refusal.
#[test]
fn codes_by_version() {
    let table = [
        (ErrorCode::TransactionAbortable, [48, 120, 120]),
        (ErrorCode::ProducerFenced, [47, 47, 47]),
        (ErrorCode::InvalidProducerEpoch, [47, 47, 47]),
        (ErrorCode::InvalidProducerIdMapping, [49, 49, 49]),
        (ErrorCode::ConcurrentTransactions, [19, 19, 51]),
        (ErrorCode::NetworkException, [19, 19, 19]),
        (ErrorCode::CoordinatorLoadInProgress, [19, 19, 19]),
        (ErrorCode::CoordinatorNotAvailable, [19, 19, 19]),
        (ErrorCode::NotCoordinator, [19, 19, 19]),
    ];
    for (code, told) in table {
        assert_eq!([10, 11, 12].map(|version| produce_code(code, version).code.code()), told, "{code:?}");
    }
}

/// `acks=0` is never answered: done, or the connection is closed.
#[test]
fn without_acks() {
    let mut shard = Shard::new();
    let command = |shard: &Shard, sequence| {
        let mut command =
            produce_to(("t", shard.topic_id("t")), None, vec![(0, batch(plain(P, 0, sequence), 1))]);
        command.acks = 0;
        CommandBody::Produce(command)
    };
    let good = command(&shard, 0);
    assert!(matches!(shard.ask(9, good), Reply::Done));
    let gap = command(&shard, 5);
    assert!(matches!(shard.ask(9, gap), Reply::Close(_)));
    assert_eq!(shard.offsets(0).2, 1);
}

/// LogAppendTime: the batch carries the broker's time with a new CRC, the answer names it, and a duplicate's
/// answer names that of the original. With CreateTime the answer names none.
#[test]
fn log_append_time() {
    let mut shard = Shard::new();
    let id = shard.create("stamped", 1, &[("message.timestamp.type", "LogAppendTime")]);
    let sent = batch(plain(P, 0, 0), 2);
    let first_ms = shard.now_ms;
    for _ in 0..2 {
        let command = produce_to(("stamped", id), None, vec![(0, sent.clone())]);
        let Reply::Produce(response) = shard.ask(9, CommandBody::Produce(command)) else {
            panic!("answered")
        };
        let answer = &response.responses[0].partition_responses[0];
        assert_eq!((answer.error_code, answer.base_offset, answer.log_append_time_ms), (0, 0, first_ms));
        assert_eq!(answer.log_start_offset, 0);
        shard.now_ms += 1000;
    }
    let entry = &shard.log.last().expect("logged").entries[0];
    assert_eq!((entry.header.max_timestamp, entry.header.attributes & 8), (first_ms, 8));
    assert!(entry.header.check_crc(&entry.tail).is_ok());
    let answer = shard.produce(9, None, vec![(0, sent)]).remove(0);
    assert_eq!((answer.error_code, answer.log_append_time_ms), (0, -1));
}

/// An answer rests on what it was decided from: the append, the partition of a duplicate, nothing newer.
#[test]
fn answers_rest_on_their_partition() {
    let mut shard = Shard::new();
    let id = shard.topic_id("t");
    let ask = |shard: &mut Shard, partition, from| {
        let command = produce_to(("t", id), None, vec![(partition, batch(from, 1))]);
        shard.answer(9, CommandBody::Produce(command)).rests_on
    };
    let first = ask(&mut shard, 0, plain(P, 0, 0));
    assert_eq!(first, shard.state.position());
    let second = ask(&mut shard, 1, plain(P, 0, 0));
    assert!(second > first);
    assert_eq!(ask(&mut shard, 0, plain(P, 0, 0)), first, "a duplicate");
    assert_eq!(ask(&mut shard, 0, plain(P, 0, 9)), first, "a refusal");
}

/// Section 8: once a newer connection has produced for the pair and partition, an older one's Produce of
/// protocol v1 decides nothing; a new pair starts afresh, v2 is never cut.
#[test]
fn a_late_connection_is_cut() {
    let mut shard = Shard::new();
    let pair @ (id, epoch) = shard.init("x");
    assert_eq!(shard.add(pair, 0), 0);
    shard.connection = 2;
    assert_eq!(shard.send(11, transactional(id, epoch, 0), 1).0, 0);
    shard.connection = 1;
    let late =
        produce_to(("t", shard.topic_id("t")), Some("x"), vec![(0, batch(transactional(id, epoch, 1), 1))]);
    assert!(matches!(shard.ask(11, CommandBody::Produce(late.clone())), Reply::Late(_)));
    assert_eq!(shard.offsets(0).2, 1);
    shard.connection = 3;
    assert!(matches!(shard.ask(11, CommandBody::Produce(late)), Reply::Produce(_)));
    assert_eq!(shard.end(4, pair, true).0, 0);
    let (id, epoch) = shard.init("x");
    shard.connection = 1;
    assert_eq!(shard.send(12, transactional(id, epoch, 0), 1).0, 0);
}
