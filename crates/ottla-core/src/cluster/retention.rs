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
    let rests_on = if step.has_entries() { step.position() } else { step.state.topics.rests_on() };
    step.answer(context.token, Reply::Done, rests_on);
}

#[cfg(test)]
mod tests {
    use ottla_protocol::types::{TopicIdPartition, Uuid};

    use crate::command::CommandBody;
    use crate::decision::Reply;
    use crate::testing::{Shard, plain, transactional};

    /// Retention moves a log start with a record that survives a load: forward only, never past the end, not of
    /// internal, compacted or unknown partitions; an open transaction goes on, and its producer is remembered.
    #[test]
    fn log_starts_move() {
        let mut shard = Shard::with(|config| config.transaction_partition_verification_enable = false);
        assert_eq!(shard.send(9, plain(8, 0, 0), 10), (0, 0));
        assert_eq!(shard.send(11, transactional(7, 0, 0), 10), (0, 10));
        let (at, unknown) = (shard.partition(0), TopicIdPartition { topic_id: Uuid([77; 16]), partition: 0 });
        let internal = TopicIdPartition { topic_id: shard.topic_id("__consumer_offsets"), partition: 0 };
        let compacted = shard.create("compacted", 1, &[("cleanup.policy", "compact")]);
        let compacted = TopicIdPartition { topic_id: compacted, partition: 0 };
        let nothing = vec![(at, 0), (at, 21), (at, -3), (unknown, 5), (internal, 1), (compacted, 1)];
        let decision = shard.run(0, CommandBody::MoveLogStarts(nothing));
        assert!(decision.entries.is_empty() && matches!(decision.answers[0].reply, Reply::Done));
        let decision = shard.run(0, CommandBody::MoveLogStarts(vec![(at, 14), (unknown, 3)]));
        assert_eq!(decision.touched.iter().filter(|touched| **touched == at).count(), 1);
        assert_eq!(shard.offsets(0), (14, 14, 20));
        assert!(shard.run(0, CommandBody::MoveLogStarts(vec![(at, 14), (at, 3)])).entries.is_empty());
        shard.reload();
        assert_eq!(shard.offsets(0), (14, 14, 20));
        shard.assert_loads();
        assert_eq!(
            shard.send(9, plain(8, 0, 0), 10),
            (0, 0),
            "a duplicate is known though its records are gone"
        );
        assert_eq!(shard.marker(0, (7, 0), true, 0, 0), 0);
        assert_eq!(shard.offsets(0), (14, 21, 21));
    }
}
