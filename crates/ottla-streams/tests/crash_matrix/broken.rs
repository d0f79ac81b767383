//! Six ways to do it wrong, each of which must be seen: checks that cannot fail prove nothing.
//!
//! Each variant runs a scenario, seed by seed, until something is found; the sound design passes the same seeds.

use std::time::Duration;

use ottla_env::rng::Rng;
use ottla_streams::driver::{Broken, Driver};

use crate::enumerated::chaos;
use crate::ledger::Ledger;

/// Runs within which each variant must be caught.
const RUNS_MAX: u64 = 60;

/// Seeds until a variant is caught, and by what. A finding that only says that offsets are missing does not count:
/// the harm must show in stores, positions or results.
fn catch(broken: Broken, scenario: fn(u64, Option<Broken>) -> Ledger) -> Option<(u64, String)> {
    (0..RUNS_MAX).find_map(|seed| {
        let reason = scenario(seed, Some(broken)).verdict().err()?;
        let harm = !reason.starts_with("I3") || reason.contains("; ");
        harm.then_some((seed + 1, reason))
    })
}

fn is_caught(broken: Broken, scenario: fn(u64, Option<Broken>) -> Ledger) {
    let (runs, reason) =
        catch(broken, scenario).unwrap_or_else(|| panic!("{broken:?} was not caught in {RUNS_MAX} runs"));
    println!("{broken:?}: caught in run {runs}: {}", reason.chars().take(200).collect::<String>());
    for seed in 0..runs {
        scenario(seed, None).prove(); // the same runs, done right
    }
}

fn set_up(driver: Driver, broken: Option<Broken>) -> Driver {
    match broken {
        Some(broken) => driver.broken(broken),
        None => driver,
    }
}

/// Everything by chance.
fn by_chance(seed: u64, broken: Option<Broken>) -> Ledger {
    chaos(seed, |driver| set_up(driver, broken))
}

/// An old copy of the disks comes back after a day, and the cleaner was there meanwhile.
fn old_copy(seed: u64, broken: Option<Broken>) -> Ledger {
    let mut ledger = Ledger::new(seed, |driver| set_up(driver, broken));
    let records = 20 + ledger.rng.below(40);
    ledger.feed(records);
    ledger.driver.run().expect("it comes to rest");
    let image = ledger.driver.image(0).expect("it started").expect("disks in memory can be copied");
    let records = ledger.rng.below(30);
    ledger.feed(records);
    ledger.driver.run().expect("it comes to rest");
    ledger.driver.skip(Duration::from_secs(25 * 3600)).expect("it started");
    for changelog in ledger.driver.changelogs().expect("it started") {
        ledger.driver.compact(&changelog).expect("the topic is there");
    }
    ledger.driver.replace_disks(0, Some(&image)).expect("it started");
    ledger
}

/// Stores written before the commit is asked for: an abort or a crash leaves them ahead of the log.
#[test]
fn apply_before_commit_is_caught() {
    is_caught(Broken::ApplyBeforeCommit, by_chance);
}

/// Positions in another file: a crash between the two writes leaves data and position of two boundaries.
#[test]
fn position_in_another_file_is_caught() {
    is_caught(Broken::PositionInAnotherFile, by_chance);
}

/// No offsets when only timers fired: nobody checks whether the writer still owns the task.
#[test]
fn no_offsets_for_timers_is_caught() {
    is_caught(Broken::NoOffsetsForTimers, by_chance);
}

/// Restoring to the last stable offset: committed state behind an open transaction is missed.
#[test]
fn restore_to_the_last_stable_offset_is_caught() {
    is_caught(Broken::RestoreToLastStable, by_chance);
}

/// Replaying over removed tombstones: deleted keys come back.
#[test]
fn ignoring_the_tombstone_horizon_is_caught() {
    is_caught(Broken::IgnoreHorizon, old_copy);
}

/// Stores flushed apart without a write-ahead log: each comes back at another moment.
#[test]
fn flushing_stores_apart_is_caught() {
    is_caught(Broken::FlushApart, by_chance);
}
