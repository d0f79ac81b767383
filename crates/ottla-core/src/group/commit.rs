//! OffsetCommit and TxnOffsetCommit (KIP-98, KIP-447, KIP-890).
//!
//! Place in the walk: handlers. A plain commit is a batch of records that count at once; one in a transaction
//! is a batch of the producer's, in the partition of `__consumer_offsets` that its transaction must have:
//! AddOffsetsToTxn has put it there with protocol v1, this request does with v2.
//!
//! Invariants: what is refused for the whole group is decided before anything is written; a partition's own
//! error (unknown, metadata too long) does not keep the others back; nobody joins a transaction by a commit
//! that is refused.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use ottla_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use ottla_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, TxnOffsetCommitRequest, TxnOffsetCommitResponse,
};
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use super::offsets::{Commit, OffsetKey};
use super::protocol::Protocol;
use super::record;
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::{NewRecord, ShardState, Stamp, Step};
use crate::txn::{self, Pair, Refusal, Through};

/// First versions with topic ids instead of names.
const COMMIT_BY_ID: i16 = 10;
const TXN_COMMIT_BY_ID: i16 = 6;
/// First version of TxnOffsetCommit that adds to the transaction by itself.
const TXN_COMMIT_V2: i16 = 5;

/// What both requests ask for one partition.
struct Wanted {
    partition: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: Option<Text>,
}

/// What both requests ask for one topic.
struct WantedTopic {
    name: Text,
    topic_id: Uuid,
    partitions: Vec<Wanted>,
}

/// A request with every partition judged by itself.
struct Judged {
    /// Records of the partitions that may be committed.
    records: Vec<NewRecord>,
    /// And these partitions.
    partitions: Vec<TopicIdPartition>,
    /// Codes by topic and partition, in the request's order; `None` for those in `records`.
    codes: Vec<Vec<Option<ErrorCode>>>,
    /// A topic or partition does not exist.
    missing: bool,
}

/// Judges every partition by itself. `expire_timestamp` is -1 for "by the retention".
fn judge(
    step: &Step<'_>,
    group: &Text,
    topics: &[WantedTopic],
    by_id: bool,
    expire_timestamp: i64,
) -> Judged {
    let state = &*step.state;
    let mut judged = Judged {
        records: Vec::new(),
        partitions: Vec::new(),
        codes: Vec::with_capacity(topics.len()),
        missing: false,
    };
    for wanted in topics {
        let topic =
            if by_id { state.topics.by_id(wanted.topic_id) } else { state.topics.by_name(&wanted.name) };
        let unknown = if by_id { ErrorCode::UnknownTopicId } else { ErrorCode::UnknownTopicOrPartition };
        let mut codes = Vec::with_capacity(wanted.partitions.len());
        for partition in &wanted.partitions {
            let metadata = partition.metadata.clone().unwrap_or_default();
            let code = match topic {
                None => Some(unknown),
                Some(topic) if topic.partition(partition.partition).is_none() => {
                    Some(ErrorCode::UnknownTopicOrPartition)
                }
                Some(_) if metadata.len() > metadata_bytes_max(state) => {
                    Some(ErrorCode::OffsetMetadataTooLarge)
                }
                Some(topic) => {
                    let key = OffsetKey {
                        group: group.clone(),
                        topic: topic.name.clone(),
                        partition: partition.partition,
                    };
                    let commit = Commit {
                        offset: partition.offset,
                        leader_epoch: partition.leader_epoch,
                        metadata,
                        commit_timestamp: step.now.0,
                        expire_timestamp,
                        topic_id: topic.id,
                        log_offset: -1,
                    };
                    judged.records.push(record::encode(&key, &commit));
                    judged.partitions.push(TopicIdPartition { topic_id: topic.id, partition: key.partition });
                    None
                }
            };
            judged.missing |= code.is_some_and(|code| code != ErrorCode::OffsetMetadataTooLarge);
            codes.push(code);
        }
        judged.codes.push(codes);
    }
    judged
}

fn metadata_bytes_max(state: &ShardState) -> usize {
    usize::try_from(state.config.offset_metadata_max_bytes).unwrap_or_default()
}

/// Who commits, as the request says it.
pub(super) struct Committer<'a> {
    pub(super) group: &'a Text,
    /// -1 for somebody who is no member.
    pub(super) generation: i32,
    /// Empty for somebody who is no member.
    pub(super) member_id: &'a Text,
    pub(super) instance_id: Option<&'a Text>,
    /// With TxnOffsetCommit.
    pub(super) transactional: bool,
    /// Of the request.
    pub(super) version: i16,
    /// What it commits.
    pub(super) partitions: &'a [TopicIdPartition],
}

impl Committer<'_> {
    /// What a generation of an absent group is answered.
    fn absent(&self) -> ErrorCode {
        let by_name = if self.transactional { 6 } else { 9 };
        if self.version >= by_name { ErrorCode::GroupIdNotFound } else { ErrorCode::IllegalGeneration }
    }
}

/// Whether this group takes offsets from this committer. A group without members knows no generation and no
/// member, so whoever names one is unknown to it.
fn check_group(state: &ShardState, committer: &Committer<'_>, records: usize) -> Result<(), ErrorCode> {
    let groups = &state.groups;
    let exists = groups.exists(committer.group);
    match groups.protocol(committer.group) {
        Protocol::Classic(group) => group.check_commit(committer)?,
        Protocol::Consumer(group) => group.check_commit(committer)?,
        Protocol::None if committer.generation < 0 => {}
        Protocol::None if exists => return Err(ErrorCode::UnknownMemberId),
        Protocol::None => return Err(committer.absent()),
    }
    let limits = &state.config.limits;
    if !exists && groups.index.len() >= limits.groups_max
        || groups.values.saturating_add(records) > limits.group_offsets_max
    {
        return Err(ErrorCode::PolicyViolation);
    }
    Ok(())
}

/// What the answer rests on: this decision, or what was read.
fn rests_on(step: &Step<'_>, group: &Text, missing: bool) -> Position {
    if step.has_entries() {
        return step.position();
    }
    let topics = if missing { step.state.topics.rests_on() } else { Position::default() };
    step.state.groups.rests_on(group).max(topics)
}

/// Handles OffsetCommit.
pub(crate) fn offset_commit(step: &mut Step<'_>, context: &Context, request: OffsetCommitRequest) {
    let group = &request.group_id;
    let topics: Vec<WantedTopic> = request
        .topics
        .into_iter()
        .map(|topic| WantedTopic {
            name: topic.name,
            topic_id: topic.topic_id,
            partitions: topic
                .partitions
                .into_iter()
                .map(|partition| Wanted {
                    partition: partition.partition_index,
                    offset: partition.committed_offset,
                    leader_epoch: partition.committed_leader_epoch,
                    metadata: partition.committed_metadata,
                })
                .collect(),
        })
        .collect();
    let expire_timestamp = if request.retention_time_ms >= 0 {
        step.now.0.saturating_add(request.retention_time_ms)
    } else {
        -1
    };
    let judged = judge(step, group, &topics, context.version >= COMMIT_BY_ID, expire_timestamp);
    let committer = Committer {
        group,
        generation: request.generation_id_or_member_epoch,
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_ref(),
        transactional: false,
        version: context.version,
        partitions: &judged.partitions,
    };
    let outcome = check_group(step.state, &committer, judged.records.len());
    if outcome.is_ok()
        && let Some(classic) = step.state.groups.classic_mut(group)
    {
        classic.touch(step.now.0, &request.member_id);
    }
    if outcome.is_ok() && !judged.records.is_empty() {
        let partition = super::offsets_partition(step.state, group);
        step.append_records(partition, &judged.records, Stamp::NONE);
    }
    let shared = outcome.err().unwrap_or(ErrorCode::None);
    let response = OffsetCommitResponse {
        topics: topics
            .iter()
            .zip(&judged.codes)
            .map(|(topic, codes)| OffsetCommitResponseTopic {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                partitions: answers(topic, codes, shared)
                    .map(|(partition_index, error_code)| OffsetCommitResponsePartition {
                        partition_index,
                        error_code,
                        ..OffsetCommitResponsePartition::default()
                    })
                    .collect(),
                ..OffsetCommitResponseTopic::default()
            })
            .collect(),
        ..OffsetCommitResponse::default()
    };
    let rests_on = rests_on(step, group, judged.missing);
    step.answer(context.token, Reply::OffsetCommit(response), rests_on);
}

/// Partition and code of each partition of a topic; `shared` goes to those without an error of their own.
fn answers<'a>(
    topic: &'a WantedTopic,
    codes: &'a [Option<ErrorCode>],
    shared: ErrorCode,
) -> impl Iterator<Item = (i32, i16)> + 'a {
    let codes = codes.iter().map(move |code| code.unwrap_or(shared).code());
    topic.partitions.iter().map(|wanted| wanted.partition).zip(codes)
}

/// Handles TxnOffsetCommit.
pub(crate) fn txn_offset_commit(step: &mut Step<'_>, context: &Context, request: TxnOffsetCommitRequest) {
    let (group, id) = (&request.group_id, &request.transactional_id);
    let pair = Pair { producer_id: request.producer_id, producer_epoch: request.producer_epoch };
    let v1 = context.version < TXN_COMMIT_V2;
    if v1 && late(step, id, group, pair, context) {
        let rests_on = step.state.transactions.rests_on(id);
        return step.answer(context.token, txn::LATE, rests_on);
    }
    let topics: Vec<WantedTopic> = request
        .topics
        .into_iter()
        .map(|topic| WantedTopic {
            name: topic.name,
            topic_id: topic.topic_id,
            partitions: topic
                .partitions
                .into_iter()
                .map(|partition| Wanted {
                    partition: partition.partition_index,
                    offset: partition.committed_offset,
                    leader_epoch: partition.committed_leader_epoch,
                    metadata: partition.committed_metadata,
                })
                .collect(),
        })
        .collect();
    let judged = judge(step, group, &topics, context.version >= TXN_COMMIT_BY_ID, -1);
    let committer = Committer {
        group,
        generation: request.generation_id_or_member_epoch,
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_ref(),
        transactional: true,
        version: context.version,
        partitions: &judged.partitions,
    };
    let outcome = check_transaction(step.state, context.version, id, pair, group)
        .and_then(|partition| check_group(step.state, &committer, judged.records.len()).map(|()| partition))
        .and_then(|partition| {
            step.check_epoch(partition, pair.producer_id, pair.producer_epoch).map(|()| partition)
        });
    if let Ok(partition) = outcome
        && !judged.records.is_empty()
    {
        append(step, context, id, pair, group, partition, &judged.records);
    }
    let shared = outcome.err().unwrap_or(ErrorCode::None);
    let response = TxnOffsetCommitResponse {
        topics: topics
            .iter()
            .zip(&judged.codes)
            .map(|(topic, codes)| TxnOffsetCommitResponseTopic {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                partitions: answers(topic, codes, shared)
                    .map(|(partition_index, error_code)| TxnOffsetCommitResponsePartition {
                        partition_index,
                        error_code,
                        ..TxnOffsetCommitResponsePartition::default()
                    })
                    .collect(),
                ..TxnOffsetCommitResponseTopic::default()
            })
            .collect(),
        ..TxnOffsetCommitResponse::default()
    };
    let rests_on = rests_on(step, group, judged.missing).max(step.state.transactions.rests_on(id));
    step.answer(context.token, Reply::TxnOffsetCommit(response), rests_on);
}

/// A commit of protocol v1 for the current pair on an older connection than the last one for this group.
fn late(step: &mut Step<'_>, id: &Text, group: &Text, pair: Pair, context: &Context) -> bool {
    let is_current = step.state.transactions.get(id).is_some_and(|transaction| transaction.pair() == pair);
    is_current && step.state.volatile.fence.late_for_group(group, pair, context)
}

/// Whether the producer's transaction has, or may get, the partition that keeps the group's offsets.
fn check_transaction(
    state: &ShardState,
    version: i16,
    id: &Text,
    pair: Pair,
    group: &Text,
) -> Result<TopicIdPartition, ErrorCode> {
    if group.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let partition = super::offsets_partition(state, group);
    let outcome = if id.is_empty() {
        Err(Refusal::InvalidRequest)
    } else if version < TXN_COMMIT_V2 {
        txn::check(state, id, pair, &partition)
    } else {
        txn::may_add(state, id, pair, &[partition])
    };
    outcome.map(|()| partition).map_err(|refusal| refusal.code(Through::TxnOffsetCommit, version))
}

/// Writes the checked records into the transaction.
fn append(
    step: &mut Step<'_>,
    context: &Context,
    id: &Text,
    pair: Pair,
    group: &Text,
    partition: TopicIdPartition,
    records: &[NewRecord],
) {
    if context.version < TXN_COMMIT_V2 {
        step.state.volatile.fence.note_group(group, pair, context.connection);
    } else {
        txn::add(step, id, pair, 2, &[partition]).expect("checked above");
    }
    let stamp =
        Stamp { producer_id: pair.producer_id, producer_epoch: pair.producer_epoch, transactional: true };
    step.append_records(partition, records, stamp);
}
