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
/// Bytes of requests that one connection may have outstanding; one larger request may be, alone.
pub const REQUEST_BYTES_PER_CONNECTION_MAX: usize = 16 << 20;
/// How long a request may take to arrive once its length has: so long, and a second more for each MiB.
pub const FRAME_TIME: Duration = Duration::from_secs(60);
/// While others wait for room for their requests, one that is arriving must bring 1 MiB, or its rest, in this time.
pub const FRAME_WINDOW: Duration = Duration::from_secs(10);
/// How long an answer may take to be taken by its client: so long, and a second more for each `ANSWER_RATE_MIN`.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Bytes a second that a client has to take of a long answer.
pub const ANSWER_RATE_MIN: usize = 64 << 10;
/// Connections in all (`max.connections`).
pub const CONNECTIONS_MAX: usize = 20_000;
/// Open files that the process may have and that are not for connections.
pub const FILES_RESERVED: usize = 256;
/// A line of the log about strangers (refused, malformed) is written once in this time, with a count.
pub const STRANGERS_LOG_EVERY: Duration = Duration::from_secs(10);
/// How long a stopping broker waits for a client to close its side, so that the last answers are not lost.
pub const LINGER_TIME: Duration = Duration::from_secs(1);
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
/// A Fetch may ask for this share of what is left of those bytes, but always for `FETCH_BYTES_LEAST`.
pub const FETCH_IN_FLIGHT_SHARE: usize = 8;
/// Bytes a Fetch may ask for however little is left.
pub const FETCH_BYTES_LEAST: usize = 1 << 20;
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
/// How long a v1 transactional request that looks late is held for its client to show that it has left: longer than a
/// client that has given it up stays silent, shorter than one that waits for its answer has patience.
pub const V1_LATE_HOLD: Duration = Duration::from_secs(4);
/// v1 transactional requests that are held at once; further ones that look late are dropped with their connection.
pub const V1_HELD_MAX: usize = 1000;
/// A wall clock step above this is reported and not followed.
pub const CLOCK_STEP_MAX_MS: i64 = 3_600_000;
/// A snapshot is written when the log has grown by this, or by twice the last snapshot if that is more.
pub const SNAPSHOT_LOG_BYTES: u64 = 256 << 20;
/// How often it is looked for files to drop or rewrite.
pub const FILES_INTERVAL: Duration = Duration::from_secs(5);
/// So many files that hold nothing alive, and that only a replay may need, are worth a snapshot.
pub const SNAPSHOT_WISH_FILES: u64 = 8;
/// Between two such snapshots.
pub const SNAPSHOT_WISH_INTERVAL: Duration = Duration::from_secs(30);
/// Looks for what is due to be compacted, one after another, before the other duties of the files thread.
pub const CLEANING_ROUNDS: usize = 64;
/// Between two files that are sealed early, at least.
pub const ROLL_PAUSE_MIN: Duration = Duration::from_secs(1);
/// How often the cleaner looks whether what it waits for has happened.
pub const CLEANING_STEP: Duration = Duration::from_millis(5);
/// Partitions that are compacted into the same files in one go.
pub const CLEANED_AT_ONCE: usize = 256;
/// With less memory than this the keys of a further partition wait for the next go, bytes.
pub const KEY_MAP_BYTES_MIN: usize = 64 << 10;
/// Bytes of an internal partition in the file in use that are worth sealing it, if it is due.
pub const INTERNAL_SEGMENT_BYTES: u64 = 1 << 20;
/// How long tombstones of internal topics stay once a pass has met them, ms.
pub const INTERNAL_TOMBSTONES_MS: i64 = 60_000;
/// The same on a full disk, and retention is looked at each time.
pub const FULL_DISK_FILES_INTERVAL: Duration = Duration::from_millis(500);
/// How often a full disk is asked for room.
pub const FULL_DISK_INTERVAL: Duration = Duration::from_millis(200);
/// How often a snapshot is written on a full disk, if anything has changed: files go only behind snapshots.
pub const FULL_DISK_SNAPSHOT_INTERVAL: Duration = Duration::from_secs(2);
/// When it is first looked for what retention allows to go, after a start. As Kafka.
pub const RETENTION_DELAY: Duration = Duration::from_secs(30);
/// Log starts that one decision of retention moves at most.
pub const LOG_STARTS_PER_DECISION: usize = 1000;
/// How long an orderly shutdown waits for answers to leave (`shutdown.timeout.ms`).
pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);
/// A batch smaller than this share of its request is copied, so that what the log keeps in memory holds no more than
/// so many times the bytes that it counts.
pub const BATCH_SHARE_MIN: usize = 16;
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
/// Topics, brokers and groups that one DescribeConfigs may name; there are fewer topics than that.
pub const DESCRIBED_RESOURCES_MAX: usize = 25_000;
/// Topics with metrics of their own; the others are counted together.
pub const METRICS_TOPICS_MAX: usize = 500;
/// Committed offsets whose lag is among the metrics; two series each.
pub const METRICS_LAGS_MAX: usize = 5000;
/// Bytes of a group's id in a label; the lag of groups with longer ids is left out.
pub const METRICS_LABEL_BYTES_MAX: usize = 256;
/// Partitions with a last stable offset lag of their own.
pub const METRICS_PARTITIONS_MAX: usize = 1000;
/// How long a scrape waits for the owner to look at its state.
pub const METRICS_SURVEY_TIME: Duration = Duration::from_secs(2);
/// How often the files of the log are measured for the metrics, at the most.
pub const METRICS_DISK_INTERVAL: Duration = Duration::from_secs(30);
/// Connections to the http listener at once; further ones are closed.
pub const HTTP_CONNECTIONS_MAX: usize = 32;
/// Bytes of the head of a request to it.
pub const HTTP_HEAD_BYTES_MAX: usize = 8 << 10;
/// Lines of it.
pub const HTTP_HEADERS_MAX: usize = 64;
/// How long the head may take to arrive.
pub const HTTP_HEAD_TIME: Duration = Duration::from_secs(5);
/// How long the answer may take to leave.
pub const HTTP_WRITE_TIME: Duration = Duration::from_secs(10);
