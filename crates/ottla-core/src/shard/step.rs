//! One step: a command on its way to a decision.
//!
//! Place in the walk: made by [`ShardState::step`], handed to the handler of the command. A handler reads the
//! state, answers, and emits entries; an emitted entry is applied before the next one is built, so that the
//! handler always sees the state it has made.
//!
//! Invariants: the step has one position, the next one, which counts only if entries were emitted. Entries
//! carry the next offset of their partition and the leader epoch of the tenure.

use bytes::Bytes;
use ottla_protocol::batch::BatchHeader;
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::{NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicIdPartition};

use super::apply::Effects;
use super::{ShardState, batches};
use crate::cluster;
use crate::command::Token;
use crate::decision::{Answer, Decision, Position, Reply, ShardTime};
use crate::event::Event;

/// A command on its way to a decision.
pub(crate) struct Step<'a> {
    /// The state, as the entries emitted so far have made it.
    pub(crate) state: &'a mut ShardState,
    /// Shard time of the command.
    pub(crate) now: ShardTime,
    entries: Vec<Entry>,
    answers: Vec<Answer>,
    effects: Effects,
    events: Vec<Event>,
}

/// A record to be written by a coordinator or the control log.
#[derive(Clone, Debug)]
pub(crate) struct NewRecord {
    pub(crate) key: Bytes,
    /// None: a tombstone.
    pub(crate) value: Option<Bytes>,
}

/// Whose batch it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) transactional: bool,
}

impl Stamp {
    /// A batch of the broker itself.
    pub(crate) const NONE: Self =
        Self { producer_id: NO_PRODUCER_ID, producer_epoch: NO_PRODUCER_EPOCH, transactional: false };
}

/// A transaction marker (eos-semantics 2.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marker {
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) commit: bool,
    pub(crate) coordinator_epoch: i32,
    /// Below 2 the marker may repeat the producer's epoch, from 2 on it must pass it.
    pub(crate) transaction_version: i8,
}

impl<'a> Step<'a> {
    pub(super) fn new(state: &'a mut ShardState, now: ShardTime) -> Self {
        Self {
            state,
            now,
            entries: Vec::new(),
            answers: Vec::new(),
            effects: Effects::default(),
            events: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> Decision {
        if !self.entries.is_empty() {
            self.state.position.0 += 1;
            if self.state.volatile.pack_check.is_none() {
                self.state.schedule_packing(self.now);
            }
            if self.state.volatile.producer_check.is_none() {
                self.state.schedule_producer_check(self.now);
            }
        }
        Decision {
            entries: self.entries,
            answers: self.answers,
            touched: self.effects.touched,
            image_changed: self.effects.image_changed,
            events: self.events,
        }
    }

    /// Position of this decision if it has entries, else of the last one that had.
    pub(crate) fn position(&self) -> Position {
        Position(self.state.position.0 + u64::from(!self.entries.is_empty()))
    }

    /// Whether the step has emitted entries, and so cannot be refused as a whole any more.
    pub(crate) fn has_entries(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Answers a command: this one or one that was parked.
    pub(crate) fn answer(&mut self, token: Token, reply: Reply, rests_on: Position) {
        self.answers.push(Answer { token, reply, rests_on });
    }

    /// Notes what people may want to know.
    pub(crate) fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Emits a batch for the partition in `slot`: gives it its offset and leader epoch, applies it, keeps it for
    /// the log. Returns its base offset.
    pub(crate) fn emit(&mut self, slot: u32, mut header: BatchHeader, tail: Bytes) -> i64 {
        let partition = self.state.partitions.get(slot);
        let kind = if partition.is_control() { EntryKind::Control } else { EntryKind::Batch };
        header.base_offset = partition.log_end_offset();
        header.partition_leader_epoch = partition.leader_epoch(self.state.shard_epoch);
        let entry = Entry { kind, partition: partition.partition(), header, tail };
        let position = Position(self.state.position.0 + 1);
        self.state
            .apply_at(slot, &entry, position, self.now, &mut self.effects)
            .expect("an entry that was just decided can be applied");
        self.entries.push(entry);
        header.base_offset
    }

    /// Builds a batch of the given records (uncompressed, timestamps = now) and emits it. Returns the offset of
    /// the first record. At least one record; the partition must exist.
    pub(crate) fn append_records(
        &mut self,
        partition: TopicIdPartition,
        records: &[NewRecord],
        stamp: Stamp,
    ) -> i64 {
        let slot =
            self.state.partitions.slot(partition).expect("coordinators append to partitions that exist");
        let (header, tail) = batches::records(records, stamp, self.now.0);
        self.emit(slot, header, tail)
    }

    /// Whether a coordinator may append for this producer: 47 when its epoch is over, 3 without the partition.
    pub(crate) fn check_epoch(
        &self,
        partition: TopicIdPartition,
        producer_id: i64,
        producer_epoch: i16,
    ) -> Result<(), ErrorCode> {
        let partitions = &self.state.partitions;
        let slot = partitions.slot(partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        partitions.check_epoch(slot, producer_id, producer_epoch)
    }

    /// Whether the marker would be accepted there: 3, 47, 52 (eos-semantics 2.2, in this order).
    pub(crate) fn check_marker(&self, partition: TopicIdPartition, marker: &Marker) -> Result<(), ErrorCode> {
        let partitions = &self.state.partitions;
        let slot = partitions.slot(partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        partitions.check_marker(slot, marker)
    }

    /// Epoch of the coordinator that wrote the producer's last marker there; -1 for none.
    pub(crate) fn stored_coordinator_epoch(&self, partition: TopicIdPartition, producer_id: i64) -> i32 {
        let partitions = &self.state.partitions;
        let producer = partitions.slot(partition).and_then(|slot| partitions.producer(slot, producer_id));
        producer.map_or(-1, |producer| producer.coordinator_epoch())
    }

    /// Writes a marker that was checked, or that the shard's own coordinator insists on.
    pub(crate) fn append_marker(&mut self, partition: TopicIdPartition, marker: &Marker) {
        let slot = self.state.partitions.slot(partition).expect("a marker's partition was checked");
        let (header, tail) = batches::marker(marker, self.now.0);
        self.emit(slot, header, tail);
        self.state.volatile.verifications.remove(partition, marker.producer_id);
    }

    /// Writes records into the control log, as one batch.
    pub(crate) fn append_control(&mut self, records: &[NewRecord]) {
        self.append_records(cluster::CONTROL_PARTITION, records, Stamp::NONE);
    }

    /// A producer id that nobody ever had. Reserves a block by a control record when the last one is used up.
    pub(crate) fn allocate_producer_id(&mut self) -> i64 {
        if self.state.volatile.producer_ids.is_empty() {
            let first = self.state.producer_ids.next();
            let next = first + cluster::PRODUCER_ID_BLOCK;
            self.append_control(&[cluster::records::producer_id_block(next)]);
            self.state.volatile.producer_ids = first..next;
        }
        self.state.volatile.producer_ids.next().expect("a block was reserved")
    }
}
