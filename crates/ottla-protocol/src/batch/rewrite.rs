//! Leaves records out of a batch, as compaction does: what stays keeps its offset, its timestamp and its bytes.
//!
//! Base offset, last offset delta, leader epoch and all of the producer's fields stay, so that readers step over
//! the hole and a producer's last sequence can still be read. Length, CRC and number of records are new. The
//! codec stays; its level is the codec's default.

use std::ops::Range;

use bytes::Bytes;

use super::build::seal;
use super::{
    BATCH_HEAD_BYTES, BATCH_HEADER_BYTES, BatchHeader, CODEC_MASK, DELETE_HORIZON_BIT, LENGTH_OVERHEAD_BYTES,
    TimestampType,
};
use crate::compression::{self, Codec};
use crate::record::{Cursor, RecordError, RecordsError, put_varlong};

/// A record that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRecord {
    /// Where it lies in the decompressed body, its size in front included.
    pub bytes: Range<usize>,
    /// As in the record.
    pub timestamp_delta: i64,
}

/// The batch with these of its records alone, at least one, in their order. `body` is the decompressed body.
/// With a delete horizon, which the batch must not have yet, it becomes the base timestamp and the records'
/// deltas are written anew, so that their timestamps stay.
///
/// # Errors
/// When a record or the codec cannot be read.
pub fn retain_records(
    header: &BatchHeader,
    body: &[u8],
    kept: &[KeptRecord],
    delete_horizon_ms: Option<i64>,
) -> Result<(BatchHeader, Bytes), RecordsError> {
    assert!(!kept.is_empty(), "a batch without records is `empty_batch`");
    let codec = header.codec()?;
    let mut header = *header;
    let shift = match delete_horizon_ms {
        Some(horizon) => {
            assert!(!header.has_delete_horizon(), "a delete horizon is set once");
            let shift = header.base_timestamp.wrapping_sub(horizon);
            header.attributes |= DELETE_HORIZON_BIT;
            Some((shift, horizon))
        }
        None => None,
    };
    if header.timestamp_type() == TimestampType::CreateTime {
        let timestamps = kept.iter().map(|record| header.base_timestamp.wrapping_add(record.timestamp_delta));
        header.max_timestamp = timestamps.max().unwrap_or(header.max_timestamp);
    }
    let mut records = vec![0; BATCH_HEADER_BYTES];
    records.reserve(kept.iter().map(|record| record.bytes.len()).sum());
    for record in kept {
        let bytes = body.get(record.bytes.clone()).ok_or(RecordsError::Cut)?;
        match shift {
            None => records.extend_from_slice(bytes),
            Some((shift, _)) => put_shifted(&mut records, bytes, shift).map_err(|_| RecordsError::Cut)?,
        }
    }
    if let Some((_, horizon)) = shift {
        header.base_timestamp = horizon;
    }
    header.records_count = i32::try_from(kept.len()).map_err(|_| RecordsError::Cut)?;
    Ok(finish(header, codec, records))
}

/// The batch without any record: a header that keeps offsets and the producer's last sequence. Its base timestamp
/// is -1, its largest timestamp stays.
pub fn empty_batch(header: &BatchHeader) -> (BatchHeader, Bytes) {
    let header = BatchHeader {
        attributes: header.attributes & !(CODEC_MASK | DELETE_HORIZON_BIT),
        base_timestamp: -1,
        records_count: 0,
        ..*header
    };
    finish(header, Codec::None, vec![0; BATCH_HEADER_BYTES])
}

/// Appends a record whose timestamp delta grows by `shift`.
fn put_shifted(out: &mut Vec<u8>, record: &[u8], shift: i64) -> Result<(), RecordError> {
    let mut cursor = Cursor::new(record);
    cursor.varint()?;
    let attributes_at = cursor.position();
    let attributes = *record.get(attributes_at).ok_or(RecordError::Cut)?;
    let mut cursor = Cursor::at(record, attributes_at + 1);
    let timestamp_delta = cursor.varlong()?.wrapping_add(shift);
    let rest = record.get(cursor.position()..).ok_or(RecordError::Cut)?;
    let mut delta = Vec::with_capacity(10);
    put_varlong(&mut delta, timestamp_delta);
    put_varlong(out, (1 + delta.len() + rest.len()) as i64);
    out.push(attributes);
    out.extend_from_slice(&delta);
    out.extend_from_slice(rest);
    Ok(())
}

/// `records` are encoded behind room for the header.
fn finish(mut header: BatchHeader, codec: Codec, records: Vec<u8>) -> (BatchHeader, Bytes) {
    let mut bytes = match codec {
        Codec::None => records,
        codec => {
            let (room, records) = records.split_at(BATCH_HEADER_BYTES);
            let mut bytes = Vec::with_capacity(BATCH_HEADER_BYTES + records.len() / 2);
            bytes.extend_from_slice(room);
            compression::compress_into(codec, records, &mut bytes);
            bytes
        }
    };
    header.batch_length =
        i32::try_from(bytes.len() - LENGTH_OVERHEAD_BYTES).expect("less than a batch that fitted");
    seal(&mut header, &mut bytes);
    (header, Bytes::from(bytes).slice(BATCH_HEAD_BYTES..))
}
