//! The first start of a data folder: the cluster's id, its features and the two internal topics become records.

use std::sync::Arc;

use ottla_protocol::types::{Text, Uuid};

use super::config::TopicConfig;
use super::names::{CONSUMER_OFFSETS, TRANSACTION_STATE};
use super::{GROUP_VERSION, TRANSACTION_VERSION, Topic, records};
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::partition::Role;
use crate::shard::Step;

/// `transaction.version` of a new cluster (ADR: protocol v2 is finalized from the start).
const TRANSACTION_VERSION_LEVEL: i16 = 2;

/// `group.version` of a new cluster: consumer groups.
const GROUP_VERSION_LEVEL: i16 = 1;

/// Makes the cluster, once. `topic_ids` are those of `__consumer_offsets` and `__transaction_state`. A second
/// call changes nothing.
pub(crate) fn bootstrap(step: &mut Step<'_>, context: &Context, cluster_id: Uuid, topic_ids: [Uuid; 2]) {
    assert!(!cluster_id.is_zero(), "a cluster's id is not zero");
    if !step.state.cluster.is_bootstrapped() {
        let config = &step.state.config;
        let [offsets_id, transactions_id] = topic_ids;
        let offsets =
            (CONSUMER_OFFSETS, offsets_id, config.offsets_topic_num_partitions, Role::ConsumerOffsets);
        let transactions = (
            TRANSACTION_STATE,
            transactions_id,
            config.transaction_state_log_num_partitions,
            Role::TransactionState,
        );
        let base_leader_epoch = step.state.shard_epoch.saturating_neg();
        let mut new_records = vec![
            records::cluster(cluster_id),
            records::feature(GROUP_VERSION, GROUP_VERSION_LEVEL),
            records::feature(TRANSACTION_VERSION, TRANSACTION_VERSION_LEVEL),
        ];
        for (name, id, partition_count, role) in [offsets, transactions] {
            new_records.push(records::topic(&Topic {
                name: Text::from_static(name),
                id,
                partition_count,
                role,
                base_leader_epoch,
                config: Arc::new(internal_config()),
                last_position: Position::default(),
            }));
        }
        step.append_control(&new_records);
    }
    let rests_on = step.position();
    step.answer(context.token, Reply::Done, rests_on);
}

/// Internal topics are compacted, uncompressed, and need no index of their own.
fn internal_config() -> TopicConfig {
    let overrides =
        [("cleanup.policy", "compact"), ("compression.type", "producer"), ("segment.bytes", "104857600")];
    TopicConfig::stored(overrides.map(|(name, value)| (Text::from_static(name), Text::from_static(value))))
}
