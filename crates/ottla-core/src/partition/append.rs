//! Whether a batch or a marker may be appended (eos-semantics 2.1 and 2.2; its scenarios name the tests).
//!
//! Place in the walk: asked by `produce` for a client's batch, by the coordinators for theirs, right before the
//! entry is built. Pure: reads the state, changes nothing.
//!
//! Verification happens at the same decision as the append, so the guards of KIP-890 (is the answer of the
//! coordinator still about this transaction?) always hold here and do not exist; what they would refuse, a batch
//! of a transaction that has ended, is refused by the coordinator itself.

use ottla_protocol::batch::BatchHeader;
use ottla_protocol::error::ErrorCode;

use super::{CachedBatch, Partitions};
use crate::shard::Marker;

/// Largest producer epoch; it is reached by fencing alone.
const PRODUCER_EPOCH_MAX: i16 = i16::MAX;

/// What the rules need to know beside the batch itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchRules {
    /// The request is of protocol v2: a transaction starts at sequence 0 on every partition.
    pub(crate) transactions_v2: bool,
    /// The lowest sequence of this producer and epoch whose verification was refused.
    pub(crate) lowest_refused_sequence: Option<i32>,
}

/// That a batch may be appended, or that it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// It may be appended.
    New,
    /// It is this batch, sent again.
    Duplicate(CachedBatch),
}

impl Partitions {
    /// The remembered batch that this one is a resend of. Looked up before everything else, so that a resend
    /// that arrives after its transaction ended still gets its offset.
    #[inline]
    pub(crate) fn duplicate_of(&self, slot: u32, header: &BatchHeader) -> Option<CachedBatch> {
        if !header.has_producer_id() {
            return None;
        }
        self.producer(slot, header.producer_id)?.duplicate_of(header).copied()
    }

    /// Whether a transaction of exactly this producer and epoch is open here.
    pub(crate) fn has_open_transaction(&self, slot: u32, producer_id: i64, producer_epoch: i16) -> bool {
        self.producer(slot, producer_id).is_some_and(|state| state.has_open_transaction(producer_epoch))
    }

    /// Whether the epoch is not over: 47 when a newer one was seen.
    pub(crate) fn check_epoch(
        &self,
        slot: u32,
        producer_id: i64,
        producer_epoch: i16,
    ) -> Result<(), ErrorCode> {
        match self.producer(slot, producer_id) {
            Some(state) if producer_epoch < state.producer_epoch() => Err(ErrorCode::InvalidProducerEpoch),
            _ => Ok(()),
        }
    }

    /// Whether a client's batch may be appended: rules 1 and 3 to 5 of eos-semantics 2.1, the first match decides.
    #[inline]
    pub(crate) fn check_batch(
        &self,
        slot: u32,
        header: &BatchHeader,
        rules: BatchRules,
    ) -> Result<Appended, ErrorCode> {
        if !header.has_producer_id() {
            return Ok(Appended::New);
        }
        let state = self.producer(slot, header.producer_id);
        let state = state.as_deref();
        if let Some(duplicate) = state.and_then(|state| state.duplicate_of(header)) {
            return Ok(Appended::Duplicate(*duplicate));
        }
        let first = header.base_sequence;
        let out_of_order = Err(ErrorCode::OutOfOrderSequenceNumber);
        let transactional = header.is_transactional();
        let is_open = state.is_some_and(|state| state.has_open_transaction(header.producer_epoch));
        if state.is_some_and(|state| header.producer_epoch < state.producer_epoch()) {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        if transactional && !is_open {
            // 4a: with v2 every transaction has an epoch of its own, which starts at 0.
            let has_batches = state.is_some_and(|state| !state.batches().is_empty());
            if rules.transactions_v2 && !has_batches && first != 0 {
                return out_of_order;
            }
            // 4b: a batch in front of this one was refused by verification and will come again.
            if rules.lowest_refused_sequence.is_some_and(|lowest| first > lowest) {
                return out_of_order;
            }
        }
        let Some(state) = state else {
            // State that was lost to expiry: any sequence continues it (KIP-360).
            return Ok(Appended::New);
        };
        let expected = if header.producer_epoch > state.producer_epoch() {
            0
        } else {
            // Without batches of this epoch the last sequence is -1, so that only 0 passes.
            let last = state.last_sequence();
            if last == i32::MAX { 0 } else { last + 1 }
        };
        if first != expected {
            return out_of_order;
        }
        if !transactional && state.transaction_first_offset().is_some() {
            return Err(ErrorCode::InvalidTxnState);
        }
        Ok(Appended::New)
    }

    /// Whether a marker may be written: the epoch (47) comes before the coordinator's epoch (52).
    pub(crate) fn check_marker(&self, slot: u32, marker: &Marker) -> Result<(), ErrorCode> {
        let Some(state) = self.producer(slot, marker.producer_id) else { return Ok(()) };
        let epoch = state.producer_epoch();
        let fenced = if marker.transaction_version < 2 || marker.producer_epoch != epoch {
            marker.producer_epoch < epoch
        } else {
            // A v2 marker passes the epoch of its transaction. It may repeat it when it has done its work (a
            // lost answer, KAFKA-19999), and where no higher epoch exists (KAFKA-20090).
            state.transaction_first_offset().is_some() && epoch != PRODUCER_EPOCH_MAX
        };
        if fenced {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        if marker.coordinator_epoch < state.coordinator_epoch() {
            return Err(ErrorCode::TransactionCoordinatorFenced);
        }
        Ok(())
    }
}
