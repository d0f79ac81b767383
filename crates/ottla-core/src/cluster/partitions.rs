//! CreatePartitions, versions 0 to 3 (KIP-195): a topic gets more partitions.
//!
//! Errors per topic: 3 unknown, 37 no increase or an internal topic, 39 assignment, 42 named twice, 44 more than
//! the limits allow. All topics of a request that pass become one decision. Records stay where they are: only
//! keys of new records may go to other partitions.

use std::collections::BTreeSet;
use std::sync::Arc;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use ottla_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use ottla_protocol::types::Text;

use super::{Topic, records};
use crate::command::Context;
use crate::decision::Reply;
use crate::shard::{ShardState, Step};

/// Code and text of a refusal.
type Refused = (ErrorCode, String);

/// Answers CreatePartitions.
pub(crate) fn create_partitions(step: &mut Step<'_>, context: &Context, request: m::CreatePartitionsRequest) {
    let mut names = BTreeSet::new();
    let duplicates: BTreeSet<Text> = request
        .topics
        .iter()
        .filter(|topic| !names.insert(topic.name.clone()))
        .map(|topic| topic.name.clone())
        .collect();
    let mut answered = BTreeSet::new();
    let mut new_records = Vec::new();
    let mut added = 0;
    let mut results = Vec::with_capacity(names.len());
    for topic in request.topics {
        let planned = if duplicates.contains(&topic.name) {
            if !answered.insert(topic.name.clone()) {
                continue;
            }
            Err((ErrorCode::InvalidRequest, "the topic is named twice in the request".into()))
        } else {
            plan(step.state, &topic, added)
        };
        let (error_code, error_message) = match planned {
            Ok((more, grown)) => {
                added += more;
                new_records.push(records::topic(&grown));
                (ErrorCode::None, None)
            }
            Err((code, message)) => (code, Some(message.into())),
        };
        results.push(CreatePartitionsTopicResult {
            name: topic.name,
            error_code: error_code.code(),
            error_message,
            ..Default::default()
        });
    }
    if !new_records.is_empty() && !request.validate_only {
        step.append_control(&new_records);
    }
    let rests_on = if step.has_entries() { step.position() } else { step.state.topics.rests_on() };
    let reply = m::CreatePartitionsResponse { results, ..Default::default() };
    step.answer(context.token, Reply::CreatePartitions(reply), rests_on);
}

/// How many partitions the topic gets, and the topic with them. `added`: by topics before it in the request.
fn plan(state: &ShardState, wanted: &CreatePartitionsTopic, added: usize) -> Result<(usize, Topic), Refused> {
    let unknown = || (ErrorCode::UnknownTopicOrPartition, format!("there is no topic {}", wanted.name));
    let topic: &Arc<Topic> = state.topics.by_name(&wanted.name).ok_or_else(unknown)?;
    let there = topic.partition_count;
    if topic.is_internal() {
        // A group or a transactional id lives in the partition that the count gives: it must not move.
        let reason = format!("the partition count of {} is fixed when a data folder is made", topic.name);
        return Err((ErrorCode::InvalidPartitions, reason));
    }
    let more = match wanted.count.checked_sub(there) {
        Some(more @ 1..) => more as usize,
        _ => {
            let reason = format!(
                "topic {} has {there} partitions, {} would not be an increase",
                topic.name, wanted.count
            );
            return Err((ErrorCode::InvalidPartitions, reason));
        }
    };
    if let Some(assignments) = &wanted.assignments {
        check_assignments(state.config.node_id, more, assignments.iter().map(|one| &*one.broker_ids))
            .map_err(|reason| (ErrorCode::InvalidReplicaAssignment, reason))?;
    }
    let limits = &state.config.limits;
    if wanted.count > limits.topic_partitions_max
        || state.partitions.partition_count() + added + more > limits.partitions_max
    {
        return Err((ErrorCode::PolicyViolation, "more partitions than the broker's limits allow".into()));
    }
    Ok((more, Topic { partition_count: wanted.count, ..Topic::clone(topic) }))
}

/// One assignment per new partition, each to this node alone.
fn check_assignments<'a>(
    node_id: i32,
    more: usize,
    assignments: impl ExactSizeIterator<Item = &'a [i32]>,
) -> Result<(), String> {
    if assignments.len() != more {
        return Err(format!("{more} partitions are new, {} are assigned", assignments.len()));
    }
    for broker_ids in assignments {
        super::check_replicas(node_id, broker_ids)?;
    }
    Ok(())
}
