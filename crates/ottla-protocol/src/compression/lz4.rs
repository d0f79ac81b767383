//! LZ4 frames, format version 1, with independent blocks, as Kafka's clients write them.
//!
//! Read: one frame, with or without content size, block checksums and content checksum, all of which are
//! verified. Refused: dependent blocks and dictionaries (Java refuses them too), skippable and legacy frames,
//! bytes behind the frame. Written: what Java writes, blocks of 64 KiB and no optional field.

use lz4_flex::block::{
    CompressTable, DecompressError, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use super::{CompressionError, reserve_within};

const MAGIC: u32 = 0x184d_2204;
/// Version 1 in the two top bits.
const FLAG_VERSION: u8 = 0x40;
const FLAG_VERSION_MASK: u8 = 0xc0;
const FLAG_INDEPENDENT: u8 = 0x20;
const FLAG_BLOCK_CHECKSUM: u8 = 0x10;
const FLAG_CONTENT_SIZE: u8 = 0x08;
const FLAG_CONTENT_CHECKSUM: u8 = 0x04;
const FLAG_RESERVED: u8 = 0x02;
const FLAG_DICTIONARY: u8 = 0x01;
/// In a block's length: the block is stored as it is.
const BLOCK_STORED: u32 = 0x8000_0000;
/// Block size code and size of what is written.
const WRITE_BLOCK_CODE: u8 = 4;
const WRITE_BLOCK_BYTES: usize = 64 * 1024;
/// A byte of a block makes at most this many.
const EXPANSION_MAX: usize = 255;

const fn corrupt(what: &'static str) -> CompressionError {
    CompressionError::Corrupt(what)
}

pub(super) fn compress(data: &[u8], out: &mut Vec<u8>) {
    let descriptor = [FLAG_VERSION | FLAG_INDEPENDENT, WRITE_BLOCK_CODE << 4];
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&descriptor);
    out.push(descriptor_checksum(&descriptor));
    let mut table = CompressTable::default();
    for block in data.chunks(WRITE_BLOCK_BYTES) {
        let start = out.len();
        out.resize(start + 4 + get_maximum_output_size(block.len()), 0);
        let (length, room) = out
            .get_mut(start..)
            .and_then(<[u8]>::split_first_chunk_mut::<4>)
            .expect("the buffer was grown for the block");
        let written = compress_into_with_table(block, room, &mut table)
            .expect("the buffer holds the largest possible block");
        if written < block.len() {
            *length = (written as u32).to_le_bytes();
            out.truncate(start + 4 + written);
        } else {
            *length = (block.len() as u32 | BLOCK_STORED).to_le_bytes();
            out.truncate(start + 4);
            out.extend_from_slice(block);
        }
    }
    out.extend_from_slice(&[0; 4]);
}

/// The fields of a frame's descriptor.
struct Descriptor {
    flags: u8,
    block_bytes_max: usize,
    content_bytes: Option<u64>,
}

pub(super) fn decompress(data: &[u8], limit_bytes: usize) -> Result<Vec<u8>, CompressionError> {
    let mut rest = data;
    let descriptor = descriptor(&mut rest)?;
    let mut out = Vec::new();
    if let Some(bytes) = descriptor.content_bytes {
        if bytes > rest.len().saturating_mul(EXPANSION_MAX) as u64 {
            return Err(corrupt("lz4 frame cannot hold what it claims"));
        }
        if bytes > limit_bytes as u64 {
            return Err(CompressionError::TooLarge { limit_bytes });
        }
        out.reserve_exact(bytes as usize);
    }
    loop {
        let head = take_u32(&mut rest)?;
        if head == 0 {
            break;
        }
        let block = take(&mut rest, (head & !BLOCK_STORED) as usize)?;
        if block.len() > descriptor.block_bytes_max {
            return Err(corrupt("lz4 block is larger than its frame allows"));
        }
        if descriptor.flags & FLAG_BLOCK_CHECKSUM != 0 && take_u32(&mut rest)? != xxh32(block) {
            return Err(corrupt("lz4 block has a wrong checksum"));
        }
        if head & BLOCK_STORED != 0 {
            append_stored(block, &mut out, limit_bytes)?;
        } else {
            append_compressed(block, &mut out, descriptor.block_bytes_max, limit_bytes)?;
        }
    }
    if descriptor.content_bytes.is_some_and(|bytes| bytes != out.len() as u64) {
        return Err(corrupt("lz4 frame has another size than it says"));
    }
    if descriptor.flags & FLAG_CONTENT_CHECKSUM != 0 && take_u32(&mut rest)? != xxh32(&out) {
        return Err(corrupt("lz4 frame has a wrong checksum"));
    }
    if rest.is_empty() { Ok(out) } else { Err(corrupt("bytes follow the lz4 frame")) }
}

fn descriptor(rest: &mut &[u8]) -> Result<Descriptor, CompressionError> {
    if take_u32(rest)? != MAGIC {
        return Err(corrupt("no lz4 frame"));
    }
    let start = *rest;
    let [flags, sizes] = take_array(rest)?;
    if flags & FLAG_VERSION_MASK != FLAG_VERSION || flags & FLAG_RESERVED != 0 || sizes & 0x8f != 0 {
        return Err(corrupt("lz4 frame of another version"));
    }
    if flags & FLAG_INDEPENDENT == 0 || flags & FLAG_DICTIONARY != 0 {
        return Err(corrupt("lz4 frame with dependent blocks or a dictionary"));
    }
    let block_bytes_max = match sizes >> 4 {
        4 => 64 * 1024,
        5 => 256 * 1024,
        6 => 1024 * 1024,
        7 => 4 * 1024 * 1024,
        _ => return Err(corrupt("lz4 frame with an unknown block size")),
    };
    let content_bytes = match flags & FLAG_CONTENT_SIZE {
        0 => None,
        _ => Some(u64::from_le_bytes(take_array(rest)?)),
    };
    let summed = start.get(..start.len() - rest.len()).unwrap_or_default();
    let [checksum] = take_array(rest)?;
    if checksum != descriptor_checksum(summed) {
        return Err(corrupt("lz4 frame header has a wrong checksum"));
    }
    Ok(Descriptor { flags, block_bytes_max, content_bytes })
}

fn append_stored(block: &[u8], out: &mut Vec<u8>, limit_bytes: usize) -> Result<(), CompressionError> {
    let needed = out.len().saturating_add(block.len());
    if needed > limit_bytes {
        return Err(CompressionError::TooLarge { limit_bytes });
    }
    reserve_within(out, needed, limit_bytes);
    out.extend_from_slice(block);
    Ok(())
}

fn append_compressed(
    block: &[u8],
    out: &mut Vec<u8>,
    block_bytes_max: usize,
    limit_bytes: usize,
) -> Result<(), CompressionError> {
    let start = out.len();
    let possible = block_bytes_max.min(block.len().saturating_mul(EXPANSION_MAX));
    let room = possible.min(limit_bytes - start);
    reserve_within(out, start + room, limit_bytes);
    out.resize(start + room, 0);
    match decompress_into(block, out.get_mut(start..).unwrap_or_default()) {
        Ok(written) => {
            out.truncate(start + written);
            Ok(())
        }
        Err(DecompressError::OutputTooSmall { .. }) if room < possible => {
            Err(CompressionError::TooLarge { limit_bytes })
        }
        Err(_) => Err(corrupt("lz4 block")),
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], CompressionError> {
    let (taken, behind) = rest.split_at_checked(length).ok_or(corrupt("lz4 frame is cut"))?;
    *rest = behind;
    Ok(taken)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], CompressionError> {
    let (taken, behind) = rest.split_first_chunk().ok_or(corrupt("lz4 frame is cut"))?;
    *rest = behind;
    Ok(*taken)
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, CompressionError> {
    take_array(rest).map(u32::from_le_bytes)
}

/// The second byte of the descriptor's sum.
fn descriptor_checksum(descriptor: &[u8]) -> u8 {
    xxh32(descriptor).to_le_bytes()[1]
}

/// XXH32 with seed 0.
pub(super) fn xxh32(data: &[u8]) -> u32 {
    const PRIME_1: u32 = 0x9e37_79b1;
    const PRIME_2: u32 = 0x85eb_ca77;
    const PRIME_3: u32 = 0xc2b2_ae3d;
    const PRIME_4: u32 = 0x27d4_eb2f;
    const PRIME_5: u32 = 0x1656_67b1;
    let (stripes, rest) = data.as_chunks::<16>();
    let mut sum = if stripes.is_empty() {
        PRIME_5
    } else {
        let mut lanes = [PRIME_1.wrapping_add(PRIME_2), PRIME_2, 0, 0u32.wrapping_sub(PRIME_1)];
        for stripe in stripes {
            let (words, _) = stripe.as_chunks::<4>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                let mixed = lane.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIME_2));
                *lane = mixed.rotate_left(13).wrapping_mul(PRIME_1);
            }
        }
        lanes.iter().zip([1, 7, 12, 18]).fold(0u32, |sum, (lane, by)| sum.wrapping_add(lane.rotate_left(by)))
    };
    sum = sum.wrapping_add(data.len() as u32);
    let (words, bytes) = rest.as_chunks::<4>();
    for word in words {
        sum = sum.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIME_3));
        sum = sum.rotate_left(17).wrapping_mul(PRIME_4);
    }
    for byte in bytes {
        sum = sum.wrapping_add(u32::from(*byte).wrapping_mul(PRIME_5));
        sum = sum.rotate_left(11).wrapping_mul(PRIME_1);
    }
    sum = (sum ^ (sum >> 15)).wrapping_mul(PRIME_2);
    sum = (sum ^ (sum >> 13)).wrapping_mul(PRIME_3);
    sum ^ (sum >> 16)
}
