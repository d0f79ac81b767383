//! Compaction on the disk: what a filter leaves is there at its offsets, whoever else lives in the same files is not
//! touched, gaps are passed over and losses are not, whatever is dropped, rewritten, cut off or repeated meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ottla_env::disk::Disk;
use ottla_env::disk::sim::SimDisk;
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn;
use ottla_protocol::batch::{BatchHeader, crc_of, empty_batch};
use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;

use super::levels::{World, check, tiny};
use super::memory::MemoryDisk;
use super::support::{concat, entry, partition};
use crate::{
    BatchFilter, CleanError, Cleaning, Fate, FilesChange, LevelsOptions, LogOptions, ReadError, open,
};

/// Base offsets of batches that go, and of those that lose their records.
#[derive(Clone, Default)]
struct Chosen {
    dropped: BTreeSet<i64>,
    emptied: BTreeSet<i64>,
    seen: Vec<i64>,
}

impl BatchFilter for Chosen {
    fn filter(&mut self, header: &BatchHeader, _: &Bytes) -> Fate {
        self.seen.push(header.base_offset);
        if self.dropped.contains(&header.base_offset) {
            return Fate::Drop;
        }
        if self.emptied.contains(&header.base_offset) && header.records_count > 0 {
            let (header, tail) = empty_batch(header);
            return Fate::Replace(header, tail);
        }
        Fate::Keep
    }
}

impl World {
    /// Chooses what of a partition goes; what is last in front of a file's end never does.
    fn choose(&self, at: TopicIdPartition, rng: &mut SeededRng) -> (Chosen, i64) {
        let sealed = self.opened.reader.shared.index().sealed(&at);
        let end = match sealed.len() {
            0 => 0,
            count => sealed[rng.index(count)].last_offset + 1,
        };
        (self.choose_below(at, end, rng), end)
    }

    fn choose_below(&self, at: TopicIdPartition, end: i64, rng: &mut SeededRng) -> Chosen {
        let sealed = self.opened.reader.shared.index().sealed(&at);
        let mut chosen = Chosen::default();
        for entry in self.written.iter().filter(|entry| entry.partition == at) {
            let base_offset = entry.header.base_offset;
            let is_last = sealed.iter().any(|range| range.last_offset == entry.last_offset());
            match rng.below(6) {
                0 => drop(chosen.emptied.insert(base_offset)),
                1..=4 if !is_last => drop(chosen.dropped.insert(base_offset)),
                _ => {}
            }
        }
        chosen.dropped = chosen.dropped.into_iter().take_while(|offset| *offset < end).collect();
        chosen.emptied = chosen.emptied.into_iter().take_while(|offset| *offset < end).collect();
        chosen
    }

    /// Makes the files, up to the change.
    fn make(
        &mut self,
        at: TopicIdPartition,
        chosen: &mut Chosen,
        end: i64,
    ) -> Result<Option<FilesChange>, CleanError> {
        let log_start_offset = self.starts.0.get(&at).copied().unwrap_or(0);
        let cleaning = Cleaning { partition: at, log_start_offset, end, filter: chosen };
        self.opened.levels.clean(vec![cleaning], &mut |_| true)
    }

    /// What should be there when the change is.
    fn apply(&mut self, at: TopicIdPartition, chosen: &Chosen) {
        self.written
            .retain(|entry| entry.partition != at || !chosen.dropped.contains(&entry.header.base_offset));
        for entry in self.written.iter_mut().filter(|entry| entry.partition == at) {
            if chosen.emptied.contains(&entry.header.base_offset) && entry.header.records_count > 0 {
                (entry.header, entry.tail) = empty_batch(&entry.header);
            }
        }
    }

    /// A whole pass.
    fn clean(&mut self, at: TopicIdPartition, rng: &mut SeededRng) {
        let (mut chosen, end) = self.choose(at, rng);
        let Some(change) = self.make(at, &mut chosen, end).expect("the disk is well") else { return };
        self.opened.writer.append_files(self.time, &change).expect("appended");
        self.opened.levels.unlink(&change);
        let start = self.starts.0.get(&at).copied().unwrap_or(0);
        let offered: Vec<i64> = self
            .written
            .iter()
            .filter(|entry| entry.partition == at && entry.last_offset() >= start)
            .map(|entry| entry.header.base_offset)
            .take(chosen.seen.len())
            .collect();
        assert_eq!(chosen.seen, offered, "every batch is offered once, in order");
        self.apply(at, &chosen);
    }

    /// From every offset a reader gets the batch that holds it or is the next one; and the end has not moved.
    fn check_gaps(&self) {
        let reader = &self.opened.reader;
        for (at, start) in &self.starts.0 {
            let own: Vec<&Entry> = self.written.iter().filter(|entry| entry.partition == *at).collect();
            for offset in *start..self.end(*at) {
                let wanted =
                    own.iter().find(|entry| entry.last_offset() >= offset).expect("in front of the end");
                let read = reader.read(*at, offset, i64::MAX, 1).expect("no damage");
                assert!(
                    concat(&read) == wanted.to_bytes(),
                    "{at:?} at {offset}: {} bytes and not {} of {}, in {:?}",
                    read.bytes,
                    wanted.batch_bytes(),
                    wanted.header.base_offset,
                    reader.shared.index().sealed(at)
                );
                assert!(read.next_offset > offset);
                if let Some(cached) = reader.read_cached(*at, offset, i64::MAX, 1) {
                    assert!(concat(&cached) == wanted.to_bytes());
                }
            }
            let mut visited = Vec::new();
            let from = start + (self.end(*at) - start) / 3;
            let visit = &mut |header: &BatchHeader, _: &Bytes| {
                visited.push(header.base_offset);
                ControlFlow::Continue(())
            };
            reader.for_each_batch(*at, from, i64::MAX, visit).expect("no damage");
            let mut wanted = own.iter().filter(|entry| entry.last_offset() >= from);
            assert!(visited.iter().all(|base| Some(*base) == wanted.next().map(|e| e.header.base_offset)));
            assert!(wanted.next().is_none());
        }
    }
}

fn world(options: LogOptions) -> World {
    World::new(Arc::new(MemoryDisk::default()), options)
}

/// Proves: passes over partitions that share all files, between writes, moves of log starts, deletes, snapshots,
/// drops, rewritings and restarts: always exactly what the filters left is read, from every offset, and the others are
/// as they were; with rewriting on and off.
#[test]
fn nothing_but_what_was_filtered_goes() {
    for seed in 0..60 {
        let mut rng = SeededRng::new(seed);
        let mut options = tiny();
        options.levels.rewrite = seed % 2 == 0;
        let mut world = world(options.clone());
        for _ in 0..rng.between(6, 30) {
            let at = partition(1 + rng.below(4) as u8, 0);
            match rng.below(9) {
                0 | 1 => world.write(rng.between(1, 12) as usize, 4, rng.between(50, 3000) as usize),
                2..=4 => world.clean(at, &mut rng),
                5 => world.snapshot(),
                6 => drop(world.tidy(world.time + rng.below(3000) as i64)),
                7 if world.starts.0.contains_key(&at) => {
                    let start = world.starts.0[&at];
                    let moved = start + rng.below((world.end(at) - start) as u64 + 1) as i64;
                    world.starts.0.insert(at, moved);
                }
                8 => world.reopen(options.clone()),
                _ => world.opened.writer.roll().expect("rolled"),
            }
            world.check();
        }
        world.check_gaps();
        world.reopen(options.clone());
        world.check_gaps();
        world.starts.0.remove(&partition(2, 0));
        world.snapshot();
        world.write(1, 1, 50);
        world.snapshot();
        world.tidy(i64::MAX / 2);
        world.check_gaps();
        world.reopen(options);
        world.check_gaps();
    }
}

/// Proves: what compaction leaves behind gives its space back: files with nothing else are dropped once two snapshots
/// have them, also without rewriting; files with much of it are rewritten.
#[test]
fn space_comes_back() {
    let mut options = LogOptions { file_bytes: 128 << 10, ..tiny() };
    options.levels = LevelsOptions { rewrite: false, data_file_bytes: 1 << 20, ..options.levels };
    for partitions in [1, 2] {
        let mut world = world(options.clone());
        let at = partition(1, 0);
        world.write(300, partitions, 6000);
        world.opened.writer.roll().expect("rolled");
        let before = world.bytes();
        let end = world.end(at);
        let own = world.written.iter().filter(|entry| entry.partition == at);
        let offsets: Vec<i64> = own.map(|entry| entry.header.base_offset).collect();
        let mut chosen = Chosen::default();
        chosen.dropped.extend(&offsets[..offsets.len() - 1]);
        let change = world.make(at, &mut chosen, end).expect("well").expect("something");
        world.opened.writer.append_files(world.time, &change).expect("appended");
        world.apply(at, &chosen);
        world.check_gaps();
        let left: usize = world.written.iter().filter(|e| e.partition == at).map(Entry::batch_bytes).sum();
        assert_eq!(world.opened.reader.bytes_of(at).expect("read"), left as u64);
        assert_eq!(world.tidy(0), 0, "no start may need what goes");
        let waiting = world.opened.levels.figures().waiting_files;
        assert_eq!(waiting > 10, partitions == 1, "{waiting} files wait for snapshots");
        world.snapshot();
        world.write(1, 1, 10);
        world.snapshot();
        world.tidy(0);
        let after = world.bytes();
        assert!(after < before * 7 / 10, "{after} of {before}");
        world.check_gaps();
        world.reopen(options.clone());
        world.check_gaps();
    }
}

/// Proves: a power cut at every single change of the disk during a pass leaves the partition as it was or as it should
/// become, and never a file behind that nobody knows.
#[test]
fn power_cuts_during_a_pass() {
    for cut in 1.. {
        let sim = SimDisk::new(cut);
        let mut world = World::new(Arc::new(sim.clone()), tiny());
        world.write(14, 3, 700);
        world.clean(partition(1, 0), &mut SeededRng::new(1));
        world.write(8, 3, 700);
        world.opened.writer.roll().expect("rolled");
        let at = partition(1, 0);
        let (mut chosen, end) = world.choose(at, &mut SeededRng::new(2));
        let earlier: Vec<_> = world.opened.reader.shared.known().catalogue.compacted().cloned().collect();
        sim.stop_after_changes(cut);
        let made = world.make(at, &mut chosen, end);
        let mut appended = None;
        if let Ok(Some(change)) = made {
            appended = Some(world.opened.writer.append_files(world.time, &change).is_ok());
        }
        let before = world.written.clone();
        world.apply(at, &chosen);
        let finished = !sim.stopped();
        let World { starts, written, opened, .. } = world;
        let mut rng = SeededRng::new(cut);
        let sim = if rng.one_in(4) { sim.kill() } else { sim.crash(&mut rng) };
        sim.keep_running();
        drop(opened);
        let disk: Arc<dyn Disk> = Arc::new(sim);
        let opened = open(disk.clone(), tiny()).expect("opens").finish().expect("begun");
        assert!(opened.report.damage.is_empty(), "cut {cut}: {:?}", opened.report.damage);
        let now: Vec<_> = opened.reader.shared.known().catalogue.compacted().cloned().collect();
        let is_live = now != earlier;
        assert!(is_live || appended != Some(true), "what was appended is there");
        check(&opened.reader, if is_live { &written } else { &before }, &starts);
        let known = opened.reader.shared.known();
        for name in disk.list().expect("listed").iter().filter_map(|name| crate::FileId::from_name(name)) {
            assert!(known.catalogue.is_live(name), "cut {cut}: {name:?} was left behind");
        }
        if finished {
            assert!(cut > 5, "there were steps to be cut");
            return;
        }
    }
}

/// Proves: a batch whose offsets were left out does not hide a loss: a rewritten file that is missing, or of which a
/// frame and the footer are damaged, is refused where something may be missing, and the rest is read.
#[test]
fn a_gap_is_not_taken_for_a_loss_nor_a_loss_for_a_gap() {
    for (missing, seed) in [(true, 3), (false, 3), (false, 4)] {
        let options = tiny();
        let mut world = world(options.clone());
        world.write(150, 2, 900);
        world.opened.writer.roll().expect("rolled");
        let at = partition(1, 0);
        let mut rng = SeededRng::new(seed);
        let end = world.end(at);
        let mut chosen = world.choose_below(at, end, &mut rng);
        let change = world.make(at, &mut chosen, end).expect("well").expect("something");
        world.opened.writer.append_files(world.time, &change).expect("appended");
        world.apply(at, &chosen);
        world.write(5, 2, 900);
        let data: Vec<String> =
            world.disk.list().expect("listed").into_iter().filter(|name| name.ends_with(".data")).collect();
        let name = &data[0];
        if missing {
            world.disk.remove(name).expect("removed");
        } else {
            let file = world.disk.open(name).expect("there");
            let (bytes, zeros) = (file.len().expect("known"), [0; 64]);
            file.write_vectored_at(&[std::io::IoSlice::new(&zeros)], bytes - 64).expect("no trailer");
            // The second frame: what it held can only be known from what the log says of the whole.
            let frame = (2..200).find(|block| {
                let mut magic = [0; 4];
                file.read_exact_at(&mut magic, block * 4096).is_ok() && &magic == b"OTFR"
            });
            let at = frame.expect("two frames") * 4096;
            file.write_vectored_at(&[std::io::IoSlice::new(&zeros)], at).expect("damaged");
        }
        let other = super::levels::World::new(Arc::new(MemoryDisk::default()), options.clone());
        drop(std::mem::replace(&mut world.opened, other.opened));
        let opened = open(world.disk.clone(), options).expect("opens").finish().expect("begun");
        assert!(!opened.report.damage.is_empty());
        let own: Vec<&Entry> = world.written.iter().filter(|entry| entry.partition == at).collect();
        let (mut refused, mut read) = (0, 0);
        for offset in 0..world.end(at) {
            let wanted = own.iter().find(|entry| entry.last_offset() >= offset).expect("in front of the end");
            match opened.reader.read(at, offset, i64::MAX, 1) {
                Ok(batches) => {
                    assert!(concat(&batches) == wanted.to_bytes(), "nothing is passed over in silence");
                    read += 1;
                }
                Err(ReadError::Corrupt { .. } | ReadError::Io { .. }) => refused += 1,
            }
        }
        assert!(refused > 0 && read > 0, "{refused} refused, {read} read");
        let other = partition(2, 0);
        assert!(opened.reader.read(other, 0, i64::MAX, 1 << 20).expect("read").bytes > 0);
        let mut levels = opened.levels;
        let mut chosen = Chosen::default();
        let cleaning = Cleaning { partition: at, log_start_offset: 0, end: i64::MAX, filter: &mut chosen };
        let refused = levels.clean(vec![cleaning], &mut |_| true);
        assert!(matches!(refused, Err(CleanError::Damaged { .. })), "what is damaged stays as it is");
    }
}

/// Proves: a pass that is told to stop, or that meets damage, changes nothing and leaves no file.
#[test]
fn a_pass_can_be_stopped() {
    let mut world = world(tiny());
    world.write(40, 2, 900);
    world.opened.writer.roll().expect("rolled");
    let names = world.disk.list().expect("listed");
    let mut left = 5;
    let mut pace = |_| {
        left -= 1;
        left > 0
    };
    let at = partition(1, 0);
    let mut chosen = Chosen::default();
    let cleaning = Cleaning { partition: at, log_start_offset: 0, end: i64::MAX, filter: &mut chosen };
    let stopped = world.opened.levels.clean(vec![cleaning], &mut pace);
    assert!(matches!(stopped, Err(CleanError::Stopped)));
    assert_eq!(world.disk.list().expect("listed"), names);
    world.check_gaps();
}

/// Proves: batches may be so far apart that an extent or a file range spans more offsets than 32 bits can name
/// (automq#3339 lost such data): every one is read, from any offset in the gaps.
#[test]
fn offsets_far_apart() {
    let options = tiny();
    let mut world = world(options.clone());
    let at = partition(1, 0);
    world.starts.0.insert(at, 0);
    // One batch that spans 2^31 offsets, as compaction leaves it of many: in front of it and behind it little ones.
    let mut next = 0;
    let mut wanted = BTreeMap::new();
    for index in 0..6 {
        let mut batch = entry(at, next, 1, 40, index);
        if index % 2 == 1 {
            batch.header.last_offset_delta = i32::MAX;
            let mut tail = batch.tail.to_vec();
            tail[2..6].copy_from_slice(&i32::MAX.to_be_bytes());
            batch.header.crc = crc_of(&tail);
            batch.tail = Bytes::from(tail);
        }
        next = batch.last_offset() + 1;
        wanted.insert(batch.header.base_offset, batch.clone());
        world.time += 1;
        world.opened.writer.append(world.time, index as u64 + 1, &[batch.clone()]).expect("appended");
        world.written.push(batch);
    }
    world.opened.writer.roll().expect("rolled");
    let mut chosen =
        Chosen { dropped: wanted.keys().copied().skip(1).take(3).collect(), ..Chosen::default() };
    let change = world.make(at, &mut chosen, next).expect("well").expect("something");
    world.opened.writer.append_files(world.time, &change).expect("appended");
    world.apply(at, &chosen);
    for round in 0..2 {
        for entry in &world.written {
            for offset in [entry.header.base_offset, entry.last_offset()] {
                let read = world.opened.reader.read(at, offset, i64::MAX, 1).expect("no damage");
                assert_eq!(concat(&read), entry.to_bytes(), "round {round}, offset {offset}");
            }
        }
        let read = world.opened.reader.read(at, 1, i64::MAX, 1).expect("no damage");
        assert_eq!(concat(&read), world.written[1].to_bytes(), "from the gap");
        let all = world.opened.reader.read(at, 0, i64::MAX, 1 << 20).expect("no damage");
        assert_eq!((all.next_offset, all.bytes), (next, super::support::joined(&world.written, at).len()));
        world.reopen(options.clone());
    }
}

/// Proves that looking at a partition and appending to it do not wait for each other for ever: a look that held the
/// index while it asked it again stood still with the writer behind it, and no request was answered any more.
#[test]
fn looks_while_it_is_written() {
    let (done, ended) = std::sync::mpsc::channel();
    let both = move || {
        let mut world = world(tiny());
        let reader = world.opened.reader.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let looker = spawn::thread("looker", move || {
            let mut looks = 0_u64;
            while !stopped.load(Ordering::Acquire) {
                let looked = reader.stretches(partition(1, 0), 0, i64::MAX).expect("no damage");
                looks += u64::from(!looked.is_empty());
            }
            looks
        });
        world.write(2_000, 2, 60);
        stop.store(true, Ordering::Release);
        let looks = looker.expect("started").join().expect("no panic");
        let _ = done.send(looks); // the test has given up: it says so
    };
    let _both = spawn::thread("both", both).expect("started");
    let looks = ended.recv_timeout(Duration::from_secs(120)).expect("neither stands still");
    assert!(looks > 0, "nothing was looked at");
}
