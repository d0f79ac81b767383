//! A small sweep for every run of the tests, and a look at the judge himself.

use std::sync::Arc;

use super::{Change, Folder, Options, Verdict, judge, regions, sweep};

/// Proves that whatever byte of whatever file is changed, the damage is named or harmless, and nothing wrong is served:
/// a sample of every kind of place. `cargo xtask prove flips` tries all of them.
#[test]
fn flipped_bytes_are_detected_or_harmless() {
    let folder = Arc::new(Folder::new(1).expect("the clients' run is clean"));
    let options = Options {
        structure_stride: 211,
        body_stride: 2_003,
        cut_stride: 9_001,
        go_on_stride: 37,
        ..Options::default()
    };
    let report = sweep(&folder, &options, &mut |_, _| {});
    assert_eq!(report.wrong, Vec::<String>::new());
    for place in ["log file: frame header", "log file: entry header", "snapshot: header"] {
        let row = report.rows.get(place).unwrap_or_else(|| panic!("{place} was not tried"));
        assert!(row.tried > row.harmless, "{place}: {row:?}");
    }
}

/// Proves that the judge can see: a folder judged against another one's contents is wrong.
#[test]
fn another_folder_is_not_taken_for_this_one() {
    let mut folder = Folder::new(1).expect("the clients' run is clean");
    let other = Folder::new(2).expect("the clients' run is clean");
    folder.files = other.files;
    let name = folder.files.keys().find(|name| name.ends_with(".log")).expect("there").clone();
    let length = folder.files[&name].len();
    let verdict = judge::judge(&folder, &name, &Change::Cut { length }, false);
    assert!(matches!(verdict, Verdict::Wrong(_)), "{verdict:?}");
}

/// Proves that the places of a file are all of it, once.
#[test]
fn regions_cover_every_byte() {
    let folder = Folder::new(1).expect("the clients' run is clean");
    for (name, bytes) in &folder.files {
        let mut next = 0;
        for (range, _) in regions::regions(name, bytes) {
            assert_eq!(range.start, next, "{name}");
            next = range.end;
        }
        assert_eq!(next, bytes.len(), "{name}");
    }
}
