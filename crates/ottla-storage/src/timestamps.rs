//! Finding offsets by timestamp (ListOffsets): the time index is the largest timestamp of every file range and
//! extent; only the one batch that answers is decompressed, within a bound.

use bytes::{Bytes, BytesMut};
use ottla_protocol::batch::{BATCH_HEAD_BYTES, BatchHeader};
use ottla_protocol::record::records_of;
use ottla_protocol::types::TopicIdPartition;

use crate::error::ReadError;
use crate::index::{Extent, FileRange, Located, pick};
use crate::options::FileId;
use crate::reader::{LogReader, corrupt};

/// A batch that claims to decompress to more is answered by its first offset.
const DECOMPRESSED_BYTES_MAX: usize = 128 << 20;

impl LogReader {
    /// The first record, at `from` or behind and in front of `end_offset`, whose timestamp is at least `timestamp`
    /// (milliseconds): its offset and timestamp.
    pub fn offset_for_timestamp(
        &self,
        partition: TopicIdPartition,
        timestamp: i64,
        from: i64,
        end_offset: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        let ranges = self.shared.index().ranges(&partition, from);
        for range in ranges {
            if range.first_offset >= end_offset {
                break;
            }
            if range.max_timestamp < timestamp {
                continue;
            }
            for extent in self.all_extents(&partition, &range, from)? {
                if extent.first_offset >= end_offset {
                    break;
                }
                if extent.max_timestamp < timestamp {
                    continue;
                }
                let found = self.search(&partition, range.file, &extent, |header, offset, time| {
                    header.max_timestamp >= timestamp
                        && time >= timestamp
                        && (from..end_offset).contains(&offset)
                })?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// The record with the largest timestamp at `from` or behind and in front of `end_offset`, the first of them if
    /// there are several: its offset and timestamp (milliseconds).
    pub fn max_timestamp(
        &self,
        partition: TopicIdPartition,
        from: i64,
        end_offset: i64,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        let mut best: Option<(i64, i64)> = None;
        let ranges = self.shared.index().ranges(&partition, from);
        for range in ranges {
            if range.first_offset >= end_offset {
                break;
            }
            if best.is_some_and(|(_, time)| range.max_timestamp <= time) {
                continue;
            }
            for extent in self.all_extents(&partition, &range, from)? {
                if extent.first_offset >= end_offset {
                    break;
                }
                if best.is_some_and(|(_, time)| extent.max_timestamp <= time) {
                    continue;
                }
                self.search(&partition, range.file, &extent, |_, offset, time| {
                    let better = best.is_none_or(|(_, most)| time > most);
                    if better && (from..end_offset).contains(&offset) {
                        best = Some((offset, time));
                    }
                    false
                })?;
            }
        }
        Ok(best)
    }

    /// The extents of a range from the one that holds `from` on.
    pub(crate) fn all_extents(
        &self,
        partition: &TopicIdPartition,
        range: &FileRange,
        from: i64,
    ) -> Result<Vec<Extent>, ReadError> {
        let offset = from.max(range.first_offset);
        let located = self.shared.index().locate(partition, offset, usize::MAX);
        match located {
            Some(Located::Extents(file, extents)) if file == range.file => Ok(extents),
            Some(Located::Footer(range, block)) => {
                Ok(pick(&self.footer_extents(partition, &range, &block)?, offset, usize::MAX))
            }
            Some(Located::Extents(..)) | None => Ok(Vec::new()),
        }
    }

    /// Goes through the records of an extent until `wanted` says yes.
    fn search(
        &self,
        partition: &TopicIdPartition,
        file: FileId,
        extent: &Extent,
        mut wanted: impl FnMut(&BatchHeader, i64, i64) -> bool,
    ) -> Result<Option<(i64, i64)>, ReadError> {
        let loaded = self.load(partition, file, std::slice::from_ref(extent))?;
        for loaded in loaded {
            let range = (extent.first_offset, extent.last_offset);
            let refused = || corrupt(partition, range, file, extent.position);
            for batch in loaded.batches().ok_or_else(refused)? {
                if !loaded.is_sound(&batch) {
                    let position = extent.position + batch.at as u64;
                    return Err(corrupt(partition, (batch.base_offset, batch.last_offset), file, position));
                }
                let bytes = join(loaded.rope.slice(batch.at, batch.at + batch.bytes));
                let Ok(header) = BatchHeader::parse(&bytes) else { return Err(refused()) };
                let tail = bytes.slice(BATCH_HEAD_BYTES..);
                let records = records_of(&header, &tail, DECOMPRESSED_BYTES_MAX);
                // A batch whose records cannot be read was accepted nevertheless: it is answered as a whole.
                let whole = [(header.base_offset, header.max_timestamp)];
                let times: Box<dyn Iterator<Item = (i64, i64)>> = match records {
                    Ok(records) => Box::new(records.map_while(Result::ok).map(|r| (r.offset, r.timestamp))),
                    Err(_) => Box::new(whole.into_iter()),
                };
                for (offset, time) in times {
                    if wanted(&header, offset, time) {
                        return Ok(Some((offset, time)));
                    }
                }
            }
        }
        Ok(None)
    }
}

fn join(pieces: Vec<Bytes>) -> Bytes {
    if let [whole] = &pieces[..] {
        return whole.clone();
    }
    let mut out = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    for piece in pieces {
        out.extend_from_slice(&piece);
    }
    out.freeze()
}
