//! The pass itself: for each batch of a partition, whether it stays, changes or goes.
//!
//! Place in the walk: whoever rewrites files calls [`Pass::filter`] for every batch of the partition, from the log
//! start to the end of the pass, in order, and writes what the verdict says. A batch that the caller leaves out
//! would make its transaction look gone.

use std::ops::Range;

use bytes::Bytes;
use ottla_protocol::batch::{BatchHeader, KeptRecord, empty_batch, parse_marker, retain_records};
use ottla_protocol::record::{Cursor, RawRecord, body_of};

use super::key_map::Latest;
use super::transactions::Transactions;
use super::{Cleaned, CleanedState, Input, Rules};

/// What becomes of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays as it is.
    Keep,
    /// This takes its place: header and tail, at the same offsets.
    Replace(BatchHeader, Bytes),
    /// It goes.
    Drop,
}

/// What a pass did, for logs and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Batches that were looked at.
    pub batches: u64,
    /// Of them kept as they are.
    pub batches_kept: u64,
    /// Of them replaced.
    pub batches_replaced: u64,
    /// Records that went.
    pub records_removed: u64,
    /// Bytes that were looked at.
    pub bytes_before: u64,
    /// Bytes that are left of them.
    pub bytes_after: u64,
    /// Batches that could not be read, and were kept.
    pub unreadable: u64,
}

/// One pass through a partition.
pub struct Pass<L> {
    rules: Rules,
    log_start_offset: i64,
    /// Records from here on are not touched.
    end: i64,
    now_ms: i64,
    last_batches: std::collections::BTreeMap<i64, super::LastBatch>,
    transactions: Transactions,
    latest: L,
    cleaned: Cleaned,
    report: PassReport,
}

/// What is left of a batch's records.
enum Left {
    All,
    Some { body: Bytes, kept: Vec<KeptRecord>, has_tombstone: bool },
    Unreadable,
}

impl<L: Latest> Pass<L> {
    /// Begins a pass that ends at `end`, which [`super::Indexing::finish`] named.
    pub fn new(rules: Rules, input: Input, end: i64, latest: L, now_ms: i64) -> Self {
        let end = end.min(input.last_stable_offset);
        let before = input.cleaned;
        Self {
            rules,
            log_start_offset: input.log_start_offset,
            end,
            now_ms,
            transactions: Transactions::new(&input.aborted),
            last_batches: input.last_batches,
            latest,
            cleaned: Cleaned {
                state: CleanedState {
                    cleaned_to: before.cleaned_to.max(end),
                    tombstone_horizon: before.tombstone_horizon,
                    delete_horizon_ms: -1,
                },
                spent: Vec::new(),
            },
            report: PassReport::default(),
        }
    }

    /// Where the pass ends: batches from there on need not be offered.
    pub fn end(&self) -> i64 {
        self.end
    }

    /// Judges the next batch.
    pub fn filter(&mut self, header: &BatchHeader, tail: &Bytes) -> Verdict {
        let verdict = self.judge(header, tail);
        let report = &mut self.report;
        let bytes = header.batch_bytes() as u64;
        report.batches += 1;
        report.bytes_before += bytes;
        let records_after = match &verdict {
            Verdict::Keep => {
                report.batches_kept += 1;
                report.bytes_after += bytes;
                if header.has_delete_horizon() {
                    self.note_horizon(header.base_timestamp);
                }
                header.records_count
            }
            Verdict::Replace(replaced, _) => {
                report.batches_replaced += 1;
                report.bytes_after += replaced.batch_bytes() as u64;
                if replaced.has_delete_horizon() {
                    self.note_horizon(replaced.base_timestamp);
                }
                replaced.records_count
            }
            Verdict::Drop => 0,
        };
        let removed = i64::from(header.records_count) - i64::from(records_after);
        self.report.records_removed += u64::try_from(removed).unwrap_or_default();
        verdict
    }

    /// Something waits for this time. What did not go though its time has come waits for something else.
    fn note_horizon(&mut self, horizon_ms: i64) {
        let state = &mut self.cleaned.state;
        if horizon_ms > self.now_ms {
            state.delete_horizon_ms = state.delete_horizon_ms.max(horizon_ms);
        }
    }

    /// The delete horizon of what is met for the first time.
    fn new_horizon(&self) -> i64 {
        self.now_ms.saturating_add(self.rules.delete_retention_ms.max(1))
    }

    fn judge(&mut self, header: &BatchHeader, tail: &Bytes) -> Verdict {
        if header.base_offset >= self.end {
            return Verdict::Keep;
        }
        if header.last_offset() < self.log_start_offset {
            return Verdict::Drop;
        }
        if header.is_control() {
            return self.judge_control(header, tail);
        }
        let aborted = self.transactions.batch(header);
        let is_divided = header.last_offset() >= self.end;
        if aborted {
            return if is_divided { Verdict::Keep } else { self.without_records(header) };
        }
        match self.left_of(header, tail) {
            Left::Unreadable => {
                self.report.unreadable += 1;
                Verdict::Keep
            }
            Left::All => Verdict::Keep,
            Left::Some { kept, .. } if kept.is_empty() => self.without_records(header),
            Left::Some { body, kept, has_tombstone } => {
                let horizon = (has_tombstone && !is_divided && !header.has_delete_horizon())
                    .then(|| self.new_horizon());
                if horizon.is_none()
                    && kept.len() == usize::try_from(header.records_count).unwrap_or_default()
                {
                    return Verdict::Keep;
                }
                match retain_records(header, &body, &kept, horizon) {
                    Ok((header, tail)) => Verdict::Replace(header, tail),
                    Err(_) => {
                        self.report.unreadable += 1;
                        Verdict::Keep
                    }
                }
            }
        }
    }

    /// A marker, or another control batch, which is none of ours to judge and stays.
    fn judge_control(&mut self, header: &BatchHeader, tail: &Bytes) -> Verdict {
        if header.records_count == 0 {
            return self.without_records(header);
        }
        let marker = match parse_marker(header, tail) {
            Ok(Some(marker)) => marker,
            Ok(None) => return Verdict::Keep,
            Err(_) => {
                self.report.unreadable += 1;
                return Verdict::Keep;
            }
        };
        let ended = self.transactions.marker(header, marker.commit);
        if ended.met {
            return Verdict::Keep;
        }
        if ended.is_named {
            // It leaves the index with this pass, the log with the one after.
            self.cleaned.spent.push(header.base_offset);
            self.note_horizon(self.new_horizon());
        }
        if !header.has_delete_horizon() {
            return self.with_horizon(header, tail);
        }
        if self.now_ms >= header.base_timestamp && !ended.is_named {
            return self.without_records(header);
        }
        Verdict::Keep
    }

    /// A marker with its delete horizon.
    fn with_horizon(&mut self, header: &BatchHeader, tail: &Bytes) -> Verdict {
        let horizon = self.new_horizon();
        let replaced = body_of(header, tail, self.rules.decompressed_bytes_max).ok().and_then(|body| {
            let mut cursor = Cursor::new(&body);
            let record = cursor.record().ok()?;
            let kept = KeptRecord { bytes: 0..record.end, timestamp_delta: record.timestamp_delta };
            retain_records(header, &body, &[kept], Some(horizon)).ok()
        });
        match replaced {
            Some((header, tail)) => Verdict::Replace(header, tail),
            None => {
                self.report.unreadable += 1;
                Verdict::Keep
            }
        }
    }

    /// A batch none of whose records stays: it goes, unless somebody needs its header.
    fn without_records(&self, header: &BatchHeader) -> Verdict {
        let is_needed = header.last_offset() + 1 == self.end || self.is_last_of_producer(header);
        if !is_needed {
            return Verdict::Drop;
        }
        if header.records_count == 0 {
            return Verdict::Keep;
        }
        let (header, tail) = empty_batch(header);
        Verdict::Replace(header, tail)
    }

    fn is_last_of_producer(&self, header: &BatchHeader) -> bool {
        let last = header.has_producer_id().then(|| self.last_batches.get(&header.producer_id)).flatten();
        last.is_some_and(|last| match last.last_data_offset {
            Some(offset) => header.last_offset() == offset,
            None => header.is_control() && header.producer_epoch == last.producer_epoch,
        })
    }

    /// Which records stay.
    fn left_of(&mut self, header: &BatchHeader, tail: &Bytes) -> Left {
        if header.records_count == 0 {
            return Left::Some { body: Bytes::new(), kept: Vec::new(), has_tombstone: false };
        }
        let Ok(body) = body_of(header, tail, self.rules.decompressed_bytes_max) else {
            return Left::Unreadable;
        };
        let mut kept = Vec::new();
        let (mut has_tombstone, mut horizon) = (false, self.cleaned.state.tombstone_horizon);
        let mut cursor = Cursor::new(&body);
        for _ in 0..header.records_count {
            let start = cursor.position();
            let Ok(record) = cursor.record() else { return Left::Unreadable };
            let offset = header.base_offset.saturating_add(i64::from(record.offset_delta));
            match self.fate_of(header, &body, &record, offset) {
                Fate::Stays => {
                    has_tombstone |= record.value.is_none();
                    let bytes: Range<usize> = start..record.end;
                    kept.push(KeptRecord { bytes, timestamp_delta: record.timestamp_delta });
                }
                Fate::Goes => {}
                Fate::GoesAsTombstone => horizon = horizon.max(offset + 1),
            }
        }
        self.cleaned.state.tombstone_horizon = horizon;
        let all = kept.len() == usize::try_from(header.records_count).unwrap_or_default();
        if all && !has_tombstone { Left::All } else { Left::Some { body, kept, has_tombstone } }
    }

    fn fate_of(&self, header: &BatchHeader, body: &[u8], record: &RawRecord, offset: i64) -> Fate {
        if offset >= self.end {
            return Fate::Stays;
        }
        let Some(key) = record.key.clone().and_then(|key| body.get(key)) else { return Fate::Goes };
        if self.latest.is_superseded(key, offset) {
            return Fate::Goes;
        }
        let is_over = header.has_delete_horizon() && self.now_ms >= header.base_timestamp;
        if record.value.is_none() && is_over { Fate::GoesAsTombstone } else { Fate::Stays }
    }

    /// What goes into the shard's log, and what was done. Only to be used when every batch was offered.
    pub fn finish(self) -> (Cleaned, PassReport) {
        (self.cleaned, self.report)
    }
}

/// What becomes of a record.
enum Fate {
    Stays,
    /// Something later takes its place, or it has no key.
    Goes,
    /// It was the last word about its key.
    GoesAsTombstone,
}
