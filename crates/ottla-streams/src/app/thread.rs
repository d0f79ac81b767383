//! A worker's thread: a plain loop around [`Worker::run_once`].
//!
//! Takes tasks, records and hand-overs from the member through a bounded queue; tells it what happened. Stores are
//! dropped here, where they were used, before a hand-over is answered, so that their folders are free then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ottla_client::{ProducerSettings, TopicPartition, TransactionalSettings};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::spawn::{self, Handle, ThreadHandle};
use ottla_env::time;
use tokio::sync::{mpsc, oneshot};

use super::ordeal::Ordeal;
use super::settings::AppSettings;
use super::shared::{Group, Shared};
use crate::kafka::{KafkaReader, KafkaWriter, PlainWriter};
use crate::port::{PortError, TransactionPort};
use crate::record::{InputRecord, TaskId};
use crate::recovery::ChangeSource;
use crate::task::Task;
use crate::worker::{
    Budget, Guarantee, Ran, Worker, WorkerError, WorkerEvent, WorkerMetrics, WorkerSettings,
};

/// Commands that may wait for a worker.
pub(super) const QUEUE_MAX: usize = 64;
/// Commands that are taken before records are processed again.
const COMMANDS_AT_ONCE: usize = 32;
/// Pause before the id is taken again, or a suspended worker asks again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Batches of results and changes: large, since many records come at once and a broker's cost is per batch.
const BATCH_BYTES: usize = 256 << 10;
/// How long a batch that is not full waits, unless a commit comes first.
const LINGER: Duration = Duration::from_millis(20);
/// How long the transactional id is tried for at the start.
const TAKE_TRIES: u32 = 300;

/// What came from the inputs of a worker's tasks.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) records: Vec<InputRecord>,
    /// Partition, fetched up to there, end of its log.
    pub(super) reached: Vec<(TopicPartition, i64, i64)>,
}

pub(super) enum ToWorker {
    Add(Box<Task>, Vec<ChangeSource>),
    Records(Fetched),
    /// Hand tasks over; committed first, unless they are lost already.
    Release {
        ids: Vec<TaskId>,
        lost: bool,
        done: oneshot::Sender<()>,
    },
    /// Commit, hand everything over, end.
    Stop(oneshot::Sender<()>),
}

/// What a worker tells.
pub(super) enum FromWorker {
    /// The task is not here any more and must be recovered if it is still ours.
    Gone { task: TaskId, reason: String },
    /// The same, and it is to have a worker of its own.
    SetApart { task: TaskId, reason: String },
    /// The application cannot go on.
    Failed(String),
}

/// The member's end of a worker.
pub(super) struct WorkerHandle {
    pub(super) queue: mpsc::Sender<ToWorker>,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) thread: ThreadHandle<()>,
}

/// What a worker is made of.
pub(super) struct Spawn {
    pub(super) index: usize,
    pub(super) runtime: Handle,
    pub(super) settings: Arc<AppSettings>,
    pub(super) shared: Arc<Shared>,
    pub(super) budget: Arc<Budget>,
    pub(super) told: mpsc::Sender<FromWorker>,
}

impl Spawn {
    /// Starts the thread; returns once its transactional id is free of old transactions.
    pub(super) async fn start(self) -> Result<WorkerHandle, PortError> {
        let (queue, commands) = mpsc::channel(QUEUE_MAX);
        let (ready, is_ready) = oneshot::channel();
        let name = format!("streams-{}", self.index);
        let thread = spawn::thread(&name, move || self.body(commands, ready));
        let thread =
            thread.map_err(|error| PortError::Fatal(format!("no thread can be started: {error}")))?;
        let metrics =
            is_ready.await.map_err(|_| PortError::Fatal("a worker's thread has ended".to_owned()))??;
        Ok(WorkerHandle { queue, metrics, thread })
    }

    fn body(
        self,
        commands: mpsc::Receiver<ToWorker>,
        ready: oneshot::Sender<Result<Arc<WorkerMetrics>, PortError>>,
    ) {
        let result = match self.settings.guarantee {
            Guarantee::ExactlyOnce => self.take_id().map(|port| Box::new(port) as Box<dyn TransactionPort>),
            Guarantee::AtLeastOnce => self.plain().map(|port| Box::new(port) as Box<dyn TransactionPort>),
        };
        let made = result.and_then(|port| {
            let reader = KafkaReader::connect(&self.runtime, &self.settings.client, 1 << 20)?;
            Ok(self.worker(port, reader))
        });
        let worker = match made {
            Ok(worker) => worker,
            Err(error) => {
                let _ = ready.send(Err(error)); // whoever asked has given up
                return;
            }
        };
        let _ = ready.send(Ok(worker.metrics()));
        Loop { worker, spawn: self, commands, commits: 0, suspended: None, paused: BTreeSet::new() }.run();
    }

    fn writer_name(&self) -> String {
        writer_name(&self.shared, self.index)
    }

    fn take_id(&self) -> Result<KafkaWriter, PortError> {
        let settings = transactional(&self.settings, &self.shared, self.index);
        let mut last = PortError::Fatal("the transactional id was not tried".to_owned());
        for _ in 0..TAKE_TRIES {
            match KafkaWriter::take(&self.runtime, settings.clone()) {
                Err(PortError::Retriable(reason)) => last = PortError::Retriable(reason),
                taken => return taken,
            }
            self.runtime.block_on(time::sleep(RETRY_PAUSE));
        }
        Err(last)
    }

    fn plain(&self) -> Result<PlainWriter, PortError> {
        PlainWriter::connect(&self.runtime, producer(&self.settings))
    }

    fn worker(
        &self,
        port: Box<dyn TransactionPort>,
        reader: KafkaReader,
    ) -> Worker<Box<dyn TransactionPort>> {
        let mut settings = WorkerSettings::new(&self.shared.group_id, self.writer_name());
        settings.guarantee = self.settings.guarantee;
        settings.commit_interval = self.settings.commit_interval;
        settings.transaction_timeout = self.settings.transaction_timeout;
        let clock: Arc<dyn Clock> = Arc::new(OsClock);
        let mut worker = Worker::new(settings, port, Box::new(reader), clock, &self.budget);
        if let Some(ordeal) = Ordeal::from_environment(&self.runtime) {
            worker.set_hook(Box::new(ordeal));
        }
        worker
    }
}

fn writer_name(shared: &Shared, index: usize) -> String {
    format!("{}/{index}", shared.process_id)
}

/// A commit sends what lingers, so large batches cost no time.
fn producer(settings: &AppSettings) -> ProducerSettings {
    ProducerSettings::new(settings.client.clone()).batch_bytes(BATCH_BYTES).linger(LINGER)
}

/// The producer of a worker.
pub(super) fn transactional(settings: &AppSettings, shared: &Shared, index: usize) -> TransactionalSettings {
    let id = format!("{}/{}", shared.group_id, writer_name(shared, index));
    let mut all = TransactionalSettings::new(settings.client.clone(), id)
        .transaction_timeout(settings.transaction_timeout)
        .producer(producer(settings));
    // by then the coordinator has decided by itself: nothing is won by asking on, and a worker would stand still
    let least = all.producer.linger + all.producer.client.request_timeout;
    all.producer.delivery_timeout =
        all.producer.delivery_timeout.min(settings.transaction_timeout.max(least));
    all
}

struct Loop {
    worker: Worker<Box<dyn TransactionPort>>,
    spawn: Spawn,
    commands: mpsc::Receiver<ToWorker>,
    /// Commits that were published.
    commits: u64,
    /// Offsets were refused when the membership was of that version.
    suspended: Option<(u64, Duration)>,
    paused: BTreeSet<TopicPartition>,
}

impl Loop {
    fn run(mut self) {
        let mut ran = Ran::Idle;
        loop {
            match self.take_commands(ran) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail(error),
            }
            let group = self.spawn.shared.group();
            ran = match self.run_once(&group) {
                Ok(ran) => ran,
                Err(error) => return self.fail(error),
            };
            self.publish();
        }
    }

    fn run_once(&mut self, group: &Group) -> Result<Ran, WorkerError> {
        if let Some((version, at)) = self.suspended {
            let waited = OsClock.monotonic().saturating_sub(at) >= 5 * RETRY_PAUSE;
            if (group.version != version || waited) && self.worker.resume(&group.owned)? {
                self.suspended = None;
            }
        }
        let ran = self.worker.run_once(&group.metadata)?;
        self.handle_events(group)?;
        Ok(ran)
    }

    /// `false`: the end.
    fn take_commands(&mut self, ran: Ran) -> Result<bool, WorkerError> {
        let mut next = match ran {
            Ran::Worked => self.commands.try_recv().ok(),
            Ran::Idle | Ran::Waiting => {
                let due = self.worker.next_due().max(Duration::from_millis(1));
                match self.spawn.runtime.block_on(time::timeout(due, self.commands.recv())) {
                    Ok(None) => return Ok(false),
                    Ok(command) => command,
                    Err(_) => None,
                }
            }
        };
        for _ in 0..COMMANDS_AT_ONCE {
            match next.take() {
                None => break,
                Some(command) => {
                    if !self.obey(command)? {
                        return Ok(false);
                    }
                }
            }
            next = self.commands.try_recv().ok();
        }
        match next {
            Some(command) => self.obey(command),
            None => Ok(true),
        }
    }

    fn obey(&mut self, command: ToWorker) -> Result<bool, WorkerError> {
        match command {
            ToWorker::Add(task, changes) => {
                self.spawn.shared.publish(task.id(), task.state().snapshot());
                self.worker.add(*task, changes);
            }
            ToWorker::Records(fetched) => {
                self.worker.push(fetched.records);
                for (at, offset, log_end) in fetched.reached {
                    self.worker.fetched_to(&at, offset);
                    self.worker.set_log_end(&at, log_end);
                }
                self.share_paused();
            }
            ToWorker::Release { ids, lost, done } => {
                let group = self.spawn.shared.group();
                let states =
                    if lost { self.worker.lost(&ids)? } else { self.worker.revoke(&ids, &group.metadata)? };
                for id in &ids {
                    self.spawn.shared.withdraw(*id);
                }
                drop(states);
                // a task that was found lost meanwhile holds its engine until its event is taken
                self.handle_events(&group)?;
                self.share_paused();
                let _ = done.send(()); // the member has given up waiting
            }
            ToWorker::Stop(done) => {
                let group = self.spawn.shared.group();
                let ids: Vec<TaskId> = self.worker.tasks().map(Task::id).collect();
                let states = self.worker.revoke(&ids, &group.metadata);
                ids.into_iter().for_each(|id| self.spawn.shared.withdraw(id));
                drop(states?);
                let _ = done.send(());
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn handle_events(&mut self, group: &Group) -> Result<(), WorkerError> {
        self.worker.take_events().into_iter().try_for_each(|event| self.handle(event, group))
    }

    fn handle(&mut self, event: WorkerEvent, group: &Group) -> Result<(), WorkerError> {
        match event {
            WorkerEvent::Lost { task, state, reason }
            | WorkerEvent::Reopen { task, state, reason }
            | WorkerEvent::Damaged { task, state, reason } => {
                self.spawn.shared.withdraw(task);
                drop(state);
                tracing::warn!(%task, reason, "a task is given up");
                self.tell(FromWorker::Gone { task, reason });
            }
            WorkerEvent::NotOwner { reason } => {
                tracing::info!(reason, version = group.version, "waiting for the group");
                self.suspended = Some((group.version, OsClock.monotonic()));
            }
            WorkerEvent::SetApart { task, faults, reason } => {
                if self.worker.tasks().count() == 1 {
                    self.tell(FromWorker::Failed(format!(
                        "task {task} failed {faults} times in a row: {reason}"
                    )));
                    return Ok(());
                }
                // records for it are under way to this worker: it begins anew at its boundary, not where its buffers end
                let states = self.worker.lost(&[task])?;
                self.spawn.shared.withdraw(task);
                drop(states);
                self.tell(FromWorker::SetApart { task, reason });
            }
            WorkerEvent::Parked { task, reason } => {
                tracing::error!(%task, reason, "a task's disk refuses a committed boundary; it is tried again");
            }
            WorkerEvent::Unparked { task } => tracing::info!(%task, "the task's disk works again"),
            WorkerEvent::RolledBack { reason } => tracing::debug!(reason, "rolled back"),
        }
        Ok(())
    }

    fn tell(&self, event: FromWorker) {
        if self.spawn.told.blocking_send(event).is_err() {
            tracing::debug!("the application has ended before its worker");
        }
    }

    /// What was committed becomes visible to queries.
    fn publish(&mut self) {
        let commits = self.worker.metrics().commits.get();
        if commits != self.commits {
            self.commits = commits;
            for task in self.worker.tasks() {
                self.spawn.shared.publish(task.id(), task.state().snapshot());
            }
        }
        self.share_paused();
    }

    fn share_paused(&mut self) {
        let paused = self.worker.paused();
        if paused != self.paused {
            self.spawn.shared.set_paused(self.spawn.index, paused.clone());
            self.paused = paused;
        }
    }

    /// The end, for a reason.
    fn fail(self, error: WorkerError) {
        let ids: Vec<TaskId> = self.worker.tasks().map(Task::id).collect();
        ids.into_iter().for_each(|id| self.spawn.shared.withdraw(id));
        self.tell(FromWorker::Failed(error.to_string()));
        let Self { worker, commands, .. } = self;
        drop(worker.into_states());
        // whoever waits for an answer is told by the queue's end
        drop(commands);
    }
}

/// Partitions by worker, for the member.
pub(super) type Paused = BTreeMap<usize, BTreeSet<TopicPartition>>;
