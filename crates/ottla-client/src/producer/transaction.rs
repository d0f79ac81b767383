//! Transactions (KIP-98, KIP-890): records and offsets over many partitions that become visible together.
//!
//! Which protocol is spoken follows the cluster's finalized `transaction.version`, and changes between
//! transactions only. With version 2 the first record or offset of a partition adds it, every end moves the
//! producer epoch on, and each epoch's sequences begin at 0, so that a late request of an earlier transaction can
//! never reach a later one. With version 1 (Kafka before 4.0) partitions and groups are added first, and the epoch
//! stays; it is moved on (KIP-360) after a transaction that failed, because its sequences may have a hole and its
//! requests may still be on their way.
//!
//! Invariants: at most one transaction is open (the borrow checker sees to that); a decision is sent only when
//! everything handed in has its outcome; a decision that was sent once is repeated, with the same epoch, until the
//! coordinator answers, and never changed.

use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::InitProducerIdRequest;
use ottla_protocol::types::Text;
use tracing::{Instrument, Span};

use super::accumulator::{Identity, Protocol};
use super::delivery::{Delivery, DeliveryError};
use super::settings::TransactionalSettings;
use super::{Core, INIT_PRODUCER_ID, SendError};
use crate::cluster::{Cluster, ClusterError, CoordinatorKind};
use crate::connection::Finalized;
use crate::error::{ErrorClass, LEFT_OUT};
use crate::record::{GroupMetadata, OffsetToCommit, Record};

/// Why a transaction, or its producer, cannot go on.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{ErrorClass, TransactionalProducer, TransactionalSettings};
///
/// let settings = TransactionalSettings::new(client, "worker-1");
/// let mut zombie = TransactionalProducer::init(settings.clone()).await?;
/// let transaction = zombie.begin().await?;
/// # transaction.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// let mut successor = TransactionalProducer::init(settings).await?; // the same name: the first is fenced off
/// # successor.begin().await?.abort().await?;
/// let error = transaction.commit().await.expect_err("fenced off");
/// assert_eq!(error.class(), ErrorClass::Fatal);
/// println!("{error}"); // the producer of transactional id `worker-1` was fenced off ...
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransactionError {
    /// Another producer took the transactional id, or the coordinator gave this one up after its time-out.
    #[error(
        "the producer of transactional id `{transactional_id}` was fenced off ({code} on {during}): another producer \
         has taken the id, or the transaction was open for longer than transaction.timeout.ms; stop, or make a new \
         producer"
    )]
    Fenced {
        /// The id.
        transactional_id: Text,
        /// What the broker said.
        code: ErrorCode,
        /// To which request.
        during: &'static str,
    },
    /// Nothing was written: the transaction has been aborted.
    #[error("the transaction was aborted: {cause}")]
    Aborted {
        /// What went wrong first.
        cause: String,
    },
    /// The transaction has failed and must be aborted.
    #[error("the transaction has failed and must be aborted: {cause}")]
    MustAbort {
        /// What went wrong first.
        cause: String,
    },
    /// The group did not take the transaction's offsets; it must be aborted. With `ILLEGAL_GENERATION`,
    /// `UNKNOWN_MEMBER_ID`, `FENCED_INSTANCE_ID` or `STALE_MEMBER_EPOCH` the partitions may be somebody else's now
    /// (KIP-447).
    #[error("group `{group_id}` refused the offsets of the transaction with {code}: it must be aborted")]
    OffsetsRefused {
        /// The group.
        group_id: Text,
        /// What its coordinator said.
        code: ErrorCode,
    },
    /// The coordinator did not answer in time; whether it decided is not known.
    #[error(
        "no answer to the {} of a transaction of `{transactional_id}` within {waited_ms} ms: {last}; its outcome is \
         not known. Call `resolve`, or make a new producer, which ends it",
        if *commit { "commit" } else { "abort" }
    )]
    Unknown {
        /// The id.
        transactional_id: Text,
        /// The decision that was asked for.
        commit: bool,
        /// How long it was tried.
        waited_ms: u128,
        /// The last failure.
        last: String,
    },
    /// The broker cannot do it, now or ever.
    #[error("the broker refused {during} for transactional id `{transactional_id}`: {code}")]
    Refused {
        /// The id.
        transactional_id: Text,
        /// What it said.
        code: ErrorCode,
        /// To which request.
        during: &'static str,
    },
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl TransactionError {
    /// What it asks for.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Aborted { .. } | Self::MustAbort { .. } | Self::OffsetsRefused { .. } => {
                ErrorClass::Abortable
            }
            Self::Unknown { .. } => ErrorClass::Retriable,
            Self::Cluster(error) if error.is_retriable() => ErrorClass::Retriable,
            Self::Fenced { .. } | Self::Refused { .. } | Self::Cluster(_) => ErrorClass::Fatal,
        }
    }
}

/// A producer with a name that survives crashes. Making one ends whatever an earlier producer of that name left
/// open, and fences it off.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{GroupMetadata, OffsetToCommit, Record, TopicPartition};
/// use ottla_client::{TransactionalProducer, TransactionalSettings};
///
/// let mut producer = TransactionalProducer::init(TransactionalSettings::new(client, "worker-1")).await?;
/// println!("{} is {:?}", producer.transactional_id(), producer.producer_id_and_epoch());
/// let transaction = producer.begin().await?;
/// transaction.send(Record::to("orders").key("alice").value("3")).await?;
/// let done = OffsetToCommit::new(TopicPartition::new("orders", 0), 42);
/// transaction.send_offsets(&[done], &GroupMetadata::without_members("workers")).await?;
/// match transaction.commit().await {
///     Ok(()) => println!("everything is there"),
///     // no answer came: ask again until it is known
///     Err(error) if error.class() == ottla_client::ErrorClass::Retriable => {
///         println!("everything is there: {}", producer.resolve().await?);
///     }
///     Err(error) => println!("nothing is there: {error}"),
/// }
/// producer.close().await?;
/// # Ok(())
/// # });
/// ```
///
/// A transaction is used up by its end, and there is only one at a time:
///
/// ```compile_fail
/// # async fn example(mut producer: ottla_client::TransactionalProducer) {
/// let one = producer.begin().await.unwrap();
/// let two = producer.begin().await.unwrap();
/// one.commit().await.unwrap();
/// # }
/// ```
///
/// Nothing can be sent outside of one:
///
/// ```compile_fail
/// # async fn example(mut producer: ottla_client::TransactionalProducer) {
/// producer.begin().await.unwrap().commit().await.unwrap();
/// producer.send(ottla_client::Record::to("totals").value("3")).await.unwrap();
/// # }
/// ```
///
/// nor in one that has ended, whether it was committed or its producer was fenced off meanwhile:
///
/// ```compile_fail
/// # async fn example(mut producer: ottla_client::TransactionalProducer) {
/// let transaction = producer.begin().await.unwrap();
/// if let Err(ottla_client::TransactionError::Fenced { .. }) = transaction.commit().await {
///     transaction.send(ottla_client::Record::to("totals").value("3")).await.unwrap();
/// }
/// # }
/// ```
///
/// nor with a producer that was closed:
///
/// ```compile_fail
/// # async fn example(mut producer: ottla_client::TransactionalProducer) {
/// producer.close().await.unwrap();
/// producer.begin().await.unwrap();
/// # }
/// ```
///
/// That a producer was fenced off is known at run time only: every call on it returns the same
/// [`TransactionError::Fenced`] from then on, and asks no broker. What does compile, so that the three above fail
/// for what they show:
///
/// ```
/// # async fn example(mut producer: ottla_client::TransactionalProducer) {
/// let transaction = producer.begin().await.unwrap();
/// transaction.send(ottla_client::Record::to("totals").value("3")).await.unwrap();
/// if let Err(ottla_client::TransactionError::Fenced { .. }) = transaction.commit().await {
///     return;
/// }
/// producer.begin().await.unwrap().commit().await.unwrap();
/// producer.close().await.unwrap();
/// # }
/// ```
#[derive(Debug)]
pub struct TransactionalProducer {
    pub(super) core: Core,
    pub(super) settings: TransactionalSettings,
    /// A transaction was begun and neither committed nor aborted: its `Transaction` was dropped.
    open: bool,
    /// A decision that was asked for and not answered yet.
    pub(super) undecided: Option<bool>,
    /// The epoch must move on before the next transaction.
    stale: bool,
    /// Epoch of the features that the protocol was last chosen by.
    features_epoch: i64,
    /// Nothing works any more.
    pub(super) fatal: Option<TransactionError>,
    /// Of the open transaction, from its begin to its outcome.
    pub(super) span: Span,
}

impl TransactionalProducer {
    /// Connects, takes the transactional id over and ends what was left open under it, waiting for that up to
    /// `default.api.timeout.ms`. Cancel-safe: a call that was given up may have fenced off the former producer.
    pub async fn init(settings: TransactionalSettings) -> Result<Self, TransactionError> {
        settings.check().map_err(ClusterError::from)?;
        let cluster = Cluster::connect(settings.producer.client.clone()).await?;
        let found = cluster.finalized(TRANSACTION_VERSION).await?;
        let identity = init_transactional(&cluster, &settings, None).await?;
        let core = Core::start(cluster, settings.producer.clone(), identity.clone());
        core.accumulator.begin(identity, protocol_of(found));
        let features_epoch = found.map_or(-1, |found| found.epoch);
        let (open, stale, span) = (false, false, Span::none());
        Ok(Self { core, settings, open, undecided: None, stale, features_epoch, fatal: None, span })
    }

    /// The producer id and epoch in use; both may change with each transaction.
    pub fn producer_id_and_epoch(&self) -> (i64, i16) {
        let identity = self.core.accumulator.identity();
        (identity.producer_id, identity.producer_epoch)
    }

    /// The transactional id.
    pub fn transactional_id(&self) -> &Text {
        &self.settings.transactional_id
    }

    /// Begins a transaction. One that was dropped without an end, or whose abort has not been answered, is aborted
    /// first; one whose commit has not been answered is an error until `resolve` has been called. Asks the
    /// coordinator for a new epoch when the last transaction of protocol version 1 failed. Cancel-safe: what was
    /// begun is finished by the next call.
    pub async fn begin(&mut self) -> Result<Transaction<'_>, TransactionError> {
        self.check()?;
        if self.undecided == Some(true) {
            return Err(self.unknown(true, 0, "it has not been resolved".to_owned()));
        }
        if self.open {
            self.end(false).await?;
        }
        let mut identity = self.core.accumulator.identity();
        if self.stale {
            identity = self.next_epoch(&identity).await?;
        }
        let protocol = self.choose_protocol();
        self.span = tracing::info_span!(
            "transaction",
            transactional_id = %self.settings.transactional_id,
            producer_id = identity.producer_id,
            producer_epoch = identity.producer_epoch,
            ?protocol,
            outcome = tracing::field::Empty,
        );
        self.core.accumulator.begin(identity, protocol);
        self.core.accumulator.enter(self.span.clone());
        self.open = true;
        Ok(Transaction { producer: self })
    }

    /// Moves the epoch on at the coordinator.
    async fn next_epoch(&mut self, current: &Identity) -> Result<Identity, TransactionError> {
        match init_transactional(&self.core.cluster, &self.settings, Some(current)).await {
            Ok(identity) => {
                self.stale = false;
                // at once, so that a call that is given up behind this one does not lose it
                self.core.accumulator.begin(identity.clone(), self.core.accumulator.protocol());
                Ok(identity)
            }
            Err(error) if error.class() == ErrorClass::Retriable => Err(error),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// By what the cluster has finalized; the newest that any open connection has told counts.
    fn choose_protocol(&mut self) -> Protocol {
        match self.core.cluster.finalized_now(TRANSACTION_VERSION) {
            Some(found) if found.epoch >= self.features_epoch => {
                self.features_epoch = found.epoch;
                protocol_of(Some(found))
            }
            _ => self.core.accumulator.protocol(),
        }
    }

    /// Closes the producer: aborts what is open, or repeats the decision that was not answered, then ends its
    /// connections. What is dropped without this is aborted by the coordinator after `transaction.timeout.ms`, or
    /// when the transactional id is taken again; and so is what is open when this future is dropped.
    pub async fn close(mut self) -> Result<(), TransactionError> {
        self.check()?;
        match self.undecided {
            Some(commit) => self.end(commit).await,
            None if self.open => self.end(false).await,
            None => Ok(()),
        }
    }

    /// Repeats a decision whose outcome is not known, until the coordinator answers or `delivery.timeout.ms` has
    /// passed. `true`: it was a commit and everything is visible. Does nothing when no outcome is open.
    /// Cancel-safe.
    pub async fn resolve(&mut self) -> Result<bool, TransactionError> {
        self.check()?;
        match self.undecided {
            Some(commit) => {
                self.end(commit).await?;
                Ok(commit)
            }
            None => Ok(false),
        }
    }

    fn check(&self) -> Result<(), TransactionError> {
        self.fatal.clone().map_or(Ok(()), Err)
    }

    /// The transaction's end was answered.
    pub(super) fn ended(&mut self, identity: Identity) {
        self.undecided = None;
        self.open = false;
        self.span = Span::none();
        let accumulator = &self.core.accumulator;
        let same = identity == accumulator.identity();
        self.stale |= same && accumulator.has_hole();
        accumulator.begin(identity, accumulator.protocol());
    }

    /// The coordinator has to be asked for an epoch before the next transaction.
    pub(super) fn set_stale(&mut self) {
        self.stale = true;
    }

    pub(super) fn unknown(&self, commit: bool, waited_ms: u128, last: String) -> TransactionError {
        let transactional_id = self.settings.transactional_id.clone();
        TransactionError::Unknown { transactional_id, commit, waited_ms, last }
    }
}

/// An open transaction. It ends with `commit` or `abort`; when it is dropped, the next `begin` aborts it, or the
/// coordinator after `transaction.timeout.ms`.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let mut producer = TransactionalProducer::init(TransactionalSettings::new(client, "worker-1")).await?;
/// use ottla_client::{GroupMetadata, OffsetToCommit, Record, TopicPartition};
///
/// let transaction = producer.begin().await?;
/// transaction.send(Record::to("orders").value("a lamp")).await?;
/// let read = OffsetToCommit::new(TopicPartition::new("orders", 0), 42);
/// transaction.send_offsets(&[read], &GroupMetadata::without_members("workers")).await?;
/// transaction.flush().await?; // written, and visible to nobody who reads committed records
/// let regretted = true;
/// if regretted {
///     transaction.abort().await?;
/// } else {
///     transaction.commit().await?;
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Debug)]
#[must_use = "a transaction that is dropped is aborted"]
pub struct Transaction<'a> {
    producer: &'a mut TransactionalProducer,
}

impl Transaction<'_> {
    /// Takes a record into the transaction, waiting for room in the buffer up to `max.block.ms`. Dropping the
    /// future before it is ready leaves the record out.
    pub async fn send(&self, record: Record) -> Result<Delivery, SendError> {
        self.producer.core.send(record).await
    }

    /// Makes a group's offsets part of the transaction. With a member's metadata the broker refuses them when the
    /// member has been replaced (KIP-447). Retries inside; after a failure the transaction must be aborted.
    /// If the future is dropped, the offsets may be part of the transaction.
    pub async fn send_offsets(
        &self,
        offsets: &[OffsetToCommit],
        group: &GroupMetadata,
    ) -> Result<(), TransactionError> {
        if offsets.is_empty() {
            return Ok(());
        }
        let span = self.producer.span.clone();
        self.producer.send_offsets(offsets, group).instrument(span).await
    }

    /// Sends everything at once and waits until it is written, without ending the transaction. An error means
    /// that the transaction must be aborted. Cancel-safe.
    pub async fn flush(&self) -> Result<(), DeliveryError> {
        self.producer.core.accumulator.flush().await;
        self.producer.core.accumulator.failure().map_or(Ok(()), Err)
    }

    /// Writes what is buffered and commits. `Ok`: everything is visible to `read_committed` readers.
    /// `Aborted`: something could not be written, the transaction was aborted, the next may be begun. `Unknown`:
    /// no answer within `delivery.timeout.ms`; see `TransactionalProducer::resolve`. If the future is dropped,
    /// the transaction may be committed; `begin` then asks for `resolve` or aborts, as is right.
    pub async fn commit(self) -> Result<(), TransactionError> {
        let span = self.producer.span.clone();
        let committed = async move {
            self.producer.core.accumulator.flush().await;
            if let Some(failure) = self.producer.core.accumulator.failure() {
                self.producer.end(false).await?;
                return Err(TransactionError::Aborted { cause: failure.to_string() });
            }
            self.producer.end(true).await
        };
        committed.instrument(span).await
    }

    /// Gives up what is buffered and aborts: nothing of it will ever be visible to `read_committed` readers. If
    /// the future is dropped, the next `begin` finishes it.
    pub async fn abort(self) -> Result<(), TransactionError> {
        let span = self.producer.span.clone();
        self.producer.end(false).instrument(span).await
    }
}

/// The feature that says which protocol is spoken (KIP-890).
const TRANSACTION_VERSION: &str = "transaction.version";

fn protocol_of(finalized: Option<Finalized>) -> Protocol {
    match finalized {
        Some(Finalized { level: 2.., .. }) => Protocol::V2,
        _ => Protocol::V1,
    }
}

/// Takes over the transactional id, or moves the epoch of its `current` holder on.
async fn init_transactional(
    cluster: &Cluster,
    settings: &TransactionalSettings,
    current: Option<&Identity>,
) -> Result<Identity, TransactionError> {
    const DURING: &str = "InitProducerId";
    let transactional_id = settings.transactional_id.clone();
    let request = InitProducerIdRequest {
        transactional_id: Some(transactional_id.clone()),
        transaction_timeout_ms: i32::try_from(settings.transaction_timeout.as_millis()).unwrap_or(i32::MAX),
        producer_id: current.map_or(-1, |identity| identity.producer_id),
        producer_epoch: current.map_or(-1, |identity| identity.producer_epoch),
        ..InitProducerIdRequest::default()
    };
    let started = time::now();
    let answer = cluster
        .call_coordinator(
            CoordinatorKind::Transaction,
            &transactional_id,
            &request,
            INIT_PRODUCER_ID,
            cluster.deadline(),
            |answer| ErrorCode::from_code(answer.error_code),
        )
        .await?;
    match ErrorCode::from_code(answer.error_code) {
        ErrorCode::None if answer.producer_id < 0 || answer.producer_epoch < 0 => {
            Err(TransactionError::Refused { transactional_id, code: LEFT_OUT, during: DURING })
        }
        ErrorCode::None => {
            tracing::debug!(%transactional_id, producer_id = answer.producer_id, waited = ?started.elapsed(), "took over");
            let (producer_id, producer_epoch) = (answer.producer_id, answer.producer_epoch);
            Ok(Identity { producer_id, producer_epoch, transactional_id: Some(transactional_id) })
        }
        code @ (ErrorCode::ProducerFenced
        | ErrorCode::InvalidProducerEpoch
        | ErrorCode::InvalidProducerIdMapping)
            if current.is_some() =>
        {
            Err(TransactionError::Fenced { transactional_id, code, during: DURING })
        }
        code => Err(TransactionError::Refused { transactional_id, code, during: DURING }),
    }
}
