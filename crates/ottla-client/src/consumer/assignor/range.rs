//! Range: topic by topic, the members in order get neighbouring partitions, the first ones one more.
//!
//! With racks (KIP-881): topics with the same members and the same number of partitions are matched together, so
//! that equal partition numbers stay with one member; what cannot be matched is shared out as without racks.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::Text;

use super::{Assignments, MemberSubscription, Topics, at, nothing, racks};
use crate::record::TopicPartition;

/// Members in order, with their racks.
type Members<'a> = Vec<(&'a Text, Option<&'a Text>)>;

/// The sharing out of one topic.
#[derive(Debug)]
struct Topic<'a> {
    /// Members that subscribe to it, in order, with their racks.
    members: Members<'a>,
    racks: &'a [BTreeSet<Text>],
    unassigned: Vec<TopicPartition>,
    each: usize,
    /// Members that may still get one more than `each`.
    extra: usize,
    counts: BTreeMap<&'a Text, usize>,
    racks_matter: bool,
}

impl<'a> Topic<'a> {
    fn new(name: &Text, racks: &'a [BTreeSet<Text>], ordered: &[&'a MemberSubscription]) -> Self {
        let subscribed = ordered.iter().filter(|member| member.topics.contains(name));
        let members: Vec<_> = subscribed.map(|member| (&member.member_id, member.rack())).collect();
        let count = members.len().max(1);
        let member_racks: BTreeSet<&Text> = members.iter().filter_map(|(_, rack)| *rack).collect();
        Self {
            unassigned: (0..racks.len()).map(|index| at(name, index)).collect(),
            each: racks.len() / count,
            extra: racks.len() % count,
            counts: members.iter().map(|(member, _)| (*member, 0)).collect(),
            racks_matter: !member_racks.is_empty() && racks::matter(&member_racks, racks.iter()),
            members,
            racks,
        }
    }

    /// How many more the member may get.
    fn room(&self, member: &Text) -> usize {
        let most = self.each + usize::from(self.extra > 0);
        most.saturating_sub(self.counts.get(member).copied().unwrap_or(0))
    }

    fn matches(&self, rack: Option<&Text>, partition: i32) -> bool {
        let Some(rack) = rack else { return true };
        usize::try_from(partition)
            .ok()
            .and_then(|index| self.racks.get(index))
            .is_some_and(|racks| racks.contains(rack))
    }

    fn give(&mut self, member: &'a Text, partitions: Vec<TopicPartition>, assignments: &mut Assignments) {
        let count = self.counts.entry(member).or_default();
        *count += partitions.len();
        if *count > self.each {
            self.extra = self.extra.saturating_sub(1);
        }
        self.unassigned.retain(|at| !partitions.contains(at));
        assignments.entry(member.clone()).or_default().extend(partitions);
    }

    /// Gives each member in turn what it may have, in order; only matching racks when asked to.
    fn share_out(&mut self, only_matching: bool, assignments: &mut Assignments) {
        for (member, rack) in self.members.clone() {
            let fits = |at: &&TopicPartition| !only_matching || self.matches(rack, at.partition);
            let partitions: Vec<_> =
                self.unassigned.iter().filter(fits).take(self.room(member)).cloned().collect();
            if !partitions.is_empty() {
                self.give(member, partitions, assignments);
            }
        }
    }
}

pub(super) fn assign(topics: &Topics, members: &[MemberSubscription]) -> Assignments {
    let mut ordered: Vec<&MemberSubscription> = members.iter().collect();
    ordered.sort_by_key(|member| member.order());
    let mut assignments = nothing(members);
    let mut states: Vec<Topic<'_>> =
        topics.iter().map(|(name, racks)| Topic::new(name, racks, &ordered)).collect();
    if states.iter().any(|topic| topic.racks_matter) {
        match_racks(&mut states, &mut assignments);
    }
    for topic in &mut states {
        topic.share_out(false, &mut assignments);
    }
    assignments
}

/// Topics of the same members and size are matched together.
fn match_racks<'a>(topics: &mut [Topic<'a>], assignments: &mut Assignments) {
    let mut groups: BTreeMap<(Members<'a>, usize), Vec<usize>> = BTreeMap::new();
    for (index, topic) in topics.iter().enumerate() {
        groups.entry((topic.members.clone(), topic.racks.len())).or_default().push(index);
    }
    for ((members, count), group) in groups {
        match group[..] {
            [index] if topics[index].racks_matter => topics[index].share_out(true, assignments),
            [_] => {}
            _ => match_together(topics, &group, members, count, assignments),
        }
    }
}

fn match_together<'a>(
    topics: &mut [Topic<'a>],
    group: &[usize],
    mut members: Members<'a>,
    count: usize,
    assignments: &mut Assignments,
) {
    for partition in 0..count {
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        let found = members.iter().position(|(member, rack)| {
            group.iter().all(|index| topics[*index].matches(*rack, number) && topics[*index].room(member) > 0)
        });
        let Some(found) = found else { continue };
        let member = members[found].0;
        for index in group {
            let name = topics[*index].unassigned.first().map(|at| at.topic.clone());
            let Some(name) = name else { continue };
            topics[*index].give(member, vec![at(&name, partition)], assignments);
        }
        if group.iter().all(|index| topics[*index].room(member) == 0) {
            members.remove(found);
        }
    }
}
