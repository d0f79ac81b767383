//! `ottla txn find-hanging`: transactions that are open on a partition and that no coordinator will ever end.
//!
//! A transaction hangs when its partition has it open and no transactional id has it: none has that producer id, or
//! the id that has it has gone on without this partition. Partitions and coordinators are asked one after the other,
//! so whatever looks so is looked at once more before it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use ottla_client::admin::ProducerState;
use ottla_client::{Admin, TopicPartition};
use ottla_env::clock::{Clock, OsClock};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::{Place, place};
use crate::cmd::topic::describe::partitions;
use crate::output::Progress;
use crate::{output, text};

/// Partitions that are asked for in one go.
const AT_ONCE: usize = 500;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla txn find-hanging                       in all topics
  ottla txn find-hanging orders --silent-for 1h --json

Exit code 4: there are some. `ottla txn abort` ends them.")]
pub(super) struct Options {
    /// Topics, or partitions of them; all topics when none are given
    #[arg(value_parser = place, value_name = "TOPIC[/PARTITION]")]
    places: Vec<Place>,
    /// Only those whose producer has written nothing for this long: longer than transaction.max.timeout.ms
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = text::parse_duration)]
    silent_for: Duration,
    /// One JSON object per transaction
    #[arg(long)]
    json: bool,
}

type Found = BTreeMap<(TopicPartition, i64), ProducerState>;

/// Runs the command.
pub(super) async fn run(admin: &Admin, options: Options) -> Result<ExitCode> {
    let mut wanted = Vec::new();
    if options.places.is_empty() {
        for topic in admin.list_topics().await? {
            let indexes = 0..topic.partition_count;
            wanted.extend(indexes.map(|index| TopicPartition::new(topic.name.clone(), index)));
        }
    }
    for place in &options.places {
        wanted.extend(partitions(admin, place).await?);
    }
    let mut suspects = suspects(admin, &wanted, options.silent_for).await?;
    if !suspects.is_empty() {
        // an honest one may have ended between the two questions
        let again: BTreeSet<TopicPartition> = suspects.keys().map(|(at, _)| at.clone()).collect();
        let again: Vec<TopicPartition> = again.into_iter().collect();
        let second = self::suspects(admin, &again, options.silent_for).await?;
        suspects.retain(|key, producer| {
            second
                .get(key)
                .is_some_and(|now| now.transaction_start_offset == producer.transaction_start_offset)
        });
    }
    show(&suspects, options.json)?;
    Ok(if suspects.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(4) })
}

/// Open transactions that have been silent for long and that no coordinator has.
async fn suspects(admin: &Admin, wanted: &[TopicPartition], silent_for: Duration) -> Result<Found> {
    let oldest = OsClock.wall_ms().saturating_sub(i64::try_from(silent_for.as_millis()).unwrap_or(i64::MAX));
    let mut open = Found::new();
    let mut progress = Progress::new("partitions looked at", wanted.len());
    for chunk in wanted.chunks(AT_ONCE) {
        for (at, producers) in admin.describe_producers_of(chunk).await {
            let held = producers?.into_iter().filter(|producer| {
                producer.transaction_start_offset.is_some() && producer.last_timestamp <= oldest
            });
            open.extend(held.map(|producer| ((at.clone(), producer.producer_id), producer)));
        }
        progress.add(chunk.len());
    }
    if open.is_empty() {
        return Ok(open);
    }
    let ids: BTreeSet<i64> = open.keys().map(|(_, producer_id)| *producer_id).collect();
    let names = admin.transactional_ids(&ids.into_iter().collect::<Vec<_>>()).await?;
    let described = admin.describe_transactions(&names.values().cloned().collect::<Vec<Text>>()).await;
    let mut known: BTreeSet<(TopicPartition, i64)> = BTreeSet::new();
    for transaction in described.into_values() {
        let transaction = transaction?;
        let producer_id = transaction.producer_id;
        known.extend(transaction.partitions.into_iter().map(|at| (at, producer_id)));
    }
    open.retain(|key, _| !known.contains(key));
    Ok(open)
}

fn show(found: &Found, json: bool) -> Result<()> {
    if json {
        return found.iter().try_for_each(|((at, producer_id), producer)| {
            output::json(&json!({
                "topic": at.topic.as_str(),
                "partition": at.partition,
                "producer_id": producer_id,
                "producer_epoch": producer.producer_epoch,
                "start_offset": producer.transaction_start_offset,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
            }))
        });
    }
    if found.is_empty() {
        return output::line("no transaction hangs");
    }
    let now = OsClock.wall_ms();
    let rows: Vec<_> = found
        .iter()
        .map(|((at, producer_id), producer)| {
            vec![
                at.to_string(),
                producer_id.to_string(),
                producer.producer_epoch.to_string(),
                producer.transaction_start_offset.unwrap_or(-1).to_string(),
                text::duration_ms(now - producer.last_timestamp),
            ]
        })
        .collect();
    output::table(&["PARTITION", "PRODUCER ID", "EPOCH", "FROM OFFSET", "SILENT FOR"], &rows)?;
    let Some(((at, producer_id), _)) = found.first_key_value() else { return Ok(()) };
    output::note(&format!("to end the first: ottla txn abort --partition {at} --producer-id {producer_id}"));
    Ok(())
}
