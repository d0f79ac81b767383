//! The same over RocksDB in a folder: crashes at every step, by chance, and lost folders. A process is killed by
//! dropping its stores without a flush: what RocksDB has handed to the system is there afterwards, as after SIGKILL.

use ottla_streams::driver::{Driver, EngineChoice, Outcome, Point};
use ottla_streams::engine::rocks::{RocksSettings, RocksShared};

use crate::enumerated::chaos;
use crate::ledger::Ledger;

fn in_folder(driver: Driver, folder: &tempfile::TempDir) -> Driver {
    driver.engines(EngineChoice::Rocks(folder.path().to_owned(), RocksShared::new(RocksSettings::default())))
}

/// C1 to C8 on a real disk: every point of the protocol, of a write and of a recovery, after each outcome.
#[test]
fn every_step_on_rocksdb() {
    let mut kills = 0;
    for point in Point::all() {
        for outcome in [None, Some(Outcome::Committed), Some(Outcome::Aborted)] {
            let folder = tempfile::tempdir().unwrap();
            let mut ledger = Ledger::new(1, |driver| in_folder(driver, &folder));
            ledger.feed(20);
            ledger.driver.run().unwrap();
            if let Some(outcome) = outcome {
                ledger.driver.timeout_commit(outcome);
            }
            ledger.driver.crash_at(point);
            if point == Point::InRecovery {
                ledger.driver.kill(0, false).unwrap();
            }
            ledger.feed(20);
            ledger.work(15);
            if let Err(reason) = ledger.verdict() {
                panic!("{point:?}, {outcome:?}: {reason}");
            }
            kills += ledger.driver.kills();
        }
    }
    println!("{kills} kills");
    assert!(kills > 20);
}

/// Everything by chance on a real disk, images of old disks excepted.
#[test]
fn chaos_on_rocksdb() {
    let mut kills = 0;
    for seed in 1000..1008 {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = chaos(seed, |driver| in_folder(driver, &folder));
        ledger.prove();
        kills += ledger.driver.kills();
    }
    println!("{kills} kills");
}

/// C15 on a real disk: a process comes to an empty folder, and everything is restored from the log; C7: it is killed
/// inside the restore's writes.
#[test]
fn a_lost_folder_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::new(3, |driver| in_folder(driver.processes(2), &folder));
    ledger.feed(200);
    ledger.driver.run().unwrap();
    for passages in 0..4 {
        ledger.driver.replace_disks(0, None).unwrap();
        ledger.driver.crash_after(Point::InWrite, passages);
        ledger.work(10);
    }
    ledger.feed(10);
    ledger.prove();
    assert!(ledger.replayed() > 200);
}
