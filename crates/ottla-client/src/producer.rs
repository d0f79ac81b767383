//! Producers: records in, batches out, each written once.
//!
//! Place: `Producer` and `TransactionalProducer` are what users hold. Behind both stand the accumulator (open
//! batches per partition, bounded by `buffer.memory`) and one sender task that owns every sequence number.
//!
//! ```text
//! send -> partition -> accumulator -> sender: sequence, in flight (5 per partition) -> answer -> Delivery
//! ```
//!
//! Invariants: a batch keeps its sequence for ever once it has one, until an answer says that it was not
//! written; a partition's batches are sent in order of their sequences; every record handed in gets exactly one
//! outcome.

mod accumulator;
mod delivery;
mod partition_queue;
mod sender;
mod settings;
mod sticky;
mod transaction;
mod transaction_end;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ottla_env::clock::{Clock, OsClock};
use ottla_env::spawn::{self, TaskHandle};
use ottla_env::time;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::InitProducerIdRequest;
use ottla_protocol::types::Text;

use crate::cluster::{Cluster, ClusterError};
use crate::connection::Versions;
use crate::error::LEFT_OUT;
use crate::record::{Record, TopicPartition};
use accumulator::{Accumulator, Identity};
use sender::Sender;

pub use delivery::{Delivery, DeliveryError, RecordMetadata};
pub use settings::{ProducerSettings, TransactionalSettings};
pub use transaction::{Transaction, TransactionError, TransactionalProducer};

const INIT_PRODUCER_ID: Versions = Versions::new(3, 5);

/// Why a record was not taken.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{Producer, ProducerSettings, Record, SendError};
///
/// let producer = Producer::connect(ProducerSettings::new(client)).await?;
/// let error = producer.send(Record::to("orders").partition(7).value("a lamp")).await.expect_err("there is one");
/// assert!(matches!(error, SendError::NoSuchPartition { partition_count: 1, .. }));
/// println!("{error}"); // orders/7 does not exist: the topic has 1 partitions
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum SendError {
    /// Larger than one request may be.
    #[error("the record for {topic} takes up to {bytes} bytes, more than max.request.size = {bytes_max}")]
    TooLarge {
        /// Its topic.
        topic: Text,
        /// Bytes it takes at most.
        bytes: usize,
        /// The setting.
        bytes_max: usize,
    },
    /// The partition asked for does not exist.
    #[error("{topic_partition} does not exist: the topic has {partition_count} partitions")]
    NoSuchPartition {
        /// What was asked for.
        topic_partition: TopicPartition,
        /// How many there are.
        partition_count: i32,
    },
    /// The topic cannot be looked up.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The buffer stayed full.
    #[error(
        "the buffer of {buffer_bytes} bytes (buffer.memory) stayed full for {waited_ms} ms (max.block.ms); \
         the broker takes records more slowly than they are handed in"
    )]
    BufferFull {
        /// The setting.
        buffer_bytes: usize,
        /// How long it was waited for.
        waited_ms: u128,
    },
    /// The transaction has failed already.
    #[error("the transaction has failed and must be aborted: {0}")]
    TransactionFailed(DeliveryError),
    /// The producer has ended.
    #[error("the producer has been closed")]
    Closed,
}

/// An idempotent producer: what it is given is written once and in order per partition, whatever the network
/// and the brokers do within `delivery.timeout.ms`.
///
/// Clones share the buffer and the connections. When the last clone is dropped, what was not delivered yet is
/// given up; call `flush` first.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use ottla_client::{Producer, ProducerSettings, Record};
///
/// let producer = Producer::connect(ProducerSettings::new(client)).await?;
/// for order in 0..1000 {
///     producer.send(Record::to("orders").key(order.to_string()).value("a lamp")).await?;
/// }
/// producer.flush().await?; // tells the first failure; a `Delivery` tells of its record
/// println!("written by producer {}", producer.producer_id());
/// # assert_eq!(admin.high_watermarks(&[TopicPartition::new("orders", 0)]).await?.into_values().sum::<i64>(), 1000);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Producer {
    core: Arc<Core>,
}

/// What both producers are made of.
#[derive(Debug)]
struct Core {
    cluster: Cluster,
    settings: Arc<ProducerSettings>,
    accumulator: Arc<Accumulator>,
    sender: TaskHandle<()>,
    round_robin: AtomicU32,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.accumulator.close();
        self.sender.abort();
    }
}

impl Producer {
    /// Connects and obtains a producer id. Cancel-safe.
    pub async fn connect(settings: ProducerSettings) -> Result<Self, ClusterError> {
        settings.check()?;
        let cluster = Cluster::connect(settings.client.clone()).await?;
        let identity = init_idempotent(&cluster).await?;
        Ok(Self { core: Arc::new(Core::start(cluster, settings, identity)) })
    }

    /// Takes a record into the buffer, waiting for room up to `max.block.ms`, and hands back what can be waited
    /// for. Dropping the future before it is ready leaves the record out.
    pub async fn send(&self, record: Record) -> Result<Delivery, SendError> {
        self.core.send(record).await
    }

    /// Sends what is buffered without waiting for `linger.ms`, and waits until everything that was taken before
    /// has its outcome. The first failure among it is the error; each record's own is in its `Delivery`.
    /// Cancel-safe.
    pub async fn flush(&self) -> Result<(), DeliveryError> {
        self.core.accumulator.flush().await;
        self.core.accumulator.take_failure().map_or(Ok(()), Err)
    }

    /// The producer id in use.
    pub fn producer_id(&self) -> i64 {
        self.core.accumulator.identity().producer_id
    }
}

impl Core {
    fn start(cluster: Cluster, settings: ProducerSettings, identity: Identity) -> Self {
        let settings = Arc::new(settings);
        let accumulator = Arc::new(Accumulator::new(Arc::clone(&settings), identity));
        let sender = Sender::new(cluster.clone(), Arc::clone(&settings), Arc::clone(&accumulator));
        let sender = spawn::task("producer-sender", sender.run());
        Self { cluster, settings, accumulator, sender, round_robin: AtomicU32::new(0) }
    }

    async fn send(&self, mut record: Record) -> Result<Delivery, SendError> {
        let bytes = record.bytes_max();
        let bytes_max = self.settings.max_request_bytes;
        if bytes > bytes_max {
            return Err(SendError::TooLarge { topic: record.topic, bytes, bytes_max });
        }
        let metadata = match self.cluster.cached_topic(&record.topic) {
            Some(metadata) => metadata,
            None => self.cluster.refresh_topic_or_wait(&record.topic).await?,
        };
        let partition_count = metadata.partition_count();
        let partition = record.partition.or_else(|| {
            let key = record.key.as_deref();
            self.settings.partitioner.partition(key, partition_count, &self.round_robin)
        });
        if let Some(partition) = partition.filter(|partition| !(0..partition_count).contains(partition)) {
            let topic_partition = TopicPartition::new(record.topic, partition);
            return Err(SendError::NoSuchPartition { topic_partition, partition_count });
        }
        record.partition = partition;
        record.timestamp.get_or_insert_with(|| OsClock.wall_ms());
        let room = self.reserve(bytes).await?;
        self.accumulator.append(record, &metadata, room)
    }

    async fn reserve(&self, bytes: usize) -> Result<tokio::sync::OwnedSemaphorePermit, SendError> {
        let started = time::now();
        match time::timeout(self.settings.max_block, self.accumulator.reserve(bytes)).await {
            Ok(room) => room,
            Err(_) => Err(SendError::BufferFull {
                buffer_bytes: self.settings.buffer_bytes,
                waited_ms: started.elapsed().as_millis(),
            }),
        }
    }
}

/// A producer id without a transactional id: any broker gives one.
async fn init_idempotent(cluster: &Cluster) -> Result<Identity, ClusterError> {
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: i32::MAX,
        producer_epoch: -1,
        ..InitProducerIdRequest::default()
    };
    let deadline = cluster.deadline();
    let mut backoff = cluster.backoff();
    loop {
        let answer = cluster.call_any(&request, INIT_PRODUCER_ID, deadline).await?;
        let code = ErrorCode::from_code(answer.error_code);
        let until = time::now() + backoff.next();
        match code {
            // a broker that names nobody has not answered: without an id nothing would be idempotent
            ErrorCode::None if answer.producer_id < 0 || answer.producer_epoch < 0 => {
                let what = "a producer id was asked for and none was given".to_owned();
                return Err(ClusterError::Refused { what, code: LEFT_OUT });
            }
            ErrorCode::None => {
                return Ok(Identity {
                    producer_id: answer.producer_id,
                    producer_epoch: answer.producer_epoch,
                    transactional_id: None,
                });
            }
            code if code.is_retriable() && until < deadline => time::sleep_until(until).await,
            code => {
                return Err(ClusterError::Refused { what: "a producer id was asked for".to_owned(), code });
            }
        }
    }
}
