//! EndTxn: commit or abort (KIP-98; version 5 is protocol v2 of KIP-890).
//!
//! Place in the walk: a handler; [`decide`] is the table of eos-semantics 3.5, `complete` carries it out.
//! The version of the request alone says which protocol counts.
//!
//! Invariants: a decision, its markers, the offsets in it and its completion are one group of entries; a
//! repetition changes nothing and gets the same answer; a late call for an earlier transaction never decides a
//! later one with protocol v2, and with v1 wherever the connection tells (`fence`).

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::{EndTxnRequest, EndTxnResponse};

use super::complete;
use super::refusal::{Refusal, Through};
use super::state::{Pair, Prepare, State, Transaction};
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::shard::Step;

/// First version of protocol v2.
const FIRST_V2: i16 = 5;

/// What the call leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Decide now.
    Decide,
    /// It was decided before, and like this: say so again.
    Repeated,
}

/// The table of eos-semantics 3.5.
pub(super) fn decide(transaction: &Transaction, pair: Pair, commit: bool, v2: bool) -> Result<End, Refusal> {
    if v2 { decide_v2(transaction, pair, commit) } else { decide_v1(transaction, pair, commit) }
}

fn decide_v1(transaction: &Transaction, pair: Pair, commit: bool) -> Result<End, Refusal> {
    if pair.producer_id != transaction.producer_id {
        return Err(Refusal::WrongProducerId);
    }
    if pair.producer_epoch != transaction.producer_epoch {
        return Err(Refusal::Fenced);
    }
    match (transaction.state, commit) {
        (State::Ongoing, _) => Ok(End::Decide),
        (State::PrepareCommit | State::PrepareAbort, _) => Err(Refusal::Concurrent),
        (State::CompleteCommit, true) | (State::CompleteAbort, false) => Ok(End::Repeated),
        (State::Empty, _) | (State::CompleteCommit, false) | (State::CompleteAbort, true) => {
            Err(Refusal::WrongState)
        }
    }
}

fn decide_v2(transaction: &Transaction, pair: Pair, commit: bool) -> Result<End, Refusal> {
    if transaction.state.is_prepared() {
        return Err(Refusal::Concurrent);
    }
    let repeats = transaction.is_predecessor(pair);
    if pair.producer_id != transaction.producer_id && !repeats {
        return Err(Refusal::WrongProducerId);
    }
    if pair != transaction.pair() && !repeats {
        return Err(Refusal::Fenced);
    }
    match (transaction.state, commit, repeats) {
        (State::Ongoing, _, false) => Ok(End::Decide),
        (State::Ongoing | State::Empty, _, true) => Err(Refusal::Fenced),
        (State::CompleteCommit, true, true) | (State::CompleteAbort, false, true) => Ok(End::Repeated),
        (State::CompleteCommit, false, true) => Err(Refusal::WrongState),
        (State::CompleteAbort, true, true) => Err(Refusal::Fenced),
        (State::Empty | State::CompleteCommit | State::CompleteAbort, true, false) => {
            Err(Refusal::WrongState)
        }
        // An abort without a transaction: the client cannot know whether its first Produce arrived.
        (State::Empty | State::CompleteCommit | State::CompleteAbort, false, false) => Ok(End::Decide),
        (State::PrepareCommit | State::PrepareAbort, _, _) => Err(Refusal::Concurrent),
    }
}

/// Handles the request.
pub(crate) fn end_txn(step: &mut Step<'_>, context: &Context, request: EndTxnRequest) {
    let id = &request.transactional_id;
    let pair = Pair { producer_id: request.producer_id, producer_epoch: request.producer_epoch };
    let v2 = context.version >= FIRST_V2;
    if !v2 && let Some(reply) = super::late(step, id, pair, context) {
        let rests_on = step.state.transactions.rests_on(id);
        return step.answer(context.token, reply, rests_on);
    }
    let decision = match step.state.transactions.get(id) {
        _ if id.is_empty() => Err(Refusal::InvalidRequest),
        None => Err(Refusal::WrongProducerId),
        Some(transaction) => decide(transaction, pair, request.committed, v2),
    };
    if !v2 {
        super::note_connection(step, id, pair, context.connection);
    }
    let outcome = decision.map(|end| {
        if end == End::Decide {
            let prepare = prepare(step, pair, request.committed, v2);
            complete::decide(step, id, &prepare);
        }
        step.state.transactions.get(id).expect("found above").pair()
    });
    let rests_on = if step.has_entries() { step.position() } else { step.state.transactions.rests_on(id) };
    answer(step, context, outcome, rests_on);
}

/// How a client's decision is made under its protocol.
fn prepare(step: &mut Step<'_>, pair: Pair, commit: bool, v2: bool) -> Prepare {
    let ends_here = v2 && pair.producer_epoch >= super::state::LAST_CLIENT_EPOCH;
    Prepare {
        commit,
        bump: v2,
        last_producer_epoch: pair.producer_epoch,
        next_producer_id: if ends_here { step.allocate_producer_id() } else { -1 },
    }
}

fn answer(step: &mut Step<'_>, context: &Context, outcome: Result<Pair, Refusal>, rests_on: Position) {
    let (error_code, pair) = match outcome {
        Ok(pair) if context.version >= FIRST_V2 => (ErrorCode::None, pair),
        Ok(_) => (ErrorCode::None, Pair::NONE),
        Err(refusal) => (refusal.code(Through::EndTxn, context.version), Pair::NONE),
    };
    let response = EndTxnResponse {
        error_code: error_code.code(),
        producer_id: pair.producer_id,
        producer_epoch: pair.producer_epoch,
        ..EndTxnResponse::default()
    };
    step.answer(context.token, Reply::EndTxn(response), rests_on);
}
