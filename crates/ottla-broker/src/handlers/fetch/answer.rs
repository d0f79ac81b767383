//! Puts what was read into a response: grouped by topic, and for a session only what changed.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::fetch_response::{
    AbortedTransaction, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use ottla_protocol::types::Text;

use super::Wanted;
use super::read::{Got, Round};
use super::sessions::Chosen;
use crate::shared::Shared;

/// Builds the response and lets the session note what it says.
pub fn build(shared: &Shared, chosen: Chosen, round: Round, version: i16) -> m::FetchResponse {
    let mut response = m::FetchResponse { session_id: chosen.session_id, ..Default::default() };
    let mut leader_moved = false;
    let mut notes = Vec::new();
    for (wanted, got) in chosen.wanted.iter().zip(round.got) {
        let (high_watermark, log_start_offset) = match &got.bounds {
            Some(published) => (published.bounds.high_watermark, published.bounds.log_start_offset),
            None => (-1, -1),
        };
        let has_news = !got.chunks.is_empty() || got.error != ErrorCode::None;
        let changed = chosen.notes_change(wanted, high_watermark, log_start_offset);
        if chosen.incremental && !has_news && !changed {
            continue;
        }
        notes.push((wanted.clone(), high_watermark, log_start_offset, !got.chunks.is_empty()));
        leader_moved |= matches!(got.error, ErrorCode::FencedLeaderEpoch | ErrorCode::UnknownLeaderEpoch);
        let data = partition_data(shared, wanted, got, (high_watermark, log_start_offset));
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
    shared.sessions.note(chosen.session_id, &notes);
    response
}

fn partition_data(
    shared: &Shared,
    wanted: &Wanted,
    got: Got,
    (high_watermark, log_start_offset): (i64, i64),
) -> PartitionData {
    let last_stable_offset = got.bounds.as_ref().map_or(-1, |published| published.bounds.last_stable_offset);
    let aborted =
        |(producer_id, first_offset)| AbortedTransaction { producer_id, first_offset, ..Default::default() };
    let mut data = PartitionData {
        partition_index: wanted.partition,
        error_code: got.error.code(),
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted_transactions: got.aborted.map(|all| all.into_iter().map(aborted).collect()),
        preferred_read_replica: -1,
        records: Some(got.chunks.into()),
        ..Default::default()
    };
    if matches!(got.error, ErrorCode::FencedLeaderEpoch | ErrorCode::UnknownLeaderEpoch)
        && let Some(published) = &got.bounds
    {
        data.current_leader = LeaderIdAndEpoch {
            leader_id: shared.config.core.node_id,
            leader_epoch: published.bounds.leader_epoch,
            ..Default::default()
        };
    }
    data
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
