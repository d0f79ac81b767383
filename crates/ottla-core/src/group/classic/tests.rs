//! Tests of the classic protocol through the whole shard: scenarios of eos-semantics section 7 by their numbers,
//! the table of section 5.2, and random members against the invariants.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_protocol::messages as m;
use ottla_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use ottla_protocol::messages::leave_group_request::MemberIdentity;
use ottla_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use ottla_protocol::types::Text;

use crate::command::{CommandBody, ConnectionId};
use crate::decision::{Position, Reply};
use crate::testing::Shard;

mod admin;
mod random;
mod scenarios;
mod table;

/// A shard, the answers that have come, and the group "g".
struct Broker {
    shard: Shard,
    answers: BTreeMap<u64, (Reply, Position)>,
}

/// Who joins, with what.
#[derive(Clone, Debug)]
struct Joiner<'a> {
    id: &'a str,
    instance: Option<&'a str>,
    session_ms: i32,
    rebalance_ms: i32,
    /// Protocols with their metadata, the best first.
    protocols: &'a [(&'a str, &'a [u8])],
}

const RANGE: &[(&str, &[u8])] = &[("range", b"r")];
const ANYBODY: Joiner<'static> =
    Joiner { id: "", instance: None, session_ms: 10_000, rebalance_ms: 20_000, protocols: RANGE };

/// A member as tests know it.
#[derive(Clone, Debug)]
struct Known {
    id: Text,
    generation: i32,
}

impl Broker {
    fn new() -> Self {
        Self { shard: Shard::new(), answers: BTreeMap::new() }
    }

    fn send(&mut self, version: i16, body: CommandBody) -> u64 {
        let decision = self.shard.run(version, body);
        for answer in decision.answers {
            let before = self.answers.insert(answer.token.0, (answer.reply, answer.rests_on));
            assert!(before.is_none(), "a request is answered once");
        }
        self.shard.token
    }

    fn ask(&mut self, version: i16, body: CommandBody) -> Reply {
        let token = self.send(version, body);
        self.answers.remove(&token).expect("answered at once").0
    }

    /// Lets time pass, firing every timer at its time.
    fn sleep(&mut self, ms: i64) {
        let end = self.shard.now_ms + ms;
        while let Some(deadline) = self.shard.state.next_deadline().filter(|deadline| deadline.0 <= end) {
            self.shard.now_ms = self.shard.now_ms.max(deadline.0);
            self.send(0, CommandBody::Tick);
        }
        self.shard.now_ms = end;
    }

    fn reload(&mut self) {
        self.shard.reload();
    }

    fn send_join(&mut self, version: i16, joiner: &Joiner<'_>) -> u64 {
        let protocols = joiner.protocols.iter().map(|(name, metadata)| JoinGroupRequestProtocol {
            name: Text::from(*name),
            metadata: Bytes::copy_from_slice(metadata),
            ..Default::default()
        });
        let request = m::JoinGroupRequest {
            group_id: "g".into(),
            session_timeout_ms: joiner.session_ms,
            rebalance_timeout_ms: joiner.rebalance_ms,
            member_id: joiner.id.into(),
            group_instance_id: joiner.instance.map(Text::from),
            protocol_type: "consumer".into(),
            protocols: protocols.collect(),
            ..Default::default()
        };
        self.send(version, CommandBody::JoinGroup(request))
    }

    /// The answer to a JoinGroup, if it has come.
    fn joined(&mut self, token: u64) -> Option<m::JoinGroupResponse> {
        match self.answers.remove(&token)? {
            (Reply::JoinGroup(response), _) => Some(response),
            (other, _) => panic!("{other:?}"),
        }
    }

    fn join_now(&mut self, version: i16, joiner: &Joiner<'_>) -> m::JoinGroupResponse {
        let token = self.send_join(version, joiner);
        self.joined(token).expect("answered at once")
    }

    /// A dynamic member's way in by version 4 and later: the id, and the JoinGroup that waits.
    fn come(&mut self, joiner: &Joiner<'_>) -> (Text, u64) {
        let response = self.join_now(5, joiner);
        assert_eq!(response.error_code, 79);
        let token = self.send_join(5, &Joiner { id: &response.member_id, ..joiner.clone() });
        (response.member_id, token)
    }

    fn send_sync(
        &mut self,
        version: i16,
        member: &Known,
        assignments: &[(&Text, &[u8])],
        change: impl FnOnce(&mut m::SyncGroupRequest),
    ) -> u64 {
        let assignments = assignments.iter().map(|(id, assignment)| SyncGroupRequestAssignment {
            member_id: (*id).clone(),
            assignment: Bytes::copy_from_slice(assignment),
            ..Default::default()
        });
        let mut request = m::SyncGroupRequest {
            group_id: "g".into(),
            generation_id: member.generation,
            member_id: member.id.clone(),
            protocol_type: Some("consumer".into()),
            protocol_name: Some("range".into()),
            assignments: assignments.collect(),
            ..Default::default()
        };
        change(&mut request);
        self.send(version, CommandBody::SyncGroup(request))
    }

    /// Code and assignment of a SyncGroup, if its answer has come.
    fn synced(&mut self, token: u64) -> Option<(i16, Bytes)> {
        match self.answers.remove(&token)? {
            (Reply::SyncGroup(response), _) => Some((response.error_code, response.assignment)),
            (other, _) => panic!("{other:?}"),
        }
    }

    fn sync_now(&mut self, member: &Known, assignments: &[(&Text, &[u8])]) -> (i16, Bytes) {
        let token = self.send_sync(5, member, assignments, |_| {});
        self.synced(token).expect("answered at once")
    }

    fn heartbeat(&mut self, member: &Known) -> i16 {
        let request = m::HeartbeatRequest {
            group_id: "g".into(),
            generation_id: member.generation,
            member_id: member.id.clone(),
            ..Default::default()
        };
        match self.ask(4, CommandBody::Heartbeat(request)) {
            Reply::Heartbeat(response) => response.error_code,
            other => panic!("{other:?}"),
        }
    }

    fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<i16> {
        let members = members.iter().map(|(id, instance)| MemberIdentity {
            member_id: Text::from(*id),
            group_instance_id: instance.map(Text::from),
            ..Default::default()
        });
        let request =
            m::LeaveGroupRequest { group_id: "g".into(), members: members.collect(), ..Default::default() };
        match self.ask(4, CommandBody::LeaveGroup(request)) {
            Reply::LeaveGroup(response) => response.members.iter().map(|member| member.error_code).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// OffsetCommit 8 of partition 0 of topic "t".
    fn commit(&mut self, member_id: &str, generation: i32) -> i16 {
        let request = m::OffsetCommitRequest {
            group_id: "g".into(),
            generation_id_or_member_epoch: generation,
            member_id: member_id.into(),
            topics: vec![m::offset_commit_request::OffsetCommitRequestTopic {
                name: "t".into(),
                partitions: vec![m::offset_commit_request::OffsetCommitRequestPartition {
                    committed_offset: 5,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        match self.ask(8, CommandBody::OffsetCommit(request)) {
            Reply::OffsetCommit(response) => response.topics[0].partitions[0].error_code,
            other => panic!("{other:?}"),
        }
    }

    /// TxnOffsetCommit 5 of partition 0 of topic "t" in a transaction of its own, which is aborted.
    fn txn_commit(&mut self, member_id: &str, generation: i32) -> i16 {
        let pair = self.shard.init("x");
        let request = m::TxnOffsetCommitRequest {
            transactional_id: "x".into(),
            group_id: "g".into(),
            producer_id: pair.0,
            producer_epoch: pair.1,
            generation_id_or_member_epoch: generation,
            member_id: member_id.into(),
            topics: vec![m::txn_offset_commit_request::TxnOffsetCommitRequestTopic {
                name: "t".into(),
                partitions: vec![m::txn_offset_commit_request::TxnOffsetCommitRequestPartition {
                    committed_offset: 7,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let code = match self.ask(5, CommandBody::TxnOffsetCommit(request)) {
            Reply::TxnOffsetCommit(response) => response.topics[0].partitions[0].error_code,
            other => panic!("{other:?}"),
        };
        if code == 0 {
            assert_eq!(self.shard.end(5, pair, false).0, 0);
        }
        code
    }

    fn describe(&mut self) -> m::describe_groups_response::DescribedGroup {
        let request = m::DescribeGroupsRequest { groups: vec!["g".into()], ..Default::default() };
        match self.ask(5, CommandBody::DescribeGroups(request)) {
            Reply::DescribeGroups(mut response) => response.groups.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn state(&mut self) -> String {
        self.describe().group_state.to_string()
    }

    /// DeleteGroups: its code.
    fn delete(&mut self) -> i16 {
        let request = m::DeleteGroupsRequest { groups_names: vec!["g".into()], ..Default::default() };
        match self.ask(2, CommandBody::DeleteGroups(request)) {
            Reply::DeleteGroups(response) => response.results[0].error_code,
            other => panic!("{other:?}"),
        }
    }

    fn close(&mut self, connection: u64) {
        self.send(0, CommandBody::ConnectionClosed(ConnectionId(connection)));
    }

    /// A stable group of one generation with so many dynamic members; the first one leads.
    fn stable(&mut self, members: usize) -> Vec<Known> {
        let coming: Vec<(Text, u64)> = (0..members).map(|_| self.come(&ANYBODY)).collect();
        self.sleep(9000);
        let mut known = Vec::new();
        for (id, token) in coming {
            let response = self.joined(token).expect("the join phase is over");
            assert_eq!((response.error_code, &response.member_id), (0, &id));
            known.push(Known { id, generation: response.generation_id });
        }
        let assignments: Vec<(&Text, &[u8])> =
            known.iter().map(|member| (&member.id, member.id.as_bytes().as_ref())).collect();
        for member in &known {
            let given: &[(&Text, &[u8])] = if member.id == known[0].id { &assignments } else { &[] };
            assert_eq!(self.sync_now(member, given), (0, member.id.as_bytes().clone()));
        }
        known
    }
}
