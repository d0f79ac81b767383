//! What a task of a simulated process keeps over a crash, and the engine over it, with faults.

use std::path::Path;
#[cfg(feature = "rocksdb")]
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use ottla_env::rng::{Rng, SeededRng};

use super::crash::{CrashPlan, Point};
use crate::engine::mem::{MemDisk, MemEngine};
#[cfg(feature = "rocksdb")]
use crate::engine::rocks::{RocksEngine, RocksShared};
use crate::engine::{
    Batch, Direction, Engine, EngineError, EngineStats, KeyRange, Scan, StoreId, Update, View,
};

/// Batches that a power cut may take.
const REMEMBERED: usize = 64;

/// How stores are kept.
#[derive(Clone, Debug, Default)]
pub enum EngineChoice {
    /// In memory, on a disk that survives crashes. The default: fast, and every fault can be made.
    #[default]
    Memory,
    /// RocksDB, in folders below this one.
    #[cfg(feature = "rocksdb")]
    Rocks(PathBuf, RocksShared),
    /// Broken: positions are in another place than data, written a moment later.
    #[doc(hidden)]
    PositionApart,
    /// Broken: each store is flushed when it likes, and there is no write-ahead log.
    #[doc(hidden)]
    FlushedApart,
}

/// The disk of one task.
#[derive(Clone, Debug)]
pub(super) enum Disk {
    Memory(MemDisk),
    #[cfg(feature = "rocksdb")]
    Rocks(PathBuf, RocksShared),
    /// Data may be lost by a kill, as without a write-ahead log; the file with the position is not.
    Apart {
        data: MemDisk,
        meta: MemDisk,
        rng: Arc<Mutex<SeededRng>>,
    },
    Families(Arc<Mutex<Families>>),
}

/// Stores that are flushed apart, and how many batches each has not flushed.
#[derive(Debug)]
pub(super) struct Families {
    /// By store, then the meta record.
    disks: Vec<(MemDisk, usize)>,
    rng: SeededRng,
}

impl Disk {
    /// An empty one. `name` tells them apart in a folder.
    pub(super) fn new(choice: &EngineChoice, name: &str, stores: usize, seed: u64) -> Self {
        let memory = || {
            let disk = MemDisk::new();
            disk.remember(REMEMBERED);
            disk
        };
        match choice {
            EngineChoice::Memory => Self::Memory(memory()),
            #[cfg(feature = "rocksdb")]
            EngineChoice::Rocks(folder, shared) => Self::Rocks(folder.join(name), shared.clone()),
            EngineChoice::PositionApart => {
                let rng = Arc::new(Mutex::new(SeededRng::new(seed ^ name.len() as u64)));
                Self::Apart { data: memory(), meta: memory(), rng }
            }
            EngineChoice::FlushedApart => Self::Families(Arc::new(Mutex::new(Families {
                disks: (0..=stores).map(|_| (memory(), 0)).collect(),
                rng: SeededRng::new(seed ^ name.len() as u64),
            }))),
        }
    }

    /// Opens it for these stores.
    pub(super) fn open(
        &self,
        names: &[&str],
        crash: &CrashPlan,
        coin: u64,
    ) -> Result<Box<dyn Engine>, EngineError> {
        let inner: Box<dyn Engine> = match self {
            Self::Memory(disk) => Box::new(MemEngine::open(disk, names)?),
            #[cfg(feature = "rocksdb")]
            Self::Rocks(folder, shared) => Box::new(RocksEngine::open(folder, names, shared)?),
            Self::Apart { data, meta, .. } => {
                Box::new(Apart { data: MemEngine::open(data, names)?, meta: MemEngine::open(meta, &[])? })
            }
            Self::Families(families) => Box::new(FlushedApart::open(families, names)?),
        };
        Ok(Box::new(Faulty { inner, crash: crash.clone(), rng: SeededRng::new(coin) }))
    }

    /// The process was killed.
    pub(super) fn killed(&self) {
        match self {
            #[cfg(feature = "rocksdb")]
            Self::Rocks(..) => {}
            Self::Memory(_) => {} // the system writes on what a killed process has written
            Self::Apart { data, rng, .. } => {
                let lost = rng.lock().unwrap_or_else(PoisonError::into_inner).index(3);
                data.power_cut(lost);
            }
            Self::Families(families) => {
                let mut families = families.lock().unwrap_or_else(PoisonError::into_inner);
                for (disk, unflushed) in &mut families.disks {
                    disk.power_cut(std::mem::take(unflushed));
                }
            }
        }
    }

    /// The machine lost power: the newest batches are gone.
    pub(super) fn power_cut(&self, batches: usize) {
        match self {
            Self::Memory(disk) => {
                disk.power_cut(batches);
            }
            #[cfg(feature = "rocksdb")]
            Self::Rocks(..) => {} // cuts of its log are made by the tests of the engine
            Self::Apart { .. } | Self::Families(_) => self.killed(),
        }
    }

    /// An old copy.
    pub(super) fn copy(&self) -> Option<Self> {
        match self {
            Self::Memory(disk) => {
                let copy = disk.copy();
                copy.remember(REMEMBERED);
                Some(Self::Memory(copy))
            }
            _ => None,
        }
    }

    /// Its meta record is garbage.
    pub(super) fn damage(&self) {
        if let Self::Memory(disk) = self
            && let Ok(mut engine) = MemEngine::open(disk, &[])
        {
            let garbage = Batch { updates: Vec::new(), meta: Some(Bytes::from_static(b"not a meta record")) };
            engine.write(garbage).unwrap_or_else(|error| tracing::warn!(%error, "nothing was damaged"));
        }
    }

    /// The next writes fail without writing.
    pub(super) fn fail_writes(&self, times: u32) {
        if let Self::Memory(disk) = self {
            disk.fail_writes(times);
        }
    }
}

/// Dies inside a write when it is told to: the batch is on disk then, or not.
#[derive(Debug)]
struct Faulty {
    inner: Box<dyn Engine>,
    crash: CrashPlan,
    rng: SeededRng,
}

fn dead(during: &'static str) -> EngineError {
    EngineError::Io { folder: "driver".to_owned(), during, reason: "the process was killed".to_owned() }
}

impl View for Faulty {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let (folder, reason) = ("driver".to_owned(), "the read was made to fail".to_owned());
        match self.crash.read() {
            Some(true) => return Err(EngineError::Corrupt { folder, reason }),
            Some(false) => return Err(EngineError::Io { folder, during: "read", reason }),
            None => {}
        }
        self.inner.get(store, key)
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        self.inner.scan(store, range, direction)
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        self.inner.meta()
    }
}

impl Engine for Faulty {
    fn write(&mut self, batch: Batch) -> Result<(), EngineError> {
        if self.crash.is_dead() {
            return Err(dead("written"));
        }
        if self.crash.pass(Point::InWrite) {
            if self.rng.one_in(2) {
                self.inner.write(batch)?;
            }
            return Err(dead("written"));
        }
        self.inner.write(batch)
    }

    fn snapshot(&self) -> Box<dyn View + Send + Sync> {
        self.inner.snapshot()
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        self.inner.flush()
    }

    fn checkpoint(&self, folder: &Path) -> Result<(), EngineError> {
        self.inner.checkpoint(folder)
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

/// Broken: data first, then the meta record somewhere else.
#[derive(Debug)]
struct Apart {
    data: MemEngine,
    meta: MemEngine,
}

impl View for Apart {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.data.get(store, key)
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        self.data.scan(store, range, direction)
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        self.meta.meta()
    }
}

impl Engine for Apart {
    fn write(&mut self, batch: Batch) -> Result<(), EngineError> {
        self.data.write(Batch { updates: batch.updates, meta: None })?;
        self.meta.write(Batch { updates: Vec::new(), meta: batch.meta })
    }

    fn snapshot(&self) -> Box<dyn View + Send + Sync> {
        Box::new(Pair { data: vec![self.data.snapshot()], meta: self.meta.snapshot() })
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn checkpoint(&self, _folder: &Path) -> Result<(), EngineError> {
        Err(dead("copied"))
    }

    fn stats(&self) -> EngineStats {
        self.data.stats()
    }
}

/// Snapshots of parts: one for all stores, or one for each.
struct Pair {
    data: Vec<Box<dyn View + Send + Sync>>,
    meta: Box<dyn View + Send + Sync>,
}

impl Pair {
    fn part(&self, store: StoreId) -> (&dyn View, StoreId) {
        match self.data.as_slice() {
            [all] => (&**all, store),
            parts => (&*parts[usize::from(store.0)], StoreId(0)),
        }
    }
}

impl View for Pair {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let (part, store) = self.part(store);
        part.get(store, key)
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        let (part, store) = self.part(store);
        part.scan(store, range, direction)
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        self.meta.meta()
    }
}

/// Broken: every store reaches the disk when it likes, and so does the meta record.
#[derive(Debug)]
struct FlushedApart {
    families: Arc<Mutex<Families>>,
    stores: Vec<MemEngine>,
    meta: MemEngine,
}

impl FlushedApart {
    fn open(families: &Arc<Mutex<Families>>, names: &[&str]) -> Result<Self, EngineError> {
        let held = families.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |((disk, _), name): (&(MemDisk, usize), &&str)| MemEngine::open(disk, &[*name]);
        let stores = held.disks.iter().zip(names).map(open).collect::<Result<_, _>>()?;
        let (last, _) = held.disks.last().expect("there is one for the meta record");
        let meta = MemEngine::open(last, &[])?;
        drop(held);
        Ok(Self { families: Arc::clone(families), stores, meta })
    }
}

impl View for FlushedApart {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.stores[usize::from(store.0)].get(StoreId(0), key)
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        self.stores[usize::from(store.0)].scan(StoreId(0), range, direction)
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        self.meta.meta()
    }
}

impl Engine for FlushedApart {
    fn write(&mut self, batch: Batch) -> Result<(), EngineError> {
        let mut parts: Vec<Batch> = self.stores.iter().map(|_| Batch::default()).collect();
        for update in batch.updates {
            let (store, update) = match update {
                Update::Put(store, key, value) => (store, Update::Put(StoreId(0), key, value)),
                Update::Delete(store, key) => (store, Update::Delete(StoreId(0), key)),
                Update::DeleteRange(store, from, to) => (store, Update::DeleteRange(StoreId(0), from, to)),
            };
            parts[usize::from(store.0)].updates.push(update);
        }
        let mut families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
        let meta = Batch { updates: Vec::new(), meta: batch.meta };
        let engines = self.stores.iter_mut().chain([&mut self.meta]);
        for ((engine, part), index) in engines.zip(parts.into_iter().chain([meta])).zip(0..) {
            engine.write(part)?;
            let flushed = families.rng.one_in(3);
            let unflushed = &mut families.disks[index].1;
            *unflushed = if flushed { 0 } else { *unflushed + 1 };
        }
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn View + Send + Sync> {
        let data = self.stores.iter().map(Engine::snapshot).collect();
        Box::new(Pair { data, meta: self.meta.snapshot() })
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn checkpoint(&self, _folder: &Path) -> Result<(), EngineError> {
        Err(dead("copied"))
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}
