//! Partitions: where each log ends, who has written to it, and which transactions are open in it.
//!
//! Place in the walk: `produce` and the coordinators ask whether a batch may be appended (`append`, `marker`);
//! `shard::apply` changes the state when the batch has its place (`Partitions::apply`); readers get [`Bounds`].
//!
//! Invariants:
//! - Offsets of a partition have no gap: a batch begins where the log ends.
//! - A producer has one entry per partition, with up to five batches, all of its current epoch.
//! - The index of open transactions is derived from the producers' entries; the last stable offset is the
//!   smallest first offset in it, never below the log start, never above the log's end.
//!
//! Not here: whether a batch's bytes are sound (the connection checked them), whether a transaction exists (the
//! coordinator knows), records themselves.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::{HashMap, HashTable};
use ottla_protocol::batch::BatchHeader;
use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;

use crate::clean::{Cleaned, CleanedState};
use crate::cluster::CONTROL_PARTITION;
use crate::config::CoreConfig;
use crate::decision::{Bounds, Position, ShardTime};
use crate::paged::Paged;
use crate::shard::ReplayError;

mod aborted;
mod append;
mod cleaning;
mod describe;
pub(crate) mod expiry;
mod producer;
mod producers;
mod snapshot;
#[cfg(test)]
mod tests;
mod verification;

pub use aborted::{AbortedIndex, AbortedTransaction};
pub(crate) use append::{Appended, BatchRules};
pub(crate) use describe::describe_producers;
pub(crate) use producer::{CachedBatch, ProducerState};
use producers::Producers;
pub(crate) use snapshot::PartitionsSnapshot;
pub(crate) use verification::Verifications;

/// What a partition is for. The numbers are part of the control log's and the snapshot's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// A client's topic.
    Data = 0,
    /// `__consumer_offsets`.
    ConsumerOffsets = 1,
    /// `__transaction_state`.
    TransactionState = 2,
    /// The control log.
    Control = 3,
}

impl Role {
    /// The role with this number.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Data, Self::ConsumerOffsets, Self::TransactionState, Self::Control]
            .into_iter()
            .find(|role| *role as u8 == number)
    }
}

/// One partition.
#[derive(Clone, Debug)]
pub(crate) struct PartitionState {
    partition: TopicIdPartition,
    role: Role,
    /// Added to the shard's epoch, it gives the leader epoch.
    base_leader_epoch: i32,
    log_start_offset: i64,
    log_end_offset: i64,
    /// Leader epochs and where they begin, oldest first.
    leader_epochs: Arc<Vec<(i32, i64)>>,
    aborted: Arc<AbortedIndex>,
    cleaned: CleanedState,
    /// Of the last decision that changed the partition; after a load that of the load. Not in snapshots.
    last_position: Position,
}

impl PartitionState {
    /// Which partition it is.
    pub(crate) fn partition(&self) -> TopicIdPartition {
        self.partition
    }

    /// What it is for.
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Whether this is the control log.
    pub(crate) fn is_control(&self) -> bool {
        self.role == Role::Control
    }

    /// Offset of the oldest record.
    pub(crate) fn log_start_offset(&self) -> i64 {
        self.log_start_offset
    }

    /// Offset of the next record.
    pub(crate) fn log_end_offset(&self) -> i64 {
        self.log_end_offset
    }

    /// Position of the last decision that changed it.
    pub(crate) fn last_position(&self) -> Position {
        self.last_position
    }

    /// Leader epoch of appends under this shard epoch.
    pub(crate) fn leader_epoch(&self, shard_epoch: i32) -> i32 {
        self.base_leader_epoch.saturating_add(shard_epoch)
    }
}

/// Where a producer is: the id's hash, so that most others are told apart without a look at them, and the slot.
#[derive(Clone, Copy, Debug)]
struct ProducerPlace {
    hash: u32,
    slot: u32,
}

impl ProducerPlace {
    /// What the table sorts by: its high and its low bits must both differ.
    fn spread(self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Tables of producers below this size are left as they are when producers are forgotten.
const TABLE_LEAST: usize = 64;

/// What is derived from the producers of one partition.
#[derive(Default)]
struct Derived {
    /// The producers by producer id.
    producers: HashTable<ProducerPlace>,
    /// Open transactions: first offset to producer id.
    open: BTreeMap<i64, i64>,
}

impl Derived {
    /// Slot of the producer with this id and hash.
    #[inline]
    fn find(&self, producers: &Producers, producer_id: i64, hash: u32) -> Option<u32> {
        let wanted = ProducerPlace { hash, slot: 0 };
        let found = self.producers.find(wanted.spread(), |place| {
            place.hash == hash && producers.producer_id(place.slot) == Some(producer_id)
        });
        found.map(|place| place.slot)
    }

    /// Notes a producer that is not there.
    fn insert(&mut self, hash: u32, slot: u32) {
        let place = ProducerPlace { hash, slot };
        self.producers.insert_unique(place.spread(), place, |place| place.spread());
    }

    /// Forgets the producer in a slot.
    fn remove(&mut self, hash: u32, slot: u32) {
        let place = ProducerPlace { hash, slot };
        if let Ok(entry) = self.producers.find_entry(place.spread(), |place| place.slot == slot) {
            entry.remove();
        }
    }
}

/// A marker that was applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppliedMarker {
    /// Whose transaction it ended.
    pub(crate) producer_id: i64,
    /// How.
    pub(crate) commit: bool,
}

/// What [`Partitions::apply`] found out about an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applied {
    /// Whether this is the first change of the partition at this position.
    pub(crate) first_in_step: bool,
    /// The marker, if the entry is one.
    pub(crate) marker: Option<AppliedMarker>,
}

/// All partitions of the shard and their producers.
pub(crate) struct Partitions {
    index: HashMap<TopicIdPartition, u32, FixedState>,
    states: Paged<PartitionState>,
    producers: Producers,
    /// By slot of the partition.
    derived: Vec<Derived>,
    hasher: FixedState,
}

impl Partitions {
    /// No partitions.
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let hasher = FixedState::with_seed(config.hash_seed);
        Self {
            index: HashMap::with_hasher(hasher.clone()),
            states: Paged::new(),
            producers: Producers::default(),
            derived: Vec::new(),
            hasher,
        }
    }

    /// The control log, which is there before anything else.
    pub(crate) fn create_control(&mut self, position: Position) {
        self.create(CONTROL_PARTITION, Role::Control, 0, position);
    }

    /// A new, empty partition. It must not exist.
    pub(crate) fn create(
        &mut self,
        partition: TopicIdPartition,
        role: Role,
        base_leader_epoch: i32,
        position: Position,
    ) {
        let slot = self.states.insert(PartitionState {
            partition,
            role,
            base_leader_epoch,
            log_start_offset: 0,
            log_end_offset: 0,
            leader_epochs: Arc::default(),
            aborted: Arc::default(),
            cleaned: CleanedState::NONE,
            last_position: position,
        });
        self.register(slot, partition);
    }

    /// Makes the derived state of a partition that sits in `slot`.
    fn register(&mut self, slot: u32, partition: TopicIdPartition) {
        while self.derived.len() <= slot as usize {
            self.derived.push(Derived::default());
        }
        let previous = self.index.insert(partition, slot);
        assert!(previous.is_none(), "a partition is created once");
    }

    /// Forgets a partition and its producers.
    pub(crate) fn remove(&mut self, partition: TopicIdPartition) {
        let slot = self.index.remove(&partition).expect("only partitions of existing topics are removed");
        self.states.remove(slot);
        let derived = std::mem::take(&mut self.derived[slot as usize]);
        // In order of the slots: the order in a hash table must not show.
        let mut slots: Vec<u32> = derived.producers.into_iter().map(|place| place.slot).collect();
        slots.sort_unstable();
        for slot in slots {
            self.producers.remove(slot);
        }
    }

    /// Where a partition sits; valid until it is removed.
    #[inline]
    pub(crate) fn slot(&self, partition: TopicIdPartition) -> Option<u32> {
        self.index.get(&partition).copied()
    }

    /// The partition in a slot that [`Partitions::slot`] gave.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &PartitionState {
        self.states.get(slot).expect("slots are of partitions that exist")
    }

    fn get_mut(&mut self, slot: u32) -> &mut PartitionState {
        self.states.get_mut(slot).expect("slots are of partitions that exist")
    }

    /// All partitions, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &PartitionState)> {
        self.states.iter()
    }

    /// Number of partitions, the control log included.
    pub(crate) fn partition_count(&self) -> usize {
        self.states.len()
    }

    /// Number of producers of all partitions.
    pub(crate) fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// Number of producers of all partitions that have written lately, or have a transaction open.
    pub(crate) fn open_producer_count(&self) -> usize {
        self.producers.open()
    }

    /// Packs producers in a range of slots that have not written since `before`; memory is all that changes.
    pub(crate) fn pack_idle_producers(&mut self, from: u32, to: u32, before: ShardTime) {
        self.producers.pack_idle(from, to, before);
    }

    fn hash(&self, producer_id: i64) -> u32 {
        let hash = self.hasher.hash_one(producer_id);
        (hash ^ (hash >> 32)) as u32
    }

    /// The producer's entry in a partition.
    #[inline]
    pub(crate) fn producer(&self, slot: u32, producer_id: i64) -> Option<Cow<'_, ProducerState>> {
        let hash = self.hash(producer_id);
        let producer = self.derived[slot as usize].find(&self.producers, producer_id, hash)?;
        Some(self.producers.get(producer).expect("the index names live slots"))
    }

    /// Whether the partition has an entry for the producer.
    pub(crate) fn knows_producer(&self, slot: u32, producer_id: i64) -> bool {
        let hash = self.hash(producer_id);
        self.derived[slot as usize].find(&self.producers, producer_id, hash).is_some()
    }

    /// Producers of a partition by id.
    pub(crate) fn producers_of(&self, slot: u32) -> Vec<Cow<'_, ProducerState>> {
        let places = self.derived[slot as usize].producers.iter();
        let mut producers: Vec<_> =
            places.map(|place| self.producers.get(place.slot).expect("the index names live slots")).collect();
        producers.sort_unstable_by_key(|producer| producer.producer_id());
        producers
    }

    /// No open transaction begins below it.
    pub(crate) fn last_stable_offset(&self, slot: u32) -> i64 {
        let state = self.get(slot);
        let first_open = self.derived[slot as usize].open.keys().next().copied();
        first_open.unwrap_or(state.log_end_offset).max(state.log_start_offset)
    }

    /// What a reader may see, once everything applied so far is durable.
    pub(crate) fn bounds(&self, slot: u32, shard_epoch: i32) -> Bounds {
        let state = self.get(slot);
        Bounds {
            log_start_offset: state.log_start_offset,
            high_watermark: state.log_end_offset,
            last_stable_offset: self.last_stable_offset(slot),
            cleaned: state.cleaned,
            leader_epoch: state.leader_epoch(shard_epoch),
            aborted: state.aborted.clone(),
            leader_epochs: state.leader_epochs.clone(),
        }
    }

    /// Notes a change of the partition that is no entry of its own. True the first time at this position.
    pub(crate) fn touch(&mut self, slot: u32, position: Position) -> bool {
        let state = self.get_mut(slot);
        let first = state.last_position != position;
        state.last_position = position;
        first
    }

    /// What lies in front of `offset` is missing: the log goes on there. Where it has nothing yet it begins there.
    pub(crate) fn go_on_at(&mut self, slot: u32, offset: i64) {
        let state = self.get_mut(slot);
        assert!(offset >= state.log_end_offset, "a log does not go back");
        if state.log_end_offset == state.log_start_offset {
            state.log_start_offset = offset;
        }
        state.log_end_offset = offset;
    }

    /// Records below `offset` are deleted. Never moves back, never passes the log's end.
    pub(crate) fn set_log_start_offset(&mut self, slot: u32, offset: i64) {
        let state = self.get_mut(slot);
        let offset = offset.min(state.log_end_offset);
        if offset <= state.log_start_offset {
            return;
        }
        state.log_start_offset = offset;
        if state.aborted.ends_below(offset) {
            Arc::make_mut(&mut state.aborted).drop_below(offset);
        }
        let kept = state.leader_epochs.partition_point(|(_, start)| *start <= offset).saturating_sub(1);
        if kept > 0 {
            Arc::make_mut(&mut state.leader_epochs).drain(..kept);
        }
    }

    /// A pass of the cleaner has ended. What it says never goes back, and never passes the log's end.
    pub(crate) fn set_cleaned(&mut self, slot: u32, cleaned: &Cleaned) {
        let state = self.get_mut(slot);
        let (before, end) = (state.cleaned, state.log_end_offset);
        state.cleaned = CleanedState {
            cleaned_to: before.cleaned_to.max(cleaned.state.cleaned_to.min(end)),
            tombstone_horizon: before.tombstone_horizon.max(cleaned.state.tombstone_horizon.min(end)),
            delete_horizon_ms: cleaned.state.delete_horizon_ms,
        };
        if !cleaned.spent.is_empty() {
            Arc::make_mut(&mut state.aborted).remove(&cleaned.spent);
        }
    }

    /// Applies an entry that begins where the partition ends: moves the end, notes the leader epoch, and what
    /// the batch says about its producer.
    pub(crate) fn apply(
        &mut self,
        slot: u32,
        entry: &Entry,
        position: Position,
        time: ShardTime,
        leader_epochs_max: usize,
    ) -> Result<Applied, ReplayError> {
        let header = &entry.header;
        let state = self.states.get_mut(slot).expect("slots are of partitions that exist");
        debug_assert_eq!(state.log_end_offset, header.base_offset, "offsets have no gap");
        let first_in_step = state.last_position != position;
        state.last_position = position;
        state.log_end_offset = header.last_offset() + 1;
        if state.leader_epochs.last().is_none_or(|(epoch, _)| *epoch < header.partition_leader_epoch) {
            let epochs = Arc::make_mut(&mut state.leader_epochs);
            epochs.push((header.partition_leader_epoch, header.base_offset));
            if epochs.len() > leader_epochs_max {
                epochs.remove(0);
            }
        }
        let mut applied = Applied { first_in_step, marker: None };
        if header.has_producer_id() {
            if header.is_control() {
                applied.marker = self.apply_marker(slot, entry, time)?;
            } else {
                self.apply_data(slot, entry, time);
            }
        }
        Ok(applied)
    }

    /// Changes the producer's entry, which is made if it is not there.
    fn change_producer<R>(
        &mut self,
        slot: u32,
        header: &BatchHeader,
        change: impl FnOnce(&mut ProducerState, &mut BTreeMap<i64, i64>) -> R,
    ) -> R {
        let hash = self.hash(header.producer_id);
        let derived = &mut self.derived[slot as usize];
        if let Some(producer) = derived.find(&self.producers, header.producer_id, hash) {
            let producer = self.producers.get_mut(producer).expect("the index names live slots");
            return change(producer, &mut derived.open);
        }
        let mut producer = ProducerState::new(slot, header.producer_id, header.producer_epoch);
        let changed = change(&mut producer, &mut derived.open);
        let place = self.producers.insert(producer);
        derived.insert(hash, place);
        changed
    }

    fn apply_data(&mut self, slot: u32, entry: &Entry, time: ShardTime) {
        let header = &entry.header;
        self.change_producer(slot, header, |producer, open| {
            producer.append(header, time);
            if header.is_transactional() && producer.begin_transaction(header.base_offset) {
                open.insert(header.base_offset, header.producer_id);
            }
        });
    }

    fn apply_marker(
        &mut self,
        slot: u32,
        entry: &Entry,
        time: ShardTime,
    ) -> Result<Option<AppliedMarker>, ReplayError> {
        let header = &entry.header;
        let marker =
            ottla_protocol::batch::parse_marker(header, &entry.tail).map_err(|_| ReplayError::Record {
                partition: entry.partition,
                offset: header.base_offset,
                reason: "a control record cannot be read",
            })?;
        let Some(marker) = marker else { return Ok(None) };
        let ended = self.change_producer(slot, header, |producer, open| {
            let first_offset = producer.end_transaction(header, marker.coordinator_epoch, time)?;
            open.remove(&first_offset);
            Some((first_offset, open.keys().next().copied().unwrap_or(header.base_offset + 1)))
        });
        if let Some((first_offset, last_stable_offset)) = ended
            && !marker.commit
        {
            let state = self.states.get_mut(slot).expect("slots are of partitions that exist");
            Arc::make_mut(&mut state.aborted).push(AbortedTransaction {
                producer_id: header.producer_id,
                first_offset,
                last_offset: header.base_offset,
                last_stable_offset,
            });
        }
        Ok(Some(AppliedMarker { producer_id: header.producer_id, commit: marker.commit }))
    }

    /// Forgets producers of a partition, as a control record says. Ids without an entry are passed over.
    pub(crate) fn forget_producers(&mut self, slot: u32, producer_ids: &[i64]) {
        for producer_id in producer_ids {
            let hash = self.hash(*producer_id);
            let derived = &mut self.derived[slot as usize];
            let Some(producer) = derived.find(&self.producers, *producer_id, hash) else { continue };
            derived.remove(hash, producer);
            let state = self.producers.remove(producer).expect("the index names live slots");
            if let Some(first_offset) = state.transaction_first_offset() {
                derived.open.remove(&first_offset);
            }
        }
        let table = &mut self.derived[slot as usize].producers;
        if table.capacity() > TABLE_LEAST && table.len() < table.capacity() / 4 {
            table.shrink_to(table.len() * 2, |place| place.spread());
        }
    }

    /// Whether another producer would fit below the ceiling.
    pub(crate) fn has_room_for_producer(&self, producers_max: usize) -> bool {
        self.producers.len() < producers_max
    }
}
