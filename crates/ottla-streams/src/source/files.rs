//! Text logs as a source: one record per line, through rotation by renaming.
//!
//! A log is a path (`/var/log/app.log`) and its older generations beside it (`app.log.1`, `app.log-20261129`). A
//! position says which file (device, inode, and a checksum of its first bytes, at most 1 KiB of what was read), and
//! the byte behind the last whole line. A file that was renamed is the same file: it is read to its end, then the next
//! younger one is read, up to the path itself.
//!
//! What is exactly once: any number of rotations by renaming, also while nobody reads, as long as a generation is not
//! deleted before it was read. What is not, and is counted: a file that became shorter or has other first bytes
//! (`copytruncate`) is taken for a new generation; a generation that is gone loses what was unread. Lines that a
//! writer adds to a renamed file later than the grace (default 5 s without growth) are not read.
//!
//! A last line without line end counts as a line when its file was renamed. Compressed generations are not read.
//! Place in the walk: a [`Source`]; [`super::runner`] does the rest.

mod position;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use ottla_client::Header;
use ottla_env::files::{self, FileFacts, FileIdentity};

use super::{Piece, Position, Reader, Source, SourceError, SourceId, SourceRecord};
use position::FilePosition;

/// First bytes of a file that are compared.
const HEAD_BYTES_MAX: usize = 1024;
/// Names of older generations that are not text.
const COMPRESSED: [&str; 5] = ["gz", "xz", "zst", "bz2", "lz4"];
/// Header of a record that is the beginning or middle of a line longer than the limit.
pub const CONTINUED_HEADER: &str = "ottla.line.continued";

/// Settings of a file source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilesSettings {
    /// The logs.
    pub paths: Vec<PathBuf>,
    /// How long a renamed file must not have grown before the next one is read; default 5 s.
    pub rotated_grace: Duration,
    /// A longer line becomes several records, all but the last with [`CONTINUED_HEADER`]; default 1 MiB, at least 1.
    pub line_bytes_max: usize,
}

impl LogFilesSettings {
    /// With the defaults.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, rotated_grace: Duration::from_secs(5), line_bytes_max: 1 << 20 }
    }
}

/// What happened to files that is not exactly once. Shared with the source.
#[derive(Debug, Default)]
pub struct LogFilesCounts {
    /// Files that became shorter or got other first bytes.
    pub replaced: AtomicU64,
    /// Generations that were gone before they were known to be read to their end.
    pub lost: AtomicU64,
    /// Rotations that were followed.
    pub rotated: AtomicU64,
}

/// The source.
#[derive(Debug)]
pub struct LogFiles {
    settings: LogFilesSettings,
    counts: Arc<LogFilesCounts>,
}

impl LogFiles {
    /// For these logs.
    pub fn new(settings: LogFilesSettings) -> Self {
        Self { settings, counts: Arc::default() }
    }

    /// The counts.
    pub fn counts(&self) -> Arc<LogFilesCounts> {
        Arc::clone(&self.counts)
    }
}

fn retriable(path: &Path) -> impl Fn(io::Error) -> SourceError + '_ {
    move |error| SourceError::Retriable { id: path.display().to_string(), reason: error.to_string() }
}

impl Source for LogFiles {
    fn partitions(&mut self) -> Result<Vec<SourceId>, SourceError> {
        Ok(self.settings.paths.iter().map(|path| SourceId(path.display().to_string())).collect())
    }

    fn open(&mut self, id: &SourceId, from: Option<&Position>) -> Result<Box<dyn Reader>, SourceError> {
        let path = self.settings.paths.iter().find(|path| path.display().to_string() == id.0);
        let path = path.ok_or_else(|| SourceError::Setup {
            id: id.0.clone(),
            reason: "it is not among the paths of the settings".to_owned(),
        })?;
        let from = match from {
            None => None,
            Some(position) => Some(
                FilePosition::decode(&position.0)
                    .map_err(|error| SourceError::Position { id: id.0.clone(), reason: error.to_string() })?,
            ),
        };
        Ok(Box::new(LogReader {
            path: path.clone(),
            settings: self.settings.clone(),
            counts: Arc::clone(&self.counts),
            from,
            open: None,
            buffer: Vec::new(),
            quiet: None,
        }))
    }
}

/// A file of a log.
#[derive(Clone, Debug)]
struct Generation {
    path: PathBuf,
    facts: FileFacts,
    is_live: bool,
}

/// Which of two generations with the same time is older: `.2` before `.1`, dates as they are.
fn name_order(path: &Path) -> (i64, String) {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let number: Option<i64> = name.rsplit(['.', '-']).next().and_then(|end| end.parse().ok());
    match number {
        Some(number) if number < 100_000 => (-number, name),
        _ => (i64::MIN, name),
    }
}

/// All files of a log, oldest first; the live one, where it is there, last.
fn generations(live: &Path) -> io::Result<Vec<Generation>> {
    let name = live.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = match live.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    for path in files::list_folder(folder)? {
        let other = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Some(rest) = other.strip_prefix(&name) else { continue };
        let compressed = path.extension().is_some_and(|end| COMPRESSED.iter().any(|known| end == *known));
        if compressed || !(rest.is_empty() || rest.starts_with(['.', '-'])) {
            continue;
        }
        match files::facts(&path) {
            Ok(facts) if facts.is_file => found.push(Generation { path, facts, is_live: rest.is_empty() }),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // renamed meanwhile
            Err(error) => return Err(error),
        }
    }
    found.sort_by_cached_key(|generation| {
        (generation.is_live, generation.facts.modified_ns, name_order(&generation.path))
    });
    Ok(found)
}

fn head_of(file: &File, bytes: usize) -> io::Result<u64> {
    let mut head = vec![0; bytes];
    let read = files::read_at(file, &mut head, 0)?;
    Ok(checksum(CrcAlgorithm::Crc64Nvme, &head[..read]))
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    position: FilePosition,
}

/// How long a renamed file has been as long as it is.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    bytes: u64,
    since: Duration,
}

/// A log that is open.
#[derive(Debug)]
struct LogReader {
    path: PathBuf,
    settings: LogFilesSettings,
    counts: Arc<LogFilesCounts>,
    /// Where to begin; taken by the first read.
    from: Option<FilePosition>,
    open: Option<OpenFile>,
    buffer: Vec<u8>,
    quiet: Option<Quiet>,
}

/// What is in a file from its position on.
enum Next {
    Piece(Piece),
    /// No whole line yet; so many bytes behind the position.
    Partial(usize),
}

impl Reader for LogReader {
    fn read(&mut self, now: Duration, bytes_max: usize) -> Result<Option<Piece>, SourceError> {
        let path = self.path.clone();
        self.advance(now, bytes_max).map_err(retriable(&path))
    }
}

impl LogReader {
    fn advance(&mut self, now: Duration, bytes_max: usize) -> io::Result<Option<Piece>> {
        if self.open.is_none() && !self.begin()? {
            return Ok(None);
        }
        match self.lines(bytes_max, false)? {
            Next::Piece(piece) => Ok(Some(piece)),
            Next::Partial(rest) => self.at_end(now, rest),
        }
    }

    fn open_at(&mut self, generation: &Generation, position: FilePosition) -> io::Result<()> {
        let file = files::open_read(&generation.path)?;
        if files::facts_of_open(&file)?.identity != generation.facts.identity {
            return Err(io::Error::other("it was renamed while it was opened")); // tried again
        }
        self.open = Some(OpenFile { file, position });
        self.quiet = None;
        Ok(())
    }

    /// Opens the file of the position, or the oldest one. `false`: there is none yet.
    fn begin(&mut self) -> io::Result<bool> {
        let all = generations(&self.path)?;
        let Some(from) = self.from.clone() else {
            let Some(first) = all.first() else { return Ok(false) };
            return self.open_at(first, FilePosition::at_start(&first.facts, 0)).map(|()| true);
        };
        if let Some(known) = all.iter().find(|found| found.facts.identity == from.identity()) {
            let file = files::open_read(&known.path)?;
            if known.facts.bytes >= from.offset && head_of(&file, from.head_bytes())? == from.head {
                return self.open_at(known, from).map(|()| true);
            }
            self.counts.replaced.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(path = %known.path.display(), "a log was replaced in place and is read from its beginning");
        }
        // The file is gone. Whatever was written later than what was read last has not been read.
        let later = all.iter().find(|found| found.facts.modified_ns >= from.modified_ns);
        let Some(next) = later.or(all.last()) else { return Ok(false) };
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(path = %self.path.display(), next = %next.path.display(), "the log that was read is gone");
        self.open_at(next, FilePosition::at_start(&next.facts, from.generation + 1)).map(|()| true)
    }

    /// Whole lines from the position on. `all`: the rest counts as a line too.
    fn lines(&mut self, bytes_max: usize, all: bool) -> io::Result<Next> {
        let limit = self.settings.line_bytes_max.max(1);
        let open = self.open.as_mut().expect("opened before");
        self.buffer.resize(bytes_max.max(limit + 1), 0);
        let read = files::read_at(&open.file, &mut self.buffer, open.position.offset)?;
        let (mut rest, mut records) = (&self.buffer[..read], VecDeque::new());
        loop {
            let window = &rest[..rest.len().min(limit + 1)];
            let (line, taken, continued) = match window.iter().position(|byte| *byte == b'\n') {
                Some(end) => (&window[..end], end + 1, false),
                None if window.len() > limit => (&window[..limit], limit, true),
                None if all && !window.is_empty() => (window, window.len(), false),
                None => break,
            };
            let line = if continued { line } else { line.strip_suffix(b"\r").unwrap_or(line) };
            records.push_back(self.settings.record(&self.path, line, continued));
            rest = &rest[taken..];
        }
        if records.is_empty() {
            return Ok(Next::Partial(rest.len()));
        }
        let offset = open.position.offset + (read - rest.len()) as u64;
        open.position.move_to(offset, &open.file)?;
        self.quiet = None;
        Ok(Next::Piece(Piece { records: records.into(), position: open.position.to_position() }))
    }

    /// The file has no more whole lines: it is the live one, or was renamed, or was replaced.
    fn at_end(&mut self, now: Duration, rest: usize) -> io::Result<Option<Piece>> {
        let open = self.open.as_ref().expect("opened before");
        let (facts, identity) = (files::facts_of_open(&open.file)?, open.position.identity());
        if facts.bytes < open.position.offset {
            self.counts.replaced.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(path = %self.path.display(), "a log was cut and is read from its beginning");
            let open = self.open.as_mut().expect("opened before");
            open.position = FilePosition::at_start(&facts, open.position.generation + 1);
            return Ok(None);
        }
        let all = generations(&self.path)?;
        if all.iter().any(|found| found.is_live && found.facts.identity == identity) {
            self.quiet = None;
            return Ok(None);
        }
        let Some(next) = next_after(&all, &facts) else { return Ok(None) }; // renamed, and no new one yet
        match self.quiet {
            Some(quiet) if quiet.bytes == facts.bytes => {
                if now.saturating_sub(quiet.since) < self.settings.rotated_grace {
                    return Ok(None);
                }
            }
            _ => {
                self.quiet = Some(Quiet { bytes: facts.bytes, since: now });
                if !self.settings.rotated_grace.is_zero() {
                    return Ok(None);
                }
            }
        }
        if rest > 0
            && let Next::Piece(piece) = self.lines(rest, true)?
        {
            return Ok(Some(piece));
        }
        self.counts.rotated.fetch_add(1, Ordering::Relaxed);
        let generation = self.open.as_ref().map_or(0, |open| open.position.generation);
        let position = FilePosition::at_start(&next.facts, generation + 1);
        let moved = position.to_position();
        self.open_at(&next, position)?;
        Ok(Some(Piece { records: Vec::new(), position: moved }))
    }
}

/// The generation that follows a file that is not the live one any more.
fn next_after(all: &[Generation], facts: &FileFacts) -> Option<Generation> {
    match all.iter().position(|found| found.facts.identity == facts.identity) {
        Some(at) => all.get(at + 1).cloned(),
        // Deleted while we read it: everything older was deleted before.
        None => all.iter().find(|found| found.facts.modified_ns >= facts.modified_ns).cloned(),
    }
}

impl LogFilesSettings {
    fn record(&self, path: &Path, line: &[u8], continued: bool) -> SourceRecord {
        let header = || Header { key: CONTINUED_HEADER.into(), value: None };
        SourceRecord {
            key: Some(Bytes::from(path.display().to_string())),
            value: Some(Bytes::copy_from_slice(line)),
            headers: continued.then(header).into_iter().collect(),
            ..SourceRecord::default()
        }
    }
}
