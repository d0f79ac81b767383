//! Walks a buffer of concatenated batches without copying: a fetched set of records, a log extent.
//!
//! Yields batches until the end of the buffer or the first error. A cut batch at the end is an error here;
//! a reader of Fetch responses, where it is legal, takes `BatchError::Cut` as the end.

use bytes::Bytes;

use super::{BATCH_HEAD_BYTES, BatchError, BatchHeader};

/// One whole batch: its parsed header and its bytes, shared with the buffer it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The parsed header.
    pub header: BatchHeader,
    /// Every byte of the batch.
    pub bytes: Bytes,
}

impl Batch {
    /// Takes the batch at the start of `bytes`; bytes behind it are left out. The CRC is not checked.
    pub fn parse(bytes: &Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(bytes)?;
        let needed_bytes = header.batch_bytes();
        if needed_bytes > bytes.len() {
            return Err(BatchError::Cut { needed_bytes, available_bytes: bytes.len() });
        }
        Ok(Self { header, bytes: bytes.slice(..needed_bytes) })
    }

    /// The batch from byte 21 on, shared.
    pub fn tail(&self) -> Bytes {
        self.bytes.slice(BATCH_HEAD_BYTES..)
    }

    /// Checks the CRC.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        self.header.check_crc(self.bytes.get(BATCH_HEAD_BYTES..).unwrap_or_default())
    }
}

/// Iterator over the batches of a buffer; ends behind the first error.
#[derive(Clone, Debug)]
pub struct BatchIter {
    rest: Bytes,
}

impl BatchIter {
    /// Walks `bytes` from its start.
    pub fn new(bytes: Bytes) -> Self {
        Self { rest: bytes }
    }
}

impl Iterator for BatchIter {
    type Item = Result<Batch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = Batch::parse(&self.rest);
        match &batch {
            Ok(batch) => self.rest = self.rest.slice(batch.bytes.len()..),
            Err(_) => self.rest = Bytes::new(),
        }
        Some(batch)
    }
}
