//! The consumer of chosen partitions: it reads from where it is told, in either isolation level.
//!
//! Place: `poll` is what users call; behind it fetches are in flight as tasks of a group that belongs to the
//! consumer, at most one per partition and two per node, and what they bring is decoded batch by batch.
//!
//! Invariants: a partition's position is the offset of the next record that `poll` may return, and advances past
//! control batches, aborted transactions and gaps; a record below the position is never returned; at most
//! `fetch.max.bytes` per node are buffered.

mod fetch;
mod isolation;
mod reader;
mod settings;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use ottla_env::spawn::TaskGroup;
use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;
use tokio::sync::mpsc;

use crate::cluster::{Cluster, ClusterError};
use crate::offsets::{self, EARLIEST, LATEST, OffsetAndTimestamp, OffsetsError};
use crate::record::{CommittedOffset, GroupMetadata, Header, OffsetToCommit, TopicPartition};
use fetch::Report;
use reader::PartitionReader;

pub use settings::{ConsumerSettings, IsolationLevel, OffsetReset};

/// Reports of fetches that may wait for `poll`.
const REPORTS_MAX: usize = 64;

/// Why nothing can be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConsumerError {
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Offsets cannot be looked up or committed.
    #[error(transparent)]
    Offsets(#[from] OffsetsError),
    /// The position is outside of the log.
    #[error(
        "offset {offset} of {topic_partition} is not in the log any more, or not yet; seek to another, or set \
         auto.offset.reset"
    )]
    OutOfRange {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position.
        offset: i64,
    },
    /// The broker refused.
    #[error("reading {topic_partition} was refused with {code}")]
    Refused {
        /// The partition.
        topic_partition: TopicPartition,
        /// What it said.
        code: ErrorCode,
    },
    /// What came cannot be read.
    #[error("{topic_partition} is damaged at or behind offset {offset}: {problem}; seek past it to go on")]
    Damaged {
        /// The partition.
        topic_partition: TopicPartition,
        /// Where.
        offset: i64,
        /// What is wrong.
        problem: String,
    },
    /// The partition is not assigned.
    #[error("{topic_partition} is not assigned to this consumer")]
    NotAssigned {
        /// The partition.
        topic_partition: TopicPartition,
    },
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRecord {
    /// Where it was.
    pub topic_partition: TopicPartition,
    /// Its offset.
    pub offset: i64,
    /// Its time in ms since the Unix epoch.
    pub timestamp: i64,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers, in order. Names that are not UTF-8 are shown with replacement characters.
    pub headers: Vec<Header>,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// The first record that is still there.
    Beginning,
    /// Behind the last: only what is written from now on.
    End,
    /// That offset.
    Offset(i64),
    /// The first record that is not older (ms since the Unix epoch); the end when there is none.
    Timestamp(i64),
}

/// Reads partitions that it is given. Not a member of a group.
///
/// ```no_run
/// # use std::time::Duration;
/// # use ottla_client::{ClientSettings, Consumer, ConsumerSettings, StartAt, TopicPartition};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let mut consumer = Consumer::connect(ConsumerSettings::new(ClientSettings::new("127.0.0.1:9092")?)).await?;
/// consumer.assign(&[(TopicPartition::new("orders", 0), StartAt::Beginning)]).await?;
/// for record in consumer.poll(Duration::from_secs(1)).await? {
///     println!("{} {:?}", record.offset, record.value);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Consumer {
    cluster: Cluster,
    settings: ConsumerSettings,
    assigned: BTreeMap<TopicPartition, Assigned>,
    ready: VecDeque<PartitionReader>,
    /// Grows with each assignment and seek: what was fetched for an older one is thrown away.
    generation: u64,
    in_flight: BTreeMap<i32, usize>,
    refreshing: BTreeMap<Text, ()>,
    tasks: TaskGroup,
    reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
}

/// A partition that is read.
#[derive(Debug)]
struct Assigned {
    /// The next offset to hand out.
    position: i64,
    generation: u64,
    /// A fetch is in flight or its bytes wait.
    busy: bool,
    out_of_range: bool,
    not_before: Option<Instant>,
    failures: u32,
    /// High watermark and last stable offset of the last answer.
    bounds: Option<(i64, i64)>,
}

impl Assigned {
    fn at(position: i64, generation: u64) -> Self {
        Self {
            position,
            generation,
            busy: false,
            out_of_range: false,
            not_before: None,
            failures: 0,
            bounds: None,
        }
    }
}

impl Consumer {
    /// Connects. Cancel-safe.
    pub async fn connect(settings: ConsumerSettings) -> Result<Self, ClusterError> {
        settings.check()?;
        let cluster = Cluster::connect(settings.client.clone()).await?;
        let (report, reports) = mpsc::channel(REPORTS_MAX);
        Ok(Self {
            cluster,
            settings,
            assigned: BTreeMap::new(),
            ready: VecDeque::new(),
            generation: 0,
            in_flight: BTreeMap::new(),
            refreshing: BTreeMap::new(),
            tasks: TaskGroup::new(),
            reports,
            report,
        })
    }

    /// The cluster, to look up topics.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Replaces what is read. If the future is dropped, the former assignment stays.
    pub async fn assign(&mut self, partitions: &[(TopicPartition, StartAt)]) -> Result<(), ConsumerError> {
        let mut positions = BTreeMap::new();
        let mut wanted = BTreeMap::new();
        for (at, start) in partitions {
            let timestamp = match start {
                StartAt::Offset(offset) => {
                    positions.insert(at.clone(), *offset);
                    continue;
                }
                StartAt::Beginning => EARLIEST,
                StartAt::End => LATEST,
                StartAt::Timestamp(timestamp) => (*timestamp).max(0),
            };
            wanted.insert(at.clone(), timestamp);
        }
        let mut later = Vec::new();
        for (at, found) in self.list(wanted).await? {
            match found {
                Some(found) => drop(positions.insert(at, found.offset)),
                None => later.push(at),
            }
        }
        positions.extend(self.end_offsets(&later).await?);
        self.generation += 1;
        self.ready.clear();
        let generation = self.generation;
        self.assigned =
            positions.into_iter().map(|(at, position)| (at, Assigned::at(position, generation))).collect();
        Ok(())
    }

    /// Replaces what is read with all partitions of a topic. If the future is dropped, nothing changes.
    pub async fn assign_topic(&mut self, topic: &Text, start: StartAt) -> Result<(), ConsumerError> {
        let count = self.cluster.refresh_topic(topic).await?.partition_count();
        let partitions: Vec<_> =
            (0..count).map(|partition| (TopicPartition::new(topic.clone(), partition), start)).collect();
        self.assign(&partitions).await
    }

    /// The partitions that are read, in order.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.assigned.keys().cloned().collect()
    }

    /// Moves a partition's position.
    pub fn seek(&mut self, topic_partition: &TopicPartition, offset: i64) -> Result<(), ConsumerError> {
        let Some(assigned) = self.assigned.get_mut(topic_partition) else {
            return Err(ConsumerError::NotAssigned { topic_partition: topic_partition.clone() });
        };
        self.generation += 1;
        *assigned = Assigned::at(offset, self.generation);
        self.ready.retain(|reader| reader.topic_partition != *topic_partition);
        Ok(())
    }

    /// The offset of the next record that `poll` may return; absent when the partition is not assigned.
    pub fn position(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.assigned.get(topic_partition).map(|assigned| assigned.position)
    }

    /// How far this consumer could read when the broker last answered for the partition: its high watermark, or
    /// with `read_committed` its last stable offset.
    pub fn readable_end(&self, topic_partition: &TopicPartition) -> Option<i64> {
        let (high_watermark, last_stable_offset) = self.assigned.get(topic_partition)?.bounds?;
        Some(match self.settings.isolation {
            IsolationLevel::ReadUncommitted => high_watermark,
            IsolationLevel::ReadCommitted => last_stable_offset,
        })
    }

    /// Returns up to `max.poll.records` records, waiting for the first at most `wait`; none when there are none.
    /// The next fetch runs while the caller works. Cancel-safe: nothing that was fetched is lost.
    pub async fn poll(&mut self, wait: Duration) -> Result<Vec<ConsumerRecord>, ConsumerError> {
        let deadline = time::now() + wait;
        loop {
            self.take_reports()?;
            let records = self.take_ready()?;
            self.reset_positions().await?;
            let next = self.start_fetches(time::now());
            if !records.is_empty() {
                return Ok(records);
            }
            if time::now() >= deadline {
                return Ok(Vec::new());
            }
            tokio::select! {
                report = self.reports.recv() => {
                    self.handle(report.expect("the consumer holds the other end"))?;
                }
                () = time::sleep_until(next.min(deadline)) => {}
            }
        }
    }

    fn take_reports(&mut self) -> Result<(), ConsumerError> {
        while let Ok(report) = self.reports.try_recv() {
            self.handle(report)?;
        }
        Ok(())
    }

    /// Decodes what has arrived, up to `max.poll.records`.
    fn take_ready(&mut self) -> Result<Vec<ConsumerRecord>, ConsumerError> {
        let mut records = Vec::new();
        while records.len() < self.settings.max_poll_records {
            let Some(mut reader) = self.ready.pop_front() else { break };
            let Some(assigned) = self.assigned.get_mut(&reader.topic_partition) else { continue };
            if assigned.generation != reader.generation {
                continue;
            }
            let before = records.len();
            let result = reader.read(self.settings.max_poll_records, &mut records);
            match result {
                Ok(finished) => {
                    assigned.position = reader.position();
                    if finished {
                        assigned.busy = false;
                    } else {
                        self.ready.push_front(reader);
                    }
                }
                Err(problem) => {
                    assigned.busy = false;
                    if records.len() > before || before > 0 {
                        // what came before the damage is returned first; the next fetch meets it again
                        assigned.position = reader.position();
                        break;
                    }
                    let topic_partition = reader.topic_partition.clone();
                    return Err(ConsumerError::Damaged {
                        topic_partition,
                        offset: assigned.position,
                        problem,
                    });
                }
            }
        }
        Ok(records)
    }

    /// Partitions whose position is not in the log begin anew where `auto.offset.reset` says.
    async fn reset_positions(&mut self) -> Result<(), ConsumerError> {
        let lost: Vec<_> = self
            .assigned
            .iter()
            .filter(|(_, assigned)| assigned.out_of_range)
            .map(|(at, _)| at.clone())
            .collect();
        if lost.is_empty() {
            return Ok(());
        }
        let timestamp = match self.settings.offset_reset {
            OffsetReset::Earliest => EARLIEST,
            OffsetReset::Latest => LATEST,
            OffsetReset::None => {
                let topic_partition = lost.into_iter().next().expect("not empty");
                let assigned = self.assigned.get_mut(&topic_partition).expect("it was just listed");
                assigned.out_of_range = false;
                return Err(ConsumerError::OutOfRange { topic_partition, offset: assigned.position });
            }
        };
        let found = self.list(lost.into_iter().map(|at| (at, timestamp)).collect()).await?;
        for (at, found) in found {
            let offset = found.map_or(0, |found| found.offset);
            tracing::warn!(partition = %at, offset, "position was not in the log, begins anew");
            self.seek(&at, offset)?;
        }
        Ok(())
    }

    async fn list(
        &self,
        wanted: BTreeMap<TopicPartition, i64>,
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, OffsetsError> {
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        offsets::list(&self.cluster, self.settings.isolation.code(), wanted).await
    }

    /// Offsets of the first records not older than the given times (ms); absent where there is none. Cancel-safe.
    pub async fn offsets_for_times(
        &self,
        times: &[(TopicPartition, i64)],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, ConsumerError> {
        Ok(self.list(times.iter().map(|(at, time)| (at.clone(), (*time).max(0))).collect()).await?)
    }

    /// Offsets of the first records still there. Cancel-safe.
    pub async fn beginning_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        self.ends(partitions, EARLIEST).await
    }

    /// Offsets behind the last readable records: with `read_committed` the last stable offset. Cancel-safe.
    pub async fn end_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        self.ends(partitions, LATEST).await
    }

    async fn ends(
        &self,
        partitions: &[TopicPartition],
        which: i64,
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        let found = self.list(partitions.iter().map(|at| (at.clone(), which)).collect()).await?;
        Ok(found.into_iter().map(|(at, found)| (at, found.map_or(0, |found| found.offset))).collect())
    }

    /// What a group has committed for these partitions; waits while a transaction holds an offset open.
    /// Cancel-safe.
    pub async fn committed(
        &self,
        group_id: &Text,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, ConsumerError> {
        Ok(offsets::committed(&self.cluster, group_id, Some(partitions)).await?)
    }

    /// Commits offsets for a group, outside of any transaction. If the future is dropped, they may be committed.
    pub async fn commit(
        &self,
        group: &GroupMetadata,
        offsets: &[OffsetToCommit],
    ) -> Result<(), ConsumerError> {
        if offsets.is_empty() {
            return Ok(());
        }
        Ok(offsets::commit(&self.cluster, group, offsets).await?)
    }
}
