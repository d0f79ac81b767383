//! Compaction end to end, with one thread and a simulated disk: the real state, the real log, real passes, restarts
//! and crashes of the cleaner at each of its steps, against a naive model of every record ever written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ottla_core::command::{
    CheckedBatch, Command, CommandBody, Context, ProduceCommand, ProducePartition, ProduceTopic, Token,
};
use ottla_core::config::CoreConfig;
use ottla_core::decision::{Bounds, Reply};
use ottla_core::shard::ShardState;
use ottla_env::clock::ManualClock;
use ottla_env::disk::Disk;
use ottla_env::disk::sim::SimDisk;
use ottla_env::rng::SeededRng;
use ottla_protocol::batch::{BATCH_HEAD_BYTES, BatchBuilder, Producer, parse_marker};
use ottla_protocol::compression::Codec;
use ottla_protocol::messages as m;
use ottla_protocol::record::{NewRecord, records_of};
use ottla_protocol::types::{Text, Uuid};
use ottla_storage::{Alive, LevelsOptions, LogOptions, Nonces, Opened, SnapshotInfo};

use super::*;
use crate::shard::recovery::{Recovered, recover};
use crate::shard::time::{ShardClock, SharedTime};

const RETENTION_MS: i64 = 1000;

/// Where the cleaner crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Crash {
    /// The files are made, nobody was told.
    Made,
    /// What must be known first is.
    Announced,
    /// The files are live.
    Live,
    /// All is written down, the old files are there.
    Found,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    offset: i64,
    key: Option<i64>,
    value: Option<i64>,
}

/// A record in the model, and its producer as long as its transaction is open.
struct Modelled {
    record: Record,
    open: Option<i64>,
    is_aborted: bool,
}

struct World {
    disk: SimDisk,
    clock: Arc<ManualClock>,
    options: LogOptions,
    core: CoreConfig,
    state: ShardState,
    opened: Opened,
    time: ShardClock,
    token: u64,
    rng: SeededRng,
    /// The next sequence of each producer of topic "t".
    sequences: BTreeMap<i64, i32>,
    model: Vec<Modelled>,
    /// Everything of topic "d", which is not compacted.
    plain: Vec<u8>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut nonces = SeededRng::new(seed);
        let options = LogOptions {
            file_bytes: 64 << 10,
            growth_bytes: 16 << 10,
            levels: LevelsOptions {
                rewrite: seed % 2 == 1,
                data_file_bytes: 64 << 10,
                run_bytes: 256 << 10,
                run_age_ms: 5000,
                ..LevelsOptions::default()
            },
            ..LogOptions::new(Nonces::new(move || nonces.next_u64()))
        };
        let core = CoreConfig {
            transaction_partition_verification_enable: false,
            offsets_topic_num_partitions: 2,
            transaction_state_log_num_partitions: 2,
            ..CoreConfig::default()
        };
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let disk = SimDisk::new(seed);
        let Recovered { state, opened, clock: time } = load(&disk, &options, &core, &clock);
        let (rng, sequences) = (SeededRng::new(seed), BTreeMap::new());
        let (model, plain) = (Vec::new(), Vec::new());
        let mut world =
            Self { disk, clock, options, core, state, opened, time, token: 0, rng, sequences, model, plain };
        let topic_ids = [Uuid([1; 16]), Uuid([2; 16])];
        world.ask(0, CommandBody::Bootstrap { cluster_id: Uuid([9; 16]), topic_ids });
        let compacted = [
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0"),
            ("delete.retention.ms", "1000"),
            ("segment.ms", "1"),
        ];
        world.create("t", &compacted);
        world.create("d", &[]);
        world
    }

    fn create(&mut self, name: &str, configs: &[(&str, &str)]) {
        use m::create_topics_request::{CreatableTopic, CreatableTopicConfig};
        let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
            name: (*name).into(),
            value: Some((*value).into()),
            ..Default::default()
        };
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: 1,
            replication_factor: -1,
            configs: configs.iter().map(config).collect(),
            ..Default::default()
        };
        let request = m::CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let Reply::CreateTopics(answer) = self.ask(7, CommandBody::CreateTopics(request)) else { panic!() };
        assert_eq!(answer.topics[0].error_code, 0);
    }

    fn ask(&mut self, version: i16, body: CommandBody) -> Reply {
        self.token += 1;
        let context = Context { token: Token(self.token), version, ..Context::default() };
        let now = self.time.now();
        let mut decision = self.state.step(Command { context, body }, now);
        if !decision.entries.is_empty() {
            let position = self.state.position().0;
            self.opened.writer.append(now.0, position, &decision.entries).expect("appended");
            while self.opened.preparer.run_once() {}
        }
        decision.answers.remove(0).reply
    }

    fn partition(&self, topic: &str) -> TopicIdPartition {
        let topic_id = self.state.image().topic_by_name(topic).expect("made").id;
        TopicIdPartition { topic_id, partition: 0 }
    }

    fn bounds(&self, topic: &str) -> Bounds {
        self.state.bounds(self.partition(topic)).expect("it exists")
    }

    /// One batch to topic "t"; its records enter the model.
    fn send(&mut self, producer_id: i64, transactional: bool, records: &[(i64, Option<i64>)]) {
        let base_sequence =
            if producer_id < 0 { -1 } else { self.sequences.get(&producer_id).copied().unwrap_or(0) };
        let producer_epoch = if producer_id < 0 { -1 } else { 0 };
        let producer = Producer { producer_id, producer_epoch, base_sequence, transactional };
        let base_offset = self.produce("t", producer, records);
        *self.sequences.entry(producer_id).or_default() += records.len() as i32;
        for (offset, (key, value)) in (base_offset..).zip(records) {
            let record = Record { offset, key: Some(*key), value: *value };
            self.model.push(Modelled {
                record,
                open: transactional.then_some(producer_id),
                is_aborted: false,
            });
        }
    }

    fn produce(&mut self, topic: &str, producer: Producer, records: &[(i64, Option<i64>)]) -> i64 {
        let mut builder = BatchBuilder::new(if self.rng.one_in(3) { Codec::Lz4 } else { Codec::None });
        builder.set_producer(producer);
        for (key, value) in records {
            let (key_bytes, value) =
                (key.to_be_bytes(), value.map(|value| [value.to_be_bytes(); 40].concat()));
            let record = NewRecord {
                timestamp: self.time.now().0,
                key: (*key >= 0).then_some(&key_bytes),
                value: value.as_deref(),
                headers: &[],
            };
            builder.append(&record).expect("small");
        }
        let (header, tail) = builder.build_parts();
        let batch = ProducePartition { partition: 0, batch: Ok(CheckedBatch { header, tail }) };
        let topic_id = self.partition(topic).topic_id;
        let topic = ProduceTopic { name: topic.into(), topic_id, partitions: vec![batch] };
        let command = ProduceCommand {
            transactional_id: producer.transactional.then(|| Text::from("x")),
            acks: -1,
            topics: vec![topic],
        };
        let Reply::Produce(answer) = self.ask(9, CommandBody::Produce(command)) else { panic!() };
        let answer = &answer.responses[0].partition_responses[0];
        assert_eq!(answer.error_code, 0, "producer {} goes on", producer.producer_id);
        answer.base_offset
    }

    /// A record that is not compacted, to be in everybody's way.
    fn send_plain(&mut self) {
        let before = self.bounds("d").high_watermark;
        self.produce("d", Producer::NONE, &[(-1, Some(7))]);
        let read = self.opened.reader.read(self.partition("d"), before, i64::MAX, 1).expect("read");
        read.pieces.iter().for_each(|piece| self.plain.extend_from_slice(piece));
    }

    fn end(&mut self, producer_id: i64, commit: bool) {
        use m::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
        let topic =
            WritableTxnMarkerTopic { name: "t".into(), partition_indexes: vec![0], ..Default::default() };
        let marker = WritableTxnMarker {
            producer_id,
            producer_epoch: 0,
            transaction_result: commit,
            topics: vec![topic],
            coordinator_epoch: 1,
            ..Default::default()
        };
        let request = m::WriteTxnMarkersRequest { markers: vec![marker], ..Default::default() };
        let Reply::WriteTxnMarkers(_) = self.ask(2, CommandBody::WriteTxnMarkers(request)) else { panic!() };
        for modelled in self.model.iter_mut().filter(|modelled| modelled.open == Some(producer_id)) {
            modelled.open = None;
            modelled.is_aborted = !commit;
        }
    }

    /// Until nothing is due any more.
    fn clean_all(&mut self) {
        for _ in 0..4 {
            self.clean(None);
        }
    }

    /// Looks, and makes every pass that is due; or crashes at a step of the first.
    fn clean(&mut self, crash: Option<Crash>) -> usize {
        self.clock.advance(Duration::from_millis(2)); // `segment.ms` is one
        let image = self.state.image();
        let now = self.time.now().0;
        let look = |world: &Self| -> Vec<(Compacted, Look)> {
            let all = Compacted::all(&image).into_iter();
            all.map(|compacted| {
                let bounds = world.state.bounds(compacted.partition).expect("it exists");
                let looked = super::look(&world.opened.reader, &compacted, &bounds, now).expect("read");
                (compacted, looked.look)
            })
            .collect()
        };
        let mut looked = look(self);
        if looked.iter().any(|(_, look)| *look == Look::InUse) {
            self.opened.writer.roll().expect("rolled");
            while self.opened.preparer.run_once() {}
            looked = look(self);
            assert!(looked.iter().all(|(_, look)| *look != Look::InUse), "the file in use is empty");
        }
        let due = looked.into_iter().filter_map(|(compacted, look)| match look {
            Look::Due(plan) => Some((compacted, plan)),
            Look::Clean | Look::InUse => None,
        });
        let due: Vec<_> = due.collect();
        let wanted: BTreeSet<_> = due.iter().map(|(compacted, _)| compacted.partition).collect();
        let mut inputs = self.state.snapshot().clean_inputs(&wanted);
        let jobs = due.into_iter().map(|(compacted, plan)| {
            Job::new(compacted, inputs.remove(&compacted.partition).expect("it exists"), plan)
        });
        let mut jobs: Vec<Job> = jobs.collect();
        let count = jobs.len();
        let key_bytes_max = if self.rng.one_in(3) { 1 } else { 1 << 20 };
        while !jobs.is_empty() {
            let mut rng = SeededRng::new(now as u64);
            let means = Means { key_bytes_max, rng: &mut rng, pace: &mut |_| true };
            let reader = self.opened.reader.clone();
            let made = super::clean(&reader, &mut self.opened.levels, &mut jobs, now, means);
            let Some(cleaned) = made.expect("no damage") else { continue };
            let before = (self.bounds("t").high_watermark, self.bounds("t").last_stable_offset);
            if self.carry_out(cleaned, crash) {
                return count;
            }
            let after = (self.bounds("t").high_watermark, self.bounds("t").last_stable_offset);
            assert_eq!(before, after, "ends do not move");
        }
        count
    }

    /// The steps, in order; true when it crashed.
    fn carry_out(&mut self, cleaned: Cleaned, crash: Option<Crash>) -> bool {
        let Cleaned { announced, change, found, .. } = cleaned;
        let stops = |step| crash == Some(step);
        if stops(Crash::Made) {
            return true;
        }
        if !announced.is_empty() {
            self.ask(0, CommandBody::Cleaned(announced));
        }
        if stops(Crash::Announced) {
            return true;
        }
        let now = self.time.now().0;
        self.opened.writer.append_files(now, &change).expect("appended");
        self.check();
        if stops(Crash::Live) {
            return true;
        }
        self.ask(0, CommandBody::Cleaned(found));
        if !stops(Crash::Found) {
            self.opened.levels.unlink(&change);
        }
        stops(Crash::Found)
    }

    fn snapshot(&mut self) {
        let info = SnapshotInfo {
            frame_sequence: self.opened.writer.durable_sequence(),
            epoch: self.opened.epoch,
            position: self.state.position().0,
            shard_time: self.time.now().0,
        };
        let mut writer = self.opened.snapshots.begin(info).expect("begun");
        for chunk in self.state.snapshot().chunks() {
            writer.chunk(&chunk).expect("written");
        }
        writer.finish().expect("finished");
    }

    fn tidy(&mut self) {
        let horizon = self.opened.snapshots.horizon().expect("known");
        loop {
            let now = self.time.now().0;
            let change =
                self.opened.levels.run_once(horizon, now, &Lives(&self.state), &mut |_| true).expect("well");
            let Some(change) = change else { return };
            self.opened.writer.append_files(now, &change).expect("appended");
            self.opened.levels.unlink(&change);
        }
    }

    /// The process or the machine dies, and starts again.
    fn restart(&mut self) {
        self.disk = if self.rng.one_in(2) { self.disk.kill() } else { self.disk.crash(&mut self.rng) };
        let before = self.state.bounds(self.partition("t")).expect("it exists");
        let Recovered { state, opened, clock } = load(&self.disk, &self.options, &self.core, &self.clock);
        assert!(opened.report.damage.is_empty(), "{:?}", opened.report.damage);
        (self.state, self.time) = (state, clock);
        self.opened = opened;
        let after = self.bounds("t");
        assert_eq!(before.high_watermark, after.high_watermark);
        assert_eq!(before.last_stable_offset, after.last_stable_offset);
        assert_eq!(before.cleaned, after.cleaned);
    }

    /// What a reader of committed records gets from an offset on, by the rules of Kafka's consumers.
    fn read(&self, from: i64) -> Vec<Record> {
        let (partition, bounds) = (self.partition("t"), self.bounds("t"));
        let upper = bounds.last_stable_offset;
        let mut aborted = bounds.aborted.lookup(from, upper);
        aborted.reverse();
        let (mut skipped, mut records, mut next) = (BTreeSet::new(), Vec::new(), from);
        while next < upper {
            let read = self.opened.reader.read(partition, next, upper, 3000).expect("no damage");
            assert!(read.bytes > 0 && read.next_offset > next, "a reader at {next} of {upper} is stuck");
            let mut bytes = BytesMut::new();
            read.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
            let mut rest: Bytes = bytes.freeze();
            while !rest.is_empty() {
                let header = BatchHeader::parse(&rest).expect("whole batches");
                let tail = rest.slice(BATCH_HEAD_BYTES..header.batch_bytes());
                rest = rest.slice(header.batch_bytes()..);
                next = header.last_offset() + 1;
                while let Some((producer_id, _)) = aborted.pop_if(|(_, first)| *first <= header.last_offset())
                {
                    skipped.insert(producer_id);
                }
                if header.is_control() {
                    if parse_marker(&header, &tail).expect("sound").is_some_and(|marker| !marker.commit) {
                        skipped.remove(&header.producer_id);
                    }
                } else if !header.is_transactional() || !skipped.contains(&header.producer_id) {
                    records.extend(decode(&header, &tail).into_iter().filter(|record| record.offset >= from));
                }
            }
        }
        records
    }

    fn check(&self) {
        let bounds = self.bounds("t");
        let (start, stable) = (bounds.log_start_offset, bounds.last_stable_offset);
        let read = self.read(start);
        let committed: Vec<&Record> = self
            .model
            .iter()
            .filter(|modelled| modelled.open.is_none() && !modelled.is_aborted)
            .map(|modelled| &modelled.record)
            .filter(|record| (start..stable).contains(&record.offset))
            .collect();
        let by_offset: BTreeMap<i64, &Record> =
            committed.iter().map(|record| (record.offset, *record)).collect();
        for record in &read {
            assert_eq!(by_offset.get(&record.offset), Some(&record), "nothing is invented or moved");
        }
        assert_eq!(
            fold(read.iter()),
            fold(committed.iter().copied()),
            "the last committed value of every key"
        );
        let last_cleaned: BTreeMap<_, _> = committed
            .iter()
            .filter(|record| record.offset < bounds.cleaned.cleaned_to)
            .map(|record| (record.key, record.offset))
            .collect();
        for record in read.iter().filter(|record| record.offset < bounds.cleaned.cleaned_to) {
            assert_eq!(
                last_cleaned[&record.key], record.offset,
                "one record of a key is left where it is clean"
            );
        }
        // Whoever has read up to the horizon, or beyond, misses no deletion.
        let from = bounds.cleaned.tombstone_horizon.max(start);
        let mut state = fold(committed.iter().copied().filter(|record| record.offset < from));
        for record in self.read(from) {
            put(&mut state, &record);
        }
        assert_eq!(state, fold(committed.iter().copied()), "restored from the tombstone horizon");
    }

    fn check_plain(&self) {
        let (partition, end) = (self.partition("d"), self.bounds("d").high_watermark);
        let (mut next, mut bytes) = (0, Vec::new());
        while next < end {
            let read = self.opened.reader.read(partition, next, end, 1 << 16).expect("no damage");
            read.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
            next = read.next_offset;
        }
        assert!(bytes == self.plain, "what is not compacted is as it was");
    }

    fn step(&mut self) {
        let producer_id = self.rng.below(4) as i64;
        match self.rng.below(20) {
            0..=7 => {
                let transactional = producer_id >= 2;
                let count = self.rng.between(1, 4);
                let records: Vec<_> = (0..count)
                    .map(|_| {
                        let value = self.rng.next_u64() as i64;
                        (self.rng.below(6) as i64, (!self.rng.one_in(4)).then_some(value))
                    })
                    .collect();
                let producer_id = if self.rng.one_in(8) { -1 } else { producer_id };
                self.send(producer_id, transactional && producer_id >= 0, &records);
            }
            8 => self.send_plain(),
            9 | 10 => {
                let commit = !self.rng.one_in(3);
                self.end(2 + producer_id % 2, commit);
            }
            11..=13 => drop(self.clean(None)),
            14 => {
                let crash = [Crash::Made, Crash::Announced, Crash::Live, Crash::Found];
                let crash = crash[self.rng.index(4)];
                self.clean(Some(crash));
                self.restart();
            }
            15 => self.restart(),
            16 => self.snapshot(),
            17 => self.tidy(),
            18 if self.rng.one_in(4) => {
                let bounds = self.bounds("t");
                let room = (bounds.last_stable_offset - bounds.log_start_offset) as u64;
                let to = bounds.log_start_offset + self.rng.below(room / 2 + 1) as i64;
                self.ask(0, CommandBody::MoveLogStarts(vec![(self.partition("t"), to)]));
            }
            _ => self.clock.advance(Duration::from_millis(self.rng.below(RETENTION_MS as u64 * 2))),
        }
    }
}

/// What is alive by the state.
struct Lives<'a>(&'a ShardState);

impl Alive for Lives<'_> {
    fn log_start_offset(&self, partition: &TopicIdPartition) -> Option<i64> {
        Some(self.0.bounds(*partition)?.log_start_offset)
    }

    fn class(&self, partition: &TopicIdPartition) -> u64 {
        u64::from(partition.topic_id.0[0] & 1)
    }
}

fn load(disk: &SimDisk, options: &LogOptions, core: &CoreConfig, clock: &Arc<ManualClock>) -> Recovered {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn ottla_env::clock::Clock> = clock.clone();
    recover(&disk, options, core, &clock, &SharedTime::default()).expect("it opens")
}

fn put(state: &mut BTreeMap<Option<i64>, i64>, record: &Record) {
    match record.value {
        Some(value) => drop(state.insert(record.key, value)),
        None => drop(state.remove(&record.key)),
    }
}

fn fold<'a>(records: impl Iterator<Item = &'a Record>) -> BTreeMap<Option<i64>, i64> {
    let mut state = BTreeMap::new();
    records.for_each(|record| put(&mut state, record));
    state
}

fn decode(header: &BatchHeader, tail: &Bytes) -> Vec<Record> {
    let number = |bytes: Bytes| i64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"));
    let records =
        records_of(header, tail, 1 << 20).expect("known codec").map(|record| record.expect("sound"));
    records
        .map(|record| Record {
            offset: record.offset,
            key: record.key.map(number),
            value: record.value.map(number),
        })
        .collect()
}

/// Proves: whatever is produced by several producers in and out of transactions, committed, aborted or deleted,
/// whenever passes are made, cut off at any of their steps and made again, with full tables of keys, moves of the log
/// start, snapshots, rewriting and restarts between: a reader of committed records gets the last value of every key,
/// each record at its own offset; ends stay; producers go on with their next sequence; other topics are as they were.
#[test]
fn compaction_against_a_model() {
    let mut passes = 0;
    for seed in 0..24 {
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.step();
            world.check();
        }
        for producer_id in [2, 3] {
            world.end(producer_id, true);
        }
        passes += world.clean(None);
        world.check();
        world.check_plain();
        world.restart();
        world.check();
        world.check_plain();
        for producer_id in 0..4 {
            world.send(producer_id, false, &[(99, Some(producer_id))]);
        }
        world.check();
    }
    assert!(passes > 0);
}

/// Proves (KAFKA-17076, KAFKA-9065, KAFKA-7286): when everything goes the ends stay, live and after a restart; a
/// reader, and a coordinator's load, meet the end and not a hole; the producer goes on.
#[test]
fn everything_goes_and_the_end_stays() {
    let mut world = World::new(2);
    for value in 0..50 {
        world.send(0, false, &[(1, Some(value))]);
    }
    world.send(0, false, &[(1, None)]);
    world.clean_all();
    assert_eq!(world.read(0).len(), 1, "the tombstone waits");
    world.clock.advance(Duration::from_millis(2 * RETENTION_MS as u64));
    world.clean_all();
    assert_eq!(world.read(0), []);
    let ends = (world.bounds("t").high_watermark, world.bounds("t").last_stable_offset);
    assert_eq!(ends, (51, 51));
    assert_eq!(world.opened.reader.end_offset(world.partition("t")), Some(51));
    world.snapshot();
    world.restart();
    assert_eq!(world.read(0), []);
    assert_eq!(world.opened.reader.end_offset(world.partition("t")), Some(51));
    assert_eq!(world.bounds("t").cleaned.tombstone_horizon, 51, "who restores from in front of it is told");
    world.send(0, false, &[(2, Some(1))]);
    world.check();
}

/// Proves (sarama#2053, KAFKA-5443): a reader at any offset of a partition that was compacted gets something and moves
/// on, where batches are empty, and where they are gone.
#[test]
fn no_reader_is_stuck() {
    let mut world = World::new(4);
    for value in 0..60 {
        world.send(value % 2, false, &[(value % 3, Some(value)), (value % 3, Some(-value))]);
    }
    world.clean_all();
    world.send(1, false, &[(7, Some(7))]);
    let end = world.bounds("t").high_watermark;
    for from in 0..end {
        let read = world.read(from);
        assert!(
            read.iter().all(|record| record.offset >= from)
                && read.last().is_some_and(|last| last.offset == end - 1)
        );
    }
    assert!(world.read(0).len() < 8);
}

/// Proves (RP#16295, RP#15672): two aborts of one producer with passes between them, and its commit behind: what was
/// aborted never shows, from no offset, and what was committed always does.
#[test]
fn aborted_data_never_comes_back() {
    let mut world = World::new(6);
    world.send(2, true, &[(1, Some(1))]);
    world.end(2, true);
    for round in 0..6 {
        world.send(2, true, &[(1, Some(100 + round)), (2, Some(100 + round))]);
        world.end(2, false);
        world.clean(None);
        world.clock.advance(Duration::from_millis(RETENTION_MS as u64));
        for from in 0..world.bounds("t").high_watermark {
            assert!(
                world.read(from).iter().all(|record| record.value < Some(100)),
                "round {round} from {from}"
            );
        }
        world.check();
        if round % 2 == 1 {
            world.restart();
        }
    }
    world.send(2, true, &[(3, Some(3))]);
    world.end(2, true);
    assert_eq!(world.read(0).iter().map(|record| record.value).collect::<Vec<_>>(), [Some(1), Some(3)]);
}

/// Proves: the control log and the internal topics are compacted too, to no more than three times what is alive, and
/// a start is the same as before: replay never needs what goes.
#[test]
fn internal_topics_stay_small() {
    let mut world = World::new(8);
    let control = CONTROL_PARTITION;
    let mut largest = 0;
    for round in 0..40 {
        for _ in 0..20 {
            let to = world.bounds("d").high_watermark;
            world.send_plain();
            world.ask(0, CommandBody::MoveLogStarts(vec![(world.partition("d"), to)]));
        }
        world.opened.writer.roll().expect("rolled");
        world.clean(None);
        if round % 8 == 7 {
            world.restart();
        }
        largest = largest.max(world.opened.reader.bytes_of(control).expect("read"));
    }
    assert!(largest < 30_000, "{largest} bytes of a control log in which a few records are alive");
    assert!(world.bounds("d").log_start_offset > 790);
    let image = world.state.image();
    assert!(image.topic_by_name("t").is_some() && image.topic_by_name("d").is_some());
}
