//! What time does to transactional ids: open transactions past their timeout are aborted, resting ids are
//! forgotten, decisions that were loaded without their completion are completed (eos-semantics 3.8, 3.9).
//!
//! Place in the walk: the shard's tick. Work of one tick is bounded; what is left makes the next tick due at
//! once, behind whatever the inbox holds.
//!
//! Invariants: an abort by timeout bumps the epoch once and lets the producer go on with its old pair (KIP-360);
//! an id with an open transaction never expires.

use std::collections::BTreeMap;

use ottla_protocol::types::NO_PRODUCER_EPOCH;

use super::{complete, log_partition, record};
use crate::event::Event;
use crate::shard::{NewRecord, Stamp, Step};

/// Transactions that one tick aborts at most.
const ABORTS_MAX: usize = 100;
/// Markers after which a tick begins no further abort.
const MARKERS_MAX: usize = 10_000;
/// Ids that one tick looks at for expiry at most.
const SLOTS_MAX: u32 = 4096;

/// Fires what is due.
pub(crate) fn tick(step: &mut Step<'_>) {
    complete::redrive(step);
    abort_timed_out(step);
    expire(step);
}

fn abort_timed_out(step: &mut Step<'_>) {
    let mut markers = 0;
    for id in step.state.transactions.timed_out(step.now, ABORTS_MAX) {
        if markers >= MARKERS_MAX {
            break;
        }
        let transaction = step.state.transactions.get(&id).expect("deadlines name ids that exist");
        markers += transaction.partitions.len();
        let epoch = transaction.producer_epoch;
        let event = Event::TransactionTimedOut {
            transactional_id: id.clone(),
            producer_id: transaction.producer_id,
            producer_epoch: epoch,
        };
        step.event(event);
        assert!(epoch > NO_PRODUCER_EPOCH, "an open transaction has an epoch");
        complete::abort_by_server(step, &id, epoch);
    }
}

fn expire(step: &mut Step<'_>) {
    let expired = step.state.transactions.expired(&step.state.config, step.now, SLOTS_MAX);
    let mut tombstones: BTreeMap<_, Vec<NewRecord>> = BTreeMap::new();
    for id in &expired {
        tombstones.entry(log_partition(step.state, id)).or_default().push(record::tombstone(id));
    }
    for (partition, records) in tombstones {
        step.append_records(partition, &records, Stamp::NONE);
    }
}
