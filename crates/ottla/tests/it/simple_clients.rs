//! The example for authors of small clients, against a broker that is killed under it.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use ottla_env::spawn;

use crate::support::Broker;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/simple_producer.py");

/// Whether there is a Python to run the example. `cargo xtask test` installs one; elsewhere the test says that it
/// was left out.
fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let has = found.is_ok_and(|status| status.success());
    assert!(has || std::env::var_os("CI").is_none(), "python3 is missing");
    if !has {
        eprintln!("left out: python3 is missing");
    }
    has
}

/// Proves that the example stays what it promises to be: under 300 lines, with nothing but the standard library, and
/// without a look for coordinators (API key 10).
#[test]
fn the_example_is_small() {
    let text = ottla_env::files::read_text(PROGRAM.as_ref(), 1 << 20).expect("it is there");
    assert!(text.lines().count() < 300, "{} lines", text.lines().count());
    let imports: Vec<&str> = text.lines().filter(|line| line.starts_with("import ")).collect();
    let allowed = ["argparse", "os", "socket", "struct", "sys", "time"].map(|name| format!("import {name}"));
    assert_eq!(imports, allowed.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(!text.contains("\nfrom ") && !text.contains("FIND_COORDINATOR"));
}

/// Proves that every line is stored once and in order while the broker is killed by SIGKILL five times under the
/// producer, which only ever reconnects and repeats.
#[test]
fn once_and_in_order_over_kills() {
    if !has_python() {
        return;
    }
    let mut broker = Broker::start();
    broker.ok(&["topic", "create", "lines", "-p", "1"], "");
    let mut child = Command::new("python3")
        .args([
            PROGRAM,
            "--bootstrap",
            &broker.address,
            "--topic",
            "lines",
            "--batch",
            "20",
            "--timeout",
            "5",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut stdin = child.stdin.take().expect("piped");
    let lines = 4000;
    let feed = spawn::thread("feed", move || {
        for number in 0..lines {
            if writeln!(stdin, "line {number}").is_err() {
                return; // it has given up, and says why
            }
            if number % 20 == 0 {
                spawn::runtime(1)
                    .expect("a runtime")
                    .block_on(ottla_env::time::sleep(Duration::from_millis(10)));
            }
        }
    })
    .expect("a thread");
    for _ in 0..5 {
        spawn::runtime(1).expect("a runtime").block_on(ottla_env::time::sleep(Duration::from_millis(400)));
        broker.kill_and_restart();
    }
    feed.join().expect("fed");
    let mut output = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut output.0).expect("text");
    child.stderr.take().expect("piped").read_to_string(&mut output.1).expect("text");
    assert!(child.wait().expect("ended").success(), "{output:?}");
    assert!(output.0.starts_with("stored 4000 records"), "{output:?}");
    assert!(output.1.contains("again: "), "no kill was noticed: {output:?}");
    let read = broker.ok(&["consume", "lines", "--from", "beginning", "--until-end"], "");
    let expected: String = (0..lines).map(|number| format!("line {number}\n")).collect();
    assert!(read == expected, "{} lines, {} expected", read.lines().count(), lines);
}

/// Proves that the example ends with a reason where repeating cannot help: the topic's name is refused.
#[test]
fn it_gives_up_with_a_reason() {
    if !has_python() {
        return;
    }
    let broker = Broker::start();
    let mut child = Command::new("python3")
        .args([PROGRAM, "--bootstrap", &broker.address, "--topic", "no/such"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    child.stdin.take().expect("piped").write_all(b"x\n").expect("fed");
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
    assert_eq!(child.wait().expect("ended").code(), Some(1));
    assert!(errors.contains("given up behind 0 records") && errors.contains("INVALID_TOPIC"), "{errors}");
}
