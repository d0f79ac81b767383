//! How far a partition's log start moves by age and by size (`retention.ms`, `retention.bytes`).
//!
//! Kafka deletes whole segments. Its segment is here what one sealed file holds of the partition, and in the file in
//! use one extent (at most 256 KiB, or one batch); by size also one extent of the file at which the limit falls. A
//! unit is as old as its largest timestamp, so one that has a timestamp in the future stays, and what is behind it,
//! as in Kafka; one without timestamps is as old as its file.
//!
//! Decides nothing: the caller writes the record that moves the log start.

use ottla_protocol::types::TopicIdPartition;

use crate::error::ReadError;
use crate::index::{Extent, FileRange};
use crate::reader::LogReader;

/// What is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Units whose largest timestamp is below this (milliseconds) may go; none: no limit.
    pub from_timestamp: Option<i64>,
    /// Units may go as long as so many bytes are left; none: no limit.
    pub bytes: Option<u64>,
}

impl LogReader {
    /// The offset up to which records between `log_start_offset` and `end_offset` need not be kept;
    /// `log_start_offset` when all must. May block on the disk, to read footers.
    pub fn retention_point(
        &self,
        partition: TopicIdPartition,
        log_start_offset: i64,
        end_offset: i64,
        kept: Retention,
    ) -> Result<i64, ReadError> {
        let ranges = self.shared.index().ranges(&partition, log_start_offset);
        let by_time = kept.from_timestamp.map_or(log_start_offset, |from_timestamp| {
            self.behind_expired(&partition, &ranges, log_start_offset, from_timestamp)
        });
        let by_size = match kept.bytes {
            Some(bytes) => self.behind_excess(&partition, &ranges, log_start_offset, bytes)?,
            None => log_start_offset,
        };
        Ok(by_time.max(by_size).min(end_offset))
    }

    fn behind_expired(
        &self,
        partition: &TopicIdPartition,
        ranges: &[FileRange],
        log_start_offset: i64,
        from_timestamp: i64,
    ) -> i64 {
        let in_use = self.shared.index().open_file();
        let mut point = log_start_offset;
        for range in ranges.iter().filter(|range| range.file != in_use) {
            let appended = self.shared.known().appended.get(&range.file).copied();
            let age = if range.max_timestamp < 0 { appended } else { Some(range.max_timestamp) };
            if age.is_none_or(|age| age >= from_timestamp) {
                return point;
            }
            point = range.last_offset + 1;
        }
        let open = self.shared.index().open_extents(partition);
        for extent in open {
            if extent.max_timestamp < 0 || extent.max_timestamp >= from_timestamp {
                break;
            }
            point = point.max(extent.last_offset + 1);
        }
        point
    }

    fn behind_excess(
        &self,
        partition: &TopicIdPartition,
        ranges: &[FileRange],
        log_start_offset: i64,
        kept: u64,
    ) -> Result<i64, ReadError> {
        let mut sizes = Vec::with_capacity(ranges.len());
        for range in ranges {
            let whole = range.first_offset >= log_start_offset && range.bytes > 0;
            let live = || -> Result<u64, ReadError> {
                let extents = self.range_extents(partition, range)?;
                let live = extents.iter().filter(|extent| extent.last_offset >= log_start_offset);
                Ok(live.map(|extent| u64::from(extent.bytes)).sum())
            };
            sizes.push(if whole { range.bytes } else { live()? });
        }
        let mut excess = sizes.iter().sum::<u64>().saturating_sub(kept);
        let mut point = log_start_offset;
        for (range, bytes) in ranges.iter().zip(sizes) {
            if bytes <= excess {
                excess -= bytes;
                point = range.last_offset + 1;
                continue;
            }
            let extents: Vec<Extent> =
                if excess > 0 { self.range_extents(partition, range)? } else { Vec::new() };
            for extent in extents.iter().filter(|extent| extent.last_offset >= log_start_offset) {
                if u64::from(extent.bytes) > excess {
                    break;
                }
                excess -= u64::from(extent.bytes);
                point = extent.last_offset + 1;
            }
            break;
        }
        Ok(point)
    }
}
