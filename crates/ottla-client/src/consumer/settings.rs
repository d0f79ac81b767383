//! Settings of consumers, under Kafka's names.

use std::time::Duration;

use crate::settings::{ClientSettings, SettingError, check_duration, check_size, millis, number, setters};

/// What of a transaction is shown.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffsetReset {
    /// Begin at the first record that is still there.
    Earliest,
    /// Begin at the end.
    Latest,
    /// Return an error.
    #[default]
    None,
}

/// How a consumer fetches. Two defaults are not Kafka's: `isolation.level` is `read_committed` and
/// `auto.offset.reset` is `none`, because what is skipped in silence is lost.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerSettings {
    /// How to reach the cluster.
    pub client: ClientSettings,
    /// `isolation.level`: `read_committed` (default) or `read_uncommitted`.
    pub isolation: IsolationLevel,
    /// `auto.offset.reset`: `none` (default), `earliest` or `latest`.
    pub offset_reset: OffsetReset,
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
];

impl ConsumerSettings {
    /// Defaults for this cluster.
    pub fn new(client: ClientSettings) -> Self {
        Self {
            client,
            isolation: IsolationLevel::ReadCommitted,
            offset_reset: OffsetReset::None,
            fetch_min_bytes: 1,
            fetch_max_bytes: 50 << 20,
            partition_fetch_bytes: 1 << 20,
            fetch_max_wait: Duration::from_millis(500),
            max_poll_records: 500,
            decompressed_bytes_max: 256 << 20,
        }
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
    }

    /// Sets one setting by Kafka's name; the client's settings too.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        match name {
            "isolation.level" => {
                self.isolation = match value {
                    "read_committed" => IsolationLevel::ReadCommitted,
                    "read_uncommitted" => IsolationLevel::ReadUncommitted,
                    _ => {
                        return Err(SettingError::bad(
                            name,
                            value,
                            "known are read_committed and read_uncommitted",
                        ));
                    }
                }
            }
            "auto.offset.reset" => {
                self.offset_reset = match value {
                    "earliest" => OffsetReset::Earliest,
                    "latest" => OffsetReset::Latest,
                    "none" => OffsetReset::None,
                    _ => return Err(SettingError::bad(name, value, "known are earliest, latest and none")),
                }
            }
            "fetch.min.bytes" => self.fetch_min_bytes = number(name, value)?,
            "fetch.max.bytes" => self.fetch_max_bytes = number(name, value)?,
            "max.partition.fetch.bytes" => self.partition_fetch_bytes = number(name, value)?,
            "fetch.max.wait.ms" => self.fetch_max_wait = millis(name, value)?,
            "max.poll.records" => self.max_poll_records = number(name, value)?,
            "decompressed.batch.max.bytes" => self.decompressed_bytes_max = number(name, value)?,
            _ if ClientSettings::knows(name) => return self.client.set(name, value),
            _ => return Err(SettingError::unknown(name, NAMES)),
        }
        self.check()
    }

    /// Checks every bound.
    pub fn check(&self) -> Result<(), SettingError> {
        self.client.check()?;
        check_size("fetch.min.bytes", self.fetch_min_bytes, 0, 100 << 20)?;
        check_size("fetch.max.bytes", self.fetch_max_bytes, 1 << 10, 1 << 30)?;
        check_size("max.partition.fetch.bytes", self.partition_fetch_bytes, 1 << 10, 1 << 30)?;
        check_duration("fetch.max.wait.ms", self.fetch_max_wait, 0, Duration::from_secs(300))?;
        check_size("max.poll.records", self.max_poll_records, 1, 1_000_000)?;
        check_size("decompressed.batch.max.bytes", self.decompressed_bytes_max, 1 << 10, 1 << 30)
    }
}
