//! Late messages (eos-semantics section 8, suite number 90): every request of transaction n that arrives after
//! n has ended, before or inside transaction n+1, on a connection that its client has left.
//!
//! Wanted, whatever the late one is answered: n+1 works to its end and has exactly its own records and offsets, n
//! is visible whole or not at all, nothing is reopened, the last stable offset comes to the end of the log.

use super::*;

/// A request that comes late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    Produce,
    ProduceAgain,
    ProduceOtherPartition,
    AddPartitions,
    AddOffsets,
    TxnOffsetCommit,
    Commit,
    Abort,
    InitPair,
}

const LATES: [Late; 9] = [
    Late::Produce,
    Late::ProduceAgain,
    Late::ProduceOtherPartition,
    Late::AddPartitions,
    Late::AddOffsets,
    Late::TxnOffsetCommit,
    Late::Commit,
    Late::Abort,
    Late::InitPair,
];

/// How transaction n ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Commit,
    Abort,
    Fence,
    Timeout,
}

/// Steps of transaction n+1; the late request arrives behind one of them, or before all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    AddPartitions,
    AddOffsets,
    Produce,
    TxnOffsetCommit,
    End,
}

const PLACES: [Place; 6] = [
    Place::Before,
    Place::AddPartitions,
    Place::AddOffsets,
    Place::Produce,
    Place::TxnOffsetCommit,
    Place::End,
];

const OLD: u64 = 10;
const NEW: u64 = 20;

struct Case {
    broker: Broker,
    v2: bool,
}

impl Case {
    fn send(
        &mut self,
        connection: u64,
        late: Late,
        pair: Pair,
        sequence: i32,
        value: &str,
        offset: i64,
    ) -> i16 {
        let broker = &mut self.broker;
        broker.connection = connection;
        let (produce, commit, end) = if self.v2 { (12, 5, 5) } else { (11, 4, 4) };
        match late {
            Late::Produce => broker.produce(produce, "t", pair, &to("a", sequence), value),
            Late::ProduceAgain => broker.produce(produce, "t", pair, &to("a", 0), "n"),
            Late::ProduceOtherPartition => {
                broker.produce(produce, "t", pair, &To { topic: "a", partition: 1, sequence: 0 }, value)
            }
            Late::AddPartitions => broker.add("t", pair, "a", 0),
            Late::AddOffsets => broker.add_offsets("t", pair, "g"),
            Late::TxnOffsetCommit => broker.txn_commit(commit, "t", pair, &at("g", "a", offset)),
            Late::Commit => broker.end(end, "t", pair, true).0,
            Late::Abort => broker.end(end, "t", pair, false).0,
            Late::InitPair => broker.init("t", Some(pair)).0,
        }
    }
}

/// With v1 a late one that looks like a punctual one, since nothing newer has spoken for that family yet.
fn undecidable(v2: bool, late: Late, ended: Ended, place: Place) -> bool {
    let same_epoch = !v2 && matches!(ended, Ended::Commit | Ended::Abort);
    same_epoch
        && match late {
            Late::Produce => matches!(place, Place::AddPartitions | Place::AddOffsets),
            Late::TxnOffsetCommit => matches!(place, Place::AddOffsets | Place::Produce),
            _ => false,
        }
}

fn case(v2: bool, late: Late, ended: Ended, place: Place, commits: bool) {
    let what = format!("v2 {v2}, {late:?} after {ended:?}, behind {place:?}, n+1 commits {commits}");
    let mut case = Case { broker: Broker::new(), v2 };
    case.broker.topic("a");
    let (_, pair) = case.broker.init_with(4, "t", None, 60_000);
    if !v2 {
        assert_eq!(case.send(OLD, Late::AddPartitions, pair, 0, "", 0), 0, "{what}");
        assert_eq!(case.broker.add("t", pair, "a", 1), 0, "{what}");
        assert_eq!(case.send(OLD, Late::AddOffsets, pair, 0, "", 0), 0, "{what}");
    }
    assert_eq!(case.send(OLD, Late::Produce, pair, 0, "n", 0), 0, "{what}");
    assert_eq!(case.send(OLD, Late::TxnOffsetCommit, pair, 0, "", 1), 0, "{what}");
    match ended {
        Ended::Commit => assert_eq!(case.send(NEW, Late::Commit, pair, 0, "", 0), 0, "{what}"),
        Ended::Abort => assert_eq!(case.send(NEW, Late::Abort, pair, 0, "", 0), 0, "{what}"),
        Ended::Fence => assert_eq!(case.broker.init("t", None).0, 0, "{what}"),
        Ended::Timeout => {
            case.broker.pass(80_000);
            assert_eq!(case.broker.init("t", None).0, 0, "{what}");
        }
    }
    let now = case.broker.id("t").pair();
    let same_epoch = now == pair;
    let arrive = |case: &mut Case| {
        let cut = case.broker.state.volatile.fence.cut();
        let code = case.send(OLD, late, pair, 1, "late", 2);
        assert_eq!(
            case.broker.state.volatile.fence.cut() - cut,
            u64::from(code == CLOSED),
            "{what}: counted"
        );
    };
    if place == Place::Before {
        arrive(&mut case);
        assert!(case.broker.state_of("t").is_resting(), "{what}: reopened");
    }
    let end = if commits { Late::Commit } else { Late::Abort };
    let steps = [
        (Place::AddPartitions, Late::AddPartitions),
        (Place::AddOffsets, Late::AddOffsets),
        (Place::Produce, Late::Produce),
        (Place::TxnOffsetCommit, Late::TxnOffsetCommit),
        (Place::End, end),
    ];
    for (step, request) in steps {
        if v2 && matches!(step, Place::AddPartitions | Place::AddOffsets) {
            continue;
        }
        let code = case.send(NEW, request, now, i32::from(same_epoch), "n+1", 5);
        assert_eq!(code, 0, "{what}: {step:?} of n+1");
        if place == step {
            arrive(&mut case);
        }
    }
    case.broker.restart();
    assert!(case.broker.state_of("t").is_resting(), "{what}: open after all");
    let mut records: Vec<&str> = Vec::new();
    records.extend((ended == Ended::Commit).then_some("n"));
    records.extend(commits.then_some("n+1"));
    assert_eq!(case.broker.visible("a", 0), records, "{what}");
    assert_eq!(case.broker.visible("a", 1), Visible::new(), "{what}");
    for partition in [0, 1] {
        let (stable, high) = case.broker.bounds("a", partition);
        assert_eq!(stable, high, "{what}: the last stable offset hangs");
    }
    let offset = if commits { 5 } else { i64::from(ended == Ended::Commit) * 2 - 1 };
    assert_eq!(case.broker.offset("g", "a", true), (offset, 0), "{what}");
}

/// H1 to H7, H13: every late request, after every end, at every place, for both protocols, but the two that no
/// server can tell apart.
#[test]
fn holes_1_to_7_and_13_late_messages() {
    let mut cases = 0;
    for v2 in [false, true] {
        for late in LATES {
            for ended in [Ended::Commit, Ended::Abort, Ended::Fence, Ended::Timeout] {
                for place in PLACES {
                    let v1_only = |late| matches!(late, Late::AddPartitions | Late::AddOffsets);
                    let v1_place = matches!(place, Place::AddPartitions | Place::AddOffsets);
                    if v2 && (v1_only(late) || v1_place)
                        // Nobody commits while a batch of his is unaccounted for.
                        || late == Late::Produce && ended == Ended::Commit
                        || undecidable(v2, late, ended, place)
                    {
                        continue;
                    }
                    for commits in [true, false] {
                        case(v2, late, ended, place, commits);
                        cases += 1;
                    }
                }
            }
        }
    }
    assert!(cases > 400, "{cases} cases");
}

/// Scenario 82: a delayed EndTxn on the connection that its client has left is cut and decides nothing; switched
/// off, it decides, as in Kafka.
#[test]
fn scenario_82_the_connection_fence() {
    for enabled in [true, false] {
        let mut broker = Broker::with(|config| config.connection_fence_enable = enabled);
        broker.topic("a");
        broker.connection = OLD;
        broker.init("t", None);
        broker.connection = NEW;
        let (_, pair) = broker.init("t", None);
        assert_eq!(broker.add("t", pair, "a", 0), 0);
        broker.connection = OLD;
        assert_eq!(broker.end(3, "t", pair, true).0, if enabled { CLOSED } else { 0 });
        assert_eq!(broker.state_of("t") == State::Ongoing, enabled);
        assert_eq!(broker.state.volatile.fence.cut(), u64::from(enabled));
        broker.connection = NEW;
        assert_eq!(broker.end(3, "t", pair, !enabled).0, 0);
    }
}

/// A client that sends InitProducerId, data and coordinator requests over connections of their own, in any
/// order of acceptance, is never cut.
#[test]
fn healthy_clients_are_never_cut() {
    for order in [[1, 2, 3, 4], [4, 3, 2, 1], [2, 4, 1, 3]] {
        let [init, data, coordinator, offsets] = order;
        let mut broker = Broker::new();
        broker.topic("a");
        broker.connection = init;
        let (_, mut pair) = broker.init("t", None);
        for turn in 0..4 {
            broker.connection = coordinator;
            assert_eq!(broker.add("t", pair, "a", 0), 0);
            assert_eq!(broker.add_offsets("t", pair, "g"), 0);
            broker.connection = data;
            assert_eq!(broker.produce(11, "t", pair, &to("a", turn % 2), "x"), 0);
            broker.connection = offsets;
            assert_eq!(broker.txn_commit(4, "t", pair, &at("g", "a", 1)), 0);
            broker.connection = coordinator;
            assert_eq!(broker.end(4, "t", pair, turn != 2).0, 0);
            if turn == 1 {
                broker.connection = init;
                (_, pair) = broker.init("t", None);
            }
        }
        assert_eq!(broker.state.volatile.fence.cut(), 0);
    }
}

/// A client that takes one of several connections for each request (kafka-go's pool) loses nothing: what looked late
/// is decided once its sender was found to be there, and after that nothing of this pair looks late. The next pair
/// is guarded again.
#[test]
fn a_pool_of_connections_is_let_through_once() {
    let mut broker = Broker::new();
    broker.topic("a");
    let (_, pair) = broker.init("t", None);
    for turn in 0..3 {
        broker.connection = NEW;
        assert_eq!(broker.add("t", pair, "a", 0), 0);
        broker.connection = OLD;
        if turn == 0 {
            assert_eq!(broker.add("t", pair, "a", 1), CLOSED, "nobody knows yet");
            assert_eq!(broker.id("t").partitions.len(), 1);
            broker.is_alive = true;
        }
        assert_eq!(broker.add("t", pair, "a", 1), 0, "turn {turn}");
        broker.is_alive = false;
        broker.connection = NEW;
        assert_eq!(broker.produce(11, "t", pair, &to("a", turn), "x"), 0);
        broker.connection = OLD;
        assert_eq!(broker.end(3, "t", pair, true).0, 0, "turn {turn}");
    }
    assert_eq!(broker.state.late_requests_let_through(), 1);
    let (_, pair) = broker.init("t", None);
    broker.connection = NEW;
    assert_eq!(broker.add("t", pair, "a", 0), 0);
    broker.connection = OLD;
    assert_eq!(broker.end(3, "t", pair, true).0, CLOSED, "another pair");
}
