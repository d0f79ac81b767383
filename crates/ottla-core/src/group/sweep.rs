//! What time and deletion remove: members by their timers, offsets by retention or with their topic, groups
//! that are left with nothing.
//!
//! Place in the walk: the shard's tick, and the handler of DeleteTopics. What is durable goes by tombstones;
//! applying them removes it.
//!
//! Invariants: an offset that an open transaction is about to replace does not expire, so a group that has only
//! pending offsets stays. An offset of a topic that a member subscribes to does not expire either. Work of one
//! tick is bounded.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use super::classic::{self, State};
use super::offsets::OffsetSlot;
use super::protocol::Protocol;
use super::{Groups, consumer, record};
use crate::config::CoreConfig;
use crate::decision::ShardTime;
use crate::shard::{NewRecord, Stamp, Step};

/// Offsets that one tick looks at at most.
const SLOTS_MAX: u32 = 4096;
/// Groups without anything that one pass removes at most.
const GROUPS_MAX: usize = 4096;

/// Which offsets of a group may expire, and since when their time runs.
enum Retention {
    /// None: the group may need them.
    Never,
    /// All but those of subscribed topics, since the group became empty, or since their commits.
    Since(Option<i64>, BTreeSet<Text>),
}

impl Groups {
    fn retention(&self, group: &str) -> Retention {
        match self.protocol(group) {
            Protocol::None | Protocol::Consumer(_) => Retention::Since(None, BTreeSet::new()),
            Protocol::Classic(classic) => match classic.state() {
                State::Empty => Retention::Since(classic.empty_since(), BTreeSet::new()),
                State::Stable => match classic.subscribed_topics() {
                    Some(topics) => Retention::Since(None, topics),
                    None => Retention::Never,
                },
                State::PreparingRebalance | State::CompletingRebalance => Retention::Never,
            },
        }
    }

    /// Tombstones of the next expired offsets, by partition of `__consumer_offsets`; and whether all were looked
    /// at.
    fn expired(&mut self, config: &CoreConfig, now: ShardTime) -> (BTreeMap<i32, Vec<NewRecord>>, bool) {
        let from = self.expiry.cursor.unwrap_or_default();
        let bound = self.offsets.slot_bound();
        let to = from.saturating_add(SLOTS_MAX).min(bound);
        let is_done = to >= bound;
        if is_done {
            let at = now.0.saturating_add(config.offsets_retention_check_interval_ms.max(1));
            self.expiry = super::Expiry { at, cursor: None };
        } else {
            self.expiry.cursor = Some(to);
        }
        let mut retentions: BTreeMap<Text, Retention> = BTreeMap::new();
        let mut expired = Vec::new();
        for values in (from..to).filter_map(|slot| self.offsets.get(slot)) {
            let (group, topic) = (&values.key.group, &values.key.topic);
            let retention = retentions.entry(group.clone()).or_insert_with(|| self.retention(group));
            let Retention::Since(since, subscribed) = retention else { continue };
            let is_subscribed = subscribed.contains(topic)
                || matches!(self.protocol(group), Protocol::Consumer(members) if members.is_subscribed_to(topic));
            if !is_subscribed && values.is_expired(now.0, config.offsets_retention_ms, *since) {
                expired.push(values);
            }
        }
        (tombstones(expired.into_iter()), is_done)
    }

    /// Groups without members and offsets, and the records that remove them.
    fn left_with_nothing(&self) -> Vec<(Text, Vec<NewRecord>)> {
        let mut groups: Vec<(Text, Vec<NewRecord>)> = self
            .index
            .iter()
            .filter(|(_, group)| group.offsets.is_empty())
            .filter_map(|(name, group)| match &group.protocol {
                Protocol::Classic(classic) if classic.state() == State::Empty && !classic.has_pending() => {
                    Some((name.clone(), vec![classic::tombstone(name)]))
                }
                Protocol::Consumer(members) if members.is_empty() => {
                    Some((name.clone(), members.tombstones(name)))
                }
                Protocol::None | Protocol::Classic(_) | Protocol::Consumer(_) => None,
            })
            .collect();
        groups.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        groups.truncate(GROUPS_MAX);
        groups
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
    fire_timers(step);
    if step.state.groups.expiry.at > step.now.0 {
        return;
    }
    let (expired, is_done) = step.state.groups.expired(&step.state.config, step.now);
    write(step, expired);
    if is_done {
        for (group, records) in step.state.groups.left_with_nothing() {
            classic::append(step, &group, &records);
        }
    }
}

/// Lets every group look at its timers that are due.
fn fire_timers(step: &mut Step<'_>) {
    let mut due = Vec::new();
    while let Some(group) = step.state.groups.next_due(step.now.0) {
        due.push(group);
    }
    for group in due {
        match step.state.groups.protocol(&group) {
            Protocol::None => {}
            Protocol::Classic(_) => classic::tick(step, &group),
            Protocol::Consumer(_) => {
                consumer::tick(step, &group);
                step.state.groups.reschedule(&group);
            }
        }
    }
}

/// Drops every group's offsets of a topic, pending ones included; called in the step that deletes it.
pub(crate) fn topic_deleted(step: &mut Step<'_>, topic_id: Uuid, name: &str) {
    let groups = &step.state.groups;
    // By group and not by offset, of which there are many more; then in the order of the table.
    let of_topic = groups.index.values().filter_map(|group| group.offsets.get(name.as_bytes()));
    let mut slots: Vec<u32> = of_topic.flat_map(|partitions| partitions.values().copied()).collect();
    slots.sort_unstable();
    let values = slots.into_iter().map(|slot| groups.slot(slot));
    let tombstones = tombstones(values.filter(|values| values.is_of_topic(topic_id, name)));
    write(step, tombstones);
}
