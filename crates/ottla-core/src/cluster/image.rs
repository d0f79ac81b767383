//! What readers see of the cluster: one immutable value, published when the position it shows is durable.
//!
//! Place in the walk: made by the owner after a decision with `image_changed`; used by Metadata, ApiVersions,
//! DescribeConfigs, FindCoordinator and by connections to look up a topic's settings and id.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ottla_protocol::types::{Text, Uuid};

use super::config::{GroupConfigs, Setting, Sources};
use super::{Features, Topic, TopicMap};
use crate::config::CoreConfig;
use crate::decision::Position;
use crate::shard::ShardState;

/// Topics, features and settings as of one position.
pub struct Image {
    /// The cluster's id; zero before the cluster was made.
    pub cluster_id: Uuid,
    /// Finalized features.
    pub features: Arc<Features>,
    /// The position it shows.
    pub position: Position,
    topics: TopicMap,
    /// The topics by name, sorted when somebody first asks.
    sorted: OnceLock<Vec<Arc<Topic>>>,
    /// The settings in force.
    pub config: Arc<CoreConfig>,
    static_config: Arc<CoreConfig>,
    broker_configs: Arc<BTreeMap<(i32, Text), Text>>,
    group_configs: Arc<GroupConfigs>,
}

impl Image {
    pub(crate) fn of(state: &ShardState) -> Self {
        Self {
            cluster_id: state.cluster.cluster_id,
            features: state.cluster.features.clone(),
            position: state.position,
            topics: state.topics.map().clone(),
            sorted: OnceLock::new(),
            config: state.cluster.config.clone(),
            static_config: state.cluster.static_config.clone(),
            broker_configs: state.cluster.broker_configs.clone(),
            group_configs: state.cluster.group_configs.clone(),
        }
    }

    /// The topic with this name.
    pub fn topic_by_name(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics.by_name(name)
    }

    /// The topic with this id.
    pub fn topic_by_id(&self, id: Uuid) -> Option<&Arc<Topic>> {
        self.topics.by_id(id)
    }

    /// All topics by name, internal ones included.
    pub fn topics(&self) -> Vec<&Arc<Topic>> {
        self.sorted.get_or_init(|| self.topics.sorted().into_iter().cloned().collect()).iter().collect()
    }

    /// Number of topics, internal ones included.
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// Everything that a setting's value may come from.
    pub fn sources(&self) -> Sources<'_> {
        Sources { static_config: &self.static_config, config: &self.config, dynamic: &self.broker_configs }
    }

    /// Every setting of a group, whether it exists or not, by name.
    pub fn group_settings(&self, group: &str) -> Vec<Setting> {
        self.group_configs.settings(group, self.sources())
    }

    /// What was set for groups.
    pub fn group_configs(&self) -> &GroupConfigs {
        &self.group_configs
    }
}
