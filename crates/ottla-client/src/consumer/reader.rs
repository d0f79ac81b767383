//! Decodes what was fetched of one partition, batch by batch, as `poll` asks for it.
//!
//! A batch's CRC is checked once: by `sound_bytes`, in the task that has received it and while it is still in that
//! processor's cache, or else when the batch is entered. What is wrong shows only when reading comes to it.

use std::ops::Range;

use bytes::Bytes;
use ottla_protocol::batch::{Batch, BatchError, BatchIter, parse_marker};
use ottla_protocol::record::{RECORD_BYTES_MIN, Record, RecordIter, records_of};
use ottla_protocol::types::Text;

use super::ConsumerRecord;
use super::fetcher::Position;
use super::isolation::{Isolation, Verdict};
use crate::record::{Header, TopicPartition};

/// A fetched stretch of one partition.
#[derive(Debug)]
pub(super) struct PartitionReader {
    pub(super) topic_partition: TopicPartition,
    pub(super) generation: u64,
    /// Bytes of the stretch.
    pub(super) size: usize,
    batches: BatchIter,
    /// Bytes of the next batches whose CRC was found right.
    sound_bytes: usize,
    isolation: Isolation,
    /// The batch being read, and its offsets.
    open: Option<(RecordIter, Range<i64>)>,
    start: i64,
    position: i64,
    /// Leader epoch of the last batch that was entered.
    leader_epoch: i32,
    decompressed_bytes_max: usize,
}

impl PartitionReader {
    pub(super) fn new(
        topic_partition: TopicPartition,
        generation: u64,
        position: i64,
        bytes: Bytes,
        isolation: Isolation,
        decompressed_bytes_max: usize,
    ) -> Self {
        let size = bytes.len();
        let batches = BatchIter::new(bytes);
        let start = position;
        Self {
            topic_partition,
            generation,
            size,
            batches,
            sound_bytes: 0,
            isolation,
            open: None,
            start,
            position,
            leader_epoch: -1,
            decompressed_bytes_max,
        }
    }

    /// What `sound_bytes` has found of these bytes.
    pub(super) fn with_sound_bytes(self, sound_bytes: usize) -> Self {
        Self { sound_bytes, ..self }
    }

    /// Behind what was read.
    pub(super) fn position(&self) -> Position {
        Position { offset: self.position, leader_epoch: self.leader_epoch }
    }

    /// Shows nothing below this offset.
    pub(super) fn skip_to(&mut self, offset: i64) {
        self.position = self.position.max(offset);
    }

    /// Reads until `records` has `records_max`; true when the stretch is used up. An error says what is wrong at
    /// the position; what was read before it stays.
    pub(super) fn read(
        &mut self,
        records_max: usize,
        records: &mut Vec<ConsumerRecord>,
    ) -> Result<bool, String> {
        loop {
            if let Some((open, offsets)) = &mut self.open {
                if records.len() >= records_max {
                    return Ok(false);
                }
                match open.next() {
                    Some(record) => {
                        let record = record.map_err(|error| error.to_string())?;
                        if !offsets.contains(&record.offset) {
                            return Err(format!("record {} lies outside of its batch", record.offset));
                        }
                        if record.offset >= self.position {
                            self.position = record.offset + 1;
                            records.push(shown(&self.topic_partition, self.leader_epoch, record));
                        }
                        continue;
                    }
                    None => {
                        // compaction may have removed the last records: the batch still covers their offsets
                        self.position = self.position.max(offsets.end);
                        self.open = None;
                    }
                }
            }
            match self.batches.next() {
                None => return Ok(true),
                // a broker may cut the last batch at the limit it was given, but not the first
                Some(Err(BatchError::Cut { .. })) if self.position > self.start => return Ok(true),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(batch)) => {
                    self.enter(&batch)?;
                    if self.open.is_some() {
                        records.reserve(expected(&batch, records_max - records.len().min(records_max)));
                    }
                }
            }
        }
    }

    fn enter(&mut self, batch: &Batch) -> Result<(), String> {
        match self.sound_bytes.checked_sub(batch.bytes.len()) {
            Some(rest) => self.sound_bytes = rest,
            None => batch.check_crc().map_err(|error| error.to_string())?,
        }
        let header = &batch.header;
        let end = header
            .base_offset
            .checked_add(i64::from(header.last_offset_delta))
            .and_then(|last| last.checked_add(1));
        let end = end.filter(|end| (0..*end).contains(&header.base_offset));
        let end =
            end.ok_or_else(|| format!("a batch claims impossible offsets from {} on", header.base_offset))?;
        let is_abort = header.is_control() && {
            let marker = parse_marker(header, &batch.tail()).map_err(|error| error.to_string())?;
            marker.is_some_and(|marker| !marker.commit)
        };
        self.leader_epoch = header.partition_leader_epoch;
        match self.isolation.judge(header, is_abort) {
            Verdict::Skip => self.position = self.position.max(end),
            Verdict::Show if end <= self.position => {}
            Verdict::Show => {
                let records = records_of(header, &batch.tail(), self.decompressed_bytes_max)
                    .map_err(|error| error.to_string())?;
                self.open = Some((records, header.base_offset..end));
            }
        }
        Ok(())
    }
}

/// How many records a batch may add, at most `room`: as it claims, but never more than its bytes can hold.
fn expected(batch: &Batch, room: usize) -> usize {
    let claimed = usize::try_from(batch.header.records_count).unwrap_or(0);
    claimed.min(batch.bytes.len() / RECORD_BYTES_MIN).min(room)
}

/// How many bytes from the start on are whole batches, with the right CRC if that is checked (`check.crcs`).
pub(super) fn sound_bytes(bytes: &Bytes, check_crcs: bool) -> usize {
    let batches = BatchIter::new(bytes.clone());
    let is_sound = |batch: &Batch| !check_crcs || batch.check_crc().is_ok();
    let sound = batches.map_while(|batch| batch.ok().filter(is_sound));
    sound.map(|batch| batch.bytes.len()).sum()
}

#[inline]
fn shown(topic_partition: &TopicPartition, leader_epoch: i32, record: Record) -> ConsumerRecord {
    // most records have no headers
    let headers = if record.headers.is_empty() { Vec::new() } else { shown_headers(record.headers) };
    ConsumerRecord {
        topic_partition: topic_partition.clone(),
        offset: record.offset,
        leader_epoch,
        timestamp: record.timestamp,
        key: record.key,
        value: record.value,
        headers,
    }
}

fn shown_headers(headers: Vec<ottla_protocol::record::Header>) -> Vec<Header> {
    let shown = headers.into_iter().map(|header| {
        let key = Text::from_utf8(header.key)
            .unwrap_or_else(|bytes| Text::from(String::from_utf8_lossy(&bytes).into_owned()));
        Header { key, value: header.value }
    });
    shown.collect()
}
