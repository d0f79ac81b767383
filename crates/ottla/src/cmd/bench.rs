//! `ottla bench`: a small benchmark with the built-in client, to see what a machine can do.
//!
//! Not for comparisons of brokers: those use other people's clients (`cargo xtask bench`).

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, Consumer, ConsumerSettings, Producer, ProducerSettings, Record, SettingError, StartAt,
    TransactionalProducer, TransactionalSettings,
};
use ottla_env::rng::{OsRng, Rng, SeededRng};
use ottla_env::time;
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::Client;
use crate::{output, text};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla bench --records 1000000 --size 100
  ottla bench --transactions 500            one-record transactions, one after the other
  ottla bench -X compression.type=lz4 -X linger.ms=10 -X batch.size=131072
  ottla bench --only consume --topic orders --records 1000000     what is there already")]
pub(crate) struct Options {
    #[command(flatten)]
    client: Client,
    /// Records to write and read
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Bytes of a record's value
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Partitions of the topic
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,
    /// One-record transactions to time
    #[arg(long, default_value_t = 200)]
    transactions: u64,
    /// Keep the topic
    #[arg(long)]
    keep: bool,
    /// A topic that exists, instead of one made for this run; it is kept
    #[arg(long, value_name = "TOPIC")]
    topic: Option<Text>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Records written
    Produce,
    /// Records read
    Consume,
    /// One record at a time, and one-record transactions
    Transactions,
}

struct Rate {
    records: u64,
    bytes: u64,
    took: Duration,
}

impl Rate {
    fn per_second(&self) -> f64 {
        self.records as f64 / self.took.as_secs_f64().max(1e-9)
    }

    fn mib_per_second(&self) -> f64 {
        self.bytes as f64 / 1_048_576.0 / self.took.as_secs_f64().max(1e-9)
    }
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let settings = Settings::of(&options.client)?;
    let admin = Admin::connect(settings.producer.client.clone()).await?;
    let own = Text::from(format!("ottla-bench-{:016x}", OsRng.next_u64()));
    let topic = options.topic.clone().unwrap_or_else(|| own.clone());
    if topic == own {
        admin.create_topic(&NewTopic::new(topic.clone(), options.partitions)).await?;
    }
    let result = measure(&options, &settings, &topic).await;
    if topic == own && !options.keep {
        admin.delete_topic(&topic).await?;
    }
    result?;
    Ok(ExitCode::SUCCESS)
}

/// What `-X` says: each setting belongs to the producer, the consumer or both.
struct Settings {
    producer: ProducerSettings,
    consumer: ConsumerSettings,
}

impl Settings {
    fn of(client: &Client) -> Result<Self> {
        let mut producer = ProducerSettings::new(client.base()?);
        let mut consumer = ConsumerSettings::new(client.base()?).max_poll_records(10_000);
        for (name, value) in &client.settings {
            match producer.set(name, value) {
                Err(SettingError::Unknown { .. }) => consumer.set(name, value)?,
                result => result?,
            }
        }
        let consumer = consumer.client(producer.client.clone());
        Ok(Self { producer, consumer })
    }
}

async fn measure(options: &Options, settings: &Settings, topic: &Text) -> Result<()> {
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    let mut report = Report { options, object: serde_json::Map::new() };
    report.object.insert("records".to_owned(), json!(options.records));
    report.object.insert("record_bytes".to_owned(), json!(options.size));
    if wants(Part::Produce) {
        report.rate("produce", &write(options, &settings.producer, topic).await?)?;
    }
    if wants(Part::Consume) {
        report.rate("consume", &read(options, &settings.consumer, topic).await?)?;
    }
    if wants(Part::Transactions) {
        let mut plain = one_by_one(options, &settings.producer, topic).await?;
        report.times("record", "one record", percentiles(&mut plain))?;
        let mut commits = transactions(options, &settings.producer, topic).await?;
        report.times("transaction", "one-record commit", percentiles(&mut commits))?;
    }
    if options.json { output::json(&serde_json::Value::Object(report.object)) } else { Ok(()) }
}

/// Lines for people as they come, or one object at the end.
struct Report<'a> {
    options: &'a Options,
    object: serde_json::Map<String, serde_json::Value>,
}

impl Report<'_> {
    fn rate(&mut self, name: &str, rate: &Rate) -> Result<()> {
        let (records, mebibytes) = (rate.per_second(), rate.mib_per_second());
        self.object.insert(format!("{name}_records_per_second"), json!(records));
        self.object.insert(format!("{name}_mib_per_second"), json!(mebibytes));
        self.line(&format!("{name:<20}{records:.0} records/s, {mebibytes:.1} MiB/s"))
    }

    fn times(&mut self, key: &str, name: &str, (median, high): (Duration, Duration)) -> Result<()> {
        self.object.insert(format!("{key}_p50_us"), json!(median.as_micros()));
        self.object.insert(format!("{key}_p99_us"), json!(high.as_micros()));
        let (median, high) = (text::duration(median), text::duration(high));
        self.line(&format!("{name:<20}{median} median, {high} p99"))
    }

    fn line(&self, line: &str) -> Result<()> {
        if self.options.json { Ok(()) } else { output::line(line) }
    }
}

/// Values that do not compress to nothing.
fn value(rng: &mut SeededRng, size: usize) -> Vec<u8> {
    let mut value = vec![0; size];
    rng.fill(&mut value);
    value.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
    value
}

async fn write(options: &Options, settings: &ProducerSettings, topic: &Text) -> Result<Rate> {
    let producer = Producer::connect(settings.clone()).await?;
    let mut rng = SeededRng::new(1);
    let values: Vec<bytes::Bytes> = (0..64).map(|_| value(&mut rng, options.size).into()).collect();
    let started = time::now();
    for index in 0..options.records {
        let value = values[(index % 64) as usize].clone();
        let partition = i32::try_from(index % u64::from(options.partitions.unsigned_abs()))?;
        producer.send(Record::to(topic.clone()).partition(partition).value(value)).await?;
    }
    producer.flush().await?;
    Ok(Rate {
        records: options.records,
        bytes: options.records * options.size as u64,
        took: started.elapsed(),
    })
}

async fn read(options: &Options, settings: &ConsumerSettings, topic: &Text) -> Result<Rate> {
    let mut consumer = Consumer::connect(settings.clone()).await?;
    let started = time::now();
    consumer.assign_topic(topic, StartAt::Beginning).await?;
    let (mut records, mut bytes) = (0, 0);
    while records < options.records {
        for record in consumer.poll(Duration::from_secs(1)).await? {
            records += 1;
            bytes += record.value.map_or(0, |value| value.len() as u64);
        }
    }
    Ok(Rate { records, bytes, took: started.elapsed() })
}

async fn one_by_one(options: &Options, settings: &ProducerSettings, topic: &Text) -> Result<Vec<Duration>> {
    let producer = Producer::connect(settings.clone().linger(Duration::ZERO)).await?;
    let mut took = Vec::new();
    for _ in 0..options.transactions {
        let started = time::now();
        producer.send(Record::to(topic.clone()).partition(0).value("one")).await?.wait().await?;
        took.push(started.elapsed());
    }
    Ok(took)
}

async fn transactions(options: &Options, settings: &ProducerSettings, topic: &Text) -> Result<Vec<Duration>> {
    let name = format!("{topic}-transactions");
    let settings = TransactionalSettings::new(settings.client.clone(), name).producer(settings.clone());
    let mut producer = TransactionalProducer::init(settings).await?;
    let mut took = Vec::new();
    for _ in 0..options.transactions {
        let started = time::now();
        let transaction = producer.begin().await?;
        transaction.send(Record::to(topic.clone()).partition(0).value("one")).await?;
        transaction.commit().await?;
        took.push(started.elapsed());
    }
    Ok(took)
}

/// Median and 99th percentile.
fn percentiles(took: &mut [Duration]) -> (Duration, Duration) {
    took.sort_unstable();
    let at = |parts: usize| took.get((took.len() * parts / 100).min(took.len().saturating_sub(1))).copied();
    (at(50).unwrap_or_default(), at(99).unwrap_or_default())
}
