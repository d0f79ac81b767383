//! Settings of the broker that are kept as texts: the defaults of topics, and what can be set but means nothing.
//!
//! Only what was set is in here. It is shared: the config that holds it is cloned often.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ottla_protocol::types::Text;

use super::Definition;

/// Values by Kafka's name of the broker's setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept(Arc<BTreeMap<&'static str, Text>>);

impl Kept {
    /// The value, if it was set.
    pub fn get(&self, name: &str) -> Option<&Text> {
        self.0.get(name)
    }

    /// Whether nothing was set.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn set(&mut self, name: &'static str, value: Text) {
        Arc::make_mut(&mut self.0).insert(name, value);
    }

    /// What a topic's setting is when it was not set for the topic.
    pub(crate) fn topic_default(&self, definition: &Definition) -> Cow<'_, str> {
        let names = definition.synonym.map(chain).unwrap_or_default();
        for (name, factor) in names {
            let Some(value) = self.0.get(name) else { continue };
            return match value.parse::<i64>() {
                // Every number below 0 means "no limit" to the broker, only -1 does to a topic.
                Ok(number) if definition.name == "retention.ms" => {
                    Cow::Owned(number.saturating_mul(factor).max(-1).to_string())
                }
                Ok(number) if factor != 1 => Cow::Owned(number.saturating_mul(factor).to_string()),
                _ => Cow::Borrowed(value),
            };
        }
        Cow::Borrowed(definition.default)
    }
}

/// The broker's settings that a topic's default is taken from, the strongest first, with their unit in that of the
/// topic's setting.
pub(super) fn chain(synonym: &'static str) -> Vec<(&'static str, i64)> {
    let mut names = vec![(synonym, 1)];
    match synonym {
        "log.retention.ms" => {
            names.extend([("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)]);
        }
        "log.roll.ms" => names.push(("log.roll.hours", 3_600_000)),
        "log.roll.jitter.ms" => names.push(("log.roll.jitter.hours", 3_600_000)),
        "log.flush.interval.ms" => names.push(("log.flush.scheduler.interval.ms", 1)),
        _ => {}
    }
    names
}
