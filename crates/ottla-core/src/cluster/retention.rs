//! Moving log starts by retention: the shell has found out how far (`retention.ms`, `retention.bytes`), here it becomes
//! a record, so that it is durable before anything is dropped and survives every crash.
//!
//! What has changed since the shell looked is looked at once more: a topic that is gone, internal, or not to be
//! deleted from any more is passed over, and no log start moves back or past the log's end. Open transactions,
//! producers and aborted transactions are as after DeleteRecords (eos-semantics 2.3).

use ottla_protocol::types::TopicIdPartition;

use super::records;
use crate::command::Context;
use crate::decision::Reply;
use crate::shard::Step;

/// Moves the log starts of partitions up to the given offsets.
pub(crate) fn move_log_starts(step: &mut Step<'_>, context: &Context, wanted: Vec<(TopicIdPartition, i64)>) {
    let mut new_records = Vec::with_capacity(wanted.len());
    for (partition, offset) in wanted {
        let Some(topic) = step.state.topics.by_id(partition.topic_id) else { continue };
        let Some(slot) = step.state.partitions.slot(partition) else { continue };
        let there = step.state.partitions.get(slot);
        let may = !topic.is_internal() && topic.config.delete;
        if may && (there.log_start_offset() + 1..=there.log_end_offset()).contains(&offset) {
            new_records.push(records::log_start(partition, offset));
        }
    }
    if !new_records.is_empty() {
        step.append_control(&new_records);
    }
    let rests_on = step.position();
    step.answer(context.token, Reply::Done, rests_on);
}
