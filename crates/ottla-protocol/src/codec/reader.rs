//! Reads the wire's primitive types out of one shared buffer, within an allocation budget.
//!
//! Every length and count is checked against the bytes that are left before anything is made of it. Arrays are
//! charged to the budget with the size of their elements in memory; strings and bytes cost nothing, they share
//! the buffer. After an error the position is unspecified: give the reader up.

use bytes::Bytes;

use super::error::DecodeError;
use super::tags::TaggedFields;
use super::wire::Wire;
use crate::types::{Text, Uuid};

/// Memory that one message may take when no other budget is given: 64 MiB.
pub const DEFAULT_BUDGET_BYTES: usize = 64 << 20;

/// Longest string on the wire, in bytes.
const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// A position in a buffer.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    position: usize,
    /// Reading stops here: the end of the buffer, or of the tagged field that is being read.
    end: usize,
    budget: usize,
    budget_left: usize,
    flexible: bool,
}

macro_rules! fixed {
    ($(#[$doc:meta] $name:ident: $type:ty;)*) => { $(
        #[$doc]
        pub fn $name(&mut self) -> Result<$type, DecodeError> {
            self.array_of().map(<$type>::from_be_bytes)
        }
    )* };
}

impl Reader {
    /// Reads `bytes` from the start, with the default budget.
    pub fn new(bytes: Bytes) -> Self {
        Self::with_budget(bytes, DEFAULT_BUDGET_BYTES)
    }

    /// Reads `bytes` from the start; all arrays together may take `budget_bytes` of memory.
    pub fn with_budget(bytes: Bytes, budget_bytes: usize) -> Self {
        let end = bytes.len();
        Self { bytes, position: 0, end, budget: budget_bytes, budget_left: budget_bytes, flexible: false }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.end - self.position
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether lengths are compact and structures end with tagged fields.
    pub fn is_flexible(&self) -> bool {
        self.flexible
    }

    /// Chooses the encoding of lengths for what is read next. [`super::Message::decode`] does it itself.
    pub fn set_flexible(&mut self, flexible: bool) {
        self.flexible = flexible;
    }

    /// What is left, shared; the reader is then at its end.
    pub fn take_rest(&mut self) -> Bytes {
        let rest = self.bytes.slice(self.position..self.end);
        self.position = self.end;
        rest
    }

    fn advance(&mut self, count: usize) -> Result<usize, DecodeError> {
        let left = self.remaining();
        if count > left {
            return Err(DecodeError::UnexpectedEnd { wanted: count, left });
        }
        let start = self.position;
        self.position += count;
        Ok(start)
    }

    /// The next `count` bytes, copied nowhere.
    pub fn slice(&mut self, count: usize) -> Result<&[u8], DecodeError> {
        let start = self.advance(count)?;
        Ok(self.bytes.get(start..start + count).expect("advance checked the end"))
    }

    /// The next `count` bytes, shared.
    pub fn raw(&mut self, count: usize) -> Result<Bytes, DecodeError> {
        let start = self.advance(count)?;
        Ok(self.bytes.slice(start..start + count))
    }

    fn array_of<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let slice = self.slice(N)?;
        Ok(*slice.first_chunk().expect("slice has the length asked for"))
    }

    fixed! {
        /// An 8-bit integer.
        i8: i8;
        /// A 16-bit integer.
        i16: i16;
        /// An unsigned 16-bit integer.
        u16: u16;
        /// A 32-bit integer.
        i32: i32;
        /// An unsigned 32-bit integer.
        u32: u32;
        /// A 64-bit integer.
        i64: i64;
        /// A 64-bit floating point number.
        f64: f64;
        /// An unsigned byte.
        u8: u8;
    }

    /// A boolean; any byte but 0 is true.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        self.u8().map(|byte| byte != 0)
    }

    /// An id of 16 bytes.
    pub fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        self.array_of().map(Uuid)
    }

    /// An unsigned integer of one to five bytes, seven bits each, lowest first.
    pub fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let value = self.varint_bits(5)?;
        u32::try_from(value).map_err(|_| DecodeError::BadVarint)
    }

    /// A signed (zigzag) integer of one to five bytes.
    pub fn varint(&mut self) -> Result<i32, DecodeError> {
        let value = self.unsigned_varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A signed (zigzag) integer of one to ten bytes.
    pub fn varlong(&mut self) -> Result<i64, DecodeError> {
        let value = self.varint_bits(10)?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn varint_bits(&mut self, bytes_max: u32) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for index in 0..bytes_max {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if index == 9 && bits > 1 {
                return Err(DecodeError::BadVarint);
            }
            value |= bits << (7 * index);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::BadVarint)
    }

    /// A length in the encoding of the version: `None` for null.
    fn length(&mut self, short: bool) -> Result<Option<usize>, DecodeError> {
        let length = if self.flexible {
            i64::from(self.unsigned_varint()?) - 1
        } else if short {
            i64::from(self.i16()?)
        } else {
            i64::from(self.i32()?)
        };
        match length {
            -1 => Ok(None),
            0..=0x7fff_ffff => Ok(Some(length as usize)),
            _ => Err(DecodeError::BadLength(length)),
        }
    }

    /// A string that may be null.
    pub fn nullable_string(&mut self) -> Result<Option<Text>, DecodeError> {
        match self.length(true)? {
            None => Ok(None),
            Some(length) => self.text(length).map(Some),
        }
    }

    /// A string that may be null, with a length of two bytes whatever the version.
    pub fn inflexible_nullable_string(&mut self) -> Result<Option<Text>, DecodeError> {
        let flexible = std::mem::replace(&mut self.flexible, false);
        let text = self.nullable_string();
        self.flexible = flexible;
        text
    }

    fn text(&mut self, length: usize) -> Result<Text, DecodeError> {
        if length > STRING_BYTES_MAX {
            return Err(DecodeError::BadLength(length as i64));
        }
        Text::from_utf8(self.raw(length)?).map_err(|_| DecodeError::NotUtf8)
    }

    /// Bytes that may be null, shared.
    pub fn nullable_bytes(&mut self) -> Result<Option<Bytes>, DecodeError> {
        match self.length(false)? {
            None => Ok(None),
            Some(length) => self.raw(length).map(Some),
        }
    }

    /// An array that may be null.
    pub fn nullable_array<T: Wire>(&mut self, version: i16) -> Result<Option<Vec<T>>, DecodeError> {
        let Some(count) = self.length(false)? else { return Ok(None) };
        let left = self.remaining();
        if count > left / T::SMALLEST {
            return Err(DecodeError::BadCount { count, left });
        }
        self.charge(count.saturating_mul(size_of::<T>()))?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(T::read(self, version)?);
        }
        Ok(Some(elements))
    }

    /// Takes `bytes` of memory from the budget.
    pub fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.budget_left = self.budget_left.checked_sub(bytes).ok_or(DecodeError::OverBudget(self.budget))?;
        Ok(())
    }

    /// Tagged fields of a structure that knows none of them.
    pub(crate) fn tagged_fields(&mut self) -> Result<TaggedFields, DecodeError> {
        let mut unknown = TaggedFields::EMPTY;
        if !self.flexible {
            return Ok(unknown);
        }
        for _ in 0..self.tag_count()? {
            let (tag, outer) = self.begin_tag()?;
            unknown.push(tag, self.tag_body()?);
            self.end_tag(outer)?;
        }
        Ok(unknown)
    }

    /// How many tagged fields follow; 0 in versions without them.
    pub(crate) fn tag_count(&mut self) -> Result<u32, DecodeError> {
        if !self.flexible {
            return Ok(0);
        }
        let count = self.unsigned_varint()?;
        let left = self.remaining();
        // Each has a tag and a size at least.
        if count as usize > left / 2 {
            return Err(DecodeError::BadCount { count: count as usize, left });
        }
        Ok(count)
    }

    /// Enters a tagged field: its tag, and the end to give back to [`Self::end_tag`].
    pub(crate) fn begin_tag(&mut self) -> Result<(u32, usize), DecodeError> {
        let tag = self.unsigned_varint()?;
        let size = self.unsigned_varint()? as usize;
        let left = self.remaining();
        if size > left {
            return Err(DecodeError::UnexpectedEnd { wanted: size, left });
        }
        let outer = std::mem::replace(&mut self.end, self.position + size);
        Ok((tag, outer))
    }

    /// The body of an unknown tagged field; charged, since a list of small ones takes more than its bytes.
    pub(crate) fn tag_body(&mut self) -> Result<Bytes, DecodeError> {
        // The first makes a list with room for four; a growing list is there twice while it moves.
        self.charge(5 * size_of::<(u32, Bytes)>())?;
        Ok(self.take_rest())
    }

    /// The body of a tagged structure that may be null: here 0 stands for null, elsewhere -1 does.
    pub(crate) fn tagged_structure<T: Wire>(&mut self, version: i16) -> Result<Option<Box<T>>, DecodeError> {
        if self.unsigned_varint()? == 0 {
            return Ok(None);
        }
        self.charge(size_of::<T>())?;
        T::read(self, version).map(|structure| Some(Box::new(structure)))
    }

    /// Leaves a tagged field, which must have been read to its end.
    pub(crate) fn end_tag(&mut self, outer: usize) -> Result<(), DecodeError> {
        if self.position != self.end {
            return Err(DecodeError::BadTagSize(self.remaining() as u32));
        }
        self.end = outer;
        Ok(())
    }
}
