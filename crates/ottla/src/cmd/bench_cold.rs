//! `ottla bench-cold`: many partitions written side by side, then read when nothing of them is in memory.
//!
//! For `cargo xtask bench --parts cold`, which drops the page cache between the two and reads what the system says of
//! the broker's disk traffic. Each step prints one JSON object. It works with any broker, so that Apache Kafka can be
//! asked the same.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use ottla_client::admin::NewTopic;
use ottla_client::{
    Admin, Consumer, ConsumerSettings, Producer, ProducerSettings, Record, StartAt, TopicPartition,
};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::{spawn, time};
use serde_json::json;

use crate::cli::Client;
use crate::output;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    client: Client,
    /// Topic
    #[arg(long, default_value = "cold")]
    topic: String,
    /// Partitions of the topic
    #[arg(long, default_value_t = 1_000)]
    partitions: i32,
    #[command(subcommand)]
    step: Step,
}

#[derive(Clone, Debug, Subcommand)]
enum Step {
    /// Make the topic and write all partitions side by side, one batch of each after the other
    Fill {
        /// MiB of values in all
        #[arg(long, default_value_t = 2_048)]
        mib: u64,
        /// Bytes of a value
        #[arg(long, default_value_t = 1_000)]
        value: usize,
        /// Records of a batch
        #[arg(long, default_value_t = 4)]
        batch: u64,
    },
    /// Read some partitions whole, one after the other
    One {
        /// How many
        #[arg(long, default_value_t = 20)]
        count: i32,
    },
    /// Read all partitions at once, each from another place on to its end
    All {
        /// Consumers that share the partitions
        #[arg(long, default_value_t = 4)]
        readers: i32,
    },
}

/// Longest without a record.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(500);
/// Batches that are on their way at once, bytes.
const BUFFER_BYTES: usize = 256 << 20;

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let figures = match options.step {
        Step::Fill { mib, value, batch } => fill(&options, mib, value, batch).await?,
        Step::One { count } => one(&options, count.clamp(1, options.partitions)).await?,
        Step::All { readers } => all(&options, readers.clamp(1, options.partitions)).await?,
    };
    output::json(&figures)?;
    Ok(ExitCode::SUCCESS)
}

async fn fill(options: &Options, mib: u64, value: usize, batch: u64) -> Result<serde_json::Value> {
    let settings = options.client.base()?;
    let admin = Admin::connect(settings.clone()).await?;
    admin.create_topic(&NewTopic::new(options.topic.as_str(), options.partitions)).await?;
    let settings = ProducerSettings::new(settings)
        .linger(Duration::from_secs(30)) // a batch is full before
        .batch_bytes(usize::try_from(batch)? * (value + 16) + 64)
        .buffer_bytes(BUFFER_BYTES)
        .max_request_bytes(1 << 20);
    let producer = Producer::connect(settings).await?;
    let mut rng = SeededRng::new(1);
    let bytes: Bytes = (0..value / 8 + 1).flat_map(|_| rng.next_u64().to_le_bytes()).take(value).collect();
    let per_round = u64::try_from(options.partitions)? * batch * value as u64;
    let rounds = (mib << 20).div_ceil(per_round);
    let begun = time::now();
    for round in 0..rounds {
        for partition in 0..options.partitions {
            for _ in 0..batch {
                let record = Record::to(options.topic.as_str()).partition(partition).value(bytes.clone());
                drop(producer.send(record).await?); // flush tells
            }
        }
        if round % 16 == 15 {
            producer.flush().await?;
        }
    }
    producer.flush().await?;
    let seconds = begun.elapsed().as_secs_f64();
    let written = rounds * per_round;
    Ok(json!({
        "value_bytes": written,
        "records": written / value as u64,
        "seconds": seconds,
        "mb_s": written as f64 / 1e6 / seconds,
    }))
}

fn consumer_settings(options: &Options) -> Result<ConsumerSettings> {
    Ok(ConsumerSettings::new(options.client.base()?).max_poll_records(20_000))
}

/// Each partition by a consumer of its own, as somebody who comes back does.
async fn one(options: &Options, count: i32) -> Result<serde_json::Value> {
    let (mut bytes, mut took, mut longest) = (0, Duration::ZERO, Duration::ZERO);
    for number in 0..count {
        let partition = number * (options.partitions / count);
        let at = TopicPartition::new(options.topic.as_str(), partition);
        let mut consumer = Consumer::connect(consumer_settings(options)?).await?;
        let end = consumer.end_offsets(std::slice::from_ref(&at)).await?;
        let begun = time::now();
        consumer.assign(&[(at, StartAt::Beginning)]).await?;
        bytes += read(&mut consumer, &end).await?;
        took += begun.elapsed();
        longest = longest.max(begun.elapsed());
    }
    let seconds = took.as_secs_f64();
    Ok(json!({
        "partitions": count,
        "value_bytes": bytes,
        "seconds": seconds,
        "mb_s": bytes as f64 / 1e6 / seconds,
        "longest_ms": longest.as_secs_f64() * 1e3,
    }))
}

/// Where the reading of a partition begins, out of step with all others.
fn begin(partition: i32, end: i64) -> i64 {
    (i64::from(partition) * 7_919) % end.max(1)
}

async fn all(options: &Options, readers: i32) -> Result<serde_json::Value> {
    let begun = time::now();
    let mut tasks = Vec::new();
    for reader in 0..readers {
        let (settings, options) = (consumer_settings(options)?, options.clone());
        tasks.push(spawn::task("bench-cold", async move {
            let mut consumer = Consumer::connect(settings).await?;
            let own: Vec<TopicPartition> = (0..options.partitions)
                .filter(|partition| partition % readers == reader)
                .map(|partition| TopicPartition::new(options.topic.as_str(), partition))
                .collect();
            let ends = consumer.end_offsets(&own).await?;
            let places =
                ends.iter().map(|(at, end)| (at.clone(), StartAt::Offset(begin(at.partition, *end))));
            consumer.assign(&places.collect::<Vec<_>>()).await?;
            read(&mut consumer, &ends).await
        }));
    }
    let mut bytes = 0;
    for task in tasks {
        bytes += task.await.context("a reader failed")??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(json!({
        "partitions": options.partitions,
        "value_bytes": bytes,
        "seconds": seconds,
        "mb_s": bytes as f64 / 1e6 / seconds,
    }))
}

/// Reads until every partition is at its end; bytes of the values.
async fn read(consumer: &mut Consumer, ends: &BTreeMap<TopicPartition, i64>) -> Result<u64> {
    let mut left: BTreeMap<TopicPartition, i64> = ends.clone();
    left.retain(|_, end| *end > 0);
    let (mut bytes, mut progress) = (0, time::now());
    while !left.is_empty() {
        let records = consumer.poll(POLL).await?;
        if !records.is_empty() {
            progress = time::now();
        } else if progress.elapsed() > PATIENCE {
            bail!("no record for {} s, {} partitions are not at their end", PATIENCE.as_secs(), left.len());
        }
        for record in records {
            bytes += record.value.as_ref().map_or(0, |value| value.len() as u64);
            if left.get(&record.topic_partition).is_some_and(|end| record.offset + 1 >= *end) {
                left.remove(&record.topic_partition);
            }
        }
    }
    Ok(bytes)
}
