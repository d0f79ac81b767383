//! JoinGroup: who may come, under which id, and whether it starts a rebalance.
//!
//! Place in the walk: the handler's part that knows the rules; `rebalance` has the join phase.
//!
//! Invariants: an id is given by the coordinator, never taken from a client that was not told it. A static
//! member (KIP-345) that comes without an id takes the place of its instance's last one, whose id is fenced.

use std::hash::BuildHasher;

use bytes::Bytes;
use foldhash::quality::FixedState;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::join_group_response::JoinGroupResponseMember;
use ottla_protocol::types::Text;

use super::state::{ClassicGroup, JoinPhase, Member, State, Waiting};
use super::{Parked, Turn};
use crate::command::Context;
use crate::shard::{ShardState, Step};

/// First version in which a dynamic member must come with an id that it was given (KIP-394).
pub(in crate::group) const KNOWN_ID: i16 = 4;
/// First version in which the name of the protocol may be null.
const NULL_PROTOCOL: i16 = 7;
/// First version in which a leader may be told not to assign (KIP-814).
const SKIP_ASSIGNMENT: i16 = 9;
/// How long a member without an answer is waited for: it has no id to send heartbeats with.
const NEW_MEMBER_MS: i64 = 5 * 60_000;
/// Bytes of a client's name that go into the ids of its members.
const ID_PREFIX_BYTES_MAX: usize = 1024;

/// An answer that refuses.
pub(in crate::group) fn refused(code: ErrorCode, version: i16, member_id: Text) -> m::JoinGroupResponse {
    m::JoinGroupResponse {
        error_code: code.code(),
        protocol_name: (version < NULL_PROTOCOL).then_some(Text::EMPTY),
        member_id,
        ..m::JoinGroupResponse::default()
    }
}

/// What can be refused without a look at a classic group: 24, 26, 25, and the bounds.
pub(in crate::group) fn check(state: &ShardState, request: &m::JoinGroupRequest) -> Result<(), ErrorCode> {
    let (config, groups) = (&state.config, &state.groups);
    if request.group_id.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let allowed = config.group_min_session_timeout_ms..=config.group_max_session_timeout_ms;
    if !allowed.contains(&request.session_timeout_ms) {
        return Err(ErrorCode::InvalidSessionTimeout);
    }
    if !groups.exists(&request.group_id) {
        if !request.member_id.is_empty() {
            return Err(ErrorCode::UnknownMemberId);
        }
        if groups.len() >= config.limits.groups_max {
            return Err(ErrorCode::PolicyViolation);
        }
    }
    let (members, bytes) = groups.weight();
    let limits = &config.limits;
    if members >= limits.groups_members_max || bytes >= limits.groups_metadata_bytes_max {
        return Err(ErrorCode::GroupMaxSizeReached);
    }
    Ok(())
}

/// The id that a new member would get: Kafka's form, the client's or instance's name and a unique number.
pub(in crate::group) fn new_member_id(
    step: &Step<'_>,
    context: &Context,
    request: &m::JoinGroupRequest,
) -> Text {
    let name = request.group_instance_id.as_ref().unwrap_or(&context.client_id);
    let mut end = name.len().min(ID_PREFIX_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    // Tenure and token are unique together for the life of the folder; the rest only makes ids look different.
    let (epoch, token) = (step.state.shard_epoch, context.token.0);
    let salt = FixedState::with_seed(token).hash_one((step.now.0, &request.group_id[..], epoch));
    Text::from(format!(
        "{}-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        &name[..end],
        salt >> 32,
        (epoch >> 16) & 0xffff,
        epoch & 0xffff,
        token >> 48,
        token & 0xffff_ffff_ffff
    ))
}

/// What a member brings with it.
struct Coming {
    id: Text,
    instance_id: Option<Text>,
    client_id: Text,
    client_host: Text,
    session_timeout_ms: i64,
    rebalance_timeout_ms: i64,
    protocol_type: Text,
    protocols: Vec<(Text, Bytes)>,
    knows_id: bool,
    parked: Parked,
}

impl Coming {
    fn of(context: &Context, request: m::JoinGroupRequest, id: Text) -> Self {
        let rebalance_timeout_ms =
            if context.version == 0 { request.session_timeout_ms } else { request.rebalance_timeout_ms };
        let protocols = request
            .protocols
            .into_iter()
            .map(|protocol| (protocol.name.detached(), Bytes::copy_from_slice(&protocol.metadata)));
        Self {
            id,
            instance_id: request.group_instance_id.map(|id| id.detached()),
            client_id: context.client_id.detached(),
            client_host: context.client_host.detached(),
            session_timeout_ms: i64::from(request.session_timeout_ms),
            rebalance_timeout_ms: i64::from(rebalance_timeout_ms.max(0)),
            protocol_type: request.protocol_type.detached(),
            protocols: protocols.collect(),
            knows_id: !request.member_id.is_empty(),
            parked: Parked::of(context),
        }
    }
}

impl ClassicGroup {
    /// JoinGroup: the answer, or none when it waits for the end of the join phase.
    pub(super) fn join(
        &mut self,
        turn: &mut Turn,
        context: &Context,
        request: m::JoinGroupRequest,
        new_member_id: Text,
    ) -> Option<m::JoinGroupResponse> {
        let version = context.version;
        let member_id = request.member_id.clone();
        let refuse = |code| Some(refused(code, version, member_id.clone()));
        if !self.accepts(turn, &request) {
            return Some(refused(ErrorCode::GroupMaxSizeReached, version, Text::EMPTY));
        }
        if !self.supports(&request) {
            return refuse(ErrorCode::InconsistentGroupProtocol);
        }
        if !member_id.is_empty() && !self.pending.contains(&member_id) {
            return match self.check_member(&member_id, request.group_instance_id.as_ref()) {
                Err(code) => refuse(code),
                Ok(()) => self.join_existing(turn, Coming::of(context, request, member_id.detached())),
            };
        }
        let owner = request.group_instance_id.as_ref().and_then(|id| self.static_members.get(id)).cloned();
        if member_id.is_empty() && request.group_instance_id.is_none() && version >= KNOWN_ID {
            let deadline = turn.now_ms.saturating_add(i64::from(request.session_timeout_ms));
            self.pending.insert(new_member_id.clone(), deadline);
            return Some(refused(ErrorCode::MemberIdRequired, version, new_member_id));
        }
        match owner {
            Some(old_id) => {
                self.pending.remove(&member_id);
                self.replace_static(turn, Coming::of(context, request, new_member_id), &old_id)
            }
            None => {
                let id = if member_id.is_empty() { new_member_id } else { member_id.detached() };
                self.join_new(turn, Coming::of(context, request, id));
                None
            }
        }
    }

    /// Whether the group's size and bytes leave room for who asks.
    fn accepts(&self, turn: &Turn, request: &m::JoinGroupRequest) -> bool {
        let asks =
            request.protocols.iter().map(|protocol| protocol.metadata.len() + protocol.name.len() + 64);
        let member = self.members.get(&request.member_id);
        let own = member.map_or(0, Member::bytes);
        let (_, bytes) = self.weight();
        if bytes.saturating_sub(own).saturating_add(asks.sum()) > turn.rules.metadata_bytes_max {
            return false;
        }
        let size_max = turn.rules.size_max;
        // Ids that were given out do not count as members; they are bounded by themselves.
        if request.member_id.is_empty() && self.pending.len() >= turn.rules.pending_max {
            return false;
        }
        match self.state {
            State::Empty => true,
            State::PreparingRebalance => {
                member.is_some_and(|member| member.joined) || self.members.joined() < size_max
            }
            State::CompletingRebalance | State::Stable => member.is_some() || self.members.len() < size_max,
        }
    }

    /// Whether who asks has a protocol that every member supports.
    fn supports(&self, request: &m::JoinGroupRequest) -> bool {
        if self.state == State::Empty {
            return !request.protocol_type.is_empty() && !request.protocols.is_empty();
        }
        self.protocol_type.as_ref() == Some(&request.protocol_type)
            && request.protocols.iter().any(|protocol| self.members.all_support(&protocol.name))
    }

    fn join_new(&mut self, turn: &mut Turn, coming: Coming) {
        self.pending.remove(&coming.id);
        if let Some(JoinPhase::Initial { member_added, .. }) = &mut self.join_phase {
            *member_added = true;
        }
        if self.members.is_empty() {
            self.protocol_type = Some(coming.protocol_type);
        }
        turn.parked.push((coming.parked, coming.id.clone()));
        let member = Member {
            order: self.next_order,
            instance_id: coming.instance_id.clone(),
            client_id: coming.client_id,
            client_host: coming.client_host,
            rebalance_timeout_ms: coming.rebalance_timeout_ms,
            session_timeout_ms: coming.session_timeout_ms,
            protocols: coming.protocols,
            session_deadline: turn.now_ms.saturating_add(NEW_MEMBER_MS),
            joined: true,
            is_new: true,
            knows_id: coming.knows_id,
            waiting: Waiting::Join(coming.parked),
            ..Member::default()
        };
        self.next_order += 1;
        if let Some(instance_id) = coming.instance_id {
            self.static_members.insert(instance_id, coming.id.clone());
        }
        if self.leader.is_none() || self.members.is_empty() {
            self.leader = Some(coming.id.clone());
        }
        self.members.insert(coming.id, member);
        self.rebalance_or_complete(turn);
    }

    fn join_existing(&mut self, turn: &mut Turn, coming: Coming) -> Option<m::JoinGroupResponse> {
        let member = self.members.get(&coming.id)?;
        let is_unchanged = member.protocols == coming.protocols;
        let leads = self.leader.as_ref() == Some(&coming.id);
        match self.state {
            State::Empty => {
                let (version, id) = (coming.parked.version, coming.id);
                Some(refused(ErrorCode::UnknownMemberId, version, id))
            }
            State::CompletingRebalance if is_unchanged => Some(self.join_response(&coming.id)),
            State::Stable if is_unchanged && !leads => Some(self.join_response(&coming.id)),
            State::PreparingRebalance | State::CompletingRebalance | State::Stable => {
                self.update(turn, coming);
                self.rebalance_or_complete(turn);
                None
            }
        }
    }

    /// An existing member joins the next generation with what it brings.
    fn update(&mut self, turn: &mut Turn, coming: Coming) {
        let parked = coming.parked;
        let now_ms = turn.now_ms;
        let before = self.members.change(&coming.id, |member| {
            member.rebalance_timeout_ms = coming.rebalance_timeout_ms;
            member.session_timeout_ms = coming.session_timeout_ms;
            member.protocols = coming.protocols;
            member.client_id = coming.client_id;
            member.client_host = coming.client_host;
            member.knows_id = true;
            member.joined = true;
            if !member.is_new {
                member.refresh(now_ms);
            }
            std::mem::replace(&mut member.waiting, Waiting::Join(parked))
        });
        let before = before.expect("the caller has found it");
        turn.parked.push((parked, coming.id.clone()));
        // A request that it has repeated meanwhile: the later one gets the answer.
        self.answer_with(turn, &coming.id, before, ErrorCode::RebalanceInProgress);
    }

    /// A static member comes without an id: it takes the place of its instance's last one.
    fn replace_static(
        &mut self,
        turn: &mut Turn,
        coming: Coming,
        old_id: &Text,
    ) -> Option<m::JoinGroupResponse> {
        let old_leader = self.leader.clone().unwrap_or_default();
        let mut member = self.members.remove(old_id).expect("static members are members");
        self.answer_with(turn, old_id, std::mem::take(&mut member.waiting), ErrorCode::FencedInstanceId);
        let instance_id = coming.instance_id.clone().expect("the caller has found it by its instance");
        self.static_members.insert(instance_id, coming.id.clone());
        if self.leader.as_ref() == Some(old_id) {
            self.leader = Some(coming.id.clone());
        }
        member.rebalance_timeout_ms = coming.rebalance_timeout_ms;
        member.session_timeout_ms = coming.session_timeout_ms;
        member.protocols = coming.protocols;
        member.client_id = coming.client_id;
        member.client_host = coming.client_host;
        member.knows_id = false;
        member.refresh(turn.now_ms);
        let (id, parked) = (coming.id, coming.parked);
        self.members.insert(id.clone(), member);
        if self.state == State::Stable && self.select_protocol() == self.protocol_name {
            turn.store = true;
            let mut response = self.join_response(&id);
            if parked.version >= SKIP_ASSIGNMENT {
                response.skip_assignment = !response.members.is_empty();
            } else {
                // It would assign anew if it knew that it leads.
                response.leader = old_leader;
                response.members.clear();
            }
            return Some(response);
        }
        self.members.change(&id, |member| {
            member.joined = true;
            member.waiting = Waiting::Join(parked);
        });
        turn.parked.push((parked, id));
        self.rebalance_or_complete(turn);
        None
    }

    /// What a member is told of the current generation; the leader hears of all members.
    pub(super) fn join_response(&self, id: &Text) -> m::JoinGroupResponse {
        let leader = self.leader.clone().unwrap_or_default();
        let protocol = self.protocol_name.clone().unwrap_or_default();
        let mut members = Vec::new();
        if leader == *id {
            members = self
                .members
                .in_order()
                .map(|(id, member)| JoinGroupResponseMember {
                    member_id: id.clone(),
                    group_instance_id: member.instance_id.clone(),
                    metadata: member.metadata(&protocol),
                    ..JoinGroupResponseMember::default()
                })
                .collect();
        }
        m::JoinGroupResponse {
            generation_id: self.generation_id,
            protocol_type: self.protocol_type.clone(),
            protocol_name: Some(protocol),
            leader,
            member_id: id.clone(),
            members,
            ..m::JoinGroupResponse::default()
        }
    }
}
