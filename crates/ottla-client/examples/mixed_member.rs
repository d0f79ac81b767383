//! A member of a mixed consumer group, as ottla-client, for `compat/suite-mixed`.
//!
//! It says on standard output what it owns and does (see `compat/mixed/judge.py`), and leaves in order when its
//! standard input ends. Arguments: BOOTSTRAP GROUP TOPIC ASSIGNOR SESSION_MS

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ottla_client::{
    Callback, ClientSettings, Consumer, ConsumerSettings, GroupMetadata, LostReason, OffsetReset,
    OffsetToCommit, Rebalance, RebalanceListener, TopicPartition,
};
use ottla_env::clock::{Clock, OsClock};
use ottla_protocol::types::Text;
use tokio::sync::watch;

type Failure = Box<dyn Error + Send + Sync>;

fn say(kind: &str, rest: &str) {
    println!("{kind} {} {rest}", OsClock.wall_ms() * 1000);
}

/// What is owned, and what was read and not committed.
#[derive(Debug, Default)]
struct State {
    owned: BTreeSet<i32>,
    pending: BTreeMap<TopicPartition, i64>,
}

impl State {
    fn mine(&self) -> String {
        let mine: Vec<String> = self.owned.iter().map(ToString::to_string).collect();
        if mine.is_empty() { "-".to_owned() } else { mine.join(",") }
    }

    fn offsets(&self) -> Vec<OffsetToCommit> {
        self.pending.iter().map(|(at, offset)| OffsetToCommit::new(at.clone(), *offset)).collect()
    }

    /// Notes the outcome of a commit of these.
    fn committed(&mut self, offsets: &[OffsetToCommit], generation_id: i32, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                let done: Vec<String> = offsets
                    .iter()
                    .map(|done| format!("{}:{}", done.topic_partition.partition, done.offset))
                    .collect();
                say("commit", &format!("{generation_id} {}", done.join(",")));
                self.pending.clear();
            }
            Err(why) => say("refused", &format!("{generation_id} {}", why.replace(' ', "_"))),
        }
    }
}

#[derive(Clone, Default)]
struct Listener(Arc<Mutex<State>>);

impl Listener {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics in here")
    }

    fn drop_partitions(&self, kind: &str, group: Option<GroupMetadata>, partitions: &[TopicPartition]) {
        let mut state = self.state();
        for at in partitions {
            state.owned.remove(&at.partition);
            state.pending.remove(at);
        }
        let generation_id = group.map_or(-1, |group| group.generation_id);
        say(kind, &format!("{generation_id} {}", state.mine()));
    }
}

impl RebalanceListener for Listener {
    fn assigned<'a>(
        &'a mut self,
        rebalance: Rebalance<'a>,
        partitions: &'a [TopicPartition],
    ) -> Callback<'a> {
        let mut state = self.state();
        state.owned.extend(partitions.iter().map(|at| at.partition));
        let group = rebalance.group_metadata().expect("group.id is set");
        say("own", &format!("{} {} {}", group.generation_id, state.mine(), group.member_id));
        drop(state);
        Box::pin(std::future::ready(()))
    }

    fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        Box::pin(async move {
            let group = rebalance.group_metadata();
            let offsets = self.state().offsets();
            if !offsets.is_empty() {
                let outcome = rebalance.commit_offsets(&offsets).await.map_err(|error| error.to_string());
                let generation_id = group.as_ref().map_or(-1, |group| group.generation_id);
                self.state().committed(&offsets, generation_id, outcome);
            }
            self.drop_partitions("own", group, partitions);
        })
    }

    fn lost<'a>(
        &'a mut self,
        rebalance: Rebalance<'a>,
        partitions: &'a [TopicPartition],
        _: LostReason,
    ) -> Callback<'a> {
        self.drop_partitions("lost", rebalance.group_metadata(), partitions);
        Box::pin(std::future::ready(()))
    }
}

fn settings(arguments: &[String]) -> Result<ConsumerSettings, Failure> {
    let client = ClientSettings::new(&arguments[0])?.client_id("mixed-ottla");
    let mut settings =
        ConsumerSettings::new(client).group_id(arguments[1].as_str()).offset_reset(OffsetReset::Earliest);
    settings.set("fetch.max.wait.ms", "250")?;
    settings.set("max.poll.records", "200")?;
    match arguments[3].strip_prefix("848:") {
        Some(assignor) => {
            settings.set("group.protocol", "consumer")?;
            settings.set("group.remote.assignor", assignor)?;
        }
        None => {
            settings.set("partition.assignment.strategy", &arguments[3])?;
            settings.set("session.timeout.ms", &arguments[4])?;
            settings.set("heartbeat.interval.ms", "1000")?;
        }
    }
    Ok(settings)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut consumer = Consumer::connect(settings(&arguments)?).await?;
    let listener = Listener::default();
    consumer.set_listener(listener.clone());
    consumer.subscribe(&[&arguments[2]]).await?;
    let (over, is_over) = watch::channel(false);
    let _reader = ottla_env::spawn::thread("stdin", move || {
        for line in std::io::stdin().lines() {
            if line.is_err() {
                break;
            }
        }
        over.send_replace(true);
    })?;
    while !*is_over.borrow() {
        let records = consumer.poll(Duration::from_millis(300)).await?;
        let mut runs: BTreeMap<TopicPartition, (i64, i64, usize)> = BTreeMap::new();
        for record in records {
            let run = runs.entry(record.topic_partition).or_insert((record.offset, 0, 0));
            (run.1, run.2) = (record.offset, run.2 + 1);
        }
        for (at, (first, last, count)) in runs {
            say("got", &format!("{} {first} {last} {count}", at.partition));
            listener.state().pending.insert(at, last + 1);
        }
        let offsets = listener.state().offsets();
        if !offsets.is_empty() {
            let group = consumer.group_metadata().expect("group.id is set");
            let outcome = consumer.commit_offsets(&offsets).await.map_err(|error| error.to_string());
            listener.state().committed(&offsets, group.generation_id, outcome);
        }
    }
    consumer.close().await?;
    say("bye", Text::EMPTY.as_str());
    Ok(())
}
