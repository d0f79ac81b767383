//! How simulated clients build what they send and read what they are told.

use bytes::Bytes;
use ottla_core::command::{CheckedBatch, CommandBody, ProduceCommand, ProducePartition, ProduceTopic};
use ottla_core::decision::Reply;
use ottla_env::rng::Rng;
use ottla_protocol::batch::{BatchBuilder, Producer};
use ottla_protocol::compression::Codec;
use ottla_protocol::messages as m;
use ottla_protocol::record::{NewRecord, RecordIter};
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use crate::checker::compacted::DELETE_RETENTION_MS;
use crate::client::Ctx;
use crate::history::{History, SentBatch, is_compacted};

/// Header with a batch's number, where keys are needed for something else.
const NUMBER_HEADER: &[u8] = b"number";

/// Builds a batch, notes it in the history, and gives its number. The number is in the key of every record.
pub(crate) fn new_batch(
    ctx: &mut Ctx<'_>,
    target: &(String, Uuid, i32),
    partition: i32,
    producer: Producer,
    transaction: Option<usize>,
) -> usize {
    let number = ctx.history.batches.len();
    let mut builder = BatchBuilder::new(Codec::None);
    builder.set_producer(producer);
    for index in 0..ctx.rng.between(1, 3) {
        if is_compacted(&target.0) {
            append_compacted(ctx, &mut builder, number);
            continue;
        }
        let key: Vec<u8> = (number as u64).to_be_bytes().into_iter().chain([index as u8]).collect();
        let padding = ctx.rng.below(ctx.options.padding_bytes_max + 1);
        let mut value = vec![0; usize::try_from(padding).expect("small")];
        ctx.rng.fill(&mut value);
        let record = NewRecord { timestamp: ctx.now_ms, key: Some(&key), value: Some(&value), headers: &[] };
        builder.append(&record).expect("a few records fit");
    }
    let (header, tail) = builder.build_parts();
    ctx.history.batches.push(SentBatch {
        partition: TopicIdPartition { topic_id: target.1, partition },
        topic: target.0.clone(),
        header,
        tail,
        offsets: Default::default(),
        unknown: false,
        refused: false,
    });
    if let Some(transaction) = transaction {
        ctx.history.transactions[transaction].batches.push(number);
    }
    number
}

/// One of a few keys, mostly with a value: the batch's number is in a header.
fn append_compacted(ctx: &mut Ctx<'_>, builder: &mut BatchBuilder, number: usize) {
    let key = [b'k', u8::try_from(ctx.rng.below(12)).expect("small")];
    let padding = ctx.rng.below(ctx.options.padding_bytes_max / 4 + 9);
    let mut value = vec![0; usize::try_from(padding).expect("small")];
    ctx.rng.fill(&mut value);
    let value = (!ctx.rng.one_in(4)).then_some(&value[..]);
    let number = (number as u64).to_be_bytes();
    let headers: [(&[u8], Option<&[u8]>); 1] = [(NUMBER_HEADER, Some(&number))];
    let record = NewRecord { timestamp: ctx.now_ms, key: Some(&key), value, headers: &headers };
    builder.append(&record).expect("a few records fit");
}

/// The number in a batch that was read.
pub(crate) fn batch_number(header: &ottla_protocol::batch::BatchHeader, tail: &Bytes) -> Option<usize> {
    let record = RecordIter::new(header, tail.slice(40..)).next()?.ok()?;
    if let Some(header) = record.headers.iter().find(|header| header.key == NUMBER_HEADER) {
        return usize::try_from(u64::from_be_bytes(header.value.as_ref()?[..].try_into().ok()?)).ok();
    }
    let key = record.key?;
    usize::try_from(u64::from_be_bytes(key.get(..8)?.try_into().ok()?)).ok()
}

/// A Produce request with the given batches, in their order. Batches of one topic are put together.
pub(crate) fn produce(history: &History, transactional_id: Option<&str>, batches: &[usize]) -> CommandBody {
    let mut topics: Vec<ProduceTopic> = Vec::new();
    for number in batches {
        let sent = &history.batches[*number];
        let partition = ProducePartition {
            partition: sent.partition.partition,
            batch: Ok(CheckedBatch { header: sent.header, tail: sent.tail.clone() }),
        };
        match topics.iter_mut().find(|topic| topic.topic_id == sent.partition.topic_id) {
            Some(topic) => topic.partitions.push(partition),
            None => topics.push(ProduceTopic {
                name: Text::from(sent.topic.as_str()),
                topic_id: sent.partition.topic_id,
                partitions: vec![partition],
            }),
        }
    }
    CommandBody::Produce(ProduceCommand {
        transactional_id: transactional_id.map(Text::from),
        acks: -1,
        topics,
    })
}

/// Error code and base offset of each batch of a Produce answer, in the order of the request's batches.
pub(crate) fn produce_results(
    history: &History,
    batches: &[usize],
    reply: &Reply,
) -> Option<Vec<(i16, i64)>> {
    let Reply::Produce(response) = reply else { return None };
    let of = |number: &usize| {
        let sent = &history.batches[*number];
        let topic = response.responses.iter().find(|topic| topic.name == sent.topic.as_str())?;
        let found = topic.partition_responses.iter().find(|found| found.index == sent.partition.partition)?;
        Some((found.error_code, found.base_offset))
    };
    batches.iter().map(of).collect()
}

/// InitProducerId.
pub(crate) fn init_producer_id(
    transactional_id: Option<&str>,
    timeout_ms: i32,
    expected: Option<(i64, i16)>,
) -> CommandBody {
    let (producer_id, producer_epoch) = expected.unwrap_or((-1, -1));
    CommandBody::InitProducerId(m::InitProducerIdRequest {
        transactional_id: transactional_id.map(Text::from),
        transaction_timeout_ms: timeout_ms,
        producer_id,
        producer_epoch,
        ..Default::default()
    })
}

/// AddPartitionsToTxn, version 3.
pub(crate) fn add_partitions(
    transactional_id: &str,
    producer: (i64, i16),
    partitions: &[(String, i32)],
) -> CommandBody {
    let mut topics: Vec<m::add_partitions_to_txn_request::AddPartitionsToTxnTopic> = Vec::new();
    for (name, partition) in partitions {
        match topics.iter_mut().find(|topic| topic.name == name.as_str()) {
            Some(topic) => topic.partitions.push(*partition),
            None => topics.push(m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
                name: Text::from(name.as_str()),
                partitions: vec![*partition],
                ..Default::default()
            }),
        }
    }
    CommandBody::AddPartitionsToTxn(m::AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: Text::from(transactional_id),
        v3_and_below_producer_id: producer.0,
        v3_and_below_producer_epoch: producer.1,
        v3_and_below_topics: topics,
        ..Default::default()
    })
}

/// AddOffsetsToTxn.
pub(crate) fn add_offsets(transactional_id: &str, producer: (i64, i16), group: &str) -> CommandBody {
    CommandBody::AddOffsetsToTxn(m::AddOffsetsToTxnRequest {
        transactional_id: Text::from(transactional_id),
        producer_id: producer.0,
        producer_epoch: producer.1,
        group_id: Text::from(group),
        ..Default::default()
    })
}

/// TxnOffsetCommit of one offset.
pub(crate) fn txn_offset_commit(
    transactional_id: &str,
    producer: (i64, i16),
    history: &History,
    commit: usize,
) -> CommandBody {
    use m::txn_offset_commit_request::{TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic};
    let sent = &history.commits[commit];
    CommandBody::TxnOffsetCommit(m::TxnOffsetCommitRequest {
        transactional_id: Text::from(transactional_id),
        group_id: Text::from(sent.group.as_str()),
        producer_id: producer.0,
        producer_epoch: producer.1,
        topics: vec![TxnOffsetCommitRequestTopic {
            name: Text::from(sent.topic.as_str()),
            partitions: vec![TxnOffsetCommitRequestPartition {
                partition_index: sent.partition,
                committed_offset: commit as i64,
                committed_metadata: Some(Text::EMPTY),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    })
}

/// EndTxn.
pub(crate) fn end_txn(transactional_id: &str, producer: (i64, i16), committed: bool) -> CommandBody {
    CommandBody::EndTxn(m::EndTxnRequest {
        transactional_id: Text::from(transactional_id),
        producer_id: producer.0,
        producer_epoch: producer.1,
        committed,
        ..Default::default()
    })
}

/// OffsetCommit of one offset, outside of a transaction and of a group's generations.
pub(crate) fn offset_commit(history: &History, commit: usize) -> CommandBody {
    use m::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    let sent = &history.commits[commit];
    CommandBody::OffsetCommit(m::OffsetCommitRequest {
        group_id: Text::from(sent.group.as_str()),
        topics: vec![OffsetCommitRequestTopic {
            name: Text::from(sent.topic.as_str()),
            partitions: vec![OffsetCommitRequestPartition {
                partition_index: sent.partition,
                committed_offset: commit as i64,
                committed_metadata: Some(Text::EMPTY),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    })
}

/// OffsetFetch of one partition, version 8.
pub(crate) fn offset_fetch(group: &str, topic: &str, partition: i32, require_stable: bool) -> CommandBody {
    use m::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
    CommandBody::OffsetFetch(m::OffsetFetchRequest {
        groups: vec![OffsetFetchRequestGroup {
            group_id: Text::from(group),
            topics: Some(vec![OffsetFetchRequestTopics {
                name: Text::from(topic),
                partition_indexes: vec![partition],
                ..Default::default()
            }]),
            ..Default::default()
        }],
        require_stable,
        ..Default::default()
    })
}

/// Error code and offset of an OffsetFetch answer for one partition.
pub(crate) fn fetched_offset(reply: &Reply) -> Option<(i16, i64)> {
    let Reply::OffsetFetch(response) = reply else { return None };
    let group = response.groups.first()?;
    if group.error_code != 0 {
        return Some((group.error_code, -1));
    }
    let partition = group.topics.first()?.partitions.first()?;
    Some((partition.error_code, partition.committed_offset))
}

/// CreateTopics of one topic; whether it is compacted is in its name.
pub(crate) fn create_topic(name: &str, partitions: i32) -> CommandBody {
    let settings = [
        ("cleanup.policy", "compact".to_owned()),
        ("delete.retention.ms", DELETE_RETENTION_MS.to_string()),
        ("min.cleanable.dirty.ratio", "0.01".to_owned()),
        ("segment.ms", "200".to_owned()),
    ];
    let settings = settings.into_iter().filter(|_| is_compacted(name));
    let configs = settings.map(|(name, value)| m::create_topics_request::CreatableTopicConfig {
        name: Text::from(name),
        value: Some(Text::from(value.as_str())),
        ..Default::default()
    });
    CommandBody::CreateTopics(m::CreateTopicsRequest {
        topics: vec![m::create_topics_request::CreatableTopic {
            name: Text::from(name),
            num_partitions: partitions,
            replication_factor: -1,
            configs: configs.collect(),
            ..Default::default()
        }],
        ..Default::default()
    })
}

/// DeleteTopics of one topic, version 5 and below.
pub(crate) fn delete_topic(name: &str) -> CommandBody {
    CommandBody::DeleteTopics(m::DeleteTopicsRequest {
        topic_names: vec![Text::from(name)],
        timeout_ms: 1_000,
        ..Default::default()
    })
}

/// DeleteRecords of one partition.
pub(crate) fn delete_records(topic: &str, partition: i32, offset: i64) -> CommandBody {
    use m::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
    CommandBody::DeleteRecords(m::DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: Text::from(topic),
            partitions: vec![DeleteRecordsPartition {
                partition_index: partition,
                offset,
                ..Default::default()
            }],
            ..Default::default()
        }],
        timeout_ms: 1_000,
        ..Default::default()
    })
}
