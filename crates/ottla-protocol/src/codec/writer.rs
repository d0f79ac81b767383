//! Writes the wire's primitive types into a rope: small things into one growing buffer, large ones shared.
//!
//! Writing does not fail at each call: the first error is kept, and [`super::Message::encode`] returns it. Who
//! writes strings or bytes by hand asks [`Writer::take_error`] at the end.

use bytes::{BufMut, Bytes, BytesMut};

use super::error::EncodeError;
use super::records::Records;
use super::tags::TaggedFields;
use crate::types::{Text, Uuid};

/// `Bytes` of at least this length are spliced into the rope instead of copied: 1 KiB.
pub const SPLICE_BYTES_MIN: usize = 1024;

/// Room made at once behind a spliced piece: 2 KiB.
const BLOCK_BYTES: usize = 2048;

/// The error codes in an answer and how often each is there; `NONE` (0) is not counted. Keeps the first four
/// different codes: what an answer holds of a fifth is counted under the fourth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorTally {
    codes: [(i16, u32); 4],
}

impl ErrorTally {
    /// The codes and their counts.
    pub fn iter(&self) -> impl Iterator<Item = (i16, u32)> {
        self.codes.into_iter().take_while(|(_, count)| *count > 0)
    }

    /// Whether the answer has no error.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn note(&mut self, code: i16) {
        let mut place = None;
        for slot in &mut self.codes {
            let is_it = slot.1 == 0 || slot.0 == code;
            place = Some(slot);
            if is_it {
                break;
            }
        }
        let slot = place.expect("there are four");
        *slot = (if slot.1 == 0 { code } else { slot.0 }, slot.1.saturating_add(1));
    }
}

/// A growing rope of bytes.
#[derive(Debug, Default)]
pub struct Writer {
    chunks: Vec<Bytes>,
    chunk_bytes: usize,
    current: BytesMut,
    flexible: bool,
    error: Option<EncodeError>,
    tally: ErrorTally,
}

impl Writer {
    /// An empty rope.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty rope whose buffer has room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { current: BytesMut::with_capacity(bytes), ..Self::default() }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.chunk_bytes + self.current.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether lengths are compact and structures end with tagged fields.
    pub fn is_flexible(&self) -> bool {
        self.flexible
    }

    /// Chooses the encoding of lengths for what is written next. [`super::Message::encode`] does it itself.
    pub fn set_flexible(&mut self, flexible: bool) {
        self.flexible = flexible;
    }

    /// The first error so far; it is then forgotten.
    pub fn take_error(&mut self) -> Option<EncodeError> {
        self.error.take()
    }

    /// Kafka's error codes written so far.
    pub fn error_tally(&self) -> ErrorTally {
        self.tally
    }

    /// A field with one of Kafka's error codes: 16 bits, and counted.
    pub fn error_code(&mut self, code: i16) {
        if code != 0 {
            self.tally.note(code);
        }
        self.i16(code);
    }

    /// Keeps an error unless there is one.
    pub(crate) fn fail(&mut self, error: EncodeError) {
        self.error.get_or_insert(error);
    }

    /// The chunks in order. Of no use after an error, see [`Self::take_error`].
    pub fn finish(mut self) -> Vec<Bytes> {
        self.flush();
        self.chunks
    }

    /// Everything in one buffer (shared when nothing was spliced).
    pub fn finish_bytes(self) -> Bytes {
        Records::from(self.finish()).to_bytes()
    }

    fn flush(&mut self) {
        if !self.current.is_empty() {
            let chunk = self.current.split().freeze();
            self.chunk_bytes += chunk.len();
            self.chunks.push(chunk);
        }
    }

    /// Makes room behind a spliced piece in blocks, so that many pieces do not cost an allocation each.
    fn make_room(&mut self) {
        if self.current.capacity() < BLOCK_BYTES / 8 {
            self.current.reserve(BLOCK_BYTES);
        }
    }

    /// Bytes without a length: shared from [`SPLICE_BYTES_MIN`] on, copied below.
    pub fn raw(&mut self, bytes: &Bytes) {
        if bytes.len() < SPLICE_BYTES_MIN {
            self.current.put_slice(bytes);
            return;
        }
        self.flush();
        self.chunk_bytes += bytes.len();
        self.chunks.push(bytes.clone());
        self.make_room();
    }

    /// Bytes without a length, copied.
    pub fn slice(&mut self, bytes: &[u8]) {
        self.current.put_slice(bytes);
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        self.current.put_u8(u8::from(value));
    }

    /// An unsigned byte.
    pub fn u8(&mut self, value: u8) {
        self.current.put_u8(value);
    }

    /// An 8-bit integer.
    pub fn i8(&mut self, value: i8) {
        self.current.put_i8(value);
    }

    /// A 16-bit integer.
    pub fn i16(&mut self, value: i16) {
        self.current.put_i16(value);
    }

    /// An unsigned 16-bit integer.
    pub fn u16(&mut self, value: u16) {
        self.current.put_u16(value);
    }

    /// A 32-bit integer.
    pub fn i32(&mut self, value: i32) {
        self.current.put_i32(value);
    }

    /// An unsigned 32-bit integer.
    pub fn u32(&mut self, value: u32) {
        self.current.put_u32(value);
    }

    /// A 64-bit integer.
    pub fn i64(&mut self, value: i64) {
        self.current.put_i64(value);
    }

    /// A 64-bit floating point number.
    pub fn f64(&mut self, value: f64) {
        self.current.put_f64(value);
    }

    /// An id of 16 bytes.
    pub fn uuid(&mut self, value: Uuid) {
        self.current.put_slice(&value.0);
    }

    /// An unsigned integer of one to five bytes.
    pub fn unsigned_varint(&mut self, value: u32) {
        self.unsigned_varlong(u64::from(value));
    }

    /// A signed (zigzag) integer of one to five bytes.
    pub fn varint(&mut self, value: i32) {
        self.unsigned_varint(((value << 1) ^ (value >> 31)).cast_unsigned());
    }

    /// A signed (zigzag) integer of one to ten bytes.
    pub fn varlong(&mut self, value: i64) {
        self.unsigned_varlong(((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    fn unsigned_varlong(&mut self, mut value: u64) {
        while value > 0x7f {
            self.current.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.current.put_u8(value as u8);
    }

    /// A length in the encoding of the version: `None` for null.
    pub(crate) fn length(&mut self, length: Option<usize>, short: bool) {
        let max = if short { i16::MAX as usize } else { i32::MAX as usize };
        let known = length.unwrap_or(0);
        if known > max {
            self.fail(EncodeError::TooLong(known));
        }
        if self.flexible {
            self.unsigned_varint(length.map_or(0, |length| (length as u32).wrapping_add(1)));
        } else if short {
            self.i16(length.map_or(-1, |length| length as i16));
        } else {
            self.i32(length.map_or(-1, |length| length as i32));
        }
    }

    /// A string that may be null.
    pub fn nullable_string(&mut self, text: Option<&Text>) {
        self.length(text.map(|text| text.as_bytes().len()), true);
        if let Some(text) = text {
            self.raw(text.as_bytes());
        }
    }

    /// A string that may be null, with a length of two bytes whatever the version.
    pub fn inflexible_nullable_string(&mut self, text: Option<&Text>) {
        let flexible = std::mem::replace(&mut self.flexible, false);
        self.nullable_string(text);
        self.flexible = flexible;
    }

    /// Bytes that may be null, shared when long.
    pub fn nullable_bytes(&mut self, bytes: Option<&Bytes>) {
        self.length(bytes.map(Bytes::len), false);
        if let Some(bytes) = bytes {
            self.raw(bytes);
        }
    }

    /// Records that may be null, shared when long.
    pub fn nullable_records(&mut self, records: Option<&Records>) {
        self.length(records.map(Records::len), false);
        if let Some(records) = records {
            records.chunks().iter().for_each(|chunk| self.raw(chunk));
        }
    }

    /// Tagged fields of a structure that knows none of them.
    pub(crate) fn tagged_fields(&mut self, unknown: &TaggedFields) {
        if self.flexible {
            if unknown.is_empty() {
                return self.u8(0);
            }
            super::TagWriter::new(self).finish(self, unknown);
        }
    }

    /// An error when a field is set that the version has not.
    pub(crate) fn refuse(&mut self, is_set: bool, field: &'static str, version: i16) {
        if is_set {
            self.fail(EncodeError::FieldNotInVersion { field, version });
        }
    }

    /// An error when a field is null that must not be.
    pub(crate) fn refuse_null(&mut self, is_fine: bool, field: &'static str) {
        if !is_fine {
            self.fail(EncodeError::Null(field));
        }
    }
}
