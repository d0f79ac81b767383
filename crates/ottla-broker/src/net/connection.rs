//! One connection: reads requests, hands them on in arrival order, writes answers in the same order.
//!
//! Reading goes on while answers are outstanding, up to bounds in number and in bytes of requests; a request whose
//! answer may be much larger than itself waits until it is alone, so that answers that nobody takes do not pile
//! up. A client that does not take its answers is read from no more, and closed after a time. An idle connection
//! owns no buffer. When the broker stops, reading stops first, then what was read is answered, then the
//! connection is closed in a way that does not destroy answers on their way.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ottla_core::command::ConnectionId;
use ottla_env::net::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
use ottla_env::time;
use ottla_protocol::codec::ErrorTally;
use ottla_protocol::types::{Text, Uuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::frames::{FrameError, Share, read_frame, read_length, read_start, write_frame};
use super::line::Line;
use super::quotas::Slot;
use crate::dispatch::{self, Outcome};
use crate::limits::{ANSWERS_PER_CONNECTION_MAX, LINGER_TIME};
use crate::metrics::CloseReason;
use crate::metrics::requests::Ticket;
use crate::shared::Shared;

/// An answer on its way to the socket.
#[derive(Default)]
pub struct Outgoing {
    /// What is written; without any, nothing is sent (acks=0).
    pub chunks: Vec<Bytes>,
    /// A share of a budget that is given back once it is written.
    pub held: Option<OwnedSemaphorePermit>,
    /// The request's share of the bytes in flight, likewise.
    pub share: Option<Share>,
    /// The errors that it tells.
    pub errors: ErrorTally,
    /// Topics that a Produce was refused for, by name or id, and for how many partitions.
    pub refused_topics: Vec<(Text, Uuid, u64)>,
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

/// An answer, how many bytes its request had, and when it came.
type InLine = (Answer, usize, Option<Ticket>);

/// Serves a connection until either side ends it.
pub async fn serve(stream: TcpStream, id: ConnectionId, shared: Arc<Shared>, _slot: Slot) {
    let host = stream.peer_addr().map(|peer| format!("/{}", peer.ip().to_canonical())).unwrap_or_default();
    let peer = Peer { id, host: Text::from(host), line: Arc::new(Line::default()) };
    let (mut read, mut write) = stream.into_split();
    let (sender, answers) = mpsc::channel(ANSWERS_PER_CONNECTION_MAX);
    let why = {
        let mut writing = pin!(write_answers(&mut write, answers, &peer, &shared));
        let reading = shared.readers.enter();
        let why = tokio::select! {
            biased;
            () = shared.stopping() => End::Stopping,
            why = &mut writing => why,
            why = read_requests(&mut read, peer.clone(), &shared, sender) => why,
        };
        drop(reading);
        // Whatever was read before the stop is still answered; nothing joins the line any more.
        match why {
            End::Stopping => match writing.await {
                // All of them have left, so the line has come to its end.
                End::Told => End::Stopping,
                other => other,
            },
            other => other,
        }
    };
    report(&why, &peer, &shared);
    if matches!(why, End::Stopping) {
        Box::pin(linger(read, write)).await;
    }
    shared.shard.connection_closed(id);
}

fn report(why: &End, peer: &Peer, shared: &Shared) {
    let reason = close_reason(why);
    if let Some(closed) = shared.metrics.connections.closed.of(peer.id).get(reason as usize) {
        closed.add(1);
    }
    let (connection, peer) = (peer.id.0, &peer.host);
    let malformed = |reason: &dyn std::fmt::Display| {
        if let Some(times) = shared.quotas.malformed.due() {
            tracing::warn!(connection, %peer, %reason, times, "connection closed: bad request");
        }
    };
    match why {
        End::Frame(FrameError::Closed | FrameError::Idle(_)) | End::Stopping => {
            tracing::debug!(connection, %peer, "connection ended");
        }
        End::Frame(error) => malformed(error),
        End::Refused(reason) => malformed(reason),
        End::Write(error) => tracing::debug!(connection, %peer, %error, "connection lost while answering"),
        End::Told => tracing::debug!(connection, %peer, "connection closed by a decision"),
    }
}

fn close_reason(why: &End) -> CloseReason {
    match why {
        End::Frame(FrameError::Closed | FrameError::Cut | FrameError::Io(_)) | End::Write(_) => {
            CloseReason::Peer
        }
        End::Frame(FrameError::Idle(_)) => CloseReason::Idle,
        End::Frame(FrameError::Length { .. } | FrameError::Slow { .. }) => CloseReason::BadFrame,
        End::Refused(_) => CloseReason::BadRequest,
        End::Told => CloseReason::Unanswered,
        End::Stopping => CloseReason::Stopping,
    }
}

enum End {
    Frame(FrameError),
    Refused(String),
    Write(std::io::Error),
    Told,
    Stopping,
}

async fn read_requests(
    socket: &mut OwnedReadHalf,
    peer: Peer,
    shared: &Arc<Shared>,
    answers: mpsc::Sender<InLine>,
) -> End {
    let line = &peer.line;
    loop {
        // A place for the answer comes first: without one, nothing more is read.
        let Ok(place) = answers.reserve().await else { return End::Told };
        let (frame, share) = match next_frame(socket, line, shared).await {
            Ok(frame) => frame,
            Err(error) => return End::Frame(error),
        };
        let bytes = frame.len();
        let ticket = shared.metrics.requests.arrived(peer.id, &frame, shared.clock.monotonic());
        if !dispatch::may_follow(&frame) {
            line.empty().await;
        }
        match dispatch::dispatch(shared, &peer, frame, share) {
            Outcome::Answer(answer) => {
                line.join(bytes);
                place.send((answer, bytes, ticket));
            }
            Outcome::Silent => line.pass(),
            Outcome::Close(reason) => return End::Refused(reason),
        }
    }
}

/// The next request, once there is room for it; idle is who has nothing outstanding and sends nothing.
async fn next_frame(
    socket: &mut OwnedReadHalf,
    line: &Line,
    shared: &Shared,
) -> Result<(Bytes, Share), FrameError> {
    let mut head = [0; 4];
    let mut wait = shared.quotas.idle_max();
    let have = loop {
        if let Some(have) = read_start(socket, &mut head, wait).await? {
            break have;
        }
        let idle = shared.quotas.idle_max();
        let resting = line.resting().unwrap_or_default();
        if resting >= idle {
            return Err(FrameError::Idle(idle));
        }
        // Not less than a moment, so that a clock of coarse steps does not make this loop turn.
        wait = (idle - resting).max(Duration::from_millis(10));
    };
    line.announce();
    let length = read_length(socket, head, have, shared.config.socket_request_max_bytes).await?;
    line.room(length).await;
    read_frame(socket, length, &shared.request_budget).await
}

async fn write_answers(
    socket: &mut OwnedWriteHalf,
    mut answers: mpsc::Receiver<InLine>,
    peer: &Peer,
    shared: &Shared,
) -> End {
    while let Some((answer, bytes, ticket)) = answers.recv().await {
        let outgoing = match answer {
            Answer::Now(outgoing) => outgoing,
            Answer::Later(later) => match later.await {
                Some(outgoing) => outgoing,
                None => return End::Told,
            },
        };
        let answer_bytes = outgoing.chunks.iter().map(Bytes::len).sum();
        if !outgoing.chunks.is_empty()
            && let Err(error) = write_frame(socket, outgoing.chunks, || shared.is_fetch_room_wanted()).await
        {
            return End::Write(error);
        }
        drop((outgoing.held, outgoing.share));
        if let Some(ticket) = ticket {
            let now = shared.clock.monotonic();
            shared.metrics.requests.answered(peer.id, ticket, answer_bytes, outgoing.errors, now);
        }
        count_refused(shared, &outgoing.refused_topics);
        peer.line.leave(bytes);
    }
    End::Told
}

/// Counts the topics that a Produce was refused for; there are seldom any.
fn count_refused(shared: &Shared, topics: &[(Text, Uuid, u64)]) {
    if topics.is_empty() {
        return;
    }
    let image = shared.view.image();
    for (name, id, partitions) in topics {
        let topic = if id.is_zero() { image.topic_by_name(name) } else { image.topic_by_id(*id) };
        let cells = shared.metrics.topics.of(topic.map_or(Uuid::ZERO, |topic| topic.id));
        cells.read.failed_produce_requests.add(*partitions);
    }
}

/// Says that nothing more comes, and reads until the peer says so too: closing a socket with unread bytes would
/// reset the connection, and with it answers that the peer has not read yet.
async fn linger(mut read: OwnedReadHalf, mut write: OwnedWriteHalf) {
    let drained = async {
        write.shutdown().await?;
        let mut ignored = vec![0; 16 << 10];
        while read.read(&mut ignored).await? > 0 {}
        std::io::Result::Ok(())
    };
    if time::timeout(LINGER_TIME, drained).await.is_err() {
        tracing::debug!("a client kept its side of the connection open");
    }
}
