//! What goes wrong in a task, and what the topology's policies make of it.
//!
//! A record that cannot be processed is put aside cleanly: when it left no trace yet, at once; else the task asks for
//! a rollback and leaves it out when the kept records are taken again. So no half of a record is ever committed, and
//! a dead letter is part of the transaction that moves past its record.

use ottla_client::TopicPartition;

use crate::state::StateError;

/// What to do with a record that cannot be decoded, processed or written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Stop the task with an error that names the record. The default: nothing is lost without being asked for.
    #[default]
    Fail,
    /// Leave the record out and count it.
    Skip,
    /// Leave the record out and write it to this topic, in the same transaction, with headers `ottla.error`,
    /// `ottla.node`, `ottla.topic`, `ottla.partition` and `ottla.offset`.
    DeadLetter(String),
}

/// A topology's policies. Errors of the state and of timers always stop the task: no record is to blame.
///
/// ```
/// use ottla_streams::codec::{I64, Utf8};
/// use ottla_streams::task::{Policies, Policy};
/// use ottla_streams::topology::Topology;
///
/// let topology = Topology::new("app", |b| {
///     b.policies(Policies { on_decode_error: Policy::DeadLetter("bad".into()), ..Policies::default() });
///     b.stream("numbers", Utf8, I64).to("copy");
/// })?;
/// # Ok::<(), ottla_streams::topology::TopologyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// A key or value that its codec does not take, in an input topic or in a store.
    pub on_decode_error: Policy,
    /// An error or a panic of the user's code.
    pub on_process_error: Policy,
    /// A result that cannot be written: its codec or the cluster refuses it for good.
    pub on_produce_error: Policy,
}

/// An error of the user's code. Anything that is an error, or a text, turns into it.
pub type ProcessError = Box<dyn std::error::Error + Send + Sync>;

/// Where a record came from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordPosition {
    /// Its partition.
    pub topic_partition: TopicPartition,
    /// Its offset.
    pub offset: i64,
}

impl std::fmt::Display for RecordPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "offset {} of {}", self.offset, self.topic_partition)
    }
}

/// Why a task cannot go on. After any of these it must be rolled back ([`crate::task::Task::rollback`]).
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A record was put aside by its policy, but had left traces: roll back and go on, it is left out then.
    #[error("{at} is left out: {reason}")]
    PutAside {
        /// The record.
        at: RecordPosition,
        /// Why.
        reason: String,
    },
    /// A record or a stored value cannot be decoded, and the policy is to fail.
    #[error(
        "{at} cannot be decoded in {node:?}: {reason}; mend the producer, or set on_decode_error to Skip or DeadLetter"
    )]
    Decode {
        /// The record.
        at: RecordPosition,
        /// The node.
        node: String,
        /// What the codec said.
        reason: String,
    },
    /// The user's code refused a record, and the policy is to fail.
    #[error(
        "{at} cannot be processed in {node:?}: {reason}; mend the code, or set on_process_error to Skip or DeadLetter"
    )]
    Process {
        /// The record.
        at: RecordPosition,
        /// The node.
        node: String,
        /// What the code said.
        reason: String,
    },
    /// A result cannot be written, and the policy is to fail.
    #[error(
        "a result of {at} cannot be written by {node:?}: {reason}; mend the code or the topic, or set on_produce_error to \
         Skip or DeadLetter"
    )]
    Produce {
        /// The record that was being processed.
        at: RecordPosition,
        /// The node, or the topic.
        node: String,
        /// Why.
        reason: String,
    },
    /// The user's code panicked, and the policy is to fail.
    #[error(
        "{node:?} panicked at {at}: {message}; mend the code, or set on_process_error to Skip or DeadLetter"
    )]
    Panicked {
        /// The record; for a timer the next one.
        at: RecordPosition,
        /// The node.
        node: String,
        /// The panic's message.
        message: String,
    },
    /// Something failed that no record is to blame for: a timer, a window that closed, a processor's start.
    #[error("{node:?} failed {during}: {reason}")]
    Timer {
        /// The node.
        node: String,
        /// "in a timer", "when time moved on", "at its start".
        during: &'static str,
        /// What it said.
        reason: String,
    },
    /// The state cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// It failed before and was not rolled back yet.
    #[error("the task failed and must be rolled back before it goes on")]
    NotRolledBack,
    /// The topology has no such task.
    #[error("the topology has no sub-topology {0}")]
    UnknownSubTopology(u16),
    /// The state that was handed over is of another sub-topology.
    #[error("the state of task {task} has the stores {found:?}, its sub-topology has {wanted:?}")]
    WrongState {
        /// The task.
        task: String,
        /// What it has.
        found: Vec<String>,
        /// What it should have.
        wanted: Vec<String>,
    },
}

impl TaskError {
    /// Whether the task goes on after a rollback without anybody's help.
    pub fn heals(&self) -> bool {
        matches!(self, Self::PutAside { .. })
    }
}

/// What a node reports; the task adds where it was, and the policy decides.
#[derive(Debug)]
pub(crate) enum Failure {
    Decode(String),
    Encode(String),
    Process(String),
    State(StateError),
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}
