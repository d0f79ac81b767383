//! The boundary of a runner: commit, rollback, and finding out how a commit ended.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use ottla_client::{GroupMetadata, OffsetToCommit, Text};

use super::{Lane, POSITIONS, Phase, Runner, RunnerError};
use crate::anchor::{self, Anchor, Target};
use crate::meta::Meta;
use crate::port::{CommitFailure, PortError, TransactionPort};
use crate::record::{OutputRecord, RawRecord};

impl Lane {
    /// The boundary that the last try would make.
    fn boundary(&self, at: ottla_client::TopicPartition, offset: i64, writer: &str) -> Meta {
        let mut meta = self.state.meta().clone();
        (meta.seq, meta.writer) = (self.attempt, writer.to_owned());
        meta.inputs.insert(at, offset);
        meta.stores[usize::from(POSITIONS.0)].position = offset;
        meta
    }
}

impl<T: TransactionPort> Runner<T> {
    /// Commits what was read since the last boundary. `false`: there was nothing, or it did not come about yet;
    /// [`Runner::run_once`] goes on with it.
    pub fn commit(&mut self, now: Duration, group: &GroupMetadata) -> Result<bool, RunnerError> {
        if !self.settle(now)? || self.phase != Phase::Open {
            return Ok(false);
        }
        let dirty: BTreeSet<i32> =
            self.lanes.iter().filter(|(_, lane)| !lane.moved.is_empty()).map(|(lane, _)| *lane).collect();
        if !self.send_positions(&dirty, now)? {
            return Ok(false);
        }
        let acked = match self.port.flush() {
            Ok(acked) => acked,
            Err(error) => return self.call_failed(now, "flush", error).map(|()| false),
        };
        let mut offsets = Vec::new();
        for number in &dirty {
            let at = self.settings.lane_partition(*number);
            let lane = self.lanes.get_mut(number).expect("dirty lanes are here");
            let end = acked.get(&at).expect("a position was sent and acknowledged").offset + 1;
            lane.attempt += 1;
            lane.offset = end;
            let anchor = Anchor {
                writer: self.settings.writer.clone(),
                seq: lane.attempt,
                targets: vec![Target { offset: end, leader_epoch: -1 }],
                stream_time: i64::MIN,
                timers: Vec::new(),
            };
            offsets.push(OffsetToCommit { metadata: anchor.encode().into(), ..OffsetToCommit::new(at, end) });
        }
        if let Err(error) = self.port.send_offsets(&offsets, group) {
            return self.call_failed(now, "offsets", error).map(|()| false);
        }
        match self.port.commit() {
            Ok(()) => self.committed(&dirty).map(|()| true),
            Err(CommitFailure::Aborted(reason)) => {
                self.fail(&reason, false);
                Ok(false)
            }
            Err(CommitFailure::Unknown(reason)) => {
                tracing::warn!(writer = self.settings.writer, reason, "the outcome of a commit is not known");
                self.phase = Phase::Undecided { lanes: dirty, decided: false };
                Ok(false)
            }
            Err(CommitFailure::Fenced(_)) if self.has_timed_out(now) => {
                self.metrics.timed_out += 1;
                self.phase = Phase::Undecided { lanes: dirty, decided: false };
                Ok(false)
            }
            Err(CommitFailure::Fenced(reason)) => {
                self.fail(&reason, false);
                Err(PortError::Fenced(reason).into())
            }
            Err(CommitFailure::Fatal(reason)) => Err(PortError::Fatal(reason).into()),
        }
    }

    /// The newest position of every source partition that moved, to its lane.
    fn send_positions(&mut self, dirty: &BTreeSet<i32>, now: Duration) -> Result<bool, RunnerError> {
        let topic = Text::from(self.settings.positions_topic.as_str());
        let mut records = Vec::new();
        for number in dirty {
            let moved = &self.lanes[number].moved;
            records.extend(moved.iter().map(|(id, position)| OutputRecord {
                topic: topic.clone(),
                partition: Some(*number),
                record: RawRecord {
                    key: Some(Bytes::copy_from_slice(id.0.as_bytes())),
                    value: Some(position.0.clone()),
                    timestamp: 0,
                    headers: Vec::new(),
                },
            }));
        }
        for record in records {
            if let Err(error) = self.port.send(record) {
                return self.call_failed(now, "send", error).map(|()| false);
            }
        }
        Ok(true)
    }

    /// S4 and S5.
    fn committed(&mut self, dirty: &BTreeSet<i32>) -> Result<(), RunnerError> {
        for number in dirty {
            let at = self.settings.lane_partition(*number);
            let Some(lane) = self.lanes.get_mut(number) else { continue };
            let meta = lane.boundary(at, lane.offset, &self.settings.writer);
            lane.base = (meta.seq, meta.writer.clone());
            lane.state.apply(meta)?;
            for (id, position) in std::mem::take(&mut lane.moved) {
                self.source.committed(&id, &position);
            }
        }
        self.metrics.commits += 1;
        self.metrics.records += self.records;
        self.forget();
        Ok(())
    }

    fn forget(&mut self) {
        (self.phase, self.dirty_since, self.bytes, self.records) = (Phase::Idle, None, 0, 0);
    }

    pub(super) fn fail(&mut self, reason: &str, reinit: bool) {
        tracing::warn!(writer = self.settings.writer, reason, "a transaction of a source is rolled back");
        self.phase = Phase::Failed { reinit };
    }

    /// What follows from a call that failed.
    pub(super) fn call_failed(
        &mut self,
        now: Duration,
        what: &str,
        error: PortError,
    ) -> Result<(), RunnerError> {
        match error {
            // It may have been carried out, so the whole transaction is done again.
            PortError::Retriable(reason) => {
                self.pause(now, what, &reason);
                self.fail(&reason, false);
                Ok(())
            }
            PortError::MustAbort(reason) => {
                self.fail(&reason, false);
                Ok(())
            }
            // the coordinator has given the transaction up, and nobody else has taken the id
            PortError::Fenced(reason) if self.has_timed_out(now) => {
                self.metrics.timed_out += 1;
                self.fail(&reason, true);
                Ok(())
            }
            error => {
                self.fail(&error.to_string(), false);
                Err(error.into())
            }
        }
    }

    /// The coordinator may have ended the transaction: it was open for so long. It began a little later there.
    fn has_timed_out(&self, now: Duration) -> bool {
        let limit = self.settings.transaction_timeout * 9 / 10;
        self.dirty_since.is_some_and(|since| now.saturating_sub(since) >= limit)
    }

    /// Ends what the last calls left: an abort, or a commit without an answer. `false`: not yet.
    pub(super) fn settle(&mut self, now: Duration) -> Result<bool, RunnerError> {
        match self.phase.clone() {
            Phase::Idle | Phase::Open => Ok(true),
            Phase::Failed { reinit } => {
                let ended = if reinit { self.port.reinit() } else { self.port.abort() };
                match ended {
                    Ok(()) => self.rolled_back().map(|()| true),
                    Err(PortError::Retriable(reason)) => {
                        self.pause(now, "abort", &reason);
                        Ok(false)
                    }
                    Err(PortError::MustAbort(_)) if !reinit => {
                        self.phase = Phase::Failed { reinit: true };
                        Ok(false)
                    }
                    Err(PortError::Fenced(_)) if !reinit && self.has_timed_out(now) => {
                        self.metrics.timed_out += 1;
                        self.phase = Phase::Failed { reinit: true };
                        Ok(false)
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Phase::Undecided { lanes, decided } => self.resolve(now, &lanes, decided),
        }
    }

    fn rolled_back(&mut self) -> Result<(), RunnerError> {
        for (number, lane) in &mut self.lanes {
            lane.state.rollback();
            lane.moved.clear();
            lane.readers.clear(); // opened again at the committed positions
            lane.offset =
                lane.state.meta().inputs.get(&self.settings.lane_partition(*number)).copied().unwrap_or(0);
        }
        self.metrics.rollbacks += 1;
        self.forget();
        Ok(())
    }

    /// Takes the id anew, which ends the transaction, and reads how it ended.
    fn resolve(&mut self, now: Duration, lanes: &BTreeSet<i32>, decided: bool) -> Result<bool, RunnerError> {
        if !decided {
            match self.port.reinit() {
                Ok(()) => self.phase = Phase::Undecided { lanes: lanes.clone(), decided: true },
                Err(PortError::Retriable(reason)) => {
                    self.pause(now, "reinit", &reason);
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let partitions: Vec<_> = lanes.iter().map(|lane| self.settings.lane_partition(*lane)).collect();
        let committed = match self.reader.committed(&self.settings.group_id, &partitions) {
            Ok(committed) => committed,
            Err(PortError::Retriable(reason)) => {
                self.pause(now, "witness", &reason);
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        let mut carried_out = BTreeSet::new();
        let mut lost = Vec::new();
        for number in lanes {
            let at = self.settings.lane_partition(*number);
            let Some(lane) = self.lanes.get(number) else { continue };
            let own: Vec<_> = committed.iter().filter(|found| found.topic_partition == at).cloned().collect();
            let found = anchor::newest(&own).map_or((0, String::new()), |anchor| (anchor.seq, anchor.writer));
            if found == (lane.attempt, self.settings.writer.clone()) {
                carried_out.insert(*number);
            } else if found != lane.base {
                lost.push(*number);
            }
        }
        for number in lost {
            tracing::warn!(lane = number, "another member has taken the lane");
            self.lanes.remove(&number);
        }
        if carried_out.is_empty() {
            self.rolled_back()?;
        } else {
            self.metrics.resolved_committed += 1;
            self.committed(&carried_out)?;
        }
        Ok(true)
    }
}
