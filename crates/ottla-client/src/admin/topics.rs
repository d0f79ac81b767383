//! Topics: create, delete, describe, and deleting records from a partition's start.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use ottla_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use ottla_protocol::messages::delete_topics_request::DeleteTopicState;
use ottla_protocol::messages::{CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest};
use ottla_protocol::types::{Text, Uuid};

use super::{Admin, AdminError};
use crate::connection::Versions;
use crate::record::TopicPartition;

const CREATE_TOPICS: Versions = Versions::new(5, 7);
const DELETE_TOPICS: Versions = Versions::new(6, 6);
const DELETE_RECORDS: Versions = Versions::new(2, 2);

/// A topic to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name: letters, digits, `.`, `_` and `-`, at most 249.
    pub name: Text,
    /// How many partitions; -1 for the broker's default.
    pub partition_count: i32,
    /// How many copies; -1 for the broker's default.
    pub replication_factor: i16,
    /// Settings that differ from the broker's defaults.
    pub configs: Vec<(Text, Text)>,
}

impl NewTopic {
    /// A topic with the broker's defaults.
    pub fn new(name: impl Into<Text>, partition_count: i32) -> Self {
        Self { name: name.into(), partition_count, replication_factor: -1, configs: Vec::new() }
    }

    /// Sets one of Kafka's topic settings.
    #[must_use]
    pub fn config(mut self, name: impl Into<Text>, value: impl Into<Text>) -> Self {
        self.configs.push((name.into(), value.into()));
        self
    }
}

/// A topic as the cluster has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its name.
    pub name: Text,
    /// Its id.
    pub topic_id: Uuid,
    /// How many partitions it has.
    pub partition_count: i32,
    /// Whether it is one of Kafka's own.
    pub is_internal: bool,
}

impl Admin {
    /// Creates a topic. One that exists is an error, unless an attempt of this very call may have made it.
    /// If the future is dropped, it may be created.
    pub async fn create_topic(&self, topic: &NewTopic) -> Result<(), AdminError> {
        let configs = topic.configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: name.clone(),
            value: Some(value.clone()),
            ..CreatableTopicConfig::default()
        });
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: topic.name.clone(),
                num_partitions: topic.partition_count,
                replication_factor: topic.replication_factor,
                configs: configs.collect(),
                ..CreatableTopic::default()
            }],
            timeout_ms: self.timeout_ms(),
            ..CreateTopicsRequest::default()
        };
        let (answer, may_have_happened) = self
            .call_controller(&request, CREATE_TOPICS, |answer| {
                answer
                    .topics
                    .first()
                    .map_or(ErrorCode::UnknownServerError, |t| ErrorCode::from_code(t.error_code))
            })
            .await?;
        self.cluster.forget_topic(&topic.name);
        let what = || format!("creating topic `{}`", topic.name);
        match answer.topics.first() {
            Some(created)
                if may_have_happened && created.error_code == ErrorCode::TopicAlreadyExists.code() =>
            {
                Ok(())
            }
            Some(created) => AdminError::check(created.error_code, created.error_message.as_ref(), what),
            None => AdminError::check(ErrorCode::UnknownServerError.code(), None, what),
        }
    }

    /// Deletes a topic with all its records. One that does not exist is an error, unless an attempt of this very
    /// call may have deleted it. If the future is dropped, it may be deleted.
    pub async fn delete_topic(&self, name: &Text) -> Result<(), AdminError> {
        let topic = DeleteTopicState { name: Some(name.clone()), ..DeleteTopicState::default() };
        let timeout_ms = self.timeout_ms();
        let request =
            DeleteTopicsRequest { topics: vec![topic], timeout_ms, ..DeleteTopicsRequest::default() };
        let (answer, may_have_happened) = self
            .call_controller(&request, DELETE_TOPICS, |answer| {
                answer
                    .responses
                    .first()
                    .map_or(ErrorCode::UnknownServerError, |t| ErrorCode::from_code(t.error_code))
            })
            .await?;
        self.cluster.forget_topic(name);
        let what = || format!("deleting topic `{name}`");
        match answer.responses.first() {
            Some(deleted)
                if may_have_happened && deleted.error_code == ErrorCode::UnknownTopicOrPartition.code() =>
            {
                Ok(())
            }
            Some(deleted) => AdminError::check(deleted.error_code, deleted.error_message.as_ref(), what),
            None => AdminError::check(ErrorCode::UnknownServerError.code(), None, what),
        }
    }

    /// Describes a topic. Cancel-safe.
    pub async fn describe_topic(&self, name: &Text) -> Result<TopicDescription, AdminError> {
        let topic = self.cluster.refresh_topic(name).await?;
        Ok(TopicDescription {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_count: topic.partition_count(),
            is_internal: topic.is_internal,
        })
    }

    /// All topics by name. Cancel-safe.
    pub async fn list_topics(&self) -> Result<Vec<TopicDescription>, AdminError> {
        let topics = self.cluster.list_topics().await?;
        let described = topics.iter().map(|topic| TopicDescription {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_count: topic.partition_count(),
            is_internal: topic.is_internal,
        });
        Ok(described.collect())
    }

    /// Deletes the records of a partition below an offset (-1: all up to the high watermark); the new log start
    /// offset. If the future is dropped, they may be deleted.
    pub async fn delete_records(&self, at: &TopicPartition, before: i64) -> Result<i64, AdminError> {
        let partition = DeleteRecordsPartition {
            partition_index: at.partition,
            offset: before,
            ..DeleteRecordsPartition::default()
        };
        let topic =
            DeleteRecordsTopic { name: at.topic.clone(), partitions: vec![partition], ..Default::default() };
        let timeout_ms = self.timeout_ms();
        let request =
            DeleteRecordsRequest { topics: vec![topic], timeout_ms, ..DeleteRecordsRequest::default() };
        let answer = self
            .call_leader(at, &request, DELETE_RECORDS, |answer| {
                let partition = answer.topics.first().and_then(|topic| topic.partitions.first());
                partition.map_or(ErrorCode::UnknownServerError, |p| ErrorCode::from_code(p.error_code))
            })
            .await?;
        let partition = answer.topics.first().and_then(|topic| topic.partitions.first());
        let (code, low_watermark) =
            partition.map_or((ErrorCode::UnknownServerError.code(), -1), |p| (p.error_code, p.low_watermark));
        AdminError::check(code, None, || format!("deleting records of {at} below {before}"))?;
        Ok(low_watermark)
    }
}
