//! A test driver: a topology over a simulated cluster, with several partitions and processes, crashes and time.
//!
//! What runs is what runs in production: the workers, the commit protocol and the recovery are the same code; only
//! the cluster behind them is in memory, and time moves when it is told to. So a test of a topology can kill it at
//! any step of a commit, lose the answer of a commit, move its tasks, cut the power, and then ask whether the outputs
//! and the stores are what they must be. Everything follows from one seed.
//!
//! ```
//! use ottla_streams::codec::{I64, Utf8};
//! use ottla_streams::driver::Driver;
//! use ottla_streams::topology::Topology;
//! use ottla_streams::worker::Step;
//!
//! let topology = Topology::new("shop", |b| {
//!     b.stream("orders", Utf8, Utf8).group().count("per-customer").to("counts");
//! })?;
//! let mut driver = Driver::new(topology).partitions("orders", 4).seed(7);
//! driver.pipe("orders", "alice", "lamp")?;
//! driver.crash_at(Step::AfterEndTxn); // committed, and nothing applied yet
//! driver.pipe("orders", "alice", "desk")?;
//! driver.run()?;
//! assert_eq!(driver.read_as("counts", &Utf8, &I64)?, [("alice".to_owned(), 1), ("alice".to_owned(), 2)]);
//! assert_eq!(driver.kills(), 1);
//! driver.check()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Place in the walk: beside the application, around workers. Not here: networks, threads, real disks' damage.

mod broken;
mod check;
mod cluster;
mod crash;
mod disk;
mod faults;
mod log;
mod ports;
mod process;
mod running;
mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

#[doc(hidden)]
pub use self::broken::Broken;
pub use self::cluster::Outcome;
pub use self::crash::Point;
pub use self::disk::EngineChoice;
pub use self::faults::DiskImage;
pub use self::process::ProcessCounts;
use self::running::Running;
use self::settings::Setup;
use crate::codec::{Codec, CodecError};
use crate::engine::{Direction, KeyRange};
use crate::record::RawRecord;
use crate::store::{KvStore, StoreError};
use crate::topology::{PlanError, Topology};
use crate::worker::WorkerMetrics;

/// Why the driver cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The topology does not fit the topics.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A topic that was not made.
    #[error("there is no topic {0:?}: name it with partitions(), or let the topology write to it")]
    UnknownTopic(String),
    /// The topology has no key-value store of that name and these types.
    #[error("there is no store {0:?} with these types")]
    UnknownStore(String),
    /// A store cannot be read.
    #[error("a store cannot be read: {0}")]
    Store(String),
    /// A key or value that its codec does not take.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// It does not come to rest.
    #[error("after {rounds} rounds there is still work under way: {what}")]
    Restless {
        /// Rounds that were tried.
        rounds: u32,
        /// What moves.
        what: String,
    },
    /// A task cannot be recovered.
    #[error("task {task} of process {process} is refused: {reason}")]
    Refused {
        /// The task.
        task: String,
        /// The process.
        process: String,
        /// The named error.
        reason: String,
    },
    /// An invariant does not hold.
    #[error("seed {seed}: {} violations, the first: {}", found.len(), found.first().map_or("", String::as_str))]
    Violated {
        /// The seed that shows it again.
        seed: u64,
        /// All of them.
        found: Vec<String>,
    },
}

/// A record as it stands in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its content.
    pub record: RawRecord,
}

/// A topology under test. See the module's text.
pub struct Driver {
    setup: Setup,
    running: Option<Running>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("seed", &self.setup.seed).finish_non_exhaustive()
    }
}

impl Driver {
    /// A driver for a topology: one process, one partition per topic, seed 1.
    pub fn new(topology: Topology) -> Self {
        Self { setup: Setup::new(topology), running: None }
    }

    /// The driver at work; it starts with the first call that needs it.
    fn at_work(&mut self) -> Result<&mut Running, DriverError> {
        if self.running.is_none() {
            self.running = Some(Running::start(&self.setup)?);
        }
        Ok(self.running.as_mut().expect("it was started"))
    }

    /// Writes a record to a topic, to the partition of its key, with the time of the driver's clock.
    pub fn pipe(
        &mut self,
        topic: &str,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<(), DriverError> {
        let running = self.at_work()?;
        let timestamp = running.now_ms();
        let record =
            RawRecord { key: Some(key.into()), value: Some(value.into()), timestamp, headers: Vec::new() };
        running.append(topic, None, record)
    }

    /// As [`Driver::pipe`], through codecs.
    pub fn pipe_as<K, V>(
        &mut self,
        topic: &str,
        key: (&impl Codec<K>, &K),
        value: (&impl Codec<V>, &V),
    ) -> Result<(), DriverError> {
        let (mut key_bytes, mut value_bytes) = (Vec::new(), Vec::new());
        key.0.encode(key.1, &mut key_bytes)?;
        value.0.encode(value.1, &mut value_bytes)?;
        self.pipe(topic, key_bytes, value_bytes)
    }

    /// Writes a record as it is, to that partition or to that of its key.
    pub fn pipe_record(
        &mut self,
        topic: &str,
        partition: Option<i32>,
        record: RawRecord,
    ) -> Result<(), DriverError> {
        self.at_work()?.append(topic, partition, record)
    }

    /// Lets everything run until nothing is under way: all input is processed and committed. Time moves on as far as
    /// that takes.
    pub fn run(&mut self) -> Result<(), DriverError> {
        self.at_work()?.run()
    }

    /// One round: each process does what it has to do, once.
    pub fn round(&mut self) -> Result<bool, DriverError> {
        Ok(self.at_work()?.round())
    }

    /// Time passes while the processes work: timers fire, transactions are committed or time out.
    pub fn advance(&mut self, by: Duration) -> Result<(), DriverError> {
        self.at_work()?.advance(by);
        Ok(())
    }

    /// Committed records of a topic that no call has told yet, by partition and offset. Runs first.
    pub fn read(&mut self, topic: &str) -> Result<Vec<Found>, DriverError> {
        let running = self.at_work()?;
        running.run()?;
        running.read(topic)
    }

    /// As [`Driver::read`], through codecs. A record without key or value is an error of its codec.
    pub fn read_as<K, V>(
        &mut self,
        topic: &str,
        key: &impl Codec<K>,
        value: &impl Codec<V>,
    ) -> Result<Vec<(K, V)>, DriverError> {
        let found = self.read(topic)?;
        let decode = |found: Found| {
            let key = key.decode(&found.record.key.unwrap_or_default())?;
            Ok((key, value.decode(&found.record.value.unwrap_or_default())?))
        };
        found.into_iter().map(decode).collect()
    }

    /// Every committed record of a topic from its beginning, also what compaction and retention have taken.
    pub fn read_all(&mut self, topic: &str) -> Result<Vec<Found>, DriverError> {
        self.at_work()?.read_all(topic)
    }

    /// Keys and values of a store as bytes, at its committed boundary, of all its tasks. Runs first.
    pub fn store_bytes(&mut self, name: &str) -> Result<BTreeMap<Bytes, Bytes>, DriverError> {
        let running = self.at_work()?;
        running.run()?;
        let (store, boundaries) = running.boundaries(name)?;
        let mut all = BTreeMap::new();
        for boundary in boundaries {
            let pairs = boundary.scan(store, &KeyRange::ALL, Direction::Forward);
            for pair in pairs {
                let (key, value) = pair.map_err(|error| DriverError::Store(error.to_string()))?;
                all.insert(key, value);
            }
        }
        Ok(all)
    }

    /// Keys and values of a key-value store or a table at its committed boundary, of all its tasks. Runs first.
    pub fn store<K: Ord + 'static, V: 'static>(&mut self, name: &str) -> Result<BTreeMap<K, V>, DriverError> {
        let handle: KvStore<K, V> =
            self.setup.topology.store(name).ok_or_else(|| DriverError::UnknownStore(name.to_owned()))?;
        let running = self.at_work()?;
        running.run()?;
        let failed = |error: StoreError| DriverError::Store(error.to_string());
        let mut all = BTreeMap::new();
        for boundary in running.boundaries(name)?.1 {
            for pair in handle.read(&boundary).map_err(failed)?.all() {
                let (key, value) = pair.map_err(failed)?;
                all.insert(key, value);
            }
        }
        Ok(all)
    }

    /// The first process that comes to that point is killed there. It is started again in the next round.
    pub fn crash_at(&mut self, point: impl Into<Point>) -> &mut Self {
        self.crash_after(point, 0)
    }

    /// As [`Driver::crash_at`], after so many passages in a process.
    pub fn crash_after(&mut self, point: impl Into<Point>, passages: u64) -> &mut Self {
        let point = point.into();
        match &mut self.running {
            Some(running) => running.arm(point, passages),
            None => self.setup.armed.push((point, passages)),
        }
        self
    }

    /// The answer of the next commit is lost; this is what the coordinator did.
    pub fn timeout_commit(&mut self, outcome: Outcome) -> &mut Self {
        match &mut self.running {
            Some(running) => running.lose_commit(outcome),
            None => self.setup.lost_commits.push(outcome),
        }
        self
    }

    /// Tasks move between the living processes, cleanly: what they did is committed first.
    pub fn rebalance(&mut self) -> Result<(), DriverError> {
        self.at_work()?.rebalance();
        Ok(())
    }

    /// Kills a process now; `power`: its machine too, and the newest writes to its disk are lost.
    pub fn kill(&mut self, process: usize, power: bool) -> Result<(), DriverError> {
        self.at_work()?.kill(process, power);
        Ok(())
    }

    /// A process stands still, as under SIGSTOP; the group gives its tasks to others, if there are any.
    pub fn freeze(&mut self, process: usize) -> Result<(), DriverError> {
        self.at_work()?.freeze(process);
        Ok(())
    }

    /// It goes on, and believes to be what it was.
    pub fn thaw(&mut self, process: usize) -> Result<(), DriverError> {
        self.at_work()?.thaw(process);
        Ok(())
    }

    /// Checks the invariants against the whole history of the log: every store is the fold of its changelog below
    /// its position (I1), no position is past its committed target (I2), every transaction that wrote something
    /// committed offsets (I3).
    pub fn check(&mut self) -> Result<(), DriverError> {
        let seed = self.setup.seed;
        let found = self.at_work()?.violations();
        if found.is_empty() { Ok(()) } else { Err(DriverError::Violated { seed, found }) }
    }

    /// How often a process was killed, over all.
    pub fn kills(&self) -> u64 {
        self.counts().iter().map(|counts| counts.kills).sum()
    }

    /// What each process counted.
    pub fn counts(&self) -> Vec<ProcessCounts> {
        self.running.as_ref().map_or_else(Vec::new, Running::counts)
    }

    /// Figures of a process's worker; they begin anew when the process is started anew. `None` before its first round.
    pub fn metrics(&self, process: usize) -> Option<Arc<WorkerMetrics>> {
        self.running.as_ref()?.metrics(process)
    }

    /// Tasks that cannot be recovered, with the named error.
    pub fn refused(&self) -> Vec<String> {
        self.running.as_ref().map_or_else(Vec::new, Running::refused)
    }
}
