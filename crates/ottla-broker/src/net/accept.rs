//! The listener: accepts connections, numbers them in accept order, and owns their tasks.

use std::sync::Arc;
use std::time::Duration;

use ottla_core::command::ConnectionId;
use ottla_env::net::{self, TcpListener};
use ottla_env::spawn::TaskGroup;
use ottla_env::time;

use super::connection::serve;
use super::quotas::{Pace, Seldom};
use crate::shared::Shared;

/// Accepts until the broker stops, then waits for the connections to end.
pub async fn run(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = TaskGroup::new();
    let (mut next, mut pace, trouble) = (1, Pace::new(), Seldom::default());
    loop {
        let accepted = tokio::select! {
            accepted = net::accept(&listener) => accepted,
            () = shared.stopping() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors or memory: the listener itself is sound, so wait a moment and go on.
                if let Some(times) = trouble.due() {
                    tracing::error!(%error, times, "accepting a connection failed");
                }
                time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let admitted = tokio::select! {
            admitted = shared.quotas.admit(peer.ip()) => admitted,
            () = shared.stopping() => break,
        };
        let slot = match admitted {
            Ok(slot) => slot,
            Err(refusal) => {
                shared.metrics.connections.refused.add(1);
                if let Some(times) = shared.quotas.refused.due() {
                    tracing::warn!(%peer, %refusal, times, "connection refused");
                }
                continue;
            }
        };
        let wait = pace.wait(shared.quotas.limits().rate);
        if !wait.is_zero() {
            tokio::select! {
                () = time::sleep(wait) => {}
                () = shared.stopping() => break,
            }
        }
        shared.metrics.connections.accepted.add(1);
        connections.spawn("connection", serve(stream, ConnectionId(next), shared.clone(), slot));
        next += 1;
    }
    drop(listener);
    connections.join_all().await;
}
