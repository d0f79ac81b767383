//! A folder in memory, without faults: a naive second opinion on the simulated disk, and cheap to fill and copy.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use ottla_env::disk::{Disk, File, LockError, LockGuard};

type Bytes = Arc<Mutex<Vec<u8>>>;

/// The folder.
#[derive(Clone, Default)]
pub(super) struct MemoryDisk {
    files: Arc<Mutex<BTreeMap<String, Bytes>>>,
}

impl MemoryDisk {
    /// A folder that holds these files.
    pub(super) fn of(files: &BTreeMap<String, Vec<u8>>) -> Self {
        let files = files.iter().map(|(name, bytes)| (name.clone(), Arc::new(Mutex::new(bytes.clone()))));
        Self { files: Arc::new(Mutex::new(files.collect())) }
    }
}

impl Disk for MemoryDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut files = self.files.lock().expect("sound");
        if files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let bytes = Bytes::default();
        files.insert(name.to_owned(), bytes.clone());
        Ok(Arc::new(MemoryFile(bytes)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let files = self.files.lock().expect("sound");
        let bytes = files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile(bytes.clone())))
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock().expect("sound");
        let bytes = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), bytes);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.files.lock().expect("sound").remove(name);
        removed.map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().expect("sound").keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn lock(&self) -> Result<LockGuard, LockError> {
        // The guard's type is not ours to make: the simulated disk's lock file stands in for ours.
        ottla_env::disk::sim::SimDisk::new(0).lock()
    }
}

struct MemoryFile(Bytes);

impl File for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.0.lock().expect("sound");
        let from = (offset as usize).min(bytes.len());
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut bytes = self.0.lock().expect("sound");
        let mut at = offset as usize;
        for slice in slices {
            let end = at + slice.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at..end].copy_from_slice(slice);
            at = end;
        }
        Ok(at - offset as usize)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("sound").len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().expect("sound").resize(len as usize, 0);
        Ok(())
    }
}
