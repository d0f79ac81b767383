//! Records waiting to be sent: one open batch per partition, closed ones behind it, all within `buffer.memory`.
//!
//! Shared between the users' tasks, which append, and the sender, which takes batches out and reports what
//! became of them. Invariant: a batch is in exactly one place (open, ready, with the sender) until its outcome is
//! published, and its bytes are held in the buffer until then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use ottla_env::time::{self, Instant};
use ottla_protocol::batch::BatchBuilder;
use ottla_protocol::record::NewRecord;
use ottla_protocol::types::Text;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::SendError;
use super::delivery::{BatchOutcome, Delivery, DeliveryError};
use super::settings::ProducerSettings;
use crate::record::{Record, TopicPartition};

/// Who writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) producer_id: i64,
    pub(super) producer_epoch: i16,
    pub(super) transactional_id: Option<Text>,
}

/// A batch on its way: the records and whom to tell.
#[derive(Debug)]
pub(super) struct NewBatch {
    pub(super) id: u64,
    pub(super) topic_partition: TopicPartition,
    pub(super) builder: BatchBuilder,
    pub(super) created: Instant,
    outcome: watch::Sender<Option<BatchOutcome>>,
    room: OwnedSemaphorePermit,
}

/// What stays of a batch when its records are encoded.
#[derive(Debug)]
pub(super) struct Receipt {
    pub(super) id: u64,
    outcome: watch::Sender<Option<BatchOutcome>>,
    _room: OwnedSemaphorePermit,
}

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
    sticky: BTreeMap<Text, i32>,
    next_id: u64,
    incomplete: BTreeSet<u64>,
    /// Batches with lower ids are sent without lingering.
    hurry_below: u64,
    /// `send` calls that wait for room: nothing lingers meanwhile.
    waiting_for_room: usize,
    /// First failure since it was last taken.
    failure: Option<DeliveryError>,
    identity: Identity,
    /// Grows when the identity is set from outside; the sender then starts all sequences at 0.
    generation: u64,
    /// What is not in flight is given up instead of sent.
    discarding: bool,
    touched: bool,
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
        (self.builder, Receipt { id: self.id, outcome: self.outcome, _room: self.room })
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
                next_id: 0,
                incomplete: BTreeSet::new(),
                hurry_below: 0,
                waiting_for_room: 0,
                failure: None,
                identity,
                generation: 0,
                discarding: false,
                touched: false,
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

    /// Takes a record. Its partition is set unless it has no key.
    pub(super) fn append(
        &self,
        record: Record,
        partition_count: i32,
        room: OwnedSemaphorePermit,
    ) -> Result<Delivery, SendError> {
        let mut state = self.state();
        if state.closed {
            return Err(SendError::Closed);
        }
        if let (true, Some(failure)) = (state.discarding, &state.failure) {
            return Err(SendError::TransactionFailed(failure.clone()));
        }
        let partition =
            record.partition.unwrap_or_else(|| state.sticky_partition(&record.topic, partition_count));
        let topic_partition = TopicPartition::new(record.topic.clone(), partition);
        let keyless = record.partition.is_none();
        let (delivery, opened, closed) = state.append(&self.settings, topic_partition, &record, room);
        if keyless && closed {
            state.sticky.insert(record.topic, (partition + 1) % partition_count);
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
            state.discarding = true;
            state.next_id
        };
        self.work.notify_one();
        self.wait_done_below(target).await;
    }

    /// Takes on a new identity; everything has its outcome. Sequences start at 0.
    pub(super) fn begin(&self, identity: Identity) {
        let mut state = self.state();
        assert!(state.incomplete.is_empty(), "an identity changes only between transactions");
        state.identity = identity;
        state.generation += 1;
        state.discarding = false;
        state.failure = None;
        state.touched = false;
    }

    /// Whether anything was appended or marked since `begin`.
    pub(super) fn touched(&self) -> bool {
        self.state().touched
    }

    pub(super) fn touch(&self) {
        self.state().touched = true;
    }

    /// The first failure since `begin` or `take_failure`.
    pub(super) fn failure(&self) -> Option<DeliveryError> {
        self.state().failure.clone()
    }

    pub(super) fn identity(&self) -> Identity {
        self.state().identity.clone()
    }

    /// Identity, its generation, and whether to give up what waits.
    pub(super) fn orders(&self) -> (Identity, u64, bool) {
        let state = self.state();
        (state.identity.clone(), state.generation, state.discarding)
    }

    /// The sender has taken on another identity by itself.
    pub(super) fn set_identity(&self, identity: Identity) {
        self.state().identity = identity;
    }

    /// A transaction has failed: nothing more is sent.
    pub(super) fn fail(&self, error: DeliveryError) {
        let mut state = self.state();
        state.failure.get_or_insert(error);
        state.discarding = true;
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
    /// it will be. Nothing is taken for an older generation of the identity.
    pub(super) fn take(
        &self,
        topic_partition: &TopicPartition,
        generation: u64,
        now: Instant,
    ) -> Result<NewBatch, Option<Instant>> {
        let mut state = self.state();
        if state.generation != generation {
            return Err(None);
        }
        let (hurry_below, short) = (state.hurry_below, state.waiting_for_room > 0);
        let queue = state.queues.get_mut(topic_partition).ok_or(None)?;
        if let Some(batch) = queue.ready.pop_front() {
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
        let batch = queue.open.take().expect("looked at above");
        state.queues.remove(topic_partition);
        if let Some(sticky) = state.sticky.get_mut(&topic_partition.topic) {
            *sticky = topic_partition.partition.wrapping_add(1);
        }
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

    /// Publishes what became of a batch and frees its room.
    pub(super) fn complete(&self, receipt: Receipt, outcome: BatchOutcome) {
        let mut state = self.state();
        if let Err(error) = &outcome {
            state.failure.get_or_insert_with(|| error.clone());
        }
        receipt.outcome.send_replace(Some(outcome));
        state.incomplete.remove(&receipt.id);
        let done_below = state.incomplete.first().copied().unwrap_or(state.next_id);
        drop(state);
        self.done_below.send_if_modified(|done| std::mem::replace(done, done_below.max(*done)) < done_below);
    }
}

impl State {
    fn sticky_partition(&mut self, topic: &Text, partition_count: i32) -> i32 {
        match self.sticky.get_mut(topic) {
            Some(partition) => {
                *partition = partition.rem_euclid(partition_count);
                *partition
            }
            None => {
                self.sticky.insert(topic.clone(), 0);
                0
            }
        }
    }

    /// Appends, opening a batch if needed. Says whether one was opened and whether one was closed.
    fn append(
        &mut self,
        settings: &ProducerSettings,
        topic_partition: TopicPartition,
        record: &Record,
        room: OwnedSemaphorePermit,
    ) -> (Delivery, bool, bool) {
        self.touched = true;
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
                self.incomplete.insert(id);
                queue.open = Some(NewBatch {
                    id,
                    topic_partition: topic_partition.clone(),
                    builder: BatchBuilder::new(settings.compression),
                    created: time::now(),
                    outcome: watch::Sender::new(None),
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
