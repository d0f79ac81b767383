//! The running insides of a task: its nodes, its state, and what the record at hand has caused so far.
//!
//! A node that works is taken out of its place and put back after it, so that it can call those after it; a graph
//! has no cycles, so no node is ever called while it is out. After a panic some are missing, and the task is rolled
//! back, which makes all of them anew.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use ottla_client::Header;

use super::Emit;
use super::error::{Failure, RecordPosition};
use super::metrics::TaskMetrics;
use super::node::{Cx, Node};
use super::timers::Timers;
use crate::engine::StoreId;
use crate::record::{Change, OutputRecord, RawRecord, TaskId};
use crate::state::TaskState;

/// The nodes after an output, with their inputs.
type Children = Arc<[(usize, u8)]>;

/// The insides.
pub(crate) struct Core {
    pub(crate) id: TaskId,
    pub(crate) nodes: Vec<Option<Box<dyn Node>>>,
    pub(crate) names: Arc<[String]>,
    /// By node and output.
    pub(crate) outputs: Vec<Vec<Children>>,
    pub(crate) state: TaskState,
    /// By store: whether its changes go to a changelog.
    pub(crate) logged: Vec<bool>,
    /// By the store's place in the topology.
    pub(crate) store_ids: Arc<[Option<StoreId>]>,
    /// By node: the store of a table's source.
    pub(crate) tables: Vec<Option<StoreId>>,
    /// What the current step emits.
    pub(crate) out: Vec<Emit>,
    /// The record at hand; in timers the last one.
    pub(crate) position: Option<RecordPosition>,
    /// Timestamp of what is at hand.
    pub(crate) now: i64,
    /// Highest timestamp taken, `i64::MIN` before the first.
    pub(crate) stream_time: i64,
    pub(crate) wall_ms: i64,
    pub(crate) timers: Timers,
    /// Wall-clock timers of the boundary and when they are due.
    pub(crate) kept_timers: Vec<(String, i64)>,
    pub(crate) commit_requested: bool,
    /// Writes and outputs since the boundary.
    pub(crate) effects: u64,
    /// By store: starts at or below it were freed since the nodes were made.
    pub(crate) freed: Vec<Option<i64>>,
    /// What failed behind the back of user code, which may not pass the error on.
    pub(crate) fault: Option<Failure>,
    /// In `init`: nothing may be written.
    pub(crate) starting: bool,
    /// The nodes that are at work, outermost first; names the culprit of a panic.
    pub(crate) working: Vec<usize>,
    pub(crate) metrics: TaskMetrics,
}

impl Core {
    /// The nodes after an output; absent when there are none.
    pub(crate) fn children(&self, node: usize, out_port: u8) -> Option<Children> {
        self.outputs[node].get(usize::from(out_port)).filter(|children| !children.is_empty()).cloned()
    }

    /// Gives an item to a node.
    pub(crate) fn call(&mut self, node: usize, port: u8, item: &mut dyn Any) -> Result<(), Failure> {
        self.with_node(node, |node, cx| node.process(port, item, cx))
    }

    /// Runs something on a node that is out of its place meanwhile.
    pub(crate) fn with_node(
        &mut self,
        place: usize,
        run: impl FnOnce(&mut dyn Node, &mut Cx<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut node =
            self.nodes[place].take().expect("no cycles, and a task that panicked is rolled back first");
        self.working.push(place);
        let result = run(&mut *node, &mut Cx { core: self, node: place });
        self.nodes[place] = Some(node);
        // On a failure the innermost node's name stays for the report.
        if result.is_ok() {
            self.working.pop();
        }
        result
    }

    /// Name of the innermost node at work.
    pub(crate) fn culprit(&self) -> String {
        self.working.last().map_or_else(String::new, |node| self.names[*node].clone())
    }

    /// Name of a node.
    pub(crate) fn name(&self, node: usize) -> &str {
        &self.names[node]
    }

    /// Reads a key of a store.
    pub(crate) fn get(&self, store: StoreId, key: &[u8]) -> Result<Option<Bytes>, Failure> {
        Ok(self.state.get(store, key)?)
    }

    /// Writes or deletes a key of a store; the change is emitted at once.
    pub(crate) fn put(&mut self, store: StoreId, key: Bytes, value: Option<Bytes>) -> Result<(), Failure> {
        if self.starting {
            return Err(Failure::Process("a processor cannot write to a store in init".to_owned()));
        }
        self.effects += 1;
        if self.logged[usize::from(store.0)] {
            self.metrics.changes += 1;
            let change = Change { store, key: key.clone(), value: value.clone(), timestamp: self.now.max(0) };
            self.out.push(Emit::Change(change));
        }
        Ok(self.state.put(store, key, value)?)
    }

    /// Frees the space of expired keys; no change of content.
    pub(crate) fn expire(&mut self, store: StoreId, from: Bytes, to: Bytes) -> Result<(), Failure> {
        self.effects += 1;
        Ok(self.state.delete_range(store, from, to)?)
    }

    /// Emits a record.
    pub(crate) fn output(&mut self, record: OutputRecord) {
        self.effects += 1;
        self.metrics.outputs += 1;
        self.out.push(Emit::Output(record));
    }

    /// Emits a record to a dead-letter topic.
    pub(crate) fn dead_letter(
        &mut self,
        topic: &str,
        mut record: RawRecord,
        at: &RecordPosition,
        node: &str,
        reason: &str,
    ) {
        let header =
            |key: &'static str, value: String| Header { key: key.into(), value: Some(Bytes::from(value)) };
        record.headers.push(header("ottla.error", reason.to_owned()));
        record.headers.push(header("ottla.node", node.to_owned()));
        record.headers.push(header("ottla.topic", at.topic_partition.topic.to_string()));
        record.headers.push(header("ottla.partition", at.topic_partition.partition.to_string()));
        record.headers.push(header("ottla.offset", at.offset.to_string()));
        record.timestamp = record.timestamp.max(0);
        self.effects += 1;
        self.metrics.dead_letters += 1;
        self.out.push(Emit::Output(OutputRecord { topic: topic.into(), partition: None, record }));
    }
}
