//! Where leaders' epochs end (KIP-101, KIP-320): whether a log was cut since somebody wrote to it.

use std::collections::BTreeMap;

use ottla_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use ottla_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
use ottla_protocol::types::Text;

use super::items::{Call, Item, Place, Results, item};
use super::{Admin, AdminError};
use crate::connection::Versions;
use crate::record::TopicPartition;

/// Where an epoch ends in a log.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client)).await?;
/// use ottla_client::{Record, TopicPartition};
///
/// let at = TopicPartition::new("orders", 0);
/// let written = producer.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// let epoch = admin.cluster().topic(&at.topic).await?.leader_epochs[0];
/// if let Some(end) = admin.leader_epoch_end(&at, epoch).await? {
///     println!("epoch {} ends at {}", end.leader_epoch, end.end_offset);
///     assert!(written.offset < end.end_offset, "the log was cut: the record is gone");
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch of the log that is not larger than the one asked for.
    pub leader_epoch: i32,
    /// Its end: the offset of the first record of a later epoch, or the end of the log.
    pub end_offset: i64,
}

struct EpochEnds {
    epochs: BTreeMap<TopicPartition, i32>,
}

impl Call for EpochEnds {
    type Key = TopicPartition;
    type Request = OffsetForLeaderEpochRequest;
    type Value = Option<EpochEnd>;
    const USABLE: Versions = Versions::new(3, 4);

    fn place(&self, at: &TopicPartition) -> Place {
        Place::Leader(at.clone())
    }

    fn request(&self, keys: &[TopicPartition]) -> OffsetForLeaderEpochRequest {
        let mut topics: BTreeMap<Text, OffsetForLeaderTopic> = BTreeMap::new();
        for at in keys {
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.topic = at.topic.clone();
            topic.partitions.push(OffsetForLeaderPartition {
                partition: at.partition,
                current_leader_epoch: -1,
                leader_epoch: self.epochs.get(at).copied().unwrap_or(-1),
                ..OffsetForLeaderPartition::default()
            });
        }
        OffsetForLeaderEpochRequest {
            replica_id: -1,
            topics: topics.into_values().collect(),
            ..OffsetForLeaderEpochRequest::default()
        }
    }

    fn read(
        &self,
        _: &[TopicPartition],
        answer: OffsetForLeaderEpochResponse,
    ) -> Vec<(TopicPartition, Item<Option<EpochEnd>>)> {
        let results = answer.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let at = TopicPartition::new(topic.topic.detached(), partition.partition);
                let end = EpochEnd { leader_epoch: partition.leader_epoch, end_offset: partition.end_offset };
                (at, item(partition.error_code, None, || (end.end_offset >= 0).then_some(end)))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("looking up a leader epoch of {at}")
    }
}

impl Admin {
    /// Where each of these epochs ends in its partition's log; absent where the log has no epoch that old. Who wrote
    /// an offset in an epoch and finds the epoch's end below it knows that the log was cut. Cancel-safe.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let client = ClientSettings::new(bootstrap)?;
    /// # let admin = Admin::connect(client.clone()).await?;
    /// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
    /// use std::collections::BTreeMap;
    /// use ottla_client::TopicPartition;
    ///
    /// let at = TopicPartition::new("orders", 0);
    /// for (at, end) in admin.leader_epoch_ends(&BTreeMap::from([(at.clone(), 0)])).await {
    ///     println!("{at}: {:?}", end?); // none: the log has no epoch that old
    /// }
    /// println!("{:?}", admin.leader_epoch_end(&at, 0).await?);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn leader_epoch_ends(
        &self,
        epochs: &BTreeMap<TopicPartition, i32>,
    ) -> Results<TopicPartition, Option<EpochEnd>> {
        let partitions = epochs.keys().cloned().collect();
        self.run(&EpochEnds { epochs: epochs.clone() }, partitions).await
    }

    /// The same for one partition.
    pub async fn leader_epoch_end(
        &self,
        at: &TopicPartition,
        leader_epoch: i32,
    ) -> Result<Option<EpochEnd>, AdminError> {
        self.run_one(&EpochEnds { epochs: [(at.clone(), leader_epoch)].into() }, at.clone()).await
    }
}
