//! What is refused on a full disk, so that what must go on can go on.
//!
//! Place in the walk: the owner asks before it decides. Mark 1 (only the log's reserve is left): Produce, new producer
//! ids, new topics and partitions are refused. Mark 2 (half of the reserve is gone): commits of offsets, additions to
//! transactions and new members of groups too. Ends of transactions, their timeouts, deletes, settings, heartbeats and
//! retention always pass: each of them leads to less, not more.

use ottla_core::command::{Command, CommandBody};
use ottla_core::decision::Reply;
use ottla_storage::Space;

use super::unavailable::no_room;

/// The answer to a command that this much room does not allow; none when it may be decided.
pub fn refusal(space: Space, command: &Command) -> Option<Reply> {
    let least = needs(&command.body)?;
    (space >= least).then(|| no_room(command))
}

/// The mark from which on a command is refused; none for those that always pass.
fn needs(body: &CommandBody) -> Option<Space> {
    match body {
        CommandBody::Produce(_)
        | CommandBody::InitProducerId(_)
        | CommandBody::CreateTopics(_)
        | CommandBody::CreatePartitions(_)
        | CommandBody::AutoCreateTopics(_) => Some(Space::ReserveOnly),
        CommandBody::OffsetCommit(_)
        | CommandBody::TxnOffsetCommit(_)
        | CommandBody::AddPartitionsToTxn(_)
        | CommandBody::AddOffsetsToTxn(_)
        | CommandBody::JoinGroup(_) => Some(Space::HalfReserve),
        CommandBody::ConsumerGroupHeartbeat(request) if request.member_epoch == 0 => Some(Space::HalfReserve),
        _ => None,
    }
}
