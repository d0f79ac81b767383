//! The transaction coordinator (KIP-98, KIP-360, KIP-447, KIP-664, KIP-890): which producer speaks for a
//! transactional id, what its transaction consists of, and how it ends.
//!
//! Place in the walk: `shard/dispatch` calls the handlers, one file each; they read [`Coordinator`], refuse or
//! write records; `shard/apply` hands the records back to [`Coordinator::apply`], the only way it changes. All of
//! a decision, markers and offsets included, is one group of entries: the shard owns every partition, so a
//! decision is complete before anybody can look.
//!
//! Files: `state` (what is known, legal transitions), `record` (its form in the log), `coordinator` (the table),
//! `refusal` (why not, and Kafka's codes), `init_producer_id`, `add_partitions`, `end_txn`, `complete` (markers),
//! `sweep` (timeouts, expiry), `describe`, `write_markers` (operators), `fence` (late connections).
//!
//! Not here: the offsets in a transaction (`group/`), a producer's sequences (`partition/`), authorisation and
//! the age of queued requests (the broker).

mod add_partitions;
mod complete;
mod coordinator;
mod describe;
mod end_txn;
pub(crate) mod fence;
mod init_producer_id;
mod record;
mod refusal;
mod state;
mod sweep;
mod write_markers;

#[cfg(test)]
pub(crate) mod tests;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::{Text, TopicIdPartition};

pub(crate) use add_partitions::{add_offsets_to_txn, add_partitions_to_txn};
pub(crate) use coordinator::Coordinator;
pub(crate) use describe::{describe_transactions, list_transactions};
pub(crate) use end_txn::end_txn;
pub(crate) use init_producer_id::init_producer_id;
pub(crate) use refusal::{Refusal, Through};
pub(crate) use state::{Pair, Transaction};
pub(crate) use sweep::tick;
pub(crate) use write_markers::write_txn_markers;

use crate::cluster;
use crate::command::{ConnectionId, Context};
use crate::decision::Reply;
use crate::shard::{ShardState, Step};

impl ShardState {
    /// Requests of protocol v1 that were dropped as late since this tenure began. Healthy clients cause none
    /// (ADR 0006 names the one exception).
    pub fn late_requests(&self) -> u64 {
        self.volatile.fence.cut()
    }

    /// Requests of protocol v1 that looked late and were not, since their sender was still there.
    pub fn late_requests_let_through(&self) -> u64 {
        self.volatile.fence.let_through()
    }

    /// A request that was answered [`Reply::Late`] is dropped, since its peer has closed the connection.
    pub fn late_request_dropped(&mut self) {
        self.volatile.fence.count_cut();
    }
}

/// Whether the open transaction of this producer has the partition, for a Produce of protocol v1. Coordinator's
/// codes: 49, 51, 90, 120.
pub(crate) fn verify(
    state: &ShardState,
    transactional_id: &Text,
    producer_id: i64,
    producer_epoch: i16,
    partition: TopicIdPartition,
) -> Result<(), ErrorCode> {
    check(state, transactional_id, Pair { producer_id, producer_epoch }, &partition)
        .map_err(|refusal| refusal.code(Through::Coordinator, i16::MAX))
}

/// As [`verify`], with the reason instead of a code.
pub(crate) fn check(
    state: &ShardState,
    transactional_id: &Text,
    pair: Pair,
    partition: &TopicIdPartition,
) -> Result<(), Refusal> {
    add_partitions::check(state.transactions.get(transactional_id), pair, partition)
}

/// Adds partitions to the transaction of this producer, for a Produce of protocol v2; begins the transaction if
/// none is open. Coordinator's codes: 42, 44, 49, 51, 90.
pub(crate) fn add_partitions(
    step: &mut Step<'_>,
    transactional_id: &Text,
    producer_id: i64,
    producer_epoch: i16,
    client_transaction_version: i16,
    partitions: &[TopicIdPartition],
) -> Result<(), ErrorCode> {
    add(step, transactional_id, Pair { producer_id, producer_epoch }, client_transaction_version, partitions)
        .map_err(|refusal| refusal.code(Through::Coordinator, i16::MAX))
}

/// As [`add_partitions`], with the reason instead of a code.
pub(crate) fn add(
    step: &mut Step<'_>,
    transactional_id: &Text,
    pair: Pair,
    client_transaction_version: i16,
    partitions: &[TopicIdPartition],
) -> Result<(), Refusal> {
    if transactional_id.is_empty() {
        return Err(Refusal::InvalidRequest);
    }
    add_partitions::add(step, transactional_id, pair, client_transaction_version, partitions)
}

/// Whether [`add`] would succeed. Nothing changes.
pub(crate) fn may_add(
    state: &ShardState,
    transactional_id: &Text,
    pair: Pair,
    partitions: &[TopicIdPartition],
) -> Result<(), Refusal> {
    add_partitions::plan(state, transactional_id, pair, partitions).map(drop)
}

/// Writes the next state of an id, which applies it.
fn write(step: &mut Step<'_>, next: &Transaction) {
    let partition = log_partition(step.state, &next.transactional_id);
    let topics = &step.state.topics;
    let record = record::encode(next, |id| topics.by_id(id).map_or(Text::EMPTY, |topic| topic.name.clone()));
    step.append_records(partition, &[record], crate::shard::Stamp::NONE);
}

/// The partition of `__transaction_state` that keeps an id.
fn log_partition(state: &ShardState, transactional_id: &str) -> TopicIdPartition {
    let topic = state.topics.transaction_state().expect("a folder is bootstrapped before it is served");
    let partition = cluster::coordinator_partition(transactional_id, topic.partition_count);
    TopicIdPartition { topic_id: topic.id, partition }
}

/// A partition by its topic's name; `None` when there is none.
fn resolve(state: &ShardState, topic: &str, partition: i32) -> Option<TopicIdPartition> {
    state.topics.by_name(topic)?.partition(partition)
}

/// What a coordinator request of protocol v1 is answered if it is late, or looks so: its pair is the current one, and
/// a newer connection has spoken for it.
fn late(step: &mut Step<'_>, id: &Text, pair: Pair, context: &Context) -> Option<Reply> {
    let is_current = step.state.transactions.get(id).is_some_and(|transaction| transaction.pair() == pair);
    let fence = &mut step.state.volatile.fence;
    if !is_current || !fence.late_for_id(id, pair, context) {
        return None;
    }
    if fence.is_left_behind(id, pair, context.connection) {
        fence.count_cut();
        return Some(Reply::Close("a connection of transactions v1 that another one has taken over from"));
    }
    Some(LATE)
}

/// Notes the connection of a coordinator request of protocol v1, if its pair is the current one.
fn note_connection(step: &mut Step<'_>, id: &Text, pair: Pair, connection: ConnectionId) {
    if step.state.transactions.get(id).is_some_and(|transaction| transaction.pair() == pair) {
        step.state.volatile.fence.note_id(id, pair, connection);
    }
}

/// The answer to what looks late: none, and the end of its connection, once it is known that its client has left.
pub(crate) const LATE: Reply =
    Reply::Late("late request of an older connection for a transaction of protocol v1");
