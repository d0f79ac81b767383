//! Sticky with different subscriptions: partitions move one by one while that makes it fairer.
//!
//! Members are looked at from the one with the fewest partitions on, partitions from the topic with the fewest
//! subscribers on. What only one member can have is left alone. If all the moving did not make it fairer than it
//! was, it is undone.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::Text;

use super::super::racks::Racks;
use super::super::{Assignments, MemberSubscription, Topics, partitions_of};
use super::movements::Movements;
use super::{Before, NO_GENERATION, Owned};
use crate::record::TopicPartition;

struct Builder<'a> {
    topics: &'a Topics,
    racks: &'a Racks,
    /// Subscribers of each topic, and topics of each subscriber.
    subscribers: BTreeMap<Text, Vec<Text>>,
    wanted: BTreeMap<Text, BTreeSet<Text>>,
    current: Assignments,
    owner: BTreeMap<TopicPartition, Text>,
    /// Members by number of partitions.
    by_count: BTreeSet<(usize, Text)>,
    movements: Movements,
    /// Who had a partition in an older generation.
    previous: BTreeMap<TopicPartition, (Text, i32)>,
}

pub(super) fn assign(
    topics: &Topics,
    racks: &Racks,
    owned: Owned,
    walked: &[&MemberSubscription],
    before: &BTreeMap<Text, Before>,
) -> Assignments {
    let mut builder = Builder {
        topics,
        racks,
        subscribers: topics.keys().map(|topic| (topic.clone(), Vec::new())).collect(),
        wanted: BTreeMap::new(),
        current: owned.partitions,
        owner: BTreeMap::new(),
        by_count: BTreeSet::new(),
        movements: Movements::default(),
        previous: previous(before, walked, owned.generation_max),
    };
    for member in walked {
        let mut wanted = BTreeSet::new();
        for topic in member.topics.iter().filter(|topic| topics.contains_key(*topic)) {
            if wanted.insert(topic.clone()) {
                builder.subscribers.entry(topic.clone()).or_default().push(member.member_id.clone());
            }
        }
        builder.wanted.insert(member.member_id.clone(), wanted);
    }
    for (member, partitions) in &builder.current {
        builder.owner.extend(partitions.iter().map(|at| (at.clone(), member.clone())));
    }
    let mut names: Vec<&Text> = topics.keys().collect();
    names.sort_by_key(|name| (builder.subscribers[*name].len(), *name));
    let all = partitions_of(topics, names.into_iter());
    let must_revoke = builder.drop_unwanted();
    let kept: BTreeSet<TopicPartition> = builder.current.values().flatten().cloned().collect();
    let unassigned = all.iter().filter(|at| !kept.contains(at)).cloned().collect();
    builder.by_count = builder.current.iter().map(|(member, held)| (held.len(), member.clone())).collect();
    builder.balance(all, unassigned, must_revoke);
    builder.current
}

/// Partitions of members that missed the newest generation, with the newest claim on each.
fn previous(
    before: &BTreeMap<Text, Before>,
    walked: &[&MemberSubscription],
    newest: i32,
) -> BTreeMap<TopicPartition, (Text, i32)> {
    let mut previous: BTreeMap<TopicPartition, (Text, i32)> = BTreeMap::new();
    for member in walked {
        let before = &before[&member.member_id];
        let generation = before.generation.unwrap_or(NO_GENERATION);
        if generation >= newest {
            continue;
        }
        for at in &before.partitions {
            if previous.get(at).is_none_or(|(_, theirs)| generation > *theirs) {
                previous.insert(at.clone(), (member.member_id.clone(), generation));
            }
        }
    }
    previous
}

impl Builder<'_> {
    /// Takes from everybody what it does not subscribe to any more or what is in no rack of its; true if any.
    fn drop_unwanted(&mut self) -> bool {
        let mut any = false;
        for (member, held) in &mut self.current {
            let count = held.len();
            held.retain(|at| self.wanted[member].contains(&at.topic) && !self.racks.mismatch(member, at));
            any |= held.len() < count;
        }
        any
    }

    fn count(&self, member: &Text) -> usize {
        self.current.get(member).map_or(0, Vec::len)
    }

    /// How many partitions a member could have.
    fn most(&self, member: &Text) -> usize {
        self.wanted[member].iter().map(|topic| self.topics.get(topic).map_or(0, Vec::len)).sum()
    }

    /// Gives a partition to the member with the fewest that wants it.
    fn give(&mut self, at: &TopicPartition, near_only: bool) -> bool {
        let found = self.by_count.iter().find(|(_, member)| {
            self.wanted[member].contains(&at.topic) && !(near_only && self.racks.mismatch(member, at))
        });
        let Some((count, member)) = found.cloned() else { return false };
        self.by_count.remove(&(count, member.clone()));
        self.by_count.insert((count + 1, member.clone()));
        self.current.entry(member.clone()).or_default().push(at.clone());
        self.owner.insert(at.clone(), member);
        true
    }

    fn is_contended(&self, topic: &Text) -> bool {
        self.subscribers.get(topic).is_some_and(|subscribers| subscribers.len() >= 2)
    }

    /// Whether a member can take part in moves.
    fn can_move(&self, member: &Text) -> bool {
        self.count(member) < self.most(member)
            || self.current.get(member).into_iter().flatten().any(|at| self.is_contended(&at.topic))
    }

    fn balance(
        &mut self,
        mut all: Vec<TopicPartition>,
        mut unassigned: Vec<TopicPartition>,
        must_revoke: bool,
    ) {
        let initializing = self.by_count.last().is_none_or(|(count, _)| *count == 0);
        let mut rest = unassigned.clone();
        if self.racks.matter() {
            rest.retain(|at| !self.give(at, true));
        }
        for at in &rest {
            self.give(at, false);
        }
        all.retain(|at| self.is_contended(&at.topic));
        unassigned.retain(|at| self.is_contended(&at.topic));
        let fixed: Vec<Text> = self.wanted.keys().filter(|member| !self.can_move(member)).cloned().collect();
        let mut set_aside = Assignments::new();
        for member in fixed {
            self.by_count.remove(&(self.count(&member), member.clone()));
            if let Some(held) = self.current.remove(&member) {
                set_aside.insert(member, held);
            }
        }
        let (before, owner) = (self.current.clone(), self.owner.clone());
        if !must_revoke {
            self.move_all(&unassigned);
        }
        let moved = self.move_all(&all);
        if !initializing && moved && unfairness(&self.current) >= unfairness(&before) {
            self.current = before;
            self.owner = owner;
        }
        self.current.extend(set_aside);
    }

    /// Moves partitions until nothing gets fairer; whether any was moved.
    fn move_all(&mut self, partitions: &[TopicPartition]) -> bool {
        let mut any = false;
        loop {
            let mut moved = false;
            for at in partitions {
                if self.is_balanced() {
                    break;
                }
                moved |= self.improve(at);
            }
            any |= moved;
            if !moved {
                return any;
            }
        }
    }

    /// Moves a partition if somebody else should have it.
    fn improve(&mut self, at: &TopicPartition) -> bool {
        let Some(owner) = self.owner.get(at).cloned() else { return false };
        let count = self.count(&owner);
        if let Some((previous, _)) = self.previous.get(at).cloned()
            && self.current.contains_key(&previous)
            && count > self.count(&previous) + 1
        {
            self.hand_over(at, &owner, &previous);
            return true;
        }
        let subscribers = self.subscribers.get(&at.topic).map(Vec::as_slice).unwrap_or_default();
        // with racks, somebody near is looked for first; either way the one with the fewest gets it
        if !subscribers.iter().any(|other| count > self.count(other) + 1) {
            return false;
        }
        let next = self.by_count.iter().find(|(_, member)| self.wanted[member].contains(&at.topic));
        let Some((_, next)) = next.cloned() else { return false };
        self.hand_over(at, &owner, &next);
        true
    }

    fn hand_over(&mut self, at: &TopicPartition, from: &Text, to: &Text) {
        let at = self.movements.instead(at, from, to);
        let Some(from) = self.owner.get(&at).cloned() else { return };
        self.by_count.remove(&(self.count(&from), from.clone()));
        self.by_count.remove(&(self.count(to), to.clone()));
        self.movements.record(&at, &from, to);
        if let Some(held) = self.current.get_mut(&from) {
            held.retain(|held| *held != at);
        }
        self.current.entry(to.clone()).or_default().push(at.clone());
        self.owner.insert(at, to.clone());
        self.by_count.insert((self.count(to), to.clone()));
        self.by_count.insert((self.count(&from), from));
    }

    /// Nobody could take a partition from somebody with at least two more.
    fn is_balanced(&self) -> bool {
        let (Some((fewest, _)), Some((most, _))) = (self.by_count.first(), self.by_count.last()) else {
            return true;
        };
        if *fewest + 1 >= *most {
            return true;
        }
        self.by_count.iter().all(|(count, member)| {
            if *count == self.most(member) {
                return true;
            }
            let wanted = partitions_of(self.topics, self.wanted[member].iter());
            wanted.iter().all(|at| {
                let owner = self.owner.get(at);
                owner.is_none_or(|owner| owner == member || count + 1 >= self.count(owner))
            })
        })
    }
}

/// Sum of the differences between all pairs of members; 0 is perfectly even.
fn unfairness(assignments: &Assignments) -> usize {
    let mut counts: Vec<usize> = assignments.values().map(Vec::len).collect();
    counts.sort_unstable();
    let mut sum = 0;
    let mut total = 0;
    for (index, count) in counts.iter().enumerate() {
        total += count * index - sum;
        sum += count;
    }
    total
}
