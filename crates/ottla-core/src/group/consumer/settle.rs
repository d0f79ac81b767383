//! From a member that was changed to what it is told: group epoch, target, and the member's next step.
//!
//! Place in the walk: the last part of a heartbeat, and of whatever else admits or changes members. The member's
//! own record is written and applied before.
//!
//! Invariants: the group's epoch grows by one at most at a time. A target is made whenever its epoch is behind the
//! group's, so a member always reconciles towards the newest. Only what changed is written.

use std::collections::BTreeMap;

use ottla_protocol::types::Text;

use super::assignor::{self, ASSIGNORS, Subscriber};
use super::member::{Current, MemberState};
use super::record::Change;
use super::state::Stored;
use super::{configured_session_ms, get, get_mut, revocation, session_timeout_ms, subscription, write};
use crate::cluster::Topics;
use crate::event::Event;
use crate::group::consumer::assignment::Assignment;
use crate::shard::Step;

/// Shortest time between two searches for the topics of a group's regular expressions, as in Kafka: each looks at
/// every topic.
const REFRESH_INTERVAL_MS: i64 = 10_000;

/// Shortest time between two targets of a large group: Kafka's `group.consumer.assignment.interval.ms` (KIP-1263),
/// which holds for every group there. Whoever comes makes a new target, so when all members of a large group come at
/// once, the work would grow with the square of their number.
const ASSIGNMENT_INTERVAL_MS: i64 = 1000;
/// What is not a large group, by [`Stored::assignment_work`]: a target takes less than a millisecond.
const SMALL_ASSIGNMENT: usize = 2000;

/// Brings epoch and target of a group up to date. `changed`: members or subscriptions are not what they were.
pub(super) fn update_group(step: &mut Step<'_>, group: &Text, changed: bool) {
    let topics_at = step.state.topics.rests_on();
    let Some(consumer) = get(step.state, group) else { return };
    let topics_changed = consumer.hashed_at != Some(topics_at);
    if changed {
        let unused = subscription::unused(&consumer.stored);
        write(step, group, &unused);
    }
    if changed || topics_changed {
        write_epoch(step, group, changed);
        plan_refresh(step, group);
    }
    update_target(step, group);
}

/// Makes a new target if the group's is an old one: at once, but a large group's not again too soon. Until then its
/// members have what they had, and one that came gets nothing.
pub(super) fn update_target(step: &mut Step<'_>, group: &Text) {
    let now = step.now;
    let Some(consumer) = get_mut(step.state, group) else { return };
    let stored = &consumer.stored;
    if stored.epoch <= stored.target_epoch {
        consumer.assign_at = None; // or its timer would be due for ever
        return;
    }
    // A classic member that lags behind the group is called to join again and again.
    let waits = stored.target_epoch > 0
        && stored.classic_members() == 0
        && stored.assignment_work() > SMALL_ASSIGNMENT;
    let at = stored.target_timestamp.saturating_add(ASSIGNMENT_INTERVAL_MS);
    if waits && at > now.0 {
        consumer.assign_at = Some(at);
        step.state.groups.schedule(group, at);
        return;
    }
    consumer.assign_at = None;
    let Some(stored) = get(step.state, group).map(|consumer| &consumer.stored) else { return };
    let mut changes = new_target(stored, &step.state.topics, &step.state.config.group_consumer_assignors);
    changes.push(Change::Target(Some((stored.epoch, now.0))));
    let event = Event::Rebalanced {
        group: group.clone(),
        kind: "consumer",
        generation: stored.epoch,
        members: stored.members.len(),
    };
    step.event(event);
    write(step, group, &changes);
}

/// Makes the target that had to wait, if it is time.
pub(super) fn assign_late(step: &mut Step<'_>, group: &Text) {
    let now_ms = step.now.0;
    if get(step.state, group).and_then(|consumer| consumer.assign_at).is_some_and(|at| at <= now_ms) {
        update_target(step, group);
    }
}

/// Lets the group's epoch grow if it must, or the topics subscribed to are not what they were.
fn write_epoch(step: &mut Step<'_>, group: &Text, must: bool) {
    let topics_at = step.state.topics.rests_on();
    let Some(stored) = get(step.state, group).map(|consumer| &consumer.stored) else { return };
    let metadata_hash = subscription::hash(stored, &step.state.topics);
    if must || metadata_hash != stored.metadata_hash {
        let epoch = stored.epoch.saturating_add(1);
        write(step, group, &[Change::Group(Some((epoch, metadata_hash)))]);
    }
    if let Some(consumer) = get_mut(step.state, group) {
        consumer.hashed_at = Some(topics_at);
    }
}

/// Plans to look up the regular expressions, if one is new or the topics changed since the last time: at once, but
/// not again too soon. The heartbeat that brings an expression is answered before.
fn plan_refresh(step: &mut Step<'_>, group: &Text) {
    let (now_ms, topics_at) = (step.now.0, step.state.topics.rests_on());
    let Some(consumer) = get_mut(step.state, group) else { return };
    let wanted = consumer.stored.wanted_regexes();
    let is_behind = consumer.refresh.done.is_none_or(|(_, up_to)| up_to != topics_at);
    let is_needed = wanted.keys().any(|regex| is_behind || !consumer.stored.regexes.contains_key(regex));
    if !is_needed || consumer.refresh.at.is_some() {
        return;
    }
    let soonest =
        consumer.refresh.done.map_or(now_ms, |(done_ms, _)| done_ms.saturating_add(REFRESH_INTERVAL_MS));
    let at = now_ms.max(soonest);
    consumer.refresh.at = Some(at);
    step.state.groups.schedule(group, at);
}

/// Looks up the regular expressions of a group, if it is time. The next heartbeat of each member tells it what
/// comes of it.
pub(super) fn refresh(step: &mut Step<'_>, group: &Text) {
    let (now, topics_at) = (step.now, step.state.topics.rests_on());
    let Some(consumer) = get_mut(step.state, group) else { return };
    if consumer.refresh.at.is_none_or(|at| at > now.0) {
        return;
    }
    consumer.refresh = super::Refresh { at: None, done: Some((now.0, topics_at)) };
    let Some(consumer) = get(step.state, group) else { return };
    let changes = subscription::resolve(&consumer.stored, &step.state.topics, now);
    if !changes.is_empty() {
        write(step, group, &changes);
        write_epoch(step, group, true);
    }
}

/// The targets that a new assignment changes.
fn new_target(stored: &Stored, topics: &Topics, assignors: &str) -> Vec<Change> {
    let subscribers: Vec<Subscriber> = stored
        .members
        .iter()
        .map(|(id, member)| Subscriber {
            member_id: id.clone(),
            instance_id: member.metadata.instance_id.clone(),
            topics: subscription::topic_ids(stored, &member.metadata, topics),
            previous: member.target.clone().unwrap_or_default(),
        })
        .collect();
    let counts = subscription::partition_counts(stored, topics);
    let target = assignor::assign(preferred_assignor(stored, assignors), &subscribers, &counts);
    let changed = stored
        .members
        .iter()
        .zip(target)
        .filter(|((_, member), target)| member.target.as_ref() != Some(target));
    changed.map(|((id, _), target)| Change::MemberTarget(id.clone(), Some(target))).collect()
}

/// The assignor that most members ask for; without a wish the first of `group.consumer.assignors`.
pub(super) fn preferred_assignor<'a>(stored: &'a Stored, assignors: &'a str) -> &'a str {
    let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
    for name in stored.members.values().filter_map(|member| member.metadata.server_assignor.as_deref()) {
        *votes.entry(name).or_default() += 1;
    }
    let most = votes.into_iter().max_by_key(|(name, count)| (*count, std::cmp::Reverse(*name)));
    most.map_or_else(|| configured(assignors).next().unwrap_or(ASSIGNORS[0]), |(name, _)| name)
}

/// The assignors of `group.consumer.assignors` that exist.
pub(super) fn configured(assignors: &str) -> impl Iterator<Item = &str> {
    assignors.split(',').map(str::trim).filter(|name| ASSIGNORS.contains(name))
}

/// Takes a member its next step. `owned`: what it reports to own.
pub(super) fn update_member(step: &mut Step<'_>, group: &Text, member_id: &Text, owned: Option<&Assignment>) {
    let Some(stored) = get(step.state, group).map(|consumer| &consumer.stored) else { return };
    let Some(member) = stored.member(member_id) else { return };
    let is_free = |partition| stored.owner(partition).is_none_or(|owner| owner == member_id);
    let next = member.reconcile(stored.target_epoch, owned, is_free);
    if next != member.current {
        let revokes = next.state == MemberState::Unrevoked;
        write(step, group, &[Change::Current(member_id.clone(), Some(next))]);
        set_revocation(step, group, member_id, revokes);
    }
}

/// Starts or ends the time in which a member must give up what it was told to.
fn set_revocation(step: &mut Step<'_>, group: &Text, member_id: &Text, revokes: bool) {
    let now = step.now;
    let Some(consumer) = get_mut(step.state, group) else { return };
    let Some(member) = consumer.stored.member(member_id) else { return };
    let revocation = revokes.then(|| revocation(member, now));
    if let Some(timers) = consumer.timers.get_mut(member_id) {
        timers.revocation = revocation;
    }
    if let Some((at, _)) = revocation {
        step.state.groups.schedule(group, at);
    }
}

/// Begins a member's session anew.
pub(super) fn touch(step: &mut Step<'_>, group: &Text, member_id: &Text) {
    let (now, configured_ms) = (step.now, configured_session_ms(step.state, group));
    let Some(consumer) = get_mut(step.state, group) else { return };
    let Some(member) = consumer.stored.member(member_id) else { return };
    let session_at = now.0.saturating_add(session_timeout_ms(member, configured_ms));
    let is_classic = member.is_classic();
    let fresh = super::Timers { session_at, revocation: None, turn_at: None };
    let timers = match consumer.timers.get_mut(member_id) {
        Some(timers) => timers,
        None => consumer.timers.entry(member_id.detached()).or_insert(fresh), // the id may be a part of a request
    };
    timers.session_at = session_at;
    timers.turn_at = timers.turn_at.filter(|_| is_classic);
    step.state.groups.schedule(group, session_at);
}

/// What a member is now.
pub(super) fn current<'a>(step: &'a Step<'_>, group: &str, member_id: &str) -> Option<&'a Current> {
    Some(&get(step.state, group)?.stored.member(member_id)?.current)
}
