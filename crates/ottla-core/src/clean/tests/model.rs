//! A partition of the real state with its batches beside it, passes over them, a reader like Kafka's consumer, and
//! the naive model: every record ever written, and which of them should still be there.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ottla_protocol::batch::{BatchBuilder, BatchHeader, Producer, parse_marker};
use ottla_protocol::compression::Codec;
use ottla_protocol::record::{NewRecord, records_of};
use ottla_protocol::types::TopicIdPartition;

use crate::clean::{Cleaned, Indexed, Indexing, Input, Pass, PassReport, Plan, Rules, Verdict, Why};
use crate::command::{CheckedBatch, CommandBody};
use crate::testing::{From, NOBODY, Shard};

/// `delete.retention.ms` of the model.
pub(super) const RETENTION_MS: i64 = 1000;

/// A record as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) offset: i64,
    pub(super) key: Option<Bytes>,
    pub(super) value: Option<Bytes>,
    pub(super) timestamp: i64,
}

/// How far the end of a pass comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The new horizon is known, the files are the old ones.
    Announced,
    /// The files are the new ones, nobody has written down what the pass found.
    Live,
    /// All of it.
    Recorded,
}

/// How a record's transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Of no transaction, or committed.
    Committed,
    Aborted,
    Open,
}

/// A record in the model.
#[derive(Clone, Debug)]
struct Modelled {
    seen: Seen,
    producer_id: i64,
    outcome: Outcome,
    /// Last offset of its batch.
    batch_end: i64,
    /// When a pass first met it as a tombstone that stays.
    met_at: Option<i64>,
    is_there: bool,
}

/// The partition.
pub(super) struct Bench {
    pub(super) shard: Shard,
    /// What a reader of the files would find.
    pub(super) disk: Vec<(BatchHeader, Bytes)>,
    /// As it was written.
    written: BTreeMap<i64, BatchHeader>,
    model: Vec<Modelled>,
    taken: usize,
    sequences: BTreeMap<i64, i32>,
    pub(super) codec: Codec,
    /// Bytes of the table of keys.
    pub(super) map_bytes: usize,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self {
            shard: Shard::with(|config| config.transaction_partition_verification_enable = false),
            disk: Vec::new(),
            written: BTreeMap::new(),
            model: Vec::new(),
            taken: 0,
            sequences: BTreeMap::new(),
            codec: Codec::None,
            map_bytes: 1 << 20,
        }
    }

    pub(super) fn partition(&self) -> TopicIdPartition {
        self.shard.partition(0)
    }

    pub(super) fn rules(&self) -> Rules {
        Rules {
            delete_retention_ms: RETENTION_MS,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            min_cleanable_dirty_ratio: 0.0,
            decompressed_bytes_max: 1 << 20,
        }
    }

    pub(super) fn input(&self) -> Input {
        let wanted = BTreeSet::from([self.partition()]);
        self.shard.state.snapshot().clean_inputs(&wanted).remove(&self.partition()).expect("it exists")
    }

    /// A batch without producer.
    pub(super) fn send_keys(&mut self, records: &[(i64, Option<i64>)]) {
        self.send(NOBODY, records);
    }

    /// A batch of a producer, of a transaction or not; false when it is refused. Keys below 0 are none.
    pub(super) fn send_as(
        &mut self,
        producer_id: i64,
        transactional: bool,
        records: &[(i64, Option<i64>)],
    ) -> bool {
        let sequence = self.sequences.get(&producer_id).copied().unwrap_or_default();
        let from = From { producer_id, producer_epoch: 0, sequence, transactional };
        let accepted = self.send(from, records);
        if accepted {
            self.sequences.insert(producer_id, sequence + records.len() as i32);
        }
        accepted
    }

    fn send(&mut self, from: From, records: &[(i64, Option<i64>)]) -> bool {
        let mut builder = BatchBuilder::new(self.codec);
        builder.set_producer(Producer {
            producer_id: from.producer_id,
            producer_epoch: from.producer_epoch,
            base_sequence: from.sequence,
            transactional: from.transactional,
        });
        for (index, (key, value)) in records.iter().enumerate() {
            let (key_bytes, value) = (key.to_be_bytes(), value.map(i64::to_be_bytes));
            let record = NewRecord {
                timestamp: self.shard.now_ms - 7 * index as i64,
                key: (*key >= 0).then_some(&key_bytes),
                value: value.as_ref().map(<[u8; 8]>::as_slice),
                headers: &[(b"h", None)],
            };
            builder.append(&record).expect("test batches are small");
        }
        let (header, tail) = builder.build_parts();
        let batch = CheckedBatch { header, tail };
        let id = from.transactional.then_some("x");
        let accepted = self.shard.produce(9, id, vec![(0, batch)])[0].error_code == 0;
        self.take();
        accepted
    }

    /// Ends the producer's transaction, or writes a marker that ends none.
    pub(super) fn end(&mut self, producer_id: i64, commit: bool) {
        assert_eq!(self.shard.marker(0, (producer_id, 0), commit, 1, 0), 0);
        self.take();
    }

    /// Takes what the shard has written to the partition onto the disk and into the model.
    fn take(&mut self) {
        let partition = self.partition();
        let new: Vec<(BatchHeader, Bytes)> = self.shard.log[self.taken..]
            .iter()
            .flat_map(|logged| &logged.entries)
            .filter(|entry| entry.partition == partition)
            .map(|entry| (entry.header, entry.tail.clone()))
            .collect();
        self.taken = self.shard.log.len();
        for (header, tail) in new {
            self.written.insert(header.base_offset, header);
            if header.is_control() {
                let commit = parse_marker(&header, &tail).expect("sound").expect("a marker").commit;
                let outcome = if commit { Outcome::Committed } else { Outcome::Aborted };
                for record in &mut self.model {
                    if record.outcome == Outcome::Open && record.producer_id == header.producer_id {
                        record.outcome = outcome;
                    }
                }
            } else {
                let outcome = if header.is_transactional() { Outcome::Open } else { Outcome::Committed };
                for seen in decode(&header, &tail) {
                    self.model.push(Modelled {
                        seen,
                        producer_id: header.producer_id,
                        outcome,
                        batch_end: header.last_offset(),
                        met_at: None,
                        is_there: true,
                    });
                }
            }
            self.disk.push((header, tail));
        }
    }

    /// A pass over everything that may be cleaned.
    pub(super) fn pass_all(&mut self) -> PassReport {
        self.pass(i64::MAX)
    }

    /// A pass up to an offset at most, and the same in the model.
    pub(super) fn pass(&mut self, limit: i64) -> PassReport {
        self.pass_until(limit, Step::Recorded)
    }

    /// A pass after which the broker crashes at some point.
    pub(super) fn pass_until(&mut self, limit: i64, last: Step) -> PassReport {
        let input = self.input();
        let from = input.dirty_offset();
        let limit = limit.min(input.last_stable_offset).max(from);
        let plan = Plan { from, limit, why: Why::DirtyRatio, dirty_ratio: 1.0 };
        let mut indexing = Indexing::new(&self.rules(), &input, &plan, [5; 16], self.map_bytes);
        for (header, tail) in &self.disk {
            if indexing.add(header, tail) == Indexed::End {
                break;
            }
        }
        let (map, end) = indexing.finish();
        assert!(end >= from && end <= limit);
        assert!(end > from || from == limit || self.disk.is_empty(), "every pass goes on");
        let before = input.cleaned;
        let mut pass = Pass::new(self.rules(), input, end, map, self.shard.now_ms);
        let mut disk = Vec::new();
        for (header, tail) in &self.disk {
            match pass.filter(header, tail) {
                Verdict::Keep => disk.push((*header, tail.clone())),
                Verdict::Replace(header, tail) => disk.push((header, tail)),
                Verdict::Drop => {}
            }
        }
        let (cleaned, report) = pass.finish();
        assert!(cleaned.state.cleaned_to >= before.cleaned_to);
        if let Some(announced) = cleaned.announced(before) {
            self.record(announced);
        }
        if last >= Step::Live {
            self.model_pass(end, cleaned.state.tombstone_horizon);
            self.disk = disk;
        }
        if last >= Step::Recorded {
            self.record(cleaned);
        }
        report
    }

    fn record(&mut self, cleaned: Cleaned) {
        let passes = vec![(self.partition(), cleaned)];
        self.shard.ask(0, CommandBody::Cleaned(passes));
        self.take();
    }

    fn model_pass(&mut self, end: i64, horizon: i64) {
        let now = self.shard.now_ms;
        let mut last = BTreeMap::new();
        for record in self.model.iter().filter(|record| record.outcome != Outcome::Aborted) {
            if record.seen.offset < end {
                last.insert(record.seen.key.clone(), record.seen.offset);
            }
        }
        for record in self.model.iter_mut().filter(|record| record.is_there && record.seen.offset < end) {
            let whole = record.batch_end < end;
            let is_last = last.get(&record.seen.key) == Some(&record.seen.offset);
            if record.outcome == Outcome::Aborted {
                record.is_there = !whole;
            } else if record.seen.key.is_none() || !is_last {
                record.is_there = false;
            } else if record.seen.value.is_none() {
                let over = record.met_at.is_some_and(|met_at| now >= met_at + RETENTION_MS);
                record.is_there = !over;
                assert!(!over || horizon > record.seen.offset, "a tombstone went and nobody is told");
                if whole && record.met_at.is_none() {
                    record.met_at = Some(now);
                }
            }
        }
    }

    /// What a reader from `from` gets in one fetch, by the rules of Kafka's consumers.
    pub(super) fn read(&self, from: i64, committed: bool) -> Vec<Seen> {
        let bounds = self.shard.bounds(0);
        let upper = if committed { bounds.last_stable_offset } else { bounds.high_watermark };
        let mut aborted = if committed { bounds.aborted.lookup(from, upper) } else { Vec::new() };
        aborted.reverse();
        let mut skipped = BTreeSet::new();
        let mut seen = Vec::new();
        for (header, tail) in &self.disk {
            if header.last_offset() < from || header.base_offset >= upper {
                continue;
            }
            while let Some((producer_id, _)) = aborted.pop_if(|(_, first)| *first <= header.last_offset()) {
                skipped.insert(producer_id);
            }
            if header.is_control() {
                if parse_marker(header, tail).expect("sound").is_some_and(|marker| !marker.commit) {
                    skipped.remove(&header.producer_id);
                }
            } else if !header.is_transactional() || !skipped.contains(&header.producer_id) {
                seen.extend(decode(header, tail).into_iter().filter(|record| record.offset >= from));
            }
        }
        seen
    }

    /// What it should get.
    fn expected(&self, from: i64, committed: bool) -> Vec<Seen> {
        let bounds = self.shard.bounds(0);
        let upper = if committed { bounds.last_stable_offset } else { bounds.high_watermark };
        let there = self.model.iter().filter(|record| record.is_there && record.seen.offset < upper);
        there
            .filter(|record| !committed || record.outcome == Outcome::Committed)
            .map(|record| record.seen.clone())
            .filter(|seen| seen.offset >= from)
            .collect()
    }

    /// That readers see what they should, from everywhere, and that the batches are sound.
    pub(super) fn check(&self) {
        let end = self.shard.bounds(0).high_watermark;
        for from in 0..=end {
            for committed in [true, false] {
                let (read, expected) = (self.read(from, committed), self.expected(from, committed));
                assert_eq!(read, expected, "from {from}, read_committed {committed}");
            }
        }
        let mut next = 0;
        for (header, tail) in &self.disk {
            header.check_crc(tail).expect("the CRC is that of the bytes");
            assert_eq!(header.batch_bytes(), 21 + tail.len());
            assert!(header.base_offset >= next, "batches in order");
            next = header.last_offset() + 1;
            let was = self.written[&header.base_offset];
            let same = |header: &BatchHeader| {
                let BatchHeader { last_offset_delta, producer_id, producer_epoch, base_sequence, .. } =
                    *header;
                let flags = (header.is_control(), header.is_transactional(), header.partition_leader_epoch);
                (last_offset_delta, producer_id, producer_epoch, base_sequence, flags)
            };
            assert_eq!(same(header), same(&was), "offsets and producer stay");
        }
        let input = self.input();
        for (producer_id, last) in &input.last_batches {
            let Some(offset) = last.last_data_offset else { continue };
            let found = self.disk.iter().any(|(header, _)| {
                header.producer_id == *producer_id && header.last_offset() == offset && !header.is_control()
            });
            assert!(found, "the last batch of producer {producer_id} is there");
        }
        self.check_horizon(&input);
    }

    /// That whoever has the state of any offset at or behind the horizon, and reads on, misses no deletion.
    fn check_horizon(&self, input: &Input) {
        let stable = input.last_stable_offset;
        let history = || self.model.iter().filter(|record| record.outcome == Outcome::Committed);
        let state_at = |offset: i64| {
            let mut state = BTreeMap::new();
            for record in history().filter(|record| record.seen.offset < offset) {
                put(&mut state, &record.seen);
            }
            state
        };
        let wanted = state_at(stable);
        for from in input.cleaned.tombstone_horizon..=stable {
            let mut state = state_at(from);
            for seen in self.read(from, true) {
                put(&mut state, &seen);
            }
            assert_eq!(state, wanted, "restored from {from}");
        }
    }

    /// Markers on the disk.
    pub(super) fn markers(&self) -> Vec<i64> {
        let markers = self.disk.iter().filter(|(header, _)| header.is_control());
        markers.map(|(header, _)| header.base_offset).collect()
    }

    /// Keys and values that a reader of committed records sees.
    pub(super) fn committed(&self) -> Vec<(i64, Option<i64>)> {
        let number = |bytes: Bytes| i64::from_be_bytes(bytes.as_ref().try_into().expect("eight bytes"));
        let seen = self.read(0, true).into_iter();
        seen.map(|seen| (seen.key.map_or(-1, number), seen.value.map(number))).collect()
    }
}

fn put(state: &mut BTreeMap<Bytes, Bytes>, seen: &Seen) {
    match (&seen.key, &seen.value) {
        (Some(key), Some(value)) => {
            state.insert(key.clone(), value.clone());
        }
        (Some(key), None) => {
            state.remove(key);
        }
        (None, _) => {}
    }
}

fn decode(header: &BatchHeader, tail: &Bytes) -> Vec<Seen> {
    let records = records_of(header, tail, 1 << 20).expect("known codec");
    records
        .map(|record| record.expect("sound records"))
        .map(|record| {
            assert_eq!(record.headers.len(), 1, "headers stay");
            Seen { offset: record.offset, key: record.key, value: record.value, timestamp: record.timestamp }
        })
        .collect()
}
