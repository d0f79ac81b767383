//! Tests of consumer groups through the whole shard: scenarios 78 to 80 of eos-semantics section 7, every code of
//! 5.4, the records and their replay, and random lives of members against the invariant of the protocol.
//!
//! [`Consumer`] is a client: it remembers what it was told and what it owns.

use std::collections::BTreeMap;

use ottla_protocol::messages as m;
use ottla_protocol::messages::consumer_group_describe_response::DescribedGroup;
use ottla_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use ottla_protocol::messages::create_topics_request::CreatableTopic;
use ottla_protocol::types::{Text, Uuid};

use super::get;
use super::state::Stored;
use crate::command::CommandBody;
use crate::decision::Reply;
use crate::txn::tests::Broker;

mod errors;
mod migration;
mod mixed;
mod ownership;
mod scenarios;

/// Partitions by topic.
type Owned = BTreeMap<Uuid, Vec<i32>>;

/// A heartbeat whose fields are all "unchanged".
fn unchanged(group: &str, member_id: &str, member_epoch: i32) -> m::ConsumerGroupHeartbeatRequest {
    m::ConsumerGroupHeartbeatRequest {
        group_id: Text::from(group),
        member_id: Text::from(member_id),
        member_epoch,
        ..Default::default()
    }
}

fn send(
    broker: &mut Broker,
    version: i16,
    request: m::ConsumerGroupHeartbeatRequest,
) -> m::ConsumerGroupHeartbeatResponse {
    match broker.ask(version, CommandBody::ConsumerGroupHeartbeat(request)) {
        Reply::ConsumerGroupHeartbeat(response) => response,
        other => panic!("{other:?}"),
    }
}

fn wire(owned: &Owned) -> Vec<TopicPartitions> {
    let topics = owned.iter().filter(|(_, partitions)| !partitions.is_empty());
    topics
        .map(|(topic_id, partitions)| TopicPartitions {
            topic_id: *topic_id,
            partitions: partitions.clone(),
            ..Default::default()
        })
        .collect()
}

/// A member as its client sees it.
#[derive(Clone, Debug)]
struct Consumer {
    group: &'static str,
    id: String,
    instance: Option<&'static str>,
    topics: Vec<&'static str>,
    regex: Option<&'static str>,
    rebalance_ms: i32,
    epoch: i32,
    told: Owned,
    owned: Owned,
}

impl Consumer {
    fn new(id: &str, topics: &[&'static str]) -> Self {
        Self {
            group: "g",
            id: id.to_owned(),
            instance: None,
            topics: topics.to_vec(),
            regex: None,
            rebalance_ms: 10_000,
            epoch: 0,
            told: Owned::new(),
            owned: Owned::new(),
        }
    }

    fn of_instance(id: &str, instance: &'static str, topics: &[&'static str]) -> Self {
        Self { instance: Some(instance), ..Self::new(id, topics) }
    }

    fn by_regex(id: &str, regex: &'static str) -> Self {
        Self { regex: Some(regex), ..Self::new(id, &[]) }
    }

    fn request(&self, epoch: i32) -> m::ConsumerGroupHeartbeatRequest {
        m::ConsumerGroupHeartbeatRequest {
            instance_id: self.instance.map(Text::from_static),
            ..unchanged(self.group, &self.id, epoch)
        }
    }

    fn join_request(&self) -> m::ConsumerGroupHeartbeatRequest {
        m::ConsumerGroupHeartbeatRequest {
            rebalance_timeout_ms: self.rebalance_ms,
            subscribed_topic_names: Some(self.topics.iter().map(|name| Text::from(*name)).collect()),
            subscribed_topic_regex: self.regex.map(Text::from_static),
            topic_partitions: Some(Vec::new()),
            ..self.request(0)
        }
    }

    /// Takes an answer in.
    fn take(&mut self, response: &m::ConsumerGroupHeartbeatResponse) -> i16 {
        if response.error_code == 0 {
            self.epoch = response.member_epoch;
            if let Some(assignment) = &response.assignment {
                let topics = assignment.topic_partitions.iter();
                self.told = topics.map(|topic| (topic.topic_id, topic.partitions.clone())).collect();
            }
        }
        response.error_code
    }

    fn join(&mut self, broker: &mut Broker) -> i16 {
        self.owned.clear();
        let response = send(broker, 1, self.join_request());
        self.take(&response)
    }

    /// A heartbeat that reports nothing.
    fn beat(&mut self, broker: &mut Broker) -> i16 {
        let response = send(broker, 1, self.request(self.epoch));
        self.take(&response)
    }

    /// A heartbeat that reports what it owns.
    fn report(&mut self, broker: &mut Broker) -> i16 {
        let topic_partitions = Some(wire(&self.owned));
        let request = m::ConsumerGroupHeartbeatRequest { topic_partitions, ..self.request(self.epoch) };
        let response = send(broker, 1, request);
        self.take(&response)
    }

    /// A heartbeat that says everything, as after a lost answer.
    fn repeat(&mut self, broker: &mut Broker) -> i16 {
        let topic_partitions = Some(wire(&self.owned));
        let request = m::ConsumerGroupHeartbeatRequest {
            topic_partitions,
            member_epoch: self.epoch,
            ..self.join_request()
        };
        let response = send(broker, 1, request);
        self.take(&response)
    }

    /// Does as it was told, and says so.
    fn follow(&mut self, broker: &mut Broker) -> i16 {
        self.owned = self.told.clone();
        self.report(broker)
    }

    fn leave(&mut self, broker: &mut Broker, epoch: i32) -> i16 {
        let response = send(broker, 1, self.request(epoch));
        if response.error_code == 0 {
            assert_eq!(response.member_epoch, epoch);
        }
        response.error_code
    }

    /// Partitions it was told to have, of all topics.
    fn partitions(&self) -> Vec<i32> {
        let mut partitions: Vec<i32> = self.told.values().flatten().copied().collect();
        partitions.sort_unstable();
        partitions
    }
}

fn create(broker: &mut Broker, name: &str, num_partitions: i32) -> Uuid {
    let topic = CreatableTopic {
        name: Text::from(name),
        num_partitions,
        replication_factor: -1,
        ..Default::default()
    };
    let request = m::CreateTopicsRequest { topics: vec![topic], ..Default::default() };
    match broker.ask(7, CommandBody::CreateTopics(request)) {
        Reply::CreateTopics(response) => {
            assert_eq!(response.topics[0].error_code, 0, "{:?}", response.topics[0].error_message);
            response.topics[0].topic_id
        }
        other => panic!("{other:?}"),
    }
}

fn describe(broker: &mut Broker, group: &str) -> DescribedGroup {
    let request =
        m::ConsumerGroupDescribeRequest { group_ids: vec![Text::from(group)], ..Default::default() };
    match broker.ask(1, CommandBody::ConsumerGroupDescribe(request)) {
        Reply::ConsumerGroupDescribe(mut response) => response.groups.remove(0),
        other => panic!("{other:?}"),
    }
}

fn state(broker: &mut Broker) -> String {
    describe(broker, "g").group_state.to_string()
}

fn stored<'a>(broker: &'a Broker, group: &str) -> &'a Stored {
    &get(&broker.state, group).expect("it is a consumer group").stored
}
