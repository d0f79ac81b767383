//! What the member, the workers and the application's users share: the membership, back-pressure, committed stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ottla_client::{GroupMetadata, TopicPartition};
use tokio::sync::watch;

use super::thread::Paused;
use crate::record::TaskId;
use crate::state::Committed;
use crate::state_dir::StateDir;

/// The membership as it is now.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Counts changes.
    pub(super) version: u64,
    pub(super) metadata: GroupMetadata,
    pub(super) owned: BTreeSet<TaskId>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) group_id: String,
    pub(super) process_id: String,
    group: Mutex<Arc<Group>>,
    paused: Mutex<Paused>,
    published: Mutex<BTreeMap<TaskId, Arc<Committed>>>,
    /// Counts publications.
    moved: watch::Sender<u64>,
    restoring: Mutex<BTreeMap<TaskId, i64>>,
    set_aside: AtomicU64,
}

/// Nothing that is done under these locks can panic in the middle of a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(group_id: &str, process_id: &str) -> Self {
        let metadata = GroupMetadata::without_members(group_id);
        Self {
            group_id: group_id.to_owned(),
            process_id: process_id.to_owned(),
            group: Mutex::new(Arc::new(Group { version: 0, metadata, owned: BTreeSet::new() })),
            paused: Mutex::default(),
            published: Mutex::default(),
            moved: watch::channel(0).0,
            restoring: Mutex::default(),
            set_aside: AtomicU64::new(0),
        }
    }

    pub(super) fn group(&self) -> Arc<Group> {
        Arc::clone(&lock(&self.group))
    }

    pub(super) fn set_metadata(&self, metadata: GroupMetadata) {
        let mut group = lock(&self.group);
        if group.metadata != metadata {
            let group = Arc::make_mut(&mut group);
            group.metadata = metadata;
            group.version += 1;
        }
    }

    pub(super) fn set_owned(&self, owned: BTreeSet<TaskId>) {
        let mut group = lock(&self.group);
        if group.owned != owned {
            let group = Arc::make_mut(&mut group);
            group.owned = owned;
            group.version += 1;
        }
    }

    pub(super) fn set_paused(&self, worker: usize, partitions: BTreeSet<TopicPartition>) {
        lock(&self.paused).insert(worker, partitions);
    }

    pub(super) fn paused(&self) -> BTreeSet<TopicPartition> {
        lock(&self.paused).values().flatten().cloned().collect()
    }

    pub(super) fn publish(&self, task: TaskId, committed: Arc<Committed>) {
        lock(&self.published).insert(task, committed);
        self.moved.send_modify(|count| *count += 1);
    }

    pub(super) fn withdraw(&self, task: TaskId) {
        lock(&self.published).remove(&task);
    }

    pub(super) fn published(&self, task: TaskId) -> Option<Arc<Committed>> {
        lock(&self.published).get(&task).cloned()
    }

    pub(super) fn all_published(&self) -> Vec<(TaskId, Arc<Committed>)> {
        lock(&self.published).iter().map(|(id, committed)| (*id, Arc::clone(committed))).collect()
    }

    pub(super) fn moves(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// So many offsets are left to restore; `None`: it is done, or given up.
    pub(super) fn set_restoring(&self, task: TaskId, left: Option<i64>) {
        let mut restoring = lock(&self.restoring);
        match left {
            Some(left) => drop(restoring.insert(task, left)),
            None => drop(restoring.remove(&task)),
        }
    }

    /// Counts the copies that lie set aside, and says so when there are any.
    pub(super) fn count_asides(&self, dir: &StateDir) {
        match dir.asides() {
            Ok(asides) => {
                self.set_aside.store(asides.len() as u64, Ordering::Relaxed);
                if let Some(first) = asides.first() {
                    let (count, first) = (asides.len(), first.display());
                    tracing::warn!(count, %first, "stores that were damaged or replaced lie set aside, a note beside each; remove them when you have looked at them");
                }
            }
            Err(error) => tracing::warn!(%error, "what lies set aside cannot be counted"),
        }
    }

    pub(super) fn set_aside(&self) -> u64 {
        self.set_aside.load(Ordering::Relaxed)
    }

    pub(super) fn restoring(&self) -> BTreeMap<TaskId, i64> {
        lock(&self.restoring).clone()
    }
}
