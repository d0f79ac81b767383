//! `ottla demo`: exactly once, shown by force.
//!
//! ```text
//! lines -> source -> `orders` -> workers -> `results` -> verdict
//!             \          broker          /
//!              +---- SIGKILL at random --+
//! ```
//!
//! Every box is a process of its own. The source writes lines in transactions, with its position in them; workers
//! read, transform and write, with their offsets in the transaction. The verdict is recomputed from the two topics
//! alone. `--at-least-once` runs the same without transactions, and shows the duplicates that they prevent.

pub(crate) mod broker;
mod children;
mod display;
mod lines;
mod live;
mod plan;
mod scan;
pub(crate) mod source;
mod stage;
mod verdict;
pub(crate) mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ottla_env::rng::{OsRng, Rng, SeededRng};
use ottla_env::{files, time};
use tokio::signal::unix::{SignalKind, signal};

use crate::output;
use display::Display;
use lines::Input;
use plan::Plan;
use stage::Stage;
use verdict::Verdict;

/// The topic that the source writes.
const INPUT_TOPIC: &str = "orders";
/// The topic that the workers write.
const OUTPUT_TOPIC: &str = "results";
/// The group whose offsets are the workers' positions.
const WORKERS_GROUP: &str = "demo-workers";
/// The group whose offset on partition 0 of the input topic is the source's line.
const SOURCE_GROUP: &str = "demo-source";

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla demo                              five kills, in under a minute
  ottla demo --kills 20 --seed 7
  ottla demo --input /usr/share/dict/words
  ottla demo --at-least-once              the same without transactions: duplicates
  ottla demo --json | tail -n 1

Exit code 1 when a record was lost, duplicated, torn from its transaction, reordered or changed.
With --at-least-once duplicates and what follows from them are what is to be seen: only a loss is a
failure.")]
pub(crate) struct Options {
    /// How many SIGKILLs, spread over the run; broker, source and workers are hit in turn, then at random
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=10_000))]
    kills: u32,
    /// Seed of everything random; chosen and printed when not given
    #[arg(long)]
    seed: Option<u64>,
    /// Every line of this file is a record; without it orders are made up
    #[arg(long, value_name = "FILE", conflicts_with = "records")]
    input: Option<PathBuf>,
    /// How many orders are made up
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    records: u64,
    /// How many keys the records have
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// How many worker processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: u32,
    /// Without transactions: offsets are committed after the records are written
    #[arg(long)]
    at_least_once: bool,
    /// Print the verdict as the last line, one JSON object; progress goes to standard error
    #[arg(long)]
    json: bool,
    /// Keep the folder with data and logs
    #[arg(long)]
    keep: bool,
}

/// Longest without progress before the run is given up.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// How often the display changes and processes are looked at.
const STEP: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let seed = options.seed.unwrap_or_else(|| OsRng.next_u64() % 1_000_000);
    let input = Input::open(options.input.as_deref(), options.records, options.keys, seed)?;
    let folder =
        files::create_scratch_folder("ottla-demo").context("cannot make a folder for the demonstration")?;
    let result = play(&options, &input, seed, &folder).await;
    let passed = matches!(&result, Ok(verdict) if verdict.passed());
    if options.keep || !passed {
        output::note(&format!("data and logs are kept in {}", folder.display()));
    } else {
        files::remove_tree(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let verdict = result?;
    if options.json {
        output::json(&verdict.json())?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn play(options: &Options, input: &Input, seed: u64, folder: &std::path::Path) -> Result<Verdict> {
    let mut rng = SeededRng::new(seed);
    let mut plan = Plan::new(options.kills, options.workers, &mut rng);
    let mut display = Display::new(options.json);
    let mode = if options.at_least_once { "at least once" } else { "exactly once" };
    display.line(&format!(
        "{mode}: {} records through a source, a broker and {} workers; {} kills, seed {seed}",
        input.records(),
        options.workers,
        options.kills,
    ));
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut stage = Stage::build(options, input, seed, folder).await?;
    let started = time::now();
    let mut progress_at = started;
    let mut seen = 0;
    while stage.live.seen() < input.records() || plan.has_more() {
        tokio::select! {
            advanced = stage.live.advance(STEP) => advanced?,
            _ = interrupt.recv() => bail!("interrupted"),
        }
        if stage.live.seen() > seen {
            seen = stage.live.seen();
            progress_at = time::now();
        }
        stage.revive_ended(&mut display)?;
        let done = stage.live.seen() as f64 / input.records() as f64;
        if let Some(victim) = plan.due(done) {
            time::sleep(Duration::from_millis(rng.below(40))).await;
            stage.strike(victim, &mut rng, &mut display).await?;
            progress_at = time::now();
        }
        display.draw(&stage.picture(input.records(), started.elapsed()));
        if progress_at.elapsed() > STUCK_AFTER {
            bail!("nothing moved for {} s; the logs say why", STUCK_AFTER.as_secs());
        }
    }
    display.end();
    stage.finish().await?;
    let scans = scan::both(stage.bootstrap(), input).await?;
    let verdict = Verdict::of(options, seed, input, &scans, &stage.kills, started.elapsed());
    verdict.show(&mut display);
    Ok(verdict)
}
