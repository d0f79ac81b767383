//! Random interleavings of several producers, with protocol v1 and v2, fenced instances, timeouts and restarts
//! between any two requests, against a model that a page of code can hold.
//!
//! The model knows transactions as lists of records and offsets: a commit makes all of them visible, an abort, a
//! fence or a timeout none. After every step the shard must agree on the records that a read_committed consumer
//! sees, on offsets (committed, and whether they are stable) and on the last stable offsets.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use proptest::prelude::*;

const IDS: [&str; 3] = ["x", "y", "z"];
const GROUPS: [&str; 2] = ["g", "h"];
const PARTITIONS: i32 = 2;
const TIMEOUT_MS: i32 = 30_000;

/// One random step. Numbers choose among what exists.
#[derive(Clone, Debug)]
enum Do {
    /// The id's next instance starts without a pair; the one before becomes a zombie.
    Start(usize),
    /// The instance starts again with its own pair (KIP-360), repeating the call or not.
    Resume(usize, bool),
    Produce(usize, i32),
    Offset(usize, usize),
    /// A commit outside of any transaction.
    PlainOffset(usize),
    End(usize, bool),
    /// EndTxn once more, as a client does that lost the answer.
    EndAgain(usize),
    /// A zombie tries everything.
    Zombie(usize),
    Pass(i64),
    Restart(bool),
    Snapshot,
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let id = 0..IDS.len();
    let step = prop_oneof![
        2 => id.clone().prop_map(Do::Start),
        2 => (id.clone(), any::<bool>()).prop_map(|(id, again)| Do::Resume(id, again)),
        10 => (id.clone(), 0..PARTITIONS).prop_map(|(id, partition)| Do::Produce(id, partition)),
        5 => (id.clone(), 0..GROUPS.len()).prop_map(|(id, group)| Do::Offset(id, group)),
        2 => (0..GROUPS.len()).prop_map(Do::PlainOffset),
        7 => (id.clone(), prop::bool::weighted(0.7)).prop_map(|(id, commit)| Do::End(id, commit)),
        1 => id.clone().prop_map(Do::EndAgain),
        2 => id.prop_map(Do::Zombie),
        2 => (1i64..25_000).prop_map(Do::Pass),
        2 => any::<bool>().prop_map(Do::Restart),
        1 => Just(Do::Snapshot),
    ];
    prop::collection::vec(step, 1..70)
}

/// What is in an open transaction.
#[derive(Clone, Debug, Default)]
struct Open {
    /// Partition and value.
    records: Vec<(i32, String)>,
    /// Group, offset, and the number of the step that wrote it.
    offsets: Vec<(usize, i64, usize)>,
}

/// An instance of a producer, as its client knows itself.
#[derive(Clone, Debug)]
struct Instance {
    pair: Pair,
    sequences: BTreeMap<i32, i32>,
    open: Option<Open>,
    /// Nothing of it is accepted any more but InitProducerId with its pair.
    timed_out: bool,
    /// How the last transaction ended, until something else is done.
    last_end: Option<(Pair, bool, Pair)>,
}

struct World {
    broker: Broker,
    v2: [bool; IDS.len()],
    instances: [Option<Instance>; IDS.len()],
    zombies: [Vec<Instance>; IDS.len()],
    /// Values visible by partition, in no order.
    visible: BTreeMap<i32, BTreeSet<String>>,
    /// By group: offset and the step that wrote it.
    offsets: BTreeMap<usize, (i64, usize)>,
    step: usize,
}

impl World {
    fn new(v2: [bool; IDS.len()]) -> Self {
        let mut broker = Broker::with(|config| {
            config.num_partitions = PARTITIONS;
            config.transaction_abort_interval_ms = 1000;
        });
        broker.topic("a");
        Self {
            broker,
            v2,
            instances: Default::default(),
            zombies: Default::default(),
            visible: BTreeMap::new(),
            offsets: BTreeMap::new(),
            step: 0,
        }
    }

    fn run(&mut self, what: &Do) {
        self.step += 1;
        match *what {
            Do::Start(id) => self.start(id),
            Do::Resume(id, again) => self.resume(id, again),
            Do::Produce(id, partition) => self.produce(id, partition),
            Do::Offset(id, group) => self.offset(id, group),
            Do::PlainOffset(group) => self.plain_offset(group),
            Do::End(id, commit) => self.end(id, commit),
            Do::EndAgain(id) => self.end_again(id),
            Do::Zombie(id) => self.zombie(id),
            Do::Pass(ms) => {
                self.broker.pass(ms);
                self.notice_timeouts();
            }
            Do::Restart(from_snapshot) => {
                if from_snapshot {
                    self.broker.restart_from_snapshot();
                } else {
                    self.broker.restart();
                }
            }
            Do::Snapshot => self.broker.take_snapshot(),
        }
        self.check();
    }

    /// Which transactions the shard has timed out is its business; when it may not is not.
    fn notice_timeouts(&mut self) {
        for (id, instance) in self.instances.iter_mut().enumerate() {
            let Some(instance) = instance else { continue };
            if instance.open.is_some() && self.broker.state_of(IDS[id]) == State::CompleteAbort {
                let transaction = self.broker.id(IDS[id]);
                let age = self.broker.now - transaction.start_timestamp;
                assert!(age > i64::from(TIMEOUT_MS), "aborted after {age} ms");
                instance.open = None;
                instance.timed_out = true;
            }
        }
    }

    fn start(&mut self, id: usize) {
        let (code, pair) = self.broker.init_with(4, IDS[id], None, TIMEOUT_MS);
        assert_eq!(code, 0);
        if let Some(mut before) = self.instances[id].take() {
            before.open = None;
            self.zombies[id].push(before);
        }
        self.instances[id] =
            Some(Instance { pair, sequences: BTreeMap::new(), open: None, timed_out: false, last_end: None });
    }

    fn resume(&mut self, id: usize, again: bool) {
        let Some(instance) = &mut self.instances[id] else { return };
        let before = instance.pair;
        let (code, pair) = self.broker.init_with(4, IDS[id], Some(before), TIMEOUT_MS);
        assert_eq!(code, 0, "the pair in use");
        assert!(pair.producer_epoch > before.producer_epoch);
        if again {
            assert_eq!(self.broker.init_with(4, IDS[id], Some(before), TIMEOUT_MS), (0, pair));
        }
        *instance =
            Instance { pair, sequences: BTreeMap::new(), open: None, timed_out: false, last_end: None };
    }

    fn produce(&mut self, id: usize, partition: i32) {
        let (v2, value) = (self.v2[id], format!("{}-{}", IDS[id], self.step));
        let Some(instance) = &mut self.instances[id] else { return };
        if !v2 {
            let code = self.broker.add(IDS[id], instance.pair, "a", partition);
            assert_eq!(code, if instance.timed_out { 90 } else { 0 });
        }
        let sequence = *instance.sequences.entry(partition).or_default();
        let to = To { topic: "a", partition, sequence };
        let code = self.broker.produce(if v2 { 12 } else { 11 }, IDS[id], instance.pair, &to, &value);
        if instance.timed_out {
            assert_eq!(code, 47);
            return;
        }
        assert_eq!(code, 0);
        // The same again is a duplicate, restart or not.
        assert_eq!(self.broker.produce(if v2 { 12 } else { 11 }, IDS[id], instance.pair, &to, &value), 0);
        instance.sequences.insert(partition, sequence + 1);
        instance.open.get_or_insert_default().records.push((partition, value));
        instance.last_end = None;
    }

    fn offset(&mut self, id: usize, group: usize) {
        let (v2, offset) = (self.v2[id], i64::try_from(self.step).expect("small"));
        let Some(instance) = &mut self.instances[id] else { return };
        if !v2 {
            let code = self.broker.add_offsets(IDS[id], instance.pair, GROUPS[group]);
            assert_eq!(code, if instance.timed_out { 90 } else { 0 });
        }
        let at = at(GROUPS[group], "a", offset);
        let code = self.broker.txn_commit(if v2 { 5 } else { 4 }, IDS[id], instance.pair, &at);
        if instance.timed_out {
            assert_eq!(code, 47);
            return;
        }
        assert_eq!(code, 0);
        let open = instance.open.get_or_insert_default();
        open.offsets.retain(|(there, ..)| *there != group);
        open.offsets.push((group, offset, self.step));
        instance.last_end = None;
    }

    fn plain_offset(&mut self, group: usize) {
        let offset = i64::try_from(self.step).expect("small");
        assert_eq!(crate::group::tests::plain_commit(&mut self.broker, GROUPS[group], "a", offset), 0);
        self.offsets.insert(group, (offset, self.step));
    }

    fn end(&mut self, id: usize, commit: bool) {
        let version = if self.v2[id] { 5 } else { 4 };
        let Some(instance) = &mut self.instances[id] else { return };
        let before = instance.pair;
        let (code, pair) = self.broker.end(version, IDS[id], before, commit);
        if instance.timed_out {
            // A late abort of v2 is taken for a repetition: it says what has happened.
            let repeated = self.v2[id] && !commit;
            assert_eq!(code, if repeated { 0 } else { 90 });
            return;
        }
        match instance.open.take() {
            Some(open) => {
                assert_eq!(code, 0);
                if commit {
                    self.commit(open);
                }
            }
            None if self.v2[id] => assert_eq!(code, if commit { 48 } else { 0 }),
            // v1 cannot tell a repetition from a new decision.
            None => assert!(code == 0 || code == 48),
        }
        let instance = self.instances[id].as_mut().expect("still there");
        if code == 0 && self.v2[id] {
            assert_eq!(pair, before.at(before.producer_epoch + 1));
            instance.pair = pair;
            instance.sequences.clear();
        }
        instance.last_end = (code == 0 && self.v2[id]).then_some((before, commit, pair));
    }

    fn commit(&mut self, open: Open) {
        for (partition, value) in open.records {
            self.visible.entry(partition).or_default().insert(value);
        }
        for (group, offset, step) in open.offsets {
            if self.offsets.get(&group).is_none_or(|(_, there)| step > *there) {
                self.offsets.insert(group, (offset, step));
            }
        }
    }

    fn end_again(&mut self, id: usize) {
        let Some(instance) = &self.instances[id] else { return };
        let Some((before, commit, pair)) = instance.last_end else { return };
        if !instance.timed_out {
            assert_eq!(self.broker.end(5, IDS[id], before, commit), (0, pair));
        }
    }

    fn zombie(&mut self, id: usize) {
        let Some(zombie) = self.zombies[id].last().cloned() else { return };
        let broker = &mut self.broker;
        let position = broker.state.position();
        assert_eq!(broker.add(IDS[id], zombie.pair, "a", 0), 90);
        assert_eq!(broker.add_offsets(IDS[id], zombie.pair, "g"), 90);
        for version in [11, 12] {
            assert_eq!(broker.produce(version, IDS[id], zombie.pair, &to("a", 500), "zombie"), 47);
        }
        for version in [4, 5] {
            assert_eq!(broker.txn_commit(version, IDS[id], zombie.pair, &at("g", "a", 9999)), 47);
            for commit in [true, false] {
                assert_eq!(broker.end(version, IDS[id], zombie.pair, commit).0, 90);
            }
        }
        assert_eq!(broker.init_with(4, IDS[id], Some(zombie.pair), TIMEOUT_MS).0, 90);
        assert_eq!(broker.state.position(), position, "a zombie writes nothing");
    }

    fn check(&mut self) {
        for partition in 0..PARTITIONS {
            let committed = self.broker.committed("a", partition);
            let count = committed.len();
            let seen: BTreeSet<String> = committed.into_iter().map(|(_, value)| value).collect();
            assert_eq!(seen.len(), count, "a record twice");
            assert_eq!(
                seen,
                self.visible.get(&partition).cloned().unwrap_or_default(),
                "partition {partition}"
            );
            let is_open = self.instances.iter().flatten().any(|instance| {
                instance.open.iter().flat_map(|open| &open.records).any(|(there, _)| *there == partition)
            });
            let (stable, high) = self.broker.bounds("a", partition);
            assert_eq!(stable < high, is_open, "partition {partition}: {stable} of {high}");
        }
        for (group, name) in GROUPS.into_iter().enumerate() {
            let expected = self.offsets.get(&group).map_or(-1, |(offset, _)| *offset);
            assert_eq!(self.broker.offset(name, "a", false), (expected, 0), "group {name}");
            let pending = self.instances.iter().flatten().any(|instance| {
                instance.open.iter().flat_map(|open| &open.offsets).any(|(there, ..)| *there == group)
            });
            let stable = if pending { (-1, 88) } else { (expected, 0) };
            assert_eq!(self.broker.offset(name, "a", true), stable, "group {name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Committed is visible whole, aborted is invisible, offsets move iff the data is visible, nothing hangs,
    /// whatever the producers do and whenever the shard is loaded again.
    #[test]
    fn transactions_agree_with_a_naive_model(v2 in any::<[bool; IDS.len()]>(), steps in steps()) {
        let mut world = World::new(v2);
        for step in &steps {
            world.run(step);
        }
        // Whatever is still open ends by itself.
        for instance in world.instances.iter_mut().flatten() {
            instance.open = None;
        }
        world.broker.pass(i64::from(TIMEOUT_MS) + 30_000);
        world.check();
        for partition in 0..PARTITIONS {
            let (visible, committed) = (world.broker.visible("a", partition), world.broker.committed("a", partition));
            prop_assert_eq!(visible.len(), committed.len(), "nothing waits");
        }
    }
}
