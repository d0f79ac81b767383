//! Files of the log: prepared ahead by a helper, begun by the writer, given a footer once sealed.
//!
//! A file comes into being under a temporary name, is filled with zeros and synced by the helper; when the writer
//! needs it, it gets its header block, is synced, renamed into place, and the folder is synced: only then does it
//! take frames. A failure up to the rename leaves nothing behind; from the rename on the outcome is unknown, because
//! the new file's header says where the one in front of it ends.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use ottla_env::disk::{Disk, File};

use crate::file_header::{FileHeader, Seal};
use crate::footer;
use crate::layout::{BLOCK_BYTES, write_all, write_zeros};
use crate::options::FileId;
use crate::shared::Shared;
use crate::space::{self, SpaceWatch};

/// A footer's blocks enter the index in parts of this, so that readers never wait long.
const BLOCKS_PER_LOCK: usize = 1024;

/// The state of the file prepared ahead.
pub(crate) enum Ready {
    /// None, and nobody is at it.
    Wanted,
    /// The helper is filling one.
    Working,
    /// One is there.
    Waiting(Prepared),
}

/// A file of zeros under a temporary name.
pub(crate) struct Prepared {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn File>,
    pub(crate) bytes: u64,
}

/// A file that takes frames.
pub(crate) struct OpenFile {
    pub(crate) id: FileId,
    pub(crate) nonce: u64,
    pub(crate) handle: Arc<dyn File>,
    /// Where the next frame goes; all in front of it is durable.
    pub(crate) end: u64,
    /// Bytes of the file that exist as zeros or more.
    pub(crate) allocated: u64,
}

/// Why a file could not be begun.
pub(crate) enum BeginError {
    /// The folder is as it was.
    NotBegun(io::Error),
    /// The file may or may not be in place.
    Unknown(io::Error),
}

/// Begins the file behind `previous`, from the prepared one if there is one, else from a new one with room for
/// `needed` bytes of frames.
pub(crate) fn begin_file(
    shared: &Shared,
    previous: Seal,
    needed: u64,
    attempt: u64,
) -> Result<OpenFile, BeginError> {
    let disk = &*shared.disk;
    let header = FileHeader {
        shard_id: shared.options.shard_id,
        log_id: shared.log_id,
        file: FileId(previous.file.0 + 1),
        nonce: shared.options.nonces.draw(),
        epoch: shared.epoch,
        durability: shared.options.durability,
        previous,
    };
    let prepared = match take_ready(shared) {
        Some(prepared) => prepared,
        None => match new_file(shared, needed, attempt) {
            Err(BeginError::NotBegun(error)) if space::is_full(&error) => {
                shared.room_is_short();
                from_reserve(shared).ok_or(BeginError::NotBegun(error))?
            }
            made => made?,
        },
    };
    let name = header.file.file_name();
    let written = write_all(&*prepared.file, &[&header.encode()], 0).and_then(|()| prepared.file.sync_all());
    if let Err(error) = written {
        discard(disk, &prepared.name);
        return Err(BeginError::NotBegun(error));
    }
    disk.rename(&prepared.name, &name).and_then(|()| disk.sync_dir()).map_err(BeginError::Unknown)?;
    Ok(OpenFile {
        id: header.file,
        nonce: header.nonce,
        handle: prepared.file,
        end: BLOCK_BYTES,
        allocated: prepared.bytes,
    })
}

/// Takes the file prepared ahead, if there is one; the helper will see that the next is wanted.
pub(crate) fn take_ready(shared: &Shared) -> Option<Prepared> {
    let mut ready = shared.ready();
    if !matches!(*ready, Ready::Waiting(_)) {
        return None;
    }
    match std::mem::replace(&mut *ready, Ready::Wanted) {
        Ready::Waiting(prepared) => Some(prepared),
        Ready::Wanted | Ready::Working => None,
    }
}

/// A file of the reserve, when the disk has no room for a new one.
fn from_reserve(shared: &Shared) -> Option<Prepared> {
    let (name, file) = shared.take_from_reserve()?;
    tracing::warn!(name, "the disk is full: the log goes on in a file of its reserve");
    Some(Prepared { name, file, bytes: shared.options.file_bytes })
}

/// A short file, made on the spot: the log grows it rather than wait for the helper.
fn new_file(shared: &Shared, needed: u64, attempt: u64) -> Result<Prepared, BeginError> {
    let name = format!("log-{:010}-grown-{attempt}.tmp", shared.epoch);
    let bytes =
        BLOCK_BYTES + needed.max(shared.options.growth_bytes.min(shared.options.file_bytes - BLOCK_BYTES));
    let made = shared.disk.create(&name).and_then(|file| {
        write_zeros(&*file, BLOCK_BYTES, bytes)?;
        Ok(file)
    });
    match made {
        Ok(file) => Ok(Prepared { name, file, bytes }),
        Err(error) => {
            discard(&*shared.disk, &name);
            Err(BeginError::NotBegun(error))
        }
    }
}

/// Removes a temporary file; what stays is removed by the next `open`.
pub(crate) fn discard(disk: &dyn Disk, name: &str) {
    if let Err(error) = disk.remove(name)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(name, %error, "could not remove a temporary file");
    }
}

/// Whether a name is that of a file prepared ahead.
pub(crate) fn is_ahead(name: &str) -> bool {
    name.starts_with("log-") && name.contains("-ahead-")
}

/// Whether a name is one of the temporary files above, or a rewritten file that is not finished.
pub(crate) fn is_temporary(name: &str) -> bool {
    (name.starts_with("log-") || name.starts_with("data-")) && name.ends_with(".tmp")
}

/// The helper of the log: fills the next file with zeros ahead of time and writes the footers of sealed files.
///
/// The broker calls `run_once` from a thread of its own whenever frames were written; the simulator calls it inline.
pub struct FilePreparer {
    shared: Arc<Shared>,
    made: u64,
    footers_tried: FileId,
    /// Damaged files: their footers would be incomplete, and nothing in them is changed.
    skip: BTreeSet<FileId>,
}

impl FilePreparer {
    pub(crate) fn new(shared: Arc<Shared>, skip: BTreeSet<FileId>) -> Self {
        Self { shared, made: 0, footers_tried: FileId(0), skip }
    }

    /// Does one piece of work, if there is one: a file ahead first, then one footer. Says whether it did something,
    /// so `while preparer.run_once() {}` catches up. A failure (the disk is full, say) is logged and counts as
    /// nothing done; a later call tries the file again, a footer is left to the next opening.
    pub fn run_once(&mut self) -> bool {
        if self.shared.has_ended() {
            return false;
        }
        let worked = self.prepare() || self.write_footer() || self.shared.fill_reserve();
        self.shared.look_at_space(matches!(*self.shared.ready(), Ready::Waiting(_)));
        worked
    }

    /// How much room there is, for whoever decides what is refused.
    pub fn space(&self) -> SpaceWatch {
        SpaceWatch(self.shared.clone())
    }

    fn prepare(&mut self) -> bool {
        {
            let mut ready = self.shared.ready();
            if !matches!(*ready, Ready::Wanted) {
                return false;
            }
            *ready = Ready::Working;
        }
        self.made += 1;
        if let Some(prepared) = self.shared.spare_ahead() {
            *self.shared.ready() = Ready::Waiting(prepared);
            return true;
        }
        let name = format!("log-{:010}-ahead-{}.tmp", self.shared.epoch, self.made);
        let bytes = self.shared.options.file_bytes;
        // Not by trying: a disk that is almost full would be written full with zeros again and again.
        let room = match self.shared.disk.free_bytes() {
            Ok(free) if free < bytes => Err(io::ErrorKind::StorageFull.into()),
            Ok(_) | Err(_) => Ok(()),
        };
        let filled = room.and_then(|()| self.shared.disk.create(&name)).and_then(|file| {
            write_zeros(&*file, 0, bytes)?;
            file.sync_all()?;
            Ok(file)
        });
        match filled {
            Ok(file) => {
                *self.shared.ready() = Ready::Waiting(Prepared { name, file, bytes });
                true
            }
            Err(error) => {
                discard(&*self.shared.disk, &name);
                *self.shared.ready() = Ready::Wanted;
                if space::is_full(&error) {
                    tracing::debug!(%error, "no room for the next log file");
                    self.shared.room_is_short();
                } else {
                    tracing::warn!(%error, "could not prepare the next log file");
                }
                false
            }
        }
    }

    fn write_footer(&mut self) -> bool {
        let resident = loop {
            match self.shared.index().resident_behind(self.footers_tried) {
                Some((file, _)) if self.skip.contains(&file) => self.footers_tried = file,
                other => break other,
            }
        };
        let Some((id, extents)) = resident else { return false };
        self.footers_tried = id;
        let Some((seal, appended)) = self.seal_of(id) else { return true };
        let encoded = footer::encode(&seal, appended, &extents);
        // The zeros behind the sealed end are given back first; readers never look behind the seal.
        let written = self.shared.file(id).and_then(|file| {
            file.set_len(seal.length)?;
            write_all(&*file, &[&encoded.bytes], seal.length)?;
            file.sync_all()
        });
        if let Err(error) = written {
            tracing::warn!(file = id.0, %error, "could not write a footer");
            return false;
        }
        let parts = encoded.blocks.chunks(BLOCKS_PER_LOCK);
        for part in parts {
            self.shared.index_mut().footer_written(id, part, false);
        }
        self.shared.index_mut().footer_written(id, &[], true);
        true
    }

    /// How a resident file ended and when its newest batch was appended; none when it was dropped meanwhile.
    fn seal_of(&self, file: FileId) -> Option<(Seal, i64)> {
        let known = self.shared.known();
        let seal = known.seals.get(&file)?;
        Some((*seal, known.appended.get(&file).copied().unwrap_or(0)))
    }
}
