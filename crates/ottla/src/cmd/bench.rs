//! `ottla bench`: a small benchmark with the built-in client, to see what a machine can do.
//!
//! Not for comparisons of brokers: those use other people's clients (`cargo xtask bench`).

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, Consumer, ConsumerSettings, Producer, ProducerSettings, Record, StartAt, TransactionalProducer,
    TransactionalSettings,
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
  ottla bench -X compression.type=lz4 -X linger.ms=10 -X batch.size=131072")]
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
    /// One JSON object
    #[arg(long)]
    json: bool,
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
    let mut settings = ProducerSettings::new(options.client.base()?);
    options.client.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
    let admin = Admin::connect(settings.client.clone()).await?;
    let topic = Text::from(format!("ottla-bench-{:016x}", OsRng.next_u64()));
    admin.create_topic(&NewTopic::new(topic.clone(), options.partitions)).await?;
    let result = measure(&options, &settings, &topic).await;
    if !options.keep {
        admin.delete_topic(&topic).await?;
    }
    result?;
    Ok(ExitCode::SUCCESS)
}

async fn measure(options: &Options, settings: &ProducerSettings, topic: &Text) -> Result<()> {
    let written = write(options, settings, topic).await?;
    let read = read(options, settings, topic).await?;
    let mut plain = one_by_one(options, settings, topic).await?;
    let mut commits = transactions(options, settings, topic).await?;
    let (plain, commits) = (percentiles(&mut plain), percentiles(&mut commits));
    if options.json {
        return output::json(&json!({
            "records": options.records,
            "record_bytes": options.size,
            "produce_records_per_second": written.per_second(),
            "produce_mib_per_second": written.mib_per_second(),
            "consume_records_per_second": read.per_second(),
            "consume_mib_per_second": read.mib_per_second(),
            "record_p50_us": plain.0.as_micros(),
            "record_p99_us": plain.1.as_micros(),
            "transaction_p50_us": commits.0.as_micros(),
            "transaction_p99_us": commits.1.as_micros(),
        }));
    }
    let rate =
        |rate: &Rate| format!("{:.0} records/s, {:.1} MiB/s", rate.per_second(), rate.mib_per_second());
    let pair = |(median, high): (Duration, Duration)| {
        format!("{} median, {} p99", text::duration(median), text::duration(high))
    };
    output::line(&format!("produce             {}", rate(&written)))?;
    output::line(&format!("consume             {}", rate(&read)))?;
    output::line(&format!("one record          {}", pair(plain)))?;
    output::line(&format!("one-record commit   {}", pair(commits)))
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

async fn read(options: &Options, settings: &ProducerSettings, topic: &Text) -> Result<Rate> {
    let mut consumer =
        Consumer::connect(ConsumerSettings::new(settings.client.clone()).max_poll_records(10_000)).await?;
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
