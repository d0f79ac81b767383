//! The faults a simulated disk can have, when they fire, and how often each has fired.
//!
//! A fault fires by rate (so many times in a million of the operations it applies to, on files whose name begins
//! with a prefix) or once, at the next operation it applies to.

use std::fmt;

/// A fault, or an outcome of a crash. The order is the order of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Fault {
    /// A write fails (EIO) and nothing of it is in the file.
    WriteError,
    /// A write fails (EIO) after some of its first bytes went into the file.
    WriteErrorPartial,
    /// A write writes less than asked and says so.
    ShortWrite,
    /// A write fails for want of space (ENOSPC), after some of its first bytes or none.
    NoSpaceWrite,
    /// A file cannot be created for want of space (ENOSPC).
    NoSpaceCreate,
    /// A sync fails (EIO) once; the dirty pages are clean afterwards, and some or all of them were not written:
    /// the page cache shows the new data, the disk has the old. The next sync succeeds.
    SyncError,
    /// A sync of the folder fails (EIO).
    DirSyncError,
    /// A sync takes 1 ms to 10 s of virtual time.
    SlowSync,
    /// A read fails (EIO).
    ReadError,
    /// A read gives one wrong bit; the next one may be right.
    BitFlipRead,
    /// A block of what a read gives is as it was before it was written: zeros. The next read may be right.
    StaleRead,
    /// A block of what a read gives is another one of the folder. The next read may be right.
    MisdirectedRead,
    /// At a crash one bit of a file changes for good.
    BitFlipRest,
    /// A power cut.
    PowerCut,
    /// The process is killed; the page cache stays.
    ProcessKill,
    /// A power cut kept an unsynced write.
    CutKept,
    /// A power cut lost an unsynced write.
    CutDropped,
    /// A power cut kept some sectors of 512 bytes of an unsynced write.
    CutTorn512,
    /// A power cut kept some sectors of 4 KiB of an unsynced write.
    CutTorn4096,
    /// A power cut applied the unsynced writes of a file in another order.
    CutReordered,
    /// A power cut left a file at another length than what its kept writes need (zeros inside, or cut short).
    CutLength,
    /// A power cut kept an unsynced creation, renaming or removal.
    CutNameKept,
    /// A power cut lost an unsynced creation, renaming or removal.
    CutNameLost,
}

impl Fault {
    /// Every fault, in the order of the counters.
    pub const ALL: [Self; 23] = [
        Self::WriteError,
        Self::WriteErrorPartial,
        Self::ShortWrite,
        Self::NoSpaceWrite,
        Self::NoSpaceCreate,
        Self::SyncError,
        Self::DirSyncError,
        Self::SlowSync,
        Self::ReadError,
        Self::BitFlipRead,
        Self::StaleRead,
        Self::MisdirectedRead,
        Self::BitFlipRest,
        Self::PowerCut,
        Self::ProcessKill,
        Self::CutKept,
        Self::CutDropped,
        Self::CutTorn512,
        Self::CutTorn4096,
        Self::CutReordered,
        Self::CutLength,
        Self::CutNameKept,
        Self::CutNameLost,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteError => "write error",
            Self::WriteErrorPartial => "write error after some bytes",
            Self::ShortWrite => "short write",
            Self::NoSpaceWrite => "no space at a write",
            Self::NoSpaceCreate => "no space at a creation",
            Self::SyncError => "sync error, pages clean and wrong",
            Self::DirSyncError => "folder sync error",
            Self::SlowSync => "slow sync",
            Self::ReadError => "read error",
            Self::BitFlipRead => "bit flip on a read",
            Self::StaleRead => "stale read",
            Self::MisdirectedRead => "misdirected read",
            Self::BitFlipRest => "bit flip at rest",
            Self::PowerCut => "power cut",
            Self::ProcessKill => "process killed",
            Self::CutKept => "cut: write kept",
            Self::CutDropped => "cut: write dropped",
            Self::CutTorn512 => "cut: write torn at 512 B",
            Self::CutTorn4096 => "cut: write torn at 4 KiB",
            Self::CutReordered => "cut: writes reordered",
            Self::CutLength => "cut: other length",
            Self::CutNameKept => "cut: name kept",
            Self::CutNameLost => "cut: name lost",
        })
    }
}

/// A fault that fires at random.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Which.
    pub fault: Fault,
    /// How often, in a million of the operations (for `BitFlipRest`: of files at a crash) it applies to.
    pub per_million: u32,
    /// Only on files whose name begins so; empty for all. Not looked at by `DirSyncError`.
    pub prefix: String,
}

/// Which faults fire at random. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Each is drawn by itself, in this order; the first that fires wins.
    pub rates: Vec<Rate>,
}

impl FaultPlan {
    /// Adds a fault that applies to all files.
    #[must_use]
    pub fn with(self, fault: Fault, per_million: u32) -> Self {
        self.with_prefix(fault, per_million, "")
    }

    /// Adds a fault that applies to files whose name begins with `prefix`.
    #[must_use]
    pub fn with_prefix(mut self, fault: Fault, per_million: u32, prefix: &str) -> Self {
        self.rates.push(Rate { fault, per_million, prefix: prefix.to_owned() });
        self
    }
}

/// How often each fault has fired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    counts: [u64; Fault::ALL.len()],
}

impl FaultCounts {
    /// How often this one has.
    pub fn get(&self, fault: Fault) -> u64 {
        self.counts[fault as usize]
    }

    /// Counts one.
    pub fn count(&mut self, fault: Fault) {
        self.counts[fault as usize] += 1;
    }

    /// Adds what another disk counted.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.counts.iter_mut().zip(other.counts) {
            *sum += more;
        }
    }

    /// Every fault with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.iter().map(|fault| (*fault, self.get(*fault)))
    }
}
