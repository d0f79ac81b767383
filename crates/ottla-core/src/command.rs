//! What the shard is asked: one command per request that must be decided in order, and the ticks of time.
//!
//! Requests of the protocol travel as they were decoded, with the version they came in, so that each rule and
//! each version's error code is decided in the core, in one place. Produce is the exception: its batches were
//! parsed and checked on the connection.

use bytes::Bytes;
use ottla_protocol::batch::BatchHeader;
use ottla_protocol::messages as m;
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use crate::clean::Cleaned;

/// Number of an accepted connection, growing in accept order; 0 is the broker itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Names a command until it is answered. The shell makes it; the core only hands it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Who asks, and in which version.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Names the command.
    pub token: Token,
    /// The connection it came on.
    pub connection: ConnectionId,
    /// The client's name for itself, may be empty.
    pub client_id: Text,
    /// The client's address, as text.
    pub client_host: Text,
    /// Version of the request.
    pub version: i16,
    /// The command was found late once, and its connection has been open ever since: its sender is there.
    pub is_alive: bool,
}

/// A command: a request and who sent it.
#[derive(Clone, Debug)]
pub struct Command {
    /// Who asks.
    pub context: Context,
    /// What is asked.
    pub body: CommandBody,
}

/// What is asked.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the variants are Kafka's requests, documented there
pub enum CommandBody {
    Produce(ProduceCommand),
    InitProducerId(m::InitProducerIdRequest),
    AddPartitionsToTxn(m::AddPartitionsToTxnRequest),
    AddOffsetsToTxn(m::AddOffsetsToTxnRequest),
    EndTxn(m::EndTxnRequest),
    TxnOffsetCommit(m::TxnOffsetCommitRequest),
    WriteTxnMarkers(m::WriteTxnMarkersRequest),
    DescribeTransactions(m::DescribeTransactionsRequest),
    ListTransactions(m::ListTransactionsRequest),
    DescribeProducers(m::DescribeProducersRequest),
    OffsetCommit(m::OffsetCommitRequest),
    OffsetFetch(m::OffsetFetchRequest),
    JoinGroup(m::JoinGroupRequest),
    SyncGroup(m::SyncGroupRequest),
    Heartbeat(m::HeartbeatRequest),
    LeaveGroup(m::LeaveGroupRequest),
    DescribeGroups(m::DescribeGroupsRequest),
    ListGroups(m::ListGroupsRequest),
    DeleteGroups(m::DeleteGroupsRequest),
    OffsetDelete(m::OffsetDeleteRequest),
    ConsumerGroupHeartbeat(m::ConsumerGroupHeartbeatRequest),
    ConsumerGroupDescribe(m::ConsumerGroupDescribeRequest),
    CreateTopics(m::CreateTopicsRequest),
    DeleteTopics(m::DeleteTopicsRequest),
    DeleteRecords(m::DeleteRecordsRequest),
    IncrementalAlterConfigs(m::IncrementalAlterConfigsRequest),
    AlterConfigs(m::AlterConfigsRequest),
    CreatePartitions(m::CreatePartitionsRequest),
    UpdateFeatures(m::UpdateFeaturesRequest),
    /// Metadata asks for topics that do not exist yet (`auto.create.topics.enable`).
    AutoCreateTopics(Vec<Text>),
    /// The first start of a folder: cluster id, features and internal topics become records.
    Bootstrap {
        cluster_id: Uuid,
        topic_ids: [Uuid; 2],
    },
    /// What passes of the cleaner announce, or have found; see `clean` for the order.
    Cleaned(Vec<(TopicIdPartition, Cleaned)>),
    /// Retention: records of these partitions below these offsets need not be kept any more.
    MoveLogStarts(Vec<(TopicIdPartition, i64)>),
    /// Time has passed: deadlines and expiries that are due.
    Tick,
    /// A connection's peer has closed: what it asked and nobody decided is not wanted any more.
    ConnectionClosed(ConnectionId),
}

/// A Produce request whose batches were parsed and checked on the connection.
#[derive(Clone, Debug)]
pub struct ProduceCommand {
    /// The transactional id of the request.
    pub transactional_id: Option<Text>,
    /// -1, 0 or 1. With 0 nothing is answered and an error closes the connection.
    pub acks: i16,
    /// How the answer is laid out: topics in the request's order. Names are kept for versions below 13.
    pub topics: Vec<ProduceTopic>,
}

/// One topic of a Produce request.
#[derive(Clone, Debug)]
pub struct ProduceTopic {
    /// As named in the request; empty from version 13 on.
    pub name: Text,
    /// As named in the request from version 13 on, else found by name in the published view; zero when unknown.
    pub topic_id: Uuid,
    /// Its partitions in the request's order.
    pub partitions: Vec<ProducePartition>,
}

/// One partition of a Produce request.
#[derive(Clone, Debug)]
pub struct ProducePartition {
    /// Index of the partition.
    pub partition: i32,
    /// The checked batch, or why it is refused (the code and text go into the answer).
    pub batch: Result<CheckedBatch, m::produce_response::PartitionProduceResponse>,
}

/// A batch that passed every check that needs no state.
#[derive(Clone, Debug)]
pub struct CheckedBatch {
    /// Its header as received (base offset 0).
    pub header: BatchHeader,
    /// From byte 21 on, shared with the request's buffer.
    pub tail: Bytes,
}

/// Where a command points, for messages to people.
pub type Partition = TopicIdPartition;
