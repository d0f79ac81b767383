//! Reading assigned partitions: where each stands, what is buffered of it, what is on its way.
//!
//! Place: `Consumer::poll` drives it and nothing else does; network work runs in tasks of a group that belongs to
//! the fetcher, and comes back as `Report`s. `fetch` decides what to ask and takes answers apart, `course` sends and
//! receives, `session` keeps what a broker remembers between fetches, `positions` finds where to begin.
//!
//! Invariants: a partition's position is the offset of the next record that `poll` may return, and advances past
//! control batches, aborted transactions and gaps; a record below the position is never returned; what was
//! fetched for an older assignment or seek is thrown away; one fetch per node is in flight, none while
//! `queued.max.messages.kbytes` are buffered.

mod course;
mod fetch;
mod session;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ottla_env::spawn::TaskGroup;
use ottla_env::time::{self, Instant};
use ottla_protocol::types::Text;
use tokio::sync::mpsc;

use super::error::ConsumerError;
use super::positions::{Found, Looked, ToValidate, Validated};
use super::reader::PartitionReader;
use super::settings::{ConsumerSettings, IsolationLevel};
use super::{ConsumerRecord, Lag};
use crate::cluster::Cluster;
use crate::record::{OffsetToCommit, TopicPartition};
use course::Node;
pub(super) use fetch::Report;

/// Reports of tasks that may wait for `poll`.
const REPORTS_MAX: usize = 64;

/// Counters since the consumer was made.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # use std::time::Duration;
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
/// # producer.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// # let settings = ConsumerSettings::new(client.clone()).group_id("shop").offset_reset(OffsetReset::Earliest);
/// # let mut consumer = Consumer::connect(settings).await?;
/// # consumer.assign(&[(TopicPartition::new("orders", 0), StartAt::Beginning)]).await?;
/// consumer.poll(Duration::from_secs(1)).await?;
/// let metrics = consumer.metrics();
/// println!("{} records in {} bytes of {} fetches", metrics.records, metrics.fetched_bytes, metrics.fetches);
/// # assert_eq!(metrics.records, 1);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerMetrics {
    /// Records returned by `poll`.
    pub records: u64,
    /// Bytes of batches that were fetched, compressed as they came.
    pub fetched_bytes: u64,
    /// Fetches that were answered.
    pub fetches: u64,
    /// Fetches that failed or were refused as a whole.
    pub failed_fetches: u64,
    /// Bytes that are buffered at present.
    pub queued_bytes: u64,
    /// Rebalances that this member went through.
    pub rebalances: u64,
}

#[derive(Debug)]
pub(super) struct Fetcher {
    pub(super) cluster: Cluster,
    settings: Arc<ConsumerSettings>,
    partitions: BTreeMap<TopicPartition, Partition>,
    ready: VecDeque<PartitionReader>,
    nodes: BTreeMap<i32, Node>,
    /// `poll` waits: the task of one fetch may go on by itself.
    may_go_on: Arc<AtomicBool>,
    /// When work was last started, every partition that wants to be asked for was.
    all_asked: bool,
    /// Grows with each assignment and seek.
    generation: u64,
    refreshing: BTreeSet<Text>,
    /// A report was handled, nothing was started since.
    has_news: bool,
    /// Partitions come and go by themselves: that a topic is gone is no error.
    pub(super) is_subscribed: bool,
    /// Who asks for committed offsets, as a member of the new protocol: not one that was replaced.
    pub(super) member: Option<Arc<super::group::Shared>>,
    pub(super) metrics: ConsumerMetrics,
    tasks: TaskGroup,
    pub(super) reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
}

/// Where a partition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not known: what was committed, else `auto.offset.reset`.
    Committed,
    /// Not known: as `auto.offset.reset` says. The offset was not in the log.
    Reset(i64),
    /// Known.
    At(Position),
}

/// A position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Offset of the next record.
    pub(super) offset: i64,
    /// Leader epoch of the record before it, -1 when not known.
    pub(super) leader_epoch: i32,
}

/// A partition that is read.
#[derive(Debug)]
struct Partition {
    place: Place,
    generation: u64,
    /// Where the next fetch begins: behind what is buffered. Absent: not before that has been read.
    fetch_offset: Option<i64>,
    /// A fetch, a look-up or a validation is under way.
    busy: bool,
    queued_bytes: usize,
    paused: bool,
    /// Where it was led when it was last asked for.
    leader: Option<i32>,
    /// The leader epoch of the metadata that the position was found valid in.
    validated: i32,
    not_before: Option<Instant>,
    failures: u32,
    /// High watermark and last stable offset of the last answer.
    bounds: Option<(i64, i64)>,
}

impl Partition {
    fn new(place: Place, generation: u64) -> Self {
        let fetch_offset = match place {
            Place::At(position) => Some(position.offset),
            Place::Committed | Place::Reset(_) => None,
        };
        Self {
            place,
            generation,
            fetch_offset,
            busy: false,
            queued_bytes: 0,
            paused: false,
            leader: None,
            validated: -1,
            not_before: None,
            failures: 0,
            bounds: None,
        }
    }

    fn position(&self) -> Option<Position> {
        match self.place {
            Place::At(position) => Some(position),
            Place::Committed | Place::Reset(_) => None,
        }
    }
}

impl Fetcher {
    pub(super) fn new(cluster: Cluster, settings: Arc<ConsumerSettings>) -> Self {
        let (report, reports) = mpsc::channel(REPORTS_MAX);
        Self {
            cluster,
            settings,
            partitions: BTreeMap::new(),
            ready: VecDeque::new(),
            nodes: BTreeMap::new(),
            may_go_on: Arc::default(),
            all_asked: false,
            generation: 0,
            refreshing: BTreeSet::new(),
            has_news: false,
            is_subscribed: false,
            member: None,
            metrics: ConsumerMetrics::default(),
            tasks: TaskGroup::new(),
            reports,
            report,
        }
    }

    /// Adds partitions; those that are there begin anew.
    pub(super) fn add(&mut self, places: impl IntoIterator<Item = (TopicPartition, Place)>) {
        self.generation += 1;
        for (at, place) in places {
            self.discard(&at);
            self.partitions.insert(at, Partition::new(place, self.generation));
        }
    }

    /// Stops reading partitions.
    pub(super) fn remove(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.discard(at);
            self.partitions.remove(at);
        }
    }

    /// Stops reading.
    pub(super) fn clear(&mut self) {
        self.partitions.clear();
        self.ready.clear();
        self.metrics.queued_bytes = 0;
    }

    /// Bytes that are buffered of partitions that are not held back: what is held back must not stop the others.
    fn queued_bytes(&self) -> usize {
        let running = self.partitions.values().filter(|partition| !partition.paused);
        running.map(|partition| partition.queued_bytes).sum()
    }

    /// Throws away what is buffered of a partition.
    fn discard(&mut self, at: &TopicPartition) {
        let queued =
            self.partitions.get_mut(at).map_or(0, |partition| std::mem::take(&mut partition.queued_bytes));
        self.metrics.queued_bytes = self.metrics.queued_bytes.saturating_sub(queued as u64);
        self.ready.retain(|reader| reader.topic_partition != *at);
    }

    /// The partitions that are read, in order.
    pub(super) fn assignment(&self) -> Vec<TopicPartition> {
        self.partitions.keys().cloned().collect()
    }

    pub(super) fn is_assigned(&self, at: &TopicPartition) -> bool {
        self.partitions.contains_key(at)
    }

    fn get(&mut self, at: &TopicPartition) -> Result<&mut Partition, ConsumerError> {
        let missing = || ConsumerError::NotAssigned { topic_partition: at.clone() };
        self.partitions.get_mut(at).ok_or_else(missing)
    }

    /// Moves a position.
    pub(super) fn seek(&mut self, at: &TopicPartition, place: Place) -> Result<(), ConsumerError> {
        self.get(at)?;
        self.discard(at);
        self.generation += 1;
        let generation = self.generation;
        let partition = self.get(at)?;
        let (paused, bounds) = (partition.paused, partition.bounds);
        *partition = Partition { paused, bounds, ..Partition::new(place, generation) };
        Ok(())
    }

    /// Holds partitions back, or lets them go on. What is buffered stays.
    pub(super) fn set_paused(
        &mut self,
        partitions: &[TopicPartition],
        paused: bool,
    ) -> Result<(), ConsumerError> {
        for at in partitions {
            self.get(at)?;
        }
        for at in partitions {
            self.get(at)?.paused = paused;
        }
        Ok(())
    }

    pub(super) fn paused(&self) -> Vec<TopicPartition> {
        let paused = self.partitions.iter().filter(|(_, partition)| partition.paused);
        paused.map(|(at, _)| at.clone()).collect()
    }

    pub(super) fn position(&self, at: &TopicPartition) -> Option<i64> {
        self.partitions.get(at)?.position().map(|position| position.offset)
    }

    /// The positions that are known, of these partitions.
    pub(super) fn positions(&self, only: impl Fn(&TopicPartition) -> bool) -> Vec<OffsetToCommit> {
        let known = self.partitions.iter().filter(|(at, _)| only(at));
        let known = known.filter_map(|(at, partition)| Some((at, partition.position()?)));
        known
            .map(|(at, position)| OffsetToCommit {
                leader_epoch: position.leader_epoch,
                ..OffsetToCommit::new(at.clone(), position.offset)
            })
            .collect()
    }

    pub(super) fn readable_end(&self, at: &TopicPartition) -> Option<i64> {
        let (high_watermark, last_stable_offset) = self.partitions.get(at)?.bounds?;
        Some(match self.settings.isolation {
            IsolationLevel::ReadUncommitted => high_watermark,
            IsolationLevel::ReadCommitted => last_stable_offset,
        })
    }

    pub(super) fn lag(&self, at: &TopicPartition) -> Option<Lag> {
        let (high_watermark, _) = self.partitions.get(at)?.bounds?;
        let (end, position) = (self.readable_end(at)?, self.position(at)?);
        Some(Lag {
            behind: end.saturating_sub(position).max(0),
            hidden: high_watermark.saturating_sub(end).max(0),
        })
    }

    /// Takes what tasks have reported, and asks for more at once: that is on its way while this is decoded.
    pub(super) fn take_reports(&mut self) -> Result<(), ConsumerError> {
        while let Ok(report) = self.reports.try_recv() {
            self.handle(report)?;
        }
        if std::mem::take(&mut self.has_news) {
            self.start_work(time::now());
        }
        Ok(())
    }

    /// Decodes what has arrived, up to `max.poll.records`.
    pub(super) fn take_ready(&mut self) -> Result<Vec<ConsumerRecord>, ConsumerError> {
        let records_max = self.settings.max_poll_records;
        let mut records = Vec::new();
        let mut index = 0;
        while records.len() < records_max {
            let Some(reader) = self.ready.get_mut(index) else { break };
            let found = self.partitions.get_mut(&reader.topic_partition);
            let Some(partition) = found.filter(|partition| partition.generation == reader.generation) else {
                self.ready.remove(index);
                continue;
            };
            if partition.paused {
                index += 1;
                continue;
            }
            if let Some(position) = partition.position() {
                reader.skip_to(position.offset);
            }
            let result = reader.read(records_max, &mut records);
            partition.place = Place::At(reader.position());
            match result {
                Ok(false) => {}
                Ok(true) => self.finish(index),
                Err(problem) => {
                    let at = reader.topic_partition.clone();
                    let offset = reader.position().offset;
                    // the next fetch meets it again; what came before the damage is returned first
                    self.seek(&at, Place::At(Position { offset, leader_epoch: -1 }))?;
                    if records.is_empty() {
                        return Err(ConsumerError::Damaged { topic_partition: at, offset, problem });
                    }
                    break;
                }
            }
        }
        self.metrics.records += records.len() as u64;
        Ok(records)
    }

    /// A reader is used up.
    fn finish(&mut self, index: usize) {
        let Some(reader) = self.ready.remove(index) else { return };
        self.metrics.queued_bytes = self.metrics.queued_bytes.saturating_sub(reader.size as u64);
        let Some(partition) = self.partitions.get_mut(&reader.topic_partition) else { return };
        partition.queued_bytes = partition.queued_bytes.saturating_sub(reader.size);
        if partition.queued_bytes == 0 && !partition.busy {
            partition.fetch_offset = Some(reader.position().offset);
        }
    }

    /// What a look-up of positions has found.
    fn take_looked(&mut self, looked: Vec<Looked>) -> Result<(), ConsumerError> {
        let mut result = Ok(());
        for Looked { at, generation, found } in looked {
            let Some(partition) = self.partitions.get_mut(&at).filter(|there| there.generation == generation)
            else {
                continue;
            };
            partition.busy = false;
            match found {
                Ok(Found { offset, leader_epoch }) => {
                    tracing::debug!(partition = %at, offset, "position");
                    partition.place = Place::At(Position { offset, leader_epoch });
                    partition.fetch_offset = Some(offset);
                    partition.failures = 0;
                }
                Err(error) if error.is_retriable() => self.rest(&at, generation),
                Err(error) => {
                    self.rest(&at, generation);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// What OffsetForLeaderEpoch has said, of the position that was asked about: what was buffered may have been read
    /// since, and have led into another epoch, which ends elsewhere.
    fn take_validated(&mut self, validated: Vec<Validated>) -> Result<(), ConsumerError> {
        let mut result = Ok(());
        for Validated { asked, end } in validated {
            let ToValidate { at, generation, position, in_epoch } = asked;
            let Some(partition) = self.partitions.get_mut(&at).filter(|there| there.generation == generation)
            else {
                continue;
            };
            partition.busy = false;
            match end {
                None => self.rest(&at, generation),
                Some(end) if end < position.offset => {
                    let truncated = self.truncated(&at, position.offset, end);
                    result = result.and(truncated);
                }
                Some(_) if partition.position() == Some(position) => partition.validated = in_epoch,
                Some(_) => {} // the new position is asked about next
            }
        }
        result
    }

    /// The log was cut below our position: go back there, or tell.
    fn truncated(&mut self, at: &TopicPartition, offset: i64, end: i64) -> Result<(), ConsumerError> {
        let is_known = end >= 0;
        if self.settings.offset_reset == super::OffsetReset::None {
            self.seek(at, Place::At(Position { offset, leader_epoch: -1 }))?;
            let divergent_offset = is_known.then_some(end);
            return Err(ConsumerError::Truncated { topic_partition: at.clone(), offset, divergent_offset });
        }
        tracing::warn!(partition = %at, offset, end, "the log was truncated below the position, which goes back");
        let back = Place::At(Position { offset: end, leader_epoch: -1 });
        self.seek(at, if is_known { back } else { Place::Reset(offset) })
    }
}
