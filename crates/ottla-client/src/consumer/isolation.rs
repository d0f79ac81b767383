//! Which batches of a fetched stretch a reader may see.
//!
//! The broker names the transactions of the stretch that were aborted, by producer id and first offset. Walking
//! the batches in order, a producer's data is hidden from its first aborted offset on until its abort marker.
//! Pure.

use std::collections::{BTreeSet, VecDeque};

use ottla_protocol::batch::BatchHeader;

use super::settings::IsolationLevel;

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its records are shown.
    Show,
    /// Nothing of it is shown; the position moves past it.
    Skip,
}

/// The state of a walk over one fetched stretch.
#[derive(Debug)]
pub(super) struct Isolation {
    level: IsolationLevel,
    /// First offset and producer id of aborted transactions not met yet, by offset.
    ahead: VecDeque<(i64, i64)>,
    /// Producers whose data is hidden at present.
    hidden: BTreeSet<i64>,
}

impl Isolation {
    /// A walk; `aborted` holds producer id and first offset in any order.
    pub(super) fn new(level: IsolationLevel, aborted: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut ahead: Vec<(i64, i64)> =
            aborted.into_iter().map(|(producer_id, first)| (first, producer_id)).collect();
        ahead.sort_unstable();
        Self { level, ahead: ahead.into(), hidden: BTreeSet::new() }
    }

    /// Judges the next batch. `is_abort` says whether a control batch is an abort marker.
    pub(super) fn judge(&mut self, header: &BatchHeader, is_abort: bool) -> Verdict {
        if self.level == IsolationLevel::ReadCommitted && header.has_producer_id() {
            while let Some((_, producer_id)) =
                self.ahead.pop_front_if(|(first, _)| *first <= header.last_offset())
            {
                self.hidden.insert(producer_id);
            }
            if header.is_control() && is_abort {
                self.hidden.remove(&header.producer_id);
            }
        }
        let hidden = header.is_transactional() && self.hidden.contains(&header.producer_id);
        if header.is_control() || hidden { Verdict::Skip } else { Verdict::Show }
    }
}
