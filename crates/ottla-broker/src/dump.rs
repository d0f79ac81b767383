//! Showing what a broker's folder holds: files, frames, batches, snapshots, with the names of topics.
//!
//! Beside the walk, like the doctor: the folder is read through a disk that refuses writes and never takes its lock,
//! so a broker may be at work on it. What is shown then is of the moment at which it was read.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ottla_core::shard::ChunkFacts;
use ottla_env::disk::read_only::ReadOnlyDisk;
use ottla_env::disk::{Disk, os::OsDisk};
use ottla_env::files;
use ottla_protocol::types::{Text, Uuid};
use ottla_storage::OpenError;

pub use ottla_storage::dump::{
    DamagedBatch, DamagedBytes, FileEnd, FileFacts, FilesFacts, Found, FrameFacts,
};
pub use ottla_storage::{Durability, SnapshotInfo};

/// The one shard of a folder.
const SHARD_ID: u32 = 0;

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// There is no such folder or file.
    #[error("cannot open {path}: {source}")]
    Path {
        /// The path.
        path: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file is none of the log's.
    #[error("{name} is none of the log's files (*.log, *.data, *.snapshot)")]
    NotOurs {
        /// Its name.
        name: String,
    },
    /// The folder has no file of a log.
    #[error("the folder {dir} has no file of a log")]
    Empty {
        /// The folder.
        dir: String,
    },
    /// The disk cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// A topic as a snapshot or a control record names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicName {
    /// Its name.
    pub name: Text,
    /// 0 data, 1 `__consumer_offsets`, 2 `__transaction_state`, 3 the control log.
    pub role: u8,
}

/// A folder to be shown.
pub struct Folder {
    disk: Arc<dyn Disk>,
    /// Only these files; all of them when absent.
    names: Option<BTreeSet<String>>,
}

impl Folder {
    /// A folder, or one file in it. Nothing in it is changed or locked.
    pub fn open(path: &Path) -> Result<Self, DumpError> {
        let wrong = |source| DumpError::Path { path: path.display().to_string(), source };
        let (dir, names) = if files::facts(path).map_err(wrong)?.is_file {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if !is_ours(&name) {
                return Err(DumpError::NotOurs { name });
            }
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            (dir.map_or_else(|| PathBuf::from("."), Path::to_path_buf), Some(BTreeSet::from([name])))
        } else {
            (path.to_path_buf(), None)
        };
        let disk = OsDisk::open(&dir).map_err(wrong)?;
        let folder = Self { disk: Arc::new(ReadOnlyDisk::new(Arc::new(disk))), names };
        if !folder.disk.list().map_err(wrong)?.iter().any(|name| is_ours(name)) {
            return Err(DumpError::Empty { dir: dir.display().to_string() });
        }
        Ok(folder)
    }

    /// Only files with these names; all of them when there are none.
    pub fn only(&mut self, names: &[String]) {
        if !names.is_empty() {
            self.names = Some(names.iter().cloned().collect());
        }
    }

    /// The topics that the newest good snapshot names. Later ones, and those of a folder without snapshots, are in the
    /// control records of the log.
    pub fn topics(&self) -> Result<BTreeMap<Uuid, TopicName>, DumpError> {
        let mut topics = BTreeMap::new();
        let mut names: Vec<String> = self
            .disk
            .list()
            .map_err(folder)?
            .into_iter()
            .filter(|name| name.ends_with(".snapshot"))
            .collect();
        while let Some(newest) = names.pop() {
            let mut is_good = false;
            ottla_storage::dump::dump(
                &*self.disk,
                SHARD_ID,
                Some(&BTreeSet::from([newest])),
                &mut |found| {
                    if let Found::SnapshotChunk(chunk) = &found {
                        let facts = ChunkFacts::of(chunk);
                        is_good |= facts.is_ok();
                        let found = facts.map(|facts| facts.topics).unwrap_or_default();
                        topics.extend(
                            found.into_iter().map(|topic| {
                                (topic.id, TopicName { name: topic.name, role: topic.role as u8 })
                            }),
                        );
                    }
                    ControlFlow::Continue(())
                },
            )?;
            if is_good {
                break;
            }
        }
        Ok(topics)
    }

    /// Shows everything, in order; `visit` may end it.
    pub fn walk(&self, visit: &mut dyn FnMut(Found) -> ControlFlow<()>) -> Result<(), DumpError> {
        Ok(ottla_storage::dump::dump(&*self.disk, SHARD_ID, self.names.as_ref(), visit)?)
    }
}

fn folder(source: io::Error) -> OpenError {
    OpenError::Io { name: "the folder".to_owned(), source }
}

fn is_ours(name: &str) -> bool {
    [".log", ".data", ".snapshot"].iter().any(|end| name.ends_with(end))
}

/// What a chunk of a snapshot's state holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionFacts {
    /// Kind of its section, a number of the format.
    pub kind: u8,
    /// That, in words.
    pub name: &'static str,
    /// Position, topics, partitions and producers: what the header announces.
    pub header: Option<[u64; 4]>,
}

/// What a chunk holds; the error says why it cannot be told.
pub fn section_facts(chunk: &[u8]) -> Result<SectionFacts, String> {
    match ChunkFacts::of(chunk) {
        Ok(facts) => Ok(SectionFacts { kind: facts.kind, name: facts.name, header: facts.header }),
        Err(error) => Err(error.to_string()),
    }
}
