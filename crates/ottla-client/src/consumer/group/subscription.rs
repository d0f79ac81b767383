//! What members of a classic group say in bytes: the subscription in JoinGroup, the assignment in SyncGroup.
//!
//! Java's `ConsumerProtocol`, versions 0 to 3, written in version 3 like Java does and byte for byte equal to it
//! (a fixture made with Kafka's jar checks that); and the user data of the sticky assignors. What others write is
//! hostile: reading it is bounded, and what cannot be read is nothing.

use bytes::{Bytes, BytesMut};
use ottla_protocol::codec::{Message, Reader, Writer};
use ottla_protocol::messages::consumer_protocol_assignment::TopicPartition as AssignedTopic;
use ottla_protocol::messages::consumer_protocol_subscription::TopicPartition as OwnedTopic;
use ottla_protocol::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use ottla_protocol::types::Text;

use crate::consumer::assignor::{Assignor, MemberSubscription, by_topic, grouped};
use crate::record::TopicPartition;

/// The version that is written.
const VERSION: i16 = 3;

/// Most bytes that a strategy of the program's own may add to a subscription.
const USER_DATA_MAX: usize = 64 << 10;

/// What the sticky assignors remember from one rebalance to the next.
#[derive(Clone, Debug, Default)]
pub(in crate::consumer) struct Remembered {
    last: Option<(Vec<TopicPartition>, i32)>,
}

impl Remembered {
    /// Takes the assignment of a generation.
    pub(in crate::consumer) fn take(&mut self, partitions: Vec<TopicPartition>, generation_id: i32) {
        self.last = Some((partitions, generation_id));
    }

    /// What an assignor sends along.
    pub(in crate::consumer) fn user_data(&self, assignor: &Assignor) -> Option<Bytes> {
        let mut writer = Writer::new();
        match assignor {
            Assignor::Range | Assignor::RoundRobin => return None,
            Assignor::Custom(custom) => return custom.user_data().filter(|data| data.len() <= USER_DATA_MAX),
            Assignor::CooperativeSticky => {
                writer.i32(self.last.as_ref().map_or(-1, |(_, generation_id)| *generation_id));
            }
            Assignor::Sticky => {
                let (partitions, generation_id) = self.last.as_ref()?;
                let topics = by_topic(partitions);
                writer.i32(count(topics.len()));
                for (topic, partitions) in topics {
                    writer.inflexible_nullable_string(Some(&topic));
                    writer.i32(count(partitions.len()));
                    partitions.iter().for_each(|partition| writer.i32(*partition));
                }
                writer.i32(*generation_id);
            }
        }
        Some(writer.finish_bytes())
    }
}

fn count(length: usize) -> i32 {
    i32::try_from(length).expect("no group has two thousand million topics or partitions")
}

/// Writes a subscription; ids of members are not part of it.
pub(in crate::consumer) fn encode(subscription: &MemberSubscription) -> Bytes {
    let mut topics = subscription.topics.clone();
    topics.sort();
    let mut owned = subscription.owned.clone();
    owned.sort();
    let owned_partitions =
        grouped(&owned).into_iter().map(|(topic, partitions)| OwnedTopic { topic, partitions });
    let message = ConsumerProtocolSubscription {
        topics,
        user_data: subscription.user_data.clone(),
        owned_partitions: owned_partitions.collect(),
        generation_id: subscription.generation_id.unwrap_or(-1),
        rack_id: subscription.rack_id.clone(),
    };
    with_version(&message)
}

/// Reads a subscription. None: it cannot be read.
pub(in crate::consumer) fn decode(bytes: &Bytes) -> Option<MemberSubscription> {
    let (mut reader, version) = versioned(bytes, ConsumerProtocolSubscription::MAX_VERSION)?;
    let read = ConsumerProtocolSubscription::decode(&mut reader, version).ok()?;
    let owned = read.owned_partitions.iter().flat_map(|owned| {
        let topic = owned.topic.detached();
        owned.partitions.iter().map(move |partition| TopicPartition::new(topic.clone(), *partition))
    });
    Some(MemberSubscription {
        topics: read.topics.iter().map(Text::detached).collect(),
        owned: owned.collect(),
        generation_id: (read.generation_id >= 0).then_some(read.generation_id),
        user_data: read.user_data,
        rack_id: read.rack_id.map(|rack_id| rack_id.detached()),
        ..MemberSubscription::default()
    })
}

/// Writes an assignment.
pub(in crate::consumer) fn encode_assignment(partitions: &[TopicPartition]) -> Bytes {
    let assigned_partitions =
        grouped(partitions).into_iter().map(|(topic, partitions)| AssignedTopic { topic, partitions });
    with_version(&ConsumerProtocolAssignment {
        assigned_partitions: assigned_partitions.collect(),
        ..ConsumerProtocolAssignment::default()
    })
}

/// Reads an assignment; no bytes are no partitions. None: it cannot be read.
pub(in crate::consumer) fn decode_assignment(bytes: &Bytes) -> Option<Vec<TopicPartition>> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let (mut reader, version) = versioned(bytes, ConsumerProtocolAssignment::MAX_VERSION)?;
    let read = ConsumerProtocolAssignment::decode(&mut reader, version).ok()?;
    let partitions = read.assigned_partitions.iter().flat_map(|assigned| {
        let topic = assigned.topic.detached();
        assigned.partitions.iter().map(move |partition| TopicPartition::new(topic.clone(), *partition))
    });
    Some(partitions.collect())
}

/// Later versions add fields at the end, so the highest that we know reads them.
fn versioned(bytes: &Bytes, highest: i16) -> Option<(Reader, i16)> {
    let mut reader = Reader::new(bytes.clone());
    let version = reader.i16().ok().filter(|version| *version >= 0)?;
    Some((reader, version.min(highest)))
}

fn with_version<M: Message>(message: &M) -> Bytes {
    let mut writer = Writer::new();
    writer.i16(VERSION);
    match message.encode(&mut writer, VERSION) {
        Ok(()) => writer.finish_bytes(),
        // a name longer than 32767 bytes: no topic has one, so nothing is subscribed to
        Err(_) => BytesMut::new().freeze(),
    }
}
