//! A state from the batches that are left, when there is neither a snapshot nor the whole log to replay.
//!
//! Used by the doctor alone. Nothing here is needed where replay can begin at a snapshot or at the first frame: files that
//! nobody needed any more are gone then, and with them the order in which the rest was decided. But all of the control
//! log is kept, whatever is dropped or rewritten, and of every partition what is behind its log start; and a partition's
//! own order is that of its offsets. So the control log is applied first, as a whole, then each partition by itself,
//! then what the control log says of partitions' starts and cleaning.
//!
//! What cannot be had this way: producers that a partition had forgotten are known again until they expire anew, and
//! where offsets are missing, so is what was in them. Neither makes a record up or gives an offset twice. Of a partition
//! that was compacted files may still hold batches that compaction has left out, and only snapshots say which count: then
//! there is no state to be had.

use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::types::TopicIdPartition;

use super::apply::Effects;
use super::{ReplayError, ShardState};
use crate::cluster::{self, ControlRecord};
use crate::config::CoreConfig;
use crate::decision::{Position, ShardTime};
use crate::partition::Role;

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuilt {
    /// It is part of the state now.
    Taken,
    /// The state has these offsets already.
    Known,
    /// Its topic is deleted.
    Deleted,
}

/// A state that is put together.
pub struct Rebuild {
    state: ShardState,
    /// What concerns partitions, in the control log's order.
    later: Vec<ControlRecord>,
}

impl Rebuild {
    /// Begins with an empty state.
    pub fn new(config: CoreConfig) -> Self {
        Self { state: ShardState::new(config), later: Vec::new() }
    }

    /// Takes the next batch of the control log; all of them, in the order of their offsets, before anything else.
    ///
    /// # Errors
    /// When it is damaged, or an offset is missing in front of it: then it cannot be said what there is.
    pub fn control(&mut self, entry: &Entry, time: ShardTime) -> Result<(), ReplayError> {
        let entry = Entry { kind: EntryKind::Control, ..entry.clone() };
        let partition = entry.partition;
        let slot =
            self.state.partitions.slot(partition).ok_or(ReplayError::UnknownPartition { partition })?;
        let expected = self.state.partitions.get(slot).log_end_offset();
        if entry.header.base_offset != expected {
            return Err(ReplayError::Offset { partition, expected, found: entry.header.base_offset });
        }
        let position = Position::default();
        let most = self.state.config.limits.leader_epochs_max;
        self.state.partitions.apply(slot, &entry, position, time, most)?;
        let later =
            cluster::apply_without_partitions(&mut self.state, &entry, position, &mut Effects::default())?;
        self.later.extend(later);
        Ok(())
    }

    /// Takes a batch of another partition. Those of one partition come in the order of their offsets; what was there
    /// already is passed over.
    ///
    /// # Errors
    /// When the broker's own records in it cannot be read.
    pub fn batch(&mut self, entry: &Entry, time: ShardTime) -> Result<Rebuilt, ReplayError> {
        let Some(slot) = self.state.partitions.slot(entry.partition) else { return Ok(Rebuilt::Deleted) };
        let end = self.state.partitions.get(slot).log_end_offset();
        let base_offset = entry.header.base_offset;
        if base_offset < end {
            return Ok(Rebuilt::Known);
        }
        if base_offset > end {
            self.state.partitions.go_on_at(slot, base_offset);
        }
        let entry = Entry { kind: EntryKind::Batch, ..entry.clone() };
        self.state.apply(&entry, Position::default(), time, &mut Effects::default())?;
        Ok(Rebuilt::Taken)
    }

    /// What a partition is for; none when there is no such partition.
    pub fn role_of(&self, partition: &TopicIdPartition) -> Option<Role> {
        self.state.partitions.slot(*partition).map(|slot| self.state.partitions.get(slot).role())
    }

    /// The state, at the position and epoch of the last frame that is left.
    ///
    /// # Errors
    /// When a partition was compacted, or what the control log says of partitions makes no sense.
    pub fn finish(mut self, position: Position, shard_epoch: i32) -> Result<ShardState, &'static str> {
        let mut effects = Effects::default();
        for record in self.later {
            let partition = match &record {
                ControlRecord::LogStart { partition, log_start_offset } => {
                    if let Some(slot) = self.state.partitions.slot(*partition)
                        && self.state.partitions.get(slot).log_end_offset() < *log_start_offset
                    {
                        self.state.partitions.go_on_at(slot, *log_start_offset);
                    }
                    *partition
                }
                ControlRecord::Cleaned { partition, .. } => {
                    if self.state.partitions.slot(*partition).is_some() {
                        return Err("a partition was compacted, and which of its batches count is not known");
                    }
                    continue;
                }
                _ => continue, // producers that were forgotten are known again until they expire
            };
            if self.state.partitions.slot(partition).is_some() {
                cluster::apply_record(&mut self.state, record, 0, Position::default(), &mut effects)?;
            }
        }
        self.state.position = position;
        self.state.shard_epoch = shard_epoch;
        Ok(self.state)
    }
}
