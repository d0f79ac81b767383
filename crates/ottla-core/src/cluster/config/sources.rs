//! Settings with their values and where those come from, for DescribeConfigs and CreateTopics.

use std::collections::BTreeMap;

use ottla_protocol::types::Text;

use super::kept::chain;
use super::{
    BrokerDefinition, ConfigSource, Definition, TopicConfig, broker_definition, broker_definitions,
    topic_definitions,
};
use crate::cluster::EVERY_BROKER;
use crate::config::CoreConfig;

/// A setting with its value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What it is.
    pub definition: &'static Definition,
    /// Whether it can only be set at a start.
    pub read_only: bool,
    /// The value in force as text; none when there is none.
    pub value: Option<String>,
    /// Where the value comes from.
    pub source: ConfigSource,
    /// Every value that there is, the one in force first.
    pub synonyms: Vec<Synonym>,
}

/// One of the values that a setting could have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    /// Name under which it was set.
    pub name: &'static str,
    /// As text.
    pub value: String,
    /// Where it comes from.
    pub source: ConfigSource,
}

/// Everything that a value may come from, but for what was set for a topic.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// What the broker was started with.
    pub static_config: &'a CoreConfig,
    /// What is in force.
    pub config: &'a CoreConfig,
    /// What was set since, by node and name.
    pub dynamic: &'a BTreeMap<(i32, Text), Text>,
}

/// The sources of a broker's setting, the strongest first.
const BROKER_SOURCES: [ConfigSource; 4] = [
    ConfigSource::DynamicBroker,
    ConfigSource::DynamicDefaultBroker,
    ConfigSource::StaticBroker,
    ConfigSource::Default,
];

impl Sources<'_> {
    /// The core's settings of this broker, by name.
    pub fn of_broker(&self) -> Vec<Setting> {
        broker_definitions().iter().map(|broker| self.setting(broker, &BROKER_SOURCES)).collect()
    }

    /// What was set for every broker while it ran, by name.
    pub fn of_every_broker(&self) -> Vec<Setting> {
        let sources = [ConfigSource::DynamicDefaultBroker];
        let all = broker_definitions().iter().map(|broker| self.setting(broker, &sources));
        all.filter(|setting| !setting.synonyms.is_empty()).collect()
    }

    /// The values under one of this broker's settings, the strongest first.
    pub(super) fn of_broker_setting(&self, name: &'static str) -> Vec<Synonym> {
        self.synonyms(name, &BROKER_SOURCES)
    }

    fn setting(&self, broker: &'static BrokerDefinition, sources: &[ConfigSource]) -> Setting {
        let synonyms = self.synonyms(broker.name(), sources);
        Setting {
            definition: &broker.definition,
            read_only: !broker.is_dynamic(),
            value: synonyms.first().map(|synonym| synonym.value.clone()),
            source: synonyms.first().map_or(ConfigSource::Default, |synonym| synonym.source),
            synonyms,
        }
    }

    /// What a source says about a broker's setting.
    fn value(&self, broker: &BrokerDefinition, source: ConfigSource) -> Option<String> {
        let dynamic = |node_id| self.dynamic.get(&(node_id, broker.name().into())).map(Text::to_string);
        let default = broker.definition.default_value();
        match source {
            ConfigSource::DynamicBroker => dynamic(self.static_config.node_id),
            ConfigSource::DynamicDefaultBroker => dynamic(EVERY_BROKER),
            ConfigSource::StaticBroker => {
                broker.get(self.static_config).filter(|value| Some(value.as_str()) != default)
            }
            ConfigSource::Default => default.map(str::to_owned),
            ConfigSource::DynamicTopic | ConfigSource::DynamicGroup => None,
        }
    }

    /// The settings of a topic, by name.
    pub fn of_topic(&self, config: &TopicConfig) -> Vec<Setting> {
        topic_definitions().iter().map(|definition| self.topic_setting(definition, config)).collect()
    }

    fn topic_setting(&self, definition: &'static Definition, config: &TopicConfig) -> Setting {
        let first = definition.synonym;
        let mut synonyms = first.map_or_else(Vec::new, |first| self.of_broker_setting(first));
        let own = config.override_of(definition.name);
        if let Some(value) = own {
            let (name, source) = (definition.name, ConfigSource::DynamicTopic);
            synonyms.insert(0, Synonym { name, value: value.to_string(), source });
        }
        let inherited = || self.config.kept.topic_default(definition).into_owned();
        Setting {
            definition,
            read_only: false,
            value: Some(own.map_or_else(inherited, Text::to_string)),
            source: synonyms.first().map_or(ConfigSource::Default, |synonym| synonym.source),
            synonyms,
        }
    }

    /// The values under a broker's setting, and under those that hold where it has none, the strongest first. As
    /// Kafka has it, what comes before the first value of the setting itself is not shown.
    fn synonyms(&self, first: &'static str, sources: &[ConfigSource]) -> Vec<Synonym> {
        let mut synonyms = Vec::new();
        for source in sources {
            for (name, _) in chain(first) {
                let Some(broker) = broker_definition(name) else { continue };
                let source = *source;
                synonyms.extend(self.value(broker, source).map(|value| Synonym { name, value, source }));
            }
        }
        synonyms.into_iter().skip_while(|synonym| synonym.name != first).collect()
    }
}
