//! The shard's state and the only two ways through it: [`ShardState::step`] for a command that is new,
//! [`ShardState::replay`] for entries that were decided before.
//!
//! Place in the walk: the owner thread calls `step`, gives the entries to the log, and lets the answers out when
//! the position they rest on is durable. At start and after a failed write the state is thrown away, restored
//! from the newest snapshot ([`Restore`]) and replayed.
//!
//! Invariants:
//! - Durable state changes only in `apply` (`shard/apply.rs`), which sees nothing but an entry, its position and
//!   its time. `step` and `replay` both go through it.
//! - `Volatile` lists everything else that a decision may look at. No durable decision rests on it except to
//!   refuse or to wait; it starts empty at every epoch.
//! - All entries of one step are one atomic group: refuse before the first emit, there is no way back after it.

use std::sync::Arc;

use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;

use crate::cluster::{self, Image};
use crate::command::Command;
use crate::config::CoreConfig;
use crate::decision::{Bounds, Decision, Position, ShardTime};
use crate::partition::{Partitions, Verifications};
use crate::{group, txn};

mod apply;
mod batches;
mod dispatch;
mod rebuild;
mod snapshot;
mod step;
#[cfg(test)]
mod tests;

pub(crate) use apply::Effects;
pub use apply::ReplayError;
pub use rebuild::{Rebuild, Rebuilt};
pub use snapshot::{ChunkFacts, Restore, RestoreError, Snapshot};
pub(crate) use snapshot::{Decoder, Encoder, Section, chunked, section};
pub(crate) use step::{Marker, NewRecord, Stamp, Step};

/// Everything that one shard knows. One owner; readers get [`Bounds`] and [`Image`] values.
pub struct ShardState {
    /// Settings in force: the broker's, with the dynamic ones of the control log over them.
    pub(crate) config: CoreConfig,
    /// Epoch of this tenure, from the log; 0 before [`ShardState::begin_epoch`].
    pub(crate) shard_epoch: i32,
    /// Of the last decision that was applied.
    pub(crate) position: Position,
    /// Cluster id, features and dynamic settings.
    pub(crate) cluster: cluster::ClusterState,
    /// Producer ids that were reserved.
    pub(crate) producer_ids: cluster::ProducerIds,
    /// Topics by name and id.
    pub(crate) topics: cluster::Topics,
    /// Partitions and their producers.
    pub(crate) partitions: Partitions,
    /// The transaction coordinator.
    pub(crate) transactions: txn::Coordinator,
    /// The group coordinator.
    pub(crate) groups: group::Groups,
    /// What a reload loses.
    pub(crate) volatile: Volatile,
}

/// State that is lost by a reload, beside the deadlines that the coordinators keep themselves.
pub(crate) struct Volatile {
    /// Which connection spoke last for a transaction of protocol v1.
    pub(crate) fence: txn::fence::Fence,
    /// Sequences whose verification was refused: later ones may not overtake them.
    pub(crate) verifications: Verifications,
    /// The rest of the reserved block of producer ids.
    pub(crate) producer_ids: std::ops::Range<i64>,
    /// When expired producers are looked for next; none while there are no producers.
    pub(crate) producer_check: Option<ShardTime>,
    /// How far the search is.
    pub(crate) producer_cursor: u32,
    /// When producers that rest are packed next; none while there are no others.
    pub(crate) pack_check: Option<ShardTime>,
    /// How far the search for them is.
    pub(crate) pack_cursor: u32,
}

impl Volatile {
    fn new(config: &CoreConfig) -> Self {
        Self {
            fence: txn::fence::Fence::new(config),
            verifications: Verifications::new(config),
            producer_ids: 0..0,
            producer_check: None,
            producer_cursor: 0,
            pack_check: None,
            pack_cursor: 0,
        }
    }
}

impl ShardState {
    /// An empty shard: no topics, not even the internal ones, until `CommandBody::Bootstrap` made them.
    pub fn new(config: CoreConfig) -> Self {
        let mut partitions = Partitions::new(&config);
        partitions.create_control(Position::default());
        Self {
            shard_epoch: 0,
            position: Position::default(),
            cluster: cluster::ClusterState::new(&config),
            producer_ids: cluster::ProducerIds::default(),
            topics: cluster::Topics::new(&config),
            partitions,
            transactions: txn::Coordinator::new(&config),
            groups: group::Groups::new(&config),
            volatile: Volatile::new(&config),
            config,
        }
    }

    /// Decides one command at `now` and applies what was decided. Never fails: a refusal is an answer.
    pub fn step(&mut self, command: Command, now: ShardTime) -> Decision {
        let mut step = Step::new(self, now);
        dispatch::dispatch(&mut step, command);
        step.finish()
    }

    /// Applies entries that the log gives back, in the log's order. `position` and `time` are those of the frame.
    ///
    /// # Errors
    /// When the entries are not the continuation of this state. The state is then of no use.
    pub fn replay(
        &mut self,
        entries: &[Entry],
        position: Position,
        time: ShardTime,
    ) -> Result<(), ReplayError> {
        let mut effects = apply::Effects::default();
        for entry in entries {
            self.apply(entry, position, time, &mut effects)?;
            effects.touched.clear();
        }
        self.position = position;
        Ok(())
    }

    /// Begins a tenure after a load or reload: volatile state starts empty, deadlines start fresh from `now`.
    /// Appends from here on carry the new epoch.
    pub fn begin_epoch(&mut self, shard_epoch: i32, now: ShardTime) {
        assert!(shard_epoch >= self.shard_epoch, "epochs of a shard never go back");
        self.shard_epoch = shard_epoch;
        self.volatile = Volatile::new(&self.config);
        self.schedule_producer_check(now);
        self.schedule_packing(now);
        self.transactions.begin_epoch(&self.config, shard_epoch, now);
        self.groups.begin_epoch(&self.config, self.cluster.group_configs(), now);
    }

    /// Takes over which connection spoke last for a v1 transaction, after a reload within one process: the
    /// connections are the same as before, and so are the late requests on them.
    pub fn adopt_connection_marks(&mut self, before: &mut Self) {
        std::mem::swap(&mut self.volatile.fence, &mut before.volatile.fence);
    }

    /// What a reader may see of a partition, once the state's position is durable. None: no such partition.
    pub fn bounds(&self, partition: TopicIdPartition) -> Option<Bounds> {
        let slot = self.partitions.slot(partition)?;
        Some(self.partitions.bounds(slot, self.shard_epoch))
    }

    /// Partitions with their bounds, for the first publication after a load. In no order.
    pub fn all_bounds(&self) -> impl Iterator<Item = (TopicIdPartition, Bounds)> {
        self.partitions
            .iter()
            .map(|(slot, state)| (state.partition(), self.partitions.bounds(slot, self.shard_epoch)))
    }

    /// Topics, configs and features as of the state's position. Costs a few dozen reference counts.
    pub fn image(&self) -> Arc<Image> {
        Arc::new(Image::of(self))
    }

    /// Whether `CommandBody::Bootstrap` has been applied.
    pub fn is_bootstrapped(&self) -> bool {
        self.cluster.is_bootstrapped()
    }

    /// When to send `CommandBody::Tick`. None: nothing waits for time.
    pub fn next_deadline(&self) -> Option<ShardTime> {
        let volatile = &self.volatile;
        let own = [volatile.producer_check, volatile.pack_check];
        let coordinators = [self.transactions.next_deadline(), self.groups.next_deadline()];
        own.into_iter().chain(coordinators).flatten().min()
    }

    /// Moves all deadlines by the time for which the owner stood still.
    pub fn shift_deadlines(&mut self, by_ms: i64) {
        if let Some(check) = &mut self.volatile.producer_check {
            check.0 = check.0.saturating_add(by_ms);
        }
        self.transactions.shift_deadlines(by_ms);
        self.groups.shift_deadlines(by_ms);
    }

    /// Everything durable as of the state's position: one reference count per 4,096 values.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self)
    }

    /// Position of the last decision that was applied.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Looks for expired producers one interval from now, if there is anything to look for.
    pub(crate) fn schedule_producer_check(&mut self, now: ShardTime) {
        let interval = self.config.producer_id_expiration_check_interval_ms;
        let wanted = self.partitions.producer_count() > 0 || !self.volatile.verifications.is_empty();
        self.volatile.producer_check = wanted.then(|| ShardTime(now.0.saturating_add(interval)));
    }
}
