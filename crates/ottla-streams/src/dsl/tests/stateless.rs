//! Steps without state, repartitioning, and records that pass through a topic.

use super::world::{Decimal, World};
use crate::codec::{Nullable, Utf8};
use crate::processor::Record;
use crate::topology::Topology;

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Proves what each step without state makes of records, in which order, and that timestamps travel.
#[test]
fn every_step() {
    let topology = Topology::new("app", |b| {
        let numbers = b.stream("in", Utf8, Decimal);
        numbers.filter(|r| r.value % 2 == 0).to("even");
        numbers.map_values(|key, value| format!("{key}{value}")).values_as(Utf8).to("texts");
        let swapped = numbers.map(|r| Record::new(r.value, r.key, r.timestamp + 1));
        swapped.keys_as(Decimal).values_as(Utf8).to("swapped");
        let twice = numbers.flat_map_values(|_, value| vec![value; usize::try_from(value).unwrap_or(0)]);
        twice.values_as(Decimal).to("repeated");
        let flat = numbers.flat_map(|r| [r.clone(), r.with_key("all".to_owned())]);
        flat.keys_as(Utf8).values_as(Decimal).to("flat");
        let (small, large) = numbers.branch(|r| r.value < 2);
        small.to("small");
        large.to("large");
        small.merge(&large).peek(|r| assert!(r.timestamp >= 10)).to("merged");
        numbers.try_map_values(|_, value| Ok(value * 10)).values_as(Decimal).to("tens");
    })
    .expect("it is sound");
    let mut world = World::new(&topology, 1);
    [("a", "1", 10), ("b", "2", 11), ("a", "3", 12)].iter().for_each(|(k, v, t)| world.text("in", k, v, *t));
    world.run();
    assert_eq!(world.pairs("even"), pairs(&[("b", "2")]));
    assert_eq!(world.pairs("texts"), pairs(&[("a", "a1"), ("b", "b2"), ("a", "a3")]));
    let swapped = world.rows("swapped");
    assert_eq!(swapped[0], (Some("1".to_owned()), Some("a".to_owned()), 11));
    assert_eq!(
        world.pairs("repeated"),
        pairs(&[("a", "1"), ("b", "2"), ("b", "2"), ("a", "3"), ("a", "3"), ("a", "3")])
    );
    assert_eq!(world.pairs("flat")[..4], pairs(&[("a", "1"), ("all", "1"), ("b", "2"), ("all", "2")]));
    assert_eq!(world.pairs("small"), pairs(&[("a", "1")]));
    assert_eq!(world.pairs("large"), pairs(&[("b", "2"), ("a", "3")]));
    assert_eq!(world.pairs("merged"), pairs(&[("a", "1"), ("b", "2"), ("a", "3")]));
    assert_eq!(world.pairs("tens")[2], ("a".to_owned(), "30".to_owned()));
}

/// Proves that key_by gives the second sub-topology the new keys, through its repartition topic, once each whatever
/// is rolled back, and that through goes over a topic of the user's.
#[test]
fn over_topics() {
    let topology = Topology::new("app", |b| {
        let by_value = b.stream("in", Utf8, Utf8).key_by("by-value", Utf8, |r| r.value.clone());
        by_value.through("middle").group().count("counts").changes().values_as(Decimal).to("out");
    })
    .expect("it is sound");
    assert_eq!(topology.sub_topologies().len(), 3);
    for seed in 0..30 {
        let mut world = World::new(&topology, seed);
        (0..20).for_each(|i| world.text("in", "k", if i % 3 == 0 { "x" } else { "y" }, i));
        world.run();
        assert_eq!(world.rows("app.by-value.repartition").len(), 20);
        assert_eq!(world.rows("middle").len(), 20);
        let out = world.pairs("out");
        let last = |key: &str| out.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        assert_eq!(
            (last("x"), last("y"), out.len()),
            (Some("7".to_owned()), Some("13".to_owned()), 20),
            "seed {seed}"
        );
    }
}

/// Proves that null keys and values pass where the codec takes them, both ways.
#[test]
fn nulls_pass_where_they_are_values() {
    let topology = Topology::new("app", |b| b.stream("in", Nullable(Utf8), Nullable(Decimal)).to("out"))
        .expect("it is sound");
    let mut world = World::new(&topology, 3);
    world.pipe("in", None, Some(b"1"), 5);
    world.pipe("in", Some(b"k"), None, 6);
    world.run();
    assert_eq!(world.rows("out"), world.rows("in"));
}

/// Proves that the event time of a function decides the order between topics and travels with the record.
#[test]
fn event_time_of_a_function() {
    let topology = Topology::new("app", |b| {
        let left = b.stream_with_time("a", Utf8, Decimal, |_, value, _| *value);
        left.merge(&b.stream("b", Utf8, Decimal)).to("out");
    })
    .expect("it is sound");
    let mut world = World::new(&topology, 4);
    world.text("a", "k", "7", 1);
    world.text("b", "k", "3", 3);
    world.run();
    assert_eq!(world.rows("out").iter().map(|row| row.2).collect::<Vec<_>>(), [3, 7]);
}
