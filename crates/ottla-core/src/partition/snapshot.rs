//! Partitions, producers and aborted transactions in a snapshot.
//!
//! Items carry their slots, so that a restored state goes on exactly as the one it was taken from. What is
//! derived (indexes, open transactions) is built again from the items.

use std::sync::Arc;

use ottla_protocol::types::TopicIdPartition;

use super::producer::{BATCHES_MAX, CachedBatch};
use super::{AbortedTransaction, PartitionState, Partitions, ProducerState, Producers, Role};
use crate::clean::CleanedState;
use crate::decision::Position;
use crate::paged::Paged;
use crate::shard::{Decoder, Encoder, RestoreError, chunked, section};

const VERSION: u8 = 0;
/// Slots above it are not taken over: a damaged snapshot must not make the process reserve gigabytes.
const SLOT_MAX: u32 = 1 << 26;

/// The durable part of [`Partitions`], shared with the owner until it writes.
pub(crate) struct PartitionsSnapshot {
    pub(super) states: Paged<PartitionState>,
    pub(super) producers: Producers,
}

impl PartitionsSnapshot {
    pub(crate) fn partition_count(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// Partitions first, then what belongs to them.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Vec<u8>> {
        let aborted = self
            .states
            .iter()
            .flat_map(|(slot, state)| state.aborted.chunks().iter().map(move |chunk| (slot, chunk)));
        chunked(section::PARTITIONS, VERSION, self.states.iter(), |(slot, state), out| {
            state.encode(slot, out)
        })
        .chain(chunked(section::ABORTED, VERSION, aborted, |(slot, chunk), out| {
            encode_aborted(slot, chunk, out);
        }))
        .chain(chunked(
            section::CLEANED,
            VERSION,
            self.states.iter().filter(|(_, state)| state.cleaned != CleanedState::NONE),
            |(slot, state), out| {
                out.u32(slot);
                out.i64(state.cleaned.cleaned_to);
                out.i64(state.cleaned.tombstone_horizon);
                out.i64(state.cleaned.delete_horizon_ms);
            },
        ))
        .chain(chunked(
            section::PRODUCERS,
            VERSION,
            self.producers.iter(),
            |(slot, producer), out| {
                producer.encode(slot, out);
            },
        ))
    }
}

impl PartitionState {
    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        out.u32(slot);
        out.extend_from_slice(&self.partition.topic_id.0);
        out.i32(self.partition.partition);
        out.u8(self.role as u8);
        out.i32(self.base_leader_epoch);
        out.i64(self.log_start_offset);
        out.i64(self.log_end_offset);
        out.u32(u32::try_from(self.leader_epochs.len()).expect("leader epochs have a ceiling"));
        for (epoch, start_offset) in self.leader_epochs.iter() {
            out.i32(*epoch);
            out.i64(*start_offset);
        }
    }

    fn decode(items: &mut Decoder<'_>, position: Position) -> Result<Self, RestoreError> {
        let partition = TopicIdPartition { topic_id: items.uuid()?, partition: items.i32()? };
        let role = Role::from_number(items.u8()?).ok_or(items.inconsistent("unknown role"))?;
        let base_leader_epoch = items.i32()?;
        let (log_start_offset, log_end_offset) = (items.i64()?, items.i64()?);
        if log_start_offset < 0 || log_start_offset > log_end_offset {
            return Err(items.inconsistent("the log ends before it begins"));
        }
        let mut leader_epochs = Vec::new();
        for _ in 0..items.u32()? {
            leader_epochs.push((items.i32()?, items.i64()?));
        }
        Ok(Self {
            partition,
            role,
            base_leader_epoch,
            log_start_offset,
            log_end_offset,
            leader_epochs: Arc::new(leader_epochs),
            aborted: Arc::default(),
            cleaned: CleanedState::NONE,
            last_position: position,
        })
    }
}

fn encode_aborted(slot: u32, chunk: &[AbortedTransaction], out: &mut Vec<u8>) {
    out.u32(slot);
    out.u32(u32::try_from(chunk.len()).expect("chunks are short"));
    for entry in chunk {
        out.i64(entry.producer_id);
        out.i64(entry.first_offset);
        out.i64(entry.last_offset);
        out.i64(entry.last_stable_offset);
    }
}

impl ProducerState {
    fn encode(&self, slot: u32, out: &mut Vec<u8>) {
        out.u32(slot);
        out.u32(self.partition_slot);
        out.i64(self.producer_id);
        out.i16(self.producer_epoch);
        out.i32(self.coordinator_epoch);
        out.i64(self.last_timestamp);
        out.i64(self.last_append_time);
        out.i64(self.transaction_first_offset);
        out.u8(self.batches_count);
        for batch in self.batches() {
            out.i32(batch.first_sequence);
            out.i32(batch.last_offset_delta);
            out.i64(batch.base_offset);
            out.i64(batch.max_timestamp);
        }
    }

    fn decode(items: &mut Decoder<'_>) -> Result<Self, RestoreError> {
        let mut state = Self::new(items.u32()?, items.i64()?, items.i16()?);
        state.coordinator_epoch = items.i32()?;
        state.last_timestamp = items.i64()?;
        state.last_append_time = items.i64()?;
        state.transaction_first_offset = items.i64()?;
        state.batches_count = items.u8()?;
        if usize::from(state.batches_count) > BATCHES_MAX {
            return Err(items.inconsistent("a producer with more than five batches"));
        }
        for batch in &mut state.batches[..usize::from(state.batches_count)] {
            *batch = CachedBatch {
                first_sequence: items.i32()?,
                last_offset_delta: items.i32()?,
                base_offset: items.i64()?,
                max_timestamp: items.i64()?,
            };
        }
        Ok(state)
    }
}

impl Partitions {
    /// Everything durable, one reference count per 4,096 values.
    pub(crate) fn snapshot(&self) -> PartitionsSnapshot {
        PartitionsSnapshot { states: self.states.snapshot(), producers: self.producers.snapshot() }
    }

    /// Takes a partition over. The control log, which every state has, is replaced.
    pub(crate) fn decode_partition(
        &mut self,
        items: &mut Decoder<'_>,
        position: Position,
    ) -> Result<(), RestoreError> {
        let slot = items.u32()?;
        let state = PartitionState::decode(items, position)?;
        let partition = state.partition;
        if state.is_control() && self.slot(partition) == Some(slot) && self.get(slot).log_end_offset == 0 {
            *self.get_mut(slot) = state;
            return Ok(());
        }
        if slot > SLOT_MAX || self.slot(partition).is_some() || !self.states.insert_at(slot, state) {
            return Err(items.inconsistent("a partition twice, or a slot twice"));
        }
        self.register(slot, partition);
        Ok(())
    }

    /// Takes a chunk of aborted transactions over.
    pub(crate) fn decode_aborted(&mut self, items: &mut Decoder<'_>) -> Result<(), RestoreError> {
        let slot = items.u32()?;
        let mut chunk = Vec::new();
        for _ in 0..items.u32()? {
            chunk.push(AbortedTransaction {
                producer_id: items.i64()?,
                first_offset: items.i64()?,
                last_offset: items.i64()?,
                last_stable_offset: items.i64()?,
            });
        }
        let state =
            self.states.get_mut(slot).ok_or(items.inconsistent("aborted transactions of no partition"))?;
        if !Arc::make_mut(&mut state.aborted).restore_chunk(chunk) {
            return Err(items.inconsistent("aborted transactions out of order"));
        }
        Ok(())
    }

    /// Takes over what a partition knows about its cleaning.
    pub(crate) fn decode_cleaned(&mut self, items: &mut Decoder<'_>) -> Result<(), RestoreError> {
        let slot = items.u32()?;
        let cleaned = CleanedState {
            cleaned_to: items.i64()?,
            tombstone_horizon: items.i64()?,
            delete_horizon_ms: items.i64()?,
        };
        let state = self.states.get_mut(slot).ok_or(items.inconsistent("a cleaned part of no partition"))?;
        if [cleaned.cleaned_to, cleaned.tombstone_horizon]
            .iter()
            .any(|at| !(0..=state.log_end_offset).contains(at))
        {
            return Err(items.inconsistent("a cleaned part behind the log's end"));
        }
        state.cleaned = cleaned;
        Ok(())
    }

    /// Takes a producer over.
    pub(crate) fn decode_producer(&mut self, items: &mut Decoder<'_>) -> Result<(), RestoreError> {
        let slot = items.u32()?;
        let producer = ProducerState::decode(items)?;
        let (partition_slot, producer_id) = (producer.partition_slot, producer.producer_id);
        if self.states.get(partition_slot).is_none() {
            return Err(items.inconsistent("a producer of no partition"));
        }
        let hash = self.hash(producer_id);
        let derived = &mut self.derived[partition_slot as usize];
        if let Some(first_offset) = producer.transaction_first_offset()
            && derived.open.insert(first_offset, producer_id).is_some()
        {
            return Err(items.inconsistent("two transactions begin at one offset"));
        }
        let twice = derived.find(&self.producers, producer_id, hash).is_some();
        if twice || slot > SLOT_MAX || !self.producers.insert_at(slot, producer) {
            return Err(items.inconsistent("a producer twice, or a slot twice"));
        }
        derived.insert(hash, slot);
        Ok(())
    }
}
