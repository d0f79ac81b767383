//! Exactly once by force: `cargo xtask prove client`.
//!
//! ```text
//! feeder -> in -> 3 workers -> mid -> 3 workers -> out -> exact check per key
//! ```
//!
//! Workers are processes; each batch they copy is one transaction with its input's offsets. They are killed (SIGKILL),
//! or stopped for longer than their session and transaction time-outs (SIGSTOP, then SIGCONT: zombies), and abort now
//! and then; the broker is killed by a command that is given. What is acknowledged to the feeder must be in `out` once,
//! in its key's order.
//!
//! Usage: `soak BOOTSTRAP SECONDS`, with `SOAK_RATE` (records per second, default 500), `SOAK_SEED`, `SOAK_BREAK` (a
//! shell command that kills and restarts the broker, run every few seconds), `SOAK_848` (groups of the new protocol),
//! `SOAK_V1` (the cluster is set to transactions of protocol version 1 first, else to 2). With `SOAK_UNCOMMITTED` workers
//! read what was aborted, and the check must fail; with `SOAK_VERBOSE` they say why a transaction failed. Prints one
//! JSON object; exit code 1 when anything is wrong.

mod check;
mod trouble;
mod worker;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use check::Judgement;
use ottla_client::admin::{FeatureUpgrade, NewTopic};
use ottla_client::{Admin, ClientSettings, Consumer, Producer, ProducerSettings, Record, SettingError};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::rng::{OsRng, Rng, SeededRng};
use ottla_env::time;
use trouble::Trouble;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Partitions of each topic.
pub(crate) const PARTITIONS: i32 = 4;
/// Key k is in partition k % PARTITIONS of each topic.
pub(crate) const KEYS: usize = 16;
/// Workers per stage.
const WORKERS: usize = 3;
/// Without progress for so long behind the feeding, the run is given up.
const PATIENCE: Duration = Duration::from_secs(90);
pub(crate) const POLL: Duration = Duration::from_millis(200);
/// How often records are fed and processes are looked at.
const TICK: Duration = Duration::from_millis(20);
/// One record in so many at least must have come out while there was trouble; else nothing was shown.
const UNDER_FIRE_ONE_IN: u64 = 10;
/// Time for a record too many to appear.
const QUIET: Duration = Duration::from_secs(3);

/// Settings that find a restarted broker quickly.
pub(crate) fn client(bootstrap: &str, name: &str) -> Result<ClientSettings, SettingError> {
    Ok(ClientSettings::new(bootstrap)?
        .client_id(name)
        .request_timeout(Duration::from_secs(10))
        .reconnect_backoff(Duration::from_millis(20))
        .reconnect_backoff_max(Duration::from_millis(200))
        .retry_backoff(Duration::from_millis(20))
        .retry_backoff_max(Duration::from_millis(200)))
}

struct Options {
    bootstrap: String,
    length: Duration,
    rate: u64,
    seed: u64,
    break_command: Option<String>,
    is_848: bool,
    is_v1: bool,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let [bootstrap, seconds] = arguments else { return Err("usage: soak BOOTSTRAP SECONDS".into()) };
        let number = |name: &str, default: u64| match std::env::var(name) {
            Ok(text) => text.parse().map_err(|_| format!("{name}={text} is not a number")),
            Err(_) => Ok(default),
        };
        Ok(Self {
            bootstrap: bootstrap.clone(),
            length: Duration::from_secs(seconds.parse()?),
            rate: number("SOAK_RATE", 500)?,
            seed: number("SOAK_SEED", OsRng.below(1_000_000))?,
            break_command: std::env::var("SOAK_BREAK").ok(),
            is_848: std::env::var_os("SOAK_848").is_some(),
            is_v1: std::env::var_os("SOAK_V1").is_some(),
        })
    }
}

/// Sets the protocol of transactions, unless it is that.
async fn finalize(admin: &Admin, level: i16) -> Result<(), Failure> {
    let features = admin.describe_features().await?;
    let found = features.iter().find(|feature| feature.name == "transaction.version");
    let found = found.and_then(|feature| feature.finalized).unwrap_or(0);
    if found != level {
        let how = if found < level { FeatureUpgrade::Upgrade } else { FeatureUpgrade::SafeDowngrade };
        admin.update_features(&BTreeMap::from([("transaction.version".into(), (level, how))]), false).await?;
    }
    Ok(())
}

/// Writes numbered records, so many per second and key by chance.
struct Feeder {
    producer: Producer,
    topic: String,
    rng: SeededRng,
    /// Records per key.
    sent: Vec<u64>,
}

impl Feeder {
    async fn feed(&mut self, count: u64) -> Result<(), Failure> {
        for _ in 0..count {
            let key = self.rng.index(KEYS);
            let record = Record::to(self.topic.as_str())
                .partition(i32::try_from(key)? % PARTITIONS)
                .key(key.to_string())
                .value(self.sent[key].to_string());
            drop(self.producer.send(record).await?); // flush tells
            self.sent[key] += 1;
        }
        Ok(())
    }
}

async fn soak(options: &Options) -> Result<bool, Failure> {
    let run = format!("soak-{}", OsClock.wall_ms());
    let settings = client(&options.bootstrap, &run)?;
    let admin = Admin::connect(settings.clone()).await?;
    finalize(&admin, if options.is_v1 { 1 } else { 2 }).await?;
    let topics = ["in", "mid", "out"].map(|name| format!("{run}-{name}"));
    for topic in &topics {
        admin.create_topic(&NewTopic::new(topic.as_str(), PARTITIONS)).await?;
    }
    let mut rng = SeededRng::new(options.seed);
    let producer = Producer::connect(ProducerSettings::new(settings.clone())).await?;
    let mut feeder = Feeder { producer, topic: topics[0].clone(), rng: rng.fork(), sent: vec![0; KEYS] };
    let mut trouble = Trouble::new(rng.fork(), options.break_command.clone());
    for stage in 0..2 {
        for worker in 0..WORKERS {
            let (from, to) = (topics[stage].clone(), topics[stage + 1].clone());
            let (group, id) = (format!("{run}-g{stage}"), format!("{run}-s{stage}-w{worker}"));
            let protocol = if options.is_848 { "consumer" } else { "classic" };
            trouble.add([options.bootstrap.clone(), from, to, group, id, protocol.to_owned()])?;
        }
    }

    let mut reader = check::reader(&settings, &topics[2], true).await?;
    let mut count = 0;
    let (begin, mut tick) = (time::now(), time::now());
    while begin.elapsed() < options.length {
        feeder.feed((options.rate / 50).max(1)).await?;
        trouble.tend(count > 0).await?; // from when the chain is at work
        count += check::poll(&mut reader, Duration::ZERO).await?.len() as u64;
        tick = (tick + TICK).max(time::now());
        time::sleep_until(tick).await;
    }
    time::timeout(PATIENCE, feeder.producer.flush()).await??;
    let (fed, under_fire) = (feeder.sent.iter().sum::<u64>(), count);
    eprintln!("soak: {fed} records are fed, {under_fire} came out; {}", trouble.counts());
    trouble.settle().await?;
    drain(&mut reader, fed.saturating_sub(count), &mut trouble).await?;
    trouble.end();
    let judgement = Judgement::of(&settings, &topics[2], &feeder.sent).await?;
    println!(
        "{{\"fed\": {fed}, \"under_fire\": {under_fire}, {}, {}, \"seed\": {}, \"seconds\": {}}}",
        judgement.counts(),
        trouble.counts(),
        options.seed,
        begin.elapsed().as_secs()
    );
    Ok(judgement.is_exact() && under_fire >= fed / UNDER_FIRE_ONE_IN)
}

/// Waits until so many more have come out, or nothing comes any more.
async fn drain(reader: &mut Consumer, mut missing: u64, trouble: &mut Trouble) -> Result<(), Failure> {
    let mut progress_at = time::now();
    while missing > 0 && progress_at.elapsed() < PATIENCE {
        trouble.tend(false).await?;
        let read = check::poll(reader, POLL).await?.len() as u64;
        if read > 0 {
            missing = missing.saturating_sub(read);
            progress_at = time::now();
        }
    }
    let end = time::now() + QUIET;
    while time::now() < end {
        trouble.tend(false).await?;
        time::sleep(TICK).await;
    }
    Ok(())
}

async fn run() -> Result<bool, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((worker::COMMAND, rest)) = arguments.split_first().map(|(word, rest)| (word.as_str(), rest)) {
        worker::run(rest).await?;
        return Ok(true);
    }
    soak(&Options::read(&arguments)?).await
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::from(2)
        }
    }
}
