//! What is refused when a topology is built, how it is cut, and what its fingerprint and plan say.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::codec::{I64, Json, Utf8};
use crate::dsl::{JoinWindow, Tumbling};
use crate::processor::{Context, ProcessError, Processor, Record};
use crate::state::StoreKind;
use crate::store::KvStore;

struct Pass;

impl Processor for Pass {
    type KeyIn = String;
    type In = String;
    type KeyOut = String;
    type Out = String;

    fn process(
        &mut self,
        r: Record<String, String>,
        cx: &mut Context<'_, String, String>,
    ) -> Result<(), ProcessError> {
        cx.forward(r)
    }
}

fn error(fill: impl FnOnce(&Builder)) -> TopologyError {
    Topology::new("app", fill).expect_err("it has a mistake")
}

/// Proves that names are checked: empty, strange, too long, twice, and topics that are read twice.
#[test]
fn names() {
    let named = |name: &str| Topology::new(name, |b| b.stream("in", Utf8, Utf8).to("out")).err();
    assert!(named("app-1.x_y").is_none());
    for bad in ["", ".", "..", "a b", "ü", &"x".repeat(101)] {
        assert!(matches!(named(bad), Some(TopologyError::BadName { name, .. }) if name == bad));
    }
    let bad_store = error(|b| drop(b.stream("in", Utf8, Utf8).group().count("a/b")));
    assert!(matches!(bad_store, TopologyError::BadName { name, .. } if name == "a/b"));
    let long = "x".repeat(240);
    assert!(matches!(
        error(|b| b.stream("in", Utf8, Utf8).repartition(&long).to("out")),
        TopologyError::BadName { .. }
    ));
    let twice = error(|b| {
        let stream = b.stream("in", Utf8, Utf8);
        stream.group().count("same");
        stream.group().count("same");
    });
    assert_eq!(twice, TopologyError::DuplicateName { name: "same".to_owned() });
    let repartitions = error(|b| {
        let stream = b.stream("in", Utf8, Utf8);
        stream.repartition("same").to("a");
        stream.repartition("same").to("b");
    });
    assert!(matches!(repartitions, TopologyError::DuplicateName { name } if name.contains("same")));
    let read_twice = error(|b| {
        b.stream("in", Utf8, Utf8).to("a");
        b.table("in", "t", Utf8, Utf8).to("b");
    });
    assert_eq!(read_twice, TopologyError::DuplicateSource { topic: "in".to_owned() });
    assert_eq!(error(|_| ()), TopologyError::Empty);
}

/// Proves that stores and streams of another builder are refused by name.
#[test]
fn strangers() {
    let mut foreign: Option<KvStore<String, String>> = None;
    let mut stream = None;
    Topology::new("other", |b| {
        b.kv_store("first", Utf8, Utf8);
        foreign = Some(b.kv_store("foreign", Utf8, Utf8));
        stream = Some(b.stream("x", Utf8, Utf8));
    })
    .expect("it is sound");
    let (foreign, stream) = (foreign.expect("made"), stream.expect("made"));
    let unknown = error(|b| drop(b.stream("in", Utf8, Utf8).process("p", &[&foreign], || Pass)));
    assert_eq!(unknown, TopologyError::UnknownStore { node: "p".to_owned(), store: "foreign".to_owned() });
    assert!(matches!(
        error(|b| drop(b.stream("in", Utf8, Utf8).merge(&stream))),
        TopologyError::ForeignStream { .. }
    ));
    let table = stream.group();
    let join = error(|b| drop(b.stream("in", Utf8, Utf8).join(&table.count("c"), |v, _| v)));
    assert!(matches!(join, TopologyError::ForeignStream { .. }));
}

/// Proves that a missing codec and state after a changed key are refused, with the step named, and that key_by mends
/// both.
#[test]
fn codecs_and_keys() {
    let missing = error(|b| b.stream("in", Utf8, Utf8).map_values(|_, v| v.len() as i64).to("out"));
    assert_eq!(
        missing,
        TopologyError::MissingCodec { node: "out".to_owned(), what: "values", call: "values_as" }
    );
    let swapped = |r: Record<String, String>| Record::new(r.value, r.key, r.timestamp);
    let keys = error(|b| b.stream("in", Utf8, Utf8).map(swapped).values_as(Utf8).to("out"));
    assert_eq!(keys, TopologyError::MissingCodec { node: "out".to_owned(), what: "keys", call: "keys_as" });
    let changed = error(|b| drop(b.stream("in", Utf8, Utf8).map(swapped).keys_as(Utf8).group().count("c")));
    assert_eq!(changed, TopologyError::KeyChanged { node: "c".to_owned() });
    let by_processor = error(|b| {
        let store = b.kv_store("s", Utf8, Utf8);
        let moved = b.stream("in", Utf8, Utf8).map(swapped);
        moved.process("p", &[&store], || Pass);
    });
    assert_eq!(by_processor, TopologyError::KeyChanged { node: "p".to_owned() });
    Topology::new("app", |b| {
        let moved = b.stream("in", Utf8, Utf8).map(swapped).values_as(Utf8);
        moved.key_by("k", Utf8, |r| r.key.clone()).group().count("c");
        moved.keep_partitioning().keys_as(Utf8).group().count("d");
    })
    .expect("it is sound");
}

/// Proves that a topology that feeds itself over topics is refused with the way round, and that a topic that is
/// written and read without a way back is none.
#[test]
fn cycles() {
    let itself = error(|b| b.stream("in", Utf8, Utf8).to("in"));
    assert_eq!(itself, TopologyError::Cycle { topics: vec!["in".to_owned(), "in".to_owned()] });
    let wide = error(|b| {
        b.stream("a", Utf8, Utf8).through("b").repartition("c").to("d");
        b.stream("d", Utf8, Utf8).to("a");
    });
    let TopologyError::Cycle { topics } = wide else { panic!("{wide}") };
    assert_eq!(topics.first(), topics.last());
    assert_eq!(topics.len(), 5);
    Topology::new("app", |b| {
        b.stream("a", Utf8, Utf8).to("b");
        b.stream("b", Utf8, Utf8).to("c");
    })
    .expect("it is sound");
}

/// Proves that as many stores as an offset commit can witness are taken, and more are refused when it is built.
#[test]
fn stores_by_the_size_of_their_witness() {
    let with = |stores: usize| {
        Topology::new("app", |b| {
            let stream = b.stream("in", Utf8, Utf8);
            (0..stores).for_each(|number| drop(stream.group().count(&format!("s{number}"))));
        })
    };
    let most = (0..).take_while(|stores| crate::anchor::Anchor::size_max(*stores, 64) <= 4096).count() - 1;
    assert!(most > 200, "{most}");
    assert!(with(most).is_ok());
    assert!(
        matches!(with(most + 1), Err(TopologyError::TooManyStores { sub_topology: 0, stores, .. }) if stores == most + 1)
    );
}

fn orders() -> Topology {
    Topology::new("shop", |b| {
        let orders = b.stream("orders", Utf8, Utf8);
        let by_customer = orders.filter(|_| true).key_by("by-customer", Utf8, |r| r.value.clone());
        let totals = by_customer.group().count("totals");
        by_customer
            .window(Tumbling::of(Duration::from_secs(60)))
            .count("per-minute")
            .emit_on_close()
            .to("minutes");
        let names = b.table("customers", "names", Utf8, Utf8);
        totals.changes().join(&names, |count, name| format!("{name} {count}")).values_as(Utf8).to("out");
        b.stream("other", Utf8, Utf8).to("copy");
    })
    .expect("it is sound")
}

/// Proves how a topology is cut: by edges and stores together, by repartition topics apart; with stores, internal
/// topics and the groups that need the same number of partitions.
#[test]
fn how_it_is_cut() {
    let topology = orders();
    let subs = topology.sub_topologies();
    let inputs: Vec<&[String]> = subs.iter().map(|sub| &sub.inputs[..]).collect();
    assert_eq!(
        inputs,
        [
            &["orders".to_owned()][..],
            &["customers".into(), "shop.by-customer.repartition".into()],
            &["other".into()]
        ]
    );
    assert_eq!(subs[1].repartitions, ["shop.by-customer.repartition"]);
    assert_eq!(subs[1].store_names(), ["totals", "per-minute", "names"]);
    assert_eq!(subs[1].table_topics, [None, None, Some("customers".to_owned())]);
    assert_eq!(subs[1].stores[0].changelog.as_deref(), Some("shop.totals.changelog"));
    assert_eq!(subs[1].stores[1].kind, StoreKind::Window { retention_ms: 60_000 });
    assert_eq!(subs[1].stores[2].changelog, None);
    assert_eq!(subs[1].copartitioned.len(), 1);
    assert_eq!(subs[1].copartitioned[0].len(), 2);
    assert_eq!(topology.external_inputs(), ["customers", "orders", "other"]);
    let internal: Vec<(&str, &InternalKind)> =
        topology.internal_topics().iter().map(|topic| (topic.name.as_str(), &topic.kind)).collect();
    let day = 24 * 60 * 60 * 1000;
    assert_eq!(
        internal,
        [
            ("shop.by-customer.repartition", &InternalKind::Repartition),
            (
                "shop.totals.changelog",
                &InternalKind::Changelog { compact: true, delete: false, retention_ms: None }
            ),
            (
                "shop.per-minute.changelog",
                &InternalKind::Changelog { compact: true, delete: true, retention_ms: Some(60_000 + day) }
            ),
        ]
    );
    assert_eq!(topology.find_store("names"), Some((1, crate::engine::StoreId(2))));
    assert_eq!(topology.find_store("nobody"), None);
}

/// Proves that the description has every part, so that two versions can be compared by eye.
#[test]
fn described() {
    let text = orders().describe();
    for part in [
        "topology shop (fingerprint ",
        "sub-topology 2",
        "source orders",
        "filter filter-1 -> key-2",
        "aggregate totals [totals] -> ",
        "sink out",
        "store per-minute (windows Starts { every_ms: 60000 }, utf8 -> time + i64), changelog shop.per-minute.changelog",
        "store names (key-value, utf8 -> utf8), table of customers, no changelog",
        "same number of partitions: customers, shop.by-customer.repartition",
        "shop.by-customer.repartition (repartition), partitions as sub-topology 1",
        "shop.per-minute.changelog (changelog, compact,delete after 86460000 ms), partitions as sub-topology 1",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// Proves that partitions follow from those of the inputs: tasks, repartition topics and changelogs.
#[test]
fn planned() {
    let counts = |orders, customers| -> BTreeMap<String, i32> {
        [("orders".to_owned(), orders), ("customers".to_owned(), customers), ("other".to_owned(), 2)].into()
    };
    let topology = orders();
    let plan = topology.plan(&counts(6, 3)).expect("it fits");
    assert_eq!(plan.tasks.len(), 6 + 3 + 2);
    assert!(plan.internal.iter().all(|topic| topic.partitions == 3), "they meet customers by key");
    let task = crate::record::TaskId { sub_topology: 1, partition: 2 };
    let inputs: Vec<String> = plan.inputs_of(&topology, task).iter().map(ToString::to_string).collect();
    assert_eq!(inputs.len(), 2);
    let mut without = counts(1, 1);
    without.remove("other");
    assert!(
        matches!(topology.plan(&without), Err(PlanError::UnknownTopic { topic, sub_topology: 2 }) if topic == "other")
    );
    // A chain of repartitions has the count of its first input.
    let chain = Topology::new("app", |b| {
        b.stream("in", Utf8, Utf8)
            .repartition("one")
            .map_values(|_, v| v)
            .values_as(Utf8)
            .repartition("two")
            .group()
            .count("c");
    });
    let plan = chain.expect("it is sound").plan(&[("in".to_owned(), 5)].into()).expect("it fits");
    assert!(plan.internal.iter().all(|topic| topic.partitions == 5));
}

/// Proves that topics that meet by key must have the same number of partitions, in joins and in merged streams with
/// state, and that topics that meet without state may differ.
#[test]
fn copartitioning() {
    let counts: BTreeMap<String, i32> = [("a".to_owned(), 2), ("b".to_owned(), 3)].into();
    let joined = Topology::new("app", |b| {
        let (left, right) = (b.stream("a", Utf8, Utf8), b.stream("b", Utf8, Utf8));
        left.join_stream("j", &right, JoinWindow::within(Duration::from_secs(1)), |_, _| 1i64);
    });
    let merged = Topology::new("app", |b| {
        b.stream("a", Utf8, Utf8).merge(&b.stream("b", Utf8, Utf8)).group().count("c");
    });
    for topology in [joined, merged] {
        let error = topology.expect("it is sound").plan(&counts).expect_err("2 is not 3");
        assert!(
            matches!(&error, PlanError::NotCopartitioned { left, right, .. } if left == "a" && right == "b"),
            "{error}"
        );
    }
    let stateless =
        Topology::new("app", |b| b.stream("a", Utf8, Utf8).merge(&b.stream("b", Utf8, Utf8)).to("out"));
    let stateless = stateless.expect("it is sound");
    let plan = stateless.plan(&counts).expect("no state");
    assert_eq!(plan.tasks.len(), 3);
    let last = plan.inputs_of(&stateless, plan.tasks[2]);
    assert_eq!(last.len(), 1, "partition 2 is of b only");
}

/// Proves that the fingerprint changes with everything that state depends on, and with nothing else.
#[test]
fn fingerprints() {
    let count = |name: &str, topic: &str| {
        Topology::new("app", |b| drop(b.stream(topic, Utf8, Utf8).group().count(name)))
            .expect("it is sound")
            .fingerprint()
    };
    let base = count("c", "in");
    assert_eq!(base, count("c", "in"));
    assert_ne!(base, count("d", "in"), "another store");
    assert_ne!(base, count("c", "in2"), "another input");
    let build = |fill: &dyn Fn(&Builder)| Topology::new("app", fill).expect("it is sound").fingerprint();
    let filtered = build(&|b| drop(b.stream("in", Utf8, Utf8).filter(|_| true).group().count("c")));
    assert_eq!(base, filtered, "a step without state");
    let with_sink = build(&|b| b.stream("in", Utf8, Utf8).group().count("c").to("out"));
    assert_eq!(base, with_sink, "an output");
    let codec = build(&|b| {
        drop(b.stream("in", Utf8, Utf8).group().aggregate(
            "c",
            Json::<i64>::new(),
            || 0,
            |count, _| count + 1,
        ));
    });
    assert_ne!(base, codec, "another codec");
    let window = |secs| {
        build(&move |b| {
            let windows = Tumbling::of(Duration::from_secs(secs));
            drop(b.stream("in", Utf8, Utf8).window(windows).count("c"));
        })
    };
    assert_ne!(window(1), window(2), "another window");
    assert_ne!(window(1), base, "another kind");
    let table = build(&|b| drop(b.table("in", "c", Utf8, I64)));
    assert_ne!(table, base, "a table");
}
