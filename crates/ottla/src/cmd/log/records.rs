//! Records of the internal topics, of the control log, and markers, as fields that people can read.
//!
//! Every version and type that the schema knows for these topics is read; what cannot be read, or is of a type that a
//! later version may have written, is said to be so and shown raw by the caller.

use bytes::Bytes;
use ottla_protocol::codec::{DecodeError, Message, Reader, RecordKey};
use ottla_protocol::coordinator::{decode_value, record_type};
use ottla_protocol::messages as m;
use ottla_protocol::record::Record;
use ottla_protocol::types::Text;
use serde_json::{Map, Value, json};

use crate::text;

/// What a batch's records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A client's data.
    Data,
    /// `__consumer_offsets`.
    Groups,
    /// `__transaction_state`.
    Transactions,
    /// The control log.
    Control,
    /// Markers of transactions, in any topic.
    Markers,
}

/// A decoded record: what it is, and its fields.
pub(super) type Decoded = (&'static str, Value);

/// Decodes a record; none for data, or for a type of record that this build does not know.
pub(super) fn decode(kind: Kind, record: &Record) -> Result<Option<Decoded>, DecodeError> {
    let Some(key) = record.key.as_ref().filter(|_| kind != Kind::Data) else { return Ok(None) };
    let value = record.value.as_ref();
    let (number, mut reader) = record_type(key)?;
    match kind {
        Kind::Data => Ok(None),
        Kind::Markers => marker(&mut reader, value).map(Some),
        Kind::Groups => group(number, &mut reader, value),
        Kind::Transactions => transaction(number, &mut reader, value),
        Kind::Control => control(number, &mut reader, value),
    }
}

/// The topic that a control record names, when it is one: id, name and role; no name when it is deleted.
pub(super) fn named_topic(record: &Record) -> Option<(ottla_protocol::types::Uuid, Option<(Text, u8)>)> {
    let (number, mut reader) = record_type(record.key.as_ref()?).ok()?;
    if number != m::TopicControlKey::RECORD_TYPE {
        return None;
    }
    let key = m::TopicControlKey::decode(&mut reader, 0).ok()?;
    let topic = match &record.value {
        Some(value) => {
            let value: m::TopicControlValue = decode_value(value).ok()?;
            Some((value.name.detached(), u8::try_from(value.role).unwrap_or_default()))
        }
        None => None,
    };
    Some((key.topic_id, topic))
}

/// Reads a value that may be a tombstone.
fn optional<V: Message>(value: Option<&Bytes>) -> Result<Option<V>, DecodeError> {
    value.map(decode_value).transpose()
}

/// Key fields and, unless it is a tombstone, value fields as one object.
fn joined<V>(mut fields: Map<String, Value>, value: Option<V>, of: impl FnOnce(V) -> Value) -> Value {
    match value.map(of) {
        Some(Value::Object(more)) => fields.extend(more),
        Some(other) => drop(fields.insert("value".to_owned(), other)),
        None => drop(fields.insert("tombstone".to_owned(), json!(true))),
    }
    Value::Object(fields)
}

fn key_fields(fields: Value) -> Map<String, Value> {
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn marker(reader: &mut Reader, value: Option<&Bytes>) -> Result<Decoded, DecodeError> {
    let kind = match reader.i16()? {
        0 => "abort marker",
        1 => "commit marker",
        _ => "marker of an unknown type",
    };
    let epoch = optional::<m::EndTxnMarker>(value)?.map(|value| value.coordinator_epoch);
    Ok((kind, json!({ "coordinator_epoch": epoch })))
}

fn status(status: i8) -> String {
    let name = match status {
        0 => "Empty",
        1 => "Ongoing",
        2 => "PrepareCommit",
        3 => "PrepareAbort",
        4 => "CompleteCommit",
        5 => "CompleteAbort",
        6 => "Dead",
        7 => "PrepareEpochFence",
        other => return other.to_string(),
    };
    name.to_owned()
}

fn transaction(
    number: i16,
    reader: &mut Reader,
    value: Option<&Bytes>,
) -> Result<Option<Decoded>, DecodeError> {
    if number != m::TransactionLogKey::RECORD_TYPE {
        return Ok(None);
    }
    let key = m::TransactionLogKey::decode(reader, 0)?;
    let key = key_fields(json!({ "transactional_id": key.transactional_id.as_str() }));
    let value = optional::<m::TransactionLogValue>(value)?;
    let fields = joined(key, value, |value| {
        let partitions = value.transaction_partitions.unwrap_or_default().into_iter().map(|topic| {
            json!({
                "topic": topic.topic.as_str(),
                "topic_id": topic.topic_id.to_string(),
                "partitions": topic.partition_ids,
            })
        });
        json!({
            "state": status(value.transaction_status),
            "producer_id": value.producer_id,
            "producer_epoch": value.producer_epoch,
            "previous_producer_id": value.previous_producer_id,
            "next_producer_id": value.next_producer_id,
            "last_producer_epoch": value.last_producer_epoch,
            "timeout_ms": value.transaction_timeout_ms,
            "start_timestamp": value.transaction_start_timestamp_ms,
            "last_update_timestamp": value.transaction_last_update_timestamp_ms,
            "transaction_version": value.client_transaction_version,
            "transaction_sequence": value.transaction_sequence,
            "partitions": partitions.collect::<Value>(),
        })
    });
    Ok(Some(("transaction", fields)))
}

fn optional_text(text: Option<&Text>) -> Option<&str> {
    text.map(Text::as_str)
}

fn group(number: i16, reader: &mut Reader, value: Option<&Bytes>) -> Result<Option<Decoded>, DecodeError> {
    Ok(Some(match number {
        m::OffsetCommitKey::RECORD_TYPE | m::LegacyOffsetCommitKey::RECORD_TYPE => {
            let key = m::OffsetCommitKey::decode(reader, 0)?;
            let key = key_fields(json!({
                "group": key.group.as_str(), "topic": key.topic.as_str(), "partition": key.partition,
            }));
            let fields = joined(key, optional::<m::OffsetCommitValue>(value)?, |value| {
                json!({
                    "offset": value.offset,
                    "leader_epoch": value.leader_epoch,
                    "metadata": value.metadata.as_str(),
                    "commit_timestamp": value.commit_timestamp,
                    "expire_timestamp": value.expire_timestamp,
                    "topic_id": value.topic_id.to_string(),
                })
            });
            ("offset commit", fields)
        }
        m::GroupMetadataKey::RECORD_TYPE => {
            let key = m::GroupMetadataKey::decode(reader, 0)?;
            let key = key_fields(json!({ "group": key.group.as_str() }));
            ("group metadata", joined(key, optional(value)?, group_metadata))
        }
        m::ConsumerGroupMetadataKey::RECORD_TYPE => {
            let key = m::ConsumerGroupMetadataKey::decode(reader, 0)?;
            let key = key_fields(json!({ "group": key.group_id.as_str() }));
            let fields = joined(
                key,
                optional::<m::ConsumerGroupMetadataValue>(value)?,
                |value| json!({ "epoch": value.epoch, "metadata_hash": value.metadata_hash }),
            );
            ("consumer group", fields)
        }
        m::ConsumerGroupTargetAssignmentMetadataKey::RECORD_TYPE => {
            let key = m::ConsumerGroupTargetAssignmentMetadataKey::decode(reader, 0)?;
            let key = key_fields(json!({ "group": key.group_id.as_str() }));
            let value = optional::<m::ConsumerGroupTargetAssignmentMetadataValue>(value)?;
            let fields = joined(key, value, |value| {
                json!({
                    "assignment_epoch": value.assignment_epoch,
                    "assignment_timestamp": value.assignment_timestamp,
                })
            });
            ("target assignment of a group", fields)
        }
        m::ConsumerGroupRegularExpressionKey::RECORD_TYPE => {
            let key = m::ConsumerGroupRegularExpressionKey::decode(reader, 0)?;
            let key = key_fields(json!({
                "group": key.group_id.as_str(), "regular_expression": key.regular_expression.as_str(),
            }));
            let value = optional::<m::ConsumerGroupRegularExpressionValue>(value)?;
            let fields = joined(key, value, |value| {
                json!({
                    "topics": value.topics.iter().map(Text::as_str).collect::<Vec<_>>(),
                    "version": value.version,
                    "timestamp": value.timestamp,
                })
            });
            ("regular expression", fields)
        }
        _ => return group_member(number, reader, value),
    }))
}

fn group_metadata(value: m::GroupMetadataValue) -> Value {
    let is_consumer = value.protocol_type.as_str() == "consumer";
    let members = value.members.iter().map(|member| {
        let topics = decode_value::<m::ConsumerProtocolSubscription>(&member.subscription)
            .ok()
            .filter(|_| is_consumer)
            .map(|subscribed| json!(subscribed.topics.iter().map(Text::as_str).collect::<Vec<_>>()));
        let assigned = decode_value::<m::ConsumerProtocolAssignment>(&member.assignment)
            .ok()
            .filter(|_| is_consumer)
            .map(|assignment| {
                let topics = assignment.assigned_partitions.into_iter();
                topics
                    .map(|topic| json!({ "topic": topic.topic.as_str(), "partitions": topic.partitions }))
                    .collect::<Value>()
            });
        json!({
            "member_id": member.member_id.as_str(),
            "group_instance_id": optional_text(member.group_instance_id.as_ref()),
            "client_id": member.client_id.as_str(),
            "client_host": member.client_host.as_str(),
            "rebalance_timeout_ms": member.rebalance_timeout,
            "session_timeout_ms": member.session_timeout,
            "subscribed": topics.unwrap_or_else(|| json!(text::base64(&member.subscription))),
            "assigned": assigned.unwrap_or_else(|| json!(text::base64(&member.assignment))),
        })
    });
    json!({
        "protocol_type": value.protocol_type.as_str(),
        "generation": value.generation,
        "protocol": optional_text(value.protocol.as_ref()),
        "leader": optional_text(value.leader.as_ref()),
        "state_timestamp": value.current_state_timestamp,
        "members": members.collect::<Value>(),
    })
}

fn group_member(
    number: i16,
    reader: &mut Reader,
    value: Option<&Bytes>,
) -> Result<Option<Decoded>, DecodeError> {
    let key = |group: &Text, member: &Text| {
        key_fields(json!({ "group": group.as_str(), "member_id": member.as_str() }))
    };
    Ok(Some(match number {
        m::ConsumerGroupMemberMetadataKey::RECORD_TYPE => {
            let read = m::ConsumerGroupMemberMetadataKey::decode(reader, 0)?;
            let value = optional::<m::ConsumerGroupMemberMetadataValue>(value)?;
            let fields = joined(key(&read.group_id, &read.member_id), value, |value| {
                json!({
                    "group_instance_id": optional_text(value.instance_id.as_ref()),
                    "rack_id": optional_text(value.rack_id.as_ref()),
                    "client_id": value.client_id.as_str(),
                    "client_host": value.client_host.as_str(),
                    "subscribed": value.subscribed_topic_names.iter().map(Text::as_str).collect::<Vec<_>>(),
                    "subscribed_regex": optional_text(value.subscribed_topic_regex.as_ref()),
                    "rebalance_timeout_ms": value.rebalance_timeout_ms,
                    "assignor": optional_text(value.server_assignor.as_ref()),
                    "is_classic": value.classic_member_metadata.is_some(),
                })
            });
            ("member of a consumer group", fields)
        }
        m::ConsumerGroupTargetAssignmentMemberKey::RECORD_TYPE => {
            let read = m::ConsumerGroupTargetAssignmentMemberKey::decode(reader, 0)?;
            let value = optional::<m::ConsumerGroupTargetAssignmentMemberValue>(value)?;
            let fields = joined(key(&read.group_id, &read.member_id), value, |value| {
                let topics = value.topic_partitions.into_iter().map(
                    |topic| json!({ "topic_id": topic.topic_id.to_string(), "partitions": topic.partitions }),
                );
                json!({ "target": topics.collect::<Value>() })
            });
            ("target assignment of a member", fields)
        }
        m::ConsumerGroupCurrentMemberAssignmentKey::RECORD_TYPE => {
            let read = m::ConsumerGroupCurrentMemberAssignmentKey::decode(reader, 0)?;
            let value = optional::<m::ConsumerGroupCurrentMemberAssignmentValue>(value)?;
            let fields = joined(key(&read.group_id, &read.member_id), value, |value| {
                let listed = |topics: Vec<
                    m::consumer_group_current_member_assignment_value::TopicPartitions,
                >| {
                    let shown = topics.into_iter().map(
                        |topic| json!({ "topic_id": topic.topic_id.to_string(), "partitions": topic.partitions }),
                    );
                    shown.collect::<Value>()
                };
                json!({
                    "member_epoch": value.member_epoch,
                    "previous_member_epoch": value.previous_member_epoch,
                    "state": value.state,
                    "assigned": listed(value.assigned_partitions),
                    "to_revoke": listed(value.partitions_pending_revocation),
                })
            });
            ("current assignment of a member", fields)
        }
        _ => return Ok(None),
    }))
}

fn settings<'a>(all: impl Iterator<Item = (&'a Text, &'a Text)>) -> Value {
    let fields = all.map(|(name, value)| (name.to_string(), json!(value.as_str())));
    Value::Object(fields.collect())
}

fn control(number: i16, reader: &mut Reader, value: Option<&Bytes>) -> Result<Option<Decoded>, DecodeError> {
    let none = Map::new;
    Ok(Some(match number {
        m::ClusterControlKey::RECORD_TYPE => {
            let fields = joined(
                none(),
                optional::<m::ClusterControlValue>(value)?,
                |value| json!({ "cluster_id": value.cluster_id.to_string() }),
            );
            ("cluster", fields)
        }
        m::TopicControlKey::RECORD_TYPE => {
            let key = m::TopicControlKey::decode(reader, 0)?;
            let key = key_fields(json!({ "topic_id": key.topic_id.to_string() }));
            let fields = joined(key, optional::<m::TopicControlValue>(value)?, |value| {
                json!({
                    "topic": value.name.as_str(),
                    "partitions": value.partition_count,
                    "base_leader_epoch": value.base_leader_epoch,
                    "role": value.role,
                    "configs": settings(value.configs.iter().map(|config| (&config.name, &config.value))),
                })
            });
            ("topic", fields)
        }
        m::FeatureControlKey::RECORD_TYPE => {
            let key = m::FeatureControlKey::decode(reader, 0)?;
            let key = key_fields(json!({ "name": key.name.as_str() }));
            let value = optional::<m::FeatureControlValue>(value)?;
            ("feature", joined(key, value, |value| json!({ "level": value.level })))
        }
        m::ProducerIdControlKey::RECORD_TYPE => {
            let fields = joined(
                none(),
                optional::<m::ProducerIdControlValue>(value)?,
                |value| json!({ "next_producer_id": value.next_producer_id }),
            );
            ("producer ids", fields)
        }
        m::BrokerConfigControlKey::RECORD_TYPE => {
            let key = m::BrokerConfigControlKey::decode(reader, 0)?;
            let key = key_fields(json!({ "node_id": key.node_id, "name": key.name.as_str() }));
            let value = optional::<m::BrokerConfigControlValue>(value)?;
            ("setting of a broker", joined(key, value, |value| json!({ "setting": value.value.as_str() })))
        }
        m::GroupConfigControlKey::RECORD_TYPE => {
            let key = m::GroupConfigControlKey::decode(reader, 0)?;
            let key = key_fields(json!({ "group": key.group_id.as_str() }));
            let fields = joined(key, optional::<m::GroupConfigControlValue>(value)?, |value| {
                json!({
                    "configs": settings(value.configs.iter().map(|config| (&config.name, &config.value))),
                })
            });
            ("settings of a group", fields)
        }
        _ => return control_of_partition(number, reader, value),
    }))
}

fn control_of_partition(
    number: i16,
    reader: &mut Reader,
    value: Option<&Bytes>,
) -> Result<Option<Decoded>, DecodeError> {
    let key = |topic_id: ottla_protocol::types::Uuid, partition: i32| {
        key_fields(json!({ "topic_id": topic_id.to_string(), "partition": partition }))
    };
    Ok(Some(match number {
        m::LogStartControlKey::RECORD_TYPE => {
            let read = m::LogStartControlKey::decode(reader, 0)?;
            let value = optional::<m::LogStartControlValue>(value)?;
            let fields = joined(
                key(read.topic_id, read.partition),
                value,
                |value| json!({ "log_start_offset": value.log_start_offset }),
            );
            ("log start", fields)
        }
        m::ProducerExpiryControlKey::RECORD_TYPE => {
            let read = m::ProducerExpiryControlKey::decode(reader, 0)?;
            let value = optional::<m::ProducerExpiryControlValue>(value)?;
            let fields = joined(
                key(read.topic_id, read.partition),
                value,
                |value| json!({ "producer_ids": value.producer_ids }),
            );
            ("expired producers", fields)
        }
        m::CleanedControlKey::RECORD_TYPE => {
            let read = m::CleanedControlKey::decode(reader, 0)?;
            let value = optional::<m::CleanedControlValue>(value)?;
            let fields = joined(key(read.topic_id, read.partition), value, |value| {
                json!({
                    "cleaned_to": value.cleaned_to,
                    "tombstone_horizon": value.tombstone_horizon,
                    "delete_horizon_ms": value.delete_horizon_ms,
                    "spent_markers": value.spent_markers,
                })
            });
            ("pass of the cleaner", fields)
        }
        _ => return Ok(None),
    }))
}
