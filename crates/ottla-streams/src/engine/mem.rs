//! The engine in memory, over a "disk" that outlives it: for tests, the driver, and stores that need no disk.
//!
//! A [`MemDisk`] plays the folder: an engine that is dropped and opened again finds what was written. It can be made
//! to fail, or to forget its newest batches as a power cut would. A snapshot shares the maps; the next write to a
//! store that a snapshot still holds copies that store's map once.
//!
//! Place in the walk: one of the two engines, both through [`super::conformance`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::{Batch, Direction, Engine, EngineError, EngineStats, KeyRange, Scan, StoreId, Update, View};

/// Name of the "folder" in messages.
const FOLDER: &str = "memory";

type Map = Arc<BTreeMap<Bytes, Bytes>>;

#[derive(Clone, Debug, Default)]
struct Content {
    stores: BTreeMap<String, Map>,
    meta: Option<Bytes>,
}

#[derive(Debug, Default)]
struct DiskState {
    content: Content,
    /// The content before each of the last batches, oldest first; only kept when asked for.
    before: Vec<Content>,
    keep: usize,
    open: bool,
    fail_writes: u32,
}

/// What an engine in memory writes to; cloning gives another handle to the same.
#[derive(Clone, Debug, Default)]
pub struct MemDisk(Arc<Mutex<DiskState>>);

impl MemDisk {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // its content is whole after every statement
    }

    /// The next `times` writes fail, without writing.
    pub fn fail_writes(&self, times: u32) {
        self.lock().fail_writes = times;
    }

    /// Remembers the content before each of the last `batches` writes, for [`MemDisk::power_cut`].
    pub fn remember(&self, batches: usize) {
        self.lock().keep = batches;
    }

    /// Forgets the newest `batches` writes, as far as they are remembered. Gives how many were forgotten.
    pub fn power_cut(&self, batches: usize) -> usize {
        let mut disk = self.lock();
        let at = disk.before.len().saturating_sub(batches);
        let lost = disk.before.len() - at;
        if lost > 0 {
            disk.content = disk.before[at].clone();
            disk.before.truncate(at);
        }
        lost
    }

    /// A copy of its own with the content of this moment: an old backup, a cloned machine.
    pub fn copy(&self) -> Self {
        let content = self.lock().content.clone();
        Self(Arc::new(Mutex::new(DiskState { content, ..DiskState::default() })))
    }
}

/// An engine over a [`MemDisk`].
#[derive(Debug)]
pub struct MemEngine {
    disk: MemDisk,
    names: Vec<String>,
    content: Content,
}

impl MemEngine {
    /// Opens a disk for the stores of these names; stores that it does not have yet are empty.
    /// `Locked` while another engine has it open.
    pub fn open(disk: &MemDisk, names: &[&str]) -> Result<Self, EngineError> {
        let mut state = disk.lock();
        if std::mem::replace(&mut state.open, true) {
            return Err(EngineError::Locked { folder: FOLDER.to_owned() });
        }
        for name in names {
            state.content.stores.entry((*name).to_owned()).or_default();
        }
        let content = state.content.clone();
        drop(state);
        Ok(Self { disk: disk.clone(), names: names.iter().map(|&name| name.to_owned()).collect(), content })
    }

    /// An engine with a disk of its own, gone with it.
    pub fn alone(names: &[&str]) -> Self {
        Self::open(&MemDisk::new(), names).expect("nobody else has the new disk")
    }

    fn ordered(&self) -> Vec<Map> {
        self.names.iter().map(|name| Arc::clone(&self.content.stores[name])).collect()
    }
}

impl Drop for MemEngine {
    fn drop(&mut self) {
        self.disk.lock().open = false;
    }
}

fn scan_map<'a>(map: &'a Map, range: &KeyRange, direction: Direction) -> Scan<'a> {
    if range.is_empty() {
        return Box::new(std::iter::empty());
    }
    let bounds = (range.start.as_ref().map(|key| &key[..]), range.end.as_ref().map(|key| &key[..]));
    let found = map.range::<[u8], _>(bounds);
    match direction {
        Direction::Forward => Box::new(found.map(|(key, value)| Ok((key.clone(), value.clone())))),
        Direction::Reverse => Box::new(found.rev().map(|(key, value)| Ok((key.clone(), value.clone())))),
    }
}

impl View for MemEngine {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.content.stores[&self.names[usize::from(store.0)]].get(key).cloned())
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        scan_map(&self.content.stores[&self.names[usize::from(store.0)]], range, direction)
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        Ok(self.content.meta.clone())
    }
}

impl Engine for MemEngine {
    fn write(&mut self, batch: Batch) -> Result<(), EngineError> {
        let mut disk = self.disk.lock();
        if disk.fail_writes > 0 {
            disk.fail_writes -= 1;
            let reason = "told to fail".to_owned();
            return Err(EngineError::Io { folder: FOLDER.to_owned(), during: "written", reason });
        }
        if disk.keep > 0 {
            let before = disk.content.clone();
            disk.before.push(before);
            if disk.before.len() > disk.keep {
                disk.before.remove(0);
            }
        }
        disk.content = Content::default(); // or each map would be copied because the disk shares it
        for update in batch.updates {
            let (Update::Put(id, ..) | Update::Delete(id, ..) | Update::DeleteRange(id, ..)) = &update;
            let name = &self.names[usize::from(id.0)];
            let map = Arc::make_mut(self.content.stores.get_mut(name).expect("made when opened"));
            match update {
                Update::Put(_, key, value) => {
                    map.insert(key, value);
                }
                Update::Delete(_, key) => {
                    map.remove(&key);
                }
                Update::DeleteRange(_, from, to) if from < to => {
                    let gone: Vec<Bytes> = map.range(from..to).map(|(key, _)| key.clone()).collect();
                    gone.iter().for_each(|key| drop(map.remove(key)));
                }
                Update::DeleteRange(..) => {}
            }
        }
        if batch.meta.is_some() {
            self.content.meta = batch.meta;
        }
        disk.content = self.content.clone();
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn View + Send + Sync> {
        Box::new(MemSnapshot { stores: self.ordered(), meta: self.content.meta.clone() })
    }

    fn flush(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Refused: what is in memory has no copy in a folder. [`MemDisk::copy`] is the copy in memory.
    fn checkpoint(&self, _folder: &Path) -> Result<(), EngineError> {
        let reason = "a store in memory cannot be copied to a folder".to_owned();
        Err(EngineError::Io { folder: FOLDER.to_owned(), during: "copied", reason })
    }

    fn stats(&self) -> EngineStats {
        let keys = self.content.stores.values().map(|map| map.len() as u64).sum();
        EngineStats { memtable_bytes: 0, disk_bytes: 0, keys }
    }
}

#[derive(Debug)]
struct MemSnapshot {
    stores: Vec<Map>,
    meta: Option<Bytes>,
}

impl View for MemSnapshot {
    fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.stores[usize::from(store.0)].get(key).cloned())
    }

    fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        scan_map(&self.stores[usize::from(store.0)], range, direction)
    }

    fn meta(&self) -> Result<Option<Bytes>, EngineError> {
        Ok(self.meta.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: &'static str) -> Batch {
        let updates = vec![Update::Put(StoreId(0), Bytes::from("k"), Bytes::from(value))];
        Batch { updates, meta: Some(Bytes::from(value)) }
    }

    /// Proves that the disk outlives its engine, is locked while open, loses whole batches in a power cut, and fails
    /// when told to without writing.
    #[test]
    fn disk_plays_its_part() {
        let disk = MemDisk::new();
        disk.remember(2);
        let mut engine = MemEngine::open(&disk, &["s"]).expect("opened");
        assert!(matches!(MemEngine::open(&disk, &["s"]), Err(EngineError::Locked { .. })));
        for value in ["1", "2", "3"] {
            engine.write(put(value)).expect("written");
        }
        let old = disk.copy();
        disk.fail_writes(1);
        assert!(matches!(engine.write(put("4")), Err(EngineError::Io { during: "written", .. })));
        drop(engine);
        assert_eq!(disk.power_cut(9), 2);
        let engine = MemEngine::open(&disk, &["s"]).expect("opened");
        assert_eq!(engine.get(StoreId(0), b"k").expect("read"), Some(Bytes::from("1")));
        assert_eq!(engine.meta().expect("read"), Some(Bytes::from("1")));
        let old = MemEngine::open(&old, &["s"]).expect("opened");
        assert_eq!(old.meta().expect("read"), Some(Bytes::from("3")));
    }
}
