//! Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup are served
//! from the same epochs and assignments (KIP-848).
//!
//! A generation is the member's epoch. Nobody leads: a member that joins is answered at once, and SyncGroup gives
//! it what the coordinator assigned. It is called to join again (27) when the group moved on, when it must give
//! something up, and when what it waits for is free. An id that is no member's and was not given out is 25, so
//! that who was fenced learns it before it gets anything.
//!
//! Place in the walk: the classic handlers hand requests on when the group speaks the consumer protocol.

use std::collections::BTreeSet;

use bytes::Bytes;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::leave_group_request::MemberIdentity;
use ottla_protocol::types::Text;

use super::heartbeat::inherit;
use super::member::{ClassicMetadata, Member, MemberState, Metadata};
use super::record::Change;
use super::state::Stored;
use super::{ConsumerGroup, ID_BYTES_MAX, departure, embedded, get, get_mut, settle, write};
use crate::command::Context;
use crate::group::classic;
use crate::shard::Step;

/// JoinGroup: the answer. None: it was answered elsewhere.
pub(in crate::group) fn join_group(
    step: &mut Step<'_>,
    context: &Context,
    request: m::JoinGroupRequest,
) -> Option<m::JoinGroupResponse> {
    let group = request.group_id.clone();
    let stored = &get(step.state, &group)?.stored;
    if stored.is_empty() {
        let tombstones: Vec<Change> = stored.tombstones();
        write(step, &group, &tombstones);
        classic::join_group(step, context, request);
        return None;
    }
    let (version, member_id) = (context.version, request.member_id.clone());
    let new_member_id = classic::new_member_id(step, context, &request);
    let session_timeout_ms = i64::from(request.session_timeout_ms);
    Some(match join(step, context, request, new_member_id) {
        Ok(response) => response,
        Err((ErrorCode::MemberIdRequired, id)) => {
            let code = give_id(step, &group, &id, session_timeout_ms);
            classic::join_refused(code, version, id)
        }
        Err((code, _)) => classic::join_refused(code, version, member_id),
    })
}

/// Remembers an id for a member that must come with it within its session.
fn give_id(step: &mut Step<'_>, group: &Text, id: &Text, session_timeout_ms: i64) -> ErrorCode {
    let (now_ms, pending_max) = (step.now.0, step.state.config.limits.group_members_max);
    let Some(consumer) = get_mut(step.state, group) else { return ErrorCode::UnknownMemberId };
    consumer.pending.retain(|_, at| *at > now_ms);
    if consumer.pending.len() >= pending_max {
        return ErrorCode::GroupMaxSizeReached;
    }
    consumer.pending.insert(id.clone(), now_ms.saturating_add(session_timeout_ms));
    ErrorCode::MemberIdRequired
}

/// Where a joining member comes from.
enum From {
    /// It is new.
    Nowhere,
    /// It was there.
    Here,
    /// It takes the place of another of its instance.
    Instance(Text),
}

fn join(
    step: &mut Step<'_>,
    context: &Context,
    request: m::JoinGroupRequest,
    new_member_id: Text,
) -> Result<m::JoinGroupResponse, (ErrorCode, Text)> {
    let group = request.group_id.clone();
    let fail = |code: ErrorCode| (code, Text::EMPTY);
    classic::check_join(step.state, &request).map_err(fail)?;
    let consumer = get(step.state, &group).expect("the caller has looked");
    let stored = &consumer.stored;
    let (member_id, from) = place(consumer, context.version, &request, new_member_id)?;
    let config = &step.state.config;
    let size_max =
        usize::try_from(config.group_consumer_max_size).unwrap_or(0).min(config.limits.group_members_max);
    if matches!(from, From::Nowhere) && stored.members.len() >= size_max {
        return Err(fail(ErrorCode::GroupMaxSizeReached));
    }
    let bytes = request.protocols.iter().map(|protocol| protocol.name.len() + protocol.metadata.len());
    if bytes.sum::<usize>() > config.limits.group_metadata_bytes_max {
        return Err(fail(ErrorCode::GroupMaxSizeReached));
    }
    let protocols: Vec<(Text, Bytes)> =
        request.protocols.iter().map(|protocol| (protocol.name.clone(), protocol.metadata.clone())).collect();
    if !supports(stored, &member_id, &request.protocol_type, &protocols) {
        return Err(fail(ErrorCode::InconsistentGroupProtocol));
    }
    let metadata = protocols.first().map(|(_, metadata)| metadata.clone()).unwrap_or_default();
    let subscription = embedded::subscription(&metadata, &step.state.topics)
        .ok_or_else(|| fail(ErrorCode::InconsistentGroupProtocol))?;
    let before = match &from {
        From::Nowhere => Member::default(),
        From::Here => (**stored.member(&member_id).expect("found above")).clone(),
        From::Instance(old_id) => {
            let old = stored.member(old_id).expect("found above").clone();
            inherit(step, &group, &member_id, old_id, &old)
        }
    };
    // Believed whatever generation it names: if that is an old one, its last answer was lost.
    let owned = subscription.owned;
    let rebalance_timeout_ms =
        if context.version == 0 { request.session_timeout_ms } else { request.rebalance_timeout_ms };
    let metadata = Metadata {
        instance_id: request.group_instance_id.clone(),
        rack_id: subscription.rack_id,
        client_id: context.client_id.clone(),
        client_host: context.client_host.clone(),
        topics: subscription.topics,
        regex: None,
        rebalance_timeout_ms: rebalance_timeout_ms.max(0),
        server_assignor: None,
        classic: Some(ClassicMetadata { session_timeout_ms: request.session_timeout_ms, protocols }),
    };
    let is_new = matches!(from, From::Nowhere);
    let changed = is_new || metadata.topics != before.metadata.topics || before.metadata.regex.is_some();
    if is_new || metadata != before.metadata {
        write(step, &group, &[Change::Member(member_id.clone(), Some(metadata))]);
    }
    if let Some(consumer) = get_mut(step.state, &group) {
        consumer.pending.remove(&member_id);
    }
    settle::touch(step, &group, &member_id);
    settle::update_group(step, &group, changed);
    settle::update_member(step, &group, &member_id, Some(&owned));
    give_turn(step, &group, &member_id, true);
    let member = get(step.state, &group).and_then(|consumer| consumer.stored.member(&member_id));
    let member = member.expect("the member was let in");
    Ok(m::JoinGroupResponse {
        generation_id: member.current.epoch,
        protocol_type: Some(Text::from_static(embedded::PROTOCOL_TYPE)),
        protocol_name: Some(protocol_name(member)),
        member_id,
        ..Default::default()
    })
}

/// Which place a joining member takes, under which id: 79 with the id to come with, 82, 25.
fn place(
    consumer: &ConsumerGroup,
    version: i16,
    request: &m::JoinGroupRequest,
    new_member_id: Text,
) -> Result<(Text, From), (ErrorCode, Text)> {
    let (stored, member_id) = (&consumer.stored, &request.member_id);
    if member_id.len() > ID_BYTES_MAX {
        return Err((ErrorCode::InvalidRequest, Text::EMPTY));
    }
    let Some(instance_id) = &request.group_instance_id else {
        return match member_id.is_empty() {
            true if version >= classic::KNOWN_ID => Err((ErrorCode::MemberIdRequired, new_member_id)),
            true => Ok((new_member_id, From::Nowhere)),
            false if stored.member(member_id).is_some() => Ok((member_id.clone(), From::Here)),
            false if consumer.pending.contains_key(member_id) => Ok((member_id.clone(), From::Nowhere)),
            false => Err((ErrorCode::UnknownMemberId, Text::EMPTY)),
        };
    };
    match stored.static_member(instance_id) {
        None if member_id.is_empty() => Ok((new_member_id, From::Nowhere)),
        None => Err((ErrorCode::UnknownMemberId, Text::EMPTY)),
        Some(holder) if member_id.is_empty() => Ok((new_member_id, From::Instance(holder.clone()))),
        Some(holder) if holder == member_id => Ok((member_id.clone(), From::Here)),
        Some(_) => Err((ErrorCode::FencedInstanceId, Text::EMPTY)),
    }
}

/// Whether one of these protocols is supported by all other classic members.
fn supports(stored: &Stored, member_id: &Text, protocol_type: &Text, protocols: &[(Text, Bytes)]) -> bool {
    let others: Vec<&ClassicMetadata> = stored
        .members
        .iter()
        .filter(|(id, _)| *id != member_id)
        .filter_map(|(_, member)| member.metadata.classic.as_ref())
        .collect();
    let in_all =
        |name: &Text| others.iter().all(|other| other.protocols.iter().any(|(there, _)| there == name));
    *protocol_type == embedded::PROTOCOL_TYPE && protocols.iter().any(|(name, _)| in_all(name))
}

fn protocol_name(member: &Member) -> Text {
    let classic = member.metadata.classic.as_ref();
    classic.and_then(|classic| classic.protocols.first()).map(|(name, _)| name.clone()).unwrap_or_default()
}

/// A member of the classic protocol: 25, 82.
fn find<'a>(
    stored: &'a Stored,
    member_id: &Text,
    instance_id: Option<&Text>,
) -> Result<&'a Member, ErrorCode> {
    if let Some(instance_id) = instance_id {
        match stored.static_member(instance_id) {
            None => return Err(ErrorCode::UnknownMemberId),
            Some(holder) if holder != member_id => return Err(ErrorCode::FencedInstanceId),
            Some(_) => {}
        }
    }
    let member = stored.member(member_id).filter(|member| member.is_classic());
    member.map(|member| &**member).ok_or(ErrorCode::UnknownMemberId)
}

/// A member has the time of a rebalance for its next SyncGroup or JoinGroup; `anew` even if it runs already.
fn give_turn(step: &mut Step<'_>, group: &Text, member_id: &Text, anew: bool) {
    let now_ms = step.now.0;
    let Some(consumer) = get_mut(step.state, group) else { return };
    let Some(member) = consumer.stored.member(member_id) else { return };
    let at = now_ms.saturating_add(i64::from(member.metadata.rebalance_timeout_ms));
    let Some(timers) = consumer.timers.get_mut(member_id) else { return };
    if anew || timers.turn_at.is_none() {
        timers.turn_at = Some(at);
        step.state.groups.schedule(group, at);
    }
}

/// SyncGroup.
pub(in crate::group) fn sync_group(
    step: &mut Step<'_>,
    _context: &Context,
    request: m::SyncGroupRequest,
) -> Option<m::SyncGroupResponse> {
    Some(sync(step, &request).unwrap_or_else(classic::sync_refused))
}

fn sync(step: &mut Step<'_>, request: &m::SyncGroupRequest) -> Result<m::SyncGroupResponse, ErrorCode> {
    let (group, member_id) = (&request.group_id, &request.member_id);
    let stored = &get(step.state, group).ok_or(ErrorCode::UnknownMemberId)?.stored;
    let member = find(stored, member_id, request.group_instance_id.as_ref())?;
    if request.generation_id != member.current.epoch {
        return Err(ErrorCode::IllegalGeneration);
    }
    let name = protocol_name(member);
    if request.protocol_type.as_ref().is_some_and(|kind| *kind != embedded::PROTOCOL_TYPE)
        || request.protocol_name.as_ref().is_some_and(|asked| *asked != name)
    {
        return Err(ErrorCode::InconsistentGroupProtocol);
    }
    // Who is to give something up does that first.
    if member.current.epoch < stored.epoch && member.current.state != MemberState::Unrevoked {
        give_turn(step, group, member_id, false);
        return Err(ErrorCode::RebalanceInProgress);
    }
    let response = m::SyncGroupResponse {
        protocol_type: Some(Text::from_static(embedded::PROTOCOL_TYPE)),
        protocol_name: Some(name),
        assignment: embedded::assignment_of(member, &step.state.topics),
        ..Default::default()
    };
    settle::touch(step, group, member_id);
    if let Some(timers) = get_mut(step.state, group).and_then(|consumer| consumer.timers.get_mut(member_id)) {
        timers.turn_at = None;
    }
    Ok(response)
}

/// Heartbeat.
pub(in crate::group) fn heartbeat(
    step: &mut Step<'_>,
    _context: &Context,
    request: &m::HeartbeatRequest,
) -> ErrorCode {
    beat(step, request).err().unwrap_or(ErrorCode::None)
}

fn beat(step: &mut Step<'_>, request: &m::HeartbeatRequest) -> Result<(), ErrorCode> {
    let (group, member_id) = (&request.group_id, &request.member_id);
    let stored = &get(step.state, group).ok_or(ErrorCode::UnknownMemberId)?.stored;
    let member = find(stored, member_id, request.group_instance_id.as_ref())?;
    if request.generation_id != member.current.epoch {
        return Err(ErrorCode::IllegalGeneration);
    }
    settle::touch(step, group, member_id);
    settle::update_group(step, group, false);
    let stored = &get(step.state, group).ok_or(ErrorCode::UnknownMemberId)?.stored;
    let member = find(stored, member_id, None)?;
    let joins = member.current.epoch < stored.epoch
        || match member.current.state {
            MemberState::Stable | MemberState::Unknown => false,
            MemberState::Unrevoked => true,
            MemberState::Unreleased => !waits(stored, member_id, member),
        };
    if joins {
        give_turn(step, group, member_id, false);
        return Err(ErrorCode::RebalanceInProgress);
    }
    Ok(())
}

/// Whether something of a member's target still belongs to others.
fn waits(stored: &Stored, member_id: &Text, member: &Member) -> bool {
    let missing = member.target.iter().flat_map(|target| target.iter());
    let mut missing = missing.filter(|partition| !member.current.assigned.contains(*partition));
    missing.any(|partition| stored.owner(partition).is_some_and(|owner| owner != member_id))
}

/// LeaveGroup: a code for each member.
pub(in crate::group) fn leave_group(
    step: &mut Step<'_>,
    _context: &Context,
    request: &m::LeaveGroupRequest,
) -> Vec<ErrorCode> {
    let group = &request.group_id;
    let Some(stored) = get(step.state, group).map(|consumer| &consumer.stored) else {
        return vec![ErrorCode::UnknownMemberId; request.members.len()];
    };
    let mut leaving: BTreeSet<Text> = BTreeSet::new();
    let mut codes = Vec::with_capacity(request.members.len());
    for member in &request.members {
        codes.push(match leaver(stored, member) {
            Ok(id) if leaving.insert(id.clone()) => ErrorCode::None,
            Ok(_) => ErrorCode::UnknownMemberId,
            Err(code) => code,
        });
    }
    if !leaving.is_empty() {
        departure::remove(step, group, &Vec::from_iter(leaving));
    }
    codes
}

/// Who is meant: an administrator names instances alone.
fn leaver(stored: &Stored, member: &MemberIdentity) -> Result<Text, ErrorCode> {
    let instance_id = member.group_instance_id.as_ref();
    if member.member_id.is_empty() {
        let holder = instance_id.and_then(|instance_id| stored.static_member(instance_id));
        return holder.cloned().ok_or(ErrorCode::UnknownMemberId);
    }
    find(stored, &member.member_id, instance_id).map(|_| member.member_id.clone())
}
