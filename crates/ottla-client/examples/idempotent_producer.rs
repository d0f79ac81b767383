//! An idempotent producer: each record is written once and in order, and each has an outcome of its own.
//!
//! `cargo run -p ottla-client --example idempotent_producer -- 127.0.0.1:9092` (`--help` shows what else it takes)
//!
//! Numbers are written under a few keys while the next ones are handed in already; a broker that is restarted in the
//! middle shows only in the time it takes. Then everything is read: each number is there once, and those of a key
//! are in the order in which they were handed in.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use ottla_client::admin::{AdminError, NewTopic};
use ottla_client::{
    Admin, ClientSettings, Codec, Consumer, ConsumerSettings, ErrorCode, Producer, ProducerSettings, Record,
    StartAt, TopicPartition,
};

type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "usage: idempotent_producer [BOOTSTRAP [TOPIC [COUNT]]]

BOOTSTRAP  HOST:PORT of any Kafka (default 127.0.0.1:9092)
TOPIC      created with 3 partitions when it does not exist (default numbers-PID)
COUNT      how many numbers are written (default 10000)";

/// How long one `poll` waits.
const POLL: Duration = Duration::from_secs(1);
/// Polls without a record after which what is missing counts as lost.
const QUIET_POLLS_MAX: usize = 10;
const KEYS: usize = 7;
const PARTITIONS: i32 = 3;
/// How many outcomes may be open; the buffer is bounded in bytes besides (`buffer.memory`).
const OPEN_MAX: usize = 1_000;

/// Writes `count` numbers to `topic` and reads them back.
pub(crate) async fn run(client: ClientSettings, topic: &str, count: usize) -> Result<(), Failure> {
    create(&client, topic).await?;
    let settings = ProducerSettings::new(client.clone())
        .compression(Codec::Lz4)
        .linger(Duration::from_millis(5)) // a batch waits so long for company
        .delivery_timeout(Duration::from_secs(60)); // how long a broker may be away
    let producer = Producer::connect(settings).await?;
    let before = ends(&client, topic).await?;
    let mut written: BTreeMap<i32, usize> = BTreeMap::new();
    let mut open = Vec::with_capacity(OPEN_MAX);
    for number in 0..count {
        let record = Record::to(topic).key(format!("key-{}", number % KEYS)).value(number.to_string());
        // waits only while the buffer is full; what comes back can be waited for, or dropped
        open.push(producer.send(record).await?);
        if open.len() == OPEN_MAX || number + 1 == count {
            producer.flush().await?; // does not wait for `linger.ms`
            for delivery in open.drain(..) {
                let outcome = delivery.wait().await?; // an error here says whether the record may exist
                *written.entry(outcome.topic_partition.partition).or_default() += 1;
            }
        }
    }
    println!("producer {} has written {count} numbers: {written:?}", producer.producer_id());
    check(&client, topic, count, &before).await
}

/// Makes the topic, unless it is there.
async fn create(client: &ClientSettings, topic: &str) -> Result<(), AdminError> {
    let admin = Admin::connect(client.clone()).await?;
    match admin.create_topic(&NewTopic::new(topic, PARTITIONS)).await {
        Err(error) if error.code() == Some(ErrorCode::TopicAlreadyExists) => Ok(()),
        result => result,
    }
}

/// Where the partitions end before anything is written.
async fn ends(client: &ClientSettings, topic: &str) -> Result<Vec<(TopicPartition, StartAt)>, Failure> {
    let mut consumer = Consumer::connect(ConsumerSettings::new(client.clone())).await?;
    consumer.assign_topic(&topic.into(), StartAt::Beginning).await?;
    let ends = consumer.end_offsets(&consumer.assignment()).await?;
    Ok(ends.into_iter().map(|(at, end)| (at, StartAt::Offset(end))).collect())
}

/// Reads what was written behind `from`: each number once, those of a key in order.
async fn check(
    client: &ClientSettings,
    topic: &str,
    count: usize,
    from: &[(TopicPartition, StartAt)],
) -> Result<(), Failure> {
    let mut consumer = Consumer::connect(ConsumerSettings::new(client.clone())).await?;
    consumer.assign(from).await?;
    let mut last: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let (mut seen, mut quiet) = (0, 0);
    while seen < count && quiet < QUIET_POLLS_MAX {
        let records = consumer.poll(POLL).await?;
        quiet = if records.is_empty() { quiet + 1 } else { 0 };
        for record in records {
            let (Some(key), Some(value)) = (record.key, record.value) else { continue };
            let number: usize = std::str::from_utf8(&value)?.parse()?;
            let expected = last.get(&*key).map_or(number % KEYS, |last| last + KEYS);
            if number != expected {
                return Err(format!("{number} follows where {expected} was due").into());
            }
            last.insert(key.to_vec(), number);
            seen += 1;
        }
    }
    if seen != count {
        return Err(format!("{seen} of {count} numbers are in {topic}").into());
    }
    println!("{count} numbers, each once and in order");
    Ok(())
}

#[allow(dead_code)] // a test runs `run` instead
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.len() > 3 || arguments.iter().any(|argument| argument.starts_with('-')) {
        println!("{USAGE}");
        return Ok(());
    }
    let bootstrap = arguments.first().map_or("127.0.0.1:9092", String::as_str);
    let topic = arguments.get(1).cloned().unwrap_or_else(|| format!("numbers-{}", std::process::id()));
    let count = arguments.get(2).map_or(Ok(10_000), |count| count.parse())?;
    run(ClientSettings::new(bootstrap)?, &topic, count).await
}
