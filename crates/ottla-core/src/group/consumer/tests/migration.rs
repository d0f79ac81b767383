//! Groups that change their protocol while they have members, and classic members of consumer groups.

use bytes::Bytes;
use ottla_protocol::codec::{Message, Reader};
use ottla_protocol::coordinator::encode_value;
use ottla_protocol::messages::consumer_protocol_subscription::TopicPartition as OwnedPartitions;
use ottla_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use ottla_protocol::messages::leave_group_request::MemberIdentity;
use ottla_protocol::messages::sync_group_request::SyncGroupRequestAssignment;

use super::*;
use crate::config::MigrationPolicy;

/// A member of the classic protocol that keeps what it has when it joins again.
#[derive(Clone, Debug, Default)]
pub(super) struct Classic {
    pub(super) id: Text,
    pub(super) instance: Option<&'static str>,
    pub(super) generation: i32,
    /// Partitions of "a".
    pub(super) owned: Vec<i32>,
}

impl Classic {
    fn join_request(&self) -> m::JoinGroupRequest {
        let subscription = m::ConsumerProtocolSubscription {
            topics: vec!["a".into()],
            owned_partitions: vec![OwnedPartitions { topic: "a".into(), partitions: self.owned.clone() }],
            generation_id: self.generation,
            ..Default::default()
        };
        let metadata = encode_value(&subscription, 2).expect("short");
        m::JoinGroupRequest {
            group_id: "g".into(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 20_000,
            member_id: self.id.clone(),
            group_instance_id: self.instance.map(Text::from_static),
            protocol_type: "consumer".into(),
            protocols: vec![JoinGroupRequestProtocol { name: "c".into(), metadata, ..Default::default() }],
            ..Default::default()
        }
    }

    /// JoinGroup 5, and a tick for those that wait: the code.
    pub(super) fn join(&mut self, broker: &mut Broker) -> i16 {
        let mut answers = broker.run(5, CommandBody::JoinGroup(self.join_request())).answers;
        answers.extend(broker.run(0, CommandBody::Tick).answers);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let Reply::JoinGroup(response) = answers.remove(0).reply else { panic!("another answer") };
        if matches!(response.error_code, 0 | 79) {
            self.id = response.member_id;
        }
        if response.error_code == 79 {
            return self.join(broker);
        }
        if response.error_code == 0 {
            self.generation = response.generation_id;
        }
        response.error_code
    }

    /// SyncGroup 5; as a leader it takes these.
    pub(super) fn sync(&mut self, broker: &mut Broker, takes: &[i32]) -> i16 {
        let assignment = m::ConsumerProtocolAssignment {
            assigned_partitions: vec![m::consumer_protocol_assignment::TopicPartition {
                topic: "a".into(),
                partitions: takes.to_vec(),
            }],
            user_data: None,
        };
        let assignment = SyncGroupRequestAssignment {
            member_id: self.id.clone(),
            assignment: encode_value(&assignment, 1).expect("short"),
            ..Default::default()
        };
        let request = m::SyncGroupRequest {
            group_id: "g".into(),
            member_id: self.id.clone(),
            group_instance_id: self.instance.map(Text::from_static),
            generation_id: self.generation,
            protocol_type: Some("consumer".into()),
            protocol_name: Some("c".into()),
            assignments: vec![assignment],
            ..Default::default()
        };
        let Reply::SyncGroup(response) = broker.ask(5, CommandBody::SyncGroup(request)) else {
            panic!("another answer")
        };
        if response.error_code == 0 {
            self.owned = read(&response.assignment);
        }
        response.error_code
    }

    pub(super) fn beat(&self, broker: &mut Broker) -> i16 {
        let request = m::HeartbeatRequest {
            group_id: "g".into(),
            member_id: self.id.clone(),
            group_instance_id: self.instance.map(Text::from_static),
            generation_id: self.generation,
            ..Default::default()
        };
        match broker.ask(4, CommandBody::Heartbeat(request)) {
            Reply::Heartbeat(response) => response.error_code,
            other => panic!("{other:?}"),
        }
    }

    fn leave(&self, broker: &mut Broker) -> i16 {
        let member = MemberIdentity { member_id: self.id.clone(), ..Default::default() };
        let request =
            m::LeaveGroupRequest { group_id: "g".into(), members: vec![member], ..Default::default() };
        match broker.ask(5, CommandBody::LeaveGroup(request)) {
            Reply::LeaveGroup(response) => response.members[0].error_code,
            other => panic!("{other:?}"),
        }
    }
}

fn read(assignment: &Bytes) -> Vec<i32> {
    let mut reader = Reader::new(assignment.clone());
    let version = reader.i16().expect("a version");
    let read = m::ConsumerProtocolAssignment::decode(&mut reader, version).expect("an assignment");
    read.assigned_partitions.iter().flat_map(|topic| topic.partitions.clone()).collect()
}

fn broker(policy: MigrationPolicy) -> Broker {
    let mut broker = Broker::with(|config| {
        config.group_initial_rebalance_delay_ms = 0;
        config.group_consumer_migration_policy = policy;
    });
    create(&mut broker, "a", 4);
    broker
}

/// A classic group of one member that has all four partitions.
fn classic_group(broker: &mut Broker, instance: Option<&'static str>) -> Classic {
    let mut classic = Classic { instance, generation: -1, ..Classic::default() };
    assert_eq!(classic.join(broker), 0);
    assert_eq!(classic.sync(broker, &[0, 1, 2, 3]), 0);
    assert_eq!(classic.owned, [0, 1, 2, 3]);
    classic
}

/// A consumer joins a classic group: its members keep what they have, give the half up when they are called, and
/// get the group back when the consumer leaves. With and without restarts at every turn.
#[test]
fn there_and_back() {
    for restarts in [false, true] {
        let mut broker = broker(MigrationPolicy::Bidirectional);
        let again = |broker: &mut Broker| {
            if restarts {
                broker.restart_from_snapshot();
                broker.restart();
            }
        };
        let mut classic = classic_group(&mut broker, None);
        again(&mut broker);
        let mut two = Consumer::new("two", &["a"]);
        assert_eq!(two.join(&mut broker), 0);
        assert_eq!((two.epoch, two.partitions()), (2, vec![]));
        let group = describe(&mut broker, "g");
        let mut kinds: Vec<i8> = group.members.iter().map(|member| member.member_type).collect();
        kinds.sort_unstable();
        assert_eq!((kinds, group.group_epoch), (vec![0, 1], 2));
        again(&mut broker);
        assert_eq!(classic.beat(&mut broker), 27);
        assert_eq!(classic.sync(&mut broker, &[]), 27);
        assert_eq!(classic.join(&mut broker), 0);
        assert_eq!(classic.generation, 1, "it still owns what it shall give up");
        assert_eq!(classic.sync(&mut broker, &[]), 0);
        assert_eq!(classic.owned.len(), 2);
        again(&mut broker);
        assert_eq!(two.beat(&mut broker), 0);
        assert_eq!(two.partitions(), []);
        assert_eq!(classic.beat(&mut broker), 27);
        assert_eq!(classic.join(&mut broker), 0);
        assert_eq!(classic.generation, 2);
        assert_eq!(classic.sync(&mut broker, &[]), 0);
        assert_eq!(classic.beat(&mut broker), 0);
        again(&mut broker);
        assert_eq!(two.beat(&mut broker), 0);
        let mut all = [classic.owned.clone(), two.partitions()].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
        assert_eq!(two.follow(&mut broker), 0);
        assert_eq!(state(&mut broker), "Stable");
        again(&mut broker);
        assert_eq!(two.leave(&mut broker, -1), 0);
        assert_eq!(describe(&mut broker, "g").error_code, 69, "it is a classic group");
        assert_eq!(classic.beat(&mut broker), 27);
        assert_eq!(classic.join(&mut broker), 0);
        assert_eq!(classic.sync(&mut broker, &[0, 1, 2, 3]), 0);
        assert_eq!((classic.beat(&mut broker), classic.owned.len()), (0, 4));
        again(&mut broker);
        assert_eq!(classic.leave(&mut broker), 0);
        // An empty group changes its protocol with whoever comes.
        assert_eq!(two.join(&mut broker), 0);
        assert_eq!(two.leave(&mut broker, -1), 0);
        classic_group(&mut broker, None);
        again(&mut broker);
    }
}

/// Classic members that come to a consumer group, time out in it, leave it.
#[test]
fn classic_members() {
    let mut broker = broker(MigrationPolicy::Bidirectional);
    let mut one = Consumer::new("one", &["a"]);
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!(one.follow(&mut broker), 0);
    let mut classic = Classic { generation: -1, ..Classic::default() };
    assert_eq!(classic.join(&mut broker), 0);
    assert_eq!(classic.sync(&mut broker, &[]), 0);
    assert_eq!((classic.owned.len(), classic.beat(&mut broker)), (0, 0), "what it waits for is not free");
    assert_eq!(one.beat(&mut broker), 0);
    assert_eq!(one.follow(&mut broker), 0);
    assert_eq!(classic.beat(&mut broker), 27, "now it is");
    assert_eq!(classic.join(&mut broker), 0);
    assert_eq!(classic.sync(&mut broker, &[]), 0);
    assert_eq!((classic.owned.len(), classic.beat(&mut broker)), (2, 0));
    // Errors.
    let generation = classic.generation;
    classic.generation = 7;
    assert_eq!((classic.beat(&mut broker), classic.sync(&mut broker, &[])), (22, 22));
    classic.generation = generation;
    let stranger = Classic { id: "x".into(), generation, ..Classic::default() };
    assert_eq!((stranger.beat(&mut broker), stranger.leave(&mut broker)), (25, 25));
    let modern = Classic { id: "one".into(), generation, ..Classic::default() };
    assert_eq!((modern.beat(&mut broker), modern.leave(&mut broker)), (25, 25));
    let mut request = classic.join_request();
    request.protocol_type = "connect".into();
    let Reply::JoinGroup(response) = broker.ask(5, CommandBody::JoinGroup(request)) else {
        panic!("an answer")
    };
    assert_eq!(response.error_code, 23);
    // One that is called and does not come is fenced after its rebalance timeout, though it sends heartbeats.
    let mut three = Consumer::new("three", &["a"]);
    assert_eq!(three.join(&mut broker), 0);
    for _ in 0..3 {
        assert_eq!(classic.beat(&mut broker), 27);
        broker.pass(6_000);
        assert_eq!(one.follow(&mut broker), 0);
        assert_eq!(three.follow(&mut broker), 0);
    }
    broker.pass(3_000);
    assert_eq!(classic.beat(&mut broker), 25);
    // Its session is what it asked for.
    let mut classic = Classic { generation: -1, ..Classic::default() };
    assert_eq!(classic.join(&mut broker), 0);
    assert_eq!(classic.sync(&mut broker, &[]), 0);
    broker.pass(9_999);
    assert_eq!(classic.beat(&mut broker), 0);
    broker.pass(10_001);
    assert_eq!(classic.beat(&mut broker), 25);
}

/// A static member comes back as a consumer, and again as a classic member, without leaving.
#[test]
fn static_members() {
    let mut broker = broker(MigrationPolicy::Bidirectional);
    let old = classic_group(&mut broker, Some("i"));
    let mut one = Consumer::of_instance("one", "i", &["a"]);
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!(one.partitions(), [0, 1, 2, 3]);
    assert_eq!(describe(&mut broker, "g").members.len(), 1);
    assert_eq!(old.beat(&mut broker), 82);
    assert_eq!(one.follow(&mut broker), 0);
    let mut classic = Classic { instance: Some("i"), generation: -1, ..Classic::default() };
    assert_eq!(classic.join(&mut broker), 0);
    assert_eq!(classic.sync(&mut broker, &[]), 0);
    assert_eq!((classic.owned.len(), classic.beat(&mut broker)), (4, 0));
    assert_eq!(one.beat(&mut broker), 82);
    broker.restart();
}

/// The policy, and members that are no consumers, keep a group as it is: 69.
#[test]
fn refused() {
    for (policy, upgrades, downgrades) in [
        (MigrationPolicy::Bidirectional, true, true),
        (MigrationPolicy::Upgrade, true, false),
        (MigrationPolicy::Downgrade, false, true),
        (MigrationPolicy::Disabled, false, false),
    ] {
        let mut broker = broker(policy);
        classic_group(&mut broker, None);
        let mut two = Consumer::new("two", &["a"]);
        assert_eq!(two.join(&mut broker), if upgrades { 0 } else { 69 });
        if upgrades {
            assert_eq!(two.leave(&mut broker, -1), 0);
            assert_eq!(describe(&mut broker, "g").error_code, if downgrades { 69 } else { 0 });
        }
    }
    let mut broker = broker(MigrationPolicy::Bidirectional);
    let mut request = Classic::default().join_request();
    request.protocol_type = "connect".into();
    broker.run(3, CommandBody::JoinGroup(request));
    assert_eq!(Consumer::new("two", &["a"]).join(&mut broker), 69);
}

/// Whoever waits in a classic group when a consumer joins is called to join again.
#[test]
fn waiting_members() {
    let mut broker = broker(MigrationPolicy::Bidirectional);
    let mut classic = classic_group(&mut broker, None);
    broker.run(3, CommandBody::JoinGroup(Classic::default().join_request()));
    let decision =
        broker.run(1, CommandBody::ConsumerGroupHeartbeat(Consumer::new("two", &["a"]).join_request()));
    let codes: Vec<i16> = decision
        .answers
        .iter()
        .map(|answer| match &answer.reply {
            Reply::JoinGroup(response) => response.error_code,
            Reply::ConsumerGroupHeartbeat(response) => response.error_code,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes, [27, 0]);
    assert_eq!(classic.join(&mut broker), 0);
    broker.restart();
}
