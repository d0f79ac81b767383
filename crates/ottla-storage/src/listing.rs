//! The names in a folder, by what they are: the first thing that an opening, a look and a copy read.
//!
//! Invariants: nothing is opened and nothing is changed. Names that are not the log's are told apart and left alone.

use ottla_env::disk::{Disk, LOCK_FILE};

use crate::error::{Damage, OpenError};
use crate::options::FileId;
use crate::recovery::ASIDE;
use crate::{prepare, snapshot, space};

/// The folder's names, by what they are.
pub(crate) struct Listing {
    /// Of the log.
    pub(crate) files: Vec<FileId>,
    /// Rewritten ones.
    pub(crate) data: Vec<FileId>,
    pub(crate) snapshots: Vec<String>,
    pub(crate) temporary: Vec<String>,
    /// Bytes that a repair has replaced.
    pub(crate) aside: Vec<String>,
    /// Kept for a full disk.
    pub(crate) reserve: Vec<String>,
    pub(crate) unknown: Vec<String>,
}

impl Listing {
    pub(crate) fn read(disk: &dyn Disk) -> Result<Self, OpenError> {
        let mut listing = Self {
            files: Vec::new(),
            data: Vec::new(),
            snapshots: Vec::new(),
            temporary: Vec::new(),
            aside: Vec::new(),
            reserve: Vec::new(),
            unknown: Vec::new(),
        };
        for name in disk.list().map_err(|source| OpenError::Io { name: "the folder".to_owned(), source })? {
            if let Some(file) = FileId::from_name(&name) {
                if file.is_data() { listing.data.push(file) } else { listing.files.push(file) }
            } else if snapshot::is_snapshot(&name) {
                listing.snapshots.push(name);
            } else if space::is_reserve(&name) || prepare::is_ahead(&name) {
                listing.reserve.push(name);
            } else if prepare::is_temporary(&name) || snapshot::is_temporary(&name) {
                listing.temporary.push(name);
            } else if name.ends_with(ASIDE) {
                listing.aside.push(name);
            } else if name != LOCK_FILE && name != "lost+found" {
                listing.unknown.push(name);
            }
        }
        listing.files.sort_unstable();
        listing.data.sort_unstable();
        listing.snapshots.sort_unstable();
        Ok(listing)
    }

    /// A folder without log files must be empty.
    pub(crate) fn refuse_foreign(&self) -> Result<(), OpenError> {
        if !self.files.is_empty() {
            return Ok(());
        }
        if let Some(name) = self.unknown.first() {
            let what =
                "the folder has other files and no log of Ottla; name an empty folder or the right one";
            return Err(OpenError::Foreign { name: name.clone(), what });
        }
        let rewritten = self.data.first().map(|file| file.file_name());
        if let Some(name) = self.snapshots.first().cloned().or(rewritten) {
            let what = "the log files that belong to this file are missing";
            return Err(OpenError::Damaged(Damage { file: name, position: 0, what }));
        }
        Ok(())
    }
}
