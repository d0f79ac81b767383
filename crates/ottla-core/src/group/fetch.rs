//! OffsetFetch (KIP-98, KIP-447, KIP-709, KIP-848's topic ids).
//!
//! Place in the walk: a handler that only reads. The answer rests on the group's last change, so it never shows
//! an offset that a crash could take back.
//!
//! Invariants: a partition without an offset is -1 and no error; with `require_stable` one that an open
//! transaction is about to change is 88, so that the client waits for its outcome. A fetch of everything names
//! only partitions that have a committed offset. What is asked twice is answered once, so that no answer is larger
//! than the state.

use std::collections::BTreeSet;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use ottla_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse};
use ottla_protocol::types::{Text, Uuid};

use super::offsets::OffsetSlot;
use super::protocol::Protocol;
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::{ShardState, Step};

/// First version that asks for many groups.
const MANY_GROUPS: i16 = 8;
/// First version with topic ids instead of names.
const BY_ID: i16 = 10;

/// The answer for one partition.
#[derive(Debug)]
struct Fetched {
    partition: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: Text,
    code: ErrorCode,
}

impl Fetched {
    fn none(partition: i32, code: ErrorCode) -> Self {
        Self { partition, offset: -1, leader_epoch: -1, metadata: Text::EMPTY, code }
    }

    fn of(partition: i32, values: Option<&OffsetSlot>, topic_id: Uuid, require_stable: bool) -> Self {
        let Some(values) = values else { return Self::none(partition, ErrorCode::None) };
        if require_stable && !values.pending.is_empty() {
            return Self::none(partition, ErrorCode::UnstableOffsetCommit);
        }
        match &values.committed {
            Some(commit) if commit.topic_id.is_zero() || commit.topic_id == topic_id => Self {
                partition,
                offset: commit.offset,
                leader_epoch: commit.leader_epoch,
                metadata: commit.metadata.clone(),
                code: ErrorCode::None,
            },
            _ => Self::none(partition, ErrorCode::None),
        }
    }
}

/// The answers for one topic.
#[derive(Debug)]
struct FetchedTopic {
    name: Text,
    topic_id: Uuid,
    partitions: Vec<Fetched>,
}

/// What is asked about one topic.
struct Asked<'a> {
    name: &'a Text,
    topic_id: Uuid,
    partitions: &'a [i32],
}

/// What is asked about one group.
struct Query<'a> {
    group: &'a Text,
    by_id: bool,
    require_stable: bool,
}

impl Query<'_> {
    fn topic(&self, state: &ShardState, asked: &Asked<'_>) -> FetchedTopic {
        let topic =
            if self.by_id { state.topics.by_id(asked.topic_id) } else { state.topics.by_name(asked.name) };
        let mut seen = BTreeSet::new();
        let distinct = asked.partitions.iter().filter(|partition| seen.insert(**partition));
        let partitions = distinct.map(|&partition| match topic {
            None if self.by_id => Fetched::none(partition, ErrorCode::UnknownTopicId),
            None => Fetched::none(partition, ErrorCode::None),
            Some(topic) => {
                let values = state.groups.get(self.group, &topic.name, partition);
                Fetched::of(partition, values, topic.id, self.require_stable)
            }
        });
        FetchedTopic { name: asked.name.clone(), topic_id: asked.topic_id, partitions: partitions.collect() }
    }

    /// Every partition of an existing topic that has a committed offset.
    fn everything(&self, state: &ShardState) -> Vec<FetchedTopic> {
        let mut topics: Vec<FetchedTopic> = Vec::new();
        for values in state.groups.of_group(self.group).filter(|values| values.committed.is_some()) {
            let Some(topic) = state.topics.by_name(&values.key.topic) else { continue };
            let fetched = Fetched::of(values.key.partition, Some(values), topic.id, self.require_stable);
            match topics.last_mut() {
                Some(last) if last.topic_id == topic.id => last.partitions.push(fetched),
                _ => topics.push(FetchedTopic {
                    name: topic.name.clone(),
                    topic_id: topic.id,
                    partitions: vec![fetched],
                }),
            }
        }
        topics
    }
}

/// Handles the request.
pub(crate) fn offset_fetch(step: &mut Step<'_>, context: &Context, request: OffsetFetchRequest) {
    let state = &*step.state;
    let (response, rests_on) = if context.version >= MANY_GROUPS {
        many_groups(state, context.version, &request)
    } else {
        one_group(state, &request)
    };
    // Topics that do not exist are part of the answer.
    let rests_on = rests_on.max(state.topics.rests_on());
    step.answer(context.token, Reply::OffsetFetch(response), rests_on);
}

fn one_group(state: &ShardState, request: &OffsetFetchRequest) -> (OffsetFetchResponse, Position) {
    let query = Query { group: &request.group_id, by_id: false, require_stable: request.require_stable };
    let mut seen = BTreeSet::new();
    let topics = match &request.topics {
        None => query.everything(state),
        Some(topics) => topics
            .iter()
            .filter(|topic| seen.insert(&topic.name))
            .map(|topic| {
                let asked =
                    Asked { name: &topic.name, topic_id: Uuid::ZERO, partitions: &topic.partition_indexes };
                query.topic(state, &asked)
            })
            .collect(),
    };
    let topics = topics
        .into_iter()
        .map(|topic| OffsetFetchResponseTopic {
            name: topic.name,
            partitions: topic
                .partitions
                .into_iter()
                .map(|fetched| OffsetFetchResponsePartition {
                    partition_index: fetched.partition,
                    committed_offset: fetched.offset,
                    committed_leader_epoch: fetched.leader_epoch,
                    metadata: Some(fetched.metadata),
                    error_code: fetched.code.code(),
                    ..OffsetFetchResponsePartition::default()
                })
                .collect(),
            ..OffsetFetchResponseTopic::default()
        })
        .collect();
    let response = OffsetFetchResponse { topics, ..OffsetFetchResponse::default() };
    (response, state.groups.rests_on(&request.group_id))
}

fn many_groups(
    state: &ShardState,
    version: i16,
    request: &OffsetFetchRequest,
) -> (OffsetFetchResponse, Position) {
    let mut response = OffsetFetchResponse::default();
    let mut rests_on = Position::default();
    let mut seen_groups = BTreeSet::new();
    for group in request.groups.iter().filter(|group| seen_groups.insert(&group.group_id)) {
        rests_on = rests_on.max(state.groups.rests_on(&group.group_id));
        if let Protocol::Consumer(members) = state.groups.protocol(&group.group_id)
            && let Err(code) = members.check_fetch(group.member_id.as_ref(), group.member_epoch)
        {
            let (group_id, error_code) = (group.group_id.clone(), code.code());
            response.groups.push(OffsetFetchResponseGroup { group_id, error_code, ..Default::default() });
            continue;
        }
        let query =
            Query { group: &group.group_id, by_id: version >= BY_ID, require_stable: request.require_stable };
        let mut seen = BTreeSet::new();
        let topics = match &group.topics {
            None => query.everything(state),
            Some(topics) => topics
                .iter()
                .filter(|topic| seen.insert((topic.topic_id, &topic.name)))
                .map(|topic| {
                    let partitions = &topic.partition_indexes;
                    query.topic(state, &Asked { name: &topic.name, topic_id: topic.topic_id, partitions })
                })
                .collect(),
        };
        response.groups.push(OffsetFetchResponseGroup {
            group_id: group.group_id.clone(),
            topics: topics.into_iter().map(plural).collect(),
            ..OffsetFetchResponseGroup::default()
        });
    }
    (response, rests_on)
}

/// The same topic in the structures of version 8 and later.
fn plural(topic: FetchedTopic) -> OffsetFetchResponseTopics {
    OffsetFetchResponseTopics {
        name: topic.name,
        topic_id: topic.topic_id,
        partitions: topic
            .partitions
            .into_iter()
            .map(|fetched| OffsetFetchResponsePartitions {
                partition_index: fetched.partition,
                committed_offset: fetched.offset,
                committed_leader_epoch: fetched.leader_epoch,
                metadata: Some(fetched.metadata),
                error_code: fetched.code.code(),
                ..OffsetFetchResponsePartitions::default()
            })
            .collect(),
        ..OffsetFetchResponseTopics::default()
    }
}
