//! Records from outside of Kafka, exactly once: a source is a task whose position is a store.
//!
//! A source has partitions (a log, a table), each with a position that only it understands. Positions live in the
//! compacted topic `<application>.src.positions`; a partition of that topic is a lane, and every source partition
//! belongs to one lane by the hash of its name. A transaction writes records, the positions behind them, and the
//! lane's own offset, which is at the same time the restore target of the lane's positions. So records and positions
//! commit together, and whoever takes over a lane begins exactly behind the last committed record.
//!
//! Lanes are assigned like partitions, by a consumer group on the positions topic; its generations fence zombies.
//! What must hold: a source partition gives the same records again from the same position, in the same order.
//!
//! | module | what it does |
//! |---|---|
//! | [`files`] | text logs, line by line, through rotation by renaming |
//! | `outbox` | an outbox table in PostgreSQL (feature `postgres`) |
//! | [`runner`] | lanes, transactions, rollback, unknown outcomes |
//! | [`thread`] | a source at work in a thread of its own |
//! | [`group`] | the same, with the lanes shared between processes |
//!
//! The design follows Kafka Connect's KIP-618 in writing positions in the records' transaction, and needs neither its
//! leader nor its fencing requests. Not here: sinks; logical replication.

pub mod files;
pub mod group;
#[cfg(feature = "postgres")]
pub mod outbox;
pub mod runner;
pub mod thread;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use ottla_client::Header;

/// Name of a source partition, at most 249 bytes: key of its position.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub String);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a source partition is, in the source's own format; a few hundred bytes at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position(pub Bytes);

/// One record from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceRecord {
    /// Topic that the source names for it; absent = the one of the settings.
    pub topic: Option<String>,
    /// Absent = null.
    pub key: Option<Bytes>,
    /// Absent = null.
    pub value: Option<Bytes>,
    /// Milliseconds since 1970; absent = when it is read.
    pub timestamp: Option<i64>,
    /// In order.
    pub headers: Vec<Header>,
}

/// Some records, and the position behind them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// In order; may be none when only the position moved (a rotation).
    pub records: Vec<SourceRecord>,
    /// Behind the last of them.
    pub position: Position,
}

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It may work later: a server that restarts, a file that cannot be opened for a moment.
    #[error("source {id}: {reason}")]
    Retriable {
        /// The source partition, or the source.
        id: String,
        /// What happened.
        reason: String,
    },
    /// The position belongs to something else: another database server, a restored backup.
    #[error(
        "source {id} is not the one whose position is committed: {reason}. If that is meant, start under another \
         application id, which reads it from its beginning"
    )]
    Changed {
        /// The source partition.
        id: String,
        /// What differs.
        reason: String,
    },
    /// The committed position cannot be read.
    #[error("the committed position of source {id} cannot be read: {reason}")]
    Position {
        /// The source partition.
        id: String,
        /// Why.
        reason: String,
    },
    /// It cannot work as it is set up.
    #[error("source {id}: {reason}")]
    Setup {
        /// The source partition, or the source.
        id: String,
        /// What is wrong, and what to do.
        reason: String,
    },
}

impl SourceError {
    /// Whether the same may work later without anybody's help.
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Retriable { .. })
    }
}

/// Something outside that has records.
pub trait Source: Send {
    /// The source partitions that are there now. Asked again from time to time.
    fn partitions(&mut self) -> Result<Vec<SourceId>, SourceError>;
    /// Opens a partition behind a committed position, or at its beginning.
    fn open(&mut self, id: &SourceId, from: Option<&Position>) -> Result<Box<dyn Reader>, SourceError>;
    /// A position was committed: everything before it is in Kafka for good, and may be cleaned up. May be told late,
    /// twice, or not at all (after a crash).
    fn committed(&mut self, id: &SourceId, position: &Position) {
        let _ = (id, position);
    }
}

/// A source partition that is open.
pub trait Reader: Send {
    /// The next records, about as many bytes as `bytes_max`; `None` = nothing new yet. Does not wait. `now` is a
    /// monotonic clock.
    fn read(&mut self, now: Duration, bytes_max: usize) -> Result<Option<Piece>, SourceError>;
}
