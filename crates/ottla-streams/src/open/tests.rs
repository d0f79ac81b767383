//! Damaged folders of real RocksDB engines.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_env::files;

use super::*;
use crate::engine::rocks::RocksSettings;
use crate::engine::{Direction, KeyRange, StoreId};
use crate::record::TaskId;
use crate::state::StoreKind;
use crate::state_dir::StateDir;

const TASK: TaskId = TaskId { sub_topology: 0, partition: 0 };
const S: StoreId = StoreId(0);

fn specs() -> Vec<StoreSpec> {
    vec![StoreSpec { name: "s".into(), kind: StoreKind::KeyValue, changelog: Some("app.s.changelog".into()) }]
}

fn opener() -> StateOpener {
    StateOpener::new(EngineKind::Rocks(RocksShared::new(RocksSettings::default())))
}

fn fill(state: &mut TaskState, commits: u64) {
    for n in state.meta().seq..commits {
        for key in 0..50u8 {
            state
                .put(S, Bytes::from(vec![key]), Some(Bytes::from(n.to_string().repeat(40))))
                .expect("written");
        }
        let mut meta = state.meta().clone();
        (meta.seq, meta.stores[0].position) = (n + 1, i64::try_from(n + 1).expect("small"));
        state.apply(meta).expect("written");
    }
}

/// Files of a folder by the end of their name.
fn ending(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = files::list_folder(folder).expect("listed");
    found.retain(|path| path.to_string_lossy().ends_with(end));
    found
}

fn flip(path: &Path) {
    let mut bytes = files::read_bytes(path, 64 << 20).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle..].iter_mut().take(64).for_each(|byte| *byte ^= 0x5a);
    files::write(path, &bytes).expect("written");
}

type Damage = fn(&Path);

/// Proves C16: whatever is done to the files of an engine, it is either opened at one of its boundaries or set aside
/// whole with a note, an empty one takes its place, and nothing is removed.
#[test]
fn c16_damaged_engine_is_set_aside() {
    let damages: BTreeMap<&str, Damage> = BTreeMap::from([
        ("flipped table", (|folder: &Path| flip(&ending(folder, ".sst")[0])) as Damage),
        ("missing table", |folder| files::remove(&ending(folder, ".sst")[0]).expect("removed")),
        ("short table", |folder| files::write(&ending(folder, ".sst")[0], b"short").expect("written")),
        ("missing CURRENT", |folder| files::remove(&folder.join("CURRENT")).expect("removed")),
        ("empty CURRENT", |folder| files::write(&folder.join("CURRENT"), b"").expect("written")),
        ("missing MANIFEST", |folder| {
            let manifests: Vec<PathBuf> = files::list_folder(folder)
                .expect("listed")
                .into_iter()
                .filter(|path| path.to_string_lossy().contains("MANIFEST"))
                .collect();
            manifests.iter().for_each(|path| files::remove(path).expect("removed"));
        }),
    ]);
    for (name, damage) in damages {
        let dir = tempfile::tempdir().expect("a folder");
        let root = StateDir::open(dir.path(), "app").expect("opened");
        let task = root.task(TASK).expect("made");
        let mut state = opener().open(&task, Place::Current, &specs(), 1).expect("opened").state;
        fill(&mut state, 5);
        state.flush().expect("flushed");
        drop(state);
        damage(&task.current());
        let before = files::tree_bytes(&task.current()).expect("counted");
        let opened = opener().open(&task, Place::Current, &specs(), 1);
        let opened = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
        match opened.set_aside {
            Some((aside, why)) => {
                assert_eq!(opened.state.meta().stores[0].position, 0, "{name}");
                assert_eq!(opened.state.scan(S, &KeyRange::ALL, Direction::Forward).count(), 0, "{name}");
                assert!(files::tree_bytes(&aside).expect("counted") >= before, "{name}: nothing is removed");
                let note = files::read_text(&aside.with_extension("txt"), 9_999).expect("a note");
                assert_eq!(note.trim_end(), why, "{name}");
            }
            // Damage inside a block is found when it is read.
            None => assert_eq!(name, "flipped table"),
        }
    }
}

/// Proves that damage inside a table is an error of its own kind when it is read, never a wrong value, and that the
/// next start sets such an engine aside although it opens.
#[test]
fn c16_damage_is_seen_by_reads() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = StateDir::open(dir.path(), "app").expect("opened");
    let task = root.task(TASK).expect("made");
    let mut state = opener().open(&task, Place::Current, &specs(), 1).expect("opened").state;
    fill(&mut state, 5);
    state.flush().expect("flushed");
    drop(state);
    ending(&task.current(), ".sst").iter().for_each(|path| flip(path));
    match opener().open(&task, Place::Current, &specs(), 1) {
        Ok(Opened { set_aside: Some(_), .. }) => {}
        Ok(Opened { state, .. }) => {
            let found: Result<Vec<_>, _> = state.scan(S, &KeyRange::ALL, Direction::Forward).collect();
            assert!(matches!(found, Err(EngineError::Corrupt { .. })), "{found:?}");
            drop(state);
            let again = opener().open(&task, Place::Current, &specs(), 1).expect("opened");
            assert!(again.set_aside.is_some() && again.state.meta().seq == 0);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Proves that a rebuild that is damaged begins anew without a trace, that an engine in use is named so, and that a
/// rebuilt engine that is swapped in keeps its position.
#[test]
fn rebuild_beside_and_swap() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = StateDir::open(dir.path(), "app").expect("opened");
    let task = root.task(TASK).expect("made");
    let mut current = opener().open(&task, Place::Current, &specs(), 1).expect("opened").state;
    fill(&mut current, 2);
    let error = opener().open(&task, Place::Current, &specs(), 1).expect_err("in use");
    assert!(matches!(error, OpenError::State(StateError::Engine(EngineError::Locked { .. }))), "{error}");
    let mut rebuild = opener().open(&task, Place::Rebuild, &specs(), 1).expect("opened").state;
    fill(&mut rebuild, 4);
    rebuild.flush().expect("flushed");
    drop(rebuild);
    files::remove(&task.rebuild().join("CURRENT")).expect("removed");
    let mut rebuild = opener().open(&task, Place::Rebuild, &specs(), 1).expect("opened").state;
    assert_eq!(rebuild.meta().seq, 0);
    fill(&mut rebuild, 3);
    assert_eq!(current.snapshot().meta().seq, 2, "the old one still answers");
    drop((current, rebuild));
    let aside = task.swap("rebuilt").expect("swapped").expect("one was there");
    let state = opener().open(&task, Place::Current, &specs(), 1).expect("opened").state;
    assert_eq!(state.meta().seq, 3);
    assert_eq!(state.get(S, &[0]).expect("read"), Some(Bytes::from("2".repeat(40))));
    assert!(aside.join("CURRENT").exists());
}

/// Proves that a snapshot that a query still holds keeps no task away: its stores are opened again over the open
/// database, go on there, and the snapshot stays as it was; and that a folder that is open is not renamed, until the
/// last snapshot is gone.
#[test]
fn a_held_snapshot_keeps_nobody_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = StateDir::open(dir.path(), "app").expect("opened");
    let task = root.task(TASK).expect("made");
    let mut state = opener().open(&task, Place::Current, &specs(), 1).expect("opened").state;
    fill(&mut state, 2);
    let held = state.snapshot();
    drop(state);
    let mut state = opener().open(&task, Place::Current, &specs(), 1).expect("opened again").state;
    assert_eq!(state.meta().seq, 2);
    fill(&mut state, 4);
    assert_eq!(held.get(S, &[0]).expect("read"), Some(Bytes::from("1".repeat(40))));
    let error = opener().open(&task, Place::Current, &specs(), 1).expect_err("two would write");
    assert!(error.is_held(), "{error}");
    drop(state);
    let mut rebuild = opener().open(&task, Place::Rebuild, &specs(), 1).expect("opened").state;
    fill(&mut rebuild, 1);
    drop(rebuild);
    let error = opener().swap(&task, "test").expect_err("open under its name");
    assert!(error.is_held() && error.to_string().contains("snapshot"), "{error}");
    let error = opener().set_aside(&task, "test").expect_err("open under its name");
    assert!(error.is_held(), "{error}");
    drop(held);
    opener().swap(&task, "test").expect("swapped");
    let state = opener().open(&task, Place::Current, &specs(), 1).expect("opened").state;
    assert_eq!(state.meta().seq, 1);
}

/// Proves that stores of another topology are not taken over from an open database: they are opened when it is closed.
#[test]
fn other_stores_wait_for_a_held_snapshot() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = StateDir::open(dir.path(), "app").expect("opened");
    let task = root.task(TASK).expect("made");
    let state = opener().open(&task, Place::Current, &specs(), 1).expect("opened").state;
    let held = state.snapshot();
    drop(state);
    let mut other = specs();
    other[0].name = "other".into();
    let error = opener().open(&task, Place::Current, &other, 1).expect_err("another store");
    assert!(matches!(error, OpenError::State(StateError::Engine(EngineError::Held { .. }))), "{error}");
    drop(held);
    opener().open(&task, Place::Current, &other, 1).expect("opened");
}

/// Proves that a topology that changed is refused and nothing is moved.
#[test]
fn changed_topology_moves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = StateDir::open(dir.path(), "app").expect("opened");
    let task = root.task(TASK).expect("made");
    fill(&mut opener().open(&task, Place::Current, &specs(), 1).expect("opened").state, 1);
    let error = opener().open(&task, Place::Current, &specs(), 2).expect_err("another topology");
    assert!(matches!(error, OpenError::State(StateError::TopologyChanged { .. })), "{error}");
    assert_eq!(task.asides().expect("listed"), Vec::<PathBuf>::new());
    assert_eq!(opener().open(&task, Place::Current, &specs(), 1).expect("opened").state.meta().seq, 1);
}

/// Proves that one record that writes more than the limit spills to a scratch engine on disk, is committed whole, and
/// leaves nothing behind when it is rolled back.
#[test]
fn spills_to_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = StateDir::open(dir.path(), "app").expect("opened");
    let task = root.task(TASK).expect("made");
    let opener = StateOpener { spill_bytes: 64 << 10, ..opener() };
    let mut state = opener.open(&task, Place::Current, &specs(), 1).expect("opened").state;
    for round in 0..3u32 {
        for key in 0..2_000u32 {
            let value = Bytes::from(vec![round as u8; 100]);
            state.put(S, Bytes::copy_from_slice(&key.to_be_bytes()), Some(value)).expect("written");
        }
        assert!(state.overlay_bytes() <= 64 << 10 && state.uncommitted_bytes() > 300_000);
        assert!(task.scratch().join("CURRENT").exists());
        assert_eq!(state.scan(S, &KeyRange::ALL, Direction::Reverse).count(), 2_000);
        if round == 1 {
            state.rollback();
        } else {
            let mut meta = state.meta().clone();
            meta.seq += 1;
            state.apply(meta).expect("written");
        }
        assert!(!task.scratch().exists(), "nothing of it stays");
        let wanted = if round == 2 { 2 } else { 0 };
        assert_eq!(state.get(S, &7u32.to_be_bytes()).expect("read"), Some(Bytes::from(vec![wanted; 100])));
    }
}
