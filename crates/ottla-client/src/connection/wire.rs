//! The two directions of a connection: frames out, at once or by a task; answers in, by a task.
//!
//! Invariant: an answer's buffer is never larger than what the peer has sent on this connection can pay for: the
//! largest answer that has come whole, or twice what has come of this one. What a peer claims costs nothing.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ottla_env::net::{OwnedReadHalf, OwnedWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::sync::mpsc;

use super::Shared;

/// Bytes of the buffer that small answers are read through.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// First piece of an answer's own buffer, when no larger answer has come yet; doubled as bytes arrive.
const ANSWER_PIECE_BYTES: usize = 64 << 10;
/// Frames up to this length may be written by whoever sends them.
const AT_ONCE_BYTES: usize = 32 << 10;
/// Chunks of one write.
const SLICES_MAX: usize = 64;

/// The writing side of a connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    half: OwnedWriteHalf,
    queue: mpsc::Sender<Vec<Bytes>>,
    /// Frames that are queued or being written by the task.
    waiting: AtomicUsize,
}

impl Outgoing {
    /// The writing side, and the queue for `run_writer`, which holds `frames_max`.
    pub(super) fn new(half: OwnedWriteHalf, frames_max: usize) -> (Arc<Self>, mpsc::Receiver<Vec<Bytes>>) {
        let (queue, frames) = mpsc::channel(frames_max);
        (Arc::new(Self { half, queue, waiting: AtomicUsize::new(0) }), frames)
    }

    /// Sends a frame behind all that were sent: a short one at once, when nothing is in front of it and the socket
    /// has room; what is left by the task. Calls must not overlap. The error says why the connection has ended.
    pub(super) fn send(&self, frame: Vec<Bytes>) -> Result<(), String> {
        let mut chunks = VecDeque::from(frame);
        let length: usize = chunks.iter().map(Bytes::len).sum();
        if length <= AT_ONCE_BYTES && self.waiting.load(Ordering::Acquire) == 0 {
            match self.half.try_write_vectored(&slices(&chunks)) {
                Ok(written) => advance(&mut chunks, written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.to_string()),
            }
            if chunks.is_empty() {
                return Ok(());
            }
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.queue.try_send(chunks.into()).map_err(|_| "its writing side has ended".to_owned())
    }

    async fn write(&self, frame: Vec<Bytes>) -> io::Result<()> {
        let mut chunks = VecDeque::from(frame);
        advance(&mut chunks, 0);
        while !chunks.is_empty() {
            self.half.writable().await?;
            match self.half.try_write_vectored(&slices(&chunks)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => advance(&mut chunks, written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }
}

/// What one system call takes.
fn slices(chunks: &VecDeque<Bytes>) -> Vec<io::IoSlice<'_>> {
    chunks.iter().take(SLICES_MAX).map(|chunk| io::IoSlice::new(chunk)).collect()
}

/// Takes away what was written, and empty chunks in front.
fn advance(chunks: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = chunks.front_mut() {
        let step = written.min(front.len());
        front.advance(step);
        written -= step;
        if !front.is_empty() {
            return;
        }
        chunks.pop_front();
    }
}

/// Writes queued frames until the queue or the connection ends.
pub(super) async fn run_writer(
    shared: Arc<Shared>,
    outgoing: Arc<Outgoing>,
    mut frames: mpsc::Receiver<Vec<Bytes>>,
) {
    let mut closed = shared.closed.subscribe();
    loop {
        let frame = tokio::select! {
            frame = frames.recv() => frame,
            _ = closed.wait_for(|closed| *closed) => None,
        };
        let Some(frame) = frame else { return };
        let written = tokio::select! {
            written = outgoing.write(frame) => written,
            _ = closed.wait_for(|closed| *closed) => return,
        };
        if let Err(error) = written {
            return shared.close(error.to_string());
        }
    }
}

/// Reads answers until the connection ends.
pub(super) async fn run_reader(shared: Arc<Shared>, half: OwnedReadHalf, answer_bytes_max: usize) {
    let mut closed = shared.closed.subscribe();
    let mut frames = FrameReader::new(Incoming { half }, answer_bytes_max);
    loop {
        let answer = tokio::select! {
            answer = frames.next() => answer,
            _ = closed.wait_for(|closed| *closed) => return,
        };
        let handed_on = match answer {
            Ok(answer) => hand_on(&shared, answer),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err("the peer closed it".to_owned())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = handed_on {
            return shared.close(reason);
        }
        // a peer that sends without end does not keep other tasks from running
        tokio::task::coop::consume_budget().await;
    }
}

/// Gives an answer to the oldest waiting request, whose it must be.
fn hand_on(shared: &Shared, answer: Bytes) -> Result<(), String> {
    let correlation_id =
        answer.clone().try_get_i32().map_err(|_| "it sent an answer without a correlation id")?;
    let mut state = shared.state();
    let expected = state.waiting.front().map(|oldest| oldest.correlation_id);
    match expected {
        None => return Err(format!("it sent answer {correlation_id}, which nobody asked for")),
        // it stays in the queue: closing gives it the reason
        Some(expected) if expected != correlation_id => {
            return Err(format!("it sent answer {correlation_id} where {expected} was due"));
        }
        Some(_) => {}
    }
    let oldest = state.waiting.pop_front().expect("it was just looked at");
    drop(state);
    let _ = oldest.answer.send(answer); // nobody waits any more: fine
    Ok(())
}

/// The reading side of a connection. It asks the socket again after a short read, as more has often come while that
/// was copied; tokio's own reading waits for the next event, which costs several times as many wake-ups.
#[derive(Debug)]
struct Incoming {
    half: OwnedReadHalf,
}

impl AsyncRead for Incoming {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.half.try_read_buf(buf) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            match self.half.as_ref().poll_read_ready(cx) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
        }
    }
}

/// Reads length-prefixed frames of one connection.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    half: BufReader<R>,
    bytes_max: usize,
    /// Length of the largest frame that has come whole: so much is given to a frame before it has come.
    earned_bytes: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Refuses frames that are longer than `bytes_max`.
    pub(crate) fn new(half: R, bytes_max: usize) -> Self {
        Self {
            half: BufReader::with_capacity(READ_BUFFER_BYTES, half),
            bytes_max,
            earned_bytes: ANSWER_PIECE_BYTES,
        }
    }

    /// The next frame, without its length, in a buffer of its own. Not cancel-safe: dropped in a frame, it has
    /// lost its place.
    ///
    /// The frames of a busy connection are about equally long, so that nearly all are read into one allocation
    /// that is never moved. A peer that announces much and sends nothing holds, once, what it sent before.
    pub(crate) async fn next(&mut self) -> io::Result<Bytes> {
        let claimed = self.half.read_i32().await?;
        let within = |length: &usize| *length <= self.bytes_max;
        let length = usize::try_from(claimed).ok().filter(within).ok_or_else(|| {
            let max = self.bytes_max;
            let text = format!("a frame of {claimed} bytes was announced; at most {max} are accepted");
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        let mut frame = BytesMut::with_capacity(length.min(self.earned_bytes));
        while frame.len() < length {
            let missing = length - frame.len();
            if frame.capacity() == frame.len() {
                frame.reserve(missing.min(frame.len()));
            }
            if self.half.read_buf(&mut (&mut frame).limit(missing)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.earned_bytes = self.earned_bytes.max(length);
        Ok(frame.freeze())
    }
}

#[cfg(test)]
mod tests;
