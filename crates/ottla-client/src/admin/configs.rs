//! Settings of topics and brokers: describe and change.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::describe_configs_request::DescribeConfigsResource;
use ottla_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use ottla_protocol::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};
use ottla_protocol::types::Text;

use super::{Admin, AdminError};
use crate::connection::Versions;

const DESCRIBE_CONFIGS: Versions = Versions::new(1, 4);
const INCREMENTAL_ALTER_CONFIGS: Versions = Versions::new(0, 1);

/// Whose settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigResource {
    /// A topic's.
    Topic(Text),
    /// A broker's, by id; empty for the defaults of all.
    Broker(Text),
}

impl ConfigResource {
    fn kind(&self) -> i8 {
        match self {
            Self::Topic(_) => 2,
            Self::Broker(_) => 4,
        }
    }

    fn name(&self) -> &Text {
        match self {
            Self::Topic(name) | Self::Broker(name) => name,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Topic(name) => format!("topic `{name}`"),
            Self::Broker(name) => format!("broker `{name}`"),
        }
    }
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Its name.
    pub name: Text,
    /// Its value; absent when it is secret.
    pub value: Option<Text>,
    /// Whether it holds because nothing else was set: Kafka's source 5, or that of the broker's own file.
    pub is_default: bool,
    /// Whether it cannot be changed.
    pub is_read_only: bool,
}

/// How a setting changes.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterConfig {
    /// Its name.
    pub name: Text,
    /// How.
    pub operation: ConfigOperation,
    /// The value; absent for `Delete`.
    pub value: Option<Text>,
}

/// Kafka's number for "set on this topic".
const SOURCE_TOPIC: i8 = 1;
/// Kafka's number for "set on this broker while running".
const SOURCE_DYNAMIC_BROKER: i8 = 2;

impl Admin {
    /// All settings of a topic or broker. Cancel-safe.
    pub async fn describe_configs(&self, resource: &ConfigResource) -> Result<Vec<ConfigEntry>, AdminError> {
        let asked = DescribeConfigsResource {
            resource_type: resource.kind(),
            resource_name: resource.name().clone(),
            configuration_keys: None,
            ..DescribeConfigsResource::default()
        };
        let request = DescribeConfigsRequest { resources: vec![asked], ..DescribeConfigsRequest::default() };
        let (answer, _) = self
            .call_controller(&request, DESCRIBE_CONFIGS, |answer| {
                answer
                    .results
                    .first()
                    .map_or(ErrorCode::UnknownServerError, |r| ErrorCode::from_code(r.error_code))
            })
            .await?;
        let what = || format!("describing the settings of {}", resource.describe());
        let Some(result) = answer.results.first() else {
            return AdminError::check(ErrorCode::UnknownServerError.code(), None, what).map(|()| Vec::new());
        };
        AdminError::check(result.error_code, result.error_message.as_ref(), what)?;
        let entries = result.configs.iter().map(|config| ConfigEntry {
            name: config.name.detached(),
            value: config.value.as_ref().map(Text::detached),
            is_default: !matches!(config.config_source, SOURCE_TOPIC | SOURCE_DYNAMIC_BROKER),
            is_read_only: config.read_only,
        });
        Ok(entries.collect())
    }

    /// Changes settings of a topic or broker, all or none. If the future is dropped, they may be changed.
    pub async fn alter_configs(
        &self,
        resource: &ConfigResource,
        changes: &[AlterConfig],
    ) -> Result<(), AdminError> {
        let configs = changes.iter().map(|change| AlterableConfig {
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
        let altered = AlterConfigsResource {
            resource_type: resource.kind(),
            resource_name: resource.name().clone(),
            configs: configs.collect(),
            ..AlterConfigsResource::default()
        };
        let request = IncrementalAlterConfigsRequest {
            resources: vec![altered],
            ..IncrementalAlterConfigsRequest::default()
        };
        let (answer, _) = self
            .call_controller(&request, INCREMENTAL_ALTER_CONFIGS, |answer| {
                answer
                    .responses
                    .first()
                    .map_or(ErrorCode::UnknownServerError, |r| ErrorCode::from_code(r.error_code))
            })
            .await?;
        let what = || format!("changing the settings of {}", resource.describe());
        match answer.responses.first() {
            Some(result) => AdminError::check(result.error_code, result.error_message.as_ref(), what),
            None => AdminError::check(ErrorCode::UnknownServerError.code(), None, what),
        }
    }
}
