//! Looking at whole folders: intact, torn, damaged in every frame.

use std::sync::Arc;

use ottla_env::disk::Disk;
use ottla_env::disk::read_only::ReadOnlyDisk;
use ottla_protocol::types::TopicIdPartition;

use super::memory::MemoryDisk;
use super::support::{Image, entry, options, partition, reopen};
use crate::inspect::{Footer, Inspection, OffsetRange, inspect};
use crate::layout::BLOCK_BYTES;
use crate::{FileId, LogOptions};

const FRAMES: i64 = 40;

fn large() -> TopicIdPartition {
    partition(1, 0)
}

/// Forty frames over several files, the sealed ones with their footers: a batch of one record for each of two
/// partitions in every frame.
fn image() -> Image {
    let small = LogOptions { file_bytes: 60 << 10, growth_bytes: 4 << 10, tail_bytes_max: 0, ..options() };
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::default());
    let (mut opened, _) = reopen(&disk, small).expect("opens");
    for frame in 0..FRAMES {
        let entries = vec![entry(large(), frame, 1, 700, frame), entry(partition(2, 0), frame, 1, 20, frame)];
        opened.writer.append(frame, frame as u64 + 1, &entries).expect("appended");
        while opened.preparer.run_once() {}
    }
    drop(opened);
    Image::of(&*disk)
}

fn look(image: &Image) -> Inspection {
    let looked = ReadOnlyDisk::new(image.disk());
    let mut read = 0;
    let found = inspect(&looked, 0, |done, of| {
        assert!(done > read && done <= of, "progress goes forward");
        read = done;
    });
    found.expect("the folder can be read")
}

/// Proves that all frames and batches of an intact log are counted, that its sealed files have their indexes, and
/// that nothing is called damage.
#[test]
fn an_intact_log() {
    let image = image();
    let found = look(&image);
    assert!(found.files.len() > 2, "{found:?}");
    assert!(found.files.iter().all(|file| file.damage.is_empty() && file.torn.is_none()), "{found:?}");
    assert_eq!(found.files.iter().map(|file| file.frames).sum::<u64>(), FRAMES as u64);
    assert_eq!(found.files.iter().map(|file| file.batches).sum::<u64>(), 2 * FRAMES as u64);
    let (last, sealed) = found.files.split_last().expect("there are files");
    assert!(sealed.iter().all(|file| file.sealed && file.footer == Footer::Sound), "{found:?}");
    assert!(!last.sealed && last.footer == Footer::InUse);
}

/// Where the frames of a file begin.
fn frames(image: &Image, file: u64) -> Vec<usize> {
    let bytes = &image.0[&FileId(file).file_name()];
    let blocks = (0..bytes.len()).step_by(BLOCK_BYTES as usize);
    blocks.filter(|at| bytes[*at..].starts_with(b"OTFR")).collect()
}

/// Proves for every frame of a file, and for damage to its header, its entry headers and its first body, that the
/// place is named and that what it held is: from the entries where they are left, else from what is missing behind.
/// No other offset is named.
#[test]
fn every_frame_damaged_in_every_part() {
    let image = image();
    let found = look(&image);
    let (before, file) = (found.files[0].frames as i64, found.files[1].file);
    let places = frames(&image, file.0);
    assert!(places.len() > 5, "{found:?}");
    for (index, at) in places.iter().enumerate() {
        for (part, whole_frame) in [(8, true), (140, true), (128 + 2 * 64 + 100, false)] {
            let mut damaged = image.clone();
            damaged.0.get_mut(&file.file_name()).expect("there")[at + part] ^= 0x10;
            let found = look(&damaged);
            let place = &found.files[1].damage[..];
            assert_eq!(place.len(), 1, "frame {index}, byte {part}: {found:?}");
            assert_eq!(place[0].position, *at as u64);
            let offset = before + index as i64;
            let range = |partition| OffsetRange { partition, first_offset: offset, last_offset: offset };
            let mut expected = vec![range(large())];
            if whole_frame {
                expected.push(range(partition(2, 0)));
            }
            let mut holds = place[0].holds.clone();
            holds.sort();
            assert_eq!(holds, expected, "frame {index}, byte {part}");
            let others = found.files.iter().filter(|other| other.file != file);
            assert!(
                others.clone().all(|file| file.damage.is_empty()),
                "frame {index}, byte {part}: {found:?}"
            );
        }
    }
}

/// Proves that a last frame which was not written to its end is torn and no damage, that a file whose header is gone
/// is still read by what the next file says of it, and that a missing index is told.
#[test]
fn torn_ends_and_lost_headers() {
    let image = image();
    let found = look(&image);
    let last = found.files.last().expect("there are files");
    let at = *frames(&image, last.file.0).last().expect("there are frames");
    let mut torn = image.clone();
    torn.0.get_mut(&last.file.file_name()).expect("there")[at + 512..].fill(0);
    let looked = look(&torn);
    let end = looked.files.last().expect("there are files");
    assert!(end.torn == Some(at as u64) && end.damage.is_empty(), "{end:?}");

    let first = found.files[0].file;
    let mut headless = image.clone();
    headless.0.get_mut(&first.file_name()).expect("there")[..4096].fill(0);
    let looked = look(&headless);
    assert_eq!(looked.files[0].damage[0].what, "a damaged file header");
    assert_eq!(looked.files[0].frames, found.files[0].frames, "its frames are found all the same");

    let mut footless = image;
    let bytes = footless.0.get_mut(&first.file_name()).expect("there");
    let length = bytes.len();
    bytes[length - 10] ^= 1;
    assert_eq!(look(&footless).files[0].footer, Footer::Missing);
}
