//! Settings of topics, brokers and groups: describe, change one by one (KIP-339), replace, list who has some.

use std::collections::BTreeMap;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::describe_configs_request::DescribeConfigsResource;
use ottla_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use ottla_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, DescribeConfigsRequest, DescribeConfigsResponse,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, ListConfigResourcesRequest,
    ListConfigResourcesResponse, alter_configs_request, incremental_alter_configs_request,
};
use ottla_protocol::types::Text;

use super::items::{Call, Item, Place, Results, again_at_controller, item};
use super::{Admin, AdminError};
use crate::connection::Versions;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

/// Whose settings.
///
/// ```
/// use ottla_client::admin::ConfigResource;
///
/// let orders = ConfigResource::Topic("orders".into());
/// assert_eq!((orders.kind_name(), orders.name().as_str()), ("topic", "orders"));
/// let all_brokers = ConfigResource::Broker("".into());
/// assert_ne!(orders, all_brokers);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigResource {
    /// A topic's.
    Topic(Text),
    /// A broker's, by id; empty for the defaults of all.
    Broker(Text),
    /// A group's (KIP-848).
    Group(Text),
    /// A subscription to clients' metrics (KIP-714).
    ClientMetrics(Text),
}

impl ConfigResource {
    fn kind(&self) -> i8 {
        match self {
            Self::Topic(_) => TOPIC,
            Self::Broker(_) => BROKER,
            Self::ClientMetrics(_) => CLIENT_METRICS,
            Self::Group(_) => GROUP,
        }
    }

    fn from_wire(kind: i8, name: &Text) -> Option<Self> {
        let name = name.detached();
        match kind {
            TOPIC => Some(Self::Topic(name)),
            BROKER => Some(Self::Broker(name)),
            CLIENT_METRICS => Some(Self::ClientMetrics(name)),
            GROUP => Some(Self::Group(name)),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &Text {
        match self {
            Self::Topic(name) | Self::Broker(name) | Self::Group(name) | Self::ClientMetrics(name) => name,
        }
    }

    /// Its kind in Kafka's word: `topic`, `broker`, `group` or `client-metrics`.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Topic(_) => "topic",
            Self::Broker(_) => "broker",
            Self::Group(_) => "group",
            Self::ClientMetrics(_) => "client-metrics",
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Broker(name) if name.as_str().is_empty() => "all brokers".to_owned(),
            other => format!("{} `{}`", other.kind_name(), other.name()),
        }
    }

    /// A broker's own settings are known to it alone.
    fn place(&self) -> Place {
        match self {
            Self::Broker(id) => id.as_str().parse().map_or(Place::Controller, Place::Node),
            Self::Topic(_) | Self::Group(_) | Self::ClientMetrics(_) => Place::Controller,
        }
    }
}

/// Where a value comes from.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::{ConfigResource, ConfigSource};
///
/// let settings = admin.describe_configs(&ConfigResource::Topic("orders".into())).await?;
/// let retention = settings.iter().find(|setting| setting.name == "retention.ms").expect("every topic has it");
/// assert_eq!(retention.source, ConfigSource::Default);
/// assert_eq!(retention.source.name(), "DEFAULT_CONFIG");
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// Set on this topic.
    Topic,
    /// Set on this broker while it runs.
    DynamicBroker,
    /// Set on all brokers while they run.
    DynamicDefaultBroker,
    /// The broker's own file, environment or flags.
    StaticBroker,
    /// Nothing was set.
    Default,
    /// Set on this group.
    Group,
    /// Set on this subscription to clients' metrics.
    ClientMetrics,
    /// One of Kafka's other numbers.
    Other(i8),
}

impl ConfigSource {
    fn from_wire(number: i8) -> Self {
        match number {
            1 => Self::Topic,
            2 => Self::DynamicBroker,
            3 => Self::DynamicDefaultBroker,
            4 => Self::StaticBroker,
            5 => Self::Default,
            7 => Self::ClientMetrics,
            8 => Self::Group,
            other => Self::Other(other),
        }
    }

    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Topic => "DYNAMIC_TOPIC_CONFIG",
            Self::DynamicBroker => "DYNAMIC_BROKER_CONFIG",
            Self::DynamicDefaultBroker => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            Self::StaticBroker => "STATIC_BROKER_CONFIG",
            Self::Default => "DEFAULT_CONFIG",
            Self::ClientMetrics => "DYNAMIC_CLIENT_METRICS_CONFIG",
            Self::Group => "DYNAMIC_GROUP_CONFIG",
            Self::Other(_) => "UNKNOWN",
        }
    }
}

/// A value that would hold if those in front of it were not set.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let settings = admin.describe_configs(&ConfigResource::Topic("orders".into())).await?;
/// # let retention = settings.iter().find(|setting| setting.name == "retention.ms").expect("every topic has it");
/// for synonym in &retention.synonyms {
///     println!("{} = {:?}, from {}", synonym.name, synonym.value, synonym.source.name());
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSynonym {
    /// The setting's name there; a broker's default of a topic's setting has another.
    pub name: Text,
    /// The value; absent when it is secret.
    pub value: Option<Text>,
    /// Where it comes from.
    pub source: ConfigSource,
}

/// One setting.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::ConfigResource;
///
/// for setting in admin.describe_configs(&ConfigResource::Topic("orders".into())).await? {
///     if !setting.is_default {
///         println!("{} = {:?}", setting.name, setting.value);
///     }
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Its name.
    pub name: Text,
    /// Its value; absent when it is secret.
    pub value: Option<Text>,
    /// Where the value comes from.
    pub source: ConfigSource,
    /// Whether it holds because nothing was set on this very resource while it runs.
    pub is_default: bool,
    /// Whether it cannot be changed.
    pub is_read_only: bool,
    /// Whether its value is secret.
    pub is_sensitive: bool,
    /// All values that there are, the one that holds first.
    pub synonyms: Vec<ConfigSynonym>,
    /// What it does, when the broker tells.
    pub documentation: Option<Text>,
}

/// How a setting changes.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::{AlterConfig, ConfigOperation, ConfigResource};
///
/// let orders = ConfigResource::Topic("orders".into());
/// let (operation, value) = (ConfigOperation::Append, Some("compact".into()));
/// let also_compacted = AlterConfig { name: "cleanup.policy".into(), operation, value };
/// admin.alter_configs(&orders, &[also_compacted]).await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigOperation {
    /// To this value.
    Set,
    /// To its default.
    Delete,
    /// A list gains these.
    Append,
    /// A list loses these.
    Subtract,
}

/// A change of one setting.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::admin::{AlterConfig, ConfigResource};
///
/// let orders = ConfigResource::Topic("orders".into());
/// admin.alter_configs(&orders, &[AlterConfig::set("retention.ms", "3600000")]).await?;
/// admin.alter_configs(&orders, &[AlterConfig::delete("retention.ms")]).await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterConfig {
    /// Its name.
    pub name: Text,
    /// How.
    pub operation: ConfigOperation,
    /// The value; absent for `Delete`.
    pub value: Option<Text>,
}

impl AlterConfig {
    /// The setting gets this value.
    pub fn set(name: impl Into<Text>, value: impl Into<Text>) -> Self {
        Self { name: name.into(), operation: ConfigOperation::Set, value: Some(value.into()) }
    }

    /// The setting gets its default.
    pub fn delete(name: impl Into<Text>) -> Self {
        Self { name: name.into(), operation: ConfigOperation::Delete, value: None }
    }
}

/// The result of a resource in an answer; none for kinds that we do not know.
type ResourceItem<T> = Option<(ConfigResource, Item<T>)>;

struct DescribeConfigs {
    documentation: bool,
}

impl Call for DescribeConfigs {
    type Key = ConfigResource;
    type Request = DescribeConfigsRequest;
    type Value = Vec<ConfigEntry>;
    const USABLE: Versions = Versions::new(1, 4);

    fn place(&self, resource: &ConfigResource) -> Place {
        resource.place()
    }

    fn request(&self, keys: &[ConfigResource]) -> DescribeConfigsRequest {
        let resources = keys.iter().map(|resource| DescribeConfigsResource {
            resource_type: resource.kind(),
            resource_name: resource.name().clone(),
            configuration_keys: None,
            ..DescribeConfigsResource::default()
        });
        DescribeConfigsRequest {
            resources: resources.collect(),
            include_synonyms: true,
            include_documentation: self.documentation,
            ..DescribeConfigsRequest::default()
        }
    }

    fn read(
        &self,
        _: &[ConfigResource],
        answer: DescribeConfigsResponse,
    ) -> Vec<(ConfigResource, Item<Vec<ConfigEntry>>)> {
        let results = answer.results.iter().filter_map(|result| -> ResourceItem<Vec<ConfigEntry>> {
            let resource = ConfigResource::from_wire(result.resource_type, &result.resource_name)?;
            let entries = || result.configs.iter().map(entry).collect();
            Some((resource, item(result.error_code, result.error_message.as_ref(), entries)))
        });
        results.collect()
    }

    fn what(&self, resource: &ConfigResource) -> String {
        format!("describing the settings of {}", resource.describe())
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

fn entry(config: &DescribeConfigsResourceResult) -> ConfigEntry {
    let source = ConfigSource::from_wire(config.config_source);
    let synonyms = config.synonyms.iter().map(|synonym| ConfigSynonym {
        name: synonym.name.detached(),
        value: synonym.value.as_ref().map(Text::detached),
        source: ConfigSource::from_wire(synonym.source),
    });
    ConfigEntry {
        name: config.name.detached(),
        value: config.value.as_ref().map(Text::detached),
        source,
        is_default: !matches!(
            source,
            ConfigSource::Topic
                | ConfigSource::DynamicBroker
                | ConfigSource::Group
                | ConfigSource::ClientMetrics
        ),
        is_read_only: config.read_only,
        is_sensitive: config.is_sensitive,
        synonyms: synonyms.collect(),
        documentation: config.documentation.as_ref().map(Text::detached),
    }
}

struct IncrementalAlterConfigs {
    changes: BTreeMap<ConfigResource, Vec<AlterConfig>>,
    validate_only: bool,
}

impl Call for IncrementalAlterConfigs {
    type Key = ConfigResource;
    type Request = IncrementalAlterConfigsRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(0, 1);

    fn place(&self, resource: &ConfigResource) -> Place {
        resource.place()
    }

    fn request(&self, keys: &[ConfigResource]) -> IncrementalAlterConfigsRequest {
        use incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
        let resources = keys.iter().map(|resource| {
            let changes = self.changes.get(resource).into_iter().flatten();
            let configs = changes.map(|change| AlterableConfig {
                name: change.name.clone(),
                config_operation: match change.operation {
                    ConfigOperation::Set => 0,
                    ConfigOperation::Delete => 1,
                    ConfigOperation::Append => 2,
                    ConfigOperation::Subtract => 3,
                },
                value: change.value.clone(),
                ..AlterableConfig::default()
            });
            AlterConfigsResource {
                resource_type: resource.kind(),
                resource_name: resource.name().clone(),
                configs: configs.collect(),
                ..AlterConfigsResource::default()
            }
        });
        IncrementalAlterConfigsRequest {
            resources: resources.collect(),
            validate_only: self.validate_only,
            ..IncrementalAlterConfigsRequest::default()
        }
    }

    fn read(
        &self,
        _: &[ConfigResource],
        answer: IncrementalAlterConfigsResponse,
    ) -> Vec<(ConfigResource, Item<()>)> {
        let results = answer.responses.iter().filter_map(|result| {
            let resource = ConfigResource::from_wire(result.resource_type, &result.resource_name)?;
            Some((resource, item(result.error_code, result.error_message.as_ref(), || ())))
        });
        results.collect()
    }

    fn what(&self, resource: &ConfigResource) -> String {
        format!("changing the settings of {}", resource.describe())
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

struct AlterConfigs {
    values: BTreeMap<ConfigResource, BTreeMap<Text, Text>>,
    validate_only: bool,
}

impl Call for AlterConfigs {
    type Key = ConfigResource;
    type Request = AlterConfigsRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(0, 2);

    fn place(&self, resource: &ConfigResource) -> Place {
        resource.place()
    }

    fn request(&self, keys: &[ConfigResource]) -> AlterConfigsRequest {
        use alter_configs_request::{AlterConfigsResource, AlterableConfig};
        let resources = keys.iter().map(|resource| {
            let values = self.values.get(resource).into_iter().flatten();
            let configs = values.map(|(name, value)| AlterableConfig {
                name: name.clone(),
                value: Some(value.clone()),
                ..AlterableConfig::default()
            });
            AlterConfigsResource {
                resource_type: resource.kind(),
                resource_name: resource.name().clone(),
                configs: configs.collect(),
                ..AlterConfigsResource::default()
            }
        });
        AlterConfigsRequest {
            resources: resources.collect(),
            validate_only: self.validate_only,
            ..AlterConfigsRequest::default()
        }
    }

    fn read(&self, _: &[ConfigResource], answer: AlterConfigsResponse) -> Vec<(ConfigResource, Item<()>)> {
        let results = answer.responses.iter().filter_map(|result| {
            let resource = ConfigResource::from_wire(result.resource_type, &result.resource_name)?;
            Some((resource, item(result.error_code, result.error_message.as_ref(), || ())))
        });
        results.collect()
    }

    fn what(&self, resource: &ConfigResource) -> String {
        format!("replacing the settings of {}", resource.describe())
    }

    fn again(&self, code: ErrorCode) -> bool {
        again_at_controller(code)
    }
}

struct ListConfigResources {
    kinds: Vec<i8>,
}

impl Call for ListConfigResources {
    type Key = ();
    type Request = ListConfigResourcesRequest;
    type Value = Vec<ConfigResource>;
    const USABLE: Versions = Versions::new(0, 1);

    fn place(&self, (): &()) -> Place {
        Place::Controller
    }

    fn request(&self, _: &[()]) -> ListConfigResourcesRequest {
        ListConfigResourcesRequest { resource_types: self.kinds.clone(), ..Default::default() }
    }

    fn read(&self, _: &[()], answer: ListConfigResourcesResponse) -> Vec<((), Item<Vec<ConfigResource>>)> {
        let resources = || {
            let resources = answer.config_resources.iter();
            resources.filter_map(|r| ConfigResource::from_wire(r.resource_type, &r.resource_name)).collect()
        };
        vec![((), item(answer.error_code, None, resources))]
    }

    fn what(&self, (): &()) -> String {
        "listing what has settings".to_owned()
    }
}

impl Admin {
    /// All settings of resources, with what would hold without those that were set. Cancel-safe.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let client = ClientSettings::new(bootstrap)?;
    /// # let admin = Admin::connect(client.clone()).await?;
    /// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
    /// use std::collections::BTreeMap;
    /// use ottla_client::admin::{AlterConfig, ConfigResource};
    ///
    /// let orders = ConfigResource::Topic("orders".into());
    /// let changes = BTreeMap::from([(orders.clone(), vec![AlterConfig::set("retention.ms", "3600000")])]);
    /// for (resource, checked) in admin.alter_configs_of(&changes, true).await {
    ///     println!("{}: {checked:?}", resource.name());
    /// }
    /// admin.alter_configs(&orders, &changes[&orders]).await?;
    /// assert!(admin.list_config_resources().await?.contains(&orders));
    ///
    /// // everything that is not named here falls back to its default
    /// let values = BTreeMap::from([("retention.ms".into(), "7200000".into())]);
    /// for replaced in admin.replace_configs(&BTreeMap::from([(orders.clone(), values)]), false).await.into_values() {
    ///     replaced?;
    /// }
    /// for (resource, settings) in admin.describe_configs_of(&[orders.clone()]).await {
    ///     println!("{}: {} settings", resource.name(), settings?.len());
    /// }
    /// let settings = admin.describe_configs(&orders).await?;
    /// let retention = settings.iter().find(|setting| setting.name == "retention.ms").expect("every topic has it");
    /// assert_eq!(retention.value, Some("7200000".into()));
    /// # Ok(())
    /// # });
    /// ```
    pub async fn describe_configs_of(
        &self,
        resources: &[ConfigResource],
    ) -> Results<ConfigResource, Vec<ConfigEntry>> {
        self.run(&DescribeConfigs { documentation: false }, resources.to_vec()).await
    }

    /// All settings of one resource, with their documentation where the broker has some. Cancel-safe.
    pub async fn describe_configs(&self, resource: &ConfigResource) -> Result<Vec<ConfigEntry>, AdminError> {
        self.run_one(&DescribeConfigs { documentation: true }, resource.clone()).await
    }

    /// Changes settings of resources (KIP-339), per resource all or none. With `validate_only` nothing is changed,
    /// only checked. If the future is dropped, they may be changed.
    pub async fn alter_configs_of(
        &self,
        changes: &BTreeMap<ConfigResource, Vec<AlterConfig>>,
        validate_only: bool,
    ) -> Results<ConfigResource, ()> {
        let call = IncrementalAlterConfigs { changes: changes.clone(), validate_only };
        self.run(&call, changes.keys().cloned().collect()).await
    }

    /// Changes settings of one resource, as `alter_configs_of` does.
    pub async fn alter_configs(
        &self,
        resource: &ConfigResource,
        changes: &[AlterConfig],
    ) -> Result<(), AdminError> {
        let changes = BTreeMap::from([(resource.clone(), changes.to_vec())]);
        self.run_one(&IncrementalAlterConfigs { changes, validate_only: false }, resource.clone()).await
    }

    /// Replaces all settings of resources by these: what is not named falls back to its default. The older request
    /// (AlterConfigs), for brokers before 2.3; `alter_configs_of` is the safe one, since nothing is lost between
    /// reading and writing. If the future is dropped, they may be replaced.
    pub async fn replace_configs(
        &self,
        values: &BTreeMap<ConfigResource, BTreeMap<Text, Text>>,
        validate_only: bool,
    ) -> Results<ConfigResource, ()> {
        let call = AlterConfigs { values: values.clone(), validate_only };
        self.run(&call, values.keys().cloned().collect()).await
    }

    /// Who has settings of his own, or is known to have none (KIP-1142): topics, brokers, groups, subscriptions to
    /// metrics. Cancel-safe.
    pub async fn list_config_resources(&self) -> Result<Vec<ConfigResource>, AdminError> {
        let kinds = vec![TOPIC, BROKER, GROUP, CLIENT_METRICS];
        let mut resources = self.run_one(&ListConfigResources { kinds }, ()).await?;
        resources.sort();
        Ok(resources)
    }
}
