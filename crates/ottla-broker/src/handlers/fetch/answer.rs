//! Puts what was read into a response: grouped by topic, and for a session only what changed.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::fetch_response::{
    AbortedTransaction, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use ottla_protocol::types::Text;

use super::Wanted;
use super::read::{Got, Round};
use super::sessions::{Chosen, Said};
use crate::shared::Shared;

/// Builds the response and lets the session note what it says.
pub fn build(shared: &Shared, chosen: Chosen, round: Round, version: i16) -> m::FetchResponse {
    count(shared, &round.got);
    let said: Vec<Said> = round.got.iter().map(said_of).collect();
    let mut response = m::FetchResponse::default();
    let mut leader_moved = false;
    for (place, (got, said)) in round.got.into_iter().zip(&said).enumerate() {
        if !chosen.is_told(place, *said) {
            continue;
        }
        let wanted = chosen.wanted.get(place).expect("what was got was wanted");
        leader_moved |= is_leader_error(got.error);
        let data = partition_data(shared, wanted, got, said.bounds);
        push(&mut response.responses, wanted, data);
    }
    if leader_moved && version >= 16 {
        response.node_endpoints.push(NodeEndpoint {
            node_id: shared.config.core.node_id,
            host: Text::from(shared.advertised.0.as_str()),
            port: i32::from(shared.advertised.1),
            ..Default::default()
        });
    }
    match shared.sessions.finish(chosen, &said, shared.clock.monotonic()) {
        Ok(session_id) => response.session_id = session_id,
        Err(error) => return super::refusal(error),
    }
    response
}

/// Counts what is answered, once for partitions of one topic that stand together.
fn count(shared: &Shared, got: &[Got]) {
    for of_topic in got.chunk_by(|one, other| one.topic_id == other.topic_id) {
        let cells = shared.metrics.topics.of(of_topic.first().map(|got| got.topic_id).unwrap_or_default());
        let bytes: usize = of_topic.iter().flat_map(|got| &got.chunks).map(|chunk| chunk.len()).sum();
        let failed = of_topic.iter().filter(|got| got.error != ErrorCode::None).count();
        cells.read.fetch_requests.add(of_topic.len() as u64);
        if bytes > 0 {
            cells.read.bytes_out.add(bytes as u64);
        }
        if failed > 0 {
            cells.read.failed_fetch_requests.add(failed as u64);
        }
    }
}

/// With an error no bounds are told, as in Kafka.
fn said_of(got: &Got) -> Said {
    let has_error = got.error != ErrorCode::None;
    let bounds = got.bounds.as_ref().filter(|_| !has_error).map(|published| &published.bounds);
    Said {
        bounds: bounds.map_or((-1, -1), |bounds| (bounds.high_watermark, bounds.log_start_offset)),
        has_records: !got.chunks.is_empty(),
        has_error,
    }
}

fn is_leader_error(error: ErrorCode) -> bool {
    matches!(error, ErrorCode::FencedLeaderEpoch | ErrorCode::UnknownLeaderEpoch)
}

fn partition_data(
    shared: &Shared,
    wanted: &Wanted,
    got: Got,
    (high_watermark, log_start_offset): (i64, i64),
) -> PartitionData {
    let bounds = got.bounds.as_ref().map(|published| &published.bounds);
    let told = bounds.filter(|_| got.error == ErrorCode::None);
    let current_leader = match bounds.filter(|_| is_leader_error(got.error)) {
        Some(bounds) => LeaderIdAndEpoch {
            leader_id: shared.config.core.node_id,
            leader_epoch: bounds.leader_epoch,
            ..Default::default()
        },
        None => LeaderIdAndEpoch::default(),
    };
    let aborted =
        |(producer_id, first_offset)| AbortedTransaction { producer_id, first_offset, ..Default::default() };
    PartitionData {
        partition_index: wanted.partition,
        error_code: got.error.code(),
        high_watermark,
        last_stable_offset: told.map_or(-1, |bounds| bounds.last_stable_offset),
        log_start_offset,
        aborted_transactions: got.aborted.map(|all| all.into_iter().map(aborted).collect()),
        preferred_read_replica: -1,
        current_leader,
        records: Some(got.chunks.into()),
        ..Default::default()
    }
}

fn push(responses: &mut Vec<FetchableTopicResponse>, wanted: &Wanted, data: PartitionData) {
    match responses.last_mut() {
        Some(topic) if topic.topic == wanted.topic && topic.topic_id == wanted.topic_id => {
            topic.partitions.push(data)
        }
        _ => responses.push(FetchableTopicResponse {
            topic: wanted.topic.clone(),
            topic_id: wanted.topic_id,
            partitions: vec![data],
            ..Default::default()
        }),
    }
}
