//! A task in a worker, with what the commit protocol knows of it.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_client::TopicPartition;

use crate::anchor::Anchor;
use crate::engine::StoreId;
use crate::meta::Meta;
use crate::recovery::ChangeSource;
use crate::state::TaskState;
use crate::task::Task;

/// Which committed anchor a task rests on: what the witness of its next commit is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// Who wrote it; empty = nothing was ever committed for this task.
    pub(super) writer: String,
    /// Its sequence number.
    pub(super) seq: u64,
}

impl Base {
    /// The newest committed anchor is this one.
    pub(super) fn is(&self, newest: Option<&Anchor>) -> bool {
        match newest {
            Some(anchor) => self.writer == anchor.writer && self.seq == anchor.seq,
            None => self.writer.is_empty(),
        }
    }
}

/// What a task may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// Process.
    Running,
    /// Wait for its disk; its boundary is committed and not applied.
    Parked { since: Duration, retry_at: Duration },
    /// Nothing: it failed too often.
    SetApart,
}

/// A task and its part in the protocol.
pub(super) struct Slot {
    pub(super) task: Task,
    /// By store.
    pub(super) changes: Vec<ChangeSource>,
    /// The last committed anchor that is known.
    pub(super) base: Base,
    /// Sequence number of the last attempt; never used twice, so an older one is an aborted one.
    pub(super) attempt: u64,
    /// What will be applied once the transaction is known to be committed.
    pub(super) boundary: Option<Meta>,
    pub(super) status: Status,
    /// Aborts in a row that it caused.
    pub(super) faults: u32,
    /// Where it stood at its last fault.
    pub(super) fault_at: BTreeMap<TopicPartition, i64>,
}

impl Slot {
    pub(super) fn new(task: Task, changes: Vec<ChangeSource>) -> Self {
        let meta = task.state().meta();
        let base = Base { writer: meta.writer.clone(), seq: meta.seq };
        Self {
            attempt: base.seq,
            task,
            base,
            changes,
            boundary: None,
            status: Status::Running,
            faults: 0,
            fault_at: BTreeMap::new(),
        }
    }

    /// It has uncommitted work. A parked task has none: what its disk lacks is committed.
    pub(super) fn is_dirty(&self) -> bool {
        !self.is_parked() && self.task.is_dirty()
    }

    pub(super) fn is_parked(&self) -> bool {
        matches!(self.status, Status::Parked { .. })
    }

    /// Where the changes of a store are written; absent for the table of an input topic.
    pub(super) fn changelog(&self, store: StoreId) -> Option<&TopicPartition> {
        match self.changes.get(usize::from(store.0)) {
            Some(ChangeSource::Changelog(at)) => Some(at),
            Some(ChangeSource::Input(_)) | None => None,
        }
    }

    /// Its state without the overlay.
    pub(super) fn into_state(self) -> TaskState {
        let mut state = self.task.into_state();
        state.rollback();
        state
    }

    /// It caused an abort where it stands.
    pub(super) fn fault(&mut self) -> u32 {
        self.faults += 1;
        self.fault_at = self.task.offsets();
        self.faults
    }

    /// Its offsets were committed: if they passed the place of its last fault, that is forgiven.
    pub(super) fn passed(&mut self) {
        let offsets = self.task.offsets();
        if self.fault_at.iter().any(|(at, offset)| offsets.get(at).is_some_and(|now| now > offset)) {
            self.faults = 0;
            self.fault_at.clear();
        }
    }
}
