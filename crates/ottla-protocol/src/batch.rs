//! Record batches, format version 2 (KIP-98): the 61-byte header, its flags, its CRC, and sequence arithmetic.
//!
//! Place in the walk: the connection parses a produced batch here, the shard stamps its head, the log stores
//! head and tail, a fetch sends them as they are. Layout in `docs/format.md`; offsets below are from the start
//! of the batch, integers are big endian. A batch is handled as two parts: the *head* (the first 21 bytes, set
//! by the broker, not covered by the CRC) and the *tail* (all the rest, the producer's own buffer, shared).
//! Building is in `build`, transaction markers in `marker`, leaving records out in `rewrite`, walking a buffer of
//! batches in `iter`.
//!
//! What it does not do: judge whether a client may send a batch (`check`), decode records (`record`).

mod build;
mod iter;
mod marker;
mod rewrite;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use thiserror::Error;

pub use build::{BatchBuilder, BatchTooLarge, Producer, build_plain};
pub use iter::{Batch, BatchIter};
pub use marker::{MARKER_BATCH_BYTES, Marker, MarkerError, build_marker, parse_marker};
pub use rewrite::{KeptRecord, empty_batch, retain_records};

use crate::compression::{Codec, UnknownCodec};

/// Bytes of the fixed header.
pub const BATCH_HEADER_BYTES: usize = 61;
/// Bytes in front of what the CRC covers.
pub const BATCH_HEAD_BYTES: usize = 21;
/// Bytes of the fixed header that are in the tail: where the records begin in a tail.
pub const TAIL_HEADER_BYTES: usize = BATCH_HEADER_BYTES - BATCH_HEAD_BYTES;
/// Bytes that `batch_length` does not count: base offset and the length itself.
pub const LENGTH_OVERHEAD_BYTES: usize = 12;
/// The smallest `batch_length`: a header without records.
pub const BATCH_LENGTH_MIN: i32 = 49;
/// The only format version there is a reader for.
pub const MAGIC: i8 = 2;

/// Bits of `attributes` that name the codec.
pub const CODEC_MASK: i16 = 0x07;
/// Bit of `attributes`: timestamps are the broker's append time.
pub const LOG_APPEND_TIME_BIT: i16 = 0x08;
/// Bit of `attributes`: the batch is part of a transaction.
pub const TRANSACTIONAL_BIT: i16 = 0x10;
/// Bit of `attributes`: a control batch, not shown to applications.
pub const CONTROL_BIT: i16 = 0x20;
/// Bit of `attributes`: `base_timestamp` is the delete horizon.
pub const DELETE_HORIZON_BIT: i16 = 0x40;

/// Where `attributes` is in a tail.
const ATTRIBUTES_AT: usize = 0;
/// Where `max_timestamp` is in a tail.
const MAX_TIMESTAMP_AT: usize = 14;

/// What a batch's timestamps mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampType {
    /// Set by the producer, one per record.
    #[default]
    CreateTime,
    /// Set by the broker at the append, one for all records of a batch.
    LogAppendTime,
}

/// The header of a batch, all fields as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Bytes behind this field: the batch's length minus 12.
    pub batch_length: i32,
    /// Leader epoch at the append.
    pub partition_leader_epoch: i32,
    /// Format version; 2.
    pub magic: i8,
    /// CRC-32C over every byte from offset 21.
    pub crc: u32,
    /// Codec, timestamp type and flags.
    pub attributes: i16,
    /// Offset of the last record minus `base_offset`.
    pub last_offset_delta: i32,
    /// Timestamp of the first record, ms; the delete horizon when its flag is set.
    pub base_timestamp: i64,
    /// Largest timestamp, ms; the append time for LogAppendTime.
    pub max_timestamp: i64,
    /// Producer id, -1 for none.
    pub producer_id: i64,
    /// Producer epoch, -1 for none.
    pub producer_epoch: i16,
    /// Sequence of the first record, -1 for none.
    pub base_sequence: i32,
    /// Number of records.
    pub records_count: i32,
}

/// Why bytes are not a batch of format version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// The bytes end before the batch does.
    #[error("batch is cut: it needs {needed_bytes} bytes, {available_bytes} are there")]
    Cut {
        /// Bytes that the batch, or its header, needs.
        needed_bytes: usize,
        /// Bytes that are there.
        available_bytes: usize,
    },
    /// The length field is smaller than a header.
    #[error("batch length {0} is smaller than a header")]
    Length(i32),
    /// Another format version.
    #[error("batch has magic {0}, not 2")]
    Magic(i8),
    /// The bytes are not those that were summed.
    #[error("batch has CRC {computed:#010x}, its header says {stored:#010x}")]
    Crc {
        /// As in the header.
        stored: u32,
        /// As computed over the tail.
        computed: u32,
    },
}

/// Takes `N` bytes at `at`.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`; the records need not be there, the CRC is not checked.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let cut = BatchError::Cut { needed_bytes: BATCH_HEADER_BYTES, available_bytes: bytes.len() };
        let (head, tail) = bytes.split_first_chunk::<BATCH_HEAD_BYTES>().ok_or(cut)?;
        Self::from_parts(head, tail)
    }

    /// Reads the header from a head and the tail that belongs to it.
    pub fn from_parts(head: &[u8; BATCH_HEAD_BYTES], tail: &[u8]) -> Result<Self, BatchError> {
        let cut = BatchError::Cut {
            needed_bytes: BATCH_HEADER_BYTES,
            available_bytes: BATCH_HEAD_BYTES + tail.len(),
        };
        let fixed: &[u8; TAIL_HEADER_BYTES] = tail.first_chunk().ok_or(cut)?;
        let header = Self::read(head, fixed).expect("both arrays hold every field");
        if header.magic != MAGIC {
            return Err(BatchError::Magic(header.magic));
        }
        if header.batch_length < BATCH_LENGTH_MIN {
            return Err(BatchError::Length(header.batch_length));
        }
        Ok(header)
    }

    fn read(head: &[u8; BATCH_HEAD_BYTES], fixed: &[u8; TAIL_HEADER_BYTES]) -> Option<Self> {
        Some(Self {
            base_offset: i64::from_be_bytes(field(head, 0)?),
            batch_length: i32::from_be_bytes(field(head, 8)?),
            partition_leader_epoch: i32::from_be_bytes(field(head, 12)?),
            magic: i8::from_be_bytes(field(head, 16)?),
            crc: u32::from_be_bytes(field(head, 17)?),
            attributes: i16::from_be_bytes(field(fixed, ATTRIBUTES_AT)?),
            last_offset_delta: i32::from_be_bytes(field(fixed, 2)?),
            base_timestamp: i64::from_be_bytes(field(fixed, 6)?),
            max_timestamp: i64::from_be_bytes(field(fixed, MAX_TIMESTAMP_AT)?),
            producer_id: i64::from_be_bytes(field(fixed, 22)?),
            producer_epoch: i16::from_be_bytes(field(fixed, 30)?),
            base_sequence: i32::from_be_bytes(field(fixed, 32)?),
            records_count: i32::from_be_bytes(field(fixed, 36)?),
        })
    }

    /// The first 21 bytes.
    pub fn head(&self) -> [u8; BATCH_HEAD_BYTES] {
        let mut head = [0; BATCH_HEAD_BYTES];
        head[0..8].copy_from_slice(&self.base_offset.to_be_bytes());
        head[8..12].copy_from_slice(&self.batch_length.to_be_bytes());
        head[12..16].copy_from_slice(&self.partition_leader_epoch.to_be_bytes());
        head[16] = self.magic.to_be_bytes()[0];
        head[17..21].copy_from_slice(&self.crc.to_be_bytes());
        head
    }

    /// The 40 bytes of the header that the tail begins with.
    pub fn tail_header(&self) -> [u8; TAIL_HEADER_BYTES] {
        let mut fixed = [0; TAIL_HEADER_BYTES];
        fixed[0..2].copy_from_slice(&self.attributes.to_be_bytes());
        fixed[2..6].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        fixed[6..14].copy_from_slice(&self.base_timestamp.to_be_bytes());
        fixed[14..22].copy_from_slice(&self.max_timestamp.to_be_bytes());
        fixed[22..30].copy_from_slice(&self.producer_id.to_be_bytes());
        fixed[30..32].copy_from_slice(&self.producer_epoch.to_be_bytes());
        fixed[32..36].copy_from_slice(&self.base_sequence.to_be_bytes());
        fixed[36..40].copy_from_slice(&self.records_count.to_be_bytes());
        fixed
    }

    /// All 61 bytes.
    pub fn write(&self) -> [u8; BATCH_HEADER_BYTES] {
        let mut out = [0; BATCH_HEADER_BYTES];
        out[..BATCH_HEAD_BYTES].copy_from_slice(&self.head());
        out[BATCH_HEAD_BYTES..].copy_from_slice(&self.tail_header());
        out
    }

    /// Bytes of the whole batch by its length field; 0 for a length that no batch can have.
    pub fn batch_bytes(&self) -> usize {
        usize::try_from(self.batch_length).map_or(0, |length| length + LENGTH_OVERHEAD_BYTES)
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// Sequence of the last record, -1 when the batch has none.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return self.base_sequence;
        }
        increment_sequence(self.base_sequence, self.last_offset_delta)
    }

    /// How the records are compressed.
    pub fn codec(&self) -> Result<Codec, UnknownCodec> {
        Codec::from_attributes(self.attributes)
    }

    /// What the timestamps mean.
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes & LOG_APPEND_TIME_BIT == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Whether the batch is part of a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL_BIT != 0
    }

    /// Whether this is a control batch.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL_BIT != 0
    }

    /// Whether `base_timestamp` is the delete horizon.
    pub fn has_delete_horizon(&self) -> bool {
        self.attributes & DELETE_HORIZON_BIT != 0
    }

    /// Whether the batch carries a producer id. Batches without one may carry any epoch and sequence:
    /// several clients send zeros there.
    pub fn has_producer_id(&self) -> bool {
        self.producer_id >= 0
    }

    /// Checks the tail against the CRC of this header.
    pub fn check_crc(&self, tail: &[u8]) -> Result<(), BatchError> {
        let computed = crc_of(tail);
        if computed == self.crc { Ok(()) } else { Err(BatchError::Crc { stored: self.crc, computed }) }
    }
}

/// CRC-32C of a tail: what the header's `crc` must be.
pub fn crc_of(tail: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(tail)
}

/// The batch with the append time as its timestamp: bit 3 set, `max_timestamp` = `now_ms`, CRC anew.
/// Copies the tail once. For topics with LogAppendTime, called when the shard decides.
pub fn stamp_log_append_time(header: &BatchHeader, tail: &[u8], now_ms: i64) -> (BatchHeader, Bytes) {
    let stamped =
        BatchHeader { attributes: header.attributes | LOG_APPEND_TIME_BIT, max_timestamp: now_ms, ..*header };
    restamp(&stamped, tail)
}

/// Replaces the header in front of a tail's records and sums it anew. Copies the tail once.
pub(crate) fn restamp(header: &BatchHeader, tail: &[u8]) -> (BatchHeader, Bytes) {
    let mut bytes = tail.to_vec();
    let fixed = bytes.first_chunk_mut::<TAIL_HEADER_BYTES>().expect("a tail begins with 40 bytes of header");
    *fixed = header.tail_header();
    (BatchHeader { crc: crc_of(&bytes), ..*header }, Bytes::from(bytes))
}

/// The sequence `by` records behind `sequence`, modulo 2^31: after 2147483647 comes 0.
/// Both must not be negative.
pub fn increment_sequence(sequence: i32, by: i32) -> i32 {
    sequence.wrapping_add(by) & i32::MAX
}

/// The sequence `by` records in front of `sequence`, modulo 2^31.
pub fn decrement_sequence(sequence: i32, by: i32) -> i32 {
    sequence.wrapping_sub(by) & i32::MAX
}
