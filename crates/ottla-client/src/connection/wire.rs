//! The two tasks of a connection: queued frames out, answers in.
//!
//! Invariant: an answer's buffer grows with the bytes that have arrived, never with the length a peer claims.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ottla_env::net::{OwnedReadHalf, OwnedWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use super::Shared;

/// Bytes of the buffer that small answers are read through.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// First piece of an answer's own buffer; doubled as bytes arrive.
const ANSWER_PIECE_BYTES: usize = 64 << 10;
/// Frames up to this length are copied into one write.
const ONE_WRITE_BYTES: usize = 32 << 10;

/// Writes frames until the queue or the connection ends.
pub(super) async fn run_writer(
    shared: Arc<Shared>,
    mut half: OwnedWriteHalf,
    mut queue: mpsc::Receiver<Vec<Bytes>>,
) {
    let mut closed = shared.closed.subscribe();
    loop {
        let frame = tokio::select! {
            frame = queue.recv() => frame,
            _ = closed.wait_for(|closed| *closed) => None,
        };
        let Some(frame) = frame else { return };
        let written = tokio::select! {
            written = write_frame(&mut half, frame) => written,
            _ = closed.wait_for(|closed| *closed) => return,
        };
        if let Err(error) = written {
            return shared.close(error.to_string());
        }
    }
}

async fn write_frame(half: &mut OwnedWriteHalf, frame: Vec<Bytes>) -> io::Result<()> {
    let length: usize = frame.iter().map(Bytes::len).sum();
    if length <= ONE_WRITE_BYTES {
        let mut whole = BytesMut::with_capacity(length);
        frame.iter().for_each(|chunk| whole.put_slice(chunk));
        return half.write_all(&whole).await;
    }
    let mut chunks: VecDeque<Bytes> = frame.into();
    while let Some(front) = chunks.front_mut() {
        if front.is_empty() {
            chunks.pop_front();
            continue;
        }
        let slices: Vec<io::IoSlice<'_>> =
            chunks.iter().take(64).map(|chunk| io::IoSlice::new(chunk)).collect();
        let mut written = half.write_vectored(&slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(front) = chunks.front_mut() {
            let step = written.min(front.len());
            front.advance(step);
            written -= step;
            if !front.is_empty() {
                break;
            }
            chunks.pop_front();
        }
    }
    Ok(())
}

/// Reads answers until the connection ends.
pub(super) async fn run_reader(shared: Arc<Shared>, half: OwnedReadHalf, answer_bytes_max: usize) {
    let mut closed = shared.closed.subscribe();
    let mut half = BufReader::with_capacity(READ_BUFFER_BYTES, half);
    loop {
        let answer = tokio::select! {
            answer = read_frame(&mut half, answer_bytes_max) => answer,
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

/// Reads one length-prefixed frame; without its length.
pub(crate) async fn read_frame<R: AsyncRead + Unpin>(half: &mut R, bytes_max: usize) -> io::Result<Bytes> {
    let claimed = half.read_i32().await?;
    let length = usize::try_from(claimed).ok().filter(|length| *length <= bytes_max).ok_or_else(|| {
        let text = format!("a frame of {claimed} bytes was announced; at most {bytes_max} are accepted");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })?;
    let mut frame = BytesMut::new();
    while frame.len() < length {
        let missing = length - frame.len();
        if frame.capacity() == frame.len() {
            frame.reserve(missing.min(frame.len().max(ANSWER_PIECE_BYTES)));
        }
        if half.read_buf(&mut (&mut frame).limit(missing)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(frame.freeze())
}
