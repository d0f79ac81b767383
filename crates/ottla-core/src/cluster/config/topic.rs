//! The settings of one topic: what was set for it, and the parsed form of all that matters.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ottla_protocol::batch::TimestampType;
use ottla_protocol::check::{CompressionType, ProduceRules};
use ottla_protocol::compression::Codec;
use ottla_protocol::types::Text;

use super::{ConfigError, Kept, list, topic_definition};

/// Settings of a topic. The fields are parsed from what was set for it, for the broker, or Kafka's default.
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
    /// Level of that codec; none for what has no levels here.
    pub compression_level: Option<i32>,
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
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_compaction_lag_ms: i64,
    /// `min.cleanable.dirty.ratio`, 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self::of(BTreeMap::new(), BTreeMap::new(), &Kept::default())
    }
}

impl TopicConfig {
    /// A config of checked settings over the broker's defaults.
    ///
    /// # Errors
    /// Every kind of [`ConfigError`] but `Null`.
    pub fn new<'a>(
        overrides: impl IntoIterator<Item = (&'a str, Text)>,
        value_bytes_max: usize,
        defaults: &Kept,
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
        let is_tiered = |value: &Text| value.eq_ignore_ascii_case("true");
        if known.get("remote.storage.enable").is_some_and(is_tiered) {
            let reason = "remote.storage.enable: there is no tiered storage here";
            return Err(ConfigError::Contradiction(reason.into()));
        }
        let config = Self::of(known, BTreeMap::new(), defaults);
        let (least, most) = (config.min_compaction_lag_ms, config.max_compaction_lag_ms);
        if least > most {
            let reason = format!("min.compaction.lag.ms ({least}) is above max.compaction.lag.ms ({most})");
            return Err(ConfigError::Contradiction(reason));
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
        defaults: &Kept,
    ) -> Result<Self, ConfigError> {
        Ok(Self { unknown: self.unknown.clone(), ..Self::new(overrides, value_bytes_max, defaults)? })
    }

    /// The same settings over other defaults.
    pub(crate) fn with_defaults(&self, defaults: &Kept) -> Self {
        Self::of(self.overrides.clone(), self.unknown.clone(), defaults)
    }

    /// A config as the log has it, over Kafka's defaults: what is not understood is kept and stays without effect.
    pub(crate) fn stored(overrides: impl IntoIterator<Item = (Text, Text)>) -> Self {
        let (mut known, mut unknown) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in overrides {
            match topic_definition(&name).filter(|definition| definition.check(&value).is_ok()) {
                Some(definition) => known.insert(definition.name, value),
                None => unknown.insert(name.detached(), value),
            };
        }
        Self::of(known, unknown, &Kept::default())
    }

    fn of(overrides: BTreeMap<&'static str, Text>, unknown: BTreeMap<Text, Text>, defaults: &Kept) -> Self {
        let text = |name: &str| -> Cow<'_, str> {
            let definition = topic_definition(name).expect("settings that are parsed are defined");
            let own = overrides.get(name).map(|value| Cow::Borrowed(value.as_str()));
            own.unwrap_or_else(|| defaults.topic_default(definition))
        };
        let long = |name: &str| text(name).parse::<i64>().expect("values were checked");
        let int = |name: &str| text(name).parse::<i32>().expect("values were checked");
        let policy = text("cleanup.policy");
        let codec = |codec| CompressionType::Codec(codec);
        let mut config = Self {
            compact: list(&policy).any(|element| element == "compact"),
            delete: list(&policy).any(|element| element == "delete"),
            compression: match &*text("compression.type") {
                "uncompressed" => codec(Codec::None),
                "gzip" => codec(Codec::Gzip),
                "snappy" => codec(Codec::Snappy),
                "lz4" => codec(Codec::Lz4),
                "zstd" => codec(Codec::Zstd),
                _ => CompressionType::Producer,
            },
            max_message_bytes: int("max.message.bytes"),
            max_decompressed_message_bytes: int("max.decompressed.message.bytes"),
            compression_level: None,
            timestamp_type: match &*text("message.timestamp.type") {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: long("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: long("message.timestamp.after.max.ms"),
            retention_ms: long("retention.ms"),
            retention_bytes: long("retention.bytes"),
            segment_bytes: int("segment.bytes"),
            segment_ms: long("segment.ms"),
            delete_retention_ms: long("delete.retention.ms"),
            min_compaction_lag_ms: long("min.compaction.lag.ms"),
            max_compaction_lag_ms: long("max.compaction.lag.ms"),
            min_cleanable_dirty_ratio: text("min.cleanable.dirty.ratio")
                .parse()
                .expect("values were checked"),
            overrides: BTreeMap::new(),
            unknown,
        };
        config.compression_level = match config.compression {
            CompressionType::Codec(Codec::Gzip) => Some(int("compression.gzip.level")),
            CompressionType::Codec(Codec::Zstd) => Some(int("compression.zstd.level")),
            _ => None,
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
            compression_level: self.compression_level,
            now_ms,
            produce_version,
            decompressed_bytes_max: decompressed_bytes_max.min(bytes(self.max_decompressed_message_bytes)),
        }
    }
}
