//! The thread that keeps the folder tidy: it moves log starts by retention, and drops and rewrites files.
//!
//! Place in the walk: beside it, like a client. What retention allows to go becomes a command for the owner; the
//! change of files that `ottla_storage::Levels` has prepared goes to the log thread, and only when it is durable are
//! files unlinked. It looks at *published* bounds and settings: all that it acts on is durable.
//!
//! Compaction is its third duty (`cleaner.rs`).
//!
//! It ends with the log: `ends` is dropped then, and so are changes that wait in the queue.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use ottla_core::cluster::config::TopicConfig;
use ottla_core::cluster::{CONTROL_PARTITION, Image};
use ottla_core::command::CommandBody;
use ottla_env::clock::Clock;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::{Alive, FilesChange, Levels, LevelsError, Retention, SnapshotStore, Space, SpaceWatch};

use super::cleaner::{self, CleanerState, Throttle};
use super::desk::FilesDesk;
use super::log_queue::{LogQueue, ToLog};
use super::log_thread::LogProgress;
use super::time::SharedTime;
use super::view::View;
use super::{Origin, ShardHandle};
use crate::limits::{
    FILES_INTERVAL, FULL_DISK_FILES_INTERVAL, LOG_STARTS_PER_DECISION, RETENTION_DELAY, SNAPSHOT_WISH_FILES,
    SNAPSHOT_WISH_INTERVAL,
};
use crate::metrics::Metrics;

/// The shortest wait between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The thread's state.
pub struct FilesThread {
    /// Finds out what is to be done.
    pub levels: Levels,
    /// Says what no start needs for replay any more.
    pub snapshots: SnapshotStore,
    /// Bounds and settings.
    pub view: Arc<View>,
    /// To the log.
    pub queue: Arc<LogQueue>,
    /// To the owner.
    pub shard: ShardHandle,
    /// Disconnected when the log ends.
    pub ends: Receiver<()>,
    /// On a full disk it looks more often.
    pub space: SpaceWatch,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The machine's clock.
    pub clock: Arc<dyn Clock>,
    /// Shard time.
    pub time: SharedTime,
    /// Where the owner is asked for its state, and for a snapshot.
    pub desk: Arc<FilesDesk>,
    /// How far the log is durable.
    pub progress: Arc<LogProgress>,
    /// What it remembers of compaction.
    pub(super) cleaner: CleanerState,
    /// When it last wished for a snapshot, by the monotonic clock.
    pub(super) wished: Option<Duration>,
}

/// The log has ended, or will in a moment.
pub(super) struct Ended;

impl FilesThread {
    /// Runs until the log ends.
    pub fn run(mut self) {
        let mut retention_due = self.clock.monotonic() + self.check_interval().min(RETENTION_DELAY);
        let mut cleaning_due = self.clock.monotonic() + cleaner::backoff(&self.view.image());
        loop {
            let interval = self.check_interval();
            let backoff = cleaner::backoff(&self.view.image()).max(PAUSE_MIN);
            let is_full = self.space.now() != Space::Enough;
            let most = if is_full { FULL_DISK_FILES_INTERVAL } else { FILES_INTERVAL };
            let wait = interval.min(most).min(backoff).max(PAUSE_MIN);
            match self.ends.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = self.clock.monotonic();
            if now >= retention_due || is_full {
                retention_due = now + interval;
                self.move_log_starts();
            }
            if now >= cleaning_due {
                if self.clean().is_err() {
                    return;
                }
                cleaning_due = self.clock.monotonic() + backoff;
            }
            if self.tidy().is_err() {
                return;
            }
        }
    }

    fn check_interval(&self) -> Duration {
        let ms = self.view.image().config.log_retention_check_interval_ms;
        Duration::from_millis(u64::try_from(ms).unwrap_or(0)).max(PAUSE_MIN)
    }

    /// Asks the owner to move the log starts of all partitions whose retention has passed.
    fn move_log_starts(&self) {
        let (image, now) = (self.view.image(), self.time.now_ms(&*self.clock));
        let mut moves = Vec::new();
        for topic in image.topics() {
            let Some(kept) = kept(&topic.config, now).filter(|_| !topic.is_internal()) else { continue };
            for partition in topic.partitions() {
                moves.extend(self.point(partition, kept).map(|offset| (partition, offset)));
                if moves.len() >= LOG_STARTS_PER_DECISION {
                    self.submit(std::mem::take(&mut moves));
                }
            }
        }
        if !moves.is_empty() {
            self.submit(moves);
        }
    }

    /// Up to where the partition's records need not be kept; none when its log start stays.
    fn point(&self, partition: TopicIdPartition, kept: Retention) -> Option<i64> {
        let bounds = &self.view.slot(partition)?.newest().bounds;
        let (start, end) = (bounds.log_start_offset, bounds.high_watermark);
        if start >= end {
            return None;
        }
        let point = self.view.reader().retention_point(partition, start, end, kept);
        let point = point.inspect_err(|error| {
            tracing::warn!(%error, topic_id = %partition.topic_id, partition = partition.partition, "retention waits");
        });
        point.ok().filter(|point| *point > start)
    }

    /// Nobody waits for the answer: what was not decided is found again at the next look.
    fn submit(&self, moves: Vec<(TopicIdPartition, i64)>) {
        let (count, bytes) = (moves.len(), moves.len() * size_of::<(TopicIdPartition, i64)>());
        match self.shard.submit(&Origin::default(), CommandBody::MoveLogStarts(moves), bytes, None) {
            Ok(answer) => {
                drop(answer);
                self.metrics.log.log_starts_moved.add(count as u64);
                tracing::debug!(partitions = count, "log starts move by retention");
            }
            Err(closed) => tracing::debug!(%closed, "retention waits for the next start"),
        }
    }

    /// Drops and rewrites files until there is nothing more to do.
    fn tidy(&mut self) -> Result<(), Ended> {
        let horizon = match self.snapshots.horizon() {
            Ok(horizon) => horizon,
            Err(error) => {
                tracing::warn!(%error, "files are not tidied: the snapshots cannot be read");
                return Ok(());
            }
        };
        loop {
            let published = Published { image: self.view.image(), view: &self.view };
            let now = self.time.now_ms(&*self.clock);
            let bytes_per_second = published.image.config.log_cleaner_io_max_bytes_per_second;
            let mut throttle = Throttle::new(&*self.clock, &self.ends, bytes_per_second);
            let change = self.levels.run_once(horizon, now, &published, &mut |bytes| throttle.pace(bytes));
            let figures = self.levels.figures();
            self.metrics.log.settled_bytes.set(figures.bytes);
            self.metrics.log.garbage_bytes.set(figures.garbage_bytes);
            match change {
                Ok(Some(change)) => self.carry_out(Arc::new(change))?,
                Ok(None) => {
                    self.wish_for_snapshot(figures.waiting_files, figures.waiting_bytes);
                    return Ok(());
                }
                Err(LevelsError::Ended) => return Err(Ended),
                Err(error) => {
                    tracing::warn!(%error, "files could not be tidied; it is tried again");
                    return Ok(());
                }
            }
        }
    }

    /// When much waits to be dropped until no start needs it for replay, a snapshot is worth it. Two are needed.
    fn wish_for_snapshot(&mut self, files: u64, bytes: u64) {
        let is_worth_it = files >= SNAPSHOT_WISH_FILES && bytes >= self.metrics.log.snapshot_bytes.get();
        let now = self.clock.monotonic();
        let is_early = self.wished.is_some_and(|wished| now.saturating_sub(wished) < SNAPSHOT_WISH_INTERVAL);
        if is_worth_it && !is_early {
            self.wished = Some(now);
            self.desk.ask_snapshot();
        }
    }

    /// The change goes into the log; when it is durable the old files go.
    pub(super) fn carry_out(&self, change: Arc<FilesChange>) -> Result<(), Ended> {
        let (done, durable) = sync_channel(1);
        if !self.queue.offer(ToLog::Files(change.clone(), done)) || durable.recv().is_err() {
            return Err(Ended);
        }
        self.levels.unlink(&change);
        self.metrics.log.rewritten_bytes.add(change.bytes_written());
        self.metrics.log.files_removed.add(change.removed() as u64);
        tracing::info!(
            removed = change.removed(),
            bytes_written = change.bytes_written(),
            "the log's files have changed"
        );
        Ok(())
    }
}

/// What a topic keeps; none when it keeps everything.
fn kept(config: &TopicConfig, now_ms: i64) -> Option<Retention> {
    let kept = Retention {
        from_timestamp: (config.retention_ms >= 0).then(|| now_ms.saturating_sub(config.retention_ms)),
        bytes: u64::try_from(config.retention_bytes).ok(),
    };
    (config.delete && kept != Retention::default()).then_some(kept)
}

/// What is alive by what is published.
struct Published<'a> {
    image: Arc<Image>,
    view: &'a View,
}

impl Alive for Published<'_> {
    fn log_start_offset(&self, partition: &TopicIdPartition) -> Option<i64> {
        Some(self.view.slot(*partition)?.newest().bounds.log_start_offset)
    }

    /// Compacted and internal topics, then those without a limit, then by the power of two of the time they keep.
    fn class(&self, partition: &TopicIdPartition) -> u64 {
        if *partition == CONTROL_PARTITION {
            return 0;
        }
        match self.image.topic_by_id(partition.topic_id) {
            Some(topic) if topic.config.delete && !topic.is_internal() => {
                u64::try_from(topic.config.retention_ms).map_or(1, |ms| 2 + u64::from(ms.max(1).ilog2()))
            }
            _ => 0,
        }
    }
}
