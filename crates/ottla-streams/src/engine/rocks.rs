//! The engine on disk: one RocksDB per task, a column family per store, the meta record in the default family.
//!
//! A batch is one `WriteBatch` over all families. With the write-ahead log (the default) a killed process loses
//! nothing, and a power cut takes the newest batches, whole. Without it everything since the last flush is lost; then
//! only atomic flush keeps the families together, so it is always on. One mode per open, never mixed.
//!
//! A hole between two logs (the tail of one lost, the next one kept) would be a position without its updates. So we,
//! not RocksDB, decide when memory goes to files: buffers are larger than the budget, the log is synced before every
//! flush, and RocksDB records and verifies its logs, with point-in-time recovery.
//!
//! All engines of a process share one block cache and one budget for memory that is not in files yet: whoever writes
//! beyond it flushes the largest, also when that is another task's.
//!
//! A disk that is full refuses the batch; RocksDB goes on by itself within seconds once twice the budget is free, and
//! the same batch may be written again.
//!
//! A snapshot keeps its database open, also when its task has gone. A task that comes back finds the open database by
//! the identity of its folder (`open_now`) and goes on with it; one whose writes have failed is never used again, since
//! RocksDB refuses everything from then on: whoever wants it opened anew waits until its snapshots are gone.
//!
//! Place in the walk: see [`super`]. Not here: setting damaged folders aside ([`crate::state_dir`]).

mod budget;
mod open_now;
mod options;

use std::fmt;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use ottla_env::files;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, ErrorKind, FlushOptions, IteratorMode, ReadOptions, WriteBatch,
    WriteOptions, properties,
};
use self_cell::self_cell;

use super::{Batch, Direction, Engine, EngineError, EngineStats, KeyRange, Scan, StoreId, Update, View};

pub use options::{RocksSettings, RocksShared};

/// Key of the meta record in the default family.
const META_KEY: &[u8] = b"meta";
/// A file with this name says that a read has found damage, and what: opening alone may not see it again.
const DAMAGED: &str = "OTTLA_DAMAGED";
/// Before the store's name in the family's: no store can be called `default`.
const FAMILY_PREFIX: &str = "store.";

/// An open database. Closed when the engine and all snapshots of it are gone.
struct Inner {
    db: DB,
    folder: PathBuf,
    /// Family names by [`StoreId`].
    families: Vec<String>,
    wal: bool,
    /// Held from the sync of the log to the switch of the buffers: no batch may come between.
    writing: Mutex<()>,
    /// Bytes that a flush would free, as of the last write.
    memory: AtomicU64,
    /// An engine writes to it; at most one.
    has_writer: AtomicBool,
    /// A write or flush has failed: RocksDB may refuse all others until it is opened anew.
    is_ailing: AtomicBool,
    /// Last, so that it goes after the database is closed.
    open: Arc<()>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksDB").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// What RocksDB said, by what to do about it.
fn told(folder: &Path, during: &'static str, error: &rocksdb::Error) -> EngineError {
    let (folder, reason) = (folder.display().to_string(), error.to_string());
    let opening = during == "opened";
    match error.kind() {
        ErrorKind::Corruption => EngineError::Corrupt { folder, reason },
        ErrorKind::IOError
            if opening && (reason.contains("lock hold by") || reason.contains("While lock file")) =>
        {
            EngineError::Locked { folder }
        }
        ErrorKind::IOError if opening && reason.contains("No such file") => {
            EngineError::Corrupt { folder, reason }
        }
        // Families, formats or comparators that do not fit.
        ErrorKind::InvalidArgument | ErrorKind::NotSupported | ErrorKind::NotFound if opening => {
            EngineError::Corrupt { folder, reason }
        }
        _ => EngineError::Io { folder, during, reason },
    }
}

impl Inner {
    /// The database of a folder: the open one, when snapshots keep it open and it is fit for use, else opened.
    fn open(
        folder: &Path,
        names: &[&str],
        shared: &RocksShared,
        wal: bool,
    ) -> Result<Arc<Self>, EngineError> {
        let io = |error: std::io::Error| EngineError::Io {
            folder: folder.display().to_string(),
            during: "opened",
            reason: error.to_string(),
        };
        files::create_folders(folder).map_err(io)?;
        let exists = check_files(folder).map_err(io)??;
        let families: Vec<String> = names.iter().map(|name| format!("{FAMILY_PREFIX}{name}")).collect();
        open_now::find_or_open(files::identity(folder).map_err(io)?, folder, |open| match open {
            None => Self::open_anew(folder, families, exists, shared, wal),
            Some(inner) => inner.take_over(&families, wal),
        })
    }

    /// An engine takes a database that is open already.
    fn take_over(self: Arc<Self>, families: &[String], wal: bool) -> Result<Arc<Self>, EngineError> {
        let folder = self.folder.display().to_string();
        if self.is_ailing.load(Ordering::Relaxed) || self.families != families || self.wal != wal {
            return Err(EngineError::Held { folder });
        }
        if self.has_writer.swap(true, Ordering::AcqRel) {
            return Err(EngineError::Locked { folder });
        }
        Ok(self)
    }

    fn open_anew(
        folder: &Path,
        families: Vec<String>,
        exists: bool,
        shared: &RocksShared,
        wal: bool,
    ) -> Result<Arc<Self>, EngineError> {
        let failed = |error: rocksdb::Error| told(folder, "opened", &error);
        let options = options::database(shared).map_err(failed)?;
        let mut all = families.clone();
        if exists {
            // Stores of another topology must be opened too; they are left alone.
            all.extend(DB::list_cf(&options, folder).map_err(failed)?);
        }
        all.push(rocksdb::DEFAULT_COLUMN_FAMILY_NAME.to_owned());
        all.sort_unstable();
        all.dedup();
        let family = |name: String| ColumnFamilyDescriptor::new(name, options::family(shared));
        let db = DB::open_cf_descriptors(&options, folder, all.into_iter().map(family)).map_err(failed)?;
        let (folder, writing, memory) = (folder.to_owned(), Mutex::new(()), AtomicU64::new(0));
        let (has_writer, is_ailing) = (AtomicBool::new(true), AtomicBool::new(false));
        let open = Arc::new(());
        Ok(Arc::new(Self { db, folder, families, wal, writing, memory, has_writer, is_ailing, open }))
    }

    fn family(&self, store: StoreId) -> &ColumnFamily {
        self.db.cf_handle(&self.families[usize::from(store.0)]).expect("all families were opened")
    }

    fn handles(&self) -> impl Iterator<Item = &ColumnFamily> {
        let names = self.families.iter().map(String::as_str).chain([rocksdb::DEFAULT_COLUMN_FAMILY_NAME]);
        names.map(|name| self.db.cf_handle(name).expect("all families were opened"))
    }

    fn told(&self, during: &'static str) -> impl Fn(rocksdb::Error) -> EngineError + '_ {
        move |error| {
            let error = told(&self.folder, during, &error);
            if matches!(during, "written" | "flushed") {
                self.is_ailing.store(true, Ordering::Relaxed);
            }
            if let EngineError::Corrupt { reason, .. } = &error
                && let Err(failed) = files::write(&self.folder.join(DAMAGED), reason.as_bytes())
            {
                tracing::warn!(folder = %self.folder.display(), error = %failed, "damage could not be noted");
            }
            error
        }
    }

    fn batch(&self, batch: Batch) -> WriteBatch {
        let mut out = WriteBatch::default();
        for update in batch.updates {
            match update {
                Update::Put(id, key, value) => out.put_cf(self.family(id), key, value),
                Update::Delete(id, key) => out.delete_cf(self.family(id), key),
                Update::DeleteRange(id, from, to) if from < to => {
                    out.delete_range_cf(self.family(id), &from[..], &to[..]);
                }
                Update::DeleteRange(..) => {}
            }
        }
        if let Some(meta) = batch.meta {
            out.put(META_KEY, meta);
        }
        out
    }

    /// Sum of a number over all families.
    fn property(&self, name: &properties::PropName) -> u64 {
        let of = |family| self.db.property_int_value_cf(family, name).ok().flatten().unwrap_or(0);
        self.handles().map(of).sum()
    }

    /// Syncs the log and moves memory to files; in the background unless `wait`.
    fn flush(&self, wait: bool) -> Result<(), rocksdb::Error> {
        let _no_batch_between = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.wal {
            self.db.flush_wal(true)?;
        }
        let mut options = FlushOptions::default();
        options.set_wait(wait);
        let families: Vec<&ColumnFamily> = self.handles().collect();
        self.db.flush_cfs_opt(&families, &options)
    }
}

/// Whether a database is there. `Corrupt` when there is data but not the file that says which of it counts (RocksDB would
/// make a new database on top of it), and when a read has found damage.
fn check_files(folder: &Path) -> std::io::Result<Result<bool, EngineError>> {
    let (mut current, mut data) = (false, false);
    for path in files::list_folder(folder)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        current |= name == "CURRENT";
        data |= name.ends_with(".sst");
        if name == DAMAGED {
            let reason = files::read_text(&path, 4096).unwrap_or_else(|error| error.to_string());
            return Ok(Err(EngineError::Corrupt { folder: folder.display().to_string(), reason }));
        }
    }
    Ok(if data && !current {
        let reason = "there are data files, but the file CURRENT is missing".to_owned();
        Err(EngineError::Corrupt { folder: folder.display().to_string(), reason })
    } else {
        Ok(current)
    })
}

/// The engine of one task on disk.
#[derive(Debug)]
pub struct RocksEngine {
    inner: Arc<Inner>,
    shared: RocksShared,
    writing: WriteMode,
    /// Of a scratch engine: its folder goes with it. Last, so that the database is closed before.
    _scratch: Option<RemovedAtEnd>,
}

/// A folder that is removed when this is dropped.
#[derive(Debug)]
struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        if let Err(error) = files::remove_tree(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "spilled writes stay until the next start");
        }
    }
}

/// How batches are written; one way from open to close.
struct WriteMode(WriteOptions);

impl fmt::Debug for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteMode")
    }
}

impl RocksEngine {
    /// Opens the folder for the stores of these names, making what is absent. Stores that it does not have yet are
    /// empty; stores that are not named stay.
    ///
    /// `Corrupt`: set the folder aside. `Locked`: somebody has it open, in this process or another. `Held`: snapshots
    /// keep it open, and it must be opened anew.
    pub fn open(folder: &Path, names: &[&str], shared: &RocksShared) -> Result<Self, EngineError> {
        Self::open_with(folder, names, shared, shared.settings().wal)
    }

    /// An empty engine for spilled writes: what was in the folder is removed, and the folder at the end.
    pub fn scratch(folder: &Path, names: &[&str], shared: &RocksShared) -> Result<Self, EngineError> {
        files::remove_tree(folder).map_err(|error| EngineError::Io {
            folder: folder.display().to_string(),
            during: "opened",
            reason: error.to_string(),
        })?;
        let mut engine = Self::open_with(folder, names, shared, false)?;
        engine._scratch = Some(RemovedAtEnd(folder.to_owned()));
        Ok(engine)
    }

    fn open_with(
        folder: &Path,
        names: &[&str],
        shared: &RocksShared,
        wal: bool,
    ) -> Result<Self, EngineError> {
        let inner = Inner::open(folder, names, shared, wal)?;
        shared.budget().join(&inner);
        let mut writing = WriteOptions::default();
        writing.set_sync(false);
        writing.disable_wal(!wal);
        Ok(Self { inner, shared: shared.clone(), writing: WriteMode(writing), _scratch: None })
    }
}

impl Drop for RocksEngine {
    fn drop(&mut self) {
        self.shared.budget().leave(&self.inner);
        self.inner.has_writer.store(false, Ordering::Release);
    }
}

/// Whether a database of that folder is open in this process, under whatever name: then it must not be renamed.
pub fn is_open(folder: &Path) -> bool {
    files::identity(folder).is_ok_and(open_now::is_open)
}

/// Our bounds as RocksDB's: from included, to excluded.
fn read_options(range: &KeyRange) -> ReadOptions {
    let after = |key: &Bytes| [&key[..], &[0]].concat();
    let mut options = ReadOptions::default();
    match &range.start {
        Bound::Included(key) => options.set_iterate_lower_bound(key.to_vec()),
        Bound::Excluded(key) => options.set_iterate_lower_bound(after(key)),
        Bound::Unbounded => {}
    }
    match &range.end {
        Bound::Included(key) => options.set_iterate_upper_bound(after(key)),
        Bound::Excluded(key) => options.set_iterate_upper_bound(key.to_vec()),
        Bound::Unbounded => {}
    }
    options
}

fn mode(direction: Direction) -> IteratorMode<'static> {
    match direction {
        Direction::Forward => IteratorMode::Start,
        Direction::Reverse => IteratorMode::End,
    }
}

type Found = Result<(Box<[u8]>, Box<[u8]>), rocksdb::Error>;

fn scan_of<'a>(inner: &'a Inner, found: impl Iterator<Item = Found> + 'a) -> Scan<'a> {
    let told = inner.told("read");
    Box::new(found.map(move |found| {
        let (key, value) = found.map_err(&told)?;
        Ok((Bytes::from(key), Bytes::from(value)))
    }))
}

impl View for RocksEngine {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let found = self.inner.db.get_cf(self.inner.family(store), key);
        Ok(found.map_err(self.inner.told("read"))?.map(Bytes::from))
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        if range.is_empty() {
            return Box::new(std::iter::empty());
        }
        let family = self.inner.family(store);
        scan_of(&self.inner, self.inner.db.iterator_cf_opt(family, read_options(range), mode(direction)))
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        Ok(self.inner.db.get(META_KEY).map_err(self.inner.told("read"))?.map(Bytes::from))
    }
}

impl Engine for RocksEngine {
    fn write(&mut self, batch: Batch) -> Result<(), EngineError> {
        let batch = self.inner.batch(batch);
        {
            let _no_flush_between = self.inner.writing.lock().unwrap_or_else(PoisonError::into_inner);
            self.inner.db.write_opt(batch, &self.writing.0).map_err(self.inner.told("written"))?;
        }
        self.shared.budget().keep(&self.inner);
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn View + Send + Sync> {
        Box::new(RocksSnapshot(Held::new(Arc::clone(&self.inner), |inner| inner.db.snapshot())))
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        self.inner.flush(true).map_err(self.inner.told("flushed"))
    }

    fn checkpoint(&self, folder: &Path) -> Result<(), EngineError> {
        let told = self.inner.told("copied");
        Checkpoint::new(&self.inner.db).map_err(&told)?.create_checkpoint(folder).map_err(&told)
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            memtable_bytes: self.inner.property(properties::CUR_SIZE_ALL_MEM_TABLES),
            disk_bytes: self.inner.property(properties::TOTAL_SST_FILES_SIZE),
            keys: self.inner.property(properties::ESTIMATE_NUM_KEYS),
        }
    }
}

type SnapshotOf<'a> = rocksdb::Snapshot<'a>;

self_cell!(
    /// A snapshot and the database that it belongs to.
    struct Held {
        owner: Arc<Inner>,
        #[covariant]
        dependent: SnapshotOf,
    }
);

struct RocksSnapshot(Held);

impl View for RocksSnapshot {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let inner = self.0.borrow_owner();
        let found = self.0.borrow_dependent().get_cf(inner.family(store), key);
        Ok(found.map_err(inner.told("read"))?.map(Bytes::from))
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        if range.is_empty() {
            return Box::new(std::iter::empty());
        }
        let (inner, snapshot) = (self.0.borrow_owner(), self.0.borrow_dependent());
        scan_of(inner, snapshot.iterator_cf_opt(inner.family(store), read_options(range), mode(direction)))
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        let inner = self.0.borrow_owner();
        Ok(self.0.borrow_dependent().get(META_KEY).map_err(inner.told("read"))?.map(Bytes::from))
    }
}
