//! All transactional ids of the shard: the durable table, and the indexes and deadlines derived from it.
//!
//! Place in the walk: handlers read it; `shard/apply.rs` gives it every entry of `__transaction_state`. Loading
//! is replaying the same entries, or a snapshot of the table.
//!
//! Invariants: the table changes only in [`Coordinator::apply`] and [`Coordinator::restore`]; every change is
//! legal by [`State::may_become`]. Deadlines are volatile: they start fresh at [`Coordinator::begin_epoch`]
//! and move when the owner stood still, and nothing durable rests on them but the moment of an abort.

use std::collections::BTreeSet;

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use ottla_protocol::entry::Entry;
use ottla_protocol::record::records_of;
use ottla_protocol::types::Text;

use super::record::{self, Decoded};
use super::state::{State, Transaction};
use crate::config::CoreConfig;
use crate::decision::{Position, ShardTime};
use crate::paged::Paged;
use crate::shard::{Decoder, Encoder, ReplayError, RestoreError, Section, chunked, section};

/// Version of the snapshot section.
const SECTION_VERSION: u8 = 0;

/// A transactional id, and the last decision that changed it.
#[derive(Clone, Debug)]
struct Slot {
    transaction: Transaction,
    /// Of the decision; not in snapshots, since what is loaded is durable.
    position: Position,
}

/// When the coordinator wants to be called.
#[derive(Debug, Default)]
struct Deadlines {
    /// Timeouts of open transactions, earliest first, and the same by slot.
    queue: BTreeSet<(i64, u32)>,
    by_slot: HashMap<u32, i64, FixedState>,
    /// Timeouts are looked at on a grid from here, `transaction.abort.timed.out…` apart.
    grid_origin: i64,
    grid_ms: i64,
    /// When expired ids are looked for next.
    expiry_at: i64,
    /// Where the search for expired ids stands, while one is under way.
    expiry_cursor: Option<u32>,
}

impl Deadlines {
    fn set(&mut self, slot: u32, at: i64) {
        self.clear(slot);
        self.queue.insert((at, slot));
        self.by_slot.insert(slot, at);
    }

    fn clear(&mut self, slot: u32) {
        if let Some(at) = self.by_slot.remove(&slot) {
            self.queue.remove(&(at, slot));
        }
    }

    /// The first point of the grid at or behind the earliest timeout.
    fn next_abort(&self) -> Option<i64> {
        let (earliest, _) = *self.queue.first()?;
        let waited = earliest.saturating_sub(self.grid_origin).max(0);
        let steps = waited / self.grid_ms + i64::from(waited % self.grid_ms != 0);
        Some(self.grid_origin.saturating_add(steps.saturating_mul(self.grid_ms)))
    }
}

/// The transaction coordinator's state.
pub(crate) struct Coordinator {
    ids: Paged<Slot>,
    index: HashMap<Text, u32, FixedState>,
    /// Slots whose decision is not complete.
    prepared: BTreeSet<u32>,
    /// Number of open transactions.
    open: usize,
    /// Partitions of all transactions together.
    partitions: usize,
    /// Position of the last removal: what an answer about an unknown id rests on.
    removed: Position,
    deadlines: Deadlines,
}

impl Coordinator {
    /// No ids.
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let mut coordinator = Self {
            ids: Paged::new(),
            index: HashMap::with_hasher(FixedState::with_seed(config.hash_seed)),
            prepared: BTreeSet::new(),
            open: 0,
            partitions: 0,
            removed: Position::default(),
            deadlines: Deadlines::default(),
        };
        coordinator.begin_epoch(config, 0, ShardTime::default());
        coordinator
    }

    /// Starts the deadlines afresh: no open transaction is timed out before the grace, or its own timeout, is
    /// over.
    pub(crate) fn begin_epoch(&mut self, config: &CoreConfig, _shard_epoch: i32, now: ShardTime) {
        self.deadlines = Deadlines {
            grid_origin: now.0,
            grid_ms: config.transaction_abort_interval_ms.max(1),
            expiry_at: now.0.saturating_add(config.transactional_id_cleanup_interval_ms),
            ..Deadlines::default()
        };
        for (slot, id) in self.ids.iter() {
            if let Some(timeout_at) = id.transaction.timeout_at() {
                let grace = i64::from(id.transaction.timeout_ms).min(config.timeout_grace_after_start_ms);
                self.deadlines.set(slot, timeout_at.max(now.0.saturating_add(grace)));
            }
        }
    }

    /// Number of ids.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Number of open transactions.
    pub(crate) fn open_count(&self) -> usize {
        self.open
    }

    /// Partitions of all transactions together.
    pub(crate) fn partition_count(&self) -> usize {
        self.partitions
    }

    /// Counts a transaction that is new, or what took the place of another.
    fn count(&mut self, is_open: bool, partitions: usize) {
        self.open += usize::from(is_open);
        self.partitions += partitions;
    }

    /// Takes a transaction that is gone, or what it was before, out of the counts.
    fn discount(&mut self, was_open: bool, partitions: usize) {
        self.open -= usize::from(was_open);
        self.partitions -= partitions;
    }

    /// One id.
    pub(crate) fn get(&self, id: &str) -> Option<&Transaction> {
        let slot = *self.index.get(id.as_bytes())?;
        Some(&self.ids.get(slot).expect("the index names slots in use").transaction)
    }

    /// All ids, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Transaction> {
        self.ids.iter().map(|(_, slot)| &slot.transaction)
    }

    /// Those in a range of slots, in slot order.
    pub(crate) fn in_slots(&self, from: u32, to: u32) -> impl Iterator<Item = &Transaction> {
        let ids = self.ids.iter_from(from).skip_while(move |(slot, _)| *slot < from);
        ids.take_while(move |(slot, _)| *slot < to).map(|(_, slot)| &slot.transaction)
    }

    /// One past the largest slot that may be in use.
    pub(crate) fn slot_bound(&self) -> u32 {
        self.ids.slot_bound()
    }

    /// Those whose decision is not complete; only right after a load.
    pub(super) fn prepared(&self) -> impl Iterator<Item = &Transaction> {
        self.prepared.iter().map(|slot| &self.ids.get(*slot).expect("the set names slots in use").transaction)
    }

    /// The position that any statement about this id rests on.
    pub(crate) fn rests_on(&self, id: &str) -> Position {
        match self.index.get(id.as_bytes()) {
            Some(slot) => self.ids.get(*slot).expect("the index names slots in use").position,
            None => self.removed,
        }
    }

    /// When [`super::tick`] is due.
    pub(crate) fn next_deadline(&self) -> Option<ShardTime> {
        if !self.prepared.is_empty() {
            return Some(ShardTime(self.deadlines.grid_origin));
        }
        let expiry = (!self.index.is_empty()).then_some(self.deadlines.expiry_at);
        [self.deadlines.next_abort(), expiry].into_iter().flatten().min().map(ShardTime)
    }

    /// Moves all deadlines by the time for which the owner stood still.
    pub(crate) fn shift_deadlines(&mut self, by_ms: i64) {
        let deadlines = &mut self.deadlines;
        deadlines.grid_origin = deadlines.grid_origin.saturating_add(by_ms);
        deadlines.expiry_at = deadlines.expiry_at.saturating_add(by_ms);
        for (at, slot) in std::mem::take(&mut deadlines.queue) {
            let at = at.saturating_add(by_ms);
            deadlines.queue.insert((at, slot));
            deadlines.by_slot.insert(slot, at);
        }
    }

    /// Ids whose open transaction is past its timeout, at most `ids_max`; none before their point of the grid.
    pub(super) fn timed_out(&self, now: ShardTime, ids_max: usize) -> Vec<Text> {
        if self.deadlines.next_abort().is_none_or(|at| at > now.0) {
            return Vec::new();
        }
        self.deadlines
            .queue
            .iter()
            .take_while(|(at, _)| *at <= now.0)
            .take(ids_max)
            .map(|(_, slot)| {
                self.ids.get(*slot).expect("deadlines name slots in use").transaction.transactional_id.clone()
            })
            .collect()
    }

    /// The next ids that rest longer than `transactional.id.expiration.ms`, at most `slots_max` slots further.
    pub(super) fn expired(&mut self, config: &CoreConfig, now: ShardTime, slots_max: u32) -> Vec<Text> {
        let deadlines = &mut self.deadlines;
        if deadlines.expiry_at > now.0 {
            return Vec::new();
        }
        let from = deadlines.expiry_cursor.unwrap_or_default();
        let to = from.saturating_add(slots_max);
        if to >= self.ids.slot_bound() {
            deadlines.expiry_cursor = None;
            deadlines.expiry_at = now.0.saturating_add(config.transactional_id_cleanup_interval_ms.max(1));
        } else {
            deadlines.expiry_cursor = Some(to);
        }
        let limit = now.0.saturating_sub(config.transactional_id_expiration_ms);
        (from..to.min(self.ids.slot_bound()))
            .filter_map(|slot| self.ids.get(slot))
            .map(|slot| &slot.transaction)
            .filter(|transaction| {
                transaction.state.is_resting() && transaction.last_update_timestamp <= limit
            })
            .map(|transaction| transaction.transactional_id.clone())
            .collect()
    }

    /// Applies an entry of `__transaction_state`.
    ///
    /// # Errors
    /// When it cannot be read or does not continue this state.
    pub(crate) fn apply(&mut self, entry: &Entry, position: Position) -> Result<(), ReplayError> {
        let error = |reason| ReplayError::Record {
            partition: entry.partition,
            offset: entry.header.base_offset,
            reason,
        };
        if entry.header.is_control() {
            return Ok(()); // a marker that an operator sent here: it means nothing
        }
        let records = records_of(&entry.header, &entry.tail, 0).map_err(|_| error("compressed or cut"))?;
        for record in records {
            let record = record.map_err(|_| error("cut"))?;
            let key = record.key.ok_or_else(|| error("no key"))?;
            match record::decode(&key, record.value.as_ref()).map_err(error)? {
                Decoded::Transaction(transaction) => self.put(transaction, position).map_err(error)?,
                Decoded::Tombstone(id) => self.remove(&id, position),
                Decoded::Unknown => {}
            }
        }
        Ok(())
    }

    fn put(&mut self, transaction: Transaction, position: Position) -> Result<(), &'static str> {
        let state = transaction.state;
        let timeout_at = transaction.timeout_at();
        let partitions = transaction.partitions.len();
        let (slot, was) = match self.index.get(transaction.transactional_id.as_bytes().as_ref()) {
            Some(&slot) => {
                let there = self.ids.get_mut(slot).expect("the index names slots in use");
                let was = there.transaction.state;
                if !was.may_become(state) {
                    return Err("illegal transition of a transactional id");
                }
                let partitions_before = there.transaction.partitions.len();
                // The id's own buffer stays: the index shares it.
                let transactional_id = there.transaction.transactional_id.clone();
                *there = Slot { transaction: Transaction { transactional_id, ..transaction }, position };
                self.discount(was == State::Ongoing, partitions_before);
                (slot, Some(was))
            }
            None => {
                let id = transaction.transactional_id.clone();
                let slot = self.ids.insert(Slot { transaction, position });
                self.index.insert(id, slot);
                (slot, None)
            }
        };
        self.count(state == State::Ongoing, partitions);
        match timeout_at {
            Some(at) if was != Some(State::Ongoing) => self.deadlines.set(slot, at),
            Some(_) => {}
            None => self.deadlines.clear(slot),
        }
        if state.is_prepared() {
            self.prepared.insert(slot);
        } else {
            self.prepared.remove(&slot);
        }
        Ok(())
    }

    fn remove(&mut self, id: &Text, position: Position) {
        if let Some(slot) = self.index.remove(id.as_bytes().as_ref()) {
            let gone = self.ids.remove(slot).expect("the index names slots in use").transaction;
            self.discount(gone.state == State::Ongoing, gone.partitions.len());
            self.deadlines.clear(slot);
            self.prepared.remove(&slot);
            self.removed = position;
        }
    }

    /// The table as it stands, for a snapshot.
    pub(crate) fn snapshot(&self) -> Box<dyn Section> {
        Box::new(IdsSection(self.ids.snapshot()))
    }

    /// Takes a chunk of a snapshot.
    ///
    /// # Errors
    /// When it is not what [`Coordinator::snapshot`] wrote.
    pub(crate) fn restore(
        &mut self,
        kind: u8,
        version: u8,
        mut items: Decoder<'_>,
    ) -> Result<(), RestoreError> {
        if kind != section::TRANSACTIONS {
            return Err(RestoreError::Kind { kind });
        }
        if version != SECTION_VERSION {
            return Err(RestoreError::Version { kind, version });
        }
        while !items.is_empty() {
            let slot = items.u32()?;
            let key = bytes::Bytes::copy_from_slice(items.bytes()?);
            let value = bytes::Bytes::copy_from_slice(items.bytes()?);
            let decoded = record::decode(&key, Some(&value)).map_err(|reason| items.inconsistent(reason))?;
            let Decoded::Transaction(transaction) = decoded else {
                return Err(items.inconsistent("not a transaction"));
            };
            let (id, state) = (transaction.transactional_id.clone(), transaction.state);
            self.count(state == State::Ongoing, transaction.partitions.len());
            if slot > self.ids.slot_bound().saturating_add(SLOT_GAP_MAX)
                || !self.ids.insert_at(slot, Slot { transaction, position: Position::default() })
                || self.index.insert(id, slot).is_some()
            {
                return Err(items.inconsistent("a transactional id twice, or in a wrong place"));
            }
            if state.is_prepared() {
                self.prepared.insert(slot);
            }
        }
        Ok(())
    }
}

/// Free slots that a restored table may have in a row: more than any limit allows ids.
const SLOT_GAP_MAX: u32 = 1 << 21;

/// The table at the moment of a snapshot.
struct IdsSection(Paged<Slot>);

impl Section for IdsSection {
    fn chunks<'a>(&'a self) -> Box<dyn Iterator<Item = Vec<u8>> + 'a> {
        chunked(section::TRANSACTIONS, SECTION_VERSION, self.0.iter(), |(slot, id), out| {
            // Names are for tools; a snapshot is read by us alone.
            let (key, value) = record::encode_parts(&id.transaction, |_| Text::EMPTY);
            out.u32(slot);
            out.bytes(&key);
            out.bytes(&value);
        })
    }
}
