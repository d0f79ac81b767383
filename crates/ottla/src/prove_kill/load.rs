//! The writers of a round, and how they keep their history.
//!
//! They are not told when the broker is killed: its restart must be invisible but for the time it takes. Some
//! transactional writers crash with it and take their transactional id over again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use ottla_client::{
    Delivery, GroupMetadata, OffsetToCommit, Producer, ProducerSettings, Record, TopicPartition, Transaction,
    TransactionalProducer, TransactionalSettings,
};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::spawn::{self, TaskHandle};
use ottla_env::time;
use tokio::sync::watch;

use super::history::{History, Id, Outcome, Plain, Transacted};
use super::{PARTITIONS, PLAIN, TRANSACTED};
use crate::broker_process::client;

const PLAIN_WRITERS: u64 = 2;
const TRANSACTIONAL_WRITERS: u64 = 3;
/// Records of a plain writer without an answer.
const WINDOW: usize = 64;
/// One transaction in so many is aborted on purpose.
const ABORT_ONE_IN: u64 = 6;
/// Numbers of a writer's transactions in one round.
const NUMBERS_PER_ROUND: u64 = 1_000_000;

/// Running writers.
pub(super) struct Load {
    tasks: Vec<TaskHandle<()>>,
    crash: Vec<watch::Sender<bool>>,
    stop: watch::Sender<bool>,
    history: Arc<Mutex<History>>,
}

/// What a writer works with.
struct Writer {
    bootstrap: String,
    name: String,
    round: u64,
    rng: SeededRng,
    stop: watch::Receiver<bool>,
    crash: watch::Receiver<bool>,
    history: Arc<Mutex<History>>,
}

impl Load {
    /// Starts the writers of a round.
    pub(super) fn start(bootstrap: &str, round: u64, rng: &mut SeededRng) -> Result<Self> {
        let mut load = Self {
            tasks: Vec::new(),
            crash: Vec::new(),
            stop: watch::Sender::new(false),
            history: Arc::default(),
        };
        let mut writer = |name: String, crash: &watch::Sender<bool>| Writer {
            bootstrap: bootstrap.to_owned(),
            name,
            round,
            rng: rng.fork(),
            stop: load.stop.subscribe(),
            crash: crash.subscribe(),
            history: Arc::clone(&load.history),
        };
        for index in 0..PLAIN_WRITERS {
            let writer = writer(format!("plain-{round}-{index}"), &watch::Sender::new(false));
            load.tasks.push(spawn::task("prove-plain", writer.run_plain()));
        }
        for index in 0..TRANSACTIONAL_WRITERS {
            let crash = watch::Sender::new(false);
            let writer = writer(format!("transacted-{index}"), &crash);
            load.tasks.push(spawn::task("prove-transacted", writer.run_transacted()));
            load.crash.push(crash);
        }
        Ok(load)
    }

    /// Some of the transactional writers crash now.
    pub(super) fn crash_clients(&self, rng: &mut SeededRng) {
        for crash in &self.crash {
            if rng.one_in(3) {
                crash.send_replace(true);
            }
        }
    }

    /// Lets the writers finish what they began; their history.
    pub(super) async fn stop(self) -> History {
        self.stop.send_replace(true);
        for task in self.tasks {
            if let Err(error) = task.await {
                let mut history = self.history.lock().expect("no holder of this lock panics");
                history.failures.push(format!("a writer panicked: {error}"));
            }
        }
        std::mem::take(&mut self.history.lock().expect("no holder of this lock panics"))
    }
}

impl Writer {
    fn note(&self, note: impl FnOnce(&mut History)) {
        note(&mut self.history.lock().expect("no holder of this lock panics"));
    }

    fn fail(&self, error: &anyhow::Error) {
        self.note(|history| {
            history.failures.push(format!("{} of round {}: {error:#}", self.name, self.round))
        });
    }

    async fn run_plain(self) {
        if let Err(error) = self.write_plain().await {
            self.fail(&error);
        }
    }

    async fn write_plain(&self) -> Result<()> {
        let settings =
            ProducerSettings::new(client(&self.bootstrap, &self.name)?).linger(Duration::from_millis(1));
        let producer = Producer::connect(settings).await?;
        let mut open: VecDeque<(u64, i32, Delivery)> = VecDeque::new();
        for number in 0_u64.. {
            let stopped = *self.stop.borrow();
            while open.len() > if stopped { 0 } else { WINDOW } {
                let (number, partition, delivery) = open.pop_front().expect("not empty");
                let offset = delivery.wait().await.with_context(|| format!("record {number}"))?.offset;
                let writer = self.name.clone();
                self.note(|history| history.plain.push(Plain { writer, number, partition, offset }));
            }
            if stopped {
                return Ok(());
            }
            let partition = i32::try_from(number % u64::from(PARTITIONS.unsigned_abs()))?;
            let id = Id { writer: self.name.clone(), number, index: 0 };
            let record = Record::to(PLAIN).partition(partition).value(id.value());
            open.push_back((number, partition, producer.send(record).await?));
            if number % 16 == 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    }

    async fn run_transacted(mut self) {
        let mut number = self.round * NUMBERS_PER_ROUND;
        while !*self.stop.borrow() {
            let mut crash = self.crash.clone();
            let crashed = tokio::select! {
                result = self.write_transactions(&mut number) => match result {
                    Ok(()) => false,
                    Err(error) => return self.fail(&error),
                },
                _ = crash.wait_for(|crash| *crash) => true,
            };
            if crashed {
                // once is enough: from now on the switch is one that nobody turns
                self.crash = watch::Sender::new(false).subscribe();
            }
        }
        // the last one may have crashed: taking the id over ends what it left open
        if let Err(error) = self.producer().await {
            self.fail(&error);
        }
    }

    async fn producer(&self) -> Result<TransactionalProducer> {
        let client = client(&self.bootstrap, &self.name)?;
        let settings = TransactionalSettings::new(client.clone(), self.name.as_str())
            .producer(ProducerSettings::new(client).linger(Duration::ZERO));
        Ok(TransactionalProducer::init(settings).await?)
    }

    /// One transaction after the other until the round is over. Dropped in the middle when the writer crashes.
    async fn write_transactions(&mut self, number: &mut u64) -> Result<()> {
        let mut producer = self.producer().await?;
        while !*self.stop.borrow() {
            *number += 1;
            let records = self.places();
            let (writer, abort) = (self.name.clone(), self.rng.one_in(ABORT_ONE_IN));
            let planned =
                Transacted { writer, number: *number, records: records.clone(), outcome: Outcome::Unknown };
            let place = {
                let mut history = self.history.lock().expect("no holder of this lock panics");
                history.transactions.push(planned);
                history.transactions.len() - 1
            };
            let transaction = producer.begin().await?;
            self.fill(&transaction, *number, &records).await?;
            let outcome = if abort {
                transaction.abort().await?;
                Outcome::Aborted
            } else {
                transaction.commit().await?;
                Outcome::Committed
            };
            self.note(|history| history.transactions[place].outcome = outcome);
        }
        Ok(())
    }

    /// Where the next transaction's records go.
    fn places(&mut self) -> Vec<TopicPartition> {
        let count = self.rng.between(1, 6);
        let mut place = || {
            let topic = TRANSACTED[self.rng.index(TRANSACTED.len())];
            let partition = self.rng.below(u64::from(PARTITIONS.unsigned_abs()));
            TopicPartition::new(topic, i32::try_from(partition).expect("few partitions"))
        };
        (0..count).map(|_| place()).collect()
    }

    async fn fill(
        &self,
        transaction: &Transaction<'_>,
        number: u64,
        records: &[TopicPartition],
    ) -> Result<()> {
        for (index, at) in records.iter().enumerate() {
            let id = Id { writer: self.name.clone(), number, index };
            let record = Record::to(at.topic.clone()).partition(at.partition).value(id.value());
            transaction.send(record).await?;
        }
        let offset = OffsetToCommit::new(TopicPartition::new(TRANSACTED[0], 0), i64::try_from(number)?);
        let group = GroupMetadata::without_members(self.name.as_str());
        Ok(transaction.send_offsets(&[offset], &group).await?)
    }
}
