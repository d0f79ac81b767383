//! A broker for tests: a real socket, and behind it a script that sees every request and says what happens.
//!
//! `serve` is the bare server; `MiniBroker` a script with one topic that checks sequences as a partition leader
//! does, coordinates transactions, and can be told to fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ottla_env::net::{self, OwnedWriteHalf};
use ottla_env::spawn::{self, TaskGroup, TaskHandle};
use ottla_env::time;
use ottla_protocol::api::ApiKey;
use ottla_protocol::batch::{BatchHeader, increment_sequence};
use ottla_protocol::codec::Reader;
use ottla_protocol::error::ErrorCode;
use ottla_protocol::frame;
use ottla_protocol::header::RequestHeader;
use ottla_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use ottla_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey};
use ottla_protocol::messages::find_coordinator_response::Coordinator;
use ottla_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use ottla_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use ottla_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use ottla_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    ApiVersionsResponse, EndTxnRequest, EndTxnResponse, FindCoordinatorRequest, FindCoordinatorResponse,
    InitProducerIdRequest, InitProducerIdResponse, Message, MetadataRequest, MetadataResponse,
    ProduceRequest, ProduceResponse, TxnOffsetCommitRequest, TxnOffsetCommitResponse,
};
use ottla_protocol::types::Text;
use tokio::io::AsyncWriteExt;

use crate::connection::FrameReader;

/// The topic of a `MiniBroker`.
pub(crate) const TOPIC: &str = "t";
/// Its partitions.
pub(crate) const PARTITIONS: i32 = 2;

/// A request as the script sees it.
pub(crate) struct Call {
    pub(crate) header: RequestHeader,
    body: Reader,
}

impl Call {
    /// The request.
    pub(crate) fn decode<M: Message>(&mut self) -> M {
        M::decode(&mut self.body, self.header.api_version).expect("our own client wrote it")
    }

    /// An answer to it.
    pub(crate) fn reply<M: Message>(&self, answer: &M) -> Answer {
        let (header, version) = (&self.header, self.header.api_version);
        let frame = frame::encode_response(header.api, version, header.correlation_id, answer);
        Answer::Bytes(frame.expect("the answer fits its version"))
    }
}

/// What happens to a request.
pub(crate) enum Answer {
    /// These bytes are sent.
    Bytes(Vec<Bytes>),
    /// They are sent after so long; other connections go on meanwhile.
    Late(Duration, Vec<Bytes>),
    /// Nothing is ever sent.
    Silence,
    /// The connection is closed.
    Close,
}

/// A running server; it ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    task: TaskHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves every connection with the script. It gets the server's own address with each call.
pub(crate) async fn serve<F>(script: F) -> Server
where
    F: FnMut(&str, Call) -> Answer + Send + 'static,
{
    let listener = net::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let script = Arc::new(Mutex::new(script));
    let own = address.clone();
    let task = spawn::task("scripted", async move {
        let mut connections = TaskGroup::new();
        while let Ok((stream, _)) = net::accept(&listener).await {
            let (read, mut write) = stream.into_split();
            let mut frames = FrameReader::new(read, 100 << 20);
            let (script, own) = (Arc::clone(&script), own.clone());
            connections.spawn("scripted-connection", async move {
                while let Ok(bytes) = frames.next().await {
                    let mut body = Reader::new(bytes);
                    let header = RequestHeader::decode(&mut body).expect("our own client wrote it");
                    let answer = {
                        let mut script = script.lock().expect("no script panics");
                        script(&own, Call { header, body })
                    };
                    if !send(&mut write, answer).await {
                        return;
                    }
                }
            });
        }
    });
    Server { address, task }
}

async fn send(write: &mut OwnedWriteHalf, answer: Answer) -> bool {
    match answer {
        Answer::Bytes(chunks) => write_all(write, chunks).await,
        Answer::Late(after, chunks) => {
            time::sleep(after).await;
            write_all(write, chunks).await
        }
        Answer::Silence => true,
        Answer::Close => false,
    }
}

async fn write_all(write: &mut OwnedWriteHalf, chunks: Vec<Bytes>) -> bool {
    for chunk in chunks {
        if write.write_all(&chunk).await.is_err() {
            return false;
        }
    }
    true
}

/// A frame of raw bytes, length in front.
pub(crate) fn raw_frame(bytes: &[u8]) -> Answer {
    let mut frame = BytesMut::new();
    frame.put_i32(i32::try_from(bytes.len()).expect("short"));
    frame.put_slice(bytes);
    Answer::Bytes(vec![frame.freeze()])
}

/// What ApiVersions answers.
pub(crate) fn api_versions() -> ApiVersionsResponse {
    let api = |key: ApiKey, min_version, max_version| ApiVersion {
        api_key: key.code(),
        min_version,
        max_version,
        ..ApiVersion::default()
    };
    ApiVersionsResponse {
        api_keys: vec![
            api(ApiKey::ApiVersions, 0, 4),
            api(ApiKey::Metadata, 0, 12),
            api(ApiKey::Produce, 0, 12),
            api(ApiKey::InitProducerId, 0, 5),
            api(ApiKey::FindCoordinator, 0, 4),
            api(ApiKey::EndTxn, 0, 5),
            api(ApiKey::AddPartitionsToTxn, 0, 5),
            api(ApiKey::AddOffsetsToTxn, 0, 4),
            api(ApiKey::TxnOffsetCommit, 0, 5),
        ],
        finalized_features_epoch: 1,
        finalized_features: vec![FinalizedFeatureKey {
            name: Text::from_static("transaction.version"),
            max_version_level: 2,
            min_version_level: 2,
            ..FinalizedFeatureKey::default()
        }],
        ..ApiVersionsResponse::default()
    }
}

/// What befalls a Produce, an EndTxn or another request of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None.
    Fine,
    /// The connection ends before anything is done.
    CloseBefore,
    /// The connection ends when all is done, before it is said.
    CloseAfter,
    /// All is done, and the answer to a Produce cannot be read.
    Garbled,
    /// Nothing is done, and this is said.
    Code(ErrorCode),
}

/// What a mini broker has.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// What each partition has.
    pub(crate) logs: BTreeMap<i32, Vec<Stored>>,
    /// Faults of the next requests; none when it is empty.
    pub(crate) faults: VecDeque<Fault>,
    /// So many times the topic is not known yet.
    pub(crate) topic_unknown: u32,
    /// Whether the cluster has finalized protocol version 1 of transactions only.
    pub(crate) version_1: bool,
    /// Largest batch it takes, in bytes; none: any.
    pub(crate) batch_bytes_max: Option<usize>,
    /// Partitions and groups that the open transaction of version 1 has.
    pub(crate) added: BTreeSet<String>,
    /// Producer ids given out.
    pub(crate) producer_ids: i64,
    /// EndTxn requests: epoch and decision.
    pub(crate) ends: Vec<(i16, bool)>,
    /// Epoch of the transactional producer.
    pub(crate) epoch: i16,
    /// How often the features were finalized anew: their epoch.
    pub(crate) features_epoch: i64,
    /// Every request but ApiVersions: which, and in which version.
    pub(crate) calls: Vec<(ApiKey, i16)>,
    /// What the next requests of an API are refused with: any code, also one that nobody knows.
    pub(crate) refusals: BTreeMap<ApiKey, VecDeque<i16>>,
    /// So many answers that should name a producer name nobody.
    pub(crate) nameless: u32,
    /// APIs of transactions whose answers leave out what they were asked for.
    pub(crate) mute: BTreeSet<ApiKey>,
}

/// A batch in a partition's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Producer id and epoch.
    pub(crate) producer: (i64, i16),
    /// Sequence of its first record.
    pub(crate) sequence: i32,
    /// How many it has.
    pub(crate) records: i32,
}

/// A broker with one topic.
#[derive(Clone, Debug, Default)]
pub(crate) struct MiniBroker {
    state: Arc<Mutex<State>>,
}

impl MiniBroker {
    /// Looks at, or changes, what it has.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().expect("no test panics in here"))
    }

    /// Serves.
    pub(crate) async fn serve(&self) -> Server {
        let state = Arc::clone(&self.state);
        serve(move |own, call| state.lock().expect("no test panics in here").answer(own, call)).await
    }
}

impl State {
    /// What this request is to be refused with.
    fn refusal(&mut self, api: ApiKey) -> Option<i16> {
        self.refusals.get_mut(&api).and_then(VecDeque::pop_front)
    }

    fn answer(&mut self, own: &str, mut call: Call) -> Answer {
        if call.header.api != ApiKey::ApiVersions {
            self.calls.push((call.header.api, call.header.api_version));
        }
        match call.header.api {
            ApiKey::ApiVersions => {
                let mut answer = api_versions();
                answer.finalized_features_epoch += self.features_epoch;
                if self.version_1 {
                    answer.finalized_features[0].max_version_level = 1;
                }
                call.reply(&answer)
            }
            ApiKey::Metadata => {
                let mut answer = metadata(own);
                let asked: MetadataRequest = call.decode();
                if asked.topics.is_some_and(|topics| topics.is_empty()) {
                    answer.topics.clear();
                } else if let Some(code) = self.refusal(ApiKey::Metadata) {
                    answer.topics[0].error_code = code;
                } else if self.topic_unknown > 0 {
                    self.topic_unknown -= 1;
                    answer.topics[0].error_code = ErrorCode::UnknownTopicOrPartition.code();
                }
                call.reply(&answer)
            }
            ApiKey::FindCoordinator => {
                let request: FindCoordinatorRequest = call.decode();
                let (host, port) = own.split_once(':').expect("host and port");
                let error_code = self.refusal(ApiKey::FindCoordinator).unwrap_or(0);
                let found = request.coordinator_keys.into_iter().map(|key| Coordinator {
                    key,
                    error_code,
                    node_id: 1,
                    host: host.into(),
                    port: port.parse().expect("a port"),
                    ..Coordinator::default()
                });
                call.reply(&FindCoordinatorResponse { coordinators: found.collect(), ..Default::default() })
            }
            ApiKey::InitProducerId => {
                let request: InitProducerIdRequest = call.decode();
                self.init_producer_id(&call, &request)
            }
            ApiKey::AddPartitionsToTxn | ApiKey::AddOffsetsToTxn | ApiKey::TxnOffsetCommit => {
                self.add(&mut call)
            }
            ApiKey::Produce => match self.faults.pop_front().unwrap_or(Fault::Fine) {
                Fault::CloseBefore => Answer::Close,
                fault => {
                    let request: ProduceRequest = call.decode();
                    let answer = self.produce(&request, call.header.api_version, fault);
                    match fault {
                        Fault::CloseAfter => Answer::Close,
                        Fault::Garbled => raw_frame(&call.header.correlation_id.to_be_bytes()),
                        _ => call.reply(&answer),
                    }
                }
            },
            ApiKey::EndTxn => self.end_txn(&mut call),
            _ => Answer::Close,
        }
    }

    fn produce(&mut self, request: &ProduceRequest, version: i16, fault: Fault) -> ProduceResponse {
        let mut responses = Vec::new();
        let refusal = self.refusal(ApiKey::Produce);
        for topic in &request.topic_data {
            let partitions = topic.partition_data.iter().map(|data| {
                let bytes = data.records.as_ref().expect("a batch").to_bytes();
                let header = BatchHeader::parse(&bytes).expect("a batch");
                header.check_crc(&bytes[21..]).expect("an intact batch");
                let too_large = self.batch_bytes_max.is_some_and(|max| bytes.len() > max);
                let result = match (refusal, fault) {
                    (Some(code), _) => Err(code),
                    (_, Fault::Code(code)) => Err(code.code()),
                    _ if too_large => Err(ErrorCode::MessageTooLarge.code()),
                    // a later version adds the partition to the transaction by itself
                    _ => self.append(data.index, &header, version >= 12).map_err(ErrorCode::code),
                };
                PartitionProduceResponse {
                    index: data.index,
                    error_code: result.err().unwrap_or(0),
                    base_offset: result.unwrap_or(-1),
                    ..PartitionProduceResponse::default()
                }
            });
            let partition_responses = partitions.collect();
            responses.push(TopicProduceResponse {
                name: topic.name.clone(),
                partition_responses,
                ..Default::default()
            });
        }
        ProduceResponse { responses, ..ProduceResponse::default() }
    }

    /// A leader's rules: repetitions of the last five are recognized, a new epoch begins at 0, everything else must be next in
    /// sequence.
    fn append(&mut self, partition: i32, header: &BatchHeader, adds: bool) -> Result<i64, ErrorCode> {
        let place = format!("{TOPIC}-{partition}");
        if !adds && header.is_transactional() && !self.added.contains(&place) {
            return Err(ErrorCode::InvalidTxnState);
        }
        let log = self.logs.entry(partition).or_default();
        let producer = (header.producer_id, header.producer_epoch);
        let (mut offset, mut next, mut same) = (0, 0, 0);
        let mut repeated = None;
        for stored in log.iter() {
            if stored.producer.0 == producer.0 && stored.producer.1 > producer.1 {
                return Err(ErrorCode::InvalidProducerEpoch);
            }
            if stored.producer == producer {
                if stored.sequence == header.base_sequence {
                    repeated = Some((offset, same));
                }
                same += 1;
                next = increment_sequence(stored.sequence, stored.records);
            }
            offset += i64::from(stored.records);
        }
        if let Some((offset, _)) = repeated.filter(|(_, before)| same - before <= 5) {
            return Ok(offset);
        }
        if header.base_sequence != next {
            return Err(ErrorCode::OutOfOrderSequenceNumber);
        }
        log.push(Stored { producer, sequence: header.base_sequence, records: header.records_count });
        Ok(offset)
    }

    /// A new producer id, or the next epoch of the one that is named.
    fn init_producer_id(&mut self, call: &Call, request: &InitProducerIdRequest) -> Answer {
        if let Some(error_code) = self.refusal(ApiKey::InitProducerId) {
            let (producer_id, producer_epoch) = (-1, -1);
            let answer =
                InitProducerIdResponse { error_code, producer_id, producer_epoch, ..Default::default() };
            return call.reply(&answer);
        }
        let (producer_id, producer_epoch) = if request.producer_id >= 0 {
            self.epoch = request.producer_epoch + 1;
            (request.producer_id, self.epoch)
        } else {
            self.producer_ids += 1;
            (self.producer_ids, 0)
        };
        self.added.clear();
        let (producer_id, producer_epoch) = self.named(producer_id, producer_epoch);
        call.reply(&InitProducerIdResponse { producer_id, producer_epoch, ..Default::default() })
    }

    /// The identity as an answer has it.
    fn named(&mut self, producer_id: i64, producer_epoch: i16) -> (i64, i16) {
        let is_nameless = self.nameless > 0;
        self.nameless = self.nameless.saturating_sub(1);
        if is_nameless { (-1, -1) } else { (producer_id, producer_epoch) }
    }

    /// What is to become part of the transaction.
    fn add(&mut self, call: &mut Call) -> Answer {
        let fault = self.faults.pop_front().unwrap_or(Fault::Fine);
        let code = match fault {
            Fault::CloseBefore => return Answer::Close,
            Fault::Code(code) => code.code(),
            Fault::Fine | Fault::CloseAfter | Fault::Garbled => 0,
        };
        let api = call.header.api;
        let code = self.refusal(api).unwrap_or(code);
        let is_mute = self.mute.contains(&api);
        let answer = match api {
            ApiKey::AddPartitionsToTxn => {
                let request: AddPartitionsToTxnRequest = call.decode();
                let answer = self.add_partitions(&request, code);
                call.reply(&if is_mute { AddPartitionsToTxnResponse::default() } else { answer })
            }
            ApiKey::AddOffsetsToTxn => {
                let request: AddOffsetsToTxnRequest = call.decode();
                if code == 0 {
                    self.added.insert(format!("group {}", request.group_id));
                }
                call.reply(&AddOffsetsToTxnResponse { error_code: code, ..Default::default() })
            }
            _ => {
                let request: TxnOffsetCommitRequest = call.decode();
                let group = format!("group {}", request.group_id);
                let adds = call.header.api_version >= 5;
                assert!(adds || self.added.contains(&group), "the group is added first");
                let answer = committed(&request, code);
                call.reply(&if is_mute { TxnOffsetCommitResponse::default() } else { answer })
            }
        };
        if fault == Fault::CloseAfter { Answer::Close } else { answer }
    }

    fn add_partitions(
        &mut self,
        request: &AddPartitionsToTxnRequest,
        partition_error_code: i16,
    ) -> AddPartitionsToTxnResponse {
        let mut results = Vec::new();
        for topic in &request.v3_and_below_topics {
            if partition_error_code == 0 {
                self.added.extend(topic.partitions.iter().map(|at| format!("{}-{at}", topic.name)));
            }
            let partitions = topic.partitions.iter().map(|at| AddPartitionsToTxnPartitionResult {
                partition_index: *at,
                partition_error_code,
                ..Default::default()
            });
            results.push(AddPartitionsToTxnTopicResult {
                name: topic.name.clone(),
                results_by_partition: partitions.collect(),
                ..Default::default()
            });
        }
        AddPartitionsToTxnResponse { results_by_topic_v3_and_below: results, ..Default::default() }
    }

    fn end_txn(&mut self, call: &mut Call) -> Answer {
        let request: EndTxnRequest = call.decode();
        self.ends.push((request.producer_epoch, request.committed));
        let fault = self.faults.pop_front().unwrap_or(Fault::Fine);
        match fault {
            Fault::CloseBefore => return Answer::Close,
            Fault::Code(code) => {
                return call.reply(&EndTxnResponse { error_code: code.code(), ..EndTxnResponse::default() });
            }
            Fault::Fine | Fault::CloseAfter | Fault::Garbled => {}
        }
        if let Some(error_code) = self.refusal(ApiKey::EndTxn) {
            return call.reply(&EndTxnResponse { error_code, ..EndTxnResponse::default() });
        }
        // the epoch moves with the first decision; a repetition gets the same answer
        self.added.clear();
        if call.header.api_version >= 5 && request.producer_epoch == self.epoch {
            self.epoch += 1;
        }
        if fault == Fault::CloseAfter {
            return Answer::Close;
        }
        let (producer_id, producer_epoch) = self.named(1, self.epoch);
        call.reply(&EndTxnResponse { producer_id, producer_epoch, ..EndTxnResponse::default() })
    }
}

fn committed(request: &TxnOffsetCommitRequest, error_code: i16) -> TxnOffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| TxnOffsetCommitResponsePartition {
            partition_index: partition.partition_index,
            error_code,
            ..Default::default()
        });
        TxnOffsetCommitResponseTopic {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: partitions.collect(),
            ..Default::default()
        }
    });
    TxnOffsetCommitResponse { topics: topics.collect(), ..TxnOffsetCommitResponse::default() }
}

fn metadata(own: &str) -> MetadataResponse {
    let (host, port) = own.split_once(':').expect("host and port");
    let partitions = (0..PARTITIONS).map(|partition_index| MetadataResponsePartition {
        partition_index,
        leader_id: 1,
        ..MetadataResponsePartition::default()
    });
    MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id: 1,
            host: host.into(),
            port: port.parse().expect("a port"),
            ..MetadataResponseBroker::default()
        }],
        controller_id: 1,
        topics: vec![MetadataResponseTopic {
            name: Some(Text::from_static(TOPIC)),
            partitions: partitions.collect(),
            ..MetadataResponseTopic::default()
        }],
        ..MetadataResponse::default()
    }
}
