//! What one run is made of, drawn from its seed: sizes, clients, faults and their rates, and the planted bug.
//!
//! Each fault is first drawn on or off and then gets a rate (swarm testing), so that some runs have one fault
//! only and some have all. A failing run prints its options; they follow from the seed and need not be given.

use ottla_env::disk::sim::{Fault, FaultPlan};
use ottla_env::rng::{Rng, SeededRng};
use ottla_storage::LevelsOptions;

/// Bugs that the simulator can plant in its own shell or disk, to show that the checker finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Syncs say that they are done and do nothing.
    SkipSync,
    /// Answers leave when they are decided.
    AnswerBeforeDurable,
    /// Bounds are published when they are decided.
    PublishBeforeDurable,
    /// After a failed append the shell goes on as if it had succeeded ("try the sync again").
    AnswerAfterFailedSync,
    /// After a reload all waiting answers leave, also those whose position did not survive.
    ReleaseAllAfterReload,
    /// After a failed sync the frame is looked for in the page cache, found, and believed.
    BelievePageCache,
    /// After a failed append the log is opened again, but the state is kept.
    KeepStateAfterFailedWrite,
    /// The last frame is not replayed.
    SkipLastFrame,
    /// The entries of one decision go into two frames.
    SplitDecision,
    /// A repeated batch gets a fresh sequence: no duplicate is ever found.
    DropDuplicateCheck,
    /// Produce answers name an offset that is one too high.
    WrongBaseOffset,
    /// A read_committed fetch reads to the high watermark.
    ReadBeyondLastStable,
    /// A read_committed fetch is not told of aborted transactions.
    DropAbortedIndex,
    /// Shard time is the wall clock.
    ShardTimeFollowsWall,
    /// The reload goes on at the epoch it had.
    KeepEpoch,
    /// Files are unlinked before the record that drops them is durable.
    UnlinkBeforeRecord,
    /// The record that makes a rewritten file live is written before the file is synced.
    RecordBeforeSync,
    /// Files that no snapshot contains are dropped and rewritten.
    RewriteUnsnapshotted,
    /// Retention moves log starts in memory and writes no record.
    LogStartInMemory,
    /// A pass is written down as made before its files are live.
    CleanFoundFirst,
    /// Tombstones go before anybody is told of the horizon.
    CleanUnannounced,
    /// A pass goes past the last stable offset.
    CleanPastStable,
    /// Tombstones and markers go before their time.
    CleanTooEarly,
    /// A pass does not know of aborted transactions.
    CleanForgetsAborted,
    /// A pass does not know of the producers' last batches.
    CleanForgetsProducers,
    /// The files of a pass become live before they are synced.
    CleanUnsynced,
}

impl Bug {
    /// Every bug that is found within a few seeds. `CleanUnannounced` and `CleanTooEarly` are not: the workload has no
    /// reader that notices the one, and a clock that is ahead in every pass is a clock like any other.
    pub const ALL: [Self; 24] = [
        Self::SkipSync,
        Self::AnswerBeforeDurable,
        Self::PublishBeforeDurable,
        Self::AnswerAfterFailedSync,
        Self::ReleaseAllAfterReload,
        Self::BelievePageCache,
        Self::KeepStateAfterFailedWrite,
        Self::SkipLastFrame,
        Self::SplitDecision,
        Self::DropDuplicateCheck,
        Self::WrongBaseOffset,
        Self::ReadBeyondLastStable,
        Self::DropAbortedIndex,
        Self::ShardTimeFollowsWall,
        Self::KeepEpoch,
        Self::UnlinkBeforeRecord,
        Self::RecordBeforeSync,
        Self::RewriteUnsnapshotted,
        Self::LogStartInMemory,
        Self::CleanFoundFirst,
        Self::CleanPastStable,
        Self::CleanForgetsAborted,
        Self::CleanForgetsProducers,
        Self::CleanUnsynced,
    ];
}

/// How many clients of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    /// Without producer id; they never repeat anything.
    pub plain: u32,
    /// Idempotent, up to five batches in flight per partition, repeated until answered.
    pub idempotent: u32,
    /// Transactional, protocol v1.
    pub transactional_v1: u32,
    /// Transactional, protocol v2.
    pub transactional_v2: u32,
    /// Committing offsets outside of transactions.
    pub offsets: u32,
}

/// One run. Rates are in a million.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Virtual time during which clients begin new work, ms.
    pub duration_ms: u64,
    /// Who works.
    pub clients: Clients,
    /// Topics from the beginning.
    pub topics: u32,
    /// Compacted topics beside them.
    pub compacted_topics: u32,
    /// Partitions of each.
    pub partitions: i32,
    /// Partitions of each of the two internal topics.
    pub internal_partitions: i32,
    /// Whether topics come and go, and records are deleted.
    pub admin: bool,
    /// Largest padding of a record, bytes.
    pub padding_bytes_max: u64,
    /// Size of a log file, bytes.
    pub file_bytes: u64,
    /// Memory for tail reads, bytes.
    pub tail_bytes_max: usize,
    /// Most decisions of a frame.
    pub frame_decisions_max: u64,
    /// Faults of the disk while the broker runs.
    pub faults: FaultPlan,
    /// Whether bits of snapshots change at rest.
    pub rot: bool,
    /// Mean time between crashes, ms.
    pub crash_mean_ms: u64,
    /// Of the crashes, how many are kills of the process; the others are power cuts.
    pub kill_rate: u32,
    /// Whether a recovery is cut off by the next crash.
    pub recovery_crash_rate: u32,
    /// Mean time between cut connections of one client, ms.
    pub cut_mean_ms: u64,
    /// Whether a request of a cut connection is still delivered, late.
    pub late_rate: u32,
    /// Mean time between client crashes, ms.
    pub client_crash_mean_ms: u64,
    /// Whether a crashed client goes on as a zombie.
    pub zombie_rate: u32,
    /// Mean time between pauses of the whole broker, ms.
    pub pause_mean_ms: u64,
    /// Mean time between steps of the wall clock, ms.
    pub clock_step_mean_ms: u64,
    /// Mean time between snapshots, ms.
    pub snapshot_mean_ms: u64,
    /// Mean time between two looks at the files, for dropping and rewriting, ms.
    pub tidy_mean_ms: u64,
    /// Mean time between two looks for what is to be compacted, ms.
    pub clean_mean_ms: u64,
    /// Mean time between two moves of log starts by retention, ms.
    pub retention_mean_ms: u64,
    /// When files are dropped and rewritten.
    pub levels: LevelsOptions,
    /// Whether live, shadow and reloaded states are compared; a frame then holds decisions of one time only.
    pub compare_states: bool,
    /// Whether every request and answer is written down, for looking into a failure.
    pub journal: bool,
    /// The planted bug.
    pub bug: Option<Bug>,
}

impl Options {
    /// The options of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed ^ 0x6f70_7469_6f6e_7300);
        let rng = &mut rng;
        let some =
            |rng: &mut SeededRng, low: u64, high: u64| u32::try_from(rng.between(low, high)).expect("small");
        Self {
            duration_ms: rng.between(4_000, 15_000),
            clients: Clients {
                plain: some(rng, 0, 1),
                idempotent: some(rng, 0, 2),
                transactional_v1: some(rng, 0, 2),
                transactional_v2: some(rng, 1, 2),
                offsets: some(rng, 0, 1),
            },
            topics: some(rng, 1, 2),
            compacted_topics: some(rng, 0, 2),
            partitions: i32::try_from(rng.between(1, 3)).expect("small"),
            internal_partitions: i32::try_from(rng.between(1, 4)).expect("small"),
            admin: rng.one_in(2),
            padding_bytes_max: [0, 200, 2_000, 12_000][rng.index(4)],
            file_bytes: [16 << 10, 32 << 10, 128 << 10][rng.index(3)],
            tail_bytes_max: [0, 4 << 10, 1 << 20][rng.index(3)],
            frame_decisions_max: [1, 4, 64][rng.index(3)],
            faults: faults(rng),
            rot: true,
            crash_mean_ms: [500, 2_000, 6_000][rng.index(3)],
            kill_rate: [0, 300_000, 700_000][rng.index(3)],
            recovery_crash_rate: [0, 300_000, 600_000][rng.index(3)],
            cut_mean_ms: [300, 2_000, 1_000_000][rng.index(3)],
            late_rate: [0, 500_000][rng.index(2)],
            client_crash_mean_ms: [1_000, 5_000, 1_000_000][rng.index(3)],
            zombie_rate: [0, 500_000][rng.index(2)],
            pause_mean_ms: [3_000, 1_000_000][rng.index(2)],
            clock_step_mean_ms: [2_000, 1_000_000][rng.index(2)],
            snapshot_mean_ms: [200, 1_500, 1_000_000][rng.index(3)],
            tidy_mean_ms: [100, 1_000, 1_000_000][rng.index(3)],
            clean_mean_ms: [100, 500, 1_000_000][rng.index(3)],
            retention_mean_ms: [300, 2_000, 1_000_000][rng.index(3)],
            levels: LevelsOptions {
                rewrite: !rng.one_in(5),
                data_file_bytes: [16 << 10, 48 << 10, 1 << 20][rng.index(3)],
                run_bytes: [16 << 10, 96 << 10][rng.index(2)],
                run_age_ms: i64::try_from(rng.between(100, 4_000)).expect("small"),
                extent_bytes_min: [0, 4 << 10, 256 << 10][rng.index(3)],
                mixed_percent: [0, 10, 100][rng.index(3)],
                garbage_percent: [1, 25, 60][rng.index(3)],
            },
            compare_states: !rng.one_in(3),
            journal: false,
            bug: None,
        }
    }

    /// The options of a seed with a planted bug: only the history is judged, not the states. Bugs that show after
    /// a failed sync get failing syncs and power cuts.
    pub fn with_bug(seed: u64, bug: Bug) -> Self {
        let mut options = Self { bug: Some(bug), compare_states: false, ..Self::from_seed(seed) };
        if matches!(bug, Bug::BelievePageCache | Bug::AnswerAfterFailedSync) {
            options.faults = options.faults.with(Fault::SyncError, 20_000);
            options.kill_rate = 0;
        }
        let is_of_the_cleaner = matches!(
            bug,
            Bug::CleanFoundFirst
                | Bug::CleanUnannounced
                | Bug::CleanPastStable
                | Bug::CleanTooEarly
                | Bug::CleanForgetsAborted
                | Bug::CleanForgetsProducers
                | Bug::CleanUnsynced
        );
        if is_of_the_cleaner {
            options.compacted_topics = 2;
            options.topics = 1;
            options.clean_mean_ms = 100;
            options.crash_mean_ms = 500;
            options.kill_rate = 0;
            options.snapshot_mean_ms = 200;
        }
        let is_of_files = matches!(
            bug,
            Bug::UnlinkBeforeRecord
                | Bug::RecordBeforeSync
                | Bug::RewriteUnsnapshotted
                | Bug::LogStartInMemory
        );
        if is_of_files {
            options.tidy_mean_ms = 100;
            options.retention_mean_ms = 300;
            options.snapshot_mean_ms = 200;
            options.levels.rewrite = true;
        }
        options
    }
}

/// Faults that fire while the broker runs. Bits flip on reads only; at rest only in snapshots, where another copy
/// of the same state exists.
fn faults(rng: &mut SeededRng) -> FaultPlan {
    let rates = [
        (Fault::WriteError, 4_000),
        (Fault::WriteErrorPartial, 4_000),
        (Fault::ShortWrite, 20_000),
        (Fault::NoSpaceWrite, 4_000),
        (Fault::NoSpaceCreate, 60_000),
        (Fault::SyncError, 6_000),
        (Fault::DirSyncError, 20_000),
        (Fault::SlowSync, 10_000),
        (Fault::ReadError, 3_000),
    ];
    let mut plan = FaultPlan::default();
    for (fault, most) in rates {
        if rng.one_in(3) {
            let rate = u32::try_from(rng.between(most / 10, most)).expect("below a million");
            plan = plan.with(fault, rate);
        }
    }
    plan
}
