//! Requests of transactions v1 that look late (`ottla_core`'s `txn::fence`), while it is found out whether they are.
//!
//! Place in the walk: beside the owner. The core has decided nothing about such a request. A client that has given it
//! up closes the connection, or goes on with a newer one: either drops the request. A client that keeps a pool of
//! connections and takes any of them for its next request, as kafka-go does, waits for the answer and does nothing
//! else meanwhile: after a time the request is decided, and the producer is not suspected again under this epoch.
//!
//! Invariants: what one connection sends behind a held request of its own is held too, so that its order stays; what
//! is held is bounded in number, since the owner looks through it at each request, and by the requests' shares of the
//! bytes in flight. It does not know what late means.

use std::time::Duration;

use ottla_core::command::{Command, ConnectionId};

use super::{Request, producer_of_v1};
use crate::limits::V1_HELD_MAX;

/// The held requests, in the order of their arrival.
#[derive(Default)]
pub struct HeldRequests {
    held: Vec<Held>,
}

struct Held {
    until: Duration,
    request: Request,
}

impl HeldRequests {
    /// Holds a request until a time of the monotonic clock; gives it back when too many are held.
    #[must_use]
    pub fn hold(&mut self, until: Duration, request: Request) -> Option<Request> {
        if self.held.len() >= V1_HELD_MAX {
            return Some(request);
        }
        self.held.push(Held { until, request });
        None
    }

    /// Until when the last request of a connection is held, if one is.
    pub fn holds(&self, connection: ConnectionId) -> Option<Duration> {
        let of_it = |held: &&Held| held.request.command.context.connection == connection;
        self.held.iter().rfind(of_it).map(|held| held.until)
    }

    /// Gives back the requests that this one shows to be given up: the same producer speaks on a newer connection.
    pub fn overtaken(&mut self, by: &Command) -> Vec<Request> {
        let Some(producer_id) = (!self.held.is_empty()).then(|| producer_of_v1(by)).flatten() else {
            return Vec::new();
        };
        let given_up = |held: &mut Held| {
            let command = &held.request.command;
            command.context.connection < by.context.connection && producer_of_v1(command) == Some(producer_id)
        };
        self.held.extract_if(.., given_up).map(|held| held.request).collect()
    }

    /// The connection is gone. Gives back the requests that were held for it.
    pub fn closed(&mut self, connection: ConnectionId) -> Vec<Request> {
        let of_it = |held: &mut Held| held.request.command.context.connection == connection;
        self.held.extract_if(.., of_it).map(|held| held.request).collect()
    }

    /// The requests whose time is over at `now`: their senders are there.
    pub fn due(&mut self, now: Duration) -> Vec<Request> {
        self.held.extract_if(.., |held| held.until <= now).map(|held| held.request).collect()
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Duration> {
        self.held.iter().map(|held| held.until).min()
    }

    /// The process stood still for so long: nobody could have told us that a connection was closed.
    pub fn shift(&mut self, gap: Duration) {
        self.held.iter_mut().for_each(|held| held.until += gap);
    }
}

#[cfg(test)]
mod tests {
    use ottla_core::command::{CommandBody, Context};

    use super::*;

    /// Proves: however many requests look late, a bounded number is held, and there is room again when these go.
    #[test]
    fn bounded() {
        let request = || {
            let command = Command { context: Context::default(), body: CommandBody::Tick };
            let (sender, _) = tokio::sync::oneshot::channel();
            Request { command, arrived: Duration::ZERO, sender, _permit: None }
        };
        let (mut held, until) = (HeldRequests::default(), Duration::from_secs(4));
        let refused = (0..V1_HELD_MAX + 5).filter_map(|_| held.hold(until, request())).count();
        assert_eq!(refused, 5);
        assert_eq!(held.due(until).len(), V1_HELD_MAX);
        assert!(held.hold(until, request()).is_none());
    }
}
