//! The threads that bring tasks' stores forward, several tasks in turn, without a worker ever waiting for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ottla_client::TopicPartition;
use ottla_env::clock::{Clock, OsClock};
use ottla_env::spawn::{self, Handle, ThreadHandle};
use ottla_env::time;
use tokio::sync::{mpsc, oneshot};

use super::AppError;
use super::ordeal::RestoreOrdeal;
use super::settings::{AppSettings, Reset, Stores};
use super::shared::Shared;
use crate::kafka::KafkaReader;
use crate::open::{EngineKind, OpenError, Place, StateOpener};
use crate::port::{PortError, ReadPort};
use crate::record::TaskId;
use crate::recovery::{ChangeSource, Recovery, RecoveryPlan, RecoveryStep, Start};
use crate::state::TaskState;
use crate::state_dir::{StateDir, TaskDir};
use crate::task::Task;
use crate::topology::{Plan, Topology};

/// Tasks that may wait for a thread.
pub(super) const QUEUE_MAX: usize = 1024;
/// Pause when every task waits for the log.
const WAIT_PAUSE: Duration = Duration::from_millis(20);
/// How often a long restore is told.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Pause before stores that could not be opened are tried again.
const OPEN_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait until stores are closed that a query's snapshot keeps open, and until a disk answers that never has.
const OPEN_PATIENCE: Duration = Duration::from_secs(60);
/// How often such a wait is told.
const OPEN_TOLD_EVERY: Duration = Duration::from_secs(10);
/// A disk that refuses for so long: the stores are opened anew.
const DISK_PATIENCE: Duration = Duration::from_secs(5);

pub(super) enum ToRestore {
    Task(TaskId),
    /// They are not ours any more. Answered when their folders are free.
    Cancel(BTreeSet<TaskId>, oneshot::Sender<()>),
    /// The end.
    Stop,
}

/// A task at its boundary.
pub(super) struct Restored {
    pub(super) task: Box<Task>,
    pub(super) changes: Vec<ChangeSource>,
    pub(super) offsets: BTreeMap<TopicPartition, i64>,
    pub(super) replayed: u64,
}

pub(super) enum FromRestore {
    Ready(TaskId, Restored),
    Failed(TaskId, String),
}

/// What a restore needs to know.
pub(super) struct Context {
    pub(super) topology: Topology,
    pub(super) plan: Plan,
    pub(super) settings: Arc<AppSettings>,
    pub(super) shared: Arc<Shared>,
    pub(super) dir: Arc<StateDir>,
    pub(super) opener: StateOpener,
    pub(super) on_disk: Arc<Mutex<BTreeSet<TaskId>>>,
}

impl Context {
    /// The engine that the settings ask for.
    pub(super) fn opener(settings: &AppSettings) -> StateOpener {
        let kind = match settings.stores {
            Stores::Memory => EngineKind::Memory,
            #[cfg(feature = "rocksdb")]
            Stores::Rocks { wal, block_cache_bytes, memtable_bytes } => {
                use crate::engine::rocks::{RocksSettings, RocksShared};
                let settings =
                    RocksSettings { wal, block_cache_bytes, memtable_bytes, ..RocksSettings::default() };
                EngineKind::Rocks(RocksShared::new(settings))
            }
        };
        StateOpener { spill_bytes: settings.spill_bytes, ..StateOpener::new(kind) }
    }

    fn changes(&self, id: TaskId) -> Vec<ChangeSource> {
        let sub = &self.topology.sub_topologies()[usize::from(id.sub_topology)];
        let at = |topic: &str| TopicPartition::new(topic, id.partition);
        let stores = sub.stores.iter().zip(&sub.table_topics);
        stores
            .map(|(spec, table)| match (&spec.changelog, table) {
                (Some(topic), _) => ChangeSource::Changelog(at(topic)),
                (None, Some(topic)) => ChangeSource::Input(at(topic)),
                (None, None) => unreachable!("a store has a changelog or is the table of an input"),
            })
            .collect()
    }

    fn recovery(&self, id: TaskId) -> Recovery {
        let inputs = self.plan.inputs_of(&self.topology, id);
        let mut plan = RecoveryPlan::new(id, &self.shared.group_id, inputs, self.changes(id));
        plan.on_mismatch = self.settings.on_mismatch;
        Recovery::new(plan, OsClock.wall_ms())
    }

    /// Where an input begins that has no committed offset.
    fn reset(&self, at: &TopicPartition, id: TaskId, reader: &mut KafkaReader) -> Result<i64, PortError> {
        let sub = &self.topology.sub_topologies()[usize::from(id.sub_topology)];
        let topic = at.topic.as_str();
        let is_whole = sub.repartitions.iter().any(|name| name == topic)
            || sub.table_topics.iter().flatten().any(|name| name == topic);
        let bounds = reader.bounds(at)?;
        Ok(match self.settings.reset {
            Reset::Latest if !is_whole => bounds.log_end,
            Reset::Latest | Reset::Earliest => bounds.log_start,
        })
    }
}

/// How far a task's stores are, by their number.
fn positions(state: &TaskState) -> Vec<i64> {
    state.meta().stores.iter().map(|store| store.position).collect()
}

/// A task that is being restored.
struct Active {
    id: TaskId,
    dir: TaskDir,
    state: TaskState,
    recovery: Recovery,
    /// It is built beside the old one, for that reason.
    beside: Option<String>,
    /// Where its stores stood.
    from: Vec<i64>,
    began: Duration,
    told: Duration,
    /// The disk has refused every step since then.
    refused_since: Option<Duration>,
    /// It is ready, and the stores whose place it takes are kept open since then.
    held_since: Option<Duration>,
}

impl Active {
    fn new(id: TaskId, dir: TaskDir, state: TaskState, recovery: Recovery) -> Self {
        let (from, now) = (positions(&state), OsClock.monotonic());
        let (beside, refused_since, held_since) = (None, None, None);
        Self { id, dir, state, recovery, beside, from, began: now, told: now, refused_since, held_since }
    }
}

/// A task whose stores could not be opened yet.
struct Opening {
    id: TaskId,
    since: Duration,
    next: Duration,
    told: Option<Duration>,
    /// They are damaged, and to be set aside first.
    damage: Option<String>,
}

impl Opening {
    fn new(id: TaskId) -> Self {
        let now = OsClock.monotonic();
        Self { id, since: now, next: now, told: None, damage: None }
    }
}

struct Loop {
    context: Arc<Context>,
    runtime: Handle,
    reader: KafkaReader,
    queue: mpsc::Receiver<ToRestore>,
    results: mpsc::Sender<FromRestore>,
    active: VecDeque<Active>,
    opening: Vec<Opening>,
    /// Tasks whose stores were open once: their disk is waited for.
    opened: BTreeSet<TaskId>,
    ordeal: RestoreOrdeal,
}

/// The queues of the threads, and the threads, in the same order.
pub(super) type Restorers = (Vec<mpsc::Sender<ToRestore>>, Vec<ThreadHandle<()>>);

/// Starts all threads, each with a queue of its own.
pub(super) fn start_all(
    context: &Arc<Context>,
    results: &mpsc::Sender<FromRestore>,
) -> Result<Restorers, AppError> {
    let (mut queues, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..context.settings.restore_threads {
        let (queue, commands) = mpsc::channel(QUEUE_MAX);
        let started = start(Arc::clone(context), Handle::current(), commands, results.clone());
        threads.push(started.map_err(AppError::Thread)?);
        queues.push(queue);
    }
    Ok((queues, threads))
}

/// Starts a thread.
fn start(
    context: Arc<Context>,
    runtime: Handle,
    queue: mpsc::Receiver<ToRestore>,
    results: mpsc::Sender<FromRestore>,
) -> std::io::Result<ThreadHandle<()>> {
    spawn::thread("streams-restore", move || {
        let connected = KafkaReader::connect(&runtime, &context.settings.client, 4 << 20);
        match connected {
            Ok(reader) => {
                let (active, opening, opened) = Default::default();
                let ordeal = RestoreOrdeal::from_environment();
                Loop { context, runtime, reader, queue, results, active, opening, opened, ordeal }.run();
            }
            Err(error) => {
                let id = TaskId { sub_topology: 0, partition: 0 };
                let _ = results.blocking_send(FromRestore::Failed(id, error.to_string())); // the application has ended
            }
        }
    })
}

enum Outcome {
    Again,
    Waits,
    Done(Start),
    Beside(String),
    /// The disk goes on refusing: open the stores anew.
    Reopen(String),
    /// They are damaged: set them aside, and begin with empty ones.
    Damaged(String),
}

impl Loop {
    fn run(mut self) {
        let mut idle = 0;
        loop {
            if self.active.is_empty() && self.opening.is_empty() {
                match self.queue.blocking_recv() {
                    Some(ToRestore::Stop) | None => return,
                    Some(command) => self.obey(command),
                }
            }
            loop {
                match self.queue.try_recv() {
                    Ok(ToRestore::Stop) | Err(mpsc::error::TryRecvError::Disconnected) => return,
                    Ok(command) => self.obey(command),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                }
            }
            self.open_due();
            let Some(active) = self.active.pop_front() else {
                if !self.opening.is_empty() {
                    self.runtime.block_on(time::sleep(WAIT_PAUSE));
                }
                continue;
            };
            if self.advance(active) {
                idle = 0;
            } else {
                idle += 1;
                if idle >= self.active.len() {
                    self.runtime.block_on(time::sleep(WAIT_PAUSE));
                    idle = 0;
                }
            }
        }
    }

    fn obey(&mut self, command: ToRestore) {
        match command {
            ToRestore::Task(id) => {
                self.context.shared.set_restoring(id, Some(0));
                self.opening.push(Opening::new(id));
            }
            ToRestore::Stop => self.active.clear(), // the loop ends
            ToRestore::Cancel(ids, done) => {
                self.active.retain(|active| !ids.contains(&active.id));
                self.opening.retain(|opening| !ids.contains(&opening.id));
                ids.iter().for_each(|id| self.context.shared.set_restoring(*id, None));
                let _ = done.send(()); // the member has given up waiting
            }
        }
    }

    fn fail(&self, id: TaskId, reason: String) {
        self.context.shared.set_restoring(id, None);
        let _ = self.results.blocking_send(FromRestore::Failed(id, reason)); // the application has ended
    }

    /// Opens what is due; what cannot be opened yet is tried again later, other tasks meanwhile.
    fn open_due(&mut self) {
        let now = OsClock.monotonic();
        for mut opening in std::mem::take(&mut self.opening) {
            if opening.next > now {
                self.opening.push(opening);
                continue;
            }
            match self.open(&opening) {
                Ok(active) => {
                    self.opened.insert(opening.id);
                    self.active.push_back(active);
                }
                Err(error) if self.may_wait(&error, &opening, now) => {
                    if opening.told.is_none_or(|told| now.saturating_sub(told) >= OPEN_TOLD_EVERY) {
                        opening.told = Some(now);
                        tracing::warn!(task = %opening.id, %error, "the stores cannot be opened yet");
                    }
                    opening.next = now + OPEN_PAUSE;
                    self.opening.push(opening);
                }
                Err(error) => self.fail(opening.id, error.to_string()),
            }
        }
    }

    /// A disk that worked once is waited for: the other tasks run meanwhile.
    fn may_wait(&self, error: &OpenError, opening: &Opening, now: Duration) -> bool {
        let is_soon = now.saturating_sub(opening.since) < OPEN_PATIENCE;
        match error.is_io() {
            true => is_soon || self.opened.contains(&opening.id),
            false => is_soon && error.is_held(),
        }
    }

    fn open(&self, opening: &Opening) -> Result<Active, OpenError> {
        let (id, context) = (opening.id, &self.context);
        let dir = context.dir.task(id)?;
        if let Some(why) = &opening.damage {
            context.opener.set_aside(&dir, why)?;
        }
        let sub = &context.topology.sub_topologies()[usize::from(id.sub_topology)];
        let opened = context.opener.open(&dir, Place::Current, &sub.stores, sub.fingerprint)?;
        if opened.set_aside.is_some() || opening.damage.is_some() {
            context.shared.count_asides(&context.dir);
        }
        context.on_disk.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        let recovery = context.recovery(id);
        Ok(Active::new(id, dir, opened.state, recovery))
    }

    /// One step of one task. `false`: it waits.
    fn advance(&mut self, mut active: Active) -> bool {
        let id = active.id;
        match self.step(&mut active) {
            Ok(Outcome::Again) => self.active.push_back(active),
            Ok(Outcome::Waits) => {
                self.active.push_back(active);
                return false;
            }
            Ok(Outcome::Beside(reason)) => match self.beside(active, reason) {
                Ok(active) => self.active.push_back(active),
                Err(error) => self.fail(id, error.to_string()),
            },
            Ok(Outcome::Reopen(reason)) => {
                tracing::warn!(task = %id, reason, "the stores are opened anew");
                drop(active);
                self.opening.push(Opening::new(id));
            }
            Ok(Outcome::Damaged(why)) => {
                let is_current = active.beside.is_none();
                drop(active);
                let damage = is_current.then_some(why); // a rebuild is a part of the log, and begun anew when opened
                self.opening.push(Opening { damage, ..Opening::new(id) });
            }
            Ok(Outcome::Done(_)) if self.is_swap_held(&mut active) => {
                self.active.push_back(active);
                return false;
            }
            Ok(Outcome::Done(start)) => match self.finish(active, start) {
                Ok(restored) => {
                    self.context.shared.set_restoring(id, None);
                    let _ = self.results.blocking_send(FromRestore::Ready(id, restored)); // the application has ended
                }
                Err(reason) => self.fail(id, reason),
            },
            Err(reason) => self.fail(id, reason),
        }
        true
    }

    fn step(&mut self, active: &mut Active) -> Result<Outcome, String> {
        let step = match active.recovery.step(&mut self.reader, &mut active.state, OsClock.wall_ms()) {
            Ok(step) => {
                active.refused_since = None;
                step
            }
            Err(error) if error.is_io() => {
                let now = OsClock.monotonic();
                let since = *active.refused_since.get_or_insert(now);
                return Ok(match now.saturating_sub(since) >= DISK_PATIENCE {
                    true => Outcome::Reopen(error.to_string()),
                    false => Outcome::Waits,
                });
            }
            Err(error) if error.damage().is_some() => return Ok(Outcome::Damaged(error.to_string())),
            Err(error) if error.is_retriable() => {
                tracing::debug!(task = %active.id, %error, "tried again");
                return Ok(Outcome::Waits);
            }
            Err(error) => return Err(error.to_string()),
        };
        Ok(match step {
            RecoveryStep::Progress { left } => {
                if active.recovery.replayed() > 0 {
                    self.ordeal.replayed();
                }
                self.tell(active, left);
                Outcome::Again
            }
            RecoveryStep::Wait { at, target, last_stable } => {
                tracing::debug!(task = %active.id, %at, target, last_stable, "waits for a transaction to be decided");
                Outcome::Waits
            }
            RecoveryStep::RebuildBeside(reason) => Outcome::Beside(reason.to_string()),
            RecoveryStep::Ready(start) => Outcome::Done(start),
        })
    }

    fn tell(&self, active: &mut Active, left: i64) {
        self.context.shared.set_restoring(active.id, Some(left));
        let now = OsClock.monotonic();
        if now.saturating_sub(active.told) >= PROGRESS_EVERY {
            active.told = now;
            let seconds = now.saturating_sub(active.began).as_secs();
            tracing::info!(task = %active.id, left, seconds, "restoring");
        }
    }

    /// Begins anew in a folder beside.
    fn beside(&self, active: Active, reason: String) -> Result<Active, OpenError> {
        tracing::warn!(task = %active.id, reason, "the state is rebuilt beside the old one");
        let Active { id, dir, state, began, beside, .. } = active;
        drop(state);
        if beside.is_some() {
            dir.drop_rebuild()?; // one that was broken off, and cannot be brought forward itself by now
        }
        let sub = &self.context.topology.sub_topologies()[usize::from(id.sub_topology)];
        let opened = self.context.opener.open(&dir, Place::Rebuild, &sub.stores, sub.fingerprint)?;
        let recovery = self.context.recovery(id);
        Ok(Active { beside: Some(reason), began, ..Active::new(id, dir, opened.state, recovery) })
    }

    /// A snapshot that a query holds of the old stores keeps the new ones from taking their place, for a while.
    fn is_swap_held(&self, active: &mut Active) -> bool {
        if active.beside.is_none() || !self.context.opener.is_open(&active.dir.current()) {
            return false;
        }
        let now = OsClock.monotonic();
        let since = *active.held_since.get_or_insert_with(|| {
            tracing::warn!(task = %active.id, "rebuilt stores wait until queries drop their snapshots of the old ones");
            now
        });
        now.saturating_sub(since) < OPEN_PATIENCE
    }

    fn finish(&mut self, active: Active, start: Start) -> Result<Restored, String> {
        let Active { id, dir, mut state, beside, from, began, .. } = active;
        let context = Arc::clone(&self.context);
        if let Some(reason) = beside
            && !matches!(context.opener.kind, EngineKind::Memory)
        {
            drop(state);
            context.opener.swap(&dir, &reason).map_err(|error| error.to_string())?;
            context.shared.count_asides(&context.dir);
            let sub = &context.topology.sub_topologies()[usize::from(id.sub_topology)];
            let opened = context.opener.open(&dir, Place::Current, &sub.stores, sub.fingerprint);
            state = opened.map_err(|error| error.to_string())?.state;
        }
        let mut offsets = start.offsets.clone();
        let inputs = context.plan.inputs_of(&context.topology, id);
        for at in &inputs {
            if !offsets.contains_key(at) {
                let offset = self.first_offset(at, id)?;
                offsets.insert(at.clone(), offset);
            }
        }
        let to = positions(&state);
        let mut task = Task::new(&context.topology, id, state).map_err(|error| error.to_string())?;
        task.limit_inputs(&inputs);
        task.set_limits(context.settings.buffer_bytes_max, context.settings.buffer_bytes_max);
        task.set_idle_max(context.settings.max_task_idle);
        task.resume_at(&offsets, start.stream_time);
        let milliseconds = OsClock.monotonic().saturating_sub(began).as_millis();
        // told before the task can run, so that whoever listens has it before its first commit
        tracing::info!(task = %id, replayed = start.replayed, ?from, ?to, milliseconds, "restored");
        let changes = context.changes(id);
        Ok(Restored { task: Box::new(task), changes, offsets, replayed: start.replayed })
    }

    fn first_offset(&mut self, at: &TopicPartition, id: TaskId) -> Result<i64, String> {
        let deadline = OsClock.monotonic() + self.context.settings.client.api_timeout;
        loop {
            match self.context.reset(at, id, &mut self.reader) {
                Ok(offset) => return Ok(offset),
                Err(PortError::Retriable(_)) if OsClock.monotonic() < deadline => {
                    self.runtime.block_on(time::sleep(WAIT_PAUSE));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}
