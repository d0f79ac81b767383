//! What a task wrote since its last boundary, in memory: per store the newest value of each key, and the ranges that
//! were deleted.
//!
//! An abort drops it; a commit turns it into one engine batch. Owned by one thread, no lock. The byte count is kept
//! exactly, since it decides when to commit and when to spill.
//!
//! Invariant: an entry is always newer than every range that covers its key, because deleting a range removes the
//! entries in it. So a batch may write all ranges first and all entries after them. Ranges are kept disjoint.
//!
//! Place in the walk: a part of [`crate::state`]; nothing else sees it. Not here: reading the engine below.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::engine::{Direction, KeyRange, StoreId, Update};

/// Bytes that an entry takes beside its key and value: two handles of shared bytes, and its place in the tree.
pub const ENTRY_BYTES: usize = 96;

/// What the overlay knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was written with this value.
    Value(Bytes),
    /// It was deleted by its key.
    Deleted,
    /// Nothing about the key itself.
    Nothing,
}

#[derive(Debug, Default)]
struct StoreOverlay {
    entries: BTreeMap<Bytes, Option<Bytes>>,
    /// Start to end (excluded); disjoint and not touching.
    ranges: BTreeMap<Bytes, Bytes>,
}

/// Uncommitted writes of a task.
#[derive(Debug)]
pub struct Overlay {
    stores: Vec<StoreOverlay>,
    bytes: usize,
}

fn entry_bytes(key: &Bytes, value: Option<&Bytes>) -> usize {
    key.len() + value.map_or(0, Bytes::len) + ENTRY_BYTES
}

impl StoreOverlay {
    fn covers(&self, key: &[u8]) -> bool {
        let upto = (Bound::Unbounded, Bound::Included(key));
        self.ranges.range::<[u8], _>(upto).next_back().is_some_and(|(_, end)| key < end)
    }
}

impl Overlay {
    /// An empty one for that many stores.
    pub fn new(stores: usize) -> Self {
        Self { stores: (0..stores).map(|_| StoreOverlay::default()).collect(), bytes: 0 }
    }

    fn store(&self, store: StoreId) -> &StoreOverlay {
        &self.stores[usize::from(store.0)]
    }

    /// Bytes that it keeps in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.stores.iter().all(|store| store.entries.is_empty() && store.ranges.is_empty())
    }

    /// What it knows of a key by its entries; ranges are asked for by [`Overlay::range_deleted`].
    pub fn get(&self, store: StoreId, key: &[u8]) -> Known {
        match self.store(store).entries.get(key) {
            Some(Some(value)) => Known::Value(value.clone()),
            Some(None) => Known::Deleted,
            None => Known::Nothing,
        }
    }

    /// Whether a deleted range covers the key.
    pub fn range_deleted(&self, store: StoreId, key: &[u8]) -> bool {
        self.store(store).covers(key)
    }

    /// Whether any range was deleted in the store.
    pub fn has_ranges(&self, store: StoreId) -> bool {
        !self.store(store).ranges.is_empty()
    }

    /// Writes or deletes a key.
    pub fn put(&mut self, store: StoreId, key: Bytes, value: Option<Bytes>) {
        self.bytes += entry_bytes(&key, value.as_ref());
        let key_bytes = key.len();
        if let Some(old) = self.stores[usize::from(store.0)].entries.insert(key, value) {
            self.bytes -= key_bytes + old.map_or(0, |old| old.len()) + ENTRY_BYTES;
        }
    }

    /// Deletes the keys from `from` to `to` (excluded). An empty range is nothing.
    pub fn delete_range(&mut self, store: StoreId, mut from: Bytes, mut to: Bytes) {
        if from >= to {
            return;
        }
        let at = &mut self.stores[usize::from(store.0)];
        let inside = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
        let gone: Vec<Bytes> = at.entries.range::<[u8], _>(inside).map(|(key, _)| key.clone()).collect();
        for key in gone {
            let value = at.entries.remove(&key).expect("it was just listed");
            self.bytes -= entry_bytes(&key, value.as_ref());
        }
        // Every range that begins at or before our end and ends at or after our start becomes one with ours.
        let upto = (Bound::Unbounded, Bound::Included(&to[..]));
        let touching: Vec<Bytes> = at
            .ranges
            .range::<[u8], _>(upto)
            .rev()
            .take_while(|(_, end)| **end >= from)
            .map(|(start, _)| start.clone())
            .collect();
        for start in touching {
            let end = at.ranges.remove(&start).expect("it was just listed");
            self.bytes -= entry_bytes(&start, Some(&end));
            from = from.min(start);
            to = to.max(end);
        }
        self.bytes += entry_bytes(&from, Some(&to));
        at.ranges.insert(from, to);
    }

    /// Entries of a range, deletes included, in the given direction.
    pub fn entries(
        &self,
        store: StoreId,
        range: &KeyRange,
        direction: Direction,
    ) -> Box<dyn Iterator<Item = (Bytes, Option<Bytes>)> + '_> {
        if range.is_empty() {
            return Box::new(std::iter::empty());
        }
        let bounds = (range.start.as_ref().map(|key| &key[..]), range.end.as_ref().map(|key| &key[..]));
        let found = self.store(store).entries.range::<[u8], _>(bounds);
        match direction {
            Direction::Forward => Box::new(found.map(|(key, value)| (key.clone(), value.clone()))),
            Direction::Reverse => Box::new(found.rev().map(|(key, value)| (key.clone(), value.clone()))),
        }
    }

    /// The deleted ranges of all stores, as updates.
    pub fn range_updates(&self) -> impl Iterator<Item = Update> + '_ {
        self.numbered().flat_map(|(id, store)| {
            store.ranges.iter().map(move |(from, to)| Update::DeleteRange(id, from.clone(), to.clone()))
        })
    }

    /// The entries of all stores, as updates.
    pub fn entry_updates(&self) -> impl Iterator<Item = Update> + '_ {
        self.numbered().flat_map(|(id, store)| {
            store.entries.iter().map(move |(key, value)| match value {
                Some(value) => Update::Put(id, key.clone(), value.clone()),
                None => Update::Delete(id, key.clone()),
            })
        })
    }

    fn numbered(&self) -> impl Iterator<Item = (StoreId, &StoreOverlay)> {
        (0u16..).map(StoreId).zip(&self.stores)
    }

    /// Forgets the entries (they went elsewhere), keeps the ranges.
    pub fn clear_entries(&mut self) {
        for store in &mut self.stores {
            let entries = std::mem::take(&mut store.entries);
            self.bytes -= entries.iter().map(|(key, value)| entry_bytes(key, value.as_ref())).sum::<usize>();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        for store in &mut self.stores {
            *store = StoreOverlay::default();
        }
        self.bytes = 0;
    }

    /// Counts anew; for tests of the running count.
    #[cfg(test)]
    pub(crate) fn recounted(&self) -> usize {
        let of = |store: &StoreOverlay| {
            let entries = store.entries.iter().map(|(key, value)| entry_bytes(key, value.as_ref()));
            let ranges = store.ranges.iter().map(|(from, to)| entry_bytes(from, Some(to)));
            entries.sum::<usize>() + ranges.sum::<usize>()
        };
        self.stores.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: StoreId = StoreId(0);

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    /// Proves that ranges that overlap or touch become one, that entries inside vanish and later ones stand, and that
    /// the count follows all of it.
    #[test]
    fn ranges_join_and_entries_yield() {
        let mut overlay = Overlay::new(1);
        for key in ["a", "c", "e", "g"] {
            overlay.put(S, bytes(key), Some(bytes("v")));
        }
        overlay.delete_range(S, bytes("b"), bytes("d"));
        overlay.delete_range(S, bytes("f"), bytes("h"));
        assert_eq!(overlay.range_updates().count(), 2);
        overlay.delete_range(S, bytes("d"), bytes("f"));
        let all: Vec<Update> = overlay.range_updates().collect();
        assert_eq!(all, vec![Update::DeleteRange(S, bytes("b"), bytes("h"))]);
        assert_eq!(overlay.entry_updates().count(), 1);
        overlay.put(S, bytes("c"), None);
        assert!(
            overlay.range_deleted(S, b"c")
                && !overlay.range_deleted(S, b"h")
                && !overlay.range_deleted(S, b"a")
        );
        assert_eq!(overlay.get(S, b"c"), Known::Deleted);
        assert_eq!(overlay.bytes(), overlay.recounted());
        overlay.delete_range(S, bytes("z"), bytes("y"));
        assert_eq!(overlay.range_updates().count(), 1, "an empty range is nothing");
        overlay.clear_entries();
        assert_eq!(overlay.bytes(), overlay.recounted());
        assert!(!overlay.is_empty());
        overlay.clear();
        assert!(overlay.is_empty() && overlay.bytes() == 0);
    }
}
