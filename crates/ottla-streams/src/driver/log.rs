//! One partition of the simulated cluster: records of transactions, markers, and what Kafka may do to a log.
//!
//! Beside the log as a reader sees it, it keeps every record that was ever there, so that a check can fold what a
//! compacted or trimmed log does not tell any more.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::port::{ChangelogPiece, ChangelogRecord};
use crate::record::RawRecord;

/// Id and epoch of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Producer {
    pub(super) id: i64,
    pub(super) epoch: i16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Record(RawRecord),
    Marker { commit: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
    /// Absent = outside of transactions.
    pub(super) producer: Option<Producer>,
    pub(super) body: Body,
}

/// What became of a transaction's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Committed,
    Aborted,
    Open,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) topic_id: String,
    /// What a reader finds, by offset.
    entries: BTreeMap<i64, Entry>,
    /// All that was ever there and was not truncated.
    history: BTreeMap<i64, Entry>,
    log_start: i64,
    end: i64,
    leader_epoch: i32,
    /// Leader epochs and their first offsets.
    epochs: Vec<(i32, i64)>,
    /// Open transactions and their first offsets.
    open: BTreeMap<i64, i64>,
    /// Aborted transactions: producer, first offset, offset of the marker.
    aborted: Vec<(i64, i64, i64)>,
    /// Below it tombstones may have been removed.
    horizon: i64,
    /// Below it the log was compacted.
    compacted_to: i64,
}

impl Log {
    pub(super) fn new(topic_id: String) -> Self {
        Self { topic_id, epochs: vec![(0, 0)], ..Self::default() }
    }

    pub(super) fn log_start(&self) -> i64 {
        self.log_start
    }

    pub(super) fn end(&self) -> i64 {
        self.end
    }

    pub(super) fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    pub(super) fn horizon(&self) -> i64 {
        self.horizon
    }

    /// Below it every transaction is decided.
    pub(super) fn last_stable(&self) -> i64 {
        self.open.values().copied().min().unwrap_or(self.end)
    }

    pub(super) fn append(&mut self, record: RawRecord, producer: Option<Producer>) -> i64 {
        if let Some(producer) = producer {
            self.open.entry(producer.id).or_insert(self.end);
        }
        self.push(Body::Record(record), producer)
    }

    /// Writes the end of a producer's transaction.
    pub(super) fn mark(&mut self, producer: Producer, commit: bool) {
        if let Some(first) = self.open.remove(&producer.id)
            && !commit
        {
            self.aborted.push((producer.id, first, self.end));
        }
        self.push(Body::Marker { commit }, Some(producer));
    }

    fn push(&mut self, body: Body, producer: Option<Producer>) -> i64 {
        let offset = self.end;
        let entry = Entry { offset, leader_epoch: self.leader_epoch, producer, body };
        self.history.insert(offset, entry.clone());
        self.entries.insert(offset, entry);
        self.end += 1;
        offset
    }

    fn outcome(&self, entry: &Entry) -> Outcome {
        let Some(producer) = entry.producer else { return Outcome::Committed };
        if self.open.get(&producer.id).is_some_and(|first| *first <= entry.offset) {
            return Outcome::Open;
        }
        let aborted = self
            .aborted
            .iter()
            .any(|(id, first, last)| *id == producer.id && (*first..=*last).contains(&entry.offset));
        if aborted { Outcome::Aborted } else { Outcome::Committed }
    }

    /// Committed records from an offset on, and where to go on.
    pub(super) fn read(&self, from: i64, bytes_max: usize) -> (Vec<(i64, i32, RawRecord)>, i64) {
        let stable = self.last_stable();
        let mut found = Vec::new();
        let mut bytes = 0;
        for (offset, entry) in self.entries.range(from..stable.max(from)) {
            let Body::Record(record) = &entry.body else { continue };
            if self.outcome(entry) != Outcome::Committed {
                continue;
            }
            if bytes >= bytes_max {
                return (found, *offset);
            }
            bytes += record.size();
            found.push((*offset, entry.leader_epoch, record.clone()));
        }
        (found, stable.max(from))
    }

    pub(super) fn piece(&self, from: i64, bytes_max: usize) -> ChangelogPiece {
        let (found, next_offset) = self.read(from, bytes_max);
        let leader_epoch = found.last().map_or(-1, |(_, epoch, _)| *epoch);
        let record = |(offset, _, record): (i64, i32, RawRecord)| ChangelogRecord {
            offset,
            timestamp: record.timestamp,
            key: record.key,
            value: record.value,
        };
        let records = found.into_iter().map(record).collect();
        ChangelogPiece { records, next_offset, last_stable: self.last_stable(), leader_epoch }
    }

    /// All records with their outcomes, also those that compaction and retention have taken.
    pub(super) fn history(&self) -> impl Iterator<Item = (i64, &RawRecord, Outcome)> {
        self.history.values().filter_map(|entry| match &entry.body {
            Body::Record(record) => Some((entry.offset, record, self.outcome(entry))),
            Body::Marker { .. } => None,
        })
    }

    /// What a table holds after all committed records below an offset. `decided`: producers whose open transaction is
    /// decided to be committed; only its marker is missing.
    pub(super) fn fold(&self, below: i64, decided: &BTreeSet<i64>) -> BTreeMap<Bytes, Bytes> {
        let mut table = BTreeMap::new();
        for entry in self.history.range(..below).map(|(_, entry)| entry) {
            let Body::Record(record) = &entry.body else { continue };
            let counts = match self.outcome(entry) {
                Outcome::Committed => true,
                Outcome::Open => entry.producer.is_some_and(|producer| decided.contains(&producer.id)),
                Outcome::Aborted => false,
            };
            let Some(key) = record.key.clone().filter(|_| counts) else { continue };
            match &record.value {
                Some(value) => table.insert(key, value.clone()),
                None => table.remove(&key),
            };
        }
        table
    }

    /// Whether a reader that stands at an offset may have missed a record of that key below it, because a later one
    /// has superseded it there: it will come by that one.
    pub(super) fn is_superseded(&self, key: &Bytes, from: i64) -> bool {
        self.history.range(from..self.compacted_to.max(from)).any(|(_, entry)| {
            let of_key = matches!(&entry.body, Body::Record(record) if record.key.as_ref() == Some(key));
            of_key && self.outcome(entry) == Outcome::Committed
        })
    }

    /// Log compaction of everything that is decided: the last record of a key stays, and a tombstone only when it is
    /// younger than `tombstones_from_ms`.
    pub(super) fn compact(&mut self, tombstones_from_ms: i64) {
        let stable = self.last_stable();
        self.compacted_to = self.compacted_to.max(stable);
        let mut seen = BTreeSet::new();
        let mut gone = Vec::new();
        for (offset, entry) in self.entries.range(..stable).rev() {
            let Body::Record(record) = &entry.body else { continue };
            let newest = self.outcome(entry) == Outcome::Committed && seen.insert(record.key.clone());
            let old_tombstone = record.value.is_none() && record.timestamp < tombstones_from_ms;
            if newest && old_tombstone {
                self.horizon = self.horizon.max(offset + 1);
            }
            if !newest || old_tombstone {
                gone.push(*offset);
            }
        }
        for offset in gone {
            self.entries.remove(&offset);
        }
    }

    /// Takes the end of each decided transaction away, as the cleaner may: readers must not wait for a marker.
    pub(super) fn drop_markers(&mut self) {
        let stable = self.last_stable();
        self.entries.retain(|offset, entry| *offset >= stable || matches!(entry.body, Body::Record(_)));
    }

    /// Retention: what is below that offset is gone.
    pub(super) fn retain_from(&mut self, offset: i64) {
        self.log_start = self.log_start.max(offset.min(self.last_stable()));
        let start = self.log_start;
        self.entries.retain(|offset, _| *offset >= start);
    }

    /// An unclean election: what is at or above that offset was never there; a new leader goes on.
    pub(super) fn truncate(&mut self, to: i64) {
        self.entries.retain(|offset, _| *offset < to);
        self.history.retain(|offset, _| *offset < to);
        self.aborted.retain(|(_, _, last)| *last < to);
        self.open.retain(|_, first| *first < to);
        self.end = self.end.min(to);
        self.new_leader();
    }

    /// A new leader epoch begins.
    pub(super) fn new_leader(&mut self) {
        self.leader_epoch += 1;
        self.epochs.retain(|(_, start)| *start < self.end || *start == 0);
        self.epochs.push((self.leader_epoch, self.end));
    }

    /// Where the log of an epoch ends: the first offset of the next one.
    pub(super) fn epoch_end(&self, epoch: i32) -> i64 {
        self.epochs.iter().find(|(later, _)| *later > epoch).map_or(self.end, |(_, start)| *start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &'static str, value: Option<&'static str>) -> RawRecord {
        let key = Some(Bytes::from_static(key.as_bytes()));
        RawRecord {
            key,
            value: value.map(|value| Bytes::from_static(value.as_bytes())),
            ..RawRecord::default()
        }
    }

    /// Proves that the simulated log shows what Kafka's shows: nothing open or aborted, the last stable offset at the
    /// first open record, and a fold that counts committed records only.
    #[test]
    fn shows_what_is_committed() {
        let (one, two) = (Producer { id: 1, epoch: 0 }, Producer { id: 2, epoch: 0 });
        let mut log = Log::new("t".to_owned());
        log.append(record("a", Some("1")), None);
        log.append(record("b", Some("1")), Some(one));
        log.append(record("a", Some("2")), Some(two));
        assert_eq!(log.last_stable(), 1);
        log.mark(two, true);
        assert_eq!(log.last_stable(), 1);
        assert_eq!(log.read(0, 1000).0.len(), 1);
        log.mark(one, false);
        assert_eq!(log.last_stable(), log.end());
        let values: Vec<_> = log.read(0, 1000).0.into_iter().map(|(offset, ..)| offset).collect();
        assert_eq!(values, [0, 2]);
        assert_eq!(log.fold(5, &BTreeSet::new()).get(&b"a"[..]), Some(&Bytes::from_static(b"2")));
        assert_eq!(log.fold(5, &BTreeSet::new()).len(), 1);
    }

    /// Proves that compaction keeps the fold of what is left, tells its horizon, and that truncation moves the end
    /// of the old epoch.
    #[test]
    fn compaction_and_truncation() {
        let mut log = Log::new("t".to_owned());
        for (key, value) in [("a", Some("1")), ("b", Some("1")), ("b", None), ("a", Some("2"))] {
            log.append(record(key, value), None);
        }
        log.compact(0);
        assert_eq!(log.read(0, 1000).0.len(), 2);
        assert_eq!(log.horizon(), 0);
        log.compact(1);
        assert_eq!(log.read(0, 1000).0.len(), 1);
        assert_eq!(log.horizon(), 3);
        log.truncate(2);
        assert_eq!(log.end(), 2);
        assert_eq!(log.epoch_end(0), 2);
        log.append(record("c", Some("1")), None);
        assert_eq!(log.epoch_end(0), 2);
        assert_eq!(log.epoch_end(1), 3);
    }
}
