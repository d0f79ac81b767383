//! Records and the names of places: what users hand in and out.

use std::fmt;

use bytes::Bytes;
use ottla_protocol::types::Text;

/// One partition of a topic, by name.
///
/// ```
/// use ottla_client::TopicPartition;
///
/// let at = TopicPartition::new("orders", 3);
/// assert_eq!(at.to_string(), "orders/3");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Text,
    /// Index of the partition, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// The partition of that topic.
    pub fn new(topic: impl Into<Text>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// A header of a record: a name, which may be repeated, and a value, which may be absent.
///
/// ```
/// use ottla_client::{Header, Record};
///
/// let mut record = Record::to("orders").header("trace", "7f");
/// record.headers.push(Header { key: "seen".into(), value: None });
/// assert_eq!(record.headers[0].value.as_deref(), Some(&b"7f"[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The name.
    pub key: Text,
    /// The value.
    pub value: Option<Bytes>,
}

/// A record to be written.
///
/// ```
/// use ottla_client::Record;
///
/// let record = Record::to("orders")
///     .partition(2)
///     .key("alice")
///     .value("one lamp")
///     .header("trace", "7f")
///     .timestamp(1_700_000_000_000);
/// assert_eq!(record.topic, "orders");
/// assert!(record.bytes_max() < 100);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The topic.
    pub topic: Text,
    /// The partition; absent: chosen from the key like Java's client does, or spread when there is no key.
    pub partition: Option<i32>,
    /// The key, absent for none.
    pub key: Option<Bytes>,
    /// The value; absent is a tombstone on a compacted topic.
    pub value: Option<Bytes>,
    /// The headers, in order.
    pub headers: Vec<Header>,
    /// Creation time in ms since the Unix epoch; absent: now.
    pub timestamp: Option<i64>,
}

impl Record {
    /// An empty record for that topic.
    pub fn to(topic: impl Into<Text>) -> Self {
        Self {
            topic: topic.into(),
            partition: None,
            key: None,
            value: None,
            headers: Vec::new(),
            timestamp: None,
        }
    }

    /// Sets the partition.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the value.
    #[must_use]
    pub fn value(mut self, value: impl Into<Bytes>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, key: impl Into<Text>, value: impl Into<Bytes>) -> Self {
        self.headers.push(Header { key: key.into(), value: Some(value.into()) });
        self
    }

    /// Sets the creation time in ms since the Unix epoch.
    #[must_use]
    pub fn timestamp(mut self, timestamp: i64) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Bytes this record takes in a batch at most.
    pub fn bytes_max(&self) -> usize {
        let headers: usize =
            self.headers.iter().map(|h| 10 + h.key.len() + h.value.as_ref().map_or(0, Bytes::len)).sum();
        // length, attributes, two deltas, three varint lengths: at most 5 + 1 + 10 + 5 + 3 * 5
        36 + self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + headers
    }
}

/// Who commits offsets for a group (KIP-447): the broker refuses the commit when it is out of date.
///
/// ```
/// use ottla_client::GroupMetadata;
///
/// // for offsets of a group that has no members; those of a member come from `Consumer::group_metadata`
/// let group = GroupMetadata::without_members("workers");
/// assert_eq!((group.group_id.as_str(), group.generation_id), ("workers", -1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetadata {
    /// The group.
    pub group_id: Text,
    /// Generation or member epoch, -1 without membership.
    pub generation_id: i32,
    /// The member, empty without membership.
    pub member_id: Text,
    /// The static member's own name.
    pub group_instance_id: Option<Text>,
}

impl GroupMetadata {
    /// A group that is only a name for offsets, without members.
    pub fn without_members(group_id: impl Into<Text>) -> Self {
        Self { group_id: group_id.into(), generation_id: -1, member_id: Text::EMPTY, group_instance_id: None }
    }
}

/// A position to commit: the offset of the next record to read.
///
/// ```
/// use ottla_client::{OffsetToCommit, TopicPartition};
///
/// // record 41 has been dealt with: 42 is the next to read
/// let mut done = OffsetToCommit::new(TopicPartition::new("orders", 0), 42);
/// done.metadata = "checked by hand".into();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetToCommit {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// Offset of the next record to read.
    pub offset: i64,
    /// Leader epoch of the record before it, so that whoever begins there notices a truncated log (KIP-320); -1
    /// when not known.
    pub leader_epoch: i32,
    /// Anything, at most 4096 bytes.
    pub metadata: Text,
}

impl OffsetToCommit {
    /// A position without metadata.
    pub fn new(topic_partition: TopicPartition, offset: i64) -> Self {
        Self { topic_partition, offset, leader_epoch: -1, metadata: Text::EMPTY }
    }
}

/// A position that a group has committed.
///
/// ```
/// # use ottla_client::{admin::*, *};
/// # use std::time::Duration;
/// # ottla_doctest::run(async |bootstrap| {
/// # let client = ClientSettings::new(bootstrap)?;
/// # let admin = Admin::connect(client.clone()).await?;
/// # admin.create_topic(&NewTopic::new("orders", 1)).await?;
/// # let producer = Producer::connect(ProducerSettings::new(client.clone())).await?;
/// # producer.send(Record::to("orders").value("a lamp")).await?.wait().await?;
/// # let settings = ConsumerSettings::new(client.clone()).group_id("shop").offset_reset(OffsetReset::Earliest);
/// # let mut consumer = Consumer::connect(settings).await?;
/// # consumer.assign(&[(TopicPartition::new("orders", 0), StartAt::Beginning)]).await?;
/// # consumer.commit_positions().await?;
/// for committed in consumer.committed(&"shop".into(), &[TopicPartition::new("orders", 0)]).await? {
///     match committed.offset {
///         Some(offset) => println!("{} is read up to {offset}", committed.topic_partition),
///         None => println!("nothing was committed for {}", committed.topic_partition),
///     }
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// Offset of the next record to read; absent when nothing was committed.
    pub offset: Option<i64>,
    /// Leader epoch that was committed with it; -1 when none was.
    pub leader_epoch: i32,
    /// What the committer left with it.
    pub metadata: Text,
}
