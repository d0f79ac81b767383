//! The classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup (KIP-62, KIP-345, KIP-394, KIP-814).
//! Members agree on an assignor and one of them, the leader, assigns.
//!
//! Place in the walk: the handlers of the four requests, of timers and of closed connections. Each takes the
//! group out of the table, lets it change (`join`, `rebalance`, `sync`, `leave`), puts it back, writes its
//! record if a generation is complete, and answers whoever is to be answered.
//!
//! Files: `state` (a group), `members` (all of its members), `stored` (its record), `join`, `rebalance` (the join
//! phase and its end, timers), `sync`, `leave`.
//!
//! Invariants: what a record says is durable and changes in [`apply`] alone; everything else of a group is
//! volatile, and after a load it is what the record says, with fresh timers. A member is answered with an
//! assignment only behind the record that contains it. A request waits in one place, and [`ParkedIndex`] knows
//! it by its connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::protocol::Protocol;
use super::{consumer, offsets_partition};
use crate::command::{ConnectionId, Context, Token};
use crate::config::CoreConfig;
use crate::decision::Reply;
use crate::event::Event;
use crate::shard::{NewRecord, Stamp, Step};

mod join;
mod leave;
mod members;
mod rebalance;
mod state;
mod stored;
mod sync;
#[cfg(test)]
mod tests;

pub(super) use join::{KNOWN_ID, check as check_join, new_member_id, refused as join_refused};
pub(super) use state::{ClassicGroup, State, subscription};
pub(super) use stored::{Stored, record, tombstone};
pub(super) use sync::refused as sync_refused;

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parked {
    token: Token,
    connection: ConnectionId,
    version: i16,
}

impl Parked {
    fn of(context: &Context) -> Self {
        Self { token: context.token, connection: context.connection, version: context.version }
    }
}

/// Requests that wait, by connection: group and member.
pub(super) type ParkedIndex = BTreeMap<(ConnectionId, Token), (Text, Text)>;

/// The settings and bounds that a group goes by.
#[derive(Clone, Copy, Debug)]
struct Rules {
    initial_rebalance_delay_ms: i64,
    size_max: usize,
    pending_max: usize,
    metadata_bytes_max: usize,
}

impl Rules {
    fn of(config: &CoreConfig) -> Self {
        let size_max = usize::try_from(config.group_max_size).unwrap_or(0);
        Self {
            initial_rebalance_delay_ms: i64::from(config.group_initial_rebalance_delay_ms),
            size_max: size_max.min(config.limits.group_members_max),
            pending_max: config.limits.group_members_max,
            metadata_bytes_max: config.limits.group_metadata_bytes_max,
        }
    }
}

/// One change of a group: what it goes by, and what comes of it beside the changed group.
#[derive(Debug)]
struct Turn {
    now_ms: i64,
    rules: Rules,
    /// Waiting requests that are answered.
    answers: Vec<(Parked, Reply)>,
    /// Requests that wait from now on, with their members.
    parked: Vec<(Parked, Text)>,
    /// The group is to be written.
    store: bool,
}

impl Turn {
    fn new(now_ms: i64, rules: Rules) -> Self {
        Self { now_ms, rules, answers: Vec::new(), parked: Vec::new(), store: false }
    }
}

/// Lets a group of the classic protocol change, then writes and answers what comes of it. A group that does not
/// exist is made for the change; it is forgotten again if nothing is left in it. Not for consumer groups.
fn change<R>(step: &mut Step<'_>, id: &Text, change: impl FnOnce(&mut ClassicGroup, &mut Turn) -> R) -> R {
    let mut turn = Turn::new(step.now.0, Rules::of(&step.state.config));
    let mut group = match step.state.groups.take_protocol(id) {
        Protocol::Classic(group) => group,
        Protocol::None => Box::default(),
        Protocol::Consumer(_) => unreachable!("the caller has looked at the protocol"),
    };
    let generation = group.generation_id();
    let result = change(&mut group, &mut turn);
    if group.generation_id() != generation {
        let (generation, members) = (group.generation_id(), group.members().count());
        step.event(Event::Rebalanced { group: id.clone(), kind: "classic", generation, members });
    }
    let record = turn.store.then(|| stored::record(id, group.value(turn.now_ms)));
    let groups = &mut step.state.groups;
    let is_left = turn.store || !group.is_nothing();
    groups.put_protocol(id, if is_left { Protocol::Classic(group) } else { Protocol::None });
    for (parked, member) in turn.parked {
        groups.parked.insert((parked.connection, parked.token), (id.detached(), member));
    }
    for (parked, _) in &turn.answers {
        groups.parked.remove(&(parked.connection, parked.token));
    }
    if let Some(record) = record {
        append(step, id, &[record]);
    }
    let rests_on = step.state.groups.rests_on(id);
    for (parked, reply) in turn.answers {
        step.answer(parked.token, reply, rests_on);
    }
    result
}

/// Writes records into the group's partition of `__consumer_offsets`.
pub(super) fn append(step: &mut Step<'_>, id: &Text, records: &[NewRecord]) {
    if !records.is_empty() {
        let partition = offsets_partition(step.state, id);
        step.append_records(partition, records, Stamp::NONE);
    }
}

/// Answers a request about a group, now.
fn answer(step: &mut Step<'_>, context: &Context, id: &Text, reply: Reply) {
    let rests_on = step.state.groups.rests_on(id);
    step.answer(context.token, reply, rests_on);
}

/// Applies a record of a classic group.
pub(super) fn apply(protocol: &mut Protocol, stored: Option<Stored>) {
    match (&mut *protocol, stored) {
        (Protocol::Classic(group), Some(stored)) => group.set_stored(Arc::new(stored)),
        (_, Some(stored)) => *protocol = Protocol::Classic(Box::new(ClassicGroup::loaded(Arc::new(stored)))),
        (Protocol::Classic(_), None) => *protocol = Protocol::None,
        (_, None) => {}
    }
}

/// Handles JoinGroup.
pub(crate) fn join_group(step: &mut Step<'_>, context: &Context, request: m::JoinGroupRequest) {
    let id = request.group_id.clone();
    let response = match step.state.groups.protocol(&id) {
        Protocol::Consumer(_) => consumer::join_group(step, context, request),
        Protocol::None | Protocol::Classic(_) => match join::check(step.state, &request) {
            Err(code) => Some(join::refused(code, context.version, request.member_id)),
            Ok(()) => {
                let new_member_id = join::new_member_id(step, context, &request);
                change(step, &id, |group, turn| group.join(turn, context, request, new_member_id))
            }
        },
    };
    if let Some(response) = response {
        answer(step, context, &id, Reply::JoinGroup(response));
    }
}

/// Handles SyncGroup.
pub(crate) fn sync_group(step: &mut Step<'_>, context: &Context, request: m::SyncGroupRequest) {
    let id = request.group_id.clone();
    let response = if let Err(code) = sync::check(context.version, &request) {
        Some(sync::refused(code))
    } else {
        match step.state.groups.protocol(&id) {
            Protocol::Consumer(_) => consumer::sync_group(step, context, request),
            Protocol::None => Some(sync::refused(ErrorCode::UnknownMemberId)),
            Protocol::Classic(_) => change(step, &id, |group, turn| group.sync(turn, context, request)),
        }
    };
    if let Some(response) = response {
        answer(step, context, &id, Reply::SyncGroup(response));
    }
}

/// Handles Heartbeat. Changes timers only, so that a quiet group's answer rests on an old decision.
pub(crate) fn heartbeat(step: &mut Step<'_>, context: &Context, request: m::HeartbeatRequest) {
    let id = &request.group_id;
    let now_ms = step.now.0;
    let code = if id.is_empty() {
        ErrorCode::InvalidGroupId
    } else if matches!(step.state.groups.protocol(id), Protocol::Consumer(_)) {
        consumer::heartbeat(step, context, &request)
    } else {
        match step.state.groups.classic_mut(id) {
            Some(group) => group.heartbeat(now_ms, &request).err().unwrap_or(ErrorCode::None),
            None => ErrorCode::UnknownMemberId,
        }
    };
    let response = m::HeartbeatResponse { error_code: code.code(), ..m::HeartbeatResponse::default() };
    answer(step, context, id, Reply::Heartbeat(response));
}

/// Handles LeaveGroup.
pub(crate) fn leave_group(step: &mut Step<'_>, context: &Context, mut request: m::LeaveGroupRequest) {
    let id = request.group_id.clone();
    if context.version < leave::MANY_MEMBERS {
        request.members = vec![m::leave_group_request::MemberIdentity {
            member_id: std::mem::take(&mut request.member_id),
            ..Default::default()
        }];
    }
    let response = if id.is_empty() {
        let error_code = ErrorCode::InvalidGroupId.code();
        m::LeaveGroupResponse { error_code, ..m::LeaveGroupResponse::default() }
    } else {
        let codes = match step.state.groups.protocol(&id) {
            Protocol::Consumer(_) => consumer::leave_group(step, context, &request),
            Protocol::None => vec![ErrorCode::UnknownMemberId; request.members.len()],
            Protocol::Classic(_) => change(step, &id, |group, turn| group.leave(turn, &request.members)),
        };
        leave::response(context.version, request.members, &codes)
    };
    answer(step, context, &id, Reply::LeaveGroup(response));
}

/// A connection is gone: nobody waits there any more.
pub(crate) fn connection_closed(step: &mut Step<'_>, connection: ConnectionId) {
    let range = (connection, Token(0))..=(connection, Token(u64::MAX));
    let waiting: Vec<(Token, Text, Text)> = step
        .state
        .groups
        .parked
        .range(range)
        .map(|((_, token), (group, member))| (*token, group.clone(), member.clone()))
        .collect();
    for (token, group, member) in waiting {
        if matches!(step.state.groups.protocol(&group), Protocol::Classic(_)) {
            change(step, &group, |group, turn| group.abandoned(turn, token, &member));
        }
        if step.state.groups.parked.remove(&(connection, token)).is_some() {
            let rests_on = step.state.groups.rests_on(&group);
            step.answer(token, Reply::Done, rests_on);
        }
    }
}

/// Fires the timers of a group that are due; putting it back schedules the next look.
pub(super) fn tick(step: &mut Step<'_>, id: &Text) {
    change(step, id, |group, turn| group.tick(turn));
}

/// The group becomes one of the consumer protocol: whoever waits is called to join again.
pub(super) fn dismiss(step: &mut Step<'_>, id: &Text) {
    change(step, id, |group, turn| group.dismiss(turn));
}

/// The group was one of the consumer protocol until its record was written just now: its members are called to
/// join again.
pub(super) fn take_over(step: &mut Step<'_>, id: &Text) {
    let (config, now) = (step.state.config.clone(), step.now);
    change(step, id, |group, turn| {
        group.begin_epoch(&config, now);
        group.prepare_rebalance(turn);
    });
}
