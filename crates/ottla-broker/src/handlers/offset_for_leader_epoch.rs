//! OffsetForLeaderEpoch (key 23, versions 2-4; KIP-101, KIP-279, KIP-320): where the records of a leader epoch end.
//!
//! Answered from the published bounds. The epoch asked for, or the nearest one below it, ends where the next one
//! begins; the newest one ends at the high watermark. An epoch above the newest has no end: (-1, -1), code 0. An
//! epoch older than all that are known ends where the first of them begins. Errors: 3 unknown, 74 and 75 when the
//! client's idea of the present epoch is older or newer than ours.

use ottla_core::decision::Bounds;
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use ottla_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use ottla_protocol::types::TopicIdPartition;

use crate::dispatch::{Incoming, Outcome, respond};
use crate::shared::Shared;

/// In a request: the client does not know the present epoch. In an answer: there is none.
const NO_EPOCH: i32 = -1;

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::OffsetForLeaderEpochRequest::decode(reader, incoming.version)?;
    let image = shared.view.image();
    let topics = request.topics.into_iter().map(|topic| {
        let id = image.topic_by_name(&topic.topic).map(|topic| topic.id);
        let answer = |wanted: &OffsetForLeaderPartition| {
            let id = id.map(|topic_id| TopicIdPartition { topic_id, partition: wanted.partition });
            let slot = id.and_then(|id| shared.view.slot(id)).ok_or(ErrorCode::UnknownTopicOrPartition);
            let found = slot.and_then(|slot| find(&slot.newest().bounds, wanted));
            let (error, (leader_epoch, end_offset)) = match found {
                Ok(found) => (ErrorCode::None, found),
                Err(error) => (error, (NO_EPOCH, -1)),
            };
            EpochEndOffset {
                error_code: error.code(),
                partition: wanted.partition,
                leader_epoch,
                end_offset,
                ..Default::default()
            }
        };
        let partitions = topic.partitions.iter().map(answer).collect();
        OffsetForLeaderTopicResult { topic: topic.topic, partitions, ..Default::default() }
    });
    let response = m::OffsetForLeaderEpochResponse { topics: topics.collect(), ..Default::default() };
    Ok(respond::<m::OffsetForLeaderEpochRequest>(&incoming, &response))
}

/// The epoch that is meant and its end.
fn find(bounds: &Bounds, wanted: &OffsetForLeaderPartition) -> Result<(i32, i64), ErrorCode> {
    if wanted.current_leader_epoch != NO_EPOCH && wanted.current_leader_epoch < bounds.leader_epoch {
        return Err(ErrorCode::FencedLeaderEpoch);
    }
    if wanted.current_leader_epoch > bounds.leader_epoch {
        return Err(ErrorCode::UnknownLeaderEpoch);
    }
    let epoch = wanted.leader_epoch;
    if epoch == NO_EPOCH || epoch > bounds.leader_epoch {
        return Ok((NO_EPOCH, -1));
    }
    if epoch == bounds.leader_epoch {
        return Ok((epoch, bounds.high_watermark));
    }
    // Records of the present epoch may be still to come: it begins, at the latest, at the high watermark.
    let epochs = &bounds.leader_epochs;
    let next = epochs.partition_point(|(known, _)| *known <= epoch);
    let end = epochs.get(next).map_or(bounds.high_watermark, |(_, start)| *start);
    let known = next.checked_sub(1).and_then(|at| epochs.get(at)).map_or(epoch, |(known, _)| *known);
    Ok((known, end.max(bounds.log_start_offset)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn bounds(epochs: &[(i32, i64)], leader_epoch: i32, log_start_offset: i64) -> Bounds {
        Bounds {
            log_start_offset,
            high_watermark: 100,
            last_stable_offset: 50,
            cleaned: ottla_core::clean::CleanedState::NONE,
            leader_epoch,
            aborted: Arc::default(),
            leader_epochs: Arc::new(epochs.to_vec()),
        }
    }

    /// Proves: each epoch ends where the next begins, gaps go to the nearest below, the present one ends at the
    /// high watermark whether it has records or not, unknown ones have no end, and the client's own epoch is
    /// checked first.
    #[test]
    fn table() {
        let with_records = bounds(&[(2, 0), (4, 30), (7, 80)], 7, 10);
        let without = bounds(&[(2, 0), (4, 30)], 6, 40);
        let empty = bounds(&[], 3, 100);
        let table = [
            (&with_records, -1, 7, Ok((7, 100))),
            (&with_records, 7, 4, Ok((4, 80))),
            (&with_records, 7, 6, Ok((4, 80))),
            (&with_records, 7, 3, Ok((2, 30))),
            (&with_records, 7, 1, Ok((1, 10))),
            (&with_records, 7, 8, Ok((-1, -1))),
            (&with_records, 7, -1, Ok((-1, -1))),
            (&with_records, 6, 7, Err(ErrorCode::FencedLeaderEpoch)),
            (&with_records, -7, 7, Err(ErrorCode::FencedLeaderEpoch)),
            (&with_records, 8, 7, Err(ErrorCode::UnknownLeaderEpoch)),
            (&without, 6, 6, Ok((6, 100))),
            (&without, 6, 5, Ok((4, 100))),
            (&without, 6, 2, Ok((2, 40))),
            (&empty, 3, 3, Ok((3, 100))),
            (&empty, 3, 2, Ok((2, 100))),
        ];
        for (bounds, current_leader_epoch, leader_epoch, wanted) in table {
            let asked = OffsetForLeaderPartition { current_leader_epoch, leader_epoch, ..Default::default() };
            assert_eq!(find(bounds, &asked), wanted, "{current_leader_epoch} {leader_epoch} {bounds:?}");
        }
    }
}
