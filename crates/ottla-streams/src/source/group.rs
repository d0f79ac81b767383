//! A source that several processes share: its lanes are the partitions of the positions topic, and a consumer group
//! deals them out.
//!
//! ```text
//!   group -> member (task) -> lanes given, lanes taken -> runner (thread) -> records, positions, offsets
//! ```
//!
//! The member reads nothing; it keeps the membership and hands lanes over. A lane that is taken away is committed before
//! that is answered; one that was lost is dropped. Offsets are committed in the name of the member, so whoever has lost a
//! lane without knowing it is refused (KIP-447), and begins with what it has now.
//!
//! Not here: what a lane does (see [`super::runner`]).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ottla_client::{
    Admin, Assignor, Callback, ClientSettings, Consumer, ConsumerError, ConsumerSettings, GroupMetadata,
    GroupProtocol, LostReason, OffsetReset, Rebalance, RebalanceListener, Text, TopicPartition,
    TransactionalSettings,
};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::spawn::{self, Handle, TaskHandle};
use ottla_env::time;
use tokio::sync::{mpsc, oneshot};

use super::Source;
use super::runner::{Runner, RunnerError, RunnerSettings, SourceRan};
use super::thread::{FETCH_BYTES, IDLE_PAUSE, Pause, SourceThread, begin, make_positions};
use crate::kafka::{KafkaReader, KafkaWriter};
use crate::port::PortError;
use crate::state_dir::StateDir;

/// Changes of lanes that may wait.
const QUEUE_MAX: usize = 16;
/// Longest wait in a poll; between two of them the stop is looked at.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// Before lanes that were refused, or lost to a rollback, are taken again.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);
/// Longest that a hand-over waits for its commit; what is not committed by then is read again by the next owner.
const HAND_OVER_MAX: Duration = Duration::from_secs(10);

/// How a process takes part in the group of a source.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    /// Folder for this process's identity: its transactional id and its place in the group. One per process; a second
    /// process in it is refused.
    pub state_dir: PathBuf,
    /// Without a heartbeat for so long the group gives the process up, and others take its lanes. Default 45 s, within
    /// the broker's bounds.
    pub session_timeout: Duration,
    /// Default 3 s.
    pub heartbeat_interval: Duration,
    /// The coordinator aborts what is open for longer; so long may a lane of a dead process wait at most. Default 10 s;
    /// longer than the runner's commit interval.
    pub transaction_timeout: Duration,
    /// A restarted process takes its lanes again at once, and nobody takes them meanwhile, for a session's time-out
    /// (KIP-345). Default true.
    pub static_membership: bool,
    /// Default: classic.
    pub group_protocol: GroupProtocol,
}

impl GroupSettings {
    /// With the defaults.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            transaction_timeout: Duration::from_secs(10),
            static_membership: true,
            group_protocol: GroupProtocol::Classic,
        }
    }
}

/// What the member tells the thread.
enum Lanes {
    Given(BTreeSet<i32>),
    /// They go to others: committed first, unless they are lost already. Answered when they are free.
    Taken {
        lanes: BTreeSet<i32>,
        lost: bool,
        done: oneshot::Sender<()>,
    },
}

/// What member and thread share.
#[derive(Debug)]
struct Shared {
    metadata: Mutex<GroupMetadata>,
    stop: Arc<AtomicBool>,
    /// Why the membership has ended by itself.
    fault: Mutex<Option<String>>,
}

impl Shared {
    fn set(&self, metadata: Option<GroupMetadata>) {
        if let Some(metadata) = metadata {
            *self.metadata.lock().unwrap_or_else(PoisonError::into_inner) = metadata;
        }
    }

    fn metadata(&self) -> GroupMetadata {
        self.metadata.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl SourceThread {
    /// As [`SourceThread::start`], and shares the lanes with the other processes of the application that call it: each
    /// source partition is read by one of them at a time, and by another one when that is gone. All processes must see
    /// the same source under the same names, and have the same number of lanes. `name`: of the source within the
    /// application. Blocks until the transactional id is taken, so not for tasks of a runtime.
    pub fn join(
        runtime: &Handle,
        client: &ClientSettings,
        mut settings: RunnerSettings,
        name: &str,
        group: &GroupSettings,
        source: Box<dyn Source>,
    ) -> Result<Self, RunnerError> {
        let setup = |error: &dyn std::fmt::Display| PortError::Fatal(error.to_string());
        let dir = StateDir::open(&group.state_dir, &settings.group_id).map_err(|error| setup(&error))?;
        let identity = dir.identity().clone();
        settings.writer = format!("{}/{name}", identity.process_id);
        settings.transaction_timeout = group.transaction_timeout;
        let reader = KafkaReader::connect(runtime, client, FETCH_BYTES)?;
        make_positions(runtime, &reader, &settings)?;
        let id = format!("{}/{}", settings.group_id, settings.writer);
        let transactional =
            TransactionalSettings::new(client.clone(), id).transaction_timeout(group.transaction_timeout);
        let port = KafkaWriter::take(runtime, transactional)?;
        let instance = group.static_membership.then(|| format!("{}-{name}", identity.group_instance_id));
        let consumer = consumer_settings(client, &settings, group, instance.as_deref());
        let connect = async { (Consumer::connect(consumer).await, Admin::connect(client.clone()).await) };
        let (consumer, admin) = runtime.block_on(connect);
        let consumer = consumer.map_err(|error| setup(&error))?;
        let admin = admin.map_err(|error| setup(&error))?;
        let metadata = Mutex::new(GroupMetadata::without_members(settings.group_id.as_str()));
        let shared = Arc::new(Shared { metadata, stop: Arc::default(), fault: Mutex::default() });
        let (tell, told) = mpsc::channel(QUEUE_MAX);
        let (stopped, leave) = oneshot::channel();
        let member = Member {
            consumer,
            admin,
            topic: settings.positions_topic.clone(),
            group_id: Text::from(settings.group_id.as_str()),
            instance: instance.map(|id| Text::from(id.as_str())),
            shared: Arc::clone(&shared),
            tell,
            leave,
        };
        let inside = runtime.enter();
        let membership = spawn::task("streams-source-member", member.run());
        drop(inside);
        let runner = Runner::new(settings, source, port, Box::new(reader));
        let stop = Arc::clone(&shared.stop);
        let runtime = runtime.clone();
        begin(stop, move |leave| {
            let (owned, again_at) = Default::default();
            let ended = Work { runner, shared: Arc::clone(&shared), told, owned, again_at }.run();
            let _ = stopped.send(leave.load(Ordering::Relaxed)); // the member has ended by itself
            wait(&runtime, membership);
            drop(dir);
            match shared.fault.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(fault) => ended.and(Err(PortError::Fatal(fault).into())),
                None => ended,
            }
        })
    }
}

fn wait(runtime: &Handle, membership: TaskHandle<()>) {
    if runtime.block_on(membership).is_err() {
        tracing::error!("a source's membership panicked");
    }
}

fn consumer_settings(
    client: &ClientSettings,
    settings: &RunnerSettings,
    group: &GroupSettings,
    instance: Option<&str>,
) -> ConsumerSettings {
    let consumer = ConsumerSettings::new(client.clone())
        .group_id(settings.group_id.as_str())
        .offset_reset(OffsetReset::None)
        .assignors(vec![Assignor::CooperativeSticky])
        .session_timeout(group.session_timeout)
        .heartbeat_interval(group.heartbeat_interval)
        .group_protocol(group.group_protocol);
    match instance {
        Some(id) => consumer.group_instance_id(id),
        None => consumer,
    }
}

fn lanes_of(partitions: &[TopicPartition]) -> BTreeSet<i32> {
    partitions.iter().map(|at| at.partition).collect()
}

/// Keeps the membership.
struct Member {
    consumer: Consumer,
    admin: Admin,
    topic: String,
    group_id: Text,
    instance: Option<Text>,
    shared: Arc<Shared>,
    tell: mpsc::Sender<Lanes>,
    /// Told when the thread has ended: whether the group is to be left for good.
    leave: oneshot::Receiver<bool>,
}

struct Listener {
    shared: Arc<Shared>,
    tell: mpsc::Sender<Lanes>,
}

impl Listener {
    async fn taken(&self, partitions: &[TopicPartition], lost: bool) {
        let (done, answer) = oneshot::channel();
        let lanes = lanes_of(partitions);
        if self.tell.send(Lanes::Taken { lanes, lost, done }).await.is_ok() {
            let _ = answer.await; // a thread that has ended has no lanes
        }
    }
}

impl RebalanceListener for Listener {
    fn assigned<'a>(
        &'a mut self,
        mut rebalance: Rebalance<'a>,
        partitions: &'a [TopicPartition],
    ) -> Callback<'a> {
        Box::pin(async move {
            // the lanes' recovery reads them, the member never does
            let mut hold = rebalance.pause(partitions);
            for at in partitions {
                hold = hold.and_then(|()| rebalance.seek(at, 0));
            }
            if let Err(error) = hold {
                tracing::error!(%error, "lanes cannot be held back");
            }
            self.shared.set(rebalance.group_metadata());
            tracing::info!(lanes = ?lanes_of(partitions), "lanes of a source are ours");
            let _ = self.tell.send(Lanes::Given(lanes_of(partitions))).await; // the thread has ended
        })
    }

    fn revoked<'a>(&'a mut self, rebalance: Rebalance<'a>, partitions: &'a [TopicPartition]) -> Callback<'a> {
        Box::pin(async move {
            self.shared.set(rebalance.group_metadata());
            self.taken(partitions, false).await;
        })
    }

    fn lost<'a>(
        &'a mut self,
        _rebalance: Rebalance<'a>,
        partitions: &'a [TopicPartition],
        reason: LostReason,
    ) -> Callback<'a> {
        Box::pin(async move {
            tracing::warn!(lanes = ?lanes_of(partitions), ?reason, "lanes of a source are lost");
            self.taken(partitions, true).await;
        })
    }
}

impl Member {
    async fn run(mut self) {
        let listener = Listener { shared: Arc::clone(&self.shared), tell: self.tell.clone() };
        self.consumer.set_listener(listener);
        let leave = match self.live().await {
            Ok(leave) => leave,
            Err(error) => {
                tracing::error!(%error, "a source's membership ends");
                let fault = format!("the membership in group {} has ended: {error}", self.group_id);
                *self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
                self.shared.stop.store(true, Ordering::Relaxed);
                let _ = (&mut self.leave).await; // the thread commits what it can meanwhile
                false
            }
        };
        let Self { consumer, admin, group_id, instance, .. } = self;
        if let Err(error) = consumer.close().await {
            tracing::warn!(%error, "a source's membership was not closed in order");
        }
        if let (true, Some(id)) = (leave, instance) {
            let removed = admin.remove_members(&group_id, &[id]).await;
            if let Some(error) = removed.into_values().find_map(Result::err) {
                tracing::warn!(%error, "the static member was not removed: others wait for its session's time-out");
            }
        }
    }

    /// Until the thread ends; whether the group is to be left for good.
    async fn live(&mut self) -> Result<bool, ConsumerError> {
        self.consumer.subscribe(&[self.topic.as_str()]).await?;
        loop {
            match self.leave.try_recv() {
                Ok(leave) => return Ok(leave),
                Err(oneshot::error::TryRecvError::Closed) => return Ok(false), // the thread has panicked
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            match self.consumer.poll(POLL_WAIT).await {
                Ok(_) => {} // nothing is fetched
                Err(ConsumerError::Cluster(error)) if error.is_retriable() => {}
                Err(ConsumerError::Refused { code, .. }) if code.is_retriable() => {}
                Err(error) => return Err(error),
            }
            self.shared.set(self.consumer.group_metadata());
        }
    }
}

/// The thread's loop.
struct Work {
    runner: Runner<KafkaWriter>,
    shared: Arc<Shared>,
    told: mpsc::Receiver<Lanes>,
    owned: BTreeSet<i32>,
    /// Lanes that are ours and not with the runner are taken again then.
    again_at: Duration,
}

impl Work {
    fn run(mut self) -> Result<super::runner::RunnerMetrics, RunnerError> {
        let pause = Pause::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            while let Ok(lanes) = self.told.try_recv() {
                self.follow(lanes, &pause)?;
            }
            self.take_again()?;
            let ran = self.runner.run_once(OsClock.monotonic(), OsClock.wall_ms(), &self.shared.metadata());
            match self.unless_refused(ran)? {
                Some(SourceRan::Worked) => {}
                Some(SourceRan::Idle) | None => pause.wait(IDLE_PAUSE),
            }
        }
        self.hand_over(&pause)?;
        Ok(self.runner.metrics())
    }

    fn follow(&mut self, lanes: Lanes, pause: &Pause) -> Result<(), RunnerError> {
        match lanes {
            Lanes::Given(lanes) => self.owned.extend(lanes), // taken below
            Lanes::Taken { lanes, lost, done } => {
                if !lost && lanes.iter().any(|lane| self.runner.has(*lane)) {
                    self.hand_over(pause)?;
                }
                for lane in &lanes {
                    self.owned.remove(lane);
                    self.runner.revoke(*lane);
                }
                let _ = done.send(()); // the member has given up waiting
            }
        }
        Ok(())
    }

    /// Commits what was read, for a while.
    fn hand_over(&mut self, pause: &Pause) -> Result<(), RunnerError> {
        let deadline = time::now() + HAND_OVER_MAX;
        while time::now() < deadline {
            let committed = self.runner.commit(OsClock.monotonic(), &self.shared.metadata());
            let is_done = self.unless_refused(committed)?.unwrap_or(false);
            if is_done || !self.runner.is_dirty() {
                break;
            }
            pause.wait(IDLE_PAUSE);
        }
        Ok(())
    }

    /// Lanes that are ours are with the runner, sooner or later.
    fn take_again(&mut self) -> Result<(), RunnerError> {
        if OsClock.monotonic() < self.again_at {
            return Ok(());
        }
        for lane in self.owned.iter().filter(|lane| !self.runner.has(**lane)).copied().collect::<Vec<_>>() {
            self.runner.assign(lane, OsClock.wall_ms())?;
        }
        Ok(())
    }

    /// Offsets that are refused since the group has moved on: all lanes begin anew where they are committed, as far as
    /// they are still ours.
    fn unless_refused<T>(&mut self, outcome: Result<T, RunnerError>) -> Result<Option<T>, RunnerError> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(RunnerError::Port(PortError::NotOwner(reason))) => {
                tracing::info!(reason, "lanes of a source are taken again");
                self.owned.iter().for_each(|lane| self.runner.revoke(*lane));
                self.again_at = OsClock.monotonic() + AGAIN_PAUSE;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
