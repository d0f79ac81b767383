//! Ottla's client: the whole of KIP-98 for asynchronous Rust.
//!
//! | for | use | guarantees |
//! |---|---|---|
//! | writing once, whatever fails | [`Producer`] | idempotent: retries never duplicate, order per partition is kept |
//! | writing many records and offsets as one | [`TransactionalProducer`] | all or nothing, zombies fenced off |
//! | reading | [`Consumer`] | chosen partitions or those of a group, `read_committed` by default |
//! | everything else | [`Admin`] | topics, configs, offsets, transactions |
//!
//! Place in the walk: outside of it; this crate is what stands at the other end of the socket. It knows the
//! protocol (`ottla-protocol`) and the operating system's door (`ottla-env`) and nothing of the broker, so that
//! it works with any Kafka 2.5 or later.
//!
//! Invariants: every queue and buffer has a bound that is a setting; a broker's answer is hostile input; a
//! broker that is restarted is invisible but for the time it takes; every call says what happens when its
//! future is dropped.
//!
//! Spans of `tracing`, for who subscribes to the target `ottla_client`; none holds keys, values or secrets, and where
//! nobody subscribes each costs one look at a flag:
//!
//! | span | level | from, to | fields |
//! |---|---|---|---|
//! | `transaction` | info | `begin`, the answer to its end | `transactional_id`, `producer_id`, `producer_epoch`, `protocol`, `outcome`: `committed`, `aborted`, `empty`, or the error that stopped the producer; none when it is dropped open |
//! | `batch`, within it | debug | has a sequence, has an outcome | `partition`, `records`, `base_sequence`, `base_offset`, `outcome` |
//! | `rebalance` | info | one phase: `join`, `sync` (classic groups), or the listener's call for `assigned`, `revoked`, `lost` | `phase`, `group_id`, `generation`, `partitions` |
//! | `request` | debug | queued, answered | `api`, `version`, `correlation_id`, `node`, `outcome` |
//! | `connection` | debug | opened, closed | `node` |
//! | `metadata` | debug | one refresh | `topics` |
//! | `coordinator` | debug | one look-up | `kind`, `key`, `node_id` |
//!
//! Not here: TLS and SASL, share groups; fetching from the nearest replica (KIP-392): `client.rack` only guides how
//! groups share partitions out.
//!
//! Programs to begin with are in `examples`: `idempotent_producer`, `consume_process_produce`, `consumer_group` and
//! `admin`. `docs/guide/from-rdkafka.md` is for who comes from that library.
//!
//! ```
//! use ottla_client::{ClientSettings, Producer, ProducerSettings, Record};
//!
//! # use ottla_client::{Admin, admin::NewTopic};
//! # ottla_doctest::run(async |bootstrap| {
//! # let admin = Admin::connect(ClientSettings::new(bootstrap)?).await?;
//! # admin.create_topic(&NewTopic::new("orders", 3)).await?;
//! let client = ClientSettings::new(bootstrap)?; // e.g. "127.0.0.1:9092"
//! let producer = Producer::connect(ProducerSettings::new(client)).await?;
//! let delivery = producer.send(Record::to("orders").key("alice").value("one lamp")).await?;
//! println!("stored at {:?}", delivery.wait().await?);
//! # Ok(())
//! # });
//! ```

mod backoff;
mod cluster;
mod connection;
mod error;
mod offsets;
mod record;
mod settings;

pub mod admin;
pub mod consumer;
pub mod partitioner;
pub mod producer;

#[cfg(test)]
mod scripted;

/// The guide's code is compiled with the examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/from-rdkafka.md")]
struct FromRdkafka;

pub use admin::Admin;
pub use cluster::{Cluster, ClusterError, NodeAddress, TopicMetadata};
pub use connection::{Connection, Finalized, Pending, Versions};
pub use consumer::{
    Assignor, Callback, CommitError, Consumer, ConsumerError, ConsumerMetrics, ConsumerRecord,
    ConsumerSettings, CustomAssignor, GroupError, GroupProtocol, IsolationLevel, Lag, LostReason,
    MemberSubscription, OffsetReset, PartitionAssignor, PendingCommit, Rebalance, RebalanceListener, StartAt,
};
pub use error::{CallError, ErrorClass};
pub use offsets::{OffsetAndTimestamp, OffsetsError};
pub use ottla_protocol::compression::Codec;
pub use ottla_protocol::error::ErrorCode;
pub use ottla_protocol::types::{Text, Uuid};
pub use partitioner::Partitioner;
pub use producer::{
    Delivery, DeliveryError, Producer, ProducerSettings, RecordMetadata, SendError, Transaction,
    TransactionError, TransactionalProducer, TransactionalSettings,
};
pub use record::{CommittedOffset, GroupMetadata, Header, OffsetToCommit, Record, TopicPartition};
pub use settings::{ClientSettings, HostPort, SettingError};
