//! The processes of the demonstration: started, killed, started again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use ottla_client::Admin;
use ottla_client::admin::NewTopic;
use ottla_env::clock::{Clock, OsClock};
use ottla_env::process::Output;
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::time;

use super::children::ChildOptions;
use super::display::{Display, Picture, Row};
use super::lines::Input;
use super::live::Live;
use super::plan::Victim;
use super::{INPUT_TOPIC, OUTPUT_TOPIC, Options};
use crate::broker_process::{BrokerProcess, OwnChild, client, tail};

/// Partitions of both topics.
const PARTITIONS: i32 = 4;
/// The run is paced to last about so long, and longer with many kills.
const SECONDS_MIN: u64 = 6;
/// Seconds per ten kills.
const SECONDS_PER_TEN_KILLS: u64 = 9;
/// Most times that a child may end by itself.
const ENDS_MAX: u64 = 20;

/// A kill that took place.
#[derive(Clone, Debug)]
pub(super) struct Kill {
    pub(super) victim: Victim,
    /// When, ms since the Unix epoch.
    pub(super) at_ms: i64,
}

/// Everything that runs.
pub(super) struct Stage {
    folder: PathBuf,
    broker: BrokerProcess,
    options: ChildOptions,
    children: BTreeMap<Victim, Actor>,
    pub(super) live: Live,
    pub(super) kills: Vec<Kill>,
    last: String,
}

/// A source or worker.
struct Actor {
    child: Option<OwnChild>,
    incarnation: u64,
    /// It has done its work.
    done: bool,
    ends: u64,
}

impl Stage {
    /// Starts everything.
    pub(super) async fn build(options: &Options, input: &Input, seed: u64, folder: &Path) -> Result<Self> {
        let broker = BrokerProcess::start(folder, &[]).await?;
        let admin = Admin::connect(client(broker.address(), "demo")?).await?;
        for topic in [INPUT_TOPIC, OUTPUT_TOPIC] {
            // append times let the verdict tell from the log when work went on after a kill
            let topic = NewTopic::new(topic, PARTITIONS).config("message.timestamp.type", "LogAppendTime");
            admin.create_topic(&topic).await?;
        }
        let seconds = SECONDS_MIN.max(u64::from(options.kills) * SECONDS_PER_TEN_KILLS / 10);
        let rate = (input.records() / seconds).max(1);
        let workers = i32::try_from(options.workers)?;
        let child = ChildOptions::new(broker.address(), input, seed, options.at_least_once, rate, workers);
        let live = Live::start(broker.address(), input.records()).await?;
        let actors = std::iter::once(Victim::Source).chain((0..options.workers).map(Victim::Worker));
        let idle = || Actor { child: None, incarnation: 0, done: false, ends: 0 };
        let mut stage = Self {
            folder: folder.to_owned(),
            broker,
            options: child,
            children: actors.map(|victim| (victim, idle())).collect(),
            live,
            kills: Vec::new(),
            last: String::new(),
        };
        let victims: Vec<_> = stage.children.keys().copied().collect();
        victims.into_iter().try_for_each(|victim| stage.launch(victim))?;
        Ok(stage)
    }

    /// Where the broker listens.
    pub(super) fn bootstrap(&self) -> &str {
        self.broker.address()
    }

    fn launch(&mut self, victim: Victim) -> Result<()> {
        let actor = self.children.get_mut(&victim).expect("every source and worker has an entry");
        actor.incarnation += 1;
        let options =
            ChildOptions { name: victim.to_string(), incarnation: actor.incarnation, ..self.options.clone() };
        let arguments = match victim {
            Victim::Worker(index) => {
                let mut arguments = options.arguments("demo-worker");
                arguments.extend(["--index".into(), index.to_string().into()]);
                arguments
            }
            Victim::Source | Victim::Broker => options.arguments("demo-source"),
        };
        let log = self.folder.join(format!("{victim}.log"));
        actor.child = Some(OwnChild::start(&arguments, &log, Output::Null)?);
        Ok(())
    }

    /// SIGKILL, a short pause, and a new start.
    pub(super) async fn strike(
        &mut self,
        victim: Victim,
        rng: &mut SeededRng,
        display: &mut Display,
    ) -> Result<()> {
        let at_ms = OsClock.wall_ms();
        let pause = Duration::from_millis(rng.below(100));
        let pid = match victim {
            Victim::Broker => {
                let pid = self.broker.pid();
                self.broker.kill()?;
                time::sleep(pause).await;
                self.broker.start_again().await?;
                pid
            }
            victim => {
                let actor = self.children.get_mut(&victim).expect("every source and worker has an entry");
                let pid = actor.child.as_ref().map_or(0, OwnChild::pid);
                if let Some(child) = &mut actor.child {
                    child.kill()?;
                }
                time::sleep(pause).await;
                self.launch(victim)?;
                pid
            }
        };
        self.kills.push(Kill { victim, at_ms });
        self.last = format!("kill {}: SIGKILL {victim} (pid {pid})", self.kills.len());
        display.event(&self.last);
        Ok(())
    }

    /// Starts again what ended by itself; a source that is done stays.
    pub(super) fn revive_ended(&mut self, display: &mut Display) -> Result<()> {
        if let Some(status) = self.broker.ended()? {
            bail!("the broker ended by itself ({status}): {}", tail(self.broker.log()));
        }
        let mut again = Vec::new();
        for (victim, actor) in &mut self.children {
            let Some(child) = &mut actor.child else { continue };
            let Some(status) = child.ended()? else { continue };
            actor.child = None;
            if *victim == Victim::Source && status.ends_with(": 0") {
                actor.done = true;
                continue;
            }
            actor.ends += 1;
            let log = self.folder.join(format!("{victim}.log"));
            display.event(&format!("{victim} ended by itself ({status}): {}", tail(&log)));
            if actor.ends > ENDS_MAX {
                bail!("{victim} ended by itself {ENDS_MAX} times; see {}", log.display());
            }
            again.push(*victim);
        }
        again.into_iter().try_for_each(|victim| self.launch(victim))
    }

    /// Ends source and workers; the broker stays for the verdict.
    pub(super) async fn finish(&mut self) -> Result<()> {
        for actor in self.children.values_mut() {
            if let Some(child) = &mut actor.child {
                child.kill()?;
            }
            actor.child = None;
        }
        Ok(())
    }

    /// What the display shows.
    pub(super) fn picture(&self, records: u64, elapsed: Duration) -> Picture {
        let kills = |victim: Victim| self.kills.iter().filter(|kill| kill.victim == victim).count();
        let broker = Row {
            name: "broker".to_owned(),
            state: format!("pid {}", self.broker.pid()),
            kills: kills(Victim::Broker),
        };
        let actors = self.children.iter().map(|(victim, actor)| Row {
            name: victim.to_string(),
            state: match &actor.child {
                Some(child) => format!("pid {}", child.pid()),
                None if actor.done => "done".to_owned(),
                None => "down".to_owned(),
            },
            kills: kills(*victim),
        });
        Picture {
            done: self.live.seen(),
            records,
            repeated: self.live.repeated(),
            elapsed,
            quiet: self.live.last_at().elapsed(),
            rows: std::iter::once(broker).chain(actors).collect(),
            last: self.last.clone(),
        }
    }
}
