//! Frames on a socket: a length of 4 bytes, then the request or answer.
//!
//! A frame's buffer grows as its bytes arrive, whatever its length claims, and only within the bytes that all
//! requests together may occupy. Large frames have a budget of their own, so that who claims much and sends
//! little holds up nobody but others of that kind.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use ottla_env::net::{OwnedReadHalf, OwnedWriteHalf};
use ottla_env::time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that are asked for at a time while a large frame arrives.
const STEP_BYTES: usize = 1 << 20;
/// How long the rest of a frame may take once its length has come.
const FRAME_TIME: Duration = Duration::from_secs(60);

/// Bytes of requests that may be in the broker, read or being read.
pub struct RequestBudget {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl RequestBudget {
    /// Half of the bytes for frames of at most 1 MiB, half for larger ones; each half holds at least one frame.
    pub fn new(bytes: usize, frame_bytes_max: usize) -> Self {
        let half = (bytes / 2).max(STEP_BYTES);
        Self {
            small: Arc::new(Semaphore::new(half)),
            large: Arc::new(Semaphore::new(half.max(frame_bytes_max))),
        }
    }

    async fn acquire(&self, length: usize) -> OwnedSemaphorePermit {
        let budget = if length <= STEP_BYTES { &self.small } else { &self.large };
        let permits = u32::try_from(length).expect("the bound of a frame fits in 32 bits");
        budget.clone().acquire_many_owned(permits).await.expect("the budget is never closed")
    }
}

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum FrameError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("no request for {0:?} (connections.max.idle.ms)")]
    Idle(Duration),
    #[error("frame length {claimed} is not in 1..={max} bytes (socket.request.max.bytes)")]
    Length { claimed: i32, max: usize },
    #[error("a frame of {length} bytes did not arrive within {FRAME_TIME:?}")]
    Slow { length: usize },
    #[error("the connection ended inside a frame")]
    Cut,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the next frame, without its length. Waits up to `idle` for its beginning.
pub async fn read_frame(
    socket: &mut OwnedReadHalf,
    bytes_max: usize,
    idle: Duration,
    budget: &RequestBudget,
) -> Result<(Bytes, OwnedSemaphorePermit), FrameError> {
    let mut head = [0; 4];
    let first = time::timeout(idle, socket.read(&mut head)).await.map_err(|_| FrameError::Idle(idle))?;
    let have = match first {
        Ok(0) => return Err(FrameError::Closed),
        Ok(n) => n,
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(FrameError::Closed),
        Err(error) => return Err(error.into()),
    };
    let rest = head.get_mut(have..).expect("a read fills no more than the buffer");
    let timed = time::timeout(FRAME_TIME, socket.read_exact(rest)).await;
    timed.map_err(|_| FrameError::Slow { length: 4 })?.map_err(cut)?;
    let claimed = i32::from_be_bytes(head);
    let length = usize::try_from(claimed).ok().filter(|length| (1..=bytes_max).contains(length));
    let length = length.ok_or(FrameError::Length { claimed, max: bytes_max })?;
    let permit = budget.acquire(length).await;
    let body = time::timeout(FRAME_TIME, read_body(socket, length)).await;
    let body = body.map_err(|_| FrameError::Slow { length })??;
    Ok((body, permit))
}

async fn read_body(socket: &mut OwnedReadHalf, length: usize) -> Result<Bytes, FrameError> {
    let mut body = BytesMut::with_capacity(length.min(STEP_BYTES));
    while body.len() < length {
        if body.len() == body.capacity() {
            body.reserve((length - body.len()).min(body.len()));
        }
        let room = (body.capacity() - body.len()).min(length - body.len());
        let mut limited = bytes::BufMut::limit(&mut body, room);
        if socket.read_buf(&mut limited).await? == 0 {
            return Err(FrameError::Cut);
        }
    }
    Ok(body.freeze())
}

fn cut(error: io::Error) -> FrameError {
    if error.kind() == io::ErrorKind::UnexpectedEof { FrameError::Cut } else { error.into() }
}

/// Writes one answer: its length, then its chunks, without copying them.
pub async fn write_frame(socket: &mut OwnedWriteHalf, chunks: Vec<Bytes>) -> io::Result<()> {
    let length: usize = chunks.iter().map(Bytes::len).sum();
    let head = u32::try_from(length).map_err(|_| io::Error::other("an answer above 4 GiB"))?.to_be_bytes();
    let mut all: std::collections::VecDeque<Bytes> = chunks.into();
    all.push_front(Bytes::copy_from_slice(&head));
    while !all.is_empty() {
        let written = {
            let slices: Vec<io::IoSlice<'_>> =
                all.iter().take(64).map(|chunk| io::IoSlice::new(chunk)).collect();
            socket.write_vectored(&slices).await?
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        advance(&mut all, written);
    }
    Ok(())
}

fn advance(chunks: &mut std::collections::VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = chunks.front_mut() {
        if front.len() > written {
            front.advance(written);
            return;
        }
        written -= front.len();
        chunks.pop_front();
    }
}
