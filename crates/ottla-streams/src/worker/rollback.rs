//! Rollback: abort, drop the overlays, take the kept records again. No store is touched.

use super::{Guarantee, Phase, Step, Worker, WorkerError, WorkerEvent};
use crate::port::{PortError, TransactionPort};

impl<T: TransactionPort> Worker<T> {
    /// Works through what a failure left open. `false`: it has to wait; call again later.
    pub(super) fn settle(&mut self) -> Result<bool, WorkerError> {
        loop {
            let done = match &self.phase {
                Phase::Idle | Phase::Open { .. } => return Ok(true),
                Phase::Failed { .. } | Phase::Undecided { .. } if self.now() < self.retry_at => false,
                Phase::Failed { .. } => self.roll_back()?,
                Phase::Undecided { .. } => self.resolve()?,
            };
            if !done {
                return Ok(false);
            }
        }
    }

    fn roll_back(&mut self) -> Result<bool, WorkerError> {
        self.at(Step::BeforeAbort)?;
        if self.settings.guarantee == Guarantee::ExactlyOnce && !self.abort()? {
            return Ok(false);
        }
        let Phase::Failed { reason, not_owner, .. } = self.phase.clone() else { return Ok(true) };
        self.at(Step::AfterAbort)?;
        self.forget();
        self.at(Step::AfterRollback)?;
        tracing::info!(writer = self.settings.writer, reason, "a transaction was rolled back");
        self.events.push(WorkerEvent::RolledBack { reason: reason.clone() });
        if not_owner {
            self.suspended = true;
            self.events.push(WorkerEvent::NotOwner { reason });
        }
        Ok(true)
    }

    /// Drops what is not committed: every task stands at its last boundary.
    pub(super) fn forget(&mut self) {
        self.metrics.rollbacks.add(1);
        for slot in self.slots.values_mut() {
            if slot.is_dirty() {
                slot.boundary = None;
                slot.task.rollback();
            }
        }
        self.phase = Phase::Idle;
        self.dirty_since = None;
        self.acked.clear();
        self.wrote.clear();
    }

    /// Ends the transaction at the coordinator, by an abort or by taking the id anew.
    fn abort(&mut self) -> Result<bool, WorkerError> {
        if matches!(self.phase, Phase::Failed { reinit: false, .. }) {
            match self.port.abort() {
                Ok(()) => return Ok(true),
                Err(PortError::Retriable(_)) => {
                    self.pause();
                    return Ok(false);
                }
                Err(PortError::Fenced(reason)) => self.fenced(&reason)?,
                Err(_) => {
                    if let Phase::Failed { reinit, .. } = &mut self.phase {
                        *reinit = true;
                    }
                }
            }
        }
        self.take_id()
    }

    /// Takes the transactional id anew: afterwards no older transaction of it is undecided.
    pub(super) fn take_id(&mut self) -> Result<bool, WorkerError> {
        match self.port.reinit() {
            Ok(()) => Ok(true),
            Err(PortError::Retriable(reason)) => {
                tracing::debug!(writer = self.settings.writer, reason, "the id cannot be taken yet");
                self.pause();
                Ok(false)
            }
            Err(PortError::Fenced(reason)) => {
                Err(WorkerError::Fenced { writer: self.settings.writer.clone(), reason })
            }
            Err(error) => Err(self.port_error(error)),
        }
    }
}
