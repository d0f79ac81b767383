//! ConsumerGroupDescribe, versions 0 and 1 (KIP-848; 1: how each member speaks).
//!
//! Errors per group: 35 `group.version` is 0; 69 no such group, or one of another protocol. A group that is named twice
//! is answered once, so that no answer is larger than the state.

use std::collections::BTreeSet;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::consumer_group_describe_response as response;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::member::Member;
use super::{get, settle};
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::{ShardState, Step};

/// Kafka's numbers of the two ways to speak.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;
/// What may be done to a group where nobody forbids anything: read, delete, describe, and its settings.
const ALL_GROUP_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// Handles ConsumerGroupDescribe.
pub(crate) fn consumer_group_describe(
    step: &mut Step<'_>,
    context: &Context,
    request: m::ConsumerGroupDescribeRequest,
) {
    let state = &*step.state;
    let mut rests_on = state.topics.rests_on();
    let (mut groups, mut seen) = (Vec::new(), BTreeSet::new());
    for group_id in request.group_ids.into_iter().filter(|id| seen.insert(id.clone())) {
        rests_on = Position::max(rests_on, state.groups.rests_on(&group_id));
        let mut described = describe(state, group_id);
        if request.include_authorized_operations && described.error_code == ErrorCode::None.code() {
            described.authorized_operations = ALL_GROUP_OPERATIONS;
        }
        groups.push(described);
    }
    let response = m::ConsumerGroupDescribeResponse { groups, ..Default::default() };
    step.answer(context.token, Reply::ConsumerGroupDescribe(response), rests_on);
}

fn describe(state: &ShardState, group_id: Text) -> response::DescribedGroup {
    let refused = |group_id: Text, code: ErrorCode, message: String| response::DescribedGroup {
        error_code: code.code(),
        error_message: Some(Text::from(message)),
        group_id,
        ..Default::default()
    };
    if state.cluster.features().group_version() < 1 {
        let message = "the consumer group protocol is not enabled".to_owned();
        return refused(group_id, ErrorCode::UnsupportedVersion, message);
    }
    let Some(stored) = get(state, &group_id).map(|consumer| &consumer.stored) else {
        let message = format!("there is no consumer group {group_id}");
        return refused(group_id, ErrorCode::GroupIdNotFound, message);
    };
    let members = stored.members.iter().map(|(id, member)| describe_member(state, id, member)).collect();
    let assignor = settle::preferred_assignor(stored, &state.config.group_consumer_assignors);
    response::DescribedGroup {
        group_id,
        group_state: Text::from_static(stored.state().name()),
        group_epoch: stored.epoch,
        assignment_epoch: stored.target_epoch,
        assignor_name: Text::from(assignor),
        members,
        ..Default::default()
    }
}

fn describe_member(state: &ShardState, member_id: &Text, member: &Member) -> response::Member {
    let metadata = &member.metadata;
    let target = member.target.iter().flat_map(|target| target.iter());
    response::Member {
        member_id: member_id.clone(),
        instance_id: metadata.instance_id.clone(),
        rack_id: metadata.rack_id.clone(),
        member_epoch: member.current.epoch,
        client_id: metadata.client_id.clone(),
        client_host: metadata.client_host.clone(),
        subscribed_topic_names: metadata.topics.clone(),
        subscribed_topic_regex: metadata.regex.clone(),
        assignment: assignment(state, member.current.assigned.iter().map(|(partition, _)| partition)),
        target_assignment: assignment(state, target),
        member_type: if member.is_classic() { CLASSIC_MEMBER } else { CONSUMER_MEMBER },
        ..Default::default()
    }
}

/// Partitions, ordered, with the names of their topics; deleted topics are left out.
fn assignment(
    state: &ShardState,
    partitions: impl Iterator<Item = TopicIdPartition>,
) -> response::Assignment {
    let mut topic_partitions: Vec<response::TopicPartitions> = Vec::new();
    for partition in partitions {
        match topic_partitions.last_mut() {
            Some(last) if last.topic_id == partition.topic_id => last.partitions.push(partition.partition),
            _ => {
                let Some(topic) = state.topics.by_id(partition.topic_id) else { continue };
                topic_partitions.push(response::TopicPartitions {
                    topic_id: partition.topic_id,
                    topic_name: topic.name.clone(),
                    partitions: vec![partition.partition],
                    ..Default::default()
                });
            }
        }
    }
    response::Assignment { topic_partitions, ..Default::default() }
}
