//! Records of the control log: building and reading them (`schema/control.schema`, `docs/format.md`).
//!
//! Place in the walk: admin handlers build them, `cluster::apply` takes them over.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_protocol::codec::RecordKey;
use ottla_protocol::coordinator::{decode_value, encode_key, encode_value, record_type};
use ottla_protocol::messages as m;
use ottla_protocol::messages::Message;
use ottla_protocol::messages::group_config_control_value::GroupControlConfig;
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use super::config::{GroupConfig, TopicConfig};
use super::topics::Topic;
use crate::clean::{Cleaned, CleanedState};
use crate::decision::Position;
use crate::partition::Role;
use crate::shard::NewRecord;

/// Version in which values are written.
const VALUE_VERSION: i16 = 0;

/// Markers that one record names at most.
const SPENT_PER_RECORD: usize = 10_000;

/// A control record, read.
#[derive(Debug)]
pub(crate) enum ControlRecord {
    Cluster { cluster_id: Uuid },
    Topic(Topic),
    TopicDeleted { topic_id: Uuid },
    Feature { name: Text, level: Option<i16> },
    ProducerIds { next_producer_id: i64 },
    LogStart { partition: TopicIdPartition, log_start_offset: i64 },
    BrokerConfig { node_id: i32, name: Text, value: Option<Text> },
    ProducerExpiry { partition: TopicIdPartition, producer_ids: Vec<i64> },
    GroupConfig { group: Text, overrides: BTreeMap<Text, Text> },
    Cleaned { partition: TopicIdPartition, cleaned: Cleaned },
}

fn new_record<K: RecordKey, V: Message>(key: &K, value: Option<&V>) -> NewRecord {
    NewRecord {
        key: encode_key(key).expect("keys of control records have one version"),
        value: value.map(|value| encode_value(value, VALUE_VERSION).expect("version 0 has every field")),
    }
}

/// The cluster is made.
pub(crate) fn cluster(cluster_id: Uuid) -> NewRecord {
    new_record(
        &m::ClusterControlKey::default(),
        Some(&m::ClusterControlValue { cluster_id, ..Default::default() }),
    )
}

/// A topic as it is from now on.
pub(crate) fn topic(topic: &Topic) -> NewRecord {
    let configs = topic
        .config
        .overrides()
        .map(|(name, value)| m::topic_control_value::TopicControlConfig {
            name: name.into(),
            value: value.clone(),
            ..Default::default()
        })
        .collect();
    let value = m::TopicControlValue {
        name: topic.name.clone(),
        partition_count: topic.partition_count,
        base_leader_epoch: topic.base_leader_epoch,
        role: topic.role as i8,
        configs,
        ..Default::default()
    };
    new_record(&topic_key(topic.id), Some(&value))
}

/// A topic is gone.
pub(crate) fn topic_deleted(topic_id: Uuid) -> NewRecord {
    new_record(&topic_key(topic_id), None::<&m::TopicControlValue>)
}

fn topic_key(topic_id: Uuid) -> m::TopicControlKey {
    m::TopicControlKey { topic_id }
}

/// A feature is finalized at a level.
pub(crate) fn feature(name: &str, level: i16) -> NewRecord {
    let value = m::FeatureControlValue { level, ..Default::default() };
    new_record(&m::FeatureControlKey { name: name.into() }, Some(&value))
}

/// Producer ids below `next_producer_id` are reserved.
pub(crate) fn producer_id_block(next_producer_id: i64) -> NewRecord {
    let value = m::ProducerIdControlValue { next_producer_id, ..Default::default() };
    new_record(&m::ProducerIdControlKey::default(), Some(&value))
}

/// Records below the offset are deleted.
pub(crate) fn log_start(partition: TopicIdPartition, log_start_offset: i64) -> NewRecord {
    let key = m::LogStartControlKey { topic_id: partition.topic_id, partition: partition.partition };
    new_record(&key, Some(&m::LogStartControlValue { log_start_offset, ..Default::default() }))
}

/// A dynamic setting of a broker is set or removed.
pub(crate) fn broker_config(node_id: i32, name: &str, value: Option<Text>) -> NewRecord {
    let value = value.map(|value| m::BrokerConfigControlValue { value, ..Default::default() });
    new_record(&m::BrokerConfigControlKey { node_id, name: name.into() }, value.as_ref())
}

/// The settings of a group, all of them; the record ends when there are none.
pub(crate) fn group_config(group: &Text, config: &GroupConfig) -> NewRecord {
    let configs = config.overrides().iter().map(|(name, value)| GroupControlConfig {
        name: name.clone(),
        value: value.clone(),
        ..Default::default()
    });
    let value = m::GroupConfigControlValue { configs: configs.collect(), ..Default::default() };
    let key = m::GroupConfigControlKey { group_id: group.clone() };
    new_record(&key, Some(&value).filter(|value| !value.configs.is_empty()))
}

/// A partition forgets producers.
pub(crate) fn producer_expiry(partition: TopicIdPartition, producer_ids: Vec<i64>) -> NewRecord {
    let key = m::ProducerExpiryControlKey { topic_id: partition.topic_id, partition: partition.partition };
    new_record(&key, Some(&m::ProducerExpiryControlValue { producer_ids, ..Default::default() }))
}

/// A pass of the cleaner has ended. Several records when many transactions leave the index.
pub(crate) fn cleaned(partition: TopicIdPartition, cleaned: &Cleaned) -> Vec<NewRecord> {
    let TopicIdPartition { topic_id, partition } = partition;
    let record = |spent: &[i64]| {
        let value = m::CleanedControlValue {
            cleaned_to: cleaned.state.cleaned_to,
            tombstone_horizon: cleaned.state.tombstone_horizon,
            delete_horizon_ms: cleaned.state.delete_horizon_ms,
            spent_markers: spent.to_vec(),
            ..Default::default()
        };
        new_record(&m::CleanedControlKey { topic_id, partition }, Some(&value))
    };
    if cleaned.spent.is_empty() {
        return vec![record(&[])];
    }
    cleaned.spent.chunks(SPENT_PER_RECORD).map(record).collect()
}

/// Reads a value that must be there.
fn present<V: Message>(value: Option<&Bytes>) -> Result<V, &'static str> {
    decode_value(value.ok_or("a control record without a value")?)
        .map_err(|_| "the value of a control record cannot be read")
}

/// Reads a value that may be a tombstone.
fn optional<V: Message>(value: Option<&Bytes>) -> Result<Option<V>, &'static str> {
    value.map(|value| present(Some(value))).transpose()
}

impl ControlRecord {
    /// Reads a record. The error says what is wrong with it.
    pub(super) fn decode(key: Option<Bytes>, value: Option<Bytes>) -> Result<Self, &'static str> {
        const KEY: &str = "the key of a control record cannot be read";
        let key = key.ok_or("a control record without a key")?;
        let value = value.as_ref();
        let (kind, mut reader) = record_type(&key).map_err(|_| KEY)?;
        Ok(match kind {
            m::ClusterControlKey::RECORD_TYPE => {
                Self::Cluster { cluster_id: present::<m::ClusterControlValue>(value)?.cluster_id }
            }
            m::TopicControlKey::RECORD_TYPE => {
                let key = m::TopicControlKey::decode(&mut reader, 0).map_err(|_| KEY)?;
                match optional::<m::TopicControlValue>(value)? {
                    Some(value) => Self::Topic(decode_topic(key.topic_id, value)?),
                    None => Self::TopicDeleted { topic_id: key.topic_id },
                }
            }
            m::FeatureControlKey::RECORD_TYPE => {
                let key = m::FeatureControlKey::decode(&mut reader, 0).map_err(|_| KEY)?;
                let level = optional::<m::FeatureControlValue>(value)?.map(|value| value.level);
                Self::Feature { name: key.name.detached(), level }
            }
            m::ProducerIdControlKey::RECORD_TYPE => Self::ProducerIds {
                next_producer_id: present::<m::ProducerIdControlValue>(value)?.next_producer_id,
            },
            m::LogStartControlKey::RECORD_TYPE => {
                let key = m::LogStartControlKey::decode(&mut reader, 0).map_err(|_| KEY)?;
                let value = present::<m::LogStartControlValue>(value)?;
                let partition = TopicIdPartition { topic_id: key.topic_id, partition: key.partition };
                Self::LogStart { partition, log_start_offset: value.log_start_offset }
            }
            m::BrokerConfigControlKey::RECORD_TYPE => {
                let key = m::BrokerConfigControlKey::decode(&mut reader, 0).map_err(|_| KEY)?;
                let value =
                    optional::<m::BrokerConfigControlValue>(value)?.map(|value| value.value.detached());
                Self::BrokerConfig { node_id: key.node_id, name: key.name.detached(), value }
            }
            m::GroupConfigControlKey::RECORD_TYPE => {
                let key = m::GroupConfigControlKey::decode(&mut reader, 0).map_err(|_| KEY)?;
                let value = optional::<m::GroupConfigControlValue>(value)?.unwrap_or_default();
                let configs = value.configs.into_iter();
                let overrides = configs.map(|config| (config.name.detached(), config.value.detached()));
                Self::GroupConfig { group: key.group_id.detached(), overrides: overrides.collect() }
            }
            m::ProducerExpiryControlKey::RECORD_TYPE => {
                let key = m::ProducerExpiryControlKey::decode(&mut reader, 0).map_err(|_| KEY)?;
                let value = present::<m::ProducerExpiryControlValue>(value)?;
                let partition = TopicIdPartition { topic_id: key.topic_id, partition: key.partition };
                Self::ProducerExpiry { partition, producer_ids: value.producer_ids }
            }
            m::CleanedControlKey::RECORD_TYPE => {
                let key = m::CleanedControlKey::decode(&mut reader, 0).map_err(|_| KEY)?;
                let value = present::<m::CleanedControlValue>(value)?;
                let state = CleanedState {
                    cleaned_to: value.cleaned_to,
                    tombstone_horizon: value.tombstone_horizon,
                    delete_horizon_ms: value.delete_horizon_ms,
                };
                let partition = TopicIdPartition { topic_id: key.topic_id, partition: key.partition };
                Self::Cleaned { partition, cleaned: Cleaned { state, spent: value.spent_markers } }
            }
            _ => return Err("an unknown type of control record"),
        })
    }
}

fn decode_topic(id: Uuid, value: m::TopicControlValue) -> Result<Topic, &'static str> {
    let role =
        u8::try_from(value.role).ok().and_then(Role::from_number).ok_or("a topic of an unknown role")?;
    let configs = value.configs.into_iter().map(|config| (config.name, config.value.detached()));
    Ok(Topic {
        name: value.name.detached(),
        id,
        partition_count: value.partition_count,
        role,
        base_leader_epoch: value.base_leader_epoch,
        config: std::sync::Arc::new(TopicConfig::stored(configs)),
        last_position: Position::default(),
    })
}
