//! The end of passes of the cleaner: each becomes a control record, all of them in one decision.

use ottla_protocol::types::TopicIdPartition;

use super::records;
use crate::clean::Cleaned;
use crate::command::Context;
use crate::decision::Reply;
use crate::shard::Step;

/// Writes down what passes have found. Partitions that are gone by now are left out.
pub(crate) fn cleaned(step: &mut Step<'_>, context: &Context, passes: &[(TopicIdPartition, Cleaned)]) {
    let there = passes.iter().filter(|(partition, _)| step.state.partitions.slot(*partition).is_some());
    let new_records: Vec<_> =
        there.flat_map(|(partition, cleaned)| records::cleaned(*partition, cleaned)).collect();
    if !new_records.is_empty() {
        step.append_control(&new_records);
    }
    let rests_on = step.position();
    step.answer(context.token, Reply::Done, rests_on);
}
