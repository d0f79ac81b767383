//! Random members, timers, restarts and loads against what must always hold.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// What a client is at.
#[derive(Clone, Debug, Default)]
enum Doing {
    #[default]
    Nothing,
    Joining(u64),
    Joined {
        /// As leader: all members, by id and by what they are known as for good.
        members: Option<Vec<(Text, String)>>,
    },
    Syncing(u64),
    Member,
}

/// A client that follows the protocol.
#[derive(Clone, Debug, Default)]
struct Client {
    id: Text,
    instance: Option<&'static str>,
    generation: i32,
    doing: Doing,
}

/// What is known of a generation.
#[derive(Debug, Default)]
struct Generation {
    leader: Option<Text>,
    /// Assignment by what a member is known as.
    assigned: Option<BTreeMap<String, String>>,
}

struct World {
    broker: Broker,
    clients: Vec<Client>,
    generations: BTreeMap<i32, Generation>,
    newest: i32,
    /// Answers that were looked at when they came.
    noted: BTreeSet<u64>,
}

impl World {
    fn new() -> Self {
        let instances = [None, None, None, Some("i"), Some("j")];
        let clients = instances.map(|instance| Client { instance, ..Client::default() }).to_vec();
        Self {
            broker: Broker::new(),
            clients,
            generations: BTreeMap::new(),
            newest: 0,
            noted: BTreeSet::new(),
        }
    }

    /// Looks at the answers that have just come.
    fn observe(&mut self) {
        let mut new = Vec::new();
        for (token, (reply, _)) in &self.broker.answers {
            if let Reply::JoinGroup(response) = reply
                && self.noted.insert(*token)
                && response.error_code == 0
            {
                new.push(response.clone());
            }
        }
        new.iter().for_each(|response| self.note(response));
    }

    /// A generation's answer is like every other answer of that generation.
    fn note(&mut self, response: &m::JoinGroupResponse) {
        assert!(response.generation_id >= self.newest, "generations grow");
        self.newest = response.generation_id;
        let generation = self.generations.entry(response.generation_id).or_default();
        let leads = !response.members.is_empty();
        assert!(!leads || response.leader == response.member_id, "only the leader sees the members");
        if generation.assigned.is_none() {
            let leader = generation.leader.get_or_insert_with(|| response.leader.clone());
            assert_eq!(*leader, response.leader, "a generation has one leader");
        }
    }

    fn restart(&mut self, at: usize) {
        self.clients[at] = Client { instance: self.clients[at].instance, ..Client::default() };
    }

    fn act(&mut self, at: usize) {
        self.broker.shard.connection = at as u64 + 10;
        let mut client = self.clients[at].clone();
        client.doing = match std::mem::take(&mut client.doing) {
            Doing::Nothing => {
                let joiner = Joiner { id: &client.id.clone(), instance: client.instance, ..ANYBODY };
                Doing::Joining(self.broker.send_join(9, &joiner))
            }
            Doing::Joining(token) => match self.broker.joined(token) {
                None => Doing::Joining(token),
                Some(response) => self.on_joined(&mut client, response),
            },
            Doing::Joined { members } => self.sync(&client, members),
            Doing::Syncing(token) => match self.broker.synced(token) {
                None => Doing::Syncing(token),
                Some((0, assignment)) => {
                    let generation = self.generations.get(&client.generation);
                    let assigned = generation.and_then(|generation| generation.assigned.as_ref());
                    let own = client.instance.map_or_else(|| client.id.to_string(), str::to_owned);
                    let wanted = assigned.expect("somebody assigned").get(&own).expect("a member");
                    assert_eq!(assignment, wanted.as_bytes(), "everybody gets what the leader gave");
                    Doing::Member
                }
                Some((code, _)) => Self::refused(&mut client, code),
            },
            Doing::Member => {
                let member = Known { id: client.id.clone(), generation: client.generation };
                match self.broker.heartbeat(&member) {
                    0 => Doing::Member,
                    code => Self::refused(&mut client, code),
                }
            }
        };
        self.clients[at] = client;
    }

    fn refused(client: &mut Client, code: i16) -> Doing {
        match code {
            25 | 82 => client.id = Text::EMPTY,
            22 | 27 => {}
            code => panic!("unexpected code {code}"),
        }
        Doing::Nothing
    }

    fn on_joined(&mut self, client: &mut Client, response: m::JoinGroupResponse) -> Doing {
        match response.error_code {
            0 => {
                client.id = response.member_id;
                client.generation = response.generation_id;
                let leads = response.leader == client.id && !response.skip_assignment;
                let members = response.members.iter().map(|member| {
                    let known = member.group_instance_id.as_ref().unwrap_or(&member.member_id);
                    (member.member_id.clone(), known.to_string())
                });
                Doing::Joined { members: leads.then(|| members.collect()) }
            }
            79 => {
                client.id = response.member_id;
                Doing::Nothing
            }
            code => Self::refused(client, code),
        }
    }

    fn sync(&mut self, client: &Client, members: Option<Vec<(Text, String)>>) -> Doing {
        let member = Known { id: client.id.clone(), generation: client.generation };
        let members = members.unwrap_or_default();
        let given: Vec<(&Text, String)> =
            members.iter().map(|(id, known)| (id, format!("{}/{known}", client.generation))).collect();
        let borrowed: Vec<(&Text, &[u8])> = given.iter().map(|(id, text)| (*id, text.as_bytes())).collect();
        let entries = self.broker.shard.log.len();
        let token = self.broker.send_sync(5, &member, &borrowed, |_| {});
        if self.broker.shard.log.len() > entries {
            let assigned =
                members.iter().zip(&given).map(|((_, known), (_, text))| (known.clone(), text.clone()));
            let generation = self.generations.entry(client.generation).or_default();
            assert!(generation.assigned.is_none(), "a generation is assigned once");
            generation.assigned = Some(assigned.collect());
        }
        Doing::Syncing(token)
    }

    fn close(&mut self, at: usize) {
        self.broker.close(at as u64 + 10);
        let client = &mut self.clients[at];
        if let Doing::Joining(token) | Doing::Syncing(token) = client.doing {
            self.broker.answers.remove(&token);
            client.doing = Doing::Nothing;
        }
    }

    /// Everybody's requests are lost, and generations that were not complete with them.
    fn reload(&mut self) {
        self.broker.reload();
        for client in &mut self.clients {
            if let Doing::Joining(_) | Doing::Syncing(_) = client.doing {
                client.doing = Doing::Nothing;
            }
        }
        self.broker.answers.clear();
        self.generations.retain(|_, generation| generation.assigned.is_some());
        self.newest = 0;
    }
}

#[derive(Clone, Debug)]
enum Event {
    Act(usize),
    Sleep(i64),
    Restart(usize),
    Leave(usize),
    Close(usize),
    Reload,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (0..5usize).prop_map(Event::Act),
        4 => (1..4000i64).prop_map(Event::Sleep),
        1 => (0..5usize).prop_map(Event::Restart),
        1 => (0..5usize).prop_map(Event::Leave),
        1 => (0..5usize).prop_map(Event::Close),
        1 => Just(Event::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever members do and whenever the state is loaded anew: generations grow, each has one leader, is
    /// assigned once and gives every member what the leader gave; and once everybody behaves, all are members
    /// of one stable generation.
    #[test]
    fn random_members(events in prop::collection::vec(event(), 1..250)) {
        let mut world = World::new();
        for event in events {
            match event {
                Event::Act(at) => world.act(at),
                Event::Sleep(ms) => world.broker.sleep(ms),
                Event::Restart(at) => world.restart(at),
                Event::Leave(at) => {
                    let id = world.clients[at].id.to_string();
                    world.broker.leave(&[(&id, world.clients[at].instance)]);
                    world.restart(at);
                }
                Event::Close(at) => world.close(at),
                Event::Reload => world.reload(),
            }
            world.observe();
        }
        for _ in 0..120 {
            for at in 0..5 {
                world.act(at);
                world.observe();
            }
            world.broker.sleep(1000);
            world.observe();
        }
        prop_assert_eq!(world.broker.state(), "Stable");
        let newest = world.newest;
        for client in &world.clients {
            prop_assert!(matches!(client.doing, Doing::Member), "{:?}", client);
            prop_assert_eq!(client.generation, newest);
        }
        world.broker.shard.assert_loads();
    }
}
