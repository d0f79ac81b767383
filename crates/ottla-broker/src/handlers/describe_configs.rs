//! DescribeConfigs (key 32, versions 1-4): the settings of topics, of this broker and of groups, and where they
//! come from.
//!
//! Answered from the published image. Resource types: 2 topic, 4 broker (its id, or empty for what holds for
//! every broker and was set), 8 levels of log messages (read only), 32 group (whether it exists or not). Secrets
//! would be shown without their value; there are none yet. A resource that is named twice is answered once, and a
//! request that names more than there can be is not: its answer would be far larger than itself.

use std::collections::BTreeSet;

use ottla_core::cluster::Image;
use ottla_core::cluster::config::{ConfigSource, ConfigType, Setting};
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::describe_configs_request::DescribeConfigsResource;
use ottla_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use ottla_protocol::types::Text;

use crate::config::{Config, SETTINGS};
use crate::dispatch::{Incoming, Outcome, respond};
use crate::limits::DESCRIBED_RESOURCES_MAX;
use crate::shared::Shared;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const GROUP: i8 = 32;
/// Source of a level of log messages.
const DYNAMIC_BROKER_LOGGER: i8 = 6;

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::DescribeConfigsRequest::decode(reader, incoming.version)?;
    let named = request.resources.len();
    if named > DESCRIBED_RESOURCES_MAX {
        let reason = format!("the request names {named} resources, {DESCRIBED_RESOURCES_MAX} are allowed");
        return Ok(Outcome::Close(reason));
    }
    let image = shared.view.image();
    let mut seen = BTreeSet::new();
    let (synonyms, documentation) = (request.include_synonyms, request.include_documentation);
    let mut response = m::DescribeConfigsResponse::default();
    for resource in request.resources {
        if !seen.insert((resource.resource_type, resource.resource_name.clone())) {
            continue;
        }
        let mut result = DescribeConfigsResult {
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            ..Default::default()
        };
        match describe(shared, &image, &resource) {
            Ok(configs) => result.configs = wanted(configs, &resource, synonyms, documentation),
            Err((code, message)) => {
                (result.error_code, result.error_message) = (code.code(), Some(Text::from_static(message)));
            }
        }
        response.results.push(result);
    }
    Ok(respond::<m::DescribeConfigsRequest>(&incoming, &response))
}

fn describe(
    shared: &Shared,
    image: &Image,
    resource: &DescribeConfigsResource,
) -> Result<Vec<DescribeConfigsResourceResult>, (ErrorCode, &'static str)> {
    let name = resource.resource_name.as_str();
    let is_this_broker = name.parse() == Ok(shared.config.core.node_id);
    let settings = match resource.resource_type {
        TOPIC if ottla_core::cluster::validate_name(name).is_err() => {
            return Err((ErrorCode::InvalidTopicException, "not a topic's name"));
        }
        TOPIC => {
            let topic = image.topic_by_name(name);
            let topic = topic.ok_or((ErrorCode::UnknownTopicOrPartition, "there is no such topic"))?;
            image.sources().of_topic(&topic.config)
        }
        BROKER if name.is_empty() => image.sources().of_every_broker(),
        BROKER if is_this_broker => {
            let core = image.sources().of_broker().into_iter().map(described);
            return Ok(core.chain(shell_settings(shared)).chain(kafka_names(shared)).collect());
        }
        BROKER => return Err((ErrorCode::InvalidRequest, "this broker has another id")),
        BROKER_LOGGER if is_this_broker => return Ok(log_levels().collect()),
        BROKER_LOGGER => return Err((ErrorCode::InvalidRequest, "log levels are those of this broker's id")),
        GROUP if name.is_empty() => return Err((ErrorCode::InvalidRequest, "a group's id is not empty")),
        GROUP => image.group_settings(name),
        _ => {
            let reason = "topics (2), brokers (4), log levels (8) and groups (32) have settings here";
            return Err((ErrorCode::InvalidRequest, reason));
        }
    };
    Ok(settings.into_iter().map(described).collect())
}

fn described(setting: Setting) -> DescribeConfigsResourceResult {
    let definition = setting.definition;
    let synonyms = setting.synonyms.into_iter();
    DescribeConfigsResourceResult {
        name: Text::from_static(definition.name),
        value: setting.value.map(Text::from),
        read_only: setting.read_only,
        config_source: setting.source as i8,
        config_type: definition.kind as i8,
        documentation: Some(Text::from_static(definition.documentation)),
        synonyms: synonyms.map(|known| synonym(known.name, known.value, known.source)).collect(),
        ..Default::default()
    }
}

/// Settings of the shell around the core: given at the start.
fn shell_settings(shared: &Shared) -> impl Iterator<Item = DescribeConfigsResourceResult> {
    let defaults = Config::default();
    SETTINGS.iter().map(move |setting| {
        let value = shared.config.get(setting.name).unwrap_or_default();
        let default = defaults.get(setting.name).unwrap_or_default();
        let mut synonyms = vec![synonym(setting.name, default.clone(), ConfigSource::Default)];
        if value != default {
            synonyms.insert(0, synonym(setting.name, value.clone(), ConfigSource::StaticBroker));
        }
        DescribeConfigsResourceResult {
            name: Text::from_static(setting.name),
            value: Some(Text::from(value)),
            read_only: true,
            config_source: synonyms.first().map_or(ConfigSource::Default as i8, |first| first.source),
            config_type: setting.config_type() as i8,
            documentation: Some(Text::from_static(setting.about)),
            synonyms,
            ..Default::default()
        }
    })
}

/// The levels of log messages that are in force. They are set at the start (`OTTLA_LOG`), for the process and for
/// its crates; finer filters do not show.
fn log_levels() -> impl Iterator<Item = DescribeConfigsResourceResult> {
    macro_rules! level {
        ($target:literal) => {
            if tracing::enabled!(target: $target, tracing::Level::TRACE) {
                "TRACE"
            } else if tracing::enabled!(target: $target, tracing::Level::DEBUG) {
                "DEBUG"
            } else if tracing::enabled!(target: $target, tracing::Level::INFO) {
                "INFO"
            } else if tracing::enabled!(target: $target, tracing::Level::WARN) {
                "WARN"
            } else if tracing::enabled!(target: $target, tracing::Level::ERROR) {
                "ERROR"
            } else {
                "OFF"
            }
        };
    }
    let levels = [
        ("root", level!("root")),
        ("ottla", level!("ottla")),
        ("ottla_broker", level!("ottla_broker")),
        ("ottla_core", level!("ottla_core")),
        ("ottla_env", level!("ottla_env")),
        ("ottla_storage", level!("ottla_storage")),
    ];
    levels.into_iter().map(|(name, level)| DescribeConfigsResourceResult {
        name: Text::from_static(name),
        value: Some(Text::from_static(level)),
        read_only: true,
        config_source: DYNAMIC_BROKER_LOGGER,
        config_type: ConfigType::String as i8,
        documentation: Some(Text::from_static("Set at the start by OTTLA_LOG.")),
        ..Default::default()
    })
}

/// What Kafka's tools look for under Kafka's names, which say more than one setting of ours.
fn kafka_names(shared: &Shared) -> impl Iterator<Item = DescribeConfigsResourceResult> + use<> {
    let (host, port) = &shared.advertised;
    let (list, int) = (ConfigType::List, ConfigType::Int);
    let values = [
        (
            "advertised.listeners",
            format!("PLAINTEXT://{host}:{port}"),
            list,
            "listen and advertised.listener",
        ),
        ("broker.id", shared.config.core.node_id.to_string(), int, "node.id"),
        ("listeners", format!("PLAINTEXT://{}", shared.config.listen), list, "listen"),
        ("log.dirs", shared.log_dir(), list, "dir"),
    ];
    values.into_iter().map(|(name, value, kind, from)| DescribeConfigsResourceResult {
        name: Text::from_static(name),
        value: Some(Text::from(value)),
        read_only: true,
        config_source: ConfigSource::StaticBroker as i8,
        config_type: kind as i8,
        documentation: Some(Text::from(format!("Follows from {from}."))),
        ..Default::default()
    })
}

fn synonym(name: &'static str, value: String, source: ConfigSource) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym {
        name: Text::from_static(name),
        value: Some(Text::from(value)),
        source: source as i8,
        ..Default::default()
    }
}

/// Only what was asked for, with synonyms and texts only when asked for.
fn wanted(
    configs: Vec<DescribeConfigsResourceResult>,
    resource: &DescribeConfigsResource,
    synonyms: bool,
    documentation: bool,
) -> Vec<DescribeConfigsResourceResult> {
    // None and an empty list both mean all, as in Kafka.
    let names = resource.configuration_keys.as_ref().filter(|names| !names.is_empty());
    let is_wanted =
        |config: &DescribeConfigsResourceResult| names.is_none_or(|names| names.contains(&config.name));
    let mut configs: Vec<_> = configs.into_iter().filter(is_wanted).collect();
    for config in &mut configs {
        if !synonyms {
            config.synonyms.clear();
        }
        if !documentation {
            config.documentation = None;
        }
    }
    configs
}
