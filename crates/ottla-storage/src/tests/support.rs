//! What the tests share: options, batches, a small log, reading everything back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ottla_env::disk::Disk;
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::batch::BatchBuilder;
use ottla_protocol::compression::Codec;
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::record::NewRecord;
use ottla_protocol::types::{TopicIdPartition, Uuid};

use super::memory::MemoryDisk;
use crate::{Batches, LogOptions, LogReader, Nonces, OpenError, Opened, RecoveredFrame, open};

/// Small files, little memory: everything that happens at a bound happens in a test.
pub(super) fn options() -> LogOptions {
    let mut rng = SeededRng::new(7);
    LogOptions {
        file_bytes: 64 << 10,
        growth_bytes: 16 << 10,
        frame_bytes_max: 1 << 20,
        tail_bytes_max: 24 << 10,
        open_files_max: 2,
        footer_bytes_max: 4 << 10,
        ..LogOptions::new(Nonces::new(move || rng.next_u64()))
    }
}

pub(super) fn partition(topic: u8, partition: i32) -> TopicIdPartition {
    TopicIdPartition { topic_id: Uuid([topic; 16]), partition }
}

/// A batch of `records` records of `bytes` each, timestamps `time`, `time + 1`, ...
pub(super) fn entry(
    at: TopicIdPartition,
    base_offset: i64,
    records: usize,
    bytes: usize,
    time: i64,
) -> Entry {
    let mut builder = BatchBuilder::new(Codec::None);
    builder.set_base_offset(base_offset).set_partition_leader_epoch(3);
    for index in 0..records {
        let value = vec![b'a' + (base_offset % 26) as u8; bytes];
        let record = NewRecord {
            timestamp: time + index as i64,
            key: Some(b"key"),
            value: Some(&value),
            headers: &[],
        };
        builder.append(&record).expect("small");
    }
    let (header, tail) = builder.build_parts();
    Entry { kind: EntryKind::Batch, partition: at, header, tail }
}

/// Opens and replays everything.
pub(super) fn reopen(
    disk: &Arc<dyn Disk>,
    options: LogOptions,
) -> Result<(Opened, Vec<RecoveredFrame>), OpenError> {
    let mut opening = open(disk.clone(), options)?;
    let mut frames = Vec::new();
    while let Some(frame) = opening.next_frame()? {
        frames.push(frame);
    }
    Ok((opening.finish()?, frames))
}

/// All that was appended to a partition, as one run of bytes.
pub(super) fn joined(entries: &[Entry], at: TopicIdPartition) -> Vec<u8> {
    entries.iter().filter(|entry| entry.partition == at).flat_map(|entry| entry.to_bytes().to_vec()).collect()
}

pub(super) fn concat(batches: &Batches) -> Vec<u8> {
    batches.pieces.iter().flat_map(|piece| piece.to_vec()).collect()
}

/// Reads a partition from `offset` to its end in steps of `step` bytes.
pub(super) fn read_all(reader: &LogReader, at: TopicIdPartition, mut offset: i64, step: usize) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let bytes = concat(&reader.read(at, offset, i64::MAX, step).expect("readable"));
        if bytes.is_empty() {
            return out;
        }
        let mut rest = Bytes::from(bytes.clone());
        while !rest.is_empty() {
            let batch = ottla_protocol::batch::Batch::parse(&rest).expect("whole batches");
            offset = batch.header.last_offset() + 1;
            rest = rest.slice(batch.header.batch_bytes()..);
        }
        out.extend(bytes);
    }
}

/// The files of a folder, to be changed and opened again.
#[derive(Clone, Default)]
pub(super) struct Image(pub(super) BTreeMap<String, Vec<u8>>);

impl Image {
    pub(super) fn of(disk: &dyn Disk) -> Self {
        let mut files = BTreeMap::new();
        for name in disk.list().expect("listed") {
            let file = disk.open(&name).expect("there");
            let mut bytes = vec![0; file.len().expect("known") as usize];
            file.read_exact_at(&mut bytes, 0).expect("read");
            files.insert(name, bytes);
        }
        Self(files)
    }

    /// A disk that holds these files.
    pub(super) fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(MemoryDisk::of(&self.0))
    }
}

/// What should be in the log.
#[derive(Clone, Default)]
pub(super) struct Model {
    /// Acknowledged frames, in order; frame n is at n - 1.
    pub(super) frames: Vec<Vec<Entry>>,
    /// A frame whose outcome is unknown.
    pub(super) maybe: Option<Vec<Entry>>,
}

impl Model {
    pub(super) fn end_offset(&self, at: TopicIdPartition) -> i64 {
        let entries = self.frames.iter().flatten().filter(|entry| entry.partition == at);
        entries.last().map_or(0, |entry| entry.last_offset() + 1)
    }

    /// Takes what replay gave behind frame `contained`: all acknowledged frames, and perhaps the unknown one.
    pub(super) fn recovered(&mut self, contained: u64, frames: &[RecoveredFrame]) {
        let maybe = self.maybe.take();
        let total = contained as usize + frames.len();
        if total > self.frames.len() {
            self.frames.push(maybe.expect("nothing is invented"));
        }
        assert_eq!(total, self.frames.len(), "nothing acknowledged is lost");
        for (index, frame) in frames.iter().enumerate() {
            let number = contained + index as u64 + 1;
            assert_eq!(frame.frame_sequence.0, number);
            assert!(frame.position == number || frame.entries.is_empty());
            assert_eq!(frame.entries, self.frames[number as usize - 1]);
        }
    }

    pub(super) fn partitions(&self) -> BTreeSet<TopicIdPartition> {
        self.frames.iter().flatten().map(|entry| entry.partition).collect()
    }

    /// Every partition reads back as it was appended.
    pub(super) fn check_reads(&self, reader: &LogReader, step: usize) {
        let all: Vec<Entry> = self.frames.iter().flatten().cloned().collect();
        for at in self.partitions() {
            assert_eq!(reader.end_offset(at), Some(self.end_offset(at)));
            assert_eq!(read_all(reader, at, 0, step), joined(&all, at));
        }
    }
}
