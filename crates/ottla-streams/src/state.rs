//! The stores of one task: committed bytes in an engine, uncommitted writes in an overlay above it.
//!
//! Reads see the overlay first. A commit that is known to have succeeded moves the overlay into the engine as one
//! batch together with the new meta record; an abort forgets the overlay. The engine is written by [`TaskState::apply`]
//! (a committed boundary) and [`TaskState::restore`] (committed changelog records), and by nothing else.
//!
//! Invariants: I1, content and position go into one batch; I2, a position never goes back and is only told from
//! committed transactions. Queries of other threads read [`Committed`] snapshots and never the overlay.
//!
//! When one record writes more than the hard limit, the overlay's entries move to a scratch engine, emptied before
//! and after; reads merge three levels then. Applying that is several batches of which only the last carries the
//! meta: after a crash between them the position is the old one, and replaying the changelog from there gives the
//! same bytes again, since the last change of a key wins. Readers keep the snapshot from before until it is through.
//!
//! Place in the walk: typed stores -> here -> engine. Not here: when to commit, where the state is kept.

mod merge;
mod spill;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::engine::{
    Batch, Direction, Engine, EngineError, EngineStats, KeyRange, Scan, StoreId, Update, View,
};
use crate::meta::{Meta, MetaError, StorePosition};
use crate::overlay::{Known, Overlay};
use crate::port::ChangelogRecord;

pub use spill::{SPILL_BYTES_MAX, ScratchFactory};

/// What a store holds, as far as recovery and clean-up care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Keys and values.
    KeyValue,
    /// Windows: keys begin with the window's start ([`window_prefix`]).
    Window {
        /// How long a window is kept, in ms of stream time.
        retention_ms: i64,
    },
    /// Sessions: keys begin with the session's end ([`window_prefix`]).
    Session {
        /// How long a session is kept, in ms of stream time.
        retention_ms: i64,
    },
}

impl StoreKind {
    /// How long its entries are kept; `None` = for ever.
    pub fn retention_ms(self) -> Option<i64> {
        match self {
            Self::KeyValue => None,
            Self::Window { retention_ms } | Self::Session { retention_ms } => Some(retention_ms),
        }
    }
}

/// First bytes of the keys of window and session stores: a time in ms whose byte order is its order.
pub fn window_prefix(time_ms: i64) -> [u8; 8] {
    (time_ms.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// A store of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSpec {
    /// Its name; the engine finds its content by it.
    pub name: String,
    /// What it holds.
    pub kind: StoreKind,
    /// Topic of its changelog; absent = it is the table of a compacted input topic, which is its changelog.
    pub changelog: Option<String>,
}

/// Why the state of a task cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The meta record cannot be read.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The state belongs to another topology.
    #[error(
        "the state was written by another topology (fingerprint {found:016x} with {stores_found} stores, this one has \
         {wanted:016x} with {stores_wanted}): run the topology that wrote it, or give this one another application id, \
         or move the task's folder away to rebuild it from the changelogs"
    )]
    TopologyChanged {
        /// Fingerprint in the state.
        found: u64,
        /// Fingerprint of the topology that runs.
        wanted: u64,
        /// Stores in the state.
        stores_found: usize,
        /// Stores of the topology that runs.
        stores_wanted: usize,
    },
    /// I2: a boundary that lies before the one that the state is at.
    #[error("I2: store {store} is at changelog offset {position} and cannot go back to {wanted}")]
    Backwards {
        /// The store.
        store: usize,
        /// Where it is.
        position: i64,
        /// What was asked for.
        wanted: i64,
    },
}

impl StateError {
    /// What is wrong when the bytes on disk are damaged, found by opening or by a read: close the engine, set it aside,
    /// and recover an empty one in its place (C16). `None` for every other error.
    pub fn damage(&self) -> Option<String> {
        match self {
            Self::Engine(EngineError::Corrupt { .. }) | Self::Meta(MetaError::Malformed(_)) => {
                Some(self.to_string())
            }
            _ => None,
        }
    }

    /// The disk refused; the same may work later.
    pub fn is_io(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Io { .. }))
    }
}

/// The stores of a task. Owned by one thread.
pub struct TaskState {
    engine: Box<dyn Engine>,
    specs: Vec<StoreSpec>,
    meta: Meta,
    overlay: Overlay,
    spill: spill::Spill,
    /// The last snapshot that was given out, as long as it is the newest boundary.
    committed: Mutex<Option<Arc<Committed>>>,
    /// A read that failed, whatever became of its error: see [`TaskState::take_fault`].
    fault: Cell<Option<EngineError>>,
}

impl fmt::Debug for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskState")
            .field("engine", &self.engine)
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

/// Order of the fold: Kafka's compaction keeps the last record of a key, and so does a batch.
fn updates_of(store: StoreId, changes: &[ChangelogRecord]) -> Vec<Update> {
    let update = |change: &ChangelogRecord| {
        let key = change.key.clone()?; // a changelog has no records without key; one that a stranger wrote is nothing
        Some(match &change.value {
            Some(value) => Update::Put(store, key, value.clone()),
            None => Update::Delete(store, key),
        })
    };
    changes.iter().filter_map(update).collect()
}

impl TaskState {
    /// Takes an engine that was opened for the stores of `specs`, in that order.
    ///
    /// `TopologyChanged` when another topology wrote it, `Meta` when its meta record is damaged.
    pub fn open(engine: Box<dyn Engine>, specs: &[StoreSpec], fingerprint: u64) -> Result<Self, StateError> {
        let meta = match engine.meta()? {
            None => Meta::new(fingerprint, specs.len()),
            Some(bytes) => Meta::decode(&bytes)?,
        };
        if meta.fingerprint != fingerprint || meta.stores.len() != specs.len() {
            return Err(StateError::TopologyChanged {
                found: meta.fingerprint,
                wanted: fingerprint,
                stores_found: meta.stores.len(),
                stores_wanted: specs.len(),
            });
        }
        let overlay = Overlay::new(specs.len());
        let spill = spill::Spill::default();
        let (specs, committed, fault) = (specs.to_vec(), Mutex::new(None), Cell::new(None));
        Ok(Self { engine, specs, meta, overlay, spill, committed, fault })
    }

    /// Uncommitted entries beyond `bytes_max` go to an engine that `factory` makes, instead of staying in memory.
    /// Without it there is no hard limit.
    #[must_use]
    pub fn with_spill(mut self, bytes_max: usize, factory: ScratchFactory) -> Self {
        self.spill = spill::Spill::new(bytes_max, factory);
        self
    }

    /// The stores, by [`StoreId`].
    pub fn specs(&self) -> &[StoreSpec] {
        &self.specs
    }

    /// The boundary that the engine is at.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The value of a key, uncommitted writes included.
    pub fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match self.overlay.get(store, key) {
            Known::Value(value) => return Ok(Some(value)),
            Known::Deleted => return Ok(None),
            Known::Nothing => {}
        }
        match self.spill.get(store, key).map_err(|error| self.note(error))? {
            Known::Value(value) => return Ok(Some(value)),
            Known::Deleted => return Ok(None),
            Known::Nothing => {}
        }
        if self.overlay.range_deleted(store, key) {
            return Ok(None);
        }
        Ok(self.engine.get(store, key).map_err(|error| self.note(error))?)
    }

    /// Remembers that a read has failed.
    fn note(&self, error: EngineError) -> EngineError {
        self.fault.set(Some(error.clone()));
        error
    }

    /// The error of a read that has failed since the last call or rollback: what was made of its answer must not be
    /// committed, also when whoever asked has passed over the error.
    pub(crate) fn take_fault(&self) -> Option<EngineError> {
        self.fault.take()
    }

    /// Keys of a range with their values, uncommitted writes included.
    pub fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        let lower = self.engine.scan(store, range, direction);
        let ranges = self.overlay.has_ranges(store);
        let lower = lower
            .filter(move |found| match found {
                Ok((key, _)) => !(ranges && self.overlay.range_deleted(store, key)),
                Err(_) => true,
            })
            .map(|found| found.map(|(key, value)| (key, Some(value))));
        let upper = self.overlay.entries(store, range, direction).map(Ok);
        let spilled = self.spill.scan(store, range, direction);
        let below = merge::Merged::new(spilled, Box::new(lower), direction);
        let all = merge::Merged::new(Box::new(upper), Box::new(below), direction);
        Box::new(all.filter_map(|found| match found {
            Ok((key, Some(value))) => Some(Ok((key, value))),
            Ok((_, None)) => None,
            Err(error) => Some(Err(self.note(error))),
        }))
    }

    /// Writes a key, or deletes it with `None`. Seen by reads at once, on disk only after [`TaskState::apply`].
    pub fn put(&mut self, store: StoreId, key: Bytes, value: Option<Bytes>) -> Result<(), StateError> {
        self.overlay.put(store, key, value);
        self.spill_if_large()
    }

    /// Frees the space of keys from `from` to `to` (excluded). Not in the changelog: only for what no read sees any
    /// more, such as windows that have expired.
    pub fn delete_range(&mut self, store: StoreId, from: Bytes, to: Bytes) -> Result<(), StateError> {
        if from >= to {
            return Ok(());
        }
        self.spill.delete_range(store, &from, &to)?;
        self.overlay.delete_range(store, from, to);
        self.spill_if_large()
    }

    fn spill_if_large(&mut self) -> Result<(), StateError> {
        if self.overlay.bytes() > self.spill.bytes_max {
            self.spill.take(&mut self.overlay)?;
        }
        Ok(())
    }

    /// Bytes of uncommitted writes, in memory and spilled: what a commit would free.
    pub fn uncommitted_bytes(&self) -> usize {
        self.overlay.bytes() + self.spill.bytes()
    }

    /// Bytes of uncommitted writes in memory.
    pub fn overlay_bytes(&self) -> usize {
        self.overlay.bytes()
    }

    /// Whether anything was written since the last boundary.
    pub fn is_dirty(&self) -> bool {
        !self.overlay.is_empty() || self.spill.is_used()
    }

    /// S4: the transaction with these writes is committed; they and `meta` go into the engine, the overlay is empty.
    ///
    /// After an error the overlay is still there, and the same call may be made again: the batch is whole or absent
    /// by then, and writing it twice gives the same.
    pub fn apply(&mut self, meta: Meta) -> Result<(), StateError> {
        self.check_forward(&meta)?;
        if self.spill.is_used() {
            // Batches before the last leave the engine between two boundaries: who asks meanwhile gets the old one.
            self.snapshot();
            self.spill.write_to(&mut *self.engine, &self.overlay)?;
        }
        let updates = match self.spill.is_used() {
            true => self.overlay.entry_updates().collect(),
            false => self.overlay.range_updates().chain(self.overlay.entry_updates()).collect(),
        };
        self.engine.write(Batch { updates, meta: Some(meta.encode()) })?;
        self.meta = meta;
        self.rollback();
        self.forget_snapshot();
        Ok(())
    }

    fn check_forward(&self, meta: &Meta) -> Result<(), StateError> {
        let counts_fit = meta.stores.len() == self.specs.len() && meta.fingerprint == self.meta.fingerprint;
        assert!(counts_fit, "I1: the meta of a batch is that of its stores");
        for (store, (old, new)) in self.meta.stores.iter().zip(&meta.stores).enumerate() {
            if new.position < old.position {
                let (position, wanted) = (old.position, new.position);
                return Err(StateError::Backwards { store, position, wanted });
            }
        }
        Ok(())
    }

    /// The transaction is aborted: what was written since the boundary is forgotten. The engine is not touched.
    pub fn rollback(&mut self) {
        self.overlay.clear();
        self.spill.clear();
        self.fault.set(None);
    }

    /// Brings a store forward with committed records of its changelog, and says where it is now, in one batch.
    /// Nothing may be uncommitted meanwhile.
    pub fn restore(
        &mut self,
        store: StoreId,
        changes: &[ChangelogRecord],
        position: StorePosition,
    ) -> Result<(), StateError> {
        self.restore_with(store, updates_of(store, changes), position)
    }

    /// As [`TaskState::restore`], for a changelog whose older records are gone because they expired: entries of times
    /// before `expired_before_ms` go too.
    pub fn jump(
        &mut self,
        store: StoreId,
        expired_before_ms: i64,
        position: StorePosition,
    ) -> Result<(), StateError> {
        let to = Bytes::copy_from_slice(&window_prefix(expired_before_ms));
        self.restore_with(store, vec![Update::DeleteRange(store, Bytes::new(), to)], position)
    }

    fn restore_with(
        &mut self,
        store: StoreId,
        updates: Vec<Update>,
        position: StorePosition,
    ) -> Result<(), StateError> {
        assert!(!self.is_dirty(), "I1: a store is restored at a boundary only");
        let mut meta = self.meta.clone();
        meta.stores[usize::from(store.0)] = position;
        self.check_forward(&meta)?;
        self.engine.write(Batch { updates, meta: Some(meta.encode()) })?;
        self.meta = meta;
        self.forget_snapshot();
        Ok(())
    }

    /// Takes a store for what its changelog gives at `position`, without looking: a person, or the nature of the
    /// topic, says so. The only way by which a position may go back.
    pub(crate) fn adopt(&mut self, store: StoreId, position: StorePosition) -> Result<(), StateError> {
        let mut meta = self.meta.clone();
        meta.stores[usize::from(store.0)] = position;
        self.engine.write(Batch { updates: Vec::new(), meta: Some(meta.encode()) })?;
        self.meta = meta;
        self.forget_snapshot();
        Ok(())
    }

    fn forget_snapshot(&mut self) {
        *self.committed.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Everything as of the last boundary, for readers of other threads.
    pub fn snapshot(&self) -> Arc<Committed> {
        let mut kept = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let (view, specs, meta) = (self.engine.snapshot(), self.specs.clone(), self.meta.clone());
            Arc::new(Committed { view, specs, meta })
        };
        Arc::clone(kept.get_or_insert_with(make))
    }

    /// Figures of the engine.
    pub fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// Moves the engine's memory into files, synced.
    pub fn flush(&mut self) -> Result<(), StateError> {
        Ok(self.engine.flush()?)
    }

    /// The engine, for copies of it and tests.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }
}

/// All stores of a task at one boundary. Does not change, and keeps the engine's files in use while it is held.
pub struct Committed {
    view: Box<dyn View + Send + Sync>,
    specs: Vec<StoreSpec>,
    meta: Meta,
}

impl fmt::Debug for Committed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Committed").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Committed {
    /// The boundary.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The stores, by [`StoreId`].
    pub fn specs(&self) -> &[StoreSpec] {
        &self.specs
    }

    /// The store of that name.
    pub fn store(&self, name: &str) -> Option<StoreId> {
        (0u16..).zip(&self.specs).find(|(_, spec)| spec.name == name).map(|(id, _)| StoreId(id))
    }

    /// The value of a key.
    pub fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.view.get(store, key)
    }

    /// Keys of a range with their values.
    pub fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Scan<'_> {
        self.view.scan(store, range, direction)
    }
}
