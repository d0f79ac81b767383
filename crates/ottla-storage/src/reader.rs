//! Reads by partition and offset: whole batches, from memory when they are new, else from files, checked.
//!
//! The unit of a disk read is the extent; extents that lie close together are read at once, in reads of at most
//! 1 MiB. An extent's batches are checked before any is given out: the heads against the CRC that was taken of them
//! when they were written (which tells a batch of another partition, offset or epoch), each body against its own.
//! What fails is refused alone: a bad body refuses its batch, a bad head its extent.
//!
//! Does not know bounds (log start, high watermark, last stable offset): the caller passes the end.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ottla_protocol::types::TopicIdPartition;

use crate::error::ReadError;
use crate::footer;
use crate::index::{Extent, FileRange, FooterBlock, Located, pick};
use crate::layout::{READINGS, STEP_BYTES};
use crate::options::{FileId, FrameSequence};
use crate::rope::{BatchAt, Rope};
use crate::scan;
use crate::shared::Shared;

/// Extents with at most this between them are read at once.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// Reads the log; cheap to clone, used from any thread. Goes on working on what it knew after its writer died.
#[derive(Clone)]
pub struct LogReader {
    pub(crate) shared: Arc<Shared>,
}

/// What a read brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    /// Whole batches, one behind the other, as few shared pieces (a piece may hold several batches and a batch may
    /// be in several pieces).
    pub pieces: Vec<Bytes>,
    /// Bytes of all pieces.
    pub bytes: usize,
    /// One past the last record; where the read began when there is none.
    pub next_offset: i64,
}

/// What has been collected so far.
struct Taken {
    next_offset: i64,
    end_offset: i64,
    bytes_left: usize,
    full: bool,
    /// How often the first batch was read.
    readings: u32,
    out: Vec<Bytes>,
}

/// An extent's bytes, and whether they still have to be checked.
pub(crate) struct Loaded {
    pub(crate) extent: Extent,
    pub(crate) rope: Rope,
    pub(crate) from_disk: bool,
    /// There may be gaps between the offsets of its batches.
    pub(crate) has_gaps: bool,
}

impl LogReader {
    /// Whole batches of a partition. The first batch holds `offset`, none begins at or behind `end_offset`;
    /// together at most `max_bytes`, but at least one batch. Empty when there is none. May block on the disk.
    ///
    /// Damage behind the first batch ends the result; the next read, which begins there, gets the error.
    pub fn read(
        &self,
        partition: TopicIdPartition,
        offset: i64,
        end_offset: i64,
        max_bytes: usize,
    ) -> Result<Batches, ReadError> {
        let mut taken = Taken::new(offset, end_offset, max_bytes);
        while !taken.is_full() {
            match self.read_more(&partition, &mut taken) {
                Ok(true) => {}
                Ok(false) => break,
                Err(ReadError::Corrupt { .. }) if taken.out.is_empty() && taken.readings < READINGS => {
                    taken.readings += 1;
                }
                // The file was dropped between the look into the index and the read: the index knows better now.
                Err(ReadError::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && taken.readings < READINGS =>
                {
                    taken.readings += 1;
                }
                Err(error) if taken.out.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken.into_batches())
    }

    /// As [`read`](Self::read), but never touches the disk: none when the first batch is not in memory.
    pub fn read_cached(
        &self,
        partition: TopicIdPartition,
        offset: i64,
        end_offset: i64,
        max_bytes: usize,
    ) -> Option<Batches> {
        let mut taken = Taken::new(offset, end_offset, max_bytes);
        while !taken.is_full() {
            let located = self.shared.index().locate(&partition, taken.next_offset, taken.bytes_left);
            let Some(Located::Extents(file, extents)) = located else { break };
            for extent in extents {
                if taken.is_full() {
                    break;
                }
                let pieces = self.shared.tail().slices(file, extent.position, extent.bytes);
                let Some(pieces) = pieces else { return taken.into_batches().or_none() };
                let has_gaps = file.is_data();
                let loaded = Loaded { extent, rope: Rope(pieces), from_disk: false, has_gaps };
                if taken.take(&self.shared, &partition, file, &loaded).is_err() {
                    return taken.into_batches().or_none();
                }
            }
        }
        taken.into_batches().or_none()
    }

    /// The last frame that is durable and readable.
    pub fn durable_sequence(&self) -> FrameSequence {
        self.shared.durable_sequence()
    }

    /// Offset behind the last batch that can be read; none for a partition without batches.
    pub fn end_offset(&self, partition: TopicIdPartition) -> Option<i64> {
        self.shared.index().end_offset(&partition)
    }

    /// Bytes of all batches of a partition that the log holds; 0 when it has none. May block on the disk, to read
    /// footers.
    pub fn bytes_of(&self, partition: TopicIdPartition) -> Result<u64, ReadError> {
        let (mut bytes, elsewhere) = self.shared.index().sizes(&partition);
        for (range, block) in elsewhere {
            let extents = self.footer_extents(&partition, &range, &block)?;
            bytes += extents.iter().map(|extent| u64::from(extent.bytes)).sum::<u64>();
        }
        Ok(bytes)
    }

    /// Reads from one file; false when there is nothing more.
    fn read_more(&self, partition: &TopicIdPartition, taken: &mut Taken) -> Result<bool, ReadError> {
        let Some((file, extents)) = self.extents(partition, taken.next_offset, taken.bytes_left)? else {
            return Ok(false);
        };
        if extents.is_empty() {
            // What the index says of the file is more than what is left of it.
            return Err(corrupt(partition, (taken.next_offset, taken.next_offset), file, 0));
        }
        let mut rest = &extents[..];
        while !rest.is_empty() && !taken.is_full() {
            let loaded = self.load(partition, file, rest)?;
            rest = &rest[loaded.len()..];
            for loaded in &loaded {
                if !taken.is_full() {
                    taken.take(&self.shared, partition, file, loaded)?;
                }
            }
        }
        Ok(true)
    }

    /// Extents of one file, from the one that holds `offset` or follows it.
    pub(crate) fn extents(
        &self,
        partition: &TopicIdPartition,
        offset: i64,
        bytes_max: usize,
    ) -> Result<Option<(FileId, Vec<Extent>)>, ReadError> {
        let located = self.shared.index().locate(partition, offset, bytes_max);
        match located {
            None => Ok(None),
            Some(Located::Extents(file, extents)) => Ok(Some((file, extents))),
            Some(Located::Footer(range, block)) => {
                let all = self.footer_extents(partition, &range, &block)?;
                let picked = pick(&all, offset, bytes_max);
                if picked.is_empty() {
                    return Err(corrupt(partition, (offset, range.last_offset), range.file, block.position));
                }
                Ok(Some((range.file, picked)))
            }
        }
    }

    /// All extents of a range, from memory or from its file's footer.
    pub(crate) fn range_extents(
        &self,
        partition: &TopicIdPartition,
        range: &FileRange,
    ) -> Result<Vec<Extent>, ReadError> {
        let (in_memory, is_open) = {
            let index = self.shared.index();
            (index.resident(range.file, partition), index.open_file() == range.file)
        };
        match (in_memory, range.block) {
            (Some(extents), _) => Ok(extents),
            (None, Some(block)) => Ok(self.footer_extents(partition, range, &block)?.to_vec()),
            (None, None) if is_open => Ok(self.shared.index().open_extents(partition)),
            // It was resident when the range was noted; its footer was written meanwhile.
            (None, None) => self.all_extents(partition, range, range.first_offset),
        }
    }

    /// A partition's extents from a footer, or by a scan of the file when that part of the footer is damaged.
    pub(crate) fn footer_extents(
        &self,
        partition: &TopicIdPartition,
        range: &FileRange,
        block: &FooterBlock,
    ) -> Result<Arc<Vec<Extent>>, ReadError> {
        let key = (range.file, *partition);
        let cached = self.shared.footers().get(&key);
        if let Some(extents) = cached {
            return Ok(extents);
        }
        let failed = |source| ReadError::Io { file: range.file, source };
        let file = self.shared.file(range.file).map_err(failed)?;
        let extents = match footer::read_extents(&*file, block).map_err(failed)? {
            Some(extents) => extents,
            None => {
                tracing::warn!(
                    file = range.file.0,
                    at = block.position,
                    "a footer is damaged, scanning the file"
                );
                let seal = self.shared.known().seals.get(&range.file).copied();
                let seal = seal.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
                scan::partition_extents(&self.shared, &file, &seal, partition).map_err(failed)?
            }
        };
        let extents = Arc::new(extents);
        let weight = extents.len() * size_of::<Extent>() + 64;
        self.shared.footers().insert(key, weight, extents.clone());
        Ok(extents)
    }

    /// Loads the first of the extents, and those behind it that are worth reading at once.
    pub(crate) fn load(
        &self,
        partition: &TopicIdPartition,
        file: FileId,
        extents: &[Extent],
    ) -> Result<Vec<Loaded>, ReadError> {
        let first = extents[0];
        let in_memory = self.shared.tail().slices(file, first.position, first.bytes);
        if let Some(pieces) = in_memory {
            let has_gaps = file.is_data();
            return Ok(vec![Loaded { extent: first, rope: Rope(pieces), from_disk: false, has_gaps }]);
        }
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                corrupt(partition, (first.first_offset, first.last_offset), file, first.position)
            }
            _ => ReadError::Io { file, source },
        };
        let handle = self.shared.file(file).map_err(failed)?;
        let count = region(extents);
        let end = |extent: &Extent| extent.position + u64::from(extent.bytes);
        let read = |to: u64| -> io::Result<Bytes> {
            let mut buffer = BytesMut::zeroed((to - first.position) as usize);
            for (step, chunk) in buffer.chunks_mut(STEP_BYTES).enumerate() {
                handle.read_exact_at(chunk, first.position + (step * STEP_BYTES) as u64)?;
            }
            Ok(buffer.freeze())
        };
        let (count, buffer) = match read(end(&extents[count - 1])) {
            Ok(buffer) => (count, buffer),
            // What lies behind may be unreadable: that must not refuse the first.
            Err(_) if count > 1 => (1, read(end(&first)).map_err(failed)?),
            Err(error) => return Err(failed(error)),
        };
        let used: u64 = extents[..count].iter().map(|extent| u64::from(extent.bytes)).sum();
        let sparse = used * 2 < buffer.len() as u64; // a few bytes must not keep a large buffer alive
        let loaded = extents[..count].iter().map(|extent| {
            let from = (extent.position - first.position) as usize;
            let bytes = buffer.slice(from..from + extent.bytes as usize);
            let bytes = if sparse { Bytes::copy_from_slice(&bytes) } else { bytes };
            let rope = Rope(vec![bytes]);
            Loaded { extent: *extent, rope, from_disk: true, has_gaps: file.is_data() }
        });
        Ok(loaded.collect())
    }
}

/// How many extents, from the first on, lie close enough together for one read.
fn region(extents: &[Extent]) -> usize {
    let begin = extents[0].position;
    let mut end = begin + u64::from(extents[0].bytes);
    let mut count = 1;
    for extent in &extents[1..] {
        let next_end = extent.position + u64::from(extent.bytes);
        let close = extent.position >= end && extent.position - end <= GAP_BYTES_MAX;
        if !close || next_end - begin > STEP_BYTES as u64 {
            break;
        }
        end = next_end;
        count += 1;
    }
    count
}

pub(crate) fn corrupt(
    partition: &TopicIdPartition,
    offsets: (i64, i64),
    file: FileId,
    position: u64,
) -> ReadError {
    let (first_offset, last_offset) = offsets;
    tracing::error!(?partition, first_offset, last_offset, file = file.0, position, "damaged data refused");
    ReadError::Corrupt { partition: *partition, first_offset, last_offset, file, position }
}

impl Loaded {
    /// The batches, their heads checked if they come from the disk; none when the heads are wrong.
    pub(crate) fn batches(&self) -> Option<Vec<BatchAt>> {
        let batches = self.rope.batches(&self.extent, self.has_gaps);
        assert!(self.from_disk || batches.is_some(), "the tail cache holds what was indexed");
        batches
    }

    /// Whether a batch may be served.
    pub(crate) fn is_sound(&self, batch: &BatchAt) -> bool {
        !self.from_disk || self.rope.is_sound(batch)
    }
}

impl Batches {
    fn or_none(self) -> Option<Self> {
        (self.bytes > 0).then_some(self)
    }
}

impl Taken {
    fn new(next_offset: i64, end_offset: i64, bytes_left: usize) -> Self {
        Self { next_offset, end_offset, bytes_left, full: false, readings: 1, out: Vec::new() }
    }

    fn into_batches(self) -> Batches {
        let bytes = self.out.iter().map(Bytes::len).sum();
        Batches { pieces: self.out, bytes, next_offset: self.next_offset }
    }

    fn is_full(&self) -> bool {
        self.full || self.next_offset >= self.end_offset || (self.bytes_left == 0 && !self.out.is_empty())
    }

    fn take(
        &mut self,
        shared: &Shared,
        partition: &TopicIdPartition,
        file: FileId,
        loaded: &Loaded,
    ) -> Result<(), ReadError> {
        let extent = &loaded.extent;
        if extent.first_offset > self.next_offset
            && !shared.index().may_be_left_out(partition, file, extent.first_offset)
        {
            let missing = (self.next_offset, extent.first_offset - 1);
            return Err(corrupt(partition, missing, file, extent.position));
        }
        let refused = || corrupt(partition, (extent.first_offset, extent.last_offset), file, extent.position);
        let batches = loaded.batches().ok_or_else(refused)?;
        let mut run: Option<(usize, usize)> = None;
        let mut damaged = None;
        let from_offset = self.next_offset;
        for batch in batches.iter().filter(|batch| batch.last_offset >= from_offset) {
            let begun = run.is_some() || !self.out.is_empty();
            if batch.base_offset >= self.end_offset || (begun && batch.bytes > self.bytes_left) {
                self.full = true;
                break;
            }
            if !loaded.is_sound(batch) {
                damaged = Some(batch);
                break;
            }
            // Where there are gaps it may end in front of what is wanted; a client would ask for it again and again.
            if !begun && loaded.rope.end_of(batch).is_none_or(|end| end < from_offset) {
                continue;
            }
            let from = run.map_or(batch.at, |(from, _)| from);
            run = Some((from, batch.at + batch.bytes));
            self.bytes_left = self.bytes_left.saturating_sub(batch.bytes);
            self.next_offset = batch.last_offset + 1;
        }
        if let Some((from, to)) = run {
            self.out.extend(loaded.rope.slice(from, to));
        }
        match damaged {
            Some(batch) => {
                let offsets = (batch.base_offset, batch.last_offset);
                Err(corrupt(partition, offsets, file, extent.position + batch.at as u64))
            }
            None => Ok(()),
        }
    }
}
