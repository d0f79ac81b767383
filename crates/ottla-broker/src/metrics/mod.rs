//! What the broker says of itself in numbers: Prometheus metrics and the health page.
//!
//! Files: `table` (every metric: name, unit, labels, meaning), `cells` (what is counted into), `requests`, `topics`,
//! `disk` (the larger groups of cells), `health`, `text` (the format), `scrape` (adds up and writes), `http` (the
//! listener).
//!
//! Place in the walk: connections, the owner and the log thread count into [`Metrics`] as they go, with relaxed
//! atomics and nothing else; whoever scrapes pays for adding up. What is state and not traffic (groups, transactions,
//! lag) is not counted at all: a scrape asks the shard for it, in steps that are small.
//!
//! Invariants: nothing here decides anything. Labels are bounded in `limits`; what has no place is counted together.

pub mod cells;
pub mod disk;
pub mod docs;
pub mod health;
pub mod http;
pub mod requests;
pub mod scrape;
pub mod state;
pub mod table;
pub mod text;
pub mod topics;

use std::sync::Arc;
use std::time::Duration;

use cells::{COUNTS, Counter, Gauge, Histogram, SHORT_TIMES, Sharded, TIMES};

/// Everything that is counted.
pub struct Metrics {
    /// By API.
    pub requests: requests::Requests,
    /// By topic.
    pub topics: topics::TopicTable,
    /// By kind of file.
    pub disk: Arc<disk::DiskCells>,
    /// Whether requests are served.
    pub health: health::Health,
    /// Connections.
    pub connections: ConnectionCells,
    /// The owner.
    pub owner: OwnerCells,
    /// The log thread, the snapshot thread and recovery.
    pub log: LogCells,
    /// Compaction.
    pub cleaner: CleanerCells,
    /// Fetches that are parked.
    pub parked_fetches: Gauge,
}

/// What the listener and the connections count.
pub struct ConnectionCells {
    /// Accepted since the start.
    pub accepted: Counter,
    /// Closed at once: `max.connections.per.ip`.
    pub refused: Counter,
    /// Closed since the start, by reason.
    pub closed: Sharded<[Counter; CloseReason::ALL.len()]>,
}

/// Why a connection was closed; a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed it, or it broke.
    Peer,
    /// `connections.max.idle.ms`.
    Idle,
    /// A frame that is none, or that came too slowly.
    BadFrame,
    /// A request that cannot be read or is not served.
    BadRequest,
    /// A decision not to answer.
    Unanswered,
    /// The broker stopped.
    Stopping,
}

impl CloseReason {
    /// Every reason, in the order of the cells.
    pub const ALL: [Self; 6] =
        [Self::Peer, Self::Idle, Self::BadFrame, Self::BadRequest, Self::Unanswered, Self::Stopping];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Idle => "idle",
            Self::BadFrame => "bad_frame",
            Self::BadRequest => "bad_request",
            Self::Unanswered => "unanswered",
            Self::Stopping => "stopping",
        }
    }
}

/// What the owner counts; it is the only writer.
pub struct OwnerCells {
    /// Time of each command between the connection and its decision.
    pub queue_time: Histogram,
    /// Time of each decision.
    pub step_time: Histogram,
    /// Nanoseconds that were not spent waiting for work.
    pub busy_nanos: Counter,
    /// The longest decision of this minute and the one before, nanoseconds.
    pub longest_step_nanos: Counter,
    /// Requests of protocol v1 that were dropped as late, as the core counts them.
    pub late_requests: Counter,
    /// Those that looked late and were not, likewise.
    pub late_requests_let_through: Counter,
    /// Reloads after a failed write.
    pub reloads: Counter,
    /// Transactions that were aborted by their timeout.
    pub transactions_timed_out: Counter,
    /// Producers whose transactional id another one took over.
    pub producers_fenced: Counter,
    /// New generations of classic groups.
    pub classic_rebalances: Counter,
    /// New assignments of consumer groups.
    pub consumer_rebalances: Counter,
}

/// What is counted around the log; each cell has one writer.
pub struct LogCells {
    /// Frames that are durable.
    pub frames: Counter,
    /// Batches in each of them.
    pub frame_batches: Histogram,
    /// Time of writing and syncing each of them.
    pub flush_time: Histogram,
    /// Between a decision and the moment at which its answer may leave.
    pub sync_wait: Histogram,
    /// Log writes that failed.
    pub failures: Counter,
    /// Snapshots written.
    pub snapshots: Counter,
    /// Snapshots that failed.
    pub snapshot_failures: Counter,
    /// Bytes of the last snapshot.
    pub snapshot_bytes: Counter,
    /// How long the last one took, nanoseconds.
    pub snapshot_nanos: Counter,
    /// When it was finished, by the monotonic clock, nanoseconds; 0 for never.
    pub snapshot_at_nanos: Counter,
    /// How long the last load of the shard took, nanoseconds.
    pub recovery_nanos: Counter,
    /// Bytes of frames written by this life of the log, what fills up their blocks included.
    pub written_bytes: Counter,
    /// Bytes of files that were rewritten.
    pub rewritten_bytes: Counter,
    /// Files that were dropped or rewritten.
    pub files_removed: Counter,
    /// Bytes of files that may be dropped or rewritten, when it was last looked.
    pub settled_bytes: Counter,
    /// Bytes of them that nobody needs.
    pub garbage_bytes: Counter,
    /// Log starts that retention has moved.
    pub log_starts_moved: Counter,
}

/// What is counted of compaction; one writer.
#[derive(Default)]
pub struct CleanerCells {
    /// Passes through a partition.
    pub passes: Counter,
    /// Bytes of batches that they have looked at.
    pub bytes_before: Counter,
    /// Bytes of those that they have left.
    pub bytes_after: Counter,
    /// Records that went.
    pub records_removed: Counter,
    /// Batches that could not be read, and were kept.
    pub unreadable_batches: Counter,
    /// Files that were sealed early.
    pub files_sealed: Counter,
    /// Uncleaned share of the dirtiest partition when it was last looked, percent.
    pub max_dirty_percent: Counter,
    /// Partitions that are not compacted since they are damaged.
    pub uncleanable: Counter,
}

impl Metrics {
    /// Nothing counted.
    pub fn new(now: Duration) -> Self {
        Self {
            requests: Default::default(),
            topics: Default::default(),
            disk: Arc::default(),
            health: health::Health::new(now),
            connections: ConnectionCells {
                accepted: Counter::default(),
                refused: Counter::default(),
                closed: Sharded::new(Default::default),
            },
            owner: OwnerCells {
                queue_time: Histogram::new(TIMES),
                step_time: Histogram::new(SHORT_TIMES),
                busy_nanos: Counter::default(),
                longest_step_nanos: Counter::default(),
                late_requests: Counter::default(),
                late_requests_let_through: Counter::default(),
                reloads: Counter::default(),
                transactions_timed_out: Counter::default(),
                producers_fenced: Counter::default(),
                classic_rebalances: Counter::default(),
                consumer_rebalances: Counter::default(),
            },
            cleaner: CleanerCells::default(),
            log: LogCells {
                frames: Counter::default(),
                frame_batches: Histogram::new(COUNTS),
                flush_time: Histogram::new(TIMES),
                sync_wait: Histogram::new(TIMES),
                failures: Counter::default(),
                snapshots: Counter::default(),
                snapshot_failures: Counter::default(),
                snapshot_bytes: Counter::default(),
                snapshot_nanos: Counter::default(),
                snapshot_at_nanos: Counter::default(),
                recovery_nanos: Counter::default(),
                written_bytes: Counter::default(),
                rewritten_bytes: Counter::default(),
                files_removed: Counter::default(),
                settled_bytes: Counter::default(),
                garbage_bytes: Counter::default(),
                log_starts_moved: Counter::default(),
            },
            parked_fetches: Gauge::default(),
        }
    }
}

/// A time in nanoseconds; a hundred years at most.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}
