//! Sequences whose verification was refused (rule 4b of eos-semantics 2.1).
//!
//! A producer of protocol v1 that sends ahead of its AddPartitionsToTxn gets its first batch refused; the next
//! one, verified in the meantime, must not overtake it. So the lowest refused sequence is remembered until the
//! producer has appended in a transaction, a marker ends it, or time passes.
//!
//! Volatile: nothing durable rests on it except to refuse. A duplicate never gets here, it is answered before.

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use ottla_protocol::types::TopicIdPartition;

use crate::config::CoreConfig;
use crate::decision::ShardTime;

/// What was refused.
#[derive(Clone, Copy, Debug)]
struct Refused {
    producer_epoch: i16,
    lowest_sequence: i32,
    since: ShardTime,
}

/// Refused verifications by partition and producer id.
pub(crate) struct Verifications {
    refused: HashMap<(TopicIdPartition, i64), Refused, FixedState>,
    max: usize,
}

impl Verifications {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        Self {
            refused: HashMap::with_hasher(FixedState::with_seed(config.hash_seed)),
            max: config.limits.verifications_max,
        }
    }

    /// Notes a refusal. A newer epoch takes the place of an older one. Beyond the ceiling nothing is noted.
    pub(crate) fn refuse(
        &mut self,
        partition: TopicIdPartition,
        producer_id: i64,
        producer_epoch: i16,
        first_sequence: i32,
        now: ShardTime,
    ) {
        let new = Refused { producer_epoch, lowest_sequence: first_sequence, since: now };
        if let Some(refused) = self.refused.get_mut(&(partition, producer_id)) {
            if producer_epoch > refused.producer_epoch {
                *refused = new;
            } else if producer_epoch == refused.producer_epoch {
                refused.lowest_sequence = refused.lowest_sequence.min(first_sequence);
            }
        } else if self.refused.len() < self.max {
            self.refused.insert((partition, producer_id), new);
        }
    }

    /// The lowest sequence that was refused for this producer and epoch.
    pub(crate) fn lowest(
        &self,
        partition: TopicIdPartition,
        producer_id: i64,
        producer_epoch: i16,
    ) -> Option<i32> {
        if self.refused.is_empty() {
            return None;
        }
        let refused = self.refused.get(&(partition, producer_id))?;
        (refused.producer_epoch == producer_epoch).then_some(refused.lowest_sequence)
    }

    /// The producer has appended in its transaction, or a marker has ended it.
    pub(crate) fn remove(&mut self, partition: TopicIdPartition, producer_id: i64) {
        if !self.refused.is_empty() {
            self.refused.remove(&(partition, producer_id));
        }
    }

    /// Forgets refusals that are older than `age_ms`.
    pub(crate) fn expire(&mut self, now: ShardTime, age_ms: i64) {
        self.refused.retain(|_, refused| now.0.saturating_sub(refused.since.0) < age_ms);
    }

    /// Whether nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.refused.is_empty()
    }
}
