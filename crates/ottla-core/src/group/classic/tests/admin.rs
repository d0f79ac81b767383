//! Administrators' calls: listings and their filters, descriptions, deletions.

use super::*;
use m::list_groups_response::ListedGroup;

impl Broker {
    fn list(&mut self, states: &[&str], types: &[&str]) -> Vec<ListedGroup> {
        let texts = |texts: &[&str]| texts.iter().map(|text| Text::from(*text)).collect();
        let request = m::ListGroupsRequest {
            states_filter: texts(states),
            types_filter: texts(types),
            ..Default::default()
        };
        match self.ask(5, CommandBody::ListGroups(request)) {
            Reply::ListGroups(response) => response.groups,
            other => panic!("{other:?}"),
        }
    }
}

/// Filters know no case, and what nobody is in finds nothing.
#[test]
fn listing() {
    let mut broker = Broker::new();
    assert_eq!(broker.list(&[], &[]), []);
    broker.stable(1);
    let groups = broker.list(&[], &[]);
    let group = &groups[0];
    assert_eq!(
        (&*group.group_id, &*group.group_state, &*group.group_type, &*group.protocol_type),
        ("g", "Stable", "classic", "consumer")
    );
    let wanted: [(&[&str], &[&str], usize); 7] = [
        (&["stable"], &[], 1),
        (&["STABLE", "empty"], &["Classic"], 1),
        (&["Empty"], &[], 0),
        (&["bogus"], &[], 0),
        (&[], &["classic"], 1),
        (&[], &["consumer"], 0),
        (&[], &["bogus"], 0),
    ];
    for (states, types, count) in wanted {
        assert_eq!(broker.list(states, types).len(), count, "{states:?} {types:?}");
    }
}

/// What is unknown is Dead up to version 5 and an error from version 6 on; metadata is shown in Stable only;
/// what may be done is told when asked.
#[test]
fn describing() {
    let mut broker = Broker::new();
    let members = broker.stable(1);
    let ask = |broker: &mut Broker, version: i16| {
        let request = m::DescribeGroupsRequest {
            groups: vec!["g".into(), "nobody".into()],
            include_authorized_operations: true,
            ..Default::default()
        };
        match broker.ask(version, CommandBody::DescribeGroups(request)) {
            Reply::DescribeGroups(response) => response.groups,
            other => panic!("{other:?}"),
        }
    };
    for (version, code) in [(5, 0), (6, 69)] {
        let groups = ask(&mut broker, version);
        assert_eq!((groups[1].error_code, &*groups[1].group_state), (code, "Dead"));
        let member = &groups[0].members[0];
        assert_eq!(
            (&member.member_id, &*member.client_id, &*member.client_host),
            (&members[0].id, "test", "host")
        );
        assert_eq!((&*groups[0].protocol_data, &member.member_metadata[..]), ("range", b"r".as_ref()));
        assert_eq!(groups[0].authorized_operations, 3400);
    }
    broker.come(&ANYBODY);
    let group = &ask(&mut broker, 5)[0];
    assert_eq!((&*group.group_state, &*group.protocol_data), ("PreparingRebalance", ""));
    assert!(group.members.iter().all(|member| member.member_metadata.is_empty()));
}

/// A group named twice is answered once; offsets go with their group, an absent one is 69, no name is 24.
#[test]
fn deleting() {
    let mut broker = Broker::new();
    assert_eq!(broker.commit("", -1), 0);
    let names = vec!["g".into(), "g".into(), "nobody".into()];
    let request = m::DeleteGroupsRequest { groups_names: names, ..Default::default() };
    let Reply::DeleteGroups(response) = broker.ask(3, CommandBody::DeleteGroups(request)) else {
        panic!("DeleteGroups is answered");
    };
    let codes: Vec<i16> = response.results.iter().map(|result| result.error_code).collect();
    assert_eq!(codes, [0, 69]);
    assert_eq!(broker.shard.state.groups.of_group("g").count(), 0);
    for (name, wanted) in [("", 24), ("g", 69)] {
        let request = m::OffsetDeleteRequest { group_id: name.into(), ..Default::default() };
        let reply = broker.ask(0, CommandBody::OffsetDelete(request));
        assert!(matches!(reply, Reply::OffsetDelete(response) if response.error_code == wanted));
    }
    broker.reload();
}

/// A group that only gave out an id is forgotten with it, and deleting it needs no record.
#[test]
fn pending_ids_alone() {
    let mut broker = Broker::new();
    broker.join_now(5, &ANYBODY);
    assert_eq!(broker.state(), "Empty");
    let entries = broker.shard.log.len();
    broker.sleep(10_000);
    assert_eq!(broker.state(), "Dead");
    broker.join_now(5, &ANYBODY);
    assert_eq!((broker.delete(), broker.state()), (0, "Dead".to_owned()));
    assert_eq!(broker.shard.log.len(), entries);
}

/// What clients can make grow is bounded: bytes of a group, and of all groups.
#[test]
fn bounds() {
    let big: &[(&str, &[u8])] = &[("range", &[7; 1000])];
    let joiner = Joiner { protocols: big, ..ANYBODY };
    let shard = Shard::with(|config| config.limits.group_metadata_bytes_max = 2800);
    let mut broker = Broker { shard, ..Broker::new() };
    let first = broker.send_join(3, &joiner);
    assert_eq!(
        broker.join_now(3, &Joiner { protocols: &[big[0], ("other", &[7; 2000])], ..ANYBODY }).error_code,
        81
    );
    broker.sleep(3000);
    let id = broker.joined(first).expect("joined").member_id;
    let member = Known { id, generation: 1 };
    assert_eq!(broker.sync_now(&member, &[(&member.id, &[1; 2000])]).0, 10);
    assert_eq!(broker.sync_now(&member, &[(&member.id, &[1; 500])]).0, 0);

    let shard = Shard::with(|config| config.limits.groups_members_max = 1);
    let mut broker = Broker { shard, ..Broker::new() };
    broker.join_now(5, &ANYBODY);
    assert_eq!(broker.join_now(5, &ANYBODY).error_code, 81);
    broker.sleep(10_000);
    assert_eq!(broker.join_now(5, &ANYBODY).error_code, 79);
}

/// That a group is unknown rests on the removal of its last offset, also when a waiting id outlived that.
#[test]
fn unknown_rests_on_the_removal() {
    let mut broker = Broker::new();
    assert_eq!(broker.commit("", -1), 0);
    broker.join_now(5, &ANYBODY);
    let topic = m::offset_delete_request::OffsetDeleteRequestTopic {
        name: "t".into(),
        partitions: vec![Default::default()],
    };
    let request = m::OffsetDeleteRequest { group_id: "g".into(), topics: vec![topic] };
    broker.ask(0, CommandBody::OffsetDelete(request));
    let removal = broker.shard.state.position();
    broker.sleep(10_000);
    let request = m::DescribeGroupsRequest { groups: vec!["g".into()], ..Default::default() };
    let token = broker.send(6, CommandBody::DescribeGroups(request));
    let (reply, rests_on) = broker.answers.remove(&token).expect("answered at once");
    assert!(matches!(reply, Reply::DescribeGroups(response) if response.groups[0].error_code == 69));
    assert_eq!(rests_on, removal);
}

/// A group that one request names many times is described once: its answer is no larger than the state.
#[test]
fn described_once() {
    let mut broker = Broker::new();
    broker.stable(2);
    let request = m::DescribeGroupsRequest { groups: vec!["g".into(); 1000], ..Default::default() };
    let Reply::DescribeGroups(response) = broker.ask(6, CommandBody::DescribeGroups(request)) else {
        panic!("DescribeGroups is answered");
    };
    let members: Vec<usize> = response.groups.iter().map(|group| group.members.len()).collect();
    assert_eq!(members, [2]);
}
