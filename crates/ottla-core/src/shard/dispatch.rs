//! The one match from a command to its handler.
//!
//! Place in the walk: the first thing of a step. A handler answers through the step, once per command.

use super::Step;
use crate::cluster;
use crate::command::{Command, CommandBody};
use crate::partition::{self, expiry};
use crate::{group, produce, txn};

/// Decides a command.
pub(super) fn dispatch(step: &mut Step<'_>, command: Command) {
    let Command { context, body } = command;
    match body {
        CommandBody::Produce(request) => produce::produce(step, &context, request),
        CommandBody::InitProducerId(request) => txn::init_producer_id(step, &context, request),
        CommandBody::AddPartitionsToTxn(request) => txn::add_partitions_to_txn(step, &context, request),
        CommandBody::AddOffsetsToTxn(request) => txn::add_offsets_to_txn(step, &context, request),
        CommandBody::EndTxn(request) => txn::end_txn(step, &context, request),
        CommandBody::TxnOffsetCommit(request) => group::txn_offset_commit(step, &context, request),
        CommandBody::WriteTxnMarkers(request) => txn::write_txn_markers(step, &context, request),
        CommandBody::DescribeTransactions(request) => txn::describe_transactions(step, &context, request),
        CommandBody::ListTransactions(request) => txn::list_transactions(step, &context, request),
        CommandBody::DescribeProducers(request) => partition::describe_producers(step, &context, request),
        CommandBody::OffsetCommit(request) => group::offset_commit(step, &context, request),
        CommandBody::OffsetFetch(request) => group::offset_fetch(step, &context, request),
        CommandBody::JoinGroup(request) => group::join_group(step, &context, request),
        CommandBody::SyncGroup(request) => group::sync_group(step, &context, request),
        CommandBody::Heartbeat(request) => group::heartbeat(step, &context, request),
        CommandBody::LeaveGroup(request) => group::leave_group(step, &context, request),
        CommandBody::DescribeGroups(request) => group::describe_groups(step, &context, request),
        CommandBody::ListGroups(request) => group::list_groups(step, &context, request),
        CommandBody::DeleteGroups(request) => group::delete_groups(step, &context, request),
        CommandBody::OffsetDelete(request) => group::offset_delete(step, &context, request),
        CommandBody::ConsumerGroupHeartbeat(request) => {
            group::consumer_group_heartbeat(step, &context, request)
        }
        CommandBody::ConsumerGroupDescribe(request) => {
            group::consumer_group_describe(step, &context, request)
        }
        CommandBody::CreateTopics(request) => cluster::create_topics(step, &context, request),
        CommandBody::DeleteTopics(request) => cluster::delete_topics(step, &context, request),
        CommandBody::DeleteRecords(request) => cluster::delete_records(step, &context, request),
        CommandBody::IncrementalAlterConfigs(request) => {
            cluster::incremental_alter_configs(step, &context, request);
        }
        CommandBody::AlterConfigs(request) => cluster::alter_configs(step, &context, request),
        CommandBody::CreatePartitions(request) => cluster::create_partitions(step, &context, request),
        CommandBody::UpdateFeatures(request) => cluster::update_features(step, &context, request),
        CommandBody::AutoCreateTopics(names) => cluster::auto_create_topics(step, &context, names),
        CommandBody::Bootstrap { cluster_id, topic_ids } => {
            cluster::bootstrap(step, &context, cluster_id, topic_ids);
        }
        CommandBody::Cleaned(passes) => cluster::cleaned(step, &context, &passes),
        CommandBody::MoveLogStarts(wanted) => cluster::move_log_starts(step, &context, wanted),
        CommandBody::Tick => tick(step),
        // Only members of groups wait for a connection here. What the connection had asked and nobody decided
        // is in the shell's inbox, and dropped there.
        CommandBody::ConnectionClosed(connection) => group::connection_closed(step, connection),
    }
}

/// Fires what is due.
fn tick(step: &mut Step<'_>) {
    expiry::tick(step);
    txn::tick(step);
    group::tick(step);
}
