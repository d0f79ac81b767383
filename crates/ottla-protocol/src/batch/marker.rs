//! Transaction markers: control batches of one record that end a transaction in a partition (KIP-98).
//!
//! The key holds version and type (0 abort, 1 commit), the value version and coordinator epoch. Newer versions
//! are read as version 0, whose fields they begin with.

use bytes::Bytes;
use thiserror::Error;

use super::build::seal;
use super::{
    BATCH_HEAD_BYTES, BATCH_HEADER_BYTES, BatchHeader, CONTROL_BIT, LENGTH_OVERHEAD_BYTES, MAGIC,
    TAIL_HEADER_BYTES, TRANSACTIONAL_BIT, field,
};
use crate::record::{self, NewRecord, RecordError};
use crate::types::NO_SEQUENCE;

/// Bytes of a whole marker batch.
pub const MARKER_BATCH_BYTES: usize = 78;

const ABORT: i16 = 0;
const COMMIT: i16 = 1;

/// What a marker says; producer id and epoch are in the batch's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Commit, else abort.
    pub commit: bool,
    /// Leader epoch of the coordinator's partition that wrote it.
    pub coordinator_epoch: i32,
}

/// Why a control batch cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MarkerError {
    /// Its record is damaged.
    #[error("control record: {0}")]
    Record(#[from] RecordError),
    /// Key or value is missing, short, or of a negative version.
    #[error("control record with a bad {0}")]
    Malformed(&'static str),
}

/// A marker batch (base offset 0, leader epoch -1): header and tail, 78 bytes together.
pub fn build_marker(
    producer_id: i64,
    producer_epoch: i16,
    commit: bool,
    coordinator_epoch: i32,
    timestamp: i64,
) -> (BatchHeader, Bytes) {
    let kind = if commit { COMMIT } else { ABORT };
    let mut key = [0; 4];
    key[2..].copy_from_slice(&kind.to_be_bytes());
    let mut value = [0; 6];
    value[2..].copy_from_slice(&coordinator_epoch.to_be_bytes());
    let mut bytes = Vec::with_capacity(MARKER_BATCH_BYTES);
    bytes.resize(BATCH_HEADER_BYTES, 0);
    record::encode(
        &mut bytes,
        0,
        0,
        &NewRecord { timestamp, key: Some(&key), value: Some(&value), headers: &[] },
    );
    assert_eq!(bytes.len(), MARKER_BATCH_BYTES, "the record of a marker has a fixed size");
    let mut header = BatchHeader {
        base_offset: 0,
        batch_length: (MARKER_BATCH_BYTES - LENGTH_OVERHEAD_BYTES) as i32,
        partition_leader_epoch: -1,
        magic: MAGIC,
        crc: 0,
        attributes: TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta: 0,
        base_timestamp: timestamp,
        max_timestamp: timestamp,
        producer_id,
        producer_epoch,
        base_sequence: NO_SEQUENCE,
        records_count: 1,
    };
    seal(&mut header, &mut bytes);
    (header, Bytes::from(bytes).slice(BATCH_HEAD_BYTES..))
}

/// Reads a control batch: the marker, or `None` for a control type that is no marker and for an empty batch
/// (left by compaction), which both must be skipped.
pub fn parse_marker(header: &BatchHeader, tail: &[u8]) -> Result<Option<Marker>, MarkerError> {
    if header.records_count == 0 {
        return Ok(None);
    }
    let body = tail.get(TAIL_HEADER_BYTES..).ok_or(MarkerError::Record(RecordError::Cut))?;
    let raw = record::Cursor::new(body).record()?;
    let key = raw.key.and_then(|range| body.get(range)).ok_or(MarkerError::Malformed("key"))?;
    let version = field(key, 0).map(i16::from_be_bytes).ok_or(MarkerError::Malformed("key"))?;
    let kind = field(key, 2).map(i16::from_be_bytes).ok_or(MarkerError::Malformed("key"))?;
    if version < 0 {
        return Err(MarkerError::Malformed("key version"));
    }
    if kind != ABORT && kind != COMMIT {
        return Ok(None);
    }
    let value = raw.value.and_then(|range| body.get(range)).ok_or(MarkerError::Malformed("value"))?;
    let version = field(value, 0).map(i16::from_be_bytes).ok_or(MarkerError::Malformed("value"))?;
    let coordinator_epoch = field(value, 2).map(i32::from_be_bytes).ok_or(MarkerError::Malformed("value"))?;
    if version < 0 {
        return Err(MarkerError::Malformed("value version"));
    }
    Ok(Some(Marker { commit: kind == COMMIT, coordinator_epoch }))
}
