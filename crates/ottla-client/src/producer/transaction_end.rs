//! What a transaction asks its coordinators beside Produce: to take offsets, and to end.

use std::collections::BTreeMap;

use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use ottla_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, EndTxnRequest, EndTxnResponse, TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
};
use ottla_protocol::types::Text;

use super::accumulator::{Identity, Protocol};
use super::transaction::{TransactionError, TransactionalProducer};
use crate::cluster::{ClusterError, CoordinatorKind};
use crate::connection::Versions;
use crate::error::LEFT_OUT;
use crate::record::{GroupMetadata, OffsetToCommit, TopicPartition};

/// From 5 on the epoch moves with each end.
const END_TXN: Versions = Versions::new(5, 5);
/// Protocol version 1.
const END_TXN_V1: Versions = Versions::new(1, 4);
/// From 5 on the group is added to the transaction by this request itself; 6 names topics by id.
const TXN_OFFSET_COMMIT: Versions = Versions::new(5, 6);
/// Last version that names topics.
const TXN_OFFSET_COMMIT_BY_NAME: Versions = Versions::new(5, 5);
/// Protocol version 1: from members of groups (KIP-447) to before the group is added by itself.
const TXN_OFFSET_COMMIT_V1: Versions = Versions::new(3, 4);
/// Protocol version 1.
const ADD_OFFSETS_TO_TXN: Versions = Versions::new(0, 4);

impl TransactionalProducer {
    /// Ends the transaction: gives up what is not sent (it is all sent when this is a commit), waits for what is
    /// in flight, sends the decision until it is answered.
    pub(super) async fn end(&mut self, commit: bool) -> Result<(), TransactionError> {
        if self.undecided.is_none() {
            if !commit {
                self.core.accumulator.discard().await;
            }
            if !self.core.accumulator.asked() {
                // the coordinator knows of nothing that could be ended
                let identity = self.core.accumulator.identity();
                self.span.record("outcome", "empty");
                self.ended(identity);
                return Ok(());
            }
        }
        self.undecided = Some(commit);
        let started = time::now();
        let answer = self.decide(commit).await;
        let waited_ms = started.elapsed().as_millis();
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.is_retriable() => {
                return Err(self.unknown(commit, waited_ms, error.to_string()));
            }
            Err(error) => return Err(self.fail(error.into())),
        };
        let code = ErrorCode::from_code(answer.error_code);
        let current = self.core.accumulator.identity();
        let protocol = self.core.accumulator.protocol();
        if code.is_none() {
            self.span.record("outcome", if commit { "committed" } else { "aborted" });
        }
        match (code, protocol) {
            (ErrorCode::None, Protocol::V2) => {
                let (producer_id, producer_epoch) = (answer.producer_id, answer.producer_epoch);
                if producer_id < 0 || producer_epoch < 0 {
                    // decided, but not who we are now: InitProducerId tells before the next transaction
                    self.ended(current);
                    self.set_stale();
                    return Ok(());
                }
                self.ended(Identity { producer_id, producer_epoch, ..current });
                return Ok(());
            }
            (ErrorCode::None, Protocol::V1) => {
                self.ended(current);
                return Ok(());
            }
            // whatever was asked for had been refused, nothing is open; the next epoch makes sure of it
            (ErrorCode::InvalidTxnState, Protocol::V1) if !commit && self.core.accumulator.has_hole() => {
                self.span.record("outcome", "aborted");
                self.ended(current);
                return Ok(());
            }
            _ => {}
        }
        match code {
            code if code.is_retriable() || code == ErrorCode::ConcurrentTransactions => {
                Err(self.unknown(commit, waited_ms, format!("the coordinator answered {code}")))
            }
            ErrorCode::TransactionAbortable if commit => {
                self.undecided = None;
                Box::pin(self.end(false)).await?;
                Err(TransactionError::Aborted { cause: format!("the coordinator answered {code}") })
            }
            code => Err(self.fail(self.refusal(code, "EndTxn"))),
        }
    }

    async fn decide(&self, commit: bool) -> Result<EndTxnResponse, ClusterError> {
        let identity = self.core.accumulator.identity();
        let request = EndTxnRequest {
            transactional_id: self.settings.transactional_id.clone(),
            producer_id: identity.producer_id,
            producer_epoch: identity.producer_epoch,
            committed: commit,
            ..EndTxnRequest::default()
        };
        let deadline = time::now() + self.settings.producer.delivery_timeout;
        let key = &self.settings.transactional_id;
        let usable = match self.core.accumulator.protocol() {
            Protocol::V1 => END_TXN_V1,
            Protocol::V2 => END_TXN,
        };
        self.core
            .cluster
            .call_coordinator(CoordinatorKind::Transaction, key, &request, usable, deadline, |answer| {
                ErrorCode::from_code(answer.error_code)
            })
            .await
    }

    pub(super) fn fail(&mut self, error: TransactionError) -> TransactionError {
        self.core.accumulator.enter(tracing::Span::none());
        std::mem::replace(&mut self.span, tracing::Span::none())
            .record("outcome", tracing::field::display(&error));
        self.fatal = Some(error.clone());
        error
    }

    /// A code that ends the producer.
    fn refusal(&self, code: ErrorCode, during: &'static str) -> TransactionError {
        let transactional_id = self.settings.transactional_id.clone();
        match code {
            ErrorCode::ProducerFenced
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::InvalidProducerIdMapping => {
                TransactionError::Fenced { transactional_id, code, during }
            }
            code => TransactionError::Refused { transactional_id, code, during },
        }
    }

    /// Makes offsets part of the transaction. A failure is kept: the transaction must be aborted.
    pub(super) async fn send_offsets(
        &self,
        offsets: &[OffsetToCommit],
        group: &GroupMetadata,
    ) -> Result<(), TransactionError> {
        let accumulator = &self.core.accumulator;
        let had_hole = accumulator.has_hole();
        accumulator.ask();
        accumulator.mark_hole(); // a call that is given up may still be on its way
        let (code, cause) = match self.try_send_offsets(offsets, group).await {
            Ok(ErrorCode::None) => {
                if !had_hole {
                    accumulator.clear_hole();
                }
                return Ok(());
            }
            Ok(code) => (code, format!("offsets of group `{}` were refused with {code}", group.group_id)),
            Err(error) => (ErrorCode::None, error.to_string()),
        };
        let first = offsets.first().map(|offset| offset.topic_partition.clone());
        let topic_partition = first.unwrap_or_else(|| TopicPartition::new(Text::EMPTY, -1));
        let reason = cause.clone();
        // whoever overlooks the error must not commit the records without the offsets
        accumulator.fail(super::DeliveryError::Unsendable { topic_partition, reason });
        if is_fatal(code) {
            return Err(self.refusal(code, "TxnOffsetCommit"));
        }
        if !code.is_none() {
            return Err(TransactionError::OffsetsRefused { group_id: group.group_id.clone(), code });
        }
        Err(TransactionError::MustAbort { cause })
    }

    /// The first code that is not "none", of either coordinator.
    async fn try_send_offsets(
        &self,
        offsets: &[OffsetToCommit],
        group: &GroupMetadata,
    ) -> Result<ErrorCode, TransactionError> {
        let request = self.offsets_request(offsets, group).await?;
        let by_name = request.topics.iter().any(|topic| topic.topic_id.is_zero());
        let usable = match self.core.accumulator.protocol() {
            Protocol::V1 => TXN_OFFSET_COMMIT_V1,
            Protocol::V2 if by_name => TXN_OFFSET_COMMIT_BY_NAME,
            Protocol::V2 => TXN_OFFSET_COMMIT,
        };
        let cluster = &self.core.cluster;
        let deadline = cluster.deadline();
        if self.core.accumulator.protocol() == Protocol::V1 {
            let code = self.add_group(group, deadline).await?;
            if !code.is_none() {
                return Ok(code);
            }
        }
        let (kind, key) = (CoordinatorKind::Group, &group.group_id);
        let code = |answer: &TxnOffsetCommitResponse| code_for(answer, &request);
        let answer = cluster.call_coordinator(kind, key, &request, usable, deadline, code).await?;
        Ok(code(&answer))
    }

    /// Protocol version 1: the group is made known to the transaction's coordinator first.
    async fn add_group(
        &self,
        group: &GroupMetadata,
        deadline: time::Instant,
    ) -> Result<ErrorCode, TransactionError> {
        let identity = self.core.accumulator.identity();
        let request = AddOffsetsToTxnRequest {
            transactional_id: self.settings.transactional_id.clone(),
            producer_id: identity.producer_id,
            producer_epoch: identity.producer_epoch,
            group_id: group.group_id.clone(),
            ..AddOffsetsToTxnRequest::default()
        };
        let (kind, key) = (CoordinatorKind::Transaction, &self.settings.transactional_id);
        let code = |answer: &AddOffsetsToTxnResponse| ErrorCode::from_code(answer.error_code);
        let cluster = &self.core.cluster;
        let answer =
            cluster.call_coordinator(kind, key, &request, ADD_OFFSETS_TO_TXN, deadline, code).await?;
        Ok(code(&answer))
    }

    async fn offsets_request(
        &self,
        offsets: &[OffsetToCommit],
        group: &GroupMetadata,
    ) -> Result<TxnOffsetCommitRequest, TransactionError> {
        let identity = self.core.accumulator.identity();
        let mut topics: BTreeMap<Text, TxnOffsetCommitRequestTopic> = BTreeMap::new();
        for offset in offsets {
            let name = &offset.topic_partition.topic;
            if !topics.contains_key(name) {
                let known = match self.core.cluster.cached_topic(name) {
                    Some(known) => known,
                    None => self.core.cluster.refresh_topic_or_wait(name).await?,
                };
                let topic_id = known.topic_id;
                let topic =
                    TxnOffsetCommitRequestTopic { name: name.clone(), topic_id, ..Default::default() };
                topics.insert(name.clone(), topic);
            }
            let topic = topics.get_mut(name).expect("inserted above");
            topic.partitions.push(TxnOffsetCommitRequestPartition {
                partition_index: offset.topic_partition.partition,
                committed_offset: offset.offset,
                committed_metadata: Some(offset.metadata.clone()),
                ..TxnOffsetCommitRequestPartition::default()
            });
        }
        Ok(TxnOffsetCommitRequest {
            transactional_id: self.settings.transactional_id.clone(),
            group_id: group.group_id.clone(),
            producer_id: identity.producer_id,
            producer_epoch: identity.producer_epoch,
            generation_id_or_member_epoch: group.generation_id,
            member_id: group.member_id.clone(),
            group_instance_id: group.group_instance_id.clone(),
            topics: topics.into_values().collect(),
            ..TxnOffsetCommitRequest::default()
        })
    }
}

/// Codes of TxnOffsetCommit after which the producer cannot go on.
fn is_fatal(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ProducerFenced
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::InvalidProducerIdMapping
            | ErrorCode::InvalidTxnState
            | ErrorCode::TransactionalIdAuthorizationFailed
            | ErrorCode::UnsupportedVersion
            | ErrorCode::UnsupportedForMessageFormat
    )
}

/// The first error of an answer: one that cannot be retried before one that can. An answer without one of the
/// offsets is none.
fn code_for(answer: &TxnOffsetCommitResponse, request: &TxnOffsetCommitRequest) -> ErrorCode {
    let codes = || {
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|partition| ErrorCode::from_code(partition.error_code)).filter(|code| !code.is_none())
    };
    let refused = codes().find(|code| !code.is_retriable()).or_else(|| codes().next());
    refused.unwrap_or_else(|| {
        let is_answered = |asked: &TxnOffsetCommitRequestTopic, index: i32| {
            let topics = answer.topics.iter().filter(|topic| {
                if topic.topic_id.is_zero() {
                    topic.name == asked.name
                } else {
                    topic.topic_id == asked.topic_id
                }
            });
            topics.flat_map(|topic| &topic.partitions).any(|partition| partition.partition_index == index)
        };
        let mut asked = request.topics.iter();
        let all = asked.all(|topic| {
            topic.partitions.iter().all(|partition| is_answered(topic, partition.partition_index))
        });
        if all { ErrorCode::None } else { LEFT_OUT }
    })
}
