//! Damage to the files of a folder that nobody has open: every byte cut, every byte changed, files swapped.
//!
//! Each case changes an image of a folder and opens it. What may happen: the log is as it was, or the opening or a
//! read names the damage. What may not: a wrong byte, a lost frame that nobody mentions, a panic.

use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_protocol::entry::Entry;

use super::memory::MemoryDisk;
use super::support::{Image, Model, concat, entry, joined, options, partition, read_all, reopen};
use crate::{FileId, FrameSequence, LogOptions, LogReader, OpenError, ReadError, SnapshotInfo};

fn small() -> LogOptions {
    LogOptions { file_bytes: 20 << 10, growth_bytes: 4 << 10, tail_bytes_max: 0, ..options() }
}

/// A log of `frames` small frames; the helper runs when asked to, so that sealed files have footers.
fn log(frames: i64, helper: bool, snapshot_at: Option<u64>) -> (Image, Model) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let (mut opened, _) = reopen(&disk, small()).expect("opens");
    let mut model = Model::default();
    for frame in 0..frames {
        let entries = vec![
            entry(partition(2, 0), frame, 1, 700, 1000 + frame),
            entry(partition(1, 0), frame * 2, 1, 20, 1000 + frame),
            entry(partition(1, 0), frame * 2 + 1, 1, 20, 1000 + frame),
        ];
        opened.writer.append(frame, frame as u64 + 1, &entries).expect("appended");
        model.frames.push(entries);
        while helper && opened.preparer.run_once() {}
        if snapshot_at == Some(frame as u64 + 1) {
            let sequence = FrameSequence(frame as u64 + 1);
            let info =
                SnapshotInfo { frame_sequence: sequence, epoch: 0, position: sequence.0, shard_time: frame };
            let mut snapshot = opened.snapshots.begin(info).expect("begun");
            snapshot.chunk(b"the state").expect("written");
            snapshot.chunk(b"and more of it").expect("written");
            snapshot.finish().expect("finished");
        }
    }
    (Image::of(&*disk), model)
}

fn newest(image: &Image) -> String {
    image.0.keys().rfind(|name| name.ends_with(".log")).expect("there").clone()
}

/// Where a sealed file's frames end, as the next file's header says.
fn sealed_end(image: &Image, file: u64) -> usize {
    let next = &image.0[&FileId(file + 1).file_name()];
    u64::from_be_bytes(next[64..72].try_into().expect("eight bytes")) as usize
}

/// Opens an image that may be damaged. What is served must be right; says whether anything was refused.
fn open_and_check(image: &Image, model: &Model) -> bool {
    let (opened, frames) = match reopen(&image.disk(), small()) {
        Ok(opened) => opened,
        Err(OpenError::Damaged(_) | OpenError::Foreign { .. } | OpenError::Newer { .. }) => return true,
        Err(error) => panic!("{error}"),
    };
    let contained = opened.report.snapshot.map_or(0, |info| info.frame_sequence.0);
    model.clone().recovered(contained, &frames);
    let refused = reads_are_right(&opened.reader, model);
    refused || !opened.report.damage.is_empty() || !opened.report.damaged_snapshots.is_empty()
}

/// Reads everything; a range may be refused, and then the reading goes on behind it.
fn reads_are_right(reader: &LogReader, model: &Model) -> bool {
    let all: Vec<Entry> = model.frames.iter().flatten().cloned().collect();
    let mut refused = false;
    for at in model.partitions() {
        let mut offset = 0;
        while offset < model.end_offset(at) {
            let rest: Vec<Entry> = all.iter().filter(|e| e.last_offset() >= offset).cloned().collect();
            match reader.read(at, offset, i64::MAX, 1 << 20) {
                Ok(batches) => {
                    let wanted = joined(&rest, at);
                    assert!(
                        !batches.pieces.is_empty() && wanted.starts_with(&concat(&batches)),
                        "wrong bytes"
                    );
                    offset = batches.next_offset;
                }
                Err(ReadError::Corrupt { first_offset, last_offset, .. }) => {
                    assert!((first_offset..=last_offset).contains(&offset));
                    refused = true;
                    offset = last_offset + 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    refused
}

/// Proves that a log cut at any byte opens with every frame that is wholly in front of the cut and none other, or is
/// refused where its header block is cut.
#[test]
fn truncation_at_every_byte() {
    let (image, model) = log(3, false, None);
    let name = newest(&image);
    assert_eq!(name, FileId(1).file_name(), "one file");
    let bytes: usize = 128 + model.frames[0].iter().map(|entry| 64 + entry.batch_bytes()).sum::<usize>();
    for len in (0..image.0[&name].len()).rev().filter(|len| len % 4096 <= bytes + 2 || len % 13 == 0) {
        let mut cut = image.clone();
        cut.0.get_mut(&name).expect("there").truncate(len);
        match reopen(&cut.disk(), small()) {
            Ok((opened, frames)) => {
                // What a frame is filled up with may be missing.
                let whole = (len + 4096 - bytes) / 4096 - 1;
                assert!(len >= 4096 && frames.len() == whole.min(3), "cut at {len}");
                let mut expected = Model { frames: model.frames[..frames.len()].to_vec(), maybe: None };
                expected.recovered(0, &frames);
                expected.check_reads(&opened.reader, 1 << 20);
            }
            Err(OpenError::Damaged(damage)) => assert!(len < 4096, "cut at {len}: {damage}"),
            Err(error) => panic!("cut at {len}: {error}"),
        }
    }
}

/// Proves that a sealed file, cut anywhere, is never taken for whole: replay names the damage, and with a snapshot
/// behind it only what is gone is refused.
#[test]
fn truncation_of_a_sealed_file() {
    for snapshot_at in [None, Some(7)] {
        let (image, model) = log(9, true, snapshot_at);
        let name = FileId(2).file_name();
        for len in (0..image.0[&name].len()).step_by(127) {
            let mut cut = image.clone();
            cut.0.get_mut(&name).expect("there").truncate(len);
            let refused = open_and_check(&cut, &model);
            // Behind the frames lies the footer, which is derived: nothing is missing without it.
            assert!(refused || len >= sealed_end(&image, 2), "cut at {len}");
        }
    }
}

/// Proves that one wrong bit in any byte of any file is harmless, or named by the opening or the read that meets
/// it: nothing wrong is served and nothing is lost without a word.
#[test]
fn bit_flips_in_every_file() {
    for snapshot_at in [None, Some(5)] {
        let (image, model) = log(6, true, snapshot_at);
        assert!(!open_and_check(&image, &model), "the image is sound");
        let first = FileId(1).file_name();
        let last = newest(&image);
        let chosen = |name: &&String| **name == first || **name == last || name.ends_with("snapshot");
        let names: Vec<String> = image.0.keys().filter(chosen).cloned().collect();
        for name in names {
            let mut flipped = image.clone();
            for at in 0..image.0[&name].len() {
                // Long stretches of the same bytes are sampled.
                if at % 4096 >= 512 && at % 97 != 0 {
                    continue;
                }
                flipped.0.get_mut(&name).expect("there")[at] ^= 1 << (at % 8);
                open_and_check(&flipped, &model);
                flipped.0.get_mut(&name).expect("there")[at] ^= 1 << (at % 8);
            }
        }
    }
}

/// Proves that zeros over the end of the log (a torn write) cut exactly the last frame, and zeros in front of a
/// sound frame are damage.
#[test]
fn zeros_at_the_end_and_in_the_middle() {
    let (image, model) = log(3, false, None);
    let name = newest(&image);
    for sector in 0..2 {
        let mut torn = image.clone();
        let at = 4096 * 3 + sector * 512;
        torn.0.get_mut(&name).expect("there")[at..at + 512].fill(0);
        let (opened, frames) = reopen(&torn.disk(), small()).expect("opens");
        assert_eq!(frames.len(), 2);
        assert_eq!(opened.report.cut.map(|cut| cut.position), Some(4096 * 3));
        let mut middle = image.clone();
        let at = 4096 * 2 + sector * 512;
        middle.0.get_mut(&name).expect("there")[at..at + 512].fill(0);
        let refused = reopen(&middle.disk(), small()).err().expect("refused");
        let OpenError::Damaged(damage) = refused else { panic!("{refused}") };
        assert_eq!((damage.file, damage.position), (name.clone(), 4096 * 2));
    }
    assert_eq!(model.frames.len(), 3);
}

/// Proves that a frame at the end which was written whole and is damaged is not taken for a torn write, unless its
/// loss is accepted.
#[test]
fn a_damaged_last_frame_is_reported() {
    let (mut image, _) = log(3, false, None);
    let name = newest(&image);
    image.0.get_mut(&name).expect("there")[4096 * 3 + 500] ^= 1;
    let refused = reopen(&image.disk(), small()).err().expect("refused");
    assert!(matches!(refused, OpenError::Damaged(_)));
    let accepted = LogOptions { accept_damaged_end: true, ..small() };
    let (opened, frames) = reopen(&image.disk(), accepted).expect("opens");
    assert_eq!(frames.len(), 2);
    assert!(opened.report.cut.is_some());
}

/// Proves that a wrong bit in the zeros behind the log's end is not taken for a frame, torn or damaged.
#[test]
fn a_wrong_bit_behind_the_end() {
    let (image, model) = log(3, false, None);
    let name = newest(&image);
    for at in [0, 3, 200, 511, 512, 4095] {
        let mut flipped = image.clone();
        let file = flipped.0.get_mut(&name).expect("there");
        file.resize(4096 * 6, 0);
        file[4096 * 4 + at] ^= 4;
        let (opened, frames) = reopen(&flipped.disk(), small()).expect("opens");
        model.clone().recovered(0, &frames);
        model.check_reads(&opened.reader, 1 << 20);
    }
}

/// Proves that frames of another life or another folder behind the log's end are not believed, though they are
/// sound: a copy of an earlier frame, and the same frame of another log.
#[test]
fn frames_of_another_life() {
    let (image, model) = log(3, false, None);
    let (other, _) = {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
        let mut nonces = 1000;
        let different = crate::Nonces::new(move || {
            nonces += 1;
            nonces
        });
        let (mut opened, _) = reopen(&disk, LogOptions { nonces: different, ..small() }).expect("opens");
        for frame in 0..4 {
            let entries = [entry(partition(2, 0), frame, 1, 700, 1000 + frame)];
            opened.writer.append(frame, frame as u64 + 1, &entries).expect("appended");
        }
        (Image::of(&*disk), ())
    };
    let name = newest(&image);
    let end = 4096 * 4;
    let old_life = image.0[&name][4096..8192].to_vec();
    let foreign = other.0[&newest(&other)][end..end + 4096].to_vec();
    for block in [old_life, foreign] {
        let mut changed = image.clone();
        let file = changed.0.get_mut(&name).expect("there");
        file.resize(end + 4096, 0);
        file[end..end + 4096].copy_from_slice(&block);
        let (opened, frames) = reopen(&changed.disk(), small()).expect("opens");
        model.clone().recovered(0, &frames);
        model.check_reads(&opened.reader, 1 << 20);
    }
    // A whole file of the other folder in place of ours.
    let mut replaced = log(9, true, Some(9)).0;
    replaced.0.insert(FileId(1).file_name(), other.0[&FileId(1).file_name()].clone());
    let refused = reopen(&replaced.disk(), small()).err().expect("refused");
    assert!(matches!(refused, OpenError::Damaged(_)));
}

/// Proves that swapped and missing files are noticed.
#[test]
fn swapped_and_missing_files() {
    let (image, _) = log(9, true, None);
    let (first, second) = (FileId(1).file_name(), FileId(2).file_name());
    let mut swapped = image.clone();
    swapped.0.insert(first.clone(), image.0[&second].clone());
    swapped.0.insert(second.clone(), image.0[&first].clone());
    for (what, gone) in [("swapped", None), ("no first", Some(&first)), ("no second", Some(&second))] {
        let mut changed = if gone.is_some() { image.clone() } else { swapped.clone() };
        gone.map(|name| changed.0.remove(name));
        let refused = reopen(&changed.disk(), small()).err().unwrap_or_else(|| panic!("{what} opens"));
        assert!(matches!(refused, OpenError::Damaged(_)), "{what}: {refused}");
    }
}

/// Proves that a body of another partition with the same offsets is told from the right one.
#[test]
fn batches_of_two_partitions_swapped() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let (mut opened, _) = reopen(&disk, small()).expect("opens");
    let mut entries = Vec::new();
    for at in [partition(1, 0), partition(2, 0)] {
        let mut one = entry(at, 0, 1, 50, i64::from(at.topic_id.0[0]));
        one.header.partition_leader_epoch = 1;
        entries.push(one);
    }
    opened.writer.append(0, 1, &entries).expect("appended");
    let name = FileId(1).file_name();
    let file = disk.open(&name).expect("there");
    let (first, len) = (4096 + 128 + 2 * 64, entries[0].batch_bytes());
    let mut bodies = vec![0; 2 * len];
    file.read_exact_at(&mut bodies, first as u64).expect("read");
    let (one, two) = bodies.split_at(len);
    crate::layout::write_all(&*file, &[two, one], first as u64).expect("written");
    for at in [partition(1, 0), partition(2, 0)] {
        let refused = opened.reader.read(at, 0, 1, 1000).expect_err("refused");
        assert!(matches!(refused, ReadError::Corrupt { .. }));
    }
}

/// Proves that every footer may be garbled or cut off: the index is rebuilt from the frames, at the opening or when
/// the damaged part is met.
#[test]
fn footers_are_only_derived() {
    let (image, model) = log(20, true, None);
    let sealed: Vec<String> = image.0.keys().filter(|name| name.ends_with(".log")).cloned().collect();
    for garble in 0..3 {
        let mut changed = image.clone();
        for name in &sealed[..sealed.len() - 1] {
            let end = sealed_end(&image, name[..20].parse().expect("an id"));
            let file = changed.0.get_mut(name).expect("there");
            match garble {
                0 => file.truncate(end),
                1 => file[end..].iter_mut().for_each(|byte| *byte ^= 0x55),
                _ => file[end + 64 + 2 * 64 + 3] ^= 1, // the first extent list
            }
        }
        let (mut opened, frames) = reopen(&changed.disk(), small()).expect("opens");
        let rebuilt = if garble == 2 { 0 } else { sealed.len() - 1 };
        assert_eq!(opened.report.rebuilt_indexes, rebuilt);
        model.clone().recovered(0, &frames);
        model.check_reads(&opened.reader, 1000);
        while opened.preparer.run_once() {}
        model.check_reads(&opened.reader, 1000);
    }
}

/// Proves that a newer format and a folder that is not ours are refused before anything in them is changed.
#[test]
fn newer_and_foreign_folders_stay_as_they_are() {
    let (image, _) = log(3, false, None);
    let name = newest(&image);
    let mut newer = image.clone();
    for copy in [0, 2048] {
        newer.0.get_mut(&name).expect("there")[copy + 9] = 4;
    }
    let mut foreign = Image::default();
    foreign.0.insert("wal.dat".to_owned(), vec![1; 100]);
    for (image, is_newer) in [(newer, true), (foreign, false)] {
        let disk = image.disk();
        let refused = reopen(&disk, small()).err().expect("refused");
        assert_eq!(matches!(refused, OpenError::Newer { version: 4, .. }), is_newer, "{refused}");
        assert_eq!(Image::of(&*disk).0, image.0, "untouched");
    }
}

/// Proves that the memory of the tail cache is bounded, and that it is only a cache.
#[test]
fn the_tail_is_bounded() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let (mut opened, _) = reopen(&disk, options()).expect("opens");
    let mut all = Vec::new();
    for offset in 0..20 {
        let entries = [entry(partition(1, 0), offset, 1, 6000, 5)];
        opened.writer.append(0, 0, &entries).expect("appended");
        assert!(opened.reader.shared.tail().held_bytes() <= 24 << 10);
        all.extend(entries);
    }
    assert!(opened.reader.read_cached(partition(1, 0), 19, 20, 1).is_some(), "the newest is in memory");
    assert!(opened.reader.read_cached(partition(1, 0), 0, 20, 1).is_none(), "the oldest is not");
    assert_eq!(read_all(&opened.reader, partition(1, 0), 0, 1), joined(&all, partition(1, 0)));
}
