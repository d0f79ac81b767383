//! A worker: some tasks, one transactional id, and the commit protocol between them.
//!
//! | step | what happens |
//! |---|---|
//! | S0 | tasks process records; their stores' overlays grow; outputs and changes go to the producer, inside a transaction that is begun with the first of them |
//! | S1 | no more records; everything is acknowledged; per store the restore target T = the end of its changelog |
//! | S2 | every task that took or wrote anything commits the offsets O of all its inputs, with an [`Anchor`](crate::anchor::Anchor) that holds T |
//! | S3 | the transaction is committed; the decision is the coordinator's |
//! | S4 | each task's overlay and its new meta record go into its store as one batch |
//! | S5 | overlays are empty; the next transaction begins with its first write |
//!
//! Whatever fails before S3 is a rollback: abort, drop the overlays, build processors anew, take the kept records
//! again. No store is closed. When the answer of S3 is lost, the id is taken anew, which ends the transaction one
//! way or the other, and the committed anchor tells which. Nothing is ever guessed, and no store is rolled back,
//! since none is written before the decision is known.
//!
//! A worker has no thread and no timer of its own: [`Worker::run_once`] does what is due and returns. So the same
//! code runs in an OS thread, in the test driver, and in a test that stops it at any [`Step`].
//!
//! Invariants: I2 a store is written only in S4 or from committed records; I3 every task with a write since its
//! boundary is in S2; at most one transaction is open; a task that waits for its disk takes no records.
//!
//! Not here: group membership, fetching, recovery (a task comes here at its restore target), threads.

mod commit;
mod event;
mod metrics;
mod process;
mod rollback;
mod settings;
mod slot;
mod step;
mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ottla_client::{GroupMetadata, Text, TopicPartition};
use ottla_env::clock::Clock;

pub use self::event::{WorkerError, WorkerEvent};
pub use self::metrics::{Cell, CommitLatency, LATENCY_BOUNDS_MS, WorkerMetrics};
use self::settings::Share;
pub use self::settings::{Budget, Guarantee, WorkerSettings};
use self::slot::Slot;
pub use self::step::{Hook, NoHook, Step, Stopped};
use crate::port::{Acked, PortError, ReadPort, TransactionPort};
use crate::record::{InputRecord, TaskId};
use crate::recovery::ChangeSource;
use crate::state::TaskState;
use crate::task::Task;

/// What a call of [`Worker::run_once`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// It processed something or moved a commit on; call again at once.
    Worked,
    /// Nothing is due before [`Worker::next_due`], unless records are pushed.
    Idle,
    /// It waits for the cluster, the disk or the application.
    Waiting,
}

/// Where the transaction stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// None is open.
    Idle,
    /// Begun at that time.
    Open { since: Duration },
    /// To be aborted and rolled back. `reinit`: the id has to be taken anew, which aborts too.
    Failed { since: Duration, reason: String, reinit: bool, not_owner: bool },
    /// Its commit was asked for and not answered.
    Undecided {
        since: Duration,
        begun: Duration,
        tasks: BTreeSet<TaskId>,
        fenced: Option<String>,
        decided: bool,
    },
}

/// Tasks that share a transaction. See the module's text.
pub struct Worker<T: TransactionPort> {
    settings: WorkerSettings,
    port: T,
    reader: Box<dyn ReadPort>,
    clock: Arc<dyn Clock>,
    hook: Box<dyn Hook>,
    share: Share,
    metrics: Arc<WorkerMetrics>,
    slots: BTreeMap<TaskId, Slot>,
    routes: BTreeMap<TopicPartition, TaskId>,
    log_ends: BTreeMap<TopicPartition, i64>,
    events: Vec<WorkerEvent>,
    phase: Phase,
    /// When the first record since the last boundary was taken.
    dirty_since: Option<Duration>,
    /// What the open transaction has written so far, per partition.
    acked: BTreeMap<TopicPartition, Acked>,
    /// Which task wrote to a topic last, to know whom a refused record concerns.
    wrote: BTreeMap<Text, TaskId>,
    /// Tasks of a transaction in which the cluster refused a record without saying whose: until they are past these
    /// offsets each of their steps is acknowledged before the next, so that the record can be named.
    careful: BTreeMap<TaskId, BTreeMap<TopicPartition, i64>>,
    /// No call to the cluster before this moment.
    retry_at: Duration,
    /// Waits for [`Worker::resume`].
    suspended: bool,
    /// Records left out, and late ones, of tasks that have left.
    of_gone: (u64, u64),
    /// The task after the one that was served last.
    turn: Option<TaskId>,
    /// A broken variant for the driver's proofs: stores are written before the commit is asked for.
    pub(crate) apply_first: bool,
}

impl<T: TransactionPort> fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("writer", &self.settings.writer)
            .field("tasks", &self.slots.keys().collect::<Vec<_>>())
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl<T: TransactionPort> Worker<T> {
    /// A worker without tasks. `port` holds its transactional id, taken already; `reader` is for the witness of
    /// commits.
    pub fn new(
        settings: WorkerSettings,
        port: T,
        reader: Box<dyn ReadPort>,
        clock: Arc<dyn Clock>,
        budget: &Arc<Budget>,
    ) -> Self {
        Self {
            settings,
            port,
            reader,
            clock,
            hook: Box::new(NoHook),
            share: Share::of(Arc::clone(budget)),
            metrics: Arc::new(WorkerMetrics::default()),
            slots: BTreeMap::new(),
            routes: BTreeMap::new(),
            log_ends: BTreeMap::new(),
            events: Vec::new(),
            phase: Phase::Idle,
            dirty_since: None,
            acked: BTreeMap::new(),
            wrote: BTreeMap::new(),
            careful: BTreeMap::new(),
            retry_at: Duration::ZERO,
            suspended: false,
            of_gone: (0, 0),
            turn: None,
            apply_first: false,
        }
    }

    /// Calls that at every step from now on.
    pub fn set_hook(&mut self, hook: Box<dyn Hook>) {
        self.hook = hook;
    }

    /// Takes a task that stands at its restore target: its meta record is the committed anchor's. `changes` says
    /// where the changes of each store go, as in the recovery's plan.
    pub fn add(&mut self, task: Task, changes: Vec<ChangeSource>) {
        let id = task.id();
        for input in task.inputs() {
            self.routes.insert(input.clone(), id);
        }
        self.slots.insert(id, Slot::new(task, changes));
        self.metrics.tasks.set(self.slots.len() as u64);
    }

    /// Its tasks, in order.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.slots.values().map(|slot| &slot.task)
    }

    /// One of its tasks.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.slots.get(&id).map(|slot| &slot.task)
    }

    /// Gives it records of its tasks' inputs, in order per partition, without gaps of committed records. Records of
    /// others are dropped: they were under way when the task left.
    pub fn push(&mut self, records: Vec<InputRecord>) {
        let mut by_task: BTreeMap<TaskId, Vec<InputRecord>> = BTreeMap::new();
        for record in records {
            if let Some(id) = self.routes.get(&record.topic_partition) {
                by_task.entry(*id).or_default().push(record);
            }
        }
        for (id, records) in by_task {
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.task.push(records);
            }
        }
    }

    /// Tells that everything below an offset of an input was fetched: the offsets to commit then move over aborted
    /// records and markers.
    pub fn fetched_to(&mut self, at: &TopicPartition, offset: i64) {
        let slot = self.routes.get(at).and_then(|id| self.slots.get_mut(id));
        if let Some(slot) = slot {
            slot.task.fetched_to(at, offset);
        }
    }

    /// Inputs of which enough is buffered: the caller fetches no more of them for now.
    pub fn paused(&self) -> BTreeSet<TopicPartition> {
        let full = |(at, id): (&TopicPartition, &TaskId)| {
            let slot = self.slots.get(id)?;
            slot.task.is_paused_input(at).then(|| at.clone())
        };
        self.routes.iter().filter_map(full).collect()
    }

    /// Tells where what can be read of an input ends: for the lag, and for tasks that wait for a silent input.
    pub fn set_log_end(&mut self, at: &TopicPartition, log_end: i64) {
        let Some(id) = self.routes.get(at) else { return };
        if let Some(slot) = self.slots.get_mut(id) {
            slot.task.set_log_end(at, log_end);
        }
        self.log_ends.insert(at.clone(), log_end);
    }

    /// Its figures.
    pub fn metrics(&self) -> Arc<WorkerMetrics> {
        Arc::clone(&self.metrics)
    }

    /// What the application should know; each is told once.
    pub fn take_events(&mut self) -> Vec<WorkerEvent> {
        std::mem::take(&mut self.events)
    }

    /// Does what is due: settles what a failure left open, processes records, commits. `group` is the membership as
    /// it is now. After an `Err` only [`Worker::into_states`] may be called.
    pub fn run_once(&mut self, group: &GroupMetadata) -> Result<Ran, WorkerError> {
        self.unpark()?;
        if !self.settle()? || self.suspended {
            return Ok(Ran::Waiting);
        }
        let took = self.process()?;
        let mut ran = if took { Ran::Worked } else { Ran::Idle };
        if matches!(self.phase, Phase::Failed { .. }) {
            return Ok(if self.settle()? { Ran::Worked } else { Ran::Waiting });
        }
        if self.is_commit_due() {
            if self.now() < self.retry_at {
                return Ok(if took { Ran::Worked } else { Ran::Waiting });
            }
            self.commit(group)?;
            ran = Ran::Worked;
        }
        self.report();
        Ok(ran)
    }

    /// How long a caller may wait for records when [`Worker::run_once`] had nothing to do.
    pub fn next_due(&self) -> Duration {
        let now = self.now();
        let commit =
            self.dirty_since.map(|since| (since + self.settings.commit_interval).saturating_sub(now));
        let retry = self.retry_at.saturating_sub(now);
        let busy = self.phase != Phase::Idle || self.parked() > 0;
        let timers = self.settings.commit_interval.max(Duration::from_millis(10));
        let wait = commit.unwrap_or(timers).min(timers).min(self.next_idle());
        if busy && retry > Duration::ZERO { wait.min(retry) } else { wait }
    }

    /// When a task has waited long enough for a silent input.
    fn next_idle(&self) -> Duration {
        let due = self.slots.values().filter_map(|slot| slot.task.idle_until()).min();
        let left = due.map(|due| u64::try_from(due.saturating_sub(self.clock.wall_ms())).unwrap_or(0));
        left.map_or(Duration::MAX, Duration::from_millis)
    }

    /// Commits, then hands tasks back whose partitions go to another member. When the commit does not come about at
    /// once, they are handed back at their last boundary: their records are processed by the next owner.
    pub fn revoke(
        &mut self,
        ids: &[TaskId],
        group: &GroupMetadata,
    ) -> Result<Vec<(TaskId, TaskState)>, WorkerError> {
        if self.settle()? && !self.suspended && ids.iter().any(|id| self.is_dirty(*id)) {
            self.commit(group)?;
        }
        self.lost(ids)
    }

    /// Hands tasks back that belong to another member already, without their uncommitted writes. If any had some,
    /// the transaction is rolled back for all tasks.
    pub fn lost(&mut self, ids: &[TaskId]) -> Result<Vec<(TaskId, TaskState)>, WorkerError> {
        if let Phase::Undecided { tasks, .. } = &mut self.phase {
            tasks.retain(|id| !ids.contains(id));
        } else if ids.iter().any(|id| self.is_dirty(*id)) {
            self.fail("a task with uncommitted writes was lost", false);
            self.settle()?;
        }
        Ok(ids.iter().filter_map(|id| Some((*id, self.take_slot(*id)?.into_state()))).collect())
    }

    /// Hands a task back as it is, at its last boundary and with its buffered records, to be given to another worker
    /// of this process. `None`: it is not here, or not at a boundary now; run on and ask again.
    pub fn remove(&mut self, id: TaskId) -> Option<(Task, Vec<ChangeSource>)> {
        let undecided = matches!(&self.phase, Phase::Undecided { tasks, .. } if tasks.contains(&id));
        let settled =
            self.slots.get(&id).is_some_and(|slot| slot.boundary.is_none() && !slot.task.is_dirty());
        if undecided || !settled {
            return None;
        }
        self.take_slot(id).map(|slot| (slot.task, slot.changes))
    }

    /// Every task's state at its last boundary, without what was not committed. For the end of a worker, after an
    /// error too; a transaction that is open is left to [`TransactionPort::abort`], its time-out or the next owner.
    pub fn into_states(mut self) -> Vec<(TaskId, TaskState)> {
        let slots = std::mem::take(&mut self.slots);
        slots.into_iter().map(|(id, slot)| (id, slot.into_state())).collect()
    }

    /// Commits what there is and ends. As [`Worker::into_states`] when that does not come about.
    pub fn close(mut self, group: &GroupMetadata) -> Result<Vec<(TaskId, TaskState)>, WorkerError> {
        let ids: Vec<TaskId> = self.slots.keys().copied().collect();
        self.revoke(&ids, group)
    }

    fn take_slot(&mut self, id: TaskId) -> Option<Slot> {
        let slot = self.slots.remove(&id)?;
        self.careful.remove(&id);
        let counted = slot.task.metrics();
        self.of_gone = (self.of_gone.0 + counted.put_aside, self.of_gone.1 + counted.late);
        self.routes.retain(|_, owner| *owner != id);
        let routes = &self.routes;
        self.log_ends.retain(|at, _| routes.contains_key(at));
        self.metrics.tasks.set(self.slots.len() as u64);
        Some(slot)
    }

    fn is_dirty(&self, id: TaskId) -> bool {
        self.slots.get(&id).is_some_and(Slot::is_dirty)
    }

    fn parked(&self) -> usize {
        self.slots.values().filter(|slot| slot.is_parked()).count()
    }

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn at(&mut self, step: Step) -> Result<(), WorkerError> {
        Ok(self.hook.at(step)?)
    }

    fn pause(&mut self) {
        self.retry_at = self.now() + self.settings.retry_pause;
    }

    fn port_error(&self, error: PortError) -> WorkerError {
        WorkerError::Port { writer: self.settings.writer.clone(), error }
    }

    /// Brings the gauges up to date.
    fn report(&mut self) {
        let bytes = self.uncommitted_bytes();
        self.share.set(bytes);
        let age = match &self.phase {
            Phase::Idle => Duration::ZERO,
            Phase::Open { since } | Phase::Failed { since, .. } | Phase::Undecided { since, .. } => {
                self.now().saturating_sub(*since)
            }
        };
        self.metrics.uncommitted_bytes.set(bytes as u64);
        self.metrics.transaction_age_ms.set(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        self.metrics.parked_tasks.set(self.parked() as u64);
        self.count_records();
        let mut lag = BTreeMap::new();
        for slot in self.slots.values() {
            let committed = &slot.task.state().meta().inputs;
            for (at, next) in slot.task.offsets() {
                // markers behind the last record are no lag, once nothing is under way
                let offset = if slot.is_dirty() { committed.get(&at).copied().unwrap_or(0) } else { next };
                if let Some(end) = self.log_ends.get(&at) {
                    lag.insert(at, u64::try_from(end - offset).unwrap_or(0));
                }
            }
        }
        self.metrics.set_lag(lag);
    }

    /// What tasks count, those that have left included.
    fn count_records(&self) {
        let (mut left_out, mut late) = self.of_gone;
        for metrics in self.slots.values().map(|slot| slot.task.metrics()) {
            left_out += metrics.put_aside;
            late += metrics.late;
        }
        self.metrics.left_out.set(left_out);
        self.metrics.late.set(late);
    }

    fn uncommitted_bytes(&self) -> usize {
        self.slots.values().map(|slot| slot.task.state().uncommitted_bytes()).sum()
    }
}
