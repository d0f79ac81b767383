//! A producer without a producer id: it sends each batch once and never repeats one, so that none may be twice.

use std::collections::BTreeMap;

use ottla_core::decision::Reply;
use ottla_env::rng::Rng;
use ottla_protocol::batch::Producer;

use super::{Client, Ctx};
use crate::message;

/// The client.
#[derive(Debug)]
pub(crate) struct Plain {
    number: u32,
    outstanding: BTreeMap<u64, usize>,
    done: bool,
}

impl Plain {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, outstanding: BTreeMap::new(), done: false }
    }
}

impl Client for Plain {
    fn name(&self) -> String {
        format!("plain-{}", self.number)
    }

    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.draining {
            self.done = true;
            return;
        }
        let targets = ctx.history.targets();
        if !targets.is_empty() {
            let target = &targets[ctx.rng.index(targets.len())];
            let partition = i32::try_from(ctx.rng.below(target.2 as u64)).expect("small");
            let batch = message::new_batch(ctx, target, partition, Producer::NONE, None);
            let body = message::produce(ctx.history, None, &[batch]);
            let call = ctx.call_with(9, body, false, true);
            self.outstanding.insert(call, batch);
        }
        ctx.wake_in = Some(ctx.think() + 5);
    }

    fn answered(&mut self, call: u64, _attempts: u32, reply: Reply, ctx: &mut Ctx<'_>) {
        let batch = self.outstanding.remove(&call).expect("only own calls are answered");
        match message::produce_results(ctx.history, &[batch], &reply).as_deref() {
            Some([(0, offset)]) => ctx.history.batch_acked(batch, *offset, false),
            Some([(3, _)]) if ctx.history.may_be_deleted(&ctx.history.batches[batch].topic) => {
                ctx.history.batches[batch].refused = true;
            }
            _ => ctx.history.violation(format!("{}: batch {batch} was answered {reply:?}", self.name())),
        }
    }

    fn lost(&mut self, call: u64, ctx: &mut Ctx<'_>) {
        if let Some(batch) = self.outstanding.remove(&call) {
            ctx.history.batches[batch].unknown = true;
        }
    }

    fn is_done(&self) -> bool {
        self.done && self.outstanding.is_empty()
    }
}
