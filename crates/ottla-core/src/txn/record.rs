//! The records of `__transaction_state`: Kafka's key and value, version 1, with private tags of ours.
//!
//! Place in the walk: the coordinator encodes one per change and decodes it again when it is applied. A snapshot
//! keeps transactions in the same form, so whatever must survive is in the record by construction.
//!
//! Private tags (Kafka's readers skip them): 100 lastProducerEpoch and 101 transactionSequence of the value, 100
//! topicId of each topic in it. Only the topic id counts when a record is read; the name is there for tools.

use bytes::Bytes;
use ottla_protocol::codec::{Message, RecordKey};
use ottla_protocol::coordinator::{decode_value, encode_key, encode_value, record_type};
use ottla_protocol::messages::transaction_log_value::PartitionsSchema;
use ottla_protocol::messages::{TransactionLogKey, TransactionLogValue};
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use super::state::{State, Transaction};
use crate::shard::NewRecord;

/// Version of the values we write: the first with tagged fields.
const VALUE_VERSION: i16 = 1;

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// The state of an id.
    Transaction(Transaction),
    /// The id is forgotten.
    Tombstone(Text),
    /// A type of record that a later version may have written: to be skipped.
    Unknown,
}

/// The record of a transaction. `name_of` names a topic by its id, empty when it is gone.
pub(super) fn encode(transaction: &Transaction, name_of: impl Fn(Uuid) -> Text) -> NewRecord {
    let (key, value) = encode_parts(transaction, name_of);
    NewRecord { key, value: Some(value) }
}

/// The record that makes an id forgotten.
pub(super) fn tombstone(transactional_id: &Text) -> NewRecord {
    NewRecord { key: key_of(transactional_id), value: None }
}

/// Key and value of a transaction.
pub(super) fn encode_parts(transaction: &Transaction, name_of: impl Fn(Uuid) -> Text) -> (Bytes, Bytes) {
    let message = TransactionLogValue {
        producer_id: transaction.producer_id,
        previous_producer_id: transaction.previous_producer_id,
        next_producer_id: transaction.next_producer_id,
        producer_epoch: transaction.producer_epoch,
        transaction_timeout_ms: transaction.timeout_ms,
        transaction_status: transaction.state as i8,
        // As Kafka: null, not empty, where there can be none.
        transaction_partitions: (transaction.state != State::Empty)
            .then(|| by_topic(&transaction.partitions, name_of)),
        transaction_last_update_timestamp_ms: transaction.last_update_timestamp,
        transaction_start_timestamp_ms: transaction.start_timestamp,
        client_transaction_version: transaction.client_transaction_version,
        last_producer_epoch: transaction.last_producer_epoch,
        transaction_sequence: transaction.transaction_sequence,
        ..TransactionLogValue::default()
    };
    let value = encode_value(&message, VALUE_VERSION).expect("every field exists in this version");
    (key_of(&transaction.transactional_id), value)
}

fn key_of(transactional_id: &Text) -> Bytes {
    let key = TransactionLogKey { transactional_id: transactional_id.clone() };
    encode_key(&key).expect("ids longer than 32767 bytes are refused")
}

/// Groups sorted partitions by topic.
fn by_topic(partitions: &[TopicIdPartition], name_of: impl Fn(Uuid) -> Text) -> Vec<PartitionsSchema> {
    partitions
        .chunk_by(|a, b| a.topic_id == b.topic_id)
        .map(|of_topic| {
            let topic_id = of_topic.first().expect("chunks are not empty").topic_id;
            PartitionsSchema {
                topic: name_of(topic_id),
                partition_ids: of_topic.iter().map(|partition| partition.partition).collect(),
                topic_id,
                ..PartitionsSchema::default()
            }
        })
        .collect()
}

/// Reads a record.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn decode(key: &Bytes, value: Option<&Bytes>) -> Result<Decoded, &'static str> {
    let (record_type, mut reader) = record_type(key).map_err(|_| "transaction log key is cut")?;
    if record_type != TransactionLogKey::RECORD_TYPE {
        return Ok(Decoded::Unknown);
    }
    let key = TransactionLogKey::decode(&mut reader, 0).map_err(|_| "transaction log key is malformed")?;
    let transactional_id = key.transactional_id.detached();
    let Some(value) = value else { return Ok(Decoded::Tombstone(transactional_id)) };
    let value = decode_value(value).map_err(|_| "transaction log value is malformed")?;
    from_value(transactional_id, value).map(Decoded::Transaction)
}

fn from_value(transactional_id: Text, value: TransactionLogValue) -> Result<Transaction, &'static str> {
    let state = State::from_status(value.transaction_status).ok_or("unknown transaction state")?;
    if value.producer_epoch < 0 {
        return Err("negative producer epoch in the transaction log");
    }
    let mut partitions = Vec::new();
    for topic in value.transaction_partitions.unwrap_or_default() {
        partitions.extend(
            topic
                .partition_ids
                .iter()
                .map(|&partition| TopicIdPartition { topic_id: topic.topic_id, partition }),
        );
    }
    partitions.sort_unstable();
    partitions.dedup();
    Ok(Transaction {
        transactional_id,
        producer_id: value.producer_id,
        previous_producer_id: value.previous_producer_id,
        next_producer_id: value.next_producer_id,
        producer_epoch: value.producer_epoch,
        last_producer_epoch: value.last_producer_epoch,
        timeout_ms: value.transaction_timeout_ms,
        state,
        partitions,
        start_timestamp: value.transaction_start_timestamp_ms,
        last_update_timestamp: value.transaction_last_update_timestamp_ms,
        client_transaction_version: value.client_transaction_version,
        transaction_sequence: value.transaction_sequence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::ShardTime;
    use proptest::prelude::*;

    /// A record read back is what was written, in every state, with any partitions and any private field.
    #[test]
    fn round_trip() {
        proptest!(|(
            state in prop::sample::select(State::ALL.to_vec()),
            partitions in prop::collection::btree_set((any::<[u8; 16]>(), 0i32..5), 0..20),
            epoch in 0i16..=i16::MAX,
            last in -1i16..=i16::MAX,
            ids in any::<[i64; 3]>(),
            sequence in any::<i64>(),
        )| {
            let mut transaction = Transaction::new(Text::from("an id"), ids[0], 1, ShardTime(9));
            transaction.state = state;
            if state != State::Empty {
                transaction.partitions = partitions
                    .into_iter()
                    .map(|(topic_id, partition)| TopicIdPartition { topic_id: Uuid(topic_id), partition })
                    .collect();
            }
            transaction.producer_epoch = epoch;
            transaction.last_producer_epoch = last;
            transaction.previous_producer_id = ids[1];
            transaction.next_producer_id = ids[2];
            transaction.transaction_sequence = sequence;
            transaction.client_transaction_version = 2;
            let (key, value) = encode_parts(&transaction, |_| Text::from("topic"));
            prop_assert_eq!(decode(&key, Some(&value)), Ok(Decoded::Transaction(transaction.clone())));
            prop_assert_eq!(decode(&key, None), Ok(Decoded::Tombstone(transaction.transactional_id)));
        });
    }

    /// A key of another type is skipped; cut or odd bytes are errors, never panics.
    #[test]
    fn foreign_and_damaged_records() {
        assert_eq!(decode(&Bytes::from_static(&[0, 9, 1]), None), Ok(Decoded::Unknown));
        assert!(decode(&Bytes::from_static(&[0]), None).is_err());
        let transaction = Transaction::new(Text::from("t"), 1, 1, ShardTime(0));
        let (key, value) = encode_parts(&transaction, |_| Text::EMPTY);
        for cut in 0..value.len() - 1 {
            assert!(decode(&key, Some(&value.slice(..cut))).is_err(), "cut at {cut}");
        }
        proptest!(|(bytes in prop::collection::vec(any::<u8>(), 0..80))| {
            let _ = decode(&Bytes::from(bytes.clone()), Some(&Bytes::from(bytes.clone())));
            let _ = decode(&key, Some(&Bytes::from(bytes)));
        });
    }
}
