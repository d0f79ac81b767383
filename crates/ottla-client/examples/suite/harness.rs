//! What the cases share: topics and names of their own, writing, reading, waiting.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, ClientSettings, Codec, Consumer, ConsumerRecord, ConsumerSettings, IsolationLevel, OffsetReset,
    Producer, ProducerSettings, Record, StartAt, TopicPartition, TransactionalProducer,
    TransactionalSettings,
};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::time;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// One wait of a loop that reads.
pub(crate) const POLL: Duration = Duration::from_millis(500);
/// Between two looks at something that is awaited.
const PAUSE: Duration = Duration::from_millis(20);

/// Fails with this message when the condition does not hold.
pub(crate) fn check(condition: bool, message: impl FnOnce() -> String) -> Result<(), Failure> {
    if condition { Ok(()) } else { Err(message().into()) }
}

/// A name that nobody else has.
pub(crate) fn name(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("compat-{prefix}-{}-{}-{count}", std::process::id(), OsClock.wall_ms())
}

/// Values that tell themselves apart.
pub(crate) fn values(count: usize, text: &str) -> Vec<String> {
    (0..count).map(|number| format!("{text}-{number:04}")).collect()
}

/// Calls the probe until it says yes; fails after the time.
pub(crate) async fn until(
    seconds: u64,
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let deadline = time::now() + Duration::from_secs(seconds);
    while time::now() < deadline {
        if probe().await? {
            return Ok(());
        }
        time::sleep(PAUSE).await;
    }
    Err(format!("no {what} within {seconds} s").into())
}

/// Partition 0 of a topic.
pub(crate) fn first(topic: &str) -> TopicPartition {
    TopicPartition::new(topic, 0)
}

/// A record for partition 0.
pub(crate) fn record(topic: &str, value: &str) -> Record {
    Record::to(topic).partition(0).value(value.to_owned())
}

/// A record's value as text.
pub(crate) fn text(record: &ConsumerRecord) -> String {
    record.value.as_ref().map_or_else(String::new, |value| String::from_utf8_lossy(value).into_owned())
}

/// How a topic is read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// Partitions, from 0.
    pub(crate) partitions: i32,
    /// Longest wait for what is expected, in seconds.
    pub(crate) seconds: u64,
    /// How long to go on behind that, so that a record that should not be there is noticed, in seconds.
    pub(crate) quiet: u64,
    /// What is seen of transactions.
    pub(crate) isolation: IsolationLevel,
}

pub(crate) const COMMITTED: Reading =
    Reading { partitions: 1, seconds: 20, quiet: 0, isolation: IsolationLevel::ReadCommitted };
pub(crate) const COMMITTED_AND_QUIET: Reading = Reading { quiet: 1, ..COMMITTED };
pub(crate) const UNCOMMITTED: Reading = Reading { isolation: IsolationLevel::ReadUncommitted, ..COMMITTED };

/// A cluster under test.
pub(crate) struct Suite {
    pub(crate) client: ClientSettings,
    pub(crate) admin: Admin,
}

impl Suite {
    pub(crate) async fn connect(client: ClientSettings) -> Result<Self, Failure> {
        let admin = Admin::connect(client.clone()).await?;
        Ok(Self { client, admin })
    }

    /// Makes a topic.
    pub(crate) async fn topic(&self, partitions: i32, configs: &[(&str, &str)]) -> Result<String, Failure> {
        let topic = name("t");
        let new = NewTopic::new(topic.as_str(), partitions);
        let new = configs.iter().fold(new, |new, (name, value)| new.config(*name, *value));
        self.admin.create_topic(&new).await?;
        Ok(topic)
    }

    pub(crate) async fn producer(&self, codec: Codec) -> Result<Producer, Failure> {
        let settings = ProducerSettings::new(self.client.clone()).compression(codec);
        Ok(Producer::connect(settings).await?)
    }

    /// A producer that has taken that transactional id over.
    pub(crate) async fn transactional(&self, id: &str) -> Result<TransactionalProducer, Failure> {
        Ok(TransactionalProducer::init(TransactionalSettings::new(self.client.clone(), id)).await?)
    }

    /// Writes values to partition 0.
    pub(crate) async fn fill(&self, topic: &str, values: &[String], codec: Codec) -> Result<(), Failure> {
        let producer = self.producer(codec).await?;
        for value in values {
            drop(producer.send(record(topic, value)).await?); // flush tells
        }
        Ok(producer.flush().await?)
    }

    /// A consumer, of a group or alone.
    pub(crate) async fn consumer(
        &self,
        group: Option<&str>,
        isolation: IsolationLevel,
    ) -> Result<Consumer, Failure> {
        let settings = ConsumerSettings::new(self.client.clone())
            .isolation(isolation)
            .offset_reset(OffsetReset::Earliest)
            .session_timeout(Duration::from_secs(10));
        let settings = match group {
            Some(group) => settings.group_id(group),
            None => settings,
        };
        Ok(Consumer::connect(settings).await?)
    }

    /// A member of the group, subscribed to the topic.
    pub(crate) async fn member(&self, group: &str, topic: &str) -> Result<Consumer, Failure> {
        let mut consumer = self.consumer(Some(group), IsolationLevel::ReadCommitted).await?;
        consumer.subscribe(&[topic]).await?;
        Ok(consumer)
    }

    /// Reads a topic from offset 0.
    pub(crate) async fn read(
        &self,
        topic: &str,
        count: usize,
        how: Reading,
    ) -> Result<Vec<ConsumerRecord>, Failure> {
        let mut consumer = self.consumer(None, how.isolation).await?;
        let partitions: Vec<_> = (0..how.partitions)
            .map(|partition| (TopicPartition::new(topic, partition), StartAt::Offset(0)))
            .collect();
        consumer.assign(&partitions).await?;
        let mut records = Vec::new();
        let deadline = time::now() + Duration::from_secs(how.seconds);
        while records.len() < count && time::now() < deadline {
            records.extend(consumer.poll(POLL).await?);
        }
        let deadline = time::now() + Duration::from_secs(how.quiet);
        while time::now() < deadline {
            records.extend(consumer.poll(POLL).await?);
        }
        consumer.close().await?;
        Ok(records)
    }

    /// Partition 0 must hold these values and no others.
    pub(crate) async fn expect<T: AsRef<str>>(
        &self,
        topic: &str,
        values: &[T],
        how: Reading,
    ) -> Result<(), Failure> {
        let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
        let read: Vec<String> = self.read(topic, values.len(), how).await?.iter().map(text).collect();
        check(read == values, || {
            let (wanted, seen) = (&values[..values.len().min(3)], &read[..read.len().min(3)]);
            format!("expected {} records {wanted:?}, got {} {seen:?}", values.len(), read.len())
        })
    }
}

/// Reads until there are so many records.
pub(crate) async fn collect(
    consumer: &mut Consumer,
    count: usize,
    seconds: u64,
) -> Result<Vec<ConsumerRecord>, Failure> {
    let mut records = Vec::new();
    until(seconds, &format!("{count} records"), async || {
        records.extend(consumer.poll(POLL).await?);
        Ok(records.len() >= count)
    })
    .await?;
    Ok(records)
}

/// The offset that a group has committed in partition 0.
pub(crate) async fn committed(consumer: &Consumer, group: &str, topic: &str) -> Result<Option<i64>, Failure> {
    let found = consumer.committed(&group.into(), &[first(topic)]).await?;
    Ok(found.iter().find(|found| found.topic_partition == first(topic)).and_then(|found| found.offset))
}
