//! Groups that change their protocol: a classic group when a consumer joins it, and a consumer group when only
//! classic members are left (KIP-848, `group.consumer.migration.policy`).
//!
//! Place in the walk: a joining consumer is admitted here; whatever takes members out ends here.
//!
//! Invariants: members keep their ids, epochs and partitions. The records of the old protocol go in the batch
//! that brings those of the new one, so a restart finds one of the two. Nobody waits in a group that changes:
//! waiting requests are answered with 27, and classic members join again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::GroupMetadataValue;
use ottla_protocol::messages::group_metadata_value::MemberMetadata;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::heartbeat::{Refused, refused};
use super::member::{ClassicMetadata, Current, Member, Metadata};
use super::record::Change;
use super::state::Stored;
use super::{configured_session_ms, embedded, get, get_mut};
use crate::cluster::Topics;
use crate::group::classic::{self, ClassicGroup};
use crate::group::consumer::assignment::{Assigned, Assignment};
use crate::group::protocol::Protocol;
use crate::shard::{NewRecord, ShardState, Step};

/// What must be done to a group before a consumer joins.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The group as a consumer group, if it has members and is not one yet.
    pub(super) stored: Option<Arc<Stored>>,
    /// It is a classic group.
    was_classic: bool,
}

/// Whether a consumer may join this group: 69.
pub(super) fn admit(state: &ShardState, group: &Text) -> Result<Plan, Refused> {
    let Protocol::Classic(classic) = state.groups.protocol(group) else { return Ok(Plan::default()) };
    if classic.members().next().is_none() {
        return Ok(Plan { stored: None, was_classic: true });
    }
    let config = &state.config;
    let size_max = usize::try_from(config.group_consumer_max_size).unwrap_or(0);
    let fits = classic.members().count() <= size_max.min(config.limits.group_members_max);
    if !config.group_consumer_migration_policy.upgrades() || !classic.is_of_consumers() || !fits {
        return refused(ErrorCode::GroupIdNotFound, format!("{group} is a group of the classic protocol"));
    }
    match from_classic(classic, &state.topics) {
        Some(stored) => Ok(Plan { stored: Some(Arc::new(stored)), was_classic: true }),
        None => {
            let message =
                format!("the members of {group} say what they subscribe to in a way that cannot be read");
            refused(ErrorCode::GroupIdNotFound, message)
        }
    }
}

/// A classic group as a consumer group: at the epoch of its generation, with everybody at rest.
fn from_classic(classic: &ClassicGroup, topics: &Topics) -> Option<Stored> {
    let epoch = classic.generation_id();
    let mut stored = Stored::default();
    stored.apply(Change::Group(Some((epoch, 0))));
    stored.apply(Change::Target(Some((epoch, 0))));
    let mut taken: BTreeSet<TopicIdPartition> = BTreeSet::new();
    for (id, member) in classic.members().filter(|(_, member)| ClassicGroup::is_known(member)) {
        let (_, metadata) = member.protocols().first()?;
        let subscription = embedded::subscription(metadata, topics)?;
        // A leader may have given a partition twice; here it has one owner.
        let assigned = embedded::assignment(member.assignment(), topics);
        let assigned: Assignment = assigned.iter().filter(|partition| taken.insert(*partition)).collect();
        let timeout = |ms: i64| i32::try_from(ms).unwrap_or(i32::MAX);
        let (session_ms, rebalance_ms) = member.timeouts_ms();
        let (client_id, client_host) = member.client();
        let metadata = Metadata {
            instance_id: member.instance_id().cloned(),
            rack_id: subscription.rack_id,
            client_id: client_id.clone(),
            client_host: client_host.clone(),
            topics: subscription.topics,
            regex: None,
            rebalance_timeout_ms: timeout(rebalance_ms),
            server_assignor: None,
            classic: Some(ClassicMetadata {
                session_timeout_ms: timeout(session_ms),
                protocols: member.protocols().to_vec(),
            }),
        };
        let mut current = Current { epoch, previous_epoch: epoch, ..Current::default() };
        current.assigned = assigned.iter().fold(Assigned::default(), |mut all, partition| {
            all.insert(partition, epoch);
            all
        });
        stored.apply(Change::Member(id.clone(), Some(metadata)));
        stored.apply(Change::MemberTarget(id.clone(), Some(assigned)));
        stored.apply(Change::Current(id.clone(), Some(current)));
    }
    Some(stored)
}

/// Does what was planned.
pub(super) fn convert(step: &mut Step<'_>, group: &Text, plan: Plan) {
    if !plan.was_classic {
        return;
    }
    classic::dismiss(step, group);
    let mut records = vec![classic::tombstone(group)];
    if let Some(stored) = &plan.stored {
        records.extend(stored.changes().map(|change| change.encode(group)));
    }
    classic::append(step, group, &records);
    let (configured_ms, now) = (configured_session_ms(step.state, group), step.now);
    let Some(consumer) = get_mut(step.state, group) else { return };
    consumer.start_timers(configured_ms, now);
    if let Some(at) = consumer.next_deadline() {
        step.state.groups.schedule(group, at);
    }
}

/// Whether a group becomes a classic one when these members leave: only classic ones are left.
pub(super) fn may_downgrade(state: &ShardState, stored: &Stored, leaving: &[Text]) -> bool {
    let config = &state.config;
    let size_max = usize::try_from(config.group_max_size).unwrap_or(0).min(config.limits.group_members_max);
    let leaving: BTreeMap<&Text, &Arc<Member>> =
        leaving.iter().filter_map(|id| Some((id, stored.member(id)?))).collect();
    let left = stored.members.len() - leaving.len();
    let leaving_classic = leaving.values().filter(|member| member.is_classic()).count();
    let remaining = || stored.members.iter().filter(|(id, _)| !leaving.contains_key(id));
    config.group_consumer_migration_policy.downgrades()
        && (1..=size_max).contains(&left)
        && stored.classic_members() - leaving_classic == left
        && common_protocol(remaining().map(|(_, member)| &**member)).is_some()
}

/// Makes a group of classic members a classic group.
pub(super) fn downgrade(step: &mut Step<'_>, group: &Text) {
    let Some(stored) = get(step.state, group).map(|consumer| &consumer.stored) else { return };
    let Some(value) = to_classic(stored, &step.state.topics, step.now.0) else { return };
    let mut records: Vec<NewRecord> = stored.tombstones().iter().map(|change| change.encode(group)).collect();
    records.push(classic::record(group, value));
    classic::append(step, group, &records);
    classic::take_over(step, group);
}

/// A consumer group as a classic one: the generation is its epoch. None: its members share no protocol.
fn to_classic(stored: &Stored, topics: &Topics, now_ms: i64) -> Option<GroupMetadataValue> {
    let protocol = common_protocol(stored.members.values().map(|member| &**member))?;
    let members = stored.members.iter().filter_map(|(id, member)| {
        let classic = member.metadata.classic.as_ref()?;
        let (_, subscription) = classic.protocols.iter().find(|(name, _)| *name == protocol)?;
        Some(MemberMetadata {
            member_id: id.clone(),
            group_instance_id: member.metadata.instance_id.clone(),
            client_id: member.metadata.client_id.clone(),
            client_host: member.metadata.client_host.clone(),
            rebalance_timeout: member.metadata.rebalance_timeout_ms,
            session_timeout: classic.session_timeout_ms,
            subscription: subscription.clone(),
            assignment: embedded::assignment_of(member, topics),
            ..MemberMetadata::default()
        })
    });
    let members = members.collect();
    Some(GroupMetadataValue {
        protocol_type: Text::from_static(embedded::PROTOCOL_TYPE),
        generation: stored.epoch,
        protocol: Some(protocol),
        leader: stored.members.keys().next().cloned(),
        current_state_timestamp: now_ms,
        members,
        ..GroupMetadataValue::default()
    })
}

/// The first protocol of the first classic member that all of them support.
fn common_protocol<'a>(mut members: impl Iterator<Item = &'a Member>) -> Option<Text> {
    let supported = |member: &'a Member| member.metadata.classic.as_ref().map(|classic| &classic.protocols);
    let first = members.find_map(supported)?;
    let others: Vec<_> = members.filter_map(supported).collect();
    let in_all =
        |name: &&Text| others.iter().all(|protocols| protocols.iter().any(|(other, _)| other == *name));
    first.iter().map(|(name, _)| name).find(in_all).cloned()
}
