//! What a record causes, and what becomes of one that fails.
//!
//! A record that fails under a policy other than failing is left out. When it has left no trace that is done at once;
//! else the task remembers it, asks for a rollback, and leaves it out when it is taken again.

use super::inputs::Taken;
use super::time::During;
use super::{ASIDE_MAX, Failure, Kind, Policy, RecordPosition, Task, TaskError, TimerClock, Trouble};
use crate::record::RawRecord;

/// What a record that failed has left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traces {
    /// Nothing.
    None,
    /// Writes or outputs.
    Some,
    /// Nodes in an unknown condition.
    Panic,
}

impl Task {
    /// Everything that a record causes.
    pub(super) fn take(&mut self, taken: Taken) -> Result<(), TaskError> {
        let at = RecordPosition { topic_partition: taken.at, offset: taken.offset };
        self.core.metrics.records += 1;
        self.core.position = Some(at.clone());
        self.stepped = Some(at.clone());
        self.core.now = taken.timestamp.max(0);
        self.keep_in_table(taken.source, &taken.record)?;
        if taken.timestamp < 0 {
            let reason = "the record has no timestamp (a negative one)".to_owned();
            return self.judge(at, (String::new(), reason, Kind::Decode), Traces::None);
        }
        self.move_time(taken.timestamp)?;
        self.core.now = taken.timestamp;
        if let Some((node, reason, kind)) = self.aside.get(&at).cloned() {
            self.leave_out(&at, &node, &reason, kind);
        } else {
            self.process(at, taken.source, taken.record, taken.timestamp)?;
        }
        let stream_time = self.core.stream_time;
        self.fire(TimerClock::StreamTime, stream_time).map(|_| ())
    }

    /// Puts a record of a table's topic into its store, as it is: the store is the fold of the topic whatever becomes
    /// of the record after that, since a restore of the store knows only bytes.
    fn keep_in_table(&mut self, source: usize, record: &RawRecord) -> Result<(), TaskError> {
        let Some(store) = self.core.tables[source] else { return Ok(()) };
        let Some(key) = record.key.clone() else {
            self.core.metrics.null_keys += 1;
            return Ok(());
        };
        match self.core.put(store, key, record.value.clone()) {
            Ok(()) => Ok(()),
            Err(Failure::State(error)) => Err(error.into()),
            Err(Failure::Decode(reason) | Failure::Encode(reason) | Failure::Process(reason)) => {
                let (node, during) = (self.core.name(source).to_owned(), During::Record.text());
                Err(TaskError::Timer { node, during, reason })
            }
        }
    }

    /// Gives a record to its source node, and does what the policy says when that fails.
    fn process(
        &mut self,
        at: RecordPosition,
        source: usize,
        raw: RawRecord,
        timestamp: i64,
    ) -> Result<(), TaskError> {
        let effects = self.core.effects;
        let mut item = Some((raw, timestamp));
        let Err(trouble) = self.guarded(|core| core.call(source, 0, &mut item)) else { return Ok(()) };
        let node = self.core.culprit();
        self.core.working.clear();
        let (kind, reason, panicked) = match trouble {
            Trouble::Failed(Failure::State(error)) => return Err(error.into()),
            Trouble::Failed(Failure::Decode(reason)) => (Kind::Decode, reason, false),
            Trouble::Failed(Failure::Encode(reason)) => (Kind::Produce, reason, false),
            Trouble::Failed(Failure::Process(reason)) => (Kind::Process, reason, false),
            Trouble::Panicked(message) => (Kind::Process, message, true),
        };
        let traces = match panicked {
            true => Traces::Panic,
            false if self.core.effects == effects => Traces::None,
            false => Traces::Some,
        };
        self.judge(at, (node, reason, kind), traces)
    }

    /// Does with a record that failed what its policy says.
    fn judge(
        &mut self,
        at: RecordPosition,
        (node, reason, kind): (String, String, Kind),
        traces: Traces,
    ) -> Result<(), TaskError> {
        if *self.policy(kind) == Policy::Fail || self.aside.len() >= ASIDE_MAX {
            return Err(match kind {
                Kind::Decode => TaskError::Decode { at, node, reason },
                Kind::Produce => TaskError::Produce { at, node, reason },
                Kind::Process if traces == Traces::Panic => TaskError::Panicked { at, node, message: reason },
                Kind::Process => TaskError::Process { at, node, reason },
            });
        }
        if traces == Traces::None {
            self.leave_out(&at, &node, &reason, kind);
            return Ok(());
        }
        self.aside.insert(at.clone(), (node, reason.clone(), kind));
        Err(TaskError::PutAside { at, reason })
    }

    pub(super) fn policy(&self, kind: Kind) -> &Policy {
        let policies = self.topology.policies();
        match kind {
            Kind::Decode => &policies.on_decode_error,
            Kind::Process => &policies.on_process_error,
            Kind::Produce => &policies.on_produce_error,
        }
    }

    /// Counts the record at hand, which is left out, and writes its dead letter.
    fn leave_out(&mut self, at: &RecordPosition, node: &str, reason: &str, kind: Kind) {
        self.core.metrics.put_aside += 1;
        let total = self.core.metrics.put_aside;
        // A flood of them is not a flood of lines.
        if total.is_power_of_two() {
            tracing::warn!(task = %self.id, record = %at, node, reason, total, "a record is left out");
        }
        if let Policy::DeadLetter(topic) = self.policy(kind).clone() {
            let raw = self.inputs.last_taken(at).expect("taken records are kept until the boundary");
            self.core.dead_letter(&topic, raw, at, node, reason);
        }
    }
}
