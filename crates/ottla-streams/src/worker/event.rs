//! What a worker tells its application.

use crate::port::PortError;
use crate::record::TaskId;
use crate::state::TaskState;

/// Something that the application must know of, or do something about. Taken with [`super::Worker::take_events`].
#[derive(Debug)]
pub enum WorkerEvent {
    /// The task belongs to somebody else. Its store stands at its last boundary and may be kept for later.
    Lost {
        /// The task.
        task: TaskId,
        /// Its state, without the writes that were not committed.
        state: TaskState,
        /// How that became known.
        reason: String,
    },
    /// Offsets were refused since the group has moved on. All tasks are rolled back and wait for
    /// [`super::Worker::resume`], after the group was joined anew.
    NotOwner {
        /// What the broker said.
        reason: String,
    },
    /// The task caused so many aborts in a row that the others suffer; it takes no records any more. Take it with
    /// [`super::Worker::remove`] and give it to a worker of its own, or stop the application.
    SetApart {
        /// The task.
        task: TaskId,
        /// Aborts in a row.
        faults: u32,
        /// What it said last.
        reason: String,
    },
    /// A boundary is committed but the task's disk refuses it. The task waits and tries again; others run.
    Parked {
        /// The task.
        task: TaskId,
        /// What the disk said.
        reason: String,
    },
    /// A parked task's boundary is on its disk now.
    Unparked {
        /// The task.
        task: TaskId,
    },
    /// The disk refuses to read, or goes on refusing to write. The stores are to be closed and opened anew, and the task
    /// goes on from its boundary.
    Reopen {
        /// The task.
        task: TaskId,
        /// Its state, without the writes that were not committed; drop it before the stores are opened.
        state: TaskState,
        /// What the disk said.
        reason: String,
    },
    /// A store is damaged. Its folder is to be set aside, and a new one recovered beside it.
    Damaged {
        /// The task.
        task: TaskId,
        /// Its state; drop it before the folder is touched.
        state: TaskState,
        /// What the engine said.
        reason: String,
    },
    /// A transaction was given up and its tasks stand at their last boundary again. For the log.
    RolledBack {
        /// Why.
        reason: String,
    },
}

/// Why a worker ends. It must be dropped; its tasks' stores stand at their last boundary.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Its hook stopped it.
    #[error(transparent)]
    Stopped(#[from] super::Stopped),
    /// Another process took the transactional id. Two processes run with the same identity, or an operator fenced
    /// this one.
    #[error(
        "transactional id of `{writer}` was taken over: {reason}; another process runs with the same identity (a \
         copied state folder?), or an operator has fenced this one"
    )]
    Fenced {
        /// This writer.
        writer: String,
        /// What the broker said.
        reason: String,
    },
    /// The cluster refuses, and will go on to.
    #[error("worker `{writer}` cannot go on: {error}")]
    Port {
        /// This writer.
        writer: String,
        /// What it said.
        #[source]
        error: PortError,
    },
}
