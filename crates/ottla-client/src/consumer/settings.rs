//! Settings of consumers, under Kafka's names.

mod duration;

use std::time::Duration;

use ottla_protocol::types::Text;

use super::assignor::Assignor;
use crate::settings::{ClientSettings, SettingError, check_duration, check_size, millis, number, setters};

/// What of a transaction is shown.
///
/// ```
/// use ottla_client::{ClientSettings, ConsumerSettings, IsolationLevel};
///
/// let settings = ConsumerSettings::new(ClientSettings::new("127.0.0.1:9092")?);
/// assert_eq!(settings.isolation, IsolationLevel::ReadCommitted);
/// let everything = settings.isolation(IsolationLevel::ReadUncommitted);
/// # drop(everything);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationLevel {
    /// Everything that is written, aborted or not.
    ReadUncommitted,
    /// Only what is committed, in order: reading stops in front of the first open transaction.
    #[default]
    ReadCommitted,
}

impl IsolationLevel {
    /// Its number on the wire.
    pub(crate) fn code(self) -> i8 {
        match self {
            Self::ReadUncommitted => 0,
            Self::ReadCommitted => 1,
        }
    }
}

/// What to do with a position that is not in the log.
///
/// ```
/// use std::time::Duration;
/// use ottla_client::{ClientSettings, ConsumerSettings, OffsetReset};
///
/// let mut settings = ConsumerSettings::new(ClientSettings::new("127.0.0.1:9092")?);
/// assert_eq!(settings.offset_reset, OffsetReset::None); // not Kafka's default: nothing is skipped in silence
/// settings.set("auto.offset.reset", "by_duration:PT1H")?;
/// assert_eq!(settings.offset_reset, OffsetReset::ByDuration(Duration::from_secs(3600)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffsetReset {
    /// Begin at the first record that is still there.
    Earliest,
    /// Begin at the end.
    Latest,
    /// Begin at the first record that is not older than so long before now (KIP-1106); at the end when there is
    /// none.
    ByDuration(Duration),
    /// Return an error.
    #[default]
    None,
}

/// The protocol of `group.protocol`.
///
/// ```
/// use ottla_client::{ClientSettings, ConsumerSettings, GroupProtocol};
///
/// let client = ClientSettings::new("127.0.0.1:9092")?;
/// let settings = ConsumerSettings::new(client).group_id("shop").group_protocol(GroupProtocol::Consumer);
/// # assert!(settings.check().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupProtocol {
    /// JoinGroup and SyncGroup; a member assigns.
    #[default]
    Classic,
    /// KIP-848; the broker assigns. Kafka 4.0 or Ottla.
    Consumer,
}

/// How a consumer fetches, and how it is a member of a group. Three defaults are not Kafka's: `isolation.level`
/// is `read_committed` and `auto.offset.reset` is `none`, because what is skipped in silence is lost; and
/// `enable.auto.commit` is off, because only the program knows when a record has been dealt with.
///
/// ```
/// use std::time::Duration;
/// use ottla_client::{Assignor, ClientSettings, ConsumerSettings, GroupProtocol, IsolationLevel, OffsetReset};
///
/// let client = ClientSettings::new("127.0.0.1:9092")?;
/// let mut settings = ConsumerSettings::new(client)
///     .group_id("shop")
///     .group_instance_id("shop-1") // static: a restart is no rebalance
///     .group_protocol(GroupProtocol::Classic)
///     .assignors(vec![Assignor::CooperativeSticky])
///     .session_timeout(Duration::from_secs(10))
///     .heartbeat_interval(Duration::from_secs(1))
///     .max_poll_interval(Duration::from_secs(60))
///     .isolation(IsolationLevel::ReadCommitted)
///     .offset_reset(OffsetReset::Earliest)
///     .auto_commit(true)
///     .auto_commit_interval(Duration::from_secs(1))
///     .fetch_min_bytes(1 << 10)
///     .fetch_max_wait(Duration::from_millis(100))
///     .partition_fetch_bytes(4 << 20)
///     .max_poll_records(1_000)
///     .check_crcs(true);
///
/// // or under Kafka's names, e.g. from a file
/// settings.set("fetch.max.bytes", "1048576")?;
/// settings.set("bootstrap.servers", "kafka-1:9092,kafka-2:9092")?;
/// let other_cluster = settings.clone().client(ClientSettings::new("kafka-3:9092")?);
/// assert!(other_cluster.check().is_ok());
/// assert!(settings.set("session.timeout.ms", "soon").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerSettings {
    /// How to reach the cluster.
    pub client: ClientSettings,
    /// `isolation.level`: `read_committed` (default) or `read_uncommitted`.
    pub isolation: IsolationLevel,
    /// `auto.offset.reset`: `none` (default), `earliest`, `latest` or `by_duration:P1DT2H` (ISO 8601).
    pub offset_reset: OffsetReset,
    /// `group.id`: whose offsets are committed, and with a subscription whose member this is. Default none; 1 to
    /// 32767 bytes.
    pub group_id: Option<Text>,
    /// `group.instance.id`: makes a static member, which keeps its partitions over a restart (KIP-345). Default
    /// none; 1 to 249 bytes.
    pub group_instance_id: Option<Text>,
    /// `group.protocol`: `classic` (default) or `consumer`.
    pub group_protocol: GroupProtocol,
    /// `group.remote.assignor`: the broker's assignor with `group.protocol=consumer`. Default: the broker's choice.
    pub group_remote_assignor: Option<Text>,
    /// `partition.assignment.strategy`: what the group may choose from, best first. Default
    /// `range,cooperative-sticky`. Partitions are read on during a rebalance only if every one is cooperative.
    pub assignors: Vec<Assignor>,
    /// `session.timeout.ms`: without a heartbeat for so long the coordinator gives the member up. Default 45 s,
    /// 1 ms to 30 min. With `group.protocol=consumer` the broker's setting counts.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`. Default 3 s, 1 ms to the session's time-out. With `group.protocol=consumer` the
    /// broker's setting counts.
    pub heartbeat_interval: Duration,
    /// `max.poll.interval.ms`: who does not poll for so long leaves the group; also how long a rebalance waits
    /// for members. Default 5 min, 1 ms to 1 day.
    pub max_poll_interval: Duration,
    /// `enable.auto.commit`: `poll` commits what earlier calls have returned. Default false.
    pub auto_commit: bool,
    /// `auto.commit.interval.ms`: how often. Default 5 s, 1 ms to 1 h.
    pub auto_commit_interval: Duration,
    /// `client.rack`: assignors prefer partitions with a replica in this rack. Default none; at most 249 bytes.
    pub client_rack: Option<Text>,
    /// `fetch.min.bytes`: the broker waits for this many bytes. Default 1, 0 to 100 MiB.
    pub fetch_min_bytes: usize,
    /// `fetch.max.bytes`: most bytes of one answer, but for one larger batch. Default 50 MiB, 1 KiB to 1 GiB.
    pub fetch_max_bytes: usize,
    /// `max.partition.fetch.bytes`: the same per partition. Default 1 MiB, 1 KiB to 1 GiB.
    pub partition_fetch_bytes: usize,
    /// `fetch.max.wait.ms`: longest the broker waits. Default 500 ms, 0 to 5 min.
    pub fetch_max_wait: Duration,
    /// `max.poll.records`: most records that `poll` returns. Default 500, 1 to 1,000,000.
    pub max_poll_records: usize,
    /// `decompressed.batch.max.bytes` (ours): most bytes that one batch may have when decompressed. Default 256
    /// MiB, 1 KiB to 1 GiB.
    pub decompressed_bytes_max: usize,
    /// `check.crcs`: whether the CRC of each batch is checked. Default true. Without it, bytes that were damaged on
    /// their way or on the broker's disk are noticed only when they cannot be decoded, or not at all.
    pub check_crcs: bool,
    /// `queued.max.messages.kbytes` (librdkafka's name; Kafka has none): bytes that are fetched ahead of `poll`;
    /// what is in flight comes on top, and what of paused partitions was fetched before. In bytes here, in KiB by name. Default 64 MiB, 64 KiB to 2 GiB.
    pub queued_bytes_max: usize,
}

const NAMES: &[&str] = &[
    "isolation.level",
    "auto.offset.reset",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.max.wait.ms",
    "max.poll.records",
    "decompressed.batch.max.bytes",
    "check.crcs",
    "queued.max.messages.kbytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "client.rack",
];

impl ConsumerSettings {
    /// Defaults for this cluster.
    pub fn new(client: ClientSettings) -> Self {
        Self {
            client,
            isolation: IsolationLevel::ReadCommitted,
            offset_reset: OffsetReset::None,
            group_id: None,
            group_instance_id: None,
            group_protocol: GroupProtocol::Classic,
            group_remote_assignor: None,
            assignors: vec![Assignor::Range, Assignor::CooperativeSticky],
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            max_poll_interval: Duration::from_secs(300),
            auto_commit: false,
            auto_commit_interval: Duration::from_secs(5),
            client_rack: None,
            fetch_min_bytes: 1,
            fetch_max_bytes: 50 << 20,
            partition_fetch_bytes: 1 << 20,
            fetch_max_wait: Duration::from_millis(500),
            max_poll_records: 500,
            decompressed_bytes_max: 256 << 20,
            check_crcs: true,
            queued_bytes_max: 64 << 20,
        }
    }

    /// Sets `group.id`.
    #[must_use]
    pub fn group_id(mut self, group_id: impl Into<Text>) -> Self {
        self.group_id = Some(group_id.into());
        self
    }

    /// Sets `group.instance.id`.
    #[must_use]
    pub fn group_instance_id(mut self, group_instance_id: impl Into<Text>) -> Self {
        self.group_instance_id = Some(group_instance_id.into());
        self
    }

    setters! {
        /// Sets `isolation.level`.
        isolation: IsolationLevel,
        /// Sets `auto.offset.reset`.
        offset_reset: OffsetReset,
        /// Sets `fetch.min.bytes`.
        fetch_min_bytes: usize,
        /// Sets `fetch.max.wait.ms`.
        fetch_max_wait: Duration,
        /// Sets `max.partition.fetch.bytes`.
        partition_fetch_bytes: usize,
        /// Sets `max.poll.records`.
        max_poll_records: usize,
        /// Sets `check.crcs`.
        check_crcs: bool,
        /// Sets `group.protocol`.
        group_protocol: GroupProtocol,
        /// Sets `partition.assignment.strategy`.
        assignors: Vec<Assignor>,
        /// Sets `session.timeout.ms`.
        session_timeout: Duration,
        /// Sets `heartbeat.interval.ms`.
        heartbeat_interval: Duration,
        /// Sets `max.poll.interval.ms`.
        max_poll_interval: Duration,
        /// Sets `enable.auto.commit`.
        auto_commit: bool,
        /// Sets `auto.commit.interval.ms`.
        auto_commit_interval: Duration,
        /// Sets how to reach the cluster.
        client: ClientSettings,
    }

    /// Whether partitions are read on during a rebalance.
    pub(super) fn is_cooperative(&self) -> bool {
        let by_assignors = self.assignors.iter().all(|assignor| assignor.is_cooperative());
        self.group_protocol == GroupProtocol::Consumer || by_assignors
    }

    /// Sets one setting by Kafka's name; the client's settings too.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        match name {
            "isolation.level" => self.isolation = isolation(name, value)?,
            "auto.offset.reset" => self.offset_reset = offset_reset(name, value)?,
            "fetch.min.bytes" => self.fetch_min_bytes = number(name, value)?,
            "fetch.max.bytes" => self.fetch_max_bytes = number(name, value)?,
            "max.partition.fetch.bytes" => self.partition_fetch_bytes = number(name, value)?,
            "fetch.max.wait.ms" => self.fetch_max_wait = millis(name, value)?,
            "max.poll.records" => self.max_poll_records = number(name, value)?,
            "decompressed.batch.max.bytes" => self.decompressed_bytes_max = number(name, value)?,
            "check.crcs" => self.check_crcs = boolean(name, value)?,
            "queued.max.messages.kbytes" => {
                self.queued_bytes_max = number::<usize>(name, value)?.saturating_mul(1024);
            }
            _ if ClientSettings::knows(name) => return self.client.set(name, value),
            _ => self.set_group(name, value)?,
        }
        self.check()
    }

    fn set_group(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        match name {
            "group.id" => self.group_id = text(value),
            "group.instance.id" => self.group_instance_id = text(value),
            "group.remote.assignor" => self.group_remote_assignor = text(value),
            "client.rack" => self.client_rack = text(value),
            "group.protocol" => {
                self.group_protocol = match value.to_ascii_lowercase().as_str() {
                    "classic" => GroupProtocol::Classic,
                    "consumer" => GroupProtocol::Consumer,
                    _ => return Err(SettingError::bad(name, value, "known are classic and consumer")),
                }
            }
            "partition.assignment.strategy" => self.assignors = assignors(name, value)?,
            "session.timeout.ms" => self.session_timeout = millis(name, value)?,
            "heartbeat.interval.ms" => self.heartbeat_interval = millis(name, value)?,
            "max.poll.interval.ms" => self.max_poll_interval = millis(name, value)?,
            "enable.auto.commit" => self.auto_commit = boolean(name, value)?,
            "auto.commit.interval.ms" => self.auto_commit_interval = millis(name, value)?,
            _ => return Err(SettingError::unknown(name, NAMES)),
        }
        Ok(())
    }

    /// Checks every bound.
    pub fn check(&self) -> Result<(), SettingError> {
        self.client.check()?;
        check_size("fetch.min.bytes", self.fetch_min_bytes, 0, 100 << 20)?;
        check_size("fetch.max.bytes", self.fetch_max_bytes, 1 << 10, 1 << 30)?;
        check_size("max.partition.fetch.bytes", self.partition_fetch_bytes, 1 << 10, 1 << 30)?;
        check_duration("fetch.max.wait.ms", self.fetch_max_wait, 0, Duration::from_secs(300))?;
        check_size("max.poll.records", self.max_poll_records, 1, 1_000_000)?;
        check_size("decompressed.batch.max.bytes", self.decompressed_bytes_max, 1 << 10, 1 << 30)?;
        check_size("queued.max.messages.kbytes", self.queued_bytes_max, 64 << 10, 2 << 30)?;
        let hour = Duration::from_secs(3600);
        check_duration("session.timeout.ms", self.session_timeout, 1, hour / 2)?;
        check_duration("heartbeat.interval.ms", self.heartbeat_interval, 1, self.session_timeout)?;
        check_duration("max.poll.interval.ms", self.max_poll_interval, 1, 24 * hour)?;
        check_duration("auto.commit.interval.ms", self.auto_commit_interval, 1, hour)?;
        check_text("group.id", self.group_id.as_ref(), 32_767)?;
        check_text("group.instance.id", self.group_instance_id.as_ref(), 249)?;
        check_text("group.remote.assignor", self.group_remote_assignor.as_ref(), 249)?;
        check_text("client.rack", self.client_rack.as_ref(), 249)?;
        if self.assignors.is_empty() || self.assignors.len() > 4 {
            return Err(SettingError::bad(
                "partition.assignment.strategy",
                self.assignors.len(),
                "name 1 to 4",
            ));
        }
        for assignor in &self.assignors {
            let name = assignor.name();
            if matches!(assignor, Assignor::Custom(_))
                && (name.is_empty() || name.len() > 249 || Assignor::from_name(name).is_some())
            {
                let problem =
                    "a strategy of your own needs a name of 1 to 249 bytes that is not one of Kafka's";
                return Err(SettingError::bad("partition.assignment.strategy", name, problem));
            }
        }
        if self.auto_commit && self.group_id.is_none() {
            return Err(SettingError::bad("enable.auto.commit", true, "needs group.id"));
        }
        Ok(())
    }
}

fn boolean(name: &str, value: &str) -> Result<bool, SettingError> {
    value.parse().map_err(|_| SettingError::bad(name, value, "known are true and false"))
}

fn isolation(name: &str, value: &str) -> Result<IsolationLevel, SettingError> {
    match value {
        "read_committed" => Ok(IsolationLevel::ReadCommitted),
        "read_uncommitted" => Ok(IsolationLevel::ReadUncommitted),
        _ => Err(SettingError::bad(name, value, "known are read_committed and read_uncommitted")),
    }
}

fn offset_reset(name: &str, value: &str) -> Result<OffsetReset, SettingError> {
    match value {
        "earliest" => Ok(OffsetReset::Earliest),
        "latest" => Ok(OffsetReset::Latest),
        "none" => Ok(OffsetReset::None),
        _ => {
            let duration = value.strip_prefix("by_duration:").and_then(duration::parse);
            duration.map(OffsetReset::ByDuration).ok_or_else(|| {
                SettingError::bad(
                    name,
                    value,
                    "known are earliest, latest, none and by_duration:PnDTnHnMn.nS",
                )
            })
        }
    }
}

fn assignors(name: &str, value: &str) -> Result<Vec<Assignor>, SettingError> {
    let mut assignors = Vec::new();
    for word in value.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let assignor = Assignor::from_name(word).ok_or_else(|| {
            SettingError::bad(name, word, "known are range, roundrobin, sticky and cooperative-sticky")
        })?;
        if !assignors.contains(&assignor) {
            assignors.push(assignor);
        }
    }
    Ok(assignors)
}

/// Empty is none.
fn text(value: &str) -> Option<Text> {
    (!value.is_empty()).then(|| Text::from(value))
}

fn check_text(name: &str, value: Option<&Text>, bytes_max: usize) -> Result<(), SettingError> {
    match value {
        Some(text) if text.is_empty() || text.len() > bytes_max => {
            Err(SettingError::bad(name, text, format!("must have 1 to {bytes_max} bytes")))
        }
        _ => Ok(()),
    }
}
