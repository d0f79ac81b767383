//! Rewriting: what is alive in some files goes into new ones, by retention class, then partition, then offset.
//!
//! A rewritten file is laid out like a file of the log (header block, frames, footer), so that everything that reads
//! one reads the other; its frames count from 1 and are never replayed. It is written under a temporary name in
//! synced steps, read back past the cache and checked, and only then renamed. Whether it is part of the log is for the
//! catalogue to say.
//!
//! Source bytes are checked before they are written anew: damage stops the rewriting, and its file stays. What
//! becomes of a batch may be for a [`BatchFilter`] to say (`cleaning.rs`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ottla_env::disk::File;
use ottla_protocol::batch::{BATCH_HEAD_BYTES, BatchHeader};
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::types::TopicIdPartition;

use crate::catalogue::LiveFile;
use crate::error::ReadError;
use crate::file_header::{FileHeader, Seal};
use crate::footer;
use crate::frame::{self, FrameHeader, Plan};
use crate::index::{Extent, FileExtents, FileRange};
use crate::layout::{BLOCK_BYTES, PADDING, align_up, write_all};
use crate::options::{Durability, FileId, FrameSequence};
use crate::prepare::discard;
use crate::reader::LogReader;
use crate::scan::{Bodies, Identity, Scanner, Step};
use crate::shared::Shared;

/// What a file holds of each partition.
type Ranges = Vec<(TopicIdPartition, FileRange)>;

/// A frame of a rewritten file is written once it has so many bytes.
const FRAME_BYTES: u64 = 4 << 20;
/// Written bytes are synced in steps of this.
const SYNC_BYTES: u64 = 16 << 20;

/// Says what becomes of the batches of one partition, which it is given in order.
pub trait BatchFilter {
    /// What becomes of this one.
    fn filter(&mut self, header: &BatchHeader, tail: &Bytes) -> Fate;
}

/// What becomes of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is written as it is.
    Keep,
    /// This is written in its place: header and tail, at the same offsets.
    Replace(BatchHeader, Bytes),
    /// It is left out.
    Drop,
}

/// One partition's part of a rewriting.
pub(crate) struct Source<'a> {
    /// Partitions of one class stand together.
    pub(crate) class: u64,
    pub(crate) partition: TopicIdPartition,
    /// What lies below is not taken.
    pub(crate) log_start_offset: i64,
    /// What the old files hold of it, oldest first.
    pub(crate) ranges: Vec<FileRange>,
    /// Without one, everything is written as it is.
    pub(crate) filter: Option<&'a mut dyn BatchFilter>,
}

/// What came out of a rewriting: durable files that are not live yet.
#[derive(Default)]
pub(crate) struct Rewritten {
    pub(crate) files: Vec<LiveFile>,
    pub(crate) ranges: BTreeMap<TopicIdPartition, Vec<FileRange>>,
    pub(crate) bytes: u64,
    /// When the newest of it was appended.
    pub(crate) appended: i64,
}

/// Why a rewriting was given up. Nothing has changed; what was written is removed.
#[derive(Debug)]
pub(crate) enum RewriteFault {
    /// The log has ended.
    Ended,
    /// A source is damaged; it must stay as it is.
    Damaged(FileId),
    /// The caller wants it to end.
    Stopped,
    /// The disk failed.
    Io(String, io::Error),
}

/// Told of bytes that were read or written, it takes the time that they may cost. False: give up.
pub(crate) type Pace<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Writes what is alive of the sources into new files. `newest_source` and `appended` are what is said of them.
pub(crate) fn rewrite(
    shared: &Arc<Shared>,
    mut sources: Vec<Source<'_>>,
    (newest_source, appended): (FileId, i64),
    pace: Pace<'_>,
) -> Result<Rewritten, RewriteFault> {
    sources.sort_by_key(|source| (source.class, source.partition));
    let mut job = Job {
        shared,
        newest_source,
        appended,
        pace,
        open: None,
        out: Rewritten { appended, ..Rewritten::default() },
    };
    match job.copy_all(&mut sources) {
        Ok(()) => Ok(job.out),
        Err(fault) => {
            job.give_up();
            Err(fault)
        }
    }
}

struct Job<'a> {
    shared: &'a Arc<Shared>,
    newest_source: FileId,
    appended: i64,
    pace: Pace<'a>,
    open: Option<DataFile>,
    out: Rewritten,
}

impl Job<'_> {
    fn copy_all(&mut self, sources: &mut [Source<'_>]) -> Result<(), RewriteFault> {
        let reader = LogReader { shared: self.shared.clone() };
        for same_class in sources.chunk_by_mut(|one, other| one.class == other.class) {
            for source in same_class {
                for range in std::mem::take(&mut source.ranges) {
                    self.copy(&reader, source, &range)?;
                }
            }
            // What is kept for different times goes at different times; but a file is no smaller than it must be.
            let small = self.shared.options.levels.small_file_bytes();
            if self.open.as_ref().is_some_and(|file| file.bytes_with(0) >= small) {
                self.close()?;
            }
        }
        self.close()
    }

    fn copy(
        &mut self,
        reader: &LogReader,
        source: &mut Source<'_>,
        range: &FileRange,
    ) -> Result<(), RewriteFault> {
        let extents = reader.range_extents(&source.partition, range).map_err(fault)?;
        let from = extents.partition_point(|extent| extent.last_offset < source.log_start_offset);
        let mut rest = &extents[from..];
        while !rest.is_empty() {
            if self.shared.has_ended() {
                return Err(RewriteFault::Ended);
            }
            let loaded = reader.load(&source.partition, range.file, rest).map_err(fault)?;
            rest = &rest[loaded.len()..];
            if !(self.pace)(loaded.iter().map(|loaded| u64::from(loaded.extent.bytes)).sum()) {
                return Err(RewriteFault::Stopped);
            }
            for loaded in loaded {
                let damaged = || RewriteFault::Damaged(range.file);
                for batch in loaded.batches().ok_or_else(damaged)? {
                    if batch.last_offset < source.log_start_offset {
                        continue;
                    }
                    if !loaded.is_sound(&batch) {
                        return Err(damaged());
                    }
                    let bytes = join(loaded.rope.slice(batch.at, batch.at + batch.bytes));
                    let header = BatchHeader::parse(&bytes).map_err(|_| damaged())?;
                    if header.last_offset() < source.log_start_offset {
                        continue; // there is a gap behind it
                    }
                    let tail = bytes.slice(BATCH_HEAD_BYTES..);
                    let fate = match &mut source.filter {
                        Some(filter) => filter.filter(&header, &tail),
                        None => Fate::Keep,
                    };
                    let (header, tail) = match fate {
                        Fate::Keep => (header, tail),
                        Fate::Replace(header, tail) => (header, tail),
                        Fate::Drop => continue,
                    };
                    self.push(Entry { kind: EntryKind::Batch, partition: source.partition, header, tail })?;
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry) -> Result<(), RewriteFault> {
        let bytes = entry.batch_bytes() as u64;
        let max = self.shared.options.levels.data_file_bytes;
        if self.open.as_ref().is_some_and(|file| file.bytes_with(bytes) > max) {
            self.close()?;
        }
        let file = match &mut self.open {
            Some(file) => file,
            None => self.open.insert(DataFile::create(self.shared)?),
        };
        if !(self.pace)(bytes) {
            return Err(RewriteFault::Stopped);
        }
        file.push(self.shared, self.appended, entry)
    }

    /// Finishes the file in work.
    fn close(&mut self) -> Result<(), RewriteFault> {
        let Some(file) = self.open.as_mut() else { return Ok(()) };
        let (seal, ranges, bytes) = file.finish(self.shared, self.appended)?;
        self.open = None;
        self.out.bytes += bytes;
        self.out.files.push(LiveFile { seal, is_settled: true, newest_source: self.newest_source });
        for (partition, range) in ranges {
            self.out.ranges.entry(partition).or_default().push(range);
        }
        Ok(())
    }

    /// Removes what was written. What cannot be removed is removed at the next start.
    fn give_up(&mut self) {
        if self.shared.has_ended() {
            return; // the next opening has the folder
        }
        if let Some(file) = &self.open {
            discard(&*self.shared.disk, &file.name);
        }
        for live in &self.out.files {
            discard(&*self.shared.disk, &live.seal.file.file_name());
        }
    }
}

pub(crate) fn fault(error: ReadError) -> RewriteFault {
    match error {
        ReadError::Corrupt { file, .. } => RewriteFault::Damaged(file),
        ReadError::Io { file, source } => RewriteFault::Io(file.file_name(), source),
    }
}

pub(crate) fn join(pieces: Vec<Bytes>) -> Bytes {
    if let [whole] = &pieces[..] {
        return whole.clone();
    }
    let mut out = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    out.freeze()
}

/// A new file in work.
struct DataFile {
    id: FileId,
    nonce: u64,
    name: String,
    handle: Arc<dyn File>,
    at: u64,
    synced: u64,
    sequence: FrameSequence,
    last_header_crc: u32,
    entries: Vec<Entry>,
    entry_bytes: u64,
    extents: FileExtents,
}

impl DataFile {
    fn create(shared: &Shared) -> Result<Self, RewriteFault> {
        let id = shared.known().catalogue.next_data();
        let nonce = shared.options.nonces.draw();
        let name = format!("data-{:010}-{}.tmp", shared.epoch, id.number());
        let header = FileHeader {
            shard_id: shared.options.shard_id,
            log_id: shared.log_id,
            file: id,
            nonce,
            epoch: shared.epoch,
            durability: Durability::Fsync,
            previous: Seal::default(),
        };
        let created = shared.disk.create(&name).and_then(|handle| {
            write_all(&*handle, &[&header.encode()], 0)?;
            Ok(handle)
        });
        let handle = created.map_err(|source| {
            discard(&*shared.disk, &name);
            RewriteFault::Io(name.clone(), source)
        })?;
        Ok(Self {
            id,
            nonce,
            name,
            handle,
            at: BLOCK_BYTES,
            synced: 0,
            sequence: FrameSequence(0),
            last_header_crc: 0,
            entries: Vec::new(),
            entry_bytes: 0,
            extents: FileExtents::new(),
        })
    }

    /// Bytes of the file once a batch of so many bytes is in it, about.
    fn bytes_with(&self, bytes: u64) -> u64 {
        self.at + self.entry_bytes + bytes
    }

    fn io(&self, source: io::Error) -> RewriteFault {
        RewriteFault::Io(self.name.clone(), source)
    }

    fn push(&mut self, shared: &Shared, appended: i64, entry: Entry) -> Result<(), RewriteFault> {
        self.entry_bytes += (entry.batch_bytes() + frame::ENTRY_HEADER_BYTES) as u64;
        self.entries.push(entry);
        if self.entry_bytes >= FRAME_BYTES.min(shared.options.levels.data_file_bytes / 2) {
            self.write_frame(shared, appended)?;
        }
        Ok(())
    }

    fn write_frame(&mut self, shared: &Shared, appended: i64) -> Result<(), RewriteFault> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.entries);
        self.entry_bytes = 0;
        let plan = Plan::new(&entries).expect("a frame of a few MiB fits the format");
        let header = FrameHeader {
            shard_id: shared.options.shard_id,
            file: self.id,
            nonce: self.nonce,
            at: self.at,
            sequence: FrameSequence(self.sequence.0 + 1),
            epoch: shared.epoch,
            shard_time: appended,
            position: 0,
            entries: 0,
            entries_crc: 0,
            frame_bytes: 0,
        };
        let padded = align_up(plan.frame_bytes);
        let (pieces, header_crc) = plan.build(header, &entries);
        let mut slices: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
        slices.push(&PADDING[..(padded - plan.frame_bytes) as usize]);
        write_all(&*self.handle, &slices, self.at).map_err(|source| self.io(source))?;
        for (partition, extent) in frame::extents(self.id, plan.entries(), self.at) {
            self.extents.entry(partition).or_default().push(extent);
        }
        self.at += padded;
        self.sequence = header.sequence;
        self.last_header_crc = header_crc;
        if self.at - self.synced >= SYNC_BYTES {
            self.synced = self.at;
            self.handle.sync_data().map_err(|source| self.io(source))?;
        }
        Ok(())
    }

    /// Writes what is left and the footer, checks everything, and gives the file its name.
    fn finish(&mut self, shared: &Shared, appended: i64) -> Result<(Seal, Ranges, u64), RewriteFault> {
        self.write_frame(shared, appended)?;
        let seal = Seal {
            file: self.id,
            nonce: self.nonce,
            length: self.at,
            last_sequence: self.sequence,
            last_header_crc: self.last_header_crc,
        };
        let encoded = footer::encode(&seal, appended, &self.extents);
        write_all(&*self.handle, &[&encoded.bytes], seal.length)
            .and_then(|()| self.handle.sync_all())
            .map_err(|source| self.io(source))?;
        self.verify(shared, &seal)?;
        if shared.has_ended() {
            return Err(RewriteFault::Ended);
        }
        shared
            .disk
            .rename(&self.name, &self.id.file_name())
            .and_then(|()| shared.disk.sync_dir())
            .map_err(|source| self.io(source))?;
        let ranges = encoded.blocks.iter().zip(self.extents.values()).map(|((partition, block), extents)| {
            let range = FileRange::of(self.id, extents).expect("no empty list is indexed");
            (*partition, FileRange { block: Some(*block), ..range })
        });
        Ok((seal, ranges.collect(), seal.length + encoded.bytes.len() as u64))
    }

    /// What it replaces will be removed: so every byte is read back from the disk first.
    fn verify(&self, shared: &Shared, seal: &Seal) -> Result<(), RewriteFault> {
        let file = shared.disk.open_uncached(&self.name).map_err(|source| self.io(source))?;
        let footer = footer::read_directory(&*file, seal).map_err(|source| self.io(source))?;
        let identity = Identity {
            shard_id: shared.options.shard_id,
            file: self.id,
            nonce: self.nonce,
            epoch: Some(shared.epoch),
        };
        let mut scanner = Scanner::new(file, identity, &Seal::default(), seal.length);
        loop {
            match scanner.step(Bodies::Check).map_err(|source| self.io(source))? {
                Step::Frame(_) => {}
                Step::End
                    if footer.is_some() && scanner.last() == (seal.last_sequence, seal.last_header_crc) =>
                {
                    return Ok(());
                }
                Step::End => return Err(self.io(io::Error::other("a new file does not read back"))),
                Step::Bad(what) => return Err(self.io(io::Error::other(what))),
            }
        }
    }
}

/// Extents that are alive, for a judgement of how they lie.
pub(crate) fn alive(extents: &[Extent], log_start_offset: i64) -> &[Extent] {
    &extents[extents.partition_point(|extent| extent.last_offset < log_start_offset)..]
}
