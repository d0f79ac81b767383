//! How members go: they leave, for good or for a while, or they are fenced when a timer fires.
//!
//! Place in the walk: leaving is a heartbeat with epoch -1 or -2; the shard's tick brings the timers.
//!
//! Invariants: whoever is taken out owns nothing from then on and must join again; the group's epoch grows, and
//! the next heartbeat of anybody makes a new target. A static member that is away keeps what it has until its
//! session ends.

use std::collections::BTreeMap;

use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::assignment::Assignment;
use super::heartbeat::{Refused, existing, find};
use super::member::{AWAY_EPOCH, Current, MemberState};
use super::record::Change;
use super::{get, get_mut, migrate, settle, write};
use crate::shard::Step;

/// A member says that it goes.
pub(super) fn leave(
    step: &mut Step<'_>,
    request: &m::ConsumerGroupHeartbeatRequest,
) -> Result<m::ConsumerGroupHeartbeatResponse, Refused> {
    let (group, member_id) = (&request.group_id, &request.member_id);
    let stored = existing(step.state, group)?;
    let member = find(stored, request)?;
    if request.member_epoch == AWAY_EPOCH {
        let away = Current {
            epoch: AWAY_EPOCH,
            state: MemberState::Stable,
            pending_revocation: Assignment::default(),
            ..member.current.clone()
        };
        write(step, group, &[Change::Current(member_id.clone(), Some(away))]);
        if let Some(timers) =
            get_mut(step.state, group).and_then(|consumer| consumer.timers.get_mut(member_id))
        {
            timers.revocation = None;
        }
    } else {
        remove(step, group, std::slice::from_ref(member_id));
    }
    Ok(m::ConsumerGroupHeartbeatResponse {
        member_id: Some(member_id.clone()),
        member_epoch: request.member_epoch,
        ..Default::default()
    })
}

/// Takes members out.
pub(super) fn remove(step: &mut Step<'_>, group: &Text, member_ids: &[Text]) {
    let Some(stored) = get(step.state, group).map(|consumer| &consumer.stored) else { return };
    let mut changes: Vec<Change> = member_ids.iter().flat_map(|id| stored.removal(id)).collect();
    let mut leaving: BTreeMap<&Text, usize> = BTreeMap::new();
    for regex in member_ids.iter().filter_map(|id| stored.member(id)?.metadata.regex.as_ref()) {
        *leaving.entry(regex).or_default() += 1;
    }
    let wanted = stored.wanted_regexes();
    let unused = stored.regexes.keys().filter(|regex| wanted.get(*regex) == leaving.get(regex));
    changes.extend(unused.map(|regex| Change::Regex(regex.clone(), None)));
    // A group that becomes a classic one keeps its epoch: it is the generation that its members know.
    let becomes_classic = migrate::may_downgrade(step.state, stored, member_ids);
    if !becomes_classic {
        changes.push(Change::Group(Some((stored.epoch.saturating_add(1), stored.metadata_hash))));
    }
    write(step, group, &changes);
    for member_id in member_ids {
        forget_timers(step, group, member_id);
    }
    // The hash is of the members that were: look again at the next heartbeat.
    if let Some(consumer) = get_mut(step.state, group) {
        consumer.hashed_at = None;
    }
    if becomes_classic {
        migrate::downgrade(step, group);
    }
}

/// Stops the timers of who is no member any more.
pub(super) fn forget_timers(step: &mut Step<'_>, group: &Text, member_id: &Text) {
    if let Some(consumer) = get_mut(step.state, group) {
        consumer.timers.remove(member_id);
    }
}

/// Fires the timers of a group that are due.
pub(in crate::group) fn tick(step: &mut Step<'_>, group: &Text) {
    let now_ms = step.now.0;
    settle::refresh(step, group);
    settle::assign_late(step, group);
    let Some(consumer) = get(step.state, group) else { return };
    let is_late = |member_id: &Text, (at, epoch): (i64, i32)| {
        let current = consumer.stored.member(member_id).map(|member| &member.current);
        at <= now_ms
            && current
                .is_some_and(|current| current.state == MemberState::Unrevoked && current.epoch == epoch)
    };
    let due = consumer.timers.iter().filter(|(member_id, timers)| {
        timers.session_at <= now_ms
            || timers.turn_at.is_some_and(|at| at <= now_ms)
            || timers.revocation.is_some_and(|revocation| is_late(member_id, revocation))
    });
    let due: Vec<Text> = due.map(|(member_id, _)| member_id.clone()).collect();
    if !due.is_empty() {
        remove(step, group, &due);
    }
    let Some(consumer) = get_mut(step.state, group) else { return };
    for timers in consumer.timers.values_mut() {
        timers.revocation = timers.revocation.filter(|(at, _)| *at > now_ms);
    }
    if let Some(at) = consumer.next_deadline() {
        step.state.groups.schedule(group, at);
    }
}
