//! AddPartitionsToTxn and AddOffsetsToTxn, and the additions and checks that Produce and TxnOffsetCommit ask
//! for (KIP-98, KIP-890).
//!
//! Place in the walk: handlers; [`decide`] is eos-semantics 3.4. Versions 0 to 3 come from clients of protocol
//! v1 and name one transaction; version 4 and later are what brokers say to each other.
//!
//! Invariants: a request with one bad partition adds none; what is there already is answered without a write;
//! a transaction begins only here.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use ottla_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use ottla_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
};
use ottla_protocol::types::{Text, TopicIdPartition};

use super::refusal::{Refusal, Through};
use super::state::{Pair, State, Transaction, V1, V2};
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::{ShardState, Step};

/// First version that brokers speak: many transactions, a flag that only asks.
const FIRST_BROKER_VERSION: i16 = 4;

/// What an addition leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Add {
    /// All of it is in the transaction: nothing to write.
    Present,
    /// A record with the union.
    Write,
}

/// The checks of an addition, in Kafka's order: what is being completed is told before identity, since its
/// producer id may be about to change. `partitions` is sorted.
pub(super) fn decide(
    transaction: Option<&Transaction>,
    pair: Pair,
    partitions: &[TopicIdPartition],
) -> Result<Add, Refusal> {
    let transaction = transaction.ok_or(Refusal::WrongProducerId)?;
    if transaction.state.is_prepared() {
        return Err(Refusal::Concurrent);
    }
    check_identity(transaction, pair)?;
    if transaction.state == State::Ongoing && transaction.has_all(partitions) {
        return Ok(Add::Present);
    }
    Ok(Add::Write)
}

fn check_identity(transaction: &Transaction, pair: Pair) -> Result<(), Refusal> {
    if pair.producer_id != transaction.producer_id {
        return Err(Refusal::WrongProducerId);
    }
    if pair.producer_epoch != transaction.producer_epoch {
        return Err(Refusal::Fenced);
    }
    Ok(())
}

/// Whether the pair's transaction is open and has this partition; says why not. Nothing changes.
pub(super) fn check(
    transaction: Option<&Transaction>,
    pair: Pair,
    partition: &TopicIdPartition,
) -> Result<(), Refusal> {
    let transaction = transaction.ok_or(Refusal::WrongProducerId)?;
    check_identity(transaction, pair)?;
    if transaction.state.is_prepared() {
        return Err(Refusal::Concurrent);
    }
    if transaction.state == State::Ongoing && transaction.has_all(std::slice::from_ref(partition)) {
        return Ok(());
    }
    Err(Refusal::NotInTransaction)
}

/// Adds partitions to the transaction of this pair, and begins it if none is open.
pub(super) fn add(
    step: &mut Step<'_>,
    id: &Text,
    pair: Pair,
    client_transaction_version: i16,
    partitions: &[TopicIdPartition],
) -> Result<(), Refusal> {
    let next = match plan(step.state, id, pair, partitions)? {
        None => return Ok(()),
        Some(union) => {
            let transaction = step.state.transactions.get(id).expect("planned");
            transaction.with_partitions(union, client_transaction_version, step.now)
        }
    };
    super::write(step, &next);
    Ok(())
}

/// The union that an addition would write; `None` when all of it is there. Nothing changes.
pub(super) fn plan(
    state: &ShardState,
    id: &Text,
    pair: Pair,
    partitions: &[TopicIdPartition],
) -> Result<Option<Vec<TopicIdPartition>>, Refusal> {
    let mut wanted = partitions.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let transaction = state.transactions.get(id);
    if decide(transaction, pair, &wanted)? == Add::Present {
        return Ok(None);
    }
    let transaction = transaction.expect("decided on it");
    if transaction.state == State::Ongoing {
        // Partitions of topics that are gone are left out: nobody could name them any more.
        wanted.extend(
            transaction.partitions.iter().filter(|there| state.topics.by_id(there.topic_id).is_some()),
        );
        wanted.sort_unstable();
        wanted.dedup();
    }
    let limits = &state.config.limits;
    if wanted.len() > limits.transaction_partitions_max {
        return Err(Refusal::TooManyPartitions);
    }
    if transaction.state != State::Ongoing && state.transactions.open_count() >= limits.open_transactions() {
        return Err(Refusal::TooManyOpen);
    }
    let more = wanted.len().saturating_sub(transaction.partitions.len());
    if state.transactions.partition_count().saturating_add(more) > limits.transactions_partitions_max {
        return Err(Refusal::TooManyPartitions);
    }
    // Every partition of a transaction gets a marker in the end, and so remembers the producer.
    if !state.partitions.has_room_for_producer(limits.producers())
        && !wanted.iter().all(|partition| knows_producer(state, *partition, pair.producer_id))
    {
        return Err(Refusal::TooManyProducers);
    }
    Ok(Some(wanted))
}

/// Whether the partition remembers the producer.
pub(super) fn knows_producer(state: &ShardState, partition: TopicIdPartition, producer_id: i64) -> bool {
    let slot = state.partitions.slot(partition);
    slot.is_some_and(|slot| state.partitions.knows_producer(slot, producer_id))
}

/// The partitions of the request, or which of them do not exist.
struct Resolved {
    partitions: Vec<TopicIdPartition>,
    missing: bool,
}

fn resolve(state: &ShardState, topics: &[AddPartitionsToTxnTopic]) -> Resolved {
    let mut resolved = Resolved { partitions: Vec::new(), missing: false };
    for topic in topics {
        for &partition in &topic.partitions {
            match super::resolve(state, &topic.name, partition) {
                Some(found) => resolved.partitions.push(found),
                None => resolved.missing = true,
            }
        }
    }
    resolved
}

/// One code for every partition.
fn results(
    topics: &[AddPartitionsToTxnTopic],
    mut code: impl FnMut(&Text, i32) -> ErrorCode,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let mut results = Vec::with_capacity(topics.len());
    for topic in topics {
        let results_by_partition = topic
            .partitions
            .iter()
            .map(|&partition_index| AddPartitionsToTxnPartitionResult {
                partition_index,
                partition_error_code: code(&topic.name, partition_index).code(),
                ..AddPartitionsToTxnPartitionResult::default()
            })
            .collect();
        results.push(AddPartitionsToTxnTopicResult {
            name: topic.name.clone(),
            results_by_partition,
            ..AddPartitionsToTxnTopicResult::default()
        });
    }
    results
}

/// One transaction of a request.
struct Part<'a> {
    version: i16,
    id: &'a Text,
    pair: Pair,
    verify_only: bool,
    topics: &'a [AddPartitionsToTxnTopic],
}

/// Adds or verifies, and answers for each partition, with the position that the answer rests on.
fn one_transaction(step: &mut Step<'_>, part: &Part<'_>) -> (Vec<AddPartitionsToTxnTopicResult>, Position) {
    let Part { id, pair, topics, .. } = *part;
    let code = |refusal: Refusal| refusal.code(Through::AddPartitions, part.version);
    let refused = if id.is_empty() {
        Some(Refusal::InvalidRequest)
    } else if part.version < FIRST_BROKER_VERSION && !step.state.config.transaction_v1_enable {
        Some(Refusal::V1Disabled)
    } else {
        None
    };
    if let Some(refusal) = refused {
        return (results(topics, |_, _| code(refusal)), Position::default());
    }
    let resolved = resolve(step.state, topics);
    if resolved.missing {
        let state = &*step.state;
        let results = results(topics, |name, partition| match super::resolve(state, name, partition) {
            Some(_) => ErrorCode::OperationNotAttempted,
            None => ErrorCode::UnknownTopicOrPartition,
        });
        return (results, state.topics.rests_on());
    }
    if part.verify_only {
        let state = &*step.state;
        let results = results(topics, |name, partition| {
            let partition = super::resolve(state, name, partition).expect("resolved above");
            check(state.transactions.get(id), pair, &partition).map_or_else(code, |()| ErrorCode::None)
        });
        return (results, state.transactions.rests_on(id));
    }
    let client_transaction_version = if part.version >= FIRST_BROKER_VERSION { V2 } else { V1 };
    let outcome = add(step, id, pair, client_transaction_version, &resolved.partitions);
    let code = outcome.map_or_else(code, |()| ErrorCode::None);
    (results(topics, |_, _| code), step.state.transactions.rests_on(id))
}

/// Handles AddPartitionsToTxn.
pub(crate) fn add_partitions_to_txn(
    step: &mut Step<'_>,
    context: &Context,
    request: AddPartitionsToTxnRequest,
) {
    let version = context.version;
    let mut response = AddPartitionsToTxnResponse::default();
    let mut rests_on = Position::default();
    if version >= FIRST_BROKER_VERSION {
        for transaction in &request.transactions {
            let id = &transaction.transactional_id;
            let pair =
                Pair { producer_id: transaction.producer_id, producer_epoch: transaction.producer_epoch };
            let verify_only = transaction.verify_only;
            let part = Part { version, id, pair, verify_only, topics: &transaction.topics };
            let (topic_results, position) = one_transaction(step, &part);
            response.results_by_transaction.push(AddPartitionsToTxnResult {
                transactional_id: id.clone(),
                topic_results,
                ..AddPartitionsToTxnResult::default()
            });
            rests_on = rests_on.max(position);
        }
    } else {
        let id = &request.v3_and_below_transactional_id;
        let pair = Pair {
            producer_id: request.v3_and_below_producer_id,
            producer_epoch: request.v3_and_below_producer_epoch,
        };
        if let Some(reply) = super::late(step, id, pair, context) {
            let rests_on = step.state.transactions.rests_on(id);
            return step.answer(context.token, reply, rests_on);
        }
        super::note_connection(step, id, pair, context.connection);
        let part = Part { version, id, pair, verify_only: false, topics: &request.v3_and_below_topics };
        (response.results_by_topic_v3_and_below, rests_on) = one_transaction(step, &part);
    }
    step.answer(context.token, Reply::AddPartitionsToTxn(response), rests_on);
}

/// Handles AddOffsetsToTxn: adds the partition that keeps the group's offsets.
pub(crate) fn add_offsets_to_txn(step: &mut Step<'_>, context: &Context, request: AddOffsetsToTxnRequest) {
    let id = &request.transactional_id;
    let pair = Pair { producer_id: request.producer_id, producer_epoch: request.producer_epoch };
    if let Some(reply) = super::late(step, id, pair, context) {
        let rests_on = step.state.transactions.rests_on(id);
        return step.answer(context.token, reply, rests_on);
    }
    super::note_connection(step, id, pair, context.connection);
    let outcome = if id.is_empty() {
        Err(Refusal::InvalidRequest)
    } else if !step.state.config.transaction_v1_enable {
        Err(Refusal::V1Disabled)
    } else {
        let partition = crate::group::offsets_partition(step.state, &request.group_id);
        add(step, id, pair, V1, &[partition])
    };
    let error_code = outcome
        .map_or_else(|refusal| refusal.code(Through::AddOffsets, context.version), |()| ErrorCode::None);
    let response =
        AddOffsetsToTxnResponse { error_code: error_code.code(), ..AddOffsetsToTxnResponse::default() };
    let rests_on = step.state.transactions.rests_on(id);
    step.answer(context.token, Reply::AddOffsetsToTxn(response), rests_on);
}
