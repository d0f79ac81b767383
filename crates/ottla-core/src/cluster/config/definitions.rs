//! The settings of a topic, in alphabetical order: names, defaults and bounds are Kafka 4.4's.

use super::ConfigType::{Boolean, Double, Int, List, Long, String};
use super::Rule::{Any, AtLeast, Between, Fraction, MinusOneOrBetween, OneOf, ThrottledReplicas};
use super::{ConfigType, Definition, Rule};

const MAX: &str = "9223372036854775807";

const fn define(
    name: &'static str,
    kind: ConfigType,
    default: &'static str,
    rule: Rule,
    synonym: Option<&'static str>,
    documentation: &'static str,
) -> Definition {
    Definition { name, kind, default, rule, synonym, documentation }
}

#[rustfmt::skip] // a table
static TOPIC_DEFINITIONS: &[Definition] = &[
    define("cleanup.policy", List, "delete", OneOf(&["compact", "delete"]), Some("log.cleanup.policy"),
        "What happens to old records: delete drops them by age and size, compact keeps the last one of each key."),
    define("compression.gzip.level", Int, "-1", MinusOneOrBetween(1, 9), Some("compression.gzip.level"),
        "Level of gzip when the broker compresses; -1 is the codec's own default."),
    define("compression.lz4.level", Int, "9", Between(1, 17), Some("compression.lz4.level"),
        "Level of lz4 when the broker compresses."),
    define("compression.type", String, "producer", OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        Some("compression.type"), "Codec that batches are stored with; producer keeps what was sent."),
    define("compression.zstd.level", Int, "3", Between(-131_072, 22), Some("compression.zstd.level"),
        "Level of zstd when the broker compresses."),
    define("delete.retention.ms", Long, "86400000", AtLeast(0), Some("log.cleaner.delete.retention.ms"),
        "How long tombstones and transaction markers of a compacted topic are kept."),
    define("errors.deadletterqueue.group.enable", Boolean, "false", Any, None,
        "Whether share groups may use the topic as a dead letter queue. Without effect."),
    define("file.delete.delay.ms", Long, "60000", AtLeast(0), Some("log.segment.delete.delay.ms"),
        "How long a deleted file stays on disk. Without effect: a file goes when nobody reads it."),
    define("flush.messages", Long, MAX, AtLeast(1), Some("log.flush.interval.messages"),
        "Records after which the log is synced. Without effect: every answer waits for a sync."),
    define("flush.ms", Long, MAX, AtLeast(0), Some("log.flush.interval.ms"),
        "Time after which the log is synced. Without effect: every answer waits for a sync."),
    define("follower.replication.throttled.replicas", List, "", ThrottledReplicas, None,
        "Replicas that are throttled. Without effect: there are no followers."),
    define("index.interval.bytes", Int, "4096", AtLeast(0), Some("log.index.interval.bytes"),
        "Distance of index entries. Without effect."),
    define("leader.replication.throttled.replicas", List, "", ThrottledReplicas, None,
        "Replicas that are throttled. Without effect: there are no followers."),
    define("local.retention.bytes", Long, "-2", AtLeast(-2), Some("log.local.retention.bytes"),
        "Size kept locally under tiered storage. Without effect."),
    define("local.retention.ms", Long, "-2", AtLeast(-2), Some("log.local.retention.ms"),
        "Age kept locally under tiered storage. Without effect."),
    define("max.compaction.lag.ms", Long, MAX, AtLeast(1), Some("log.cleaner.max.compaction.lag.ms"),
        "Longest time that a record of a compacted topic stays uncompacted."),
    define("max.decompressed.message.bytes", Int, "2147483639", AtLeast(1), Some("max.decompressed.message.bytes"),
        "Largest batch when decompressed; the broker's own limit holds too."),
    define("max.message.bytes", Int, "1048588", AtLeast(0), Some("message.max.bytes"),
        "Largest batch, as sent. Transaction markers are not bound by it."),
    define("message.timestamp.after.max.ms", Long, "3600000", AtLeast(0), Some("log.message.timestamp.after.max.ms"),
        "How far a record's timestamp may lie ahead of the broker's clock."),
    define("message.timestamp.before.max.ms", Long, MAX, AtLeast(0), Some("log.message.timestamp.before.max.ms"),
        "How far a record's timestamp may lie behind the broker's clock."),
    define("message.timestamp.type", String, "CreateTime", OneOf(&["CreateTime", "LogAppendTime"]),
        Some("log.message.timestamp.type"), "Whose time a record carries: the producer's or the broker's."),
    define("min.cleanable.dirty.ratio", Double, "0.5", Fraction, Some("log.cleaner.min.cleanable.ratio"),
        "Share of uncompacted bytes from which on a topic is compacted."),
    define("min.compaction.lag.ms", Long, "0", AtLeast(0), Some("log.cleaner.min.compaction.lag.ms"),
        "Shortest time that a record of a compacted topic stays uncompacted."),
    define("min.insync.replicas", Int, "1", AtLeast(1), Some("min.insync.replicas"),
        "Replicas that acks=all waits for, at most as many as there are: one."),
    define("preallocate", Boolean, "false", Any, Some("log.preallocate"),
        "Whether files are made at full size. Without effect: they always are."),
    define("remote.copy.lag.bytes", Long, "-1", AtLeast(-1), Some("log.remote.copy.lag.bytes"),
        "Lag of tiered storage. Without effect."),
    define("remote.copy.lag.ms", Long, "0", AtLeast(-1), Some("log.remote.copy.lag.ms"),
        "Lag of tiered storage. Without effect."),
    define("remote.log.copy.disable", Boolean, "false", Any, None,
        "Whether tiered storage is read only. Without effect."),
    define("remote.log.delete.on.disable", Boolean, "false", Any, None,
        "Whether tiered data goes when tiering ends. Without effect."),
    define("remote.storage.enable", Boolean, "false", Any, None,
        "Whether the topic is tiered. Only false: there is no tiered storage."),
    define("retention.bytes", Long, "-1", AtLeast(-1), Some("log.retention.bytes"),
        "Size of a partition above which old records are dropped; -1 for none."),
    define("retention.ms", Long, "604800000", AtLeast(-1), Some("log.retention.ms"),
        "Age above which records are dropped; -1 for never."),
    define("segment.bytes", Int, "1073741824", AtLeast(1_048_576), Some("log.segment.bytes"),
        "Largest batch that the topic takes; and so many bytes of a compacted topic leave the file in use when they are due."),
    define("segment.index.bytes", Int, "10485760", AtLeast(4), Some("log.index.size.max.bytes"),
        "Size of a segment's index. Without effect."),
    define("segment.jitter.ms", Long, "0", AtLeast(0), Some("log.roll.jitter.ms"),
        "Spread of segment rolls. Without effect."),
    define("segment.ms", Long, "604800000", AtLeast(1), Some("log.roll.ms"),
        "Age at which a compacted topic's records leave the file in use, when they are due for compaction."),
    define("unclean.leader.election.enable", Boolean, "false", Any, Some("unclean.leader.election.enable"),
        "Whether a replica that misses records may lead. Without effect: nothing acknowledged is ever missing."),
];

/// The settings of a topic, by name.
pub fn topic_definitions() -> &'static [Definition] {
    TOPIC_DEFINITIONS
}

/// The setting of a topic with this name.
pub fn topic_definition(name: &str) -> Option<&'static Definition> {
    let index = TOPIC_DEFINITIONS.binary_search_by(|definition| definition.name.cmp(name)).ok()?;
    TOPIC_DEFINITIONS.get(index)
}
