//! Mending what can be mended in a folder that nobody works on, without throwing a byte away.
//!
//! Two things stand in the way of a start, or of its safety net, and can be made whole from what is around them: a damaged
//! snapshot, which gives way to the one before, and a file's header, which has a second copy and whose fields are also
//! in the file's frames and in its neighbours. What is replaced stays in the folder under a name that ends in `.aside`;
//! nobody reads it. A footer needs no repair, a start makes it anew. Damaged frames cannot be made whole by anybody.
//!
//! A file is never changed in place: a mended copy takes its name when it is durable. So other names of it (a backup)
//! keep what they had.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ottla_env::disk::{Disk, File};

use crate::catalogue::{Catalogue, FilesEdit, LiveFile};
use crate::error::{Damage, OpenError};
use crate::file_header::{FileHeader, Seal};
use crate::frame::FrameHeader;
use crate::inspect::{Header, Inspection, own_seal};
use crate::layout::{BLOCK_BYTES, STEP_BYTES, write_all};
use crate::options::{FileId, FrameSequence};
use crate::recovery::ASIDE;
use crate::scan::{Bodies, Identity, Scanner, Step};
use crate::snapshot::{self, Owner, SnapshotInfo};

/// Name of a mended file before it takes its place; the next start removes what a crash leaves of it.
const TEMPORARY: &str = "log-repair.tmp";

/// Something that was mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The file.
    pub name: String,
    /// Where its old bytes are.
    pub kept: String,
    /// What was done.
    pub what: &'static str,
}

/// Mends what an inspection has found. The caller holds the folder's lock.
///
/// Errors: a disk that cannot be read or written; the folder is as it was, but for what is named in the log.
pub fn repair(disk: &dyn Disk, shard_id: u32, found: &Inspection) -> Result<Vec<Repaired>, OpenError> {
    let mut done = Vec::new();
    for snapshot in found.snapshots.iter().filter(|snapshot| snapshot.contents.is_err()) {
        let io = |source| OpenError::Io { name: snapshot.name.clone(), source };
        let kept = free_name(disk, &snapshot.name).map_err(io)?;
        disk.rename(&snapshot.name, &kept).and_then(|()| disk.sync_dir()).map_err(io)?;
        let what = "the damaged snapshot was put aside; the one before it, or the log, takes its place";
        done.push(Repaired { name: snapshot.name.clone(), kept, what });
    }
    for file in &found.files {
        let is_lost = file.epoch.is_none();
        if !is_lost && !file.header_copy_damaged {
            continue;
        }
        let read = Header::read(disk, file.file, shard_id)?;
        let header = match read.header {
            Some(header) => Some(header),
            None => rebuilt_header(disk, shard_id, file.file, found)?,
        };
        let Some(header) = header else { continue };
        let what = if is_lost {
            "the file's header was made anew from its frames and its neighbours"
        } else {
            "the damaged copy of the file's header was made anew from the other"
        };
        done.push(replace_header(disk, file.file, &header, what)?);
    }
    Ok(done)
}

/// A file that a new catalogue is to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFile {
    /// Which.
    pub file: FileId,
    /// Where it ends, bytes.
    pub end: u64,
    /// The last frame in it.
    pub last_sequence: FrameSequence,
}

/// Writes a snapshot with a state that was put together from the frames that are left, so that a start has where to
/// begin. `info` is what it contains: the log's last frame. `kept`: the live files in front of the chain, which begins
/// with the file `chain`. `nonce`: a new random number. The caller holds the folder's lock.
///
/// Errors: a kept file whose header cannot be read; a disk that cannot be written.
pub fn write_snapshot(
    disk: &dyn Disk,
    (shard_id, log_id, nonce): (u32, u64, u64),
    info: &SnapshotInfo,
    chain: FileId,
    kept: &[KeptFile],
    chunks: impl Iterator<Item = Vec<u8>>,
) -> Result<(), OpenError> {
    let mut added = Vec::with_capacity(kept.len());
    for kept in kept {
        let header = Header::read(disk, kept.file, shard_id)?.header;
        let what = "a file header that cannot be read";
        let damage = || Damage { file: kept.file.file_name(), position: 0, what };
        let nonce = header.ok_or_else(|| OpenError::Damaged(damage()))?.nonce;
        let (file, length, last_sequence) = (kept.file, kept.end, kept.last_sequence);
        added.push(LiveFile {
            seal: Seal { file, nonce, length, last_sequence, last_header_crc: 0 },
            is_settled: false,
            newest_source: if file.is_data() { FileId(chain.0.saturating_sub(1)) } else { file },
        });
    }
    let mut catalogue = Catalogue::default();
    catalogue.apply(&FilesEdit { chain, removed: Vec::new(), added, compacted: Vec::new() });
    let chunks = catalogue.chunks().into_iter().chain(chunks.map(Bytes::from));
    snapshot::write_whole(disk, Owner { shard_id, log_id }, nonce, info, chunks)
}

/// A name for what is put aside.
fn free_name(disk: &dyn Disk, name: &str) -> io::Result<String> {
    let taken = disk.list()?;
    let names = (1_u64..).map(|number| format!("{name}.{number}{ASIDE}"));
    Ok(names.into_iter().find(|name| !taken.contains(name)).expect("a folder has fewer files than numbers"))
}

/// The old file is copied aside, then a copy with the new header takes its place.
fn replace_header(
    disk: &dyn Disk,
    id: FileId,
    header: &FileHeader,
    what: &'static str,
) -> Result<Repaired, OpenError> {
    let name = id.file_name();
    let io = |source| OpenError::Io { name: id.file_name(), source };
    let kept = free_name(disk, &name).map_err(io)?;
    let replaced = || -> io::Result<()> {
        let old = disk.open_uncached(&name)?;
        copy(&*old, &*disk.create(&kept)?, &[])?;
        match disk.remove(TEMPORARY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        copy(&*old, &*disk.create(TEMPORARY)?, &header.encode())?;
        disk.sync_dir()?;
        disk.rename(TEMPORARY, &name)?;
        disk.sync_dir()
    };
    replaced().map_err(io)?;
    Ok(Repaired { name, kept, what })
}

/// Copies a file, with other bytes at its beginning, and syncs the copy.
fn copy(from: &dyn File, to: &dyn File, begin: &[u8]) -> io::Result<()> {
    let end = from.len()?;
    let mut buffer = BytesMut::zeroed(STEP_BYTES);
    let mut at = 0;
    while at < end {
        let step = (end - at).min(STEP_BYTES as u64) as usize;
        from.read_exact_at(&mut buffer[..step], at)?;
        write_all(to, &[&buffer[..step]], at)?;
        at += step as u64;
    }
    if !begin.is_empty() {
        write_all(to, &[begin], 0)?;
    }
    to.sync_all()
}

/// A file's header, from what its frames and its neighbours say; none when that is not enough.
fn rebuilt_header(
    disk: &dyn Disk,
    shard_id: u32,
    id: FileId,
    found: &Inspection,
) -> Result<Option<FileHeader>, OpenError> {
    let io = |source| OpenError::Io { name: id.file_name(), source };
    let file = disk.open_uncached(&id.file_name()).map_err(io)?;
    let Some(first) = first_frame(&*file, shard_id, id).map_err(io)? else { return Ok(None) };
    let (Some(log_id), Some(durability)) =
        (found.log_id, found.files.iter().rev().find_map(|file| file.durability))
    else {
        return Ok(None);
    };
    let previous = match id {
        id if id.is_data() || id.0 == 1 => Some(Seal::default()),
        id => seal_before(disk, shard_id, id, &first)?,
    };
    let Some(previous) = previous else { return Ok(None) };
    Ok(Some(FileHeader {
        shard_id,
        log_id,
        file: id,
        nonce: first.nonce,
        epoch: first.epoch,
        durability,
        previous,
    }))
}

/// The first frame header of a file that says so itself.
fn first_frame(file: &dyn File, shard_id: u32, id: FileId) -> io::Result<Option<FrameHeader>> {
    let end = file.len()?;
    let mut block = vec![0; BLOCK_BYTES as usize];
    let mut at = BLOCK_BYTES;
    while at + BLOCK_BYTES <= end {
        file.read_exact_at(&mut block, at)?;
        let header = FrameHeader::decode(&block).map(|(header, _)| header);
        if let Some(header) = header.filter(|h| (h.shard_id, h.file, h.at) == (shard_id, id, at)) {
            return Ok(Some(header));
        }
        at += BLOCK_BYTES;
    }
    Ok(None)
}

/// How the file in front of this one ends: the frame in front of `first` is its last one.
fn seal_before(
    disk: &dyn Disk,
    shard_id: u32,
    id: FileId,
    first: &FrameHeader,
) -> Result<Option<Seal>, OpenError> {
    let before = FileId(id.0 - 1);
    let io = |source| OpenError::Io { name: before.file_name(), source };
    if first.at != BLOCK_BYTES {
        return Ok(None); // the first frame of this file is damaged too
    }
    let read = match Header::read(disk, before, shard_id) {
        Ok(read) => read,
        // Dropped, or missing: then only the number of the frame in front counts, which is known.
        Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let last_sequence = FrameSequence(first.sequence.0.saturating_sub(1));
            return Ok(Some(Seal { file: before, length: BLOCK_BYTES, last_sequence, ..Seal::default() }));
        }
        Err(error) => return Err(error),
    };
    let Some(header) = read.header else { return Ok(None) };
    let file: Arc<dyn File> = disk.open_uncached(&before.file_name()).map_err(io)?;
    let end = own_seal(disk, before).map_err(io)?.map_or(read.bytes, |seal| seal.length);
    let identity = Identity { shard_id, file: before, nonce: header.nonce, epoch: Some(header.epoch) };
    let mut scanner = Scanner::new(file, identity, &header.previous, end);
    while let Step::Frame(_) = scanner.step(Bodies::Skip).map_err(io)? {}
    let (last_sequence, last_header_crc) = scanner.last();
    let length = scanner.at();
    let is_last = last_sequence.0.checked_add(1) == Some(first.sequence.0);
    Ok(is_last.then_some(Seal { file: before, nonce: header.nonce, length, last_sequence, last_header_crc }))
}
