//! Streams: records one after another, and the steps that need no state.

use std::sync::Arc;

use bytes::Bytes;
use ottla_client::Text;

use super::{
    Grouped, SessionStream, SessionWindows, Shared, TimeWindows, WindowStream, add_fn, report, same, source,
};
use crate::codec::{Codec, SharedCodec, encoded};
use crate::processor::{ProcessError, Processor, ProcessorNode, Record};
use crate::record::{OutputRecord, RawRecord};
use crate::store::AnyStore;
use crate::task::Failure;
use crate::task::node::{Cx, taken};
use crate::topology::TopologyError;
use crate::topology::graph::NodeKind;

/// Records one after another. A value that names a place in the topology; use it as often as needed.
pub struct Stream<K, V> {
    pub(super) graph: Shared,
    pub(super) node: usize,
    pub(super) port: u8,
    pub(super) keys: Option<SharedCodec<K>>,
    pub(super) values: Option<SharedCodec<V>>,
    /// The key may have changed since the stream was partitioned by it.
    pub(super) key_changed: bool,
}

impl<K, V> Clone for Stream<K, V> {
    fn clone(&self) -> Self {
        let (keys, values) = (self.keys.clone(), self.values.clone());
        Self { graph: self.graph.clone(), keys, values, ..*self }
    }
}

impl<K: Clone + 'static, V: Clone + 'static> Stream<K, V> {
    /// A step without state after this stream.
    pub(super) fn step<K2, V2>(
        &self,
        label: &'static str,
        run: impl Fn(Record<K, V>, &mut Cx<'_>) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Stream<K2, V2> {
        let node = add_fn(&self.graph, "", label, NodeKind::Operator, Vec::new(), move |_, item, cx| {
            run(taken::<K, V>(item), cx)
        });
        self.feed(node, 0);
        let key_changed = self.key_changed;
        Stream { graph: self.graph.clone(), node, port: 0, keys: None, values: None, key_changed }
    }

    /// Sends this stream's records to a node.
    pub(super) fn feed(&self, node: usize, in_port: u8) {
        self.graph.borrow_mut().connect(self.node, self.port, node, in_port);
    }

    /// The same keys and values.
    fn same_types(&self, mut stream: Stream<K, V>) -> Stream<K, V> {
        (stream.keys, stream.values) = (self.keys.clone(), self.values.clone());
        stream
    }

    /// Records for which the function says true.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| b.stream("in", Utf8, I64).filter(|r| r.value > 0).to("positive"))?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn filter(&self, keep: impl Fn(&Record<K, V>) -> bool + Send + Sync + 'static) -> Self {
        self.same_types(self.step("filter", move |record, cx| match keep(&record) {
            true => cx.forward(0, record),
            false => Ok(()),
        }))
    }

    /// Two streams: records for which the function says true, and the others.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let (large, small) = b.stream("in", Utf8, I64).branch(|r| r.value > 100);
    ///     large.to("large");
    ///     small.to("small");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn branch(&self, first: impl Fn(&Record<K, V>) -> bool + Send + Sync + 'static) -> (Self, Self) {
        let yes = self.same_types(self.step("branch", move |record, cx| {
            let port = if first(&record) { 0 } else { 1 };
            cx.forward(port, record)
        }));
        let no = Self { port: 1, ..yes.clone() };
        (yes, no)
    }

    /// Records of both streams, as they come. The codecs are this stream's.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let web = b.stream("web", Utf8, Utf8);
    ///     web.merge(&b.stream("shop", Utf8, Utf8)).to("all");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn merge(&self, other: &Self) -> Self {
        let mut merged = self.same_types(self.step("merge", |record, cx| cx.forward(0, record)));
        if same(&self.graph, &other.graph, "merge") {
            other.feed(merged.node, 0);
            merged.key_changed |= other.key_changed;
        }
        merged
    }

    /// Other values for the same keys.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).map_values(|_, text| text.len() as i64).values_as(I64).to("lengths");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn map_values<V2: Clone + 'static>(
        &self,
        map: impl Fn(&K, V) -> V2 + Send + Sync + 'static,
    ) -> Stream<K, V2> {
        let mut stream = self.step("map values", move |record, cx| {
            let Record { key, value, timestamp, headers } = record;
            let value = map(&key, value);
            cx.forward(0, Record { key, value, timestamp, headers })
        });
        stream.keys = self.keys.clone();
        stream
    }

    /// As [`Stream::map_values`], for functions that can fail; the policy for process errors decides then.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).try_map_values(|_, text| Ok(text.parse::<i64>()?)).values_as(I64).to("numbers");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn try_map_values<V2: Clone + 'static>(
        &self,
        map: impl Fn(&K, V) -> Result<V2, ProcessError> + Send + Sync + 'static,
    ) -> Stream<K, V2> {
        let mut stream = self.step("map values", move |record, cx| {
            let Record { key, value, timestamp, headers } = record;
            let value = map(&key, value).map_err(|error| Failure::Process(error.to_string()))?;
            cx.forward(0, Record { key, value, timestamp, headers })
        });
        stream.keys = self.keys.clone();
        stream
    }

    /// Any number of values for each record, with its key.
    ///
    /// ```
    /// # use ottla_streams::{codec::{NoKey, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let words = b.stream("lines", NoKey, Utf8).flat_map_values(|_, line| {
    ///         line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    ///     });
    ///     words.values_as(Utf8).to("words");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn flat_map_values<V2: Clone + 'static, I: IntoIterator<Item = V2>>(
        &self,
        map: impl Fn(&K, V) -> I + Send + Sync + 'static,
    ) -> Stream<K, V2> {
        let mut stream = self.step("flat map values", move |record, cx| {
            let Record { key, value, timestamp, headers } = record;
            for value in map(&key, value) {
                let (key, headers) = (key.clone(), headers.clone());
                cx.forward(0, Record { key, value, timestamp, headers })?;
            }
            Ok(())
        });
        stream.keys = self.keys.clone();
        stream
    }

    /// Another record for each record. State by key needs a [`Stream::key_by`] after it.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, processor::Record, topology::Topology};
    /// Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).map(|r| Record::new(r.value, r.key, r.timestamp)).keys_as(Utf8).values_as(Utf8).to("swapped");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn map<K2: Clone + 'static, V2: Clone + 'static>(
        &self,
        map: impl Fn(Record<K, V>) -> Record<K2, V2> + Send + Sync + 'static,
    ) -> Stream<K2, V2> {
        let mut stream = self.step("map", move |record, cx| cx.forward(0, map(record)));
        stream.key_changed = true;
        stream
    }

    /// As [`Stream::map`], for functions that can fail; the policy for process errors decides then.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let numbers = b.stream("in", Utf8, Utf8).try_map(|r| {
    ///         let number = r.value.parse::<i64>()?;
    ///         Ok(r.with_value(number))
    ///     });
    ///     numbers.keys_as(Utf8).values_as(I64).to("numbers");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn try_map<K2: Clone + 'static, V2: Clone + 'static>(
        &self,
        map: impl Fn(Record<K, V>) -> Result<Record<K2, V2>, ProcessError> + Send + Sync + 'static,
    ) -> Stream<K2, V2> {
        let mut stream = self.step("map", move |record, cx| {
            cx.forward(0, map(record).map_err(|error| Failure::Process(error.to_string()))?)
        });
        stream.key_changed = true;
        stream
    }

    /// Any number of records for each record. State by key needs a [`Stream::key_by`] after it.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| {
    ///     // Each record for its key, and for everybody.
    ///     let both = b.stream("in", Utf8, Utf8).flat_map(|r| [r.clone(), r.with_key("all".to_string())]);
    ///     both.values_as(Utf8).key_by("by-key", Utf8, |r| r.key.clone()).group().count("counts");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn flat_map<K2: Clone + 'static, V2: Clone + 'static, I: IntoIterator<Item = Record<K2, V2>>>(
        &self,
        map: impl Fn(Record<K, V>) -> I + Send + Sync + 'static,
    ) -> Stream<K2, V2> {
        let mut stream = self.step("flat map", move |record, cx| {
            map(record).into_iter().try_for_each(|record| cx.forward(0, record))
        });
        stream.key_changed = true;
        stream
    }

    /// Shows each record to a function.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| b.stream("in", Utf8, Utf8).peek(|r| assert!(!r.key.is_empty())).to("out"))?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn peek(&self, look: impl Fn(&Record<K, V>) + Send + Sync + 'static) -> Self {
        self.same_types(self.step("peek", move |record, cx| {
            look(&record);
            cx.forward(0, record)
        }))
    }

    /// Tells the codec of the keys, after a step that changed their type.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).map(|r| r.with_key(7)).keys_as(I64).values_as(Utf8).to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn keys_as(&self, codec: impl Codec<K>) -> Self {
        Self { keys: Some(Arc::new(codec)), ..self.clone() }
    }

    /// Tells the codec of the values, after a step that changed their type.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| b.stream("in", Utf8, Utf8).map_values(|_, _| 1).values_as(I64).to("ones"))?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn values_as(&self, codec: impl Codec<V>) -> Self {
        Self { values: Some(Arc::new(codec)), ..self.clone() }
    }

    /// Says that the key is as good as before for partitioning, although a step may have changed it.
    ///
    /// ```
    /// # use ottla_streams::{codec::{I64, Utf8}, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let same_key = b.stream("in", Utf8, Utf8).map(|r| r.with_value(1)).keep_partitioning();
    ///     same_key.keys_as(Utf8).values_as(I64).group().reduce("sums", |one, two| one + two);
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn keep_partitioning(&self) -> Self {
        Self { key_changed: false, ..self.clone() }
    }

    /// Gives records new keys and sends them to the tasks of these keys, through the topic
    /// `application.name.repartition`.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// let topology = Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).key_by("by-value", Utf8, |r| r.value.clone()).group().count("counts");
    /// })?;
    /// assert_eq!(topology.internal_topics()[0].name, "app.by-value.repartition");
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn key_by<K2: Clone + 'static>(
        &self,
        name: &str,
        codec: impl Codec<K2>,
        key: impl Fn(&Record<K, V>) -> K2 + Send + Sync + 'static,
    ) -> Stream<K2, V> {
        let mut keyed: Stream<K2, V> = self.step("key", move |record, cx| {
            let key = key(&record);
            cx.forward(0, record.with_key(key))
        });
        keyed.keys = Some(Arc::new(codec));
        keyed.values = self.values.clone();
        keyed.repartition(name)
    }

    /// Sends records to the tasks of their keys, through the topic `application.name.repartition`.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, processor::Record, topology::Topology};
    /// let topology = Topology::new("app", |b| {
    ///     let swapped = b.stream("in", Utf8, Utf8).map(|r| Record::new(r.value, r.key, r.timestamp));
    ///     swapped.keys_as(Utf8).values_as(Utf8).repartition("by-value").group().count("counts");
    /// })?;
    /// assert_eq!(topology.sub_topologies().len(), 2);
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn repartition(&self, name: &str) -> Self {
        let topic = self.graph.borrow().repartition_topic(name);
        self.over(&topic, name, true)
    }

    /// Writes to a topic, and goes on with what is read from it. The topic is yours: it must exist.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// let topology = Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).through("middle").to("out");
    /// })?;
    /// assert_eq!(topology.sub_topologies().len(), 2);
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn through(&self, topic: &str) -> Self {
        self.over(topic, topic, false)
    }

    fn over(&self, topic: &str, name: &str, repartition: bool) -> Self {
        let Some((keys, values)) = self.codecs(name) else { return self.clone() };
        self.sink(topic, keys.clone(), values.clone());
        source(&self.graph, topic, repartition, keys, values, None)
    }

    /// Writes to a topic, by key.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| b.stream("in", Utf8, Utf8).to("copy"))?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn to(&self, topic: &str) {
        if let Some((keys, values)) = self.codecs(topic) {
            self.sink(topic, keys, values);
        }
    }

    /// Both codecs; reports the one that is not known.
    pub(super) fn codecs(&self, node: &str) -> Option<(SharedCodec<K>, SharedCodec<V>)> {
        let missing = |what, call| TopologyError::MissingCodec { node: node.to_owned(), what, call };
        match (&self.keys, &self.values) {
            (Some(keys), Some(values)) => return Some((keys.clone(), values.clone())),
            (None, _) => report(&self.graph, missing("keys", "keys_as")),
            (_, None) => report(&self.graph, missing("values", "values_as")),
        }
        None
    }

    /// The codec of the keys, for state by key; reports what is wrong.
    pub(super) fn keyed(&self, node: &str) -> Option<SharedCodec<K>> {
        if self.key_changed {
            report(&self.graph, TopologyError::KeyChanged { node: node.to_owned() });
        } else if let Some(keys) = &self.keys {
            return Some(keys.clone());
        } else {
            let (what, call) = ("keys", "keys_as");
            report(&self.graph, TopologyError::MissingCodec { node: node.to_owned(), what, call });
        }
        None
    }

    fn sink(&self, topic: &str, keys: SharedCodec<K>, values: SharedCodec<V>) {
        let kind = NodeKind::Sink { topic: topic.to_owned() };
        let to = Text::from(topic);
        let node = add_fn(&self.graph, "", "sink", kind, Vec::new(), move |_, item, cx| {
            let Record { key, value, timestamp, headers } = taken::<K, V>(item);
            let fault = |error| Failure::Encode(format!("{to}: {error}"));
            let key = encoded(&*keys, &key).map_err(fault)?;
            let value = encoded(&*values, &value).map_err(fault)?;
            write(cx, &to, key, value, timestamp, headers)
        });
        self.feed(node, 0);
    }

    /// Code of yours with stores and timers; `make` is called for each task and after each rollback. What it forwards
    /// may have other keys, so state by key needs a [`Stream::key_by`] or [`Stream::keep_partitioning`] after it.
    /// See [`Processor`].
    ///
    /// ```
    /// use ottla_streams::processor::{Context, ProcessError, Processor, Record};
    /// # use ottla_streams::{codec::Utf8, driver::Driver, topology::Topology};
    ///
    /// /// Says each word twice.
    /// struct Echo;
    ///
    /// impl Processor for Echo {
    ///     type KeyIn = String;
    ///     type In = String;
    ///     type KeyOut = String;
    ///     type Out = String;
    ///
    ///     fn process(&mut self, r: Record<String, String>, cx: &mut Context<'_, String, String>) -> Result<(), ProcessError> {
    ///         cx.forward(r.clone())?;
    ///         cx.forward(r)
    ///     }
    /// }
    ///
    /// let topology = Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).process("echo", &[], || Echo).keys_as(Utf8).values_as(Utf8).to("out");
    /// })?;
    /// let mut driver = Driver::new(topology);
    /// driver.pipe("in", "k", "hello")?;
    /// assert_eq!(driver.read("out")?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn process<P>(
        &self,
        name: &str,
        stores: &[&dyn AnyStore],
        make: impl Fn() -> P + Send + Sync + 'static,
    ) -> Stream<P::KeyOut, P::Out>
    where
        P: Processor<KeyIn = K, In = V>,
    {
        let mut places = Vec::new();
        for store in stores {
            let known =
                self.graph.borrow().stores.get(store.place()).is_some_and(|def| def.name == store.name());
            if known {
                places.push(store.place());
            } else {
                let (node, store) = (name.to_owned(), store.name().to_owned());
                report(&self.graph, TopologyError::UnknownStore { node, store });
            }
        }
        if !places.is_empty() && self.key_changed {
            report(&self.graph, TopologyError::KeyChanged { node: name.to_owned() });
        }
        let factory = Arc::new(move || Box::new(ProcessorNode(make())) as Box<dyn crate::task::Node>);
        let node = self.graph.borrow_mut().add(name, "process", NodeKind::Operator, places, factory);
        self.feed(node, 0);
        Stream { graph: self.graph.clone(), node, port: 0, keys: None, values: None, key_changed: true }
    }

    /// State by key.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// Topology::new("app", |b| drop(b.stream("in", Utf8, Utf8).group().count("counts")))?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn group(&self) -> Grouped<K, V> {
        Grouped { stream: self.clone() }
    }

    /// State by key and window.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, dsl::Tumbling, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).window(Tumbling::of(Duration::from_secs(60))).count("per-minute");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn window(&self, windows: TimeWindows) -> WindowStream<K, V> {
        WindowStream { stream: self.clone(), windows }
    }

    /// State by key and session.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, dsl::SessionWindows, topology::Topology};
    /// # use std::time::Duration;
    /// Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).sessions(SessionWindows::gap(Duration::from_secs(60))).count("visits");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn sessions(&self, windows: SessionWindows) -> SessionStream<K, V> {
        SessionStream { stream: self.clone(), windows }
    }
}

/// Emits a record for a topic.
pub(super) fn write(
    cx: &mut Cx<'_>,
    topic: &Text,
    key: Option<Bytes>,
    value: Option<Bytes>,
    timestamp: i64,
    headers: Vec<ottla_client::Header>,
) -> Result<(), Failure> {
    if cx.core.starting {
        return Err(Failure::Process("nothing can be written in init".to_owned()));
    }
    let record = RawRecord { key, value, timestamp, headers };
    cx.core.output(OutputRecord { topic: topic.clone(), partition: None, record });
    Ok(())
}
