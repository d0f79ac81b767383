//! DescribeQuorum (key 55, versions 0-2; KIP-595, KIP-836, KIP-853): who decides about the cluster's metadata.
//!
//! Kafka's name for that log is `__cluster_metadata`, partition 0. Here it is the control log, with one voter, this
//! broker. Any other partition: 3.

use ottla_core::cluster::CONTROL_PARTITION;
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::describe_quorum_response::{
    Listener, Node, PartitionData, ReplicaState, TopicData,
};
use ottla_protocol::types::Text;

use crate::dispatch::{Incoming, Outcome, respond};
use crate::shared::Shared;

const CLUSTER_METADATA: &str = "__cluster_metadata";
const LISTENER: &str = "PLAINTEXT";

/// Answers the request.
pub fn handle(shared: &Shared, incoming: Incoming, reader: &mut Reader) -> Result<Outcome, DecodeError> {
    let request = m::DescribeQuorumRequest::decode(reader, incoming.version)?;
    let asked = request.topics.iter().map(|topic| topic.partitions.len());
    if let Some(refused) = super::too_many_partitions(asked) {
        return Ok(refused);
    }
    let quorum = quorum(shared, incoming.version);
    let mut is_shown = false;
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| match partition.partition_index {
            0 if topic.topic_name == CLUSTER_METADATA => {
                is_shown = true;
                quorum.clone()
            }
            partition_index => PartitionData {
                partition_index,
                error_code: ErrorCode::UnknownTopicOrPartition.code(),
                error_message: Some(Text::from_static("only __cluster_metadata, partition 0, has a quorum")),
                ..Default::default()
            },
        });
        let partitions = partitions.collect();
        TopicData { topic_name: topic.topic_name, partitions, ..Default::default() }
    });
    let mut response = m::DescribeQuorumResponse { topics: topics.collect(), ..Default::default() };
    if is_shown && incoming.version >= 2 {
        let (host, port) = (Text::from(shared.advertised.0.as_str()), shared.advertised.1);
        let listener = Listener { name: Text::from_static(LISTENER), host, port, ..Default::default() };
        response.nodes = vec![Node {
            node_id: shared.config.core.node_id,
            listeners: vec![listener],
            ..Default::default()
        }];
    }
    Ok(respond::<m::DescribeQuorumRequest>(&incoming, &response))
}

/// The control log: led by this broker, its only voter, which is never behind itself.
fn quorum(shared: &Shared, version: i16) -> PartitionData {
    let node_id = shared.config.core.node_id;
    let slot =
        shared.view.slot(CONTROL_PARTITION).expect("the control log is published before anybody connects");
    let published = slot.newest();
    // Tools compare it with their own clock: shard time may be ahead of that.
    let now_ms = if version >= 1 { shared.clock.wall_ms() } else { -1 };
    let voter = ReplicaState {
        replica_id: node_id,
        log_end_offset: published.bounds.high_watermark,
        last_fetch_timestamp: now_ms,
        last_caught_up_timestamp: now_ms,
        ..Default::default()
    };
    PartitionData {
        leader_id: node_id,
        leader_epoch: published.bounds.leader_epoch,
        high_watermark: published.bounds.high_watermark,
        current_voters: vec![voter],
        ..Default::default()
    }
}
