//! Sets of partitions, as targets, assignments and reports name them.
//!
//! Place in the walk: values of [`super::member::Member`] and of the assignors. Ordered, so that records and
//! snapshots made of them are a function of their contents.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::{TopicIdPartition, Uuid};

/// Partitions by topic. No topic is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct Assignment(BTreeMap<Uuid, BTreeSet<i32>>);

impl Assignment {
    /// Adds a partition.
    pub(super) fn insert(&mut self, partition: TopicIdPartition) {
        self.0.entry(partition.topic_id).or_default().insert(partition.partition);
    }

    /// Takes a partition out. False when it was not there.
    pub(super) fn remove(&mut self, partition: TopicIdPartition) -> bool {
        let Some(partitions) = self.0.get_mut(&partition.topic_id) else { return false };
        let was_there = partitions.remove(&partition.partition);
        if partitions.is_empty() {
            self.0.remove(&partition.topic_id);
        }
        was_there
    }

    /// Whether a partition is in it.
    pub(super) fn contains(&self, partition: TopicIdPartition) -> bool {
        self.0.get(&partition.topic_id).is_some_and(|partitions| partitions.contains(&partition.partition))
    }

    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of partitions.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// All partitions, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = TopicIdPartition> + '_ {
        self.topics().flat_map(|(topic_id, partitions)| {
            partitions.iter().map(move |&partition| TopicIdPartition { topic_id, partition })
        })
    }

    /// Topics with their partitions.
    pub(super) fn topics(&self) -> impl Iterator<Item = (Uuid, &BTreeSet<i32>)> {
        self.0.iter().map(|(topic_id, partitions)| (*topic_id, partitions))
    }
}

impl FromIterator<TopicIdPartition> for Assignment {
    fn from_iter<I: IntoIterator<Item = TopicIdPartition>>(partitions: I) -> Self {
        let mut assignment = Self::default();
        for partition in partitions {
            assignment.insert(partition);
        }
        assignment
    }
}

/// Partitions that a member has, each with the member epoch at which it got it (KIP-1251).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct Assigned(BTreeMap<Uuid, BTreeMap<i32, i32>>);

impl Assigned {
    /// Adds a partition.
    pub(super) fn insert(&mut self, partition: TopicIdPartition, epoch: i32) {
        self.0.entry(partition.topic_id).or_default().insert(partition.partition, epoch);
    }

    /// Member epoch at which the member got a partition. None: it has not.
    pub(super) fn epoch(&self, partition: TopicIdPartition) -> Option<i32> {
        self.0.get(&partition.topic_id)?.get(&partition.partition).copied()
    }

    /// Whether a partition is in it.
    pub(super) fn contains(&self, partition: TopicIdPartition) -> bool {
        self.epoch(partition).is_some()
    }

    /// All partitions with their epochs, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TopicIdPartition, i32)> + '_ {
        self.topics().flat_map(|(topic_id, partitions)| {
            partitions
                .iter()
                .map(move |(&partition, &epoch)| (TopicIdPartition { topic_id, partition }, epoch))
        })
    }

    /// Topics with their partitions and epochs.
    pub(super) fn topics(&self) -> impl Iterator<Item = (Uuid, &BTreeMap<i32, i32>)> {
        self.0.iter().map(|(topic_id, partitions)| (*topic_id, partitions))
    }

    /// Whether both name the same partitions.
    pub(super) fn same_partitions(&self, other: &Self) -> bool {
        self.iter().map(|(partition, _)| partition).eq(other.iter().map(|(partition, _)| partition))
    }
}
