//! What becomes of a record.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;
use tokio::sync::watch;

use crate::error::ErrorClass;
use crate::record::TopicPartition;

/// Where a record was written.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client)).await?;
/// let written = producer.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// println!("{} at offset {}, {:?}", written.topic_partition, written.offset, written.log_append_time);
/// # assert_eq!(written.offset, 0);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// Its offset; -1 when the broker recognized a repetition whose offset it has forgotten.
    pub offset: i64,
    /// The broker's time in ms on topics with LogAppendTime.
    pub log_append_time: Option<i64>,
}

/// Why a record was not written, or not known to be.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client)).await?;
/// use ottla_client::{DeliveryError, ErrorClass, ErrorCode, Record, admin::NewTopic};
///
/// admin.create_topic(&NewTopic::new("notes", 1).config("max.message.bytes", "100")).await?;
/// let delivery = producer.send(Record::to("notes").value("much too long ".repeat(100))).await?;
/// let error = delivery.wait().await.expect_err("it is too large");
/// assert!(matches!(error, DeliveryError::Refused { code: ErrorCode::MessageTooLarge, .. }));
/// assert_eq!(error.class(), ErrorClass::Abortable); // in a transaction: abort it, the next may work
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// Time is up.
    #[error(
        "records for {topic_partition} were not confirmed within {waited_ms} ms (delivery.timeout.ms): {last}{}",
        if *may_exist { "; they may or may not have been written" } else { "; they were not written" }
    )]
    TimedOut {
        /// Where to.
        topic_partition: TopicPartition,
        /// How long it was tried.
        waited_ms: u128,
        /// What went wrong last.
        last: String,
        /// Whether an attempt may have succeeded without our knowing.
        may_exist: bool,
    },
    /// The broker will not have them.
    #[error("the broker refused records for {topic_partition} with {code}{}", message.as_ref().map_or_else(String::new, |m| format!(": {m}")))]
    Refused {
        /// Where to.
        topic_partition: TopicPartition,
        /// Its reason.
        code: ErrorCode,
        /// Its words.
        message: Option<Text>,
    },
    /// The request cannot be sent at all.
    #[error("records for {topic_partition} cannot be sent: {reason}")]
    Unsendable {
        /// Where to.
        topic_partition: TopicPartition,
        /// Why.
        reason: String,
    },
    /// The transaction was aborted before they were sent.
    #[error("the transaction was aborted before the records for {topic_partition} were written")]
    Aborted {
        /// Where to.
        topic_partition: TopicPartition,
    },
    /// The producer ended first.
    #[error("the producer was closed before the broker confirmed the record")]
    Closed,
}

impl DeliveryError {
    /// What a transactional producer must do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Refused { code, .. } if is_fatal(*code) => ErrorClass::Fatal,
            Self::Closed => ErrorClass::Fatal,
            Self::TimedOut { .. } | Self::Refused { .. } | Self::Unsendable { .. } | Self::Aborted { .. } => {
                ErrorClass::Abortable
            }
        }
    }
}

/// Codes of Produce after which the producer cannot go on.
pub(super) fn is_fatal(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ProducerFenced
            | ErrorCode::TransactionalIdAuthorizationFailed
            | ErrorCode::ClusterAuthorizationFailed
            | ErrorCode::UnsupportedVersion
            | ErrorCode::InvalidProducerIdMapping
    )
}

/// Where a batch was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) base_offset: i64,
    pub(super) log_append_time: Option<i64>,
}

/// What some of a batch's records came to: all of them, unless the batch was parted because it was too large.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) first: i32,
    pub(super) records: i32,
    pub(super) result: Result<Written, DeliveryError>,
}

/// The outcome of one record, to be waited for or dropped.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client)).await?;
/// let delivery = producer.send(Record::to("orders").key("alice").value("a lamp")).await?;
/// println!("on its way to {}", delivery.topic_partition());
/// let written = delivery.wait().await?;
/// # assert_eq!(written.offset, 0);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Delivery {
    pub(super) outcome: watch::Receiver<Vec<Part>>,
    pub(super) topic_partition: TopicPartition,
    pub(super) index: i32,
}

impl Delivery {
    /// The partition that was chosen.
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.topic_partition
    }

    /// Waits for the outcome. Cancel-safe; ends within `delivery.timeout.ms` and one `request.timeout.ms`.
    pub async fn wait(mut self) -> Result<RecordMetadata, DeliveryError> {
        let index = self.index;
        let covers = |part: &&Part| (part.first..part.first.saturating_add(part.records)).contains(&index);
        let waited = self.outcome.wait_for(|parts| parts.iter().any(|part| covers(&part))).await;
        let part = match waited {
            Ok(parts) => parts.iter().find(covers).cloned().expect("waited for"),
            Err(_) => return Err(DeliveryError::Closed),
        };
        let written = part.result?;
        let offset = if written.base_offset < 0 {
            -1
        } else {
            written.base_offset.saturating_add(i64::from(index - part.first))
        };
        let topic_partition = self.topic_partition;
        Ok(RecordMetadata { topic_partition, offset, log_append_time: written.log_append_time })
    }
}
