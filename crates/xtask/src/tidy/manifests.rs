//! Rules for the crates: which may use which, versions in one place, and one line of reason per dependency.

use std::collections::BTreeSet;

use super::{File, Problem};

/// What each of our crates may depend on outside its tests; none listed here is none allowed.
const DIRECTION: &[(&str, &[&str])] = &[
    ("ottla-protocol", &[]),
    ("ottla-env", &[]),
    ("ottla-core", &["ottla-protocol"]),
    ("ottla-storage", &["ottla-protocol", "ottla-env"]),
    ("ottla-broker", &["ottla-core", "ottla-storage", "ottla-protocol", "ottla-env"]),
    ("ottla-client", &["ottla-protocol", "ottla-env"]),
    ("ottla-doctest", &["ottla-broker", "ottla-env"]),
    ("ottla-streams", &["ottla-client", "ottla-env"]),
    ("ottla", &["ottla-broker", "ottla-client", "ottla-protocol", "ottla-env"]),
    (
        "ottla-sim",
        &["ottla-core", "ottla-storage", "ottla-broker", "ottla-client", "ottla-protocol", "ottla-env"],
    ),
    ("ottla-streams", &["ottla-client", "ottla-env"]),
    ("xtask", &[]),
];

/// Judges all manifests.
pub(super) fn check(files: &[File], problems: &mut Vec<Problem>) {
    for file in files {
        let parts: Vec<&str> = file.name.split('/').collect();
        if let ["crates", name, "Cargo.toml"] = parts[..] {
            direction(file, name, problems);
        }
    }
    let find = |name: &str| files.iter().find(|file| file.name == name);
    if let (Some(workspace), Some(list)) = (find("Cargo.toml"), find("docs/dependencies.md")) {
        reasons(workspace, list, problems);
    }
}

/// Entries of the tables whose header passes `wanted`: line number, name, rest of the line.
fn entries(file: &File, wanted: fn(&str) -> bool) -> Vec<(usize, &str, &str)> {
    let (mut inside, mut found) = (false, Vec::new());
    for (number, line) in file.lines() {
        if line.starts_with('[') {
            inside = wanted(line.trim());
        } else if inside && !line.trim_start().starts_with('#') {
            let end = line.find([' ', '.', '=']).unwrap_or(0);
            if end > 0 {
                found.push((number, &line[..end], &line[end..]));
            }
        }
    }
    found
}

/// Dependencies point one way, and their versions are the workspace's.
fn direction(file: &File, name: &str, problems: &mut Vec<Problem>) {
    let allowed = DIRECTION.iter().find(|(crate_name, _)| *crate_name == name).map(|(_, allowed)| *allowed);
    let Some(allowed) = allowed else {
        problems.push(file.problem(1, "a new crate: say in tidy's DIRECTION what it may depend on"));
        return;
    };
    let normal = |header: &str| header == "[dependencies]" || header == "[build-dependencies]";
    for (number, dependency, _) in entries(file, normal) {
        if dependency.starts_with("ottla") && !allowed.contains(&dependency) {
            problems.push(file.problem(number, format!("{name} must not depend on {dependency}")));
        }
    }
    for (number, dependency, rest) in entries(file, |header| header.ends_with("dependencies]")) {
        if !rest.contains("workspace = true") {
            problems.push(
                file.problem(number, format!("{dependency}: versions stand in the workspace's Cargo.toml")),
            );
        }
    }
}

/// docs/dependencies.md has exactly one row, ``| `name` | ...``, per foreign dependency of the workspace.
fn reasons(workspace: &File, list: &File, problems: &mut Vec<Problem>) {
    let used: BTreeSet<&str> = entries(workspace, |header| header == "[workspace.dependencies]")
        .iter()
        .filter(|(_, _, rest)| !rest.contains("path ="))
        .map(|(_, name, _)| *name)
        .collect();
    let mut listed = BTreeSet::new();
    for (number, line) in list.lines() {
        let Some((name, _)) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')) else {
            continue;
        };
        if !used.contains(name) {
            problems.push(list.problem(number, format!("{name} is not used any more")));
        }
        if !listed.insert(name) {
            problems.push(list.problem(number, format!("{name} is listed twice")));
        }
    }
    used.difference(&listed).for_each(|name| problems.push(list.problem(1, format!("{name} has no reason"))));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> File {
        File { name: name.into(), text: text.into() }
    }

    fn found(files: &[File]) -> Vec<String> {
        let mut problems = Vec::new();
        check(files, &mut problems);
        problems.iter().map(|problem| problem.text.clone()).collect()
    }

    /// Proves that a dependency against the direction is found, that tests may do it, and that a version of a
    /// crate's own is found.
    #[test]
    fn dependencies_point_one_way() {
        let text =
            "[dependencies]\nottla-env.workspace = true\n[dev-dependencies]\nottla-env.workspace = true\n";
        assert_eq!(
            found(&[file("crates/ottla-core/Cargo.toml", text)]),
            ["ottla-core must not depend on ottla-env"]
        );
        let text = "[dependencies]\nbytes = \"1\"\n";
        assert_eq!(found(&[file("crates/ottla-core/Cargo.toml", text)]).len(), 1);
    }

    /// Proves that the list of reasons and the workspace's dependencies are compared both ways.
    #[test]
    fn every_dependency_has_a_reason() {
        let workspace = file(
            "Cargo.toml",
            "[workspace.dependencies]\nottla = { path = \"x\" }\nbytes = \"1\"\nrand = { version = \"1\" }\n",
        );
        let list = file("docs/dependencies.md", "| `bytes` | why |\n| `gone` | why |\n");
        assert_eq!(found(&[workspace, list]), ["gone is not used any more", "rand has no reason"]);
    }
}
