//! Snappy in its two forms: one raw block (librdkafka and others), or xerial's frame (Java, Go, Python): a magic
//! of 8 bytes, two version numbers, then blocks, each behind its length of 4 bytes big endian.
//!
//! Java concatenates such frames when it flushes, so a frame's head may also stand between blocks.

use super::{CompressionError, reserve_within};

const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// Magic and the two versions.
const FRAME_HEAD_BYTES: usize = 16;
/// Uncompressed bytes per block, as Java writes them.
const BLOCK_BYTES: usize = 32 * 1024;
/// Three bytes of a block make at most 64 bytes.
const EXPANSION_MAX: usize = 22;

pub(super) fn compress(data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
    let mut encoder = snap::raw::Encoder::new();
    for block in data.chunks(BLOCK_BYTES) {
        let start = out.len();
        out.resize(start + 4 + snap::raw::max_compress_len(block.len()), 0);
        let (length, room) = out
            .get_mut(start..)
            .and_then(<[u8]>::split_first_chunk_mut::<4>)
            .expect("the buffer was grown for the block");
        let written = encoder.compress(block, room).expect("the buffer holds the largest possible block");
        *length = (written as u32).to_be_bytes();
        out.truncate(start + 4 + written);
    }
}

pub(super) fn decompress(data: &[u8], limit_bytes: usize) -> Result<Vec<u8>, CompressionError> {
    let mut out = Vec::new();
    let mut decoder = snap::raw::Decoder::new();
    if !data.starts_with(&MAGIC) {
        decompress_block(&mut decoder, data, &mut out, limit_bytes)?;
        return Ok(out);
    }
    let mut rest = data;
    while !rest.is_empty() {
        if rest.starts_with(&MAGIC) {
            rest = rest.get(FRAME_HEAD_BYTES..).ok_or(CompressionError::Corrupt("snappy frame is cut"))?;
            continue;
        }
        let (length, behind) =
            rest.split_first_chunk().ok_or(CompressionError::Corrupt("snappy frame is cut"))?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, behind) =
            behind.split_at_checked(length).ok_or(CompressionError::Corrupt("snappy block is cut"))?;
        decompress_block(&mut decoder, block, &mut out, limit_bytes)?;
        rest = behind;
    }
    Ok(out)
}

/// Appends the bytes of one raw block.
fn decompress_block(
    decoder: &mut snap::raw::Decoder,
    block: &[u8],
    out: &mut Vec<u8>,
    limit_bytes: usize,
) -> Result<(), CompressionError> {
    let corrupt = CompressionError::Corrupt("snappy block");
    let length = snap::raw::decompress_len(block).map_err(|_| corrupt)?;
    // Checked before the limit, so that a client is not told to send smaller batches of garbage.
    if block.is_empty() || length > block.len().saturating_mul(EXPANSION_MAX) {
        return Err(corrupt);
    }
    let start = out.len();
    let needed = start.saturating_add(length);
    if needed > limit_bytes {
        return Err(CompressionError::TooLarge { limit_bytes });
    }
    reserve_within(out, needed, limit_bytes);
    out.resize(needed, 0);
    let written = decoder.decompress(block, out.get_mut(start..).unwrap_or_default()).map_err(|_| corrupt)?;
    if written == length { Ok(()) } else { Err(corrupt) }
}
