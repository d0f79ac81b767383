//! Opens a task's stores where they belong, whatever is there.
//!
//! A damaged engine is set aside and an empty one takes its place, which recovery fills from the changelogs (C16).
//! A rebuild beside is an engine of its own until it is swapped in.
//!
//! Place in the walk: the application calls it when a task is assigned; then [`crate::recovery`]. Not here: deciding
//! that a copy must be rebuilt.

use std::path::{Path, PathBuf};

use crate::engine::mem::MemEngine;
#[cfg(feature = "rocksdb")]
use crate::engine::rocks::{RocksEngine, RocksShared};
use crate::engine::{Engine, EngineError};
use crate::state::{SPILL_BYTES_MAX, ScratchFactory, StateError, StoreSpec, TaskState};
use crate::state_dir::{StateDirError, TaskDir};

/// Where stores keep their bytes.
#[derive(Clone, Debug)]
pub enum EngineKind {
    /// In memory: every start replays the changelogs.
    Memory,
    /// On disk, in RocksDB.
    #[cfg(feature = "rocksdb")]
    Rocks(RocksShared),
}

/// Which of a task's engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The one in use.
    Current,
    /// The one that is being rebuilt.
    Rebuild,
}

/// Why a task's stores cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder.
    #[error(transparent)]
    Dir(#[from] StateDirError),
    /// The stores.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Opens stores.
#[derive(Clone, Debug)]
pub struct StateOpener {
    /// Where bytes are kept.
    pub kind: EngineKind,
    /// Bytes of uncommitted writes of one task in memory beyond which they spill to disk; default 64 MiB. Not for
    /// stores in memory.
    pub spill_bytes: usize,
}

/// A task's stores, and what happened on the way.
#[derive(Debug)]
pub struct Opened {
    /// The stores.
    pub state: TaskState,
    /// A damaged engine was there: where it lies now, and what was wrong.
    pub set_aside: Option<(PathBuf, String)>,
}

impl OpenError {
    /// The disk refuses. It may be that it works again later.
    pub fn is_io(&self) -> bool {
        match self {
            Self::Dir(error) => matches!(error, StateDirError::Io { .. }),
            Self::State(error) => error.is_io(),
        }
    }

    /// Somebody in this process still has the stores open.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::State(StateError::Engine(error)) if error.is_held())
    }
}

impl StateOpener {
    /// With the default limits.
    pub fn new(kind: EngineKind) -> Self {
        Self { kind, spill_bytes: SPILL_BYTES_MAX }
    }

    #[cfg_attr(
        not(feature = "rocksdb"),
        expect(unused_variables, reason = "only an engine on disk has a folder")
    )]
    fn engine(&self, folder: &Path, names: &[&str]) -> Result<Box<dyn Engine>, EngineError> {
        match &self.kind {
            EngineKind::Memory => Ok(Box::new(MemEngine::alone(names))),
            #[cfg(feature = "rocksdb")]
            EngineKind::Rocks(shared) => Ok(Box::new(RocksEngine::open(folder, names, shared)?)),
        }
    }

    /// Whether an engine is open in this process: a snapshot of a query keeps it so when its task has gone.
    #[cfg_attr(
        not(feature = "rocksdb"),
        expect(unused_variables, reason = "only an engine on disk has a folder")
    )]
    pub fn is_open(&self, folder: &Path) -> bool {
        match &self.kind {
            EngineKind::Memory => false,
            #[cfg(feature = "rocksdb")]
            EngineKind::Rocks(_) => crate::engine::rocks::is_open(folder),
        }
    }

    /// An open engine's folder must not be renamed.
    fn check_closed(&self, folder: &Path) -> Result<(), EngineError> {
        match self.is_open(folder) {
            true => Err(EngineError::Held { folder: folder.display().to_string() }),
            false => Ok(()),
        }
    }

    #[cfg_attr(
        not(feature = "rocksdb"),
        expect(unused_variables, reason = "only an engine on disk has a folder")
    )]
    fn scratch(&self, folder: PathBuf, names: Vec<String>) -> Option<ScratchFactory> {
        match &self.kind {
            EngineKind::Memory => None,
            #[cfg(feature = "rocksdb")]
            EngineKind::Rocks(shared) => {
                let shared = shared.clone();
                Some(Box::new(move || {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    Ok(Box::new(RocksEngine::scratch(&folder, &names, &shared)?) as Box<dyn Engine>)
                }))
            }
        }
    }

    fn try_open(
        &self,
        folder: &Path,
        scratch: PathBuf,
        specs: &[StoreSpec],
        fingerprint: u64,
    ) -> Result<TaskState, StateError> {
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let state = TaskState::open(self.engine(folder, &names)?, specs, fingerprint)?;
        let names = names.into_iter().map(str::to_owned).collect();
        Ok(match self.scratch(scratch, names) {
            Some(factory) => state.with_spill(self.spill_bytes, factory),
            None => state,
        })
    }

    /// Opens a task's stores. Damage costs a replay, never the bytes: a current engine is set aside first. A rebuild
    /// that is damaged or of another topology is begun anew, since it is a part of the log and nothing else.
    pub fn open(
        &self,
        task: &TaskDir,
        place: Place,
        specs: &[StoreSpec],
        fingerprint: u64,
    ) -> Result<Opened, OpenError> {
        let folder = match place {
            Place::Current => task.current(),
            Place::Rebuild => task.rebuild(),
        };
        let open = || self.try_open(&folder, task.scratch(), specs, fingerprint);
        let error = match open() {
            Ok(state) => return Ok(Opened { state, set_aside: None }),
            Err(error) => error,
        };
        let topology = matches!(error, StateError::TopologyChanged { .. });
        let set_aside = match (place, error.damage()) {
            (Place::Rebuild, damage) if damage.is_some() || topology => {
                task.drop_rebuild()?;
                None
            }
            (Place::Current, Some(why)) => self.set_aside(task, &why)?.map(|path| (path, why)),
            _ => return Err(error.into()),
        };
        Ok(Opened { state: open()?, set_aside })
    }

    /// Moves a task's damaged engine out of the way, so that the next [`StateOpener::open`] begins with an empty one. It
    /// must be closed: `Held` when it is not.
    pub fn set_aside(&self, task: &TaskDir, why: &str) -> Result<Option<PathBuf>, OpenError> {
        self.check_closed(&task.current()).map_err(StateError::from)?;
        let aside = task.set_aside(why)?;
        tracing::error!(task = %task.id(), why, ?aside, "damaged state is set aside and rebuilt");
        Ok(aside)
    }

    /// Puts a task's rebuilt engine in the place of the one in use, which is set aside. Both must be closed: `Held` when
    /// they are not.
    pub fn swap(&self, task: &TaskDir, why: &str) -> Result<Option<PathBuf>, OpenError> {
        for folder in [task.current(), task.rebuild()] {
            self.check_closed(&folder).map_err(StateError::from)?;
        }
        Ok(task.swap(why)?)
    }
}

#[cfg(all(test, feature = "rocksdb"))]
mod tests;
