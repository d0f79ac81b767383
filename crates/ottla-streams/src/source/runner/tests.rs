//! Lanes against a log in memory that aborts, forgets answers and is left by processes at every step.

use std::sync::{Arc, Mutex, PoisonError};

use ottla_client::{CommittedOffset, OffsetToCommit};
use ottla_env::rng::{Rng, SeededRng};
use proptest::prelude::*;

use super::*;
use crate::port::{Acked, ChangelogPiece, ChangelogRecord, CommitFailure, LogBounds, Ticket};

const APP: &str = "app";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Committed,
    Aborted,
}

#[derive(Debug, Default)]
struct Cluster {
    logs: BTreeMap<TopicPartition, Vec<(u64, RawRecord)>>,
    fates: BTreeMap<u64, Fate>,
    offsets: BTreeMap<TopicPartition, OffsetToCommit>,
    pending: BTreeMap<u64, Vec<OffsetToCommit>>,
    epoch: u64,
    open: Option<u64>,
    transactions: u64,
    /// What goes wrong next: the call counts down.
    fail_in: Option<(u32, Failure)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Retriable,
    MustAbort,
    /// The process is gone: every call fails from here on.
    Gone,
    CommittedUnanswered,
    AbortedUnanswered,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Cluster>>);

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Cluster> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cluster {
    fn end(&mut self, fate: Fate) {
        let Some(id) = self.open.take() else { return };
        self.fates.insert(id, fate);
        let pending = self.pending.remove(&id).unwrap_or_default();
        if fate == Fate::Committed {
            self.offsets.extend(pending.into_iter().map(|offset| (offset.topic_partition.clone(), offset)));
        }
    }

    /// Lost answers are those of commits, and count commits; the others count calls.
    fn due(&mut self, is_commit: bool) -> Option<Failure> {
        let (left, failure) = self.fail_in.as_mut()?;
        if !is_commit && matches!(failure, Failure::CommittedUnanswered | Failure::AbortedUnanswered) {
            return None;
        }
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let failure = *failure;
        if failure != Failure::Gone {
            self.fail_in = None;
        }
        Some(failure)
    }

    fn committed_values(&self, topic: &str) -> Vec<String> {
        let logs = self.logs.iter().filter(|(at, _)| at.topic == *topic);
        logs.flat_map(|(_, log)| log)
            .filter(|(id, _)| self.fates.get(id) == Some(&Fate::Committed))
            .map(|(_, record)| String::from_utf8(record.value.clone().expect("set").to_vec()).expect("text"))
            .collect()
    }
}

struct Port {
    cluster: Shared,
    epoch: u64,
    acked: BTreeMap<TopicPartition, Acked>,
}

impl Port {
    fn take(cluster: &Shared) -> Self {
        let mut state = cluster.lock();
        state.end(Fate::Aborted);
        state.epoch += 1;
        let epoch = state.epoch;
        drop(state);
        Self { cluster: cluster.clone(), epoch, acked: BTreeMap::new() }
    }

    fn call(&self) -> Result<std::sync::MutexGuard<'_, Cluster>, PortError> {
        let mut cluster = self.cluster.lock();
        match cluster.due(false) {
            None | Some(Failure::CommittedUnanswered | Failure::AbortedUnanswered) => {}
            Some(Failure::Retriable) => return Err(PortError::Retriable("no answer".into())),
            Some(Failure::MustAbort) => return Err(PortError::MustAbort("told so".into())),
            Some(Failure::Gone) => return Err(PortError::Fatal("gone".into())),
        }
        if cluster.epoch != self.epoch {
            return Err(PortError::Fenced("another epoch".into()));
        }
        Ok(cluster)
    }
}

impl TransactionPort for Port {
    fn begin(&mut self) -> Result<(), PortError> {
        let mut cluster = self.call()?;
        cluster.transactions += 1;
        let id = cluster.transactions;
        cluster.fates.insert(id, Fate::Open);
        cluster.open = Some(id);
        drop(cluster);
        self.acked.clear();
        Ok(())
    }

    fn send(&mut self, record: OutputRecord) -> Result<Ticket, PortError> {
        let at = TopicPartition::new(record.topic.as_str(), record.partition.unwrap_or(0));
        let mut cluster = self.call()?;
        let id = cluster.open.expect("begun");
        let log = cluster.logs.entry(at.clone()).or_default();
        log.push((id, record.record));
        let offset = i64::try_from(log.len()).expect("small") - 1;
        drop(cluster);
        self.acked.insert(at, Acked { offset, leader_epoch: -1 });
        Ok(Ticket(0))
    }

    fn flush(&mut self) -> Result<BTreeMap<TopicPartition, Acked>, PortError> {
        drop(self.call()?);
        Ok(self.acked.clone())
    }

    fn send_offsets(&mut self, offsets: &[OffsetToCommit], _: &GroupMetadata) -> Result<(), PortError> {
        let mut cluster = self.call()?;
        let id = cluster.open.expect("begun");
        cluster.pending.entry(id).or_default().extend(offsets.to_vec());
        Ok(())
    }

    fn commit(&mut self) -> Result<(), CommitFailure> {
        let mut cluster = self.cluster.lock();
        if cluster.epoch != self.epoch {
            return Err(CommitFailure::Fenced("another epoch".into()));
        }
        match cluster.due(true) {
            None => cluster.end(Fate::Committed),
            Some(Failure::CommittedUnanswered) => {
                cluster.end(Fate::Committed);
                return Err(CommitFailure::Unknown("no answer".into()));
            }
            Some(Failure::AbortedUnanswered | Failure::Retriable) => {
                return Err(CommitFailure::Unknown("no answer".into()));
            }
            Some(Failure::MustAbort) => {
                cluster.end(Fate::Aborted);
                return Err(CommitFailure::Aborted("told so".into()));
            }
            Some(Failure::Gone) => return Err(CommitFailure::Fatal("gone".into())),
        }
        Ok(())
    }

    fn abort(&mut self) -> Result<(), PortError> {
        self.call()?.end(Fate::Aborted);
        Ok(())
    }

    fn reinit(&mut self) -> Result<(), PortError> {
        let mut cluster = self.call()?;
        cluster.end(Fate::Aborted);
        cluster.epoch += 1;
        let epoch = cluster.epoch;
        drop(cluster);
        self.epoch = epoch;
        Ok(())
    }
}

impl ReadPort for Shared {
    fn committed(
        &mut self,
        _: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, PortError> {
        let cluster = self.lock();
        let of = |at: &TopicPartition| {
            let found = cluster.offsets.get(at);
            CommittedOffset {
                topic_partition: at.clone(),
                offset: found.map(|found| found.offset),
                leader_epoch: -1,
                metadata: found.map_or_else(|| "".into(), |found| found.metadata.clone()),
            }
        };
        Ok(partitions.iter().map(of).collect())
    }

    fn bounds(&mut self, at: &TopicPartition) -> Result<LogBounds, PortError> {
        let cluster = self.lock();
        let log = cluster.logs.get(at).map_or(&[][..], Vec::as_slice);
        let log_end = i64::try_from(log.len()).expect("small");
        let undecided = log.iter().position(|(id, _)| cluster.fates[id] == Fate::Open);
        let last_stable = undecided.map_or(log_end, |at| i64::try_from(at).expect("small"));
        Ok(LogBounds { log_start: 0, last_stable, log_end, topic_id: String::new() })
    }

    fn read(
        &mut self,
        at: &TopicPartition,
        from: i64,
        _: usize,
        _: Duration,
    ) -> Result<ChangelogPiece, PortError> {
        let bounds = self.bounds(at)?;
        let cluster = self.lock();
        let log = cluster.logs.get(at).map_or(&[][..], Vec::as_slice);
        let records = (0..)
            .zip(log)
            .filter(|(offset, (id, _))| {
                (from..bounds.last_stable).contains(offset) && cluster.fates[id] == Fate::Committed
            })
            .map(|(offset, (_, record))| ChangelogRecord {
                offset,
                timestamp: 0,
                key: record.key.clone(),
                value: record.value.clone(),
            })
            .collect();
        let last_stable = bounds.last_stable;
        Ok(ChangelogPiece { records, next_offset: last_stable, last_stable, leader_epoch: -1 })
    }

    fn epoch_end(&mut self, _: &TopicPartition, _: i32) -> Result<Option<i64>, PortError> {
        Ok(None)
    }

    fn tombstone_horizon(&mut self, _: &TopicPartition) -> Result<Option<i64>, PortError> {
        Ok(None)
    }

    fn delete_retention(&mut self, _: &str) -> Result<Duration, PortError> {
        Ok(Duration::from_secs(86_400))
    }
}

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
