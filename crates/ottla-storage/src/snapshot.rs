//! Snapshots: the state of the shard at one frame, in checked chunks, so that replay need not begin at the start.
//!
//! A snapshot is written under a temporary name in synced steps, read back past the cache and verified, and only
//! then renamed into place; the two newest good ones are kept. It never runs ahead of the log: `finish` asserts that
//! the frame it names is durable. The first chunk (and further ones, if it says so) is the catalogue of live files; what the others mean is the core's
//! business.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use ottla_env::disk::{Disk, File};

use crate::catalogue::Catalogue;
use crate::error::{Damage, OpenError, SnapshotError};
use crate::layout::{BLOCK_BYTES, Crc, FORMAT_VERSION, Fields, STEP_BYTES, crc32c, is_known, write_all};
use crate::options::FrameSequence;
use crate::prepare::discard;
use crate::shared::Shared;

const MAGIC: &[u8; 8] = b"OTTLASNP";
const CHUNK_MAGIC: &[u8; 4] = b"OTSC";
const TRAILER_MAGIC: &[u8; 4] = b"OTSE";
const HEADER_BYTES: usize = 128;
const CHUNK_HEADER_BYTES: usize = 16;
const TRAILER_BYTES: usize = 64;
/// Bytes of one chunk at most, written or believed.
const CHUNK_BYTES_MAX: usize = 16 << 20;
/// Good snapshots kept.
const KEPT: usize = 2;

/// What a snapshot contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The last frame whose entries it contains.
    pub frame_sequence: FrameSequence,
    /// The epoch of the opening that took it.
    pub epoch: i32,
    /// Number of the last decision it contains.
    pub position: u64,
    /// Shard time of that frame, milliseconds since the epoch.
    pub shard_time: i64,
}

impl SnapshotInfo {
    /// The snapshot's name in the folder; names sort by frame, then epoch.
    pub fn file_name(&self) -> String {
        format!("{:020}-{:010}.snapshot", self.frame_sequence.0, self.epoch)
    }
}

/// Whether a name is a snapshot's.
pub(crate) fn is_snapshot(name: &str) -> bool {
    let Some((sequence, epoch)) = name.strip_suffix(".snapshot").and_then(|stem| stem.split_once('-')) else {
        return false;
    };
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    digits(sequence, 20) && digits(epoch, 10)
}

/// Whether a name is a snapshot's before it is finished.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(is_snapshot)
}

/// Whose snapshots are believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) shard_id: u32,
    pub(crate) log_id: u64,
}

/// Begins snapshots; cheap to clone.
#[derive(Clone)]
pub struct SnapshotStore {
    shared: Arc<Shared>,
    /// Found damaged at the opening: neither counted nor removed.
    damaged: Arc<BTreeSet<String>>,
    /// Every byte of these was read and is good.
    verified: Arc<Mutex<BTreeSet<String>>>,
}

impl SnapshotStore {
    /// `damaged` and `verified`: names of snapshots that the opening has read.
    pub(crate) fn new(shared: Arc<Shared>, damaged: BTreeSet<String>, verified: BTreeSet<String>) -> Self {
        Self { shared, damaged: Arc::new(damaged), verified: Arc::new(Mutex::new(verified)) }
    }

    /// The last frame of the second newest verified snapshot: nothing behind it may be rewritten or dropped, since
    /// a start may have to replay it. None without two good ones. Reads those that nobody has verified yet.
    pub fn horizon(&self) -> Result<Option<FrameSequence>, SnapshotError> {
        let names = self.shared.disk.list().map_err(|source| io_error("the folder", source))?;
        let mut good = 0;
        for name in names.iter().rev().filter(|name| is_snapshot(name) && !self.damaged.contains(*name)) {
            if !self.is_verified(name)? {
                continue;
            }
            good += 1;
            if good == KEPT {
                return Ok(name.get(..20).and_then(|digits| digits.parse().ok()).map(FrameSequence));
            }
        }
        Ok(None)
    }

    fn is_verified(&self, name: &str) -> Result<bool, SnapshotError> {
        if self.verified.lock().unwrap_or_else(PoisonError::into_inner).contains(name) {
            return Ok(true);
        }
        match Snapshot::open(&*self.shared.disk, name, self.owner()) {
            Ok(_) => {
                self.note_verified(name);
                Ok(true)
            }
            Err(SnapshotFault::Io(source)) => Err(io_error(name, source)),
            Err(SnapshotFault::Damaged(damage)) => {
                tracing::error!(%damage, "a snapshot is damaged");
                Ok(false)
            }
            Err(SnapshotFault::Newer(_)) => Ok(false),
        }
    }

    fn note_verified(&self, name: &str) {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    /// Begins a snapshot under a temporary name. Dropping the writer discards it.
    pub fn begin(&self, info: SnapshotInfo) -> Result<SnapshotWriter, SnapshotError> {
        if self.shared.has_ended() {
            return Err(SnapshotError::Ended);
        }
        let name = format!("{}.tmp", info.file_name());
        let disk = &self.shared.disk;
        discard(&**disk, &name);
        self.shared.make_room_for_snapshot();
        let file = disk.create(&name).map_err(|source| io_error(&name, source))?;
        let nonce = self.shared.options.nonces.draw();
        let owner = Owner { shard_id: self.shared.options.shard_id, log_id: self.shared.log_id };
        let header = encode_header(owner, nonce, &info);
        let catalogue = self.shared.known().catalogue.chunks();
        let mut writer = SnapshotWriter {
            store: self.clone(),
            info,
            name,
            file,
            nonce,
            at: 0,
            buffer: header,
            chunks: 0,
            finished: false,
        };
        // It may be newer than the frame: replay applies what lies between once more.
        catalogue.iter().try_for_each(|chunk| writer.chunk(chunk))?;
        Ok(writer)
    }

    /// Reads a snapshot whole and checks every byte of it.
    pub fn verify(&self, info: &SnapshotInfo) -> Result<(), SnapshotError> {
        self.verify_file(&info.file_name(), info)
    }

    fn owner(&self) -> Owner {
        Owner { shard_id: self.shared.options.shard_id, log_id: self.shared.log_id }
    }

    fn verify_file(&self, name: &str, info: &SnapshotInfo) -> Result<(), SnapshotError> {
        let file = self.shared.disk.open_uncached(name).map_err(|source| io_error(name, source))?;
        let found = match Snapshot::verify(file, name, self.owner()) {
            Ok(snapshot) => snapshot,
            Err(SnapshotFault::Io(source)) => return Err(io_error(name, source)),
            Err(SnapshotFault::Damaged(damage)) => return Err(SnapshotError::Unverified(damage)),
            Err(SnapshotFault::Newer(_)) => {
                return Err(SnapshotError::Unverified(damage(name, 8, "version")));
            }
        };
        if found.info == *info {
            Ok(())
        } else {
            Err(SnapshotError::Unverified(damage(name, 0, "another one")))
        }
    }

    fn prune(&self) -> io::Result<()> {
        let disk = &self.shared.disk;
        let names = disk.list()?;
        let good = |name: &&String| is_snapshot(name) && !self.damaged.contains(*name);
        let good: Vec<&String> = names.iter().filter(good).collect(); // sorted, oldest first
        for name in &good[..good.len().saturating_sub(KEPT)] {
            self.verified.lock().unwrap_or_else(PoisonError::into_inner).remove(*name);
            disk.remove(name)?;
        }
        disk.sync_dir()
    }
}

fn io_error(name: &str, source: io::Error) -> SnapshotError {
    SnapshotError::Io { name: name.to_owned(), source }
}

fn damage(name: &str, position: u64, what: &'static str) -> Damage {
    Damage { file: name.to_owned(), position, what }
}

fn chunk_crc(nonce: u64, index: u32, data: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&nonce.to_be_bytes());
    crc.update(&index.to_be_bytes());
    crc.update(&(data.len() as u32).to_be_bytes());
    crc.update(data);
    crc.finish()
}

fn encode_header(owner: Owner, nonce: u64, info: &SnapshotInfo) -> BytesMut {
    let mut header = BytesMut::with_capacity(HEADER_BYTES);
    header.put_slice(MAGIC);
    header.put_u16(FORMAT_VERSION);
    header.put_u16(0);
    header.put_u32(owner.shard_id);
    header.put_u64(owner.log_id);
    header.put_u64(nonce);
    header.put_u64(info.frame_sequence.0);
    header.put_i32(info.epoch);
    header.put_u32(0);
    header.put_u64(info.position);
    header.put_i64(info.shard_time);
    header.put_bytes(0, HEADER_BYTES - 4 - header.len());
    let crc = crc32c(&header);
    header.put_u32(crc);
    header
}

fn put_chunk(out: &mut BytesMut, nonce: u64, index: u32, data: &[u8]) {
    out.put_slice(CHUNK_MAGIC);
    out.put_u32(data.len() as u32);
    out.put_u32(index);
    out.put_u32(chunk_crc(nonce, index, data));
    out.put_slice(data);
}

/// `bytes`: of the whole file.
fn encode_trailer(nonce: u64, chunks: u32, bytes: u64) -> BytesMut {
    let mut trailer = BytesMut::with_capacity(TRAILER_BYTES);
    trailer.put_slice(TRAILER_MAGIC);
    trailer.put_u32(chunks);
    trailer.put_u64(nonce);
    trailer.put_u64(bytes);
    trailer.put_bytes(0, TRAILER_BYTES - 4 - trailer.len());
    let crc = crc32c(&trailer);
    trailer.put_u32(crc);
    trailer
}

/// Writes a snapshot of a log that nobody has open, durably and under its own name, and reads it back.
pub(crate) fn write_whole(
    disk: &dyn Disk,
    owner: Owner,
    nonce: u64,
    info: &SnapshotInfo,
    chunks: impl Iterator<Item = Bytes>,
) -> Result<(), OpenError> {
    let (name, temporary) = (info.file_name(), format!("{}.tmp", info.file_name()));
    let io = |source| OpenError::Io { name: info.file_name(), source };
    discard(disk, &temporary);
    let file = disk.create(&temporary).map_err(io)?;
    let mut buffer = encode_header(owner, nonce, info);
    let (mut at, mut count) = (0, 0);
    for chunk in chunks {
        put_chunk(&mut buffer, nonce, count, &chunk);
        count += 1;
        write_all(&*file, &[&buffer], at).map_err(io)?;
        at += buffer.len() as u64;
        buffer.clear();
    }
    buffer.put_slice(&encode_trailer(nonce, count, at + (buffer.len() + TRAILER_BYTES) as u64));
    write_all(&*file, &[&buffer], at).and_then(|()| file.sync_all()).map_err(io)?;
    let read = disk.open_uncached(&temporary).map_err(io)?;
    match Snapshot::verify(read, &temporary, owner) {
        Ok(_) => {}
        Err(SnapshotFault::Io(source)) => return Err(io(source)),
        Err(SnapshotFault::Damaged(damage)) => return Err(OpenError::Damaged(damage)),
        Err(SnapshotFault::Newer(_)) => return Err(OpenError::Damaged(damage(&name, 8, "version"))),
    }
    disk.rename(&temporary, &name).and_then(|()| disk.sync_dir()).map_err(io)
}

/// A snapshot being written. Dropping it without `finish` discards it.
pub struct SnapshotWriter {
    store: SnapshotStore,
    info: SnapshotInfo,
    name: String,
    file: Arc<dyn File>,
    nonce: u64,
    at: u64,
    buffer: BytesMut,
    chunks: u32,
    finished: bool,
}

impl SnapshotWriter {
    /// Appends one chunk of at most 16 MiB, meant to be about 1 MiB. Whenever 1 MiB has come together it is written
    /// and synced; the caller paces the calls.
    pub fn chunk(&mut self, data: &[u8]) -> Result<(), SnapshotError> {
        assert!(data.len() <= CHUNK_BYTES_MAX, "a chunk is at most 16 MiB");
        put_chunk(&mut self.buffer, self.nonce, self.chunks, data);
        self.chunks += 1;
        if self.buffer.len() >= STEP_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), SnapshotError> {
        if self.store.shared.has_ended() {
            return Err(SnapshotError::Ended);
        }
        while !self.buffer.is_empty() {
            let step = self.buffer.split_to(self.buffer.len().min(STEP_BYTES));
            write_all(&*self.file, &[&step], self.at)
                .and_then(|()| self.file.sync_data())
                .map_err(|source| io_error(&self.name, source))?;
            self.at += step.len() as u64;
        }
        Ok(())
    }

    /// Completes the snapshot, verifies it, gives it its name, and removes all but the two newest good ones.
    ///
    /// The frame it names must be durable: that is asserted.
    pub fn finish(mut self) -> Result<(), SnapshotError> {
        let shared = self.store.shared.clone();
        assert!(
            self.info.frame_sequence <= shared.durable_sequence(),
            "a snapshot never runs ahead of the log"
        );
        let bytes = self.at + (self.buffer.len() + TRAILER_BYTES) as u64;
        let trailer = encode_trailer(self.nonce, self.chunks, bytes);
        self.buffer.put_slice(&trailer);
        self.flush()?;
        self.file.sync_all().map_err(|source| io_error(&self.name, source))?;
        self.store.verify_file(&self.name, &self.info)?;
        if shared.has_ended() {
            return Err(SnapshotError::Ended);
        }
        let name = self.info.file_name();
        shared
            .disk
            .rename(&self.name, &name)
            .and_then(|()| shared.disk.sync_dir())
            .map_err(|source| io_error(&name, source))?;
        self.finished = true;
        shared.snapshot_written(self.at);
        self.store.note_verified(&name);
        if let Err(error) = self.store.prune() {
            tracing::warn!(%error, "could not remove old snapshots");
        }
        Ok(())
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if !self.finished {
            discard(&*self.store.shared.disk, &self.name);
        }
    }
}

/// The log that a snapshot says it belongs to; none when it is too short to say.
pub(crate) fn log_id_of(file: &dyn File) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER_BYTES];
    match file.read_exact_at(&mut header, 0) {
        Ok(()) => Ok(Some(Fields(&header).u64(16))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why a snapshot is not believed.
#[derive(Debug)]
pub(crate) enum SnapshotFault {
    Io(io::Error),
    Newer(u16),
    Damaged(Damage),
}

/// A verified snapshot.
pub(crate) struct Snapshot {
    pub(crate) info: SnapshotInfo,
    /// The live files as of its frame or later; what everything is in a folder of version 1.
    pub(crate) catalogue: Catalogue,
    nonce: u64,
    chunks: u32,
    /// Where the state begins: position and index of its first chunk.
    state: (u64, u32),
}

impl Snapshot {
    /// Opens a snapshot and checks every byte.
    pub(crate) fn open(disk: &dyn Disk, name: &str, owner: Owner) -> Result<Self, SnapshotFault> {
        let file = disk.open(name).map_err(SnapshotFault::Io)?;
        let snapshot = Self::verify(file, name, owner)?;
        if snapshot.info.file_name() != name {
            return Err(SnapshotFault::Damaged(damage(name, 0, "the snapshot has another name")));
        }
        Ok(snapshot)
    }

    fn verify(file: Arc<dyn File>, name: &str, owner: Owner) -> Result<Self, SnapshotFault> {
        let bad = |at, what| SnapshotFault::Damaged(damage(name, at, what));
        let len = file.len().map_err(SnapshotFault::Io)?;
        if len < (HEADER_BYTES + TRAILER_BYTES) as u64 {
            return Err(bad(0, "too short for a snapshot"));
        }
        let mut window = Reads::new(file, len);
        let header = window.get(0, HEADER_BYTES)?;
        let fields = Fields(&header);
        if &header[..8] != MAGIC {
            return Err(bad(0, "no snapshot header"));
        }
        let sound = fields.u32(HEADER_BYTES - 4) == crc32c(&header[..HEADER_BYTES - 4]);
        if sound && fields.u16(8) > FORMAT_VERSION {
            return Err(SnapshotFault::Newer(fields.u16(8)));
        }
        if !sound || !is_known(fields.u16(8)) {
            return Err(bad(0, "a damaged snapshot header"));
        }
        if (fields.u32(12), fields.u64(16)) != (owner.shard_id, owner.log_id) {
            return Err(bad(12, "a snapshot of another log"));
        }
        let trailer_at = len - TRAILER_BYTES as u64;
        let trailer = window.get(trailer_at, TRAILER_BYTES)?;
        let end = Fields(&trailer);
        let sound = &trailer[..4] == TRAILER_MAGIC
            && end.u32(TRAILER_BYTES - 4) == crc32c(&trailer[..TRAILER_BYTES - 4])
            && (end.u64(8), end.u64(16)) == (fields.u64(24), len);
        if !sound {
            return Err(bad(trailer_at, "a damaged snapshot trailer"));
        }
        let info = SnapshotInfo {
            frame_sequence: FrameSequence(fields.u64(32)),
            epoch: fields.i32(40),
            position: fields.u64(48),
            shard_time: fields.i64(56),
        };
        let has_catalogue = fields.u16(8) > 1;
        let mut snapshot = Self {
            info,
            catalogue: Catalogue::default(),
            nonce: fields.u64(24),
            chunks: end.u32(4),
            state: (HEADER_BYTES as u64, 0),
        };
        let mut at = HEADER_BYTES as u64;
        let mut further = 0; // chunks of the catalogue behind the first
        for index in 0..snapshot.chunks {
            let data = snapshot.chunk(&mut window, at, index, trailer_at)?;
            let data = data.ok_or_else(|| bad(at, "a damaged snapshot chunk"))?;
            let next = at + (CHUNK_HEADER_BYTES + data.len()) as u64;
            if index == 0 && has_catalogue {
                let read = Catalogue::of_first_chunk(&data);
                (snapshot.catalogue, further) = read.ok_or_else(|| bad(at, "no catalogue of files"))?;
                snapshot.state = (next, 1);
            } else if index > 0 && u64::from(index) <= further {
                let read = snapshot.catalogue.add_chunk(&data);
                read.ok_or_else(|| bad(at, "no part of the catalogue of files"))?;
                snapshot.state = (next, index + 1);
            }
            at = next;
        }
        if at != trailer_at {
            return Err(bad(at, "bytes between a snapshot's chunks and its trailer"));
        }
        Ok(snapshot)
    }

    fn chunk(
        &self,
        reads: &mut Reads,
        at: u64,
        index: u32,
        end: u64,
    ) -> Result<Option<Bytes>, SnapshotFault> {
        if at + CHUNK_HEADER_BYTES as u64 > end {
            return Ok(None);
        }
        let header = reads.get(at, CHUNK_HEADER_BYTES)?;
        let fields = Fields(&header);
        let (length, data_at) = (fields.u32(4) as usize, at + CHUNK_HEADER_BYTES as u64);
        let sound = &header[..4] == CHUNK_MAGIC
            && fields.u32(8) == index
            && length <= CHUNK_BYTES_MAX
            && data_at + length as u64 <= end;
        if !sound {
            return Ok(None);
        }
        let data = reads.get(data_at, length)?;
        Ok((chunk_crc(self.nonce, index, &data) == fields.u32(12)).then_some(data))
    }

    /// Reads the chunks again, each checked once more.
    pub(crate) fn into_chunks(self, disk: &dyn Disk) -> Result<SnapshotChunks, OpenError> {
        let name = self.info.file_name();
        let opened = disk.open(&name).and_then(|file| Ok((file.len()?, file)));
        let (len, file) = opened.map_err(|source| OpenError::Io { name: name.clone(), source })?;
        Ok(SnapshotChunks {
            end: len.saturating_sub(TRAILER_BYTES as u64),
            reads: Reads::new(file, len),
            at: self.state.0,
            index: self.state.1,
            snapshot: self,
            name,
        })
    }
}

/// The chunks of the newest good snapshot, in the order they were written. Ends behind the first error.
pub struct SnapshotChunks {
    snapshot: Snapshot,
    reads: Reads,
    name: String,
    at: u64,
    end: u64,
    index: u32,
}

impl Iterator for SnapshotChunks {
    type Item = Result<Bytes, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.snapshot.chunks {
            return None;
        }
        let index = self.index;
        let item = match self.snapshot.chunk(&mut self.reads, self.at, index, self.end) {
            Ok(Some(data)) => {
                self.index += 1;
                self.at += (CHUNK_HEADER_BYTES + data.len()) as u64;
                return Some(Ok(data));
            }
            Err(SnapshotFault::Io(source)) => OpenError::Io { name: self.name.clone(), source },
            Ok(None) | Err(SnapshotFault::Damaged(_) | SnapshotFault::Newer(_)) => {
                OpenError::Damaged(damage(&self.name, self.at, "a snapshot chunk changed under us"))
            }
        };
        self.index = self.snapshot.chunks;
        Some(Err(item))
    }
}

/// Reads at any position, in block-aligned steps of about 1 MiB (past the cache reads must be aligned).
struct Reads {
    file: Arc<dyn File>,
    len: u64,
    at: u64,
    bytes: Bytes,
}

impl Reads {
    fn new(file: Arc<dyn File>, len: u64) -> Self {
        Self { file, len, at: 0, bytes: Bytes::new() }
    }

    /// The bytes at a position; the caller stays within the file's length.
    fn get(&mut self, at: u64, count: usize) -> Result<Bytes, SnapshotFault> {
        let end = at + count as u64;
        if at < self.at || end > self.at + self.bytes.len() as u64 {
            let begin = at - at % BLOCK_BYTES;
            let want = (end - begin).max(STEP_BYTES as u64).min(self.len - begin);
            let mut buffer = BytesMut::zeroed(want as usize);
            self.file.read_exact_at(&mut buffer, begin).map_err(SnapshotFault::Io)?;
            (self.at, self.bytes) = (begin, buffer.freeze());
        }
        let from = (at - self.at) as usize;
        Ok(self.bytes.slice(from..from + count))
    }
}
