//! The door to the disk: one folder, flat file names, explicit syncs.
//!
//! Implementations: the operating system's (`os`), a plain one in memory (`memory`), and a simulated one for tests
//! (`sim`) that keeps, drops, tears or reorders unsynced writes at a crash.

pub mod memory;
pub mod os;
pub mod read_only;
pub mod sim;

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Name of the file that carries the folder's lock; `Disk::list` names it like any other once it exists.
pub const LOCK_FILE: &str = "lock";

/// The folder could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process (or another owner in this one) holds it.
    #[error("the folder is in use{}", match .pid { Some(pid) => format!(" by process {pid}"), None => String::new() })]
    Held {
        /// Its process id, when the lock file tells.
        pid: Option<u32>,
    },
    /// The lock file could not be opened, locked or written.
    #[error("the lock file: {0}")]
    Io(#[from] io::Error),
}

/// Whether a folder is where its files were written, as far as its lock file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is, or nothing says otherwise.
    Here,
    /// Its files were copied: whoever copied them may have done so while somebody wrote.
    Copied,
}

/// Holds the folder's lock until it is dropped (or the process ends).
pub struct LockGuard(#[allow(dead_code)] Box<dyn Any + Send + Sync>); // kept only for its drop

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockGuard")
    }
}

/// One folder. All names are relative and flat (no separators).
pub trait Disk: Send + Sync {
    /// Creates a file that must not exist.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file so that its reads come from the disk and not from the page cache (O_DIRECT where
    /// the file system has it, else the cache is dropped first). Read-only.
    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Renames within the folder; not durable before `sync_dir`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; not durable before `sync_dir`.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// File names in the folder, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Free bytes for this process on the file system.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Bytes of the file system, free or not; none where there is no such number.
    fn total_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Takes the folder for this process alone: an exclusive lock on the file `LOCK_FILE` (made if absent),
    /// which then holds our process id as text. Creates nothing else.
    fn lock(&self) -> Result<LockGuard, LockError>;
    /// Whether the folder is a copy; to be asked before `lock`, which may make the lock file. A disk that cannot be
    /// copied says no.
    fn origin(&self) -> io::Result<Origin> {
        Ok(Origin::Here)
    }
    /// Notes durably that the folder is whole as it is: `origin` says `Here` from now on, and `Copied` of a copy of
    /// it. The caller holds the lock.
    fn claim(&self) -> io::Result<()> {
        Ok(())
    }
}

/// One open file. Offsets are explicit; there is no cursor.
pub trait File: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes the slices one behind the other at `offset`; may write less than asked, and says how much.
    fn write_vectored_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// fdatasync: data, and the metadata needed to read it back.
    fn sync_data(&self) -> io::Result<()>;
    /// fsync.
    fn sync_all(&self) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Extends the file to `len` bytes that read as zeros and whose room on the disk is taken. Fails with ENOSPC when
    /// there is no such room; the file may be longer than before then.
    fn allocate(&self, len: u64) -> io::Result<()> {
        extend_with_zeros(self, len)
    }

    /// Fills the buffer or fails with `UnexpectedEof`.
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            let n = self.read_at(buffer, offset)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer = buffer.split_at_mut(n).1;
            offset += n as u64;
        }
        Ok(())
    }
}

/// `File::allocate` by writing.
fn extend_with_zeros(file: &(impl File + ?Sized), len: u64) -> io::Result<()> {
    let zeros = [0; 64 << 10];
    let mut at = file.len()?;
    while at < len {
        let step = usize::try_from(len - at).unwrap_or(zeros.len()).min(zeros.len());
        match file.write_vectored_at(&[io::IoSlice::new(&zeros[..step])], at)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => at += written as u64,
        }
    }
    Ok(())
}

/// Refuses names that are not one plain component, so that no caller can leave the folder.
fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a flat file name"));
    }
    Ok(())
}
