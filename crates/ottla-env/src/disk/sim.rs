//! A folder on a simulated machine: a page cache, a platter, power cuts and faults, all from one seed.
//!
//! Reads through `open` see the page cache, reads through `open_uncached` see the platter (and dirty pages, as
//! O_DIRECT does). A write is safe only after a sync of its file, a name only after a sync of the folder;
//! `crash` keeps, drops, tears or reorders the rest. Faults fire by plan (`FaultPlan`) or once (`inject`), and
//! are counted. Everything drawn comes from the seed, and every operation goes into a hash, so that two runs of
//! one seed can be compared. Where the kernel is kinder than the standard (a new file's name synced together
//! with the file, ordered metadata), the simulation is not.
//!
//! What it does not do: misdirected writes, several folders, permissions.

mod content;
mod crash;
mod fault;
mod state;
#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultCounts, FaultPlan, Rate};

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard};

use self::fault::Fault as F;
use self::state::{Entered, State, stopped_error};
use super::{Disk, File, LOCK_FILE, LockError, LockGuard, check_name};
use crate::clock::ManualClock;
use crate::rng::{Rng, SeededRng};

/// Bytes of a simulated disk unless told otherwise.
const CAPACITY_BYTES: u64 = 1 << 40;

/// The folder as one process sees it. Clones are the same process; after `crash` or `kill` every operation of
/// the old process fails.
#[derive(Clone)]
pub struct SimDisk {
    machine: Arc<Mutex<State>>,
    generation: u64,
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl SimDisk {
    /// An empty folder without faults.
    pub fn new(seed: u64) -> Self {
        let state = State {
            inodes: BTreeMap::new(),
            next_inode: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            rng: SeededRng::new(seed),
            plan: FaultPlan::default(),
            next: Vec::new(),
            counts: FaultCounts::default(),
            trace: seed,
            operations: 0,
            stop_at: None,
            changes_left: None,
            stopped: false,
            generation: 0,
            locked: false,
            capacity: CAPACITY_BYTES,
            clock: None,
            skip_syncs: false,
            always_cached: false,
        };
        Self { machine: Arc::new(Mutex::new(state)), generation: 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.machine.lock().expect("no operation of the simulated disk panics half way")
    }

    /// Slow syncs move this clock.
    pub fn set_clock(&self, clock: Arc<ManualClock>) {
        self.state().clock = Some(clock);
    }

    /// Which faults fire at random from now on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.state().plan = plan;
    }

    /// The fault fires at the next operation that it applies to, on a file whose name begins with `prefix`.
    pub fn inject(&self, fault: F, prefix: &str) {
        self.inject_after(fault, prefix, 0);
    }

    /// As `inject`, but the first `skip` operations that it applies to go well.
    pub fn inject_after(&self, fault: F, prefix: &str, skip: u64) {
        self.state().next.push((fault, prefix.to_owned(), skip));
    }

    /// Forgets injected faults that have not fired.
    pub fn clear_injected(&self) {
        self.state().next.clear();
    }

    /// Faults that were injected and have not fired yet.
    pub fn waiting_faults(&self) -> usize {
        self.state().next.len()
    }

    /// Bytes that fit; what is there already is not touched.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Syncs do nothing and say that they did: a planted bug, to show that it is found.
    pub fn set_skip_syncs(&self, skip: bool) {
        self.state().skip_syncs = skip;
    }

    /// Reads that should come from the platter come from the page cache: a planted bug, to show that it is found.
    pub fn set_always_cached(&self, always: bool) {
        self.state().always_cached = always;
    }

    /// The machine stops in the middle of the operation that comes `operations` after now (1: the next one).
    /// That operation is done, half done or not done; it and all later ones fail.
    pub fn stop_after(&self, operations: u64) {
        let mut state = self.state();
        state.stop_at = Some(state.operations + operations.max(1));
    }

    /// As `stop_after`, but only operations that change something are counted: writes, syncs, cuts, names.
    pub fn stop_after_changes(&self, changes: u64) {
        self.state().changes_left = Some(changes.max(1));
    }

    /// Takes `stop_after` and `stop_after_changes` back.
    pub fn keep_running(&self) {
        let mut state = self.state();
        state.stop_at = None;
        state.changes_left = None;
    }

    /// Whether the machine has stopped, or this process has ended.
    pub fn stopped(&self) -> bool {
        let state = self.state();
        state.stopped || state.generation != self.generation
    }

    /// Cuts the power, if it has not stopped by itself, and gives what a process finds after the reboot. All
    /// handles of before fail from now on. Faults that were injected and did not fire are forgotten.
    pub fn crash(&self, rng: &mut dyn Rng) -> Self {
        let mut state = self.state();
        state.power_cut(rng);
        Self { machine: Arc::clone(&self.machine), generation: state.generation }
    }

    /// Kills the process and gives what the next one finds: unsynced writes are still in the page cache.
    pub fn kill(&self) -> Self {
        let mut state = self.state();
        state.kill();
        Self { machine: Arc::clone(&self.machine), generation: state.generation }
    }

    /// How often each fault has fired since the disk was new, over all crashes.
    pub fn counts(&self) -> FaultCounts {
        self.state().counts
    }

    /// Hash over every operation, its data and every fault so far.
    pub fn trace_hash(&self) -> u64 {
        self.state().trace
    }

    /// Number of operations so far, over all crashes.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Turns one bit of a file over, in the cache and on the platter.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u32) -> io::Result<()> {
        let mut state = self.state();
        let inode = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let file = state.inode(inode);
        file.cache.flip_bit(offset, bit);
        file.platter.flip_bit(offset, bit);
        state.fired(F::BitFlipRest);
        Ok(())
    }

    /// Names and lengths of the files as the process sees them, for tests; not an operation of the process.
    pub fn files(&self) -> Vec<(String, u64)> {
        let state = self.state();
        state.names.iter().map(|(name, inode)| (name.clone(), state.inodes[inode].cache.len())).collect()
    }

    /// What the platter has of a file, for tests; not an operation of the process.
    pub fn platter_bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        let inode = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let platter = &state.inode(inode).platter;
        let mut bytes = vec![0; usize::try_from(platter.len()).expect("a simulated file fits memory")];
        platter.read(&mut bytes, 0);
        Ok(bytes)
    }

    fn open_file(&self, name: &str, cached: bool) -> io::Result<Arc<dyn File>> {
        check_name(name)?;
        let mut state = self.state();
        if state.enter(self.generation, b'o', name, u64::from(cached), 0)? == Entered::Stops {
            return Err(stopped_error());
        }
        let inode = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(name, inode, cached))
    }

    fn file(&self, name: &str, inode: u64, cached: bool) -> Arc<dyn File> {
        Arc::new(SimFile { disk: self.clone(), name: name.to_owned(), inode, cached })
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        check_name(name)?;
        let mut state = self.state();
        let entered = state.enter(self.generation, b'c', name, 0, 0)?;
        let inode = state.create(entered, name)?;
        Ok(self.file(name, inode, true))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.open_file(name, true)
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.open_file(name, false)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let mut state = self.state();
        let entered = state.enter(self.generation, b'n', from, 0, 0)?;
        state.trace_bytes(to.as_bytes());
        state.rename(entered, from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let mut state = self.state();
        let entered = state.enter(self.generation, b'x', name, 0, 0)?;
        state.remove(entered, name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.state();
        if state.enter(self.generation, b'l', "", 0, 0)? == Entered::Stops {
            return Err(stopped_error());
        }
        Ok(state.names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state();
        let entered = state.enter(self.generation, b'd', "", 0, 0)?;
        state.sync_dir(entered)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        if state.stopped || state.generation != self.generation {
            return Err(stopped_error());
        }
        Ok(state.free_bytes())
    }

    fn lock(&self) -> Result<LockGuard, LockError> {
        {
            let mut state = self.state();
            if state.enter(self.generation, b'k', LOCK_FILE, 0, 0)? == Entered::Stops {
                return Err(stopped_error().into());
            }
            if state.locked {
                return Err(LockError::Held { pid: Some(process_id(state.generation)) });
            }
            if !state.names.contains_key(LOCK_FILE) {
                state.create(Entered::Runs, LOCK_FILE)?;
            }
            state.locked = true;
        }
        Ok(LockGuard(Box::new(SimLock { disk: self.clone() })))
    }
}

/// A process of the simulation has a number too.
fn process_id(generation: u64) -> u32 {
    1 + u32::try_from(generation).unwrap_or(u32::MAX - 1)
}

struct SimLock {
    disk: SimDisk,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.generation == self.disk.generation {
            state.locked = false;
        }
    }
}

struct SimFile {
    disk: SimDisk,
    name: String,
    inode: u64,
    cached: bool,
}

impl SimFile {
    fn enter(&self, kind: u8, a: u64, b: u64) -> io::Result<(MutexGuard<'_, State>, Entered)> {
        let mut state = self.disk.state();
        let entered = state.enter(self.disk.generation, kind, &self.name, a, b)?;
        Ok((state, entered))
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.cached {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "opened for reading only"))
    }
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (mut state, entered) = self.enter(b'r', offset, buffer.len() as u64)?;
        if entered == Entered::Stops {
            return Err(stopped_error());
        }
        state.read(self.inode, &self.name, self.cached, buffer, offset)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.check_writable()?;
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let (mut state, entered) = self.enter(b'w', offset, bytes.len() as u64)?;
        state.write(entered, self.inode, &self.name, &bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut state, entered) = self.enter(b's', 0, 0)?;
        state.sync(entered, self.inode, &self.name)
    }

    fn sync_all(&self) -> io::Result<()> {
        let (mut state, entered) = self.enter(b'S', 0, 0)?;
        state.sync(entered, self.inode, &self.name)
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.disk.state();
        if state.stopped || state.generation != self.disk.generation {
            return Err(stopped_error());
        }
        Ok(state.inode(self.inode).cache.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let (mut state, entered) = self.enter(b't', len, 0)?;
        state.set_len(entered, self.inode, len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len > self.len()? { self.set_len(len) } else { Ok(()) }
    }
}
