//! Why a consumer cannot read or commit.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;

use super::group::GroupError;
use crate::cluster::ClusterError;
use crate::offsets::OffsetsError;
use crate::record::TopicPartition;

/// Why nothing can be read.
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
/// use ottla_client::{ConsumerError, StartAt, TopicPartition};
///
/// let at = TopicPartition::new("orders", 0);
/// consumer.assign(&[(at.clone(), StartAt::Offset(1_000))]).await?;
/// # let mut consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
/// # consumer.assign(&[(at.clone(), StartAt::Offset(1_000))]).await?;
/// let error = loop {
///     if let Err(error) = consumer.poll(Duration::from_secs(1)).await {
///         break error;
///     }
/// };
/// assert!(matches!(error, ConsumerError::OutOfRange { offset: 1_000, .. }));
/// assert!(!error.is_retriable()); // somebody has to decide where to go on
/// consumer.seek(&at, 0)?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConsumerError {
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Offsets cannot be looked up or committed.
    #[error(transparent)]
    Offsets(#[from] OffsetsError),
    /// Not a member of the group any more; `subscribe` begins anew.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Offsets were not committed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The position is outside of the log.
    #[error(
        "offset {offset} of {topic_partition} is not in the log any more, or not yet; seek to another, or set \
         auto.offset.reset"
    )]
    OutOfRange {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position.
        offset: i64,
    },
    /// The group has committed nothing, and nothing says where to begin.
    #[error("nothing was committed for {topic_partition}; seek, or set auto.offset.reset")]
    NoOffset {
        /// The partition.
        topic_partition: TopicPartition,
    },
    /// The log was cut below the position: records that were read are gone (an unclean change of leader).
    #[error(
        "the log of {topic_partition} was truncated below offset {offset}{}; seek to where to go on, or set \
         auto.offset.reset",
        divergent_offset.map_or_else(String::new, |first| format!(": from {first} on it is another one"))
    )]
    Truncated {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position.
        offset: i64,
        /// The first offset that may hold something else than what was read, when the broker knows.
        divergent_offset: Option<i64>,
    },
    /// The broker refused.
    #[error("reading {topic_partition} was refused with {code}")]
    Refused {
        /// The partition.
        topic_partition: TopicPartition,
        /// What it said.
        code: ErrorCode,
    },
    /// What came cannot be read.
    #[error("{topic_partition} is damaged at or behind offset {offset}: {problem}; seek past it to go on")]
    Damaged {
        /// The partition.
        topic_partition: TopicPartition,
        /// Where.
        offset: i64,
        /// What is wrong.
        problem: String,
    },
    /// The partition is not assigned.
    #[error("{topic_partition} is not assigned to this consumer")]
    NotAssigned {
        /// The partition.
        topic_partition: TopicPartition,
    },
    /// Partitions cannot be assigned by hand while the group assigns them.
    #[error("the consumer has a subscription; unsubscribe before assigning partitions by hand")]
    Subscribed,
}

impl ConsumerError {
    /// Whether the same may work later without anybody's doing.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Cluster(error) => error.is_retriable(),
            Self::Offsets(error) => error.is_retriable(),
            Self::Commit(error) => error.is_retriable(),
            Self::Group(_)
            | Self::OutOfRange { .. }
            | Self::NoOffset { .. }
            | Self::Truncated { .. }
            | Self::Refused { .. }
            | Self::Damaged { .. }
            | Self::NotAssigned { .. }
            | Self::Subscribed => false,
        }
    }
}

/// Why offsets were not committed.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{CommitError, Consumer, ConsumerSettings};
///
/// let consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
/// let error = consumer.commit_positions().await.expect_err("there is no group");
/// assert!(matches!(error, CommitError::NoGroup));
/// assert!(!error.is_retriable());
/// assert!(CommitError::RebalanceInProgress { group_id: "shop".into() }.is_retriable()); // behind a `poll`
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// `group.id` is not set.
    #[error("`group.id` is not set; offsets are committed for a group")]
    NoGroup,
    /// The group is rebalancing. `poll` takes part in it; then what is still owned can be committed.
    #[error("group `{group_id}` is rebalancing; poll, then commit what is still assigned")]
    RebalanceInProgress {
        /// The group.
        group_id: Text,
    },
    /// The consumer is not a member any more: its partitions may be somebody else's, who starts from what was
    /// committed before.
    #[error(
        "the consumer is not a member of group `{group_id}` any more ({code}); records since the last commit may be \
         read again by another member: poll more often, or raise max.poll.interval.ms"
    )]
    NotMember {
        /// The group.
        group_id: Text,
        /// What the coordinator said.
        code: ErrorCode,
    },
    /// Too many commits wait for their answers.
    #[error("{waiting} commits wait for their answers; wait for one of them")]
    TooMany {
        /// How many.
        waiting: usize,
    },
    /// The coordinator refused, or cannot be asked.
    #[error(transparent)]
    Offsets(#[from] OffsetsError),
    /// The consumer was closed before the commit was answered; it may have been carried out.
    #[error("the consumer was closed before the commit was answered")]
    Closed,
}

impl CommitError {
    /// Whether the same may work later: behind a `poll`, or when the cluster can be reached again.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::RebalanceInProgress { .. } | Self::TooMany { .. } => true,
            Self::Offsets(error) => error.is_retriable(),
            Self::NoGroup | Self::NotMember { .. } | Self::Closed => false,
        }
    }
}
