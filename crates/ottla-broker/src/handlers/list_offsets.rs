//! ListOffsets (key 2, versions 1-11): offsets by time and by name.
//!
//! Special timestamps: -1 latest (the last stable offset for read_committed), -2 earliest, -3 largest timestamp
//! (KIP-734, version 7), -4 earliest local (KIP-405, version 8), -5 latest tiered (version 9), -6 earliest
//! pending upload (version 11). Nothing is tiered here, so -4 is the earliest and -5 and -6 find nothing.
//! Ottla's own, in every version: -1000 is the tombstone horizon, one past the highest tombstone that compaction has
//! removed while it was the last record of its key, 0 when there was none. Whoever has everything up to that offset,
//! or further, and reads on, misses no deletion. Kafka answers UNSUPPORTED_VERSION, and so tells that it cannot say.
//! A hit at or behind the reader's bound is no hit.

use std::sync::Arc;

use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::list_offsets_request::ListOffsetsPartition;
use ottla_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use ottla_protocol::types::{TOMBSTONE_HORIZON_TIMESTAMP, TopicIdPartition};

use crate::dispatch::{Incoming, Outcome, encode};
use crate::net::connection::Answer;
use crate::shard::view::Published;
use crate::shared::Shared;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

/// Answers the request; look-ups by time may read from the disk.
pub fn handle(shared: &Arc<Shared>, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::ListOffsetsRequest::decode(reader, incoming.version)?;
    let shared = shared.clone();
    Ok(Outcome::Answer(Answer::Later(Box::pin(async move {
        let mut response = m::ListOffsetsResponse::default();
        for topic in request.topics {
            let id = shared.view.image().topic_by_name(&topic.name).map(|topic| topic.id);
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for wanted in topic.partitions {
                let id = id.map(|topic_id| TopicIdPartition { topic_id, partition: wanted.partition_index });
                let read_committed = request.isolation_level == 1;
                let index = wanted.partition_index;
                let found = find(&shared, id, &wanted, read_committed, incoming.version).await;
                partitions.push(found.unwrap_or_else(|error| refused(index, error)));
            }
            response.topics.push(ListOffsetsTopicResponse {
                name: topic.name,
                partitions,
                ..Default::default()
            });
        }
        encode(&response, incoming.api, incoming.version, incoming.correlation_id)
    }))))
}

fn refused(partition_index: i32, error: ErrorCode) -> ListOffsetsPartitionResponse {
    ListOffsetsPartitionResponse {
        partition_index,
        error_code: error.code(),
        timestamp: -1,
        offset: -1,
        leader_epoch: -1,
        ..Default::default()
    }
}

async fn find(
    shared: &Arc<Shared>,
    id: Option<TopicIdPartition>,
    wanted: &ListOffsetsPartition,
    read_committed: bool,
    version: i16,
) -> Result<ListOffsetsPartitionResponse, ErrorCode> {
    let id = id.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let slot = shared.view.slot(id).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let published = slot.newest();
    let bounds = &published.bounds;
    if wanted.current_leader_epoch >= 0 && wanted.current_leader_epoch < bounds.leader_epoch {
        return Err(ErrorCode::FencedLeaderEpoch);
    }
    if wanted.current_leader_epoch > bounds.leader_epoch {
        return Err(ErrorCode::UnknownLeaderEpoch);
    }
    let end = if read_committed { bounds.last_stable_offset } else { bounds.high_watermark };
    let (offset, timestamp) = match wanted.timestamp {
        LATEST => (end, -1),
        EARLIEST => (bounds.log_start_offset, -1),
        EARLIEST_LOCAL if version >= 8 => (bounds.log_start_offset, -1),
        MAX_TIMESTAMP if version >= 7 => by_time(shared, id, None, bounds.log_start_offset, end).await?,
        LATEST_TIERED if version >= 9 => (-1, -1),
        EARLIEST_PENDING_UPLOAD if version >= 11 => (-1, -1),
        TOMBSTONE_HORIZON_TIMESTAMP => (bounds.cleaned.tombstone_horizon, -1),
        timestamp if timestamp < 0 => return Err(ErrorCode::UnsupportedVersion),
        timestamp => by_time(shared, id, Some(timestamp), bounds.log_start_offset, end).await?,
    };
    Ok(ListOffsetsPartitionResponse {
        partition_index: wanted.partition_index,
        timestamp,
        offset,
        // Older answers have no place for it.
        leader_epoch: if version >= 4 { epoch_at(&published, offset) } else { -1 },
        ..Default::default()
    })
}

/// Offset and timestamp of the first record at or after a time, or of the largest timestamp; (-1, -1) for none.
async fn by_time(
    shared: &Arc<Shared>,
    id: TopicIdPartition,
    timestamp: Option<i64>,
    start: i64,
    end: i64,
) -> Result<(i64, i64), ErrorCode> {
    let reader = shared.view.reader();
    let looked_up = ottla_env::spawn::blocking("offset-for-time", move || match timestamp {
        Some(timestamp) => reader.offset_for_timestamp(id, timestamp, start, end),
        None => reader.max_timestamp(id, start, end),
    });
    match looked_up.await {
        Ok(Ok(found)) => Ok(found.unwrap_or((-1, -1))),
        Ok(Err(error)) => {
            tracing::error!(%error, topic_id = %id.topic_id, partition = id.partition, "look-up by time failed");
            Err(ErrorCode::KafkaStorageError)
        }
        Err(error) => {
            tracing::error!(%error, "a look-up by time panicked");
            Err(ErrorCode::KafkaStorageError)
        }
    }
}

/// The leader epoch under which the record at `offset` was or will be appended.
fn epoch_at(published: &Published, offset: i64) -> i32 {
    if offset < 0 {
        return -1;
    }
    let epochs = published.bounds.leader_epochs.iter();
    let at = epochs.rev().find(|(_, start)| *start <= offset).map(|(epoch, _)| *epoch);
    at.unwrap_or(published.bounds.leader_epoch)
}
