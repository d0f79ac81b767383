//! What a task does with records that fail, with timers, limits and its boundary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::codec::{I64, Utf8};
use crate::dsl::tests::world::{Decimal, World};
use crate::engine::StoreId;
use crate::processor::{Context, Processor, Record};
use crate::record::RawRecord;
use crate::store::{Kv, KvStore};

const BAD: i64 = 13;

fn all(policy: Policy) -> Policies {
    Policies { on_decode_error: policy.clone(), on_process_error: policy.clone(), on_produce_error: policy }
}

/// Counts and forwards; then fails at the bad number, by an error or a panic, with or without traces before it.
struct Fragile {
    counts: KvStore<String, i64>,
    panics: bool,
    late: bool,
}

impl Fragile {
    fn break_at(&self, value: i64) -> Result<(), ProcessError> {
        match (value, self.panics) {
            (BAD, true) => panic!("unlucky"),
            (BAD, false) => Err("unlucky".into()),
            _ => Ok(()),
        }
    }
}

impl Processor for Fragile {
    type KeyIn = String;
    type In = i64;
    type KeyOut = String;
    type Out = i64;

    fn process(
        &mut self,
        r: Record<String, i64>,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<(), ProcessError> {
        if !self.late {
            self.break_at(r.value)?;
        }
        let count = cx.store(&self.counts).get(&r.key)?.unwrap_or(0) + 1;
        cx.store(&self.counts).put(&r.key, &count)?;
        let value = r.value;
        cx.forward(r.with_value(count))?;
        self.break_at(value)
    }
}

fn fragile(policy: Policy, panics: bool, late: bool) -> Topology {
    Topology::new("app", |b| {
        b.policies(all(policy));
        let counts = b.kv_store("counts", Utf8, I64);
        let handle = counts.clone();
        let input = b.stream("in", Utf8, Decimal);
        let make = move || Fragile { counts: handle.clone(), panics, late };
        input.process("fragile", &[&counts], make).keys_as(Utf8).values_as(Decimal).to("out");
    })
    .expect("it is sound")
}

fn piped(topology: &Topology, seed: u64) -> World {
    let mut world = World::new(topology, seed);
    [1, 13, 2, 13, 3]
        .iter()
        .zip(10..)
        .for_each(|(value, time)| world.text("in", "k", &value.to_string(), time));
    world
}

/// Proves that a record that fails leaves nothing, whether it failed before or after its writes, by an error or by a
/// panic, and that its dead letter is written once and says where it is from; over rollbacks and restarts.
#[test]
fn failed_records_leave_nothing_but_their_dead_letters() {
    for (panics, late) in [(false, false), (false, true), (true, false), (true, true)] {
        for (policy, letters) in [(Policy::Skip, 0), (Policy::DeadLetter("dead".to_owned()), 2)] {
            let topology = fragile(policy.clone(), panics, late);
            for seed in 0..20 {
                let mut world = piped(&topology, seed);
                world.run();
                let out: Vec<String> = world.pairs("out").into_iter().map(|pair| pair.1).collect();
                assert_eq!(out, ["1", "2", "3"], "{policy:?}, panics {panics}, late {late}, seed {seed}");
                let dead = world.log.get("dead").cloned().unwrap_or_default();
                assert_eq!(dead.len(), letters);
                for (letter, offset) in dead.iter().zip(["1", "3"]) {
                    assert_eq!(letter.value, Some(Bytes::from_static(b"13")));
                    let header = |name: &str| {
                        let found = letter.headers.iter().find(|header| &*header.key == name);
                        found
                            .and_then(|header| header.value.clone())
                            .map(|value| String::from_utf8_lossy(&value).into_owned())
                    };
                    assert_eq!(header("ottla.offset").as_deref(), Some(offset));
                    assert_eq!(header("ottla.topic").as_deref(), Some("in"));
                    assert_eq!(header("ottla.partition").as_deref(), Some("0"));
                    assert_eq!(header("ottla.node").as_deref(), Some("fragile"));
                    assert_eq!(header("ottla.error").as_deref(), Some("unlucky"));
                }
            }
        }
    }
}

/// Proves that without a policy the error names node, record and reason, that nothing of the record is emitted, and
/// that the task does nothing more before its rollback, and works after it.
#[test]
fn failing_stops_with_a_name() {
    for (panics, late) in [(false, true), (true, true)] {
        let topology = fragile(Policy::Fail, panics, late);
        let mut world = piped(&topology, 0);
        world.rough = false;
        let error = world.try_run().expect_err("13 is bad");
        let said = error.to_string();
        assert!(
            said.contains("fragile") && said.contains("offset 1 of in") && said.contains("unlucky"),
            "{said}"
        );
        assert_eq!(matches!(error, TaskError::Panicked { .. }), panics);
        assert!(matches!(world.try_run(), Err(TaskError::NotRolledBack)));
        world.roll_back(0);
        assert!(matches!(world.try_run(), Err(error) if !matches!(error, TaskError::NotRolledBack)));
    }
}

/// Proves that what cannot be decoded falls under its own policy, and a record without a timestamp too.
#[test]
fn undecodable_records() {
    let topology = |policy| {
        Topology::new("app", |b| {
            b.policies(Policies { on_decode_error: policy, ..Policies::default() });
            b.stream("in", Utf8, Decimal).to("out");
        })
        .expect("it is sound")
    };
    let fill = |world: &mut World| {
        world.text("in", "k", "1", 1);
        world.text("in", "k", "no number", 2);
        world.pipe("in", None, Some(b"1"), 3);
        world.text("in", "k", "1", -1);
        world.text("in", "k", "2", 4);
    };
    let mut world = World::new(&topology(Policy::DeadLetter("dead".into())), 0);
    fill(&mut world);
    world.run();
    assert_eq!(world.rows("out").len(), 2);
    assert_eq!(world.rows("dead").len(), 3);
    let mut world = World::new(&topology(Policy::Fail), 0);
    fill(&mut world);
    let said = world.try_run().expect_err("one is bad").to_string();
    assert!(said.contains("offset 1 of in") && said.contains("decimal: no number"), "{said}");
}

/// A codec that writes no number above 9.
struct Digit;

impl crate::codec::Codec<i64> for Digit {
    fn encode(&self, value: &i64, out: &mut Vec<u8>) -> Result<(), crate::codec::CodecError> {
        match value {
            0..=9 => Decimal.encode(value, out),
            _ => Err(crate::codec::CodecError::new("digit", "too large")),
        }
    }
    fn decode(&self, bytes: &[u8]) -> Result<i64, crate::codec::CodecError> {
        Decimal.decode(bytes)
    }
}

/// Proves that a result that its codec does not write falls under the policy for results, with nothing left of its
/// record.
#[test]
fn results_that_cannot_be_written() {
    let topology = |policy| {
        Topology::new("app", |b| {
            b.policies(Policies { on_produce_error: policy, ..Policies::default() });
            let numbers = b.stream("in", Utf8, Decimal);
            numbers.to("copy");
            numbers.values_as(Digit).to("digits");
        })
        .expect("it is sound")
    };
    for seed in 0..10 {
        let mut world = piped(&topology(Policy::Skip), seed);
        world.run();
        assert_eq!(world.rows("digits").len(), 3);
        assert_eq!(world.rows("copy").len(), 3, "the copies of 13 are gone with it");
    }
    let said = piped(&topology(Policy::Fail), 0).try_run().expect_err("13").to_string();
    assert!(said.contains("digits: digit: too large"), "{said}");
}

/// Proves that a table's store is the fold of its topic whatever becomes of its records: one that cannot be decoded
/// is in the store, as it will be after a restore, and whoever meets it falls under the policy.
#[test]
fn undecodable_values_of_a_table() {
    let topology = Topology::new("app", |b| {
        b.policies(all(Policy::Skip));
        let table = b.table("t1", "latest", Utf8, Decimal);
        table.to("out");
        let joined =
            b.stream("t0", Utf8, Decimal).left_join(&table, |left, right| format!("{left} {right:?}"));
        joined.values_as(Utf8).to("joined");
    })
    .expect("it is sound");
    for seed in 0..10 {
        let mut world = World::new(&topology, seed);
        world.text("t1", "k", "1", 1);
        world.text("t1", "k", "no number", 2);
        world.text("t0", "k", "7", 3);
        world.text("t0", "other", "8", 4);
        world.run();
        assert_eq!(world.rows("out").len(), 1);
        assert_eq!(world.pairs("joined"), [("other".to_owned(), "8 None".to_owned())]);
        let kept = world.task(0).state().get(StoreId(0), b"k").expect("memory");
        assert_eq!(kept, Some(Bytes::from_static(b"no number")));
    }
}

/// Proves the same for a record that has left traces before it fails: it is left out after a rollback, and yet is in the
/// table's store.
#[test]
fn failed_changes_of_a_table() {
    let topology = Topology::new("app", |b| {
        b.policies(all(Policy::Skip));
        let changes = b.table("t1", "latest", Utf8, Decimal).changes();
        changes.to("copy");
        let checked =
            changes.try_map_values(|_, value| if value == BAD { Err("unlucky".into()) } else { Ok(value) });
        checked.values_as(Decimal).to("out");
    })
    .expect("it is sound");
    for seed in 0..10 {
        let mut world = World::new(&topology, seed);
        world.text("t1", "k", "1", 1);
        world.text("t1", "k", "13", 2);
        world.run();
        assert_eq!((world.rows("copy").len(), world.rows("out").len()), (1, 1));
        let kept = world.task(0).state().get(StoreId(0), b"k").expect("memory");
        assert_eq!(kept, Some(Bytes::from_static(b"13")), "seed {seed}");
    }
}

/// Passes nothing on of what goes wrong after it.
struct Careless;

impl Processor for Careless {
    type KeyIn = String;
    type In = i64;
    type KeyOut = String;
    type Out = i64;

    fn process(
        &mut self,
        r: Record<String, i64>,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<(), ProcessError> {
        let _ = cx.forward(r);
        Ok(())
    }
}

/// Proves that user code cannot pass over the failure of a later step: half of a record is never kept.
#[test]
fn failures_are_not_swallowed() {
    let topology = Topology::new("app", |b| {
        b.policies(all(Policy::Skip));
        let counts = b.kv_store("counts", Utf8, I64);
        let handle = counts.clone();
        let careless =
            b.stream("in", Utf8, Decimal).process("careless", &[], || Careless).keep_partitioning();
        let make = move || Fragile { counts: handle.clone(), panics: false, late: true };
        careless.process("fragile", &[&counts], make).keys_as(Utf8).values_as(Decimal).to("out");
    })
    .expect("it is sound");
    let mut world = piped(&topology, 3);
    world.run();
    assert_eq!(world.rows("out").len(), 3);
}

/// Proves that a record that the cluster refuses is left out after the rollback, that its dead letter is there, and
/// that a dead letter that is refused itself stops the task.
#[test]
fn refused_results() {
    let topology = Topology::new("app", |b| {
        b.policies(Policies { on_produce_error: Policy::DeadLetter("dead".into()), ..Policies::default() });
        b.stream("in", Utf8, Decimal).to("out");
    })
    .expect("it is sound");
    let mut world = piped(&topology, 0);
    world.rough = false;
    let sub = &topology.sub_topologies()[0];
    let state = TaskState::open(
        Box::new(crate::engine::mem::MemEngine::alone(&sub.store_names())),
        &sub.stores,
        sub.fingerprint,
    );
    let mut task =
        Task::new(&topology, TaskId { sub_topology: 0, partition: 0 }, state.expect("empty")).expect("sound");
    let at = TopicPartition::new("in", 0);
    let log = world.log["in"].clone();
    let records = log.into_iter().zip(0..).map(|(record, offset)| InputRecord {
        topic_partition: at.clone(),
        offset,
        record,
    });
    task.push(records.collect());
    let mut out = Vec::new();
    (0..2).for_each(|_| assert_eq!(task.step(0, &mut out).expect("fine"), Stepped::Record));
    task.refused("out", "too large").expect("put aside");
    assert!(matches!(task.step(0, &mut out), Err(TaskError::NotRolledBack)));
    task.rollback();
    out.clear();
    while task.step(0, &mut out).expect("all are fine") != Stepped::Idle {}
    let topics: Vec<&str> = out
        .iter()
        .map(|emit| match emit {
            Emit::Output(output) => output.topic.as_str(),
            Emit::Change(_) => "change",
        })
        .collect();
    assert_eq!(topics, ["out", "dead", "out", "out", "out"]);
    task.rollback();
    (0..2).for_each(|_| assert_eq!(task.step(0, &mut out).expect("fine"), Stepped::Record));
    assert!(matches!(task.refused("dead", "no"), Err(TaskError::Produce { node, .. }) if node == "dead"));
}

/// Counts its own calls in a field, which it takes from its store at the start; ticks by both clocks.
struct Ticker {
    sum: KvStore<String, i64>,
    seen: i64,
    made: Arc<AtomicU32>,
}

fn key() -> String {
    "sum".to_owned()
}

impl Processor for Ticker {
    type KeyIn = String;
    type In = i64;
    type KeyOut = String;
    type Out = i64;

    fn init(&mut self, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let mut sum: Kv<'_, String, i64> = cx.store(&self.sum);
        assert!(sum.put(&key(), &1).is_err(), "nothing is written in init");
        self.seen = cx.store(&self.sum).get(&key())?.unwrap_or(0);
        cx.schedule("time", TimerClock::StreamTime, Duration::from_millis(10))?;
        cx.schedule("clock", TimerClock::WallClock, Duration::from_millis(100))
    }

    fn process(
        &mut self,
        r: Record<String, i64>,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<(), ProcessError> {
        assert!(cx.schedule("late", TimerClock::StreamTime, Duration::ZERO).is_err(), "only in init");
        self.seen += 1;
        cx.store(&self.sum).put(&key(), &self.seen)?;
        assert_eq!(cx.position().map(|at| at.offset), Some(self.seen - 1), "the field follows rollbacks");
        if r.value == BAD {
            cx.request_commit();
        }
        Ok(())
    }

    fn timer(&mut self, name: &str, at: i64, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
        cx.forward(Record::new(format!("{name} at {at}"), self.seen, at))
    }
}

fn ticker(made: &Arc<AtomicU32>) -> Topology {
    let made = made.clone();
    Topology::new("app", |b| {
        let sum = b.kv_store("sum", Utf8, I64);
        let handle = sum.clone();
        let make = move || Ticker { sum: handle.clone(), seen: -1, made: made.clone() };
        b.stream("in", Utf8, Decimal)
            .process("ticker", &[&sum], make)
            .keys_as(Utf8)
            .values_as(Decimal)
            .to("out");
    })
    .expect("it is sound")
}

/// Proves I5 for processors (fields are rebuilt at each rollback and restart), and that stream-time timers fire once
/// per multiple that time passes, in the step of the record that moves it, whatever is rolled back.
#[test]
fn timers_on_stream_time_and_fields() {
    let made = Arc::new(AtomicU32::new(0));
    let topology = ticker(&made);
    for seed in 0..50 {
        let mut world = World::new(&topology, seed);
        [1, 9, 10, 11, 35, 38, 40].iter().for_each(|time| world.text("in", "k", "1", *time));
        world.run();
        let expected = [("time at 10", "3"), ("time at 35", "5"), ("time at 40", "7")];
        assert_eq!(
            world.pairs("out"),
            expected.map(|(key, value)| (key.to_owned(), value.to_owned())),
            "seed {seed}"
        );
    }
    assert!(made.load(Ordering::Relaxed) > 100, "rollbacks made new ones");
}

/// Proves that a wall-clock timer fires once per passage, that what it does in a transaction that is rolled back is
/// done again, and that a restart neither forgets its moment nor repeats it.
#[test]
fn timers_on_the_wall_clock() {
    let topology = ticker(&Arc::new(AtomicU32::new(0)));
    let mut world = World::new(&topology, 0);
    world.rough = false;
    let ticks = |world: &World| world.pairs("out").into_iter().map(|pair| pair.0).collect::<Vec<_>>();
    world.wall_ms = 50;
    world.run();
    assert!(ticks(&world).is_empty(), "the first look starts it");
    world.restart(0);
    world.wall_ms = 130;
    world.run();
    assert_eq!(ticks(&world), ["clock at 130"]);
    world.restart(0);
    world.run();
    world.wall_ms = 570;
    world.run();
    assert_eq!(ticks(&world), ["clock at 130", "clock at 570"]);
    assert_eq!(world.task(0).next_wall_timer(), Some(600));
}

/// Proves that fetching pauses by bytes that wait, that kept bytes ask for a commit, and that a processor can.
#[test]
fn limits_by_bytes() {
    let topology = ticker(&Arc::new(AtomicU32::new(0)));
    let sub = &topology.sub_topologies()[0];
    let engine = crate::engine::mem::MemEngine::alone(&sub.store_names());
    let state = TaskState::open(Box::new(engine), &sub.stores, sub.fingerprint).expect("empty");
    let mut task = Task::new(&topology, TaskId { sub_topology: 0, partition: 0 }, state).expect("sound");
    let at = TopicPartition::new("in", 0);
    let value = |value: &'static str| RawRecord {
        key: Some(Bytes::from_static(b"k")),
        value: Some(Bytes::from_static(value.as_bytes())),
        timestamp: 1,
        headers: Vec::new(),
    };
    let size = value("1").size();
    task.set_limits(3 * size, size);
    let push = |task: &mut Task, offset, text| {
        task.push(vec![InputRecord { topic_partition: at.clone(), offset, record: value(text) }]);
    };
    push(&mut task, 0, "1");
    push(&mut task, 1, "1");
    assert!(!task.is_paused_input(&at));
    push(&mut task, 2, "1");
    assert!(task.is_paused_input(&at));
    assert_eq!(task.buffered_bytes(), 3 * size);
    let mut out = Vec::new();
    task.step(0, &mut out).expect("fine");
    assert!(task.is_dirty() && !task.wants_commit() && !task.is_paused_input(&at));
    task.step(0, &mut out).expect("fine");
    assert!(task.wants_commit(), "two are kept, one fits");
    task.rollback();
    assert!(!task.is_dirty() && !task.wants_commit() && task.is_paused_input(&at));
    task.set_limits(1 << 20, 1 << 20);
    push(&mut task, 3, "13");
    while task.step(0, &mut out).expect("fine") != Stepped::Idle {}
    assert!(task.wants_commit(), "the processor asked");
    assert_eq!(task.offsets()[&at], 4);
    assert_eq!(task.boundary().stream_time, 1);
}

/// Proves that a task is not made over the state of another sub-topology, and that an unknown one is named.
#[test]
fn a_task_needs_its_own_state() {
    let topology = ticker(&Arc::new(AtomicU32::new(0)));
    let state = TaskState::open(Box::new(crate::engine::mem::MemEngine::alone(&[])), &[], 0).expect("empty");
    let task = Task::new(&topology, TaskId { sub_topology: 0, partition: 0 }, state);
    assert!(
        matches!(task, Err(TaskError::WrongState { found, wanted, .. }) if found.is_empty() && wanted == ["sum"])
    );
    let state = TaskState::open(Box::new(crate::engine::mem::MemEngine::alone(&[])), &[], 0).expect("empty");
    let task = Task::new(&topology, TaskId { sub_topology: 5, partition: 0 }, state);
    assert!(matches!(task, Err(TaskError::UnknownSubTopology(5))));
}
