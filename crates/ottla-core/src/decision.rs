//! What the core answers: entries for the log, answers and when they may leave, and what the shell must do.

use std::sync::Arc;

use ottla_protocol::entry::Entry;
use ottla_protocol::messages as m;
use ottla_protocol::types::TopicIdPartition;

use crate::command::Token;
use crate::event::Event;

/// Number of a decision that put entries into the log; grows by one per such decision, never reused.
/// Kept in every frame header, so that it survives a reload. Opaque to everyone but the shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// Milliseconds since the epoch, by the shard's clock: never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardTime(pub i64);

/// The outcome of one command. The entries are already applied when the shell sees them.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// One atomic group: all of it enters the log in one frame, in this order. Empty: nothing changed.
    pub entries: Vec<Entry>,
    /// Answers to this command and to parked ones.
    pub answers: Vec<Answer>,
    /// Partitions whose bounds changed; the shell reads them with `ShardState::bounds`.
    pub touched: Vec<TopicIdPartition>,
    /// Topics, configs or features changed: publish a new image.
    pub image_changed: bool,
    /// What people may want to know of it.
    pub events: Vec<Event>,
}

/// One answer and what it rests on.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whom it answers.
    pub token: Token,
    /// The answer.
    pub reply: Reply,
    /// It may leave once this position is durable.
    pub rests_on: Position,
}

/// An answer.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the variants are Kafka's responses, documented there
pub enum Reply {
    Produce(m::ProduceResponse),
    InitProducerId(m::InitProducerIdResponse),
    AddPartitionsToTxn(m::AddPartitionsToTxnResponse),
    AddOffsetsToTxn(m::AddOffsetsToTxnResponse),
    EndTxn(m::EndTxnResponse),
    TxnOffsetCommit(m::TxnOffsetCommitResponse),
    WriteTxnMarkers(m::WriteTxnMarkersResponse),
    DescribeTransactions(m::DescribeTransactionsResponse),
    ListTransactions(m::ListTransactionsResponse),
    DescribeProducers(m::DescribeProducersResponse),
    OffsetCommit(m::OffsetCommitResponse),
    OffsetFetch(m::OffsetFetchResponse),
    JoinGroup(m::JoinGroupResponse),
    SyncGroup(m::SyncGroupResponse),
    Heartbeat(m::HeartbeatResponse),
    LeaveGroup(m::LeaveGroupResponse),
    DescribeGroups(m::DescribeGroupsResponse),
    ListGroups(m::ListGroupsResponse),
    DeleteGroups(m::DeleteGroupsResponse),
    OffsetDelete(m::OffsetDeleteResponse),
    ConsumerGroupHeartbeat(m::ConsumerGroupHeartbeatResponse),
    ConsumerGroupDescribe(m::ConsumerGroupDescribeResponse),
    CreateTopics(m::CreateTopicsResponse),
    DeleteTopics(m::DeleteTopicsResponse),
    DeleteRecords(m::DeleteRecordsResponse),
    IncrementalAlterConfigs(m::IncrementalAlterConfigsResponse),
    AlterConfigs(m::AlterConfigsResponse),
    CreatePartitions(m::CreatePartitionsResponse),
    UpdateFeatures(m::UpdateFeaturesResponse),
    /// The command is done and has no response of its own (AutoCreateTopics, Bootstrap, acks=0).
    Done,
    /// No answer: close the connection, and say why in the log.
    Close(&'static str),
    /// Nothing was decided: the request looks late (see `txn::fence`). Whoever sees it waits a moment, closes the
    /// connection if its peer has closed it, and else sends the command again with [`Context::is_alive`].
    ///
    /// [`Context::is_alive`]: crate::command::Context::is_alive
    Late(&'static str),
}

/// What a reader may see of a partition at one instant.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Offset of the oldest record.
    pub log_start_offset: i64,
    /// One past the last record. With one replica this is the log's end, once published.
    pub high_watermark: i64,
    /// No open transaction starts below it.
    pub last_stable_offset: i64,
    /// What compaction has done so far.
    pub cleaned: crate::clean::CleanedState,
    /// Leader epoch of new appends.
    pub leader_epoch: i32,
    /// The aborted transactions, shared; see `AbortedIndex::lookup`.
    pub aborted: Arc<crate::partition::AbortedIndex>,
    /// Leader epochs and their start offsets, oldest first.
    pub leader_epochs: Arc<Vec<(i32, i64)>>,
}
