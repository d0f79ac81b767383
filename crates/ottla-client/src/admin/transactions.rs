//! Transactions as operators see them (KIP-664): which there are, who holds a partition open, and how to end one.

use std::collections::BTreeMap;

use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::describe_producers_request::TopicRequest;
use ottla_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use ottla_protocol::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest, WriteTxnMarkersRequest,
};
use ottla_protocol::types::Text;

use super::{Admin, AdminError};
use crate::cluster::{ClusterError, CoordinatorKind};
use crate::connection::Versions;
use crate::record::TopicPartition;

const LIST_TRANSACTIONS: Versions = Versions::new(0, 2);
const DESCRIBE_TRANSACTIONS: Versions = Versions::new(0, 0);
const DESCRIBE_PRODUCERS: Versions = Versions::new(0, 0);
const WRITE_TXN_MARKERS: Versions = Versions::new(1, 2);

/// Which transactions are listed; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionFilter {
    /// Kafka's names of states: `Empty`, `Ongoing`, `PrepareCommit`, `PrepareAbort`, `CompleteCommit`,
    /// `CompleteAbort`, `PrepareEpochFence`.
    pub states: Vec<Text>,
    /// Producer ids.
    pub producer_ids: Vec<i64>,
    /// Open for longer than this, in ms.
    pub running_longer_than_ms: Option<i64>,
}

/// A transactional id, as listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionListing {
    /// The id.
    pub transactional_id: Text,
    /// Its producer id.
    pub producer_id: i64,
    /// Kafka's name of its state.
    pub state: Text,
}

/// A transactional id, as its coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    /// The id.
    pub transactional_id: Text,
    /// Kafka's name of its state.
    pub state: Text,
    /// Its producer id.
    pub producer_id: i64,
    /// Its producer epoch.
    pub producer_epoch: i16,
    /// `transaction.timeout.ms` of its producer.
    pub timeout_ms: i32,
    /// When the open transaction began, ms since the Unix epoch; -1 when there is none.
    pub start_time_ms: i64,
    /// Partitions of the open transaction.
    pub partitions: Vec<TopicPartition>,
    /// The broker that coordinates it.
    pub coordinator_id: i32,
}

/// A producer that a partition remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// Its producer id.
    pub producer_id: i64,
    /// Its producer epoch.
    pub producer_epoch: i32,
    /// Sequence of its last record, -1 when none is remembered.
    pub last_sequence: i32,
    /// Time of its last record in ms.
    pub last_timestamp: i64,
    /// Epoch of the coordinator that last ended a transaction of it here, -1 for none.
    pub coordinator_epoch: i32,
    /// Where its open transaction begins here; absent when it has none.
    pub transaction_start_offset: Option<i64>,
}

/// A transaction on one partition to be aborted by force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortTransaction {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The producer that holds it open.
    pub producer_id: i64,
    /// Its epoch there.
    pub producer_epoch: i16,
    /// The coordinator's epoch as the partition knows it; -1 counts as 0.
    pub coordinator_epoch: i32,
}

impl Admin {
    /// Transactional ids, from every broker, sorted. Cancel-safe.
    pub async fn list_transactions(
        &self,
        filter: &TransactionFilter,
    ) -> Result<Vec<TransactionListing>, AdminError> {
        let request = ListTransactionsRequest {
            state_filters: filter.states.clone(),
            producer_id_filters: filter.producer_ids.clone(),
            duration_filter: filter.running_longer_than_ms.unwrap_or(-1),
            ..ListTransactionsRequest::default()
        };
        let mut listings = Vec::new();
        for node in self.cluster.nodes() {
            let answer = self.ask_node(node.node_id, &request).await?;
            listings.extend(answer.transaction_states.iter().map(|state| TransactionListing {
                transactional_id: state.transactional_id.detached(),
                producer_id: state.producer_id,
                state: state.transaction_state.detached(),
            }));
        }
        listings.sort();
        Ok(listings)
    }

    async fn ask_node(
        &self,
        node_id: i32,
        request: &ListTransactionsRequest,
    ) -> Result<ottla_protocol::messages::ListTransactionsResponse, AdminError> {
        let (started, deadline) = (time::now(), self.cluster.deadline());
        let mut backoff = self.cluster.backoff();
        loop {
            match self.cluster.call_node(node_id, request, LIST_TRANSACTIONS).await {
                Ok(answer) => {
                    let code = ErrorCode::from_code(answer.error_code);
                    let until = time::now() + backoff.next();
                    if code.is_retriable() && until < deadline {
                        time::sleep_until(until).await;
                        continue;
                    }
                    AdminError::check(answer.error_code, None, || {
                        format!("listing transactions of broker {node_id}")
                    })?;
                    return Ok(answer);
                }
                Err(error) if error.is_retriable() => {
                    self.cluster.pause(&mut backoff, deadline, started, error).await?;
                }
                Err(error) => return Err(ClusterError::from(error).into()),
            }
        }
    }

    /// A transactional id, from its coordinator. Cancel-safe.
    pub async fn describe_transaction(
        &self,
        transactional_id: &Text,
    ) -> Result<TransactionDescription, AdminError> {
        let request = DescribeTransactionsRequest {
            transactional_ids: vec![transactional_id.clone()],
            ..DescribeTransactionsRequest::default()
        };
        let (kind, deadline) = (CoordinatorKind::Transaction, self.cluster.deadline());
        let answer = self
            .cluster
            .call_coordinator(kind, transactional_id, &request, DESCRIBE_TRANSACTIONS, deadline, |answer| {
                let state = answer.transaction_states.first();
                state.map_or(ErrorCode::UnknownServerError, |state| ErrorCode::from_code(state.error_code))
            })
            .await?;
        let what = || format!("describing transactional id `{transactional_id}`");
        let Some(state) = answer.transaction_states.first() else {
            let code = ErrorCode::UnknownServerError;
            return Err(AdminError::Refused { what: what(), code, message: None });
        };
        AdminError::check(state.error_code, None, what)?;
        let partitions = state.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| TopicPartition::new(topic.topic.detached(), *partition))
        });
        Ok(TransactionDescription {
            transactional_id: state.transactional_id.detached(),
            state: state.transaction_state.detached(),
            producer_id: state.producer_id,
            producer_epoch: state.producer_epoch,
            timeout_ms: state.transaction_timeout_ms,
            start_time_ms: state.transaction_start_time_ms,
            partitions: partitions.collect(),
            coordinator_id: self.cluster.coordinator(kind, transactional_id, deadline).await?,
        })
    }

    /// The producers that a partition remembers, by id. Cancel-safe.
    pub async fn describe_producers(&self, at: &TopicPartition) -> Result<Vec<ProducerState>, AdminError> {
        let topic = TopicRequest {
            name: at.topic.clone(),
            partition_indexes: vec![at.partition],
            ..TopicRequest::default()
        };
        let request = DescribeProducersRequest { topics: vec![topic], ..DescribeProducersRequest::default() };
        let answer = self
            .call_leader(at, &request, DESCRIBE_PRODUCERS, |answer| {
                let partition = answer.topics.first().and_then(|topic| topic.partitions.first());
                partition.map_or(ErrorCode::UnknownServerError, |p| ErrorCode::from_code(p.error_code))
            })
            .await?;
        let what = || format!("describing the producers of {at}");
        let Some(partition) = answer.topics.first().and_then(|topic| topic.partitions.first()) else {
            let code = ErrorCode::UnknownServerError;
            return Err(AdminError::Refused { what: what(), code, message: None });
        };
        AdminError::check(partition.error_code, partition.error_message.as_ref(), what)?;
        let mut producers: Vec<_> = partition
            .active_producers
            .iter()
            .map(|producer| ProducerState {
                producer_id: producer.producer_id,
                producer_epoch: producer.producer_epoch,
                last_sequence: producer.last_sequence,
                last_timestamp: producer.last_timestamp,
                coordinator_epoch: producer.coordinator_epoch,
                transaction_start_offset: (producer.current_txn_start_offset >= 0)
                    .then_some(producer.current_txn_start_offset),
            })
            .collect();
        producers.sort_by_key(|producer| producer.producer_id);
        Ok(producers)
    }

    /// Ends a transaction on one partition by writing an abort marker, past its coordinator. For transactions
    /// that no coordinator knows; otherwise a new producer with the same transactional id is the safe way. If the
    /// future is dropped, the marker may be written.
    pub async fn abort_transaction(&self, abort: &AbortTransaction) -> Result<(), AdminError> {
        let at = &abort.topic_partition;
        let topic = WritableTxnMarkerTopic {
            name: at.topic.clone(),
            partition_indexes: vec![at.partition],
            ..WritableTxnMarkerTopic::default()
        };
        let marker = WritableTxnMarker {
            producer_id: abort.producer_id,
            producer_epoch: abort.producer_epoch,
            transaction_result: false,
            topics: vec![topic],
            coordinator_epoch: abort.coordinator_epoch.max(0),
            ..WritableTxnMarker::default()
        };
        let request = WriteTxnMarkersRequest { markers: vec![marker], ..WriteTxnMarkersRequest::default() };
        let codes: fn(&ottla_protocol::messages::WriteTxnMarkersResponse) -> ErrorCode = |answer| {
            let partition = answer
                .markers
                .first()
                .and_then(|m| m.topics.first())
                .and_then(|topic| topic.partitions.first());
            partition.map_or(ErrorCode::UnknownServerError, |p| ErrorCode::from_code(p.error_code))
        };
        let answer = self.call_leader(at, &request, WRITE_TXN_MARKERS, codes).await?;
        AdminError::check(codes(&answer).code(), None, || {
            format!("aborting the transaction of producer {} on {at}", abort.producer_id)
        })
    }

    /// The transactional ids behind producer ids; those that none has are left out. Cancel-safe.
    pub async fn transactional_ids(&self, producer_ids: &[i64]) -> Result<BTreeMap<i64, Text>, AdminError> {
        let filter =
            TransactionFilter { producer_ids: producer_ids.to_vec(), ..TransactionFilter::default() };
        let listings = self.list_transactions(&filter).await?;
        Ok(listings.into_iter().map(|listing| (listing.producer_id, listing.transactional_id)).collect())
    }
}
