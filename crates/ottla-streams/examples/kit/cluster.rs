//! The cluster of a run: a broker of its own or a given one, its topics, and reading and writing them.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_broker::broker::Broker;
use ottla_broker::config::Config;
use ottla_client::admin::{AdminError, NewTopic};
use ottla_client::{
    Admin, ClientSettings, ClusterError, Consumer, ConsumerRecord, ConsumerSettings, Producer,
    ProducerSettings, Record, StartAt, Text, TopicPartition,
};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::{process, time};
use ottla_streams::app::{AppSettings, StoreQuery};
use tokio::sync::watch;

use super::{Example, Failure, Options};

/// A portion of the input is written in so many bits, with a pause after each, when it has to take a while.
const BITS: usize = 40;
const PAUSE: Duration = Duration::from_millis(20);

/// The topic of an application, by its short name.
pub(crate) fn topic(application: &str, name: &str) -> String {
    format!("{application}-{name}")
}

/// What is in topics, committed, by short name; each partition in order.
#[derive(Default)]
pub(crate) struct Found(BTreeMap<&'static str, Vec<ConsumerRecord>>);

impl Found {
    /// The records of a topic.
    pub(crate) fn of(&self, name: &str) -> &[ConsumerRecord] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether the tasks of a store have taken, and committed, all these records.
    #[allow(dead_code)] // for examples with a store beside their input
    pub(crate) fn is_taken<S: Clone + 'static>(&self, name: &str, store: &StoreQuery<S>) -> bool {
        let mut ends: BTreeMap<&TopicPartition, i64> = BTreeMap::new();
        for record in self.of(name) {
            ends.insert(&record.topic_partition, record.offset + 1);
        }
        ends.into_iter().all(|(at, end)| {
            let snapshot = store.snapshot(at.partition); // an error: it is not here yet
            snapshot.is_ok_and(|snapshot| snapshot.meta().inputs.get(at).is_some_and(|offset| *offset >= end))
        })
    }

    pub(super) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

pub(super) struct Cluster {
    /// Name of the application of this run.
    pub(super) application: String,
    /// Where brokers are.
    pub(super) bootstrap: String,
    pub(super) client: ClientSettings,
    pub(super) admin: Admin,
    /// State of the application, and of the broker when it is ours; goes with this value.
    pub(super) folder: tempfile::TempDir,
    partitions: i32,
    broker: Option<Broker>,
}

impl Cluster {
    pub(super) async fn start<E: Example>(options: &Options) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let (bootstrap, broker) = match &options.brokers {
            Some(bootstrap) => (bootstrap.clone(), None),
            None => {
                let mut config = Config {
                    listen: "127.0.0.1:0".to_owned(),
                    dir: folder.path().join("broker").display().to_string(),
                    log_file_bytes: 16 << 20,
                    ..Config::default()
                };
                config.core.group_initial_rebalance_delay_ms = 0; // there will be no other member
                let broker = Broker::start(config).await?;
                (broker.local_addr().to_string(), Some(broker))
            }
        };
        let client = ClientSettings::new(&bootstrap)?;
        let admin = Admin::connect(client.clone()).await?;
        // Another name for each run, so that a broker that stays keeps them apart.
        let application = format!("{}-{}-{}", E::NAME, OsClock.wall_ms() / 1_000, process::id());
        let partitions = E::PARTITIONS;
        for name in E::INPUTS.iter().chain(E::OUTPUTS) {
            let topic = Text::from(topic(&application, name));
            admin.create_topic(&NewTopic::new(topic.clone(), partitions)).await?;
            // A broker may hear of it a moment later.
            while let Err(AdminError::Cluster(ClusterError::NoSuchTopic { .. })) =
                admin.describe_topic(&topic).await
            {
                time::sleep(PAUSE).await;
            }
        }
        Ok(Self { application, bootstrap, client, admin, folder, partitions, broker })
    }

    pub(super) fn state_dir(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }

    pub(super) fn settings(&self) -> AppSettings {
        settings(self.client.clone(), self.state_dir())
    }

    pub(super) async fn end(self) {
        if let Some(broker) = self.broker {
            broker.shutdown().await;
        }
    }

    pub(super) async fn write(&self, records: Vec<Record>) -> Result<(), Failure> {
        let producer = Producer::connect(ProducerSettings::new(self.client.clone())).await?;
        for record in records {
            drop(producer.send(record).await?); // flush tells
        }
        Ok(producer.flush().await?)
    }

    /// Writes the input in so many portions; each waits until that many are allowed.
    pub(super) async fn feed<E: Example>(
        &self,
        example: &E,
        portions: usize,
        mut allowed: watch::Receiver<usize>,
    ) -> Result<(), Failure> {
        let producer = Producer::connect(ProducerSettings::new(self.client.clone())).await?;
        let bits = portions * BITS;
        for bit in 0..bits {
            allowed.wait_for(|allowed| bit / BITS < *allowed).await?;
            for number in example.len() * bit / bits..example.len() * (bit + 1) / bits {
                drop(producer.send(example.record(&self.application, number)).await?); // flush tells
            }
            producer.flush().await?;
            time::sleep(PAUSE).await;
        }
        Ok(())
    }

    fn partitions_of(&self, name: &str) -> Vec<TopicPartition> {
        let topic = topic(&self.application, name);
        (0..self.partitions).map(|partition| TopicPartition::new(topic.as_str(), partition)).collect()
    }

    /// How far a topic's committed records reach, all partitions added up.
    pub(super) async fn committed(&self, name: &str) -> Result<i64, Failure> {
        let ends = self.admin.last_stable_offsets(&self.partitions_of(name)).await?;
        Ok(ends.values().sum())
    }

    /// Everything committed in these topics now. What is still open there is waited for.
    pub(super) async fn read(&self, names: &[&'static str]) -> Result<Found, Failure> {
        let mut found = Found::default();
        for name in names {
            let partitions = self.partitions_of(name);
            let ends = self.admin.high_watermarks(&partitions).await?;
            let mut consumer = Consumer::connect(ConsumerSettings::new(self.client.clone())).await?;
            let begin: Vec<_> = partitions.iter().map(|at| (at.clone(), StartAt::Beginning)).collect();
            consumer.assign(&begin).await?;
            let is_behind =
                |consumer: &Consumer| ends.iter().any(|(at, end)| consumer.position(at).unwrap_or(0) < *end);
            let records = found.0.entry(name).or_default();
            while is_behind(&consumer) {
                records.extend(consumer.poll(Duration::from_millis(100)).await?);
            }
        }
        Ok(found)
    }
}

/// Settings of the application, in this process and in children.
pub(super) fn settings(client: ClientSettings, state_dir: std::path::PathBuf) -> AppSettings {
    AppSettings { workers: 2, ..AppSettings::new(client, state_dir) }
}
