//! Racks of members and partitions (KIP-881): whether they matter, and who matches what.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::Text;

use super::{MemberSubscription, Topics, at};
use crate::record::TopicPartition;

/// Racks, when they make a difference; else empty.
#[derive(Debug, Default)]
pub(super) struct Racks {
    /// Rack of each member that named one.
    members: BTreeMap<Text, Text>,
    partitions: BTreeMap<TopicPartition, BTreeSet<Text>>,
    /// Members in a rack of the partition.
    near: BTreeMap<TopicPartition, usize>,
}

impl Racks {
    pub(super) fn new(topics: &Topics, members: &[MemberSubscription]) -> Self {
        let racks: BTreeMap<Text, Text> = members
            .iter()
            .filter_map(|member| Some((member.member_id.clone(), member.rack()?.clone())))
            .collect();
        if racks.is_empty() {
            return Self::default();
        }
        let partitions: BTreeMap<TopicPartition, BTreeSet<Text>> = topics
            .iter()
            .flat_map(|(name, partitions)| {
                partitions.iter().enumerate().map(move |(index, racks)| (at(name, index), racks.clone()))
            })
            .collect();
        let near = partitions
            .iter()
            .map(|(at, here)| (at.clone(), racks.values().filter(|rack| here.contains(*rack)).count()))
            .collect();
        if matter(&racks.values().collect(), partitions.values()) {
            Self { members: racks, partitions, near }
        } else {
            Self { near, ..Self::default() }
        }
    }

    /// Whether racks matter at all.
    pub(super) fn matter(&self) -> bool {
        !self.members.is_empty()
    }

    /// The member named a rack and the partition has no replica there.
    pub(super) fn mismatch(&self, member: &Text, at: &TopicPartition) -> bool {
        let Some(rack) = self.members.get(member) else { return false };
        !self.partitions.get(at).is_some_and(|racks| racks.contains(rack))
    }

    /// The member and the partition share a rack.
    pub(super) fn share(&self, member: &Text, at: &TopicPartition) -> bool {
        self.members.contains_key(member) && !self.mismatch(member, at)
    }

    /// Partitions with few members near them first.
    pub(super) fn sort(&self, partitions: &mut [TopicPartition]) {
        if !self.near.is_empty() {
            partitions.sort_by_key(|at| self.near.get(at).copied().unwrap_or(0));
        }
    }

    /// The first member from `first` on, round the list, that shares a rack with the partition.
    pub(super) fn next(&self, at: &TopicPartition, members: &[Text], first: usize) -> Option<usize> {
        let count = members.len();
        (0..count).map(|step| (first + step) % count).find(|index| self.share(&members[*index], at))
    }
}

/// Whether racks matter: members and partitions have some in common, and not every partition is everywhere.
pub(super) fn matter<'a>(
    members: &BTreeSet<&Text>,
    partitions: impl Iterator<Item = &'a BTreeSet<Text>> + Clone,
) -> bool {
    let all: BTreeSet<&Text> = partitions.clone().flatten().collect();
    if members.is_disjoint(&all) {
        return false;
    }
    !partitions.into_iter().all(|racks| racks.len() == all.len())
}
