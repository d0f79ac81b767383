//! Scenarios of eos-semantics section 7 that are the coordinator's, through the whole shard.

use super::super::state::LAST_CLIENT_EPOCH;
use super::*;

/// One record in the transaction of a v1 client, added first.
fn send_v1(broker: &mut Broker, id: &str, pair: Pair, sequence: i32, value: &str) {
    assert_eq!(broker.add(id, pair, "a", 0), 0);
    assert_eq!(broker.produce(11, id, pair, &to("a", sequence), value), 0);
}

fn started(id: &str) -> (Broker, Pair) {
    let mut broker = Broker::new();
    broker.topic("a");
    let (code, pair) = broker.init(id, None);
    assert_eq!((code, pair.producer_epoch), (0, 0));
    (broker, pair)
}

/// An id in Empty at epoch 32766.
fn exhausted(id: &str) -> (Broker, Pair) {
    let (mut broker, mut pair) = started(id);
    while pair.producer_epoch < LAST_CLIENT_EPOCH {
        let (code, next) = broker.init(id, None);
        assert_eq!((code, next), (0, pair.at(pair.producer_epoch + 1)));
        pair = next;
    }
    (broker, pair)
}

/// Half a pair, an empty id and timeouts out of bounds are refused; without an id each call gets a fresh pair.
#[test]
fn scenario_27_refused_and_idempotent_init() {
    let mut broker = Broker::new();
    let half = |producer_id, producer_epoch| Some(Pair { producer_id, producer_epoch });
    assert_eq!(broker.init("", None), (42, Pair::NONE));
    assert_eq!(broker.init("t", half(5, -1)).0, 42);
    assert_eq!(broker.init("t", half(-1, 5)).0, 42);
    for timeout in [0, -1, 900_001] {
        assert_eq!(broker.init_with(4, "t", None, timeout).0, 50);
    }
    assert!(broker.state.transactions.get("t").is_none());
    assert_eq!(broker.init_with(4, "t", None, 900_000).0, 0);
    let mut seen = std::collections::BTreeSet::new();
    for turn in 0..2500 {
        if turn % 700 == 699 {
            broker.restart();
        }
        let request = m::InitProducerIdRequest { producer_id: -1, producer_epoch: -1, ..Default::default() };
        let request = m::InitProducerIdRequest { transactional_id: None, ..request };
        let Reply::InitProducerId(response) = broker.ask(4, CommandBody::InitProducerId(request)) else {
            panic!("another answer")
        };
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        assert!(seen.insert(response.producer_id), "a producer id twice");
    }
}

/// The second call fences the first producer, in every version's own code.
#[test]
fn scenario_28_each_call_fences_the_one_before() {
    let (mut broker, old) = started("t");
    let (_, new) = broker.init("t", None);
    assert_eq!(new, old.at(1));
    for version in 0..4 {
        assert_eq!(broker.add_with(version, "t", old, "a", 0), if version >= 2 { 90 } else { 47 });
    }
    for version in 0..6 {
        assert_eq!(broker.end(version, "t", old, true), (if version >= 2 { 90 } else { 47 }, Pair::NONE));
    }
    assert_eq!(broker.add_offsets("t", old, "g"), 90);
    assert_eq!(broker.init_with(3, "t", Some(old.at(9)), 1000).0, 47);
    send_v1(&mut broker, "t", new, 0, "x");
    assert_eq!(broker.produce(11, "t", old, &to("a", 0), "y"), 47);
    assert_eq!(broker.end(4, "t", new, true).0, 0);
    assert_eq!(broker.visible("a", 0), ["x"]);
}

/// An open transaction is aborted under the next epoch and its successor gets the one behind it, in one frame
/// and without a 51; with its own pair a producer gets the fence's epoch.
#[test]
fn scenario_29_an_open_transaction_is_aborted_at_once() {
    for v2 in [false, true] {
        let (mut broker, old) = started("t");
        if v2 {
            assert_eq!(broker.produce(12, "t", old, &to("a", 0), "lost"), 0);
        } else {
            send_v1(&mut broker, "t", old, 0, "lost");
        }
        assert_eq!(broker.init("t", None), (0, old.at(2)));
        assert_eq!(broker.state_of("t"), State::Empty);
        assert_eq!(broker.markers("a", 0), [(false, 1)]);
        assert_eq!(broker.bounds("a", 0), (2, 2));
        // H7, 29: the one that was fenced is given nothing, neither by its pair nor by its end.
        assert_eq!(broker.init("t", Some(old)).0, 90);
        assert_eq!(broker.end(5, "t", old, false).0, 90);
        assert_eq!(broker.produce(12, "t", old, &to("a", 1), "late"), 47);
        assert_eq!(broker.produce(12, "t", old.at(2), &to("a", 0), "seen"), 0);
        assert_eq!(broker.init("t", Some(old.at(2))), (0, old.at(3)));
        assert_eq!(broker.init("t", Some(old.at(2))), (0, old.at(3)), "the repeated call");
        assert_eq!(broker.produce(12, "t", old.at(3), &to("a", 0), "seen too"), 0);
        assert_eq!(broker.end(5, "t", old.at(3), true), (0, old.at(4)));
        assert_eq!(broker.visible("a", 0), ["seen too"]);
    }
}

/// With the right pair the epoch grows; the pair before repeats; others are fenced, also after a restart (84).
#[test]
fn scenario_31_84_expected_pairs() {
    for restarts in [false, true] {
        let (mut broker, pair) = started("t");
        let init = |broker: &mut Broker, epoch| {
            if restarts {
                broker.restart_from_snapshot();
            }
            broker.init("t", Some(pair.at(epoch)))
        };
        for epoch in 0..3 {
            assert_eq!(init(&mut broker, epoch), (0, pair.at(epoch + 1)));
        }
        assert_eq!(init(&mut broker, 2), (0, pair.at(3)));
        assert_eq!(init(&mut broker, 3), (0, pair.at(4)));
        assert_eq!(init(&mut broker, 2), (90, Pair::NONE));
        assert_eq!(init(&mut broker, 3), (0, pair.at(4)));
        assert_eq!(init(&mut broker, 5), (90, Pair::NONE));
        assert_eq!(broker.init("t", None), (0, pair.at(5)));
        assert_eq!(init(&mut broker, 4), (90, Pair::NONE), "without a pair the epoch before is no retry");
    }
}

/// At epoch 32766 a new producer id comes; the retry gets the same pair; other pairs are fenced.
#[test]
fn scenario_32_the_last_epoch() {
    let (mut broker, old) = exhausted("t");
    assert_eq!(broker.init("t", Some(old.at(5))).0, 90);
    let (code, new) = broker.init("t", Some(old));
    assert_eq!((code, new.producer_epoch), (0, 0));
    assert_ne!(new.producer_id, old.producer_id);
    broker.restart();
    assert_eq!(broker.init("t", Some(old)), (0, new));
    for epoch in [5, LAST_CLIENT_EPOCH - 1] {
        assert_eq!(broker.init("t", Some(old.at(epoch))).0, 90);
    }
    assert_eq!(broker.add("t", old, "a", 0), 49);
    assert_eq!(broker.init("t", None), (0, new.at(1)));
}

/// A transaction open at 32766 is aborted under 32767, and nobody ever sees a negative epoch.
#[test]
fn scenario_33_an_open_transaction_at_the_last_epoch() {
    for with_pair in [false, true] {
        let (mut broker, old) = exhausted("t");
        assert_eq!(broker.produce(12, "t", old, &to("a", 0), "lost"), 0);
        let (code, new) = broker.init("t", with_pair.then_some(old));
        assert_eq!((code, new.producer_epoch), (0, i16::from(!with_pair)));
        assert_ne!(new.producer_id, old.producer_id);
        assert_eq!(broker.markers("a", 0), [(false, i16::MAX)]);
        assert_eq!(broker.init("t", Some(old)), if with_pair { (0, new) } else { (90, Pair::NONE) });
        assert_eq!(broker.init("t", Some(old.at(i16::MAX))).0, 90);
        assert_eq!(broker.produce(12, "t", new, &to("a", 0), "seen"), 0);
        assert_eq!(broker.end(5, "t", new, true).0, 0);
        assert_eq!(broker.visible("a", 0), ["seen"]);
    }
}

/// The commit at 32766 gives a new producer id, its markers carry the old one and 32767; the retry gets the same.
#[test]
fn scenario_44_a_commit_at_the_last_epoch() {
    let (mut broker, old) = exhausted("t");
    assert_eq!(broker.produce(12, "t", old, &to("a", 0), "seen"), 0);
    let (code, new) = broker.end(5, "t", old, true);
    assert_eq!((code, new.producer_epoch), (0, 0));
    assert_eq!(broker.markers("a", 0), [(true, i16::MAX)]);
    broker.restart();
    assert_eq!(broker.end(5, "t", old, true), (0, new));
    assert_eq!(broker.end(5, "t", old, false).0, 48);
    assert_eq!(broker.end(5, "t", old.at(LAST_CLIENT_EPOCH - 1), true).0, 49);
    assert_eq!(broker.produce(12, "t", new, &to("a", 0), "too"), 0);
    assert_eq!(broker.end(5, "t", old, true).0, 90, "an open transaction has no repetition");
    assert_eq!(broker.end(5, "t", new, true), (0, new.at(1)));
    assert_eq!(broker.visible("a", 0), ["seen", "too"]);
}

/// Pairs of other producers touch nothing; on an unknown id a pair is ignored.
#[test]
fn scenario_34_pairs_of_others() {
    let (mut broker, x) = started("x");
    let (_, y) = broker.init("y", None);
    assert_eq!(broker.produce(12, "x", x, &to("a", 0), "kept"), 0);
    assert_eq!(broker.init("x", Some(y)).0, 90);
    assert_eq!(broker.state_of("x"), State::Ongoing);
    let (code, z) = broker.init("z", Some(y));
    assert_eq!((code, z.producer_epoch), (0, 0));
    assert!(z.producer_id != x.producer_id && z.producer_id != y.producer_id);
    assert_eq!(broker.end(5, "x", x, true).0, 0);
    assert_eq!(broker.visible("a", 0), ["kept"]);
}

/// Identity; what is there already is not written again; one bad partition spoils the request.
#[test]
fn scenario_38_39_additions() {
    let (mut broker, pair) = started("t");
    assert_eq!(broker.add("unknown", pair, "a", 0), 49);
    assert_eq!(broker.add("t", Pair { producer_id: 1 << 40, ..pair }, "a", 0), 49);
    assert_eq!(broker.add("t", pair.at(1), "a", 0), 90);
    assert_eq!(broker.add_with(1, "t", pair.at(1), "a", 0), 47);
    assert_eq!(broker.add("", pair, "a", 0), 42);
    assert_eq!(broker.state_of("t"), State::Empty);
    assert_eq!(broker.add("t", pair, "a", 0), 0);
    let (position, start) = (broker.state.position(), broker.id("t").start_timestamp);
    broker.now += 5;
    assert_eq!(broker.add("t", pair, "a", 0), 0);
    assert_eq!(broker.state.position(), position, "nothing is written");
    assert_eq!(broker.add("t", pair, "a", 1), 0);
    assert_eq!((broker.id("t").partitions.len(), broker.id("t").start_timestamp), (2, start));

    let topic = |name: &str, partitions: &[i32]| m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
        name: Text::from(name),
        partitions: partitions.to_vec(),
        ..Default::default()
    };
    for (bad, expected) in [(("missing", 0), vec![(0, 55), (0, 3)]), (("a", 7), vec![(2, 55), (7, 3)])] {
        let (name, partition) = bad;
        let topics = if name == "a" {
            vec![topic("a", &[2, 7])]
        } else {
            vec![topic("a", &[0]), topic(name, &[partition])]
        };
        let request = m::AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: Text::from("t"),
            v3_and_below_producer_id: pair.producer_id,
            v3_and_below_producer_epoch: pair.producer_epoch,
            v3_and_below_topics: topics,
            ..Default::default()
        };
        let Reply::AddPartitionsToTxn(response) = broker.ask(3, CommandBody::AddPartitionsToTxn(request))
        else {
            panic!("another answer")
        };
        let codes: Vec<(i32, i16)> = response
            .results_by_topic_v3_and_below
            .iter()
            .flat_map(|topic| &topic.results_by_partition)
            .map(|result| (result.partition_index, result.partition_error_code))
            .collect();
        assert_eq!(codes, expected);
    }
    assert_eq!(broker.id("t").partitions.len(), 2, "nothing was added");
}

/// Brokers' versions: each transaction is answered for itself, verifying changes nothing.
#[test]
fn scenario_40_verify_and_add_for_others() {
    let (mut broker, pair) = started("t");
    let ask = |broker: &mut Broker, id: &str, verify_only, partitions: &[i32]| {
        let transaction = |id: &str| m::add_partitions_to_txn_request::AddPartitionsToTxnTransaction {
            transactional_id: Text::from(id),
            producer_id: pair.producer_id,
            producer_epoch: pair.producer_epoch,
            verify_only,
            topics: vec![m::add_partitions_to_txn_request::AddPartitionsToTxnTopic {
                name: Text::from("a"),
                partitions: partitions.to_vec(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let transactions = vec![transaction(id), transaction("")];
        let request = m::AddPartitionsToTxnRequest { transactions, ..Default::default() };
        let Reply::AddPartitionsToTxn(response) = broker.ask(5, CommandBody::AddPartitionsToTxn(request))
        else {
            panic!("another answer")
        };
        let codes = |at: usize| -> Vec<i16> {
            let results = &response.results_by_transaction[at].topic_results[0].results_by_partition;
            results.iter().map(|result| result.partition_error_code).collect()
        };
        assert_eq!(response.error_code, 0);
        assert!(codes(1).iter().all(|code| *code == 42));
        codes(0)
    };
    assert_eq!(ask(&mut broker, "t", true, &[0, 1]), [120, 120]);
    assert_eq!(broker.state_of("t"), State::Empty);
    assert_eq!(ask(&mut broker, "t", false, &[0]), [0]);
    assert_eq!(ask(&mut broker, "t", true, &[0, 1]), [0, 120]);
    assert_eq!(ask(&mut broker, "nobody", true, &[0]), [49]);
    assert_eq!(broker.id("t").client_transaction_version, 2);
}

/// A decision, its markers and its completion are one group of entries, with protocol v1 and v2; answers, states,
/// epochs and markers are Kafka's.
#[test]
fn scenario_41_42_43_46_ends() {
    let (mut broker, pair) = started("t");
    for commit in [true, false] {
        assert_eq!(broker.end(4, "t", pair, commit).0, 48);
    }
    for (turn, commit) in [true, false].into_iter().enumerate() {
        send_v1(&mut broker, "t", pair, i32::try_from(turn).expect("small"), "v1");
        let position = broker.state.position();
        assert_eq!(broker.end(4, "t", pair, commit), (0, Pair::NONE));
        assert_eq!(broker.state.position().0, position.0 + 1, "one decision");
        assert_eq!(broker.end(3, "t", pair, commit).0, 0);
        assert_eq!(broker.end(4, "t", pair, !commit).0, 48);
        broker.restart();
    }
    let (_, pair) = broker.init("t", Some(pair));
    assert_eq!(broker.end(5, "t", pair, true).0, 48);
    assert_eq!(broker.end(5, "t", pair, false), (0, pair.at(2)), "an abort of nothing");
    assert_eq!(broker.markers("a", 0), [(true, 0), (false, 0)], "has no marker");
    let pair = pair.at(2);
    assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "v2"), 0);
    assert_eq!(broker.end(5, "t", pair.at(1), false).0, 90, "a repetition while another is open");
    assert_eq!(broker.end(5, "t", pair, true), (0, pair.at(3)));
    assert_eq!(broker.end(5, "t", pair, true), (0, pair.at(3)));
    assert_eq!(broker.end(5, "t", pair, false).0, 48);
    assert_eq!(broker.end(5, "t", pair.at(3), true).0, 48);
    assert_eq!(broker.visible("a", 0), ["v1", "v2"]);
    assert_eq!(broker.id("t").transaction_sequence, 3, "transactions are counted");
    assert_eq!(broker.end(5, "t", pair.at(3), false), (0, pair.at(4)));
    assert_eq!(broker.end(5, "t", pair.at(3), true).0, 90, "a commit is no repetition of an abort");
}

/// A transaction past its timeout is aborted under the next epoch; the producer is fenced, may go on with its old
/// pair, and a late commit with v2 is refused as fenced.
#[test]
fn scenario_45_61_timeouts() {
    for v2 in [false, true] {
        let mut broker = Broker::new();
        broker.topic("a");
        let (_, pair) = broker.init_with(4, "t", None, 1000);
        broker.pass(60_000);
        if v2 {
            assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "lost"), 0);
        } else {
            send_v1(&mut broker, "t", pair, 0, "lost");
        }
        broker.pass(1000);
        assert_eq!(broker.state_of("t"), State::Ongoing, "not before its time is over");
        broker.pass(11_000);
        assert_eq!((broker.state_of("t"), broker.id("t").producer_epoch), (State::CompleteAbort, 1));
        assert_eq!(broker.markers("a", 0), [(false, 1)]);
        assert_eq!(broker.bounds("a", 0), (2, 2));
        if v2 {
            assert_eq!(broker.end(5, "t", pair, true).0, 90);
            assert_eq!(broker.end(5, "t", pair, false), (0, pair.at(1)));
            assert_eq!(broker.produce(12, "t", pair, &to("a", 1), "late"), 47);
        } else {
            assert_eq!(broker.end(4, "t", pair, true).0, 90);
            assert_eq!(broker.end(4, "t", pair, false).0, 90);
            assert_eq!(broker.add("t", pair, "a", 0), 90);
            assert_eq!(broker.produce(11, "t", pair, &to("a", 1), "late"), 47);
        }
        assert_eq!(broker.init("t", Some(pair)), (0, pair.at(1)));
        assert_eq!(broker.init("t", None), (0, pair.at(2)));
    }
}

/// Nothing times out right after a start, and a pause of the owner is given back to every transaction.
#[test]
fn timeouts_after_a_start_and_a_pause() {
    let mut broker = Broker::new();
    broker.topic("a");
    let (_, pair) = broker.init_with(4, "t", None, 60_000);
    assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "kept"), 0);
    broker.now += 3_600_000;
    broker.restart();
    broker.pass(9_999);
    assert_eq!(broker.state_of("t"), State::Ongoing, "grace after a start");
    broker.now += 3_600_000;
    broker.state.shift_deadlines(3_600_000);
    broker.run(0, CommandBody::Tick);
    assert_eq!(broker.state_of("t"), State::Ongoing, "the pause does not count");
    assert_eq!(broker.end(5, "t", pair, true).0, 0);
    assert_eq!(broker.visible("a", 0), ["kept"]);
    let (_, pair) = broker.init_with(4, "t", None, 60_000);
    assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "lost"), 0);
    broker.now += 3_600_000;
    broker.restart();
    broker.pass(25_000);
    assert_eq!(broker.state_of("t"), State::CompleteAbort, "the grace is short");
}

/// A decision that was loaded without its completion is completed under the new epoch; meanwhile everybody waits.
#[test]
fn scenario_30_46_47_a_loaded_decision_is_completed() {
    for (v2, commit) in [(false, true), (false, false), (true, true), (true, false)] {
        let (mut broker, first) = started("t");
        let (_, pair) = broker.init("t", Some(first));
        if v2 {
            assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "x"), 0);
        } else {
            send_v1(&mut broker, "t", pair, 0, "x");
        }
        let version = if v2 { 5 } else { 4 };
        assert_eq!(broker.end(version, "t", pair, commit).0, 0);
        // The log as a crash between shards would leave it: the decision's first entry alone.
        let group = broker.log.last_mut().expect("the decision");
        assert_eq!(group.entries.len(), 3, "decision, marker, completion");
        group.entries.truncate(1);
        let mut state = ShardState::new(broker.config.clone());
        for group in &broker.log {
            state.replay(&group.entries, group.position, group.time).expect("our own log");
        }
        state.begin_epoch(9, ShardTime(broker.now));
        broker.state = state;
        assert!(broker.state_of("t").is_prepared());
        assert_eq!(broker.init("t", None).0, 51);
        assert_eq!(broker.add("t", pair, "a", 1), 51);
        assert_eq!(broker.end(5, "t", pair, commit).0, 51);
        let elsewhere = To { topic: "a", partition: 1, sequence: 0 };
        assert_eq!(broker.produce(12, "t", pair, &elsewhere, "y"), 51);
        assert!(broker.state.next_deadline() <= Some(ShardTime(broker.now)));
        broker.run(0, CommandBody::Tick);
        assert_eq!(broker.state_of("t"), if commit { State::CompleteCommit } else { State::CompleteAbort });
        assert_eq!(broker.markers("a", 0), [(commit, 1 + i16::from(v2))]);
        assert_eq!(broker.visible("a", 0).len(), usize::from(commit));
        assert_eq!(broker.bounds("a", 0), (2, 2));
    }
}

/// A deleted topic does not keep a transaction from its end, also when its name is in use again.
#[test]
fn scenario_48_deleted_topics() {
    for (v2, commit) in [(false, true), (false, false), (true, true), (true, false)] {
        let (mut broker, pair) = started("t");
        broker.topic("gone");
        let version = if v2 { 12 } else { 11 };
        for topic in ["a", "gone"] {
            if !v2 {
                assert_eq!(broker.add("t", pair, topic, 0), 0);
            }
            assert_eq!(broker.produce(version, "t", pair, &to(topic, 0), "x"), 0);
        }
        broker.delete_topic("gone");
        broker.topic("gone");
        assert_eq!(broker.end(if v2 { 5 } else { 4 }, "t", pair, commit).0, 0);
        assert_eq!(broker.visible("a", 0).len(), usize::from(commit));
        assert_eq!(broker.markers("gone", 0), [], "the new topic is not touched");
        broker.restart();
    }
}

/// A transaction over many partitions is one decision; one beyond the limit is refused and stays usable.
#[test]
fn scenario_50_many_partitions() {
    let mut broker = Broker::with(|config| {
        config.num_partitions = 200;
        config.limits.transaction_partitions_max = 100;
    });
    broker.topic("a");
    let (_, pair) = broker.init("t", None);
    for partition in 0..100 {
        assert_eq!(broker.add("t", pair, "a", partition), 0);
    }
    assert_eq!(broker.add("t", pair, "a", 100), 44);
    let position = broker.state.position();
    assert_eq!(broker.end(4, "t", pair, true).0, 0);
    assert_eq!(broker.state.position().0, position.0 + 1);
    for partition in 0..100 {
        assert_eq!(broker.bounds("a", partition), (1, 1));
    }
    assert_eq!(broker.bounds("a", 100), (0, 0));
}

/// Ids that rest beyond the limit are forgotten; open ones and young ones stay; a forgotten producer gets 49.
#[test]
fn scenario_51_expiry() {
    let mut broker = Broker::with(|config| {
        config.transactional_id_expiration_ms = 20_000;
        config.transactional_id_cleanup_interval_ms = 1000;
    });
    broker.topic("a");
    let (_, rests) = broker.init("rests", None);
    assert_eq!(broker.produce(12, "rests", rests, &to("a", 0), "x"), 0);
    let (_, rests) = broker.end(5, "rests", rests, true);
    let (_, open) = broker.init_with(4, "open", None, 600_000);
    assert_eq!(broker.produce(12, "open", open, &to("a", 0), "y"), 0);
    broker.pass(15_000);
    broker.init("young", None);
    broker.restart();
    broker.pass(10_000);
    assert!(broker.state.transactions.get("rests").is_none());
    assert_eq!(broker.add("rests", rests, "a", 0), 49);
    assert_eq!(broker.end(5, "rests", rests, true).0, 49);
    assert_eq!(broker.state_of("open"), State::Ongoing);
    assert_eq!(broker.state_of("young"), State::Empty);
    assert_eq!(broker.end(5, "open", open, true).0, 0);
    let (_, again) = broker.init("rests", None);
    assert!(again.producer_id != rests.producer_id && again.producer_epoch == 0);
    broker.restart_from_snapshot();
}

/// Many ids expire in bounded ticks.
/// Public cases: KAFKA-13099 (17).
#[test]
fn expiry_in_bounded_steps() {
    let mut broker = Broker::with(|config| config.transactional_id_expiration_ms = 1000);
    for id in 0..10_000 {
        assert_eq!(broker.init(&format!("id-{id}"), None).0, 0);
    }
    broker.now += 4_000_000;
    let mut ticks = 0;
    while broker.state.transactions.len() > 0 {
        let decision = broker.run(0, CommandBody::Tick);
        let records: i32 = decision.entries.iter().map(|entry| entry.header.records_count).sum();
        assert!(records <= 4096);
        ticks += 1;
        assert!(ticks <= 4);
    }
}

/// Filters of ListTransactions, and DescribeTransactions of open, resting and unknown ids.
#[test]
fn scenario_52_list_and_describe() {
    let (mut broker, x) = started("x");
    let (_, y) = broker.init("y", None);
    assert_eq!(broker.produce(12, "x", x, &to("a", 0), "v"), 0);
    broker.now += 5000;
    let list = |broker: &mut Broker, change: &dyn Fn(&mut m::ListTransactionsRequest)| {
        let mut request = m::ListTransactionsRequest { duration_filter: -1, ..Default::default() };
        change(&mut request);
        let Reply::ListTransactions(response) = broker.ask(2, CommandBody::ListTransactions(request)) else {
            panic!("another answer")
        };
        let ids = response.transaction_states.iter().map(|listed| listed.transactional_id.to_string());
        (response.error_code, ids.collect::<Vec<_>>(), response.unknown_state_filters)
    };
    let texts = |names: &[&str]| names.iter().map(|name| Text::from(*name)).collect::<Vec<_>>();
    let all = list(&mut broker, &|_| {});
    assert_eq!((all.0, all.1), (0, vec!["x".to_owned(), "y".to_owned()]));
    let foo = list(&mut broker, &|request| request.state_filters = texts(&["Foo"]));
    assert_eq!((foo.1, foo.2), (vec![], texts(&["Foo"])));
    let known = list(&mut broker, &|request| request.state_filters = texts(&["Ongoing", "Bar", "Dead"]));
    assert_eq!((known.1, known.2), (vec!["x".to_owned()], texts(&["Bar"])));
    let by_producer = list(&mut broker, &|request| request.producer_id_filters = vec![y.producer_id]);
    assert_eq!(by_producer.1, ["y"]);
    assert_eq!(list(&mut broker, &|request| request.duration_filter = 4999).1, ["x"], "y has no transaction");
    assert!(list(&mut broker, &|request| request.duration_filter = 5000).1.is_empty());
    assert_eq!(list(&mut broker, &|request| request.transactional_id_pattern = Some("[x]".into())).1, ["x"]);
    assert_eq!(list(&mut broker, &|request| request.transactional_id_pattern = Some("([".into())).0, 128);

    let request = m::DescribeTransactionsRequest {
        transactional_ids: texts(&["x", "y", "z", ""]),
        ..Default::default()
    };
    let Reply::DescribeTransactions(response) = broker.ask(0, CommandBody::DescribeTransactions(request))
    else {
        panic!("another answer")
    };
    let described = &response.transaction_states;
    assert_eq!(described.iter().map(|d| d.error_code).collect::<Vec<_>>(), [0, 0, 105, 42]);
    assert_eq!(
        (&*described[0].transaction_state, described[0].transaction_start_time_ms),
        ("Ongoing", 1_000_000)
    );
    assert_eq!((&*described[0].topics[0].topic, &described[0].topics[0].partitions[..]), ("a", &[0][..]));
    assert_eq!((&*described[1].transaction_state, described[1].transaction_start_time_ms), ("Empty", -1));
    assert!(described[1].topics.is_empty());
}

/// An operator's markers: 3 without the partition, 47 for a stale epoch, 52 for a stale coordinator; an operator's
/// abort frees the partition; the coordinator's own marker gets through behind a raised coordinator epoch.
#[test]
fn scenario_10_49_53_markers_of_operators() {
    let (mut broker, pair) = started("t");
    let (_, pair) = broker.init("t", Some(pair));
    send_v1(&mut broker, "t", pair, 0, "lost");
    assert_eq!(broker.write_marker(pair, "missing", false, 0, 0), 3);
    assert_eq!(broker.write_marker(pair.at(-1), "a", false, 0, 0), 47);
    let nobody = Pair { producer_id: 1 << 40, producer_epoch: -1 };
    assert_eq!(broker.write_marker(nobody, "a", false, 0, 0), 42);
    assert_eq!(broker.write_marker(pair.at(0), "a", false, 0, 0), 47);
    assert_eq!(broker.bounds("a", 0), (0, 1));
    assert_eq!(broker.write_marker(pair, "a", false, 5, 0), 0);
    assert_eq!(broker.bounds("a", 0), (2, 2));
    assert_eq!(broker.write_marker(pair, "a", false, 4, 0), 52);
    assert_eq!(broker.produce(11, "t", pair, &to("a", 1), "seen"), 0);
    assert_eq!(broker.end(4, "t", pair, true).0, 0);
    assert_eq!(broker.visible("a", 0), ["seen"]);
    assert_eq!(broker.bounds("a", 0), (4, 4));
    // An epoch that an operator raised ends the transaction there; the coordinator's decision still completes.
    assert_eq!(broker.produce(12, "t", pair, &to("a", 2), "lost too"), 0);
    assert_eq!(broker.write_marker(pair.at(9), "a", false, 5, 0), 0);
    assert_eq!(broker.end(5, "t", pair, true).0, 0);
    assert_eq!(broker.state_of("t"), State::CompleteCommit);
    assert_eq!(broker.visible("a", 0), ["seen"]);
}

/// What was not added is refused and nothing is appended, in each version's code; v2 adds by itself.
#[test]
fn scenario_54_58_60_verification_and_implicit_addition() {
    let (mut broker, pair) = started("t");
    for version in 3..12 {
        let code = broker.produce(version, "t", pair, &to("a", 0), "no");
        assert_eq!(code, if version == 11 { 120 } else { 48 }, "Produce {version}");
    }
    for version in 0..5 {
        let code = broker.txn_commit(version, "t", pair, &at("g", "a", 5));
        assert_eq!(code, if version == 4 { 120 } else { 48 }, "TxnOffsetCommit {version}");
    }
    assert_eq!((broker.bounds("a", 0), broker.state_of("t")), ((0, 0), State::Empty));
    assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "yes"), 0);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 5)), 0);
    assert_eq!((broker.state_of("t"), broker.id("t").partitions.len()), (State::Ongoing, 2));
    for version in (3..14).filter(|version| *version != 13) {
        assert_eq!(broker.produce(version, "t", pair.at(7), &to("a", 0), "no"), 47, "Produce {version}");
        let other = Pair { producer_id: 1 << 40, ..pair };
        assert_eq!(broker.produce(version, "t", other, &to("a", 0), "no"), 49, "Produce {version}");
        let elsewhere = To { topic: "a", partition: 2, sequence: 0 };
        assert_eq!(broker.produce(version, "nobody", pair, &elsewhere, "no"), 49, "Produce {version}");
    }
    let (_, next) = broker.end(5, "t", pair, true);
    assert_eq!(broker.produce(12, "t", pair, &to("a", 1), "late"), 47);
    assert_eq!(broker.offset("g", "a", true), (5, 0));
    assert_eq!(broker.produce(12, "t", next, &to("a", 1), "no"), 45, "each transaction starts at 0");
    assert_eq!(broker.produce(12, "t", next, &to("a", 0), "yes too"), 0);
    assert_eq!(broker.end(5, "t", next, true).0, 0);
    assert_eq!(broker.visible("a", 0), ["yes", "yes too"]);
}

/// A producer changes from v1 to v2 in the middle of its life.
#[test]
fn scenario_61_v1_then_v2() {
    let (mut broker, pair) = started("t");
    for turn in 0..3 {
        send_v1(&mut broker, "t", pair, turn, "v1");
        assert_eq!(broker.end(4, "t", pair, true).0, 0);
        assert_eq!(broker.id("t").producer_epoch, 0, "the epoch is the client's");
    }
    let (_, pair) = broker.init("t", Some(pair));
    assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "v2"), 0);
    assert_eq!(broker.end(5, "t", pair, true), (0, pair.at(2)));
    assert_eq!(broker.markers("a", 0), [(true, 0), (true, 0), (true, 0), (true, 2)]);
    assert_eq!(broker.visible("a", 0).len(), 4);
}

/// A stale pair never aborts an open transaction, with either protocol.
#[test]
fn scenario_81_a_stale_pair_touches_nothing() {
    let (mut broker, pair) = started("t");
    let (_, pair) = broker.init("t", Some(pair));
    send_v1(&mut broker, "t", pair, 0, "kept");
    assert_eq!(broker.init("t", Some(pair.at(0))).0, 90);
    assert_eq!(broker.end(4, "t", pair, true).0, 0);
    let (_, pair) = broker.init("t", None);
    assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "too"), 0);
    assert_eq!(broker.init("t", Some(pair.at(pair.producer_epoch - 1))).0, 90);
    assert_eq!(broker.end(5, "t", pair, true).0, 0);
    assert_eq!(broker.visible("a", 0), ["kept", "too"]);
}

/// Switched off, v1 is told so by its additions, and v2 goes on.
#[test]
fn v1_can_be_switched_off() {
    let mut broker = Broker::with(|config| config.transaction_v1_enable = false);
    broker.topic("a");
    let (_, pair) = broker.init("t", None);
    assert_eq!(broker.add("t", pair, "a", 0), 35);
    assert_eq!(broker.add_offsets("t", pair, "g"), 35);
    assert_eq!(broker.state_of("t"), State::Empty);
    assert_eq!(broker.produce(12, "t", pair, &to("a", 0), "x"), 0);
    assert_eq!(broker.txn_commit(5, "t", pair, &at("g", "a", 1)), 0);
    assert_eq!(broker.end(5, "t", pair, true).0, 0);
    assert_eq!(broker.visible("a", 0), ["x"]);
}

/// When partitions remember as many producers as they may, a new one is kept out of new partitions, by Produce, by
/// an addition and by an operator's marker; those that are known go on and end their transactions.
#[test]
fn producers_are_bounded() {
    let mut broker = Broker::with(|config| config.limits.producers_max = 1);
    broker.topic("a");
    let (_, known) = broker.init("known", None);
    let (_, new) = broker.init("new", None);
    send_v1(&mut broker, "known", known, 0, "x");
    assert_eq!(broker.add("known", known, "a", 1), 44);
    assert_eq!(broker.add("new", new, "a", 0), 44);
    assert_eq!(broker.produce(12, "new", new, &to("a", 0), "no"), 44);
    assert_eq!(broker.txn_commit(5, "new", new, &at("g", "a", 1)), 44);
    assert_eq!(broker.write_marker(new, "a", false, 0, 0), 44);
    assert_eq!(broker.end(4, "known", known, true).0, 0);
    send_v1(&mut broker, "known", known, 1, "y");
    assert_eq!(broker.end(4, "known", known, true).0, 0);
    assert_eq!(broker.visible("a", 0), ["x", "y"]);
    assert_eq!(broker.state.partitions.producer_count(), 1);
}

/// Only so many ids are taken; the existing ones go on.
#[test]
fn ids_are_bounded() {
    let mut broker = Broker::with(|config| config.limits.transactional_ids_max = 2);
    let (_, first) = broker.init("1", None);
    assert_eq!(broker.init("2", None).0, 0);
    assert_eq!(broker.init("3", None).0, 15);
    assert_eq!(broker.init("1", None), (0, first.at(1)));
}

/// When as many transactions are open as may be, nobody begins another, by any way; who has one open goes on and ends
/// it, and then there is room. The same with the ceiling of one principal, and after a restart.
#[test]
fn open_transactions_are_bounded() {
    let ceilings: [fn(&mut crate::config::Limits); 2] =
        [|limits| limits.open_transactions_max = 2, |limits| limits.open_transactions_per_principal_max = 2];
    for set in ceilings {
        let mut broker = Broker::with(|config| set(&mut config.limits));
        broker.topic("a");
        let (_, first) = broker.init("first", None);
        let (_, second) = broker.init("second", None);
        let (_, third) = broker.init("third", None);
        assert_eq!(broker.add("first", first, "a", 0), 0);
        assert_eq!(broker.produce(12, "second", second, &to("a", 0), "x"), 0);
        for _ in 0..2 {
            assert_eq!(broker.add("third", third, "a", 0), 51);
            assert_eq!(broker.produce(12, "third", third, &to("a", 0), "no"), 51);
            assert_eq!(broker.txn_commit(5, "third", third, &at("g", "a", 1)), 51);
            assert_eq!(broker.state.transactions.open_count(), 2);
            broker.restart_from_snapshot();
        }
        assert_eq!(broker.add("first", first, "a", 2), 0, "a partition more is no transaction more");
        assert_eq!(broker.end(4, "first", first, true).0, 0);
        assert_eq!(broker.state.transactions.open_count(), 1);
        assert_eq!(broker.produce(12, "third", third, &to("a", 0), "y"), 0);
        assert_eq!(broker.end(5, "third", third, true).0, 0);
        assert_eq!(broker.end(5, "second", second, false).0, 0);
        assert_eq!(broker.state.transactions.open_count(), 0);
        assert_eq!(broker.state.transactions.partition_count(), 0);
    }
}

/// All transactions together name only so many partitions; those that are open end, and make room.
#[test]
fn partitions_of_all_transactions_are_bounded() {
    let mut broker = Broker::with(|config| config.limits.transactions_partitions_max = 3);
    broker.topic("a");
    let (_, first) = broker.init("first", None);
    let (_, second) = broker.init("second", None);
    for partition in 0..2 {
        assert_eq!(broker.add("first", first, "a", partition), 0);
    }
    assert_eq!(broker.add("second", second, "a", 0), 0);
    assert_eq!(broker.add("second", second, "a", 1), 44);
    assert_eq!(broker.add("first", first, "a", 2), 44);
    assert_eq!(broker.add("first", first, "a", 1), 0, "it is there");
    broker.restart_from_snapshot();
    assert_eq!(broker.add("first", first, "a", 2), 44);
    assert_eq!(broker.end(4, "second", second, true).0, 0);
    assert_eq!(broker.add("first", first, "a", 2), 0);
    assert_eq!(broker.end(4, "first", first, true).0, 0);
    assert_eq!(broker.state.transactions.partition_count(), 0);
}
