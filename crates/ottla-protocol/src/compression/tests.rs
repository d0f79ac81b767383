//! Codecs: round trips, the forms that other clients write, limits and damage. Peak memory is asserted in
//! `tests/decompression_memory.rs`, which needs an allocator of its own.

use proptest::prelude::*;

use super::*;

const COMPRESSED: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
const LIMIT: usize = 1 << 20;

/// Bytes that compress to about half.
fn text(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'a' + (state >> 28) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Whatever is compressed comes back, below, at and above the sizes of blocks.
#[test]
fn round_trips() {
    for codec in Codec::ALL {
        for length in [0, 1, 7, 100, 32_768, 32_769, 65_535, 65_536, 65_537, 200_000, 1 << 20] {
            for data in [vec![0; length], text(length), noise(length)] {
                let compressed = compress(codec, &data);
                let back = decompress(codec, &compressed, LIMIT).expect("fits");
                assert!(back == data, "{codec:?}, {length} bytes");
            }
        }
    }
}

/// The limit is exact: that many bytes pass, one more is too large.
#[test]
fn limits_are_exact() {
    for codec in Codec::ALL {
        for data in [vec![0; 100_000], text(100_000), noise(100_000)] {
            let compressed = compress(codec, &data);
            assert!(decompress(codec, &compressed, 100_000).is_ok(), "{codec:?}");
            for limit_bytes in [0, 1, 50_000, 99_999] {
                let refused = decompress(codec, &compressed, limit_bytes);
                assert_eq!(refused, Err(CompressionError::TooLarge { limit_bytes }), "{codec:?}");
            }
        }
    }
}

/// A stream that ends early is corrupt, wherever it ends (an empty zstd stream holds nothing).
#[test]
fn cut_streams() {
    for codec in COMPRESSED {
        let compressed = compress(codec, &text(3000));
        for cut in 1..compressed.len() {
            let whole_xerial_head = codec == Codec::Snappy && cut == 16;
            let read = decompress(codec, &compressed[..cut], LIMIT);
            assert_eq!(
                matches!(read, Err(CompressionError::Corrupt(_))),
                !whole_xerial_head,
                "{codec:?} at {cut}"
            );
        }
    }
    assert!(decompress(Codec::Gzip, b"", LIMIT).is_err());
    assert!(decompress(Codec::Snappy, b"", LIMIT).is_err());
    assert!(decompress(Codec::Lz4, b"", LIMIT).is_err());
}

/// Bytes that are no stream at all, and bytes behind a stream, are corrupt.
#[test]
fn garbage_and_trailing_bytes() {
    for codec in COMPRESSED {
        assert!(
            matches!(decompress(codec, b"no stream", LIMIT), Err(CompressionError::Corrupt(_))),
            "{codec:?}"
        );
        let mut longer = compress(codec, &text(100));
        longer.extend_from_slice(b"zz zz");
        assert!(matches!(decompress(codec, &longer, LIMIT), Err(CompressionError::Corrupt(_))), "{codec:?}");
    }
}

/// Names and bits are Kafka's.
#[test]
fn names() {
    for (codec, bits, name) in [
        (Codec::None, 0, "none"),
        (Codec::Gzip, 1, "gzip"),
        (Codec::Snappy, 2, "snappy"),
        (Codec::Lz4, 3, "lz4"),
        (Codec::Zstd, 4, "zstd"),
    ] {
        assert_eq!((codec.bits(), codec.name()), (bits, name));
        assert_eq!((Codec::from_name(name), Codec::from_attributes(bits | 0x78)), (Some(codec), Ok(codec)));
    }
    assert_eq!((Codec::from_name("uncompressed"), Codec::from_name("brotli")), (Some(Codec::None), None));
}

/// Gzip of several members reads as one stream; a known stream of another writer reads.
#[test]
fn gzip_forms() {
    let mut members = compress(Codec::Gzip, b"one ");
    members.extend_from_slice(&compress(Codec::Gzip, b"two"));
    assert_eq!(decompress(Codec::Gzip, &members, LIMIT).expect("reads"), "one two");
    assert!(decompress(Codec::Gzip, &members, 6).is_err());
    // `printf hello | gzip -n`
    let known = [
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x86, 0xa6, 0x10, 0x36,
        5, 0, 0, 0,
    ];
    assert_eq!(decompress(Codec::Gzip, &known, LIMIT).expect("reads"), "hello");
    let mut wrong_size = known;
    wrong_size[21] = 200;
    assert!(matches!(decompress(Codec::Gzip, &wrong_size, LIMIT), Err(CompressionError::Corrupt(_))));
}

/// Both forms of snappy read: one raw block as librdkafka sends it, xerial's frame as Java does, also when the
/// frame is continued with a new head, and with the odd versions that old clients write.
#[test]
fn snappy_forms() {
    let data = text(100_000);
    let raw = snap::raw::Encoder::new().compress_vec(&data).expect("compresses");
    assert!(decompress(Codec::Snappy, &raw, LIMIT).expect("reads") == data);
    let mut framed = compress(Codec::Snappy, b"one ");
    assert_eq!(framed[..16], *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01");
    framed.extend_from_slice(&compress(Codec::Snappy, b"two"));
    assert_eq!(decompress(Codec::Snappy, &framed, LIMIT).expect("reads"), "one two");
    framed[8..16].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(decompress(Codec::Snappy, &framed, LIMIT).expect("reads"), "one two");
    assert_eq!(decompress(Codec::Snappy, &framed[..16], LIMIT).expect("an empty frame"), "");
    // A literal of five bytes.
    assert_eq!(decompress(Codec::Snappy, b"\x05\x10hello", LIMIT).expect("reads"), "hello");
    // A block that claims what it cannot hold is garbage, not "too large".
    let lie = [0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    assert!(matches!(decompress(Codec::Snappy, &lie, LIMIT), Err(CompressionError::Corrupt(_))));
}

/// XXH32 by its published values.
#[test]
fn xxh32_vectors() {
    for (data, sum) in [
        (&b""[..], 0x02cc_5d05),
        (b"a", 0x550d_7456),
        (b"abc", 0x32d1_53ff),
        (b"Nobody inspects the spammish repetition", 0xe229_3b2f),
    ] {
        assert_eq!(lz4::xxh32(data), sum);
    }
}

fn lz4_frame(independent: bool, sums: bool, content_size: bool, data: &[u8]) -> Vec<u8> {
    use std::io::Write;

    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let info = FrameInfo::new()
        .block_mode(if independent { BlockMode::Independent } else { BlockMode::Linked })
        .block_size(BlockSize::Max4MB)
        .block_checksums(sums)
        .content_checksum(sums)
        .content_size(content_size.then_some(data.len() as u64));
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(data).expect("memory");
    encoder.finish().expect("memory")
}

/// LZ4 frames with every optional field read; dependent blocks, other magics and wrong sums do not.
#[test]
fn lz4_forms() {
    for data in [vec![], text(10), text(300_000), noise(300_000), vec![9; 1 << 20]] {
        for (sums, content_size) in [(false, false), (true, false), (false, true), (true, true)] {
            let frame = lz4_frame(true, sums, content_size, &data);
            assert!(decompress(Codec::Lz4, &frame, LIMIT).expect("reads") == data, "{sums} {content_size}");
        }
    }
    let linked = lz4_frame(false, false, false, &text(100));
    assert!(matches!(decompress(Codec::Lz4, &linked, LIMIT), Err(CompressionError::Corrupt(_))));
    let sound = lz4_frame(true, true, true, &text(1000));
    for at in 0..sound.len() {
        let mut broken = sound.clone();
        broken[at] ^= 0x40;
        assert!(decompress(Codec::Lz4, &broken, LIMIT).is_err(), "byte {at} is covered by a sum");
    }
    assert_eq!(compress(Codec::Lz4, b"")[..7], [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82], "Java's header");
}

/// Zstd frames with and without their size, several of them and skippable ones read.
#[test]
fn zstd_forms() {
    let data = text(300_000);
    let streamed = zstd::stream::encode_all(&data[..], 3).expect("memory");
    assert!(decompress(Codec::Zstd, &streamed, LIMIT).expect("reads") == data);
    let mut several = b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec();
    several.extend_from_slice(&zstd::stream::encode_all(&b"one "[..], 19).expect("memory"));
    several.extend_from_slice(&compress(Codec::Zstd, b"two"));
    assert_eq!(decompress(Codec::Zstd, &several, LIMIT).expect("reads"), "one two");
    assert_eq!(decompress(Codec::Zstd, b"", LIMIT).expect("no frame"), "");
}

/// A zstd window of 128 MiB passes without costing memory, a larger one is refused.
#[test]
fn zstd_window() {
    // Magic, no single segment, window descriptor, one raw block of one byte that is the last.
    let frame = |window: u8| [0x28, 0xb5, 0x2f, 0xfd, 0, window, 0b1001, 0, 0, b'x'];
    assert_eq!(decompress(Codec::Zstd, &frame(17 << 3), LIMIT).expect("128 MiB"), "x");
    for window in [17 << 3 | 1, 18 << 3, 0xff] {
        assert!(matches!(decompress(Codec::Zstd, &frame(window), LIMIT), Err(CompressionError::Corrupt(_))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Damaged streams and random bytes end in an error or within the limit, never in a panic.
    #[test]
    fn damage(codec in 0usize..4, length in 0usize..3000, flips in
        proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8))
    {
        let codec = COMPRESSED[codec];
        let mut bytes = compress(codec, &text(length));
        for (at, with) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        if let Ok(out) = decompress(codec, &bytes, 5000) {
            prop_assert!(out.len() <= 5000);
        }
    }

    /// As above for bytes that begin like a stream and go on at random.
    #[test]
    fn random_streams(codec in 0usize..4, head in 0usize..24, bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let codec = COMPRESSED[codec];
        let mut stream = compress(codec, &text(200));
        stream.truncate(head);
        stream.extend_from_slice(&bytes);
        if let Ok(out) = decompress(codec, &stream, 5000) {
            prop_assert!(out.len() <= 5000);
        }
    }
}
