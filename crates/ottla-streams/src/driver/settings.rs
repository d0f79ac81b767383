//! What a driver is set up with, before it starts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Driver;
use super::broken::Broken;
use super::cluster::Outcome;
use super::crash::Point;
use super::disk::EngineChoice;
use crate::recovery::RecoveryPlan;
use crate::topology::Topology;
use crate::worker::{Budget, Guarantee, WorkerSettings};

/// Everything that is chosen beforehand.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) topology: Topology,
    pub(super) partitions: BTreeMap<String, i32>,
    pub(super) seed: u64,
    pub(super) processes: usize,
    pub(super) engines: EngineChoice,
    pub(super) template: WorkerSettings,
    pub(super) uncommitted_bytes_max: usize,
    pub(super) max_task_idle: Option<Duration>,
    pub(super) marker_delay: Duration,
    pub(super) tells_horizon: bool,
    pub(super) broken: Option<Broken>,
    pub(super) armed: Vec<(Point, u64)>,
    pub(super) lost_commits: Vec<Outcome>,
    pub(super) tune: fn(RecoveryPlan) -> RecoveryPlan,
}

impl Setup {
    pub(super) fn new(topology: Topology) -> Self {
        let mut template = WorkerSettings::new(topology.name(), "");
        template.transaction_timeout = Duration::from_secs(10);
        template.retry_pause = Duration::from_millis(5);
        Self {
            topology,
            partitions: BTreeMap::new(),
            seed: 1,
            processes: 1,
            engines: EngineChoice::Memory,
            template,
            uncommitted_bytes_max: Budget::BYTES_MAX,
            max_task_idle: Some(Duration::ZERO),
            marker_delay: Duration::ZERO,
            tells_horizon: true,
            broken: None,
            armed: Vec::new(),
            lost_commits: Vec::new(),
            tune: |plan| plan,
        }
    }
}

/// Settings; they count until the driver starts, which it does with the first record, run or question.
impl Driver {
    /// A topic has so many partitions. Inputs that are not named have one; outputs as many as the largest input.
    #[must_use]
    pub fn partitions(mut self, topic: &str, partitions: i32) -> Self {
        self.setup.partitions.insert(topic.to_owned(), partitions);
        self
    }

    /// Everything that is left to chance follows from this number. Default 1.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.setup.seed = seed;
        self
    }

    /// So many processes share the tasks. Default 1.
    #[must_use]
    pub fn processes(mut self, processes: usize) -> Self {
        self.setup.processes = processes.max(1);
        self
    }

    /// How stores are kept. Default: in memory.
    #[must_use]
    pub fn engines(mut self, engines: EngineChoice) -> Self {
        self.setup.engines = engines;
        self
    }

    /// No transactions.
    #[must_use]
    pub fn at_least_once(mut self) -> Self {
        self.setup.template.guarantee = Guarantee::AtLeastOnce;
        self
    }

    /// Time from the first write of a transaction to its commit. Default 100 ms.
    #[must_use]
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.setup.template.commit_interval = interval;
        self
    }

    /// A process commits before the interval is over once it holds so many uncommitted bytes. Default 64 MiB.
    #[must_use]
    pub fn uncommitted_bytes_max(mut self, bytes_max: usize) -> Self {
        self.setup.uncommitted_bytes_max = bytes_max;
        self
    }

    /// How long a task waits for an input that is silent; `None` = not even for what is there. As
    /// [`AppSettings::max_task_idle`](crate::app::AppSettings::max_task_idle). Default 0.
    #[must_use]
    pub fn max_task_idle(mut self, idle: Option<Duration>) -> Self {
        self.setup.max_task_idle = idle;
        self
    }

    /// The coordinator gives a transaction up after this time. Default 10 s.
    #[must_use]
    pub fn transaction_timeout(mut self, timeout: Duration) -> Self {
        self.setup.template.transaction_timeout = timeout;
        self
    }

    /// Markers and offsets of a transaction become visible one by one, each up to so much after the decision.
    /// Default 0: at once.
    #[must_use]
    pub fn marker_delay(mut self, delay: Duration) -> Self {
        self.setup.marker_delay = delay;
        self
    }

    /// The cluster does not tell where tombstones may be gone, as Apache Kafka does not.
    #[must_use]
    pub fn without_horizon(mut self) -> Self {
        self.setup.tells_horizon = false;
        self
    }

    /// Changes the plan of every recovery, for instance its policy when state and log do not fit.
    #[must_use]
    pub fn tune_recovery(mut self, tune: fn(RecoveryPlan) -> RecoveryPlan) -> Self {
        self.setup.tune = tune;
        self
    }

    /// A variant that must be caught.
    #[doc(hidden)]
    #[must_use]
    pub fn broken(mut self, broken: Broken) -> Self {
        self.setup.broken = Some(broken);
        match broken {
            Broken::PositionInAnotherFile => self.setup.engines = EngineChoice::PositionApart,
            Broken::FlushApart => self.setup.engines = EngineChoice::FlushedApart,
            _ => {}
        }
        self
    }
}
