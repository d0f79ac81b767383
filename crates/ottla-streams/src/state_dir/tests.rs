//! Identity, lock and folders on a real file system.

use super::*;

const TASK: TaskId = TaskId { sub_topology: 1, partition: 3 };

fn opened(dir: &Path) -> StateDir {
    StateDir::open(dir, "app").expect("opened")
}

fn copy_tree(from: &Path, to: &Path) {
    files::create_folders(to).expect("made");
    for path in files::list_folder(from).expect("listed") {
        let to = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_tree(&path, &to);
        } else {
            files::write(&to, &files::read_bytes(&path, 1 << 20).expect("read")).expect("written");
        }
    }
}

fn files_in(folder: &Path) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    files::list_folder(folder).expect("listed").iter().map(name).collect()
}

/// Proves that the number of transactional ids stays over restarts, counts for the identity that took them and for no
/// other, and that garbage is bounded.
#[test]
fn writers_are_remembered() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = opened(dir.path());
    assert_eq!(first.writers().expect("read"), 0);
    first.set_writers(7).expect("written");
    let path = first.path().to_owned();
    drop(first);
    let again = opened(dir.path());
    assert_eq!(again.writers().expect("read"), 7);
    drop(again);
    files::write(&path.join("identity"), b"garbage").expect("written");
    let other = opened(dir.path());
    assert_eq!(other.writers().expect("read"), 0, "the ids are another process's");
    for text in ["", "7", "x y", "\u{1F}", &format!("{} 99999999999", other.identity().process_id)] {
        files::write(&path.join("writers"), text.as_bytes()).expect("written");
        assert!(other.writers().expect("read") <= WRITERS_MAX, "{text:?}");
    }
}

/// Proves that the identity stays over restarts, and that its names are what Kafka takes.
#[test]
fn identity_stays() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = opened(dir.path()).identity().clone();
    assert_eq!(first.made_because, Some("the folder is new"));
    assert_eq!((first.process_id.len(), first.member_id.len()), (16, 32));
    assert_eq!(first.group_instance_id, format!("app-{}", first.process_id));
    for _ in 0..3 {
        let again = opened(dir.path());
        assert_eq!(again.identity(), &Identity { made_because: None, ..first.clone() });
    }
    let other = StateDir::open(dir.path(), "other").expect("opened");
    assert_ne!(other.identity().process_id, first.process_id);
}

/// Proves C21: a folder in use is refused by name with the process that holds it, and is free when that one ends.
#[test]
fn c21_folder_in_use() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = opened(dir.path());
    let error = StateDir::open(dir.path(), "app").expect_err("in use");
    let pid = ottla_env::process::id();
    assert!(matches!(&error, StateDirError::InUse { pid: Some(found), .. } if *found == pid), "{error}");
    assert!(error.to_string().contains("a state folder of its own"));
    drop(first);
    opened(dir.path());
}

/// Proves C21 for copies: a copied folder gets an identity of its own and keeps its stores; the original keeps its
/// own, and so does a folder that was only renamed.
#[test]
fn c21_copied_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let (first, task) = {
        let state = opened(&dir.path().join("a"));
        let task = state.task(TASK).expect("made");
        files::create_folders(&task.current()).expect("made");
        files::write(&task.current().join("data"), b"1").expect("written");
        (state.identity().clone(), task.path().to_owned())
    };
    copy_tree(&dir.path().join("a"), &dir.path().join("b"));
    let copy = opened(&dir.path().join("b"));
    assert_eq!(copy.identity().made_because, Some("the folder is a copy"));
    assert_ne!(copy.identity().process_id, first.process_id);
    assert_ne!(copy.identity().group_instance_id, first.group_instance_id);
    assert_eq!(copy.tasks().expect("listed"), vec![TASK]);
    assert_eq!(files_in(&copy.task(TASK).expect("there").current()), vec!["data"]);
    assert_eq!(opened(&dir.path().join("a")).identity().process_id, first.process_id);
    drop(copy);
    assert!(task.is_dir());
    ottla_env::disk::os::OsDisk::open(dir.path()).expect("opened").rename("a", "c").expect("renamed");
    assert_eq!(opened(&dir.path().join("c")).identity().process_id, first.process_id);
}

/// Proves that a folder from another machine gets an identity of its own, and that a damaged identity file costs the
/// identity only.
#[test]
fn c21_other_machine_and_damage() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = opened(dir.path()).identity().clone();
    let path = dir.path().join("app").join("identity");
    let text = files::read_text(&path, 4096).expect("read");
    let machine = text.lines().find(|line| line.starts_with("host=")).expect("told");
    files::write(&path, text.replace(machine, "host=elsewhere").as_bytes()).expect("written in place");
    let second = opened(dir.path()).identity().clone();
    assert_eq!(second.made_because, Some("the folder was copied from another machine"));
    assert_ne!(second.process_id, first.process_id);
    for cut in [0, 1, text.len() / 2, text.len() - 2] {
        files::write(&path, &text.as_bytes()[..cut]).expect("written in place");
        let found = opened(dir.path()).identity().clone();
        assert_eq!(found.made_because, Some("the identity could not be read"), "cut at {cut}");
    }
    files::write(&path, b"\xff\xfe").expect("written in place");
    assert_eq!(opened(dir.path()).identity().made_because, Some("the identity could not be read"));
}

/// Proves that an application id cannot lead out of the state folder.
#[test]
fn application_id_is_a_name() {
    let dir = tempfile::tempdir().expect("a folder");
    for id in ["", ".", "..", "a/b", "../x", "a\0", "a b", &"x".repeat(201)] {
        assert!(matches!(StateDir::open(dir.path(), id), Err(StateDirError::ApplicationId(_))), "{id:?}");
    }
    StateDir::open(dir.path(), "Orders-v1.2_x").expect("fine");
}

/// Proves C16's folders: what is set aside keeps its bytes and a note, under a name of its own each time, and a
/// rebuilt engine takes its place.
#[test]
fn set_aside_and_swap() {
    let dir = tempfile::tempdir().expect("a folder");
    let state = opened(dir.path());
    let task = state.task(TASK).expect("made");
    assert_eq!(task.set_aside("nothing there").expect("fine"), None);
    for round in 1..=3 {
        files::create_folders(&task.current()).expect("made");
        files::write(&task.current().join("data"), round.to_string().as_bytes()).expect("written");
        files::create_folders(&task.rebuild()).expect("made");
        files::write(&task.rebuild().join("data"), b"new").expect("written");
        let aside = task.swap(&format!("round {round}")).expect("swapped").expect("one was there");
        assert_eq!(files::read_text(&aside.join("data"), 9).expect("read"), round.to_string());
        assert_eq!(
            files::read_text(&task.path().join(format!("aside-{round}.txt")), 99).expect("read"),
            format!("round {round}\n")
        );
        assert_eq!(files::read_text(&task.current().join("data"), 9).expect("read"), "new");
        assert!(!task.rebuild().exists());
    }
    assert_eq!(task.asides().expect("listed").len(), 3);
    files::remove_tree(&task.path().join("aside-2")).expect("removed by a person");
    task.set_aside("again").expect("fine");
    assert_eq!(task.asides().expect("listed").len(), 3);
}

/// Proves that a swap that was cut between its two renames is ended by the next start, and that scratch is emptied.
#[test]
fn cut_swap_is_ended() {
    let dir = tempfile::tempdir().expect("a folder");
    let state = opened(dir.path());
    let task = state.task(TASK).expect("made");
    for folder in [task.current(), task.rebuild(), task.scratch()] {
        files::create_folders(&folder).expect("made");
    }
    files::write(&task.rebuild().join("data"), b"new").expect("written");
    task.set_aside("swap").expect("the first rename");
    drop(task);
    let task = state.task(TASK).expect("there");
    assert_eq!(files::read_text(&task.current().join("data"), 9).expect("read"), "new");
    assert!(!task.rebuild().exists() && !task.scratch().exists());
}
