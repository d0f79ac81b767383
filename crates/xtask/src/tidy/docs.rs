//! Rules for the texts: links lead somewhere, the README opens with the two commands, decision records have all
//! their sections, and ARCHITECTURE.md stays short enough to be read.

use std::collections::BTreeMap;
use std::path::Path;

use super::{File, Problem};
use crate::draw;
use crate::run::Workspace;
use crate::soak::plot;

/// Lines of ARCHITECTURE.md.
const ARCHITECTURE_LINES_MAX: usize = 300;
/// The README names both commands within so many lines.
const README_OPENING: usize = 60;
/// The two commands.
const COMMANDS: [&str; 2] = ["cargo run --release -- demo", "cargo xtask test"];
/// Sections of a decision record.
const SECTIONS: [&str; 5] =
    ["## Context", "## Decision", "## Alternatives", "## Consequences", "## How we would know it was wrong"];

/// Judges one Markdown file.
pub(super) fn check_text(workspace: &Workspace, file: &File, problems: &mut Vec<Problem>) {
    let folder = Path::new(&file.name).parent().unwrap_or(Path::new(""));
    for (number, line) in file.lines() {
        for target in links(line) {
            if !workspace.root.join(folder).join(target).exists() {
                problems.push(file.problem(number, format!("{target}: the link leads nowhere")));
            }
        }
    }
    if is_record(&file.name) {
        record(file, problems);
    }
    if file.name == "ARCHITECTURE.md" && file.text.lines().count() > ARCHITECTURE_LINES_MAX {
        problems
            .push(file.problem(ARCHITECTURE_LINES_MAX, format!("more than {ARCHITECTURE_LINES_MAX} lines")));
    }
    if file.name == "README.md" {
        let opening: Vec<&str> = file.text.lines().take(README_OPENING).collect();
        for command in COMMANDS.iter().filter(|command| !opening.iter().any(|line| line.contains(*command))) {
            problems.push(file.problem(1, format!("does not open with `{command}`")));
        }
    }
}

/// Judges the pictures: each is what its text says.
pub(super) fn check_pictures(files: &[File], problems: &mut Vec<Problem>) {
    let is_drawn = |file: &&File| file.text.starts_with(draw::MARK) || file.name == plot::SAMPLES;
    for file in files.iter().filter(is_drawn) {
        let (picture, svg) = match file.name.as_str() {
            plot::SAMPLES => (plot::PICTURE.to_owned(), plot::svg(&file.text)),
            _ => (draw::picture_of(&file.name), draw::svg(&file.text)),
        };
        let drawn = files.iter().find(|file| file.name == picture);
        match svg {
            Err(error) => problems.push(file.problem(1, format!("cannot be drawn: {error:#}"))),
            Ok(svg) if drawn.is_none_or(|drawn| drawn.text != svg) => {
                problems.push(file.problem(1, format!("{picture} is not up to date: `cargo xtask draw`")));
            }
            Ok(_) => {}
        }
    }
}

/// Judges the texts together: the numbers of decision records are unique, and none of the texts is missing.
pub(super) fn check_set(files: &[File], problems: &mut Vec<Problem>) {
    let mut numbers: BTreeMap<&str, &File> = BTreeMap::new();
    for file in files.iter().filter(|file| is_record(&file.name)) {
        let number = &file.name["docs/adr/".len()..][.."0000".len()];
        if let Some(other) = numbers.insert(number, file) {
            problems.push(file.problem(1, format!("the number of {}", other.name)));
        }
    }
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/format.md"] {
        if !files.iter().any(|file| file.name == name) {
            problems.push(Problem { file: name.into(), line: 1, text: "is missing".into() });
        }
    }
}

/// `docs/adr/NNNN-title.md`.
fn is_record(name: &str) -> bool {
    let title = name.strip_prefix("docs/adr/").and_then(|rest| rest.split_at_checked(5));
    title.is_some_and(|(number, _)| {
        number.ends_with('-') && number[..4].bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn record(file: &File, problems: &mut Vec<Problem>) {
    for section in SECTIONS.iter().filter(|section| !file.text.lines().any(|line| line == **section)) {
        problems.push(file.problem(1, format!("no section `{section}`")));
    }
}

/// Targets of links to files of the tree, without their anchors.
fn links(line: &str) -> Vec<&str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with(['#', '<']));
    files.map(|target| target.split('#').next().unwrap_or(target)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that only links to files are followed, without their anchors.
    #[test]
    fn links_to_files_are_followed() {
        assert_eq!(links("see [a](b.md#c), [d](https://e.f) and [g](#h)"), ["b.md"]);
    }

    /// Proves that a decision record without one of its sections is found, and two with one number.
    #[test]
    fn records_are_complete_and_numbered() {
        let text = SECTIONS[..4].join("\n");
        let file = |name: &str| File { name: name.into(), text: text.clone() };
        let mut problems = Vec::new();
        record(&file("docs/adr/0001-a.md"), &mut problems);
        assert_eq!(problems.len(), 1);
        problems.clear();
        check_set(&[file("docs/adr/0001-a.md"), file("docs/adr/0001-b.md")], &mut problems);
        assert!(problems.iter().any(|problem| problem.text == "the number of docs/adr/0001-a.md"));
    }
}
