//! What an application computes, as a value: sub-topologies with their inputs, stores and internal topics.
//!
//! [`Topology::new`] lets the builder of [`crate::dsl`] fill a graph, checks it and cuts it into sub-topologies:
//! what is connected by edges or by stores runs in one task, what is connected by a repartition topic does not. The
//! value is shared and never changes; a [`crate::task::Task`] makes its nodes from it.
//!
//! Place in the walk: first. Not here: records, codecs at work, threads, the cluster.

pub(crate) mod build;
mod describe;
mod error;
pub(crate) mod graph;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use error::{PlanError, TopologyError};
pub use plan::{InternalPartitions, Plan};

use crate::dsl::Builder;
use crate::state::StoreSpec;
use crate::task::Policies;
use graph::{NodeDef, StoreDef};

/// An application's computation. Cheap to clone.
///
/// ```
/// use ottla_streams::codec::Utf8;
/// use ottla_streams::topology::Topology;
///
/// let topology = Topology::new("shout", |b| {
///     b.stream("words", Utf8, Utf8).map_values(|_, word| word.to_uppercase()).values_as(Utf8).to("loud");
/// })?;
/// assert_eq!(topology.sub_topologies().len(), 1);
/// assert_eq!(topology.sub_topologies()[0].inputs, ["words"]);
/// # Ok::<(), ottla_streams::topology::TopologyError>(())
/// ```
#[derive(Clone)]
pub struct Topology(pub(crate) Arc<Parts>);

/// What a topology consists of.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) nodes: Vec<NodeDef>,
    /// By node and output: the nodes that take it, with their inputs.
    pub(crate) children: Vec<Vec<Vec<(usize, u8)>>>,
    pub(crate) stores: Vec<StoreDef>,
    pub(crate) sub_topologies: Vec<SubTopology>,
    pub(crate) internal: Vec<InternalTopic>,
    pub(crate) policies: Policies,
    pub(crate) fingerprint: u64,
}

/// A part of the topology that runs in one task per partition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubTopology {
    /// Its number, in the order in which the topology was built.
    pub id: u16,
    /// Topics that it reads, sorted, repartition topics included.
    pub inputs: Vec<String>,
    /// Those of the inputs that are repartition topics of this topology.
    pub repartitions: Vec<String>,
    /// Topics that it writes, sorted, repartition topics included, changelogs and dead letters not.
    pub outputs: Vec<String>,
    /// Its stores, by [`crate::engine::StoreId`].
    pub stores: Vec<StoreSpec>,
    /// By store: the input topic that the store is a table of, which then is its changelog.
    pub table_topics: Vec<Option<String>>,
    /// Input topics whose records meet by key: the topics of a group have the same number of partitions.
    pub copartitioned: Vec<BTreeSet<String>>,
    /// Changes with everything that state on disk depends on: inputs, stores, their kinds and codecs.
    pub fingerprint: u64,
    /// Its nodes, as places in the topology's list.
    pub(crate) nodes: Vec<usize>,
    /// Its stores, as places in the topology's list, by [`crate::engine::StoreId`].
    pub(crate) store_places: Vec<usize>,
}

impl SubTopology {
    /// Names of its stores, by [`crate::engine::StoreId`], as engines want them.
    pub fn store_names(&self) -> Vec<&str> {
        self.stores.iter().map(|store| store.name.as_str()).collect()
    }
}

/// Why an internal topic is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InternalKind {
    /// Carries records to the task of their new key. Emptied up to what was committed, by the application.
    Repartition,
    /// Holds the changes of a store.
    Changelog {
        /// Superseded changes are removed (`cleanup.policy` has `compact`).
        compact: bool,
        /// Old changes are removed (`cleanup.policy` has `delete`).
        delete: bool,
        /// With `delete`: `retention.ms`, already with a day more than the store keeps.
        retention_ms: Option<i64>,
    },
}

/// A topic that the application makes for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalTopic {
    /// Its name: `application.name.repartition` or `application.name.changelog`.
    pub name: String,
    /// Why it is there.
    pub kind: InternalKind,
    /// The sub-topology whose number of partitions it has: the owner of the store, or the reader of the topic.
    pub partitions_from: u16,
}

impl Topology {
    /// Builds a topology; `name` is the application's name, which its topics, group and folder begin with.
    pub fn new(name: &str, fill: impl FnOnce(&Builder)) -> Result<Self, TopologyError> {
        let builder = Builder::new(name);
        fill(&builder);
        build::build(builder.into_graph()).map(|parts| Self(Arc::new(parts)))
    }

    /// The application's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its parts, by number.
    pub fn sub_topologies(&self) -> &[SubTopology] {
        &self.0.sub_topologies
    }

    /// Topics that the application makes for itself.
    pub fn internal_topics(&self) -> &[InternalTopic] {
        &self.0.internal
    }

    /// Topics that it reads and does not make itself, sorted.
    pub fn external_inputs(&self) -> Vec<&str> {
        let subs = self.0.sub_topologies.iter();
        let all: BTreeSet<&str> = subs
            .flat_map(|sub| sub.inputs.iter().filter(|topic| !sub.repartitions.contains(topic)))
            .map(String::as_str)
            .collect();
        all.into_iter().collect()
    }

    /// What happens to records that cannot be decoded, processed or written.
    pub fn policies(&self) -> &Policies {
        &self.0.policies
    }

    /// Changes with everything that state on disk depends on; stateless steps do not count.
    pub fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }

    /// The topology as text: sub-topologies, nodes with what they feed, stores and internal topics.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// let topology = Topology::new("app", |b| b.stream("in", Utf8, Utf8).to("out"))?;
    /// assert!(topology.describe().contains("source in"));
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn describe(&self) -> String {
        describe::describe(&self.0)
    }

    /// Where a store of that name is: sub-topology and place in its list.
    pub fn find_store(&self, name: &str) -> Option<(u16, crate::engine::StoreId)> {
        self.0.sub_topologies.iter().find_map(|sub| {
            let place = sub.stores.iter().position(|store| store.name == name)?;
            Some((sub.id, crate::engine::StoreId(u16::try_from(place).expect("checked when built"))))
        })
    }

    /// The typed handle of a store, for reading it outside of the tasks; absent when there is no such store or its
    /// types are others. `S` is [`crate::store::KvStore`], [`crate::store::WindowStore`] or
    /// [`crate::store::SessionStore`].
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, store::KvStore, topology::Topology};
    /// let topology = Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).group().count("counts");
    /// })?;
    /// assert!(topology.store::<KvStore<String, i64>>("counts").is_some());
    /// assert!(topology.store::<KvStore<String, String>>("counts").is_none());
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn store<S: Clone + 'static>(&self, name: &str) -> Option<S> {
        let store = self.0.stores.iter().find(|store| store.name == name)?;
        store.handle.downcast_ref::<S>().cloned()
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology")
            .field("name", &self.0.name)
            .field("sub_topologies", &self.0.sub_topologies)
            .finish_non_exhaustive()
    }
}
