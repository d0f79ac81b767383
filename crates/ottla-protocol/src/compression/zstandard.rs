//! Zstandard. Frames are first walked block by block (headers only): that bounds the output and shows the window;
//! then libzstd decodes in one pass into one buffer, so that it needs no window of its own.

use zstd::bulk::{Compressor, Decompressor};

use super::CompressionError;

/// Kafka's default level.
const LEVEL: i32 = 3;
const MAGIC: u32 = 0xfd2f_b528;
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
/// The largest block of any frame.
const BLOCK_BYTES_MAX: u64 = 128 * 1024;
/// Readers refuse larger windows by default; a batch that needs one could not be read again.
const WINDOW_BYTES_MAX: u64 = 1 << 27;

/// Compresses at a level of -131072 to 22.
pub(super) fn compress(data: &[u8], level: Option<i32>, out: &mut Vec<u8>) {
    let mut compressor = Compressor::new(level.unwrap_or(LEVEL)).expect("a context of libzstd fits memory");
    let compressed = compressor.compress(data).expect("the buffer holds the largest possible frame");
    out.extend_from_slice(&compressed);
}

pub(super) fn decompress(data: &[u8], limit_bytes: usize) -> Result<Vec<u8>, CompressionError> {
    let bound = output_bytes_max(data).ok_or(CompressionError::Corrupt("zstd frame"))?;
    if bound.exact && bound.bytes > limit_bytes as u64 {
        return Err(CompressionError::TooLarge { limit_bytes });
    }
    let capacity = usize::try_from(bound.bytes).unwrap_or(usize::MAX).min(limit_bytes);
    let mut out = Vec::with_capacity(capacity);
    // `Vec` may have rounded up; what matters is that the output is limited.
    let mut decompressor = Decompressor::new().map_err(|_| CompressionError::Corrupt("no zstd context"))?;
    match decompressor.decompress_to_buffer(data, &mut out) {
        Ok(_) if out.len() > limit_bytes => Err(CompressionError::TooLarge { limit_bytes }),
        Ok(_) => Ok(out),
        // The buffer had room for all that the frames can hold, so it was not its size.
        Err(_) if bound.bytes <= capacity as u64 => Err(CompressionError::Corrupt("zstd frame")),
        Err(_) => Err(CompressionError::TooLarge { limit_bytes }),
    }
}

/// How much a run of frames holds at most.
struct Bound {
    bytes: u64,
    /// Every frame says its size.
    exact: bool,
}

/// Walks all frames; `None` when they are malformed, cut, or need too large a window.
fn output_bytes_max(data: &[u8]) -> Option<Bound> {
    let mut rest = data;
    let mut bound = Bound { bytes: 0, exact: true };
    while !rest.is_empty() {
        let magic = u32::from_le_bytes(take(&mut rest)?);
        if magic & 0xffff_fff0 == SKIPPABLE_MAGIC {
            let length = u32::from_le_bytes(take(&mut rest)?);
            rest = rest.get(length as usize..)?;
            continue;
        }
        if magic != MAGIC {
            return None;
        }
        let frame = frame_bytes_max(&mut rest)?;
        bound.bytes = bound.bytes.checked_add(frame.bytes)?;
        bound.exact &= frame.exact;
    }
    Some(bound)
}

/// Walks one frame behind its magic.
fn frame_bytes_max(rest: &mut &[u8]) -> Option<Bound> {
    let [descriptor] = take(rest)?;
    let single_segment = descriptor & 0x20 != 0;
    let has_checksum = descriptor & 0x04 != 0;
    let mut window = None;
    if !single_segment {
        let [byte] = take(rest)?;
        let base = 1u64 << (10 + (byte >> 3));
        window = Some(base + (base >> 3) * u64::from(byte & 7));
    }
    let dictionary_bytes = [0, 1, 2, 4].get(usize::from(descriptor & 3)).copied()?;
    *rest = rest.get(dictionary_bytes..)?;
    let content = match (descriptor >> 6, single_segment) {
        (0, false) => None,
        (0, true) => Some(u64::from(u8::from_le_bytes(take(rest)?))),
        (1, _) => Some(u64::from(u16::from_le_bytes(take(rest)?)) + 256),
        (2, _) => Some(u64::from(u32::from_le_bytes(take(rest)?))),
        (_, _) => Some(u64::from_le_bytes(take(rest)?)),
    };
    let window = window.or(content)?;
    if window > WINDOW_BYTES_MAX {
        return None;
    }
    let blocks = blocks_bytes_max(rest, window.min(BLOCK_BYTES_MAX))?;
    if has_checksum {
        *rest = rest.get(4..)?;
    }
    match content {
        // Blocks that cannot hold what the frame claims: do not believe it.
        Some(bytes) if bytes > blocks => None,
        Some(bytes) => Some(Bound { bytes, exact: true }),
        None => Some(Bound { bytes: blocks, exact: false }),
    }
}

/// Walks the blocks of a frame; returns the most they can hold.
fn blocks_bytes_max(rest: &mut &[u8], block_bytes_max: u64) -> Option<u64> {
    let mut total = 0u64;
    loop {
        let [low, middle, high] = take(rest)?;
        let head = u32::from_le_bytes([low, middle, high, 0]);
        let size = head >> 3;
        if u64::from(size) > block_bytes_max {
            return None;
        }
        let (stored, held) = match (head >> 1) & 3 {
            0 => (size, u64::from(size)),
            1 => (1, u64::from(size)),
            2 => (size, block_bytes_max),
            _ => return None,
        };
        *rest = rest.get(stored as usize..)?;
        total = total.checked_add(held)?;
        if head & 1 != 0 {
            return Some(total);
        }
    }
}

/// Takes `N` bytes from the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}
