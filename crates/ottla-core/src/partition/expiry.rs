//! Forgetting producers that have not written for `producer.id.expiration.ms` (eos-semantics 2.3), and packing those
//! that rest.
//!
//! Place in the walk: part of a tick. What is forgotten is written to the control log, so that a replay forgets
//! the same producers at the same place, whatever its clock says.
//!
//! The age is taken from the broker's own append times, not from the records' timestamps: a producer of old
//! data is not idle. A producer with an open transaction never expires. Packing changes nothing but memory.

use ottla_protocol::types::TopicIdPartition;

use super::Partitions;
use crate::cluster::records;
use crate::decision::ShardTime;
use crate::shard::{ShardState, Step};

/// Producers that one record names at most.
const PRODUCERS_PER_RECORD: usize = 10_000;
/// Slots that one tick looks at; what is left follows with the next tick, which is due at once. A multiple of a
/// page's slots.
const SLOTS_PER_TICK: u32 = 1 << 16;

/// A producer that has not written for so long is packed, ms: longer than a client waits before it sends again.
const PACKED_AFTER_MS: i64 = 60_000;
/// Slots that one tick looks at for producers that rest: packing one costs more than looking at it.
const PACKED_SLOTS_PER_TICK: u32 = 1 << 13;
/// How often producers that rest are looked for, ms.
const PACK_INTERVAL_MS: i64 = 60_000;

/// Packs producers that rest, when it is time: a slice of them, so that no tick is long.
fn pack(step: &mut Step<'_>) {
    let now = step.now;
    if step.state.volatile.pack_check.is_none_or(|check| check > now) {
        return;
    }
    let from = step.state.volatile.pack_cursor;
    let next = from.saturating_add(PACKED_SLOTS_PER_TICK);
    let before = ShardTime(now.0.saturating_sub(PACKED_AFTER_MS));
    step.state.partitions.pack_idle_producers(from, next, before);
    if next < step.state.partitions.producer_slots() {
        step.state.volatile.pack_cursor = next;
    } else {
        step.state.volatile.pack_cursor = 0;
        step.state.schedule_packing(now);
    }
}

impl ShardState {
    /// Looks for producers that rest one interval from now, if any of them could.
    pub(crate) fn schedule_packing(&mut self, now: ShardTime) {
        let wanted = self.partitions.open_producer_count() > 0;
        self.volatile.pack_check = wanted.then(|| ShardTime(now.0.saturating_add(PACK_INTERVAL_MS)));
    }
}

/// Looks for expired producers when it is time: a slice of them, so that no tick is long.
pub(crate) fn tick(step: &mut Step<'_>) {
    pack(step);
    if step.state.volatile.producer_check.is_none_or(|check| check > step.now) {
        return;
    }
    let limit_ms = step.state.config.producer_id_expiration_ms;
    let now = step.now;
    let from = step.state.volatile.producer_cursor;
    if from == 0 {
        step.state.volatile.verifications.expire(now, limit_ms);
    }
    let expired = step.state.partitions.expired_producers(from, now, limit_ms);
    let mut new_records = Vec::new();
    for same_partition in expired.chunk_by(|one, other| one.0 == other.0) {
        for chunk in same_partition.chunks(PRODUCERS_PER_RECORD) {
            let producer_ids = chunk.iter().map(|(_, producer_id)| *producer_id).collect();
            new_records.push(records::producer_expiry(chunk[0].0, producer_ids));
        }
    }
    if !new_records.is_empty() {
        step.append_control(&new_records);
    }
    let next = from.saturating_add(SLOTS_PER_TICK);
    if next < step.state.partitions.producer_slots() {
        step.state.volatile.producer_cursor = next;
    } else {
        step.state.volatile.producer_cursor = 0;
        step.state.schedule_producer_check(now);
    }
}

impl Partitions {
    /// Producers in a slice of slots that have no open transaction and whose last append is `limit_ms` ago or
    /// longer, ordered by partition and id.
    fn expired_producers(&self, from: u32, now: ShardTime, limit_ms: i64) -> Vec<(TopicIdPartition, i64)> {
        let mut expired: Vec<_> = self
            .producers
            .iter_from(from)
            .take_while(|(slot, _)| *slot < from.saturating_add(SLOTS_PER_TICK))
            .filter(|(_, producer)| {
                producer.transaction_first_offset().is_none()
                    && now.0.saturating_sub(producer.last_append_time) >= limit_ms
            })
            .map(|(_, producer)| (self.get(producer.partition_slot).partition(), producer.producer_id))
            .collect();
        expired.sort_unstable();
        expired
    }

    /// Slots that producers may sit in.
    fn producer_slots(&self) -> u32 {
        self.producers.slot_bound()
    }
}
