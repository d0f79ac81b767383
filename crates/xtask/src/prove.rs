//! `cargo xtask prove`: promises shown by force, with the result kept in docs/proofs.md.
//!
//! The harnesses are programs of their own: the simulator and the real binary under a killer, as release builds; our
//! client and our streams under one, as builds for development. What they have in common: progress on standard error, one JSON object
//! as the last line of standard output, and an exit code that says whether the promise held.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::broker::{Broker, Kind};
use crate::report;
use crate::run::{self, Workspace};
use crate::soak;

/// What to prove.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    promise: Promise,
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    json: bool,
    /// Do not write docs/proofs.md
    #[arg(long, global = true)]
    dry: bool,
}

#[derive(clap::Subcommand)]
enum Promise {
    /// Simulated power cuts: nothing acknowledged is lost, nothing is invented
    PowerCut {
        /// How many seeds
        #[arg(long, default_value_t = 2_000)]
        seeds: u64,
    },
    /// Every byte of a data folder changed, one after the other: detected or harmless, nothing wrong served
    Flips {
        /// Of bodies, lists and filling every so many-th byte; of headers and directories always every one
        #[arg(long, default_value_t = 7)]
        stride: u64,
        /// Whose clients have made the folder
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// A small file system filled and freed under load: nothing acknowledged is lost, transactions end, it goes on
    DiskFull {
        /// How many times
        #[arg(long, default_value_t = 1_000)]
        rounds: u64,
        /// Seed of everything random
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Bytes of the file system, MiB
        #[arg(long, default_value_t = 192)]
        mebibytes: u64,
        /// This binary, instead of a release build of this tree
        #[arg(long)]
        binary: Option<PathBuf>,
    },
    /// kill -9 of the real binary under transactional load
    Kill {
        /// How many rounds, each with a kill
        #[arg(long, default_value_t = 300)]
        rounds: u64,
        /// Seed of everything random
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Our client under kills: six transactional workers killed and stopped, and their broker killed, exact per key
    Client {
        /// How long records are fed
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// Transactions of protocol version 1
        #[arg(long)]
        v1: bool,
        /// Groups of the KIP-848 protocol
        #[arg(long)]
        kip848: bool,
        /// Seed of everything random
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// With Apache Kafka as the broker; writes nothing
        #[arg(long)]
        oracle: bool,
    },
    /// Our streams under kills: two applications with state, their broker killed as well; topics and stores exact
    Streams(Streams),
    /// Mixed load for long on a broker that is killed every few minutes: all that is read is right, and what it uses flat
    Soak(soak::Options),
}

/// Longer than the streams' proof waits for the answer of a commit (10 s): its outcome is not known then.
const AWAY_SECONDS: u32 = 13;

/// Of the streams' proof.
#[derive(clap::Args)]
struct Streams {
    /// How many kills (SIGKILL) of processes and broker; with --rolling, how many orderly restarts
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// Longest time for them
    #[arg(long, default_value_t = 1200)]
    seconds: u64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Three processes, restarted in order one after another under load, instead of kills
    #[arg(long)]
    rolling: bool,
    /// With Apache Kafka as the broker
    #[arg(long)]
    oracle: bool,
    /// Groups of the KIP-848 protocol
    #[arg(long)]
    kip848: bool,
    /// This binary as the broker, instead of a release build of this tree
    #[arg(long, conflicts_with = "oracle")]
    broker: Option<PathBuf>,
}

impl Streams {
    /// Name and title of the section, and the command.
    fn named(&self) -> (&'static str, &'static str, String) {
        let Self { kills, seed, rolling, oracle, kip848, .. } = self;
        let mut command = format!("cargo xtask prove streams --kills {kills} --seed {seed}");
        command += if *rolling { " --rolling" } else { "" };
        command += if *oracle { " --oracle" } else { "" };
        command += if *kip848 { " --kip848" } else { "" };
        let (name, title) = match (rolling, oracle, kip848) {
            (false, false, false) => ("streams", "Our streams, killed"),
            (true, false, false) => ("streams-rolling", "Our streams, restarted one after another"),
            (false, true, false) => ("streams-oracle", "Our streams, killed, on Apache Kafka"),
            (true, true, false) => {
                ("streams-rolling-oracle", "Our streams, restarted one after another, on Apache Kafka")
            }
            (false, false, true) => ("streams-848", "Our streams, killed, with KIP-848"),
            (true, false, true) => {
                ("streams-848-rolling", "Our streams, restarted one after another, with KIP-848")
            }
            (false, true, true) => {
                ("streams-848-oracle", "Our streams, killed, with KIP-848 on Apache Kafka")
            }
            (true, true, true) => (
                "streams-848-rolling-oracle",
                "Our streams, restarted one after another, with KIP-848 on Apache Kafka",
            ),
        };
        (name, title, command)
    }

    /// Two applications with state, and their broker.
    fn prove(&self, workspace: &Workspace) -> Result<Proof> {
        let program = workspace.example("ottla-streams", "prove")?;
        let broker = match &self.broker {
            Some(binary) => Broker::start_binary(workspace, binary.clone())?,
            None => Broker::start(workspace, if self.oracle { Kind::Kafka } else { Kind::Ottla }, None, &[])?,
        };
        let mut command = Command::new(program);
        command.arg(&broker.bootstrap).env("PROVE_BREAK", broker.restart_command());
        command.env("PROVE_PAUSE", broker.pause_command(AWAY_SECONDS));
        command.env("PROVE_OUTAGE", broker.outage_command(AWAY_SECONDS));
        command.envs(self.rolling.then_some(("PROVE_ROLLING", "1")));
        command.envs(self.kip848.then_some(("PROVE_848", "1")));
        for (name, value) in
            [("PROVE_KILLS", self.kills), ("PROVE_SECONDS", self.seconds), ("PROVE_SEED", self.seed)]
        {
            command.env(name, value.to_string());
        }
        let mut proof = harness(command)?;
        if let Some(binary) = &self.broker {
            let version = run::output(Command::new(binary).arg("--version"))?;
            proof.result["broker"] = version.trim().into();
        }
        Ok(proof)
    }
}

/// The outcome of a harness.
pub(crate) struct Proof {
    /// Whether the promise held.
    pub(crate) passed: bool,
    /// What the harness reported.
    pub(crate) result: Value,
}

/// Runs the command; true when the promise held.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let workspace = Workspace::find()?;
    let began = Instant::now();
    let (name, title, command, proof) = match &options.promise {
        &Promise::PowerCut { seeds } => {
            let command = format!("cargo xtask prove power-cut --seeds {seeds}");
            ("power-cut", "Power cuts (simulated)", command, power_cut(&workspace, seeds, false)?)
        }
        &Promise::Flips { stride, seed } => {
            let command = format!("cargo xtask prove flips --stride {stride} --seed {seed}");
            ("flips", "Flipped bytes", command, flips(&workspace, stride, seed)?)
        }
        Promise::DiskFull { rounds, seed, mebibytes, binary } => {
            let command = format!(
                "cargo xtask prove disk-full --rounds {rounds} --seed {seed} --mebibytes {mebibytes}"
            );
            let proof = disk_full(&workspace, *rounds, *seed, *mebibytes, binary.clone())?;
            ("disk-full", "The disk full", command, proof)
        }
        &Promise::Kill { rounds, seed } => {
            let command = format!("cargo xtask prove kill --rounds {rounds} --seed {seed}");
            ("kill", "kill -9 of the real binary", command, kill(&workspace, rounds, seed)?)
        }
        &Promise::Client { seconds, v1, kip848, seed, oracle } => {
            let mut command = format!("cargo xtask prove client --seconds {seconds} --seed {seed}");
            command += if v1 { " --v1" } else { "" };
            command += if kip848 { " --kip848" } else { "" };
            let kind = if oracle { Kind::Kafka } else { Kind::Ottla };
            let name = if v1 { "client-v1" } else { "client" };
            let title = if v1 { "Our client, killed (transactions v1)" } else { "Our client, killed" };
            (name, title, command, client(&workspace, kind, seconds, v1, kip848, seed)?)
        }
        Promise::Streams(streams) => {
            let (name, title, command) = streams.named();
            (name, title, command, streams.prove(&workspace)?)
        }
        Promise::Soak(soak) => {
            let keeps = !options.dry && soak.is_whole();
            ("soak", "A soak", soak.command(), soak.prove(&workspace, keeps)?)
        }
    };
    let seconds = began.elapsed().as_secs();
    let is_oracle = matches!(options.promise, Promise::Client { oracle: true, .. });
    let is_trial = matches!(&options.promise, Promise::Soak(soak) if !soak.is_whole());
    if !options.dry && !is_oracle && !is_trial {
        let text = section(&command, &proof, seconds);
        report::write_section(&workspace.path("docs/proofs.md"), name, title, &text)?;
    }
    if options.json {
        println!(
            "{}",
            json!({"proof": name, "passed": proof.passed, "seconds": seconds, "result": proof.result})
        );
    } else {
        println!("{}", table(&proof.result));
        println!("{} {name} [{seconds} s]", if proof.passed { "PASS" } else { "FAIL" });
    }
    Ok(proof.passed)
}

/// The simulator's sweep over seeds. As a smoke test it does not ask that every fault fires.
pub(crate) fn power_cut(workspace: &Workspace, seeds: u64, smoke: bool) -> Result<Proof> {
    let binary = workspace.release_binary("ottla-sim", "ottla-sim")?;
    let mut command = Command::new(binary);
    command.current_dir(&workspace.root).args(["sweep", "--seeds", &seeds.to_string()]);
    command.args(smoke.then_some("--smoke"));
    harness(command)
}

/// The sweep over the bytes of a folder.
fn flips(workspace: &Workspace, stride: u64, seed: u64) -> Result<Proof> {
    let binary = workspace.release_binary("ottla-sim", "ottla-sim")?;
    let mut command = Command::new(binary);
    command.current_dir(&workspace.root).arg("flips");
    command.args(["--stride", &stride.to_string(), "--seed", &seed.to_string()]);
    harness(command)
}

/// The real binary on a small file system (tmpfs) that is filled and freed. It is mounted in a mount namespace of the
/// child's own: it is gone when the child is, however it ends.
fn disk_full(
    workspace: &Workspace,
    rounds: u64,
    seed: u64,
    mebibytes: u64,
    binary: Option<PathBuf>,
) -> Result<Proof> {
    let binary = binary.map_or_else(|| workspace.release_binary("ottla", "ottla"), Ok)?;
    let folder = std::env::temp_dir().join(format!("ottla-disk-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mount = format!("mount -t tmpfs -o size={mebibytes}m ottla-disk-full \"$1\"");
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "sh", "-c", &mount, "sh"]).arg(&folder);
    match probe.status() {
        Ok(status) if status.success() => {}
        Ok(status) => bail!(
            "no file system can be mounted here ({status}): this needs root (CAP_SYS_ADMIN), mount and tmpfs, in a mount namespace of its own"
        ),
        Err(error) => bail!("this needs unshare (util-linux): {error}"),
    }
    let mut command = Command::new("unshare");
    let script = format!("{mount} && shift && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(&folder).arg(&binary);
    command.args(["prove-kill", "--rounds", &rounds.to_string(), "--seed", &seed.to_string(), "--full-disk"]);
    command.arg(&folder).current_dir(&workspace.root);
    let proof = harness(command);
    std::fs::remove_dir(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    proof
}

/// The real binary under transactional load, killed once a round and judged by what it had acknowledged.
fn kill(workspace: &Workspace, rounds: u64, seed: u64) -> Result<Proof> {
    let binary = workspace.release_binary("ottla", "ottla")?;
    let mut command = Command::new(binary);
    command.current_dir(&workspace.root).arg("prove-kill");
    command.args(["--rounds", &rounds.to_string(), "--seed", &seed.to_string()]);
    harness(command)
}

/// The chain of workers that speak through our client, on a broker that is killed as well.
fn client(
    workspace: &Workspace,
    kind: Kind,
    seconds: u64,
    v1: bool,
    kip848: bool,
    seed: u64,
) -> Result<Proof> {
    let program = workspace.example("ottla-client", "soak")?;
    let broker = Broker::start(workspace, kind, None, &[])?;
    let mut command = Command::new(program);
    command.args([&broker.bootstrap, &seconds.to_string()]);
    command.env("SOAK_SEED", seed.to_string()).env("SOAK_BREAK", broker.restart_command());
    command.envs(v1.then_some(("SOAK_V1", "1"))).envs(kip848.then_some(("SOAK_848", "1")));
    harness(command)
}

/// Runs a harness and takes its last line as its result.
fn harness(mut command: Command) -> Result<Proof> {
    run::step(&run::shown(&command));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", run::shown(&command)))?;
    let output = child.stdout.take().expect("standard output was asked for");
    let mut last = String::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        if !line.trim().is_empty() {
            last = line;
        }
    }
    let status = child.wait()?;
    match serde_json::from_str(&last) {
        Ok(result) => Ok(Proof { passed: status.success(), result }),
        Err(_) => bail!("{} ended ({status}) without a result", run::shown(&command)),
    }
}

/// The section of docs/proofs.md.
fn section(command: &str, proof: &Proof, seconds: u64) -> String {
    let verdict = if proof.passed { "held" } else { "**broken**" };
    format!("{}: {verdict}, {seconds} s. `{command}`\n\n{}", report::stamp(), table(&proof.result))
}

/// A JSON object as a table; nested objects give a row per field.
fn table(result: &Value) -> String {
    let mut text = String::from("| what | count |\n|---|---|\n");
    for (name, value) in result.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(fields) => {
                fields
                    .iter()
                    .for_each(|(field, value)| text += &format!("| {name}: {field} | {} |\n", plain(value)));
            }
            None => text += &format!("| {name} | {} |\n", plain(value)),
        }
    }
    text
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
