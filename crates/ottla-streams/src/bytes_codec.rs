//! Reading and writing the small binary records of this crate: bounded, and safe on any bytes.
//!
//! Little-endian numbers, strings with a 16-bit length, a CRC-32C behind all of it. Every read checks what is left,
//! so no input panics or allocates more than it holds. Used by [`crate::meta`] and [`crate::anchor`].

use crc_fast::{CrcAlgorithm, checksum};

/// Bytes of the checksum behind a record.
pub(crate) const CRC_BYTES: usize = 4;

/// The bytes are not a record of ours, or are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("it ends too early")]
    Short,
    /// They go on behind the end.
    #[error("it has {0} bytes too many")]
    Long(usize),
    /// The checksum differs.
    #[error("its checksum does not fit")]
    Checksum,
    /// A string is not UTF-8.
    #[error("a text in it is not UTF-8")]
    Text,
}

/// CRC-32C of the bytes.
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, bytes)).expect("a CRC-32 has 32 bits")
}

/// Takes the checksum off the end and compares it.
pub(crate) fn checked(bytes: &[u8]) -> Result<&[u8], Malformed> {
    let (body, stored) = bytes.split_last_chunk::<CRC_BYTES>().ok_or(Malformed::Short)?;
    if crc(body) == u32::from_le_bytes(*stored) { Ok(body) } else { Err(Malformed::Checksum) }
}

/// Appends.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A number of elements. All lists here are bounded far below 65,536 by the topology.
    pub(crate) fn count(&mut self, value: usize) {
        self.u16(u16::try_from(value).expect("a task has fewer than 65,536 stores, inputs and timers"));
    }

    /// A text; names in Kafka have at most 249 bytes, ours are checked when a topology is built.
    pub(crate) fn text(&mut self, value: &str) {
        self.count(value.len());
        self.0.extend_from_slice(value.as_bytes());
    }

    /// Appends the checksum of everything so far.
    pub(crate) fn sealed(mut self) -> Vec<u8> {
        let crc = crc(&self.0);
        self.0.extend_from_slice(&crc.to_le_bytes());
        self.0
    }
}

/// Takes from the front.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.chunk().map(u16::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.chunk().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.chunk().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.chunk().map(i64::from_le_bytes)
    }

    /// A list: each element takes at least one byte, so its length is bounded by what is there.
    pub(crate) fn list<T>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = usize::from(self.u16()?);
        if count > self.0.len() {
            return Err(Malformed::Short);
        }
        (0..count).map(|_| element(self)).collect()
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let len = usize::from(self.u16()?);
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        std::str::from_utf8(head).map(str::to_owned).map_err(|_| Malformed::Text)
    }

    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Long(self.0.len())) }
    }
}
