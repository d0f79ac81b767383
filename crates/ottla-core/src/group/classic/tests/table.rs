//! The table of section 5.2: every state and every event.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    Preparing,
    Completing,
    Stable,
    Absent,
}

const STATES: [State; 5] = [State::Empty, State::Preparing, State::Completing, State::Stable, State::Absent];

const CHANGED: &[(&str, &[u8])] = &[("range", b"changed")];

/// A group in a state, with a leader and a follower; in `Preparing` neither has joined again. In `Empty` and
/// `Absent` they are the ones that were there.
fn group(state: State) -> (Broker, Known, Known) {
    let mut broker = Broker::new();
    let members = broker.stable(2);
    let (leader, follower) = (members[0].clone(), members[1].clone());
    match state {
        State::Stable => {}
        State::Preparing => {
            broker.come(&ANYBODY);
        }
        State::Completing => {
            let one = broker.send_join(5, &Joiner { id: &leader.id, ..ANYBODY });
            let other = broker.send_join(5, &Joiner { id: &follower.id, ..ANYBODY });
            assert!(broker.joined(one).is_some() && broker.joined(other).is_some());
        }
        State::Empty | State::Absent => {
            assert_eq!(broker.leave(&[(&leader.id, None), (&follower.id, None)]), [0, 0]);
            if state == State::Absent {
                assert_eq!(broker.delete(), 0);
            }
        }
    }
    let generation = if state == State::Completing { 2 } else { 1 };
    let known = |member: Known| Known { generation, ..member };
    (broker, known(leader), known(follower))
}

const NAMES: [&str; 5] = ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"];

/// Runs an event in every state: what it is answered (none: it waits) and the state afterwards.
fn row(
    event: impl Fn(&mut Broker, &Known, &Known) -> Option<i16>,
    wanted: [(Option<i16>, &str); 5],
    what: &str,
) {
    for (at, state) in STATES.into_iter().enumerate() {
        let (mut broker, leader, follower) = group(state);
        assert_eq!(broker.state(), NAMES[at], "the group of the row {what}");
        let code = event(&mut broker, &leader, &follower);
        assert_eq!((code, broker.state().as_str()), wanted[at], "{what} in {state:?}");
        broker.shard.assert_loads();
    }
}

fn join(broker: &mut Broker, version: i16, joiner: &Joiner<'_>) -> Option<i16> {
    let token = broker.send_join(version, joiner);
    broker.joined(token).map(|response| response.error_code)
}

const E: &str = NAMES[0];
const PR: &str = NAMES[1];
const CR: &str = NAMES[2];
const S: &str = NAMES[3];
const D: &str = NAMES[4];

/// Who comes for the first time.
#[test]
fn joins_of_new_members() {
    row(
        |broker, _, _| join(broker, 5, &ANYBODY),
        [(Some(79), E), (Some(79), PR), (Some(79), CR), (Some(79), S), (Some(79), E)],
        "join, new dynamic, version 5",
    );
    row(
        |broker, _, _| join(broker, 3, &ANYBODY),
        [(None, PR), (None, PR), (None, PR), (None, PR), (None, PR)],
        "join, new dynamic, version 3",
    );
    row(
        |broker, _, _| {
            let (_, token) = broker.come(&ANYBODY);
            broker.joined(token).map(|response| response.error_code)
        },
        [(None, PR), (None, PR), (None, PR), (None, PR), (None, PR)],
        "join, pending id",
    );
    row(
        |broker, _, _| join(broker, 5, &Joiner { instance: Some("i"), ..ANYBODY }),
        [(None, PR), (None, PR), (None, PR), (None, PR), (None, PR)],
        "join, new static",
    );
}

/// Who comes again.
#[test]
fn joins_of_members() {
    row(
        |broker, _, follower| join(broker, 5, &Joiner { id: &follower.id, ..ANYBODY }),
        [(Some(25), E), (None, PR), (Some(0), CR), (Some(0), S), (Some(25), D)],
        "join, follower, unchanged",
    );
    row(
        |broker, leader, _| join(broker, 5, &Joiner { id: &leader.id, ..ANYBODY }),
        [(Some(25), E), (None, PR), (Some(0), CR), (None, PR), (Some(25), D)],
        "join, leader, unchanged",
    );
    row(
        |broker, _, follower| join(broker, 5, &Joiner { id: &follower.id, protocols: CHANGED, ..ANYBODY }),
        [(Some(25), E), (None, PR), (None, PR), (None, PR), (Some(25), D)],
        "join, follower, changed",
    );
}

/// SyncGroup and Heartbeat.
#[test]
fn syncs_and_heartbeats() {
    let sync = |broker: &mut Broker, member: &Known| {
        let token = broker.send_sync(5, member, &[], |_| {});
        broker.synced(token).map(|(code, _)| code)
    };
    row(
        |broker, _, follower| sync(broker, follower),
        [(Some(25), E), (Some(27), PR), (None, CR), (Some(0), S), (Some(25), D)],
        "sync, follower",
    );
    row(
        |broker, leader, _| sync(broker, leader),
        [(Some(25), E), (Some(27), PR), (Some(0), S), (Some(0), S), (Some(25), D)],
        "sync, leader",
    );
    row(
        |broker, leader, _| Some(broker.heartbeat(leader)),
        [(Some(25), E), (Some(27), PR), (Some(0), CR), (Some(0), S), (Some(25), D)],
        "heartbeat",
    );
    let old = |member: &Known| Known { generation: 0, ..member.clone() };
    row(
        |broker, leader, _| Some(broker.heartbeat(&old(leader))),
        [(Some(25), E), (Some(22), PR), (Some(22), CR), (Some(22), S), (Some(25), D)],
        "heartbeat, old generation",
    );
    row(
        |broker, leader, _| sync(broker, &old(leader)),
        [(Some(25), E), (Some(22), PR), (Some(22), CR), (Some(22), S), (Some(25), D)],
        "sync, old generation",
    );
}

/// Members go: by themselves, by silence, by a rebalance or a sync that they miss.
#[test]
fn departures() {
    row(
        |broker, leader, _| Some(broker.leave(&[(&leader.id, None)])[0]),
        [(Some(25), E), (Some(0), PR), (Some(0), PR), (Some(0), PR), (Some(25), D)],
        "leave",
    );
    row(
        |broker, _, _| {
            broker.sleep(10_000);
            None
        },
        // All sessions end; in Preparing the third member is there.
        [(None, E), (None, CR), (None, E), (None, E), (None, D)],
        "session expiry of all",
    );
    row(
        |broker, leader, follower| {
            for _ in 0..4 {
                broker.sleep(5000);
                broker.heartbeat(leader);
                broker.heartbeat(follower);
            }
            None
        },
        [(None, E), (None, CR), (None, E), (None, S), (None, D)],
        "heartbeats alone for the rebalance timeout",
    );
}

/// Offsets.
#[test]
fn commits() {
    row(
        |broker, leader, _| Some(broker.commit(&leader.id, leader.generation)),
        [(Some(25), E), (Some(0), PR), (Some(27), CR), (Some(0), S), (Some(22), D)],
        "OffsetCommit of a member",
    );
    row(
        |broker, _, _| Some(broker.commit("", -1)),
        [(Some(0), E), (Some(25), PR), (Some(25), CR), (Some(25), S), (Some(0), E)],
        "OffsetCommit of nobody",
    );
    row(
        |broker, leader, _| Some(broker.txn_commit(&leader.id, leader.generation)),
        [(Some(25), E), (Some(0), PR), (Some(0), CR), (Some(0), S), (Some(22), D)],
        "TxnOffsetCommit of a member",
    );
    row(
        |broker, leader, _| Some(broker.txn_commit(&leader.id, leader.generation + 1)),
        [(Some(25), E), (Some(22), PR), (Some(22), CR), (Some(22), S), (Some(22), D)],
        "TxnOffsetCommit, wrong generation",
    );
    row(
        |broker, _, _| Some(broker.txn_commit("", -1)),
        [(Some(0), E), (Some(0), PR), (Some(0), CR), (Some(0), S), (Some(0), D)],
        "TxnOffsetCommit of nobody",
    );
    row(
        |broker, _, _| Some(broker.delete()),
        [(Some(0), D), (Some(68), PR), (Some(68), CR), (Some(68), S), (Some(69), D)],
        "DeleteGroups",
    );
}
