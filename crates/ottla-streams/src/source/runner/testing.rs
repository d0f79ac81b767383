//! A cluster in memory for tests of sources: one transactional id, logs with undecided records, and calls that fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ottla_client::{CommittedOffset, GroupMetadata, OffsetToCommit, TopicPartition};

use crate::port::{
    Acked, ChangelogPiece, ChangelogRecord, CommitFailure, LogBounds, PortError, ReadPort, Ticket,
    TransactionPort,
};
use crate::record::{OutputRecord, RawRecord};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Open,
    Committed,
    Aborted,
}

#[derive(Debug, Default)]
pub(crate) struct Cluster {
    logs: BTreeMap<TopicPartition, Vec<(u64, RawRecord)>>,
    fates: BTreeMap<u64, Fate>,
    offsets: BTreeMap<TopicPartition, OffsetToCommit>,
    pending: BTreeMap<u64, Vec<OffsetToCommit>>,
    epoch: u64,
    open: Option<u64>,
    transactions: u64,
    /// What goes wrong next: the call counts down.
    pub(crate) fail_in: Option<(u32, Failure)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Retriable,
    MustAbort,
    /// The process is gone: every call fails from here on.
    Gone,
    CommittedUnanswered,
    AbortedUnanswered,
}

#[derive(Clone, Default)]
pub(crate) struct Shared(pub(crate) Arc<Mutex<Cluster>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cluster {
    fn end(&mut self, fate: Fate) {
        let Some(id) = self.open.take() else { return };
        self.fates.insert(id, fate);
        let pending = self.pending.remove(&id).unwrap_or_default();
        if fate == Fate::Committed {
            self.offsets.extend(pending.into_iter().map(|offset| (offset.topic_partition.clone(), offset)));
        }
    }

    /// Lost answers are those of commits, and count commits; the others count calls.
    fn due(&mut self, is_commit: bool) -> Option<Failure> {
        let (left, failure) = self.fail_in.as_mut()?;
        if !is_commit && matches!(failure, Failure::CommittedUnanswered | Failure::AbortedUnanswered) {
            return None;
        }
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let failure = *failure;
        if failure != Failure::Gone {
            self.fail_in = None;
        }
        Some(failure)
    }

    pub(crate) fn committed_values(&self, topic: &str) -> Vec<String> {
        let logs = self.logs.iter().filter(|(at, _)| at.topic == *topic);
        logs.flat_map(|(_, log)| log)
            .filter(|(id, _)| self.fates.get(id) == Some(&Fate::Committed))
            .map(|(_, record)| String::from_utf8(record.value.clone().expect("set").to_vec()).expect("text"))
            .collect()
    }
}

pub(crate) struct Port {
    cluster: Shared,
    epoch: u64,
    acked: BTreeMap<TopicPartition, Acked>,
}

impl Port {
    pub(crate) fn take(cluster: &Shared) -> Self {
        let mut state = cluster.lock();
        state.end(Fate::Aborted);
        state.epoch += 1;
        let epoch = state.epoch;
        drop(state);
        Self { cluster: cluster.clone(), epoch, acked: BTreeMap::new() }
    }

    fn call(&self) -> Result<MutexGuard<'_, Cluster>, PortError> {
        let mut cluster = self.cluster.lock();
        match cluster.due(false) {
            None | Some(Failure::CommittedUnanswered | Failure::AbortedUnanswered) => {}
            Some(Failure::Retriable) => return Err(PortError::Retriable("no answer".into())),
            Some(Failure::MustAbort) => return Err(PortError::MustAbort("told so".into())),
            Some(Failure::Gone) => return Err(PortError::Fatal("gone".into())),
        }
        if cluster.epoch != self.epoch {
            return Err(PortError::Fenced("another epoch".into()));
        }
        Ok(cluster)
    }
}

impl TransactionPort for Port {
    fn begin(&mut self) -> Result<(), PortError> {
        let mut cluster = self.call()?;
        cluster.transactions += 1;
        let id = cluster.transactions;
        cluster.fates.insert(id, Fate::Open);
        cluster.open = Some(id);
        drop(cluster);
        self.acked.clear();
        Ok(())
    }

    fn send(&mut self, record: OutputRecord) -> Result<Ticket, PortError> {
        let at = TopicPartition::new(record.topic.as_str(), record.partition.unwrap_or(0));
        let mut cluster = self.call()?;
        let id = cluster.open.expect("begun");
        let log = cluster.logs.entry(at.clone()).or_default();
        log.push((id, record.record));
        let offset = i64::try_from(log.len()).expect("small") - 1;
        drop(cluster);
        self.acked.insert(at, Acked { offset, leader_epoch: -1 });
        Ok(Ticket(0))
    }

    fn flush(&mut self) -> Result<BTreeMap<TopicPartition, Acked>, PortError> {
        drop(self.call()?);
        Ok(self.acked.clone())
    }

    fn send_offsets(&mut self, offsets: &[OffsetToCommit], _: &GroupMetadata) -> Result<(), PortError> {
        let mut cluster = self.call()?;
        let id = cluster.open.expect("begun");
        cluster.pending.entry(id).or_default().extend(offsets.to_vec());
        Ok(())
    }

    fn commit(&mut self) -> Result<(), CommitFailure> {
        let mut cluster = self.cluster.lock();
        if cluster.epoch != self.epoch {
            return Err(CommitFailure::Fenced("another epoch".into()));
        }
        match cluster.due(true) {
            None => cluster.end(Fate::Committed),
            Some(Failure::CommittedUnanswered) => {
                cluster.end(Fate::Committed);
                return Err(CommitFailure::Unknown("no answer".into()));
            }
            Some(Failure::AbortedUnanswered | Failure::Retriable) => {
                return Err(CommitFailure::Unknown("no answer".into()));
            }
            Some(Failure::MustAbort) => {
                cluster.end(Fate::Aborted);
                return Err(CommitFailure::Aborted("told so".into()));
            }
            Some(Failure::Gone) => return Err(CommitFailure::Fatal("gone".into())),
        }
        Ok(())
    }

    fn abort(&mut self) -> Result<(), PortError> {
        self.call()?.end(Fate::Aborted);
        Ok(())
    }

    fn reinit(&mut self) -> Result<(), PortError> {
        let mut cluster = self.call()?;
        cluster.end(Fate::Aborted);
        cluster.epoch += 1;
        let epoch = cluster.epoch;
        drop(cluster);
        self.epoch = epoch;
        Ok(())
    }
}

impl ReadPort for Shared {
    fn committed(
        &mut self,
        _: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, PortError> {
        let cluster = self.lock();
        let of = |at: &TopicPartition| {
            let found = cluster.offsets.get(at);
            CommittedOffset {
                topic_partition: at.clone(),
                offset: found.map(|found| found.offset),
                leader_epoch: -1,
                metadata: found.map_or_else(|| "".into(), |found| found.metadata.clone()),
            }
        };
        Ok(partitions.iter().map(of).collect())
    }

    fn bounds(&mut self, at: &TopicPartition) -> Result<LogBounds, PortError> {
        let cluster = self.lock();
        let log = cluster.logs.get(at).map_or(&[][..], Vec::as_slice);
        let log_end = i64::try_from(log.len()).expect("small");
        let undecided = log.iter().position(|(id, _)| cluster.fates[id] == Fate::Open);
        let last_stable = undecided.map_or(log_end, |at| i64::try_from(at).expect("small"));
        Ok(LogBounds { log_start: 0, last_stable, log_end, topic_id: String::new() })
    }

    fn read(
        &mut self,
        at: &TopicPartition,
        from: i64,
        _: usize,
        _: Duration,
    ) -> Result<ChangelogPiece, PortError> {
        let bounds = self.bounds(at)?;
        let cluster = self.lock();
        let log = cluster.logs.get(at).map_or(&[][..], Vec::as_slice);
        let records = (0..)
            .zip(log)
            .filter(|(offset, (id, _))| {
                (from..bounds.last_stable).contains(offset) && cluster.fates[id] == Fate::Committed
            })
            .map(|(offset, (_, record))| ChangelogRecord {
                offset,
                timestamp: 0,
                key: record.key.clone(),
                value: record.value.clone(),
            })
            .collect();
        let last_stable = bounds.last_stable;
        Ok(ChangelogPiece { records, next_offset: last_stable, last_stable, leader_epoch: -1 })
    }

    fn epoch_end(&mut self, _: &TopicPartition, _: i32) -> Result<Option<i64>, PortError> {
        Ok(None)
    }

    fn tombstone_horizon(&mut self, _: &TopicPartition) -> Result<Option<i64>, PortError> {
        Ok(None)
    }

    fn delete_retention(&mut self, _: &str) -> Result<Duration, PortError> {
        Ok(Duration::from_secs(86_400))
    }
}
