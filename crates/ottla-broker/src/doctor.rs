//! The doctor: looks into a broker's folder without changing it, and says what a start would make of it.
//!
//! Two looks: at every byte (`ottla_storage::inspect`), then at a start as recovery does it, up to the point where it
//! would write, which also gives topics their names. Both go through a disk that refuses writes. A folder that a
//! broker holds is refused: it moves while it is read.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ottla_core::config::CoreConfig;
use ottla_core::decision::{Position, ShardTime};
use ottla_core::shard::{Restore, ShardState};
use ottla_env::disk::os::OsDisk;
use ottla_env::disk::read_only::ReadOnlyDisk;
use ottla_env::disk::{Disk, LockError};
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};
use ottla_storage::inspect::inspect;
use ottla_storage::{LogOptions, Nonces, OpenError, RecoveryReport};

pub use ottla_storage::inspect::{DamagedPlace, FileInspection, Footer, Inspection, OffsetRange};

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
}

/// A topic, as a start would find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSummary {
    /// Its name.
    pub name: Text,
    /// How many partitions it has.
    pub partitions: usize,
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
    let looked: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(disk.clone()));
    let inspection = inspect(&*looked, SHARD_ID, progress);
    let (start, topics, bounds) = try_start(&looked);
    refuse_running(&disk, folder)?; // one that started meanwhile has moved what was read
    Ok(Examination { inspection: inspection?, start, topics, bounds })
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
        let summary = TopicSummary { name: topic.name.clone(), partitions: topic.partitions().count() };
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
