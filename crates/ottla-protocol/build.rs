//! Turns `schema/*.schema` into Rust: one module per message, included by `src/messages.rs`.
//!
//! Standard library only and quick (a few milliseconds), so that the schema may be edited like source.

#[path = "build/generate.rs"]
mod generate;
#[path = "build/notation.rs"]
#[allow(dead_code)] // shared with xtask and the tests, which use all of it
mod notation;

use std::path::PathBuf;
use std::{env, fs};

#[allow(clippy::disallowed_methods)] // a build script works on files; ottla-env is for what runs
fn main() {
    println!("cargo::rerun-if-changed=schema");
    println!("cargo::rerun-if-changed=build");
    let mut files: Vec<PathBuf> =
        fs::read_dir("schema").expect("schema folder").map(|e| e.expect("readable folder").path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "schema"));
    files.sort();
    let mut messages = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("readable schema");
        match notation::parse(&text) {
            Ok(parsed) => messages.extend(parsed),
            Err(error) => panic!("{}: {error}", file.display()),
        }
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("messages.rs");
    fs::write(out, generate::generate(&messages)).expect("writable OUT_DIR");
}
