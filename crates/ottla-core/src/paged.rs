//! A slab whose pages are shared and copied on the first write after a snapshot.
//!
//! Place in the walk: every durable collection of the shard lives in one of these. A snapshot is a clone, one
//! reference count per 64 values; the owner goes on writing and pays for a page once, when it first changes
//! it while the snapshot still holds it.
//!
//! Invariants: a slot keeps its number while its value lives, and a new value always takes the smallest free
//! slot. So slot numbers are a function of the order of insertions and removals alone, and a slab restored
//! from (slot, value) pairs goes on exactly as the one it was taken from.
//!
//! Not here: indexes from keys to slots. They are derived, owned by whoever knows the key, and not in snapshots.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Values per page; also the bits of a page's occupancy.
const PAGE_SLOTS: usize = 64;

/// One page.
#[derive(Clone)]
struct Page<T> {
    occupied: u64,
    slots: [Option<T>; PAGE_SLOTS],
}

impl<T> Page<T> {
    fn new() -> Self {
        Self { occupied: 0, slots: std::array::from_fn(|_| None) }
    }
}

/// The slab. Cloning it is taking a snapshot.
#[derive(Clone)]
pub(crate) struct Paged<T> {
    pages: Vec<Arc<Page<T>>>,
    /// Pages with a free slot, so that the smallest is found at once.
    open_pages: BTreeSet<u32>,
    len: usize,
}

impl<T> Default for Paged<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), open_pages: BTreeSet::new(), len: 0 }
    }
}

/// Page and place in it.
fn split(slot: u32) -> (usize, usize) {
    (slot as usize / PAGE_SLOTS, slot as usize % PAGE_SLOTS)
}

impl<T> Paged<T> {
    /// An empty slab.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// One past the largest slot that may be in use.
    pub(crate) fn slot_bound(&self) -> u32 {
        u32::try_from(self.pages.len() * PAGE_SLOTS).expect("limits keep the slab small")
    }

    /// The value in a slot.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        let (page, place) = split(slot);
        self.pages.get(page)?.slots[place].as_ref()
    }

    /// All values with their slots, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.iter_from(0)
    }

    /// Values from the page of `slot` on, with their slots, in slot order.
    pub(crate) fn iter_from(&self, slot: u32) -> impl Iterator<Item = (u32, &T)> {
        self.pages.iter().enumerate().skip(split(slot).0).flat_map(|(page, values)| {
            values
                .slots
                .iter()
                .enumerate()
                .filter_map(move |(place, value)| Some(((page * PAGE_SLOTS + place) as u32, value.as_ref()?)))
        })
    }
}

impl<T: Clone> Paged<T> {
    /// Puts a value into the smallest free slot and returns its number.
    ///
    /// # Panics
    /// At 2^32 values, which the limits of [`crate::config::Limits`] keep far away.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let page = match self.open_pages.first() {
            Some(page) => *page as usize,
            None => {
                self.pages.push(Arc::new(Page::new()));
                let page = self.pages.len() - 1;
                self.open_pages.insert(u32::try_from(page).expect("limits keep the slab small"));
                page
            }
        };
        let place = self.pages[page].occupied.trailing_ones() as usize;
        let slot = u32::try_from(page * PAGE_SLOTS + place).expect("limits keep the slab small");
        self.put(slot, value);
        slot
    }

    /// Puts a value into a given free slot, as a restore does. False when the slot is taken, and then nothing
    /// changes. Missing pages in front of it are made, so callers bound the slot first.
    pub(crate) fn insert_at(&mut self, slot: u32, value: T) -> bool {
        let (page, place) = split(slot);
        if self.pages.len() <= page {
            // One empty page stands for all of them until it is written to.
            let empty = Arc::new(Page::new());
            for missing in self.pages.len()..=page {
                self.open_pages.insert(u32::try_from(missing).expect("limits keep the slab small"));
                self.pages.push(empty.clone());
            }
        }
        if self.pages[page].slots[place].is_some() {
            return false;
        }
        self.put(slot, value);
        true
    }

    fn put(&mut self, slot: u32, value: T) {
        let (page, place) = split(slot);
        let values = Arc::make_mut(&mut self.pages[page]);
        assert!(values.slots[place].is_none(), "a value is put into a free slot");
        values.slots[place] = Some(value);
        values.occupied |= 1 << place;
        if values.occupied == u64::MAX {
            self.open_pages.remove(&(page as u32));
        }
        self.len += 1;
    }

    /// The value in a slot, to change it. Copies the page if a snapshot holds it.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let (page, place) = split(slot);
        Arc::make_mut(self.pages.get_mut(page)?).slots[place].as_mut()
    }

    /// Takes a value out and frees its slot.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let (page, place) = split(slot);
        let values = self.pages.get_mut(page)?;
        values.slots[place].as_ref()?;
        let values = Arc::make_mut(values);
        let value = values.slots[place].take();
        values.occupied &= !(1 << place);
        self.open_pages.insert(page as u32);
        self.len -= 1;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A clone keeps what it saw while the original changes, and only the changed page is copied.
    #[test]
    fn clone_is_a_snapshot() {
        let mut slab = Paged::new();
        let slots: Vec<u32> = (0..200).map(|value| slab.insert(value)).collect();
        let snapshot = slab.clone();
        *slab.get_mut(slots[70]).expect("inserted") = 1000;
        slab.remove(slots[71]);
        assert_eq!(snapshot.get(70), Some(&70));
        assert_eq!(snapshot.get(71), Some(&71));
        assert_eq!(slab.get(70), Some(&1000));
        assert_eq!(slab.get(71), None);
        assert!(Arc::ptr_eq(&slab.pages[0], &snapshot.pages[0]));
        assert!(!Arc::ptr_eq(&slab.pages[1], &snapshot.pages[1]));
    }

    proptest! {
        /// Against a plain map: contents and length agree, the smallest free slot is taken, and a slab rebuilt
        /// from its pairs hands out the same slots from then on.
        #[test]
        fn equals_a_map(steps in prop::collection::vec((any::<bool>(), 0u32..300), 0..600)) {
            let mut slab = Paged::new();
            let mut model = std::collections::BTreeMap::new();
            for (index, (insert, slot)) in steps.into_iter().enumerate() {
                if insert {
                    let free = (0u32..).find(|slot| !model.contains_key(slot)).expect("some slot is free");
                    prop_assert_eq!(slab.insert(index), free);
                    model.insert(free, index);
                } else {
                    prop_assert_eq!(slab.remove(slot), model.remove(&slot));
                }
                prop_assert_eq!(slab.len(), model.len());
            }
            let pairs: Vec<(u32, usize)> = slab.iter().map(|(slot, value)| (slot, *value)).collect();
            prop_assert_eq!(&pairs, &model.into_iter().collect::<Vec<_>>());
            let mut restored = Paged::new();
            for (slot, value) in pairs {
                prop_assert!(restored.insert_at(slot, value));
                prop_assert!(!restored.insert_at(slot, value));
            }
            for value in 0..100 {
                prop_assert_eq!(slab.insert(value), restored.insert(value));
            }
        }
    }
}
