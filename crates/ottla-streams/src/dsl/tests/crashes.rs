//! The whole of the DSL under the test driver: two partitions, two processes, killed at every point of a commit.
//!
//! Whatever happens, the committed outputs are those of a run in which nothing happens.

use std::time::Duration;

use super::windows::Shown;
use super::world::{Decimal, Row, row};
use crate::codec::Utf8;
use crate::driver::{Driver, Outcome, Point};
use crate::dsl::{Hopping, JoinWindow, SessionWindows, Tumbling};
use crate::processor::{Context, ProcessError, Processor, Record, TimerClock};
use crate::record::RawRecord;
use crate::store::KvStore;
use crate::task::{Policies, Policy};
use crate::topology::Topology;

const OUTPUTS: [&str; 8] = ["counts", "sums", "finals", "visits", "pairs", "by-value", "ticks", "dead"];

/// Counts what it sees, and tells it at every multiple of stream time.
struct Teller {
    seen: KvStore<String, i64>,
}

impl Processor for Teller {
    type KeyIn = String;
    type In = i64;
    type KeyOut = String;
    type Out = i64;

    fn init(&mut self, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
        cx.schedule("tell", TimerClock::StreamTime, Duration::from_millis(25))
    }

    fn process(
        &mut self,
        r: Record<String, i64>,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<(), ProcessError> {
        let mut seen = cx.store(&self.seen);
        let count = seen.get(&r.key)?.unwrap_or(0) + 1;
        seen.put(&r.key, &count)?;
        if r.value == 13 { Err("unlucky".into()) } else { Ok(()) }
    }

    fn timer(&mut self, _name: &str, at: i64, cx: &mut Context<'_, String, i64>) -> Result<(), ProcessError> {
        let seen: Vec<(String, i64)> = cx.store(&self.seen).all()?.collect::<Result<_, _>>()?;
        seen.into_iter().try_for_each(|(key, count)| cx.forward(Record::new(key, count, at)))
    }
}

fn topology() -> Topology {
    let ms = Duration::from_millis;
    Topology::new("app", |b| {
        b.policies(Policies { on_process_error: Policy::DeadLetter("dead".into()), ..Policies::default() });
        let seen = b.kv_store("seen", Utf8, Decimal);
        let handle = seen.clone();
        let input = b.stream("in", Utf8, Decimal);
        let make = move || Teller { seen: handle.clone() };
        input.process("teller", &[&seen], make).keys_as(Utf8).values_as(Decimal).to("ticks");
        input.group().count("count").changes().values_as(Decimal).to("counts");
        let sums = input.window(Hopping::of(ms(20), ms(10)).grace(ms(5))).reduce("sum", |one, two| one + two);
        sums.changes().keys_as(Shown).to("sums");
        input
            .window(Tumbling::of(ms(15)))
            .count("final")
            .emit_on_close()
            .keys_as(Shown)
            .values_as(Decimal)
            .to("finals");
        let visits =
            input.sessions(SessionWindows::gap(ms(4)).grace(ms(9))).reduce("visit", |one, two| one + two);
        visits.emit_on_close().keys_as(Shown).to("visits");
        let (small, large) = input.branch(|r| r.value < 50);
        let pair = |left: Option<&i64>, right: Option<&i64>| format!("{left:?} {right:?}");
        small.outer_join_stream("pair", &large, JoinWindow::within(ms(6)), pair).values_as(Utf8).to("pairs");
        let by_value = input.key_by("value", Utf8, |r| (r.value % 5).to_string());
        by_value.group().reduce("of-value", |one, two| one + two).to("by-value");
    })
    .expect("it is sound")
}

fn driver(seed: u64) -> Driver {
    let mut driver = Driver::new(topology()).partitions("in", 2).processes(2).seed(seed);
    let mut number = 12_345u64;
    let mut next = |below: i64| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(number >> 33).expect("31 bits") % below
    };
    let mut now = 0;
    for _ in 0..120 {
        now += next(5);
        let timestamp = (now - if next(4) == 0 { next(20) } else { 0 }).max(0);
        let (key, value) = (format!("k{}", next(6)), next(100).to_string());
        let (key, value) = (Some(key.into()), Some(value.into()));
        driver
            .pipe_record("in", None, RawRecord { key, value, timestamp, headers: Vec::new() })
            .expect("the topic is there");
    }
    driver
}

/// What stands in the outputs; sorted, since tasks take turns.
fn outputs(driver: &mut Driver) -> Vec<(&'static str, Vec<Row>)> {
    let mut rows = |topic| {
        let mut rows: Vec<Row> =
            driver.read_all(topic).expect("it is there").iter().map(|found| row(&found.record)).collect();
        rows.sort();
        rows
    };
    OUTPUTS.into_iter().filter(|topic| *topic != "by-value").map(|topic| (topic, rows(topic))).collect()
}

/// Proves that every operator gives the same outputs, and stores that are the folds of their changelogs, when a process
/// is killed at any point of a commit or loses the answer to one, as when nothing happens.
#[test]
fn same_outputs_whatever_dies() {
    let mut calm = driver(1);
    calm.run().expect("it comes to rest");
    calm.check().expect("it is sound");
    let expected = outputs(&mut calm);
    for (topic, rows) in &expected {
        assert!(!rows.is_empty(), "{topic} shows nothing");
    }
    let by_value = calm.store::<String, i64>("of-value").expect("it is there");
    let mut kills = 0;
    for (number, point) in Point::all().into_iter().enumerate() {
        for passages in [0, 3] {
            let mut rough = driver(u64::try_from(number).expect("few") + 10);
            rough.crash_after(point, passages);
            if passages > 0 {
                rough.timeout_commit(if number % 2 == 0 { Outcome::Committed } else { Outcome::Aborted });
            }
            rough.run().expect("it comes to rest");
            rough.check().unwrap_or_else(|error| panic!("{point:?} after {passages}: {error}"));
            assert_eq!(outputs(&mut rough), expected, "{point:?} after {passages}");
            assert_eq!(rough.store::<String, i64>("of-value").expect("it is there"), by_value);
            kills += rough.kills();
        }
    }
    assert!(kills >= 10, "{kills} kills are too few to prove anything");
}

/// Proves that a result that the cluster refuses falls under its policy in the same transaction: its record is a dead
/// letter, once, and the others go on.
#[test]
fn refused_results_are_dead_letters() {
    let topology = Topology::new("app", |b| {
        b.policies(Policies { on_produce_error: Policy::DeadLetter("dead".into()), ..Policies::default() });
        let (good, bad) = b.stream("in", Utf8, Utf8).branch(|r| r.value != "bad");
        good.group().count("counts").to("out");
        bad.to("refused");
    })
    .expect("it is sound");
    let mut driver = Driver::new(topology);
    driver.refuse(Some("refused")).expect("it is at work");
    for value in ["one", "bad", "two", "bad", "three"] {
        driver.pipe("in", "k", value).expect("the topic is there");
    }
    driver.run().expect("it comes to rest");
    let dead = driver.read_all("dead").expect("it is there");
    assert_eq!(
        dead.iter().map(|found| found.record.value.clone()).collect::<Vec<_>>(),
        [Some("bad".into()), Some("bad".into())]
    );
    assert_eq!(driver.read_all("out").expect("it is there").len(), 3);
    driver.check().expect("it is sound");
}
