//! The process in its group: fetches inputs, hands them to workers, and hands tasks over when the group decides so.
//!
//! One task of the runtime. The process is the member, whatever its number of workers; heartbeats are the client's
//! and never wait for processing. A task's partitions are read only after its stores stand at their boundary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ottla_client::{
    Admin, Assignor, Callback, Consumer, ConsumerError, ConsumerRecord, ConsumerSettings, CustomAssignor,
    GroupProtocol, IsolationLevel, LostReason, OffsetReset, Rebalance, RebalanceListener, Text,
    TopicPartition,
};
use ottla_env::spawn::{TaskHandle, ThreadHandle};
use ottla_env::time::{self, Instant};
use tokio::sync::{mpsc, oneshot, watch};

use super::assignor::TaskAssignor;
use super::restore::{FromRestore, Restored, ToRestore};
use super::settings::AppSettings;
use super::shared::Shared;
use super::thread::{Fetched, FromWorker, Spawn, ToWorker, WorkerHandle};
use super::{AppState, restore};
use crate::record::{InputRecord, RawRecord, TaskId};
use crate::state_dir::StateDir;
use crate::topology::{Plan, Topology};
use crate::worker::{Budget, Guarantee, WorkerMetrics};

/// Longest wait for records; between two waits the rest is done.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// The same while something else is expected.
const BUSY_WAIT: Duration = Duration::from_millis(5);
/// Pause before a task that was given up is restored again.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);
/// Records of one poll.
const POLL_RECORDS: usize = 5_000;

/// What the member's loop and its listener both use.
pub(super) struct Hands {
    pub(super) topology: Topology,
    pub(super) plan: Plan,
    pub(super) shared: Arc<Shared>,
    pub(super) restores: Vec<mpsc::Sender<ToRestore>>,
    pub(super) held: Mutex<Held>,
    /// Why the application cannot go on, as the listener found out.
    pub(super) fault: Mutex<Option<String>>,
}

#[derive(Default)]
pub(super) struct Held {
    /// Partitions of the assignment.
    owned: BTreeSet<TopicPartition>,
    /// Tasks that run, by worker.
    placed: BTreeMap<TaskId, usize>,
    restoring: BTreeSet<TaskId>,
    queues: Vec<mpsc::Sender<ToWorker>>,
    pub(super) metrics: Vec<Arc<WorkerMetrics>>,
}

impl Held {
    pub(super) fn new(metrics: Vec<Arc<WorkerMetrics>>) -> Self {
        Self { metrics, ..Self::default() }
    }
}

impl Hands {
    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tasks of which every partition is ours.
    fn entitled(&self, owned: &BTreeSet<TopicPartition>) -> BTreeSet<TaskId> {
        let whole =
            |id: &&TaskId| self.plan.inputs_of(&self.topology, **id).iter().all(|at| owned.contains(at));
        self.plan.tasks.iter().filter(whole).copied().collect()
    }

    /// An input has more partitions than the plan knows: nobody would read them.
    fn check_known(&self, partitions: &[TopicPartition]) {
        let known = |at: &TopicPartition| self.plan.partitions.get(at.topic.as_str()).copied().unwrap_or(0);
        let Some(at) = partitions.iter().find(|at| at.partition >= known(at)) else { return };
        let fault = format!(
            "topic `{}` has got more partitions: partition {} is there, and the application was started with {}. Start it \
             again; if it refuses, move to another application id, since keys have moved to other partitions",
            at.topic,
            at.partition,
            known(at)
        );
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    fn take_fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn restorer(&self, id: TaskId) -> &mpsc::Sender<ToRestore> {
        let index = usize::try_from(id.partition).unwrap_or(0) + usize::from(id.sub_topology);
        &self.restores[index % self.restores.len()]
    }

    fn own(&self, partitions: &[TopicPartition]) {
        let owned = {
            let mut held = self.held();
            held.owned.extend(partitions.iter().cloned());
            held.owned.clone()
        };
        self.shared.set_owned(self.entitled(&owned));
    }

    /// Hands over every task that has one of the partitions; returns when that is done.
    async fn release(&self, partitions: &[TopicPartition], lost: bool) {
        let (ids, waits, restoring) = {
            let mut held = self.held();
            held.owned.retain(|at| !partitions.contains(at));
            let stay = self.entitled(&held.owned);
            let ids: BTreeMap<TaskId, usize> = held
                .placed
                .iter()
                .filter(|(id, _)| !stay.contains(id))
                .map(|(id, worker)| (*id, *worker))
                .collect();
            let restoring: BTreeSet<TaskId> = held.restoring.difference(&stay).copied().collect();
            held.placed.retain(|id, _| stay.contains(id));
            held.restoring.retain(|id| stay.contains(id));
            (ids, held.queues.clone(), restoring)
        };
        let mut by_worker: BTreeMap<usize, Vec<TaskId>> = BTreeMap::new();
        ids.into_iter().for_each(|(id, worker)| by_worker.entry(worker).or_default().push(id));
        let mut answers = Vec::new();
        for (worker, ids) in by_worker {
            let (done, answer) = oneshot::channel();
            // a worker that has ended has told why
            if waits[worker].send(ToWorker::Release { ids, lost, done }).await.is_ok() {
                answers.push(answer);
            }
        }
        for queue in if restoring.is_empty() { &[][..] } else { &self.restores[..] } {
            let (done, answer) = oneshot::channel();
            if queue.send(ToRestore::Cancel(restoring.clone(), done)).await.is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            let _ = answer.await; // whoever has ended has nothing of ours any more
        }
        let owned = self.held().owned.clone();
        self.shared.set_owned(self.entitled(&owned));
    }
}

/// Told inside of `poll`.
struct Listener(Arc<Hands>);

impl RebalanceListener for Listener {
    fn assigned<'a>(
        &'a mut self,
        mut rebalance: Rebalance<'a>,
        partitions: &'a [TopicPartition],
    ) -> Callback<'a> {
        Box::pin(async move {
            tracing::info!(count = partitions.len(), "partitions assigned");
            // nothing is read before the task's stores stand at their boundary; that says where it begins
            let mut hold = rebalance.pause(partitions);
            for at in partitions {
                hold = hold.and_then(|()| rebalance.seek(at, 0));
            }
            if let Err(error) = hold {
                tracing::error!(%error, "assigned partitions cannot be held back");
            }
            if let Some(metadata) = rebalance.group_metadata() {
                self.0.shared.set_metadata(metadata);
            }
            self.0.check_known(partitions);
            self.0.own(partitions);
        })
    }

    fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        Box::pin(async move {
            tracing::info!(count = partitions.len(), "partitions revoked");
            if let Some(metadata) = rebalance.group_metadata() {
                self.0.shared.set_metadata(metadata);
            }
            self.0.release(partitions, false).await;
        })
    }

    fn lost<'a>(
        &'a mut self,
        _rebalance: Rebalance<'a>,
        partitions: &'a [TopicPartition],
        reason: LostReason,
    ) -> Callback<'a> {
        Box::pin(async move {
            tracing::warn!(count = partitions.len(), ?reason, "partitions lost");
            self.0.release(partitions, true).await;
        })
    }
}

/// What the application tells the member.
pub(super) enum ToMember {
    /// End in order; with `true` leave the group too, so that others take over at once.
    Stop(bool),
}

/// The loop.
pub(super) struct Member {
    pub(super) settings: Arc<AppSettings>,
    pub(super) hands: Arc<Hands>,
    pub(super) dir: Arc<StateDir>,
    pub(super) admin: Admin,
    pub(super) consumer: Consumer,
    pub(super) workers: Vec<WorkerHandle>,
    pub(super) restorers: Vec<ThreadHandle<()>>,
    pub(super) budget: Arc<Budget>,
    pub(super) restored: mpsc::Receiver<FromRestore>,
    pub(super) told: mpsc::Receiver<FromWorker>,
    pub(super) tell: mpsc::Sender<FromWorker>,
    pub(super) commands: mpsc::Receiver<ToMember>,
    pub(super) state: watch::Sender<AppState>,
    /// Tasks that are restored again not before then.
    pub(super) again: BTreeMap<TaskId, Instant>,
    /// Tasks with a worker of their own; at most one each.
    pub(super) apart: BTreeMap<TaskId, usize>,
    pub(super) next_purge: Instant,
    pub(super) purging: Option<TaskHandle<()>>,
    pub(super) group_instance_id: Option<String>,
}

/// Settings of the member.
pub(super) fn consumer_settings(
    settings: &AppSettings,
    topology: &Topology,
    group_instance_id: Option<&str>,
    on_disk: &Arc<Mutex<BTreeSet<TaskId>>>,
) -> ConsumerSettings {
    let inputs = topology.sub_topologies().iter().map(|sub| sub.inputs.clone()).collect();
    let assignor = TaskAssignor::new(inputs, Arc::clone(on_disk));
    let mut consumer = ConsumerSettings::new(settings.client.clone())
        .group_id(topology.name())
        .isolation(IsolationLevel::ReadCommitted)
        .offset_reset(OffsetReset::None)
        .assignors(vec![Assignor::Custom(CustomAssignor::new(assignor))])
        .session_timeout(settings.session_timeout)
        .heartbeat_interval(settings.heartbeat_interval)
        .max_poll_interval(settings.max_poll_interval)
        .group_protocol(settings.group_protocol)
        .max_poll_records(POLL_RECORDS);
    if settings.group_protocol == GroupProtocol::Consumer {
        // the broker's own strategy that gives a task's partitions to one member
        consumer.group_remote_assignor = Some("range".into());
    }
    match group_instance_id {
        Some(id) => consumer.group_instance_id(id),
        None => consumer,
    }
}

impl Member {
    /// Runs until it is stopped or fails.
    pub(super) async fn run(mut self) {
        self.hands.held().queues = self.workers.iter().map(|worker| worker.queue.clone()).collect();
        self.consumer.set_listener(Listener(Arc::clone(&self.hands)));
        let end = self.live().await;
        let (leave, failure) = match end {
            Ok(leave) => (leave, None),
            Err(reason) => (false, Some(reason)),
        };
        if let Some(reason) = &failure {
            tracing::error!(reason, "the application ends");
        }
        let state = self.state.clone();
        self.close(leave).await;
        state.send_replace(match failure {
            Some(reason) => AppState::Failed(reason),
            None => AppState::Stopped,
        });
    }

    async fn live(&mut self) -> Result<bool, String> {
        let topics: BTreeSet<&str> = self.hands.plan.partitions.keys().map(String::as_str).collect();
        let topics: Vec<&str> = topics.into_iter().collect();
        self.consumer.subscribe(&topics).await.map_err(|error| error.to_string())?;
        let mut paused = BTreeSet::new();
        loop {
            match self.commands.try_recv() {
                Ok(ToMember::Stop(leave)) => return Ok(leave),
                Err(mpsc::error::TryRecvError::Disconnected) => return Ok(false),
                Err(mpsc::error::TryRecvError::Empty) => {}
            }
            let polled = self.consumer.poll(self.wait(&paused)).await;
            if let Some(metadata) = self.consumer.group_metadata() {
                self.hands.shared.set_metadata(metadata);
            }
            if let Some(fault) = self.hands.take_fault() {
                return Err(fault);
            }
            match polled {
                Ok(records) => self.dispatch(records).await,
                Err(error) => self.fetch_failed(error).await?,
            }
            while let Ok(event) = self.told.try_recv() {
                self.follow_worker(event).await?;
            }
            while let Ok(event) = self.restored.try_recv() {
                self.follow_restore(event).await?;
            }
            self.begin_restores().await;
            self.hold_back(&mut paused);
            self.purge();
            self.show();
        }
    }

    fn wait(&self, paused: &BTreeSet<TopicPartition>) -> Duration {
        let held = self.hands.held();
        let busy = !held.restoring.is_empty()
            || !paused.is_empty()
            || held.placed.is_empty()
            || !self.again.is_empty();
        if busy { BUSY_WAIT } else { POLL_WAIT }
    }

    /// A position that is gone is a task's matter: it commits what it has and is recovered again, which names what is
    /// wrong. Nothing is passed over.
    async fn fetch_failed(&mut self, error: ConsumerError) -> Result<(), String> {
        match error {
            ConsumerError::Cluster(ref cluster) if cluster.is_retriable() => Ok(()),
            ConsumerError::Refused { code, .. } if code.is_retriable() => Ok(()),
            ConsumerError::OutOfRange { ref topic_partition, .. }
            | ConsumerError::Truncated { ref topic_partition, .. } => {
                tracing::warn!(%error, "the position is not in the log any more");
                let task = self.task_of(topic_partition).ok_or_else(|| error.to_string())?;
                let queue = {
                    let held = self.hands.held();
                    held.placed.get(&task).map(|worker| held.queues[*worker].clone())
                };
                if let Some(queue) = queue {
                    let (done, answer) = oneshot::channel();
                    let ids = vec![task];
                    if queue.send(ToWorker::Release { ids, lost: false, done }).await.is_ok() {
                        let _ = answer.await; // it has ended, and told why
                    }
                }
                self.restore_again(task)
            }
            error => Err(error.to_string()),
        }
    }

    fn task_of(&self, at: &TopicPartition) -> Option<TaskId> {
        let sub = self
            .hands
            .topology
            .sub_topologies()
            .iter()
            .find(|sub| sub.inputs.iter().any(|topic| at.topic == topic.as_str()))?;
        Some(TaskId { sub_topology: sub.id, partition: at.partition })
    }

    async fn dispatch(&mut self, records: Vec<ConsumerRecord>) {
        let (placed, queues) = {
            let held = self.hands.held();
            (held.placed.clone(), held.queues.clone())
        };
        let mut fetched: BTreeMap<usize, Fetched> = BTreeMap::new();
        let mut last: Option<(TopicPartition, Option<usize>)> = None;
        for record in records {
            let worker = match &last {
                Some((at, worker)) if *at == record.topic_partition => *worker,
                _ => {
                    let worker =
                        self.task_of(&record.topic_partition).and_then(|id| placed.get(&id)).copied();
                    last = Some((record.topic_partition.clone(), worker));
                    worker
                }
            };
            // of a task that is not placed nothing is fetched, but for what was under way when it left
            if let Some(worker) = worker {
                fetched.entry(worker).or_default().records.push(input(record));
            }
        }
        for (id, worker) in &placed {
            for at in self.hands.plan.inputs_of(&self.hands.topology, *id) {
                let (Some(position), Some(end)) =
                    (self.consumer.position(&at), self.consumer.readable_end(&at))
                else {
                    continue;
                };
                fetched.entry(*worker).or_default().reached.push((at, position, end));
            }
        }
        for (worker, fetched) in fetched {
            if queues[worker].send(ToWorker::Records(fetched)).await.is_err() {
                tracing::debug!(worker, "a worker has ended");
            }
        }
    }

    async fn begin_restores(&mut self) {
        let now = time::now();
        self.again.retain(|_, at| *at > now);
        let due: Vec<TaskId> = {
            let mut held = self.hands.held();
            let entitled = self.hands.entitled(&held.owned);
            let due = entitled.into_iter().filter(|id| {
                !held.placed.contains_key(id) && !held.restoring.contains(id) && !self.again.contains_key(id)
            });
            let due: Vec<TaskId> = due.collect();
            held.restoring.extend(&due);
            due
        };
        for id in due {
            if self.hands.restorer(id).send(ToRestore::Task(id)).await.is_err() {
                tracing::error!(task = %id, "the restore thread has ended");
            }
        }
    }

    async fn follow_restore(&mut self, event: FromRestore) -> Result<(), String> {
        match event {
            FromRestore::Failed(id, reason) => Err(format!("task {id} cannot be recovered: {reason}")),
            FromRestore::Ready(id, restored) => {
                let (worker, queue) = {
                    let mut held = self.hands.held();
                    if !held.restoring.remove(&id) {
                        return Ok(()); // it was taken from us meanwhile
                    }
                    let load = |worker: &usize| held.placed.values().filter(|of| *of == worker).count();
                    let fewest = || (0..self.settings.workers).min_by_key(load).unwrap_or(0);
                    let worker = self.apart.get(&id).copied().unwrap_or_else(fewest);
                    held.placed.insert(id, worker);
                    (worker, held.queues[worker].clone())
                };
                self.place(id, restored, worker, queue).await
            }
        }
    }

    async fn place(
        &mut self,
        id: TaskId,
        restored: Restored,
        worker: usize,
        queue: mpsc::Sender<ToWorker>,
    ) -> Result<(), String> {
        let Restored { task, changes, offsets, replayed } = restored;
        tracing::debug!(task = %id, worker, replayed, "a task runs");
        if queue.send(ToWorker::Add(task, changes)).await.is_err() {
            return Ok(()); // the worker tells why it has ended
        }
        let partitions: Vec<TopicPartition> = offsets.keys().cloned().collect();
        for (at, offset) in offsets {
            self.consumer.seek(&at, offset).map_err(|error| error.to_string())?;
        }
        self.consumer.resume(&partitions).map_err(|error| error.to_string())
    }

    async fn follow_worker(&mut self, event: FromWorker) -> Result<(), String> {
        match event {
            FromWorker::Failed(reason) => Err(reason),
            FromWorker::Gone { task, reason } => {
                tracing::info!(%task, reason, "the task is restored again if it is still ours");
                self.restore_again(task)
            }
            FromWorker::SetApart { task, reason } => {
                tracing::warn!(%task, reason, "the task gets a worker of its own");
                if self.settings.guarantee == Guarantee::ExactlyOnce {
                    self.dir.set_writers(self.workers.len() + 1).map_err(|error| error.to_string())?;
                }
                let worker =
                    self.spawn(self.workers.len()).start().await.map_err(|error| error.to_string())?;
                {
                    let mut held = self.hands.held();
                    held.queues.push(worker.queue.clone());
                    held.metrics.push(Arc::clone(&worker.metrics));
                }
                self.apart.insert(task, self.workers.len());
                self.workers.push(worker);
                self.restore_again(task)
            }
        }
    }

    /// The task is with no worker any more: its inputs stand still until its stores are brought forward again.
    fn restore_again(&mut self, task: TaskId) -> Result<(), String> {
        self.hands.held().placed.remove(&task);
        self.again.insert(task, time::now() + AGAIN_PAUSE);
        let assigned = self.consumer.assignment();
        let inputs = self.hands.plan.inputs_of(&self.hands.topology, task);
        let mine: Vec<TopicPartition> = inputs.into_iter().filter(|at| assigned.contains(at)).collect();
        self.consumer.pause(&mine).map_err(|error| error.to_string())
    }

    fn spawn(&self, index: usize) -> Spawn {
        Spawn {
            index,
            runtime: ottla_env::spawn::Handle::current(),
            settings: Arc::clone(&self.settings),
            shared: Arc::clone(&self.hands.shared),
            budget: Arc::clone(&self.budget),
            told: self.tell.clone(),
        }
    }

    /// Fetches no more of what workers have enough of.
    fn hold_back(&mut self, paused: &mut BTreeSet<TopicPartition>) {
        let wanted = self.hands.shared.paused();
        if wanted == *paused {
            return;
        }
        let running: BTreeSet<TopicPartition> = {
            let held = self.hands.held();
            held.placed.keys().flat_map(|id| self.hands.plan.inputs_of(&self.hands.topology, *id)).collect()
        };
        let assigned: BTreeSet<TopicPartition> = self.consumer.assignment().into_iter().collect();
        let usable = |at: &&TopicPartition| running.contains(*at) && assigned.contains(*at);
        let hold: Vec<_> = wanted.difference(paused).filter(usable).cloned().collect();
        let free: Vec<_> = paused.difference(&wanted).filter(usable).cloned().collect();
        for outcome in [self.consumer.pause(&hold), self.consumer.resume(&free)] {
            if let Err(error) = outcome {
                tracing::debug!(%error, "partitions changed hands");
            }
        }
        *paused = wanted;
    }

    /// Empties repartition topics up to what was committed.
    fn purge(&mut self) {
        if time::now() < self.next_purge || self.purging.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        self.next_purge = time::now() + self.settings.purge_interval;
        let topology = &self.hands.topology;
        let is_repartition = |at: &TopicPartition| {
            topology
                .sub_topologies()
                .iter()
                .any(|sub| sub.repartitions.iter().any(|topic| at.topic == topic.as_str()))
        };
        let committed = self.hands.shared.all_published();
        let before: BTreeMap<TopicPartition, i64> = committed
            .iter()
            .flat_map(|(_, committed)| committed.meta().inputs.clone())
            .filter(|(at, offset)| *offset > 0 && is_repartition(at))
            .collect();
        if before.is_empty() {
            return;
        }
        let admin = self.admin.clone();
        self.purging = Some(ottla_env::spawn::task("streams-purge", async move {
            for (at, outcome) in admin.delete_records_of(&before).await {
                if let Err(error) = outcome {
                    tracing::warn!(%at, %error, "a repartition topic was not emptied; it is tried again later");
                }
            }
        }));
    }

    fn show(&self) {
        let (tasks, restoring) = {
            let held = self.hands.held();
            (held.placed.len(), held.restoring.len())
        };
        let left: i64 = self.hands.shared.restoring().values().sum();
        let state = match (restoring, tasks) {
            (0, 0) => AppState::Joining,
            (0, tasks) => AppState::Running { tasks },
            (restoring, tasks) => AppState::Restoring { tasks, restoring, left },
        };
        self.state.send_if_modified(|now| {
            let changed = *now != state;
            *now = state;
            changed
        });
    }

    async fn close(self, leave: bool) {
        let Self { consumer, workers, restorers, admin, hands, group_instance_id, .. } = self;
        // commits everything, and hands all tasks back
        for worker in &workers {
            let (done, answer) = oneshot::channel();
            if worker.queue.send(ToWorker::Stop(done)).await.is_ok() {
                let _ = answer.await; // it has ended, and told why
            }
        }
        {
            let mut held = hands.held();
            held.placed.clear();
            held.restoring.clear();
            held.queues.clear();
        }
        for queue in &hands.restores {
            let _ = queue.send(ToRestore::Stop).await; // it has ended by itself
        }
        let threads: Vec<_> = workers.into_iter().map(|worker| worker.thread).chain(restorers).collect();
        let joined = ottla_env::spawn::blocking("streams-join", move || {
            threads.into_iter().map(|thread| thread.join().is_err()).filter(|panicked| *panicked).count()
        });
        if joined.await.is_ok_and(|panicked| panicked > 0) {
            tracing::error!("a worker's thread panicked");
        }
        if let Err(error) = consumer.close().await {
            tracing::warn!(%error, "the membership was not closed in order");
        }
        if let (true, Some(id)) = (leave, group_instance_id) {
            let group_id = Text::from(hands.shared.group_id.as_str());
            let removed = admin.remove_members(&group_id, &[Text::from(id.as_str())]).await;
            if let Some(error) = removed.into_values().find_map(Result::err) {
                tracing::warn!(%error, "the static member was not removed: others wait for its session's time-out");
            }
        }
    }
}

fn input(record: ConsumerRecord) -> InputRecord {
    InputRecord {
        topic_partition: record.topic_partition,
        offset: record.offset,
        record: RawRecord {
            key: record.key,
            value: record.value,
            timestamp: record.timestamp,
            headers: record.headers,
        },
    }
}

/// Room for what restore threads tell.
pub(super) const RESTORED_MAX: usize = restore::QUEUE_MAX;
