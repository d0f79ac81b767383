//! Uncommitted entries that are too many for memory, in a scratch engine until the boundary.
//!
//! The scratch engine is made at the first spill and dropped at the boundary; its content means nothing afterwards.
//! Values are stored behind a byte that tells a value (1) from a delete (0). Deleted ranges stay in the overlay's
//! memory, so the order is: engine, ranges, scratch, overlay; later ones overrule earlier ones.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use super::StateError;
use super::merge::Run;
use crate::engine::{Batch, Direction, Engine, EngineError, KeyRange, StoreId, Update};
use crate::overlay::{Known, Overlay};

/// Makes an empty engine for the same stores.
pub type ScratchFactory = Box<dyn FnMut() -> Result<Box<dyn Engine>, EngineError> + Send>;

/// Bytes of uncommitted writes of one task in memory beyond which they spill, unless told otherwise.
pub const SPILL_BYTES_MAX: usize = 64 << 20;
/// About how many bytes one batch carries on the way from scratch to the engine.
const SUB_BATCH_BYTES: usize = 4 << 20;

const DELETED: u8 = 0;
const VALUE: u8 = 1;

/// What went beyond memory.
pub(super) struct Spill {
    pub(super) bytes_max: usize,
    factory: Option<ScratchFactory>,
    scratch: Option<Box<dyn Engine>>,
    bytes: usize,
    stores: Vec<StoreId>,
}

impl Default for Spill {
    fn default() -> Self {
        Self { bytes_max: usize::MAX, factory: None, scratch: None, bytes: 0, stores: Vec::new() }
    }
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spill").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

fn opened(value: &Bytes) -> Option<Bytes> {
    match value.first() {
        Some(&VALUE) => Some(value.slice(1..)),
        _ => None,
    }
}

impl Spill {
    pub(super) fn new(bytes_max: usize, factory: ScratchFactory) -> Self {
        Self { bytes_max, factory: Some(factory), ..Self::default() }
    }

    pub(super) fn is_used(&self) -> bool {
        self.scratch.is_some()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.scratch = None;
        self.bytes = 0;
        self.stores.clear();
    }

    /// Moves the overlay's entries into the scratch engine.
    pub(super) fn take(&mut self, overlay: &mut Overlay) -> Result<(), StateError> {
        let before = overlay.bytes();
        let scratch = match &mut self.scratch {
            Some(scratch) => scratch,
            None => {
                let factory = self.factory.as_mut().expect("without a factory there is no limit to pass");
                tracing::info!(
                    bytes = before,
                    "uncommitted writes of one record pass the limit and go to disk"
                );
                self.scratch.insert(factory()?)
            }
        };
        let mut updates = Vec::new();
        for update in overlay.entry_updates() {
            let (id, key, value) = match update {
                Update::Put(id, key, value) => {
                    let mut marked = BytesMut::with_capacity(value.len() + 1);
                    marked.put_u8(VALUE);
                    marked.put_slice(&value);
                    (id, key, marked.freeze())
                }
                Update::Delete(id, key) => (id, key, Bytes::from_static(&[DELETED])),
                Update::DeleteRange(..) => unreachable!("entries are no ranges"),
            };
            if !self.stores.contains(&id) {
                self.stores.push(id);
            }
            updates.push(Update::Put(id, key, value));
        }
        scratch.write(Batch { updates, meta: None })?;
        overlay.clear_entries();
        self.bytes += before - overlay.bytes();
        Ok(())
    }

    pub(super) fn get(&self, store: StoreId, key: &[u8]) -> Result<Known, EngineError> {
        let Some(scratch) = &self.scratch else { return Ok(Known::Nothing) };
        Ok(match scratch.get(store, key)? {
            None => Known::Nothing,
            Some(value) => opened(&value).map_or(Known::Deleted, Known::Value),
        })
    }

    pub(super) fn scan(&self, store: StoreId, range: &KeyRange, direction: Direction) -> Run<'_> {
        match &self.scratch {
            None => Box::new(std::iter::empty()),
            Some(scratch) => Box::new(
                scratch
                    .scan(store, range, direction)
                    .map(|found| found.map(|(key, value)| (key, opened(&value)))),
            ),
        }
    }

    pub(super) fn delete_range(
        &mut self,
        store: StoreId,
        from: &Bytes,
        to: &Bytes,
    ) -> Result<(), StateError> {
        if let Some(scratch) = &mut self.scratch {
            let updates = vec![Update::DeleteRange(store, from.clone(), to.clone())];
            scratch.write(Batch { updates, meta: None })?;
        }
        Ok(())
    }

    /// Writes the overlay's ranges and then what was spilled, in batches without meta.
    pub(super) fn write_to(&self, engine: &mut dyn Engine, overlay: &Overlay) -> Result<(), StateError> {
        let Some(scratch) = &self.scratch else { return Ok(()) };
        let ranges: Vec<Update> = overlay.range_updates().collect();
        if !ranges.is_empty() {
            engine.write(Batch { updates: ranges, meta: None })?;
        }
        let (mut updates, mut bytes) = (Vec::new(), 0);
        for &store in &self.stores {
            for found in scratch.scan(store, &KeyRange::ALL, Direction::Forward) {
                let (key, value) = found?;
                bytes += key.len() + value.len();
                updates.push(match opened(&value) {
                    Some(value) => Update::Put(store, key, value),
                    None => Update::Delete(store, key),
                });
                if bytes >= SUB_BATCH_BYTES {
                    engine.write(Batch { updates: std::mem::take(&mut updates), meta: None })?;
                    bytes = 0;
                }
            }
        }
        if !updates.is_empty() {
            engine.write(Batch { updates, meta: None })?;
        }
        Ok(())
    }
}
