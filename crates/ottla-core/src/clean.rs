//! The cleaner's rules: what compaction may leave out of a partition (`cleanup.policy=compact`), batch by batch.
//!
//! Place in the walk: whoever rewrites files asks [`plan`] whether a pass is worth it and how far it may go, feeds
//! the uncleaned part to an [`Indexing`], which gives the last offset of every key, and then every batch of the
//! partition, from the log start on and in order, to a [`Pass`], which says for each whether it stays, changes or
//! goes. No I/O, no clock: `now` is an argument.
//!
//! What a pass found is written into the shard's log ([`Cleaned`], `CommandBody::Cleaned`) in two steps, with what
//! makes the rewritten files live between them, each durable before the next: first [`Cleaned::announced`], so that
//! nobody is told of an older tombstone horizon when the tombstones have gone; then the files; then the whole. A
//! crash in between loses work, never truth: a pass that was not written down is made again. The other way round a
//! part that was never cleaned would count as clean, and a tombstone in it could go before what it deletes.
//!
//! The rules are Kafka's (eos-semantics 1.4, KIP-534), in the order in which they count:
//! - Nothing at or behind the last stable offset changes; nor does what `min.compaction.lag.ms` protects.
//! - Records of aborted transactions go. Of the others a record stays if it is the last one of its key; records
//!   without a key go.
//! - A tombstone that is the last of its key stays until its batch's delete horizon, which the first pass that
//!   meets it sets to `now` + `delete.retention.ms` (attribute bit 6, base timestamp).
//! - A marker goes the same way, but only from the pass on that met no batch of its transaction.
//! - The last batch of a producer that the partition remembers stays, without records if it must; so does the
//!   last batch of a pass, so that readers and tools find where the log went on.
//! - Offsets never move, and a batch keeps base offset, last offset and sequence.
//!
//! Beyond Kafka: an ABORT marker goes only when the index of aborted transactions does not name it any more. A
//! transaction of which a pass met no batch leaves the index with the record of that pass, its marker leaves the
//! log in a later one. So no reader is ever told of an aborted transaction whose end it will not meet, which would
//! make it drop what the producer committed later.
//!
//! What cannot be decoded is kept as it is: to keep too much is never wrong.

mod filter;
mod key_map;
mod plan;
#[cfg(test)]
mod tests;
mod transactions;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use filter::{Pass, PassReport, Verdict};
pub use key_map::{Indexed, Indexing, KeyMap, Latest};
pub use plan::{Extent, Plan, Why, plan};

use crate::cluster::config::TopicConfig;
use crate::partition::AbortedIndex;

/// The settings of a topic that bind the cleaner. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// `delete.retention.ms`: how long tombstones and markers stay once a pass has met them.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`: younger batches are left alone.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`: older uncleaned batches make a pass due.
    pub max_compaction_lag_ms: i64,
    /// `min.cleanable.dirty.ratio`: uncleaned share of the bytes, 0 to 1, above which a pass is worth it.
    pub min_cleanable_dirty_ratio: f64,
    /// Bytes that one batch may have when decompressed; a larger one is kept as it is.
    pub decompressed_bytes_max: usize,
}

impl Rules {
    /// Of a topic; none when it is not compacted.
    pub fn of(config: &TopicConfig, decompressed_bytes_max: usize) -> Option<Self> {
        config.compact.then_some(Self {
            delete_retention_ms: config.delete_retention_ms,
            min_compaction_lag_ms: config.min_compaction_lag_ms,
            max_compaction_lag_ms: config.max_compaction_lag_ms,
            min_cleanable_dirty_ratio: config.min_cleanable_dirty_ratio,
            decompressed_bytes_max,
        })
    }
}

/// What a partition knows about its cleaning; part of the durable state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanedState {
    /// Every batch below it has been through a pass. 0 at first.
    pub cleaned_to: i64,
    /// One past the highest tombstone that was removed while it was the last record of its key: who goes on
    /// reading from there, or behind it, misses no deletion. 0 at first.
    pub tombstone_horizon: i64,
    /// The latest delete horizon in the cleaned part, ms: a pass behind it finds nothing left that waits for its
    /// time. -1 for none.
    pub delete_horizon_ms: i64,
}

impl CleanedState {
    /// Never cleaned.
    pub const NONE: Self = Self { cleaned_to: 0, tombstone_horizon: 0, delete_horizon_ms: -1 };
}

/// The last batch that a partition remembers of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastBatch {
    /// Offset of the last record of the last data batch of the current epoch; none when the epoch has begun with
    /// a marker and there is no batch yet.
    pub last_data_offset: Option<i64>,
    /// The current epoch.
    pub producer_epoch: i16,
}

/// A partition as a pass sees it: of one instant, which must be durable before the pass begins. It may grow old
/// while the pass runs: everything in it only ever allows more.
#[derive(Clone, Debug)]
pub struct Input {
    /// Offset of the oldest record.
    pub log_start_offset: i64,
    /// No pass goes past it.
    pub last_stable_offset: i64,
    /// What earlier passes left.
    pub cleaned: CleanedState,
    /// The aborted transactions.
    pub aborted: Arc<AbortedIndex>,
    /// By producer id.
    pub last_batches: BTreeMap<i64, LastBatch>,
}

impl Input {
    /// Where the uncleaned part begins.
    pub fn dirty_offset(&self) -> i64 {
        self.cleaned.cleaned_to.max(self.log_start_offset)
    }
}

/// What a pass leaves behind, to be written into the shard's log once its files are live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// The partition's new state.
    pub state: CleanedState,
    /// Offsets of the markers of aborted transactions of which nothing is left: they leave the index.
    pub spent: Vec<i64>,
}

impl Cleaned {
    /// What must be durable before the pass's files are read by anybody; none when nobody needs to be told.
    /// `before` is the state that the pass began with.
    pub fn announced(&self, before: CleanedState) -> Option<Self> {
        let tombstone_horizon = self.state.tombstone_horizon;
        (tombstone_horizon > before.tombstone_horizon)
            .then(|| Self { state: CleanedState { tombstone_horizon, ..before }, spent: Vec::new() })
    }
}
