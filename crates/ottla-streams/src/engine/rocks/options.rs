//! What the engines of a process share, and how RocksDB is set up.

use std::fmt;
use std::sync::Arc;

use rocksdb::{BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, LogLevel, Options};

use super::budget::Budget;

/// How much larger a family's buffer is than the budget of all, so that RocksDB never switches buffers on its own. Not
/// much more: after a full disk RocksDB goes on when so many bytes are free.
const WRITE_BUFFER_PER_BUDGET: u64 = 2;
/// What a family takes at least; small, since a process has tasks times stores of them.
const ARENA_BLOCK_BYTES: usize = 32 << 10;
/// Buffers of a family: one in use, two on their way to files. Then writers wait.
const WRITE_BUFFERS_MAX: i32 = 3;
/// Open files of one task.
const OPEN_FILES_MAX: i32 = 512;
const BLOOM_BITS_PER_KEY: f64 = 10.0;

/// Settings of the engines of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocksSettings {
    /// Write-ahead log. Default true: a killed process replays nothing. False: about a quarter faster to apply, and
    /// a killed process replays from the last flush.
    pub wal: bool,
    /// Bytes of blocks read from files that stay in memory, for all tasks; default 64 MiB.
    pub block_cache_bytes: usize,
    /// Bytes in memory that are not in files yet, for all tasks, at least 1 MiB; default 128 MiB. Up to as much again
    /// may be on its way to files.
    pub memtable_bytes: u64,
    /// Negative control of the kill tests: families go to files one by one. Never for use.
    #[doc(hidden)]
    pub broken_flush_per_family: bool,
}

impl Default for RocksSettings {
    fn default() -> Self {
        Self {
            wal: true,
            block_cache_bytes: 64 << 20,
            memtable_bytes: 128 << 20,
            broken_flush_per_family: false,
        }
    }
}

/// What the engines of a process share. Cloning gives another handle.
#[derive(Clone)]
pub struct RocksShared(Arc<Shared>);

struct Shared {
    settings: RocksSettings,
    cache: Cache,
    budget: Budget,
}

impl fmt::Debug for RocksShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksShared").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl RocksShared {
    /// For one process.
    pub fn new(settings: RocksSettings) -> Self {
        let cache = Cache::new_lru_cache(settings.block_cache_bytes);
        let budget = Budget::new(settings.memtable_bytes.max(1 << 20));
        Self(Arc::new(Shared { settings, cache, budget }))
    }

    /// The settings.
    pub fn settings(&self) -> &RocksSettings {
        &self.0.settings
    }

    /// Bytes in the block cache.
    pub fn cache_bytes(&self) -> usize {
        self.0.cache.get_usage()
    }

    /// Bytes in memory that are not in files yet, over all engines.
    pub fn memtable_bytes(&self) -> u64 {
        self.0.budget.total()
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.0.budget
    }
}

/// Options of a database.
pub(super) fn database(shared: &RocksShared) -> Result<Options, rocksdb::Error> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_atomic_flush(!shared.settings().broken_flush_per_family);
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_max_total_wal_size(u64::MAX);
    options.set_paranoid_checks(true);
    options.set_max_open_files(OPEN_FILES_MAX);
    options.set_max_background_jobs(2);
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_stats_dump_period_sec(0);
    // Not in the binding: each log also says where the one before it ends, so that a hole between two is found; and
    // no disk space is set apart for a log as large as the buffers.
    options.get_options_from_string("track_and_verify_wals=true;allow_fallocate=false")
}

/// Options of a family.
pub(super) fn family(shared: &RocksShared) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&shared.0.cache);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
    let mut options = Options::default();
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_arena_block_size(ARENA_BLOCK_BYTES);
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX);
    let bytes = match shared.settings().broken_flush_per_family {
        true => 64 << 10,
        false => shared.budget().bytes_max() * WRITE_BUFFER_PER_BUDGET,
    };
    options.set_write_buffer_size(usize::try_from(bytes).unwrap_or(usize::MAX));
    options
}
