//! Copying a folder to a consistent point while its writer goes on.
//!
//! A copy file by file is of no moment: a file may be dropped before it is reached, or name another that was not there
//! when the copy began. Here all files are opened first and the end of the last one is found, until the folder's names
//! were the same before and after: what is open then is all that the log needed at that end, and stays readable whatever
//! becomes of the names. The copy ends there. Everything that was acknowledged before is in front of that end, since a
//! frame is on the disk before it is acknowledged.
//!
//! Sealed files never change, so they may be given a second name instead of being copied. The last file is copied up to
//! the end. A copy counts as whole only once `Disk::claim` was called for it: before that a broker reads all of it when
//! it starts, and refuses it when anything is missing.
//!
//! The writer is not asked and not told; it may not be there at all.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use ottla_env::disk::{Disk, File};

use crate::error::OpenError;
use crate::file_header::Seal;
use crate::footer;
use crate::inspect::Header;
use crate::layout::{STEP_BYTES, write_all};
use crate::options::FileId;
use crate::recovery::Listing;
use crate::scan::{Bodies, Identity, Scanner, Step};

/// How often the folder is looked at again because it has changed.
const LOOKS_MAX: usize = 1000;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The folder is no log, or cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nothing to copy.
    #[error("the folder has no file of a log")]
    Empty,
    /// Files come and go faster than they can be opened.
    #[error("the folder has changed {LOOKS_MAX} times while it was looked at")]
    Restless,
    /// A file is not what it should be; `inspect` tells more.
    #[error("{name} is damaged: {what}")]
    Damaged {
        /// The file.
        name: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The copy cannot be written.
    #[error("the copy of {name}: {source}")]
    Target {
        /// The file.
        name: String,
        /// What the operating system said.
        source: io::Error,
    },
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Files in the copy.
    pub files: u64,
    /// Those that are the same file under a second name.
    pub linked: u64,
    /// Bytes of the copy.
    pub bytes: u64,
    /// Number of the last frame in it.
    pub last_frame: u64,
    /// Its shard time, ms since the Unix epoch; 0 when the last file has no frame.
    pub shard_time: i64,
}

/// The files of a folder at one end of its log.
struct Gathered {
    open: BTreeMap<FileId, Arc<dyn File>>,
    snapshots: BTreeMap<String, Arc<dyn File>>,
    headers: BTreeMap<FileId, Header>,
    /// The last file, its end in bytes, the last frame and its time.
    end: (FileId, u64, u64, i64),
}

/// Copies `source` into `target`, an empty folder. `link` gives a sealed file of the source its name in the target, and
/// says whether it could. `progress` is told the bytes that are done, and of how many.
///
/// On an error the target holds a part, which is never taken for a whole.
pub fn backup(
    source: &dyn Disk,
    target: &dyn Disk,
    shard_id: u32,
    link: &mut dyn FnMut(&str) -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupReport, BackupError> {
    let gathered = gather(source, shard_id)?;
    let (last, end, last_frame, shard_time) = gathered.end;
    let mut parts: Vec<(String, Arc<dyn File>, u64, bool)> = Vec::new();
    for (id, file) in &gathered.open {
        let io = |source| OpenError::Io { name: id.file_name(), source };
        let bytes = file.len().map_err(io)?;
        // how a file ends is said by the next one; a rewritten file is finished when it gets its name
        let next = gathered.headers.get(&FileId(id.0 + 1)).and_then(|next| next.header.as_ref());
        let seal = next.map(|next| next.previous).filter(|seal| seal.file == *id);
        let (bytes, is_final) = match seal {
            _ if *id == last => (end, false),
            Some(seal) => (seal.length, has_footer(file, &seal).map_err(io)?),
            None => (bytes, true),
        };
        parts.push((id.file_name(), file.clone(), bytes, is_final));
    }
    for (name, file) in &gathered.snapshots {
        let bytes = file.len().map_err(|source| OpenError::Io { name: name.clone(), source })?;
        parts.push((name.clone(), file.clone(), bytes, true));
    }
    let total = parts.iter().map(|(_, _, bytes, _)| bytes).sum();
    let mut report = BackupReport { last_frame, shard_time, ..BackupReport::default() };
    for (name, file, bytes, is_final) in parts {
        if is_final && link(&name) {
            report.linked += 1;
        } else {
            copy(&name, &*file, bytes, target)?;
        }
        report.files += 1;
        report.bytes += bytes;
        progress(report.bytes, total);
    }
    target.sync_dir().map_err(|source| BackupError::Target { name: "the folder".to_owned(), source })?;
    Ok(report)
}

/// Whether a file has its index, and so does not change any more.
fn has_footer(file: &Arc<dyn File>, seal: &Seal) -> io::Result<bool> {
    Ok(footer::read_directory(&**file, seal)?.is_some())
}

fn copy(name: &str, from: &dyn File, bytes: u64, target: &dyn Disk) -> Result<(), BackupError> {
    let wrong = |source| BackupError::Target { name: name.to_owned(), source };
    let to = target.create(name).map_err(wrong)?;
    let mut buffer = BytesMut::zeroed(STEP_BYTES);
    let mut at = 0;
    while at < bytes {
        let step = (bytes - at).min(STEP_BYTES as u64) as usize;
        from.read_exact_at(&mut buffer[..step], at)
            .map_err(|source| OpenError::Io { name: name.to_owned(), source })?;
        write_all(&*to, &[&buffer[..step]], at).map_err(wrong)?;
        at += step as u64;
    }
    to.sync_all().map_err(wrong)
}

fn is_absent(error: &OpenError) -> bool {
    matches!(error, OpenError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// The end of the last file, found step by step: frames are only ever added.
struct End {
    file: FileId,
    scanner: Scanner,
    shard_time: i64,
}

fn gather(source: &dyn Disk, shard_id: u32) -> Result<Gathered, BackupError> {
    let mut open: BTreeMap<FileId, Arc<dyn File>> = BTreeMap::new();
    let mut headers: BTreeMap<FileId, Header> = BTreeMap::new();
    let mut snapshots: BTreeMap<String, Arc<dyn File>> = BTreeMap::new();
    let mut end: Option<End> = None;
    for _ in 0..LOOKS_MAX {
        let before = Listing::read(source)?;
        let Some(last) = before.files.last().copied() else { return Err(BackupError::Empty) };
        let ids: BTreeSet<FileId> = before.files.iter().chain(&before.data).copied().collect();
        open.retain(|id, _| ids.contains(id));
        headers.retain(|id, _| ids.contains(id));
        snapshots.retain(|name, _| before.snapshots.contains(name));
        if !open_all(source, shard_id, &ids, &before.snapshots, (&mut open, &mut headers, &mut snapshots))? {
            continue;
        }
        if end.as_ref().is_none_or(|end| end.file != last) {
            end = Some(End::of(shard_id, last, &open, &headers)?);
        }
        let found = end.as_mut().expect("it was just made");
        found.advance()?;
        let after = Listing::read(source)?;
        if (after.files, after.data, after.snapshots) == (before.files, before.data, before.snapshots) {
            let end = (last, found.scanner.at(), found.scanner.last().0.0, found.shard_time);
            return Ok(Gathered { open, snapshots, headers, end });
        }
    }
    Err(BackupError::Restless)
}

type Opened<'a> = (
    &'a mut BTreeMap<FileId, Arc<dyn File>>,
    &'a mut BTreeMap<FileId, Header>,
    &'a mut BTreeMap<String, Arc<dyn File>>,
);

/// Opens what is not open yet; false when something was gone.
fn open_all(
    source: &dyn Disk,
    shard_id: u32,
    ids: &BTreeSet<FileId>,
    names: &[String],
    (open, headers, snapshots): Opened<'_>,
) -> Result<bool, BackupError> {
    for id in ids {
        if open.contains_key(id) {
            continue;
        }
        let io = |source| OpenError::Io { name: id.file_name(), source };
        let opened = Header::read(source, *id, shard_id)
            .and_then(|header| Ok((header, source.open_uncached(&id.file_name()).map_err(io)?)));
        match opened {
            Ok((header, file)) => {
                headers.insert(*id, header);
                open.insert(*id, file);
            }
            Err(error) if is_absent(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    for name in names {
        if snapshots.contains_key(name) {
            continue;
        }
        match source.open_uncached(name) {
            Ok(file) => drop(snapshots.insert(name.clone(), file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(OpenError::Io { name: name.clone(), source }.into()),
        }
    }
    Ok(true)
}

impl End {
    fn of(
        shard_id: u32,
        last: FileId,
        open: &BTreeMap<FileId, Arc<dyn File>>,
        headers: &BTreeMap<FileId, Header>,
    ) -> Result<Self, BackupError> {
        let file = open.get(&last).expect("all of them are open").clone();
        let header = headers.get(&last).and_then(|read| read.header.as_ref());
        let header = header
            .ok_or_else(|| BackupError::Damaged { name: last.file_name(), what: "a damaged file header" })?;
        let identity = Identity { shard_id, file: last, nonce: header.nonce, epoch: Some(header.epoch) };
        // it grows while we read: what lies behind its end now is looked for as well
        let scanner = Scanner::new(file, identity, &header.previous, u64::from(u32::MAX));
        Ok(Self { file: last, scanner, shard_time: 0 })
    }

    /// Goes on to where the last whole frame ends now.
    fn advance(&mut self) -> Result<(), BackupError> {
        let io = |source| OpenError::Io { name: self.file.file_name(), source };
        self.scanner.look_again();
        loop {
            match self.scanner.step(Bodies::Check).map_err(io)? {
                Step::Frame(frame) => self.shard_time = frame.header.shard_time,
                Step::Bad(_) | Step::End => return Ok(()),
            }
        }
    }
}
