//! Applying an entry: the only place where durable state changes, live and in replay.
//!
//! Place in the walk: below [`super::Step::emit`] (the entry was just decided) and [`ShardState::replay`] (the
//! log gives it back). It sees the entry, its position and its time, nothing else.
//!
//! Invariants: what is done here is a function of the durable state and the arguments. An entry that does not
//! continue its partition is an error, never a gap.

use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::types::TopicIdPartition;
use thiserror::Error;

use super::ShardState;
use crate::cluster;
use crate::decision::{Position, ShardTime};
use crate::partition::{Applied, Role};

/// Why entries are not the continuation of a state.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReplayError {
    /// The entry's partition does not exist at this point of the log.
    #[error("entry for an unknown partition: topic id {} partition {}", .partition.topic_id, .partition.partition)]
    UnknownPartition {
        /// The partition named.
        partition: TopicIdPartition,
    },
    /// The entry does not begin where its partition ends.
    #[error("topic id {} partition {}: entry at offset {found}, the log ends at {expected}", .partition.topic_id, .partition.partition)]
    Offset {
        /// The partition.
        partition: TopicIdPartition,
        /// Where the partition ends.
        expected: i64,
        /// Base offset of the entry.
        found: i64,
    },
    /// A kind of entry that this version does not know.
    #[error("topic id {} partition {}: unsupported kind of entry {kind}", .partition.topic_id, .partition.partition)]
    Kind {
        /// The partition.
        partition: TopicIdPartition,
        /// Number of the kind.
        kind: u8,
    },
    /// A record that the broker itself writes cannot be read.
    #[error("topic id {} partition {}: record at offset {offset}: {reason}", .partition.topic_id, .partition.partition)]
    Record {
        /// The partition.
        partition: TopicIdPartition,
        /// Base offset of its batch.
        offset: i64,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// What applying entries changed, for the shell to publish.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Partitions whose bounds changed, each once per step.
    pub(crate) touched: Vec<TopicIdPartition>,
    /// Topics, configs or features changed.
    pub(crate) image_changed: bool,
}

impl ShardState {
    /// Applies an entry of the log.
    pub(super) fn apply(
        &mut self,
        entry: &Entry,
        position: Position,
        time: ShardTime,
        effects: &mut Effects,
    ) -> Result<(), ReplayError> {
        let partition = entry.partition;
        let slot = self.partitions.slot(partition).ok_or(ReplayError::UnknownPartition { partition })?;
        let expected = self.partitions.get(slot).log_end_offset();
        if entry.header.base_offset != expected || entry.header.last_offset_delta < 0 {
            return Err(ReplayError::Offset { partition, expected, found: entry.header.base_offset });
        }
        let is_control = self.partitions.get(slot).is_control();
        if entry.kind != if is_control { EntryKind::Control } else { EntryKind::Batch } {
            return Err(ReplayError::Kind { partition, kind: entry.kind as u8 });
        }
        self.apply_at(slot, entry, position, time, effects)
    }

    /// Applies an entry that continues the partition in `slot`.
    #[inline]
    pub(super) fn apply_at(
        &mut self,
        slot: u32,
        entry: &Entry,
        position: Position,
        time: ShardTime,
        effects: &mut Effects,
    ) -> Result<(), ReplayError> {
        let applied =
            self.partitions.apply(slot, entry, position, time, self.config.limits.leader_epochs_max)?;
        if applied.first_in_step {
            effects.touched.push(entry.partition);
        }
        match self.partitions.get(slot).role() {
            Role::Data => Ok(()),
            Role::Control => cluster::apply(self, entry, position, effects),
            Role::TransactionState => self.apply_transaction_records(entry, position),
            Role::ConsumerOffsets => self.apply_group_records(entry, &applied, position),
        }
    }

    fn apply_transaction_records(&mut self, entry: &Entry, position: Position) -> Result<(), ReplayError> {
        self.transactions.apply(entry, position)
    }

    fn apply_group_records(
        &mut self,
        entry: &Entry,
        applied: &Applied,
        position: Position,
    ) -> Result<(), ReplayError> {
        match applied.marker {
            Some(marker) => {
                self.groups.apply_marker(
                    entry.partition.partition,
                    marker.producer_id,
                    marker.commit,
                    position,
                );
                Ok(())
            }
            None => self.groups.apply(entry, position),
        }
    }
}
