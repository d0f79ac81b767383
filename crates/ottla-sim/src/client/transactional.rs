//! One instance of a transactional producer, protocol v1 or v2: begins, writes to some partitions and to a group's
//! offsets, commits or aborts, and so on until it crashes, is fenced, or the run ends.
//!
//! A crashed instance leaves a successor with the same transactional id, and may itself go on as a zombie. An
//! instance may be refused only if a successor has asked for a producer id, or if its transaction is older than
//! its timeout; any other error is a broken promise.

use std::collections::{BTreeMap, BTreeSet};

use ottla_core::decision::Reply;
use ottla_env::rng::Rng;
use ottla_protocol::batch::{Producer, increment_sequence};
use ottla_protocol::types::TopicIdPartition;

use super::{Client, Ctx};
use crate::history::{Commit, Transaction};
use crate::message;

/// Codes that tell a producer that it is fenced: epoch, state, mapping.
const FENCED: [i16; 4] = [47, 48, 49, 90];

/// Protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    V1,
    V2,
}

/// Where the instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Initializing,
    Idle,
    /// v1: partitions and group are being added.
    Adding,
    Writing,
    Ending,
    Done,
}

/// A step of a transaction that is still to be sent.
#[derive(Clone, Debug)]
enum Step {
    Write((String, ottla_protocol::types::Uuid, i32), i32),
    Offsets,
}

/// What an answer is awaited for.
#[derive(Clone, Debug)]
enum Sent {
    Init { fresh: bool },
    Add,
    Write(Vec<usize>),
    Offsets(usize),
    End { commit: bool },
}

/// The client.
#[derive(Debug)]
pub(crate) struct Transactional {
    transactional_id: String,
    protocol: Protocol,
    instance: u32,
    timeout_ms: i32,
    phase: Phase,
    producer: (i64, i16),
    sequences: BTreeMap<TopicIdPartition, i32>,
    steps: Vec<Step>,
    outstanding: BTreeMap<u64, Sent>,
    transaction: Option<usize>,
    /// `Ctx::shard_forward_ms` before the transaction began.
    begun_ms: i64,
    commits: bool,
    /// The transaction must be aborted; with v1 the sequences are then unknown and a new epoch is needed.
    failed: bool,
    crashed: bool,
}

impl Transactional {
    pub(crate) fn new(transactional_id: String, protocol: Protocol, instance: u32) -> Self {
        Self {
            transactional_id,
            protocol,
            instance,
            timeout_ms: 0,
            phase: Phase::New,
            producer: (-1, -1),
            sequences: BTreeMap::new(),
            steps: Vec::new(),
            outstanding: BTreeMap::new(),
            transaction: None,
            begun_ms: 0,
            commits: false,
            failed: false,
            crashed: false,
        }
    }

    fn send(
        &mut self,
        version: (i16, i16),
        body: ottla_core::command::CommandBody,
        sent: Sent,
        ctx: &mut Ctx<'_>,
    ) {
        let version = if self.protocol == Protocol::V1 { version.0 } else { version.1 };
        // A late call without an expected pair rightly fences whoever came in between.
        let may_be_late = !matches!(sent, Sent::Init { fresh: true });
        let call = ctx.call_with(version, body, true, may_be_late);
        self.outstanding.insert(call, sent);
    }

    fn init(&mut self, expected: Option<(i64, i16)>, ctx: &mut Ctx<'_>) {
        self.phase = Phase::Initializing;
        let newest = ctx.history.instances.entry(self.transactional_id.clone()).or_insert(self.instance);
        *newest = (*newest).max(self.instance);
        if self.timeout_ms == 0 {
            self.timeout_ms = [1_000, 5_000, 60_000][ctx.rng.index(3)];
        }
        let body = message::init_producer_id(Some(&self.transactional_id), self.timeout_ms, expected);
        self.send((4, 5), body, Sent::Init { fresh: expected.is_none() }, ctx);
    }

    /// Plans a transaction and begins it.
    fn begin(&mut self, ctx: &mut Ctx<'_>) {
        let targets = ctx.history.targets();
        if targets.is_empty() {
            return;
        }
        self.steps.clear();
        for _ in 0..ctx.rng.between(1, 4) {
            let target = targets[ctx.rng.index(targets.len())].clone();
            let partition = i32::try_from(ctx.rng.below(target.2 as u64)).expect("small");
            self.steps.push(Step::Write(target, partition));
        }
        if ctx.rng.one_in(2) {
            let at = ctx.rng.index(self.steps.len() + 1);
            self.steps.insert(at, Step::Offsets);
        }
        self.commits = !ctx.rng.one_in(4);
        self.failed = false;
        self.begun_ms = ctx.shard_forward_ms;
        self.transaction = Some(ctx.history.transactions.len());
        let transactional_id = self.transactional_id.clone();
        ctx.history.transactions.push(Transaction { transactional_id, ..Transaction::default() });
        self.phase = Phase::Writing;
        if self.protocol == Protocol::V1 {
            self.add(ctx);
        }
    }

    /// Protocol v1 adds partitions and group first.
    fn add(&mut self, ctx: &mut Ctx<'_>) {
        self.phase = Phase::Adding;
        let partitions: BTreeSet<(String, i32)> = self
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Write(target, partition) => Some((target.0.clone(), *partition)),
                Step::Offsets => None,
            })
            .collect();
        let partitions: Vec<_> = partitions.into_iter().collect();
        let body = message::add_partitions(&self.transactional_id, self.producer, &partitions);
        self.send((3, 3), body, Sent::Add, ctx);
        if self.steps.iter().any(|step| matches!(step, Step::Offsets)) {
            let body = message::add_offsets(&self.transactional_id, self.producer, &self.group());
            self.send((3, 3), body, Sent::Add, ctx);
        }
    }

    fn group(&self) -> String {
        format!("group-{}", self.transactional_id)
    }

    /// Sends the next step of the transaction.
    fn advance(&mut self, ctx: &mut Ctx<'_>) {
        if self.failed {
            self.steps.clear();
        }
        let Some(transaction) = self.transaction else { return };
        let Some(step) = self.steps.pop() else {
            if self.outstanding.is_empty() {
                self.end(transaction, ctx);
            }
            return;
        };
        match step {
            Step::Write(target, partition) => self.write(transaction, &target, partition, ctx),
            Step::Offsets => {
                let commit = ctx.history.commits.len();
                ctx.history.commits.push(Commit {
                    group: self.group(),
                    topic: "t0".to_owned(),
                    partition: 0,
                    acked: false,
                });
                ctx.history.transactions[transaction].commits.push(commit);
                let id = &self.transactional_id;
                let body = message::txn_offset_commit(id, self.producer, ctx.history, commit);
                self.send((3, 5), body, Sent::Offsets(commit), ctx);
            }
        }
    }

    fn write(
        &mut self,
        transaction: usize,
        target: &(String, ottla_protocol::types::Uuid, i32),
        partition: i32,
        ctx: &mut Ctx<'_>,
    ) {
        let place = TopicIdPartition { topic_id: target.1, partition };
        let sequence = self.sequences.entry(place).or_insert(0);
        let stamp = Producer {
            producer_id: self.producer.0,
            producer_epoch: self.producer.1,
            base_sequence: *sequence,
            transactional: true,
        };
        let batch = message::new_batch(ctx, target, partition, stamp, Some(transaction));
        *sequence = increment_sequence(*sequence, ctx.history.batches[batch].header.records_count);
        let body = message::produce(ctx.history, Some(&self.transactional_id), &[batch]);
        self.send((9, 12), body, Sent::Write(vec![batch]), ctx);
    }

    fn end(&mut self, transaction: usize, ctx: &mut Ctx<'_>) {
        self.phase = Phase::Ending;
        let commit = self.commits && !self.failed;
        ctx.history.transactions[transaction].commit_sent |= commit;
        let body = message::end_txn(&self.transactional_id, self.producer, commit);
        self.send((3, 5), body, Sent::End { commit }, ctx);
    }

    /// Whether somebody may have ended this instance or its transaction.
    fn may_be_fenced(&self, ctx: &Ctx<'_>) -> bool {
        let newest = ctx.history.instances.get(&self.transactional_id).copied().unwrap_or(0);
        let timed_out =
            self.transaction.is_some() && ctx.shard_forward_ms - self.begun_ms >= i64::from(self.timeout_ms);
        newest > self.instance || timed_out
    }

    fn successor(&self) -> Box<dyn Client> {
        Box::new(Self::new(self.transactional_id.clone(), self.protocol, self.instance + 1))
    }

    /// An error that is no refusal of one partition: fenced, if that can be.
    fn refused(&mut self, what: &Sent, code: i16, reply: &Reply, ctx: &mut Ctx<'_>) {
        if !FENCED.contains(&code) || !self.may_be_fenced(ctx) {
            let text = format!("{}: {what:?} got error {code} in {reply:?}; {self:?}", self.name());
            ctx.history.violation(text);
        }
        ctx.history.counts.fenced += 1;
        let newest = ctx.history.instances.get(&self.transactional_id).copied().unwrap_or(0);
        if newest <= self.instance && !self.crashed && !ctx.draining {
            ctx.spawn.push(self.successor());
        }
        self.phase = Phase::Done;
        self.outstanding.clear();
    }

    fn initialized(&mut self, fresh: bool, call: u64, reply: &Reply, ctx: &mut Ctx<'_>) {
        let Reply::InitProducerId(response) = reply else {
            return ctx.history.violation(format!("{}: InitProducerId got {reply:?}", self.name()));
        };
        if response.error_code != 0 {
            return self.refused(&Sent::Init { fresh }, response.error_code, reply, ctx);
        }
        let pair = (response.producer_id, response.producer_epoch);
        if fresh {
            ctx.history.handed_out(pair.0, pair.1, format!("{} call {call}", self.name()));
        }
        self.producer = pair;
        self.sequences.clear();
        self.phase = Phase::Idle;
    }

    fn written(&mut self, batches: Vec<usize>, attempts: u32, reply: &Reply, ctx: &mut Ctx<'_>) {
        let Some(results) = message::produce_results(ctx.history, &batches, reply) else {
            return ctx.history.violation(format!("{}: Produce got {reply:?}", self.name()));
        };
        for (batch, (code, offset)) in batches.iter().zip(results) {
            match code {
                0 => ctx.history.batch_acked(*batch, offset, attempts > 1),
                3 if ctx.history.may_be_deleted(&ctx.history.batches[*batch].topic) => {
                    ctx.history.batches[*batch].refused = true;
                    self.failed = true;
                }
                code => {
                    ctx.history.batches[*batch].refused = true;
                    return self.refused(&Sent::Write(batches.clone()), code, reply, ctx);
                }
            }
        }
    }

    fn added(&mut self, reply: &Reply, ctx: &mut Ctx<'_>) {
        let code = match reply {
            Reply::AddOffsetsToTxn(response) => response.error_code,
            Reply::AddPartitionsToTxn(response) => {
                let topics = response.results_by_topic_v3_and_below.iter();
                let codes = topics.flat_map(|topic| {
                    let deleted = ctx.history.may_be_deleted(&topic.name);
                    topic
                        .results_by_partition
                        .iter()
                        .map(move |result| (result.partition_error_code, deleted))
                });
                let codes: Vec<_> = codes.collect();
                // A deleted topic refuses them all (3), and with it the others (55).
                let deleted = codes.contains(&(3, true));
                if deleted && codes.iter().all(|(code, _)| [0, 3, 55].contains(code)) {
                    self.failed = true;
                    0
                } else {
                    codes.iter().map(|(code, _)| *code).find(|code| *code != 0).unwrap_or(0)
                }
            }
            other => return ctx.history.violation(format!("{}: adding got {other:?}", self.name())),
        };
        if code != 0 {
            return self.refused(&Sent::Add, code, reply, ctx);
        }
        if self.outstanding.is_empty() {
            self.phase = Phase::Writing;
        }
    }

    fn offsets_sent(&mut self, commit: usize, reply: &Reply, ctx: &mut Ctx<'_>) {
        let code = match reply {
            Reply::TxnOffsetCommit(response) => {
                response.topics.first().and_then(|topic| Some(topic.partitions.first()?.error_code))
            }
            _ => None,
        };
        match code {
            Some(0) => {
                ctx.history.commits[commit].acked = true;
                ctx.history.counts.offsets_acked += 1;
            }
            Some(code) => self.refused(&Sent::Offsets(commit), code, reply, ctx),
            None => ctx.history.violation(format!("{}: TxnOffsetCommit got {reply:?}", self.name())),
        }
    }

    fn ended(&mut self, commit: bool, reply: &Reply, ctx: &mut Ctx<'_>) {
        let Reply::EndTxn(response) = reply else {
            return ctx.history.violation(format!("{}: EndTxn got {reply:?}", self.name()));
        };
        let transaction = self.transaction.expect("a transaction is open");
        let empty = self.failed && self.protocol == Protocol::V1 && response.error_code == 48;
        if response.error_code != 0 && !empty {
            return self.refused(&Sent::End { commit }, response.error_code, reply, ctx);
        }
        let noted = &mut ctx.history.transactions[transaction];
        if commit {
            noted.commit_acked = true;
            ctx.history.counts.commits_acked += 1;
        } else {
            noted.abort_acked = true;
            ctx.history.counts.aborts_acked += 1;
        }
        self.transaction = None;
        self.phase = Phase::Idle;
        let renewed = match self.protocol {
            Protocol::V2 => {
                self.producer = (response.producer_id, response.producer_epoch);
                self.sequences.clear();
                if self.producer.0 < 0 || self.producer.1 < 0 {
                    ctx.history.violation(format!("{}: EndTxn 5 got {reply:?}", self.name()));
                }
                ctx.rng.one_in(10)
            }
            Protocol::V1 => self.failed,
        };
        if renewed {
            self.init(Some(self.producer), ctx);
        }
    }
}

impl Client for Transactional {
    fn name(&self) -> String {
        format!("{}#{}", self.transactional_id, self.instance)
    }

    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        match self.phase {
            Phase::New => self.init(None, ctx),
            Phase::Idle if ctx.draining || self.crashed => self.phase = Phase::Done,
            Phase::Idle => self.begin(ctx),
            Phase::Writing => self.advance(ctx),
            Phase::Initializing | Phase::Adding | Phase::Ending => {}
            Phase::Done => return,
        }
        let long = ctx.rng.one_in(150);
        let pause = if long { ctx.rng.between(1_000, 8_000) } else { ctx.think() };
        ctx.wake_in = Some(pause + 1);
    }

    fn answered(&mut self, call: u64, attempts: u32, reply: Reply, ctx: &mut Ctx<'_>) {
        let Some(sent) = self.outstanding.remove(&call) else { return };
        match sent {
            Sent::Init { fresh } => self.initialized(fresh, call, &reply, ctx),
            Sent::Add => self.added(&reply, ctx),
            Sent::Write(batches) => self.written(batches, attempts, &reply, ctx),
            Sent::Offsets(commit) => self.offsets_sent(commit, &reply, ctx),
            Sent::End { commit } => self.ended(commit, &reply, ctx),
        }
    }

    fn attempt_broke(&mut self, call: u64, ctx: &mut Ctx<'_>) {
        if let Some(Sent::Write(batches)) = self.outstanding.get(&call) {
            for batch in batches {
                ctx.history.batches[*batch].unknown = true;
            }
        }
    }

    fn lost(&mut self, call: u64, ctx: &mut Ctx<'_>) {
        self.attempt_broke(call, ctx);
        self.outstanding.remove(&call);
    }

    fn crash(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let zombie = ctx.rng.chance(ctx.options.zombie_rate) && self.phase != Phase::Initializing;
        self.crashed = true;
        let newest = ctx.history.instances.get(&self.transactional_id).copied().unwrap_or(0);
        if newest <= self.instance {
            ctx.spawn.push(self.successor());
        }
        if !zombie {
            for call in self.outstanding.keys().copied().collect::<Vec<_>>() {
                self.attempt_broke(call, ctx);
            }
            self.phase = Phase::Done;
            self.outstanding.clear();
        }
        zombie
    }

    fn can_crash(&self) -> bool {
        !self.crashed && !matches!(self.phase, Phase::New | Phase::Done)
    }

    fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }
}
