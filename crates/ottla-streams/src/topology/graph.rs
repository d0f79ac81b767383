//! The graph that a builder fills: nodes with factories, edges between them, stores. Bytes and boxes only.
//!
//! The typed DSL writes into it; [`super::build`] checks it and cuts it into sub-topologies. It is closed then, and
//! every task makes its nodes from the factories.

use std::any::Any;
use std::sync::Arc;

use super::error::TopologyError;
use crate::codec::CodecError;
use crate::record::RawRecord;
use crate::state::StoreKind;
use crate::task::{Node, Policies};

/// Makes a node; called for each task, and again after each rollback (I5).
pub(crate) type Factory = Arc<dyn Fn() -> Box<dyn Node> + Send + Sync>;

/// Event time of a record, when it is not the record's own timestamp.
pub(crate) type Timestamps = Arc<dyn Fn(&RawRecord) -> Result<i64, CodecError> + Send + Sync>;

/// What a node is to the outside.
#[derive(Clone)]
pub(crate) enum NodeKind {
    /// Takes the records of a topic.
    Source {
        /// The topic.
        topic: String,
        /// It is a repartition topic of this topology.
        repartition: bool,
        /// The store that holds the latest value of each key of the topic.
        table: Option<usize>,
        /// Event time; absent = the record's timestamp.
        timestamps: Option<Timestamps>,
    },
    /// Works on what other nodes forward.
    Operator,
    /// Writes to a topic.
    Sink {
        /// The topic.
        topic: String,
    },
}

/// A node.
#[derive(Clone)]
pub(crate) struct NodeDef {
    /// Unique; given by the user where state or topics arise, made up else.
    pub(crate) name: String,
    /// What it does, in one or two words, for the description.
    pub(crate) label: &'static str,
    pub(crate) kind: NodeKind,
    /// Stores that it reads or writes, as places in [`Graph::stores`].
    pub(crate) stores: Vec<usize>,
    pub(crate) factory: Factory,
}

/// Records of `from`, output `out_port`, go to `to`, input `in_port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) out_port: u8,
    pub(crate) to: usize,
    pub(crate) in_port: u8,
}

/// A store.
#[derive(Clone)]
pub(crate) struct StoreDef {
    pub(crate) name: String,
    pub(crate) kind: StoreKind,
    /// The topic that it is a table of; such a store has no changelog.
    pub(crate) source_topic: Option<String>,
    /// Codecs and layout, for the fingerprint and the description.
    pub(crate) format: String,
    /// The typed handle, for queries by name.
    pub(crate) handle: Arc<dyn Any + Send + Sync>,
}

/// All of it.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) name: String,
    pub(crate) nodes: Vec<NodeDef>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) stores: Vec<StoreDef>,
    pub(crate) policies: Policies,
    /// Found while building; the first is reported.
    pub(crate) errors: Vec<TopologyError>,
}

impl Graph {
    /// Adds a node and gives its place. An empty name is made up from the label.
    pub(crate) fn add(
        &mut self,
        name: &str,
        label: &'static str,
        kind: NodeKind,
        stores: Vec<usize>,
        factory: Factory,
    ) -> usize {
        let place = self.nodes.len();
        let name = if name.is_empty() { format!("{label}-{place}") } else { name.to_owned() };
        self.nodes.push(NodeDef { name, label, kind, stores, factory });
        place
    }

    /// Connects two nodes.
    pub(crate) fn connect(&mut self, from: usize, out_port: u8, to: usize, in_port: u8) {
        self.edges.push(Edge { from, out_port, to, in_port });
    }

    /// The topic that a repartition of that name goes through.
    pub(crate) fn repartition_topic(&self, name: &str) -> String {
        format!("{}.{name}.repartition", self.name)
    }

    /// The changelog of a store.
    pub(crate) fn changelog_topic(&self, store: &str) -> String {
        format!("{}.{store}.changelog", self.name)
    }
}
