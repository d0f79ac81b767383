//! What each byte of a folder's files is, by docs/format.md: read anew here, so that a sweep can say which kind of place
//! it has tried.

use std::fmt;
use std::ops::Range;

const BLOCK: usize = 4096;

/// A kind of place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Region {
    FileHeader,
    HeaderFilling,
    FrameHeader,
    EntryHeader,
    Body,
    Filling,
    FooterDirectory,
    List,
    FooterTrailer,
    Zeros,
    SnapshotHeader,
    ChunkHeader,
    State,
    SnapshotTrailer,
    Other,
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FileHeader => "file header, both copies",
            Self::HeaderFilling => "filling behind a file header",
            Self::FrameHeader => "frame header",
            Self::EntryHeader => "entry header",
            Self::Body => "body",
            Self::Filling => "filling behind a frame",
            Self::FooterDirectory => "footer, directory",
            Self::List => "footer, lists",
            Self::FooterTrailer => "footer, trailer",
            Self::Zeros => "zeros behind the end",
            Self::SnapshotHeader => "header",
            Self::ChunkHeader => "chunk header",
            Self::State => "state",
            Self::SnapshotTrailer => "trailer",
            Self::Other => "all",
        })
    }
}

/// The kind of a file, by its name.
pub(super) fn kind_of(name: &str) -> &'static str {
    match name.rsplit_once('.') {
        Some((_, "log")) => "log file",
        Some((_, "data")) => "rewritten file",
        Some((_, "snapshot")) => "snapshot",
        Some((_, "tmp")) => "unfinished file",
        _ => "lock",
    }
}

/// The places of a file, in order; together they are all of it.
pub(super) fn regions(name: &str, bytes: &[u8]) -> Vec<(Range<usize>, Region)> {
    let mut found = Vec::new();
    match kind_of(name) {
        "log file" | "rewritten file" => log_file(bytes, &mut found),
        "snapshot" => snapshot(bytes, &mut found),
        _ => found.push((0..bytes.len(), Region::Other)),
    }
    found.retain(|(range, _)| !range.is_empty());
    found
}

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    let field = bytes.get(at..at + len).unwrap_or_default();
    field.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn log_file(bytes: &[u8], found: &mut Vec<(Range<usize>, Region)>) {
    let (length, mut at) = (bytes.len(), BLOCK.min(bytes.len()));
    for (range, region) in [
        (0..128, Region::FileHeader),
        (128..2048, Region::HeaderFilling),
        (2048..2176, Region::FileHeader),
        (2176..BLOCK, Region::HeaderFilling),
    ] {
        found.push((range.start.min(at)..range.end.min(at), region));
    }
    while bytes[at..].starts_with(b"OTFR") {
        let bodies = at + number(bytes, at + 12, 4);
        let end = at + number(bytes, at + 72, 8);
        let next = end.next_multiple_of(BLOCK).min(length);
        found.push((at..at + 128, Region::FrameHeader));
        found.push((at + 128..bodies, Region::EntryHeader));
        found.push((bodies..end, Region::Body));
        found.push((end..next, Region::Filling));
        at = next;
    }
    if bytes[at..].starts_with(b"OTFD") {
        let lists = at + 64 + 64 * number(bytes, at + 40, 4);
        found.push((at..lists, Region::FooterDirectory));
        found.push((lists..length - 64, Region::List));
        found.push((length - 64..length, Region::FooterTrailer));
    } else {
        found.push((at..length, Region::Zeros));
    }
}

fn snapshot(bytes: &[u8], found: &mut Vec<(Range<usize>, Region)>) {
    found.push((0..128, Region::SnapshotHeader));
    let mut at = 128;
    while bytes[at..].starts_with(b"OTSC") {
        let end = at + 16 + number(bytes, at + 4, 4);
        found.push((at..at + 16, Region::ChunkHeader));
        found.push((at + 16..end, Region::State));
        at = end;
    }
    found.push((at..bytes.len(), Region::SnapshotTrailer));
}
