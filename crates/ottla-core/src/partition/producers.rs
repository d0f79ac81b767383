//! The producers of all partitions: those that write as they are, those that rest packed to a few dozen bytes.
//!
//! Place in the walk: `Partitions` looks producers up here by slot, changes them when an entry is applied, and a
//! tick packs those that have not written for a while (`pack_idle`).
//!
//! Invariants: packing loses nothing, shows nowhere but in memory, and never touches a producer with an open
//! transaction. Slots are those of [`Paged`]: a function of the order of insertions and removals alone, whoever is
//! packed. A producer is packed from its first batch on and unpacked when it writes again, so that a client that
//! takes a new id for every batch costs no more than one that rests.

use std::borrow::Cow;
use std::sync::Arc;

use super::producer::{BATCHES_MAX, CachedBatch, ProducerState};
use crate::decision::ShardTime;
use crate::paged::Paged;

/// Bytes of a packed producer that lie in the slot itself; more go to the heap.
const INLINE_BYTES: usize = 46;
/// More than any producer takes when it is packed: ten bytes per number.
const PACKED_BYTES_MAX: usize = 10 * (7 + 4 * BATCHES_MAX);

/// A producer in its slot.
#[derive(Clone)]
enum Slot {
    /// As it is; shared with snapshots until it changes.
    Open(Arc<ProducerState>),
    /// Packed, up to `length`.
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    /// Packed, when it is long.
    Heap(Box<[u8]>),
}

const _: () = assert!(size_of::<Option<Slot>>() == 48, "a slot has no room to lose");

/// All producers of the shard, by slot.
#[derive(Clone, Default)]
pub(super) struct Producers {
    slots: Paged<Slot>,
    /// Producers that are not packed.
    open: usize,
}

/// Writes numbers in groups of seven bits, small ones in one byte.
struct Packer {
    bytes: [u8; PACKED_BYTES_MAX],
    length: usize,
}

impl Packer {
    fn unsigned(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    fn byte(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    fn signed(&mut self, value: i64) {
        self.unsigned(((value << 1) ^ (value >> 63)) as u64);
    }
}

/// Reads what a [`Packer`] wrote.
struct Unpacker<'a>(&'a [u8]);

impl Unpacker<'_> {
    #[inline]
    fn unsigned(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
            shift += 7;
        }
    }

    #[inline]
    fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().expect("it was packed whole");
        self.0 = rest;
        *byte
    }

    #[inline]
    fn signed(&mut self) -> i64 {
        let raw = self.unsigned();
        (raw >> 1) as i64 ^ -((raw & 1) as i64)
    }
}

/// What a batch usually is that stands in front of another one, or, the last one, at the end.
struct Expected {
    sequence: i32,
    offset: i64,
    timestamp: i64,
}

impl Expected {
    fn before(behind: Option<&CachedBatch>, last_offset_delta: i32, last_timestamp: i64) -> Self {
        match behind {
            None => Self { sequence: 0, offset: 0, timestamp: last_timestamp },
            Some(next) => Self {
                sequence: next.first_sequence.wrapping_sub(last_offset_delta).wrapping_sub(1) & i32::MAX,
                offset: next.base_offset.wrapping_sub(last_offset_delta.into()).wrapping_sub(1),
                timestamp: next.max_timestamp,
            },
        }
    }
}

/// Whether a batch has as many records as the one behind it, whose sequence continues its own.
fn is_regular(batch: &CachedBatch, next: &CachedBatch) -> bool {
    batch.last_offset_delta == next.last_offset_delta
        && batch.first_sequence == Expected::before(Some(next), batch.last_offset_delta, 0).sequence
}

/// Bits of the byte that holds the number of batches; the others say which batches are regular.
const COUNT_BITS: u32 = 3;
const _: () = assert!(BATCHES_MAX < 1 << COUNT_BITS && BATCHES_MAX - 1 <= 8 - COUNT_BITS as usize);

/// One bit for each batch but the last.
fn regular_batches(state: &ProducerState) -> u8 {
    let pairs = state.batches().windows(2).enumerate();
    pairs.fold(0, |bits, (at, pair)| bits | (u8::from(is_regular(&pair[0], &pair[1])) << at))
}

fn pack(state: &ProducerState) -> Slot {
    debug_assert!(state.transaction_first_offset().is_none(), "an open transaction is not packed");
    let mut packer = Packer { bytes: [0; PACKED_BYTES_MAX], length: 0 };
    packer.unsigned(state.partition_slot.into());
    packer.signed(state.producer_id);
    packer.signed(state.producer_epoch.into());
    packer.signed(state.coordinator_epoch.into());
    packer.signed(state.last_append_time);
    packer.signed(state.last_timestamp.wrapping_sub(state.last_append_time));
    packer.byte(state.batches_count | (regular_batches(state) << COUNT_BITS));
    // From the last one back, each as it differs from what usually stands in front of the one behind it.
    let mut behind: Option<&CachedBatch> = None;
    for batch in state.batches().iter().rev() {
        let before = Expected::before(behind, batch.last_offset_delta, state.last_timestamp);
        if behind.is_none_or(|next| !is_regular(batch, next)) {
            packer.signed(batch.last_offset_delta.into());
            packer.signed(i64::from(batch.first_sequence) - i64::from(before.sequence));
        }
        packer.signed(batch.base_offset.wrapping_sub(before.offset));
        packer.signed(batch.max_timestamp.wrapping_sub(before.timestamp));
        behind = Some(batch);
    }
    let packed = &packer.bytes[..packer.length];
    match packed.len() {
        length @ ..=INLINE_BYTES => {
            let mut bytes = [0; INLINE_BYTES];
            bytes[..length].copy_from_slice(packed);
            Slot::Inline { length: length as u8, bytes }
        }
        _ => Slot::Heap(packed.into()),
    }
}

fn unpack(packed: &[u8]) -> ProducerState {
    const FITS: &str = "it was packed from a number of this size";
    let int = |value: i64| i32::try_from(value).expect(FITS);
    let mut packed = Unpacker(packed);
    let partition_slot = u32::try_from(packed.unsigned()).expect(FITS);
    let (producer_id, epoch) = (packed.signed(), packed.signed());
    let mut state = ProducerState::new(partition_slot, producer_id, i16::try_from(epoch).expect(FITS));
    state.coordinator_epoch = int(packed.signed());
    state.last_append_time = packed.signed();
    state.last_timestamp = state.last_append_time.wrapping_add(packed.signed());
    let counts = packed.byte();
    state.batches_count = counts & ((1 << COUNT_BITS) - 1);
    let regular = counts >> COUNT_BITS;
    let mut behind: Option<CachedBatch> = None;
    for at in (0..usize::from(state.batches_count)).rev() {
        let regular_delta = behind.filter(|_| regular & (1 << at) != 0).map(|next| next.last_offset_delta);
        let last_offset_delta = regular_delta.unwrap_or_else(|| int(packed.signed()));
        let before = Expected::before(behind.as_ref(), last_offset_delta, state.last_timestamp);
        let sequence = if regular_delta.is_some() { 0 } else { packed.signed() };
        let batch = CachedBatch {
            first_sequence: int(i64::from(before.sequence) + sequence),
            last_offset_delta,
            base_offset: before.offset.wrapping_add(packed.signed()),
            max_timestamp: before.timestamp.wrapping_add(packed.signed()),
        };
        state.batches[at] = batch;
        behind = Some(batch);
    }
    state
}

impl Slot {
    fn new(state: ProducerState) -> Self {
        match state.transaction_first_offset() {
            Some(_) => Self::Open(Arc::new(state)),
            None => pack(&state),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    #[inline]
    fn state(&self) -> Cow<'_, ProducerState> {
        match self {
            Self::Open(state) => Cow::Borrowed(state),
            Self::Inline { length, bytes } => Cow::Owned(unpack(&bytes[..usize::from(*length)])),
            Self::Heap(bytes) => Cow::Owned(unpack(bytes)),
        }
    }

    #[inline]
    fn producer_id(&self) -> i64 {
        let packed = match self {
            Self::Open(state) => return state.producer_id,
            Self::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Self::Heap(bytes) => bytes,
        };
        let mut packed = Unpacker(packed);
        packed.unsigned();
        packed.signed()
    }
}

impl Producers {
    /// Number of producers.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Number of those that are not packed.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// One past the largest slot that may be in use.
    pub(super) fn slot_bound(&self) -> u32 {
        self.slots.slot_bound()
    }

    /// All of them as they are now, to be read.
    pub(super) fn snapshot(&self) -> Self {
        Self { slots: self.slots.snapshot(), open: self.open }
    }

    /// The producer in a slot.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<Cow<'_, ProducerState>> {
        self.slots.get(slot).map(Slot::state)
    }

    /// The id of the producer in a slot.
    #[inline]
    pub(super) fn producer_id(&self, slot: u32) -> Option<i64> {
        self.slots.get(slot).map(Slot::producer_id)
    }

    /// The producer in a slot, to change it: it is packed no more.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut ProducerState> {
        let slot = self.slots.get_mut(slot)?;
        if !slot.is_open() {
            *slot = Slot::Open(Arc::new(slot.state().into_owned()));
            self.open += 1;
        }
        match slot {
            Slot::Open(state) => Some(Arc::make_mut(state)),
            Slot::Inline { .. } | Slot::Heap(_) => unreachable!("it was just opened"),
        }
    }

    /// Takes a producer into the smallest free slot and returns its number.
    pub(super) fn insert(&mut self, state: ProducerState) -> u32 {
        let slot = Slot::new(state);
        self.open += usize::from(slot.is_open());
        self.slots.insert(slot)
    }

    /// Takes a producer into a given slot; false, and nothing done, when it is taken.
    pub(super) fn insert_at(&mut self, slot: u32, state: ProducerState) -> bool {
        let value = Slot::new(state);
        let is_open = value.is_open();
        let inserted = self.slots.insert_at(slot, value);
        self.open += usize::from(inserted && is_open);
        inserted
    }

    /// Takes a producer out.
    pub(super) fn remove(&mut self, slot: u32) -> Option<ProducerState> {
        let slot = self.slots.remove(slot)?;
        self.open -= usize::from(slot.is_open());
        Some(slot.state().into_owned())
    }

    /// All producers with their slots, in slot order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Cow<'_, ProducerState>)> {
        self.iter_from(0)
    }

    /// Those from about this slot on (the start of its page).
    pub(super) fn iter_from(&self, slot: u32) -> impl Iterator<Item = (u32, Cow<'_, ProducerState>)> {
        self.slots.iter_from(slot).map(|(slot, producer)| (slot, producer.state()))
    }

    /// Packs the producers in a range of slots that have no open transaction and have not written since `before`.
    pub(super) fn pack_idle(&mut self, from: u32, to: u32, before: ShardTime) {
        let is_idle = |state: &ProducerState| {
            state.transaction_first_offset().is_none() && state.last_append_time <= before.0
        };
        let slots = self.slots.iter_from(from).skip_while(|(slot, _)| *slot < from);
        let idle: Vec<u32> = slots
            .take_while(|(slot, _)| *slot < to)
            .filter(|(_, slot)| matches!(slot, Slot::Open(state) if is_idle(state)))
            .map(|(slot, _)| slot)
            .collect();
        for slot in idle {
            let slot = self.slots.get_mut(slot).expect("it was just seen");
            *slot = pack(&slot.state());
            self.open -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch() -> impl Strategy<Value = CachedBatch> {
        let sequence = prop_oneof![0..=i32::MAX, Just(0), Just(i32::MAX)];
        let delta = prop_oneof![0..=i32::MAX, 0..10i32];
        (sequence, delta, any::<i64>(), any::<i64>()).prop_map(
            |(first_sequence, last_offset_delta, base_offset, max_timestamp)| CachedBatch {
                first_sequence,
                last_offset_delta,
                base_offset,
                max_timestamp,
            },
        )
    }

    proptest! {
        /// Proves: packing loses nothing of any producer, and the id can be read alone.
        #[test]
        fn packing_loses_nothing(
            (partition_slot, producer_id, epoch, coordinator_epoch) in
                (any::<u32>(), any::<i64>(), any::<i16>(), any::<i32>()),
            (last_timestamp, last_append_time) in (any::<i64>(), any::<i64>()),
            batches in prop::collection::vec(batch(), 0..=BATCHES_MAX),
            continues in prop::collection::vec(any::<bool>(), BATCHES_MAX),
        ) {
            let mut batches = batches;
            for at in 1..batches.len() {
                if continues[at] {
                    let before = batches[at - 1];
                    batches[at].last_offset_delta = before.last_offset_delta;
                    let sequence = i64::from(before.last_sequence()) + 1;
                    batches[at].first_sequence = (sequence & i64::from(i32::MAX)) as i32;
                }
            }
            let mut state = ProducerState::new(partition_slot, producer_id, epoch);
            state.coordinator_epoch = coordinator_epoch;
            state.last_timestamp = last_timestamp;
            state.last_append_time = last_append_time;
            state.batches_count = batches.len() as u8;
            state.batches[..batches.len()].copy_from_slice(&batches);
            let slot = pack(&state);
            prop_assert_eq!(slot.state().into_owned(), state);
            prop_assert_eq!(slot.producer_id(), producer_id);
        }
    }

    /// Proves: a usual producer, five batches in a row of a partition that others write to as well, fits into its
    /// slot; who writes again is unpacked, who has a transaction open stays so, and the count is right.
    #[test]
    fn usual_producers_fit_into_their_slots() {
        const NOW: i64 = 1_790_000_000_000;
        let mut state = ProducerState::new(700, 123_456_789, 0);
        state.coordinator_epoch = 12;
        state.last_append_time = NOW;
        state.last_timestamp = NOW - 900;
        for at in 0..5 {
            let step = at as i32;
            state.batches[at] = CachedBatch {
                first_sequence: 1000 + 10 * step,
                last_offset_delta: 9,
                base_offset: 5_000_000_000 + i64::from(10_000 * step),
                max_timestamp: NOW - 900 - i64::from(1000 * (4 - step)),
            };
        }
        state.batches_count = 5;
        assert!(matches!(pack(&state), Slot::Inline { .. }));
        let mut producers = Producers::default();
        let resting = producers.insert(state.clone());
        let busy = producers.insert(ProducerState { transaction_first_offset: 7, ..state.clone() });
        assert_eq!((producers.len(), producers.open()), (2, 1));
        producers.get_mut(resting).expect("there").last_append_time += 1;
        assert_eq!(producers.open(), 2);
        producers.pack_idle(0, 64, ShardTime(NOW));
        assert_eq!(producers.open(), 2, "one wrote a moment ago, the other has a transaction");
        producers.pack_idle(0, 64, ShardTime(NOW + 1));
        assert_eq!(producers.open(), 1);
        assert_eq!(producers.get(resting).expect("there").last_append_time, NOW + 1);
        assert!(producers.remove(busy).is_some());
        assert_eq!((producers.len(), producers.open()), (1, 0));
    }
}
