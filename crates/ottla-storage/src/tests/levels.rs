//! Dropping and rewriting files: nothing alive is ever lost, whatever is dropped, rewritten, cut off or repeated.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ottla_env::disk::Disk;
use ottla_env::disk::sim::SimDisk;
use ottla_env::rng::{Rng, SeededRng};
use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;
use proptest::prelude::*;

use super::memory::MemoryDisk;
use super::support::{entry, joined, options, partition, read_all};
use crate::catalogue::{Catalogue, FilesEdit, LiveFile};
use crate::file_header::Seal;
use crate::snapshot::{self, Owner, Snapshot};
use crate::{
    Alive, FileId, FrameSequence, LevelsError, LevelsOptions, LogOptions, LogReader, OpenError, Opened,
    ReadError, Retention, SnapshotInfo, open,
};

/// Log starts of the partitions that exist; the class is the topic.
#[derive(Clone, Default)]
pub(super) struct Starts(pub(super) BTreeMap<TopicIdPartition, i64>);

impl Alive for Starts {
    fn log_start_offset(&self, partition: &TopicIdPartition) -> Option<i64> {
        self.0.get(partition).copied()
    }

    fn class(&self, partition: &TopicIdPartition) -> u64 {
        u64::from(partition.topic_id.0[0])
    }
}

pub(super) fn tiny() -> LogOptions {
    LogOptions {
        file_bytes: 16 << 10,
        growth_bytes: 4 << 10,
        open_files_max: 2,
        levels: LevelsOptions {
            rewrite: true,
            data_file_bytes: 40 << 10,
            run_bytes: 48 << 10,
            run_age_ms: 1000,
            extent_bytes_min: 8 << 10,
            ..LevelsOptions::default()
        },
        ..options()
    }
}

/// A log and what should be in it.
pub(super) struct World {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) opened: Opened,
    pub(super) starts: Starts,
    /// What should be there, in order.
    pub(super) written: Vec<Entry>,
    position: u64,
    pub(super) time: i64,
}

impl World {
    pub(super) fn new(disk: Arc<dyn Disk>, options: LogOptions) -> Self {
        let opened = open(disk.clone(), options).expect("opens").finish().expect("begun");
        Self { disk, opened, starts: Starts::default(), written: Vec::new(), position: 0, time: 0 }
    }

    pub(super) fn end(&self, at: TopicIdPartition) -> i64 {
        let own = self.written.iter().rev().find(|entry| entry.partition == at);
        own.map_or(0, |entry| entry.last_offset() + 1)
    }

    /// Frames with a batch for some partitions each.
    pub(super) fn write(&mut self, frames: usize, partitions: u8, bytes: usize) {
        for frame in 0..frames {
            let entries: Vec<Entry> = (1..=partitions)
                .map(|topic| {
                    let at = partition(topic, 0);
                    entry(at, self.end(at), 1 + frame % 3, bytes / (1 + frame % 3), self.time)
                })
                .collect();
            self.time += 1;
            self.position += 1;
            self.opened.writer.append(self.time, self.position, &entries).expect("appended");
            for entry in &entries {
                self.starts.0.entry(entry.partition).or_insert(0);
            }
            self.written.extend(entries);
            while self.opened.preparer.run_once() {}
        }
    }

    pub(super) fn snapshot(&mut self) {
        let info = SnapshotInfo {
            frame_sequence: self.opened.writer.durable_sequence(),
            epoch: self.opened.epoch,
            position: self.position,
            shard_time: self.time,
        };
        let mut writer = self.opened.snapshots.begin(info).expect("begun");
        writer.chunk(b"state").expect("written");
        writer.finish().expect("finished");
    }

    /// Does everything that is to be done; how many changes that were.
    pub(super) fn tidy(&mut self, now: i64) -> usize {
        let mut changes = 0;
        let horizon = self.opened.snapshots.horizon().expect("known");
        while let Some(change) =
            self.opened.levels.run_once(horizon, now, &self.starts, &mut |_| true).expect("the disk is well")
        {
            self.opened.writer.append_files(self.time, &change).expect("appended");
            self.check();
            self.opened.levels.unlink(&change);
            while self.opened.preparer.run_once() {}
            changes += 1;
            assert!(changes < 1000, "it comes to an end");
        }
        changes
    }

    pub(super) fn reopen(&mut self, options: LogOptions) {
        let mut opening = open(self.disk.clone(), options.clone());
        if matches!(opening, Err(OpenError::Lock(_))) {
            // the lock is the old opening's
            let old = std::mem::replace(
                &mut self.opened,
                World::new(Arc::new(MemoryDisk::default()), options.clone()).opened,
            );
            drop(old);
            opening = open(self.disk.clone(), options);
        }
        self.opened = opening.expect("opens").finish().expect("begun");
        assert!(self.opened.report.damage.is_empty(), "{:?}", self.opened.report.damage);
    }

    /// Everything alive reads as it was written.
    pub(super) fn check(&self) {
        check(&self.opened.reader, &self.written, &self.starts);
    }

    pub(super) fn names(&self, ending: &str) -> usize {
        self.disk.list().expect("listed").iter().filter(|name| name.ends_with(ending)).count()
    }

    pub(super) fn bytes(&self) -> u64 {
        let names = self.disk.list().expect("listed");
        let of = |name: &String| self.disk.open(name).expect("there").len().expect("known");
        names.iter().filter(|name| !name.ends_with("tmp")).map(of).sum()
    }
}

pub(super) fn check(reader: &LogReader, written: &[Entry], starts: &Starts) {
    for (at, start) in &starts.0 {
        let own: Vec<Entry> =
            written.iter().filter(|e| e.partition == *at && e.last_offset() >= *start).cloned().collect();
        assert!(read_all(reader, *at, *start, 3000) == joined(&own, *at), "{at:?} from {start}");
    }
}

/// Proves: files that hold nothing alive are dropped, and only those; nothing that a snapshot may need for replay
/// is; the folder opens again, also from the snapshot before; what was dropped is not damage.
#[test]
fn what_holds_nothing_alive_is_dropped() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let mut options = tiny();
    options.levels.rewrite = false;
    let mut world = World::new(disk, options.clone());
    world.write(20, 2, 3000);
    let files = world.names(".log");
    assert!(files > 5);
    let (one, two) = (partition(1, 0), partition(2, 0));
    for at in [one, two] {
        world.starts.0.insert(at, world.end(at) - 2);
    }
    assert_eq!(world.tidy(0), 0, "without two snapshots nothing is touched");
    world.snapshot();
    assert_eq!(world.tidy(0), 0);
    world.write(1, 1, 100);
    world.snapshot();
    assert_eq!(world.tidy(0), 1);
    let left = world.names(".log");
    assert!(left <= 4, "{left} of {files} files are left");
    let below = world.opened.reader.read(one, 0, i64::MAX, 1000).expect("no damage");
    assert!(below.pieces.is_empty(), "what is below the start is gone");
    world.check();
    for _ in 0..2 {
        world.reopen(options.clone());
        world.check();
        assert_eq!(world.tidy(0), 0);
    }
    let newest = world.disk.list().expect("listed").into_iter().rfind(|name| name.ends_with("snapshot"));
    let file = world.disk.open(&newest.expect("there")).expect("there");
    file.write_vectored_at(&[std::io::IoSlice::new(b"xxxx")], 100).expect("written");
    world.reopen(options.clone());
    assert_eq!(world.opened.report.damaged_snapshots.len(), 1);
    world.check();
    // One good snapshot alone: nothing goes, though nothing is alive.
    world.starts.0.clear();
    assert_eq!(world.tidy(0), 0);
    for _ in 0..2 {
        world.write(1, 1, 100);
        world.snapshot();
    }
    world.starts.0.clear();
    assert_eq!(world.tidy(0), 1);
}

/// Proves: a run of many partitions is rewritten once, by partition; long extents are taken as they are; a deleted
/// topic's bytes leave; the sources go only after the change.
#[test]
fn runs_are_rewritten() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let mut options = tiny();
    options.levels.data_file_bytes = 512 << 10;
    let mut world = World::new(disk, options.clone());
    world.write(40, 6, 700);
    world.snapshot();
    world.write(1, 1, 100);
    world.snapshot();
    world.tidy(1_000_000);
    assert!(world.names(".data") > 0);
    let figures = world.opened.levels.figures();
    let produced: usize = world.written.iter().map(Entry::batch_bytes).sum();
    assert!(figures.bytes_rewritten <= 2 * produced as u64, "{figures:?}, produced {produced}");
    assert_eq!(world.tidy(1_000_000), 0, "what is rewritten stays");
    world.reopen(options.clone());
    world.check();
    assert!(world.opened.report.rebuilt_indexes <= 1, "footers of rewritten files are read");

    let before = world.bytes();
    for topic in 1..=4 {
        world.starts.0.remove(&partition(topic, 0));
    }
    assert!(world.tidy(1_000_000) > 0);
    world.check();
    let after = world.bytes();
    assert!(after * 3 < before * 2, "{after} of {before} bytes after four of six topics were deleted");
    world.reopen(options);
    world.check();
}

/// Proves: where the batches of a partition lie together and nothing is mixed, nothing is written anew.
#[test]
fn long_extents_are_taken_as_they_are() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let mut world = World::new(disk, tiny());
    world.write(60, 1, 3500);
    world.snapshot();
    world.write(1, 1, 100);
    world.snapshot();
    assert!(world.tidy(1_000_000) > 0);
    assert_eq!((world.names(".data"), world.opened.levels.figures().bytes_rewritten), (0, 0));
    world.reopen(tiny());
    world.check();
    assert_eq!(world.tidy(1_000_000), 0);
}

/// Proves: damage in a source stops its rewriting and nothing else: the damaged batch is refused, its file stays, all
/// other batches are read.
#[test]
fn damaged_sources_stay() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let mut world = World::new(disk, LogOptions { tail_bytes_max: 0, ..tiny() });
    world.write(12, 3, 900);
    world.snapshot();
    world.write(1, 1, 100);
    world.snapshot();
    let name = crate::FileId(2).file_name();
    let file = world.disk.open(&name).expect("there");
    let at = file.len().expect("known") / 2;
    file.write_vectored_at(&[std::io::IoSlice::new(&[0x11; 64])], at).expect("written");
    let horizon = world.opened.snapshots.horizon().expect("known");
    for _ in 0..10 {
        if let Some(change) = world
            .opened
            .levels
            .run_once(horizon, 1_000_000, &world.starts, &mut |_| true)
            .expect("the disk is well")
        {
            world.opened.writer.append_files(world.time, &change).expect("appended");
            world.opened.levels.unlink(&change);
        }
    }
    assert!(world.disk.list().expect("listed").contains(&name), "the damaged file stays");
    assert!(world.names(".data") > 0, "the others were rewritten");
    let refused = (1..=3u8).any(|topic| {
        let at = partition(topic, 0);
        let read = |offset| world.opened.reader.read(at, offset, i64::MAX, 1);
        (0..world.end(at)).any(|offset| matches!(read(offset), Err(ReadError::Corrupt { .. })))
    });
    assert!(refused, "the damaged batch is refused");
}

/// Proves: rewriting tells of the bytes that it reads and writes, so that it can be throttled, and when it is stopped it
/// leaves nothing behind.
#[test]
fn rewriting_can_be_throttled_and_stopped() {
    let mut world = World::new(Arc::new(MemoryDisk::default()), tiny());
    world.write(14, 4, 700);
    world.snapshot();
    world.write(6, 4, 700);
    world.snapshot();
    let horizon = world.opened.snapshots.horizon().expect("known");
    let names = world.disk.list().expect("listed");
    let stopped = world.opened.levels.run_once(horizon, 1_000_000, &world.starts, &mut |_| false);
    assert!(matches!(stopped, Err(LevelsError::Ended)), "{:?}", stopped.map(|change| change.is_some()));
    assert_eq!(world.disk.list().expect("listed"), names);
    let mut told = 0;
    let mut pace = |bytes| {
        told += bytes;
        true
    };
    let change = world.opened.levels.run_once(horizon, 1_000_000, &world.starts, &mut pace);
    let written = change.expect("the disk is well").expect("there is something to rewrite").bytes_written();
    assert!(written > 0 && told > written / 2, "{told} bytes told of, {written} written");
}

/// Proves: a snapshot whose catalogue takes several chunks is read back with all of it, and its state begins behind them.
#[test]
fn a_catalogue_of_many_chunks_is_in_a_snapshot() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let seal =
        |file| Seal { file, nonce: 1, length: 8192, last_sequence: FrameSequence(1), last_header_crc: 2 };
    let live = |number| {
        let file = FileId(number);
        LiveFile { seal: seal(file), is_settled: false, newest_source: file }
    };
    let added = (1..=450_000).map(live).collect();
    let mut catalogue = Catalogue::default();
    catalogue.apply(&FilesEdit { chain: FileId(500_000), removed: Vec::new(), added, compacted: Vec::new() });
    let info = SnapshotInfo { frame_sequence: FrameSequence(9), epoch: 1, position: 3, shard_time: 4 };
    let owner = Owner { shard_id: 0, log_id: 7 };
    let state = [Bytes::from_static(b"the state"), Bytes::from_static(b"and more of it")];
    let chunks = catalogue.chunks();
    assert!(chunks.len() > 1);
    snapshot::write_whole(&*disk, owner, 5, &info, chunks.into_iter().chain(state.clone())).expect("written");
    let Ok(read) = Snapshot::open(&*disk, &info.file_name(), owner) else { panic!("it is not damaged") };
    assert!(read.catalogue == catalogue, "all of the catalogue");
    let found: Result<Vec<Bytes>, _> = read.into_chunks(&*disk).expect("opened").collect();
    assert_eq!(found.expect("sound"), state);
}

/// Proves: a power cut at every single change of the disk while files are dropped and rewritten loses nothing alive,
/// brings nothing back, and leaves no file behind.
/// Public cases: KAFKA-12520, KAFKA-12964 (77).
#[test]
fn power_cuts_at_every_step() {
    for cut in 1.. {
        let sim = SimDisk::new(cut);
        let mut world = World::new(Arc::new(sim.clone()), tiny());
        world.write(14, 4, 700);
        world.snapshot();
        world.write(6, 4, 700);
        world.snapshot();
        world.starts.0.remove(&partition(1, 0));
        world.starts.0.insert(partition(2, 0), 20);
        sim.stop_after_changes(cut);
        let mut finished = true;
        let horizon = world.opened.snapshots.horizon().expect("known");
        loop {
            match world.opened.levels.run_once(horizon, 1_000_000, &world.starts, &mut |_| true) {
                Ok(Some(change)) if world.opened.writer.append_files(world.time, &change).is_ok() => {
                    world.opened.levels.unlink(&change);
                }
                Ok(None) if !sim.stopped() => break,
                _ => {
                    finished = false;
                    break;
                }
            }
        }
        let World { starts, written, opened, .. } = world;
        let mut rng = SeededRng::new(cut);
        let sim = if rng.one_in(4) { sim.kill() } else { sim.crash(&mut rng) };
        sim.keep_running();
        drop(opened);
        let disk: Arc<dyn Disk> = Arc::new(sim);
        let opened = open(disk.clone(), tiny()).expect("opens").finish().expect("begun");
        assert!(opened.report.damage.is_empty(), "cut {cut}: {:?}", opened.report.damage);
        check(&opened.reader, &written, &starts);
        let names = disk.list().expect("listed");
        let known = opened.reader.shared.known();
        for name in names.iter().filter_map(|name| crate::FileId::from_name(name)) {
            assert!(known.catalogue.is_live(name), "cut {cut}: {name:?} was left behind");
        }
        if finished {
            assert!(cut > 20, "there were steps to be cut");
            return;
        }
    }
}

/// Proves: retention by age and size moves the start over whole units only, never past the limit, and leaves what has a
/// timestamp in the future.
#[test]
fn retention_points() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let mut world = World::new(disk, tiny());
    world.write(30, 2, 3000);
    let at = partition(1, 0);
    let end = world.end(at);
    let reader = &world.opened.reader;
    let point = |from, kept| reader.retention_point(at, from, end, kept).expect("read");
    let by_time = |time| point(0, Retention { from_timestamp: Some(time), bytes: None });
    assert_eq!((by_time(0), by_time(i64::MAX)), (0, end));
    let half = by_time(15);
    assert!(half > 0 && half < end);
    let own: Vec<&Entry> = world.written.iter().filter(|entry| entry.partition == at).collect();
    assert!(
        own.iter().filter(|entry| entry.base_offset() < half).all(|entry| entry.header.max_timestamp < 15)
    );
    let total: u64 = own.iter().map(|entry| entry.batch_bytes() as u64).sum();
    for kept in [0, 1, 10_000, total - 1, total, total * 2] {
        let start = point(0, Retention { from_timestamp: None, bytes: Some(kept) });
        let left = own.iter().filter(|entry| entry.base_offset() >= start);
        let left: u64 = left.map(|entry| entry.batch_bytes() as u64).sum();
        assert!(left >= kept.min(total) && (left < kept + 7000 || start == 0), "{left} for {kept}");
        assert!(kept < total || start == 0);
        assert_eq!(point(start, Retention { from_timestamp: None, bytes: Some(kept) }), start);
    }
}

trait BaseOffset {
    fn base_offset(&self) -> i64;
}

impl BaseOffset for Entry {
    fn base_offset(&self) -> i64 {
        self.header.base_offset
    }
}

#[derive(Clone, Debug)]
enum Action {
    Write(usize, u8, usize),
    Snapshot,
    MoveStart(u8, u8),
    Delete(u8),
    Tidy(i64),
    Reopen,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1usize..12, 1u8..5, 50usize..5000).prop_map(|(frames, topics, bytes)| Action::Write(frames, topics, bytes)),
        3 => Just(Action::Snapshot),
        2 => (1u8..5, 0u8..101).prop_map(|(topic, percent)| Action::MoveStart(topic, percent)),
        1 => (1u8..5).prop_map(Action::Delete),
        3 => (0i64..3000).prop_map(Action::Tidy),
        2 => Just(Action::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Proves: whatever is written, snapshotted, deleted, dropped and rewritten, in any order and over restarts, all
    /// that is alive reads as it was written; and what is rewritten is not rewritten for ever.
    #[test]
    fn nothing_alive_is_lost(actions in prop::collection::vec(action(), 1..40)) {
        let mut world = World::new(Arc::new(MemoryDisk::default()), tiny());
        let mut deleted = std::collections::BTreeSet::new();
        for action in actions {
            match action {
                Action::Write(frames, topics, bytes) => {
                    // A deleted topic's id never comes back.
                    let topics = (1..=topics).take_while(|topic| !deleted.contains(topic)).count() as u8;
                    if topics > 0 {
                        world.write(frames, topics, bytes);
                    }
                }
                Action::Snapshot => world.snapshot(),
                Action::MoveStart(topic, percent) => {
                    let at = partition(topic, 0);
                    let end = world.end(at);
                    if let Some(start) = world.starts.0.get_mut(&at) {
                        *start = (*start).max(end * i64::from(percent) / 100);
                    }
                }
                Action::Delete(topic) => {
                    if world.starts.0.remove(&partition(topic, 0)).is_some() {
                        deleted.insert(topic);
                    }
                }
                Action::Tidy(later) => {
                    world.tidy(world.time + later);
                }
                Action::Reopen => world.reopen(tiny()),
            }
            world.check();
        }
    }
}

/// The horizon is what the second newest verified snapshot contains.
#[test]
fn horizon_is_of_the_second_newest() {
    let mut world = World::new(Arc::new(MemoryDisk::default()), tiny());
    world.write(3, 1, 100);
    world.snapshot();
    world.write(3, 1, 100);
    world.snapshot();
    world.write(3, 1, 100);
    world.snapshot();
    assert_eq!(world.opened.snapshots.horizon().expect("known"), Some(FrameSequence(6)));
    world.reopen(tiny());
    assert_eq!(world.opened.snapshots.horizon().expect("known"), Some(FrameSequence(6)));
}
