//! Batches that the shard itself writes: coordinator records, control records and transaction markers.
//!
//! Place in the walk: below [`super::Step`], which gives a batch its offset and leader epoch.

use bytes::Bytes;
use ottla_protocol::batch::{self, BatchHeader, Producer};
use ottla_protocol::types::NO_SEQUENCE;

use super::{Marker, NewRecord, Stamp};

/// An uncompressed batch of records, all with the timestamp `now_ms`. Coordinators have no sequence.
pub(super) fn records(records: &[NewRecord], stamp: Stamp, now_ms: i64) -> (BatchHeader, Bytes) {
    assert!(!records.is_empty(), "a batch has at least one record");
    let producer = Producer {
        producer_id: stamp.producer_id,
        producer_epoch: stamp.producer_epoch,
        base_sequence: NO_SEQUENCE,
        transactional: stamp.transactional,
    };
    let pairs = records.iter().map(|record| (&record.key[..], record.value.as_deref()));
    batch::build_plain(now_ms, producer, pairs)
}

/// A transaction marker.
pub(super) fn marker(marker: &Marker, now_ms: i64) -> (BatchHeader, Bytes) {
    batch::build_marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.commit,
        marker.coordinator_epoch,
        now_ms,
    )
}
