//! Fetches in flight: what is asked of which node, and what an answer means for each partition.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use ottla_protocol::messages::fetch_response::PartitionData;
use ottla_protocol::messages::{FetchRequest, FetchResponse};
use ottla_protocol::types::{Text, Uuid};

use super::isolation::Isolation;
use super::reader::PartitionReader;
use super::{Consumer, ConsumerError};
use crate::backoff::Backoff;
use crate::cluster::{ClusterError, Lane};
use crate::connection::Versions;
use crate::error::{CallError, wants_metadata};
use crate::record::TopicPartition;

/// From flexible versions on; 13 names topics by id.
const FETCH: Versions = Versions::new(12, 17);
/// Last version that names topics.
const FETCH_BY_NAME: Versions = Versions::new(12, 12);
/// Fetches per node without an answer. A second one is what makes a broker answer a first that waits.
const IN_FLIGHT_PER_NODE_MAX: usize = 2;
/// Longest `poll` sleeps without looking around.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// What tasks report.
#[derive(Debug)]
pub(super) enum Report {
    Fetched { node_id: i32, asked: Vec<Asked>, result: Result<FetchResponse, CallError> },
    Refreshed { topic: Text, result: Result<(), ClusterError> },
}

/// One partition of a fetch.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    topic_partition: TopicPartition,
    topic_id: Uuid,
    offset: i64,
    generation: u64,
}

impl Consumer {
    /// Starts what can be started, and says when to look again.
    pub(super) fn start_fetches(&mut self, now: Instant) -> Instant {
        let mut next = now + LOOK_AROUND;
        let mut by_node: BTreeMap<i32, Vec<Asked>> = BTreeMap::new();
        let mut unknown = Vec::new();
        for (at, assigned) in &mut self.assigned {
            if assigned.busy || assigned.out_of_range {
                continue;
            }
            if let Some(not_before) = assigned.not_before.filter(|not_before| *not_before > now) {
                next = next.min(not_before);
                continue;
            }
            let topic = self.cluster.cached_topic(&at.topic);
            let leader = self.cluster.cached_leader(&at.topic, at.partition);
            let (Some(topic), Some(leader)) = (topic, leader) else {
                unknown.push(at.topic.clone());
                continue;
            };
            if self.in_flight.get(&leader).is_some_and(|count| *count >= IN_FLIGHT_PER_NODE_MAX) {
                continue;
            }
            assigned.busy = true;
            by_node.entry(leader).or_default().push(Asked {
                topic_partition: at.clone(),
                topic_id: topic.topic_id,
                offset: assigned.position,
                generation: assigned.generation,
            });
        }
        unknown.into_iter().for_each(|topic| self.refresh(topic));
        by_node.into_iter().for_each(|(node_id, asked)| self.start_fetch(node_id, asked));
        next
    }

    fn start_fetch(&mut self, node_id: i32, asked: Vec<Asked>) {
        *self.in_flight.entry(node_id).or_default() += 1;
        let request = self.fetch_request(&asked);
        let usable = if asked.iter().any(|asked| asked.topic_id.is_zero()) { FETCH_BY_NAME } else { FETCH };
        let (cluster, report, wait) =
            (self.cluster.clone(), self.report.clone(), self.settings.fetch_max_wait);
        self.tasks.spawn("consumer-fetch", async move {
            let fetched = async {
                let connection = cluster.node(node_id, Lane::Data).await?;
                let version = connection.version::<FetchRequest>(usable)?;
                connection.start_waiting(&request, version, wait).await?.wait().await
            };
            let result = fetched.await;
            let _ = report.send(Report::Fetched { node_id, asked, result }).await; // the consumer has ended: fine
        });
    }

    fn fetch_request(&self, asked: &[Asked]) -> FetchRequest {
        let bytes = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
        let mut topics: BTreeMap<Text, FetchTopic> = BTreeMap::new();
        for asked in asked {
            let name = &asked.topic_partition.topic;
            let topic = topics.entry(name.clone()).or_default();
            topic.topic = name.clone();
            topic.topic_id = asked.topic_id;
            topic.partitions.push(FetchPartition {
                partition: asked.topic_partition.partition,
                fetch_offset: asked.offset,
                partition_max_bytes: bytes(self.settings.partition_fetch_bytes),
                ..FetchPartition::default()
            });
        }
        FetchRequest {
            max_wait_ms: i32::try_from(self.settings.fetch_max_wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: bytes(self.settings.fetch_min_bytes),
            max_bytes: bytes(self.settings.fetch_max_bytes),
            isolation_level: self.settings.isolation.code(),
            topics: topics.into_values().collect(),
            ..FetchRequest::default()
        }
    }

    fn refresh(&mut self, topic: Text) {
        if self.refreshing.insert(topic.clone(), ()).is_some() {
            return;
        }
        let (cluster, report) = (self.cluster.clone(), self.report.clone());
        let pause = self.settings.client.retry_backoff;
        self.tasks.spawn("consumer-metadata", async move {
            let result = cluster.refresh_topic(&topic).await.map(|_| ());
            if result.is_err() || !cluster.has_leaders(&topic) {
                time::sleep(pause).await;
            }
            let _ = report.send(Report::Refreshed { topic, result }).await; // the consumer has ended: fine
        });
    }

    pub(super) fn handle(&mut self, report: Report) -> Result<(), ConsumerError> {
        match report {
            Report::Refreshed { topic, result } => {
                self.refreshing.remove(&topic);
                match result {
                    Err(error)
                        if !error.is_retriable() && self.assigned.keys().any(|at| at.topic == topic) =>
                    {
                        Err(error.into())
                    }
                    _ => Ok(()),
                }
            }
            Report::Fetched { node_id, asked, result } => {
                if let Some(count) = self.in_flight.get_mut(&node_id) {
                    *count = count.saturating_sub(1);
                }
                match result {
                    Ok(answer) => self.handle_answer(asked, &answer),
                    Err(error) if error.is_retriable() => {
                        tracing::debug!(%error, "fetch failed, will be repeated");
                        asked.iter().for_each(|asked| {
                            self.cluster.forget_topic(&asked.topic_partition.topic);
                            self.pause(asked);
                        });
                        Ok(())
                    }
                    Err(error) => {
                        asked.iter().for_each(|asked| self.pause(asked));
                        Err(ClusterError::from(error).into())
                    }
                }
            }
        }
    }

    /// Lets a partition rest before its next fetch.
    fn pause(&mut self, asked: &Asked) {
        let client = &self.settings.client;
        let Some(assigned) = self.assigned.get_mut(&asked.topic_partition) else { return };
        if assigned.generation != asked.generation {
            return;
        }
        let mut backoff = Backoff::new(client.retry_backoff, client.retry_backoff_max);
        backoff.skip(assigned.failures);
        assigned.failures = assigned.failures.saturating_add(1);
        assigned.not_before = Some(time::now() + backoff.next());
        assigned.busy = false;
    }

    fn handle_answer(&mut self, asked: Vec<Asked>, answer: &FetchResponse) -> Result<(), ConsumerError> {
        let whole = ErrorCode::from_code(answer.error_code);
        let mut result = Ok(());
        for asked in asked {
            let partition = if whole.is_none() { find(answer, &asked) } else { None };
            let handled = match partition {
                Some(partition) => self.handle_partition(&asked, partition),
                None => {
                    if wants_metadata(whole) {
                        self.cluster.forget_topic(&asked.topic_partition.topic);
                    }
                    self.pause(&asked);
                    Ok(())
                }
            };
            result = result.and(handled);
        }
        result
    }

    fn handle_partition(&mut self, asked: &Asked, partition: &PartitionData) -> Result<(), ConsumerError> {
        let Some(assigned) = self.assigned.get_mut(&asked.topic_partition) else { return Ok(()) };
        if assigned.generation != asked.generation {
            return Ok(()); // a seek has overtaken it
        }
        let code = ErrorCode::from_code(partition.error_code);
        match code {
            ErrorCode::None => {}
            ErrorCode::OffsetOutOfRange => {
                assigned.busy = false;
                assigned.out_of_range = true;
                return Ok(());
            }
            code if code.is_retriable() => {
                if wants_metadata(code) {
                    self.cluster.forget_topic(&asked.topic_partition.topic);
                }
                self.pause(asked);
                return Ok(());
            }
            code => {
                self.pause(asked);
                return Err(ConsumerError::Refused { topic_partition: asked.topic_partition.clone(), code });
            }
        }
        assigned.failures = 0;
        assigned.not_before = None;
        assigned.bounds = Some((partition.high_watermark, partition.last_stable_offset));
        let bytes = partition.records.as_ref().map(|records| records.to_bytes()).unwrap_or_default();
        if bytes.is_empty() {
            assigned.busy = false;
            return Ok(());
        }
        let aborted = partition.aborted_transactions.iter().flatten();
        let aborted = aborted.map(|aborted| (aborted.producer_id, aborted.first_offset));
        let isolation = Isolation::new(self.settings.isolation, aborted);
        let (at, limit) = (asked.topic_partition.clone(), self.settings.decompressed_bytes_max);
        let reader = PartitionReader::new(at, asked.generation, asked.offset, bytes, isolation, limit);
        self.ready.push_back(reader);
        Ok(())
    }
}

/// The answer for a partition: by topic id where the version has them, else by name.
fn find<'a>(answer: &'a FetchResponse, asked: &Asked) -> Option<&'a PartitionData> {
    let topic = answer.responses.iter().find(|topic| {
        if topic.topic_id.is_zero() {
            topic.topic == asked.topic_partition.topic
        } else {
            topic.topic_id == asked.topic_id
        }
    })?;
    topic.partitions.iter().find(|partition| partition.partition_index == asked.topic_partition.partition)
}
