//! Where to begin: what the group has committed, else what `auto.offset.reset` says; and whether the log was cut
//! below a position while its leader changed (KIP-320).

use std::collections::BTreeMap;

use ottla_env::clock::{Clock, OsClock};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::OffsetForLeaderEpochRequest;
use ottla_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use ottla_protocol::types::Text;

use super::error::ConsumerError;
use super::fetcher::Position;
use super::group::Shared;
use super::settings::{ConsumerSettings, IsolationLevel, OffsetReset};
use crate::cluster::Cluster;
use crate::connection::Versions;
use crate::error::{CallError, wants_metadata};
use crate::offsets::{self, EARLIEST, LATEST, OffsetsError};
use crate::record::TopicPartition;

const OFFSET_FOR_LEADER_EPOCH: Versions = Versions::new(3, 4);

/// A partition without a position.
#[derive(Debug)]
pub(super) struct Sought {
    pub(super) at: TopicPartition,
    pub(super) generation: u64,
    /// The committed offset first.
    pub(super) committed: bool,
}

/// A position that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
}

/// The outcome for one partition.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) at: TopicPartition,
    pub(super) generation: u64,
    pub(super) found: Result<Found, ConsumerError>,
}

/// A position that is to be validated in the log of a leader of epoch `in_epoch`.
#[derive(Debug)]
pub(super) struct ToValidate {
    pub(super) at: TopicPartition,
    pub(super) generation: u64,
    pub(super) position: Position,
    pub(super) in_epoch: i32,
}

/// The outcome of a validation. `end`: the end of the position's epoch in the log, -1 when the epoch is unknown
/// there; absent: nothing is known, ask again.
#[derive(Debug)]
pub(super) struct Validated {
    pub(super) asked: ToValidate,
    pub(super) end: Option<i64>,
}

/// Finds positions.
pub(super) async fn look_up(
    cluster: &Cluster,
    settings: &ConsumerSettings,
    member: Option<&Shared>,
    sought: Vec<Sought>,
) -> Vec<Looked> {
    let (from_group, rest): (Vec<_>, Vec<_>) =
        sought.into_iter().partition(|sought| sought.committed && settings.group_id.is_some());
    let mut looked = Vec::new();
    let mut to_reset = rest;
    if !from_group.is_empty() {
        let partitions: Vec<_> = from_group.iter().map(|sought| sought.at.clone()).collect();
        let group_id = settings.group_id.as_ref().expect("just filtered by it");
        let stable = settings.isolation == IsolationLevel::ReadCommitted;
        let member = member.filter(|member| member.is_member()).map(Shared::identity);
        let asked = offsets::committed_by(cluster, group_id, Some(&partitions), stable, member).await;
        match asked {
            Ok(committed) => {
                let committed: BTreeMap<_, _> = committed
                    .into_iter()
                    .filter_map(|found| {
                        let offset = found.offset?;
                        Some((found.topic_partition, Found { offset, leader_epoch: found.leader_epoch }))
                    })
                    .collect();
                for Sought { at, generation, .. } in from_group {
                    match committed.get(&at) {
                        Some(found) => looked.push(Looked { at, generation, found: Ok(*found) }),
                        None => to_reset.push(Sought { at, generation, committed: false }),
                    }
                }
            }
            // the member's epoch has moved on, or the membership has ended: the group's next event is about it
            Err(OffsetsError::Group {
                group_id,
                code: ErrorCode::StaleMemberEpoch | ErrorCode::FencedMemberEpoch | ErrorCode::UnknownMemberId,
            }) => {
                let error = OffsetsError::Group { group_id, code: ErrorCode::StaleMemberEpoch };
                looked.extend(all_failed(from_group, &error.into()));
            }
            Err(error) => looked.extend(all_failed(from_group, &error.into())),
        }
    }
    looked.extend(reset(cluster, settings, to_reset).await);
    looked
}

fn all_failed(sought: Vec<Sought>, error: &ConsumerError) -> Vec<Looked> {
    let failed = |Sought { at, generation, .. }| Looked { at, generation, found: Err(error.clone()) };
    sought.into_iter().map(failed).collect()
}

/// Positions as `auto.offset.reset` says.
async fn reset(cluster: &Cluster, settings: &ConsumerSettings, sought: Vec<Sought>) -> Vec<Looked> {
    if sought.is_empty() {
        return Vec::new();
    }
    let timestamp = match settings.offset_reset {
        OffsetReset::Earliest => EARLIEST,
        OffsetReset::Latest => LATEST,
        OffsetReset::ByDuration(duration) => {
            let back = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
            OsClock.wall_ms().saturating_sub(back).max(0)
        }
        OffsetReset::None => {
            let none = |Sought { at, generation, .. }: Sought| Looked {
                found: Err(ConsumerError::NoOffset { topic_partition: at.clone() }),
                at,
                generation,
            };
            return sought.into_iter().map(none).collect();
        }
    };
    let wanted = sought.iter().map(|sought| (sought.at.clone(), timestamp)).collect();
    let isolation = settings.isolation.code();
    let found = async {
        let mut found = offsets::list(cluster, isolation, wanted).await?;
        let later: BTreeMap<_, _> =
            found.iter().filter(|(_, found)| found.is_none()).map(|(at, _)| (at.clone(), LATEST)).collect();
        if !later.is_empty() {
            found.extend(offsets::list(cluster, isolation, later).await?);
        }
        Ok::<_, ConsumerError>(found)
    };
    match found.await {
        Ok(found) => {
            let looked = |Sought { at, generation, .. }| {
                let offset = found.get(&at).copied().flatten().map_or(0, |found| found.offset);
                Looked { at, generation, found: Ok(Found { offset, leader_epoch: -1 }) }
            };
            sought.into_iter().map(looked).collect()
        }
        Err(error) => all_failed(sought, &error),
    }
}

/// Asks a leader where the epochs of positions end in its log.
pub(super) async fn validate(cluster: &Cluster, node_id: i32, asked: Vec<ToValidate>) -> Vec<Validated> {
    let mut topics: BTreeMap<Text, OffsetForLeaderTopic> = BTreeMap::new();
    for ToValidate { at, position, in_epoch, .. } in &asked {
        let topic = topics.entry(at.topic.clone()).or_default();
        topic.topic = at.topic.clone();
        topic.partitions.push(OffsetForLeaderPartition {
            partition: at.partition,
            current_leader_epoch: *in_epoch,
            leader_epoch: position.leader_epoch,
            ..OffsetForLeaderPartition::default()
        });
    }
    let request = OffsetForLeaderEpochRequest {
        replica_id: -1,
        topics: topics.into_values().collect(),
        ..OffsetForLeaderEpochRequest::default()
    };
    let answer = cluster.call_node(node_id, &request, OFFSET_FOR_LEADER_EPOCH).await;
    let answer = match answer {
        Ok(answer) => Some(answer),
        // an old broker: positions are taken as they are
        Err(CallError::Unsupported { .. }) => {
            return asked.into_iter().map(|asked| Validated { asked, end: Some(i64::MAX) }).collect();
        }
        Err(error) => {
            tracing::debug!(%error, "positions cannot be validated now");
            None
        }
    };
    let outcome = |asked: ToValidate| {
        let at = &asked.at;
        let topics = answer.iter().flat_map(|answer| &answer.topics).filter(|topic| topic.topic == at.topic);
        let mut partitions = topics.flat_map(|topic| &topic.partitions);
        let found = partitions.find(|partition| partition.partition == at.partition);
        let end = found.and_then(|found| match ErrorCode::from_code(found.error_code) {
            ErrorCode::None if found.leader_epoch < 0 => Some(-1),
            ErrorCode::None => Some(found.end_offset),
            code => {
                if wants_metadata(code) {
                    cluster.forget_topic(&at.topic);
                }
                None
            }
        });
        if answer.is_none() {
            cluster.forget_topic(&at.topic);
        }
        Validated { asked, end }
    };
    asked.into_iter().map(outcome).collect()
}
