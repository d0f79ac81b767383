//! Whether a partition is worth a pass, and up to where.
//!
//! Place in the walk: asked with a list of where the partition's bytes are; nothing is read from the disk for it.

use super::{Input, Rules};

/// A run of batches of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Base offset of its first batch.
    pub first_offset: i64,
    /// Last offset of its last batch.
    pub last_offset: i64,
    /// Its bytes.
    pub bytes: u64,
    /// Its largest timestamp, ms.
    pub max_timestamp: i64,
}

/// Why a pass is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// More than `min.cleanable.dirty.ratio` of the bytes are uncleaned.
    DirtyRatio,
    /// Something has been uncleaned for longer than `max.compaction.lag.ms`.
    CompactionLag,
    /// Nothing is uncleaned, but all tombstones and markers that were kept for a time are past it.
    DeleteHorizon,
}

/// A pass that is worth it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The keys from here on are indexed.
    pub from: i64,
    /// The pass ends here, or earlier when the keys do not fit.
    pub limit: i64,
    /// Why.
    pub why: Why,
    /// Uncleaned share of the bytes below the limit, 0 to 1.
    pub dirty_ratio: f64,
}

/// Whether a pass is worth it at `now_ms`. `limit` is where the files that may be rewritten end; `extents` are all
/// of the partition's, in order.
pub fn plan(
    rules: &Rules,
    input: &Input,
    limit: i64,
    extents: impl IntoIterator<Item = Extent>,
    now_ms: i64,
) -> Option<Plan> {
    let from = input.dirty_offset();
    let mut limit = limit.min(input.last_stable_offset);
    let (mut clean_bytes, mut dirty_bytes) = (0u64, 0u64);
    let mut earliest = None;
    for extent in extents.into_iter().filter(|extent| extent.last_offset >= input.log_start_offset) {
        if extent.last_offset < from {
            clean_bytes = clean_bytes.saturating_add(extent.bytes);
            continue;
        }
        let is_young = rules.min_compaction_lag_ms > 0
            && extent.max_timestamp > now_ms.saturating_sub(rules.min_compaction_lag_ms);
        if is_young {
            limit = limit.min(extent.first_offset);
        }
        if extent.first_offset >= limit {
            break;
        }
        dirty_bytes = dirty_bytes.saturating_add(extent.bytes);
        if extent.max_timestamp > 0 {
            earliest = Some(earliest.map_or(extent.max_timestamp, |min: i64| min.min(extent.max_timestamp)));
        }
    }
    let all = clean_bytes.saturating_add(dirty_bytes);
    let dirty_ratio = if all == 0 { 0.0 } else { dirty_bytes as f64 / all as f64 };
    let lags = earliest.is_some_and(|earliest| now_ms.saturating_sub(earliest) > rules.max_compaction_lag_ms);
    let is_dirty = limit > from && dirty_bytes > 0;
    let horizon = input.cleaned.delete_horizon_ms;
    let why = if is_dirty && lags {
        Why::CompactionLag
    } else if is_dirty && dirty_ratio > rules.min_cleanable_dirty_ratio {
        Why::DirtyRatio
    } else if clean_bytes > 0 && horizon >= 0 && now_ms >= horizon {
        Why::DeleteHorizon
    } else {
        return None;
    };
    Some(Plan { from, limit: limit.max(from), why, dirty_ratio })
}
