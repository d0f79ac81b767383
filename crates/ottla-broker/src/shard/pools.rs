//! Which connections belong to a client that uses several in turn, as kafka-go does with its pool.
//!
//! Place in the walk: beside the owner, for `late`. A client that gives a request up leaves its connection and goes
//! on with a newer one. A client with a pool comes back: one of its connections speaks, then a newer one, then the
//! first again. Or the newer one speaks for the first time only a moment after the first did: kafka-go hands an answer
//! on before it gives the connection back, so that the next request may need a new one; nobody gives a request up so
//! soon. Once a connection was seen to do so, its age says nothing about its requests.
//!
//! Connections are taken for one client's when address and client id are the same. Two clients of one name on one
//! machine look like a pool; then lateness is judged by closed connections alone.
//!
//! Invariants: only earlier requests count, so that a late one does not excuse itself; bounded by the connections
//! and by `CLIENT_NAMES_MAX`, beyond which everything is learnt anew. It does not know what late means.

use std::collections::BTreeMap;
use std::time::Duration;

use ottla_core::command::{ConnectionId, Context};
use ottla_protocol::types::Text;

use crate::limits::{CLIENT_NAMES_MAX, V1_PATIENCE_MIN};

/// What is known of clients and their connections.
#[derive(Default)]
pub struct Pools {
    clients: BTreeMap<(Text, Text), usize>,
    /// Which connection of each client spoke last, and when.
    last: Vec<(ConnectionId, Duration)>,
    connections: BTreeMap<ConnectionId, Member>,
}

struct Member {
    client: usize,
    has_spoken: bool,
    is_pooled: bool,
}

impl Pools {
    /// Whether a connection has come back after a newer one of its client had spoken, or had no time to be given up.
    pub fn has(&self, connection: ConnectionId) -> bool {
        self.connections.get(&connection).is_some_and(|member| member.is_pooled)
    }

    /// A request that arrived then, by the monotonic clock, was decided.
    pub fn spoke(&mut self, context: &Context, arrived: Duration) {
        let connection = context.connection;
        if !self.connections.contains_key(&connection) {
            self.enter(context, arrived);
        }
        let Some(member) = self.connections.get_mut(&connection) else { return };
        let last = &mut self.last[member.client];
        member.is_pooled |= member.has_spoken && last.0 > connection;
        let is_new = !std::mem::replace(&mut member.has_spoken, true);
        let (before, then) = std::mem::replace(last, (connection, arrived));
        if is_new
            && before < connection
            && arrived.saturating_sub(then) < V1_PATIENCE_MIN
            && let Some(member) = self.connections.get_mut(&before)
        {
            member.is_pooled = true;
        }
    }

    fn enter(&mut self, context: &Context, arrived: Duration) {
        if self.clients.len() >= CLIENT_NAMES_MAX {
            *self = Self::default();
        }
        let name = (context.client_host.detached(), context.client_id.detached());
        let client = *self.clients.entry(name).or_insert_with(|| {
            self.last.push((context.connection, arrived));
            self.last.len() - 1
        });
        self.connections.insert(context.connection, Member { client, has_spoken: false, is_pooled: false });
    }

    /// A connection is gone.
    pub fn closed(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn on(connection: u64, client_id: &'static str) -> Context {
        Context {
            connection: ConnectionId(connection),
            client_id: Text::from_static(client_id),
            ..Context::default()
        }
    }

    /// Proves that a connection is pooled once it has come back behind a newer one of the same client, not by its
    /// first request, not by another client's, and no more when it is closed.
    #[test]
    fn who_comes_back_is_pooled() {
        let mut pools = Pools::default();
        for (connection, client) in [(1, "a"), (2, "a"), (3, "b")] {
            pools.spoke(&on(connection, client), SECOND * connection as u32);
            assert!(!pools.has(ConnectionId(connection)), "a first request proves nothing");
        }
        pools.spoke(&on(2, "a"), SECOND * 4);
        assert!(!pools.has(ConnectionId(2)), "another client spoke in between");
        pools.spoke(&on(1, "a"), SECOND * 5);
        assert!(pools.has(ConnectionId(1)) && !pools.has(ConnectionId(2)));
        pools.closed(ConnectionId(1));
        assert!(!pools.has(ConnectionId(1)));
    }

    /// Proves that a connection behind which a newer one of the same client first speaks at once was not given up; one
    /// behind which it speaks later may have been, and another client's says nothing.
    #[test]
    fn who_had_no_time_is_not_given_up() {
        for (client, gap, pooled) in [
            ("a", Duration::from_millis(5), true),
            ("a", SECOND, false),
            ("b", Duration::from_millis(5), false),
        ] {
            let mut pools = Pools::default();
            pools.spoke(&on(1, "a"), SECOND);
            pools.spoke(&on(2, client), SECOND + gap);
            assert_eq!(pools.has(ConnectionId(1)), pooled, "{client} {gap:?}");
            assert!(!pools.has(ConnectionId(2)));
        }
    }

    /// Proves that what is kept is bounded by forgetting everything, and that learning goes on.
    #[test]
    fn clients_are_bounded() {
        let mut pools = Pools::default();
        for connection in 0..=CLIENT_NAMES_MAX as u64 {
            let client_id = Text::from(connection.to_string());
            pools.spoke(
                &Context { connection: ConnectionId(connection), client_id, ..Context::default() },
                SECOND,
            );
        }
        assert_eq!((pools.clients.len(), pools.last.len(), pools.connections.len()), (1, 1, 1));
    }
}
