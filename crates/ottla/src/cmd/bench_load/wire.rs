//! One connection: requests of the protocol crate out, responses in, one at a time or pipelined.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use ottla_env::net::{self, TcpStream};
use ottla_protocol::batch::BatchBuilder;
use ottla_protocol::codec::{Message, Reader, Request, Writer};
use ottla_protocol::compression::Codec;
use ottla_protocol::header::{RequestHeader, ResponseHeader};
use ottla_protocol::messages as m;
use ottla_protocol::record::NewRecord;
use ottla_protocol::types::{Text, Uuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a connection may take to be made.
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// Largest answer that is taken, bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

pub(super) struct Wire {
    stream: TcpStream,
    next: i32,
}

impl Wire {
    pub(super) async fn connect(address: &str) -> Result<Self> {
        let stream = net::connect(address, CONNECT_TIME).await.with_context(|| address.to_owned())?;
        Ok(Self { stream, next: 1 })
    }

    /// Sends a request; gives its correlation id.
    pub(super) async fn send<R: Request>(&mut self, request: &R, version: i16) -> Result<i32> {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let mut writer = Writer::new();
        RequestHeader::new(R::API, version, id, Some(Text::from_static("bench-load"))).encode(&mut writer);
        request.encode(&mut writer, version)?;
        let body = writer.finish_bytes();
        let mut frame = u32::try_from(body.len())?.to_be_bytes().to_vec();
        frame.extend_from_slice(&body);
        self.stream.write_all(&frame).await?;
        Ok(id)
    }

    /// Receives the answer to a request.
    pub(super) async fn receive<R: Request>(&mut self, id: i32, version: i16) -> Result<R::Response> {
        let length = self.stream.read_u32().await? as usize;
        ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes");
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        let mut reader = Reader::new(Bytes::from(body));
        let header = ResponseHeader::decode(&mut reader, R::API, version)?;
        ensure!(header.correlation_id == id, "answer {} to request {id}", header.correlation_id);
        Ok(R::Response::decode(&mut reader, version)?)
    }

    pub(super) async fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        let id = self.send(request, version).await?;
        self.receive::<R>(id, version).await
    }

    pub(super) async fn create_topic(&mut self, name: &str, partitions: i32) -> Result<Uuid> {
        let topic = m::create_topics_request::CreatableTopic {
            name: Text::from(name),
            num_partitions: partitions,
            replication_factor: 1,
            ..Default::default()
        };
        let request =
            m::CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        let response = self.call(&request, 7).await?;
        let topic = response.topics.first().context("no topic in the answer")?;
        ensure!(topic.error_code == 0, "the topic was not created: error {}", topic.error_code);
        Ok(topic.topic_id)
    }

    pub(super) async fn delete_topic(&mut self, name: &str) -> Result<()> {
        let topic_names = vec![Text::from(name)];
        let request = m::DeleteTopicsRequest { topic_names, timeout_ms: 30_000, ..Default::default() };
        self.call(&request, 4).await?;
        Ok(())
    }

    /// Writes one small record to partition 0.
    pub(super) async fn produce(&mut self, topic: &str) -> Result<()> {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.append(&NewRecord { timestamp: 1_000, value: Some(b"wake"), ..NewRecord::default() })?;
        let data = m::produce_request::PartitionProduceData {
            records: Some(builder.build().into()),
            ..Default::default()
        };
        let topic = m::produce_request::TopicProduceData {
            name: Text::from(topic),
            partition_data: vec![data],
            ..Default::default()
        };
        let request =
            m::ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() };
        let response = self.call(&request, 9).await?;
        let answers = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        let errors: Vec<i16> = answers.map(|partition| partition.error_code).collect();
        ensure!(errors == [0], "the record was not written: {errors:?}");
        Ok(())
    }
}
