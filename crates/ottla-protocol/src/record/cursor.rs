//! Reads varints and records from bytes, without allocating; every step is bounded by the bytes that are left.
//!
//! This is the one decoder of records: the produce check runs it over every record, `RecordIter` over it makes
//! shared slices of what it finds.

use std::ops::Range;

use super::RecordError;

/// A record's fields as they lie in the body; ranges are positions in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRecord {
    /// Unused by Kafka, 0.
    pub attributes: i8,
    /// Added to the batch's base timestamp, ms.
    pub timestamp_delta: i64,
    /// Added to the batch's base offset.
    pub offset_delta: i32,
    /// Key, if any.
    pub key: Option<Range<usize>>,
    /// Value, if any.
    pub value: Option<Range<usize>>,
    /// Where the first header is.
    pub headers_at: usize,
    /// Number of headers; all of them were checked.
    pub headers_count: i32,
    /// One past the record.
    pub end: usize,
}

/// A position in a body.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// At a position of `bytes`; behind the end reads as the end.
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Where it is.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Whether every byte was read.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline(always)]
    fn byte(&mut self) -> Result<u8, RecordError> {
        let byte = *self.bytes.get(self.at).ok_or(RecordError::Cut)?;
        self.at += 1;
        Ok(byte)
    }

    /// A zigzag varint of at most 5 bytes.
    #[inline(always)] // most have one byte or two, and there are seven in each record
    pub fn varint(&mut self) -> Result<i32, RecordError> {
        let first = self.byte()?;
        let raw = if first < 0x80 {
            u32::from(first)
        } else {
            let second = self.byte()?;
            let raw = u32::from(first & 0x7f) | u32::from(second & 0x7f) << 7;
            if second < 0x80 { raw } else { self.long_varint(raw)? }
        };
        Ok((raw >> 1) as i32 ^ -((raw & 1) as i32))
    }

    /// What follows the first two bytes, which gave `raw`.
    fn long_varint(&mut self, mut raw: u32) -> Result<u32, RecordError> {
        for shift in [14, 21] {
            let byte = self.byte()?;
            raw |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(raw);
            }
        }
        let byte = self.byte()?;
        if byte > 0x0f {
            return Err(RecordError::Varint);
        }
        Ok(raw | u32::from(byte) << 28)
    }

    /// A zigzag varint of at most 10 bytes.
    #[inline]
    pub fn varlong(&mut self) -> Result<i64, RecordError> {
        let first = self.byte()?;
        let raw = if first < 0x80 { u64::from(first) } else { self.long_varlong(first)? };
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    fn long_varlong(&mut self, first: u8) -> Result<u64, RecordError> {
        let mut raw = u64::from(first & 0x7f);
        for shift in (7..63).step_by(7) {
            let byte = self.byte()?;
            raw |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(raw);
            }
        }
        let byte = self.byte()?;
        if byte > 1 {
            return Err(RecordError::Varint);
        }
        Ok(raw | u64::from(byte) << 63)
    }

    /// Steps over `length` bytes of which all must be there.
    #[inline]
    fn take(&mut self, length: usize) -> Result<Range<usize>, RecordError> {
        let end =
            self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or(RecordError::Length)?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    /// A length and that many bytes; -1 is none.
    #[inline]
    fn optional(&mut self) -> Result<Option<Range<usize>>, RecordError> {
        match self.varint()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| RecordError::Length)?;
                self.take(length).map(Some)
            }
        }
    }

    /// One header: key and value.
    #[inline]
    pub fn header(&mut self) -> Result<(Range<usize>, Option<Range<usize>>), RecordError> {
        let key = self.optional()?.ok_or(RecordError::Length)?;
        Ok((key, self.optional()?))
    }

    /// One record, all of it checked; the cursor stands behind it.
    #[inline]
    pub fn record(&mut self) -> Result<RawRecord, RecordError> {
        let size = usize::try_from(self.varint()?).map_err(|_| RecordError::Length)?;
        let end = self.at.checked_add(size).ok_or(RecordError::Length)?;
        // Inside the record, so that no field can reach into the next one.
        let mut inside = Cursor { bytes: self.bytes.get(..end).ok_or(RecordError::Cut)?, at: self.at };
        let attributes = inside.byte()? as i8;
        let timestamp_delta = inside.varlong()?;
        let offset_delta = inside.varint()?;
        let key = inside.optional()?;
        let value = inside.optional()?;
        let headers_count = inside.varint()?;
        let headers_at = inside.at;
        if headers_count != 0 {
            inside.skip_headers(headers_count)?;
        }
        if inside.at != end {
            return Err(RecordError::Size);
        }
        self.at = end;
        Ok(RawRecord {
            attributes,
            timestamp_delta,
            offset_delta,
            key,
            value,
            headers_at,
            headers_count,
            end,
        })
    }

    fn skip_headers(&mut self, count: i32) -> Result<(), RecordError> {
        let count = usize::try_from(count).map_err(|_| RecordError::Length)?;
        // Two bytes are the least a header takes: a count beyond that is a lie, found before the loop.
        if count > self.bytes.len().saturating_sub(self.at) / 2 {
            return Err(RecordError::Length);
        }
        for _ in 0..count {
            self.header()?;
        }
        Ok(())
    }
}
