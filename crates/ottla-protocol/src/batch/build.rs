//! Builds batches: records are encoded into one buffer behind room for the header, which is filled in last.
//!
//! An uncompressed batch is one allocation and no copy. Used by the client (produced batches) and by the shard
//! (coordinator and control records); transaction markers have their own fixed form in `marker`.

use bytes::Bytes;
use thiserror::Error;

use super::{
    BATCH_HEAD_BYTES, BATCH_HEADER_BYTES, BatchHeader, LENGTH_OVERHEAD_BYTES, MAGIC, TRANSACTIONAL_BIT,
    crc_of,
};
use crate::compression::{self, Codec};
use crate::record::{self, NewRecord};
use crate::types::{NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE};

/// Bytes of encoded records that a builder takes at most: lengths are 32 bits on the wire, and compression may
/// add a little.
const RECORDS_BYTES_MAX: usize = 1 << 30;

/// A record does not fit into the batch any more (1 GiB, or a record of that size).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the batch would grow beyond 1 GiB")]
pub struct BatchTooLarge;

/// Who writes a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Producer id, -1 for none.
    pub producer_id: i64,
    /// Producer epoch, -1 for none.
    pub producer_epoch: i16,
    /// Sequence of the first record, -1 for none.
    pub base_sequence: i32,
    /// Whether the batch is part of a transaction.
    pub transactional: bool,
}

impl Producer {
    /// No idempotence, no transaction.
    pub const NONE: Self = Self {
        producer_id: NO_PRODUCER_ID,
        producer_epoch: NO_PRODUCER_EPOCH,
        base_sequence: NO_SEQUENCE,
        transactional: false,
    };
}

/// A batch under construction.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    codec: Codec,
    producer: Producer,
    base_offset: i64,
    partition_leader_epoch: i32,
    base_timestamp: i64,
    max_timestamp: i64,
    records_count: i32,
    /// Room for the header, then the encoded records.
    buffer: Vec<u8>,
}

impl BatchBuilder {
    /// An empty batch: base offset 0, leader epoch -1, no producer.
    pub fn new(codec: Codec) -> Self {
        Self::with_capacity(codec, 0)
    }

    /// As `new`, with room for that many bytes of encoded records.
    pub fn with_capacity(codec: Codec, records_bytes: usize) -> Self {
        let mut buffer = Vec::with_capacity(BATCH_HEADER_BYTES + records_bytes);
        buffer.resize(BATCH_HEADER_BYTES, 0);
        Self {
            codec,
            producer: Producer::NONE,
            base_offset: 0,
            partition_leader_epoch: -1,
            base_timestamp: -1,
            max_timestamp: -1,
            records_count: 0,
            buffer,
        }
    }

    /// Sets who writes the batch; may be called until it is built (a client knows the sequence only then).
    pub fn set_producer(&mut self, producer: Producer) -> &mut Self {
        self.producer = producer;
        self
    }

    /// Sets the offset of the first record, for batches that do not pass through an append.
    pub fn set_base_offset(&mut self, base_offset: i64) -> &mut Self {
        self.base_offset = base_offset;
        self
    }

    /// Sets the leader epoch.
    pub fn set_partition_leader_epoch(&mut self, leader_epoch: i32) -> &mut Self {
        self.partition_leader_epoch = leader_epoch;
        self
    }

    /// Appends a record. Refuses, and leaves the batch as it was, when it would grow beyond 1 GiB.
    pub fn append(&mut self, record: &NewRecord<'_>) -> Result<(), BatchTooLarge> {
        let room = (RECORDS_BYTES_MAX + BATCH_HEADER_BYTES).saturating_sub(self.buffer.len());
        if record.encoded_bytes_max() > room {
            return Err(BatchTooLarge);
        }
        if self.records_count == 0 {
            self.base_timestamp = record.timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(record.timestamp);
        let timestamp_delta = record.timestamp.wrapping_sub(self.base_timestamp);
        record::encode(&mut self.buffer, timestamp_delta, self.records_count, record);
        self.records_count += 1;
        Ok(())
    }

    /// Number of records so far.
    pub fn records_count(&self) -> i32 {
        self.records_count
    }

    /// Whether no record was appended yet.
    pub fn is_empty(&self) -> bool {
        self.records_count == 0
    }

    /// Size of the batch if it were built now without compression, bytes.
    pub fn estimated_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The whole batch.
    pub fn build(self) -> Bytes {
        self.finish().1
    }

    /// The batch as header and tail, as the log takes it.
    pub fn build_parts(self) -> (BatchHeader, Bytes) {
        let (header, bytes) = self.finish();
        (header, bytes.slice(BATCH_HEAD_BYTES..))
    }

    fn finish(self) -> (BatchHeader, Bytes) {
        let mut bytes = match self.codec {
            Codec::None => self.buffer,
            codec => {
                let (room, records) = self.buffer.split_at(BATCH_HEADER_BYTES);
                let mut bytes = Vec::with_capacity(BATCH_HEADER_BYTES + records.len() / 2);
                bytes.extend_from_slice(room);
                compression::compress_into(codec, records, &mut bytes);
                bytes
            }
        };
        let transactional = if self.producer.transactional { TRANSACTIONAL_BIT } else { 0 };
        let mut header = BatchHeader {
            base_offset: self.base_offset,
            batch_length: i32::try_from(bytes.len() - LENGTH_OVERHEAD_BYTES).expect("append keeps to 1 GiB"),
            partition_leader_epoch: self.partition_leader_epoch,
            magic: MAGIC,
            crc: 0,
            attributes: self.codec.bits() | transactional,
            last_offset_delta: (self.records_count - 1).max(0),
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id: self.producer.producer_id,
            producer_epoch: self.producer.producer_epoch,
            base_sequence: self.producer.base_sequence,
            records_count: self.records_count,
        };
        seal(&mut header, &mut bytes);
        (header, Bytes::from(bytes))
    }
}

/// Writes the header over the first 61 bytes of a whole batch, with the CRC of what follows.
pub(super) fn seal(header: &mut BatchHeader, bytes: &mut [u8]) {
    let (head, tail) =
        bytes.split_first_chunk_mut::<BATCH_HEAD_BYTES>().expect("a batch has room for its header");
    let (fixed, _) = tail.split_first_chunk_mut().expect("a batch has room for its header");
    *fixed = header.tail_header();
    header.crc = crc_of(tail);
    *head = header.head();
}

/// An uncompressed batch of keyed records with one timestamp, as the coordinators and the control log write
/// them; one allocation. The sum of all keys and values must stay below 1 GiB.
pub fn build_plain<'a, I>(timestamp: i64, producer: Producer, records: I) -> (BatchHeader, Bytes)
where
    I: IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    I::IntoIter: Clone,
{
    let records =
        records.into_iter().map(|(key, value)| NewRecord { timestamp, key: Some(key), value, headers: &[] });
    let capacity = records.clone().map(|record| record.encoded_bytes_max()).sum();
    let mut builder = BatchBuilder::with_capacity(Codec::None, capacity);
    builder.set_producer(producer);
    for record in records {
        builder.append(&record).expect("the caller keeps its records below 1 GiB");
    }
    builder.build_parts()
}
