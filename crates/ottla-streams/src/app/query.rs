//! Reading stores from outside of the tasks: what is committed, at one boundary per partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ottla_client::TopicPartition;
use ottla_client::partitioner::partition_for_key;
use ottla_env::time;

use super::member::Hands;
use super::shared::Shared;
use crate::record::TaskId;
use crate::state::Committed;
use crate::store::{KvStore, StoreError};
use crate::topology::Topology;

/// Why a store cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// No such store, or with other types.
    #[error("there is no store `{0}` of these types in the topology")]
    NoStore(String),
    /// Another process has that partition.
    #[error(
        "partition {partition} of store `{store}` is not in this process now: ask the one that owns task {task}"
    )]
    NotHere {
        /// The store.
        store: String,
        /// The partition.
        partition: i32,
        /// The task.
        task: TaskId,
    },
    /// It did not come so far in time.
    #[error("partition {partition} of store `{store}` did not reach the position within {waited:?}")]
    NotYet {
        /// The store.
        store: String,
        /// The partition.
        partition: i32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A store's committed content in this process.
#[derive(Clone)]
pub struct StoreQuery<S> {
    handle: S,
    name: String,
    sub_topology: u16,
    partitions: i32,
    shared: Arc<Shared>,
}

impl<S: Clone + 'static> StoreQuery<S> {
    pub(super) fn new(topology: &Topology, hands: &Arc<Hands>, name: &str) -> Result<Self, QueryError> {
        let none = || QueryError::NoStore(name.to_owned());
        let handle = topology.store::<S>(name).ok_or_else(none)?;
        let (sub_topology, _) = topology.find_store(name).ok_or_else(none)?;
        let of_it = hands.plan.tasks.iter().filter(|id| id.sub_topology == sub_topology);
        let partitions = of_it.map(|id| id.partition + 1).max().unwrap_or(0);
        Ok(Self {
            handle,
            name: name.to_owned(),
            sub_topology,
            partitions,
            shared: Arc::clone(&hands.shared),
        })
    }

    /// The typed handle, to read a snapshot with.
    pub fn handle(&self) -> &S {
        &self.handle
    }

    /// The partitions that are here, each at its last boundary. A snapshot stays as it is; drop it soon, since it
    /// keeps old data on disk.
    pub fn snapshots(&self) -> Vec<(i32, Arc<Committed>)> {
        let all = self.shared.all_published().into_iter();
        all.filter(|(id, _)| id.sub_topology == self.sub_topology)
            .map(|(id, found)| (id.partition, found))
            .collect()
    }

    /// One partition at its last boundary.
    pub fn snapshot(&self, partition: i32) -> Result<Arc<Committed>, QueryError> {
        let task = TaskId { sub_topology: self.sub_topology, partition };
        let found = self.shared.published(task);
        found.ok_or_else(|| QueryError::NotHere { store: self.name.clone(), partition, task })
    }

    /// One partition, once it has taken its inputs up to these offsets (those of other partitions do not count).
    /// Waits at most `limit`. Cancel-safe.
    pub async fn snapshot_at_least(
        &self,
        partition: i32,
        inputs: &BTreeMap<TopicPartition, i64>,
        limit: Duration,
    ) -> Result<Arc<Committed>, QueryError> {
        let mut moves = self.shared.moves();
        let reached = |found: &Committed| {
            let mine = inputs.iter().filter(|(at, _)| at.partition == partition);
            mine.into_iter().all(|(at, offset)| found.meta().inputs.get(at).is_some_and(|now| now >= offset))
        };
        let wait = async {
            loop {
                moves.mark_unchanged();
                if let Ok(found) = self.snapshot(partition)
                    && reached(&found)
                {
                    return Some(found);
                }
                moves.changed().await.ok()?;
            }
        };
        match time::timeout(limit, wait).await {
            Ok(Some(found)) => Ok(found),
            Ok(None) | Err(_) => {
                self.snapshot(partition)?;
                Err(QueryError::NotYet { store: self.name.clone(), partition, waited: limit })
            }
        }
    }
}

impl<K: 'static, V: 'static> StoreQuery<KvStore<K, V>>
where
    KvStore<K, V>: Clone,
{
    /// The partition that a key belongs to, by Kafka's default partitioner: right for keys that came through it, or
    /// through `key_by`.
    pub fn partition_of(&self, key: &K) -> Result<i32, QueryError> {
        let mut bytes = Vec::new();
        self.handle.0.key_into(key, &mut bytes)?;
        Ok(partition_for_key(&bytes, self.partitions))
    }

    /// The committed value of a key.
    pub fn get(&self, key: &K) -> Result<Option<V>, QueryError> {
        let snapshot = self.snapshot(self.partition_of(key)?)?;
        Ok(self.handle.read(&snapshot)?.get(key)?)
    }

    /// Every key and value that is here, by partition and key.
    pub fn all(&self) -> Result<Vec<(K, V)>, QueryError> {
        let mut found = Vec::new();
        for (_, snapshot) in self.snapshots() {
            for entry in self.handle.read(&snapshot)?.all() {
                found.push(entry?);
            }
        }
        Ok(found)
    }
}
