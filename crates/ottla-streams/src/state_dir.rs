//! The state folder of one application on one machine: who we are, that nobody else is, and where each task's state
//! lies.
//!
//! ```text
//! <dir>/<application id>/identity         process id, instance id, member id; on which machine it was written
//! <dir>/<application id>/writers          how many transactional ids were ever taken under that identity
//! <dir>/<application id>/lock             held while a process runs
//! <dir>/<application id>/tasks/0_3/current     the task's engine
//! <dir>/<application id>/tasks/0_3/rebuild     an engine that is being rebuilt, until it takes the place of current
//! <dir>/<application id>/tasks/0_3/scratch     spilled uncommitted writes; means nothing after a start
//! <dir>/<application id>/tasks/0_3/aside-1     an engine that was damaged or replaced; never deleted by us
//! <dir>/<application id>/tasks/0_3/aside-1.txt why
//! ```
//!
//! The identity stays over restarts, so that a restarted process ends its own transactions and takes its own place in
//! the group at once. A copy of the folder (another machine, or another file on this one) gets an identity of its
//! own; the stores in it are as good as ever. A machine that was cloned whole cannot be told apart; there the cluster
//! fences one of the two.
//!
//! A swap is two renames. After a crash between them there is no `current`, and `rebuild` takes its place at the next
//! start: any engine is good, however far it lags. Not here: engines (see [`crate::engine`]), what is in them.

mod identity;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use ottla_env::disk::os::OsDisk;
use ottla_env::disk::{Disk, LockError, LockGuard};
use ottla_env::files;

use crate::record::TaskId;

pub use identity::Identity;

const WRITERS: &str = "writers";
/// More than any number of workers: what is beyond it in the file was not written by us.
const WRITERS_MAX: usize = 4096;
const TASKS: &str = "tasks";
const CURRENT: &str = "current";
const REBUILD: &str = "rebuild";
const SCRATCH: &str = "scratch";
const ASIDE: &str = "aside-";

/// Why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another process runs there.
    #[error(
        "the state folder {folder} is in use{}: stop that process, or give this one a state folder of its own",
        match .pid { Some(pid) => format!(" by process {pid}"), None => String::new() }
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process, when it is known.
        pid: Option<u32>,
    },
    /// The application id is no name for a folder.
    #[error(
        "the application id `{0}` must be 1 to 200 letters, digits, dots, dashes and underscores, not `.` or `..`"
    )]
    ApplicationId(String),
    /// The system refused.
    #[error("the state folder {folder} cannot be used: {source}")]
    Io {
        /// The folder or file.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn io_at(folder: &Path) -> impl FnOnce(io::Error) -> StateDirError {
    let folder = folder.to_owned();
    move |source| StateDirError::Io { folder, source }
}

/// An application's state folder, locked for this process.
#[derive(Debug)]
pub struct StateDir {
    root: PathBuf,
    disk: OsDisk,
    identity: Identity,
    _lock: LockGuard,
}

fn is_application_id(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=200).contains(&id.len()) && id.bytes().all(plain) && id != "." && id != ".."
}

impl StateDir {
    /// Opens `<dir>/<application id>`, making it when absent, and locks it until this value is dropped.
    pub fn open(dir: &Path, application_id: &str) -> Result<Self, StateDirError> {
        if !is_application_id(application_id) {
            return Err(StateDirError::ApplicationId(application_id.to_owned()));
        }
        let root = dir.join(application_id);
        let disk = OsDisk::open_or_create(&root).map_err(io_at(&root))?;
        let lock = disk.lock().map_err(|error| match error {
            LockError::Held { pid } => StateDirError::InUse { folder: root.clone(), pid },
            LockError::Io(source) => StateDirError::Io { folder: root.clone(), source },
        })?;
        let identity = Identity::load_or_make(&disk, application_id).map_err(io_at(&root))?;
        Ok(Self { root, disk, identity, _lock: lock })
    }

    /// How many workers may have taken a transactional id under this identity, in earlier starts too: their numbers are
    /// below it.
    pub fn writers(&self) -> Result<usize, StateDirError> {
        let path = self.root.join(WRITERS);
        let text = match files::read_text(&path, 4096) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            other => other.map_err(io_at(&path))?,
        };
        let of_us = text.split_once(' ').filter(|(process_id, _)| *process_id == self.identity.process_id);
        let count = of_us.and_then(|(_, count)| count.trim().parse().ok());
        Ok(count.unwrap_or(0).min(WRITERS_MAX))
    }

    /// Notes that so many workers may take an id from now on. On disk when it returns, so that a later start knows them
    /// all, whatever happens.
    pub fn set_writers(&self, count: usize) -> Result<(), StateDirError> {
        let text = format!("{} {count}\n", self.identity.process_id);
        replace(&self.disk, WRITERS, &text).map_err(io_at(&self.root.join(WRITERS)))
    }

    /// Who we are.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The place of a task's state; makes it ready for use: ends a swap that was cut short, empties scratch.
    pub fn task(&self, id: TaskId) -> Result<TaskDir, StateDirError> {
        let folder = self.root.join(TASKS).join(id.to_string());
        let disk = OsDisk::open_or_create(&folder).map_err(io_at(&folder))?;
        let task = TaskDir { id, folder, disk };
        files::remove_tree(&task.scratch()).map_err(io_at(&task.folder))?;
        if !task.has(CURRENT)? && task.has(REBUILD)? {
            task.rename(REBUILD, CURRENT)?;
        }
        Ok(task)
    }

    /// Engines of all tasks that were set aside. They take disk space until somebody removes them.
    pub fn asides(&self) -> Result<Vec<PathBuf>, StateDirError> {
        let mut found = Vec::new();
        for id in self.tasks()? {
            found.extend(asides_in(&self.root.join(TASKS).join(id.to_string()))?);
        }
        Ok(found)
    }

    /// Tasks that have state here, for sticky assignment.
    pub fn tasks(&self) -> Result<Vec<TaskId>, StateDirError> {
        let folder = self.root.join(TASKS);
        let found = match files::list_folder(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(io_at(&folder))?,
        };
        let id = |path: PathBuf| {
            let (sub_topology, partition) = path.file_name()?.to_str()?.split_once('_')?;
            Some(TaskId { sub_topology: sub_topology.parse().ok()?, partition: partition.parse().ok()? })
        };
        let mut tasks: Vec<TaskId> = found.into_iter().filter_map(id).collect();
        tasks.sort_unstable();
        Ok(tasks)
    }
}

/// Puts a small file in the place of another, at once and for good.
fn replace(disk: &OsDisk, name: &str, text: &str) -> io::Result<()> {
    let new = format!("{name}.new");
    files::remove(&disk.path().join(&new))?;
    let file = disk.create(&new)?;
    identity::write_whole(&file, text)?;
    disk.rename(&new, name)?;
    disk.sync_dir()
}

/// Where one task's state lies.
#[derive(Debug)]
pub struct TaskDir {
    id: TaskId,
    folder: PathBuf,
    disk: OsDisk,
}

impl TaskDir {
    /// The task.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// The task's folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Folder of the engine in use.
    pub fn current(&self) -> PathBuf {
        self.folder.join(CURRENT)
    }

    /// Folder of the engine that is being rebuilt.
    pub fn rebuild(&self) -> PathBuf {
        self.folder.join(REBUILD)
    }

    /// Folder for spilled writes.
    pub fn scratch(&self) -> PathBuf {
        self.folder.join(SCRATCH)
    }

    fn has(&self, name: &str) -> Result<bool, StateDirError> {
        let names = files::list_folder(&self.folder).map_err(io_at(&self.folder))?;
        Ok(names.iter().any(|path| path.file_name().is_some_and(|found| found == name)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StateDirError> {
        self.disk.rename(from, to).and_then(|()| self.disk.sync_dir()).map_err(io_at(&self.folder))
    }

    /// Moves `current` out of the way, for whoever wants to look at it, and notes why. Its engine must be closed.
    /// `None` when there is none.
    pub fn set_aside(&self, why: &str) -> Result<Option<PathBuf>, StateDirError> {
        if !self.has(CURRENT)? {
            return Ok(None);
        }
        let number = self.asides()?.len() + 1;
        let mut name = format!("{ASIDE}{number}");
        while self.has(&name)? {
            name.push('x'); // somebody removed one in the middle
        }
        let note = self.folder.join(format!("{name}.txt"));
        files::write(&note, format!("{why}\n").as_bytes()).map_err(io_at(&note))?;
        self.rename(CURRENT, &name)?;
        Ok(Some(self.folder.join(name)))
    }

    /// Puts the rebuilt engine in the place of `current`, which is set aside. Both engines must be closed.
    pub fn swap(&self, why: &str) -> Result<Option<PathBuf>, StateDirError> {
        let aside = self.set_aside(why)?;
        self.rename(REBUILD, CURRENT)?;
        Ok(aside)
    }

    /// Removes a rebuild that cannot be used: it was a part of the log and nothing else.
    pub fn drop_rebuild(&self) -> Result<(), StateDirError> {
        files::remove_tree(&self.rebuild()).map_err(io_at(&self.folder))
    }

    /// Engines that were set aside. They take disk space until somebody removes them.
    pub fn asides(&self) -> Result<Vec<PathBuf>, StateDirError> {
        asides_in(&self.folder)
    }
}

fn asides_in(folder: &Path) -> Result<Vec<PathBuf>, StateDirError> {
    let mut found = files::list_folder(folder).map_err(io_at(folder))?;
    found.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(ASIDE) && !name.ends_with(".txt")
    });
    Ok(found)
}
