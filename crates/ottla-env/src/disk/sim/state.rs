//! What the simulated machine holds: files in the page cache and on the platter, names, faults, the trace.
//!
//! Every operation comes through `State::enter`, which counts it, traces it and stops the machine when its time
//! has come. Invariant: a page that is not in `dirty` will never be written by a later sync or crash, whether or
//! not cache and platter agree on it (after a failed sync they do not).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::content::{Content, PAGE_BYTES, pages_of};
use super::fault::{Fault, FaultCounts, FaultPlan};
use crate::clock::ManualClock;
use crate::rng::{Rng, SeededRng};

/// An unsynced change of a file, in the order they were made.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
}

/// A file, with or without a name.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// What reads through the page cache see.
    pub(super) cache: Content,
    /// What survives a power cut for certain.
    pub(super) platter: Content,
    /// Pages that the next sync must write.
    pub(super) dirty: BTreeSet<u64>,
    /// Changes since the last sync that succeeded or failed.
    pub(super) pending: Vec<Pending>,
    /// Shortest length since then.
    pub(super) shortest: u64,
}

/// An unsynced change of the folder.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Create { name: String, inode: u64 },
    Rename { from: String, to: String, inode: u64 },
    Remove { name: String },
}

/// The machine. One operation at a time.
#[derive(Debug)]
pub(super) struct State {
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) next_inode: u64,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    pub(super) name_changes: Vec<NameChange>,
    pub(super) rng: SeededRng,
    pub(super) plan: FaultPlan,
    /// Injected faults: on which files, and how many operations they let pass.
    pub(super) next: Vec<(Fault, String, u64)>,
    pub(super) counts: FaultCounts,
    pub(super) trace: u64,
    pub(super) operations: u64,
    pub(super) stop_at: Option<u64>,
    /// Of the operations that change something: how many are still done before the machine stops.
    pub(super) changes_left: Option<u64>,
    pub(super) stopped: bool,
    /// Grows when a process ends: handles of an older one fail.
    pub(super) generation: u64,
    pub(super) locked: bool,
    pub(super) capacity: u64,
    pub(super) clock: Option<Arc<ManualClock>>,
    pub(super) skip_syncs: bool,
    pub(super) always_cached: bool,
}

/// Whether the machine stops in the middle of the operation that is entered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Entered {
    Runs,
    Stops,
}

pub(super) fn stopped_error() -> io::Error {
    io::Error::other("the simulated machine has stopped")
}

fn input_output_error() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

fn no_space_error() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())
}

impl State {
    /// Begins an operation of a process: traces it, and says whether the machine stops within it.
    pub(super) fn enter(
        &mut self,
        generation: u64,
        kind: u8,
        name: &str,
        a: u64,
        b: u64,
    ) -> io::Result<Entered> {
        if self.stopped || generation != self.generation {
            return Err(stopped_error());
        }
        self.trace_word(u64::from(kind));
        self.trace_bytes(name.as_bytes());
        self.trace_word(a);
        self.trace_word(b);
        self.operations += 1;
        let changes = matches!(kind, b'c' | b'n' | b'x' | b'd' | b'w' | b's' | b'S' | b't');
        if let Some(left) = self.changes_left.as_mut().filter(|_| changes) {
            *left -= 1;
        }
        if self.stop_at.is_some_and(|at| self.operations >= at) || self.changes_left == Some(0) {
            self.stopped = true;
            return Ok(Entered::Stops);
        }
        Ok(Entered::Runs)
    }

    pub(super) fn trace_word(&mut self, word: u64) {
        self.trace = (self.trace ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    pub(super) fn trace_bytes(&mut self, bytes: &[u8]) {
        self.trace_word(bytes.len() as u64);
        let words = bytes.chunks_exact(8);
        let rest = words.remainder();
        for word in words {
            self.trace_word(u64::from_le_bytes(word.try_into().expect("chunks of eight bytes")));
        }
        for byte in rest {
            self.trace_word(u64::from(*byte));
        }
    }

    /// Whether the fault fires now; counts and traces it when it does.
    fn fires(&mut self, fault: Fault, name: &str) -> bool {
        let applies =
            |(next, prefix, _): &(Fault, String, u64)| *next == fault && name.starts_with(prefix.as_str());
        let waiting = self.next.iter().position(applies).filter(|index| {
            let skip = &mut self.next[*index].2;
            let due = *skip == 0;
            *skip = skip.saturating_sub(1);
            due
        });
        let fires = if let Some(index) = waiting {
            self.next.remove(index);
            true
        } else {
            let rng = &mut self.rng;
            let rates = &self.plan.rates;
            rates.iter().any(|rate| {
                rate.fault == fault
                    && name.starts_with(rate.prefix.as_str())
                    && rate.per_million > 0
                    && rng.chance(rate.per_million)
            })
        };
        if fires {
            self.fired(fault);
        }
        fires
    }

    pub(super) fn fired(&mut self, fault: Fault) {
        self.counts.count(fault);
        self.trace_word(0xfa17 << 16 | fault as u64);
    }

    pub(super) fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("a file that is open or named is kept")
    }

    fn used_bytes(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[inode].cache.len()).sum()
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.capacity.saturating_sub(self.used_bytes())
    }

    pub(super) fn create(&mut self, entered: Entered, name: &str) -> io::Result<u64> {
        if self.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if entered == Entered::Runs && (self.free_bytes() == 0 || self.fires(Fault::NoSpaceCreate, name)) {
            return Err(no_space_error());
        }
        if entered == Entered::Stops && self.rng.one_in(2) {
            return Err(stopped_error());
        }
        let inode = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(inode, Inode::default());
        self.names.insert(name.to_owned(), inode);
        self.name_changes.push(NameChange::Create { name: name.to_owned(), inode });
        ended(entered).map(|()| inode)
    }

    pub(super) fn rename(&mut self, entered: Entered, from: &str, to: &str) -> io::Result<()> {
        let inode = *self.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        if entered == Entered::Stops && self.rng.one_in(2) {
            return Err(stopped_error());
        }
        self.names.remove(from);
        self.names.insert(to.to_owned(), inode);
        self.name_changes.push(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), inode });
        ended(entered)
    }

    pub(super) fn remove(&mut self, entered: Entered, name: &str) -> io::Result<()> {
        if !self.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if entered == Entered::Stops && self.rng.one_in(2) {
            return Err(stopped_error());
        }
        self.names.remove(name);
        self.name_changes.push(NameChange::Remove { name: name.to_owned() });
        ended(entered)
    }

    pub(super) fn sync_dir(&mut self, entered: Entered) -> io::Result<()> {
        if entered == Entered::Stops && self.rng.one_in(2) {
            return Err(stopped_error());
        }
        if entered == Entered::Runs && self.fires(Fault::DirSyncError, "") {
            return Err(input_output_error());
        }
        if !self.skip_syncs {
            self.durable_names = self.names.clone();
            self.name_changes.clear();
        }
        ended(entered)
    }

    pub(super) fn read(
        &mut self,
        inode: u64,
        name: &str,
        cached: bool,
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        if self.fires(Fault::ReadError, name) {
            return Err(input_output_error());
        }
        let cached = cached || self.always_cached;
        let file = self.inode(inode);
        let n = file.cache.read(buffer, offset);
        if !cached {
            // A direct read sees what the platter has, except where the kernel first has to write a dirty page.
            for page in pages_of(offset, n as u64) {
                if !file.dirty.contains(&page) {
                    let start = (page * PAGE_BYTES).max(offset);
                    let end = ((page + 1) * PAGE_BYTES).min(offset + n as u64);
                    let within = |at: u64| usize::try_from(at - offset).expect("inside the buffer");
                    let part = &mut buffer[within(start)..within(end)];
                    part.fill(0);
                    file.platter.read(part, start);
                }
            }
        }
        if n > 0 && self.fires(Fault::BitFlipRead, name) {
            let at = self.rng.index(n);
            buffer[at] ^= 1 << self.rng.below(8);
        }
        if n > 0 && self.fires(Fault::StaleRead, name) {
            self.block_of(&mut buffer[..n], offset).fill(0);
        }
        if n > 0 && self.fires(Fault::MisdirectedRead, name) {
            self.misdirect(inode, &mut buffer[..n], offset);
        }
        Ok(n)
    }

    /// The part of a buffer that lies in one block of its file.
    fn block_of<'a>(&mut self, buffer: &'a mut [u8], offset: u64) -> &'a mut [u8] {
        let pages = pages_of(offset, buffer.len() as u64);
        let page = pages.start + self.rng.below(pages.end - pages.start);
        let start = (page * PAGE_BYTES).max(offset);
        let end = ((page + 1) * PAGE_BYTES).min(offset + buffer.len() as u64);
        let within = |at: u64| usize::try_from(at - offset).expect("inside the buffer");
        &mut buffer[within(start)..within(end)]
    }

    /// One block is that of another place of the file, or of another file.
    fn misdirect(&mut self, inode: u64, buffer: &mut [u8], offset: u64) {
        let others: Vec<u64> = self.names.values().copied().collect();
        let other = if others.is_empty() || self.rng.one_in(2) {
            inode
        } else {
            others[self.rng.index(others.len())]
        };
        let pages = self.inode(other).cache.len().div_ceil(PAGE_BYTES).max(1);
        let from = self.rng.below(pages) * PAGE_BYTES;
        let part = self.block_of(buffer, offset);
        part.fill(0);
        self.inode(other).cache.read(part, from);
    }

    pub(super) fn write(
        &mut self,
        entered: Entered,
        inode: u64,
        name: &str,
        bytes: &[u8],
        offset: u64,
    ) -> io::Result<usize> {
        self.trace_bytes(bytes);
        let some = |rng: &mut SeededRng| rng.index(bytes.len().max(1));
        if entered == Entered::Stops {
            let n = match self.rng.below(3) {
                0 => 0,
                1 => some(&mut self.rng),
                _ => bytes.len(),
            };
            self.store(inode, &bytes[..n], offset);
            return Err(stopped_error());
        }
        let growth = (offset + bytes.len() as u64).saturating_sub(self.inode(inode).cache.len());
        if growth > self.free_bytes() || self.fires(Fault::NoSpaceWrite, name) {
            let n = some(&mut self.rng).min(usize::try_from(self.free_bytes()).unwrap_or(usize::MAX));
            self.store(inode, &bytes[..n], offset);
            return Err(no_space_error());
        }
        if self.fires(Fault::WriteError, name) {
            return Err(input_output_error());
        }
        if bytes.len() > 1 && self.fires(Fault::WriteErrorPartial, name) {
            let n = some(&mut self.rng);
            self.store(inode, &bytes[..n], offset);
            return Err(input_output_error());
        }
        let mut n = bytes.len();
        if n > 1 && self.fires(Fault::ShortWrite, name) {
            n = 1 + self.rng.index(n - 1);
        }
        self.store(inode, &bytes[..n], offset);
        Ok(n)
    }

    /// Puts bytes into the page cache.
    fn store(&mut self, inode: u64, bytes: &[u8], offset: u64) {
        if bytes.is_empty() {
            return;
        }
        let file = self.inode(inode);
        file.cache.write(bytes, offset);
        file.dirty.extend(pages_of(offset, bytes.len() as u64));
        file.pending.push(Pending::Write { offset, bytes: bytes.to_vec() });
    }

    pub(super) fn set_len(&mut self, entered: Entered, inode: u64, len: u64) -> io::Result<()> {
        if entered == Entered::Stops && self.rng.one_in(2) {
            return Err(stopped_error());
        }
        let growth = len.saturating_sub(self.inode(inode).cache.len());
        if growth > self.free_bytes() {
            return Err(no_space_error());
        }
        let file = self.inode(inode);
        file.cache.set_len(len);
        file.dirty.split_off(&len.div_ceil(PAGE_BYTES));
        file.shortest = file.shortest.min(len);
        file.pending.push(Pending::SetLen(len));
        ended(entered)
    }

    pub(super) fn sync(&mut self, entered: Entered, inode: u64, name: &str) -> io::Result<()> {
        if self.fires(Fault::SlowSync, name) {
            let slow = Duration::from_millis(1 << self.rng.below(14)).min(Duration::from_secs(10));
            if let Some(clock) = &self.clock {
                clock.advance(slow);
            }
        }
        if entered == Entered::Stops && self.rng.one_in(2) {
            return Err(stopped_error());
        }
        if entered == Entered::Runs && self.fires(Fault::SyncError, name) {
            self.fail_sync(inode);
            return Err(input_output_error());
        }
        if self.skip_syncs {
            return ended(entered);
        }
        let file = self.inode(inode);
        if file.shortest < file.platter.len() {
            file.platter.set_len(file.shortest);
        }
        file.platter.set_len(file.cache.len());
        for page in std::mem::take(&mut file.dirty) {
            file.platter.copy_page(page, &file.cache);
        }
        file.pending.clear();
        file.shortest = file.cache.len();
        ended(entered)
    }

    /// All dirty pages become clean, but none, some or all of them were written. Sometimes the cache then drops
    /// those that were not, and reads see the old bytes at once.
    fn fail_sync(&mut self, inode: u64) {
        let (written, evicts, grows) = (self.rng.below(4), self.rng.one_in(3), self.rng.one_in(2));
        let file = self.inodes.get_mut(&inode).expect("a file that is open is kept");
        if grows {
            file.platter.set_len(file.platter.len().max(file.cache.len()));
        }
        for page in std::mem::take(&mut file.dirty) {
            let lands = match written {
                0 | 1 => false,
                2 => self.rng.one_in(2),
                _ => true,
            };
            if lands && page * PAGE_BYTES < file.platter.len() {
                file.platter.copy_page(page, &file.cache);
            } else if evicts {
                file.cache.copy_page(page, &file.platter);
            }
        }
        file.pending.clear();
        file.shortest = file.cache.len();
    }
}

/// The result of an operation that was done: nobody hears of it when the machine has stopped.
fn ended(entered: Entered) -> io::Result<()> {
    if entered == Entered::Stops { Err(stopped_error()) } else { Ok(()) }
}
