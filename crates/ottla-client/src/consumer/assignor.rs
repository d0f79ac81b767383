//! Who reads what: the four assignors of Kafka's classic protocol, with Java's results.
//!
//! Place: the leader of a classic group calls `assign` with everybody's subscription and sends the result in
//! SyncGroup. Pure. A group may be led by a member of any language, and the next leader must find what the last
//! one left; so the results are equal to Java's for the same input, ties included (`java_order`), and a fixture
//! made with Kafka's own jar holds them to it.
//!
//! It does not know requests; how subscriptions travel is in `group/subscription.rs`.

mod custom;
mod java_order;
mod racks;
mod range;
mod round_robin;
mod sticky;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ottla_protocol::types::Text;

use crate::record::TopicPartition;

pub use custom::{CustomAssignor, PartitionAssignor};
pub(crate) use java_order::{by_topic, grouped};

/// A strategy of `partition.assignment.strategy`.
///
/// ```
/// use ottla_client::Assignor;
///
/// let assignor = Assignor::from_name("org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
/// assert_eq!(assignor, Some(Assignor::CooperativeSticky));
/// assert_eq!(Assignor::CooperativeSticky.name(), "cooperative-sticky");
/// assert!(Assignor::CooperativeSticky.is_cooperative() && !Assignor::Range.is_cooperative());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Topic by topic, neighbouring partitions to the same member.
    Range,
    /// All partitions in turn.
    RoundRobin,
    /// Balanced, and what can stay stays; everything is given up before each rebalance.
    Sticky,
    /// Balanced, and what can stay stays and is read on during the rebalance (KIP-429).
    CooperativeSticky,
    /// The program's own; all members of the group must have it.
    Custom(CustomAssignor),
}

impl Assignor {
    /// Its name in JoinGroup.
    pub fn name(&self) -> &str {
        match self {
            Self::Range => "range",
            Self::RoundRobin => "roundrobin",
            Self::Sticky => "sticky",
            Self::CooperativeSticky => "cooperative-sticky",
            Self::Custom(custom) => custom.name(),
        }
    }

    /// From its name in JoinGroup, or that of Java's class.
    pub fn from_name(name: &str) -> Option<Self> {
        let class = name.strip_prefix("org.apache.kafka.clients.consumer.").unwrap_or(name);
        match class {
            "range" | "RangeAssignor" => Some(Self::Range),
            "roundrobin" | "RoundRobinAssignor" => Some(Self::RoundRobin),
            "sticky" | "StickyAssignor" => Some(Self::Sticky),
            "cooperative-sticky" | "CooperativeStickyAssignor" => Some(Self::CooperativeSticky),
            _ => None,
        }
    }

    /// Whether partitions are read on during a rebalance.
    pub fn is_cooperative(&self) -> bool {
        match self {
            Self::Range | Self::RoundRobin | Self::Sticky => false,
            Self::CooperativeSticky => true,
            Self::Custom(custom) => custom.is_cooperative(),
        }
    }
}

/// What a member of a classic group told in JoinGroup; other members wrote it, so it need not make sense.
///
/// ```
/// use ottla_client::MemberSubscription;
///
/// /// What a strategy may look at: who has read most so far.
/// fn busiest(members: &[MemberSubscription]) -> Option<&MemberSubscription> {
///     members.iter().max_by_key(|member| member.owned.len())
/// }
///
/// let member = MemberSubscription { member_id: "a-1".into(), ..MemberSubscription::default() };
/// assert_eq!(busiest(&[member.clone()]), Some(&member));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSubscription {
    /// Its id in this group.
    pub member_id: Text,
    /// A static member's own name.
    pub group_instance_id: Option<Text>,
    /// The topics it reads.
    pub topics: Vec<Text>,
    /// What it reads now.
    pub owned: Vec<TopicPartition>,
    /// The generation in which it was given that; absent before version 2 and for new members.
    pub generation_id: Option<i32>,
    /// What its strategy added.
    pub user_data: Option<Bytes>,
    /// Its rack (KIP-881).
    pub rack_id: Option<Text>,
}

impl MemberSubscription {
    /// How members are ordered: static ones first, by their own name.
    fn order(&self) -> (bool, &Text) {
        match &self.group_instance_id {
            Some(instance) => (false, instance),
            None => (true, &self.member_id),
        }
    }

    fn rack(&self) -> Option<&Text> {
        self.rack_id.as_ref().filter(|rack| !rack.is_empty())
    }
}

/// Topics that exist, and for each partition the racks of its replicas; none when brokers have no racks.
pub(crate) type Topics = BTreeMap<Text, Vec<BTreeSet<Text>>>;

/// What each member gets.
pub(crate) type Assignments = BTreeMap<Text, Vec<TopicPartition>>;

/// Shares the partitions out. `members` come in the order of the JoinGroup answer.
pub(crate) fn assign(assignor: &Assignor, topics: &Topics, members: &[MemberSubscription]) -> Assignments {
    let subscribed: BTreeSet<&Text> = members.iter().flat_map(|member| &member.topics).collect();
    let topics: Topics = topics
        .iter()
        .filter(|(name, partitions)| subscribed.contains(name) && !partitions.is_empty())
        .map(|(name, partitions)| (name.clone(), partitions.clone()))
        .collect();
    match assignor {
        Assignor::Range => range::assign(&topics, members),
        Assignor::RoundRobin => round_robin::assign(&topics, members),
        Assignor::Sticky => sticky::assign(&topics, members, false),
        Assignor::CooperativeSticky => sticky::assign(&topics, members, true),
        Assignor::Custom(custom) => custom::assign(custom, &topics, members),
    }
}

/// An assignment without partitions for every member.
fn nothing(members: &[MemberSubscription]) -> Assignments {
    members.iter().map(|member| (member.member_id.clone(), Vec::new())).collect()
}

/// All partitions of topics, in the order of the topics.
fn partitions_of<'a>(topics: &'a Topics, names: impl Iterator<Item = &'a Text>) -> Vec<TopicPartition> {
    names
        .flat_map(|name| {
            let count = topics.get(name).map_or(0, Vec::len);
            (0..count).map(|index| at(name, index))
        })
        .collect()
}

fn at(topic: &Text, index: usize) -> TopicPartition {
    TopicPartition::new(topic.clone(), i32::try_from(index).unwrap_or(i32::MAX))
}
