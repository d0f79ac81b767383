//! A fixed run of the log, stopped at every operation of the disk, once or twice: whatever was acknowledged is there
//! afterwards, and nothing that was not written.

use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_env::disk::sim::SimDisk;
use ottla_env::rng::SeededRng;

use super::support::{Model, entry, options, partition, reopen};
use crate::{AppendError, FrameSequence, LogOptions, Opened, SnapshotInfo};

fn small() -> LogOptions {
    LogOptions { file_bytes: 16 << 10, growth_bytes: 4 << 10, ..options() }
}

/// Opens, appends until files are sealed, runs the helper and takes snapshots, until the disk stops.
/// Reads are checked when no stop is to come.
fn run(disk: &SimDisk, model: &mut Model, check: bool) {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let Ok((mut opened, frames)) = reopen(&shared, small()) else {
        assert!(disk.stopped(), "only the stop fails an opening");
        return;
    };
    let contained = opened.report.snapshot.map_or(0, |info| info.frame_sequence.0);
    model.recovered(contained, &frames);
    if check {
        model.check_reads(&opened.reader, 1 << 20);
    }
    for step in 0..6 {
        let at = partition(1, step % 2);
        let entries =
            vec![entry(at, model.end_offset(at), 1, 700, 9), entry(at, model.end_offset(at) + 1, 1, 5000, 9)];
        let position = model.frames.len() as u64 + 1;
        match opened.writer.append(9, position, &entries) {
            Ok(sequence) => {
                model.frames.push(entries);
                assert_eq!(sequence, FrameSequence(model.frames.len() as u64));
            }
            Err(AppendError::NotWritten(_)) => return assert!(disk.stopped()),
            Err(AppendError::Unknown(_)) => {
                model.maybe = Some(entries);
                return assert!(disk.stopped());
            }
        }
        if step % 2 == 0 {
            opened.preparer.run_once();
        }
        if step == 3 {
            snapshot(&opened, model);
        }
    }
    while opened.preparer.run_once() {}
}

fn snapshot(opened: &Opened, model: &Model) {
    let sequence = FrameSequence(model.frames.len() as u64);
    let info =
        SnapshotInfo { frame_sequence: sequence, epoch: opened.epoch, position: sequence.0, shard_time: 9 };
    if let Ok(mut snapshot) = opened.snapshots.begin(info)
        && snapshot.chunk(&[1; 5000]).is_ok()
    {
        let _ = snapshot.finish(); // the disk may have stopped
    }
}

/// Number of operations of a run on a fresh disk, or on one that ran once.
fn operations(runs: usize) -> u64 {
    let (disk, mut model) = (SimDisk::new(3), Model::default());
    let mut before = 0;
    let mut rng = SeededRng::new(4);
    let mut disk = disk;
    for _ in 0..runs {
        before = disk.operations();
        run(&disk, &mut model, false);
        let after = disk.operations();
        disk = disk.crash(&mut rng);
        if after == before {
            break;
        }
        before = after - before;
    }
    before
}

/// Proves that a power cut in the middle of any operation loses nothing acknowledged and invents nothing: in the
/// first life, when the files come into being, and in the second, which recovers and appends.
#[test]
fn a_cut_at_every_operation() {
    for seed in 0..2 {
        for first in 1..=operations(1) {
            let disk = SimDisk::new(seed);
            let mut rng = SeededRng::new(seed * 1000 + first);
            let mut model = Model::default();
            disk.stop_after(first);
            run(&disk, &mut model, false);
            let disk = if first % 4 == 0 { disk.kill() } else { disk.crash(&mut rng) };
            run(&disk, &mut model, true);
            assert!(!disk.stopped());
        }
    }
}

/// Proves the same for a second cut during the recovery from a first one.
#[test]
fn a_cut_during_recovery() {
    let (first_operations, second_operations) = (operations(1), operations(2));
    for first in (1..=first_operations).step_by(7) {
        for second in (1..=second_operations).step_by(3) {
            let mut rng = SeededRng::new(first * 1000 + second);
            let mut model = Model::default();
            let disk = SimDisk::new(second);
            disk.stop_after(first);
            run(&disk, &mut model, false);
            let disk = disk.crash(&mut rng);
            disk.stop_after(second);
            run(&disk, &mut model, false);
            let disk = disk.crash(&mut rng);
            run(&disk, &mut model, true);
            assert!(!disk.stopped());
        }
    }
}
