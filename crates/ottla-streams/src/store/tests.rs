//! Typed stores in a processor and in snapshots, against maps, over rollbacks and restarts.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::codec::Utf8;
use crate::dsl::tests::world::{Decimal, Event, World, events};
use crate::processor::{Context, ProcessError, Processor, Record};
use crate::topology::Topology;

const RETENTION: i64 = 40;

/// Writes what a record says to each of three stores, and tells what it then reads.
struct Keeper {
    kv: KvStore<String, i64>,
    windows: WindowStore<String, i64>,
    sessions: SessionStore<String, i64>,
}

/// Collects entries as text, for comparing.
fn told<T: std::fmt::Debug>(
    entries: impl Iterator<Item = Result<T, StoreError>>,
) -> Result<String, StoreError> {
    Ok(format!("{:?}", entries.collect::<Result<Vec<T>, _>>()?))
}

impl Processor for Keeper {
    type KeyIn = String;
    type In = i64;
    type KeyOut = String;
    type Out = String;

    fn process(
        &mut self,
        r: Record<String, i64>,
        cx: &mut Context<'_, String, String>,
    ) -> Result<(), ProcessError> {
        let Record { key, value, timestamp, .. } = r;
        let mut kv = cx.store(&self.kv);
        if value % 3 == 0 {
            kv.delete(&key)?
        } else {
            kv.put(&key, &value)?
        }
        let range = (Bound::Excluded("k0".to_owned()), Bound::Unbounded);
        let mut text = format!("{:?} {}", kv.get(&key)?, told(kv.range(range, Direction::Reverse)?)?);
        text += &told(kv.prefix(b"k", Direction::Forward)?)?;
        let mut windows = cx.store(&self.windows);
        // Not only the record's own time: some before, some expired already.
        let start = (timestamp - value).max(0);
        if value % 7 == 0 {
            windows.delete(&key, start)?
        } else {
            windows.put(&key, start, &value)?
        }
        text += &format!(" {:?} ", windows.get(&key, start)?);
        text += &told(windows.fetch(&key, timestamp - 25, timestamp)?)?;
        let mut sessions = cx.store(&self.sessions);
        for old in sessions.fetch(&key, timestamp - 5, timestamp + 5)? {
            sessions.remove(&key, old.start)?;
        }
        sessions.put(&key, Session { start: timestamp, end: timestamp + value.rem_euclid(4), value })?;
        let near = sessions.fetch(&key, timestamp - 20, timestamp + 20)?;
        text += &format!(" {:?}", near.iter().map(|s| (s.start, s.end, s.value)).collect::<Vec<_>>());
        cx.forward(Record::new(key, text, timestamp))
    }
}

fn topology() -> Topology {
    Topology::new("app", |b| {
        let retention = Duration::from_millis(RETENTION.cast_unsigned());
        let kv = b.kv_store("kv", Utf8, Decimal);
        let windows = b.window_store("windows", Utf8, Decimal, retention);
        let sessions = b.session_store("sessions", Utf8, Decimal, retention);
        let handles = (kv.clone(), windows.clone(), sessions.clone());
        let make = move || {
            let (kv, windows, sessions) = handles.clone();
            Keeper { kv, windows, sessions }
        };
        let told = b.stream("in", Utf8, Decimal).process("keeper", &[&kv, &windows, &sessions], make);
        told.keys_as(Utf8).values_as(Utf8).to("out");
    })
    .expect("it is sound")
}

#[derive(Default)]
struct Model {
    kv: BTreeMap<String, i64>,
    windows: BTreeMap<(i64, String), i64>,
    sessions: BTreeMap<(String, i64), (i64, i64)>,
    now: i64,
}

impl Model {
    fn windows_of(&self, key: &str, from: i64, to: i64) -> Vec<(i64, i64)> {
        let all = self.windows.iter().filter(|((start, k), _)| k == key && (from..=to).contains(start));
        all.filter(|((start, _), _)| *start > self.now - RETENTION)
            .map(|((start, _), value)| (*start, *value))
            .collect()
    }

    fn sessions_of(&self, key: &str, from: i64, to: i64) -> Vec<(i64, i64, i64)> {
        let all =
            self.sessions.iter().filter(|((k, start), (end, _))| k == key && *start <= to && *end >= from);
        let kept = all.filter(|(_, (end, _))| *end >= self.now - RETENTION);
        kept.map(|((_, start), (end, value))| (*start, *end, *value)).collect()
    }

    fn take(&mut self, event: &Event) -> String {
        let Event { key, value, timestamp, .. } = event.clone();
        self.now = self.now.max(timestamp);
        if value % 3 == 0 {
            self.kv.remove(&key)
        } else {
            self.kv.insert(key.clone(), value)
        };
        let above: Vec<(&String, &i64)> =
            self.kv.iter().filter(|(key, _)| *key > &"k0".to_owned()).rev().collect();
        let mut text = format!("{:?} {above:?}", self.kv.get(&key));
        text += &format!("{:?}", self.kv.iter().collect::<Vec<_>>());
        let start = (timestamp - value).max(0);
        if value % 7 == 0 {
            self.windows.remove(&(start, key.clone()));
        } else if start > self.now - RETENTION {
            self.windows.insert((start, key.clone()), value);
        }
        text += &format!(" {:?} ", self.windows_of(&key, start, start).first().map(|(_, value)| *value));
        text += &format!("{:?}", self.windows_of(&key, timestamp - 25, timestamp));
        for (old, _, _) in self.sessions_of(&key, timestamp - 5, timestamp + 5) {
            self.sessions.remove(&(key.clone(), old));
        }
        self.sessions.insert((key.clone(), timestamp), (timestamp + value.rem_euclid(4), value));
        text + &format!(" {:?}", self.sessions_of(&key, timestamp - 20, timestamp + 20))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves that the three stores read their own writes like maps do, in ranges, spans and both directions, forget
    /// what is expired, and are the same in a snapshot of the boundary; over rollbacks and restarts.
    #[test]
    fn stores_are_maps(events in events(1, 60, 15), seed in any::<u64>()) {
        let topology = topology();
        let mut world = World::new(&topology, seed);
        events.iter().for_each(|event| world.text("in", &event.key, &event.value.to_string(), event.timestamp));
        world.run();
        let mut model = Model::default();
        let expected: Vec<String> = events.iter().map(|event| model.take(event)).collect();
        let found: Vec<String> = world.pairs("out").into_iter().map(|pair| pair.1).collect();
        prop_assert_eq!(found, expected);
        let snapshot = world.task(0).state().snapshot();
        let kv = topology.store::<KvStore<String, i64>>("kv").expect("it is there");
        let all: BTreeMap<String, i64> =
            kv.read(&snapshot).expect("there").all().map(|entry| entry.expect("ours")).collect();
        prop_assert_eq!(&all, &model.kv);
        let windows = topology.store::<WindowStore<String, i64>>("windows").expect("it is there");
        let reader = windows.read(&snapshot).expect("there");
        let mut all: Vec<(i64, String, i64)> =
            reader.all(0, i64::MAX).map(|entry| entry.map(|(key, start, value)| (start, key, value)).expect("ours")).collect();
        all.sort();
        let kept = model.windows.iter().filter(|((start, _), _)| *start > model.now - RETENTION);
        let kept: Vec<(i64, String, i64)> = kept.map(|((start, key), value)| (*start, key.clone(), *value)).collect();
        prop_assert_eq!(all, if events.is_empty() { Vec::new() } else { kept });
        let sessions = topology.store::<SessionStore<String, i64>>("sessions").expect("it is there");
        let reader = sessions.read(&snapshot).expect("there");
        for key in ["k0", "k1", "k2"].map(str::to_owned) {
            let found = reader.fetch(&key, 0, i64::MAX).expect("ours");
            let found: Vec<(i64, i64, i64)> = found.iter().map(|s| (s.start, s.end, s.value)).collect();
            prop_assert_eq!(found, model.sessions_of(&key, 0, i64::MAX));
        }
    }
}

/// Uses a store that it was not given.
struct Thief(KvStore<String, i64>);

impl Processor for Thief {
    type KeyIn = String;
    type In = i64;
    type KeyOut = String;
    type Out = i64;

    fn process(
        &mut self,
        r: Record<String, i64>,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<(), ProcessError> {
        Ok(cx.store(&self.0).put(&r.key, &1)?)
    }
}

/// Proves that a store that the processor's task does not have is an error that says what to do.
#[test]
fn a_store_must_be_given() {
    let topology = Topology::new("app", |b| {
        let store = b.kv_store("hers", Utf8, Decimal);
        b.stream("in", Utf8, Decimal).process("thief", &[], move || Thief(store.clone()));
    })
    .expect("it is sound");
    let mut world = World::new(&topology, 0);
    world.text("in", "k", "1", 1);
    let said = world.try_run().expect_err("not given").to_string();
    assert!(said.contains("thief") && said.contains("\"hers\"") && said.contains("list it"), "{said}");
}

/// Proves that bytes that are no entries are errors with the store's name, not panics.
#[test]
fn strange_bytes() {
    let topology = topology();
    let windows = topology.store::<WindowStore<String, i64>>("windows").expect("it is there");
    let sub = &topology.sub_topologies()[0];
    let engine = crate::engine::mem::MemEngine::alone(&sub.store_names());
    let mut state = TaskState::open(Box::new(engine), &sub.stores, sub.fingerprint).expect("empty");
    for store in 0..3 {
        state
            .put(StoreId(store), bytes::Bytes::from_static(&[1; 9]), Some(bytes::Bytes::from_static(b"x")))
            .expect("memory");
    }
    let mut meta = state.meta().clone();
    (meta.seq, meta.stream_time) = (1, 10);
    state.apply(meta).expect("memory");
    let snapshot = state.snapshot();
    let kv = topology.store::<KvStore<String, i64>>("kv").expect("it is there");
    let said =
        kv.read(&snapshot).expect("there").all().next().expect("one").expect_err("no number").to_string();
    assert!(said.contains("\"kv\"") && said.contains("decimal"), "{said}");
    let sessions = topology.store::<SessionStore<String, i64>>("sessions").expect("it is there");
    let said =
        sessions.read(&snapshot).expect("there").all().next().expect("one").expect_err("none").to_string();
    assert!(said.contains("\"sessions\""), "{said}");
    assert!(windows.read(&snapshot).expect("there").all(i64::MIN, i64::MAX).all(|entry| entry.is_err()));
}

/// Proves that the bytes of stores stay what docs/streams-format.md says: fixtures of each layout.
#[test]
fn layouts_are_fixed() {
    let topology = Topology::new("app", |b| {
        let numbers = b.stream("in", Utf8, Decimal);
        numbers.group().count("count");
        numbers.window(crate::dsl::Tumbling::of(Duration::from_millis(10))).count("window");
        numbers.sessions(crate::dsl::SessionWindows::gap(Duration::from_millis(2))).count("session");
        let window = crate::dsl::JoinWindow::within(Duration::from_millis(4));
        numbers.left_join_stream("join", &b.stream("other", Utf8, Decimal), window, |l, _| *l);
    })
    .expect("it is sound");
    let mut world = World::new(&topology, 0);
    world.text("in", "k", "7", 21);
    world.run();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let state = world.task(0).state();
    let content = |store: u16| -> Vec<(String, String)> {
        let entries = state.scan(StoreId(store), &KeyRange::ALL, Direction::Forward);
        entries.map(|entry| entry.map(|(key, value)| (hex(&key), hex(&value))).expect("memory")).collect()
    };
    let pair = |key: &str, value: &str| (key.replace(' ', ""), value.replace(' ', ""));
    assert_eq!(content(0), [pair("6b", "0000000000000015 0000000000000001")]);
    assert_eq!(content(1), [pair("8000000000000014 6b", "0000000000000015 0000000000000001")]);
    assert_eq!(
        content(2),
        [
            pair("00 8000000000000018 8000000000000015 6b", ""),
            pair("01 00000001 6b 8000000000000015", "8000000000000015 00 0000000000000015 0000000000000001"),
        ]
    );
    assert_eq!(content(3), [pair("8000000000000017 00000001 6b 8000000000000015 00000000", "37")]);
    assert_eq!(content(4), []);
    assert_eq!(content(5), [pair("800000000000001a 00 8000000000000015 00000000 6b", "37")]);
}
