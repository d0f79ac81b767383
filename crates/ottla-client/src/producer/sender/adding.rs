//! Protocol version 1: a transaction's partitions are made known to its coordinator before anything is written to
//! them (AddPartitionsToTxn, KIP-98).
//!
//! One request at a time, with every partition that has records by then. It counts as open work of the
//! transaction, so that no end is sent while it is under way: a late one would reopen the transaction.

use std::collections::{BTreeMap, BTreeSet};

use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use ottla_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
use ottla_protocol::types::Text;

use super::{Report, Sender};
use crate::cluster::{ClusterError, CoordinatorKind};
use crate::connection::Versions;
use crate::error::LEFT_OUT;
use crate::producer::delivery::DeliveryError;
use crate::record::TopicPartition;

/// Later versions are for brokers.
const ADD_PARTITIONS_TO_TXN: Versions = Versions::new(0, 3);

/// What this transaction's coordinator knows.
#[derive(Debug, Default)]
pub(super) struct Adding {
    added: BTreeSet<TopicPartition>,
    under_way: bool,
}

/// An answered request.
#[derive(Debug)]
pub(super) struct Added {
    request_id: u64,
    partitions: Vec<TopicPartition>,
    code: Result<ErrorCode, ClusterError>,
}

impl Adding {
    /// Another transaction has begun.
    pub(super) fn begin(&mut self) {
        self.added.clear();
    }

    pub(super) fn has(&self, topic_partition: &TopicPartition) -> bool {
        self.added.contains(topic_partition)
    }
}

impl Sender {
    /// Asks for partitions to be added, unless a request is under way: they are asked for again when it is over.
    pub(super) fn add_partitions(&mut self, partitions: Vec<TopicPartition>) {
        let Some(transactional_id) = self.orders.identity.transactional_id.clone() else { return };
        if partitions.is_empty() || self.adding.under_way {
            return;
        }
        let Some(request_id) = self.accumulator.begin_request(self.orders.transaction) else { return };
        self.adding.under_way = true;
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: transactional_id.clone(),
            v3_and_below_producer_id: self.orders.identity.producer_id,
            v3_and_below_producer_epoch: self.orders.identity.producer_epoch,
            v3_and_below_topics: by_topic(&partitions),
            ..AddPartitionsToTxnRequest::default()
        };
        let (cluster, report) = (self.cluster.clone(), self.report.clone());
        let deadline = time::now() + self.settings.delivery_timeout;
        self.tasks.spawn("producer-add", async move {
            let kind = CoordinatorKind::Transaction;
            let usable = ADD_PARTITIONS_TO_TXN;
            let code = |answer: &AddPartitionsToTxnResponse| code_for(answer, &partitions);
            let result =
                cluster.call_coordinator(kind, &transactional_id, &request, usable, deadline, code).await;
            let code = result.map(|answer| code_for(&answer, &partitions));
            let added = Added { request_id, partitions, code };
            let _ = report.send(Report::Added(added)).await; // the sender has ended: fine
        });
    }

    pub(super) fn handle_added(&mut self, added: Added) {
        self.adding.under_way = false;
        let Added { request_id, partitions, code } = added;
        let first = partitions.first().cloned().expect("only asked for with partitions");
        match code {
            Ok(ErrorCode::None) => self.adding.added.extend(partitions),
            Ok(code) => self.accumulator.fail(DeliveryError::Refused {
                topic_partition: first,
                code,
                message: Some(Text::from_static("AddPartitionsToTxn was refused")),
            }),
            Err(error) => {
                let reason = format!("AddPartitionsToTxn: {error}");
                self.accumulator.fail(DeliveryError::Unsendable { topic_partition: first, reason });
            }
        }
        self.accumulator.end_request(request_id);
    }
}

fn by_topic(partitions: &[TopicPartition]) -> Vec<AddPartitionsToTxnTopic> {
    let mut topics: BTreeMap<&Text, AddPartitionsToTxnTopic> = BTreeMap::new();
    for at in partitions {
        let topic = topics.entry(&at.topic).or_default();
        topic.name = at.topic.clone();
        topic.partitions.push(at.partition);
    }
    topics.into_values().collect()
}

/// The error that speaks: one that cannot be retried before one that can; partitions that were not tried because
/// of another one say nothing. An answer without one of the partitions is none.
fn code_for(answer: &AddPartitionsToTxnResponse, asked: &[TopicPartition]) -> ErrorCode {
    let codes = || {
        let topics = answer.results_by_topic_v3_and_below.iter();
        let partitions = topics.flat_map(|topic| &topic.results_by_partition);
        let codes = partitions.map(|partition| ErrorCode::from_code(partition.partition_error_code));
        codes.filter(|code| !code.is_none() && *code != ErrorCode::OperationNotAttempted)
    };
    let refused = codes().find(|code| !code.is_retriable()).or_else(|| codes().next());
    refused.unwrap_or_else(|| {
        let confirmed = |at: &TopicPartition| {
            let topics = answer.results_by_topic_v3_and_below.iter().filter(|topic| topic.name == at.topic);
            topics.flat_map(|topic| &topic.results_by_partition).any(|partition| {
                partition.partition_index == at.partition && partition.partition_error_code == 0
            })
        };
        if asked.iter().all(confirmed) { ErrorCode::None } else { LEFT_OUT }
    })
}
