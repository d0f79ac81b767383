//! Random lives of members, with lost requests, lost answers, time, restarts and changing topics, against the
//! invariant that the protocol is for: a partition is owned by one member epoch at a time.
//!
//! A client owns a partition from when it takes it over until it drops it. It drops everything when it learns
//! that it was fenced. When an answer is lost, it forgets what it was told and not yet took over, and says
//! everything again; nothing in the protocol could tell the coordinator otherwise. So whoever is still a member owns at most what the coordinator believes, and what the
//! coordinator believes is without overlap. When everybody does its part, the group comes to rest with every
//! partition owned once.

use std::collections::BTreeSet;

use ottla_protocol::types::TopicIdPartition;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Act {
    Join(usize),
    Leave(usize, bool),
    /// Sends a heartbeat, reporting what is owned or (if nothing changed) not; the answer may be lost.
    Beat {
        client: usize,
        reports: bool,
        answer_lost: bool,
    },
    /// Does as told.
    Follow(usize),
    Pass(i64),
    Restart(bool),
    Topic(usize),
    Subscribe(usize, usize),
}

const CLIENTS: usize = 4;
const TOPICS: [&str; 3] = ["a", "b", "c"];

fn act() -> impl Strategy<Value = Act> {
    let client = 0..CLIENTS;
    prop_oneof![
        3 => client.clone().prop_map(Act::Join),
        1 => (client.clone(), any::<bool>()).prop_map(|(client, away)| Act::Leave(client, away)),
        12 => (client.clone(), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(client, reports, answer_lost)| Act::Beat { client, reports, answer_lost }),
        8 => client.clone().prop_map(Act::Follow),
        1 => prop_oneof![Just(500i64), Just(5_000), Just(12_000), Just(50_000)].prop_map(Act::Pass),
        1 => any::<bool>().prop_map(Act::Restart),
        1 => (0..TOPICS.len()).prop_map(Act::Topic),
        1 => (client, 1..8usize).prop_map(|(client, topics)| Act::Subscribe(client, topics)),
    ]
}

/// Clients and the broker; `incarnations` make new member ids.
struct World {
    broker: Broker,
    clients: Vec<Option<Consumer>>,
    reported: Vec<Option<Owned>>,
    incarnations: usize,
}

impl World {
    fn new() -> Self {
        let mut broker = Broker::new();
        create(&mut broker, "a", 5);
        create(&mut broker, "b", 2);
        Self { broker, clients: vec![None; CLIENTS], reported: vec![None; CLIENTS], incarnations: 0 }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Join(index) => self.join(index),
            Act::Leave(index, away) => {
                let Some(mut client) = self.clients[index].take() else { return };
                let epoch = if away && client.instance.is_some() { -2 } else { -1 };
                client.leave(&mut self.broker, epoch);
            }
            Act::Beat { client, reports, answer_lost } => self.beat(client, reports, answer_lost),
            Act::Follow(index) => {
                if let Some(client) = &mut self.clients[index] {
                    client.owned = client.told.clone();
                }
            }
            Act::Pass(ms) => self.broker.pass(ms),
            Act::Restart(from_snapshot) => {
                if from_snapshot {
                    self.broker.restart_from_snapshot();
                } else {
                    self.broker.restart();
                }
            }
            Act::Topic(index) => {
                let name = TOPICS[index];
                if self.broker.state.topics.by_name(name).is_some() {
                    self.broker.delete_topic(name);
                } else {
                    create(&mut self.broker, name, 3);
                }
            }
            Act::Subscribe(index, mask) => self.subscribe(index, mask),
        }
    }

    fn join(&mut self, index: usize) {
        if self.clients[index].is_none() {
            self.incarnations += 1;
            let id = format!("{index}-{}", self.incarnations);
            // The last one subscribes by an expression, the odd ones are static.
            let mut client = Consumer::new(&id, if index == 0 { &["a"] } else { &["a", "b", "c"] });
            if index == CLIENTS - 1 {
                client = Consumer::by_regex(&id, "[ab]");
            }
            client.instance = (index % 2 == 1).then_some(["x", "y", "z", "w"][index]);
            self.clients[index] = Some(client);
        }
        let client = self.clients[index].as_mut().expect("just made");
        let code = client.join(&mut self.broker);
        self.learn(index, code);
        self.reported[index] = Some(Owned::new());
    }

    /// Whoever is refused drops everything, and begins anew.
    fn learn(&mut self, index: usize, code: i16) {
        if code != 0 {
            assert!(matches!(code, 25 | 69 | 82 | 110 | 111), "code {code}");
            self.clients[index] = None;
        }
    }

    fn beat(&mut self, index: usize, reports: bool, answer_lost: bool) {
        let Some(mut client) = self.clients[index].clone() else { return };
        if client.epoch <= 0 {
            return;
        }
        let code = if self.reported[index].is_none() {
            client.repeat(&mut self.broker)
        } else if reports || self.reported[index].as_ref() != Some(&client.owned) {
            client.report(&mut self.broker)
        } else {
            client.beat(&mut self.broker)
        };
        if answer_lost {
            // What it was told before may not be true any more: it says everything again, and is told everything.
            let client = self.clients[index].as_mut().expect("cloned above");
            client.told.clone_from(&client.owned);
            self.reported[index] = None;
            return;
        }
        self.reported[index] = Some(client.owned.clone());
        self.clients[index] = Some(client);
        self.learn(index, code);
    }

    fn subscribe(&mut self, index: usize, mask: usize) {
        let Some(mut client) = self.clients[index].clone() else { return };
        if client.epoch <= 0 || client.regex.is_some() {
            return;
        }
        let names = TOPICS.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        client.topics = names.map(|(_, name)| *name).collect();
        let code = client.repeat(&mut self.broker);
        self.reported[index] = Some(client.owned.clone());
        self.clients[index] = Some(client);
        self.learn(index, code);
    }

    fn check(&self) {
        let owners = check_owners(&self.broker);
        for client in self.clients.iter().flatten() {
            check_client(&self.broker, &owners, &client.id, &client.owned);
        }
    }

    /// Everybody does its part for a while.
    fn settle(&mut self) {
        for round in 0..40 {
            for index in 0..CLIENTS {
                if self.clients[index].as_ref().is_none_or(|client| client.epoch <= 0) {
                    self.join(index);
                }
                self.act(Act::Follow(index));
                self.beat(index, true, false);
                self.check();
            }
            if round == 0 {
                self.broker.pass(40_000); // whoever was left behind is out after this and the next
            } else if round == 1 {
                self.broker.pass(5_100);
            }
        }
        let group = describe(&mut self.broker, "g");
        assert_eq!(group.group_state, "Stable");
        assert_eq!(group.members.len(), CLIENTS);
        let mut once = BTreeSet::new();
        for client in self.clients.iter().flatten() {
            assert_eq!(client.epoch, group.group_epoch);
            assert_eq!(client.owned, client.told);
            for (&topic_id, partitions) in &client.owned {
                for &partition in partitions {
                    assert!(once.insert((topic_id, partition)));
                }
            }
        }
        let wanted = TOPICS.iter().filter(|name| {
            let by_name = self.clients.iter().flatten().any(|client| client.topics.contains(name));
            by_name || **name != "c"
        });
        let existing = wanted.filter_map(|name| self.broker.state.topics.by_name(name));
        let all: i32 = existing.map(|topic| topic.partition_count).sum();
        assert_eq!(once.len(), usize::try_from(all).expect("few"));
    }
}

/// Who owns what by the coordinator's books, which must not contradict each other.
pub(super) fn check_owners(broker: &Broker) -> BTreeMap<TopicIdPartition, Text> {
    let mut owners = BTreeMap::new();
    let Some(consumer) = get(&broker.state, "g") else { return owners };
    for (id, member) in &consumer.stored.members {
        let assigned = member.current.assigned.iter().map(|(partition, _)| partition);
        for partition in assigned.chain(member.current.pending_revocation.iter()) {
            let other = owners.insert(partition, id.clone());
            assert!(other.is_none(), "{partition:?} is owned by {id} and {other:?}");
            assert_eq!(consumer.stored.owner(partition), Some(id));
        }
        let timers = consumer.timers.get(id).expect("every member has a session");
        assert!(timers.session_at > broker.now);
    }
    assert_eq!(consumer.timers.len(), consumer.stored.members.len());
    owners
}

/// That a client, while it is a member, owns no more than the coordinator believes.
pub(super) fn check_client(
    broker: &Broker,
    owners: &BTreeMap<TopicIdPartition, Text>,
    id: &str,
    owned: &Owned,
) {
    let Some(consumer) = get(&broker.state, "g") else { return };
    if consumer.stored.member(id).is_none() {
        return;
    }
    for (&topic_id, partitions) in owned {
        for &partition in partitions {
            let partition = TopicIdPartition { topic_id, partition };
            let owner = owners.get(&partition);
            assert!(owner.is_some_and(|owner| *owner == *id), "{id} owns {partition:?}: {owner:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// However members live, no partition has two owners, a restart loses nothing, and the group comes to rest.
    #[test]
    fn a_partition_has_one_owner(acts in prop::collection::vec(act(), 1..80)) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
            world.check();
        }
        world.settle();
        world.broker.restart_from_snapshot();
        world.broker.restart();
        world.check();
    }
}
