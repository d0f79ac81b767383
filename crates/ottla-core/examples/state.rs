//! What the state costs: bytes per producer entry, the owner's pause for a snapshot, the time to load it again.
//!
//! `cargo run --release -p ottla-core --example state -- [ENTRIES] [OPEN_TRANSACTIONS] [BATCHES]`
//!
//! Everything goes through `apply` and `step`, as in a broker: ENTRIES producers write BATCHES batches each to 1,000
//! partitions, some transactions are opened, then the producers rest and are packed. Bytes are those that the
//! allocator gave out. Times are processor time of this thread; the longest steps are measured while a snapshot is held, so
//! that every page they touch is copied.
#![allow(unsafe_code)] // an allocator that counts, and the thread's own clock

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use ottla_core::command::{Command, CommandBody, Context};
use ottla_core::decision::{Position, Reply, ShardTime};
use ottla_core::{CoreConfig, Restore, ShardState};
use ottla_protocol::batch::{BatchBuilder, BatchHeader, Producer};
use ottla_protocol::compression::Codec;
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::messages as m;
use ottla_protocol::record::NewRecord;
use ottla_protocol::types::{TopicIdPartition, Uuid};

struct Counting;

static NOW_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to `System` unchanged; only sizes are counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW_BYTES.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK_BYTES.fetch_max(now, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW_BYTES.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[repr(C)]
#[derive(Default)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// Of Linux: processor time of the calling thread.
const CLOCK_THREAD_CPUTIME_ID: i32 = 3;

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
}

/// Processor time that this thread has used.
fn cpu_time() -> Duration {
    let mut time = Timespec::default();
    // SAFETY: the time is valid for a write of its size, and the clock exists on every Linux of 64 bits.
    let result = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "the clock exists");
    Duration::new(time.seconds as u64, time.nanoseconds as u32)
}

/// Where a measurement began.
struct Began(Duration);

impl Began {
    fn now() -> Self {
        Self(cpu_time())
    }

    fn elapsed(&self) -> Duration {
        cpu_time() - self.0
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const PARTITIONS: i32 = 1000;
const ENTRIES_PER_FRAME: usize = 1000;
const START_MS: i64 = 1_790_000_000_000;

struct Bench {
    config: CoreConfig,
    state: ShardState,
    now_ms: i64,
    topic_id: Uuid,
    ends: Vec<i64>,
    header: BatchHeader,
    tail: bytes::Bytes,
    out: std::io::Stdout,
}

impl Bench {
    fn new(config: CoreConfig) -> Self {
        let mut builder = BatchBuilder::new(Codec::None);
        for _ in 0..10 {
            let record =
                NewRecord { timestamp: START_MS, key: Some(b"key"), value: Some(b"value"), headers: &[] };
            builder.append(&record).expect("small");
        }
        builder.set_producer(Producer {
            producer_id: 0,
            producer_epoch: 0,
            base_sequence: 0,
            transactional: false,
        });
        let (header, tail) = builder.build_parts();
        let mut bench = Self {
            state: ShardState::new(config.clone()),
            config,
            now_ms: START_MS,
            topic_id: Uuid::default(),
            ends: vec![0; PARTITIONS as usize],
            header,
            tail,
            out: std::io::stdout(),
        };
        bench.state.begin_epoch(1, ShardTime(START_MS));
        bench.ask(
            0,
            CommandBody::Bootstrap { cluster_id: Uuid([1; 16]), topic_ids: [Uuid([2; 16]), Uuid([3; 16])] },
        );
        let topic = m::create_topics_request::CreatableTopic {
            name: "state".into(),
            num_partitions: PARTITIONS,
            replication_factor: -1,
            ..Default::default()
        };
        let request = m::CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let Reply::CreateTopics(made) = bench.ask(7, CommandBody::CreateTopics(request)) else {
            unreachable!()
        };
        bench.topic_id = made.topics[0].topic_id;
        bench
    }

    fn ask(&mut self, version: i16, body: CommandBody) -> Reply {
        let context = Context { version, ..Context::default() };
        let decision = self.state.step(Command { context, body }, ShardTime(self.now_ms));
        decision.answers.into_iter().next().map_or(Reply::Done, |answer| answer.reply)
    }

    fn say(&mut self, line: &str) {
        writeln!(self.out, "{line}").expect("the terminal takes it");
    }

    /// A batch of each of these producers. The longest frame, and all of them.
    fn round(&mut self, producers: impl Iterator<Item = usize>, batch: usize) -> (Duration, Duration) {
        let (mut longest, mut all) = (Duration::ZERO, Duration::ZERO);
        let mut producers = producers.peekable();
        while producers.peek().is_some() {
            let entries: Vec<Entry> =
                producers.by_ref().take(ENTRIES_PER_FRAME).map(|at| self.entry(at, batch)).collect();
            let position = Position(self.state.position().0 + 1);
            let began = Began::now();
            self.state.replay(&entries, position, ShardTime(self.now_ms)).expect("it continues the log");
            longest = longest.max(began.elapsed());
            all += began.elapsed();
            self.now_ms += 1;
        }
        (longest, all)
    }

    fn entry(&mut self, producer: usize, batch: usize) -> Entry {
        let partition = producer % PARTITIONS as usize;
        let end = &mut self.ends[partition];
        let header = BatchHeader {
            base_offset: *end,
            partition_leader_epoch: 1,
            producer_id: 1_000_000 + producer as i64,
            base_sequence: 10 * batch as i32,
            max_timestamp: self.now_ms - 3,
            ..self.header
        };
        *end = header.last_offset() + 1;
        let partition = TopicIdPartition { topic_id: self.topic_id, partition: partition as i32 };
        Entry { kind: EntryKind::Batch, partition, header, tail: self.tail.clone() }
    }

    fn open_transactions(&mut self, count: usize) {
        for number in 0..count {
            let id = format!("transactional-id-{number}");
            let request = m::InitProducerIdRequest {
                transactional_id: Some(id.as_str().into()),
                transaction_timeout_ms: 900_000,
                producer_id: -1,
                producer_epoch: -1,
                ..Default::default()
            };
            let Reply::InitProducerId(pair) = self.ask(4, CommandBody::InitProducerId(request)) else {
                unreachable!()
            };
            let topic = m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
                name: "state".into(),
                partitions: (0..3).map(|at| (number as i32 + at * 7) % PARTITIONS).collect(),
                ..Default::default()
            };
            let request = m::AddPartitionsToTxnRequest {
                v3_and_below_transactional_id: id.as_str().into(),
                v3_and_below_producer_id: pair.producer_id,
                v3_and_below_producer_epoch: pair.producer_epoch,
                v3_and_below_topics: vec![topic],
                ..Default::default()
            };
            let Reply::AddPartitionsToTxn(added) = self.ask(3, CommandBody::AddPartitionsToTxn(request))
            else {
                unreachable!()
            };
            let codes = &added.results_by_topic_v3_and_below[0].results_by_partition;
            assert!(codes.iter().all(|result| result.partition_error_code == 0), "the transaction is open");
        }
    }

    /// Lets time pass, a tick at a time. The longest tick.
    fn rest(&mut self, ms: i64) -> Duration {
        let until = self.now_ms + ms;
        let mut longest = Duration::ZERO;
        while let Some(due) = self.state.next_deadline().filter(|due| due.0 <= until) {
            self.now_ms = self.now_ms.max(due.0);
            let began = Began::now();
            self.ask(0, CommandBody::Tick);
            longest = longest.max(began.elapsed());
        }
        self.now_ms = until;
        longest
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let entries = numbers.next().unwrap_or(1_000_000);
    let transactions = numbers.next().unwrap_or(10_000);
    let batches = numbers.next().unwrap_or(5);
    let mut config = CoreConfig { hash_seed: 7, ..CoreConfig::default() };
    config.limits.producers_max = entries + 100_000;
    let mut bench = Bench::new(config);
    let empty = NOW_BYTES.load(Relaxed);
    let per_entry = move || (NOW_BYTES.load(Relaxed) - empty) as f64 / entries as f64;
    let mib = |bytes: usize| bytes >> 20;

    let (longest, all) = bench.round(0..entries, 0);
    let line = format!(
        "{entries} producers, first batch: {:.1} bytes each, {:.2} us each, longest frame of {ENTRIES_PER_FRAME} {longest:?}",
        per_entry(),
        all.as_secs_f64() * 1e6 / entries as f64
    );
    bench.say(&line);
    for batch in 1..batches {
        bench.round(0..entries, batch);
    }
    bench.say(&format!("{batches} batches each, all writing: {:.1} bytes each", per_entry()));
    // As after a start: from here on ticks are due.
    bench.state.begin_epoch(1, ShardTime(bench.now_ms));
    let tick = bench.rest(200_000);
    bench.say(&format!("at rest: {:.1} bytes each; longest tick {tick:?}", per_entry()));
    bench.open_transactions(transactions);
    let line = format!("{transactions} open transactions: {} MiB in all", mib(NOW_BYTES.load(Relaxed)));
    bench.say(&line);

    let began = Began::now();
    let snapshot = bench.state.snapshot();
    let taken = began.elapsed();
    // One producer in a hundred, all over the pages: the worst for what is copied on the first write.
    let some = (0..entries).step_by(101).chain((0..entries).step_by(97));
    let (longest, all) = bench.round(some, batches);
    let line = format!("snapshot: taken in {taken:?}; longest frame while it is held {longest:?} of {all:?}");
    bench.say(&line);
    let began = Began::now();
    let chunks: Vec<Vec<u8>> = snapshot.chunks().collect();
    let bytes: usize = chunks.iter().map(Vec::len).sum();
    let line = format!(
        "written in {:?}, {} MiB, {:.1} bytes per entry",
        began.elapsed(),
        mib(bytes),
        bytes as f64 / entries as f64
    );
    bench.say(&line);
    let began = Began::now();
    drop(snapshot);
    let dropped = began.elapsed();
    let line = format!(
        "dropped in {dropped:?}; peak {} MiB, with its bytes in memory",
        mib(PEAK_BYTES.load(Relaxed))
    );
    bench.say(&line);

    let before = NOW_BYTES.load(Relaxed);
    let began = Began::now();
    let mut restore = Restore::new(bench.config.clone());
    for chunk in &chunks {
        restore.feed(chunk).expect("it was just written");
    }
    let mut state = restore.finish().expect("it is whole");
    state.begin_epoch(2, ShardTime(bench.now_ms));
    let line = format!("loaded in {:?}: {} MiB", began.elapsed(), mib(NOW_BYTES.load(Relaxed) - before));
    bench.say(&line);
}
