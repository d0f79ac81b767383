//! WriteTxnMarkers: markers that an operator writes by hand to free a partition from a hanging transaction
//! (KIP-664). The shard's own markers never go through here.
//!
//! Place in the walk: a handler. Every marker is answered for each of its partitions; one that is refused does
//! not keep the others back. Offsets in a transaction count or vanish with the marker in their partition.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use ottla_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use ottla_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use ottla_protocol::types::Text;

use super::add_partitions;
use crate::command::Context;
use crate::decision::Reply;
use crate::shard::{Marker, Step};

/// Handles the request.
pub(crate) fn write_txn_markers(step: &mut Step<'_>, context: &Context, request: WriteTxnMarkersRequest) {
    let mut room = step.state.config.limits.transaction_partitions_max;
    let response = WriteTxnMarkersResponse {
        markers: request.markers.iter().map(|marker| write_everywhere(step, marker, &mut room)).collect(),
        ..WriteTxnMarkersResponse::default()
    };
    let rests_on = step.position();
    step.answer(context.token, Reply::WriteTxnMarkers(response), rests_on);
}

/// `room` is the number of markers that the request may still write.
fn write_everywhere(
    step: &mut Step<'_>,
    request: &WritableTxnMarker,
    room: &mut usize,
) -> WritableTxnMarkerResult {
    let marker = Marker {
        producer_id: request.producer_id,
        producer_epoch: request.producer_epoch,
        commit: request.transaction_result,
        coordinator_epoch: request.coordinator_epoch,
        transaction_version: request.transaction_version,
    };
    let topics = request
        .topics
        .iter()
        .map(|topic| {
            let partitions = topic.partition_indexes.iter().map(|&partition_index| {
                let code = write(step, &topic.name, partition_index, &marker, room);
                WritableTxnMarkerPartitionResult {
                    partition_index,
                    error_code: code.map_or_else(ErrorCode::code, |()| ErrorCode::None.code()),
                    ..WritableTxnMarkerPartitionResult::default()
                }
            });
            WritableTxnMarkerTopicResult {
                name: topic.name.clone(),
                partitions: partitions.collect(),
                ..WritableTxnMarkerTopicResult::default()
            }
        })
        .collect();
    WritableTxnMarkerResult { producer_id: request.producer_id, topics, ..WritableTxnMarkerResult::default() }
}

fn write(
    step: &mut Step<'_>,
    topic: &Text,
    partition: i32,
    marker: &Marker,
    room: &mut usize,
) -> Result<(), ErrorCode> {
    let partition = super::resolve(step.state, topic, partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    step.check_marker(partition, marker)?;
    // Behind the check, so that a stale epoch is told as such whatever its value.
    if marker.producer_id < 0 || marker.producer_epoch < 0 || marker.coordinator_epoch < 0 {
        return Err(ErrorCode::InvalidRequest);
    }
    // The partition will remember the producer.
    let limits = &step.state.config.limits;
    if !step.state.partitions.has_room_for_producer(limits.producers())
        && !add_partitions::knows_producer(step.state, partition, marker.producer_id)
    {
        return Err(ErrorCode::PolicyViolation);
    }
    *room = room.checked_sub(1).ok_or(ErrorCode::PolicyViolation)?;
    step.append_marker(partition, marker);
    Ok(())
}
