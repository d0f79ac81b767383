//! Joins: a stream with a table, and two streams within a span of time.
//!
//! A stream record looks the table up as it is when the record is taken; tasks take records in the order of their
//! timestamps, as far as they are there. Two streams keep their records for as long as partners may come, each in a
//! window store.

use std::sync::Arc;

use super::join_node::{JoinNode, Side};
use super::windows::{JoinSpans, JoinWindow};
use super::{Shared, Stream, Table, add_fn, kv_store, same, window_store};
use crate::codec::{Bytes as RawBytes, SharedCodec};
use crate::processor::Record;
use crate::store::{AnyStore, Layout};
use crate::task::node::taken;
use crate::task::{Failure, Node};
use crate::topology::graph::NodeKind;

impl<K: Clone + 'static, V: Clone + 'static> Stream<K, V> {
    /// Each record with the table's value of its key; records without one are left out.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let names = b.table("customers", "names", Utf8, Utf8);
    ///     b.stream("orders", Utf8, Utf8).join(&names, |order, name| format!("{order} of {name}")).values_as(Utf8).to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn join<T, R>(
        &self,
        table: &Table<K, T>,
        join: impl Fn(V, T) -> R + Send + Sync + 'static,
    ) -> Stream<K, R>
    where
        T: Clone + 'static,
        R: Clone + 'static,
    {
        self.with_table(table, move |value, found| found.map(|found| join(value, found)))
    }

    /// Each record with the table's value of its key, if there is one.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let names = b.table("customers", "names", Utf8, Utf8);
    ///     let named = b.stream("orders", Utf8, Utf8).left_join(&names, |order, name| {
    ///         format!("{order} of {}", name.unwrap_or_else(|| "somebody".into()))
    ///     });
    ///     named.values_as(Utf8).to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn left_join<T, R>(
        &self,
        table: &Table<K, T>,
        join: impl Fn(V, Option<T>) -> R + Send + Sync + 'static,
    ) -> Stream<K, R>
    where
        T: Clone + 'static,
        R: Clone + 'static,
    {
        self.with_table(table, move |value, found| Some(join(value, found)))
    }

    fn with_table<T, R>(
        &self,
        table: &Table<K, T>,
        join: impl Fn(V, Option<T>) -> Option<R> + Send + Sync + 'static,
    ) -> Stream<K, R>
    where
        T: Clone + 'static,
        R: Clone + 'static,
    {
        let name = "join with a table";
        let keys = self.keyed(name);
        let mine = same(&self.graph, &table.graph, name);
        let (lookup, key_codec) = (table.lookup.clone(), keys.clone());
        let stores = if mine { vec![table.store] } else { Vec::new() };
        let run = move |_, item: &mut dyn std::any::Any, cx: &mut crate::task::node::Cx<'_>| {
            let Record { key, value, timestamp, headers } = taken::<K, V>(item);
            let no_key = key_codec.as_ref().is_some_and(|codec| codec.is_null(&key));
            let found = if no_key { None } else { lookup(cx.core, &key).map_err(Failure::from)? };
            match join(value, found) {
                Some(value) => cx.forward(0, Record { key, value, timestamp, headers }),
                None => {
                    cx.core.metrics.null_keys += u64::from(no_key);
                    Ok(())
                }
            }
        };
        let node = add_fn(&self.graph, "", "table join", NodeKind::Operator, stores, run);
        self.feed(node, 0);
        Stream { graph: self.graph.clone(), node, port: 0, keys, values: None, key_changed: self.key_changed }
    }

    /// Each pair of records with the same key whose timestamps are within a span, as soon as both are there. The
    /// name is that of the stores: `name.left` and `name.right`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ottla_streams::{codec::Utf8, dsl::JoinWindow, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let views = b.stream("views", Utf8, Utf8);
    ///     let clicks = b.stream("clicks", Utf8, Utf8);
    ///     let pairs = views.join_stream("view-click", &clicks, JoinWindow::within(Duration::from_secs(10)), |view, click| {
    ///         format!("{view} then {click}")
    ///     });
    ///     pairs.values_as(Utf8).to("pairs");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn join_stream<W, R>(
        &self,
        name: &str,
        other: &Stream<K, W>,
        window: JoinWindow,
        join: impl Fn(&V, &W) -> R + Send + Sync + 'static,
    ) -> Stream<K, R>
    where
        W: Clone + 'static,
        R: Clone + 'static,
    {
        let join = move |left: Option<&V>, right: Option<&W>| Some(join(left?, right?));
        self.with_stream(name, other, window, (false, false), Arc::new(join))
    }

    /// As [`Stream::join_stream`], and each record of this stream that found no partner, alone, once its window and
    /// grace have passed in stream time. The stores are `name.left`, `name.right` and `name.alone`.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, driver::Driver, dsl::JoinWindow, topology::Topology};
    /// # use std::time::Duration;
    /// let topology = Topology::new("app", |b| {
    ///     let (orders, payments) = (b.stream("orders", Utf8, Utf8), b.stream("payments", Utf8, Utf8));
    ///     let within = JoinWindow::within(Duration::from_secs(60));
    ///     let checked = orders.left_join_stream("paid", &payments, within, |order, payment| match payment {
    ///         Some(payment) => format!("{order} paid by {payment}"),
    ///         None => format!("{order} not paid"),
    ///     });
    ///     checked.values_as(Utf8).to("out");
    /// })?;
    /// let mut driver = Driver::new(topology);
    /// driver.pipe("orders", "1", "lamp")?;
    /// driver.pipe("payments", "1", "card")?;
    /// driver.pipe("orders", "2", "desk")?;
    /// driver.run()?;
    /// driver.advance(Duration::from_secs(61))?;
    /// driver.pipe("payments", "3", "card")?; // moves stream time on
    /// let out: Vec<String> = driver.read_as("out", &Utf8, &Utf8)?.into_iter().map(|pair| pair.1).collect();
    /// assert_eq!(out, ["lamp paid by card", "desk not paid"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn left_join_stream<W, R>(
        &self,
        name: &str,
        other: &Stream<K, W>,
        window: JoinWindow,
        join: impl Fn(&V, Option<&W>) -> R + Send + Sync + 'static,
    ) -> Stream<K, R>
    where
        W: Clone + 'static,
        R: Clone + 'static,
    {
        let join = move |left: Option<&V>, right: Option<&W>| Some(join(left?, right));
        self.with_stream(name, other, window, (true, false), Arc::new(join))
    }

    /// As [`Stream::join_stream`], and each record of either stream that found no partner, alone, once its window
    /// and grace have passed in stream time. The stores are `name.left`, `name.right` and `name.alone`.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, dsl::JoinWindow, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     let (left, right) = (b.stream("left", Utf8, Utf8), b.stream("right", Utf8, Utf8));
    ///     let within = JoinWindow::within(Duration::from_secs(60));
    ///     let both = left.outer_join_stream("pairs", &right, within, |left, right| format!("{left:?} {right:?}"));
    ///     both.values_as(Utf8).to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn outer_join_stream<W, R>(
        &self,
        name: &str,
        other: &Stream<K, W>,
        window: JoinWindow,
        join: impl Fn(Option<&V>, Option<&W>) -> R + Send + Sync + 'static,
    ) -> Stream<K, R>
    where
        W: Clone + 'static,
        R: Clone + 'static,
    {
        self.with_stream(
            name,
            other,
            window,
            (true, true),
            Arc::new(move |left, right| Some(join(left, right))),
        )
    }

    fn with_stream<W, R>(
        &self,
        name: &str,
        other: &Stream<K, W>,
        window: JoinWindow,
        alone: (bool, bool),
        join: super::join_node::Join<V, W, R>,
    ) -> Stream<K, R>
    where
        W: Clone + 'static,
        R: Clone + 'static,
    {
        let graph = &self.graph;
        let spans = window.checked(graph, name);
        let keys = self.keyed(name).zip(other.keyed(name)).map(|(keys, _)| keys);
        let nothing = Stream {
            graph: graph.clone(),
            node: self.node,
            port: u8::MAX,
            keys: self.keys.clone(),
            values: None,
            key_changed: false,
        };
        let (Some(keys), Some((_, left)), Some((_, right)), true) =
            (keys, self.codecs(name), other.codecs(name), same(graph, &other.graph, name))
        else {
            return nothing;
        };
        let left = side(graph, &format!("{name}.left"), (keys.clone(), left), spans);
        let right = side(graph, &format!("{name}.right"), (keys.clone(), right), spans);
        let mut places = vec![left.place(), right.place()];
        let waiting = (alone.0 || alone.1).then(|| {
            let raw: SharedCodec<bytes::Bytes> = Arc::new(RawBytes);
            let store = kv_store(graph, &format!("{name}.alone"), (raw.clone(), raw), None, false);
            places.push(store.place());
            store
        });
        let codec = keys.clone();
        let factory = Arc::new(move || {
            Box::new(JoinNode {
                keys: codec.clone(),
                left: Side { store: left.clone(), alone: alone.0 },
                right: Side { store: right.clone(), alone: alone.1 },
                waiting: waiting.clone(),
                spans,
                join: join.clone(),
                nothing_before: None,
            }) as Box<dyn Node>
        });
        let node = graph.borrow_mut().add(name, "stream join", NodeKind::Operator, places, factory);
        self.feed(node, 0);
        other.feed(node, 1);
        Stream { graph: graph.clone(), node, port: 0, keys: Some(keys), values: None, key_changed: false }
    }
}

/// The store of one side's records.
fn side<K: 'static, V: 'static>(
    graph: &Shared,
    name: &str,
    codecs: super::Codecs<K, V>,
    spans: JoinSpans,
) -> crate::store::WindowStore<K, V> {
    let span = spans.before_ms.saturating_add(spans.after_ms);
    // A record is needed until partners in its span would be late; it is gone when it lies that far behind.
    let retention_ms = span.saturating_add(spans.grace_ms).saturating_add(1);
    let layout = Layout::Buckets { bucket_ms: (span / 2).max(1), duplicates: true };
    window_store(graph, name, codecs, retention_ms, layout, false)
}
