//! Why a task cannot be recovered, each by name and with a way out; and why a copy is rebuilt.

use std::fmt;

use ottla_client::TopicPartition;

use crate::anchor::AnchorError;
use crate::port::PortError;
use crate::record::TaskId;
use crate::state::StateError;

/// Why a copy of the state is rebuilt beside, from its changelogs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildReason {
    /// C19: deletes between its position and the target may be compacted away.
    TombstonesGone {
        /// Where the copy is.
        position: i64,
        /// Below it the broker may have removed deletes; absent: the broker cannot tell, and the copy is too old.
        horizon: Option<i64>,
    },
    /// C18: the log was cut below its position and written anew.
    Diverged {
        /// Where the copy is.
        position: i64,
        /// Where the log of its epoch ends.
        epoch_end: i64,
    },
    /// The copy is ahead of what is committed, and the policy says to rebuild.
    Ahead {
        /// Where the copy is.
        position: i64,
        /// What is committed.
        target: i64,
    },
    /// The changelog is another topic of the same name, and the policy says to rebuild.
    TopicRecreated,
    /// The start of a table's topic passed its position.
    TableTrimmed {
        /// Where the copy is.
        position: i64,
        /// First offset that is there.
        log_start: i64,
    },
}

impl fmt::Display for RebuildReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TombstonesGone { position, horizon: Some(horizon) } => {
                write!(f, "it is at {position}, and deletes below {horizon} may be gone from the changelog")
            }
            Self::TombstonesGone { position, horizon: None } => write!(
                f,
                "it is at {position} and older than the changelog's delete.retention.ms: deletes may be gone"
            ),
            Self::Diverged { position, epoch_end } => {
                write!(f, "it is at {position}, but the log of its leader epoch ends at {epoch_end}")
            }
            Self::Ahead { position, target } => {
                write!(f, "it is at {position}, ahead of the committed {target}")
            }
            Self::TopicRecreated => f.write_str("its changelog was deleted and created again"),
            Self::TableTrimmed { position, log_start } => {
                write!(f, "it is at {position}, and its topic begins at {log_start} now")
            }
        }
    }
}

/// Why a task cannot be recovered.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The log could not be asked.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The stores refused.
    #[error(transparent)]
    State(#[from] StateError),
    /// C17: there is state, but the group has no offsets.
    #[error(
        "task {task}: group `{group_id}` has no committed offsets, but {changelog} or the state here holds data: the \
         offsets have expired (the application was down longer than the broker's offsets.retention.minutes) or were \
         deleted. Restore the offsets, or start under another application id; or, when no other instance runs, start \
         once with on_mismatch = adopt to keep the state and read the inputs by the reset policy (records may count twice)"
    )]
    OffsetsGone {
        /// The task.
        task: TaskId,
        /// The group.
        group_id: String,
        /// A changelog of the task.
        changelog: TopicPartition,
    },
    /// C17: there are offsets, but not from us.
    #[error(
        "task {task}: the committed offset of {at} was not written by this application (metadata `{metadata}`): an \
         offset tool or a mirror has set it, so how far the stores belong to it is not known. Start once with \
         on_mismatch = adopt, when no instance runs, to take the ends of the changelogs for it; or reset the \
         application (new application id) to build the state from its inputs"
    )]
    AnchorMissing {
        /// The task.
        task: TaskId,
        /// The partition.
        at: TopicPartition,
        /// The beginning of what stands there.
        metadata: String,
    },
    /// The anchor is ours but cannot be read.
    #[error(
        "task {task}: {source}. If it stays so: start once with on_mismatch = adopt, when no instance runs"
    )]
    AnchorUnreadable {
        /// The task.
        task: TaskId,
        /// Why.
        source: AnchorError,
    },
    /// The anchor has another number of stores.
    #[error(
        "task {task}: the last commit was made by a topology with {targets} stores in this task, this one has {stores}: \
         run the topology that wrote it, or give this one another application id"
    )]
    AnchorOfAnotherTopology {
        /// The task.
        task: TaskId,
        /// Stores in the anchor.
        targets: usize,
        /// Stores of the topology that runs.
        stores: usize,
    },
    /// C17: the state has seen a later transaction than the one whose offsets are committed.
    #[error(
        "task {task}: the state here is of transaction {state}, the committed offsets are of {committed}: the offsets \
         were set back, or the cluster lost commits. Start once with on_mismatch = rebuild to build the state of the \
         committed offsets beside this one"
    )]
    StateNewer {
        /// The task.
        task: TaskId,
        /// Sequence number in the state.
        state: u64,
        /// Sequence number in the anchor.
        committed: u64,
    },
    /// C17: a store is ahead of its committed target.
    #[error(
        "the store of {at} is at {position}, ahead of the committed {target}: the offsets were set back, or the cluster \
         lost commits. Start once with on_mismatch = rebuild to build the state of the committed offsets beside this \
         one, or with adopt to keep it"
    )]
    StateAhead {
        /// The changelog.
        at: TopicPartition,
        /// Where the store is.
        position: i64,
        /// What is committed.
        target: i64,
    },
    /// C17: the input does not hold the committed offset any more.
    #[error(
        "the committed offset {offset} of input {at} is out of range (the log holds {log_start} to {log_end}): records \
         were deleted before they were processed, or the topic was created again. Set the group's offset, or start \
         once with on_mismatch = adopt to go on from the nearest offset that is there"
    )]
    InputOutOfRange {
        /// The input.
        at: TopicPartition,
        /// What is committed.
        offset: i64,
        /// First offset that is there.
        log_start: i64,
        /// End of the log.
        log_end: i64,
    },
    /// A changelog of keys and values has lost its beginning.
    #[error(
        "changelog {at} begins at {log_start}, but the store is at {position}: records were deleted from it \
         (cleanup.policy must be compact alone). Put a copy of the state folder back that is beyond {log_start}, or \
         start once with on_mismatch = adopt to go on with what is there"
    )]
    ChangelogTrimmed {
        /// The changelog.
        at: TopicPartition,
        /// Where the store is.
        position: i64,
        /// First offset that is there.
        log_start: i64,
    },
    /// C18: the changelog ends, or was written anew, below the committed target.
    #[error(
        "changelog {at} holds committed records up to {holds} only, the last commit reaches to {target}: the cluster has \
         lost records (unclean leader election, or a restored broker). Start once with on_mismatch = rebuild to go on \
         with what the log still holds, or with adopt to keep the state here"
    )]
    LogLostTail {
        /// The changelog.
        at: TopicPartition,
        /// What is committed.
        target: i64,
        /// Where the log ends, or stops being the one of the commit.
        holds: i64,
    },
    /// The changelog is another topic of the same name.
    #[error(
        "changelog {at} was deleted and created again (topic id {found}, the state has {known}): the committed target \
         belongs to the old one. Start once with on_mismatch = adopt to keep the state here, or with rebuild to go on \
         with what the new topic holds"
    )]
    ChangelogRecreated {
        /// The changelog.
        at: TopicPartition,
        /// In the state.
        known: String,
        /// Of the topic that is there.
        found: String,
    },
}

impl RecoveryError {
    /// What is wrong when the copy itself is damaged; see [`StateError::damage`].
    pub fn damage(&self) -> Option<String> {
        match self {
            Self::State(error) => error.damage(),
            _ => None,
        }
    }

    /// The disk refused: the same step may work later, at the latest when the stores were opened anew.
    pub fn is_io(&self) -> bool {
        matches!(self, Self::State(error) if error.is_io())
    }

    /// Whether the same step may work later without anybody's help.
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Port(PortError::Retriable(_))) || self.is_io()
    }
}
