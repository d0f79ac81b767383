//! The network: requests in order per connection, answers that get lost, connections that break, and requests
//! that arrive after their connection is gone.

use ottla_core::command::CommandBody;
use ottla_core::command::{Command, ConnectionId, Context, Token};
use ottla_core::decision::Reply;
use ottla_env::rng::Rng;

use super::{Delivery, Event, Server, Waiting, World};
use crate::client::{Client, Ctx};

impl World {
    /// Lets a client act, and carries out what it wants.
    pub(super) fn with_client(&mut self, index: usize, act: impl FnOnce(&mut dyn Client, &mut Ctx<'_>)) {
        let slot = &mut self.slots[index];
        let Some(mut client) = slot.client.take() else { return };
        let mut ctx = Ctx {
            now_ms: super::BEGIN_MS + i64::try_from(self.now_ms).expect("virtual time is short"),
            shard_forward_ms: self.shard_forward_ms,
            rng: &mut slot.rng,
            history: &mut self.history,
            options: &self.options,
            draining: self.draining,
            next_call: &mut self.next_call,
            calls: Vec::new(),
            wake_in: None,
            spawn: Vec::new(),
        };
        act(&mut *client, &mut ctx);
        let Ctx { calls, wake_in, spawn, .. } = ctx;
        let is_done = client.is_done();
        self.slots[index].client = (!is_done).then_some(client);
        if let Some(delay) = wake_in {
            self.events.at(self.now_ms + delay, Event::Wake(index));
        }
        for call in calls {
            let number = call.number;
            self.waiting.insert(number, Waiting { client: index, call, attempts: 0, token: None });
            if self.slots[index].connection.is_some() {
                self.send(number);
            }
        }
        if is_done {
            self.forget(index);
        } else if self.slots[index].connection.is_none() {
            self.events.at(self.now_ms + 1, Event::Reconnect(index));
        }
        for client in spawn {
            self.add_client(client);
        }
    }

    /// Sends (again) a request that waits for its answer, on its client's connection.
    fn send(&mut self, number: u64) {
        self.next_token += 1;
        let token = Token(self.next_token);
        let waiting = self.waiting.get_mut(&number).expect("only waiting requests are sent");
        waiting.attempts += 1;
        waiting.token = Some(token);
        self.tokens.insert(token, number);
        let slot = &mut self.slots[waiting.client];
        let connection = slot.connection.expect("requests are sent on a connection");
        if self.options.journal {
            let text = format!("{} client {} sends call {number} as {token:?}", self.now_ms, waiting.client);
            self.history.journal.push(text);
        }
        slot.last_delivery_ms = slot.last_delivery_ms.max(self.now_ms + self.rng.below(4));
        let context = Context { token, connection, version: waiting.call.version, ..Context::default() };
        let delivery = Delivery {
            client: waiting.client,
            connection,
            command: Command { context, body: waiting.call.body.clone() },
            may_be_late: waiting.call.may_be_late,
            is_v1: is_v1(&waiting.call.body, waiting.call.version),
            late: false,
            process: self.process,
            life: self.life,
        };
        self.events.at(slot.last_delivery_ms, Event::Deliver(delivery));
    }

    /// A request arrives at the broker.
    pub(super) fn deliver(&mut self, mut delivery: Delivery) {
        let stale = self.slots[delivery.client].connection != Some(delivery.connection);
        if stale && !delivery.late {
            if delivery.may_be_late && self.rng.chance(self.options.late_rate) {
                delivery.late = true;
                let delay = self.rng.between(1, 400);
                self.events.at(self.now_ms + delay, Event::Deliver(delivery));
            }
            return;
        }
        // A process that is gone has taken what was sent to it along. After a reload the marks of connections are
        // empty; requests of protocol v1 name no transaction, so that no server could tell them from new ones.
        if delivery.process != self.process || (delivery.late && delivery.is_v1 && delivery.life != self.life)
        {
            return;
        }
        if delivery.late {
            self.history.counts.late_requests += 1;
        }
        if self.options.journal {
            let text = format!("client {} late {} {:?}", delivery.client, delivery.late, delivery.command);
            self.note(|| text);
        }
        match &mut self.server {
            Server::Up(shell) => {
                shell.decide(delivery.command, &mut self.history);
                self.pump();
            }
            Server::Reloading(_, held) => held.push(delivery.command),
            Server::Down => {}
        }
    }

    /// Takes what the shell has released onto the wire, and gives the log its next task.
    pub(super) fn pump(&mut self) {
        let Server::Up(shell) = &mut self.server else { return };
        for (token, reply) in std::mem::take(&mut shell.released) {
            let Some(call) = self.tokens.remove(&token) else { continue };
            let delay = self.rng.below(3);
            self.events.at(self.now_ms + delay, Event::Answer { call, token, reply });
        }
        let shard_ms = shell.shard_time();
        self.shard_forward_ms += (shard_ms - self.shard_seen_ms).max(0);
        self.shard_seen_ms = shard_ms;
        if shell.wants_to_write() && !self.write_scheduled {
            self.write_scheduled = true;
            let delay = self.rng.below(3);
            self.events.at(self.now_ms + delay, Event::LogTake { life: self.life });
        }
    }

    /// An answer arrives at its client, unless the connection is gone.
    pub(super) fn answer(&mut self, number: u64, token: Token, reply: Reply) {
        let Some(waiting) = self.waiting.get(&number).filter(|waiting| waiting.token == Some(token)) else {
            return;
        };
        let (client, attempts) = (waiting.client, waiting.attempts);
        self.mix(&format!("{number} {reply:?}"));
        // A client of this world that sends late has left the connection, so a late request is always dropped.
        if matches!(reply, Reply::Close(_) | Reply::Late(_)) {
            return self.break_connection(client);
        }
        self.note(|| format!("client {client} {token:?} answered {reply:?}"));
        self.waiting.remove(&number);
        self.with_client(client, |client, ctx| client.answered(number, attempts, reply, ctx));
    }

    /// A client connects and sends again whatever was not answered, in order.
    pub(super) fn reconnect(&mut self, client: usize) {
        if self.slots[client].client.is_none() || self.slots[client].connection.is_some() {
            return;
        }
        if matches!(self.server, Server::Down) {
            let delay = self.rng.between(20, 100);
            return self.events.at(self.now_ms + delay, Event::Reconnect(client));
        }
        self.next_connection += 1;
        self.slots[client].connection = Some(ConnectionId(self.next_connection));
        let calls = self.waiting.iter().filter(|(_, waiting)| waiting.client == client);
        for number in calls.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.send(number);
        }
    }

    /// A client's connection is gone: answers on it are lost.
    pub(super) fn break_connection(&mut self, client: usize) {
        let Some(connection) = self.slots[client].connection.take() else { return };
        self.events.at(self.now_ms + 1_000, Event::ConnectionClosed(connection));
        let calls: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.client == client && waiting.token.is_some())
            .map(|(number, _)| *number)
            .collect();
        for number in calls {
            let waiting = self.waiting.get_mut(&number).expect("it was just found");
            if let Some(token) = waiting.token.take() {
                self.tokens.remove(&token);
            }
            let repeats = waiting.call.repeats;
            if !repeats {
                self.waiting.remove(&number);
            }
            self.with_client(client, |client, ctx| {
                if repeats {
                    client.attempt_broke(number, ctx);
                } else {
                    client.lost(number, ctx);
                }
            });
        }
        let delay = self.rng.between(5, 60);
        self.events.at(self.now_ms + delay, Event::Reconnect(client));
    }

    /// The broker notices that a connection is gone.
    pub(super) fn connection_closed(&mut self, connection: ConnectionId) {
        if let Server::Up(shell) = &mut self.server {
            let body = CommandBody::ConnectionClosed(connection);
            shell.decide(Command { context: Context::default(), body }, &mut self.history);
            self.pump();
        }
    }

    /// Cuts the connection of a random client.
    pub(super) fn cut_one(&mut self) {
        if self.draining {
            return;
        }
        self.history.counts.cuts += 1;
        let client = self.rng.index(self.slots.len());
        self.break_connection(client);
        self.schedule(Event::Cut, self.options.cut_mean_ms);
    }

    /// Crashes a random client that can.
    pub(super) fn crash_client(&mut self) {
        if self.draining {
            return;
        }
        let can = |slot: &super::Slot| slot.client.as_ref().is_some_and(|client| client.can_crash());
        let candidates: Vec<usize> = (0..self.slots.len()).filter(|index| can(&self.slots[*index])).collect();
        if !candidates.is_empty() {
            let index = candidates[self.rng.index(candidates.len())];
            let mut zombie = false;
            self.with_client(index, |client, ctx| zombie = client.crash(ctx));
            self.history.counts.client_crashes += 1;
            self.history.counts.zombies += u64::from(zombie);
        }
        self.schedule(Event::ClientCrash, self.options.client_crash_mean_ms);
    }

    /// A client is gone for good, and its connection with it.
    fn forget(&mut self, client: usize) {
        if let Some(connection) = self.slots[client].connection.take() {
            self.events.at(self.now_ms + 1_000, Event::ConnectionClosed(connection));
        }
        self.waiting.retain(|_, waiting| waiting.client != client);
    }
}

/// Whether a request belongs to a transaction of protocol v1.
fn is_v1(body: &CommandBody, version: i16) -> bool {
    match body {
        CommandBody::Produce(produce) => produce.transactional_id.is_some() && version < 12,
        CommandBody::AddPartitionsToTxn(_) | CommandBody::AddOffsetsToTxn(_) => true,
        CommandBody::TxnOffsetCommit(_) | CommandBody::EndTxn(_) => version < 5,
        _ => false,
    }
}
