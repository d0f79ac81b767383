//! What is subscribed to: names, or a pattern that names are matched against.

use std::collections::BTreeSet;

use ottla_protocol::types::Text;
use regex::Regex;

use crate::cluster::{Cluster, ClusterError};
use crate::settings::SettingError;

/// Most topics of one subscription.
const TOPICS_MAX: usize = 10_000;
/// Longest pattern, in bytes, and most memory that its automaton may take.
const PATTERN_BYTES_MAX: usize = 4096;
const PATTERN_MEMORY_BYTES_MAX: usize = 1 << 20;

/// A subscription.
#[derive(Clone, Debug)]
pub(in crate::consumer) enum Subscription {
    /// These topics.
    Topics(BTreeSet<Text>),
    /// Topics whose whole name matches; not Kafka's internal ones. The text is for the broker.
    Pattern(Regex, Text),
}

impl Subscription {
    pub(in crate::consumer) fn topics(names: &[&str]) -> Result<Self, SettingError> {
        let topics: BTreeSet<Text> = names.iter().map(|name| Text::from(*name)).collect();
        if topics.is_empty() || topics.len() > TOPICS_MAX {
            let problem = format!("subscribe to 1 to {TOPICS_MAX} topics");
            return Err(SettingError::bad("topics", topics.len(), problem));
        }
        if let Some(name) = topics.iter().find(|name| name.is_empty() || name.len() > 249) {
            return Err(SettingError::bad("topics", name, "a topic's name has 1 to 249 bytes"));
        }
        Ok(Self::Topics(topics))
    }

    pub(in crate::consumer) fn pattern(text: &str) -> Result<Self, SettingError> {
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            let problem = format!("a pattern has 1 to {PATTERN_BYTES_MAX} bytes");
            return Err(SettingError::bad("pattern", text.len(), problem));
        }
        let whole = format!("^(?:{text})$");
        let built = regex::RegexBuilder::new(&whole).size_limit(PATTERN_MEMORY_BYTES_MAX).build();
        let regex = built.map_err(|error| SettingError::bad("pattern", text, error))?;
        Ok(Self::Pattern(regex, Text::from(text)))
    }

    /// Whether a topic belongs to it.
    pub(in crate::consumer) fn contains(&self, topic: &Text) -> bool {
        match self {
            Self::Topics(topics) => topics.contains(topic),
            Self::Pattern(regex, _) => regex.is_match(topic),
        }
    }

    /// The names: as given, or what matches at present.
    pub(super) async fn resolve(&self, cluster: &Cluster) -> Result<Vec<Text>, ClusterError> {
        match self {
            Self::Topics(topics) => Ok(topics.iter().cloned().collect()),
            Self::Pattern(regex, _) => {
                let topics = cluster.list_topics().await?;
                let matching =
                    topics.iter().filter(|topic| !topic.is_internal && regex.is_match(&topic.name));
                Ok(matching.take(TOPICS_MAX).map(|topic| topic.name.clone()).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a pattern matches whole names, and that bad and oversized ones are refused by reason.
    #[test]
    fn patterns() {
        let pattern = Subscription::pattern("orders|pay.*").expect("good");
        for (name, matches) in
            [("orders", true), ("orders2", false), ("my-orders", false), ("payments", true), ("pay", true)]
        {
            assert_eq!(pattern.contains(&Text::from(name)), matches, "{name}");
        }
        for bad in ["", "(", "a{1000}{1000}", "(?=x)"] {
            assert!(Subscription::pattern(bad).is_err(), "{bad}");
        }
        assert!(Subscription::pattern(&"a".repeat(5000)).is_err());
        assert!(Subscription::topics(&[]).is_err());
        assert!(Subscription::topics(&[""]).is_err());
    }
}
