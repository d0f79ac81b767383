//! Settings of topics and brokers under Kafka's names: what exists, what it defaults to, what it may be.
//!
//! Place in the walk: CreateTopics and IncrementalAlterConfigs check values against the definitions; a
//! [`TopicConfig`] is the parsed form that produce checks, retention and readers use; DescribeConfigs lists
//! definitions with values, sources and synonyms ([`Sources`]).
//!
//! A topic's setting that nobody set follows the broker's setting of the same meaning: what was set for this
//! broker, for every broker, or at its start, in that order.
//!
//! Every setting of Kafka 4.4 for topics can be set and read back, also those that mean nothing here (segment
//! files, replication, tiered storage), so that tools which set them work. `docs/settings.md` is made of these
//! tables and says which those are.

mod broker;
mod broker_table;
mod definitions;
mod group;
mod kept;
mod sources;
mod topic;

use std::net::IpAddr;

use ottla_protocol::types::Text;
use thiserror::Error;

pub use broker::{BrokerDefinition, Update, broker_definition, broker_definitions};
pub use definitions::{topic_definition, topic_definitions};
pub(crate) use group::{GROUP_ID_BYTES_MAX, GroupConfig};
pub use group::{GroupConfigs, group_definition};
pub use kept::Kept;
pub use sources::{Setting, Sources, Synonym};
pub use topic::TopicConfig;

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
    /// 16 bits.
    Short = 4,
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
    /// Anything but 0; what is below 0 means "no limit".
    NotZero,
    /// One of these; each element, for a list.
    OneOf(&'static [&'static str]),
    /// `*` alone, or elements of the form `partition:broker`.
    ThrottledReplicas,
    /// Elements of the form `address:count`.
    AddressCounts,
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Any => f.write_str("anything"),
            Self::AtLeast(least) => write!(f, "{least} or more"),
            Self::Between(least, most) => write!(f, "{least} to {most}"),
            Self::Fraction => f.write_str("0 to 1"),
            Self::MinusOneOrBetween(least, most) => write!(f, "-1 or {least} to {most}"),
            Self::NotZero => f.write_str("-1 for no limit, or 1 or more"),
            Self::OneOf(values) => write!(f, "one of {}", values.join(", ")),
            Self::ThrottledReplicas => f.write_str("*, or a list of partition:broker"),
            Self::AddressCounts => f.write_str("a list of address:count, with addresses and not names"),
        }
    }
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Kafka's name.
    pub name: &'static str,
    /// Its type.
    pub kind: ConfigType,
    /// What holds when nobody set it. Empty for a number that has no value then.
    pub default: &'static str,
    /// What it may be.
    pub rule: Rule,
    /// The broker's setting that gives the default of a topic's, if there is one.
    pub synonym: Option<&'static str>,
    /// For people.
    pub documentation: &'static str,
}

/// Why a value is refused.
#[derive(Clone, Debug, Error, PartialEq)]
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
    #[error("invalid value {value:?} for {name}: it is {rule}")]
    Value {
        /// Name of the setting.
        name: &'static str,
        /// As it was given, shortened.
        value: String,
        /// What is allowed.
        rule: Rule,
    },
    /// Two settings contradict each other, or ask for what is not there.
    #[error("{0}")]
    Contradiction(String),
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
    /// What holds when nobody set it; none when that is nothing.
    pub fn default_value(&self) -> Option<&'static str> {
        let may_be_empty = matches!(self.kind, ConfigType::String | ConfigType::List);
        (may_be_empty || !self.default.is_empty()).then_some(self.default)
    }

    /// Whether the setting may have this value. Blanks around it do not count.
    ///
    /// # Errors
    /// `Type` and `Value`.
    pub fn check(&self, value: &str) -> Result<(), ConfigError> {
        let value = value.trim();
        let wrong_type = || ConfigError::Type { name: self.name, value: shown(value), kind: self.kind };
        let is_allowed = match self.kind {
            ConfigType::Boolean => {
                let known = value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false");
                known.then_some(true).ok_or_else(wrong_type)?
            }
            ConfigType::String if self.rule == Rule::AddressCounts => {
                list(value).all(|element| self.allows_text(element))
            }
            ConfigType::String => self.allows_text(value),
            ConfigType::List if self.rule == Rule::ThrottledReplicas && value == "*" => true,
            ConfigType::List => list(value).all(|element| self.allows_text(element)),
            ConfigType::Short => self.allows_number(value.parse::<i16>().map_err(|_| wrong_type())?.into()),
            ConfigType::Int => self.allows_number(value.parse::<i32>().map_err(|_| wrong_type())?.into()),
            ConfigType::Long => self.allows_number(value.parse().map_err(|_| wrong_type())?),
            ConfigType::Double => {
                let number: f64 = value.parse().map_err(|_| wrong_type())?;
                if !number.is_finite() {
                    return Err(wrong_type());
                }
                self.rule != Rule::Fraction || (0.0..=1.0).contains(&number)
            }
        };
        let refused = || ConfigError::Value { name: self.name, value: shown(value), rule: self.rule };
        is_allowed.then_some(()).ok_or_else(refused)
    }

    fn allows_text(&self, value: &str) -> bool {
        let pair = || value.rsplit_once(':');
        let is_count = |text: &str| text.parse::<i32>().is_ok_and(|number| number >= 0);
        match self.rule {
            Rule::OneOf(values) => values.contains(&value),
            Rule::ThrottledReplicas => pair().is_some_and(|(one, other)| is_count(one) && is_count(other)),
            Rule::AddressCounts => {
                let is_address = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
                pair().is_some_and(|(host, count)| is_address(host.trim()) && is_count(count.trim()))
            }
            _ => true,
        }
    }

    fn allows_number(&self, number: i64) -> bool {
        match self.rule {
            Rule::AtLeast(least) => number >= least,
            Rule::Between(least, most) => (least..=most).contains(&number),
            Rule::MinusOneOrBetween(least, most) => number == -1 || (least..=most).contains(&number),
            Rule::NotZero => number != 0,
            _ => true,
        }
    }
}
