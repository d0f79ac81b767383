//! The log thread: collects what the shard decided while the previous frame synced, writes it as one frame,
//! syncs, publishes, releases answers.
//!
//! One frame is in flight. If a write fails or its outcome is unknown, the thread ends and leaves everything
//! that was not durable to the owner, which reloads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::Duration;

use ottla_core::cluster::Image;
use ottla_core::decision::{Bounds, Position, ShardTime};
use ottla_core::shard::Snapshot;
use ottla_env::clock::Clock;
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::{AppendError, FilesChange, LogWriter, SnapshotInfo};

use super::log_queue::{Decided, LogQueue, Pending, ToLog};
use super::snapshots::SnapshotJob;
use super::view::View;
use crate::limits::FRAME_BYTES;
use crate::metrics::Metrics;
use crate::metrics::health::Status;

/// What the log thread and the owner both look at.
#[derive(Default)]
pub struct LogProgress {
    /// Newest durable position.
    pub durable: AtomicU64,
    /// Bytes of frames written since the last snapshot was begun.
    pub bytes_since_snapshot: AtomicU64,
}

impl LogProgress {
    /// Whether a position is durable.
    pub fn is_durable(&self, position: Position) -> bool {
        self.durable.load(Ordering::Acquire) >= position.0
    }
}

/// The thread's state.
pub struct LogThread {
    /// From the owner.
    pub queue: Arc<LogQueue>,
    /// The log.
    pub writer: LogWriter,
    /// Where frames become visible.
    pub view: Arc<View>,
    /// Shared figures.
    pub progress: Arc<LogProgress>,
    /// Where snapshots of durable states go.
    pub snapshots: SyncSender<SnapshotJob>,
    /// Ends when the snapshot thread has: a snapshot is only good while its log is open.
    pub snapshots_done: Receiver<()>,
    /// Held as long as the log is open: the thread that tidies the files ends with it.
    pub log_lives: SyncSender<()>,
    /// Tells the helper thread that a file may be wanted or was sealed.
    pub written: SyncSender<()>,
    /// Epoch of this life of the log.
    pub epoch: i32,
    /// Time of the last frame.
    pub last_time: ShardTime,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Measures syncs.
    pub clock: Arc<dyn Clock>,
    /// Called when the log has died, so that the owner looks.
    pub on_failure: Box<dyn Fn() + Send>,
}

/// What is left when the thread ends: answers that were never released.
#[derive(Default)]
pub struct Remains {
    /// Unreleased answers.
    pub pending: Vec<Pending>,
    /// After a failure: up to where the log is known to be durable; nothing behind it is believed.
    pub durable_end: Option<ottla_storage::DurableEnd>,
}

/// A change of the files, and who waits for it.
type ChangeOfFiles = (Arc<FilesChange>, SyncSender<()>);

/// A frame being collected.
#[derive(Default)]
struct Draft {
    entries: Vec<Entry>,
    bounds: BTreeMap<TopicIdPartition, Option<Bounds>>,
    image: Option<Arc<Image>>,
    position: Position,
    time: ShardTime,
    bytes: usize,
}

impl Draft {
    fn add(&mut self, decided: Decided) {
        self.position = decided.position;
        self.time = decided.time;
        self.bytes += decided.bytes;
        if self.entries.is_empty() {
            self.entries = decided.entries;
        } else {
            self.entries.extend(decided.entries);
        }
        self.bounds.extend(decided.bounds);
        self.image = decided.image.or(self.image.take());
    }
}

impl LogThread {
    /// Runs until the queue is closed and drained, or the log dies.
    pub fn run(mut self) -> Remains {
        let mut waiting: BTreeMap<Position, Vec<Pending>> = BTreeMap::new();
        loop {
            let items = self.queue.take(FRAME_BYTES);
            if items.is_empty() {
                self.close();
                return Remains { pending: waiting.into_values().flatten().collect(), durable_end: None };
            }
            let (mut draft, mut snapshot, mut changes) = (Draft::default(), None, Vec::new());
            let mut rolls = Vec::new();
            for item in items {
                match item {
                    ToLog::Decision(decided) => draft.add(decided),
                    ToLog::Answer(pending) => waiting.entry(pending.rests_on).or_default().push(pending),
                    ToLog::Snapshot(state, position, time) => snapshot = Some((state, position, time)),
                    ToLog::Files(change, done) => changes.push((change, done)),
                    ToLog::Roll(done) => rolls.push(done),
                }
            }
            let written = if draft.entries.is_empty() { Ok(()) } else { self.write(draft) };
            let written = written.and_then(|()| self.change_files(changes)).and_then(|()| self.roll(rolls));
            if let Err(error) = written {
                tracing::error!(%error, "log write failed; the shard is rebuilt from what is durable");
                self.metrics.log.failures.add(1);
                self.metrics.health.set(
                    Status::Recovering { reason: format!("a log write failed: {error}") },
                    self.clock.monotonic(),
                );
                self.queue.fail();
                (self.on_failure)();
                let durable_end = Some(self.writer.durable_end());
                return Remains { pending: waiting.into_values().flatten().collect(), durable_end };
            }
            self.release(&mut waiting);
            self.view.wake();
            if let Some(snapshot) = snapshot {
                self.hand_over(snapshot);
            }
        }
    }

    /// The queue is closed: the log ends in order, which lets the next start tell damage from a torn write.
    fn close(self) {
        drop(self.snapshots);
        drop(self.log_lives);
        if self.snapshots_done.recv().is_ok() {
            tracing::error!("the snapshot thread said something; it should only end");
        }
        if let Err(error) = self.writer.close(self.last_time.0) {
            tracing::warn!(%error, "the log was not closed in order; the next start will check its end");
        }
    }

    fn write(&mut self, draft: Draft) -> Result<(), AppendError> {
        let began = self.clock.monotonic();
        let sequence = self.writer.append(draft.time.0, draft.position.0, &draft.entries)?;
        self.count(&draft.entries, self.clock.monotonic().saturating_sub(began));
        self.last_time = draft.time;
        self.view.publish(sequence.0, draft.bounds.into_iter().collect(), draft.image);
        self.progress.durable.store(draft.position.0, Ordering::Release);
        self.progress.bytes_since_snapshot.fetch_add(draft.bytes as u64 + 512, Ordering::Relaxed);
        if let Err(TrySendError::Disconnected(())) = self.written.try_send(()) {
            tracing::error!("the helper that prepares log files is gone; files grow instead");
        }
        Ok(())
    }

    /// Changes of the files, each a frame of its own. Readers see nothing of it.
    fn change_files(&mut self, changes: Vec<ChangeOfFiles>) -> Result<(), AppendError> {
        for (change, done) in changes {
            self.writer.append_files(self.last_time.0, &change)?;
            self.metrics.log.written_bytes.set(self.writer.bytes_written());
            if done.try_send(()).is_err() {
                tracing::debug!("nobody unlinks the files of a change; the next start does");
            }
        }
        Ok(())
    }

    /// Seals the file in use for those who wait for it. Without room for the next one it goes on as it is.
    fn roll(&mut self, rolls: Vec<SyncSender<()>>) -> Result<(), AppendError> {
        if rolls.is_empty() {
            return Ok(());
        }
        match self.writer.roll() {
            Ok(()) => {
                for done in rolls {
                    if done.try_send(()).is_err() {
                        tracing::debug!("nobody waits any more for a file to be sealed");
                    }
                }
            }
            Err(AppendError::NotWritten(error)) => {
                tracing::warn!(%error, "the file in use is not sealed early")
            }
            Err(error @ AppendError::Unknown(_)) => return Err(error),
        }
        if let Err(TrySendError::Disconnected(())) = self.written.try_send(()) {
            tracing::error!("the helper that prepares log files is gone; files grow instead");
        }
        Ok(())
    }

    /// What has become durable: a few additions for each batch, on cells that nobody else writes.
    fn count(&self, entries: &[Entry], took: Duration) {
        let log = &self.metrics.log;
        log.frames.add(1);
        log.written_bytes.set(self.writer.bytes_written());
        log.frame_batches.observe(entries.len() as u64);
        log.flush_time.observe_time(took);
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Batch) {
            let cells = self.metrics.topics.of(entry.partition.topic_id);
            cells.bytes_in.add(entry.batch_bytes() as u64);
            if !entry.header.is_control() {
                cells.messages_in.add(u64::try_from(entry.header.records_count).unwrap_or(0));
            }
        }
    }

    fn release(&self, waiting: &mut BTreeMap<Position, Vec<Pending>>) {
        let durable = Position(self.progress.durable.load(Ordering::Acquire));
        let now = self.clock.monotonic();
        while let Some(first) = waiting.first_entry().filter(|entry| *entry.key() <= durable) {
            for pending in first.remove() {
                self.metrics.log.sync_wait.observe_time(now.saturating_sub(pending.decided));
                pending.request.answer(pending.reply);
            }
        }
    }

    /// Everything before the snapshot is durable now, so its frame sequence is known and final.
    fn hand_over(&mut self, (state, position, time): (Snapshot, Position, ShardTime)) {
        // What the log writes of its own accord behind it is not older than it.
        self.last_time = self.last_time.max(time);
        let info = SnapshotInfo {
            frame_sequence: self.writer.durable_sequence(),
            epoch: self.epoch,
            position: position.0,
            shard_time: time.0,
        };
        let job = SnapshotJob { state, info };
        if self.snapshots.try_send(job).is_err() {
            tracing::debug!("a snapshot is still being written; this one is skipped");
        }
    }
}
