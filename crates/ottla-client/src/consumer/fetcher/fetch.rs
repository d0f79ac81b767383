//! Fetches: what is asked of which node, and what an answer means for each partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ottla_env::time::{self, Instant};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::FetchRequest;
use ottla_protocol::messages::fetch_response::PartitionData;
use ottla_protocol::types::Text;

use super::super::error::ConsumerError;
use super::super::isolation::Isolation;
use super::super::positions::{self, Looked, Sought, ToValidate, Validated};
use super::super::reader::PartitionReader;
use super::super::settings::OffsetReset;
use super::course::{Course, FETCH, Fetched, end_of};
use super::session::Asked;
use super::{Fetcher, Partition, Place};
use crate::backoff::Backoff;
use crate::cluster::{ClusterError, Lane};
use crate::error::{CallError, wants_metadata};
use crate::record::TopicPartition;

/// Longest `poll` sleeps without looking around.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How long a broker may wait when a partition is left out because enough of it is buffered: soon it is wanted.
const PARTIAL_WAIT: Duration = Duration::from_millis(50);

/// What tasks report.
#[derive(Debug)]
pub(in crate::consumer) enum Report {
    /// The node is being asked again if the answer says so.
    Fetched {
        node_id: i32,
        asked: Vec<Asked>,
        result: Result<Fetched, CallError>,
    },
    Refreshed {
        topic: Text,
        result: Result<(), ClusterError>,
    },
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

/// What is to be started.
#[derive(Default)]
struct Work {
    /// Fetches, by node.
    by_node: BTreeMap<i32, Wants>,
    /// Topics without metadata.
    unknown: Vec<Text>,
    /// Positions that are not known.
    sought: Vec<Sought>,
    /// Positions to ask leaders about, by node.
    to_validate: BTreeMap<i32, Vec<ToValidate>>,
}

impl Fetcher {
    /// Starts what can be started, and says when to look again.
    pub(in crate::consumer) fn start_work(&mut self, now: Instant) -> Instant {
        let mut next = now + LOOK_AROUND;
        let mut all_asked = true;
        let mut work = Work::default();
        let is_full = self.queued_bytes() >= self.settings.queued_bytes_max;
        for (at, partition) in &mut self.partitions {
            if partition.busy {
                // what is held back must not be fetched on and on
                all_asked &= !partition.paused;
                continue;
            }
            if let Some(not_before) = partition.not_before.filter(|not_before| *not_before > now) {
                next = next.min(not_before);
                continue;
            }
            let is_asked = |leader| self.nodes.get(&leader).is_some_and(|node| node.in_flight);
            let position = match partition.place {
                Place::At(_) if partition.paused => continue,
                // most partitions, most of the time: their node is being asked, or enough is buffered
                Place::At(_) if partition.leader.is_some_and(is_asked) => {
                    all_asked = false;
                    continue;
                }
                Place::At(position) => position,
                Place::Committed | Place::Reset(_) => {
                    partition.busy = true;
                    let committed = partition.place == Place::Committed;
                    work.sought.push(Sought { at: at.clone(), generation: partition.generation, committed });
                    continue;
                }
            };
            // a full answer does not stop the next: it is on its way while this one is read
            let is_supplied = partition.queued_bytes > self.settings.partition_fetch_bytes;
            let fetch_offset = partition.fetch_offset.filter(|_| !is_supplied);
            if let (None, Some(leader)) = (fetch_offset, partition.leader) {
                work.by_node.entry(leader).or_default().left_out += 1;
                all_asked = false;
                continue;
            }
            let topic = self.cluster.cached_topic(&at.topic);
            let leader = self.cluster.cached_leader(&at.topic, at.partition);
            let (Some(topic), Some(leader)) = (topic, leader) else {
                work.unknown.push(at.topic.clone());
                continue;
            };
            let leader_epoch = leader_epoch(&topic.leader_epochs, at.partition);
            if leader_epoch > partition.validated && position.leader_epoch >= 0 {
                partition.busy = true;
                work.to_validate.entry(leader).or_default().push(ToValidate {
                    at: at.clone(),
                    generation: partition.generation,
                    position,
                    in_epoch: leader_epoch,
                });
                continue;
            }
            partition.leader = Some(leader);
            let Some(offset) = fetch_offset.filter(|_| !is_full && !is_asked(leader)) else {
                all_asked = false;
                continue;
            };
            let wants = work.by_node.entry(leader).or_default();
            wants.asked.push(Asked {
                topic_partition: at.clone(),
                topic_id: topic.topic_id,
                offset,
                leader_epoch,
                generation: partition.generation,
            });
        }
        self.start(work);
        self.all_asked = all_asked;
        next
    }

    fn start(&mut self, work: Work) {
        work.unknown.into_iter().for_each(|topic| self.refresh(topic));
        self.look_up(work.sought);
        work.to_validate.into_iter().for_each(|(node_id, asked)| self.validate(node_id, asked));
        work.by_node.into_iter().for_each(|(node_id, wants)| self.start_fetch(node_id, wants));
    }

    /// Whether `poll` waits: then the task of a fetch may go on by itself, once, unless a partition waits for its turn.
    pub(in crate::consumer) fn set_waiting(&self, waits: bool) {
        self.may_go_on.store(waits && self.all_asked, Ordering::Release);
    }

    fn look_up(&mut self, sought: Vec<Sought>) {
        if sought.is_empty() {
            return;
        }
        let (cluster, settings, report) =
            (self.cluster.clone(), Arc::clone(&self.settings), self.report.clone());
        let member = self.member.clone();
        self.tasks.spawn("consumer-positions", async move {
            let looked = positions::look_up(&cluster, &settings, member.as_deref(), sought).await;
            let _ = report.send(Report::Looked(looked)).await; // the consumer has ended: fine
        });
    }

    fn validate(&mut self, node_id: i32, asked: Vec<ToValidate>) {
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
        let node = self.nodes.entry(node_id).or_default();
        node.in_flight = true;
        let plan = node.session().plan(&wants.asked);
        let wait = self.settings.fetch_max_wait;
        let wait = if wants.left_out > 0 { wait.min(PARTIAL_WAIT) } else { wait };
        let course = Course {
            cluster: self.cluster.clone(),
            settings: Arc::clone(&self.settings),
            node_id,
            node: node.clone(),
            may_go_on: Arc::clone(&self.may_go_on),
            report: self.report.clone(),
        };
        let room = self.settings.queued_bytes_max.saturating_sub(self.queued_bytes());
        let bytes_max = self.settings.fetch_max_bytes.min(room.max(self.settings.partition_fetch_bytes));
        self.tasks.spawn("consumer-fetch", course.run(wants.asked, plan, wait, bytes_max));
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
        self.has_news = true;
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
        result: Result<Fetched, CallError>,
    ) -> Result<(), ConsumerError> {
        let node = self.nodes.entry(node_id).or_default();
        node.in_flight = false;
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(error) => {
                node.session().lose(false);
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
        match ErrorCode::from_code(fetched.answer.error_code) {
            // its task has told the session, and has asked again
            ErrorCode::None if !fetched.next.is_empty() => node.in_flight = true,
            ErrorCode::None => node.session().answered(fetched.answer.session_id),
            code => {
                node.session().lose(code == ErrorCode::FetchSessionIdNotFound);
                self.refused_as_a_whole(&asked, code);
                return Ok(());
            }
        }
        self.metrics.fetches += 1;
        let mut result = Ok(());
        for asked in asked {
            // in a session, what has no news is not in the answer
            let handled = match fetched.find(&asked) {
                Some((partition, sound_bytes)) => self.handle_partition(&asked, partition, sound_bytes),
                None => {
                    self.free(&asked);
                    Ok(())
                }
            };
            result = result.and(handled);
        }
        for asked in &fetched.next {
            if let Some(partition) = self.current(asked) {
                partition.busy = true;
            }
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

    fn handle_partition(
        &mut self,
        asked: &Asked,
        answer: &PartitionData,
        sound_bytes: usize,
    ) -> Result<(), ConsumerError> {
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
        // without one whole sound batch, what is wrong shows when it is read
        partition.fetch_offset = end_of(bytes.get(..sound_bytes).unwrap_or_default(), asked.offset);
        partition.queued_bytes += size;
        self.metrics.queued_bytes += size as u64;
        self.metrics.fetched_bytes += size as u64;
        let aborted = answer.aborted_transactions.iter().flatten();
        let aborted = aborted.map(|aborted| (aborted.producer_id, aborted.first_offset));
        let isolation = Isolation::new(self.settings.isolation, aborted);
        let (at, limit) = (asked.topic_partition.clone(), self.settings.decompressed_bytes_max);
        let reader = PartitionReader::new(at, asked.generation, asked.offset, bytes, isolation, limit);
        self.ready.push_back(reader.with_sound_bytes(sound_bytes));
        Ok(())
    }

    /// Ends the sessions that brokers hold for us, without waiting for answers longer than until `deadline`.
    pub(in crate::consumer) async fn close(&mut self, deadline: Instant) {
        self.tasks.abort_all().await;
        for (node_id, node) in std::mem::take(&mut self.nodes) {
            let Some(session_id) = node.session().open() else { continue };
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
