//! A folder in memory, without faults: a naive second opinion on the simulated disk, cheap to fill and to copy.
//!
//! Files made by [`MemoryDisk::of`] share their bytes with the image until somebody writes to them, so that a sweep
//! can open one image a million times. Syncs do nothing: nothing is ever lost.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use super::{Disk, File, LockError, LockGuard};

type Bytes = Arc<Mutex<Arc<Vec<u8>>>>;

/// The folder. Clones are the same folder.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    files: Arc<Mutex<BTreeMap<String, Bytes>>>,
}

impl MemoryDisk {
    /// A folder that holds these files.
    pub fn of(files: &BTreeMap<String, Vec<u8>>) -> Self {
        Self::sharing(files.iter().map(|(name, bytes)| (name.clone(), Arc::new(bytes.clone()))))
    }

    /// A folder whose files share these bytes until they are written to.
    pub fn sharing(files: impl IntoIterator<Item = (String, Arc<Vec<u8>>)>) -> Self {
        let files = files.into_iter().map(|(name, bytes)| (name, Arc::new(Mutex::new(bytes))));
        Self { files: Arc::new(Mutex::new(files.collect())) }
    }

    /// The files as they are now.
    pub fn image(&self) -> BTreeMap<String, Arc<Vec<u8>>> {
        let files = self.files.lock().expect("no operation panics half way");
        files.iter().map(|(name, bytes)| (name.clone(), held(bytes))).collect()
    }
}

fn held(bytes: &Bytes) -> Arc<Vec<u8>> {
    bytes.lock().expect("no operation panics half way").clone()
}

impl Disk for MemoryDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut files = self.files.lock().expect("no operation panics half way");
        if files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let bytes = Bytes::default();
        files.insert(name.to_owned(), bytes.clone());
        Ok(Arc::new(MemoryFile(bytes)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let files = self.files.lock().expect("no operation panics half way");
        let bytes = files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile(bytes.clone())))
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock().expect("no operation panics half way");
        let bytes = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), bytes);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.files.lock().expect("no operation panics half way").remove(name);
        removed.map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().expect("no operation panics half way").keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn lock(&self) -> Result<LockGuard, LockError> {
        // Whoever holds a folder in memory is alone with it.
        Ok(LockGuard(Box::new(())))
    }
}

struct MemoryFile(Bytes);

impl File for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = held(&self.0);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut shared = self.0.lock().expect("no operation panics half way");
        let bytes = Arc::make_mut(&mut shared);
        let begin = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut at = begin;
        for slice in slices {
            let end = at + slice.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at..end].copy_from_slice(slice);
            at = end;
        }
        Ok(at - begin)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(held(&self.0).len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        Arc::make_mut(&mut self.0.lock().expect("no operation panics half way")).resize(len, 0);
        Ok(())
    }
}
