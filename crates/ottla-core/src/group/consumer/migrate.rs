//! Groups that change their protocol: a consumer joins a classic group, or classic members a consumer group.
//!
//! Place in the walk: a joining consumer is admitted here; the classic handlers come here when the group speaks
//! the consumer protocol.

use std::sync::Arc;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;

use super::heartbeat::{Refused, is_open, refused};
use super::state::Stored;
use crate::command::Context;
use crate::group::classic;
use crate::group::protocol::Protocol;
use crate::shard::{ShardState, Step};

/// What must be done to a group before a consumer joins.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The group as a consumer group, if it is not one yet.
    pub(super) stored: Option<Arc<Stored>>,
    /// Its classic record goes.
    tombstone: bool,
}

/// Whether a consumer may join this group: 69.
pub(super) fn admit(state: &ShardState, group: &Text) -> Result<Plan, Refused> {
    let protocol = state.groups.protocol(group);
    if !is_open(protocol) {
        return refused(ErrorCode::GroupIdNotFound, format!("{group} is not a consumer group"));
    }
    let tombstone = matches!(protocol, Protocol::Classic(_));
    Ok(Plan { stored: None, tombstone })
}

/// Does what was planned.
pub(super) fn convert(step: &mut Step<'_>, group: &Text, plan: Plan) {
    if plan.tombstone {
        classic::append(step, group, &[classic::tombstone(group)]);
    }
}

/// Members were taken out.
pub(super) fn after_removal(_step: &mut Step<'_>, _group: &Text) {}

/// JoinGroup of a classic member of a consumer group: the answer.
pub(in crate::group) fn join_group(
    _step: &mut Step<'_>,
    _context: &Context,
    request: m::JoinGroupRequest,
) -> Option<m::JoinGroupResponse> {
    Some(m::JoinGroupResponse {
        error_code: ErrorCode::InconsistentGroupProtocol.code(),
        member_id: request.member_id,
        ..Default::default()
    })
}

/// SyncGroup of a classic member of a consumer group.
pub(in crate::group) fn sync_group(
    _step: &mut Step<'_>,
    _context: &Context,
    _request: m::SyncGroupRequest,
) -> Option<m::SyncGroupResponse> {
    Some(m::SyncGroupResponse { error_code: ErrorCode::UnknownMemberId.code(), ..Default::default() })
}

/// Heartbeat of a classic member of a consumer group.
pub(in crate::group) fn heartbeat(
    _step: &mut Step<'_>,
    _context: &Context,
    _request: &m::HeartbeatRequest,
) -> ErrorCode {
    ErrorCode::UnknownMemberId
}

/// LeaveGroup of members of a consumer group: a code for each.
pub(in crate::group) fn leave_group(
    _step: &mut Step<'_>,
    _context: &Context,
    request: &m::LeaveGroupRequest,
) -> Vec<ErrorCode> {
    request.members.iter().map(|_| ErrorCode::UnknownMemberId).collect()
}
