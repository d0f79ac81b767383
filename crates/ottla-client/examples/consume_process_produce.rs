//! Consume, process, produce: the loop that exactly-once is for.
//!
//! `cargo run -p ottla-client --example consume_process_produce -- 127.0.0.1:9092`
//!
//! Two stages: the first doubles numbers, the second adds one. What a stage writes and how far it has read are one
//! transaction: both are visible, or neither. Each stage aborts now and then and is once dropped in the middle of
//! everything; every number must come out once all the same.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, ClientSettings, Consumer, ConsumerRecord, ConsumerSettings, ErrorClass, GroupMetadata,
    OffsetReset, OffsetToCommit, Producer, ProducerSettings, Record, StartAt, TopicPartition,
    TransactionError, TransactionalProducer, TransactionalSettings,
};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// Longest the whole may take.
const LIMIT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);
const PARTITIONS: i32 = 3;
const NUMBERS: i64 = 300;
/// Every so many batches a stage aborts.
const ABORT_EVERY: usize = 3;

/// From which topic to which, in whose name, and what is done.
struct Stage {
    client: ClientSettings,
    name: String,
    source: String,
    sink: String,
    process: fn(i64) -> i64,
}

impl Stage {
    /// Works until it is dropped, or for so many batches.
    async fn run(self, mut batches: usize) -> Result<(), Failure> {
        let settings = TransactionalSettings::new(self.client.clone(), format!("{}-producer", self.name));
        let mut producer = TransactionalProducer::init(settings.clone()).await?;
        let settings_of_consumer = ConsumerSettings::new(self.client.clone())
            .group_id(self.name.as_str())
            .heartbeat_interval(Duration::from_millis(300))
            .session_timeout(Duration::from_secs(6)) // how soon a dropped stage is given up
            .max_poll_records(50)
            .offset_reset(OffsetReset::Earliest);
        let mut consumer = Consumer::connect(settings_of_consumer).await?;
        consumer.subscribe(&[&self.source]).await?;
        while batches > 0 {
            let records = consumer.poll(POLL).await?;
            if records.is_empty() {
                continue;
            }
            batches -= 1;
            let group = consumer.group_metadata().expect("group.id is set");
            let abort = batches.is_multiple_of(ABORT_EVERY);
            let Err(error) = self.transaction(&mut producer, &group, records, abort).await else { continue };
            // nothing of it is visible: read it again
            for at in consumer.assignment() {
                consumer.seek_to_committed(&at)?;
            }
            if error.class() == ErrorClass::Fatal {
                producer = TransactionalProducer::init(settings.clone()).await?;
            }
        }
        consumer.close().await?;
        Ok(())
    }

    async fn transaction(
        &self,
        producer: &mut TransactionalProducer,
        group: &GroupMetadata,
        records: Vec<ConsumerRecord>,
        abort: bool,
    ) -> Result<(), TransactionError> {
        let mut next: BTreeMap<TopicPartition, i64> = BTreeMap::new();
        let transaction = producer.begin().await?;
        let mut cause = abort.then(|| "as planned".to_owned());
        for record in records {
            next.insert(record.topic_partition.clone(), record.offset + 1);
            let number: i64 = text(record.value).parse().unwrap_or(0);
            let made = Record::to(self.sink.as_str()).key(record.key.unwrap_or_default());
            if let Err(error) = transaction.send(made.value((self.process)(number).to_string())).await {
                cause = Some(error.to_string());
                break;
            }
        }
        if let Some(cause) = cause {
            transaction.abort().await?;
            return Err(TransactionError::Aborted { cause });
        }
        let offsets: Vec<_> = next.into_iter().map(|(at, offset)| OffsetToCommit::new(at, offset)).collect();
        if let Err(error) = transaction.send_offsets(&offsets, group).await {
            transaction.abort().await?;
            return Err(error);
        }
        transaction.commit().await
    }
}

fn text(bytes: Option<bytes::Bytes>) -> String {
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// The whole story, with topics, groups and ids that begin with `name`.
pub(crate) async fn run(client: ClientSettings, name: &str) -> Result<(), Failure> {
    let admin = Admin::connect(client.clone()).await?;
    let topics: Vec<String> = ["numbers", "doubled", "more"].map(|topic| format!("{name}-{topic}")).into();
    for topic in &topics {
        admin.create_topic(&NewTopic::new(topic.as_str(), PARTITIONS)).await?;
    }
    let stage = |number: usize| Stage {
        client: client.clone(),
        name: format!("{name}-stage-{number}"),
        source: topics[number].clone(),
        sink: topics[number + 1].clone(),
        process: if number == 0 { |number| 2 * number } else { |number| number + 1 },
    };
    let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
    for number in 0..NUMBERS {
        let record = Record::to(topics[0].as_str()).key((number % 7).to_string()).value(number.to_string());
        drop(producer.send(record).await?); // flush tells
    }
    producer.flush().await?;

    // the first ones end after a few batches, the next ones are dropped whatever they are doing
    let mut stages = JoinSet::new();
    for (number, batches) in [(0, 4), (1, 1)] {
        stages.spawn(stage(number).run(batches));
    }
    while let Some(ended) = stages.join_next().await {
        ended??;
    }
    for number in 0..2 {
        stages.spawn(stage(number).run(usize::MAX));
    }
    let _ = tokio::time::timeout(Duration::from_millis(700), stages.join_next()).await;
    stages.shutdown().await;
    for number in 0..2 {
        stages.spawn(stage(number).run(usize::MAX));
    }
    let seen = collect(&client, &topics[2]).await?;
    let mut expected: Vec<i64> = (0..NUMBERS).map(|number| 2 * number + 1).collect();
    expected.sort_unstable();
    if seen != expected {
        return Err(format!("{seen:?} came out").into());
    }
    println!("{NUMBERS} numbers, each once, through two stages");
    Ok(())
}

/// What came out, in order of value: `NUMBERS` numbers, and whatever comes within a second behind them.
async fn collect(client: &ClientSettings, topic: &str) -> Result<Vec<i64>, Failure> {
    let mut consumer = Consumer::connect(ConsumerSettings::new(client.clone())).await?;
    consumer.assign_topic(&topic.into(), StartAt::Beginning).await?;
    let mut seen = Vec::new();
    loop {
        let complete = seen.len() >= usize::try_from(NUMBERS)?;
        let records = consumer.poll(if complete { Duration::from_secs(1) } else { POLL }).await?;
        if complete && records.is_empty() {
            seen.sort_unstable();
            return Ok(seen);
        }
        for record in records {
            seen.push(text(record.value).parse()?);
        }
    }
}

#[allow(dead_code)] // a test runs `run` instead
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let bootstrap = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9092".to_owned());
    let name = format!("chain-{}", std::process::id());
    tokio::time::timeout(LIMIT, run(ClientSettings::new(&bootstrap)?, &name)).await?
}
