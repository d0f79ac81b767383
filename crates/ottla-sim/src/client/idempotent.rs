//! An idempotent producer (KIP-98): up to five batches in flight per partition, each repeated until it is answered.
//! Whatever happens to the broker, every batch must be acknowledged, once, at one offset.

use std::collections::{BTreeMap, VecDeque};

use ottla_core::decision::Reply;
use ottla_env::rng::Rng;
use ottla_protocol::batch::{Producer, increment_sequence};
use ottla_protocol::types::TopicIdPartition;

use super::{Client, Ctx};
use crate::message;

/// Most batches in flight per partition, counted from the oldest that is not answered: answers to later ones may come
/// first, and a broker remembers the last five only.
const IN_FLIGHT_MAX: usize = 5;

/// The client.
#[derive(Debug)]
pub(crate) struct Idempotent {
    number: u32,
    producer: Option<(i64, i16)>,
    init: Option<u64>,
    sequences: BTreeMap<TopicIdPartition, i32>,
    /// From the oldest unanswered batch on; whether each is answered.
    in_flight: BTreeMap<TopicIdPartition, VecDeque<(usize, bool)>>,
    outstanding: BTreeMap<u64, Vec<usize>>,
    /// Acknowledged batches, newest last, that may be sent again.
    acked: Vec<usize>,
    done: bool,
}

impl Idempotent {
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number,
            producer: None,
            init: None,
            sequences: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            acked: Vec::new(),
            done: false,
        }
    }

    fn send(&mut self, producer: (i64, i16), ctx: &mut Ctx<'_>) {
        let targets = ctx.history.targets();
        let mut batches = Vec::new();
        for _ in 0..ctx.rng.between(1, 2) {
            if targets.is_empty() {
                break;
            }
            let target = &targets[ctx.rng.index(targets.len())];
            let partition = i32::try_from(ctx.rng.below(target.2 as u64)).expect("small");
            let place = TopicIdPartition { topic_id: target.1, partition };
            let taken = batches.iter().any(|batch: &usize| ctx.history.batches[*batch].partition == place);
            let in_flight = self.in_flight.entry(place).or_default();
            if taken || in_flight.len() >= IN_FLIGHT_MAX {
                continue;
            }
            let sequence = self.sequences.entry(place).or_insert(0);
            let stamp = Producer {
                producer_id: producer.0,
                producer_epoch: producer.1,
                base_sequence: *sequence,
                transactional: false,
            };
            let batch = message::new_batch(ctx, target, partition, stamp, None);
            *sequence = increment_sequence(*sequence, ctx.history.batches[batch].header.records_count);
            in_flight.push_back((batch, false));
            batches.push(batch);
        }
        if !batches.is_empty() {
            let body = message::produce(ctx.history, None, &batches);
            let call = ctx.call(9, body);
            self.outstanding.insert(call, batches);
        }
    }
}

impl Client for Idempotent {
    fn name(&self) -> String {
        format!("idempotent-{}", self.number)
    }

    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        if ctx.draining {
            self.done = true;
            return;
        }
        match self.producer {
            None if self.init.is_none() => {
                self.init = Some(ctx.call(4, message::init_producer_id(None, 60_000, None)));
            }
            None => {}
            Some(producer) => {
                for _ in 0..ctx.rng.between(1, 3) {
                    self.send(producer, ctx);
                }
            }
        }
        ctx.wake_in = Some(ctx.think() + 2);
    }

    fn answered(&mut self, call: u64, attempts: u32, reply: Reply, ctx: &mut Ctx<'_>) {
        if self.init == Some(call) {
            match reply {
                Reply::InitProducerId(response) if response.error_code == 0 => {
                    let pair = (response.producer_id, response.producer_epoch);
                    ctx.history.handed_out(pair.0, pair.1, format!("{} call {call}", self.name()));
                    self.producer = Some(pair);
                }
                other => ctx.history.violation(format!("{}: InitProducerId got {other:?}", self.name())),
            }
            return;
        }
        let batches = self.outstanding.remove(&call).expect("only own calls are answered");
        let Some(results) = message::produce_results(ctx.history, &batches, &reply) else {
            return ctx.history.violation(format!("{}: Produce got {reply:?}", self.name()));
        };
        for (batch, (code, offset)) in batches.into_iter().zip(results) {
            let place = ctx.history.batches[batch].partition;
            let in_flight = self.in_flight.get_mut(&place).expect("it was counted");
            for (_, answered) in in_flight.iter_mut().filter(|(sent, _)| *sent == batch) {
                *answered = true;
            }
            while in_flight.front().is_some_and(|(_, answered)| *answered) {
                in_flight.pop_front();
            }
            match code {
                0 => {
                    ctx.history.batch_acked(batch, offset, attempts > 1);
                    self.acked.push(batch);
                }
                3 if ctx.history.may_be_deleted(&ctx.history.batches[batch].topic) => {
                    ctx.history.batches[batch].refused = true;
                }
                _ => ctx.history.violation(format!("{}: batch {batch} got error {code}", self.name())),
            }
        }
    }

    fn attempt_broke(&mut self, call: u64, ctx: &mut Ctx<'_>) {
        for batch in self.outstanding.get(&call).into_iter().flatten() {
            ctx.history.batches[*batch].unknown = true;
        }
    }

    fn lost(&mut self, _call: u64, _ctx: &mut Ctx<'_>) {}

    fn is_done(&self) -> bool {
        self.done && self.outstanding.is_empty()
    }
}
