//! A disk whose syncs can be counted, held back and slowed down, around the simulated one.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use ottla_env::disk::sim::SimDisk;
use ottla_env::disk::{Disk, File, LockError, LockGuard};

/// Counts and holds syncs of data.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    syncs: u64,
    waiting: u64,
    held: bool,
    slow: Duration,
}

impl Gate {
    /// Syncs that have succeeded.
    pub(crate) fn syncs(&self) -> u64 {
        self.state.lock().expect("no panic").syncs
    }

    /// From now on syncs wait until released.
    pub(crate) fn hold(&self, held: bool) {
        self.state.lock().expect("no panic").held = held;
        self.changed.notify_all();
    }

    /// From now on each sync takes this long.
    pub(crate) fn slow(&self, by: Duration) {
        self.state.lock().expect("no panic").slow = by;
    }

    /// Waits until a sync is held.
    pub(crate) fn wait_for_a_held_sync(&self) {
        let state = self.state.lock().expect("no panic");
        drop(self.changed.wait_while(state, |state| state.waiting == 0).expect("no panic"));
    }

    fn pass(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.waiting += 1;
        self.changed.notify_all();
        let slow = state.slow;
        state = self.changed.wait_while(state, |state| state.held).expect("no panic");
        if !slow.is_zero() {
            state = self.changed.wait_timeout_while(state, slow, |_| true).expect("no panic").0;
        }
        state.waiting -= 1;
        state.syncs += 1;
    }
}

/// The gated disk.
pub(crate) struct GatedDisk {
    inner: SimDisk,
    gate: Arc<Gate>,
}

impl GatedDisk {
    /// A new, empty disk and its gate.
    pub(crate) fn with_gate(seed: u64) -> (Arc<dyn Disk>, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        (Arc::new(Self { inner: SimDisk::new(seed), gate: gate.clone() }), gate)
    }

    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(GatedFile { inner: file, gate: self.gate.clone() })
    }
}

impl Disk for GatedDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(self.inner.create(name)?))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(self.inner.open(name)?))
    }
    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.inner.open_uncached(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.inner.sync_dir()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
    fn lock(&self) -> Result<LockGuard, LockError> {
        self.inner.lock()
    }
}

struct GatedFile {
    inner: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl File for GatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }
    fn write_vectored_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.inner.write_vectored_at(slices, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.inner.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.inner.sync_all()
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
}
