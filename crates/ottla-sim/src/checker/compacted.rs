//! Compacted partitions: what the log shows is judged by everything that ever became durable in them.
//!
//! The model is naive: the whole log as it was written, kept in memory, and Kafka's rules for compaction (KIP-534,
//! eos-semantics 1.4). Only superseded records, records of aborted transactions and tombstones whose time has passed may
//! be missing; offsets never move; what is there is as it was; no older value shows where its tombstone went; a producer's
//! last batch stays; a read_committed reader sees no aborted record and every committed one that is there.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_core::decision::Bounds;
use ottla_protocol::batch::{BatchHeader, parse_marker};
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::record::{Record, RecordIter};
use ottla_protocol::types::TopicIdPartition;

use super::Fate;
use super::log::LogBatch;
use super::read::shown;
use crate::history::History;
use crate::message;

/// How long tombstones of compacted topics of clients stay, ms; those of internal topics stay longer than a run.
pub(crate) const DELETE_RETENTION_MS: i64 = 800;
/// Of internal topics.
const INTERNAL_RETENTION_MS: i64 = 60_000;

/// A batch as it became durable, and when, by shard time.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    header: BatchHeader,
    tail: Bytes,
    time_ms: i64,
}

/// Everything that became durable in partitions that may be compacted.
#[derive(Debug, Default)]
pub(crate) struct WholeLogs(BTreeMap<TopicIdPartition, Vec<Written>>);

impl WholeLogs {
    /// A frame is durable.
    pub(crate) fn add(
        &mut self,
        entries: &[Entry],
        time_ms: i64,
        is_wanted: impl Fn(&TopicIdPartition) -> bool,
    ) {
        let batches =
            entries.iter().filter(|entry| matches!(entry.kind, EntryKind::Batch | EntryKind::Control));
        for entry in batches.filter(|entry| is_wanted(&entry.partition)) {
            let written = Written { header: entry.header, tail: entry.tail.clone(), time_ms };
            self.0.entry(entry.partition).or_default().push(written);
        }
    }

    /// The batches of a partition between two offsets.
    fn of(&self, partition: &TopicIdPartition, from: i64, to: i64) -> Vec<&Written> {
        let all = self.0.get(partition).map(Vec::as_slice).unwrap_or_default();
        all.iter()
            .filter(|batch| batch.header.last_offset() >= from && batch.header.base_offset < to)
            .collect()
    }
}

/// The fate of every batch of a whole log; Open where no marker has come.
fn fates(whole: &[&Written]) -> BTreeMap<i64, Fate> {
    let mut fates = BTreeMap::new();
    let mut open: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for Written { header, tail, .. } in whole {
        if header.is_control() {
            let commit = parse_marker(header, tail).ok().flatten().is_some_and(|marker| marker.commit);
            for base_offset in open.remove(&header.producer_id).unwrap_or_default() {
                fates.insert(base_offset, if commit { Fate::Committed } else { Fate::Aborted });
            }
        } else if header.is_transactional() {
            open.entry(header.producer_id).or_default().push(header.base_offset);
            fates.insert(header.base_offset, Fate::Open);
        } else {
            fates.insert(header.base_offset, Fate::Plain);
        }
    }
    fates
}

fn records(header: &BatchHeader, tail: &Bytes) -> Vec<Record> {
    RecordIter::new(header, tail.slice(40..)).filter_map(Result::ok).collect()
}

/// A record of the whole log.
struct Known {
    record: Record,
    fate: Fate,
    time_ms: i64,
}

impl Known {
    fn counts(&self) -> bool {
        matches!(self.fate, Fate::Plain | Fate::Committed)
    }
}

/// Judges what a partition shows, and gives the whole log in its place.
pub(crate) fn judge(
    partition: TopicIdPartition,
    bounds: &Bounds,
    found: &[LogBatch],
    now_ms: i64,
    history: &mut History,
) -> Vec<LogBatch> {
    let (from, to) = (bounds.log_start_offset, bounds.high_watermark);
    let is_clients = history.is_of_clients(&partition);
    let whole = history.whole_logs.of(&partition, from, to);
    let mut broken = Vec::new();
    let fates = fates(&whole);
    let known: BTreeMap<i64, Known> = known_records(&whole, &fates);
    judge_batches(&whole, found, &mut broken);
    judge_records(&known, found, &mut broken);
    let retention_ms = if is_clients { DELETE_RETENTION_MS } else { INTERNAL_RETENTION_MS };
    judge_keys(&known, found, bounds, now_ms - retention_ms, &mut broken);
    judge_producers(&whole, found, &mut broken);
    for from in [from, (from + bounds.last_stable_offset) / 2] {
        judge_view(bounds, from, found, &fates, &mut broken);
    }
    let numbered = |written: &&Written| {
        let number = if written.header.is_control() {
            None
        } else {
            message::batch_number(&written.header, &written.tail)
        };
        let number = number
            .filter(|number| history.batches.get(*number).is_some_and(|sent| sent.partition == partition));
        LogBatch { header: written.header, tail: written.tail.clone(), number }
    };
    let whole: Vec<LogBatch> = whole.iter().map(numbered).collect();
    history.counts.compacted_judged += u64::from(found.len() < whole.len());
    broken
        .into_iter()
        .take(3)
        .for_each(|text| history.violation(format!("{partition:?}, compacted: {text}")));
    whole
}

fn known_records(whole: &[&Written], fates: &BTreeMap<i64, Fate>) -> BTreeMap<i64, Known> {
    let data = whole.iter().filter(|written| !written.header.is_control());
    data.flat_map(|written| {
        let fate = fates[&written.header.base_offset];
        let known = move |record: Record| (record.offset, Known { fate, time_ms: written.time_ms, record });
        records(&written.header, &written.tail).into_iter().map(known)
    })
    .collect()
}

/// Batches lie where they were written, with their producers and sequences; the last one is there.
fn judge_batches(whole: &[&Written], found: &[LogBatch], broken: &mut Vec<String>) {
    let by_offset: BTreeMap<i64, &Written> =
        whole.iter().map(|written| (written.header.base_offset, *written)).collect();
    for batch in found {
        let there = &batch.header;
        let same = by_offset.get(&there.base_offset).is_some_and(|Written { header, .. }| {
            (header.last_offset_delta, header.producer_id, header.producer_epoch, header.base_sequence)
                == (there.last_offset_delta, there.producer_id, there.producer_epoch, there.base_sequence)
                && header.is_transactional() == there.is_transactional()
                && header.is_control() == there.is_control()
        });
        if !same {
            broken.push(format!("nobody wrote the batch at {}", there.base_offset));
        }
    }
    if whole.is_empty() != found.is_empty() {
        broken.push(format!("{} batches were written, {} are there", whole.len(), found.len()));
    }
}

/// What is there is as it was written.
fn judge_records(known: &BTreeMap<i64, Known>, found: &[LogBatch], broken: &mut Vec<String>) {
    for batch in found.iter().filter(|batch| !batch.header.is_control()) {
        for there in records(&batch.header, &batch.tail) {
            if known.get(&there.offset).is_none_or(|known| known.record != there) {
                broken.push(format!("nobody wrote the record at {}", there.offset));
            }
        }
    }
}

/// Of each key the last committed record stays, a tombstone at least until its time; what it deleted never comes back.
fn judge_keys(
    known: &BTreeMap<i64, Known>,
    found: &[LogBatch],
    bounds: &Bounds,
    expired_ms: i64,
    broken: &mut Vec<String>,
) {
    let there: std::collections::BTreeSet<i64> = found
        .iter()
        .filter(|batch| !batch.header.is_control())
        .flat_map(|batch| records(&batch.header, &batch.tail))
        .map(|record| record.offset)
        .collect();
    let mut last: BTreeMap<&Bytes, (i64, &Known)> = BTreeMap::new();
    for (offset, known) in known.iter().filter(|(_, known)| known.counts()) {
        let Some(key) = &known.record.key else { continue };
        last.insert(key, (*offset, known));
    }
    for (key, (offset, newest)) in &last {
        if there.contains(offset) {
            continue;
        }
        if newest.record.value.is_some() {
            broken.push(format!("the last value of key {key:?}, at {offset}, is gone"));
            continue;
        }
        if newest.time_ms > expired_ms {
            broken.push(format!("the tombstone of key {key:?} at {offset} went before its time"));
        }
        if bounds.cleaned.tombstone_horizon <= *offset {
            broken.push(format!(
                "the tombstone at {offset} is gone and the horizon is {}",
                bounds.cleaned.tombstone_horizon
            ));
        }
        let older = known.range(..offset).find(|(older, known)| {
            known.counts() && known.record.key.as_ref() == Some(*key) && there.contains(older)
        });
        if let Some((older, _)) = older {
            broken.push(format!("key {key:?} was deleted at {offset} and shows its value of {older} again"));
        }
    }
    // What is neither superseded nor aborted nor the last of its key does not exist, but for what has no key or is open.
    for (offset, known) in known {
        if known.fate == Fate::Open && !there.contains(offset) {
            broken.push(format!("the record at {offset} of an open transaction is gone"));
        }
    }
}

/// The last data batch of a producer's current epoch is there, with or without records.
fn judge_producers(whole: &[&Written], found: &[LogBatch], broken: &mut Vec<String>) {
    let mut last: BTreeMap<i64, (i16, Option<i64>)> = BTreeMap::new();
    for Written { header, .. } in whole.iter().filter(|written| written.header.producer_id >= 0) {
        let (epoch, offset) = last.entry(header.producer_id).or_insert((-1, None));
        if header.producer_epoch > *epoch {
            (*epoch, *offset) = (header.producer_epoch, None);
        }
        // What coordinators write for a producer has no sequence, and nobody repeats it.
        if !header.is_control() && header.producer_epoch == *epoch && header.base_sequence >= 0 {
            *offset = Some(header.base_offset);
        }
    }
    for (producer_id, (_, offset)) in last {
        let Some(offset) = offset else { continue };
        if !found.iter().any(|batch| batch.header.base_offset == offset) {
            let of_it = whole.iter().filter(|written| written.header.producer_id == producer_id);
            let of_it: Vec<_> = of_it
                .map(|Written { header, .. }| {
                    (header.base_offset, header.producer_epoch, header.is_control())
                })
                .collect();
            broken.push(format!(
                "the last batch of producer {producer_id}, at {offset}, is gone; it wrote {of_it:?}"
            ));
        }
    }
}

/// A read_committed reader sees exactly the committed batches that are there.
fn judge_view(
    bounds: &Bounds,
    from: i64,
    found: &[LogBatch],
    fates: &BTreeMap<i64, Fate>,
    broken: &mut Vec<String>,
) {
    let is_stable = |batch: &&LogBatch| batch.header.base_offset < bounds.last_stable_offset;
    let stable: Vec<LogBatch> = found.iter().filter(is_stable).cloned().collect();
    let aborted = bounds.aborted.lookup(from, bounds.last_stable_offset);
    judge_shown(from, &stable, &aborted, fates, broken);
}

fn judge_shown(
    from: i64,
    batches: &[LogBatch],
    aborted: &[(i64, i64)],
    fates: &BTreeMap<i64, Fate>,
    broken: &mut Vec<String>,
) {
    let has_records = |batch: &LogBatch| batch.header.records_count > 0;
    let seen: Vec<i64> = shown(batches, aborted, from)
        .into_iter()
        .filter(|batch| has_records(batch))
        .map(|batch| batch.header.base_offset)
        .collect();
    let committed = batches.iter().filter(|batch| {
        let fate = fates.get(&batch.header.base_offset);
        let counts = matches!(fate, Some(Fate::Plain | Fate::Committed));
        has_records(batch) && !batch.header.is_control() && batch.header.last_offset() >= from && counts
    });
    let committed: Vec<i64> = committed.map(|batch| batch.header.base_offset).collect();
    if seen != committed {
        broken.push(format!("read_committed from {from} shows {seen:?}, committed are {committed:?}"));
    }
}

/// While the broker runs: a read of a compacted partition is right as far as it goes.
pub(crate) fn check_read(
    partition: TopicIdPartition,
    bounds: &Bounds,
    from: i64,
    end: i64,
    batches: &[LogBatch],
    history: &mut History,
) {
    let whole = history.whole_logs.of(&partition, bounds.log_start_offset, bounds.high_watermark);
    let fates = fates(&whole);
    let known = known_records(&whole, &fates);
    let mut broken = Vec::new();
    judge_batches(&whole, batches, &mut broken);
    judge_records(&known, batches, &mut broken);
    if end == bounds.last_stable_offset {
        let stop = batches.last().map_or(from, |batch| batch.header.last_offset() + 1);
        judge_shown(from, batches, &bounds.aborted.lookup(from, stop), &fates, &mut broken);
    }
    history.counts.batches_read += batches.len() as u64;
    broken
        .into_iter()
        .take(3)
        .for_each(|text| history.violation(format!("{partition:?}, compacted, read from {from}: {text}")));
}
