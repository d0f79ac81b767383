//! The bytes of a simulated file: sparse pages, shared until written, so that copies of a file cost little.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page, of the page cache and of the sparse storage alike.
pub(super) const PAGE_BYTES: u64 = 4096;
const PAGE: usize = PAGE_BYTES as usize;

type Page = Arc<[u8; PAGE]>;

/// A file's bytes. Pages that are absent are zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    len: u64,
    pages: BTreeMap<u64, Page>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Reads what there is at `offset`; less than asked only at the end.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let there = self.len.saturating_sub(offset);
        let n = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        for_pages(offset, n, |page, within, range| match self.pages.get(&page) {
            Some(bytes) => buffer[range.clone()].copy_from_slice(&bytes[within..within + range.len()]),
            None => buffer[range].fill(0),
        });
        n
    }

    /// Writes, growing the file as needed.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        for_pages(offset, bytes.len(), |page, within, range| {
            let part = &bytes[range];
            if !self.pages.contains_key(&page) && part.iter().all(|byte| *byte == 0) {
                return;
            }
            let target = Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE])));
            target[within..within + part.len()].copy_from_slice(part);
        });
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Cuts the file, or extends it with zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.pages.split_off(&len.div_ceil(PAGE_BYTES));
            let within = usize::try_from(len % PAGE_BYTES).expect("smaller than a page");
            if within > 0
                && let Some(last) = self.pages.get_mut(&(len / PAGE_BYTES))
            {
                Arc::make_mut(last)[within..].fill(0);
            }
        }
        self.len = len;
    }

    /// Makes a page equal to that of another content. Lengths are left alone.
    pub(super) fn copy_page(&mut self, page: u64, from: &Self) {
        match from.pages.get(&page) {
            Some(bytes) => self.pages.insert(page, Arc::clone(bytes)),
            None => self.pages.remove(&page),
        };
    }

    /// Turns one bit over; nothing when there is no such byte.
    pub(super) fn flip_bit(&mut self, offset: u64, bit: u32) {
        let mut byte = [0];
        if self.read(&mut byte, offset) == 1 {
            self.write(&[byte[0] ^ (1 << (bit % 8))], offset);
        }
    }
}

/// The pages that a range of bytes lies in.
pub(super) fn pages_of(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES)
}

/// Calls `visit(page, offset within the page, range within the bytes)` for each page of a range of bytes.
fn for_pages(offset: u64, len: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = usize::try_from(at % PAGE_BYTES).expect("smaller than a page");
        let part = (PAGE - within).min(len - done);
        visit(at / PAGE_BYTES, within, done..done + part);
        done += part;
    }
}
