//! What a task counts. Counters go up over the task's life; a rolled-back record that is taken again counts again.

/// Figures of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskMetrics {
    /// Records taken.
    pub records: u64,
    /// Records emitted to topics, dead letters not counted.
    pub outputs: u64,
    /// Changes emitted to changelogs.
    pub changes: u64,
    /// Records that came after their windows had closed, and were left out of them.
    pub late: u64,
    /// Records of tables that were left out because their key is null.
    pub null_keys: u64,
    /// Records left out by policy, with or without a dead letter.
    pub put_aside: u64,
    /// Dead letters written.
    pub dead_letters: u64,
    /// Timers that fired.
    pub timers: u64,
    /// Rollbacks.
    pub rollbacks: u64,
}
