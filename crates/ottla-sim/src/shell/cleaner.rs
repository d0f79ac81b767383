//! The cleaner in miniature: what the broker's files thread does around `ottla_broker::shard::cleaning`, one step at a
//! time, so that everything else, and every crash, comes in between.

use std::collections::BTreeSet;

use ottla_broker::shard::cleaning::{self, Cleaned, Compacted, Job, Look, Means};
use ottla_core::clean::{Cleaned as Found, Plan};
use ottla_core::command::{Command, CommandBody};
use ottla_core::decision::Position;
use ottla_env::disk::sim::SimDisk;
use ottla_env::rng::SeededRng;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::{AppendError, CleanError, FilesChange};

use super::{LogStep, Shell};
use crate::history::History;
use crate::options::Bug;

/// Memory for the keys of all passes made together, bytes.
const KEY_BYTES: usize = 1 << 20;

/// How far the passes have come.
pub(crate) enum Cleaning {
    /// What is known first is being written down.
    Announcing(FilesChange, Vec<(TopicIdPartition, Found)>, Position),
    /// What was found is being written down.
    Finding(Position),
    /// `Bug::CleanFoundFirst`: the files come last.
    FilesLast(FilesChange, Position),
}

impl Shell {
    /// Whether a pass is on its way: nobody else changes files meanwhile.
    pub(crate) fn is_cleaning(&self) -> bool {
        self.cleaning.is_some()
    }

    /// One step of the cleaner.
    pub(crate) fn clean_step(
        &mut self,
        disk: &SimDisk,
        rng: &mut SeededRng,
        history: &mut History,
    ) -> LogStep {
        if self.in_flight.is_some() {
            return LogStep::Nothing;
        }
        match self.cleaning.take() {
            None => self.begin_cleaning(disk, rng, history),
            Some(Cleaning::Announcing(change, found, position)) if self.durable >= position => {
                self.change_files(change, found, history)
            }
            Some(Cleaning::FilesLast(change, position)) if self.durable >= position => {
                self.change_files(change, Vec::new(), history)
            }
            Some(Cleaning::Finding(position)) if self.durable >= position => {
                history.counts.passes_finished += 1;
                LogStep::Nothing
            }
            waiting => {
                self.cleaning = waiting;
                LogStep::Nothing
            }
        }
    }

    fn begin_cleaning(&mut self, disk: &SimDisk, rng: &mut SeededRng, history: &mut History) -> LogStep {
        if !self.is_settled() {
            return LogStep::Nothing;
        }
        let now = self.clock.now().0;
        let (mut due, mut in_use) = (Vec::new(), false);
        for compacted in Compacted::all(&self.core.image()) {
            let Some(bounds) = self.published.get(&compacted.partition) else { continue };
            match cleaning::look(&self.log.reader, &compacted, bounds, now).map(|looked| looked.look) {
                Ok(Look::Due(plan)) => due.push((compacted, plan)),
                Ok(Look::InUse) => in_use = true,
                Ok(Look::Clean) | Err(_) => {}
            }
        }
        if due.is_empty() && in_use {
            return match self.log.writer.roll() {
                Ok(()) | Err(AppendError::NotWritten(_)) => LogStep::Nothing,
                Err(AppendError::Unknown(_)) => LogStep::Dead,
            };
        }
        let mut jobs = self.jobs(due);
        if jobs.is_empty() {
            return LogStep::Nothing;
        }
        let bug = self.setup.bug;
        let ahead = if bug == Some(Bug::CleanTooEarly) { 1_000_000_000 } else { 0 };
        disk.set_skip_syncs(bug == Some(Bug::CleanUnsynced) || bug == Some(Bug::SkipSync));
        let means = Means { key_bytes_max: KEY_BYTES, rng, pace: &mut |_| true };
        let made = cleaning::clean(&self.log.reader, &mut self.log.levels, &mut jobs, now + ahead, means);
        disk.set_skip_syncs(bug == Some(Bug::SkipSync));
        match made {
            Ok(Some(cleaned)) => self.announce(cleaned, history),
            Ok(None) => LogStep::Nothing,
            Err(cleaning::CleaningError::Files(CleanError::Ended)) => LogStep::Dead,
            Err(_) => LogStep::Nothing,
        }
    }

    fn jobs(&mut self, due: Vec<(Compacted, Plan)>) -> Vec<Job> {
        let wanted: BTreeSet<TopicIdPartition> =
            due.iter().map(|(compacted, _)| compacted.partition).collect();
        let mut inputs = self.core.snapshot().clean_inputs(&wanted);
        let bug = self.setup.bug;
        let job = |(compacted, plan): (Compacted, Plan)| {
            let mut input = inputs.remove(&compacted.partition)?;
            match bug {
                Some(Bug::CleanForgetsProducers) => input.last_batches.clear(),
                Some(Bug::CleanForgetsAborted) => input.aborted = Default::default(),
                _ => {}
            }
            if bug == Some(Bug::CleanPastStable) {
                let end = self.published.get(&compacted.partition)?.high_watermark;
                input.last_stable_offset = end;
                return Some(Job {
                    plan: Plan { from: input.dirty_offset(), limit: end, ..plan },
                    compacted,
                    input,
                });
            }
            Some(Job::new(compacted, input, plan))
        };
        due.into_iter().filter_map(job).collect()
    }

    /// The new files are durable; the first record.
    fn announce(&mut self, cleaned: Cleaned, history: &mut History) -> LogStep {
        let Cleaned { announced, change, found, reports } = cleaned;
        history.counts.passes += reports.len() as u64;
        history.counts.records_compacted +=
            reports.iter().map(|(_, _, report)| report.records_removed).sum::<u64>();
        if self.setup.bug == Some(Bug::CleanFoundFirst) {
            let position = self.write_down(found, history);
            self.cleaning = Some(Cleaning::FilesLast(change, position));
            return LogStep::Written;
        }
        let announced = if self.setup.bug == Some(Bug::CleanUnannounced) { Vec::new() } else { announced };
        let position = self.write_down(announced, history);
        self.cleaning = Some(Cleaning::Announcing(change, found, position));
        LogStep::Written
    }

    fn write_down(&mut self, passes: Vec<(TopicIdPartition, Found)>, history: &mut History) -> Position {
        if !passes.is_empty() {
            self.decide(Command { context: Default::default(), body: CommandBody::Cleaned(passes) }, history);
        }
        self.core.position()
    }

    /// The files become live; the last record.
    fn change_files(
        &mut self,
        change: FilesChange,
        found: Vec<(TopicIdPartition, Found)>,
        history: &mut History,
    ) -> LogStep {
        match self.log.writer.append_files(self.log_ms, &change) {
            Ok(_) => {}
            Err(AppendError::NotWritten(_)) => return LogStep::Nothing, // the passes are made again
            Err(AppendError::Unknown(_)) => return LogStep::Dead,
        }
        self.log.levels.unlink(&change);
        history.counts.files_changed += 1;
        let position = self.write_down(found, history);
        self.cleaning = Some(Cleaning::Finding(position));
        LogStep::Written
    }
}
