//! Gzip: one or more members. The size in the last member's trailer sizes the first buffer, no more.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

use super::{CompressionError, reserve_within};

/// Deflate cannot expand by more than about this factor.
const EXPANSION_MAX: usize = 1032;
/// The least that is read at once.
const STEP_BYTES_MIN: usize = 4 * 1024;

/// Compresses at a level of 1 to 9, or at the codec's own.
pub(super) fn compress(data: &[u8], level: Option<i32>, out: &mut Vec<u8>) {
    let level = level.and_then(|level| u32::try_from(level).ok()).filter(|level| (1..=9).contains(level));
    let mut encoder = GzEncoder::new(out, level.map_or_else(Compression::default, Compression::new));
    encoder.write_all(data).and_then(|()| encoder.finish()).expect("writing to memory does not fail");
}

pub(super) fn decompress(data: &[u8], limit_bytes: usize) -> Result<Vec<u8>, CompressionError> {
    let claimed = data.last_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let expected = claimed.min(data.len().saturating_mul(EXPANSION_MAX)).min(limit_bytes);
    let mut decoder = MultiGzDecoder::new(data);
    let mut out = Vec::with_capacity(expected);
    loop {
        let start = out.len();
        let room = out.capacity().min(limit_bytes) - start;
        if room == 0 {
            // Often the end: look before the buffer grows.
            let mut probe = [0];
            if read(&mut decoder, &mut probe)? == 0 {
                return Ok(out);
            }
            if start == limit_bytes {
                return Err(CompressionError::TooLarge { limit_bytes });
            }
            let needed = (start + STEP_BYTES_MIN).min(limit_bytes);
            reserve_within(&mut out, needed, limit_bytes);
            out.extend_from_slice(&probe);
            continue;
        }
        out.resize(start + room, 0);
        let taken = read(&mut decoder, out.get_mut(start..).unwrap_or_default())?;
        out.truncate(start + taken);
        if taken < room {
            return Ok(out);
        }
    }
}

/// Reads until the buffer is full or the stream ends; returns what was read.
fn read(decoder: &mut MultiGzDecoder<&[u8]>, buffer: &mut [u8]) -> Result<usize, CompressionError> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match decoder.read(rest) {
            Ok(0) => break,
            Ok(taken) => filled += taken,
            Err(_) => return Err(CompressionError::Corrupt("gzip stream")),
        }
    }
    Ok(filled)
}
