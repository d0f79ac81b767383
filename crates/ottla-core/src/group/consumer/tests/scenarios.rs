//! Scenarios 78 to 80, and what changes of topics and subscriptions do.

use std::collections::BTreeSet;

use super::*;

/// A first member that has all four partitions of "a", and said so.
fn first(broker: &mut Broker) -> Consumer {
    create(broker, "a", 4);
    let mut one = Consumer::new("one", &["a"]);
    assert_eq!(one.join(broker), 0);
    assert_eq!((one.epoch, one.partitions()), (1, vec![0, 1, 2, 3]));
    assert_eq!(one.follow(broker), 0);
    one
}

/// 78: the first gets everything; the second waits until the first has given up its half; restarts in between
/// change nothing.
#[test]
fn scenario_78_second_member() {
    for restarts in [false, true] {
        let mut broker = Broker::new();
        let again = |broker: &mut Broker| {
            if restarts {
                broker.restart_from_snapshot();
                broker.restart();
            }
        };
        let mut one = first(&mut broker);
        assert_eq!(state(&mut broker), "Stable");
        again(&mut broker);
        let mut two = Consumer::new("two", &["a"]);
        assert_eq!(two.join(&mut broker), 0);
        assert_eq!((two.epoch, two.partitions()), (2, vec![]));
        assert_eq!(state(&mut broker), "Reconciling");
        again(&mut broker);
        assert_eq!(one.beat(&mut broker), 0);
        assert_eq!((one.epoch, one.partitions().len()), (1, 2), "told to give two up, at the old epoch");
        for _ in 0..3 {
            assert_eq!(two.report(&mut broker), 0);
            assert_eq!(two.partitions(), Vec::<i32>::new(), "they are not free yet");
            assert_eq!(one.beat(&mut broker), 0);
            assert_eq!(one.epoch, 1);
        }
        again(&mut broker);
        assert_eq!(one.follow(&mut broker), 0);
        assert_eq!(one.epoch, 2);
        assert_eq!(two.beat(&mut broker), 0);
        let mut all = [one.partitions(), two.partitions()].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
        assert_eq!(two.follow(&mut broker), 0);
        assert_eq!(state(&mut broker), "Stable");
        assert_eq!(two.leave(&mut broker, -1), 0);
        again(&mut broker);
        assert_eq!(one.beat(&mut broker), 0);
        assert_eq!((one.epoch, one.partitions()), (3, vec![0, 1, 2, 3]));
        assert_eq!(two.beat(&mut broker), 25);
        assert_eq!(one.leave(&mut broker, -1), 0);
        assert_eq!(state(&mut broker), "Empty");
        again(&mut broker);
        assert_eq!(state(&mut broker), "Empty");
    }
}

/// 79: an epoch that is not the member's is 110, but the one before is let in when the answer may have been lost
/// and the member owns no more than it has.
#[test]
fn scenario_79_epochs() {
    let mut broker = Broker::new();
    let mut one = first(&mut broker);
    for wrong in [2, 8] {
        assert_eq!(send(&mut broker, 1, one.request(wrong)).error_code, 110);
    }
    let mut two = Consumer::new("two", &["a"]);
    assert_eq!(two.join(&mut broker), 0);
    assert_eq!(one.beat(&mut broker), 0);
    let all = one.owned.clone();
    assert_eq!(one.follow(&mut broker), 0);
    assert_eq!(one.epoch, 2);
    broker.restart();
    let before = |owned: Option<&Owned>| m::ConsumerGroupHeartbeatRequest {
        topic_partitions: owned.map(wire),
        ..unchanged("g", "one", 1)
    };
    let response = send(&mut broker, 1, before(Some(&one.owned)));
    assert_eq!((response.error_code, response.member_epoch), (0, 2));
    assert!(response.assignment.is_some(), "who lost an answer is told again");
    assert_eq!(send(&mut broker, 1, before(Some(&all))).error_code, 110);
    assert_eq!(send(&mut broker, 1, before(None)).error_code, 110);
}

/// 79: static members. 111 while in use, 82 for another id; after -2 the next one inherits what it had, without
/// a new group epoch.
#[test]
fn scenario_79_static_members() {
    for restarts in [false, true] {
        let mut broker = Broker::new();
        create(&mut broker, "a", 4);
        let mut one = Consumer::of_instance("one", "i", &["a"]);
        assert_eq!(one.join(&mut broker), 0);
        assert_eq!(one.follow(&mut broker), 0);
        let mut two = Consumer::of_instance("two", "i", &["a"]);
        assert_eq!(two.join(&mut broker), 111);
        assert_eq!(send(&mut broker, 1, two.request(1)).error_code, 82);
        assert_eq!(two.leave(&mut broker, -1), 82);
        let mut other = Consumer::of_instance("x", "j", &["a"]);
        other.epoch = 1;
        assert_eq!(other.beat(&mut broker), 25);
        assert_eq!(one.leave(&mut broker, -2), 0);
        assert_eq!(describe(&mut broker, "g").members[0].member_epoch, -2);
        if restarts {
            broker.restart();
        }
        assert_eq!(two.join(&mut broker), 0);
        assert_eq!((two.epoch, two.partitions()), (1, vec![0, 1, 2, 3]));
        let group = describe(&mut broker, "g");
        assert_eq!((group.group_epoch, group.members.len()), (1, 1));
        assert_eq!(one.beat(&mut broker), 82);
        if restarts {
            broker.restart();
        }
        // The same id comes back too.
        assert_eq!(two.leave(&mut broker, -2), 0);
        assert_eq!(two.join(&mut broker), 0);
        assert_eq!((two.epoch, two.partitions()), (1, vec![0, 1, 2, 3]));
        // Who stays away longer than its session is out.
        assert_eq!(two.leave(&mut broker, -2), 0);
        broker.pass(45_001);
        assert_eq!(state(&mut broker), "Empty");
    }
}

/// 80: who does not give up its partitions in time is fenced, and who is silent for a session too; a restart
/// gives both their whole time again.
#[test]
fn scenario_80_timers() {
    for restarts in [false, true] {
        let mut broker = Broker::new();
        create(&mut broker, "a", 4);
        let mut one = Consumer { rebalance_ms: 2000, ..Consumer::new("one", &["a"]) };
        let mut two = Consumer { rebalance_ms: 2000, ..Consumer::new("two", &["a"]) };
        assert_eq!(one.join(&mut broker), 0);
        assert_eq!(one.follow(&mut broker), 0);
        assert_eq!(two.join(&mut broker), 0);
        assert_eq!(one.beat(&mut broker), 0);
        assert_eq!(one.partitions().len(), 2);
        broker.pass(1500);
        if restarts {
            broker.restart();
            broker.pass(1500);
        }
        assert_eq!(one.report(&mut broker), 0, "in time");
        broker.pass(600);
        assert_eq!(one.report(&mut broker), 25);
        assert_eq!(two.report(&mut broker), 0);
        assert_eq!(two.partitions(), [0, 1, 2, 3]);
        broker.pass(44_900);
        assert_eq!(two.follow(&mut broker), 0, "in its session");
        broker.pass(45_000);
        assert_eq!(two.beat(&mut broker), 25);
        broker.restart();
        assert_eq!(state(&mut broker), "Empty");
    }
}

/// 80: who gives up in time is not fenced, however often it is asked.
#[test]
fn revocation_in_time() {
    let mut broker = Broker::new();
    create(&mut broker, "a", 6);
    let mut one = Consumer::new("one", &["a"]);
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!(one.follow(&mut broker), 0);
    for (index, id) in ["two", "three"].into_iter().enumerate() {
        let mut next = Consumer::new(id, &["a"]);
        assert_eq!(next.join(&mut broker), 0);
        assert_eq!(one.beat(&mut broker), 0);
        broker.pass(9_999);
        assert_eq!(one.follow(&mut broker), 0);
        assert_eq!(one.partitions().len(), 3 - index);
        broker.pass(9_999);
        assert_eq!(one.beat(&mut broker), 0);
        assert_eq!(next.beat(&mut broker), 0);
        assert_eq!(next.follow(&mut broker), 0);
    }
}

/// New topics, deleted ones and ones made again change the group's epoch, at the next heartbeat of anybody; a
/// change of settings does not.
#[test]
fn topics_change() {
    let mut broker = Broker::new();
    let old = create(&mut broker, "a", 1);
    let mut one = Consumer::new("one", &["a", "b"]);
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!((one.epoch, one.told.len()), (1, 1));
    create(&mut broker, "other", 1);
    assert_eq!(one.follow(&mut broker), 0);
    assert_eq!(one.epoch, 1);
    create(&mut broker, "b", 2);
    broker.restart();
    assert_eq!(one.beat(&mut broker), 0);
    assert_eq!((one.epoch, one.partitions()), (2, vec![0, 0, 1]));
    assert_eq!(one.follow(&mut broker), 0);
    broker.delete_topic("a");
    assert_eq!(one.beat(&mut broker), 0);
    assert_eq!((one.epoch, one.partitions()), (2, vec![0, 1]), "told to give it up");
    assert_eq!(one.follow(&mut broker), 0);
    assert_eq!(one.epoch, 3);
    let new = create(&mut broker, "a", 1);
    assert_ne!(old, new);
    assert_eq!(one.beat(&mut broker), 0);
    assert_eq!((one.epoch, one.told.contains_key(&new)), (4, true));
    assert_eq!(describe(&mut broker, "g").members[0].assignment.topic_partitions.len(), 2);
}

/// A regular expression gets the topics that match, also new ones, after the heartbeat that brought it; its record
/// goes with its last member.
#[test]
fn regular_expressions() {
    let mut broker = Broker::new();
    let a1 = create(&mut broker, "a-1", 2);
    create(&mut broker, "b-1", 1);
    let mut one = Consumer::by_regex("one", "a-.*|x");
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!((one.told.len(), one.epoch), (0, 1), "not in the heartbeat that brings it");
    broker.pass(1);
    assert_eq!(one.beat(&mut broker), 0);
    assert_eq!((one.told.keys().collect::<Vec<_>>(), one.epoch), (vec![&a1], 2));
    assert_eq!(one.follow(&mut broker), 0);
    broker.restart();
    let a2 = create(&mut broker, "a-2", 1);
    assert_eq!(one.beat(&mut broker), 0);
    broker.pass(1);
    assert_eq!(one.beat(&mut broker), 0);
    assert!(one.told.contains_key(&a2) && one.epoch == 3);
    assert_eq!(one.follow(&mut broker), 0);
    assert!(stored(&broker, "g").is_subscribed("a-2") && !stored(&broker, "g").is_subscribed("b-1"));
    // Another expression in its place.
    let request = m::ConsumerGroupHeartbeatRequest {
        subscribed_topic_regex: Some("b.*".into()),
        ..one.request(one.epoch)
    };
    assert_eq!(one.take(&send(&mut broker, 1, request)), 0);
    assert!(stored(&broker, "g").regexes.is_empty());
    assert_eq!(one.follow(&mut broker), 0);
    broker.pass(10_000);
    assert_eq!(one.beat(&mut broker), 0);
    assert_eq!(stored(&broker, "g").regexes.keys().collect::<Vec<_>>(), ["b.*"]);
    assert_eq!(one.follow(&mut broker), 0);
    assert_eq!(one.partitions(), [0]);
    // Names in place of the expression.
    let request = m::ConsumerGroupHeartbeatRequest {
        subscribed_topic_regex: Some(Text::EMPTY),
        subscribed_topic_names: Some(vec!["a-1".into()]),
        ..one.request(one.epoch)
    };
    assert_eq!(one.take(&send(&mut broker, 1, request)), 0);
    assert!(stored(&broker, "g").regexes.is_empty());
    assert_eq!(one.follow(&mut broker), 0);
    assert_eq!(one.partitions(), [0, 1]);
    broker.restart();
}

/// The topics of a group's expressions are not looked up again within ten seconds, whatever happens, and then all at
/// once; names that are given literally do not wait for them.
#[test]
fn expressions_are_looked_up_now_and_then() {
    let mut broker = Broker::new();
    let (a, b) = (create(&mut broker, "a", 1), create(&mut broker, "b", 2));
    let mut one = Consumer::by_regex("one", "a.*");
    one.topics = vec!["b"];
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!(one.told.keys().collect::<Vec<_>>(), [&b], "the name at once");
    broker.pass(1);
    assert_eq!(one.follow(&mut broker), 0);
    assert_eq!(one.told.len(), 2);
    assert_eq!(one.follow(&mut broker), 0);
    let began = broker.now;
    let mut looked_up = Vec::new();
    for index in 0..30 {
        create(&mut broker, &format!("a-{index}"), 1);
        assert_eq!(one.follow(&mut broker), 0);
        let before = stored(&broker, "g").regexes["a.*".as_bytes()].topics.len();
        broker.pass(1000);
        let after = stored(&broker, "g").regexes["a.*".as_bytes()].topics.len();
        if before != after {
            looked_up.push((broker.now - began, after));
        }
    }
    assert_eq!(looked_up, [(10_000, 11), (20_000, 21), (30_000, 31)]);
    broker.pass(10_000);
    assert_eq!(one.follow(&mut broker), 0);
    assert!(one.told.contains_key(&a) && one.told.len() == 32);
}

/// A changed subscription moves partitions to where they are wanted; the assignor that most members ask for is
/// used.
#[test]
fn subscriptions_and_assignors_change() {
    let mut broker = Broker::new();
    create(&mut broker, "a", 4);
    create(&mut broker, "b", 2);
    let mut one = Consumer::new("one", &["a"]);
    let mut two = Consumer::new("two", &["a"]);
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!(two.join(&mut broker), 0);
    for _ in 0..3 {
        assert_eq!((one.follow(&mut broker), two.follow(&mut broker)), (0, 0));
    }
    let request = m::ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: Some(vec!["b".into(), "b".into()]),
        ..two.request(two.epoch)
    };
    assert_eq!(two.take(&send(&mut broker, 1, request)), 0);
    for _ in 0..3 {
        assert_eq!((one.follow(&mut broker), two.follow(&mut broker)), (0, 0));
    }
    assert_eq!((one.partitions(), two.partitions()), (vec![0, 1, 2, 3], vec![0, 1]));
    assert_eq!(describe(&mut broker, "g").assignor_name, "uniform");
    let request = m::ConsumerGroupHeartbeatRequest {
        server_assignor: Some("range".into()),
        subscribed_topic_names: Some(vec!["a".into()]),
        ..two.request(two.epoch)
    };
    assert_eq!(two.take(&send(&mut broker, 1, request)), 0);
    for _ in 0..3 {
        assert_eq!((one.follow(&mut broker), two.follow(&mut broker)), (0, 0));
    }
    assert_eq!(describe(&mut broker, "g").assignor_name, "range");
    assert_eq!((one.partitions(), two.partitions()), (vec![0, 1], vec![2, 3]));
}

/// The log holds Kafka's records: which types, for whom, in which order.
#[test]
fn records() {
    use ottla_protocol::coordinator::record_type;
    let mut broker = Broker::new();
    create(&mut broker, "a", 1);
    let types = |broker: &mut Broker, request| {
        let decision = broker.run(1, CommandBody::ConsumerGroupHeartbeat(request));
        let mut types = Vec::new();
        for entry in &decision.entries {
            for record in ottla_protocol::record::records_of(&entry.header, &entry.tail, 0).expect("our own")
            {
                let record = record.expect("our own");
                let (kind, _) = record_type(&record.key.expect("a key")).expect("our own");
                types.push((kind, record.value.is_some()));
            }
        }
        types
    };
    let member = Consumer::by_regex("one", "a");
    let joined = types(&mut broker, member.join_request());
    assert_eq!(joined, [(5, true), (3, true), (7, true), (6, true), (8, true)]);
    assert_eq!(types(&mut broker, member.request(1)), []);
    broker.pass(1); // the expression is looked up: types 16 and 3
    assert_eq!(types(&mut broker, member.request(1)), [(7, true), (6, true), (8, true)]);
    assert_eq!(types(&mut broker, member.request(2)), []);
    let left = types(&mut broker, member.request(-1));
    assert_eq!(left, [(8, false), (7, false), (5, false), (16, false), (3, true)]);
}

/// A group of 300 members that join at once comes to rest, each with its share.
#[test]
fn many_members() {
    let mut broker = Broker::new();
    create(&mut broker, "a", 600);
    let mut members: Vec<Consumer> =
        (0..300).map(|index| Consumer::new(&format!("m{index:03}"), &["a"])).collect();
    for member in &mut members {
        assert_eq!(member.join(&mut broker), 0);
    }
    for _ in 0..3 {
        for member in &mut members {
            assert_eq!(member.follow(&mut broker), 0);
        }
    }
    assert_eq!(state(&mut broker), "Stable");
    assert!(members.iter().all(|member| member.partitions().len() == 2));
    broker.restart();
}

/// Settings of the group hold from the next heartbeat on: what members are told, and how long they may be silent,
/// also after a restart and for a group that came later than its settings.
#[test]
fn settings_of_the_group() {
    use ottla_protocol::messages::incremental_alter_configs_request::{
        AlterConfigsResource, AlterableConfig,
    };
    let mut broker = Broker::new();
    create(&mut broker, "a", 2);
    let set = |broker: &mut Broker, name: &str, value: Option<&str>| {
        let config = AlterableConfig {
            name: name.into(),
            config_operation: i8::from(value.is_none()),
            value: value.map(Text::from),
            ..Default::default()
        };
        let resource = AlterConfigsResource {
            resource_type: 32,
            resource_name: "g".into(),
            configs: vec![config],
            ..Default::default()
        };
        let request = m::IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        match broker.ask(1, CommandBody::IncrementalAlterConfigs(request)) {
            Reply::IncrementalAlterConfigs(response) => assert_eq!(response.responses[0].error_code, 0),
            other => panic!("{other:?}"),
        }
    };
    set(&mut broker, "consumer.session.timeout.ms", Some("60000"));
    let mut one = Consumer::new("one", &["a"]);
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!(send(&mut broker, 1, one.request(one.epoch)).heartbeat_interval_ms, 5000);
    set(&mut broker, "consumer.heartbeat.interval.ms", Some("10000"));
    assert_eq!(send(&mut broker, 1, one.request(one.epoch)).heartbeat_interval_ms, 10_000);
    broker.pass(59_000);
    assert_eq!(state(&mut broker), "Stable", "silent for less than the group's timeout");
    broker.restart();
    broker.pass(59_000);
    assert_eq!(state(&mut broker), "Stable", "the same after a restart");
    assert_eq!(one.beat(&mut broker), 0);
    set(&mut broker, "consumer.session.timeout.ms", None);
    assert_eq!(one.beat(&mut broker), 0);
    broker.pass(46_000);
    assert_eq!(state(&mut broker), "Empty", "the broker's timeout holds again");
    broker.restart_from_snapshot();
    assert_eq!(one.join(&mut broker), 0);
    assert_eq!(send(&mut broker, 1, one.request(one.epoch)).heartbeat_interval_ms, 10_000);
}

/// When all members of a large group come at once, a target is made now and then and not for each of them; in the
/// end everybody has its share.
#[test]
fn a_large_group_comes_at_once() {
    const MEMBERS: usize = 500;
    let mut broker = Broker::new();
    create(&mut broker, "a", 2000);
    let mut members: Vec<Consumer> =
        (0..MEMBERS).map(|index| Consumer::new(&format!("m{index:03}"), &["a"])).collect();
    let mut targets = BTreeSet::new();
    for member in &mut members {
        assert_eq!(member.join(&mut broker), 0);
        targets.insert(stored(&broker, "g").target_epoch);
    }
    for _ in 0..5 {
        broker.pass(1000);
        for member in &mut members {
            assert_eq!(member.follow(&mut broker), 0);
            targets.insert(stored(&broker, "g").target_epoch);
        }
    }
    assert_eq!(state(&mut broker), "Stable");
    assert!(members.iter().all(|member| member.partitions().len() == 2000 / MEMBERS));
    assert_eq!(targets.into_iter().collect::<Vec<_>>(), [1, 500], "for the first, and for all");
    broker.restart();
}

/// A group that one request names many times is described once: its answer is no larger than the state.
#[test]
fn described_once() {
    let mut broker = Broker::new();
    create(&mut broker, "a", 1);
    assert_eq!(Consumer::new("one", &["a"]).join(&mut broker), 0);
    let request = m::ConsumerGroupDescribeRequest { group_ids: vec!["g".into(); 1000], ..Default::default() };
    let Reply::ConsumerGroupDescribe(response) = broker.ask(1, CommandBody::ConsumerGroupDescribe(request))
    else {
        panic!("ConsumerGroupDescribe is answered");
    };
    assert_eq!(response.groups.iter().map(|group| group.members.len()).collect::<Vec<_>>(), [1]);
}

/// A member keeps nothing of the bytes of the request that made it one, however large that was.
#[test]
fn requests_are_not_kept() {
    let mut broker = Broker::new();
    create(&mut broker, "a", 1);
    let frame = bytes::Bytes::from(b"gm".repeat(1000));
    let text = |at: usize| Text::from_utf8(frame.slice(at..at + 1)).expect("ASCII");
    let member = Consumer::new("m", &["a"]);
    for request in [member.join_request(), member.request(1)] {
        let request = m::ConsumerGroupHeartbeatRequest { group_id: text(0), member_id: text(1), ..request };
        assert_eq!(send(&mut broker, 1, request).error_code, 0);
    }
    assert!(frame.is_unique(), "something still has a part of it");
}
