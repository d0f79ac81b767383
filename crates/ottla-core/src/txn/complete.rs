//! Carrying a decision out: the decision's record, a marker in every partition, the completion's record, all in
//! one group of entries.
//!
//! Place in the walk: EndTxn, InitProducerId's fence and the timeout call it; so does [`redrive`] for a
//! decision that was loaded without its completion. The markers of the consumer offsets' partitions are among
//! them and make the offsets of the transaction count (`group/`).
//!
//! Invariants: no marker is refused for good. A partition whose topic is gone is left out. A partition whose
//! producer epoch has moved past the marker's has no open transaction of ours. A partition that an operator gave
//! a higher coordinator epoch gets its marker under that one. Markers are not bound by `max.message.bytes`.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::state::{LAST_CLIENT_EPOCH, Prepare, State, Transaction};
use crate::shard::{Marker, ShardState, Step};

/// Decides and completes the transaction of `id`, which allows it.
pub(super) fn decide(step: &mut Step<'_>, id: &Text, prepare: &Prepare) {
    let transaction = step.state.transactions.get(id).expect("the caller found it");
    let partitions = existing(step.state, transaction);
    let prepared = transaction.prepared(prepare, partitions, step.now);
    super::write(step, &prepared);
    finish(step, &prepared);
}

/// The server aborts the open transaction of `id`, under the next epoch, which fences its producer.
/// `last_producer_epoch` is the epoch whose holder may go on with that next epoch, -1 for nobody.
pub(super) fn abort_by_server(step: &mut Step<'_>, id: &Text, last_producer_epoch: i16) {
    let epoch = step.state.transactions.get(id).expect("the caller found it").producer_epoch;
    let next_producer_id = if epoch >= LAST_CLIENT_EPOCH { step.allocate_producer_id() } else { -1 };
    let prepare = Prepare { commit: false, bump: true, last_producer_epoch, next_producer_id };
    decide(step, id, &prepare);
}

/// Completes every decision that was loaded without its completion, under this epoch of the shard. Markers
/// that are there already are written again, which harms nothing.
pub(super) fn redrive(step: &mut Step<'_>) {
    let open: Vec<Transaction> = step.state.transactions.prepared().cloned().collect();
    for mut transaction in open {
        transaction.partitions = existing(step.state, &transaction);
        finish(step, &transaction);
    }
}

/// The partitions whose topic still exists, by its id.
fn existing(state: &ShardState, transaction: &Transaction) -> Vec<TopicIdPartition> {
    let mut partitions = transaction.partitions.clone();
    partitions.retain(|partition| {
        state
            .topics
            .by_id(partition.topic_id)
            .is_some_and(|topic| topic.partition(partition.partition).is_some())
    });
    partitions
}

fn finish(step: &mut Step<'_>, prepared: &Transaction) {
    let marker = Marker {
        producer_id: prepared.producer_id,
        producer_epoch: prepared.producer_epoch,
        commit: prepared.state == State::PrepareCommit,
        coordinator_epoch: step.state.shard_epoch,
        transaction_version: i8::try_from(prepared.client_transaction_version).unwrap_or(i8::MAX),
    };
    for &partition in &prepared.partitions {
        write_marker(step, partition, &marker);
    }
    let complete = prepared.completed(step.now);
    super::write(step, &complete);
}

fn write_marker(step: &mut Step<'_>, partition: TopicIdPartition, marker: &Marker) {
    match step.check_marker(partition, marker) {
        Ok(()) => step.append_marker(partition, marker),
        // An operator's marker has raised it; ours must not fail for that, nor lower it again.
        Err(ErrorCode::TransactionCoordinatorFenced) => {
            let coordinator_epoch = step.stored_coordinator_epoch(partition, marker.producer_id);
            step.append_marker(partition, &Marker { coordinator_epoch, ..*marker });
        }
        // Beyond the marker's epoch: nothing of this transaction can be open there.
        Err(_) => {}
    }
}
