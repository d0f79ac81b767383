//! Which batches belong to aborted transactions, and which transactions a pass has met anything of.
//!
//! Place in the walk: fed with every batch of the partition in order, by the indexing and by the pass.
//! Transactions of one producer never overlap in a partition, so at every offset a producer is in one at most.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::batch::BatchHeader;

use crate::partition::{AbortedIndex, AbortedTransaction};

/// An aborted transaction whose first record was passed and whose marker was not.
#[derive(Clone, Copy, Debug)]
struct Active {
    transaction: AbortedTransaction,
    /// Whether a batch of it was met.
    met: bool,
}

/// Follows the aborted transactions through the partition.
pub(super) struct AbortedBatches {
    /// All of them by first offset, the next one to begin last.
    coming: Vec<AbortedTransaction>,
    active: BTreeMap<i64, Active>,
}

impl AbortedBatches {
    /// At the beginning of the log.
    pub(super) fn new(index: &AbortedIndex) -> Self {
        let mut coming: Vec<AbortedTransaction> = index.iter().copied().collect();
        coming.sort_unstable_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
        Self { coming, active: BTreeMap::new() }
    }

    /// Takes over the transactions that begin at or below `offset`.
    fn advance(&mut self, offset: i64) {
        while let Some(next) = self.coming.pop_if(|next| next.first_offset <= offset) {
            self.active.insert(next.producer_id, Active { transaction: next, met: false });
        }
    }

    /// Whether the batch is data of an aborted transaction.
    pub(super) fn covers(&mut self, header: &BatchHeader) -> bool {
        self.advance(header.last_offset());
        if header.is_control() || !header.is_transactional() {
            return false;
        }
        let Some(active) = self.active.get_mut(&header.producer_id) else { return false };
        let AbortedTransaction { first_offset, last_offset, .. } = active.transaction;
        let inside = (first_offset..last_offset).contains(&header.base_offset);
        active.met |= inside;
        inside
    }

    /// The transaction that the ABORT marker ends: whether the index names it, and whether anything of it was met.
    pub(super) fn end(&mut self, marker: &BatchHeader) -> Ended {
        self.advance(marker.base_offset);
        let active = self.active.get(&marker.producer_id);
        match active.filter(|active| active.transaction.last_offset == marker.base_offset).copied() {
            Some(active) => {
                self.active.remove(&marker.producer_id);
                Ended { is_named: true, met: active.met }
            }
            None => Ended { is_named: false, met: false },
        }
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// The index of aborted transactions names it.
    pub(super) is_named: bool,
    /// A batch of it was met in this pass.
    pub(super) met: bool,
}

/// Follows all transactions through a pass.
pub(super) struct Transactions {
    aborted: AbortedBatches,
    /// Producers of which a batch was met that no ABORT marker claims, since their last marker.
    met: BTreeSet<i64>,
}

impl Transactions {
    /// At the beginning of the log.
    pub(super) fn new(index: &AbortedIndex) -> Self {
        Self { aborted: AbortedBatches::new(index), met: BTreeSet::new() }
    }

    /// Takes note of a data batch; whether it is of an aborted transaction.
    pub(super) fn batch(&mut self, header: &BatchHeader) -> bool {
        let aborted = self.aborted.covers(header);
        if header.is_transactional() && !aborted {
            self.met.insert(header.producer_id);
        }
        aborted
    }

    /// Takes note of a marker.
    pub(super) fn marker(&mut self, header: &BatchHeader, commit: bool) -> Ended {
        let met = self.met.remove(&header.producer_id);
        if commit {
            return Ended { is_named: false, met };
        }
        let ended = self.aborted.end(header);
        Ended { met: ended.met || met, ..ended }
    }
}
