//! One budget for what all engines of a process hold in memory and not in files yet.
//!
//! Whoever writes beyond it flushes the largest engine, whosever that is: an idle task cannot sit on the budget. The
//! flush goes on in the background; RocksDB makes writers wait when three buffers of a family are under way.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rocksdb::properties;

use super::Inner;

/// See the module.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    members: Mutex<Vec<Weak<Inner>>>,
}

impl Budget {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, members: Mutex::new(Vec::new()) }
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    pub(super) fn join(&self, engine: &Arc<Inner>) {
        self.locked().push(Arc::downgrade(engine));
    }

    /// The engine is about to close. Afterwards nobody here holds it open.
    pub(super) fn leave(&self, engine: &Arc<Inner>) {
        let engine = Arc::downgrade(engine);
        self.locked().retain(|member| !Weak::ptr_eq(member, &engine));
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Weak<Inner>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn total(&self) -> u64 {
        let members = self.locked();
        members.iter().filter_map(Weak::upgrade).map(|engine| engine.memory.load(Ordering::Relaxed)).sum()
    }

    /// After a write by `engine`: counts it, and flushes the largest while the total is beyond the budget. A flush
    /// that fails is logged and tried again by the next write: the batch itself is written.
    pub(super) fn keep(&self, engine: &Inner) {
        engine.memory.store(engine.property(properties::CUR_SIZE_ACTIVE_MEM_TABLE), Ordering::Relaxed);
        // The lock is held to the end, so that no engine stays open because it is looked at here.
        let members = self.locked();
        let open: Vec<(u64, Arc<Inner>)> = members
            .iter()
            .filter_map(Weak::upgrade)
            .map(|member| (member.memory.load(Ordering::Relaxed), member))
            .collect();
        if open.iter().map(|(bytes, _)| bytes).sum::<u64>() <= self.bytes_max {
            return;
        }
        let Some((_, largest)) = open.iter().max_by_key(|(bytes, _)| *bytes) else { return };
        largest.memory.store(0, Ordering::Relaxed);
        if let Err(error) = largest.flush(false) {
            tracing::warn!(folder = %largest.folder.display(), %error, "a state store cannot be flushed");
        }
    }
}
