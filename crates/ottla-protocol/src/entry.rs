//! An entry: one record batch at its place in a partition, as the shard decides it and the log stores it.
//!
//! The first 21 bytes of a batch (base offset, length, leader epoch, magic, CRC) are not covered by Kafka's
//! CRC and are set by the broker; everything from byte 21 on is the producer's own buffer, shared.

use bytes::{BufMut, Bytes, BytesMut};

use crate::batch::BatchHeader;
use crate::types::TopicIdPartition;

/// What an entry is for. The numbers are part of the log's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// A record batch of a topic's partition: data, markers, coordinator records.
    Batch = 0,
    /// A record batch of the control log (topics, configs, features, producer id blocks). It has a kind of its
    /// own so that control records can one day live in a shard of their own.
    Control = 1,
    /// Reserved: a partition leaves this shard.
    PartitionLeave = 2,
    /// Reserved: a partition enters this shard.
    PartitionEnter = 3,
    /// Which files the log consists of has changed. Written and read by the log itself; no state sees it.
    Files = 4,
}

/// One batch at its final place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the entry is for.
    pub kind: EntryKind,
    /// The partition it is appended to.
    pub partition: TopicIdPartition,
    /// The batch's header with `base_offset` and `partition_leader_epoch` as stored.
    pub header: BatchHeader,
    /// The batch from byte 21 (attributes) to its end.
    pub tail: Bytes,
}

impl Entry {
    /// The first 21 bytes of the batch as stored.
    pub fn head(&self) -> [u8; 21] {
        self.header.head()
    }

    /// Length of the whole batch in bytes.
    pub fn batch_bytes(&self) -> usize {
        21 + self.tail.len()
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.header.last_offset()
    }

    /// The whole batch in one buffer (copies).
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.batch_bytes());
        out.put_slice(&self.head());
        out.put_slice(&self.tail);
        out.freeze()
    }
}
