//! Produce, versions 3 to 13: where a client's batches meet the partitions and, for transactions, the coordinator.
//!
//! Place in the walk: the connection has parsed and checked every batch (`ottla_protocol::check`); here the
//! request is decided as a whole, partition by partition in its order. Verification (KIP-890 part 1, versions up
//! to 11) and implicit addition (part 2, version 12 and up) are a look at the coordinator's state and a record of
//! it in the same decision, so nothing can happen between them and the append.
//!
//! Order (eos-semantics 1.3, 2.1, 4): the request (53, 49, 21); per partition unknown topic (3, 100), internal
//! topic (17), what the connection found; a resend of a remembered batch gets its offset; the producer's epoch
//! (47); the coordinator; sequences. Partitions are independent of each other.
//!
//! A request of protocol v1 that is late (a newer connection has produced for the same pair and partition) is
//! not answered and its connection is closed (section 8). `acks=1` is answered like `acks=all`; `acks=0` never,
//! an error closes the connection.

use ottla_protocol::batch::{self, TimestampType};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use ottla_protocol::types::{NO_PRODUCER_ID, Text, TopicIdPartition};

use crate::cluster::Topic;
use crate::command::{CheckedBatch, Context, ProduceCommand, ProducePartition, ProduceTopic};
use crate::decision::{Position, Reply};
use crate::partition::{Appended, BatchRules};
use crate::shard::{ShardState, Step};
use crate::txn;

#[cfg(test)]
mod tests;

/// First version that names topics by id.
const TOPIC_IDS: i16 = 13;
/// First version of protocol v2: partitions are added to the transaction by Produce itself.
const TRANSACTIONS_V2: i16 = 12;
/// First version whose clients know TRANSACTION_ABORTABLE.
const TRANSACTION_ABORTABLE: i16 = 11;
/// `client.transaction.version` of a transaction that Produce begins.
const CLIENT_TRANSACTION_VERSION: i16 = 2;

/// Why a partition's batch is refused.
#[derive(Clone, Copy, Debug)]
struct Refused {
    code: ErrorCode,
    reason: &'static str,
}

/// Answers Produce.
pub(crate) fn produce(step: &mut Step<'_>, context: &Context, request: ProduceCommand) {
    if let Err(refused) = check_request(&request) {
        return refuse_all(step, context, &request, refused);
    }
    let mut verdicts = Vec::new();
    if is_transactional(&request) {
        if context.version < TRANSACTIONS_V2 && is_late(step, context, &request) {
            let reason = "late Produce of transactions v1: a newer connection has taken over";
            let rests_on = step.state.position();
            return step.answer(context.token, Reply::Late(reason), rests_on);
        }
        verdicts = verify(step, context, &request);
    }
    let mut verdicts = verdicts.into_iter();
    let mut rests_on = Position::default();
    let mut failed = false;
    let mut responses = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let found = find_topic(step.state, context, &topic).cloned();
        let mut partition_responses = Vec::with_capacity(topic.partitions.len());
        for partition in topic.partitions {
            let index = partition.partition;
            let verdict = verdicts.next().flatten();
            let mut response = match &found {
                Ok(found) => produce_partition(step, context, found, partition, verdict, &mut rests_on),
                Err(refused) => {
                    rests_on = rests_on.max(step.state.topics.rests_on());
                    refusal(*refused)
                }
            };
            response.index = index;
            failed |= response.error_code != 0;
            partition_responses.push(response);
        }
        let topic_id = if context.version >= TOPIC_IDS { topic.topic_id } else { Default::default() };
        responses.push(TopicProduceResponse {
            name: topic.name,
            topic_id,
            partition_responses,
            ..Default::default()
        });
    }
    if step.has_entries() {
        rests_on = step.position();
    } else if let Some(id) = &request.transactional_id {
        rests_on = rests_on.max(step.state.transactions.rests_on(id));
    }
    answer(step, context, request.acks, responses, failed, rests_on);
}

fn answer(
    step: &mut Step<'_>,
    context: &Context,
    acks: i16,
    responses: Vec<TopicProduceResponse>,
    failed: bool,
    rests_on: Position,
) {
    let reply = match (acks, failed) {
        (0, false) => Reply::Done,
        (0, true) => Reply::Close("Produce with acks=0 was refused"),
        _ => Reply::Produce(m::ProduceResponse { responses, ..Default::default() }),
    };
    step.answer(context.token, reply, rests_on);
}

/// The batches of a request that passed the connection's checks.
fn batches(request: &ProduceCommand) -> impl Iterator<Item = &CheckedBatch> {
    request
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .filter_map(|partition| partition.batch.as_ref().ok())
}

fn is_transactional(request: &ProduceCommand) -> bool {
    batches(request).any(|batch| batch.header.is_transactional())
}

/// What is wrong with the request as a whole.
fn check_request(request: &ProduceCommand) -> Result<(), Refused> {
    let refused = |code, reason| Err(Refused { code, reason });
    let mut pairs = batches(request)
        .filter(|batch| batch.header.is_transactional())
        .map(|batch| (batch.header.producer_id, batch.header.producer_epoch));
    if let Some(pair) = pairs.next() {
        if request.transactional_id.is_none() {
            let reason = "a transactional batch in a request without transactional id";
            return refused(ErrorCode::TransactionalIdAuthorizationFailed, reason);
        }
        if pairs.any(|other| other != pair) {
            let reason = "transactional batches of more than one producer";
            return refused(ErrorCode::InvalidProducerIdMapping, reason);
        }
    }
    if !(-1..=1).contains(&request.acks) {
        return refused(ErrorCode::InvalidRequiredAcks, "acks is -1, 0 or 1");
    }
    Ok(())
}

fn refuse_all(step: &mut Step<'_>, context: &Context, request: &ProduceCommand, refused: Refused) {
    let topics = request.topics.iter().map(|topic| TopicProduceResponse {
        name: topic.name.clone(),
        topic_id: if context.version >= TOPIC_IDS { topic.topic_id } else { Default::default() },
        partition_responses: topic
            .partitions
            .iter()
            .map(|partition| PartitionProduceResponse { index: partition.partition, ..refusal(refused) })
            .collect(),
        ..Default::default()
    });
    answer(step, context, request.acks, topics.collect(), true, Position::default());
}

fn refusal(refused: Refused) -> PartitionProduceResponse {
    PartitionProduceResponse {
        error_code: refused.code.code(),
        error_message: Some(Text::from_static(refused.reason)),
        base_offset: -1,
        log_append_time_ms: -1,
        log_start_offset: -1,
        ..Default::default()
    }
}

/// The topic that is meant: by id, or by name for versions that know no ids.
fn find_topic<'a>(
    state: &'a ShardState,
    context: &Context,
    topic: &ProduceTopic,
) -> Result<&'a std::sync::Arc<Topic>, Refused> {
    let by_id = (!topic.topic_id.is_zero()).then(|| state.topics.by_id(topic.topic_id)).flatten();
    let found = if context.version >= TOPIC_IDS {
        by_id.ok_or(Refused { code: ErrorCode::UnknownTopicId, reason: "there is no topic of this id" })?
    } else {
        by_id.or_else(|| state.topics.by_name(&topic.name)).ok_or(UNKNOWN_PARTITION)?
    };
    // Kafka lets a client that calls itself `__admin_client` pass. Here the coordinators live on these records, and
    // anybody can call himself that.
    if found.is_internal() {
        let reason = "internal topics are the broker's to write";
        return Err(Refused { code: ErrorCode::InvalidTopicException, reason });
    }
    Ok(found)
}

const UNKNOWN_PARTITION: Refused =
    Refused { code: ErrorCode::UnknownTopicOrPartition, reason: "there is no such topic or partition" };

/// Where the transactional batches of a request go: one element per partition of the request, in its order;
/// `None` where there is none or the partition cannot be found.
fn transactional_batches<'a>(
    state: &ShardState,
    context: &Context,
    request: &'a ProduceCommand,
) -> Vec<Option<(u32, TopicIdPartition, &'a CheckedBatch)>> {
    let mut found = Vec::new();
    for topic in &request.topics {
        let known = find_topic(state, context, topic).ok();
        for partition in &topic.partitions {
            found.push(known.and_then(|known| {
                let batch = partition.batch.as_ref().ok().filter(|batch| batch.header.is_transactional())?;
                let partition = known.partition(partition.partition)?;
                Some((state.partitions.slot(partition)?, partition, batch))
            }));
        }
    }
    found
}

/// Whether a newer connection has produced for the same pair and one of the partitions.
fn is_late(step: &mut Step<'_>, context: &Context, request: &ProduceCommand) -> bool {
    let found = transactional_batches(step.state, context, request);
    found.into_iter().flatten().any(|(_, partition, batch)| {
        step.state.volatile.fence.late_for_partition(partition, pair_of(batch), context)
    })
}

fn pair_of(batch: &CheckedBatch) -> txn::Pair {
    txn::Pair { producer_id: batch.header.producer_id, producer_epoch: batch.header.producer_epoch }
}

/// Asks the coordinator about the partitions of a request that have no open transaction of the pair yet:
/// verifies or adds them. One verdict per partition of the request; `None` lets it pass.
fn verify(step: &mut Step<'_>, context: &Context, request: &ProduceCommand) -> Vec<Option<Refused>> {
    let id = request.transactional_id.as_ref().expect("checked with the request");
    let adds = context.version >= TRANSACTIONS_V2;
    let verifies = step.state.config.transaction_partition_verification_enable;
    let found = transactional_batches(step.state, context, request);
    let mut verdicts = vec![None; found.len()];
    let mut missing = Vec::new();
    for (verdict, found) in verdicts.iter_mut().zip(&found) {
        let Some((slot, partition, batch)) = *found else { continue };
        let header = &batch.header;
        let (producer_id, producer_epoch) = (header.producer_id, header.producer_epoch);
        let partitions = &step.state.partitions;
        if partitions.duplicate_of(slot, header).is_some()
            || partitions.has_open_transaction(slot, producer_id, producer_epoch)
        {
            continue;
        }
        if let Err(code) = partitions.check_epoch(slot, producer_id, producer_epoch) {
            *verdict = Some(Refused { code, reason: reason(code) });
        } else if adds {
            missing.push(partition);
        } else if verifies
            && let Err(code) = txn::verify(step.state, id, producer_id, producer_epoch, partition)
        {
            // A producer without state may begin anywhere, so a later batch must not overtake this one.
            if code == ErrorCode::TransactionAbortable && !partitions.knows_producer(slot, producer_id) {
                let (verifications, now) = (&mut step.state.volatile.verifications, step.now);
                verifications.refuse(partition, producer_id, producer_epoch, header.base_sequence, now);
            }
            *verdict = Some(produce_code(code, context.version));
        }
    }
    if let Some((_, _, batch)) = found.iter().flatten().next()
        && !missing.is_empty()
    {
        let pair = pair_of(batch);
        let added = txn::add_partitions(
            step,
            id,
            pair.producer_id,
            pair.producer_epoch,
            CLIENT_TRANSACTION_VERSION,
            &missing,
        );
        if let Err(code) = added {
            let refused = Some(produce_code(code, context.version));
            for (verdict, found) in verdicts.iter_mut().zip(&found) {
                if found.is_some_and(|(_, partition, _)| missing.contains(&partition)) {
                    *verdict = verdict.or(refused);
                }
            }
        }
    }
    verdicts
}

/// What a client of this version is told when the coordinator refuses (eos-semantics 4.5).
fn produce_code(code: ErrorCode, version: i16) -> Refused {
    let told = match code {
        ErrorCode::TransactionAbortable if version < TRANSACTION_ABORTABLE => ErrorCode::InvalidTxnState,
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        ErrorCode::ConcurrentTransactions if version < TRANSACTIONS_V2 => ErrorCode::NotEnoughReplicas,
        ErrorCode::NetworkException
        | ErrorCode::CoordinatorLoadInProgress
        | ErrorCode::CoordinatorNotAvailable
        | ErrorCode::NotCoordinator => ErrorCode::NotEnoughReplicas,
        other => other,
    };
    Refused { code: told, reason: reason(code) }
}

/// For people.
fn reason(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::TransactionAbortable => "the partition is not in the producer's transaction",
        ErrorCode::ProducerFenced | ErrorCode::InvalidProducerEpoch => {
            "the producer's epoch is over: another producer has taken over, or its transaction was ended"
        }
        ErrorCode::InvalidProducerIdMapping => "the transactional id is unknown or has another producer id",
        ErrorCode::ConcurrentTransactions => {
            "the producer's previous transaction is being completed, or max.open.transactions are open already"
        }
        ErrorCode::OutOfOrderSequenceNumber => "the batch does not continue the producer's sequence",
        ErrorCode::InvalidTxnState => "a batch outside of the transaction that its producer has open here",
        code => code.name(),
    }
}

/// Appends a batch, or says why not.
fn produce_partition(
    step: &mut Step<'_>,
    context: &Context,
    topic: &Topic,
    wanted: ProducePartition,
    verdict: Option<Refused>,
    rests_on: &mut Position,
) -> PartitionProduceResponse {
    let Some(partition) = topic.partition(wanted.partition) else {
        *rests_on = (*rests_on).max(step.state.topics.rests_on());
        return refusal(UNKNOWN_PARTITION);
    };
    let batch = match wanted.batch {
        Ok(batch) => batch,
        Err(refused) => return refused,
    };
    let slot = step.state.partitions.slot(partition).expect("a topic's partitions exist");
    *rests_on = (*rests_on).max(step.state.partitions.get(slot).last_position());
    if let Some(refused) = verdict {
        return refusal(refused);
    }
    let header = &batch.header;
    let rules = BatchRules {
        transactions_v2: context.version >= TRANSACTIONS_V2,
        lowest_refused_sequence: step.state.volatile.verifications.lowest(
            partition,
            header.producer_id,
            header.producer_epoch,
        ),
    };
    let appended = match step.state.partitions.check_batch(slot, header, rules) {
        Ok(appended) => appended,
        Err(code) => return refusal(Refused { code, reason: reason(code) }),
    };
    let has_append_time = topic.config.timestamp_type == TimestampType::LogAppendTime;
    let (base_offset, append_time_ms) = match appended {
        Appended::Duplicate(batch) => (batch.base_offset, batch.max_timestamp),
        Appended::New => {
            if let Err(refused) = check_room(step.state, slot, header.producer_id) {
                return refusal(refused);
            }
            (append(step, context, slot, partition, batch, has_append_time), step.now.0)
        }
    };
    PartitionProduceResponse {
        base_offset,
        log_append_time_ms: if has_append_time { append_time_ms } else { -1 },
        log_start_offset: step.state.partitions.get(slot).log_start_offset(),
        ..Default::default()
    }
}

/// Whether the partition may remember another producer.
fn check_room(state: &ShardState, slot: u32, producer_id: i64) -> Result<(), Refused> {
    if producer_id == NO_PRODUCER_ID
        || state.partitions.has_room_for_producer(state.config.limits.producers())
        || state.partitions.knows_producer(slot, producer_id)
    {
        return Ok(());
    }
    let reason =
        "partitions remember as many producers as max.producers or max.producers.per.principal allow";
    Err(Refused { code: ErrorCode::PolicyViolation, reason })
}

/// Appends a batch that may be appended. Returns its base offset.
fn append(
    step: &mut Step<'_>,
    context: &Context,
    slot: u32,
    partition: TopicIdPartition,
    batch: CheckedBatch,
    has_append_time: bool,
) -> i64 {
    if batch.header.is_transactional() {
        step.state.volatile.verifications.remove(partition, batch.header.producer_id);
        if context.version < TRANSACTIONS_V2 {
            step.state.volatile.fence.note_partition(partition, pair_of(&batch), context.connection);
        }
    }
    let (header, tail) = if has_append_time {
        batch::stamp_log_append_time(&batch.header, &batch.tail, step.now.0)
    } else {
        (batch.header, batch.tail)
    };
    step.emit(slot, header, tail)
}
