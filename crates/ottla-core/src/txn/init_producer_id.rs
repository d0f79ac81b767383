//! InitProducerId: who may produce under a transactional id, and under which pair (KIP-98, KIP-360).
//!
//! Place in the walk: a handler; [`decide`] is the table of eos-semantics 3.3, the rest carries it out. An open
//! transaction of the producer before is aborted on the way, whole, in the same decision; so nobody waits.
//!
//! Invariants: a pair that is not the current one never aborts an open transaction (hole H6); a producer that
//! another one's call without a pair has fenced is never given a pair (H7); the last epoch survives restarts,
//! so that a repeated call gets the same answer (scenario 84).
//!
//! Not here: two-phase commit (KIP-939), which comes with version 6.

use ottla_protocol::error::ErrorCode;
use ottla_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};
use ottla_protocol::types::{NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Text};

use super::complete;
use super::refusal::{Refusal, Through};
use super::state::{LAST_CLIENT_EPOCH, Pair, State, Transaction};
use crate::command::Context;
use crate::decision::{Position, Reply};
use crate::event::Event;
use crate::shard::Step;

/// Longest transactional id: its length has 16 bits in the log.
const ID_BYTES_MAX: usize = i16::MAX as usize;

/// What the call leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Init {
    /// The id is new: a fresh producer id.
    Create,
    /// The call is a repetition: the pair in use once more.
    Keep,
    /// The next epoch; the field is the epoch whose holder may repeat the call, -1 for nobody.
    Bump(i16),
    /// The epochs of this producer id are used up: a fresh one; the field as above.
    Rotate(i16),
    /// A transaction is open: abort it first. The field as above, for after the abort.
    Abort(i16),
}

/// The table of eos-semantics 3.3. `expected` is the pair of KIP-360.
pub(super) fn decide(transaction: Option<&Transaction>, expected: Option<Pair>) -> Result<Init, Refusal> {
    let Some(transaction) = transaction else { return Ok(Init::Create) };
    if transaction.state.is_prepared() {
        return Err(Refusal::Concurrent);
    }
    if transaction.state == State::Ongoing {
        return match expected {
            None => Ok(Init::Abort(NO_PRODUCER_EPOCH)),
            Some(pair) if pair == transaction.pair() => Ok(Init::Abort(pair.producer_epoch)),
            Some(_) => Err(Refusal::Fenced),
        };
    }
    let last_producer_epoch = match expected {
        None => NO_PRODUCER_EPOCH,
        Some(pair) if pair == transaction.pair() => pair.producer_epoch,
        Some(pair) if transaction.is_predecessor(pair) => return Ok(Init::Keep),
        Some(_) => return Err(Refusal::Fenced),
    };
    if transaction.is_exhausted() {
        Ok(Init::Rotate(last_producer_epoch))
    } else {
        Ok(Init::Bump(last_producer_epoch))
    }
}

/// Handles the request.
pub(crate) fn init_producer_id(step: &mut Step<'_>, context: &Context, request: InitProducerIdRequest) {
    let half = (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH);
    let outcome = match &request.transactional_id {
        _ if half => Err(Refusal::InvalidRequest),
        None => Ok(Pair { producer_id: step.allocate_producer_id(), producer_epoch: 0 }),
        Some(id) => {
            let expected = (request.producer_id != NO_PRODUCER_ID)
                .then_some(Pair { producer_id: request.producer_id, producer_epoch: request.producer_epoch });
            // Without a pair the call neither sets nor obeys the mark: some clients send it on a connection
            // of its own. With a pair it speaks for the holder of that pair, like EndTxn.
            if let Some(pair) = expected
                && let Some(reply) = super::late(step, id, pair, context)
            {
                let rests_on = step.state.transactions.rests_on(id);
                return step.answer(context.token, reply, rests_on);
            }
            let outcome = with_transactional_id(step, id, expected, request.transaction_timeout_ms);
            if let Ok(pair) = outcome {
                step.state.volatile.fence.note_init(id, pair, context.connection);
            }
            outcome
        }
    };
    let rests_on = match &request.transactional_id {
        _ if step.has_entries() => step.position(),
        Some(id) => step.state.transactions.rests_on(id),
        None => step.state.producer_ids.rests_on(),
    };
    answer(step, context, outcome, rests_on);
}

fn answer(step: &mut Step<'_>, context: &Context, outcome: Result<Pair, Refusal>, rests_on: Position) {
    let (error_code, pair) = match outcome {
        Ok(pair) => (ErrorCode::None, pair),
        Err(refusal) => (refusal.code(Through::InitProducerId, context.version), Pair::NONE),
    };
    let response = InitProducerIdResponse {
        error_code: error_code.code(),
        producer_id: pair.producer_id,
        producer_epoch: pair.producer_epoch,
        ..InitProducerIdResponse::default()
    };
    step.answer(context.token, Reply::InitProducerId(response), rests_on);
}

fn with_transactional_id(
    step: &mut Step<'_>,
    id: &Text,
    expected: Option<Pair>,
    timeout_ms: i32,
) -> Result<Pair, Refusal> {
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(Refusal::InvalidRequest);
    }
    if timeout_ms <= 0 || timeout_ms > step.state.config.transaction_max_timeout_ms {
        return Err(Refusal::InvalidTimeout);
    }
    let mut decision = decide(step.state.transactions.get(id), expected)?;
    let (takes_over, aborts) =
        (expected.is_none() && decision != Init::Create, matches!(decision, Init::Abort(_)));
    if decision == Init::Create
        && step.state.transactions.len() >= step.state.config.limits.transactional_ids()
    {
        return Err(Refusal::TooManyIds);
    }
    if let Init::Abort(last_producer_epoch) = decision {
        complete::abort_by_server(step, id, last_producer_epoch);
        decision =
            decide(step.state.transactions.get(id), expected).expect("nothing is open after the abort");
    }
    let now = step.now;
    let current = step.state.transactions.get(id).cloned();
    let next = match (decision, current) {
        (Init::Create, _) => Transaction::new(id.detached(), step.allocate_producer_id(), timeout_ms, now),
        (Init::Keep, Some(current)) => {
            current.initialised(current.pair(), current.last_producer_epoch, timeout_ms, now)
        }
        (Init::Bump(last), Some(current)) => {
            let producer_epoch = current.producer_epoch + 1;
            assert!(producer_epoch <= LAST_CLIENT_EPOCH, "an exhausted producer id rotates");
            current.initialised(Pair { producer_epoch, ..current.pair() }, last, timeout_ms, now)
        }
        (Init::Rotate(last), Some(current)) => {
            let pair = Pair { producer_id: step.allocate_producer_id(), producer_epoch: 0 };
            current.initialised(pair, last, timeout_ms, now)
        }
        (Init::Abort(_), _) => unreachable!("the open transaction was aborted above"),
        (Init::Keep | Init::Bump(_) | Init::Rotate(_), None) => unreachable!("only Create is without state"),
    };
    let pair = next.pair();
    super::write(step, &next);
    if takes_over {
        step.event(Event::ProducerFenced {
            transactional_id: next.transactional_id,
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            aborted: aborts,
        });
    }
    Ok(pair)
}
