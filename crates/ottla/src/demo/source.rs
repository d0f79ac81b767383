//! The demonstration's source: lines to the input topic, from where the last one that is committed left off.
//!
//! Its position is an offset of a group on its own, in the same transaction as the records.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use ottla_client::{
    Consumer, GroupMetadata, OffsetToCommit, Producer, Record, TopicPartition, Transaction, TransactionError,
    TransactionalProducer,
};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::time;

use super::children::{COMMIT_EVERY, ChildOptions, in_transaction, positions};
use super::lines::{Input, Lines, key};
use super::{INPUT_TOPIC, SOURCE_GROUP};
use crate::broker_process::parent_gone;

/// Transactions per second.
const TRANSACTIONS_PER_SECOND: u64 = 40;
/// One transaction in so many is aborted on purpose.
const ABORT_ONE_IN: u64 = 40;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    child: ChildOptions,
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let gone = parent_gone()?;
    tokio::select! {
        result = write(&options.child) => result.map(|()| ExitCode::SUCCESS),
        () = gone => Ok(ExitCode::SUCCESS),
    }
}

async fn write(options: &ChildOptions) -> Result<()> {
    let input = options.input()?;
    if options.at_least_once {
        write_at_least_once(options, &input).await
    } else {
        write_exactly_once(options, &input).await
    }
}

/// Where the position is kept.
fn place() -> TopicPartition {
    TopicPartition::new(INPUT_TOPIC, 0)
}

async fn position(consumer: &Consumer) -> Result<u64> {
    let positions = positions(consumer, SOURCE_GROUP, &[place()]).await?;
    Ok(positions.first().map_or(0, |(_, offset)| offset.unsigned_abs()))
}

/// The next lines.
fn batch(options: &ChildOptions, lines: &mut Lines) -> Result<Vec<(u64, Vec<u8>)>> {
    let size = usize::try_from((options.rate / TRANSACTIONS_PER_SECOND).max(1))?;
    let mut batch = Vec::new();
    while batch.len() < size {
        match lines.next()? {
            Some(line) => batch.push(line),
            None => break,
        }
    }
    Ok(batch)
}

fn records<'a>(
    options: &'a ChildOptions,
    batch: &'a [(u64, Vec<u8>)],
    transaction: &'a str,
) -> impl Iterator<Item = Record> + 'a {
    batch.iter().map(move |(number, line)| {
        let record = Record::to(INPUT_TOPIC).key(key(*number, options.keys)).value(line.clone());
        in_transaction(record, *number, transaction, batch.len())
    })
}

async fn write_exactly_once(options: &ChildOptions, input: &Input) -> Result<()> {
    let mut rng = SeededRng::new(options.seed ^ options.incarnation.wrapping_mul(31));
    let mut producer = TransactionalProducer::init(options.transactional()?).await?;
    let consumer = Consumer::connect(options.consumer()?).await?;
    let mut next = position(&consumer).await?;
    let mut lines = input.lines(next)?;
    let mut tick = Tick::new();
    for number in 0_u64.. {
        let batch = batch(options, &mut lines)?;
        if batch.is_empty() {
            return Ok(());
        }
        let name = format!("{}-{}-{number}", options.name, options.incarnation);
        let transaction = producer.begin().await?;
        let after = next + batch.len() as u64;
        let written = write_transaction(options, &transaction, &batch, &name, after).await;
        let committed = match written {
            Ok(()) if rng.one_in(ABORT_ONE_IN) => transaction.abort().await.map(|()| false)?,
            Ok(()) => ended(transaction.commit().await)?,
            Err(error) => {
                tracing::warn!(%error, "transaction failed, is aborted");
                transaction.abort().await.map(|()| false)?
            }
        };
        if committed {
            next = after;
        } else {
            lines = input.lines(next)?;
        }
        tick.wait().await;
    }
    Ok(())
}

/// Whether a commit took place; an abort is no error.
pub(super) fn ended(result: Result<(), TransactionError>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(TransactionError::Aborted { cause }) => {
            tracing::warn!(cause, "transaction was aborted");
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

async fn write_transaction(
    options: &ChildOptions,
    transaction: &Transaction<'_>,
    batch: &[(u64, Vec<u8>)],
    name: &str,
    after: u64,
) -> Result<()> {
    for record in records(options, batch, name) {
        transaction.send(record).await?;
    }
    let position = OffsetToCommit::new(place(), i64::try_from(after)?);
    transaction.send_offsets(&[position], &GroupMetadata::without_members(SOURCE_GROUP)).await?;
    Ok(())
}

async fn write_at_least_once(options: &ChildOptions, input: &Input) -> Result<()> {
    let producer = Producer::connect(options.producer()?).await?;
    let consumer = Consumer::connect(options.consumer()?).await?;
    let group = GroupMetadata::without_members(SOURCE_GROUP);
    let mut next = position(&consumer).await?;
    let mut lines = input.lines(next)?;
    let mut tick = Tick::new();
    let mut committed_at = time::now();
    for number in 0_u64.. {
        let batch = batch(options, &mut lines)?;
        let name = format!("{}-{}-{number}", options.name, options.incarnation);
        for record in records(options, &batch, &name) {
            producer.send(record).await?;
        }
        next += batch.len() as u64;
        if batch.is_empty() || committed_at.elapsed() >= COMMIT_EVERY {
            producer.flush().await?;
            consumer.commit(&group, &[OffsetToCommit::new(place(), i64::try_from(next)?)]).await?;
            committed_at = time::now();
        }
        if batch.is_empty() {
            return Ok(());
        }
        tick.wait().await;
    }
    Ok(())
}

/// Keeps the pace; time lost while the broker was away is not made up for.
struct Tick {
    next: time::Instant,
}

impl Tick {
    fn new() -> Self {
        Self { next: time::now() }
    }

    async fn wait(&mut self) {
        let step = Duration::from_millis(1000 / TRANSACTIONS_PER_SECOND);
        self.next = (self.next + step).max(time::now());
        time::sleep_until(self.next).await;
    }
}
