//! DescribeTopicPartitions (key 75, version 0; KIP-966): topics with their partitions, a page at a time.
//!
//! Topics come by name, each once; none named means all. The answer ends after as many partitions as the client
//! wants (1 to `DESCRIBED_PARTITIONS_MAX`) with a cursor, from which the next request goes on. Errors per topic: 3
//! unknown, 17 not a topic's name, 42 for all of them when the cursor is not of a topic asked for.

use std::collections::BTreeSet;

use ottla_core::cluster::Topic;
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use ottla_protocol::types::{Text, TopicIdPartition};

use super::metadata::TOPIC_OPERATIONS;
use crate::dispatch::{Incoming, Outcome, respond};
use crate::limits::DESCRIBED_PARTITIONS_MAX;
use crate::shared::Shared;

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::DescribeTopicPartitionsRequest::decode(reader, incoming.version)?;
    let all = request.topics.is_empty();
    let cursor = request.cursor.as_deref();
    let from = cursor.map_or("", |cursor| cursor.topic_name.as_str());
    let named: BTreeSet<Text> = request.topics.iter().map(|topic| topic.name.clone()).collect();
    let is_valid = cursor
        .is_none_or(|cursor| cursor.partition_index >= 0 && (all || named.contains(&cursor.topic_name)));
    let mut response = m::DescribeTopicPartitionsResponse::default();
    if !is_valid {
        response.topics = named.into_iter().map(|name| refused(name, ErrorCode::InvalidRequest)).collect();
        return Ok(respond::<m::DescribeTopicPartitionsRequest>(&incoming, &response));
    }
    let image = shared.view.image();
    let names: Vec<Text> = match all {
        true => image.topics().into_iter().map(|topic| topic.name.clone()).collect(),
        false => named.into_iter().collect(),
    };
    let mut left = request.response_partition_limit.clamp(1, DESCRIBED_PARTITIONS_MAX);
    for name in names.into_iter().filter(|name| name.as_str() >= from) {
        if left == 0 {
            response.next_cursor = next(name, 0);
            break;
        }
        let Some(topic) = image.topic_by_name(&name) else {
            let is_name = ottla_core::cluster::validate_name(&name).is_ok();
            let code =
                if is_name { ErrorCode::UnknownTopicOrPartition } else { ErrorCode::InvalidTopicException };
            response.topics.push(DescribeTopicPartitionsResponseTopic {
                topic_authorized_operations: TOPIC_OPERATIONS,
                ..refused(name, code)
            });
            continue;
        };
        let first =
            cursor.filter(|cursor| cursor.topic_name == name).map_or(0, |cursor| cursor.partition_index);
        let end = topic.partition_count.min(first.saturating_add(left));
        response.topics.push(describe(shared, topic, first..end));
        left -= (end - first).max(0);
        if end < topic.partition_count {
            response.next_cursor = next(name, end);
            break;
        }
    }
    Ok(respond::<m::DescribeTopicPartitionsRequest>(&incoming, &response))
}

fn next(topic_name: Text, partition_index: i32) -> Option<Box<Cursor>> {
    Some(Box::new(Cursor { topic_name, partition_index, ..Default::default() }))
}

fn refused(name: Text, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic { error_code: code.code(), name: Some(name), ..Default::default() }
}

fn describe(
    shared: &Shared,
    topic: &Topic,
    partitions: std::ops::Range<i32>,
) -> DescribeTopicPartitionsResponseTopic {
    let node_id = shared.config.core.node_id;
    let partitions = partitions.map(|index| {
        let slot = shared.view.slot(TopicIdPartition { topic_id: topic.id, partition: index });
        DescribeTopicPartitionsResponsePartition {
            partition_index: index,
            leader_id: node_id,
            leader_epoch: slot.map_or(-1, |slot| slot.newest().bounds.leader_epoch),
            replica_nodes: vec![node_id],
            isr_nodes: vec![node_id],
            eligible_leader_replicas: Some(Vec::new()),
            last_known_elr: Some(Vec::new()),
            ..Default::default()
        }
    });
    DescribeTopicPartitionsResponseTopic {
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        topic_authorized_operations: TOPIC_OPERATIONS,
        ..Default::default()
    }
}
