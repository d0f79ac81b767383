//! The sender: one task that owns every sequence number of a producer, sends batches and reads the answers.
//!
//! One loop: take orders, give up what is too old, send what is due, wait for work, an answer or a time. Requests
//! in flight are tasks of a group that belongs to the sender, and report through one bounded channel.
//!
//! Invariants: after a failure that leaves a hole in the sequences of an idempotent producer, nothing new is sent
//! until everything open is resolved; then the next epoch begins at sequence 0 (KIP-360). A transactional producer
//! never does that: its transaction fails and is aborted. With protocol version 1 nothing is sent to a partition
//! that the coordinator has not confirmed as part of this transaction.

mod adding;
mod answers;
mod nodes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ottla_env::spawn::TaskGroup;
use ottla_env::time::{self, Instant};
use ottla_protocol::batch::Producer as BatchProducer;
use ottla_protocol::messages::ProduceResponse;
use ottla_protocol::types::{Text, Uuid};
use tokio::sync::mpsc;

use super::accumulator::{Accumulator, Identity, NewBatch, Orders, Protocol};
use super::delivery::DeliveryError;
use super::init_idempotent;
use super::partition_queue::PartitionQueue;
use super::settings::ProducerSettings;
use crate::cluster::{Cluster, ClusterError};
use crate::connection::Connection;
use crate::error::CallError;
use crate::record::TopicPartition;
use adding::{Added, Adding};
use nodes::Node;

/// Reports that may wait for the sender. Each task sends one and ends, so that a full channel only delays them.
const REPORTS_MAX: usize = 64;
/// Longest the sender sleeps without looking around.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// What tasks report.
#[derive(Debug)]
enum Report {
    Answered { node_id: i32, sent: Vec<Sent>, result: Result<ProduceResponse, CallError> },
    Connected { node_id: i32, result: Result<Connection, CallError> },
    Refreshed { topic: Text, result: Result<(), ClusterError> },
    Identity(Result<Identity, ClusterError>),
    Added(Added),
}

/// One partition's batch of a request.
#[derive(Clone, Debug)]
struct Sent {
    topic_partition: TopicPartition,
    topic_id: Uuid,
    batch_id: u64,
}

/// Where an idempotent producer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Sequences have no hole.
    Normal,
    /// Resolving what is open under the old epoch.
    Draining,
    /// Asking for a new producer id: the epochs of the old one are used up.
    Renewing,
}

#[derive(Debug)]
pub(super) struct Sender {
    cluster: Cluster,
    settings: Arc<ProducerSettings>,
    accumulator: Arc<Accumulator>,
    orders: Orders,
    adding: Adding,
    queues: BTreeMap<TopicPartition, PartitionQueue>,
    nodes: BTreeMap<i32, Node>,
    /// Topics whose metadata is being fetched.
    refreshing: BTreeMap<Text, ()>,
    phase: Phase,
    tasks: TaskGroup,
    reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
}

/// A batch that is to go out now.
struct Outgoing {
    sent: Sent,
    bytes: Bytes,
}

impl Sender {
    pub(super) fn new(
        cluster: Cluster,
        settings: Arc<ProducerSettings>,
        accumulator: Arc<Accumulator>,
    ) -> Self {
        let orders = accumulator.orders();
        let (report, reports) = mpsc::channel(REPORTS_MAX);
        Self {
            cluster,
            settings,
            accumulator,
            orders,
            adding: Adding::default(),
            queues: BTreeMap::new(),
            nodes: BTreeMap::new(),
            refreshing: BTreeMap::new(),
            phase: Phase::Normal,
            tasks: TaskGroup::new(),
            reports,
            report,
        }
    }

    /// Runs until it is aborted: the producer owns the task.
    pub(super) async fn run(mut self) {
        let accumulator = Arc::clone(&self.accumulator);
        loop {
            self.take_orders();
            self.give_up_old(time::now());
            self.renew_when_drained();
            let next = self.send_due(time::now()).await;
            tokio::select! {
                report = self.reports.recv() => {
                    self.handle(report.expect("the sender holds the other end"));
                    while let Ok(report) = self.reports.try_recv() {
                        self.handle(report);
                    }
                }
                () = accumulator.work.notified() => {}
                () = time::sleep_until(next) => {}
            }
        }
    }

    fn is_transactional(&self) -> bool {
        self.orders.identity.transactional_id.is_some()
    }

    /// A new identity begins with new sequences; a failed transaction gives up what is not in flight.
    fn take_orders(&mut self) {
        let orders = self.accumulator.orders();
        if orders.generation != self.orders.generation {
            self.queues.clear();
        }
        if orders.transaction != self.orders.transaction {
            self.adding.begin();
        }
        self.orders = orders;
        if self.orders.discarding {
            let aborted = |topic_partition: &TopicPartition| DeliveryError::Aborted {
                topic_partition: topic_partition.clone(),
            };
            for batch in self.accumulator.take_old(time::now(), true) {
                let error = aborted(&batch.topic_partition);
                self.accumulator.complete(batch.split().1, Err(error));
            }
            for (topic_partition, queue) in &mut self.queues {
                for given_up in queue.give_up(|_| true).0 {
                    self.accumulator.mark_hole();
                    self.accumulator.complete(given_up.receipt, Err(aborted(topic_partition)));
                }
            }
        }
    }

    /// Ends batches that are older than `delivery.timeout.ms`.
    fn give_up_old(&mut self, now: Instant) {
        let Some(before) = now.checked_sub(self.settings.delivery_timeout) else { return };
        let timed_out = |topic_partition: &TopicPartition, created: Instant, last: String, may_exist| {
            let last = if last.is_empty() { "no leader was reached".to_owned() } else { last };
            let waited_ms = now.saturating_duration_since(created).as_millis();
            DeliveryError::TimedOut { topic_partition: topic_partition.clone(), waited_ms, last, may_exist }
        };
        let mut failures = Vec::new();
        for batch in self.accumulator.take_old(before, false) {
            let error = timed_out(&batch.topic_partition, batch.created, String::new(), false);
            failures.push((batch.split().1, error));
        }
        let mut holes = false;
        for (topic_partition, queue) in &mut self.queues {
            let (given_up, gap) = queue.give_up(|created| created <= before);
            holes |= gap;
            for batch in given_up {
                let error = timed_out(topic_partition, batch.created, batch.last_error, batch.may_exist);
                failures.push((batch.receipt, error));
            }
        }
        for (receipt, error) in failures {
            if self.is_transactional() {
                self.accumulator.fail(error.clone());
            }
            self.accumulator.complete(receipt, Err(error));
        }
        if holes && !self.is_transactional() {
            self.drain();
        }
    }

    /// An idempotent producer's sequences have a hole.
    fn drain(&mut self) {
        if self.phase == Phase::Normal {
            tracing::warn!(
                producer_id = self.orders.identity.producer_id,
                producer_epoch = self.orders.identity.producer_epoch,
                "sequences have a hole, the next epoch begins when what is open has been answered"
            );
            self.phase = Phase::Draining;
        }
    }

    fn renew_when_drained(&mut self) {
        if self.phase != Phase::Draining || !self.queues.values().all(PartitionQueue::is_settled) {
            return;
        }
        let mut identity = self.orders.identity.clone();
        if let Some(epoch) = identity.producer_epoch.checked_add(1) {
            identity.producer_epoch = epoch;
            return self.restart(identity);
        }
        self.phase = Phase::Renewing;
        let (cluster, report) = (self.cluster.clone(), self.report.clone());
        self.tasks.spawn("producer-renew", async move {
            let result = init_idempotent(&cluster).await;
            let _ = report.send(Report::Identity(result)).await; // the sender has ended: fine
        });
    }

    /// Goes on under another epoch or id: all sequences begin at 0.
    fn restart(&mut self, identity: Identity) {
        self.accumulator.set_identity(identity.clone());
        self.queues.values_mut().for_each(|queue| queue.restart(&identity));
        self.orders.identity = identity;
        self.phase = Phase::Normal;
    }

    fn handle(&mut self, report: Report) {
        match report {
            Report::Answered { node_id, sent, result } => self.handle_answer(node_id, sent, result),
            Report::Connected { node_id, result } => self.handle_connected(node_id, result),
            Report::Refreshed { topic, result } => {
                self.refreshing.remove(&topic);
                if let Err(error) = result {
                    tracing::debug!(%topic, %error, "metadata not refreshed, will be repeated");
                }
            }
            Report::Identity(Ok(identity)) => self.restart(identity),
            Report::Added(added) => self.handle_added(added),
            Report::Identity(Err(error)) => {
                tracing::warn!(%error, "no new producer id yet, will be repeated");
                self.phase = Phase::Draining;
            }
        }
    }

    /// Sends everything that is due and says when to look again.
    async fn send_due(&mut self, now: Instant) -> Instant {
        let mut next = now + LOOK_AROUND;
        if self.phase == Phase::Renewing {
            return next;
        }
        let mut by_node: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
        let mut partitions = self.accumulator.partitions();
        partitions
            .extend(self.queues.iter().filter(|(_, queue)| queue.is_recovering()).map(|(at, _)| at.clone()));
        partitions.sort_unstable();
        partitions.dedup();
        let mut to_add = Vec::new();
        for topic_partition in partitions {
            if self.orders.protocol == Protocol::V1
                && self.is_transactional()
                && !self.adding.has(&topic_partition)
            {
                to_add.push(topic_partition);
                continue;
            }
            let queue = self.queues.entry(topic_partition.clone()).or_default();
            next = next
                .min(queue.oldest_waiting().map_or(next, |oldest| oldest + self.settings.delivery_timeout));
            if let Some(not_before) = queue.not_before.filter(|not_before| *not_before > now) {
                next = next.min(not_before);
                continue;
            }
            match self.cluster.cached_leader(&topic_partition.topic, topic_partition.partition) {
                Some(leader) => by_node.entry(leader).or_default().push(topic_partition),
                None => self.refresh(topic_partition.topic.clone()),
            }
        }
        self.add_partitions(to_add);
        for (node_id, partitions) in by_node {
            self.send_to(node_id, partitions, now, &mut next).await;
        }
        self.queues.retain(|_, queue| !queue.is_empty() || queue.next_sequence() != 0);
        next.max(now + Duration::from_micros(100))
    }

    fn refresh(&mut self, topic: Text) {
        if self.refreshing.insert(topic.clone(), ()).is_some() {
            return;
        }
        let (cluster, report) = (self.cluster.clone(), self.report.clone());
        let pause = self.settings.client.retry_backoff;
        self.tasks.spawn("producer-metadata", async move {
            let result = cluster.refresh_topic(&topic).await.map(|_| ());
            if result.is_err() || !cluster.has_leaders(&topic) {
                time::sleep(pause).await;
            }
            let _ = report.send(Report::Refreshed { topic, result }).await; // the sender has ended: fine
        });
    }

    /// What a partition has to send now: a repetition first, else a new batch.
    fn next_batch(
        &mut self,
        topic_partition: &TopicPartition,
        now: Instant,
        next: &mut Instant,
    ) -> Option<(u64, Bytes)> {
        let window = self.settings.max_in_flight;
        let queue = self.queues.get_mut(topic_partition)?;
        if let Some(again) = queue.resend(window) {
            return Some(again);
        }
        if self.phase != Phase::Normal || queue.is_recovering() || !queue.has_room(window) {
            return None;
        }
        match self.accumulator.take(topic_partition, self.orders.transaction, now) {
            Ok(batch) => Some(assign(queue, &self.orders.identity, batch)),
            Err(Some(due)) => {
                *next = (*next).min(due);
                None
            }
            Err(None) => None,
        }
    }
}

/// Gives a new batch its sequence.
fn assign(queue: &mut PartitionQueue, identity: &Identity, batch: NewBatch) -> (u64, Bytes) {
    let created = batch.created;
    let span = tracing::debug_span!(
        parent: &batch.parent,
        "batch",
        partition = %batch.topic_partition,
        records = batch.builder.records_count(),
        base_sequence = queue.next_sequence(),
        base_offset = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    let (mut builder, mut receipt) = batch.split();
    receipt.span = span;
    let (id, records) = (receipt.id, builder.records_count());
    builder.set_producer(BatchProducer {
        producer_id: identity.producer_id,
        producer_epoch: identity.producer_epoch,
        base_sequence: queue.next_sequence(),
        transactional: identity.transactional_id.is_some(),
    });
    let bytes = builder.build();
    queue.push_sent(receipt, bytes.clone(), created, records);
    (id, bytes)
}
