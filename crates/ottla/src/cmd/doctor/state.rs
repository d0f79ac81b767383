//! The doctor on the state folder of a streams application: which tasks have stores there, and what lies set aside.
//!
//! Reads names and sizes only: stores are the library's matter, and this binary does not hold it. The layout is in
//! `ottla-streams/src/state_dir.rs`.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ottla_env::files;
use serde_json::{Value, json};

use crate::output;
use crate::text;

/// Longest of a small file.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// A store of a task.
struct Store {
    task: String,
    /// `current`, `rebuild`, or `aside-N`.
    name: String,
    bytes: u64,
    /// Why it was set aside.
    note: Option<String>,
}

impl Store {
    fn is_aside(&self) -> bool {
        self.name.starts_with("aside-")
    }
}

/// The folder of one application.
pub(super) struct Application {
    path: PathBuf,
    process_id: String,
    stores: Vec<Store>,
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The folders of applications at a path: itself, or what is in it. None when it is something else.
pub(super) fn find(dir: &Path) -> Result<Vec<Application>> {
    let mut found: Vec<Application> = examine(dir)?.into_iter().collect();
    if found.is_empty() {
        let inside = match files::list_folder(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(), // the broker's doctor says so
            other => other.with_context(|| format!("{} cannot be listed", dir.display()))?,
        };
        for path in inside.into_iter().filter(|path| path.is_dir()) {
            found.extend(examine(&path)?);
        }
    }
    Ok(found)
}

/// Whether a folder is one, by its identity.
fn examine(path: &Path) -> Result<Option<Application>> {
    let Ok(identity) = files::read_text(&path.join("identity"), TEXT_BYTES_MAX) else { return Ok(None) };
    let process_id = identity.lines().find_map(|line| line.strip_prefix("process_id="));
    let Some(process_id) = process_id.map(str::to_owned) else { return Ok(None) };
    let stores = stores(&path.join("tasks")).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(Some(Application { path: path.to_owned(), process_id, stores }))
}

fn stores(tasks: &Path) -> io::Result<Vec<Store>> {
    let mut found = Vec::new();
    let all = match files::list_folder(tasks) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    for task in all.iter().filter(|path| path.is_dir()) {
        for store in files::list_folder(task)?.iter().filter(|path| path.is_dir()) {
            let note = files::read_text(&store.with_extension("txt"), TEXT_BYTES_MAX).ok();
            found.push(Store {
                task: name_of(task),
                name: name_of(store),
                bytes: files::tree_bytes(store)?,
                note: note.map(|note| note.trim_end().to_owned()),
            });
        }
    }
    Ok(found)
}

pub(super) fn explain(found: &[Application]) -> Result<()> {
    for application in found {
        output::line(&format!(
            "state of a streams application in {}, process {}",
            application.path.display(),
            application.process_id
        ))?;
        let row = |store: &Store| {
            let note = store.note.clone().unwrap_or_else(|| "-".to_owned());
            vec![store.task.clone(), store.name.clone(), text::size(store.bytes), note]
        };
        let rows: Vec<Vec<String>> = application.stores.iter().map(row).collect();
        output::table(&["TASK", "STORE", "SIZE", "SET ASIDE BECAUSE"], &rows)?;
        let asides: Vec<&Store> = application.stores.iter().filter(|store| store.is_aside()).collect();
        if asides.is_empty() {
            output::line("nothing lies set aside")?;
        } else {
            let bytes: u64 = asides.iter().map(|store| store.bytes).sum();
            output::line(&format!(
                "{} set aside, {}: damaged, or replaced by a copy built beside. The application does not need them and \
                 never deletes them; remove them when you have looked at them",
                text::count(asides.len(), "store"),
                text::size(bytes)
            ))?;
        }
    }
    Ok(())
}

pub(super) fn json_of(found: &[Application]) -> Value {
    let store = |store: &Store| {
        json!({
            "task": store.task, "store": store.name, "bytes": store.bytes, "set_aside": store.is_aside(),
            "note": store.note,
        })
    };
    let application = |application: &Application| {
        json!({
            "folder": application.path.display().to_string(),
            "process_id": application.process_id,
            "stores": application.stores.iter().map(store).collect::<Vec<_>>(),
        })
    };
    json!({ "streams_applications": found.iter().map(application).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a state folder is known by itself and from the folder above it, that what lies set aside is told with
    /// its note, and that another folder is none.
    #[test]
    fn what_lies_set_aside() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(find(dir.path()).expect("read").is_empty());
        let app = dir.path().join("orders");
        for store in ["current", "aside-1"] {
            let folder = app.join("tasks/0_3").join(store);
            files::create_folders(&folder).expect("made");
            files::write(&folder.join("data"), b"12345").expect("written");
        }
        files::write(&app.join("tasks/0_3/aside-1.txt"), b"it was damaged\n").expect("written");
        files::write(&app.join("identity"), b"format=1\nprocess_id=00ff\nend=\n").expect("written");
        for path in [dir.path(), &app] {
            let found = find(path).expect("read");
            assert_eq!(found.len(), 1);
            let json = json_of(&found).to_string();
            assert!(
                json.contains("\"note\":\"it was damaged\"") && json.contains("\"process_id\":\"00ff\""),
                "{json}"
            );
            assert_eq!(found[0].stores.iter().filter(|store| store.is_aside()).count(), 1);
        }
    }
}
