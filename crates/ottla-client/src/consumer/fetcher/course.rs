//! The task of one node's fetches: it sends, checks what comes, reports it, and goes on by itself while `poll` waits.
//!
//! Going on saves the way over `poll`'s thread and back, which costs more than a fetch when data is plenty. It is
//! allowed once for each time that `poll` waits with nothing to read and all that it wants of the node asked for;
//! the next fetch is of the same partitions, behind what has come. Whatever is out of the ordinary - an error, half
//! a batch, nothing new - goes to `poll`, which alone changes what is read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ottla_protocol::batch::BATCH_HEADER_BYTES;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use ottla_protocol::messages::fetch_response::PartitionData;
use ottla_protocol::messages::{FetchRequest, FetchResponse, Records};
use ottla_protocol::types::{Text, Uuid};
use tokio::sync::mpsc;

use super::super::reader;
use super::super::settings::ConsumerSettings;
use super::fetch::Report;
use super::session::{Asked, Plan, Session};
use crate::cluster::{Cluster, Lane};
use crate::connection::{Pending, Versions};
use crate::error::CallError;

/// From flexible versions on; 13 names topics by id.
pub(super) const FETCH: Versions = Versions::new(12, 17);
/// Last version that names topics.
const FETCH_BY_NAME: Versions = Versions::new(12, 12);
/// Checking that much takes long enough to let other tasks run in between.
const YIELD_BYTES: usize = 2 << 20;

/// What a node's task and `poll` share.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    session: Arc<Mutex<Session>>,
    /// A fetch is under way.
    pub(super) in_flight: bool,
}

impl Node {
    /// The session; nobody holds it for long.
    pub(super) fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().expect("no holder of this lock panics")
    }
}

/// An answer, and how many bytes of each partition's records are sound, in the answer's order.
#[derive(Debug)]
pub(in crate::consumer) struct Fetched {
    pub(super) answer: FetchResponse,
    sound_bytes: Vec<Vec<usize>>,
    /// What has been asked for since, behind this answer.
    pub(super) next: Vec<Asked>,
}

impl Fetched {
    /// Checks CRCs, if they are checked: here, where the bytes have just come in, and not where `poll` decodes them.
    async fn check(answer: FetchResponse, next: Vec<Asked>, check_crcs: bool) -> Self {
        let mut sound_bytes = Vec::with_capacity(answer.responses.len());
        for topic in &answer.responses {
            let mut of_topic = Vec::with_capacity(topic.partitions.len());
            for partition in &topic.partitions {
                let records = partition.records.as_ref().map(Records::to_bytes).unwrap_or_default();
                of_topic.push(reader::sound_bytes(&records, check_crcs));
                if records.len() >= YIELD_BYTES {
                    tokio::task::yield_now().await;
                }
            }
            sound_bytes.push(of_topic);
        }
        Self { answer, sound_bytes, next }
    }

    /// The answer for a partition, with its sound bytes.
    pub(super) fn find(&self, asked: &Asked) -> Option<(&PartitionData, usize)> {
        let (topic, partition) = find(&self.answer, asked)?;
        let sound_bytes = self.sound_bytes.get(topic).and_then(|topic| topic.get(partition));
        let partition = self.answer.responses.get(topic)?.partitions.get(partition)?;
        Some((partition, sound_bytes.copied().unwrap_or(0)))
    }
}

/// A node's fetches from one request on.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) cluster: Cluster,
    pub(super) settings: Arc<ConsumerSettings>,
    pub(super) node_id: i32,
    pub(super) node: Node,
    /// `poll` waits, and one node may go on.
    pub(super) may_go_on: Arc<AtomicBool>,
    pub(super) report: mpsc::Sender<Report>,
}

impl Course {
    /// Asks for these partitions and goes on as long as it may. The broker may wait for `wait`, and send
    /// `bytes_max`.
    pub(super) async fn run(self, mut asked: Vec<Asked>, plan: Plan, wait: Duration, bytes_max: usize) {
        let mut pending = self.send(plan, wait, bytes_max).await;
        while let Ok(waiting) = &mut pending {
            let answer = waiting.wait().await;
            let next = answer.as_ref().ok().and_then(|answer| self.next(&asked, answer));
            // it is on its way while this answer is checked
            let (is_last, next) = match next {
                None => (true, Vec::new()),
                Some((next, plan)) => {
                    pending = self.send(plan, self.settings.fetch_max_wait, bytes_max).await;
                    (false, next)
                }
            };
            let result = match answer {
                Ok(answer) => Ok(Fetched::check(answer, next.clone(), self.settings.check_crcs).await),
                Err(error) => Err(error),
            };
            self.report(std::mem::replace(&mut asked, next), result).await;
            if is_last {
                return;
            }
        }
        if let Err(error) = pending {
            self.report(asked, Err(error)).await;
        }
    }

    async fn report(&self, asked: Vec<Asked>, result: Result<Fetched, CallError>) {
        let report = Report::Fetched { node_id: self.node_id, asked, result };
        let _ = self.report.send(report).await; // the consumer has ended: fine
    }

    async fn send(
        &self,
        plan: Plan,
        wait: Duration,
        bytes_max: usize,
    ) -> Result<Pending<FetchResponse>, CallError> {
        let usable = if plan.by_id { FETCH } else { FETCH_BY_NAME };
        let request = request(&self.settings, plan, wait, bytes_max);
        let connection = self.cluster.node(self.node_id, Lane::Data).await?;
        let version = connection.version::<FetchRequest>(usable)?;
        connection.start_waiting(&request, version, wait).await
    }

    /// What to ask for behind this answer, if `poll` lets us and nothing needs its judgement.
    fn next(&self, asked: &[Asked], answer: &FetchResponse) -> Option<(Vec<Asked>, Plan)> {
        let next = behind(asked, answer)?;
        if !self.may_go_on.swap(false, Ordering::AcqRel) {
            return None;
        }
        let mut session = self.node.session();
        session.answered(answer.session_id);
        let plan = session.plan(&next);
        Some((next, plan))
    }
}

/// The same partitions behind what has come; absent when nothing has, or something is wrong.
fn behind(asked: &[Asked], answer: &FetchResponse) -> Option<Vec<Asked>> {
    if !ErrorCode::from_code(answer.error_code).is_none() {
        return None;
    }
    let mut has_news = false;
    let mut next = asked.to_vec();
    for asked in &mut next {
        let Some((topic, partition)) = find(answer, asked) else { continue };
        let partition = answer.responses.get(topic)?.partitions.get(partition)?;
        if !ErrorCode::from_code(partition.error_code).is_none() {
            return None;
        }
        let Some(records) = partition.records.as_ref().filter(|records| !records.is_empty()) else {
            continue;
        };
        asked.offset = end_of(&records.to_bytes(), asked.offset)?;
        has_news = true;
    }
    has_news.then_some(next)
}

/// Writes a request.
fn request(settings: &ConsumerSettings, plan: Plan, wait: Duration, bytes_max: usize) -> FetchRequest {
    let bytes = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX);
    let mut topics: BTreeMap<Text, FetchTopic> = BTreeMap::new();
    for asked in plan.send {
        let name = asked.topic_partition.topic;
        let topic = topics.entry(name.clone()).or_default();
        (topic.topic, topic.topic_id) = (name, asked.topic_id);
        topic.partitions.push(FetchPartition {
            partition: asked.topic_partition.partition,
            current_leader_epoch: asked.leader_epoch,
            fetch_offset: asked.offset,
            partition_max_bytes: bytes(settings.partition_fetch_bytes),
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
        min_bytes: bytes(settings.fetch_min_bytes),
        max_bytes: bytes(bytes_max),
        isolation_level: settings.isolation.code(),
        session_id: plan.session_id,
        session_epoch: plan.session_epoch,
        topics: topics.into_values().collect(),
        forgotten_topics_data: forgotten.into_values().collect(),
        ..FetchRequest::default()
    }
}

/// The offset behind the last whole batch.
pub(super) fn end_of(bytes: &[u8], from: i64) -> Option<i64> {
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

/// Where the answer for a partition is: by topic id where the version has them, else by name.
fn find(answer: &FetchResponse, asked: &Asked) -> Option<(usize, usize)> {
    let topics = answer.responses.iter().enumerate().filter(|(_, topic)| {
        if topic.topic_id.is_zero() {
            topic.topic == asked.topic_partition.topic
        } else {
            topic.topic_id == asked.topic_id
        }
    });
    let index = asked.topic_partition.partition;
    let mut found = topics.filter_map(|(at, topic)| {
        Some((at, topic.partitions.iter().position(|partition| partition.partition_index == index)?))
    });
    found.next()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ottla_protocol::batch::{BatchBuilder, TAIL_HEADER_BYTES};
    use ottla_protocol::compression::Codec;
    use ottla_protocol::messages::fetch_response::FetchableTopicResponse;
    use ottla_protocol::record::NewRecord;

    use super::*;
    use crate::record::TopicPartition;

    const ID: Uuid = Uuid([1; 16]);

    fn asked(partition: i32, offset: i64) -> Asked {
        Asked {
            topic_partition: TopicPartition::new("t", partition),
            topic_id: ID,
            offset,
            leader_epoch: 0,
            generation: 1,
        }
    }

    fn batch() -> Bytes {
        let mut builder = BatchBuilder::new(Codec::None);
        for _ in 0..3 {
            builder.append(&NewRecord::default()).expect("small enough");
        }
        builder.build()
    }

    fn answer(partitions: &[(i32, ErrorCode, Bytes)]) -> FetchResponse {
        let partitions = partitions.iter().map(|(partition_index, code, records)| PartitionData {
            partition_index: *partition_index,
            error_code: code.code(),
            records: Some(records.clone().into()),
            ..PartitionData::default()
        });
        let topic = FetchableTopicResponse {
            topic_id: ID,
            partitions: partitions.collect(),
            ..FetchableTopicResponse::default()
        };
        FetchResponse { responses: vec![topic], ..FetchResponse::default() }
    }

    /// Proves that going on asks behind what has come, and for the same where nothing has.
    #[test]
    fn goes_on_behind_what_has_come() {
        let asked_for = [asked(0, 0), asked(1, 7), asked(2, 9)];
        let come = [(0, ErrorCode::None, batch()), (1, ErrorCode::None, Bytes::new())];
        let next = behind(&asked_for, &answer(&come)).expect("there is news");
        assert_eq!(next, [asked(0, 3), asked(1, 7), asked(2, 9)]);
    }

    /// Proves that whatever `poll` has to judge ends the course: errors, nothing new, less than a batch, old offsets.
    #[test]
    fn ends_where_judgement_is_needed() {
        let sound = (0, ErrorCode::None, batch());
        let asked_for = [asked(0, 0), asked(1, 7)];
        let ends = |answer: &FetchResponse| behind(&asked_for, answer).is_none();
        assert!(ends(&answer(&[])));
        assert!(ends(&answer(&[(0, ErrorCode::None, Bytes::new())])));
        assert!(ends(&answer(&[sound.clone(), (1, ErrorCode::NotLeaderOrFollower, Bytes::new())])));
        assert!(ends(&answer(&[(0, ErrorCode::None, batch().slice(..BATCH_HEADER_BYTES + 1))])));
        assert!(ends(&answer(&[(0, ErrorCode::None, batch().slice(..TAIL_HEADER_BYTES))])));
        assert!(ends(&answer(&[sound.clone(), (1, ErrorCode::None, batch())])), "3 is below 7");
        let refused =
            FetchResponse { error_code: ErrorCode::FetchSessionIdNotFound.code(), ..answer(&[sound]) };
        assert!(ends(&refused));
    }
}
