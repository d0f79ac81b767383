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
            (Place::Current, Some(why)) => {
                let aside = task.set_aside(&why)?;
                tracing::error!(task = %task.id(), why, ?aside, "damaged state is set aside and rebuilt");
                aside.map(|path| (path, why))
            }
            _ => return Err(error.into()),
        };
        Ok(Opened { state: open()?, set_aside })
    }
}

#[cfg(all(test, feature = "rocksdb"))]
mod tests;
