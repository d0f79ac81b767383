//! Appends: one frame, one vectored write, one sync; then the index and the tail cache know it.
//!
//! Room is made before a frame is written: the file is sealed and the next begun when the frame does not fit, and
//! zeros are written and synced where it will go. So a full disk is met there, where nothing has happened yet, and
//! the caller may go on. Once a byte of the frame may have reached the file only success is a known outcome: any
//! failure kills the writer, and no further byte is written by it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use ottla_env::disk::LockGuard;
use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;

use crate::catalogue::FilesEdit;
use crate::error::{AppendError, NotWritten};
use crate::file_header::Seal;
use crate::frame::{self, FrameHeader, Plan};
use crate::index::{Extent, FileRange};
use crate::layout::{BLOCK_BYTES, PADDING, align_up, write_all, write_zeros};
use crate::options::{Durability, DurableEnd, FileId, FrameSequence};
use crate::prepare::{BeginError, OpenFile, Ready, begin_file, discard, take_ready};
use crate::shared::Shared;
use crate::space;

/// The one writer of a log. Holds the folder's lock; dropping it ends the opening.
pub struct LogWriter {
    shared: Arc<Shared>,
    file: OpenFile,
    /// Growing the file failed: it takes no further frame.
    must_seal: bool,
    sequence: FrameSequence,
    last_header_crc: u32,
    position: u64,
    /// Of the last frame, milliseconds.
    shard_time: i64,
    bytes_written: u64,
    attempts: u64,
    died_of: Option<Arc<io::Error>>,
    _lock: LockGuard,
}

/// A change of the files, and what it does to the index.
#[derive(Debug)]
pub struct FilesChange {
    pub(crate) edit: FilesEdit,
    /// Partitions that have ranges in removed files, and the ranges that take their place.
    pub(crate) ranges: BTreeMap<TopicIdPartition, Vec<FileRange>>,
    /// When the newest batch of each new file was appended.
    pub(crate) appended: BTreeMap<FileId, i64>,
    /// Partitions that were compacted: what sealed files hold of them below the offset is in these ranges now.
    pub(crate) superseded: Vec<(TopicIdPartition, i64, Vec<FileRange>)>,
    /// Bytes of new files.
    pub(crate) bytes_written: u64,
}

impl FilesChange {
    /// Files that are not live any more with it.
    pub fn removed(&self) -> usize {
        self.edit.removed.len()
    }

    /// Bytes of the files that were written for it.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }
}

/// The change is durable: readers see it, partition by partition. What a partition's ranges say stays the same, but
/// for what compaction leaves out, so nobody can tell which of them have moved.
fn take_in(shared: &Shared, change: &FilesChange) {
    let removed: BTreeSet<FileId> = change.edit.removed.iter().copied().collect();
    {
        let mut known = shared.known();
        known.catalogue.apply(&change.edit);
        for live in &change.edit.added {
            known.seals.insert(live.seal.file, live.seal);
        }
        known.appended.extend(&change.appended);
        // The seals of removed files stay until they are unlinked: a reader may be at one.
    }
    for (partition, added) in &change.ranges {
        shared.index_mut().replace(partition, &removed, added);
    }
    for (partition, below, added) in &change.superseded {
        let dead = shared.index_mut().supersede(partition, *below, &BTreeSet::new(), added);
        let mut known = shared.known();
        for (file, bytes) in dead {
            *known.superseded.entry(file).or_default() += bytes;
        }
    }
    shared.index_mut().forget_resident(&removed);
}

/// What recovery hands to the writer.
pub(crate) struct WriterStart {
    pub(crate) file: OpenFile,
    pub(crate) sequence: FrameSequence,
    pub(crate) last_header_crc: u32,
    pub(crate) position: u64,
    pub(crate) shard_time: i64,
}

impl LogWriter {
    pub(crate) fn new(shared: Arc<Shared>, start: WriterStart, lock: LockGuard) -> Self {
        shared.set_durable(start.sequence);
        Self {
            shared,
            file: start.file,
            must_seal: false,
            sequence: start.sequence,
            last_header_crc: start.last_header_crc,
            position: start.position,
            shard_time: start.shard_time,
            bytes_written: 0,
            attempts: 0,
            died_of: None,
            _lock: lock,
        }
    }

    /// Writes the entries as one frame, in this order, and returns once they are durable and readable.
    ///
    /// `shard_time` is in milliseconds since the epoch; `position` is the number of the last decision in the frame.
    /// The entries of one decision must all be in one call.
    ///
    /// After `AppendError::NotWritten` the writer may be used again. After `AppendError::Unknown` it is dead and
    /// answers the same for ever: drop it and `open` again, with `durable_end` in the options.
    pub fn append(
        &mut self,
        shard_time: i64,
        position: u64,
        entries: &[Entry],
    ) -> Result<FrameSequence, AppendError> {
        if let Some(error) = &self.died_of {
            return Err(AppendError::Unknown(error.clone()));
        }
        assert!(position >= self.position, "decision numbers never go back");
        let max = self.shared.options.frame_bytes_max;
        let plan = Plan::new(entries).filter(|plan| plan.frame_bytes <= max).ok_or_else(|| {
            let bytes = entries.iter().map(|entry| entry.batch_bytes() as u64).sum();
            AppendError::NotWritten(NotWritten::TooLarge { bytes, max })
        })?;
        let padded = align_up(plan.frame_bytes);
        self.make_room(padded)?;
        let extents = frame::extents(self.file.id, plan.entries(), self.file.end);
        self.check_offsets(&extents);
        let header = FrameHeader {
            shard_id: self.shared.options.shard_id,
            file: self.file.id,
            nonce: self.file.nonce,
            at: self.file.end,
            sequence: FrameSequence(self.sequence.0 + 1),
            epoch: self.shared.epoch,
            shard_time,
            position,
            entries: 0,
            entries_crc: 0,
            frame_bytes: 0,
        };
        let (pieces, header_crc) = plan.build(header, entries);
        let mut slices: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
        slices.push(&PADDING[..(padded - plan.frame_bytes) as usize]);
        let written = write_all(&*self.file.handle, &slices, self.file.end);
        written.and_then(|()| self.sync()).map_err(|error| self.die(error))?;

        let given_up = self.shared.tail().push(self.file.id, self.file.end, pieces);
        self.shared.index_mut().add(&extents);
        drop(given_up);
        self.file.end += padded;
        self.bytes_written += padded;
        self.sequence = header.sequence;
        self.last_header_crc = header_crc;
        self.position = position;
        self.shard_time = self.shard_time.max(shard_time);
        self.shared.set_durable(self.sequence);
        Ok(self.sequence)
    }

    /// Writes a change of the files that the log consists of, as a frame of its own. Once it is durable readers look
    /// into the new files, and [`Levels::unlink`](crate::Levels::unlink) may remove the old ones.
    ///
    /// `change` must have been made for this opening, and changes are appended in the order in which they were made.
    /// `shard_time` is not below that of any frame or snapshot so far. Errors as of [`append`](Self::append).
    pub fn append_files(
        &mut self,
        shard_time: i64,
        change: &FilesChange,
    ) -> Result<FrameSequence, AppendError> {
        let sequence = self.append(shard_time, self.position, &[change.edit.entry()])?;
        take_in(&self.shared, change);
        Ok(sequence)
    }

    /// Seals the file in use, unless it is empty, and begins the next one: what it holds may be compacted then.
    /// Errors as of [`append`](Self::append).
    pub fn roll(&mut self) -> Result<(), AppendError> {
        if let Some(error) = &self.died_of {
            return Err(AppendError::Unknown(error.clone()));
        }
        if self.file.end == BLOCK_BYTES { Ok(()) } else { self.next_file(0) }
    }

    /// Bytes of all frames that this writer has made durable, what fills up their blocks included.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// The last durable frame.
    pub fn durable_sequence(&self) -> FrameSequence {
        self.sequence
    }

    /// Up to where the log is known to be durable: for `LogOptions::durable_end` of the next opening in this
    /// process. Right in a dead writer too.
    pub fn durable_end(&self) -> DurableEnd {
        DurableEnd { file: self.file.id, length: self.file.end, frame_sequence: self.sequence }
    }

    /// Whether `FilePreparer::run_once` has a file to prepare.
    pub fn wants_preparation(&self) -> bool {
        matches!(*self.shared.ready(), Ready::Wanted)
    }

    /// Ends the log in order: one more, empty, frame proves the last one, so that damage to it can be told from a
    /// torn write at the next start; the file prepared ahead is removed.
    pub fn close(mut self, shard_time: i64) -> Result<(), AppendError> {
        self.append(shard_time, self.position, &[])?;
        self.shared.end();
        if let Some(prepared) = take_ready(&self.shared) {
            discard(&*self.shared.disk, &prepared.name);
        }
        Ok(())
    }

    /// A partition's batches follow one another, within a frame without a gap: whatever breaks that is a bug above us, and
    /// must not reach the disk.
    fn check_offsets(&self, extents: &[(TopicIdPartition, Extent)]) {
        let index = self.shared.index();
        let mut last: Option<(TopicIdPartition, i64)> = None;
        for (partition, extent) in extents {
            let in_frame = last.filter(|(before, _)| before == partition).map(|(_, end)| end);
            let first = extent.first_offset;
            match in_frame {
                Some(end) => assert_eq!(first, end, "the offsets of {partition:?} have a gap"),
                // A newer file may have been dropped, since all in it was deleted, while an older one stays for others.
                None => assert!(
                    index.end_offset(partition).is_none_or(|end| first >= end),
                    "the offsets of {partition:?} go back"
                ),
            }
            last = Some((*partition, extent.last_offset + 1));
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self.shared.options.durability {
            Durability::Fsync => self.file.handle.sync_data(),
            Durability::Os => Ok(()),
        }
    }

    fn die(&mut self, error: io::Error) -> AppendError {
        tracing::error!(file = self.file.id.0, at = self.file.end, %error, "a log write failed, its outcome is unknown");
        let error = Arc::new(error);
        self.died_of = Some(error.clone());
        self.shared.end();
        AppendError::Unknown(error)
    }

    fn make_room(&mut self, padded: u64) -> Result<(), AppendError> {
        let options = &self.shared.options;
        let empty = self.file.end == BLOCK_BYTES;
        let fits = self.file.end + padded <= options.file_bytes;
        let allocated = self.file.end + padded <= self.file.allocated;
        // A file that would have to grow is left as soon as a prepared one is there.
        let better = !allocated && !empty && matches!(*self.shared.ready(), Ready::Waiting(_));
        if self.must_seal || better || (!fits && !empty) {
            self.next_file(padded)?;
        }
        match self.grow(padded) {
            Err(error) if space::is_full(&error) && self.shared.options.reserve_files > 0 => {
                self.next_file(padded)?;
                self.grow(padded)
            }
            done => done,
        }
        .map_err(|error| AppendError::NotWritten(NotWritten::NoRoom(error)))
    }

    /// Takes room for so many bytes more in the file, if it has none yet.
    fn grow(&mut self, padded: u64) -> io::Result<()> {
        let (end, allocated) = (self.file.end + padded, self.file.allocated);
        if end <= allocated {
            return Ok(());
        }
        let options = &self.shared.options;
        let grown = end.max((allocated + options.growth_bytes).min(options.file_bytes));
        let made = write_zeros(&*self.file.handle, allocated, grown).and_then(|()| self.sync());
        if let Err(error) = made {
            // After a failed sync this file is never synced again.
            self.must_seal = true;
            return Err(error);
        }
        self.file.allocated = grown;
        Ok(())
    }

    fn next_file(&mut self, needed: u64) -> Result<(), AppendError> {
        let seal = Seal {
            file: self.file.id,
            nonce: self.file.nonce,
            length: self.file.end,
            last_sequence: self.sequence,
            last_header_crc: self.last_header_crc,
        };
        if self.shared.options.durability == Durability::Os {
            // What is sealed is synced in any case: only the file in use may end anywhere after a power cut.
            self.file.handle.sync_data().map_err(|error| self.die(error))?;
        }
        self.attempts += 1;
        match begin_file(&self.shared, seal, needed, self.attempts) {
            Ok(file) => {
                let mut known = self.shared.known();
                known.seals.insert(seal.file, seal);
                known.appended.insert(seal.file, self.shard_time);
                drop(known);
                self.shared.index_mut().seal(file.id);
                self.file = file;
                self.must_seal = false;
                Ok(())
            }
            Err(BeginError::NotBegun(error)) => Err(AppendError::NotWritten(NotWritten::NoRoom(error))),
            Err(BeginError::Unknown(error)) => Err(self.die(error)),
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.shared.end();
    }
}
