//! A group's committed offsets, read and written at its coordinator.

use std::collections::BTreeMap;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use ottla_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use ottla_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
};
use ottla_protocol::types::{Text, Uuid};

use super::OffsetsError;
use crate::cluster::{Cluster, CoordinatorKind};
use crate::connection::Versions;
use crate::error::LEFT_OUT;
use crate::record::{CommittedOffset, GroupMetadata, OffsetToCommit, TopicPartition};

/// From batched groups to before topic ids.
const OFFSET_FETCH: Versions = Versions::new(8, 9);
/// 10 names topics by id: an offset does not land in another topic that was made under the same name.
const OFFSET_COMMIT: Versions = Versions::new(7, 10);
/// Last version that names topics.
const OFFSET_COMMIT_BY_NAME: Versions = Versions::new(7, 9);

/// The stable committed offsets of a group: of these partitions, or of all it has when none are named. Waits
/// while a transaction holds one of them open.
pub(crate) async fn committed(
    cluster: &Cluster,
    group_id: &Text,
    partitions: Option<&[TopicPartition]>,
) -> Result<Vec<CommittedOffset>, OffsetsError> {
    committed_by(cluster, group_id, partitions, true, None).await
}

/// The same; with `stable` false, what open transactions hold is passed over instead of waited for. With a member's id
/// and epoch (KIP-848) a broker that knows of them refuses a member that has been replaced: what it would begin from
/// is somebody else's.
pub(crate) async fn committed_by(
    cluster: &Cluster,
    group_id: &Text,
    partitions: Option<&[TopicPartition]>,
    stable: bool,
    member: Option<(Text, i32)>,
) -> Result<Vec<CommittedOffset>, OffsetsError> {
    let topics = partitions.map(|partitions| {
        let mut topics: BTreeMap<Text, OffsetFetchRequestTopics> = BTreeMap::new();
        for at in partitions {
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.name = at.topic.clone();
            topic.partition_indexes.push(at.partition);
        }
        topics.into_values().collect()
    });
    let group =
        OffsetFetchRequestGroup { group_id: group_id.clone(), topics, ..OffsetFetchRequestGroup::default() };
    let (member_id, member_epoch) =
        member.map_or((None, -1), |(member_id, member_epoch)| (Some(member_id), member_epoch));
    let group = OffsetFetchRequestGroup { member_id, member_epoch, ..group };
    let request =
        OffsetFetchRequest { groups: vec![group], require_stable: stable, ..OffsetFetchRequest::default() };
    let deadline = cluster.deadline();
    let code = |answer: &OffsetFetchResponse| fetch_code(answer, group_id, partitions);
    let answer = cluster
        .call_coordinator(CoordinatorKind::Group, group_id, &request, OFFSET_FETCH, deadline, code)
        .await?;
    match code(&answer) {
        ErrorCode::None => Ok(committed_offsets(&answer, group_id)),
        code => Err(OffsetsError::Group { group_id: group_id.clone(), code }),
    }
}

fn committed_offsets(answer: &OffsetFetchResponse, group_id: &Text) -> Vec<CommittedOffset> {
    let groups = answer.groups.iter().filter(|group| group.group_id == *group_id);
    let topics = groups.flat_map(|group| &group.topics);
    let partitions =
        topics.flat_map(|topic| topic.partitions.iter().map(move |partition| (topic, partition)));
    let offsets = partitions.map(|(topic, partition)| CommittedOffset {
        topic_partition: TopicPartition::new(topic.name.detached(), partition.partition_index),
        offset: (partition.committed_offset >= 0).then_some(partition.committed_offset),
        leader_epoch: partition.committed_leader_epoch,
        metadata: partition.metadata.as_ref().map_or(Text::EMPTY, Text::detached),
    });
    offsets.collect()
}

/// The first error of an answer. One without the group, or without a partition that was asked for, is none: taken
/// for "nothing was committed" it would move a reader to where `auto.offset.reset` says.
fn fetch_code(
    answer: &OffsetFetchResponse,
    group_id: &Text,
    partitions: Option<&[TopicPartition]>,
) -> ErrorCode {
    let Some(group) = answer.groups.iter().find(|group| group.group_id == *group_id) else { return LEFT_OUT };
    let answered = group.topics.iter().flat_map(|topic| &topic.partitions);
    let codes = answered.map(|partition| partition.error_code);
    let code = first(std::iter::once(group.error_code).chain(codes));
    let is_answered = |at: &TopicPartition| {
        let topics = group.topics.iter().filter(|topic| topic.name == at.topic);
        topics.flat_map(|topic| &topic.partitions).any(|there| there.partition_index == at.partition)
    };
    match code {
        ErrorCode::None if !partitions.unwrap_or_default().iter().all(is_answered) => LEFT_OUT,
        code => code,
    }
}

/// Commits offsets for a group.
pub(crate) async fn commit(
    cluster: &Cluster,
    group: &GroupMetadata,
    offsets: &[OffsetToCommit],
) -> Result<(), OffsetsError> {
    let mut topics: BTreeMap<Text, OffsetCommitRequestTopic> = BTreeMap::new();
    for offset in offsets {
        let topic = topics.entry(offset.topic_partition.topic.clone()).or_default();
        topic.name = offset.topic_partition.topic.clone();
        topic.topic_id = cluster.cached_topic(&topic.name).map_or(Uuid::ZERO, |known| known.topic_id);
        topic.partitions.push(OffsetCommitRequestPartition {
            partition_index: offset.topic_partition.partition,
            committed_offset: offset.offset,
            committed_leader_epoch: offset.leader_epoch,
            committed_metadata: Some(offset.metadata.clone()),
            ..OffsetCommitRequestPartition::default()
        });
    }
    let by_id = topics.values().all(|topic| !topic.topic_id.is_zero());
    let usable = if by_id { OFFSET_COMMIT } else { OFFSET_COMMIT_BY_NAME };
    let request = OffsetCommitRequest {
        group_id: group.group_id.clone(),
        generation_id_or_member_epoch: group.generation_id,
        member_id: group.member_id.clone(),
        group_instance_id: group.group_instance_id.clone(),
        topics: topics.into_values().collect(),
        ..OffsetCommitRequest::default()
    };
    let deadline = cluster.deadline();
    let key = &group.group_id;
    let code = |answer: &OffsetCommitResponse| commit_code(answer, &request);
    let answer =
        cluster.call_coordinator(CoordinatorKind::Group, key, &request, usable, deadline, code).await?;
    match code(&answer) {
        ErrorCode::None => Ok(()),
        code => Err(OffsetsError::Group { group_id: group.group_id.clone(), code }),
    }
}

/// The first error of an answer. One without an offset that was to be committed is none.
fn commit_code(answer: &OffsetCommitResponse, request: &OffsetCommitRequest) -> ErrorCode {
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    let code = first(partitions.map(|partition| partition.error_code));
    let is_answered = |asked: &OffsetCommitRequestTopic, index: i32| {
        let topics = answer.topics.iter().filter(|topic| {
            if topic.topic_id.is_zero() { topic.name == asked.name } else { topic.topic_id == asked.topic_id }
        });
        topics.flat_map(|topic| &topic.partitions).any(|partition| partition.partition_index == index)
    };
    let all_of = |topic: &OffsetCommitRequestTopic| {
        topic.partitions.iter().all(|partition| is_answered(topic, partition.partition_index))
    };
    if code.is_none() && !request.topics.iter().all(all_of) { LEFT_OUT } else { code }
}

/// The first error: one that cannot be retried before one that can.
fn first(codes: impl Iterator<Item = i16> + Clone) -> ErrorCode {
    let mut errors = codes.map(ErrorCode::from_code).filter(|code| !code.is_none());
    let first = errors.clone().find(|code| !code.is_retriable());
    first.or_else(|| errors.next()).unwrap_or(ErrorCode::None)
}
