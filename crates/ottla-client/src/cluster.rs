//! The cluster as a client sees it: where brokers, leaders and coordinators are, and one connection to each.
//!
//! Place: between the connections below and producer, consumer and admin above. Each of those has a `Cluster`
//! of its own, because a Fetch that waits at the broker holds up whatever is behind it on its connection; for
//! the same reason a node has two connections, one per `Lane`.
//!
//! Invariants: a broker that is away is tried again with growing pauses until the caller's deadline; only one
//! attempt per node and lane runs at a time; metadata is replaced per topic, as a whole.

mod coordinator;
mod metadata;
mod nodes;

use std::sync::{Arc, Mutex, MutexGuard};

use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::Request;
use ottla_protocol::types::{Text, Uuid};

use crate::backoff::Backoff;
use crate::connection::{Connection, Finalized, Versions};
use crate::error::CallError;
use crate::settings::{ClientSettings, SettingError};

pub(crate) use coordinator::CoordinatorKind;
use metadata::View;
pub use metadata::{NodeAddress, TopicMetadata};
pub(crate) use nodes::Lane;
use nodes::Nodes;

/// Why the cluster cannot be asked.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{Cluster, ClusterError};
///
/// let cluster = Cluster::connect(client).await?;
/// let error = cluster.topic(&"nothing".into()).await.expect_err("there is no such topic");
/// assert!(matches!(error, ClusterError::NoSuchTopic { .. }));
/// assert!(!error.is_retriable());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClusterError {
    /// A setting is out of its bounds.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// No broker answered.
    #[error("no broker of the cluster answered within {waited_ms} ms: {last}")]
    Unreachable {
        /// How long it was tried.
        waited_ms: u128,
        /// The last failure.
        last: CallError,
    },
    /// The topic, or its partition, does not exist.
    #[error("topic `{topic}` {problem}; create it first, or check its name")]
    NoSuchTopic {
        /// The topic.
        topic: Text,
        /// What is missing.
        problem: String,
    },
    /// No topic has this id.
    #[error("no topic has the id {topic_id}; it was deleted")]
    NoSuchTopicId {
        /// The topic's id.
        topic_id: Uuid,
    },
    /// The broker refused to tell.
    #[error("{what}: the broker answered {code}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Its answer.
        code: ErrorCode,
    },
    /// Cannot be repaired by trying again.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl ClusterError {
    /// Whether the same may work later.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { code, .. } => code.is_retriable(),
            Self::Call(error) => error.is_retriable(),
            Self::Setting(_) | Self::NoSuchTopic { .. } | Self::NoSuchTopicId { .. } => false,
        }
    }
}

/// A cluster, found through its bootstrap addresses. Clones share connections and metadata.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::Cluster;
///
/// let cluster = Cluster::connect(client).await?;
/// println!("{:?}: {} brokers", cluster.cluster_id(), cluster.nodes().len());
/// println!("asked for at most {:?}", cluster.settings().api_timeout);
/// let orders = cluster.topic(&"orders".into()).await?;
/// let names: Vec<_> = cluster.list_topics().await?.iter().map(|topic| topic.name.clone()).collect();
/// assert!(names.contains(&orders.name));
/// let version = cluster.finalized("transaction.version").await?.map(|finalized| finalized.level);
/// println!("{} partitions, transactions in version {version:?}", orders.partition_count());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Arc<ClientSettings>,
    view: Mutex<View>,
    nodes: Nodes,
    /// Only one refresh of metadata at a time; who waited uses what the other fetched.
    refreshing: tokio::sync::Mutex<()>,
}

impl Cluster {
    /// Connects to the first bootstrap address that answers and learns the brokers. Cancel-safe.
    pub async fn connect(settings: ClientSettings) -> Result<Self, ClusterError> {
        settings.check()?;
        let settings = Arc::new(settings);
        let cluster = Self {
            inner: Arc::new(Shared {
                nodes: Nodes::new(Arc::clone(&settings)),
                settings,
                view: Mutex::default(),
                refreshing: tokio::sync::Mutex::new(()),
            }),
        };
        cluster.refresh(&[], cluster.deadline()).await?;
        Ok(cluster)
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &ClientSettings {
        &self.inner.settings
    }

    /// When a call that begins now gives up (`default.api.timeout.ms`).
    pub(crate) fn deadline(&self) -> Instant {
        time::now() + self.inner.settings.api_timeout
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.inner.settings.retry_backoff, self.inner.settings.retry_backoff_max)
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.inner.view.lock().expect("no holder of this lock panics")
    }

    /// A connection to a node, made when there is none. One attempt; waits out the pause after a failed one.
    pub(crate) async fn node(&self, node_id: i32, lane: Lane) -> Result<Connection, CallError> {
        let address = self.view().address(node_id);
        match address {
            Some(address) => self.inner.nodes.connection(node_id, lane, &address).await,
            None => Err(CallError::Connect {
                address: format!("node {node_id}"),
                reason: "the cluster does not list this broker".to_owned(),
            }),
        }
    }

    /// A connection to any broker: a known one, else a bootstrap address. One round of attempts.
    pub(crate) async fn any(&self) -> Result<Connection, CallError> {
        let mut last = None;
        let known = self.view().node_ids();
        for node_id in known {
            match self.node(node_id, Lane::Control).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        for (index, server) in self.inner.settings.bootstrap_servers.iter().enumerate() {
            match self.inner.nodes.bootstrap(index, &server.to_string()).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("settings have at least one bootstrap address"))
    }

    /// Sends a request to any broker until one answers or the deadline passes.
    pub(crate) async fn call_any<R: Request>(
        &self,
        request: &R,
        usable: Versions,
        deadline: Instant,
    ) -> Result<R::Response, ClusterError> {
        let started = time::now();
        let mut backoff = self.backoff();
        loop {
            let result = match self.any().await {
                Ok(connection) => connection.call(request, usable).await,
                Err(error) => Err(error),
            };
            let error = match result {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_retriable() => error,
                Err(error) => return Err(error.into()),
            };
            self.pause(&mut backoff, deadline, started, error).await?;
        }
    }

    /// Waits before the next attempt; `Unreachable` when there is no time for one.
    pub(crate) async fn pause(
        &self,
        backoff: &mut Backoff,
        deadline: Instant,
        started: Instant,
        last: CallError,
    ) -> Result<(), ClusterError> {
        let until = time::now() + backoff.next();
        if until >= deadline {
            return Err(ClusterError::Unreachable { waited_ms: started.elapsed().as_millis(), last });
        }
        tracing::debug!(error = %last, "request failed, will be repeated");
        time::sleep_until(until).await;
        Ok(())
    }

    /// The finalized level of a feature, as the newest epoch among the open connections tells it; asks any broker
    /// when none is open. Absent when the feature is not finalized. Cancel-safe.
    pub async fn finalized(&self, feature: &str) -> Result<Option<Finalized>, ClusterError> {
        let deadline = self.deadline();
        let started = time::now();
        let mut backoff = self.backoff();
        loop {
            if let Some(finalized) = self.finalized_now(feature) {
                return Ok(Some(finalized));
            }
            match self.any().await {
                Ok(connection) => return Ok(connection.finalized(feature)),
                Err(error) if error.is_retriable() => {
                    self.pause(&mut backoff, deadline, started, error).await?
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The same from the open connections alone.
    pub(crate) fn finalized_now(&self, feature: &str) -> Option<Finalized> {
        let open = self.inner.nodes.open();
        open.iter().filter_map(|connection| connection.finalized(feature)).max_by_key(|found| found.epoch)
    }
}
