//! What readers see, while the broker runs and at the end: the bytes at an offset never change, and a
//! read_committed reader sees committed records, all of them, and no others.

use std::collections::BTreeSet;

use ottla_core::decision::Bounds;
use ottla_env::disk::sim::{Fault, SimDisk};
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::batch::parse_marker;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::ReadError;

use super::Fate;
use super::log::{LogBatch, batches_of};
use crate::history::History;
use crate::options::Bug;
use crate::shell::Shell;

/// A hash of everything in a batch.
pub(crate) fn hash(batch: &LogBatch) -> u64 {
    let head = batch.header.head();
    let bytes = head.iter().chain(batch.tail.iter());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Which batches a consumer with `read_committed` shows, by Kafka's rules for consumers (KIP-98).
pub(super) fn shown<'a>(batches: &'a [LogBatch], aborted: &[(i64, i64)], from: i64) -> Vec<&'a LogBatch> {
    let mut aborted: Vec<_> = aborted.to_vec();
    aborted.sort_by_key(|(_, first_offset)| *first_offset);
    let mut left = aborted.into_iter().peekable();
    let mut skipped = BTreeSet::new();
    let mut shown = Vec::new();
    for batch in batches {
        let header = &batch.header;
        if header.last_offset() < from {
            continue;
        }
        while let Some((producer_id, _)) = left.next_if(|(_, first)| *first <= header.last_offset()) {
            skipped.insert(producer_id);
        }
        if header.is_control() {
            let marker = parse_marker(header, &batch.tail).ok().flatten();
            if marker.is_some_and(|marker| !marker.commit) {
                skipped.remove(&header.producer_id);
            }
        } else if !(header.is_transactional() && skipped.contains(&header.producer_id)) {
            shown.push(batch);
        }
    }
    shown
}

/// At the end, from the start and from the middle: exactly what is committed is shown.
pub(crate) fn judge_committed_view(
    partition: TopicIdPartition,
    bounds: &Bounds,
    batches: &[LogBatch],
    fates: &[Fate],
    history: &mut History,
) {
    let middle = (bounds.log_start_offset + bounds.last_stable_offset) / 2;
    for from in [bounds.log_start_offset, middle] {
        let stable: Vec<LogBatch> = batches
            .iter()
            .filter(|batch| batch.header.base_offset < bounds.last_stable_offset)
            .cloned()
            .collect();
        let aborted = bounds.aborted.lookup(from, bounds.last_stable_offset);
        let found: Vec<i64> =
            shown(&stable, &aborted, from).iter().map(|batch| batch.header.base_offset).collect();
        let expected: Vec<i64> = batches
            .iter()
            .zip(fates)
            .filter(|(batch, fate)| {
                let header = &batch.header;
                let inside = header.last_offset() >= from && header.base_offset < bounds.last_stable_offset;
                inside && !header.is_control() && matches!(fate, Fate::Plain | Fate::Committed)
            })
            .map(|(batch, _)| batch.header.base_offset)
            .collect();
        // Where the beginning of a transaction was deleted, its fate is not known from what is left.
        if found != expected && bounds.log_start_offset == 0 {
            let text = format!(
                "{partition:?} from {from}: read_committed shows {found:?}, committed are {expected:?}"
            );
            history.violation(text);
        }
    }
    let plain = batches.iter().zip(fates).filter_map(|(batch, fate)| Some((batch.number?, *fate)));
    for (number, fate) in plain {
        if history.seen_committed.contains(&number) && !matches!(fate, Fate::Plain | Fate::Committed) {
            history.violation(format!("batch {number} is {fate:?} and was shown to a read_committed reader"));
        }
    }
}

/// While the broker runs: reads somewhere in some partition, with both isolation levels.
pub(crate) fn check_some_partition(
    shell: &Shell,
    disk: &SimDisk,
    rng: &mut SeededRng,
    history: &mut History,
    bug: Option<Bug>,
) {
    let with_data: Vec<_> = shell
        .published
        .iter()
        .filter(|(_, bounds)| bounds.high_watermark > bounds.log_start_offset)
        .map(|(partition, _)| *partition)
        .collect();
    if with_data.is_empty() {
        return;
    }
    let partition = with_data[rng.index(with_data.len())];
    let bounds = &shell.published[&partition];
    let committed = rng.one_in(2);
    let beyond = bug == Some(Bug::ReadBeyondLastStable);
    let end = if committed && !beyond { bounds.last_stable_offset } else { bounds.high_watermark };
    if end <= bounds.log_start_offset {
        return;
    }
    let span = u64::try_from(end - bounds.log_start_offset).expect("the end is behind the start");
    let from = bounds.log_start_offset + i64::try_from(rng.below(span)).expect("an offset");
    let flips = rng.one_in(8);
    if flips {
        disk.inject([Fault::BitFlipRead, Fault::StaleRead, Fault::MisdirectedRead][rng.index(3)], "");
    }
    let bytes_max = usize::try_from(rng.between(1, 60_000)).expect("small");
    let mut read = shell.reader().read(partition, from, end, bytes_max);
    if flips {
        let fired = disk.waiting_faults() == 0;
        disk.clear_injected();
        if fired && matches!(read, Err(ReadError::Corrupt { .. })) {
            read = shell.reader().read(partition, from, end, bytes_max);
        }
    }
    let chunks = match read {
        Ok(chunks) => chunks,
        Err(ReadError::Io { .. }) => return,
        Err(error) => return history.violation(format!("{partition:?} at {from}: {error}")),
    };
    let batches = match batches_of(partition, &chunks.pieces, history) {
        Ok(batches) => batches,
        Err(text) => return history.violation(text),
    };
    if history.may_be_compacted(&partition) {
        return super::compacted::check_read(partition, bounds, from, end, &batches, history);
    }
    check_batches(partition, from, end, &batches, history);
    if committed {
        let stop = batches.last().map_or(from, |batch| batch.header.last_offset() + 1);
        let aborted =
            if bug == Some(Bug::DropAbortedIndex) { Vec::new() } else { bounds.aborted.lookup(from, stop) };
        let numbers: Vec<usize> =
            shown(&batches, &aborted, from).iter().filter_map(|batch| batch.number).collect();
        history.seen_committed.extend(numbers);
    }
}

fn check_batches(
    partition: TopicIdPartition,
    from: i64,
    end: i64,
    batches: &[LogBatch],
    history: &mut History,
) {
    let starts = batches
        .first()
        .is_some_and(|batch| batch.header.base_offset <= from && batch.header.last_offset() >= from);
    if !starts {
        let first = batches.first().map(|batch| batch.header.base_offset);
        history.violation(format!("a read of {partition:?} at {from} (end {end}) begins with {first:?}"));
    }
    for batch in batches {
        history.counts.batches_read += 1;
        if batch.header.base_offset >= end {
            history.violation(format!(
                "a read of {partition:?} up to {end} goes to {}",
                batch.header.base_offset
            ));
        }
        let hash = hash(batch);
        let before = history.seen_batches.insert((partition, batch.header.base_offset), hash);
        if before.is_some_and(|before| before != hash) {
            let offset = batch.header.base_offset;
            history.violation(format!("{partition:?} shows two different batches at {offset}"));
        }
    }
}
