//! Settings of groups: which there are, what was set for which group, and what follows for its members.
//!
//! Place in the walk: IncrementalAlterConfigs and AlterConfigs check against [`GroupConfig::new`]; the coordinator
//! asks [`GroupConfigs`] at every heartbeat, so a change holds from the next one on; DescribeConfigs lists
//! [`GroupConfigs::settings`].
//!
//! Invariants: a group need not exist to have settings. What was set is kept as it was set; when the broker's
//! bounds are others later, the values in force are inside of them.
//!
//! Not here: settings of share groups and of streams groups. Those groups do not exist here, and a setting that
//! nothing follows is not taken.

use std::collections::BTreeMap;

use ottla_protocol::types::Text;

use super::{ConfigError, ConfigSource, ConfigType, Definition, Rule, Setting, Sources, Synonym};
use crate::config::CoreConfig;

/// Longest id of a group that can have settings, bytes.
pub(crate) const GROUP_ID_BYTES_MAX: usize = 4096;

const SESSION_TIMEOUT: &str = "consumer.session.timeout.ms";
const HEARTBEAT_INTERVAL: &str = "consumer.heartbeat.interval.ms";

const fn define(
    name: &'static str,
    default: &'static str,
    synonym: &'static str,
    documentation: &'static str,
) -> Definition {
    Definition {
        name,
        kind: ConfigType::Int,
        default,
        rule: Rule::AtLeast(1),
        synonym: Some(synonym),
        documentation,
    }
}

/// By name. `synonym` is the broker's setting that holds where nothing was set for the group.
static GROUP_DEFINITIONS: &[Definition] = &[
    define(
        HEARTBEAT_INTERVAL,
        "5000",
        "group.consumer.heartbeat.interval.ms",
        "How often members of the consumer group are told to send heartbeats.",
    ),
    define(
        SESSION_TIMEOUT,
        "45000",
        "group.consumer.session.timeout.ms",
        "How long a member of the consumer group may be silent.",
    ),
];

/// The setting of a group with this name.
pub fn group_definition(name: &str) -> Option<&'static Definition> {
    GROUP_DEFINITIONS.iter().find(|definition| definition.name == name)
}

/// What was set for one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupConfig {
    /// By name; those of a newer version are kept as they are.
    overrides: BTreeMap<Text, Text>,
    session_timeout_ms: Option<i32>,
    heartbeat_interval_ms: Option<i32>,
}

impl GroupConfig {
    /// Checks what shall be set for a group.
    ///
    /// # Errors
    /// `Unknown`, `TooLong`, `Type`, `Value` by the definitions and the broker's bounds, `Contradiction`.
    pub(crate) fn new(overrides: BTreeMap<Text, Text>, config: &CoreConfig) -> Result<Self, ConfigError> {
        for (name, value) in &overrides {
            let definition =
                group_definition(name).ok_or_else(|| ConfigError::Unknown { name: name.clone() })?;
            let bytes_max = config.limits.config_value_bytes_max;
            if value.len() > bytes_max {
                return Err(ConfigError::TooLong { name: definition.name, bytes_max });
            }
            let (least, most) = bounds(definition.name, config);
            let rule = Rule::Between(i64::from(least), i64::from(most));
            Definition { rule, ..*definition }.check(value)?;
        }
        let new = Self::stored(overrides);
        if new.session_timeout_ms(config) <= new.heartbeat_interval_ms(config) {
            let reason = "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms";
            return Err(ConfigError::Contradiction(reason.into()));
        }
        Ok(new)
    }

    /// What was checked once.
    pub(crate) fn stored(overrides: BTreeMap<Text, Text>) -> Self {
        let number = |name: &str| overrides.get(name.as_bytes()).and_then(|value| value.trim().parse().ok());
        let (session_timeout_ms, heartbeat_interval_ms) =
            (number(SESSION_TIMEOUT), number(HEARTBEAT_INTERVAL));
        Self { overrides, session_timeout_ms, heartbeat_interval_ms }
    }

    /// What was set, by name.
    pub(crate) fn overrides(&self) -> &BTreeMap<Text, Text> {
        &self.overrides
    }

    fn session_timeout_ms(&self, config: &CoreConfig) -> i32 {
        let set = self.session_timeout_ms.map(|value| inside(value, bounds(SESSION_TIMEOUT, config)));
        set.unwrap_or(config.group_consumer_session_timeout_ms)
    }

    fn heartbeat_interval_ms(&self, config: &CoreConfig) -> i32 {
        let set = self.heartbeat_interval_ms.map(|value| inside(value, bounds(HEARTBEAT_INTERVAL, config)));
        set.unwrap_or(config.group_consumer_heartbeat_interval_ms)
    }
}

/// The least and the most that the broker allows.
fn bounds(name: &str, config: &CoreConfig) -> (i32, i32) {
    match name {
        HEARTBEAT_INTERVAL => {
            (config.group_consumer_min_heartbeat_interval_ms, config.group_consumer_max_heartbeat_interval_ms)
        }
        _ => (config.group_consumer_min_session_timeout_ms, config.group_consumer_max_session_timeout_ms),
    }
}

/// The value, or the bound that it passes.
fn inside(value: i32, (least, most): (i32, i32)) -> i32 {
    value.max(least).min(most)
}

/// What was set for all groups, by group id.
#[derive(Clone, Debug, Default)]
pub struct GroupConfigs(BTreeMap<Text, GroupConfig>);

impl GroupConfigs {
    /// What was set for a group. None: nothing.
    pub(crate) fn get(&self, group: &str) -> Option<&GroupConfig> {
        self.0.get(group.as_bytes())
    }

    /// What was set for a group, with its id; one without settings goes.
    pub(crate) fn set(&mut self, group: Text, config: GroupConfig) {
        if config.overrides.is_empty() {
            self.0.remove(&group);
        } else {
            self.0.insert(group, config);
        }
    }

    /// Number of groups that have settings.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The groups that have settings, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Text, &GroupConfig)> {
        self.0.iter()
    }

    /// Ids of the groups that have settings, in order.
    pub fn ids(&self) -> impl Iterator<Item = &Text> {
        self.0.keys()
    }

    /// How long a member of this consumer group may be silent, ms.
    pub(crate) fn session_timeout_ms(&self, group: &str, config: &CoreConfig) -> i32 {
        let set = self.get(group).map(|set| set.session_timeout_ms(config));
        set.unwrap_or(config.group_consumer_session_timeout_ms)
    }

    /// How often members of this consumer group are told to send heartbeats, ms.
    pub(crate) fn heartbeat_interval_ms(&self, group: &str, config: &CoreConfig) -> i32 {
        let set = self.get(group).map(|set| set.heartbeat_interval_ms(config));
        set.unwrap_or(config.group_consumer_heartbeat_interval_ms)
    }

    /// Every setting of a group, by name. `broker` is where those come from that were not set for the group.
    pub(crate) fn settings(&self, group: &str, broker: Sources<'_>) -> Vec<Setting> {
        let set = self.get(group);
        let setting = |definition: &'static Definition| {
            let own = set.and_then(|set| set.overrides.get(definition.name.as_bytes()));
            let own = own.map(|value| Synonym {
                name: definition.name,
                value: value.to_string(),
                source: ConfigSource::DynamicGroup,
            });
            let of_broker = definition.synonym.into_iter().flat_map(|first| broker.of_broker_setting(first));
            let synonyms: Vec<_> = own.into_iter().chain(of_broker).collect();
            let first = synonyms.first();
            Setting {
                definition,
                read_only: false,
                value: Some(first.map_or(definition.default, |synonym| &synonym.value).to_owned()),
                source: first.map_or(ConfigSource::Default, |synonym| synonym.source),
                synonyms,
            }
        };
        GROUP_DEFINITIONS.iter().map(setting).collect()
    }
}
