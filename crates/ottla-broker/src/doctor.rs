//! The doctor: looks into a broker's folder without changing it, and says what a start would make of it.
//!
//! Two looks: at every byte (`ottla_storage::inspect`), then at a start as recovery does it, up to the point where it
//! would write, which also gives topics their names. Both go through a disk that refuses writes. A folder that a
//! broker holds is refused: it moves while it is read.
//!
//! [`repair`] is the one thing here that changes something, and only what `ottla_storage::repair` can make whole; the
//! old bytes stay in the folder. A copy of a folder that has lost something is accepted by it as it is, if a start on it
//! would work.

mod rebuild;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ottla_core::config::CoreConfig;
use ottla_core::decision::{Position, ShardTime};
use ottla_core::partition::Role;
use ottla_core::shard::{Restore, ShardState};
use ottla_env::disk::os::OsDisk;
use ottla_env::disk::read_only::ReadOnlyDisk;
use ottla_env::disk::{Disk, LockError, Origin};
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};
use ottla_storage::inspect::inspect;
use ottla_storage::{LogOptions, Nonces, OpenError, RecoveryReport};

pub use ottla_storage::inspect::{DamagedPlace, FileInspection, Footer, Inspection, OffsetRange};
pub use ottla_storage::repair::Repaired;

/// The one shard of a folder.
const SHARD_ID: u32 = 0;

/// What was found.
#[derive(Debug)]
pub struct Examination {
    /// Files, frames, snapshots and damage.
    pub inspection: Inspection,
    /// What a start would make of it.
    pub start: Start,
    /// Topics by id, as far as a start comes.
    pub topics: BTreeMap<Uuid, TopicSummary>,
    /// Bounds of each partition: log start offset, last stable offset, high watermark.
    pub bounds: BTreeMap<TopicIdPartition, (i64, i64, i64)>,
    /// Offsets that should be there, by those bounds, and are in no good batch. Only of topics without compaction, which
    /// leaves offsets out.
    pub lost: Vec<OffsetRange>,
    /// The folder is a copy on which no broker has been started yet.
    pub copied: bool,
    /// Of a copy: whether a start would work if it were taken as it is.
    pub works_as_it_is: bool,
}

/// A topic, as a start would find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSummary {
    /// Its name.
    pub name: Text,
    /// How many partitions it has.
    pub partitions: usize,
    /// A client's topic whose records stay until they are old.
    pub is_plain: bool,
}

/// What a start would make of a folder.
#[derive(Debug)]
pub enum Start {
    /// It would succeed.
    Works(Box<RecoveryReport>),
    /// It would be refused; why.
    Refused(String),
}

/// Why a folder cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    /// It cannot be opened.
    #[error("cannot open the folder {dir}: {source}")]
    Folder {
        /// The folder.
        dir: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A broker works on it.
    #[error(
        "a broker works on the folder{}; stop it first, or look at a copy",
        match .pid { Some(pid) => format!(" (process {pid})"), None => String::new() }
    )]
    InUse {
        /// Its process id, when the lock file tells.
        pid: Option<u32>,
    },
    /// It is no log, or of a newer version, or its disk cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Looks into a folder. `progress` is told the bytes that were read, and of how many. Nothing is changed.
pub fn examine(dir: &Path, progress: impl FnMut(u64, u64)) -> Result<Examination, ExamineError> {
    let folder = |source| ExamineError::Folder { dir: dir.display().to_string(), source };
    let disk = Arc::new(OsDisk::open(dir).map_err(folder)?);
    refuse_running(&disk, folder)?;
    let copied = disk.origin().map_err(folder)? == Origin::Copied;
    let looked: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(disk.clone()));
    let inspection = inspect(&*looked, SHARD_ID, progress);
    let mut found = try_start(&looked);
    let mut works_as_it_is = matches!(found.0, Start::Works(_));
    if copied && !works_as_it_is {
        let as_it_is = try_start(&(Arc::new(ReadOnlyDisk::as_original(disk.clone())) as Arc<dyn Disk>));
        works_as_it_is = matches!(as_it_is.0, Start::Works(_));
        (found.1, found.2) = (as_it_is.1, as_it_is.2);
    }
    refuse_running(&disk, folder)?; // one that started meanwhile has moved what was read
    let ((start, topics, bounds), inspection) = (found, inspection?);
    let lost = lost(&inspection, &topics, &bounds);
    Ok(Examination { inspection, start, topics, bounds, lost, copied, works_as_it_is })
}

/// What was done to a folder.
#[derive(Debug, Default)]
pub struct Repairs {
    /// Files that were mended or put aside.
    pub files: Vec<Repaired>,
    /// The copy is taken as it is from now on.
    pub accepted: bool,
    /// There was no good snapshot to start from, and one was made from all frames that are left; or why none could be.
    pub rebuilt: Option<Result<(), String>>,
}

/// Mends what can be mended, and keeps the old bytes beside it. What cannot be mended stays as it is.
pub fn repair(dir: &Path, progress: impl FnMut(u64, u64)) -> Result<Repairs, ExamineError> {
    let folder = |source| ExamineError::Folder { dir: dir.display().to_string(), source };
    let disk = Arc::new(OsDisk::open(dir).map_err(folder)?);
    let copied = disk.origin().map_err(folder)? == Origin::Copied;
    let looked = ReadOnlyDisk::new(disk.clone());
    let found = inspect(&looked, SHARD_ID, progress)?; // nothing of another's or newer folder is touched
    let _lock = match disk.lock() {
        Ok(lock) => lock,
        Err(LockError::Held { pid }) => return Err(ExamineError::InUse { pid }),
        Err(LockError::Io(source)) => return Err(folder(source)),
    };
    let files = ottla_storage::repair::repair(&*disk, SHARD_ID, &found)?;
    let as_it_is: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::as_original(disk.clone()));
    let has_snapshot = found.snapshots.iter().any(|snapshot| snapshot.contents.is_ok());
    let rebuilt = match try_start(&as_it_is).0 {
        Start::Refused(_) if !has_snapshot => Some(rebuild::rebuild(&*disk, &found)),
        _ => None,
    };
    let accepted = copied && matches!(try_start(&as_it_is).0, Start::Works(_));
    if accepted {
        disk.claim().map_err(folder)?;
    }
    Ok(Repairs { files, accepted, rebuilt })
}

/// What should be there and is in no good batch.
fn lost(
    inspection: &Inspection,
    topics: &BTreeMap<Uuid, TopicSummary>,
    bounds: &BTreeMap<TopicIdPartition, (i64, i64, i64)>,
) -> Vec<OffsetRange> {
    let mut lost = Vec::new();
    for (partition, (log_start_offset, _, high_watermark)) in bounds {
        if !topics.get(&partition.topic_id).is_some_and(|topic| topic.is_plain) {
            continue;
        }
        let mut next = *log_start_offset;
        let covered = inspection.covered.get(partition).map_or(&[][..], Vec::as_slice);
        let end = (*high_watermark, *high_watermark);
        for (first, last) in covered.iter().copied().chain([end]) {
            if first > next && next < *high_watermark {
                let last_offset = first.min(*high_watermark) - 1;
                lost.push(OffsetRange { partition: *partition, first_offset: next, last_offset });
            }
            next = next.max(last.saturating_add(1));
        }
    }
    lost
}

fn refuse_running(disk: &OsDisk, folder: impl FnOnce(io::Error) -> ExamineError) -> Result<(), ExamineError> {
    match disk.holder() {
        Ok(()) => Ok(()),
        Err(LockError::Held { pid }) => Err(ExamineError::InUse { pid }),
        Err(LockError::Io(source)) => Err(folder(source)),
    }
}

type Found = (Start, BTreeMap<Uuid, TopicSummary>, BTreeMap<TopicIdPartition, (i64, i64, i64)>);

/// A start up to the point where it would write.
fn try_start(disk: &Arc<dyn Disk>) -> Found {
    let mut state = ShardState::new(CoreConfig::default());
    let start = match replay(disk, &mut state) {
        Ok(report) => Start::Works(Box::new(report)),
        Err(reason) => Start::Refused(reason),
    };
    let image = state.image();
    let topics = image.topics().into_iter().map(|topic| {
        let is_plain = topic.role == Role::Data && !topic.config.compact;
        let partitions = topic.partitions().count();
        let summary = TopicSummary { name: topic.name.clone(), partitions, is_plain };
        (topic.id, summary)
    });
    let bounds = state.all_bounds().map(|(partition, bounds)| {
        (partition, (bounds.log_start_offset, bounds.last_stable_offset, bounds.high_watermark))
    });
    (start, topics.collect(), bounds.collect())
}

/// Loads the state as far as it goes; why it goes no further.
fn replay(disk: &Arc<dyn Disk>, state: &mut ShardState) -> Result<RecoveryReport, String> {
    let options = LogOptions::new(Nonces::new(|| 0)); // none is drawn: nothing is written
    let mut opening = ottla_storage::open(disk.clone(), options).map_err(|error| error.to_string())?;
    if let Some(chunks) = opening.snapshot_chunks().map_err(|error| error.to_string())? {
        let mut restore = Restore::new(CoreConfig::default());
        for chunk in chunks {
            let chunk = chunk.map_err(|error| error.to_string())?;
            restore.feed(&chunk).map_err(|error| format!("a snapshot does not decode: {error}"))?;
        }
        *state = restore.finish().map_err(|error| format!("a snapshot does not decode: {error}"))?;
    }
    while let Some(frame) = opening.next_frame().map_err(|error| error.to_string())? {
        let at = frame.frame_sequence.0;
        state
            .replay(&frame.entries, Position(frame.position), ShardTime(frame.shard_time))
            .map_err(|error| format!("frame {at} cannot be applied: {error}"))?;
    }
    Ok(opening.report().clone())
}
