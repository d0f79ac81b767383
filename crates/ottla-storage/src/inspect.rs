//! Looking at a whole folder without changing it: every file, every frame, every batch, every snapshot.
//!
//! Recovery stops at the first damage that it needs and never looks at the bodies of old frames. This goes on behind
//! damage, reads everything, and says for each damaged place which offsets of which partitions it holds, where that
//! can be known: from the frame's entries when only bodies are damaged, else from the offsets that are missing in the
//! frames behind. Nothing is written, not even the lock file; the caller sees to it that nobody works on the folder.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_protocol::entry::EntryKind;
use ottla_protocol::types::TopicIdPartition;

use crate::catalogue::{Catalogue, FilesEdit};
use crate::error::{Damage, OpenError};
use crate::file_header::{FileHeader, HeaderFault, Seal};
use crate::footer;
use crate::frame::{EntryHeader, FrameHeader};
use crate::layout::{BLOCK_BYTES, FORMAT_VERSION};
use crate::options::{Durability, FileId, FrameSequence};
use crate::recovery::Listing;
use crate::scan::{Bodies, Identity, ScannedFrame, Scanner, Step};
use crate::snapshot::{Owner, Snapshot, SnapshotFault, SnapshotInfo};

/// Most damaged places of a file that are told apart; what lies behind them is still read.
const PLACES_MAX: usize = 1000;
/// Most missing files that are named.
const MISSING_MAX: usize = 100_000;

/// What a folder holds.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The version of the format that this build writes.
    pub format_version: u16,
    /// The number that all files of this log carry; none when no header can be read.
    pub log_id: Option<u64>,
    /// The files of the log in order, then the rewritten ones. Some may be left over from a crash and be removed by
    /// the next start.
    pub files: Vec<FileInspection>,
    /// The snapshots, oldest first.
    pub snapshots: Vec<SnapshotInspection>,
    /// Files that the log needs and that are not there, by what is left of it.
    pub missing: Vec<FileId>,
    /// Which offsets are there and good, per partition, in order.
    pub covered: BTreeMap<TopicIdPartition, Vec<(i64, i64)>>,
    /// Files that somebody had begun and not finished; the next start removes them.
    pub unfinished: Vec<String>,
    /// Files with what a repair has replaced; nobody reads them.
    pub aside: Vec<String>,
    /// Files that are not the log's.
    pub unknown: Vec<String>,
}

/// One file of the log.
#[derive(Clone, Debug)]
pub struct FileInspection {
    /// Its number.
    pub file: FileId,
    /// Its length in bytes.
    pub bytes: u64,
    /// The opening that wrote it; none when its header cannot be read.
    pub epoch: Option<i32>,
    /// Whether what was acknowledged in it had been synced.
    pub durability: Option<Durability>,
    /// Where the log ends in it, in bytes: its sealed end, or what was found in the last file.
    pub end: u64,
    /// Whether the next file says where it ends.
    pub sealed: bool,
    /// Good frames in it.
    pub frames: u64,
    /// Good batches in it.
    pub batches: u64,
    /// Its first and last good frame.
    pub sequences: Option<(FrameSequence, FrameSequence)>,
    /// Shard time of its first and last good frame, ms since the Unix epoch.
    pub times: Option<(i64, i64)>,
    /// State of its index at the end.
    pub footer: Footer,
    /// One of the two copies of its header is damaged.
    pub header_copy_damaged: bool,
    /// Damaged places.
    pub damage: Vec<DamagedPlace>,
    /// A frame that was not written to its end: nobody was told of it, and the next start leaves it out.
    pub torn: Option<u64>,
}

/// The index at a file's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footer {
    /// The file is the last one: it has none yet.
    InUse,
    /// It is good.
    Sound,
    /// It is missing or damaged; a start makes it anew from the frames.
    Missing,
}

/// A damaged place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPlace {
    /// Byte position.
    pub position: u64,
    /// Where the next frame is looked for; none when nothing good lies behind it in this file.
    pub resumes_at: Option<u64>,
    /// What is wrong.
    pub what: &'static str,
    /// What it held, as far as it can be known. Empty: unknown, or nothing that readers see.
    pub holds: Vec<OffsetRange>,
}

/// Offsets of a partition, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OffsetRange {
    /// The partition.
    pub partition: TopicIdPartition,
    /// The first.
    pub first_offset: i64,
    /// The last.
    pub last_offset: i64,
}

/// One snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotInspection {
    /// Its file.
    pub name: String,
    /// What it contains, or what is wrong with it.
    pub contents: Result<SnapshotInfo, Damage>,
}

/// Reads a whole folder. `progress` is told the bytes of each file when it has been read, and of all of them.
///
/// Errors: a folder that is no log of this shard, or of a newer version; a disk that cannot be read. Damage is no
/// error.
pub fn inspect(
    disk: &dyn Disk,
    shard_id: u32,
    mut progress: impl FnMut(u64, u64),
) -> Result<Inspection, OpenError> {
    let listing = Listing::read(disk)?;
    if listing.files.is_empty()
        && let Some(name) = listing.unknown.first()
    {
        let what = "the folder has other files and no log of Ottla; name an empty folder or the right one";
        return Err(OpenError::Foreign { name: name.clone(), what });
    }
    let mut headers = Vec::with_capacity(listing.files.len() + listing.data.len());
    for id in listing.files.iter().chain(&listing.data) {
        headers.push(Header::read(disk, *id, shard_id)?);
    }
    let log_id = headers.iter().rev().find_map(|header| header.header.as_ref()).map(|header| header.log_id);
    let (snapshots, mut catalogue) = inspect_snapshots(disk, &listing.snapshots, shard_id, log_id)?;
    let total: u64 = headers.iter().map(|header| header.bytes).sum();
    let mut offsets = Offsets::default();
    let mut files: Vec<FileInspection> = Vec::with_capacity(headers.len());
    let mut read = 0;
    for at in 0..headers.len() {
        let id = headers[at].id;
        let next = headers.get(at + 1).filter(|next| next.id.0 == id.0 + 1 && !id.is_data());
        let is_newest = listing.files.last() == Some(&id);
        if id.is_data() || next.is_none() {
            // What follows does not go on where this ends: offsets that are missing there were not lost here.
            offsets.give_to(&mut files);
            offsets = Offsets { covered: offsets.covered, edits: offsets.edits, ..Offsets::default() };
        }
        offsets.file = at;
        let io = |source| OpenError::Io { name: id.file_name(), source };
        let by_next = next.and_then(|next| next.header.as_ref()).map(|next| next.previous);
        let seal =
            match by_next.or_else(|| catalogue.listed().map(|live| live.seal).find(|seal| seal.file == id)) {
                None if next.is_none() && !is_newest => own_seal(disk, id).map_err(io)?,
                seal => seal,
            };
        let file = inspect_file(disk, shard_id, &headers[at], seal, !is_newest, &mut offsets).map_err(io)?;
        read += headers[at].bytes;
        progress(read, total);
        files.push(file);
    }
    offsets.give_to(&mut files);
    offsets.edits.iter().for_each(|edit| catalogue.apply(edit));
    Ok(Inspection {
        format_version: FORMAT_VERSION,
        log_id,
        files,
        snapshots,
        missing: missing(&catalogue, &listing),
        covered: offsets.covered.into_iter().map(|(partition, ranges)| (partition, joined(ranges))).collect(),
        unfinished: listing.temporary,
        aside: listing.aside,
        unknown: listing.unknown,
    })
}

/// What is live and not there.
fn missing(catalogue: &Catalogue, listing: &Listing) -> Vec<FileId> {
    let listed = catalogue.listed().map(|live| live.seal.file);
    let newest = listing.files.last().copied().unwrap_or_default();
    let chained = (catalogue.chain().0..=newest.0).take(MISSING_MAX).map(FileId);
    let there =
        |id: &FileId| listing.files.binary_search(id).is_ok() || listing.data.binary_search(id).is_ok();
    listed.chain(chained).filter(|id| !there(id)).take(MISSING_MAX).collect()
}

/// Ranges in order, those that touch or overlap as one.
fn joined(mut ranges: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    ranges.sort_unstable();
    let mut out: Vec<(i64, i64)> = Vec::new();
    for (first, last) in ranges {
        match out.last_mut().filter(|(_, before)| first <= before.saturating_add(1)) {
            Some((_, before)) => *before = last.max(*before),
            None => out.push((first, last)),
        }
    }
    out
}

/// A file's header block.
pub(crate) struct Header {
    pub(crate) id: FileId,
    pub(crate) bytes: u64,
    pub(crate) header: Option<FileHeader>,
    pub(crate) copy_damaged: bool,
}

impl Header {
    pub(crate) fn read(disk: &dyn Disk, id: FileId, shard_id: u32) -> Result<Self, OpenError> {
        let name = id.file_name();
        let io = |source| OpenError::Io { name: id.file_name(), source };
        let file = disk.open(&name).map_err(io)?;
        let bytes = file.len().map_err(io)?;
        let mut block = vec![0; BLOCK_BYTES as usize];
        let broken = Self { id, bytes, header: None, copy_damaged: false };
        match file.read_exact_at(&mut block, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(broken),
            Err(error) => return Err(io(error)),
        }
        match FileHeader::decode(&block) {
            Ok((header, _)) if header.shard_id != shard_id => {
                Err(OpenError::Foreign { name, what: "a file of another shard" })
            }
            Ok((header, _)) if header.file != id => Ok(broken),
            Ok((header, copy_damaged)) => Ok(Self { id, bytes, header: Some(header), copy_damaged }),
            Err(HeaderFault::Newer(version)) => {
                Err(OpenError::Newer { name, version, supported: FORMAT_VERSION })
            }
            Err(HeaderFault::Damaged) => Ok(broken),
        }
    }
}

/// Where each partition's next batch must begin.
#[derive(Default)]
struct Offsets {
    next: BTreeMap<TopicIdPartition, i64>,
    /// The file that is read, as a place in the list.
    file: usize,
    /// The file and its damaged place that was met last.
    damaged: Option<(usize, usize)>,
    /// Ranges that were found to be missing, and the place that they are taken to have been in.
    missing: Vec<((usize, usize), OffsetRange)>,
    /// Good offsets, in the order in which they were met.
    covered: BTreeMap<TopicIdPartition, Vec<(i64, i64)>>,
    /// Changes of the files, in order.
    edits: Vec<FilesEdit>,
}

impl Offsets {
    fn see(&mut self, entry: &EntryHeader) {
        if !matches!(entry.kind, EntryKind::Batch | EntryKind::Control) {
            return;
        }
        let next = entry.last_offset().saturating_add(1);
        let expected = self.next.insert(entry.partition, next);
        if let (Some(expected), Some(place)) = (expected, self.damaged)
            && entry.base_offset() > expected
        {
            let range = OffsetRange {
                partition: entry.partition,
                first_offset: expected,
                last_offset: entry.base_offset() - 1,
            };
            self.missing.push((place, range));
        }
    }

    /// An entry whose bytes are good.
    fn cover(&mut self, entry: &EntryHeader) {
        if !matches!(entry.kind, EntryKind::Batch | EntryKind::Control) {
            return;
        }
        let (first, last) = (entry.base_offset(), entry.last_offset());
        let ranges = self.covered.entry(entry.partition).or_default();
        match ranges.last_mut().filter(|(_, before)| before.checked_add(1) == Some(first)) {
            Some((_, before)) => *before = last,
            None => ranges.push((first, last)),
        }
    }

    /// Notes the changes of the files in a frame.
    fn note_edits(&mut self, frame: &ScannedFrame) {
        let edits = frame.entries.iter().filter(|entry| entry.kind == EntryKind::Files);
        self.edits.extend(edits.filter_map(|entry| FilesEdit::of(&frame.entry(entry)?)));
    }

    /// Gives what is missing to the places of files that are done; the rest waits for its file.
    fn give_to(&mut self, files: &mut [FileInspection]) {
        self.missing.retain(|((file, place), range)| {
            let Some(found) = files.get_mut(*file).and_then(|file| file.damage.get_mut(*place)) else {
                return true;
            };
            found.holds.push(*range);
            false
        });
    }
}

fn inspect_file(
    disk: &dyn Disk,
    shard_id: u32,
    header: &Header,
    seal: Option<Seal>,
    has_next: bool,
    offsets: &mut Offsets,
) -> io::Result<FileInspection> {
    let mut found = FileInspection {
        file: header.id,
        bytes: header.bytes,
        epoch: header.header.as_ref().map(|header| header.epoch),
        durability: header.header.as_ref().map(|header| header.durability),
        end: header.bytes,
        sealed: seal.is_some(),
        frames: 0,
        batches: 0,
        sequences: None,
        times: None,
        footer: if has_next { Footer::Missing } else { Footer::InUse },
        header_copy_damaged: header.copy_damaged,
        damage: Vec::new(),
        torn: None,
    };
    // the nonce is in the header, and once more in what the next file says of this one
    let nonce = header.header.as_ref().map(|header| header.nonce).or(seal.map(|seal| seal.nonce));
    if header.header.is_none() {
        found.note(offsets, 0, "a damaged file header");
    }
    let Some(nonce) = nonce else { return Ok(found) };
    let file = disk.open_uncached(&header.id.file_name())?;
    if let Some(seal) = &seal {
        found.end = seal.length;
        if header.bytes < seal.length {
            found.note(offsets, header.bytes, "the file is shorter than its sealed end");
        }
        if let Ok(Some(_)) = footer::read_directory(&*file, seal) {
            found.footer = Footer::Sound;
        }
    }
    let identity = Identity {
        shard_id,
        file: header.id,
        nonce,
        epoch: header.header.as_ref().map(|header| header.epoch),
    };
    let previous = header.header.as_ref().map(|header| header.previous);
    let end = found.end.min(header.bytes);
    let mut scanner = Scanner::new(Arc::clone(&file), identity, &previous.unwrap_or_default(), end);
    if previous.is_none()
        && let (Some((at, first)), _) = scanner.find(BLOCK_BYTES)?
    {
        scanner.jump(at, &first);
    }
    scan(&mut scanner, seal, offsets, &mut found)?;
    Ok(found)
}

/// Goes through a file's frames, over damage.
fn scan(
    scanner: &mut Scanner,
    seal: Option<Seal>,
    offsets: &mut Offsets,
    found: &mut FileInspection,
) -> io::Result<()> {
    loop {
        let what = match scanner.step(Bodies::Check)? {
            Step::Frame(frame) => {
                found.take(&frame.header, frame.entries.len() as u64);
                for entry in &frame.entries {
                    offsets.see(entry);
                    offsets.cover(entry);
                }
                offsets.note_edits(&frame);
                continue;
            }
            Step::End => {
                if let Some(seal) = seal
                    && scanner.last().0 != seal.last_sequence
                {
                    found.note(offsets, scanner.at(), "the file ends with another frame than was sealed");
                }
                return Ok(());
            }
            Step::Bad(what) => what,
        };
        let at = scanner.at();
        let (behind, non_zero) = scanner.find(at + BLOCK_BYTES)?;
        let is_last = seal.is_none() && behind.is_none();
        if is_last {
            found.end = at;
            if !scanner.was_whole()? {
                let torn = non_zero || what != "no frame header" || !scanner.is_zero(at)?;
                found.torn = torn.then_some(at);
                return Ok(());
            }
        }
        let place = found.note(offsets, at, what);
        if let Some((header, entries, damaged)) = scanner.step_over()? {
            found.take(&header, (entries.len() - damaged.len()) as u64);
            found.hold(place, scanner.at(), &damaged);
            for entry in &entries {
                offsets.see(entry);
                if !damaged.contains(entry) {
                    offsets.cover(entry);
                }
            }
            continue;
        }
        let Some((resumes_at, header)) = behind else { return Ok(()) };
        found.hold(place, resumes_at, &[]);
        scanner.jump(resumes_at, &header);
    }
}

impl FileInspection {
    fn take(&mut self, header: &FrameHeader, batches: u64) {
        self.frames += 1;
        self.batches += batches;
        let first = self.sequences.map_or(header.sequence, |(first, _)| first);
        self.sequences = Some((first, header.sequence));
        let begin = self.times.map_or(header.shard_time, |(begin, _)| begin);
        self.times = Some((begin, header.shard_time));
    }

    /// Notes what a damaged place holds, and where good frames go on.
    fn hold(&mut self, place: Option<usize>, resumes_at: u64, damaged: &[EntryHeader]) {
        let Some(place) = place.and_then(|place| self.damage.get_mut(place)) else { return };
        place.resumes_at = Some(resumes_at);
        let seen = damaged.iter().filter(|e| matches!(e.kind, EntryKind::Batch | EntryKind::Control));
        place.holds.extend(seen.map(|entry| OffsetRange {
            partition: entry.partition,
            first_offset: entry.base_offset(),
            last_offset: entry.last_offset(),
        }));
    }

    /// Notes a damaged place; its index, unless there are too many.
    fn note(&mut self, offsets: &mut Offsets, position: u64, what: &'static str) -> Option<usize> {
        if self.damage.len() >= PLACES_MAX {
            return None;
        }
        self.damage.push(DamagedPlace { position, resumes_at: None, what, holds: Vec::new() });
        let place = self.damage.len() - 1;
        offsets.damaged = Some((offsets.file, place));
        Some(place)
    }
}

fn inspect_snapshots(
    disk: &dyn Disk,
    names: &[String],
    shard_id: u32,
    log_id: Option<u64>,
) -> Result<(Vec<SnapshotInspection>, Catalogue), OpenError> {
    let mut snapshots = Vec::with_capacity(names.len());
    let mut catalogue = Catalogue::default();
    for name in names {
        let opened = match log_id {
            Some(log_id) => Snapshot::open(disk, name, Owner { shard_id, log_id }).map(|snapshot| {
                catalogue = snapshot.catalogue;
                snapshot.info
            }),
            None => {
                let what = "there is no log file that it could belong to";
                Err(SnapshotFault::Damaged(Damage { file: name.clone(), position: 0, what }))
            }
        };
        let contents = match opened {
            Ok(info) => Ok(info),
            Err(SnapshotFault::Damaged(damage)) => Err(damage),
            Err(SnapshotFault::Newer(version)) => {
                return Err(OpenError::Newer { name: name.clone(), version, supported: FORMAT_VERSION });
            }
            Err(SnapshotFault::Io(source)) => return Err(OpenError::Io { name: name.clone(), source }),
        };
        snapshots.push(SnapshotInspection { name: name.clone(), contents });
    }
    Ok((snapshots, catalogue))
}

/// How a file ends by its own footer: of one that is no part of the chain and that no snapshot knows of yet.
pub(crate) fn own_seal(disk: &dyn Disk, id: FileId) -> io::Result<Option<Seal>> {
    footer::read_seal(&*disk.open(&id.file_name())?).map(|seal| seal.filter(|seal| seal.file == id))
}
