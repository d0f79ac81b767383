//! Aggregations by key, tables and their views, against models of a few lines.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::world::{Decimal, Row, World, events};
use crate::codec::{Json, Nullable, Utf8};
use crate::store::KvStore;
use crate::topology::Topology;

fn topology() -> Topology {
    Topology::new("app", |b| {
        let numbers = b.stream("in", Utf8, Decimal);
        numbers.group().count("counts").changes().values_as(Decimal).to("counts-out");
        numbers.group().reduce("largest", i64::max).to("largest-out");
        let spans = numbers.group().aggregate(
            "spans",
            Json::<(i64, i64)>::new(),
            || (i64::MAX, i64::MIN),
            |(low, high), r| (low.min(r.value), high.max(r.value)),
        );
        spans.to("spans-out");
    })
    .expect("it is sound")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Proves that count, reduce and aggregate are the folds of each key's records, that each update is told with
    /// the highest timestamp so far, and that rollbacks and restarts change nothing.
    #[test]
    fn folds(events in events(1, 40, 20), seed in any::<u64>()) {
        let mut world = World::new(&topology(), seed);
        events.iter().for_each(|event| world.text("in", &event.key, &event.value.to_string(), event.timestamp));
        world.run();
        // Count, largest, span, time.
        type Folded = (i64, i64, (i64, i64), i64);
        let mut model: BTreeMap<&str, Folded> = BTreeMap::new();
        let (mut counts, mut largest, mut spans): (Vec<Row>, Vec<Row>, Vec<Row>) = Default::default();
        for event in &events {
            let entry = model.entry(&event.key).or_insert((0, i64::MIN, (i64::MAX, i64::MIN), i64::MIN));
            entry.0 += 1;
            entry.1 = entry.1.max(event.value);
            entry.2 = (entry.2.0.min(event.value), entry.2.1.max(event.value));
            entry.3 = entry.3.max(event.timestamp);
            let row = |value: String| (Some(event.key.clone()), Some(value), entry.3);
            counts.push(row(entry.0.to_string()));
            largest.push(row(entry.1.to_string()));
            spans.push(row(format!("[{},{}]", entry.2.0, entry.2.1)));
        }
        prop_assert_eq!(world.rows("counts-out"), counts);
        prop_assert_eq!(world.rows("largest-out"), largest);
        prop_assert_eq!(world.rows("spans-out"), spans);
        let store = topology().store::<KvStore<String, i64>>("counts").expect("it is there");
        let snapshot = world.task(0).state().snapshot();
        let content: BTreeMap<String, i64> =
            store.read(&snapshot).expect("it is there").all().map(|entry| entry.expect("ours")).collect();
        let expected: BTreeMap<String, i64> = model.iter().map(|(key, entry)| ((*key).to_owned(), entry.0)).collect();
        prop_assert_eq!(content, expected);
    }
}

/// Proves that records with a null key are left out of state and counted, and that a result that is null deletes.
#[test]
fn null_keys_and_null_results() {
    let topology = Topology::new("app", |b| {
        let numbers = b.stream("in", Nullable(Utf8), Decimal);
        let sums = numbers.group().aggregate(
            "sums",
            Nullable(Decimal),
            || Some(0),
            |sum, r| {
                // Zero is not kept.
                Some(sum.unwrap_or(0) + r.value).filter(|sum| *sum != 0)
            },
        );
        sums.to("out");
    })
    .expect("it is sound");
    let mut world = World::new(&topology, 5);
    world.rough = false;
    world.pipe("in", None, Some(b"4"), 1);
    world.text("in", "k", "2", 2);
    world.text("in", "k", "-2", 3);
    world.text("in", "k", "5", 4);
    world.run();
    let values: Vec<Option<String>> = world.rows("out").into_iter().map(|row| row.1).collect();
    assert_eq!(values, [Some("2".to_owned()), None, Some("5".to_owned())]);
    assert_eq!(world.task(0).metrics().null_keys, 1);
}

/// Proves that a table is the latest value of each key of its topic, that null deletes, that a key that is null is
/// counted, and that it has no changelog while its bytes stay those of the topic.
#[test]
fn table_of_a_topic() {
    let topology = Topology::new("app", |b| {
        let table = b.table("in", "latest", Utf8, Utf8);
        table.to("out");
        table
            .filter(|_, value| value != "hidden")
            .map_values(|_, value| value.len() as i64)
            .values_as(Decimal)
            .to("view");
        table.changes().to("upserts");
    })
    .expect("it is sound");
    assert_eq!(topology.internal_topics(), []);
    assert_eq!(topology.sub_topologies()[0].table_topics, [Some("in".to_owned())]);
    for seed in 0..20 {
        let mut world = World::new(&topology, seed);
        world.text("in", "a", "one", 1);
        world.text("in", "b", "two", 2);
        world.pipe("in", None, Some(b"lost"), 3);
        world.pipe("in", Some(b"a"), None, 4);
        world.text("in", "b", "hidden", 5);
        world.run();
        let row =
            |key: &str, value: Option<&str>, time| (Some(key.to_owned()), value.map(str::to_owned), time);
        assert_eq!(
            world.rows("out"),
            [
                row("a", Some("one"), 1),
                row("b", Some("two"), 2),
                row("a", None, 4),
                row("b", Some("hidden"), 5)
            ]
        );
        assert_eq!(
            world.rows("view"),
            [row("a", Some("3"), 1), row("b", Some("3"), 2), row("a", None, 4), row("b", None, 5)]
        );
        assert_eq!(world.rows("upserts").len(), 3);
        let snapshot = world.task(0).state().snapshot();
        let store = topology.store::<KvStore<String, String>>("latest").expect("it is there");
        let reader = store.read(&snapshot).expect("it is there");
        let all: Vec<(String, String)> = reader.all().map(|entry| entry.expect("ours")).collect();
        assert_eq!(all, [("b".to_owned(), "hidden".to_owned())]);
    }
}
