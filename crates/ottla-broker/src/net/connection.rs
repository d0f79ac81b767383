//! One connection: reads requests, hands them on in arrival order, writes answers in the same order.
//!
//! Reading goes on while answers are outstanding, up to a bound; a slow reader of answers stops being read from.
//! An idle connection owns no buffer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use ottla_core::command::ConnectionId;
use ottla_env::net::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
use ottla_protocol::types::Text;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

use super::frames::{FrameError, read_frame, write_frame};
use crate::dispatch::{self, Outcome};
use crate::limits::ANSWERS_PER_CONNECTION_MAX;
use crate::shared::Shared;

/// An answer on its way to the socket.
#[derive(Default)]
pub struct Outgoing {
    /// What is written; without any, nothing is sent (acks=0).
    pub chunks: Vec<Bytes>,
    /// A share of a budget that is given back once it is written.
    pub held: Option<OwnedSemaphorePermit>,
}

/// An answer that is not there yet; none closes the connection.
pub type Later = Pin<Box<dyn Future<Output = Option<Outgoing>> + Send>>;

/// An answer in its place in the line.
pub enum Answer {
    /// Ready.
    Now(Outgoing),
    /// Still to come.
    Later(Later),
}

/// How many answers are outstanding, so that a parked Fetch knows that somebody waits behind it.
#[derive(Default)]
pub struct Line {
    outstanding: AtomicUsize,
    joined: Notify,
}

impl Line {
    /// Waits until another request stands behind the one at the head of the line.
    pub async fn somebody_behind(&self) {
        loop {
            let joined = self.joined.notified();
            if self.outstanding.load(Ordering::Acquire) > 1 {
                return;
            }
            joined.await;
        }
    }

    fn join(&self) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        self.joined.notify_waiters();
    }

    fn leave(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a handler knows of the connection.
#[derive(Clone)]
pub struct Peer {
    /// Its number, growing in accept order.
    pub id: ConnectionId,
    /// The peer's address as Kafka writes it in groups: `/127.0.0.1`.
    pub host: Text,
    /// The line of outstanding answers.
    pub line: Arc<Line>,
}

/// Serves a connection until either side ends it.
pub async fn serve(stream: TcpStream, id: ConnectionId, shared: Arc<Shared>) {
    let host = stream.peer_addr().map(|peer| format!("/{}", peer.ip())).unwrap_or_default();
    let peer = Peer { id, host: Text::from(host), line: Arc::new(Line::default()) };
    let (read, write) = stream.into_split();
    let (sender, answers) = mpsc::channel(ANSWERS_PER_CONNECTION_MAX);
    let line = peer.line.clone();
    let why = tokio::select! {
        why = read_requests(read, peer.clone(), &shared, sender) => why,
        why = write_answers(write, answers, &line) => why,
        () = shared.stopping() => End::Stopping,
    };
    match why {
        End::Frame(FrameError::Closed | FrameError::Idle(_)) | End::Stopping => {
            tracing::debug!(connection = id.0, peer = %peer.host, "connection ended");
        }
        End::Frame(error) => {
            tracing::warn!(connection = id.0, peer = %peer.host, %error, "connection closed: bad frame");
        }
        End::Refused(reason) => {
            tracing::warn!(connection = id.0, peer = %peer.host, %reason, "connection closed: bad request");
        }
        End::Write(error) => {
            tracing::debug!(connection = id.0, peer = %peer.host, %error, "connection lost while answering");
        }
        End::Told => tracing::debug!(connection = id.0, peer = %peer.host, "connection closed by a decision"),
    }
    shared.shard.connection_closed(id);
}

enum End {
    Frame(FrameError),
    Refused(String),
    Write(std::io::Error),
    Told,
    Stopping,
}

async fn read_requests(
    mut socket: OwnedReadHalf,
    peer: Peer,
    shared: &Arc<Shared>,
    answers: mpsc::Sender<Answer>,
) -> End {
    let (bytes_max, idle) = (shared.config.socket_request_max_bytes, shared.config.connections_max_idle());
    loop {
        // A place for the answer comes first: without one, nothing more is read.
        let Ok(place) = answers.reserve().await else { return End::Told };
        let (frame, permit) = match read_frame(&mut socket, bytes_max, idle, &shared.request_budget).await {
            Ok(frame) => frame,
            Err(error) => return End::Frame(error),
        };
        match dispatch::dispatch(shared, &peer, frame, permit) {
            Outcome::Answer(answer) => {
                peer.line.join();
                place.send(answer);
            }
            Outcome::Silent => {}
            Outcome::Close(reason) => return End::Refused(reason),
        }
    }
}

async fn write_answers(mut socket: OwnedWriteHalf, mut answers: mpsc::Receiver<Answer>, line: &Line) -> End {
    while let Some(answer) = answers.recv().await {
        let outgoing = match answer {
            Answer::Now(outgoing) => outgoing,
            Answer::Later(later) => match later.await {
                Some(outgoing) => outgoing,
                None => return End::Told,
            },
        };
        if !outgoing.chunks.is_empty()
            && let Err(error) = write_frame(&mut socket, outgoing.chunks).await
        {
            return End::Write(error);
        }
        drop(outgoing.held);
        line.leave();
    }
    End::Told
}
