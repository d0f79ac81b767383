//! Where the bytes of one task's stores live: an atomic key-value engine with one name space per store.
//!
//! Everything that a boundary changes goes in as ONE [`Batch`]: the updates of every store and the task's meta
//! record with the changelog positions. After any crash the engine holds some prefix of the batches that were
//! written, each whole or absent. That is all the rest of the crate asks of it.
//!
//! Place in the walk: topology -> overlay -> here. Processors never see this type; [`crate::state`] is its only
//! user. Not here: what the bytes mean, uncommitted writes, when to write.

pub mod mem;
#[cfg(feature = "rocksdb")]
pub mod rocks;

#[cfg(test)]
pub(crate) mod conformance;

use std::fmt;
use std::ops::Bound;
use std::path::Path;

use bytes::Bytes;

/// A store of a task: its place in the task's list of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u16);

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the lowest key up.
    Forward,
    /// From the highest key down.
    Reverse,
}

/// Keys between two bounds, in byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Where it begins.
    pub start: Bound<Bytes>,
    /// Where it ends.
    pub end: Bound<Bytes>,
}

impl KeyRange {
    /// Every key.
    pub const ALL: Self = Self { start: Bound::Unbounded, end: Bound::Unbounded };

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        match (&self.start, &self.end) {
            (Bound::Included(start), Bound::Included(end)) => start > end,
            (
                Bound::Included(start) | Bound::Excluded(start),
                Bound::Included(end) | Bound::Excluded(end),
            ) => start >= end,
            _ => false,
        }
    }
}

/// One change in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The key has this value now.
    Put(StoreId, Bytes, Bytes),
    /// The key is gone.
    Delete(StoreId, Bytes),
    /// Keys from the first (included) to the second (excluded) are gone.
    DeleteRange(StoreId, Bytes, Bytes),
}

/// What is written at once: all of it, or nothing, whatever happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// In order: a later one overrules an earlier one.
    pub updates: Vec<Update>,
    /// The task's new meta record; absent = it stays as it is.
    pub meta: Option<Bytes>,
}

/// Figures of an engine, for metrics and for the process's memory budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Bytes in memory that are not in files yet.
    pub memtable_bytes: u64,
    /// Bytes of the files, roughly.
    pub disk_bytes: u64,
    /// Keys, roughly.
    pub keys: u64,
}

/// Why an engine did not do it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The bytes on disk are not what was written.
    #[error("the state in {folder} is damaged: {reason}")]
    Corrupt {
        /// The engine's folder.
        folder: String,
        /// What it said.
        reason: String,
    },
    /// The disk refused: full, failing, or gone. Whether a batch was written is not known; it is whole or absent.
    #[error("the state in {folder} cannot be {during}: {reason}")]
    Io {
        /// The engine's folder.
        folder: String,
        /// What was tried: "read", "written", "opened", "flushed" or "copied".
        during: &'static str,
        /// What the system said.
        reason: String,
    },
    /// Somebody else has it open, or it is being closed at this moment.
    #[error(
        "the state in {folder} is in use by another process; stop it, or give this one a folder of its own"
    )]
    Locked {
        /// The engine's folder.
        folder: String,
    },
    /// Snapshots that were given to queries of this process keep it open, and it cannot be used on as it is.
    #[error(
        "the state in {folder} is kept open by a snapshot that a query of this process still holds: drop \
         snapshots (StoreQuery::snapshot, snapshots, snapshot_at_least) soon after they were read"
    )]
    Held {
        /// The engine's folder.
        folder: String,
    },
}

impl EngineError {
    /// Whether opening may work a moment later: it is held or being closed in this process.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Locked { .. } | Self::Held { .. })
    }
}

/// Keys and values of a scan.
pub type Scan<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes), EngineError>> + 'a>;

/// Reads: the engine itself, or a snapshot of it.
pub trait View {
    /// The value of a key.
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError>;
    /// Keys of a range, with values.
    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_>;
    /// The meta record of the same moment.
    fn meta(&self) -> Result<Option<Bytes>, EngineError>;
}

/// An engine of one task. Not shared: its task's worker owns it. `get` and `scan` see every batch written before.
pub trait Engine: View + Send + fmt::Debug {
    /// Writes a batch, atomically. Not synced: a power cut may take the last batches, whole, newest first.
    fn write(&mut self, batch: Batch) -> Result<(), EngineError>;
    /// What every store holds at this moment, for readers of other threads; later batches do not change it.
    fn snapshot(&self) -> Box<dyn View + Send + Sync>;
    /// Moves what is in memory into files, synced.
    fn flush(&mut self) -> Result<(), EngineError>;
    /// A copy that can be opened as an engine of its own, in a folder that does not exist yet.
    fn checkpoint(&self, folder: &Path) -> Result<(), EngineError>;
    /// Figures.
    fn stats(&self) -> EngineStats;
}
