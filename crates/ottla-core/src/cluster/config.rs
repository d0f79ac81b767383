//! Settings of topics and brokers under Kafka's names: what exists, what it defaults to, what it may be.
//!
//! Place in the walk: CreateTopics and IncrementalAlterConfigs check values against the definitions; a
//! [`TopicConfig`] is the parsed form that produce checks, retention and readers use; DescribeConfigs lists
//! definitions with values, sources and synonyms.
//!
//! Every setting of Kafka 4.4 for topics can be set and read back, also those that mean nothing here (segment
//! files, replication, tiered storage), so that tools which set them work.

mod broker;
mod definitions;
mod group;
mod topic;

use ottla_protocol::types::Text;
use thiserror::Error;

pub use broker::{BrokerDefinition, BrokerSetting, broker_definition, broker_definitions, broker_settings};
pub use definitions::{topic_definition, topic_definitions};
pub(crate) use group::{GROUP_ID_BYTES_MAX, GroupConfig};
pub use group::{GroupConfigs, GroupSetting, group_definition};
pub use topic::{TopicConfig, TopicSetting};

/// Type of a setting; the numbers are those of DescribeConfigs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigType {
    /// `true` or `false`.
    Boolean = 1,
    /// Text.
    String = 2,
    /// 32 bits.
    Int = 3,
    /// 64 bits.
    Long = 5,
    /// A decimal fraction.
    Double = 6,
    /// Texts with commas between them.
    List = 7,
}

/// Where a value comes from; the numbers are those of DescribeConfigs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigSource {
    /// Set for the topic.
    DynamicTopic = 1,
    /// Set for one broker while it ran.
    DynamicBroker = 2,
    /// Set for all brokers while they ran.
    DynamicDefaultBroker = 3,
    /// Set when the broker was started.
    StaticBroker = 4,
    /// Nobody set it.
    Default = 5,
    /// Set for the group.
    DynamicGroup = 8,
}

/// What a value must be, beside its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Anything.
    Any,
    /// Not below.
    AtLeast(i64),
    /// Neither below nor above.
    Between(i64, i64),
    /// 0 to 1.
    Fraction,
    /// `-1`, or neither below nor above.
    MinusOneOrBetween(i64, i64),
    /// One of these; each element, for a list.
    OneOf(&'static [&'static str]),
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Kafka's name.
    pub name: &'static str,
    /// Its type.
    pub kind: ConfigType,
    /// What holds when nobody set it.
    pub default: &'static str,
    /// What it may be.
    pub rule: Rule,
    /// The broker's setting that gives the default of a topic's, if there is one.
    pub synonym: Option<&'static str>,
    /// For people.
    pub documentation: &'static str,
}

/// Why a value is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// There is no such setting.
    #[error("unknown setting {name}")]
    Unknown {
        /// As it was given.
        name: Text,
    },
    /// A setting without a value.
    #[error("setting {name} needs a value")]
    Null {
        /// Its name.
        name: Text,
    },
    /// The value is not of the setting's type.
    #[error("invalid value {value:?} for {name}: not of type {kind:?}")]
    Type {
        /// Name of the setting.
        name: &'static str,
        /// As it was given, shortened.
        value: String,
        /// What it should be.
        kind: ConfigType,
    },
    /// The value is outside of what is allowed.
    #[error("invalid value {value:?} for {name}: {reason}")]
    Value {
        /// Name of the setting.
        name: &'static str,
        /// As it was given, shortened.
        value: String,
        /// What is allowed.
        reason: String,
    },
    /// Two settings contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
    /// The value is longer than the limits allow.
    #[error("the value of {name} is longer than {bytes_max} bytes")]
    TooLong {
        /// Name of the setting.
        name: &'static str,
        /// Longest value allowed.
        bytes_max: usize,
    },
}

/// At most 100 characters of a value, for an error.
fn shown(value: &str) -> String {
    value.chars().take(100).collect()
}

/// The elements of a list, without the blanks around them.
pub(crate) fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|element| !element.is_empty())
}

impl Definition {
    /// Whether the setting may have this value. Blanks around it do not count.
    ///
    /// # Errors
    /// `Type` and `Value`.
    pub fn check(&self, value: &str) -> Result<(), ConfigError> {
        let value = value.trim();
        let wrong_type = || ConfigError::Type { name: self.name, value: shown(value), kind: self.kind };
        match self.kind {
            ConfigType::Boolean => {
                let known = value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false");
                if known { Ok(()) } else { Err(wrong_type()) }
            }
            ConfigType::String => self.check_text(value),
            ConfigType::List => list(value).try_for_each(|element| self.check_text(element)),
            ConfigType::Int => {
                let number: i32 = value.parse().map_err(|_| wrong_type())?;
                self.check_number(value, i64::from(number))
            }
            ConfigType::Long => self.check_number(value, value.parse().map_err(|_| wrong_type())?),
            ConfigType::Double => {
                let number: f64 = value.parse().map_err(|_| wrong_type())?;
                if self.rule == Rule::Fraction && !(0.0..=1.0).contains(&number) {
                    return Err(self.refused(value, "it is 0 to 1".into()));
                }
                if number.is_finite() { Ok(()) } else { Err(wrong_type()) }
            }
        }
    }

    fn refused(&self, value: &str, reason: String) -> ConfigError {
        ConfigError::Value { name: self.name, value: shown(value), reason }
    }

    fn check_text(&self, value: &str) -> Result<(), ConfigError> {
        match self.rule {
            Rule::OneOf(values) if !values.contains(&value) => {
                Err(self.refused(value, format!("it is one of {}", values.join(", "))))
            }
            _ => Ok(()),
        }
    }

    fn check_number(&self, value: &str, number: i64) -> Result<(), ConfigError> {
        match self.rule {
            Rule::AtLeast(least) if number < least => {
                Err(self.refused(value, format!("it is {least} or more")))
            }
            Rule::Between(least, most) if !(least..=most).contains(&number) => {
                Err(self.refused(value, format!("it is {least} to {most}")))
            }
            Rule::MinusOneOrBetween(least, most) if number != -1 && !(least..=most).contains(&number) => {
                Err(self.refused(value, format!("it is -1 or {least} to {most}")))
            }
            _ => Ok(()),
        }
    }
}
