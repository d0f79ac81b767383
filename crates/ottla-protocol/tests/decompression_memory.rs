//! Peak memory of decompressing: whatever a stream claims or holds, no more than the limit, a constant and the
//! moment of moving a buffer that grows. One test in a binary of its own, because it counts every allocation.
#![allow(unsafe_code)] // an allocator that counts cannot be written without

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ottla_protocol::compression::{Codec, CompressionError, compress, decompress};

struct Counting;

static NOW_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let now = NOW_BYTES.fetch_add(bytes, Relaxed) + bytes;
    PEAK_BYTES.fetch_max(now, Relaxed);
}

// SAFETY: every call goes to `System` unchanged; only sizes are counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW_BYTES.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }

    // The default `realloc` is alloc, copy, dealloc: both buffers are counted, as in the worst case.
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Peak of bytes allocated while `work` runs, above what was there before.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = NOW_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    work();
    PEAK_BYTES.load(Relaxed) - before
}

const MIB: usize = 1 << 20;
const TABLES: usize = MIB / 2;

/// Bombs, lies about sizes and large windows cost no more than the limit allows, and honest streams decompress
/// into a buffer of their size.
#[test]
fn peak_memory_is_bounded() {
    let zeros = vec![0; 64 * MIB];
    let large = compress(Codec::Gzip, &vec![1; MIB / 2]);
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let bomb = compress(codec, &zeros);
        for limit_bytes in [0, 1000, MIB, 16 * MIB] {
            let peak = peak_of(|| {
                let refused = decompress(codec, &bomb, limit_bytes);
                assert_eq!(refused, Err(CompressionError::TooLarge { limit_bytes }), "{codec:?}");
            });
            let allowed = limit_bytes + limit_bytes / 2 + TABLES;
            assert!(peak <= allowed, "{codec:?} below {limit_bytes}: {peak} bytes at the peak");
        }
    }
    for (what, codec, stream) in [
        ("zstd without its size", Codec::Zstd, zstd_without_size(&zeros)),
        (
            "zstd with a window of 128 MiB",
            Codec::Zstd,
            vec![0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3, 9, 0, 0, b'x'],
        ),
        ("zstd that claims an exabyte", Codec::Zstd, zstd_with_a_claim()),
        ("a raw snappy block that claims 4 GiB", Codec::Snappy, vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0]),
        ("gzip that claims 4 GiB", Codec::Gzip, [&large[..large.len() - 4], &[0xff; 4]].concat()),
        ("lz4 without a block", Codec::Lz4, compress(Codec::Lz4, b"")),
    ] {
        let peak = peak_of(|| drop(decompress(codec, &stream, MIB)));
        assert!(peak <= MIB + MIB / 2 + TABLES, "{what}: {peak} bytes at the peak");
    }
}

/// A frame of blocks that each repeat one byte: 128 KiB from four bytes, no content size.
fn zstd_without_size(zeros: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3];
    let block = 128 * 1024u32;
    let count = zeros.len() / block as usize;
    for index in 0..count {
        let head = block << 3 | 1 << 1 | u32::from(index + 1 == count);
        frame.extend_from_slice(&head.to_le_bytes()[..3]);
        frame.push(0);
    }
    frame
}

/// A frame whose content size is 2^60 and whose one block is a byte.
fn zstd_with_a_claim() -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xc0, 7 << 3];
    frame.extend_from_slice(&(1u64 << 60).to_le_bytes());
    frame.extend_from_slice(&[9, 0, 0, b'x']);
    frame
}
