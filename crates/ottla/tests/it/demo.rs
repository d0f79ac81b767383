//! The demonstration in small.

use serde_json::Value;

use crate::support::run;

fn verdict(arguments: &[&str]) -> (i32, Value) {
    let ran = run(&[&["demo", "--json"], arguments].concat());
    let last = ran.stdout.lines().last().unwrap_or_else(|| panic!("no verdict: {ran:?}"));
    (ran.code, serde_json::from_str(last).expect("an object"))
}

/// Proves that the demonstration ends with a clean verdict over a file's lines although everybody is killed, and
/// leaves nothing behind.
#[test]
fn exactly_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lines");
    let lines: String = (0..1500).map(|line| format!("line {line}\n")).collect();
    ottla_env::files::write(&file, lines.as_bytes()).expect("written");
    let path = file.to_str().expect("text");
    let (code, verdict) = verdict(&["--input", path, "--kills", "4", "--seed", "11"]);
    assert_eq!(code, 0, "{verdict}");
    for (name, expected) in [
        ("records_in", 1500),
        ("records_out", 1500),
        ("lost", 0),
        ("duplicated", 0),
        ("torn", 0),
        ("kills", 4),
        ("seed", 11),
    ] {
        assert_eq!(verdict[name], expected, "{name}: {verdict}");
    }
    assert!(verdict["committed"].as_u64() > Some(20), "{verdict}");
}

/// Proves that the same without transactions duplicates records, and loses none.
#[test]
fn at_least_once() {
    let (code, verdict) = verdict(&["--records", "2000", "--kills", "4", "--seed", "5", "--at-least-once"]);
    assert_eq!((code, &verdict["lost"]), (0, &0.into()), "{verdict}");
    assert!(verdict["duplicated"].as_u64() > Some(0), "{verdict}");
}

/// Proves that an input that cannot be used is named.
#[test]
fn bad_input() {
    let ran = run(&["demo", "--input", "/nonexistent/lines"]);
    assert!(ran.code == 1 && ran.stderr.contains("/nonexistent/lines"), "{ran:?}");
}
