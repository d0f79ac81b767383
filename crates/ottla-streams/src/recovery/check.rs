//! Whether a store can be brought from its position to its target by replay: a pure decision over what was read.

use std::time::Duration;

use ottla_client::TopicPartition;

use super::OnMismatch;
use super::error::{RebuildReason, RecoveryError};
use crate::meta::StorePosition;
use crate::port::LogBounds;
use crate::state::StoreKind;

/// What there is to know of a store and its changelog.
#[derive(Debug)]
pub(super) struct StoreCheck<'a> {
    pub(super) at: &'a TopicPartition,
    /// An input topic that is the table itself: its start may move, and nobody promised that it does not.
    pub(super) is_input: bool,
    pub(super) kind: StoreKind,
    pub(super) position: &'a StorePosition,
    pub(super) target: i64,
    /// Where the log of the position's leader epoch ends, when known.
    pub(super) epoch_end_of_position: Option<i64>,
    /// Where the log of the target's leader epoch ends, when known.
    pub(super) epoch_end_of_target: Option<i64>,
    pub(super) tombstone_horizon: Option<i64>,
    pub(super) delete_retention: Duration,
    pub(super) tombstone_margin: Duration,
    pub(super) on_mismatch: OnMismatch,
    pub(super) stream_time: i64,
    pub(super) now_ms: i64,
    pub(super) bounds: &'a LogBounds,
}

/// What to do with the store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Replay from its position to the target.
    Replay { target: i64 },
    /// C20: go to `to` first; what lay between has expired.
    Jump { to: i64, expired_before_ms: i64, target: i64 },
    /// Take the store as it is for that position, then replay to the target.
    Adopt { target: i64, position: i64 },
    /// Not from this copy.
    RebuildBeside(RebuildReason),
}

impl StoreCheck<'_> {
    pub(super) fn decide(&self) -> Result<Verdict, RecoveryError> {
        if let Some(verdict) = self.identity()? {
            return Ok(verdict);
        }
        let target = match self.tail()? {
            Ok(target) => target,
            Err(verdict) => return Ok(verdict),
        };
        let position = self.position.position;
        if position > target {
            let at = self.at.clone();
            return match self.on_mismatch {
                OnMismatch::Fail => Err(RecoveryError::StateAhead { at, position, target }),
                OnMismatch::Rebuild => Ok(Verdict::RebuildBeside(RebuildReason::Ahead { position, target })),
                OnMismatch::Adopt => Ok(Verdict::Adopt { target, position: target }),
            };
        }
        if let Some(epoch_end) = self.epoch_end_of_position.filter(|&end| end < position) {
            return Ok(Verdict::RebuildBeside(RebuildReason::Diverged { position, epoch_end }));
        }
        if position < self.bounds.log_start && position < target {
            return self.below_start(target);
        }
        if position > 0 && position < target && !self.tombstones_are_there() {
            let horizon = self.tombstone_horizon;
            return Ok(Verdict::RebuildBeside(RebuildReason::TombstonesGone { position, horizon }));
        }
        Ok(Verdict::Replay { target })
    }

    /// Whether the topic is the one that the state knows.
    fn identity(&self) -> Result<Option<Verdict>, RecoveryError> {
        let (known, found) = (&self.position.topic_id, &self.bounds.topic_id);
        if known.is_empty() || found.is_empty() || known == found {
            return Ok(None);
        }
        match self.on_mismatch {
            _ if self.is_input => Ok(Some(Verdict::RebuildBeside(RebuildReason::TopicRecreated))),
            OnMismatch::Rebuild => Ok(Some(Verdict::RebuildBeside(RebuildReason::TopicRecreated))),
            OnMismatch::Adopt => {
                let target = self.bounds.last_stable;
                Ok(Some(Verdict::Adopt { target, position: target }))
            }
            OnMismatch::Fail => Err(RecoveryError::ChangelogRecreated {
                at: self.at.clone(),
                known: known.clone(),
                found: found.clone(),
            }),
        }
    }

    /// C18 above the position: the target that the log can still give, or what to do instead.
    fn tail(&self) -> Result<Result<i64, Verdict>, RecoveryError> {
        let epoch_end = self.epoch_end_of_target.unwrap_or(i64::MAX);
        let holds = self.bounds.log_end.min(epoch_end);
        if self.target <= holds {
            return Ok(Ok(self.target));
        }
        match self.on_mismatch {
            OnMismatch::Fail => {
                Err(RecoveryError::LogLostTail { at: self.at.clone(), target: self.target, holds })
            }
            OnMismatch::Rebuild => Ok(Ok(holds)),
            // What is here may be more than what the log still holds; the log goes on from its end.
            OnMismatch::Adopt => {
                let end = self.bounds.last_stable;
                Ok(Err(Verdict::Adopt { target: end, position: self.position.position.min(end) }))
            }
        }
    }

    fn below_start(&self, target: i64) -> Result<Verdict, RecoveryError> {
        let (position, log_start) = (self.position.position, self.bounds.log_start);
        let to = log_start.min(target);
        match self.kind.retention_ms() {
            // Windows: the broker drops segments by the same retention that hides the windows from reads.
            Some(retention_ms) => {
                let expired_before_ms = self.stream_time.saturating_sub(retention_ms);
                Ok(Verdict::Jump { to, expired_before_ms, target })
            }
            None if self.is_input && position == 0 => Ok(Verdict::Adopt { target, position: to }),
            None if self.is_input => {
                Ok(Verdict::RebuildBeside(RebuildReason::TableTrimmed { position, log_start }))
            }
            None if self.on_mismatch == OnMismatch::Adopt => Ok(Verdict::Adopt { target, position: to }),
            None => Err(RecoveryError::ChangelogTrimmed { at: self.at.clone(), position, log_start }),
        }
    }

    /// C19: no delete between position and target can have been compacted away.
    fn tombstones_are_there(&self) -> bool {
        if let Some(horizon) = self.tombstone_horizon {
            return self.position.position >= horizon;
        }
        let age_ms = i128::from(self.now_ms) - i128::from(self.position.time_ms);
        let kept = self.delete_retention.saturating_sub(self.tombstone_margin).as_millis();
        self.position.time_ms > 0 && age_ms < i128::try_from(kept).unwrap_or(i128::MAX)
    }
}
