//! `range`: every topic's partitions in runs, to its subscribers in the order of their instance or member ids.

use std::collections::BTreeMap;

use ottla_protocol::types::{TopicIdPartition, Uuid};

use super::Subscriber;
use crate::group::consumer::assignment::Assignment;

/// The target of every subscriber.
pub(super) fn assign(subscribers: &[Subscriber], topics: &BTreeMap<Uuid, i32>) -> Vec<Assignment> {
    let mut order: Vec<usize> = (0..subscribers.len()).collect();
    order.sort_by_key(|&index| {
        let subscriber = &subscribers[index];
        // Static members first: their ids stay.
        (subscriber.instance_id.is_none(), subscriber.instance_id.as_ref(), &subscriber.member_id)
    });
    let mut target = vec![Assignment::default(); subscribers.len()];
    for (&topic_id, &partition_count) in topics {
        let of_topic: Vec<usize> =
            order.iter().copied().filter(|&index| subscribers[index].topics.contains(&topic_id)).collect();
        let Ok(count) = i32::try_from(of_topic.len()) else { continue };
        if count == 0 {
            continue;
        }
        let (each, extra) = (partition_count / count, partition_count % count);
        let mut partitions = 0..partition_count;
        for (place, index) in (0..).zip(of_topic) {
            let share = each + i32::from(place < extra);
            for partition in partitions.by_ref().take(usize::try_from(share).unwrap_or_default()) {
                target[index].insert(TopicIdPartition { topic_id, partition });
            }
        }
    }
    target
}
