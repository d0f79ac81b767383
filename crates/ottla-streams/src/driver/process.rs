//! A simulated process: what an application does around its workers, without threads.
//!
//! It joins, recovers the tasks that it is given, fetches, lets its workers run, and does what their events ask for.
//! Killing it drops all of that and keeps its disks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ottla_client::{GroupMetadata, TopicPartition};
use ottla_env::rng::Rng;

use super::broken::{Broken, BrokenReader};
use super::crash::{CrashPlan, Point};
use super::disk::{Disk, EngineChoice};
use super::ports::{Faults, Shared, SharedFaults, SimProducer, SimReader};
use crate::port::PortError;
use crate::record::{InputRecord, TaskId};
use crate::recovery::{ChangeSource, Recovery, RecoveryPlan, RecoveryStep};
use crate::state::{StateError, TaskState};
use crate::task::Task;
use crate::topology::{Plan, Topology};
use crate::worker::{Budget, Guarantee, Ran, Worker, WorkerError, WorkerEvent, WorkerSettings};

/// Records that one fetch brings at most, so that transactions are small and many.
const FETCH_RECORDS_MAX: usize = 16;

/// What all processes share.
pub(super) struct World {
    pub(super) cluster: Shared,
    pub(super) topology: Topology,
    pub(super) plan: Plan,
    pub(super) template: WorkerSettings,
    pub(super) uncommitted_bytes_max: usize,
    pub(super) max_task_idle: Option<Duration>,
    pub(super) engines: EngineChoice,
    pub(super) broken: Option<Broken>,
    pub(super) generation: i32,
    pub(super) assignment: BTreeMap<TaskId, String>,
    pub(super) seed: u64,
    pub(super) tune: fn(RecoveryPlan) -> RecoveryPlan,
}

impl World {
    /// The changelogs, or tables, of a task's stores.
    pub(super) fn changes(&self, id: TaskId) -> Vec<ChangeSource> {
        let sub = &self.topology.sub_topologies()[usize::from(id.sub_topology)];
        let at = |topic: &str| TopicPartition::new(topic, id.partition);
        let source =
            |(spec, table): (&crate::state::StoreSpec, &Option<String>)| match (&spec.changelog, table) {
                (Some(topic), _) => ChangeSource::Changelog(at(topic)),
                (None, Some(topic)) => ChangeSource::Input(at(topic)),
                (None, None) => unreachable!("a store has a changelog or is the table of an input"),
            };
        sub.stores.iter().zip(&sub.table_topics).map(source).collect()
    }

    fn recovery(&self, id: TaskId) -> Recovery {
        let inputs = self.plan.inputs_of(&self.topology, id);
        let plan = RecoveryPlan::new(id, &self.template.group_id, inputs, self.changes(id));
        let now = self.cluster.lock().clock.clone();
        Recovery::new((self.tune)(plan), ottla_env::clock::Clock::wall_ms(&*now))
    }

    fn owned(&self, process: &str) -> BTreeSet<TaskId> {
        self.assignment.iter().filter(|(_, owner)| *owner == process).map(|(id, _)| *id).collect()
    }
}

/// What was counted in a process, over all its lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Times that it was killed.
    pub kills: u64,
    /// Stores that were built anew beside the old ones.
    pub rebuilds: u64,
    /// Changelog records that recoveries replayed.
    pub replayed: u64,
    /// Transactions that were rolled back.
    pub rollbacks: u64,
    /// Times that a task waited for its disk.
    pub parked: u64,
    /// Times that a task's stores were opened anew since their disk went on refusing.
    pub reopened: u64,
    /// Tasks that were lost to others while their process lived.
    pub lost: u64,
    /// Tasks that got a worker of their own.
    pub set_apart: u64,
    /// Times that offsets were refused since the group had moved on.
    pub not_owner: u64,
}

struct Recovering {
    state: TaskState,
    recovery: Recovery,
    /// It is built beside the old one, and takes its place when it is ready.
    beside: Option<Disk>,
}

/// A process.
pub(super) struct Process {
    pub(super) name: String,
    pub(super) disks: BTreeMap<TaskId, Disk>,
    /// Set aside: damaged or too old.
    pub(super) aside: Vec<(TaskId, Disk)>,
    /// The first is for all tasks, the others for one that failed too often.
    pub(super) workers: Vec<Worker<SimProducer>>,
    recovering: BTreeMap<TaskId, Recovering>,
    /// Tasks that cannot be recovered, with the reason; not tried again before a restart.
    pub(super) refused: BTreeMap<TaskId, String>,
    positions: BTreeMap<TopicPartition, i64>,
    pub(super) faults: SharedFaults,
    pub(super) crash: CrashPlan,
    pub(super) counts: ProcessCounts,
    /// Why it ended by itself.
    pub(super) failed: Option<String>,
    generation: i32,
    needs_resume: bool,
    /// Rounds before it hears of a new generation.
    pub(super) deaf: u32,
    pub(super) alive: bool,
    pub(super) frozen: bool,
    disks_made: u64,
}

impl Process {
    pub(super) fn new(name: String, broken: Option<Broken>) -> Self {
        let skips_idle_offsets = broken == Some(Broken::NoOffsetsForTimers);
        Self {
            name,
            disks: BTreeMap::new(),
            aside: Vec::new(),
            workers: Vec::new(),
            recovering: BTreeMap::new(),
            refused: BTreeMap::new(),
            positions: BTreeMap::new(),
            faults: Arc::new(Mutex::new(Faults { skips_idle_offsets, ..Faults::default() })),
            crash: CrashPlan::default(),
            counts: ProcessCounts::default(),
            failed: None,
            generation: -1,
            needs_resume: false,
            deaf: 0,
            alive: true,
            frozen: false,
            disks_made: 0,
        }
    }

    fn group(&self, world: &World) -> GroupMetadata {
        GroupMetadata {
            group_id: world.template.group_id.as_str().into(),
            generation_id: self.generation,
            member_id: self.name.as_str().into(),
            group_instance_id: None,
        }
    }

    /// It is gone, as by SIGKILL. Nothing is closed, aborted or told to anybody.
    pub(super) fn kill(&mut self) {
        self.counts.kills += 1;
        self.workers.clear();
        self.recovering.clear();
        self.positions.clear();
        self.disks.values().for_each(Disk::killed);
        self.alive = false;
        self.frozen = false;
        self.needs_resume = false;
        self.deaf = 0;
    }

    /// It is started again, with its disks.
    pub(super) fn start(&mut self) {
        self.crash.revive();
        self.refused.clear();
        self.failed = None;
        self.generation = -1;
        self.alive = true;
    }

    /// Everything that it does by itself: `true` when something moved.
    pub(super) fn step(&mut self, world: &World) -> bool {
        if !self.alive || self.frozen {
            return false;
        }
        let moved = match self.live(world) {
            Ok(moved) => moved,
            Err(Ended::Killed) => true,
            Err(Ended::Failed(reason)) => {
                self.failed = Some(reason);
                self.kill();
                return true;
            }
        };
        if self.crash.is_dead() {
            self.kill();
            return true;
        }
        moved
    }

    fn live(&mut self, world: &World) -> Result<bool, Ended> {
        if self.workers.is_empty() && !self.add_worker(world, "w0")? {
            return Ok(false);
        }
        let mut moved = self.follow(world)?;
        moved |= self.recover(world)?;
        self.fetch(world);
        let group = self.group(world);
        for index in 0..self.workers.len() {
            moved |= self.workers[index].run_once(&group)? == Ran::Worked;
        }
        Ok(self.take_events(world)? || moved)
    }

    fn take_events(&mut self, world: &World) -> Result<bool, Ended> {
        let events: Vec<WorkerEvent> = self.workers.iter_mut().flat_map(Worker::take_events).collect();
        let any = !events.is_empty();
        for event in events {
            self.handle(event, world)?;
        }
        Ok(any)
    }

    /// A worker whose transactional id is free of old transactions. `false`: not yet.
    fn add_worker(&mut self, world: &World, suffix: &str) -> Result<bool, Ended> {
        let mut settings = world.template.clone();
        settings.writer = format!("{}/{suffix}", self.name);
        let id = format!("{}/{}", settings.group_id, settings.writer);
        let id = (settings.guarantee == Guarantee::ExactlyOnce).then_some(id.as_str());
        let port = match SimProducer::take(&world.cluster, &self.faults, id, settings.transaction_timeout) {
            Ok(port) => port,
            Err(PortError::Retriable(_)) => return Ok(false),
            Err(error) => return Err(Ended::Failed(error.to_string())),
        };
        let reader = Box::new(SimReader::new(&world.cluster));
        let clock = world.cluster.lock().clock.clone();
        let mut worker =
            Worker::new(settings, port, reader, clock, &Budget::new(world.uncommitted_bytes_max));
        worker.set_hook(Box::new(self.crash.clone()));
        worker.apply_first = world.broken == Some(Broken::ApplyBeforeCommit);
        self.workers.push(worker);
        Ok(true)
    }

    /// Takes over what the group has decided.
    fn follow(&mut self, world: &World) -> Result<bool, Ended> {
        let owned = world.owned(&self.name);
        self.deaf = self.deaf.saturating_sub(1);
        if self.deaf > 0 {
            return Ok(false);
        }
        if self.generation != world.generation {
            self.generation = world.generation;
            self.needs_resume = true;
            self.recovering.retain(|id, _| owned.contains(id));
            for worker in &mut self.workers {
                worker.suspend("the group was joined anew");
            }
        }
        if self.needs_resume {
            let mut all = true;
            for worker in &mut self.workers {
                all &= worker.resume(&owned)?;
            }
            self.needs_resume = !all;
            self.take_events(world)?; // tasks that were lost are closed before they are opened again
        }
        let mut started = false;
        for id in owned {
            let here = self.workers.iter().any(|worker| worker.task(id).is_some());
            if here || self.recovering.contains_key(&id) || self.refused.contains_key(&id) {
                continue;
            }
            self.begin_recovery(id, None, world)?;
            started = true;
        }
        Ok(started)
    }

    /// Hands tasks over cleanly: they are committed first.
    pub(super) fn revoke(&mut self, ids: &BTreeSet<TaskId>, world: &World) {
        let group = self.group(world);
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            let here: Vec<TaskId> = ids.iter().copied().filter(|id| worker.task(*id).is_some()).collect();
            let outcome = worker.revoke(&here, &group);
            if let Err(WorkerError::Stopped(_)) = outcome {
                self.kill();
                return;
            }
        }
        self.recovering.retain(|id, _| !ids.contains(id));
        let (topology, plan) = (&world.topology, &world.plan);
        for at in ids.iter().flat_map(|id| plan.inputs_of(topology, *id)) {
            self.positions.remove(&at);
        }
    }

    fn new_disk(&mut self, id: TaskId, world: &World) -> Disk {
        self.disks_made += 1;
        let stores = world.topology.sub_topologies()[usize::from(id.sub_topology)].stores.len();
        let name = format!("{}-{id}-{}", self.name, self.disks_made);
        Disk::new(&world.engines, &name, stores, world.seed)
    }

    /// Opens a task's stores, or an empty copy beside them, and begins to bring them forward.
    fn begin_recovery(&mut self, id: TaskId, beside: Option<Disk>, world: &World) -> Result<(), Ended> {
        if beside.is_none() && !self.disks.contains_key(&id) {
            let disk = self.new_disk(id, world);
            self.disks.insert(id, disk);
        }
        let disk = beside.clone().unwrap_or_else(|| self.disks[&id].clone());
        let sub = &world.topology.sub_topologies()[usize::from(id.sub_topology)];
        let names: Vec<&str> = sub.stores.iter().map(|spec| spec.name.as_str()).collect();
        let coin = world.cluster.lock().rng.next_u64();
        let opened = disk
            .open(&names, &self.crash, coin)
            .map_err(StateError::from)
            .and_then(|engine| TaskState::open(engine, &sub.stores, sub.fingerprint));
        match opened {
            Ok(state) => {
                self.recovering.insert(id, Recovering { state, recovery: world.recovery(id), beside });
            }
            Err(StateError::Engine(crate::engine::EngineError::Corrupt { .. }) | StateError::Meta(_))
                if beside.is_none() =>
            {
                self.counts.rebuilds += 1;
                let beside = self.new_disk(id, world);
                self.begin_recovery(id, Some(beside), world)?;
            }
            Err(_) if self.crash.is_dead() => return Err(Ended::Killed),
            Err(error) => {
                self.refused.insert(id, error.to_string());
            }
        }
        Ok(())
    }

    /// One piece of each recovery.
    fn recover(&mut self, world: &World) -> Result<bool, Ended> {
        let mut moved = false;
        let now = ottla_env::clock::Clock::wall_ms(&*world.cluster.lock().clock.clone());
        for id in self.recovering.keys().copied().collect::<Vec<_>>() {
            if self.crash.pass(Point::InRecovery) {
                return Err(Ended::Killed);
            }
            let Some(recovering) = self.recovering.get_mut(&id) else { continue };
            let (inner, changes) = (SimReader::new(&world.cluster), world.changes(id));
            let mut reader = BrokenReader { inner, broken: world.broken, changes };
            match recovering.recovery.step(&mut reader, &mut recovering.state, now) {
                Ok(RecoveryStep::Progress { .. }) => moved = true,
                Ok(RecoveryStep::Wait { .. }) => {}
                Ok(RecoveryStep::RebuildBeside(_)) => {
                    self.counts.rebuilds += 1;
                    self.recovering.remove(&id);
                    let beside = self.new_disk(id, world);
                    self.begin_recovery(id, Some(beside), world)?;
                    moved = true;
                }
                Ok(RecoveryStep::Ready(start)) => {
                    self.counts.replayed += start.replayed;
                    self.run(id, &start.offsets, start.stream_time, world)?;
                    moved = true;
                }
                Err(_) if self.crash.is_dead() => return Err(Ended::Killed),
                Err(error) if error.is_retriable() => {}
                Err(error) => {
                    self.recovering.remove(&id);
                    self.refused.insert(id, error.to_string());
                }
            }
        }
        Ok(moved)
    }

    /// A recovered task goes to the worker.
    fn run(
        &mut self,
        id: TaskId,
        committed: &BTreeMap<TopicPartition, i64>,
        stream_time: i64,
        world: &World,
    ) -> Result<(), Ended> {
        let Some(Recovering { state, beside, .. }) = self.recovering.remove(&id) else { return Ok(()) };
        if let Some(beside) = beside
            && let Some(old) = self.disks.insert(id, beside)
        {
            self.aside.push((id, old));
        }
        let inputs = world.plan.inputs_of(&world.topology, id);
        let mut offsets = committed.clone();
        for at in &inputs {
            let log_start = world.cluster.lock().log(at).map_or(0, super::log::Log::log_start);
            self.positions.insert(at.clone(), *offsets.entry(at.clone()).or_insert(log_start));
        }
        let mut task =
            Task::new(&world.topology, id, state).map_err(|error| Ended::Failed(error.to_string()))?;
        task.limit_inputs(&inputs);
        task.set_idle_max(world.max_task_idle);
        task.resume_at(&offsets, stream_time);
        self.workers[0].add(task, world.changes(id));
        Ok(())
    }

    fn fetch(&mut self, world: &World) {
        let mut cluster = world.cluster.lock();
        for worker in &mut self.workers {
            let paused = worker.paused();
            let inputs: Vec<TopicPartition> = worker.tasks().flat_map(Task::inputs).cloned().collect();
            for at in inputs.iter().filter(|at| !paused.contains(at)) {
                let Some(position) = self.positions.get_mut(at) else { continue };
                let records_max = 1 + cluster.rng.index(FETCH_RECORDS_MAX);
                let Some(log) = cluster.log(at) else { continue };
                let (mut found, mut next) = log.read(*position, usize::MAX);
                if found.len() > records_max {
                    next = found[records_max].0;
                    found.truncate(records_max);
                }
                worker.set_log_end(at, log.last_stable());
                let record =
                    |(offset, _, record)| InputRecord { topic_partition: at.clone(), offset, record };
                worker.push(found.into_iter().map(record).collect());
                worker.fetched_to(at, next);
                *position = next;
            }
        }
    }

    fn handle(&mut self, event: WorkerEvent, world: &World) -> Result<(), Ended> {
        match event {
            WorkerEvent::Lost { .. } => self.counts.lost += 1,
            WorkerEvent::NotOwner { .. } => {
                self.counts.not_owner += 1;
                self.deaf = 0;
                self.needs_resume = true;
            }
            WorkerEvent::Parked { .. } => self.counts.parked += 1,
            WorkerEvent::Unparked { .. } => {}
            WorkerEvent::RolledBack { .. } => self.counts.rollbacks += 1,
            WorkerEvent::SetApart { task, reason, .. } => self.set_apart(task, reason, world)?,
            WorkerEvent::Reopen { task, state, .. } => {
                drop(state);
                self.counts.reopened += 1;
                self.begin_recovery(task, None, world)?;
            }
            WorkerEvent::Damaged { task, state, .. } => {
                drop(state);
                self.counts.rebuilds += 1;
                let beside = self.new_disk(task, world);
                self.begin_recovery(task, Some(beside), world)?;
            }
        }
        Ok(())
    }

    /// A task that failed too often gets a worker of its own; one that has one is given up.
    fn set_apart(&mut self, id: TaskId, reason: String, world: &World) -> Result<(), Ended> {
        let Some(place) = self.workers.iter().position(|worker| worker.task(id).is_some()) else {
            return Ok(());
        };
        if place > 0 {
            self.refused.insert(id, reason);
            self.workers.remove(place);
            return Ok(());
        }
        self.counts.set_apart += 1;
        let Some((task, changes)) = self.workers[0].remove(id) else { return Ok(()) };
        if self.add_worker(world, &format!("w{}", self.workers.len()))?
            && let Some(worker) = self.workers.last_mut()
        {
            worker.add(task, changes);
        }
        Ok(())
    }

    /// It brings that task forward.
    pub(super) fn is_recovering(&self, id: TaskId) -> bool {
        self.recovering.contains_key(&id)
    }

    /// It waits for the cluster: for a recovery, or to be a member again.
    pub(super) fn is_waiting(&self) -> bool {
        !self.recovering.is_empty() || self.needs_resume || self.deaf > 0
    }

    /// Nothing is under way here.
    pub(super) fn is_quiet(&self) -> bool {
        let busy = |task: &Task| task.is_dirty() || task.buffered_bytes() > 0;
        let dirty = |worker: &Worker<SimProducer>| worker.tasks().any(busy);
        !self.alive || self.frozen || (!self.is_waiting() && !self.workers.iter().any(dirty))
    }

    /// Commits now, as far as that is possible.
    pub(super) fn commit(&mut self, world: &World) {
        if !self.alive || self.frozen {
            return;
        }
        let group = self.group(world);
        for index in 0..self.workers.len() {
            match self.workers[index].commit(&group) {
                Ok(_) => {}
                Err(WorkerError::Stopped(_)) => return self.kill(),
                Err(error @ (WorkerError::Fenced { .. } | WorkerError::Port { .. })) => {
                    self.failed = Some(error.to_string());
                    return self.kill();
                }
            }
            if self.crash.is_dead() {
                return self.kill();
            }
        }
    }

    /// Where a task's input stands.
    pub(super) fn position(&self, at: &TopicPartition) -> Option<i64> {
        self.positions.get(at).copied()
    }

    /// A task at work.
    pub(super) fn task(&self, id: TaskId) -> Option<&Task> {
        self.workers.iter().find_map(|worker| worker.task(id))
    }
}

enum Ended {
    Killed,
    Failed(String),
}

impl From<WorkerError> for Ended {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Stopped(_) => Self::Killed,
            error @ (WorkerError::Fenced { .. } | WorkerError::Port { .. }) => {
                Self::Failed(error.to_string())
            }
        }
    }
}
