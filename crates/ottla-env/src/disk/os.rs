//! The folder of the operating system.
//!
//! Positioned reads and writes, explicit syncs, no buffering of its own. `open_uncached` reads with O_DIRECT
//! through aligned buffers; a file system without it gets the page cache dropped first instead. Interrupted
//! calls are repeated. Nothing here retries a failed sync.

#![allow(clippy::disallowed_methods)] // this is the seam that everybody else uses

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{Disk, File, LOCK_FILE, LockError, LockGuard, Origin, check_name};

/// Alignment of addresses, offsets and lengths that O_DIRECT asks for on every file system we know.
const DIRECT_ALIGNMENT: usize = 4096;
/// Most bytes of one direct read; a longer one comes back short.
const DIRECT_READ_BYTES_MAX: usize = 1 << 20;
/// Most slices the kernel takes in one call (IOV_MAX).
const SLICES_MAX: usize = 1024;
/// Longest text that a lock file holds.
const LOCK_TEXT_BYTES_MAX: usize = 128;
/// Begins the line of a lock file that says which file it is.
const IDENTITY: &str = "file ";

/// One folder on a local file system.
#[derive(Debug)]
pub struct OsDisk {
    path: PathBuf,
    folder: OwnedFd,
}

impl OsDisk {
    /// Opens a folder that exists.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))?;
        Ok(Self { path: path.to_owned(), folder })
    }

    /// Opens a folder; makes it, and those above it, durably when it is absent.
    pub fn open_or_create(path: &Path) -> io::Result<Self> {
        let mut absent = Vec::new();
        let mut at = path;
        while !at.as_os_str().is_empty() && !at.exists() {
            absent.push(at);
            match at.parent() {
                Some(parent) => at = parent,
                None => break,
            }
        }
        for made in absent.into_iter().rev() {
            match fs::create_dir(made) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
            let parent = match made.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            fs::File::open(parent)?.sync_all()?;
        }
        Self::open(path)
    }

    /// Whether somebody holds the folder's lock, without keeping or writing it; `Held` when so.
    pub fn holder(&self) -> Result<(), LockError> {
        let fd = match self.open_at(LOCK_FILE, OFlags::RDONLY) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match retry_on_intr(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared)) {
            Ok(()) => Ok(()), // closing the descriptor gives it back
            Err(Errno::WOULDBLOCK) => Err(LockError::Held { pid: written_pid(fd) }),
            Err(errno) => Err(LockError::Io(errno.into())),
        }
    }

    /// The folder's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_at(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        check_name(name)?;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
        Ok(retry_on_intr(|| rustix::fs::openat(&self.folder, name, flags | OFlags::CLOEXEC, mode))?)
    }

    /// A direct descriptor that can be read from, or none when the file system refuses.
    fn open_direct(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        let fd = match self.open_at(name, OFlags::RDONLY | OFlags::DIRECT) {
            Ok(fd) => fd,
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut probe = vec![0; DIRECT_ALIGNMENT * 2];
        let start = probe.as_ptr().align_offset(DIRECT_ALIGNMENT);
        match retry_on_intr(|| rustix::io::pread(&fd, &mut probe[start..start + DIRECT_ALIGNMENT], 0)) {
            Err(Errno::INVAL) => Ok(None),
            // Any other failure is the reader's to see, at the place it reads.
            Ok(_) | Err(_) => Ok(Some(fd)),
        }
    }
}

impl Disk for OsDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let fd = self.open_at(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        Ok(Arc::new(OsFile { fd }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(OsFile { fd: self.open_at(name, OFlags::RDWR)? }))
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        if let Some(fd) = self.open_direct(name)? {
            return Ok(Arc::new(DirectFile { fd }));
        }
        let fd = self.open_at(name, OFlags::RDONLY)?;
        rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed)?;
        Ok(Arc::new(OsFile { fd }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        Ok(retry_on_intr(|| rustix::fs::renameat(&self.folder, from, &self.folder, to))?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(retry_on_intr(|| rustix::fs::unlinkat(&self.folder, name, rustix::fs::AtFlags::empty()))?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_str().map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidData, "a file's name in the folder is not UTF-8")
            })?;
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fsync(&self.folder))?)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = retry_on_intr(|| rustix::fs::fstatvfs(&self.folder))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn total_bytes(&self) -> io::Result<Option<u64>> {
        let stat = retry_on_intr(|| rustix::fs::fstatvfs(&self.folder))?;
        Ok(Some(stat.f_blocks.saturating_mul(stat.f_frsize)))
    }

    fn lock(&self) -> Result<LockGuard, LockError> {
        let (fd, is_new) = match self.open_at(LOCK_FILE, OFlags::RDWR) {
            Ok(fd) => (fd, false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (self.open_at(LOCK_FILE, OFlags::RDWR | OFlags::CREATE)?, true)
            }
            Err(error) => return Err(error.into()),
        };
        match retry_on_intr(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(LockError::Held { pid: written_pid(fd) }),
            Err(errno) => return Err(LockError::Io(errno.into())),
        }
        let file = OsFile { fd };
        // Files without a lock file were copied, and are until somebody has found them whole.
        let identity = if is_new { Some((0, 0)) } else { written_identity(&file)? };
        write_lock(&file, identity)?;
        Ok(LockGuard(Box::new(file)))
    }

    fn origin(&self) -> io::Result<Origin> {
        let file = match self.open_at(LOCK_FILE, OFlags::RDONLY) {
            Ok(fd) => OsFile { fd },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Origin::Copied),
            Err(error) => return Err(error),
        };
        let is_here = match written_identity(&file)? {
            Some(written) => written == identity_of(&file.fd)?,
            None => true, // of a version that did not write it
        };
        Ok(if is_here { Origin::Here } else { Origin::Copied })
    }

    fn claim(&self) -> io::Result<()> {
        let file = OsFile { fd: self.open_at(LOCK_FILE, OFlags::RDWR)? };
        let identity = identity_of(&file.fd)?;
        if written_identity(&file)? == Some(identity) {
            return Ok(());
        }
        write_lock(&file, Some(identity))?;
        file.sync_all()?;
        self.sync_dir()
    }
}

/// Writes a lock file whole: our process id, and which file it is.
fn write_lock(file: &OsFile, identity: Option<(u64, i64)>) -> io::Result<()> {
    let identity = identity.map(|(inode, born)| format!("{IDENTITY}{inode} {born}\n")).unwrap_or_default();
    let text = format!("{}\n{identity}", std::process::id());
    file.write_vectored_at(&[IoSlice::new(text.as_bytes())], 0)?;
    file.set_len(text.len() as u64)
}

fn lock_text(file: &OsFile) -> io::Result<String> {
    let mut text = [0; LOCK_TEXT_BYTES_MAX];
    let read = file.read_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..read]).into_owned())
}

/// The process id in a lock file.
fn written_pid(fd: OwnedFd) -> Option<u32> {
    lock_text(&OsFile { fd }).ok()?.lines().next()?.trim().parse().ok()
}

/// Which file a lock file says it is: inode, and when it was made in ns. A copy is another file. The device is not
/// part of it: its number may change when the machine starts.
fn written_identity(file: &OsFile) -> io::Result<Option<(u64, i64)>> {
    let text = lock_text(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(IDENTITY)?.split_once(' '));
    Ok(line.and_then(|(inode, born)| Some((inode.parse().ok()?, born.parse().ok()?))))
}

/// Which file a lock file is; 0 ns where the file system does not keep when a file was made.
fn identity_of(fd: &OwnedFd) -> io::Result<(u64, i64)> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = retry_on_intr(|| rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, wanted))?;
    let has_time = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let born = found.stx_btime.tv_sec.saturating_mul(1_000_000_000) + i64::from(found.stx_btime.tv_nsec);
    Ok((found.stx_ino, if has_time { born } else { 0 }))
}

/// An open file, read and written through the page cache.
#[derive(Debug)]
struct OsFile {
    fd: OwnedFd,
}

fn len_of(fd: &OwnedFd) -> io::Result<u64> {
    let stat = retry_on_intr(|| rustix::fs::fstat(fd))?;
    u64::try_from(stat.st_size)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a file of negative size"))
}

impl File for OsFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::pread(&self.fd, &mut *buffer, offset))?)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let slices = &slices[..slices.len().min(SLICES_MAX)];
        Ok(retry_on_intr(|| rustix::io::pwritev(&self.fd, slices, offset))?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fdatasync(&self.fd))?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fsync(&self.fd))?)
    }

    fn len(&self) -> io::Result<u64> {
        len_of(&self.fd)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::ftruncate(&self.fd, len))?)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let have = self.len()?;
        if have >= len {
            return Ok(());
        }
        let mode = rustix::fs::FallocateFlags::empty();
        match retry_on_intr(|| rustix::fs::fallocate(&self.fd, mode, have, len - have)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => super::extend_with_zeros(self, len),
            done => Ok(done?),
        }
    }
}

/// An open file whose reads bypass the page cache. Read-only.
#[derive(Debug)]
struct DirectFile {
    fd: OwnedFd,
}

impl File for DirectFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let alignment = DIRECT_ALIGNMENT as u64;
        let aligned_offset = offset / alignment * alignment;
        let skip = usize::try_from(offset - aligned_offset).expect("smaller than the alignment");
        let asked = buffer.len().min(DIRECT_READ_BYTES_MAX);
        let aligned_len = (skip + asked).next_multiple_of(DIRECT_ALIGNMENT);
        let mut space = vec![0; aligned_len + DIRECT_ALIGNMENT];
        let start = space.as_ptr().align_offset(DIRECT_ALIGNMENT);
        let aligned = &mut space[start..start + aligned_len];
        let n = retry_on_intr(|| rustix::io::pread(&self.fd, &mut *aligned, aligned_offset))?;
        let n = n.saturating_sub(skip).min(asked);
        buffer[..n].copy_from_slice(&aligned[skip..skip + n]);
        Ok(n)
    }

    fn write_vectored_at(&self, _slices: &[IoSlice<'_>], _offset: u64) -> io::Result<usize> {
        Err(read_only())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fdatasync(&self.fd))?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fsync(&self.fd))?)
    }

    fn len(&self) -> io::Result<u64> {
        len_of(&self.fd)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(read_only())
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "opened for reading only")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that what is written in slices at an offset is read back, cached and uncached, at odd offsets and
    /// over the end.
    #[test]
    fn bytes_come_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = OsDisk::open_or_create(&folder.path().join("a").join("b")).expect("created");
        let file = disk.create("x").expect("created");
        assert_eq!(disk.create("x").err().map(|e| e.kind()), Some(io::ErrorKind::AlreadyExists));
        let body: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
        let slices = [IoSlice::new(&body[..10]), IoSlice::new(&body[10..])];
        assert_eq!(file.write_vectored_at(&slices, 5_000).expect("written"), body.len());
        file.sync_data().expect("synced");
        for file in [file, disk.open("x").expect("there"), disk.open_uncached("x").expect("there")] {
            assert_eq!(file.len().expect("known"), 45_000);
            let mut read = vec![1; 40_000];
            file.read_exact_at(&mut read, 5_000).expect("read");
            assert_eq!(read, body);
            let mut odd = [1; 100];
            file.read_exact_at(&mut odd, 4_950).expect("read");
            assert!(odd[..50] == [0; 50] && odd[50..] == body[..50]);
            assert_eq!(file.read_at(&mut odd, 44_990).expect("read"), 10);
            assert_eq!(file.read_at(&mut odd, 45_000).expect("read"), 0);
        }
        assert!(disk.open_uncached("x").expect("there").set_len(0).is_err(), "uncached files are read-only");
    }

    /// Proves that allocated room reads as zeros behind what was there, and that a file is never made shorter by it.
    #[test]
    fn allocated_room_reads_as_zeros() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = OsDisk::open(folder.path()).expect("opened").create("x").expect("created");
        file.write_vectored_at(&[IoSlice::new(b"bytes")], 0).expect("written");
        for allocate in [100_000, 10] {
            file.allocate(allocate).expect("there is room");
            assert_eq!(file.len().expect("known"), 100_000);
        }
        super::super::extend_with_zeros(&*file, 200_001).expect("there is room");
        let mut read = vec![1; 200_001];
        file.read_exact_at(&mut read, 0).expect("read");
        assert!(&read[..5] == b"bytes" && read[5..].iter().all(|byte| *byte == 0));
    }

    /// Proves renames, removals, listing and the refusal of names that leave the folder.
    #[test]
    fn names_are_flat() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = OsDisk::open(folder.path()).expect("opened");
        disk.create("b").expect("created");
        disk.create("c").expect("created");
        disk.rename("c", "a").expect("renamed");
        disk.sync_dir().expect("synced");
        assert_eq!(disk.list().expect("listed"), ["a", "b"]);
        disk.remove("a").expect("removed");
        assert_eq!(disk.open("a").err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
        assert!(disk.free_bytes().expect("known") > 0);
        assert!(disk.total_bytes().expect("known") >= disk.free_bytes().ok());
        for name in ["", ".", "..", "a/b", "../x", "a\0"] {
            assert_eq!(disk.create(name).err().map(|e| e.kind()), Some(io::ErrorKind::InvalidInput));
        }
    }

    /// Proves that a second lock is refused and names the holder, and that dropping the guard frees it.
    #[test]
    fn the_lock_names_its_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = OsDisk::open(folder.path()).expect("opened");
        let second = OsDisk::open(folder.path()).expect("opened");
        let guard = first.lock().expect("free");
        let refused = second.lock().expect_err("held");
        assert!(matches!(refused, LockError::Held { pid: Some(pid) } if pid == std::process::id()));
        assert_eq!(refused.to_string(), format!("the folder is in use by process {}", std::process::id()));
        drop(guard);
        second.lock().expect("free again");
    }

    /// Proves that a folder knows itself once it was claimed, over locks; that a copy of it is known as one, also
    /// after it was locked, until it is claimed; and that a folder of an older version passes for itself.
    #[test]
    fn a_copy_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = OsDisk::open(folder.path()).expect("opened");
        assert_eq!(
            disk.origin().expect("told"),
            Origin::Copied,
            "files without a lock file came from elsewhere"
        );
        drop(disk.lock().expect("free"));
        assert_eq!(disk.origin().expect("told"), Origin::Copied, "nobody has claimed it");
        let guard = disk.lock().expect("free");
        disk.claim().expect("claimed");
        drop(guard);
        drop(disk.lock().expect("free"));
        assert_eq!(disk.origin().expect("told"), Origin::Here);

        let other = tempfile::tempdir().expect("a folder");
        let path = |folder: &tempfile::TempDir| folder.path().join(LOCK_FILE);
        fs::copy(path(&folder), path(&other)).expect("copied");
        let copy = OsDisk::open(other.path()).expect("opened");
        assert_eq!(copy.origin().expect("told"), Origin::Copied);
        let guard = copy.lock().expect("free");
        assert_eq!(copy.origin().expect("told"), Origin::Copied, "a lock alone does not make it whole");
        assert!(disk.lock().is_ok() && matches!(copy.holder(), Err(LockError::Held { pid: Some(_) })));
        copy.claim().expect("claimed");
        drop(guard);
        assert_eq!(copy.origin().expect("told"), Origin::Here);

        fs::write(path(&other), "77\n").expect("written");
        assert_eq!(copy.origin().expect("told"), Origin::Here);
    }
}
