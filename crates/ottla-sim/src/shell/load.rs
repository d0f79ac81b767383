//! Loading: the newest good snapshot, then every frame behind it; and the comparison of what was loaded with the
//! shadow, which replayed every durable frame since the run began.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ottla_core::command::{Command, CommandBody};
use ottla_core::decision::{Position, ShardTime};
use ottla_core::shard::{ReplayError, Restore, RestoreError, ShardState};
use ottla_env::disk::Disk;
use ottla_env::disk::sim::SimDisk;
use ottla_storage::{OpenError, Opened};

use super::{Log, Setup, Shadow, ShardClock, Shell, Unsettled};
use crate::history::History;
use crate::options::Bug;

/// Why loading failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("open: {0}")]
    Open(#[from] OpenError),
    #[error("a good snapshot does not decode: {0}")]
    Restore(#[from] RestoreError),
    #[error("frame {frame} cannot be applied: {error}")]
    Replay { frame: u64, error: ReplayError },
}

impl LoadError {
    /// Whether the disk is to blame: trying again may help.
    pub(crate) fn is_input_output(&self) -> bool {
        match self {
            Self::Open(OpenError::Io { .. }) => true,
            Self::Open(OpenError::Lock(ottla_env::disk::LockError::Io(_))) => true,
            Self::Open(_) | Self::Restore(_) | Self::Replay { .. } => false,
        }
    }
}

/// The chunks of a state's snapshot, without the header.
pub(crate) fn chunks(state: &ShardState) -> Vec<Vec<u8>> {
    state.snapshot().chunks().skip(1).collect()
}

/// What a folder holds.
pub(crate) struct Loaded {
    pub(crate) core: ShardState,
    pub(crate) opened: Opened,
    pub(crate) time_ms: i64,
}

/// Reads a folder: snapshot, then frames.
pub(crate) fn read(
    disk: Arc<dyn Disk>,
    setup: &Setup,
    unsettled: Option<&Unsettled>,
    history: &mut History,
) -> Result<Loaded, LoadError> {
    let mut options = setup.log.clone();
    options.durable_end = unsettled.map(|unsettled| unsettled.durable_end);
    if setup.bug == Some(Bug::BelievePageCache) {
        options.durable_end = None;
    }
    let mut opening = ottla_storage::open(disk, options)?;
    let mut time_ms = opening.snapshot().map_or(0, |info| info.shard_time);
    let mut core = match opening.snapshot_chunks()? {
        None => ShardState::new(setup.core.clone()),
        Some(snapshot) => {
            history.counts.snapshot_loads += 1;
            let mut restore = Restore::new(setup.core.clone());
            for chunk in snapshot {
                restore.feed(&chunk?)?;
            }
            restore.finish()?
        }
    };
    let mut held = None;
    while let Some(frame) = opening.next_frame()? {
        if frame.shard_time < time_ms {
            history
                .violation(format!("shard time went back from {time_ms} to {} in the log", frame.shard_time));
        }
        time_ms = frame.shard_time;
        let frame = if setup.bug == Some(Bug::SkipLastFrame) { held.replace(frame) } else { Some(frame) };
        if let Some(frame) = frame {
            core.replay(&frame.entries, Position(frame.position), ShardTime(frame.shard_time))
                .map_err(|error| LoadError::Replay { frame: frame.frame_sequence.0, error })?;
        }
    }
    Ok(Loaded { core, opened: opening.finish()?, time_ms })
}

/// Loads, compares, begins the new epoch, publishes, and makes the cluster if there is none.
pub(super) fn load(
    disk: &SimDisk,
    setup: &Setup,
    shadow: &mut Shadow,
    unsettled: Option<&Unsettled>,
    history: &mut History,
) -> Result<Shell, LoadError> {
    let Loaded { mut core, opened, time_ms } = read(Arc::new(disk.clone()), setup, unsettled, history)?;
    let follows_wall = setup.bug == Some(Bug::ShardTimeFollowsWall);
    let mut clock = ShardClock::new(setup.clock.clone(), time_ms, follows_wall);
    let survived = shadow.unsure.as_ref().is_some_and(|(_, position, _)| *position == core.position());
    history.counts.unacknowledged_survived += u64::from(survived);
    if let Some((time, _, entries)) = shadow.unsure.as_ref().filter(|_| survived) {
        history.entries_durable(entries, time.0);
    }
    if setup.compare_states {
        compare(&core, shadow, history);
    }
    let kept = if setup.bug == Some(Bug::KeepEpoch) { 0 } else { opened.epoch };
    shadow.unsure = None;
    core.begin_epoch(kept, clock.now());
    if setup.compare_states {
        shadow.state.begin_epoch(opened.epoch, clock.now());
    }
    let Opened { writer, reader, snapshots, preparer, levels, epoch, .. } = opened;
    let durable = core.position();
    let last_loop_ms = clock.monotonic_ms();
    let mut shell = Shell {
        setup: setup.clone(),
        core,
        clock,
        log: Log { writer, reader, snapshots, preparer, levels, epoch },
        queue: VecDeque::new(),
        waiting: Vec::new(),
        parked: BTreeMap::new(),
        in_flight: None,
        snapshot: None,
        durable,
        log_ms: time_ms,
        cleaning: None,
        published: unsettled.map(|unsettled| unsettled.published.clone()).unwrap_or_default(),
        order: 0,
        last_loop_ms,
        released: Vec::new(),
        next_sequences: BTreeMap::new(),
    };
    let bounds: Vec<_> = shell.core.all_bounds().map(|(id, bounds)| (id, Some(bounds))).collect();
    shell.publish(bounds, true, history);
    if !shell.core.is_bootstrapped() {
        let [cluster_id, offsets, transactions] = setup.ids;
        let body = CommandBody::Bootstrap { cluster_id, topic_ids: [offsets, transactions] };
        shell.decide(Command { context: Default::default(), body }, history);
    }
    Ok(shell)
}

/// What was loaded must be what every durable frame since the beginning adds up to, with or without the one frame
/// whose outcome was unknown.
fn compare(loaded: &ShardState, shadow: &mut Shadow, history: &mut History) {
    if loaded.position() > shadow.state.position()
        && let Some((time, position, entries)) = shadow.unsure.take()
        && let Err(error) = shadow.state.replay(&entries, position, time)
    {
        history.violation(format!("the frame with position {position:?} cannot be replayed: {error}"));
    }
    let (found, expected) = (loaded.position(), shadow.state.position());
    if found != expected {
        return history.violation(format!("loaded up to position {found:?}, durable was {expected:?}"));
    }
    history.counts.states_compared += 1;
    if let Some(text) = difference(&chunks(loaded), &chunks(&shadow.state)) {
        history.violation(format!("loaded state is not what was durable at {found:?}: {text}"));
    }
}

/// Where two states differ, in words.
pub(crate) fn difference(a: &[Vec<u8>], b: &[Vec<u8>]) -> Option<String> {
    let index = (0..a.len().max(b.len())).find(|index| a.get(*index) != b.get(*index))?;
    let (left, right) =
        (a.get(index).cloned().unwrap_or_default(), b.get(index).cloned().unwrap_or_default());
    let at = left.iter().zip(&right).position(|(x, y)| x != y).unwrap_or(left.len().min(right.len()));
    let around =
        |bytes: &[u8]| bytes[at.saturating_sub(24).min(bytes.len())..(at + 24).min(bytes.len())].to_vec();
    Some(format!(
        "chunk {index} (section {:?}), byte {at} of {} and {}: {:02x?} and {:02x?}",
        left.first(),
        left.len(),
        right.len(),
        around(&left),
        around(&right)
    ))
}
