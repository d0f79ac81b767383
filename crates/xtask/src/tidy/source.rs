//! Rules for Rust files: a module doc first, a length that can be read, reasons beside exceptions.

use super::{File, Problem};

/// Lines of a source file.
const LINES_MAX: usize = 800;
/// Lines of a test file: tables of cases are long.
const TEST_LINES_MAX: usize = 1_600;

/// Judges one file.
pub(super) fn check(file: &File, problems: &mut Vec<Problem>) {
    module_doc(file, problems);
    length(file, problems);
    exceptions(file, problems);
}

/// The first line that is no attribute is a `//!` doc.
fn module_doc(file: &File, problems: &mut Vec<Problem>) {
    if !file.text.lines().take(3).any(|line| line.starts_with("//!")) {
        problems.push(
            file.problem(1, "no module doc: purpose, place in the walk, invariants, what it does not do"),
        );
    }
}

fn length(file: &File, problems: &mut Vec<Problem>) {
    let lines = file.text.lines().count();
    let test = file.name.contains("/tests/") || file.name.ends_with("tests.rs");
    let most = if test { TEST_LINES_MAX } else { LINES_MAX };
    if lines > most {
        problems.push(
            file.problem(most, format!("{lines} lines, more than {most}: find the second module in it")),
        );
    }
}

/// Ignored tests and silenced lints carry their reason; `unsafe` has one home.
fn exceptions(file: &File, problems: &mut Vec<Problem>) {
    let mut previous = "";
    for (number, line) in file.lines() {
        let code = line.trim_start();
        if code == concat!("#[ign", "ore]") {
            problems.push(file.problem(number, "an ignored test without a reason"));
        }
        let silences =
            ["#[allow(", "#![allow(", "#[expect(", "#![expect("].iter().any(|word| code.starts_with(word));
        if silences
            && !code.contains("//")
            && !code.contains("reason =")
            && !previous.trim_start().starts_with("//")
        {
            problems.push(file.problem(number, "a silenced lint without its reason beside it"));
        }
        // What counts memory, a test or a measuring example, needs an allocator of its own; there is no safe way to
        // write one.
        let unsafe_home = ["/tests/", "/examples/"].iter().any(|folder| file.name.contains(folder))
            || file.name.starts_with("crates/ottla-storage/src/");
        if silences && code.contains("unsafe_code") && !unsafe_home {
            problems.push(file.problem(number, "unsafe code has one home, a module of ottla-storage"));
        }
        previous = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<usize> {
        let mut problems = Vec::new();
        check(&File { name: name.into(), text: text.into() }, &mut problems);
        problems.iter().map(|problem| problem.line).collect()
    }

    /// Proves that a file without a module doc is found, and one with it is not.
    #[test]
    fn a_module_doc_is_asked_for() {
        assert_eq!(found("crates/a/src/b.rs", "use x;\n"), [1]);
        assert!(found("crates/a/src/b.rs", "//! What it is for.\n").is_empty());
    }

    /// Proves that exceptions need a reason on their line or the one above.
    #[test]
    fn exceptions_need_a_reason() {
        assert_eq!(found("a.rs", "//! A.\n\n#[allow(x)]\n"), [3]);
        assert!(found("a.rs", "//! A.\n\n#[allow(x)] // since y\n// since z\n#[allow(x)]\n").is_empty());
        assert_eq!(found("a.rs", concat!("//! A.\n    #[ign", "ore]\n")), [2]);
        let counts = "//! A.\n\n#![allow(unsafe_code)] // it counts\n";
        assert_eq!(found("crates/a/src/b.rs", counts), [3]);
        for home in ["crates/ottla-storage/src/b.rs", "crates/a/tests/b.rs", "crates/a/examples/b.rs"] {
            assert!(found(home, counts).is_empty(), "{home}");
        }
    }

    /// Proves that a long source file is found while a test file of that length passes.
    #[test]
    fn length_has_a_limit() {
        let long = format!("//! A.\n{}", "x\n".repeat(LINES_MAX));
        assert_eq!(found("crates/a/src/b.rs", &long), [LINES_MAX]);
        assert!(found("crates/a/src/b/tests.rs", &long).is_empty());
    }
}
