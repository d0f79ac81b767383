//! Shared pieces of the byte layouts: alignment, checksums, big-endian fields, complete writes.
//!
//! All integers in our own structures are big endian, like Kafka's. `docs/format.md` draws every layout.

use std::io::{self, IoSlice};

use crc_fast::{CrcAlgorithm, Digest};
use ottla_env::disk::File;

/// Frames, header blocks and footers begin at multiples of this (ADR 0009: the largest sector of today's disks, and
/// the page of the cache).
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Version of the files' format, as written. A newer one is refused.
pub(crate) const FORMAT_VERSION: u16 = 3;
/// The oldest version that is still read.
pub(crate) const FORMAT_VERSION_MIN: u16 = 1;
/// Disk reads and zero fills go in steps of this.
pub(crate) const STEP_BYTES: usize = 1 << 20;
/// Damage is believed when this many readings agree on it: a wrong bit on the way from the disk is not damage.
pub(crate) const READINGS: u32 = 3;
/// Slices given to one vectored write (the operating system takes at most 1,024).
const SLICES_MAX: usize = 512;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// What a frame is filled up with to its last block's end: not zero, so that a sector that was never written can be
/// told from one that was (ADR 0009).
pub(crate) static PADDING: [u8; BLOCK_BYTES as usize] = [0x5a; BLOCK_BYTES as usize];

/// Whether this build reads files of a version.
pub(crate) fn is_known(version: u16) -> bool {
    (FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version)
}

/// The next multiple of `BLOCK_BYTES`.
pub(crate) fn align_up(position: u64) -> u64 {
    position.next_multiple_of(BLOCK_BYTES)
}

/// CRC-32C (Castagnoli), as in Kafka's batches.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C over pieces.
pub(crate) struct Crc(Digest);

impl Crc {
    pub(crate) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// Fields of a structure whose length was checked: reading past its end is a bug and panics.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("the slice has N bytes")
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    pub(crate) fn i32(&self, at: usize) -> i32 {
        i32::from_be_bytes(self.array(at))
    }

    pub(crate) fn i64(&self, at: usize) -> i64 {
        i64::from_be_bytes(self.array(at))
    }
}

/// Writes all slices one behind the other at `position`, going on after partial writes.
///
/// It goes on at the start of the block in which a partial write ended, with the same bytes once more: so no block
/// is ever covered by two writes of which a power cut could keep the second alone.
pub(crate) fn write_all(file: &dyn File, slices: &[&[u8]], position: u64) -> io::Result<()> {
    let total: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
    let mut begin = 0;
    let mut patience = 3; // with a file that takes less than a block at a time
    while begin < total {
        let written = match file.write_vectored_at(&skip(slices, begin), position + begin) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = begin + written;
        let block = (position + end) / BLOCK_BYTES * BLOCK_BYTES;
        begin = match block.checked_sub(position) {
            Some(aligned) if end < total && aligned > begin => aligned,
            _ if end < total && patience > 0 => {
                patience -= 1;
                begin
            }
            _ => end,
        };
    }
    Ok(())
}

/// The slices from byte `begin` on, as many as one call takes.
fn skip<'a>(slices: &[&'a [u8]], mut begin: u64) -> Vec<IoSlice<'a>> {
    let mut rest = Vec::with_capacity(slices.len().min(SLICES_MAX));
    for slice in slices {
        let skipped = begin.min(slice.len() as u64);
        begin -= skipped;
        if skipped < slice.len() as u64 && rest.len() < SLICES_MAX {
            rest.push(IoSlice::new(&slice[skipped as usize..]));
        }
    }
    rest
}

/// Writes zeros from `from` up to `to`, in steps of at most `STEP_BYTES`.
pub(crate) fn write_zeros(file: &dyn File, mut from: u64, to: u64) -> io::Result<()> {
    while from < to {
        let step = (to - from).min(STEP_BYTES as u64);
        let mut slices = vec![&ZEROS[..]; step as usize / ZEROS.len()];
        slices.push(&ZEROS[..step as usize % ZEROS.len()]);
        write_all(file, &slices, from)?;
        from += step;
    }
    Ok(())
}
