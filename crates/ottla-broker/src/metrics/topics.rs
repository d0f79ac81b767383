//! Traffic per topic: a fixed table of cells, found by the topic's id without a lock.
//!
//! Place: fetches and produces look their topic up on the connection, the log thread does when a frame is durable. A
//! topic takes a free place when it is first counted; when all are taken, it is counted under [`OTHER`]. A place is
//! freed at a scrape that finds its topic deleted.
//!
//! Invariants: ids are random, so 64 bits of one tell topics apart and spread evenly. Whoever still counts into a
//! place while it is freed counts into nothing that matters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ottla_protocol::types::Uuid;

use super::cells::Counter;
use crate::limits::METRICS_TOPICS_MAX;

/// Label of everything that has no place of its own; no topic can have this name.
pub const OTHER: &str = "(other)";

/// Places in the table; twice as many as topics, so that looking for one is short.
const PLACES: usize = METRICS_TOPICS_MAX * 2;
/// A place that nobody has had yet.
const EMPTY: u64 = 0;
/// A place whose topic is gone.
const FREED: u64 = 1;

/// What is counted of one topic. The two halves have different writers.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct TopicCells {
    /// By the log thread, when they are durable: records, markers not counted.
    pub messages_in: Counter,
    /// As before: bytes of batches, markers included.
    pub bytes_in: Counter,
    /// By connections.
    pub read: ReadCells,
}

/// What connections count of one topic.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReadCells {
    /// Bytes of batches in answers to Fetch.
    pub bytes_out: Counter,
    /// Partitions in Produce requests.
    pub produce_requests: Counter,
    /// Partitions that a Produce was refused for.
    pub failed_produce_requests: Counter,
    /// Partitions in answered Fetch requests.
    pub fetch_requests: Counter,
    /// Partitions that a Fetch was refused for.
    pub failed_fetch_requests: Counter,
}

#[derive(Debug, Default)]
struct Place {
    key: AtomicU64,
    cells: TopicCells,
}

/// The table.
#[derive(Debug)]
pub struct TopicTable {
    places: Box<[Place]>,
    /// Places that topics have; held while one is taken or freed.
    taken: Mutex<usize>,
    is_full: AtomicBool,
    other: TopicCells,
}

impl Default for TopicTable {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| Place::default()).collect();
        Self { places, taken: Mutex::default(), is_full: AtomicBool::default(), other: TopicCells::default() }
    }
}

fn key_of(id: Uuid) -> u64 {
    let (half, _) = id.0.split_first_chunk().expect("an id has 16 bytes");
    u64::from_be_bytes(*half).max(FREED + 1)
}

impl TopicTable {
    /// The cells of a topic; those of all others when there is no place left, and for the zero id.
    pub fn of(&self, id: Uuid) -> &TopicCells {
        if id.is_zero() {
            return &self.other;
        }
        let key = key_of(id);
        if let Some(place) = self.find(key) {
            return &place.cells;
        }
        self.take(key).map_or(&self.other, |place| &place.cells)
    }

    /// What is counted of topics without a place.
    pub fn other(&self) -> &TopicCells {
        &self.other
    }

    /// The cells of a topic, if it has a place.
    pub fn get(&self, id: Uuid) -> Option<&TopicCells> {
        self.find(key_of(id)).map(|place| &place.cells)
    }

    /// Frees the places of topics that are not among these.
    pub fn keep(&self, ids: impl Iterator<Item = Uuid>) {
        let mut keys: Vec<u64> = ids.map(key_of).collect();
        keys.sort_unstable();
        let mut taken = self.lock();
        for place in &self.places {
            let key = place.key.load(Ordering::Acquire);
            if key > FREED && keys.binary_search(&key).is_err() {
                place.key.store(FREED, Ordering::Release);
                place.cells.reset();
                *taken -= 1;
            }
        }
        self.is_full.store(*taken >= METRICS_TOPICS_MAX, Ordering::Release);
    }

    fn probe(&self, key: u64) -> impl Iterator<Item = &Place> {
        let (before, from) = self.places.split_at(key as usize % PLACES);
        from.iter().chain(before)
    }

    fn find(&self, key: u64) -> Option<&Place> {
        for place in self.probe(key) {
            match place.key.load(Ordering::Acquire) {
                found if found == key => return Some(place),
                EMPTY => return None,
                _ => {}
            }
        }
        None
    }

    /// Takes a place for a key that has none: once in a topic's life, so here is a lock. A full table needs none.
    fn take(&self, key: u64) -> Option<&Place> {
        if self.is_full.load(Ordering::Acquire) {
            return None;
        }
        let mut taken = self.lock();
        if let Some(place) = self.find(key) {
            return Some(place); // somebody else was quicker
        }
        if *taken >= METRICS_TOPICS_MAX {
            return None;
        }
        let place = self.probe(key).find(|place| place.key.load(Ordering::Acquire) <= FREED)?;
        place.key.store(key, Ordering::Release);
        *taken += 1;
        self.is_full.store(*taken >= METRICS_TOPICS_MAX, Ordering::Release);
        Some(place)
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TopicCells {
    fn reset(&self) {
        let read = &self.read;
        for cell in [
            &self.messages_in,
            &self.bytes_in,
            &read.bytes_out,
            &read.produce_requests,
            &read.failed_produce_requests,
            &read.fetch_requests,
            &read.failed_fetch_requests,
        ] {
            cell.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> Uuid {
        let mut bytes = [7; 16];
        bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        Uuid(bytes)
    }

    /// Proves: each topic has its own cells up to the bound, the rest share one; a deleted topic's place is free
    /// again and empty.
    #[test]
    fn bounded_and_freed() {
        let table = TopicTable::default();
        let max = METRICS_TOPICS_MAX as u64;
        for n in 1..=max + 10 {
            table.of(id(n)).messages_in.add(n);
        }
        for n in 1..=max {
            assert_eq!(table.get(id(n)).map(|cells| cells.messages_in.get()), Some(n));
        }
        assert!(table.get(id(max + 1)).is_none());
        assert_eq!(table.other().messages_in.get(), (max + 1..=max + 10).sum::<u64>());
        table.keep((2..=max).map(id));
        assert!(table.get(id(1)).is_none());
        assert_eq!(table.of(id(max + 1)).messages_in.get(), 0);
        assert_eq!(table.get(id(max)).map(|cells| cells.messages_in.get()), Some(max));
        table.of(id(max + 2)).messages_in.add(1);
        assert!(table.get(id(max + 2)).is_none(), "full again");
        table.keep(std::iter::empty());
        assert!((1..=max + 1).all(|n| table.get(id(n)).is_none()));
    }

    /// Proves: what has no id is counted under the others, and counting from several threads loses nothing.
    #[test]
    fn threads() {
        let table = TopicTable::default();
        table.of(Uuid::ZERO).messages_in.add(1);
        assert_eq!(table.other().messages_in.get(), 1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|n| table.of(id(1 + n % 100)).messages_in.add(1)));
            }
        });
        assert!((1..=100).all(|n| table.get(id(n)).map(|cells| cells.messages_in.get()) == Some(40)));
    }
}
