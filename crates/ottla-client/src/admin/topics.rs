//! Topics: create, delete, describe, more partitions, and deleting records from a partition's start.

use std::collections::BTreeMap;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use ottla_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use ottla_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use ottla_protocol::messages::delete_topics_request::DeleteTopicState;
use ottla_protocol::messages::metadata_request::MetadataRequestTopic;
use ottla_protocol::messages::metadata_response::MetadataResponseTopic;
use ottla_protocol::messages::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteRecordsRequest, DeleteRecordsResponse, DeleteTopicsRequest, DeleteTopicsResponse, MetadataRequest,
    MetadataResponse,
};
use ottla_protocol::types::{Text, Uuid};

use super::items::{Call, Item, Place, Results, again_at_controller, item};
use super::{Admin, AdminError};
use crate::connection::Versions;
use crate::record::TopicPartition;

/// A topic to be created.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::NewTopic;
///
/// let topic = NewTopic::new("totals", 6).config("cleanup.policy", "compact").config("segment.ms", "3600000");
/// admin.create_topic(&topic).await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name: letters, digits, `.`, `_` and `-`, at most 249.
    pub name: Text,
    /// How many partitions; -1 for the broker's default.
    pub partition_count: i32,
    /// How many copies; -1 for the broker's default.
    pub replication_factor: i16,
    /// Settings that differ from the broker's defaults.
    pub configs: Vec<(Text, Text)>,
}

impl NewTopic {
    /// A topic with the broker's defaults.
    pub fn new(name: impl Into<Text>, partition_count: i32) -> Self {
        Self { name: name.into(), partition_count, replication_factor: -1, configs: Vec::new() }
    }

    /// Sets one of Kafka's topic settings.
    #[must_use]
    pub fn config(mut self, name: impl Into<Text>, value: impl Into<Text>) -> Self {
        self.configs.push((name.into(), value.into()));
        self
    }
}

/// What a creation came to.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::NewTopic;
///
/// for (name, created) in admin.create_topics(&[NewTopic::new("totals", -1)], false).await {
///     let created = created?;
///     println!("{name} has the id {} and {} partitions", created.topic_id, created.partition_count);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedTopic {
    /// The topic's id; zero when the broker is too old to have ids, or when only a repetition of a lost request was
    /// answered.
    pub topic_id: Uuid,
    /// How many partitions it has; -1 when the broker did not say.
    pub partition_count: i32,
}

/// A topic by its name or its id.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::TopicRef;
///
/// let id = admin.describe_topic(&"orders".into()).await?.topic_id;
/// // by id: a topic that took the name since is not meant
/// let deleted = admin.delete_topics(&[TopicRef::Id(id)]).await;
/// assert!(deleted.into_values().all(|result| result.is_ok()));
/// assert!(admin.describe_topics(&[TopicRef::name("orders")]).await.into_values().all(|result| result.is_err()));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicRef {
    /// By name.
    Name(Text),
    /// By id: never another topic that took the name later.
    Id(Uuid),
}

impl TopicRef {
    /// The topic of that name.
    pub fn name(name: impl Into<Text>) -> Self {
        Self::Name(name.into())
    }

    fn describe(&self) -> String {
        match self {
            Self::Name(name) => format!("topic `{name}`"),
            Self::Id(id) => format!("the topic with id {id}"),
        }
    }
}

/// A topic as the cluster has it.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// let orders = admin.describe_topic(&"orders".into()).await?;
/// assert_eq!((orders.name.as_str(), orders.partition_count, orders.is_internal), ("orders", 1, false));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its name.
    pub name: Text,
    /// Its id.
    pub topic_id: Uuid,
    /// How many partitions it has.
    pub partition_count: i32,
    /// Whether it is one of Kafka's own.
    pub is_internal: bool,
}

/// A topic with what the cluster says of each partition.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::TopicRef;
///
/// for details in admin.describe_topics(&[TopicRef::name("orders")]).await.into_values() {
///     let details = details?;
///     println!("{} ({}): {} partitions", details.name, details.topic_id, details.partitions.len());
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDetails {
    /// Its name.
    pub name: Text,
    /// Its id.
    pub topic_id: Uuid,
    /// Whether it is one of Kafka's own.
    pub is_internal: bool,
    /// Its partitions by index.
    pub partitions: Vec<PartitionDetails>,
}

/// A partition as the cluster has it.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::TopicRef;
///
/// for details in admin.describe_topics(&[TopicRef::name("orders")]).await.into_values() {
///     for partition in details?.partitions {
///         let missing = partition.replicas.len() - partition.in_sync.len();
///         println!("{}: led by {}, {missing} replicas behind", partition.partition, partition.leader);
///     }
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDetails {
    /// Its index.
    pub partition: i32,
    /// Its leader; -1 when it has none at present.
    pub leader: i32,
    /// The leader's epoch; -1 when the broker did not say.
    pub leader_epoch: i32,
    /// Brokers with a copy.
    pub replicas: Vec<i32>,
    /// Those of them that are in sync.
    pub in_sync: Vec<i32>,
    /// Those of them that are away.
    pub offline: Vec<i32>,
}

struct CreateTopics {
    topics: BTreeMap<Text, NewTopic>,
    timeout_ms: i32,
    validate_only: bool,
}

impl Call for CreateTopics {
    type Key = Text;
    type Request = CreateTopicsRequest;
    type Value = CreatedTopic;
    const USABLE: Versions = Versions::new(5, 7);

    fn place(&self, _: &Text) -> Place {
        Place::Controller
    }

    fn request(&self, keys: &[Text]) -> CreateTopicsRequest {
        let topics = keys.iter().filter_map(|name| self.topics.get(name)).map(|topic| CreatableTopic {
            name: topic.name.clone(),
            num_partitions: topic.partition_count,
            replication_factor: topic.replication_factor,
            configs: topic
                .configs
                .iter()
                .map(|(name, value)| CreatableTopicConfig {
                    name: name.clone(),
                    value: Some(value.clone()),
                    ..CreatableTopicConfig::default()
                })
                .collect(),
            ..CreatableTopic::default()
        });
        CreateTopicsRequest {
            topics: topics.collect(),
            timeout_ms: self.timeout_ms,
            validate_only: self.validate_only,
            ..CreateTopicsRequest::default()
        }
    }

    fn read(&self, _: &[Text], answer: CreateTopicsResponse) -> Vec<(Text, Item<CreatedTopic>)> {
        let results = answer.topics.into_iter().map(|topic| {
            let created = || CreatedTopic { topic_id: topic.topic_id, partition_count: topic.num_partitions };
            (topic.name.detached(), item(topic.error_code, topic.error_message.as_ref(), created))
        });
        results.collect()
    }

    fn what(&self, name: &Text) -> String {
        format!("creating topic `{name}`")
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }

    fn after_lost(&self, code: ErrorCode) -> Option<CreatedTopic> {
        let created = CreatedTopic { topic_id: Uuid::ZERO, partition_count: -1 };
        (code == ErrorCode::TopicAlreadyExists && !self.validate_only).then_some(created)
    }
}

struct DeleteTopics {
    timeout_ms: i32,
}

impl Call for DeleteTopics {
    type Key = TopicRef;
    type Request = DeleteTopicsRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(6, 6);

    fn place(&self, _: &TopicRef) -> Place {
        Place::Controller
    }

    fn request(&self, keys: &[TopicRef]) -> DeleteTopicsRequest {
        let topics = keys.iter().map(|key| match key {
            TopicRef::Name(name) => DeleteTopicState { name: Some(name.clone()), ..Default::default() },
            TopicRef::Id(topic_id) => DeleteTopicState { topic_id: *topic_id, ..Default::default() },
        });
        let timeout_ms = self.timeout_ms;
        DeleteTopicsRequest { topics: topics.collect(), timeout_ms, ..DeleteTopicsRequest::default() }
    }

    fn read(&self, keys: &[TopicRef], answer: DeleteTopicsResponse) -> Vec<(TopicRef, Item<()>)> {
        // an answer names a topic by name and id: which of them was asked for, we know
        let results = answer.responses.into_iter().flat_map(|topic| {
            let name = topic.name.as_ref().map(|name| TopicRef::Name(name.detached()));
            let refs = [name, Some(TopicRef::Id(topic.topic_id))];
            let asked = refs.into_iter().flatten().filter(|key| keys.contains(key)).collect::<Vec<_>>();
            let result = item(topic.error_code, topic.error_message.as_ref(), || ());
            asked.into_iter().map(move |key| (key, result.clone()))
        });
        results.collect()
    }

    fn what(&self, key: &TopicRef) -> String {
        format!("deleting {}", key.describe())
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }

    fn after_lost(&self, code: ErrorCode) -> Option<()> {
        matches!(code, ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId).then_some(())
    }
}

struct CreatePartitions {
    counts: BTreeMap<Text, i32>,
    timeout_ms: i32,
    validate_only: bool,
}

impl Call for CreatePartitions {
    type Key = Text;
    type Request = CreatePartitionsRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(0, 3);

    fn place(&self, _: &Text) -> Place {
        Place::Controller
    }

    fn request(&self, keys: &[Text]) -> CreatePartitionsRequest {
        let topics = keys.iter().filter_map(|name| {
            let count = *self.counts.get(name)?;
            let name = name.clone();
            Some(CreatePartitionsTopic { name, count, assignments: None, ..Default::default() })
        });
        CreatePartitionsRequest {
            topics: topics.collect(),
            timeout_ms: self.timeout_ms,
            validate_only: self.validate_only,
            ..CreatePartitionsRequest::default()
        }
    }

    fn read(&self, _: &[Text], answer: CreatePartitionsResponse) -> Vec<(Text, Item<()>)> {
        let results = answer.results.into_iter().map(|topic| {
            (topic.name.detached(), item(topic.error_code, topic.error_message.as_ref(), || ()))
        });
        results.collect()
    }

    fn what(&self, name: &Text) -> String {
        let count = self.counts.get(name).copied().unwrap_or(-1);
        format!("giving topic `{name}` {count} partitions")
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

struct DescribeTopics;

impl Call for DescribeTopics {
    type Key = TopicRef;
    type Request = MetadataRequest;
    type Value = TopicDetails;
    /// The first version with ids that may be asked for.
    const USABLE: Versions = Versions::new(12, 13);

    fn place(&self, _: &TopicRef) -> Place {
        Place::Controller
    }

    fn request(&self, keys: &[TopicRef]) -> MetadataRequest {
        let topics = keys.iter().map(|key| match key {
            TopicRef::Name(name) => MetadataRequestTopic { name: Some(name.clone()), ..Default::default() },
            TopicRef::Id(topic_id) => {
                MetadataRequestTopic { name: None, topic_id: *topic_id, ..Default::default() }
            }
        });
        MetadataRequest {
            topics: Some(topics.collect()),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        }
    }

    fn read(&self, keys: &[TopicRef], answer: MetadataResponse) -> Vec<(TopicRef, Item<TopicDetails>)> {
        let results = answer.topics.iter().flat_map(|topic| {
            let name = topic.name.as_ref().map(|name| TopicRef::Name(name.detached()));
            let refs = [name, Some(TopicRef::Id(topic.topic_id))];
            let asked: Vec<_> = refs.into_iter().flatten().filter(|key| keys.contains(key)).collect();
            asked.into_iter().map(|key| (key, item(topic.error_code, None, || details(topic))))
        });
        results.collect()
    }

    fn what(&self, key: &TopicRef) -> String {
        format!("describing {}", key.describe())
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

fn details(topic: &MetadataResponseTopic) -> TopicDetails {
    let mut partitions: Vec<_> = topic
        .partitions
        .iter()
        .map(|partition| PartitionDetails {
            partition: partition.partition_index,
            leader: partition.leader_id,
            leader_epoch: partition.leader_epoch,
            replicas: partition.replica_nodes.clone(),
            in_sync: partition.isr_nodes.clone(),
            offline: partition.offline_replicas.clone(),
        })
        .collect();
    partitions.sort_by_key(|partition| partition.partition);
    TopicDetails {
        name: topic.name.as_ref().map_or(Text::EMPTY, Text::detached),
        topic_id: topic.topic_id,
        is_internal: topic.is_internal,
        partitions,
    }
}

struct DeleteRecords {
    before: BTreeMap<TopicPartition, i64>,
    timeout_ms: i32,
}

impl Call for DeleteRecords {
    type Key = TopicPartition;
    type Request = DeleteRecordsRequest;
    type Value = i64;
    const USABLE: Versions = Versions::new(2, 2);

    fn place(&self, at: &TopicPartition) -> Place {
        Place::Leader(at.clone())
    }

    fn request(&self, keys: &[TopicPartition]) -> DeleteRecordsRequest {
        let mut topics: BTreeMap<Text, DeleteRecordsTopic> = BTreeMap::new();
        for at in keys {
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.name = at.topic.clone();
            topic.partitions.push(DeleteRecordsPartition {
                partition_index: at.partition,
                offset: self.before.get(at).copied().unwrap_or(0),
                ..DeleteRecordsPartition::default()
            });
        }
        DeleteRecordsRequest {
            topics: topics.into_values().collect(),
            timeout_ms: self.timeout_ms,
            ..DeleteRecordsRequest::default()
        }
    }

    fn read(&self, _: &[TopicPartition], answer: DeleteRecordsResponse) -> Vec<(TopicPartition, Item<i64>)> {
        let results = answer.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
                (at, item(partition.error_code, None, || partition.low_watermark))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("deleting records of {at} below {}", self.before.get(at).copied().unwrap_or(0))
    }
}

impl Admin {
    /// Creates topics; the result of each by name. One that exists is an error, unless an attempt of this very call
    /// may have made it. With `validate_only` nothing is created, only checked. If the future is dropped, some may
    /// be created.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let admin = Admin::connect(ClientSettings::new(bootstrap)?).await?;
    /// use std::collections::BTreeMap;
    /// use ottla_client::TopicPartition;
    /// use ottla_client::admin::{NewTopic, TopicRef};
    ///
    /// for (name, checked) in admin.create_topics(&[NewTopic::new("orders", 3)], true).await {
    ///     println!("{name}: {checked:?}"); // nothing was created
    /// }
    /// admin.create_topic(&NewTopic::new("orders", 3)).await?;
    /// for grown in admin.create_partitions(&BTreeMap::from([("orders".into(), 6)]), false).await.into_values() {
    ///     grown?;
    /// }
    /// for topic in admin.list_topics().await? {
    ///     println!("{}: {} partitions", topic.name, topic.partition_count);
    /// }
    /// assert_eq!(admin.describe_topic(&"orders".into()).await?.partition_count, 6);
    /// for (topic, details) in admin.describe_topics(&[TopicRef::name("orders")]).await {
    ///     println!("{topic:?}: {:?}", details?.partitions);
    /// }
    ///
    /// // -1: everything up to the high watermark
    /// let at = TopicPartition::new("orders", 0);
    /// let start = admin.delete_records(&at, -1).await?;
    /// for again in admin.delete_records_of(&BTreeMap::from([(at, start)])).await.into_values() {
    ///     assert_eq!(again?, start);
    /// }
    ///
    /// admin.delete_topic(&"orders".into()).await?;
    /// for gone in admin.delete_topics(&[TopicRef::name("orders")]).await.into_values() {
    ///     println!("{}", gone.expect_err("it was deleted already"));
    /// }
    /// # Ok(())
    /// # });
    /// ```
    pub async fn create_topics(
        &self,
        topics: &[NewTopic],
        validate_only: bool,
    ) -> Results<Text, CreatedTopic> {
        let keys: Vec<Text> = topics.iter().map(|topic| topic.name.clone()).collect();
        let topics = topics.iter().map(|topic| (topic.name.clone(), topic.clone())).collect();
        let call = CreateTopics { topics, timeout_ms: self.timeout_ms(), validate_only };
        let results = self.run(&call, keys).await;
        results.keys().for_each(|name| self.cluster.forget_topic(name));
        results
    }

    /// Creates one topic, as `create_topics` does.
    pub async fn create_topic(&self, topic: &NewTopic) -> Result<(), AdminError> {
        let mut results = self.create_topics(std::slice::from_ref(topic), false).await;
        results.pop_first().expect("every topic has a result").1.map(|_| ())
    }

    /// Deletes topics with all their records; the result of each. One that does not exist is an error, unless an
    /// attempt of this very call may have deleted it. If the future is dropped, some may be deleted.
    pub async fn delete_topics(&self, topics: &[TopicRef]) -> Results<TopicRef, ()> {
        let call = DeleteTopics { timeout_ms: self.timeout_ms() };
        let results = self.run(&call, topics.to_vec()).await;
        for key in results.keys() {
            if let TopicRef::Name(name) = key {
                self.cluster.forget_topic(name);
            }
        }
        results
    }

    /// Deletes one topic, as `delete_topics` does.
    pub async fn delete_topic(&self, name: &Text) -> Result<(), AdminError> {
        let mut results = self.delete_topics(&[TopicRef::Name(name.clone())]).await;
        results.pop_first().expect("every topic has a result").1
    }

    /// Gives topics more partitions: up to the given counts, not by them. Fewer than there are is refused. If the
    /// future is dropped, some may have them.
    pub async fn create_partitions(
        &self,
        counts: &BTreeMap<Text, i32>,
        validate_only: bool,
    ) -> Results<Text, ()> {
        let call = CreatePartitions { counts: counts.clone(), timeout_ms: self.timeout_ms(), validate_only };
        let results = self.run(&call, counts.keys().cloned().collect()).await;
        results.keys().for_each(|name| self.cluster.forget_topic(name));
        results
    }

    /// Describes topics by name or id, with the state of each partition. Cancel-safe.
    pub async fn describe_topics(&self, topics: &[TopicRef]) -> Results<TopicRef, TopicDetails> {
        // a request with ids has no ear for names
        let (names, ids) = topics.iter().cloned().partition(|topic| matches!(topic, TopicRef::Name(_)));
        let mut results = self.run(&DescribeTopics, names).await;
        results.extend(self.run(&DescribeTopics, ids).await);
        results
    }

    /// Describes a topic. Cancel-safe.
    pub async fn describe_topic(&self, name: &Text) -> Result<TopicDescription, AdminError> {
        let topic = self.cluster.refresh_topic(name).await?;
        Ok(TopicDescription {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_count: topic.partition_count(),
            is_internal: topic.is_internal,
        })
    }

    /// All topics by name. Cancel-safe.
    pub async fn list_topics(&self) -> Result<Vec<TopicDescription>, AdminError> {
        let topics = self.cluster.list_topics().await?;
        let described = topics.iter().map(|topic| TopicDescription {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_count: topic.partition_count(),
            is_internal: topic.is_internal,
        });
        Ok(described.collect())
    }

    /// Deletes the records of partitions below an offset (-1: all up to the high watermark); the new log start
    /// offset of each. If the future is dropped, they may be deleted.
    pub async fn delete_records_of(
        &self,
        before: &BTreeMap<TopicPartition, i64>,
    ) -> Results<TopicPartition, i64> {
        let call = DeleteRecords { before: before.clone(), timeout_ms: self.timeout_ms() };
        self.run(&call, before.keys().cloned().collect()).await
    }

    /// Deletes the records of one partition, as `delete_records_of` does.
    pub async fn delete_records(&self, at: &TopicPartition, before: i64) -> Result<i64, AdminError> {
        let mut results = self.delete_records_of(&BTreeMap::from([(at.clone(), before)])).await;
        results.pop_first().expect("every partition has a result").1
    }
}
