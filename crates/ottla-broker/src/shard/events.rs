//! What the core says has happened: one line of the log each, and a count.
//!
//! Place: the owner tells it with each decision; most decisions have nothing to tell. Lines about what strangers can
//! bring about at will are of level debug.

use ottla_core::event::Event;

use crate::metrics::OwnerCells;

/// Writes an event down.
pub fn tell(event: &Event, cells: &OwnerCells) {
    match event {
        Event::TransactionTimedOut { transactional_id, producer_id, producer_epoch } => {
            cells.transactions_timed_out.add(1);
            tracing::warn!(
                %transactional_id,
                producer_id,
                producer_epoch,
                "a transaction was open for longer than its timeout and was aborted"
            );
        }
        Event::ProducerFenced { transactional_id, producer_id, producer_epoch, aborted: true } => {
            cells.producers_fenced.add(1);
            tracing::info!(
                %transactional_id,
                producer_id,
                producer_epoch,
                "a new producer took over; the open transaction of the former was aborted"
            );
        }
        Event::ProducerFenced { transactional_id, producer_id, producer_epoch, aborted: false } => {
            cells.producers_fenced.add(1);
            tracing::debug!(%transactional_id, producer_id, producer_epoch, "a new producer took over");
        }
        Event::Rebalanced { group, kind, generation, members } => {
            let count =
                if *kind == "classic" { &cells.classic_rebalances } else { &cells.consumer_rebalances };
            count.add(1);
            tracing::debug!(%group, kind, generation, members, "a group was rebalanced");
        }
    }
}
