//! One partition's log: read whole, and judged by the rules that need nothing else.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_core::decision::Bounds;
use ottla_protocol::batch::{BatchHeader, BatchIter, increment_sequence, parse_marker};
use ottla_protocol::types::TopicIdPartition;

use super::Fate;
use crate::history::History;
use crate::message;
use crate::shell::Shell;

/// Bytes asked for in one read.
const READ_BYTES: usize = 1 << 20;

/// A batch as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogBatch {
    pub(crate) header: BatchHeader,
    pub(crate) tail: Bytes,
    /// Of a client's batch: its index in `History::batches`.
    pub(crate) number: Option<usize>,
}

/// Splits what a read gave into batches.
pub(crate) fn batches_of(
    partition: TopicIdPartition,
    chunks: &[Bytes],
    history: &History,
) -> Result<Vec<LogBatch>, String> {
    let joined: Bytes = chunks.concat().into();
    let mut batches = Vec::new();
    for batch in BatchIter::new(joined) {
        let batch = batch.map_err(|error| format!("a read of {partition:?} does not parse: {error}"))?;
        batch.check_crc().map_err(|error| format!("a read of {partition:?}: {error}"))?;
        let tail = batch.tail();
        let number =
            if batch.header.is_control() { None } else { message::batch_number(&batch.header, &tail) };
        // Coordinator records have keys of their own: a number is one only if it was sent to this partition.
        let number = number
            .filter(|number| history.batches.get(*number).is_some_and(|sent| sent.partition == partition));
        batches.push(LogBatch { header: batch.header, tail, number });
    }
    Ok(batches)
}

/// Reads a partition from its log start to its high watermark.
pub(crate) fn read_all(
    shell: &Shell,
    partition: TopicIdPartition,
    bounds: &Bounds,
    history: &History,
) -> Result<Vec<LogBatch>, String> {
    let mut batches: Vec<LogBatch> = Vec::new();
    let mut offset = bounds.log_start_offset;
    while offset < bounds.high_watermark {
        let read = shell
            .reader()
            .read(partition, offset, bounds.high_watermark, READ_BYTES)
            .map_err(|error| format!("at {offset}: {error}"))?;
        let found = batches_of(partition, &read.pieces, history)?;
        let Some(last) = found.last() else {
            return Err(format!("nothing at {offset}, high watermark {}", bounds.high_watermark));
        };
        offset = last.header.last_offset() + 1;
        batches.extend(found);
    }
    Ok(batches)
}

/// What is known of a producer while a log is walked.
#[derive(Default)]
struct Producer {
    epoch: i16,
    next_sequence: Option<i32>,
    /// Indexes of the batches of its open transaction.
    open: Vec<usize>,
}

/// Judges a partition: no gaps, nothing invented, sequences and epochs in order. Gives the fate of each batch.
pub(crate) fn judge_partition(
    partition: TopicIdPartition,
    bounds: &Bounds,
    batches: &[LogBatch],
    history: &mut History,
) -> Vec<Fate> {
    let is_clients = history.topics.values().any(|topic| topic.id == Some(partition.topic_id));
    let whole = bounds.log_start_offset == 0;
    let mut judge = Judge { partition, whole, is_clients, producers: BTreeMap::new(), history };
    let mut fates = vec![Fate::Plain; batches.len()];
    let mut next_offset = None;
    for (index, batch) in batches.iter().enumerate() {
        let header = &batch.header;
        if next_offset.is_some_and(|next| next != header.base_offset) {
            judge.violation(format!("expected offset {next_offset:?}, found {}", header.base_offset));
        }
        next_offset = Some(header.last_offset() + 1);
        judge.judge_content(batch);
        if header.producer_id < 0 {
            continue;
        }
        if header.is_control() {
            judge.marker(batch, &mut fates);
        } else {
            judge.data(index, batch);
            if header.is_transactional() {
                fates[index] = Fate::Open;
            }
        }
    }
    let first = batches.first().map_or(bounds.high_watermark, |batch| batch.header.base_offset);
    if first > bounds.log_start_offset || next_offset.unwrap_or(first) != bounds.high_watermark {
        judge.violation(format!("bounds {bounds:?}, batches from {first} to {next_offset:?}"));
    }
    let first_open =
        fates.iter().position(|fate| *fate == Fate::Open).map(|at| batches[at].header.base_offset);
    let stable = first_open.unwrap_or(bounds.high_watermark).max(bounds.log_start_offset);
    if stable != bounds.last_stable_offset && (judge.whole || first_open.is_none()) {
        judge.violation(format!("last stable offset is {}, should be {stable}", bounds.last_stable_offset));
    }
    fates
}

struct Judge<'a> {
    partition: TopicIdPartition,
    /// Whether the log is read from its very beginning.
    whole: bool,
    /// Whether clients write to it.
    is_clients: bool,
    producers: BTreeMap<i64, Producer>,
    history: &'a mut History,
}

impl Judge<'_> {
    fn violation(&mut self, text: String) {
        self.history.violation(format!("{:?}: {text}", self.partition));
    }

    /// What is there was sent there, byte for byte; what a reader saw there before is still there.
    fn judge_content(&mut self, batch: &LogBatch) {
        if self.is_clients && !batch.header.is_control() {
            match batch.number.and_then(|number| self.history.batches.get(number)) {
                Some(sent) if sent.partition == self.partition && sent.tail == batch.tail => {}
                _ => {
                    let offset = batch.header.base_offset;
                    self.violation(format!("nobody sent what is at {offset} (batch {:?})", batch.number));
                }
            }
        }
        let key = (self.partition, batch.header.base_offset);
        let hash = super::read::hash(batch);
        if !self.history.may_be_compacted(&self.partition)
            && self.history.seen_batches.get(&key).is_some_and(|seen| *seen != hash)
        {
            self.violation(format!("offset {} shows another batch than a reader saw", key.1));
        }
    }

    fn data(&mut self, index: usize, batch: &LogBatch) {
        let header = &batch.header;
        let whole = self.whole;
        let known = self.producers.contains_key(&header.producer_id);
        let producer = self.producers.entry(header.producer_id).or_default();
        let mut broken = None;
        if known && header.producer_epoch < producer.epoch {
            broken =
                Some(format!("epoch {} after {}: a zombie's batch", header.producer_epoch, producer.epoch));
        }
        if header.producer_epoch != producer.epoch || !known {
            producer.epoch = header.producer_epoch;
            producer.next_sequence = (known || whole).then_some(0);
        }
        if header.is_transactional() {
            producer.open.push(index);
        }
        if header.base_sequence >= 0 {
            if producer.next_sequence.is_some_and(|next| next != header.base_sequence) {
                broken =
                    Some(format!("sequence {}, expected {:?}", header.base_sequence, producer.next_sequence));
            }
            producer.next_sequence = Some(increment_sequence(header.base_sequence, header.records_count));
        }
        if let Some(text) = broken {
            let (id, offset) = (header.producer_id, header.base_offset);
            self.violation(format!("producer {id} at {offset}: {text}"));
        }
    }

    fn marker(&mut self, batch: &LogBatch, fates: &mut [Fate]) {
        let header = &batch.header;
        let marker = match parse_marker(header, &batch.tail) {
            Ok(Some(marker)) => marker,
            other => return self.violation(format!("control batch at {}: {other:?}", header.base_offset)),
        };
        let known = self.whole || self.producers.contains_key(&header.producer_id);
        let producer = self.producers.entry(header.producer_id).or_default();
        let fate = if marker.commit { Fate::Committed } else { Fate::Aborted };
        for index in std::mem::take(&mut producer.open) {
            fates[index] = fate;
        }
        let went_back = header.producer_epoch < producer.epoch;
        if header.producer_epoch != producer.epoch {
            producer.epoch = header.producer_epoch;
            producer.next_sequence = known.then_some(0);
        }
        if went_back {
            self.violation(format!("marker at {} has an old epoch", header.base_offset));
        }
    }
}
