//! What a worker asks of a cluster, as two narrow traits: one transactional id, and reads.
//!
//! There are two implementations: Kafka's protocol through `ottla-client`, and the log in memory of the test
//! driver, which can crash, stall and lose answers at any step. The commit protocol and the recovery are written
//! once, against these, so that what the driver proves is what runs.
//!
//! All calls block: a worker is an OS thread with a plain loop. An implementation bounds each call by its time-outs.
//!
//! Place in the walk: worker -> here -> client. Not here: group membership, choice of records, state.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ottla_client::{CommittedOffset, GroupMetadata, OffsetToCommit, TopicPartition};

use crate::record::OutputRecord;

/// Why a call to the cluster failed, by what to do next.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PortError {
    /// Nothing was decided; the same call may work later.
    #[error("{0}")]
    Retriable(String),
    /// The transaction cannot be committed any more: abort it, roll back, go on.
    #[error("the transaction must be aborted: {0}")]
    MustAbort(String),
    /// The offsets were refused because this member is not the owner any more (22, 25, 27, 82, 113).
    #[error("the tasks were given to another member: {0}")]
    NotOwner(String),
    /// Another producer holds the transactional id now (47, 90), or it was open for too long.
    #[error("the transactional id was taken over or timed out: {0}")]
    Fenced(String),
    /// The offset's metadata string is longer than the broker takes (12).
    #[error("the offset metadata of {at} is too large for the cluster (offset.metadata.max.bytes): {reason}")]
    MetadataTooLarge {
        /// The anchor partition.
        at: TopicPartition,
        /// What the broker said.
        reason: String,
    },
    /// One record cannot be written, ever (too large, unknown topic, not authorised).
    #[error("a record for {topic} cannot be written: {reason}")]
    RecordRefused {
        /// The topic.
        topic: String,
        /// What the broker said.
        reason: String,
    },
    /// The partition does not hold that offset.
    #[error("offset {offset} of {at} is out of range: the log holds {log_start} to {log_end}")]
    OutOfRange {
        /// The partition.
        at: TopicPartition,
        /// What was asked for.
        offset: i64,
        /// First offset that is there.
        log_start: i64,
        /// End of the log.
        log_end: i64,
    },
    /// It will not work without a person.
    #[error("{0}")]
    Fatal(String),
}

/// How an `EndTxn(commit)` ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitFailure {
    /// It was aborted; nothing is visible.
    #[error("the transaction was aborted: {0}")]
    Aborted(String),
    /// No answer in time: it was committed or not. [`TransactionPort::reinit`], then read the witness.
    #[error("the outcome of the commit is not known: {0}")]
    Unknown(String),
    /// Fenced before the decision, which may have been an older one of ours: treated as unknown, then lost.
    #[error("the transactional id was taken over during the commit: {0}")]
    Fenced(String),
    /// It will not work without a person.
    #[error("{0}")]
    Fatal(String),
}

/// A record that was handed to [`TransactionPort::send`]; counts up from 0 within a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Where the last record of a partition was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// Its offset.
    pub offset: i64,
    /// The leader epoch that it was written in; -1 when that is not known for certain. A guess is worse than none:
    /// recovery would take it for a truncated log.
    pub leader_epoch: i32,
}

/// The writing half: one transactional id. At most one transaction is open.
///
/// For at-least-once work a worker calls `send`, `flush` and `send_offsets` only, outside of any transaction; such a
/// port is a plain producer, and its offsets count at once.
pub trait TransactionPort: Send {
    /// Opens a transaction. Costs no request by itself.
    fn begin(&mut self) -> Result<(), PortError>;
    /// Hands a record over; it may not be on its way yet. Blocks while too many bytes wait.
    fn send(&mut self, record: OutputRecord) -> Result<Ticket, PortError>;
    /// Waits until all are acknowledged. Per partition the highest offset that was acknowledged in this transaction.
    fn flush(&mut self) -> Result<BTreeMap<TopicPartition, Acked>, PortError>;
    /// Makes offsets part of the transaction (TxnOffsetCommit).
    fn send_offsets(&mut self, offsets: &[OffsetToCommit], group: &GroupMetadata) -> Result<(), PortError>;
    /// Commits. `Ok` = the coordinator has decided so, durably.
    fn commit(&mut self) -> Result<(), CommitFailure>;
    /// Aborts what is open; nothing to do when nothing is.
    fn abort(&mut self) -> Result<(), PortError>;
    /// Takes the id anew (InitProducerId): returns when every older transaction of it is decided.
    fn reinit(&mut self) -> Result<(), PortError>;
}

impl TransactionPort for Box<dyn TransactionPort> {
    fn begin(&mut self) -> Result<(), PortError> {
        (**self).begin()
    }

    fn send(&mut self, record: OutputRecord) -> Result<Ticket, PortError> {
        (**self).send(record)
    }

    fn flush(&mut self) -> Result<BTreeMap<TopicPartition, Acked>, PortError> {
        (**self).flush()
    }

    fn send_offsets(&mut self, offsets: &[OffsetToCommit], group: &GroupMetadata) -> Result<(), PortError> {
        (**self).send_offsets(offsets, group)
    }

    fn commit(&mut self) -> Result<(), CommitFailure> {
        (**self).commit()
    }

    fn abort(&mut self) -> Result<(), PortError> {
        (**self).abort()
    }

    fn reinit(&mut self) -> Result<(), PortError> {
        (**self).reinit()
    }
}

/// The bounds of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// First offset that is there.
    pub log_start: i64,
    /// Below it every transaction is decided.
    pub last_stable: i64,
    /// End of the log (high watermark).
    pub log_end: i64,
    /// The topic's id, hyphenated or base64, "" when the cluster has none: a topic made anew has another.
    pub topic_id: String,
}

/// A committed record of a changelog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangelogRecord {
    /// Its offset.
    pub offset: i64,
    /// Its timestamp in ms.
    pub timestamp: i64,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value; absent = deleted.
    pub value: Option<Bytes>,
}

/// A piece of a changelog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangelogPiece {
    /// Committed records, in order.
    pub records: Vec<ChangelogRecord>,
    /// Where to go on: everything below it that is committed is in this piece or an earlier one. It moves over
    /// aborted records and control records too, never beyond the last stable offset.
    pub next_offset: i64,
    /// The last stable offset that the leader knew.
    pub last_stable: i64,
    /// Leader epoch of the last record, -1 when not known.
    pub leader_epoch: i32,
}

/// The reading half.
pub trait ReadPort: Send {
    /// What the group has committed, waiting while a transaction holds an offset open (require-stable).
    fn committed(
        &mut self,
        group_id: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, PortError>;
    /// The bounds of a partition.
    fn bounds(&mut self, at: &TopicPartition) -> Result<LogBounds, PortError>;
    /// Committed records from an offset on, about `bytes_max` of them; waits at most `wait` when there are none.
    fn read(
        &mut self,
        at: &TopicPartition,
        from: i64,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<ChangelogPiece, PortError>;
    /// Where the log of an epoch ends (OffsetForLeaderEpoch); absent when the cluster cannot tell.
    fn epoch_end(&mut self, at: &TopicPartition, leader_epoch: i32) -> Result<Option<i64>, PortError>;
    /// The highest offset below which tombstones may have been removed, when the broker can tell; absent: not known.
    fn tombstone_horizon(&mut self, at: &TopicPartition) -> Result<Option<i64>, PortError>;
    /// `delete.retention.ms` of the topic.
    fn delete_retention(&mut self, topic: &str) -> Result<Duration, PortError>;
}
