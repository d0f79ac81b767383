//! The thread that tidies the folder, in miniature: retention asks for log starts to move, files are dropped and
//! rewritten. Both look at what is published.

use std::collections::BTreeMap;

use ottla_core::command::{Command, CommandBody};
use ottla_core::decision::Bounds;
use ottla_env::disk::sim::SimDisk;
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::{Alive, FrameSequence, LevelsError, Retention};

use super::{LogStep, Shell};
use crate::history::History;
use crate::options::Bug;

/// What is alive by what is published.
struct Published<'a>(&'a BTreeMap<TopicIdPartition, Bounds>);

impl Alive for Published<'_> {
    fn log_start_offset(&self, partition: &TopicIdPartition) -> Option<i64> {
        self.0.get(partition).map(|bounds| bounds.log_start_offset)
    }

    fn class(&self, partition: &TopicIdPartition) -> u64 {
        u64::from(partition.topic_id.0[0] % 3)
    }
}

impl Shell {
    /// Retention looks at one partition.
    pub(crate) fn retain(&mut self, rng: &mut SeededRng, history: &mut History) {
        let candidates: Vec<TopicIdPartition> = self
            .published
            .iter()
            .filter(|(_, bounds)| bounds.high_watermark > bounds.log_start_offset)
            .map(|(partition, _)| *partition)
            .filter(|partition| history.is_of_clients(partition) && !history.may_be_compacted(partition))
            .collect();
        if candidates.is_empty() {
            return;
        }
        let partition = candidates[rng.index(candidates.len())];
        let bounds = self.published[&partition].clone();
        let (start, end) = (bounds.log_start_offset, bounds.high_watermark);
        let by_time =
            rng.one_in(2).then(|| self.clock.now().0 - i64::try_from(rng.below(4_000)).expect("small"));
        let kept = Retention { from_timestamp: by_time, bytes: rng.one_in(2).then(|| rng.below(30_000)) };
        let Ok(point) = self.log.reader.retention_point(partition, start, end, kept) else { return };
        if point <= start {
            return;
        }
        history.counts.log_starts_moved += 1;
        history.deletions.entry(partition).or_default().asked.insert(point);
        if self.setup.bug == Some(Bug::LogStartInMemory) {
            let last_stable_offset = bounds.last_stable_offset.max(point);
            let moved = Bounds { log_start_offset: point, last_stable_offset, ..bounds };
            return self.publish(vec![(partition, Some(moved))], false, history);
        }
        let body = CommandBody::MoveLogStarts(vec![(partition, point)]);
        self.decide(Command { context: Default::default(), body }, history);
    }

    /// Files are dropped or rewritten, if there is something to be done. Not while a frame is on its way.
    pub(crate) fn tidy(&mut self, disk: &SimDisk, history: &mut History) -> LogStep {
        if self.in_flight.is_some() || self.is_cleaning() {
            return LogStep::Nothing;
        }
        let Ok(mut horizon) = self.log.snapshots.horizon() else { return LogStep::Nothing };
        if self.setup.bug == Some(Bug::RewriteUnsnapshotted) {
            horizon = Some(FrameSequence(u64::MAX));
        }
        let now = self.clock.now().0;
        let unsynced = self.setup.bug == Some(Bug::RecordBeforeSync);
        if unsynced {
            disk.set_skip_syncs(true);
        }
        let change = self.log.levels.run_once(horizon, now, &Published(&self.published), &mut |_| true);
        if unsynced {
            disk.set_skip_syncs(false);
        }
        let change = match change {
            Ok(Some(change)) => change,
            Ok(None) | Err(LevelsError::Io { .. }) => return LogStep::Nothing,
            Err(LevelsError::Ended) => return LogStep::Dead,
        };
        let early = self.setup.bug == Some(Bug::UnlinkBeforeRecord);
        if early {
            self.log.levels.unlink(&change);
        }
        if self.log.writer.append_files(self.log_ms, &change).is_err() {
            return LogStep::Dead;
        }
        if !early {
            self.log.levels.unlink(&change);
        }
        history.counts.files_changed += 1;
        history.counts.files_removed += change.removed() as u64;
        history.counts.rewrites += u64::from(change.bytes_written() > 0);
        LogStep::Written
    }
}
