//! Opens a changed folder, reads everything, and compares with what the undamaged one shows.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ottla_core::decision::Position;
use ottla_core::shard::ShardState;
use ottla_env::disk::memory::MemoryDisk;
use ottla_protocol::batch::BatchIter;
use ottla_protocol::types::TopicIdPartition;
use ottla_storage::{Alive, LogReader, OpenError, ReadError, Retention};

use super::Change;
use super::folder::Folder;
use crate::history::History;
use crate::shell::Setup;
use crate::shell::load::{self, LoadError, Loaded};

/// Bytes asked for in one read.
const READ_BYTES: usize = 32 << 10;

type Files = BTreeMap<String, Arc<Vec<u8>>>;

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The opening was refused.
    Refused,
    /// The opening reported the damage.
    Reported,
    /// A read of the damaged range was refused.
    ReadRefused,
    /// All is as it was.
    Harmless,
    /// The newest file of the log was cut off or is gone, and the log ends earlier: nothing on one disk can tell that
    /// from a log that was not written any further.
    Shorter,
    /// A broken promise.
    Wrong(String),
}

/// Everything that an opening shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    position: Position,
    /// The state, as a snapshot of it would be.
    state: Vec<Vec<u8>>,
    partitions: BTreeMap<TopicIdPartition, Partition>,
}

/// What is read of a partition.
#[derive(Debug, Default, PartialEq, Eq)]
struct Partition {
    /// Offsets that are served.
    from: i64,
    to: i64,
    /// Batches by their first offset.
    batches: BTreeMap<i64, Vec<u8>>,
    /// Answers of the time index, of sizes and of retention; none where they were refused.
    answers: Vec<Option<i64>>,
    /// Offsets whose reads were refused, both ends included.
    refused: Vec<(i64, i64)>,
}

/// What the undamaged folder shows. Errors when it cannot be opened or read.
pub(super) fn shown(files: &Files, setup: &Setup) -> Result<Shown, String> {
    let loaded = open(files, setup).map_err(|error| error.to_string())?;
    let shown = read_everything(&loaded.core, &loaded.opened.reader, false)?;
    let whole = shown.partitions.values().all(|partition| partition.refused.is_empty());
    if whole { Ok(shown) } else { Err("the undamaged folder has damage".to_owned()) }
}

fn open(files: &Files, setup: &Setup) -> Result<Loaded, LoadError> {
    let disk = MemoryDisk::sharing(files.iter().map(|(name, bytes)| (name.clone(), bytes.clone())));
    load::read(Arc::new(disk), setup, None, &mut History::default())
}

/// Makes the change, opens, reads, compares; with `goes_on` the log is then used, opened again and judged again.
pub(super) fn judge(folder: &Folder, name: &str, change: &Change, goes_on: bool) -> Verdict {
    let judged = catch_unwind(AssertUnwindSafe(|| attempt(folder, name, change, goes_on)));
    judged.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Verdict::Wrong(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn attempt(folder: &Folder, name: &str, change: &Change, goes_on: bool) -> Verdict {
    let mut files = folder.files.clone();
    let changed = Arc::make_mut(files.get_mut(name).expect("a file of the folder"));
    match *change {
        Change::Flip { at, mask } => changed[at] ^= mask,
        Change::Cut { length } => changed.truncate(length),
        Change::Remove => drop(files.remove(name)),
    }
    let disk = MemoryDisk::sharing(files);
    let loaded = load::read(Arc::new(disk.clone()), &folder.setup, None, &mut History::default());
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(LoadError::Open(OpenError::Damaged(_) | OpenError::Foreign { .. } | OpenError::Newer { .. })) => {
            return Verdict::Refused;
        }
        Err(error) => return Verdict::Wrong(format!("the opening failed without naming damage: {error}")),
    };
    let report = &loaded.opened.report;
    let is_reported = !report.damage.is_empty() || !report.damaged_snapshots.is_empty();
    let is_cut = !matches!(change, Change::Flip { .. }) && folder.newest_log() == Some(name);
    if is_cut && loaded.core.position() < folder.shown.position {
        return Verdict::Shorter;
    }
    let first = match compare(folder, &loaded) {
        Ok(is_refused) => is_refused,
        Err(text) => return Verdict::Wrong(text),
    };
    if goes_on && let Err(text) = go_on(folder, loaded, &disk) {
        return Verdict::Wrong(text);
    }
    match (is_reported, first) {
        (true, _) => Verdict::Reported,
        (false, true) => Verdict::ReadRefused,
        (false, false) => Verdict::Harmless,
    }
}

/// Whether reads were refused; an error when something is shown that was not there, or is gone without a word.
fn compare(folder: &Folder, loaded: &Loaded) -> Result<bool, String> {
    let is_reported = !loaded.opened.report.damage.is_empty();
    let found = read_everything(&loaded.core, &loaded.opened.reader, is_reported)?;
    let expected = &folder.shown;
    if let Some(text) = load::difference(&found.state, &expected.state) {
        return Err(format!("another state: {text}"));
    }
    let mut is_refused = false;
    for (at, expected) in &expected.partitions {
        let Some(found) = found.partitions.get(at) else { return Err(format!("{at:?} is gone")) };
        is_refused |= !found.refused.is_empty() || found.answers.contains(&None);
        let in_refused = |offset: i64| found.refused.iter().any(|(from, to)| (*from..=*to).contains(&offset));
        for (offset, batch) in &expected.batches {
            match found.batches.get(offset) {
                Some(served) if served == batch => {}
                Some(_) => return Err(format!("{at:?}: wrong bytes at {offset}")),
                None if in_refused(*offset) => {}
                None => return Err(format!("{at:?}: offset {offset} is gone without a word")),
            }
        }
        if let Some(invented) = found.batches.keys().find(|offset| !expected.batches.contains_key(offset)) {
            return Err(format!("{at:?}: nobody wrote what is at {invented}"));
        }
        // Where the opening has named damage, what it holds is not in the index: sizes and times do without it.
        let differs = |(found, expected): &(&Option<i64>, &Option<i64>)| {
            found.is_some() && found != expected && loaded.opened.report.damage.is_empty()
        };
        if let Some(index) = found.answers.iter().zip(&expected.answers).position(|pair| differs(&pair)) {
            let (found, expected) = (found.answers[index], expected.answers[index]);
            return Err(format!("{at:?}: answer {index} of the index is {found:?}, should be {expected:?}"));
        }
    }
    Ok(is_refused)
}

/// Everything that readers could ask for.
fn read_everything(core: &ShardState, reader: &LogReader, is_reported: bool) -> Result<Shown, String> {
    let mut partitions = BTreeMap::new();
    for (at, bounds) in core.all_bounds() {
        let (from, to) = (bounds.log_start_offset, bounds.high_watermark);
        let mut partition = Partition { from, to, ..Partition::default() };
        read_batches(reader, at, is_reported, &mut partition)?;
        partition.answers = answers(reader, at, is_reported, from, to)?;
        partitions.insert(at, partition);
    }
    Ok(Shown { position: core.position(), state: load::chunks(core), partitions })
}

fn read_batches(
    reader: &LogReader,
    at: TopicIdPartition,
    is_reported: bool,
    partition: &mut Partition,
) -> Result<(), String> {
    let mut offset = partition.from;
    while offset < partition.to {
        match reader.read(at, offset, partition.to, READ_BYTES) {
            Ok(batches) if batches.pieces.is_empty() => {
                return Err(format!("{at:?}: nothing at {offset}, the log ends at {}", partition.to));
            }
            Ok(batches) => {
                for batch in BatchIter::new(batches.pieces.concat().into()) {
                    let batch =
                        batch.map_err(|error| format!("{at:?}: what is served at {offset} is {error}"))?;
                    let bytes = [&batch.header.head()[..], &batch.tail()].concat();
                    partition.batches.insert(batch.header.base_offset, bytes);
                }
                offset = batches.next_offset;
            }
            Err(ReadError::Corrupt { first_offset, last_offset, .. }) => {
                // Compaction leaves gaps: what is refused may begin behind what was asked for.
                if last_offset < offset {
                    return Err(format!(
                        "{at:?}: {first_offset} to {last_offset} refused in a read of {offset}"
                    ));
                }
                partition.refused.push((offset, last_offset));
                offset = last_offset + 1;
            }
            // The file is gone, and the opening has said so: what was in it is refused, whatever it was.
            Err(ReadError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound && is_reported =>
            {
                partition.refused.push((offset, partition.to));
                return Ok(());
            }
            Err(error) => return Err(format!("{at:?} at {offset}: {error}")),
        }
    }
    Ok(())
}

/// Answers of the time index, of the sizes and of retention.
fn answers(
    reader: &LogReader,
    at: TopicIdPartition,
    is_reported: bool,
    from: i64,
    to: i64,
) -> Result<Vec<Option<i64>>, String> {
    let mut answers = Vec::new();
    let mut note = |answer: Result<Option<i64>, ReadError>| match answer {
        Ok(answer) => {
            answers.push(Some(answer.unwrap_or(-1)));
            Ok(())
        }
        Err(ReadError::Corrupt { .. }) => {
            answers.push(None);
            Ok(())
        }
        Err(ReadError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && is_reported => {
            answers.push(None);
            Ok(())
        }
        Err(error) => Err(format!("{at:?}: the index answers {error}")),
    };
    for step in 0..4 {
        let time = 1_700_000_000_000 + step * 1_200;
        note(reader.offset_for_timestamp(at, time, from, to).map(|found| found.map(|(offset, _)| offset)))?;
    }
    note(reader.max_timestamp(at, from, to).map(|found| found.map(|(offset, _)| offset)))?;
    note(reader.bytes_of(at).map(|bytes| i64::try_from(bytes).ok()))?;
    let kept = [
        Retention { from_timestamp: Some(1_700_000_003_000), bytes: None },
        Retention { from_timestamp: None, bytes: Some(2_000) },
    ];
    for kept in kept {
        note(reader.retention_point(at, from, to, kept).map(Some))?;
    }
    Ok(answers)
}

/// What is alive by the state that was loaded.
struct Loads<'a>(&'a ShardState);

impl Alive for Loads<'_> {
    fn log_start_offset(&self, partition: &TopicIdPartition) -> Option<i64> {
        self.0.bounds(*partition).map(|bounds| bounds.log_start_offset)
    }

    fn class(&self, partition: &TopicIdPartition) -> u64 {
        u64::from(partition.topic_id.0[0] % 3)
    }
}

/// The log goes on: footers, a frame, dropped and rewritten files; it is judged, opened again and judged again.
fn go_on(folder: &Folder, loaded: Loaded, disk: &MemoryDisk) -> Result<(), String> {
    let Loaded { core, mut opened, time_ms } = loaded;
    let position = opened.report.position;
    opened.writer.append(time_ms, position, &[]).map_err(|error| format!("cannot go on: {error}"))?;
    for _ in 0..64 {
        if !opened.preparer.run_once() {
            break;
        }
    }
    let horizon = opened.snapshots.horizon().map_err(|error| format!("cannot go on: {error}"))?;
    for _ in 0..8 {
        let later = time_ms + 100_000;
        let change = opened.levels.run_once(horizon, later, &Loads(&core), &mut |_| true);
        let Some(change) = change.map_err(|error| format!("the files cannot be tidied: {error}"))? else {
            break;
        };
        opened.writer.append_files(time_ms, &change).map_err(|error| format!("cannot go on: {error}"))?;
        opened.levels.unlink(&change);
    }
    let loaded = Loaded { core, opened, time_ms };
    compare_data(folder, &loaded).map_err(|text| format!("after going on: {text}"))?;
    drop(loaded);
    let again = load::read(Arc::new(disk.clone()), &folder.setup, None, &mut History::default());
    let again = again.map_err(|error| format!("cannot be opened a second time: {error}"))?;
    compare_data(folder, &again).map_err(|text| format!("opened a second time: {text}"))
}

/// As `compare`, without the sizes and retention points: rewriting changes what a unit of them is.
fn compare_data(folder: &Folder, loaded: &Loaded) -> Result<(), String> {
    match compare(folder, loaded) {
        Err(text) if text.contains("of the index is") => Ok(()),
        other => other.map(drop),
    }
}
