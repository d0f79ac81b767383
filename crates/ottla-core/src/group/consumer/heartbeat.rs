//! ConsumerGroupHeartbeat, versions 0 and 1 (KIP-848; 1: the client makes its member id, regular expressions).
//!
//! Errors: 35 `group.version` is 0; 42 malformed; 128 bad expression; 112 unknown assignor; 69 no such group, or
//! one of another protocol; 25 unknown member or instance; 110 wrong epoch; 82 the instance is another member;
//! 111 the instance is in use; 81 the group is full; 44 too many groups.
//!
//! Place in the walk: a handler. It checks everything, then writes in this order: the member, the group's epoch,
//! the target, the member's next step; each is applied before the next is decided.

use std::collections::BTreeSet;
use std::sync::Arc;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::consumer_group_heartbeat_response as response;
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use super::assignment::Assignment;
use super::member::{AWAY_EPOCH, Current, JOIN_EPOCH, LEAVE_EPOCH, Member};
use super::re2::Pattern;
use super::record::Change;
use super::state::Stored;
use super::{ID_BYTES_MAX, departure, get, migrate, settle, write};
use crate::command::Context;
use crate::decision::Reply;
use crate::shard::{ShardState, Step};

/// First version in which the client makes its member id.
const CLIENT_MEMBER_ID: i16 = 1;
/// Names of the topics of one member, bytes.
const SUBSCRIPTION_BYTES_MAX: usize = 1 << 20;
/// Different regular expressions in one group.
const REGEXES_MAX: usize = 256;

/// Why a heartbeat is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) code: ErrorCode,
    pub(super) message: String,
}

impl Refused {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The code with its words.
pub(super) fn refused<T>(code: ErrorCode, message: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::new(code, message))
}

/// Handles ConsumerGroupHeartbeat.
pub(crate) fn consumer_group_heartbeat(
    step: &mut Step<'_>,
    context: &Context,
    request: m::ConsumerGroupHeartbeatRequest,
) {
    let group = request.group_id.clone();
    let reply = decide(step, context, request).unwrap_or_else(|refused| m::ConsumerGroupHeartbeatResponse {
        error_code: refused.code.code(),
        error_message: Some(Text::from(refused.message)),
        heartbeat_interval_ms: 0,
        ..Default::default()
    });
    let rests_on = if step.has_entries() { step.position() } else { step.state.groups.rests_on(&group) };
    step.answer(context.token, Reply::ConsumerGroupHeartbeat(reply), rests_on);
}

fn decide(
    step: &mut Step<'_>,
    context: &Context,
    mut request: m::ConsumerGroupHeartbeatRequest,
) -> Result<m::ConsumerGroupHeartbeatResponse, Refused> {
    if step.state.cluster.features().group_version() < 1 {
        return refused(ErrorCode::UnsupportedVersion, "the consumer group protocol is not enabled");
    }
    if context.version < CLIENT_MEMBER_ID
        && request.member_epoch == JOIN_EPOCH
        && request.member_id.is_empty()
    {
        request.member_id = new_member_id(step, context);
    }
    check(step.state, &request)?;
    match request.member_epoch {
        LEAVE_EPOCH | AWAY_EPOCH => departure::leave(step, &request),
        JOIN_EPOCH => join(step, context, request),
        _ => beat(step, context, request),
    }
}

/// An id that no member ever had: a tenure counts its commands.
fn new_member_id(step: &Step<'_>, context: &Context) -> Text {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&step.state.shard_epoch.to_be_bytes());
    id[4..12].copy_from_slice(&context.token.0.to_be_bytes());
    id[12..].copy_from_slice(&step.now.0.to_be_bytes()[4..]);
    Text::from(Uuid(id).to_string())
}

/// What needs no group to be seen.
fn check(state: &ShardState, request: &m::ConsumerGroupHeartbeatRequest) -> Result<(), Refused> {
    let malformed = |message: &str| refused(ErrorCode::InvalidRequest, message);
    let ids = [
        (Some(&request.group_id), "GroupId"),
        (Some(&request.member_id), "MemberId"),
        (request.instance_id.as_ref(), "InstanceId"),
        (request.rack_id.as_ref(), "RackId"),
    ];
    for (id, name) in ids {
        match id {
            Some(id) if id.is_empty() => return malformed(&format!("{name} is empty")),
            Some(id) if id.len() > ID_BYTES_MAX => return malformed(&format!("{name} is too long")),
            _ => {}
        }
    }
    match request.member_epoch {
        JOIN_EPOCH => {
            if request.rebalance_timeout_ms == -1 {
                return malformed("RebalanceTimeoutMs is needed to join");
            }
            if request.topic_partitions.as_ref().is_none_or(|owned| !owned.is_empty()) {
                return malformed("TopicPartitions is empty when a member joins");
            }
            if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
                return malformed("SubscribedTopicNames or SubscribedTopicRegex is needed to join");
            }
        }
        AWAY_EPOCH if request.instance_id.is_none() => {
            return malformed("InstanceId is needed to leave for a while");
        }
        epoch if epoch < AWAY_EPOCH => return malformed("MemberEpoch is below -2"),
        _ => {}
    }
    if let Some(assignor) = &request.server_assignor
        && !settle::configured(&state.config.group_consumer_assignors).any(|name| *assignor == *name)
    {
        return refused(ErrorCode::UnsupportedAssignor, format!("there is no assignor {assignor:?} here"));
    }
    check_room(state, request)
}

/// That there is room for what the member says of itself.
fn check_room(state: &ShardState, request: &m::ConsumerGroupHeartbeatRequest) -> Result<(), Refused> {
    let Some(names) = &request.subscribed_topic_names else { return Ok(()) };
    let limits = &state.config.limits;
    let bytes: usize = names.iter().map(|name| name.len() + 32).sum();
    if bytes > SUBSCRIPTION_BYTES_MAX {
        return refused(
            ErrorCode::InvalidRequest,
            "the names of the subscribed topics are too long together",
        );
    }
    let (members, there) = state.groups.weight();
    if there.saturating_add(bytes) > limits.groups_metadata_bytes_max || members >= limits.groups_members_max
    {
        return refused(
            ErrorCode::GroupMaxSizeReached,
            "the members of all groups are too many, or say too much",
        );
    }
    Ok(())
}

/// That a new regular expression is one, and not one too many.
fn check_regex(stored: Option<&Stored>, request: &m::ConsumerGroupHeartbeatRequest) -> Result<(), Refused> {
    let Some(regex) = request.subscribed_topic_regex.as_ref().filter(|regex| !regex.is_empty()) else {
        return Ok(());
    };
    if stored.is_some_and(|stored| stored.regexes.contains_key(regex)) {
        return Ok(());
    }
    Pattern::new(regex).map_err(|reason| Refused::new(ErrorCode::InvalidRegularExpression, reason))?;
    if stored.is_some_and(|stored| stored.regexes.len() >= REGEXES_MAX) {
        return refused(ErrorCode::InvalidRequest, "the group has too many different regular expressions");
    }
    Ok(())
}

/// A member with a place in the group sends a heartbeat.
fn beat(
    step: &mut Step<'_>,
    context: &Context,
    request: m::ConsumerGroupHeartbeatRequest,
) -> Result<m::ConsumerGroupHeartbeatResponse, Refused> {
    let stored = existing(step.state, &request.group_id)?;
    let member = find(stored, &request)?;
    let owned = owned(&request);
    check_epoch(&member.current, request.member_epoch, owned.as_ref())?;
    check_regex(Some(stored), &request)?;
    let member = Arc::clone(member);
    advance(step, context, &request, Admitted { before: &member, is_new: false, owned })
}

/// The group, of which a member that does not join must already be a part.
pub(super) fn existing<'a>(state: &'a ShardState, group: &Text) -> Result<&'a Stored, Refused> {
    match get(state, group) {
        Some(consumer) => Ok(&consumer.stored),
        None => refused(ErrorCode::GroupIdNotFound, format!("there is no consumer group {group}")),
    }
}

/// The member that sends a request and does not join.
pub(super) fn find<'a>(
    stored: &'a Stored,
    request: &m::ConsumerGroupHeartbeatRequest,
) -> Result<&'a Arc<Member>, Refused> {
    let member_id = &request.member_id;
    let unknown = || format!("{member_id} is not a member of the group");
    let Some(instance_id) = &request.instance_id else {
        return stored.member(member_id).ok_or_else(|| Refused::new(ErrorCode::UnknownMemberId, unknown()));
    };
    match stored.static_member(instance_id) {
        None => {
            refused(ErrorCode::UnknownMemberId, format!("there is no instance {instance_id} in the group"))
        }
        Some(holder) if holder != member_id => {
            refused(ErrorCode::FencedInstanceId, format!("the instance {instance_id} is another member"))
        }
        Some(_) => {
            stored.member(member_id).ok_or_else(|| Refused::new(ErrorCode::UnknownMemberId, unknown()))
        }
    }
}

/// The member's epoch, or the one before if the answer that named the new one may have been lost: then the member
/// owns nothing that it has not now.
fn check_epoch(current: &Current, epoch: i32, owned: Option<&Assignment>) -> Result<(), Refused> {
    if epoch == current.epoch {
        return Ok(());
    }
    let keeps = |owned: &Assignment| owned.iter().all(|partition| current.assigned.contains(partition));
    if epoch < current.epoch && epoch == current.previous_epoch && owned.is_some_and(keeps) {
        return Ok(());
    }
    let message = format!(
        "the member's epoch is {}, not {epoch}: it must give everything up and join again",
        current.epoch
    );
    refused(ErrorCode::FencedMemberEpoch, message)
}

fn owned(request: &m::ConsumerGroupHeartbeatRequest) -> Option<Assignment> {
    let topics = request.topic_partitions.as_ref()?;
    let partitions = topics.iter().flat_map(|topic| {
        let topic_id = topic.topic_id;
        topic.partitions.iter().map(move |&partition| TopicIdPartition { topic_id, partition })
    });
    Some(partitions.collect())
}

/// A member comes, or comes again.
fn join(
    step: &mut Step<'_>,
    context: &Context,
    request: m::ConsumerGroupHeartbeatRequest,
) -> Result<m::ConsumerGroupHeartbeatResponse, Refused> {
    let (group, member_id) = (&request.group_id, &request.member_id);
    let plan = migrate::admit(step.state, group)?;
    let stored = plan.stored.as_ref().or_else(|| get(step.state, group).map(|consumer| &consumer.stored));
    let stored = stored.map(Arc::clone).unwrap_or_default(); // given up before anything is written, or all is copied
    let place = find_place(&stored, &request)?;
    let takes_new_place = matches!(place, Place::New);
    let config = &step.state.config;
    let size_max =
        usize::try_from(config.group_consumer_max_size).unwrap_or(0).min(config.limits.group_members_max);
    if takes_new_place && stored.members.len() >= size_max {
        return refused(ErrorCode::GroupMaxSizeReached, "the group is full");
    }
    if step.state.groups.index.len() >= config.limits.groups_max && !step.state.groups.exists(group) {
        return refused(ErrorCode::PolicyViolation, "there are too many groups");
    }
    check_regex(Some(&stored), &request)?;
    drop(stored);
    migrate::convert(step, group, plan);
    let before = match place {
        Place::New => Member::default(),
        Place::Own(member) => (*member).clone(),
        Place::Inherited(old_id, old) => inherit(step, group, member_id, &old_id, &old),
    };
    let owned = Some(Assignment::default());
    advance(step, context, &request, Admitted { before: &before, is_new: takes_new_place, owned })
}

/// Which place in the group a joining member takes.
enum Place {
    New,
    Own(Arc<Member>),
    /// That of a static member which is away, by its id.
    Inherited(Text, Arc<Member>),
}

fn find_place(stored: &Stored, request: &m::ConsumerGroupHeartbeatRequest) -> Result<Place, Refused> {
    let own = stored.member(&request.member_id);
    let Some(instance_id) = &request.instance_id else {
        return Ok(own.map_or(Place::New, |member| Place::Own(Arc::clone(member))));
    };
    let holder = stored.static_member(instance_id);
    let Some((holder_id, holder)) = holder.and_then(|id| Some((id, stored.member(id)?))) else {
        return Ok(own.map_or(Place::New, |member| Place::Own(Arc::clone(member))));
    };
    if *holder_id == request.member_id {
        return Ok(Place::Own(Arc::clone(holder)));
    }
    // A classic member says nothing when it goes to come back as a consumer.
    if holder.current.epoch != AWAY_EPOCH && !holder.is_classic() {
        let message = format!("the instance {instance_id} is in use by another member");
        return refused(ErrorCode::UnreleasedInstanceId, message);
    }
    if own.is_some() {
        return refused(ErrorCode::InvalidRequest, "a member cannot take a second place in the group");
    }
    Ok(Place::Inherited(holder_id.clone(), Arc::clone(holder)))
}

/// Gives a static member's place to its next incarnation: what it has and shall have, at no epoch yet.
pub(super) fn inherit(
    step: &mut Step<'_>,
    group: &Text,
    member_id: &Text,
    old_id: &Text,
    old: &Member,
) -> Member {
    let Some(stored) = get(step.state, group).map(|consumer| &consumer.stored) else {
        return old.clone();
    };
    let current = Current { epoch: JOIN_EPOCH, previous_epoch: JOIN_EPOCH, ..old.current.clone() };
    let member = Member { current, ..old.clone() };
    let mut changes = stored.removal(old_id);
    changes.push(Change::Member(member_id.clone(), Some(member.metadata.clone())));
    if let Some(target) = &member.target {
        changes.push(Change::MemberTarget(member_id.clone(), Some(target.clone())));
    }
    changes.push(Change::Current(member_id.clone(), Some(member.current.clone())));
    write(step, group, &changes);
    departure::forget_timers(step, group, old_id);
    member
}

/// A member whose heartbeat was let in.
struct Admitted<'a> {
    /// What it was.
    before: &'a Member,
    /// It is not in the group yet.
    is_new: bool,
    /// What it says that it owns.
    owned: Option<Assignment>,
}

/// Takes over what the member says, and tells it where to go.
fn advance(
    step: &mut Step<'_>,
    context: &Context,
    request: &m::ConsumerGroupHeartbeatRequest,
    admitted: Admitted<'_>,
) -> Result<m::ConsumerGroupHeartbeatResponse, Refused> {
    let (group, member_id) = (&request.group_id, &request.member_id);
    let Admitted { before, is_new, owned } = admitted;
    let mut metadata = before.metadata.clone();
    update_metadata(&mut metadata, context, request);
    let changed = is_new
        || metadata.topics != before.metadata.topics
        || metadata.regex != before.metadata.regex
        || metadata.server_assignor != before.metadata.server_assignor;
    if is_new || metadata != before.metadata {
        write(step, group, &[Change::Member(member_id.clone(), Some(metadata))]);
    }
    settle::touch(step, group, member_id);
    settle::update_group(step, group, changed);
    settle::update_member(step, group, member_id, owned.as_ref());
    let current = settle::current(step, group, member_id).expect("the member was let in");
    let is_full = request.member_epoch == JOIN_EPOCH
        || request.rebalance_timeout_ms != -1
            && (request.subscribed_topic_names.is_some() || request.subscribed_topic_regex.is_some())
            && request.topic_partitions.is_some();
    let tells = is_full
        || request.member_epoch != before.current.epoch
        || !current.assigned.same_partitions(&before.current.assigned);
    Ok(m::ConsumerGroupHeartbeatResponse {
        member_id: Some(member_id.clone()),
        member_epoch: current.epoch,
        heartbeat_interval_ms: heartbeat_interval_ms(step.state, group),
        assignment: tells.then(|| assignment(current).into()),
        ..Default::default()
    })
}

/// How often members of the group are told to send heartbeats, ms.
fn heartbeat_interval_ms(state: &ShardState, group: &str) -> i32 {
    state.cluster.group_configs().heartbeat_interval_ms(group, &state.config)
}

/// What a request says of its member; what it leaves out stays.
fn update_metadata(
    metadata: &mut super::member::Metadata,
    context: &Context,
    request: &m::ConsumerGroupHeartbeatRequest,
) {
    let said = |text: &Option<Text>, there: &mut Option<Text>| {
        if text.is_some() {
            there.clone_from(text);
        }
    };
    said(&request.instance_id, &mut metadata.instance_id);
    said(&request.rack_id, &mut metadata.rack_id);
    said(&request.server_assignor, &mut metadata.server_assignor);
    metadata.client_id.clone_from(&context.client_id);
    metadata.client_host.clone_from(&context.client_host);
    if request.rebalance_timeout_ms != -1 {
        metadata.rebalance_timeout_ms = request.rebalance_timeout_ms;
    }
    if let Some(names) = &request.subscribed_topic_names {
        metadata.topics = names.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
    }
    if let Some(regex) = &request.subscribed_topic_regex {
        metadata.regex = (!regex.is_empty()).then(|| regex.clone());
    }
    metadata.classic = None;
}

fn assignment(current: &Current) -> response::Assignment {
    let topic_partitions = current
        .assigned
        .topics()
        .map(|(topic_id, partitions)| response::TopicPartitions {
            topic_id,
            partitions: partitions.keys().copied().collect(),
            ..Default::default()
        })
        .collect();
    response::Assignment { topic_partitions, ..Default::default() }
}
