//! Writing past the page cache, where offset and length allow it.
//!
//! The log writes whole blocks of 4 KiB, each once, and serves what is new from memory of its own. Through the page
//! cache every byte would be copied into pages that nobody may ever read, and zeros ahead of time as well; measured,
//! that was two thirds of a busy broker's processor time. Here the slices are gathered in one aligned buffer, which
//! is reused, and go to the device from there. The kernel drops cached pages of the written range, so that reads
//! through the cache see the new bytes.
//!
//! Not for durability: a direct write still needs its sync.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::{Errno, retry_on_intr};

use super::DIRECT_ALIGNMENT;

/// Most bytes of one direct write; a longer one comes back short. Holds a full frame of 1 MiB and what is in flight.
const WRITE_BYTES_MAX: usize = 4 << 20;

/// The second descriptor of a file, for aligned writes.
#[derive(Debug)]
pub(super) struct DirectWriter {
    fd: OwnedFd,
    /// Grows to the largest write so far.
    buffer: Mutex<Vec<u8>>,
    refused: AtomicBool,
}

impl DirectWriter {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, buffer: Mutex::new(Vec::new()), refused: AtomicBool::new(false) }
    }

    /// Writes the slices' first bytes; none when this write cannot go past the page cache.
    pub(super) fn write(&self, slices: &[IoSlice<'_>], offset: u64) -> Option<io::Result<usize>> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let is_aligned =
            offset.is_multiple_of(DIRECT_ALIGNMENT as u64) && total.is_multiple_of(DIRECT_ALIGNMENT);
        if total == 0 || !is_aligned || self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let bytes = total.min(WRITE_BYTES_MAX);
        let mut space = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if space.len() < bytes + DIRECT_ALIGNMENT {
            space.resize(bytes + DIRECT_ALIGNMENT, 0);
        }
        let start = space.as_ptr().align_offset(DIRECT_ALIGNMENT);
        let aligned = space.get_mut(start..start + bytes)?;
        gather(slices, aligned);
        match retry_on_intr(|| rustix::io::pwrite(&self.fd, &*aligned, offset)) {
            // Some file systems open a file this way and refuse later, or want a larger alignment.
            Err(Errno::INVAL) => {
                self.refused.store(true, Ordering::Relaxed);
                None
            }
            other => Some(other.map_err(io::Error::from)),
        }
    }
}

/// Copies the slices one behind the other until the target is full.
fn gather(slices: &[IoSlice<'_>], mut target: &mut [u8]) {
    for slice in slices {
        let count = slice.len().min(target.len());
        let (now, rest) = target.split_at_mut(count);
        now.copy_from_slice(&slice[..count]);
        target = rest;
    }
}
