//! Every step, times every outcome of the commit before it, times markers at once or late: C1 to C8 without a gap. And
//! chance: everything at once, from a seed.

use std::time::Duration;

use ottla_env::rng::Rng;
use ottla_streams::driver::{DiskImage, Driver, Outcome, Point};

use crate::ledger::Ledger;

/// Seeds per combination.
const SEEDS: u64 = 3;

/// Every point of the protocol, of a write and of a recovery, after each outcome of a commit. A point that lies on the
/// way of an outcome must have been passed: a hook that is not called would prove nothing.
#[test]
fn every_step_with_every_outcome() {
    let outcomes = [None, Some(Outcome::Committed), Some(Outcome::Aborted), Some(Outcome::Late(40))];
    let (mut runs, mut kills) = (0u64, 0u64);
    let mut passed = std::collections::BTreeMap::new();
    for point in Point::all() {
        for outcome in outcomes {
            for late in [false, true] {
                for seed in 0..SEEDS {
                    let mut ledger = run(point, outcome, late, seed);
                    if let Err(reason) = ledger.verdict() {
                        panic!("{point:?}, {outcome:?}, late markers {late}, seed {seed}: {reason}");
                    }
                    runs += 1;
                    kills += ledger.driver.kills();
                    for (point, times) in ledger.driver.passed() {
                        *passed.entry(point).or_insert(0u64) += times;
                    }
                }
            }
        }
    }
    println!("{runs} runs, {kills} kills; passages: {passed:?}");
    for point in Point::all() {
        assert!(passed.get(&point).is_some_and(|times| *times > 0), "{point:?} was never passed");
    }
    assert!(kills * 2 > runs, "too few processes died: {kills} in {runs} runs");
}

fn run(point: Point, outcome: Option<Outcome>, late: bool, seed: u64) -> Ledger {
    let delay = Duration::from_millis(if late { 60 } else { 0 });
    let mut ledger =
        Ledger::new(seed, |driver| driver.marker_delay(delay).processes(1 + (seed % 2) as usize));
    ledger.feed(30);
    ledger.driver.run().expect("it comes to rest");
    for process in 0..2 {
        if let Some(outcome) = outcome {
            ledger.driver.timeout_commit(outcome);
        }
        ledger.driver.crash_after(point, (seed + process) % 3);
    }
    if point == Point::InRecovery {
        ledger.driver.replace_disks(0, None).unwrap();
    }
    ledger.feed(50);
    ledger.work(25);
    ledger
}

/// One run of everything: what a seed makes of it is what happens.
pub(crate) fn chaos(seed: u64, set_up: impl FnOnce(Driver) -> Driver) -> Ledger {
    let mut ledger = Ledger::new(seed, |driver| {
        let delay = Duration::from_millis(seed % 5 * 20);
        set_up(driver.processes(2 + (seed % 2) as usize).marker_delay(delay))
    });
    let processes = 2 + (seed % 2);
    let points = Point::all();
    let mut images: Vec<(u64, DiskImage)> = Vec::new();
    let mut frozen = None;
    for _ in 0..24 {
        let records = ledger.rng.below(30);
        ledger.feed(records);
        let at_most = 1 + ledger.rng.below(12);
        ledger.work(at_most);
        let process = ledger.rng.below(processes);
        match ledger.rng.below(13) {
            0..=2 => {
                let (point, after) = (points[ledger.rng.index(points.len())], ledger.rng.below(4));
                ledger.driver.crash_after(point, after);
            }
            3 => {
                ledger.driver.timeout_commit(Outcome::Committed);
            }
            4 => {
                ledger.driver.timeout_commit(Outcome::Aborted);
            }
            5 => {
                let ms = ledger.rng.below(200);
                ledger.driver.timeout_commit(Outcome::Late(ms));
            }
            6 => ledger.driver.rebalance().unwrap(),
            7 if frozen.is_none() => {
                ledger.driver.freeze(process as usize).unwrap();
                frozen = Some(process);
            }
            8 => {
                if let Some(process) = frozen.take() {
                    ledger.driver.thaw(process as usize).unwrap();
                }
            }
            9 => {
                let power = ledger.rng.one_in(2);
                ledger.driver.kill(process as usize, power).unwrap();
            }
            10 => {
                if let Some(image) = ledger.driver.image(process as usize).unwrap() {
                    images.push((process, image));
                }
            }
            11 => old_disks(&mut ledger, &images),
            _ => ledger.driver.fail_writes(process as usize, 2).unwrap(),
        }
    }
    if let Some(process) = frozen {
        ledger.driver.thaw(process as usize).unwrap();
    }
    ledger
}

/// A day passes, the cleaner comes, and an old copy of a machine's disks is put back.
fn old_disks(ledger: &mut Ledger, images: &[(u64, DiskImage)]) {
    if ledger.rng.one_in(2) {
        ledger.driver.skip(Duration::from_secs(25 * 3600)).unwrap();
    }
    for changelog in ledger.driver.changelogs().unwrap() {
        ledger.driver.compact(&changelog).unwrap();
    }
    if !images.is_empty() {
        let (process, image) = &images[ledger.rng.index(images.len())];
        ledger.driver.replace_disks(*process as usize, Some(image)).unwrap();
    }
}

/// Everything by chance, many seeds. `CRASH_SEED` runs one of them, `CRASH_SEEDS` so many.
#[test]
fn chaos_by_seed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("CRASH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CRASH_SEEDS").unwrap_or(150),
    };
    let (mut kills, mut rollbacks, mut refusals, mut rebuilds) = (0, 0, 0, 0);
    for seed in seeds.clone() {
        let mut ledger = chaos(seed, |driver| driver);
        ledger.prove();
        for counts in ledger.driver.counts() {
            kills += counts.kills;
            rollbacks += counts.rollbacks;
            refusals += counts.not_owner;
            rebuilds += counts.rebuilds;
        }
    }
    println!(
        "seeds {seeds:?}: {kills} kills, {rollbacks} rollbacks, {refusals} refusals, {rebuilds} rebuilds"
    );
}

/// The same seed twice is the same run: a failing seed can be kept.
#[test]
fn a_seed_is_a_run() {
    for seed in [3, 4] {
        let trace = |_| {
            let mut ledger = chaos(seed, |driver| driver);
            let verdict = ledger.verdict();
            (format!("{verdict:?} {:?}", ledger.driver.counts()), ledger.driver.read_all("out").unwrap())
        };
        assert!(trace(0) == trace(1), "seed {seed} has two traces");
    }
}

/// At least once: after crashes nothing is missing; something may be there twice.
#[test]
fn at_least_once_loses_nothing() {
    let mut repeated = 0;
    for seed in 0..20 {
        let mut ledger = Ledger::new(seed, |driver| driver.at_least_once().processes(2));
        for _ in 0..6 {
            ledger.feed(30);
            ledger.work(8);
            let points = Point::all();
            let point = points[ledger.rng.index(points.len())];
            ledger.driver.crash_at(point);
            ledger.work(8);
        }
        ledger.driver.run().unwrap();
        assert_eq!(ledger.driver.refused(), Vec::<String>::new(), "seed {seed}");
        let mut told = std::collections::BTreeMap::new();
        for found in ledger.driver.read_all("out").unwrap() {
            *told.entry(String::from_utf8(found.record.key.unwrap().to_vec()).unwrap()).or_insert(0) += 1;
        }
        for (key, sent) in &ledger.sent {
            assert!(
                told.get(key) >= Some(sent),
                "seed {seed}: {key} has {:?} results of {sent}",
                told.get(key)
            );
            repeated += told[key] - sent;
        }
    }
    println!("{repeated} results were repeated");
}
