//! Metadata (key 3, versions 0-13; KIP-516): brokers, topics, leaders.
//!
//! Answered from the published image, so a topic is shown only once its record is durable. Unknown topics that
//! are asked for by name are created first when both client and broker want that.

use std::sync::Arc;

use ottla_core::cluster::{Image, Topic};
use ottla_core::command::CommandBody;
use ottla_protocol::codec::{DecodeError, Message, Reader};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::metadata_request::MetadataRequestTopic;
use ottla_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use ottla_protocol::types::{Text, TopicIdPartition, Uuid};

use crate::dispatch::{Incoming, Outcome, encode, respond};
use crate::net::connection::{Answer, Peer};
use crate::shard::Origin;
use crate::shared::Shared;

/// Operations nobody asked to see.
const NOT_ASKED: i32 = i32::MIN;
/// Every operation on a topic (KIP-430): there are no ACLs.
pub(super) const TOPIC_OPERATIONS: i32 = 0b1_1101_1111_1000 & !(1 << 9) & !(1 << 12);
/// Every operation on the cluster.
pub(super) const CLUSTER_OPERATIONS: i32 = 0b1_1111_1010_0000;

/// Answers the request, after creating topics if that is wanted.
pub fn handle(
    shared: &Arc<Shared>,
    peer: &Peer,
    incoming: Incoming,
    reader: &mut Reader,
) -> Result<Outcome, DecodeError> {
    let request = m::MetadataRequest::decode(reader, incoming.version)?;
    let unknown = topics_to_create(shared, &request);
    if unknown.is_empty() {
        let response = build(shared, &request, incoming.version);
        return Ok(respond::<m::MetadataRequest>(&incoming, &response));
    }
    let Incoming { api, version, correlation_id, client_id, bytes, permit } = incoming;
    let origin = Origin { connection: peer.id, client_id, client_host: peer.host.clone(), version };
    let created = shared.shard.submit(&origin, CommandBody::AutoCreateTopics(unknown), bytes, Some(permit));
    let shared = shared.clone();
    Ok(Outcome::Answer(Answer::Later(Box::pin(async move {
        created.ok()?.await.ok()?;
        encode(&build(&shared, &request, version), api, version, correlation_id)
    }))))
}

fn topics_to_create(shared: &Shared, request: &m::MetadataRequest) -> Vec<Text> {
    if !request.allow_auto_topic_creation || !shared.config.core.auto_create_topics_enable {
        return Vec::new();
    }
    let image = shared.view.image();
    let names = request.topics.iter().flatten().filter_map(|topic| topic.name.clone());
    names.filter(|name| !name.is_empty() && image.topic_by_name(name).is_none()).collect()
}

fn build(shared: &Shared, request: &m::MetadataRequest, version: i16) -> m::MetadataResponse {
    let image = shared.view.image();
    let node_id = shared.config.core.node_id;
    let broker = MetadataResponseBroker {
        node_id,
        host: Text::from(shared.advertised.0.as_str()),
        port: i32::from(shared.advertised.1),
        ..Default::default()
    };
    // An empty list means all topics in version 0, none from version 1 on; null means all.
    let wanted = request.topics.as_ref().filter(|topics| version > 0 || !topics.is_empty());
    let mut topics: Vec<MetadataResponseTopic> = match wanted {
        None => image.topics().into_iter().map(|topic| describe(shared, topic)).collect(),
        Some(wanted) => wanted.iter().map(|wanted| find(shared, &image, wanted)).collect(),
    };
    if request.include_topic_authorized_operations {
        topics.iter_mut().for_each(|topic| topic.topic_authorized_operations = TOPIC_OPERATIONS);
    }
    let cluster_operations = match request.include_cluster_authorized_operations {
        true => CLUSTER_OPERATIONS,
        false => NOT_ASKED,
    };
    m::MetadataResponse {
        brokers: vec![broker],
        cluster_id: Some(Text::from(image.cluster_id.to_string())),
        controller_id: node_id,
        topics,
        cluster_authorized_operations: cluster_operations,
        ..Default::default()
    }
}

fn find(shared: &Shared, image: &Image, wanted: &MetadataRequestTopic) -> MetadataResponseTopic {
    let refused = |error: ErrorCode| MetadataResponseTopic {
        error_code: error.code(),
        name: wanted.name.clone(),
        topic_id: wanted.topic_id,
        ..Default::default()
    };
    match &wanted.name {
        Some(name) => match image.topic_by_name(name) {
            Some(topic) => describe(shared, topic),
            None if ottla_core::cluster::validate_name(name).is_err() => {
                refused(ErrorCode::InvalidTopicException)
            }
            None => refused(ErrorCode::UnknownTopicOrPartition),
        },
        None if wanted.topic_id == Uuid::ZERO => refused(ErrorCode::UnknownTopicId),
        None => match image.topic_by_id(wanted.topic_id) {
            Some(topic) => describe(shared, topic),
            None => refused(ErrorCode::UnknownTopicId),
        },
    }
}

fn describe(shared: &Shared, topic: &Topic) -> MetadataResponseTopic {
    let node_id = shared.config.core.node_id;
    let partitions = (0..topic.partition_count).map(|index| {
        let slot = shared.view.slot(TopicIdPartition { topic_id: topic.id, partition: index });
        MetadataResponsePartition {
            partition_index: index,
            leader_id: node_id,
            leader_epoch: slot.map_or(-1, |slot| slot.newest().bounds.leader_epoch),
            replica_nodes: vec![node_id],
            isr_nodes: vec![node_id],
            ..Default::default()
        }
    });
    MetadataResponseTopic {
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        ..Default::default()
    }
}
