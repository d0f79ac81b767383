//! What writer, readers, preparer and snapshots of one opening share.
//!
//! Every lock is held for a look or a change in memory, never across I/O. The writer alone moves the durable end,
//! adds to the index and changes the catalogue; the preparer alone replaces resident extents by footers.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ottla_env::disk::{Disk, File};
use ottla_protocol::types::TopicIdPartition;

use crate::cache::Cache;
use crate::catalogue::Catalogue;
use crate::file_header::Seal;
use crate::index::{Extent, Index};
use crate::options::{FileId, FrameSequence, LogOptions};
use crate::prepare::Ready;
use crate::space::{Reserve, SpaceMark};
use crate::tail::TailCache;

/// Extents read back from footers.
pub(crate) type FooterCache = Cache<(FileId, TopicIdPartition), Arc<Vec<Extent>>>;

pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: LogOptions,
    pub(crate) log_id: u64,
    pub(crate) epoch: i32,
    index: RwLock<Index>,
    tail: Mutex<TailCache>,
    files: Mutex<Cache<FileId, Arc<dyn File>>>,
    footers: Mutex<FooterCache>,
    files_known: Mutex<Files>,
    ready: Mutex<Ready>,
    reserve: Mutex<Reserve>,
    /// How much room there is.
    pub(crate) space: SpaceMark,
    durable: AtomicU64,
    ended: AtomicBool,
}

/// What is known of the live files, beside the index.
#[derive(Default)]
pub(crate) struct Files {
    /// Which they are.
    pub(crate) catalogue: Catalogue,
    /// How each sealed file ended.
    pub(crate) seals: BTreeMap<FileId, Seal>,
    /// When the newest batch of each sealed file was appended, by shard time in milliseconds; none for files of
    /// version 1.
    pub(crate) appended: BTreeMap<FileId, i64>,
    /// Bytes of batches that compaction has moved elsewhere, by the file where they are dead.
    pub(crate) superseded: BTreeMap<FileId, u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds a lock of the log")
}

impl Shared {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        log_id: u64,
        epoch: i32,
        index: Index,
        files: Files,
        reserve: Reserve,
    ) -> Self {
        Self {
            index: RwLock::new(index),
            tail: Mutex::new(TailCache::new(options.tail_bytes_max)),
            files: Mutex::new(Cache::new(options.open_files_max)),
            footers: Mutex::new(Cache::new(options.footer_bytes_max)),
            files_known: Mutex::new(files),
            ready: Mutex::new(Ready::Wanted),
            reserve: Mutex::new(reserve),
            space: SpaceMark::default(),
            durable: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            disk,
            options,
            log_id,
            epoch,
        }
    }

    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().expect("nothing panics while it holds a lock of the log")
    }

    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().expect("nothing panics while it holds a lock of the log")
    }

    pub(crate) fn tail(&self) -> MutexGuard<'_, TailCache> {
        lock(&self.tail)
    }

    pub(crate) fn footers(&self) -> MutexGuard<'_, FooterCache> {
        lock(&self.footers)
    }

    /// What is known of the live files.
    pub(crate) fn known(&self) -> MutexGuard<'_, Files> {
        lock(&self.files_known)
    }

    /// Readers do not find these files any more: their handles are given up.
    pub(crate) fn forget_files(&self, files: &[FileId]) {
        let mut handles = lock(&self.files);
        files.iter().for_each(|file| handles.remove(file));
    }

    /// The next file, prepared ahead.
    pub(crate) fn ready(&self) -> MutexGuard<'_, Ready> {
        lock(&self.ready)
    }

    /// What is kept for a full disk.
    pub(crate) fn reserve(&self) -> MutexGuard<'_, Reserve> {
        lock(&self.reserve)
    }

    /// A handle of a file, from the bounded cache or opened.
    pub(crate) fn file(&self, id: FileId) -> io::Result<Arc<dyn File>> {
        let cached = lock(&self.files).get(&id);
        if let Some(file) = cached {
            return Ok(file);
        }
        let file = self.disk.open(&id.file_name())?;
        lock(&self.files).insert(id, 1, file.clone());
        Ok(file)
    }

    /// The last frame whose sync succeeded.
    pub(crate) fn durable_sequence(&self) -> FrameSequence {
        FrameSequence(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn set_durable(&self, sequence: FrameSequence) {
        self.durable.store(sequence.0, Ordering::Release);
    }

    /// The writer is dead or dropped: helpers of this opening change nothing on the disk any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}
