//! The listener: accepts connections, numbers them in accept order, and owns their tasks.

use std::sync::Arc;

use ottla_core::command::ConnectionId;
use ottla_env::net::{self, TcpListener};
use ottla_env::spawn::TaskGroup;

use super::connection::serve;
use crate::shared::Shared;

/// Accepts until the broker stops, then waits for the connections to end.
pub async fn run(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = TaskGroup::new();
    let mut next = 1;
    loop {
        let accepted = tokio::select! {
            accepted = net::accept(&listener) => accepted,
            () = shared.stopping() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let id = ConnectionId(next);
                next += 1;
                if connections.len() >= shared.config.max_connections {
                    // Ended tasks are only counted out when one is started or joined, so look again.
                    connections.reap();
                }
                if connections.len() >= shared.config.max_connections {
                    tracing::warn!(%peer, limit = shared.config.max_connections, "connection refused: too many");
                    continue;
                }
                connections.spawn("connection", serve(stream, id, shared.clone()));
            }
            Err(error) => {
                // Out of descriptors or memory: the listener itself is sound, so wait a moment and go on.
                tracing::error!(%error, "accepting a connection failed");
                ottla_env::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    connections.join_all().await;
}
