//! Rotation, restarts and replacement, on a real file system.

use std::io::Write;

use ottla_env::rng::{Rng, SeededRng};
use proptest::prelude::*;

use super::*;

struct Bed {
    folder: tempfile::TempDir,
    source: LogFiles,
    position: Option<Position>,
    now: Duration,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = LogFilesSettings::new(vec![folder.path().join("app.log")]);
        settings.line_bytes_max = 64;
        Self { folder, source: LogFiles::new(settings), position: None, now: Duration::ZERO }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn append(&self, name: &str, text: &str) {
        files::open_append(&self.path(name)).expect("open").write_all(text.as_bytes()).expect("written");
    }

    fn rename(&self, from: &str, to: &str) {
        use ottla_env::disk::Disk;
        ottla_env::disk::os::OsDisk::open(self.folder.path())
            .expect("open")
            .rename(from, to)
            .expect("renamed");
    }

    fn open(&mut self) -> Box<dyn Reader> {
        let id = self.source.partitions().expect("listed").remove(0);
        self.source.open(&id, self.position.as_ref()).expect("opened")
    }

    /// Reads until nothing is new, and past the grace; remembers the position.
    fn drain(&mut self, reader: &mut dyn Reader) -> Vec<String> {
        let (mut lines, mut idle) = (Vec::new(), 0);
        while idle < 3 {
            self.now += Duration::from_secs(10);
            match reader.read(self.now, 100).expect("read") {
                None => idle += 1,
                Some(piece) => {
                    idle = 0;
                    let text = |record: SourceRecord| {
                        String::from_utf8(record.value.expect("set").to_vec()).expect("text")
                    };
                    lines.extend(piece.records.into_iter().map(text));
                    self.position = Some(piece.position);
                }
            }
        }
        lines
    }

    fn counts(&self) -> (u64, u64, u64) {
        let counts = self.source.counts();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&counts.replaced), of(&counts.lost), of(&counts.rotated))
    }
}

/// Proves that whole lines come in order, part of a line waits for its end, and line ends of both kinds are taken off.
#[test]
fn whole_lines_only() {
    let mut bed = Bed::new();
    let mut reader = bed.open();
    assert_eq!(bed.drain(&mut *reader), Vec::<String>::new(), "no file yet");
    bed.append("app.log", "one\r\ntwo\n\nthr");
    assert_eq!(bed.drain(&mut *reader), vec!["one", "two", ""]);
    bed.append("app.log", "ee\nfour");
    assert_eq!(bed.drain(&mut *reader), vec!["three"]);
    let mut again = bed.open();
    bed.append("app.log", "\n");
    assert_eq!(bed.drain(&mut *again), vec!["four"]);
    assert_eq!(bed.counts(), (0, 0, 0));
}

/// Proves that a renamed file is read to its end, a last line without end included, before the next one is begun.
#[test]
fn rotation_by_renaming() {
    let mut bed = Bed::new();
    bed.append("app.log", "a1\na2\n");
    let mut reader = bed.open();
    assert_eq!(bed.drain(&mut *reader), vec!["a1", "a2"]);
    bed.append("app.log", "a3\n");
    bed.rename("app.log", "app.log.1");
    bed.append("app.log.1", "a4\na5 without end");
    assert_eq!(bed.drain(&mut *reader), vec!["a3", "a4"], "no next file: the rest may still grow");
    bed.append("app.log", "b1\n");
    assert_eq!(bed.drain(&mut *reader), vec!["a5 without end", "b1"]);
    assert_eq!(bed.counts(), (0, 0, 1));
}

/// Proves that the grace is kept: a renamed file that still grows is not left.
#[test]
fn renamed_file_may_grow() {
    let mut bed = Bed::new();
    bed.append("app.log", "a1\n");
    let mut reader = bed.open();
    bed.drain(&mut *reader);
    bed.rename("app.log", "app.log.1");
    bed.append("app.log", "b1\n");
    for n in 0..5 {
        bed.now += Duration::from_secs(4);
        assert_eq!(reader.read(bed.now, 100).expect("read"), None);
        bed.append("app.log.1", &format!("late {n}\n"));
        let piece = reader.read(bed.now, 100).expect("read").expect("a line");
        assert_eq!(piece.records[0].value, Some(Bytes::from(format!("late {n}"))));
    }
    assert_eq!(bed.drain(&mut *reader), vec!["b1"]);
}

/// Proves that several rotations while nobody reads are followed in order, with numbers and with dates.
#[test]
fn rotations_while_away() {
    for names in [
        ["app.log.3", "app.log.2", "app.log.1"],
        ["app.log-20261127", "app.log-20261128", "app.log-20261129"],
    ] {
        let mut bed = Bed::new();
        bed.append("app.log", "a1\n");
        let mut reader = bed.open();
        assert_eq!(bed.drain(&mut *reader), vec!["a1"]);
        drop(reader);
        bed.append("app.log", "a2\n");
        for (name, line) in [(names[0], "b\n"), (names[1], "c\n"), (names[2], "d\n")] {
            bed.rename("app.log", name);
            bed.append("app.log", line);
        }
        bed.append("app.log.9.gz", "not text\n");
        bed.append("app.logger", "another log\n");
        let mut reader = bed.open();
        assert_eq!(bed.drain(&mut *reader), vec!["a2", "b", "c", "d"]);
        assert_eq!(bed.counts(), (0, 0, 3));
    }
}

/// Proves that what cannot be exactly once is counted: a file that was cut in place, one whose beginning changed, and
/// one that is gone; none of them stops the source, and nothing later is skipped.
#[test]
fn replaced_and_lost_files_are_counted() {
    let mut bed = Bed::new();
    bed.append("app.log", "a1\na2\n");
    let mut reader = bed.open();
    bed.drain(&mut *reader);
    files::write(&bed.path("app.log"), b"c1\n").expect("cut in place");
    assert_eq!(bed.drain(&mut *reader), vec!["c1"]);
    assert_eq!(bed.counts().0, 1);
    drop(reader);
    files::write(&bed.path("app.log"), b"another beginning\nlonger than before\n").expect("written in place");
    let mut reader = bed.open();
    assert_eq!(bed.drain(&mut *reader), vec!["another beginning", "longer than before"]);
    assert_eq!(bed.counts().0, 2);
    drop(reader);
    files::create(&bed.path("keeps.the.inode.busy")).expect("made");
    bed.rename("app.log", "elsewhere");
    bed.append("app.log", "d1\n");
    let mut reader = bed.open();
    assert_eq!(bed.drain(&mut *reader), vec!["d1"]);
    assert_eq!(bed.counts().1, 2);
}

/// Proves that a line longer than the limit is several records, marked, and loses nothing.
#[test]
fn long_lines_are_cut() {
    let mut bed = Bed::new();
    let long = "0123456789".repeat(15);
    bed.append("app.log", &format!("{long}\nshort\n{}\n", "x".repeat(64)));
    let mut reader = bed.open();
    let mut found = Vec::new();
    while let Some(piece) = reader.read(Duration::ZERO, 1_000).expect("read") {
        found.extend(
            piece.records.into_iter().map(|record| (record.value.expect("set").len(), record.headers.len())),
        );
    }
    assert_eq!(found, vec![(64, 1), (64, 1), (22, 0), (5, 0), (64, 0)]);
}

/// Proves that a position of something else is refused by name.
#[test]
fn foreign_position_is_refused() {
    let mut bed = Bed::new();
    let id = bed.source.partitions().expect("listed").remove(0);
    let position = Position(Bytes::from_static(b"not ours"));
    assert!(matches!(bed.source.open(&id, Some(&position)), Err(SourceError::Position { .. })));
    let unknown = SourceId("elsewhere".into());
    assert!(matches!(bed.source.open(&unknown, None), Err(SourceError::Setup { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Proves, over random writes, rotations, reads and restarts from the last position, that every line comes once
    /// and in order.
    #[test]
    fn every_line_once(seed in any::<u64>()) {
        let mut rng = SeededRng::new(seed);
        let mut bed = Bed::new();
        let mut reader = bed.open();
        let (mut written, mut read, mut rotations) = (0u32, Vec::new(), 0);
        for _ in 0..60 {
            match rng.below(10) {
                0..=4 => {
                    for _ in 0..=rng.below(4) {
                        bed.append("app.log", &format!("{written}{}\n", "x".repeat(rng.index(70))));
                        written += 1;
                    }
                }
                5 if bed.path("app.log").exists() => {
                    rotations += 1;
                    bed.rename("app.log", &format!("app.log-{rotations:09}"));
                }
                6 => reader = bed.open(),
                _ => {
                    bed.now += Duration::from_secs(6);
                    let size = 10 + rng.index(200);
                    if let Some(piece) = reader.read(bed.now, size).expect("read") {
                        read.push(piece.records);
                        bed.position = Some(piece.position);
                    }
                }
            }
        }
        bed.append("app.log", "end\n");
        loop {
            bed.now += Duration::from_secs(6);
            let Some(piece) = reader.read(bed.now, 500).expect("read") else {
                if read.iter().flatten().any(|record| record.value.as_deref() == Some(b"end")) {
                    break;
                }
                continue;
            };
            read.push(piece.records);
        }
        let mut lines = vec![String::new()];
        for record in read.iter().flatten() {
            let text = std::str::from_utf8(record.value.as_ref().expect("set")).expect("text");
            lines.last_mut().expect("one").push_str(text);
            if record.headers.is_empty() {
                lines.push(String::new());
            }
        }
        let numbers: Vec<String> = lines[..lines.len() - 2].iter().map(|line| line.trim_end_matches('x').to_owned()).collect();
        prop_assert_eq!(numbers, (0..written).map(|n| n.to_string()).collect::<Vec<_>>());
        prop_assert_eq!(bed.counts().0 + bed.counts().1, 0);
    }
}
