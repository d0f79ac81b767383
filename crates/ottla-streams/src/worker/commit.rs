//! S1 to S5.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_client::{GroupMetadata, OffsetToCommit, TopicPartition};

use super::slot::{Base, Slot, Status};
use super::{Guarantee, Phase, Step, Worker, WorkerError, WorkerEvent};
use crate::anchor::{Anchor, Target};
use crate::meta::Meta;
use crate::port::{Acked, CommitFailure, PortError, TransactionPort};
use crate::record::TaskId;
use crate::recovery::ChangeSource;
use crate::task::Boundary;

impl<T: TransactionPort> Worker<T> {
    /// A boundary is wanted: by time, by bytes, by the age of the transaction, or by a processor.
    pub(super) fn is_commit_due(&mut self) -> bool {
        if self.slots.values().any(|slot| self.needs_anchor(slot)) {
            return true;
        }
        let Some(dirty_since) = self.dirty_since else { return false };
        let now = self.now();
        let old = match self.phase {
            Phase::Open { since } => now.saturating_sub(since) >= self.settings.transaction_timeout / 2,
            _ => false,
        };
        if old || now.saturating_sub(dirty_since) >= self.settings.commit_interval {
            return true;
        }
        if self.slots.values().any(|slot| slot.task.wants_commit()) {
            return true;
        }
        let bytes = self.uncommitted_bytes();
        self.share.set(bytes);
        self.share.must_commit()
    }

    /// A task that nobody has ever committed anything for, without transactions: its changes count at once, so the
    /// first anchor comes before the first of them. Else a crash in between leaves a changelog that nobody can place.
    pub(super) fn needs_anchor(&self, slot: &Slot) -> bool {
        self.settings.guarantee == Guarantee::AtLeastOnce && slot.base.writer.is_empty() && !slot.is_parked()
    }

    /// Commits what was done since the last boundary, now. `false`: there was nothing, or it did not come about yet;
    /// [`Worker::run_once`] goes on with it.
    pub fn commit(&mut self, group: &GroupMetadata) -> Result<bool, WorkerError> {
        if self.suspended || !self.settle()? {
            return Ok(false);
        }
        let dirty: Vec<TaskId> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.is_dirty() || self.needs_anchor(slot))
            .map(|(id, _)| *id)
            .collect();
        if dirty.is_empty() {
            assert!(
                self.phase == Phase::Idle,
                "I3: a transaction is open and no task took or wrote anything"
            );
            self.dirty_since = None;
            return Ok(false);
        }
        let begun = self.now();
        self.at(Step::BeforeFlush)?;
        let wall_ms = self.clock.wall_ms();
        if !self.open()? || !self.flush()? {
            return Ok(false);
        }
        self.at(Step::AfterFlush)?;
        let offsets = self.boundaries(&dirty, wall_ms);
        match self.port.send_offsets(&offsets, group) {
            Ok(()) => {}
            Err(PortError::Retriable(reason)) => return self.later("offsets", &reason),
            Err(error) => return self.call_failed(error).map(|()| false),
        }
        self.at(Step::AfterOffsets)?;
        if self.apply_first {
            self.apply(&dirty)?;
        }
        self.decide(&dirty, begun)
    }

    /// S1: everything is acknowledged.
    fn flush(&mut self) -> Result<bool, WorkerError> {
        match self.port.flush() {
            Ok(acked) => {
                self.keep_acked(acked);
                Ok(true)
            }
            Err(PortError::Retriable(reason)) => self.later("flush", &reason),
            Err(error) => self.call_failed(error).map(|()| false),
        }
    }

    /// What the open transaction has written so far.
    pub(super) fn keep_acked(&mut self, acked: BTreeMap<TopicPartition, Acked>) {
        for (at, last) in acked {
            let known = self.acked.entry(at).or_insert(last);
            if last.offset > known.offset {
                *known = last;
            }
        }
    }

    /// The call is repeated by a later [`Worker::run_once`]; the transaction stays open until half its time-out is
    /// long over.
    fn later(&mut self, what: &str, reason: &str) -> Result<bool, WorkerError> {
        tracing::debug!(writer = self.settings.writer, what, reason, "a step of a commit is tried again");
        self.pause();
        if let Phase::Open { since } = self.phase
            && self.has_timed_out(since)
        {
            self.fail(&format!("{what}: {reason}"), false);
        }
        Ok(false)
    }

    /// S2: computes what each dirty task's boundary will be, and the offsets that say so.
    fn boundaries(&mut self, dirty: &[TaskId], wall_ms: i64) -> Vec<OffsetToCommit> {
        let mut all = Vec::new();
        for id in dirty {
            let slot = self.slots.get_mut(id).expect("dirty tasks are here");
            slot.attempt += 1;
            let meta = boundary(slot, &self.settings.writer, &self.acked, wall_ms);
            let anchor = Anchor {
                writer: meta.writer.clone(),
                seq: meta.seq,
                targets: meta
                    .stores
                    .iter()
                    .map(|store| Target { offset: store.position, leader_epoch: store.leader_epoch })
                    .collect(),
                stream_time: meta.stream_time,
                timers: meta.timers.clone(),
            };
            let mut metadata = Some(anchor.encode());
            for (at, offset) in &meta.inputs {
                let mut commit = OffsetToCommit::new(at.clone(), *offset);
                if let Some(metadata) = metadata.take() {
                    commit.metadata = metadata.into(); // the lowest partition is the anchor
                }
                all.push(commit);
            }
            slot.boundary = Some(meta);
        }
        all
    }

    /// S3, and what follows from the answer.
    fn decide(&mut self, dirty: &[TaskId], begun: Duration) -> Result<bool, WorkerError> {
        self.at(Step::BeforeEndTxn)?;
        let answer = match self.settings.guarantee {
            Guarantee::ExactlyOnce => self.port.commit(),
            Guarantee::AtLeastOnce => Ok(()),
        };
        match answer {
            Ok(()) => {
                self.at(Step::AfterEndTxn)?;
                self.committed(dirty, begun)?;
                Ok(true)
            }
            Err(CommitFailure::Aborted(reason)) => {
                self.fail(&reason, false);
                Ok(false)
            }
            Err(CommitFailure::Unknown(reason)) => {
                tracing::warn!(writer = self.settings.writer, reason, "the outcome of a commit is not known");
                self.undecided(dirty, begun, None);
                Ok(false)
            }
            Err(CommitFailure::Fenced(reason)) => {
                self.undecided(dirty, begun, Some(reason));
                Ok(false)
            }
            Err(CommitFailure::Fatal(reason)) => Err(self.port_error(PortError::Fatal(reason))),
        }
    }

    fn undecided(&mut self, dirty: &[TaskId], begun: Duration, fenced: Option<String>) {
        self.metrics.unknown_outcomes.add(1);
        let Phase::Open { since } = self.phase else {
            unreachable!("a commit was asked for in a transaction")
        };
        let tasks = dirty.iter().copied().collect();
        self.phase = Phase::Undecided { since, begun, tasks, fenced, decided: false };
    }

    /// S4 and S5: the transaction is known to be committed.
    pub(super) fn committed(&mut self, ids: &[TaskId], begun: Duration) -> Result<(), WorkerError> {
        self.phase = Phase::Idle;
        self.dirty_since = None;
        self.acked.clear();
        self.wrote.clear();
        for id in ids {
            let slot = self.slots.get_mut(id).expect("tasks of a decided transaction are here");
            slot.base = Base { writer: self.settings.writer.clone(), seq: slot.attempt };
            slot.passed();
            let offsets = slot.task.offsets();
            let is_past = |until: &BTreeMap<TopicPartition, i64>| {
                until.iter().all(|(at, until)| offsets.get(at).is_none_or(|now| now >= until))
            };
            if self.careful.get(id).is_some_and(is_past) {
                self.careful.remove(id);
            }
        }
        if !self.apply_first {
            self.apply(ids)?;
        }
        self.at(Step::AfterApply)?;
        self.metrics.committed_in(self.now().saturating_sub(begun));
        Ok(())
    }

    /// S4 for each task.
    fn apply(&mut self, ids: &[TaskId]) -> Result<(), WorkerError> {
        for id in ids {
            self.at(Step::InApply)?;
            self.apply_one(*id);
        }
        Ok(())
    }

    /// S4 for a task: overlay and meta in one batch. A disk that refuses makes the task wait, and only it; when it goes
    /// on refusing, its stores are opened anew, since an engine may not recover by itself.
    fn apply_one(&mut self, id: TaskId) -> bool {
        let now = self.now();
        let Some(slot) = self.slots.get_mut(&id) else { return false };
        let Some(boundary) = slot.boundary.clone() else { return true };
        match slot.task.state_mut().apply(boundary) {
            Ok(()) => {
                slot.boundary = None;
                slot.task.committed();
                true
            }
            Err(error) if error.is_io() => {
                let since = match slot.status {
                    Status::Parked { since, .. } => since,
                    Status::Running | Status::SetApart => {
                        self.events.push(WorkerEvent::Parked { task: id, reason: error.to_string() });
                        now
                    }
                };
                if now.saturating_sub(since) >= self.settings.park_max {
                    self.close_engine(id, &error);
                } else {
                    let retry_at = now + self.settings.retry_pause;
                    slot.status = Status::Parked { since, retry_at };
                }
                false
            }
            Err(error) => {
                self.close_engine(id, &error);
                false
            }
        }
    }

    /// Tries S4 again for tasks whose disk refused it.
    pub(super) fn unpark(&mut self) -> Result<(), WorkerError> {
        let now = self.now();
        let due = |slot: &Slot| matches!(slot.status, Status::Parked { retry_at, .. } if retry_at <= now);
        let ids: Vec<TaskId> = self.slots.iter().filter(|(_, slot)| due(slot)).map(|(id, _)| *id).collect();
        for id in ids {
            self.at(Step::InApply)?;
            if self.apply_one(id) {
                if let Some(slot) = self.slots.get_mut(&id) {
                    slot.status = Status::Running;
                }
                self.events.push(WorkerEvent::Unparked { task: id });
            }
        }
        Ok(())
    }
}

/// Where a task will stand once its transaction is committed.
fn boundary(slot: &Slot, writer: &str, acked: &BTreeMap<TopicPartition, Acked>, wall_ms: i64) -> Meta {
    let Boundary { offsets: inputs, stream_time, timers } = slot.task.boundary();
    let mut meta = slot.task.state().meta().clone();
    for (source, store) in slot.changes.iter().zip(&mut meta.stores) {
        match source {
            ChangeSource::Changelog(at) => {
                // I2: T never goes back; a plain producer tells of what was written before this boundary, too
                if let Some(last) = acked.get(at).filter(|last| last.offset >= store.position) {
                    store.position = last.offset + 1;
                    store.leader_epoch = last.leader_epoch;
                }
            }
            ChangeSource::Input(at) => {
                if let Some(offset) = inputs.get(at).filter(|offset| **offset > store.position) {
                    store.position = *offset;
                    store.leader_epoch = -1;
                }
            }
        }
        store.time_ms = wall_ms; // taken before the flush: no later delete is missed
    }
    Meta { inputs, stream_time, timers, seq: slot.attempt, writer: writer.to_owned(), ..meta }
}
