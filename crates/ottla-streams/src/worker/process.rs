//! S0: tasks take records, and what they emit goes to the producer.

use std::collections::BTreeMap;

use crate::port::{PortError, TransactionPort};
use crate::record::{OutputRecord, RawRecord, TaskId};
use crate::state::StateError;
use crate::task::{Emit, Stepped, TaskError};

use super::slot::{Slot, Status};
use super::{Guarantee, Phase, Step, Worker, WorkerError, WorkerEvent};

/// Records that a task takes before the next one has its turn.
const QUANTUM: usize = 64;

impl<T: TransactionPort> Worker<T> {
    /// Lets tasks work, in turn, until none has anything to do, a commit is due, or `records_max` were taken.
    pub(super) fn process(&mut self) -> Result<bool, WorkerError> {
        let mut left = self.settings.records_max;
        let mut worked = false;
        let mut out = Vec::new();
        loop {
            let mut round = false;
            for id in self.turns() {
                let took = self.serve(id, QUANTUM.min(left), &mut out)?;
                left -= took.records;
                round |= took.records > 0;
                worked |= took.records > 0 || took.timers;
                self.turn = Some(id);
                if left == 0 || matches!(self.phase, Phase::Failed { .. }) || self.is_commit_due() {
                    return Ok(worked);
                }
            }
            if !round {
                return Ok(worked);
            }
        }
    }

    /// Tasks that may work, beginning behind the one that had the last turn.
    fn turns(&self) -> Vec<TaskId> {
        let running = |(id, slot): (&TaskId, &Slot)| {
            (slot.status == Status::Running && !self.needs_anchor(slot)).then_some(*id)
        };
        let mut ids: Vec<TaskId> = self.slots.iter().filter_map(running).collect();
        let first = self.turn.map_or(0, |turn| ids.partition_point(|id| *id <= turn));
        ids.rotate_left(first);
        ids
    }

    fn serve(&mut self, id: TaskId, records_max: usize, out: &mut Vec<Emit>) -> Result<Took, WorkerError> {
        let wall_ms = self.clock.wall_ms();
        let mut took = Took::default();
        while took.records < records_max {
            let Some(slot) = self.slots.get_mut(&id) else { return Ok(took) };
            match slot.task.step(wall_ms, out) {
                Ok(Stepped::Idle) => break,
                Ok(Stepped::Record) => {
                    took.records += 1;
                    self.metrics.records.add(1);
                }
                Ok(Stepped::Punctuated) => took.timers = true,
                Err(TaskError::PutAside { at, reason }) => {
                    self.fail(&format!("{at} is left out: {reason}"), false);
                    return Ok(took);
                }
                Err(TaskError::State(error)) if error.is_io() || error.damage().is_some() => {
                    self.engine_failed(id, &error);
                    return Ok(took);
                }
                Err(error) => {
                    self.task_failed(id, &error.to_string());
                    return Ok(took);
                }
            }
            let wants_commit = slot.task.wants_commit();
            if self.dirty_since.is_none() && slot.is_dirty() {
                self.dirty_since = Some(self.now());
            }
            if !self.emit(id, out)? || wants_commit {
                return Ok(took);
            }
        }
        Ok(took)
    }

    /// Hands over what a task emitted. `false`: the transaction has failed.
    fn emit(&mut self, id: TaskId, out: &mut Vec<Emit>) -> Result<bool, WorkerError> {
        if out.is_empty() {
            return Ok(true);
        }
        for emit in out.drain(..) {
            let Some(record) = self.record_of(id, emit) else { continue };
            if !self.open()? {
                return Ok(false);
            }
            if self.wrote.get(&record.topic) != Some(&id) {
                self.wrote.insert(record.topic.clone(), id);
            }
            match self.port.send(record) {
                Ok(_) => {}
                Err(PortError::RecordRefused { topic, reason }) => {
                    self.result_refused(id, &topic, &reason);
                    return Ok(false);
                }
                Err(error) => {
                    self.call_failed(error)?;
                    return Ok(false);
                }
            }
        }
        self.at(Step::AfterSend)?;
        if self.careful.contains_key(&id) { self.acknowledge(id) } else { Ok(true) }
    }

    /// Waits until the step just done is acknowledged: a record that is refused now is one of its results. `false`: the
    /// transaction has failed.
    fn acknowledge(&mut self, id: TaskId) -> Result<bool, WorkerError> {
        match self.port.flush() {
            Ok(acked) => self.keep_acked(acked),
            Err(PortError::Retriable(_)) => {} // the commit asks again
            Err(PortError::RecordRefused { topic, reason }) => {
                self.result_refused(id, &topic, &reason);
                return Ok(false);
            }
            Err(error) => {
                self.call_failed(error)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A record of the transaction was refused, and nobody knows which: all tasks of it go the same way again, step by
    /// step. `false`: they do so already.
    fn go_carefully(&mut self) -> bool {
        let suspects: BTreeMap<_, _> = self
            .slots
            .iter()
            .filter(|(id, slot)| slot.is_dirty() && !self.careful.contains_key(id))
            .map(|(id, slot)| (*id, slot.task.offsets()))
            .collect();
        let is_new = !suspects.is_empty();
        self.careful.extend(suspects);
        is_new
    }

    /// A result of the step just done cannot be written, ever: the task's policy says what becomes of its record.
    fn result_refused(&mut self, id: TaskId, topic: &str, reason: &str) {
        let judged = self.slots.get_mut(&id).map(|slot| slot.task.refused(topic, reason));
        match judged {
            Some(Ok(())) => self
                .fail(&format!("a result for {topic} is refused, its record is left out: {reason}"), false),
            Some(Err(error)) => self.task_failed(id, &error.to_string()),
            None => self.fail(reason, false),
        }
    }

    /// What goes to the cluster; nothing for the table of an input topic, which is its own changelog.
    fn record_of(&self, id: TaskId, emit: Emit) -> Option<OutputRecord> {
        match emit {
            Emit::Output(record) => Some(record),
            Emit::Change(change) => {
                let at = self.slots.get(&id)?.changelog(change.store)?;
                let (key, value, timestamp) = (Some(change.key), change.value, change.timestamp);
                let record = RawRecord { key, value, timestamp, headers: Vec::new() };
                Some(OutputRecord { topic: at.topic.clone(), partition: Some(at.partition), record })
            }
        }
    }

    /// Begins the transaction unless one is open. `false`: it has failed.
    pub(super) fn open(&mut self) -> Result<bool, WorkerError> {
        if self.phase != Phase::Idle {
            return Ok(true);
        }
        if self.settings.guarantee == Guarantee::ExactlyOnce
            && let Err(error) = self.port.begin()
        {
            self.call_failed(error)?;
            return Ok(false);
        }
        self.phase = Phase::Open { since: self.now() };
        Ok(true)
    }

    /// A call of the open transaction failed where it cannot be repeated: the transaction is given up.
    pub(super) fn call_failed(&mut self, error: PortError) -> Result<(), WorkerError> {
        match error {
            PortError::Retriable(reason) | PortError::MustAbort(reason) => {
                self.fail(&reason, false);
                Ok(())
            }
            PortError::NotOwner(reason) => {
                self.metrics.not_owner.add(1);
                self.fail(&reason, true);
                Ok(())
            }
            PortError::RecordRefused { ref topic, .. } => {
                let reason = error.to_string();
                if self.go_carefully() {
                    self.fail(&reason, false);
                    return Ok(());
                }
                match self.wrote.get(topic.as_bytes()) {
                    Some(id) => self.task_failed(*id, &reason),
                    None => self.fail(&reason, false),
                }
                Ok(())
            }
            PortError::Fenced(reason) => self.fenced(&reason),
            error @ (PortError::MetadataTooLarge { .. }
            | PortError::OutOfRange { .. }
            | PortError::Fatal(_)) => Err(self.port_error(error)),
        }
    }

    /// The id is not ours any more. After a time-out of the transaction that is the coordinator's doing, and the id
    /// is taken anew; before it, somebody else's.
    pub(super) fn fenced(&mut self, reason: &str) -> Result<(), WorkerError> {
        let since = match &self.phase {
            Phase::Idle => self.now(),
            Phase::Open { since } | Phase::Failed { since, .. } | Phase::Undecided { since, .. } => *since,
        };
        if !self.has_timed_out(since) {
            return Err(WorkerError::Fenced {
                writer: self.settings.writer.clone(),
                reason: reason.to_owned(),
            });
        }
        self.metrics.timed_out.add(1);
        let reason = format!("the transaction was open for longer than its time-out: {reason}");
        let not_owner = matches!(self.phase, Phase::Failed { not_owner: true, .. });
        self.phase = Phase::Failed { since, reason, reinit: true, not_owner };
        Ok(())
    }

    /// The coordinator may have given the transaction up. It began a little later there than here.
    pub(super) fn has_timed_out(&self, since: std::time::Duration) -> bool {
        self.now().saturating_sub(since) >= self.settings.transaction_timeout * 9 / 10
    }

    /// A task cannot go on where it stands.
    fn task_failed(&mut self, id: TaskId, reason: &str) {
        if let Some(slot) = self.slots.get_mut(&id) {
            let faults = slot.fault();
            if faults >= self.settings.faults_max {
                slot.status = Status::SetApart;
                let reason = reason.to_owned();
                self.events.push(WorkerEvent::SetApart { task: id, faults, reason });
            }
        }
        self.fail(&format!("task {id}: {reason}"), false);
    }

    /// A task's stores cannot be read. What it did since its last boundary is aborted. No record is to blame, so it
    /// counts as no fault.
    fn engine_failed(&mut self, id: TaskId, error: &StateError) {
        self.fail(&format!("task {id}: {error}"), false);
        self.close_engine(id, error);
    }

    /// A task leaves at its last boundary, since its stores cannot be used as they are.
    pub(super) fn close_engine(&mut self, id: TaskId, error: &StateError) {
        let Some(slot) = self.take_slot(id) else { return };
        let (task, state, reason) = (id, slot.into_state(), error.to_string());
        self.events.push(match error.is_io() {
            true => WorkerEvent::Reopen { task, state, reason },
            false => WorkerEvent::Damaged { task, state, reason },
        });
    }

    /// Gives the transaction up; [`Worker::settle`] does the rest.
    pub(super) fn fail(&mut self, reason: &str, not_owner: bool) {
        let since = match self.phase {
            Phase::Open { since } => since,
            Phase::Idle => self.now(),
            Phase::Failed { .. } | Phase::Undecided { .. } => return,
        };
        self.phase = Phase::Failed { since, reason: reason.to_owned(), reinit: false, not_owner };
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Took {
    records: usize,
    timers: bool,
}
