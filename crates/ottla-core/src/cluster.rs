//! The cluster as data: its id, features, topics, settings, and the producer ids handed out so far.
//!
//! Place in the walk: admin commands end here. What they change is written as records of the control log
//! (`records`), and `apply` makes the state from those records, live and in replay. Readers (Metadata,
//! DescribeConfigs, the checks of a connection) use the [`Image`].
//!
//! Invariants: the control log is enough to rebuild everything here; a topic's record holds all of its settings;
//! topic ids and producer ids are never given twice.
//!
//! Not here: brokers other than this one. A topic has one replica, on this node.

use std::collections::BTreeMap;
use std::sync::Arc;

use ottla_protocol::entry::Entry;
use ottla_protocol::record;
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use crate::config::CoreConfig;
use crate::decision::Position;
use crate::partition::Role;
use crate::shard::{Decoder, Effects, Encoder, ReplayError, RestoreError, ShardState};

mod alter;
mod alter_group;
mod bootstrap;
mod cleaned;
pub mod config;
mod create;
mod delete;
mod delete_records;
mod features;
mod image;
mod names;
mod partitions;
pub(crate) mod records;
mod replicas;
mod retention;
#[cfg(test)]
mod tests;
mod topics;

pub(crate) use alter::{alter_configs, incremental_alter_configs};
pub(crate) use bootstrap::bootstrap;
pub(crate) use cleaned::cleaned;
use config::{GroupConfig, GroupConfigs};
pub(crate) use create::{auto_create_topics, create_topics};
pub(crate) use delete::delete_topics;
pub(crate) use delete_records::delete_records;
pub(crate) use features::update_features;
pub use image::Image;
pub use names::{
    CONSUMER_OFFSETS, TOPIC_NAME_BYTES_MAX, TRANSACTION_STATE, coordinator_partition, is_internal,
    validate_name,
};
pub(crate) use partitions::create_partitions;
pub(crate) use records::ControlRecord;
pub use replicas::check_replicas;
pub(crate) use retention::move_log_starts;
pub use topics::Topic;
pub(crate) use topics::{TopicMap, Topics};

/// Topic id of the control log. No topic of that id is ever listed.
pub const CONTROL_TOPIC_ID: Uuid = Uuid(*b"ottla.controllog");
/// The control log's only partition.
pub const CONTROL_PARTITION: TopicIdPartition = TopicIdPartition { topic_id: CONTROL_TOPIC_ID, partition: 0 };
/// Producer ids that are reserved at a time.
pub(crate) const PRODUCER_ID_BLOCK: i64 = 1000;
/// The feature that says which protocol of transactions clients should speak.
pub const TRANSACTION_VERSION: &str = "transaction.version";
/// The feature that says whether there are consumer groups (KIP-848): 1.
pub const GROUP_VERSION: &str = "group.version";
/// Features with the lowest and highest level that this broker can run, by name.
pub const SUPPORTED_FEATURES: &[(&str, i16, i16)] = &[(GROUP_VERSION, 0, 1), (TRANSACTION_VERSION, 0, 2)];
/// In the key of a dynamic setting: for every broker.
pub(crate) const EVERY_BROKER: i32 = -1;
/// More partitions than any topic has; a record that names more is damaged.
const PARTITION_COUNT_MAX: i32 = 1_000_000;

/// Finalized features and their epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    levels: BTreeMap<Text, i16>,
    epoch: i64,
}

impl Features {
    /// Level of a feature; 0 when it is not finalized.
    pub fn level(&self, name: &str) -> i16 {
        self.levels.get(name.as_bytes()).copied().unwrap_or_default()
    }

    /// `transaction.version`.
    pub fn transaction_version(&self) -> i16 {
        self.level(TRANSACTION_VERSION)
    }

    /// `group.version`.
    pub fn group_version(&self) -> i16 {
        self.level(GROUP_VERSION)
    }

    /// Features that are finalized, by name.
    pub fn finalized(&self) -> impl Iterator<Item = (&Text, i16)> {
        self.levels.iter().map(|(name, level)| (name, *level))
    }

    /// Grows with every change; 0 and more.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }
}

/// Cluster id, features and dynamic settings.
#[derive(Clone, Debug)]
pub(crate) struct ClusterState {
    /// The settings that this broker was started with.
    static_config: Arc<CoreConfig>,
    /// The settings in force.
    config: Arc<CoreConfig>,
    cluster_id: Uuid,
    features: Arc<Features>,
    /// Dynamic settings by node ([`EVERY_BROKER`] for all) and name.
    broker_configs: Arc<BTreeMap<(i32, Text), Text>>,
    group_configs: Arc<GroupConfigs>,
    last_position: Position,
}

impl ClusterState {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        Self {
            static_config: Arc::new(config.clone()),
            config: Arc::new(config.clone()),
            cluster_id: Uuid::ZERO,
            features: Arc::default(),
            broker_configs: Arc::default(),
            group_configs: Arc::default(),
            last_position: Position::default(),
        }
    }

    /// Whether the cluster has an id yet.
    pub(crate) fn is_bootstrapped(&self) -> bool {
        !self.cluster_id.is_zero()
    }

    /// The cluster's id.
    pub(crate) fn cluster_id(&self) -> Uuid {
        self.cluster_id
    }

    /// Finalized features.
    pub(crate) fn features(&self) -> &Features {
        &self.features
    }

    /// Position of the last decision that changed anything here.
    pub(crate) fn rests_on(&self) -> Position {
        self.last_position
    }

    /// What was set for groups.
    pub(crate) fn group_configs(&self) -> &GroupConfigs {
        &self.group_configs
    }

    /// Writes the settings of one group.
    pub(crate) fn encode_group_config((group, config): (&Text, &GroupConfig), out: &mut Vec<u8>) {
        out.bytes(group.as_bytes());
        out.u32(u32::try_from(config.overrides().len()).expect("settings are few"));
        for (name, value) in config.overrides() {
            out.bytes(name.as_bytes());
            out.bytes(value.as_bytes());
        }
    }

    /// Reads the settings of one group.
    pub(crate) fn decode_group_config(&mut self, items: &mut Decoder<'_>) -> Result<(), RestoreError> {
        let group = items.text()?;
        let mut overrides = BTreeMap::new();
        for _ in 0..items.u32()? {
            overrides.insert(items.text()?, items.text()?);
        }
        Arc::make_mut(&mut self.group_configs).set(group, GroupConfig::stored(overrides));
        Ok(())
    }

    /// The static settings under the dynamic ones. What this version does not know or would not accept is passed
    /// over.
    fn overlaid(&self, dynamic: &BTreeMap<(i32, Text), Text>) -> CoreConfig {
        let mut config = CoreConfig::clone(&self.static_config);
        // Those of every broker come first, so that those of this one go over them.
        for node_id in [EVERY_BROKER, config.node_id] {
            for ((_, name), value) in dynamic.iter().filter(|((of, _), _)| *of == node_id) {
                if let Some(definition) = config::broker_definition(name).filter(|known| known.is_dynamic())
                    && let Err(error) = definition.set(&mut config, value)
                {
                    debug_assert!(false, "a setting was stored unchecked: {error}");
                }
            }
        }
        config
    }

    /// The settings as they would be with some of the dynamic ones changed.
    pub(crate) fn config_with(&self, changes: &[(i32, &'static str, Option<Text>)]) -> CoreConfig {
        let mut dynamic = BTreeMap::clone(&self.broker_configs);
        for (node_id, name, value) in changes {
            let key = (*node_id, Text::from_static(name));
            match value {
                Some(value) => dynamic.insert(key, value.clone()),
                None => dynamic.remove(&key),
            };
        }
        self.overlaid(&dynamic)
    }

    /// Puts the dynamic settings into force.
    fn take_effect(&mut self) {
        self.config = Arc::new(self.overlaid(&self.broker_configs));
    }

    /// Everything that a setting's value may come from.
    pub(crate) fn sources(&self) -> config::Sources<'_> {
        config::Sources {
            static_config: &self.static_config,
            config: &self.config,
            dynamic: &self.broker_configs,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.cluster_id.0);
        out.i64(self.features.epoch);
        out.u32(u32::try_from(self.features.levels.len()).expect("features are few"));
        for (name, level) in &self.features.levels {
            out.bytes(name.as_bytes());
            out.i16(*level);
        }
        out.u32(u32::try_from(self.broker_configs.len()).expect("settings are few"));
        for ((node_id, name), value) in self.broker_configs.iter() {
            out.i32(*node_id);
            out.bytes(name.as_bytes());
            out.bytes(value.as_bytes());
        }
    }

    pub(crate) fn decode(&mut self, items: &mut Decoder<'_>, position: Position) -> Result<(), RestoreError> {
        self.cluster_id = items.uuid()?;
        let mut features = Features { epoch: items.i64()?, ..Features::default() };
        for _ in 0..items.u32()? {
            features.levels.insert(items.text()?, items.i16()?);
        }
        self.features = Arc::new(features);
        let mut broker_configs = BTreeMap::new();
        for _ in 0..items.u32()? {
            let key = (items.i32()?, items.text()?);
            broker_configs.insert(key, items.text()?);
        }
        self.broker_configs = Arc::new(broker_configs);
        self.last_position = position;
        Ok(())
    }
}

/// Producer ids that were reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProducerIds {
    next: i64,
    last_position: Position,
}

impl ProducerIds {
    /// The first id that nobody has reserved.
    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// Position of the decision that reserved the newest block.
    pub(crate) fn rests_on(&self) -> Position {
        self.last_position
    }

    pub(crate) fn restored(next: i64, position: Position) -> Self {
        Self { next, last_position: position }
    }
}

/// Applies a batch of the control log.
pub(crate) fn apply(
    state: &mut ShardState,
    entry: &Entry,
    position: Position,
    effects: &mut Effects,
) -> Result<(), ReplayError> {
    let damaged =
        |reason| ReplayError::Record { partition: entry.partition, offset: entry.header.base_offset, reason };
    let batch = record::records_of(&entry.header, &entry.tail, entry.tail.len())
        .map_err(|_| damaged("a control batch cannot be read"))?;
    for record in batch {
        let record = record.map_err(|_| damaged("a control record cannot be read"))?;
        let offset = record.offset;
        let record = ControlRecord::decode(record.key, record.value).map_err(damaged)?;
        apply_record(state, record, offset, position, effects).map_err(damaged)?;
    }
    Ok(())
}

/// As [`apply`], but what concerns partitions, whose batches are not there yet, is given back.
pub(crate) fn apply_without_partitions(
    state: &mut ShardState,
    entry: &Entry,
    position: Position,
    effects: &mut Effects,
) -> Result<Vec<ControlRecord>, ReplayError> {
    let damaged =
        |reason| ReplayError::Record { partition: entry.partition, offset: entry.header.base_offset, reason };
    let batch = record::records_of(&entry.header, &entry.tail, entry.tail.len())
        .map_err(|_| damaged("a control batch cannot be read"))?;
    let mut later = Vec::new();
    for record in batch {
        let record = record.map_err(|_| damaged("a control record cannot be read"))?;
        let offset = record.offset;
        let record = ControlRecord::decode(record.key, record.value).map_err(damaged)?;
        let is_of_partition = matches!(
            record,
            ControlRecord::LogStart { .. }
                | ControlRecord::Cleaned { .. }
                | ControlRecord::ProducerExpiry { .. }
        );
        if is_of_partition {
            later.push(record);
        } else {
            apply_record(state, record, offset, position, effects).map_err(damaged)?;
        }
    }
    Ok(later)
}

/// Applies one record. The error says what is wrong with it.
pub(crate) fn apply_record(
    state: &mut ShardState,
    record: ControlRecord,
    offset: i64,
    position: Position,
    effects: &mut Effects,
) -> Result<(), &'static str> {
    match record {
        ControlRecord::Cluster { cluster_id } => {
            state.cluster.cluster_id = cluster_id;
            state.cluster.last_position = position;
            effects.image_changed = true;
        }
        ControlRecord::Topic(topic) => apply_topic(state, topic, position, effects)?,
        ControlRecord::TopicDeleted { topic_id } => {
            let topic = state.topics.remove(topic_id, position).ok_or("an unknown topic is deleted")?;
            for partition in topic.partitions() {
                state.partitions.remove(partition);
                effects.touched.push(partition);
            }
            effects.image_changed = true;
        }
        ControlRecord::Feature { name, level } => {
            let features = Arc::make_mut(&mut state.cluster.features);
            match level {
                Some(level) => features.levels.insert(name, level),
                None => features.levels.remove(&name),
            };
            features.epoch = offset;
            state.cluster.last_position = position;
            effects.image_changed = true;
        }
        ControlRecord::ProducerIds { next_producer_id } => {
            if next_producer_id < state.producer_ids.next {
                return Err("reserved producer ids go back");
            }
            state.producer_ids = ProducerIds { next: next_producer_id, last_position: position };
        }
        ControlRecord::LogStart { partition, log_start_offset } => {
            let slot = state.partitions.slot(partition).ok_or("a log start of an unknown partition")?;
            state.partitions.set_log_start_offset(slot, log_start_offset);
            if state.partitions.touch(slot, position) {
                effects.touched.push(partition);
            }
        }
        ControlRecord::BrokerConfig { node_id, name, value } => {
            let configs = Arc::make_mut(&mut state.cluster.broker_configs);
            match value {
                Some(value) => configs.insert((node_id, name), value),
                None => configs.remove(&(node_id, name)),
            };
            state.cluster.last_position = position;
            settings_changed(state);
            effects.image_changed = true;
        }
        ControlRecord::GroupConfig { group, overrides } => {
            Arc::make_mut(&mut state.cluster.group_configs).set(group, GroupConfig::stored(overrides));
            state.cluster.last_position = position;
            effects.image_changed = true;
        }
        ControlRecord::Cleaned { partition, cleaned } => {
            let slot = state.partitions.slot(partition).ok_or("a pass through an unknown partition")?;
            state.partitions.set_cleaned(slot, &cleaned);
            if state.partitions.touch(slot, position) {
                effects.touched.push(partition);
            }
        }
        ControlRecord::ProducerExpiry { partition, producer_ids } => {
            let slot = state.partitions.slot(partition).ok_or("producers of an unknown partition expire")?;
            state.partitions.forget_producers(slot, &producer_ids);
            if state.partitions.touch(slot, position) {
                effects.touched.push(partition);
            }
        }
    }
    Ok(())
}

/// Puts the dynamic settings into force: topics without a value of their own follow.
pub(crate) fn settings_changed(state: &mut ShardState) {
    let old = state.config.kept.clone();
    state.cluster.take_effect();
    state.config = CoreConfig::clone(&state.cluster.config);
    if state.config.kept != old {
        state.topics.set_defaults(&state.config.kept);
    }
}

/// A topic is new, or has new settings or more partitions.
fn apply_topic(
    state: &mut ShardState,
    mut topic: Topic,
    position: Position,
    effects: &mut Effects,
) -> Result<(), &'static str> {
    if !(1..=PARTITION_COUNT_MAX).contains(&topic.partition_count) || topic.role == Role::Control {
        return Err("a topic with an impossible number of partitions or role");
    }
    topic.last_position = position;
    if !state.config.kept.is_empty() {
        topic.config = Arc::new(topic.config.with_defaults(&state.config.kept));
    }
    let there = match state.topics.by_id(topic.id) {
        Some(old) if old.name != topic.name || old.partition_count > topic.partition_count => {
            return Err("a topic changes its name or loses partitions");
        }
        Some(old) => old.partition_count,
        None if state.topics.by_name(&topic.name).is_some() => return Err("a topic's name is taken"),
        None => 0,
    };
    for partition in there..topic.partition_count {
        let partition = TopicIdPartition { topic_id: topic.id, partition };
        state.partitions.create(partition, topic.role, topic.base_leader_epoch, position);
        effects.touched.push(partition);
    }
    state.topics.insert(topic, position);
    effects.image_changed = true;
    Ok(())
}
