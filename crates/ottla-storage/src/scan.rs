//! Reading a file's frames in order, and deciding what is one.
//!
//! A frame is accepted only if its header names this file, its nonce, its position, the next sequence and the
//! file's epoch, its CRCs hold, and (when bodies are read) every batch in it is what its head says. Nothing a file
//! claims is believed before it was checked against the file's length.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ottla_env::disk::File;
use ottla_protocol::batch::{BATCH_HEAD_BYTES, BatchHeader};
use ottla_protocol::entry::Entry;
use ottla_protocol::types::TopicIdPartition;

use crate::file_header::Seal;
use crate::frame::{self, EntryHeader, FRAME_HEADER_BYTES, FrameHeader};
use crate::index::{Extent, FileExtents};
use crate::layout::{BLOCK_BYTES, READINGS, STEP_BYTES, align_up};
use crate::options::{FileId, FrameSequence};
use crate::shared::Shared;

/// The smallest unit that a disk writes or leaves as it was.
const SECTOR_BYTES: usize = 512;

/// Bytes other than zero behind a frame header that show that its sector was written: an entry header or what fills
/// the frame up has more, a wrong bit in a place of zeros is one.
const WRITTEN_BYTES_MIN: usize = 16;

fn non_zero(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte != 0).count()
}

/// A window onto a file: small looks cost one read per MiB.
struct Window {
    file: Arc<dyn File>,
    at: u64,
    bytes: Bytes,
    /// How far the file is looked at.
    end: u64,
}

impl Window {
    /// Up to `want` bytes at a block's start; fewer at the end.
    fn get(&mut self, at: u64, want: u64) -> io::Result<Bytes> {
        let want = want.min(self.end.saturating_sub(at));
        let inside = at >= self.at && at + want <= self.at + self.bytes.len() as u64;
        if !inside {
            let step = align_up(want).max(STEP_BYTES as u64).min(self.end.saturating_sub(at));
            let mut buffer = BytesMut::zeroed(step as usize);
            let mut filled = 0;
            while filled < buffer.len() {
                let to = buffer.len().min(filled + STEP_BYTES);
                let read = self.file.read_at(&mut buffer[filled..to], at + filled as u64)?;
                if read == 0 {
                    break;
                }
                filled += read;
            }
            buffer.truncate(filled);
            (self.at, self.bytes) = (at, buffer.freeze());
        }
        let from = ((at - self.at) as usize).min(self.bytes.len());
        let to = (from + want as usize).min(self.bytes.len());
        Ok(self.bytes.slice(from..to))
    }
}

/// Who the frames of a file must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) shard_id: u32,
    pub(crate) file: FileId,
    pub(crate) nonce: u64,
    /// Unknown when a file is scanned for its index alone.
    pub(crate) epoch: Option<i32>,
}

impl Identity {
    fn owns(&self, header: &FrameHeader, at: u64) -> bool {
        header.shard_id == self.shard_id
            && header.file == self.file
            && header.nonce == self.nonce
            && header.at == at
            && self.epoch.is_none_or(|epoch| header.epoch == epoch)
    }
}

/// Whether a scan reads the bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bodies {
    /// Only headers and entry headers.
    Skip,
    /// All bytes, every batch checked.
    Check,
}

/// One accepted frame.
#[derive(Debug)]
pub(crate) struct ScannedFrame {
    pub(crate) header: FrameHeader,
    pub(crate) header_crc: u32,
    pub(crate) entries: Vec<EntryHeader>,
    bytes: Bytes,
}

/// What lies at the scan's position.
#[derive(Debug)]
pub(crate) enum Step {
    Frame(Box<ScannedFrame>),
    /// Not a frame, or not the one that must follow.
    Bad(&'static str),
    /// The end of what is looked at.
    End,
}

/// A frame of which only bodies are damaged: its header, its entries, and those that are damaged.
pub(crate) type SteppedOver = (FrameHeader, Vec<EntryHeader>, Vec<EntryHeader>);

/// Goes through a file's frames.
pub(crate) struct Scanner {
    window: Window,
    identity: Identity,
    at: u64,
    last_sequence: FrameSequence,
    last_header_crc: u32,
}

impl Scanner {
    /// Begins behind the header block; `previous` is how the file in front ended; nothing at or behind `end` is
    /// looked at.
    pub(crate) fn new(file: Arc<dyn File>, identity: Identity, previous: &Seal, end: u64) -> Self {
        Self {
            window: Window { file, at: 0, bytes: Bytes::new(), end },
            identity,
            at: BLOCK_BYTES,
            last_sequence: previous.last_sequence,
            last_header_crc: previous.last_header_crc,
        }
    }

    /// Where the next frame is looked for: behind all accepted ones.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The last accepted frame, in this file or in front of it, and the CRC of its header.
    pub(crate) fn last(&self) -> (FrameSequence, u32) {
        (self.last_sequence, self.last_header_crc)
    }

    /// The frame at the position; after anything but a frame the scan stays where it is.
    pub(crate) fn step(&mut self, bodies: Bodies) -> io::Result<Step> {
        if self.at >= self.window.end {
            return Ok(Step::End);
        }
        let mut read = self.read(bodies)?;
        for _ in 1..READINGS {
            if read.is_err() {
                self.window.bytes = Bytes::new();
                read = self.read(bodies)?;
            }
        }
        let frame = match read {
            Ok(frame) => frame,
            Err(what) => return Ok(Step::Bad(what)),
        };
        if frame.header.sequence.0 != self.last_sequence.0.wrapping_add(1) {
            return Ok(Step::Bad("a frame out of sequence"));
        }
        self.accept(&frame);
        Ok(Step::Frame(Box::new(frame)))
    }

    /// Goes over a frame of which only bodies are damaged. None when nothing can be said of what lies at the
    /// position; then the scan stays where it is.
    pub(crate) fn step_over(&mut self) -> io::Result<Option<SteppedOver>> {
        let Some(frame) = self.step_over_frame()? else { return Ok(None) };
        let damaged = frame.entries.iter().filter(|entry| !frame.is_sound(entry)).copied().collect();
        Ok(Some((frame.header, frame.entries, damaged)))
    }

    /// The same, with what is left of the bodies: see [`ScannedFrame::entry`].
    pub(crate) fn step_over_frame(&mut self) -> io::Result<Option<ScannedFrame>> {
        let Ok(mut frame) = self.read(Bodies::Skip)? else { return Ok(None) };
        if frame.header.sequence.0 != self.last_sequence.0.wrapping_add(1) {
            return Ok(None);
        }
        frame.bytes = self.window.get(self.at, frame.header.frame_bytes)?;
        self.accept(&frame);
        Ok(Some(frame))
    }

    /// Forgets what was read ahead: somebody may have written since.
    pub(crate) fn look_again(&mut self) {
        self.window.bytes = Bytes::new();
    }

    /// Goes on behind damage, at a frame found by `find`.
    pub(crate) fn jump(&mut self, at: u64, header: &FrameHeader) {
        self.at = at;
        self.last_sequence = FrameSequence(header.sequence.0.wrapping_sub(1));
    }

    fn accept(&mut self, frame: &ScannedFrame) {
        self.at += align_up(frame.header.frame_bytes);
        self.last_sequence = frame.header.sequence;
        self.last_header_crc = frame.header_crc;
    }

    fn read(&mut self, bodies: Bodies) -> io::Result<Result<ScannedFrame, &'static str>> {
        let fixed = self.window.get(self.at, FRAME_HEADER_BYTES as u64)?;
        let Some((header, header_crc)) = FrameHeader::decode(&fixed) else {
            return Ok(Err("no frame header"));
        };
        if !self.identity.owns(&header, self.at) {
            return Ok(Err("a frame of another place"));
        }
        if header.frame_bytes > self.window.end - self.at {
            return Ok(Err("a frame that reaches behind the end"));
        }
        let want = if bodies == Bodies::Check { header.frame_bytes } else { header.bodies_at() };
        let bytes = self.window.get(self.at, want)?;
        let Some(entries) = frame::decode_entries(&header, &bytes) else {
            return Ok(Err("damaged entry headers"));
        };
        let frame = ScannedFrame { header, header_crc, entries, bytes };
        if bodies == Bodies::Check && !frame.has_sound_bodies() {
            return Ok(Err("a damaged batch"));
        }
        Ok(Ok(frame))
    }

    /// Whether the unacceptable frame at the position was once written whole: then it is damaged, not torn. The
    /// place held zeros before and a frame has no sector of zeros, but for those inside a batch; a torn write
    /// leaves whole sectors as they were, a short one everything behind its end.
    pub(crate) fn was_whole(&mut self) -> io::Result<bool> {
        let block = self.window.get(self.at, BLOCK_BYTES)?;
        if block.len() < SECTOR_BYTES {
            return Ok(false);
        }
        let Some((header, _)) = FrameHeader::decode(&block) else {
            // The header's sector is there, and something behind the header: so the header was there too.
            return Ok(non_zero(&block[FRAME_HEADER_BYTES..SECTOR_BYTES]) >= WRITTEN_BYTES_MIN);
        };
        let padded = align_up(header.frame_bytes);
        if !self.identity.owns(&header, self.at) || padded > self.window.end - self.at {
            return Ok(false);
        }
        let bytes = self.window.get(self.at, padded)?;
        let written = |sector: &[u8]| non_zero(sector) > 1;
        Ok(bytes.len() as u64 == padded
            && bytes.last().is_some_and(|byte| *byte != 0)
            && bytes.chunks(SECTOR_BYTES).all(written))
    }

    /// Whether the block at a position is all zeros.
    pub(crate) fn is_zero(&mut self, at: u64) -> io::Result<bool> {
        Ok(self.window.get(at, BLOCK_BYTES)?.iter().all(|byte| *byte == 0))
    }

    /// Looks, block by block, for a frame header of this file at or behind `from`. Such a frame was only ever
    /// submitted after the sync of all in front of it. Also says whether anything but zeros was seen.
    pub(crate) fn find(&mut self, from: u64) -> io::Result<(Option<(u64, FrameHeader)>, bool)> {
        let mut at = from;
        let mut non_zero = false;
        while at < self.window.end {
            let block = self.window.get(at, BLOCK_BYTES)?;
            if block.is_empty() {
                break;
            }
            if let Some((header, _)) = FrameHeader::decode(&block).filter(|(h, _)| self.identity.owns(h, at))
            {
                return Ok((Some((at, header)), true));
            }
            non_zero |= block.iter().any(|byte| *byte != 0);
            at += BLOCK_BYTES;
        }
        Ok((None, non_zero))
    }
}

impl ScannedFrame {
    fn body(&self, entry: &EntryHeader) -> Option<Bytes> {
        let from = entry.body_at as usize;
        let to = from + entry.batch_bytes() as usize;
        (to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }

    fn has_sound_bodies(&self) -> bool {
        self.entries.iter().all(|entry| self.is_sound(entry))
    }

    fn is_sound(&self, entry: &EntryHeader) -> bool {
        self.body(entry).is_some_and(|body| {
            let head = body.get(..BATCH_HEAD_BYTES) == Some(&entry.head[..]);
            head && entry_of(entry, &body).is_some_and(|entry| entry.header.check_crc(&entry.tail).is_ok())
        })
    }

    /// An entry of the frame; none when its body is damaged.
    pub(crate) fn entry(&self, entry: &EntryHeader) -> Option<Entry> {
        self.is_sound(entry).then(|| entry_of(entry, &self.body(entry)?)).flatten()
    }

    /// The entries in decision order; the bodies were read and checked.
    pub(crate) fn into_entries(self) -> Vec<Entry> {
        let entries = self.entries.iter().map(|entry| {
            let body = self.body(entry).expect("the bodies were checked");
            entry_of(entry, &body).expect("the bodies were checked")
        });
        entries.collect()
    }
}

/// The entry, when the body's header agrees with the entry header.
fn entry_of(entry: &EntryHeader, body: &Bytes) -> Option<Entry> {
    let header = BatchHeader::parse(body).ok()?;
    let agrees =
        header.last_offset_delta == entry.last_offset_delta && header.max_timestamp == entry.max_timestamp;
    let tail = body.slice(BATCH_HEAD_BYTES..);
    agrees.then_some(Entry { kind: entry.kind, partition: entry.partition, header, tail })
}

/// The index of a file, from its frames.
pub(crate) struct Rebuilt {
    pub(crate) extents: FileExtents,
    /// Shard time of its newest frame, milliseconds.
    pub(crate) appended: i64,
    /// Where it could not be read from the frames.
    pub(crate) damage: Vec<(u64, &'static str)>,
}

/// The index of a sealed file from its frames. Damaged places are passed over and named; what they held is missing.
pub(crate) fn rebuild(file: &Arc<dyn File>, shard_id: u32, seal: &Seal) -> io::Result<Rebuilt> {
    let mut rebuilt = rebuild_once(file.clone(), shard_id, seal)?;
    for _ in 1..READINGS {
        if !rebuilt.damage.is_empty() {
            rebuilt = rebuild_once(file.clone(), shard_id, seal)?;
        }
    }
    Ok(rebuilt)
}

fn rebuild_once(file: Arc<dyn File>, shard_id: u32, seal: &Seal) -> io::Result<Rebuilt> {
    let mut rebuilt = Rebuilt { extents: FileExtents::new(), appended: i64::MIN, damage: Vec::new() };
    let identity = Identity { shard_id, file: seal.file, nonce: seal.nonce, epoch: None };
    let mut scanner = Scanner::new(file, identity, seal, seal.length);
    // Where the file's sequence begins does not matter for an index: the first frame says.
    let (first, _) = scanner.find(BLOCK_BYTES)?;
    if let Some((_, header)) = &first {
        scanner.jump(BLOCK_BYTES, header);
    }
    loop {
        match scanner.step(Bodies::Skip)? {
            Step::End => return Ok(rebuilt),
            Step::Frame(frame) => {
                rebuilt.appended = rebuilt.appended.max(frame.header.shard_time);
                for (partition, extent) in frame::extents(seal.file, &frame.entries, frame.header.at) {
                    rebuilt.extents.entry(partition).or_default().push(extent);
                }
            }
            Step::Bad(what) => {
                rebuilt.damage.push((scanner.at, what));
                let Some((at, header)) = scanner.find(scanner.at + BLOCK_BYTES)?.0 else {
                    return Ok(rebuilt);
                };
                scanner.jump(at, &header);
            }
        }
    }
}

/// One partition's extents of a sealed file, from its frames.
pub(crate) fn partition_extents(
    shared: &Shared,
    file: &Arc<dyn File>,
    seal: &Seal,
    partition: &TopicIdPartition,
) -> io::Result<Vec<Extent>> {
    let mut rebuilt = rebuild(file, shared.options.shard_id, seal)?;
    Ok(rebuilt.extents.remove(partition).unwrap_or_default())
}
