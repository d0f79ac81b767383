//! The doctor on folders of real brokers: whole, in use, torn and damaged.

use std::collections::BTreeMap;
use std::path::Path;

use ottla_env::files;
use serde_json::{Value, json};

use crate::support::{Broker, run};

/// The bytes of every file in a folder.
fn image(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = std::process::Command::new("ls").arg("-A").arg(folder).output().expect("listed").stdout;
    let names = String::from_utf8(names).expect("text");
    let read =
        |name: &str| std::process::Command::new("cat").arg(folder.join(name)).output().expect("read").stdout;
    names.lines().map(|name| (name.to_owned(), read(name))).collect()
}

fn examined(folder: &Path) -> (i32, Value) {
    let ran = run(&["doctor", folder.to_str().expect("text"), "--json"]);
    (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}")))
}

/// Proves that the doctor refuses the folder of a running broker and leaves it alone, that it finds a stopped one's
/// whole, and that it changes no byte of it.
#[test]
fn whole_and_untouched() {
    let mut broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "-p", "1"], "");
    broker.ok(&["produce", "orders"], "a\nb\n");
    let folder = broker.data();
    let running = run(&["doctor", folder.to_str().expect("text")]);
    assert!(running.code == 3 && running.stderr.contains("a broker works on the folder"), "{running:?}");
    broker.ok(&["produce", "orders"], "c\n");
    assert!(broker.terminate());
    let before = image(&folder);
    let (code, found) = examined(&folder);
    assert_eq!((code, &found["whole"], &found["start"]["works"]), (0, &json!(true), &json!(true)), "{found}");
    assert!(found["topics"].as_array().expect("topics").iter().any(|topic| topic["topic"] == "orders"));
    let text = run(&["doctor", folder.to_str().expect("text")]);
    assert!(text.code == 0 && text.stdout.contains("there is nothing to do"), "{text:?}");
    assert!(image(&folder) == before, "a byte was changed");
    assert_eq!(run(&["doctor", "/no/such/folder"]).code, 1);
}

/// Proves that a damaged batch is found, with its topic, partition and offsets, and that the exit code says so.
#[test]
fn damage_is_named() {
    let mut broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "-p", "1"], "");
    broker.ok(&["produce", "orders"], "first\n");
    broker.ok(&["produce", "orders"], "find-me-in-the-file\n");
    broker.ok(&["produce", "orders"], "third\n");
    assert!(broker.terminate());
    let folder = broker.data();
    let needle = b"find-me-in-the-file";
    let place = image(&folder).into_iter().find_map(|(name, bytes)| {
        let at = bytes.windows(needle.len()).position(|window| window == needle)?;
        name.ends_with(".log").then_some((name, at))
    });
    let (name, at) = place.expect("the record is in a file of the log");
    let damage = std::process::Command::new("dd")
        .args([&format!("of={}", folder.join(&name).display()), "bs=1", "conv=notrunc", "count=1"])
        .arg(format!("seek={at}"))
        .arg("if=/dev/zero")
        .stderr(std::process::Stdio::null())
        .status();
    assert!(damage.expect("dd runs").success());
    let (code, found) = examined(&folder);
    assert_eq!(code, 4, "{found}");
    let file = found["files"].as_array().expect("files").iter().find(|file| file["file"] == json!(name));
    let holds = &file.expect("the file is listed")["damage"][0]["holds"][0];
    assert_eq!(
        (&holds["partition"], &holds["first_offset"], &holds["last_offset"]),
        (&json!(0), &json!(1), &json!(1)),
        "{found}"
    );
    let text = run(&["doctor", folder.to_str().expect("text")]).stdout;
    assert!(text.contains("offsets 1 to 1") && text.contains("what to do"), "{text}");
    let foreign = tempfile::tempdir().expect("a folder");
    drop(files::open_append(&foreign.path().join("letter.txt")).expect("written"));
    let ran = run(&["doctor", foreign.path().to_str().expect("text")]);
    assert!(ran.code == 1 && ran.stderr.contains("letter.txt"), "{ran:?}");
}
