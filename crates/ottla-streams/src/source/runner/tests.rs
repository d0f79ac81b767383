//! Lanes against a log in memory that aborts, forgets answers and is left by processes at every step.

use std::sync::{Arc, Mutex};

use ottla_env::rng::{Rng, SeededRng};
use proptest::prelude::*;

use super::testing::{Failure, Port, Shared};
use super::*;

const APP: &str = "app";

/// Counts: every partition gives 0, 1, 2, ... up to its limit.
#[derive(Clone)]
struct Counter {
    partitions: u32,
    limit: u64,
    told: Arc<Mutex<BTreeMap<SourceId, u64>>>,
}

struct CounterReader {
    id: SourceId,
    next: u64,
    limit: u64,
}

fn number(position: &Position) -> u64 {
    u64::from_le_bytes(position.0[..].try_into().expect("ours"))
}

impl Source for Counter {
    fn partitions(&mut self) -> Result<Vec<SourceId>, SourceError> {
        Ok((0..self.partitions).map(|n| SourceId(format!("part-{n}"))).collect())
    }

    fn open(&mut self, id: &SourceId, from: Option<&Position>) -> Result<Box<dyn Reader>, SourceError> {
        Ok(Box::new(CounterReader { id: id.clone(), next: from.map_or(0, number), limit: self.limit }))
    }

    fn committed(&mut self, id: &SourceId, position: &Position) {
        self.told.lock().expect("no panic").insert(id.clone(), number(position));
    }
}

impl Reader for CounterReader {
    fn read(&mut self, _: Duration, _: usize) -> Result<Option<Piece>, SourceError> {
        if self.next >= self.limit {
            return Ok(None);
        }
        let end = (self.next + 3).min(self.limit);
        let record = |n| SourceRecord {
            value: Some(Bytes::from(format!("{}:{n}", self.id))),
            ..SourceRecord::default()
        };
        let records = (self.next..end).map(record).collect();
        self.next = end;
        Ok(Some(Piece { records, position: Position(Bytes::copy_from_slice(&end.to_le_bytes())) }))
    }
}

fn runner(cluster: &Shared, counter: &Counter, writer: &str, lanes: std::ops::Range<i32>) -> Runner<Port> {
    let settings = RunnerSettings {
        commit_interval: Duration::from_millis(3),
        retry_pause: Duration::ZERO,
        ..RunnerSettings::new(APP, "out", 3, writer)
    };
    let port = Port::take(cluster);
    let mut runner = Runner::new(settings, Box::new(counter.clone()), port, Box::new(cluster.clone()));
    lanes.for_each(|lane| runner.assign(lane, 1).expect("assigned"));
    runner
}

fn counter(limit: u64) -> Counter {
    Counter { partitions: 5, limit, told: Arc::default() }
}

fn group() -> GroupMetadata {
    GroupMetadata::without_members("app-sources")
}

/// Runs until nothing is left to read and everything is committed.
fn finish(runner: &mut Runner<Port>, now: &mut Duration) {
    for _ in 0..10_000 {
        *now += Duration::from_millis(1);
        let ran = runner.run_once(*now, 1, &group()).expect("no fatal error");
        if ran == SourceRan::Idle
            && runner.phase == Phase::Idle
            && runner.is_ready()
            && !runner.known.is_empty()
        {
            return;
        }
    }
    panic!("no end");
}

fn assert_each_once(cluster: &Shared, limit: u64) {
    let values = cluster.lock().committed_values("out");
    for part in 0..5 {
        let prefix = format!("part-{part}:");
        let found: Vec<u64> =
            values.iter().filter_map(|value| value.strip_prefix(&prefix)?.parse().ok()).collect();
        assert_eq!(found, (0..limit).collect::<Vec<_>>(), "part {part}");
    }
}

/// Proves that records, positions and offsets commit together, that the source is told, and that a later process goes
/// on where the last one ended.
#[test]
fn commits_and_goes_on() {
    let (cluster, counter) = (Shared::default(), counter(50));
    let mut now = Duration::ZERO;
    for limit in [50, 50, 80] {
        let counter = Counter { limit, ..counter.clone() };
        let mut runner = runner(&cluster, &counter, "p/0", 0..3);
        finish(&mut runner, &mut now);
        assert_each_once(&cluster, limit);
        let told = counter.told.lock().expect("no panic").clone();
        assert!(told.len() == 5 && told.values().all(|position| *position == limit));
        let id = SourceId("part-2".into());
        assert_eq!(runner.position(&id).expect("read").as_ref().map(number), Some(limit));
    }
}

/// Proves that an answer that was lost is found out, both ways, and that the metrics tell.
#[test]
fn unknown_outcomes_are_resolved() {
    for (failure, resolved) in [(Failure::CommittedUnanswered, 1), (Failure::AbortedUnanswered, 0)] {
        let (cluster, counter) = (Shared::default(), counter(20));
        let mut runner = runner(&cluster, &counter, "p/0", 0..3);
        let mut now = Duration::ZERO;
        cluster.lock().fail_in = Some((1, failure));
        finish(&mut runner, &mut now);
        assert_each_once(&cluster, 20);
        let metrics = runner.metrics();
        assert_eq!(
            (metrics.resolved_committed, metrics.rollbacks),
            (resolved, 1 - resolved),
            "{failure:?} {metrics:?}"
        );
    }
}

/// Proves that a lane that moves to another process takes its positions along, and that the old owner is fenced.
#[test]
fn lanes_move() {
    let (cluster, counter) = (Shared::default(), counter(30));
    let mut now = Duration::ZERO;
    let mut old = runner(&cluster, &Counter { limit: 10, ..counter.clone() }, "p/0", 0..3);
    finish(&mut old, &mut now);
    let mut new = runner(&cluster, &counter, "q/0", 0..3);
    finish(&mut new, &mut now);
    assert_each_once(&cluster, 30);
    // The old one wakes up and finds more to read.
    old.source = Box::new(counter.clone());
    old.lanes.values_mut().for_each(|lane| lane.readers.clear());
    let error = (0..100).find_map(|_| {
        now += Duration::from_millis(1);
        old.run_once(now, 1, &group()).err()
    });
    assert!(matches!(error, Some(RunnerError::Port(PortError::Fenced(_)))), "{error:?}");
    assert_each_once(&cluster, 30);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Proves exactly once over random failures of every call: retriable ones, aborts, lost answers of both kinds, and
    /// processes that end at any call and are followed by another.
    #[test]
    fn each_record_once_whatever_fails(seed in any::<u64>()) {
        let mut rng = SeededRng::new(seed);
        let (cluster, counter) = (Shared::default(), counter(40));
        let mut now = Duration::ZERO;
        for process in 0..6 {
            let mut runner = runner(&cluster, &counter, &format!("p{process}/0"), 0..3);
            for _ in 0..rng.below(60) {
                if cluster.lock().fail_in.is_none() && rng.one_in(4) {
                    let kinds = [
                        Failure::Retriable,
                        Failure::MustAbort,
                        Failure::Gone,
                        Failure::CommittedUnanswered,
                        Failure::AbortedUnanswered,
                    ];
                    let kind = kinds[rng.index(kinds.len())];
                    let calls = if matches!(kind, Failure::CommittedUnanswered | Failure::AbortedUnanswered) { 2 } else { 30 };
                    let after = u32::try_from(rng.below(calls)).expect("small");
                    cluster.lock().fail_in = Some((after, kind));
                }
                now += Duration::from_millis(rng.below(4));
                if runner.run_once(now, 1, &group()).is_err() {
                    break; // it ends
                }
            }
            cluster.lock().fail_in = None;
        }
        let mut runner = runner(&cluster, &counter, "last/0", 0..3);
        finish(&mut runner, &mut now);
        assert_each_once(&cluster, 40);
    }
}
