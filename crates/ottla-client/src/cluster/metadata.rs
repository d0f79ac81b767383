//! Metadata: brokers, topics, leaders; fetched when needed, when told to be wrong, or when old.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::metadata_request::MetadataRequestTopic;
use ottla_protocol::messages::metadata_response::MetadataResponseTopic;
use ottla_protocol::messages::{MetadataRequest, MetadataResponse};
use ottla_protocol::types::{Text, Uuid};
use tracing::Instrument;

use super::{Cluster, ClusterError};
use crate::connection::Versions;
use crate::settings::HostPort;

const METADATA: Versions = Versions::new(9, 13);
/// From where topics can be asked for by id.
const METADATA_BY_ID: Versions = Versions::new(12, 13);

/// Longest that a topic which no broker knows is waited for (librdkafka: `topic.metadata.propagation.max.ms`).
const PROPAGATION_MAX: Duration = Duration::from_secs(2);
/// Most topics whose metadata is kept; the oldest goes first.
const TOPICS_MAX: usize = 10_000;

/// A broker.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// for node in admin.cluster().nodes() {
///     println!("broker {} listens at {}", node.node_id, node.address);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Its id.
    pub node_id: i32,
    /// Where it listens.
    pub address: HostPort,
}

/// A topic.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// let orders = admin.cluster().topic(&"orders".into()).await?;
/// for (partition, leader) in (0..orders.partition_count()).zip(&orders.leaders) {
///     println!("{}/{partition} is led by {leader}", orders.name);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMetadata {
    /// Its name.
    pub name: Text,
    /// Its id; zero when the broker is too old to have ids.
    pub topic_id: Uuid,
    /// Whether it is one of Kafka's own.
    pub is_internal: bool,
    /// Leader of each partition by index; -1 when it has none at present.
    pub leaders: Vec<i32>,
    /// Leader epoch of each partition by index; -1 when the broker does not tell.
    pub leader_epochs: Vec<i32>,
    /// Racks of the replicas of each partition by index; empty when brokers have no racks.
    pub racks: Vec<BTreeSet<Text>>,
    fetched_at: Instant,
}

impl TopicMetadata {
    /// How many partitions it has.
    pub fn partition_count(&self) -> i32 {
        i32::try_from(self.leaders.len()).expect("partition indexes are 32 bit")
    }
}

/// What is known.
#[derive(Debug, Default)]
pub(super) struct View {
    nodes: BTreeMap<i32, HostPort>,
    topics: BTreeMap<Text, Arc<TopicMetadata>>,
    controller_id: i32,
    cluster_id: Option<Text>,
    pub(super) coordinators: BTreeMap<(i8, Text), i32>,
}

impl View {
    pub(super) fn address(&self, node_id: i32) -> Option<String> {
        self.nodes.get(&node_id).map(ToString::to_string)
    }

    pub(super) fn node_ids(&self) -> Vec<i32> {
        self.nodes.keys().copied().collect()
    }

    /// Takes a node that a coordinator look-up named.
    pub(super) fn learn(&mut self, node_id: i32, address: HostPort) {
        self.nodes.insert(node_id, address);
    }

    fn take(&mut self, answer: &MetadataResponse) {
        let nodes = answer.brokers.iter().filter_map(|broker| {
            let port = u16::try_from(broker.port).ok()?;
            Some((broker.node_id, HostPort { host: broker.host.to_string(), port }))
        });
        let nodes: BTreeMap<i32, HostPort> = nodes.collect();
        if !nodes.is_empty() {
            self.nodes = nodes;
        }
        self.controller_id = answer.controller_id;
        self.cluster_id = answer.cluster_id.as_ref().map(Text::detached);
        let racks = racks(answer);
        for topic in &answer.topics {
            let Some(name) = topic.name.as_ref() else { continue };
            match take_topic(topic, name.detached(), &racks) {
                Some(metadata) => {
                    self.topics.insert(metadata.name.clone(), Arc::new(metadata));
                }
                None => {
                    self.topics.remove(name);
                }
            }
        }
        while self.topics.len() > TOPICS_MAX {
            let oldest =
                self.topics.values().min_by_key(|topic| topic.fetched_at).map(|topic| topic.name.clone());
            self.topics.remove(&oldest.expect("the map is not empty"));
        }
    }
}

/// A topic's metadata, absent when the answer holds an error for it, no partition, or gaps between them.
fn take_topic(
    topic: &MetadataResponseTopic,
    name: Text,
    racks_of_nodes: &BTreeMap<i32, Text>,
) -> Option<TopicMetadata> {
    if topic.error_code != 0 || topic.partitions.is_empty() {
        return None;
    }
    let count = topic.partitions.len();
    let (mut leaders, mut leader_epochs) = (vec![-1; count], vec![-1; count]);
    let mut racks = vec![BTreeSet::new(); count];
    for partition in &topic.partitions {
        let index = usize::try_from(partition.partition_index).ok()?;
        *leaders.get_mut(index)? = partition.leader_id;
        *leader_epochs.get_mut(index)? = partition.leader_epoch;
        let replicas = partition.replica_nodes.iter();
        *racks.get_mut(index)? = replicas.filter_map(|node| racks_of_nodes.get(node).cloned()).collect();
    }
    let (topic_id, is_internal) = (topic.topic_id, topic.is_internal);
    Some(TopicMetadata {
        name,
        topic_id,
        is_internal,
        leaders,
        leader_epochs,
        racks,
        fetched_at: time::now(),
    })
}

/// Racks of the brokers that have one.
fn racks(answer: &MetadataResponse) -> BTreeMap<i32, Text> {
    let racks =
        answer.brokers.iter().filter_map(|broker| Some((broker.node_id, broker.rack.as_ref()?.detached())));
    racks.collect()
}

impl Cluster {
    /// The brokers known at present.
    pub fn nodes(&self) -> Vec<NodeAddress> {
        let view = self.view();
        view.nodes
            .iter()
            .map(|(id, address)| NodeAddress { node_id: *id, address: address.clone() })
            .collect()
    }

    /// The id of the cluster, when its brokers told it.
    pub fn cluster_id(&self) -> Option<Text> {
        self.view().cluster_id.clone()
    }

    /// The broker that takes changes of topics, when it is known.
    pub(crate) fn controller(&self) -> Option<i32> {
        let view = self.view();
        view.nodes.contains_key(&view.controller_id).then_some(view.controller_id)
    }

    /// A topic as it is known, fetched when unknown or old. A topic that does not exist is an error at once.
    /// Cancel-safe.
    pub async fn topic(&self, name: &Text) -> Result<Arc<TopicMetadata>, ClusterError> {
        match self.cached_topic(name) {
            Some(topic) => Ok(topic),
            None => self.refresh_topic(name).await,
        }
    }

    /// Fetches anew a topic that somebody means to use. Brokers learn of a topic a moment after its
    /// creation was acknowledged, so one that is unknown is asked for again, for up to `PROPAGATION_MAX`; one that is
    /// known and not ready is waited for like everything else. Cancel-safe.
    pub(crate) async fn refresh_topic_or_wait(
        &self,
        name: &Text,
    ) -> Result<Arc<TopicMetadata>, ClusterError> {
        self.refresh_topic_since(name, time::now()).await
    }

    /// The same within a call that began at `since`: many unknown topics are not waited for one after the other.
    async fn refresh_topic_since(
        &self,
        name: &Text,
        since: Instant,
    ) -> Result<Arc<TopicMetadata>, ClusterError> {
        let mut backoff = self.backoff();
        loop {
            let found = self.refresh_topic(name).await;
            let patience = match &found {
                Err(ClusterError::NoSuchTopic { .. }) => PROPAGATION_MAX,
                Err(error) if error.is_retriable() => self.settings().api_timeout,
                _ => return found,
            };
            let until = time::now() + backoff.next();
            if until >= since + patience {
                return found;
            }
            time::sleep_until(until).await;
        }
    }

    /// A topic from memory, absent when unknown or old.
    pub(crate) fn cached_topic(&self, name: &Text) -> Option<Arc<TopicMetadata>> {
        let max_age = self.settings().metadata_max_age;
        self.view().topics.get(name).filter(|topic| topic.fetched_at.elapsed() < max_age).cloned()
    }

    /// The leader of a partition from memory; absent when unknown.
    pub(crate) fn cached_leader(&self, topic: &Text, partition: i32) -> Option<i32> {
        let topic = self.cached_topic(topic)?;
        let leader = *topic.leaders.get(usize::try_from(partition).ok()?)?;
        (leader >= 0).then_some(leader)
    }

    /// Whether a topic is known and every partition of it has a leader.
    pub(crate) fn has_leaders(&self, topic: &Text) -> bool {
        self.cached_topic(topic).is_some_and(|topic| topic.leaders.iter().all(|leader| *leader >= 0))
    }

    /// Forgets a topic, because a broker said that what we know is wrong.
    pub(crate) fn forget_topic(&self, name: &Text) {
        self.view().topics.remove(name);
    }

    /// Fetches a topic anew.
    pub(crate) async fn refresh_topic(&self, name: &Text) -> Result<Arc<TopicMetadata>, ClusterError> {
        let answer = self.refresh(std::slice::from_ref(name), self.deadline()).await?;
        if let Some(topic) = self.cached_topic(name) {
            return Ok(topic);
        }
        let code = answer.topics.iter().find(|topic| topic.name.as_ref() == Some(name)).map(|t| t.error_code);
        match code.map(ErrorCode::from_code) {
            None | Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId) => {
                Err(ClusterError::NoSuchTopic { topic: name.clone(), problem: "does not exist".to_owned() })
            }
            Some(code) => Err(ClusterError::Refused { what: format!("metadata of topic `{name}`"), code }),
        }
    }

    /// The leader of a partition for a call that began at `since`, waiting until there is one. A topic or a partition
    /// that no broker knows may just have been created: it is waited for as `refresh_topic_or_wait` does.
    pub(crate) async fn leader(
        &self,
        topic: &Text,
        partition: i32,
        since: Instant,
    ) -> Result<i32, ClusterError> {
        let mut backoff = self.backoff();
        loop {
            let metadata = match self.cached_topic(topic) {
                Some(metadata) => metadata,
                None => self.refresh_topic_since(topic, since).await?,
            };
            let leader = usize::try_from(partition).ok().and_then(|index| metadata.leaders.get(index));
            let patience = match leader {
                Some(leader) if *leader >= 0 => return Ok(*leader),
                Some(_) => self.settings().api_timeout,
                None => PROPAGATION_MAX,
            };
            let until = time::now() + backoff.next();
            if until >= since + patience {
                let code = ErrorCode::LeaderNotAvailable;
                let what = format!("leader of {topic}/{partition}");
                let count = metadata.partition_count();
                let problem = format!("has {count} partitions, no partition {partition}");
                return Err(match leader {
                    Some(_) => ClusterError::Refused { what, code },
                    None => ClusterError::NoSuchTopic { topic: topic.clone(), problem },
                });
            }
            self.forget_topic(topic);
            time::sleep_until(until).await;
        }
    }

    /// All topics of the cluster, by name. Cancel-safe.
    pub async fn list_topics(&self) -> Result<Vec<Arc<TopicMetadata>>, ClusterError> {
        let request =
            MetadataRequest { topics: None, allow_auto_topic_creation: false, ..Default::default() };
        let answer = self.call_any(&request, METADATA, self.deadline()).await?;
        self.view().take(&answer);
        let racks = racks(&answer);
        let mut topics: Vec<_> = answer
            .topics
            .iter()
            .filter_map(|topic| take_topic(topic, topic.name.as_ref()?.detached(), &racks).map(Arc::new))
            .collect();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// Fetches these topics anew. What does not exist is forgotten; that is no error.
    pub(crate) async fn refresh_topics(&self, names: &[Text]) -> Result<(), ClusterError> {
        if names.is_empty() {
            return Ok(());
        }
        self.refresh(names, self.deadline()).await.map(|_| ())
    }

    /// Names of topics by id, fetched when unknown; ids that no topic has are left out.
    pub(crate) async fn topic_names(&self, ids: &[Uuid]) -> Result<BTreeMap<Uuid, Text>, ClusterError> {
        let mut names = self.cached_names(ids);
        let unknown: Vec<Uuid> = ids.iter().filter(|id| !names.contains_key(*id)).copied().collect();
        if unknown.is_empty() {
            return Ok(names);
        }
        let topics =
            unknown.iter().map(|id| MetadataRequestTopic { topic_id: *id, name: None, ..Default::default() });
        let request = MetadataRequest {
            topics: Some(topics.collect()),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        let answer = self.call_any(&request, METADATA_BY_ID, self.deadline()).await?;
        self.view().take(&answer);
        names.extend(self.cached_names(&unknown));
        Ok(names)
    }

    fn cached_names(&self, ids: &[Uuid]) -> BTreeMap<Uuid, Text> {
        let view = self.view();
        let wanted: BTreeSet<&Uuid> = ids.iter().collect();
        let known = view.topics.values().filter(|topic| wanted.contains(&topic.topic_id));
        known.map(|topic| (topic.topic_id, topic.name.clone())).collect()
    }

    /// Fetches the brokers, and who is the controller.
    pub(crate) async fn refresh_brokers(&self, deadline: Instant) -> Result<(), ClusterError> {
        self.refresh(&[], deadline).await.map(|_| ())
    }

    /// Fetches the brokers and these topics, and keeps what it learns.
    pub(super) async fn refresh(
        &self,
        names: &[Text],
        deadline: Instant,
    ) -> Result<MetadataResponse, ClusterError> {
        let span = tracing::debug_span!("metadata", topics = names.len());
        self.refresh_now(names, deadline).instrument(span).await
    }

    async fn refresh_now(&self, names: &[Text], deadline: Instant) -> Result<MetadataResponse, ClusterError> {
        let _single_file = self.inner.refreshing.lock().await;
        let topics = names
            .iter()
            .map(|name| MetadataRequestTopic { name: Some(name.clone()), ..MetadataRequestTopic::default() });
        let request = MetadataRequest {
            topics: Some(topics.collect()),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        let answer = self.call_any(&request, METADATA, deadline).await?;
        self.view().take(&answer);
        Ok(answer)
    }
}
