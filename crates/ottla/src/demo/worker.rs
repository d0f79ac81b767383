//! A worker of the demonstration: reads orders, transforms them, writes results, each exactly once.
//!
//! The textbook loop: results and the offsets of what they were made from are one transaction. After an abort, and
//! at every start, it begins again at the committed offsets.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use ottla_client::{
    Consumer, ConsumerRecord, GroupMetadata, OffsetToCommit, Producer, Record, StartAt, TopicPartition,
    Transaction, TransactionalProducer,
};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::time;
use ottla_protocol::types::Text;

use super::children::{COMMIT_EVERY, ChildOptions, LINE, in_transaction, positions};
use super::lines::transform;
use super::source::ended;
use super::{INPUT_TOPIC, OUTPUT_TOPIC, WORKERS_GROUP};
use crate::broker_process::parent_gone;

/// One transaction in so many is aborted on purpose.
const ABORT_ONE_IN: u64 = 40;
/// Longest wait for records.
const POLL: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    child: ChildOptions,
    /// Which of the workers
    #[arg(long)]
    index: i32,
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let gone = parent_gone()?;
    let work = async {
        if options.child.at_least_once { at_least_once(&options).await } else { exactly_once(&options).await }
    };
    tokio::select! {
        result = work => result.map(|()| ExitCode::SUCCESS),
        () = gone => Ok(ExitCode::SUCCESS),
    }
}

/// A consumer of this worker's partitions, at their committed offsets.
async fn consumer(options: &Options) -> Result<Consumer> {
    let mut consumer = Consumer::connect(options.child.consumer()?).await?;
    let count = consumer.cluster().topic(&Text::from(INPUT_TOPIC)).await?.partition_count();
    let mine = (0..count).filter(|partition| partition % options.child.workers == options.index);
    let partitions: Vec<_> = mine.map(|partition| TopicPartition::new(INPUT_TOPIC, partition)).collect();
    let start = positions(&consumer, WORKERS_GROUP, &partitions).await?;
    let start: Vec<_> = start.into_iter().map(|(at, offset)| (at, StartAt::Offset(offset))).collect();
    consumer.assign(&start).await?;
    Ok(consumer)
}

async fn exactly_once(options: &Options) -> Result<()> {
    let child = &options.child;
    let mut rng = SeededRng::new(
        child.seed ^ child.incarnation.wrapping_mul(37) ^ u64::from(options.index.unsigned_abs()),
    );
    // first the producer: it ends what the one before it left open, so that the offsets read next are final
    let mut producer = TransactionalProducer::init(child.transactional()?).await?;
    let mut consumer = consumer(options).await?;
    for number in 0_u64.. {
        let records = poll(&mut consumer).await?;
        let name = format!("{}-{}-{number}", child.name, child.incarnation);
        let transaction = producer.begin().await?;
        let written = write(&transaction, &records, &name).await;
        let committed = match written {
            Ok(()) if rng.one_in(ABORT_ONE_IN) => transaction.abort().await.map(|()| false)?,
            Ok(()) => ended(transaction.commit().await)?,
            Err(error) => {
                tracing::warn!(%error, "transaction failed, is aborted");
                transaction.abort().await.map(|()| false)?
            }
        };
        if !committed {
            for (at, offset) in positions(&consumer, WORKERS_GROUP, &consumer.assignment()).await? {
                consumer.seek(&at, offset)?;
            }
        }
    }
    Ok(())
}

async fn poll(consumer: &mut Consumer) -> Result<Vec<ConsumerRecord>> {
    loop {
        let records = consumer.poll(POLL).await?;
        if !records.is_empty() {
            return Ok(records);
        }
    }
}

async fn write(transaction: &Transaction<'_>, records: &[ConsumerRecord], name: &str) -> Result<()> {
    for record in records {
        transaction.send(result(record, name, records.len())?).await?;
    }
    transaction.send_offsets(&offsets(records), &GroupMetadata::without_members(WORKERS_GROUP)).await?;
    Ok(())
}

/// The result of an order.
fn result(order: &ConsumerRecord, transaction: &str, records: usize) -> Result<Record> {
    let line =
        order.headers.iter().find(|header| header.key == LINE).and_then(|header| header.value.as_ref());
    let line = line
        .and_then(|line| std::str::from_utf8(line).ok()?.parse().ok())
        .context("an order without its line")?;
    let mut record = Record::to(OUTPUT_TOPIC).value(transform(order.value.as_deref().unwrap_or_default()));
    record.key = order.key.clone();
    Ok(in_transaction(record, line, transaction, records))
}

/// The positions behind these records.
fn offsets(records: &[ConsumerRecord]) -> Vec<OffsetToCommit> {
    let next: BTreeMap<_, _> =
        records.iter().map(|record| (record.topic_partition.clone(), record.offset + 1)).collect();
    next.into_iter().map(|(at, offset)| OffsetToCommit::new(at, offset)).collect()
}

async fn at_least_once(options: &Options) -> Result<()> {
    let producer = Producer::connect(options.child.producer()?).await?;
    let mut consumer = consumer(options).await?;
    let group = GroupMetadata::without_members(WORKERS_GROUP);
    let mut committed_at = time::now();
    let mut pending = BTreeMap::new();
    for number in 0_u64.. {
        let records = consumer.poll(POLL).await?;
        let name = format!("{}-{}-{number}", options.child.name, options.child.incarnation);
        for record in &records {
            producer.send(result(record, &name, records.len())?).await?;
        }
        pending.extend(offsets(&records).into_iter().map(|offset| (offset.topic_partition.clone(), offset)));
        if committed_at.elapsed() >= COMMIT_EVERY {
            producer.flush().await?;
            let offsets: Vec<_> = std::mem::take(&mut pending).into_values().collect();
            consumer.commit(&group, &offsets).await?;
            committed_at = time::now();
        }
    }
    Ok(())
}
