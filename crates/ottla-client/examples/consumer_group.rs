//! A consumer group: three members share a topic, one of them leaves, and every record is read.
//!
//! `cargo run -p ottla-client --example consumer_group -- 127.0.0.1:9092`
//!
//! Positions are committed when partitions leave a member, and behind every batch, so that nothing is read twice
//! here; a member that crashed between reading and committing would leave its last batch to be read again.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, Callback, ClientSettings, Consumer, ConsumerSettings, OffsetReset, Producer, ProducerSettings,
    Rebalance, RebalanceListener, Record, TopicPartition,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// Longest the whole may take.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
const RECORDS: usize = 900;

/// Says what happens, and commits what is given up.
struct Says(usize);

impl RebalanceListener for Says {
    fn assigned<'a>(&'a mut self, _: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        println!("member {} gets {} partitions", self.0, partitions.len());
        Box::pin(std::future::ready(()))
    }

    fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        println!("member {} gives up {} partitions", self.0, partitions.len());
        Box::pin(async move {
            if let Err(error) = rebalance.commit_positions().await {
                eprintln!("they may be read again: {error}");
            }
        })
    }
}

/// Reads until told to stop.
async fn member(
    client: ClientSettings,
    name: String,
    number: usize,
    read: Arc<Mutex<Vec<String>>>,
    stop: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let settings = ConsumerSettings::new(client)
        .group_id(name.as_str())
        .heartbeat_interval(Duration::from_millis(300))
        .offset_reset(OffsetReset::Earliest);
    let mut consumer = Consumer::connect(settings).await?;
    consumer.set_listener(Says(number));
    consumer.subscribe(&[&name]).await?;
    while !*stop.borrow() {
        let records = consumer.poll(POLL).await?;
        if records.is_empty() {
            continue;
        }
        let values = records.iter().filter_map(|record| record.value.as_ref());
        let values: Vec<String> = values.map(|value| String::from_utf8_lossy(value).into_owned()).collect();
        read.lock().expect("nobody panics in here").extend(values);
        match consumer.commit_positions().await {
            Ok(()) => {}
            // the next poll takes part in the rebalance, and commits what is given up
            Err(error) if error.is_retriable() => {}
            Err(error) => return Err(error.into()),
        }
    }
    consumer.close().await?;
    Ok(())
}

/// The whole story, with a topic and a group called `name`.
pub(crate) async fn run(client: ClientSettings, name: &str) -> Result<(), Failure> {
    let admin = Admin::connect(client.clone()).await?;
    admin.create_topic(&NewTopic::new(name, 6)).await?;
    let read = Arc::new(Mutex::new(Vec::new()));
    let mut members = JoinSet::new();
    let mut stops = Vec::new();
    for number in 1..=3 {
        let (stop, stopped) = watch::channel(false);
        stops.push(stop);
        members.spawn(member(client.clone(), name.to_owned(), number, Arc::clone(&read), stopped));
    }
    let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
    for number in 0..RECORDS {
        let record = Record::to(name).partition(i32::try_from(number % 6)?).value(number.to_string());
        drop(producer.send(record).await?); // flush tells
        if number % 100 == 99 {
            producer.flush().await?;
            let _ = tokio::time::timeout(POLL, std::future::pending::<()>()).await;
        }
        if number == RECORDS / 2 {
            stops[0].send_replace(true);
        }
    }
    producer.flush().await?;
    while read.lock().expect("nobody panics in here").len() < RECORDS {
        let _ = tokio::time::timeout(POLL, std::future::pending::<()>()).await;
    }
    for stop in &stops {
        stop.send_replace(true);
    }
    while let Some(ended) = members.join_next().await {
        ended??;
    }
    let read = read.lock().expect("nobody panics in here");
    let distinct: BTreeSet<&String> = read.iter().collect();
    if read.len() != RECORDS || distinct.len() != RECORDS {
        return Err(format!("{} records were read, {} different ones", read.len(), distinct.len()).into());
    }
    println!("{RECORDS} records, each once");
    Ok(())
}

#[allow(dead_code)] // a test runs `run` instead
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let bootstrap = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9092".to_owned());
    let name = format!("group-{}", std::process::id());
    tokio::time::timeout(LIMIT, run(ClientSettings::new(&bootstrap)?, &name)).await?
}
