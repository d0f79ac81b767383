//! Keys and values of the records in internal topics: a 16-bit number, then a message of the schema.
//!
//! The number in front of a key is the type of the record, in front of a value the version of the message.

use bytes::Bytes;

use crate::codec::{DecodeError, EncodeError, Message, Reader, RecordKey, Writer};

/// A record's key: its type, then the message in version 0.
pub fn encode_key<K: RecordKey>(key: &K) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    writer.i16(K::RECORD_TYPE);
    key.encode(&mut writer, 0)?;
    Ok(writer.finish_bytes())
}

/// A record's value: the version, then the message.
pub fn encode_value<V: Message>(value: &V, version: i16) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    writer.i16(version);
    value.encode(&mut writer, version)?;
    Ok(writer.finish_bytes())
}

/// The type of a record, from its key; the reader then stands in front of the key's message, which
/// `K::decode(reader, 0)` reads.
pub fn record_type(key: &Bytes) -> Result<(i16, Reader), DecodeError> {
    let mut reader = Reader::new(key.clone());
    Ok((reader.i16()?, reader))
}

/// A record's value in whatever version it was written.
pub fn decode_value<V: Message>(value: &Bytes) -> Result<V, DecodeError> {
    let mut reader = Reader::new(value.clone());
    let version = reader.i16()?;
    V::decode(&mut reader, version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{OffsetCommitKey, TransactionLogKey, TransactionLogValue};

    #[test]
    fn keys_carry_their_type_and_values_their_version() {
        // Proves Kafka's layout of a transaction's record, and that our two tags are absent while they hold their
        // defaults.
        let key = TransactionLogKey { transactional_id: "a".into() };
        assert_eq!(encode_key(&key).expect("short").as_ref(), [0, 0, 0, 1, b'a']);
        let (number, mut reader) = record_type(&encode_key(&key).expect("short")).expect("two bytes");
        assert_eq!((number, TransactionLogKey::decode(&mut reader, 0)), (0, Ok(key)));
        assert_eq!(OffsetCommitKey::RECORD_TYPE, 1);

        let value = TransactionLogValue { transaction_partitions: None, ..Default::default() };
        let bytes = encode_value(&value, 1).expect("version 1 has every field");
        assert_eq!(bytes.len(), 2 + 8 + 2 + 4 + 1 + 1 + 8 + 8 + 1);
        assert_eq!(decode_value::<TransactionLogValue>(&bytes), Ok(value.clone()));

        let own = TransactionLogValue { last_producer_epoch: 3, transaction_sequence: 9, ..value };
        let bytes = encode_value(&own, 1).expect("version 1 has every field");
        assert_eq!(bytes.last_chunk(), Some(&[2u8, 100, 2, 0, 3, 101, 8, 0, 0, 0, 0, 0, 0, 0, 9]));
        assert_eq!(decode_value::<TransactionLogValue>(&bytes), Ok(own.clone()));
        // Version 0 has no tags: losing them is an error, not silence.
        assert!(encode_value(&own, 0).is_err());
    }
}
