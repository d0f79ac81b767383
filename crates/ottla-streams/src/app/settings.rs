//! Settings of an application.

use std::path::PathBuf;
use std::time::Duration;

use ottla_client::{ClientSettings, GroupProtocol};

use crate::recovery::OnMismatch;
use crate::worker::Guarantee;

/// Where partitions begin that have no committed offset. Repartition topics and tables always begin at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// With the first record that is still there.
    #[default]
    Earliest,
    /// Behind the last.
    Latest,
}

/// Where stores keep their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// In memory: every start replays the changelogs.
    Memory,
    /// On disk, in RocksDB, in the state folder.
    #[cfg(feature = "rocksdb")]
    Rocks {
        /// Write-ahead log: a killed process replays nothing. Default true; false writes a little faster.
        wal: bool,
        /// Bytes of the block cache, shared by all tasks. Default 64 MiB.
        block_cache_bytes: usize,
        /// Bytes in memory that are not in files yet, all tasks together. Default 64 MiB.
        memtable_bytes: u64,
    },
}

impl Default for Stores {
    #[cfg(feature = "rocksdb")]
    fn default() -> Self {
        Self::Rocks { wal: true, block_cache_bytes: 64 << 20, memtable_bytes: 64 << 20 }
    }

    #[cfg(not(feature = "rocksdb"))]
    fn default() -> Self {
        Self::Memory
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("setting {name} = {value}: {problem}")]
pub struct SettingError {
    /// The setting.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What is wrong.
    pub problem: &'static str,
}

/// Settings of an application; its name is the topology's.
#[derive(Clone, Debug)]
pub struct AppSettings {
    /// How to reach the cluster.
    pub client: ClientSettings,
    /// Where stores and the identity live; one folder per process.
    pub state_dir: PathBuf,
    /// Default: exactly once.
    pub guarantee: Guarantee,
    /// OS threads that process records, each with a transactional id. Default: the machine's cores; 1 to 256.
    pub workers: usize,
    /// Time from the first write of a transaction to its commit. Default 100 ms (at least once: 30 s is usual);
    /// 1 ms to 1 h.
    pub commit_interval: Duration,
    /// The coordinator aborts what is open for longer. Default 60 s; 1 s to 15 min.
    pub transaction_timeout: Duration,
    /// Uncommitted bytes of all workers together, beyond which they commit early. Default 64 MiB; 64 KiB to 16 GiB.
    pub uncommitted_bytes_max: usize,
    /// Uncommitted bytes of one task beyond which they spill to disk. Default 64 MiB; 64 KiB to 16 GiB.
    pub spill_bytes: usize,
    /// Bytes of fetched records that a task keeps. Default 8 MiB; 64 KiB to 1 GiB.
    pub buffer_bytes_max: usize,
    /// A task with several inputs, one of them silent: how long the others wait for it once everything that its partition
    /// holds was taken. Zero (default): only for what is there; `None`: not even for that. 0 to 1 h. Kafka's
    /// `max.task.idle.ms` (KIP-353, KIP-695).
    pub max_task_idle: Option<Duration>,
    /// Without a heartbeat for so long the group gives the process up. Default 45 s, within the broker's bounds.
    pub session_timeout: Duration,
    /// Default 3 s; at most a third of the session's time-out is wise.
    pub heartbeat_interval: Duration,
    /// A commit, or a hand-over, must not take longer. Default 5 min.
    pub max_poll_interval: Duration,
    /// `classic` (default) with the assignor of this crate, which moves few tasks; or `consumer` (KIP-848) with the
    /// broker's `range`.
    pub group_protocol: GroupProtocol,
    /// A restarted process takes its own place at once and nobody takes it meanwhile, for a session's time-out
    /// (KIP-345). Default true.
    pub static_membership: bool,
    /// Default: earliest.
    pub reset: Reset,
    /// What to do when state, offsets and log do not fit together. Default: stop with an error that names it.
    pub on_mismatch: OnMismatch,
    /// Default: RocksDB with its log.
    pub stores: Stores,
    /// Threads that bring stores forward. Default 1; 1 to 16.
    pub restore_threads: usize,
    /// Replication factor of internal topics; -1 (default) for the broker's.
    pub replication_factor: i16,
    /// How often repartition topics are emptied up to what was committed. Default 30 s; 100 ms to 1 day.
    pub purge_interval: Duration,
}

impl AppSettings {
    /// Defaults, for a cluster and a state folder.
    pub fn new(client: ClientSettings, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            client,
            state_dir: state_dir.into(),
            guarantee: Guarantee::ExactlyOnce,
            workers: ottla_env::spawn::parallelism().clamp(1, 256),
            commit_interval: Duration::from_millis(100),
            transaction_timeout: Duration::from_secs(60),
            uncommitted_bytes_max: 64 << 20,
            spill_bytes: 64 << 20,
            buffer_bytes_max: 8 << 20,
            max_task_idle: Some(Duration::ZERO),
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            max_poll_interval: Duration::from_secs(300),
            group_protocol: GroupProtocol::Classic,
            static_membership: true,
            reset: Reset::Earliest,
            on_mismatch: OnMismatch::Fail,
            stores: Stores::default(),
            restore_threads: 1,
            replication_factor: -1,
            purge_interval: Duration::from_secs(30),
        }
    }

    /// Checks every bound.
    pub fn check(&self) -> Result<(), SettingError> {
        within("workers", self.workers, 1, 256, "1 to 256")?;
        within("restore_threads", self.restore_threads, 1, 16, "1 to 16")?;
        let (low, high) = (64 << 10, 16 << 30);
        within("uncommitted_bytes_max", self.uncommitted_bytes_max, low, high, "64 KiB to 16 GiB")?;
        within("spill_bytes", self.spill_bytes, low, high, "64 KiB to 16 GiB")?;
        within("buffer_bytes_max", self.buffer_bytes_max, low, 1 << 30, "64 KiB to 1 GiB")?;
        let (ms, second, hour) =
            (Duration::from_millis(1), Duration::from_secs(1), Duration::from_secs(3600));
        duration("commit_interval", self.commit_interval, ms, hour, "1 ms to 1 h")?;
        duration("transaction_timeout", self.transaction_timeout, second, hour / 4, "1 s to 15 min")?;
        duration("purge_interval", self.purge_interval, 100 * ms, 24 * hour, "100 ms to 1 day")?;
        let idle = self.max_task_idle.unwrap_or_default();
        duration("max_task_idle", idle, Duration::ZERO, hour, "0 to 1 h")?;
        duration("session_timeout", self.session_timeout, ms, hour / 2, "1 ms to 30 min")?;
        duration(
            "heartbeat_interval",
            self.heartbeat_interval,
            ms,
            self.session_timeout,
            "1 ms to session_timeout",
        )?;
        duration("max_poll_interval", self.max_poll_interval, second, 24 * hour, "1 s to 1 day")?;
        if self.guarantee == Guarantee::ExactlyOnce && self.commit_interval * 2 > self.transaction_timeout {
            return Err(SettingError {
                name: "commit_interval",
                value: format!("{:?}", self.commit_interval),
                problem: "at most half of transaction_timeout, or transactions would time out before their commit",
            });
        }
        Ok(())
    }
}

fn within(
    name: &'static str,
    value: usize,
    low: usize,
    high: usize,
    problem: &'static str,
) -> Result<(), SettingError> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(SettingError { name, value: value.to_string(), problem })
    }
}

fn duration(
    name: &'static str,
    value: Duration,
    low: Duration,
    high: Duration,
    problem: &'static str,
) -> Result<(), SettingError> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(SettingError { name, value: format!("{value:?}"), problem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that the defaults hold and that a value outside of its bound is refused with its name.
    #[test]
    fn bounds() {
        let client = ClientSettings::new("127.0.0.1:9092").unwrap();
        let settings = AppSettings::new(client, "state");
        assert_eq!(settings.check(), Ok(()));
        let wrong = AppSettings { workers: 0, ..settings.clone() };
        assert_eq!(wrong.check().unwrap_err().name, "workers");
        let wrong = AppSettings { commit_interval: Duration::from_secs(31), ..settings.clone() };
        assert!(wrong.check().unwrap_err().to_string().contains("half of transaction_timeout"));
        let fine = AppSettings { guarantee: Guarantee::AtLeastOnce, ..wrong };
        assert_eq!(fine.check(), Ok(()));
    }
}
