//! Opening a folder: what is there, whether it is ours and whole, and where the log ends.
//!
//! The order: look (nothing is changed: a foreign or newer folder stays as it is), lock, read the chain of header
//! blocks, find the newest good snapshot, replay the frames behind it, decide where the last file ends, index the live
//! files from their footers, sync the last file, remove what is not live, seal it, begin the next file under the next
//! epoch. Which files are live is said by the snapshot's catalogue and the edits in the frames behind it.
//!
//! The end of the log: the first place in the last file that holds no acceptable frame, if no frame of this file
//! lies behind it. If one does, everything in front of it had been synced, so the place is damaged and nothing is
//! cut. The last file is read past the page cache: what a dead process wrote may be there and not on the disk.
//!
//! A folder that was copied (`Disk::origin`) is read whole and refused unless it is: whoever copied it may have done so
//! file by file while a broker wrote, dropped and rewrote them. Once it has been opened it is its own.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use ottla_env::disk::{Disk, File, LOCK_FILE, LockGuard, Origin};
use ottla_protocol::entry::{Entry, EntryKind};

use crate::catalogue::{Compacted, FilesEdit};
use crate::error::{Damage, OpenError};
use crate::file_header::{FileHeader, HeaderFault, Seal};
use crate::footer;
use crate::frame;
use crate::index::{FileRange, FooterBlock, Index};
use crate::layout::{BLOCK_BYTES, FORMAT_VERSION, READINGS};
use crate::levels::Levels;
pub(crate) use crate::listing::Listing;
use crate::options::{Durability, FileId, FrameSequence, LogOptions};
use crate::prepare::{BeginError, FilePreparer, begin_file};
use crate::reader::LogReader;
use crate::scan::{self, Bodies, Identity, ScannedFrame, Scanner, Step};
use crate::shared::{Files, Shared};
use crate::snapshot::{Owner, Snapshot, SnapshotChunks, SnapshotFault, SnapshotInfo, SnapshotStore};
use crate::space::Reserve;
use crate::writer::{LogWriter, WriterStart};

/// A torn tail that was left out of the log: bytes of a frame that was never acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub file: FileId,
    /// The log's end in it, bytes.
    pub position: u64,
}

/// What the opening found.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Files of the log.
    pub files: usize,
    /// The snapshot that was used.
    pub snapshot: Option<SnapshotInfo>,
    /// Snapshots that are damaged; they stay where they are.
    pub damaged_snapshots: Vec<Damage>,
    /// Damage in sealed files that replay did not need. Reads of what lay there are refused.
    pub damage: Vec<Damage>,
    /// Sealed files whose footer was missing or damaged and whose index was rebuilt from their frames.
    pub rebuilt_indexes: usize,
    /// Frames replayed behind the snapshot.
    pub frames_replayed: u64,
    /// The torn tail, if there was one.
    pub cut: Option<Cut>,
    /// Files in the folder that are not the log's.
    pub unknown_files: Vec<String>,
    /// The folder is a copy, and was read whole.
    pub copied: bool,
    /// The last frame of the log, 0 if there is none.
    pub frame_sequence: FrameSequence,
    /// Number of the last decision.
    pub position: u64,
    /// Shard time of the last frame, milliseconds since the epoch.
    pub shard_time: i64,
}

/// A frame to be replayed.
#[derive(Clone, Debug)]
pub struct RecoveredFrame {
    /// Its number.
    pub frame_sequence: FrameSequence,
    /// The opening that wrote it.
    pub epoch: i32,
    /// Shard time, milliseconds since the epoch.
    pub shard_time: i64,
    /// Number of the last decision in it.
    pub position: u64,
    /// Its entries in decision order.
    pub entries: Vec<Entry>,
}

/// An open log.
pub struct Opened {
    /// Appends; holds the folder's lock.
    pub writer: LogWriter,
    /// Reads; clone it for every thread.
    pub reader: LogReader,
    /// Writes snapshots.
    pub snapshots: SnapshotStore,
    /// To be driven by a helper.
    pub preparer: FilePreparer,
    /// Drops and rewrites files; to be driven by another helper.
    pub levels: Levels,
    /// The number of this opening, from 0: greater than every epoch in the log.
    pub epoch: i32,
    /// What was found.
    pub report: RecoveryReport,
}

struct LogFile {
    header: FileHeader,
    bytes: u64,
}

/// A folder being opened: first the snapshot's chunks, then the frames behind it, then `finish`.
pub struct Opening {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    lock: LockGuard,
    log_id: u64,
    /// The chain: files of the log without a gap up to the newest.
    files: Vec<LogFile>,
    /// Files in front of the chain, and rewritten ones.
    beside: Vec<FileId>,
    temporary: Vec<String>,
    reserve: Vec<String>,
    index: Index,
    known: Files,
    skip_footers: BTreeSet<FileId>,
    damaged_snapshots: BTreeSet<String>,
    snapshot: Option<Snapshot>,
    /// The file being replayed and the scan of it; none when replay is done.
    replay: Option<(usize, Scanner)>,
    /// The first file that replay reads.
    first_replayed: usize,
    /// Where the last file ends, once replay is done: length and CRC of the last frame header.
    end: (u64, u32),
    report: RecoveryReport,
}

fn io_error(name: &str) -> impl FnOnce(io::Error) -> OpenError + use<> {
    let name = name.to_owned();
    move |source| OpenError::Io { name, source }
}

fn damaged(file: FileId, position: u64, what: &'static str) -> OpenError {
    OpenError::Damaged(Damage { file: file.file_name(), position, what })
}

/// Opens a folder's log, or begins one in an empty folder. Nothing is changed before `Opening::finish`, but for
/// the lock file.
pub fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Result<Opening, OpenError> {
    if let Some(what) = options.refusal() {
        return Err(OpenError::Options(what));
    }
    let before = Listing::read(&*disk)?;
    before.refuse_foreign()?;
    let mut copied = false;
    if let Some(newest) = before.files.last() {
        copied = disk.origin().map_err(io_error(LOCK_FILE))? == Origin::Copied;
        // a newer folder is not even locked
        read_header(&*disk, *newest, options.shard_id).map_err(|error| of_copy(copied, error))?;
    }
    let lock = disk.lock()?;
    let listing = Listing::read(&*disk)?;
    listing.refuse_foreign()?;
    let (chain, mut beside) = split_chain(&listing.files);
    let files = read_chain(&*disk, chain, options.shard_id).map_err(|error| of_copy(copied, error))?;
    beside.extend(&listing.data);
    let log_id = files.last().map_or_else(|| options.nonces.draw(), |file| file.header.log_id);
    let mut opening = Opening {
        report: RecoveryReport {
            files: files.len() + beside.len(),
            unknown_files: listing.unknown,
            copied,
            ..Default::default()
        },
        disk,
        options,
        lock,
        log_id,
        files,
        beside,
        temporary: listing.temporary,
        reserve: listing.reserve,
        index: Index::default(),
        known: Files::default(),
        skip_footers: BTreeSet::new(),
        damaged_snapshots: BTreeSet::new(),
        snapshot: None,
        replay: None,
        first_replayed: 0,
        end: (0, 0),
    };
    let begun = opening.find_snapshot(&listing.snapshots).and_then(|()| {
        opening.begin_replay()?;
        if opening.replay.is_none() { opening.index_live() } else { Ok(()) }
    });
    begun.map_err(|error| of_copy(copied, error))?;
    Ok(opening)
}

/// What is damage in a folder may be no damage at all in a copy, but a file that was copied at another moment.
fn of_copy(copied: bool, error: OpenError) -> OpenError {
    match error {
        OpenError::Damaged(damage) if copied => OpenError::Copy(damage),
        error => error,
    }
}

/// The files up to the newest that follow one another without a gap, and those in front of them.
fn split_chain(files: &[FileId]) -> (&[FileId], Vec<FileId>) {
    let gap = files.windows(2).rposition(|pair| pair[0].0 + 1 != pair[1].0);
    let (beside, chain) = files.split_at(gap.map_or(0, |at| at + 1));
    (chain, beside.to_vec())
}

/// Ends the names of files that hold what a repair has replaced.
pub(crate) const ASIDE: &str = ".aside";

fn read_header(disk: &dyn Disk, id: FileId, shard_id: u32) -> Result<LogFile, OpenError> {
    let name = id.file_name();
    let mut block = vec![0; BLOCK_BYTES as usize];
    let read = disk.open(&name).and_then(|file| {
        let bytes = file.len()?;
        file.read_exact_at(&mut block, 0)?;
        Ok(bytes)
    });
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(damaged(id, 0, "shorter than a header block"));
        }
        Err(error) => return Err(io_error(&name)(error)),
    };
    let header = match FileHeader::decode(&block) {
        Ok((header, false)) => header,
        Ok((header, true)) => {
            tracing::warn!(file = id.0, "one of the two copies of a file's header is damaged");
            header
        }
        Err(HeaderFault::Newer(version)) => {
            return Err(OpenError::Newer { name, version, supported: FORMAT_VERSION });
        }
        Err(HeaderFault::Damaged) => return Err(damaged(id, 0, "a damaged file header")),
    };
    if header.shard_id != shard_id {
        return Err(OpenError::Foreign { name, what: "a file of another shard" });
    }
    if header.file != id {
        return Err(damaged(id, 0, "the file has the name of another"));
    }
    Ok(LogFile { header, bytes })
}

/// Reads all header blocks; each must name the one in front of it.
fn read_chain(disk: &dyn Disk, ids: &[FileId], shard_id: u32) -> Result<Vec<LogFile>, OpenError> {
    let mut files: Vec<LogFile> = Vec::with_capacity(ids.len());
    for id in ids {
        let file = read_header(disk, *id, shard_id)?;
        if let Some(before) = files.last() {
            let (previous, before) = (&file.header.previous, &before.header);
            let follows = previous.file == before.file
                && previous.nonce == before.nonce
                && file.header.log_id == before.log_id
                && file.header.epoch >= before.epoch
                && previous.last_sequence >= before.previous.last_sequence
                && previous.length >= BLOCK_BYTES
                && previous.length.is_multiple_of(BLOCK_BYTES);
            if !follows {
                return Err(damaged(*id, 0, "the file does not follow the one in front of it"));
            }
        }
        files.push(file);
    }
    Ok(files)
}

impl Opening {
    /// The snapshot that was found: what it contains.
    pub fn snapshot(&self) -> Option<SnapshotInfo> {
        self.report.snapshot
    }

    /// The chunks of the snapshot, once; none without a snapshot.
    pub fn snapshot_chunks(&mut self) -> Result<Option<SnapshotChunks>, OpenError> {
        self.snapshot.take().map(|snapshot| snapshot.into_chunks(&*self.disk)).transpose()
    }

    /// How far replay is: bytes of the log that were read, of how many.
    pub fn progress(&self) -> (u64, u64) {
        let Some((at, scanner)) = &self.replay else { return (0, 0) };
        let length = |at: usize| match self.files.get(at + 1) {
            Some(next) => next.header.previous.length,
            None => self.files[at].bytes,
        };
        let first = self.first_replayed.min(*at);
        let done = (first..*at).map(length).sum::<u64>() + scanner.at();
        (done, (first..self.files.len()).map(length).sum())
    }

    /// What was found so far.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    fn find_snapshot(&mut self, names: &[String]) -> Result<(), OpenError> {
        let owner = Owner { shard_id: self.options.shard_id, log_id: self.log_id };
        for name in names.iter().rev() {
            let mut opened = Snapshot::open(&*self.disk, name, owner);
            for _ in 1..READINGS {
                if matches!(opened, Err(SnapshotFault::Damaged(_))) {
                    opened = Snapshot::open(&*self.disk, name, owner);
                }
            }
            match opened {
                Ok(snapshot) => {
                    let info = snapshot.info;
                    self.known.catalogue = snapshot.catalogue.clone();
                    self.report.snapshot = Some(info);
                    self.report.frame_sequence = info.frame_sequence;
                    self.report.position = info.position;
                    self.report.shard_time = info.shard_time;
                    self.snapshot = Some(snapshot);
                    return Ok(());
                }
                Err(SnapshotFault::Damaged(damage)) => {
                    tracing::error!(%damage, "a snapshot is damaged, trying the one before");
                    self.damaged_snapshots.insert(name.clone());
                    self.report.damaged_snapshots.push(damage);
                }
                Err(SnapshotFault::Newer(version)) => {
                    let name = name.clone();
                    return Err(OpenError::Newer { name, version, supported: FORMAT_VERSION });
                }
                Err(SnapshotFault::Io(source)) => return Err(io_error(name)(source)),
            }
        }
        Ok(())
    }

    /// Once replay is done, and with it the catalogue: indexes every live file but the last.
    fn index_live(&mut self) -> Result<(), OpenError> {
        let chain = self.known.catalogue.chain();
        if let Some(first) = self.files.first().map(|file| file.header.file)
            && first > chain
        {
            return Err(damaged(chain, 0, "a file of the log is missing"));
        }
        let listed: Vec<Seal> = self.known.catalogue.listed().map(|live| live.seal).collect();
        let chained = self.files.iter().map(|file| file.header.file);
        let there: BTreeSet<FileId> = chained.chain(self.beside.iter().copied()).collect();
        for seal in listed {
            if there.contains(&seal.file) {
                self.index_sealed(seal)?;
            } else {
                self.note_damage(&seal, 0, "the file is missing");
            }
        }
        for at in 1..self.files.len() {
            let seal = self.files[at].header.previous;
            if seal.file >= chain {
                self.index_sealed(seal)?;
            }
        }
        if let Some(newest) = self.beside.last().filter(|file| file.is_data()) {
            self.known.catalogue.reserve(newest.number());
        }
        self.index_compacted(&there);
        if self.report.copied { self.check_whole() } else { Ok(()) }
    }

    /// Reads every live file of a copy to its end. Nothing may be missing or other than it was written.
    fn check_whole(&self) -> Result<(), OpenError> {
        if let Some(damage) = self.report.damage.first() {
            return Err(OpenError::Damaged(damage.clone()));
        }
        for seal in self.known.seals.values() {
            self.check_file(seal.file, seal.nonce, Some(seal), seal.length)?;
        }
        match self.files.last() {
            Some(last) => self.check_file(last.header.file, last.header.nonce, None, self.end.0),
            None => Ok(()),
        }
    }

    fn check_file(&self, id: FileId, nonce: u64, seal: Option<&Seal>, end: u64) -> Result<(), OpenError> {
        let io = |source| OpenError::Io { name: id.file_name(), source };
        let file = self.disk.open_uncached(&id.file_name()).map_err(io)?;
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.read_exact_at(&mut block, 0).map_err(io)?;
        let header = FileHeader::decode(&block).map_err(|_| damaged(id, 0, "a damaged file header"))?.0;
        let identity =
            Identity { shard_id: self.options.shard_id, file: id, nonce, epoch: Some(header.epoch) };
        let mut scanner = Scanner::new(file, identity, &header.previous, end);
        loop {
            match scanner.step(Bodies::Check).map_err(io)? {
                Step::Frame(_) => {}
                Step::Bad(what) => return Err(damaged(id, scanner.at(), what)),
                Step::End => break,
            }
        }
        match seal {
            Some(seal) if scanner.last().0 != seal.last_sequence => {
                Err(damaged(id, scanner.at(), "the file ends with another frame than was sealed"))
            }
            _ => Ok(()),
        }
    }

    /// What was moved by compaction counts where it is now. What is missing there is named: nothing else would tell,
    /// since there may be gaps.
    fn index_compacted(&mut self, there: &BTreeSet<FileId>) {
        let all: Vec<Compacted> = self.known.catalogue.compacted().cloned().collect();
        for Compacted { partition, below, parts } in all {
            let kept = parts.iter().map(|part| part.file).collect();
            for (file, bytes) in self.index.supersede(&partition, below, &kept, &[]) {
                *self.known.superseded.entry(file).or_default() += bytes;
            }
            for part in parts {
                let found = self.index.sealed_in(&partition, part.file).map_or(0, |range| range.bytes);
                if found == part.bytes && there.contains(&part.file) {
                    continue;
                }
                let listed = FileRange {
                    file: part.file,
                    first_offset: part.first_offset,
                    last_offset: part.last_offset,
                    max_timestamp: i64::MAX,
                    bytes: part.bytes,
                    block: Some(FooterBlock { position: 0, extents: 1, crc: 0 }),
                };
                self.index.note_loss(&partition, listed);
                self.skip_footers.insert(part.file);
            }
        }
    }

    /// Indexes a file from its footer or, without a sound one, from its frames.
    fn index_sealed(&mut self, seal: Seal) -> Result<(), OpenError> {
        self.known.seals.insert(seal.file, seal);
        let name = seal.file.file_name();
        let file = self.disk.open(&name).map_err(io_error(&name))?;
        let bytes = file.len().map_err(io_error(&name))?;
        if bytes < seal.length {
            self.note_damage(&seal, bytes, "the file is shorter than its sealed end");
        }
        match footer::read_directory(&*file, &seal) {
            Ok(Some(directory)) => {
                self.known.appended.extend(directory.appended.map(|appended| (seal.file, appended)));
                self.index.add_footer(directory.ranges);
                return Ok(());
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(file = seal.file.0, %error, "a footer cannot be read"),
        }
        self.report.rebuilt_indexes += 1;
        let rebuilt = scan::rebuild(&file, self.options.shard_id, &seal).map_err(io_error(&name))?;
        for (position, what) in rebuilt.damage {
            self.note_damage(&seal, position, what);
        }
        self.known.appended.insert(seal.file, rebuilt.appended);
        self.index.add_resident(seal.file, rebuilt.extents);
        Ok(())
    }

    fn note_damage(&mut self, seal: &Seal, position: u64, what: &'static str) {
        let damage = Damage { file: seal.file.file_name(), position, what };
        tracing::error!(%damage, "a sealed file is damaged");
        self.skip_footers.insert(seal.file);
        self.report.damage.push(damage);
    }

    /// Finds the file in which the first frame behind the snapshot is.
    fn begin_replay(&mut self) -> Result<(), OpenError> {
        let Some(last) = self.files.last() else { return Ok(()) };
        self.index.seal(last.header.file); // from here on the index's file in use
        let contained = self.report.frame_sequence;
        let sealed = &self.files[1..];
        let at = sealed.partition_point(|next| next.header.previous.last_sequence <= contained);
        let first = &self.files[at].header;
        if first.previous.last_sequence > contained {
            let what = if self.report.snapshot.is_none() {
                "the log does not begin here, and there is no good snapshot"
            } else {
                "frames between the snapshot and this file are missing"
            };
            return Err(damaged(first.file, 0, what));
        }
        self.first_replayed = at;
        self.replay = Some((at, self.scanner(at)?));
        Ok(())
    }

    fn scanner(&self, at: usize) -> Result<Scanner, OpenError> {
        let LogFile { header, bytes } = &self.files[at];
        let name = header.file.file_name();
        let (file, end): (io::Result<Arc<dyn File>>, u64) = match self.files.get(at + 1) {
            Some(next) => (self.disk.open(&name), next.header.previous.length),
            None => (self.disk.open_uncached(&name), self.believed(header.file, *bytes)?),
        };
        let identity = Identity {
            shard_id: self.options.shard_id,
            file: header.file,
            nonce: header.nonce,
            epoch: Some(header.epoch),
        };
        Ok(Scanner::new(file.map_err(io_error(&name))?, identity, &header.previous, end))
    }

    /// How much of the last file is looked at: all of it, unless this process knows what was synced.
    fn believed(&self, last: FileId, bytes: u64) -> Result<u64, OpenError> {
        match self.options.durable_end {
            None => Ok(bytes),
            Some(end) if end.file == last && end.length <= bytes => Ok(end.length),
            // Begun since, by the dead writer or by openings that failed; never written to successfully.
            Some(end) if end.file < last => Ok(BLOCK_BYTES),
            Some(end) => {
                Err(damaged(last, bytes, "the log is shorter than what was synced")).inspect_err(|_| {
                    tracing::error!(
                        file = end.file.0,
                        length = end.length,
                        "the log's synced end is missing"
                    );
                })
            }
        }
    }

    /// The next frame behind the snapshot, in order; none at the end of the log.
    pub fn next_frame(&mut self) -> Result<Option<RecoveredFrame>, OpenError> {
        let copied = self.report.copied;
        self.replay_next().map_err(|error| of_copy(copied, error))
    }

    fn replay_next(&mut self) -> Result<Option<RecoveredFrame>, OpenError> {
        let contained = self.report.snapshot.map_or(FrameSequence(0), |info| info.frame_sequence);
        while let Some((at, mut scanner)) = self.replay.take() {
            let file = self.files[at].header.file;
            let next = FrameSequence(scanner.last().0.0.saturating_add(1));
            let bodies = if next <= contained { Bodies::Skip } else { Bodies::Check };
            match scanner.step(bodies).map_err(io_error(&file.file_name()))? {
                Step::Frame(frame) => {
                    let replayed = self.take_frame(at, *frame)?;
                    self.replay = Some((at, scanner));
                    if replayed.is_some() {
                        return Ok(replayed);
                    }
                }
                step if at + 1 == self.files.len() => {
                    self.end_of_log(file, scanner, step)?;
                    self.index_live()?;
                }
                Step::End => {
                    let seal = &self.files[at + 1].header.previous;
                    if scanner.last() != (seal.last_sequence, seal.last_header_crc) {
                        return Err(damaged(
                            file,
                            scanner.at(),
                            "the file ends with another frame than was sealed",
                        ));
                    }
                    self.replay = Some((at + 1, self.scanner(at + 1)?));
                }
                Step::Bad(what) => return Err(damaged(file, scanner.at(), what)),
            }
        }
        Ok(None)
    }

    fn take_frame(&mut self, at: usize, frame: ScannedFrame) -> Result<Option<RecoveredFrame>, OpenError> {
        let header = frame.header;
        if at + 1 == self.files.len() {
            self.index.add(&frame::extents(header.file, &frame.entries, header.at));
        }
        if let Some(snapshot) = self.report.snapshot {
            let last = snapshot.frame_sequence;
            let fits = match header.sequence.cmp(&last) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => {
                    header.epoch <= snapshot.epoch && header.position == snapshot.position
                }
                std::cmp::Ordering::Greater => {
                    header.epoch >= snapshot.epoch && header.position >= snapshot.position
                }
            };
            if !fits {
                return Err(damaged(
                    header.file,
                    header.at,
                    "the frame and the snapshot contradict each other",
                ));
            }
            if header.sequence <= last {
                return Ok(None);
            }
        }
        let mut entries = frame.into_entries();
        for entry in entries.extract_if(.., |entry| entry.kind == EntryKind::Files) {
            let edit = FilesEdit::of(&entry);
            let unreadable = || damaged(header.file, header.at, "a change of the files that cannot be read");
            self.known.catalogue.apply(&edit.ok_or_else(unreadable)?);
        }
        self.report.frames_replayed += 1;
        self.report.frame_sequence = header.sequence;
        self.report.position = header.position;
        self.report.shard_time = self.report.shard_time.max(header.shard_time);
        Ok(Some(RecoveredFrame {
            frame_sequence: header.sequence,
            epoch: header.epoch,
            shard_time: header.shard_time,
            position: header.position,
            entries,
        }))
    }

    /// Decides where the last file ends.
    fn end_of_log(&mut self, file: FileId, mut scanner: Scanner, step: Step) -> Result<(), OpenError> {
        let at = scanner.at();
        let (last_sequence, last_header_crc) = scanner.last();
        if let Step::Bad(what) = step {
            let (behind, non_zero) = scanner.find(at + BLOCK_BYTES).map_err(io_error(&file.file_name()))?;
            let synced = self.files.last().is_some_and(|last| last.header.durability == Durability::Fsync);
            if behind.is_some() && synced {
                return Err(damaged(file, at, what));
            }
            if scanner.was_whole().map_err(io_error(&file.file_name()))? {
                tracing::error!(
                    file = file.0,
                    at,
                    what,
                    "the log's last frame was written whole and is damaged"
                );
                if !self.options.accept_damaged_end {
                    return Err(damaged(file, at, "the log's last frame was written whole and is damaged"));
                }
            }
            // The block itself: anything but zeros there is a frame that was not finished.
            let torn =
                non_zero || what != "no frame header" || !scanner.is_zero(at).map_err(io_error("the log"))?;
            if torn {
                tracing::warn!(file = file.0, at, what, "the log's torn tail was left out");
                self.report.cut = Some(Cut { file, position: at });
            }
        }
        if self.report.snapshot.is_some_and(|info| info.frame_sequence > last_sequence) {
            return Err(damaged(file, at, "the log ends in front of the frame that a snapshot contains"));
        }
        if let Some(end) = self.options.durable_end.filter(|end| end.frame_sequence != last_sequence) {
            tracing::error!(synced = end.frame_sequence.0, found = last_sequence.0, "synced frames are gone");
            return Err(damaged(file, at, "the log ends in front of what was synced"));
        }
        self.end = (at, last_header_crc);
        self.report.frame_sequence = last_sequence;
        Ok(())
    }

    /// Seals the last file at its verified end and begins the next one, under the next epoch. Frames that were not
    /// asked for are passed over.
    pub fn finish(mut self) -> Result<Opened, OpenError> {
        while self.next_frame()?.is_some() {}
        let (previous, epoch) = match self.files.last() {
            None => (Seal::default(), 0),
            Some(last) => {
                let header = &last.header;
                self.sync_last(header.file)?;
                let seal = Seal {
                    file: header.file,
                    nonce: header.nonce,
                    length: self.end.0,
                    last_sequence: self.report.frame_sequence,
                    last_header_crc: self.end.1,
                };
                (seal, header.epoch.checked_add(1).ok_or(OpenError::EpochsExhausted)?)
            }
        };
        self.remove_leftovers()?;
        if previous.file != FileId(0) {
            self.known.seals.insert(previous.file, previous);
            self.known.appended.insert(previous.file, self.report.shard_time);
        }
        self.index.seal(FileId(previous.file.0 + 1));
        let wanted = self.options.reserve_files;
        let reserve = Reserve::found(&*self.disk, &self.reserve, self.options.file_bytes, wanted);
        let shared = Arc::new(Shared::new(
            self.disk,
            self.options,
            self.log_id,
            epoch,
            self.index,
            self.known,
            reserve,
        ));
        let file = match begin_file(&shared, previous, 0, 0) {
            Ok(file) => file,
            Err(BeginError::NotBegun(source) | BeginError::Unknown(source)) => {
                return Err(OpenError::Io { name: FileId(previous.file.0 + 1).file_name(), source });
            }
        };
        shared.disk.claim().map_err(io_error(LOCK_FILE))?;
        let start = WriterStart {
            file,
            sequence: previous.last_sequence,
            last_header_crc: previous.last_header_crc,
            position: self.report.position,
            shard_time: self.report.shard_time,
        };
        let verified = self.report.snapshot.map(|info| info.file_name()).into_iter().collect();
        let snapshots = SnapshotStore::new(shared.clone(), self.damaged_snapshots, verified);
        Ok(Opened {
            writer: LogWriter::new(shared.clone(), start, self.lock),
            reader: LogReader { shared: shared.clone() },
            levels: Levels::new(shared.clone(), self.skip_footers.clone()),
            snapshots,
            preparer: FilePreparer::new(shared, self.skip_footers),
            epoch,
            report: self.report,
        })
    }

    /// Removes what a crash has left: files that were not finished, and those that are not live. The frames that say
    /// so are durable by now.
    fn remove_leftovers(&self) -> Result<(), OpenError> {
        let chain = self.files.iter().map(|file| file.header.file);
        let dropped = chain.chain(self.beside.iter().copied());
        let dropped = dropped.filter(|file| !self.known.catalogue.is_live(*file)).map(FileId::file_name);
        for name in self.temporary.iter().cloned().chain(dropped) {
            match self.disk.remove(&name) {
                // The helper of an opening before this one gives up its own files, perhaps at this moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(io_error(&name))?,
            }
        }
        Ok(())
    }

    /// What the log now rests on must be durable before anybody sees it. A file whose sync failed in this process
    /// is never synced again: what is believed of it was synced before.
    fn sync_last(&self, last: FileId) -> Result<(), OpenError> {
        let name = last.file_name();
        if self.report.copied {
            // whoever copied them need not have synced them
            for id in self.known.seals.keys() {
                let name = id.file_name();
                let synced = self.disk.open(&name).and_then(|file| file.sync_all());
                synced.map_err(io_error(&name))?;
            }
        }
        if self.options.durable_end.is_none_or(|end| end.file != last) {
            let synced = self.disk.open(&name).and_then(|file| {
                if file.len()? < self.end.0 {
                    file.set_len(self.end.0)?; // only what fills up the last frame's block is missing
                }
                file.sync_all()
            });
            synced.map_err(io_error(&name))?;
        }
        self.disk.sync_dir().map_err(io_error("the folder"))
    }
}
