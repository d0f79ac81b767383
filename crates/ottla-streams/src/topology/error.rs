//! What can be wrong with a topology: found when it is built, or when the cluster's topics are looked at.
//!
//! Each error names the part of the topology that it is about and says what to do.

/// Why a topology cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A name has characters that a topic cannot have, is empty or too long.
    #[error("{name:?} cannot be a name: 1 to {max} of a-z, A-Z, 0-9, '.', '_' and '-', not '.' or '..'")]
    BadName {
        /// The name.
        name: String,
        /// Longest that fits here.
        max: usize,
    },
    /// Two parts have the same name.
    #[error("the name {name:?} is used twice: names of stores, repartition topics and processors are unique")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A topic is read twice.
    #[error("the topic {topic:?} is read twice: read it once and use the stream or table twice")]
    DuplicateSource {
        /// The topic.
        topic: String,
    },
    /// A store that this topology does not have.
    #[error(
        "{node:?} uses the store {store:?}, which is none of this topology: make it with the same builder"
    )]
    UnknownStore {
        /// Who uses it.
        node: String,
        /// The store.
        store: String,
    },
    /// A stream or table of another topology.
    #[error("{node:?} combines streams or tables of two topologies")]
    ForeignStream {
        /// Who uses it.
        node: String,
    },
    /// A codec is needed where none is known, after a change of type.
    #[error("{node:?} writes {what} but no codec for them is known: call {call} before it")]
    MissingCodec {
        /// Who writes.
        node: String,
        /// "keys" or "values".
        what: &'static str,
        /// What to call.
        call: &'static str,
    },
    /// State by key is asked for, but the key may have changed since the stream was partitioned by it.
    #[error(
        "{node:?} keeps state by key, but the key was changed before it: use key_by (through a repartition topic), \
         or keep_partitioning when the key is the same"
    )]
    KeyChanged {
        /// Who keeps state.
        node: String,
    },
    /// The topology feeds itself.
    #[error("the topology feeds itself through {}: records would go round for ever", topics.join(" -> "))]
    Cycle {
        /// The topics on the way, the first one is the last one too.
        topics: Vec<String>,
    },
    /// Nothing is read.
    #[error("the topology reads no topic")]
    Empty,
    /// More stores in one sub-topology than an offset commit can witness.
    #[error(
        "sub-topology {sub_topology} has {stores} stores: the restore targets would need {bytes} bytes of offset \
         metadata, brokers take {max}; split it with a repartition topic or merge stores"
    )]
    TooManyStores {
        /// Which sub-topology.
        sub_topology: u16,
        /// Its stores.
        stores: usize,
        /// Bytes of metadata.
        bytes: usize,
        /// What brokers take.
        max: usize,
    },
    /// A window, gap, grace or retention that cannot be.
    #[error("{node:?}: {reason}")]
    BadWindow {
        /// Who has it.
        node: String,
        /// What is wrong.
        reason: String,
    },
}

/// Why a topology does not fit the topics of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An input topic is not there.
    #[error("the topic {topic:?} does not exist (read by sub-topology {sub_topology}): create it first")]
    UnknownTopic {
        /// The topic.
        topic: String,
        /// Who reads it.
        sub_topology: u16,
    },
    /// Topics whose records meet by key have different numbers of partitions.
    #[error(
        "the topics {left:?} ({left_partitions} partitions) and {right:?} ({right_partitions} partitions) meet by \
         key in sub-topology {sub_topology}: they need the same number of partitions, or a key_by before"
    )]
    NotCopartitioned {
        /// Where.
        sub_topology: u16,
        /// One topic.
        left: String,
        /// Its partitions.
        left_partitions: i32,
        /// The other.
        right: String,
        /// Its partitions.
        right_partitions: i32,
    },
}
