//! The records of `__consumer_offsets`: the one look at a key's type, and Kafka's key type 1 with its values,
//! the offsets.
//!
//! Place in the walk: commits encode them, applying decodes them. Type 2 is read by `classic`, the types of
//! KIP-848 by `consumer`. Of the offsets, version 4 of the value is written, which names
//! the topic's id; version 1 where the client gave an expiry of its own, since only that one can say so. All
//! versions are read. Keys of types that nobody knows are skipped.

use bytes::Bytes;
use ottla_protocol::codec::{Message, RecordKey};
use ottla_protocol::coordinator::{decode_value, encode_key, encode_value, record_type};
use ottla_protocol::messages::{GroupMetadataKey, OffsetCommitKey, OffsetCommitValue};
use ottla_protocol::types::Text;

use super::classic::Stored;
use super::consumer;
use super::offsets::{Commit, OffsetKey};
use crate::shard::NewRecord;

/// Version with the topic's id.
const VALUE_VERSION: i16 = 4;
/// Version with an expiry of the client's.
const EXPIRING_VALUE_VERSION: i16 = 1;

/// A record as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decoded {
    /// A committed offset; its `log_offset` is still to be set.
    Commit(OffsetKey, Commit),
    /// The offset is gone.
    Tombstone(OffsetKey),
    /// What a group of the classic protocol is now; none: it is gone.
    Classic(Text, Option<Stored>),
    /// A change of a consumer group.
    Consumer(Text, consumer::Change),
    /// A type of record that is none of ours.
    Unknown,
}

/// The record of a commit.
pub(super) fn encode(key: &OffsetKey, commit: &Commit) -> NewRecord {
    let value = OffsetCommitValue {
        offset: commit.offset,
        leader_epoch: commit.leader_epoch,
        metadata: commit.metadata.clone(),
        commit_timestamp: commit.commit_timestamp,
        expire_timestamp: commit.expire_timestamp,
        topic_id: commit.topic_id,
        ..OffsetCommitValue::default()
    };
    let version = if commit.expire_timestamp >= 0 { EXPIRING_VALUE_VERSION } else { VALUE_VERSION };
    let value = encode_value(&value, version).expect("fields that a version lacks are ignorable");
    NewRecord { key: key_of(key), value: Some(value) }
}

/// The record that removes an offset.
pub(super) fn tombstone(key: &OffsetKey) -> NewRecord {
    NewRecord { key: key_of(key), value: None }
}

fn key_of(key: &OffsetKey) -> Bytes {
    let key =
        OffsetCommitKey { group: key.group.clone(), topic: key.topic.clone(), partition: key.partition };
    encode_key(&key).expect("names longer than 32767 bytes are refused")
}

/// Reads a record.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn decode(key: &Bytes, value: Option<&Bytes>) -> Result<Decoded, &'static str> {
    let (record_type, mut reader) = record_type(key).map_err(|_| "group record key is cut")?;
    if record_type == GroupMetadataKey::RECORD_TYPE {
        let key = GroupMetadataKey::decode(&mut reader, 0).map_err(|_| "group key is malformed")?;
        let stored = value.map(Stored::from_value).transpose()?;
        return Ok(Decoded::Classic(key.group.detached(), stored));
    }
    if record_type != OffsetCommitKey::RECORD_TYPE {
        let change = consumer::decode(record_type, &mut reader, value)?;
        return Ok(change.map_or(Decoded::Unknown, |(group, change)| Decoded::Consumer(group, change)));
    }
    let key = OffsetCommitKey::decode(&mut reader, 0).map_err(|_| "offset commit key is malformed")?;
    let key =
        OffsetKey { group: key.group.detached(), topic: key.topic.detached(), partition: key.partition };
    let Some(value) = value else { return Ok(Decoded::Tombstone(key)) };
    let value: OffsetCommitValue = decode_value(value).map_err(|_| "offset commit value is malformed")?;
    let commit = Commit {
        offset: value.offset,
        leader_epoch: value.leader_epoch,
        metadata: if value.metadata.is_empty() { Text::EMPTY } else { value.metadata.detached() },
        commit_timestamp: value.commit_timestamp,
        expire_timestamp: value.expire_timestamp,
        topic_id: value.topic_id,
        log_offset: -1,
    };
    Ok(Decoded::Commit(key, commit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ottla_protocol::types::Uuid;
    use proptest::prelude::*;

    fn sample(expire_timestamp: i64) -> (OffsetKey, Commit) {
        let key = OffsetKey { group: Text::from("g"), topic: Text::from("t"), partition: 3 };
        let commit = Commit {
            offset: 42,
            leader_epoch: 5,
            metadata: Text::from("m"),
            commit_timestamp: 1000,
            expire_timestamp,
            topic_id: Uuid([7; 16]),
            log_offset: -1,
        };
        (key, commit)
    }

    /// A record read back is what was written; with an expiry the version has no room for leader epoch and
    /// topic id.
    #[test]
    fn round_trip() {
        let (key, commit) = sample(-1);
        let record = encode(&key, &commit);
        assert_eq!(decode(&record.key, record.value.as_ref()), Ok(Decoded::Commit(key.clone(), commit)));
        let (_, commit) = sample(5000);
        let record = encode(&key, &commit);
        let read = Commit { leader_epoch: -1, topic_id: Uuid::ZERO, ..commit };
        assert_eq!(decode(&record.key, record.value.as_ref()), Ok(Decoded::Commit(key.clone(), read)));
        assert_eq!(decode(&tombstone(&key).key, None), Ok(Decoded::Tombstone(key)));
    }

    /// Records of other kinds of groups and of later versions are skipped; damaged bytes are errors, never panics.
    #[test]
    fn foreign_and_damaged_records() {
        for other in [10u8, 22, 99] {
            assert_eq!(decode(&Bytes::from(vec![0, other, 0]), None), Ok(Decoded::Unknown));
        }
        let (key, commit) = sample(-1);
        let record = encode(&key, &commit);
        proptest!(|(bytes in prop::collection::vec(any::<u8>(), 0..60))| {
            let bytes = Bytes::from(bytes);
            let _ = decode(&bytes, Some(&bytes));
            let _ = decode(&record.key, Some(&bytes));
        });
    }
}
