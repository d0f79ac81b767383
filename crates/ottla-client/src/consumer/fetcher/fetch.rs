//! Fetches: what is asked of which node, and what an answer means for each partition.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_env::time::{self, Instant};
use ottla_protocol::batch::BATCH_HEADER_BYTES;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use ottla_protocol::messages::fetch_response::PartitionData;
use ottla_protocol::messages::{FetchRequest, FetchResponse};
use ottla_protocol::types::{Text, Uuid};

use super::super::error::ConsumerError;
use super::super::isolation::Isolation;
use super::super::positions::{self, Looked, Sought, Validated};
use super::super::reader::PartitionReader;
use super::super::settings::OffsetReset;
use super::session::{Asked, Plan};
use super::{Fetcher, Partition, Place};
use crate::backoff::Backoff;
use crate::cluster::{ClusterError, Lane};
use crate::connection::Versions;
use crate::error::{CallError, wants_metadata};
use crate::record::TopicPartition;

/// From flexible versions on; 13 names topics by id.
const FETCH: Versions = Versions::new(12, 17);
/// Last version that names topics.
const FETCH_BY_NAME: Versions = Versions::new(12, 12);
/// Longest `poll` sleeps without looking around.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How long a broker may wait when a partition is left out because enough of it is buffered: soon it is wanted.
const PARTIAL_WAIT: Duration = Duration::from_millis(50);

/// What tasks report.
#[derive(Debug)]
pub(in crate::consumer) enum Report {
    Fetched { node_id: i32, asked: Vec<Asked>, result: Result<FetchResponse, CallError> },
    Refreshed { topic: Text, result: Result<(), ClusterError> },
    Looked(Vec<Looked>),
    Validated(Vec<Validated>),
}

/// What the partitions of one node want.
#[derive(Default)]
struct Wants {
    asked: Vec<Asked>,
    /// Partitions of which enough is buffered.
    left_out: usize,
}

impl Fetcher {
    /// Starts what can be started, and says when to look again.
    pub(in crate::consumer) fn start_work(&mut self, now: Instant) -> Instant {
        let mut next = now + LOOK_AROUND;
        let mut by_node: BTreeMap<i32, Wants> = BTreeMap::new();
        let mut unknown = Vec::new();
        let (mut sought, mut to_validate) = (Vec::new(), BTreeMap::<i32, Vec<_>>::new());
        let is_full = self.queued_bytes() >= self.settings.queued_bytes_max;
        for (at, partition) in &mut self.partitions {
            if partition.busy {
                continue;
            }
            if let Some(not_before) = partition.not_before.filter(|not_before| *not_before > now) {
                next = next.min(not_before);
                continue;
            }
            let is_asked = |leader| self.sessions.get(&leader).is_some_and(|session| session.in_flight);
            let position = match partition.place {
                Place::At(_) if partition.paused => continue,
                // most partitions, most of the time: their node is being asked, or enough is buffered
                Place::At(_) if partition.leader.is_some_and(is_asked) => continue,
                Place::At(position) => position,
                Place::Committed | Place::Reset(_) => {
                    partition.busy = true;
                    let committed = partition.place == Place::Committed;
                    sought.push(Sought { at: at.clone(), generation: partition.generation, committed });
                    continue;
                }
            };
            let is_supplied = partition.queued_bytes >= self.settings.partition_fetch_bytes;
            let fetch_offset = partition.fetch_offset.filter(|_| !is_supplied);
            if let (None, Some(leader)) = (fetch_offset, partition.leader) {
                by_node.entry(leader).or_default().left_out += 1;
                continue;
            }
            let topic = self.cluster.cached_topic(&at.topic);
            let leader = self.cluster.cached_leader(&at.topic, at.partition);
            let (Some(topic), Some(leader)) = (topic, leader) else {
                unknown.push(at.topic.clone());
                continue;
            };
            let leader_epoch = leader_epoch(&topic.leader_epochs, at.partition);
            if leader_epoch > partition.validated && position.leader_epoch >= 0 {
                partition.busy = true;
                let asked = (at.clone(), partition.generation, position.leader_epoch, leader_epoch);
                to_validate.entry(leader).or_default().push(asked);
                continue;
            }
            partition.leader = Some(leader);
            let Some(offset) = fetch_offset.filter(|_| !is_full && !is_asked(leader)) else { continue };
            let wants = by_node.entry(leader).or_default();
            wants.asked.push(Asked {
                topic_partition: at.clone(),
                topic_id: topic.topic_id,
                offset,
                leader_epoch,
                generation: partition.generation,
            });
        }
        unknown.into_iter().for_each(|topic| self.refresh(topic));
        self.look_up(sought);
        to_validate.into_iter().for_each(|(node_id, asked)| self.validate(node_id, asked));
        by_node.into_iter().for_each(|(node_id, wants)| self.start_fetch(node_id, wants));
        next
    }

    fn look_up(&mut self, sought: Vec<Sought>) {
        if sought.is_empty() {
            return;
        }
        let (cluster, settings, report) =
            (self.cluster.clone(), std::sync::Arc::clone(&self.settings), self.report.clone());
        self.tasks.spawn("consumer-positions", async move {
            let looked = positions::look_up(&cluster, &settings, sought).await;
            let _ = report.send(Report::Looked(looked)).await; // the consumer has ended: fine
        });
    }

    fn validate(&mut self, node_id: i32, asked: Vec<(TopicPartition, u64, i32, i32)>) {
        let (cluster, report) = (self.cluster.clone(), self.report.clone());
        self.tasks.spawn("consumer-validate", async move {
            let validated = positions::validate(&cluster, node_id, asked).await;
            let _ = report.send(Report::Validated(validated)).await; // the consumer has ended: fine
        });
    }

    fn start_fetch(&mut self, node_id: i32, wants: Wants) {
        // with most partitions well supplied there is time to ask for more of them at once
        if wants.asked.is_empty() || wants.asked.len() < wants.left_out {
            return;
        }
        for asked in &wants.asked {
            if let Some(partition) = self.partitions.get_mut(&asked.topic_partition) {
                partition.busy = true;
            }
        }
        let session = self.sessions.entry(node_id).or_default();
        session.in_flight = true;
        let plan = session.plan(&wants.asked);
        let wait = self.settings.fetch_max_wait;
        let wait = if wants.left_out > 0 { wait.min(PARTIAL_WAIT) } else { wait };
        let usable = if plan.by_id { FETCH } else { FETCH_BY_NAME };
        let request = self.fetch_request(plan, wait);
        let (cluster, report, asked) = (self.cluster.clone(), self.report.clone(), wants.asked);
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

    fn fetch_request(&self, plan: Plan, wait: Duration) -> FetchRequest {
        let bytes = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
        let room = self.settings.queued_bytes_max.saturating_sub(self.queued_bytes());
        let bytes_max = self.settings.fetch_max_bytes.min(room.max(self.settings.partition_fetch_bytes));
        let mut topics: BTreeMap<Text, FetchTopic> = BTreeMap::new();
        for asked in plan.send {
            let name = asked.topic_partition.topic;
            let topic = topics.entry(name.clone()).or_default();
            (topic.topic, topic.topic_id) = (name, asked.topic_id);
            topic.partitions.push(FetchPartition {
                partition: asked.topic_partition.partition,
                current_leader_epoch: asked.leader_epoch,
                fetch_offset: asked.offset,
                partition_max_bytes: bytes(self.settings.partition_fetch_bytes),
                ..FetchPartition::default()
            });
        }
        let mut forgotten: BTreeMap<(Text, Uuid), ForgottenTopic> = BTreeMap::new();
        for asked in plan.forget {
            let name = asked.topic_partition.topic;
            let topic = forgotten.entry((name.clone(), asked.topic_id)).or_default();
            (topic.topic, topic.topic_id) = (name, asked.topic_id);
            topic.partitions.push(asked.topic_partition.partition);
        }
        FetchRequest {
            max_wait_ms: i32::try_from(wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: bytes(self.settings.fetch_min_bytes),
            max_bytes: bytes(bytes_max),
            isolation_level: self.settings.isolation.code(),
            session_id: plan.session_id,
            session_epoch: plan.session_epoch,
            topics: topics.into_values().collect(),
            forgotten_topics_data: forgotten.into_values().collect(),
            ..FetchRequest::default()
        }
    }

    fn refresh(&mut self, topic: Text) {
        if !self.refreshing.insert(topic.clone()) {
            return;
        }
        let (cluster, report) = (self.cluster.clone(), self.report.clone());
        let pause = self.settings.client.retry_backoff;
        self.tasks.spawn("consumer-metadata", async move {
            let result = cluster.refresh_topic_or_wait(&topic).await.map(|_| ());
            if result.is_err() || !cluster.has_leaders(&topic) {
                time::sleep(pause).await;
            }
            let _ = report.send(Report::Refreshed { topic, result }).await; // the consumer has ended: fine
        });
    }

    pub(in crate::consumer) fn handle(&mut self, report: Report) -> Result<(), ConsumerError> {
        match report {
            Report::Looked(looked) => self.take_looked(looked),
            Report::Validated(validated) => self.take_validated(validated),
            Report::Refreshed { topic, result } => {
                self.refreshing.remove(&topic);
                match result {
                    // a member is told by its group when a topic has gone
                    Err(ClusterError::NoSuchTopic { .. }) if self.is_subscribed => Ok(()),
                    Err(error)
                        if !error.is_retriable() && self.partitions.keys().any(|at| at.topic == topic) =>
                    {
                        Err(error.into())
                    }
                    _ => Ok(()),
                }
            }
            Report::Fetched { node_id, asked, result } => self.handle_fetched(node_id, asked, result),
        }
    }

    fn handle_fetched(
        &mut self,
        node_id: i32,
        asked: Vec<Asked>,
        result: Result<FetchResponse, CallError>,
    ) -> Result<(), ConsumerError> {
        let session = self.sessions.entry(node_id).or_default();
        session.in_flight = false;
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                session.lose(false);
                self.metrics.failed_fetches += 1;
                for asked in &asked {
                    if error.is_retriable() {
                        self.cluster.forget_topic(&asked.topic_partition.topic);
                    }
                    self.rest(&asked.topic_partition, asked.generation);
                }
                if error.is_retriable() {
                    tracing::debug!(%error, "fetch failed, will be repeated");
                    return Ok(());
                }
                return Err(ClusterError::from(error).into());
            }
        };
        match ErrorCode::from_code(answer.error_code) {
            ErrorCode::None => session.answered(answer.session_id),
            code => {
                session.lose(code == ErrorCode::FetchSessionIdNotFound);
                self.refused_as_a_whole(&asked, code);
                return Ok(());
            }
        }
        self.metrics.fetches += 1;
        let mut result = Ok(());
        for asked in asked {
            // in a session, what has no news is not in the answer
            let handled = match find(&answer, &asked) {
                Some(partition) => self.handle_partition(&asked, partition),
                None => {
                    self.free(&asked);
                    Ok(())
                }
            };
            result = result.and(handled);
        }
        result
    }

    /// The fetch was answered with an error and nothing else.
    fn refused_as_a_whole(&mut self, asked: &[Asked], code: ErrorCode) {
        self.metrics.failed_fetches += 1;
        tracing::debug!(%code, "fetch was refused, will be repeated");
        let session_only =
            matches!(code, ErrorCode::FetchSessionIdNotFound | ErrorCode::InvalidFetchSessionEpoch);
        for asked in asked {
            if session_only {
                self.free(asked); // at once, with a full request
                continue;
            }
            if wants_metadata(code) {
                self.cluster.forget_topic(&asked.topic_partition.topic);
            }
            self.rest(&asked.topic_partition, asked.generation);
        }
    }

    fn free(&mut self, asked: &Asked) {
        if let Some(partition) = self.current(asked) {
            partition.busy = false;
        }
    }

    /// The partition of an answer, unless a seek or an assignment has overtaken it.
    fn current(&mut self, asked: &Asked) -> Option<&mut Partition> {
        let partition = self.partitions.get_mut(&asked.topic_partition)?;
        (partition.generation == asked.generation).then_some(partition)
    }

    /// Lets a partition rest before it is asked for again.
    pub(super) fn rest(&mut self, at: &TopicPartition, generation: u64) {
        let client = &self.settings.client;
        let mut backoff = Backoff::new(client.retry_backoff, client.retry_backoff_max);
        let Some(partition) = self.partitions.get_mut(at) else { return };
        if partition.generation != generation {
            return;
        }
        backoff.skip(partition.failures);
        partition.failures = partition.failures.saturating_add(1);
        partition.not_before = Some(time::now() + backoff.next());
        partition.busy = false;
    }

    /// An error of one partition: again, elsewhere, anew, or told to the user.
    fn handle_error(&mut self, asked: &Asked, code: ErrorCode) -> Result<(), ConsumerError> {
        let at = asked.topic_partition.clone();
        self.rest(&at, asked.generation);
        let reset = self.settings.offset_reset;
        let Some(partition) = self.current(asked) else { return Ok(()) };
        match code {
            // what is buffered comes first; then it is asked again
            ErrorCode::OffsetOutOfRange if partition.queued_bytes > 0 => Ok(()),
            ErrorCode::OffsetOutOfRange if reset == OffsetReset::None => {
                Err(ConsumerError::OutOfRange { topic_partition: at, offset: asked.offset })
            }
            ErrorCode::OffsetOutOfRange => {
                (partition.place, partition.not_before) = (Place::Reset(asked.offset), None);
                Ok(())
            }
            ErrorCode::CorruptMessage => {
                let problem = "the broker finds its record damaged".to_owned();
                Err(ConsumerError::Damaged { topic_partition: at, offset: asked.offset, problem })
            }
            code if code.is_retriable() || code == ErrorCode::UnknownServerError => {
                tracing::debug!(partition = %at, %code, "fetch will be repeated");
                if wants_metadata(code) {
                    self.cluster.forget_topic(&at.topic);
                }
                Ok(())
            }
            code => Err(ConsumerError::Refused { topic_partition: at, code }),
        }
    }

    fn handle_partition(&mut self, asked: &Asked, answer: &PartitionData) -> Result<(), ConsumerError> {
        let code = ErrorCode::from_code(answer.error_code);
        if !code.is_none() {
            return self.handle_error(asked, code);
        }
        let Some(partition) = self.current(asked) else { return Ok(()) };
        partition.busy = false;
        partition.failures = 0;
        partition.not_before = None;
        partition.validated = partition.validated.max(asked.leader_epoch);
        partition.bounds = Some((answer.high_watermark, answer.last_stable_offset));
        let bytes = answer.records.as_ref().map(|records| records.to_bytes()).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        let size = bytes.len();
        // without one whole batch, what is wrong shows when it is read
        partition.fetch_offset = end_of(&bytes, asked.offset);
        partition.queued_bytes += size;
        self.metrics.queued_bytes += size as u64;
        self.metrics.fetched_bytes += size as u64;
        let aborted = answer.aborted_transactions.iter().flatten();
        let aborted = aborted.map(|aborted| (aborted.producer_id, aborted.first_offset));
        let isolation = Isolation::new(self.settings.isolation, aborted);
        let (at, limit) = (asked.topic_partition.clone(), self.settings.decompressed_bytes_max);
        let reader = PartitionReader::new(at, asked.generation, asked.offset, bytes, isolation, limit);
        self.ready.push_back(reader);
        Ok(())
    }

    /// Ends the sessions that brokers hold for us, without waiting for answers longer than until `deadline`.
    pub(in crate::consumer) async fn close(&mut self, deadline: Instant) {
        self.tasks.abort_all().await;
        for (node_id, session) in std::mem::take(&mut self.sessions) {
            let Some(session_id) = session.open() else { continue };
            let request =
                FetchRequest { session_id, session_epoch: -1, max_bytes: 1, ..FetchRequest::default() };
            let ended = async {
                let connection = self.cluster.node(node_id, Lane::Control).await?;
                connection.call(&request, FETCH).await
            };
            if !matches!(time::timeout_at(deadline, ended).await, Ok(Ok(_))) {
                tracing::debug!(
                    node_id,
                    "the fetch session was not ended; the broker drops it when it needs room"
                );
            }
        }
    }
}

fn leader_epoch(epochs: &[i32], partition: i32) -> i32 {
    usize::try_from(partition).ok().and_then(|index| epochs.get(index)).copied().unwrap_or(-1)
}

/// The offset behind the last whole batch.
fn end_of(bytes: &[u8], from: i64) -> Option<i64> {
    let mut rest = bytes;
    let mut end = None;
    while let Some(head) = rest.get(..BATCH_HEADER_BYTES) {
        let base_offset = i64::from_be_bytes(head.get(..8)?.try_into().ok()?);
        let length = i32::from_be_bytes(head.get(8..12)?.try_into().ok()?);
        let last_delta = i32::from_be_bytes(head.get(23..27)?.try_into().ok()?);
        let whole = usize::try_from(length).ok()?.checked_add(12)?;
        let Some(behind) = rest.get(whole..) else { break };
        end = Some(base_offset.checked_add(i64::from(last_delta))?.checked_add(1)?);
        rest = behind;
    }
    end.filter(|end| *end > from)
}

/// The answer for a partition: by topic id where the version has them, else by name.
fn find<'a>(answer: &'a FetchResponse, asked: &Asked) -> Option<&'a PartitionData> {
    let mut topics = answer.responses.iter().filter(|topic| {
        if topic.topic_id.is_zero() {
            topic.topic == asked.topic_partition.topic
        } else {
            topic.topic_id == asked.topic_id
        }
    });
    topics.find_map(|topic| {
        let index = asked.topic_partition.partition;
        topic.partitions.iter().find(|partition| partition.partition_index == index)
    })
}
