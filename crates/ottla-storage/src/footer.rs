//! The footer of a sealed file: per partition its offset range and where its extents are listed.
//!
//! Derived data, written behind the sealed end off the acknowledged path, never evidence about the log: when any
//! part of it is missing or damaged, a scan of the frames takes its place. It begins at the sealed end:
//! directory (header, one entry per partition), then the extent lists, then a trailer at the very end of the file.

use bytes::{BufMut, BytesMut};
use ottla_env::disk::File;
use ottla_protocol::types::{TopicIdPartition, Uuid};

use crate::file_header::Seal;
use crate::index::{Extent, FileExtents, FileRange, FooterBlock};
use crate::layout::{FORMAT_VERSION, Fields, crc32c, is_known};
use crate::options::{FileId, FrameSequence};

const DIRECTORY_MAGIC: &[u8; 4] = b"OTFD";
const TRAILER_MAGIC: &[u8; 4] = b"OTFT";
const DIRECTORY_HEADER_BYTES: usize = 64;
const DIRECTORY_ENTRY_BYTES: usize = 64;
/// Bytes of one extent in a footer.
pub(crate) const EXTENT_ENTRY_BYTES: usize = 40;
const TRAILER_BYTES: usize = 64;
/// A directory of more than this is not believed (a file of 1 GiB holds no more partitions).
const DIRECTORY_BYTES_MAX: u64 = 1 << 30;

/// A footer's bytes and where each partition's extents will be.
pub(crate) struct EncodedFooter {
    pub(crate) bytes: BytesMut,
    pub(crate) blocks: Vec<(TopicIdPartition, FooterBlock)>,
}

/// What a footer's directory says.
pub(crate) struct Directory {
    /// What the file holds of each partition.
    pub(crate) ranges: Vec<(TopicIdPartition, FileRange)>,
    /// When the newest of it was appended, by shard time in milliseconds; none in files of version 1.
    pub(crate) appended: Option<i64>,
}

/// Lays out the footer of a file sealed at `seal.length`, whose newest batch was appended at `appended`.
pub(crate) fn encode(seal: &Seal, appended: i64, extents: &FileExtents) -> EncodedFooter {
    let directory_bytes = DIRECTORY_HEADER_BYTES + extents.len() * DIRECTORY_ENTRY_BYTES;
    let mut lists = BytesMut::new();
    let mut blocks = Vec::with_capacity(extents.len());
    for (partition, list) in extents {
        let begin = lists.len();
        for extent in list {
            lists.put_i64(extent.first_offset);
            lists.put_i64(extent.last_offset);
            lists.put_i64(extent.max_timestamp);
            lists.put_u32(u32::try_from(extent.position).expect("files end below 4 GiB"));
            lists.put_u32(extent.bytes);
            lists.put_u32(extent.heads_crc);
            lists.put_u32(0);
        }
        let position = seal.length + (directory_bytes + begin) as u64;
        let crc = crc32c(&lists[begin..]);
        blocks.push((*partition, FooterBlock { position, extents: list.len() as u32, crc }));
    }
    let mut out = BytesMut::with_capacity(directory_bytes + lists.len() + TRAILER_BYTES);
    out.put_slice(DIRECTORY_MAGIC);
    out.put_u16(FORMAT_VERSION);
    out.put_u16(0);
    out.put_u64(seal.file.0);
    out.put_u64(seal.nonce);
    out.put_u64(seal.length);
    out.put_u64(seal.last_sequence.0);
    out.put_u32(extents.len() as u32);
    out.put_i64(appended);
    out.put_bytes(0, DIRECTORY_HEADER_BYTES - out.len());
    for ((partition, block), list) in blocks.iter().zip(extents.values()) {
        let range = FileRange::of(seal.file, list).expect("no empty list is indexed");
        out.put_slice(&partition.topic_id.0);
        out.put_i32(partition.partition);
        out.put_u32(block.extents);
        out.put_u64(block.position);
        out.put_i64(range.first_offset);
        out.put_i64(range.last_offset);
        out.put_i64(range.max_timestamp);
        out.put_u32(block.crc);
        out.put_u32(u32::try_from(range.bytes).expect("files end below 4 GiB"));
    }
    let directory_crc = crc32c(&out);
    out.put_slice(&lists);
    let trailer_at = out.len();
    out.put_slice(TRAILER_MAGIC);
    out.put_u16(FORMAT_VERSION);
    out.put_u16(0);
    out.put_u64(seal.file.0);
    out.put_u64(seal.nonce);
    out.put_u64(seal.length);
    out.put_u64(directory_bytes as u64);
    out.put_u32(directory_crc);
    out.put_bytes(0, trailer_at + TRAILER_BYTES - 4 - out.len());
    let crc = crc32c(&out[trailer_at..]);
    out.put_u32(crc);
    EncodedFooter { bytes: out, blocks }
}

/// How a file ends, by its own footer, which is no evidence for replay; none when there is no sound one.
pub(crate) fn read_seal(file: &dyn File) -> std::io::Result<Option<Seal>> {
    let Some(trailer_at) = file.len()?.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, trailer_at)?;
    let fields = Fields(&trailer);
    let sound = &trailer[..4] == TRAILER_MAGIC
        && fields.u32(TRAILER_BYTES - 4) == crc32c(&trailer[..TRAILER_BYTES - 4])
        && fields.u64(24) + DIRECTORY_HEADER_BYTES as u64 <= trailer_at;
    if !sound {
        return Ok(None);
    }
    let mut directory = [0; DIRECTORY_HEADER_BYTES];
    file.read_exact_at(&mut directory, fields.u64(24))?;
    Ok(Some(Seal {
        file: FileId(fields.u64(8)),
        nonce: fields.u64(16),
        length: fields.u64(24),
        last_sequence: FrameSequence(Fields(&directory).u64(32)),
        last_header_crc: 0,
    }))
}

/// Reads the directory of a sealed file's footer; none when there is no sound one.
pub(crate) fn read_directory(file: &dyn File, seal: &Seal) -> std::io::Result<Option<Directory>> {
    let len = file.len()?;
    let Some(trailer_at) = len.checked_sub(TRAILER_BYTES as u64).filter(|at| *at >= seal.length) else {
        return Ok(None);
    };
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, trailer_at)?;
    let fields = Fields(&trailer);
    let directory_bytes = fields.u64(32);
    let sound = &trailer[..4] == TRAILER_MAGIC
        && is_known(fields.u16(4))
        && fields.u32(TRAILER_BYTES - 4) == crc32c(&trailer[..TRAILER_BYTES - 4])
        && (fields.u64(8), fields.u64(16), fields.u64(24)) == (seal.file.0, seal.nonce, seal.length)
        && directory_bytes <= DIRECTORY_BYTES_MAX
        && seal.length + directory_bytes <= trailer_at;
    if !sound {
        return Ok(None);
    }
    let mut directory = vec![0; directory_bytes as usize];
    file.read_exact_at(&mut directory, seal.length)?;
    if crc32c(&directory) != fields.u32(40) {
        return Ok(None);
    }
    Ok(decode_directory(&directory, seal, trailer_at))
}

fn decode_directory(directory: &[u8], seal: &Seal, trailer_at: u64) -> Option<Directory> {
    let header = Fields(directory.get(..DIRECTORY_HEADER_BYTES)?);
    let identity = (header.u64(8), header.u64(16), header.u64(24), header.u64(32));
    let expected = (seal.file.0, seal.nonce, seal.length, seal.last_sequence.0);
    let entries = directory.get(DIRECTORY_HEADER_BYTES..)?;
    let sound = &directory[..4] == DIRECTORY_MAGIC
        && identity == expected
        && entries.len() == header.u32(40) as usize * DIRECTORY_ENTRY_BYTES;
    if !sound {
        return None;
    }
    let ranges = entries
        .chunks_exact(DIRECTORY_ENTRY_BYTES)
        .map(|entry| decode_directory_entry(Fields(entry), seal.file, trailer_at))
        .collect::<Option<_>>()?;
    // Version 1 says neither when its batches were appended nor how many bytes they are.
    let appended = (header.u16(4) > 1).then(|| header.i64(44));
    Some(Directory { ranges, appended })
}

fn decode_directory_entry(
    fields: Fields<'_>,
    file: FileId,
    trailer_at: u64,
) -> Option<(TopicIdPartition, FileRange)> {
    let partition = TopicIdPartition { topic_id: Uuid(fields.array(0)), partition: fields.i32(16) };
    let block = FooterBlock { position: fields.u64(24), extents: fields.u32(20), crc: fields.u32(56) };
    let bytes = u64::from(block.extents) * EXTENT_ENTRY_BYTES as u64;
    let range = FileRange {
        file,
        first_offset: fields.i64(32),
        last_offset: fields.i64(40),
        max_timestamp: fields.i64(48),
        bytes: u64::from(fields.u32(60)),
        block: Some(block),
    };
    let sound = block.extents > 0
        && block.position.checked_add(bytes).is_some_and(|end| end <= trailer_at)
        && range.first_offset <= range.last_offset;
    sound.then_some((partition, range))
}

/// Reads one partition's extents; none when they are not what the directory says.
pub(crate) fn read_extents(file: &dyn File, block: &FooterBlock) -> std::io::Result<Option<Vec<Extent>>> {
    let mut bytes = vec![0; block.extents as usize * EXTENT_ENTRY_BYTES];
    match file.read_exact_at(&mut bytes, block.position) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    if crc32c(&bytes) != block.crc {
        return Ok(None);
    }
    let extents = bytes.chunks_exact(EXTENT_ENTRY_BYTES).map(|entry| {
        let fields = Fields(entry);
        Extent {
            first_offset: fields.i64(0),
            last_offset: fields.i64(8),
            max_timestamp: fields.i64(16),
            position: u64::from(fields.u32(24)),
            bytes: fields.u32(28),
            heads_crc: fields.u32(32),
        }
    });
    Ok(Some(extents.collect()))
}
