//! Sessions: growing, merging, late records and final results, against a naive model.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::windows::Shown;
use super::world::{Decimal, Event, Row, World, events};
use crate::codec::{Json, Utf8};
use crate::dsl::SessionWindows;
use crate::store::SessionStore;
use crate::topology::Topology;

fn topology(gap: u64, grace: u64, retention: Option<u64>) -> Topology {
    let mut windows = SessionWindows::gap(Duration::from_millis(gap)).grace(Duration::from_millis(grace));
    if let Some(retention) = retention {
        windows = windows.retention(Duration::from_millis(retention));
    }
    Topology::new("app", |b| {
        let lists = b.stream("in", Utf8, Decimal).sessions(windows).aggregate(
            "lists",
            Json::<Vec<i64>>::new(),
            Vec::new,
            |mut list, r| {
                list.push(r.value);
                list
            },
            |one, two| [one, two].concat(),
        );
        lists.changes_with_deletes().keys_as(Shown).to("updates");
        lists.emit_on_close().keys_as(Shown).to("final");
    })
    .expect("it is sound")
}

#[derive(Clone, Debug)]
struct Session {
    start: i64,
    end: i64,
    values: Vec<i64>,
    closed: bool,
}

#[derive(Default)]
struct Model {
    sessions: BTreeMap<String, Vec<Session>>,
    updates: Vec<Row>,
    /// By key and bounds: the result and how often it was given.
    finals: Vec<Row>,
}

fn model(events: &[Event], gap: i64, grace: i64) -> Model {
    let mut model = Model::default();
    let mut stream_time = i64::MIN;
    let shown = |key: &str, start: i64, end: i64| Some(format!("{key}@{start}..{end}"));
    let list = |values: &[i64]| Some(serde_json::to_string(values).expect("numbers"));
    for event in events {
        stream_time = stream_time.max(event.timestamp);
        for (key, sessions) in &mut model.sessions {
            for session in sessions.iter_mut().filter(|s| !s.closed && s.end + gap + grace < stream_time) {
                session.closed = true;
                model.finals.push((
                    shown(key, session.start, session.end),
                    list(&session.values),
                    session.end,
                ));
            }
        }
        if event.timestamp + gap + grace < stream_time {
            continue;
        }
        let sessions = model.sessions.entry(event.key.clone()).or_default();
        let near =
            |s: &Session| !s.closed && s.start <= event.timestamp + gap && s.end >= event.timestamp - gap;
        let (mut joined, rest): (Vec<Session>, Vec<Session>) = sessions.drain(..).partition(near);
        *sessions = rest;
        joined.sort_by_key(|session| session.start);
        let start = joined.first().map_or(event.timestamp, |s| s.start.min(event.timestamp));
        let end = joined.last().map_or(event.timestamp, |s| s.end.max(event.timestamp));
        for old in joined.iter().filter(|old| (old.start, old.end) != (start, end)) {
            model.updates.push((shown(&event.key, old.start, old.end), None, end));
        }
        let mut values = joined.into_iter().flat_map(|session| session.values).collect::<Vec<_>>();
        values.push(event.value);
        model.updates.push((shown(&event.key, start, end), list(&values), end));
        sessions.push(Session { start, end, values, closed: false });
    }
    model
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves that sessions are the maximal chains of records within the gap, that what they were before is taken
    /// back, that a closed one is given once and never changes, and that late records are left out; over rollbacks
    /// and restarts.
    #[test]
    fn sessions_are_the_models(
        events in events(1, 60, 30),
        seed in any::<u64>(),
        gap in prop_oneof![Just(0u64), Just(4), Just(9)],
        grace in prop_oneof![Just(0u64), Just(6), Just(40)],
        retention in prop_oneof![Just(None), Just(Some(100u64))],
    ) {
        let topology = topology(gap, grace, retention);
        let mut world = World::new(&topology, seed);
        events.iter().for_each(|event| world.text("in", &event.key, &event.value.to_string(), event.timestamp));
        world.run();
        let model = model(&events, gap.cast_signed(), grace.cast_signed());
        prop_assert_eq!(world.rows("updates"), model.updates);
        // Those of one moment come in the order of their keys' first looks; the set of each is what matters.
        prop_assert_eq!(sorted(world.rows("final")), sorted(model.finals));
        let store = topology.store::<SessionStore<String, Vec<i64>>>("lists").expect("it is there");
        let snapshot = world.task(0).state().snapshot();
        let reader = store.read(&snapshot).expect("it is there");
        let kept = retention.unwrap_or(gap + grace).cast_signed();
        let now = world.task(0).stream_time();
        for (key, sessions) in model.sessions {
            let mut expected: Vec<(i64, i64)> =
                sessions.iter().filter(|s| s.end >= now - kept).map(|s| (s.start, s.end)).collect();
            expected.sort_unstable();
            let found = reader.fetch(&key, 0, i64::MAX).expect("ours");
            prop_assert_eq!(found.iter().map(|s| (s.start, s.end)).collect::<Vec<_>>(), expected);
        }
    }
}

/// Proves the bounds: a record a gap away belongs to the session, one ms more begins another; one record joins two.
#[test]
fn bounds_and_merge() {
    let mut world = World::new(&topology(5, 100, None), 0);
    [10, 15, 21, 18]
        .iter()
        .enumerate()
        .for_each(|(value, time)| world.text("in", "k", &value.to_string(), *time));
    world.run();
    let pairs = world.pairs("updates");
    let expected = [
        ("k@10..10", "[0]"),
        ("k@10..10", "null"),
        ("k@10..15", "[0,1]"),
        ("k@21..21", "[2]"),
        ("k@10..15", "null"),
        ("k@21..21", "null"),
        ("k@10..21", "[0,1,2,3]"),
    ];
    assert_eq!(pairs, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

/// Proves that sessions that are gone leave nothing in the store: neither entries nor notes to look at them.
#[test]
fn nothing_stays() {
    let mut world = World::new(&topology(5, 0, None), 2);
    (0..50).for_each(|i| world.text("in", &format!("k{i}"), "1", i * 3));
    world.text("in", "last", "1", 10_000);
    world.run();
    assert_eq!(world.rows("final").len(), 50);
    let state = world.task(0).state();
    let all = state.scan(
        crate::engine::StoreId(0),
        &crate::engine::KeyRange::ALL,
        crate::engine::Direction::Forward,
    );
    assert_eq!(all.count(), 2, "the last session and its note");
}

/// Proves that a session that grows costs one change per record, beside the note when it begins.
#[test]
fn growing_is_one_write() {
    let mut world = World::new(&topology(30, 10, None), 0);
    world.rough = false;
    (0..10).for_each(|i| world.text("in", "k", "1", i * 3));
    world.run();
    assert_eq!(world.task(0).metrics().changes, 10 + 1);
    // The note comes due after gap and grace, and is moved: a delete and a write.
    world.text("in", "k", "1", 45);
    world.run();
    assert_eq!(world.task(0).metrics().changes, 10 + 1 + 1 + 2);
}
