//! A property test: random appends, reads, snapshots, reopenings, crashes and disk faults against a naive model.
//!
//! The seed is the whole run. What a failing seed found becomes a test of its own, here or in `damage`.

use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_env::disk::sim::{Fault, FaultPlan, SimDisk};
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::entry::Entry;

use super::support::{Model, concat, entry, joined, options, partition, reopen};
use crate::{
    AppendError, DurableEnd, FrameSequence, LogOptions, Nonces, OpenError, Opened, ReadError, SnapshotInfo,
};

struct Run {
    rng: SeededRng,
    disk: SimDisk,
    opened: Option<Opened>,
    model: Model,
    /// The dead writer's end, while the process lives.
    durable_end: Option<DurableEnd>,
    file_bytes: u64,
}

fn faults() -> FaultPlan {
    FaultPlan::default()
        .with(Fault::WriteError, 3_000)
        .with(Fault::WriteErrorPartial, 3_000)
        .with(Fault::ShortWrite, 50_000)
        .with(Fault::NoSpaceWrite, 5_000)
        .with(Fault::NoSpaceCreate, 20_000)
        .with(Fault::SyncError, 10_000)
        .with(Fault::DirSyncError, 20_000)
        .with(Fault::ReadError, 5_000)
        .with(Fault::BitFlipRead, 5_000)
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed);
        let disk = SimDisk::new(rng.next_u64());
        disk.set_plan(faults());
        let file_bytes = 4096 * rng.between(4, 16);
        Self { rng, disk, opened: None, model: Model::default(), durable_end: None, file_bytes }
    }

    fn options(&mut self) -> LogOptions {
        let mut nonces = self.rng.fork();
        LogOptions {
            file_bytes: self.file_bytes,
            growth_bytes: 4096 * self.rng.between(1, 4),
            tail_bytes_max: self.rng.below(40_000) as usize,
            nonces: Nonces::new(move || nonces.next_u64()),
            durable_end: self.durable_end,
            ..options()
        }
    }

    /// Opens until it succeeds; faults may fail it, and the machine may stop in the middle.
    fn open(&mut self) {
        while self.opened.is_none() {
            if self.disk.stopped() {
                self.crash();
            }
            if self.rng.one_in(4) {
                self.disk.stop_after(self.rng.between(1, 60));
            }
            let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
            let options = self.options();
            match reopen(&disk, options) {
                Ok((opened, frames)) => {
                    let contained = opened.report.snapshot.map_or(0, |info| info.frame_sequence.0);
                    self.model.recovered(contained, &frames);
                    self.opened = Some(opened);
                    self.durable_end = None;
                }
                Err(OpenError::Io { .. } | OpenError::Lock(_)) => {}
                Err(error) => panic!("{error}"),
            }
            self.disk.keep_running();
        }
    }

    fn crash(&mut self) {
        self.opened = None;
        self.durable_end = None;
        self.disk = if self.rng.one_in(3) { self.disk.kill() } else { self.disk.crash(&mut self.rng) };
    }

    fn append(&mut self) {
        let mut ends = std::collections::BTreeMap::new();
        let mut entries: Vec<Entry> = Vec::new();
        for _ in 0..self.rng.between(1, 5) {
            let at = partition(self.rng.between(1, 3) as u8, self.rng.below(2) as i32);
            let base = ends.entry(at).or_insert_with(|| self.model.end_offset(at));
            let bytes = if self.rng.one_in(4) { 5000 } else { 60 };
            let one = entry(at, *base, self.rng.between(1, 4) as usize, bytes, 1000 + *base);
            *base = one.last_offset() + 1;
            entries.push(one);
        }
        let Some(opened) = &mut self.opened else { return };
        let position = self.model.frames.len() as u64 + 1;
        match opened.writer.append(position as i64, position, &entries) {
            Ok(sequence) => {
                self.model.frames.push(entries);
                assert_eq!(sequence, FrameSequence(position));
            }
            Err(AppendError::NotWritten(_)) => {}
            Err(AppendError::Unknown(_)) => {
                let again = opened.writer.append(position as i64, position, &entries);
                assert!(matches!(again, Err(AppendError::Unknown(_))), "dead for ever");
                self.durable_end = Some(opened.writer.durable_end());
                self.model.maybe = Some(entries);
                self.opened = None;
            }
        }
    }

    fn read(&mut self) {
        let Some(opened) = &self.opened else { return };
        let at = partition(self.rng.between(1, 3) as u8, self.rng.below(2) as i32);
        let end = self.model.end_offset(at);
        let (offset, to) = (self.rng.below(end as u64 + 1) as i64, self.rng.below(end as u64 + 2) as i64);
        let max = self.rng.below(20_000) as usize;
        let batches = match opened.reader.read(at, offset, to, max) {
            Ok(batches) => batches,
            Err(ReadError::Io { .. }) => return,
            Err(error @ ReadError::Corrupt { .. }) => panic!("{error}"),
        };
        let bytes = concat(&batches);
        let fits = |entry: &&Entry| {
            entry.partition == at && entry.last_offset() >= offset && entry.header.base_offset < to
        };
        let all: Vec<Entry> = self.model.frames.iter().flatten().filter(fits).cloned().collect();
        let wanted = joined(&all, at);
        assert!(wanted.starts_with(&bytes), "wrong bytes");
        assert_eq!(bytes.is_empty(), wanted.is_empty() || offset >= to);
        assert!(bytes.len() <= max.max(all.first().map_or(0, Entry::batch_bytes)));
    }

    fn snapshot(&mut self) {
        let Some(opened) = &self.opened else { return };
        let sequence = FrameSequence(self.model.frames.len() as u64);
        let info = SnapshotInfo {
            frame_sequence: sequence,
            epoch: opened.epoch,
            // The frame of an orderly shutdown is no decision.
            position: self
                .model
                .frames
                .iter()
                .rposition(|frame| !frame.is_empty())
                .map_or(0, |at| at as u64 + 1),
            shard_time: sequence.0 as i64,
        };
        if let Ok(mut snapshot) = opened.snapshots.begin(info) {
            let written = (0..self.rng.below(4)).all(|_| snapshot.chunk(&[7; 3000]).is_ok());
            if written {
                let _ = snapshot.finish(); // faults may fail it; then it is discarded
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..50 => self.append(),
            50..65 => {
                if let Some(opened) = &mut self.opened {
                    opened.preparer.run_once();
                }
            }
            65..85 => self.read(),
            85..89 => self.snapshot(),
            89..91 => self.opened = None, // dropped without a word, in the same process
            91..93 => {
                let stopped = self.disk.stopped();
                if let Some(opened) = self.opened.take()
                    && opened.writer.close(1 << 40).is_ok()
                {
                    assert!(!stopped);
                    self.model.frames.push(Vec::new());
                } else {
                    self.crash(); // the outcome of the last, empty, frame is unknown
                    self.model.maybe = Some(Vec::new());
                }
            }
            93..96 => self.disk.stop_after(self.rng.between(1, 20)),
            _ => self.crash(),
        }
        if self.disk.stopped() {
            self.crash();
        }
    }

    fn check(&mut self) {
        self.disk.set_plan(FaultPlan::default());
        self.disk.keep_running();
        self.opened = None;
        self.open();
        if let Some(opened) = &mut self.opened {
            self.model.check_reads(&opened.reader, 1 << 20);
            while opened.preparer.run_once() {}
            self.model.check_reads(&opened.reader, 3000);
        }
    }
}

fn run(seed: u64) -> u64 {
    let mut run = Run::new(seed);
    for _ in 0..80 {
        if run.opened.is_none() {
            run.open();
        }
        run.step();
    }
    run.check();
    run.disk.trace_hash()
}

/// Proves that random runs with every fault of the simulated disk keep what was acknowledged, invent nothing and
/// serve no wrong byte.
#[test]
fn random_runs() {
    // For long runs: OTTLA_SEEDS=100000.
    let seeds = std::env::var("OTTLA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(120);
    for seed in 0..seeds {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

/// Proves that a seed is the whole run: twice the same operations.
#[test]
fn a_seed_is_the_whole_run() {
    assert_eq!(run(11), run(11));
}
