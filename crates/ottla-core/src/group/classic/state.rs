//! A classic group and its members: who they are, what they support, what they wait for.
//!
//! Place in the walk: changed by `join`, `rebalance`, `sync` and `leave`; read by them, by commits and by the
//! calls of administrators.
//!
//! Invariants: `static_members` names exactly the members with an instance id. A member waits for at most one
//! answer. `join_phase` is there in PreparingRebalance and nowhere else. The leader is a member, when there are
//! members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ottla_protocol::codec::{Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::group_metadata_value::MemberMetadata;
use ottla_protocol::messages::{ConsumerProtocolSubscription, GroupMetadataValue, HeartbeatRequest};
use ottla_protocol::types::Text;

use super::members::{Members, Pending};
use super::{Parked, Rules, Stored, Turn};
use crate::config::CoreConfig;
use crate::decision::ShardTime;
use crate::group::commit::Committer;

/// Protocol type of consumers, whose metadata names topics.
const CONSUMER: &str = "consumer";

/// Where a group stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::group) enum State {
    /// No members.
    #[default]
    Empty,
    /// Members are called to join again; the answers wait until all have.
    PreparingRebalance,
    /// All have joined; the leader's assignment is awaited.
    CompletingRebalance,
    /// Every member has, or can get, its assignment.
    Stable,
}

impl State {
    /// Kafka's name.
    pub(in crate::group) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
        }
    }
}

/// How long the group waits for members to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinPhase {
    /// The first one of a group that was empty: waits the whole delay, and again while new members come.
    Initial {
        /// When the current delay ends.
        deadline: i64,
        /// The current delay.
        delay_ms: i64,
        /// What is left for further delays.
        remaining_ms: i64,
        /// Somebody came during the current delay.
        member_added: bool,
    },
    /// Ends when all have joined, or at the deadline.
    Usual {
        /// When the absent are dropped.
        deadline: i64,
    },
}

/// What a member waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Nothing.
    #[default]
    None,
    /// The end of the join phase.
    Join(Parked),
    /// The leader's assignment.
    Sync(Parked),
}

/// A member.
#[derive(Clone, Debug, Default)]
pub(in crate::group) struct Member {
    /// Grows with each member that comes.
    pub(super) order: u64,
    pub(super) instance_id: Option<Text>,
    pub(super) client_id: Text,
    pub(super) client_host: Text,
    pub(super) rebalance_timeout_ms: i64,
    pub(super) session_timeout_ms: i64,
    /// What it supports, the best first, with its metadata for each.
    pub(super) protocols: Vec<(Text, Bytes)>,
    pub(super) assignment: Bytes,
    /// It is dropped when it was not heard of until then.
    pub(super) session_deadline: i64,
    /// Has joined the generation that is being prepared.
    pub(super) joined: bool,
    /// Has asked for its assignment in this generation.
    pub(super) synced: bool,
    /// Has never been answered: it cannot send heartbeats.
    pub(super) is_new: bool,
    /// The client knows its id although it is new.
    pub(super) knows_id: bool,
    pub(super) waiting: Waiting,
}

impl Member {
    /// Its metadata for a protocol.
    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|(name, _)| name == protocol);
        found.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
    }

    /// Is alive until one session from now.
    pub(super) fn refresh(&mut self, now_ms: i64) {
        self.session_deadline = now_ms.saturating_add(self.session_timeout_ms);
    }

    /// Bytes that a client makes the broker keep.
    pub(super) fn bytes(&self) -> usize {
        let texts = self.client_id.len() + self.instance_id.as_ref().map_or(0, |id| id.len());
        let protocols = self.protocols.iter().map(|(name, metadata)| name.len() + metadata.len() + 64);
        256 + texts + self.assignment.len() + protocols.sum::<usize>()
    }
}

/// A group of the classic protocol.
#[derive(Debug, Default)]
pub(in crate::group) struct ClassicGroup {
    stored: Option<Arc<Stored>>,
    pub(super) state: State,
    pub(super) protocol_type: Option<Text>,
    pub(super) generation_id: i32,
    pub(super) protocol_name: Option<Text>,
    pub(super) leader: Option<Text>,
    pub(super) members: Members,
    /// Member id by instance id.
    pub(super) static_members: BTreeMap<Text, Text>,
    pub(super) pending: Pending,
    pub(super) join_phase: Option<JoinPhase>,
    /// When members that did not ask for their assignment are dropped.
    pub(super) sync_deadline: Option<i64>,
    pub(super) next_order: u64,
}

impl ClassicGroup {
    /// A group as it was stored; [`ClassicGroup::begin_epoch`] comes before any request.
    pub(in crate::group) fn loaded(stored: Arc<Stored>) -> Self {
        Self { stored: Some(stored), ..Self::default() }
    }

    /// What is durable of it.
    pub(in crate::group) fn stored(&self) -> Option<&Arc<Stored>> {
        self.stored.as_ref()
    }

    /// Its record was applied.
    pub(super) fn set_stored(&mut self, stored: Arc<Stored>) {
        self.stored = Some(stored);
    }

    /// Whether forgetting it loses nothing.
    pub(super) fn is_nothing(&self) -> bool {
        self.stored.is_none()
            && self.members.is_empty()
            && self.pending.is_empty()
            && self.join_phase.is_none()
    }

    /// Starts from what is durable, with fresh timers. A group that is larger than allowed by now starts a
    /// rebalance.
    pub(in crate::group) fn begin_epoch(&mut self, config: &CoreConfig, now: ShardTime) {
        let stored = self.stored.take();
        *self = Self::default();
        let Some(stored) = stored else { return };
        let value = stored.value();
        self.generation_id = value.generation;
        self.protocol_type = (!value.protocol_type.is_empty()).then(|| value.protocol_type.clone());
        self.protocol_name = value.protocol.clone();
        self.leader = value.leader.clone();
        for member in &value.members {
            self.load_member(member, now.0);
        }
        if !self.members.is_empty() {
            self.state = State::Stable;
            let leads = self.leader.as_ref().is_some_and(|leader| self.members.contains(leader));
            if !leads {
                self.leader = self.members.oldest().cloned();
            }
        }
        self.stored = Some(stored);
        let rules = Rules::of(config);
        if self.members.len() > rules.size_max {
            self.prepare_rebalance(&mut Turn::new(now.0, rules));
        }
    }

    fn load_member(&mut self, stored: &MemberMetadata, now_ms: i64) {
        let session_timeout_ms = i64::from(stored.session_timeout);
        let rebalance_timeout_ms = match stored.rebalance_timeout {
            -1 => session_timeout_ms,
            timeout => i64::from(timeout),
        };
        let mut member = Member {
            order: self.next_order,
            instance_id: stored.group_instance_id.clone(),
            client_id: stored.client_id.clone(),
            client_host: stored.client_host.clone(),
            rebalance_timeout_ms,
            session_timeout_ms,
            protocols: vec![(self.protocol_name.clone().unwrap_or_default(), stored.subscription.clone())],
            assignment: stored.assignment.clone(),
            synced: true,
            knows_id: true,
            ..Member::default()
        };
        member.refresh(now_ms);
        self.next_order += 1;
        if let Some(instance_id) = &member.instance_id {
            self.static_members.insert(instance_id.clone(), stored.member_id.clone());
        }
        self.members.insert(stored.member_id.clone(), member);
    }

    /// Its record as it is now.
    pub(super) fn value(&self, now_ms: i64) -> GroupMetadataValue {
        let protocol = self.protocol_name.clone().unwrap_or_default();
        let timeout = |ms: i64| i32::try_from(ms).unwrap_or(i32::MAX);
        let members = self.members.in_order().map(|(id, member)| MemberMetadata {
            member_id: id.clone(),
            group_instance_id: member.instance_id.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            rebalance_timeout: timeout(member.rebalance_timeout_ms),
            session_timeout: timeout(member.session_timeout_ms),
            subscription: member.metadata(&protocol),
            assignment: member.assignment.clone(),
            ..MemberMetadata::default()
        });
        GroupMetadataValue {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation_id,
            protocol: self.protocol_name.clone(),
            leader: self.leader.clone(),
            current_state_timestamp: now_ms,
            members: members.collect(),
            ..GroupMetadataValue::default()
        }
    }

    /// Whether this member is there under this instance id: 25, 82.
    pub(super) fn check_member(&self, member_id: &str, instance_id: Option<&Text>) -> Result<(), ErrorCode> {
        if let Some(instance_id) = instance_id {
            match self.static_members.get(instance_id) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(owner) if *owner != *member_id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        let is_member = self.members.contains(member_id);
        if is_member { Ok(()) } else { Err(ErrorCode::UnknownMemberId) }
    }

    /// A heartbeat: 25, 82, 22, and 27 while members are called to join.
    pub(super) fn heartbeat(&mut self, now_ms: i64, request: &HeartbeatRequest) -> Result<(), ErrorCode> {
        self.check_member(&request.member_id, request.group_instance_id.as_ref())?;
        if request.generation_id != self.generation_id {
            return Err(ErrorCode::IllegalGeneration);
        }
        if self.state == State::Empty {
            return Err(ErrorCode::UnknownMemberId);
        }
        self.touch(now_ms, &request.member_id);
        if self.state == State::PreparingRebalance { Err(ErrorCode::RebalanceInProgress) } else { Ok(()) }
    }

    /// The member was heard of.
    pub(in crate::group) fn touch(&mut self, now_ms: i64, member_id: &str) {
        self.members.refresh(member_id, now_ms);
    }

    /// Whether this committer may commit offsets (KIP-447): 25, 82, 22, 27.
    pub(in crate::group) fn check_commit(&self, committer: &Committer<'_>) -> Result<(), ErrorCode> {
        let is_empty = self.state == State::Empty;
        if committer.generation < 0 && is_empty {
            return Ok(());
        }
        let Committer { generation, member_id, instance_id, .. } = *committer;
        if generation >= 0 || !member_id.is_empty() || instance_id.is_some() {
            self.check_member(member_id, instance_id)?;
            if generation != self.generation_id {
                return Err(ErrorCode::IllegalGeneration);
            }
        } else if !committer.transactional && !is_empty {
            return Err(ErrorCode::UnknownMemberId);
        }
        if !committer.transactional && self.state == State::CompletingRebalance {
            return Err(ErrorCode::RebalanceInProgress);
        }
        Ok(())
    }

    /// Where it stands.
    pub(in crate::group) fn state(&self) -> State {
        self.state
    }

    /// Type of its protocol; empty before the first member.
    pub(in crate::group) fn protocol_type(&self) -> Text {
        self.protocol_type.clone().unwrap_or_default()
    }

    /// The protocol that this generation agreed on.
    pub(in crate::group) fn protocol_name(&self) -> Option<&Text> {
        self.protocol_name.as_ref()
    }

    /// The generation.
    pub(in crate::group) fn generation_id(&self) -> i32 {
        self.generation_id
    }

    /// Its members by id.
    pub(in crate::group) fn members(&self) -> impl Iterator<Item = (&Text, &Member)> {
        self.members.iter()
    }

    /// Whether a member can come back: it was answered, or knows its id.
    pub(in crate::group) fn is_known(member: &Member) -> bool {
        !member.is_new || member.knows_id
    }

    /// Whether ids wait for their members.
    pub(in crate::group) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// When it became empty, ms, as its record says; none for one that has members or no record.
    pub(in crate::group) fn empty_since(&self) -> Option<i64> {
        let value = self.stored.as_ref().map(|stored| stored.value())?;
        (self.state == State::Empty && value.members.is_empty()).then_some(value.current_state_timestamp)
    }

    /// The topics that its consumers subscribe to. None: the members are not consumers, or did not say it in a
    /// way that can be read.
    pub(in crate::group) fn subscribed_topics(&self) -> Option<BTreeSet<Text>> {
        if !self.is_of_consumers() {
            return None;
        }
        if self.members.is_empty() {
            return Some(BTreeSet::new());
        }
        let protocol = self.protocol_name.as_ref()?;
        let mut topics = BTreeSet::new();
        for (_, member) in self.members.iter() {
            topics.extend(subscription(&member.metadata(protocol))?.topics);
        }
        Some(topics)
    }

    /// Whether its members are consumers.
    pub(in crate::group) fn is_of_consumers(&self) -> bool {
        self.protocol_type.as_ref().is_some_and(|kind| *kind == CONSUMER)
    }

    /// Members and ids given out, and the bytes that they make the broker keep.
    pub(in crate::group) fn weight(&self) -> (usize, usize) {
        let bytes = self.members.bytes() + self.pending.bytes();
        (self.members.len() + self.pending.len(), bytes)
    }
}

/// What a consumer subscribes to; none when it cannot be read.
pub(in crate::group) fn subscription(metadata: &Bytes) -> Option<ConsumerProtocolSubscription> {
    let mut reader = Reader::new(metadata.clone());
    let version = reader.i16().ok()?;
    if version < 0 {
        return None;
    }
    // Later versions add fields at the end.
    let version = version.min(ConsumerProtocolSubscription::MAX_VERSION);
    ConsumerProtocolSubscription::decode(&mut reader, version).ok()
}

impl Member {
    /// Its instance id.
    pub(in crate::group) fn instance_id(&self) -> Option<&Text> {
        self.instance_id.as_ref()
    }

    /// The client's name for itself, and its address.
    pub(in crate::group) fn client(&self) -> (&Text, &Text) {
        (&self.client_id, &self.client_host)
    }

    /// Its metadata for the protocol of the generation.
    pub(in crate::group) fn metadata_for(&self, protocol: &str) -> Bytes {
        self.metadata(protocol)
    }

    /// What it was assigned.
    pub(in crate::group) fn assignment(&self) -> &Bytes {
        &self.assignment
    }

    /// What it supports, the best first.
    pub(in crate::group) fn protocols(&self) -> &[(Text, Bytes)] {
        &self.protocols
    }

    /// Its timeouts, ms: session and rebalance.
    pub(in crate::group) fn timeouts_ms(&self) -> (i64, i64) {
        (self.session_timeout_ms, self.rebalance_timeout_ms)
    }
}
