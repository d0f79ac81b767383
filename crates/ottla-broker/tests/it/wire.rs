//! A client of a few lines: one connection, requests and responses of the protocol crate, and a started broker.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ottla_broker::{Broker, Config};
use ottla_env::net::{self, TcpStream};
use ottla_env::{spawn, time};
use ottla_protocol::batch::{BatchBuilder, BatchIter};
use ottla_protocol::codec::{Message, Reader, Request, Writer};
use ottla_protocol::compression::Codec;
use ottla_protocol::header::{RequestHeader, ResponseHeader};
use ottla_protocol::messages as m;
use ottla_protocol::record::{self, NewRecord, RecordIter};
use ottla_protocol::types::{Text, Uuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test's body on a runtime of its own.
pub(crate) fn run<F: std::future::Future<Output = ()>>(body: F) {
    spawn::runtime(2).expect("a runtime").block_on(body);
}

/// Settings for a folder, on a free port.
pub(crate) fn config(folder: &Path) -> Config {
    let mut config = Config { listen: "127.0.0.1:0".to_owned(), ..Config::default() };
    config.dir = folder.to_str().expect("UTF-8").to_owned();
    config.log_file_bytes = 4 << 20;
    config
}

/// One connection.
pub(crate) struct Wire {
    stream: TcpStream,
    next: i32,
}

impl Wire {
    /// Connects to a broker.
    pub(crate) async fn connect(broker: &Broker) -> Self {
        let stream = net::connect(&broker.local_addr().to_string(), PATIENCE).await.expect("it listens");
        Self { stream, next: 1 }
    }

    /// Sends a request; gives its correlation id.
    pub(crate) async fn send<R: Request>(&mut self, request: &R, version: i16) -> i32 {
        let id = self.next;
        self.next += 1;
        let mut writer = Writer::new();
        RequestHeader::new(R::API, version, id, Some(Text::from_static("it"))).encode(&mut writer);
        request.encode(&mut writer, version).expect("it fits the version");
        let bytes = writer.finish_bytes();
        self.send_raw(&(bytes.len() as u32).to_be_bytes()).await;
        self.send_raw(&bytes).await;
        id
    }

    /// Sends any bytes.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("written");
    }

    /// The next frame; none when the broker closed the connection.
    pub(crate) async fn frame(&mut self) -> Option<Bytes> {
        let read = async {
            let length = self.stream.read_u32().await.ok()?;
            let mut body = vec![0; length as usize];
            self.stream.read_exact(&mut body).await.ok()?;
            Some(Bytes::from(body))
        };
        time::timeout(PATIENCE, read).await.expect("an answer or a close in time")
    }

    /// Whether the broker closes the connection within the time, without a byte.
    pub(crate) async fn closes_within(&mut self, limit: Duration) -> bool {
        let mut byte = [0];
        matches!(time::timeout(limit, self.stream.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
    }

    /// Whether something comes within the time; nothing is taken.
    pub(crate) async fn answers_within(&mut self, limit: Duration) -> bool {
        let mut byte = [0];
        matches!(time::timeout(limit, self.stream.peek(&mut byte)).await, Ok(Ok(n)) if n > 0)
    }

    /// Receives the answer to a request.
    pub(crate) async fn receive<R: Request>(&mut self, id: i32, version: i16) -> R::Response {
        let frame = self.frame().await.expect("an answer");
        let mut reader = Reader::new(frame);
        let header = ResponseHeader::decode(&mut reader, R::API, version).expect("a header");
        assert_eq!(header.correlation_id, id, "answers come in the order of the requests");
        let response = R::Response::decode(&mut reader, version).expect("a response");
        assert_eq!(reader.remaining(), 0, "nothing behind the response");
        response
    }

    /// Sends and receives.
    pub(crate) async fn call<R: Request>(&mut self, request: &R, version: i16) -> R::Response {
        let id = self.send(request, version).await;
        self.receive::<R>(id, version).await
    }

    /// Speaks for the producer of a v1 transaction until `other` is closed; false if that does not happen.
    pub(crate) async fn speak_until_closed(
        &mut self,
        id: &str,
        pair: &m::InitProducerIdResponse,
        other: &mut Wire,
    ) -> bool {
        let add = m::AddOffsetsToTxnRequest {
            transactional_id: id.into(),
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            group_id: "g".into(),
            ..Default::default()
        };
        for _ in 0..40 {
            assert_eq!(self.call(&add, 3).await.error_code, 0);
            if other.closes_within(Duration::from_millis(50)).await {
                return true;
            }
        }
        false
    }

    /// Creates a topic; gives its id.
    pub(crate) async fn create_topic(&mut self, name: &str, partitions: i32) -> Uuid {
        let topic = m::create_topics_request::CreatableTopic {
            name: Text::from(name),
            num_partitions: partitions,
            replication_factor: 1,
            ..Default::default()
        };
        let request =
            m::CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
        let response = self.call(&request, 7).await;
        let topic = response.topics.first().expect("one topic");
        assert_eq!(topic.error_code, 0, "{:?}", topic.error_message);
        topic.topic_id
    }

    /// Produces one batch of the given values; gives (error, base offset).
    pub(crate) async fn produce(&mut self, topic: &str, partition: i32, values: &[&str]) -> (i16, i64) {
        let response = self.call(&produce_request(topic, partition, values, -1), 9).await;
        let answer = &response.responses[0].partition_responses[0];
        (answer.error_code, answer.base_offset)
    }

    /// Fetches one partition once.
    pub(crate) async fn fetch(&mut self, topic: &str, partition: i32, offset: i64, wait_ms: i32) -> Fetched {
        let response = self.call(&fetch_request(topic, partition, offset, wait_ms), 11).await;
        let data = &response.responses[0].partitions[0];
        let records = data.records.as_ref().map(|records| records.to_bytes()).unwrap_or_default();
        Fetched { error: data.error_code, high_watermark: data.high_watermark, values: values_of(records) }
    }
}

/// What a fetch brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) error: i16,
    pub(crate) high_watermark: i64,
    pub(crate) values: Vec<String>,
}

/// A Produce request of one batch with old timestamps.
pub(crate) fn produce_request(topic: &str, partition: i32, values: &[&str], acks: i16) -> m::ProduceRequest {
    produce_request_at(topic, partition, values, acks, 1_000)
}

/// A Produce request of one batch.
pub(crate) fn produce_request_at(
    topic: &str,
    partition: i32,
    values: &[&str],
    acks: i16,
    timestamp: i64,
) -> m::ProduceRequest {
    let mut builder = BatchBuilder::new(Codec::None);
    for value in values {
        let record = NewRecord { timestamp, value: Some(value.as_bytes()), ..NewRecord::default() };
        builder.append(&record).expect("small");
    }
    let data = m::produce_request::PartitionProduceData {
        index: partition,
        records: Some(builder.build().into()),
        ..Default::default()
    };
    let topic = m::produce_request::TopicProduceData {
        name: Text::from(topic),
        partition_data: vec![data],
        ..Default::default()
    };
    m::ProduceRequest { acks, timeout_ms: 10_000, topic_data: vec![topic], ..Default::default() }
}

/// A Fetch request of one partition, without a session.
pub(crate) fn fetch_request(topic: &str, partition: i32, offset: i64, wait_ms: i32) -> m::FetchRequest {
    let wanted = m::fetch_request::FetchPartition {
        partition,
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    let topic = m::fetch_request::FetchTopic {
        topic: Text::from(topic),
        partitions: vec![wanted],
        ..Default::default()
    };
    m::FetchRequest {
        max_wait_ms: wait_ms,
        min_bytes: 1,
        max_bytes: 10 << 20,
        session_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

fn values_of(records: Bytes) -> Vec<String> {
    let batches = BatchIter::new(records).map(|batch| batch.expect("whole batches"));
    let records = batches.flat_map(|batch| {
        batch.check_crc().expect("sound");
        let body = record::body_of(&batch.header, &batch.tail(), 1 << 20).expect("decodable");
        RecordIter::new(&batch.header, body).map(|record| record.expect("decodable"))
    });
    records
        .filter_map(|record| record.value)
        .map(|value| String::from_utf8(value.to_vec()).expect("text"))
        .collect()
}
