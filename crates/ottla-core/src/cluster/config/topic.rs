//! The settings of one topic: what was set for it, and the parsed form of all that matters.

use std::collections::BTreeMap;

use ottla_protocol::batch::TimestampType;
use ottla_protocol::check::{CompressionType, ProduceRules};
use ottla_protocol::compression::Codec;
use ottla_protocol::types::Text;

use super::{ConfigError, ConfigSource, Definition, list, topic_definition, topic_definitions};

/// Settings of a topic. The fields are parsed from what was set, or the default.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// What was set for the topic itself.
    overrides: BTreeMap<&'static str, Text>,
    /// Settings of a newer version, kept as they are.
    unknown: BTreeMap<Text, Text>,
    /// `cleanup.policy` holds `compact`.
    pub compact: bool,
    /// `cleanup.policy` holds `delete`.
    pub delete: bool,
    /// `compression.type`.
    pub compression: CompressionType,
    /// `max.message.bytes`.
    pub max_message_bytes: i32,
    /// `max.decompressed.message.bytes`.
    pub max_decompressed_message_bytes: i32,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `retention.ms`, -1 for never.
    pub retention_ms: i64,
    /// `retention.bytes`, -1 for no limit.
    pub retention_bytes: i64,
    /// `segment.bytes`.
    pub segment_bytes: i32,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_compaction_lag_ms: i64,
}

/// One setting with its value, for listings.
#[derive(Clone, Debug)]
pub struct TopicSetting<'a> {
    /// What it is.
    pub definition: &'static Definition,
    /// Its value as text.
    pub value: &'a str,
    /// Where the value comes from.
    pub source: ConfigSource,
}

impl TopicSetting<'_> {
    /// The value; a default is not copied.
    pub fn text(&self) -> Text {
        match self.source {
            ConfigSource::Default => Text::from_static(self.definition.default),
            _ => self.value.into(),
        }
    }
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self::of(BTreeMap::new(), BTreeMap::new())
    }
}

impl TopicConfig {
    /// A config of checked settings.
    ///
    /// # Errors
    /// Every kind of [`ConfigError`] but `Null`.
    pub fn new<'a>(
        overrides: impl IntoIterator<Item = (&'a str, Text)>,
        value_bytes_max: usize,
    ) -> Result<Self, ConfigError> {
        let mut known = BTreeMap::new();
        for (name, value) in overrides {
            let definition =
                topic_definition(name).ok_or_else(|| ConfigError::Unknown { name: name.into() })?;
            if value.len() > value_bytes_max {
                return Err(ConfigError::TooLong { name: definition.name, bytes_max: value_bytes_max });
            }
            definition.check(&value)?;
            known.insert(definition.name, value.trim().into());
        }
        let config = Self::of(known, BTreeMap::new());
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms {
            return Err(ConfigError::Contradiction("min.compaction.lag.ms is above max.compaction.lag.ms"));
        }
        Ok(config)
    }

    /// This config with other settings; what is not understood stays.
    ///
    /// # Errors
    /// As [`TopicConfig::new`].
    pub(crate) fn altered<'a>(
        &self,
        overrides: impl IntoIterator<Item = (&'a str, Text)>,
        value_bytes_max: usize,
    ) -> Result<Self, ConfigError> {
        Ok(Self { unknown: self.unknown.clone(), ..Self::new(overrides, value_bytes_max)? })
    }

    /// A config as the log has it: what is not understood is kept and stays without effect.
    pub(crate) fn stored(overrides: impl IntoIterator<Item = (Text, Text)>) -> Self {
        let (mut known, mut unknown) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in overrides {
            match topic_definition(&name).filter(|definition| definition.check(&value).is_ok()) {
                Some(definition) => known.insert(definition.name, value),
                None => unknown.insert(name.detached(), value),
            };
        }
        Self::of(known, unknown)
    }

    fn of(overrides: BTreeMap<&'static str, Text>, unknown: BTreeMap<Text, Text>) -> Self {
        let text = |name: &str| {
            let definition = topic_definition(name).expect("settings that are parsed are defined");
            overrides.get(name).map_or(definition.default, Text::as_str)
        };
        let long = |name: &str| text(name).parse::<i64>().expect("values were checked");
        let int = |name: &str| text(name).parse::<i32>().expect("values were checked");
        let policy = text("cleanup.policy");
        let codec = |codec| CompressionType::Codec(codec);
        let mut config = Self {
            compact: list(policy).any(|element| element == "compact"),
            delete: list(policy).any(|element| element == "delete"),
            compression: match text("compression.type") {
                "uncompressed" => codec(Codec::None),
                "gzip" => codec(Codec::Gzip),
                "snappy" => codec(Codec::Snappy),
                "lz4" => codec(Codec::Lz4),
                "zstd" => codec(Codec::Zstd),
                _ => CompressionType::Producer,
            },
            max_message_bytes: int("max.message.bytes"),
            max_decompressed_message_bytes: int("max.decompressed.message.bytes"),
            timestamp_type: match text("message.timestamp.type") {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: long("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: long("message.timestamp.after.max.ms"),
            retention_ms: long("retention.ms"),
            retention_bytes: long("retention.bytes"),
            segment_bytes: int("segment.bytes"),
            delete_retention_ms: long("delete.retention.ms"),
            min_compaction_lag_ms: long("min.compaction.lag.ms"),
            max_compaction_lag_ms: long("max.compaction.lag.ms"),
            overrides: BTreeMap::new(),
            unknown,
        };
        config.overrides = overrides;
        config
    }

    /// What was set for the topic itself, by name.
    pub fn overrides(&self) -> impl ExactSizeIterator<Item = (&str, &Text)> {
        let mut all: Vec<(&str, &Text)> = self.overrides.iter().map(|(name, value)| (*name, value)).collect();
        all.extend(self.unknown.iter().map(|(name, value)| (name.as_str(), value)));
        all.into_iter()
    }

    /// What was set for the topic under this name.
    pub fn override_of(&self, name: &str) -> Option<&Text> {
        self.overrides.get(name)
    }

    /// Every setting with its value, by name.
    pub fn settings(&self) -> impl Iterator<Item = TopicSetting<'_>> {
        topic_definitions().iter().map(|definition| match self.overrides.get(definition.name) {
            Some(value) => TopicSetting { definition, value, source: ConfigSource::DynamicTopic },
            None => TopicSetting { definition, value: definition.default, source: ConfigSource::Default },
        })
    }

    /// What a connection checks the topic's batches by. `decompressed_bytes_max` is the broker's own limit.
    pub fn produce_rules(
        &self,
        now_ms: i64,
        produce_version: i16,
        decompressed_bytes_max: usize,
    ) -> ProduceRules {
        let bytes = |value: i32| usize::try_from(value).unwrap_or_default();
        ProduceRules {
            max_message_bytes: bytes(self.max_message_bytes),
            segment_bytes: bytes(self.segment_bytes),
            compacted: self.compact,
            timestamp_type: self.timestamp_type,
            timestamp_before_max_ms: self.timestamp_before_max_ms,
            timestamp_after_max_ms: self.timestamp_after_max_ms,
            compression: self.compression,
            now_ms,
            produce_version,
            decompressed_bytes_max: decompressed_bytes_max.min(bytes(self.max_decompressed_message_bytes)),
        }
    }
}
