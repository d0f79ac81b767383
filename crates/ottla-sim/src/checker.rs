//! The judge: reads the whole log as a client can, and compares it with what the clients sent and were told.
//!
//! It has its own, naive idea of Kafka's rules: which batches a partition may hold, which transactions committed,
//! which offset a group has. It shares with the core nothing but the codec. The rules are those of Jepsen's
//! checker for Kafka (lost, duplicated, aborted and torn reads, offsets that go back) and a few stricter ones.

pub(crate) mod compacted;
pub(crate) mod log;
pub(crate) mod offsets;
pub(crate) mod read;
pub(crate) mod transactions;

use std::collections::BTreeMap;

use ottla_protocol::types::TopicIdPartition;

use crate::history::History;
use crate::shell::Shell;

/// How a batch or an offset commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not in a transaction.
    Plain,
    Committed,
    Aborted,
    /// Its transaction is open.
    Open,
}

/// Everything that was found, for comparing two looks at one log.
pub(crate) type Found = BTreeMap<TopicIdPartition, Vec<log::LogBatch>>;

/// Reads all partitions and judges them.
pub(crate) fn judge(shell: &Shell, history: &mut History) -> Found {
    let mut found = Found::new();
    for (partition, bounds) in &shell.published {
        match log::read_all(shell, *partition, bounds, history) {
            Ok(batches) if history.may_be_compacted(partition) => {
                let now_ms = shell.log_ms;
                found.insert(*partition, compacted::judge(*partition, bounds, &batches, now_ms, history));
            }
            Ok(batches) => {
                found.insert(*partition, batches);
            }
            Err(text) => history.violation(format!("{partition:?} cannot be read: {text}")),
        }
    }
    let mut fates = BTreeMap::new();
    for (partition, batches) in &found {
        let bounds = &shell.published[partition];
        let of_partition = log::judge_partition(*partition, bounds, batches, history);
        // Of a compacted one the whole log stands here; what its readers see was judged with what is left of it.
        if !history.may_be_compacted(partition) {
            read::judge_committed_view(*partition, bounds, batches, &of_partition, history);
        }
        fates.insert(*partition, of_partition);
    }
    judge_batches(shell, &found, history);
    let commits = offsets::judge(&found, &fates, history);
    transactions::judge(&found, &fates, &commits, history);
    judge_topics(shell, history);
    found
}

/// Every acknowledged batch is at its offset, byte for byte; no batch is there twice; none was refused.
fn judge_batches(shell: &Shell, found: &Found, history: &mut History) {
    let mut places: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    for batch in found.values().flatten() {
        if let Some(number) = batch.number {
            places.entry(number).or_default().push(batch.header.base_offset);
        }
    }
    let mut violations = Vec::new();
    for (number, sent) in history.batches.iter().enumerate() {
        let Some(bounds) = shell.published.get(&sent.partition) else {
            if !history.topics.get(&sent.topic).is_some_and(|topic| topic.delete_sent) {
                violations.push(format!("{:?} is gone and nobody deleted it", sent.partition));
            }
            continue;
        };
        let at = places.get(&number).map(Vec::as_slice).unwrap_or_default();
        if at.len() > 1 {
            violations.push(format!("batch {number} is in the log more than once: {at:?}"));
        }
        if let Some(acked) = sent.offsets.first() {
            let deleted = acked + i64::from(sent.header.last_offset_delta) < bounds.log_start_offset;
            if !deleted && at != [*acked] {
                violations.push(format!(
                    "batch {number} was acknowledged at {acked} and is at {at:?}: lost or moved"
                ));
            }
        } else if sent.refused && !sent.unknown && !at.is_empty() {
            violations.push(format!("batch {number} was refused and is at {at:?}"));
        }
    }
    violations.into_iter().for_each(|text| history.violation(text));
}

/// Created topics are there, deleted ones are not.
fn judge_topics(shell: &Shell, history: &mut History) {
    let mut violations = Vec::new();
    for (name, topic) in &history.topics {
        let Some(topic_id) = topic.id else { continue };
        let there = (0..topic.partitions)
            .filter(|partition| {
                shell.published.contains_key(&TopicIdPartition { topic_id, partition: *partition })
            })
            .count();
        let whole = usize::try_from(topic.partitions).expect("small");
        if there != 0 && there != whole {
            violations.push(format!("topic {name} has {there} of {whole} partitions"));
        }
        if topic.create_acked && there == 0 && !topic.delete_sent {
            violations.push(format!("topic {name} was created and is gone"));
        }
        if topic.delete_acked && there != 0 {
            violations.push(format!("topic {name} was deleted and is back"));
        }
    }
    violations.into_iter().for_each(|text| history.violation(text));
}
