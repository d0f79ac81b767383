//! Frames on a socket: a length of 4 bytes, then the request or answer.
//!
//! A frame's buffer grows as its bytes arrive, whatever its length claims, and only within the bytes that all
//! requests together may occupy. Large frames have a budget of their own, and so have requests that may wait
//! long for their answer: none of these can hold up the others. Room is given in the order it was asked for.
//! Whoever holds room and brings nothing is cut, soon if others wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use ottla_env::net::{OwnedReadHalf, OwnedWriteHalf};
use ottla_env::time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{ANSWER_RATE_MIN, ANSWER_TIME, FRAME_TIME, FRAME_WINDOW};

/// Bytes that are asked for at a time while a large frame arrives.
const STEP_BYTES: usize = 1 << 20;

/// A request's share of the bytes in flight, held by its bytes and by its answer.
pub type Share = Arc<OwnedSemaphorePermit>;

/// Bytes of requests that may be in the broker, read or being read.
pub struct RequestBudget {
    capacity: usize,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    parked: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl RequestBudget {
    /// Half of the bytes for frames of at most 1 MiB, half for larger ones; each half holds at least one frame.
    /// A quarter more for requests that wait for something to happen.
    pub fn new(bytes: usize, frame_bytes_max: usize) -> Self {
        let half = (bytes / 2).max(STEP_BYTES);
        let large = half.max(frame_bytes_max);
        Self {
            capacity: half + large + half / 2,
            small: Arc::new(Semaphore::new(half)),
            large: Arc::new(Semaphore::new(large)),
            parked: Arc::new(Semaphore::new(half / 2)),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Room for a request that is parked, for as long as it is; none when too much is parked.
    pub fn park(&self, bytes: usize) -> Option<Share> {
        let permits = u32::try_from(bytes).ok()?;
        self.parked.clone().try_acquire_many_owned(permits).ok().map(Arc::new)
    }

    /// Bytes that are taken now.
    pub fn in_use(&self) -> usize {
        let left = [&self.small, &self.large, &self.parked].map(|budget| budget.available_permits());
        self.capacity.saturating_sub(left.iter().sum())
    }

    /// Bytes that may be taken.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    async fn acquire(&self, length: usize) -> Share {
        let budget = if length <= STEP_BYTES { &self.small } else { &self.large };
        let permits = u32::try_from(length).expect("the bound of a frame fits in 32 bits");
        if let Ok(permit) = budget.clone().try_acquire_many_owned(permits) {
            return Arc::new(permit);
        }
        let _waits = Waits::new(&self.waiting);
        Arc::new(budget.clone().acquire_many_owned(permits).await.expect("the budget is never closed"))
    }

    fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// Somebody waits for room: counted while it lives, also when the wait is given up.
pub struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    /// One more.
    pub fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
    #[error("a frame of {length} bytes did not arrive in time")]
    Slow { length: usize },
    #[error("the connection ended inside a frame")]
    Cut,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the beginning of the next frame into `head`, waiting up to `idle`; none when nothing came.
pub async fn read_start(
    socket: &mut OwnedReadHalf,
    head: &mut [u8; 4],
    idle: Duration,
) -> Result<Option<usize>, FrameError> {
    match time::timeout(idle, socket.read(head)).await {
        Err(_) => Ok(None),
        Ok(Ok(0)) => Err(FrameError::Closed),
        Ok(Ok(have)) => Ok(Some(have)),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => Err(FrameError::Closed),
        Ok(Err(error)) => Err(error.into()),
    }
}

/// Reads the rest of a frame's length, of which `have` bytes are there.
pub async fn read_length(
    socket: &mut OwnedReadHalf,
    mut head: [u8; 4],
    have: usize,
    bytes_max: usize,
) -> Result<usize, FrameError> {
    let rest = head.get_mut(have..).expect("a read fills no more than the buffer");
    if !rest.is_empty() {
        let timed = time::timeout(FRAME_TIME, socket.read_exact(rest)).await;
        timed.map_err(|_| FrameError::Slow { length: 4 })?.map_err(cut)?;
    }
    let claimed = i32::from_be_bytes(head);
    let length = usize::try_from(claimed).ok().filter(|length| (1..=bytes_max).contains(length));
    length.ok_or(FrameError::Length { claimed, max: bytes_max })
}

/// Reads a frame of this length, once there is room for it.
pub async fn read_frame(
    socket: &mut OwnedReadHalf,
    length: usize,
    budget: &RequestBudget,
) -> Result<(Bytes, Share), FrameError> {
    let share = budget.acquire(length).await;
    let deadline = time::now() + FRAME_TIME + Duration::from_secs((length / STEP_BYTES) as u64);
    let mut body = BytesMut::with_capacity(length.min(STEP_BYTES));
    while body.len() < length {
        let before = body.len();
        let window = (time::now() + FRAME_WINDOW).min(deadline);
        let filled = time::timeout_at(window, fill(socket, &mut body, length, STEP_BYTES)).await;
        match filled {
            Ok(filled) => filled?,
            Err(_) => {
                let is_slow = body.len() - before < STEP_BYTES && budget.is_wanted();
                if is_slow || time::now() >= deadline {
                    return Err(FrameError::Slow { length });
                }
            }
        }
    }
    Ok((body.freeze(), share))
}

/// Appends at least `least` bytes of the frame, or its rest. What was read stays when this is given up.
async fn fill(
    socket: &mut OwnedReadHalf,
    body: &mut BytesMut,
    length: usize,
    least: usize,
) -> Result<(), FrameError> {
    let goal = length.min(body.len() + least);
    while body.len() < goal {
        if body.len() == body.capacity() {
            body.reserve((length - body.len()).min(body.len()));
        }
        let room = (body.capacity() - body.len()).min(length - body.len());
        let mut limited = bytes::BufMut::limit(&mut *body, room);
        if socket.read_buf(&mut limited).await? == 0 {
            return Err(FrameError::Cut);
        }
    }
    Ok(())
}

fn cut(error: io::Error) -> FrameError {
    if error.kind() == io::ErrorKind::UnexpectedEof { FrameError::Cut } else { error.into() }
}

/// Writes one answer: its length, then its chunks, without copying them. `TimedOut` when the client does not take
/// it fast enough: in all, or, while others wait for the room that answers take, 1 MiB or its rest in each window.
pub async fn write_frame(
    socket: &mut OwnedWriteHalf,
    chunks: Vec<Bytes>,
    is_wanted: impl Fn() -> bool,
) -> io::Result<()> {
    let length: usize = chunks.iter().map(Bytes::len).sum();
    let head = u32::try_from(length).map_err(|_| io::Error::other("an answer above 4 GiB"))?.to_be_bytes();
    let mut all: std::collections::VecDeque<Bytes> = chunks.into();
    all.push_front(Bytes::copy_from_slice(&head));
    let deadline = time::now() + ANSWER_TIME + Duration::from_secs((length / ANSWER_RATE_MIN) as u64);
    let (mut window, mut taken) = ((time::now() + FRAME_WINDOW).min(deadline), 0);
    while !all.is_empty() {
        let written = {
            let slices: Vec<io::IoSlice<'_>> =
                all.iter().take(64).map(|chunk| io::IoSlice::new(chunk)).collect();
            time::timeout_at(window, socket.write_vectored(&slices)).await
        };
        match written {
            Ok(written) => {
                let written = written?;
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                taken += written;
                advance(&mut all, written);
            }
            Err(_) => {
                let is_slow = taken < STEP_BYTES && is_wanted();
                if is_slow || time::now() >= deadline {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the client does not take its answers",
                    ));
                }
                (window, taken) = ((time::now() + FRAME_WINDOW).min(deadline), 0);
            }
        }
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
