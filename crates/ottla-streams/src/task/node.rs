//! A node at work: takes items of any type from the nodes before it, and forwards to the nodes after it.
//!
//! Items travel on the stack as `Option<Record<K, V>>` behind `dyn Any`; the typed DSL makes sure that both sides
//! of an edge agree, so a wrong type is a fault of this crate.

use std::any::Any;

use super::core::Core;
use super::error::Failure;
use crate::processor::Record;

/// What a node does. Made from a factory for each task and after each rollback.
pub(crate) trait Node: Send {
    /// Before the first item; may read stores and schedule timers, not write or forward.
    fn init(&mut self, _cx: &mut Cx<'_>) -> Result<(), Failure> {
        Ok(())
    }
    /// An item for an input.
    fn process(&mut self, port: u8, item: &mut dyn Any, cx: &mut Cx<'_>) -> Result<(), Failure>;
    /// The first moment after `from` and up to `to` at which something of this node closes. Asked of nodes that want
    /// time, before stream time moves to `to`.
    fn next_due(&mut self, _from: i64, _to: i64, _cx: &mut Cx<'_>) -> Result<Option<i64>, Failure> {
        Ok(None)
    }
    /// Stream time reaches `to`, and something of some node closes then. Stream time is `to - 1` while it runs, so that
    /// results of windows that end at `to` count for later windows that end then; nodes are told in the order of
    /// flow.
    fn advance(&mut self, _to: i64, _cx: &mut Cx<'_>) -> Result<(), Failure> {
        Ok(())
    }
    /// Whether [`Node::advance`] is wanted.
    fn wants_time(&self) -> bool {
        false
    }
    /// A timer is due.
    fn timer(&mut self, _name: &str, _at: i64, _cx: &mut Cx<'_>) -> Result<(), Failure> {
        Ok(())
    }
    /// The task ends, or is rolled back.
    fn close(&mut self) {}
}

/// Takes an item out of its box.
pub(crate) fn taken<K: 'static, V: 'static>(item: &mut dyn Any) -> Record<K, V> {
    item.downcast_mut::<Option<Record<K, V>>>()
        .and_then(Option::take)
        .expect("the DSL connects nodes of the same types only, and each item is taken once")
}

/// A node's view of its task.
pub(crate) struct Cx<'a> {
    pub(crate) core: &'a mut Core,
    /// The node's place in the task.
    pub(crate) node: usize,
}

impl Cx<'_> {
    /// Gives a record to every node after this one at that output.
    pub(crate) fn forward<K, V>(&mut self, out_port: u8, record: Record<K, V>) -> Result<(), Failure>
    where
        K: Clone + 'static,
        V: Clone + 'static,
    {
        if self.core.starting {
            return Err(Failure::Process("a processor cannot forward in init".to_owned()));
        }
        let Some(children) = self.core.children(self.node, out_port) else { return Ok(()) };
        let mut item = Some(record);
        for (index, (child, in_port)) in children.iter().enumerate() {
            if index + 1 == children.len() {
                return self.core.call(*child, *in_port, &mut item);
            }
            let mut copy = item.clone();
            self.core.call(*child, *in_port, &mut copy)?;
        }
        Ok(())
    }

    /// Whether anybody listens at that output.
    pub(crate) fn has_children(&self, out_port: u8) -> bool {
        self.core.children(self.node, out_port).is_some()
    }
}
