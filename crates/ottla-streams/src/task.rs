//! A task: one sub-topology over one partition of its inputs, with its state, a record at a time.
//!
//! Pure: bytes in, [`Emit`]s out, time is an argument; the worker around it owns transactions. It takes the record
//! with the lowest timestamp, moves stream time (windows close), gives the record to its source node, and fires the
//! timers that stream time has reached, all in one [`Task::step`]. Writes go to the state's overlay, and are emitted
//! as changes in the order in which they happened.
//!
//! Taken records are kept until [`Task::committed`], so that [`Task::rollback`] needs no fetch. It makes all nodes
//! anew from their factories (I5). A panic of user code is caught, and is a [`TaskError`] like others.
//!
//! Place in the walk: worker -> here -> nodes -> stores. Not here: transactions, fetching, recovery.

pub(crate) mod core;
mod error;
mod inputs;
mod making;
mod metrics;
pub(crate) mod node;
mod taking;
#[cfg(test)]
mod tests;
mod time;
mod timers;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ottla_client::TopicPartition;

pub(crate) use self::core::Core;
pub(crate) use self::error::Failure;
pub use self::error::{Policies, Policy, ProcessError, RecordPosition, TaskError};
use self::inputs::{Inputs, Ready};
use self::making::{check_state, core, sources};
pub use self::metrics::TaskMetrics;
pub(crate) use self::node::Node;
pub use self::timers::TimerClock;
use crate::record::{Change, InputRecord, OutputRecord, TaskId};
use crate::state::TaskState;
use crate::topology::{SubTopology, Topology};

/// Bytes of waiting records per input above which fetching pauses, unless set otherwise.
pub const BUFFER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of kept records above which the task asks for a commit, unless set otherwise.
pub const KEPT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Records that may be put aside or refused between two boundaries.
const ASIDE_MAX: usize = 10_000;

/// What a step gives to the outside, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Emit {
    /// A record for a topic.
    Output(OutputRecord),
    /// A change for the changelog of its store.
    Change(Change),
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// Nothing was due.
    Idle,
    /// It took a record.
    Record,
    /// Wall-clock timers fired.
    Punctuated,
}

/// What a commit must keep of a task beside its stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Offsets of the next records to take.
    pub offsets: BTreeMap<TopicPartition, i64>,
    /// Highest timestamp taken, ms; `i64::MIN` = none yet.
    pub stream_time: i64,
    /// Wall-clock timers and when they are due, ms.
    pub timers: Vec<(String, i64)>,
}

/// A task at work.
///
/// ```
/// use ottla_client::TopicPartition;
/// use ottla_streams::codec::Utf8;
/// use ottla_streams::engine::mem::MemEngine;
/// use ottla_streams::record::{InputRecord, RawRecord, TaskId};
/// use ottla_streams::state::TaskState;
/// use ottla_streams::task::{Emit, Task};
/// use ottla_streams::topology::Topology;
///
/// let topology = Topology::new("app", |b| {
///     b.stream("words", Utf8, Utf8).group().count("counts").to("totals");
/// })?;
/// let sub = &topology.sub_topologies()[0];
/// let state = TaskState::open(Box::new(MemEngine::alone(&sub.store_names())), &sub.stores, sub.fingerprint)?;
/// let mut task = Task::new(&topology, TaskId { sub_topology: 0, partition: 0 }, state)?;
/// let record = RawRecord { key: Some("a".into()), value: Some("x".into()), timestamp: 1, headers: vec![] };
/// task.push(vec![InputRecord { topic_partition: TopicPartition::new("words", 0), offset: 0, record }]);
/// let mut out = Vec::new();
/// task.step(0, &mut out)?;
/// assert!(matches!(&out[..], [Emit::Change(_), Emit::Output(total)] if total.topic == "totals"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Task {
    id: TaskId,
    topology: Topology,
    core: Core,
    inputs: Inputs,
    /// Nodes that are told of stream time.
    timed: Vec<usize>,
    stream_time_at_boundary: i64,
    timers_at_boundary: Vec<(String, i64)>,
    /// Records to leave out when they are taken again, and why.
    aside: BTreeMap<RecordPosition, (String, String, Kind)>,
    failed: bool,
    /// The record that the last step took; absent = it took none.
    stepped: Option<RecordPosition>,
    buffer_bytes_max: usize,
    kept_bytes_max: usize,
    /// Records wait for a silent input until then, ms; absent = none does.
    idle_until: Option<i64>,
}

/// Which policy a failure falls under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Decode,
    Process,
    Produce,
}

impl Task {
    /// A task of a topology over a state that was opened with its sub-topology's stores. It begins at the offsets,
    /// stream time and timers of the state's meta; [`Task::resume_at`] overrules that. It reads every input topic's
    /// partition of its number; [`Task::limit_inputs`] narrows that.
    pub fn new(topology: &Topology, id: TaskId, state: TaskState) -> Result<Self, TaskError> {
        let sub = topology
            .sub_topologies()
            .get(usize::from(id.sub_topology))
            .ok_or(TaskError::UnknownSubTopology(id.sub_topology))?;
        check_state(id, sub, &state)?;
        let inputs = sources(topology, sub, id.partition, &|_| true);
        let meta = state.meta();
        let (offsets, stream_time, timers) = (meta.inputs.clone(), meta.stream_time, meta.timers.clone());
        let mut task = Self {
            id,
            topology: topology.clone(),
            core: core(topology, sub, id, state),
            inputs,
            timed: Vec::new(),
            stream_time_at_boundary: stream_time,
            timers_at_boundary: timers,
            aside: BTreeMap::new(),
            failed: false,
            stepped: None,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            kept_bytes_max: KEPT_BYTES_MAX,
            idle_until: None,
        };
        task.inputs.resume_at(&offsets);
        task.start()?;
        Ok(task)
    }

    /// Its name.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// The topology that it is a part of.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Its part of the topology.
    pub fn sub_topology(&self) -> &SubTopology {
        &self.topology.sub_topologies()[usize::from(self.id.sub_topology)]
    }

    /// The partitions that it reads, sorted; the first is the anchor of its offset commits.
    pub fn inputs(&self) -> &[TopicPartition] {
        self.inputs.partitions()
    }

    /// Leaves out inputs that do not exist: topics with fewer partitions than the task's number. Before records are
    /// pushed.
    pub fn limit_inputs(&mut self, existing: &[TopicPartition]) {
        let (offsets, idle_max) = (self.inputs.offsets(), self.inputs.idle_max());
        let exists = |at: &TopicPartition| existing.contains(at);
        self.inputs = sources(&self.topology, self.sub_topology(), self.id.partition, &exists);
        self.inputs.set_idle_max(idle_max);
        self.inputs.resume_at(&offsets);
    }

    /// Sets the bytes of waiting records per input above which fetching pauses, and the bytes of kept records above
    /// which a commit is asked for.
    pub fn set_limits(&mut self, buffer_bytes_max: usize, kept_bytes_max: usize) {
        self.buffer_bytes_max = buffer_bytes_max;
        self.kept_bytes_max = kept_bytes_max;
    }

    /// With several inputs of which one is silent, records of the others wait for it: until everything that its
    /// partition holds was fetched, as told with [`Task::fetched_to`] and [`Task::set_log_end`], and for so long after
    /// that; `None` (the default) = they never wait. Kafka's `max.task.idle.ms` (KIP-353, KIP-695), where -1 is `None`.
    pub fn set_idle_max(&mut self, idle_max: Option<Duration>) {
        self.inputs.set_idle_max(idle_max);
    }

    /// Begins at these offsets and that stream time (`i64::MIN` = none), with empty buffers and new processors. The
    /// state is at the same boundary.
    pub fn resume_at(&mut self, offsets: &BTreeMap<TopicPartition, i64>, stream_time: i64) {
        self.inputs.resume_at(offsets);
        self.stream_time_at_boundary = stream_time;
        self.timers_at_boundary = self.core.state.meta().timers.clone();
        self.aside.clear();
        self.rollback();
    }

    /// Adds records that were fetched. Those that it has or had already are left out.
    pub fn push(&mut self, records: Vec<InputRecord>) {
        self.inputs.push(records);
    }

    /// Tells that everything below an offset was fetched, so that the offsets to commit move over aborted records
    /// and markers at the end too.
    pub fn fetched_to(&mut self, at: &TopicPartition, offset: i64) {
        self.inputs.fetched_to(at, offset);
    }

    /// Tells where what can be read of an input ends now: the last stable offset for `read_committed` readers.
    pub fn set_log_end(&mut self, at: &TopicPartition, log_end: i64) {
        self.inputs.set_log_end(at, log_end);
    }

    /// Wall clock in ms at which [`Task::step`] will not wait any longer for a silent input; `None` = it does not wait,
    /// or for what is to be fetched.
    pub fn idle_until(&self) -> Option<i64> {
        self.idle_until
    }

    /// Bytes of records that wait.
    pub fn buffered_bytes(&self) -> usize {
        self.inputs.waiting_bytes()
    }

    /// Bytes of records that were taken since the boundary.
    pub fn kept_bytes(&self) -> usize {
        self.inputs.kept_bytes()
    }

    /// Whether so much waits at an input that it should not be fetched.
    pub fn is_paused_input(&self, at: &TopicPartition) -> bool {
        self.inputs.waiting_bytes_of(at) >= self.buffer_bytes_max
    }

    /// Timestamp of the record that [`Task::step`] would take.
    pub fn next_timestamp(&self) -> Option<i64> {
        self.inputs.next_timestamp()
    }

    /// When the next wall-clock timer is due; `i64::MIN` = it wants to see the clock once.
    pub fn next_wall_timer(&self) -> Option<i64> {
        self.core.timers.next_wall()
    }

    /// Takes one record, unless it has to wait for a silent input, or fires the wall-clock timers that are due. What it emits is appended to `out`; on an error
    /// `out` is as it was, and the task must be rolled back.
    pub fn step(&mut self, wall_ms: i64, out: &mut Vec<Emit>) -> Result<Stepped, TaskError> {
        if self.punctuate(wall_ms, out)? {
            return Ok(Stepped::Punctuated);
        }
        let ready = self.inputs.ready(wall_ms);
        self.idle_until = if let Ready::At(due) = ready { Some(due) } else { None };
        let Some(taken) = (ready == Ready::Yes).then(|| self.inputs.take()).flatten() else {
            return Ok(Stepped::Idle);
        };
        self.emitting(out, |task| task.take(taken))?;
        Ok(Stepped::Record)
    }

    /// Fires the wall-clock timers that are due; whether there were any. As [`Task::step`] otherwise.
    pub fn punctuate(&mut self, wall_ms: i64, out: &mut Vec<Emit>) -> Result<bool, TaskError> {
        if self.failed {
            return Err(TaskError::NotRolledBack);
        }
        self.core.wall_ms = wall_ms;
        if self.core.timers.next_wall().is_none_or(|due| due > wall_ms) {
            return Ok(false);
        }
        self.stepped = None;
        self.emitting(out, |task| task.fire(TimerClock::WallClock, wall_ms))
    }

    /// Offsets of the next records to take.
    pub fn offsets(&self) -> BTreeMap<TopicPartition, i64> {
        self.inputs.offsets()
    }

    /// What a commit must keep beside the stores.
    pub fn boundary(&self) -> Boundary {
        Boundary {
            offsets: self.offsets(),
            stream_time: self.core.stream_time,
            timers: self.core.timers.kept(),
        }
    }

    /// Highest timestamp taken, ms since 1970; `i64::MIN` = none yet.
    pub fn stream_time(&self) -> i64 {
        self.core.stream_time
    }

    /// Whether it took a record, wrote or emitted anything since the boundary.
    pub fn is_dirty(&self) -> bool {
        self.core.effects > 0 || self.inputs.kept_bytes() > 0 || self.core.state.is_dirty()
    }

    /// Whether a processor asked for a commit, or the kept records take too much memory.
    pub fn wants_commit(&self) -> bool {
        self.core.commit_requested || self.inputs.kept_bytes() > self.kept_bytes_max
    }

    /// The state.
    pub fn state(&self) -> &TaskState {
        &self.core.state
    }

    /// The state, for the commit protocol.
    pub fn state_mut(&mut self) -> &mut TaskState {
        &mut self.core.state
    }

    /// Closes the processors and gives the state back.
    pub fn into_state(mut self) -> TaskState {
        self.close_nodes();
        self.core.state
    }

    /// What it counted.
    pub fn metrics(&self) -> TaskMetrics {
        self.core.metrics
    }

    /// The transaction with everything since the last boundary was committed: this is the boundary now.
    pub fn committed(&mut self) {
        self.inputs.committed();
        self.stream_time_at_boundary = self.core.stream_time;
        self.timers_at_boundary = self.core.timers.kept();
        self.core.effects = 0;
        self.core.commit_requested = false;
        let offsets = self.inputs.offsets();
        self.aside.retain(|at, _| offsets.get(&at.topic_partition).is_some_and(|next| at.offset >= *next));
    }

    /// Goes back to the boundary: the state's overlay is dropped, processors are made anew, kept records wait again.
    /// An error of a processor's start shows in the next step.
    pub fn rollback(&mut self) {
        self.close_nodes();
        self.core.state.rollback();
        self.core.metrics.rollbacks += 1;
        self.inputs.rollback();
        self.failed = false;
        if let Err(error) = self.start() {
            tracing::error!(task = %self.id, %error, "processors cannot be started");
            self.failed = true;
        }
    }

    /// The cluster refused, for good, a result that the last step emitted (an output or a change). By the policy for
    /// results it is an error, or the step's record is put aside: roll back and go on then, it is left out. A result
    /// of a timer, or a dead letter, is always an error.
    pub fn refused(&mut self, topic: &str, reason: &str) -> Result<(), TaskError> {
        self.failed = true;
        let policy = &self.topology.policies().on_produce_error;
        let is_dead_letter = matches!(policy, Policy::DeadLetter(letters) if letters == topic);
        let (node, reason) = (topic.to_owned(), reason.to_owned());
        match self.stepped.take() {
            Some(at) if *policy != Policy::Fail && !is_dead_letter && self.aside.len() < ASIDE_MAX => {
                self.aside.insert(at, (node, reason, Kind::Produce));
                Ok(())
            }
            at => Err(TaskError::Produce { at: at.unwrap_or_else(|| self.position()), node, reason }),
        }
    }

    /// Runs something that emits; after an error or a panic `out` is as before, and the task waits for its rollback.
    fn emitting<T>(
        &mut self,
        out: &mut Vec<Emit>,
        run: impl FnOnce(&mut Self) -> Result<T, TaskError>,
    ) -> Result<T, TaskError> {
        if self.failed {
            return Err(TaskError::NotRolledBack);
        }
        let before = out.len();
        std::mem::swap(&mut self.core.out, out);
        let result = run(self);
        std::mem::swap(&mut self.core.out, out);
        if result.is_err() {
            out.truncate(before);
            self.failed = true;
        }
        result
    }

    /// The record at hand, or the next one.
    fn position(&self) -> RecordPosition {
        self.core.position.clone().unwrap_or_else(|| {
            let first = self.inputs.offsets().into_iter().next();
            let (topic_partition, offset) = first.unwrap_or_else(|| (TopicPartition::new("", 0), 0));
            RecordPosition { topic_partition, offset }
        })
    }

    /// Runs nodes; a panic becomes an error.
    fn guarded(&mut self, run: impl FnOnce(&mut Core) -> Result<(), Failure>) -> Result<(), Trouble> {
        let result = catch_unwind(AssertUnwindSafe(|| run(&mut self.core)));
        if let Some(error) = self.core.state.take_fault() {
            return Err(Trouble::Failed(Failure::State(error.into())));
        }
        match result {
            Ok(Ok(())) => Ok(()),
            // The first failure weighs more than what was made of it.
            Ok(Err(failure)) => Err(Trouble::Failed(self.core.fault.take().unwrap_or(failure))),
            Err(panic) => Err(Trouble::Panicked(message_of(&*panic))),
        }
    }

    fn close_nodes(&mut self) {
        let mut nodes = std::mem::take(&mut self.core.nodes);
        let closed = catch_unwind(AssertUnwindSafe(|| {
            nodes.iter_mut().flatten().for_each(|node| node.close());
        }));
        if let Err(panic) = closed {
            tracing::warn!(task = %self.id, message = message_of(&*panic), "a processor panicked in close");
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.id)
            .field("offsets", &self.inputs.offsets())
            .field("stream_time", &self.core.stream_time)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// How nodes ended that did not end well.
enum Trouble {
    Failed(Failure),
    Panicked(String),
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}
