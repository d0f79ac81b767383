//! Where the bytes of every partition are: in memory for the file in use, per file range for sealed ones.
//!
//! Only durable frames are ever in here. A sealed file's extents stay resident until its footer is written; from
//! then on the index keeps one `FileRange` per partition and file, and the extents are read back when needed.
//! The ranges of a partition are in the order of their offsets and do not overlap. Offsets follow one another without
//! a gap, but for what compaction has left out: only rewritten files have gaps, and only below `sparse_below`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ottla_protocol::types::TopicIdPartition;

use crate::options::FileId;

/// A run of batches is cut into extents of at most this, unless one batch alone is larger: the unit that is read
/// and checked as a whole.
pub(crate) const EXTENT_BYTES_MAX: u64 = 256 << 10;

/// A run of one partition's batches in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) first_offset: i64,
    pub(crate) last_offset: i64,
    /// Largest timestamp of its batches.
    pub(crate) max_timestamp: i64,
    /// Byte position in the file.
    pub(crate) position: u64,
    pub(crate) bytes: u32,
    /// CRC of the first 21 bytes of all its batches, which name offsets, lengths, epochs and the batches' own CRCs:
    /// tells bytes of another partition from these.
    pub(crate) heads_crc: u32,
}

/// Where a footer holds the extents of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FooterBlock {
    pub(crate) position: u64,
    pub(crate) extents: u32,
    pub(crate) crc: u32,
}

/// What a sealed file holds of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    pub(crate) file: FileId,
    pub(crate) first_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) max_timestamp: i64,
    /// Bytes of its batches; 0 where a file of version 1 does not say.
    pub(crate) bytes: u64,
    /// None while the extents are resident.
    pub(crate) block: Option<FooterBlock>,
}

impl FileRange {
    /// The range that the extents of one partition span.
    pub(crate) fn of(file: FileId, extents: &[Extent]) -> Option<Self> {
        Some(Self {
            file,
            first_offset: extents.first()?.first_offset,
            last_offset: extents.last()?.last_offset,
            max_timestamp: extents.iter().map(|extent| extent.max_timestamp).max()?,
            bytes: extents.iter().map(|extent| u64::from(extent.bytes)).sum(),
            block: None,
        })
    }
}

/// All extents of one file.
pub(crate) type FileExtents = BTreeMap<TopicIdPartition, Vec<Extent>>;

#[derive(Debug, Default)]
struct Line {
    sealed: Vec<FileRange>,
    open: Vec<Extent>,
    /// What lay below has been dropped: a reader that still asks for it gets nothing.
    floor: i64,
    /// Compaction has left out offsets below it.
    sparse_below: i64,
}

impl Line {
    /// Adds a range where its offsets belong.
    fn insert(&mut self, range: FileRange) {
        let at = self.sealed.partition_point(|there| there.first_offset < range.first_offset);
        self.sealed.insert(at, range);
    }
}

/// The extents to look at for an offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// Extents of one file, the first of which is the first that ends at or behind the offset.
    Extents(FileId, Vec<Extent>),
    /// They are in a footer.
    Footer(FileRange, FooterBlock),
}

/// The index of the whole log.
#[derive(Debug, Default)]
pub(crate) struct Index {
    lines: BTreeMap<TopicIdPartition, Line>,
    open_file: FileId,
    open_partitions: Vec<TopicIdPartition>,
    resident: BTreeMap<FileId, Arc<FileExtents>>,
    /// Compacted parts of which not everything is there any more: a gap in them is a loss.
    lossy: BTreeSet<(FileId, TopicIdPartition)>,
}

impl Index {
    /// Adds a durable frame's extents to the file in use.
    pub(crate) fn add(&mut self, extents: &[(TopicIdPartition, Extent)]) {
        for (partition, extent) in extents {
            let line = self.lines.entry(*partition).or_default();
            if line.open.is_empty() {
                self.open_partitions.push(*partition);
            }
            line.open.push(*extent);
        }
    }

    /// The file in use is sealed: its extents move, and `next` is in use from now on.
    pub(crate) fn seal(&mut self, next: FileId) {
        let mut moved = FileExtents::new();
        for partition in std::mem::take(&mut self.open_partitions) {
            let line = self.lines.get_mut(&partition).expect("open partitions have lines");
            let extents = std::mem::take(&mut line.open);
            line.sealed.push(FileRange::of(self.open_file, &extents).expect("an open partition has extents"));
            moved.insert(partition, extents);
        }
        if self.open_file != FileId(0) {
            self.resident.insert(self.open_file, Arc::new(moved));
        }
        self.open_file = next;
    }

    /// Adds a sealed file whose footer was read: ranges with blocks.
    pub(crate) fn add_footer(&mut self, ranges: Vec<(TopicIdPartition, FileRange)>) {
        for (partition, range) in ranges {
            self.lines.entry(partition).or_default().insert(range);
        }
    }

    /// Adds a sealed file whose footer is missing: its extents, from a scan.
    pub(crate) fn add_resident(&mut self, file: FileId, extents: FileExtents) {
        for (partition, list) in &extents {
            if let Some(range) = FileRange::of(file, list) {
                self.lines.entry(*partition).or_default().insert(range);
            }
        }
        self.resident.insert(file, Arc::new(extents));
    }

    /// Up to `count` partitions behind `after`, with what sealed files hold of them.
    pub(crate) fn sealed_behind(
        &self,
        after: Option<TopicIdPartition>,
        count: usize,
    ) -> Vec<(TopicIdPartition, Vec<FileRange>)> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let lines = self.lines.range((from, std::ops::Bound::Unbounded)).take(count);
        lines.map(|(partition, line)| (*partition, line.sealed.clone())).collect()
    }

    /// One partition's ranges in `removed` files are gone, those in `added` take their place. What lies in front of
    /// all that is left has been dropped.
    pub(crate) fn replace(
        &mut self,
        partition: &TopicIdPartition,
        removed: &BTreeSet<FileId>,
        added: &[FileRange],
    ) {
        let Some(line) = self.lines.get_mut(partition) else { return };
        for range in line.sealed.extract_if(.., |range| removed.contains(&range.file)) {
            line.floor = line.floor.max(range.last_offset + 1);
        }
        added.iter().for_each(|range| line.insert(*range));
        if let Some(first) = line.sealed.first() {
            line.floor = line.floor.min(first.first_offset);
        }
        if line.sealed.is_empty() && line.open.is_empty() {
            self.lines.remove(partition);
        }
    }

    /// What sealed files hold of a partition below `below` is in the `kept` ones now, and in `added`; the rest is
    /// dead. Says which files hold how many bytes of that.
    pub(crate) fn supersede(
        &mut self,
        partition: &TopicIdPartition,
        below: i64,
        kept: &BTreeSet<FileId>,
        added: &[FileRange],
    ) -> Vec<(FileId, u64)> {
        let line = self.lines.entry(*partition).or_default();
        let is_dead = |range: &mut FileRange| range.last_offset < below && !kept.contains(&range.file);
        let dead: Vec<FileRange> = line.sealed.extract_if(.., is_dead).collect();
        added.iter().for_each(|range| line.insert(*range));
        line.sparse_below = line.sparse_below.max(below);
        if line.sealed.is_empty() && line.open.is_empty() {
            self.lines.remove(partition);
        }
        dead.into_iter().map(|range| (range.file, range.bytes)).collect()
    }

    /// Not all of a compacted part is there any more: what is listed of it takes the place of what was found.
    pub(crate) fn note_loss(&mut self, partition: &TopicIdPartition, listed: FileRange) {
        self.lossy.insert((listed.file, *partition));
        let line = self.lines.entry(*partition).or_default();
        match line.sealed.iter_mut().find(|range| range.file == listed.file) {
            Some(range) => {
                range.first_offset = range.first_offset.min(listed.first_offset);
                range.last_offset = range.last_offset.max(listed.last_offset);
            }
            None => line.insert(listed),
        }
    }

    /// What a file holds of a partition.
    pub(crate) fn sealed_in(&self, partition: &TopicIdPartition, file: FileId) -> Option<FileRange> {
        self.lines.get(partition)?.sealed.iter().find(|range| range.file == file).copied()
    }

    /// What sealed files hold of a partition, oldest first.
    pub(crate) fn sealed(&self, partition: &TopicIdPartition) -> Vec<FileRange> {
        self.lines.get(partition).map(|line| line.sealed.clone()).unwrap_or_default()
    }

    /// Whether the partition may have nothing below `next_offset`, where a batch of `file` begins: compaction has left
    /// it out.
    pub(crate) fn may_be_left_out(
        &self,
        partition: &TopicIdPartition,
        file: FileId,
        next_offset: i64,
    ) -> bool {
        let line = self.lines.get(partition);
        line.is_some_and(|line| next_offset <= line.sparse_below) && !self.lossy.contains(&(file, *partition))
    }

    /// The extents of files that are gone need not be kept.
    pub(crate) fn forget_resident(&mut self, removed: &BTreeSet<FileId>) {
        self.resident.retain(|file, _| !removed.contains(file));
    }

    /// What a file holds of a partition, when its extents are only here.
    pub(crate) fn resident(&self, file: FileId, partition: &TopicIdPartition) -> Option<Vec<Extent>> {
        self.resident.get(&file)?.get(partition).cloned()
    }

    /// The file in use.
    pub(crate) fn open_file(&self) -> FileId {
        self.open_file
    }

    /// Extents of the file in use.
    pub(crate) fn open_extents(&self, partition: &TopicIdPartition) -> Vec<Extent> {
        self.lines.get(partition).map(|line| line.open.clone()).unwrap_or_default()
    }

    /// The next sealed file behind `after` whose extents are still resident.
    pub(crate) fn resident_behind(&self, after: FileId) -> Option<(FileId, Arc<FileExtents>)> {
        let (file, extents) =
            self.resident.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).next()?;
        Some((*file, extents.clone()))
    }

    /// The file's footer is written: from now on its extents are there. Called in parts, `done` with the last.
    pub(crate) fn footer_written(
        &mut self,
        file: FileId,
        blocks: &[(TopicIdPartition, FooterBlock)],
        done: bool,
    ) {
        for (partition, block) in blocks {
            // It is not there any more when the file was dropped meanwhile.
            let line = self.lines.get_mut(partition);
            let range = line.and_then(|line| line.sealed.iter_mut().rev().find(|range| range.file == file));
            if let Some(range) = range {
                range.block = Some(*block);
            }
        }
        if done {
            self.resident.remove(&file);
        }
    }

    /// Offset behind the last indexed batch of a partition.
    pub(crate) fn end_offset(&self, partition: &TopicIdPartition) -> Option<i64> {
        let line = self.lines.get(partition)?;
        let last = line.open.last().map(|extent| extent.last_offset);
        Some(last.or_else(|| line.sealed.last().map(|range| range.last_offset))? + 1)
    }

    /// Bytes of a partition's extents that are in memory, and where footers hold the others.
    pub(crate) fn sizes(&self, partition: &TopicIdPartition) -> (u64, Vec<(FileRange, FooterBlock)>) {
        let Some(line) = self.lines.get(partition) else { return (0, Vec::new()) };
        let sum = |extents: &[Extent]| extents.iter().map(|extent| u64::from(extent.bytes)).sum::<u64>();
        let mut bytes = sum(&line.open);
        let mut elsewhere = Vec::new();
        for range in &line.sealed {
            let resident = self.resident.get(&range.file).and_then(|file| file.get(partition));
            match (resident, range.block) {
                _ if range.bytes > 0 => bytes += range.bytes,
                (Some(extents), _) => bytes += sum(extents),
                (None, Some(block)) => elsewhere.push((*range, block)),
                (None, None) => panic!("a sealed range is resident or has a block in a footer"),
            }
        }
        (bytes, elsewhere)
    }

    /// The first extents that end at or behind `offset`: of one file, about `bytes_max` of them, at least one.
    pub(crate) fn locate(
        &self,
        partition: &TopicIdPartition,
        offset: i64,
        bytes_max: usize,
    ) -> Option<Located> {
        let line = self.lines.get(partition)?;
        if offset < line.floor && offset >= line.sparse_below {
            return None;
        }
        let at = line.sealed.partition_point(|range| range.last_offset < offset);
        let Some(range) = line.sealed.get(at) else {
            let extents = pick(&line.open, offset, bytes_max);
            return (!extents.is_empty()).then_some(Located::Extents(self.open_file, extents));
        };
        // The resident list is looked at first: a block may be set while the footer's last part is not.
        let resident = self.resident.get(&range.file).and_then(|file| file.get(partition));
        match (resident, range.block) {
            (Some(extents), _) => Some(Located::Extents(range.file, pick(extents, offset, bytes_max))),
            (None, Some(block)) => Some(Located::Footer(*range, block)),
            (None, None) => panic!("a sealed range is resident or has a block in a footer"),
        }
    }

    /// What files hold of a partition from `offset` on, oldest first; the file in use last.
    pub(crate) fn ranges(&self, partition: &TopicIdPartition, offset: i64) -> Vec<FileRange> {
        let Some(line) = self.lines.get(partition) else { return Vec::new() };
        let at = line.sealed.partition_point(|range| range.last_offset < offset);
        let mut ranges = line.sealed[at..].to_vec();
        ranges.extend(FileRange::of(self.open_file, &line.open).filter(|range| range.last_offset >= offset));
        ranges
    }
}

/// Extents from the first that ends at or behind `offset`, until they hold `bytes_max`, at least one.
pub(crate) fn pick(extents: &[Extent], offset: i64, bytes_max: usize) -> Vec<Extent> {
    let from = extents.partition_point(|extent| extent.last_offset < offset);
    let mut bytes = 0;
    let mut picked = Vec::new();
    for extent in &extents[from..] {
        if !picked.is_empty() && bytes >= bytes_max {
            break;
        }
        // The first extent may begin far in front of the offset: it is not counted, so that one more is picked.
        bytes += if picked.is_empty() { 0 } else { extent.bytes as usize };
        picked.push(*extent);
    }
    picked
}
