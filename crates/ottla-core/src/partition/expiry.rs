//! Forgetting producers that have not written for `producer.id.expiration.ms` (eos-semantics 2.3).
//!
//! Place in the walk: part of a tick. What is forgotten is written to the control log, so that a replay forgets
//! the same producers at the same place, whatever its clock says.
//!
//! The age is taken from the broker's own append times, not from the records' timestamps: a producer of old
//! data is not idle. A producer with an open transaction never expires.

use ottla_protocol::types::TopicIdPartition;

use super::Partitions;
use crate::cluster::records;
use crate::decision::ShardTime;
use crate::shard::Step;

/// Producers that one record names at most.
const PRODUCERS_PER_RECORD: usize = 10_000;
/// Producers that one tick forgets at most; the rest follows at once with the next.
const PRODUCERS_PER_TICK: usize = 50_000;

/// Looks for expired producers when it is time.
pub(crate) fn tick(step: &mut Step<'_>) {
    if step.state.volatile.producer_check.is_none_or(|check| check > step.now) {
        return;
    }
    let limit_ms = step.state.config.producer_id_expiration_ms;
    let now = step.now;
    step.state.volatile.verifications.expire(now, limit_ms);
    let expired = step.state.partitions.expired_producers(now, limit_ms);
    let more = expired.len() == PRODUCERS_PER_TICK;
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
    step.state.schedule_producer_check(now);
    if more {
        step.state.volatile.producer_check = Some(now);
    }
}

impl Partitions {
    /// Producers without an open transaction whose last append is `limit_ms` ago or longer, ordered by
    /// partition and id; at most `PRODUCERS_PER_TICK`.
    fn expired_producers(&self, now: ShardTime, limit_ms: i64) -> Vec<(TopicIdPartition, i64)> {
        let mut expired: Vec<_> = self
            .producers
            .iter()
            .filter(|(_, producer)| {
                producer.transaction_first_offset().is_none()
                    && now.0.saturating_sub(producer.last_append_time) >= limit_ms
            })
            .map(|(_, producer)| (self.get(producer.partition_slot).partition(), producer.producer_id))
            .take(PRODUCERS_PER_TICK)
            .collect();
        expired.sort_unstable();
        expired
    }
}
