//! Which partitions have moved between which members in this assignment, so that none goes one way while another
//! of the same topic goes the other.

use std::collections::BTreeMap;

use ottla_protocol::types::Text;

use super::super::java_order::{hash_partition, walk};
use crate::record::TopicPartition;

type Pair = (Text, Text);

#[derive(Debug, Default)]
pub(super) struct Movements {
    /// Topic, from and to: the partitions, in the order they came.
    by_pair: BTreeMap<(Text, Pair), Vec<TopicPartition>>,
    by_partition: BTreeMap<TopicPartition, Pair>,
}

impl Movements {
    /// Notes a move.
    pub(super) fn record(&mut self, at: &TopicPartition, from: &Text, to: &Text) {
        let mut origin = from.clone();
        if let Some(pair) = self.by_partition.remove(at) {
            let key = (at.topic.clone(), pair.clone());
            if let Some(partitions) = self.by_pair.get_mut(&key) {
                partitions.retain(|moved| moved != at);
                if partitions.is_empty() {
                    self.by_pair.remove(&key);
                }
            }
            if pair.0 == *to {
                return; // back where it came from
            }
            origin = pair.0;
        }
        let pair = (origin, to.clone());
        self.by_partition.insert(at.clone(), pair.clone());
        self.by_pair.entry((at.topic.clone(), pair)).or_default().push(at.clone());
    }

    /// What to move instead of `at`: a partition of the same topic that has just gone the other way, if any.
    pub(super) fn instead(&self, at: &TopicPartition, from: &Text, to: &Text) -> TopicPartition {
        let from = self.by_partition.get(at).map_or(from, |pair| &pair.0);
        let reverse = (at.topic.clone(), (to.clone(), from.clone()));
        let candidates = self.by_pair.get(&reverse).cloned().unwrap_or_default();
        walk(candidates, hash_partition).into_iter().next().unwrap_or_else(|| at.clone())
    }
}
