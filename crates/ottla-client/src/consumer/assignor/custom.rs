//! Strategies of the program's own: sharing partitions out by what only the program knows.
//!
//! The program's code is asked for names and a division; what it answers is checked here before it is sent, so that
//! a mistake in it can leave partitions unread, but never have two members read one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use ottla_protocol::types::Text;

use super::{Assignments, MemberSubscription, Topics};
use crate::record::TopicPartition;

/// A strategy of the program's own, for groups whose members all run it. It is asked by the member that the group's
/// coordinator made the leader.
///
/// ```
/// use std::collections::BTreeMap;
/// use ottla_client::{Assignor, CustomAssignor, MemberSubscription, PartitionAssignor, Text, TopicPartition};
///
/// /// Everything to the member with the largest weight; the others stand by.
/// #[derive(Debug)]
/// struct Heaviest {
///     weight: u8,
/// }
///
/// impl PartitionAssignor for Heaviest {
///     fn name(&self) -> &str {
///         "heaviest"
///     }
///
///     fn is_cooperative(&self) -> bool {
///         false
///     }
///
///     fn user_data(&self) -> Option<bytes::Bytes> {
///         Some(vec![self.weight].into())
///     }
///
///     fn assign(
///         &self,
///         topics: &BTreeMap<Text, usize>,
///         members: &[MemberSubscription],
///     ) -> BTreeMap<Text, Vec<TopicPartition>> {
///         let Some(heaviest) = members.iter().max_by_key(|member| &member.user_data) else { return BTreeMap::new() };
///         let all = topics.iter().flat_map(|(topic, count)| {
///             (0..*count as i32).map(|partition| TopicPartition::new(topic.clone(), partition))
///         });
///         BTreeMap::from([(heaviest.member_id.clone(), all.collect())])
///     }
/// }
///
/// let assignor = Assignor::Custom(CustomAssignor::new(Heaviest { weight: 7 }));
/// assert_eq!(assignor.name(), "heaviest");
/// ```
pub trait PartitionAssignor: fmt::Debug + Send + Sync {
    /// The name in JoinGroup: 1 to 249 bytes, not one of Kafka's own four.
    fn name(&self) -> &str;

    /// Whether partitions are read on during a rebalance (KIP-429). What is taken from one member is then given to
    /// the next in a second rebalance, which follows by itself. Default: no.
    fn is_cooperative(&self) -> bool {
        false
    }

    /// What this member tells the leader, asked before each JoinGroup; at most 64 KiB are sent. Default: nothing.
    fn user_data(&self) -> Option<Bytes> {
        None
    }

    /// Shares the partitions out: `topics` are those that exist, with their number of partitions. Members that are
    /// not named get nothing.
    fn assign(
        &self,
        topics: &BTreeMap<Text, usize>,
        members: &[MemberSubscription],
    ) -> BTreeMap<Text, Vec<TopicPartition>>;
}

/// A [`PartitionAssignor`] as a value among the others; equal by name.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use ottla_client::{MemberSubscription, PartitionAssignor, Text, TopicPartition};
/// # #[derive(Debug)]
/// # struct StandBy;
/// # impl PartitionAssignor for StandBy {
/// #     fn name(&self) -> &str { "stand-by" }
/// #     fn assign(
/// #         &self,
/// #         _: &BTreeMap<Text, usize>,
/// #         _: &[MemberSubscription],
/// #     ) -> BTreeMap<Text, Vec<TopicPartition>> {
/// #         BTreeMap::new()
/// #     }
/// # }
/// use ottla_client::{Assignor, ClientSettings, ConsumerSettings, CustomAssignor};
///
/// // `StandBy` is a `PartitionAssignor` of the program's own
/// let custom = CustomAssignor::new(StandBy);
/// assert_eq!(custom.name(), "stand-by");
/// let settings = ConsumerSettings::new(ClientSettings::new("127.0.0.1:9092")?)
///     .group_id("shop")
///     .assignors(vec![Assignor::Custom(custom), Assignor::Range]); // range while some members lack it
/// assert!(settings.check().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CustomAssignor(Arc<dyn PartitionAssignor>);

impl CustomAssignor {
    /// Wraps it.
    pub fn new(assignor: impl PartitionAssignor + 'static) -> Self {
        Self(Arc::new(assignor))
    }
}

impl std::ops::Deref for CustomAssignor {
    type Target = dyn PartitionAssignor;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for CustomAssignor {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for CustomAssignor {}

/// Asks the strategy and keeps what may be: known members, partitions that exist, each once, and with a cooperative
/// strategy none that somebody else still reads.
pub(super) fn assign(
    custom: &CustomAssignor,
    topics: &Topics,
    members: &[MemberSubscription],
) -> Assignments {
    let counts = topics.iter().map(|(topic, partitions)| (topic.clone(), partitions.len())).collect();
    let mut wished = custom.assign(&counts, members);
    let owners = if custom.is_cooperative() { owners(members) } else { BTreeMap::new() };
    let mut given = BTreeSet::new();
    let mut assignments = super::nothing(members);
    for (member_id, partitions) in &mut assignments {
        for at in wished.remove(member_id).unwrap_or_default() {
            let exists = usize::try_from(at.partition)
                .is_ok_and(|index| index < counts.get(&at.topic).copied().unwrap_or(0));
            let is_held = owners.get(&at).is_some_and(|owner| *owner != member_id);
            if is_held {
                continue;
            }
            if exists && given.insert(at.clone()) {
                partitions.push(at);
            } else {
                tracing::error!(assignor = custom.name(), %member_id, %at, exists, "assigned twice, or not there: left out");
            }
        }
    }
    for member_id in wished.keys() {
        tracing::error!(assignor = custom.name(), %member_id, "partitions were assigned to nobody the group knows");
    }
    assignments
}

/// Who reads what: the claim of the highest generation counts; two of the same cancel each other out, as both have
/// given up what they claim.
fn owners(members: &[MemberSubscription]) -> BTreeMap<TopicPartition, &Text> {
    let mut claims: BTreeMap<TopicPartition, (i32, Option<&Text>)> = BTreeMap::new();
    for member in members {
        let generation_id = member.generation_id.unwrap_or(-1);
        for at in &member.owned {
            match claims.get_mut(at) {
                Some((best, _)) if *best > generation_id => {}
                Some(claim) if claim.0 == generation_id => claim.1 = None,
                _ => drop(claims.insert(at.clone(), (generation_id, Some(&member.member_id)))),
            }
        }
    }
    claims.into_iter().filter_map(|(at, (_, owner))| Some((at, owner?))).collect()
}
