//! The snapshot thread: writes a state that is already durable as frames, so that a restart replays less.
//!
//! One snapshot at a time; a failure discards it and is reported, the log goes on.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use ottla_core::shard::Snapshot;
use ottla_env::clock::Clock;
use ottla_storage::{SnapshotInfo, SnapshotStore};

use crate::metrics::{Metrics, nanos};

/// A state to be written.
pub struct SnapshotJob {
    /// The state, shared copy-on-write with the owner's.
    pub state: Snapshot,
    /// The durable frame that ends with its last decision, and when that was.
    pub info: SnapshotInfo,
}

/// Writes snapshots until the sender is gone.
pub fn run(store: SnapshotStore, jobs: &Receiver<SnapshotJob>, metrics: &Metrics, clock: &Arc<dyn Clock>) {
    while let Ok(job) = jobs.recv() {
        let sequence = job.info.frame_sequence;
        let began = clock.monotonic();
        match write(&store, job) {
            Ok(bytes) => {
                let ended = clock.monotonic();
                let took = ended.saturating_sub(began);
                metrics.log.snapshots.add(1);
                metrics.log.snapshot_bytes.set(bytes);
                metrics.log.snapshot_nanos.set(nanos(took));
                metrics.log.snapshot_at_nanos.set(nanos(ended));
                tracing::info!(sequence = sequence.0, bytes, ?took, "snapshot written");
            }
            Err(error) => {
                metrics.log.snapshot_failures.add(1);
                tracing::error!(%error, sequence = sequence.0, "snapshot failed; the one before stays")
            }
        }
    }
}

fn write(store: &SnapshotStore, job: SnapshotJob) -> Result<u64, ottla_storage::SnapshotError> {
    let mut writer = store.begin(job.info)?;
    let mut bytes = 0;
    for chunk in job.state.chunks() {
        bytes += chunk.len() as u64;
        writer.chunk(&chunk)?;
    }
    writer.finish()?;
    Ok(bytes)
}
