//! Who may commit and fetch offsets of a consumer group (KIP-848, KIP-447, KIP-1251).
//!
//! Place in the walk: asked by the handlers of OffsetCommit, TxnOffsetCommit and OffsetFetch, before anything is
//! written.
//!
//! Invariants: a member commits with its epoch, or with an earlier one if it has had every partition that it
//! names since then: nobody else can have committed them in between.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::{Text, TopicIdPartition};

use super::ConsumerGroup;
use super::member::Member;
use crate::group::commit::Committer;

/// First version of OffsetCommit that knows this protocol's epochs.
const MEMBER_EPOCHS: i16 = 9;
/// First version of TxnOffsetCommit that may see the code for a wrong one.
const TXN_STALE_EPOCH: i16 = 6;

impl ConsumerGroup {
    /// Whether this committer may commit offsets: 25, 35, 113, and 22 for members of the classic protocol.
    /// `partitions` are those that it commits.
    pub(in crate::group) fn check_commit(&self, committer: &Committer<'_>) -> Result<(), ErrorCode> {
        let Committer { generation: epoch, member_id, instance_id, transactional, .. } = *committer;
        if epoch < 0 && self.is_empty() {
            return Ok(());
        }
        if transactional && epoch < 0 && member_id.is_empty() && instance_id.is_none() {
            return Ok(());
        }
        let member = self.stored.member(member_id).ok_or(ErrorCode::UnknownMemberId)?;
        if !transactional && !member.is_classic() && committer.version < MEMBER_EPOCHS {
            return Err(ErrorCode::UnsupportedVersion);
        }
        check_epoch(member, epoch, committer.partitions).map_err(|code| match code {
            ErrorCode::StaleMemberEpoch if transactional && committer.version < TXN_STALE_EPOCH => {
                ErrorCode::IllegalGeneration
            }
            code => code,
        })
    }

    /// Whether this member may fetch offsets (version 9 and later): 25, 113.
    pub(in crate::group) fn check_fetch(
        &self,
        member_id: Option<&Text>,
        member_epoch: i32,
    ) -> Result<(), ErrorCode> {
        let Some(member_id) = member_id else {
            return if member_epoch < 0 { Ok(()) } else { Err(ErrorCode::UnknownMemberId) };
        };
        if member_id.is_empty() && member_epoch < 0 {
            return Ok(());
        }
        let member = self.stored.member(member_id).ok_or(ErrorCode::UnknownMemberId)?;
        check_epoch(member, member_epoch, &[])
    }
}

fn check_epoch(member: &Member, epoch: i32, partitions: &[TopicIdPartition]) -> Result<(), ErrorCode> {
    let current = &member.current;
    if epoch == current.epoch {
        return Ok(());
    }
    if member.is_classic() {
        return Err(ErrorCode::IllegalGeneration);
    }
    let had_it =
        |partition: &TopicIdPartition| current.assigned.epoch(*partition).is_some_and(|since| since <= epoch);
    let may = (1..current.epoch).contains(&epoch) && !partitions.is_empty() && partitions.iter().all(had_it);
    if may { Ok(()) } else { Err(ErrorCode::StaleMemberEpoch) }
}
