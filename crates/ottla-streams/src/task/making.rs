//! How a task is put together from its topology, and how its nodes are made, at the start and after each rollback.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ottla_client::TopicPartition;

use super::inputs::Inputs;
use super::time::During;
use super::timers::Timers;
use super::{Core, Node, Task, TaskError, TaskMetrics, message_of};
use crate::engine::StoreId;
use crate::record::TaskId;
use crate::state::TaskState;
use crate::topology::graph::NodeKind;
use crate::topology::{SubTopology, Topology};

impl Task {
    /// Makes all nodes and starts them, at the boundary.
    pub(super) fn start(&mut self) -> Result<(), TaskError> {
        let sub = &self.topology.0.sub_topologies[usize::from(self.id.sub_topology)];
        let topology = self.topology.clone();
        self.core.stream_time = self.stream_time_at_boundary;
        self.core.now = self.stream_time_at_boundary;
        self.core.position = None;
        self.core.effects = 0;
        self.core.commit_requested = false;
        self.core.working.clear();
        self.core.fault = None;
        self.core.freed.fill(None);
        self.core.timers.clear();
        self.core.kept_timers = self.timers_at_boundary.clone();
        let nodes = sub.nodes.clone();
        let made = catch_unwind(AssertUnwindSafe(|| {
            nodes.iter().map(|place| Some((topology.0.nodes[*place].factory)())).collect::<Vec<_>>()
        }));
        self.core.nodes = made.map_err(|panic| TaskError::Timer {
            node: String::new(),
            during: During::Start.text(),
            reason: message_of(&*panic),
        })?;
        let wants = |node: &Option<Box<dyn Node>>| node.as_ref().is_some_and(|node| node.wants_time());
        self.timed = (0..self.core.nodes.len()).filter(|place| wants(&self.core.nodes[*place])).collect();
        self.core.starting = true;
        let result = (0..self.core.nodes.len()).try_for_each(|place| {
            let result = self.guarded(|core| core.with_node(place, |node, cx| node.init(cx)));
            self.blameless(result, During::Start)
        });
        self.core.starting = false;
        result
    }
}

pub(super) fn check_state(id: TaskId, sub: &SubTopology, state: &TaskState) -> Result<(), TaskError> {
    let names =
        |specs: &[crate::state::StoreSpec]| specs.iter().map(|spec| spec.name.clone()).collect::<Vec<_>>();
    let (found, wanted) = (names(state.specs()), names(&sub.stores));
    if found == wanted { Ok(()) } else { Err(TaskError::WrongState { task: id.to_string(), found, wanted }) }
}

pub(super) fn sources(
    topology: &Topology,
    sub: &SubTopology,
    partition: i32,
    exists: &dyn Fn(&TopicPartition) -> bool,
) -> Inputs {
    let mut found = Vec::new();
    for (local, place) in sub.nodes.iter().enumerate() {
        if let NodeKind::Source { topic, timestamps, .. } = &topology.0.nodes[*place].kind {
            let at = TopicPartition::new(topic.as_str(), partition);
            if exists(&at) {
                found.push((at, local, timestamps.clone()));
            }
        }
    }
    found.sort_by(|left, right| left.0.cmp(&right.0));
    Inputs::new(found)
}

/// The insides of a task, without nodes yet.
pub(super) fn core(topology: &Topology, sub: &SubTopology, id: TaskId, state: TaskState) -> Core {
    let parts = &topology.0;
    let local: BTreeMap<usize, usize> =
        sub.nodes.iter().enumerate().map(|(local, place)| (*place, local)).collect();
    let outputs = sub.nodes.iter().map(|place| {
        let ports = parts.children[*place].iter();
        ports.map(|port| port.iter().map(|(child, in_port)| (local[child], *in_port)).collect()).collect()
    });
    let mut store_ids = vec![None; parts.stores.len()];
    for (place, number) in sub.store_places.iter().zip(0u16..) {
        store_ids[*place] = Some(StoreId(number));
    }
    let tables = sub.nodes.iter().map(|place| match &parts.nodes[*place].kind {
        NodeKind::Source { table: Some(store), .. } => store_ids[*store],
        NodeKind::Source { .. } | NodeKind::Operator | NodeKind::Sink { .. } => None,
    });
    let tables = tables.collect();
    Core {
        id,
        nodes: Vec::new(),
        names: sub.nodes.iter().map(|place| parts.nodes[*place].name.clone()).collect(),
        outputs: outputs.collect(),
        state,
        logged: sub.stores.iter().map(|store| store.changelog.is_some()).collect(),
        store_ids: store_ids.into(),
        tables,
        out: Vec::new(),
        position: None,
        now: i64::MIN,
        stream_time: i64::MIN,
        wall_ms: 0,
        timers: Timers::default(),
        kept_timers: Vec::new(),
        commit_requested: false,
        effects: 0,
        freed: vec![None; sub.stores.len()],
        fault: None,
        starting: false,
        working: Vec::new(),
        metrics: TaskMetrics::default(),
    }
}
