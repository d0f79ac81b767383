//! One small error per operation. Each says whether something happened, and so what the caller may do.

use std::io;
use std::sync::Arc;

use ottla_env::disk::LockError;
use ottla_protocol::types::TopicIdPartition;

use crate::options::FileId;

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the file.
    pub file: String,
    /// Byte position in it.
    pub position: u64,
    /// What is wrong there.
    pub what: &'static str,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at byte {}: {}", self.file, self.position, self.what)
    }
}

/// The folder could not be opened. Nothing was acknowledged and nothing that was durable is lost.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings are out of their bounds.
    #[error("setting refused: {0}")]
    Options(&'static str),
    /// Somebody else has the folder, or the lock file cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder holds something that is not a log of this shard; it was not touched.
    #[error("{name} is not of this log: {what}; nothing was touched")]
    Foreign {
        /// The file that does not belong there.
        name: String,
        /// Why it does not.
        what: &'static str,
    },
    /// Written by a newer version; it was not touched.
    #[error("{name} has format version {version}, this build reads up to {supported}")]
    Newer {
        /// The file.
        name: String,
        /// Its version.
        version: u16,
        /// The newest version this build knows.
        supported: u16,
    },
    /// Durable data that replay needs is damaged or missing. Nothing was cut.
    #[error("damaged: {0}")]
    Damaged(Damage),
    /// The folder is a copy and not whole: it was copied while a broker worked on it, or in part. Nothing was changed.
    #[error(
        "the folder is a copy and it is not whole: {0}; it was copied while a broker worked on it, or not all of it \
         was. Copy it again with `ottla backup`, or from a stopped broker; `ottla doctor` tells what is missing, and \
         its --repair accepts the loss. Nothing was changed"
    )]
    Copy(Damage),
    /// The disk failed; trying again may help.
    #[error("{name}: {source}")]
    Io {
        /// The file, or what was done to the folder.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The epoch counter is used up (2^31 openings).
    #[error("the log's epochs are used up")]
    EpochsExhausted,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum NotWritten {
    /// The frame would be larger than `LogOptions::frame_bytes_max`.
    #[error("a frame of {bytes} bytes is above the maximum of {max}")]
    TooLarge {
        /// Bytes of the frame.
        bytes: u64,
        /// The bound.
        max: u64,
    },
    /// No room could be prepared; `StorageFull` when the disk is full.
    #[error("no room could be prepared: {0}")]
    NoRoom(io::Error),
}

/// An append failed.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// No byte of the frame reached the file; the same writer may try again.
    #[error("not written: {0}")]
    NotWritten(NotWritten),
    /// The frame may or may not be in the log. The writer is dead: drop everything and `open` again.
    #[error("outcome unknown: {0}")]
    Unknown(Arc<io::Error>),
}

/// A read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// What lies there is not what was written; this range of offsets is refused, others are not.
    #[error(
        "offsets {first_offset} to {last_offset} of {partition:?} are damaged in {} at byte {position}",
        .file.file_name()
    )]
    Corrupt {
        /// The partition.
        partition: TopicIdPartition,
        /// First refused offset.
        first_offset: i64,
        /// Last refused offset.
        last_offset: i64,
        /// The file.
        file: FileId,
        /// Byte position in it.
        position: u64,
    },
    /// The disk failed; trying again may help.
    #[error("{}: {source}", .file.file_name())]
    Io {
        /// The file.
        file: FileId,
        /// The operating system's error.
        source: io::Error,
    },
}

/// A snapshot could not be written. What was begun is discarded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The log was reopened or its writer died: the snapshot may rest on frames that never became durable.
    #[error("the log it belongs to has ended")]
    Ended,
    /// What was written cannot be read back.
    #[error("the written snapshot does not verify: {0}")]
    Unverified(Damage),
    /// The disk failed.
    #[error("{name}: {source}")]
    Io {
        /// The file.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
}
