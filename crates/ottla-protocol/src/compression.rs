//! Codecs of record batches: gzip, snappy, lz4 and zstd, bounded on the way in.
//!
//! Place in the walk: the produce check decompresses to look at records, and compresses anew when a topic wants
//! another codec; the client does both. Decompressing never allocates more than the caller's limit plus a small
//! constant (a codec's own tables, at most about 512 KiB), whatever a frame claims; a buffer that must grow is
//! moved, so that for a moment two of them, together at most 1.5 times the limit, may exist.
//!
//! What is read is what Kafka's clients write: gzip with one or more members; snappy raw or in xerial's frame;
//! one lz4 frame of format version 1 with independent blocks; zstd frames with a window of at most 128 MiB
//! (what Java's reader takes), which costs nothing here because the output buffer is the window.

mod gzip;
mod lz4;
mod snappy;
#[cfg(test)]
mod tests;
mod zstandard;

use bytes::Bytes;
use thiserror::Error;

use crate::batch::CODEC_MASK;

/// How the records of a batch are compressed.
///
/// ```
/// use ottla_protocol::compression::Codec;
///
/// assert_eq!(Codec::from_name("zstd"), Some(Codec::Zstd));
/// assert_eq!(Codec::Zstd.name(), "zstd");
/// assert_eq!(Codec::from_attributes(Codec::Zstd.bits()), Ok(Codec::Zstd));
/// assert_eq!(Codec::ALL.len(), 5);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// RFC 1952.
    Gzip,
    /// Snappy, written in xerial's frame as Java does.
    Snappy,
    /// LZ4 frame format.
    Lz4,
    /// RFC 8878; needs Produce 7 and Fetch 10.
    Zstd,
}

/// The codec bits of a batch name no codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unknown compression codec {0}")]
pub struct UnknownCodec(pub i16);

/// Why a body cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CompressionError {
    /// It holds more bytes than allowed.
    #[error("more than {limit_bytes} bytes when decompressed")]
    TooLarge {
        /// The caller's limit.
        limit_bytes: usize,
    },
    /// It is not what its codec writes.
    #[error("cannot be decompressed: {0}")]
    Corrupt(&'static str),
}

impl Codec {
    /// All codecs, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec that a batch's attributes name.
    pub fn from_attributes(attributes: i16) -> Result<Self, UnknownCodec> {
        match attributes & CODEC_MASK {
            0 => Ok(Self::None),
            1 => Ok(Self::Gzip),
            2 => Ok(Self::Snappy),
            3 => Ok(Self::Lz4),
            4 => Ok(Self::Zstd),
            other => Err(UnknownCodec(other)),
        }
    }

    /// The codec's bits in a batch's attributes.
    pub fn bits(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// The name clients give it in their configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The codec of that name (`none` and `uncompressed` are the same).
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "uncompressed" {
            return Some(Self::None);
        }
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }
}

/// Compresses `data`.
pub fn compress(codec: Codec, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() / 2);
    compress_into(codec, data, &mut out);
    out
}

/// Compresses `data` at the end of `out`, at the codec's default level.
pub fn compress_into(codec: Codec, data: &[u8], out: &mut Vec<u8>) {
    compress_at_level(codec, None, data, out);
}

/// Compresses `data` at the end of `out`. The level is Kafka's: 1 to 9 for gzip and -131072 to 22 for zstd; -1 for
/// gzip and none are the codec's default. The other codecs have one level.
pub fn compress_at_level(codec: Codec, level: Option<i32>, data: &[u8], out: &mut Vec<u8>) {
    match codec {
        Codec::None => out.extend_from_slice(data),
        Codec::Gzip => gzip::compress(data, level, out),
        Codec::Snappy => snappy::compress(data, out),
        Codec::Lz4 => lz4::compress(data, out),
        Codec::Zstd => zstandard::compress(data, level, out),
    }
}

/// Decompresses `data` into at most `limit_bytes`.
pub fn decompress(codec: Codec, data: &[u8], limit_bytes: usize) -> Result<Bytes, CompressionError> {
    let mut out = match codec {
        Codec::None if data.len() > limit_bytes => return Err(CompressionError::TooLarge { limit_bytes }),
        Codec::None => data.to_vec(),
        Codec::Gzip => gzip::decompress(data, limit_bytes)?,
        Codec::Snappy => snappy::decompress(data, limit_bytes)?,
        Codec::Lz4 => lz4::decompress(data, limit_bytes)?,
        Codec::Zstd => zstandard::decompress(data, limit_bytes)?,
    };
    assert!(out.len() <= limit_bytes, "decoders keep to the limit");
    // What is kept must not pin much more than it holds.
    if out.capacity() / 2 > out.len() {
        out.shrink_to_fit();
    }
    Ok(Bytes::from(out))
}

/// Makes room for `needed` bytes in all, at least doubling, never above `limit_bytes`.
/// `needed` must not be above the limit.
fn reserve_within(out: &mut Vec<u8>, needed: usize, limit_bytes: usize) {
    if out.capacity() < needed {
        let target = out.capacity().saturating_mul(2).clamp(needed, limit_bytes.max(needed));
        out.reserve_exact(target - out.len());
    }
}
