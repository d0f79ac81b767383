//! Scaling out by ids: every source partition has a transactional id of its own, and a new partition brings a new
//! id. Nothing else has to know of it.
//!
//! `cargo run -p ottla-client --example scale_by_ids -- 127.0.0.1:9092`
//!
//! Workers copy numbers from a source topic to a sink, exactly once. For each partition that the group gives a
//! worker, it takes over the producer named `NAME-PARTITION` *before* it looks where to go on: whoever had the
//! partition before is fenced off then, and its open transaction has ended. The program starts with two partitions
//! and one worker, grows to five and three while numbers flow, and then checks itself: every number once, each
//! partition's in order, five ids, and the ids that were there before still have the producer ids they had.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ottla_client::admin::{NewTopic, TransactionFilter};
use ottla_client::{
    Admin, Assignor, Callback, ClientSettings, Consumer, ConsumerRecord, ConsumerSettings, ErrorClass,
    OffsetReset, OffsetToCommit, Producer, ProducerSettings, Rebalance, RebalanceListener, Record, StartAt,
    TopicPartition, TransactionError, TransactionalProducer, TransactionalSettings,
};
use ottla_protocol::types::Text;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// Longest the whole may take.
const LIMIT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);
/// Numbers per source partition and phase.
const NUMBERS: u32 = 100;

/// The producers of one worker, one per partition that it has.
#[derive(Clone)]
struct Producers {
    client: ClientSettings,
    /// What transactional ids begin with.
    prefix: String,
    held: Arc<Mutex<BTreeMap<TopicPartition, TransactionalProducer>>>,
}

impl Producers {
    /// Takes a partition's transactional id over, and fences off whoever had it.
    async fn take(&self, at: &TopicPartition) -> Result<(), TransactionError> {
        let id = format!("{}-{}", self.prefix, at.partition);
        let producer =
            TransactionalProducer::init(TransactionalSettings::new(self.client.clone(), id)).await?;
        self.held.lock().await.insert(at.clone(), producer);
        Ok(())
    }
}

impl RebalanceListener for Producers {
    fn assigned<'a>(&'a mut self, _: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        Box::pin(async move {
            for at in partitions {
                // without its producer the partition is not worked on; the worker tries again
                if let Err(error) = self.take(at).await {
                    eprintln!("{at} waits for its producer: {error}");
                }
            }
        })
    }

    fn revoked<'a>(&'a mut self, _: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        // no transaction is open here: each ends before the next poll
        Box::pin(async move {
            let mut held = self.held.lock().await;
            partitions.iter().for_each(|at| drop(held.remove(at)));
        })
    }
}

/// Copies until told to stop.
async fn work(client: ClientSettings, name: String, stop: watch::Receiver<bool>) -> Result<(), Failure> {
    let producers =
        Producers { client: client.clone(), prefix: name.clone(), held: Arc::new(Mutex::default()) };
    let mut settings = ConsumerSettings::new(client)
        .group_id(name.as_str())
        .assignors(vec![Assignor::CooperativeSticky])
        .heartbeat_interval(Duration::from_millis(300))
        .offset_reset(OffsetReset::Earliest);
    settings.set("metadata.max.age.ms", "500")?; // how soon new partitions are noticed
    let mut consumer = Consumer::connect(settings).await?;
    consumer.set_listener(producers.clone());
    consumer.subscribe(&[&format!("{name}-source")]).await?;
    while !*stop.borrow() {
        let mut by_partition: BTreeMap<TopicPartition, Vec<ConsumerRecord>> = BTreeMap::new();
        for record in consumer.poll(POLL).await? {
            by_partition.entry(record.topic_partition.clone()).or_default().push(record);
        }
        for (at, records) in by_partition {
            match copy(&producers, &consumer, &name, &at, records).await {
                Ok(()) => {}
                Err(error) if error.class() == ErrorClass::Fatal => {
                    producers.held.lock().await.remove(&at);
                    consumer.seek_to_committed(&at)?; // if the partition is still ours, another producer goes on
                    eprintln!("{at}: {error}");
                }
                Err(_) => consumer.seek_to_committed(&at)?,
            }
        }
    }
    consumer.close().await?;
    Ok(())
}

/// One transaction: the records of one partition, and how far it was read.
async fn copy(
    producers: &Producers,
    consumer: &Consumer,
    name: &str,
    at: &TopicPartition,
    records: Vec<ConsumerRecord>,
) -> Result<(), TransactionError> {
    let Some(next) = records.last().map(|record| record.offset + 1) else { return Ok(()) };
    if !producers.held.lock().await.contains_key(at) {
        producers.take(at).await?;
    }
    let group = consumer.group_metadata().expect("group.id is set");
    let mut held = producers.held.lock().await;
    let producer = held.get_mut(at).expect("just taken");
    let transaction = producer.begin().await?;
    for record in records {
        let copy = Record::to(format!("{name}-sink")).partition(0);
        let copy = copy.key(at.partition.to_string()).value(record.value.unwrap_or_default());
        if let Err(error) = transaction.send(copy).await {
            transaction.abort().await?;
            return Err(TransactionError::Aborted { cause: error.to_string() });
        }
    }
    if let Err(error) = transaction.send_offsets(&[OffsetToCommit::new(at.clone(), next)], &group).await {
        transaction.abort().await?;
        return Err(error);
    }
    transaction.commit().await
}

/// Writes numbers to the partitions.
async fn feed(client: &ClientSettings, name: &str, partitions: i32, phase: u32) -> Result<(), Failure> {
    let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
    for number in 0..NUMBERS {
        for partition in 0..partitions {
            let value = (phase * NUMBERS + number).to_string();
            let record = Record::to(format!("{name}-source")).partition(partition).value(value);
            drop(producer.send(record).await?); // flush tells
        }
    }
    producer.flush().await?;
    Ok(())
}

/// Reads the sink until it has `count` numbers; by source partition.
async fn collect(
    sink: &mut Consumer,
    seen: &mut BTreeMap<i32, Vec<u32>>,
    count: usize,
) -> Result<(), Failure> {
    while seen.values().map(Vec::len).sum::<usize>() < count {
        for record in sink.poll(POLL).await? {
            let text = |bytes: Option<bytes::Bytes>| String::from_utf8(bytes.unwrap_or_default().to_vec());
            let partition = text(record.key)?.parse()?;
            seen.entry(partition).or_default().push(text(record.value)?.parse()?);
        }
    }
    Ok(())
}

/// The producer id of every transactional id of ours.
async fn producer_ids(admin: &Admin, name: &str) -> Result<BTreeMap<String, i64>, Failure> {
    let listed = admin.list_transactions(&TransactionFilter::default()).await?;
    let ours = listed.into_iter().filter(|listed| listed.transactional_id.starts_with(name));
    Ok(ours.map(|listed| (listed.transactional_id.to_string(), listed.producer_id)).collect())
}

/// The whole story, with topics, group and ids that begin with `name`.
pub(crate) async fn run(client: ClientSettings, name: &str) -> Result<(), Failure> {
    let admin = Admin::connect(client.clone()).await?;
    admin.create_topic(&NewTopic::new(format!("{name}-source"), 2)).await?;
    admin.create_topic(&NewTopic::new(format!("{name}-sink"), 1)).await?;
    let mut sink = Consumer::connect(ConsumerSettings::new(client.clone())).await?;
    sink.assign(&[(TopicPartition::new(format!("{name}-sink"), 0), StartAt::Beginning)]).await?;
    let (stop, stopped) = watch::channel(false);
    let mut workers = JoinSet::new();
    let mut start = || workers.spawn(work(client.clone(), name.to_owned(), stopped.clone()));
    let mut seen = BTreeMap::new();
    let per_phase = NUMBERS as usize;

    start();
    feed(&client, name, 2, 0).await?;
    collect(&mut sink, &mut seen, 2 * per_phase).await?;
    let before = producer_ids(&admin, name).await?;
    println!("2 source partitions, 1 worker: transactional ids {:?}", before.keys());

    // new partitions: nobody tells the workers, and two more of them come
    let counts = BTreeMap::from([(Text::from(format!("{name}-source")), 5)]);
    for (topic, result) in admin.create_partitions(&counts, false).await {
        result.map_err(|error| format!("{topic}: {error}"))?;
    }
    start();
    start();
    feed(&client, name, 5, 1).await?;
    collect(&mut sink, &mut seen, (2 + 5) * per_phase).await?;
    let after = producer_ids(&admin, name).await?;
    println!("5 source partitions, 3 workers: transactional ids {:?}", after.keys());

    stop.send_replace(true);
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    // anything doubled would come behind what was expected
    if let Some(record) = sink.poll(Duration::from_secs(1)).await?.first() {
        return Err(format!("an extra record: {record:?}").into());
    }
    check(&seen, &before, &after, name)
}

fn check(
    seen: &BTreeMap<i32, Vec<u32>>,
    before: &BTreeMap<String, i64>,
    after: &BTreeMap<String, i64>,
    name: &str,
) -> Result<(), Failure> {
    for (partition, numbers) in seen {
        let first = if *partition < 2 { 0 } else { NUMBERS };
        let expected: Vec<u32> = (first..2 * NUMBERS).collect();
        if *numbers != expected {
            return Err(format!("partition {partition}: {numbers:?} instead of {expected:?}").into());
        }
    }
    let expected: BTreeSet<String> = (0..5).map(|partition| format!("{name}-{partition}")).collect();
    if after.keys().cloned().collect::<BTreeSet<_>>() != expected {
        return Err(format!("transactional ids {:?} instead of {expected:?}", after.keys()).into());
    }
    for (id, producer_id) in before {
        if after.get(id) != Some(producer_id) {
            return Err(format!("{id} had producer id {producer_id}, then {:?}", after.get(id)).into());
        }
    }
    println!("every number once and in order; the old ids kept their producer ids");
    Ok(())
}

#[allow(dead_code)] // a test runs `run` instead
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let bootstrap = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9092".to_owned());
    let name = format!("scale-{}", std::process::id());
    tokio::time::timeout(LIMIT, run(ClientSettings::new(&bootstrap)?, &name)).await?
}
