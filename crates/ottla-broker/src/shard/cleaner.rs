//! The files thread's share of compaction: when it is looked for, what the owner and the log are asked, how fast it
//! goes. What is due and what is done about it is in `cleaning.rs`.
//!
//! A pass needs the producers' last batches. They come with a copy of the whole state, which costs the owner a few
//! reference counts; it is used once everything in it is durable.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use ottla_core::clean::{Cleaned as Found, Plan};
use ottla_core::cluster::Image;
use ottla_core::command::CommandBody;
use ottla_core::shard::Snapshot;
use ottla_env::clock::Clock;
use ottla_env::rng::OsRng;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::{CleanError, ReadError};
use tokio::sync::oneshot::error::TryRecvError;

use super::Origin;
use super::cleaning::{self, Cleaned, CleaningError, Compacted, Job, Look, Means};
use super::files::{Ended, FilesThread};
use super::log_queue::ToLog;
use crate::limits::{CLEANING_ROUNDS, CLEANING_STEP, ROLL_PAUSE_MIN};

/// What the files thread remembers of compaction.
#[derive(Default)]
pub(super) struct CleanerState {
    /// When a file was last sealed for it, by the monotonic clock.
    rolled: Option<Duration>,
    /// Passes that have failed together are made one by one.
    one_by_one: bool,
    /// Partitions that cannot be read; a start looks again.
    uncleanable: std::collections::BTreeSet<TopicIdPartition>,
}

impl FilesThread {
    /// Compacts what is due. Nothing is left to do, or it is tried again later.
    pub(super) fn clean(&mut self) -> Result<(), Ended> {
        let image = self.view.image();
        if !image.config.log_cleaner_enable {
            return Ok(());
        }
        for _ in 0..CLEANING_ROUNDS {
            let (due, in_use) = self.look_for_due(&image);
            if !due.is_empty() {
                if !self.clean_due(&image, due)? {
                    return Ok(());
                }
            } else if !in_use || !self.roll(&image)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// What is due, the dirtiest first, and whether something waits for the file in use to be sealed.
    fn look_for_due(&mut self, image: &Image) -> (Vec<(Compacted, Plan)>, bool) {
        let now = self.time.now_ms(&*self.clock);
        let reader = self.view.reader();
        let (mut due, mut in_use, mut dirtiest) = (Vec::new(), false, 0);
        for compacted in Compacted::all(image) {
            let partition = compacted.partition;
            if self.cleaner.uncleanable.contains(&partition) {
                continue;
            }
            let Some(slot) = self.view.slot(partition) else { continue };
            let looked = match cleaning::look(&reader, &compacted, &slot.newest().bounds, now) {
                Ok(looked) => looked,
                Err(error) => {
                    self.give_up_on(partition, &error);
                    continue;
                }
            };
            dirtiest = dirtiest.max(looked.dirty_bytes * 100 / looked.bytes.max(1));
            match looked.look {
                Look::Clean => {}
                Look::InUse => in_use = true,
                Look::Due(plan) => due.push((compacted, plan)),
            }
        }
        let cells = &self.metrics.cleaner;
        cells.max_dirty_percent.set(dirtiest);
        cells.uncleanable.set(self.cleaner.uncleanable.len() as u64);
        due.sort_by(|one, other| other.1.dirty_ratio.total_cmp(&one.1.dirty_ratio));
        (due, in_use)
    }

    /// What cannot be read is left alone, unless it is only for now.
    fn give_up_on(&mut self, partition: TopicIdPartition, error: &ReadError) {
        let id = partition.topic_id;
        tracing::error!(%error, topic_id = %id, partition = partition.partition, "a partition is not compacted");
        if matches!(error, ReadError::Corrupt { .. }) {
            self.cleaner.uncleanable.insert(partition);
        }
    }

    /// Makes the passes, as many together as there is memory for. False when none was made, or something failed.
    fn clean_due(&mut self, image: &Image, due: Vec<(Compacted, Plan)>) -> Result<bool, Ended> {
        let wanted = due.iter().map(|(compacted, _)| compacted.partition).collect();
        let mut inputs = self.durable_state()?.clean_inputs(&wanted);
        let jobs = due.into_iter().filter_map(|(compacted, plan)| {
            Some(Job::new(compacted, inputs.remove(&compacted.partition)?, plan))
        });
        let mut jobs: Vec<Job> = jobs.collect();
        let (mut made, mut is_well) = (false, true);
        while !jobs.is_empty() {
            let before = jobs.iter().map(|job| job.compacted.partition).collect::<Vec<_>>();
            match self.make_passes(image, &mut jobs) {
                Ok(Some(cleaned)) => {
                    self.finish_passes(image, cleaned)?;
                    made = true;
                }
                Ok(None) => {}
                Err(CleaningError::Files(CleanError::Ended | CleanError::Stopped)) => return Err(Ended),
                Err(CleaningError::Read { partition, source }) => {
                    self.give_up_on(partition, &source);
                    is_well = false;
                }
                Err(CleaningError::Files(error)) => {
                    tracing::warn!(%error, "compaction has failed; it is tried again");
                    let taken = &before[..before.len() - jobs.len()];
                    if let (CleanError::Damaged { .. }, [alone]) = (&error, taken) {
                        self.cleaner.uncleanable.insert(*alone);
                    }
                    // Together they have failed: next time one by one, so that one does not hold up the others.
                    self.cleaner.one_by_one = taken.len() > 1;
                    return Ok(false);
                }
            }
        }
        self.cleaner.one_by_one = false;
        Ok(made && is_well)
    }

    fn make_passes(&mut self, image: &Image, jobs: &mut Vec<Job>) -> Result<Option<Cleaned>, CleaningError> {
        let config = &image.config;
        let now = self.time.now_ms(&*self.clock);
        let reader = self.view.reader();
        let buffer = usize::try_from(config.log_cleaner_dedupe_buffer_bytes).unwrap_or(usize::MAX);
        let bytes_per_second = config.log_cleaner_io_max_bytes_per_second;
        let mut throttle = Throttle::new(&*self.clock, &self.ends, bytes_per_second);
        let mut later = if self.cleaner.one_by_one { jobs.split_off(1) } else { Vec::new() };
        let pace = &mut |bytes| throttle.pace(bytes);
        let means = Means { key_bytes_max: buffer, rng: &mut OsRng, pace };
        let made = cleaning::clean(&reader, &mut self.levels, jobs, now, means);
        jobs.append(&mut later);
        made
    }

    /// Writes down what must be known first, makes the files live, writes down the rest.
    fn finish_passes(&mut self, image: &Image, cleaned: Cleaned) -> Result<(), Ended> {
        let Cleaned { announced, change, found, reports } = cleaned;
        self.write_down(announced)?;
        self.carry_out(Arc::new(change))?;
        self.write_down(found)?;
        let cells = &self.metrics.cleaner;
        for (partition, plan, report) in reports {
            cells.passes.add(1);
            cells.bytes_before.add(report.bytes_before);
            cells.bytes_after.add(report.bytes_after);
            cells.records_removed.add(report.records_removed);
            cells.unreadable_batches.add(report.unreadable);
            let topic = image.topic_by_id(partition.topic_id).map_or("the control log", |topic| &topic.name);
            tracing::info!(
                topic,
                partition = partition.partition,
                from = plan.from,
                to = plan.limit,
                why = ?plan.why,
                dirty_ratio = plan.dirty_ratio,
                bytes_before = report.bytes_before,
                bytes_after = report.bytes_after,
                records_removed = report.records_removed,
                unreadable_batches = report.unreadable,
                "a partition was compacted"
            );
        }
        Ok(())
    }

    /// Has the owner write down passes, and waits until that is durable.
    fn write_down(&self, passes: Vec<(TopicIdPartition, Found)>) -> Result<(), Ended> {
        if passes.is_empty() {
            return Ok(());
        }
        let bytes = passes.iter().map(|(_, found)| 128 + 8 * found.spent.len()).sum();
        let answer = self.shard.submit(&Origin::default(), CommandBody::Cleaned(passes), bytes, None);
        let mut answer = answer.map_err(|_| Ended)?;
        self.wait(|| match answer.try_recv() {
            Ok(_) => Some(Ok(())),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(Ended)),
        })?
    }

    /// A copy of the state, all of which is durable.
    fn durable_state(&self) -> Result<Snapshot, Ended> {
        let asked = self.desk.ask_state();
        let (state, position) = self.wait(|| asked.try_recv().ok())?;
        self.wait(|| self.progress.is_durable(position).then_some(()))?;
        Ok(state)
    }

    /// Seals the file in use, unless that was done a moment ago.
    fn roll(&mut self, image: &Image) -> Result<bool, Ended> {
        let now = self.clock.monotonic();
        let pause = backoff(image).max(ROLL_PAUSE_MIN);
        if self.cleaner.rolled.is_some_and(|rolled| now.saturating_sub(rolled) < pause) {
            return Ok(false);
        }
        self.cleaner.rolled = Some(now);
        let (done, sealed) = sync_channel(1);
        if !self.queue.offer(ToLog::Roll(done)) {
            return Err(Ended);
        }
        // The sender is dropped when there is no room for another file: later, perhaps.
        let is_sealed = self.wait(|| match sealed.try_recv() {
            Ok(()) => Some(true),
            Err(std::sync::mpsc::TryRecvError::Empty) => None,
            Err(std::sync::mpsc::TryRecvError::Disconnected) => Some(false),
        })?;
        self.metrics.cleaner.files_sealed.add(u64::from(is_sealed));
        Ok(is_sealed)
    }

    /// Asks again and again, until there is an answer or the log ends.
    fn wait<T>(&self, mut answer: impl FnMut() -> Option<T>) -> Result<T, Ended> {
        loop {
            if let Some(answer) = answer() {
                return Ok(answer);
            }
            match self.ends.recv_timeout(CLEANING_STEP) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Err(Ended),
            }
        }
    }
}

/// `log.cleaner.backoff.ms`.
pub(super) fn backoff(image: &Image) -> Duration {
    Duration::from_millis(u64::try_from(image.config.log_cleaner_backoff_ms).unwrap_or(0))
}

/// Keeps to `log.cleaner.io.max.bytes.per.second`.
pub(super) struct Throttle<'a> {
    clock: &'a dyn Clock,
    ends: &'a Receiver<()>,
    began: Duration,
    bytes: u64,
    bytes_per_second: f64,
}

impl<'a> Throttle<'a> {
    /// Counts from now on.
    pub(super) fn new(clock: &'a dyn Clock, ends: &'a Receiver<()>, bytes_per_second: f64) -> Self {
        Self { clock, ends, began: clock.monotonic(), bytes: 0, bytes_per_second }
    }

    /// False when the log has ended meanwhile.
    pub(super) fn pace(&mut self, bytes: u64) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let wanted = Duration::try_from_secs_f64(self.bytes as f64 / self.bytes_per_second.max(1.0));
        loop {
            let passed = self.clock.monotonic().saturating_sub(self.began);
            let ahead = wanted.clone().unwrap_or(Duration::MAX).saturating_sub(passed);
            if ahead < CLEANING_STEP {
                return true;
            }
            match self.ends.recv_timeout(ahead.min(Duration::from_secs(1))) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}
