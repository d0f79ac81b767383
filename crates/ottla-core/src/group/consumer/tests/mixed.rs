//! Random lives of consumers and classic members in one group, against the same invariant.
//!
//! One consumer is always there, so that the group stays what it is. Eager classic members give everything up
//! before they join again, cooperative ones keep it and say so.

use proptest::prelude::*;

use super::migration::Classic;
use super::ownership::{check_client, check_owners};
use super::*;

#[derive(Clone, Debug)]
enum Act {
    /// A consumer does its part, whole or only the heartbeat.
    Consumer(usize, bool),
    ConsumerLeaves(usize),
    /// A classic member does its next step; its answer may be lost.
    Classic(usize, bool),
    ClassicStops(usize),
    Pass(i64),
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..2usize, any::<bool>()).prop_map(|(index, follows)| Act::Consumer(index, follows)),
        1 => (0..2usize).prop_map(Act::ConsumerLeaves),
        12 => (0..3usize, prop::bool::weighted(0.15)).prop_map(|(index, lost)| Act::Classic(index, lost)),
        1 => (0..3usize).prop_map(Act::ClassicStops),
        1 => prop_oneof![Just(1_000i64), Just(9_000), Just(21_000)].prop_map(Act::Pass),
        1 => Just(Act::Restart),
    ]
}

/// What a classic member does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    Join,
    Sync,
    Beat,
}

struct World {
    broker: Broker,
    /// The first one is always there.
    consumers: Vec<Option<Consumer>>,
    classics: Vec<(Classic, Turn)>,
    incarnations: usize,
}

impl World {
    fn new() -> Self {
        let mut broker = Broker::new();
        create(&mut broker, "a", 7);
        let fresh = || (Classic { generation: -1, ..Classic::default() }, Turn::Join);
        let mut world = Self {
            broker,
            consumers: vec![None; 2],
            classics: (0..3).map(|_| fresh()).collect(),
            incarnations: 0,
        };
        world.consumer(0, true);
        world
    }

    fn consumer(&mut self, index: usize, follows: bool) {
        let Some(client) = &mut self.consumers[index] else {
            self.incarnations += 1;
            let mut client = Consumer::new(&format!("{index}-{}", self.incarnations), &["a"]);
            assert_eq!(client.join(&mut self.broker), 0);
            self.consumers[index] = Some(client);
            return;
        };
        let code = if follows { client.follow(&mut self.broker) } else { client.report(&mut self.broker) };
        if code != 0 {
            assert!(matches!(code, 25 | 110), "code {code}");
            self.consumers[index] = None;
            if index == 0 {
                self.consumer(0, true);
            }
        }
    }

    /// Members 0 and 1 are cooperative, 2 is eager.
    fn classic(&mut self, index: usize, lost: bool) {
        let (mut client, turn) = self.classics[index].clone();
        let (code, next) = match turn {
            Turn::Join => {
                if index == 2 {
                    client.owned.clear();
                    self.classics[index].0.owned.clear();
                }
                (client.join(&mut self.broker), Turn::Sync)
            }
            Turn::Sync => {
                let before = client.owned.clone();
                let code = client.sync(&mut self.broker, &[]);
                // What it has to give up it gives up, and joins again to say so.
                let gives_up = index != 2 && before.iter().any(|partition| !client.owned.contains(partition));
                (code, if gives_up { Turn::Join } else { Turn::Beat })
            }
            Turn::Beat => (client.beat(&mut self.broker), Turn::Beat),
        };
        if lost && !client.id.is_empty() && turn != Turn::Sync {
            // It joins again, with the id that it may have learned only now.
            self.classics[index].0.id = client.id;
            self.classics[index].1 = Turn::Join;
            return;
        }
        self.classics[index] = match code {
            0 => (client, next),
            27 => (client, Turn::Join),
            22 | 25 => (Classic { generation: -1, ..Classic::default() }, Turn::Join),
            other => panic!("code {other}"),
        };
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Consumer(index, follows) => self.consumer(index, follows),
            Act::ConsumerLeaves(index) => {
                if index > 0
                    && let Some(mut client) = self.consumers[index].take()
                {
                    client.leave(&mut self.broker, -1);
                }
            }
            Act::Classic(index, lost) => self.classic(index, lost),
            Act::ClassicStops(index) => {
                self.classics[index] = (Classic { generation: -1, ..Classic::default() }, Turn::Join);
            }
            Act::Pass(ms) => {
                for _ in 0..=ms / 5_000 {
                    self.broker.pass(ms.min(5_000));
                    self.consumer(0, true);
                }
            }
            Act::Restart => {
                self.broker.restart_from_snapshot();
                self.broker.restart();
            }
        }
    }

    fn check(&self) {
        let owners = check_owners(&self.broker);
        for client in self.consumers.iter().flatten() {
            check_client(&self.broker, &owners, &client.id, &client.owned);
        }
        let topic = self.broker.state.topics.by_name("a").expect("it is not deleted").id;
        for (client, _) in &self.classics {
            check_client(&self.broker, &owners, &client.id, &Owned::from([(topic, client.owned.clone())]));
        }
    }

    /// Everybody does its part for a while.
    fn settle(&mut self) {
        for round in 0..60 {
            for index in 0..2 {
                self.consumer(index, true);
                self.check();
            }
            for index in 0..3 {
                self.classic(index, false);
                self.check();
            }
            if round < 25 {
                self.broker.pass(2_000); // whoever was left behind is out after this
            }
        }
        let group = describe(&mut self.broker, "g");
        assert_eq!((&*group.group_state, group.members.len()), ("Stable", 5));
        let consumers = self.consumers.iter().flatten().map(|client| client.owned.values().flatten().count());
        let classics = self.classics.iter().map(|(client, _)| client.owned.len());
        assert_eq!(consumers.chain(classics).sum::<usize>(), 7);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// However consumers and classic members live together, no partition has two owners, a restart loses nothing,
    /// and the group comes to rest.
    #[test]
    fn a_partition_has_one_owner(acts in prop::collection::vec(act(), 1..80)) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
            world.check();
        }
        world.settle();
    }
}
