//! The doctor on folders of real brokers: whole, in use, torn and damaged.

use std::collections::BTreeMap;
use std::path::Path;

use ottla_client::{
    GroupMetadata, OffsetToCommit, TopicPartition, TransactionalProducer, TransactionalSettings,
};
use ottla_env::files;
use serde_json::{Value, json};

use crate::support::{Broker, block_on, run};

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

/// A stopped folder with many small files, two snapshots, and rewritten files; and what was acknowledged in `t/0`.
fn damaged_ground(at: &Path) -> (std::path::PathBuf, u64) {
    let broker = Broker::start_with(&[
        "log.file.bytes=1048576",
        "snapshot.log.bytes=1048576",
        "log.rewrite.enable=true",
        "log.rewrite.file.bytes=1048576",
        "log.rewrite.run.bytes=1048576",
        "log.rewrite.run.age.ms=200",
        "log.rewrite.extent.bytes=1048576",
        "log.retention.check.interval.ms=200",
        "log.cleaner.enable=false",
    ]);
    broker.ok(&["topic", "create", "t", "-p", "1"], "");
    broker.ok(&["topic", "create", "u", "-p", "1"], "");
    block_on(async {
        let settings = TransactionalSettings::new(broker.client(), "an-id");
        let mut producer = TransactionalProducer::init(settings).await.expect("taken over");
        let transaction = producer.begin().await.expect("begun");
        let at = TopicPartition::new("t", 0);
        let group = GroupMetadata::without_members("a-group");
        transaction.send_offsets(&[OffsetToCommit::new(at, 7)], &group).await.expect("taken");
        transaction.commit().await.expect("committed");
    });
    let bulk = format!("{}\n", "z".repeat(60_000)).repeat(4);
    let mut written = 0;
    for _ in 0..40 {
        for topic in ["t", "u"] {
            broker.ok(&["produce", topic], &bulk);
        }
        written += 4;
        let names = image_names(&broker.data());
        if written > 60 && names.iter().any(|name| name.ends_with(".data")) {
            break;
        }
    }
    let mut broker = broker;
    assert!(broker.terminate());
    let kept = at.join("kept");
    assert!(
        std::process::Command::new("cp")
            .arg("-r")
            .args([&broker.data(), &kept])
            .status()
            .expect("cp")
            .success()
    );
    let (code, found) = examined(&kept);
    assert!(code == 0 && found["copied"] == json!(true), "the whole copy of a stopped folder: {found}");
    (kept, written)
}

fn image_names(folder: &Path) -> Vec<String> {
    let names = std::process::Command::new("ls").arg("-A").arg(folder).output().expect("listed").stdout;
    String::from_utf8(names).expect("text").lines().map(str::to_owned).collect()
}

/// A copy to be damaged that passes for an original, as a damaged disk would leave it.
fn scratch(kept: &Path, at: &Path, name: &str) -> std::path::PathBuf {
    let to = at.join(name);
    assert!(std::process::Command::new("cp").arg("-r").args([kept, &to]).status().expect("cp").success());
    files::write(&to.join("lock"), b"1\n").expect("written"); // a lock file of an older version: no copy to anybody
    to
}

fn flip(file: &Path, at: usize) {
    let mut bytes = files::read_bytes(file, 1 << 30).expect("read");
    bytes[at] ^= 0x10;
    files::write(file, &bytes).expect("written");
}

fn repaired(folder: &Path) -> (i32, Value) {
    let ran = run(&["doctor", folder.to_str().expect("text"), "--repair", "--json"]);
    (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}")))
}

/// Proves, for each kind of damage, that the doctor tells it with topic, partition and offsets where something is lost,
/// says what to do and changes nothing; and that a repair mends what can be mended, keeps the old bytes, and leaves
/// the rest as it is.
#[test]
#[allow(clippy::too_many_lines)] // one ground for all kinds: it takes long to make
fn every_kind_of_damage() {
    let at = tempfile::tempdir().expect("a folder");
    let (kept, written) = damaged_ground(at.path());
    let names = image_names(&kept);
    let of = |end: &str| names.iter().filter(|name| name.ends_with(end)).cloned().collect::<Vec<_>>();
    let (logs, rewritten, snapshots) = (of(".log"), of(".data"), of(".snapshot"));
    assert!(logs.len() > 1 && !rewritten.is_empty() && snapshots.len() == 2, "{names:?}");
    let untouched = |folder: &Path, name: &str, before: &BTreeMap<String, Vec<u8>>| {
        assert!(image(folder) == *before, "{name}: a byte was changed without --repair");
    };
    let look = |name: &str, damage: &dyn Fn(&Path)| {
        let folder = scratch(&kept, at.path(), name);
        damage(&folder);
        let before = image(&folder);
        let (code, found) = examined(&folder);
        untouched(&folder, name, &before);
        let text = run(&["doctor", folder.to_str().expect("text")]).stdout;
        (folder, code, found, text)
    };

    // a damaged snapshot: the one before is used, a repair puts it aside
    let newest = snapshots.last().expect("two").clone();
    let (folder, code, found, text) = look("snapshot", &|folder| flip(&folder.join(&newest), 300));
    assert_eq!((code, &found["start"]["works"]), (4, &json!(true)), "{found}");
    assert!(text.contains("takes the one before it") && text.contains("--repair"), "{text}");
    let damaged = files::read_bytes(&folder.join(&newest), 1 << 30).expect("read");
    let (code, after) = repaired(&folder);
    assert_eq!((code, &after["whole"]), (0, &json!(true)), "{after}");
    let aside = after["repaired"]["files"][0]["kept"].as_str().expect("a name");
    assert_eq!(files::read_bytes(&folder.join(aside), 1 << 30).expect("kept"), damaged);

    // a damaged footer: the start makes it anew
    let sealed = logs[logs.len() - 2].clone();
    let (_, code, found, text) = look("footer", &|folder| {
        let length = files::facts(&folder.join(&sealed)).expect("there").bytes as usize;
        flip(&folder.join(&sealed), length - 10);
    });
    assert_eq!((code, &found["start"]["works"]), (0, &json!(true)), "{found}");
    assert!(text.contains("next start makes it anew"), "{text}");

    // damaged frames in a rewritten file, and in a sealed file in front of the newest snapshot
    let data = rewritten.first().expect("one").clone();
    let (folder, code, found, text) = look("data", &|folder| flip(&folder.join(&data), 20_000));
    let lost = &found["not_readable"][0];
    assert_eq!((code, &found["start"]["works"]), (4, &json!(true)), "{found}");
    assert!(["t", "u"].contains(&lost["topic"].as_str().expect("its name")), "{found}");
    assert!(text.contains("not readable: ") && text.contains("KAFKA_STORAGE_ERROR"), "{text}");
    let (code, after) = repaired(&folder);
    assert_eq!((code, &after["not_readable"]), (4, &found["not_readable"]), "a repair makes no record up");
    assert_eq!(after["repaired"]["files"], json!([]));

    // a damaged header copy, then both of them
    let (folder, code, _, text) = look("header copy", &|folder| flip(&folder.join(&sealed), 40));
    assert!(code == 4 && text.contains("one of the two copies"), "{text}");
    assert_eq!(repaired(&folder).0, 0);
    let (folder, code, found, _) = look("headers", &|folder| {
        flip(&folder.join(&sealed), 40);
        flip(&folder.join(&sealed), 2048 + 40);
    });
    assert_eq!((code, &found["start"]["works"]), (4, &json!(false)), "{found}");
    let (code, after) = repaired(&folder);
    assert_eq!((code, &after["whole"]), (0, &json!(true)), "{after}");
    let whole = files::read_bytes(&kept.join(&sealed), 1 << 30).expect("read");
    let made = files::read_bytes(&folder.join(&sealed), 1 << 30).expect("read");
    assert!(made[4096..] == whole[4096..] && made[..44] == whole[..44], "it is what it was");

    // a rewritten file is missing, and one is cut
    let (_, code, found, text) =
        look("missing", &|folder| files::remove(&folder.join(&data)).expect("removed"));
    assert_eq!((code, &found["missing"]), (4, &json!([data])), "{found}");
    assert!(
        text.contains("MISSING") && !found["not_readable"].as_array().expect("a list").is_empty(),
        "{text}"
    );
    let (_, code, found, _) = look("cut", &|folder| {
        let bytes = files::read_bytes(&folder.join(&data), 1 << 30).expect("read");
        files::write(&folder.join(&data), &bytes[..bytes.len() / 2]).expect("written");
    });
    assert!(code == 4 && !found["not_readable"].as_array().expect("a list").is_empty(), "{found}");

    // a file of the chain is missing
    let (_, code, found, text) =
        look("missing log", &|folder| files::remove(&folder.join(&sealed)).expect("removed"));
    assert_eq!((code, &found["missing"]), (4, &json!([sealed])), "{found}");
    assert!(text.contains("what to do") && found["start"]["works"] == json!(false), "{text}");

    // no good snapshot is left, and the log does not begin at its first frame: the state is put together from the rest
    let (folder, code, found, text) = look("no snapshot", &|folder| {
        for snapshot in &snapshots {
            flip(&folder.join(snapshot), 300);
        }
    });
    assert_eq!((code, &found["start"]["works"]), (4, &json!(false)), "{found}");
    assert!(text.contains("makes a snapshot from all frames"), "{text}");
    let (code, after) = repaired(&folder);
    assert_eq!((code, &after["repaired"]["snapshot_made"]), (0, &json!(true)), "{after}");
    let (_, before) = examined(&kept);
    let names = |found: &Value| found["topics"].as_array().map(|topics| topics.len());
    assert_eq!(names(&after), names(&before));
    let broker = Broker::start_on(&folder);
    for topic in ["t", "u"] {
        let read = broker.ok(&["consume", topic, "--from", "beginning", "--until-end"], "");
        assert_eq!(read.lines().count() as u64, written, "{topic}");
    }
    broker.ok(&["produce", "t"], "goes on\n");
    let group = broker.ok(&["group", "describe", "a-group", "--json"], "");
    assert!(group.contains("7"), "{group}");
    assert!(broker.ok(&["txn", "list", "--json"], "").contains("\"CompleteCommit\""));
    drop(broker);

    // somebody else's file is left alone, a newer version is refused
    let (_, code, found, _) =
        look("foreign", &|folder| files::write(&folder.join("letter.txt"), b"x").expect("written"));
    assert_eq!((code, &found["unknown"]), (0, &json!(["letter.txt"])), "{found}");
    let folder = scratch(&kept, at.path(), "newer");
    let last = folder.join(logs.last().expect("some"));
    let mut bytes = files::read_bytes(&last, 1 << 30).expect("read");
    for copy in [0, 2048] {
        bytes[copy + 8..copy + 10].copy_from_slice(&99_u16.to_be_bytes());
    }
    files::write(&last, &bytes).expect("written");
    let before = image(&folder);
    for arguments in [&["--json"][..], &["--repair"]] {
        let mut all = vec!["doctor", folder.to_str().expect("text")];
        all.extend(arguments);
        let ran = run(&all);
        assert!(ran.code == 1 && ran.stderr.contains("format version 99"), "{ran:?}");
    }
    untouched(&folder, "newer", &before);
    assert!(written > 60);
}

/// Proves that a copy which has lost something is refused by a start and told so, and accepted as it is by a repair.
#[test]
fn a_copy_with_a_loss_is_accepted_on_demand() {
    let at = tempfile::tempdir().expect("a folder");
    let (kept, _) = damaged_ground(at.path());
    let data = image_names(&kept).into_iter().find(|name| name.ends_with(".data")).expect("a rewritten file");
    files::remove(&kept.join(data)).expect("removed");
    let (code, found) = examined(&kept);
    assert_eq!(
        (code, &found["start"]["works"], &found["copied"]),
        (4, &json!(false), &json!(true)),
        "{found}"
    );
    let (code, after) = repaired(&kept);
    assert_eq!(code, 4, "what is lost stays lost: {after}");
    assert_eq!((&after["start"]["works"], &after["copied"]), (&json!(true), &json!(false)), "{after}");
    assert_eq!(after["repaired"]["copy_accepted"], json!(true));
}
