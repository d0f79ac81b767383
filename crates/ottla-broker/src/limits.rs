//! Every hard bound of the broker, in one place.
//!
//! A bound that a user may move is a setting of `Config` with one of these as its default; the others are fixed.

use std::time::Duration;

/// Largest request frame in bytes (`socket.request.max.bytes`).
pub const REQUEST_BYTES_MAX: usize = 100 << 20;
/// Bytes of requests that may be in the broker at once, read but not answered (`queued.max.request.bytes`).
pub const REQUESTS_IN_FLIGHT_BYTES_MAX: usize = 256 << 20;
/// Answers that one connection may have outstanding; the next request is read when one has left.
pub const ANSWERS_PER_CONNECTION_MAX: usize = 128;
/// Connections in all (`max.connections`).
pub const CONNECTIONS_MAX: usize = 20_000;
/// Bytes of a connection's turn at the shard's inbox (deficit round robin).
pub const INBOX_QUANTUM_BYTES: usize = 64 << 10;
/// Commands the owner takes from the inbox before it looks at the clock again.
pub const OWNER_BATCH_MAX: usize = 512;
/// Bytes of decisions that may wait for the log; the owner pauses above it.
pub const LOG_QUEUE_BYTES_MAX: usize = 64 << 20;
/// A frame is closed once it holds this many bytes (never inside a decision).
pub const FRAME_BYTES: usize = 1 << 20;
/// Largest answer to one Fetch in bytes (`fetch.max.bytes`), but for the first batch.
pub const FETCH_BYTES_MAX: usize = 55 << 20;
/// Bytes of fetched data that may be between disk and socket at once.
pub const FETCH_IN_FLIGHT_BYTES_MAX: usize = 128 << 20;
/// Longest a Fetch may be parked.
pub const FETCH_WAIT_MAX: Duration = Duration::from_secs(300);
/// Incremental fetch sessions kept (`max.incremental.fetch.session.cache.slots`).
pub const FETCH_SESSIONS_MAX: usize = 1000;
/// Partitions in all fetch sessions together.
pub const FETCH_SESSION_PARTITIONS_MAX: usize = 1_000_000;
/// How long requests wait for a reload before they are answered with an error.
pub const RELOAD_WAIT: Duration = Duration::from_secs(10);
/// Pause between attempts to reload.
pub const RELOAD_RETRY: Duration = Duration::from_millis(200);
/// A gap of the owner's own above this moves all deadlines by the gap.
pub const OWNER_GAP: Duration = Duration::from_secs(1);
/// Longest the owner waits for work while any deadline is ahead.
pub const OWNER_LOOK_AROUND: Duration = Duration::from_millis(500);
/// A v1 transactional request that waited longer in the inbox is dropped with its connection: half of what clients
/// usually wait for an answer.
pub const V1_QUEUE_AGE_MAX: Duration = Duration::from_secs(15);
/// How long a v1 transactional request that looks late is held, to see whether its client has closed the connection:
/// longer than a round trip, since the close may have to be sent again.
pub const V1_LATE_HOLD: Duration = Duration::from_millis(500);
/// Clients, by address and client id, whose connections are told apart as pools.
pub const CLIENT_NAMES_MAX: usize = 10_000;
/// A wall clock step above this is reported and not followed.
pub const CLOCK_STEP_MAX_MS: i64 = 3_600_000;
/// A snapshot is written when the log has grown by this, or by twice the last snapshot if that is more.
pub const SNAPSHOT_LOG_BYTES: u64 = 256 << 20;
/// How long an orderly shutdown waits for answers to leave.
pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);
/// Bytes a Produce request may decompress to in all, as a multiple of `message.max.bytes` per batch.
pub const DECOMPRESSED_FACTOR: usize = 100;
/// Decompressed bytes of one batch at the most, whatever the factor says.
pub const DECOMPRESSED_BYTES_MAX: usize = 128 << 20;
/// How long a start waits for a folder's lock to be given up by a process that has just ended.
pub const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Pause between attempts to take the lock.
pub const LOCK_RETRY: Duration = Duration::from_millis(50);
/// Partitions in one answer to DescribeTopicPartitions (`max.request.partition.size.limit`).
pub const DESCRIBED_PARTITIONS_MAX: i32 = 2000;
/// Partitions that one admin request may name whose answer is larger than itself.
pub const ADMIN_PARTITIONS_MAX: usize = 100_000;
