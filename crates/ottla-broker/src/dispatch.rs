//! From a frame to a handler: header, version gate, the one match on the API key.
//!
//! `SERVED` is what ApiVersions announces: what works, and nothing else. A key or version outside it closes the
//! connection, as Kafka does; ApiVersions alone answers a version it does not know (KIP-511).

use std::sync::Arc;

use bytes::Bytes;
use ottla_core::command::{Command, CommandBody, Context};
use ottla_core::decision::Reply;
use ottla_protocol::api::ApiKey;
use ottla_protocol::codec::{DecodeError, Message, Reader, Request, Writer};
use ottla_protocol::header::{RequestHeader, ResponseHeader};
use ottla_protocol::messages as m;
use ottla_protocol::types::{Text, Uuid};

use crate::handlers;
use crate::net::connection::{Answer, Later, Outgoing, Peer};
use crate::net::frames::Share;
use crate::shard::Origin;
use crate::shard::unavailable::unavailable;
use crate::shared::Shared;

/// The APIs that work here; their versions are those of the API table.
pub const SERVED: &[ApiKey] = &[
    ApiKey::Produce,
    ApiKey::Fetch,
    ApiKey::ListOffsets,
    ApiKey::Metadata,
    ApiKey::OffsetCommit,
    ApiKey::OffsetFetch,
    ApiKey::FindCoordinator,
    ApiKey::JoinGroup,
    ApiKey::Heartbeat,
    ApiKey::LeaveGroup,
    ApiKey::SyncGroup,
    ApiKey::DescribeGroups,
    ApiKey::ListGroups,
    ApiKey::ApiVersions,
    ApiKey::CreateTopics,
    ApiKey::DeleteTopics,
    ApiKey::DeleteRecords,
    ApiKey::InitProducerId,
    ApiKey::OffsetForLeaderEpoch,
    ApiKey::AddPartitionsToTxn,
    ApiKey::AddOffsetsToTxn,
    ApiKey::EndTxn,
    ApiKey::WriteTxnMarkers,
    ApiKey::TxnOffsetCommit,
    ApiKey::DescribeAcls,
    ApiKey::CreateAcls,
    ApiKey::DeleteAcls,
    ApiKey::DescribeConfigs,
    ApiKey::AlterConfigs,
    ApiKey::AlterReplicaLogDirs,
    ApiKey::DescribeLogDirs,
    ApiKey::CreatePartitions,
    ApiKey::DeleteGroups,
    ApiKey::ElectLeaders,
    ApiKey::IncrementalAlterConfigs,
    ApiKey::AlterPartitionReassignments,
    ApiKey::ListPartitionReassignments,
    ApiKey::OffsetDelete,
    ApiKey::DescribeQuorum,
    ApiKey::UpdateFeatures,
    ApiKey::DescribeCluster,
    ApiKey::DescribeProducers,
    ApiKey::DescribeTransactions,
    ApiKey::ListTransactions,
    ApiKey::ConsumerGroupHeartbeat,
    ApiKey::ConsumerGroupDescribe,
    ApiKey::ListConfigResources,
    ApiKey::DescribeTopicPartitions,
];

/// What becomes of a request.
pub enum Outcome {
    /// It is answered, now or later.
    Answer(Answer),
    /// It has no answer (acks=0).
    Silent,
    /// The connection is closed; why.
    Close(String),
}

/// One request on its way to a handler.
pub struct Incoming {
    /// The API.
    pub api: ApiKey,
    /// Version of the request.
    pub version: i16,
    /// Comes back in the answer.
    pub correlation_id: i32,
    /// The client's name for itself.
    pub client_id: Text,
    /// Bytes of the whole request.
    pub bytes: usize,
    /// Its share of the bytes in flight.
    pub permit: Share,
}

/// Whether a request may be taken up while answers to earlier ones on its connection are outstanding: those that
/// clients send one behind the other, and whose answers are not much larger than they are.
pub fn may_follow(frame: &Bytes) -> bool {
    let Some(key) = frame.first_chunk::<2>().map(|key| i16::from_be_bytes(*key)) else { return true };
    matches!(
        ApiKey::from_code(key),
        Some(
            ApiKey::Produce
                | ApiKey::Fetch
                | ApiKey::ListOffsets
                | ApiKey::OffsetCommit
                | ApiKey::Heartbeat
                | ApiKey::LeaveGroup
                | ApiKey::InitProducerId
                | ApiKey::OffsetForLeaderEpoch
                | ApiKey::AddPartitionsToTxn
                | ApiKey::AddOffsetsToTxn
                | ApiKey::EndTxn
                | ApiKey::TxnOffsetCommit
        )
    )
}

/// Decodes the header and hands the request to its handler.
pub fn dispatch(shared: &Arc<Shared>, peer: &Peer, frame: Bytes, permit: Share) -> Outcome {
    let bytes = frame.len();
    let mut reader = Reader::new(frame);
    let header = match RequestHeader::decode(&mut reader) {
        Ok(header) => header,
        Err(error) => return Outcome::Close(format!("request header: {error}")),
    };
    let api = header.api;
    let (version, correlation_id) = (header.api_version, header.correlation_id);
    let client_id = header.client_id.unwrap_or_default();
    let incoming = Incoming { api, version, correlation_id, client_id, bytes, permit };
    let table = api.api();
    if !SERVED.contains(&api) || version < table.min || version > table.max {
        if api == ApiKey::ApiVersions {
            return handlers::api_versions::unsupported(&incoming);
        }
        return Outcome::Close(format!("{} version {version} is not served", table.name));
    }
    let name = table.name;
    route(shared, peer, incoming, &mut reader)
        .unwrap_or_else(|error| Outcome::Close(format!("{name} version {version}: {error}")))
}

fn route(
    shared: &Arc<Shared>,
    peer: &Peer,
    incoming: Incoming,
    reader: &mut Reader,
) -> Result<Outcome, DecodeError> {
    use CommandBody as C;
    let version = incoming.version;
    macro_rules! forward {
        ($variant:ident, $request:ident) => {
            forward(shared, peer, incoming, C::$variant(m::$request::decode(reader, version)?))
        };
    }
    macro_rules! park {
        ($variant:ident, $request:ident) => {
            park(shared, peer, incoming, C::$variant(m::$request::decode(reader, version)?))
        };
    }
    Ok(match incoming.api {
        ApiKey::Produce => handlers::produce::handle(shared, peer, incoming, reader)?,
        ApiKey::Fetch => handlers::fetch::handle(shared, peer, incoming, reader)?,
        ApiKey::ListOffsets => handlers::list_offsets::handle(shared, incoming, reader)?,
        ApiKey::Metadata => handlers::metadata::handle(shared, peer, incoming, reader)?,
        ApiKey::FindCoordinator => handlers::find_coordinator::handle(shared, incoming, reader)?,
        ApiKey::ApiVersions => handlers::api_versions::handle(shared, incoming, reader)?,
        ApiKey::DescribeConfigs => handlers::describe_configs::handle(shared, incoming, reader)?,
        ApiKey::OffsetForLeaderEpoch => handlers::offset_for_leader_epoch::handle(shared, incoming, reader)?,
        ApiKey::DescribeAcls => handlers::acls::describe(incoming, reader)?,
        ApiKey::CreateAcls => handlers::acls::create(incoming, reader)?,
        ApiKey::DeleteAcls => handlers::acls::delete(incoming, reader)?,
        ApiKey::DescribeCluster => handlers::describe_cluster::handle(shared, incoming, reader)?,
        ApiKey::DescribeTopicPartitions => {
            handlers::describe_topic_partitions::handle(shared, incoming, reader)?
        }
        ApiKey::ListConfigResources => handlers::list_config_resources::handle(shared, incoming, reader)?,
        ApiKey::DescribeLogDirs => handlers::log_dirs::describe(shared, incoming, reader)?,
        ApiKey::AlterReplicaLogDirs => handlers::log_dirs::alter(shared, incoming, reader)?,
        ApiKey::ElectLeaders => handlers::replicas::elect_leaders(shared, incoming, reader)?,
        ApiKey::AlterPartitionReassignments => {
            handlers::replicas::alter_reassignments(shared, incoming, reader)?
        }
        ApiKey::ListPartitionReassignments => handlers::replicas::list_reassignments(incoming, reader)?,
        ApiKey::DescribeQuorum => handlers::describe_quorum::handle(shared, incoming, reader)?,
        ApiKey::OffsetCommit => forward!(OffsetCommit, OffsetCommitRequest),
        ApiKey::OffsetFetch => forward!(OffsetFetch, OffsetFetchRequest),
        ApiKey::JoinGroup => park!(JoinGroup, JoinGroupRequest),
        ApiKey::SyncGroup => park!(SyncGroup, SyncGroupRequest),
        ApiKey::Heartbeat => forward!(Heartbeat, HeartbeatRequest),
        ApiKey::LeaveGroup => forward!(LeaveGroup, LeaveGroupRequest),
        ApiKey::DescribeGroups => forward!(DescribeGroups, DescribeGroupsRequest),
        ApiKey::ListGroups => forward!(ListGroups, ListGroupsRequest),
        ApiKey::DeleteGroups => forward!(DeleteGroups, DeleteGroupsRequest),
        ApiKey::OffsetDelete => forward!(OffsetDelete, OffsetDeleteRequest),
        ApiKey::ConsumerGroupHeartbeat => forward!(ConsumerGroupHeartbeat, ConsumerGroupHeartbeatRequest),
        ApiKey::ConsumerGroupDescribe => forward!(ConsumerGroupDescribe, ConsumerGroupDescribeRequest),
        ApiKey::CreateTopics => forward!(CreateTopics, CreateTopicsRequest),
        ApiKey::DeleteTopics => forward!(DeleteTopics, DeleteTopicsRequest),
        ApiKey::DeleteRecords => forward!(DeleteRecords, DeleteRecordsRequest),
        ApiKey::InitProducerId => forward!(InitProducerId, InitProducerIdRequest),
        ApiKey::AddPartitionsToTxn => forward!(AddPartitionsToTxn, AddPartitionsToTxnRequest),
        ApiKey::AddOffsetsToTxn => forward!(AddOffsetsToTxn, AddOffsetsToTxnRequest),
        ApiKey::EndTxn => forward!(EndTxn, EndTxnRequest),
        ApiKey::WriteTxnMarkers => forward!(WriteTxnMarkers, WriteTxnMarkersRequest),
        ApiKey::TxnOffsetCommit => forward!(TxnOffsetCommit, TxnOffsetCommitRequest),
        ApiKey::IncrementalAlterConfigs => forward!(IncrementalAlterConfigs, IncrementalAlterConfigsRequest),
        ApiKey::AlterConfigs => forward!(AlterConfigs, AlterConfigsRequest),
        ApiKey::CreatePartitions => forward!(CreatePartitions, CreatePartitionsRequest),
        ApiKey::UpdateFeatures => forward!(UpdateFeatures, UpdateFeaturesRequest),
        ApiKey::DescribeProducers => forward!(DescribeProducers, DescribeProducersRequest),
        ApiKey::DescribeTransactions => forward!(DescribeTransactions, DescribeTransactionsRequest),
        ApiKey::ListTransactions => forward!(ListTransactions, ListTransactionsRequest),
        _ => Outcome::Close("a served API without a handler".to_owned()),
    })
}

/// Hands a request to the shard; its reply is the answer.
pub fn forward(shared: &Shared, peer: &Peer, incoming: Incoming, body: CommandBody) -> Outcome {
    let Incoming { api, version, correlation_id, client_id, bytes, permit } = incoming;
    let origin = Origin { connection: peer.id, client_id, client_host: peer.host.clone(), version };
    let share = Some(permit);
    let Ok(answer) = shared.shard.submit(&origin, body, bytes, share.clone()) else {
        return Outcome::Close("the broker is shutting down".to_owned());
    };
    let later = async move {
        let outgoing = encode_reply(answer.await.ok()?, api, version, correlation_id)?;
        Some(Outgoing { share, ..outgoing })
    };
    Outcome::Answer(Answer::Later(Box::pin(later) as Later))
}

/// Hands on a request that may wait for other clients, and must not hold up everybody's meanwhile.
fn park(shared: &Shared, peer: &Peer, mut incoming: Incoming, body: CommandBody) -> Outcome {
    if let Some(share) = shared.request_budget.park(incoming.bytes) {
        incoming.permit = share;
        return forward(shared, peer, incoming, body);
    }
    let Incoming { api, version, correlation_id, .. } = incoming;
    let context = Context { version, ..Context::default() };
    let reply = unavailable(&Command { context, body }, false);
    match encode_reply(reply, api, version, correlation_id) {
        Some(outgoing) => Outcome::Answer(Answer::Now(outgoing)),
        None => Outcome::Close("too many requests wait".to_owned()),
    }
}

/// An answer that is known at once.
pub fn respond<R: Request>(incoming: &Incoming, response: &R::Response) -> Outcome {
    match encode(response, R::API, incoming.version, incoming.correlation_id) {
        Some(outgoing) => Outcome::Answer(Answer::Now(outgoing)),
        None => Outcome::Close("the answer cannot be encoded".to_owned()),
    }
}

/// Header and response as chunks of the wire.
pub fn encode<M: Message>(response: &M, api: ApiKey, version: i16, correlation_id: i32) -> Option<Outgoing> {
    let mut writer = Writer::new();
    ResponseHeader::new(correlation_id).encode(&mut writer, api, version);
    match response.encode(&mut writer, version) {
        Ok(()) => {
            let errors = writer.error_tally();
            Some(Outgoing { chunks: writer.finish(), errors, ..Outgoing::default() })
        }
        Err(error) => {
            tracing::error!(api = M::NAME, version, %error, "an answer does not fit its version; this is a bug");
            None
        }
    }
}

/// The topics with refused partitions, and their number.
fn refused(response: &m::ProduceResponse) -> Vec<(Text, Uuid, u64)> {
    let topics = response.responses.iter().map(|topic| {
        let refused = topic.partition_responses.iter().filter(|partition| partition.error_code != 0);
        (topic.name.clone(), topic.topic_id, refused.count() as u64)
    });
    topics.filter(|(_, _, refused)| *refused > 0).collect()
}

/// The shard's reply on the wire; empty when nothing is sent, none when the connection is to be closed.
fn encode_reply(reply: Reply, api: ApiKey, version: i16, correlation_id: i32) -> Option<Outgoing> {
    macro_rules! send {
        ($response:expr) => {
            encode(&$response, api, version, correlation_id)
        };
    }
    match reply {
        Reply::Produce(response) => {
            let outgoing = send!(response)?;
            let refused_topics = if outgoing.errors.is_empty() { Vec::new() } else { refused(&response) };
            Some(Outgoing { refused_topics, ..outgoing })
        }
        Reply::InitProducerId(response) => send!(response),
        Reply::AddPartitionsToTxn(response) => send!(response),
        Reply::AddOffsetsToTxn(response) => send!(response),
        Reply::EndTxn(response) => send!(response),
        Reply::TxnOffsetCommit(response) => send!(response),
        Reply::WriteTxnMarkers(response) => send!(response),
        Reply::DescribeTransactions(response) => send!(response),
        Reply::ListTransactions(response) => send!(response),
        Reply::DescribeProducers(response) => send!(response),
        Reply::OffsetCommit(response) => send!(response),
        Reply::OffsetFetch(response) => send!(response),
        Reply::JoinGroup(response) => send!(response),
        Reply::SyncGroup(response) => send!(response),
        Reply::Heartbeat(response) => send!(response),
        Reply::LeaveGroup(response) => send!(response),
        Reply::DescribeGroups(response) => send!(response),
        Reply::ListGroups(response) => send!(response),
        Reply::DeleteGroups(response) => send!(response),
        Reply::OffsetDelete(response) => send!(response),
        Reply::ConsumerGroupHeartbeat(response) => send!(response),
        Reply::ConsumerGroupDescribe(response) => send!(response),
        Reply::CreateTopics(response) => send!(response),
        Reply::DeleteTopics(response) => send!(response),
        Reply::DeleteRecords(response) => send!(response),
        Reply::IncrementalAlterConfigs(response) => send!(response),
        Reply::AlterConfigs(response) => send!(response),
        Reply::CreatePartitions(response) => send!(response),
        Reply::UpdateFeatures(response) => send!(response),
        Reply::Done => Some(Outgoing::default()),
        // The owner holds what looks late and never lets this answer out.
        Reply::Close(reason) | Reply::Late(reason) => {
            tracing::info!(api = api.api().name, version, reason, "request dropped unanswered");
            None
        }
    }
}
