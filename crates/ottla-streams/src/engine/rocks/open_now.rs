//! Databases that are open in this process, by the identity of their folders.
//!
//! RocksDB knows its own open databases by name only. A folder that is renamed, or named in two ways, is another one to
//! it, and two databases over the same files destroy them. So every open goes through here.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ottla_env::files::FileIdentity;

use super::Inner;
use crate::engine::EngineError;

/// A database, and what lives until it is closed, a moment longer than whoever uses it.
struct Open {
    inner: Weak<Inner>,
    mark: Weak<()>,
}

impl Open {
    fn is_open(&self) -> bool {
        self.mark.strong_count() > 0
    }
}

/// At most one entry per folder that is open, and those of closed ones until the next open.
static OPEN: Mutex<BTreeMap<FileIdentity, Open>> = Mutex::new(BTreeMap::new());

fn locked() -> MutexGuard<'static, BTreeMap<FileIdentity, Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives `take` the open database of a folder, if there is one, and keeps what it returns.
pub(super) fn find_or_open(
    identity: FileIdentity,
    folder: &Path,
    take: impl FnOnce(Option<Arc<Inner>>) -> Result<Arc<Inner>, EngineError>,
) -> Result<Arc<Inner>, EngineError> {
    // Not held while a database is opened, which may take long; who comes in between is refused by RocksDB's lock.
    let found = match locked().get(&identity) {
        Some(open) if open.is_open() => match open.inner.upgrade() {
            None => return Err(EngineError::Locked { folder: folder.display().to_string() }), // it is being closed
            found => found,
        },
        _ => None,
    };
    let inner = take(found)?;
    let mut open = locked();
    open.retain(|_, open| open.is_open());
    open.insert(identity, Open { inner: Arc::downgrade(&inner), mark: Arc::downgrade(&inner.open) });
    Ok(inner)
}

/// Whether a database of that folder is open.
pub(super) fn is_open(folder: FileIdentity) -> bool {
    locked().get(&folder).is_some_and(Open::is_open)
}
