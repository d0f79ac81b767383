//! IncrementalAlterConfigs, versions 0 and 1 (KIP-339): settings of topics, and what is dynamic of the broker.
//!
//! Errors per resource: 3 unknown topic, 40 unknown setting or invalid value, 42 everything that is wrong with
//! the request itself. A resource changes as a whole or not at all; those that pass become one decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use ottla_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use ottla_protocol::types::Text;

use super::config::{ConfigError, ConfigType, Definition, broker_definition, list, topic_definition};
use super::{EVERY_BROKER, Topic, records};
use crate::command::Context;
use crate::decision::Reply;
use crate::shard::{NewRecord, ShardState, Step};

/// Resource type of a topic.
const TOPIC: i8 = 2;
/// Resource type of a broker.
const BROKER: i8 = 4;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Code and text of a refusal.
type Refused = (ErrorCode, String);

fn invalid_request(reason: impl Into<String>) -> Refused {
    (ErrorCode::InvalidRequest, reason.into())
}

impl From<ConfigError> for Refused {
    fn from(error: ConfigError) -> Self {
        (ErrorCode::InvalidConfig, error.to_string())
    }
}

/// Answers IncrementalAlterConfigs.
pub(crate) fn incremental_alter_configs(
    step: &mut Step<'_>,
    context: &Context,
    request: m::IncrementalAlterConfigsRequest,
) {
    let mut seen = BTreeSet::new();
    let twice: BTreeSet<(i8, Text)> = request
        .resources
        .iter()
        .map(|resource| (resource.resource_type, resource.resource_name.clone()))
        .filter(|resource| !seen.insert(resource.clone()))
        .collect();
    let mut new_records = Vec::new();
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let key = (resource.resource_type, resource.resource_name.clone());
        let planned = if twice.contains(&key) {
            Err(invalid_request("each resource appears once in a request"))
        } else {
            plan(step.state, &resource)
        };
        let (error_code, error_message) = match planned {
            Ok(planned) => {
                new_records.extend(planned);
                (ErrorCode::None, None)
            }
            Err((code, message)) => (code, Some(message.into())),
        };
        responses.push(AlterConfigsResourceResponse {
            error_code: error_code.code(),
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
            ..Default::default()
        });
    }
    if !new_records.is_empty() && !request.validate_only {
        step.append_control(&new_records);
    }
    let state = &*step.state;
    let rests_on = if step.has_entries() {
        step.position()
    } else {
        state.topics.rests_on().max(state.cluster.rests_on())
    };
    let reply = m::IncrementalAlterConfigsResponse { responses, ..Default::default() };
    step.answer(context.token, Reply::IncrementalAlterConfigs(reply), rests_on);
}

/// What a resource's changes come to as records.
fn plan(state: &ShardState, resource: &AlterConfigsResource) -> Result<Vec<NewRecord>, Refused> {
    let mut names = BTreeSet::new();
    if let Some(config) = resource.configs.iter().find(|config| !names.insert(&config.name)) {
        return Err(invalid_request(format!("setting {} appears twice", config.name)));
    }
    for config in &resource.configs {
        if !(SET..=SUBTRACT).contains(&config.config_operation) {
            return Err(invalid_request(format!(
                "unknown operation {} on {}",
                config.config_operation, config.name
            )));
        }
        if config.config_operation != DELETE && config.value.is_none() {
            return Err(invalid_request(format!("setting {} needs a value", config.name)));
        }
    }
    match resource.resource_type {
        TOPIC => plan_topic(state, resource),
        BROKER => plan_broker(state, resource),
        kind => Err(invalid_request(format!("settings of resource type {kind} cannot be altered"))),
    }
}

fn plan_topic(state: &ShardState, resource: &AlterConfigsResource) -> Result<Vec<NewRecord>, Refused> {
    let name = &resource.resource_name;
    let unknown = || (ErrorCode::UnknownTopicOrPartition, format!("there is no topic {name}"));
    let topic = state.topics.by_name(name).ok_or_else(unknown)?;
    let mut overrides: BTreeMap<&str, Text> = topic
        .config
        .overrides()
        .filter(|(name, _)| topic_definition(name).is_some())
        .map(|(name, value)| (name, value.clone()))
        .collect();
    for config in &resource.configs {
        let definition = topic_definition(&config.name)
            .ok_or_else(|| ConfigError::Unknown { name: config.name.clone() })?;
        let current = topic.config.override_of(definition.name).map_or(definition.default, Text::as_str);
        match altered(definition, current, config)? {
            Some(value) => overrides.insert(definition.name, value),
            None => overrides.remove(definition.name),
        };
    }
    let config = topic.config.altered(overrides, state.config.limits.config_value_bytes_max)?;
    if config == *topic.config {
        return Ok(Vec::new());
    }
    Ok(vec![records::topic(&Topic { config: Arc::new(config), ..Topic::clone(topic) })])
}

fn plan_broker(state: &ShardState, resource: &AlterConfigsResource) -> Result<Vec<NewRecord>, Refused> {
    let name = resource.resource_name.as_str();
    let node_id = match name {
        "" => EVERY_BROKER,
        name if name.parse() == Ok(state.config.node_id) => state.config.node_id,
        _ => {
            let node_id = state.config.node_id;
            return Err(invalid_request(format!(
                "{name} is not the id of a broker; there is broker {node_id}"
            )));
        }
    };
    let mut new_records = Vec::new();
    for config in &resource.configs {
        let broker = broker_definition(&config.name)
            .ok_or_else(|| ConfigError::Unknown { name: config.name.clone() })?;
        if !broker.is_dynamic() {
            return Err(invalid_request(format!(
                "setting {} cannot change while the broker runs",
                config.name
            )));
        }
        let value = altered(&broker.definition, &broker.get(&state.config), config)?;
        if let Some(value) = &value {
            broker.definition.check(value)?;
        }
        new_records.push(records::broker_config(node_id, broker.name(), value));
    }
    Ok(new_records)
}

/// The value that an operation makes of the current one; none to remove it.
fn altered(
    definition: &Definition,
    current: &str,
    config: &AlterableConfig,
) -> Result<Option<Text>, Refused> {
    let operand = config.value.as_deref().unwrap_or_default();
    match config.config_operation {
        DELETE => return Ok(None),
        SET => return Ok(Some(operand.trim().into())),
        _ => {}
    }
    if definition.kind != ConfigType::List {
        let reason =
            format!("setting {} is no list, elements cannot be added or taken away", definition.name);
        return Err((ErrorCode::InvalidConfig, reason));
    }
    let mut elements: Vec<&str> = list(current).collect();
    for element in list(operand) {
        if config.config_operation == APPEND {
            if !elements.contains(&element) {
                elements.push(element);
            }
        } else {
            elements.retain(|there| *there != element);
        }
    }
    Ok(Some(elements.join(",").into()))
}
