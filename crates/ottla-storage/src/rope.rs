//! Bytes in a few shared pieces, and the batches in them.

use bytes::Bytes;
use ottla_protocol::batch::{BATCH_HEAD_BYTES, BATCH_HEADER_BYTES};

use crate::index::Extent;
use crate::layout::{Crc, Fields};

/// Pieces one behind the other.
pub(crate) struct Rope(pub(crate) Vec<Bytes>);

/// A batch inside an extent's bytes, as its head says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchAt {
    /// From the start of the extent.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) base_offset: i64,
    /// One below the next batch's base offset: where there may be gaps, the batch may end in front of it.
    pub(crate) last_offset: i64,
    /// Whether it may.
    may_end_before: bool,
    crc: u32,
}

impl Rope {
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// The pieces of a range, shared.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Vec<Bytes> {
        let mut out = Vec::with_capacity(1);
        let mut begin = 0;
        for piece in &self.0 {
            let end = begin + piece.len();
            if end > from && begin < to {
                out.push(piece.slice(from.max(begin) - begin..to.min(end) - begin));
            }
            begin = end;
        }
        out
    }

    fn copy<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut out = [0; N];
        let mut filled = 0;
        for piece in self.slice(at, at + N) {
            out[filled..filled + piece.len()].copy_from_slice(&piece);
            filled += piece.len();
        }
        (filled == N).then_some(out)
    }

    /// The batches of an extent; none when the heads are not those that were written there. `gaps`: whether there
    /// may be gaps between their offsets.
    pub(crate) fn batches(&self, extent: &Extent, gaps: bool) -> Option<Vec<BatchAt>> {
        let len = self.len();
        let mut heads = Crc::new();
        let mut batches: Vec<BatchAt> = Vec::new();
        let mut at = 0;
        while at < len {
            let head: [u8; BATCH_HEAD_BYTES] = self.copy(at)?;
            heads.update(&head);
            let fields = Fields(&head);
            let bytes = usize::try_from(i64::from(fields.i32(8)) + 12).ok()?;
            if bytes < BATCH_HEADER_BYTES || bytes > len - at {
                return None;
            }
            let base_offset = fields.i64(0);
            if let Some(previous) = batches.last_mut() {
                previous.last_offset = base_offset.checked_sub(1)?;
                previous.may_end_before = gaps;
            }
            batches.push(BatchAt {
                at,
                bytes,
                base_offset,
                last_offset: extent.last_offset,
                may_end_before: false,
                crc: fields.u32(17),
            });
            at += bytes;
        }
        let ordered = batches.iter().all(|batch| batch.base_offset <= batch.last_offset);
        let sound = ordered
            && batches.first()?.base_offset == extent.first_offset
            && heads.finish() == extent.heads_crc;
        sound.then_some(batches)
    }

    /// Whether a batch's body is what its head says.
    pub(crate) fn is_sound(&self, batch: &BatchAt) -> bool {
        let mut crc = Crc::new();
        for piece in self.slice(batch.at + BATCH_HEAD_BYTES, batch.at + batch.bytes) {
            crc.update(&piece);
        }
        let end = self.end_of(batch);
        let fits = end.is_some_and(|end| {
            end == batch.last_offset
                || (batch.may_end_before && (batch.base_offset..batch.last_offset).contains(&end))
        });
        crc.finish() == batch.crc && fits
    }

    /// The batch's last offset by its header, which only a sound batch's is.
    pub(crate) fn end_of(&self, batch: &BatchAt) -> Option<i64> {
        let delta = self.copy::<4>(batch.at + 23).map(i32::from_be_bytes)?;
        batch.base_offset.checked_add(i64::from(delta))
    }
}
