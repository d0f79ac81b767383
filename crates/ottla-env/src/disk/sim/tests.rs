//! What the simulated machine promises, and what it takes away.

use super::*;
use crate::rng::OsRng;
use std::collections::BTreeSet;

fn write(file: &Arc<dyn File>, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_vectored_at(&[IoSlice::new(bytes)], offset)
}

fn read(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name).expect("there");
    let mut bytes = vec![0; usize::try_from(file.len().expect("known")).expect("small")];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

/// A named and synced file of `len` bytes of 1.
fn synced_file(disk: &SimDisk, name: &str, len: usize) -> Arc<dyn File> {
    let file = disk.create(name).expect("created");
    write(&file, &vec![1; len], 0).expect("written");
    file.sync_data().expect("synced");
    disk.sync_dir().expect("synced");
    file
}

/// Proves that whatever a crash does, synced bytes and names stay, and that unsynced bytes are old or new.
#[test]
fn synced_bytes_survive_every_crash() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..300 {
        let disk = SimDisk::new(seed);
        let file = synced_file(&disk, "a", 10_000);
        write(&file, &[2; 9_000], 8_000).expect("written");
        write(&file, &[3; 2_000], 16_000).expect("written");
        let disk = disk.crash(&mut SeededRng::new(seed));
        assert!(write(&file, &[9], 0).is_err(), "the old process is gone");
        let bytes = read(&disk, "a");
        assert!(bytes.len() >= 10_000 && bytes.len() <= 18_000);
        assert!(bytes[..8_000].iter().all(|byte| *byte == 1));
        assert!(bytes[8_000..10_000].iter().all(|byte| [1, 2].contains(byte)));
        assert!(bytes[10_000..].iter().all(|byte| [0, 2, 3].contains(byte)));
        outcomes.insert(bytes);
    }
    assert!(outcomes.len() > 30, "only {} different outcomes", outcomes.len());
}

/// Proves that names without a sync of the folder are kept or lost in every combination.
#[test]
fn unsynced_names_are_kept_or_lost() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..300 {
        let disk = SimDisk::new(seed);
        synced_file(&disk, "old", 10);
        disk.rename("old", "new").expect("renamed");
        disk.create("made").expect("created");
        assert_eq!(disk.list().expect("listed"), ["made", "new"]);
        outcomes.insert(disk.crash(&mut SeededRng::new(seed)).list().expect("listed"));
    }
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let all = [of(&["old"]), of(&["new"]), of(&["made", "old"]), of(&["made", "new"])];
    assert_eq!(outcomes, all.into_iter().collect());
}

/// Proves that after a failed sync the next one succeeds, the cache shows the new bytes and the platter may not
/// have them, for reads past the cache and after a crash.
#[test]
fn failed_syncs_leave_clean_and_wrong_pages() {
    let (mut wrong, mut right) = (0, 0);
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let file = synced_file(&disk, "a", 4_096);
        write(&file, &[2; 4_096], 0).expect("written");
        disk.inject(Fault::SyncError, "a");
        assert!(file.sync_data().is_err());
        file.sync_data().expect("the second sync succeeds");
        let mut uncached = [0; 4_096];
        disk.open_uncached("a").expect("there").read_exact_at(&mut uncached, 0).expect("read");
        let cached = read(&disk, "a");
        let disk = disk.crash(&mut SeededRng::new(seed));
        assert_eq!(read(&disk, "a"), uncached);
        if uncached[0] == 1 && cached[0] == 2 {
            wrong += 1;
        } else {
            right += 1;
        }
        assert_eq!(disk.counts().get(Fault::SyncError), 1);
    }
    assert!(wrong > 10 && right > 10, "{wrong} wrong, {right} right");
}

/// Proves each injected fault: its error, what it leaves in the file, and its count.
#[test]
fn injected_faults_fire_once() {
    let disk = SimDisk::new(1);
    let file = synced_file(&disk, "a", 100);
    let os_error = |result: io::Result<usize>| result.expect_err("fails").raw_os_error();
    let (eio, enospc) =
        (Some(rustix::io::Errno::IO.raw_os_error()), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    disk.inject(Fault::WriteError, "b");
    write(&file, &[1; 100], 0).expect("another file's fault");
    disk.inject(Fault::WriteError, "");
    assert_eq!(os_error(write(&file, &[2; 100], 0)), eio);
    assert_eq!(read(&disk, "a"), [1; 100]);
    disk.inject(Fault::WriteErrorPartial, "a");
    assert_eq!(os_error(write(&file, &[2; 100], 0)), eio);
    disk.inject(Fault::ShortWrite, "a");
    assert!((1..100).contains(&write(&file, &[3; 100], 0).expect("short")));
    disk.inject(Fault::NoSpaceWrite, "a");
    assert_eq!(os_error(write(&file, &[2; 100], 0)), enospc);
    disk.inject(Fault::NoSpaceCreate, "c");
    assert_eq!(disk.create("c").err().and_then(|e| e.raw_os_error()), enospc);
    disk.inject(Fault::ReadError, "a");
    assert_eq!(os_error(file.read_at(&mut [0; 10], 0)), eio);
    write(&file, &[7; 100], 0).expect("written");
    disk.inject(Fault::BitFlipRead, "a");
    assert_ne!(read(&disk, "a"), [7; 100]);
    assert_eq!(read(&disk, "a"), [7; 100]);
    disk.inject(Fault::DirSyncError, "");
    assert!(disk.sync_dir().is_err() && disk.sync_dir().is_ok());
    let clock = Arc::new(ManualClock::new(0));
    disk.set_clock(Arc::clone(&clock));
    disk.inject(Fault::SlowSync, "a");
    file.sync_all().expect("slow");
    assert!(crate::clock::Clock::wall_ms(&*clock) >= 1);
    disk.set_capacity(150);
    assert_eq!(os_error(write(&file, &[1; 100], 100)), enospc);
    assert_eq!(disk.waiting_faults(), 1, "only the one for b");
    let fired: u64 = disk.counts().iter().map(|(_, count)| count).sum();
    assert_eq!(fired, 9);
}

/// Proves that a killed process loses nothing it wrote, that its lock goes with it, and that a later power cut
/// can still take what was never synced.
#[test]
fn a_kill_keeps_the_page_cache() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        let file = synced_file(&disk, "a", 10);
        let guard = disk.lock().expect("free");
        assert!(matches!(disk.lock(), Err(LockError::Held { pid: Some(1) })));
        write(&file, &[2; 10], 0).expect("written");
        let disk = disk.kill();
        disk.lock().expect("the holder is gone");
        drop(guard);
        assert_eq!(read(&disk, "a"), [2; 10]);
        let disk = disk.crash(&mut SeededRng::new(seed));
        lost += usize::from(read(&disk, "a") == [1; 10]);
    }
    assert!(lost > 5 && lost < 45, "{lost} of 50");
}

/// Proves that the machine stops where it is told, that every later operation fails, and that the operation it
/// stopped in is done or not.
#[test]
fn the_machine_stops_between_operations() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        let file = synced_file(&disk, "a", 10);
        disk.stop_after(2);
        write(&file, &[2; 10], 0).expect("the first operation");
        assert!(!disk.stopped());
        assert!(file.sync_data().is_err() && disk.stopped());
        assert!(file.read_at(&mut [0], 0).is_err() && disk.list().is_err());
        outcomes.insert(read(&disk.crash(&mut SeededRng::new(seed)), "a"));
    }
    assert!(outcomes.contains(&vec![1; 10]) && outcomes.contains(&vec![2; 10]));
}

/// Proves that the same seed and operations give the same bytes, faults and trace, and another seed does not.
#[test]
fn a_seed_is_the_whole_run() {
    let run = |seed: u64| {
        let mut rng = SeededRng::new(seed);
        let mut disk = SimDisk::new(seed);
        disk.set_plan(FaultPlan::default().with(Fault::ShortWrite, 200_000).with(Fault::SyncError, 100_000));
        synced_file(&disk.crash(&mut rng), "a", 1).sync_data().ok();
        for _ in 0..20 {
            disk = disk.crash(&mut rng);
            let file = disk.open("a").expect("there");
            for _ in 0..10 {
                let bytes = vec![rng.below(256) as u8; rng.index(9_000)];
                write(&file, &bytes, rng.below(20_000)).ok();
                if rng.one_in(4) {
                    file.sync_data().ok();
                }
            }
        }
        (disk.trace_hash(), disk.counts(), read(&disk, "a"))
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
}

/// Proves that cutting a file and growing it again leaves zeros, in the cache, on the platter and after a crash.
#[test]
fn cut_files_grow_with_zeros() {
    let disk = SimDisk::new(3);
    let file = synced_file(&disk, "a", 10_000);
    file.set_len(5_000).expect("cut");
    file.set_len(9_000).expect("grown");
    file.sync_data().expect("synced");
    let disk = disk.crash(&mut OsRng);
    let bytes = read(&disk, "a");
    assert!(
        bytes.len() == 9_000 && bytes[..5_000] == [1; 5_000] && bytes[5_000..].iter().all(|byte| *byte == 0)
    );
}
