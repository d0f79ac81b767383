//! Rules for the client's documentation: every public item has an example that runs.
//!
//! The rule, as docs/testing.md states it: a type, trait, alias or function has an example of its own. A method or
//! constant of a type has one of its own, or stands by its name in an example of the type or of another of its
//! methods; the methods of a trait likewise. An example is a code block that rustdoc runs: one that says `no_run`,
//! `ignore`, `compile_fail` or a language is none. Modules, fields and variants need none.
//!
//! It reads lines, not syntax: items stand on lines of their own, and an `impl` ends where its brace is closed at
//! the same depth, as rustfmt leaves them. What is `pub` is taken for public; the compiler's `unreachable_pub` sees
//! to that.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Problem};

/// The crate whose items need examples.
const SOURCES: &str = "crates/ottla-client/src/";
/// Its door: what it exports of others is judged too.
const DOOR: &str = "crates/ottla-client/src/lib.rs";
/// The crate it exports from.
const EXPORTED: &str = "ottla_protocol";

/// A public item.
struct Item<'a> {
    file: &'a File,
    line: usize,
    /// The type or trait that it belongs to; for a type its own name; empty for a function.
    owner: String,
    name: String,
    is_member: bool,
    examples: Vec<String>,
}

/// Judges the client.
pub(super) fn check(files: &[File], problems: &mut Vec<Problem>) {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| is_source(&file.name)) {
        found.extend(items(file));
    }
    for (module, names) in exported(files) {
        let name = format!("crates/{}/src/{module}.rs", EXPORTED.replace('_', "-"));
        let Some(file) = files.iter().find(|file| file.name == name) else { continue };
        found.extend(items(file).into_iter().filter(|item| names.contains(&item.owner)));
    }
    judge(&found, problems);
}

fn is_source(name: &str) -> bool {
    let of_tests = name.ends_with("tests.rs") || name.contains("/tests/") || name.contains("/bin/");
    name.starts_with(SOURCES) && name.ends_with(".rs") && !of_tests
}

fn judge(items: &[Item<'_>], problems: &mut Vec<Problem>) {
    let mut shared: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for item in items {
        shared.entry(&item.owner).or_default().extend(item.examples.iter().map(String::as_str));
    }
    for item in items.iter().filter(|item| item.examples.is_empty()) {
        let examples = shared.get(item.owner.as_str());
        let shown =
            item.is_member && examples.is_some_and(|all| all.iter().any(|text| names(text, &item.name)));
        if !shown {
            let of = if item.is_member { format!("{}::", item.owner) } else { String::new() };
            let hint = if item.is_member { ", and none of its type's examples names it" } else { "" };
            problems.push(
                item.file.problem(item.line, format!("{of}{} has no example that runs{hint}", item.name)),
            );
        }
    }
}

/// Whether an example uses something of that name: a call, a path or a function of a trait.
fn names(example: &str, name: &str) -> bool {
    example.match_indices(name).any(|(at, _)| {
        let (before, after) = (&example[..at], &example[at + name.len()..]);
        let ends = !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        ends && [".", "::", "fn "].iter().any(|lead| before.ends_with(lead))
    })
}

/// What the door exports of the other crate: names by module.
fn exported(files: &[File]) -> BTreeMap<String, BTreeSet<String>> {
    let mut exported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let Some(door) = files.iter().find(|file| file.name == DOOR) else { return exported };
    for (_, line) in door.lines() {
        let Some(path) = line.strip_prefix("pub use ").and_then(|rest| rest.strip_prefix(EXPORTED)) else {
            continue;
        };
        if let Some((module, names)) = path.trim_start_matches("::").trim_end_matches(';').rsplit_once("::") {
            let names = names.trim_matches(['{', '}']).split(',').map(|name| name.trim().to_owned());
            exported.entry(module.replace("::", "/")).or_default().extend(names);
        }
    }
    exported
}

/// The public items of a file. What stands behind the first `#[cfg(test)] mod` is not read.
fn items(file: &File) -> Vec<Item<'_>> {
    let (mut found, mut doc) = (Vec::new(), Vec::new());
    // the `impl`, trait or list of setters that is open: its owner, its closing line, whether it is a trait
    let mut open: Vec<(String, String, Body)> = Vec::new();
    let mut test_module = false;
    for (line, text) in file.lines() {
        let code = text.trim_start();
        if test_module && code.starts_with("mod ") && code.ends_with('{') {
            break;
        }
        test_module = code == "#[cfg(test)]";
        if let Some(comment) = code.strip_prefix("///") {
            doc.push(comment.strip_prefix(' ').unwrap_or(comment));
            continue;
        }
        if code.starts_with("#[") || code.starts_with(")]") {
            continue;
        }
        if open.last().is_some_and(|(_, end, _)| text == end) {
            open.pop();
        }
        let depth = &text[..text.len() - code.len()];
        let within = open.last().map(|(owner, _, body)| (owner.as_str(), *body));
        // a macro's own name for what it makes is empty here
        let item = item(code, within).filter(|(name, ..)| !name.is_empty());
        if let Some((name, owner, is_member)) = item {
            let examples = examples(&doc);
            found.push(Item { file, line, owner, name, is_member, examples });
        }
        doc.clear();
        if let Some((owner, body)) = opens(code, within) {
            open.push((owner, format!("{depth}}}"), body));
        }
    }
    found
}

/// What kind of lines stand in an open brace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Body {
    Impl,
    Trait,
    Setters,
}

/// The item that a line begins: its name, its owner, and whether it is a member of that.
fn item(code: &str, within: Option<(&str, Body)>) -> Option<(String, String, bool)> {
    let word =
        |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let member = |name: String, owner: &str| Some((name, owner.to_owned(), true));
    match within {
        Some((owner, Body::Trait)) => code.strip_prefix("fn ").and_then(|rest| member(word(rest), owner)),
        Some((owner, Body::Setters)) => {
            let name = word(code);
            (!name.is_empty() && code[name.len()..].starts_with(':')).then(|| member(name, owner))?
        }
        _ => {
            let rest = code.strip_prefix("pub ")?;
            let rest = if rest.starts_with("const fn ") { &rest["const ".len()..] } else { rest };
            let rest = rest.strip_prefix("async ").unwrap_or(rest);
            let (kind, rest) = rest.split_once(' ')?;
            let name = word(rest);
            match (kind, within) {
                ("fn" | "const", Some((owner, Body::Impl))) => member(name, owner),
                ("struct" | "enum" | "trait" | "type", _) => Some((name.clone(), name, false)),
                ("fn" | "const" | "static", None) => Some((name, String::new(), false)),
                _ => None,
            }
        }
    }
}

/// The braces that a line opens.
fn opens(code: &str, within: Option<(&str, Body)>) -> Option<(String, Body)> {
    if !code.ends_with('{') {
        return None;
    }
    let word =
        |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    if let Some(rest) = code.strip_prefix("pub trait ") {
        return Some((word(rest), Body::Trait));
    }
    if let (true, Some((owner, Body::Impl))) = (code.starts_with("setters! {"), within) {
        return Some((owner.to_owned(), Body::Setters));
    }
    let rest = code.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.trim_start() };
    // the methods of a trait are documented there
    (!rest.contains(" for ")).then(|| (word(rest), Body::Impl))
}

/// The code blocks of a documentation that rustdoc runs.
fn examples(doc: &[&str]) -> Vec<String> {
    let (mut found, mut block): (Vec<String>, Option<(bool, String)>) = (Vec::new(), None);
    for line in doc {
        match (&mut block, line.trim().strip_prefix("```")) {
            (None, Some(words)) => {
                block = Some((matches!(words, "" | "rust" | "should_panic"), String::new()))
            }
            (Some(_), Some(_)) => {
                let (runs, text) = block.take().expect("one is open");
                found.extend(runs.then_some(text));
            }
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let file = File { name: format!("{SOURCES}a.rs"), text: text.to_owned() };
        let mut problems = Vec::new();
        check(&[file], &mut problems);
        problems.iter().map(|problem| format!("{}: {}", problem.line, problem.text)).collect()
    }

    /// Proves that items without an example are found with their line, whatever kind of item they are, and that a
    /// block which rustdoc does not run is no example.
    #[test]
    fn items_without_examples_are_found() {
        let text = "/// A.\npub struct A;\n\n/// ```no_run\n/// b();\n/// ```\npub fn b() {}\n\n/// ```\n/// x\n\
                    /// ```\n#[derive(Debug)]\npub enum C {}\n\nimpl C {\n    /// D.\n    pub async fn d() {}\n}\n\
                    pub(crate) fn e() {}\npub mod f;\n#[cfg(test)]\nmod tests {\n    pub fn g() {}\n}\n";
        let found = found(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("2: A has no example"), "{found:?}");
        assert!(found[1].starts_with("7: b has no example"), "{found:?}");
        assert!(found[2].starts_with("17: C::d has no example"), "{found:?}");
    }

    /// Proves that members share examples of their type only when one names them, also through a list of setters
    /// and in a trait.
    #[test]
    fn members_share_the_examples_that_name_them() {
        let text = "/// ```\n/// A::new().set(1).go();\n/// ```\npub struct A;\n\nimpl<T> A {\n    pub const fn new() {}\n\
                    \n    setters! {\n        /// S.\n        set: u8,\n        /// T.\n        unset: u8,\n    }\n\n    \
                    pub fn go(&self) {}\n    pub fn go_on(&self) {}\n}\n\nimpl Drop for A {\n    fn drop() {}\n}\n\n\
                    /// ```\n/// fn told() {}\n/// ```\npub trait B {\n    fn told();\n    fn asked();\n}\n";
        let found = found(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("A::unset") && found[1].contains("A::go_on"), "{found:?}");
        assert!(found[2].contains("B::asked"), "{found:?}");
    }

    /// Proves that what the client exports of the protocol is judged, and nothing else of it.
    #[test]
    fn exported_items_are_judged() {
        let text =
            "pub use ottla_protocol::error::ErrorCode;\npub use ottla_protocol::types::{Text, Uuid};\n";
        let door = File { name: DOOR.to_owned(), text: text.to_owned() };
        let types = "pub struct Text;\npub struct Uuid;\npub struct Other;\n".to_owned();
        let types = File { name: "crates/ottla-protocol/src/types.rs".to_owned(), text: types };
        let mut problems = Vec::new();
        check(&[door, types], &mut problems);
        let found: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(found, [1, 2]);
    }
}
