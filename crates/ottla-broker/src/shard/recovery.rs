//! Loading a shard: the newest good snapshot, then every frame behind it, applied. Used at start and for a
//! reload; there is no other way to get a state.

use std::sync::Arc;
use std::time::Duration;

use ottla_core::config::CoreConfig;
use ottla_core::decision::{Position, ShardTime};
use ottla_core::shard::{ReplayError, Restore, RestoreError, ShardState};
use ottla_env::clock::Clock;
use ottla_env::disk::Disk;
use ottla_storage::{LogOptions, OpenError, Opened, Opening};

use super::time::{ShardClock, SharedTime};

/// A loaded shard.
pub struct Recovered {
    /// Its state, at a new epoch.
    pub state: ShardState,
    /// The open log.
    pub opened: Opened,
    /// Its clock.
    pub clock: ShardClock,
}

/// Why a shard could not be loaded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum RecoverError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(
        "a snapshot that passed its checks does not decode: {0}; move it away to start from the one before"
    )]
    Restore(#[from] RestoreError),
    #[error("frame {frame} cannot be applied: {error}; `ottla doctor` shows it")]
    Replay { frame: u64, error: ReplayError },
}

/// How often a long load says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Frames between two looks at the clock.
const PROGRESS_FRAMES: u64 = 64;

/// Tells how far a long load is, now and then.
struct Progress<'a> {
    clock: &'a Arc<dyn Clock>,
    next: Duration,
}

impl<'a> Progress<'a> {
    fn new(clock: &'a Arc<dyn Clock>) -> Self {
        Self { clock, next: clock.monotonic() + PROGRESS_EVERY }
    }

    fn tell(&mut self, opening: &Opening) {
        let frames = opening.report().frames_replayed;
        if !frames.is_multiple_of(PROGRESS_FRAMES) || self.clock.monotonic() < self.next {
            return;
        }
        let (done, of) = opening.progress();
        tracing::info!(done_mib = done >> 20, of_mib = of >> 20, frames, "loading the folder");
        self.next = self.clock.monotonic() + PROGRESS_EVERY;
    }
}

/// Loads the shard of a folder.
pub fn recover(
    disk: &Arc<dyn Disk>,
    options: &LogOptions,
    core: &CoreConfig,
    clock: &Arc<dyn Clock>,
    shared_time: &SharedTime,
) -> Result<Recovered, RecoverError> {
    let mut opening = ottla_storage::open(disk.clone(), options.clone())?;
    let mut time = opening.snapshot().map_or(0, |snapshot| snapshot.shard_time);
    let mut state = match opening.snapshot_chunks()? {
        None => ShardState::new(core.clone()),
        Some(chunks) => {
            let mut restore = Restore::new(core.clone());
            for chunk in chunks {
                restore.feed(&chunk?)?;
            }
            restore.finish()?
        }
    };
    let mut progress = Progress::new(clock);
    while let Some(frame) = opening.next_frame()? {
        progress.tell(&opening);
        time = time.max(frame.shard_time);
        state
            .replay(&frame.entries, Position(frame.position), ShardTime(frame.shard_time))
            .map_err(|error| RecoverError::Replay { frame: frame.frame_sequence.0, error })?;
    }
    let opened = opening.finish()?;
    let mut clock = ShardClock::new(clock.clone(), time, shared_time.clone());
    state.begin_epoch(opened.epoch, clock.now());
    Ok(Recovered { state, opened, clock })
}
