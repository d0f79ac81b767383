//! What the log is given: sizes, bounds, durability, nonces; and the small ids it hands out.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of a file of the log; grows by one per file, from 1, never reused. 0 stands for "none". Files that were
/// rewritten for readers count on their own and have the highest bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Set in the ids of rewritten files.
const DATA_BIT: u64 = 1 << 63;

impl FileId {
    /// The rewritten file with this number.
    pub(crate) fn data(number: u64) -> Self {
        Self(number | DATA_BIT)
    }

    /// Whether it is a rewritten file: data for readers, never input of replay.
    pub fn is_data(self) -> bool {
        self.0 & DATA_BIT != 0
    }

    /// Its number among the files of its kind.
    pub fn number(self) -> u64 {
        self.0 & !DATA_BIT
    }

    /// The file's name in the folder: 20 digits, so that names sort like ids.
    pub fn file_name(self) -> String {
        format!("{:020}.{}", self.number(), if self.is_data() { "data" } else { "log" })
    }

    /// The id in a file's name, if it is one of the log's.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let (digits, kind) = name.split_once('.')?;
        let all_digits = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|number| all_digits && number & DATA_BIT == 0)?;
        match kind {
            "log" => Some(Self(number)),
            "data" => Some(Self::data(number)),
            _ => None,
        }
    }
}

/// Number of a frame; grows by one per frame over all files and epochs, from 1. 0 stands for "before the first".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameSequence(pub u64);

/// When an append returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After fdatasync: what was acknowledged survives a power cut.
    #[default]
    Fsync,
    /// After the write: what was acknowledged survives a kill of the process, not a power cut. For comparisons;
    /// must be asked for.
    Os,
}

/// Where file nonces come from: 64 random bits each, never shown to clients. The caller owns the randomness.
#[derive(Clone)]
pub struct Nonces(Arc<Mutex<dyn FnMut() -> u64 + Send>>);

impl Nonces {
    /// Takes a source of random numbers.
    pub fn new(source: impl FnMut() -> u64 + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(source)))
    }

    pub(crate) fn draw(&self) -> u64 {
        // A panic inside the source leaves nothing half done here.
        (self.0.lock().unwrap_or_else(PoisonError::into_inner))()
    }
}

impl fmt::Debug for Nonces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonces")
    }
}

/// The end of what is known to be durable, taken from a writer and given to the next `open` in the same process:
/// bytes behind it are never believed (Linux marks pages clean after a failed sync).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableEnd {
    /// The file in use.
    pub file: FileId,
    /// Its durable length in bytes.
    pub length: u64,
    /// The last durable frame.
    pub frame_sequence: FrameSequence,
}

/// When files are dropped and rewritten. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelsOptions {
    /// Whether files are rewritten; without, only files that hold nothing alive are dropped. Default false.
    pub rewrite: bool,
    /// Size of a rewritten file. 16 KiB to 2 GiB; default 512 MiB.
    pub data_file_bytes: u64,
    /// Files of the log are looked at together, as a run, once they are so many bytes. Default 4 GiB.
    pub run_bytes: u64,
    /// Or once the oldest is older than this, milliseconds. Default 10 minutes.
    pub run_age_ms: i64,
    /// A run is rewritten when the mean of what lies together of one partition is shorter. Default 256 KiB.
    pub extent_bytes_min: u64,
    /// Or when partitions with other retention than most have more than this share of it, in percent. Default 10.
    pub mixed_percent: u64,
    /// Garbage is rewritten away when it is more than this share of all files that may be rewritten, in percent. Default
    /// 25.
    pub garbage_percent: u64,
}

impl LevelsOptions {
    /// Settled files below this are put together when there are many.
    pub(crate) fn small_file_bytes(&self) -> u64 {
        self.data_file_bytes / 16
    }
}

impl Default for LevelsOptions {
    fn default() -> Self {
        Self {
            rewrite: false,
            data_file_bytes: 512 << 20,
            run_bytes: 4 << 30,
            run_age_ms: 600_000,
            extent_bytes_min: 256 << 10,
            mixed_percent: 10,
            garbage_percent: 25,
        }
    }
}

/// Settings of a shard's log. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The shard whose log this is; a folder of another shard is refused. Default 0.
    pub shard_id: u32,
    /// Size at which a file is sealed and the next begun. A multiple of 4,096 from 16 KiB to 1 GiB; default 64 MiB.
    /// A larger frame gets a file of its own.
    pub file_bytes: u64,
    /// Largest frame, headers included: no decision may produce more. 64 KiB to 1 GiB; default 256 MiB.
    pub frame_bytes_max: u64,
    /// While no prepared file is ready the log grows its file in steps of this. 4 KiB to 64 MiB; default 1 MiB.
    pub growth_bytes: u64,
    /// Memory for the newest frames, from which tail reads are served; whole buffers are counted. Default 64 MiB.
    pub tail_bytes_max: usize,
    /// Files held open for reading, at least 1. Default 128.
    pub open_files_max: usize,
    /// Memory for the parts of footers in use. Default 16 MiB.
    pub footer_bytes_max: usize,
    /// When an append returns. Default `Fsync`.
    pub durability: Durability,
    /// Random numbers for file nonces.
    pub nonces: Nonces,
    /// A frame at the log's end that was written whole and is damaged now is not a torn write: it may have been
    /// acknowledged. Opening then fails, unless this says that the loss of that frame is accepted. Default false.
    pub accept_damaged_end: bool,
    /// When files are dropped and rewritten.
    pub levels: LevelsOptions,
    /// Files of `file_bytes` that are kept for a full disk. Default 0.
    pub reserve_files: usize,
    /// After a failed append in the same process: the dead writer's `LogWriter::durable_end`. Default none.
    pub durable_end: Option<DurableEnd>,
}

impl LogOptions {
    /// The defaults, with the given source of nonces.
    pub fn new(nonces: Nonces) -> Self {
        Self {
            shard_id: 0,
            file_bytes: 64 << 20,
            frame_bytes_max: 256 << 20,
            growth_bytes: 1 << 20,
            tail_bytes_max: 64 << 20,
            open_files_max: 128,
            footer_bytes_max: 16 << 20,
            durability: Durability::Fsync,
            nonces,
            accept_damaged_end: false,
            levels: LevelsOptions::default(),
            reserve_files: 0,
            durable_end: None,
        }
    }

    /// Why the settings are refused, if they are.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        if !(16 << 10..=1 << 30).contains(&self.file_bytes) || !self.file_bytes.is_multiple_of(4096) {
            return Some("file_bytes must be a multiple of 4096 from 16 KiB to 1 GiB");
        }
        if !(64 << 10..=1 << 30).contains(&self.frame_bytes_max) {
            return Some("frame_bytes_max must be from 64 KiB to 1 GiB");
        }
        if !(4 << 10..=64 << 20).contains(&self.growth_bytes) {
            return Some("growth_bytes must be from 4 KiB to 64 MiB");
        }
        if !(16 << 10..=2 << 30).contains(&self.levels.data_file_bytes) {
            return Some("data_file_bytes must be from 16 KiB to 2 GiB");
        }
        if self.open_files_max == 0 {
            return Some("open_files_max must be at least 1");
        }
        None
    }
}
