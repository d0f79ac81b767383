//! DescribeProducers, version 0 (KIP-664): the producers of a partition, for people who look for the transaction
//! that holds readers back.
//!
//! A partition is answered once per request, so that the answer is never larger than the state.
//!
//! Errors: 17 a name that no topic can have, 3 no such topic or partition, 42 named before.

use std::collections::BTreeSet;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::describe_producers_response as response;
use ottla_protocol::types::TopicIdPartition;

use super::ProducerState;
use crate::cluster;
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::Step;

/// Answers DescribeProducers.
pub(crate) fn describe_producers(
    step: &mut Step<'_>,
    context: &Context,
    request: m::DescribeProducersRequest,
) {
    let mut rests_on = Position::default();
    let mut seen = BTreeSet::new();
    let topics = request
        .topics
        .into_iter()
        .map(|topic| {
            let name_is_valid = cluster::validate_name(&topic.name).is_ok();
            let partitions = topic
                .partition_indexes
                .iter()
                .map(|partition| {
                    if !name_is_valid {
                        return refusal(*partition, ErrorCode::InvalidTopicException);
                    }
                    if !seen.insert((topic.name.clone(), *partition)) {
                        return refusal(*partition, ErrorCode::InvalidRequest);
                    }
                    describe(step, &topic.name, *partition, &mut rests_on)
                })
                .collect();
            response::TopicResponse { name: topic.name, partitions, ..Default::default() }
        })
        .collect();
    let reply = m::DescribeProducersResponse { topics, ..Default::default() };
    step.answer(context.token, Reply::DescribeProducers(reply), rests_on);
}

fn describe(
    step: &Step<'_>,
    name: &str,
    partition: i32,
    rests_on: &mut Position,
) -> response::PartitionResponse {
    let state = &*step.state;
    let slot = state
        .topics
        .by_name(name)
        .and_then(|topic| state.partitions.slot(TopicIdPartition { topic_id: topic.id, partition }));
    let Some(slot) = slot else {
        *rests_on = (*rests_on).max(state.topics.rests_on());
        return refusal(partition, ErrorCode::UnknownTopicOrPartition);
    };
    *rests_on = (*rests_on).max(state.partitions.get(slot).last_position());
    response::PartitionResponse {
        partition_index: partition,
        active_producers: state.partitions.producers_of(slot).iter().map(|state| producer(state)).collect(),
        ..Default::default()
    }
}

fn producer(state: &ProducerState) -> response::ProducerState {
    response::ProducerState {
        producer_id: state.producer_id,
        producer_epoch: i32::from(state.producer_epoch),
        last_sequence: state.last_sequence(),
        last_timestamp: state.last_timestamp,
        coordinator_epoch: state.coordinator_epoch,
        current_txn_start_offset: state.transaction_first_offset,
        ..Default::default()
    }
}

fn refusal(partition: i32, code: ErrorCode) -> response::PartitionResponse {
    response::PartitionResponse {
        partition_index: partition,
        error_code: code.code(),
        error_message: Some(code.name().into()),
        ..Default::default()
    }
}
