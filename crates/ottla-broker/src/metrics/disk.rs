//! A disk that counts: bytes, calls, failures, and how long syncs take.
//!
//! Place: around the folder's disk, below storage, so that whatever reads or writes there is seen. It changes
//! nothing, and passes every call on.

use std::io;
use std::sync::Arc;

use ottla_env::clock::Clock;
use ottla_env::disk::{Disk, File, LockError, LockGuard, Origin};

use super::cells::{Counter, Histogram, TIMES};

/// What a file is for; a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Of the log, those prepared ahead included.
    Log,
    /// A snapshot.
    Snapshot,
    /// Neither.
    Other,
}

impl FileKind {
    /// Every kind, in the order of the cells.
    pub const ALL: [Self; 3] = [Self::Log, Self::Snapshot, Self::Other];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Snapshot => "snapshot",
            Self::Other => "other",
        }
    }

    fn of(name: &str) -> Self {
        match name {
            name if name.contains(".snapshot") => Self::Snapshot,
            name if name.ends_with(".log") || name.starts_with("log-") => Self::Log,
            name if name.ends_with(".data") || name.starts_with("data-") => Self::Log,
            _ => Self::Other,
        }
    }
}

/// What is counted for one kind of file.
#[derive(Debug)]
pub struct FileCells {
    /// Bytes written; zeros that files are prepared with included.
    pub written_bytes: Counter,
    /// Calls that wrote.
    pub writes: Counter,
    /// Bytes read.
    pub read_bytes: Counter,
    /// Calls that read.
    pub reads: Counter,
    /// Duration of each fdatasync and fsync.
    pub syncs: Histogram,
    /// Reads that failed.
    pub read_errors: Counter,
    /// Writes that failed; changes of the length too.
    pub write_errors: Counter,
    /// Syncs that failed.
    pub sync_errors: Counter,
}

impl Default for FileCells {
    fn default() -> Self {
        Self {
            written_bytes: Counter::default(),
            writes: Counter::default(),
            read_bytes: Counter::default(),
            reads: Counter::default(),
            syncs: Histogram::new(TIMES),
            read_errors: Counter::default(),
            write_errors: Counter::default(),
            sync_errors: Counter::default(),
        }
    }
}

/// All kinds of files, in the order of [`FileKind::ALL`].
#[derive(Debug, Default)]
pub struct DiskCells {
    kinds: [FileCells; 3],
}

impl DiskCells {
    /// The cells of a kind.
    pub fn of(&self, kind: FileKind) -> &FileCells {
        &self.kinds[kind as usize]
    }
}

/// The counting disk.
pub struct MeteredDisk {
    inner: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    cells: Arc<DiskCells>,
}

struct MeteredFile {
    inner: Arc<dyn File>,
    clock: Arc<dyn Clock>,
    cells: Arc<DiskCells>,
    kind: FileKind,
}

impl MeteredDisk {
    /// Counts what goes to `inner`.
    pub fn new(inner: Arc<dyn Disk>, clock: Arc<dyn Clock>, cells: Arc<DiskCells>) -> Self {
        Self { inner, clock, cells }
    }

    fn wrap(&self, name: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        let (clock, cells) = (self.clock.clone(), self.cells.clone());
        Arc::new(MeteredFile { inner: file, clock, cells, kind: FileKind::of(name) })
    }
}

impl Disk for MeteredDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(name, self.inner.create(name)?))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(name, self.inner.open(name)?))
    }
    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(name, self.inner.open_uncached(name)?))
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
    fn total_bytes(&self) -> io::Result<Option<u64>> {
        self.inner.total_bytes()
    }
    fn lock(&self) -> Result<LockGuard, LockError> {
        self.inner.lock()
    }
    fn origin(&self) -> io::Result<Origin> {
        self.inner.origin()
    }
    fn claim(&self) -> io::Result<()> {
        self.inner.claim()
    }
}

impl MeteredFile {
    fn sync(&self, sync: impl FnOnce(&dyn File) -> io::Result<()>) -> io::Result<()> {
        let cells = self.cells.of(self.kind);
        let began = self.clock.monotonic();
        let synced = sync(&*self.inner);
        cells.syncs.observe_time(self.clock.monotonic().saturating_sub(began));
        cells.sync_errors.add(u64::from(synced.is_err()));
        synced
    }
}

impl File for MeteredFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let cells = self.cells.of(self.kind);
        let read = self.inner.read_at(buffer, offset);
        cells.reads.add(1);
        match &read {
            Ok(bytes) => cells.read_bytes.add(*bytes as u64),
            Err(_) => cells.read_errors.add(1),
        }
        read
    }
    fn write_vectored_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let cells = self.cells.of(self.kind);
        let written = self.inner.write_vectored_at(slices, offset);
        cells.writes.add(1);
        match &written {
            Ok(bytes) => cells.written_bytes.add(*bytes as u64),
            Err(_) => cells.write_errors.add(1),
        }
        written
    }
    fn sync_data(&self) -> io::Result<()> {
        self.sync(|file| file.sync_data())
    }
    fn sync_all(&self) -> io::Result<()> {
        self.sync(|file| file.sync_all())
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        let made = self.inner.allocate(len);
        self.cells.of(self.kind).write_errors.add(u64::from(made.is_err()));
        made
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let set = self.inner.set_len(len);
        self.cells.of(self.kind).write_errors.add(u64::from(set.is_err()));
        set
    }
}

#[cfg(test)]
mod tests {
    use ottla_env::clock::OsClock;
    use ottla_env::disk::sim::{Fault, SimDisk};

    use super::*;

    /// Proves: bytes, calls, syncs and failures are counted by kind of file, and every call gets through.
    #[test]
    fn everything_is_passed_on_and_counted() {
        let cells = Arc::new(DiskCells::default());
        let sim = SimDisk::new(1);
        let disk = MeteredDisk::new(Arc::new(sim.clone()), Arc::new(OsClock), cells.clone());
        let file = disk.create("log-0000000001-ahead-1.tmp").expect("created");
        assert_eq!(file.write_vectored_at(&[io::IoSlice::new(b"hello")], 0).expect("written"), 5);
        file.sync_data().expect("synced");
        disk.rename("log-0000000001-ahead-1.tmp", "00000000000000000001.log").expect("renamed");
        disk.sync_dir().expect("synced");
        let again = disk.open("00000000000000000001.log").expect("there");
        let mut buffer = [0; 8];
        assert_eq!(again.read_at(&mut buffer, 0).expect("read"), 5);
        assert_eq!(again.len().expect("known"), 5);
        sim.inject(Fault::SyncError, "");
        assert!(file.sync_data().is_err());
        let log = cells.of(FileKind::Log);
        assert_eq!((log.writes.get(), log.written_bytes.get()), (1, 5));
        assert_eq!((log.reads.get(), log.read_bytes.get()), (1, 5));
        assert_eq!((log.syncs.read().count(), log.sync_errors.get()), (2, 1));
        let snapshot = disk.create("00000000000000000001-0000000001.snapshot.tmp").expect("created");
        snapshot.sync_all().expect("synced");
        assert_eq!(cells.of(FileKind::Snapshot).syncs.read().count(), 1);
        assert_eq!(cells.of(FileKind::Other).syncs.read().count(), 0);
    }
}
