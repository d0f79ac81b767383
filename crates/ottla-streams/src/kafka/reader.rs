//! The reading half: committed offsets, bounds and changelogs, with a consumer that follows one partition at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_client::admin::{AdminError, ConfigResource, OffsetSpec};
use ottla_client::{
    Admin, ClientSettings, ClusterError, CommitError, CommittedOffset, Consumer, ConsumerError,
    ConsumerSettings, ErrorCode, IsolationLevel, OffsetsError, StartAt, Text, TopicPartition,
};
use ottla_env::spawn::Handle;

use crate::port::{ChangelogPiece, ChangelogRecord, LogBounds, PortError, ReadPort};

/// Reads for one thread. Blocks, so not for tasks of a runtime.
#[derive(Debug)]
pub struct KafkaReader {
    runtime: Handle,
    admin: Admin,
    consumer: Consumer,
    /// What the consumer stands at.
    follows: Option<(TopicPartition, i64)>,
}

impl KafkaReader {
    /// Connects. `bytes_max`: of one fetch.
    pub fn connect(runtime: &Handle, client: &ClientSettings, bytes_max: usize) -> Result<Self, PortError> {
        let mut settings = ConsumerSettings::new(client.clone())
            .isolation(IsolationLevel::ReadCommitted)
            .partition_fetch_bytes(bytes_max)
            .max_poll_records(100_000);
        settings.queued_bytes_max = settings.queued_bytes_max.min(4 * bytes_max.max(1 << 20));
        let connect = async {
            let admin = Admin::connect(client.clone()).await?;
            Ok::<_, ClusterError>((admin, Consumer::connect(settings).await?))
        };
        let (admin, consumer) = runtime.block_on(connect).map_err(|error| cluster_error(&error))?;
        Ok(Self { runtime: runtime.clone(), admin, consumer, follows: None })
    }

    /// The administrator's calls that a thread may need beside.
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    fn list(
        &self,
        at: &TopicPartition,
        spec: OffsetSpec,
        isolation: IsolationLevel,
    ) -> Result<Option<i64>, AdminError> {
        let specs: BTreeMap<TopicPartition, OffsetSpec> = [(at.clone(), spec)].into();
        let mut found = self.runtime.block_on(self.admin.list_offsets(&specs, isolation));
        match found.remove(at) {
            Some(found) => Ok(found?.map(|found| found.offset)),
            None => Err(AdminError::Unanswered { what: format!("looking up an offset of {at}") }),
        }
    }

    fn bound(
        &self,
        at: &TopicPartition,
        spec: OffsetSpec,
        isolation: IsolationLevel,
    ) -> Result<i64, PortError> {
        Ok(self.list(at, spec, isolation).map_err(|error| admin_error(&error))?.unwrap_or(0))
    }

    fn fetch(
        &mut self,
        at: &TopicPartition,
        from: i64,
        wait: Duration,
    ) -> Result<ChangelogPiece, ConsumerError> {
        let Self { runtime, consumer, follows, .. } = self;
        let records = runtime.block_on(async {
            if follows.as_ref() != Some(&(at.clone(), from)) {
                *follows = None;
                consumer.assign(&[(at.clone(), StartAt::Offset(from))]).await?;
            }
            consumer.poll(wait).await
        })?;
        let next_offset = consumer.position(at).unwrap_or(from);
        *follows = Some((at.clone(), next_offset));
        let leader_epoch = records.last().map_or(-1, |record| record.leader_epoch);
        let record = |record: ottla_client::ConsumerRecord| ChangelogRecord {
            offset: record.offset,
            timestamp: record.timestamp,
            key: record.key,
            value: record.value,
        };
        Ok(ChangelogPiece {
            records: records.into_iter().map(record).collect(),
            next_offset,
            last_stable: consumer.readable_end(at).unwrap_or(next_offset),
            leader_epoch,
        })
    }
}

impl ReadPort for KafkaReader {
    fn committed(
        &mut self,
        group_id: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<CommittedOffset>, PortError> {
        let group_id = Text::from(group_id);
        let found = self.runtime.block_on(self.admin.group_offsets(&group_id));
        let found = match found {
            // nobody has committed under that name yet
            Err(error) if error.code() == Some(ErrorCode::GroupIdNotFound) => Vec::new(),
            found => found.map_err(|error| admin_error(&error))?,
        };
        let mut found: BTreeMap<TopicPartition, CommittedOffset> =
            found.into_iter().map(|committed| (committed.topic_partition.clone(), committed)).collect();
        let of = |at: &TopicPartition| {
            found.remove(at).unwrap_or_else(|| CommittedOffset {
                topic_partition: at.clone(),
                offset: None,
                leader_epoch: -1,
                metadata: Text::EMPTY,
            })
        };
        Ok(partitions.iter().map(of).collect())
    }

    fn bounds(&mut self, at: &TopicPartition) -> Result<LogBounds, PortError> {
        let log_start = self.bound(at, OffsetSpec::Earliest, IsolationLevel::ReadUncommitted)?;
        let last_stable = self.bound(at, OffsetSpec::Latest, IsolationLevel::ReadCommitted)?;
        let log_end = self.bound(at, OffsetSpec::Latest, IsolationLevel::ReadUncommitted)?;
        let topic = self.runtime.block_on(self.admin.cluster().topic(&at.topic));
        let topic = topic.map_err(|error| cluster_error(&error))?;
        let topic_id = if topic.topic_id.is_zero() { String::new() } else { topic.topic_id.to_string() };
        Ok(LogBounds { log_start, last_stable, log_end, topic_id })
    }

    fn read(
        &mut self,
        at: &TopicPartition,
        from: i64,
        _bytes_max: usize,
        wait: Duration,
    ) -> Result<ChangelogPiece, PortError> {
        match self.fetch(at, from, wait) {
            Ok(piece) => Ok(piece),
            Err(error) => {
                self.follows = None;
                let out_of_range =
                    matches!(error, ConsumerError::OutOfRange { .. } | ConsumerError::Truncated { .. });
                if !out_of_range {
                    return Err(consumer_error(&error));
                }
                let LogBounds { log_start, log_end, .. } = self.bounds(at)?;
                Err(PortError::OutOfRange { at: at.clone(), offset: from, log_start, log_end })
            }
        }
    }

    fn epoch_end(&mut self, at: &TopicPartition, leader_epoch: i32) -> Result<Option<i64>, PortError> {
        match self.runtime.block_on(self.admin.leader_epoch_end(at, leader_epoch)) {
            Ok(end) => Ok(end.map(|end| end.end_offset)),
            Err(error) if cannot(&error) => Ok(None),
            Err(error) => Err(admin_error(&error)),
        }
    }

    fn tombstone_horizon(&mut self, at: &TopicPartition) -> Result<Option<i64>, PortError> {
        match self.list(at, OffsetSpec::TombstoneHorizon, IsolationLevel::ReadUncommitted) {
            Ok(horizon) => Ok(horizon),
            Err(error) if cannot(&error) => Ok(None),
            Err(error) => Err(admin_error(&error)),
        }
    }

    fn delete_retention(&mut self, topic: &str) -> Result<Duration, PortError> {
        let resource = ConfigResource::Topic(topic.into());
        let entries = self.runtime.block_on(self.admin.describe_configs(&resource));
        let entries = entries.map_err(|error| admin_error(&error))?;
        let value = entries
            .iter()
            .find(|entry| entry.name == "delete.retention.ms")
            .and_then(|entry| entry.value.as_ref());
        let millis = value.and_then(|value| value.as_str().parse().ok());
        millis.map(Duration::from_millis).ok_or_else(|| {
            PortError::Fatal(format!("the cluster does not tell delete.retention.ms of topic {topic}"))
        })
    }
}

/// The broker does not know the question.
fn cannot(error: &AdminError) -> bool {
    matches!(error.code(), Some(ErrorCode::UnsupportedVersion | ErrorCode::InvalidRequest))
}

pub(crate) fn cluster_error(error: &ClusterError) -> PortError {
    if error.is_retriable() {
        PortError::Retriable(error.to_string())
    } else {
        PortError::Fatal(error.to_string())
    }
}

pub(crate) fn admin_error(error: &AdminError) -> PortError {
    match error {
        AdminError::Cluster(cluster) => cluster_error(cluster),
        AdminError::Offsets(OffsetsError::Cluster(cluster)) => cluster_error(cluster),
        AdminError::Unanswered { .. } => PortError::Retriable(error.to_string()),
        AdminError::Refused { code, .. }
        | AdminError::Offsets(OffsetsError::Partition { code, .. } | OffsetsError::Group { code, .. }) => {
            if code.is_retriable() {
                PortError::Retriable(error.to_string())
            } else {
                PortError::Fatal(error.to_string())
            }
        }
    }
}

fn consumer_error(error: &ConsumerError) -> PortError {
    let retriable = match error {
        ConsumerError::Cluster(cluster) => cluster.is_retriable(),
        ConsumerError::Offsets(offsets) | ConsumerError::Commit(CommitError::Offsets(offsets)) => {
            offsets.is_retriable()
        }
        ConsumerError::Refused { code, .. } => code.is_retriable(),
        ConsumerError::Commit(_)
        | ConsumerError::Group(_)
        | ConsumerError::OutOfRange { .. }
        | ConsumerError::NoOffset { .. }
        | ConsumerError::Truncated { .. }
        | ConsumerError::Damaged { .. }
        | ConsumerError::NotAssigned { .. }
        | ConsumerError::Subscribed => false,
    };
    if retriable { PortError::Retriable(error.to_string()) } else { PortError::Fatal(error.to_string()) }
}
