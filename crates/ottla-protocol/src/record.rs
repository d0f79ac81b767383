//! Records of a batch: encoding them, and decoding them without copying.
//!
//! Place in the walk: the produce check walks them once with `Cursor` (no allocation), the client, the
//! coordinators and compaction iterate them as `Record`s that share the body's buffer. The body is what follows
//! the 61 bytes of header, already decompressed.
//!
//! Decoding is strict: every varint fits its type, every length lies inside its record, every record ends where
//! its size says, and the body ends with the last record. Two things are free, as in Kafka: a record's
//! attributes byte, and the bytes of a header's key (UTF-8 by convention only).

mod cursor;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use thiserror::Error;

pub use cursor::{Cursor, RawRecord};

use crate::batch::{BatchHeader, TAIL_HEADER_BYTES, TimestampType};
use crate::compression::{self, Codec, CompressionError, UnknownCodec};

/// The smallest record: size, attributes, two deltas, two lengths and the header count, one byte each.
pub const RECORD_BYTES_MIN: usize = 7;

/// Why records cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The bytes end inside a record.
    #[error("record is cut")]
    Cut,
    /// A varint is longer than its type allows.
    #[error("record holds an endless varint")]
    Varint,
    /// A length or count is negative where it must not be, or larger than the record.
    #[error("record holds a length that does not fit")]
    Length,
    /// The fields end before or behind the end of the record.
    #[error("record's size does not match its fields")]
    Size,
    /// Bytes follow the last record.
    #[error("bytes follow the last record")]
    Trailing,
}

/// Why the records of a batch cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordsError {
    /// The codec bits name none.
    #[error(transparent)]
    Codec(#[from] UnknownCodec),
    /// The body cannot be decompressed within the limit.
    #[error(transparent)]
    Compression(#[from] CompressionError),
    /// The tail is shorter than its header.
    #[error("batch has no room for its header")]
    Cut,
}

/// One decoded record, shared with the buffer it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Unused by Kafka, 0.
    pub attributes: i8,
    /// Timestamp, ms; the batch's append time for LogAppendTime.
    pub timestamp: i64,
    /// Offset in the partition.
    pub offset: i64,
    /// Key, if any.
    pub key: Option<Bytes>,
    /// Value, `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Headers in order.
    pub headers: Vec<Header>,
}

/// One header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Key; UTF-8 by convention, not checked.
    pub key: Bytes,
    /// Value, if any.
    pub value: Option<Bytes>,
}

/// A record to be encoded; offset and timestamp delta come from the batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewRecord<'a> {
    /// Timestamp, ms.
    pub timestamp: i64,
    /// Key, if any.
    pub key: Option<&'a [u8]>,
    /// Value, `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Headers: key and value.
    pub headers: &'a [(&'a [u8], Option<&'a [u8]>)],
}

impl NewRecord<'_> {
    /// No fewer bytes than the encoded record takes.
    pub fn encoded_bytes_max(&self) -> usize {
        let bytes = |field: Option<&[u8]>| field.map_or(0, <[u8]>::len);
        let headers: usize = self.headers.iter().map(|(key, value)| key.len() + bytes(*value) + 10).sum();
        // Size, attributes, varlong, four varints.
        5 + 1 + 10 + 4 * 5 + bytes(self.key) + bytes(self.value) + headers
    }
}

/// Appends a zigzag varint.
pub(crate) fn put_varlong(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Bytes of a zigzag varint.
fn varlong_bytes(value: i64) -> usize {
    let zigzag = ((value << 1) ^ (value >> 63)) as u64;
    (64 - (zigzag | 1).leading_zeros() as usize).div_ceil(7)
}

fn optional_bytes(field: Option<&[u8]>) -> usize {
    field.map_or(1, |bytes| varlong_bytes(bytes.len() as i64) + bytes.len())
}

fn put_optional(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        None => put_varlong(out, -1),
        Some(bytes) => {
            put_varlong(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}

/// Encodes a record at the end of `out`. Lengths must fit 31 bits; `BatchBuilder` sees to that.
pub(crate) fn encode(out: &mut Vec<u8>, timestamp_delta: i64, offset_delta: i32, record: &NewRecord<'_>) {
    let headers: usize =
        record.headers.iter().map(|(key, value)| optional_bytes(Some(key)) + optional_bytes(*value)).sum();
    let size = 1
        + varlong_bytes(timestamp_delta)
        + varlong_bytes(i64::from(offset_delta))
        + optional_bytes(record.key)
        + optional_bytes(record.value)
        + varlong_bytes(record.headers.len() as i64)
        + headers;
    out.reserve(size + 5);
    put_varlong(out, size as i64);
    out.push(0);
    put_varlong(out, timestamp_delta);
    put_varlong(out, i64::from(offset_delta));
    put_optional(out, record.key);
    put_optional(out, record.value);
    put_varlong(out, record.headers.len() as i64);
    for (key, value) in record.headers {
        put_optional(out, Some(key));
        put_optional(out, *value);
    }
}

/// Iterator over the records of one batch; ends behind the first error.
#[derive(Clone, Debug)]
pub struct RecordIter {
    body: Bytes,
    at: usize,
    left: i32,
    base_offset: i64,
    base_timestamp: i64,
    /// Set for LogAppendTime: the timestamp of every record.
    append_time: Option<i64>,
}

impl RecordIter {
    /// Iterates over a body that is not compressed (any more).
    pub fn new(header: &BatchHeader, body: Bytes) -> Self {
        let append_time = match header.timestamp_type() {
            TimestampType::CreateTime => None,
            TimestampType::LogAppendTime => Some(header.max_timestamp),
        };
        Self {
            body,
            at: 0,
            left: header.records_count,
            base_offset: header.base_offset,
            base_timestamp: header.base_timestamp,
            append_time,
        }
    }

    fn shared(&self, range: Option<std::ops::Range<usize>>) -> Option<Bytes> {
        range.map(|range| self.body.slice(range))
    }

    #[inline]
    fn decode(&mut self) -> Result<Record, RecordError> {
        let mut cursor = Cursor::at(&self.body, self.at);
        let raw = cursor.record()?;
        // most records have no headers
        let headers = if raw.headers_count == 0 { Vec::new() } else { self.headers(&raw)? };
        let record = Record {
            attributes: raw.attributes,
            timestamp: self
                .append_time
                .unwrap_or_else(|| self.base_timestamp.wrapping_add(raw.timestamp_delta)),
            offset: self.base_offset.wrapping_add(i64::from(raw.offset_delta)),
            key: self.shared(raw.key),
            value: self.shared(raw.value),
            headers,
        };
        self.at = raw.end;
        Ok(record)
    }

    fn headers(&self, raw: &RawRecord) -> Result<Vec<Header>, RecordError> {
        let mut cursor = Cursor::at(&self.body, raw.headers_at);
        let headers = (0..raw.headers_count).map(|_| {
            let (key, value) = cursor.header()?;
            Ok(Header { key: self.body.slice(key), value: self.shared(value) })
        });
        headers.collect()
    }
}

impl Iterator for RecordIter {
    type Item = Result<Record, RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            let trailing = self.at < self.body.len();
            self.at = self.body.len();
            return trailing.then_some(Err(RecordError::Trailing));
        }
        self.left -= 1;
        let record = self.decode();
        if record.is_err() {
            self.left = 0;
            self.at = self.body.len();
        }
        Some(record)
    }
}

/// The body of a batch: what follows the header in its tail, decompressed into at most `limit_bytes`.
/// Shared when it is not compressed (and then not limited).
pub fn body_of(header: &BatchHeader, tail: &Bytes, limit_bytes: usize) -> Result<Bytes, RecordsError> {
    if tail.len() < TAIL_HEADER_BYTES {
        return Err(RecordsError::Cut);
    }
    let body = tail.slice(TAIL_HEADER_BYTES..);
    match header.codec()? {
        Codec::None => Ok(body),
        codec => Ok(compression::decompress(codec, &body, limit_bytes)?),
    }
}

/// The records of a batch; a compressed body is decompressed into at most `limit_bytes`.
pub fn records_of(
    header: &BatchHeader,
    tail: &Bytes,
    limit_bytes: usize,
) -> Result<RecordIter, RecordsError> {
    Ok(RecordIter::new(header, body_of(header, tail, limit_bytes)?))
}
