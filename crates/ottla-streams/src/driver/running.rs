//! A driver at work: the world, its processes, and what moves them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ottla_client::TopicPartition;
use ottla_client::partitioner::partition_for_key;
use ottla_env::clock::Clock;
use ottla_env::rng::{Rng, SeededRng, shuffle};

use super::check;
use super::cluster::{Cluster, Outcome};
use super::crash::Point;
use super::ports::Shared;
use super::process::{Process, ProcessCounts, World};
use super::settings::Setup;
use super::{DriverError, Found};
use crate::engine::StoreId;
use crate::record::{RawRecord, TaskId};
use crate::state::Committed;
use crate::topology::InternalKind;
use crate::worker::{Worker, WorkerMetrics};

/// Rounds after which work that never ends is an error.
const ROUNDS_MAX: u32 = 20_000;

/// Rounds that a process goes on after it stood still, before it hears from the group.
const DEAF_ROUNDS: u32 = 20;

/// The longest step of time while nothing moves.
const STEP_MS_MAX: u64 = 200;

pub(super) struct Running {
    pub(super) world: World,
    pub(super) processes: Vec<Process>,
    rng: SeededRng,
    /// How far each partition was told.
    told: BTreeMap<(String, i32), i64>,
    /// Processes that are killed or fail are started again in the next round.
    pub(super) restarts: bool,
    pub(super) failures: Vec<String>,
}

impl Running {
    pub(super) fn start(setup: &Setup) -> Result<Self, DriverError> {
        let mut cluster = Cluster::new(setup.seed);
        cluster.marker_delay = setup.marker_delay;
        cluster.tells_horizon = setup.tells_horizon;
        let topology = setup.topology.clone();
        let of = |topic: &str| setup.partitions.get(topic).copied().unwrap_or(1);
        let external: BTreeMap<String, i32> =
            topology.external_inputs().into_iter().map(|topic| (topic.to_owned(), of(topic))).collect();
        let plan = topology.plan(&external)?;
        let largest = external.values().copied().max().unwrap_or(1);
        for (topic, count) in external.iter().chain(&setup.partitions) {
            cluster.create(topic, *count);
        }
        for internal in &plan.internal {
            cluster.create(&internal.topic.name, internal.partitions);
        }
        for topic in topology.sub_topologies().iter().flat_map(|sub| &sub.outputs) {
            cluster.create(topic, largest);
        }
        let policies = topology.policies();
        for policy in [&policies.on_decode_error, &policies.on_process_error, &policies.on_produce_error] {
            if let crate::task::Policy::DeadLetter(topic) = policy {
                cluster.create(topic, 1);
            }
        }
        let names: Vec<String> = (0..setup.processes).map(|number| format!("p{number}")).collect();
        let assignment =
            plan.tasks.iter().enumerate().map(|(at, id)| (*id, names[at % names.len()].clone())).collect();
        let generation = cluster.regroup(names.iter().cloned().collect());
        let world = World {
            cluster: Shared::new(cluster),
            topology,
            plan,
            template: setup.template.clone(),
            uncommitted_bytes_max: setup.uncommitted_bytes_max,
            max_task_idle: setup.max_task_idle,
            engines: setup.engines.clone(),
            broken: setup.broken,
            generation,
            assignment,
            seed: setup.seed,
            tune: setup.tune,
        };
        let processes = names.into_iter().map(|name| Process::new(name, setup.broken)).collect();
        let rng = SeededRng::new(setup.seed ^ 0x5eed);
        let (told, failures) = (BTreeMap::new(), Vec::new());
        let mut running = Self { world, processes, rng, told, restarts: true, failures };
        setup.armed.iter().for_each(|(point, after)| running.arm(*point, *after));
        setup.lost_commits.iter().for_each(|outcome| running.lose_commit(*outcome));
        Ok(running)
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.world.cluster.lock().clock.wall_ms()
    }

    pub(super) fn append(
        &mut self,
        topic: &str,
        partition: Option<i32>,
        record: RawRecord,
    ) -> Result<(), DriverError> {
        let mut cluster = self.world.cluster.lock();
        let unknown = || DriverError::UnknownTopic(topic.to_owned());
        let count = cluster.partition_count(topic).ok_or_else(unknown)?;
        let by_key = || record.key.as_ref().map_or(0, |key| partition_for_key(key, count));
        let at = TopicPartition::new(topic, partition.unwrap_or_else(by_key));
        cluster.produce(None, &at, record).map(|_| ()).map_err(|_| unknown())
    }

    /// Every process once, in any order.
    pub(super) fn round(&mut self) -> bool {
        let mut order: Vec<usize> = (0..self.processes.len()).collect();
        shuffle(&mut self.rng, &mut order);
        let mut moved = false;
        for index in order {
            let process = &mut self.processes[index];
            if !process.alive && self.restarts {
                process.start();
                moved = true;
            }
            moved |= process.step(&self.world);
            if let Some(reason) = process.failed.take() {
                self.failures.push(format!("{}: {reason}", process.name));
            }
        }
        self.world.cluster.lock().tick();
        moved
    }

    fn pass(&mut self, by: Duration) {
        let mut cluster = self.world.cluster.lock();
        cluster.clock.advance(by);
        cluster.tick();
    }

    pub(super) fn run(&mut self) -> Result<(), DriverError> {
        let mut step_ms = 1;
        for _ in 0..ROUNDS_MAX {
            if self.is_quiet() {
                return Ok(());
            }
            if self.round() {
                step_ms = 1;
                continue;
            }
            if self.rests() {
                return Ok(());
            }
            self.pass(Duration::from_millis(step_ms));
            step_ms = (step_ms * 2).min(STEP_MS_MAX);
        }
        Err(DriverError::Restless { rounds: ROUNDS_MAX, what: self.what_moves() })
    }

    /// Whether nothing is under way. When only timers keep it awake, all commit at the same moment.
    fn rests(&mut self) -> bool {
        if self.is_quiet() {
            return true;
        }
        let waits = |process: &Process| process.alive && !process.frozen && process.is_waiting();
        if self.behind().is_some() || self.processes.iter().any(waits) {
            return false;
        }
        let delay = self.world.cluster.lock().marker_delay;
        // the second time nothing of an earlier transaction is in the way
        (0..2).any(|_| {
            self.processes.iter_mut().for_each(|process| process.commit(&self.world));
            self.pass(delay);
            self.is_quiet()
        })
    }

    pub(super) fn advance(&mut self, by: Duration) {
        let step = Duration::from_millis(20);
        let mut left = by;
        while !left.is_zero() {
            self.round();
            self.pass(left.min(step));
            left = left.saturating_sub(step);
        }
        self.round();
    }

    /// All input is processed and committed, as far as its owners live.
    fn is_quiet(&self) -> bool {
        self.processes.iter().all(|process| process.is_quiet() && (process.alive || !self.restarts))
            && self.world.cluster.lock().is_settled()
            && self.behind().is_none()
    }

    /// An input that its owner has not processed.
    fn behind(&self) -> Option<TopicPartition> {
        for (id, owner) in &self.world.assignment {
            let Some(process) = self.owner(owner) else { continue };
            if !process.alive || process.frozen || process.refused.contains_key(id) {
                continue;
            }
            for at in self.world.plan.inputs_of(&self.world.topology, *id) {
                let end = self.world.cluster.lock().log(&at).map_or(0, super::log::Log::last_stable);
                if process.position(&at).is_none_or(|position| position < end) {
                    return Some(at);
                }
            }
        }
        None
    }

    /// The process of a name; if there are two, one that lives.
    fn owner(&self, name: &str) -> Option<&Process> {
        let mut named = self.processes.iter().filter(|process| process.name == name);
        let first = named.next()?;
        if first.alive { Some(first) } else { named.find(|process| process.alive).or(Some(first)) }
    }

    fn what_moves(&self) -> String {
        let busy: Vec<&str> = self
            .processes
            .iter()
            .filter(|process| !process.is_quiet())
            .map(|process| process.name.as_str())
            .collect();
        let behind = self.behind();
        let open = self.world.cluster.lock().open_transactions();
        let last = self.failures.last();
        format!("busy {busy:?}, behind at {behind:?}, open transactions {open:?}, last failure: {last:?}")
    }

    pub(super) fn read(&mut self, topic: &str) -> Result<Vec<Found>, DriverError> {
        let found = self.read_all(topic)?;
        let told = &mut self.told;
        let new = |found: &Found| {
            let next = told.entry((topic.to_owned(), found.partition)).or_insert(0);
            let is_new = found.offset >= *next;
            *next = (*next).max(found.offset + 1);
            is_new
        };
        Ok(found.into_iter().filter(new).collect())
    }

    pub(super) fn read_all(&self, topic: &str) -> Result<Vec<Found>, DriverError> {
        if self.world.cluster.lock().partition_count(topic).is_none() {
            return Err(DriverError::UnknownTopic(topic.to_owned()));
        }
        let found = check::records(&self.world, topic).into_iter();
        Ok(found.map(|(partition, offset, record)| Found { partition, offset, record }).collect())
    }

    /// The committed boundary of each task of a store's sub-topology, and the store's number in it.
    pub(super) fn boundaries(&self, name: &str) -> Result<(StoreId, Vec<Arc<Committed>>), DriverError> {
        let unknown = || DriverError::UnknownStore(name.to_owned());
        let (sub, store) = self.world.topology.find_store(name).ok_or_else(unknown)?;
        let mut all = Vec::new();
        for (id, owner) in self.world.assignment.iter().filter(|(id, _)| id.sub_topology == sub) {
            let Some(process) = self.owner(owner) else { continue };
            let refuse = |reason: String| DriverError::Refused {
                task: id.to_string(),
                process: process.name.clone(),
                reason,
            };
            if let Some(reason) = process.refused.get(id) {
                return Err(refuse(reason.clone()));
            }
            all.extend(check::committed(&self.world, process, *id).map_err(refuse)?);
        }
        Ok((store, all))
    }

    pub(super) fn violations(&self) -> Vec<String> {
        check::violations(&self.world, &self.processes)
    }

    /// Any one process, chosen by chance; it may not come there.
    pub(super) fn arm(&mut self, point: Point, after: u64) {
        let index = self.rng.index(self.processes.len());
        self.processes[index].crash.arm(point, after);
    }

    pub(super) fn lose_commit(&mut self, outcome: Outcome) {
        let index = self.rng.index(self.processes.len());
        let faults = &self.processes[index].faults;
        faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner).commits.push_back(outcome);
    }

    /// A new generation with these owners. Who lives and hears of it commits first; `clean` = all do.
    pub(super) fn assign(&mut self, assignment: BTreeMap<TaskId, String>, clean: bool) {
        if clean {
            for process in &mut self.processes {
                let leaving: BTreeSet<TaskId> = self
                    .world
                    .assignment
                    .iter()
                    .filter(|(id, owner)| **owner == process.name && assignment.get(id) != Some(owner))
                    .map(|(id, _)| *id)
                    .collect();
                if process.alive && !process.frozen {
                    process.revoke(&leaving, &self.world);
                }
            }
        }
        let members = assignment.values().cloned().collect();
        self.world.generation = self.world.cluster.lock().regroup(members);
        self.world.assignment = assignment;
    }

    /// Deals all tasks to those that live, by chance.
    fn dealt(&mut self) -> Option<BTreeMap<TaskId, String>> {
        let living: Vec<String> = self
            .processes
            .iter()
            .filter(|process| process.alive && !process.frozen)
            .map(|process| process.name.clone())
            .collect();
        if living.is_empty() {
            return None;
        }
        let first = self.rng.index(living.len());
        let mut tasks = self.world.plan.tasks.clone();
        shuffle(&mut self.rng, &mut tasks);
        Some(tasks.into_iter().zip(living.iter().cycle().skip(first).cloned()).collect())
    }

    pub(super) fn rebalance(&mut self) {
        if let Some(assignment) = self.dealt() {
            self.assign(assignment, true);
        }
    }

    pub(super) fn kill(&mut self, index: usize, power: bool) {
        if let Some(process) = self.processes.get_mut(index) {
            if process.alive {
                process.kill();
            }
            if power {
                let batches = self.rng.index(8);
                process.disks.values().for_each(|disk| disk.power_cut(batches));
            }
        }
    }

    pub(super) fn freeze(&mut self, index: usize) {
        let Some(process) = self.processes.get_mut(index).filter(|process| process.alive) else { return };
        process.frozen = true;
        if let Some(assignment) = self.dealt() {
            self.assign(assignment, true);
        }
    }

    pub(super) fn thaw(&mut self, index: usize) {
        if let Some(process) = self.processes.get_mut(index) {
            process.frozen = false;
            process.deaf = DEAF_ROUNDS; // it does not know yet what the group did meanwhile
        }
    }

    pub(super) fn counts(&self) -> Vec<ProcessCounts> {
        self.processes.iter().map(|process| process.counts.clone()).collect()
    }

    pub(super) fn refused(&self) -> Vec<String> {
        let of = |process: &Process| {
            let refused = process.refused.iter();
            refused.map(|(id, reason)| format!("{}, task {id}: {reason}", process.name)).collect::<Vec<_>>()
        };
        self.processes.iter().flat_map(of).collect()
    }

    pub(super) fn metrics(&self, index: usize) -> Option<Arc<WorkerMetrics>> {
        self.processes.get(index)?.workers.first().map(Worker::metrics)
    }

    /// Whether a topic is the changelog of a store.
    pub(super) fn changelogs(&self) -> Vec<String> {
        let topics = self.world.topology.internal_topics().iter();
        let logs = topics.filter(|topic| matches!(topic.kind, InternalKind::Changelog { .. }));
        logs.map(|topic| topic.name.clone()).collect()
    }
}
