//! `ottla prove-kill`: everything a broker acknowledged survives kill -9, whenever it comes.
//!
//! A round: idempotent and transactional writers work on a running broker and note what they are told (`history`);
//! at a random moment the broker is killed; it starts again on the same folder, sometimes killed once more while
//! it recovers; the writers, which were not told, go on and finish; then the logs are read and judged against
//! the history. The folder is the same in all rounds; from time to time, and at the end, all of it is judged again.
//!
//! With `--full-disk` a file system is filled instead (`full_disk`).
//!
//! Prints progress on standard error and, as the last line of standard output, one JSON object. Exit code 1 when
//! anything is wrong; the folder is kept then.

mod check;
mod full_disk;
mod history;
mod load;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use ottla_client::Admin;
use ottla_client::admin::NewTopic;
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::{files, time};
use serde_json::json;

use crate::broker_process::{BrokerProcess, client};
use crate::output;
use check::Checker;
use history::{History, Outcome};
use load::Load;

/// The topic of the idempotent writers.
const PLAIN: &str = "plain";
/// The topics of the transactional writers.
const TRANSACTED: [&str; 2] = ["transacted-a", "transacted-b"];
/// Partitions of each topic.
const PARTITIONS: i32 = 3;
/// Rounds after which everything is judged again.
const FULL_CHECK_EVERY: u64 = 50;
/// Violations that are named at most.
const NAMED_MAX: usize = 20;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// How many rounds, and so kills
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rounds: u64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the folder with data and logs
    #[arg(long)]
    keep: bool,
    /// Instead: fill this file system and free it under load, once a round. Its root, and nobody else's
    #[arg(long, value_name = "FOLDER")]
    full_disk: Option<PathBuf>,
}

/// Sums over rounds.
#[derive(Debug, Default)]
struct Totals {
    kills: u64,
    records: u64,
    transactions: u64,
    committed: u64,
    aborted: u64,
    unknown: u64,
    violations: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    if let Some(folder) = &options.full_disk {
        return fill(&options, folder).await;
    }
    let folder = files::create_scratch_folder("ottla-prove-kill").context("cannot make a folder")?;
    let started = time::now();
    let result = prove(&options, &folder).await;
    let clean = matches!(&result, Ok(totals) if totals.violations.is_empty());
    if clean && !options.keep {
        files::remove_tree(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    } else {
        output::note(&format!("data and logs are kept in {}", folder.display()));
    }
    let totals = result?;
    totals
        .violations
        .iter()
        .take(NAMED_MAX)
        .for_each(|violation| output::note(&format!("violation: {violation}")));
    output::json(&json!({
        "rounds": options.rounds,
        "kills": totals.kills,
        "records": totals.records,
        "transactions": totals.transactions,
        "committed": totals.committed,
        "aborted": totals.aborted,
        "unknown": totals.unknown,
        "violations": totals.violations.len(),
        "seed": options.seed,
        "seconds": started.elapsed().as_secs_f64(),
    }))?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The rounds on a file system that is filled.
async fn fill(options: &Options, folder: &Path) -> Result<ExitCode> {
    let started = time::now();
    let (totals, fills) = full_disk::prove(options.rounds, options.seed, folder).await?;
    totals
        .violations
        .iter()
        .take(NAMED_MAX)
        .for_each(|violation| output::note(&format!("violation: {violation}")));
    output::json(&json!({
        "rounds": options.rounds,
        "times the file system was filled and freed": fills.fills,
        "bytes of ballast": fills.ballast_bytes,
        "times mark 1 was reached": fills.mark_1,
        "times mark 2 was reached": fills.mark_2,
        "times there was room again": fills.room_again,
        "commits answered on the full disk": fills.commits_on_full_disk,
        "slowest of them, ms": fills.commit_ms_max,
        "kills": totals.kills,
        "starts on the full disk": fills.starts_on_full_disk,
        "starts refused for want of room": fills.starts_refused,
        "records": totals.records,
        "transactions": totals.transactions,
        "committed": totals.committed,
        "aborted": totals.aborted,
        "unknown": totals.unknown,
        "violations": totals.violations.len(),
        "seed": options.seed,
        "seconds": started.elapsed().as_secs_f64(),
    }))?;
    Ok(if totals.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn prove(options: &Options, folder: &Path) -> Result<Totals> {
    let mut rng = SeededRng::new(options.seed);
    let mut broker = BrokerProcess::start(folder, &["snapshot.log.bytes=1048576"]).await?;
    let admin = Admin::connect(client(broker.address(), "prove-kill")?).await?;
    for topic in TRANSACTED.iter().chain([&PLAIN]) {
        admin.create_topic(&NewTopic::new(*topic, PARTITIONS)).await?;
    }
    let mut checker = Checker::connect(broker.address()).await?;
    let mut totals = Totals::default();
    let mut all = History::default();
    for round in 1..=options.rounds {
        let history = play(round, &mut broker, &mut rng, &mut totals).await?;
        totals.count(&history);
        all.add(&history);
        totals.violations.extend(history.failures.iter().cloned());
        let last = round == options.rounds;
        let full = last || round % FULL_CHECK_EVERY == 0;
        if full {
            checker.rewind();
        }
        let found = checker.check(if full { &all } else { &history }).await?;
        totals.violations.extend(found.into_iter().map(|violation| format!("round {round}: {violation}")));
        if last || round % 10 == 0 || !totals.violations.is_empty() {
            output::note(&format!(
                "round {round} of {}: {} kills, {} records, {} transactions, {} violations",
                options.rounds,
                totals.kills,
                totals.records,
                totals.transactions,
                totals.violations.len()
            ));
        }
        if totals.violations.len() >= NAMED_MAX {
            break;
        }
    }
    Ok(totals)
}

/// One round, up to the moment when all writers have finished.
async fn play(
    round: u64,
    broker: &mut BrokerProcess,
    rng: &mut SeededRng,
    totals: &mut Totals,
) -> Result<History> {
    let load = Load::start(broker.address(), round, rng)?;
    time::sleep(Duration::from_millis(rng.between(30, 400))).await;
    load.crash_clients(rng);
    broker.kill()?;
    totals.kills += 1;
    if rng.one_in(5) {
        broker.start_briefly(Duration::from_millis(rng.below(60))).await?;
        totals.kills += 1;
    }
    broker.start_again().await?;
    time::sleep(Duration::from_millis(rng.between(20, 200))).await;
    Ok(load.stop().await)
}

impl Totals {
    fn count(&mut self, history: &History) {
        self.records += history.plain.len() as u64;
        for transaction in &history.transactions {
            self.transactions += 1;
            self.records += transaction.records.len() as u64;
            match transaction.outcome {
                Outcome::Committed => self.committed += 1,
                Outcome::Aborted => self.aborted += 1,
                Outcome::Unknown => self.unknown += 1,
            }
        }
    }
}
