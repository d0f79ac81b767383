//! Records waiting to be sent: one open batch per partition, closed ones behind it, all within `buffer.memory`.
//!
//! Shared between the users' tasks, which append, and the sender, which takes batches out and reports what
//! became of them. Invariants: a batch is in exactly one place (open, ready, with the sender) until its outcome
//! is published, and its bytes are held in the buffer until then; nothing of one transaction is taken by a sender
//! that still works for another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use ottla_env::rng::{OsRng, Rng, SeededRng};
use ottla_env::time::{self, Instant};
use ottla_protocol::batch::BatchBuilder;
use ottla_protocol::record::NewRecord;
use ottla_protocol::types::Text;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tracing::Span;

use super::SendError;
use super::delivery::{Delivery, DeliveryError, Part, Written};
use super::settings::ProducerSettings;
use super::sticky::Sticky;
use crate::cluster::TopicMetadata;
use crate::record::{Record, TopicPartition};

/// Who writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) producer_id: i64,
    pub(super) producer_epoch: i16,
    pub(super) transactional_id: Option<Text>,
}

/// How transactions are spoken about with the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// KIP-98: partitions are added before anything is written to them; the epoch stays.
    V1,
    /// KIP-890: writing adds a partition; every end moves the epoch on.
    V2,
}

/// What the sender works for at present.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    pub(super) identity: Identity,
    pub(super) protocol: Protocol,
    /// Grows with a new identity from outside: all sequences start at 0.
    pub(super) generation: u64,
    /// Grows with each transaction.
    pub(super) transaction: u64,
    /// What is not in flight is given up instead of sent.
    pub(super) discarding: bool,
}

/// A batch on its way: the records and whom to tell.
#[derive(Debug)]
pub(super) struct NewBatch {
    pub(super) id: u64,
    pub(super) topic_partition: TopicPartition,
    pub(super) builder: BatchBuilder,
    pub(super) created: Instant,
    /// The span of the transaction that it is taken for.
    pub(super) parent: Span,
    outcome: watch::Sender<Vec<Part>>,
    room: OwnedSemaphorePermit,
}

/// What stays of a batch, or of a piece of one, when its records are encoded.
#[derive(Debug)]
pub(super) struct Receipt {
    /// Unlike every other receipt's.
    pub(super) id: u64,
    /// The batch it was handed in with.
    batch: u64,
    /// Index of its first record in that batch, and how many it has.
    first: i32,
    records: i32,
    outcome: Arc<watch::Sender<Vec<Part>>>,
    room: Arc<OwnedSemaphorePermit>,
    /// From when it has a sequence to its outcome; nobody's when none looks.
    pub(super) span: Span,
}

/// Ids with this bit are of pieces of batches.
const PIECE_BIT: u64 = 1 << 63;

#[derive(Debug)]
pub(super) struct Accumulator {
    settings: Arc<ProducerSettings>,
    state: Mutex<State>,
    room: Arc<Semaphore>,
    /// Tells the sender that there is something to look at.
    pub(super) work: Notify,
    /// Ids below this have their outcome.
    done_below: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    queues: BTreeMap<TopicPartition, Queue>,
    /// Partition that keyless records of a topic go to at present.
    sticky: BTreeMap<Text, Sticky>,
    rng: SeededRng,
    next_id: u64,
    next_piece: u64,
    /// Open pieces of each batch, and requests that the sender waits for, by id.
    incomplete: BTreeMap<u64, u32>,
    /// Batches with lower ids are sent without lingering.
    hurry_below: u64,
    /// `send` calls that wait for room: nothing lingers meanwhile.
    waiting_for_room: usize,
    /// First failure since it was last taken.
    failure: Option<DeliveryError>,
    orders: Orders,
    /// Of the transaction; nobody's without one.
    span: Span,
    /// The coordinator may know of this transaction.
    asked: bool,
    /// A batch that has a sequence was given up, or may have been lost.
    hole: bool,
    closed: bool,
}

#[derive(Debug, Default)]
struct Queue {
    open: Option<NewBatch>,
    ready: VecDeque<NewBatch>,
}

impl NewBatch {
    /// Parts with the records: what is to be encoded, and whom to tell.
    pub(super) fn split(self) -> (BatchBuilder, Receipt) {
        let receipt = Receipt {
            id: self.id,
            batch: self.id,
            first: 0,
            records: self.builder.records_count(),
            outcome: Arc::new(self.outcome),
            room: Arc::new(self.room),
            span: Span::none(),
        };
        (self.builder, receipt)
    }
}

impl Accumulator {
    pub(super) fn new(settings: Arc<ProducerSettings>, identity: Identity) -> Self {
        Self {
            room: Arc::new(Semaphore::new(settings.buffer_bytes)),
            settings,
            state: Mutex::new(State {
                queues: BTreeMap::new(),
                sticky: BTreeMap::new(),
                rng: SeededRng::new(OsRng.next_u64()),
                next_id: 0,
                next_piece: PIECE_BIT,
                incomplete: BTreeMap::new(),
                hurry_below: 0,
                waiting_for_room: 0,
                failure: None,
                orders: Orders {
                    identity,
                    protocol: Protocol::V2,
                    generation: 0,
                    transaction: 0,
                    discarding: false,
                },
                span: Span::none(),
                asked: false,
                hole: false,
                closed: false,
            }),
            work: Notify::new(),
            done_below: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Waits for room in the buffer. Cancel-safe.
    pub(super) async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, SendError> {
        let bytes = u32::try_from(bytes).expect("a record is at most max.request.size, which fits");
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(bytes) {
            return Ok(room);
        }
        struct Waiting<'a>(&'a Accumulator);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.state().waiting_for_room -= 1;
            }
        }
        self.state().waiting_for_room += 1;
        let _waiting = Waiting(self);
        self.work.notify_one();
        Arc::clone(&self.room).acquire_many_owned(bytes).await.map_err(|_| SendError::Closed)
    }

    /// Takes a record. Its partition is set unless it may go anywhere.
    pub(super) fn append(
        &self,
        record: Record,
        topic: &TopicMetadata,
        room: OwnedSemaphorePermit,
    ) -> Result<Delivery, SendError> {
        let mut state = self.state();
        if state.closed {
            return Err(SendError::Closed);
        }
        if let (true, Some(failure)) = (state.orders.discarding, &state.failure) {
            return Err(SendError::TransactionFailed(failure.clone()));
        }
        let keyless = record.partition.is_none();
        let partition = match record.partition {
            Some(partition) => partition,
            None => state.sticky_partition(topic),
        };
        let topic_partition = TopicPartition::new(topic.name.clone(), partition);
        let (delivery, opened, closed) = state.append(&self.settings, topic_partition, &record, room);
        if keyless && let Some(sticky) = state.sticky.get_mut(&topic.name) {
            sticky.count(record.bytes_max(), self.settings.batch_bytes, opened || closed);
        }
        drop(state);
        if opened || closed {
            self.work.notify_one();
        }
        Ok(delivery)
    }

    /// Sends what is there and waits until it has its outcome. Cancel-safe.
    pub(super) async fn flush(&self) {
        let target = {
            let mut state = self.state();
            state.hurry_below = state.next_id;
            state.next_id
        };
        self.work.notify_one();
        self.wait_done_below(target).await;
    }

    /// The first failure since it was last taken.
    pub(super) fn take_failure(&self) -> Option<DeliveryError> {
        self.state().failure.take()
    }

    async fn wait_done_below(&self, target: u64) {
        let mut done = self.done_below.subscribe();
        let waited = done.wait_for(|done| *done >= target).await;
        waited.expect("the sender of this channel is in self");
    }

    /// Gives up what is not in flight, and waits for what is.
    pub(super) async fn discard(&self) {
        let target = {
            let mut state = self.state();
            state.orders.discarding = true;
            state.next_id
        };
        self.work.notify_one();
        self.wait_done_below(target).await;
    }

    /// Begins a transaction, or takes on a new identity between two; everything has its outcome. Sequences start
    /// at 0 when the identity is another one.
    pub(super) fn begin(&self, identity: Identity, protocol: Protocol) {
        let mut state = self.state();
        assert!(state.incomplete.is_empty(), "an identity changes only between transactions");
        if state.orders.identity != identity {
            state.orders.generation += 1;
            state.orders.identity = identity;
        }
        state.orders.protocol = protocol;
        state.orders.transaction += 1;
        state.orders.discarding = false;
        state.span = Span::none();
        state.failure = None;
        state.asked = false;
        state.hole = false;
    }

    /// What is done from here on is done within this span.
    pub(super) fn enter(&self, span: Span) {
        self.state().span = span;
    }

    /// Whether the coordinator may know of this transaction: something was sent since `begin`.
    pub(super) fn asked(&self) -> bool {
        self.state().asked
    }

    /// Something is about to be sent that makes the coordinator know of this transaction.
    pub(super) fn ask(&self) {
        self.state().asked = true;
    }

    /// Whether the sequences of this identity may have a hole since `begin`.
    pub(super) fn has_hole(&self) -> bool {
        let state = self.state();
        state.hole || state.failure.is_some()
    }

    /// A batch that had a sequence was given up, or a request that cannot be told from a later one is under way.
    pub(super) fn mark_hole(&self) {
        self.state().hole = true;
    }

    /// That request was answered.
    pub(super) fn clear_hole(&self) {
        self.state().hole = false;
    }

    /// The first failure since `begin` or `take_failure`.
    pub(super) fn failure(&self) -> Option<DeliveryError> {
        self.state().failure.clone()
    }

    pub(super) fn identity(&self) -> Identity {
        self.state().orders.identity.clone()
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.state().orders.protocol
    }

    pub(super) fn orders(&self) -> Orders {
        self.state().orders.clone()
    }

    /// The sender has taken on another identity by itself.
    pub(super) fn set_identity(&self, identity: Identity) {
        self.state().orders.identity = identity;
    }

    /// A transaction has failed: nothing more is sent.
    pub(super) fn fail(&self, error: DeliveryError) {
        let mut state = self.state();
        state.failure.get_or_insert(error);
        state.orders.discarding = true;
    }

    /// The sender asks the coordinator for something that must be answered before the transaction may end.
    /// Absent when this transaction is over or being given up.
    pub(super) fn begin_request(&self, transaction: u64) -> Option<u64> {
        let mut state = self.state();
        if state.orders.discarding || state.orders.transaction != transaction {
            return None;
        }
        state.asked = true;
        let id = state.next_id;
        state.next_id += 1;
        state.incomplete.insert(id, 1);
        Some(id)
    }

    /// It has been answered.
    pub(super) fn end_request(&self, id: u64) {
        let state = self.state();
        self.close_piece(state, id);
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.queues.clear();
        state.incomplete.clear();
        let next_id = state.next_id;
        drop(state);
        self.room.close();
        self.done_below.send_replace(next_id);
    }

    /// The partitions that have records.
    pub(super) fn partitions(&self) -> Vec<TopicPartition> {
        self.state().queues.keys().cloned().collect()
    }

    /// Takes the next batch of a partition when it is full, old enough, hurried or room is short. Else says when
    /// it will be. Nothing is taken for an earlier transaction.
    pub(super) fn take(
        &self,
        topic_partition: &TopicPartition,
        transaction: u64,
        now: Instant,
    ) -> Result<NewBatch, Option<Instant>> {
        let mut state = self.state();
        if state.orders.transaction != transaction {
            return Err(None);
        }
        let (hurry_below, short) = (state.hurry_below, state.waiting_for_room > 0);
        let queue = state.queues.get_mut(topic_partition).ok_or(None)?;
        if let Some(mut batch) = queue.ready.pop_front() {
            state.asked = true;
            batch.parent = state.span.clone();
            return Ok(batch);
        }
        let due = match &queue.open {
            Some(open) if open.id < hurry_below || short => now,
            Some(open) => open.created + self.settings.linger,
            None => return Err(None),
        };
        if due > now {
            return Err(Some(due));
        }
        let mut batch = queue.open.take().expect("looked at above");
        state.queues.remove(topic_partition);
        state.asked = true;
        batch.parent = state.span.clone();
        Ok(batch)
    }

    /// Batches that have waited since `before` or longer, or all of them; taken out.
    pub(super) fn take_old(&self, before: Instant, all: bool) -> Vec<NewBatch> {
        let mut state = self.state();
        let mut old = Vec::new();
        state.queues.retain(|_, queue| {
            while queue.ready.front().is_some_and(|batch| all || batch.created <= before) {
                old.extend(queue.ready.pop_front());
            }
            if queue.ready.is_empty()
                && queue.open.as_ref().is_some_and(|batch| all || batch.created <= before)
            {
                old.extend(queue.open.take());
            }
            queue.open.is_some() || !queue.ready.is_empty()
        });
        old
    }

    /// Publishes what became of a batch, or of a piece of one. Its room is free when every piece has its outcome.
    pub(super) fn complete(&self, receipt: Receipt, result: Result<Written, DeliveryError>) {
        let mut state = self.state();
        if let Err(error) = &result {
            state.failure.get_or_insert_with(|| error.clone());
        }
        match &result {
            Ok(written) => {
                receipt.span.record("base_offset", written.base_offset).record("outcome", "written")
            }
            Err(error) => receipt.span.record("outcome", tracing::field::display(error)),
        };
        let part = Part { first: receipt.first, records: receipt.records, result };
        receipt.outcome.send_modify(|parts| parts.push(part));
        self.close_piece(state, receipt.batch);
    }

    fn close_piece(&self, mut state: MutexGuard<'_, State>, id: u64) {
        match state.incomplete.get_mut(&id) {
            Some(open) if *open > 1 => *open -= 1,
            _ => {
                state.incomplete.remove(&id);
            }
        }
        let done_below = state.incomplete.first_key_value().map_or(state.next_id, |(id, _)| *id);
        drop(state);
        self.done_below.send_if_modified(|done| std::mem::replace(done, done_below.max(*done)) < done_below);
    }

    /// Parts a batch, or a piece of one, behind its first `records` records.
    pub(super) fn part(&self, receipt: Receipt, records: i32) -> (Receipt, Receipt) {
        assert!((1..receipt.records).contains(&records), "both pieces have records");
        let mut state = self.state();
        let id = state.next_piece;
        state.next_piece += 1;
        *state.incomplete.entry(receipt.batch).or_insert(1) += 1;
        drop(state);
        let behind = Receipt {
            id,
            batch: receipt.batch,
            first: receipt.first + records,
            records: receipt.records - records,
            outcome: Arc::clone(&receipt.outcome),
            room: Arc::clone(&receipt.room),
            span: receipt.span.clone(),
        };
        (Receipt { records, ..receipt }, behind)
    }
}

impl State {
    /// Where a record goes that may go anywhere.
    fn sticky_partition(&mut self, topic: &TopicMetadata) -> i32 {
        let count = topic.partition_count();
        let sticky = self.sticky.entry(topic.name.clone()).or_default();
        if let Some(partition) = sticky.partition(count) {
            return partition;
        }
        let waiting = |partition| {
            let queue = self.queues.get(&TopicPartition::new(topic.name.clone(), partition));
            queue.map_or(0, |queue| queue.ready.len() + usize::from(queue.open.is_some()))
        };
        sticky.choose(&topic.leaders, waiting, &mut self.rng)
    }

    /// Appends, opening a batch if needed. Says whether one was opened and whether one was closed.
    fn append(
        &mut self,
        settings: &ProducerSettings,
        topic_partition: TopicPartition,
        record: &Record,
        room: OwnedSemaphorePermit,
    ) -> (Delivery, bool, bool) {
        let queue = self.queues.entry(topic_partition.clone()).or_default();
        let full =
            |batch: &NewBatch| batch.builder.estimated_bytes() + record.bytes_max() > settings.batch_bytes;
        let mut closed = false;
        if queue.open.as_ref().is_some_and(full) {
            queue.ready.extend(queue.open.take());
            closed = true;
        }
        let opened = queue.open.is_none();
        match &mut queue.open {
            Some(batch) => batch.room.merge(room),
            None => {
                let id = self.next_id;
                self.next_id += 1;
                self.incomplete.insert(id, 1);
                queue.open = Some(NewBatch {
                    id,
                    topic_partition: topic_partition.clone(),
                    builder: BatchBuilder::new(settings.compression),
                    created: time::now(),
                    parent: Span::none(),
                    outcome: watch::Sender::new(Vec::new()),
                    room,
                });
            }
        }
        let batch = queue.open.as_mut().expect("opened above");
        let index = batch.builder.records_count();
        append_record(&mut batch.builder, record);
        let delivery = Delivery { outcome: batch.outcome.subscribe(), topic_partition, index };
        (delivery, opened, closed)
    }
}

fn append_record(builder: &mut BatchBuilder, record: &Record) {
    let headers: Vec<(&[u8], Option<&[u8]>)> = record
        .headers
        .iter()
        .map(|header| (header.key.as_bytes().as_ref(), header.value.as_deref()))
        .collect();
    let record = NewRecord {
        timestamp: record.timestamp.expect("set when the record was handed in"),
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        headers: &headers,
    };
    builder.append(&record).expect("records and batches are far below 1 GiB by max.request.size");
}
