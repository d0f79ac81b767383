//! Administration: topics, settings, offsets, groups, transactions, and the cluster itself.
//!
//! Place: one object with a `Cluster` of its own. Every call asks the right brokers, all items of one broker in one
//! request where the protocol allows it, and asks again while the answer is "not now" or "not here", until
//! `default.api.timeout.ms` (`items`). A batched call gives a result per item; one item's error is no other's.
//!
//! What it does not do: anything destructive twice. A call whose answer was lost is repeated, and where the
//! repetition finds its own work done ("already exists", "does not exist"), that is success only when the first
//! attempt may have happened.

mod brokers;
mod configs;
mod epochs;
mod groups;
mod items;
mod members;
mod offsets;
mod topics;
mod transactions;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;

use crate::cluster::{Cluster, ClusterError};
use crate::error::CallError;
use crate::offsets::{EARLIEST, LATEST, OffsetAndTimestamp, OffsetsError};
use crate::record::TopicPartition;
use crate::settings::ClientSettings;

pub use crate::offsets::OffsetAndTimestamp as ListedOffset;
pub use brokers::{
    ClusterDescription, Election, Feature, FeatureUpgrade, LogDir, Quorum, QuorumMember, Reassignment,
};
pub use configs::{AlterConfig, ConfigEntry, ConfigOperation, ConfigResource, ConfigSource, ConfigSynonym};
pub use epochs::EpochEnd;
pub use groups::{GroupDescription, GroupFilter, GroupListing, GroupType, MemberDescription};
pub use items::Results;
pub use offsets::OffsetSpec;
pub use topics::{CreatedTopic, NewTopic, PartitionDetails, TopicDescription, TopicDetails, TopicRef};
pub use transactions::{
    AbortTransaction, FencedProducer, ProducerState, TransactionDescription, TransactionFilter,
    TransactionListing,
};

/// Why the cluster did not do it.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{Admin, ErrorCode, admin::NewTopic};
///
/// let admin = Admin::connect(client).await?;
/// let error = admin.create_topic(&NewTopic::new("orders", 1)).await.expect_err("it exists");
/// assert_eq!(error.code(), Some(ErrorCode::TopicAlreadyExists));
/// assert!(!error.is_unsupported());
/// println!("{error}"); // topic `orders` was refused with TOPIC_ALREADY_EXISTS: ...
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum AdminError {
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Offsets cannot be looked up.
    #[error(transparent)]
    Offsets(#[from] OffsetsError),
    /// The broker refused.
    #[error("{what} was refused with {code}{}", message.as_ref().map_or_else(String::new, |m| format!(": {m}")))]
    Refused {
        /// What was asked for.
        what: String,
        /// What it said.
        code: ErrorCode,
        /// Its words.
        message: Option<Text>,
    },
    /// The broker answered, but left this out.
    #[error("{what}: the broker's answer leaves it out")]
    Unanswered {
        /// What was asked for.
        what: String,
    },
}

impl AdminError {
    /// The broker's code, when it refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. }
            | Self::Offsets(OffsetsError::Partition { code, .. } | OffsetsError::Group { code, .. }) => {
                Some(*code)
            }
            Self::Cluster(ClusterError::Refused { code, .. }) => Some(*code),
            Self::Cluster(_) | Self::Offsets(OffsetsError::Cluster(_)) | Self::Unanswered { .. } => None,
        }
    }

    /// Whether the broker is too old for the call.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Cluster(ClusterError::Call(CallError::Unsupported { .. })))
    }
}

/// Asks a cluster for changes and for facts.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// use ottla_client::{Admin, ClientSettings, admin::NewTopic};
///
/// let admin = Admin::connect(ClientSettings::new(bootstrap)?).await?;
/// admin.create_topic(&NewTopic::new("orders", 3).config("cleanup.policy", "compact")).await?;
/// println!("{:?}", admin.cluster().topic(&"orders".into()).await?.leaders);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    cluster: Cluster,
}

impl Admin {
    /// Connects. Cancel-safe.
    pub async fn connect(settings: ClientSettings) -> Result<Self, ClusterError> {
        Ok(Self { cluster: Cluster::connect(settings).await? })
    }

    /// The cluster, to look up topics and brokers.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn timeout_ms(&self) -> i32 {
        i32::try_from(self.cluster.settings().request_timeout.as_millis()).unwrap_or(i32::MAX)
    }

    /// Offsets of the first records still there. Cancel-safe.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let client = ClientSettings::new(bootstrap)?;
    /// # let admin = Admin::connect(client.clone()).await?;
    /// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
    /// # let producer = TransactionalProducer::init(TransactionalSettings::new(client.clone(), "worker")).await?;
    /// # let mut producer = producer;
    /// # let transaction = producer.begin().await?;
    /// # transaction.send(Record::to("orders").value("a lamp")).await?;
    /// # transaction.flush().await?;
    /// use ottla_client::TopicPartition;
    ///
    /// // one record in a transaction that is still open
    /// let partitions = [TopicPartition::new("orders", 0)];
    /// let first = admin.beginning_offsets(&partitions).await?;
    /// let written = admin.high_watermarks(&partitions).await?;
    /// let readable = admin.last_stable_offsets(&partitions).await?;
    /// assert_eq!((first[&partitions[0]], readable[&partitions[0]], written[&partitions[0]]), (0, 0, 1));
    ///
    /// let since_1970 = admin.offsets_for_times(&[(partitions[0].clone(), 0)]).await?;
    /// assert_eq!(since_1970[&partitions[0]].map(|found| found.offset), Some(0));
    /// # Ok(())
    /// # });
    /// ```
    pub async fn beginning_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, AdminError> {
        self.ends(partitions, EARLIEST, 0).await
    }

    /// High watermarks: offsets behind the last records, committed or not. Cancel-safe.
    pub async fn high_watermarks(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, AdminError> {
        self.ends(partitions, LATEST, 0).await
    }

    /// Last stable offsets: where `read_committed` readers stop. Cancel-safe.
    pub async fn last_stable_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, AdminError> {
        self.ends(partitions, LATEST, 1).await
    }

    async fn ends(
        &self,
        partitions: &[TopicPartition],
        which: i64,
        isolation: i8,
    ) -> Result<BTreeMap<TopicPartition, i64>, AdminError> {
        let wanted = partitions.iter().map(|at| (at.clone(), which)).collect();
        let found = crate::offsets::list(&self.cluster, isolation, wanted).await?;
        Ok(found.into_iter().map(|(at, found)| (at, found.map_or(0, |found| found.offset))).collect())
    }

    /// Offsets of the first records not older than the given times (ms). Cancel-safe.
    pub async fn offsets_for_times(
        &self,
        times: &[(TopicPartition, i64)],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, AdminError> {
        let wanted = times.iter().map(|(at, time)| (at.clone(), (*time).max(0))).collect();
        Ok(crate::offsets::list(&self.cluster, 0, wanted).await?)
    }
}
