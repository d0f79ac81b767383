//! Single faults of the disk, and what the caller is told: written, not written, or unknown.

use std::io::{self, IoSlice};
use std::sync::Arc;

use ottla_env::disk::sim::{Fault, SimDisk};
use ottla_env::disk::{Disk, File};
use ottla_env::rng::SeededRng;

use super::support::{Model, entry, options, partition, reopen};
use crate::{AppendError, Durability, FrameSequence, LogOptions, NotWritten, Opened, SnapshotInfo};

fn append(opened: &mut Opened, model: &mut Model, bytes: usize) -> Result<(), AppendError> {
    let at = partition(1, 0);
    let entries = vec![entry(at, model.end_offset(at), 1, bytes, 5)];
    let position = model.frames.len() as u64 + 1;
    match opened.writer.append(5, position, &entries) {
        Ok(_) => model.frames.push(entries),
        Err(error) => {
            if matches!(error, AppendError::Unknown(_)) {
                model.maybe = Some(entries);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Proves that a full disk is met before a byte of a frame is written, again and again, that reads go on, and that
/// the same writer goes on once there is room.
#[test]
fn a_full_disk_is_met_before_a_frame() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (mut opened, _) = reopen(&shared, options()).expect("opens");
    let mut model = Model::default();
    for round in 1..4u64 {
        disk.set_capacity(round * 150_000);
        let mut refused = 0;
        while refused < 3 {
            match append(&mut opened, &mut model, 3000) {
                Ok(()) => {}
                Err(AppendError::NotWritten(NotWritten::NoRoom(error))) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                    assert!(!opened.preparer.run_once() || refused == 0);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
            opened.preparer.run_once();
        }
        assert!(model.frames.len() as u64 > round * 10);
        model.check_reads(&opened.reader, 5000);
    }
    disk.set_capacity(1 << 30);
    append(&mut opened, &mut model, 3000).expect("room again");
    drop(opened);
    let (opened, frames) = reopen(&shared, options()).expect("opens");
    model.recovered(0, &frames);
    model.check_reads(&opened.reader, 5000);
}

/// Proves that after a failed sync nothing behind the last good one is believed, though the page cache shows it and
/// a later sync succeeds; that the dead writer stays dead; and that readers of before go on.
#[test]
fn a_failed_sync_is_not_believed() {
    let disk = SimDisk::new(2);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (mut opened, _) = reopen(&shared, options()).expect("opens");
    let mut model = Model::default();
    for round in 0..10 {
        for _ in 0..3 {
            append(&mut opened, &mut model, 300).expect("appended");
        }
        // The sync that fails may be the one that makes room: then nothing was written.
        loop {
            disk.inject(Fault::SyncError, "");
            match append(&mut opened, &mut model, 300).expect_err("the sync failed") {
                AppendError::NotWritten(_) => append(&mut opened, &mut model, 300).expect("another file"),
                AppendError::Unknown(_) => break,
            }
        }
        let again = opened.writer.append(5, 1000, &[]).expect_err("dead");
        assert!(matches!(again, AppendError::Unknown(_)));
        let end = opened.writer.durable_end();
        assert_eq!(end.frame_sequence, FrameSequence(model.frames.len() as u64));
        let old = opened.reader.clone();
        drop(opened);
        model.maybe = None; // must not come back
        let known = LogOptions { durable_end: Some(end), ..options() };
        let (next, frames) = reopen(&shared, known).expect("opens");
        assert_eq!(next.epoch, round + 1);
        model.recovered(0, &frames);
        model.check_reads(&old, 500);
        opened = next;
        model.check_reads(&opened.reader, 500);
    }
}

/// Proves that without syncs a kill of the process loses nothing, and that after a power cut the log opens with some
/// first part of it.
#[test]
fn without_syncs() {
    for seed in 0..30 {
        let disk = SimDisk::new(seed);
        let unsynced = || LogOptions { durability: Durability::Os, ..options() };
        let (mut opened, _) = reopen(&(Arc::new(disk.clone()) as Arc<dyn Disk>), unsynced()).expect("opens");
        let mut model = Model::default();
        for _ in 0..40 {
            append(&mut opened, &mut model, 2000).expect("appended");
            opened.preparer.run_once();
        }
        let disk = disk.kill();
        let (mut opened, frames) =
            reopen(&(Arc::new(disk.clone()) as Arc<dyn Disk>), unsynced()).expect("opens");
        model.recovered(0, &frames);
        for _ in 0..40 {
            append(&mut opened, &mut model, 2000).expect("appended");
        }
        let disk = disk.crash(&mut SeededRng::new(seed));
        let accepted = LogOptions { accept_damaged_end: true, ..unsynced() };
        let (_, frames) = reopen(&(Arc::new(disk) as Arc<dyn Disk>), accepted).expect("opens");
        assert!(frames.len() >= 40, "what was there before the second start was synced by it");
        model.frames.truncate(frames.len());
        model.recovered(0, &frames);
    }
}

/// Proves that a snapshot of a frame that is not durable is never finished.
#[test]
#[should_panic(expected = "never runs ahead of the log")]
fn a_snapshot_is_never_ahead() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let (opened, _) = reopen(&disk, options()).expect("opens");
    let info = SnapshotInfo { frame_sequence: FrameSequence(1), epoch: 0, position: 1, shard_time: 0 };
    let snapshot = opened.snapshots.begin(info).expect("begun");
    let _ = snapshot.finish();
}

/// Proves that a gap in a partition's offsets never reaches the disk.
#[test]
#[should_panic(expected = "have a gap")]
fn a_gap_in_offsets_is_refused() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let (mut opened, _) = reopen(&disk, options()).expect("opens");
    let at = partition(1, 0);
    let entries = [entry(at, 0, 2, 10, 0), entry(at, 3, 1, 10, 0)];
    let _ = opened.writer.append(0, 1, &entries);
}

/// A file that takes at most so many bytes at a time, and keeps what it was given.
struct Slow(std::sync::Mutex<(Vec<u8>, Vec<u64>)>, usize);

impl File for Slow {
    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).take(self.1).collect();
        let mut inner = self.0.lock().expect("sound");
        let end = offset as usize + bytes.len();
        if inner.0.len() < end {
            inner.0.resize(end, 0);
        }
        inner.0[offset as usize..end].copy_from_slice(&bytes);
        inner.1.push(offset);
        Ok(bytes.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Proves that partial writes end in the same bytes, whatever their size, and go on at block starts where they can.
#[test]
fn short_writes_go_on_at_block_starts() {
    let pieces: Vec<Vec<u8>> = (0..1500u32).map(|n| vec![n as u8; 1 + (n % 90) as usize]).collect();
    let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    for step in [1000, 4096, 5000, 9000, 100_000] {
        let file = Slow(Default::default(), step);
        crate::layout::write_all(&file, &slices, 8192).expect("written");
        let (bytes, offsets) = file.0.into_inner().expect("sound");
        assert_eq!(bytes[8192..], pieces.concat());
        assert!(step < 4096 || offsets.iter().all(|offset| offset % 4096 == 0), "{step}: {offsets:?}");
    }
}
