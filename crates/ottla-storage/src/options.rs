//! What the log is given: sizes, bounds, durability, nonces; and the small ids it hands out.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of a file of the log; grows by one per file, from 1, never reused. 0 stands for "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

impl FileId {
    /// The file's name in the folder: 20 digits, so that names sort like ids.
    pub fn file_name(self) -> String {
        format!("{:020}.log", self.0)
    }

    /// The id in a file's name, if it is one of the log's.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let digits = name.strip_suffix(".log")?;
        let all_digits = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
        if all_digits { digits.parse().ok().map(Self) } else { None }
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
        if self.open_files_max == 0 {
            return Some("open_files_max must be at least 1");
        }
        None
    }
}
