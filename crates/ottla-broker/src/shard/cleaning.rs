//! Compaction, from a look at a partition to the change that makes the cleaned files live: joins the rules of
//! `ottla_core::clean` to the files of `ottla_storage`.
//!
//! Place in the walk: beside it. The files thread (`cleaner.rs`) and the simulator call [`look`] for every compacted
//! partition, then [`clean`] for those that are due, and carry out what it made in this order, each step durable
//! before the next: [`Cleaned::announced`] (`CommandBody::Cleaned`), the change of files, [`Cleaned::found`]
//! (`CommandBody::Cleaned`). A crash in between loses work, never truth.
//!
//! No thread, no clock, no waiting: time, randomness and pace are arguments. All that is looked at is published and
//! durable, the state of producers included.

use std::ops::ControlFlow;

use bytes::Bytes;
use ottla_core::clean::{
    self, CleanedState, Extent, Indexed, Indexing, Input, KeyMap, Pass, PassReport, Plan, Rules, Verdict, Why,
};
use ottla_core::cluster::config::TopicConfig;
use ottla_core::cluster::{CONTROL_PARTITION, Image};
use ottla_core::decision::Bounds;
use ottla_env::rng::Rng;
use ottla_protocol::batch::BatchHeader;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::{
    BatchFilter, CleanError, Cleaning, Fate, FilesChange, Levels, LogReader, ReadError, Stretch,
};

use crate::limits::{
    CLEANED_AT_ONCE, DECOMPRESSED_BYTES_MAX, INTERNAL_SEGMENT_BYTES, INTERNAL_TOMBSTONES_MS,
    KEY_MAP_BYTES_MIN,
};

/// When what a partition has in the file in use is enough to be compacted: Kafka's roll of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `segment.bytes`: it is so much.
    pub bytes: u64,
    /// `segment.ms`: or so old, milliseconds.
    pub ms: i64,
}

/// A partition that is compacted, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compacted {
    /// Which.
    pub partition: TopicIdPartition,
    /// By which rules.
    pub rules: Rules,
    /// When it leaves the file in use.
    pub segment: Segment,
}

impl Compacted {
    /// Of a topic of users; none when it is not compacted.
    pub fn of_topic(partition: TopicIdPartition, config: &TopicConfig) -> Option<Self> {
        let rules = Rules::of(config, DECOMPRESSED_BYTES_MAX)?;
        let bytes = u64::try_from(config.segment_bytes).unwrap_or(0);
        Some(Self { partition, rules, segment: Segment { bytes, ms: config.segment_ms } })
    }

    /// Of an internal topic or of the control log. Replay never reads what is cleaned and nobody restores a table
    /// from it, so tombstones stay only for as long as a tool may be reading.
    pub fn internal(partition: TopicIdPartition, config: &TopicConfig) -> Self {
        let rules = Rules {
            delete_retention_ms: config.delete_retention_ms.min(INTERNAL_TOMBSTONES_MS),
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            min_cleanable_dirty_ratio: config.min_cleanable_dirty_ratio.min(0.5),
            decompressed_bytes_max: DECOMPRESSED_BYTES_MAX,
        };
        Self { partition, rules, segment: Segment { bytes: INTERNAL_SEGMENT_BYTES, ms: i64::MAX } }
    }

    /// All that are compacted.
    pub fn all(image: &Image) -> Vec<Self> {
        let mut all = vec![Self::internal(CONTROL_PARTITION, &TopicConfig::default())];
        for topic in image.topics() {
            let of = |partition| match topic.is_internal() {
                true => Some(Self::internal(partition, &topic.config)),
                false => Self::of_topic(partition, &topic.config),
            };
            all.extend(topic.partitions().filter_map(of));
        }
        all
    }
}

/// What a look at a partition says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Look {
    /// There is nothing to do.
    Clean,
    /// It is worth a pass.
    Due(Plan),
    /// It would be, were its newest batches not in the file in use: that file is to be sealed.
    InUse,
}

/// A look, and what was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Looked {
    /// What it says.
    pub look: Look,
    /// Bytes of the partition.
    pub bytes: u64,
    /// Of them, those that no pass has gone through.
    pub dirty_bytes: u64,
}

/// Looks at a partition by its published bounds. May block on the disk, to read footers.
pub fn look(
    reader: &LogReader,
    compacted: &Compacted,
    bounds: &Bounds,
    now_ms: i64,
) -> Result<Looked, ReadError> {
    let input = Input {
        log_start_offset: bounds.log_start_offset,
        last_stable_offset: bounds.last_stable_offset,
        cleaned: bounds.cleaned,
        aborted: bounds.aborted.clone(),
        last_batches: Default::default(),
    };
    let (dirty, rules) = (input.dirty_offset(), &compacted.rules);
    let horizon = bounds.cleaned.delete_horizon_ms;
    if dirty >= bounds.high_watermark && (horizon < 0 || now_ms < horizon) {
        return Ok(Looked { look: Look::Clean, bytes: 0, dirty_bytes: 0 });
    }
    // What may be divided is looked at closely: by age, or by the last stable offset.
    let fine_from = if rules.min_compaction_lag_ms > 0 { dirty } else { input.last_stable_offset };
    let stretches = reader.stretches(compacted.partition, input.log_start_offset, fine_from)?;
    let sum = |from: i64| {
        stretches.iter().filter(|stretch| stretch.last_offset >= from).map(|stretch| stretch.bytes).sum()
    };
    let sealed = stretches.iter().filter(|stretch| stretch.is_sealed);
    let limit = sealed.clone().next_back().map_or(0, |stretch| stretch.last_offset + 1);
    let look = match clean::plan(rules, &input, limit, sealed.map(extent), now_ms) {
        Some(plan) => Look::Due(plan),
        None if is_due_in_use(compacted, &input, &stretches, now_ms) => Look::InUse,
        None => Look::Clean,
    };
    Ok(Looked { look, bytes: sum(0), dirty_bytes: sum(dirty) })
}

fn extent(stretch: &Stretch) -> Extent {
    Extent {
        first_offset: stretch.first_offset,
        last_offset: stretch.last_offset,
        bytes: stretch.bytes,
        max_timestamp: stretch.max_timestamp,
    }
}

/// Whether a pass would be worth it if the file in use were sealed, and Kafka would have rolled the segment.
fn is_due_in_use(compacted: &Compacted, input: &Input, stretches: &[Stretch], now_ms: i64) -> bool {
    let stable = |stretch: &&Stretch| !stretch.is_sealed && stretch.first_offset < input.last_stable_offset;
    let in_use = stretches.iter().filter(stable);
    let bytes: u64 = in_use.clone().map(|stretch| stretch.bytes).sum();
    let Some(oldest) = in_use.map(|stretch| stretch.max_timestamp).min() else { return false };
    let Segment { bytes: bytes_max, ms } = compacted.segment;
    let is_rolled = bytes >= bytes_max || now_ms.saturating_sub(oldest) >= ms;
    match clean::plan(&compacted.rules, input, i64::MAX, stretches.iter().map(extent), now_ms) {
        Some(Plan { why: Why::CompactionLag, .. }) => true,
        Some(_) => is_rolled,
        None => false,
    }
}

/// A partition that is to be cleaned.
pub struct Job {
    /// Which, and how.
    pub compacted: Compacted,
    /// Its state, of one instant, which must be durable.
    pub input: Input,
    /// What [`look`] has said.
    pub plan: Plan,
}

impl Job {
    /// Of a partition that is due. `input` may be newer than what was looked at.
    pub fn new(compacted: Compacted, input: Input, plan: Plan) -> Self {
        let from = input.dirty_offset();
        let limit = plan.limit.min(input.last_stable_offset).max(from);
        Self { compacted, input, plan: Plan { from, limit, ..plan } }
    }
}

/// Passes that were made: the new files are durable, and not live yet.
pub struct Cleaned {
    /// To be written down first; may be empty.
    pub announced: Vec<(TopicIdPartition, clean::Cleaned)>,
    /// Makes the files live; to be appended to the log.
    pub change: FilesChange,
    /// To be written down when they are.
    pub found: Vec<(TopicIdPartition, clean::Cleaned)>,
    /// What was done, for people.
    pub reports: Vec<(TopicIdPartition, Plan, PassReport)>,
}

/// Why passes were not made. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum CleaningError {
    /// A partition cannot be read.
    #[error("partition {} of topic {}: {source}", partition.partition, partition.topic_id)]
    Read {
        /// Which.
        partition: TopicIdPartition,
        /// Why.
        source: ReadError,
    },
    /// The new files could not be written, or an old one is damaged.
    #[error(transparent)]
    Files(#[from] CleanError),
}

/// What a pass may cost.
pub struct Means<'a> {
    /// Memory for the offsets of keys, bytes.
    pub key_bytes_max: usize,
    /// Random numbers that clients do not know.
    pub rng: &'a mut dyn Rng,
    /// Told of bytes read and written, it takes its time; false: give up.
    pub pace: &'a mut dyn FnMut(u64) -> bool,
}

/// Makes the passes of as many jobs as there is memory for, at least one, and takes those out of the list. None when
/// nothing came of them.
///
/// # Errors
/// The jobs that were taken have failed together.
pub fn clean(
    reader: &LogReader,
    levels: &mut Levels,
    jobs: &mut Vec<Job>,
    now_ms: i64,
    means: Means<'_>,
) -> Result<Option<Cleaned>, CleaningError> {
    let Means { key_bytes_max, rng, pace } = means;
    let mut room = key_bytes_max;
    let mut filters: Vec<Filter> = Vec::new();
    while !jobs.is_empty() && filters.len() < CLEANED_AT_ONCE {
        if !filters.is_empty() && room < KEY_MAP_BYTES_MIN {
            break;
        }
        let job = jobs.remove(0);
        let mut seed = [0; 16];
        rng.fill(&mut seed);
        let (keys, end) = index_keys(reader, &job, seed, room, pace)?;
        room = room.saturating_sub(keys.table_bytes());
        if end > job.plan.from || job.plan.why == Why::DeleteHorizon {
            filters.push(Filter::new(job, keys, end, now_ms));
        }
    }
    let cleanings = filters.iter_mut().map(Filter::cleaning).collect();
    let Some(change) = levels.clean(cleanings, pace)? else { return Ok(None) };
    let (mut announced, mut found, mut reports) = (Vec::new(), Vec::new(), Vec::new());
    for Filter { partition, plan, before, pass, .. } in filters {
        let (cleaned, report) = pass.finish();
        announced.extend(cleaned.announced(before).map(|cleaned| (partition, cleaned)));
        found.push((partition, cleaned));
        reports.push((partition, plan, report));
    }
    Ok(Some(Cleaned { announced, change, found, reports }))
}

/// The last offset of every key in the uncleaned part, and where the pass ends.
fn index_keys(
    reader: &LogReader,
    job: &Job,
    seed: [u8; 16],
    room: usize,
    pace: &mut dyn FnMut(u64) -> bool,
) -> Result<(KeyMap, i64), CleaningError> {
    let Job { compacted: Compacted { partition, rules, .. }, input, plan } = job;
    let mut indexing = Indexing::new(rules, input, plan, seed, room);
    let mut is_stopped = false;
    let read = reader.for_each_batch(*partition, plan.from, plan.limit, &mut |header, tail| {
        is_stopped = !pace(header.batch_bytes() as u64);
        match indexing.add(header, tail) {
            Indexed::More if !is_stopped => ControlFlow::Continue(()),
            Indexed::More | Indexed::End => ControlFlow::Break(()),
        }
    });
    read.map_err(|source| CleaningError::Read { partition: *partition, source })?;
    if is_stopped {
        return Err(CleanError::Stopped.into());
    }
    Ok(indexing.finish())
}

/// A pass as storage sees it.
struct Filter {
    partition: TopicIdPartition,
    plan: Plan,
    before: CleanedState,
    log_start_offset: i64,
    pass: Pass<KeyMap>,
}

impl Filter {
    fn new(job: Job, keys: KeyMap, end: i64, now_ms: i64) -> Self {
        let Job { compacted: Compacted { partition, rules, .. }, input, plan } = job;
        let (before, log_start_offset) = (input.cleaned, input.log_start_offset);
        Self { partition, plan, before, log_start_offset, pass: Pass::new(rules, input, end, keys, now_ms) }
    }

    fn cleaning(&mut self) -> Cleaning<'_> {
        Cleaning {
            partition: self.partition,
            log_start_offset: self.log_start_offset,
            end: self.pass.end(),
            filter: self,
        }
    }
}

impl BatchFilter for Filter {
    fn filter(&mut self, header: &BatchHeader, tail: &Bytes) -> Fate {
        match self.pass.filter(header, tail) {
            Verdict::Keep => Fate::Keep,
            Verdict::Replace(header, tail) => Fate::Replace(header, tail),
            Verdict::Drop => Fate::Drop,
        }
    }
}

#[cfg(test)]
mod tests;
