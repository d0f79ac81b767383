//! DescribeConfigs (key 32, versions 1-4): the settings of topics, of this broker and of groups, and where they
//! come from.
//!
//! Answered from the published image. Resource types: 2 topic, 4 broker (its id, or empty for what holds for
//! every broker and was set), 32 group (whether it exists or not). Secrets would be shown without their value; there are none yet.

use std::collections::BTreeSet;

use ottla_core::cluster::Image;
use ottla_core::cluster::config::{BrokerSetting, ConfigSource, GroupSetting, TopicSetting};
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::describe_configs_request::DescribeConfigsResource;
use ottla_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use ottla_protocol::types::Text;

use crate::config::SETTINGS;
use crate::dispatch::{Incoming, Outcome, respond};
use crate::shared::Shared;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;
/// `DescribeConfigs` type of a text.
const STRING: i8 = 2;

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::DescribeConfigsRequest::decode(reader, incoming.version)?;
    let image = shared.view.image();
    let (synonyms, documentation) = (request.include_synonyms, request.include_documentation);
    let mut response = m::DescribeConfigsResponse::default();
    for resource in request.resources {
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
    match resource.resource_type {
        TOPIC if ottla_core::cluster::validate_name(name).is_err() => {
            Err((ErrorCode::InvalidTopicException, "not a topic's name"))
        }
        TOPIC => {
            let topic = image.topic_by_name(name);
            let topic = topic.ok_or((ErrorCode::UnknownTopicOrPartition, "there is no such topic"))?;
            Ok(topic.config.settings().map(topic_setting).collect())
        }
        BROKER if name.is_empty() => {
            Ok(image.broker_settings(None).into_iter().map(broker_setting).collect())
        }
        BROKER if name.parse() == Ok(shared.config.core.node_id) => {
            let node_id = Some(shared.config.core.node_id);
            let mut all: Vec<_> = image.broker_settings(node_id).into_iter().map(broker_setting).collect();
            let known: BTreeSet<Text> = all.iter().map(|setting| setting.name.clone()).collect();
            all.extend(shell_settings(shared).filter(|setting| !known.contains(&setting.name)));
            all.extend(kafka_names(shared));
            Ok(all)
        }
        BROKER => Err((ErrorCode::InvalidRequest, "this broker has another id")),
        GROUP if name.is_empty() => Err((ErrorCode::InvalidRequest, "a group's id is not empty")),
        GROUP => Ok(image.group_settings(name).into_iter().map(group_setting).collect()),
        _ => Err((ErrorCode::InvalidRequest, "topics (2), brokers (4) and groups (32) have settings here")),
    }
}

fn topic_setting(setting: TopicSetting<'_>) -> DescribeConfigsResourceResult {
    let definition = setting.definition;
    let mut synonyms = Vec::new();
    if setting.source == ConfigSource::DynamicTopic {
        synonyms.push(synonym(definition.name, setting.value, setting.source));
    }
    synonyms.push(synonym(
        definition.synonym.unwrap_or(definition.name),
        definition.default,
        ConfigSource::Default,
    ));
    DescribeConfigsResourceResult {
        name: Text::from_static(definition.name),
        value: Some(Text::from(setting.value)),
        read_only: false,
        config_source: setting.source as i8,
        config_type: definition.kind as i8,
        documentation: Some(Text::from_static(definition.documentation)),
        synonyms,
        ..Default::default()
    }
}

fn broker_setting(setting: BrokerSetting) -> DescribeConfigsResourceResult {
    let definition = setting.definition;
    let synonyms =
        setting.synonyms.iter().map(|(source, value)| synonym(definition.name, value, *source)).collect();
    DescribeConfigsResourceResult {
        name: Text::from_static(definition.name),
        value: Some(Text::from(setting.value)),
        read_only: !setting.dynamic,
        config_source: setting.source as i8,
        config_type: definition.kind as i8,
        documentation: Some(Text::from_static(definition.documentation)),
        synonyms,
        ..Default::default()
    }
}

fn group_setting(setting: GroupSetting) -> DescribeConfigsResourceResult {
    let definition = setting.definition;
    let synonyms =
        setting.synonyms.iter().map(|(name, source, value)| synonym(name, value, *source)).collect();
    DescribeConfigsResourceResult {
        name: Text::from_static(definition.name),
        value: Some(Text::from(setting.value)),
        read_only: false,
        config_source: setting.source as i8,
        config_type: definition.kind as i8,
        documentation: Some(Text::from_static(definition.documentation)),
        synonyms,
        ..Default::default()
    }
}

/// Settings of the shell around the core: given at the start, shown as texts.
fn shell_settings(shared: &Shared) -> impl Iterator<Item = DescribeConfigsResourceResult> {
    SETTINGS.iter().map(|setting| DescribeConfigsResourceResult {
        name: Text::from_static(setting.name),
        value: shared.config.get(setting.name).map(Text::from),
        read_only: true,
        config_source: ConfigSource::StaticBroker as i8,
        config_type: STRING,
        documentation: Some(Text::from_static(setting.about)),
        ..Default::default()
    })
}

/// What Kafka's tools look for under Kafka's names, which say more than one setting of ours.
fn kafka_names(shared: &Shared) -> impl Iterator<Item = DescribeConfigsResourceResult> + use<> {
    let (host, port) = &shared.advertised;
    let values = [
        ("advertised.listeners", format!("PLAINTEXT://{host}:{port}"), "listen and advertised.listener"),
        ("broker.id", shared.config.core.node_id.to_string(), "node.id"),
        ("listeners", format!("PLAINTEXT://{}", shared.config.listen), "listen"),
        ("log.dirs", shared.log_dir(), "dir"),
    ];
    values.into_iter().map(|(name, value, from)| DescribeConfigsResourceResult {
        name: Text::from_static(name),
        value: Some(Text::from(value)),
        read_only: true,
        config_source: ConfigSource::StaticBroker as i8,
        config_type: STRING,
        documentation: Some(Text::from(format!("Follows from {from}."))),
        ..Default::default()
    })
}

fn synonym(name: &str, value: &str, source: ConfigSource) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym {
        name: Text::from(name),
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
    let names = resource.configuration_keys.as_ref();
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
