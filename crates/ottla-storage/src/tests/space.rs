//! A full disk: the log goes on in its reserve, says how far it has come, and takes the marks back by itself.

use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_env::disk::sim::SimDisk;

use super::support::{Model, entry, options, partition, reopen};
use crate::{AppendError, FrameSequence, LogOptions, NotWritten, Opened, SnapshotInfo, Space};

fn with_reserve() -> LogOptions {
    LogOptions { reserve_files: 2, ..options() }
}

/// Takes all free room away.
fn fill(disk: &SimDisk) {
    disk.set_capacity(disk.files().iter().map(|(_, bytes)| bytes).sum());
}

/// One frame of about 4 KiB.
fn append(opened: &mut Opened, model: &mut Model) -> Result<(), AppendError> {
    let at = partition(1, 0);
    let entries = vec![entry(at, model.end_offset(at), 1, 3000, 5)];
    opened.writer.append(5, model.frames.len() as u64 + 1, &entries)?;
    model.frames.push(entries);
    while opened.preparer.run_once() {}
    Ok(())
}

fn is_full(error: &AppendError) -> bool {
    matches!(error, AppendError::NotWritten(NotWritten::NoRoom(error)) if error.kind() == std::io::ErrorKind::StorageFull)
}

/// Proves that a full disk sets mark 1 while everything can still be appended, that mark 2 comes when half of the
/// reserve is gone, that as many bytes as the reserve has can be appended behind mark 1, and that room takes both back.
#[test]
fn marks_come_in_order_and_go() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (mut opened, _) = reopen(&shared, with_reserve()).expect("opens");
    let space = opened.preparer.space();
    while opened.preparer.run_once() {}
    assert_eq!(space.now(), Space::Enough);
    let mut model = Model::default();
    for round in 0..3 {
        fill(&disk);
        let mut seen = vec![Space::Enough];
        let mut behind_mark_1 = 0;
        loop {
            match append(&mut opened, &mut model) {
                Ok(()) => behind_mark_1 += u64::from(space.now() != Space::Enough),
                Err(error) if is_full(&error) => break,
                Err(error) => panic!("{error}"),
            }
            if seen.last() != Some(&space.now()) {
                seen.push(space.now());
            }
            assert!(model.frames.len() < 1000, "the disk is full");
        }
        assert_eq!(seen, [Space::Enough, Space::ReserveOnly, Space::HalfReserve], "round {round}");
        assert!(
            behind_mark_1 * 4096 >= 2 * (60 << 10),
            "both files of the reserve were used: {behind_mark_1}"
        );
        disk.set_capacity(1 << 30);
        append(&mut opened, &mut model).expect("room again");
        assert_eq!(space.now(), Space::Enough);
        model.check_reads(&opened.reader, 5000);
    }
    drop(opened);
    let (opened, frames) = reopen(&shared, with_reserve()).expect("opens");
    model.recovered(0, &frames);
    model.check_reads(&opened.reader, 5000);
}

/// Proves that a log is opened on a full disk after a kill, again and again, with its reserve, and goes on.
#[test]
fn a_full_disk_is_opened() {
    let mut disk = SimDisk::new(2);
    let mut model = Model::default();
    for round in 0..8 {
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let (mut opened, frames) = reopen(&shared, with_reserve()).expect("opens");
        model.recovered(0, &frames);
        let space = opened.preparer.space();
        while opened.preparer.run_once() {}
        assert_eq!(space.now() == Space::Enough, round == 0, "round {round}");
        append(&mut opened, &mut model).expect("there is the reserve");
        if round < 3 {
            fill(&disk); // what was given back too
        }
        disk = disk.kill();
    }
    disk.set_capacity(1 << 30);
    let (mut opened, frames) =
        reopen(&(Arc::new(disk.clone()) as Arc<dyn Disk>), with_reserve()).expect("opens");
    model.recovered(0, &frames);
    while opened.preparer.run_once() {}
    assert_eq!(opened.preparer.space().now(), Space::Enough);
    let is_kept = |name: &str| name.starts_with("reserve-0") || name.contains("-ahead-");
    let kept = disk.files().iter().filter(|(name, _)| is_kept(name)).count();
    assert_eq!(kept, 3, "what was used was made anew, and no more: the reserve and the file ahead");
}

/// Proves that a snapshot can be written on a full disk: files go only behind snapshots.
#[test]
fn a_snapshot_on_a_full_disk() {
    let disk = SimDisk::new(3);
    let (mut opened, _) = reopen(&(Arc::new(disk.clone()) as Arc<dyn Disk>), with_reserve()).expect("opens");
    while opened.preparer.run_once() {}
    let mut model = Model::default();
    for _ in 0..4 {
        append(&mut opened, &mut model).expect("there is room");
        fill(&disk);
        let sequence = FrameSequence(model.frames.len() as u64);
        let info = SnapshotInfo {
            frame_sequence: sequence,
            epoch: opened.epoch,
            position: sequence.0,
            shard_time: 5,
        };
        let mut snapshot = opened.snapshots.begin(info).expect("begun");
        snapshot.chunk(&[7; 100_000]).expect("written");
        snapshot.finish().expect("finished");
        while opened.preparer.run_once() {}
    }
}
