//! What a worker tells of itself. Cells are relaxed atomics that any thread may read.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ottla_client::TopicPartition;

/// Upper bounds of the buckets of commit latency, in milliseconds; a last bucket takes what is longer.
pub const LATENCY_BOUNDS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 30000];

/// A counter or a gauge.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Figures of one worker.
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    /// Records processed, those of aborted transactions included.
    pub records: Cell,
    /// Records left out by a policy, those of aborted transactions included.
    pub left_out: Cell,
    /// Records that came after their windows had closed, those of aborted transactions included.
    pub late: Cell,
    /// Transactions committed.
    pub commits: Cell,
    /// Rollbacks, for whatever reason.
    pub rollbacks: Cell,
    /// Commits whose outcome was not known at first.
    pub unknown_outcomes: Cell,
    /// ... that had been committed.
    pub resolved_committed: Cell,
    /// ... that had been aborted.
    pub resolved_aborted: Cell,
    /// Transactions that the coordinator ended because they were open for too long.
    pub timed_out: Cell,
    /// Offsets refused because another member owns the tasks.
    pub not_owner: Cell,
    /// Tasks that wait for their disk.
    pub parked_tasks: Cell,
    /// Tasks at work.
    pub tasks: Cell,
    /// Bytes written since the last boundary.
    pub uncommitted_bytes: Cell,
    /// Age of the open transaction in ms, 0 when none is open.
    pub transaction_age_ms: Cell,
    latency: [AtomicU64; LATENCY_BOUNDS_MS.len() + 1],
    latency_sum_us: AtomicU64,
    lag: Mutex<BTreeMap<TopicPartition, u64>>,
}

/// Times from the beginning of a commit to the end of its application to the stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitLatency {
    /// How many commits took at most so many milliseconds as [`LATENCY_BOUNDS_MS`] says, not cumulated.
    pub buckets: Vec<u64>,
    /// Sum of all, in microseconds.
    pub sum_us: u64,
}

impl WorkerMetrics {
    /// Latency of commits so far.
    pub fn commit_latency(&self) -> CommitLatency {
        CommitLatency {
            buckets: self.latency.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum_us: self.latency_sum_us.load(Ordering::Relaxed),
        }
    }

    /// Records of each input partition that are not committed yet, as far as their ends are known.
    pub fn lag(&self) -> BTreeMap<TopicPartition, u64> {
        self.lag.lock().expect("no holder of the lag panics").clone()
    }

    pub(super) fn committed_in(&self, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_MS.partition_point(|bound| *bound < ms);
        self.latency[bucket].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.latency_sum_us.fetch_add(us, Ordering::Relaxed);
        self.commits.add(1);
    }

    #[cfg(test)]
    pub(crate) fn commit_for_test(&self, took: Duration) {
        self.committed_in(took);
    }

    pub(super) fn set_lag(&self, lag: BTreeMap<TopicPartition, u64>) {
        *self.lag.lock().expect("no holder of the lag panics") = lag;
    }
}
