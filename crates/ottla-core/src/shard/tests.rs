//! The shard as a whole: live state, replayed state and restored state are one state, and what cannot be
//! replayed or restored is an error.

use ottla_protocol::entry::EntryKind;
use ottla_protocol::messages as m;
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};
use proptest::prelude::*;

use crate::command::CommandBody;
use crate::decision::{Position, Reply, ShardTime};
use crate::shard::{ReplayError, Restore, RestoreError, ShardState};
use crate::testing::{From, NOBODY, Shard, batch, produce_to};

/// Something that a client or time may do.
#[derive(Clone, Debug)]
enum Action {
    Produce {
        topic: u8,
        partition: i32,
        producer: u8,
        epoch: i16,
        sequence: i32,
        version: i16,
        transactional: bool,
    },
    Init {
        id: u8,
        timeout_ms: i32,
    },
    Add {
        id: u8,
        partition: i32,
    },
    End {
        id: u8,
        commit: bool,
        version: i16,
    },
    Marker {
        producer: u8,
        epoch: i16,
        commit: bool,
        version: i8,
    },
    OffsetCommit {
        group: u8,
        partition: i32,
        offset: i64,
    },
    TxnOffsetCommit {
        group: u8,
        id: u8,
        offset: i64,
        version: i16,
    },
    Create {
        topic: u8,
    },
    Delete {
        topic: u8,
    },
    Alter {
        topic: u8,
        retention_ms: i64,
    },
    DeleteRecords {
        topic: u8,
        offset: i64,
    },
    Wait {
        ms: i64,
    },
    Reload,
}

fn action() -> impl Strategy<Value = Action> {
    let version = || prop_oneof![Just(9i16), Just(11), Just(12), Just(13)];
    prop_oneof![
        10 => (0u8..3, 0i32..3, 0u8..5, 0i16..3, 0i32..4, version(), any::<bool>()).prop_map(
            |(topic, partition, producer, epoch, sequence, version, transactional)| Action::Produce {
                topic, partition, producer, epoch, sequence, version, transactional,
            }
        ),
        3 => (0u8..3, prop_oneof![Just(60_000), Just(10_000)]).prop_map(|(id, timeout_ms)| Action::Init { id, timeout_ms }),
        3 => (0u8..3, 0i32..3).prop_map(|(id, partition)| Action::Add { id, partition }),
        3 => (0u8..3, any::<bool>(), 4i16..6).prop_map(|(id, commit, version)| Action::End { id, commit, version }),
        1 => (0u8..5, 0i16..3, any::<bool>(), 0i8..3).prop_map(|(producer, epoch, commit, version)| Action::Marker { producer, epoch, commit, version }),
        2 => (0u8..3, 0i32..3, 0i64..100).prop_map(|(group, partition, offset)| Action::OffsetCommit { group, partition, offset }),
        2 => (0u8..3, 0u8..3, 0i64..100, 3i16..6).prop_map(|(group, id, offset, version)| Action::TxnOffsetCommit { group, id, offset, version }),
        1 => (0u8..3).prop_map(|topic| Action::Create { topic }),
        1 => (0u8..3).prop_map(|topic| Action::Delete { topic }),
        1 => (0u8..3, 1i64..1000).prop_map(|(topic, retention_ms)| Action::Alter { topic, retention_ms }),
        1 => (0u8..3, -1i64..8).prop_map(|(topic, offset)| Action::DeleteRecords { topic, offset }),
        2 => prop_oneof![Just(1000i64), Just(30_000), Just(90_000_000), Just(700_000_000)].prop_map(|ms| Action::Wait { ms }),
        1 => Just(Action::Reload),
    ]
}

const TOPICS: [&str; 3] = ["t", "u.v", "w"];

/// Runs actions and knows the pairs that were handed out.
struct Run {
    shard: Shard,
    pairs: [(i64, i16); 3],
}

impl Run {
    fn new() -> Self {
        let shard = Shard::with(|config| {
            config.offsets_topic_num_partitions = 2;
            config.transaction_state_log_num_partitions = 2;
        });
        Self { shard, pairs: [(-1, -1); 3] }
    }

    fn id(index: u8) -> Text {
        format!("id-{index}").into()
    }

    fn topic_id(&self, topic: u8) -> Uuid {
        self.shard.state.topics.by_name(TOPICS[usize::from(topic)]).map_or(Uuid::ZERO, |topic| topic.id)
    }

    fn act(&mut self, action: Action) {
        let body = match action {
            Action::Reload => return self.shard.reload(),
            Action::Wait { ms } => {
                self.shard.now_ms += ms;
                self.shard.run(0, CommandBody::Tick);
                return;
            }
            Action::Produce { .. } => return self.produce(action),
            Action::Init { .. } | Action::Add { .. } | Action::End { .. } => return self.transaction(action),
            Action::Marker { producer, epoch, commit, version } => {
                if self.topic_id(0) != Uuid::ZERO {
                    let pair = self
                        .pairs
                        .get(usize::from(producer))
                        .map_or(i64::from(producer) + 500, |pair| pair.0);
                    self.shard.marker(0, (pair, epoch), commit, 1, version);
                }
                return;
            }
            Action::OffsetCommit { group, partition, offset } => offset_commit(group, partition, offset),
            Action::TxnOffsetCommit { group, id, offset, version } => {
                let (producer_id, producer_epoch) = self.pairs[usize::from(id)];
                let body = txn_offset_commit(group, Self::id(id), producer_id, producer_epoch, offset);
                self.shard.run(version, body);
                return;
            }
            Action::Create { topic } => {
                CommandBody::AutoCreateTopics(vec![TOPICS[usize::from(topic)].into()])
            }
            Action::Delete { topic } => CommandBody::DeleteTopics(m::DeleteTopicsRequest {
                topic_names: vec![TOPICS[usize::from(topic)].into()],
                ..Default::default()
            }),
            Action::Alter { topic, retention_ms } => alter(topic, retention_ms),
            Action::DeleteRecords { topic, offset } => delete_records(topic, offset),
        };
        // Their other versions differ in nothing that matters here.
        let version = if matches!(body, CommandBody::OffsetCommit(_)) { 8 } else { 1 };
        self.shard.run(version, body);
    }

    fn produce(&mut self, action: Action) {
        let Action::Produce { topic, partition, producer, epoch, sequence, version, transactional } = action
        else {
            unreachable!("called for Produce")
        };
        let producer_id =
            self.pairs.get(usize::from(producer)).map_or(i64::from(producer) + 500, |pair| pair.0);
        let from = if producer_id < 0 {
            NOBODY
        } else {
            let offset = self.pairs.get(usize::from(producer)).map_or(0, |pair| pair.1 - 1);
            From { producer_id, producer_epoch: (epoch + offset).max(0), sequence, transactional }
        };
        let id = (from.transactional && usize::from(producer) < 3).then(|| Self::id(producer));
        let command = produce_to(
            (TOPICS[usize::from(topic)], self.topic_id(topic)),
            id.as_deref(),
            vec![(partition, batch(from, 1 + sequence % 2))],
        );
        self.shard.run(version, CommandBody::Produce(command));
    }

    fn transaction(&mut self, action: Action) {
        let pair = |id: u8| self.pairs[usize::from(id)];
        match action {
            Action::Init { id, timeout_ms } => {
                let request = m::InitProducerIdRequest {
                    transactional_id: Some(Self::id(id)),
                    transaction_timeout_ms: timeout_ms,
                    producer_id: -1,
                    producer_epoch: -1,
                    ..Default::default()
                };
                if let Reply::InitProducerId(response) =
                    self.shard.ask(4, CommandBody::InitProducerId(request))
                    && response.error_code == 0
                {
                    self.pairs[usize::from(id)] = (response.producer_id, response.producer_epoch);
                }
            }
            Action::Add { id, partition } => {
                let (producer_id, producer_epoch) = pair(id);
                let topic = m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
                    name: "t".into(),
                    partitions: vec![partition],
                    ..Default::default()
                };
                let request = m::AddPartitionsToTxnRequest {
                    v3_and_below_transactional_id: Self::id(id),
                    v3_and_below_producer_id: producer_id,
                    v3_and_below_producer_epoch: producer_epoch,
                    v3_and_below_topics: vec![topic],
                    ..Default::default()
                };
                self.shard.run(3, CommandBody::AddPartitionsToTxn(request));
            }
            Action::End { id, commit, version } => {
                let (producer_id, producer_epoch) = pair(id);
                let request = m::EndTxnRequest {
                    transactional_id: Self::id(id),
                    producer_id,
                    producer_epoch,
                    committed: commit,
                    ..Default::default()
                };
                if let Reply::EndTxn(response) = self.shard.ask(version, CommandBody::EndTxn(request))
                    && response.error_code == 0
                    && version >= 5
                {
                    self.pairs[usize::from(id)] = (response.producer_id, response.producer_epoch);
                }
            }
            other => unreachable!("{other:?} is no request of a transaction"),
        }
    }
}

fn offset_commit(group: u8, partition_index: i32, committed_offset: i64) -> CommandBody {
    let partitions = vec![m::offset_commit_request::OffsetCommitRequestPartition {
        partition_index,
        committed_offset,
        ..Default::default()
    }];
    let topics = vec![m::offset_commit_request::OffsetCommitRequestTopic {
        name: "t".into(),
        partitions,
        ..Default::default()
    }];
    CommandBody::OffsetCommit(m::OffsetCommitRequest {
        group_id: format!("group-{group}").into(),
        generation_id_or_member_epoch: -1,
        topics,
        ..Default::default()
    })
}

fn txn_offset_commit(group: u8, id: Text, producer_id: i64, producer_epoch: i16, offset: i64) -> CommandBody {
    let partitions = vec![m::txn_offset_commit_request::TxnOffsetCommitRequestPartition {
        partition_index: 0,
        committed_offset: offset,
        ..Default::default()
    }];
    let topics = vec![m::txn_offset_commit_request::TxnOffsetCommitRequestTopic {
        name: "t".into(),
        partitions,
        ..Default::default()
    }];
    CommandBody::TxnOffsetCommit(m::TxnOffsetCommitRequest {
        transactional_id: id,
        group_id: format!("group-{group}").into(),
        producer_id,
        producer_epoch,
        topics,
        ..Default::default()
    })
}

fn alter(topic: u8, retention_ms: i64) -> CommandBody {
    let configs = vec![m::incremental_alter_configs_request::AlterableConfig {
        name: "retention.ms".into(),
        value: Some(retention_ms.to_string().into()),
        ..Default::default()
    }];
    let resources = vec![m::incremental_alter_configs_request::AlterConfigsResource {
        resource_type: 2,
        resource_name: TOPICS[usize::from(topic)].into(),
        configs,
        ..Default::default()
    }];
    CommandBody::IncrementalAlterConfigs(m::IncrementalAlterConfigsRequest {
        resources,
        ..Default::default()
    })
}

fn delete_records(topic: u8, offset: i64) -> CommandBody {
    let partitions = vec![m::delete_records_request::DeleteRecordsPartition {
        partition_index: 0,
        offset,
        ..Default::default()
    }];
    let topics = vec![m::delete_records_request::DeleteRecordsTopic {
        name: TOPICS[usize::from(topic)].into(),
        partitions,
        ..Default::default()
    }];
    CommandBody::DeleteRecords(m::DeleteRecordsRequest { topics, ..Default::default() })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Any commands in any order, with time and crashes between them: the state that was made live, the state
    /// replayed from its entries, and states restored from snapshots with the entries behind them write the same
    /// snapshot, byte for byte. At the end nothing holds readers back once every transaction has timed out.
    #[test]
    fn live_replayed_and_restored_are_one_state(actions in prop::collection::vec(action(), 1..120)) {
        let mut run = Run::new();
        for action in actions {
            run.act(action);
        }
        run.shard.assert_loads();
        run.shard.now_ms += 1_000_000;
        run.shard.run(0, CommandBody::Tick);
        let stuck: Vec<_> = run
            .shard
            .state
            .transactions
            .iter()
            .filter(|transaction| transaction.timeout_at().is_some())
            .map(|transaction| transaction.transactional_id.clone())
            .collect();
        prop_assert!(stuck.is_empty(), "still open: {stuck:?}");
        run.shard.assert_loads();
    }

    /// Damaged snapshots are errors or other states, never a panic, whatever byte is changed or cut.
    #[test]
    fn damaged_snapshots_do_not_panic(chunk in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<bool>()) {
        let mut shard = Shard::new();
        for sequence in 0..3 {
            shard.send(9, crate::testing::plain(7, 0, sequence), 2);
        }
        let pair = shard.init("x");
        shard.send_to(1, 12, crate::testing::transactional(pair.0, pair.1, 0), 1);
        shard.end(5, pair, false);
        let mut chunks = shard.snapshot();
        let index = chunk.index(chunks.len());
        let at = at.index(chunks[index].len());
        if cut {
            chunks[index].truncate(at);
        } else {
            chunks[index][at] ^= with;
        }
        let mut restore = Restore::new(shard.config.clone());
        if chunks.iter().try_for_each(|chunk| restore.feed(chunk)).is_ok()
            && let Ok(mut state) = restore.finish()
        {
            state.begin_epoch(i32::MAX, ShardTime(shard.now_ms));
            let _ = state.snapshot().chunks().count();
        }
    }
}

/// Entries that do not continue the state are typed errors: an unknown partition, a gap, an unknown kind, a
/// control record that cannot be read.
#[test]
fn replay_refuses_what_does_not_fit() {
    let mut shard = Shard::new();
    shard.send(9, NOBODY, 2);
    let entry = shard.log.last().expect("logged").entries[0].clone();
    let replay = |entry| shard.loaded(0).replay(&[entry], Position(99), ShardTime(0));
    let expected = 2;
    assert_eq!(
        replay(entry.clone()),
        Err(ReplayError::Offset { partition: entry.partition, expected, found: 0 })
    );
    let partition = TopicIdPartition { topic_id: Uuid([5; 16]), partition: 0 };
    let mut unknown = entry.clone();
    unknown.partition = partition;
    assert_eq!(replay(unknown), Err(ReplayError::UnknownPartition { partition }));
    let mut reserved = entry.clone();
    reserved.header.base_offset = expected;
    reserved.kind = EntryKind::PartitionLeave;
    assert_eq!(replay(reserved), Err(ReplayError::Kind { partition: entry.partition, kind: 2 }));
    let mut control = entry;
    control.kind = EntryKind::Control;
    control.partition = crate::cluster::CONTROL_PARTITION;
    control.header.base_offset = shard.state.partitions.iter().next().expect("control").1.log_end_offset();
    assert!(matches!(replay(control), Err(ReplayError::Record { .. })));
}

/// A snapshot that is cut between chunks, out of order, or of another version is refused.
#[test]
fn restore_refuses_what_is_not_whole() {
    let shard = Shard::new();
    let chunks = shard.snapshot();
    let restore = |chunks: &[Vec<u8>]| {
        let mut restore = Restore::new(shard.config.clone());
        chunks.iter().try_for_each(|chunk| restore.feed(chunk))?;
        restore.finish().map(drop)
    };
    assert_eq!(restore(&chunks), Ok(()));
    assert!(matches!(restore(&[]), Err(RestoreError::Inconsistent { .. })));
    assert!(matches!(restore(&chunks[1..]), Err(RestoreError::Inconsistent { .. })));
    for missing in 1..chunks.len() {
        let kind = chunks[missing][0];
        let rest: Vec<_> = [&chunks[..missing], &chunks[missing + 1..]].concat();
        if (2..=3).contains(&kind) {
            assert!(matches!(restore(&rest), Err(RestoreError::Inconsistent { .. })), "section {kind}");
        }
    }
    let mut newer = chunks.clone();
    newer[1][1] = 1;
    assert_eq!(restore(&newer), Err(RestoreError::Version { kind: 1, version: 1 }));
    let mut unknown = chunks;
    unknown[1][0] = 200;
    assert_eq!(restore(&unknown), Err(RestoreError::Kind { kind: 200 }));
}

/// Chunks stay about 1 MiB however much there is, and a large state comes back whole.
#[test]
fn large_snapshots_come_in_chunks() {
    let mut shard = Shard::new();
    for producer_id in 0..20_000 {
        let batches =
            (0..3).map(|partition| (partition, batch(crate::testing::plain(producer_id, 0, 0), 1))).collect();
        shard.produce(9, None, batches);
    }
    let chunks = shard.snapshot();
    assert!(chunks.len() > 4, "{} chunks", chunks.len());
    assert!(chunks.iter().all(|chunk| chunk.len() <= 1 << 20));
    shard.assert_loads();
}

/// Before anything was decided the state has no deadline, and a shift moves every deadline there is.
#[test]
fn deadlines_move_with_the_owner() {
    let mut shard = Shard::new();
    shard.send(9, crate::testing::plain(7, 0, 0), 1);
    let before = shard.state.next_deadline().expect("a producer is looked for");
    shard.state.shift_deadlines(5000);
    assert_eq!(shard.state.next_deadline(), Some(ShardTime(before.0 + 5000)));
    assert_eq!(ShardState::new(shard.config.clone()).next_deadline(), None);
}
