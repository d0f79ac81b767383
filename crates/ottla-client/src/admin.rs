//! Administration: topics and their settings, offsets, transactions and who holds them open.
//!
//! Place: one object with a `Cluster` of its own; every call is one question to the right broker, repeated while
//! the answer is "not now" or "not here", until `default.api.timeout.ms`.
//!
//! What it does not do: anything destructive twice. A call whose answer was lost is repeated, and where the
//! repetition finds its own work done ("already exists", "does not exist"), that is success only when the first
//! attempt may have happened.

mod configs;
mod topics;
mod transactions;

use std::collections::BTreeMap;

use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::Request;
use ottla_protocol::types::Text;

use crate::cluster::{Cluster, ClusterError, Lane};
use crate::connection::Versions;
use crate::error::{CallError, wants_metadata};
use crate::offsets::{self, EARLIEST, LATEST, OffsetAndTimestamp, OffsetsError};
use crate::record::{CommittedOffset, TopicPartition};
use crate::settings::ClientSettings;

pub use crate::offsets::OffsetAndTimestamp as ListedOffset;
pub use configs::{AlterConfig, ConfigEntry, ConfigOperation, ConfigResource};
pub use topics::{NewTopic, TopicDescription};
pub use transactions::{
    AbortTransaction, ProducerState, TransactionDescription, TransactionFilter, TransactionListing,
};

/// Why the cluster did not do it.
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
            Self::Cluster(_) | Self::Offsets(OffsetsError::Cluster(_)) => None,
        }
    }

    /// `Ok` for "none", else a refusal.
    fn check(code: i16, message: Option<&Text>, what: impl FnOnce() -> String) -> Result<(), Self> {
        match ErrorCode::from_code(code) {
            ErrorCode::None => Ok(()),
            code => Err(Self::Refused { what: what(), code, message: message.map(Text::detached) }),
        }
    }
}

/// Asks a cluster for changes and for facts.
///
/// ```no_run
/// # use ottla_client::{Admin, ClientSettings, admin::NewTopic};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let admin = Admin::connect(ClientSettings::new("127.0.0.1:9092")?).await?;
/// admin.create_topic(&NewTopic::new("orders", 3).config("cleanup.policy", "compact")).await?;
/// # Ok(())
/// # }
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

    /// Sends a request to the controller, or any broker while it is unknown, until an answer is final. `code`
    /// reads the answer's error; the second value is true when an earlier attempt may have been carried out.
    async fn call_controller<R: Request>(
        &self,
        request: &R,
        usable: Versions,
        code: impl Fn(&R::Response) -> ErrorCode,
    ) -> Result<(R::Response, bool), AdminError> {
        let (started, deadline) = (time::now(), self.cluster.deadline());
        let mut backoff = self.cluster.backoff();
        let mut may_have_happened = false;
        loop {
            match self.attempt(request, usable).await {
                Ok(answer) => {
                    let code = code(&answer);
                    let until = time::now() + backoff.next();
                    let again = code.is_retriable() && code != ErrorCode::UnknownTopicOrPartition;
                    if !again || until >= deadline {
                        return Ok((answer, may_have_happened));
                    }
                    may_have_happened |= code == ErrorCode::RequestTimedOut;
                    if code == ErrorCode::NotController {
                        self.cluster.refresh_brokers(deadline).await?;
                    }
                    time::sleep_until(until).await;
                }
                Err(error) if error.is_retriable() => {
                    may_have_happened |= error.may_have_happened();
                    self.cluster.pause(&mut backoff, deadline, started, error).await?;
                }
                Err(error) => return Err(ClusterError::from(error).into()),
            }
        }
    }

    async fn attempt<R: Request>(&self, request: &R, usable: Versions) -> Result<R::Response, CallError> {
        let connection = match self.cluster.controller() {
            Some(node_id) => self.cluster.node(node_id, Lane::Control).await,
            None => self.cluster.any().await,
        };
        connection?.call(request, usable).await
    }

    /// Sends a request about one partition to its leader until an answer is final.
    async fn call_leader<R: Request>(
        &self,
        at: &TopicPartition,
        request: &R,
        usable: Versions,
        code: impl Fn(&R::Response) -> ErrorCode,
    ) -> Result<R::Response, AdminError> {
        let (started, deadline): (Instant, Instant) = (time::now(), self.cluster.deadline());
        let mut backoff = self.cluster.backoff();
        loop {
            let leader = self.cluster.leader(&at.topic, at.partition).await?;
            match self.cluster.call_node(leader, request, usable).await {
                Ok(answer) => {
                    let code = code(&answer);
                    let until = time::now() + backoff.next();
                    if !code.is_retriable() || until >= deadline {
                        return Ok(answer);
                    }
                    if wants_metadata(code) {
                        self.cluster.forget_topic(&at.topic);
                    }
                    time::sleep_until(until).await;
                }
                Err(error) if error.is_retriable() => {
                    self.cluster.forget_topic(&at.topic);
                    self.cluster.pause(&mut backoff, deadline, started, error).await?;
                }
                Err(error) => return Err(ClusterError::from(error).into()),
            }
        }
    }

    /// Offsets of the first records still there. Cancel-safe.
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
        let found = offsets::list(&self.cluster, isolation, wanted).await?;
        Ok(found.into_iter().map(|(at, found)| (at, found.map_or(0, |found| found.offset))).collect())
    }

    /// Offsets of the first records not older than the given times (ms). Cancel-safe.
    pub async fn offsets_for_times(
        &self,
        times: &[(TopicPartition, i64)],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, AdminError> {
        let wanted = times.iter().map(|(at, time)| (at.clone(), (*time).max(0))).collect();
        Ok(offsets::list(&self.cluster, 0, wanted).await?)
    }

    /// Everything a group has committed. Cancel-safe.
    pub async fn group_offsets(&self, group_id: &Text) -> Result<Vec<CommittedOffset>, AdminError> {
        Ok(offsets::committed(&self.cluster, group_id, None).await?)
    }
}
