//! Every code of eos-semantics 5.4, as tables.

use super::*;
use crate::config::CoreConfig;
use crate::decision::ShardTime;
use crate::shard::ShardState;

/// What is refused when a member joins, without a trace.
#[test]
fn joining() {
    type Change = fn(&mut m::ConsumerGroupHeartbeatRequest);
    let cases: &[(&str, i16, Change)] = &[
        ("empty group id", 42, |r| r.group_id = Text::EMPTY),
        ("empty member id", 42, |r| r.member_id = Text::EMPTY),
        ("long member id", 42, |r| r.member_id = "x".repeat(5000).into()),
        ("empty instance id", 42, |r| r.instance_id = Some(Text::EMPTY)),
        ("empty rack id", 42, |r| r.rack_id = Some(Text::EMPTY)),
        ("epoch -3", 42, |r| r.member_epoch = -3),
        ("epoch -2 without instance", 42, |r| r.member_epoch = -2),
        ("no rebalance timeout", 42, |r| r.rebalance_timeout_ms = -1),
        ("owned partitions null", 42, |r| r.topic_partitions = None),
        ("owns something", 42, |r| r.topic_partitions = Some(vec![TopicPartitions::default()])),
        ("no subscription", 42, |r| r.subscribed_topic_names = None),
        ("long subscription", 42, |r| r.subscribed_topic_names = Some(vec!["x".repeat(2 << 20).into()])),
        ("unknown assignor", 112, |r| r.server_assignor = Some("other".into())),
        ("empty assignor", 112, |r| r.server_assignor = Some(Text::EMPTY)),
        ("bad expression", 128, |r| r.subscribed_topic_regex = Some("[".into())),
        ("long expression", 128, |r| r.subscribed_topic_regex = Some("x".repeat(5000).into())),
    ];
    let mut broker = Broker::new();
    for (what, code, change) in cases {
        let mut request = Consumer::new("one", &["a"]).join_request();
        change(&mut request);
        let response = send(&mut broker, 1, request);
        assert_eq!(response.error_code, *code, "{what}");
        assert!(response.error_message.is_some_and(|message| !message.is_empty()), "{what}");
        assert_eq!(describe(&mut broker, "g").error_code, 69, "{what} left a group behind");
    }
    // Version 0: the coordinator makes the id, a different one each time.
    let mut request = Consumer::new("", &["a"]).join_request();
    request.member_id = Text::EMPTY;
    let ids = [request.clone(), request].map(|request| {
        let response = send(&mut broker, 0, request);
        assert_eq!(response.error_code, 0);
        response.member_id.expect("an id")
    });
    assert!(ids[0] != ids[1] && !ids[0].is_empty());
}

/// Members and groups that are not there.
#[test]
fn unknown() {
    let mut broker = Broker::new();
    create(&mut broker, "a", 1);
    for epoch in [1, -1] {
        assert_eq!(send(&mut broker, 1, unchanged("g", "one", epoch)).error_code, 69);
    }
    let away = Consumer::of_instance("one", "i", &["a"]).request(-2);
    assert_eq!(send(&mut broker, 1, away.clone()).error_code, 69);
    assert_eq!(Consumer::new("two", &["a"]).join(&mut broker), 0);
    for epoch in [1, -1] {
        assert_eq!(send(&mut broker, 1, unchanged("g", "one", epoch)).error_code, 25);
    }
    assert_eq!(send(&mut broker, 1, away).error_code, 25);
}

/// A member too many is 81, and the others are not disturbed; a static member's successor is not one too many.
#[test]
fn full() {
    let mut broker = Broker::with(|config| config.group_consumer_max_size = 2);
    create(&mut broker, "a", 2);
    let mut one = Consumer::of_instance("one", "i", &["a"]);
    let mut two = Consumer::new("two", &["a"]);
    assert_eq!((one.join(&mut broker), two.join(&mut broker)), (0, 0));
    assert_eq!(Consumer::new("three", &["a"]).join(&mut broker), 81);
    assert_eq!(one.follow(&mut broker), 0);
    assert_eq!(one.leave(&mut broker, -2), 0);
    assert_eq!(Consumer::of_instance("four", "i", &["a"]).join(&mut broker), 0);
    assert_eq!(two.join(&mut broker), 0, "a member may join again");
}

/// A folder whose `group.version` is not finalized has no consumer groups: 35.
#[test]
fn not_enabled() {
    let mut state = ShardState::new(CoreConfig::default());
    state.begin_epoch(1, ShardTime(0));
    for body in [
        CommandBody::ConsumerGroupHeartbeat(Consumer::new("one", &["a"]).join_request()),
        CommandBody::ConsumerGroupDescribe(m::ConsumerGroupDescribeRequest {
            group_ids: vec!["g".into()],
            ..Default::default()
        }),
    ] {
        let command = crate::command::Command { context: Default::default(), body };
        let mut decision = state.step(command, ShardTime(0));
        let code = match decision.answers.remove(0).reply {
            Reply::ConsumerGroupHeartbeat(response) => response.error_code,
            Reply::ConsumerGroupDescribe(response) => response.groups[0].error_code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code, 35);
    }
}
