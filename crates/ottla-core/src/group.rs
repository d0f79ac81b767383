//! The group coordinator: offsets (KIP-98, KIP-447, KIP-211) and members, by the classic protocol and by
//! KIP-848's.
//!
//! Place in the walk: `shard/dispatch` calls the handlers (`commit`, `fetch`, `admin`, `classic`, `consumer`);
//! `shard/apply` hands every entry of `__consumer_offsets` to [`Groups::apply`] and every marker in it to
//! [`Groups::apply_marker`], the only ways the durable part of the table changes.
//!
//! Files: `offsets` (the values of one key), `record` (their form in the log), `commit`, `fetch`, `sweep`
//! (retention, deleted topics), `admin` (list, describe, delete), `protocol` (which protocol a group speaks),
//! `classic` and `consumer` (the two protocols), `timers`.
//!
//! Invariants: a group exists while it has an offset, committed or pending, or a protocol. Offsets are durable
//! and keyed by group, topic name and partition, as in Kafka's records; the id of the topic is part of the
//! value, so that a topic made again under an old name does not inherit offsets.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use ottla_protocol::entry::Entry;
use ottla_protocol::record::records_of;
use ottla_protocol::types::{Text, TopicIdPartition};

use crate::cluster;
use crate::cluster::config::GroupConfigs;
use crate::config::CoreConfig;
use crate::decision::{Position, ShardTime};
use crate::paged::Paged;
use crate::shard::{Decoder, Encoder, ReplayError, RestoreError, Section, ShardState, chunked, section};

mod admin;
mod classic;
mod commit;
mod consumer;
mod fetch;
mod offsets;
mod protocol;
mod record;
mod survey;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod timers;

pub(crate) use admin::{delete_groups, describe_groups, list_groups, offset_delete};
pub(crate) use classic::{connection_closed, heartbeat, join_group, leave_group, sync_group};
pub(crate) use commit::{offset_commit, txn_offset_commit};
pub(crate) use consumer::{consumer_group_describe, consumer_group_heartbeat};
pub(crate) use fetch::offset_fetch;
pub(crate) use sweep::{tick, topic_deleted};

use classic::ClassicGroup;
use offsets::{OffsetKey, OffsetSlot};
use protocol::{Durable, Protocol};
use record::Decoded;

/// Version of the snapshot section.
const SECTION_VERSION: u8 = 0;
/// Free slots that a restored table may have in a row: more than any limit allows offsets.
const SLOT_GAP_MAX: u32 = 1 << 21;

/// One group id.
#[derive(Debug, Default)]
struct Group {
    /// Slots of its offsets, by topic and partition.
    offsets: BTreeMap<Text, BTreeMap<i32, u32>>,
    /// Its members, if it has or had any.
    protocol: Protocol,
    /// Of the last decision that changed what is durable of it.
    position: Position,
    /// When the coordinator looks at its timers; not after the first of them is due.
    scheduled: Option<i64>,
    /// Members and bytes that are counted for it in [`Groups::weight`].
    weight: (usize, usize),
}

impl Group {
    /// Whether nothing is left of it.
    fn is_gone(&self) -> bool {
        self.offsets.is_empty() && matches!(self.protocol, Protocol::None)
    }

    /// Counts its members and bytes anew in the sums over all groups.
    fn recount(&mut self, sums: &mut (usize, usize)) {
        let weight = match &self.protocol {
            Protocol::Classic(group) => group.weight(),
            Protocol::Consumer(group) => group.weight(),
            Protocol::None => (0, 0),
        };
        sums.0 = sums.0 - self.weight.0 + weight.0;
        sums.1 = sums.1 - self.weight.1 + weight.1;
        self.weight = weight;
    }

    /// Slot of one offset.
    fn slot(&self, topic: &str, partition: i32) -> Option<u32> {
        self.offsets.get(topic.as_bytes())?.get(&partition).copied()
    }
}

/// When expired offsets are looked for, and how far the search is.
#[derive(Debug, Default)]
struct Expiry {
    at: i64,
    cursor: Option<u32>,
}

/// All groups of the shard.
pub(crate) struct Groups {
    offsets: Paged<OffsetSlot>,
    index: HashMap<Text, Group, FixedState>,
    /// Slots with pending offsets, by partition of `__consumer_offsets` and producer id.
    pending: HashMap<(i32, i64), BTreeSet<u32>, FixedState>,
    /// Committed and pending offsets together.
    values: usize,
    /// Position of the last removal of a group: what an answer about an unknown one rests on.
    removed: Position,
    expiry: Expiry,
    timers: timers::Timers,
    /// Members and the bytes that they make the broker keep, of all classic groups.
    weight: (usize, usize),
    parked: classic::ParkedIndex,
}

impl Groups {
    /// No groups.
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let hasher = FixedState::with_seed(config.hash_seed);
        let mut groups = Self {
            offsets: Paged::new(),
            index: HashMap::with_hasher(hasher.clone()),
            pending: HashMap::with_hasher(hasher),
            values: 0,
            removed: Position::default(),
            expiry: Expiry::default(),
            timers: timers::Timers::default(),
            weight: (0, 0),
            parked: classic::ParkedIndex::default(),
        };
        groups.begin_epoch(config, &GroupConfigs::default(), ShardTime::default());
        groups
    }

    /// Starts what is volatile afresh: members as they were stored, with new timers, and nobody waiting. `set`: the
    /// settings of groups.
    pub(crate) fn begin_epoch(&mut self, config: &CoreConfig, set: &GroupConfigs, now: ShardTime) {
        let at = now.0.saturating_add(config.offsets_retention_check_interval_ms);
        self.expiry = Expiry { at, cursor: None };
        self.parked = classic::ParkedIndex::default();
        for (id, group) in &mut self.index {
            group.protocol.begin_epoch(config, set.session_timeout_ms(id, config), now);
        }
        self.index.retain(|_, group| !group.is_gone());
        self.weight = (0, 0);
        for group in self.index.values_mut() {
            group.weight = (0, 0);
            group.recount(&mut self.weight);
        }
        self.reschedule_all();
    }

    /// When [`tick`] is due.
    pub(crate) fn next_deadline(&self) -> Option<ShardTime> {
        let expiry = (!self.index.is_empty()).then_some(self.expiry.at);
        expiry.into_iter().chain(self.timers.first()).min().map(ShardTime)
    }

    /// Moves all deadlines by the time for which the owner stood still.
    pub(crate) fn shift_deadlines(&mut self, by_ms: i64) {
        self.expiry.at = self.expiry.at.saturating_add(by_ms);
        for group in self.index.values_mut() {
            group.protocol.shift_deadlines(by_ms);
        }
        self.reschedule_all();
    }

    /// The protocol of a group.
    fn protocol(&self, group: &str) -> &Protocol {
        self.index.get(group.as_bytes()).map_or(&Protocol::None, |group| &group.protocol)
    }

    /// Takes the protocol of a group out, to be changed and put back with [`Groups::put_protocol`].
    fn take_protocol(&mut self, group: &str) -> Protocol {
        let group = self.index.get_mut(group.as_bytes());
        group.map_or(Protocol::None, |group| std::mem::take(&mut group.protocol))
    }

    /// Puts the protocol of a group back, or gives it its first one, and looks at its timers in time. A group
    /// left with nothing is forgotten: none of it was durable.
    fn put_protocol(&mut self, group: &Text, protocol: Protocol) {
        let deadline = protocol.next_deadline();
        let entry = match self.index.get_mut(group.as_bytes().as_ref()) {
            Some(entry) => entry,
            None if matches!(protocol, Protocol::None) => return,
            None => {
                let entry = Group { position: self.removed, ..Group::default() };
                self.index.entry(group.detached()).or_insert(entry)
            }
        };
        entry.protocol = protocol;
        entry.recount(&mut self.weight);
        if let Some(at) = deadline {
            self.schedule(group, at);
        }
        self.forget_if_gone(group);
    }

    /// Removes a group of which nothing is left. What was durable of it may be gone for long, or just now.
    fn forget_if_gone(&mut self, group: &Text) {
        if self.index.get(group.as_bytes().as_ref()).is_some_and(Group::is_gone) {
            self.unschedule(group);
            let entry = self.index.remove(group.as_bytes().as_ref()).expect("just found");
            self.removed = self.removed.max(entry.position);
        }
    }

    /// Whether the group exists.
    fn exists(&self, group: &str) -> bool {
        self.index.contains_key(group.as_bytes())
    }

    /// Number of groups.
    fn len(&self) -> usize {
        self.index.len()
    }

    /// Members of all classic groups, and the bytes that they make the broker keep.
    fn weight(&self) -> (usize, usize) {
        self.weight
    }

    /// A classic group, for what changes neither its size nor moves a timer forward.
    fn classic_mut(&mut self, group: &str) -> Option<&mut ClassicGroup> {
        match &mut self.index.get_mut(group.as_bytes())?.protocol {
            Protocol::Classic(group) => Some(group),
            Protocol::None | Protocol::Consumer(_) => None,
        }
    }

    /// The values of one key.
    fn get(&self, group: &str, topic: &str, partition: i32) -> Option<&OffsetSlot> {
        let slot = self.index.get(group.as_bytes())?.slot(topic, partition)?;
        Some(self.slot(slot))
    }

    /// The values of a group, by topic and partition.
    fn of_group(&self, group: &str) -> impl Iterator<Item = &OffsetSlot> {
        let topics = self.index.get(group.as_bytes()).into_iter().flat_map(|group| group.offsets.values());
        topics.flat_map(|partitions| partitions.values()).map(|slot| self.slot(*slot))
    }

    fn slot(&self, slot: u32) -> &OffsetSlot {
        self.offsets.get(slot).expect("the index names slots in use")
    }

    /// The position that any statement about this group rests on.
    pub(crate) fn rests_on(&self, group: &str) -> Position {
        self.index.get(group.as_bytes()).map_or(self.removed, |group| group.position)
    }

    /// Applies a data entry of `__consumer_offsets`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn apply(&mut self, entry: &Entry, position: Position) -> Result<(), ReplayError> {
        let header = &entry.header;
        let error =
            |reason| ReplayError::Record { partition: entry.partition, offset: header.base_offset, reason };
        if header.is_control() {
            return Ok(()); // a control batch that is no marker
        }
        let records = records_of(header, &entry.tail, 0).map_err(|_| error("compressed or cut"))?;
        let producer_id = header.is_transactional().then_some(header.producer_id);
        for record in records {
            let record = record.map_err(|_| error("cut"))?;
            let key = record.key.ok_or_else(|| error("no key"))?;
            match record::decode(&key, record.value.as_ref()).map_err(error)? {
                Decoded::Commit(key, mut commit) => {
                    commit.log_offset = record.offset;
                    let slot = self.slot_for(key, entry.partition.partition, position);
                    self.change(slot, |values| match producer_id {
                        Some(producer_id) => values.set_pending(producer_id, commit),
                        None => values.committed = Some(commit),
                    });
                    if let Some(producer_id) = producer_id {
                        self.pending
                            .entry((entry.partition.partition, producer_id))
                            .or_default()
                            .insert(slot);
                    }
                }
                Decoded::Tombstone(key) => self.remove(&key, position),
                Decoded::Classic(group, stored) => {
                    self.change_protocol(&group, position, |protocol| classic::apply(protocol, stored));
                }
                Decoded::Consumer(group, change) => {
                    self.change_protocol(&group, position, |protocol| consumer::apply(protocol, change));
                }
                Decoded::Unknown => {}
            }
        }
        Ok(())
    }

    /// Applies a record about a group's members.
    fn change_protocol(&mut self, group: &Text, position: Position, change: impl FnOnce(&mut Protocol)) {
        let entry = match self.index.get_mut(group.as_bytes().as_ref()) {
            Some(entry) => entry,
            None => self.index.entry(group.clone()).or_default(),
        };
        entry.position = position;
        change(&mut entry.protocol);
        entry.recount(&mut self.weight);
        if entry.is_gone() {
            self.removed = position;
            self.forget_if_gone(group);
        }
    }

    /// Applies a marker in a partition of `__consumer_offsets`: the pending offsets of that producer count now,
    /// or are dropped.
    pub(crate) fn apply_marker(
        &mut self,
        log_partition: i32,
        producer_id: i64,
        commit: bool,
        position: Position,
    ) {
        for slot in self.pending.remove(&(log_partition, producer_id)).unwrap_or_default() {
            self.change(slot, |values| values.end(producer_id, commit));
            let group = self.slot(slot).key.group.clone();
            let group = self.index.get_mut(group.as_bytes().as_ref()).expect("a slot belongs to a group");
            group.position = position;
            if self.slot(slot).is_empty() {
                self.drop_slot(slot, position);
            }
        }
    }

    /// The slot of a key, made if it is not there.
    fn slot_for(&mut self, key: OffsetKey, log_partition: i32, position: Position) -> u32 {
        let group = match self.index.get_mut(key.group.as_bytes().as_ref()) {
            Some(group) => group,
            None => self.index.entry(key.group.clone()).or_default(),
        };
        group.position = position;
        if let Some(slot) = group.slot(&key.topic, key.partition) {
            return slot;
        }
        let (topic, partition) = (key.topic.clone(), key.partition);
        let slot =
            self.offsets.insert(OffsetSlot { key, log_partition, committed: None, pending: Vec::new() });
        group.offsets.entry(topic).or_default().insert(partition, slot);
        slot
    }

    fn change(&mut self, slot: u32, change: impl FnOnce(&mut OffsetSlot)) {
        let values = self.offsets.get_mut(slot).expect("the index names slots in use");
        let before = values.len();
        change(values);
        self.values = self.values + values.len() - before;
    }

    /// Removes committed and pending values of a key.
    fn remove(&mut self, key: &OffsetKey, position: Position) {
        let Some(group) = self.index.get_mut(key.group.as_bytes().as_ref()) else { return };
        group.position = position;
        let Some(slot) = group.slot(&key.topic, key.partition) else { return };
        let values = self.slot(slot);
        let producers: Vec<_> =
            values.pending.iter().map(|(producer_id, _)| (values.log_partition, *producer_id)).collect();
        for producer in producers {
            if let Some(slots) = self.pending.get_mut(&producer) {
                slots.remove(&slot);
                if slots.is_empty() {
                    self.pending.remove(&producer);
                }
            }
        }
        self.drop_slot(slot, position);
    }

    /// Takes a slot that nothing refers to out, and with its last one the group.
    fn drop_slot(&mut self, slot: u32, position: Position) {
        let values = self.offsets.remove(slot).expect("the caller has it");
        self.values -= values.len();
        let key = values.key;
        let group = self.index.get_mut(key.group.as_bytes().as_ref()).expect("a slot belongs to a group");
        let partitions = group.offsets.get_mut(key.topic.as_bytes().as_ref()).expect("a slot is indexed");
        partitions.remove(&key.partition);
        if partitions.is_empty() {
            group.offsets.remove(key.topic.as_bytes().as_ref());
        }
        if group.is_gone() {
            self.removed = position;
            self.forget_if_gone(&key.group);
        }
    }

    fn restore_protocols(&mut self, kind: u8, mut items: Decoder<'_>) -> Result<(), RestoreError> {
        while !items.is_empty() {
            let name = items.text()?;
            let group = self.index.entry(name).or_default();
            protocol::restore(kind, &mut items, &mut group.protocol)?;
            group.recount(&mut self.weight);
        }
        Ok(())
    }

    /// The table as it stands, for a snapshot.
    pub(crate) fn snapshot(&self) -> Box<dyn Section> {
        let protocols = self
            .index
            .iter()
            .filter_map(|(name, group)| group.protocol.durable().map(|durable| (name.clone(), durable)));
        Box::new(GroupsSection { offsets: self.offsets.snapshot(), protocols: protocols.collect() })
    }

    /// Takes a chunk of a snapshot.
    ///
    /// # Errors
    /// When it is not what [`Groups::snapshot`] wrote.
    pub(crate) fn restore(
        &mut self,
        kind: u8,
        version: u8,
        mut items: Decoder<'_>,
    ) -> Result<(), RestoreError> {
        if version != SECTION_VERSION {
            return Err(RestoreError::Version { kind, version });
        }
        if kind != section::GROUPS {
            return self.restore_protocols(kind, items);
        }
        while !items.is_empty() {
            let slot = items.u32()?;
            let values = OffsetSlot::decode(&mut items)?;
            if slot > self.offsets.slot_bound().saturating_add(SLOT_GAP_MAX) {
                return Err(items.inconsistent("an offset in a wrong place"));
            }
            for (producer_id, _) in &values.pending {
                self.pending.entry((values.log_partition, *producer_id)).or_default().insert(slot);
            }
            self.values += values.len();
            let key = values.key.clone();
            let group = self.index.entry(key.group).or_default();
            let twice = group.offsets.entry(key.topic).or_default().insert(key.partition, slot).is_some();
            if twice || !self.offsets.insert_at(slot, values) {
                return Err(items.inconsistent("an offset twice"));
            }
        }
        Ok(())
    }
}

/// The table at the moment of a snapshot.
struct GroupsSection {
    offsets: Paged<OffsetSlot>,
    /// In no order.
    protocols: Vec<(Text, Durable)>,
}

impl Section for GroupsSection {
    fn chunks<'a>(&'a self) -> Box<dyn Iterator<Item = Vec<u8>> + 'a> {
        let offsets =
            chunked(section::GROUPS, SECTION_VERSION, self.offsets.iter(), |(slot, values), out| {
                out.u32(slot);
                values.encode(out);
            });
        let protocols =
            [protocol::CLASSIC_SECTION, protocol::CONSUMER_SECTION].into_iter().flat_map(|kind| {
                let mut items: Vec<_> =
                    self.protocols.iter().filter(|(_, durable)| durable.section() == kind).collect();
                items.sort_unstable_by(|one, other| one.0.cmp(&other.0));
                let items = items
                    .into_iter()
                    .flat_map(|(name, durable)| durable.items().map(move |item| (name, item)));
                chunked(kind, SECTION_VERSION, items, |(name, item), out| {
                    out.bytes(name.as_bytes());
                    out.extend_from_slice(&item);
                })
            });
        Box::new(offsets.chain(protocols))
    }
}

/// The partition of `__consumer_offsets` that keeps a group.
pub(crate) fn offsets_partition(state: &ShardState, group: &str) -> TopicIdPartition {
    let topic = state.topics.consumer_offsets().expect("a folder is bootstrapped before it is served");
    let partition = cluster::coordinator_partition(group, topic.partition_count);
    TopicIdPartition { topic_id: topic.id, partition }
}
