//! What the cleaner is told of a partition, taken from a snapshot so that the owner does not wait for it.

use std::collections::{BTreeMap, BTreeSet};

use ottla_protocol::types::TopicIdPartition;

use super::PartitionsSnapshot;
use crate::clean::{Input, LastBatch};

impl PartitionsSnapshot {
    /// The cleaner's view of these partitions: one walk over the partitions and one over all producers.
    pub(crate) fn clean_inputs(
        &self,
        wanted: &BTreeSet<TopicIdPartition>,
    ) -> BTreeMap<TopicIdPartition, Input> {
        let states = self.states.iter().filter(|(_, state)| wanted.contains(&state.partition));
        let mut inputs: BTreeMap<u32, (TopicIdPartition, Input)> = states
            .map(|(slot, state)| {
                let input = Input {
                    log_start_offset: state.log_start_offset,
                    last_stable_offset: state.log_end_offset,
                    cleaned: state.cleaned,
                    aborted: state.aborted.clone(),
                    last_batches: BTreeMap::new(),
                };
                (slot, (state.partition, input))
            })
            .collect();
        for (_, producer) in self.producers.iter() {
            let Some((_, input)) = inputs.get_mut(&producer.partition_slot) else { continue };
            if let Some(first_offset) = producer.transaction_first_offset() {
                input.last_stable_offset = input.last_stable_offset.min(first_offset);
            }
            let last_data_offset = producer
                .batches()
                .last()
                .map(|batch| batch.base_offset.saturating_add(i64::from(batch.last_offset_delta)));
            let last = LastBatch { last_data_offset, producer_epoch: producer.producer_epoch };
            input.last_batches.insert(producer.producer_id, last);
        }
        for (_, input) in inputs.values_mut() {
            input.last_stable_offset = input.last_stable_offset.max(input.log_start_offset);
        }
        inputs.into_values().collect()
    }
}
