//! The last offset of every key in the uncleaned part, in a table of fixed size whatever the size of the log.
//!
//! Place in the walk: filled by an [`Indexing`] before the pass, read by the pass. A key is kept as 16 bytes of
//! SipHash under a random key, so that two keys never meet there by chance or by a client's design: they would be
//! taken for one and the older record would go. When the table is full the pass ends earlier, and the next one
//! goes on from there.

use bytes::Bytes;
use ottla_protocol::batch::BatchHeader;
use ottla_protocol::record::{Cursor, body_of};
use siphasher::sip128::SipHasher13;

use super::transactions::AbortedBatches;
use super::{Input, Plan, Rules};

/// Who knows whether a record is the last one of its key.
pub trait Latest {
    /// Whether a later record of the key takes the place of the one at `offset`.
    fn is_superseded(&self, key: &[u8], offset: i64) -> bool;
}

/// Bytes of one place in the table.
const SLOT_BYTES: usize = size_of::<Slot>();
/// Share of the places that are filled at most, in percent: beyond it searches grow long.
const LOAD_PERCENT: usize = 90;
/// Places that even the smallest table has.
const SLOTS_MIN: usize = 64;

/// One place.
#[derive(Clone, Copy, Default)]
struct Slot {
    hash: [u64; 2],
    /// Offset + 1; 0 for an empty place.
    next_offset: u64,
}

/// Hash of a key to the offset of its last record.
pub struct KeyMap {
    hasher: SipHasher13,
    slots: Vec<Slot>,
    len: usize,
    len_max: usize,
}

impl KeyMap {
    /// An empty table of at most `bytes_max` bytes (at least 1.5 KiB are taken), no larger than `keys` keys need.
    /// `seed` must be random, and stay unknown to clients.
    pub fn new(seed: [u8; 16], bytes_max: usize, keys: u64) -> Self {
        let wanted = keys.saturating_mul(100) / LOAD_PERCENT as u64 + 1;
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let slots = wanted.min(bytes_max / SLOT_BYTES).max(SLOTS_MIN);
        Self {
            hasher: SipHasher13::new_with_key(&seed),
            slots: vec![Slot::default(); slots],
            len: 0,
            len_max: slots / 100 * LOAD_PERCENT + slots % 100 * LOAD_PERCENT / 100,
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keys that fit in all.
    pub fn len_max(&self) -> usize {
        self.len_max
    }

    /// Bytes of the table.
    pub fn table_bytes(&self) -> usize {
        self.slots.len() * SLOT_BYTES
    }

    /// The place of a key: where it is, or where it would be put.
    fn find(&self, key: &[u8]) -> (usize, [u64; 2]) {
        let hash: [u64; 2] = self.hasher.hash(key).as_u64().into();
        let [first, _] = hash;
        let count = self.slots.len();
        // The high half of the product: a place below `count`, evenly.
        let mut at = ((u128::from(first) * count as u128) >> 64) as usize;
        loop {
            let slot = &self.slots[at];
            if slot.next_offset == 0 || slot.hash == hash {
                return (at, hash);
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
    }

    /// Notes a record. False when it is of a new key and the table is full.
    pub fn insert(&mut self, key: &[u8], offset: i64) -> bool {
        let next_offset = u64::try_from(offset).expect("offsets are not negative") + 1;
        let (at, hash) = self.find(key);
        let is_new = self.slots[at].next_offset == 0;
        if is_new && self.len == self.len_max {
            return false;
        }
        self.len += usize::from(is_new);
        let slot = &mut self.slots[at];
        *slot = Slot { hash, next_offset: slot.next_offset.max(next_offset) };
        true
    }

    /// Offset of the last record of the key.
    pub fn get(&self, key: &[u8]) -> Option<i64> {
        let (at, _) = self.find(key);
        let next_offset = self.slots[at].next_offset.checked_sub(1)?;
        Some(i64::try_from(next_offset).expect("it was an offset"))
    }
}

impl Latest for KeyMap {
    fn is_superseded(&self, key: &[u8], offset: i64) -> bool {
        self.get(key).is_some_and(|last| offset < last)
    }
}

/// What became of a batch that was offered to an [`Indexing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexed {
    /// The next one may come.
    More,
    /// The limit is reached or the table is full: the pass goes no further, later batches are not wanted.
    End,
}

/// Fills the table from the uncleaned part.
pub struct Indexing {
    map: KeyMap,
    aborted: AbortedBatches,
    from: i64,
    limit: i64,
    /// All keys below it are in the table.
    indexed_to: i64,
    decompressed_bytes_max: usize,
    unreadable: u64,
}

impl Indexing {
    /// Begins with the batches of `plan`. `bytes_max` bounds the table, `seed` is random.
    pub fn new(rules: &Rules, input: &Input, plan: &Plan, seed: [u8; 16], bytes_max: usize) -> Self {
        let keys = u64::try_from(plan.limit - plan.from).unwrap_or_default();
        Self {
            map: KeyMap::new(seed, bytes_max, keys),
            aborted: AbortedBatches::new(&input.aborted),
            from: plan.from,
            limit: plan.limit,
            indexed_to: plan.from,
            decompressed_bytes_max: rules.decompressed_bytes_max,
            unreadable: 0,
        }
    }

    /// Takes a batch: those of the partition from `plan.from` on, in order; earlier ones are passed over.
    pub fn add(&mut self, header: &BatchHeader, tail: &Bytes) -> Indexed {
        if header.last_offset() < self.from {
            return Indexed::More;
        }
        if header.base_offset >= self.limit {
            self.indexed_to = self.limit;
            return Indexed::End;
        }
        let aborted = self.aborted.covers(header);
        let end = header.last_offset() + 1;
        if !header.is_control() && !aborted {
            // A batch goes in as a whole; only one with more records than the table has room for is divided.
            let records = usize::try_from(header.records_count).unwrap_or_default();
            let room = self.map.len_max() - self.map.len();
            if records > room && !self.map.is_empty() && self.indexed_to > self.from {
                return Indexed::End;
            }
            if let Some(full_at) = self.add_records(header, tail) {
                self.indexed_to = full_at;
                return Indexed::End;
            }
        }
        self.indexed_to = end.min(self.limit);
        if end >= self.limit { Indexed::End } else { Indexed::More }
    }

    /// Notes the keys of a batch. The offset of the first record that did not fit.
    fn add_records(&mut self, header: &BatchHeader, tail: &Bytes) -> Option<i64> {
        let Ok(body) = body_of(header, tail, self.decompressed_bytes_max) else {
            self.unreadable += 1;
            return None;
        };
        let mut cursor = Cursor::new(&body);
        for _ in 0..header.records_count {
            let Ok(record) = cursor.record() else {
                self.unreadable += 1;
                return None;
            };
            let offset = header.base_offset.saturating_add(i64::from(record.offset_delta));
            let key = record.key.and_then(|key| body.get(key));
            if let Some(key) = key
                && (self.from..self.limit).contains(&offset)
                && !self.map.insert(key, offset)
            {
                return Some(offset);
            }
        }
        None
    }

    /// Batches whose records could not be read.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// The table, and where the pass ends: the plan's limit when every batch was seen or the end of what was.
    pub fn finish(self) -> (KeyMap, i64) {
        (self.map, self.indexed_to)
    }
}
