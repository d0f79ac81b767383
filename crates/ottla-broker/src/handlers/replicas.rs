//! ElectLeaders (key 43, versions 0-2; KIP-460), AlterPartitionReassignments (key 45, versions 0 and 1) and
//! ListPartitionReassignments (key 46, version 0; KIP-455): replicas, of which every partition has one.
//!
//! The leader is always the preferred one, so no election is needed (84). The replicas that a partition has may be
//! asked for (0), any others not (39); nothing is ever being moved, so there is nothing to cancel (85) or to list.
//! Unknown partitions: 3.

use ottla_core::cluster::{Image, check_replicas};
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::alter_partition_reassignments_request::ReassignablePartition;
use ottla_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use ottla_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use ottla_protocol::types::Text;

use crate::dispatch::{Incoming, Outcome, respond};
use crate::shared::Shared;

/// Of the preferred replica (0) or any that lives (1).
const ELECTION_TYPES: std::ops::RangeInclusive<i8> = 0..=1;

fn exists(image: &Image, topic: &str, partition: i32) -> bool {
    image.topic_by_name(topic).is_some_and(|topic| topic.partition(partition).is_some())
}

/// Answers ElectLeaders. Asked about all partitions, those that have the right leader are left out, as Kafka does.
pub fn elect_leaders(
    shared: &Shared,
    incoming: Incoming,
    reader: &mut Reader,
) -> Result<Outcome, DecodeError> {
    let request = m::ElectLeadersRequest::decode(reader, incoming.version)?;
    let asked = request.topic_partitions.iter().flatten().map(|topic| topic.partitions.len());
    if let Some(refused) = super::too_many_partitions(asked) {
        return Ok(refused);
    }
    let is_known = ELECTION_TYPES.contains(&request.election_type);
    let image = shared.view.image();
    let result = |topic: &str, partition_id: i32| {
        let (error, message) = match (is_known, exists(&image, topic, partition_id)) {
            (false, _) => (ErrorCode::InvalidRequest, "an election is preferred (0) or unclean (1)"),
            (true, false) => (ErrorCode::UnknownTopicOrPartition, "there is no such partition"),
            (true, true) => (ErrorCode::ElectionNotNeeded, "the only replica leads"),
        };
        PartitionResult {
            partition_id,
            error_code: error.code(),
            error_message: Some(Text::from_static(message)),
            ..Default::default()
        }
    };
    let replica_election_results = match request.topic_partitions {
        Some(topics) => {
            let topics = topics.into_iter().map(|topic| ReplicaElectionResult {
                partition_result: topic.partitions.iter().map(|index| result(&topic.topic, *index)).collect(),
                topic: topic.topic,
                ..Default::default()
            });
            topics.collect()
        }
        None => Vec::new(),
    };
    let error = if is_known { ErrorCode::None } else { ErrorCode::InvalidRequest };
    let response =
        m::ElectLeadersResponse { error_code: error.code(), replica_election_results, ..Default::default() };
    Ok(respond::<m::ElectLeadersRequest>(&incoming, &response))
}

/// Answers AlterPartitionReassignments.
pub fn alter_reassignments(
    shared: &Shared,
    incoming: Incoming,
    reader: &mut Reader,
) -> Result<Outcome, DecodeError> {
    let request = m::AlterPartitionReassignmentsRequest::decode(reader, incoming.version)?;
    let asked = request.topics.iter().map(|topic| topic.partitions.len());
    if let Some(refused) = super::too_many_partitions(asked) {
        return Ok(refused);
    }
    let image = shared.view.image();
    let node_id = shared.config.core.node_id;
    let responses = request.topics.into_iter().map(|topic| {
        let result = |wanted: &ReassignablePartition| {
            let (error, message) = reassign(&image, node_id, &topic.name, wanted);
            ReassignablePartitionResponse {
                partition_index: wanted.partition_index,
                error_code: error.code(),
                error_message: message.map(Text::from),
                ..Default::default()
            }
        };
        let partitions = topic.partitions.iter().map(result).collect();
        ReassignableTopicResponse { name: topic.name, partitions, ..Default::default() }
    });
    let response = m::AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        error_message: None,
        responses: responses.collect(),
        ..Default::default()
    };
    Ok(respond::<m::AlterPartitionReassignmentsRequest>(&incoming, &response))
}

fn reassign(
    image: &Image,
    node_id: i32,
    topic: &str,
    wanted: &ReassignablePartition,
) -> (ErrorCode, Option<String>) {
    if !exists(image, topic, wanted.partition_index) {
        return (ErrorCode::UnknownTopicOrPartition, Some("there is no such partition".to_owned()));
    }
    match &wanted.replicas {
        None => (ErrorCode::NoReassignmentInProgress, None),
        Some(replicas) => match check_replicas(node_id, replicas) {
            Ok(()) => (ErrorCode::None, None),
            Err(reason) => (ErrorCode::InvalidReplicaAssignment, Some(reason)),
        },
    }
}

/// Answers ListPartitionReassignments.
pub fn list_reassignments(incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    m::ListPartitionReassignmentsRequest::decode(reader, incoming.version)?;
    let response = m::ListPartitionReassignmentsResponse { error_message: None, ..Default::default() };
    Ok(respond::<m::ListPartitionReassignmentsRequest>(&incoming, &response))
}
