//! SyncGroup: the leader brings the assignment of everybody, everybody gets its own.
//!
//! Place in the walk: the handler's part that knows the rules.
//!
//! Invariants: nobody is answered with an assignment before the record that contains it is written; the leader's
//! first call in a generation counts, later ones get what was stored.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::state::{ClassicGroup, Member, State, Waiting};
use super::{Parked, Turn};
use crate::command::Context;
use crate::decision::Reply;

/// First version that names protocol type and protocol, and must (KIP-559).
const WITH_PROTOCOL: i16 = 5;

/// An answer that refuses.
pub(in crate::group) fn refused(code: ErrorCode) -> m::SyncGroupResponse {
    m::SyncGroupResponse { error_code: code.code(), ..m::SyncGroupResponse::default() }
}

/// What can be refused without a look at the group: 23, 24.
pub(super) fn check(version: i16, request: &m::SyncGroupRequest) -> Result<(), ErrorCode> {
    let names_protocol = request.protocol_type.is_some() && request.protocol_name.is_some();
    if version >= WITH_PROTOCOL && !names_protocol {
        return Err(ErrorCode::InconsistentGroupProtocol);
    }
    if request.group_id.is_empty() { Err(ErrorCode::InvalidGroupId) } else { Ok(()) }
}

impl ClassicGroup {
    /// SyncGroup: the answer, or none when it waits for the leader.
    pub(super) fn sync(
        &mut self,
        turn: &mut Turn,
        context: &Context,
        request: m::SyncGroupRequest,
    ) -> Option<m::SyncGroupResponse> {
        if let Err(code) = self.check_sync(&request) {
            return Some(refused(code));
        }
        let id = request.member_id.detached();
        match self.state {
            State::Empty => Some(refused(ErrorCode::UnknownMemberId)),
            State::PreparingRebalance => Some(refused(ErrorCode::RebalanceInProgress)),
            State::Stable => {
                self.synced(&id);
                self.touch(turn.now_ms, &id);
                Some(self.sync_response(&id))
            }
            State::CompletingRebalance if self.leader.as_ref() == Some(&id) => {
                Some(self.sync_leader(turn, &id, request))
            }
            State::CompletingRebalance => {
                let parked = Parked::of(context);
                self.synced(&id);
                let wait =
                    |member: &mut Member| std::mem::replace(&mut member.waiting, Waiting::Sync(parked));
                let before = self.members.change(&id, wait).expect("checked to be a member");
                turn.parked.push((parked, id.clone()));
                self.answer_with(turn, &id, before, ErrorCode::RebalanceInProgress);
                None
            }
        }
    }

    /// 25, 82, 22, 23.
    fn check_sync(&self, request: &m::SyncGroupRequest) -> Result<(), ErrorCode> {
        self.check_member(&request.member_id, request.group_instance_id.as_ref())?;
        if request.generation_id != self.generation_id {
            return Err(ErrorCode::IllegalGeneration);
        }
        let differs = |asked: &Option<Text>, own: &Option<Text>| {
            asked.as_ref().is_some_and(|asked| own.as_ref().is_some_and(|own| own != asked))
        };
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol_name, &self.protocol_name)
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn synced(&mut self, id: &Text) {
        self.members.change(id, |member| member.synced = true);
        if self.members.all_synced() {
            self.sync_deadline = None;
        }
    }

    /// The leader's assignment: from now on the generation is complete.
    fn sync_leader(
        &mut self,
        turn: &mut Turn,
        id: &Text,
        request: m::SyncGroupRequest,
    ) -> m::SyncGroupResponse {
        let asked: usize = request.assignments.iter().map(|assignment| assignment.assignment.len()).sum();
        if self.weight().1.saturating_add(asked) > turn.rules.metadata_bytes_max {
            return refused(ErrorCode::MessageTooLarge);
        }
        let mut assignments: BTreeMap<Text, Bytes> = BTreeMap::new();
        for assignment in request.assignments {
            assignments.insert(assignment.member_id, Bytes::copy_from_slice(&assignment.assignment));
        }
        self.members.each(|id, member| member.assignment = assignments.remove(id).unwrap_or_default());
        self.state = State::Stable;
        self.synced(id);
        self.touch(turn.now_ms, id);
        turn.store = true;
        let mut waiting = Vec::new();
        self.members.each(|id, member| {
            if let Waiting::Sync(parked) = member.waiting {
                member.waiting = Waiting::None;
                member.refresh(turn.now_ms);
                waiting.push((id.clone(), parked));
            }
        });
        for (id, parked) in waiting {
            let response = self.sync_response(&id);
            turn.answers.push((parked, Reply::SyncGroup(response)));
        }
        self.sync_response(id)
    }

    fn sync_response(&self, id: &Text) -> m::SyncGroupResponse {
        m::SyncGroupResponse {
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            assignment: self.members.get(id).map(|member| member.assignment.clone()).unwrap_or_default(),
            ..m::SyncGroupResponse::default()
        }
    }
}
