//! Tumbling and hopping windows, with grace, late records and final results, against a naive model.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::world::{Decimal, Event, Row, World, events};
use crate::codec::{Codec, CodecError, Utf8};
use crate::dsl::{Hopping, TimeWindows, Tumbling, Windowed};
use crate::processor::Record;
use crate::store::WindowStore;
use crate::topology::{Topology, TopologyError};

/// Windowed keys as readable text.
#[derive(Clone, Copy)]
pub(super) struct Shown;

impl Codec<Windowed<String>> for Shown {
    fn encode(&self, value: &Windowed<String>, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(format!("{}@{}..{}", value.key, value.start, value.end).as_bytes());
        Ok(())
    }
    fn decode(&self, _bytes: &[u8]) -> Result<Windowed<String>, CodecError> {
        Err(CodecError::new("shown", "it is only written"))
    }
}

const MS: fn(u64) -> Duration = Duration::from_millis;

fn topology(windows: TimeWindows) -> Topology {
    Topology::new("app", |b| {
        let sums = b.stream("in", Utf8, Decimal).window(windows).reduce("sums", |one, two| one + two);
        sums.changes().keys_as(Shown).to("updates");
        sums.emit_on_close().keys_as(Shown).to("final");
    })
    .expect("it is sound")
}

/// Results by window; what was told, and how many records were late.
#[derive(Default)]
struct Model {
    windows: BTreeMap<(i64, String), (i64, i64)>,
    updates: Vec<Row>,
    finals: Vec<Row>,
    late: u64,
}

fn model(events: &[Event], size: i64, advance: i64, grace: i64) -> Model {
    let mut model = Model::default();
    let mut stream_time = i64::MIN;
    let shown = |start: i64, key: &str| Some(format!("{key}@{start}..{}", start + size));
    for event in events {
        if event.timestamp > stream_time {
            for ((start, key), (sum, time)) in &model.windows {
                let closes = start + size + grace;
                if closes > stream_time && closes <= event.timestamp {
                    model.finals.push((shown(*start, key), Some(sum.to_string()), *time));
                }
            }
            stream_time = event.timestamp;
        }
        let mut late = false;
        for start in (0..=event.timestamp).filter(|start| start % advance == 0) {
            if event.timestamp >= start + size {
                continue;
            }
            if start + size + grace <= stream_time {
                late = true;
                continue;
            }
            let entry = model.windows.entry((start, event.key.clone())).or_insert((0, i64::MIN));
            *entry = (entry.0 + event.value, entry.1.max(event.timestamp));
            model.updates.push((shown(start, &event.key), Some(entry.0.to_string()), entry.1));
        }
        model.late += u64::from(late);
    }
    model
}

fn compare(
    events: &[Event],
    seed: u64,
    (size, advance, grace): (i64, i64, i64),
) -> Result<(), TestCaseError> {
    let ms = |ms: i64| MS(ms.cast_unsigned());
    let windows = Hopping::of(ms(size), ms(advance)).grace(ms(grace));
    let mut world = World::new(&topology(windows), seed);
    events.iter().for_each(|event| world.text("in", &event.key, &event.value.to_string(), event.timestamp));
    world.run();
    let model = model(events, size, advance, grace);
    prop_assert_eq!(world.rows("updates"), model.updates);
    prop_assert_eq!(world.rows("final"), model.finals);
    let store = topology(windows).store::<WindowStore<String, i64>>("sums").expect("it is there");
    let snapshot = world.task(0).state().snapshot();
    let reader = store.read(&snapshot).expect("it is there");
    let now = world.task(0).stream_time();
    for key in ["k0", "k1", "k2"].map(str::to_owned) {
        let found: Vec<(i64, i64)> =
            reader.fetch(&key, 0, i64::MAX).map(|entry| entry.expect("ours")).collect();
        let kept = model.windows.iter().filter(|((start, k), _)| *k == key && *start > now - size - grace);
        let expected: Vec<(i64, i64)> = kept.map(|((start, _), (sum, _))| (*start, *sum)).collect();
        prop_assert_eq!(found, expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves that windows hold exactly their records, that late ones are left out by the grace, that each final
    /// result is given once and at its time, and that expired windows are not read; over rollbacks and restarts.
    #[test]
    fn windows_are_the_models(
        events in events(1, 50, 25),
        seed in any::<u64>(),
        shape in prop_oneof![Just((10, 10)), Just((10, 5)), Just((12, 5)), Just((1, 1)), Just((30, 7))],
        grace in prop_oneof![Just(0), Just(1), Just(13)],
    ) {
        compare(&events, seed, (shape.0, shape.1, grace))?;
    }
}

/// Proves the counter of late records, where nothing is taken twice: at the bound a record is still in time, one ms
/// on it is late.
#[test]
fn late_at_the_bound() {
    let windows = Tumbling::of(MS(10)).grace(MS(5));
    let event = |key: &str, timestamp| Event { topic: 0, key: key.to_owned(), value: 1, timestamp };
    for (now, late) in [(14, 0), (15, 1)] {
        let events = [event("a", 9), event("b", now), event("a", 9)];
        let mut world = World::new(&topology(windows), 0);
        world.rough = false;
        events.iter().for_each(|event| world.text("in", &event.key, "1", event.timestamp));
        world.run();
        assert_eq!(world.task(0).metrics().late, late, "at {now}");
        assert_eq!(model(&events, 10, 10, 5).late, late);
        assert_eq!(world.rows("final").len(), usize::try_from(late).expect("small"));
    }
}

/// Proves that windows over the final results of windows miss none of them, also when stream time jumps far over
/// several ends at once.
#[test]
fn windows_of_windows() {
    let topology = Topology::new("app", |b| {
        let small = b.stream("in", Utf8, Decimal).window(Tumbling::of(MS(10))).count("small").emit_on_close();
        let by_key =
            small.map(|r| Record::new(r.key.key, r.value, r.timestamp)).keep_partitioning().keys_as(Utf8);
        let large =
            by_key.values_as(Decimal).window(Tumbling::of(MS(30))).reduce("large", |one, two| one + two);
        large.emit_on_close().keys_as(Shown).to("final");
    })
    .expect("it is sound");
    for seed in 0..20 {
        let mut world = World::new(&topology, seed);
        [1, 2, 12, 25, 29, 31, 59, 100_000].iter().for_each(|time| world.text("in", "k", "1", *time));
        world.run();
        let pairs: Vec<(String, String)> = world.pairs("final");
        let expected = [("k@0..30", "5"), ("k@30..60", "2")];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_owned(), value.to_owned())), "seed {seed}");
    }
}

/// Proves that results can be kept longer than the grace asks, for readers.
#[test]
fn longer_retention() {
    let windows = Tumbling::of(MS(10)).retention(MS(100));
    let mut world = World::new(&topology(windows), 0);
    [5, 50, 104, 105].iter().for_each(|time| world.text("in", "k", "1", *time));
    world.run();
    let store = topology(windows).store::<WindowStore<String, i64>>("sums").expect("it is there");
    let snapshot = world.task(0).state().snapshot();
    let reader = store.read(&snapshot).expect("it is there");
    let starts: Vec<i64> = reader.all(0, i64::MAX).map(|entry| entry.expect("ours").1).collect();
    assert_eq!(starts, [50, 100], "0 lies 105 behind");
}

/// Proves that the end of time is no panic: a hostile timestamp closes everything, and later ones are late.
#[test]
fn hostile_timestamps() {
    let mut world = World::new(&topology(Tumbling::of(MS(10)).grace(MS(5))), 0);
    world.rough = false;
    world.text("in", "k", "1", 3);
    world.text("in", "k", "1", i64::MAX);
    world.text("in", "k", "1", 4);
    world.run();
    assert_eq!(world.pairs("final")[0], ("k@0..10".to_owned(), "1".to_owned()));
}

/// Proves that windows that cannot be are named errors of the topology.
#[test]
fn windows_that_cannot_be() {
    for windows in [
        Tumbling::of(Duration::ZERO),
        Hopping::of(MS(10), MS(11)),
        Hopping::of(MS(10_000), MS(1)),
        Tumbling::of(MS(10)).grace(MS(5)).retention(MS(14)),
        Tumbling::of(Duration::MAX),
    ] {
        let built = Topology::new("app", |b| drop(b.stream("in", Utf8, Decimal).window(windows).count("w")));
        assert!(
            matches!(&built, Err(TopologyError::BadWindow { node, .. }) if node == "w"),
            "{windows:?}: {:?}",
            built.err()
        );
    }
}
