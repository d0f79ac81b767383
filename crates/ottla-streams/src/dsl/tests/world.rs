//! A small world for tests: a log in memory, one task per sub-topology, and commits, rollbacks and restarts at random.
//!
//! What the tasks emit reaches the log at commits only. At each commit and at the end the stores are compared with the
//! fold of their changes (I1). So every test that runs here proves its operators against rollbacks and restarts too:
//! whatever the seed, the log must hold the same in the end.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::engine::mem::MemEngine;
use crate::engine::{Direction, KeyRange, StoreId};
use crate::meta::Meta;
use crate::record::{InputRecord, RawRecord, TaskId};
use crate::state::{StoreKind, TaskState};
use crate::task::{Emit, Stepped, Task, TaskError};
use crate::topology::Topology;
use ottla_client::TopicPartition;

/// A record of the log, for comparing: key, value, timestamp.
pub(crate) type Row = (Option<String>, Option<String>, i64);

/// Texts of a record.
pub(crate) fn row(record: &RawRecord) -> Row {
    let text =
        |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (text(&record.key), text(&record.value), record.timestamp)
}

/// Changes of a task's stores, folded.
type Fold = BTreeMap<StoreId, BTreeMap<Bytes, Bytes>>;

struct Member {
    /// Absent only while it is restarted.
    task: Option<Task>,
    pushed: BTreeMap<TopicPartition, usize>,
    /// Emitted since the boundary.
    open: Vec<Emit>,
    committed: Fold,
}

/// The world.
pub(crate) struct World {
    topology: Topology,
    members: Vec<Member>,
    pub(crate) log: BTreeMap<String, Vec<RawRecord>>,
    random: u64,
    pub(crate) wall_ms: i64,
    /// Whether rollbacks and restarts happen.
    pub(crate) rough: bool,
}

impl World {
    pub(crate) fn new(topology: &Topology, seed: u64) -> Self {
        let members = topology.sub_topologies().iter().map(|sub| {
            let state =
                TaskState::open(Box::new(MemEngine::alone(&sub.store_names())), &sub.stores, sub.fingerprint)
                    .expect("empty");
            let id = TaskId { sub_topology: sub.id, partition: 0 };
            let task = Task::new(topology, id, state).expect("processors start");
            Member { task: Some(task), pushed: BTreeMap::new(), open: Vec::new(), committed: Fold::new() }
        });
        let members = members.collect();
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { topology: topology.clone(), members, log: BTreeMap::new(), random, wall_ms: 0, rough: true }
    }

    fn chance(&mut self, of: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.is_multiple_of(of)
    }

    /// Adds a record to a topic.
    pub(crate) fn pipe(&mut self, topic: &str, key: Option<&[u8]>, value: Option<&[u8]>, timestamp: i64) {
        let bytes = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
        let record = RawRecord { key: bytes(key), value: bytes(value), timestamp, headers: Vec::new() };
        self.log.entry(topic.to_owned()).or_default().push(record);
    }

    /// Adds a record with texts to a topic.
    pub(crate) fn text(&mut self, topic: &str, key: &str, value: &str, timestamp: i64) {
        self.pipe(topic, Some(key.as_bytes()), Some(value.as_bytes()), timestamp);
    }

    /// The task of a sub-topology.
    pub(crate) fn task(&self, sub: usize) -> &Task {
        self.members[sub].task.as_ref().expect("it is there between runs")
    }

    fn fetch(&mut self, sub: usize) {
        let member = &mut self.members[sub];
        let task = member.task.as_mut().expect("it is there");
        for at in task.inputs().to_vec() {
            let Some(log) = self.log.get(at.topic.as_str()) else { continue };
            let from = member.pushed.insert(at.clone(), log.len()).unwrap_or(0);
            let records = log.iter().enumerate().skip(from).map(|(offset, record)| InputRecord {
                topic_partition: at.clone(),
                offset: i64::try_from(offset).expect("small"),
                record: record.clone(),
            });
            task.push(records.collect());
        }
    }

    /// Works until nothing is left, and commits.
    pub(crate) fn run(&mut self) {
        self.try_run().expect("no task fails");
    }

    /// Works until nothing is left, and commits; or the first error that does not heal.
    pub(crate) fn try_run(&mut self) -> Result<(), TaskError> {
        loop {
            let mut worked = false;
            for sub in 0..self.members.len() {
                self.fetch(sub);
                worked |= self.work(sub)?;
                self.commit(sub);
            }
            if !worked {
                return Ok(());
            }
        }
    }

    /// Takes what is there.
    fn work(&mut self, sub: usize) -> Result<bool, TaskError> {
        let mut worked = false;
        loop {
            if self.rough && self.chance(7) {
                self.commit(sub);
            }
            if self.rough && self.chance(11) {
                self.roll_back(sub);
            }
            if self.rough && self.chance(23) {
                self.restart(sub);
            }
            let wall_ms = self.wall_ms;
            let member = &mut self.members[sub];
            let task = member.task.as_mut().expect("it is there");
            let before = member.open.len();
            match task.step(wall_ms, &mut member.open) {
                Ok(Stepped::Idle) => return Ok(worked),
                Ok(_) => worked = true,
                Err(error) if error.heals() => {
                    assert_eq!(member.open.len(), before, "a failed step leaves nothing");
                    worked = true;
                    self.roll_back(sub);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn roll_back(&mut self, sub: usize) {
        let member = &mut self.members[sub];
        member.open.clear();
        member.task.as_mut().expect("it is there").rollback();
    }

    /// A new task over the state as of the boundary, which fetches again.
    pub(crate) fn restart(&mut self, sub: usize) {
        let member = &mut self.members[sub];
        member.open.clear();
        member.pushed.clear();
        let old = member.task.take().expect("it is there");
        let id = old.id();
        let mut state = old.into_state();
        state.rollback();
        member.task = Some(Task::new(&self.topology, id, state).expect("processors start"));
        self.fetch(sub);
    }

    /// Makes what was emitted part of the log, and what was written part of the state.
    pub(crate) fn commit(&mut self, sub: usize) {
        let member = &mut self.members[sub];
        let task = member.task.as_mut().expect("it is there");
        let boundary = task.boundary();
        let mut meta = Meta { seq: task.state().meta().seq + 1, ..task.state().meta().clone() };
        (meta.inputs, meta.stream_time, meta.timers) =
            (boundary.offsets, boundary.stream_time, boundary.timers);
        for emit in member.open.drain(..) {
            match emit {
                Emit::Output(output) => {
                    self.log.entry(output.topic.to_string()).or_default().push(output.record)
                }
                Emit::Change(change) => {
                    meta.stores[usize::from(change.store.0)].position += 1;
                    let fold = member.committed.entry(change.store).or_default();
                    match change.value {
                        Some(value) => drop(fold.insert(change.key, value)),
                        None => drop(fold.remove(&change.key)),
                    }
                }
            }
        }
        task.state_mut().apply(meta).expect("memory takes it");
        task.committed();
        assert!(!task.is_dirty());
        self.check(sub);
    }

    /// I1: stores are the folds of their changes, expired windows aside.
    fn check(&self, sub: usize) {
        let member = &self.members[sub];
        let state = self.task(sub).state();
        let specs = &self.topology.sub_topologies()[sub].stores;
        for (spec, number) in specs.iter().zip(0u16..).filter(|(spec, _)| spec.changelog.is_some()) {
            let store = StoreId(number);
            let all = state.scan(store, &KeyRange::ALL, Direction::Forward);
            let content: BTreeMap<Bytes, Bytes> = all.map(|entry| entry.expect("memory")).collect();
            let empty = BTreeMap::new();
            let fold = member.committed.get(&store).unwrap_or(&empty);
            for (key, value) in &content {
                assert_eq!(fold.get(key), Some(value), "I1: {} has what no change wrote", spec.name);
            }
            for key in fold.keys().filter(|key| !content.contains_key(*key)) {
                let StoreKind::Window { retention_ms } = spec.kind else {
                    panic!("I1: {} lost {key:?}", spec.name);
                };
                let gone_to =
                    crate::state::window_prefix(self.task(sub).stream_time().saturating_sub(retention_ms));
                assert!(key[..8] <= gone_to[..], "I1: {} lost a window that is not expired", spec.name);
            }
        }
    }

    /// Rows of a topic.
    pub(crate) fn rows(&self, topic: &str) -> Vec<Row> {
        self.log.get(topic).map_or_else(Vec::new, |log| log.iter().map(row).collect())
    }

    /// Keys and values of a topic.
    pub(crate) fn pairs(&self, topic: &str) -> Vec<(String, String)> {
        let text = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
        self.rows(topic).into_iter().map(|(key, value, _)| (text(key), text(value))).collect()
    }
}

/// A record of an input, for models.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) topic: usize,
    pub(crate) key: String,
    pub(crate) value: i64,
    pub(crate) timestamp: i64,
}

/// The order in which a task takes events of several topics (by name order): the lowest timestamp at a head first.
pub(crate) fn taken(events: &[Event], topics: usize) -> Vec<Event> {
    let mut queues: Vec<std::collections::VecDeque<&Event>> =
        (0..topics).map(|topic| events.iter().filter(|event| event.topic == topic).collect()).collect();
    let mut order = Vec::new();
    while let Some((_, topic)) =
        queues.iter().enumerate().filter_map(|(topic, queue)| Some((queue.front()?.timestamp, topic))).min()
    {
        order.push(queues[topic].pop_front().expect("it has a head").clone());
    }
    order
}

/// Events at random: few keys, times that mostly go forward and sometimes back.
pub(crate) fn events(
    topics: usize,
    longest: usize,
    span: i64,
) -> impl proptest::prelude::Strategy<Value = Vec<Event>> {
    use proptest::prelude::*;
    let one = (0..topics, 0..3u8, -5i64..100, 0..10u8, 0..span);
    proptest::collection::vec(one, 0..longest).prop_map(move |all| {
        let mut now = 0;
        all.into_iter()
            .map(|(topic, key, value, late, step)| {
                let timestamp = if late < 7 { now + step / 3 } else { (now - step).max(0) };
                now = now.max(timestamp);
                Event { topic, key: format!("k{key}"), value, timestamp }
            })
            .collect()
    })
}

/// A codec of numbers as decimal texts, so that logs can be read.
#[derive(Clone, Copy)]
pub(crate) struct Decimal;

impl crate::codec::Codec<i64> for Decimal {
    fn name(&self) -> &'static str {
        "decimal"
    }
    fn encode(&self, value: &i64, out: &mut Vec<u8>) -> Result<(), crate::codec::CodecError> {
        out.extend_from_slice(value.to_string().as_bytes());
        Ok(())
    }
    fn decode(&self, bytes: &[u8]) -> Result<i64, crate::codec::CodecError> {
        let text = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        text.ok_or_else(|| crate::codec::CodecError::new("decimal", "no number"))
    }
}
