//! A frame: the header, the entry headers in decision order, then the bodies grouped by partition.
//!
//! Everything in front of the bodies is covered by our CRC-32C (the entry headers by one, which the header's own
//! covers in turn); each body is a whole batch, covered by Kafka's CRC from byte 21 on and by the copy of its first
//! 21 bytes in the entry header before that. So every byte is summed once.
//!
//! Pure layout: writes and reads byte slices, does no I/O.

use bytes::{BufMut, Bytes, BytesMut};
use ottla_protocol::batch::{BATCH_HEAD_BYTES, BATCH_HEADER_BYTES};
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::types::{TopicIdPartition, Uuid};

use crate::index::{EXTENT_BYTES_MAX, Extent};
use crate::layout::{Crc, Fields, crc32c};
use crate::options::{FileId, FrameSequence};

const MAGIC: &[u8; 4] = b"OTFR";
/// Version of a frame's layout; the same in both versions of files so far.
const FRAME_VERSION: u16 = 1;
/// Bytes of the fixed header.
pub(crate) const FRAME_HEADER_BYTES: usize = 128;
/// Bytes of one entry header.
pub(crate) const ENTRY_HEADER_BYTES: usize = 64;
/// Batches below this are copied into the frame's buffer, larger ones are written from where they are.
const COPY_BELOW_BYTES: usize = 4096;

/// The fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) shard_id: u32,
    pub(crate) file: FileId,
    pub(crate) nonce: u64,
    /// Byte position of the frame in its file.
    pub(crate) at: u64,
    pub(crate) sequence: FrameSequence,
    pub(crate) epoch: i32,
    pub(crate) shard_time: i64,
    /// Number of the last decision in the frame.
    pub(crate) position: u64,
    pub(crate) entries: u32,
    pub(crate) entries_crc: u32,
    /// Header, entry headers and bodies; without the padding up to the next block.
    pub(crate) frame_bytes: u64,
}

impl FrameHeader {
    /// Where the bodies begin, from the start of the frame.
    pub(crate) fn bodies_at(&self) -> u64 {
        bodies_at(self.entries as usize)
    }

    /// The encoded header and its CRC.
    pub(crate) fn encode(&self) -> ([u8; FRAME_HEADER_BYTES], u32) {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let mut out = &mut bytes[..];
        out.put_slice(MAGIC);
        out.put_u16(FRAME_VERSION);
        out.put_u16(0);
        out.put_u32(self.shard_id);
        out.put_u32(self.bodies_at() as u32);
        out.put_u64(self.file.0);
        out.put_u64(self.nonce);
        out.put_u64(self.at);
        out.put_u64(self.sequence.0);
        out.put_i32(self.epoch);
        out.put_u32(self.entries);
        out.put_i64(self.shard_time);
        out.put_u64(self.position);
        out.put_u64(self.frame_bytes);
        out.put_u32(self.entries_crc);
        let crc = crc32c(&bytes[..FRAME_HEADER_BYTES - 4]);
        bytes[FRAME_HEADER_BYTES - 4..].copy_from_slice(&crc.to_be_bytes());
        (bytes, crc)
    }

    /// The header and its CRC, when the bytes are one; identity and bounds are the caller's to check.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, u32)> {
        let bytes = bytes.get(..FRAME_HEADER_BYTES)?;
        let fields = Fields(bytes);
        let crc = fields.u32(FRAME_HEADER_BYTES - 4);
        if &bytes[..4] != MAGIC || crc != crc32c(&bytes[..FRAME_HEADER_BYTES - 4]) {
            return None;
        }
        let header = Self {
            shard_id: fields.u32(8),
            file: FileId(fields.u64(16)),
            nonce: fields.u64(24),
            at: fields.u64(32),
            sequence: FrameSequence(fields.u64(40)),
            epoch: fields.i32(48),
            entries: fields.u32(52),
            shard_time: fields.i64(56),
            position: fields.u64(64),
            frame_bytes: fields.u64(72),
            entries_crc: fields.u32(80),
        };
        let sound = fields.u16(4) == FRAME_VERSION
            && u64::from(fields.u32(12)) == header.bodies_at()
            && header.frame_bytes >= header.bodies_at()
            && header.frame_bytes <= u64::from(u32::MAX);
        sound.then_some((header, crc))
    }
}

fn bodies_at(entries: usize) -> u64 {
    (FRAME_HEADER_BYTES + entries * ENTRY_HEADER_BYTES) as u64
}

/// What the frame says of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    pub(crate) partition: TopicIdPartition,
    pub(crate) kind: EntryKind,
    pub(crate) last_offset_delta: i32,
    /// Where the batch is, from the start of the frame.
    pub(crate) body_at: u32,
    pub(crate) max_timestamp: i64,
    /// The batch's first 21 bytes.
    pub(crate) head: [u8; BATCH_HEAD_BYTES],
}

impl EntryHeader {
    pub(crate) fn base_offset(&self) -> i64 {
        Fields(&self.head).i64(0)
    }

    pub(crate) fn last_offset(&self) -> i64 {
        self.base_offset().saturating_add(i64::from(self.last_offset_delta))
    }

    /// Bytes of the whole batch; 0 when the length field is senseless.
    pub(crate) fn batch_bytes(&self) -> u64 {
        u64::try_from(i64::from(Fields(&self.head).i32(8)) + 12).unwrap_or(0)
    }

    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(&self.partition.topic_id.0);
        out.put_i32(self.partition.partition);
        out.put_u8(self.kind as u8);
        out.put_bytes(0, 3);
        out.put_i32(self.last_offset_delta);
        out.put_u32(self.body_at);
        out.put_i64(self.max_timestamp);
        out.put_slice(&self.head);
        out.put_bytes(0, 3);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = Fields(bytes);
        let kind = match bytes[20] {
            0 => EntryKind::Batch,
            1 => EntryKind::Control,
            2 => EntryKind::PartitionLeave,
            3 => EntryKind::PartitionEnter,
            4 => EntryKind::Files,
            _ => return None,
        };
        Some(Self {
            partition: TopicIdPartition { topic_id: Uuid(fields.array(0)), partition: fields.i32(16) },
            kind,
            last_offset_delta: fields.i32(24),
            body_at: fields.u32(28),
            max_timestamp: fields.i64(32),
            head: fields.array(40),
        })
    }
}

/// The entry headers of a frame, checked: their CRC holds and their bodies tile the rest of the frame exactly.
/// `bytes` begins at the frame's start and reaches at least to the bodies.
pub(crate) fn decode_entries(header: &FrameHeader, bytes: &[u8]) -> Option<Vec<EntryHeader>> {
    let bytes = bytes.get(FRAME_HEADER_BYTES..usize::try_from(header.bodies_at()).ok()?)?;
    if crc32c(bytes) != header.entries_crc {
        return None;
    }
    let entries: Vec<EntryHeader> =
        bytes.chunks_exact(ENTRY_HEADER_BYTES).map(EntryHeader::decode).collect::<Option<_>>()?;
    let mut next = header.bodies_at();
    for index in body_order(&entries) {
        let entry = &entries[index];
        let sound = u64::from(entry.body_at) == next
            && entry.batch_bytes() >= BATCH_HEADER_BYTES as u64
            && entry.base_offset() >= 0
            && entry.last_offset_delta >= 0;
        if !sound {
            return None;
        }
        next += entry.batch_bytes();
    }
    (next == header.frame_bytes).then_some(entries)
}

/// Indexes of the entries in the order of their bodies.
fn body_order(entries: &[EntryHeader]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|index| entries[*index].body_at);
    order
}

/// The extents of a frame that begins at `at` in its file: runs of one partition's batches, one behind the other on
/// disk and in offsets, cut at `EXTENT_BYTES_MAX`. In a rewritten file there may be gaps between the offsets.
pub(crate) fn extents(file: FileId, entries: &[EntryHeader], at: u64) -> Vec<(TopicIdPartition, Extent)> {
    let mut out: Vec<(TopicIdPartition, Extent)> = Vec::new();
    let mut heads = Crc::new();
    for index in body_order(entries) {
        let entry = &entries[index];
        if !matches!(entry.kind, EntryKind::Batch | EntryKind::Control) {
            continue; // moves of partitions and changes of files are for replay, not for readers
        }
        let bytes = entry.batch_bytes() as u32;
        let joined = out.last_mut().filter(|(partition, extent)| {
            *partition == entry.partition
                && follows(file, extent.last_offset, entry.base_offset())
                && u64::from(extent.bytes) + u64::from(bytes) <= EXTENT_BYTES_MAX
        });
        if let Some((_, extent)) = joined {
            heads.update(&entry.head);
            extent.last_offset = entry.last_offset();
            extent.max_timestamp = extent.max_timestamp.max(entry.max_timestamp);
            extent.bytes += bytes;
            extent.heads_crc = heads.finish();
        } else {
            heads = Crc::new();
            heads.update(&entry.head);
            let extent = Extent {
                first_offset: entry.base_offset(),
                last_offset: entry.last_offset(),
                max_timestamp: entry.max_timestamp,
                position: at + u64::from(entry.body_at),
                bytes,
                heads_crc: heads.finish(),
            };
            out.push((entry.partition, extent));
        }
    }
    out
}

/// Whether a batch goes on where the one in front of it ends.
fn follows(file: FileId, last_offset: i64, base_offset: i64) -> bool {
    last_offset
        .checked_add(1)
        .is_some_and(|next| next == base_offset || (file.is_data() && next < base_offset))
}

/// A frame laid out but not yet placed in a file.
pub(crate) struct Plan {
    entries: Vec<EntryHeader>,
    order: Vec<usize>,
    /// Header, entry headers and bodies.
    pub(crate) frame_bytes: u64,
}

impl Plan {
    /// Lays the frame out; none when it is too large for the format.
    pub(crate) fn new(entries: &[Entry]) -> Option<Self> {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|index| entries[*index].partition);
        let mut headers: Vec<EntryHeader> = entries.iter().map(entry_header).collect();
        let mut next = bodies_at(entries.len());
        for index in &order {
            headers[*index].body_at = u32::try_from(next).ok()?;
            next += entries[*index].batch_bytes() as u64;
        }
        u32::try_from(next).ok()?;
        Some(Self { entries: headers, order, frame_bytes: next })
    }

    /// The entry headers in decision order.
    pub(crate) fn entries(&self) -> &[EntryHeader] {
        &self.entries
    }

    /// The frame's bytes as few pieces, in file order, and the CRC of its header. `header` lacks only what the
    /// plan knows: `entries`, `entries_crc`, `frame_bytes`.
    pub(crate) fn build(&self, mut header: FrameHeader, entries: &[Entry]) -> (Vec<Bytes>, u32) {
        let copied: usize = entries
            .iter()
            .map(
                |entry| {
                    if entry.tail.len() < COPY_BELOW_BYTES { entry.batch_bytes() } else { BATCH_HEAD_BYTES }
                },
            )
            .sum();
        let mut scratch = BytesMut::with_capacity(bodies_at(entries.len()) as usize + copied);
        scratch.put_bytes(0, FRAME_HEADER_BYTES);
        for entry in &self.entries {
            entry.encode(&mut scratch);
        }
        header.entries = u32::try_from(entries.len()).expect("the plan holds at most u32::MAX bytes");
        header.entries_crc = crc32c(&scratch[FRAME_HEADER_BYTES..]);
        header.frame_bytes = self.frame_bytes;
        let (encoded, crc) = header.encode();
        scratch[..FRAME_HEADER_BYTES].copy_from_slice(&encoded);

        let mut cuts = Vec::new(); // where a large body follows in the scratch buffer, and which
        for index in &self.order {
            scratch.put_slice(&self.entries[*index].head);
            let tail = &entries[*index].tail;
            if tail.len() < COPY_BELOW_BYTES {
                scratch.put_slice(tail);
            } else {
                cuts.push((scratch.len(), tail));
            }
        }
        let scratch = scratch.freeze();
        let mut pieces = Vec::with_capacity(2 * cuts.len() + 1);
        let mut from = 0;
        for (to, tail) in cuts {
            pieces.push(scratch.slice(from..to));
            pieces.push(tail.clone());
            from = to;
        }
        if from < scratch.len() {
            pieces.push(scratch.slice(from..));
        }
        (pieces, crc)
    }
}

fn entry_header(entry: &Entry) -> EntryHeader {
    assert_eq!(
        i64::from(entry.header.batch_length) + 12,
        entry.batch_bytes() as i64,
        "a batch's length field counts its bytes"
    );
    assert!(entry.batch_bytes() >= BATCH_HEADER_BYTES, "a batch has a whole header");
    assert!(
        entry.header.base_offset >= 0 && entry.header.last_offset_delta >= 0,
        "offsets count up from zero"
    );
    EntryHeader {
        partition: entry.partition,
        kind: entry.kind,
        last_offset_delta: entry.header.last_offset_delta,
        body_at: 0,
        max_timestamp: entry.header.max_timestamp,
        head: entry.head(),
    }
}
