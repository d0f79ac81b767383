//! What a shard's state machine is configured with: Kafka's settings by Kafka's names, and the bounds on every
//! collection that a client can make grow.
//!
//! Place in the walk: built once by the broker from its own settings, handed to [`crate::ShardState::new`] and
//! [`crate::Restore::new`]. Nothing here is durable; what must be durable is a record.

use crate::cluster::config::{self, Kept, TopicConfig};

/// Settings and bounds of a shard. All times are milliseconds, all sizes bytes.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// `node.id` of this broker, named in config answers and as the only replica of everything.
    pub node_id: i32,
    /// Seed of every hash table. Different per start, so that clients cannot choose colliding keys; its value
    /// never shows in a decision.
    pub hash_seed: u64,
    /// `num.partitions`: partitions of a topic created without a count. 1 and more.
    pub num_partitions: i32,
    /// `offsets.topic.num.partitions`, fixed when a folder is made. 1 to 1000.
    pub offsets_topic_num_partitions: i32,
    /// `transaction.state.log.num.partitions`, fixed when a folder is made. 1 to 1000.
    pub transaction_state_log_num_partitions: i32,
    /// `auto.create.topics.enable`: whether Metadata may create topics.
    pub auto_create_topics_enable: bool,
    /// `delete.topic.enable`: whether DeleteTopics may delete.
    pub delete_topic_enable: bool,
    /// `max.connections`: connections at once. 1 to 1,000,000. The core keeps this and the next three because they
    /// may change while the broker runs; the listener takes them from the image.
    pub max_connections: i32,
    /// `max.connections.per.ip`: of one address.
    pub max_connections_per_ip: i32,
    /// `max.connections.per.ip.overrides`: another such number for some addresses, `ADDRESS:NUMBER` with commas.
    pub max_connections_per_ip_overrides: String,
    /// `max.connection.creation.rate`: accepted in a second. `i32::MAX` for any number.
    pub max_connection_creation_rate: i32,
    /// `transaction.max.timeout.ms`: the longest transaction a client may ask for.
    pub transaction_max_timeout_ms: i32,
    /// `transactional.id.expiration.ms`: an id without a transaction is forgotten after this time.
    pub transactional_id_expiration_ms: i64,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`: how often transactions past their
    /// timeout are looked for.
    pub transaction_abort_interval_ms: i64,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`: how often expired ids are looked for.
    pub transactional_id_cleanup_interval_ms: i64,
    /// `transaction.partition.verification.enable`: whether a transactional Produce of protocol v1 must find
    /// its partition in the transaction (KIP-890 part 1). Never off by default.
    pub transaction_partition_verification_enable: bool,
    /// Whether transactions of protocol v1 are served. Off, their AddPartitionsToTxn and AddOffsetsToTxn are
    /// refused, for operators who want what only v2 can prove (eos-semantics, section 8).
    pub transaction_v1_enable: bool,
    /// `producer.id.expiration.ms`: a producer without an open transaction is forgotten by a partition after
    /// this time without an append, by the broker's own time.
    pub producer_id_expiration_ms: i64,
    /// `producer.id.expiration.check.interval.ms`: how often such producers are looked for.
    pub producer_id_expiration_check_interval_ms: i64,
    /// `log.retention.check.interval.ms`: how often it is looked for records that need not be kept.
    pub log_retention_check_interval_ms: i64,
    /// `log.cleaner.enable`: whether topics are compacted.
    pub log_cleaner_enable: bool,
    /// `log.cleaner.backoff.ms`: how long the cleaner waits when it has found nothing to do.
    pub log_cleaner_backoff_ms: i64,
    /// `log.cleaner.dedupe.buffer.size`: memory for the last offset of every key, bytes.
    pub log_cleaner_dedupe_buffer_bytes: i64,
    /// `log.cleaner.io.max.bytes.per.second`: read and written by the cleaner; `f64::MAX` for no limit.
    pub log_cleaner_io_max_bytes_per_second: f64,
    /// `offset.metadata.max.bytes`: longest metadata text of a committed offset.
    pub offset_metadata_max_bytes: i32,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`: how often expired offsets are looked for.
    pub offsets_retention_check_interval_ms: i64,
    /// `group.consumer.session.timeout.ms`: how long a member of a consumer group (KIP-848) may be silent.
    pub group_consumer_session_timeout_ms: i32,
    /// `group.consumer.min.session.timeout.ms`: the shortest such time that may be set.
    pub group_consumer_min_session_timeout_ms: i32,
    /// `group.consumer.max.session.timeout.ms`: the longest such time that may be set.
    pub group_consumer_max_session_timeout_ms: i32,
    /// `group.consumer.heartbeat.interval.ms`: how often members are told to send heartbeats.
    pub group_consumer_heartbeat_interval_ms: i32,
    /// `group.consumer.min.heartbeat.interval.ms`: the shortest such time that may be set for a group.
    pub group_consumer_min_heartbeat_interval_ms: i32,
    /// `group.consumer.max.heartbeat.interval.ms`: the longest such time that may be set for a group.
    pub group_consumer_max_heartbeat_interval_ms: i32,
    /// `group.consumer.max.size`: members of one consumer group; also bounded by the limits.
    pub group_consumer_max_size: i32,
    /// `group.consumer.assignors`: names of the assignors that members may ask for, separated by commas, the
    /// default one first.
    pub group_consumer_assignors: String,
    /// `group.consumer.migration.policy`: whether groups change their protocol while they have members.
    pub group_consumer_migration_policy: MigrationPolicy,
    /// `group.initial.rebalance.delay.ms`: how long the first join phase of an empty group waits for more
    /// members.
    pub group_initial_rebalance_delay_ms: i32,
    /// `group.min.session.timeout.ms`: the shortest session that a member may ask for.
    pub group_min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`: the longest one.
    pub group_max_session_timeout_ms: i32,
    /// `group.max.size`: members of one group; also bounded by the limits.
    pub group_max_size: i32,
    /// Whether requests of protocol v1 that arrive late on an older connection are cut (eos-semantics, section
    /// 8): the connection is closed without an answer.
    pub connection_fence_enable: bool,
    /// Grace after a start before any transaction may be timed out; also bounded by its own timeout.
    pub timeout_grace_after_start_ms: i64,
    /// Defaults of topics (`log.retention.ms`, `message.max.bytes`, ...), and what can be set without effect.
    pub kept: Kept,
    /// Bounds on what clients can make grow.
    pub limits: Limits,
}

impl CoreConfig {
    /// What in these settings contradicts itself, though each value alone is allowed. The error names the
    /// settings.
    ///
    /// # Errors
    /// The text says what should hold.
    pub fn check(&self) -> Result<(), String> {
        let number = |name: &str| -> Option<i64> {
            config::broker_definition(name)?.get(self)?.parse().ok() // none: not set, which is no contradiction
        };
        let not_above = |least: &str, most: &str| match (number(least), number(most)) {
            (Some(one), Some(other)) if one > other => {
                Err(format!("{least} ({one}) is not above {most} ({other})"))
            }
            _ => Ok(()),
        };
        not_above("group.min.session.timeout.ms", "group.max.session.timeout.ms")?;
        for what in ["session.timeout.ms", "heartbeat.interval.ms"] {
            let value = format!("group.consumer.{what}");
            not_above(&format!("group.consumer.min.{what}"), &value)?;
            not_above(&value, &format!("group.consumer.max.{what}"))?;
        }
        not_above("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms")?;
        if self.max_connections_per_ip == 0 && self.max_connections_per_ip_overrides.is_empty() {
            return Err("max.connections.per.ip is 0 only beside max.connections.per.ip.overrides".to_owned());
        }
        let defaults = TopicConfig::default().with_defaults(&self.kept);
        for (name, local, whole) in [
            ("ms", number("log.local.retention.ms"), defaults.retention_ms),
            ("bytes", number("log.local.retention.bytes"), defaults.retention_bytes),
        ] {
            let local = local.unwrap_or(-2);
            if whole >= 0 && local != -2 && !(0..=whole).contains(&local) {
                return Err(format!(
                    "log.local.retention.{name} is not above log.retention.{name} ({whole})"
                ));
            }
        }
        Ok(())
    }
}

/// Which groups may change their protocol while they have members (KIP-848).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrationPolicy {
    /// Classic groups become consumer groups when a consumer joins, and back when the last one leaves.
    #[default]
    Bidirectional,
    /// Only to consumer groups.
    Upgrade,
    /// Only to classic groups.
    Downgrade,
    /// None.
    Disabled,
}

impl MigrationPolicy {
    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bidirectional => "bidirectional",
            Self::Upgrade => "upgrade",
            Self::Downgrade => "downgrade",
            Self::Disabled => "disabled",
        }
    }

    /// The policy with this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Bidirectional, Self::Upgrade, Self::Downgrade, Self::Disabled];
        all.into_iter().find(|policy| policy.name().eq_ignore_ascii_case(name))
    }

    /// Whether a classic group may become a consumer group.
    pub fn upgrades(self) -> bool {
        matches!(self, Self::Bidirectional | Self::Upgrade)
    }

    /// Whether a consumer group may become a classic group.
    pub fn downgrades(self) -> bool {
        matches!(self, Self::Bidirectional | Self::Downgrade)
    }
}

/// Ceilings: what would pass one is refused, and nothing alive is ever forgotten to make room.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Partitions in one transaction, and so entries in one commit's decision.
    pub transaction_partitions_max: usize,
    /// Producers remembered by all partitions together (`max.producers`).
    pub producers_max: usize,
    /// The same for what one principal has brought (`max.producers.per.principal`).
    pub producers_per_principal_max: usize,
    /// Transactional ids (`max.transactional.ids`).
    pub transactional_ids_max: usize,
    /// The same for what one principal has brought (`max.transactional.ids.per.principal`).
    pub transactional_ids_per_principal_max: usize,
    /// Transactions that are open at once (`max.open.transactions`).
    pub open_transactions_max: usize,
    /// The same for those of one principal (`max.open.transactions.per.principal`).
    pub open_transactions_per_principal_max: usize,
    /// Partitions of all transactions together.
    pub transactions_partitions_max: usize,
    /// Groups.
    pub groups_max: usize,
    /// Committed and pending offsets of all groups together.
    pub group_offsets_max: usize,
    /// Members of one group, and ids given out that wait for theirs.
    pub group_members_max: usize,
    /// Bytes of metadata and assignments of one classic group, and so the size of its record.
    pub group_metadata_bytes_max: usize,
    /// Members and ids given out of all classic groups together.
    pub groups_members_max: usize,
    /// Bytes of metadata and assignments of all classic groups together.
    pub groups_metadata_bytes_max: usize,
    /// Topics.
    pub topics_max: usize,
    /// Partitions of all topics together, internal ones included.
    pub partitions_max: usize,
    /// Partitions of one topic.
    pub topic_partitions_max: i32,
    /// Topics that one request creates: each is answered with all of its settings.
    pub topics_per_request_max: usize,
    /// Groups that have settings of their own, whether they exist or not.
    pub group_configs_max: usize,
    /// Bytes of one config value.
    pub config_value_bytes_max: usize,
    /// Leader epochs remembered by one partition; the oldest go first.
    pub leader_epochs_max: usize,
    /// Connection fence marks of one kind; the oldest go first (a missing mark only lets a request pass).
    pub fence_marks_max: usize,
    /// Refused verifications that are remembered to keep later sequences from overtaking.
    pub verifications_max: usize,
}

impl Limits {
    /// Producers that one principal may have the partitions remember. There is one principal, `ANONYMOUS`, so what all
    /// have together is what it has; the same holds for the next two.
    pub(crate) fn producers(&self) -> usize {
        self.producers_max.min(self.producers_per_principal_max)
    }

    /// Transactional ids that one principal may have.
    pub(crate) fn transactional_ids(&self) -> usize {
        self.transactional_ids_max.min(self.transactional_ids_per_principal_max)
    }

    /// Transactions that one principal may have open.
    pub(crate) fn open_transactions(&self) -> usize {
        self.open_transactions_max.min(self.open_transactions_per_principal_max)
    }
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            node_id: 1,
            hash_seed: 0,
            num_partitions: 1,
            offsets_topic_num_partitions: 50,
            transaction_state_log_num_partitions: 50,
            auto_create_topics_enable: true,
            delete_topic_enable: true,
            max_connections: 20_000,
            max_connections_per_ip: i32::MAX,
            max_connections_per_ip_overrides: String::new(),
            max_connection_creation_rate: i32::MAX,
            transaction_max_timeout_ms: 900_000,
            transactional_id_expiration_ms: 604_800_000,
            transaction_abort_interval_ms: 10_000,
            transactional_id_cleanup_interval_ms: 3_600_000,
            transaction_partition_verification_enable: true,
            transaction_v1_enable: true,
            producer_id_expiration_ms: 86_400_000,
            producer_id_expiration_check_interval_ms: 600_000,
            offset_metadata_max_bytes: 4096,
            log_retention_check_interval_ms: 300_000,
            log_cleaner_enable: true,
            log_cleaner_backoff_ms: 15_000,
            log_cleaner_dedupe_buffer_bytes: 134_217_728,
            log_cleaner_io_max_bytes_per_second: f64::MAX,
            offsets_retention_ms: 10_080 * 60_000,
            offsets_retention_check_interval_ms: 600_000,
            group_consumer_session_timeout_ms: 45_000,
            group_consumer_min_session_timeout_ms: 45_000,
            group_consumer_max_session_timeout_ms: 60_000,
            group_consumer_heartbeat_interval_ms: 5000,
            group_consumer_min_heartbeat_interval_ms: 5000,
            group_consumer_max_heartbeat_interval_ms: 15_000,
            group_consumer_max_size: i32::MAX,
            group_consumer_assignors: "uniform,range".to_owned(),
            group_consumer_migration_policy: MigrationPolicy::Bidirectional,
            group_initial_rebalance_delay_ms: 3000,
            group_min_session_timeout_ms: 6000,
            group_max_session_timeout_ms: 1_800_000,
            group_max_size: i32::MAX,
            connection_fence_enable: true,
            timeout_grace_after_start_ms: 10_000,
            kept: Kept::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            transaction_partitions_max: 10_000,
            producers_max: 2_000_000,
            producers_per_principal_max: i32::MAX as usize,
            transactional_ids_max: 1_000_000,
            transactional_ids_per_principal_max: i32::MAX as usize,
            open_transactions_max: 100_000,
            open_transactions_per_principal_max: i32::MAX as usize,
            transactions_partitions_max: 2_000_000,
            groups_max: 100_000,
            group_offsets_max: 2_000_000,
            group_members_max: 10_000,
            group_metadata_bytes_max: 8 << 20,
            groups_members_max: 1_000_000,
            groups_metadata_bytes_max: 256 << 20,
            topics_max: 20_000,
            partitions_max: 100_000,
            topic_partitions_max: 10_000,
            topics_per_request_max: 1000,
            group_configs_max: 10_000,
            config_value_bytes_max: 4096,
            leader_epochs_max: 1024,
            fence_marks_max: 100_000,
            verifications_max: 100_000,
        }
    }
}
