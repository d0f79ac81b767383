//! Offsets by request: of a log by position or time, and of a group, with or without membership.
//!
//! Shared by consumer and admin. Partitions are asked for at their leaders, all of one leader in one request;
//! those that answer "not here" or "not yet" are asked for again until the deadline.

mod group;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::ListOffsetsRequest;
use ottla_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use ottla_protocol::types::Text;

use crate::cluster::{Cluster, ClusterError};
use crate::connection::Versions;
use crate::error::wants_metadata;
use crate::record::TopicPartition;

pub(crate) use group::{commit, committed, committed_by};

const LIST_OFFSETS: Versions = Versions::new(5, 10);

/// The end of a log.
pub(crate) const LATEST: i64 = -1;
/// The start of a log.
pub(crate) const EARLIEST: i64 = -2;

/// An offset and the time of its record.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # use std::time::Duration;
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
/// # producer.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// # let settings = ConsumerSettings::new(client.clone()).group_id("shop").offset_reset(OffsetReset::Earliest);
/// # let mut consumer = Consumer::connect(settings).await?;
/// # consumer.assign(&[(TopicPartition::new("orders", 0), StartAt::Beginning)]).await?;
/// let at = TopicPartition::new("orders", 0);
/// let found = consumer.offsets_for_times(&[(at.clone(), 1_700_000_000_000)]).await?;
/// if let Some(found) = found[&at] {
///     println!("offset {} was written at {} ms", found.offset, found.timestamp);
/// }
/// # assert!(found[&at].is_some());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetAndTimestamp {
    /// The offset.
    pub offset: i64,
    /// Timestamp of the record there in ms; -1 when the offset was not found by time.
    pub timestamp: i64,
}

/// Why offsets are not known.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{ClusterError, OffsetsError, TopicPartition, admin::AdminError};
///
/// let error = admin.high_watermarks(&[TopicPartition::new("nothing", 0)]).await.expect_err("no such topic");
/// let AdminError::Offsets(error) = error else { panic!("{error}") };
/// assert!(matches!(error, OffsetsError::Cluster(ClusterError::NoSuchTopic { .. })));
/// assert!(!error.is_retriable());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum OffsetsError {
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The leader refused.
    #[error("the offsets of {topic_partition} were refused with {code}")]
    Partition {
        /// The partition.
        topic_partition: TopicPartition,
        /// What the broker said.
        code: ErrorCode,
    },
    /// The group's coordinator refused.
    #[error("the offsets of group `{group_id}` were refused with {code}")]
    Group {
        /// The group.
        group_id: Text,
        /// What the broker said.
        code: ErrorCode,
    },
}

impl OffsetsError {
    /// Whether the same may work later.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Cluster(error) => error.is_retriable(),
            Self::Group { code: ErrorCode::StaleMemberEpoch, .. } => true,
            Self::Partition { code, .. } | Self::Group { code, .. } => code.is_retriable(),
        }
    }
}

type Wanted = BTreeMap<TopicPartition, i64>;
type Found = BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>;

/// Looks up offsets by timestamp, `LATEST` or `EARLIEST`; absent where no record is that young.
pub(crate) async fn list(
    cluster: &Cluster,
    isolation: i8,
    mut wanted: Wanted,
) -> Result<Found, OffsetsError> {
    let (since, deadline) = (time::now(), cluster.deadline());
    let mut backoff = cluster.backoff();
    let mut found = Found::new();
    loop {
        let mut by_leader: BTreeMap<i32, Wanted> = BTreeMap::new();
        for (at, timestamp) in &wanted {
            let leader = cluster.leader(&at.topic, at.partition, since).await?;
            by_leader.entry(leader).or_default().insert(at.clone(), *timestamp);
        }
        let mut last = None;
        for (leader, asked) in by_leader {
            match ask(cluster, leader, isolation, &asked).await {
                Ok(answers) => {
                    for (at, answer) in answers {
                        match answer {
                            Ok(offset) => {
                                wanted.remove(&at);
                                found.insert(at, offset);
                            }
                            Err(code) if code.is_retriable() => {
                                if wants_metadata(code) {
                                    cluster.forget_topic(&at.topic);
                                }
                                last = Some(OffsetsError::Partition { topic_partition: at, code });
                            }
                            Err(code) => return Err(OffsetsError::Partition { topic_partition: at, code }),
                        }
                    }
                }
                Err(error) if error.is_retriable() => {
                    asked.keys().for_each(|at| cluster.forget_topic(&at.topic));
                    last = Some(error.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        if wanted.is_empty() {
            return Ok(found);
        }
        let until = time::now() + backoff.next();
        if until >= deadline {
            let first = wanted.keys().next().cloned().expect("wanted is not empty");
            let code = ErrorCode::UnknownServerError;
            return Err(last.unwrap_or(OffsetsError::Partition { topic_partition: first, code }));
        }
        time::sleep_until(until).await;
    }
}

type Answers = Vec<(TopicPartition, Result<Option<OffsetAndTimestamp>, ErrorCode>)>;

/// Asks one leader, once.
async fn ask(
    cluster: &Cluster,
    leader: i32,
    isolation: i8,
    wanted: &Wanted,
) -> Result<Answers, ClusterError> {
    let mut topics: BTreeMap<Text, ListOffsetsTopic> = BTreeMap::new();
    for (at, timestamp) in wanted {
        let topic = topics.entry(at.topic.clone()).or_default();
        topic.name = at.topic.clone();
        topic.partitions.push(ListOffsetsPartition {
            partition_index: at.partition,
            timestamp: *timestamp,
            ..ListOffsetsPartition::default()
        });
    }
    let request = ListOffsetsRequest {
        replica_id: -1,
        isolation_level: isolation,
        topics: topics.into_values().collect(),
        timeout_ms: i32::try_from(cluster.settings().request_timeout.as_millis()).unwrap_or(i32::MAX),
        ..ListOffsetsRequest::default()
    };
    let answer = cluster.call_node(leader, &request, LIST_OFFSETS).await?;
    let mut answers = Vec::new();
    for topic in &answer.topics {
        for partition in &topic.partitions {
            let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
            if !wanted.contains_key(&at) {
                continue;
            }
            let offset = OffsetAndTimestamp { offset: partition.offset, timestamp: partition.timestamp };
            let result = match ErrorCode::from_code(partition.error_code) {
                ErrorCode::None => Ok((offset.offset >= 0).then_some(offset)),
                code => Err(code),
            };
            answers.push((at, result));
        }
    }
    Ok(answers)
}
