//! Sticky with equal subscriptions: quotas.
//!
//! With p partitions and m members everybody gets p / m, and p % m members one more. First everybody keeps what it
//! has up to its quota, then the rest goes round: to members below the lower quota, then to those at it.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::Text;

use super::super::racks::Racks;
use super::super::{Assignments, Topics, partitions_of};
use super::Owned;
use crate::record::TopicPartition;

/// The assignment, and which partitions change hands, with their new owners.
type Outcome = (Assignments, BTreeMap<TopicPartition, Text>);

struct Builder<'a> {
    racks: &'a Racks,
    owned: &'a Owned,
    low: usize,
    high: usize,
    /// Members that get more than `low`, as planned and as reached.
    over_planned: usize,
    over: usize,
    /// Below `low`.
    under: Vec<Text>,
    /// At `low`, and may get one more.
    exact: Vec<Text>,
    released: BTreeMap<TopicPartition, Text>,
    assigned: BTreeSet<TopicPartition>,
    assignments: Assignments,
    moving: BTreeMap<TopicPartition, Text>,
}

pub(super) fn assign(topics: &Topics, racks: &Racks, owned: &Owned) -> Outcome {
    let partitions: usize = topics.values().map(Vec::len).sum();
    let members = owned.members.len().max(1);
    let mut builder = Builder {
        racks,
        owned,
        low: partitions / members,
        high: partitions.div_ceil(members),
        over_planned: partitions % members,
        over: 0,
        under: Vec::new(),
        exact: Vec::new(),
        released: BTreeMap::new(),
        assigned: BTreeSet::new(),
        assignments: owned.members.iter().map(|member| (member.clone(), Vec::new())).collect(),
        moving: BTreeMap::new(),
    };
    for member in &owned.members {
        builder.keep(member);
    }
    let mut rest = partitions_of(topics, topics.keys());
    rest.retain(|at| !builder.assigned.contains(at));
    builder.under.sort();
    builder.exact.sort();
    racks.sort(&mut rest);
    if racks.matter() {
        builder.go_round_near(&mut rest);
    }
    builder.go_round(rest);
    (builder.assignments, builder.moving)
}

impl Builder<'_> {
    /// Lets a member keep what it has, up to its quota.
    fn keep(&mut self, member: &Text) {
        let held = self.owned.partitions.get(member).map(Vec::as_slice).unwrap_or_default();
        let (far, mut held): (Vec<_>, Vec<_>) =
            held.iter().cloned().partition(|at| self.racks.mismatch(member, at));
        self.released.extend(far.into_iter().map(|at| (at, member.clone())));
        held.sort_by(|a, b| (a.partition, &a.topic).cmp(&(b.partition, &b.topic)));
        held.retain(|at| !self.owned.disputed.contains(at));
        let quota = if held.len() < self.low {
            self.under.push(member.clone());
            held.len()
        } else if held.len() >= self.high && self.over < self.over_planned {
            self.over += 1;
            if self.over == self.over_planned {
                self.exact.clear();
            }
            self.high
        } else {
            if self.over < self.over_planned {
                self.exact.push(member.clone());
            }
            self.low
        };
        self.released.extend(held.split_off(quota).into_iter().map(|at| (at, member.clone())));
        self.assigned.extend(held.iter().cloned());
        self.assignments.entry(member.clone()).or_default().extend(held);
    }

    /// Gives a partition to a member; how many it has then.
    fn give(&mut self, at: TopicPartition, member: &Text) -> usize {
        let released_by_other = self.released.get(&at).is_some_and(|owner| owner != member);
        if released_by_other || self.owned.disputed.contains(&at) {
            self.moving.insert(at.clone(), member.clone());
        }
        let given = self.assignments.entry(member.clone()).or_default();
        given.push(at);
        given.len()
    }

    fn count(&self, member: &Text) -> usize {
        self.assignments.get(member).map_or(0, Vec::len)
    }

    /// One round among members in a rack of the partition; what nobody there can take is left.
    fn go_round_near(&mut self, rest: &mut Vec<TopicPartition>) {
        let mut turn = 0;
        let mut left = Vec::new();
        for at in std::mem::take(rest) {
            let member = if let Some(index) = self.racks.next(&at, &self.under, turn) {
                let member = self.under[index].clone();
                let count = self.count(&member) + 1;
                let mut next = index;
                if count >= self.low {
                    self.under.remove(index);
                    if count < self.high && self.over < self.over_planned {
                        self.exact.push(member.clone());
                    }
                } else {
                    next += 1;
                }
                turn = if self.under.is_empty() { 0 } else { next % self.under.len() };
                member
            } else if let Some(index) = self.racks.next(&at, &self.exact, 0) {
                let member = self.exact[index].clone();
                if self.count(&member) + 1 == self.high {
                    self.exact.remove(index);
                    self.over += 1;
                    if self.over == self.over_planned {
                        self.exact.clear();
                    }
                }
                member
            } else {
                left.push(at);
                continue;
            };
            self.give(at, &member);
        }
        *rest = left;
    }

    /// Goes round the members below `low`, and when there are none, those at it.
    fn go_round(&mut self, rest: Vec<TopicPartition>) {
        let mut turn = 0;
        for at in rest {
            if turn >= self.under.len() {
                turn = 0;
            }
            let (member, was_under) = match self.under.get(turn) {
                Some(member) => (member.clone(), true),
                None if self.exact.is_empty() => break, // the quotas add up, so this does not happen
                None => (self.exact.remove(0), false),
            };
            let count = self.give(at, &member);
            if count == self.low && was_under {
                self.under.remove(turn);
                self.exact.push(member);
            } else if was_under {
                turn += 1;
            }
        }
    }
}
