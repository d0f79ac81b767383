//! Lanes of a source: reads, writes and commits, one transaction at a time for all lanes of this process.
//!
//! Steps as in [`crate::worker`]: records go to the producer inside a transaction that is begun lazily; at a boundary
//! the positions go too, everything is acknowledged, the offsets of the lanes carry the witness, the transaction is
//! committed, and only then the lanes' stores move. A rollback opens the readers at the committed positions again.
//! When the answer of a commit is lost, the id is taken anew and the anchors tell how it ended.
//!
//! No thread and no timer of its own: [`Runner::run_once`] does what is due. Not here: who owns which lane.

mod commit;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use ottla_client::{GroupMetadata, TopicPartition};

use super::{Piece, Position, Reader, Source, SourceError, SourceId, SourceRecord};
use crate::bytes_codec::crc;
use crate::engine::mem::MemEngine;
use crate::engine::{Direction, KeyRange, StoreId};
use crate::port::{PortError, ReadPort, TransactionPort};
use crate::record::{OutputRecord, RawRecord, TaskId};
use crate::recovery::{ChangeSource, OnMismatch, Recovery, RecoveryError, RecoveryPlan, RecoveryStep};
use crate::state::{StateError, StoreKind, StoreSpec, TaskState};

const POSITIONS: StoreId = StoreId(0);
/// Of the "topology" that a lane's state belongs to: it never changes.
const FINGERPRINT: u64 = 1;
/// Sub-topology number of lanes, so that no task has the same name.
const LANES: u16 = u16::MAX;

/// How a source is brought into Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerSettings {
    /// The group whose offsets and generations count.
    pub group_id: String,
    /// The compacted topic of the positions, `<application>.src.positions`.
    pub positions_topic: String,
    /// Its partitions.
    pub lanes: i32,
    /// Where records go that name no topic themselves.
    pub topic: String,
    /// Process id and number, for the witness.
    pub writer: String,
    /// Longest time from the first record of a transaction to its commit; default 100 ms.
    pub commit_interval: Duration,
    /// Most bytes of records in a transaction; default 16 MiB.
    pub transaction_bytes_max: usize,
    /// About how many bytes are read at once from one source partition; default 1 MiB.
    pub piece_bytes_max: usize,
    /// How often new source partitions are looked for; default 1 s.
    pub discover_interval: Duration,
    /// The coordinator aborts a transaction that is open for longer; default 60 s.
    pub transaction_timeout: Duration,
    /// Pause after a call that may work later; default 200 ms.
    pub retry_pause: Duration,
    /// What to do when offsets and positions do not fit together.
    pub on_mismatch: OnMismatch,
}

impl RunnerSettings {
    /// With the defaults; the group and the positions topic are named after the application.
    pub fn new(application_id: &str, topic: &str, lanes: i32, writer: &str) -> Self {
        Self {
            group_id: format!("{application_id}-sources"),
            positions_topic: format!("{application_id}.src.positions"),
            lanes,
            topic: topic.to_owned(),
            writer: writer.to_owned(),
            commit_interval: Duration::from_millis(100),
            transaction_bytes_max: 16 << 20,
            piece_bytes_max: 1 << 20,
            discover_interval: Duration::from_secs(1),
            transaction_timeout: Duration::from_secs(60),
            retry_pause: Duration::from_millis(200),
            on_mismatch: OnMismatch::Fail,
        }
    }

    /// The partition of the positions topic that is this lane.
    pub fn lane_partition(&self, lane: i32) -> TopicPartition {
        TopicPartition::new(self.positions_topic.as_str(), lane)
    }

    /// The lane of a source partition.
    pub fn lane_of(&self, id: &SourceId) -> i32 {
        let lanes = u32::try_from(self.lanes.max(1)).expect("positive");
        i32::try_from(crc(id.0.as_bytes()) % lanes).expect("less than the number of lanes")
    }
}

/// Why a runner cannot go on by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Positions and offsets.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The lane's store.
    #[error(transparent)]
    State(#[from] StateError),
    /// The cluster: the process was fenced, or a record can never be written.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// What a call of [`Runner::run_once`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRan {
    /// It did something; call again at once.
    Worked,
    /// Nothing is there to read.
    Idle,
}

/// Figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunnerMetrics {
    /// Records in committed transactions.
    pub records: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Rollbacks.
    pub rollbacks: u64,
    /// Commits whose answer was lost, and which were found to be carried out.
    pub resolved_committed: u64,
    /// Transactions that the coordinator ended because they were open for too long.
    pub timed_out: u64,
    /// Calls that failed and were tried again.
    pub retries: u64,
}

/// One lane.
struct Lane {
    state: TaskState,
    /// Until it is ready.
    recovery: Option<Recovery>,
    /// Committed offset of the lane itself.
    offset: i64,
    /// Of the last boundary that is known to be committed, with its writer.
    base: (u64, String),
    /// Sequence number that the last commit was tried with; each try has its own.
    attempt: u64,
    readers: BTreeMap<SourceId, Box<dyn Reader>>,
    /// Written to since the boundary.
    moved: BTreeMap<SourceId, Position>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Open,
    /// To be aborted; `reinit`: by taking the id anew.
    Failed {
        reinit: bool,
    },
    /// A commit was asked for and not answered.
    Undecided {
        lanes: BTreeSet<i32>,
        decided: bool,
    },
}

/// A source at work. See the module's text.
pub struct Runner<T: TransactionPort> {
    settings: RunnerSettings,
    source: Box<dyn Source>,
    port: T,
    reader: Box<dyn ReadPort>,
    lanes: BTreeMap<i32, Lane>,
    phase: Phase,
    known: Vec<SourceId>,
    discover_at: Duration,
    retry_at: Duration,
    dirty_since: Option<Duration>,
    bytes: usize,
    records: u64,
    metrics: RunnerMetrics,
}

impl<T: TransactionPort> fmt::Debug for Runner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("lanes", &self.lanes.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

fn bytes_of(record: &SourceRecord) -> usize {
    let part = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    part(&record.key) + part(&record.value) + 64
}

impl<T: TransactionPort> Runner<T> {
    /// A runner without lanes. `port` holds its transactional id, taken already.
    pub fn new(
        settings: RunnerSettings,
        source: Box<dyn Source>,
        port: T,
        reader: Box<dyn ReadPort>,
    ) -> Self {
        Self {
            settings,
            source,
            port,
            reader,
            lanes: BTreeMap::new(),
            phase: Phase::Idle,
            known: Vec::new(),
            discover_at: Duration::ZERO,
            retry_at: Duration::ZERO,
            dirty_since: None,
            bytes: 0,
            records: 0,
            metrics: RunnerMetrics::default(),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &RunnerSettings {
        &self.settings
    }

    /// Figures.
    pub fn metrics(&self) -> RunnerMetrics {
        self.metrics
    }

    /// Takes a lane; it is recovered by the next calls of [`Runner::run_once`].
    pub fn assign(&mut self, lane: i32, now_ms: i64) -> Result<(), RunnerError> {
        let spec = StoreSpec { name: "positions".to_owned(), kind: StoreKind::KeyValue, changelog: None };
        let engine = Box::new(MemEngine::alone(&[spec.name.as_str()]));
        let state = TaskState::open(engine, &[spec], FINGERPRINT)?;
        let at = self.settings.lane_partition(lane);
        let id = TaskId { sub_topology: LANES, partition: lane };
        let stores = vec![ChangeSource::Input(at.clone())];
        let plan = RecoveryPlan {
            on_mismatch: self.settings.on_mismatch,
            ..RecoveryPlan::new(id, &self.settings.group_id, vec![at], stores)
        };
        let lane_state = Lane {
            state,
            recovery: Some(Recovery::new(plan, now_ms)),
            offset: 0,
            base: (0, String::new()),
            attempt: 0,
            readers: BTreeMap::new(),
            moved: BTreeMap::new(),
        };
        self.lanes.insert(lane, lane_state);
        Ok(())
    }

    /// Gives a lane up. What it has not committed is rolled back with everything else of the transaction; commit
    /// before, where there is time.
    pub fn revoke(&mut self, lane: i32) {
        let Some(lane) = self.lanes.remove(&lane) else { return };
        if !lane.moved.is_empty() && self.phase == Phase::Open {
            self.fail("a lane was given to another member", false);
        }
    }

    /// Whether it has a lane, recovered or not.
    pub fn has(&self, lane: i32) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// Whether a transaction is open or waits for its end.
    pub fn is_dirty(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Whether every lane is recovered.
    pub fn is_ready(&self) -> bool {
        self.lanes.values().all(|lane| lane.recovery.is_none())
    }

    /// The committed position of a source partition.
    pub fn position(&self, id: &SourceId) -> Result<Option<Position>, RunnerError> {
        let Some(lane) = self.lanes.get(&self.settings.lane_of(id)) else { return Ok(None) };
        let found = lane.state.snapshot().get(POSITIONS, id.0.as_bytes()).map_err(StateError::from)?;
        Ok(found.map(Position))
    }

    /// All committed positions of a lane.
    pub fn positions(&self, lane: i32) -> Result<BTreeMap<SourceId, Position>, RunnerError> {
        let Some(lane) = self.lanes.get(&lane) else { return Ok(BTreeMap::new()) };
        let snapshot = lane.state.snapshot();
        let all = snapshot.scan(POSITIONS, &KeyRange::ALL, Direction::Forward);
        all.map(|found| {
            let (key, value) = found.map_err(StateError::from)?;
            Ok((SourceId(String::from_utf8_lossy(&key).into_owned()), Position(value)))
        })
        .collect()
    }

    /// Does what is due: recovers lanes, looks for source partitions, reads, writes, commits, rolls back.
    ///
    /// An error is for the application: whatever may work later is tried again here.
    pub fn run_once(
        &mut self,
        now: Duration,
        wall_ms: i64,
        group: &GroupMetadata,
    ) -> Result<SourceRan, RunnerError> {
        if now < self.retry_at || !self.settle(now)? {
            return Ok(SourceRan::Idle);
        }
        let recovered = self.recover(now, wall_ms)?;
        self.discover(now)?;
        let mut worked = recovered;
        let lanes: Vec<i32> = self.lanes.keys().copied().collect();
        for lane in lanes {
            if self.may_read() && self.bytes < self.settings.transaction_bytes_max {
                worked |= self.read_lane(lane, now, wall_ms)?;
            }
        }
        let due =
            self.dirty_since.is_some_and(|since| now.saturating_sub(since) >= self.settings.commit_interval);
        if due || self.bytes >= self.settings.transaction_bytes_max {
            worked |= self.commit(now, group)?;
        }
        Ok(if worked { SourceRan::Worked } else { SourceRan::Idle })
    }

    fn pause(&mut self, now: Duration, what: &str, reason: &dyn fmt::Display) {
        tracing::debug!(writer = self.settings.writer, what, %reason, "tried again a little later");
        self.metrics.retries += 1;
        self.retry_at = now + self.settings.retry_pause;
    }

    fn recover(&mut self, now: Duration, wall_ms: i64) -> Result<bool, RunnerError> {
        let mut worked = false;
        let mut failed = None;
        for lane in self.lanes.values_mut() {
            let Some(recovery) = &mut lane.recovery else { continue };
            match recovery.step(&mut *self.reader, &mut lane.state, wall_ms) {
                Ok(RecoveryStep::Progress { .. }) => worked = true,
                Ok(RecoveryStep::Wait { .. }) => {}
                Ok(RecoveryStep::Ready(start)) => {
                    worked = true;
                    lane.offset = start.offsets.values().copied().next().unwrap_or(0);
                    lane.base = (start.seq, lane.state.meta().writer.clone());
                    lane.attempt = start.seq;
                    lane.recovery = None;
                }
                // The store is empty at every start, so there is nothing that could be too old.
                Ok(RecoveryStep::RebuildBeside(reason)) => {
                    let reason = PortError::Fatal(format!("the positions cannot be read: {reason}"));
                    return Err(reason.into());
                }
                Err(error) if error.is_retriable() => failed = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(error) = failed {
            self.pause(now, "recovery", &error);
        }
        Ok(worked)
    }

    fn discover(&mut self, now: Duration) -> Result<(), RunnerError> {
        if now < self.discover_at {
            return Ok(());
        }
        self.discover_at = now + self.settings.discover_interval;
        match self.source.partitions() {
            Ok(known) => self.known = known,
            Err(error) if error.is_retriable() => self.pause(now, "partitions", &error),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reads one piece of every source partition of a lane.
    fn read_lane(&mut self, number: i32, now: Duration, wall_ms: i64) -> Result<bool, RunnerError> {
        let ids: Vec<SourceId> =
            self.known.iter().filter(|id| self.settings.lane_of(id) == number).cloned().collect();
        let mut worked = false;
        for id in ids {
            let Some(lane) = self.lanes.get_mut(&number).filter(|lane| lane.recovery.is_none()) else {
                break;
            };
            let read = match lane.readers.get_mut(&id) {
                Some(reader) => reader.read(now, self.settings.piece_bytes_max),
                None => {
                    let from = lane.state.get(POSITIONS, id.0.as_bytes())?.map(Position);
                    match self.source.open(&id, from.as_ref()) {
                        Ok(reader) => lane
                            .readers
                            .entry(id.clone())
                            .or_insert(reader)
                            .read(now, self.settings.piece_bytes_max),
                        Err(error) => Err(error),
                    }
                }
            };
            match read {
                Ok(None) => {}
                Ok(Some(piece)) => worked |= self.take(number, &id, piece, now, wall_ms)?,
                Err(error) if error.is_retriable() => {
                    // Whatever the reader was at: it goes on from where the last piece ended.
                    lane.readers.remove(&id);
                    self.pause(now, "read", &error);
                }
                Err(error) => return Err(error.into()),
            }
            if !self.may_read() {
                break;
            }
        }
        Ok(worked)
    }

    /// No transaction waits for its end.
    fn may_read(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Idle)
    }

    /// Sends a piece's records and notes its position.
    fn take(
        &mut self,
        lane: i32,
        id: &SourceId,
        piece: Piece,
        now: Duration,
        wall_ms: i64,
    ) -> Result<bool, RunnerError> {
        if self.phase == Phase::Idle {
            self.phase = Phase::Open;
            if let Err(error) = self.port.begin() {
                self.call_failed(now, "begin", error)?;
                return Ok(false);
            }
        }
        self.dirty_since.get_or_insert(now);
        for record in piece.records {
            self.bytes += bytes_of(&record);
            let topic = record.topic.as_ref().unwrap_or(&self.settings.topic).as_str().into();
            let (key, value, headers) = (record.key, record.value, record.headers);
            let record = RawRecord { key, value, headers, timestamp: record.timestamp.unwrap_or(wall_ms) };
            if let Err(error) = self.port.send(OutputRecord { topic, partition: None, record }) {
                self.call_failed(now, "send", error)?;
                return Ok(false);
            }
            self.records += 1;
        }
        let lane = self.lanes.get_mut(&lane).expect("it was read for it");
        let key = Bytes::copy_from_slice(id.0.as_bytes());
        lane.state.put(POSITIONS, key, Some(piece.position.0.clone()))?;
        lane.moved.insert(id.clone(), piece.position);
        Ok(true)
    }
}
