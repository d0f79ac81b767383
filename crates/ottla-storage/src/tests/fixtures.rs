//! Folders that earlier versions wrote, opened by this one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_env::disk::os::OsDisk;
use ottla_protocol::entry::Entry;

use super::memory::MemoryDisk;
use super::support::{Image, entry, joined, options, partition, read_all};
use crate::{LogOptions, open};

/// What every fixture holds: twelve frames.
fn frames() -> Vec<[Entry; 2]> {
    let frame = |frame: i64| {
        [
            entry(partition(2, 0), frame * 2, 2, 900, 1000 + frame),
            entry(partition(1, 0), frame * 3, 3, 10, 1000 + frame),
        ]
    };
    (0..12).map(frame).collect()
}

/// The fixture's files in memory.
fn fixture(name: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    Image::of(&OsDisk::open(&folder).expect("the fixture is there")).0
}

/// Proves: a folder of format version 1, with a snapshot, footers and a file in use, opens as it was: its snapshot,
/// the frames behind it, every byte. It goes on as a folder of this version, which opens again.
#[test]
fn version_1_opens() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::of(&fixture("v1")));
    let small = LogOptions { file_bytes: 16 << 10, growth_bytes: 4 << 10, ..options() };
    let all: Vec<Entry> = frames().into_iter().flatten().collect();
    let mut added = all.clone();
    for round in 0..3 {
        let mut opening = open(disk.clone(), small.clone()).expect("opens");
        assert_eq!(opening.snapshot().map(|info| info.frame_sequence.0), Some(6));
        let chunks = opening.snapshot_chunks().expect("there").expect("a snapshot");
        let chunks: Vec<_> = chunks.map(|chunk| chunk.expect("sound")).collect();
        assert_eq!(chunks, [&b"the state"[..]]);
        for frame in &frames()[6..] {
            let replayed = opening.next_frame().expect("sound").expect("there");
            assert_eq!(replayed.entries, frame);
        }
        let mut opened = opening.finish().expect("opens");
        assert!(opened.report.damage.is_empty() && opened.report.rebuilt_indexes <= 1);
        let next = entry(partition(1, 0), 36 + round, 1, 10, 1);
        opened.writer.append(20, 20, std::slice::from_ref(&next)).expect("appended");
        added.push(next);
        for at in [partition(1, 0), partition(2, 0)] {
            assert_eq!(read_all(&opened.reader, at, 0, 1 << 20), joined(&added, at));
        }
        while opened.preparer.run_once() {}
    }
}
