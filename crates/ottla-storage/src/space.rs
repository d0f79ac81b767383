//! Room kept for a full disk, and how much of it is left.
//!
//! Some files of zeros (`reserve-N.tmp`), as large as files of the log, are kept beside it, and a smaller one
//! (`reserve-slack.tmp`) for the next snapshot. As long as the disk has room nobody touches them. When it has none the
//! log takes them one after the other, so that what must go on (ends of transactions, deletes, retention, snapshots)
//! does go on until room is made. The marks say how far it has come; what is refused at which mark is the caller's.
//!
//! Invariants: a mark is set when room was asked for and there was none, not by a guess from free bytes; it is taken
//! back when the file ahead and the whole reserve are there again. Files of the reserve hold nothing: whoever finds one
//! may use or remove it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ottla_env::disk::{Disk, File};

use crate::prepare::{self, Prepared, discard};
use crate::shared::Shared;

/// Room for snapshots that is kept at least, bytes.
const SLACK_BYTES_MIN: u64 = 1 << 20;
/// When so much cannot be had the slack is left out.
const SLACK_BYTES_LEAST: u64 = 64 << 10;
const SLACK_NAME: &str = "reserve-slack.tmp";

/// How much room the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// The disk has room.
    #[default]
    Enough,
    /// Mark 1: the disk is full, only the reserve is left.
    ReserveOnly,
    /// Mark 2: half of the reserve is gone too.
    HalfReserve,
}

/// Shows how much room an opening of the log has; cheap to clone, used from any thread.
#[derive(Clone)]
pub struct SpaceWatch(pub(crate) Arc<Shared>);

impl SpaceWatch {
    /// As last seen.
    pub fn now(&self) -> Space {
        self.0.space.now()
    }
}

/// What is kept. Behind a lock of `Shared`.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// Names of whole files, each as large as a file of the log.
    files: Vec<String>,
    next: u64,
    /// Whether the file for snapshots is there.
    slack: bool,
    /// Bytes of the newest snapshot.
    snapshot_bytes: u64,
    /// Room was asked for and there was none, and since then not all is there again.
    is_short: bool,
}

/// The mark.
#[derive(Debug, Default)]
pub(crate) struct SpaceMark(AtomicU8);

impl SpaceMark {
    pub(crate) fn now(&self) -> Space {
        match self.0.load(Ordering::Acquire) {
            0 => Space::Enough,
            1 => Space::ReserveOnly,
            _ => Space::HalfReserve,
        }
    }

    fn set(&self, space: Space) -> Space {
        let before = self.now();
        self.0.store(space as u8, Ordering::Release);
        before
    }
}

/// Whether a name is one of the reserve's.
pub(crate) fn is_reserve(name: &str) -> bool {
    name == SLACK_NAME || number_of(name).is_some()
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("reserve-")?.strip_suffix(".tmp")?.parse().ok()
}

/// Whether an error says that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Reserve {
    /// What an opening finds: files that are whole and wanted stay, others go. A file that was prepared ahead by an
    /// opening that was killed counts as one more: on a full disk its room would be lost to others.
    pub(crate) fn found(disk: &dyn Disk, names: &[String], file_bytes: u64, wanted: usize) -> Self {
        let mut reserve = Self::default();
        let wanted = if wanted > 0 { wanted + 1 } else { 0 };
        for name in names {
            let bytes = disk.open(name).and_then(|file| file.len()).unwrap_or(0);
            match number_of(name) {
                Some(number) if bytes == file_bytes && reserve.files.len() < wanted => {
                    reserve.next = reserve.next.max(number + 1);
                    reserve.files.push(name.clone());
                }
                None if prepare::is_ahead(name) && bytes == file_bytes && reserve.files.len() < wanted => {
                    reserve.files.push(name.clone());
                }
                None if name == SLACK_NAME && bytes >= SLACK_BYTES_LEAST && wanted > 0 => {
                    reserve.slack = true
                }
                _ => discard(disk, name),
            }
        }
        reserve
    }
}

impl Shared {
    /// There was no room for something that was wanted: the mark is set.
    pub(crate) fn room_is_short(&self) {
        self.reserve().is_short = true;
        self.look_at_space(false);
    }

    /// Takes a file of the reserve for the log: its name and the open file, zeros throughout.
    pub(crate) fn take_from_reserve(&self) -> Option<(String, Arc<dyn File>)> {
        let name = self.reserve().files.pop()?;
        self.room_is_short();
        match self.disk.open(&name) {
            Ok(file) => Some((name, file)),
            Err(error) => {
                tracing::warn!(name, %error, "a file of the reserve cannot be opened");
                None
            }
        }
    }

    /// A file that an opening before this one has prepared ahead and that is not needed in the reserve.
    pub(crate) fn spare_ahead(&self) -> Option<Prepared> {
        let name = {
            let mut reserve = self.reserve();
            if reserve.files.len() <= self.options.reserve_files {
                return None;
            }
            let at = reserve.files.iter().position(|name| prepare::is_ahead(name))?;
            reserve.files.remove(at)
        };
        match self.disk.open(&name) {
            Ok(file) => Some(Prepared { name, file, bytes: self.options.file_bytes }),
            Err(error) => {
                tracing::warn!(name, %error, "a file prepared ahead cannot be opened");
                None
            }
        }
    }

    /// Makes what is missing of the reserve, one file at a time; says whether it made one.
    pub(crate) fn fill_reserve(&self) -> bool {
        let wanted = self.options.reserve_files;
        let (held, number) = {
            let reserve = self.reserve();
            (reserve.files.len(), reserve.next)
        };
        if held < wanted {
            let name = format!("reserve-{number:010}.tmp");
            self.reserve().next += 1;
            return match self.make(&name, self.options.file_bytes) {
                Ok(()) => {
                    self.reserve().files.push(name);
                    true
                }
                Err(error) => {
                    if is_full(&error) {
                        self.room_is_short();
                    }
                    tracing::debug!(%error, "the reserve is not whole");
                    false
                }
            };
        }
        wanted > 0 && !self.reserve().slack && self.fill_slack()
    }

    /// As much as can be had: a smaller one is better than none.
    fn fill_slack(&self) -> bool {
        let mut bytes = self.slack_bytes();
        while bytes >= SLACK_BYTES_LEAST {
            match self.make(SLACK_NAME, bytes) {
                Ok(()) => {
                    self.reserve().slack = true;
                    return true;
                }
                Err(error) if is_full(&error) => bytes /= 2,
                Err(error) => {
                    tracing::debug!(%error, "no room is kept for snapshots");
                    return false;
                }
            }
        }
        false
    }

    fn slack_bytes(&self) -> u64 {
        (self.reserve().snapshot_bytes / 4 * 5).max(SLACK_BYTES_MIN)
    }

    fn make(&self, name: &str, bytes: u64) -> io::Result<()> {
        let made = self.disk.create(name).and_then(|file| file.allocate(bytes));
        if made.is_err() {
            discard(&*self.disk, name);
        }
        made
    }

    /// A snapshot is about to be written: on a full disk its room is given free.
    pub(crate) fn make_room_for_snapshot(&self) {
        let short = match self.disk.free_bytes() {
            Ok(free) => free < self.slack_bytes(),
            Err(_) => self.space.now() != Space::Enough,
        };
        if short && std::mem::take(&mut self.reserve().slack) {
            discard(&*self.disk, SLACK_NAME);
        }
    }

    /// The newest snapshot has so many bytes.
    pub(crate) fn snapshot_written(&self, bytes: u64) {
        self.reserve().snapshot_bytes = bytes;
    }

    /// Sets the mark anew. `is_ready`: whether the file ahead is there.
    pub(crate) fn look_at_space(&self, is_ready: bool) {
        let wanted = self.options.reserve_files;
        let space = {
            let mut reserve = self.reserve();
            if is_ready && reserve.files.len() >= wanted {
                reserve.is_short = false;
            }
            match (reserve.is_short, reserve.files.len() * 2 <= wanted) {
                (false, _) => Space::Enough,
                (true, false) => Space::ReserveOnly,
                (true, true) => Space::HalfReserve,
            }
        };
        let before = self.space.set(space);
        if before != space {
            match space {
                Space::Enough => tracing::info!("the disk has room again"),
                Space::ReserveOnly => tracing::error!("the disk is full: only the log's reserve is left"),
                Space::HalfReserve => {
                    tracing::error!("the disk is full, and half of the log's reserve is gone")
                }
            }
        }
    }
}
