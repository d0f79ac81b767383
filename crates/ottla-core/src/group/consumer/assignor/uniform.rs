//! `uniform`: as even as the subscriptions allow, moving as little as that allows.
//!
//! First everybody keeps what it had and still may have; where all subscribe to the same topics, up to its fair
//! share. Then what nobody has goes to whoever has least. Where subscriptions differ, partitions then move one
//! by one from a member to a subscriber of the same topic that has at least two fewer, until there is no such
//! pair.
//!
//! Invariants: every partition of a topic with a subscriber is given to exactly one of them. With equal
//! subscriptions the members' counts differ by one at most, and no more partitions move than must.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::{TopicIdPartition, Uuid};

use super::Subscriber;
use crate::group::consumer::assignment::Assignment;

/// The target of every subscriber.
pub(super) fn assign(subscribers: &[Subscriber], topics: &BTreeMap<Uuid, i32>) -> Vec<Assignment> {
    let mut plan = Plan::new(subscribers, topics);
    let equal = subscribers.windows(2).all(|pair| pair[0].topics == pair[1].topics);
    if equal {
        plan.keep_fair_shares();
    } else {
        plan.keep_everything();
    }
    plan.give_rest();
    if !equal {
        plan.balance();
    }
    plan.target
}

/// A target in the making.
struct Plan<'a> {
    subscribers: &'a [Subscriber],
    topics: &'a BTreeMap<Uuid, i32>,
    /// Indexes of the subscribers of each topic.
    by_topic: BTreeMap<Uuid, Vec<usize>>,
    target: Vec<Assignment>,
    counts: Vec<usize>,
    taken: BTreeSet<TopicIdPartition>,
}

impl<'a> Plan<'a> {
    fn new(subscribers: &'a [Subscriber], topics: &'a BTreeMap<Uuid, i32>) -> Self {
        let mut by_topic: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        for (index, subscriber) in subscribers.iter().enumerate() {
            for &topic_id in subscriber.topics.iter().filter(|topic_id| topics.contains_key(topic_id)) {
                by_topic.entry(topic_id).or_default().push(index);
            }
        }
        Self {
            subscribers,
            topics,
            by_topic,
            target: vec![Assignment::default(); subscribers.len()],
            counts: vec![0; subscribers.len()],
            taken: BTreeSet::new(),
        }
    }

    fn give(&mut self, index: usize, partition: TopicIdPartition) {
        self.target[index].insert(partition);
        self.counts[index] += 1;
        self.taken.insert(partition);
    }

    /// What a subscriber had and still may have.
    fn keepable(&self, index: usize) -> Vec<TopicIdPartition> {
        let subscriber = &self.subscribers[index];
        let may_have = |partition: &TopicIdPartition| {
            subscriber.topics.contains(&partition.topic_id)
                && self
                    .topics
                    .get(&partition.topic_id)
                    .is_some_and(|count| (0..*count).contains(&partition.partition))
                && !self.taken.contains(partition)
        };
        subscriber.previous.iter().filter(may_have).collect()
    }

    fn keep_everything(&mut self) {
        for index in 0..self.subscribers.len() {
            for partition in self.keepable(index) {
                self.give(index, partition);
            }
        }
    }

    /// Everybody keeps up to its share; the shares that are larger by one go to those who had that much.
    fn keep_fair_shares(&mut self) {
        let total: usize = self
            .by_topic
            .keys()
            .map(|topic_id| usize::try_from(self.topics[topic_id]).unwrap_or_default())
            .sum();
        let Some(share) = total.checked_div(self.subscribers.len()) else { return };
        let mut larger = total % self.subscribers.len();
        for index in 0..self.subscribers.len() {
            let keepable = self.keepable(index);
            let mut quota = share;
            if keepable.len() > share && larger > 0 {
                larger -= 1;
                quota += 1;
            }
            for partition in keepable.into_iter().take(quota) {
                self.give(index, partition);
            }
        }
    }

    /// What nobody has goes to whoever of its subscribers has least. Topics with few subscribers first.
    fn give_rest(&mut self) {
        let mut order: Vec<(usize, Uuid)> =
            self.by_topic.iter().map(|(topic_id, of_topic)| (of_topic.len(), *topic_id)).collect();
        order.sort_unstable();
        for (_, topic_id) in order {
            let of_topic = self.by_topic[&topic_id].clone();
            let mut by_count: BTreeSet<(usize, usize)> =
                of_topic.iter().map(|&index| (self.counts[index], index)).collect();
            for partition in 0..self.topics[&topic_id] {
                let partition = TopicIdPartition { topic_id, partition };
                if self.taken.contains(&partition) {
                    continue;
                }
                let (count, index) = by_count.pop_first().expect("a topic is listed by its subscribers");
                self.give(index, partition);
                by_count.insert((count + 1, index));
            }
        }
    }

    /// Moves partitions until none can go to a member that has at least two fewer. Every move makes the sum of
    /// the squares of the counts smaller, so it ends.
    fn balance(&mut self) {
        let topic_ids: Vec<Uuid> = self.by_topic.keys().copied().collect();
        loop {
            let mut moved = false;
            for topic_id in &topic_ids {
                moved |= self.balance_topic(*topic_id);
            }
            if !moved {
                return;
            }
        }
    }

    fn balance_topic(&mut self, topic_id: Uuid) -> bool {
        let of_topic = &self.by_topic[&topic_id];
        let mut by_count: BTreeSet<(usize, usize)> =
            of_topic.iter().map(|&index| (self.counts[index], index)).collect();
        // Those who have a partition of this topic to give.
        let mut givers = by_count.clone();
        let mut moved = false;
        while let (Some(&(least, to)), Some((most, from))) = (by_count.first(), givers.pop_last()) {
            if most < least + 2 {
                break;
            }
            let Some(partition) = self.giveable(from, to, topic_id) else { continue };
            moved = true;
            self.target[from].remove(partition);
            self.target[to].insert(partition);
            self.counts[from] -= 1;
            self.counts[to] += 1;
            by_count.remove(&(most, from));
            by_count.remove(&(least, to));
            givers.remove(&(least, to));
            for index in [from, to] {
                by_count.insert((self.counts[index], index));
                givers.insert((self.counts[index], index));
            }
        }
        moved
    }

    /// A partition of the topic that `from` can give to `to`: one that `to` had, or one that `from` has not had,
    /// rather than any other.
    fn giveable(&self, from: usize, to: usize, topic_id: Uuid) -> Option<TopicIdPartition> {
        let (_, partitions) = self.target[from].topics().find(|(of, _)| *of == topic_id)?;
        let cost = |partition: &TopicIdPartition| {
            let back = self.subscribers[to].previous.contains(*partition);
            let kept = self.subscribers[from].previous.contains(*partition);
            (!back, kept, partition.partition)
        };
        partitions.iter().map(|&partition| TopicIdPartition { topic_id, partition }).min_by_key(cost)
    }
}
