//! All settings, in one table: name, default, unit, bound, what it does.
//!
//! A file (TOML: `"name" = value`) is overruled by the environment (`OTTLA_` + the name in capitals, dots as
//! underscores), that by flags. Kafka's names are kept where the meaning is Kafka's. An unknown name or a value
//! outside its bound is refused.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use ottla_core::config::{CoreConfig, MigrationPolicy};

use crate::limits;

/// When an append counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After fdatasync.
    Fsync,
    /// When the operating system has it: a crash of the machine loses acknowledged records. For comparison.
    Os,
}

/// The broker's configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Address that clients are told, `host:port`; empty: where the broker listens.
    pub advertised_listener: String,
    /// Folder of the data.
    pub dir: String,
    /// When an append counts as durable.
    pub durability: Durability,
    /// Size of a log file in bytes.
    pub log_file_bytes: u64,
    /// Bytes of recent frames kept in memory for readers.
    pub tail_cache_bytes: usize,
    /// Log bytes after which a snapshot is written.
    pub snapshot_log_bytes: u64,
    /// Threads that serve connections; 0: as many as the machine has cores.
    pub network_threads: usize,
    /// `socket.request.max.bytes`.
    pub socket_request_max_bytes: usize,
    /// `queued.max.request.bytes`.
    pub queued_max_request_bytes: usize,
    /// `max.connections`.
    pub max_connections: usize,
    /// `connections.max.idle.ms`.
    pub connections_max_idle_ms: u64,
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: usize,
    /// `max.incremental.fetch.session.cache.slots`.
    pub fetch_sessions_max: usize,
    /// What the core is configured with.
    pub core: CoreConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9092".to_owned(),
            advertised_listener: String::new(),
            dir: "ottla-data".to_owned(),
            durability: Durability::Fsync,
            log_file_bytes: 64 << 20,
            tail_cache_bytes: 64 << 20,
            snapshot_log_bytes: limits::SNAPSHOT_LOG_BYTES,
            network_threads: 0,
            socket_request_max_bytes: limits::REQUEST_BYTES_MAX,
            queued_max_request_bytes: limits::REQUESTS_IN_FLIGHT_BYTES_MAX,
            max_connections: limits::CONNECTIONS_MAX,
            connections_max_idle_ms: 600_000,
            fetch_max_bytes: limits::FETCH_BYTES_MAX,
            fetch_sessions_max: limits::FETCH_SESSIONS_MAX,
            core: CoreConfig::default(),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)] // the messages say it
pub enum ConfigError {
    #[error("{source_name}: there is no setting {name:?}; `ottla serve --settings` lists them")]
    Unknown { source_name: String, name: String },
    #[error("{source_name}: {name} = {value:?} is not {expected}")]
    Value { source_name: String, name: String, value: String, expected: String },
    #[error("{path}: not TOML: {reason}")]
    Syntax { path: String, reason: String },
}

/// One setting, for messages and documentation.
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it does, with its unit.
    pub about: &'static str,
    kind: Kind,
}

type Get<T> = fn(&mut Config) -> &mut T;

enum Kind {
    Text(Get<String>),
    Switch(Get<bool>),
    Int32(Get<i32>, RangeInclusive<i64>),
    Int64(Get<i64>, RangeInclusive<i64>),
    Unsigned64(Get<u64>, RangeInclusive<i64>),
    Size(Get<usize>, RangeInclusive<i64>),
    Minutes(Get<i64>, RangeInclusive<i64>),
    Durability,
    Assignors(Get<String>),
    Migration(Get<MigrationPolicy>),
}

const MS: RangeInclusive<i64> = 1..=i64::MAX / 4;

macro_rules! setting {
    ($name:literal, $about:literal, $kind:expr) => {
        Setting { name: $name, about: $about, kind: $kind }
    };
}

/// Every setting.
pub static SETTINGS: &[Setting] = &[
    setting!(
        "listen",
        "address to listen on, host:port; port 0 takes a free one",
        Kind::Text(|c| &mut c.listen)
    ),
    setting!(
        "advertised.listener",
        "address that clients are told, host:port; empty: where the broker listens",
        Kind::Text(|c| &mut c.advertised_listener)
    ),
    setting!("dir", "folder of the data", Kind::Text(|c| &mut c.dir)),
    setting!(
        "durability",
        "fsync: acknowledged is on disk; os: acknowledged is in the page cache (for comparison)",
        Kind::Durability
    ),
    setting!(
        "log.file.bytes",
        "size of a log file, bytes",
        Kind::Unsigned64(|c| &mut c.log_file_bytes, 1 << 20..=1 << 30)
    ),
    setting!(
        "tail.cache.bytes",
        "recent frames kept in memory for readers, bytes",
        Kind::Size(|c| &mut c.tail_cache_bytes, 1 << 20..=1 << 36)
    ),
    setting!(
        "snapshot.log.bytes",
        "log bytes after which a snapshot is written",
        Kind::Unsigned64(|c| &mut c.snapshot_log_bytes, 1 << 20..=1 << 40)
    ),
    setting!(
        "network.threads",
        "threads that serve connections; 0: one per core",
        Kind::Size(|c| &mut c.network_threads, 0..=1024)
    ),
    setting!("node.id", "id of this broker", Kind::Int32(|c| &mut c.core.node_id, 0..=i32::MAX as i64)),
    setting!(
        "num.partitions",
        "partitions of a topic created without a count",
        Kind::Int32(|c| &mut c.core.num_partitions, 1..=10_000)
    ),
    setting!(
        "auto.create.topics.enable",
        "whether asking for an unknown topic creates it",
        Kind::Switch(|c| &mut c.core.auto_create_topics_enable)
    ),
    setting!(
        "socket.request.max.bytes",
        "largest request, bytes",
        Kind::Size(|c| &mut c.socket_request_max_bytes, 1024..=1 << 30)
    ),
    setting!(
        "queued.max.request.bytes",
        "requests read but not answered, bytes",
        Kind::Size(|c| &mut c.queued_max_request_bytes, 1 << 20..=1 << 31)
    ),
    setting!("max.connections", "connections at once", Kind::Size(|c| &mut c.max_connections, 1..=1_000_000)),
    setting!(
        "connections.max.idle.ms",
        "a connection without requests is closed after this, ms",
        Kind::Unsigned64(|c| &mut c.connections_max_idle_ms, 1000..=i64::MAX / 4)
    ),
    setting!(
        "fetch.max.bytes",
        "largest answer to one Fetch, bytes",
        Kind::Size(|c| &mut c.fetch_max_bytes, 1024..=1 << 30)
    ),
    setting!(
        "max.incremental.fetch.session.cache.slots",
        "fetch sessions kept",
        Kind::Size(|c| &mut c.fetch_sessions_max, 0..=1_000_000)
    ),
    setting!(
        "offsets.topic.num.partitions",
        "partitions of __consumer_offsets, fixed when a folder is made",
        Kind::Int32(|c| &mut c.core.offsets_topic_num_partitions, 1..=1000)
    ),
    setting!(
        "transaction.state.log.num.partitions",
        "partitions of __transaction_state, fixed when a folder is made",
        Kind::Int32(|c| &mut c.core.transaction_state_log_num_partitions, 1..=1000)
    ),
    setting!(
        "transaction.max.timeout.ms",
        "longest transaction a client may ask for, ms",
        Kind::Int32(|c| &mut c.core.transaction_max_timeout_ms, 1..=i32::MAX as i64 - 1)
    ),
    setting!(
        "transactional.id.expiration.ms",
        "an id without a transaction is forgotten after this, ms",
        Kind::Int64(|c| &mut c.core.transactional_id_expiration_ms, MS)
    ),
    setting!(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "how often timed out transactions are looked for, ms",
        Kind::Int64(|c| &mut c.core.transaction_abort_interval_ms, MS)
    ),
    setting!(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "how often expired ids are looked for, ms",
        Kind::Int64(|c| &mut c.core.transactional_id_cleanup_interval_ms, MS)
    ),
    setting!(
        "transaction.partition.verification.enable",
        "whether a v1 transactional Produce must find its partition in the transaction",
        Kind::Switch(|c| &mut c.core.transaction_partition_verification_enable)
    ),
    setting!(
        "producer.id.expiration.ms",
        "a partition forgets a producer this long after its last append, ms",
        Kind::Int64(|c| &mut c.core.producer_id_expiration_ms, MS)
    ),
    setting!(
        "producer.id.expiration.check.interval.ms",
        "how often such producers are looked for, ms",
        Kind::Int64(|c| &mut c.core.producer_id_expiration_check_interval_ms, MS)
    ),
    setting!(
        "offset.metadata.max.bytes",
        "longest metadata of a committed offset, bytes",
        Kind::Int32(|c| &mut c.core.offset_metadata_max_bytes, 0..=1 << 20)
    ),
    setting!(
        "offsets.retention.minutes",
        "an unused committed offset is forgotten after this, minutes",
        Kind::Minutes(|c| &mut c.core.offsets_retention_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "offsets.retention.check.interval.ms",
        "how often such offsets are looked for, ms",
        Kind::Int64(|c| &mut c.core.offsets_retention_check_interval_ms, MS)
    ),
    setting!(
        "transaction.v1.enable",
        "whether transactions of protocol v1 are served; off, only clients of v2 (KIP-890) can use them",
        Kind::Switch(|c| &mut c.core.transaction_v1_enable)
    ),
    setting!(
        "group.consumer.session.timeout.ms",
        "how long a member of a consumer group (KIP-848) may be silent, ms",
        Kind::Int32(|c| &mut c.core.group_consumer_session_timeout_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.consumer.min.session.timeout.ms",
        "shortest such time that may be set, ms",
        Kind::Int32(|c| &mut c.core.group_consumer_min_session_timeout_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.consumer.max.session.timeout.ms",
        "longest such time that may be set, ms",
        Kind::Int32(|c| &mut c.core.group_consumer_max_session_timeout_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.consumer.heartbeat.interval.ms",
        "how often members of a consumer group are told to send heartbeats, ms",
        Kind::Int32(|c| &mut c.core.group_consumer_heartbeat_interval_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.consumer.min.heartbeat.interval.ms",
        "shortest such time that may be set for a group, ms",
        Kind::Int32(|c| &mut c.core.group_consumer_min_heartbeat_interval_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.consumer.max.heartbeat.interval.ms",
        "longest such time that may be set for a group, ms",
        Kind::Int32(|c| &mut c.core.group_consumer_max_heartbeat_interval_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.consumer.max.size",
        "members of one consumer group",
        Kind::Int32(|c| &mut c.core.group_consumer_max_size, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.consumer.assignors",
        "assignors of consumer groups, uniform and range, the default one first",
        Kind::Assignors(|c| &mut c.core.group_consumer_assignors)
    ),
    setting!(
        "group.consumer.migration.policy",
        "which groups change protocol while they have members: bidirectional, upgrade, downgrade or disabled",
        Kind::Migration(|c| &mut c.core.group_consumer_migration_policy)
    ),
    setting!(
        "group.initial.rebalance.delay.ms",
        "how long the first rebalance of an empty group waits for more members, ms",
        Kind::Int32(|c| &mut c.core.group_initial_rebalance_delay_ms, 0..=i32::MAX as i64)
    ),
    setting!(
        "group.min.session.timeout.ms",
        "shortest session timeout a member may ask for, ms",
        Kind::Int32(|c| &mut c.core.group_min_session_timeout_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.max.session.timeout.ms",
        "longest session timeout a member may ask for, ms",
        Kind::Int32(|c| &mut c.core.group_max_session_timeout_ms, 1..=i32::MAX as i64)
    ),
    setting!(
        "group.max.size",
        "members of a classic group",
        Kind::Int32(|c| &mut c.core.group_max_size, 1..=i32::MAX as i64)
    ),
    setting!(
        "transaction.v1.connection.fence.enable",
        "whether a v1 transactional request that arrives late on an older connection is cut",
        Kind::Switch(|c| &mut c.core.connection_fence_enable)
    ),
];

impl Config {
    /// Sets one setting from text; `source_name` says in messages where it came from.
    pub fn set(&mut self, source_name: &str, name: &str, value: &str) -> Result<(), ConfigError> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name).ok_or_else(|| {
            ConfigError::Unknown { source_name: source_name.to_owned(), name: name.to_owned() }
        })?;
        setting.kind.set(self, value.trim()).map_err(|expected| ConfigError::Value {
            source_name: source_name.to_owned(),
            name: name.to_owned(),
            value: value.to_owned(),
            expected,
        })
    }

    /// Applies a configuration file's text.
    pub fn set_from_toml(&mut self, path: &str, text: &str) -> Result<(), ConfigError> {
        let syntax = |error: toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            reason: error.message().to_owned(),
        };
        let table: BTreeMap<String, toml::Value> = toml::from_str(text).map_err(syntax)?;
        for (name, value) in table {
            let value = match value {
                toml::Value::String(text) => text,
                other => other.to_string(),
            };
            self.set(path, &name, &value)?;
        }
        Ok(())
    }

    /// Applies variables of the environment; those that do not begin with `OTTLA_` are skipped.
    pub fn set_from_environment<I>(&mut self, variables: I) -> Result<(), ConfigError>
    where
        I: IntoIterator<Item = (String, String)>,
    {
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix("OTTLA_") else { continue };
            let name = rest.to_ascii_lowercase().replace('_', ".");
            if rest == "LOG" || rest == "CACHE" {
                continue; // the log filter and the build cache, not settings of the broker
            }
            self.set(&format!("environment {variable}"), &name, &value)?;
        }
        Ok(())
    }

    /// `connections.max.idle.ms` as a duration.
    pub fn connections_max_idle(&self) -> Duration {
        Duration::from_millis(self.connections_max_idle_ms)
    }

    /// The value of a setting as text.
    pub fn get(&self, name: &str) -> Option<String> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name)?;
        Some(setting.kind.get(&mut self.clone()))
    }
}

impl Kind {
    fn set(&self, config: &mut Config, text: &str) -> Result<(), String> {
        match self {
            Self::Text(get) => *get(config) = text.to_owned(),
            Self::Switch(get) => *get(config) = text.parse().map_err(|_| "true or false".to_owned())?,
            Self::Int32(get, bound) => *get(config) = number(text, bound)? as i32,
            Self::Int64(get, bound) => *get(config) = number(text, bound)?,
            Self::Unsigned64(get, bound) => *get(config) = number(text, bound)? as u64,
            Self::Size(get, bound) => *get(config) = number(text, bound)? as usize,
            Self::Minutes(get, bound) => *get(config) = number(text, bound)? * 60_000,
            Self::Assignors(get) => {
                let mut names = text.split(',').map(str::trim);
                if !names.all(|name| matches!(name, "uniform" | "range")) {
                    return Err("a list of uniform and range".to_owned());
                }
                *get(config) = text.to_owned();
            }
            Self::Migration(get) => {
                let expected = || "bidirectional, upgrade, downgrade or disabled".to_owned();
                *get(config) = MigrationPolicy::from_name(text).ok_or_else(expected)?;
            }
            Self::Durability => {
                config.durability = match text {
                    "fsync" => Durability::Fsync,
                    "os" => Durability::Os,
                    _ => return Err("fsync or os".to_owned()),
                }
            }
        }
        Ok(())
    }

    fn get(&self, config: &mut Config) -> String {
        match self {
            Self::Text(get) => get(config).clone(),
            Self::Switch(get) => get(config).to_string(),
            Self::Int32(get, _) => get(config).to_string(),
            Self::Int64(get, _) => get(config).to_string(),
            Self::Unsigned64(get, _) => get(config).to_string(),
            Self::Size(get, _) => get(config).to_string(),
            Self::Minutes(get, _) => (*get(config) / 60_000).to_string(),
            Self::Assignors(get) => get(config).clone(),
            Self::Migration(get) => get(config).name().to_owned(),
            Self::Durability => match config.durability {
                Durability::Fsync => "fsync".to_owned(),
                Durability::Os => "os".to_owned(),
            },
        }
    }
}

fn number(text: &str, bound: &RangeInclusive<i64>) -> Result<i64, String> {
    let expected = || format!("a whole number in {}..={}", bound.start(), bound.end());
    text.parse().ok().filter(|number| bound.contains(number)).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: file, environment and flags set the same things, unknown names and bad values are refused by name.
    #[test]
    fn sources_and_refusals() {
        let mut config = Config::default();
        config
            .set_from_toml("ottla.toml", "listen = \"127.0.0.1:0\"\n\"num.partitions\" = 4\n")
            .expect("valid");
        assert_eq!((config.listen.as_str(), config.core.num_partitions), ("127.0.0.1:0", 4));
        let variables =
            [("OTTLA_NUM_PARTITIONS", "6"), ("HOME", "x")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        config.set_from_environment(variables).expect("valid");
        assert_eq!(config.core.num_partitions, 6);
        config.set("flag", "offsets.retention.minutes", "2").expect("valid");
        assert_eq!(config.core.offsets_retention_ms, 120_000);
        assert_eq!(config.get("offsets.retention.minutes").as_deref(), Some("2"));
        assert!(matches!(config.set("flag", "num.partition", "1"), Err(ConfigError::Unknown { .. })));
        assert!(matches!(config.set("flag", "num.partitions", "0"), Err(ConfigError::Value { .. })));
        assert!(matches!(config.set_from_toml("f", "[a"), Err(ConfigError::Syntax { .. })));
    }

    /// Proves: the default of every setting reads back through its own parser.
    #[test]
    fn defaults_are_inside_their_bounds() {
        let mut config = Config::default();
        for setting in SETTINGS {
            let value = Config::default().get(setting.name).expect("listed");
            config.set("default", setting.name, &value).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
