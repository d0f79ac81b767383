//! LeaveGroup: members go by themselves, or are removed by an administrator (KIP-345).
//!
//! Place in the walk: the handler's part that knows the rules.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::messages::leave_group_request::MemberIdentity;
use ottla_protocol::messages::leave_group_response::MemberResponse;

use super::Turn;
use super::state::ClassicGroup;

/// First version that names several members.
pub(super) const MANY_MEMBERS: i16 = 3;

impl ClassicGroup {
    /// Takes members out, and gives a code for each.
    pub(super) fn leave(&mut self, turn: &mut Turn, members: &[MemberIdentity]) -> Vec<ErrorCode> {
        let before = self.members.len();
        let codes: Vec<ErrorCode> = members.iter().map(|member| self.leave_one(turn, member)).collect();
        if self.members.len() < before {
            self.after_removal(turn);
        } else {
            self.maybe_complete_join(turn); // an id that was waited for may be gone
        }
        codes
    }

    fn leave_one(&mut self, turn: &mut Turn, member: &MemberIdentity) -> ErrorCode {
        let instance_id = member.group_instance_id.as_ref();
        if member.member_id.is_empty() {
            // An administrator knows instances only.
            let Some(id) = instance_id.and_then(|id| self.static_members.get(id)).cloned() else {
                return ErrorCode::UnknownMemberId;
            };
            self.remove_member(turn, &id, ErrorCode::UnknownMemberId);
            return ErrorCode::None;
        }
        if self.pending.remove(&member.member_id) {
            return ErrorCode::None;
        }
        if let Err(code) = self.check_member(&member.member_id, instance_id) {
            return code;
        }
        self.remove_member(turn, &member.member_id, ErrorCode::UnknownMemberId);
        ErrorCode::None
    }
}

/// The answer with a code for each member.
pub(super) fn response(
    version: i16,
    members: Vec<MemberIdentity>,
    codes: &[ErrorCode],
) -> m::LeaveGroupResponse {
    if version < MANY_MEMBERS {
        let error_code = codes.first().copied().unwrap_or(ErrorCode::UnknownMemberId).code();
        return m::LeaveGroupResponse { error_code, ..m::LeaveGroupResponse::default() };
    }
    let members = members.into_iter().zip(codes).map(|(member, code)| MemberResponse {
        member_id: member.member_id,
        group_instance_id: member.group_instance_id,
        error_code: code.code(),
        ..MemberResponse::default()
    });
    m::LeaveGroupResponse { members: members.collect(), ..m::LeaveGroupResponse::default() }
}
