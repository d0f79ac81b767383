//! Bytes made durable: the shard's log, its index, its snapshots.
//!
//! Place in the walk: the log thread hands a frame's entries to [`LogWriter::append`], which returns when they are
//! on the disk; fetches read through [`LogReader`]; a helper thread drives [`FilePreparer`], another one [`Levels`],
//! which drops and rewrites files; snapshots go through [`SnapshotStore`]. [`open`] is the only way in: it finds the newest good snapshot, replays what lies behind it,
//! seals the file in use at its verified end and begins a new one under the next epoch.
//!
//! Invariants:
//! - a position of a file receives a frame at most once; frame k+1 is submitted only after the sync of k;
//! - the index, the tail cache and the footers only ever name frames whose sync succeeded;
//! - a file is live or not by what the log says (`catalogue`); it is removed only when that is durable;
//! - every byte read from a file is checked before it is served; damage is reported and refuses its own range only;
//! - on a full disk the log goes on in files that were kept for it, and says so (`space`);
//! - after a write of unknown outcome the writer is dead for ever; `open` is the only way on.
//!
//! This crate knows offsets and epochs, not requests. It starts no thread, reads no clock, draws no random number,
//! and reaches the disk only through `ottla_env::disk`. Every byte it writes is described in `docs/format.md`.

pub mod backup;
mod cache;
mod catalogue;
mod cleaning;
pub mod dump;
mod error;
mod file_header;
mod footer;
mod frame;
mod index;
pub mod inspect;
mod layout;
mod levels;
mod listing;
mod options;
mod prepare;
mod reader;
mod recovery;
pub mod repair;
mod retention;
mod rewrite;
mod rope;
mod scan;
mod shared;
mod snapshot;
mod space;
mod survey;
mod tail;
mod timestamps;
mod writer;

pub use cleaning::{CleanError, Cleaning, Stretch};
pub use error::{AppendError, Damage, NotWritten, OpenError, ReadError, SnapshotError};
pub use levels::{Alive, Levels, LevelsError, LevelsFigures};
pub use options::{Durability, DurableEnd, FileId, FrameSequence, LevelsOptions, LogOptions, Nonces};
pub use prepare::FilePreparer;
pub use reader::{Batches, LogReader};
pub use recovery::{Cut, Opened, Opening, RecoveredFrame, RecoveryReport, open};
pub use retention::Retention;
pub use rewrite::{BatchFilter, Fate};
pub use snapshot::{SnapshotChunks, SnapshotInfo, SnapshotStore, SnapshotWriter};
pub use space::{Space, SpaceWatch};
pub use writer::{FilesChange, LogWriter};

#[cfg(test)]
mod tests;
