//! The cluster itself: brokers, folders, features, the quorum, and who leads and holds partitions.

use std::collections::BTreeMap;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use ottla_protocol::messages::describe_quorum_request;
use ottla_protocol::messages::describe_quorum_response::ReplicaState;
use ottla_protocol::messages::elect_leaders_request::TopicPartitions;
use ottla_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;
use ottla_protocol::messages::update_features_request::FeatureUpdateKey;
use ottla_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, ApiVersionsRequest,
    ApiVersionsResponse, DescribeClusterRequest, DescribeClusterResponse, DescribeLogDirsRequest,
    DescribeLogDirsResponse, DescribeQuorumRequest, DescribeQuorumResponse, ElectLeadersRequest,
    ElectLeadersResponse, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
    UpdateFeaturesRequest, UpdateFeaturesResponse,
};
use ottla_protocol::types::Text;

use super::items::{Call, Item, Place, Results, again_at_controller, item};
use super::{Admin, AdminError};
use crate::cluster::NodeAddress;
use crate::connection::Versions;
use crate::record::TopicPartition;
use crate::settings::HostPort;

/// The cluster, as one of its brokers describes it.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// let cluster = admin.describe_cluster().await?;
/// let controller = cluster.brokers.iter().find(|broker| broker.node_id == cluster.controller_id);
/// println!("{} is led by {:?}", cluster.cluster_id, controller.map(|broker| &broker.address));
/// # assert_eq!(cluster.brokers.len(), 1);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDescription {
    /// Its id.
    pub cluster_id: Text,
    /// The broker that takes changes of topics; -1 while there is none.
    pub controller_id: i32,
    /// Its brokers by id.
    pub brokers: Vec<NodeAddress>,
}

/// A folder of a broker.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let broker = admin.describe_cluster().await?.brokers[0].node_id;
/// let mut folders = admin.describe_log_dirs(&[broker]).await;
/// for folder in folders.remove(&broker).expect("every broker that was asked has a result")? {
///     println!("{}: {} partitions, {:?} bytes free", folder.path, folder.partitions.len(), folder.usable_bytes);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDir {
    /// Its path on the broker's machine.
    pub path: Text,
    /// Size of its disk in bytes; absent when the broker is too old to tell.
    pub total_bytes: Option<i64>,
    /// Free bytes of its disk; absent when the broker is too old to tell.
    pub usable_bytes: Option<i64>,
    /// Bytes of each partition in it.
    pub partitions: BTreeMap<TopicPartition, i64>,
}

/// The levels of a feature.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// for feature in admin.describe_features().await? {
///     println!("{}: level {}, supported {:?}", feature.name, feature.finalized.unwrap_or(0), feature.supported);
/// }
/// # assert!(admin.describe_features().await?.iter().any(|feature| feature.name == "transaction.version"));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name, e.g. `transaction.version`.
    pub name: Text,
    /// Lowest and highest level that the broker supports; absent when it does not know the feature.
    pub supported: Option<Versions>,
    /// The level in use; absent: not finalized, which is level 0.
    pub finalized: Option<i16>,
}

/// How a feature's level may move.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use std::collections::BTreeMap;
/// use ottla_client::admin::FeatureUpgrade;
///
/// let to_v1 = BTreeMap::from([("transaction.version".into(), (1, FeatureUpgrade::SafeDowngrade))]);
/// admin.update_features(&to_v1, true).await?; // true: only whether it would be done
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureUpgrade {
    /// Only up.
    Upgrade,
    /// Also down, when nothing is lost.
    SafeDowngrade,
    /// Also down, whatever is lost.
    UnsafeDowngrade,
}

/// A member of the quorum that keeps the cluster's metadata.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// let quorum = admin.describe_quorum().await?;
/// for voter in &quorum.voters {
///     println!("{} is {} behind", voter.replica_id, quorum.high_watermark - voter.log_end_offset);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuorumMember {
    /// Its id.
    pub replica_id: i32,
    /// How far its log reaches.
    pub log_end_offset: i64,
    /// When it last fetched, ms since the Unix epoch; -1 for the leader or when unknown.
    pub last_fetch_timestamp: i64,
}

/// The quorum that keeps the cluster's metadata (KIP-595).
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// let quorum = admin.describe_quorum().await?;
/// println!("{} leads in epoch {}", quorum.leader_id, quorum.leader_epoch);
/// assert!(quorum.voters.iter().any(|voter| voter.replica_id == quorum.leader_id));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Its leader.
    pub leader_id: i32,
    /// The leader's epoch.
    pub leader_epoch: i32,
    /// How far its log is agreed on.
    pub high_watermark: i64,
    /// Who votes.
    pub voters: Vec<QuorumMember>,
    /// Who only reads.
    pub observers: Vec<QuorumMember>,
}

/// Which replica is to lead.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{ErrorCode, TopicPartition, admin::Election};
///
/// let at = TopicPartition::new("orders", 0);
/// for (at, elected) in admin.elect_leaders(Election::Preferred, &[at]).await {
///     match elected {
///         Ok(()) => println!("{at} has its preferred leader"),
///         Err(error) if error.code() == Some(ErrorCode::ElectionNotNeeded) => println!("{at} had it already"),
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Election {
    /// The preferred one.
    Preferred,
    /// Any that lives, even one that lacks records.
    Unclean,
}

/// A partition that is being moved.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// for (at, moving) in admin.list_reassignments(None).await? {
///     println!("{at}: {:?} come, {:?} go", moving.adding, moving.removing);
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reassignment {
    /// Brokers with a copy now.
    pub replicas: Vec<i32>,
    /// Those that get one.
    pub adding: Vec<i32>,
    /// Those that lose theirs.
    pub removing: Vec<i32>,
}

struct DescribeCluster;

impl Call for DescribeCluster {
    type Key = ();
    type Request = DescribeClusterRequest;
    type Value = ClusterDescription;
    const USABLE: Versions = Versions::new(0, 2);

    fn place(&self, (): &()) -> Place {
        Place::Controller
    }

    fn request(&self, _: &[()]) -> DescribeClusterRequest {
        DescribeClusterRequest::default()
    }

    fn read(&self, _: &[()], answer: DescribeClusterResponse) -> Vec<((), Item<ClusterDescription>)> {
        let description = || {
            let brokers = answer.brokers.iter().filter_map(|broker| {
                let port = u16::try_from(broker.port).ok()?;
                let address = HostPort { host: broker.host.to_string(), port };
                Some(NodeAddress { node_id: broker.broker_id, address })
            });
            let mut brokers: Vec<_> = brokers.collect();
            brokers.sort_by_key(|broker| broker.node_id);
            let (cluster_id, controller_id) = (answer.cluster_id.detached(), answer.controller_id);
            ClusterDescription { cluster_id, controller_id, brokers }
        };
        vec![((), item(answer.error_code, answer.error_message.as_ref(), description))]
    }

    fn what(&self, (): &()) -> String {
        "describing the cluster".to_owned()
    }
}

struct DescribeLogDirs;

impl Call for DescribeLogDirs {
    type Key = i32;
    type Request = DescribeLogDirsRequest;
    type Value = Vec<LogDir>;
    const USABLE: Versions = Versions::new(1, 5);

    fn place(&self, node_id: &i32) -> Place {
        Place::Node(*node_id)
    }

    fn request(&self, _: &[i32]) -> DescribeLogDirsRequest {
        DescribeLogDirsRequest { topics: None, ..DescribeLogDirsRequest::default() }
    }

    fn read(&self, keys: &[i32], answer: DescribeLogDirsResponse) -> Vec<(i32, Item<Vec<LogDir>>)> {
        let refused = answer.results.iter().map(|dir| dir.error_code).find(|code| *code != 0);
        let code = if answer.error_code == 0 { refused.unwrap_or(0) } else { answer.error_code };
        let dirs = || {
            let dirs = answer.results.iter().map(|dir| LogDir {
                path: dir.log_dir.detached(),
                total_bytes: (dir.total_bytes >= 0).then_some(dir.total_bytes),
                usable_bytes: (dir.usable_bytes >= 0).then_some(dir.usable_bytes),
                partitions: dir
                    .topics
                    .iter()
                    .flat_map(|topic| {
                        topic.partitions.iter().map(|partition| {
                            let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
                            (at, partition.partition_size)
                        })
                    })
                    .collect(),
            });
            dirs.collect()
        };
        vec![(keys.first().copied().unwrap_or(-1), item(code, None, dirs))]
    }

    fn what(&self, node_id: &i32) -> String {
        format!("describing the folders of broker {node_id}")
    }
}

struct DescribeFeatures;

impl Call for DescribeFeatures {
    type Key = ();
    type Request = ApiVersionsRequest;
    type Value = Vec<Feature>;
    /// The first version with features; from 4 on those that begin at level 0 are told too.
    const USABLE: Versions = Versions::new(3, 4);

    fn place(&self, (): &()) -> Place {
        Place::Controller
    }

    fn request(&self, _: &[()]) -> ApiVersionsRequest {
        ApiVersionsRequest {
            client_software_name: Text::from_static("ottla-client"),
            client_software_version: Text::from_static(env!("CARGO_PKG_VERSION")),
            ..ApiVersionsRequest::default()
        }
    }

    fn read(&self, _: &[()], answer: ApiVersionsResponse) -> Vec<((), Item<Vec<Feature>>)> {
        let features = || {
            let feature = |name: &Text| Feature { name: name.detached(), supported: None, finalized: None };
            let mut features: BTreeMap<Text, Feature> = BTreeMap::new();
            for supported in &answer.supported_features {
                let entry =
                    features.entry(supported.name.detached()).or_insert_with(|| feature(&supported.name));
                entry.supported = Some(Versions::new(supported.min_version, supported.max_version));
            }
            for finalized in &answer.finalized_features {
                let entry =
                    features.entry(finalized.name.detached()).or_insert_with(|| feature(&finalized.name));
                entry.finalized = Some(finalized.max_version_level);
            }
            features.into_values().collect()
        };
        vec![((), item(answer.error_code, None, features))]
    }

    fn what(&self, (): &()) -> String {
        "describing the features".to_owned()
    }
}

struct UpdateFeatures {
    updates: BTreeMap<Text, (i16, FeatureUpgrade)>,
    timeout_ms: i32,
    validate_only: bool,
}

impl Call for UpdateFeatures {
    type Key = ();
    type Request = UpdateFeaturesRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(1, 2);

    fn place(&self, (): &()) -> Place {
        Place::Controller
    }

    fn request(&self, _: &[()]) -> UpdateFeaturesRequest {
        let updates = self.updates.iter().map(|(name, (level, upgrade))| FeatureUpdateKey {
            feature: name.clone(),
            max_version_level: *level,
            upgrade_type: match upgrade {
                FeatureUpgrade::Upgrade => 1,
                FeatureUpgrade::SafeDowngrade => 2,
                FeatureUpgrade::UnsafeDowngrade => 3,
            },
            ..FeatureUpdateKey::default()
        });
        UpdateFeaturesRequest {
            timeout_ms: self.timeout_ms,
            feature_updates: updates.collect(),
            validate_only: self.validate_only,
            ..UpdateFeaturesRequest::default()
        }
    }

    fn read(&self, _: &[()], answer: UpdateFeaturesResponse) -> Vec<((), Item<()>)> {
        // Version 1 tells per feature, version 2 for all of them: they change together.
        let refused = answer.results.iter().find(|result| result.error_code != 0);
        let (code, message) = match refused.filter(|_| answer.error_code == 0) {
            Some(result) => (result.error_code, result.error_message.as_ref()),
            None => (answer.error_code, answer.error_message.as_ref()),
        };
        vec![((), item(code, message, || ()))]
    }

    fn what(&self, (): &()) -> String {
        let names: Vec<String> =
            self.updates.iter().map(|(name, (level, _))| format!("{name}={level}")).collect();
        format!("setting {}", names.join(", "))
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

struct DescribeQuorum;

impl Call for DescribeQuorum {
    type Key = ();
    type Request = DescribeQuorumRequest;
    type Value = Quorum;
    const USABLE: Versions = Versions::new(0, 2);

    fn place(&self, (): &()) -> Place {
        Place::Controller
    }

    fn request(&self, _: &[()]) -> DescribeQuorumRequest {
        use describe_quorum_request::{PartitionData, TopicData};
        let partitions = vec![PartitionData { partition_index: 0, ..PartitionData::default() }];
        let topic_name = Text::from_static("__cluster_metadata");
        let topic = TopicData { topic_name, partitions, ..TopicData::default() };
        DescribeQuorumRequest { topics: vec![topic], ..DescribeQuorumRequest::default() }
    }

    fn read(&self, _: &[()], answer: DescribeQuorumResponse) -> Vec<((), Item<Quorum>)> {
        if answer.error_code != 0 {
            let refused = item(answer.error_code, answer.error_message.as_ref(), || unreachable!("an error"));
            return vec![((), refused)];
        }
        let partition = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
        let members = |states: &[ReplicaState]| {
            let members = states.iter().map(|state| QuorumMember {
                replica_id: state.replica_id,
                log_end_offset: state.log_end_offset,
                last_fetch_timestamp: state.last_fetch_timestamp,
            });
            members.collect()
        };
        let quorum = partition.map(|partition| {
            let quorum = || Quorum {
                leader_id: partition.leader_id,
                leader_epoch: partition.leader_epoch,
                high_watermark: partition.high_watermark,
                voters: members(&partition.current_voters),
                observers: members(&partition.observers),
            };
            ((), item(partition.error_code, partition.error_message.as_ref(), quorum))
        });
        quorum.into_iter().collect()
    }

    fn what(&self, (): &()) -> String {
        "describing the quorum".to_owned()
    }
}

struct ElectLeaders {
    election: Election,
    timeout_ms: i32,
}

impl Call for ElectLeaders {
    type Key = TopicPartition;
    type Request = ElectLeadersRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(1, 2);

    fn place(&self, _: &TopicPartition) -> Place {
        Place::Controller
    }

    fn request(&self, keys: &[TopicPartition]) -> ElectLeadersRequest {
        let mut topics: BTreeMap<Text, TopicPartitions> = BTreeMap::new();
        for at in keys {
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.topic = at.topic.clone();
            topic.partitions.push(at.partition);
        }
        ElectLeadersRequest {
            election_type: match self.election {
                Election::Preferred => 0,
                Election::Unclean => 1,
            },
            topic_partitions: Some(topics.into_values().collect()),
            timeout_ms: self.timeout_ms,
            ..ElectLeadersRequest::default()
        }
    }

    fn read(&self, keys: &[TopicPartition], answer: ElectLeadersResponse) -> Vec<(TopicPartition, Item<()>)> {
        if answer.error_code != 0 {
            return keys.iter().map(|at| (at.clone(), item(answer.error_code, None, || ()))).collect();
        }
        let results = answer.replica_election_results.iter().flat_map(|topic| {
            topic.partition_result.iter().map(|result| {
                let at = TopicPartition::new(topic.topic.detached(), result.partition_id);
                (at, item(result.error_code, result.error_message.as_ref(), || ()))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("electing a leader of {at}")
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

struct AlterReassignments {
    replicas: BTreeMap<TopicPartition, Option<Vec<i32>>>,
    timeout_ms: i32,
}

impl Call for AlterReassignments {
    type Key = TopicPartition;
    type Request = AlterPartitionReassignmentsRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(0, 1);

    fn place(&self, _: &TopicPartition) -> Place {
        Place::Controller
    }

    fn request(&self, keys: &[TopicPartition]) -> AlterPartitionReassignmentsRequest {
        let mut topics: BTreeMap<Text, ReassignableTopic> = BTreeMap::new();
        for at in keys {
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.name = at.topic.clone();
            topic.partitions.push(ReassignablePartition {
                partition_index: at.partition,
                replicas: self.replicas.get(at).cloned().flatten(),
                ..ReassignablePartition::default()
            });
        }
        AlterPartitionReassignmentsRequest {
            timeout_ms: self.timeout_ms,
            topics: topics.into_values().collect(),
            ..AlterPartitionReassignmentsRequest::default()
        }
    }

    fn read(
        &self,
        keys: &[TopicPartition],
        answer: AlterPartitionReassignmentsResponse,
    ) -> Vec<(TopicPartition, Item<()>)> {
        if answer.error_code != 0 {
            let message = answer.error_message.as_ref();
            return keys.iter().map(|at| (at.clone(), item(answer.error_code, message, || ()))).collect();
        }
        let results = answer.responses.iter().flat_map(|topic| {
            topic.partitions.iter().map(|result| {
                let at = TopicPartition::new(topic.name.detached(), result.partition_index);
                (at, item(result.error_code, result.error_message.as_ref(), || ()))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("moving {at}")
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

struct ListReassignments {
    partitions: Option<Vec<TopicPartition>>,
    timeout_ms: i32,
}

impl Call for ListReassignments {
    type Key = ();
    type Request = ListPartitionReassignmentsRequest;
    type Value = BTreeMap<TopicPartition, Reassignment>;
    const USABLE: Versions = Versions::new(0, 0);

    fn place(&self, (): &()) -> Place {
        Place::Controller
    }

    fn request(&self, _: &[()]) -> ListPartitionReassignmentsRequest {
        let topics = self.partitions.as_ref().map(|partitions| {
            let mut topics: BTreeMap<Text, ListPartitionReassignmentsTopics> = BTreeMap::new();
            for at in partitions {
                let topic = topics.entry(at.topic.clone()).or_default();
                topic.name = at.topic.clone();
                topic.partition_indexes.push(at.partition);
            }
            topics.into_values().collect()
        });
        ListPartitionReassignmentsRequest { timeout_ms: self.timeout_ms, topics, ..Default::default() }
    }

    fn read(
        &self,
        _: &[()],
        answer: ListPartitionReassignmentsResponse,
    ) -> Vec<((), Item<BTreeMap<TopicPartition, Reassignment>>)> {
        let moves = || {
            let moves = answer.topics.iter().flat_map(|topic| {
                topic.partitions.iter().map(|partition| {
                    let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
                    let reassignment = Reassignment {
                        replicas: partition.replicas.clone(),
                        adding: partition.adding_replicas.clone(),
                        removing: partition.removing_replicas.clone(),
                    };
                    (at, reassignment)
                })
            });
            moves.collect()
        };
        vec![((), item(answer.error_code, answer.error_message.as_ref(), moves))]
    }

    fn what(&self, (): &()) -> String {
        "listing what is being moved".to_owned()
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

impl Admin {
    /// The cluster's id, controller and brokers. Cancel-safe.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let client = ClientSettings::new(bootstrap)?;
    /// # let admin = Admin::connect(client.clone()).await?;
    /// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
    /// # use std::collections::BTreeMap;
    /// let cluster = admin.describe_cluster().await?;
    /// for (broker, folders) in admin.describe_log_dirs(&[]).await {
    ///     println!("broker {broker} of {}: {} folders", cluster.cluster_id, folders?.len());
    /// }
    /// let leader = admin.describe_quorum().await?.leader_id;
    ///
    /// let features = admin.describe_features().await?;
    /// let versions = features.iter().find(|feature| feature.name == "transaction.version").expect("Kafka 4 has it");
    /// let level = versions.finalized.unwrap_or(0);
    /// let same = BTreeMap::from([("transaction.version".into(), (level, FeatureUpgrade::Upgrade))]);
    /// admin.update_features(&same, true).await?;
    ///
    /// let at = TopicPartition::new("orders", 0);
    /// let moves = BTreeMap::from([(at.clone(), Some(vec![leader]))]);
    /// for (at, begun) in admin.alter_reassignments(&moves).await {
    ///     println!("{at}: {begun:?}");
    /// }
    /// println!("{} are being moved", admin.list_reassignments(Some(&[at.clone()])).await?.len());
    /// println!("{:?}", admin.elect_leaders(Election::Preferred, &[at]).await);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn describe_cluster(&self) -> Result<ClusterDescription, AdminError> {
        self.run_one(&DescribeCluster, ()).await
    }

    /// The folders of brokers (all when none are named) and what partitions take in them. Cancel-safe.
    pub async fn describe_log_dirs(&self, node_ids: &[i32]) -> Results<i32, Vec<LogDir>> {
        let node_ids = match node_ids {
            [] => self.cluster.nodes().iter().map(|node| node.node_id).collect(),
            some => some.to_vec(),
        };
        self.run(&DescribeLogDirs, node_ids).await
    }

    /// The levels of all features (KIP-584), by name. Cancel-safe.
    pub async fn describe_features(&self) -> Result<Vec<Feature>, AdminError> {
        self.run_one(&DescribeFeatures, ()).await
    }

    /// Moves features to other levels, all or none; level 0 switches one off. With `validate_only` nothing is
    /// changed, only checked. If the future is dropped, they may be changed.
    pub async fn update_features(
        &self,
        updates: &BTreeMap<Text, (i16, FeatureUpgrade)>,
        validate_only: bool,
    ) -> Result<(), AdminError> {
        let call = UpdateFeatures { updates: updates.clone(), timeout_ms: self.timeout_ms(), validate_only };
        self.run_one(&call, ()).await
    }

    /// The quorum that keeps the cluster's metadata. Cancel-safe.
    pub async fn describe_quorum(&self) -> Result<Quorum, AdminError> {
        self.run_one(&DescribeQuorum, ()).await
    }

    /// Elects leaders (KIP-460). Where the right one leads already the result is `ELECTION_NOT_NEEDED`. If the
    /// future is dropped, they may be elected.
    pub async fn elect_leaders(
        &self,
        election: Election,
        partitions: &[TopicPartition],
    ) -> Results<TopicPartition, ()> {
        self.run(&ElectLeaders { election, timeout_ms: self.timeout_ms() }, partitions.to_vec()).await
    }

    /// Moves partitions to other brokers (KIP-455), or cancels their moves where none are named. If the future is
    /// dropped, the moves may have begun.
    pub async fn alter_reassignments(
        &self,
        replicas: &BTreeMap<TopicPartition, Option<Vec<i32>>>,
    ) -> Results<TopicPartition, ()> {
        let call = AlterReassignments { replicas: replicas.clone(), timeout_ms: self.timeout_ms() };
        self.run(&call, replicas.keys().cloned().collect()).await
    }

    /// What is being moved: of these partitions, or of all when none are named. Cancel-safe.
    pub async fn list_reassignments(
        &self,
        partitions: Option<&[TopicPartition]>,
    ) -> Result<BTreeMap<TopicPartition, Reassignment>, AdminError> {
        let call = ListReassignments {
            partitions: partitions.map(<[TopicPartition]>::to_vec),
            timeout_ms: self.timeout_ms(),
        };
        self.run_one(&call, ()).await
    }
}
