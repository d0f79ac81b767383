//! The position in a log file, as bytes.

use bytes::Bytes;

use super::{File, FileFacts, FileIdentity, HEAD_BYTES_MAX, Position, files, head_of, io};
use crate::bytes_codec::{Malformed, Reader, Writer, checked};

const VERSION: u8 = 1;

/// See the module of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilePosition {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Behind the last whole line.
    pub(super) offset: u64,
    /// Checksum of the first [`FilePosition::head_bytes`] bytes.
    pub(super) head: u64,
    /// When the file had last been written as of the last read, ns.
    pub(super) modified_ns: i64,
    /// Counts the files of the log that were read.
    pub(super) generation: u64,
}

impl FilePosition {
    /// Files that were written earlier than this one have been read when it is begun.
    pub(super) fn at_start(facts: &FileFacts, generation: u64) -> Self {
        let FileFacts { identity: FileIdentity { device, inode }, modified_ns, .. } = *facts;
        Self { device, inode, offset: 0, head: head_of_nothing(), modified_ns, generation }
    }

    pub(super) fn identity(&self) -> FileIdentity {
        FileIdentity { device: self.device, inode: self.inode }
    }

    /// How many bytes of the file's beginning are compared: no more than what was read, since that will not change.
    pub(super) fn head_bytes(&self) -> usize {
        usize::try_from(self.offset).unwrap_or(usize::MAX).min(HEAD_BYTES_MAX)
    }

    pub(super) fn move_to(&mut self, offset: u64, file: &File) -> io::Result<()> {
        let compared = self.head_bytes();
        self.offset = offset;
        if self.head_bytes() != compared {
            self.head = head_of(file, self.head_bytes())?;
        }
        self.modified_ns = files::facts_of_open(file)?.modified_ns;
        Ok(())
    }

    pub(super) fn to_position(&self) -> Position {
        let mut out = Writer(vec![VERSION]);
        for number in [self.device, self.inode, self.offset, self.head, self.generation] {
            out.u64(number);
        }
        out.i64(self.modified_ns);
        Position(Bytes::from(out.sealed()))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader(checked(bytes)?);
        if input.u8()? != VERSION {
            return Err(Malformed::Checksum);
        }
        let found = Self {
            device: input.u64()?,
            inode: input.u64()?,
            offset: input.u64()?,
            head: input.u64()?,
            generation: input.u64()?,
            modified_ns: input.i64()?,
        };
        input.finish()?;
        Ok(found)
    }
}

fn head_of_nothing() -> u64 {
    super::checksum(super::CrcAlgorithm::Crc64Nvme, &[])
}
