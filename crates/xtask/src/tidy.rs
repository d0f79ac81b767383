//! `cargo xtask tidy`: rules of the house that no compiler checks.
//!
//! Reads the files that git knows or would add, changes nothing, and names each problem with file and line.
//! `source` judges Rust files, `examples` the documentation of the client, `manifests` the crates and their
//! dependencies, `docs` the texts.

mod docs;
mod examples;
mod manifests;
mod source;

use std::fmt;
use std::process::Command;

use anyhow::Result;
use serde_json::json;

use crate::run::{self, Workspace};

/// How to report.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Close with one JSON object
    #[arg(long)]
    json: bool,
}

/// One thing to mend.
pub(crate) struct Problem {
    file: String,
    line: usize,
    text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

/// A text file of the tree.
struct File {
    /// Path from the root, with `/`.
    name: String,
    text: String,
}

impl File {
    /// A problem of this file; lines count from 1.
    fn problem(&self, line: usize, text: impl Into<String>) -> Problem {
        Problem { file: self.name.clone(), line, text: text.into() }
    }

    /// Lines with their numbers.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// Runs the command; true when there is nothing to mend.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let problems = problems(&Workspace::find()?)?;
    problems.iter().for_each(|problem| println!("{problem}"));
    if options.json {
        println!("{}", json!({"problems": problems.len()}));
    } else if problems.is_empty() {
        println!("tidy");
    } else {
        println!("{} to mend", problems.len());
    }
    Ok(problems.is_empty())
}

/// Everything there is to mend.
pub(crate) fn problems(workspace: &Workspace) -> Result<Vec<Problem>> {
    let files = files(workspace)?;
    let mut problems = Vec::new();
    for file in &files {
        everywhere(file, &mut problems);
        if file.name.ends_with(".rs") {
            source::check(file, &mut problems);
        }
        if file.name.ends_with(".md") {
            docs::check_text(workspace, file, &mut problems);
        }
    }
    manifests::check(&files, &mut problems);
    docs::check_set(&files, &mut problems);
    docs::check_pictures(&files, &mut problems);
    examples::check(&files, &mut problems);
    Ok(problems)
}

/// The text files that git knows or would add.
fn files(workspace: &Workspace) -> Result<Vec<File>> {
    let mut command = Command::new("git");
    command.current_dir(&workspace.root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let names = run::output(&mut command)?;
    // What is deleted but not committed, or is no text, is not read.
    let read = |name: &str| std::fs::read_to_string(workspace.path(name)).ok();
    Ok(names.lines().filter_map(|name| Some(File { name: name.to_owned(), text: read(name)? })).collect())
}

/// Rules for every text file: no open ends, no paths of one machine.
fn everywhere(file: &File, problems: &mut Vec<Problem>) {
    if file.name.ends_with(".lock") {
        return;
    }
    let foreign = file.name.starts_with("compat/");
    for (number, line) in file.lines() {
        if let Some(word) = OPEN_ENDS.iter().find(|word| !foreign && line.contains(*word)) {
            problems.push(file.problem(number, format!("{word}: finish it, or write it into an issue")));
        }
        if let Some(path) = machine_path(line) {
            problems.push(file.problem(number, format!("{path}...: a path of one machine")));
        }
    }
}

/// Words that say "not done"; spelled in two pieces so that this file passes.
const OPEN_ENDS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX "),
    concat!("todo", "!("),
    concat!("unimple", "mented!("),
];

/// A path below a folder that exists on somebody's machine only.
fn machine_path(line: &str) -> Option<&'static str> {
    const ROOTS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    ROOTS.iter().copied().find(|root| {
        line.match_indices(root)
            .any(|(at, _)| line[at + root.len()..].starts_with(|c: char| c.is_ascii_lowercase()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that open ends and machine paths are found with their line, and that ordinary text is not.
    #[test]
    fn open_ends_and_machine_paths_are_found() {
        let text = format!("fine\n// {}later\nsee {}me/x\n", OPEN_ENDS[0], concat!("/ho", "me/"));
        let file = File { name: "a.rs".into(), text };
        let mut problems = Vec::new();
        everywhere(&file, &mut problems);
        assert_eq!(problems.iter().map(|p| p.line).collect::<Vec<_>>(), [2, 3]);
    }
}
