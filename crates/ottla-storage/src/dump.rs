//! Walking through the files of a folder, one thing after the other: file headers, frames, batches, damaged places,
//! the log's end, snapshots with their chunks.
//!
//! For people who want to see what is there. Nothing is written. Memory is that of one frame and of one chunk. The
//! folder may be one that a broker works on: then files may go while they are looked for, and what lies behind the
//! last whole frame of the file in use may be a frame that is being written.
//!
//! Unlike `inspect` this judges little: it shows, and goes on behind damage. What damage means for readers and for a
//! start is for `inspect` and for recovery to say.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::types::TopicIdPartition;

use crate::catalogue::FilesEdit;
use crate::error::{Damage, OpenError};
use crate::file_header::Seal;
use crate::frame::EntryHeader;
use crate::inspect::{Header, own_seal};
use crate::layout::BLOCK_BYTES;
use crate::options::{Durability, FileId, FrameSequence};
use crate::recovery::Listing;
use crate::scan::{Bodies, Identity, ScannedFrame, Scanner, Step};
use crate::snapshot::{self, Owner, Snapshot, SnapshotFault, SnapshotInfo};

/// What the walk meets, in the order of the folder.
#[derive(Debug)]
pub enum Found {
    /// A file of the log, or a rewritten one, begins.
    File(FileFacts),
    /// A frame begins.
    Frame(FrameFacts),
    /// A batch of the last frame.
    Batch(Entry),
    /// A batch of the last frame whose bytes are not what was written.
    DamagedBatch(DamagedBatch),
    /// The last frame changes the files that the log consists of.
    Files(FilesFacts),
    /// Nothing can be said of what lies here.
    Damage(DamagedBytes),
    /// A file ends.
    End(FileEnd),
    /// A whole snapshot begins.
    Snapshot {
        /// Its file.
        name: String,
        /// What it contains.
        info: SnapshotInfo,
        /// The files that the log consisted of.
        files: FilesFacts,
    },
    /// A part of the last snapshot's state, as the core wrote it.
    SnapshotChunk(bytes::Bytes),
    /// A file that cannot be shown: damaged at its beginning, of a newer version, of another log.
    Refused {
        /// Its name.
        name: String,
        /// Why.
        what: String,
        /// Whether something is damaged.
        is_damage: bool,
    },
    /// It was there a moment ago: a broker has dropped or rewritten it.
    Gone {
        /// Its name.
        name: String,
    },
}

/// A file's header.
#[derive(Clone, Debug)]
pub struct FileFacts {
    /// Its id.
    pub file: FileId,
    /// Its length in bytes.
    pub bytes: u64,
    /// One of the two copies of its header is damaged.
    pub header_copy_damaged: bool,
    /// The log it belongs to.
    pub log_id: u64,
    /// The opening that wrote it.
    pub epoch: i32,
    /// How its frames were written.
    pub durability: Durability,
    /// The file in front of it, where that ends in bytes, and the last frame in front of this file; none for the
    /// first and for rewritten ones.
    pub previous: Option<(FileId, u64, FrameSequence)>,
    /// Where it ends, in bytes, when it is sealed.
    pub sealed_end: Option<u64>,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFacts {
    /// Where it begins in its file, in bytes.
    pub at: u64,
    /// Its length in bytes, without what fills up its last block.
    pub bytes: u64,
    /// Its number.
    pub frame_sequence: FrameSequence,
    /// The opening that wrote it.
    pub epoch: i32,
    /// Number of the last decision in it.
    pub position: u64,
    /// Shard time, ms since the Unix epoch.
    pub shard_time: i64,
    /// Batches in it.
    pub entries: u32,
}

/// A batch of which only the frame's word is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedBatch {
    /// Its kind.
    pub kind: EntryKind,
    /// Its partition.
    pub partition: TopicIdPartition,
    /// Its first offset.
    pub base_offset: i64,
    /// Its last offset.
    pub last_offset: i64,
    /// Where it begins in its file, in bytes.
    pub at: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// A change of the files that the log consists of, or all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesFacts {
    /// Files of the log from this one on are live without being listed.
    pub chain: u64,
    /// They are not live any more.
    pub removed: Vec<FileId>,
    /// They are live: each with its sealed end in bytes and the newest file of the log whose batches it may hold.
    pub added: Vec<(FileId, u64, FileId)>,
}

/// Bytes that are no frame of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedBytes {
    /// Where, in bytes.
    pub at: u64,
    /// Where a frame of this file is found again; none when there is none behind.
    pub resumes_at: Option<u64>,
    /// What is wrong.
    pub what: &'static str,
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEnd {
    /// Where its last frame ends, in bytes.
    pub at: u64,
    /// A frame begins there and is not whole: its writer was killed, or is at work.
    pub is_torn: bool,
}

impl FilesFacts {
    fn of(edit: &FilesEdit) -> Self {
        let added =
            edit.added.iter().map(|live| (live.seal.file, live.seal.length, live.newest_source)).collect();
        Self { chain: edit.chain.0, removed: edit.removed.clone(), added }
    }
}

/// Whether the walk goes on.
type Walk = Result<ControlFlow<()>, OpenError>;

/// Where to walk, and who is told.
struct Walker<'a> {
    disk: &'a dyn Disk,
    shard_id: u32,
    visit: &'a mut dyn FnMut(Found) -> ControlFlow<()>,
}

/// Walks through a folder's files of the log, then its rewritten files, then its snapshots, oldest first. `names`:
/// only these. `visit` is told of everything, and may end the walk.
///
/// Errors: a disk that cannot be read.
pub fn dump(
    disk: &dyn Disk,
    shard_id: u32,
    names: Option<&BTreeSet<String>>,
    visit: &mut dyn FnMut(Found) -> ControlFlow<()>,
) -> Result<(), OpenError> {
    let listing = Listing::read(disk)?;
    let wanted = |name: &str| names.is_none_or(|names| names.contains(name));
    let mut walker = Walker { disk, shard_id, visit };
    for id in listing.files.iter().chain(&listing.data).filter(|id| wanted(&id.file_name())) {
        if walker.file(*id)?.is_break() {
            return Ok(());
        }
    }
    for name in listing.snapshots.iter().filter(|name| wanted(name)) {
        if walker.snapshot(name)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

fn is_absent(error: &OpenError) -> bool {
    matches!(error, OpenError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

impl Walker<'_> {
    fn refused(&mut self, name: &str, what: String, is_damage: bool) -> Walk {
        Ok((self.visit)(Found::Refused { name: name.to_owned(), what, is_damage }))
    }

    fn gone(&mut self, name: &str) -> Walk {
        Ok((self.visit)(Found::Gone { name: name.to_owned() }))
    }

    fn file(&mut self, id: FileId) -> Walk {
        let name = id.file_name();
        let read = match Header::read(self.disk, id, self.shard_id) {
            Ok(read) => read,
            Err(error) if is_absent(&error) => return self.gone(&name),
            Err(error @ OpenError::Io { .. }) => return Err(error),
            Err(error) => return self.refused(&name, error.to_string(), false),
        };
        let io = |source| OpenError::Io { name: id.file_name(), source };
        let file = match self.disk.open_uncached(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.gone(&name),
            Err(error) => return Err(io(error)),
        };
        let seal = self.seal_of(id)?;
        let nonce = read.header.as_ref().map(|header| header.nonce).or(seal.map(|seal| seal.nonce));
        let Some(nonce) = nonce else {
            return self.refused(&name, "a damaged file header".to_owned(), true);
        };
        let facts = read.header.as_ref().map(|header| FileFacts {
            file: id,
            bytes: read.bytes,
            header_copy_damaged: read.copy_damaged,
            log_id: header.log_id,
            epoch: header.epoch,
            durability: header.durability,
            previous: (header.previous.file.0 != 0).then_some((
                header.previous.file,
                header.previous.length,
                header.previous.last_sequence,
            )),
            sealed_end: seal.map(|seal| seal.length),
        });
        let told = match facts {
            Some(facts) => (self.visit)(Found::File(facts)),
            None => {
                let what = "a damaged file header; its frames are found by what is said of it elsewhere";
                self.refused(&name, what.to_owned(), true)?
            }
        };
        if told.is_break() {
            return Ok(told);
        }
        let epoch = read.header.as_ref().map(|header| header.epoch);
        let identity = Identity { shard_id: self.shard_id, file: id, nonce, epoch };
        let previous = read.header.as_ref().map(|header| header.previous).unwrap_or_default();
        let end = seal.map_or(read.bytes, |seal| seal.length.min(read.bytes));
        let mut scanner = Scanner::new(Arc::clone(&file), identity, &previous, end);
        if read.header.is_none()
            && let (Some((at, first)), _) = scanner.find(BLOCK_BYTES).map_err(io)?
        {
            scanner.jump(at, &first);
        }
        self.frames(id, &mut scanner, seal)
    }

    /// How a file ends: as the next file says, else as its own footer says; none while it is in use.
    fn seal_of(&self, id: FileId) -> Result<Option<Seal>, OpenError> {
        if !id.is_data() {
            match Header::read(self.disk, FileId(id.0 + 1), self.shard_id) {
                Ok(next) => {
                    let previous = next.header.map(|header| header.previous);
                    if let Some(seal) = previous.filter(|previous| previous.file == id) {
                        return Ok(Some(seal));
                    }
                }
                Err(OpenError::Io { source, .. }) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(OpenError::Io { name: FileId(id.0 + 1).file_name(), source });
                }
                Err(_) => {} // absent, or not ours to judge here: its own walk tells
            }
        }
        match own_seal(self.disk, id) {
            Ok(seal) => Ok(seal),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof) => {
                Ok(None)
            }
            Err(source) => Err(OpenError::Io { name: id.file_name(), source }),
        }
    }

    fn frames(&mut self, id: FileId, scanner: &mut Scanner, seal: Option<Seal>) -> Walk {
        let io = |source| OpenError::Io { name: id.file_name(), source };
        loop {
            let what = match scanner.step(Bodies::Check).map_err(io)? {
                Step::Frame(frame) => {
                    if self.frame(&frame).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    continue;
                }
                Step::End => {
                    return Ok((self.visit)(Found::End(FileEnd { at: scanner.at(), is_torn: false })));
                }
                Step::Bad(what) => what,
            };
            let at = scanner.at();
            let (behind, non_zero) = scanner.find(at + BLOCK_BYTES).map_err(io)?;
            if seal.is_none() {
                scanner.look_again();
                let now = self.seal_of(id)?;
                if now.is_some_and(|seal| seal.length == at) {
                    // it was sealed while we read
                    return Ok((self.visit)(Found::End(FileEnd { at, is_torn: false })));
                }
                if behind.is_some()
                    && let Step::Frame(frame) = scanner.step(Bodies::Check).map_err(io)?
                {
                    // it was being written when we first looked
                    if self.frame(&frame).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    continue;
                }
                if behind.is_none() && !scanner.was_whole().map_err(io)? {
                    let is_torn =
                        non_zero || what != "no frame header" || !scanner.is_zero(at).map_err(io)?;
                    return Ok((self.visit)(Found::End(FileEnd { at, is_torn })));
                }
            }
            if let Some(frame) = scanner.step_over_frame().map_err(io)? {
                if self.frame(&frame).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                continue;
            }
            let resumes_at = behind.as_ref().map(|(at, _)| *at);
            let told = (self.visit)(Found::Damage(DamagedBytes { at, resumes_at, what }));
            let Some((resumes_at, header)) = behind.filter(|_| told.is_continue()) else { return Ok(told) };
            scanner.jump(resumes_at, &header);
        }
    }

    fn frame(&mut self, frame: &ScannedFrame) -> ControlFlow<()> {
        let header = &frame.header;
        (self.visit)(Found::Frame(FrameFacts {
            at: header.at,
            bytes: header.frame_bytes,
            frame_sequence: header.sequence,
            epoch: header.epoch,
            position: header.position,
            shard_time: header.shard_time,
            entries: header.entries,
        }))?;
        for entry in &frame.entries {
            let damaged = || Found::DamagedBatch(damaged_batch(entry, header.at));
            let found = match frame.entry(entry) {
                None => damaged(),
                Some(whole) if whole.kind == EntryKind::Files => match FilesEdit::of(&whole) {
                    Some(edit) => Found::Files(FilesFacts::of(&edit)),
                    None => damaged(),
                },
                Some(whole) => Found::Batch(whole),
            };
            (self.visit)(found)?;
        }
        ControlFlow::Continue(())
    }

    fn snapshot(&mut self, name: &str) -> Walk {
        let io = |source| OpenError::Io { name: name.to_owned(), source };
        let file = match self.disk.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.gone(name),
            Err(error) => return Err(io(error)),
        };
        // whose it is does not matter here: it is shown as what it says it is
        let log_id = snapshot::log_id_of(&*file).map_err(io)?.unwrap_or_default();
        let opened = Snapshot::open(self.disk, name, Owner { shard_id: self.shard_id, log_id });
        let snapshot = match opened {
            Ok(snapshot) => snapshot,
            Err(SnapshotFault::Damaged(Damage { position, what, .. })) => {
                return self.refused(name, format!("{what} at byte {position}"), true);
            }
            Err(SnapshotFault::Newer(version)) => {
                return self.refused(
                    name,
                    format!("format version {version} is newer than this build's"),
                    false,
                );
            }
            Err(SnapshotFault::Io(source)) if source.kind() == io::ErrorKind::NotFound => {
                return self.gone(name);
            }
            Err(SnapshotFault::Io(source)) => return Err(io(source)),
        };
        let files = FilesFacts {
            chain: snapshot.catalogue.chain().0,
            removed: Vec::new(),
            added: snapshot
                .catalogue
                .listed()
                .map(|live| (live.seal.file, live.seal.length, live.newest_source))
                .collect(),
        };
        let told = (self.visit)(Found::Snapshot { name: name.to_owned(), info: snapshot.info, files });
        if told.is_break() {
            return Ok(told);
        }
        let chunks = match snapshot.into_chunks(self.disk) {
            Ok(chunks) => chunks,
            Err(error) if is_absent(&error) => return self.gone(name),
            Err(error) => return Err(error),
        };
        for chunk in chunks {
            if (self.visit)(Found::SnapshotChunk(chunk?)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn damaged_batch(entry: &EntryHeader, frame_at: u64) -> DamagedBatch {
    DamagedBatch {
        kind: entry.kind,
        partition: entry.partition,
        base_offset: entry.base_offset(),
        last_offset: entry.last_offset(),
        at: frame_at + u64::from(entry.body_at),
        bytes: entry.batch_bytes(),
    }
}
