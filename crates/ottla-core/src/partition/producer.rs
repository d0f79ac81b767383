//! What a partition remembers of one producer (eos-semantics, section 2).
//!
//! Place in the walk: read by the append rules, changed only when an entry is applied.

use ottla_protocol::batch::{BatchHeader, increment_sequence};

use crate::decision::ShardTime;

/// Batches that are remembered per producer: as many as a client may have in flight.
pub(super) const BATCHES_MAX: usize = 5;

/// "No coordinator epoch": no marker yet.
pub(super) const NO_COORDINATOR_EPOCH: i32 = -1;

/// A batch by which a resend is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachedBatch {
    pub(crate) first_sequence: i32,
    /// Records behind the first one.
    pub(crate) last_offset_delta: i32,
    pub(crate) base_offset: i64,
    /// The batch's largest timestamp, ms; its append time when the topic has LogAppendTime.
    pub(crate) max_timestamp: i64,
}

impl CachedBatch {
    /// Sequence of the last record.
    pub(crate) fn last_sequence(&self) -> i32 {
        increment_sequence(self.first_sequence, self.last_offset_delta)
    }
}

/// One producer in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProducerState {
    /// Slot of the partition.
    pub(super) partition_slot: u32,
    pub(super) producer_id: i64,
    pub(super) producer_epoch: i16,
    pub(super) coordinator_epoch: i32,
    /// Largest timestamp of the last batch, ms.
    pub(super) last_timestamp: i64,
    /// Shard time of the last append, ms; decides about expiry.
    pub(super) last_append_time: i64,
    /// First offset of the open transaction, -1 for none.
    pub(super) transaction_first_offset: i64,
    /// The last batches of the current epoch, oldest first.
    pub(super) batches: [CachedBatch; BATCHES_MAX],
    pub(super) batches_count: u8,
}

impl ProducerState {
    pub(super) fn new(partition_slot: u32, producer_id: i64, producer_epoch: i16) -> Self {
        Self {
            partition_slot,
            producer_id,
            producer_epoch,
            coordinator_epoch: NO_COORDINATOR_EPOCH,
            last_timestamp: -1,
            last_append_time: -1,
            transaction_first_offset: -1,
            batches: [CachedBatch::default(); BATCHES_MAX],
            batches_count: 0,
        }
    }

    /// Whose entry it is.
    pub(crate) fn producer_id(&self) -> i64 {
        self.producer_id
    }

    /// The epoch that counts.
    pub(crate) fn producer_epoch(&self) -> i16 {
        self.producer_epoch
    }

    /// Epoch of the coordinator that wrote the last marker, -1 for none.
    pub(crate) fn coordinator_epoch(&self) -> i32 {
        self.coordinator_epoch
    }

    /// The remembered batches, oldest first.
    pub(crate) fn batches(&self) -> &[CachedBatch] {
        &self.batches[..usize::from(self.batches_count)]
    }

    /// Sequence of the last record of the current epoch, -1 for none.
    pub(crate) fn last_sequence(&self) -> i32 {
        self.batches().last().map_or(-1, CachedBatch::last_sequence)
    }

    /// First offset of the open transaction.
    pub(crate) fn transaction_first_offset(&self) -> Option<i64> {
        (self.transaction_first_offset >= 0).then_some(self.transaction_first_offset)
    }

    /// Whether a transaction of exactly this epoch is open.
    pub(crate) fn has_open_transaction(&self, producer_epoch: i16) -> bool {
        self.transaction_first_offset >= 0 && self.producer_epoch == producer_epoch
    }

    /// The remembered batch that this one is a resend of: same epoch, exactly the same sequences.
    #[inline]
    pub(crate) fn duplicate_of(&self, header: &BatchHeader) -> Option<&CachedBatch> {
        if header.producer_epoch != self.producer_epoch || header.base_sequence < 0 {
            return None;
        }
        self.batches().iter().rev().find(|batch| {
            batch.first_sequence == header.base_sequence
                && batch.last_offset_delta == header.last_offset_delta
        })
    }

    fn set_epoch(&mut self, producer_epoch: i16) {
        if producer_epoch != self.producer_epoch {
            self.producer_epoch = producer_epoch;
            self.batches_count = 0;
            self.batches = [CachedBatch::default(); BATCHES_MAX];
        }
    }

    /// Takes note of a batch that has its place in the log. Batches of coordinators have no sequence and are not
    /// remembered.
    #[inline]
    pub(super) fn append(&mut self, header: &BatchHeader, time: ShardTime) {
        self.set_epoch(header.producer_epoch);
        self.last_timestamp = header.max_timestamp;
        self.last_append_time = time.0;
        if header.base_sequence < 0 {
            return;
        }
        if usize::from(self.batches_count) == BATCHES_MAX {
            self.batches.copy_within(1.., 0);
            self.batches_count -= 1;
        }
        self.batches[usize::from(self.batches_count)] = CachedBatch {
            first_sequence: header.base_sequence,
            last_offset_delta: header.last_offset_delta,
            base_offset: header.base_offset,
            max_timestamp: header.max_timestamp,
        };
        self.batches_count += 1;
    }

    /// Opens a transaction unless one is open. True when it was opened.
    pub(super) fn begin_transaction(&mut self, base_offset: i64) -> bool {
        let opened = self.transaction_first_offset < 0;
        if opened {
            self.transaction_first_offset = base_offset;
        }
        opened
    }

    /// Takes note of a marker. Returns the first offset of the transaction that it ended.
    pub(super) fn end_transaction(
        &mut self,
        header: &BatchHeader,
        coordinator_epoch: i32,
        time: ShardTime,
    ) -> Option<i64> {
        let first_offset = self.transaction_first_offset();
        self.set_epoch(header.producer_epoch);
        self.coordinator_epoch = coordinator_epoch;
        self.last_timestamp = header.max_timestamp;
        self.last_append_time = time.0;
        self.transaction_first_offset = -1;
        first_offset
    }
}
