//! Records and names at byte level: what flows between a cluster, a task and its stores.
//!
//! Nothing here knows types of keys and values; codecs are the topology's matter.

use std::fmt;

use bytes::Bytes;
use ottla_client::{Header, Text, TopicPartition};

/// A sub-topology over one partition: the unit that has state and moves between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// Number of the sub-topology, in the order in which the topology was built.
    pub sub_topology: u16,
    /// Partition of every input topic of the sub-topology.
    pub partition: i32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.sub_topology, self.partition)
    }
}

/// A record's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawRecord {
    /// Absent = null.
    pub key: Option<Bytes>,
    /// Absent = null, which deletes the key from a table.
    pub value: Option<Bytes>,
    /// Milliseconds since 1970.
    pub timestamp: i64,
    /// In order; names may repeat.
    pub headers: Vec<Header>,
}

impl RawRecord {
    /// Bytes that it keeps in memory, with a share for its bookkeeping.
    pub fn size(&self) -> usize {
        let header = |header: &Header| header.key.len() + header.value.as_ref().map_or(0, Bytes::len) + 48;
        self.key.as_ref().map_or(0, Bytes::len)
            + self.value.as_ref().map_or(0, Bytes::len)
            + self.headers.iter().map(header).sum::<usize>()
            + 96
    }
}

/// A record that was read from an input topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputRecord {
    /// Where it stands.
    pub topic_partition: TopicPartition,
    /// Its offset.
    pub offset: i64,
    /// Its content.
    pub record: RawRecord,
}

/// A record to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputRecord {
    /// The topic; shared, since every record of a sink or a changelog has the same.
    pub topic: Text,
    /// Absent = by the key, as Kafka's default partitioner does.
    pub partition: Option<i32>,
    /// Its content.
    pub record: RawRecord,
}

/// A change of a store: what goes to its changelog, and what its content is the fold of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which store of the task.
    pub store: crate::engine::StoreId,
    /// Key as stored.
    pub key: Bytes,
    /// Value as stored; absent = deleted.
    pub value: Option<Bytes>,
    /// Timestamp of the changelog record, milliseconds since 1970.
    pub timestamp: i64,
}
