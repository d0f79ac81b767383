//! Offsets of partitions by name or time, and of groups without membership.

use std::collections::BTreeMap;

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use ottla_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use ottla_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use ottla_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use ottla_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest,
    OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse,
};
use ottla_protocol::types::Text;

use super::items::{Call, Item, Place, Results, item};
use super::{Admin, AdminError};
use crate::connection::Versions;
use crate::consumer::IsolationLevel;
use crate::offsets::OffsetAndTimestamp;
use crate::record::{CommittedOffset, OffsetToCommit, TopicPartition};

/// Which offset of a partition.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// use std::collections::BTreeMap;
/// use ottla_client::{IsolationLevel, TopicPartition, admin::OffsetSpec};
///
/// let hour_ago = OffsetSpec::Timestamp(1_700_000_000_000);
/// let wanted = BTreeMap::from([(TopicPartition::new("orders", 0), hour_ago)]);
/// for (at, found) in admin.list_offsets(&wanted, IsolationLevel::ReadCommitted).await {
///     println!("{at}: {:?}", found?); // none: no record is that young
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// Of the first record still there.
    Earliest,
    /// Behind the last record: of all, or of those that `read_committed` readers see.
    Latest,
    /// Of the first record with the largest timestamp (KIP-734).
    MaxTimestamp,
    /// Of the first record on the broker's own disk (KIP-405).
    EarliestLocal,
    /// Of the last record in tiered storage (KIP-1005).
    LatestTiered,
    /// Of the first record that is to go to tiered storage (KIP-1023).
    EarliestPendingUpload,
    /// One past the highest tombstone that compaction has removed while it was the last record of its key; 0 when it
    /// has removed none. Ottla's own: other brokers refuse with `UNSUPPORTED_VERSION`.
    TombstoneHorizon,
    /// Of the first record that is not older than this, ms since the Unix epoch.
    Timestamp(i64),
}

impl OffsetSpec {
    fn wire(self) -> i64 {
        match self {
            Self::Latest => -1,
            Self::Earliest => -2,
            Self::MaxTimestamp => -3,
            Self::EarliestLocal => -4,
            Self::LatestTiered => -5,
            Self::EarliestPendingUpload => -6,
            Self::TombstoneHorizon => -1000,
            Self::Timestamp(ms) => ms.max(0),
        }
    }

    /// The first version of ListOffsets that knows the name.
    fn since(self) -> i16 {
        match self {
            Self::Latest | Self::Earliest | Self::TombstoneHorizon | Self::Timestamp(_) => 1,
            Self::MaxTimestamp => 7,
            Self::EarliestLocal => 8,
            Self::LatestTiered => 9,
            Self::EarliestPendingUpload => 11,
        }
    }
}

/// `SINCE` is the lowest version that knows every name that is asked for.
struct ListOffsets<const SINCE: i16> {
    specs: BTreeMap<TopicPartition, OffsetSpec>,
    isolation: IsolationLevel,
    timeout_ms: i32,
}

impl<const SINCE: i16> Call for ListOffsets<SINCE> {
    type Key = TopicPartition;
    type Request = ListOffsetsRequest;
    type Value = Option<OffsetAndTimestamp>;
    const USABLE: Versions = Versions::new(SINCE, 11);

    fn place(&self, at: &TopicPartition) -> Place {
        Place::Leader(at.clone())
    }

    fn request(&self, keys: &[TopicPartition]) -> ListOffsetsRequest {
        let mut topics: BTreeMap<Text, ListOffsetsTopic> = BTreeMap::new();
        for at in keys {
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.name = at.topic.clone();
            topic.partitions.push(ListOffsetsPartition {
                partition_index: at.partition,
                timestamp: self.specs.get(at).map_or(-1, |spec| spec.wire()),
                ..ListOffsetsPartition::default()
            });
        }
        ListOffsetsRequest {
            replica_id: -1,
            isolation_level: match self.isolation {
                IsolationLevel::ReadUncommitted => 0,
                IsolationLevel::ReadCommitted => 1,
            },
            topics: topics.into_values().collect(),
            timeout_ms: self.timeout_ms,
            ..ListOffsetsRequest::default()
        }
    }

    fn read(
        &self,
        _: &[TopicPartition],
        answer: ListOffsetsResponse,
    ) -> Vec<(TopicPartition, Item<Option<OffsetAndTimestamp>>)> {
        let results = answer.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
                let found = OffsetAndTimestamp { offset: partition.offset, timestamp: partition.timestamp };
                (at, item(partition.error_code, None, || (found.offset >= 0).then_some(found)))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("looking up an offset of {at}")
    }
}

/// All offsets of groups, one request per coordinator.
struct FetchOffsets {
    require_stable: bool,
}

impl Call for FetchOffsets {
    type Key = Text;
    type Request = OffsetFetchRequest;
    type Value = Vec<CommittedOffset>;
    /// From batched groups to before topic ids.
    const USABLE: Versions = Versions::new(8, 9);

    fn place(&self, group_id: &Text) -> Place {
        Place::Group(group_id.clone())
    }

    fn request(&self, keys: &[Text]) -> OffsetFetchRequest {
        let groups = keys.iter().map(|group_id| OffsetFetchRequestGroup {
            group_id: group_id.clone(),
            member_epoch: -1,
            topics: None,
            ..OffsetFetchRequestGroup::default()
        });
        OffsetFetchRequest {
            groups: groups.collect(),
            require_stable: self.require_stable,
            ..OffsetFetchRequest::default()
        }
    }

    fn read(&self, _: &[Text], answer: OffsetFetchResponse) -> Vec<(Text, Item<Vec<CommittedOffset>>)> {
        let results = answer.groups.iter().map(|group| {
            let partitions = group
                .topics
                .iter()
                .flat_map(|topic| topic.partitions.iter().map(move |partition| (topic, partition)));
            let refused =
                partitions.clone().map(|(_, partition)| partition.error_code).find(|code| *code != 0);
            let offsets = || {
                let offsets = partitions.map(|(topic, partition)| CommittedOffset {
                    topic_partition: TopicPartition::new(topic.name.detached(), partition.partition_index),
                    offset: (partition.committed_offset >= 0).then_some(partition.committed_offset),
                    leader_epoch: partition.committed_leader_epoch,
                    metadata: partition.metadata.as_ref().map_or(Text::EMPTY, Text::detached),
                });
                offsets.collect()
            };
            let code = if group.error_code == 0 { refused.unwrap_or(0) } else { group.error_code };
            (group.group_id.detached(), item(code, None, offsets))
        });
        results.collect()
    }

    fn what(&self, group_id: &Text) -> String {
        format!("fetching the offsets of group `{group_id}`")
    }

    fn again(&self, code: ErrorCode) -> bool {
        code.is_retriable() // an open transaction holds the offset: it ends by itself
    }
}

struct CommitOffsets<'a> {
    group_id: &'a Text,
    offsets: BTreeMap<TopicPartition, OffsetToCommit>,
}

impl Call for CommitOffsets<'_> {
    type Key = TopicPartition;
    type Request = OffsetCommitRequest;
    type Value = ();
    /// Before topic ids.
    const USABLE: Versions = Versions::new(7, 9);

    fn place(&self, _: &TopicPartition) -> Place {
        Place::Group(self.group_id.clone())
    }

    fn request(&self, keys: &[TopicPartition]) -> OffsetCommitRequest {
        let mut topics: BTreeMap<Text, OffsetCommitRequestTopic> = BTreeMap::new();
        for offset in keys.iter().filter_map(|at| self.offsets.get(at)) {
            let at = &offset.topic_partition;
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.name = at.topic.clone();
            topic.partitions.push(OffsetCommitRequestPartition {
                partition_index: at.partition,
                committed_offset: offset.offset,
                committed_metadata: Some(offset.metadata.clone()),
                ..OffsetCommitRequestPartition::default()
            });
        }
        OffsetCommitRequest {
            group_id: self.group_id.clone(),
            generation_id_or_member_epoch: -1,
            topics: topics.into_values().collect(),
            ..OffsetCommitRequest::default()
        }
    }

    fn read(&self, _: &[TopicPartition], answer: OffsetCommitResponse) -> Vec<(TopicPartition, Item<()>)> {
        let results = answer.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
                (at, item(partition.error_code, None, || ()))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("setting the offset of group `{}` on {at}", self.group_id)
    }
}

struct DeleteOffsets<'a> {
    group_id: &'a Text,
}

impl Call for DeleteOffsets<'_> {
    type Key = TopicPartition;
    type Request = OffsetDeleteRequest;
    type Value = ();
    const USABLE: Versions = Versions::new(0, 0);

    fn place(&self, _: &TopicPartition) -> Place {
        Place::Group(self.group_id.clone())
    }

    fn request(&self, keys: &[TopicPartition]) -> OffsetDeleteRequest {
        let mut topics: BTreeMap<Text, OffsetDeleteRequestTopic> = BTreeMap::new();
        for at in keys {
            let topic = topics.entry(at.topic.clone()).or_default();
            topic.name = at.topic.clone();
            let partition = OffsetDeleteRequestPartition { partition_index: at.partition };
            topic.partitions.push(partition);
        }
        OffsetDeleteRequest { group_id: self.group_id.clone(), topics: topics.into_values().collect() }
    }

    fn read(&self, keys: &[TopicPartition], answer: OffsetDeleteResponse) -> Vec<(TopicPartition, Item<()>)> {
        if answer.error_code != 0 {
            return keys.iter().map(|at| (at.clone(), item(answer.error_code, None, || ()))).collect();
        }
        let results = answer.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| {
                let at = TopicPartition::new(topic.name.detached(), partition.partition_index);
                (at, item(partition.error_code, None, || ()))
            })
        });
        results.collect()
    }

    fn what(&self, at: &TopicPartition) -> String {
        format!("deleting the offset of group `{}` on {at}", self.group_id)
    }
}

impl Admin {
    /// Offsets of partitions by name or time; absent where no record fits. Cancel-safe.
    ///
    /// ```
    /// # use ottla_client::{admin::*, *};
    /// # ottla_doctest::run(async |bootstrap| {
    /// # let client = ClientSettings::new(bootstrap)?;
    /// # let admin = Admin::connect(client.clone()).await?;
    /// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
    /// # let consumer = Consumer::connect(ConsumerSettings::new(client)).await?;
    /// # let begin = OffsetToCommit::new(TopicPartition::new("orders", 0), 0);
    /// # consumer.commit(&GroupMetadata::without_members("shop"), &[begin]).await?;
    /// use std::collections::BTreeMap;
    /// use ottla_client::admin::OffsetSpec;
    /// use ottla_client::{IsolationLevel, OffsetToCommit, TopicPartition};
    ///
    /// let (group, at) = ("shop".into(), TopicPartition::new("orders", 0));
    /// let ends = BTreeMap::from([(at.clone(), OffsetSpec::Latest)]);
    /// let mut ends = admin.list_offsets(&ends, IsolationLevel::ReadCommitted).await;
    /// let end = ends.remove(&at).expect("every partition that was asked for")?.map_or(0, |found| found.offset);
    ///
    /// // a group without members: to the end, and there it stays
    /// let to_the_end = OffsetToCommit::new(at.clone(), end);
    /// for moved in admin.alter_group_offsets(&group, &[to_the_end]).await.into_values() {
    ///     moved?;
    /// }
    /// assert_eq!(admin.group_offsets(&group).await?[0].offset, Some(end));
    /// for (group, committed) in admin.offsets_of_groups(&[group.clone()], true).await {
    ///     println!("{group}: {:?}", committed?);
    /// }
    /// for forgotten in admin.delete_group_offsets(&group, &[at]).await.into_values() {
    ///     forgotten?;
    /// }
    /// # Ok(())
    /// # });
    /// ```
    pub async fn list_offsets(
        &self,
        specs: &BTreeMap<TopicPartition, OffsetSpec>,
        isolation: IsolationLevel,
    ) -> Results<TopicPartition, Option<OffsetAndTimestamp>> {
        let partitions: Vec<_> = specs.keys().cloned().collect();
        let (specs, timeout_ms) = (specs.clone(), self.timeout_ms());
        match specs.values().map(|spec| spec.since()).max().unwrap_or(1) {
            ..7 => self.run(&ListOffsets::<2> { specs, isolation, timeout_ms }, partitions).await,
            7 => self.run(&ListOffsets::<7> { specs, isolation, timeout_ms }, partitions).await,
            8..11 => self.run(&ListOffsets::<9> { specs, isolation, timeout_ms }, partitions).await,
            _ => self.run(&ListOffsets::<11> { specs, isolation, timeout_ms }, partitions).await,
        }
    }

    /// Everything that groups have committed. With `require_stable` it waits while an open transaction holds one of
    /// a group's offsets; without, what was committed before that transaction is told. Cancel-safe.
    pub async fn offsets_of_groups(
        &self,
        group_ids: &[Text],
        require_stable: bool,
    ) -> Results<Text, Vec<CommittedOffset>> {
        self.run(&FetchOffsets { require_stable }, group_ids.to_vec()).await
    }

    /// Everything one group has committed, waiting for open transactions to end. Cancel-safe.
    pub async fn group_offsets(&self, group_id: &Text) -> Result<Vec<CommittedOffset>, AdminError> {
        self.run_one(&FetchOffsets { require_stable: true }, group_id.clone()).await
    }

    /// Sets offsets of a group that has no members; one with members refuses with `UNKNOWN_MEMBER_ID`. A group that
    /// does not exist comes into being. If the future is dropped, they may be set.
    pub async fn alter_group_offsets(
        &self,
        group_id: &Text,
        offsets: &[OffsetToCommit],
    ) -> Results<TopicPartition, ()> {
        let offsets: BTreeMap<_, _> =
            offsets.iter().map(|offset| (offset.topic_partition.clone(), offset.clone())).collect();
        let partitions = offsets.keys().cloned().collect();
        self.run(&CommitOffsets { group_id, offsets }, partitions).await
    }

    /// Deletes offsets of a group (KIP-496). Refused for topics that one of its members reads
    /// (`GROUP_SUBSCRIBED_TO_TOPIC`). If the future is dropped, they may be deleted.
    pub async fn delete_group_offsets(
        &self,
        group_id: &Text,
        partitions: &[TopicPartition],
    ) -> Results<TopicPartition, ()> {
        self.run(&DeleteOffsets { group_id }, partitions.to_vec()).await
    }
}
