//! The power-cut proof: many seeds, each a run of clients against a broker whose machine loses power, whose disk
//! fails, whose process is killed and paused, with a judgement of the whole history at the end of each.
//!
//! A seed is the whole run: the same seed gives the same trace, on every machine. A failing seed is kept as a test.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ottla_env::disk::sim::FaultCounts;
use ottla_env::spawn;

pub use crate::history::Counts;
pub use crate::options::{Bug, Options};

use crate::world::{Outcome, World};

/// Most broken promises that are kept of one run.
const VIOLATIONS_MAX: usize = 10;

/// One run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The options it was expanded to.
    pub options: Options,
    /// Broken promises; empty when all is well.
    pub violations: Vec<String>,
    /// What happened.
    pub counts: Counts,
    /// Faults that fired.
    pub faults: FaultCounts,
    /// Hash over every disk operation and every answer.
    pub trace: u64,
    /// Disk operations.
    pub operations: u64,
    /// Requests and answers in words, with `Options::journal`.
    pub journal: Vec<String>,
}

impl Report {
    /// Whether nothing was broken.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Seed, broken promises and options, for people.
    pub fn describe(&self) -> String {
        let violations = self.violations.join("\n  ");
        format!("seed {}: {} broken\n  {violations}\n  {:?}", self.seed, self.violations.len(), self.options)
    }
}

/// Runs one seed. A panic of the code under test is a broken promise too.
pub fn run(seed: u64, options: Options) -> Report {
    let for_run = options.clone();
    let outcome = catch_unwind(AssertUnwindSafe(move || World::new(seed, for_run).run()));
    let outcome = outcome.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        Outcome {
            violations: vec![format!("panic: {text}")],
            counts: Counts::default(),
            faults: FaultCounts::default(),
            trace: 0,
            operations: 0,
            journal: Vec::new(),
        }
    });
    let Outcome { mut violations, counts, faults, trace, operations, journal } = outcome;
    violations.truncate(VIOLATIONS_MAX);
    Report { seed, options, violations, counts, faults, trace, operations, journal }
}

/// Many runs.
#[derive(Clone, Debug, Default)]
pub struct SweepReport {
    /// Runs made.
    pub runs: u64,
    /// Those that broke a promise.
    pub failed: Vec<Report>,
    /// What happened, summed.
    pub counts: Counts,
    /// Faults that fired, summed.
    pub faults: FaultCounts,
    /// Disk operations, summed.
    pub operations: u64,
}

impl SweepReport {
    /// Faults and events that never happened: such a sweep proves too little.
    pub fn missing(&self) -> Vec<String> {
        let faults = self.faults.iter().filter(|(_, count)| *count == 0).map(|(fault, _)| fault.to_string());
        let counts = self.counts.named().into_iter().filter(|(_, count)| *count == 0);
        faults.chain(counts.map(|(name, _)| name.to_owned())).collect()
    }

    /// Whether nothing was broken and everything happened.
    pub fn is_proof(&self) -> bool {
        self.failed.is_empty() && self.missing().is_empty()
    }

    /// Name and count of everything that happened, faults first.
    pub fn lines(&self) -> Vec<(String, u64)> {
        let faults = self.faults.iter().map(|(fault, count)| (fault.to_string(), count));
        let counts = self.counts.named().into_iter().map(|(name, count)| (name.to_owned(), count));
        faults.chain(counts).collect()
    }

    fn add(&mut self, report: Report) {
        self.runs += 1;
        self.counts.add(&report.counts);
        self.faults.add(&report.faults);
        self.operations += report.operations;
        if !report.is_clean() {
            self.failed.push(report);
        }
    }
}

/// Runs every seed of the range with the options it expands to, on as many threads as the machine has;
/// `progress` hears of each run in the order of the seeds.
pub fn sweep(seeds: Range<u64>, progress: &mut dyn FnMut(&Report)) -> SweepReport {
    sweep_with(seeds, Options::from_seed, progress)
}

/// Runs every seed of the range with options of the caller's choice.
pub fn sweep_with(
    seeds: Range<u64>,
    options: fn(u64) -> Options,
    progress: &mut dyn FnMut(&Report),
) -> SweepReport {
    let mut sum = SweepReport::default();
    let threads = spawn::parallelism() as u64;
    let mut next = seeds.start;
    while next < seeds.end {
        let group: Vec<u64> = (next..seeds.end.min(next + threads)).collect();
        next += group.len() as u64;
        let handles: Vec<_> = group
            .into_iter()
            .map(|seed| {
                spawn::thread("sim", move || run(seed, options(seed)))
                    .expect("the machine has room for a thread")
            })
            .collect();
        for handle in handles {
            let report = handle.join().expect("a run catches its panics");
            progress(&report);
            sum.add(report);
        }
    }
    sum
}

/// How many seeds, from `first` on, it took to find a planted bug; none when `most` were not enough.
pub fn seeds_until_found(bug: Bug, first: u64, most: u64) -> Option<(u64, Report)> {
    (0..most).find_map(|tried| {
        let seed = first + tried;
        let report = run(seed, Options::with_bug(seed, bug));
        (!report.is_clean()).then_some((tried + 1, report))
    })
}
