//! The typed surface: a builder whose streams and tables write a graph of bytes and boxes.
//!
//! Names are asked for where state or topics arise, so that no change elsewhere renames them. Streams remember the
//! codecs of their keys and values; a step that changes a type forgets it, and [`Stream::keys_as`] and
//! [`Stream::values_as`] tell it again where bytes are needed. Mistakes are collected and reported by
//! [`crate::topology::Topology::new`], the first one first.
//!
//! Place in the walk: first, with [`crate::topology`]. Not here: running anything.

mod group;
mod join;
mod join_node;
mod session_node;
mod stream;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod window_node;
mod windows;

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use group::{Grouped, SessionStream, WindowStream, WindowTable};
pub use stream::Stream;
pub use table::Table;
pub use windows::{Hopping, JoinWindow, SessionWindows, TimeWindows, Tumbling, Windowed};

use crate::codec::{Codec, SharedCodec, decoded};
use crate::processor::Record;
use crate::record::RawRecord;
use crate::state::StoreKind;
use crate::store::{AnyStore, Handle, KvStore, Layout, SessionStore, WindowStore};
use crate::task::node::Cx;
use crate::task::{Failure, Node, Policies};
use crate::topology::TopologyError;
use crate::topology::graph::{Graph, NodeKind, StoreDef, Timestamps};

/// The graph that all parts of a builder share.
type Shared = Rc<RefCell<Graph>>;

/// Makes the streams, tables and stores of a topology; see [`crate::topology::Topology::new`].
///
/// ```
/// use std::time::Duration;
/// use ottla_streams::codec::{Json, Utf8};
/// use ottla_streams::dsl::{Table, Tumbling};
/// use ottla_streams::topology::Topology;
///
/// #[derive(Clone, serde::Serialize, serde::Deserialize)]
/// struct Order { customer: String, cents: i64, open: bool }
/// #[derive(Clone, Default, serde::Serialize, serde::Deserialize)]
/// struct Total { orders: u64, cents: i64 }
///
/// let topology = Topology::new("orders-app", |b| {
///     let orders = b.stream("orders", Utf8, Json::<Order>::new());
///     let by_customer = orders.filter(|r| r.value.open).key_by("by-customer", Utf8, |r| r.value.customer.clone());
///     let totals: Table<String, Total> = by_customer.group().aggregate("totals", Json::new(), Total::default, |total, r| {
///         Total { orders: total.orders + 1, cents: total.cents + r.value.cents }
///     });
///     by_customer.window(Tumbling::of(Duration::from_secs(60))).count("per-minute").emit_on_close().to("per-minute-out");
///     let customers = b.table("customers", "customer-names", Utf8, Utf8);
///     totals.changes().join(&customers, |total, name| format!("{name}: {}", total.cents)).values_as(Utf8).to("out");
/// })?;
/// println!("{}", topology.describe());
/// # Ok::<(), ottla_streams::topology::TopologyError>(())
/// ```
pub struct Builder {
    graph: Shared,
}

impl Builder {
    pub(crate) fn new(name: &str) -> Self {
        let graph = Graph { name: name.to_owned(), ..Graph::default() };
        Self { graph: Rc::new(RefCell::new(graph)) }
    }

    pub(crate) fn into_graph(self) -> Graph {
        std::mem::take(&mut *self.graph.borrow_mut())
    }

    /// What happens to records that cannot be decoded, processed or written; unless it is said, each stops the task.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, driver::Driver, task::{Policies, Policy}, topology::Topology};
    /// let topology = Topology::new("app", |b| {
    ///     b.policies(Policies { on_decode_error: Policy::DeadLetter("bad".into()), ..Policies::default() });
    ///     b.stream("numbers", Utf8, I64).to("copy");
    /// })?;
    /// let mut driver = Driver::new(topology);
    /// driver.pipe("numbers", "a", "not 8 bytes")?;
    /// let letters = driver.read("bad")?;
    /// assert_eq!(letters[0].record.value.as_deref(), Some(&b"not 8 bytes"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn policies(&self, policies: Policies) {
        self.graph.borrow_mut().policies = policies;
    }

    /// The records of a topic.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Nullable, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let clicks = b.stream("clicks", Nullable(Utf8), I64); // keys may be null
    ///     clicks.filter(|r| r.key.is_some()).to("known-clicks");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn stream<K, V>(&self, topic: &str, keys: impl Codec<K>, values: impl Codec<V>) -> Stream<K, V>
    where
        K: Clone + 'static,
        V: Clone + 'static,
    {
        source(&self.graph, topic, false, Arc::new(keys), Arc::new(values), None)
    }

    /// The records of a topic, with an event time of their own: the function gets key, value and the record's
    /// timestamp, and gives ms since 1970. The task takes records in the order of that time.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     b.stream_with_time("measured", Utf8, I64, |_, value, _| *value).to("copy");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn stream_with_time<K, V>(
        &self,
        topic: &str,
        keys: impl Codec<K>,
        values: impl Codec<V>,
        time: impl Fn(&K, &V, i64) -> i64 + Send + Sync + 'static,
    ) -> Stream<K, V>
    where
        K: Clone + 'static,
        V: Clone + 'static,
    {
        let (keys, values): (SharedCodec<K>, SharedCodec<V>) = (Arc::new(keys), Arc::new(values));
        let (key_codec, value_codec) = (keys.clone(), values.clone());
        let timestamps: Timestamps = Arc::new(move |raw: &RawRecord| {
            let key = decoded(&*key_codec, raw.key.as_deref())?;
            let value = decoded(&*value_codec, raw.value.as_deref())?;
            Ok(time(&key, &value, raw.timestamp))
        });
        source(&self.graph, topic, false, keys, values, Some(timestamps))
    }

    /// The latest value of each key of a compacted topic, as a table with a store of that name. The topic is its
    /// changelog. Null values delete; records without a key are left out and counted.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let names = b.table("customers", "names", Utf8, Utf8);
    ///     b.stream("orders", Utf8, Utf8).join(&names, |order, name| format!("{order} of {name}")).values_as(Utf8).to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn table<K, V>(
        &self,
        topic: &str,
        store: &str,
        keys: impl Codec<K>,
        values: impl Codec<V>,
    ) -> Table<K, V>
    where
        K: Clone + 'static,
        V: Clone + 'static,
    {
        table::source(&self.graph, topic, store, Arc::new(keys), Arc::new(values))
    }

    /// A store of keys and values, for processors.
    ///
    /// See [`crate::processor::Processor`] for a use of it.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, store::KvStore, topology::Topology};
    /// # Topology::new("app", |b| {
    /// # b.stream("in", Utf8, Utf8).to("out");
    /// let seen: KvStore<String, i64> = b.kv_store("seen", Utf8, I64);
    /// # })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn kv_store<K: 'static, V: 'static>(
        &self,
        name: &str,
        keys: impl Codec<K>,
        values: impl Codec<V>,
    ) -> KvStore<K, V> {
        kv_store(&self.graph, name, (Arc::new(keys), Arc::new(values)), None, false)
    }

    /// A store of values by key and start time, for processors; entries go once their start lies `retention` behind
    /// stream time. At least a millisecond.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ottla_streams::{codec::{I64, Utf8}, store::WindowStore, topology::Topology};
    /// # Topology::new("app", |b| {
    /// # b.stream("in", Utf8, Utf8).to("out");
    /// let prices: WindowStore<String, i64> = b.window_store("prices", Utf8, I64, Duration::from_secs(3600));
    /// # })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn window_store<K: 'static, V: 'static>(
        &self,
        name: &str,
        keys: impl Codec<K>,
        values: impl Codec<V>,
        retention: Duration,
    ) -> WindowStore<K, V> {
        let retention_ms = windows::millis(&self.graph, name, "retention", retention, 1);
        let layout = Layout::Buckets { bucket_ms: (retention_ms / 4).max(1), duplicates: false };
        window_store(&self.graph, name, (Arc::new(keys), Arc::new(values)), retention_ms, layout, false)
    }

    /// A store of values by key and span of time, for processors; sessions go some time after their end lies
    /// `retention` behind stream time. At least a millisecond.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ottla_streams::{codec::{I64, Utf8}, store::SessionStore, topology::Topology};
    /// # Topology::new("app", |b| {
    /// # b.stream("in", Utf8, Utf8).to("out");
    /// let visits: SessionStore<String, i64> = b.session_store("visits", Utf8, I64, Duration::from_secs(86_400));
    /// # })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn session_store<K: 'static, V: 'static>(
        &self,
        name: &str,
        keys: impl Codec<K>,
        values: impl Codec<V>,
        retention: Duration,
    ) -> SessionStore<K, V> {
        let retention_ms = windows::millis(&self.graph, name, "retention", retention, 1);
        session_store(&self.graph, name, (Arc::new(keys), Arc::new(values)), retention_ms)
    }
}

/// Keys and values.
type Codecs<K, V> = (SharedCodec<K>, SharedCodec<V>);

fn add_store<S: AnyStore + Clone + Send + Sync + 'static>(
    graph: &Shared,
    kind: StoreKind,
    source_topic: Option<&str>,
    format: String,
    make: impl FnOnce(usize) -> S,
) -> S {
    let mut graph = graph.borrow_mut();
    let store = make(graph.stores.len());
    graph.stores.push(StoreDef {
        name: store.name().to_owned(),
        kind,
        source_topic: source_topic.map(str::to_owned),
        format,
        handle: Arc::new(store.clone()),
    });
    store
}

fn handle<K, V>(name: &str, place: usize, (key, value): Codecs<K, V>, timestamped: bool) -> Handle<K, V> {
    Handle { name: name.into(), place, key, value, timestamped }
}

fn kv_store<K: 'static, V: 'static>(
    graph: &Shared,
    name: &str,
    codecs: Codecs<K, V>,
    source_topic: Option<&str>,
    timestamped: bool,
) -> KvStore<K, V> {
    let time = if timestamped { "time + " } else { "" };
    let format = format!("key-value, {} -> {time}{}", codecs.0.name(), codecs.1.name());
    add_store(graph, StoreKind::KeyValue, source_topic, format, |place| {
        KvStore(handle(name, place, codecs, timestamped))
    })
}

fn window_store<K: 'static, V: 'static>(
    graph: &Shared,
    name: &str,
    codecs: Codecs<K, V>,
    retention_ms: i64,
    layout: Layout,
    timestamped: bool,
) -> WindowStore<K, V> {
    let time = if timestamped { "time + " } else { "" };
    let format = format!("windows {layout:?}, {} -> {time}{}", codecs.0.name(), codecs.1.name());
    add_store(graph, StoreKind::Window { retention_ms }, None, format, |place| WindowStore {
        handle: handle(name, place, codecs, timestamped),
        retention_ms,
        layout,
    })
}

fn session_store<K: 'static, V: 'static>(
    graph: &Shared,
    name: &str,
    codecs: Codecs<K, V>,
    retention_ms: i64,
) -> SessionStore<K, V> {
    let format = format!("sessions, {} -> time + {}", codecs.0.name(), codecs.1.name());
    // At byte level it is keys and values that are deleted by changes.
    add_store(graph, StoreKind::KeyValue, None, format, |place| SessionStore {
        handle: handle(name, place, codecs, true),
        retention_ms,
    })
}

/// A node that keeps nothing: a function.
struct FnNode<F>(Arc<F>);

impl<F> Node for FnNode<F>
where
    F: Fn(u8, &mut dyn Any, &mut Cx<'_>) -> Result<(), Failure> + Send + Sync,
{
    fn process(&mut self, port: u8, item: &mut dyn Any, cx: &mut Cx<'_>) -> Result<(), Failure> {
        (self.0)(port, item, cx)
    }
}

/// Adds a node that keeps nothing.
fn add_fn<F>(
    graph: &Shared,
    name: &str,
    label: &'static str,
    kind: NodeKind,
    stores: Vec<usize>,
    run: F,
) -> usize
where
    F: Fn(u8, &mut dyn Any, &mut Cx<'_>) -> Result<(), Failure> + Send + Sync + 'static,
{
    let run = Arc::new(run);
    graph.borrow_mut().add(name, label, kind, stores, Arc::new(move || Box::new(FnNode(run.clone()))))
}

/// A source node, as a stream.
fn source<K: Clone + 'static, V: Clone + 'static>(
    graph: &Shared,
    topic: &str,
    repartition: bool,
    keys: SharedCodec<K>,
    values: SharedCodec<V>,
    timestamps: Option<Timestamps>,
) -> Stream<K, V> {
    let kind = NodeKind::Source { topic: topic.to_owned(), repartition, table: None, timestamps };
    let (key_codec, value_codec) = (keys.clone(), values.clone());
    let node = add_fn(graph, &format!("{topic} (source)"), "source", kind, Vec::new(), move |_, item, cx| {
        let (raw, timestamp) = taken_raw(item);
        let fault = |part, error| Failure::Decode(format!("{part}: {error}"));
        let key = decoded(&*key_codec, raw.key.as_deref()).map_err(|error| fault("key", error))?;
        let value = decoded(&*value_codec, raw.value.as_deref()).map_err(|error| fault("value", error))?;
        cx.forward(0, Record { key, value, timestamp, headers: raw.headers })
    });
    Stream { graph: graph.clone(), node, port: 0, keys: Some(keys), values: Some(values), key_changed: false }
}

/// Takes what a source node is given.
fn taken_raw(item: &mut dyn Any) -> (RawRecord, i64) {
    item.downcast_mut::<Option<(RawRecord, i64)>>()
        .and_then(Option::take)
        .expect("the task gives source nodes raw records, once each")
}

/// Reports a mistake.
fn report(graph: &Shared, error: TopologyError) {
    graph.borrow_mut().errors.push(error);
}

/// Whether two parts belong to one topology; reports it when not.
fn same(left: &Shared, right: &Shared, node: &str) -> bool {
    let same = Rc::ptr_eq(left, right);
    if !same {
        report(left, TopologyError::ForeignStream { node: node.to_owned() });
    }
    same
}
