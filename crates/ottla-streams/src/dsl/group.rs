//! Aggregations: a result per key, per key and window, or per key and session.
//!
//! Each has a store of the given name. A result carries the highest timestamp of its records.

use std::sync::Arc;

use super::session_node::{Merge, SessionNode};
use super::table::of_store;
use super::window_node::{Add, WindowNode};
use super::windows::{SessionWindows, TimeWindows, Windowed, WindowedCodec};
use super::{Shared, Stream, Table, add_fn, kv_store, session_store, window_store};
use crate::codec::{Codec, I64, SharedCodec};
use crate::processor::Record;
use crate::store::{AnyStore, Layout};
use crate::task::Node;
use crate::task::node::taken;
use crate::topology::graph::NodeKind;

/// A codec for a node that is not run, since the topology has a mistake: any will do.
struct Never;

impl<T: 'static> Codec<T> for Never {
    fn encode(&self, _value: &T, _out: &mut Vec<u8>) -> Result<(), crate::codec::CodecError> {
        Ok(())
    }
    fn decode(&self, _bytes: &[u8]) -> Result<T, crate::codec::CodecError> {
        Err(crate::codec::CodecError::new("never", "the topology has a mistake"))
    }
}

/// The codec of the stream's keys; a mistake is reported and another stands in, as the topology is not built then.
fn keys_of<K: Clone + 'static, V: Clone + 'static>(stream: &Stream<K, V>, name: &str) -> SharedCodec<K> {
    stream.keyed(name).unwrap_or_else(|| Arc::new(Never))
}

fn values_of<K: Clone + 'static, V: Clone + 'static>(stream: &Stream<K, V>, name: &str) -> SharedCodec<V> {
    let codecs = if stream.key_changed { None } else { stream.codecs(name) };
    codecs.map_or_else(|| Arc::new(Never) as SharedCodec<V>, |(_, values)| values)
}

/// Counts.
fn counting<K, V>() -> Add<K, V, i64> {
    Arc::new(|count, _| count.unwrap_or(0).saturating_add(1))
}

/// Joins values of one type.
fn reducing<K: 'static, V: Clone + 'static>(reduce: Arc<dyn Fn(V, V) -> V + Send + Sync>) -> Add<K, V, V> {
    Arc::new(move |before, record: &Record<K, V>| match before {
        Some(before) => reduce(before, record.value.clone()),
        None => record.value.clone(),
    })
}

/// Folds records into a result.
fn folding<K: 'static, V: 'static, A: 'static>(
    first: impl Fn() -> A + Send + Sync + 'static,
    add: impl Fn(A, &Record<K, V>) -> A + Send + Sync + 'static,
) -> Add<K, V, A> {
    Arc::new(move |before, record: &Record<K, V>| add(before.unwrap_or_else(&first), record))
}

/// A stream whose records are gathered by key. Records whose key is null are left out and counted.
pub struct Grouped<K, V> {
    pub(super) stream: Stream<K, V>,
}

impl<K: Clone + 'static, V: Clone + 'static> Grouped<K, V> {
    /// How many records each key has had.
    ///
    /// ```
    /// # use ottla_streams::{codec::{NoKey, Utf8}, topology::Topology};
    /// Topology::new("words", |b| {
    ///     let lines = b.stream("lines", NoKey, Utf8);
    ///     let words = lines.flat_map_values(|_, line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    ///     words.values_as(Utf8).key_by("by-word", Utf8, |r| r.value.clone()).group().count("counts").to("counts");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn count(&self, name: &str) -> Table<K, i64> {
        self.table(name, Arc::new(I64), counting())
    }

    /// The values of each key, joined one after another; the first is taken as it is.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| b.stream("in", Utf8, I64).group().reduce("largest", i64::max).to("out"))?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn reduce(&self, name: &str, reduce: impl Fn(V, V) -> V + Send + Sync + 'static) -> Table<K, V> {
        self.table(name, values_of(&self.stream, name), reducing(Arc::new(reduce)))
    }

    /// The records of each key, folded into a result that begins with `first`. A result that is null in its codec
    /// deletes the key.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Json, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let spans = b.stream("in", Utf8, I64).group().aggregate(
    ///         "span",
    ///         Json::<(i64, i64)>::new(),
    ///         || (i64::MAX, i64::MIN),
    ///         |(low, high), r| (low.min(r.value), high.max(r.value)),
    ///     );
    ///     spans.to("spans");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn aggregate<A: Clone + 'static>(
        &self,
        name: &str,
        codec: impl Codec<A>,
        first: impl Fn() -> A + Send + Sync + 'static,
        add: impl Fn(A, &Record<K, V>) -> A + Send + Sync + 'static,
    ) -> Table<K, A> {
        self.table(name, Arc::new(codec), folding(first, add))
    }

    fn table<A: Clone + 'static>(
        &self,
        name: &str,
        values: SharedCodec<A>,
        add: Add<K, V, A>,
    ) -> Table<K, A> {
        let graph = &self.stream.graph;
        let keys = keys_of(&self.stream, name);
        let store = kv_store(graph, name, (keys.clone(), values.clone()), None, true);
        let (inner, key_codec, value_codec) = (store.clone(), keys.clone(), values.clone());
        let run = move |_, item: &mut dyn std::any::Any, cx: &mut crate::task::node::Cx<'_>| {
            let record = taken::<K, V>(item);
            if key_codec.is_null(&record.key) {
                cx.core.metrics.null_keys += 1;
                return Ok(());
            }
            let before = inner.find(cx.core, &record.key)?;
            let timestamp =
                before.as_ref().map_or(record.timestamp, |(_, time)| (*time).max(record.timestamp));
            let value = add(before.map(|(value, _)| value), &record);
            inner.write(cx.core, &record.key, Some(&value), timestamp)?;
            let value = (!value_codec.is_null(&value)).then_some(value);
            let Record { key, headers, .. } = record;
            cx.forward(0, Record { key, value, timestamp, headers })
        };
        let node = add_fn(graph, name, "aggregate", NodeKind::Operator, vec![store.place()], run);
        self.stream.feed(node, 0);
        of_store(graph, node, store, (keys, values))
    }
}

/// A stream whose records are gathered by key and window.
pub struct WindowStream<K, V> {
    pub(super) stream: Stream<K, V>,
    pub(super) windows: TimeWindows,
}

impl<K: Clone + 'static, V: Clone + 'static> WindowStream<K, V> {
    /// How many records each window of each key has.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, dsl::Tumbling, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     let minutes = b.stream("in", Utf8, Utf8).window(Tumbling::of(Duration::from_secs(60)));
    ///     minutes.count("per-minute").changes().to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn count(&self, name: &str) -> WindowTable<K, i64> {
        self.table(name, Arc::new(I64), counting())
    }

    /// The values of each window of each key, joined one after another.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, dsl::Tumbling, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     let minutes = b.stream("in", Utf8, I64).window(Tumbling::of(Duration::from_secs(60)));
    ///     minutes.reduce("highest", i64::max).emit_on_close().to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn reduce(
        &self,
        name: &str,
        reduce: impl Fn(V, V) -> V + Send + Sync + 'static,
    ) -> WindowTable<K, V> {
        self.table(name, values_of(&self.stream, name), reducing(Arc::new(reduce)))
    }

    /// The records of each window of each key, folded into a result that begins with `first`.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, dsl::Tumbling, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     let minutes = b.stream("in", Utf8, I64).window(Tumbling::of(Duration::from_secs(60)));
    ///     minutes.aggregate("sums", I64, || 0, |sum, r| sum + r.value).emit_on_close().to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn aggregate<A: Clone + 'static>(
        &self,
        name: &str,
        codec: impl Codec<A>,
        first: impl Fn() -> A + Send + Sync + 'static,
        add: impl Fn(A, &Record<K, V>) -> A + Send + Sync + 'static,
    ) -> WindowTable<K, A> {
        self.table(name, Arc::new(codec), folding(first, add))
    }

    fn table<A: Clone + 'static>(
        &self,
        name: &str,
        values: SharedCodec<A>,
        add: Add<K, V, A>,
    ) -> WindowTable<K, A> {
        let graph = &self.stream.graph;
        let keys = keys_of(&self.stream, name);
        let spans = self.windows.checked(graph, name);
        let layout = Layout::Starts { every_ms: spans.advance_ms };
        let codecs = (keys.clone(), values.clone());
        let store = window_store(graph, name, codecs, spans.retention_ms, layout, true);
        let place = store.place();
        let codec = WindowedCodec { key: keys.clone(), size_ms: Some(spans.size_ms) };
        let factory = Arc::new(move || {
            let (store, keys, add) = (store.clone(), keys.clone(), add.clone());
            Box::new(WindowNode { store, keys, spans, add }) as Box<dyn Node>
        });
        let node = graph.borrow_mut().add(name, "window aggregate", NodeKind::Operator, vec![place], factory);
        self.stream.feed(node, 0);
        WindowTable { graph: graph.clone(), node, keys: Arc::new(codec), values }
    }
}

/// A stream whose records are gathered by key and session.
pub struct SessionStream<K, V> {
    pub(super) stream: Stream<K, V>,
    pub(super) windows: SessionWindows,
}

impl<K: Clone + 'static, V: Clone + 'static> SessionStream<K, V> {
    /// How many records each session of each key has.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, dsl::SessionWindows, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     let visits = b.stream("in", Utf8, Utf8).sessions(SessionWindows::gap(Duration::from_secs(60)));
    ///     visits.count("clicks").emit_on_close().to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn count(&self, name: &str) -> WindowTable<K, i64> {
        self.table(name, Arc::new(I64), counting(), Arc::new(i64::saturating_add))
    }

    /// The values of each session of each key, joined one after another.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, dsl::SessionWindows, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     let visits = b.stream("in", Utf8, I64).sessions(SessionWindows::gap(Duration::from_secs(60)));
    ///     visits.reduce("highest", i64::max).emit_on_close().to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn reduce(
        &self,
        name: &str,
        reduce: impl Fn(V, V) -> V + Send + Sync + 'static,
    ) -> WindowTable<K, V> {
        let reduce: Arc<dyn Fn(V, V) -> V + Send + Sync> = Arc::new(reduce);
        self.table(name, values_of(&self.stream, name), reducing(reduce.clone()), reduce)
    }

    /// The records of each session of each key, folded into a result that begins with `first`; `merge` joins the
    /// results of two sessions, the earlier one first, when a record brings them together.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ottla_streams::{codec::{Json, Utf8}, dsl::SessionWindows, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let visits = b.stream("pages", Utf8, Utf8).sessions(SessionWindows::gap(Duration::from_secs(1800)));
    ///     let paths = visits.aggregate("paths", Json::<Vec<String>>::new(), Vec::new, |mut path, r| {
    ///         path.push(r.value.clone());
    ///         path
    ///     }, |one, two| [one, two].concat());
    ///     paths.emit_on_close().to("visits");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn aggregate<A: Clone + 'static>(
        &self,
        name: &str,
        codec: impl Codec<A>,
        first: impl Fn() -> A + Send + Sync + 'static,
        add: impl Fn(A, &Record<K, V>) -> A + Send + Sync + 'static,
        merge: impl Fn(A, A) -> A + Send + Sync + 'static,
    ) -> WindowTable<K, A> {
        self.table(name, Arc::new(codec), folding(first, add), Arc::new(merge))
    }

    fn table<A: Clone + 'static>(
        &self,
        name: &str,
        values: SharedCodec<A>,
        add: Add<K, V, A>,
        merge: Merge<A>,
    ) -> WindowTable<K, A> {
        let graph = &self.stream.graph;
        let keys = keys_of(&self.stream, name);
        let spans = self.windows.checked(graph, name);
        let store = session_store(graph, name, (keys.clone(), values.clone()), spans.retention_ms);
        let place = store.place();
        let codec = WindowedCodec { key: keys.clone(), size_ms: None };
        let factory = Arc::new(move || {
            let (store, keys, add, merge) = (store.clone(), keys.clone(), add.clone(), merge.clone());
            Box::new(SessionNode { store, keys, spans, add, merge, nothing_before: None }) as Box<dyn Node>
        });
        let node =
            graph.borrow_mut().add(name, "session aggregate", NodeKind::Operator, vec![place], factory);
        self.stream.feed(node, 0);
        WindowTable { graph: graph.clone(), node, keys: Arc::new(codec), values }
    }
}

/// Results by key and window (or session). Names a place in the topology; use it as often as needed.
pub struct WindowTable<K, A> {
    graph: Shared,
    node: usize,
    keys: SharedCodec<Windowed<K>>,
    values: SharedCodec<A>,
}

impl<K, A> Clone for WindowTable<K, A> {
    fn clone(&self) -> Self {
        let (graph, keys, values) = (self.graph.clone(), self.keys.clone(), self.values.clone());
        Self { graph, node: self.node, keys, values }
    }
}

impl<K: Clone + 'static, A: Clone + 'static> WindowTable<K, A> {
    /// Each new result, as often as it changes. Of sessions that grew, the old bounds are not told.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, dsl::Tumbling, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     let minutes = b.stream("in", Utf8, Utf8).window(Tumbling::of(Duration::from_secs(60)));
    ///     minutes.count("per-minute").changes().filter(|r| r.value > 100).to("busy");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn changes(&self) -> Stream<Windowed<K>, A> {
        let changes = self.changes_with_deletes().step("changes", |record: Record<_, Option<A>>, cx| {
            let Record { key, value: Some(value), timestamp, headers } = record else { return Ok(()) };
            cx.forward(0, Record { key, value, timestamp, headers })
        });
        Stream { keys: Some(self.keys.clone()), values: Some(self.values.clone()), ..changes }
    }

    /// Each new result; `None` when a session is gone under its old bounds because it grew.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, dsl::SessionWindows, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     let visits = b.stream("in", Utf8, Utf8).sessions(SessionWindows::gap(Duration::from_secs(60)));
    ///     visits.count("clicks").changes_with_deletes().to("visits-so-far");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn changes_with_deletes(&self) -> Stream<Windowed<K>, Option<A>> {
        let values: SharedCodec<Option<A>> = Arc::new(super::table::NullableShared(self.values.clone()));
        let (graph, keys) = (self.graph.clone(), Some(self.keys.clone()));
        Stream { graph, node: self.node, port: 0, keys, values: Some(values), key_changed: true }
    }

    /// The final result of each window, once, when stream time has reached its end and grace. A window that no
    /// record follows stays open: stream time moves with records only.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, driver::Driver, dsl::Tumbling, processor::Record, topology::Topology};
    /// # use std::time::Duration;
    /// let topology = Topology::new("app", |b| {
    ///     let minutes = b.stream("in", Utf8, Utf8).window(Tumbling::of(Duration::from_secs(60)));
    ///     let finals = minutes.count("per-minute").emit_on_close();
    ///     finals.map(|r| Record::new(r.key.key, r.value, r.timestamp)).keys_as(Utf8).values_as(I64).to("out");
    /// })?;
    /// let mut driver = Driver::new(topology);
    /// driver.pipe("in", "a", "x")?;
    /// driver.pipe("in", "a", "y")?;
    /// assert!(driver.read("out")?.is_empty(), "the minute is not over");
    /// driver.advance(Duration::from_secs(61))?;
    /// driver.pipe("in", "b", "z")?; // moves stream time on
    /// assert_eq!(driver.read_as("out", &Utf8, &I64)?, [("a".to_owned(), 2)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn emit_on_close(&self) -> Stream<Windowed<K>, A> {
        let (graph, keys, values) = (self.graph.clone(), Some(self.keys.clone()), Some(self.values.clone()));
        Stream { graph, node: self.node, port: 1, keys, values, key_changed: true }
    }
}
