//! A consumer group: its members, what they shall have, and who owns what.
//!
//! Place in the walk: [`super::ConsumerGroups`] holds groups and applies [`Change`]s to them, live and in replay.
//! Handlers only read here.
//!
//! Invariants: a partition has at most one owner. A member owns what is assigned to it and what it was told to
//! give up. `instances`, `owners`, `interest` and `metadata_bytes` are derived from the members, so that no question
//! about the group as a whole looks at every member.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ottla_protocol::types::{Text, TopicIdPartition};

use super::member::{Current, LEAVE_EPOCH, Member, Metadata};
use super::record::{Change, Resolved};

/// What a group is doing, by Kafka's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) enum GroupState {
    /// No members.
    Empty,
    /// The target is older than the group.
    Assigning,
    /// A member is not where the target wants it.
    Reconciling,
    /// Everybody has what it shall have.
    Stable,
}

impl GroupState {
    /// Its name on the wire.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Assigning => "Assigning",
            Self::Reconciling => "Reconciling",
            Self::Stable => "Stable",
        }
    }
}

/// One group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct Stored {
    /// Grows with every change of members, subscriptions or subscribed topics.
    pub(super) epoch: i32,
    /// Of the topics subscribed to.
    pub(super) metadata_hash: i64,
    /// The epoch that the target was made for.
    pub(super) target_epoch: i32,
    /// When it was made, ms.
    pub(super) target_timestamp: i64,
    pub(super) members: BTreeMap<Text, Arc<Member>>,
    /// What the regular expressions of the members stand for.
    pub(super) regexes: BTreeMap<Text, Arc<Resolved>>,
    /// Member ids by instance id.
    instances: BTreeMap<Text, Text>,
    /// Who owns a partition.
    owners: BTreeMap<TopicIdPartition, Text>,
    interest: Interest,
    /// Of what the members say of themselves.
    metadata_bytes: usize,
}

/// How many members want what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Interest {
    /// Members by the names of topics that they give.
    names: BTreeMap<Text, usize>,
    /// Members by their regular expression.
    regexes: BTreeMap<Text, usize>,
    /// Members of the classic protocol.
    classic: usize,
}

impl Interest {
    fn add(&mut self, metadata: &Metadata) {
        for name in &metadata.topics {
            *self.names.entry(name.clone()).or_default() += 1;
        }
        if let Some(regex) = &metadata.regex {
            *self.regexes.entry(regex.clone()).or_default() += 1;
        }
        self.classic += usize::from(metadata.classic.is_some());
    }

    fn take(&mut self, metadata: &Metadata) {
        for name in &metadata.topics {
            take_one(&mut self.names, name);
        }
        if let Some(regex) = &metadata.regex {
            take_one(&mut self.regexes, regex);
        }
        self.classic -= usize::from(metadata.classic.is_some());
    }
}

/// One member less; whom nobody counts any more goes.
fn take_one(counts: &mut BTreeMap<Text, usize>, of: &Text) {
    let count = counts.get_mut(of).expect("what is taken was added");
    *count -= 1;
    if *count == 0 {
        counts.remove(of);
    }
}

impl Stored {
    /// What the group is doing.
    pub(crate) fn state(&self) -> GroupState {
        if self.members.is_empty() {
            GroupState::Empty
        } else if self.epoch > self.target_epoch {
            GroupState::Assigning
        } else if self.members.values().any(|member| !member.is_reconciled(self.target_epoch)) {
            GroupState::Reconciling
        } else {
            GroupState::Stable
        }
    }

    /// Members, and the bytes that they make the broker keep.
    pub(super) fn weight(&self) -> (usize, usize) {
        (self.members.len(), self.metadata_bytes)
    }

    /// Whether it has no members.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member by its id.
    pub(super) fn member(&self, member_id: &str) -> Option<&Arc<Member>> {
        self.members.get(member_id.as_bytes())
    }

    /// Id of the member with this instance id.
    pub(super) fn static_member(&self, instance_id: &str) -> Option<&Text> {
        self.instances.get(instance_id.as_bytes())
    }

    /// Who owns a partition.
    pub(super) fn owner(&self, partition: TopicIdPartition) -> Option<&Text> {
        self.owners.get(&partition)
    }

    /// Names of the topics that a member subscribes to, whether they exist or not.
    pub(super) fn subscription<'a>(&'a self, metadata: &'a Metadata) -> impl Iterator<Item = &'a Text> {
        let resolved = metadata.regex.as_ref().and_then(|regex| self.regexes.get(regex));
        let resolved = resolved.into_iter().flat_map(|resolved| &resolved.topics);
        metadata.topics.iter().chain(resolved)
    }

    /// Whether any member subscribes to a topic.
    pub(crate) fn is_subscribed(&self, topic: &str) -> bool {
        let named = self.interest.names.contains_key(topic.as_bytes());
        let is_topic = |name: &Text| name.as_bytes().as_ref().cmp(topic.as_bytes());
        named || self.resolved().any(|resolved| resolved.topics.binary_search_by(is_topic).is_ok())
    }

    /// Names of all topics subscribed to, in order.
    pub(super) fn subscribed_topics(&self) -> BTreeSet<&Text> {
        let resolved = self.resolved().flat_map(|resolved| &resolved.topics);
        self.interest.names.keys().chain(resolved).collect()
    }

    /// What the regular expressions that members have stand for, as far as it is known.
    fn resolved(&self) -> impl Iterator<Item = &Resolved> {
        self.interest.regexes.keys().filter_map(|regex| self.regexes.get(regex)).map(|resolved| &**resolved)
    }

    /// The regular expressions of the members, each with the number of members that have it.
    pub(super) fn wanted_regexes(&self) -> &BTreeMap<Text, usize> {
        &self.interest.regexes
    }

    /// Number of members of the classic protocol.
    pub(super) fn classic_members(&self) -> usize {
        self.interest.classic
    }

    /// About how much there is to look at to make a target: members times topics, and partitions.
    pub(super) fn assignment_work(&self) -> usize {
        let resolved: usize = self.resolved().map(|resolved| resolved.topics.len()).sum();
        let topics = self.interest.names.len().saturating_add(resolved);
        self.members.len().saturating_mul(topics).saturating_add(self.owners.len())
    }

    /// The changes that take a member out.
    pub(super) fn removal(&self, member_id: &Text) -> Vec<Change> {
        let mut changes = vec![Change::Current(member_id.clone(), None)];
        if self.member(member_id).is_some_and(|member| member.target.is_some()) {
            changes.push(Change::MemberTarget(member_id.clone(), None));
        }
        changes.push(Change::Member(member_id.clone(), None));
        changes
    }

    /// The changes that take the whole group out.
    pub(crate) fn tombstones(&self) -> Vec<Change> {
        let mut changes: Vec<Change> = self.members.keys().flat_map(|id| self.removal(id)).collect();
        changes.push(Change::Target(None));
        changes.extend(self.regexes.keys().map(|regex| Change::Regex(regex.clone(), None)));
        changes.push(Change::Group(None));
        changes
    }

    /// The changes that make this group from nothing.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        let members = self.members.iter().flat_map(|(id, member)| {
            let target = member.target.clone().map(|target| Change::MemberTarget(id.clone(), Some(target)));
            [Change::Member(id.clone(), Some(member.metadata.clone()))]
                .into_iter()
                .chain(target)
                .chain([Change::Current(id.clone(), Some(member.current.clone()))])
        });
        let regexes = self.regexes.iter().map(|(regex, resolved)| {
            let resolved: &Resolved = resolved;
            Change::Regex(regex.clone(), Some(resolved.clone()))
        });
        [
            Change::Group(Some((self.epoch, self.metadata_hash))),
            Change::Target(Some((self.target_epoch, self.target_timestamp))),
        ]
        .into_iter()
        .chain(regexes)
        .chain(members)
    }

    /// Applies a record, the only way a group changes. The whole group's tombstone is the caller's.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Group(Some((epoch, metadata_hash))) => {
                self.epoch = epoch;
                self.metadata_hash = metadata_hash;
            }
            Change::Group(None) => {}
            Change::Target(target) => (self.target_epoch, self.target_timestamp) = target.unwrap_or_default(),
            Change::Member(id, Some(metadata)) => self.set_metadata(id, metadata),
            Change::Member(id, None) => self.remove(&id),
            Change::MemberTarget(id, Some(target)) => self.member_mut(id).target = Some(target),
            Change::MemberTarget(id, None) => {
                if self.members.contains_key(&id) {
                    self.member_mut(id).target = None;
                }
            }
            Change::Current(id, Some(current)) => self.set_current(id, current),
            Change::Current(id, None) => {
                if self.members.contains_key(&id) {
                    self.set_current(id, Current { epoch: LEAVE_EPOCH, ..Current::default() });
                }
            }
            Change::Regex(regex, Some(mut resolved)) => {
                resolved.topics.sort_unstable(); // to be searched
                self.regexes.insert(regex, Arc::new(resolved));
            }
            Change::Regex(regex, None) => {
                self.regexes.remove(&regex);
            }
        }
    }

    /// A member to change; made when it is not there, since records of a compacted log come in any order.
    fn member_mut(&mut self, id: Text) -> &mut Member {
        Arc::make_mut(self.members.entry(id).or_default())
    }

    fn set_metadata(&mut self, id: Text, metadata: Metadata) {
        self.forget_instance(&id);
        if let Some(instance_id) = &metadata.instance_id {
            self.instances.insert(instance_id.clone(), id.clone());
        }
        let bytes = metadata.bytes();
        self.interest.add(&metadata);
        let before = std::mem::replace(&mut self.member_mut(id).metadata, metadata);
        self.metadata_bytes = self.metadata_bytes.saturating_sub(before.bytes()).saturating_add(bytes);
        self.interest.take(&before);
    }

    fn set_current(&mut self, id: Text, current: Current) {
        self.forget_owned(&id);
        let assigned = current.assigned.iter().map(|(partition, _)| partition);
        for partition in assigned.chain(current.pending_revocation.iter()) {
            self.owners.insert(partition, id.clone());
        }
        self.member_mut(id).current = current;
    }

    fn remove(&mut self, id: &Text) {
        self.forget_instance(id);
        self.forget_owned(id);
        if let Some(member) = self.members.remove(id) {
            self.interest.take(&member.metadata);
            self.metadata_bytes = self.metadata_bytes.saturating_sub(member.metadata.bytes());
        }
    }

    fn forget_instance(&mut self, id: &Text) {
        let Some(member) = self.members.get(id) else { return };
        if let Some(instance_id) = &member.metadata.instance_id
            && self.instances.get(instance_id) == Some(id)
        {
            self.instances.remove(instance_id);
        }
    }

    fn forget_owned(&mut self, id: &Text) {
        let Some(member) = self.members.get(id) else { return };
        let assigned = member.current.assigned.iter().map(|(partition, _)| partition);
        for partition in assigned.chain(member.current.pending_revocation.iter()) {
            if self.owners.get(&partition) == Some(id) {
                self.owners.remove(&partition);
            }
        }
    }
}
