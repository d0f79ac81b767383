//! Every state and event of eos-semantics 3.3 to 3.6, decided on bare transactions.

use super::super::add_partitions::{self, Add};
use super::super::end_txn::{self, End};
use super::super::init_producer_id::{self, Init};
use super::super::refusal::Refusal;
use super::super::state::LAST_CLIENT_EPOCH;
use super::*;

const PID: i64 = 7;
const EPOCH: i16 = 5;

fn pair(producer_epoch: i16) -> Pair {
    Pair { producer_id: PID, producer_epoch }
}

fn partition(partition: i32) -> TopicIdPartition {
    TopicIdPartition { topic_id: Uuid([3; 16]), partition }
}

/// An id in `state` at epoch 5, whose last epoch was 4.
fn transaction(state: State) -> Transaction {
    let mut transaction = Transaction::new(Text::from("t"), PID, 60_000, ShardTime(0));
    transaction.state = state;
    transaction.producer_epoch = EPOCH;
    transaction.last_producer_epoch = EPOCH - 1;
    if state == State::Ongoing || state.is_prepared() {
        transaction.partitions = vec![partition(0)];
    }
    transaction
}

const OTHER: Pair = Pair { producer_id: PID + 1, producer_epoch: EPOCH };

/// EndTxn with protocol v1, in every state, for the pair in use: eos-semantics 3.5, columns one and two.
#[test]
fn scenario_41_end_v1_in_every_state() {
    use Refusal::{Concurrent, WrongState};
    let table = [
        (State::Empty, Err(WrongState), Err(WrongState)),
        (State::Ongoing, Ok(End::Decide), Ok(End::Decide)),
        (State::PrepareCommit, Err(Concurrent), Err(Concurrent)),
        (State::PrepareAbort, Err(Concurrent), Err(Concurrent)),
        (State::CompleteCommit, Ok(End::Repeated), Err(WrongState)),
        (State::CompleteAbort, Err(WrongState), Ok(End::Repeated)),
    ];
    for (state, commit, abort) in table {
        let transaction = transaction(state);
        assert_eq!(
            end_txn::decide(&transaction, pair(EPOCH), true, false),
            commit,
            "{} commit",
            state.name()
        );
        assert_eq!(end_txn::decide(&transaction, pair(EPOCH), false, false), abort, "{} abort", state.name());
        // Identity comes before the state: the producer id, then the epoch, also while completing.
        for commit in [true, false] {
            assert_eq!(end_txn::decide(&transaction, OTHER, commit, false), Err(Refusal::WrongProducerId));
            for wrong in [EPOCH - 1, EPOCH + 1] {
                assert_eq!(end_txn::decide(&transaction, pair(wrong), commit, false), Err(Refusal::Fenced));
            }
        }
    }
}

/// EndTxn with protocol v2, in every state, for the pair in use and for the one before: columns three and four.
#[test]
fn scenario_42_43_end_v2_in_every_state() {
    use Refusal::{Concurrent, Fenced, WrongState};
    let table = [
        // state, commit and abort at the current epoch, commit and abort at the epoch before
        (State::Empty, [Err(WrongState), Ok(End::Decide)], [Err(Fenced), Err(Fenced)]),
        (State::Ongoing, [Ok(End::Decide), Ok(End::Decide)], [Err(Fenced), Err(Fenced)]),
        (State::PrepareCommit, [Err(Concurrent); 2], [Err(Concurrent); 2]),
        (State::PrepareAbort, [Err(Concurrent); 2], [Err(Concurrent); 2]),
        (State::CompleteCommit, [Err(WrongState), Ok(End::Decide)], [Ok(End::Repeated), Err(WrongState)]),
        (State::CompleteAbort, [Err(WrongState), Ok(End::Decide)], [Err(Fenced), Ok(End::Repeated)]),
    ];
    for (state, current, before) in table {
        let transaction = transaction(state);
        for (commit, current, before) in [(true, current[0], before[0]), (false, current[1], before[1])] {
            let name = state.name();
            assert_eq!(end_txn::decide(&transaction, pair(EPOCH), commit, true), current, "{name} {commit}");
            assert_eq!(
                end_txn::decide(&transaction, pair(EPOCH - 1), commit, true),
                before,
                "{name} {commit} -1"
            );
            let busy = state.is_prepared();
            let expected = |refusal| Err(if busy { Concurrent } else { refusal });
            assert_eq!(
                end_txn::decide(&transaction, OTHER, commit, true),
                expected(Refusal::WrongProducerId)
            );
            for wrong in [EPOCH - 2, EPOCH + 1] {
                assert_eq!(end_txn::decide(&transaction, pair(wrong), commit, true), expected(Fenced));
            }
        }
    }
}

/// H7: whoever was fenced by another's InitProducerId is no predecessor, so its EndTxn is no repetition.
#[test]
fn hole_7_a_fenced_producers_end_is_no_repetition() {
    for state in [State::CompleteCommit, State::CompleteAbort] {
        let mut transaction = transaction(state);
        transaction.last_producer_epoch = -1;
        for commit in [true, false] {
            assert_eq!(end_txn::decide(&transaction, pair(EPOCH - 1), commit, true), Err(Refusal::Fenced));
        }
    }
}

/// InitProducerId in every state, without a pair and with each kind of pair: the table of 3.3.
#[test]
fn scenario_28_31_34_init_in_every_state() {
    assert_eq!(init_producer_id::decide(None, None), Ok(Init::Create));
    assert_eq!(init_producer_id::decide(None, Some(OTHER)), Ok(Init::Create));
    for state in State::ALL {
        let transaction = transaction(state);
        let decide = |expected| init_producer_id::decide(Some(&transaction), expected);
        let (none, current, before) = match state {
            State::PrepareCommit | State::PrepareAbort => {
                (Err(Refusal::Concurrent), Err(Refusal::Concurrent), Err(Refusal::Concurrent))
            }
            // Scenario 81: a stale pair never aborts an open transaction.
            State::Ongoing => (Ok(Init::Abort(-1)), Ok(Init::Abort(EPOCH)), Err(Refusal::Fenced)),
            State::Empty | State::CompleteCommit | State::CompleteAbort => {
                (Ok(Init::Bump(-1)), Ok(Init::Bump(EPOCH)), Ok(Init::Keep))
            }
        };
        assert_eq!(decide(None), none, "{}", state.name());
        assert_eq!(decide(Some(pair(EPOCH))), current, "{}", state.name());
        assert_eq!(decide(Some(pair(EPOCH - 1))), before, "{}", state.name());
        let foreign = if state.is_prepared() { Refusal::Concurrent } else { Refusal::Fenced };
        for wrong in [OTHER, pair(EPOCH + 1), pair(EPOCH - 2)] {
            assert_eq!(decide(Some(wrong)), Err(foreign), "{} {wrong:?}", state.name());
        }
    }
}

/// Scenarios 32, 33: at the last epoch a new producer id comes, and only the last pair may ask again.
#[test]
fn scenario_32_33_exhausted_epochs() {
    for state in [State::Empty, State::CompleteCommit, State::CompleteAbort] {
        let mut transaction = transaction(state);
        for epoch in [LAST_CLIENT_EPOCH, i16::MAX] {
            transaction.producer_epoch = epoch;
            let decide = |expected| init_producer_id::decide(Some(&transaction), expected);
            assert_eq!(decide(None), Ok(Init::Rotate(-1)));
            assert_eq!(decide(Some(pair(epoch))), Ok(Init::Rotate(epoch)));
            assert_eq!(decide(Some(pair(5))), Err(Refusal::Fenced));
        }
        let rotated = Transaction {
            producer_id: PID + 9,
            previous_producer_id: PID,
            producer_epoch: 0,
            last_producer_epoch: LAST_CLIENT_EPOCH,
            ..transaction.clone()
        };
        let decide = |expected| init_producer_id::decide(Some(&rotated), expected);
        assert_eq!(decide(Some(pair(LAST_CLIENT_EPOCH))), Ok(Init::Keep));
        for wrong in [pair(5), pair(LAST_CLIENT_EPOCH - 1), pair(i16::MAX)] {
            assert_eq!(decide(Some(wrong)), Err(Refusal::Fenced), "{wrong:?}");
        }
        assert_eq!(decide(Some(Pair { producer_id: PID + 9, producer_epoch: 0 })), Ok(Init::Bump(0)));
    }
}

/// Scenario 44: with protocol v2 the pair before a change of producer ids repeats, and only that one.
#[test]
fn scenario_44_end_v2_after_a_new_producer_id() {
    let mut transaction = transaction(State::CompleteCommit);
    transaction.producer_id = PID + 1;
    transaction.previous_producer_id = PID;
    transaction.producer_epoch = 0;
    transaction.last_producer_epoch = LAST_CLIENT_EPOCH;
    let decide = |pair, commit| end_txn::decide(&transaction, pair, commit, true);
    assert_eq!(decide(pair(LAST_CLIENT_EPOCH), true), Ok(End::Repeated));
    assert_eq!(decide(pair(LAST_CLIENT_EPOCH), false), Err(Refusal::WrongState));
    assert_eq!(decide(pair(LAST_CLIENT_EPOCH - 1), true), Err(Refusal::WrongProducerId));
}

/// AddPartitionsToTxn and its verifying form in every state: 3.4.
#[test]
fn scenario_38_40_add_and_verify_in_every_state() {
    let there = [partition(0)];
    let new = [partition(1)];
    assert_eq!(add_partitions::decide(None, pair(EPOCH), &there), Err(Refusal::WrongProducerId));
    assert_eq!(add_partitions::check(None, pair(EPOCH), &there[0]), Err(Refusal::WrongProducerId));
    for state in State::ALL {
        let transaction = transaction(state);
        let add = |pair, partitions: &[_]| add_partitions::decide(Some(&transaction), pair, partitions);
        let verify = |pair, partition| add_partitions::check(Some(&transaction), pair, partition);
        let name = state.name();
        if state.is_prepared() {
            // An addition is told to wait before its identity is looked at.
            for pair in [pair(EPOCH), pair(EPOCH + 1), OTHER] {
                assert_eq!(add(pair, &there), Err(Refusal::Concurrent), "{name}");
            }
            assert_eq!(verify(pair(EPOCH), &there[0]), Err(Refusal::Concurrent), "{name}");
        } else {
            let expected = if state == State::Ongoing { Add::Present } else { Add::Write };
            assert_eq!(add(pair(EPOCH), &there), Ok(expected), "{name}");
            assert_eq!(add(pair(EPOCH), &new), Ok(Add::Write), "{name}");
            assert_eq!(add(OTHER, &there), Err(Refusal::WrongProducerId), "{name}");
            for wrong in [EPOCH - 1, EPOCH + 1] {
                assert_eq!(add(pair(wrong), &there), Err(Refusal::Fenced), "{name}");
            }
            let found = if state == State::Ongoing { Ok(()) } else { Err(Refusal::NotInTransaction) };
            assert_eq!(verify(pair(EPOCH), &there[0]), found, "{name}");
            assert_eq!(verify(pair(EPOCH), &new[0]), Err(Refusal::NotInTransaction), "{name}");
        }
        assert_eq!(verify(OTHER, &there[0]), Err(Refusal::WrongProducerId), "{name}");
        assert_eq!(verify(pair(EPOCH - 1), &there[0]), Err(Refusal::Fenced), "{name}");
    }
}
