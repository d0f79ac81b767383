//! Sticky (KIP-54, KIP-341, KIP-429): balanced first, and within that everybody keeps what it has.
//!
//! Two algorithms with one start: when all members want the same topics, quotas decide (`constrained`); else
//! partitions are moved one by one while that makes it fairer (`general`). The cooperative form takes from the
//! result what still has another owner: it is given out in the rebalance after its owner has let go.

mod constrained;
mod general;
mod movements;

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::codec::Reader;
use ottla_protocol::types::Text;

use super::java_order::{hash_text, walk};
use super::racks::Racks;
use super::{Assignments, MemberSubscription, Topics};
use crate::record::TopicPartition;

/// The generation of a member that tells none.
const NO_GENERATION: i32 = -1;
/// Most partitions that one member's data may name.
const USER_DATA_PARTITIONS_MAX: usize = 1_000_000;

/// What a member had before.
#[derive(Clone, Debug, Default)]
struct Before {
    partitions: Vec<TopicPartition>,
    generation: Option<i32>,
}

/// Everybody's partitions of before, conflicts resolved.
#[derive(Debug, Default)]
struct Owned {
    /// Members in the order of Java's table.
    members: Vec<Text>,
    partitions: BTreeMap<Text, Vec<TopicPartition>>,
    /// Claimed by several members in the same generation: nobody's.
    disputed: BTreeSet<TopicPartition>,
    all_equal: bool,
    generation_max: i32,
}

pub(super) fn assign(topics: &Topics, members: &[MemberSubscription], cooperative: bool) -> Assignments {
    let walked = walk(members.iter().collect(), |member: &&MemberSubscription| hash_text(&member.member_id));
    let before: BTreeMap<Text, Before> =
        walked.iter().map(|member| (member.member_id.clone(), before(member, cooperative))).collect();
    let owned = owned(topics, &walked, &before);
    let racks = Racks::new(topics, members);
    if owned.all_equal {
        let (mut assignments, moving) = constrained::assign(topics, &racks, &owned);
        if cooperative {
            for (at, member) in moving {
                assignments.entry(member).or_default().retain(|given| *given != at);
            }
        }
        return assignments;
    }
    let mut assignments = general::assign(topics, &racks, owned, &walked, &before);
    if cooperative {
        withhold(&mut assignments, members);
    }
    assignments
}

/// Takes away what a member gets and another one has to give up first.
fn withhold(assignments: &mut Assignments, members: &[MemberSubscription]) {
    let mut revoked = BTreeSet::new();
    for member in members {
        let given = assignments.get(&member.member_id);
        revoked.extend(member.owned.iter().filter(|at| !given.is_some_and(|given| given.contains(at))));
    }
    for member in members {
        if let Some(given) = assignments.get_mut(&member.member_id) {
            given.retain(|at| member.owned.contains(at) || !revoked.contains(at));
        }
    }
}

/// What a member says it had: cooperative members in the subscription's own fields (older ones with the
/// generation in their data), others in their data.
fn before(member: &MemberSubscription, cooperative: bool) -> Before {
    if !cooperative {
        return member.user_data.as_ref().map(sticky_data).unwrap_or_default();
    }
    let told = member.generation_id.or_else(|| {
        let data = member.user_data.clone()?;
        Some(Reader::new(data).i32().unwrap_or(NO_GENERATION))
    });
    Before { partitions: member.owned.clone(), generation: told }
}

/// Reads the sticky assignor's data: topics with partitions, then (version 1) the generation.
fn sticky_data(data: &bytes::Bytes) -> Before {
    let mut reader = Reader::new(data.clone());
    let Some(partitions) = read_partitions(&mut reader) else { return Before::default() };
    Before { partitions, generation: reader.i32().ok() }
}

fn read_partitions(reader: &mut Reader) -> Option<Vec<TopicPartition>> {
    let mut partitions = Vec::new();
    for _ in 0..reader.i32().ok()? {
        let topic = reader.nullable_string().ok()??.detached();
        for _ in 0..reader.i32().ok()? {
            if partitions.len() >= USER_DATA_PARTITIONS_MAX {
                return None;
            }
            partitions.push(TopicPartition::new(topic.clone(), reader.i32().ok()?));
        }
    }
    Some(partitions)
}

fn owned(topics: &Topics, walked: &[&MemberSubscription], before: &BTreeMap<Text, Before>) -> Owned {
    let mut owned = Owned { all_equal: true, generation_max: NO_GENERATION, ..Owned::default() };
    let told: BTreeMap<&Text, i32> = walked
        .iter()
        .map(|member| (&member.member_id, member.generation_id.unwrap_or(NO_GENERATION)))
        .collect();
    let mut first_topics: BTreeSet<&Text> = BTreeSet::new();
    let mut owners: BTreeMap<TopicPartition, Text> = BTreeMap::new();
    for member in walked {
        if first_topics.is_empty() {
            first_topics = member.topics.iter().collect();
        } else if member.topics.len() != first_topics.len()
            || !member.topics.iter().all(|topic| first_topics.contains(topic))
        {
            owned.all_equal = false;
        }
        let name = &member.member_id;
        let before = &before[name];
        let generation = before.generation.unwrap_or(NO_GENERATION);
        owned.generation_max = owned.generation_max.max(generation);
        owned.members.push(name.clone());
        owned.partitions.insert(name.clone(), Vec::new());
        for at in before.partitions.iter().filter(|at| exists(topics, at)) {
            let other = owners.get(at).cloned();
            let theirs = other.as_ref().map(|other| told.get(other).copied().unwrap_or(NO_GENERATION));
            match theirs.map(|theirs| generation.cmp(&theirs)) {
                Some(std::cmp::Ordering::Less) => continue,
                Some(std::cmp::Ordering::Equal) => {
                    owned.disputed.insert(at.clone());
                }
                None | Some(std::cmp::Ordering::Greater) => {
                    owned.partitions.entry(name.clone()).or_default().push(at.clone());
                }
            }
            if let Some(theirs) = other.and_then(|other| owned.partitions.get_mut(&other))
                && let Some(place) = theirs.iter().position(|held| held == at)
            {
                theirs.remove(place);
            }
            owners.insert(at.clone(), name.clone());
        }
    }
    owned
}

fn exists(topics: &Topics, at: &TopicPartition) -> bool {
    let count = topics.get(&at.topic).map_or(0, Vec::len);
    usize::try_from(at.partition).is_ok_and(|index| index < count)
}
