//! Key-value stores.

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;

use super::{AnyStore, Entries, Handle, Opening, ReadBytes, StoreError, StoreHandle, put_bytes};
use crate::engine::{Direction, KeyRange, StoreId};
use crate::state::Committed;
use crate::task::Core;

/// A store of keys and values. Made by [`crate::dsl::Builder::kv_store`], by aggregations and by tables.
///
/// A query reads a snapshot of the last boundary:
///
/// ```
/// use ottla_streams::codec::{I64, Utf8};
/// use ottla_streams::engine::mem::MemEngine;
/// use ottla_streams::state::TaskState;
/// use ottla_streams::store::KvStore;
/// use ottla_streams::topology::Topology;
///
/// let topology = Topology::new("app", |b| {
///     b.stream("in", Utf8, Utf8).group().count("counts");
/// })?;
/// let sub = &topology.sub_topologies()[0];
/// let state = TaskState::open(Box::new(MemEngine::alone(&sub.store_names())), &sub.stores, sub.fingerprint)?;
/// let counts = topology.store::<KvStore<String, i64>>("counts").expect("it is there");
/// let snapshot = state.snapshot();
/// assert_eq!(counts.read(&snapshot)?.get(&"nobody".to_string())?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KvStore<K, V>(pub(crate) Handle<K, V>);

impl<K, V> Clone for KvStore<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> AnyStore for KvStore<K, V> {
    fn name(&self) -> &str {
        &self.0.name
    }
    fn place(&self) -> usize {
        self.0.place
    }
}

impl<K: 'static, V: 'static> StoreHandle for KvStore<K, V> {
    type Access<'a> = Kv<'a, K, V>;
    fn open<'a>(&'a self, opening: Opening<'a>) -> Kv<'a, K, V> {
        Kv { store: self, core: opening.0 }
    }
}

impl<K: 'static, V: 'static> KvStore<K, V> {
    /// Reads a snapshot of the task that has it.
    pub fn read<'a>(&'a self, committed: &'a Committed) -> Result<KvReader<'a, K, V>, StoreError> {
        Ok(KvReader { id: self.0.id_at(committed)?, store: self, bytes: committed })
    }

    /// Key and value of an entry as it is stored.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, store::KvStore, topology::Topology};
    /// let topology = Topology::new("app", |b| drop(b.stream("in", Utf8, Utf8).group().count("counts")))?;
    /// let counts = topology.store::<KvStore<String, i64>>("counts").expect("it is there");
    /// // A timestamp and the count.
    /// let entry = counts.entry(b"key", &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2])?;
    /// assert_eq!(entry, ("key".to_owned(), 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entry(&self, key: &[u8], value: &[u8]) -> Result<(K, V), StoreError> {
        Ok((self.0.key_of(key)?, self.0.value_of(value)?.0))
    }

    /// Value and timestamp of a key, inside a task.
    pub(crate) fn find(&self, core: &Core, key: &K) -> Result<Option<(V, i64)>, StoreError> {
        KvReader { id: self.0.id_in(core)?, store: self, bytes: &core.state }.find(key)
    }

    /// Writes a value with its timestamp, inside a task.
    pub(crate) fn write(
        &self,
        core: &mut Core,
        key: &K,
        value: Option<&V>,
        timestamp: i64,
    ) -> Result<(), StoreError> {
        let id = self.0.id_in(core)?;
        let mut bytes = Vec::new();
        self.0.key_into(key, &mut bytes)?;
        let value = match value {
            // A value that is null in its codec is a delete.
            Some(value) if !self.0.value.is_null(value) => {
                let mut bytes = Vec::new();
                self.0.value_into(value, timestamp, &mut bytes)?;
                Some(Bytes::from(bytes))
            }
            Some(_) | None => None,
        };
        put_bytes(core, id, Bytes::from(bytes), value)
    }
}

/// A key-value store that is only read.
/// ```
/// use ottla_streams::engine::Direction;
/// use ottla_streams::store::{KvReader, StoreError};
///
/// /// The total of everybody whose name begins with "a", and the last name of all.
/// fn look(totals: &KvReader<'_, String, i64>) -> Result<(i64, Option<String>), StoreError> {
///     let mut sum = 0;
///     for entry in totals.prefix(b"a", Direction::Forward) {
///         sum += entry?.1;
///     }
///     let last = totals.range(.., Direction::Reverse)?.next().transpose()?;
///     Ok((sum, last.map(|(name, _)| name)))
/// }
/// ```
pub struct KvReader<'a, K, V> {
    id: StoreId,
    store: &'a KvStore<K, V>,
    bytes: &'a dyn ReadBytes,
}

impl<'a, K: 'static, V: 'static> KvReader<'a, K, V> {
    fn find(&self, key: &K) -> Result<Option<(V, i64)>, StoreError> {
        let mut bytes = Vec::new();
        self.store.0.key_into(key, &mut bytes)?;
        self.bytes.get(self.id, &bytes)?.map(|value| self.store.0.value_of(&value)).transpose()
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Result<Option<V>, StoreError> {
        Ok(self.find(key)?.map(|(value, _)| value))
    }

    /// Entries between two keys, in the byte order of the encoded keys, last one first with [`Direction::Reverse`].
    pub fn range(
        &self,
        range: impl RangeBounds<K>,
        direction: Direction,
    ) -> Result<Entries<'a, (K, V)>, StoreError> {
        let bound = |bound: Bound<&K>| -> Result<Bound<Bytes>, StoreError> {
            let encoded = |key: &K| {
                let mut bytes = Vec::new();
                self.store.0.key_into(key, &mut bytes).map(|()| Bytes::from(bytes))
            };
            Ok(match bound {
                Bound::Included(key) => Bound::Included(encoded(key)?),
                Bound::Excluded(key) => Bound::Excluded(encoded(key)?),
                Bound::Unbounded => Bound::Unbounded,
            })
        };
        let range = KeyRange { start: bound(range.start_bound())?, end: bound(range.end_bound())? };
        Ok(self.scan(&range, direction))
    }

    /// Entries whose encoded keys begin with these bytes.
    pub fn prefix(&self, prefix: &[u8], direction: Direction) -> Entries<'a, (K, V)> {
        self.scan(&super::keys::prefix_range(prefix), direction)
    }

    /// All entries.
    pub fn all(&self) -> Entries<'a, (K, V)> {
        self.scan(&KeyRange::ALL, Direction::Forward)
    }

    fn scan(&self, range: &KeyRange, direction: Direction) -> Entries<'a, (K, V)> {
        let store = self.store;
        Box::new(self.bytes.scan(self.id, range, direction).map(move |entry| {
            let (key, value) = entry.map_err(|error| StoreError::State(error.to_string()))?;
            store.entry(&key, &value)
        }))
    }
}

/// A key-value store in a processor: reads see the writes before them.
/// ```
/// use ottla_streams::store::{Kv, StoreError};
///
/// /// Adds to a key, and forgets all keys before it.
/// fn add(totals: &mut Kv<'_, String, i64>, key: &String, more: i64) -> Result<(), StoreError> {
///     let sum = totals.get(key)?.unwrap_or(0) + more;
///     totals.put(key, &sum)?;
///     let older: Vec<(String, i64)> =
///         totals.range(..key.clone(), ottla_streams::engine::Direction::Forward)?.collect::<Result<_, _>>()?;
///     older.iter().try_for_each(|(key, _)| totals.delete(key))
/// }
/// ```
pub struct Kv<'a, K, V> {
    store: &'a KvStore<K, V>,
    core: &'a mut Core,
}

impl<K: 'static, V: 'static> Kv<'_, K, V> {
    fn reader(&self) -> Result<KvReader<'_, K, V>, StoreError> {
        Ok(KvReader { id: self.store.0.id_in(self.core)?, store: self.store, bytes: &self.core.state })
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Result<Option<V>, StoreError> {
        self.reader()?.get(key)
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: &K, value: &V) -> Result<(), StoreError> {
        let now = self.core.now;
        self.store.write(self.core, key, Some(value), now)
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &K) -> Result<(), StoreError> {
        let now = self.core.now;
        self.store.write(self.core, key, None, now)
    }

    /// Entries between two keys, in the byte order of the encoded keys.
    pub fn range(
        &self,
        range: impl RangeBounds<K>,
        direction: Direction,
    ) -> Result<Entries<'_, (K, V)>, StoreError> {
        self.reader()?.range(range, direction)
    }

    /// Entries whose encoded keys begin with these bytes.
    pub fn prefix(&self, prefix: &[u8], direction: Direction) -> Result<Entries<'_, (K, V)>, StoreError> {
        Ok(self.reader()?.prefix(prefix, direction))
    }

    /// All entries.
    pub fn all(&self) -> Result<Entries<'_, (K, V)>, StoreError> {
        Ok(self.reader()?.all())
    }
}
