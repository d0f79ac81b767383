//! IncrementalAlterConfigs, versions 0 and 1 (KIP-339), and AlterConfigs, versions 0 to 2 (KIP-133): settings of
//! topics and of groups (`alter_group`), and what is dynamic of the broker.
//!
//! Errors per resource: 3 unknown topic, 17 not a topic's name, 40 unknown setting or invalid value of a topic, 42
//! everything that is wrong with the request itself, and an invalid value of a broker, as Kafka has it; to take away
//! what is not there, or is not known, changes nothing and is no error; 44 too many groups with settings. A resource
//! changes as a whole or not at all; those that pass become one decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::alter_configs_request::AlterConfigsResource as Replaced;
use ottla_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use ottla_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use ottla_protocol::types::Text;

use super::config::{
    BrokerDefinition, ConfigError, ConfigType, Definition, Update, broker_definition, list, topic_definition,
};
use super::{EVERY_BROKER, Topic, alter_group, records, validate_name};
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::{NewRecord, ShardState, Step};

/// Resource type of a topic.
const TOPIC: i8 = 2;
/// Resource type of a broker.
const BROKER: i8 = 4;
/// Resource type of the levels of a broker's log messages.
const BROKER_LOGGER: i8 = 8;
/// Resource type of a group.
const GROUP: i8 = 32;

const SET: i8 = 0;
pub(super) const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Code and text of a refusal.
pub(super) type Refused = (ErrorCode, String);

pub(super) fn invalid_request(reason: impl Into<String>) -> Refused {
    (ErrorCode::InvalidRequest, reason.into())
}

/// Of a resource whose settings cannot be altered.
fn not_alterable(resource_type: i8) -> Refused {
    invalid_request(match resource_type {
        BROKER_LOGGER => "the levels of log messages are set at the broker's start, by OTTLA_LOG".to_owned(),
        kind => format!("settings of resource type {kind} cannot be altered"),
    })
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
    let key = |resource: &AlterConfigsResource| (resource.resource_type, resource.resource_name.clone());
    let state = &*step.state;
    let (outcomes, new_records) =
        plan_all(&request.resources, key, |resource, planned| plan(state, resource, planned));
    let response = |outcome: Outcome| AlterConfigsResourceResponse {
        error_code: outcome.error_code.code(),
        error_message: outcome.error_message,
        resource_type: outcome.resource_type,
        resource_name: outcome.resource_name,
        ..Default::default()
    };
    let responses = outcomes.into_iter().map(response).collect();
    let rests_on = append(step, &new_records, request.validate_only);
    let reply = m::IncrementalAlterConfigsResponse { responses, ..Default::default() };
    step.answer(context.token, Reply::IncrementalAlterConfigs(reply), rests_on);
}

/// Answers AlterConfigs: what is named replaces everything that was set for the resource.
pub(crate) fn alter_configs(step: &mut Step<'_>, context: &Context, request: m::AlterConfigsRequest) {
    let key = |resource: &Replaced| (resource.resource_type, resource.resource_name.clone());
    let state = &*step.state;
    let (outcomes, new_records) =
        plan_all(&request.resources, key, |resource, planned| plan_replaced(state, resource, planned));
    let response = |outcome: Outcome| m::alter_configs_response::AlterConfigsResourceResponse {
        error_code: outcome.error_code.code(),
        error_message: outcome.error_message,
        resource_type: outcome.resource_type,
        resource_name: outcome.resource_name,
        ..Default::default()
    };
    let responses = outcomes.into_iter().map(response).collect();
    let rests_on = append(step, &new_records, request.validate_only);
    let reply = m::AlterConfigsResponse { responses, ..Default::default() };
    step.answer(context.token, Reply::AlterConfigs(reply), rests_on);
}

/// What became of one resource.
struct Outcome {
    resource_type: i8,
    resource_name: Text,
    error_code: ErrorCode,
    error_message: Option<Text>,
}

/// Plans every resource, with the number of records planned before; one that is named twice is refused each time.
fn plan_all<R>(
    resources: &[R],
    key: impl Fn(&R) -> (i8, Text),
    plan: impl Fn(&R, usize) -> Result<Vec<NewRecord>, Refused>,
) -> (Vec<Outcome>, Vec<NewRecord>) {
    let mut seen = BTreeSet::new();
    let twice: BTreeSet<(i8, Text)> =
        resources.iter().map(&key).filter(|resource| !seen.insert(resource.clone())).collect();
    let mut new_records = Vec::new();
    let mut outcomes = Vec::with_capacity(resources.len());
    for resource in resources {
        let key = key(resource);
        let planned = if twice.contains(&key) {
            Err(invalid_request("each resource appears once in a request"))
        } else {
            plan(resource, new_records.len())
        };
        let (resource_type, resource_name) = key;
        let (error_code, error_message) = match planned {
            Ok(planned) => {
                new_records.extend(planned);
                (ErrorCode::None, None)
            }
            Err((code, message)) => (code, Some(message.into())),
        };
        outcomes.push(Outcome { resource_type, resource_name, error_code, error_message });
    }
    (outcomes, new_records)
}

/// Writes what was planned, unless it was only to be validated; what the answer rests on.
fn append(step: &mut Step<'_>, new_records: &[NewRecord], validate_only: bool) -> Position {
    if !new_records.is_empty() && !validate_only {
        step.append_control(new_records);
        return step.position();
    }
    step.state.topics.rests_on().max(step.state.cluster.rests_on())
}

/// What a resource's changes come to as records.
fn plan(
    state: &ShardState,
    resource: &AlterConfigsResource,
    planned: usize,
) -> Result<Vec<NewRecord>, Refused> {
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
        GROUP => alter_group::plan(state, resource, planned),
        kind => Err(not_alterable(kind)),
    }
}

fn plan_topic(state: &ShardState, resource: &AlterConfigsResource) -> Result<Vec<NewRecord>, Refused> {
    let topic = find_topic(state, &resource.resource_name)?;
    let mut overrides: BTreeMap<&str, Text> = topic
        .config
        .overrides()
        .filter(|(name, _)| topic_definition(name).is_some())
        .map(|(name, value)| (name, value.clone()))
        .collect();
    for config in &resource.configs {
        let Some(definition) = topic_definition(&config.name) else {
            if config.config_operation == DELETE {
                continue;
            }
            return Err(ConfigError::Unknown { name: config.name.clone() }.into());
        };
        if config.config_operation != DELETE {
            check_internal(topic, definition)?;
        }
        let own = topic.config.override_of(definition.name).map(Text::to_string);
        let inherited = || state.config.kept.topic_default(definition).into_owned();
        match altered(definition, &own.unwrap_or_else(inherited), config)? {
            Some(value) => overrides.insert(definition.name, value),
            None => overrides.remove(definition.name),
        };
    }
    topic_record(state, topic, overrides)
}

fn find_topic<'a>(state: &'a ShardState, name: &Text) -> Result<&'a Topic, Refused> {
    if name.is_empty() {
        return Err(invalid_request("there are no settings of all topics"));
    }
    validate_name(name).map_err(|reason| (ErrorCode::InvalidTopicException, reason.to_owned()))?;
    let unknown = || (ErrorCode::UnknownTopicOrPartition, format!("there is no topic {name}"));
    state.topics.by_name(name).map(|topic| &**topic).ok_or_else(unknown)
}

/// Refuses what would not hold: the broker's own records are not bound by the largest batch that clients may send.
fn check_internal(topic: &Topic, definition: &Definition) -> Result<(), Refused> {
    if topic.is_internal() && definition.name == "max.message.bytes" {
        let reason = format!("setting {} has no effect on {}", definition.name, topic.name);
        return Err((ErrorCode::InvalidConfig, reason));
    }
    Ok(())
}

/// The topic's record with these settings; none if they are those it has.
fn topic_record(
    state: &ShardState,
    topic: &Topic,
    overrides: BTreeMap<&str, Text>,
) -> Result<Vec<NewRecord>, Refused> {
    let config =
        topic.config.altered(overrides, state.config.limits.config_value_bytes_max, &state.config.kept)?;
    if config == *topic.config {
        return Ok(Vec::new());
    }
    Ok(vec![records::topic(&Topic { config: Arc::new(config), ..Topic::clone(topic) })])
}

/// What replacing a resource's settings comes to as records.
fn plan_replaced(state: &ShardState, resource: &Replaced, planned: usize) -> Result<Vec<NewRecord>, Refused> {
    let mut wanted: BTreeMap<&str, &Text> = BTreeMap::new();
    for config in &resource.configs {
        let null = || invalid_request(format!("setting {} needs a value", config.name));
        let value = config.value.as_ref().ok_or_else(null)?;
        if wanted.insert(&config.name, value).is_some() {
            return Err(invalid_request(format!("setting {} appears twice", config.name)));
        }
    }
    match resource.resource_type {
        TOPIC => {
            let topic = find_topic(state, &resource.resource_name)?;
            let mut overrides = BTreeMap::new();
            for (name, value) in wanted {
                if let Some(definition) = topic_definition(name) {
                    check_internal(topic, definition)?;
                }
                overrides.insert(name, value.clone());
            }
            topic_record(state, topic, overrides)
        }
        BROKER => replace_broker(state, node(state, &resource.resource_name)?, &wanted),
        GROUP => {
            let overrides = wanted.into_iter().map(|(name, value)| (name.into(), value.trim().into()));
            alter_group::replace(state, &resource.resource_name, overrides.collect(), planned)
        }
        kind => Err(not_alterable(kind)),
    }
}

fn replace_broker(
    state: &ShardState,
    node_id: i32,
    wanted: &BTreeMap<&str, &Text>,
) -> Result<Vec<NewRecord>, Refused> {
    let there = state.cluster.broker_configs.iter().filter(|((of, _), _)| *of == node_id);
    let removed = there
        .filter_map(|((_, name), _)| broker_definition(name))
        .filter(|broker| !wanted.contains_key(broker.name()));
    let mut changes: Vec<Change> = removed.map(|broker| (node_id, broker.name(), None)).collect();
    for (name, value) in wanted {
        let broker = dynamic_setting(name, node_id)?;
        changes.push((node_id, broker.name(), Some(value.trim().into())));
    }
    broker_records(state, &changes)
}

/// A node, one of its settings, and its new value; none to take it away.
type Change = (i32, &'static str, Option<Text>);

/// Checks the values, alone and together, and makes records of those that are new.
fn broker_records(state: &ShardState, changes: &[Change]) -> Result<Vec<NewRecord>, Refused> {
    let bytes_max = state.config.limits.config_value_bytes_max;
    for (_, name, value) in changes {
        let definition = &broker_definition(name).expect("changes are of known settings").definition;
        let Some(value) = value else { continue };
        if value.len() > bytes_max {
            return Err(invalid_request(ConfigError::TooLong { name, bytes_max }.to_string()));
        }
        definition.check(value).map_err(|error| invalid_request(error.to_string()))?;
    }
    state.cluster.config_with(changes).check().map_err(invalid_request)?;
    let there = |node_id: i32, name| state.cluster.broker_configs.get(&(node_id, Text::from_static(name)));
    let is_new = |(node_id, name, value): &&Change| there(*node_id, name) != value.as_ref();
    let new = changes.iter().filter(is_new);
    Ok(new.map(|(node_id, name, value)| records::broker_config(*node_id, name, value.clone())).collect())
}

/// The node whose settings are meant.
fn node(state: &ShardState, name: &str) -> Result<i32, Refused> {
    let node_id = state.config.node_id;
    match name {
        "" => Ok(EVERY_BROKER),
        name if name.parse() == Ok(node_id) => Ok(node_id),
        _ => Err(invalid_request(format!("{name} is not the id of a broker; there is broker {node_id}"))),
    }
}

/// A setting of the broker that may change while it runs, and may be set for this node or all of them.
fn dynamic_setting(name: &str, node_id: i32) -> Result<&'static BrokerDefinition, Refused> {
    let broker = broker_definition(name).ok_or_else(|| ConfigError::Unknown { name: name.into() })?;
    match broker.update {
        Update::ReadOnly => {
            Err(invalid_request(format!("setting {name} cannot change while the broker runs")))
        }
        Update::PerBroker if node_id == EVERY_BROKER => {
            Err(invalid_request(format!("setting {name} is one broker's, not that of all")))
        }
        Update::PerBroker | Update::ClusterWide => Ok(broker),
    }
}

fn plan_broker(state: &ShardState, resource: &AlterConfigsResource) -> Result<Vec<NewRecord>, Refused> {
    let node_id = node(state, &resource.resource_name)?;
    let mut changes: Vec<Change> = Vec::new();
    for config in &resource.configs {
        if config.config_operation == DELETE {
            changes.extend(broker_definition(&config.name).map(|broker| (node_id, broker.name(), None)));
            continue;
        }
        let broker = dynamic_setting(&config.name, node_id)?;
        let current = broker.get(&state.config).unwrap_or_default();
        changes.push((node_id, broker.name(), altered(&broker.definition, &current, config)?));
    }
    broker_records(state, &changes)
}

/// The value that an operation makes of the current one; none to remove it.
pub(super) fn altered(
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
