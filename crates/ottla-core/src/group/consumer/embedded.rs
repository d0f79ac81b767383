//! What members of the classic protocol say in bytes: the subscription in JoinGroup, the assignment in SyncGroup.
//!
//! Place in the walk: `classic_member` and `migrate` read and write them. Names of topics become ids here, and
//! ids names; topics that do not exist are left out.

use bytes::Bytes;
use ottla_protocol::codec::{Message, Reader};
use ottla_protocol::coordinator::encode_value;
use ottla_protocol::messages::ConsumerProtocolAssignment;
use ottla_protocol::messages::consumer_protocol_assignment::TopicPartition;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::assignment::Assignment;
use super::member::Member;
use crate::cluster::Topics;
use crate::group::classic;

/// The only protocol type that can become a consumer group.
pub(super) const PROTOCOL_TYPE: &str = "consumer";

/// What a subscription says.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscription {
    /// Names of topics, in order, each once.
    pub(super) topics: Vec<Text>,
    pub(super) owned: Assignment,
    pub(super) rack_id: Option<Text>,
}

/// Reads a subscription. None: it cannot be read.
pub(super) fn subscription(metadata: &Bytes, topics: &Topics) -> Option<Subscription> {
    let read = classic::subscription(metadata)?;
    let mut names: Vec<Text> = read.topics.iter().map(Text::detached).collect();
    names.sort_unstable();
    names.dedup();
    let owned = read.owned_partitions.iter().flat_map(|owned| {
        let topic = topics.by_name(&owned.topic);
        topic.into_iter().flat_map(|topic| {
            owned.partitions.iter().map(|&partition| TopicIdPartition { topic_id: topic.id, partition })
        })
    });
    Some(Subscription {
        topics: names,
        owned: owned.collect(),
        rack_id: read.rack_id.map(|rack_id| rack_id.detached()),
    })
}

/// Reads an assignment; what cannot be read assigns nothing.
pub(super) fn assignment(bytes: &Bytes, topics: &Topics) -> Assignment {
    read_assignment(bytes, topics).unwrap_or_default()
}

fn read_assignment(bytes: &Bytes, topics: &Topics) -> Option<Assignment> {
    let mut reader = Reader::new(bytes.clone());
    let version = reader.i16().ok().filter(|version| *version >= 0)?;
    let version = version.min(ConsumerProtocolAssignment::MAX_VERSION);
    let read = ConsumerProtocolAssignment::decode(&mut reader, version).ok()?;
    let partitions = read.assigned_partitions.iter().flat_map(|assigned| {
        let topic = topics.by_name(&assigned.topic);
        topic
            .into_iter()
            .flat_map(|topic| assigned.partitions.iter().filter_map(|&partition| topic.partition(partition)))
    });
    Some(partitions.collect())
}

/// What a member has, in the version of its subscription.
pub(super) fn assignment_of(member: &Member, topics: &Topics) -> Bytes {
    let classic = member.metadata.classic.as_ref();
    let metadata =
        classic.and_then(|classic| classic.protocols.first()).map(|(_, metadata)| metadata.clone());
    let version = metadata.and_then(|metadata| Reader::new(metadata).i16().ok()).unwrap_or_default();
    let version = version.clamp(0, ConsumerProtocolAssignment::MAX_VERSION);
    let mut assigned_partitions: Vec<TopicPartition> = member
        .current
        .assigned
        .topics()
        .filter_map(|(topic_id, partitions)| {
            let topic = topics.by_id(topic_id)?.name.clone();
            Some(TopicPartition { topic, partitions: partitions.keys().copied().collect() })
        })
        .collect();
    assigned_partitions.sort_unstable_by(|one, other| one.topic.cmp(&other.topic));
    let assignment = ConsumerProtocolAssignment { assigned_partitions, user_data: None };
    encode_value(&assignment, version).expect("every version has these fields")
}
