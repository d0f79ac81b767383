//! The named points of the commit protocol, at which a test may stop a worker.
//!
//! The test driver stops a simulated process there; an application under test kills itself there with SIGKILL
//! (`OTTLA_STREAMS_KILL_AT`). In ordinary work the hook does nothing.

use std::fmt;

/// A point of the work of a worker. In the order in which a transaction passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A record's or timer's outputs were handed to the producer (S0).
    AfterSend,
    /// A commit begins; nothing was flushed (S1).
    BeforeFlush,
    /// Every record of the transaction is acknowledged (end of S1).
    AfterFlush,
    /// The offsets are part of the transaction (end of S2).
    AfterOffsets,
    /// The decision is about to be asked for (S3).
    BeforeEndTxn,
    /// The coordinator said "committed"; nothing was applied (between S3 and S4).
    AfterEndTxn,
    /// About to apply a task's overlay to its store (S4); passed once per task.
    InApply,
    /// Every task's store is at the new boundary (S5).
    AfterApply,
    /// A rollback is about to abort the transaction.
    BeforeAbort,
    /// The transaction is aborted; overlays still hold their writes.
    AfterAbort,
    /// Overlays are empty, tasks stand at their last boundary.
    AfterRollback,
    /// The outcome of a commit is not known; the id is about to be taken anew.
    BeforeReinit,
    /// The id was taken anew; the witness was not read.
    AfterReinit,
    /// The witness was read; nothing was done about it.
    AfterWitness,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 14] = [
        Self::AfterSend,
        Self::BeforeFlush,
        Self::AfterFlush,
        Self::AfterOffsets,
        Self::BeforeEndTxn,
        Self::AfterEndTxn,
        Self::InApply,
        Self::AfterApply,
        Self::BeforeAbort,
        Self::AfterAbort,
        Self::AfterRollback,
        Self::BeforeReinit,
        Self::AfterReinit,
        Self::AfterWitness,
    ];

    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AfterSend => "after-send",
            Self::BeforeFlush => "before-flush",
            Self::AfterFlush => "after-flush",
            Self::AfterOffsets => "after-offsets",
            Self::BeforeEndTxn => "before-end-txn",
            Self::AfterEndTxn => "after-end-txn",
            Self::InApply => "in-apply",
            Self::AfterApply => "after-apply",
            Self::BeforeAbort => "before-abort",
            Self::AfterAbort => "after-abort",
            Self::AfterRollback => "after-rollback",
            Self::BeforeReinit => "before-reinit",
            Self::AfterReinit => "after-reinit",
            Self::AfterWitness => "after-witness",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.name() == name)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The worker was stopped by its hook. It must be dropped as it is, as a killed process would leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped at step {0}")]
pub struct Stopped(pub Step);

/// What is called at every step.
pub trait Hook: Send {
    /// `Err` stops the worker there.
    fn at(&mut self, step: Step) -> Result<(), Stopped>;
}

/// The hook of ordinary work.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHook;

impl Hook for NoHook {
    fn at(&mut self, _step: Step) -> Result<(), Stopped> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that every step has a name of its own which leads back to it.
    #[test]
    fn names_lead_back() {
        for step in Step::ALL {
            assert_eq!(Step::from_name(step.name()), Some(step));
        }
        assert_eq!(Step::from_name("nowhere"), None);
    }
}
