//! The aborted transactions of a partition, in the order of their markers.
//!
//! Place in the walk: grows by one with every ABORT marker that ends a transaction; a read_committed fetch looks
//! up what its records may contain (eos-semantics 2.4, 2.5). Published with the bounds: cloning shares chunks,
//! and a push copies the last chunk at most.
//!
//! Invariant: offsets of markers grow strictly, so an entry is found by bisection, and `last_stable_offset`
//! never falls, so a look-up knows where to stop.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries per chunk.
const CHUNK_ENTRIES: usize = 256;

/// A transaction that was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Whose it was.
    pub producer_id: i64,
    /// Offset of its first record.
    pub first_offset: i64,
    /// Offset of its marker.
    pub last_offset: i64,
    /// The last stable offset once the marker was in place: every transaction that ends later begins at or
    /// behind it.
    pub last_stable_offset: i64,
}

/// The aborted transactions of a partition.
#[derive(Clone, Debug, Default)]
pub struct AbortedIndex {
    chunks: Vec<Arc<Vec<AbortedTransaction>>>,
}

impl AbortedIndex {
    /// Transactions that may have records in `[fetch_offset, upper)` and whose marker is at or behind
    /// `fetch_offset`: pairs of producer id and first offset, ordered by first offset. An entry whose marker
    /// lies before the fetch is never listed; it would make the consumer drop later, committed records.
    pub fn lookup(&self, fetch_offset: i64, upper: i64) -> Vec<(i64, i64)> {
        let mut found = Vec::new();
        let chunk = self.chunks.partition_point(|chunk| Self::last(chunk).last_offset < fetch_offset);
        let Some(first) = self.chunks.get(chunk) else { return found };
        let start = first.partition_point(|entry| entry.last_offset < fetch_offset);
        let entries =
            first[start..].iter().chain(self.chunks[chunk + 1..].iter().flat_map(|chunk| chunk.iter()));
        for entry in entries {
            if entry.first_offset < upper {
                found.push((entry.producer_id, entry.first_offset));
            }
            if entry.last_stable_offset >= upper {
                break;
            }
        }
        found.sort_unstable_by_key(|(producer_id, first_offset)| (*first_offset, *producer_id));
        found
    }

    /// All entries, in the order of their markers.
    pub fn iter(&self) -> impl Iterator<Item = &AbortedTransaction> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    fn last(chunk: &[AbortedTransaction]) -> &AbortedTransaction {
        chunk.last().expect("chunks are never empty")
    }

    /// Adds the transaction whose marker was just appended.
    pub(super) fn push(&mut self, entry: AbortedTransaction) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK_ENTRIES => {
                debug_assert!(Self::last(chunk).last_offset < entry.last_offset, "offsets of markers grow");
                Arc::make_mut(chunk).push(entry);
            }
            _ => self.chunks.push(Arc::new(vec![entry])),
        }
    }

    /// Whether the first chunk lies below the offset as a whole, so that [`AbortedIndex::drop_below`] would do
    /// something.
    pub(super) fn ends_below(&self, log_start_offset: i64) -> bool {
        self.chunks.first().is_some_and(|chunk| Self::last(chunk).last_offset < log_start_offset)
    }

    /// Drops chunks that no reader from `log_start_offset` on can need.
    pub(super) fn drop_below(&mut self, log_start_offset: i64) {
        let dropped = self.chunks.partition_point(|chunk| Self::last(chunk).last_offset < log_start_offset);
        self.chunks.drain(..dropped);
    }

    /// Removes the transactions with these markers, as far as they are there. What stays of a chunk joins the one in
    /// front of it when both fit into one.
    pub(super) fn remove(&mut self, markers: &[i64]) {
        let gone: BTreeSet<i64> = markers.iter().copied().collect();
        let mut chunks: Vec<Arc<Vec<AbortedTransaction>>> = Vec::with_capacity(self.chunks.len());
        for chunk in self.chunks.drain(..) {
            let range = chunk.first().map_or(0, |entry| entry.last_offset)..=Self::last(&chunk).last_offset;
            if gone.range(range).next().is_none() {
                chunks.push(chunk);
                continue;
            }
            let kept = chunk.iter().filter(|entry| !gone.contains(&entry.last_offset)).copied();
            let kept: Vec<AbortedTransaction> = kept.collect();
            match chunks.last_mut() {
                Some(last) if last.len() + kept.len() <= CHUNK_ENTRIES => Arc::make_mut(last).extend(kept),
                _ if kept.is_empty() => {}
                _ => chunks.push(Arc::new(kept)),
            }
        }
        self.chunks = chunks;
    }

    /// The chunks, for a snapshot.
    pub(super) fn chunks(&self) -> &[Arc<Vec<AbortedTransaction>>] {
        &self.chunks
    }

    /// Takes a chunk of a snapshot over; false when it does not follow what is there.
    pub(super) fn restore_chunk(&mut self, chunk: Vec<AbortedTransaction>) -> bool {
        let mut last_offset = self.chunks.last().map_or(-1, |chunk| Self::last(chunk).last_offset);
        for entry in &chunk {
            if entry.last_offset <= last_offset || entry.first_offset > entry.last_offset {
                return false;
            }
            last_offset = entry.last_offset;
        }
        let fits = !chunk.is_empty() && chunk.len() <= CHUNK_ENTRIES;
        if fits {
            self.chunks.push(Arc::new(chunk));
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The look-up equals the definition of eos-semantics 2.4 read naively, for any history of overlapping
        /// transactions, every range, and after deletions at the front.
        #[test]
        fn lookup_equals_the_definition(
            // Per transaction: who, and whether it begins, commits or aborts the one it has.
            steps in prop::collection::vec((0i64..6, 0u8..3), 0..700),
            ranges in prop::collection::vec((0i64..800, 0i64..60), 1..20),
            log_start in 0i64..400,
            spent in 0i64..4,
        ) {
            let mut open = std::collections::BTreeMap::<i64, i64>::new();
            let mut index = AbortedIndex::default();
            let mut all = Vec::new();
            for (offset, (producer_id, step)) in steps.into_iter().enumerate() {
                let offset = offset as i64;
                match (step, open.get(&producer_id).copied()) {
                    (0, None) => {
                        open.insert(producer_id, offset);
                    }
                    (1 | 2, Some(first_offset)) => {
                        open.remove(&producer_id);
                        if step == 2 {
                            let last_stable_offset = open.values().min().copied().unwrap_or(offset + 1);
                            let entry = AbortedTransaction { producer_id, first_offset, last_offset: offset, last_stable_offset };
                            index.push(entry);
                            all.push(entry);
                        }
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(index.iter().copied().collect::<Vec<_>>(), all.clone());
            let dropped = index.ends_below(log_start);
            index.drop_below(log_start);
            prop_assert!(dropped || index.len() == all.len());
            // Removing some of what is left, by their markers, leaves the others.
            let removed: Vec<i64> = index.iter().map(|entry| entry.last_offset).filter(|at| at % 3 == spent).collect();
            index.remove(&removed);
            all.retain(|entry| !removed.contains(&entry.last_offset));
            prop_assert!(index.chunks().iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_ENTRIES));
            for (from, length) in ranges {
                let (from, upper) = (from.max(log_start), from.max(log_start) + length);
                let mut wanted: Vec<_> = all
                    .iter()
                    .filter(|entry| entry.last_offset >= from && entry.first_offset < upper)
                    .map(|entry| (entry.producer_id, entry.first_offset))
                    .collect();
                wanted.sort_unstable_by_key(|(producer_id, first)| (*first, *producer_id));
                prop_assert_eq!(index.lookup(from, upper), wanted);
            }
        }
    }
}
