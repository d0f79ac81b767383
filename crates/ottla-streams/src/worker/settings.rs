//! Settings of a worker, and the budget that the workers of a process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What a record is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guarantee {
    /// Outputs, stores and positions move together, once per input record.
    #[default]
    ExactlyOnce,
    /// No transactions: outputs are flushed, then offsets are committed. After a crash the records since the last
    /// commit are processed again.
    AtLeastOnce,
}

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// The group under which offsets are committed.
    pub group_id: String,
    /// Name of this writer in anchors: process id and worker, unique in the group at any time. At most 64 bytes.
    pub writer: String,
    /// What a record is promised.
    pub guarantee: Guarantee,
    /// Time from the first write of a transaction to its commit. Default 100 ms.
    pub commit_interval: Duration,
    /// The coordinator aborts a transaction after this time; a commit begins at half of it at the latest.
    /// Default 60 s.
    pub transaction_timeout: Duration,
    /// Pause before a call that failed is tried again. Default 50 ms.
    pub retry_pause: Duration,
    /// Records that one [`super::Worker::run_once`] takes at most. Default 1000.
    pub records_max: usize,
    /// Aborts in a row that one task may cause before it is set apart. Default 2.
    pub faults_max: u32,
    /// Longest that a task waits for its disk with its stores open; then they are opened anew. Default 10 s.
    pub park_max: Duration,
}

impl WorkerSettings {
    /// The defaults, for a group and a writer.
    pub fn new(group_id: impl Into<String>, writer: impl Into<String>) -> Self {
        Self {
            group_id: group_id.into(),
            writer: writer.into(),
            guarantee: Guarantee::ExactlyOnce,
            commit_interval: Duration::from_millis(100),
            transaction_timeout: Duration::from_secs(60),
            retry_pause: Duration::from_millis(50),
            records_max: 1000,
            faults_max: 2,
            park_max: Duration::from_secs(10),
        }
    }
}

/// Uncommitted bytes of all workers of a process, against one soft limit (64 MiB by default). Used by need: a busy
/// worker may take all that the idle ones leave.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
    workers: AtomicUsize,
}

impl Budget {
    /// The default limit.
    pub const BYTES_MAX: usize = 64 << 20;

    /// A budget for the workers of a process.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, used: AtomicUsize::new(0), workers: AtomicUsize::new(0) })
    }

    /// Bytes in use by all workers.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// One worker's part of the budget; given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    pub(super) fn of(budget: Arc<Budget>) -> Self {
        budget.workers.fetch_add(1, Ordering::Relaxed);
        Self { budget, bytes: 0 }
    }

    /// Says how much this worker holds.
    pub(super) fn set(&mut self, bytes: usize) {
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }

    /// The process is over its limit, and this worker holds at least its even part of what is held: it commits now.
    pub(super) fn must_commit(&self) -> bool {
        let used = self.budget.used();
        let workers = self.budget.workers.load(Ordering::Relaxed).max(1);
        used > self.budget.bytes_max && self.bytes >= used / workers
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
        self.budget.workers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that only a worker that holds its part is asked to commit when the process is over its limit, that
    /// there is always one, and that a dropped worker gives its part back.
    #[test]
    fn the_biggest_commits() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (Share::of(budget.clone()), Share::of(budget.clone()));
        one.set(90);
        assert!(!one.must_commit());
        two.set(20);
        assert!(one.must_commit());
        assert!(!two.must_commit());
        drop(one);
        assert_eq!(budget.used(), 20);
        assert!(!two.must_commit());
    }
}
