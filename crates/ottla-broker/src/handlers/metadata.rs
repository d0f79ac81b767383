//! Metadata (key 3, versions 0-13; KIP-516): brokers, topics, leaders.
//!
//! Answered from the published image, so a topic is shown only once its record is durable. Unknown topics that
//! are asked for by name are created first when both client and broker want that.
//!
//! A topic that is asked for twice is answered once, so that an answer is never larger than the state. A request
//! that names an id is answered by its ids alone, whatever names stand beside them (the Java client sends empty
//! ones); before version 12 an id, or no name, is error 42 for all of the request.

use std::collections::BTreeSet;
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

/// The first version in which topics may be asked for by id.
const TOPIC_IDS_SINCE: i16 = 12;
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
    if request.topics.iter().flatten().any(has_id) {
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
        Some(wanted) => find_all(shared, &image, wanted, version),
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

/// Whether a topic is asked for by its id.
fn has_id(wanted: &MetadataRequestTopic) -> bool {
    !wanted.topic_id.is_zero()
}

fn find_all(
    shared: &Shared,
    image: &Image,
    wanted: &[MetadataRequestTopic],
    version: i16,
) -> Vec<MetadataResponseTopic> {
    let ids_only = wanted.iter().any(has_id);
    if version < TOPIC_IDS_SINCE && (ids_only || wanted.iter().any(|wanted| wanted.name.is_none())) {
        // A name is not null in the answers of these versions.
        let refusal = |wanted: &MetadataRequestTopic| MetadataResponseTopic {
            name: Some(wanted.name.clone().unwrap_or_default()),
            ..refused(wanted, ErrorCode::InvalidRequest)
        };
        return wanted.iter().map(refusal).collect();
    }
    let mut seen = BTreeSet::new();
    let mut is_new = |wanted: &MetadataRequestTopic| match ids_only {
        true => seen.insert((wanted.topic_id, None)),
        false => seen.insert((Uuid::ZERO, wanted.name.clone())),
    };
    let wanted = wanted.iter().filter(|wanted| has_id(wanted) || !ids_only);
    wanted.filter(|wanted| is_new(wanted)).map(|wanted| find(shared, image, wanted)).collect()
}

fn refused(wanted: &MetadataRequestTopic, error: ErrorCode) -> MetadataResponseTopic {
    MetadataResponseTopic {
        error_code: error.code(),
        name: wanted.name.clone(),
        topic_id: wanted.topic_id,
        ..Default::default()
    }
}

fn find(shared: &Shared, image: &Image, wanted: &MetadataRequestTopic) -> MetadataResponseTopic {
    let (found, unknown) = match &wanted.name {
        _ if has_id(wanted) => (image.topic_by_id(wanted.topic_id), ErrorCode::UnknownTopicId),
        Some(name) if ottla_core::cluster::validate_name(name).is_err() => {
            (None, ErrorCode::InvalidTopicException)
        }
        Some(name) => (image.topic_by_name(name), ErrorCode::UnknownTopicOrPartition),
        None => (None, ErrorCode::UnknownTopicId),
    };
    match found {
        Some(topic) => describe(shared, topic),
        None if has_id(wanted) => MetadataResponseTopic { name: None, ..refused(wanted, unknown) },
        None => refused(wanted, unknown),
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
