//! The engine on disk against SIGKILL and cut logs, with real processes.
//!
//! A child writes batches whose content follows from their number; the parent kills it at a random moment, opens the
//! folder and compares everything with the model of the number that it finds there. The negative control (families
//! flushed one by one, no log) must be caught by the same comparison, or the comparison shows nothing.
#![cfg(feature = "rocksdb")]

#[path = "rocks_kill/model.rs"]
mod model;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ottla_env::process::{self, Output};
use ottla_env::rng::{Rng, SeededRng};
use ottla_env::{files, time};
use ottla_streams::engine::rocks::{RocksEngine, RocksSettings, RocksShared};
use ottla_streams::engine::{Engine, EngineError};

use model::{Model, NAMES, batch, number_in, same};

/// How the child is told what to do; it does nothing without.
const VARIABLE: &str = "OTTLA_ROCKS_KILL_CHILD";

fn settings(mode: &str) -> RocksSettings {
    let defaults = RocksSettings::default();
    match mode {
        "wal" => defaults,
        // A budget that is passed every few batches, so that kills hit flushes.
        "wal-small" => RocksSettings { memtable_bytes: 1 << 20, ..defaults },
        "off" => RocksSettings { wal: false, memtable_bytes: 1 << 20, ..defaults },
        "control" => RocksSettings { wal: false, broken_flush_per_family: true, ..defaults },
        other => panic!("no mode {other}"),
    }
}

fn open(folder: &Path, mode: &str) -> Result<RocksEngine, EngineError> {
    RocksEngine::open(folder, &NAMES, &RocksShared::new(settings(mode)))
}

/// The child of the tests below; a test of nothing when it is started by anybody else.
#[test]
#[ignore = "a process that is killed: `cargo test -p ottla-streams --test rocks_kill` starts it"]
fn child() {
    let Ok(told) = std::env::var(VARIABLE) else { return };
    let (mode, folder) = told.split_once(':').expect("mode and folder");
    let mut engine = open(Path::new(folder), mode).expect("opened");
    let mut number = number_in(&engine);
    let mut out = std::io::stdout();
    loop {
        number += 1;
        engine.write(batch(number)).expect("written");
        if ["wal-small", "off"].contains(&mode) && number.is_multiple_of(41) {
            engine.flush().expect("flushed");
        }
        writeln!(out, "@{number}").and_then(|()| out.flush()).expect("the parent reads");
    }
}

/// Starts a child, kills it a moment after its first batch, and gives the last number that it saw written.
fn run_and_kill(mode: &str, folder: &Path, rng: &mut SeededRng) -> u64 {
    let program = process::current_program().expect("a program");
    let set = format!("{VARIABLE}={mode}:{}", folder.display());
    let arguments = [OsStr::new(&set), program.as_os_str(), OsStr::new("child")];
    let arguments: Vec<&OsStr> =
        arguments.into_iter().chain(["--exact", "--ignored", "--nocapture"].map(OsStr::new)).collect();
    let mut child =
        process::spawn(OsStr::new("env"), &arguments, false, Output::Piped, Output::Null).expect("started");
    let mut lines = BufReader::new(child.take_stdout().expect("piped")).lines();
    let batches = 1 + rng.below(150);
    let pause = Duration::from_micros(rng.below(3_000));
    let mut last = 0;
    let mut take = |line: std::io::Result<String>| match line {
        Ok(line) => {
            line.strip_prefix('@').and_then(|number| number.parse().ok()).inspect(|number| last = *number)
        }
        Err(_) => None,
    };
    let mut seen = 0;
    while seen < batches {
        let line = lines.next().expect("the child writes until it is killed");
        seen += u64::from(take(line).is_some());
    }
    let deadline = time::now() + pause;
    while time::now() < deadline {
        std::hint::spin_loop();
    }
    child.kill().expect("killed");
    lines.for_each(|line| {
        let _ = take(line);
    });
    last
}

struct Outcome {
    kills: u32,
    inconsistent: u32,
    behind_max: u64,
    last: u64,
}

fn kill_loop(mode: &str, kills_max: u32, until_caught: bool) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("db");
    let mut rng = SeededRng::new(7);
    let mut outcome = Outcome { kills: 0, inconsistent: 0, behind_max: 0, last: 0 };
    let mut before = 0;
    while outcome.kills < kills_max && !(until_caught && outcome.inconsistent > 0) {
        let written = run_and_kill(mode, &path, &mut rng);
        assert!(written > before, "every child goes on where the folder is");
        outcome.kills += 1;
        let engine = open(&path, mode).expect("a killed engine opens");
        let number = number_in(&engine);
        outcome.behind_max = outcome.behind_max.max(written.saturating_sub(number));
        if !same(&engine, &Model::at(number)) {
            outcome.inconsistent += 1;
        }
        before = number;
        outcome.last = number;
    }
    eprintln!(
        "{mode}: {} kills, {} inconsistent, at most {} batches behind, last batch {before}",
        outcome.kills, outcome.inconsistent, outcome.behind_max
    );
    outcome
}

/// Proves C5 and C7 with the log: after SIGKILL at any moment, in writes and in flushes, the engine opens, no batch
/// that was written is missing, and none is there in part.
#[test]
fn c5_killed_with_the_log_loses_nothing() {
    for (mode, kills) in [("wal", 12), ("wal-small", 12)] {
        let outcome = kill_loop(mode, kills, false);
        assert_eq!((outcome.inconsistent, outcome.behind_max), (0, 0), "{mode}");
    }
}

/// Proves C7 without the log: some batch boundary is found, never a part of a batch.
#[test]
fn c7_killed_without_the_log_is_an_older_boundary() {
    let outcome = kill_loop("off", 12, false);
    assert_eq!(outcome.inconsistent, 0);
    assert!(outcome.last > 41, "flushes kept something: {}", outcome.last);
}

/// Proves that the comparison sees what it must: an engine whose families go to files one by one, without a log.
#[test]
fn control_flush_per_family_is_caught() {
    let outcome = kill_loop("control", 20, true);
    assert_eq!(outcome.inconsistent, 1, "not caught in {} kills", outcome.kills);
}

fn copy_tree(from: &Path, to: &Path) {
    files::create_folders(to).expect("made");
    for path in files::list_folder(from).expect("listed") {
        let name = path.file_name().expect("a name");
        files::write(&to.join(name), &files::read_bytes(&path, 1 << 30).expect("read")).expect("written");
    }
}

/// The logs of a folder, oldest first.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let mut found = files::list_folder(folder).expect("listed");
    found.retain(|path| path.extension().is_some_and(|end| end == "log"));
    found
}

fn cut(path: &Path, bytes: usize) {
    let content = files::read_bytes(path, 1 << 30).expect("read");
    files::write(path, &content[..bytes]).expect("written");
}

/// Opens a folder that lost something and compares; the number that was found, or none when it was refused.
fn opened_at(folder: &Path, what: &str) -> Option<u64> {
    match open(folder, "wal") {
        Ok(engine) => {
            let number = number_in(&engine);
            assert!(same(&engine, &Model::at(number)), "{what}: batch {number} is there in part");
            Some(number)
        }
        Err(EngineError::Corrupt { .. }) => None,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Proves C6: a log that lost its tail, at any of many places, opens at some whole batch, and the longer what is left,
/// the later the batch.
#[test]
fn c6_cut_log_is_an_older_boundary() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = folder.path().join("whole");
    let mut engine = open(&whole, "wal").expect("opened");
    (1..=120).for_each(|number| engine.write(batch(number)).expect("written"));
    drop(engine);
    let log = logs(&whole).pop().expect("a log");
    let length = files::read_bytes(&log, 1 << 30).expect("read").len();
    let (cuts, mut last) = (97, 0);
    for step in 0..=cuts {
        let copy = folder.path().join(format!("cut-{step}"));
        copy_tree(&whole, &copy);
        cut(&copy.join(log.file_name().expect("a name")), length * step / cuts);
        let number =
            opened_at(&copy, &format!("cut {step}")).expect("a lost tail that was never synced opens");
        assert!(number >= last, "cut {step}: {number} after {last}");
        last = number;
        files::remove_tree(&copy).expect("removed");
    }
    assert_eq!(last, 120, "nothing cut, nothing lost");
}

/// Proves that a hole between two logs is found: the first one cut, the second whole, and the manifest from before the
/// flush, as after a power cut in the middle of it. The engine opens at or before the cut, or refuses; it never skips
/// the hole.
#[test]
fn c6_hole_between_two_logs_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let live = folder.path().join("live");
    let mut engine = open(&live, "wal").expect("opened");
    (1..=60).for_each(|number| engine.write(batch(number)).expect("written"));
    let before = folder.path().join("before");
    copy_tree(&live, &before);
    engine.flush().expect("flushed");
    (61..=120).for_each(|number| engine.write(batch(number)).expect("written"));
    let second = logs(&live).pop().expect("a log");
    let first = logs(&before).pop().expect("a log");
    assert_ne!(first.file_name(), second.file_name());
    let length = files::read_bytes(&first, 1 << 30).expect("read").len();
    let (cuts, mut refused, mut opened) = (40, 0, 0);
    for step in 0..=cuts {
        let copy = folder.path().join(format!("cut-{step}"));
        copy_tree(&before, &copy);
        cut(&copy.join(first.file_name().expect("a name")), length * step / cuts);
        files::write(
            &copy.join(second.file_name().expect("a name")),
            &files::read_bytes(&second, 1 << 30).expect("read"),
        )
        .expect("written");
        match opened_at(&copy, &format!("cut {step} of {cuts}")) {
            None => refused += 1,
            Some(number) => {
                opened += 1;
                assert!(number <= 60 || step == cuts, "cut {step}: {number} lies behind the hole");
                assert!(step < cuts || number == 120, "nothing cut, nothing lost");
            }
        }
        files::remove_tree(&copy).expect("removed");
    }
    eprintln!("hole between logs: {opened} opened at or before it, {refused} refused");
}

/// Proves that a copy of an engine, taken between batches, is an engine at exactly that batch, log or not.
#[test]
fn checkpoint_is_a_boundary() {
    for mode in ["wal", "off"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut engine = open(&folder.path().join("db"), mode).expect("opened");
        for number in 1..=90 {
            engine.write(batch(number)).expect("written");
            if number % 30 == 0 {
                let copy = folder.path().join(format!("copy-{number}"));
                engine.checkpoint(&copy).expect("copied");
                let copy = open(&copy, mode).expect("opened");
                assert_eq!(number_in(&copy), number, "{mode}");
                assert!(same(&copy, &Model::at(number)), "{mode} at {number}");
            }
        }
    }
}

/// Proves that the budget for memory that is not in files holds over engines, and that an idle one is flushed too.
#[test]
fn memory_budget_is_shared() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = RocksShared::new(RocksSettings { memtable_bytes: 2 << 20, ..RocksSettings::default() });
    let engine = |name: &str| RocksEngine::open(&folder.path().join(name), &NAMES, &shared).expect("opened");
    let (mut idle, mut busy) = (engine("idle"), engine("busy"));
    let mut number = 0;
    while idle.stats().memtable_bytes < 3 << 19 {
        number += 1;
        idle.write(batch(number)).expect("written");
    }
    for number in 1..=2_000 {
        busy.write(batch(number)).expect("written");
        assert!(shared.memtable_bytes() <= 2 << 20, "after batch {number}: {}", shared.memtable_bytes());
    }
    assert!(idle.stats().disk_bytes > 0, "the idle engine was flushed");
    assert!(busy.stats().disk_bytes > 0 || busy.stats().memtable_bytes < 2 << 20);
    assert!(same(&idle, &Model::at(number)) && same(&busy, &Model::at(2_000)));
    drop(idle);
    let idle = engine("idle");
    assert_eq!(number_in(&idle), number);
}

/// A small file system of its own, where we may make one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let options = format!("size={size}");
        let path = folder.path().display().to_string();
        let arguments = ["-t", "tmpfs", "-o", &options, "tmpfs", &path];
        let mounted = process::spawn(OsStr::new("mount"), &arguments, false, Output::Null, Output::Null)
            .and_then(|mut mount| mount.wait());
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let path = self.0.path().display().to_string();
        let unmounted =
            process::spawn(OsStr::new("umount"), &["-l", &path], false, Output::Null, Output::Null);
        assert!(unmounted.and_then(|mut umount| umount.wait()).is_ok(), "{path} stays mounted");
    }
}

/// Proves C14 on a disk that is full: the batch is refused as an error of the disk, reads go on, no part of it is
/// there, and the same batch goes through when there is room again, without opening the engine again.
#[test]
fn c14_full_disk() {
    let Some(disk) = SmallDisk::mount("6m") else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let filler = disk.0.path().join("filler");
    files::write(&filler, &vec![7; 5 << 20]).expect("written");
    let folder = disk.0.path().join("db");
    let mut engine = open(&folder, "wal-small").expect("opened");
    let mut number = 0;
    let error = loop {
        assert!(number < 5_000, "the disk does not fill up");
        if let Err(error) = engine.write(batch(number + 1)) {
            break error;
        }
        number += 1;
    };
    assert!(matches!(error, EngineError::Io { during: "written", .. }), "{error}");
    let seen = number_in(&engine);
    assert!(seen == number || seen == number + 1, "whole or absent: {seen} after {number}");
    assert!(same(&engine, &Model::at(seen)));
    files::remove(&filler).expect("removed");
    let deadline = time::now() + Duration::from_secs(30);
    let mut tries = 0;
    while let Err(error) = engine.write(batch(number + 1)) {
        assert!(matches!(error, EngineError::Io { .. }), "{error}");
        assert!(time::now() < deadline, "{error}");
        tries += 1;
        pause(50);
    }
    eprintln!("full after batch {number}; with room again it took {tries} more tries");
    assert!(same(&engine, &Model::at(number + 1)));
    drop(engine);
    let engine = open(&folder, "wal-small").expect("opened");
    assert_eq!(number_in(&engine), number + 1);
    assert!(same(&engine, &Model::at(number + 1)));
}

fn pause(ms: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(ms));
}
