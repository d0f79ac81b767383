//! Which files the log consists of.
//!
//! Files of the log from `chain` on are all live: they are one chain by their headers, and replay may need them. Of
//! the files in front of it, and of the rewritten ones, those are live that are listed here. A change is one entry
//! (`FilesEdit`) in a frame of the log itself: new files are durable before it is written, files that it drops are
//! removed only when it is durable. A snapshot's first chunk is the catalogue; the edits behind the snapshot follow in
//! replay. Applying an edit again changes nothing in the end, so a catalogue may be newer than the snapshot's frame.
//!
//! Compaction moves one partition out of files that stay: [`Compacted`] says up to where, and into which files. What
//! other files still hold of the partition below that is dead, whatever their footers say.
//!
//! Invariants: `chain` never goes back; a file that was dropped never comes back; ids are never given twice.

mod chunks;

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use ottla_protocol::batch::{Producer, build_plain};
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::record::records_of;
use ottla_protocol::types::{TopicIdPartition, Uuid};

use crate::file_header::Seal;
use crate::layout::Fields;
use crate::options::{FileId, FrameSequence};

/// The partition that entries of kind `Files` name; nobody reads it.
const FILES_PARTITION: TopicIdPartition =
    TopicIdPartition { topic_id: Uuid(*b"ottla.files.log."), partition: 0 };
/// Version of the encoded edit.
const EDIT_VERSION: u16 = 1;
/// Version of an edit that names no compacted partition.
const EDIT_VERSION_PLAIN: u16 = 0;
const EDIT_HEADER_BYTES: usize = 32;
const LIVE_FILE_BYTES: usize = 56;
const COMPACTED_BYTES: usize = 32;
const COMPACTED_PART_BYTES: usize = 32;
/// Files that one edit drops or adds at most.
pub(crate) const EDIT_FILES_MAX: usize = 10_000;
/// An encoded edit is not larger, whatever it claims.
const EDIT_BYTES_MAX: usize = 64 << 20;

/// A live file that is not part of the chain any more, or never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveFile {
    /// Which file, and how it ends.
    pub(crate) seal: Seal,
    /// It was looked at as a part of a run and is good as it is.
    pub(crate) is_settled: bool,
    /// Of a rewritten file: the newest file of the log whose batches it may hold. Else the file itself.
    pub(crate) newest_source: FileId,
}

/// Where a compacted partition is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    pub(crate) partition: TopicIdPartition,
    /// What there is of the partition in front of this offset is in the parts, and nowhere else.
    pub(crate) below: i64,
    /// Oldest first. None: nothing is left, and nothing is said about the partition any more.
    pub(crate) parts: Vec<CompactedPart>,
}

/// What a rewritten file holds of a compacted partition. It may reach behind `Compacted::below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactedPart {
    pub(crate) file: FileId,
    pub(crate) first_offset: i64,
    pub(crate) last_offset: i64,
    /// Bytes of its batches: so it is known when something is missing, though there may be gaps.
    pub(crate) bytes: u64,
}

/// A change of the files that the log consists of: to be appended to the log, and only then true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilesEdit {
    /// Files of the log from this one on are live without being listed.
    pub(crate) chain: FileId,
    /// They are not live any more.
    pub(crate) removed: Vec<FileId>,
    /// They are live.
    pub(crate) added: Vec<LiveFile>,
    /// Partitions that were compacted, or whose parts have moved.
    pub(crate) compacted: Vec<Compacted>,
}

impl FilesEdit {
    fn encode(&self) -> Bytes {
        let bytes = EDIT_HEADER_BYTES + self.removed.len() * 8 + self.added.len() * LIVE_FILE_BYTES;
        let mut out = BytesMut::with_capacity(bytes);
        out.put_u16(if self.compacted.is_empty() { EDIT_VERSION_PLAIN } else { EDIT_VERSION });
        out.put_u16(0);
        out.put_u32(self.removed.len() as u32);
        out.put_u32(self.added.len() as u32);
        out.put_u32(self.compacted.len() as u32);
        out.put_u64(self.chain.0);
        out.put_u64(0);
        for file in &self.removed {
            out.put_u64(file.0);
        }
        for live in &self.added {
            out.put_u64(live.seal.file.0);
            out.put_u64(live.seal.nonce);
            out.put_u64(live.seal.length);
            out.put_u64(live.seal.last_sequence.0);
            out.put_u32(live.seal.last_header_crc);
            out.put_u32(u32::from(live.is_settled));
            out.put_u64(live.newest_source.0);
            out.put_u64(0);
        }
        for compacted in &self.compacted {
            out.put_slice(&compacted.partition.topic_id.0);
            out.put_i32(compacted.partition.partition);
            out.put_u32(compacted.parts.len() as u32);
            out.put_i64(compacted.below);
            for part in &compacted.parts {
                out.put_u64(part.file.0);
                out.put_i64(part.first_offset);
                out.put_i64(part.last_offset);
                out.put_u64(part.bytes);
            }
        }
        out.freeze()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let header = Fields(bytes.get(..EDIT_HEADER_BYTES)?);
        let (removed, added) = (header.u32(4) as usize, header.u32(8) as usize);
        let (dropped, listed) = bytes[EDIT_HEADER_BYTES..].split_at_checked(removed.checked_mul(8)?)?;
        let (listed, rest) = listed.split_at_checked(added.checked_mul(LIVE_FILE_BYTES)?)?;
        if header.u16(0) > EDIT_VERSION {
            return None;
        }
        let compacted = Compacted::decode_all(rest, header.u32(12))?;
        let removed = dropped.chunks_exact(8).map(|file| FileId(Fields(file).u64(0))).collect();
        let added = listed.chunks_exact(LIVE_FILE_BYTES).map(|live| {
            let fields = Fields(live);
            LiveFile {
                seal: Seal {
                    file: FileId(fields.u64(0)),
                    nonce: fields.u64(8),
                    length: fields.u64(16),
                    last_sequence: FrameSequence(fields.u64(24)),
                    last_header_crc: fields.u32(32),
                },
                is_settled: fields.u32(36) != 0,
                newest_source: FileId(fields.u64(40)),
            }
        });
        Some(Self { chain: FileId(header.u64(16)), removed, added: added.collect(), compacted })
    }

    /// The entry that makes it true.
    pub(crate) fn entry(&self) -> Entry {
        let value = self.encode();
        let (header, tail) = build_plain(0, Producer::NONE, [(&b"files"[..], Some(&value[..]))]);
        Entry { kind: EntryKind::Files, partition: FILES_PARTITION, header, tail }
    }

    /// The edit in an entry of kind `Files`; none when it cannot be read.
    pub(crate) fn of(entry: &Entry) -> Option<Self> {
        let record = records_of(&entry.header, &entry.tail, EDIT_BYTES_MAX).ok()?.next()?.ok()?;
        Self::decode(&record.value?)
    }
}

impl Compacted {
    /// Exactly `count` of them, or none.
    fn decode_all(mut bytes: &[u8], count: u32) -> Option<Vec<Self>> {
        let mut all = Vec::new();
        for _ in 0..count {
            let (fixed, rest) = bytes.split_at_checked(COMPACTED_BYTES)?;
            let fields = Fields(fixed);
            let parts = (fields.u32(20) as usize).checked_mul(COMPACTED_PART_BYTES)?;
            let (parts, rest) = rest.split_at_checked(parts)?;
            let parts = parts.chunks_exact(COMPACTED_PART_BYTES).map(|part| {
                let fields = Fields(part);
                CompactedPart {
                    file: FileId(fields.u64(0)),
                    first_offset: fields.i64(8),
                    last_offset: fields.i64(16),
                    bytes: fields.u64(24),
                }
            });
            let partition = TopicIdPartition { topic_id: Uuid(fields.array(0)), partition: fields.i32(16) };
            all.push(Self { partition, below: fields.i64(24), parts: parts.collect() });
            bytes = rest;
        }
        bytes.is_empty().then_some(all)
    }
}

/// The files that the log consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Catalogue {
    chain: FileId,
    files: BTreeMap<FileId, LiveFile>,
    compacted: BTreeMap<TopicIdPartition, Compacted>,
    /// Number of the next rewritten file.
    next_data: u64,
}

impl Default for Catalogue {
    /// What a folder has that no edit has changed: everything is chain.
    fn default() -> Self {
        Self { chain: FileId(1), files: BTreeMap::new(), compacted: BTreeMap::new(), next_data: 1 }
    }
}

impl Catalogue {
    pub(crate) fn apply(&mut self, edit: &FilesEdit) {
        self.chain = self.chain.max(edit.chain);
        for file in &edit.removed {
            self.files.remove(file);
        }
        for live in &edit.added {
            self.files.insert(live.seal.file, *live);
            if live.seal.file.is_data() {
                self.reserve(live.seal.file.number());
            }
        }
        for compacted in &edit.compacted {
            if compacted.parts.is_empty() {
                self.compacted.remove(&compacted.partition);
            } else {
                self.compacted.insert(compacted.partition, compacted.clone());
            }
        }
    }

    /// Where the compacted partitions are.
    pub(crate) fn compacted(&self) -> impl Iterator<Item = &Compacted> {
        self.compacted.values()
    }

    /// Where a compacted partition is.
    pub(crate) fn compacted_partition(&self, partition: &TopicIdPartition) -> Option<&Compacted> {
        self.compacted.get(partition)
    }

    /// A live file that is listed.
    pub(crate) fn listed_file(&self, file: FileId) -> Option<&LiveFile> {
        self.files.get(&file)
    }

    /// A rewritten file with this number exists or existed.
    pub(crate) fn reserve(&mut self, number: u64) {
        self.next_data = self.next_data.max(number + 1);
    }

    /// The id of the next rewritten file.
    pub(crate) fn next_data(&mut self) -> FileId {
        self.next_data += 1;
        FileId::data(self.next_data - 1)
    }

    /// The first file of the chain.
    pub(crate) fn chain(&self) -> FileId {
        self.chain
    }

    /// The live files that are not in the chain, by id.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &LiveFile> {
        self.files.values()
    }

    /// Whether a file is live.
    pub(crate) fn is_live(&self, file: FileId) -> bool {
        (!file.is_data() && file >= self.chain) || self.files.contains_key(&file)
    }

    /// As the first chunk of a snapshot.
    pub(crate) fn encode(&self) -> Bytes {
        let all = FilesEdit {
            chain: self.chain,
            removed: Vec::new(),
            added: self.listed().copied().collect(),
            compacted: self.compacted().cloned().collect(),
        };
        let mut out = BytesMut::new();
        out.put_u64(self.next_data);
        out.put_slice(&all.encode());
        out.freeze()
    }

    /// Reads the first chunk of a snapshot.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let next_data = Fields(bytes.get(..8)?).u64(0);
        let all = FilesEdit::decode(&bytes[8..])?;
        let mut catalogue = Self { next_data: next_data.max(1), ..Self::default() };
        catalogue.apply(&all);
        Some(catalogue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(file: FileId) -> LiveFile {
        let seal = Seal { file, nonce: 7, length: 8192, last_sequence: FrameSequence(3), last_header_crc: 9 };
        LiveFile { seal, is_settled: file.is_data(), newest_source: FileId(4) }
    }

    fn compacted(topic: u8, parts: u64) -> Compacted {
        let partition = TopicIdPartition { topic_id: Uuid([topic; 16]), partition: 3 };
        let part = |number| CompactedPart {
            file: FileId::data(number),
            first_offset: 10 * number as i64,
            last_offset: 10 * number as i64 + 3,
            bytes: 77,
        };
        Compacted { partition, below: 40, parts: (1..=parts).map(part).collect() }
    }

    /// Proves: an edit survives its entry, a catalogue its chunk, and bytes that are neither are refused.
    #[test]
    fn what_is_written_is_read() {
        let edit = FilesEdit {
            chain: FileId(5),
            removed: vec![FileId(2), FileId::data(1)],
            added: vec![live(FileId(3)), live(FileId::data(2))],
            compacted: vec![compacted(1, 2), compacted(2, 1)],
        };
        assert_eq!(FilesEdit::of(&edit.entry()), Some(edit.clone()));
        let mut catalogue = Catalogue::default();
        catalogue.apply(&edit);
        assert_eq!(Catalogue::decode(&catalogue.encode()), Some(catalogue.clone()));
        let bytes = edit.encode();
        for length in 0..bytes.len() {
            assert_eq!(FilesEdit::decode(&bytes[..length]), None);
        }
        assert!(catalogue.is_live(FileId(3)) && catalogue.is_live(FileId(9)));
        assert!(!catalogue.is_live(FileId(2)) && !catalogue.is_live(FileId::data(1)));
        assert_eq!(catalogue.next_data(), FileId::data(3));
    }

    fn edit(chain: u64, removed: FileId, added: FileId, compacted: Vec<Compacted>) -> FilesEdit {
        FilesEdit { chain: FileId(chain), removed: vec![removed], added: vec![live(added)], compacted }
    }

    /// Proves: edits that a catalogue already contains change nothing, applied again in order.
    #[test]
    fn edits_may_be_applied_again() {
        let edits = [
            edit(3, FileId(1), FileId(2), vec![compacted(1, 1), compacted(2, 1)]),
            edit(4, FileId(2), FileId::data(1), vec![compacted(1, 2)]),
            edit(4, FileId::data(1), FileId(3), vec![compacted(2, 0)]),
        ];
        let mut once = Catalogue::default();
        edits.iter().for_each(|edit| once.apply(edit));
        let mut twice = once.clone();
        edits.iter().for_each(|edit| twice.apply(edit));
        assert_eq!(once, twice);
    }
}
