//! All settings: name, default, unit, bound, what it does. Those of the shell around the core are in the table
//! here; those that the core knows, and those that can change while the broker runs, are in the core's
//! (`ottla_core::cluster::config`).
//!
//! A file (TOML: `"name" = value`) is overruled by the environment (`OTTLA_` + the name in capitals, dots as
//! underscores), that by flags. Kafka's names are kept where the meaning is Kafka's. An unknown name or a value
//! outside its bound is refused.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use ottla_core::cluster::config::{
    ConfigError as CoreError, ConfigType, Update, broker_definition, broker_definitions,
};
use ottla_core::config::CoreConfig;

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
    /// Address for /metrics and /health, `host:port`; empty: none.
    pub http_listen: String,
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
    /// When files are dropped and rewritten.
    pub levels: ottla_storage::LevelsOptions,
    /// Log files' worth of room that is kept for a full disk.
    pub log_reserve_files: usize,
    /// Threads that serve connections; 0: as many as the machine has cores.
    pub network_threads: usize,
    /// `socket.request.max.bytes`.
    pub socket_request_max_bytes: usize,
    /// `queued.max.request.bytes`.
    pub queued_max_request_bytes: usize,
    /// `connections.max.idle.ms`.
    pub connections_max_idle_ms: u64,
    /// `shutdown.timeout.ms`.
    pub shutdown_timeout_ms: u64,
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
            http_listen: String::new(),
            dir: "ottla-data".to_owned(),
            durability: Durability::Fsync,
            log_file_bytes: 64 << 20,
            tail_cache_bytes: 64 << 20,
            snapshot_log_bytes: limits::SNAPSHOT_LOG_BYTES,
            levels: ottla_storage::LevelsOptions::default(),
            log_reserve_files: 2,
            network_threads: 0,
            socket_request_max_bytes: limits::REQUEST_BYTES_MAX,
            queued_max_request_bytes: limits::REQUESTS_IN_FLIGHT_BYTES_MAX,
            connections_max_idle_ms: 600_000,
            shutdown_timeout_ms: limits::SHUTDOWN_WAIT.as_millis() as u64,
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
    #[error("{source_name}: {reason}")]
    Refused { source_name: String, reason: String },
    #[error("settings contradict each other: {0}")]
    Contradiction(String),
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
    Int32(Get<i32>, RangeInclusive<i64>),
    Unsigned64(Get<u64>, RangeInclusive<i64>),
    Int64(Get<i64>, RangeInclusive<i64>),
    Size(Get<usize>, RangeInclusive<i64>),
    Boolean(Get<bool>),
    Durability,
}

macro_rules! setting {
    ($name:literal, $about:literal, $kind:expr) => {
        Setting { name: $name, about: $about, kind: $kind }
    };
}

/// Every setting of the shell.
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
    setting!(
        "http.listen",
        "address for metrics and health over HTTP, host:port; open to whoever reaches it; empty: none",
        Kind::Text(|c| &mut c.http_listen)
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
        "log.reserve.files",
        "room kept for a full disk, in log files: on it transactions end and files are deleted when nothing else can be written",
        Kind::Size(|c| &mut c.log_reserve_files, 0..=64)
    ),
    setting!(
        "log.rewrite.enable",
        "whether files are rewritten by partition and without garbage; files that hold nothing alive always go",
        Kind::Boolean(|c| &mut c.levels.rewrite)
    ),
    setting!(
        "log.rewrite.file.bytes",
        "size of a rewritten file, bytes",
        Kind::Unsigned64(|c| &mut c.levels.data_file_bytes, 1 << 20..=2 << 30)
    ),
    setting!(
        "log.rewrite.run.bytes",
        "log files are looked at together, for rewriting, once they are so many bytes",
        Kind::Unsigned64(|c| &mut c.levels.run_bytes, 1 << 20..=1 << 40)
    ),
    setting!(
        "log.rewrite.run.age.ms",
        "or once the oldest of them is older than this, ms",
        Kind::Int64(|c| &mut c.levels.run_age_ms, 0..=i64::MAX / 4)
    ),
    setting!(
        "log.rewrite.extent.bytes",
        "they are rewritten where what lies together of a partition is shorter than this, bytes",
        Kind::Unsigned64(|c| &mut c.levels.extent_bytes_min, 0..=1 << 30)
    ),
    setting!(
        "log.rewrite.mixed.percent",
        "or where so much of them has another retention than most, percent",
        Kind::Unsigned64(|c| &mut c.levels.mixed_percent, 0..=100)
    ),
    setting!(
        "log.rewrite.garbage.percent",
        "files are rewritten without their garbage when more than this of all is garbage, percent",
        Kind::Unsigned64(|c| &mut c.levels.garbage_percent, 1..=100)
    ),
    setting!(
        "network.threads",
        "threads that serve connections; 0: one per core",
        Kind::Size(|c| &mut c.network_threads, 0..=1024)
    ),
    setting!("node.id", "id of this broker", Kind::Int32(|c| &mut c.core.node_id, 0..=i32::MAX as i64)),
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
    setting!(
        "shutdown.timeout.ms",
        "how long an orderly stop waits until its answers have left, ms",
        Kind::Unsigned64(|c| &mut c.shutdown_timeout_ms, 0..=3_600_000)
    ),
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
];

/// A setting as it is listed: the shell's and the core's alike.
pub struct Listed {
    /// Its name.
    pub name: &'static str,
    /// Its type, as Kafka tells it.
    pub kind: ConfigType,
    /// Its default as text; none when there is none.
    pub default: Option<String>,
    /// What it may be, for people.
    pub bound: String,
    /// When it may change.
    pub update: Update,
    /// What it does.
    pub about: &'static str,
}

/// Every setting that a broker can be started with, by name.
pub fn listed() -> Vec<Listed> {
    let defaults = Config::default();
    let mut all: Vec<Listed> = SETTINGS.iter().map(|setting| setting.listed(&defaults)).collect();
    all.extend(broker_definitions().iter().map(|core| Listed {
        name: core.name(),
        kind: core.definition.kind,
        default: core.definition.default_value().map(str::to_owned),
        bound: core.definition.rule.to_string(),
        update: core.update,
        about: core.definition.documentation,
    }));
    all.sort_unstable_by_key(|setting| setting.name);
    all
}

impl Setting {
    /// Its type, as Kafka tells it.
    pub fn config_type(&self) -> ConfigType {
        match &self.kind {
            Kind::Text(_) | Kind::Durability => ConfigType::String,
            Kind::Boolean(_) => ConfigType::Boolean,
            Kind::Int32(..) => ConfigType::Int,
            Kind::Unsigned64(_, bound) | Kind::Size(_, bound) if *bound.end() <= i64::from(i32::MAX) => {
                ConfigType::Int
            }
            Kind::Unsigned64(..) | Kind::Int64(..) | Kind::Size(..) => ConfigType::Long,
        }
    }

    fn listed(&self, defaults: &Config) -> Listed {
        let bound = match &self.kind {
            Kind::Text(_) => "anything".to_owned(),
            Kind::Boolean(_) => "true or false".to_owned(),
            Kind::Durability => "one of fsync, os".to_owned(),
            Kind::Int32(_, bound)
            | Kind::Unsigned64(_, bound)
            | Kind::Int64(_, bound)
            | Kind::Size(_, bound) => {
                format!("{} to {}", bound.start(), bound.end())
            }
        };
        let default = Some(self.kind.get(&mut defaults.clone()));
        let (name, about) = (self.name, self.about);
        Listed { name, kind: self.config_type(), default, bound, update: Update::ReadOnly, about }
    }
}

impl Config {
    /// Sets one setting from text; `source_name` says in messages where it came from.
    pub fn set(&mut self, source_name: &str, name: &str, value: &str) -> Result<(), ConfigError> {
        let source_name = source_name.to_owned();
        if let Some(core) = broker_definition(name) {
            let refused = |error: CoreError| ConfigError::Refused { source_name, reason: error.to_string() };
            return core.set(&mut self.core, value).map_err(refused);
        }
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
            return Err(ConfigError::Unknown { source_name, name: name.to_owned() });
        };
        setting.kind.set(self, value.trim()).map_err(|expected| ConfigError::Value {
            source_name,
            name: name.to_owned(),
            value: value.to_owned(),
            expected,
        })
    }

    /// Refuses settings that contradict each other, though each value alone is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.core.check().map_err(ConfigError::Contradiction)
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

    /// The value of a setting as text; none when it has none or is unknown.
    pub fn get(&self, name: &str) -> Option<String> {
        if let Some(core) = broker_definition(name) {
            return core.get(&self.core);
        }
        let setting = SETTINGS.iter().find(|setting| setting.name == name)?;
        Some(setting.kind.get(&mut self.clone()))
    }
}

impl Kind {
    fn set(&self, config: &mut Config, text: &str) -> Result<(), String> {
        match self {
            Self::Text(get) => *get(config) = text.to_owned(),
            Self::Int32(get, bound) => *get(config) = number(text, bound)? as i32,
            Self::Unsigned64(get, bound) => *get(config) = number(text, bound)? as u64,
            Self::Int64(get, bound) => *get(config) = number(text, bound)?,
            Self::Size(get, bound) => *get(config) = number(text, bound)? as usize,
            Self::Boolean(get) => {
                *get(config) = text.to_ascii_lowercase().parse().map_err(|_| "true or false".to_owned())?;
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
            Self::Int32(get, _) => get(config).to_string(),
            Self::Unsigned64(get, _) => get(config).to_string(),
            Self::Int64(get, _) => get(config).to_string(),
            Self::Size(get, _) => get(config).to_string(),
            Self::Boolean(get) => get(config).to_string(),
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
        assert!(matches!(config.set("flag", "num.partitions", "0"), Err(ConfigError::Refused { .. })));
        assert!(matches!(config.set("flag", "node.id", "-1"), Err(ConfigError::Value { .. })));
        config.set("flag", "log.retention.hours", "-1").expect("valid");
        assert_eq!(config.get("log.retention.hours").as_deref(), Some("-1"));
        assert_eq!((config.get("log.retention.ms"), config.check()), (None, Ok(())));
        config.set("flag", "group.min.session.timeout.ms", "2000000").expect("valid alone");
        assert!(matches!(config.check(), Err(ConfigError::Contradiction(_))));
        assert!(matches!(config.set_from_toml("f", "[a"), Err(ConfigError::Syntax { .. })));
    }

    /// Proves: the default of every setting reads back through its own parser, and no name is there twice.
    #[test]
    fn defaults_are_inside_their_bounds() {
        let mut config = Config::default();
        for setting in listed() {
            assert_eq!(Config::default().get(setting.name), setting.default, "{}", setting.name);
            let Some(value) = setting.default else { continue };
            config.set("default", setting.name, &value).unwrap_or_else(|error| panic!("{error}"));
        }
        assert!(listed().is_sorted_by(|one, other| one.name < other.name));
    }
}
