//! Rows about processes, coordinators and disks: C1 to C16, C21 to C23.

use std::time::Duration;

use ottla_streams::driver::{Outcome, Point};
use ottla_streams::worker::Step;

use crate::ledger::Ledger;

/// Seeds of each row.
const SEEDS: std::ops::Range<u64> = 0..12;

/// Work, a crash at that point, more work, and everything holds. Gives the ledgers for more questions.
fn crash(point: impl Into<Point> + Copy, set_up: impl Fn(&mut Ledger)) -> Vec<Ledger> {
    let each = |seed| {
        let mut ledger =
            Ledger::new(seed, |driver| driver.marker_delay(Duration::from_millis(seed % 3 * 20)));
        ledger.feed(40);
        ledger.driver.run().expect("it comes to rest");
        set_up(&mut ledger);
        ledger.driver.crash_after(point, seed % 3);
        ledger.feed(60);
        ledger.work(30);
        for _ in 0..10 {
            ledger.feed(2);
            ledger.work(10);
        }
        ledger.prove();
        assert_eq!(ledger.driver.kills(), 1, "seed {seed}: it died at {:?}", point.into());
        ledger
    };
    SEEDS.map(each).collect()
}

/// C1: killed while processing, or before anything is flushed. The open transaction is aborted when the process takes
/// its id again; the stores stand at the old boundary and nothing is replayed.
#[test]
fn c1_kill_while_processing() {
    for step in [Step::AfterSend, Step::BeforeFlush, Step::AfterFlush] {
        for ledger in crash(step, |_| {}) {
            assert_eq!(ledger.replayed(), 0, "the disk was at the target already");
        }
    }
}

/// C2: killed when offsets are pending. Whoever reads them waits until the transaction is aborted, and goes on from
/// the old ones.
#[test]
fn c2_kill_with_pending_offsets() {
    for step in [Step::AfterOffsets, Step::BeforeEndTxn] {
        for ledger in crash(step, |_| {}) {
            assert_eq!(ledger.replayed(), 0, "the disk was at the target already");
        }
    }
}

/// C3: killed after the commit was sent and before its answer: committed, never arrived, or on its way. Recovery
/// finds the new or the old boundary in the log.
#[test]
fn c3_kill_while_the_commit_is_under_way() {
    for outcome in [Outcome::Committed, Outcome::Aborted, Outcome::Late(30)] {
        let ledgers = crash(Step::BeforeReinit, |ledger| {
            for _ in 0..3 {
                ledger.driver.timeout_commit(outcome);
            }
        });
        if outcome == Outcome::Committed {
            assert!(ledgers.iter().all(|ledger| ledger.replayed() > 0), "what was committed is replayed");
        }
    }
}

/// C4: killed between the decision and the write to the store: the changelog is replayed up to the target.
#[test]
fn c4_kill_before_the_store_is_written() {
    for ledger in crash(Step::AfterEndTxn, |_| {}) {
        assert!(ledger.replayed() > 0);
    }
}

/// C5: killed in the middle of applying, between two tasks and inside a batch: each store is at the old or the new
/// boundary, and comes to the new one.
#[test]
fn c5_kill_while_the_stores_are_written() {
    crash(Step::InApply, |_| {});
    crash(Point::InWrite, |_| {});
}

/// C6: the power goes after stores were written: the newest batches are lost, whole. The replay is longer, no more.
#[test]
fn c6_power_cut_after_the_stores_were_written() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver.processes(2));
        for _ in 0..4 {
            ledger.feed(40);
            ledger.work(20);
            ledger.driver.kill((seed % 2) as usize, true).unwrap();
        }
        ledger.prove();
        assert!(ledger.driver.kills() >= 4);
    }
}

/// C7: killed inside a recovery, between its pieces and inside its writes, again and again: each restore batch carries
/// its position, so it goes on where it was.
#[test]
fn c7_kill_while_restoring() {
    for point in [Point::InRecovery, Point::InWrite] {
        for seed in SEEDS {
            let mut ledger = Ledger::new(seed, |driver| driver);
            ledger.feed(100);
            ledger.driver.run().unwrap();
            for passages in 0..4 {
                if passages == 0 {
                    ledger.driver.replace_disks(0, None).unwrap();
                }
                ledger.driver.crash_after(point, passages);
                ledger.work(4);
            }
            ledger.feed(10);
            ledger.prove();
            assert!(ledger.driver.kills() > 1, "seed {seed}: it died while restoring");
        }
    }
}

/// C8: the answer of the commit is lost and the process lives: it takes its id again and reads the witness. A commit
/// that was carried out is applied without any restore; one that was not is processed again.
#[test]
fn c8_the_outcome_is_not_known() {
    for outcome in [Outcome::Committed, Outcome::Aborted, Outcome::Late(5), Outcome::Late(3000)] {
        for seed in SEEDS {
            let mut ledger =
                Ledger::new(seed, |driver| driver.marker_delay(Duration::from_millis(seed % 4 * 15)));
            ledger.feed(30);
            ledger.driver.run().unwrap();
            for _ in 0..3 {
                ledger.driver.timeout_commit(outcome);
                ledger.feed(30);
                ledger.work(10);
            }
            ledger.prove();
            assert_eq!(ledger.replayed(), 0, "seed {seed}: nothing is restored");
            assert_eq!(ledger.driver.kills(), 0);
            let rolled_back = ledger.driver.counts()[0].rollbacks;
            match outcome {
                Outcome::Committed => assert_eq!(rolled_back, 0),
                Outcome::Aborted => assert_eq!(rolled_back, 3),
                Outcome::Late(_) => {}
            }
        }
    }
}

/// C9: a process that stood still comes back and commits with an old generation: it is refused, drops its overlay,
/// and keeps its store.
#[test]
fn c9_a_zombie_is_refused() {
    let mut refused = 0;
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver.processes(3));
        ledger.feed(60);
        ledger.driver.run().unwrap();
        ledger.feed(60);
        ledger.work(2);
        ledger.driver.freeze(0).unwrap();
        ledger.feed(60);
        ledger.work(30);
        ledger.driver.thaw(0).unwrap();
        ledger.feed(20);
        ledger.work(30);
        ledger.prove();
        refused += ledger.driver.counts()[0].not_owner;
        assert_eq!(ledger.driver.kills(), 0);
    }
    assert!(refused > 0, "no zombie tried to commit");
}

/// C10: as C9 when nothing but timers has fired: the offsets are in the transaction all the same, and are refused.
#[test]
fn c10_a_zombie_with_timers_only_is_refused() {
    let mut refused = 0;
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver.processes(2));
        ledger.feed(60);
        ledger.driver.run().unwrap();
        ledger.driver.freeze(0).unwrap();
        ledger.driver.advance(Duration::from_secs(1)).unwrap();
        ledger.driver.thaw(0).unwrap();
        ledger.driver.advance(Duration::from_secs(1)).unwrap();
        ledger.feed(20);
        ledger.prove();
        refused += ledger.driver.counts()[0].not_owner;
    }
    assert!(refused > 0, "no zombie tried to commit");
}

/// C11: the process stands still for longer than its transaction may take. The coordinator has aborted it; the worker
/// rolls back, takes its id again and goes on. Nothing is restored.
#[test]
fn c11_the_broker_aborts_a_transaction_that_takes_too_long() {
    let mut rolled_back = 0;
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| {
            driver.transaction_timeout(Duration::from_secs(2)).commit_interval(Duration::from_millis(900))
        });
        ledger.feed(40);
        ledger.driver.run().unwrap();
        ledger.feed(40);
        for _ in 0..3 {
            ledger.driver.round().unwrap();
        }
        ledger.driver.freeze(0).unwrap();
        ledger.driver.skip(Duration::from_secs(3)).unwrap();
        ledger.driver.thaw(0).unwrap();
        ledger.feed(20);
        ledger.prove();
        assert_eq!(ledger.replayed(), 0);
        assert_eq!(ledger.driver.failures(), Vec::<String>::new());
        rolled_back += ledger.driver.counts()[0].rollbacks;
    }
    assert!(rolled_back > 0, "no transaction was open");
}

/// C12: tasks get a new owner while the old one's transaction is open and has no offsets yet. The new owner does not
/// wait for it; records above the target belong to a loser.
#[test]
fn c12_a_new_owner_while_the_old_transaction_is_open() {
    for seed in SEEDS {
        let mut ledger =
            Ledger::new(seed, |driver| driver.processes(2).commit_interval(Duration::from_secs(3600)));
        ledger.driver.set_restarts(false).unwrap();
        ledger.feed(60);
        ledger.work(6);
        ledger.driver.freeze(0).unwrap();
        ledger.work(20); // the new owner works, above an open transaction that nobody ends
        ledger.driver.thaw(0).unwrap();
        ledger.feed(20);
        ledger.prove();
    }
}

/// C13: offsets are visible and the changelog's marker is not yet there, or an older stranger's transaction is open
/// below the target: recovery waits until the log is decided up to the target, and restores all of it.
#[test]
fn c13_the_changelog_is_not_decided_up_to_the_target() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver.marker_delay(Duration::from_millis(2000)));
        ledger.feed(40);
        ledger.driver.run().unwrap();
        let changelogs = ledger.driver.changelogs().unwrap();
        for changelog in &changelogs {
            let record = ottla_streams::record::RawRecord { key: Some("x".into()), ..Default::default() };
            ledger.driver.stranger(changelog, 1, record).unwrap();
        }
        ledger.driver.crash_at(Step::AfterEndTxn);
        ledger.feed(40);
        ledger.work(200);
        assert_eq!(ledger.driver.kills(), 1);
        ledger.driver.replace_disks(0, None).unwrap();
        ledger.driver.advance(Duration::from_secs(20)).unwrap();
        for changelog in &changelogs {
            ledger.driver.end_stranger(changelog, 1, false).unwrap();
        }
        ledger.prove();
    }
}

/// C14: the disk refuses a boundary that is committed: the task waits and tries again, the others run, and nothing is
/// lost or rolled back.
#[test]
fn c14_the_disk_is_full() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver);
        ledger.feed(40);
        ledger.driver.run().unwrap();
        ledger.driver.fail_writes(0, 5).unwrap();
        ledger.feed(40);
        ledger.work(30);
        ledger.prove();
        let counts = &ledger.driver.counts()[0];
        assert!(counts.parked > 0, "no task had to wait");
        assert_eq!((counts.rollbacks, counts.kills, counts.replayed), (0, 0, 0));
    }
}

/// C14, and the process dies while a task waits for its disk: the boundary is in the changelog.
#[test]
fn c14_the_disk_is_full_and_then_the_process_dies() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver);
        ledger.feed(40);
        ledger.driver.run().unwrap();
        ledger.driver.fail_writes(0, 1000).unwrap();
        ledger.feed(40);
        ledger.work(30);
        ledger.driver.kill(0, false).unwrap();
        ledger.driver.fail_writes(0, 0).unwrap();
        ledger.feed(10);
        ledger.prove();
        assert!(ledger.replayed() > 0);
    }
}

/// C14, and the disk goes on refusing: the task's stores are opened anew, and it goes on from its committed boundary by
/// what the changelog has. An engine that does not recover by itself keeps no task waiting for ever.
#[test]
fn c14_the_disk_goes_on_refusing() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver);
        ledger.feed(40);
        ledger.driver.run().unwrap();
        ledger.driver.fail_writes(0, u32::MAX).unwrap();
        ledger.feed(40);
        ledger.driver.advance(Duration::from_secs(12)).unwrap();
        let counts = &ledger.driver.counts()[0];
        assert!(counts.parked > 0 && counts.reopened > 0, "{counts:?}");
        ledger.driver.fail_writes(0, 0).unwrap();
        ledger.feed(10);
        ledger.prove();
        assert_eq!(ledger.driver.counts()[0].kills, 0);
        assert!(ledger.replayed() > 0);
    }
}

/// C14 and C16 while a record is processed: a store cannot be read, because the disk refuses or since it is damaged. The
/// record is not to blame: nothing is set apart or left out, the task starts again from its boundary, rebuilt beside
/// when it must be.
#[test]
fn c14_c16_a_store_cannot_be_read() {
    for (seed, damaged) in SEEDS.flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut ledger = Ledger::new(seed, |driver| driver);
        ledger.feed(40);
        ledger.driver.run().unwrap();
        ledger.driver.fail_reads(0, 3, damaged).unwrap();
        ledger.feed(40);
        ledger.prove();
        let counts = &ledger.driver.counts()[0];
        assert_eq!((counts.set_apart, counts.kills), (0, 0), "{counts:?}");
        assert!(if damaged { counts.rebuilds > 0 } else { counts.reopened > 0 }, "{counts:?}");
    }
}

/// C15: the folder is gone, or the tasks come to a host that never had them: everything is restored from the log.
#[test]
fn c15_the_disks_are_lost() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver.processes(2));
        ledger.feed(80);
        ledger.driver.run().unwrap();
        ledger.driver.replace_disks((seed % 2) as usize, None).unwrap();
        ledger.feed(20);
        ledger.work(5);
        ledger.driver.rebalance().unwrap();
        ledger.feed(20);
        ledger.prove();
        assert!(ledger.replayed() > 0);
    }
}

/// C16: a store cannot be read: it is set aside, and a new one is restored beside it.
#[test]
fn c16_a_store_is_damaged() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver);
        ledger.feed(80);
        ledger.driver.run().unwrap();
        ledger.driver.kill(0, false).unwrap();
        ledger.driver.damage(0).unwrap();
        ledger.feed(20);
        ledger.prove();
        assert!(ledger.rebuilds() >= 4, "every task of the first sub-topology, at least");
    }
}

/// C21: a second process with the same identity: whoever takes the id later wins, the other is told so and stops.
#[test]
fn c21_an_identity_that_is_used_twice() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver);
        ledger.feed(60);
        ledger.work(3);
        ledger.driver.set_restarts(false).unwrap();
        ledger.driver.clone_process(0).unwrap();
        ledger.feed(60);
        ledger.work(60);
        let failures = ledger.driver.failures();
        assert!(failures.len() <= 1, "one of them goes on: {failures:?}");
        assert!(failures.iter().all(|reason| reason.contains("taken over")), "{failures:?}");
        ledger.prove();
        assert_eq!(ledger.driver.failures().len(), 1, "seed {seed}");
    }
}

/// C22: coordinator and leaders do not answer at any step, then answers get lost: it is tried again, and what was
/// committed is found out.
#[test]
fn c22_coordinators_and_leaders_fail_over() {
    for seed in SEEDS {
        let mut ledger = Ledger::new(seed, |driver| driver);
        for _ in 0..6 {
            let some =
                |ledger: &mut Ledger| u32::try_from(ottla_env::rng::Rng::below(&mut ledger.rng, 3)).unwrap();
            let (flushes, offsets, inits) = (some(&mut ledger), some(&mut ledger), some(&mut ledger));
            ledger.driver.fail_requests(0, flushes, offsets, inits).unwrap();
            if flushes == 1 {
                ledger.driver.timeout_commit(Outcome::Committed);
            } else if offsets == 1 {
                ledger.driver.timeout_commit(Outcome::Aborted);
            }
            ledger.feed(30);
            ledger.work(15);
        }
        ledger.prove();
        assert_eq!((ledger.driver.kills(), ledger.replayed()), (0, 0));
    }
}
