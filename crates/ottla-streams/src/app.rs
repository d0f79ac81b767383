//! An application: a topology at work on a cluster, as one member of its group.
//!
//! ```text
//!   cluster -> member (fetch, group) -> worker threads (tasks, transactions) -> cluster
//!                 |                          ^
//!                 +-> restore threads -------+   a task runs once its stores stand at their boundary
//! ```
//!
//! Place in the walk: the outermost of this crate. Decides nothing about data: workers and recovery do.
//! Not here: remote queries, standby replicas.

mod assignor;
mod leftovers;
mod member;
mod metrics;
mod ordeal;
mod query;
mod restore;
mod settings;
mod shared;
mod thread;

mod topics;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use ottla_client::admin::AdminError;
use ottla_client::{Admin, ClusterError, Consumer};
use ottla_env::spawn::{self, Handle, TaskHandle};
use ottla_env::time;
use tokio::sync::{mpsc, watch};

use self::member::{Hands, Member, ToMember};
pub use self::metrics::{AppMetrics, METRICS, Metric};
pub use self::query::{QueryError, StoreQuery};
pub use self::settings::{AppSettings, Reset, SettingError, Stores};
use self::shared::Shared;
use self::thread::Spawn;
use crate::port::PortError;
use crate::record::TaskId;
use crate::state_dir::{StateDir, StateDirError};
use crate::topology::{PlanError, Topology};
use crate::worker::{Budget, Guarantee};

/// Events of workers that may wait.
const TOLD_MAX: usize = 1024;

/// What an application is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppState {
    /// It waits for its share of the group's partitions; it may be that there are too few for all members.
    Joining,
    /// Some of its tasks are being brought forward; the others run.
    Restoring {
        /// Tasks that run.
        tasks: usize,
        /// Tasks that do not yet.
        restoring: usize,
        /// Changelog records that are left, as far as known.
        left: i64,
    },
    /// All of its tasks run.
    Running {
        /// How many.
        tasks: usize,
    },
    /// It has ended in order.
    Stopped,
    /// It has ended; everything that was committed stays.
    Failed(String),
}

/// Why an application does not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The state folder.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The cluster refused.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The topics do not fit the topology.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An input is not there.
    #[error(
        "input topic `{topic}` does not exist: make it first, its number of partitions is the application's number of tasks"
    )]
    NoInput {
        /// The topic.
        topic: String,
    },
    /// An internal topic is there, but another one.
    #[error(
        "internal topic `{topic}` has {partitions} partitions and must have {needed}: the number of partitions of an \
         input has changed. Start under another application id, or restore the input"
    )]
    InternalTopic {
        /// The topic.
        topic: String,
        /// Partitions it has.
        partitions: i32,
        /// Partitions it must have.
        needed: i32,
    },
    /// A worker cannot start.
    #[error("a worker cannot start: {0}")]
    Worker(#[from] PortError),
    /// The machine refused a thread.
    #[error("no thread can be started: {0}")]
    Thread(std::io::Error),
    /// It has ended.
    #[error("the application has failed: {0}")]
    Failed(String),
}

/// A running application. Dropped, it ends without handing over: as if it had crashed, which costs nothing but time.
pub struct App {
    topology: Topology,
    hands: Arc<Hands>,
    budget: Arc<Budget>,
    commands: mpsc::Sender<ToMember>,
    state: watch::Receiver<AppState>,
    task: TaskHandle<()>,
    _dir: Arc<StateDir>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App")
            .field("topology", &self.topology.name())
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

/// Notes the transactional ids that are to be taken, and ends what others of earlier starts left open.
async fn take_over(
    settings: &Arc<AppSettings>,
    shared: &Shared,
    dir: &StateDir,
) -> Result<(), StateDirError> {
    let wanted = match settings.guarantee {
        Guarantee::ExactlyOnce => settings.workers,
        Guarantee::AtLeastOnce => 0,
    };
    let earlier = dir.writers()?;
    dir.set_writers(wanted.max(earlier))?;
    if leftovers::fence(settings, shared, (wanted..earlier).collect()).await {
        dir.set_writers(wanted)?;
    }
    Ok(())
}

impl App {
    /// Starts a topology under its name: checks and makes topics, takes the transactional ids, joins the group.
    /// Returns once it is a member on its way; [`App::wait_running`] waits for its tasks. Within a tokio runtime with
    /// more than one thread.
    pub async fn start(topology: Topology, settings: AppSettings) -> Result<Self, AppError> {
        settings.check()?;
        let settings = Arc::new(settings);
        let dir = Arc::new(StateDir::open(&settings.state_dir, topology.name())?);
        let admin = Admin::connect(settings.client.clone()).await?;
        let plan = topics::prepare(&admin, &topology, settings.replication_factor).await?;
        let shared = Arc::new(Shared::new(topology.name(), &dir.identity().process_id));
        let on_disk = Arc::new(Mutex::new(dir.tasks()?.into_iter().collect::<BTreeSet<TaskId>>()));
        let budget = Budget::new(settings.uncommitted_bytes_max);
        take_over(&settings, &shared, &dir).await?;
        shared.count_asides(&dir);
        let (tell, told) = mpsc::channel(TOLD_MAX);
        let mut workers = Vec::new();
        for index in 0..settings.workers {
            let spawn = Spawn {
                index,
                runtime: Handle::current(),
                settings: Arc::clone(&settings),
                shared: Arc::clone(&shared),
                budget: Arc::clone(&budget),
                told: tell.clone(),
            };
            workers.push(spawn.start().await?);
        }
        let context = Arc::new(restore::Context {
            topology: topology.clone(),
            plan: plan.clone(),
            settings: Arc::clone(&settings),
            shared: Arc::clone(&shared),
            dir: Arc::clone(&dir),
            opener: restore::Context::opener(&settings),
            on_disk: Arc::clone(&on_disk),
        });
        let (results, restored) = mpsc::channel(member::RESTORED_MAX);
        let (restores, restorers) = restore::start_all(&context, &results)?;
        let group_instance_id = settings.static_membership.then(|| dir.identity().group_instance_id.clone());
        let consumer =
            member::consumer_settings(&settings, &topology, group_instance_id.as_deref(), &on_disk);
        let consumer = Consumer::connect(consumer).await?;
        let held = member::Held::new(workers.iter().map(|worker| Arc::clone(&worker.metrics)).collect());
        let (held, fault) = (Mutex::new(held), Mutex::default());
        let hands = Arc::new(Hands { topology: topology.clone(), plan, shared, restores, held, fault });
        let (commands, queue) = mpsc::channel(4);
        let (state, watched) = watch::channel(AppState::Joining);
        let member = Member {
            settings: Arc::clone(&settings),
            hands: Arc::clone(&hands),
            dir: Arc::clone(&dir),
            admin,
            consumer,
            workers,
            restorers,
            budget: Arc::clone(&budget),
            restored,
            told,
            tell,
            commands: queue,
            state,
            again: BTreeMap::new(),
            apart: BTreeMap::new(),
            next_purge: time::now() + settings.purge_interval,
            purging: None,
            group_instance_id,
        };
        let task = spawn::task("streams-member", member.run());
        Ok(Self { topology, hands, budget, commands, state: watched, task, _dir: dir })
    }

    /// What it is doing.
    pub fn state(&self) -> AppState {
        self.state.borrow().clone()
    }

    /// Waits until it runs all tasks that it has, and has some.
    pub async fn wait_running(&self) -> Result<(), AppError> {
        self.until(|state| matches!(state, AppState::Running { .. })).await.map(|_| ())
    }

    /// Waits until it ends.
    pub async fn wait(&self) -> Result<(), AppError> {
        self.until(|state| *state == AppState::Stopped).await.map(|_| ())
    }

    async fn until(&self, is_it: impl Fn(&AppState) -> bool) -> Result<AppState, AppError> {
        let mut watched = self.state.clone();
        let found = watched
            .wait_for(|state| is_it(state) || matches!(state, AppState::Failed(_) | AppState::Stopped))
            .await;
        match found.map(|state| state.clone()) {
            Ok(AppState::Failed(reason)) => Err(AppError::Failed(reason)),
            Ok(state) => Ok(state),
            Err(_) => Err(AppError::Failed("its task has ended".to_owned())),
        }
    }

    /// Commits, hands its tasks over and ends. With static membership its place stays its own for a session's
    /// time-out: start it again meanwhile, or use [`App::leave`].
    pub async fn stop(self) -> Result<(), AppError> {
        self.end(false).await
    }

    /// As [`App::stop`], and leaves the group, so that others take its tasks at once.
    pub async fn leave(self) -> Result<(), AppError> {
        self.end(true).await
    }

    async fn end(self, leave: bool) -> Result<(), AppError> {
        let _ = self.commands.send(ToMember::Stop(leave)).await; // it has ended by itself
        self.wait().await
    }

    /// Figures; [`AppMetrics::text`] is a page of them for a scraper.
    pub fn metrics(&self) -> AppMetrics {
        AppMetrics {
            workers: self.hands.held().metrics.clone(),
            restore_left: self.hands.shared.restoring(),
            uncommitted_bytes: self.budget.used(),
            set_aside: self.hands.shared.set_aside(),
        }
    }

    /// The committed content of a store, as far as its partitions are here. `S` is [`crate::store::KvStore`],
    /// [`crate::store::WindowStore`] or [`crate::store::SessionStore`] with the store's types.
    pub fn store<S: Clone + 'static>(&self, name: &str) -> Result<StoreQuery<S>, QueryError> {
        StoreQuery::new(&self.topology, &self.hands, name)
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.task.abort();
    }
}
