//! The folder that is damaged: what clients of every kind have made of it, over several lives of the broker, with
//! snapshots, retention, rewritten files, open and aborted transactions; and what an undamaged opening shows of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_env::disk::sim::FaultPlan;
use ottla_storage::LevelsOptions;

use super::judge::{self, Shown};
use crate::options::{Clients, Options};
use crate::shell::Setup;
use crate::world::World;

/// Seeds that are tried.
const SEEDS_MAX: u64 = 40;

/// A folder and what is in it.
pub struct Folder {
    /// Its files.
    pub(super) files: BTreeMap<String, Arc<Vec<u8>>>,
    pub(super) setup: Setup,
    /// What an opening of the undamaged folder shows.
    pub(super) shown: Shown,
}

impl Folder {
    /// The folder of a seed, or of the first one behind it whose folder has every kind of file.
    ///
    /// # Errors
    /// When a clients' run itself broke a promise, or no folder has all that a sweep is to damage.
    pub fn new(seed: u64) -> Result<Self, String> {
        let mut folder = Self::of_seed(seed);
        for seed in seed + 1..seed + SEEDS_MAX {
            if folder.as_ref().is_ok_and(Self::has_all_kinds) {
                break;
            }
            folder = Self::of_seed(seed);
        }
        folder.and_then(
            |folder| if folder.has_all_kinds() { Ok(folder) } else { Err("no folder has all".to_owned()) },
        )
    }

    fn has_all_kinds(&self) -> bool {
        let count = |kind| self.files.keys().filter(|name| name.ends_with(kind)).count();
        [".log", ".data", ".snapshot"].into_iter().all(|kind| count(kind) >= 2)
    }

    fn of_seed(seed: u64) -> Result<Self, String> {
        let (disk, setup) = World::new(seed, options()).folder()?;
        let mut files = BTreeMap::new();
        for name in disk.list().map_err(|error| error.to_string())? {
            let read = || -> std::io::Result<Vec<u8>> {
                let file = disk.open(&name)?;
                let mut bytes = vec![0; usize::try_from(file.len()?).expect("a simulated file fits memory")];
                file.read_exact_at(&mut bytes, 0)?;
                Ok(bytes)
            };
            let bytes = read().map_err(|error| format!("{name}: {error}"))?;
            files.insert(name, Arc::new(bytes));
        }
        let shown = judge::shown(&files, &setup)?;
        Ok(Self { files, setup, shown })
    }

    /// The file of the log that was in use.
    pub(super) fn newest_log(&self) -> Option<&str> {
        self.files.keys().rfind(|name| name.ends_with(".log")).map(String::as_str)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        self.files.values().map(|bytes| bytes.len()).sum()
    }

    /// Names and lengths of the files.
    pub fn names(&self) -> Vec<(String, usize)> {
        self.files.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
    }
}

/// A short, lively run without faults of the disk: kills of the process only.
fn options() -> Options {
    Options {
        duration_ms: 2_500,
        clients: Clients { plain: 1, idempotent: 1, transactional_v1: 1, transactional_v2: 1, offsets: 1 },
        topics: 1,
        compacted_topics: 1,
        partitions: 2,
        internal_partitions: 2,
        admin: false,
        padding_bytes_max: 200,
        file_bytes: 32 << 10,
        tail_bytes_max: 0,
        frame_decisions_max: 16,
        faults: FaultPlan::default(),
        rot: false,
        crash_mean_ms: 800,
        kill_rate: 1_000_000,
        recovery_crash_rate: 0,
        cut_mean_ms: 1_000_000,
        late_rate: 0,
        client_crash_mean_ms: 2_000,
        zombie_rate: 0,
        pause_mean_ms: 1_000_000,
        clock_step_mean_ms: 1_000_000,
        snapshot_mean_ms: 300,
        tidy_mean_ms: 100,
        clean_mean_ms: 200,
        retention_mean_ms: 500,
        levels: LevelsOptions {
            rewrite: true,
            data_file_bytes: 32 << 10,
            run_bytes: 64 << 10,
            run_age_ms: 1_000,
            extent_bytes_min: 256 << 10,
            mixed_percent: 10,
            garbage_percent: 60,
        },
        compare_states: false,
        journal: false,
        bug: None,
    }
}
