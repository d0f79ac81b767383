//! What every disk must give: run on the operating system's and on the simulated one.

use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_env::disk::os::OsDisk;
use ottla_env::disk::sim::SimDisk;
use ottla_protocol::entry::Entry;

use super::memory::MemoryDisk;
use super::support::{concat, entry, joined, options, partition, read_all, reopen};
use crate::{DurableEnd, FrameSequence, OpenError, ReadError, SnapshotInfo, open};

/// Runs a case on every disk; the case gets an empty folder.
fn on_every_disk(case: impl Fn(Arc<dyn Disk>)) {
    let folder = tempfile::tempdir().expect("a folder");
    case(Arc::new(OsDisk::open(folder.path()).expect("opened")));
    case(Arc::new(SimDisk::new(1)));
    case(Arc::new(MemoryDisk::default()));
}

/// Appends frames of several partitions until some files are full; gives back what was appended.
fn fill(disk: &Arc<dyn Disk>, frames: i64, prepare: bool) -> (crate::Opened, Vec<Vec<Entry>>) {
    let (mut opened, recovered) = reopen(disk, options()).expect("an empty folder opens");
    assert!(recovered.is_empty());
    let mut written = Vec::new();
    for frame in 0..frames {
        let entries = vec![
            entry(partition(2, 0), frame * 2, 1, 300, 1000 + frame),
            entry(partition(1, 0), frame * 3, 3, 10, 1000 + frame),
            entry(partition(2, 0), frame * 2 + 1, 1, 5000, 1001 + frame),
        ];
        let sequence = opened.writer.append(frame, frame as u64 + 1, &entries).expect("appended");
        assert_eq!(sequence, FrameSequence(frame as u64 + 1));
        written.push(entries);
        while prepare && opened.preparer.run_once() {}
    }
    (opened, written)
}

/// Proves that what is appended is read back byte by byte, from memory and from files, at every offset, in the
/// same life and in the next, with a helper and without; and that replay gives the frames in decision order.
#[test]
fn what_is_appended_is_read_and_replayed() {
    for prepare in [false, true] {
        on_every_disk(|disk| {
            let (opened, written) = fill(&disk, 60, prepare);
            let all: Vec<Entry> = written.iter().flatten().cloned().collect();
            let check = |reader: &crate::LogReader| {
                for at in [partition(1, 0), partition(2, 0)] {
                    for step in [1, 5000, 1 << 20] {
                        assert_eq!(read_all(reader, at, 0, step), joined(&all, at), "step {step}");
                    }
                }
                for (offset, wanted) in [(0, 0), (1, 0), (2, 0), (3, 3), (178, 177), (179, 177)] {
                    let bytes = concat(&reader.read(partition(1, 0), offset, i64::MAX, 1).expect("read"));
                    assert_eq!(bytes[..8], i64::to_be_bytes(wanted));
                }
                let bounded = concat(&reader.read(partition(1, 0), 0, 4, 1 << 20).expect("read"));
                assert_eq!(
                    bounded.len(),
                    2 * all[1].batch_bytes(),
                    "the batch at 3 begins below 4, none behind"
                );
                assert!(reader.read(partition(1, 0), 180, i64::MAX, 1).expect("the end").pieces.is_empty());
                assert!(reader.read(partition(9, 0), 0, i64::MAX, 1).expect("unknown").pieces.is_empty());
            };
            check(&opened.reader);
            let old_reader = opened.reader.clone();
            drop(opened);
            for epoch in 1..4 {
                let (mut opened, frames) = reopen(&disk, options()).expect("opens");
                assert_eq!(opened.epoch, epoch);
                assert!(opened.report.damage.is_empty() && opened.report.cut.is_none());
                assert_eq!(frames.len(), 60);
                for (frame, entries) in frames.iter().zip(&written) {
                    assert_eq!((&frame.entries, frame.epoch), (entries, 0));
                    assert_eq!(frame.position, frame.frame_sequence.0);
                    assert_eq!(frame.shard_time, frame.frame_sequence.0 as i64 - 1);
                }
                check(&opened.reader);
                while prepare && opened.preparer.run_once() {}
                check(&opened.reader);
            }
            check(&old_reader);
        });
    }
}

/// Proves that timestamps find the first record at or behind them, and the largest one its first record.
#[test]
fn timestamps_find_records() {
    on_every_disk(|disk| {
        let (mut opened, _) = fill(&disk, 60, true);
        while opened.preparer.run_once() {}
        let reader = &opened.reader;
        let at = partition(1, 0); // frame f: offsets 3f.. with timestamps 1000+f, 1001+f, 1002+f
        assert_eq!(reader.offset_for_timestamp(at, 0, 0, 180).expect("found"), Some((0, 1000)));
        assert_eq!(reader.offset_for_timestamp(at, 1001, 0, 180).expect("found"), Some((1, 1001)));
        assert_eq!(reader.offset_for_timestamp(at, 1030, 0, 180).expect("found"), Some((86, 1030)));
        assert_eq!(reader.offset_for_timestamp(at, 1030, 87, 180).expect("found"), Some((88, 1030)));
        assert_eq!(reader.offset_for_timestamp(at, 1030, 0, 86).expect("none"), None);
        assert_eq!(reader.offset_for_timestamp(at, 1062, 0, 180).expect("none"), None);
        assert_eq!(reader.max_timestamp(at, 0, 180).expect("found"), Some((179, 1061)));
        assert_eq!(reader.max_timestamp(at, 0, 179).expect("found"), Some((176, 1060)));
        assert_eq!(reader.max_timestamp(partition(9, 9), 0, 10).expect("none"), None);
    });
}

/// Proves that replay begins behind the newest snapshot, that its chunks come back, that the two newest are kept,
/// and that a damaged one gives way to the one before.
#[test]
fn snapshots_shorten_replay() {
    on_every_disk(|disk| {
        let (opened, written) = fill(&disk, 50, true);
        let info = |frame: u64| SnapshotInfo {
            frame_sequence: FrameSequence(frame),
            epoch: 0,
            position: frame,
            shard_time: frame as i64 - 1,
        };
        for frame in [10, 20, 45] {
            let mut snapshot = opened.snapshots.begin(info(frame)).expect("begun");
            for chunk in 0..3u8 {
                snapshot.chunk(&vec![chunk; 700_000]).expect("written");
            }
            snapshot.finish().expect("finished");
        }
        drop(opened.snapshots.begin(info(46)).expect("begun"));
        let snapshots = |disk: &Arc<dyn Disk>| {
            let names = disk.list().expect("listed");
            names.into_iter().filter(|name| name.contains("snapshot")).collect::<Vec<_>>()
        };
        assert_eq!(snapshots(&disk), [info(20).file_name(), info(45).file_name()]);
        drop(opened);
        let mut opening = open(disk.clone(), options()).expect("opens");
        assert_eq!(opening.snapshot(), Some(info(45)));
        let chunks = opening.snapshot_chunks().expect("readable").expect("there");
        let chunks: Vec<_> = chunks.map(|chunk| chunk.expect("sound")).collect();
        assert!(chunks.len() == 3 && chunks.iter().enumerate().all(|(i, c)| c == &vec![i as u8; 700_000]));
        for frame in 46..=50 {
            let recovered = opening.next_frame().expect("sound").expect("there");
            assert_eq!(recovered.frame_sequence, FrameSequence(frame));
            assert_eq!(recovered.entries, written[frame as usize - 1]);
        }
        assert!(opening.next_frame().expect("sound").is_none());
        drop(opening);

        let file = disk.open(&info(45).file_name()).expect("there");
        file.write_vectored_at(&[std::io::IoSlice::new(b"x")], 1_000_000).expect("written");
        let opening = open(disk.clone(), options()).expect("opens");
        assert_eq!(opening.snapshot(), Some(info(20)));
        assert_eq!(opening.report().damaged_snapshots.len(), 1);
    });
}

/// Proves that the bytes of format version 3 stay as they are: a log of fixed content, ids and nonces has fixed
/// checksums. Whoever changes them changes the version, `docs/format.md` and the fixtures.
#[test]
fn the_format_is_pinned() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let (mut opened, _) = fill(&disk, 20, true);
    let info = SnapshotInfo { frame_sequence: FrameSequence(20), epoch: 0, position: 20, shard_time: 19 };
    let mut snapshot = opened.snapshots.begin(info).expect("begun");
    snapshot.chunk(b"the state").expect("written");
    snapshot.finish().expect("finished");
    while opened.preparer.run_once() {}
    let files = super::support::Image::of(&*disk).0;
    let sums: Vec<(&str, usize, u32)> = files
        .iter()
        .filter(|(name, _)| !name.ends_with("tmp"))
        .map(|(name, bytes)| (&name[12..], bytes.len(), crate::layout::crc32c(bytes)))
        .collect();
    let pinned = [
        ("00000001.log", 20896, 997752090),
        ("00000002.log", 62256, 1867330879),
        ("00000003.log", 62256, 3594068),
        ("00000004.log", 65536, 1305553959),
        ("00000020-0000000000.snapshot", 273, 1953890287),
    ];
    assert_eq!(sums, pinned);
}

/// Proves that a second opener is refused while the first lives, and that a foreign folder is left as it is.
#[test]
fn others_are_refused() {
    on_every_disk(|disk| {
        disk.create("notes.txt").expect("created");
        let refused = open(disk.clone(), options()).err().expect("refused");
        assert!(matches!(refused, OpenError::Foreign { .. }));
        assert_eq!(disk.list().expect("listed"), ["notes.txt"]);
        disk.remove("notes.txt").expect("removed");
        let (opened, _) = reopen(&disk, options()).expect("opens");
        let second = open(disk.clone(), options());
        let locks = disk.list().expect("listed").iter().any(|name| name == "lock");
        assert!(!locks || matches!(second.err().expect("refused"), OpenError::Lock(_)));
        drop(opened);
        let mut other = options();
        other.shard_id = 5;
        let refused = open(disk.clone(), other).err().expect("refused");
        assert!(matches!(refused, OpenError::Foreign { .. }));
        let ahead = DurableEnd { file: crate::FileId(1), length: 8192, frame_sequence: FrameSequence(1) };
        let mut lost = options();
        lost.durable_end = Some(ahead);
        let refused = reopen(&disk, lost).err().expect("refused");
        assert!(matches!(refused, OpenError::Damaged(_)));
        reopen(&disk, options()).expect("opens");
    });
}

/// Proves that a frame larger than a file gets a file of its own, and one above the maximum is refused unwritten.
#[test]
fn large_frames() {
    on_every_disk(|disk| {
        let (mut opened, _) = reopen(&disk, options()).expect("opens");
        let mut all = Vec::new();
        for (index, bytes) in [100, 200_000, 100, 100, 700_000, 50].into_iter().enumerate() {
            let entries = [entry(partition(1, 0), index as i64, 1, bytes, 5)];
            opened.writer.append(0, index as u64, &entries).expect("appended");
            opened.preparer.run_once();
            all.extend(entries);
        }
        let huge = [entry(partition(1, 0), 6, 1, 2 << 20, 5)];
        let refused = opened.writer.append(0, 9, &huge).expect_err("too large");
        assert!(matches!(refused, crate::AppendError::NotWritten(crate::NotWritten::TooLarge { .. })));
        opened.writer.append(0, 9, &[]).expect("the writer lives");
        assert_eq!(read_all(&opened.reader, partition(1, 0), 0, 1 << 20), joined(&all, partition(1, 0)));
        opened.writer.close(7).expect("closed");
        let (opened, frames) = reopen(&disk, options()).expect("opens");
        assert_eq!(frames.len(), 8);
        assert_eq!(read_all(&opened.reader, partition(1, 0), 0, 1), joined(&all, partition(1, 0)));
    });
}

/// Proves that damage in a sealed file refuses its own batch and nothing else, with its place in the error.
#[test]
fn only_the_damaged_range_is_refused() {
    on_every_disk(|disk| {
        let (opened, written) = fill(&disk, 60, true);
        let all: Vec<Entry> = written.iter().flatten().cloned().collect();
        let file = disk.open(&crate::FileId(1).file_name()).expect("there");
        // Frame 1: header 128, three entry headers of 64, then partition 1's body: its value's first bytes.
        let position = 4096 + 128 + 3 * 64 + 61 + 10;
        file.write_vectored_at(&[std::io::IoSlice::new(b"!")], position).expect("written");
        let error = opened.reader.read(partition(1, 0), 0, i64::MAX, 1 << 20).expect_err("damaged");
        let ReadError::Corrupt { first_offset, last_offset, file, .. } = error else { panic!("{error}") };
        assert_eq!((first_offset, last_offset, file.0), (0, 2, 1));
        let rest = joined(&all[3..], partition(1, 0));
        assert_eq!(read_all(&opened.reader, partition(1, 0), 3, 1 << 20), rest);
        assert_eq!(read_all(&opened.reader, partition(2, 0), 0, 1 << 20), joined(&all, partition(2, 0)));
    });
}
