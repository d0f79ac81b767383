//! DescribeLogDirs (key 35, versions 1-5; KIP-113, KIP-827, KIP-1066) and AlterReplicaLogDirs (key 34, versions 1
//! and 2): the one folder of the data.
//!
//! A partition's size is that of its batches in the log, whether or not DeleteRecords has passed them. Partitions
//! that do not exist are left out. There is no other folder to move to: asking for the present one is granted, as
//! nothing has to be done (code 0), for another one 57; an unknown partition 3.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ottla_core::cluster::{Image, Topic};
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use ottla_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use ottla_protocol::types::{Text, TopicIdPartition};
use ottla_storage::{LogReader, ReadError};

use crate::dispatch::{Incoming, Outcome, encode, respond};
use crate::net::connection::Answer;
use crate::shared::Shared;

/// Topics and those of their partitions that are asked for.
type Wanted = Vec<(Arc<Topic>, Vec<i32>)>;

/// Answers DescribeLogDirs; sizes may be read from the disk.
pub fn describe(
    shared: &Arc<Shared>,
    incoming: Incoming,
    reader: &mut Reader,
) -> Result<Outcome, DecodeError> {
    let request = m::DescribeLogDirsRequest::decode(reader, incoming.version)?;
    let wanted = wanted(&shared.view.image(), &request);
    let shared = shared.clone();
    Ok(Outcome::Answer(Answer::Later(Box::pin(async move {
        let (log, disk) = (shared.view.reader(), shared.disk.clone());
        let looked_up = ottla_env::spawn::blocking("log-dirs", move || {
            let bytes = |result: std::io::Result<Option<u64>>| {
                let bytes = result.ok().flatten().and_then(|bytes| i64::try_from(bytes).ok());
                bytes.unwrap_or(-1)
            };
            (measure(&log, wanted), bytes(disk.total_bytes()), bytes(disk.free_bytes().map(Some)))
        });
        let (measured, total_bytes, usable_bytes) = looked_up.await.ok()?;
        let (error, topics) = match measured {
            Ok(topics) => (ErrorCode::None, topics),
            Err(error) => {
                tracing::error!(%error, "the sizes of partitions cannot be read");
                (ErrorCode::KafkaStorageError, Vec::new())
            }
        };
        let result = DescribeLogDirsResult {
            error_code: error.code(),
            log_dir: Text::from(shared.log_dir()),
            topics,
            total_bytes,
            usable_bytes,
            ..Default::default()
        };
        let response = m::DescribeLogDirsResponse { results: vec![result], ..Default::default() };
        encode(&response, incoming.api, incoming.version, incoming.correlation_id)
    }))))
}

/// The partitions that are asked for and exist, each once.
fn wanted(image: &Image, request: &m::DescribeLogDirsRequest) -> Wanted {
    let Some(topics) = &request.topics else {
        let all = image.topics().into_iter();
        return all.map(|topic| (topic.clone(), (0..topic.partition_count).collect())).collect();
    };
    let mut named: BTreeMap<&Text, BTreeSet<i32>> = BTreeMap::new();
    for topic in topics {
        named.entry(&topic.topic).or_default().extend(&topic.partitions);
    }
    let found = named.into_iter().filter_map(|(name, partitions)| {
        let topic = image.topic_by_name(name)?;
        let partitions: Vec<i32> =
            partitions.into_iter().filter(|index| topic.partition(*index).is_some()).collect();
        (!partitions.is_empty()).then(|| (topic.clone(), partitions))
    });
    found.collect()
}

fn measure(log: &LogReader, wanted: Wanted) -> Result<Vec<DescribeLogDirsTopic>, ReadError> {
    let topics = wanted.into_iter().map(|(topic, partitions)| {
        let partitions = partitions.into_iter().map(|partition_index| {
            let bytes = log.bytes_of(TopicIdPartition { topic_id: topic.id, partition: partition_index })?;
            Ok(DescribeLogDirsPartition {
                partition_index,
                partition_size: i64::try_from(bytes).unwrap_or(i64::MAX),
                ..Default::default()
            })
        });
        let partitions = partitions.collect::<Result<_, ReadError>>()?;
        Ok(DescribeLogDirsTopic { name: topic.name.clone(), partitions, ..Default::default() })
    });
    topics.collect()
}

/// Answers AlterReplicaLogDirs.
pub fn alter(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::AlterReplicaLogDirsRequest::decode(reader, incoming.version)?;
    let asked = request.dirs.iter().flat_map(|dir| &dir.topics).map(|topic| topic.partitions.len());
    if let Some(refused) = super::too_many_partitions(asked) {
        return Ok(refused);
    }
    let image = shared.view.image();
    let log_dir = shared.log_dir();
    let mut response = m::AlterReplicaLogDirsResponse::default();
    for dir in request.dirs {
        for topic in dir.topics {
            let found = image.topic_by_name(&topic.name);
            let result = |partition_index: i32| {
                let there = found.is_some_and(|topic| topic.partition(partition_index).is_some());
                let error = match (dir.path.as_str() == log_dir, there) {
                    (false, _) => ErrorCode::LogDirNotFound,
                    (true, false) => ErrorCode::UnknownTopicOrPartition,
                    (true, true) => ErrorCode::None,
                };
                let error_code = error.code();
                AlterReplicaLogDirPartitionResult { partition_index, error_code, ..Default::default() }
            };
            let partitions = topic.partitions.into_iter().map(result).collect();
            response.results.push(AlterReplicaLogDirTopicResult {
                topic_name: topic.name,
                partitions,
                ..Default::default()
            });
        }
    }
    Ok(respond::<m::AlterReplicaLogDirsRequest>(&incoming, &response))
}
