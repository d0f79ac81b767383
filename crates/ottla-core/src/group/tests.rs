//! Tests of offsets through the whole shard: the scenarios of eos-semantics section 7 by their numbers.

use ottla_protocol::messages as m;
use ottla_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use ottla_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use ottla_protocol::types::{Text, Uuid};

use crate::command::CommandBody;
use crate::decision::Reply;
use crate::txn::Pair;
use crate::txn::tests::{At, Broker, CLOSED, at, to};

/// OffsetCommit 8 of partition 0, outside of any group: its code.
pub(crate) fn plain_commit(broker: &mut Broker, group: &str, topic: &str, offset: i64) -> i16 {
    commit(broker, 8, group, topic, |request| request.topics[0].partitions[0].committed_offset = offset)
}

fn commit(
    broker: &mut Broker,
    version: i16,
    group: &str,
    topic: &str,
    change: impl FnOnce(&mut m::OffsetCommitRequest),
) -> i16 {
    let topic_id = broker.state.topics.by_name(topic).map_or(Uuid([0xff; 16]), |topic| topic.id);
    let mut request = m::OffsetCommitRequest {
        group_id: Text::from(group),
        topics: vec![OffsetCommitRequestTopic {
            name: Text::from(topic),
            topic_id,
            partitions: vec![OffsetCommitRequestPartition { committed_offset: 5, ..Default::default() }],
            ..Default::default()
        }],
        ..Default::default()
    };
    change(&mut request);
    match broker.ask(version, CommandBody::OffsetCommit(request)) {
        Reply::OffsetCommit(response) => response.topics[0].partitions[0].error_code,
        other => panic!("{other:?}"),
    }
}

/// OffsetFetch of everything: partition, offset and code by topic.
fn everything(
    broker: &mut Broker,
    version: i16,
    group: &str,
    require_stable: bool,
) -> Vec<(Text, i32, i64, i16)> {
    let mut request = m::OffsetFetchRequest { require_stable, ..Default::default() };
    if version >= 8 {
        let group =
            OffsetFetchRequestGroup { group_id: Text::from(group), topics: None, ..Default::default() };
        request.groups = vec![group];
    } else {
        request.group_id = Text::from(group);
        request.topics = None;
    }
    let Reply::OffsetFetch(response) = broker.ask(version, CommandBody::OffsetFetch(request)) else {
        panic!("another answer")
    };
    let mut found = Vec::new();
    for topic in &response.topics {
        for partition in &topic.partitions {
            let (index, code) = (partition.partition_index, partition.error_code);
            found.push((topic.name.clone(), index, partition.committed_offset, code));
        }
    }
    for topic in response.groups.iter().flat_map(|group| &group.topics) {
        for partition in &topic.partitions {
            let (index, code) = (partition.partition_index, partition.error_code);
            found.push((topic.name.clone(), index, partition.committed_offset, code));
        }
    }
    found
}

fn broker() -> (Broker, Pair) {
    let mut broker = Broker::new();
    broker.topic("a");
    let (code, pair) = broker.init("t", None);
    assert_eq!(code, 0);
    (broker, pair)
}

/// Pending: 88 with require_stable, else the old value; visible after COMMIT, gone after ABORT; v1 and v2, with a
/// restart in between.
#[test]
fn scenario_64_pending_offsets() {
    for v2 in [false, true] {
        for restarts in [false, true] {
            let (mut broker, mut pair) = broker();
            let mut expected = -1;
            for (turn, commits) in [true, false, true, false].into_iter().enumerate() {
                let offset = 10 * (i64::try_from(turn).expect("small") + 1);
                if !v2 {
                    assert_eq!(broker.add_offsets("t", pair, "g"), 0);
                }
                assert_eq!(broker.txn_commit(if v2 { 5 } else { 4 }, "t", pair, &at("g", "a", offset)), 0);
                if restarts {
                    broker.restart_from_snapshot();
                }
                assert_eq!(broker.offset("g", "a", true), (-1, 88));
                assert_eq!(broker.offset("g", "a", false), (expected, 0));
                let (code, next) = broker.end(if v2 { 5 } else { 4 }, "t", pair, commits);
                assert_eq!(code, 0);
                if v2 {
                    pair = next;
                }
                if commits {
                    expected = offset;
                }
                assert_eq!(broker.offset("g", "a", true), (expected, 0));
            }
        }
    }
}

/// A fetch of everything names partitions with a committed offset only; the unstable one among them is 88.
#[test]
fn scenario_64_fetch_of_everything() {
    let (mut broker, pair) = broker();
    broker.topic("b");
    assert_eq!(plain_commit(&mut broker, "g", "a", 5), 0);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 7)), 0);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "b", 8)), 0);
    for version in [2, 7, 8, 9, 10] {
        let name = |name: &str| {
            if version == 10 {
                broker.state.topics.by_name(name).map(|t| t.name.clone())
            } else {
                Some(Text::from(name))
            }
        };
        let a = name("a").expect("exists");
        assert_eq!(everything(&mut broker, version, "g", false), [(a.clone(), 0, 5, 0)]);
        if version >= 7 {
            assert_eq!(everything(&mut broker, version, "g", true), [(a, 0, -1, 88)]);
        }
    }
    assert_eq!(broker.end(5, "t", pair, true).0, 0);
    let after = everything(&mut broker, 8, "g", true);
    assert_eq!(after, [(Text::from("a"), 0, 7, 0), (Text::from("b"), 0, 8, 0)]);
    assert!(everything(&mut broker, 8, "nobody", true).is_empty());
}

/// A plain commit behind the pending one wins when the transaction commits, also after a reload.
/// Public cases: KAFKA-5247, RP#31483 (84).
#[test]
fn scenario_65_a_plain_commit_between() {
    for restarts in [false, true] {
        let (mut broker, pair) = broker();
        assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 10)), 0);
        assert_eq!(plain_commit(&mut broker, "g", "a", 20), 0);
        if restarts {
            broker.restart_from_snapshot();
        }
        let (_, pair) = broker.end(5, "t", pair, true);
        assert_eq!(broker.offset("g", "a", true), (20, 0));
        if restarts {
            broker.restart();
        }
        assert_eq!(broker.offset("g", "a", true), (20, 0));
        assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 15)), 0);
        assert_eq!(broker.end(5, "t", pair, true).0, 0);
        assert_eq!(broker.offset("g", "a", true), (15, 0));
    }
}

/// Groups that do not exist, generations, long metadata, unknown topics, by version: plain commits.
/// Public cases: KAFKA-16371 (88).
#[test]
fn scenario_66_plain_commit_errors() {
    let (mut broker, _) = broker();
    for version in 2..=10 {
        let group = format!("g{version}");
        let absent =
            commit(&mut broker, version, &group, "a", |request| request.generation_id_or_member_epoch = 1);
        assert_eq!(absent, if version >= 9 { 69 } else { 22 }, "OffsetCommit {version}");
        let metadata = |length: usize| Some(Text::from("x".repeat(length)));
        let long = commit(&mut broker, version, &group, "a", |request| {
            request.topics[0].partitions[0].committed_metadata = metadata(4097);
        });
        assert_eq!(long, 12);
        assert!(everything(&mut broker, 8, &group, false).is_empty(), "nothing was stored");
        let longest = commit(&mut broker, version, &group, "a", |request| {
            request.topics[0].partitions[0].committed_metadata = metadata(4096);
        });
        assert_eq!(longest, 0);
        assert_eq!(
            commit(&mut broker, version, &group, "nowhere", |_| {}),
            if version >= 10 { 100 } else { 3 }
        );
        let beyond = commit(&mut broker, version, &group, "a", |request| {
            request.topics[0].partitions[0].partition_index = 3;
        });
        assert_eq!(beyond, 3);
        let member =
            commit(&mut broker, version, &group, "a", |request| request.generation_id_or_member_epoch = 1);
        assert_eq!(member, 25, "a group without members knows no generation");
    }
    assert_eq!(plain_commit(&mut broker, "", "a", 5), 0, "the empty group is taken, as ever");
}

/// The same for commits in a transaction; a refused one neither joins nor begins a transaction.
#[test]
fn scenario_66_transactional_commit_errors() {
    for version in 0..=6 {
        let (mut broker, pair) = broker();
        if version < 5 {
            assert_eq!(broker.add_offsets("t", pair, "g"), 0);
            assert_eq!(broker.add_offsets("t", pair, ""), 0);
        }
        let unknown = broker.txn_commit(version, "t", pair, &at("g", "nowhere", 5));
        assert_eq!(unknown, if version >= 6 { 100 } else { 3 });
        assert_eq!(broker.txn_commit(version, "t", pair, &at("", "a", 5)), 24);
        let generation = At { generation: 1, ..at("g", "a", 5) };
        let absent = broker.txn_commit(version, "t", pair, &generation);
        assert_eq!(absent, if version >= 6 { 69 } else { 22 });
        if version >= 5 {
            assert!(broker.id("t").partitions.is_empty());
        }
        assert_eq!(broker.txn_commit(version, "t", pair, &at("g", "a", 5)), 0);
        assert_eq!(broker.txn_commit(version, "t", pair, &generation), 25);
        assert_eq!(broker.offset("g", "a", true), (-1, 88));
    }
}

/// Unknown groups and topics are -1 without an error; an unknown topic id is 100.
#[test]
fn scenario_66_fetch_errors() {
    let (mut broker, _) = broker();
    assert_eq!(broker.offset("nobody", "a", true), (-1, 0));
    assert_eq!(broker.offset("nobody", "nowhere", true), (-1, 0));
    for version in 1..8 {
        let request = m::OffsetFetchRequest {
            group_id: Text::from("g"),
            topics: Some(vec![OffsetFetchRequestTopic {
                name: Text::from("nowhere"),
                partition_indexes: vec![0],
                ..Default::default()
            }]),
            ..Default::default()
        };
        let Reply::OffsetFetch(response) = broker.ask(version, CommandBody::OffsetFetch(request)) else {
            panic!("another answer")
        };
        let partition = &response.topics[0].partitions[0];
        assert_eq!((partition.committed_offset, partition.error_code), (-1, 0));
    }
    let by_id = |broker: &mut Broker, topic_id| {
        let request = m::OffsetFetchRequest {
            groups: vec![OffsetFetchRequestGroup {
                group_id: Text::from("g"),
                topics: Some(vec![OffsetFetchRequestTopics {
                    topic_id,
                    partition_indexes: vec![0],
                    ..Default::default()
                }]),
                ..Default::default()
            }],
            ..Default::default()
        };
        let Reply::OffsetFetch(response) = broker.ask(10, CommandBody::OffsetFetch(request)) else {
            panic!("another answer")
        };
        let partition = &response.groups[0].topics[0].partitions[0];
        (partition.committed_offset, partition.error_code)
    };
    assert_eq!(by_id(&mut broker, Uuid([0xee; 16])), (-1, 100));
    assert_eq!(commit(&mut broker, 10, "g", "a", |_| {}), 0);
    let id = broker.state.topics.by_name("a").expect("exists").id;
    assert_eq!(by_id(&mut broker, id), (5, 0));
}

/// What is asked twice is answered once: an answer is never larger than the state.
#[test]
fn repeated_questions() {
    let (mut broker, _) = broker();
    let topic = || OffsetFetchRequestTopics {
        name: Text::from("a"),
        partition_indexes: vec![0; 100],
        ..Default::default()
    };
    let group = || OffsetFetchRequestGroup {
        group_id: Text::from("g"),
        topics: Some(vec![topic(), topic()]),
        ..Default::default()
    };
    let request = m::OffsetFetchRequest { groups: vec![group(), group()], ..Default::default() };
    let Reply::OffsetFetch(response) = broker.ask(8, CommandBody::OffsetFetch(request)) else {
        panic!("another answer")
    };
    assert_eq!((response.groups.len(), response.groups[0].topics.len()), (1, 1));
    assert_eq!(response.groups[0].topics[0].partitions.len(), 1);
}

/// A zombie writes no offsets: 47 in every version of TxnOffsetCommit.
#[test]
fn scenario_67_zombies() {
    for v2 in [false, true] {
        let (mut broker, old) = broker();
        if !v2 {
            assert_eq!(broker.add_offsets("t", old, "g"), 0);
        }
        assert_eq!(broker.txn_commit(if v2 { 5 } else { 4 }, "t", old, &at("g", "a", 10)), 0);
        let (_, new) = broker.init("t", None);
        for version in 0..=6 {
            assert_eq!(broker.txn_commit(version, "t", old, &at("g", "a", 11)), 47);
        }
        assert_eq!(broker.offset("g", "a", true), (-1, 0), "the fence has aborted it");
        assert_eq!(broker.txn_commit(5, "t", new, &at("g", "a", 12)), 0);
        assert_eq!(broker.end(5, "t", new, true).0, 0);
        assert_eq!(broker.offset("g", "a", true), (12, 0));
    }
}

/// A deleted topic takes its offsets along, pending ones too: the later COMMIT brings nothing back, nor does a new
/// topic of the same name.
#[test]
fn scenario_69_deleted_topics() {
    for restarts in [false, true] {
        let (mut broker, pair) = broker();
        broker.topic("b");
        assert_eq!(plain_commit(&mut broker, "g", "a", 5), 0);
        assert_eq!(plain_commit(&mut broker, "g", "b", 6), 0);
        assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 10)), 0);
        assert_eq!(broker.txn_commit(5, "t", pair, &at("h", "a", 10)), 0);
        broker.delete_topic("a");
        broker.topic("a");
        if restarts {
            broker.restart();
        }
        assert_eq!(broker.end(5, "t", pair, true).0, 0);
        assert_eq!(everything(&mut broker, 8, "g", true), [(Text::from("b"), 0, 6, 0)]);
        assert_eq!(broker.offset("h", "a", true), (-1, 0));
        assert!(!broker.state.groups.exists("h"), "a group without offsets is gone");
        assert_eq!(broker.state.groups.values, 1);
    }
}

/// Retention: since the commit, or when the client said; what a transaction is about to replace stays.
/// Public cases: RP#31483 (85).
#[test]
fn scenario_70_expiry() {
    let mut broker = Broker::with(|config| config.offsets_retention_ms = 3_600_000);
    broker.topic("a");
    let (_, pair) = broker.init_with(4, "t", None, 900_000);
    assert_eq!(plain_commit(&mut broker, "old", "a", 1), 0);
    let short = commit(&mut broker, 4, "short", "a", |request| request.retention_time_ms = 600_000);
    assert_eq!(short, 0);
    broker.pass(1_300_000);
    assert_eq!((broker.offset("short", "a", true), broker.offset("old", "a", true)), ((-1, 0), (1, 0)));
    broker.pass(1_800_000);
    assert_eq!(plain_commit(&mut broker, "young", "a", 2), 0);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("pending", "a", 3)), 0);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("old", "a", 4)), 0);
    broker.restart();
    broker.pass(800_000);
    assert_eq!(broker.offset("old", "a", false), (1, 0), "a transaction is about to replace it");
    assert_eq!(broker.offset("pending", "a", true), (-1, 88));
    assert_eq!(broker.end(5, "t", pair, false).0, 0);
    broker.pass(700_000);
    assert_eq!(broker.offset("old", "a", false), (-1, 0));
    assert_eq!(broker.offset("young", "a", true), (2, 0));
    assert!(!broker.state.groups.exists("pending"));
    broker.restart_from_snapshot();
}

/// Groups and offsets are bounded; what is there goes on.
#[test]
fn bounded() {
    let mut broker = Broker::with(|config| {
        config.limits.groups_max = 2;
        config.limits.group_offsets_max = 4;
    });
    broker.topic("a");
    let (_, pair) = broker.init("t", None);
    assert_eq!(plain_commit(&mut broker, "g", "a", 1), 0);
    assert_eq!(plain_commit(&mut broker, "h", "a", 1), 0);
    assert_eq!(plain_commit(&mut broker, "i", "a", 1), 44);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 2)), 0);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("h", "a", 2)), 0);
    assert_eq!(plain_commit(&mut broker, "g", "a", 3), 44);
    assert_eq!(broker.end(5, "t", pair, true).0, 0);
    assert_eq!(plain_commit(&mut broker, "g", "a", 3), 0);
}

/// An offset and a record of one transaction become visible together, whatever came late.
#[test]
fn offsets_move_with_the_data() {
    let (mut broker, pair) = broker();
    assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "x"), 0);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 1)), 0);
    assert!(broker.visible("a", 0).is_empty());
    let (_, next) = broker.end(5, "t", pair, true);
    assert_eq!((broker.visible("a", 0).len(), broker.offset("g", "a", true)), (1, (1, 0)));
    assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 0)), 47);
    assert_ne!(broker.txn_commit(4, "t", next, &at("g", "a", 0)), CLOSED);
    assert_eq!(broker.offset("g", "a", true), (1, 0));
}
