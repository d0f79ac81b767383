//! The header block of a log file: who it is, and how the file in front of it ended.
//!
//! The block is written and synced under a temporary name, so a file of the log never lacks it. It holds two copies
//! of the same 128 bytes in different sectors: a flipped bit in one does no harm. The names of the previous file's
//! nonce, sealed length and last frame make the files one chain: a file of another folder, a swapped or a missing
//! one is noticed without reading a frame. A file that was rewritten (`FileId::is_data`) stands beside the chain and
//! names none.

use crate::layout::{BLOCK_BYTES, FORMAT_VERSION, Fields, crc32c, is_known};
use crate::options::{Durability, FileId, FrameSequence};

const MAGIC: &[u8; 8] = b"OTTLALOG";
const HEADER_BYTES: usize = 128;
const SECOND_COPY_AT: usize = 2048;

/// How a file ended. All zero in front of the first file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) file: FileId,
    pub(crate) nonce: u64,
    /// Bytes of header block and frames; what lies behind is not part of the log.
    pub(crate) length: u64,
    /// The last frame in it or in a file before it.
    pub(crate) last_sequence: FrameSequence,
    /// CRC of that frame's header.
    pub(crate) last_header_crc: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) shard_id: u32,
    /// Random number of the whole log, equal in all its files and snapshots.
    pub(crate) log_id: u64,
    pub(crate) file: FileId,
    /// Random number of this file; every frame in it repeats it.
    pub(crate) nonce: u64,
    /// The opening that began the file; every frame in it has this epoch.
    pub(crate) epoch: i32,
    /// How its frames are written. Without syncs a sound frame proves nothing about those in front of it.
    pub(crate) durability: Durability,
    pub(crate) previous: Seal,
}

/// Why a header block is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    Newer(u16),
    Damaged,
}

impl FileHeader {
    /// The whole block.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(HEADER_BYTES);
        copy.extend_from_slice(MAGIC);
        copy.extend_from_slice(&FORMAT_VERSION.to_be_bytes());
        copy.push(match self.durability {
            Durability::Fsync => 0,
            Durability::Os => 1,
        });
        copy.push(u8::from(self.file.is_data()));
        copy.extend_from_slice(&self.shard_id.to_be_bytes());
        copy.extend_from_slice(&self.log_id.to_be_bytes());
        copy.extend_from_slice(&self.file.0.to_be_bytes());
        copy.extend_from_slice(&self.nonce.to_be_bytes());
        copy.extend_from_slice(&self.epoch.to_be_bytes());
        copy.extend_from_slice(&self.previous.last_header_crc.to_be_bytes());
        copy.extend_from_slice(&self.previous.file.0.to_be_bytes());
        copy.extend_from_slice(&self.previous.nonce.to_be_bytes());
        copy.extend_from_slice(&self.previous.length.to_be_bytes());
        copy.extend_from_slice(&self.previous.last_sequence.0.to_be_bytes());
        copy.resize(HEADER_BYTES - 4, 0);
        copy.extend_from_slice(&crc32c(&copy).to_be_bytes());
        let mut block = vec![0; BLOCK_BYTES as usize];
        block[..HEADER_BYTES].copy_from_slice(&copy);
        block[SECOND_COPY_AT..SECOND_COPY_AT + HEADER_BYTES].copy_from_slice(&copy);
        block
    }

    /// Reads the block; the flag says that one of the two copies is damaged.
    pub(crate) fn decode(block: &[u8]) -> Result<(Self, bool), HeaderFault> {
        if block.len() < BLOCK_BYTES as usize {
            return Err(HeaderFault::Damaged);
        }
        let first = Self::decode_copy(&block[..HEADER_BYTES]);
        let second = Self::decode_copy(&block[SECOND_COPY_AT..SECOND_COPY_AT + HEADER_BYTES]);
        match (first, second) {
            (Ok(header), Ok(other)) if header == other => Ok((header, false)),
            (Ok(_), Ok(_)) => Err(HeaderFault::Damaged),
            (Ok(header), Err(_)) | (Err(_), Ok(header)) => Ok((header, true)),
            (Err(HeaderFault::Newer(version)), Err(HeaderFault::Newer(other))) if version == other => {
                Err(HeaderFault::Newer(version))
            }
            (Err(_), Err(_)) => Err(HeaderFault::Damaged),
        }
    }

    fn decode_copy(copy: &[u8]) -> Result<Self, HeaderFault> {
        let fields = Fields(copy);
        if &copy[..8] != MAGIC {
            return Err(HeaderFault::Damaged);
        }
        // Magic and version keep their places in every version to come.
        if fields.u16(8) > FORMAT_VERSION {
            return Err(HeaderFault::Newer(fields.u16(8)));
        }
        let sound = fields.u32(HEADER_BYTES - 4) == crc32c(&copy[..HEADER_BYTES - 4]);
        let is_data = FileId(fields.u64(24)).is_data();
        if !sound || !is_known(fields.u16(8)) || copy[11] != u8::from(is_data) {
            return Err(HeaderFault::Damaged);
        }
        Ok(Self {
            shard_id: fields.u32(12),
            log_id: fields.u64(16),
            file: FileId(fields.u64(24)),
            nonce: fields.u64(32),
            epoch: fields.i32(40),
            durability: if copy[10] == 0 { Durability::Fsync } else { Durability::Os },
            previous: Seal {
                last_header_crc: fields.u32(44),
                file: FileId(fields.u64(48)),
                nonce: fields.u64(56),
                length: fields.u64(64),
                last_sequence: FrameSequence(fields.u64(72)),
            },
        })
    }
}
