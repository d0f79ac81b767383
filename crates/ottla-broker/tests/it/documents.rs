//! docs/protocol.md and docs/settings.md are made here, from the tables that the broker works by, and compared with
//! the files. `OTTLA_WRITE_DOCS=1 cargo test -p ottla-broker --test it documents` writes them anew.

mod protocol;
mod settings;

use std::path::{Path, PathBuf};

/// A file of the workspace.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// The text of a file of the workspace.
fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The file holds this text; or is made to, when that is asked for.
fn assert_is(name: &str, text: &str) {
    if std::env::var_os("OTTLA_WRITE_DOCS").is_some() {
        #[allow(clippy::disallowed_methods)] // a document, not a file of the broker
        std::fs::write(path(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let there = std::fs::read_to_string(path(name)).unwrap_or_default();
    let differs = there.lines().zip(text.lines()).find(|(one, other)| one != other);
    assert!(
        there == text,
        "{name} is not what the tables say (first difference: {differs:?}); write it anew with OTTLA_WRITE_DOCS=1"
    );
}
