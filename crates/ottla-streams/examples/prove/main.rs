//! Exactly-once state by force: `cargo xtask prove streams`.
//!
//! ```text
//! feeder -> in (4 partitions) -> by-key -> count and sum per key -> out -> exact check of topics and stores
//!           ^ two processes with two workers each, killed and stopped; their broker is killed as well
//! ```
//!
//! Processes are killed with SIGKILL at random and at named points of the commit protocol, or stopped for longer than
//! their session and transaction time-outs (SIGSTOP, then SIGCONT: zombies), and started again on the same state
//! folder. Or, rolling, three processes are stopped in order one after another, under load. In the end the output, the
//! changelogs and the stores must be what the input gives, and no recovery may have replayed more than its tail.
//!
//! Usage: `prove BOOTSTRAP`, with `PROVE_KILLS` (how many SIGKILLs, of the broker included, or orderly restarts; default
//! 200), `PROVE_SECONDS` (longest time for that, default 1200), `PROVE_ROLLING`, `PROVE_RATE` (records per second,
//! default 300), `PROVE_SEED`, `PROVE_BREAK` (a shell command that kills and restarts the broker, run every few
//! seconds), `PROVE_PAUSE` and `PROVE_OUTAGE` (shell commands that make it stand still, or kill it and start it again
//! later, for longer than 10 s: run in the middle of a commit, so that its outcome is not known), `PROVE_848` (groups of
//! the KIP-848 protocol), `PROVE_DIR` (a folder for state that is kept), `PROVE_VERBOSE` (processes say what they do).
//! Prints one JSON object; exit code 1 when anything is wrong, and when a named point was not reached though there were
//! kills enough for all.

mod application;
mod check;
mod points;
mod reading;
mod trouble;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use check::Judgement;
use ottla_client::admin::NewTopic;
use ottla_client::{Admin, ClientSettings, Consumer, Producer, ProducerSettings, Record, SettingError};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::rng::{OsRng, Rng, SeededRng};
use ottla_env::{spawn, time};
use trouble::{Breaks, Trouble};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Partitions of each topic.
pub(crate) const PARTITIONS: i32 = 4;
/// Keys; those of one input partition go to all partitions of the repartition topic.
const KEYS: usize = 64;
/// Processes that are killed.
const PROCESSES: usize = 2;
/// Processes that are restarted in order.
const ROLLING_PROCESSES: usize = 3;
/// Without progress for so long behind the feeding, the run is given up.
const PATIENCE: Duration = Duration::from_secs(90);
pub(crate) const POLL: Duration = Duration::from_millis(200);
/// How often records are fed and processes are looked at.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// One record in so many at least must have come out while there was trouble; else nothing was shown.
const UNDER_FIRE_ONE_IN: u64 = 10;
/// With so many kills every named point must be met.
const KILLS_FOR_ALL: u64 = 100;
/// Time for a record too many to appear.
const QUIET: Duration = Duration::from_secs(3);
/// How often the progress is told.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Settings that find a restarted broker quickly.
pub(crate) fn client(bootstrap: &str, name: &str) -> Result<ClientSettings, SettingError> {
    Ok(ClientSettings::new(bootstrap)?
        .client_id(name)
        .request_timeout(Duration::from_secs(4))
        .reconnect_backoff(Duration::from_millis(20))
        .reconnect_backoff_max(Duration::from_millis(200))
        .retry_backoff(Duration::from_millis(20))
        .retry_backoff_max(Duration::from_millis(200)))
}

struct Options {
    bootstrap: String,
    kills: u64,
    limit: Duration,
    rate: u64,
    seed: u64,
    breaks: Breaks,
    is_rolling: bool,
    folder: Option<PathBuf>,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let [bootstrap] = arguments else { return Err("usage: prove BOOTSTRAP".into()) };
        let number = |name: &str, default: u64| match std::env::var(name) {
            Ok(text) => text.parse().map_err(|_| format!("{name}={text} is not a number")),
            Err(_) => Ok(default),
        };
        Ok(Self {
            bootstrap: bootstrap.clone(),
            kills: number("PROVE_KILLS", 200)?,
            limit: Duration::from_secs(number("PROVE_SECONDS", 1200)?),
            rate: number("PROVE_RATE", 300)?,
            seed: number("PROVE_SEED", OsRng.below(1_000_000))?,
            breaks: Breaks {
                restart: std::env::var("PROVE_BREAK").ok(),
                away: ["PROVE_PAUSE", "PROVE_OUTAGE"]
                    .into_iter()
                    .filter_map(|n| std::env::var(n).ok())
                    .collect(),
            },
            is_rolling: std::env::var_os("PROVE_ROLLING").is_some(),
            folder: std::env::var_os("PROVE_DIR").map(PathBuf::from),
        })
    }
}

/// Writes numbered records, so many per second and key by chance.
struct Feeder {
    producer: Producer,
    topic: String,
    rng: SeededRng,
    /// Records per key.
    sent: Vec<i64>,
}

impl Feeder {
    async fn feed(&mut self, count: u64) -> Result<(), Failure> {
        for _ in 0..count {
            let key = self.rng.index(KEYS);
            self.sent[key] += 1;
            let record = Record::to(self.topic.as_str())
                .partition(i32::try_from(key)? % PARTITIONS)
                .value(serde_json::to_vec(&(format!("key-{key}"), self.sent[key]))?);
            drop(self.producer.send(record).await?); // flush tells
        }
        Ok(())
    }

    fn fed(&self) -> u64 {
        self.sent.iter().sum::<i64>().unsigned_abs()
    }
}

/// A run under way.
struct Run<'a> {
    options: &'a Options,
    feeder: Feeder,
    trouble: Trouble,
    reader: Consumer,
    /// Changes that came out.
    came: u64,
}

impl Run<'_> {
    fn progress(&self) -> u64 {
        if self.options.is_rolling { self.trouble.restarts() } else { self.trouble.all_kills() }
    }

    /// Feeds and strikes until there was trouble enough, or the time is over.
    async fn under_fire(&mut self) -> Result<(), Failure> {
        let (begin, mut tick) = (time::now(), time::now());
        let mut told = begin;
        while self.progress() < self.options.kills && begin.elapsed() < self.options.limit {
            self.feeder.feed((self.options.rate / 50).max(1)).await?;
            match (self.came > 0, self.options.is_rolling) {
                (false, _) => self.trouble.calm()?, // strikes begin when the application is at work
                (true, false) => self.trouble.fire().await?,
                (true, true) => self.trouble.roll()?,
            }
            self.came += reading::poll(&mut self.reader, Duration::ZERO).await?.len() as u64;
            tick = (tick + TICK).max(time::now());
            time::sleep_until(tick).await;
            if told.elapsed() >= TELL_EVERY {
                told = time::now();
                let (fed, came, progress) = (self.feeder.fed(), self.came, self.progress());
                let seconds = begin.elapsed().as_secs();
                eprintln!(
                    "prove: {seconds} s, {progress} of {}: fed {fed}, came out {came}",
                    self.options.kills
                );
            }
        }
        Ok(time::timeout(PATIENCE, self.feeder.producer.flush()).await??)
    }

    /// Waits until everything has come out and everybody runs, or nothing moves any more.
    async fn drain(&mut self) -> Result<(), Failure> {
        let fed = self.feeder.fed();
        let mut progress_at = time::now();
        while (self.came < fed || !self.trouble.all_run()) && progress_at.elapsed() < PATIENCE {
            self.trouble.calm()?;
            let read = reading::poll(&mut self.reader, POLL).await?.len() as u64;
            if read > 0 {
                self.came += read;
                progress_at = time::now();
            }
        }
        let end = time::now() + QUIET;
        while time::now() < end {
            self.trouble.calm()?;
            time::sleep(TICK).await;
        }
        Ok(())
    }
}

async fn prove(options: &Options) -> Result<bool, Failure> {
    let begin = time::now();
    let name = format!("prove-{}", OsClock.wall_ms());
    let topology = application::topology(&name)?;
    let settings = client(&options.bootstrap, &name)?;
    let admin = Admin::connect(settings.clone()).await?;
    for topic in [application::input_of(&name), application::output_of(&name)] {
        admin.create_topic(&NewTopic::new(topic.as_str(), PARTITIONS)).await?;
    }
    let scratch = tempfile::tempdir()?;
    let folder = options.folder.clone().unwrap_or_else(|| scratch.path().to_owned());
    let mut rng = SeededRng::new(options.seed);
    let producer = Producer::connect(ProducerSettings::new(settings.clone())).await?;
    let topic = application::input_of(&name);
    let feeder = Feeder { producer, topic, rng: rng.fork(), sent: vec![0; KEYS] };
    let breaks = if options.is_rolling { Breaks::default() } else { options.breaks.clone() };
    let mut trouble = Trouble::new(rng.fork(), breaks);
    let processes = if options.is_rolling { ROLLING_PROCESSES } else { PROCESSES };
    let folders: Vec<PathBuf> = (0..processes).map(|index| folder.join(format!("p{index}"))).collect();
    for folder in &folders {
        trouble.add(&options.bootstrap, &name, folder)?;
    }
    let reader = reading::reader(&settings, &application::output_of(&name)).await?;
    let mut run = Run { options, feeder, trouble, reader, came: 0 };
    run.under_fire().await?;
    let (fed, under_fire, progress) = (run.feeder.fed(), run.came, run.progress());
    eprintln!("prove: {fed} records are fed, {under_fire} came out; {}", run.trouble.counts());
    run.trouble.settle().await?;
    run.drain().await?;
    let refused = run.trouble.end().await?;

    let input = reading::input(&settings, &name).await?;
    let output = reading::output(&settings, &name).await?;
    let changelogs = reading::changelogs(&settings, &name).await?;
    let (mut found, mut set_aside) = (Vec::new(), 0);
    for folder in &folders {
        let (stores, aside) = reading::folder(&topology, folder)?;
        found.extend(stores);
        set_aside += aside;
    }
    let with_stores = topology.sub_topologies().iter().find(|sub| !sub.stores.is_empty());
    let stores: Vec<String> = with_stores
        .map(|sub| sub.stores.iter().map(|store| store.name.clone()).collect())
        .unwrap_or_default();
    let recoveries = run.trouble.recoveries();
    let judgement = Judgement::of(&input, &output, &changelogs, &found, &recoveries, &stores);
    let in_topic: usize = input.values().map(Vec::len).sum();
    let result = serde_json::json!({
        "fed": fed, "in_topic": in_topic, "read": output.len(), "under_fire": under_fire, "check": judgement,
        "trouble": run.trouble.counts(), "points": run.trouble.points(), "rows": run.trouble.rows(), "set_aside": set_aside, "refused_to_stop": refused,
        "processes": processes, "seed": options.seed, "seconds": begin.elapsed().as_secs(),
    });
    println!("{result}");
    let enough = progress >= options.kills && under_fire >= fed / UNDER_FIRE_ONE_IN;
    let whole = in_topic as u64 == fed && found.len() >= stores.len() * usize::try_from(PARTITIONS)?;
    let met = options.is_rolling || options.kills < KILLS_FOR_ALL || run.trouble.missed().is_empty();
    Ok(judgement.is_exact() && enough && whole && met && set_aside == 0 && refused == 0)
}

async fn run() -> Result<bool, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((word, rest)) if word == application::COMMAND => application::run(rest).await.map(|()| true),
        _ => prove(&Options::read(&arguments)?).await,
    }
}

fn main() -> ExitCode {
    let outcome = match spawn::runtime(2) {
        Ok(runtime) => runtime.block_on(run()),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("prove: {error}");
            ExitCode::from(2)
        }
    }
}
