//! The simulated cluster behind the two ports of a worker, with faults on the way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ottla_client::partitioner::partition_for_key;
use ottla_client::{CommittedOffset, GroupMetadata, OffsetToCommit, TopicPartition};
use ottla_env::rng::Rng;

use super::cluster::{Cluster, Outcome};
use super::log::Producer;
use crate::port::{
    Acked, ChangelogPiece, CommitFailure, LogBounds, PortError, ReadPort, Ticket, TransactionPort,
};
use crate::record::{OutputRecord, RawRecord};

/// The cluster, shared.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Cluster>>);

impl Shared {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self(Arc::new(Mutex::new(cluster)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // one thread; a panic of a test is told by the test
    }
}

/// What goes wrong between one process and the cluster.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Of the next commits, in order.
    pub(super) commits: VecDeque<Outcome>,
    /// The next so many flushes, offset commits or takings of the id fail and may be tried again.
    pub(super) flushes: u32,
    pub(super) offsets: u32,
    pub(super) inits: u32,
    /// A topic whose records are refused for good.
    pub(super) refused: Option<String>,
    /// A value that is refused for good when it is to be acknowledged and not before, in all topics but that one.
    pub(super) poison: Option<(bytes::Bytes, String)>,
    /// Broken variant: offsets that did not move are not committed.
    pub(super) skips_idle_offsets: bool,
}

pub(super) type SharedFaults = Arc<Mutex<Faults>>;

fn lock(faults: &SharedFaults) -> MutexGuard<'_, Faults> {
    faults.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fails(left: &mut u32, what: &str) -> Result<(), PortError> {
    if *left == 0 {
        return Ok(());
    }
    *left -= 1;
    Err(PortError::Retriable(format!("{what}: no answer")))
}

/// One transactional id, or a plain producer.
#[derive(Debug)]
pub(super) struct SimProducer {
    cluster: Shared,
    faults: SharedFaults,
    timeout: Duration,
    /// Absent = at least once.
    id: Option<(String, Producer)>,
    /// Not sent yet.
    waiting: VecDeque<(TopicPartition, RawRecord)>,
    acked: BTreeMap<TopicPartition, Acked>,
    /// Topic of a record that is refused.
    poisoned: Option<String>,
    tickets: u64,
    /// The cluster knows of the transaction.
    open: bool,
    round_robin: i32,
}

impl SimProducer {
    /// Takes the id.
    pub(super) fn take(
        cluster: &Shared,
        faults: &SharedFaults,
        transactional_id: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, PortError> {
        let id = match transactional_id {
            Some(id) => Some((id.to_owned(), cluster.lock().init(id, timeout)?)),
            None => None,
        };
        Ok(Self {
            cluster: cluster.clone(),
            faults: Arc::clone(faults),
            timeout,
            id,
            waiting: VecDeque::new(),
            acked: BTreeMap::new(),
            poisoned: None,
            tickets: 0,
            open: false,
            round_robin: 0,
        })
    }

    fn transaction(&self) -> Option<(&str, Producer)> {
        self.id.as_ref().map(|(id, producer)| (id.as_str(), *producer))
    }

    /// Sends what waits.
    fn drain(&mut self) -> Result<(), PortError> {
        let cluster = self.cluster.clone();
        let mut cluster = cluster.lock();
        while let Some((at, record)) = self.waiting.front() {
            let (offset, leader_epoch) = cluster.produce(self.transaction(), at, record.clone())?;
            self.open = true;
            self.acked.insert(at.clone(), Acked { offset, leader_epoch });
            self.waiting.pop_front();
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.waiting.clear();
        self.acked.clear();
        self.poisoned = None;
        self.tickets = 0;
        self.open = false;
    }
}

impl TransactionPort for SimProducer {
    fn begin(&mut self) -> Result<(), PortError> {
        self.reset();
        Ok(())
    }

    fn send(&mut self, record: OutputRecord) -> Result<Ticket, PortError> {
        let partitions = self.cluster.lock().partition_count(&record.topic);
        let refused = lock(&self.faults).refused.as_deref() == Some(record.topic.as_str());
        let Some(partitions) = partitions.filter(|_| !refused) else {
            let reason = "UNKNOWN_TOPIC_OR_PARTITION".to_owned();
            return Err(PortError::RecordRefused { topic: record.topic.to_string(), reason });
        };
        if let Some((value, safe)) = &lock(&self.faults).poison
            && record.record.value.as_ref() == Some(value)
            && record.topic.as_str() != safe
        {
            self.poisoned.get_or_insert(record.topic.to_string());
        }
        let partition = match (record.partition, &record.record.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_for_key(key, partitions),
            (None, None) => {
                self.round_robin = (self.round_robin + 1) % partitions;
                self.round_robin
            }
        };
        self.waiting.push_back((TopicPartition::new(record.topic, partition), record.record));
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        // half of them go at once, as with a producer that lingers
        if self.cluster.lock().rng.one_in(2) {
            match self.drain() {
                Ok(()) | Err(PortError::Retriable(_)) => {} // an earlier transaction is still ending; they wait
                Err(error) => return Err(error),
            }
        }
        Ok(ticket)
    }

    fn flush(&mut self) -> Result<BTreeMap<TopicPartition, Acked>, PortError> {
        fails(&mut lock(&self.faults).flushes, "flush")?;
        if let Some(topic) = self.poisoned.clone() {
            return Err(PortError::RecordRefused { topic, reason: "INVALID_RECORD".to_owned() });
        }
        self.drain()?;
        Ok(self.acked.clone())
    }

    fn send_offsets(&mut self, offsets: &[OffsetToCommit], group: &GroupMetadata) -> Result<(), PortError> {
        let mut faults = lock(&self.faults);
        fails(&mut faults.offsets, "offsets")?;
        let mut cluster = self.cluster.lock();
        if faults.skips_idle_offsets {
            let moved = |offset: &OffsetToCommit| {
                cluster.committed_at(&offset.topic_partition).offset != Some(offset.offset)
            };
            if !offsets.iter().any(moved) {
                return Ok(()); // as Kafka's producer does with an empty map: nothing is sent
            }
        }
        self.open = true; // whatever the answer is: it may have begun the transaction
        cluster.commit_offsets(self.transaction(), offsets, group)
    }

    fn commit(&mut self) -> Result<(), CommitFailure> {
        let Some((id, producer)) = self.id.clone() else { return Ok(()) };
        let lost = lock(&self.faults).commits.pop_front();
        let mut cluster = self.cluster.lock();
        match lost {
            None if !self.open => return Ok(()),
            None => {}
            Some(outcome) => {
                match outcome {
                    Outcome::Committed => {
                        cluster.end_txn(&id, producer, true)?;
                    }
                    Outcome::Aborted => {}
                    Outcome::Late(ms) => cluster.delay_commit(&id, producer, Duration::from_millis(ms)),
                }
                return Err(CommitFailure::Unknown("no answer to EndTxn".to_owned()));
            }
        }
        let producer = cluster.end_txn(&id, producer, true)?;
        drop(cluster);
        self.id = Some((id, producer));
        self.reset();
        Ok(())
    }

    fn abort(&mut self) -> Result<(), PortError> {
        let Some((id, producer)) = self.id.clone() else { return Ok(()) };
        if self.open {
            match self.cluster.lock().end_txn(&id, producer, false) {
                Ok(producer) => self.id = Some((id, producer)),
                Err(CommitFailure::Fenced(reason)) => return Err(PortError::Fenced(reason)),
                Err(error) => return Err(PortError::Retriable(error.to_string())),
            }
        }
        self.reset();
        Ok(())
    }

    fn reinit(&mut self) -> Result<(), PortError> {
        fails(&mut lock(&self.faults).inits, "InitProducerId")?;
        if let Some((id, _)) = self.id.clone() {
            let producer = self.cluster.lock().init(&id, self.timeout)?;
            self.id = Some((id, producer));
        }
        self.reset();
        Ok(())
    }
}

/// Reads.
#[derive(Clone, Debug)]
pub(super) struct SimReader {
    cluster: Shared,
}

impl SimReader {
    pub(super) fn new(cluster: &Shared) -> Self {
        Self { cluster: cluster.clone() }
    }
}

impl ReadPort for SimReader {
    fn committed(
        &mut self,
        _group_id: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, PortError> {
        self.cluster.lock().committed(partitions)
    }

    fn bounds(&mut self, at: &TopicPartition) -> Result<LogBounds, PortError> {
        let cluster = self.cluster.lock();
        let log = cluster.log_of(at)?;
        Ok(LogBounds {
            log_start: log.log_start(),
            last_stable: log.last_stable(),
            log_end: log.end(),
            topic_id: log.topic_id.clone(),
        })
    }

    fn read(
        &mut self,
        at: &TopicPartition,
        from: i64,
        bytes_max: usize,
        _wait: Duration,
    ) -> Result<ChangelogPiece, PortError> {
        let cluster = self.cluster.lock();
        let log = cluster.log_of(at)?;
        if from < log.log_start() || from > log.end() {
            let (log_start, log_end) = (log.log_start(), log.end());
            return Err(PortError::OutOfRange { at: at.clone(), offset: from, log_start, log_end });
        }
        Ok(log.piece(from, bytes_max))
    }

    fn epoch_end(&mut self, at: &TopicPartition, leader_epoch: i32) -> Result<Option<i64>, PortError> {
        Ok(Some(self.cluster.lock().log_of(at)?.epoch_end(leader_epoch)))
    }

    fn tombstone_horizon(&mut self, at: &TopicPartition) -> Result<Option<i64>, PortError> {
        let cluster = self.cluster.lock();
        let horizon = cluster.log_of(at)?.horizon();
        Ok(cluster.tells_horizon.then_some(horizon))
    }

    fn delete_retention(&mut self, topic: &str) -> Result<Duration, PortError> {
        let found = self.cluster.lock().delete_retention(topic);
        found.ok_or_else(|| PortError::Fatal(format!("there is no topic {topic}")))
    }
}
