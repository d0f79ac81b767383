//! The simulator as a program: `cargo xtask prove power-cut` runs it, and so does whoever looks at one seed.
//!
//! Progress and broken promises go to standard error; the last line of standard output is one JSON object; the
//! exit code is 0 if every promise held.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use std::sync::Arc;

use ottla_sim::flips::{self, Folder};
use ottla_sim::power_cut::{self, Bug, Options, Report};
use serde_json::{Map, Value, json};

/// Client, core and log on a machine that loses power.
#[derive(Parser)]
#[command(max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run many seeds
    Sweep {
        /// How many
        #[arg(long, default_value_t = 2_000)]
        seeds: u64,
        /// The first
        #[arg(long, default_value_t = 1)]
        first: u64,
        /// Too few seeds for every fault to fire: do not ask for it
        #[arg(long)]
        smoke: bool,
    },
    /// Run one seed and tell everything
    Seed {
        /// The seed
        seed: u64,
        /// Every request and answer too
        #[arg(long)]
        journal: bool,
    },
    /// Change every byte of a folder's files, one after the other, and open and read it each time
    Flips {
        /// Whose clients have made the folder
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Of headers and directories every so many-th byte
        #[arg(long, default_value_t = 1)]
        structure_stride: usize,
        /// Of bodies, lists and what fills up blocks every so many-th byte
        #[arg(long, default_value_t = 7)]
        stride: usize,
        /// Files are cut at every so many-th length
        #[arg(long, default_value_t = 61)]
        cut_stride: usize,
        /// After every so many-th change the log goes on, is opened again and judged again
        #[arg(long, default_value_t = 31)]
        go_on_stride: usize,
    },
    /// Plant each known bug and count the seeds until it is found
    Bugs {
        /// Seeds to try for each
        #[arg(long, default_value_t = 100)]
        most: u64,
    },
}

fn main() -> ExitCode {
    let (held, result) = match Arguments::parse().command {
        Command::Sweep { seeds, first, smoke } => sweep(first, seeds, smoke),
        Command::Seed { seed, journal } => one(seed, journal),
        Command::Flips { seed, structure_stride, stride, cut_stride, go_on_stride } => {
            flips(&flips::Options {
                seed,
                structure_stride: structure_stride.max(1),
                body_stride: stride.max(1),
                cut_stride: cut_stride.max(1),
                go_on_stride: go_on_stride.max(1),
            })
        }
        Command::Bugs { most } => bugs(most),
    };
    println!("{result}");
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn sweep(first: u64, seeds: u64, smoke: bool) -> (bool, Value) {
    let (mut done, mut broken) = (0_u64, 0_u64);
    let mut progress = |report: &Report| {
        done += 1;
        if !report.is_clean() {
            broken += 1;
            eprintln!("{}", report.describe());
        }
        if done.is_multiple_of(100) || done == seeds {
            eprintln!("{done} of {seeds} seeds, {broken} broken");
        }
    };
    let report = power_cut::sweep(first..first.saturating_add(seeds), &mut progress);
    let held = if smoke { report.failed.is_empty() } else { report.is_proof() };
    let happened: Map<String, Value> =
        report.lines().into_iter().map(|(name, count)| (name, json!(count))).collect();
    let mut result = json!({
        "seeds": report.runs,
        "seeds that broke a promise": report.failed.len(),
        "disk operations": report.operations,
        "happened": happened,
    });
    if !report.failed.is_empty() {
        result["broken by seeds"] = json!(report.failed.iter().map(|failed| failed.seed).collect::<Vec<_>>());
    }
    if !smoke && !report.missing().is_empty() {
        result["never happened"] = json!(report.missing());
    }
    (held, result)
}

fn one(seed: u64, journal: bool) -> (bool, Value) {
    let report = power_cut::run(seed, Options { journal, ..Options::from_seed(seed) });
    report.journal.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("{}", report.describe());
    let result = json!({
        "seed": seed,
        "violations": report.violations,
        "operations": report.operations,
        "trace": format!("{:016x}", report.trace),
    });
    (report.is_clean(), result)
}

fn flips(options: &flips::Options) -> (bool, Value) {
    let folder = match Folder::new(options.seed) {
        Ok(folder) => Arc::new(folder),
        Err(error) => return (false, json!({ "error": error })),
    };
    let mut progress = |done: u64, of: u64| eprintln!("{done} of {of} changes");
    let report = flips::sweep(&folder, options, &mut progress);
    report.wrong.iter().take(20).for_each(|wrong| eprintln!("{wrong}"));
    let rows: Map<String, Value> = report
        .rows
        .iter()
        .map(|(place, row)| {
            let flips::Row { tried, refused, reported, read_refused, harmless, shorter, wrong, went_on } = row;
            let text = format!(
                "{tried} changes: {refused} refused at the opening, {reported} reported by it, {read_refused} refused \
                 at the read, {harmless} harmless, {shorter} ended earlier (newest file), {wrong} wrong; after {went_on} the log went on"
            );
            (place.clone(), json!(text))
        })
        .collect();
    let result = json!({
        "files": report.files,
        "bytes": report.bytes,
        "every so many-th byte": format!(
            "{} of headers and directories (one bit, then all bits), {} of bodies, lists and filling; cut at every {}th length",
            options.structure_stride, options.body_stride, options.cut_stride
        ),
        "changes": report.tried(),
        "neither detected nor harmless": report.wrong.len(),
        "changed": rows,
    });
    (report.wrong.is_empty(), result)
}

fn bugs(most: u64) -> (bool, Value) {
    let mut found = Map::new();
    for bug in Bug::ALL {
        let seeds = power_cut::seeds_until_found(bug, 1, most).map(|(seeds, _)| seeds);
        eprintln!(
            "{bug:?}: {}",
            seeds.map_or("not found".to_owned(), |seeds| format!("found after {seeds} seeds"))
        );
        found.insert(format!("{bug:?}"), json!(seeds));
    }
    (found.values().all(|seeds| !seeds.is_null()), json!({ "seeds until found": found }))
}
