//! One member of a consumer group, and how it comes from what it has to what it shall have.
//!
//! Place in the walk: [`super::state::Stored`] holds members; the heartbeat asks [`Member::reconcile`] for
//! the next step, writes it as a record, and applying the record changes the member.
//!
//! Invariants: `assigned` and `pending_revocation` have no partition in common, and both count as owned. A
//! partition is assigned only when nobody else owns it. A member comes to the target's epoch only when it owns
//! nothing that the target does not give it.

use bytes::Bytes;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::assignment::{Assigned, Assignment};

/// In a heartbeat: the member joins.
pub(super) const JOIN_EPOCH: i32 = 0;
/// In a heartbeat: the member leaves.
pub(super) const LEAVE_EPOCH: i32 = -1;
/// In a heartbeat and as epoch of a member: a static member is away and will come back.
pub(super) const AWAY_EPOCH: i32 = -2;

/// How far a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::group) enum MemberState {
    /// It has what its epoch gives it.
    #[default]
    Stable,
    /// It was told to give partitions up and has not said that it did.
    Unrevoked,
    /// Partitions of its target still belong to others.
    Unreleased,
    /// Written by a later version.
    Unknown,
}

impl MemberState {
    /// Its number in records.
    pub(super) fn number(self) -> i8 {
        match self {
            Self::Stable => 0,
            Self::Unrevoked => 1,
            Self::Unreleased => 2,
            Self::Unknown => 127,
        }
    }

    /// The state with this number.
    pub(super) fn from_number(number: i8) -> Self {
        match number {
            0 => Self::Stable,
            1 => Self::Unrevoked,
            2 => Self::Unreleased,
            _ => Self::Unknown,
        }
    }
}

/// What a member says of itself: the record of type 5.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct Metadata {
    pub(super) instance_id: Option<Text>,
    pub(super) rack_id: Option<Text>,
    pub(super) client_id: Text,
    pub(super) client_host: Text,
    /// Topics by name, in order, each once.
    pub(super) topics: Vec<Text>,
    /// Topics by regular expression; never empty.
    pub(super) regex: Option<Text>,
    pub(super) rebalance_timeout_ms: i32,
    pub(super) server_assignor: Option<Text>,
    /// Of a member that speaks the classic protocol.
    pub(super) classic: Option<ClassicMetadata>,
}

impl Metadata {
    /// Bytes that it takes, about; 0 for one that was never said.
    pub(super) fn bytes(&self) -> usize {
        if *self == Self::default() {
            return 0;
        }
        let optional = [&self.instance_id, &self.rack_id, &self.regex, &self.server_assignor];
        let texts =
            optional.into_iter().flatten().chain([&self.client_id, &self.client_host]).chain(&self.topics);
        let classic = self.classic.iter().flat_map(|classic| &classic.protocols);
        let protocols = classic.map(|(name, metadata)| name.len() + metadata.len() + 64);
        512 + texts.map(|text| text.len() + 32).sum::<usize>() + protocols.sum::<usize>()
    }
}

/// What a member of the classic protocol says beyond that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct ClassicMetadata {
    pub(super) session_timeout_ms: i32,
    /// Name and metadata of every protocol it supports.
    pub(super) protocols: Vec<(Text, Bytes)>,
}

/// Where a member is: the record of type 8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct Current {
    pub(super) epoch: i32,
    /// The epoch before, whose heartbeats may still be on their way.
    pub(super) previous_epoch: i32,
    pub(super) state: MemberState,
    pub(super) assigned: Assigned,
    /// What it was told to give up.
    pub(super) pending_revocation: Assignment,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct Member {
    pub(super) metadata: Metadata,
    /// What it shall have: the record of type 7. None: no record.
    pub(super) target: Option<Assignment>,
    pub(super) current: Current,
}

impl Member {
    /// Whether it speaks the classic protocol.
    pub(super) fn is_classic(&self) -> bool {
        self.metadata.classic.is_some()
    }

    /// Whether it has arrived at the target.
    pub(super) fn is_reconciled(&self, target_epoch: i32) -> bool {
        self.current.state == MemberState::Stable && self.current.epoch == target_epoch
    }

    /// Where it goes from here. `owned` is what it reports to own, None when it reports nothing; `is_free` says
    /// whether nobody but this member owns a partition.
    pub(super) fn reconcile(
        &self,
        target_epoch: i32,
        owned: Option<&Assignment>,
        is_free: impl Fn(TopicIdPartition) -> bool,
    ) -> Current {
        let current = &self.current;
        let empty = Assignment::default();
        let next =
            Next { current, target: self.target.as_ref().unwrap_or(&empty), target_epoch, owned, is_free };
        match current.state {
            MemberState::Stable if current.epoch == target_epoch => current.clone(),
            MemberState::Stable | MemberState::Unreleased => next.compute(current.epoch),
            MemberState::Unrevoked if next.owns_any(&current.pending_revocation) => current.clone(),
            MemberState::Unrevoked => next.compute(current.epoch.saturating_add(1).min(target_epoch)),
            MemberState::Unknown => next.compute(target_epoch),
        }
    }
}

/// The next step of a member.
struct Next<'a, F> {
    current: &'a Current,
    target: &'a Assignment,
    target_epoch: i32,
    owned: Option<&'a Assignment>,
    is_free: F,
}

impl<F: Fn(TopicIdPartition) -> bool> Next<'_, F> {
    /// Whether the member still owns one of these, as far as anybody knows.
    fn owns_any(&self, partitions: &Assignment) -> bool {
        match self.owned {
            None => !partitions.is_empty(),
            Some(owned) => owned.iter().any(|partition| partitions.contains(partition)),
        }
    }

    /// The step, where a member that must give something up stays at `epoch`.
    fn compute(&self, epoch: i32) -> Current {
        let mut kept = Assigned::default();
        let mut to_revoke = Assignment::default();
        for (partition, since) in self.current.assigned.iter() {
            if self.target.contains(partition) {
                kept.insert(partition, since);
            } else {
                to_revoke.insert(partition);
            }
        }
        if !to_revoke.is_empty() && self.owns_any(&to_revoke) {
            return self.at(epoch, MemberState::Unrevoked, kept, to_revoke);
        }
        let mut state = MemberState::Stable;
        for partition in self.target.iter().filter(|&partition| !self.current.assigned.contains(partition)) {
            if (self.is_free)(partition) {
                kept.insert(partition, self.target_epoch);
            } else {
                state = MemberState::Unreleased;
            }
        }
        self.at(self.target_epoch, state, kept, Assignment::default())
    }

    fn at(
        &self,
        epoch: i32,
        state: MemberState,
        assigned: Assigned,
        pending_revocation: Assignment,
    ) -> Current {
        let moved = epoch != self.current.epoch;
        let previous_epoch = if moved { self.current.epoch } else { self.current.previous_epoch };
        Current { epoch, previous_epoch, state, assigned, pending_revocation }
    }
}
