//! Results kept in the docs: each command owns one section of a Markdown file, between two comments.
//!
//! A section is replaced as a whole, so that a run leaves exactly its own result and the date and commit it was
//! made with. Text outside the sections is written by people.

use std::path::Path;

use anyhow::{Context, Result};

use crate::run;

/// Replaces the section `name` of the file, or adds it at the end. `title` heads a new section.
pub(crate) fn write_section(path: &Path, name: &str, title: &str, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let new = with_section(&old, name, title, text);
    std::fs::write(path, new).with_context(|| format!("cannot write {}", path.display()))?;
    run::step(&format!("wrote section {name} of {}", path.display()));
    Ok(())
}

/// Date, commit and machine of a result, in one line.
pub(crate) fn stamp() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, commit {}, {cores} cores", run::date(), run::commit())
}

fn with_section(old: &str, name: &str, title: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->"), format!("<!-- end {name} -->"));
    let body = format!("{begin}\n{}\n{end}", text.trim());
    let place = old.find(&begin).and_then(|from| Some((from, from + old[from..].find(&end)? + end.len())));
    match place {
        Some((from, to)) => format!("{}{body}{}", &old[..from], &old[to..]),
        None => format!("{}\n\n## {title}\n\n{body}\n", old.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a section is replaced in its place and that nothing around it changes.
    #[test]
    fn a_section_is_replaced_in_place() {
        let old = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n";
        assert_eq!(with_section(old, "x", "X", "new\n"), "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n");
    }

    /// Proves that a section which is not there yet is added at the end under its title, and found next time.
    #[test]
    fn a_new_section_is_added_once() {
        let once = with_section("a\n", "x", "X", "1");
        assert_eq!(once, "a\n\n## X\n\n<!-- begin x -->\n1\n<!-- end x -->\n");
        assert_eq!(with_section(&once, "x", "X", "2"), once.replace('1', "2"));
    }
}
