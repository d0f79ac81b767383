//! Surveys of small shards, step by step; and what the core says has happened.

use ottla_protocol::messages as m;

use super::*;
use crate::command::CommandBody;
use crate::decision::Decision;
use crate::event::Event;
use crate::testing::Shard;

fn whole(shard: &Shard, offsets_max: usize) -> (Survey, u32) {
    let (mut survey, mut steps) = (Survey::new(offsets_max), 0);
    while !survey.is_done() {
        shard.state.survey(&mut survey, ShardTime(shard.now_ms));
        steps += 1;
        assert!(steps < 1000, "a survey ends");
    }
    (survey, steps)
}

fn commit(shard: &mut Shard, group: &str, partition: i32, offset: i64) {
    let partition = m::offset_commit_request::OffsetCommitRequestPartition {
        partition_index: partition,
        committed_offset: offset,
        ..Default::default()
    };
    let topic = m::offset_commit_request::OffsetCommitRequestTopic {
        name: "t".into(),
        partitions: vec![partition],
        ..Default::default()
    };
    let request = m::OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    shard.ask(8, CommandBody::OffsetCommit(request));
}

fn initialise(shard: &mut Shard, id: &str) -> Decision {
    let request = m::InitProducerIdRequest {
        transactional_id: Some(id.into()),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    };
    shard.run(5, CommandBody::InitProducerId(request))
}

/// Proves: an empty shard has nothing, transactions are counted by state with the age of the oldest, and offsets are
/// listed up to the bound, the rest counted.
#[test]
fn what_there_is() {
    let mut shard = Shard::new();
    let (survey, _) = whole(&shard, 10);
    assert_eq!((survey.producers, survey.group_offsets, survey.left_out), (0, 0, 0));
    assert!(survey.transactional_ids.is_empty() && survey.groups.is_empty() && survey.committed.is_empty());
    let pair = shard.init("x");
    initialise(&mut shard, "y");
    assert_eq!(shard.add(pair, 0), 0);
    let began = shard.now_ms;
    for (group, partition) in [("a", 0), ("a", 1), ("b", 0)] {
        commit(&mut shard, group, partition, 7);
    }
    shard.now_ms += 5_000;
    let (survey, _) = whole(&shard, 10);
    assert_eq!(survey.transactional_ids, BTreeMap::from([("Empty", 1), ("Ongoing", 1)]));
    let since = survey.oldest_open_since_ms.expect("one is open");
    assert!(since <= began && survey.now.0 - since >= 5_000, "{since}");
    assert_eq!(survey.groups, BTreeMap::from([(("classic", "Empty"), 2)]));
    assert_eq!((survey.group_offsets, survey.committed.len(), survey.left_out), (3, 3, 0));
    assert!(survey.committed.iter().all(|committed| committed.topic == "t" && committed.offset == 7));
    let (survey, _) = whole(&shard, 2);
    assert_eq!((survey.committed.len(), survey.left_out), (2, 1));
}

/// Proves: a survey of many ids takes several steps, each bounded, and counts each id once.
#[test]
fn many_ids_take_several_steps() {
    let mut shard = Shard::new();
    let ids = SLOTS_MAX as usize + 100;
    for n in 0..ids {
        initialise(&mut shard, &format!("id-{n}"));
    }
    let (survey, steps) = whole(&shard, 10);
    assert_eq!(survey.transactional_ids, BTreeMap::from([("Empty", ids as u64)]));
    assert!(steps >= 4, "{steps} steps");
}

/// Proves: taking over an id and timing a transaction out are told, with their ids; ordinary work is not.
#[test]
fn events() {
    let mut shard = Shard::new();
    assert_eq!(initialise(&mut shard, "x").events, []);
    let fenced = |decision: &Decision, was_open: bool| match &decision.events[..] {
        [Event::ProducerFenced { transactional_id, aborted, .. }] => {
            *transactional_id == "x" && *aborted == was_open
        }
        _ => false,
    };
    assert!(fenced(&initialise(&mut shard, "x"), false));
    let pair = shard.init("x");
    assert_eq!(shard.add(pair, 0), 0);
    assert!(fenced(&initialise(&mut shard, "x"), true));
    let pair = shard.init("x");
    assert_eq!(shard.add(pair, 0), 0);
    shard.now_ms += 120_000;
    let events = shard.run(0, CommandBody::Tick).events;
    let [Event::TransactionTimedOut { transactional_id, producer_id, producer_epoch }] = &events[..] else {
        panic!("one transaction is timed out, not {events:?}");
    };
    assert_eq!((&**transactional_id, *producer_id, *producer_epoch), ("x", pair.0, pair.1));
}
