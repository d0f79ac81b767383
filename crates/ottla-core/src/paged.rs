//! A slab whose pages are shared and copied on the first write after a snapshot.
//!
//! Place in the walk: every durable collection of the shard lives in one of these. A snapshot takes one reference
//! count per 4,096 values (a book of 64 pages of 64 slots); the owner goes on writing and pays for a book and for a
//! page once, when it first changes something in them while the snapshot still holds them.
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
/// Pages per book.
const BOOK_PAGES: usize = 64;

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

/// Pages that lie one behind the other; a missing one is empty. Every book but the last has all of its places.
type Book<T> = Vec<Option<Arc<Page<T>>>>;

/// The slab.
pub(crate) struct Paged<T> {
    books: Vec<Arc<Book<T>>>,
    /// Pages with a free slot, so that the smallest is found at once.
    open_pages: BTreeSet<u32>,
    pages: usize,
    len: usize,
}

impl<T> Default for Paged<T> {
    fn default() -> Self {
        Self { books: Vec::new(), open_pages: BTreeSet::new(), pages: 0, len: 0 }
    }
}

impl<T> Clone for Paged<T> {
    fn clone(&self) -> Self {
        Self { open_pages: self.open_pages.clone(), ..self.snapshot() }
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

    /// The slab as it is now, to be read: it does not know its free slots.
    pub(crate) fn snapshot(&self) -> Self {
        Self { books: self.books.clone(), open_pages: BTreeSet::new(), pages: self.pages, len: self.len }
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// One past the largest slot that may be in use.
    pub(crate) fn slot_bound(&self) -> u32 {
        u32::try_from(self.pages * PAGE_SLOTS).expect("limits keep the slab small")
    }

    #[inline]
    fn page(&self, page: usize) -> Option<&Page<T>> {
        self.books.get(page / BOOK_PAGES)?.get(page % BOOK_PAGES)?.as_deref()
    }

    /// The value in a slot.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        let (page, place) = split(slot);
        self.page(page)?.slots[place].as_ref()
    }

    /// All values with their slots, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.iter_from(0)
    }

    /// Values from the page of `slot` on, with their slots, in slot order.
    pub(crate) fn iter_from(&self, slot: u32) -> impl Iterator<Item = (u32, &T)> {
        let pages = (split(slot).0..self.pages).filter_map(move |page| Some((page, self.page(page)?)));
        pages.flat_map(|(page, values)| {
            let slots = values.slots.iter().enumerate();
            slots
                .filter_map(move |(place, value)| Some(((page * PAGE_SLOTS + place) as u32, value.as_ref()?)))
        })
    }

    /// A place for one more page at the end.
    fn push_page(&mut self) {
        if self.pages.is_multiple_of(BOOK_PAGES) {
            self.books.push(Arc::default());
        }
        let book = self.books.last_mut().expect("there is one");
        Arc::make_mut(book).push(None);
        self.open_pages.insert(u32::try_from(self.pages).expect("limits keep the slab small"));
        self.pages += 1;
    }
}

impl<T: Clone> Paged<T> {
    /// The page, to change it; it must be below `pages`. Copies what a snapshot holds.
    #[inline]
    fn page_mut(&mut self, page: usize) -> &mut Page<T> {
        let book = Arc::make_mut(&mut self.books[page / BOOK_PAGES]);
        Arc::make_mut(book[page % BOOK_PAGES].get_or_insert_with(|| Arc::new(Page::new())))
    }

    /// Puts a value into the smallest free slot and returns its number.
    ///
    /// # Panics
    /// At 2^32 values, which the limits of [`crate::config::Limits`] keep far away.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if self.open_pages.is_empty() {
            self.push_page();
        }
        let page = *self.open_pages.first().expect("a page was made") as usize;
        let place = self.page(page).map_or(0, |page| page.occupied.trailing_ones() as usize);
        let slot = u32::try_from(page * PAGE_SLOTS + place).expect("limits keep the slab small");
        self.put(slot, value);
        slot
    }

    /// Puts a value into a given free slot, as a restore does. False when the slot is taken, and then nothing
    /// changes. Places of missing pages in front of it are made, so callers bound the slot first.
    pub(crate) fn insert_at(&mut self, slot: u32, value: T) -> bool {
        while self.pages <= split(slot).0 {
            self.push_page();
        }
        if self.get(slot).is_some() {
            return false;
        }
        self.put(slot, value);
        true
    }

    fn put(&mut self, slot: u32, value: T) {
        let (page, place) = split(slot);
        let values = self.page_mut(page);
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
        self.page(page)?;
        self.page_mut(page).slots[place].as_mut()
    }

    /// Takes a value out and frees its slot; the last one of a page frees the page.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let (page, place) = split(slot);
        self.get(slot)?;
        let values = self.page_mut(page);
        let value = values.slots[place].take();
        values.occupied &= !(1 << place);
        if values.occupied == 0 {
            Arc::make_mut(&mut self.books[page / BOOK_PAGES])[page % BOOK_PAGES] = None;
        }
        self.open_pages.insert(page as u32);
        self.len -= 1;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A snapshot keeps what it saw while the original changes, and only the changed page is copied.
    #[test]
    fn snapshot_stays_as_it_was() {
        let mut slab = Paged::new();
        let slots: Vec<u32> = (0..200).map(|value| slab.insert(value)).collect();
        let snapshot = slab.snapshot();
        *slab.get_mut(slots[70]).expect("inserted") = 1000;
        slab.remove(slots[71]);
        assert_eq!(snapshot.get(70), Some(&70));
        assert_eq!(snapshot.get(71), Some(&71));
        assert_eq!(slab.get(70), Some(&1000));
        assert_eq!(slab.get(71), None);
        let is_shared = |page: usize| {
            let of = |slab: &Paged<i32>| slab.page(page).map(std::ptr::from_ref);
            of(&slab) == of(&snapshot)
        };
        assert!(is_shared(0) && !is_shared(1));
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
