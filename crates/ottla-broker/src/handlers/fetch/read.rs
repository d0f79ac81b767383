//! One look at all partitions of a fetch: bounds of one instant, then the bytes between offset and bound.

use std::sync::Arc;

use bytes::Bytes;
use ottla_core::decision::Bounds;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::{TopicIdPartition, Uuid};
use ottla_storage::Batches;
use tokio::sync::OwnedSemaphorePermit;

use super::Wanted;
use crate::net::frames::Waits;
use crate::shard::view::{Outdated, PartitionSlot, Published};
use crate::shared::Shared;

/// What bounds an answer.
pub struct Limits {
    /// Bytes of records in it, but for the first batch.
    pub bytes: usize,
    /// Nothing at or behind the last stable offset.
    pub read_committed: bool,
    /// Topics are named by id.
    pub by_id: bool,
    /// Version of the request.
    pub version: i16,
}

/// What one partition gives.
pub struct Got {
    /// An error, or `None`.
    pub error: ErrorCode,
    /// Bounds at the instant of the answer; none when there is no such partition.
    pub bounds: Option<Arc<Published>>,
    /// Whole batches.
    pub chunks: Vec<Bytes>,
    /// Aborted transactions in what was read: producer id and first offset. None for read_uncommitted.
    pub aborted: Option<Vec<(i64, i64)>>,
    /// Of the topic, zero when it is not known; for the metrics.
    pub topic_id: Uuid,
}

/// One look at all partitions.
#[derive(Default)]
pub struct Round {
    /// In the order of what was wanted.
    pub got: Vec<Got>,
    /// Those that exist with the bounds that were used, for waiting.
    pub slots: Vec<(Arc<PartitionSlot>, Arc<Published>)>,
    /// Bytes of records.
    pub bytes: usize,
    /// The share of the fetch budget that the bytes take.
    pub held: Option<OwnedSemaphorePermit>,
}

impl Round {
    /// Whether it can be answered without waiting: enough bytes, or an error.
    pub fn is_enough(&self, min_bytes: usize) -> bool {
        self.bytes >= min_bytes || self.got.iter().any(|got| got.error != ErrorCode::None)
    }
}

impl Round {
    /// Whether a partition has moved since.
    pub fn is_outdated(&self) -> bool {
        self.slots.iter().any(|(slot, used)| !Arc::ptr_eq(&slot.newest(), used))
    }
}

/// Reads all partitions once.
pub async fn read_all(shared: &Arc<Shared>, wanted: &[Wanted], limits: &Limits) -> Round {
    let mut round = Round::default();
    let instant = bounds_of_one_instant(shared, wanted, limits);
    for (wanted, found) in wanted.iter().zip(instant) {
        let got = match found {
            Err(error) => Got::refused(error, None),
            Ok((slot, partition, published)) => {
                round.slots.push((slot, published.clone()));
                let got = read_one(shared, wanted, partition, published, limits, &mut round).await;
                Got { topic_id: partition.topic_id, ..got }
            }
        };
        round.got.push(got);
    }
    round
}

type Found = Result<(Arc<PartitionSlot>, TopicIdPartition, Arc<Published>), ErrorCode>;

/// The bounds of every wanted partition as of one published frame.
fn bounds_of_one_instant(shared: &Shared, wanted: &[Wanted], limits: &Limits) -> Vec<Found> {
    let image = shared.view.image();
    let unknown = if limits.by_id { ErrorCode::UnknownTopicId } else { ErrorCode::UnknownTopicOrPartition };
    let find = |wanted: &Wanted| {
        let topic = match limits.by_id {
            true => image.topic_by_id(wanted.topic_id),
            false => image.topic_by_name(&wanted.topic),
        };
        let topic = topic.ok_or(unknown)?;
        let partition = TopicIdPartition { topic_id: topic.id, partition: wanted.partition };
        let slot = shared.view.slot(partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        Ok((slot, partition))
    };
    let slots: Vec<Result<_, ErrorCode>> = wanted.iter().map(find).collect();
    loop {
        // A partition that has moved twice since the sequence was noted has forgotten what it was then.
        let sequence = shared.view.sequence();
        let at = slots.iter().map(|slot| match slot {
            Ok((slot, partition)) => {
                slot.bounds_at(sequence).map(|published| Ok((slot.clone(), *partition, published)))
            }
            Err(error) => Ok(Err(*error)),
        });
        if let Ok(found) = at.collect::<Result<Vec<Found>, Outdated>>() {
            return found;
        }
    }
}

async fn read_one(
    shared: &Arc<Shared>,
    wanted: &Wanted,
    partition: TopicIdPartition,
    published: Arc<Published>,
    limits: &Limits,
    round: &mut Round,
) -> Got {
    if let Err(error) = check(wanted, &published.bounds) {
        return Got::refused(error, Some(published));
    }
    let bounds = &published.bounds;
    let end = if limits.read_committed { bounds.last_stable_offset } else { bounds.high_watermark };
    let is_first = round.bytes == 0;
    let room = wanted.max_bytes.min(limits.bytes.saturating_sub(round.bytes));
    if wanted.fetch_offset >= end || (room == 0 && !is_first) {
        return Got {
            error: ErrorCode::None,
            bounds: Some(published),
            chunks: Vec::new(),
            aborted: limits.read_committed.then(Vec::new),
            topic_id: Uuid::ZERO,
        };
    }
    let read = match read_batches(shared, partition, wanted.fetch_offset, end, room).await {
        Ok(read) => read,
        Err(error) => return Got::refused(error, Some(published)),
    };
    // Only the first batch of an answer may be larger than what was asked for (KIP-74).
    let fits = read.bytes <= room || is_first;
    let read = if fits && round.hold(shared, read.bytes).await { read } else { Batches::default() };
    round.bytes += read.bytes;
    let aborted = limits.read_committed.then(|| match read.bytes {
        0 => Vec::new(),
        _ => bounds.aborted.lookup(wanted.fetch_offset, read.next_offset.min(end)),
    });
    let topic_id = partition.topic_id;
    Got { error: ErrorCode::None, bounds: Some(published), chunks: read.pieces, aborted, topic_id }
}

fn check(wanted: &Wanted, bounds: &Bounds) -> Result<(), ErrorCode> {
    if wanted.current_leader_epoch >= 0 && wanted.current_leader_epoch < bounds.leader_epoch {
        return Err(ErrorCode::FencedLeaderEpoch);
    }
    if wanted.current_leader_epoch > bounds.leader_epoch {
        return Err(ErrorCode::UnknownLeaderEpoch);
    }
    if wanted.fetch_offset < bounds.log_start_offset || wanted.fetch_offset > bounds.high_watermark {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    Ok(())
}

/// Memory first; what is only on disk is read away from the tasks' threads.
async fn read_batches(
    shared: &Arc<Shared>,
    partition: TopicIdPartition,
    offset: i64,
    end: i64,
    room: usize,
) -> Result<Batches, ErrorCode> {
    let reader = shared.view.reader();
    if let Some(batches) = reader.read_cached(partition, offset, end, room) {
        return Ok(batches);
    }
    let read = ottla_env::spawn::blocking("read", move || reader.read(partition, offset, end, room)).await;
    match read {
        Ok(Ok(batches)) => Ok(batches),
        Ok(Err(error)) => {
            tracing::error!(%error, topic_id = %partition.topic_id, partition = partition.partition, "read failed");
            Err(ErrorCode::KafkaStorageError)
        }
        Err(error) => {
            tracing::error!(%error, "a read panicked");
            Err(ErrorCode::KafkaStorageError)
        }
    }
}

impl Got {
    fn refused(error: ErrorCode, bounds: Option<Arc<Published>>) -> Self {
        Self { error, bounds, chunks: Vec::new(), aborted: None, topic_id: Uuid::ZERO }
    }
}

impl Round {
    /// Takes the bytes' share of the budget: the first bytes of an answer wait for it, later ones do without.
    async fn hold(&mut self, shared: &Shared, bytes: usize) -> bool {
        let permits =
            u32::try_from(bytes).unwrap_or(u32::MAX).min(crate::limits::FETCH_IN_FLIGHT_BYTES_MAX as u32);
        let budget = shared.fetch_budget.clone();
        let permit = match &mut self.held {
            None => {
                let _waits = Waits::new(&shared.fetch_waiting);
                budget.acquire_many_owned(permits).await.ok()
            }
            Some(_) => budget.try_acquire_many_owned(permits).ok(),
        };
        let Some(permit) = permit else { return false };
        match &mut self.held {
            None => self.held = Some(permit),
            Some(held) => held.merge(permit),
        }
        true
    }
}
