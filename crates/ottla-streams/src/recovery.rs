//! Brings a task's stores to the boundary that the log says: the committed offsets and restore targets.
//!
//! A resumable machine: every [`Recovery::step`] does one piece of work against the log, so that the test driver and
//! the restore thread run the same code, and a long restore never blocks a running task. Nothing is ever wiped: a
//! store that cannot be brought forward is rebuilt beside, and whatever does not fit together is refused by name.
//!
//! Steps: read offsets and anchor (stable) -> check every store ([`check`]) -> replay `[position, target)` in batches,
//! each with its position -> wait where a transaction below the target is still undecided -> settle the meta record.
//!
//! Place in the walk: between [`crate::state_dir`] (opens) and the worker (runs). Not here: opening, renaming and
//! locking folders; who owns the task.

mod check;
mod error;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_client::{CommittedOffset, TopicPartition};

use crate::anchor::{self, Anchor, Target};
use crate::engine::StoreId;
use crate::meta::StorePosition;
use crate::port::{LogBounds, PortError, ReadPort};
use crate::record::TaskId;
use crate::state::TaskState;

pub use error::{RebuildReason, RecoveryError};

use check::{StoreCheck, Verdict};

/// What to do when state, offsets and log do not fit together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMismatch {
    /// Stop with an error that names what is wrong and what can be done.
    #[default]
    Fail,
    /// Where the log alone gives a consistent state, rebuild from it beside the old one; else as `Fail`.
    Rebuild,
    /// Accept the stores and the log's ends as they are, once. A person has made sure that no writer runs, and
    /// accepts that records may be missing or counted twice.
    Adopt,
}

/// Where the changes of a store are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeSource {
    /// Its own changelog; the target is in the anchor.
    Changelog(TopicPartition),
    /// An input topic that is a table itself; the target is the committed input offset.
    Input(TopicPartition),
}

impl ChangeSource {
    /// The partition.
    pub fn at(&self) -> &TopicPartition {
        let (Self::Changelog(at) | Self::Input(at)) = self;
        at
    }
}

/// What to recover.
#[derive(Clone, Debug)]
pub struct RecoveryPlan {
    /// The task.
    pub task: TaskId,
    /// The group whose offsets count.
    pub group_id: String,
    /// All input partitions of the task.
    pub inputs: Vec<TopicPartition>,
    /// By [`StoreId`].
    pub stores: Vec<ChangeSource>,
    /// Bytes read and written at once; default 1 MiB.
    pub batch_bytes: usize,
    /// How long a read waits for records that are not there yet; default 500 ms.
    pub read_wait: Duration,
    /// How much earlier than `delete.retention.ms` tombstones count as gone, for clocks that differ; default 1 h.
    pub tombstone_margin: Duration,
    /// Default: fail.
    pub on_mismatch: OnMismatch,
}

impl RecoveryPlan {
    /// A plan with the defaults.
    pub fn new(task: TaskId, group_id: &str, inputs: Vec<TopicPartition>, stores: Vec<ChangeSource>) -> Self {
        Self {
            task,
            group_id: group_id.to_owned(),
            inputs,
            stores,
            batch_bytes: 1 << 20,
            read_wait: Duration::from_millis(500),
            tombstone_margin: Duration::from_secs(3600),
            on_mismatch: OnMismatch::Fail,
        }
    }
}

/// Where the task goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Next record of every input partition that has a committed offset; the others begin by the reset policy.
    pub offsets: BTreeMap<TopicPartition, i64>,
    /// Highest timestamp taken; `i64::MIN` = none.
    pub stream_time: i64,
    /// Punctuations and when they are due next.
    pub timers: Vec<(String, i64)>,
    /// Of the last transaction; the next one has one more.
    pub seq: u64,
    /// Records that were replayed.
    pub replayed: u64,
}

/// What a step came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    /// On its way; step again. So many offsets are left over all stores.
    Progress {
        /// Offsets between positions and targets.
        left: i64,
    },
    /// The log is not decided up to the target yet (C13); step again a little later.
    Wait {
        /// The changelog.
        at: TopicPartition,
        /// What is waited for.
        target: i64,
        /// How far it is decided.
        last_stable: i64,
    },
    /// This copy cannot be brought forward soundly: recover an empty state beside it, then swap.
    RebuildBeside(RebuildReason),
    /// Done.
    Ready(Start),
}

#[derive(Debug)]
enum Phase {
    /// Offsets and anchor are to be read.
    Read,
    /// Store of that index is to be checked.
    Check(usize),
    /// Store of that index is to be replayed.
    Replay(usize),
    Settle,
    Done,
}

/// The machine.
#[derive(Debug)]
pub struct Recovery {
    plan: RecoveryPlan,
    phase: Phase,
    start: Start,
    writer: String,
    targets: Vec<i64>,
    /// From the anchor, -1 where there is none.
    target_epochs: Vec<i32>,
    topic_ids: Vec<String>,
    began_ms: i64,
    /// The targets are the log's ends, because a person said so.
    adopted: bool,
}

impl Recovery {
    /// Begins.
    pub fn new(plan: RecoveryPlan, now_ms: i64) -> Self {
        let stores = plan.stores.len();
        Self {
            plan,
            phase: Phase::Read,
            start: Start { stream_time: i64::MIN, ..Start::default() },
            writer: String::new(),
            targets: vec![0; stores],
            target_epochs: vec![-1; stores],
            topic_ids: vec![String::new(); stores],
            began_ms: now_ms,
            adopted: false,
        }
    }

    /// The task.
    pub fn task(&self) -> TaskId {
        self.plan.task
    }

    /// Records that were replayed so far.
    pub fn replayed(&self) -> u64 {
        self.start.replayed
    }

    /// Offsets between the stores' positions and their targets; 0 before the targets are known.
    pub fn left(&self, state: &TaskState) -> i64 {
        let pairs = self.targets.iter().zip(&state.meta().stores);
        pairs.map(|(target, store)| (target - store.position).max(0)).sum()
    }

    /// Does one piece of work. After an error that may pass (see [`RecoveryError::is_retriable`]) the same step may be
    /// made again.
    pub fn step(
        &mut self,
        port: &mut dyn ReadPort,
        state: &mut TaskState,
        now_ms: i64,
    ) -> Result<RecoveryStep, RecoveryError> {
        match self.phase {
            Phase::Read => self.read_offsets(port, state)?,
            Phase::Check(store) if store < self.plan.stores.len() => {
                if let Some(step) = self.check_store(store, port, state, now_ms)? {
                    return Ok(step);
                }
            }
            Phase::Check(_) => self.phase = Phase::Replay(0),
            Phase::Replay(store) if store < self.plan.stores.len() => {
                if let Some(step) = self.replay(store, port, state)? {
                    return Ok(step);
                }
            }
            Phase::Replay(_) => self.phase = Phase::Settle,
            Phase::Settle => self.settle(state, now_ms)?,
            Phase::Done => return Ok(RecoveryStep::Ready(self.start.clone())),
        }
        Ok(RecoveryStep::Progress { left: self.left(state) })
    }

    fn read_offsets(&mut self, port: &mut dyn ReadPort, state: &TaskState) -> Result<(), RecoveryError> {
        let committed = port.committed(&self.plan.group_id, &self.plan.inputs)?;
        self.start.offsets = committed
            .iter()
            .filter_map(|found| Some((found.topic_partition.clone(), found.offset?)))
            .collect();
        self.check_inputs(port)?;
        let found = match anchor::find_newest(&committed) {
            Err(error) if self.plan.on_mismatch == OnMismatch::Adopt => {
                tracing::warn!(task = %self.plan.task, %error, "an anchor that cannot be read is passed over");
                None
            }
            other => {
                other.map_err(|source| RecoveryError::AnchorUnreadable { task: self.plan.task, source })?
            }
        };
        match found {
            Some(anchor) => self.take_anchor(anchor, state)?,
            None => self.without_anchor(&committed, port, state)?,
        }
        for (store, source) in self.plan.stores.iter().enumerate() {
            if let ChangeSource::Input(at) = source {
                self.targets[store] = self.start.offsets.get(at).copied().unwrap_or(0);
                self.target_epochs[store] = -1;
            }
        }
        self.phase = Phase::Check(0);
        Ok(())
    }

    /// C17, on the side of the inputs.
    fn check_inputs(&mut self, port: &mut dyn ReadPort) -> Result<(), RecoveryError> {
        for (at, offset) in &mut self.start.offsets {
            let LogBounds { log_start, log_end, .. } = port.bounds(at)?;
            if (log_start..=log_end).contains(offset) {
                continue;
            }
            if self.plan.on_mismatch != OnMismatch::Adopt {
                let (at, offset) = (at.clone(), *offset);
                return Err(RecoveryError::InputOutOfRange { at, offset, log_start, log_end });
            }
            tracing::warn!(partition = %at, offset, log_start, log_end, "input offset is out of range and moved");
            *offset = (*offset).clamp(log_start, log_end);
        }
        Ok(())
    }

    fn take_anchor(&mut self, anchor: Anchor, state: &TaskState) -> Result<(), RecoveryError> {
        let task = self.plan.task;
        if anchor.targets.len() != self.plan.stores.len() {
            let (targets, stores) = (anchor.targets.len(), self.plan.stores.len());
            return Err(RecoveryError::AnchorOfAnotherTopology { task, targets, stores });
        }
        if state.meta().seq > anchor.seq && self.plan.on_mismatch == OnMismatch::Fail {
            return Err(RecoveryError::StateNewer { task, state: state.meta().seq, committed: anchor.seq });
        }
        self.start.seq = anchor.seq.max(state.meta().seq);
        self.start.stream_time = anchor.stream_time;
        self.start.timers =
            if anchor.timers.is_empty() { state.meta().timers.clone() } else { anchor.timers };
        self.writer = anchor.writer;
        for (store, Target { offset, leader_epoch }) in anchor.targets.into_iter().enumerate() {
            self.targets[store] = offset;
            self.target_epochs[store] = leader_epoch;
        }
        Ok(())
    }

    /// No anchor: a task that never committed; else C17, unless a person adopts what is there.
    fn without_anchor(
        &mut self,
        committed: &[CommittedOffset],
        port: &mut dyn ReadPort,
        state: &TaskState,
    ) -> Result<(), RecoveryError> {
        let own = || {
            self.plan.stores.iter().enumerate().filter_map(|(index, source)| match source {
                ChangeSource::Changelog(at) => Some((index, at)),
                ChangeSource::Input(_) => None,
            })
        };
        self.start.seq = state.meta().seq;
        self.start.stream_time = state.meta().stream_time;
        self.start.timers.clone_from(&state.meta().timers);
        if own().next().is_none() {
            return Ok(());
        }
        if self.plan.on_mismatch == OnMismatch::Adopt {
            let mut targets = self.targets.clone();
            for (store, at) in own() {
                targets[store] = port.bounds(at)?.last_stable;
            }
            tracing::warn!(task = %self.plan.task, ?targets, "no anchor; the changelogs' ends are adopted");
            (self.targets, self.adopted) = (targets, true);
            return Ok(());
        }
        let task = self.plan.task;
        if let Some(found) = committed.iter().find(|found| found.offset.is_some()) {
            let (at, metadata) = (found.topic_partition.clone(), found.metadata.chars().take(80).collect());
            return Err(RecoveryError::AnchorMissing { task, at, metadata });
        }
        for (store, at) in own() {
            if state.meta().stores[store].position > 0 || has_committed(port, at, &self.plan)? {
                let group_id = self.plan.group_id.clone();
                return Err(RecoveryError::OffsetsGone { task, group_id, changelog: at.clone() });
            }
        }
        Ok(())
    }

    fn check_store(
        &mut self,
        store: usize,
        port: &mut dyn ReadPort,
        state: &mut TaskState,
        now_ms: i64,
    ) -> Result<Option<RecoveryStep>, RecoveryError> {
        let source = &self.plan.stores[store];
        let at = source.at();
        let bounds = port.bounds(at)?;
        let position = &state.meta().stores[store];
        let epoch_end = |port: &mut dyn ReadPort, epoch: i32| match epoch {
            ..0 => Ok(None),
            _ => port.epoch_end(at, epoch),
        };
        let check = StoreCheck {
            at,
            is_input: matches!(source, ChangeSource::Input(_)),
            kind: state.specs()[store].kind,
            position,
            target: self.targets[store],
            epoch_end_of_position: epoch_end(port, position.leader_epoch)?,
            epoch_end_of_target: epoch_end(port, self.target_epochs[store])?,
            tombstone_horizon: port.tombstone_horizon(at)?,
            delete_retention: port.delete_retention(&at.topic)?,
            tombstone_margin: self.plan.tombstone_margin,
            on_mismatch: self.plan.on_mismatch,
            stream_time: self.start.stream_time,
            now_ms,
            bounds: &bounds,
        };
        let verdict = check.decide()?;
        self.topic_ids[store] = bounds.topic_id.clone();
        self.phase = Phase::Check(store + 1);
        let at = at.clone();
        match verdict {
            Verdict::Replay { target } => self.targets[store] = target,
            Verdict::RebuildBeside(reason) => {
                tracing::warn!(task = %self.plan.task, changelog = %at, %reason, "the state is rebuilt beside");
                self.phase = Phase::Read;
                return Ok(Some(RecoveryStep::RebuildBeside(reason)));
            }
            Verdict::Jump { to, expired_before_ms, target } => {
                self.targets[store] = target;
                let position = self.position(store, state, to, -1);
                state.jump(id(store), expired_before_ms, position)?;
            }
            Verdict::Adopt { target, position } => {
                self.targets[store] = target;
                let position = self.position(store, state, position, -1);
                state.adopt(id(store), position)?;
            }
        }
        Ok(None)
    }

    /// A position reached from where the store is. How old the copy counts: a restore from nothing is as old as its
    /// begin, since a tombstone that was in the log then stays for the retention; a longer one as old as it was.
    fn position(&self, store: usize, state: &TaskState, position: i64, leader_epoch: i32) -> StorePosition {
        let before = &state.meta().stores[store];
        StorePosition {
            topic_id: self.topic_ids[store].clone(),
            position,
            leader_epoch: if leader_epoch < 0 { before.leader_epoch } else { leader_epoch },
            time_ms: if before.position == 0 { self.began_ms } else { before.time_ms },
        }
    }

    fn replay(
        &mut self,
        store: usize,
        port: &mut dyn ReadPort,
        state: &mut TaskState,
    ) -> Result<Option<RecoveryStep>, RecoveryError> {
        let (from, target) = (state.meta().stores[store].position, self.targets[store]);
        if from >= target {
            self.phase = Phase::Replay(store + 1);
            return Ok(None);
        }
        let at = self.plan.stores[store].at().clone();
        let mut piece = match port.read(&at, from, self.plan.batch_bytes, self.plan.read_wait) {
            Err(PortError::OutOfRange { .. }) => {
                self.phase = Phase::Check(store); // the log start passed us meanwhile: the check knows what that means
                return Ok(None);
            }
            other => other?,
        };
        piece.records.retain(|record| (from..target).contains(&record.offset));
        let next = piece.next_offset.min(target);
        if next <= from {
            return Ok(Some(RecoveryStep::Wait { at, target, last_stable: piece.last_stable }));
        }
        self.start.replayed += piece.records.len() as u64;
        let position = self.position(store, state, next, piece.leader_epoch);
        state.restore(id(store), &piece.records, position)?;
        Ok(None)
    }

    fn settle(&mut self, state: &mut TaskState, now_ms: i64) -> Result<(), RecoveryError> {
        let mut meta = state.meta().clone();
        meta.inputs = self.start.offsets.clone();
        meta.seq = self.start.seq;
        meta.stream_time = self.start.stream_time;
        meta.timers.clone_from(&self.start.timers);
        meta.writer.clone_from(&self.writer);
        for (store, position) in meta.stores.iter_mut().enumerate() {
            let reached = self.targets[store];
            assert!(position.position >= reached || self.adopted, "I2: every store is at its target");
            position.topic_id.clone_from(&self.topic_ids[store]);
            position.time_ms = now_ms; // the only writer's next tombstone is still to come
        }
        state.apply(meta)?;
        self.phase = Phase::Done;
        Ok(())
    }
}

fn id(store: usize) -> StoreId {
    StoreId(u16::try_from(store).expect("a task has fewer than 65,536 stores"))
}

/// Whether a changelog holds any committed record: aborted ones and markers move its end too.
fn has_committed(
    port: &mut dyn ReadPort,
    at: &TopicPartition,
    plan: &RecoveryPlan,
) -> Result<bool, RecoveryError> {
    let bounds = port.bounds(at)?;
    let mut from = bounds.log_start;
    while from < bounds.last_stable {
        let piece = port.read(at, from, plan.batch_bytes, plan.read_wait)?;
        if !piece.records.is_empty() {
            return Ok(true);
        }
        if piece.next_offset <= from {
            break;
        }
        from = piece.next_offset;
    }
    Ok(false)
}
