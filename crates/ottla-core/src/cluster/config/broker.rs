//! The core's settings of a broker: which there are, which can change while it runs, and what they are now.

use std::collections::BTreeMap;

use ottla_protocol::types::Text;

use super::ConfigType::{Boolean, Int, List, Long, String as Words};
use super::Rule::{Any, AtLeast, Between, OneOf};
use super::{ConfigSource, ConfigType, Definition, Rule};
use crate::cluster::EVERY_BROKER;
use crate::config::CoreConfig;

/// How a setting is put into the config: `None` when it cannot change while the broker runs.
type Setter = Option<fn(&mut CoreConfig, &str)>;

/// Of settings that mean nothing here but are Kafka's: they can be set and read back, so that tools go on.
const WITHOUT_EFFECT: Setter = Some(|_, _| {});

/// A setting of the broker that the core knows.
#[derive(Debug)]
pub struct BrokerDefinition {
    /// What it is.
    pub definition: Definition,
    get: fn(&CoreConfig) -> String,
    set: Setter,
}

impl BrokerDefinition {
    /// Kafka's name.
    pub fn name(&self) -> &'static str {
        self.definition.name
    }

    /// Whether it can change while the broker runs.
    pub fn is_dynamic(&self) -> bool {
        self.set.is_some()
    }

    /// Its value in a config, as text.
    pub(crate) fn get(&self, config: &CoreConfig) -> String {
        (self.get)(config)
    }

    /// Puts a checked value into a config. Without effect for a setting that is not dynamic.
    pub(crate) fn set(&self, config: &mut CoreConfig, value: &str) {
        if let Some(set) = self.set {
            set(config, value.trim());
        }
    }
}

/// A setting with its value, for listings.
#[derive(Clone, Debug)]
pub struct BrokerSetting {
    /// What it is.
    pub definition: &'static Definition,
    /// Whether it can change while the broker runs.
    pub dynamic: bool,
    /// The value in force, as text.
    pub value: String,
    /// Where the value comes from.
    pub source: ConfigSource,
    /// Every value that there is, the one in force first.
    pub synonyms: Vec<(ConfigSource, String)>,
}

const fn define(
    name: &'static str,
    kind: ConfigType,
    default: &'static str,
    rule: Rule,
    get: fn(&CoreConfig) -> String,
    set: Setter,
    documentation: &'static str,
) -> BrokerDefinition {
    let definition = Definition { name, kind, default, rule, synonym: Some(name), documentation };
    BrokerDefinition { definition, get, set }
}

#[rustfmt::skip] // a table
static BROKER_DEFINITIONS: &[BrokerDefinition] = &[
    define("auto.create.topics.enable", Boolean, "true", Any, |c| c.auto_create_topics_enable.to_string(), None,
        "Whether a client that asks for a topic makes it."),
    define("background.threads", Int, "10", AtLeast(1), |_| "10".to_owned(), WITHOUT_EFFECT,
        "Threads for chores. Without effect."),
    define("group.consumer.assignors", List, "uniform,range", Any, |c| c.group_consumer_assignors.clone(), None,
        "Assignors of consumer groups, the default one first."),
    define("group.consumer.heartbeat.interval.ms", Int, "5000", AtLeast(1),
        |c| c.group_consumer_heartbeat_interval_ms.to_string(), None,
        "How often members of consumer groups are told to send heartbeats."),
    define("group.consumer.max.heartbeat.interval.ms", Int, "15000", AtLeast(1),
        |c| c.group_consumer_max_heartbeat_interval_ms.to_string(), None,
        "The longest interval of heartbeats that may be set."),
    define("group.consumer.max.session.timeout.ms", Int, "60000", AtLeast(1),
        |c| c.group_consumer_max_session_timeout_ms.to_string(), None,
        "The longest time that may be set for members of consumer groups to be silent."),
    define("group.consumer.max.size", Int, "2147483647", AtLeast(1), |c| c.group_consumer_max_size.to_string(), None,
        "Members of one consumer group."),
    define("group.consumer.migration.policy", Words, "bidirectional",
        OneOf(&["bidirectional", "disabled", "downgrade", "upgrade"]),
        |c| c.group_consumer_migration_policy.name().to_owned(), None,
        "Which groups may change their protocol while they have members."),
    define("group.consumer.min.heartbeat.interval.ms", Int, "5000", AtLeast(1),
        |c| c.group_consumer_min_heartbeat_interval_ms.to_string(), None,
        "The shortest interval of heartbeats that may be set."),
    define("group.consumer.min.session.timeout.ms", Int, "45000", AtLeast(1),
        |c| c.group_consumer_min_session_timeout_ms.to_string(), None,
        "The shortest time that may be set for members of consumer groups to be silent."),
    define("group.consumer.session.timeout.ms", Int, "45000", AtLeast(1),
        |c| c.group_consumer_session_timeout_ms.to_string(), None,
        "How long a member of a consumer group may be silent."),
    define("group.initial.rebalance.delay.ms", Int, "3000", AtLeast(0),
        |c| c.group_initial_rebalance_delay_ms.to_string(), None,
        "How long the first rebalance of an empty group waits for more members."),
    define("group.max.session.timeout.ms", Int, "1800000", AtLeast(1),
        |c| c.group_max_session_timeout_ms.to_string(), None,
        "The longest session timeout that a member of a classic group may ask for."),
    define("group.max.size", Int, "2147483647", AtLeast(1), |c| c.group_max_size.to_string(), None,
        "Members that a classic group may have."),
    define("group.min.session.timeout.ms", Int, "6000", AtLeast(1),
        |c| c.group_min_session_timeout_ms.to_string(), None,
        "The shortest session timeout that a member of a classic group may ask for."),
    define("num.partitions", Int, "1", AtLeast(1), |c| c.num_partitions.to_string(), None,
        "Partitions of a topic that is created without a count."),
    define("offset.metadata.max.bytes", Int, "4096", AtLeast(0), |c| c.offset_metadata_max_bytes.to_string(), None,
        "Longest text beside a committed offset."),
    define("offsets.retention.check.interval.ms", Long, "600000", AtLeast(1),
        |c| c.offsets_retention_check_interval_ms.to_string(), None,
        "How often expired offsets are looked for."),
    define("offsets.retention.minutes", Int, "10080", AtLeast(1), |c| (c.offsets_retention_ms / 60_000).to_string(), None,
        "How long the offsets of a group without members are kept."),
    define("offsets.topic.num.partitions", Int, "50", Between(1, 1000),
        |c| c.offsets_topic_num_partitions.to_string(), None,
        "Partitions of __consumer_offsets, fixed when a data folder is made."),
    define("producer.id.expiration.check.interval.ms", Int, "600000", AtLeast(1),
        |c| c.producer_id_expiration_check_interval_ms.to_string(), None,
        "How often idle producers are looked for."),
    define("producer.id.expiration.ms", Int, "86400000", AtLeast(1), |c| c.producer_id_expiration_ms.to_string(),
        Some(|c, value| c.producer_id_expiration_ms = value.parse().expect("values were checked")),
        "How long a partition remembers a producer that writes no more."),
    define("sasl.kerberos.min.time.before.relogin", Long, "60000", Any, |_| "60000".to_owned(), WITHOUT_EFFECT,
        "How long the broker's own Kerberos login is kept at least. Without effect."),
    define("transaction.abort.timed.out.transaction.cleanup.interval.ms", Int, "10000", AtLeast(1),
        |c| c.transaction_abort_interval_ms.to_string(), None,
        "How often transactions past their timeout are looked for."),
    define("transaction.max.timeout.ms", Int, "900000", AtLeast(1), |c| c.transaction_max_timeout_ms.to_string(), None,
        "The longest transaction that a client may ask for."),
    define("transaction.partition.verification.enable", Boolean, "true", Any,
        |c| c.transaction_partition_verification_enable.to_string(),
        Some(|c, value| c.transaction_partition_verification_enable = value.eq_ignore_ascii_case("true")),
        "Whether a transactional Produce of older clients must find its partition in the transaction."),
    define("transaction.remove.expired.transaction.cleanup.interval.ms", Int, "3600000", AtLeast(1),
        |c| c.transactional_id_cleanup_interval_ms.to_string(), None,
        "How often expired transactional ids are looked for."),
    define("transaction.state.log.num.partitions", Int, "50", Between(1, 1000),
        |c| c.transaction_state_log_num_partitions.to_string(), None,
        "Partitions of __transaction_state, fixed when a data folder is made."),
    define("transactional.id.expiration.ms", Int, "604800000", AtLeast(1),
        |c| c.transactional_id_expiration_ms.to_string(), None,
        "How long a transactional id without a transaction is remembered."),
];

/// The core's settings of a broker, by name.
pub fn broker_definitions() -> &'static [BrokerDefinition] {
    BROKER_DEFINITIONS
}

/// The core's setting of a broker with this name.
pub fn broker_definition(name: &str) -> Option<&'static BrokerDefinition> {
    let index = BROKER_DEFINITIONS.binary_search_by(|definition| definition.name().cmp(name)).ok()?;
    BROKER_DEFINITIONS.get(index)
}

/// The settings of a broker, or with `None` those that were set for every broker.
pub fn broker_settings(
    static_config: &CoreConfig,
    dynamic: &BTreeMap<(i32, Text), Text>,
    node_id: Option<i32>,
) -> Vec<BrokerSetting> {
    let mut settings = Vec::new();
    for definition in BROKER_DEFINITIONS {
        let of = |node_id: i32| dynamic.get(&(node_id, definition.name().into())).map(Text::to_string);
        let mut synonyms = Vec::new();
        if let Some(node_id) = node_id {
            synonyms.extend(of(node_id).map(|value| (ConfigSource::DynamicBroker, value)));
        }
        synonyms.extend(of(EVERY_BROKER).map(|value| (ConfigSource::DynamicDefaultBroker, value)));
        if node_id.is_some() {
            let value = definition.get(static_config);
            if value != definition.definition.default {
                synonyms.push((ConfigSource::StaticBroker, value));
            }
            synonyms.push((ConfigSource::Default, definition.definition.default.to_string()));
        }
        let Some((source, value)) = synonyms.first().cloned() else { continue };
        settings.push(BrokerSetting {
            definition: &definition.definition,
            dynamic: definition.is_dynamic(),
            value,
            source,
            synonyms,
        });
    }
    settings
}
