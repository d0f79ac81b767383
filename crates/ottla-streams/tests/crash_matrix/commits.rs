//! When a worker commits, and what it tells of itself.

use std::time::Duration;

use ottla_streams::codec::{I64, Utf8};
use ottla_streams::driver::{Driver, Outcome};
use ottla_streams::processor::{Context, ProcessError, Processor, Record};
use ottla_streams::topology::Topology;

fn counting() -> Topology {
    Topology::new("counting", |b| {
        b.stream("in", Utf8, I64).group().count("counts").changes().to("out");
    })
    .unwrap()
}

fn feed(driver: &mut Driver, records: i64) {
    for number in 0..records {
        driver.pipe_as("in", (&Utf8, &format!("k{number}")), (&I64, &number)).unwrap();
    }
}

/// Rounds without time, so that nothing is due by the clock.
fn rounds(driver: &mut Driver) {
    for _ in 0..40 {
        driver.round().unwrap();
    }
}

/// Proves that a commit comes with the interval, that an open transaction's age and bytes are told, and that they are
/// zero afterwards.
#[test]
fn by_interval() {
    let mut driver = Driver::new(counting()).commit_interval(Duration::from_millis(500));
    feed(&mut driver, 20);
    rounds(&mut driver);
    driver.advance(Duration::from_millis(300)).unwrap();
    let metrics = driver.metrics(0).expect("it works");
    assert_eq!(metrics.commits.get(), 0);
    assert!(metrics.uncommitted_bytes.get() > 0);
    assert!((200..400).contains(&metrics.transaction_age_ms.get()), "{}", metrics.transaction_age_ms.get());
    driver.advance(Duration::from_millis(300)).unwrap();
    assert_eq!(metrics.commits.get(), 1);
    assert_eq!((metrics.uncommitted_bytes.get(), metrics.transaction_age_ms.get()), (0, 0));
    assert_eq!(metrics.commit_latency().buckets.iter().sum::<u64>(), 1);
    assert_eq!((metrics.records.get(), metrics.tasks.get()), (20, 1));
}

/// Proves that a process which holds too many uncommitted bytes commits without waiting for the interval.
#[test]
fn by_bytes() {
    let hour = Duration::from_secs(3600);
    let commits = |bytes_max| {
        let mut driver = Driver::new(counting()).commit_interval(hour).uncommitted_bytes_max(bytes_max);
        feed(&mut driver, 500);
        rounds(&mut driver);
        driver.metrics(0).expect("it works").commits.get()
    };
    assert_eq!(commits(64 << 20), 0);
    assert!(commits(2000) > 3);
}

/// Proves that a transaction is committed at half its time-out, whatever the interval is.
#[test]
fn by_age() {
    let mut driver = Driver::new(counting())
        .commit_interval(Duration::from_secs(3600))
        .transaction_timeout(Duration::from_secs(10));
    feed(&mut driver, 20);
    rounds(&mut driver);
    driver.advance(Duration::from_secs(4)).unwrap();
    let metrics = driver.metrics(0).expect("it works");
    assert_eq!(metrics.commits.get(), 0);
    driver.advance(Duration::from_secs(2)).unwrap();
    assert_eq!((metrics.commits.get(), metrics.timed_out.get()), (1, 0));
}

struct Eager;

impl Processor for Eager {
    type KeyIn = String;
    type In = i64;
    type KeyOut = String;
    type Out = i64;

    fn process(
        &mut self,
        r: Record<String, i64>,
        cx: &mut Context<'_, String, i64>,
    ) -> Result<(), ProcessError> {
        if r.value % 5 == 4 {
            cx.request_commit();
        }
        cx.forward(r)
    }
}

/// Proves that a processor's request is a commit right behind its record.
#[test]
fn by_request() {
    let topology = Topology::new("eager", |b| {
        let input = b.stream("in", Utf8, I64);
        input.process("eager", &[], || Eager).keys_as(Utf8).values_as(I64).to("out");
    })
    .unwrap();
    let mut driver = Driver::new(topology).commit_interval(Duration::from_secs(3600));
    feed(&mut driver, 23);
    rounds(&mut driver);
    assert_eq!(driver.metrics(0).expect("it works").commits.get(), 4);
    assert_eq!(driver.committed("in", 0).unwrap().0, Some(20));
}

/// Proves that lag is what is not committed, and that lost answers are counted by how they were resolved.
#[test]
fn lag_and_outcomes() {
    let mut driver = Driver::new(counting()).commit_interval(Duration::from_secs(5));
    feed(&mut driver, 10);
    driver.run().unwrap();
    let metrics = driver.metrics(0).expect("it works");
    let lag = |wanted: u64| {
        let lag = metrics.lag();
        assert_eq!(lag.values().copied().collect::<Vec<_>>(), [wanted]);
    };
    rounds(&mut driver);
    lag(0);
    feed(&mut driver, 7);
    rounds(&mut driver);
    lag(7);
    driver.timeout_commit(Outcome::Committed);
    driver.run().unwrap();
    rounds(&mut driver);
    lag(0);
    driver.timeout_commit(Outcome::Aborted);
    feed(&mut driver, 1);
    driver.run().unwrap();
    let outcomes =
        (metrics.unknown_outcomes.get(), metrics.resolved_committed.get(), metrics.resolved_aborted.get());
    assert_eq!(outcomes, (2, 1, 1));
    assert_eq!(driver.read("out").unwrap().len(), 18);
}
