//! The core's settings of a broker, in alphabetical order. Names, types, bounds and defaults are Kafka 4.4's where
//! the documentation does not say otherwise.

use super::ConfigType::{Boolean, Double, Int, List, Long, Short, String as Words};
use super::Rule::{AddressCounts, Any, AtLeast, Between, Fraction, MinusOneOrBetween, NotZero, OneOf};
use super::Update::{ClusterWide, PerBroker, ReadOnly};
use super::broker::Access;
use super::{BrokerDefinition, ConfigType, Definition, Rule, Update};
use crate::config::MigrationPolicy;

const MAX: &str = "9223372036854775807";

const fn define(
    name: &'static str,
    kind: ConfigType,
    default: &'static str,
    rule: Rule,
    access: Access,
    update: Update,
    documentation: &'static str,
) -> BrokerDefinition {
    let definition = Definition { name, kind, default, rule, synonym: Some(name), documentation };
    BrokerDefinition { definition, update, access }
}

fn number<T: std::str::FromStr>(value: &str) -> T {
    value.parse().ok().expect("values were checked")
}

/// Access to a field of the config.
macro_rules! field {
    ($field:ident) => {
        Access::Field(|c| c.$field.to_string(), |c, value| c.$field = number(value))
    };
    ($field:ident as bool) => {
        Access::Field(|c| c.$field.to_string(), |c, value| c.$field = value.eq_ignore_ascii_case("true"))
    };
    ($field:ident as text) => {
        Access::Field(|c| c.$field.clone(), |c, value| c.$field = value.to_owned())
    };
}

#[rustfmt::skip] // a table
pub(super) static BROKER_DEFINITIONS: &[BrokerDefinition] = &[
    define("auto.create.topics.enable", Boolean, "true", Any, field!(auto_create_topics_enable as bool), ReadOnly,
        "Whether a client that asks for a topic makes it."),
    define("background.threads", Int, "10", AtLeast(1), Access::Kept, ClusterWide,
        "Threads for chores. Without effect."),
    define("compression.gzip.level", Int, "-1", MinusOneOrBetween(1, 9), Access::Kept, ClusterWide,
        "Default of compression.gzip.level of a topic."),
    define("compression.lz4.level", Int, "9", Between(1, 17), Access::Kept, ClusterWide,
        "Default of compression.lz4.level of a topic."),
    define("compression.type", Words, "producer", OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]), Access::Kept, ClusterWide,
        "Default of compression.type of a topic."),
    define("compression.zstd.level", Int, "3", Between(-131_072, 22), Access::Kept, ClusterWide,
        "Default of compression.zstd.level of a topic."),
    define("default.replication.factor", Int, "1", Between(1, 1), Access::Kept, ReadOnly,
        "Replicas of a topic that is created without a count. Only 1: there is one broker."),
    define("delete.topic.enable", Boolean, "true", Any, field!(delete_topic_enable as bool), ReadOnly,
        "Whether topics can be deleted."),
    define("follower.replication.throttled.rate", Long, "", AtLeast(0), Access::Kept, ClusterWide,
        "Bytes a second of throttled replicas that follow. Without effect."),
    define("group.consumer.assignors", List, "uniform,range", OneOf(&["uniform", "range"]), field!(group_consumer_assignors as text), ReadOnly,
        "Assignors of consumer groups, the default one first."),
    define("group.consumer.heartbeat.interval.ms", Int, "5000", AtLeast(1), field!(group_consumer_heartbeat_interval_ms), ReadOnly,
        "How often members of consumer groups are told to send heartbeats."),
    define("group.consumer.max.heartbeat.interval.ms", Int, "15000", AtLeast(1), field!(group_consumer_max_heartbeat_interval_ms), ReadOnly,
        "The longest such time that may be set."),
    define("group.consumer.max.session.timeout.ms", Int, "60000", AtLeast(1), field!(group_consumer_max_session_timeout_ms), ReadOnly,
        "The longest time that may be set for members of consumer groups to be silent."),
    define("group.consumer.max.size", Int, "2147483647", AtLeast(1), field!(group_consumer_max_size), ReadOnly,
        "Members of one consumer group, below the fixed limit of 10,000."),
    define("group.consumer.migration.policy", Words, "bidirectional", OneOf(&["bidirectional", "disabled", "downgrade", "upgrade"]), Access::Field(|c| c.group_consumer_migration_policy.name().to_owned(), |c, value| {
            c.group_consumer_migration_policy = MigrationPolicy::from_name(value).expect("values were checked");
        }), ReadOnly,
        "Which groups may change their protocol while they have members."),
    define("group.consumer.min.heartbeat.interval.ms", Int, "5000", AtLeast(1), field!(group_consumer_min_heartbeat_interval_ms), ReadOnly,
        "The shortest interval of heartbeats that may be set."),
    define("group.consumer.min.session.timeout.ms", Int, "45000", AtLeast(1), field!(group_consumer_min_session_timeout_ms), ReadOnly,
        "The shortest time that may be set for members of consumer groups to be silent."),
    define("group.consumer.session.timeout.ms", Int, "45000", AtLeast(1), field!(group_consumer_session_timeout_ms), ReadOnly,
        "How long a member of a consumer group may be silent."),
    define("group.initial.rebalance.delay.ms", Int, "3000", AtLeast(0), field!(group_initial_rebalance_delay_ms), ReadOnly,
        "How long the first rebalance of an empty group waits for more members."),
    define("group.max.session.timeout.ms", Int, "1800000", AtLeast(1), field!(group_max_session_timeout_ms), ReadOnly,
        "The longest session timeout that a member of a classic group may ask for."),
    define("group.max.size", Int, "2147483647", AtLeast(1), field!(group_max_size), ReadOnly,
        "Members that a classic group may have, below the fixed limit of 10,000."),
    define("group.min.session.timeout.ms", Int, "6000", AtLeast(1), field!(group_min_session_timeout_ms), ReadOnly,
        "The shortest session timeout that a member of a classic group may ask for."),
    define("leader.replication.throttled.rate", Long, "", AtLeast(0), Access::Kept, ClusterWide,
        "Bytes a second of throttled replicas that lead. Without effect."),
    define("log.cleaner.delete.retention.ms", Long, "86400000", AtLeast(0), Access::Kept, ClusterWide,
        "Default of delete.retention.ms of a topic."),
    define("log.cleaner.max.compaction.lag.ms", Long, MAX, AtLeast(1), Access::Kept, ClusterWide,
        "Default of max.compaction.lag.ms of a topic."),
    define("log.cleaner.min.cleanable.ratio", Double, "0.5", Fraction, Access::Kept, ClusterWide,
        "Default of min.cleanable.dirty.ratio of a topic."),
    define("log.cleaner.min.compaction.lag.ms", Long, "0", AtLeast(0), Access::Kept, ClusterWide,
        "Default of min.compaction.lag.ms of a topic."),
    define("log.cleanup.policy", List, "delete", OneOf(&["compact", "delete"]), Access::Kept, ClusterWide,
        "Default of cleanup.policy of a topic."),
    define("log.flush.interval.messages", Long, MAX, AtLeast(1), Access::Kept, ClusterWide,
        "Default of flush.messages of a topic."),
    define("log.flush.interval.ms", Long, "", AtLeast(0), Access::Kept, ClusterWide,
        "Default of flush.ms of a topic; unset, log.flush.scheduler.interval.ms holds."),
    define("log.flush.scheduler.interval.ms", Long, MAX, AtLeast(0), Access::Kept, ReadOnly,
        "Default of flush.ms of a topic."),
    define("log.index.interval.bytes", Int, "4096", AtLeast(0), Access::Kept, ClusterWide,
        "Default of index.interval.bytes of a topic."),
    define("log.index.size.max.bytes", Int, "10485760", AtLeast(4), Access::Kept, ClusterWide,
        "Default of segment.index.bytes of a topic."),
    define("log.local.retention.bytes", Long, "-2", AtLeast(-2), Access::Kept, ClusterWide,
        "Default of local.retention.bytes of a topic."),
    define("log.local.retention.ms", Long, "-2", AtLeast(-2), Access::Kept, ClusterWide,
        "Default of local.retention.ms of a topic."),
    define("log.message.timestamp.after.max.ms", Long, "3600000", AtLeast(0), Access::Kept, ClusterWide,
        "Default of message.timestamp.after.max.ms of a topic."),
    define("log.message.timestamp.before.max.ms", Long, MAX, AtLeast(0), Access::Kept, ClusterWide,
        "Default of message.timestamp.before.max.ms of a topic."),
    define("log.message.timestamp.type", Words, "CreateTime", OneOf(&["CreateTime", "LogAppendTime"]), Access::Kept, ClusterWide,
        "Default of message.timestamp.type of a topic."),
    define("log.preallocate", Boolean, "false", Any, Access::Kept, ClusterWide,
        "Default of preallocate of a topic."),
    define("log.remote.copy.lag.bytes", Long, "-1", AtLeast(-1), Access::Kept, ClusterWide,
        "Default of remote.copy.lag.bytes of a topic."),
    define("log.remote.copy.lag.ms", Long, "0", AtLeast(-1), Access::Kept, ClusterWide,
        "Default of remote.copy.lag.ms of a topic."),
    define("log.retention.bytes", Long, "-1", AtLeast(-1), Access::Kept, ClusterWide,
        "Default of retention.bytes of a topic."),
    define("log.retention.hours", Int, "168", NotZero, Access::Kept, ReadOnly,
        "Default of retention.ms of a topic, in hours."),
    define("log.retention.minutes", Int, "", NotZero, Access::Kept, ReadOnly,
        "Default of retention.ms of a topic, in minutes; goes before log.retention.hours."),
    define("log.retention.ms", Long, "", NotZero, Access::Kept, ClusterWide,
        "Default of retention.ms of a topic; goes before log.retention.minutes."),
    define("log.roll.hours", Int, "168", AtLeast(1), Access::Kept, ReadOnly,
        "Default of segment.ms of a topic, in hours."),
    define("log.roll.jitter.hours", Int, "0", AtLeast(0), Access::Kept, ReadOnly,
        "Default of segment.jitter.ms of a topic, in hours."),
    define("log.roll.jitter.ms", Long, "", AtLeast(0), Access::Kept, ClusterWide,
        "Default of segment.jitter.ms of a topic; goes before log.roll.jitter.hours."),
    define("log.roll.ms", Long, "", AtLeast(1), Access::Kept, ClusterWide,
        "Default of segment.ms of a topic; goes before log.roll.hours."),
    define("log.segment.bytes", Int, "1073741824", AtLeast(1_048_576), Access::Kept, ClusterWide,
        "Default of segment.bytes of a topic."),
    define("log.segment.delete.delay.ms", Long, "60000", AtLeast(0), Access::Kept, ClusterWide,
        "Default of file.delete.delay.ms of a topic."),
    define("max.connection.creation.rate", Int, "2147483647", AtLeast(1), field!(max_connection_creation_rate), ClusterWide,
        "Connections accepted in a second; further ones wait."),
    define("max.connections", Int, "20000", Between(1, 1_000_000), field!(max_connections), ClusterWide,
        "Connections at once; further ones wait to be accepted."),
    define("max.connections.per.ip", Int, "2147483647", AtLeast(0), field!(max_connections_per_ip), ClusterWide,
        "Connections at once from one address; further ones are closed."),
    define("max.connections.per.ip.overrides", Words, "", AddressCounts, field!(max_connections_per_ip_overrides as text), ClusterWide,
        "Another such number for some addresses."),
    define("max.decompressed.message.bytes", Int, "2147483639", AtLeast(1), Access::Kept, ClusterWide,
        "Default of max.decompressed.message.bytes of a topic."),
    define("message.max.bytes", Int, "1048588", AtLeast(0), Access::Kept, ClusterWide,
        "Default of max.message.bytes of a topic."),
    define("min.insync.replicas", Int, "1", AtLeast(1), Access::Kept, ClusterWide,
        "Default of min.insync.replicas of a topic."),
    define("num.partitions", Int, "1", Between(1, 10_000), field!(num_partitions), ReadOnly,
        "Partitions of a topic that is created without a count."),
    define("offset.metadata.max.bytes", Int, "4096", Between(0, 1 << 20), field!(offset_metadata_max_bytes), ReadOnly,
        "Longest text beside a committed offset."),
    define("offsets.retention.check.interval.ms", Long, "600000", AtLeast(1), field!(offsets_retention_check_interval_ms), ReadOnly,
        "How often expired offsets are looked for."),
    define("offsets.retention.minutes", Int, "10080", AtLeast(1), Access::Field(
            |c| (c.offsets_retention_ms / 60_000).to_string(),
            |c, value| c.offsets_retention_ms = 60_000 * number::<i64>(value),
        ), ReadOnly,
        "How long the offsets of a group without members are kept."),
    define("offsets.topic.num.partitions", Int, "50", Between(1, 1000), field!(offsets_topic_num_partitions), ReadOnly,
        "Partitions of __consumer_offsets, fixed when a data folder is made."),
    define("offsets.topic.replication.factor", Short, "1", Between(1, 1), Access::Kept, ReadOnly,
        "Replicas of __consumer_offsets. Only 1: there is one broker."),
    define("producer.id.expiration.check.interval.ms", Int, "600000", AtLeast(1), field!(producer_id_expiration_check_interval_ms), ReadOnly,
        "How often idle producers are looked for."),
    define("producer.id.expiration.ms", Int, "86400000", AtLeast(1), field!(producer_id_expiration_ms), ClusterWide,
        "How long a partition remembers a producer that writes no more."),
    define("replica.alter.log.dirs.io.max.bytes.per.second", Long, "", AtLeast(0), Access::Kept, ClusterWide,
        "Bytes a second of replicas that move to another folder. Without effect."),
    define("sasl.kerberos.min.time.before.relogin", Long, "60000", Any, Access::Kept, PerBroker,
        "How long the broker's own Kerberos login is kept at least. Without effect."),
    define("transaction.abort.timed.out.transaction.cleanup.interval.ms", Int, "10000", AtLeast(1), field!(transaction_abort_interval_ms), ReadOnly,
        "How often transactions past their timeout are looked for."),
    define("transaction.max.timeout.ms", Int, "900000", Between(1, 2_147_483_646), field!(transaction_max_timeout_ms), ReadOnly,
        "The longest transaction that a client may ask for."),
    define("transaction.partition.verification.enable", Boolean, "true", Any, field!(transaction_partition_verification_enable as bool), ClusterWide,
        "Whether a transactional Produce of older clients must find its partition in the transaction."),
    define("transaction.remove.expired.transaction.cleanup.interval.ms", Int, "3600000", AtLeast(1), field!(transactional_id_cleanup_interval_ms), ReadOnly,
        "How often expired transactional ids are looked for."),
    define("transaction.state.log.min.isr", Int, "1", Between(1, 1), Access::Kept, ReadOnly,
        "Replicas of __transaction_state that a write waits for. Only 1: there is one broker."),
    define("transaction.state.log.num.partitions", Int, "50", Between(1, 1000), field!(transaction_state_log_num_partitions), ReadOnly,
        "Partitions of __transaction_state, fixed when a data folder is made."),
    define("transaction.state.log.replication.factor", Short, "1", Between(1, 1), Access::Kept, ReadOnly,
        "Replicas of __transaction_state. Only 1: there is one broker."),
    define("transaction.v1.connection.fence.enable", Boolean, "true", Any, field!(connection_fence_enable as bool), ReadOnly,
        "Whether a v1 transactional request that arrives late on an older connection is cut. Ottla's own."),
    define("transaction.v1.enable", Boolean, "true", Any, field!(transaction_v1_enable as bool), ReadOnly,
        "Whether transactions of protocol v1 are served; off, only clients of v2 (KIP-890) can use them. Ottla's own."),
    define("transactional.id.expiration.ms", Int, "604800000", AtLeast(1), field!(transactional_id_expiration_ms), ReadOnly,
        "How long a transactional id without a transaction is remembered."),
    define("unclean.leader.election.enable", Boolean, "false", Any, Access::Kept, ClusterWide,
        "Default of unclean.leader.election.enable of a topic."),
];
