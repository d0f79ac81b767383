//! What removes offsets: retention, and the deletion of their topic.
//!
//! Place in the walk: the shard's tick, and the handler of DeleteTopics. Both write tombstones; applying them
//! removes the values.
//!
//! Invariants: an offset that an open transaction is about to replace does not expire, so a group that has only
//! pending offsets stays. Work of one tick is bounded.

use std::collections::BTreeMap;

use ottla_protocol::types::{TopicIdPartition, Uuid};

use super::offsets::OffsetSlot;
use super::{Groups, record};
use crate::config::CoreConfig;
use crate::decision::ShardTime;
use crate::shard::{NewRecord, Stamp, Step};

/// Offsets that one tick looks at at most.
const SLOTS_MAX: u32 = 4096;

impl Groups {
    /// Tombstones of the next expired offsets, by partition of `__consumer_offsets`.
    fn expired(&mut self, config: &CoreConfig, now: ShardTime) -> BTreeMap<i32, Vec<NewRecord>> {
        if self.expiry.at > now.0 {
            return BTreeMap::new();
        }
        let from = self.expiry.cursor.unwrap_or_default();
        let to = from.saturating_add(SLOTS_MAX).min(self.offsets.slot_bound());
        if to >= self.offsets.slot_bound() {
            let at = now.0.saturating_add(config.offsets_retention_check_interval_ms.max(1));
            self.expiry = super::Expiry { at, cursor: None };
        } else {
            self.expiry.cursor = Some(to);
        }
        let slots = (from..to).filter_map(|slot| self.offsets.get(slot));
        tombstones(slots.filter(|values| values.is_expired(now.0, config.offsets_retention_ms)))
    }
}

fn tombstones<'a>(slots: impl Iterator<Item = &'a OffsetSlot>) -> BTreeMap<i32, Vec<NewRecord>> {
    let mut tombstones: BTreeMap<i32, Vec<NewRecord>> = BTreeMap::new();
    for values in slots {
        tombstones.entry(values.log_partition).or_default().push(record::tombstone(&values.key));
    }
    tombstones
}

fn write(step: &mut Step<'_>, tombstones: BTreeMap<i32, Vec<NewRecord>>) {
    for (partition, records) in tombstones {
        let topic = step.state.topics.consumer_offsets().expect("there are records in it");
        let topic_id = topic.id;
        step.append_records(TopicIdPartition { topic_id, partition }, &records, Stamp::NONE);
    }
}

/// Fires what is due.
pub(crate) fn tick(step: &mut Step<'_>) {
    let expired = step.state.groups.expired(&step.state.config, step.now);
    write(step, expired);
}

/// Drops every group's offsets of a topic, pending ones included; called in the step that deletes it.
pub(crate) fn topic_deleted(step: &mut Step<'_>, topic_id: Uuid, name: &str) {
    let slots = step.state.groups.offsets.iter().map(|(_, values)| values);
    let tombstones = tombstones(slots.filter(|values| values.is_of_topic(topic_id, name)));
    write(step, tombstones);
}
