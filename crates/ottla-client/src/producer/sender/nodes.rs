//! Sending to one node: its connection, its requests in flight, and how batches become a request.

use std::collections::BTreeMap;

use ottla_env::time::Instant;
use ottla_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use ottla_protocol::messages::{ProduceRequest, Records};

use super::{Outgoing, Protocol, Report, Sender, Sent};
use crate::cluster::Lane;
use crate::connection::{Connection, Versions};
use crate::error::CallError;
use crate::record::TopicPartition;

/// From flexible versions to topic ids.
const PRODUCE: Versions = Versions::new(9, 13);
/// A transaction adds its partitions by Produce itself from 12 on (KIP-890).
const PRODUCE_TRANSACTIONAL: Versions = Versions::new(12, 13);
/// Last version that does not.
const PRODUCE_TRANSACTIONAL_V1: Versions = Versions::new(9, 11);
/// Last version that names topics.
const PRODUCE_BY_NAME_MAX: i16 = 12;

/// A node that batches are sent to.
#[derive(Debug, Default)]
pub(super) struct Node {
    connection: Option<Connection>,
    connecting: bool,
    in_flight: usize,
}

impl Sender {
    /// Sends one or more requests to a node, as far as its connection and the limits allow.
    pub(super) async fn send_to(
        &mut self,
        node_id: i32,
        partitions: Vec<TopicPartition>,
        now: Instant,
        next: &mut Instant,
    ) {
        let mut again = partitions;
        loop {
            let Some(connection) = self.connection(node_id) else { return };
            if self.nodes.get(&node_id).is_some_and(|node| node.in_flight >= self.settings.max_in_flight) {
                return;
            }
            let (outgoing, left) = self.collect(again, now, next);
            if outgoing.is_empty() {
                return;
            }
            self.send_request(node_id, &connection, outgoing).await;
            again = left;
        }
    }

    /// The node's open connection. When there is none, one is being made and the batches stay where they are.
    fn connection(&mut self, node_id: i32) -> Option<Connection> {
        let node = self.nodes.entry(node_id).or_default();
        if let Some(connection) = node.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Some(connection.clone());
        }
        node.connection = None;
        if !std::mem::replace(&mut node.connecting, true) {
            let (cluster, report) = (self.cluster.clone(), self.report.clone());
            self.tasks.spawn("producer-connect", async move {
                let result = cluster.node(node_id, Lane::Data).await;
                let _ = report.send(Report::Connected { node_id, result }).await; // the sender has ended: fine
            });
        }
        None
    }

    pub(super) fn handle_connected(&mut self, node_id: i32, result: Result<Connection, CallError>) {
        let node = self.nodes.entry(node_id).or_default();
        node.connecting = false;
        match result {
            Ok(connection) => node.connection = Some(connection),
            Err(error) => {
                tracing::debug!(node_id, %error, "broker not reached, will be repeated");
                let topics: Vec<_> = self.queues.keys().map(|at| at.topic.clone()).collect();
                topics.iter().for_each(|topic| self.cluster.forget_topic(topic));
            }
        }
    }

    /// One batch per partition up to `max.request.size`; and the partitions that may have more.
    fn collect(
        &mut self,
        partitions: Vec<TopicPartition>,
        now: Instant,
        next: &mut Instant,
    ) -> (Vec<Outgoing>, Vec<TopicPartition>) {
        let (mut outgoing, mut left, mut bytes_total) = (Vec::new(), Vec::new(), 0);
        for topic_partition in partitions {
            if bytes_total >= self.settings.max_request_bytes {
                left.push(topic_partition);
                continue;
            }
            let Some((batch_id, bytes)) = self.next_batch(&topic_partition, now, next) else { continue };
            bytes_total += bytes.len();
            let topic_id = self
                .cluster
                .cached_topic(&topic_partition.topic)
                .map_or_else(Default::default, |t| t.topic_id);
            left.push(topic_partition.clone());
            outgoing.push(Outgoing { sent: Sent { topic_partition, topic_id, batch_id }, bytes });
        }
        (outgoing, left)
    }

    async fn send_request(&mut self, node_id: i32, connection: &Connection, outgoing: Vec<Outgoing>) {
        let mut usable = match (self.is_transactional(), self.orders.protocol) {
            (false, _) => PRODUCE,
            (true, Protocol::V1) => PRODUCE_TRANSACTIONAL_V1,
            (true, Protocol::V2) => PRODUCE_TRANSACTIONAL,
        };
        if outgoing.iter().any(|outgoing| outgoing.sent.topic_id.is_zero()) {
            usable.max = usable.max.min(PRODUCE_BY_NAME_MAX);
        }
        let (request, sent) = self.produce_request(outgoing);
        let started = match connection.version::<ProduceRequest>(usable) {
            Ok(version) => connection.start(&request, version).await,
            Err(error) => Err(error),
        };
        let mut pending = match started {
            Ok(pending) => pending,
            Err(error) => return self.handle_unsent(sent, &error),
        };
        self.nodes.entry(node_id).or_default().in_flight += 1;
        let report = self.report.clone();
        self.tasks.spawn("producer-answer", async move {
            let result = pending.wait().await;
            let _ = report.send(Report::Answered { node_id, sent, result }).await; // the sender has ended: fine
        });
    }

    fn produce_request(&self, outgoing: Vec<Outgoing>) -> (ProduceRequest, Vec<Sent>) {
        let mut topics: BTreeMap<_, TopicProduceData> = BTreeMap::new();
        let mut sent = Vec::with_capacity(outgoing.len());
        for Outgoing { sent: place, bytes } in outgoing {
            let topic =
                topics.entry(place.topic_partition.topic.clone()).or_insert_with(|| TopicProduceData {
                    name: place.topic_partition.topic.clone(),
                    topic_id: place.topic_id,
                    ..TopicProduceData::default()
                });
            topic.partition_data.push(PartitionProduceData {
                index: place.topic_partition.partition,
                records: Some(Records::from(bytes)),
                ..PartitionProduceData::default()
            });
            sent.push(place);
        }
        let timeout_ms = i32::try_from(self.settings.client.request_timeout.as_millis()).unwrap_or(i32::MAX);
        let request = ProduceRequest {
            transactional_id: self.orders.identity.transactional_id.clone(),
            acks: -1,
            timeout_ms,
            topic_data: topics.into_values().collect(),
            ..ProduceRequest::default()
        };
        (request, sent)
    }

    /// An answer, or its failure, has freed a place.
    pub(super) fn finished(&mut self, node_id: i32) {
        if let Some(node) = self.nodes.get_mut(&node_id) {
            node.in_flight = node.in_flight.saturating_sub(1);
        }
    }
}
