//! What the committed anchors say: whether a transaction of ours was committed, and whose the tasks are.

use std::collections::{BTreeMap, BTreeSet};

use ottla_client::CommittedOffset;

use super::slot::{Base, Slot};
use super::{Phase, Step, Worker, WorkerError, WorkerEvent};
use crate::anchor;
use crate::port::{PortError, TransactionPort};
use crate::record::TaskId;

/// What became of a task's last commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Its newest anchor is the one that was asked to be committed.
    Committed,
    /// Its newest anchor is the one that it rests on.
    Aborted,
    /// It is neither: somebody else has worked on the task, or the group's offsets were changed.
    Lost,
}

impl<T: TransactionPort> Worker<T> {
    /// Finds out how a commit ended whose answer was lost. `false`: not decided yet.
    pub(super) fn resolve(&mut self) -> Result<bool, WorkerError> {
        if !self.end_undecided()? {
            return Ok(false);
        }
        let Phase::Undecided { since, begun, tasks, fenced, .. } = self.phase.clone() else {
            return Ok(true);
        };
        let Some(verdicts) = self.verdicts(&tasks)? else { return Ok(false) };
        self.at(Step::AfterWitness)?;
        let of = |verdict: Verdict| -> Vec<TaskId> {
            verdicts.iter().filter(|(_, found)| **found == verdict).map(|(id, _)| *id).collect()
        };
        let (committed, aborted, mut lost) =
            (of(Verdict::Committed), of(Verdict::Aborted), of(Verdict::Lost));
        if !committed.is_empty() {
            // one transaction has one outcome: a task that did not move with it was moved by somebody else
            lost.extend(&aborted);
        }
        for id in lost {
            self.give_up(id, "the committed offsets are another writer's");
        }
        if committed.is_empty() {
            self.metrics.resolved_aborted.add(1);
            let reason = fenced.clone().unwrap_or_else(|| "its commit was not carried out".to_owned());
            self.phase = Phase::Failed { since, reason, reinit: false, not_owner: false };
            if let Some(reason) = fenced {
                self.fenced(&reason)?;
            }
        } else {
            self.metrics.resolved_committed.add(1);
            self.committed(&committed, begun)?;
            if let Some(reason) = fenced {
                self.phase = Phase::Failed { since, reason: reason.clone(), reinit: true, not_owner: false };
                self.fenced(&reason)?;
            }
        }
        Ok(true)
    }

    /// Makes sure that the transaction is decided: takes the id anew, unless somebody else has.
    fn end_undecided(&mut self) -> Result<bool, WorkerError> {
        if !matches!(self.phase, Phase::Undecided { fenced: None, decided: false, .. }) {
            return Ok(true);
        }
        self.at(Step::BeforeReinit)?;
        let outcome = self.port.reinit();
        let Phase::Undecided { fenced, decided, .. } = &mut self.phase else { return Ok(true) };
        match outcome {
            Ok(()) => *decided = true,
            Err(PortError::Fenced(reason)) => *fenced = Some(reason),
            Err(PortError::Retriable(reason)) => {
                tracing::debug!(writer = self.settings.writer, reason, "a commit is still undecided");
                self.pause();
                return Ok(false);
            }
            Err(error) => return Err(self.port_error(error)),
        }
        self.at(Step::AfterReinit)?;
        Ok(true)
    }

    /// Compares the newest anchor of each task with what is known. `None`: an offset is still held open.
    fn verdicts(&mut self, ids: &BTreeSet<TaskId>) -> Result<Option<BTreeMap<TaskId, Verdict>>, WorkerError> {
        let slots: Vec<(&TaskId, &Slot)> = self.slots.iter().filter(|(id, _)| ids.contains(id)).collect();
        let inputs: Vec<_> = slots.iter().flat_map(|(_, slot)| slot.task.inputs().iter().cloned()).collect();
        if inputs.is_empty() {
            return Ok(Some(BTreeMap::new()));
        }
        let committed = match self.reader.committed(&self.settings.group_id, &inputs) {
            Ok(committed) => committed,
            Err(PortError::Retriable(_)) => {
                self.pause();
                return Ok(None);
            }
            Err(error) => return Err(self.port_error(error)),
        };
        let writer = &self.settings.writer;
        Ok(Some(slots.iter().map(|(id, slot)| (**id, judge(slot, writer, &committed))).collect()))
    }

    /// Goes on after [`WorkerEvent::NotOwner`] or [`Worker::suspend`], with the tasks that this process owns now.
    /// Those that somebody else has worked on meanwhile are lost all the same. `false`: it cannot be told yet; call
    /// again.
    pub fn resume(&mut self, owned: &BTreeSet<TaskId>) -> Result<bool, WorkerError> {
        if !self.settle()? || self.now() < self.retry_at {
            return Ok(false);
        }
        let ids: BTreeSet<TaskId> = self.slots.keys().copied().collect();
        for id in ids.difference(owned) {
            self.give_up(*id, "the task is assigned to another member");
        }
        let Some(verdicts) = self.verdicts(owned)? else { return Ok(false) };
        for (id, verdict) in verdicts {
            // also a commit of our own that was taken for aborted: its writes are not here, the log has them
            if verdict != Verdict::Aborted {
                self.give_up(id, "another member has worked on the task meanwhile");
            }
        }
        self.suspended = false;
        Ok(true)
    }

    /// Rolls back and stands still until [`Worker::resume`]: the process has lost its membership.
    pub fn suspend(&mut self, reason: &str) {
        if self.dirty_since.is_some() {
            self.fail(reason, false);
        }
        self.suspended = true;
    }

    fn give_up(&mut self, id: TaskId, reason: &str) {
        if let Some(slot) = self.take_slot(id) {
            let (state, reason) = (slot.into_state(), reason.to_owned());
            self.events.push(WorkerEvent::Lost { task: id, state, reason });
        }
    }
}

fn judge(slot: &Slot, writer: &str, committed: &[CommittedOffset]) -> Verdict {
    let inputs = slot.task.inputs();
    let own: Vec<CommittedOffset> =
        committed.iter().filter(|offset| inputs.contains(&offset.topic_partition)).cloned().collect();
    let newest = anchor::newest(&own);
    let attempted = Base { writer: writer.to_owned(), seq: slot.attempt };
    if slot.base.is(newest.as_ref()) {
        Verdict::Aborted
    } else if attempted.is(newest.as_ref()) {
        Verdict::Committed
    } else {
        Verdict::Lost
    }
}
