//! What is durable of a classic group: Kafka's record of key type 2, one per completed generation.
//!
//! Place in the walk: the record is written when the leader's assignment arrives, when a static member takes
//! its place again without a rebalance, and when the last member is gone; a tombstone when the group is deleted.
//!
//! Invariants: version 3 is written, which every tool reads; all versions are read. A group without members is
//! Empty, one with members Stable: what lies between is volatile.

use bytes::Bytes;
use ottla_protocol::coordinator::{decode_value, encode_key, encode_value};
use ottla_protocol::messages::group_metadata_value::MemberMetadata;
use ottla_protocol::messages::{GroupMetadataKey, GroupMetadataValue};
use ottla_protocol::types::Text;

use crate::shard::{Decoder, Encoder, NewRecord, RestoreError};

/// Version of the value: the last one that is not flexible.
const VALUE_VERSION: i16 = 3;

/// A group as its record says it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::group) struct Stored(GroupMetadataValue);

impl Stored {
    /// Reads a record's value.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(in crate::group) fn from_value(value: &Bytes) -> Result<Self, &'static str> {
        let value: GroupMetadataValue = decode_value(value).map_err(|_| "group value is malformed")?;
        let text = |text: Option<Text>| text.map(|text| text.detached());
        let members = value.members.into_iter().map(|member| MemberMetadata {
            member_id: member.member_id.detached(),
            group_instance_id: text(member.group_instance_id),
            client_id: member.client_id.detached(),
            client_host: member.client_host.detached(),
            rebalance_timeout: member.rebalance_timeout,
            session_timeout: member.session_timeout,
            subscription: Bytes::copy_from_slice(&member.subscription),
            assignment: Bytes::copy_from_slice(&member.assignment),
            ..MemberMetadata::default()
        });
        Ok(Self(GroupMetadataValue {
            protocol_type: value.protocol_type.detached(),
            generation: value.generation,
            protocol: text(value.protocol),
            leader: text(value.leader),
            current_state_timestamp: value.current_state_timestamp,
            members: members.collect(),
            ..GroupMetadataValue::default()
        }))
    }

    /// The record's fields.
    pub(in crate::group) fn value(&self) -> &GroupMetadataValue {
        &self.0
    }

    /// Writes it for a snapshot: as its record.
    pub(in crate::group) fn encode(&self, out: &mut Vec<u8>) {
        out.bytes(&encode(&self.0));
    }

    /// Reads what [`Stored::encode`] wrote.
    pub(in crate::group) fn decode(items: &mut Decoder<'_>) -> Result<Self, RestoreError> {
        let value = Bytes::copy_from_slice(items.bytes()?);
        Self::from_value(&value).map_err(|reason| items.inconsistent(reason))
    }
}

fn encode(value: &GroupMetadataValue) -> Bytes {
    encode_value(value, VALUE_VERSION)
        .expect("texts were read with the same bound, and the version has all fields")
}

fn key(group: &Text) -> Bytes {
    let key = GroupMetadataKey { group: group.clone() };
    encode_key(&key).expect("names longer than 32767 bytes are refused")
}

/// The record of a group.
pub(in crate::group) fn record(group: &Text, value: GroupMetadataValue) -> NewRecord {
    NewRecord { key: key(group), value: Some(encode(&value)) }
}

/// The record that removes a group.
pub(in crate::group) fn tombstone(group: &Text) -> NewRecord {
    NewRecord { key: key(group), value: None }
}
