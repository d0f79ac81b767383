//! Produce (key 0, versions 3-13; KIP-98, KIP-890, KIP-516): checks every batch on the connection, hands them to
//! the shard in arrival order.
//!
//! Checked here: framing, CRC, records, sizes, timestamps (no state needed). Decided by the shard: topic,
//! transaction, sequences. A batch stays a part of its request, which is not copied on its way to the disk, unless it is
//! a small part: the log keeps its newest batches in memory, and must not keep large requests for small batches. Versions 0 to 2 are announced, since old librdkafka needs that (KAFKA-18659), and
//! refused.

use bytes::Bytes;
use ottla_core::cluster::Topic;
use ottla_core::command::{CheckedBatch, CommandBody, ProduceCommand, ProducePartition, ProduceTopic};
use ottla_protocol::check::{ProduceRules, Refusal, check_produce};
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::messages as m;
use ottla_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use ottla_protocol::messages::produce_response::{BatchIndexAndErrorMessage, PartitionProduceResponse};
use ottla_protocol::types::{Text, Uuid};

use crate::dispatch::{Incoming, Outcome, forward};
use crate::limits::{BATCH_SHARE_MIN, DECOMPRESSED_BYTES_MAX, DECOMPRESSED_FACTOR};
use crate::net::connection::Peer;
use crate::shared::Shared;

/// Checks the batches and hands the request to the shard.
pub fn handle(
    shared: &Shared,
    peer: &Peer,
    incoming: Incoming,
    reader: &mut Reader,
) -> Result<Outcome, DecodeError> {
    let request = m::ProduceRequest::decode(reader, incoming.version)?;
    let image = shared.view.image();
    let now_ms = shared.shard_time_ms();
    let topics = request.topic_data.into_iter().map(|data| {
        let topic = match incoming.version >= 13 {
            true => image.topic_by_id(data.topic_id),
            false => image.topic_by_name(&data.name),
        };
        let counted = shared.metrics.topics.of(topic.map_or(Uuid::ZERO, |topic| topic.id));
        counted.read.produce_requests.add(data.partition_data.len() as u64);
        let rules = topic.map(|topic| rules(topic, incoming.version, now_ms)).unwrap_or_default();
        check_topic(data, topic.map(|topic| topic.id), &rules, incoming.bytes)
    });
    let command = ProduceCommand {
        transactional_id: request.transactional_id,
        acks: request.acks,
        topics: topics.collect(),
    };
    Ok(forward(shared, peer, incoming, CommandBody::Produce(command)))
}

fn rules(topic: &Topic, produce_version: i16, now_ms: i64) -> ProduceRules {
    let bytes_max = usize::try_from(topic.config.max_message_bytes).unwrap_or(0);
    let decompressed_bytes_max = bytes_max.saturating_mul(DECOMPRESSED_FACTOR).min(DECOMPRESSED_BYTES_MAX);
    topic.config.produce_rules(now_ms, produce_version, decompressed_bytes_max)
}

fn check_topic(
    data: TopicProduceData,
    topic_id: Option<Uuid>,
    rules: &ProduceRules,
    request_bytes: usize,
) -> ProduceTopic {
    let known = topic_id.is_some();
    let partitions = data.partition_data.into_iter();
    let partitions = partitions.map(|partition| check_partition(partition, known, rules, request_bytes));
    ProduceTopic {
        name: data.name,
        topic_id: topic_id.unwrap_or(data.topic_id),
        partitions: partitions.collect(),
    }
}

/// An unknown topic's batches are not checked against rules that nobody knows: the shard answers that.
fn check_partition(
    data: PartitionProduceData,
    known: bool,
    rules: &ProduceRules,
    request_bytes: usize,
) -> ProducePartition {
    let bytes = data.records.as_ref().map(|records| records.to_bytes());
    let checked = check_produce(bytes.as_ref(), rules);
    let batch = match checked {
        Ok(checked) => Ok(CheckedBatch { header: checked.header, tail: own(checked.tail, request_bytes) }),
        Err(refusal) => Err(refused(data.index, refusal, known)),
    };
    ProducePartition { partition: data.index, batch }
}

/// A copy of what is a small part of its request.
fn own(tail: Bytes, request_bytes: usize) -> Bytes {
    if tail.len() < request_bytes / BATCH_SHARE_MIN { Bytes::copy_from_slice(&tail) } else { tail }
}

fn refused(index: i32, refusal: Refusal, known: bool) -> PartitionProduceResponse {
    let text = |text: Option<String>| text.map(Text::from);
    let record_errors =
        refusal.record_errors.into_iter().map(|(batch_index, message)| BatchIndexAndErrorMessage {
            batch_index,
            batch_index_error_message: text(message),
            ..Default::default()
        });
    PartitionProduceResponse {
        index,
        error_code: refusal.code.code(),
        base_offset: -1,
        log_append_time_ms: -1,
        log_start_offset: -1,
        record_errors: if known { record_errors.collect() } else { Vec::new() },
        error_message: text(refusal.message),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use ottla_protocol::batch::BatchBuilder;
    use ottla_protocol::compression::Codec;
    use ottla_protocol::record::NewRecord;

    use super::*;

    /// Proves: a batch that is a small part of its request does not keep the request in memory, a large one is not
    /// copied.
    #[test]
    fn large_requests_are_not_kept_for_small_batches() {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.append(&NewRecord { value: Some(&[b'x'; 2000]), ..Default::default() }).expect("small");
        let batch = builder.build();
        for (request_bytes, is_kept) in [(1 << 20, false), (batch.len() + 100, true)] {
            let mut request = batch.to_vec();
            request.resize(request_bytes, 0);
            let request = Bytes::from(request);
            let data = PartitionProduceData {
                records: Some(request.slice(..batch.len()).into()),
                ..Default::default()
            };
            let topic = TopicProduceData { partition_data: vec![data], ..Default::default() };
            let checked = check_topic(topic, Some(Uuid([1; 16])), &ProduceRules::default(), request_bytes);
            assert!(checked.partitions[0].batch.is_ok());
            assert_eq!(!request.is_unique(), is_kept, "{request_bytes}");
        }
    }
}
