//! `cargo xtask prove soak`: mixed load for as long as one likes, on a broker that is killed every few minutes, and the
//! judgement whether what it uses stays flat.
//!
//! The load is the example `longhaul` of ottla-client, which checks all that it reads. Here the broker is started with
//! settings under which everything that happens to a log in years happens in minutes, killed (SIGKILL) and started again
//! on its folder, and looked at every ten seconds. For the first two thirds of the time it is killed; then it is left
//! alone, so that its memory can be judged twice: over restarts, and within one life (`judge.rs`).
//!
//! It leaves docs/soak.csv, a section of docs/proofs.md, and docs/soak.svg, which is drawn from the CSV.

mod judge;
pub(crate) mod plot;
pub(crate) mod sample;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::broker::{Broker, free_port};
use crate::prove::Proof;
use crate::run::{self, Workspace};
use sample::{Sample, Sampler};

/// What to do.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long records are written
    #[arg(long, default_value_t = 45)]
    minutes: u64,
    /// Shortest and longest time between two kills, seconds
    #[arg(long, default_values_t = [180, 280], num_args = 2)]
    kill: Vec<u64>,
    /// Percent of the usual load
    #[arg(long, default_value_t = 100)]
    load: u64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// This binary as the broker, instead of a release build of this tree
    #[arg(long)]
    broker: Option<PathBuf>,
    /// This binary as the load, instead of a build of the example `longhaul`
    #[arg(long)]
    program: Option<PathBuf>,
    /// Where the samples go, besides docs/soak.csv
    #[arg(long)]
    csv: Option<PathBuf>,
}

/// Between two samples.
const SAMPLE: Duration = Duration::from_secs(10);
/// Behind the writing, for all to be read, and for the broker to start.
const PATIENCE: Duration = Duration::from_secs(600);

/// Years in minutes: small files and snapshots, short retention and expiry, rewriting.
const SETTINGS: &str = r#"
"log.file.bytes" = 8388608
"snapshot.log.bytes" = 16777216
"log.retention.check.interval.ms" = 5000
"log.rewrite.enable" = true
"log.rewrite.run.bytes" = 67108864
"log.rewrite.run.age.ms" = 60000
"log.rewrite.file.bytes" = 67108864
"producer.id.expiration.ms" = 60000
"producer.id.expiration.check.interval.ms" = 10000
"transactional.id.expiration.ms" = 120000
"transaction.remove.expired.transaction.cleanup.interval.ms" = 10000
"transaction.abort.timed.out.transaction.cleanup.interval.ms" = 2000
"offsets.retention.minutes" = 1
"offsets.retention.check.interval.ms" = 10000
"max.incremental.fetch.session.cache.slots" = 100
"group.initial.rebalance.delay.ms" = 200
"group.consumer.min.heartbeat.interval.ms" = 500
"group.consumer.heartbeat.interval.ms" = 500
"group.consumer.min.session.timeout.ms" = 6000
"group.consumer.session.timeout.ms" = 6000
"#;

impl Options {
    /// The command that repeats it.
    pub(crate) fn command(&self) -> String {
        let Self { minutes, seed, load, kill, .. } = self;
        let mut command = format!("cargo xtask prove soak --minutes {minutes} --seed {seed}");
        command += &if *load == 100 { String::new() } else { format!(" --load {load}") };
        command +=
            &if kill[..] == [180, 280] { String::new() } else { format!(" --kill {} {}", kill[0], kill[1]) };
        command
    }

    /// Whether it is long enough for a judgement of what the broker uses.
    pub(crate) fn is_whole(&self) -> bool {
        self.minutes >= 30
    }

    /// Runs it; with `keeps`, writes the CSV and the plot into docs.
    pub(crate) fn prove(&self, workspace: &Workspace, keeps: bool) -> Result<Proof> {
        if self.kill[0] < 5 || self.kill[0] > self.kill[1] {
            bail!("--kill takes two times in seconds, the first at least 5 and not above the second");
        }
        let program = match &self.program {
            Some(program) => program.canonicalize().with_context(|| format!("no {}", program.display()))?,
            None => workspace.example("ottla-client", "longhaul")?,
        };
        let http = free_port()?;
        let config = workspace.target.join(format!("soak-{}.toml", std::process::id()));
        std::fs::write(&config, format!("\"http.listen\" = \"127.0.0.1:{http}\"{SETTINGS}"))?;
        let started = Broker::start_release(workspace, self.broker.clone(), Some(config.clone()));
        std::fs::remove_file(&config)?;
        let version = match &self.broker {
            Some(binary) => run::output(Command::new(binary).arg("--version"))?,
            None => "the release build of this tree".to_owned(),
        };
        let soak = Soak::start(self, started?, http, &program)?;
        let (samples, result, passed) = soak.run()?;
        let csv = sample::csv(&samples);
        let mut files: Vec<PathBuf> = self.csv.iter().cloned().collect();
        if keeps {
            files.push(workspace.path(plot::SAMPLES));
            let plot = plot::svg(&csv).context("the samples cannot be drawn")?;
            std::fs::write(workspace.path(plot::PICTURE), plot)?;
        }
        for file in files {
            std::fs::write(&file, &csv).with_context(|| file.display().to_string())?;
        }
        let verdicts = judge::judge(&samples, self.minutes as f64 * 60.0);
        let is_flat = verdicts.iter().all(judge::Verdict::holds);
        println!("{}", judge::table(&verdicts));
        if !self.is_whole() {
            println!(
                "Too short for a judgement of what the broker uses: the lines above are not part of the result."
            );
        }
        let mut result = result;
        result["flat"] = verdicts.iter().map(judge::Verdict::json).collect::<serde_json::Map<_, _>>().into();
        result["told"] = result["told"].to_string().into();
        result["broker"] = version.trim().into();
        Ok(Proof { passed: passed && (is_flat || !self.is_whole()), result })
    }
}

/// A soak under way.
struct Soak<'a> {
    options: &'a Options,
    broker: Broker,
    sampler: Sampler,
    load: Child,
    lines: Receiver<String>,
    began: Instant,
    kill_at: Option<Instant>,
    kills: u64,
    random: u64,
    longest_start: Duration,
}

impl<'a> Soak<'a> {
    fn start(options: &'a Options, broker: Broker, http: u16, program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args([&broker.bootstrap, &(options.minutes * 60).to_string()]);
        command.env("LONGHAUL_SEED", options.seed.to_string());
        command.env("LONGHAUL_LOAD", options.load.to_string());
        run::step(&run::shown(&command));
        let mut load = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = load.stdout.take().expect("standard output was asked for");
        let (sender, lines) = sync_channel(64);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let sampler = Sampler::new(broker.data(), http, load.id());
        let mut soak = Self {
            options,
            broker,
            sampler,
            load,
            lines,
            began: Instant::now(),
            kill_at: None,
            kills: 0,
            random: options.seed | 1,
            longest_start: Duration::ZERO,
        };
        soak.plan_kill();
        Ok(soak)
    }

    /// When it is killed next; not in the last third.
    fn plan_kill(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (least, most) = (self.options.kill[0], self.options.kill[1]);
        let wait = Duration::from_millis(least * 1000 + self.random % ((most - least) * 1000 + 1));
        let at = Instant::now() + wait;
        let last = self.began + Duration::from_secs(self.options.minutes * 40);
        self.kill_at = (at < last).then_some(at);
    }

    /// To the end: the samples, what the load says, and whether it found all in order.
    fn run(mut self) -> Result<(Vec<Sample>, Value, bool)> {
        let mut samples: Vec<Sample> = Vec::new();
        let limit = self.began + Duration::from_secs(self.options.minutes * 60) + PATIENCE;
        let (mut sample_at, mut result) = (self.began + SAMPLE, None);
        let mut progress = Value::Null;
        while Instant::now() < limit {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => match serde_json::from_str::<Value>(&line) {
                    Ok(value) if value.get("counts").is_some() => result = Some(value),
                    Ok(value) if value.get("settling").is_some() => self.kill_at = None,
                    Ok(value) => progress = value,
                    Err(_) => eprintln!("{line}"),
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                let took = self.broker.kill_and_start()?;
                self.longest_start = self.longest_start.max(took);
                self.kills += 1;
                run::step(&format!("killed and started again in {:.2} s", took.as_secs_f64()));
                self.plan_kill();
            }
            if sample_at <= Instant::now() && result.is_none() {
                sample_at += SAMPLE;
                let at = self.began.elapsed().as_secs_f64();
                let sample = self.sampler.take(at, self.broker.pid(), self.kills, &progress)?;
                eprintln!("{sample}");
                samples.push(sample);
            }
        }
        let status = match result {
            Some(_) => self.load.wait()?,
            None => bail!("the load ended without a result"),
        };
        let mut result = result.expect("looked at above");
        let log = std::fs::read_to_string(self.broker.log()).unwrap_or_default();
        let errors = log.lines().filter(|line| line.contains("ERROR") || line.contains("panicked"));
        let errors: Vec<&str> = errors.collect();
        errors.iter().take(10).for_each(|line| eprintln!("broker: {line}"));
        result["kills of the broker"] = json!(self.kills);
        result["longest start, ms"] = json!(self.longest_start.as_millis() as u64);
        result["errors in the broker's log"] = json!(errors.len());
        Ok((samples, result, status.success() && errors.is_empty()))
    }
}

/// Whatever ends it, the load does not go on alone.
impl Drop for Soak<'_> {
    fn drop(&mut self) {
        if let Ok(None) = self.load.try_wait() {
            let ended = self.load.kill().and_then(|()| self.load.wait());
            if let Err(error) = ended {
                eprintln!("xtask: the load could not be ended: {error}");
            }
        }
    }
}
