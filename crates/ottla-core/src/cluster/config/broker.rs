//! The core's settings of a broker: how they are read, put into the config, and whether they may change while the
//! broker runs. Which there are is in `broker_table`.

use super::broker_table::BROKER_DEFINITIONS;
use super::{ConfigError, Definition};
use crate::config::CoreConfig;

/// When a setting may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// At a start only.
    ReadOnly,
    /// While the broker runs, for one broker.
    PerBroker,
    /// While the broker runs, for one broker or for all.
    ClusterWide,
}

/// Where the value of a setting is in the config.
pub(super) enum Access {
    /// In a field: how it is read, and how a checked value is put there.
    Field(fn(&CoreConfig) -> String, fn(&mut CoreConfig, &str)),
    /// Among the texts that are kept: defaults of topics, and what means nothing here.
    Kept,
}

/// A setting of the broker that the core knows.
pub struct BrokerDefinition {
    /// What it is.
    pub definition: Definition,
    /// When it may change.
    pub update: Update,
    pub(super) access: Access,
}

impl BrokerDefinition {
    /// Kafka's name.
    pub fn name(&self) -> &'static str {
        self.definition.name
    }

    /// Whether it can change while the broker runs.
    pub fn is_dynamic(&self) -> bool {
        self.update != Update::ReadOnly
    }

    /// Its value in a config, as text; none when there is none.
    pub fn get(&self, config: &CoreConfig) -> Option<String> {
        match self.access {
            Access::Field(get, _) => Some(get(config)),
            Access::Kept => {
                let default = self.definition.default_value();
                config.kept.get(self.name()).map(|value| value.as_str()).or(default).map(str::to_owned)
            }
        }
    }

    /// Checks a value and puts it into a config.
    ///
    /// # Errors
    /// `Type` and `Value`.
    pub fn set(&self, config: &mut CoreConfig, value: &str) -> Result<(), ConfigError> {
        let value = value.trim();
        self.definition.check(value)?;
        match self.access {
            Access::Field(_, set) => set(config, value),
            Access::Kept => config.kept.set(self.name(), value.into()),
        }
        Ok(())
    }
}

/// The core's settings of a broker, by name.
pub fn broker_definitions() -> &'static [BrokerDefinition] {
    BROKER_DEFINITIONS
}

/// The core's setting of a broker with this name.
pub fn broker_definition(name: &str) -> Option<&'static BrokerDefinition> {
    let index = BROKER_DEFINITIONS.binary_search_by(|definition| definition.name().cmp(name)).ok()?;
    BROKER_DEFINITIONS.get(index)
}
