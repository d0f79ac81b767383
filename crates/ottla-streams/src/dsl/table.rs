//! Tables: the latest value of each key.
//!
//! A table is a store, or a view of one through functions that run when it is read. Its nodes forward
//! `Record<K, Option<V>>`: `None` = the key is gone.

use std::sync::Arc;

use super::{Codecs, Shared, Stream, add_fn, kv_store, taken_raw};
use crate::codec::SharedCodec;
use crate::processor::Record;
use crate::store::{AnyStore, KvStore, StoreError};
use crate::task::node::taken;
use crate::task::{Core, Failure};
use crate::topology::graph::NodeKind;

/// Reads a key of a table inside a task.
pub(super) type Lookup<K, V> = Arc<dyn Fn(&Core, &K) -> Result<Option<V>, StoreError> + Send + Sync>;

/// The latest value of each key. A value that names a place in the topology; use it as often as needed.
pub struct Table<K, V> {
    pub(super) graph: Shared,
    pub(super) node: usize,
    /// The store behind it, as a place in the topology.
    pub(super) store: usize,
    pub(super) lookup: Lookup<K, V>,
    pub(super) keys: Option<SharedCodec<K>>,
    pub(super) values: Option<SharedCodec<V>>,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self {
            graph: self.graph.clone(),
            node: self.node,
            store: self.store,
            lookup: self.lookup.clone(),
            keys: self.keys.clone(),
            values: self.values.clone(),
        }
    }
}

/// A table of a topic.
pub(super) fn source<K: Clone + 'static, V: Clone + 'static>(
    graph: &Shared,
    topic: &str,
    store: &str,
    keys: SharedCodec<K>,
    values: SharedCodec<V>,
) -> Table<K, V> {
    let store = kv_store(graph, store, (keys.clone(), values.clone()), Some(topic), false);
    let place = store.place();
    let kind = NodeKind::Source {
        topic: topic.to_owned(),
        repartition: false,
        table: Some(place),
        timestamps: None,
    };
    let (key_codec, value_codec) = (keys.clone(), values.clone());
    let name = format!("{topic} (source)");
    let node = add_fn(graph, &name, "table", kind, vec![place], move |_, item, cx| {
        let (raw, timestamp) = taken_raw(item);
        // The task has put it into the store already.
        let Some(key) = raw.key.as_deref().filter(|_| cx.has_children(0)) else { return Ok(()) };
        let fault = |part, error| Failure::Decode(format!("{part}: {error}"));
        let key = key_codec.decode(key).map_err(|error| fault("key", error))?;
        let value = raw.value.as_deref().map(|value| value_codec.decode(value)).transpose();
        let value = value.map_err(|error| fault("value", error))?;
        cx.forward(0, Record { key, value, timestamp, headers: raw.headers })
    });
    of_store(graph, node, store, (keys, values))
}

/// A table whose node writes to a store.
pub(super) fn of_store<K: 'static, V: 'static>(
    graph: &Shared,
    node: usize,
    store: KvStore<K, V>,
    (keys, values): Codecs<K, V>,
) -> Table<K, V> {
    let place = store.place();
    let lookup: Lookup<K, V> = Arc::new(move |core, key| Ok(store.find(core, key)?.map(|(value, _)| value)));
    Table { graph: graph.clone(), node, store: place, lookup, keys: Some(keys), values: Some(values) }
}

impl<K: Clone + 'static, V: Clone + 'static> Table<K, V> {
    fn stream_of<V2: Clone + 'static>(
        &self,
        label: &'static str,
        pick: impl Fn(Option<V>) -> Option<V2> + Send + Sync + 'static,
    ) -> Stream<K, V2> {
        let node = add_fn(&self.graph, "", label, NodeKind::Operator, Vec::new(), move |_, item, cx| {
            let Record { key, value, timestamp, headers } = taken::<K, Option<V>>(item);
            match pick(value) {
                Some(value) => cx.forward(0, Record { key, value, timestamp, headers }),
                None => Ok(()),
            }
        });
        self.graph.borrow_mut().connect(self.node, 0, node, 0);
        let (graph, keys) = (self.graph.clone(), self.keys.clone());
        Stream { graph, node, port: 0, keys, values: None, key_changed: false }
    }

    /// Each new value of a key. Deletes are left out; [`Table::changes_with_deletes`] has them.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| b.stream("in", Utf8, Utf8).group().count("counts").changes().to("counts-out"))?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn changes(&self) -> Stream<K, V> {
        let mut stream = self.stream_of("changes", |value| value);
        stream.values = self.values.clone();
        stream
    }

    /// Each new value of a key, `None` when it is deleted.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let stock = b.table("stock", "stock", Utf8, Utf8);
    ///     stock.changes_with_deletes().filter(|r| r.value.is_none()).to("sold-out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn changes_with_deletes(&self) -> Stream<K, Option<V>> {
        let mut stream = self.stream_of("changes", Some);
        stream.values =
            self.values.clone().map(|codec| Arc::new(NullableShared(codec)) as SharedCodec<Option<V>>);
        stream
    }

    /// Writes each change to a topic, by key; a delete is a null value. Such a topic is best compacted.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| b.stream("in", Utf8, Utf8).group().count("counts").to("counts-out"))?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn to(&self, topic: &str) {
        self.changes_with_deletes().to(topic);
    }

    /// The table with other values; nothing is stored, the function runs at each read and change.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| {
    ///     b.table("customers", "customers", Utf8, Utf8).map_values(|_, name| name.to_uppercase()).values_as(Utf8).to("loud");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn map_values<V2: Clone + 'static>(
        &self,
        map: impl Fn(&K, V) -> V2 + Send + Sync + 'static,
    ) -> Table<K, V2> {
        self.view("map values", move |key, value| Some(map(key, value)))
    }

    /// The table with those keys only for which the function says true. A key that no longer fits is deleted for
    /// whoever reads the changes.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, driver::Driver, topology::Topology};
    /// let topology = Topology::new("app", |b| {
    ///     b.table("stock", "stock", Utf8, Utf8).filter(|_, state| state != "sold").to("on-sale");
    /// })?;
    /// let mut driver = Driver::new(topology);
    /// driver.pipe("stock", "lamp", "new")?;
    /// driver.pipe("stock", "lamp", "sold")?;
    /// let told: Vec<_> = driver.read("on-sale")?.into_iter().map(|found| found.record.value).collect();
    /// assert_eq!(told, [Some("new".into()), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn filter(&self, keep: impl Fn(&K, &V) -> bool + Send + Sync + 'static) -> Table<K, V> {
        let view = self.view("filter", move |key, value| keep(key, &value).then_some(value));
        Table { values: self.values.clone(), ..view }
    }

    fn view<V2: Clone + 'static>(
        &self,
        label: &'static str,
        map: impl Fn(&K, V) -> Option<V2> + Send + Sync + 'static,
    ) -> Table<K, V2> {
        let map = Arc::new(map);
        let (under, through) = (self.lookup.clone(), map.clone());
        let lookup: Lookup<K, V2> =
            Arc::new(move |core, key| Ok(under(core, key)?.and_then(|value| through(key, value))));
        let node = add_fn(&self.graph, "", label, NodeKind::Operator, Vec::new(), move |_, item, cx| {
            let Record { key, value, timestamp, headers } = taken::<K, Option<V>>(item);
            let value = value.and_then(|value| map(&key, value));
            cx.forward(0, Record { key, value, timestamp, headers })
        });
        self.graph.borrow_mut().connect(self.node, 0, node, 0);
        let (graph, keys) = (self.graph.clone(), self.keys.clone());
        Table { graph, node, store: self.store, lookup, keys, values: None }
    }

    /// Tells the codec of the values, after a step that changed their type.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     b.table("names", "names", Utf8, Utf8).map_values(|_, name| name.len() as i64).values_as(I64).to("lengths");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn values_as(&self, codec: impl crate::codec::Codec<V>) -> Self {
        Self { values: Some(Arc::new(codec)), ..self.clone() }
    }
}

/// [`crate::codec::Nullable`] of a shared codec.
pub(super) struct NullableShared<T>(pub(super) SharedCodec<T>);

impl<T: 'static> crate::codec::Codec<Option<T>> for NullableShared<T> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn encode(&self, value: &Option<T>, out: &mut Vec<u8>) -> Result<(), crate::codec::CodecError> {
        value.as_ref().map_or(Ok(()), |value| self.0.encode(value, out))
    }
    fn decode(&self, bytes: &[u8]) -> Result<Option<T>, crate::codec::CodecError> {
        self.0.decode(bytes).map(Some)
    }
    fn is_null(&self, value: &Option<T>) -> bool {
        value.as_ref().is_none_or(|value| self.0.is_null(value))
    }
    fn null(&self) -> Option<Option<T>> {
        Some(None)
    }
}
