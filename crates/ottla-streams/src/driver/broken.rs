//! Variants of the design that lose or double something. Each must be caught by the driver's checks; that shows that
//! the checks can fail.

use std::time::Duration;

use ottla_client::{CommittedOffset, TopicPartition};

use crate::anchor::Anchor;
use crate::port::{ChangelogPiece, LogBounds, PortError, ReadPort};
use crate::recovery::ChangeSource;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Stores are written before the commit is asked for.
    ApplyBeforeCommit,
    /// Positions are kept in another file than the data. (With [`super::EngineChoice::PositionApart`].)
    PositionInAnotherFile,
    /// A transaction in which no input moved commits no offsets.
    NoOffsetsForTimers,
    /// Restores up to the last stable offset instead of the committed target.
    RestoreToLastStable,
    /// Replays from an old position over a log whose tombstones are gone.
    IgnoreHorizon,
    /// Stores are flushed apart, without a write-ahead log. (With [`super::EngineChoice::FlushedApart`].)
    FlushApart,
}

impl Broken {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ApplyBeforeCommit,
        Self::PositionInAnotherFile,
        Self::NoOffsetsForTimers,
        Self::RestoreToLastStable,
        Self::IgnoreHorizon,
        Self::FlushApart,
    ];
}

/// A reader that tells the recovery of one task what it should not believe.
pub(super) struct BrokenReader<R> {
    pub(super) inner: R,
    pub(super) broken: Option<Broken>,
    /// Of the task's stores.
    pub(super) changes: Vec<ChangeSource>,
}

impl<R: ReadPort> BrokenReader<R> {
    /// Replaces the targets by what is stable now.
    fn aim_at_last_stable(
        &mut self,
        mut committed: Vec<CommittedOffset>,
    ) -> Result<Vec<CommittedOffset>, PortError> {
        for offset in &mut committed {
            let Ok(Some(mut anchor)) = Anchor::decode(offset.metadata.as_str()) else { continue };
            for (target, source) in anchor.targets.iter_mut().zip(&self.changes) {
                if let ChangeSource::Changelog(at) = source {
                    target.offset = self.inner.bounds(at)?.last_stable;
                }
            }
            offset.metadata = anchor.encode().as_str().into();
        }
        Ok(committed)
    }
}

impl<R: ReadPort> ReadPort for BrokenReader<R> {
    fn committed(
        &mut self,
        group_id: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, PortError> {
        let committed = self.inner.committed(group_id, partitions)?;
        match self.broken {
            Some(Broken::RestoreToLastStable) => self.aim_at_last_stable(committed),
            _ => Ok(committed),
        }
    }

    fn bounds(&mut self, at: &TopicPartition) -> Result<LogBounds, PortError> {
        self.inner.bounds(at)
    }

    fn read(
        &mut self,
        at: &TopicPartition,
        from: i64,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<ChangelogPiece, PortError> {
        self.inner.read(at, from, bytes_max, wait)
    }

    fn epoch_end(&mut self, at: &TopicPartition, leader_epoch: i32) -> Result<Option<i64>, PortError> {
        self.inner.epoch_end(at, leader_epoch)
    }

    fn tombstone_horizon(&mut self, at: &TopicPartition) -> Result<Option<i64>, PortError> {
        match self.broken {
            Some(Broken::IgnoreHorizon) => Ok(Some(0)),
            _ => self.inner.tombstone_horizon(at),
        }
    }

    fn delete_retention(&mut self, topic: &str) -> Result<Duration, PortError> {
        self.inner.delete_retention(topic)
    }
}
