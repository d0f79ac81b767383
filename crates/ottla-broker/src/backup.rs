//! Copying a broker's folder to a consistent point, whether a broker works on it or not.
//!
//! Beside the walk: only the folder is looked at (`ottla_storage::backup`), the broker is not asked. Files that do not
//! change any more become a second name of the same file where both folders are on one file system; dropping one
//! name leaves the other.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ottla_env::disk::os::OsDisk;
use ottla_env::disk::read_only::ReadOnlyDisk;
use ottla_env::disk::{Disk, LockError, Origin};
use ottla_env::files;

pub use ottla_storage::backup::{BackupError, BackupReport};

/// The one shard of a folder.
const SHARD_ID: u32 = 0;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A folder cannot be opened or made.
    #[error("folder {dir}: {source}")]
    Folder {
        /// The folder.
        dir: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// There is something in the folder that was to take the copy.
    #[error("the folder {dir} is not empty; name a new one")]
    NotEmpty {
        /// The folder.
        dir: String,
    },
    /// The folder is itself a copy that nobody has opened yet, and may be in parts.
    #[error(
        "the folder {dir} is a copy that no broker has opened yet; start one on it first, or copy the original"
    )]
    Unclaimed {
        /// The folder.
        dir: String,
    },
    /// The copy cannot be marked as whole.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder cannot be read, or the copy not written.
    #[error(transparent)]
    Backup(#[from] BackupError),
}

/// Copies the folder `from` into the new or empty folder `to`. With `links`, what does not change any more is not copied
/// where a second name will do. What was made of a copy that failed is left where it is, and is never taken for whole.
pub fn copy(
    from: &Path,
    to: &Path,
    links: bool,
    mut progress: impl FnMut(u64, u64),
) -> Result<BackupReport, CopyError> {
    let folder = |dir: &Path| {
        let dir = dir.display().to_string();
        move |source| CopyError::Folder { dir, source }
    };
    let source: Arc<dyn Disk> = Arc::new(OsDisk::open(from).map_err(folder(from))?);
    if source.origin().map_err(folder(from))? == Origin::Copied {
        return Err(CopyError::Unclaimed { dir: from.display().to_string() });
    }
    let target = OsDisk::open_or_create(to).map_err(folder(to))?;
    if !target.list().map_err(folder(to))?.is_empty() {
        return Err(CopyError::NotEmpty { dir: to.display().to_string() });
    }
    let (from, to): (PathBuf, PathBuf) = (from.into(), to.into());
    let mut link = |name: &str| links && files::hard_link(&from.join(name), &to.join(name)).is_ok();
    let looked = ReadOnlyDisk::new(source);
    let report = ottla_storage::backup::backup(&looked, &target, SHARD_ID, &mut link, &mut progress)?;
    let _lock = target.lock()?;
    target.claim().map_err(folder(&to))?;
    Ok(report)
}
