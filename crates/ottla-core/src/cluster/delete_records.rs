//! DeleteRecords, versions 0 to 2 (KIP-107): records below an offset are deleted.
//!
//! Errors per partition: 3 unknown, 17 an internal topic, 1 an offset behind the high watermark or below -1, 44
//! a topic that is only compacted. The new log start is a control record, so it is durable before its answer and
//! survives a crash (Kafka checkpoints it later).

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};

use super::records;
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::{ShardState, Step};

/// In a request: up to the high watermark.
const TO_HIGH_WATERMARK: i64 = -1;

/// Answers DeleteRecords.
pub(crate) fn delete_records(step: &mut Step<'_>, context: &Context, request: m::DeleteRecordsRequest) {
    let mut rests_on = Position::default();
    let mut new_records = Vec::new();
    let topics = request
        .topics
        .into_iter()
        .map(|topic| {
            let partitions = topic
                .partitions
                .iter()
                .map(|wanted| {
                    let (partition_index, offset) = (wanted.partition_index, wanted.offset);
                    match find(step.state, &topic.name, partition_index, offset, &mut rests_on) {
                        Ok((slot, offset)) => {
                            let state = step.state.partitions.get(slot);
                            if offset > state.log_start_offset() {
                                new_records.push(records::log_start(state.partition(), offset));
                            }
                            DeleteRecordsPartitionResult {
                                partition_index,
                                low_watermark: offset.max(state.log_start_offset()),
                                ..Default::default()
                            }
                        }
                        Err(code) => DeleteRecordsPartitionResult {
                            partition_index,
                            low_watermark: -1,
                            error_code: code.code(),
                            ..Default::default()
                        },
                    }
                })
                .collect();
            DeleteRecordsTopicResult { name: topic.name, partitions, ..Default::default() }
        })
        .collect();
    if !new_records.is_empty() {
        step.append_control(&new_records);
        rests_on = step.position();
    }
    let reply = m::DeleteRecordsResponse { topics, ..Default::default() };
    step.answer(context.token, Reply::DeleteRecords(reply), rests_on);
}

/// Where the partition sits and the offset that is meant.
fn find(
    state: &ShardState,
    name: &str,
    partition: i32,
    offset: i64,
    rests_on: &mut Position,
) -> Result<(u32, i64), ErrorCode> {
    *rests_on = (*rests_on).max(state.topics.rests_on());
    let topic = state.topics.by_name(name).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if topic.is_internal() {
        return Err(ErrorCode::InvalidTopicException);
    }
    let partition = topic.partition(partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let slot = state.partitions.slot(partition).expect("a topic's partitions exist");
    if !topic.config.delete {
        return Err(ErrorCode::PolicyViolation);
    }
    let there = state.partitions.get(slot);
    *rests_on = (*rests_on).max(there.last_position());
    let high_watermark = there.log_end_offset();
    match offset {
        TO_HIGH_WATERMARK => Ok((slot, high_watermark)),
        offset if offset < 0 || offset > high_watermark => Err(ErrorCode::OffsetOutOfRange),
        offset => Ok((slot, offset)),
    }
}
