//! A clean hand-off: one producer carries several source partitions, and partitions move between workers.
//!
//! `cargo run -p ottla-client --example handoff -- 127.0.0.1:9092`
//!
//! A worker reads what the group gives it, and writes all of one `poll` in one transaction, with the positions of
//! all partitions in it. Partitions leave it inside of the next `poll` only: reading has stopped, the transaction has
//! ended, and only when the listener has returned may another worker have them. That is the whole hand-off.
//!
//! A worker that stands still cannot do that. Here one freezes with an open transaction until the group has given
//! its partitions away. When it wakes up, the broker refuses its offsets, because they come in the name of a
//! membership that has ended (KIP-447), and so nothing of the transaction is ever visible.
//!
//! The program lets three workers come, go and freeze while numbers flow, and then checks itself: every number once,
//! each partition's in order; every partition that moved was committed as far as it had been read; and the frozen
//! worker was refused.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, Assignor, Callback, ClientSettings, Consumer, ConsumerRecord, ConsumerSettings, ErrorClass,
    OffsetReset, OffsetToCommit, Producer, ProducerSettings, Rebalance, RebalanceListener, Record, StartAt,
    TopicPartition, TransactionError, TransactionalProducer, TransactionalSettings,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// Longest the whole may take.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
/// Who does not poll for so long is left out.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(3);
const PARTITIONS: i32 = 6;
/// Numbers per partition and phase.
const NUMBERS: usize = 100;

/// What is counted over all workers.
#[derive(Debug, Default)]
struct Counts {
    /// Partitions that were given up, committed as far as they had been read.
    clean: AtomicUsize,
    /// The same, but not committed so far: must not be.
    unclean: AtomicUsize,
    /// Partitions that the frozen worker lost.
    lost: AtomicUsize,
    /// Transactions of it that the broker refused.
    refused: AtomicUsize,
}

struct Listener(Arc<Counts>);

impl RebalanceListener for Listener {
    fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        Box::pin(async move {
            let committed = rebalance.committed(partitions).await.unwrap_or_default();
            for at in partitions {
                let offset = committed
                    .iter()
                    .find(|found| found.topic_partition == *at)
                    .and_then(|found| found.offset);
                // without a position it has not been read since it was sent back to the committed offset
                let is_clean = rebalance.position(at).is_none_or(|position| position == offset.unwrap_or(0));
                let count = if is_clean { &self.0.clean } else { &self.0.unclean };
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
    }

    fn lost<'a>(
        &'a mut self,
        _: Rebalance<'a>,
        partitions: &'a [TopicPartition],
        _: ottla_client::LostReason,
    ) -> Callback<'a> {
        self.0.lost.fetch_add(partitions.len(), Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }
}

/// One worker: a consumer, a producer.
struct Worker {
    client: ClientSettings,
    name: String,
    number: u32,
    counts: Arc<Counts>,
    stop: watch::Receiver<bool>,
    /// Stand still once, with an open transaction.
    freeze: Option<Arc<AtomicBool>>,
}

impl Worker {
    async fn run(self) -> Result<(), Failure> {
        let id = format!("{}-worker-{}", self.name, self.number);
        let settings = TransactionalSettings::new(self.client.clone(), id);
        let mut producer = TransactionalProducer::init(settings.clone()).await?;
        let settings_of_consumer = ConsumerSettings::new(self.client.clone())
            .group_id(self.name.as_str())
            .assignors(vec![Assignor::CooperativeSticky])
            .heartbeat_interval(Duration::from_millis(300))
            .max_poll_interval(MAX_POLL_INTERVAL)
            .offset_reset(OffsetReset::Earliest);
        let mut consumer = Consumer::connect(settings_of_consumer).await?;
        consumer.set_listener(Listener(Arc::clone(&self.counts)));
        consumer.subscribe(&[&format!("{}-source", self.name)]).await?;
        while !*self.stop.borrow() {
            let records = consumer.poll(POLL).await?;
            if records.is_empty() {
                continue;
            }
            let Err(error) = self.copy(&mut producer, &consumer, records).await else { continue };
            eprintln!("worker {}: {error}", self.number);
            // nothing of it is visible: what is still ours is read again
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

    /// One transaction: the records of one poll, and how far each of their partitions was read.
    async fn copy(
        &self,
        producer: &mut TransactionalProducer,
        consumer: &Consumer,
        records: Vec<ConsumerRecord>,
    ) -> Result<(), TransactionError> {
        let mut next: BTreeMap<TopicPartition, i64> = BTreeMap::new();
        let transaction = producer.begin().await?;
        for record in records {
            next.insert(record.topic_partition.clone(), record.offset + 1);
            let copy = Record::to(format!("{}-sink", self.name)).partition(0);
            let from = record.topic_partition.partition.to_string();
            if let Err(error) = transaction.send(copy.key(from).value(record.value.unwrap_or_default())).await
            {
                transaction.abort().await?;
                return Err(TransactionError::Aborted { cause: error.to_string() });
            }
        }
        let is_frozen = self.freeze.as_ref().is_some_and(|freeze| freeze.swap(false, Ordering::SeqCst));
        if is_frozen {
            let flushed = transaction.flush().await;
            println!("worker {} stands still with an open transaction: {flushed:?}", self.number);
            let _ = tokio::time::timeout(2 * MAX_POLL_INTERVAL, std::future::pending::<()>()).await;
        }
        let offsets: Vec<_> = next.into_iter().map(|(at, offset)| OffsetToCommit::new(at, offset)).collect();
        let group = consumer.group_metadata().expect("group.id is set");
        match transaction.send_offsets(&offsets, &group).await {
            Ok(()) => transaction.commit().await,
            Err(error) => {
                if is_frozen {
                    self.counts.refused.fetch_add(1, Ordering::SeqCst);
                }
                transaction.abort().await?;
                Err(error)
            }
        }
    }
}

/// Writes the next numbers to all partitions.
async fn feed(producer: &Producer, name: &str, phase: usize) -> Result<(), Failure> {
    for number in 0..NUMBERS {
        for partition in 0..PARTITIONS {
            let value = (phase * NUMBERS + number).to_string();
            let record = Record::to(format!("{name}-source")).partition(partition).value(value);
            drop(producer.send(record).await?); // flush tells
        }
        if number % 10 == 0 {
            producer.flush().await?;
            let _ = tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
        }
    }
    producer.flush().await?;
    Ok(())
}

/// Reads the sink until it has `count` numbers; by source partition.
async fn collect(
    sink: &mut Consumer,
    seen: &mut BTreeMap<i32, Vec<usize>>,
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

/// The whole story, with topics, group and ids that begin with `name`.
pub(crate) async fn run(client: ClientSettings, name: &str) -> Result<(), Failure> {
    let admin = Admin::connect(client.clone()).await?;
    admin.create_topic(&NewTopic::new(format!("{name}-source"), PARTITIONS)).await?;
    admin.create_topic(&NewTopic::new(format!("{name}-sink"), 1)).await?;
    let mut sink = Consumer::connect(ConsumerSettings::new(client.clone())).await?;
    sink.assign(&[(TopicPartition::new(format!("{name}-sink"), 0), StartAt::Beginning)]).await?;
    let feeder = Producer::connect(ProducerSettings::new(client.clone())).await?;
    let counts = Arc::new(Counts::default());
    let freeze = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    let mut start = |number, freeze: Option<&Arc<AtomicBool>>| {
        let (stop, stopped) = watch::channel(false);
        let worker = Worker {
            client: client.clone(),
            name: name.to_owned(),
            number,
            counts: Arc::clone(&counts),
            stop: stopped,
            freeze: freeze.cloned(),
        };
        workers.spawn(worker.run());
        stop
    };
    let per_phase = NUMBERS * usize::try_from(PARTITIONS)?;
    let mut seen = BTreeMap::new();

    let stop_first = start(1, None);
    feed(&feeder, name, 0).await?;
    collect(&mut sink, &mut seen, per_phase).await?;
    let stop_second = start(2, Some(&freeze)); // comes while numbers flow
    feed(&feeder, name, 1).await?;
    while counts.clean.load(Ordering::SeqCst) == 0 {
        let _ = tokio::time::timeout(POLL, std::future::pending::<()>()).await;
    }
    let stop_third = start(3, None);
    feed(&feeder, name, 2).await?;
    collect(&mut sink, &mut seen, 3 * per_phase).await?;
    println!("three workers; partitions handed over: {}", counts.clean.load(Ordering::SeqCst));

    stop_first.send_replace(true); // leaves while numbers flow
    feed(&feeder, name, 3).await?;
    freeze.store(true, Ordering::SeqCst);
    feed(&feeder, name, 4).await?;
    collect(&mut sink, &mut seen, 5 * per_phase).await?;
    while counts.lost.load(Ordering::SeqCst) == 0 {
        let _ = tokio::time::timeout(POLL, std::future::pending::<()>()).await; // until it has noticed
    }

    stop_second.send_replace(true);
    stop_third.send_replace(true);
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    // anything doubled would come behind what was expected
    if let Some(record) = sink.poll(Duration::from_secs(1)).await?.first() {
        return Err(format!("an extra record: {record:?}").into());
    }
    check(&seen, &counts)
}

fn check(seen: &BTreeMap<i32, Vec<usize>>, counts: &Counts) -> Result<(), Failure> {
    let expected: Vec<usize> = (0..5 * NUMBERS).collect();
    for partition in 0..PARTITIONS {
        if seen.get(&partition) != Some(&expected) {
            return Err(format!("partition {partition}: {:?}", seen.get(&partition)).into());
        }
    }
    let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    let (clean, unclean) = (count(&counts.clean), count(&counts.unclean));
    let (lost, refused) = (count(&counts.lost), count(&counts.refused));
    println!(
        "{clean} partitions handed over clean, {lost} taken from a frozen worker, {refused} transactions refused"
    );
    if unclean > 0 || clean == 0 || lost == 0 || refused != 1 {
        return Err(format!("{unclean} partitions were handed over unclean: {counts:?}").into());
    }
    println!("every number once and in order");
    Ok(())
}

#[allow(dead_code)] // a test runs `run` instead
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let bootstrap = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9092".to_owned());
    let name = format!("handoff-{}", std::process::id());
    tokio::time::timeout(LIMIT, run(ClientSettings::new(&bootstrap)?, &name)).await?
}
