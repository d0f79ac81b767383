//! Joins of a stream with a table and of two streams, against naive models.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::world::{Decimal, Event, Row, World, events, taken};
use crate::codec::{Nullable, Utf8};
use crate::driver::Driver;
use crate::dsl::JoinWindow;
use crate::record::RawRecord;
use crate::topology::Topology;

fn table_topology() -> Topology {
    Topology::new("app", |b| {
        // Topic 0 is the stream, topic 1 the table's.
        let table =
            b.table("t1", "latest", Utf8, Nullable(Decimal)).map_values(|_, value| value.unwrap_or(0));
        let stream = b.stream("t0", Utf8, Decimal);
        stream.join(&table, |left, right| format!("{left}+{right}")).values_as(Utf8).to("inner");
        stream.left_join(&table, |left, right| format!("{left}+{right:?}")).values_as(Utf8).to("left");
    })
    .expect("it is sound")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Proves that a stream's record meets the table's value as of its time, in the order of timestamps, with
    /// deletes in the table; over rollbacks and restarts.
    #[test]
    fn stream_with_table(events in events(2, 40, 20), seed in any::<u64>()) {
        let topology = table_topology();
        let mut world = World::new(&topology, seed);
        for event in &events {
            let value = event.value.to_string();
            // Negative values of the table are deletes.
            let value = (event.topic == 0 || event.value >= 0).then_some(value.as_bytes());
            world.pipe(&format!("t{}", event.topic), Some(event.key.as_bytes()), value, event.timestamp);
        }
        world.run();
        let mut table: BTreeMap<String, i64> = BTreeMap::new();
        let (mut inner, mut left): (Vec<Row>, Vec<Row>) = Default::default();
        for event in taken(&events, 2) {
            if event.topic == 1 {
                match event.value {
                    0.. => drop(table.insert(event.key, event.value)),
                    _ => drop(table.remove(&event.key)),
                }
                continue;
            }
            let found = table.get(&event.key);
            let row = |value: String| (Some(event.key.clone()), Some(value), event.timestamp);
            inner.extend(found.map(|right| row(format!("{}+{right}", event.value))));
            left.push(row(format!("{}+{found:?}", event.value)));
        }
        prop_assert_eq!(world.rows("inner"), inner);
        prop_assert_eq!(world.rows("left"), left);
    }
}

/// Which records come out alone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Inner,
    Left,
    Outer,
}

fn stream_topology(kind: Kind, (before, after, grace): (u64, u64, u64)) -> Topology {
    let ms = Duration::from_millis;
    let window = JoinWindow::within(ms(0)).before(ms(before)).after(ms(after)).grace(ms(grace));
    Topology::new("app", |b| {
        let (left, right) = (b.stream("t0", Utf8, Decimal), b.stream("t1", Utf8, Decimal));
        let joined = match kind {
            Kind::Inner => {
                left.join_stream("j", &right, window, |l, r| format!("{:?}+{:?}", Some(l), Some(r)))
            }
            Kind::Left => left.left_join_stream("j", &right, window, |l, r| format!("{:?}+{r:?}", Some(l))),
            Kind::Outer => left.outer_join_stream("j", &right, window, |l, r| format!("{l:?}+{r:?}")),
        };
        joined.values_as(Utf8).to("out");
    })
    .expect("it is sound")
}

/// A record that was accepted.
struct Kept {
    event: Event,
    seq: u32,
    past_at: i64,
    met: bool,
    out: bool,
}

fn stream_model(order: &[Event], kind: Kind, (before, after, grace): (i64, i64, i64)) -> Vec<Row> {
    let (mut kept, mut out, mut stream_time): (Vec<Kept>, Vec<Row>, i64) = (Vec::new(), Vec::new(), i64::MIN);
    let text = |left: Option<i64>, right: Option<i64>| Some(format!("{left:?}+{right:?}"));
    for event in order {
        stream_time = stream_time.max(event.timestamp);
        let alone = |topic| kind == Kind::Outer || (kind == Kind::Left && topic == 0);
        let mut due: Vec<&mut Kept> = kept
            .iter_mut()
            .filter(|k| alone(k.event.topic) && !k.met && !k.out && k.past_at <= stream_time)
            .collect();
        due.sort_by_key(|k| (k.past_at, k.event.topic, k.event.timestamp, k.seq, k.event.key.clone()));
        for record in due {
            record.out = true;
            let value = Some(record.event.value);
            let value = if record.event.topic == 0 { text(value, None) } else { text(None, value) };
            out.push((Some(record.event.key.clone()), value, record.event.timestamp));
        }
        let (earlier, later) = if event.topic == 0 { (before, after) } else { (after, before) };
        let past_at = event.timestamp + later + grace + 1;
        if past_at <= stream_time {
            continue;
        }
        let (from, to) = (event.timestamp - earlier, event.timestamp + later);
        let mut partners: Vec<&mut Kept> = kept
            .iter_mut()
            .filter(|k| k.event.topic != event.topic && k.event.key == event.key)
            .filter(|k| k.event.timestamp >= from && k.event.timestamp <= to)
            .collect();
        partners.sort_by_key(|k| (k.event.timestamp, k.seq));
        let mut met = false;
        for partner in partners {
            (met, partner.met) = (true, true);
            let (left, right) = if event.topic == 0 {
                (event.value, partner.event.value)
            } else {
                (partner.event.value, event.value)
            };
            let time = event.timestamp.max(partner.event.timestamp);
            out.push((Some(event.key.clone()), text(Some(left), Some(right)), time));
        }
        let same = |k: &&Kept| {
            (k.event.topic, &k.event.key, k.event.timestamp) == (event.topic, &event.key, event.timestamp)
        };
        let seq = u32::try_from(kept.iter().filter(same).count()).expect("few");
        kept.push(Kept { event: event.clone(), seq, past_at, met, out: false });
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Proves that exactly the pairs within the span come out, whichever side is first; that late records do not;
    /// and that those without a partner come out once, at the end of their window and grace, where that is asked
    /// for; over rollbacks and restarts.
    #[test]
    fn stream_with_stream(
        events in events(2, 50, 24),
        seed in any::<u64>(),
        kind in prop_oneof![Just(Kind::Inner), Just(Kind::Left), Just(Kind::Outer)],
        spans in prop_oneof![Just((5, 5, 0)), Just((0, 8, 3)), Just((8, 0, 30)), Just((0, 0, 0)), Just((20, 1, 10))],
    ) {
        let mut world = World::new(&stream_topology(kind, spans), seed);
        for event in &events {
            world.text(&format!("t{}", event.topic), &event.key, &event.value.to_string(), event.timestamp);
        }
        world.run();
        let (before, after, grace) = spans;
        let spans = (before.cast_signed(), after.cast_signed(), grace.cast_signed());
        prop_assert_eq!(world.rows("out"), stream_model(&taken(&events, 2), kind, spans));
    }
}

/// Proves the bounds of the span in both orders: at the bound a pair, one ms beyond none.
#[test]
fn spans_at_the_bound() {
    for (left, right, pairs) in [(10, 18, 1), (10, 19, 0), (10, 7, 1), (10, 6, 0)] {
        let mut world = World::new(&stream_topology(Kind::Inner, (3, 8, 100)), 0);
        world.text("t0", "k", "1", left);
        world.text("t1", "k", "2", right);
        world.run();
        assert_eq!(world.rows("out").len(), pairs, "left at {left}, right at {right}");
    }
}

/// Proves that a record with a null key meets nobody, is counted, and comes out alone at once where that is asked for.
#[test]
fn null_keys() {
    let window = JoinWindow::within(Duration::from_millis(5));
    let topology = Topology::new("app", |b| {
        let (left, right) =
            (b.stream("t0", Nullable(Utf8), Decimal), b.stream("t1", Nullable(Utf8), Decimal));
        left.left_join_stream("j", &right, window, |l, r| format!("{l}+{r:?}")).values_as(Utf8).to("out");
    })
    .expect("it is sound");
    let mut world = World::new(&topology, 0);
    world.rough = false;
    world.pipe("t0", None, Some(b"1"), 1);
    world.pipe("t1", None, Some(b"2"), 1);
    world.run();
    assert_eq!(world.rows("out"), [(None, Some("1+None".to_owned()), 1)]);
    assert_eq!(world.task(0).metrics().null_keys, 2);
}

/// Words with what a table says of them.
fn looked_up() -> Topology {
    Topology::new("app", |b| {
        let table = b.table("table", "latest", Utf8, Utf8);
        let words = b.stream("words", Utf8, Utf8);
        words.left_join(&table, |word, found| format!("{word}: {found:?}")).values_as(Utf8).to("out");
    })
    .expect("it is sound")
}

fn record(key: &str, value: &str, timestamp: i64) -> RawRecord {
    let (key, value) = (Some(key.to_owned().into()), Some(value.to_owned().into()));
    RawRecord { key, value, timestamp, headers: Vec::new() }
}

fn out(driver: &mut Driver) -> Vec<String> {
    let found = driver.read_all("out").expect("a topic").into_iter();
    found
        .map(|found| String::from_utf8(found.record.value.expect("a value").to_vec()).expect("text"))
        .collect()
}

/// Proves KIP-695: while an input holds records that were not fetched yet, those of the others wait, so that a stream
/// meets all of a table that is older; and that without it the order is by chance.
#[test]
fn what_is_there_is_waited_for() {
    let mut missed = 0;
    for seed in 0..20 {
        for idle in [None, Some(Duration::ZERO)] {
            let mut driver = Driver::new(looked_up()).seed(seed).max_task_idle(idle);
            for n in 0..60 {
                driver.pipe_record("table", None, record(&format!("k{n}"), "here", n)).expect("piped");
            }
            for n in 0..60 {
                driver.pipe_record("words", None, record(&format!("k{n}"), "word", 1000 + n)).expect("piped");
            }
            driver.run().expect("it comes to rest");
            let out = out(&mut driver);
            assert_eq!(out.len(), 60, "seed {seed}");
            let without = out.iter().filter(|line| line.ends_with("None")).count();
            match idle {
                Some(_) => assert_eq!(without, 0, "seed {seed}"),
                None => missed += without,
            }
        }
    }
    assert!(missed > 0, "the table was never behind: this test shows nothing");
}

/// Proves KIP-353: an input that is silent is waited for as long as was asked for, counted from when it had nothing; what
/// comes meanwhile is taken in order, and afterwards the others go on without it.
#[test]
fn a_silent_input_is_waited_for_so_long() {
    for (idle_ms, wanted) in [(0, "word: None"), (500, "word: Some(\"late\")"), (100, "word: None")] {
        let idle = Some(Duration::from_millis(idle_ms));
        let mut driver = Driver::new(looked_up()).max_task_idle(idle);
        driver.run().expect("it comes to rest");
        driver.pipe_record("words", None, record("k", "word", 1000)).expect("piped");
        driver.advance(Duration::from_millis(300)).expect("time passes");
        assert_eq!(out(&mut driver).is_empty(), idle_ms > 300, "{idle_ms}");
        driver.pipe_record("table", None, record("k", "late", 900)).expect("piped");
        driver.run().expect("it comes to rest");
        assert_eq!(out(&mut driver), [wanted], "{idle_ms}");
        driver.pipe_record("words", None, record("k", "more", 2000)).expect("piped");
        driver.run().expect("it comes to rest"); // time passes until it was waited for long enough
        assert_eq!(out(&mut driver).len(), 2, "{idle_ms}");
        driver.check().expect("invariants");
    }
}
