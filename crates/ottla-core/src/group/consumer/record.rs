//! The records of a consumer group, in Kafka's formats: types 3, 5, 6, 7, 8 and 16 of `__consumer_offsets`.
//!
//! Place in the walk: handlers make [`Change`]s and write them; applying an entry reads them back and hands them
//! to [`super::state::Stored::apply`]. A snapshot is made of the same records.
//!
//! Type 4 (partition metadata) is read and skipped: its place is taken by the hash in type 3, as in Kafka 4.1.

use bytes::Bytes;
use ottla_protocol::codec::{Message, Reader, RecordKey};
use ottla_protocol::coordinator::{decode_value, encode_key, encode_value};
use ottla_protocol::messages as m;
use ottla_protocol::messages::consumer_group_current_member_assignment_value as current_value;
use ottla_protocol::messages::consumer_group_member_metadata_value as member_value;
use ottla_protocol::messages::consumer_group_target_assignment_member_value as target_value;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::assignment::{Assigned, Assignment};
use super::member::{ClassicMetadata, Current, MemberState, Metadata};
use crate::shard::NewRecord;

/// The only version of every value here.
const VERSION: i16 = 0;

/// What a regular expression stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct Resolved {
    /// Names of topics, in order.
    pub(super) topics: Vec<Text>,
    /// Grows with the topics that were looked at.
    pub(super) version: i64,
    /// When they were looked at, ms.
    pub(super) timestamp: i64,
}

/// One record: one change of a group. `None` in place of a value is a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::group) enum Change {
    /// Type 3: epoch of the group, hash of the topics it subscribes to.
    Group(Option<(i32, i64)>),
    /// Type 5.
    Member(Text, Option<Metadata>),
    /// Type 6: the epoch that the target was made for, and when, ms.
    Target(Option<(i32, i64)>),
    /// Type 7.
    MemberTarget(Text, Option<Assignment>),
    /// Type 8.
    Current(Text, Option<Current>),
    /// Type 16.
    Regex(Text, Option<Resolved>),
}

impl Change {
    /// The change as a record of a group.
    pub(super) fn encode(&self, group: &Text) -> NewRecord {
        let group_id = group.clone();
        match self {
            Self::Group(value) => {
                let value = value.map(|(epoch, metadata_hash)| {
                    encode(&m::ConsumerGroupMetadataValue { epoch, metadata_hash, ..Default::default() })
                });
                record(&m::ConsumerGroupMetadataKey { group_id }, value)
            }
            Self::Member(member_id, value) => {
                let key = m::ConsumerGroupMemberMetadataKey { group_id, member_id: member_id.clone() };
                record(&key, value.as_ref().map(metadata_value))
            }
            Self::Target(value) => {
                let value = value.map(|(assignment_epoch, assignment_timestamp)| {
                    encode(&m::ConsumerGroupTargetAssignmentMetadataValue {
                        assignment_epoch,
                        assignment_timestamp,
                        ..Default::default()
                    })
                });
                record(&m::ConsumerGroupTargetAssignmentMetadataKey { group_id }, value)
            }
            Self::MemberTarget(member_id, value) => {
                let key =
                    m::ConsumerGroupTargetAssignmentMemberKey { group_id, member_id: member_id.clone() };
                record(&key, value.as_ref().map(member_target_value))
            }
            Self::Current(member_id, value) => {
                let key =
                    m::ConsumerGroupCurrentMemberAssignmentKey { group_id, member_id: member_id.clone() };
                record(&key, value.as_ref().map(current_value_of))
            }
            Self::Regex(regular_expression, value) => {
                let regular_expression = regular_expression.clone();
                let value = value.as_ref().map(|resolved| {
                    encode(&m::ConsumerGroupRegularExpressionValue {
                        topics: resolved.topics.clone(),
                        version: resolved.version,
                        timestamp: resolved.timestamp,
                        ..Default::default()
                    })
                });
                record(&m::ConsumerGroupRegularExpressionKey { group_id, regular_expression }, value)
            }
        }
    }

    /// Reads a record whose type was read from `key`. None: a type that is none of ours.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn decode(
        record_type: i16,
        key: &mut Reader,
        value: Option<&Bytes>,
    ) -> Result<Option<(Text, Self)>, &'static str> {
        let change = match record_type {
            m::ConsumerGroupMetadataKey::RECORD_TYPE => {
                let key: m::ConsumerGroupMetadataKey = read_key(key)?;
                let value: Option<m::ConsumerGroupMetadataValue> = read_value(value)?;
                (key.group_id, Self::Group(value.map(|value| (value.epoch, value.metadata_hash))))
            }
            m::ConsumerGroupMemberMetadataKey::RECORD_TYPE => {
                let key: m::ConsumerGroupMemberMetadataKey = read_key(key)?;
                let value: Option<m::ConsumerGroupMemberMetadataValue> = read_value(value)?;
                (key.group_id, Self::Member(key.member_id.detached(), value.map(read_metadata)))
            }
            m::ConsumerGroupTargetAssignmentMetadataKey::RECORD_TYPE => {
                let key: m::ConsumerGroupTargetAssignmentMetadataKey = read_key(key)?;
                let value: Option<m::ConsumerGroupTargetAssignmentMetadataValue> = read_value(value)?;
                let target = value.map(|value| (value.assignment_epoch, value.assignment_timestamp));
                (key.group_id, Self::Target(target))
            }
            m::ConsumerGroupTargetAssignmentMemberKey::RECORD_TYPE => {
                let key: m::ConsumerGroupTargetAssignmentMemberKey = read_key(key)?;
                let value: Option<m::ConsumerGroupTargetAssignmentMemberValue> = read_value(value)?;
                let target = value.map(|value| read_member_target(&value));
                (key.group_id, Self::MemberTarget(key.member_id.detached(), target))
            }
            m::ConsumerGroupCurrentMemberAssignmentKey::RECORD_TYPE => {
                let key: m::ConsumerGroupCurrentMemberAssignmentKey = read_key(key)?;
                let value: Option<m::ConsumerGroupCurrentMemberAssignmentValue> = read_value(value)?;
                (
                    key.group_id,
                    Self::Current(key.member_id.detached(), value.map(|value| read_current(&value))),
                )
            }
            m::ConsumerGroupRegularExpressionKey::RECORD_TYPE => {
                let key: m::ConsumerGroupRegularExpressionKey = read_key(key)?;
                let value: Option<m::ConsumerGroupRegularExpressionValue> = read_value(value)?;
                let resolved = value.map(|value| Resolved {
                    topics: value.topics.iter().map(Text::detached).collect(),
                    version: value.version,
                    timestamp: value.timestamp,
                });
                (key.group_id, Self::Regex(key.regular_expression.detached(), resolved))
            }
            _ => return Ok(None),
        };
        let (group, change) = change;
        Ok(Some((group.detached(), change)))
    }
}

fn record<K: RecordKey>(key: &K, value: Option<Bytes>) -> NewRecord {
    NewRecord { key: encode_key(key).expect("ids are bounded by the size of a request"), value }
}

fn encode<V: Message>(value: &V) -> Bytes {
    encode_value(value, VERSION).expect("version 0 has every field")
}

fn read_key<K: RecordKey>(reader: &mut Reader) -> Result<K, &'static str> {
    K::decode(reader, 0).map_err(|_| "key of a consumer group's record is malformed")
}

fn read_value<V: Message>(value: Option<&Bytes>) -> Result<Option<V>, &'static str> {
    value.map(decode_value).transpose().map_err(|_| "value of a consumer group's record is malformed")
}

fn metadata_value(metadata: &Metadata) -> Bytes {
    let classic = metadata.classic.as_ref().map(|classic| member_value::ClassicMemberMetadata {
        session_timeout_ms: classic.session_timeout_ms,
        supported_protocols: classic
            .protocols
            .iter()
            .map(|(name, metadata)| member_value::ClassicProtocol {
                name: name.clone(),
                metadata: metadata.clone(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    encode(&m::ConsumerGroupMemberMetadataValue {
        instance_id: metadata.instance_id.clone(),
        rack_id: metadata.rack_id.clone(),
        client_id: metadata.client_id.clone(),
        client_host: metadata.client_host.clone(),
        subscribed_topic_names: metadata.topics.clone(),
        subscribed_topic_regex: metadata.regex.clone(),
        rebalance_timeout_ms: metadata.rebalance_timeout_ms,
        server_assignor: metadata.server_assignor.clone(),
        classic_member_metadata: classic.map(Into::into),
        ..Default::default()
    })
}

fn read_metadata(value: m::ConsumerGroupMemberMetadataValue) -> Metadata {
    let detached = |text: Option<Text>| text.map(|text| text.detached());
    let classic = value.classic_member_metadata.map(|classic| ClassicMetadata {
        session_timeout_ms: classic.session_timeout_ms,
        protocols: classic
            .supported_protocols
            .iter()
            .map(|protocol| (protocol.name.detached(), Bytes::copy_from_slice(&protocol.metadata)))
            .collect(),
    });
    Metadata {
        instance_id: detached(value.instance_id),
        rack_id: detached(value.rack_id),
        client_id: value.client_id.detached(),
        client_host: value.client_host.detached(),
        topics: value.subscribed_topic_names.iter().map(Text::detached).collect(),
        regex: detached(value.subscribed_topic_regex).filter(|regex| !regex.is_empty()),
        rebalance_timeout_ms: value.rebalance_timeout_ms,
        server_assignor: detached(value.server_assignor),
        classic,
    }
}

fn member_target_value(target: &Assignment) -> Bytes {
    let topic_partitions = target
        .topics()
        .map(|(topic_id, partitions)| target_value::TopicPartition {
            topic_id,
            partitions: partitions.iter().copied().collect(),
            ..Default::default()
        })
        .collect();
    encode(&m::ConsumerGroupTargetAssignmentMemberValue { topic_partitions, ..Default::default() })
}

fn read_member_target(value: &m::ConsumerGroupTargetAssignmentMemberValue) -> Assignment {
    let topics = value.topic_partitions.iter();
    topics
        .flat_map(|topic| {
            let topic_id = topic.topic_id;
            topic.partitions.iter().map(move |&partition| TopicIdPartition { topic_id, partition })
        })
        .collect()
}

fn current_value_of(current: &Current) -> Bytes {
    let assigned = current.assigned.topics().map(|(topic_id, partitions)| current_value::TopicPartitions {
        topic_id,
        partitions: partitions.keys().copied().collect(),
        assignment_epochs: Some(partitions.values().copied().collect()),
        ..Default::default()
    });
    let pending = current.pending_revocation.topics();
    let pending = pending.map(|(topic_id, partitions)| current_value::TopicPartitions {
        topic_id,
        partitions: partitions.iter().copied().collect(),
        ..Default::default()
    });
    encode(&m::ConsumerGroupCurrentMemberAssignmentValue {
        member_epoch: current.epoch,
        previous_member_epoch: current.previous_epoch,
        state: current.state.number(),
        assigned_partitions: assigned.collect(),
        partitions_pending_revocation: pending.collect(),
        ..Default::default()
    })
}

fn read_current(value: &m::ConsumerGroupCurrentMemberAssignmentValue) -> Current {
    let mut current = Current {
        epoch: value.member_epoch,
        previous_epoch: value.previous_member_epoch,
        state: MemberState::from_number(value.state),
        assigned: Assigned::default(),
        pending_revocation: Assignment::default(),
    };
    for topic in &value.assigned_partitions {
        for (index, &partition) in topic.partitions.iter().enumerate() {
            let epochs = topic.assignment_epochs.as_ref();
            let epoch = epochs.and_then(|epochs| epochs.get(index)).copied().unwrap_or(value.member_epoch);
            current.assigned.insert(TopicIdPartition { topic_id: topic.topic_id, partition }, epoch);
        }
    }
    for topic in &value.partitions_pending_revocation {
        for &partition in &topic.partitions {
            current.pending_revocation.insert(TopicIdPartition { topic_id: topic.topic_id, partition });
        }
    }
    current
}
