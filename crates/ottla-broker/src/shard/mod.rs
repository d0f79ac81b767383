//! The shard's shell: everything around the pure core.
//!
//! `inbox` (fair queue) -> `owner` (decides, applies) -> `log_queue` -> `log_thread` (one frame, one sync) -> `view`
//! (what readers see) and the answers. `late` holds what looks late. `recovery` loads,
//! `files` moves log starts by retention and tidies the folder, `cleaner` compacts by what is in `cleaning`, `snapshots` keeps loading
//! short, `unavailable` answers when a reload takes too long or the disk is full
//! (`full_disk`), `time` is the shard's clock.

mod cleaner;
pub mod cleaning;
pub mod desk;
pub mod events;
pub mod files;
pub mod full_disk;
pub mod inbox;
pub mod late;
pub mod log_queue;
pub mod log_thread;
pub mod owner;
pub mod pulse;
pub mod recovery;
pub mod snapshots;
pub mod time;
pub mod unavailable;
pub mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ottla_core::command::{Command, CommandBody, ConnectionId, Context, Token};
use ottla_core::decision::Reply;
use ottla_env::clock::Clock;
use ottla_protocol::types::{NO_PRODUCER_ID, Text};
use tokio::sync::oneshot;

use crate::net::frames::Share;
use inbox::Inbox;

/// A command in the broker, from its arrival until its answer has left.
pub struct Request {
    /// What is asked; the token is unique.
    pub command: Command,
    /// When it arrived, by the monotonic clock.
    pub arrived: Duration,
    sender: oneshot::Sender<Reply>,
    /// Its share of the bytes that may be in flight; given back when it is answered.
    _permit: Option<Share>,
}

impl Request {
    /// Sends the answer. The connection may be gone; then nobody wants it.
    pub fn answer(self, reply: Reply) {
        drop(self.sender.send(reply));
    }
}

/// Who sends a command, and in which version.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The connection.
    pub connection: ConnectionId,
    /// The client's name for itself.
    pub client_id: Text,
    /// The client's address.
    pub client_host: Text,
    /// Version of the request.
    pub version: i16,
}

/// The handle that connections hold: a cheap way to put a command into the shard's inbox.
#[derive(Clone)]
pub struct ShardHandle {
    inbox: Arc<Inbox<Request>>,
    tokens: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
}

/// The shard has been shut down.
#[derive(Debug, thiserror::Error)]
#[error("the broker is shutting down")]
pub struct ShardClosed;

impl ShardHandle {
    /// A handle to an inbox.
    pub fn new(inbox: Arc<Inbox<Request>>, clock: Arc<dyn Clock>) -> Self {
        Self { inbox, tokens: Arc::new(AtomicU64::new(1)), clock }
    }

    /// Queues a command that came in `bytes` bytes; the answer arrives when it may leave.
    pub fn submit(
        &self,
        origin: &Origin,
        body: CommandBody,
        bytes: usize,
        permit: Option<Share>,
    ) -> Result<oneshot::Receiver<Reply>, ShardClosed> {
        let token = Token(self.tokens.fetch_add(1, Ordering::Relaxed));
        let context = Context {
            token,
            connection: origin.connection,
            client_id: origin.client_id.clone(),
            client_host: origin.client_host.clone(),
            version: origin.version,
            is_alive: false,
        };
        let (sender, receiver) = oneshot::channel();
        let command = Command { context, body };
        let request = Request { command, arrived: self.clock.monotonic(), sender, _permit: permit };
        self.inbox.push(origin.connection, bytes, request).map_err(|_| ShardClosed)?;
        Ok(receiver)
    }

    /// Commands that wait for the owner.
    pub fn waiting(&self) -> usize {
        self.inbox.len()
    }

    /// A connection's peer has closed: its undecided transactional requests are dropped, and the core is told.
    pub fn connection_closed(&self, connection: ConnectionId) {
        drop(self.inbox.discard(connection, |request| !is_transactional_v1(&request.command)));
        let origin = Origin { connection, ..Origin::default() };
        drop(self.submit(&origin, CommandBody::ConnectionClosed(connection), 1, None));
    }
}

/// Whether a request is one of the first transaction protocol's, where nothing names the transaction (KIP-890):
/// read from a connection that is gone, it is late.
fn is_transactional_v1(command: &Command) -> bool {
    producer_of_v1(command).is_some()
}

/// The producer id of such a request; -1 when it has none that can be read.
fn producer_of_v1(command: &Command) -> Option<i64> {
    let version = command.context.version;
    match &command.body {
        CommandBody::AddPartitionsToTxn(request) if version <= 3 => Some(request.v3_and_below_producer_id),
        CommandBody::AddOffsetsToTxn(request) => Some(request.producer_id),
        CommandBody::EndTxn(request) if version <= 4 => Some(request.producer_id),
        CommandBody::TxnOffsetCommit(request) if version <= 4 => Some(request.producer_id),
        CommandBody::Produce(produce) if version <= 11 && produce.transactional_id.is_some() => {
            let partitions = produce.topics.iter().flat_map(|topic| &topic.partitions);
            let mut batches = partitions.filter_map(|partition| partition.batch.as_ref().ok());
            Some(batches.next().map_or(NO_PRODUCER_ID, |batch| batch.header.producer_id))
        }
        _ => None,
    }
}
