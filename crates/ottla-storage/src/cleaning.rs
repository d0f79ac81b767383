//! Compaction's half of the disk: one partition's batches go through a filter into files of their own.
//!
//! Place in the walk: the shell asks [`LogReader::stretches`] where a partition's bytes are, reads them with
//! [`LogReader::for_each_batch`], and hands a filter to [`Levels::clean`]; what comes back is a change of the files
//! like any other. This crate does not know what the filter leaves out.
//!
//! Only the cleaned partitions move. The files that held them stay, since others are in them and a start may have to
//! replay them; what they hold of the cleaned partitions is dead from then on (`catalogue::Compacted`), and a file in
//! which nothing is alive is dropped as ever. So cleaning does not wait for snapshots, costs what its partition is
//! large, and touches nothing else. The file in use is sealed first ([`LogWriter::roll`]) when what it holds is due.
//!
//! Invariants: the ranges that are replaced are replaced as a whole; the last batch in front of the end stays (the
//! filter sees to it), so a partition's end never moves.
//!
//! [`LogWriter::roll`]: crate::LogWriter::roll

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;

use bytes::Bytes;
use ottla_protocol::batch::{BATCH_HEAD_BYTES, BatchHeader};
use ottla_protocol::types::TopicIdPartition;

use crate::catalogue::Compacted;
use crate::error::ReadError;
use crate::index::FileRange;
use crate::levels::{Levels, compacted_part};
use crate::options::FileId;
use crate::reader::{LogReader, corrupt};
use crate::rewrite::{self, BatchFilter, RewriteFault, Source, join};
use crate::writer::FilesChange;

/// A run of a partition's batches, one behind the other on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Base offset of its first batch.
    pub first_offset: i64,
    /// Last offset of its last batch.
    pub last_offset: i64,
    /// Bytes of its batches.
    pub bytes: u64,
    /// Its largest timestamp, milliseconds.
    pub max_timestamp: i64,
    /// Whether its file is sealed: what is not can be read, but not cleaned.
    pub is_sealed: bool,
}

/// One partition to be cleaned.
pub struct Cleaning<'a> {
    /// Which.
    pub partition: TopicIdPartition,
    /// Batches that end below it are left out, and not shown to the filter.
    pub log_start_offset: i64,
    /// Sealed files that hold anything in front of it are gone through, each to its end.
    pub end: i64,
    /// Says what becomes of each batch.
    pub filter: &'a mut dyn BatchFilter,
}

/// Why nothing was cleaned. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The log was reopened or its writer died.
    #[error("the log has ended")]
    Ended,
    /// The caller has said so.
    #[error("it was stopped")]
    Stopped,
    /// A file that holds a part is damaged, and stays as it is. Trying again does not help.
    #[error("{} is damaged", file.file_name())]
    Damaged {
        /// The file.
        file: FileId,
    },
    /// The disk failed.
    #[error("{name}: {source}")]
    Io {
        /// The file, or what was done to the folder.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
}

impl LogReader {
    /// Where the log has batches of a partition that end at or behind `from`, oldest first: one stretch for each file
    /// up to `fine_from`, one for each extent behind it. Reads footers for the latter, and may block on the disk.
    pub fn stretches(
        &self,
        partition: TopicIdPartition,
        from: i64,
        fine_from: i64,
    ) -> Result<Vec<Stretch>, ReadError> {
        let open = self.shared.index().open_file();
        let mut stretches = Vec::new();
        // The index is not held meanwhile: it is asked again below, and a writer that waits in between would stop both.
        let ranges = self.shared.index().ranges(&partition, from);
        for range in ranges {
            let is_sealed = range.file != open;
            let FileRange { first_offset, last_offset, bytes, max_timestamp, .. } = range;
            if bytes > 0 && is_sealed && last_offset < fine_from {
                stretches.push(Stretch { first_offset, last_offset, bytes, max_timestamp, is_sealed });
                continue;
            }
            let extents = self.range_extents(&partition, &range)?;
            stretches.extend(extents.iter().map(|extent| Stretch {
                first_offset: extent.first_offset,
                last_offset: extent.last_offset,
                bytes: u64::from(extent.bytes),
                max_timestamp: extent.max_timestamp,
                is_sealed,
            }));
        }
        Ok(stretches)
    }

    /// Shows the batches of a partition that end at or behind `from`, in order, until the visitor has seen enough or
    /// there is none in front of `to`. Every batch is checked before it is shown. May block on the disk.
    pub fn for_each_batch(
        &self,
        partition: TopicIdPartition,
        from: i64,
        to: i64,
        visit: &mut dyn FnMut(&BatchHeader, &Bytes) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let ranges = self.shared.index().ranges(&partition, from);
        for range in ranges.iter().take_while(|range| range.first_offset < to) {
            let extents = self.range_extents(&partition, range)?;
            let begin = extents.partition_point(|extent| extent.last_offset < from);
            let mut rest = &extents[begin..];
            while !rest.is_empty() {
                let loaded = self.load(&partition, range.file, rest)?;
                rest = &rest[loaded.len()..];
                for loaded in loaded {
                    let extent = &loaded.extent;
                    let offsets = (extent.first_offset, extent.last_offset);
                    let refused = |at: u64| corrupt(&partition, offsets, range.file, extent.position + at);
                    for batch in loaded.batches().ok_or_else(|| refused(0))? {
                        if batch.last_offset < from {
                            continue;
                        }
                        if batch.base_offset >= to {
                            return Ok(());
                        }
                        let bytes = join(loaded.rope.slice(batch.at, batch.at + batch.bytes));
                        let header = BatchHeader::parse(&bytes).ok().filter(|_| loaded.is_sound(&batch));
                        let header = header.ok_or_else(|| refused(batch.at as u64))?;
                        if header.last_offset() < from {
                            continue; // there is a gap behind it
                        }
                        if visit(&header, &bytes.slice(BATCH_HEAD_BYTES..)).is_break() {
                            return Ok(());
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Levels {
    /// Writes what the filters leave of the partitions into new files. The change, which is to be appended, makes
    /// them live; none when there is nothing to clean. Takes as long as that takes; ends early when the log ends, or
    /// when `pace`, which is told of bytes read and written, says so.
    pub fn clean(
        &mut self,
        cleanings: Vec<Cleaning<'_>>,
        pace: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<FilesChange>, CleanError> {
        if self.shared.has_ended() {
            return Err(CleanError::Ended);
        }
        let mut sources = Vec::with_capacity(cleanings.len());
        let mut below = Vec::with_capacity(cleanings.len());
        let mut files = BTreeSet::new();
        for Cleaning { partition, log_start_offset, end, filter } in cleanings {
            let mut ranges = self.shared.index().sealed(&partition);
            ranges.retain(|range| range.first_offset < end);
            let Some(last) = ranges.last() else { continue };
            if let Some(range) = ranges.iter().find(|range| self.untouched.contains(&range.file)) {
                return Err(CleanError::Damaged { file: range.file });
            }
            below.push((partition, last.last_offset + 1));
            files.extend(ranges.iter().map(|range| range.file));
            ranges.retain(|range| range.last_offset >= log_start_offset);
            sources.push(Source { class: 0, partition, log_start_offset, ranges, filter: Some(filter) });
        }
        if sources.is_empty() {
            return Ok(None);
        }
        match rewrite::rewrite(&self.shared, sources, self.origin(&files), pace) {
            Ok(rewritten) => Ok(Some(self.cleaned(below, rewritten))),
            Err(RewriteFault::Ended) => Err(CleanError::Ended),
            Err(RewriteFault::Stopped) => Err(CleanError::Stopped),
            Err(RewriteFault::Damaged(file)) => {
                tracing::error!(file = %file.file_name(), "a damaged file is left as it is and not cleaned");
                self.untouched.insert(file);
                Err(CleanError::Damaged { file })
            }
            Err(RewriteFault::Io(name, source)) => Err(CleanError::Io { name, source }),
        }
    }

    /// The newest file of the log whose batches may be in these, and when its newest batch was appended.
    fn origin(&self, files: &BTreeSet<FileId>) -> (FileId, i64) {
        let known = self.shared.known();
        let newest = files.iter().map(|file| match known.catalogue.listed_file(*file) {
            Some(live) => live.newest_source,
            None => *file,
        });
        let appended = files.iter().filter_map(|file| known.appended.get(file).copied());
        (newest.max().unwrap_or_default(), appended.max().unwrap_or(0))
    }

    /// What is said of a partition from now on. A pass may end in front of where an earlier one did: what lies
    /// behind stays where it is.
    fn said_of(&self, partition: TopicIdPartition, below: i64, ranges: &[FileRange]) -> Compacted {
        let known = self.shared.known();
        let earlier = known.catalogue.compacted_partition(&partition);
        let behind = earlier.into_iter().flat_map(|earlier| &earlier.parts);
        let behind = behind.filter(|part| part.first_offset >= below).copied();
        let parts = ranges.iter().map(compacted_part).chain(behind).collect();
        Compacted { partition, below: earlier.map_or(below, |earlier| earlier.below.max(below)), parts }
    }

    fn cleaned(
        &mut self,
        below: Vec<(TopicIdPartition, i64)>,
        mut rewritten: rewrite::Rewritten,
    ) -> FilesChange {
        self.figures.bytes_rewritten += rewritten.bytes;
        let appended = rewritten.files.iter().map(|live| (live.seal.file, rewritten.appended)).collect();
        let mut edit = self.edit(Vec::new(), rewritten.files);
        let mut superseded = Vec::with_capacity(below.len());
        for (partition, below) in below {
            let ranges = rewritten.ranges.remove(&partition).unwrap_or_default();
            edit.compacted.push(self.said_of(partition, below, &ranges));
            superseded.push((partition, below, ranges));
        }
        let ranges = Default::default();
        FilesChange { edit, ranges, appended, superseded, bytes_written: rewritten.bytes }
    }
}
