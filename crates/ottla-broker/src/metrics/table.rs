//! Every metric: its name, kind, unit, labels and meaning. docs/metrics.md is made from this table.
//!
//! Names are Kafka's (as Prometheus' exporters for Kafka write them) where the meaning is Kafka's, else they begin
//! with `ottla_`; those of the process are Prometheus' own.

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only grows, from 0 at the start.
    Counter,
    /// Comes and goes.
    Gauge,
    /// Counts values by size.
    Histogram {
        /// How many of what is counted make one of the unit.
        scale: f64,
    },
}

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What it counts, for people.
    pub unit: &'static str,
    /// Its labels, in the order of samples.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// Metrics that belong together.
pub struct Group {
    /// A heading.
    pub title: &'static str,
    /// The metrics, in the order in which they are written.
    pub metrics: &'static [&'static Metric],
}

const COUNTER: Kind = Kind::Counter;
const GAUGE: Kind = Kind::Gauge;
/// Times, counted in nanoseconds.
const TIMES: Kind = Kind::Histogram { scale: 1e9 };
const COUNTS: Kind = Kind::Histogram { scale: 1.0 };

macro_rules! metrics {
    ($($title:literal { $($id:ident = $name:literal $kind:ident $unit:literal [$($label:literal),*] $help:literal;)* })*) => {
        $($(
            #[doc = $help]
            pub static $id: Metric =
                Metric { name: $name, kind: $kind, unit: $unit, labels: &[$($label),*], help: $help };
        )*)*

        /// All of them.
        pub static GROUPS: &[Group] = &[$(Group { title: $title, metrics: &[$(&$id),*] }),*];
    };
}

metrics! {
"Traffic by topic" {
    MESSAGES_IN = "kafka_server_brokertopicmetrics_messagesin_total" COUNTER "records" ["topic"]
        "Records that became durable. Transaction markers are not counted.";
    BYTES_IN = "kafka_server_brokertopicmetrics_bytesin_total" COUNTER "bytes" ["topic"]
        "Bytes of batches that became durable, as they are stored; transaction markers included.";
    BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total" COUNTER "bytes" ["topic"]
        "Bytes of batches in answers to Fetch.";
    PRODUCE_REQUESTS = "kafka_server_brokertopicmetrics_totalproducerequests_total" COUNTER "partitions" ["topic"]
        "Partitions in Produce requests, as Kafka counts them: a request for three partitions counts three.";
    FAILED_PRODUCE_REQUESTS = "kafka_server_brokertopicmetrics_failedproducerequests_total" COUNTER "partitions" ["topic"]
        "Partitions for which a Produce was refused.";
    FETCH_REQUESTS = "kafka_server_brokertopicmetrics_totalfetchrequests_total" COUNTER "partitions" ["topic"]
        "Partitions in answered Fetch requests, those of the session included.";
    FAILED_FETCH_REQUESTS = "kafka_server_brokertopicmetrics_failedfetchrequests_total" COUNTER "partitions" ["topic"]
        "Partitions for which a Fetch was refused.";
}
"Requests" {
    REQUESTS = "kafka_network_requestmetrics_requests_total" COUNTER "requests" ["request", "version"]
        "Requests that arrived, by API and version.";
    ERRORS = "kafka_network_requestmetrics_errors_total" COUNTER "errors" ["request", "error"]
        "Error codes in answers; each topic, partition or group of an answer counts by itself. NONE is not counted.";
    TOTAL_TIME = "kafka_network_requestmetrics_totaltime_seconds" TIMES "seconds" ["request"]
        "From the arrival of a request until its answer is in the socket's buffer. A Fetch may wait for records, a JoinGroup for members.";
    REQUEST_BYTES = "kafka_network_requestmetrics_requestbytes_total" COUNTER "bytes" ["request"]
        "Bytes of requests.";
    RESPONSE_BYTES = "kafka_network_requestmetrics_responsebytes_total" COUNTER "bytes" ["request"]
        "Bytes of answers.";
    REQUESTS_IN_FLIGHT = "ottla_requests_in_flight_bytes" GAUGE "bytes" []
        "Requests that were read, or are being read, and not answered yet.";
    REQUESTS_IN_FLIGHT_MAX = "ottla_requests_in_flight_max_bytes" GAUGE "bytes" []
        "Bound of the former (queued.max.request.bytes); above it connections are not read from.";
    FETCH_IN_FLIGHT = "ottla_fetch_in_flight_bytes" GAUGE "bytes" []
        "Records between disk and socket.";
}
"Connections" {
    CONNECTIONS = "kafka_server_socketservermetrics_connection_count" GAUGE "connections" []
        "Open connections of clients.";
    CONNECTIONS_ACCEPTED = "kafka_server_socketservermetrics_connection_creation_total" COUNTER "connections" []
        "Connections that were accepted and served.";
    CONNECTIONS_REFUSED = "ottla_connections_refused_total" COUNTER "connections" []
        "Connections that were closed at once since their address had too many (max.connections.per.ip).";
    CONNECTIONS_CLOSED = "ottla_connections_closed_total" COUNTER "connections" ["reason"]
        "Connections that ended. peer: the other side closed it or it broke; idle: connections.max.idle.ms; bad_frame: no frame of the protocol, or too slow; bad_request: cannot be read or is not served; unanswered: a decision not to answer; stopping: the broker shut down.";
}
"Fetching" {
    PARKED_FETCHES = "ottla_fetch_parked" GAUGE "requests" []
        "Fetch requests that wait for records.";
    FETCH_SESSIONS = "kafka_server_fetchsessioncache_numincrementalfetchsessions" GAUGE "sessions" []
        "Incremental fetch sessions (KIP-227).";
    FETCH_SESSION_PARTITIONS = "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached" GAUGE "partitions" []
        "Partitions in them.";
    FETCH_SESSION_EVICTIONS = "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total" COUNTER "sessions" []
        "Sessions that made room for others.";
}
"The shard's owner" {
    OWNER_QUEUE_TIME = "ottla_owner_queue_seconds" TIMES "seconds" []
        "How long commands waited for the owner.";
    OWNER_STEP_TIME = "ottla_owner_step_seconds" TIMES "seconds" []
        "How long the owner took for one command: decide, apply, hand to the log.";
    OWNER_STEP_LONGEST = "ottla_owner_step_longest_seconds" GAUGE "seconds" []
        "The longest of the current and the last minute.";
    OWNER_BUSY = "ottla_owner_busy_seconds_total" COUNTER "seconds" []
        "Time in which the owner did not wait for work; its rate is how busy it is, 1 at the most.";
    OWNER_WAITING = "ottla_owner_waiting_commands" GAUGE "commands" []
        "Commands that wait for the owner now.";
}
"Log and disk" {
    FLUSH_TIME = "kafka_log_logflushstats_logflush_seconds" TIMES "seconds" []
        "How long it took to write one frame and sync it.";
    SYNC_WAIT = "ottla_log_sync_wait_seconds" TIMES "seconds" []
        "From a decision until its answer may leave: the rest of the sync before it, and its own.";
    FRAMES = "ottla_log_frames_total" COUNTER "frames" []
        "Frames that became durable.";
    FRAME_BATCHES = "ottla_log_frame_batches" COUNTS "batches" []
        "Batches in one frame.";
    LOG_FAILURES = "ottla_log_failures_total" COUNTER "failures" []
        "Log writes that failed or whose outcome is unknown; each is followed by a reload.";
    LOG_BYTES = "ottla_log_bytes" GAUGE "bytes" []
        "Bytes of the files of the log that are in use.";
    LOG_WRITTEN = "ottla_log_written_bytes_total" COUNTER "bytes" []
        "Bytes of frames since the log was opened, headers and what fills up their blocks included. This and the next, by the bytes of batches that became durable, is the write amplification.";
    LOG_REWRITTEN = "ottla_log_rewritten_bytes_total" COUNTER "bytes" []
        "Bytes of files that were written anew from older ones: by partition, or without their garbage.";
    LOG_FILES_REMOVED = "ottla_log_files_removed_total" COUNTER "files" []
        "Files of the log that were dropped, or removed after they had been rewritten.";
    LOG_SETTLED = "ottla_log_settled_bytes" GAUGE "bytes" []
        "Bytes of the files that no start needs for replay, and that may be dropped or rewritten.";
    LOG_GARBAGE = "ottla_log_garbage_bytes" GAUGE "bytes" []
        "Bytes of them that nobody needs: of deleted topics, and below log starts.";
    LOG_STARTS_MOVED = "ottla_log_starts_moved_total" COUNTER "partitions" []
        "Log starts that retention.ms and retention.bytes have moved.";
    CLEANER_PASSES = "ottla_cleaner_passes_total" COUNTER "passes" []
        "Passes of compaction through a partition.";
    CLEANER_BEFORE = "ottla_cleaner_bytes_before_total" COUNTER "bytes" []
        "Bytes of batches that these passes have looked at.";
    CLEANER_AFTER = "ottla_cleaner_bytes_after_total" COUNTER "bytes" []
        "Bytes of the batches that they have left.";
    CLEANER_RECORDS = "ottla_cleaner_records_removed_total" COUNTER "records" []
        "Records that compaction has removed.";
    CLEANER_UNREADABLE = "ottla_cleaner_unreadable_batches_total" COUNTER "batches" []
        "Batches whose records a pass could not decode; they were kept.";
    CLEANER_SEALED = "ottla_cleaner_files_sealed_total" COUNTER "files" []
        "Files in use that were sealed early, since a partition with its newest records there was due.";
    CLEANER_DIRTY = "ottla_cleaner_max_dirty_percent" GAUGE "percent" []
        "Uncleaned share of the bytes of the dirtiest compacted partition, when it was last looked.";
    CLEANER_UNCLEANABLE = "ottla_cleaner_uncleanable_partitions" GAUGE "partitions" []
        "Partitions that are not compacted because they are damaged; a start looks again.";
    DISK_FREE = "ottla_disk_free_bytes" GAUGE "bytes" []
        "Bytes free on the file system of the folder.";
    DISK_SYNC_TIME = "ottla_disk_sync_seconds" TIMES "seconds" ["file"]
        "Duration of each fdatasync and fsync, by kind of file: log (files prepared ahead included), snapshot, other.";
    DISK_WRITTEN = "ottla_disk_written_bytes_total" COUNTER "bytes" ["file"]
        "Bytes written; the zeros that log files are prepared with included.";
    DISK_WRITES = "ottla_disk_writes_total" COUNTER "calls" ["file"]
        "Calls that wrote.";
    DISK_READ = "ottla_disk_read_bytes_total" COUNTER "bytes" ["file"]
        "Bytes read.";
    DISK_READS = "ottla_disk_reads_total" COUNTER "calls" ["file"]
        "Calls that read.";
    DISK_ERRORS = "ottla_disk_errors_total" COUNTER "errors" ["file", "operation"]
        "Calls that failed, by operation: read, write, sync.";
    SNAPSHOTS = "ottla_snapshots_total" COUNTER "snapshots" ["outcome"]
        "Snapshots, written and failed.";
    SNAPSHOT_TIME = "ottla_snapshot_seconds" GAUGE "seconds" []
        "How long the last snapshot took; 0 before the first since the start.";
    SNAPSHOT_BYTES = "ottla_snapshot_bytes" GAUGE "bytes" []
        "Size of the last snapshot; 0 before the first since the start.";
    SNAPSHOT_AGE = "ottla_snapshot_age_seconds" GAUGE "seconds" []
        "Time since the last snapshot; no sample before the first since the start.";
    RECOVERY_TIME = "ottla_recovery_seconds" GAUGE "seconds" []
        "How long the last load of the folder took, at start or in a reload.";
    RELOADS = "ottla_reloads_total" COUNTER "reloads" []
        "How often the state was thrown away after a failed write and rebuilt from the disk.";
}
"Topics" {
    TOPICS = "kafka_controller_kafkacontroller_globaltopiccount" GAUGE "topics" []
        "Topics, internal ones included.";
    PARTITIONS = "kafka_server_replicamanager_partitioncount" GAUGE "partitions" []
        "Partitions, those of internal topics included.";
}
"Transactions" {
    LATE_REQUESTS = "ottla_transaction_v1_late_requests_total" COUNTER "requests" []
        "Requests of transactions of protocol v1 that were dropped as late: a newer connection has spoken for the same producer. The connection that each came on is closed. A healthy client causes none, unless it uses a pool of connections for several requests of one producer at once.";
    LET_THROUGH = "ottla_transaction_v1_late_requests_let_through_total" COUNTER "requests" []
        "Requests of protocol v1 that looked late, of a client with a pool of connections, and were served after a moment since it was still there.";
    TRANSACTIONAL_IDS = "ottla_transactional_ids" GAUGE "ids" ["state"]
        "Transactional ids by the state of their transaction, under Kafka's names. Ongoing: a transaction is open.";
    OLDEST_OPEN = "ottla_transaction_oldest_open_seconds" GAUGE "seconds" []
        "Age of the oldest open transaction; 0 when none is open.";
    TIMED_OUT = "ottla_transaction_timeouts_total" COUNTER "transactions" []
        "Transactions that the coordinator aborted since they were open for longer than their timeout.";
    PRODUCERS_FENCED = "ottla_transaction_producers_fenced_total" COUNTER "producers" []
        "Producers that came for a transactional id which had another one before: a restart, or a duplicate.";
    PRODUCERS = "ottla_producers" GAUGE "producers" []
        "Producer ids that partitions remember, once per partition.";
    LSO_LAG = "kafka_cluster_partition_laststableoffsetlag" GAUGE "offsets" ["topic", "partition"]
        "Offsets between the last stable offset and the high watermark: what open transactions hide from read_committed readers. Only partitions where it is not 0.";
    FENCED_REQUESTS = "ottla_transaction_fenced_requests_total" COUNTER "errors" []
        "Answers that told a producer that another one has its transactional id (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED).";
}
"Groups" {
    GROUPS_COUNT = "ottla_groups" GAUGE "groups" ["type", "state"]
        "Groups by type (classic, consumer) and state, under Kafka's names.";
    GROUP_MEMBERS = "ottla_group_members" GAUGE "members" ["type"]
        "Members of all groups, by type.";
    GROUP_OFFSETS = "ottla_group_offsets" GAUGE "offsets" []
        "Offsets of all groups, committed and pending ones.";
    REBALANCES = "ottla_group_rebalances_total" COUNTER "rebalances" ["type"]
        "Generations of classic groups and assignments of consumer groups that were begun.";
    LAG_BEHIND = "ottla_group_lag_behind_offsets" GAUGE "offsets" ["group", "topic", "partition"]
        "How far a group is behind what a read_committed reader can read: from its committed offset to the last stable offset. Markers count, as they do in Kafka's lag.";
    LAG_HIDDEN = "ottla_group_lag_hidden_offsets" GAUGE "offsets" ["group", "topic", "partition"]
        "How much of the partition a group has not read since open transactions hide it: from the last stable offset (or the committed offset behind it) to the high watermark. Both lags together are what kafka-consumer-groups shows to a read_uncommitted reader.";
}
"The process" {
    READY = "ottla_ready" GAUGE "" ["status"]
        "1 while all requests are served, else 0; the label says what /health says: ready, recovering, refusing_writes, stopping.";
    BUILD = "ottla_build_info" GAUGE "" ["version"]
        "Always 1; the label is Ottla's version.";
    UPTIME = "ottla_uptime_seconds" GAUGE "seconds" []
        "Time since the broker was started.";
    MEMORY = "process_resident_memory_bytes" GAUGE "bytes" []
        "Resident memory.";
    OPEN_FILES = "process_open_fds" GAUGE "descriptors" []
        "Open file descriptors.";
    CPU = "process_cpu_seconds_total" COUNTER "seconds" []
        "Processor time, user and system.";
    LEFT_OUT = "ottla_metrics_left_out" GAUGE "series" ["metric"]
        "Topics, partitions or groups that have no series of their own in this scrape, since there are too many.";
}
}

/// The metric of that name.
pub fn by_name(name: &str) -> Option<&'static Metric> {
    GROUPS.iter().flat_map(|group| group.metrics).find(|metric| metric.name == name).copied()
}
