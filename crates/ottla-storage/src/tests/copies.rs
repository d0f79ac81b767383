//! Copies of a folder that its writer goes on with: by `backup`, and file by file as `cp -r` makes them.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use ottla_env::disk::{Disk, File, LockError, LockGuard, Origin};
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;

use super::memory::MemoryDisk;
use super::support::{concat, entry, joined, options, partition, read_all};
use crate::backup::backup;
use crate::{Alive, FilesChange, LevelsOptions, LogOptions, OpenError, Opened, SnapshotInfo, open};

#[derive(Clone, Default)]
struct Starts(BTreeMap<TopicIdPartition, i64>);

impl Alive for Starts {
    fn log_start_offset(&self, partition: &TopicIdPartition) -> Option<i64> {
        self.0.get(partition).copied()
    }

    fn class(&self, partition: &TopicIdPartition) -> u64 {
        u64::from(partition.topic_id.0[0] % 2)
    }
}

fn tiny(seed: u64) -> LogOptions {
    let mut rng = SeededRng::new(seed);
    LogOptions {
        file_bytes: 16 << 10,
        growth_bytes: 4 << 10,
        open_files_max: 2,
        levels: LevelsOptions {
            rewrite: true,
            data_file_bytes: 24 << 10,
            run_bytes: 32 << 10,
            run_age_ms: 10,
            extent_bytes_min: 8 << 10,
            garbage_percent: 5,
            ..LevelsOptions::default()
        },
        nonces: crate::Nonces::new(move || rng.next_u64()),
        ..options()
    }
}

/// A writer with everything that goes on beside it, in small steps.
struct World {
    disk: Arc<MemoryDisk>,
    opened: Opened,
    starts: Starts,
    written: Vec<Entry>,
    position: u64,
    time: i64,
    /// In the log, its files not yet unlinked.
    change: Option<FilesChange>,
    rng: SeededRng,
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = Arc::new(MemoryDisk::default());
        let opened = open(disk.clone(), tiny(seed)).expect("opens").finish().expect("begun");
        let rng = SeededRng::new(seed ^ 0x5eed);
        let mut world = Self {
            disk,
            opened,
            starts: Starts::default(),
            written: Vec::new(),
            position: 0,
            time: 0,
            change: None,
            rng,
        };
        for _ in 0..150 {
            world.step();
        }
        world
    }

    fn end(&self, at: TopicIdPartition) -> i64 {
        let own = self.written.iter().rev().find(|entry| entry.partition == at);
        own.map_or(0, |entry| entry.last_offset() + 1)
    }

    fn step(&mut self) {
        self.time += 1;
        match self.rng.next_u64() % 16 {
            0 => self.snapshot(),
            1 => {
                let at = partition(1 + (self.rng.next_u64() % 4) as u8, 0);
                let (start, end) = (self.starts.0.get(&at).copied().unwrap_or(0), self.end(at));
                if end > start {
                    let moved = start + (self.rng.next_u64() % (end - start) as u64) as i64;
                    self.starts.0.insert(at, moved);
                }
            }
            2..=4 => self.tidy(),
            5..=7 => drop(self.opened.preparer.run_once()),
            _ => self.write(),
        }
    }

    /// A few, or none; the more haste the copy has, the fewer.
    fn some_steps(&mut self, haste: u64) {
        if self.rng.next_u64().is_multiple_of(haste) {
            for _ in 0..1 + self.rng.next_u64() % 3 {
                self.step();
            }
        }
    }

    fn write(&mut self) {
        let topics = 1 + self.rng.next_u64() % 4;
        let bytes = 10 + (self.rng.next_u64() % 3000) as usize;
        let entries: Vec<Entry> = (1..=topics as u8)
            .map(|topic| entry(partition(topic, 0), self.end(partition(topic, 0)), 1, bytes, self.time))
            .collect();
        self.position += 1;
        self.opened.writer.append(self.time, self.position, &entries).expect("appended");
        for entry in &entries {
            self.starts.0.entry(entry.partition).or_insert(0);
        }
        self.written.extend(entries);
    }

    fn snapshot(&mut self) {
        let info = SnapshotInfo {
            frame_sequence: self.opened.writer.durable_sequence(),
            epoch: self.opened.epoch,
            position: self.position,
            shard_time: self.time,
        };
        if info.frame_sequence.0 == 0 {
            return;
        }
        let mut writer = self.opened.snapshots.begin(info).expect("begun");
        writer.chunk(b"state").expect("written");
        writer.finish().expect("finished");
    }

    /// One change of the files, its unlinking in a step of its own.
    fn tidy(&mut self) {
        if let Some(change) = self.change.take() {
            return self.opened.levels.unlink(&change);
        }
        let horizon = self.opened.snapshots.horizon().expect("known");
        if let Some(change) = self
            .opened
            .levels
            .run_once(horizon, self.time, &self.starts, &mut |_| true)
            .expect("the disk is well")
        {
            self.opened.writer.append_files(self.time, &change).expect("appended");
            self.change = Some(change);
        }
    }
}

/// A folder that is known to be a copy.
struct Copied(MemoryDisk);

impl Disk for Copied {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.0.create(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.0.open(name)
    }
    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.0.open(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
    fn lock(&self) -> Result<LockGuard, LockError> {
        self.0.lock()
    }
    fn origin(&self) -> io::Result<Origin> {
        Ok(Origin::Copied)
    }
}

/// Copies file by file, each in two parts, while the world goes on between some of the reads.
fn copy_by_hand(world: &mut World, haste: u64) -> BTreeMap<String, Vec<u8>> {
    let mut names = world.disk.list().expect("listed");
    let mut files = BTreeMap::new();
    while !names.is_empty() {
        let name = names.swap_remove((world.rng.next_u64() % names.len() as u64) as usize);
        world.some_steps(haste);
        let Ok(file) = world.disk.open(&name) else { continue };
        let mut bytes = vec![0; file.len().expect("known") as usize / 2];
        file.read_exact_at(&mut bytes, 0).expect("read");
        world.some_steps(haste);
        let mut rest = vec![0; (file.len().expect("known") as usize).saturating_sub(bytes.len())];
        file.read_exact_at(&mut rest, bytes.len() as u64).expect("read");
        bytes.extend(rest);
        files.insert(name, bytes);
    }
    files
}

fn opened(disk: Arc<dyn Disk>) -> Result<Opened, OpenError> {
    let mut opening = open(disk, tiny(99))?;
    while opening.next_frame()?.is_some() {}
    opening.finish()
}

/// Everything that was written before the copy began is there, and what else is there was written too.
fn check(copy: &Opened, before: &[Entry], world: &World, seed: u64) {
    assert!(copy.report.damage.is_empty(), "seed {seed}: {:?}", copy.report.damage);
    for (at, start) in &world.starts.0 {
        let own = |all: &[Entry]| {
            let own: Vec<Entry> =
                all.iter().filter(|e| e.partition == *at && e.last_offset() >= *start).cloned().collect();
            joined(&own, *at)
        };
        let (least, most) = (own(before), own(&world.written));
        let found = read_all(&copy.reader, *at, *start, 3000);
        assert!(found.starts_with(&least), "seed {seed}: {at:?} from {start}: something is missing");
        assert!(most.starts_with(&found), "seed {seed}: {at:?} from {start}: something is other than it was");
    }
}

/// Proves, over 150 worlds that write, roll, snapshot, drop and rewrite between any two reads of the copying: a copy
/// made file by file either opens with everything that was written before it began, or is refused as a copy. And that
/// the reading of all of it is needed: taken for originals, some of these copies open and then miss something.
#[test]
fn a_copy_by_hand_is_whole_or_refused() {
    let (mut restored, mut refused, mut half_right) = (0, 0, 0);
    for seed in 0..150 {
        let mut world = World::new(seed);
        let before = world.written.clone();
        let files = copy_by_hand(&mut world, 1 + seed % 20);
        match opened(Arc::new(Copied(MemoryDisk::of(&files)))) {
            Ok(copy) => {
                restored += 1;
                check(&copy, &before, &world, seed);
                assert!(copy.report.copied);
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, OpenError::Copy(_)), "seed {seed}: {error}");
                half_right += u32::from(
                    opened(Arc::new(MemoryDisk::of(&files)))
                        .is_ok_and(|copy| misses_something(&copy, &world)),
                );
            }
        }
    }
    println!("{restored} restored, {refused} refused, {half_right} would have been half right");
    assert!(restored > 5 && refused > 5 && half_right > 0);
}

fn misses_something(copy: &Opened, world: &World) -> bool {
    world.starts.0.iter().any(|(at, start)| {
        let end = copy.reader.end_offset(*at).unwrap_or(0);
        let mut offset = *start;
        while offset < end {
            match copy.reader.read(*at, offset, i64::MAX, 1) {
                Ok(batches) if batches.pieces.is_empty() => return true,
                Ok(batches) => {
                    let bytes = bytes::Bytes::from(concat(&batches));
                    let batch = ottla_protocol::batch::Batch::parse(&bytes).expect("a whole batch");
                    offset = batch.header.last_offset() + 1;
                }
                Err(_) => return true,
            }
        }
        false
    })
}

/// A source during whose calls the world goes on.
struct Meddled {
    world: Mutex<World>,
    disk: Arc<MemoryDisk>,
    /// Steps that the world still takes during calls: it does not run away from the copy for ever.
    left: Mutex<u32>,
}

impl Meddled {
    fn meddle(&self) {
        let mut left = self.left.lock().expect("sound");
        let mut world = self.world.lock().expect("sound");
        let steps = (world.rng.next_u64() % 3) as u32;
        for _ in 0..steps.min(*left) {
            world.step();
            *left -= 1;
        }
    }
}

impl Disk for Meddled {
    fn create(&self, _name: &str) -> io::Result<Arc<dyn File>> {
        panic!("nothing is written")
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.open_uncached(name)
    }
    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.meddle();
        self.disk.open(name)
    }
    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        panic!("nothing is renamed")
    }
    fn remove(&self, _name: &str) -> io::Result<()> {
        panic!("nothing is removed")
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.meddle();
        self.disk.list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        panic!("nothing is synced")
    }
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
    fn lock(&self) -> Result<LockGuard, LockError> {
        panic!("the lock is left alone")
    }
}

/// Proves, over 100 worlds that go on during every call and between any two files: a backup opens, strictly read, with
/// everything that was written before it began, and nothing that was not written; and so does a copy of it.
#[test]
fn a_backup_is_whole() {
    for seed in 0..100 {
        let world = World::new(seed);
        let before = world.written.clone();
        let disk = world.disk.clone();
        let left = Mutex::new(300);
        let source = Meddled { world: Mutex::new(world), disk, left };
        let target = MemoryDisk::default();
        let report = backup(
            &source,
            &target,
            0,
            &mut |_| {
                source.meddle();
                false
            },
            &mut |done, of| assert!(done <= of),
        )
        .expect("copied");
        assert!(report.files > 0 && report.bytes > 0);
        let copy =
            opened(Arc::new(Copied(target.clone()))).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let last = copy.report.frame_sequence.0;
        assert_eq!(last, report.last_frame, "seed {seed}");
        check(&copy, &before, &source.world.lock().expect("sound"), seed);
    }
}
