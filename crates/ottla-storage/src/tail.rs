//! The newest frames, in memory as they were written: tail reads are slices of them, nothing is copied.
//!
//! The bound counts every byte of the kept frames. Large bodies are shared with the request they came in, which
//! is expected to be read into a buffer of its own size; all its batches are in one frame, so the request's buffer
//! is kept and released as a whole.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::options::FileId;

/// One frame as it was written.
#[derive(Debug)]
pub(crate) struct TailFrame {
    file: FileId,
    at: u64,
    bytes: u64,
    /// Pieces and where each begins, from the start of the frame.
    pieces: Vec<(u64, Bytes)>,
}

/// Frames in the order they were written, oldest first.
#[derive(Debug)]
pub(crate) struct TailCache {
    frames: VecDeque<TailFrame>,
    bytes: u64,
    bytes_max: u64,
}

impl TailCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { frames: VecDeque::new(), bytes: 0, bytes_max: bytes_max as u64 }
    }

    /// Takes a durable frame; gives up the oldest ones that no longer fit. The caller drops what comes back after
    /// releasing its lock.
    pub(crate) fn push(&mut self, file: FileId, at: u64, pieces: Vec<Bytes>) -> Vec<TailFrame> {
        let mut next = 0;
        let pieces: Vec<(u64, Bytes)> = pieces
            .into_iter()
            .map(|piece| {
                let begin = next;
                next += piece.len() as u64;
                (begin, piece)
            })
            .collect();
        self.bytes += next;
        self.frames.push_back(TailFrame { file, at, bytes: next, pieces });
        let mut given_up = Vec::new();
        while self.bytes > self.bytes_max {
            let Some(frame) = self.frames.pop_front() else { break };
            self.bytes -= frame.bytes;
            given_up.push(frame);
        }
        given_up
    }

    /// The bytes of an extent, when its frame is still here.
    pub(crate) fn slices(&self, file: FileId, position: u64, bytes: u32) -> Option<Vec<Bytes>> {
        let behind = self.frames.partition_point(|frame| (frame.file, frame.at) <= (file, position));
        let frame = self.frames.get(behind.checked_sub(1)?)?;
        if frame.file != file || position + u64::from(bytes) > frame.at + frame.bytes {
            return None;
        }
        let (mut from, to) = (position - frame.at, position - frame.at + u64::from(bytes));
        let mut index = frame.pieces.partition_point(|(begin, _)| *begin <= from).checked_sub(1)?;
        let mut out = Vec::with_capacity(1);
        while from < to {
            let (begin, piece) = frame.pieces.get(index)?;
            let end = to.min(begin + piece.len() as u64);
            out.push(piece.slice((from - begin) as usize..(end - begin) as usize));
            from = end;
            index += 1;
        }
        Some(out)
    }

    /// Bytes held.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> u64 {
        self.bytes
    }
}
