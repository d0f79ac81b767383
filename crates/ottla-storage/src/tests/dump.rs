//! Walking through folders: intact, damaged at every place, and while a writer is at work.

use std::ops::ControlFlow;
use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_env::disk::read_only::ReadOnlyDisk;
use ottla_protocol::entry::Entry;

use super::memory::MemoryDisk;
use super::support::{Image, entry, options, partition, reopen};
use crate::dump::{Found, dump};
use crate::{LogOptions, SnapshotInfo};

fn walk(disk: Arc<dyn Disk>) -> Vec<Found> {
    let mut all = Vec::new();
    dump(&ReadOnlyDisk::new(disk), 0, None, &mut |found| {
        all.push(found);
        ControlFlow::Continue(())
    })
    .expect("the disk can be read");
    all
}

fn batches(all: &[Found]) -> Vec<&Entry> {
    let mut batches = Vec::new();
    for found in all {
        if let Found::Batch(entry) = found {
            batches.push(entry);
        }
    }
    batches
}

fn small() -> LogOptions {
    LogOptions { file_bytes: 32 << 10, growth_bytes: 4 << 10, tail_bytes_max: 0, ..options() }
}

/// Proves that a walk shows exactly the batches that were appended, in order, at every moment between appends of a
/// writer that goes on, over files that are sealed meanwhile; and the snapshot with its chunks.
#[test]
fn every_moment_of_a_writer() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let (mut opened, _) = reopen(&disk, small()).expect("opens");
    let mut appended = Vec::new();
    for frame in 0..30 {
        let entries =
            vec![entry(partition(1, 0), frame, 1, 1500, frame), entry(partition(2, 0), frame, 1, 20, frame)];
        opened.writer.append(frame, frame as u64 + 1, &entries).expect("appended");
        appended.extend(entries);
        if frame % 3 == 0 {
            while opened.preparer.run_once() {}
        }
        let all = walk(disk.clone());
        assert!(batches(&all).into_iter().eq(&appended), "frame {frame}: {all:?}");
        let count = |is: fn(&Found) -> bool| all.iter().filter(|found| is(found)).count();
        assert_eq!(
            count(|found| matches!(found, Found::End(_))),
            count(|found| matches!(found, Found::File(_)))
        );
        assert_eq!(count(|found| matches!(found, Found::Damage(_) | Found::Refused { .. })), 0);
        assert_eq!(count(|found| matches!(found, Found::End(end) if end.is_torn)), 0);
    }
    let info =
        SnapshotInfo { frame_sequence: crate::FrameSequence(30), epoch: 0, position: 30, shard_time: 29 };
    let mut writer = opened.snapshots.begin(info).expect("begun");
    writer.chunk(b"some state").expect("written");
    writer.finish().expect("finished");
    let all = walk(disk);
    let [.., Found::Snapshot { info: shown, .. }, Found::SnapshotChunk(chunk)] = &all[..] else {
        panic!("the snapshot is last: {all:?}")
    };
    assert_eq!((shown, &chunk[..]), (&info, &b"some state"[..]));
}

/// Proves that no flipped byte of any file makes the walk fail, or show a batch that was never appended; and that a
/// flip in a frame is always shown as damage.
#[test]
fn every_flipped_byte() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let (mut opened, _) = reopen(&disk, small()).expect("opens");
    let mut appended = Vec::new();
    for frame in 0..10 {
        let entries =
            vec![entry(partition(1, 0), frame, 1, 1500, frame), entry(partition(2, 0), frame, 1, 20, frame)];
        opened.writer.append(frame, frame as u64 + 1, &entries).expect("appended");
        appended.extend(entries);
    }
    while opened.preparer.run_once() {}
    drop(opened);
    let image = Image::of(&*disk);
    for (name, bytes) in &image.0 {
        for at in (0..bytes.len()).step_by(61) {
            let mut damaged = image.clone();
            damaged.0.get_mut(name).expect("there")[at] ^= 0x40;
            let all = walk(damaged.disk());
            let shown = batches(&all);
            assert!(shown.iter().all(|entry| appended.contains(entry)), "{name} byte {at}");
            let is_told = all.iter().any(|found| match found {
                Found::Damage(_) | Found::DamagedBatch(_) => true,
                Found::Refused { is_damage, .. } => *is_damage,
                Found::File(facts) => facts.header_copy_damaged,
                Found::End(end) => end.is_torn,
                _ => false,
            });
            assert!(shown.len() == appended.len() || is_told, "{name} byte {at}: {all:?}");
        }
    }
}
