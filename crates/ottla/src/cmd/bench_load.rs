//! `ottla bench-load`: many connections, parked fetches and group members from one process, over our own wire code.
//!
//! For `cargo xtask bench --parts load` and `--parts recovery`: each scenario prints one JSON object. It speaks the protocol as it is, so
//! that it can be pointed at Apache Kafka too. With the broker's process id it measures the broker's memory and
//! processor time as well.

mod classic;
mod connections;
mod consumer;
mod recovery;
mod wire;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use ottla_env::rng::{OsRng, Rng};
use ottla_env::{process, time};
use serde_json::json;

use crate::output;
use wire::Wire;

/// How long the broker rests before its memory is read, and how long its processor time is watched.
const REST: Duration = Duration::from_secs(2);
const WATCH: Duration = Duration::from_secs(10);
/// Longest that any scenario may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// The broker
    #[arg(short, long, default_value = "127.0.0.1:9092", env = "OTTLA_BOOTSTRAP")]
    bootstrap: String,
    /// Process id of the broker, to measure its memory and processor time
    #[arg(long)]
    pid: Option<u32>,
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Clone, Debug, Subcommand)]
enum Scenario {
    /// Connections that rest
    Idle {
        #[arg(long, default_value_t = 10_000)]
        count: usize,
    },
    /// Fetches parked on one partition, then one record
    Fetches {
        #[arg(long, default_value_t = 10_000)]
        count: usize,
    },
    /// Groups of the classic protocol, all joining at once
    Classic(Groups),
    /// Groups of KIP-848, all joining at once
    Consumer(Groups),
    /// Fill a folder of its own broker, kill that in the middle of everything, and start it again
    Recovery(recovery::Recovery),
    /// Many producers and open transactions in a broker of its own: memory, pauses, start
    Producers(recovery::Producers),
}

#[derive(Clone, Copy, Debug, Args)]
struct Groups {
    /// Groups
    #[arg(long, default_value_t = 1)]
    groups: usize,
    /// Members of each
    #[arg(long, default_value_t = 500)]
    members: usize,
}

/// Where the broker is, and what it uses.
#[derive(Clone)]
struct Target {
    bootstrap: String,
    pid: Option<u32>,
}

impl Target {
    /// Resident memory in bytes, 0 when the process is not known.
    fn memory(&self) -> Result<u64> {
        self.pid.map_or(Ok(0), |pid| process::resident_bytes(pid).context("memory of the broker"))
    }

    /// Processor time used so far, seconds.
    fn processor(&self) -> Result<f64> {
        let time = self.pid.map_or(Ok(Duration::ZERO), process::cpu_time);
        Ok(time.context("processor time of the broker")?.as_secs_f64())
    }

    /// Percent of one processor that the broker uses while nothing is asked of it.
    async fn watch(&self) -> Result<f64> {
        let before = self.processor()?;
        time::sleep(WATCH).await;
        Ok((self.processor()? - before) / WATCH.as_secs_f64() * 100.0)
    }
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    process::raise_open_files_max().context("cannot raise the limit of open files")?;
    let target = Target { bootstrap: options.bootstrap, pid: options.pid };
    let wanted = match &options.scenario {
        Scenario::Idle { count } | Scenario::Fetches { count } => *count,
        Scenario::Classic(groups) | Scenario::Consumer(groups) => groups.groups * groups.members,
        Scenario::Recovery(_) | Scenario::Producers(_) => 0,
    };
    if process::open_files_max() < wanted as u64 + 64 {
        bail!(
            "{wanted} connections need that many open files, and the system allows {}",
            process::open_files_max()
        );
    }
    let figures = match &options.scenario {
        Scenario::Idle { count } => connections::idle(&target, *count).await?,
        Scenario::Fetches { count } => connections::fetches(&target, *count).await?,
        Scenario::Classic(of) => groups(&target, *of, false).await?,
        Scenario::Consumer(of) => groups(&target, *of, true).await?,
        Scenario::Recovery(options) => recovery::recovery(options).await?,
        Scenario::Producers(options) => recovery::producers(options).await?,
    };
    output::json(&figures)?;
    Ok(ExitCode::SUCCESS)
}

/// What the members of one group have agreed on.
#[derive(Default)]
struct Agreement {
    /// Per member: the generation or epoch it is in, 0 while it is in none.
    generations: Vec<AtomicUsize>,
    /// Members, as the leader sees them; or partitions that are owned, for KIP-848.
    total: AtomicUsize,
}

impl Agreement {
    fn of(members: usize) -> Self {
        Self { generations: (0..members).map(|_| AtomicUsize::new(0)).collect(), total: AtomicUsize::new(0) }
    }

    fn is_stable(&self) -> bool {
        let mut generations = self.generations.iter().map(|generation| generation.load(Ordering::Acquire));
        let first = generations.next().unwrap_or(0);
        first > 0
            && generations.all(|generation| generation == first)
            && self.total.load(Ordering::Acquire) == self.generations.len()
    }
}

/// Lets every member of every group join at once; how long until all groups are stable, and what that costs.
async fn groups(target: &Target, of: Groups, is_consumer: bool) -> Result<serde_json::Value> {
    let topic = format!("bench-load-{:016x}", OsRng.next_u64());
    let mut admin = Wire::connect(&target.bootstrap).await?;
    let topic_id = admin.create_topic(&topic, i32::try_from(of.members)?).await?;
    let mut wires = Vec::new();
    for _ in 0..of.groups * of.members {
        wires.push(Wire::connect(&target.bootstrap).await?);
    }
    time::sleep(REST).await;
    let (memory, processor) = (target.memory()?, target.processor()?);
    let agreements: Vec<Arc<Agreement>> =
        (0..of.groups).map(|_| Arc::new(Agreement::of(of.members))).collect();
    let mut tasks = ottla_env::spawn::TaskGroup::new();
    let started = time::now();
    for (number, wire) in wires.into_iter().enumerate() {
        let (group, member) = (number / of.members, number % of.members);
        let agreement = agreements[group].clone();
        let name = format!("{topic}-{group}");
        if is_consumer {
            let topic = (topic.clone(), topic_id);
            tasks.spawn("member", consumer::member(wire, name, member, topic, agreement));
        } else {
            tasks.spawn("member", classic::member(wire, name, member, topic.clone(), agreement));
        }
    }
    while !agreements.iter().all(|agreement| agreement.is_stable()) {
        if started.elapsed() > PATIENCE {
            bail!("not stable after {PATIENCE:?}");
        }
        time::sleep(Duration::from_millis(20)).await;
    }
    let stable = started.elapsed();
    let joining = target.processor()? - processor;
    let used = target.memory()?.saturating_sub(memory);
    let resting = target.watch().await?;
    let still = agreements.iter().all(|agreement| agreement.is_stable());
    tasks.abort_all().await;
    admin.delete_topic(&topic).await?;
    Ok(json!({
        "groups": of.groups,
        "members of each": of.members,
        "time to stable, s": stable.as_secs_f64(),
        "processor time of joining, s": joining,
        "memory, MiB": used as f64 / 1_048_576.0,
        "memory of a member, KiB": used as f64 / 1024.0 / (of.groups * of.members) as f64,
        "processor while stable, %": resting,
        "stable after that": u8::from(still),
    }))
}
