//! `ottla txn why`: who holds back readers, since when, what is hidden, and how to end it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use ottla_client::admin::{ProducerState, TransactionDescription};
use ottla_client::{Admin, Consumer, ConsumerSettings, IsolationLevel, StartAt, TopicPartition};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::time;
use ottla_protocol::types::Text;
use serde_json::{Value, json};

use super::description_json;
use crate::cli::{Client, Place};
use crate::{output, text};

/// Longest that hidden records are counted, per partition.
const COUNT_FOR: Duration = Duration::from_secs(5);

/// A partition whose readers are held back.
struct Held {
    at: TopicPartition,
    last_stable_offset: i64,
    high_watermark: i64,
    hidden: Hidden,
    holders: Vec<Holder>,
}

/// What readers do not see yet.
#[derive(Default)]
struct Hidden {
    records: u64,
    bytes: u64,
    /// All of it was counted.
    complete: bool,
}

/// An open transaction on a partition.
struct Holder {
    producer: ProducerState,
    start_offset: i64,
    /// What its coordinator says, when one knows it.
    transaction: Option<TransactionDescription>,
}

/// Runs the command.
pub(super) async fn run(admin: &Admin, client: &Client, place: &Place, json: bool) -> Result<ExitCode> {
    let topic = Text::from(place.topic.as_str());
    let partitions: Vec<TopicPartition> = match place.partition {
        Some(partition) => vec![TopicPartition::new(topic, partition)],
        None => {
            let count = admin.describe_topic(&topic).await?.partition_count;
            (0..count).map(|partition| TopicPartition::new(topic.clone(), partition)).collect()
        }
    };
    let stable = admin.last_stable_offsets(&partitions).await?;
    let ends = admin.high_watermarks(&partitions).await?;
    let mut held_back = 0;
    for at in partitions {
        let (last_stable_offset, high_watermark) = (stable[&at], ends[&at]);
        let holders = holders(admin, &at).await?;
        if holders.is_empty() && last_stable_offset >= high_watermark {
            if json {
                output::json(
                    &json!({ "topic": at.topic.as_str(), "partition": at.partition, "held_back": false }),
                )?;
            }
            continue;
        }
        held_back += 1;
        let hidden = count_hidden(client, &at, last_stable_offset, high_watermark).await?;
        let held = Held { at, last_stable_offset, high_watermark, hidden, holders };
        if json { output::json(&held.json())? } else { held.explain()? }
    }
    if held_back == 0 && !json {
        output::line(&format!(
            "nobody holds back readers of {}: all that is written can be read",
            place.topic
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The open transactions of a partition, the one that holds back readers first.
async fn holders(admin: &Admin, at: &TopicPartition) -> Result<Vec<Holder>> {
    let producers = admin.describe_producers(at).await?;
    let mut open: Vec<(i64, ProducerState)> = producers
        .into_iter()
        .filter_map(|producer| Some((producer.transaction_start_offset?, producer)))
        .collect();
    open.sort_by_key(|(start_offset, _)| *start_offset);
    let ids: Vec<i64> = open.iter().map(|(_, producer)| producer.producer_id).collect();
    let names = if ids.is_empty() { BTreeMap::new() } else { admin.transactional_ids(&ids).await? };
    let mut holders = Vec::new();
    for (start_offset, producer) in open {
        let transaction = match names.get(&producer.producer_id) {
            Some(name) => {
                let found = admin.describe_transaction(name).await?;
                // the id may have gone on to another transaction that leaves this partition out: then it hangs
                found.partitions.contains(at).then_some(found)
            }
            None => None,
        };
        holders.push(Holder { producer, start_offset, transaction });
    }
    Ok(holders)
}

/// Reads what `read_committed` readers do not see yet and counts it.
async fn count_hidden(client: &Client, at: &TopicPartition, from: i64, to: i64) -> Result<Hidden> {
    let settings = ConsumerSettings::new(client.base()?)
        .isolation(IsolationLevel::ReadUncommitted)
        .max_poll_records(10_000)
        .fetch_max_wait(Duration::from_millis(100));
    let mut consumer = Consumer::connect(settings).await?;
    consumer.assign(&[(at.clone(), StartAt::Offset(from))]).await?;
    let deadline = time::now() + COUNT_FOR;
    let mut hidden = Hidden::default();
    while consumer.position(at).is_some_and(|position| position < to) {
        if time::now() >= deadline {
            return Ok(hidden);
        }
        for record in consumer.poll(Duration::from_millis(200)).await? {
            if record.offset < to {
                hidden.records += 1;
                let bytes = record.key.as_ref().map_or(0, |key| key.len());
                hidden.bytes += (bytes + record.value.as_ref().map_or(0, |value| value.len())) as u64;
            }
        }
    }
    hidden.complete = true;
    Ok(hidden)
}

impl Held {
    fn explain(&self) -> Result<()> {
        let at_least = if self.hidden.complete { "" } else { "at least " };
        output::line(&format!(
            "{}: readers stop at offset {} of {}; hidden: {at_least}{}, {}",
            self.at,
            self.last_stable_offset,
            self.high_watermark,
            text::count(self.hidden.records, "record"),
            text::size(self.hidden.bytes),
        ))?;
        for (index, holder) in self.holders.iter().enumerate() {
            let role = if index == 0 { "held back by" } else { "then by" };
            output::line(&format!("  {role} {}", holder.describe()))?;
            output::line(&format!("    to end it: {}", holder.remedy(&self.at)))?;
        }
        if self.holders.is_empty() {
            output::line("  no transaction is open any more: readers move on with the next answer")?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "topic": self.at.topic.as_str(),
            "partition": self.at.partition,
            "held_back": true,
            "last_stable_offset": self.last_stable_offset,
            "high_watermark": self.high_watermark,
            "hidden_records": self.hidden.records,
            "hidden_bytes": self.hidden.bytes,
            "hidden_complete": self.hidden.complete,
            "holders": self.holders.iter().map(|holder| json!({
                "producer_id": holder.producer.producer_id,
                "producer_epoch": holder.producer.producer_epoch,
                "start_offset": holder.start_offset,
                "last_timestamp": holder.producer.last_timestamp,
                "transaction": holder.transaction.as_ref().map(description_json),
                "remedy": holder.remedy(&self.at),
            })).collect::<Vec<_>>(),
        })
    }
}

impl Holder {
    fn describe(&self) -> String {
        let now = OsClock.wall_ms();
        let ProducerState { producer_id, producer_epoch, last_timestamp, .. } = &self.producer;
        let from = self.start_offset;
        match &self.transaction {
            Some(transaction) => format!(
                "transactional id `{}` ({}; producer {producer_id}, epoch {producer_epoch}), from offset {from}, open \
                 for {} (since {})",
                transaction.transactional_id,
                transaction.state,
                text::duration_ms(now - transaction.start_time_ms),
                text::time(transaction.start_time_ms),
            ),
            None => format!(
                "producer {producer_id}, epoch {producer_epoch}, from offset {from}, last record {} ago; no \
                 coordinator knows this transaction: it hangs",
                text::duration_ms(now - last_timestamp),
            ),
        }
    }

    fn remedy(&self, at: &TopicPartition) -> String {
        match &self.transaction {
            Some(transaction) if transaction.state == "Ongoing" => {
                let left = transaction.start_time_ms + i64::from(transaction.timeout_ms) - OsClock.wall_ms();
                let by_itself = if left > 0 {
                    format!("the coordinator aborts it in {}", text::duration_ms(left))
                } else {
                    "its time is up, the coordinator aborts it with its next sweep".to_owned()
                };
                format!("{by_itself}; or now: ottla txn abort {}", transaction.transactional_id)
            }
            Some(transaction) => format!("it is ending ({}), readers move on soon", transaction.state),
            None => {
                format!("ottla txn abort --partition {at} --producer-id {}", self.producer.producer_id)
            }
        }
    }
}
