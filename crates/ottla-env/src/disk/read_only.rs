//! A folder that is only looked at: reads go through, whatever would change something is refused.
//!
//! Files are opened for reading alone and past the page cache, so that what is seen is what the disk has. The lock is
//! neither taken nor written: whoever looks at a folder that somebody works on sees it move.

use std::io;
use std::sync::Arc;

use super::{Disk, File, LockError, LockGuard, Origin};

/// A folder for reading.
pub struct ReadOnlyDisk {
    disk: Arc<dyn Disk>,
    is_original: bool,
}

impl ReadOnlyDisk {
    /// Looks at that folder.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, is_original: false }
    }

    /// Looks at that folder, and takes it for an original though it may be a copy.
    pub fn as_original(disk: Arc<dyn Disk>) -> Self {
        Self { disk, is_original: true }
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the folder is only looked at"))
}

impl Disk for ReadOnlyDisk {
    fn create(&self, _name: &str) -> io::Result<Arc<dyn File>> {
        refused()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.open_uncached(name)
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.disk.open_uncached(name)
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        refused()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        refused()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn total_bytes(&self) -> io::Result<Option<u64>> {
        self.disk.total_bytes()
    }

    fn lock(&self) -> Result<LockGuard, LockError> {
        Ok(LockGuard(Box::new(())))
    }

    fn origin(&self) -> io::Result<Origin> {
        if self.is_original { Ok(Origin::Here) } else { self.disk.origin() }
    }

    fn claim(&self) -> io::Result<()> {
        refused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::os::OsDisk;

    /// Proves that a looked-at folder can be read and not changed, and that its lock is left alone.
    #[test]
    fn nothing_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Arc::new(OsDisk::open(folder.path()).expect("opened"));
        let file = disk.create("x").expect("created");
        file.write_vectored_at(&[io::IoSlice::new(b"bytes")], 0).expect("written");
        let guard = disk.lock().expect("free");
        let looked = ReadOnlyDisk::new(disk.clone());
        let file = looked.open("x").expect("there");
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"bytes");
        assert!(file.set_len(0).is_err() && file.write_vectored_at(&[io::IoSlice::new(b"!")], 0).is_err());
        assert!(
            looked.create("y").is_err() && looked.remove("x").is_err() && looked.rename("x", "y").is_err()
        );
        assert!(looked.lock().is_ok(), "it does not ask for the lock");
        assert!(matches!(disk.holder(), Err(LockError::Held { pid: Some(_) })), "and breaks none");
        drop(guard);
        assert!(disk.holder().is_ok());
    }
}
