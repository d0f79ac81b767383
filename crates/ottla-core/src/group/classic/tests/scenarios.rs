//! Scenarios 71 to 77, and what section 5.2 says beside its table.

use super::*;

/// Join 4 with id "": 79 and an id; the rejoin waits for the initial delay; a second member extends it.
#[test]
fn scenario_71_initial_delay() {
    let mut broker = Broker::new();
    let (first, token) = broker.come(&ANYBODY);
    broker.sleep(2999);
    assert_eq!(broker.joined(token), None);
    broker.sleep(1);
    let response = broker.joined(token).expect("the delay is over");
    assert_eq!((response.error_code, response.generation_id), (0, 1));
    assert_eq!((&response.leader, response.members.len()), (&first, 1));

    let mut broker = Broker::new();
    let (first, one) = broker.come(&ANYBODY);
    broker.sleep(2000);
    let (second, other) = broker.come(&ANYBODY);
    broker.sleep(3999);
    assert_eq!((broker.joined(one), broker.joined(other)), (None, None));
    broker.sleep(1);
    let response = broker.joined(one).expect("two delays are over");
    assert_eq!((response.generation_id, response.members.len()), (1, 2));
    let response = broker.joined(other).expect("answered together");
    assert_eq!((&response.leader, &response.member_id, response.members.len()), (&first, &second, 0));
}

/// New members extend the first join phase no longer than the rebalance timeout.
#[test]
fn the_initial_delay_is_bounded() {
    let mut broker = Broker::new();
    let joiner = Joiner { rebalance_ms: 7000, ..ANYBODY };
    let (_, first) = broker.come(&joiner);
    for _ in 0..6 {
        broker.sleep(1000);
        broker.come(&joiner);
    }
    broker.sleep(1000);
    let response = broker.joined(first).expect("7 s are over");
    assert_eq!(response.members.len(), 7);
}

/// The codes of a group that completes, and of one that prepares a rebalance.
#[test]
fn scenario_72_codes_during_a_rebalance() {
    let mut broker = Broker::new();
    let (id, token) = broker.come(&ANYBODY);
    broker.sleep(3000);
    let generation = broker.joined(token).expect("joined").generation_id;
    let member = Known { id, generation };
    assert_eq!(broker.state(), "CompletingRebalance");
    assert_eq!(broker.heartbeat(&member), 0);
    assert_eq!(broker.commit(&member.id, generation), 27);
    assert_eq!(broker.txn_commit(&member.id, generation), 0);
    assert_eq!(broker.sync_now(&member, &[]).0, 0);
    broker.come(&ANYBODY);
    assert_eq!(broker.state(), "PreparingRebalance");
    assert_eq!(broker.heartbeat(&member), 27);
    assert_eq!(broker.commit(&member.id, generation), 0);
    assert_eq!(broker.sync_now(&member, &[]).0, 27);
    broker.reload();
    assert_eq!(broker.state(), "Stable");
    assert_eq!(broker.heartbeat(&member), 0);
}

/// A follower that joins again unchanged gets the generation that there is; the leader starts a rebalance.
#[test]
fn scenario_73_rejoin_in_stable() {
    let mut broker = Broker::new();
    let members = broker.stable(2);
    let again = |member: &Known| Joiner { id: &member.id.clone(), ..ANYBODY }.id.to_owned();
    let (leader, follower) = (again(&members[0]), again(&members[1]));
    let response = broker.join_now(5, &Joiner { id: &follower, ..ANYBODY });
    assert_eq!((response.error_code, response.generation_id, response.members.len()), (0, 1, 0));
    assert_eq!(broker.state(), "Stable");
    let one = broker.send_join(5, &Joiner { id: &leader, ..ANYBODY });
    assert_eq!(broker.state(), "PreparingRebalance");
    assert_eq!(broker.heartbeat(&members[1]), 27);
    let other = broker.send_join(5, &Joiner { id: &follower, ..ANYBODY });
    for token in [one, other] {
        assert_eq!(broker.joined(token).expect("both have joined").generation_id, 2);
    }
    // A changed follower does so too.
    let changed: &[(&str, &[u8])] = &[("range", b"other")];
    broker.sync_now(&Known { id: members[0].id.clone(), generation: 2 }, &[]);
    broker.send_join(5, &Joiner { id: &follower, protocols: changed, ..ANYBODY });
    assert_eq!(broker.state(), "PreparingRebalance");
}

/// A follower that misses the rebalance is gone: 22 and 25 for what it had.
#[test]
fn scenario_74_missed_rebalance() {
    let mut broker = Broker::new();
    let quick = Joiner { rebalance_ms: 5000, ..ANYBODY };
    let (one, first) = broker.come(&quick);
    let (other, second) = broker.come(&quick);
    broker.sleep(6000);
    let (one, other) = (Known { id: one, generation: 1 }, Known { id: other, generation: 1 });
    assert!(broker.joined(first).is_some() && broker.joined(second).is_some());
    assert_eq!(broker.sync_now(&one, &[]).0, 0);
    assert_eq!(broker.sync_now(&other, &[]).0, 0);
    let token = broker.send_join(5, &Joiner { id: &one.id, ..quick });
    broker.sleep(4999);
    assert_eq!(broker.joined(token), None);
    broker.sleep(1);
    let response = broker.joined(token).expect("the rebalance timeout is over");
    assert_eq!((response.generation_id, response.members.len()), (2, 1));
    assert_eq!(broker.sync_now(&one, &[]).0, 22);
    assert_eq!(broker.heartbeat(&other), 25);
}

/// A static member that restarts keeps its place; its old id is fenced; without heartbeats it is dropped.
#[test]
fn scenario_75_static_restart() {
    for version in [5, 9] {
        let mut broker = Broker::new();
        let named = Joiner { instance: Some("i"), ..ANYBODY };
        let token = broker.send_join(version, &named);
        broker.sleep(3000);
        let first = broker.joined(token).expect("joined");
        let old = Known { id: first.member_id.clone(), generation: 1 };
        assert_eq!(broker.sync_now(&old, &[(&old.id, b"mine")]), (0, Bytes::from_static(b"mine")));
        let entries = broker.shard.log.len();
        let again = broker.join_now(version, &named);
        assert_eq!((again.error_code, again.generation_id), (0, 1));
        assert_ne!(again.member_id, old.id);
        assert_eq!(broker.shard.log.len(), entries + 1, "the new id is durable");
        if version == 9 {
            assert_eq!((&again.leader, again.skip_assignment), (&again.member_id, true));
            assert_eq!(again.members.len(), 1);
        } else {
            assert_eq!((&again.leader, again.members.len()), (&old.id, 0));
        }
        let new = Known { id: again.member_id, generation: 1 };
        assert_eq!(broker.sync_now(&new, &[]), (0, Bytes::from_static(b"mine")));
        let request = |member: &Known| m::HeartbeatRequest {
            group_id: "g".into(),
            generation_id: 1,
            member_id: member.id.clone(),
            group_instance_id: Some("i".into()),
            ..Default::default()
        };
        for (member, wanted) in [(&old, 82), (&new, 0)] {
            let reply = broker.ask(4, CommandBody::Heartbeat(request(member)));
            assert!(matches!(reply, Reply::Heartbeat(response) if response.error_code == wanted));
        }
        broker.reload();
        assert_eq!(broker.heartbeat(&new), 0);
        broker.sleep(9999);
        assert_eq!(broker.state(), "Stable");
        broker.sleep(1);
        assert_eq!(broker.state(), "Empty");
        assert_eq!(broker.heartbeat(&new), 25);
    }
}

/// The request that an old id waits with is answered 82 when its instance comes anew.
#[test]
fn scenario_75_fenced_while_waiting() {
    let mut broker = Broker::new();
    let named = Joiner { instance: Some("i"), ..ANYBODY };
    let old = broker.send_join(5, &named);
    let new = broker.send_join(5, &named);
    assert_eq!(broker.joined(old).expect("fenced").error_code, 82);
    broker.sleep(6000);
    let response = broker.joined(new).expect("joined");
    assert_eq!((response.error_code, response.generation_id, response.members.len()), (0, 1, 1));
}

/// A static member that misses a rebalance stays in it, and is dropped by the sync timeout.
#[test]
fn scenario_75_static_member_misses_a_rebalance() {
    let mut broker = Broker::new();
    let named = Joiner { instance: Some("i"), session_ms: 60_000, ..ANYBODY };
    let one = broker.send_join(5, &named);
    let (leader, other) = broker.come(&Joiner { session_ms: 60_000, ..ANYBODY });
    broker.sleep(6000);
    let first = broker.joined(one).expect("joined");
    assert!(broker.joined(other).is_some());
    let (fixed, leader) = (Known { id: first.member_id, generation: 1 }, Known { id: leader, generation: 1 });
    broker.sync_now(&fixed, &[]);
    broker.sync_now(&leader, &[]);
    let changed: &[(&str, &[u8])] = &[("range", b"more")];
    let token =
        broker.send_join(5, &Joiner { id: &leader.id, session_ms: 60_000, protocols: changed, ..ANYBODY });
    broker.sleep(20_000);
    let response = broker.joined(token).expect("the rebalance timeout is over");
    assert_eq!((response.generation_id, &response.leader, response.members.len()), (2, &leader.id, 2));
    assert_eq!(broker.heartbeat(&fixed), 22);
    assert_eq!(broker.sync_now(&Known { generation: 2, ..leader }, &[]).0, 0);
    broker.sleep(20_000);
    assert_eq!(broker.heartbeat(&fixed), 25);
}

/// SyncGroup 5 must name protocol type and protocol, and the right ones. A leader that never brings an
/// assignment is dropped.
#[test]
fn scenario_76_sync() {
    let mut broker = Broker::new();
    let (one, first) = broker.come(&ANYBODY);
    let (other, second) = broker.come(&ANYBODY);
    broker.sleep(6000);
    assert!(broker.joined(first).is_some() && broker.joined(second).is_some());
    let (one, other) = (Known { id: one, generation: 1 }, Known { id: other, generation: 1 });
    let changes: [fn(&mut m::SyncGroupRequest); 4] = [
        |request| request.protocol_name = Some("other".into()),
        |request| request.protocol_type = Some("other".into()),
        |request| request.protocol_name = None,
        |request| request.protocol_type = None,
    ];
    for change in changes {
        let token = broker.send_sync(5, &one, &[], change);
        assert_eq!(broker.synced(token).expect("refused").0, 23);
    }
    let waits = broker.send_sync(5, &other, &[], |_| {});
    for _ in 0..3 {
        broker.sleep(6000);
        assert_eq!(broker.heartbeat(&one), 0);
    }
    broker.sleep(1999);
    assert_eq!(broker.synced(waits), None);
    broker.sleep(1);
    assert_eq!(broker.synced(waits).expect("the leader did not come").0, 27);
    assert_eq!(broker.heartbeat(&one), 25);
    let token = broker.send_join(5, &Joiner { id: &other.id, ..ANYBODY });
    let response = broker.joined(token).expect("alone");
    assert_eq!((response.generation_id, &response.leader), (2, &other.id));
}

/// Leaving in a batch, deleting a group with members, deleting offsets of subscribed topics.
#[test]
fn scenario_77_leave_and_delete() {
    let mut broker = Broker::new();
    // Version 0 of a consumer's metadata with the topic "t", no user data.
    let metadata: &[u8] = &[0, 0, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff];
    let protocols: &[(&str, &[u8])] = &[("range", metadata)];
    let (id, token) = broker.come(&Joiner { protocols, ..ANYBODY });
    broker.sleep(3000);
    assert!(broker.joined(token).is_some());
    let member = Known { id, generation: 1 };
    broker.sync_now(&member, &[(&member.id, b"a")]);
    assert_eq!(broker.commit(&member.id, 1), 0);
    let delete_offset = |broker: &mut Broker| {
        let request = m::OffsetDeleteRequest {
            group_id: "g".into(),
            topics: vec![m::offset_delete_request::OffsetDeleteRequestTopic {
                name: "t".into(),
                partitions: vec![Default::default()],
            }],
        };
        match broker.ask(0, CommandBody::OffsetDelete(request)) {
            Reply::OffsetDelete(response) if response.error_code == 0 => {
                response.topics[0].partitions[0].error_code
            }
            Reply::OffsetDelete(response) => response.error_code,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(delete_offset(&mut broker), 86);
    assert_eq!(broker.delete(), 68);
    let described = broker.describe();
    assert_eq!((&*described.group_state, &*described.protocol_data), ("Stable", "range"));
    assert_eq!(&described.members[0].member_assignment[..], b"a");
    assert_eq!(&described.members[0].member_metadata[..], metadata);
    assert_eq!(broker.leave(&[(&member.id, None), ("nobody", None)]), [0, 25]);
    assert_eq!(broker.state(), "Empty");
    assert_eq!(delete_offset(&mut broker), 0);
    assert_eq!(broker.delete(), 0);
    assert_eq!((broker.state(), broker.delete()), ("Dead".to_owned(), 69));
    assert_eq!(delete_offset(&mut broker), 69);
    broker.reload();
    assert_eq!(broker.state(), "Dead");
}

/// An administrator removes static members by their instance; pending ids can leave; version 0 has one member.
#[test]
fn leaving() {
    let mut broker = Broker::new();
    let token = broker.send_join(5, &Joiner { instance: Some("i"), ..ANYBODY });
    let pending = broker.join_now(5, &ANYBODY).member_id;
    broker.sleep(3000);
    assert!(broker.joined(token).is_some());
    assert_eq!(broker.leave(&[("", Some("i")), ("", Some("j")), ("", None)]), [0, 25, 25]);
    assert_eq!(broker.leave(&[(&pending, None)]), [0]);
    assert_eq!(broker.leave(&[(&pending, None)]), [25]);
    assert_eq!(broker.state(), "Empty");
    let request = m::LeaveGroupRequest { group_id: "g".into(), member_id: "x".into(), ..Default::default() };
    let reply = broker.ask(0, CommandBody::LeaveGroup(request));
    assert!(matches!(reply, Reply::LeaveGroup(response) if response.error_code == 25));
}

/// Version 0 to 3 join without an id of their own; the session is the rebalance timeout in version 0.
#[test]
fn old_versions_join_at_once() {
    for version in 0..4 {
        let mut broker = Broker::new();
        let token = broker.send_join(version, &Joiner { rebalance_ms: -1, ..ANYBODY });
        broker.sleep(3000);
        let response = broker.joined(token).expect("joined");
        assert_eq!((response.error_code, response.generation_id, response.members.len()), (0, 1, 1));
        assert!(response.member_id.starts_with("test-"));
    }
}

/// 24, 26, 25, 23 and 81, in each the version's own form of no protocol.
#[test]
fn refused_joins() {
    let mut broker = Broker { shard: Shard::with(|config| config.group_max_size = 1), ..Broker::new() };
    for session_ms in [5999, 1_800_001, -1] {
        let response = broker.join_now(5, &Joiner { session_ms, ..ANYBODY });
        assert_eq!((response.error_code, response.generation_id), (26, -1));
        assert_eq!(response.protocol_name, Some(Text::EMPTY));
    }
    let response = broker.join_now(7, &Joiner { id: "nobody", ..ANYBODY });
    assert_eq!((response.error_code, response.protocol_name), (25, None));
    assert_eq!(broker.join_now(5, &Joiner { protocols: &[], ..ANYBODY }).error_code, 23);
    assert_eq!(broker.state(), "Dead", "nothing is left of what was refused");
    let member = broker.stable(1).remove(0);
    let other: &[(&str, &[u8])] = &[("roundrobin", b"")];
    let response = broker.join_now(5, &Joiner { id: &member.id, protocols: other, ..ANYBODY });
    assert_eq!(response.error_code, 23);
    let response = broker.join_now(5, &ANYBODY);
    assert_eq!((response.error_code, &*response.member_id), (81, ""));
}

/// The protocol that most members prefer among those that all support.
#[test]
fn voting() {
    let mut broker = Broker::new();
    let lists: [&[(&str, &[u8])]; 3] = [
        &[("range", b"1"), ("sticky", b"2"), ("own", b"3")],
        &[("sticky", b"4"), ("range", b"5")],
        &[("other", b"6"), ("sticky", b"7"), ("range", b"8")],
    ];
    let tokens: Vec<u64> =
        lists.iter().map(|protocols| broker.come(&Joiner { protocols, ..ANYBODY }).1).collect();
    broker.sleep(9000);
    let response = broker.joined(tokens[0]).expect("joined");
    assert_eq!(response.protocol_name, Some("sticky".into()));
    let metadata: Vec<&[u8]> = response.members.iter().map(|member| member.metadata.as_ref()).collect();
    assert_eq!(metadata, [b"2", b"4", b"7"]);
}

/// A new member of an old version whose connection closes is forgotten; one that knows its id can come back.
#[test]
fn closed_connections() {
    let mut broker = Broker::new();
    broker.shard.connection = 7;
    let token = broker.send_join(2, &ANYBODY);
    broker.close(7);
    assert!(matches!(broker.answers.remove(&token), Some((Reply::Done, _))));
    broker.sleep(3000);
    assert_eq!(broker.state(), "Empty");

    let (id, token) = broker.come(&ANYBODY);
    broker.close(7);
    assert!(matches!(broker.answers.remove(&token), Some((Reply::Done, _))));
    broker.sleep(3000);
    assert_eq!(broker.state(), "CompletingRebalance");
    let response = broker.join_now(5, &Joiner { id: &id, ..ANYBODY });
    assert_eq!((response.error_code, response.members.len()), (0, 1));
    broker.close(7);
    assert!(broker.answers.is_empty());
}

/// What a heartbeat of a quiet group rests on is old; an assignment rests on its own record.
#[test]
fn positions() {
    let mut broker = Broker::new();
    let member = broker.stable(1).remove(0);
    let stored = broker.shard.state.position();
    broker.shard.create("other", 1, &[]);
    assert!(broker.shard.state.position() > stored);
    let request = m::HeartbeatRequest {
        group_id: "g".into(),
        generation_id: 1,
        member_id: member.id.clone(),
        ..Default::default()
    };
    let token = broker.send(4, CommandBody::Heartbeat(request));
    assert_eq!(broker.answers.remove(&token).expect("answered").1, stored);
}

/// Only timers that nobody moved fire: heartbeats, a pause of the owner, and a load begin a session anew.
#[test]
fn sessions() {
    let mut broker = Broker::new();
    let member = broker.stable(1).remove(0);
    for _ in 0..5 {
        broker.sleep(9000);
        assert_eq!(broker.heartbeat(&member), 0);
    }
    broker.sleep(9000);
    broker.reload();
    broker.sleep(9000);
    assert_eq!(broker.heartbeat(&member), 0);
    broker.sleep(9000);
    broker.shard.now_ms += 60_000;
    broker.shard.state.shift_deadlines(60_000);
    broker.sleep(999);
    assert_eq!(broker.state(), "Stable");
    broker.sleep(1);
    assert_eq!(broker.state(), "Empty");
}

/// Offsets of a group with members do not expire while a member subscribes to the topic, and those of an empty
/// group only after the retention since it became empty; then the group goes as well.
/// Public cases: KAFKA-13636, KAFKA-8069 (89).
#[test]
fn retention() {
    const DAY: i64 = 86_400_000;
    let mut broker = Broker::new();
    let metadata: &[u8] = &[0, 0, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff];
    let long = Joiner { session_ms: 1_800_000, protocols: &[("range", metadata)], ..ANYBODY };
    let (id, token) = broker.come(&long);
    broker.sleep(3000);
    assert!(broker.joined(token).is_some());
    let member = Known { id, generation: 1 };
    broker.sync_now(&member, &[]);
    assert_eq!(broker.commit(&member.id, 1), 0);
    for _ in 0..8 * 96 {
        broker.sleep(DAY / 96);
        assert_eq!(broker.heartbeat(&member), 0);
    }
    let offsets = |broker: &Broker| broker.shard.state.groups.of_group("g").count();
    assert_eq!(offsets(&broker), 1);
    assert_eq!(broker.leave(&[(&member.id, None)]), [0]);
    broker.reload();
    broker.sleep(7 * DAY - 700_000);
    assert_eq!((offsets(&broker), broker.state()), (1, "Empty".to_owned()));
    broker.sleep(1_400_000);
    assert_eq!((offsets(&broker), broker.state()), (0, "Dead".to_owned()));
    broker.reload();
    assert_eq!(broker.state(), "Dead");
}

/// A group whose members come at once costs what its members cost together: nothing that one of them does looks at
/// all others, but for the few steps of a generation that must.
#[test]
fn the_work_of_a_group_grows_with_its_size() {
    use crate::group::classic::members::looks;
    let looked_at = |members: usize| {
        let mut broker = Broker::new();
        looks::taken();
        for member in &broker.stable(members) {
            assert_eq!(broker.heartbeat(member), 0);
        }
        looks::taken()
    };
    let (few, many) = (looked_at(100), looked_at(200));
    assert!(few > 0 && many <= 2 * few, "{few} looks for 100 members, {many} for 200");
}

/// A group keeps nothing of the bytes of the request that made it, however large that was.
#[test]
fn requests_are_not_kept() {
    let mut broker = Broker::new();
    let frame = Bytes::from("g".repeat(1000));
    let protocol = JoinGroupRequestProtocol { name: "range".into(), ..Default::default() };
    let join = m::JoinGroupRequest {
        group_id: Text::from_utf8(frame.slice(..1)).expect("ASCII"),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    broker.send(2, CommandBody::JoinGroup(join));
    assert_eq!(broker.state(), "PreparingRebalance");
    assert!(frame.is_unique(), "something still has a part of it");
}
