//! Calls of administrators: ListGroups, DescribeGroups, DeleteGroups, OffsetDelete.
//!
//! Place in the walk: handlers. The first two only read; the others write tombstones. A group that is named twice in a
//! request is answered once, so that no answer is larger than the state.
//!
//! Invariants: a group without a protocol (offsets of a consumer that assigns by itself) looks like an empty one
//! of the classic protocol. Nothing of a group with members is deleted, but offsets of topics that no consumer
//! in it subscribes to.

use std::collections::BTreeSet;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::delete_groups_response::DeletableGroupResult;
use ottla_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use ottla_protocol::messages::list_groups_response::ListedGroup;
use ottla_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use ottla_protocol::types::Text;

use super::classic::{self, ClassicGroup, State};
use super::protocol::Protocol;
use super::{Groups, record};
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::{NewRecord, Step};

/// First version of DescribeGroups in which an unknown group is an error (KIP-1043).
const DESCRIBE_NOT_FOUND: i16 = 6;
/// What may be done with a group, as bits of Kafka's operations: Read, Delete, Describe, DescribeConfigs,
/// AlterConfigs.
const GROUP_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// State, protocol type and type of a group, for listings.
pub(super) fn listed(protocol: &Protocol) -> (&'static str, Text, &'static str) {
    match protocol {
        Protocol::None => (State::Empty.name(), Text::EMPTY, "classic"),
        Protocol::Classic(group) => (group.state().name(), group.protocol_type(), "classic"),
        Protocol::Consumer(group) => (group.state_name(), Text::from_static("consumer"), "consumer"),
    }
}

/// Handles ListGroups.
pub(crate) fn list_groups(step: &mut Step<'_>, context: &Context, request: m::ListGroupsRequest) {
    let passes = |filter: &[Text], value: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(value))
    };
    let mut groups: Vec<ListedGroup> = step
        .state
        .groups
        .index
        .iter()
        .filter_map(|(name, group)| {
            let (state, protocol_type, kind) = listed(&group.protocol);
            let is_wanted = passes(&request.states_filter, state) && passes(&request.types_filter, kind);
            is_wanted.then(|| ListedGroup {
                group_id: name.clone(),
                protocol_type,
                group_state: Text::from_static(state),
                group_type: Text::from_static(kind),
                ..ListedGroup::default()
            })
        })
        .collect();
    groups.sort_unstable_by(|one, other| one.group_id.cmp(&other.group_id));
    let response = m::ListGroupsResponse { groups, ..m::ListGroupsResponse::default() };
    let rests_on = step.position();
    step.answer(context.token, Reply::ListGroups(response), rests_on);
}

/// Handles DescribeGroups.
pub(crate) fn describe_groups(step: &mut Step<'_>, context: &Context, request: m::DescribeGroupsRequest) {
    let mut rests_on = Position::default();
    let groups = &step.state.groups;
    let (mut described, mut seen) = (Vec::new(), BTreeSet::new());
    for id in request.groups.into_iter().filter(|id| seen.insert(id.clone())) {
        rests_on = rests_on.max(groups.rests_on(&id));
        let mut group = match groups.protocol(&id) {
            Protocol::Classic(group) => describe(group, id),
            Protocol::None if groups.exists(&id) => DescribedGroup {
                group_id: id,
                group_state: Text::from_static(State::Empty.name()),
                ..DescribedGroup::default()
            },
            Protocol::None | Protocol::Consumer(_) => not_found(groups, context.version, id),
        };
        if request.include_authorized_operations && group.error_code == 0 {
            group.authorized_operations = GROUP_OPERATIONS;
        }
        described.push(group);
    }
    let response = m::DescribeGroupsResponse { groups: described, ..m::DescribeGroupsResponse::default() };
    step.answer(context.token, Reply::DescribeGroups(response), rests_on);
}

fn not_found(groups: &Groups, version: i16, id: Text) -> DescribedGroup {
    let mut group = DescribedGroup { group_state: Text::from_static("Dead"), ..DescribedGroup::default() };
    if version >= DESCRIBE_NOT_FOUND {
        let what = if groups.exists(&id) { "is not a classic group" } else { "not found" };
        group.error_code = ErrorCode::GroupIdNotFound.code();
        group.error_message = Some(Text::from(format!("Group {id} {what}.")));
    }
    group.group_id = id;
    group
}

/// Protocol and metadata are shown once the generation is complete.
fn describe(group: &ClassicGroup, id: Text) -> DescribedGroup {
    let is_stable = group.state() == State::Stable;
    let protocol = group.protocol_name().filter(|_| is_stable).cloned();
    let members = group.members().map(|(member_id, member)| DescribedGroupMember {
        member_id: member_id.clone(),
        group_instance_id: member.instance_id().cloned(),
        client_id: member.client().0.clone(),
        client_host: member.client().1.clone(),
        member_metadata: protocol.as_ref().map(|name| member.metadata_for(name)).unwrap_or_default(),
        member_assignment: member.assignment().clone(),
        ..DescribedGroupMember::default()
    });
    DescribedGroup {
        group_state: Text::from_static(group.state().name()),
        protocol_type: group.protocol_type(),
        members: members.collect(),
        protocol_data: protocol.unwrap_or_default(),
        group_id: id,
        ..DescribedGroup::default()
    }
}

/// Handles DeleteGroups.
pub(crate) fn delete_groups(step: &mut Step<'_>, context: &Context, request: m::DeleteGroupsRequest) {
    let mut results = Vec::with_capacity(request.groups_names.len());
    let mut rests_on = Position::default();
    let mut seen = BTreeSet::new();
    for id in request.groups_names {
        if !seen.insert(id.clone()) {
            continue;
        }
        let outcome = delete_group(step, &id);
        rests_on = rests_on.max(step.state.groups.rests_on(&id));
        let (code, message) = match outcome {
            Ok(()) => (ErrorCode::None, None),
            Err(ErrorCode::NonEmptyGroup) => {
                (ErrorCode::NonEmptyGroup, Some(Text::from(format!("Group {id} has members."))))
            }
            Err(code) => (code, Some(Text::from(format!("Group {id} not found.")))),
        };
        results.push(DeletableGroupResult {
            group_id: id,
            error_code: code.code(),
            error_message: message,
            ..DeletableGroupResult::default()
        });
    }
    let response = m::DeleteGroupsResponse { results, ..m::DeleteGroupsResponse::default() };
    step.answer(context.token, Reply::DeleteGroups(response), rests_on);
}

/// Removes a group with all of its offsets, pending ones included: 69, 68.
fn delete_group(step: &mut Step<'_>, id: &Text) -> Result<(), ErrorCode> {
    let groups = &mut step.state.groups;
    if !groups.exists(id) {
        return Err(ErrorCode::GroupIdNotFound);
    }
    let mut records: Vec<NewRecord> =
        groups.of_group(id).map(|values| record::tombstone(&values.key)).collect();
    match groups.protocol(id) {
        Protocol::None => {}
        Protocol::Classic(group) if group.state() != State::Empty => return Err(ErrorCode::NonEmptyGroup),
        Protocol::Consumer(group) if !group.is_empty() => return Err(ErrorCode::NonEmptyGroup),
        Protocol::Classic(group) if group.stored().is_some() => records.push(classic::tombstone(id)),
        // Ids that were given out and nothing else.
        Protocol::Classic(_) => groups.put_protocol(id, Protocol::None),
        Protocol::Consumer(group) => records.extend(group.tombstones(id)),
    }
    classic::append(step, id, &records);
    Ok(())
}

/// Handles OffsetDelete.
pub(crate) fn offset_delete(step: &mut Step<'_>, context: &Context, request: m::OffsetDeleteRequest) {
    let id = &request.group_id;
    if let Err(code) = may_delete_offsets(&step.state.groups, id) {
        let error_code = code.code();
        let response = m::OffsetDeleteResponse { error_code, ..m::OffsetDeleteResponse::default() };
        let rests_on = step.state.groups.rests_on(id);
        return step.answer(context.token, Reply::OffsetDelete(response), rests_on);
    }
    let is_subscribed = subscriptions(&step.state.groups, id);
    let mut records = Vec::new();
    let mut answers = Vec::with_capacity(request.topics.len());
    let mut unknown = Position::default();
    for asked in &request.topics {
        let topic = step.state.topics.by_name(&asked.name);
        let mut partitions = Vec::with_capacity(asked.partitions.len());
        for partition in asked.partitions.iter().map(|partition| partition.partition_index) {
            let code = if topic.and_then(|topic| topic.partition(partition)).is_none() {
                unknown = step.state.topics.rests_on();
                ErrorCode::UnknownTopicOrPartition
            } else if is_subscribed(&asked.name) {
                ErrorCode::GroupSubscribedToTopic
            } else {
                let values = step.state.groups.get(id, &asked.name, partition);
                records.extend(values.map(|values| record::tombstone(&values.key)));
                ErrorCode::None
            };
            partitions
                .push(OffsetDeleteResponsePartition { partition_index: partition, error_code: code.code() });
        }
        let name = asked.name.clone();
        answers.push(OffsetDeleteResponseTopic { name, partitions });
    }
    drop(is_subscribed);
    classic::append(step, id, &records);
    let response = m::OffsetDeleteResponse { topics: answers, ..m::OffsetDeleteResponse::default() };
    let rests_on = step.state.groups.rests_on(id).max(unknown);
    step.answer(context.token, Reply::OffsetDelete(response), rests_on);
}

/// 24, 69, and 68 for members that are no consumers: nobody can tell what they use.
fn may_delete_offsets(groups: &Groups, id: &Text) -> Result<(), ErrorCode> {
    match groups.protocol(id) {
        Protocol::None if id.is_empty() => Err(ErrorCode::InvalidGroupId),
        Protocol::None if !groups.exists(id) => Err(ErrorCode::GroupIdNotFound),
        Protocol::Classic(group) if group.state() != State::Empty && !group.is_of_consumers() => {
            Err(ErrorCode::NonEmptyGroup)
        }
        Protocol::None | Protocol::Classic(_) | Protocol::Consumer(_) => Ok(()),
    }
}

/// Whether a member subscribes to a topic.
fn subscriptions<'a>(groups: &'a Groups, id: &Text) -> Box<dyn Fn(&Text) -> bool + 'a> {
    match groups.protocol(id) {
        Protocol::None => Box::new(|_| false),
        Protocol::Classic(group) if group.state() == State::Empty => Box::new(|_| false),
        Protocol::Classic(group) => match group.subscribed_topics() {
            Some(topics) => Box::new(move |topic| topics.contains(topic)),
            None => Box::new(|_| true), // consumers whose subscription nobody can read
        },
        Protocol::Consumer(group) => Box::new(|topic| group.is_subscribed_to(topic)),
    }
}
