//! Checks a graph and cuts it into sub-topologies.
//!
//! Connected by edges or by a common store = one sub-topology. Topics whose records reach the same store meet by
//! key there, so they must have the same number of partitions. A topic that is both written and read joins two
//! sub-topologies in the order of flow, which must not go round.

use std::collections::{BTreeMap, BTreeSet};

use super::error::TopologyError;
use super::graph::{Graph, NodeKind};
use super::{InternalKind, InternalTopic, Parts, SubTopology};
use crate::anchor::{ANCHOR_BYTES_MAX, Anchor};
use crate::state::{StoreKind, StoreSpec};
use crate::task::Policy;

/// Longest topic name that brokers take.
const TOPIC_NAME_MAX: usize = 249;
/// Longest application name: transactional ids, groups and internal topics begin with it.
const APP_NAME_MAX: usize = 100;
/// A writer's name in an anchor: process id (36 characters), worker number, separators.
const WRITER_BYTES_MAX: usize = 64;
/// What a window store's changelog keeps beyond the store's own time, as Kafka Streams does (a day).
const RETENTION_EXTRA_MS: i64 = 24 * 60 * 60 * 1000;

/// Checks and cuts.
pub(crate) fn build(mut graph: Graph) -> Result<Parts, TopologyError> {
    if !graph.errors.is_empty() {
        return Err(graph.errors.remove(0));
    }
    check_names(&graph)?;
    check_cycles(&graph)?;
    let components = components(&graph);
    let mut subs = Vec::new();
    for nodes in components {
        let id = u16::try_from(subs.len())
            .map_err(|_| TopologyError::BadName { name: graph.name.clone(), max: 0 })?;
        subs.push(sub_topology(&graph, id, nodes)?);
    }
    let internal = internal_topics(&graph, &subs);
    let fingerprint = subs.iter().fold(Fnv::new(), |hash, sub| hash.number(sub.fingerprint)).0;
    let children = children(&graph);
    let Graph { name, nodes, stores, policies, .. } = graph;
    Ok(Parts { name, nodes, children, stores, sub_topologies: subs, internal, policies, fingerprint })
}

/// Whether a name can be (part of) a topic's.
pub(crate) fn is_name(name: &str, max: usize) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= max && name != "." && name != ".." && name.bytes().all(fits)
}

fn check_names(graph: &Graph) -> Result<(), TopologyError> {
    let bad = |name: &str, max| TopologyError::BadName { name: name.to_owned(), max };
    if !is_name(&graph.name, APP_NAME_MAX) {
        return Err(bad(&graph.name, APP_NAME_MAX));
    }
    let longest = TOPIC_NAME_MAX - graph.name.len() - ".".len() - ".repartition".len();
    let mut names = BTreeSet::new();
    for store in &graph.stores {
        if !is_name(&store.name, longest) {
            return Err(bad(&store.name, longest));
        }
        if !names.insert(format!("store {}", store.name)) {
            return Err(TopologyError::DuplicateName { name: store.name.clone() });
        }
    }
    for node in &graph.nodes {
        match &node.kind {
            NodeKind::Source { topic, repartition, .. } => {
                if !is_name(topic, TOPIC_NAME_MAX) {
                    return Err(bad(topic, TOPIC_NAME_MAX));
                }
                if !names.insert(format!("source {topic}")) {
                    let (name, topic) = (topic.clone(), topic.clone());
                    return Err(match repartition {
                        true => TopologyError::DuplicateName { name },
                        false => TopologyError::DuplicateSource { topic },
                    });
                }
            }
            NodeKind::Sink { topic } if !is_name(topic, TOPIC_NAME_MAX) => {
                return Err(bad(topic, TOPIC_NAME_MAX));
            }
            NodeKind::Sink { .. } | NodeKind::Operator => {}
        }
        if !names.insert(format!("node {}", node.name)) {
            return Err(TopologyError::DuplicateName { name: node.name.clone() });
        }
    }
    for policy in
        [&graph.policies.on_decode_error, &graph.policies.on_process_error, &graph.policies.on_produce_error]
    {
        match policy {
            Policy::DeadLetter(topic) if !is_name(topic, TOPIC_NAME_MAX) => {
                return Err(bad(topic, TOPIC_NAME_MAX));
            }
            Policy::DeadLetter(_) | Policy::Fail | Policy::Skip => {}
        }
    }
    if !graph.nodes.iter().any(|node| matches!(node.kind, NodeKind::Source { .. })) {
        return Err(TopologyError::Empty);
    }
    Ok(())
}

/// Follows edges, and topics that are both written and read.
fn check_cycles(graph: &Graph) -> Result<(), TopologyError> {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    graph.edges.iter().for_each(|edge| next[edge.from].push(edge.to));
    let sources: BTreeMap<&str, usize> = (0..graph.nodes.len())
        .filter_map(|place| match &graph.nodes[place].kind {
            NodeKind::Source { topic, .. } => Some((topic.as_str(), place)),
            NodeKind::Sink { .. } | NodeKind::Operator => None,
        })
        .collect();
    for (place, node) in graph.nodes.iter().enumerate() {
        if let NodeKind::Sink { topic } = &node.kind
            && let Some(source) = sources.get(topic.as_str())
        {
            next[place].push(*source);
        }
    }
    let mut state = vec![Mark::New; graph.nodes.len()];
    for start in 0..graph.nodes.len() {
        if let Some(path) = walk(start, &next, &mut state) {
            let topics = path.iter().filter_map(|place| match &graph.nodes[*place].kind {
                NodeKind::Source { topic, .. } => Some(topic.clone()),
                NodeKind::Sink { .. } | NodeKind::Operator => None,
            });
            let mut topics: Vec<String> = topics.collect();
            topics.extend(topics.first().cloned());
            return Err(TopologyError::Cycle { topics });
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

/// Depth first without recursion; the nodes of a cycle when there is one.
fn walk(start: usize, next: &[Vec<usize>], state: &mut [Mark]) -> Option<Vec<usize>> {
    if state[start] != Mark::New {
        return None;
    }
    let mut path = vec![(start, 0)];
    state[start] = Mark::Open;
    while let Some((node, child)) = path.last_mut() {
        let Some(to) = next[*node].get(*child).copied() else {
            state[*node] = Mark::Done;
            path.pop();
            continue;
        };
        *child += 1;
        match state[to] {
            Mark::Done => {}
            Mark::Open => {
                let from =
                    path.iter().position(|(node, _)| *node == to).expect("an open node is on the path");
                return Some(path[from..].iter().map(|(node, _)| *node).collect());
            }
            Mark::New => {
                state[to] = Mark::Open;
                path.push((to, 0));
            }
        }
    }
    None
}

/// Nodes that must run together, in the order in which they were built.
fn components(graph: &Graph) -> Vec<Vec<usize>> {
    let mut parent: Vec<usize> = (0..graph.nodes.len()).collect();
    graph.edges.iter().for_each(|edge| unite(&mut parent, edge.from, edge.to));
    let mut users: BTreeMap<usize, usize> = BTreeMap::new();
    for (place, node) in graph.nodes.iter().enumerate() {
        for store in &node.stores {
            let first = *users.entry(*store).or_insert(place);
            unite(&mut parent, first, place);
        }
    }
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for place in 0..graph.nodes.len() {
        let root = root(&mut parent, place);
        found.entry(root).or_default().push(place);
    }
    let mut components: Vec<Vec<usize>> = found.into_values().collect();
    components.sort();
    components
}

fn root(parent: &mut [usize], mut node: usize) -> usize {
    while parent[node] != node {
        parent[node] = parent[parent[node]];
        node = parent[node];
    }
    node
}

fn unite(parent: &mut [usize], left: usize, right: usize) {
    let (left, right) = (root(parent, left), root(parent, right));
    parent[left.max(right)] = left.min(right);
}

fn sub_topology(graph: &Graph, id: u16, nodes: Vec<usize>) -> Result<SubTopology, TopologyError> {
    let (mut inputs, mut repartitions, mut outputs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut store_places = BTreeSet::new();
    for place in &nodes {
        let node = &graph.nodes[*place];
        store_places.extend(node.stores.iter().copied());
        match &node.kind {
            NodeKind::Source { topic, repartition, .. } => {
                inputs.insert(topic.clone());
                if *repartition {
                    repartitions.insert(topic.clone());
                }
            }
            NodeKind::Sink { topic } => {
                outputs.insert(topic.clone());
            }
            NodeKind::Operator => {}
        }
    }
    let store_places: Vec<usize> = store_places.into_iter().collect();
    let bytes = Anchor::size_max(store_places.len(), WRITER_BYTES_MAX);
    if bytes > ANCHOR_BYTES_MAX {
        let (stores, max) = (store_places.len(), ANCHOR_BYTES_MAX);
        return Err(TopologyError::TooManyStores { sub_topology: id, stores, bytes, max });
    }
    let stores: Vec<StoreSpec> = store_places.iter().map(|place| spec(graph, *place)).collect();
    let table_topics = store_places.iter().map(|place| graph.stores[*place].source_topic.clone()).collect();
    let copartitioned = copartitioned(graph, &nodes);
    let mut hash = inputs.iter().fold(Fnv::new(), |hash, input| hash.text(input));
    for place in &store_places {
        let store = &graph.stores[*place];
        hash = hash.text(&store.name).text(&format!("{:?}", store.kind)).text(&store.format);
        hash = hash.text(store.source_topic.as_deref().unwrap_or(""));
    }
    let (inputs, repartitions, outputs): (Vec<_>, Vec<_>, Vec<_>) =
        (inputs.into_iter().collect(), repartitions.into_iter().collect(), outputs.into_iter().collect());
    let fingerprint = hash.0;
    Ok(SubTopology {
        id,
        inputs,
        repartitions,
        outputs,
        stores,
        table_topics,
        copartitioned,
        fingerprint,
        nodes,
        store_places,
    })
}

fn spec(graph: &Graph, place: usize) -> StoreSpec {
    let store = &graph.stores[place];
    let changelog = match &store.source_topic {
        Some(_) => None,
        None => Some(graph.changelog_topic(&store.name)),
    };
    StoreSpec { name: store.name.clone(), kind: store.kind, changelog }
}

/// Sets of topics whose records reach the same store, united where they overlap.
fn copartitioned(graph: &Graph, nodes: &[usize]) -> Vec<BTreeSet<String>> {
    let mut by_store: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for place in nodes {
        if graph.nodes[*place].stores.is_empty() {
            continue;
        }
        let topics = topics_above(graph, *place);
        for store in &graph.nodes[*place].stores {
            by_store.entry(*store).or_default().extend(topics.iter().cloned());
        }
        // The stores of one node are used with one key.
        let all: BTreeSet<String> =
            graph.nodes[*place].stores.iter().flat_map(|store| by_store[store].clone()).collect();
        for store in &graph.nodes[*place].stores {
            by_store.insert(*store, all.clone());
        }
    }
    let mut groups: Vec<BTreeSet<String>> = Vec::new();
    for mut group in by_store.into_values() {
        let (apart, overlapping): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|other| other.is_disjoint(&group));
        groups = apart;
        group.extend(overlapping.into_iter().flatten());
        groups.push(group);
    }
    groups.sort();
    groups
}

fn topics_above(graph: &Graph, node: usize) -> BTreeSet<String> {
    let (mut topics, mut seen, mut open) = (BTreeSet::new(), BTreeSet::from([node]), vec![node]);
    while let Some(place) = open.pop() {
        if let NodeKind::Source { topic, .. } = &graph.nodes[place].kind {
            topics.insert(topic.clone());
        }
        let above = graph.edges.iter().filter(|edge| edge.to == place).map(|edge| edge.from);
        open.extend(above.filter(|place| seen.insert(*place)));
    }
    topics
}

fn internal_topics(graph: &Graph, subs: &[SubTopology]) -> Vec<InternalTopic> {
    let mut topics = Vec::new();
    for sub in subs {
        for name in &sub.repartitions {
            let kind = InternalKind::Repartition;
            topics.push(InternalTopic { name: name.clone(), kind, partitions_from: sub.id });
        }
        for place in &sub.store_places {
            let store = &graph.stores[*place];
            if store.source_topic.is_some() {
                continue;
            }
            let kind = match store.kind {
                StoreKind::Window { retention_ms } => InternalKind::Changelog {
                    compact: true,
                    delete: true,
                    retention_ms: Some(retention_ms.saturating_add(RETENTION_EXTRA_MS)),
                },
                // Sessions are removed by tombstones of their own.
                StoreKind::KeyValue | StoreKind::Session { .. } => {
                    InternalKind::Changelog { compact: true, delete: false, retention_ms: None }
                }
            };
            let name = graph.changelog_topic(&store.name);
            topics.push(InternalTopic { name, kind, partitions_from: sub.id });
        }
    }
    topics
}

fn children(graph: &Graph) -> Vec<Vec<Vec<(usize, u8)>>> {
    let mut children: Vec<Vec<Vec<(usize, u8)>>> = vec![Vec::new(); graph.nodes.len()];
    for edge in &graph.edges {
        let ports = &mut children[edge.from];
        let port = usize::from(edge.out_port);
        if ports.len() <= port {
            ports.resize(port + 1, Vec::new());
        }
        ports[port].push((edge.to, edge.in_port));
    }
    children
}

/// FNV-1a, 64 bits: stable over versions and machines.
#[derive(Clone, Copy)]
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        Self(
            bytes
                .iter()
                .fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)),
        )
    }

    /// A text, with its length so that two texts are not one longer one.
    fn text(self, text: &str) -> Self {
        self.bytes(&(text.len() as u64).to_le_bytes()).bytes(text.as_bytes())
    }

    fn number(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }
}
