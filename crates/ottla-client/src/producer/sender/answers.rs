//! What answers to Produce mean for the batches they speak of.

use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::ProduceResponse;
use ottla_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use ottla_protocol::types::Text;

use super::{Sender, Sent};
use crate::backoff::Backoff;
use crate::error::{CallError, wants_metadata};
use crate::producer::delivery::{DeliveryError, Written};
use crate::record::TopicPartition;

impl Sender {
    pub(super) fn handle_answer(
        &mut self,
        node_id: i32,
        sent: Vec<Sent>,
        result: Result<ProduceResponse, CallError>,
    ) {
        self.finished(node_id);
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => return self.handle_unsent(sent, &error),
        };
        for place in sent {
            match find(&answer, &place) {
                Some(partition) => self.handle_partition(&place, partition),
                None => self.retry(&place, true, "the broker's answer left the partition out".to_owned()),
            }
        }
    }

    /// The request had no answer, or could not be sent at all.
    pub(super) fn handle_unsent(&mut self, sent: Vec<Sent>, error: &CallError) {
        for place in sent {
            if error.is_retriable() || error.may_have_happened() {
                self.cluster.forget_topic(&place.topic_partition.topic);
                self.retry(&place, error.may_have_happened(), error.to_string());
            } else {
                let topic_partition = place.topic_partition.clone();
                self.refuse(&place, DeliveryError::Unsendable { topic_partition, reason: error.to_string() });
            }
        }
    }

    fn handle_partition(&mut self, place: &Sent, answer: &PartitionProduceResponse) {
        let code = ErrorCode::from_code(answer.error_code);
        match code {
            ErrorCode::None | ErrorCode::DuplicateSequenceNumber => {
                let log_append_time = (answer.log_append_time_ms >= 0).then_some(answer.log_append_time_ms);
                let written = Written { base_offset: answer.base_offset, log_append_time };
                let receipt =
                    self.queues.get_mut(&place.topic_partition).and_then(|q| q.succeed(place.batch_id));
                if let Some(receipt) = receipt {
                    self.accumulator.complete(receipt, Ok(written));
                }
            }
            ErrorCode::OutOfOrderSequenceNumber => {
                self.handle_out_of_order(place, code, answer.error_message.as_ref())
            }
            ErrorCode::UnknownProducerId | ErrorCode::InvalidProducerEpoch if !self.is_transactional() => {
                self.handle_out_of_order(place, code, answer.error_message.as_ref());
            }
            ErrorCode::MessageTooLarge if self.part(place) => {}
            code if code.is_retriable() || code == ErrorCode::ConcurrentTransactions => {
                if wants_metadata(code) {
                    self.cluster.forget_topic(&place.topic_partition.topic);
                }
                // 20: appended, but the broker cannot say that it is durable
                let may_exist =
                    matches!(code, ErrorCode::NotEnoughReplicasAfterAppend | ErrorCode::RequestTimedOut);
                self.retry(place, may_exist, format!("the broker answered {code}"));
            }
            code => {
                let topic_partition = place.topic_partition.clone();
                let message = answer.error_message.as_ref().map(Text::detached);
                self.refuse(place, DeliveryError::Refused { topic_partition, code, message });
            }
        }
    }

    fn handle_out_of_order(&mut self, place: &Sent, code: ErrorCode, message: Option<&Text>) {
        let Some(queue) = self.queues.get_mut(&place.topic_partition) else { return };
        let is_final = queue.out_of_order(place.batch_id, &format!("the broker answered {code}"));
        if !is_final {
            return self.pause(&place.topic_partition);
        }
        if self.is_transactional() {
            let topic_partition = place.topic_partition.clone();
            self.refuse(
                place,
                DeliveryError::Refused { topic_partition, code, message: message.map(Text::detached) },
            );
        } else {
            self.drain();
        }
    }

    /// Parts a batch that is too large for its topic; false for a single record.
    fn part(&mut self, place: &Sent) -> bool {
        let Some(queue) = self.queues.get_mut(&place.topic_partition) else { return false };
        let parted = queue.part(place.batch_id, |receipt, records| self.accumulator.part(receipt, records));
        if parted {
            tracing::debug!(partition = %place.topic_partition, "batch is too large for its topic, sent in two");
        }
        parted
    }

    fn retry(&mut self, place: &Sent, may_exist: bool, error: String) {
        tracing::debug!(partition = %place.topic_partition, %error, "batch will be sent again");
        if let Some(queue) = self.queues.get_mut(&place.topic_partition) {
            queue.retry(place.batch_id, may_exist, error);
        }
        self.pause(&place.topic_partition);
    }

    /// Lets a partition rest before its next attempt.
    fn pause(&mut self, topic_partition: &TopicPartition) {
        let Some(queue) = self.queues.get_mut(topic_partition) else { return };
        let client = &self.settings.client;
        let mut backoff = Backoff::new(client.retry_backoff, client.retry_backoff_max);
        backoff.skip(queue.failures);
        queue.failures = queue.failures.saturating_add(1);
        queue.not_before = Some(time::now() + backoff.next());
    }

    /// A batch can never be written.
    fn refuse(&mut self, place: &Sent, error: DeliveryError) {
        let refused =
            self.queues.get_mut(&place.topic_partition).and_then(|queue| queue.refuse(place.batch_id));
        let Some((receipt, gap)) = refused else { return };
        if self.is_transactional() {
            self.accumulator.fail(error.clone());
        } else if gap {
            self.drain();
        }
        self.accumulator.complete(receipt, Err(error));
    }
}

/// The answer for a partition: by topic id where the version has them, else by name.
fn find<'a>(answer: &'a ProduceResponse, place: &Sent) -> Option<&'a PartitionProduceResponse> {
    let same = |topic: &&TopicProduceResponse| {
        if topic.topic_id.is_zero() {
            topic.name == place.topic_partition.topic
        } else {
            topic.topic_id == place.topic_id
        }
    };
    let topic = answer.responses.iter().find(same)?;
    topic.partition_responses.iter().find(|partition| partition.index == place.topic_partition.partition)
}
