//! Settings of producers, under Kafka's names.

use std::time::Duration;

use ottla_protocol::compression::Codec;
use ottla_protocol::types::Text;

use crate::partitioner::Partitioner;
use crate::settings::{ClientSettings, SettingError, check_duration, check_size, millis, number, setters};

/// How a producer batches, retries and gives up. Idempotence and `acks=all` are always on.
///
/// ```
/// use std::time::Duration;
/// use ottla_client::{ClientSettings, Codec, Partitioner, ProducerSettings};
///
/// let mut settings = ProducerSettings::new(ClientSettings::new("127.0.0.1:9092")?)
///     .compression(Codec::Zstd)
///     .batch_bytes(64 << 10)
///     .linger(Duration::from_millis(20))
///     .buffer_bytes(64 << 20)
///     .max_block(Duration::from_secs(5))
///     .max_request_bytes(4 << 20)
///     .delivery_timeout(Duration::from_secs(30))
///     .max_in_flight(5)
///     .partitioner(Partitioner::Murmur2);
///
/// // or under Kafka's names, e.g. from a file
/// settings.set("linger.ms", "50")?;
/// settings.set("request.timeout.ms", "10000")?;
/// assert!(settings.check().is_ok());
/// assert!(settings.set("max.in.flight.requests.per.connection", "6").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ProducerSettings {
    /// How to reach the cluster.
    pub client: ClientSettings,
    /// `batch.size`: a batch is closed at this many bytes before compression; a larger record has a batch of its
    /// own. Default 16384, 1 to 100 MiB.
    pub batch_bytes: usize,
    /// `linger.ms`: how long an open batch waits for more records. Default 5 ms, 0 to 1 min.
    pub linger: Duration,
    /// `buffer.memory`: bytes of records that may be waiting for their outcome. Default 32 MiB, 64 KiB to 2 GiB.
    pub buffer_bytes: usize,
    /// `max.block.ms`: how long `send` waits for room in the buffer. Default 60 s, 0 to 1 h.
    pub max_block: Duration,
    /// `max.request.size`: largest request, and so largest record, in bytes. Default 1 MiB, 1 KiB to 100 MiB.
    pub max_request_bytes: usize,
    /// `delivery.timeout.ms`: after this time a record that the broker has not confirmed has failed. Default 2
    /// min, 100 ms to 1 day.
    pub delivery_timeout: Duration,
    /// `compression.type`: `none`, `gzip`, `snappy`, `lz4` or `zstd`. Default none.
    pub compression: Codec,
    /// `partitioner`: where records go that name no partition: `murmur2` (Java's default), `consistent_random`
    /// (librdkafka's default), `round_robin` or `sticky`. Default `murmur2`.
    pub partitioner: Partitioner,
    /// `max.in.flight.requests.per.connection`: batches of a partition, and requests of a connection, without an
    /// answer. Default 5, 1 to 5: a broker recognizes the last five batches of a producer.
    pub max_in_flight: usize,
}

const NAMES: &[&str] = &[
    "batch.size",
    "linger.ms",
    "buffer.memory",
    "max.block.ms",
    "max.request.size",
    "delivery.timeout.ms",
    "compression.type",
    "partitioner",
    "max.in.flight.requests.per.connection",
];

impl ProducerSettings {
    /// Defaults for this cluster.
    pub fn new(client: ClientSettings) -> Self {
        Self {
            client,
            batch_bytes: 16_384,
            linger: Duration::from_millis(5),
            buffer_bytes: 32 << 20,
            max_block: Duration::from_secs(60),
            max_request_bytes: 1 << 20,
            delivery_timeout: Duration::from_secs(120),
            compression: Codec::None,
            partitioner: Partitioner::default(),
            max_in_flight: 5,
        }
    }

    setters! {
        /// Sets `batch.size`.
        batch_bytes: usize,
        /// Sets `linger.ms`.
        linger: Duration,
        /// Sets `buffer.memory`.
        buffer_bytes: usize,
        /// Sets `max.block.ms`.
        max_block: Duration,
        /// Sets `max.request.size`.
        max_request_bytes: usize,
        /// Sets `delivery.timeout.ms`.
        delivery_timeout: Duration,
        /// Sets `compression.type`.
        compression: Codec,
        /// Sets `partitioner`.
        partitioner: Partitioner,
        /// Sets `max.in.flight.requests.per.connection`.
        max_in_flight: usize,
    }

    /// Sets one setting by Kafka's name; the client's settings too.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        match name {
            "batch.size" => self.batch_bytes = number(name, value)?,
            "linger.ms" => self.linger = millis(name, value)?,
            "buffer.memory" => self.buffer_bytes = number(name, value)?,
            "max.block.ms" => self.max_block = millis(name, value)?,
            "max.request.size" => self.max_request_bytes = number(name, value)?,
            "delivery.timeout.ms" => self.delivery_timeout = millis(name, value)?,
            "max.in.flight.requests.per.connection" => self.max_in_flight = number(name, value)?,
            "compression.type" => {
                self.compression = Codec::from_name(value).ok_or_else(|| {
                    SettingError::bad(name, value, "known are none, gzip, snappy, lz4 and zstd")
                })?;
            }
            "partitioner" => {
                self.partitioner = Partitioner::from_name(value).ok_or_else(|| {
                    let known = Partitioner::ALL.map(Partitioner::name).join(", ");
                    SettingError::bad(name, value, format!("known are {known}"))
                })?;
            }
            _ if ClientSettings::knows(name) => return self.client.set(name, value),
            _ => return Err(SettingError::unknown(name, NAMES)),
        }
        self.check()
    }

    /// Checks every bound.
    pub fn check(&self) -> Result<(), SettingError> {
        let minute = Duration::from_secs(60);
        self.client.check()?;
        check_size("batch.size", self.batch_bytes, 1, 100 << 20)?;
        check_duration("linger.ms", self.linger, 0, minute)?;
        check_size("buffer.memory", self.buffer_bytes, 64 << 10, 2 << 30)?;
        check_duration("max.block.ms", self.max_block, 0, 60 * minute)?;
        check_size("max.request.size", self.max_request_bytes, 1 << 10, 100 << 20)?;
        check_duration("delivery.timeout.ms", self.delivery_timeout, 100, 24 * 60 * minute)?;
        check_size("max.in.flight.requests.per.connection", self.max_in_flight, 1, 5)?;
        if self.max_request_bytes > self.buffer_bytes {
            return Err(SettingError::bad(
                "max.request.size",
                self.max_request_bytes,
                format!("must not be larger than buffer.memory = {}", self.buffer_bytes),
            ));
        }
        Ok(())
    }
}

/// Settings of a transactional producer.
///
/// ```
/// use std::time::Duration;
/// use ottla_client::{ClientSettings, Codec, ProducerSettings, TransactionalSettings};
///
/// let client = ClientSettings::new("127.0.0.1:9092")?;
/// let mut settings = TransactionalSettings::new(client.clone(), "worker-1")
///     .transaction_timeout(Duration::from_secs(20))
///     .producer(ProducerSettings::new(client).compression(Codec::Lz4));
///
/// // or under Kafka's names, e.g. from a file
/// settings.set("transaction.timeout.ms", "30000")?;
/// settings.set("linger.ms", "50")?;
/// assert!(settings.check().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TransactionalSettings {
    /// `transactional.id`: the name that survives crashes; whoever takes it next fences off this producer. Not
    /// empty, at most 32767 bytes.
    pub transactional_id: Text,
    /// `transaction.timeout.ms`: the coordinator aborts a transaction that is open for longer. Default 60 s,
    /// 1 ms to the broker's `transaction.max.timeout.ms`.
    pub transaction_timeout: Duration,
    /// Everything a producer has. The end of a transaction is retried for `delivery.timeout.ms`.
    pub producer: ProducerSettings,
}

impl TransactionalSettings {
    /// Defaults for this cluster and name.
    pub fn new(client: ClientSettings, transactional_id: impl Into<Text>) -> Self {
        Self {
            transactional_id: transactional_id.into(),
            transaction_timeout: Duration::from_secs(60),
            producer: ProducerSettings::new(client),
        }
    }

    setters! {
        /// Sets `transaction.timeout.ms`.
        transaction_timeout: Duration,
        /// Sets everything else.
        producer: ProducerSettings,
    }

    /// Sets one setting by Kafka's name; the producer's and the client's too.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        match name {
            "transactional.id" => self.transactional_id = Text::from(value),
            "transaction.timeout.ms" => self.transaction_timeout = millis(name, value)?,
            _ => return self.producer.set(name, value),
        }
        self.check()
    }

    /// Checks every bound.
    pub fn check(&self) -> Result<(), SettingError> {
        let length = self.transactional_id.len();
        if length == 0 || length > 32_767 {
            return Err(SettingError::bad(
                "transactional.id",
                &self.transactional_id,
                "must have 1 to 32767 bytes",
            ));
        }
        check_duration(
            "transaction.timeout.ms",
            self.transaction_timeout,
            1,
            Duration::from_secs(24 * 3600),
        )?;
        self.producer.check()
    }
}
