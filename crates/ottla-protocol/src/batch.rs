//! Record batches, format version 2 (KIP-98): the 61-byte header, its flags, and how batches are built.
//!
//! Layout in `docs/format.md`; offsets below are from the start of the batch, integers are big endian.

/// Bytes of the fixed header.
pub const BATCH_HEADER_BYTES: usize = 61;
/// Bytes in front of what the CRC covers.
pub const BATCH_HEAD_BYTES: usize = 21;

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

impl BatchHeader {
    /// Offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// The first 21 bytes.
    pub fn head(&self) -> [u8; 21] {
        let mut head = [0; 21];
        head[0..8].copy_from_slice(&self.base_offset.to_be_bytes());
        head[8..12].copy_from_slice(&self.batch_length.to_be_bytes());
        head[12..16].copy_from_slice(&self.partition_leader_epoch.to_be_bytes());
        head[16] = self.magic.to_be_bytes()[0];
        head[17..21].copy_from_slice(&self.crc.to_be_bytes());
        head
    }
}
