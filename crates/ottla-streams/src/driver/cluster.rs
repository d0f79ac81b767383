//! The simulated cluster: topics, the transaction coordinator, and one group's offsets and generations.
//!
//! It says what Apache Kafka 4.4 says with transaction.version 2: every transaction has an epoch of its own, a
//! commit is decided before its markers are written, offsets of a transaction are pending until then, and whoever
//! comes with an old epoch or an old generation is refused. Time is virtual; what is late, lost or refused is the
//! driver's choice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ottla_client::{CommittedOffset, GroupMetadata, OffsetToCommit, TopicPartition};
use ottla_env::clock::{Clock, ManualClock};
use ottla_env::rng::{Rng, SeededRng};

use super::log::{Log, Producer};
use crate::port::{CommitFailure, PortError};
use crate::record::RawRecord;

/// Longest metadata string, as `offset.metadata.max.bytes`.
const METADATA_BYTES_MAX: usize = 4096;

/// How an answer to a commit gets lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The coordinator decided to commit; the answer was lost.
    Committed,
    /// The request never reached the coordinator.
    Aborted,
    /// The request is still on its way, and arrives after that many milliseconds.
    Late(u64),
}

#[derive(Clone, Debug, Default)]
struct Transaction {
    since: Duration,
    partitions: BTreeSet<TopicPartition>,
    offsets: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Empty,
    Ongoing(Transaction),
    /// Decided; markers are still to be written at these times.
    Ending {
        producer: Producer,
        commit: bool,
        markers: BTreeMap<Option<TopicPartition>, Duration>,
    },
}

#[derive(Clone, Debug)]
struct Id {
    producer: Producer,
    stage: Stage,
    timeout: Duration,
}

#[derive(Clone, Debug, Default)]
struct Group {
    generation: i32,
    members: BTreeSet<String>,
    offsets: BTreeMap<TopicPartition, CommittedOffset>,
    /// By producer id.
    pending: BTreeMap<i64, BTreeMap<TopicPartition, CommittedOffset>>,
}

#[derive(Clone, Debug)]
struct Topic {
    partitions: Vec<Log>,
    delete_retention: Duration,
}

#[derive(Debug)]
struct Delayed {
    at: Duration,
    transactional_id: String,
    producer: Producer,
}

/// The cluster. Behind a lock, shared by all simulated processes.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) clock: Arc<ManualClock>,
    pub(super) rng: SeededRng,
    topics: BTreeMap<String, Topic>,
    ids: BTreeMap<String, Id>,
    group: Group,
    delayed: Vec<Delayed>,
    next_producer_id: i64,
    next_topic_id: u64,
    unwitnessed: u64,
    /// Markers are written up to that much after the decision.
    pub(super) marker_delay: Duration,
    /// It tells tombstone horizons, as Ottla does and Kafka does not.
    pub(super) tells_horizon: bool,
    /// It tells the leader epoch of what it writes.
    pub(super) tells_epoch: bool,
}

impl Cluster {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            clock: Arc::new(ManualClock::new(1_700_000_000_000)),
            rng: SeededRng::new(seed),
            topics: BTreeMap::new(),
            ids: BTreeMap::new(),
            group: Group::default(),
            delayed: Vec::new(),
            next_producer_id: 1,
            next_topic_id: 1,
            unwitnessed: 0,
            marker_delay: Duration::ZERO,
            tells_horizon: true,
            tells_epoch: true,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    // ---- topics

    pub(super) fn create(&mut self, topic: &str, partitions: i32) {
        if self.topics.contains_key(topic) {
            return;
        }
        let id = self.next_topic_id;
        self.next_topic_id += 1;
        let logs = (0..partitions).map(|_| Log::new(format!("topic-{id}"))).collect();
        let topic_state = Topic { partitions: logs, delete_retention: Duration::from_secs(24 * 3600) };
        self.topics.insert(topic.to_owned(), topic_state);
    }

    pub(super) fn set_delete_retention(&mut self, topic: &str, retention: Duration) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.delete_retention = retention;
        }
    }

    pub(super) fn delete_retention(&self, topic: &str) -> Option<Duration> {
        self.topics.get(topic).map(|topic| topic.delete_retention)
    }

    pub(super) fn partition_count(&self, topic: &str) -> Option<i32> {
        let count = self.topics.get(topic)?.partitions.len();
        Some(i32::try_from(count).expect("a simulated topic has few partitions"))
    }

    pub(super) fn log(&self, at: &TopicPartition) -> Option<&Log> {
        let index = usize::try_from(at.partition).ok()?;
        self.topics.get(at.topic.as_str())?.partitions.get(index)
    }

    pub(super) fn log_mut(&mut self, at: &TopicPartition) -> Option<&mut Log> {
        let index = usize::try_from(at.partition).ok()?;
        self.topics.get_mut(at.topic.as_str())?.partitions.get_mut(index)
    }

    pub(super) fn log_of(&self, at: &TopicPartition) -> Result<&Log, PortError> {
        self.log(at).ok_or_else(|| PortError::Fatal(format!("there is no partition {at}")))
    }

    // ---- transactions

    /// InitProducerId: ends what is open, returns when nothing is undecided.
    pub(super) fn init(&mut self, transactional_id: &str, timeout: Duration) -> Result<Producer, PortError> {
        if !self.ids.contains_key(transactional_id) {
            let producer = Producer { id: self.next_producer_id, epoch: 0 };
            self.next_producer_id += 1;
            self.ids.insert(transactional_id.to_owned(), Id { producer, stage: Stage::Empty, timeout });
            return Ok(producer);
        }
        if matches!(self.ids[transactional_id].stage, Stage::Ongoing(_)) {
            self.end(transactional_id, false);
        }
        let id = self.ids.get_mut(transactional_id).expect("it was there a moment ago");
        if !matches!(id.stage, Stage::Empty) {
            return Err(PortError::Retriable("CONCURRENT_TRANSACTIONS".to_owned()));
        }
        id.producer.epoch += 1;
        id.timeout = timeout;
        Ok(id.producer)
    }

    /// The open transaction of a producer, begun if need be.
    fn transaction(
        &mut self,
        transactional_id: &str,
        producer: Producer,
    ) -> Result<&mut Transaction, PortError> {
        let now = self.now();
        let id = self.ids.get_mut(transactional_id).expect("a port has its id from here");
        if id.producer != producer {
            return Err(PortError::Fenced(format!("PRODUCER_FENCED: {producer:?}, now {:?}", id.producer)));
        }
        if matches!(id.stage, Stage::Empty) {
            id.stage = Stage::Ongoing(Transaction { since: now, ..Transaction::default() });
        }
        match &mut id.stage {
            Stage::Ongoing(transaction) => Ok(transaction),
            Stage::Empty | Stage::Ending { .. } => {
                Err(PortError::Retriable("CONCURRENT_TRANSACTIONS".to_owned()))
            }
        }
    }

    pub(super) fn produce(
        &mut self,
        transaction: Option<(&str, Producer)>,
        at: &TopicPartition,
        record: RawRecord,
    ) -> Result<(i64, i32), PortError> {
        self.log_of(at)?;
        if let Some((transactional_id, producer)) = transaction {
            self.transaction(transactional_id, producer)?.partitions.insert(at.clone());
        }
        let tells = self.tells_epoch;
        let log = self.log_mut(at).expect("it was there a moment ago");
        let offset = log.append(record, transaction.map(|(_, producer)| producer));
        Ok((offset, if tells { log.leader_epoch() } else { -1 }))
    }

    /// TxnOffsetCommit, or OffsetCommit without a transaction.
    pub(super) fn commit_offsets(
        &mut self,
        transaction: Option<(&str, Producer)>,
        offsets: &[OffsetToCommit],
        group: &GroupMetadata,
    ) -> Result<(), PortError> {
        if let Some((transactional_id, producer)) = transaction {
            self.transaction(transactional_id, producer)?;
        }
        let member = group.member_id.as_str();
        if group.generation_id != self.group.generation || !self.group.members.contains(member) {
            let now = self.group.generation;
            return Err(PortError::NotOwner(format!(
                "ILLEGAL_GENERATION: member {member} of generation {}, now {now}",
                group.generation_id
            )));
        }
        if let Some(long) = offsets.iter().find(|offset| offset.metadata.len() > METADATA_BYTES_MAX) {
            let reason = format!("OFFSET_METADATA_TOO_LARGE: {} bytes", long.metadata.len());
            return Err(PortError::MetadataTooLarge { at: long.topic_partition.clone(), reason });
        }
        let found = offsets.iter().map(|offset| {
            let committed = CommittedOffset {
                topic_partition: offset.topic_partition.clone(),
                offset: Some(offset.offset),
                leader_epoch: offset.leader_epoch,
                metadata: offset.metadata.clone(),
            };
            (offset.topic_partition.clone(), committed)
        });
        match transaction {
            Some((transactional_id, producer)) => {
                self.group.pending.entry(producer.id).or_default().extend(found);
                self.transaction(transactional_id, producer)?.offsets = true;
            }
            None => self.group.offsets.extend(found),
        }
        Ok(())
    }

    /// EndTxn. The answer carries the producer's next epoch.
    pub(super) fn end_txn(
        &mut self,
        transactional_id: &str,
        producer: Producer,
        commit: bool,
    ) -> Result<Producer, CommitFailure> {
        let id = self.ids.get_mut(transactional_id).expect("a port has its id from here");
        if id.producer != producer {
            return Err(CommitFailure::Fenced(format!(
                "PRODUCER_FENCED: {producer:?}, now {:?}",
                id.producer
            )));
        }
        match id.stage {
            Stage::Ongoing(_) => {
                self.end(transactional_id, commit);
                Ok(self.ids[transactional_id].producer)
            }
            Stage::Empty => Ok(producer),
            Stage::Ending { .. } => Err(CommitFailure::Unknown("CONCURRENT_TRANSACTIONS".to_owned())),
        }
    }

    /// Decides the open transaction. Markers follow, at once or late.
    fn end(&mut self, transactional_id: &str, commit: bool) {
        let (now, delay) = (self.now(), self.marker_delay);
        let rng = &mut self.rng;
        let id = self.ids.get_mut(transactional_id).expect("the caller has looked");
        let producer = id.producer;
        let Stage::Ongoing(transaction) = std::mem::replace(&mut id.stage, Stage::Empty) else {
            unreachable!("only an open transaction is ended")
        };
        if commit && !transaction.offsets && !transaction.partitions.is_empty() {
            self.unwitnessed += 1;
        }
        let mut markers = BTreeMap::new();
        let mut due = |at: Option<TopicPartition>| {
            let late = rng.below(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX).saturating_add(1));
            markers.insert(at, now + Duration::from_millis(late));
        };
        transaction.partitions.into_iter().for_each(|at| due(Some(at)));
        if transaction.offsets {
            due(None);
        }
        id.producer.epoch += 1;
        id.stage = Stage::Ending { producer, commit, markers };
        self.write_markers();
    }

    /// Writes the markers that are due.
    fn write_markers(&mut self) {
        let now = self.now();
        let mut due = Vec::new();
        for id in self.ids.values_mut() {
            let Stage::Ending { producer, commit, markers } = &mut id.stage else { continue };
            markers.retain(|at, time| {
                if *time <= now {
                    due.push((*producer, *commit, at.clone()));
                }
                *time > now
            });
            if markers.is_empty() {
                id.stage = Stage::Empty;
            }
        }
        for (producer, commit, at) in due {
            match at {
                Some(at) => {
                    if let Some(log) = self.log_mut(&at) {
                        log.mark(producer, commit);
                    }
                }
                None => {
                    let pending = self.group.pending.remove(&producer.id).unwrap_or_default();
                    if commit {
                        self.group.offsets.extend(pending);
                    }
                }
            }
        }
    }

    /// A commit request that arrives later.
    pub(super) fn delay_commit(&mut self, transactional_id: &str, producer: Producer, by: Duration) {
        let at = self.now() + by;
        self.delayed.push(Delayed { at, transactional_id: transactional_id.to_owned(), producer });
    }

    /// What time brings: late requests, time-outs of transactions, late markers.
    pub(super) fn tick(&mut self) {
        let now = self.now();
        let (arrived, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.delayed).into_iter().partition(|delayed| delayed.at <= now);
        self.delayed = later;
        for delayed in arrived {
            let id = &self.ids[&delayed.transactional_id];
            if id.producer == delayed.producer && matches!(id.stage, Stage::Ongoing(_)) {
                self.end(&delayed.transactional_id, true);
            }
        }
        let old = |id: &Id| match &id.stage {
            Stage::Ongoing(transaction) => now.saturating_sub(transaction.since) >= id.timeout,
            Stage::Empty | Stage::Ending { .. } => false,
        };
        let timed_out: Vec<String> =
            self.ids.iter().filter(|(_, id)| old(id)).map(|(name, _)| name.clone()).collect();
        for name in timed_out {
            self.end(&name, false);
        }
        self.write_markers();
    }

    /// What counts once every decided transaction has its markers: offsets whose commit is decided, too.
    pub(super) fn decided_at(&self, at: &TopicPartition) -> CommittedOffset {
        let decided = self.ids.values().find_map(|id| match &id.stage {
            Stage::Ending { producer, commit: true, .. } => self.group.pending.get(&producer.id)?.get(at),
            _ => None,
        });
        decided.cloned().unwrap_or_else(|| self.committed_at(at))
    }

    /// Producers whose commit is decided and not marked everywhere yet.
    pub(super) fn deciding(&self) -> BTreeSet<i64> {
        let decided = self.ids.values().filter(|id| matches!(id.stage, Stage::Ending { commit: true, .. }));
        decided.map(|id| id.producer.id).collect()
    }

    /// Transactions that wrote something and were committed without offsets.
    pub(super) fn unwitnessed(&self) -> u64 {
        self.unwitnessed
    }

    // ---- the group

    /// Whether any transaction is open or ending: nothing is, when all is quiet.
    pub(super) fn is_settled(&self) -> bool {
        self.delayed.is_empty() && self.ids.values().all(|id| matches!(id.stage, Stage::Empty))
    }

    /// Transactions that are open or still ending, for messages.
    pub(super) fn open_transactions(&self) -> Vec<String> {
        let open = self.ids.iter().filter(|(_, id)| !matches!(id.stage, Stage::Empty));
        open.map(|(name, id)| format!("{name}: {:?}", id.stage)).collect()
    }

    pub(super) fn committed(&self, partitions: &[TopicPartition]) -> Result<Vec<CommittedOffset>, PortError> {
        let unstable = |at: &&TopicPartition| self.group.pending.values().any(|open| open.contains_key(*at));
        if let Some(at) = partitions.iter().find(unstable) {
            return Err(PortError::Retriable(format!("UNSTABLE_OFFSET_COMMIT: {at}")));
        }
        Ok(partitions.iter().map(|at| self.committed_at(at)).collect())
    }

    /// The offset that counts now, whatever is pending.
    pub(super) fn committed_at(&self, at: &TopicPartition) -> CommittedOffset {
        self.group.offsets.get(at).cloned().unwrap_or_else(|| CommittedOffset {
            topic_partition: at.clone(),
            offset: None,
            leader_epoch: -1,
            metadata: "".into(),
        })
    }

    /// Overwrites or removes an offset, as an operator's tool does.
    pub(super) fn reset_offset(&mut self, at: &TopicPartition, committed: Option<CommittedOffset>) {
        match committed {
            Some(committed) => self.group.offsets.insert(at.clone(), committed),
            None => self.group.offsets.remove(at),
        };
    }

    /// A rebalance: a new generation with these members.
    pub(super) fn regroup(&mut self, members: BTreeSet<String>) -> i32 {
        self.group.generation += 1;
        self.group.members = members;
        self.group.generation
    }
}
