//! A start where there is no good snapshot and the log does not begin at its first frame any more: the state is put
//! together from all frames that are left, and written as a snapshot.
//!
//! Two walks through the folder: the control log, then everything else in the order of the files, oldest first. Each
//! partition's batches must come in the order of their offsets; where files hold the same offsets (a crash has left one
//! that was dropped) the one that adds nothing is left out. Nothing is begun when a damaged place may have held records
//! of the control log or of a coordinator: what there is could not be said then.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use ottla_core::config::CoreConfig;
use ottla_core::decision::{Position, ShardTime};
use ottla_core::partition::Role;
use ottla_core::shard::{Rebuild, Rebuilt, ShardState};
use ottla_env::disk::Disk;
use ottla_env::rng::{OsRng, Rng};
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::types::Uuid;
use ottla_storage::dump::{DamagedBatch, Found, dump};
use ottla_storage::inspect::Inspection;
use ottla_storage::repair::{KeptFile, write_snapshot};
use ottla_storage::{FileId, FrameSequence, OpenError, SnapshotInfo};

use super::SHARD_ID;

/// Topic id of the control log.
const CONTROL_LOG: Uuid = Uuid(*b"ottla.controllog");

/// Puts the state together and writes it as a snapshot.
///
/// Errors: why it cannot be done, in words.
pub(super) fn rebuild(disk: &dyn Disk, found: &Inspection) -> Result<(), String> {
    let files = live_files(disk, found)?;
    let log_id = found.log_id.ok_or("no file says which log it belongs to")?;
    let chain = chain_of(found).ok_or("there is no file of the log")?;
    let mut state = Rebuild::new(CoreConfig::default());
    for (time, entry) in control_log(disk, &files)? {
        state.control(&entry, time).map_err(|error| format!("the control log is not whole: {error}"))?;
    }
    let taken = take_all(disk, &files, &mut state)?;
    let last = found.files.iter().rfind(|file| !file.file.is_data() && file.frames > 0);
    let last = last.ok_or("the log has no frame")?;
    let end = taken.last.ok_or("the log has no frame")?;
    let (Some(epoch), Some((_, shard_time))) = (last.epoch, last.times) else {
        return Err("the last file's header is damaged".to_owned());
    };
    let position = Position(end.1);
    let state: ShardState = state.finish(position, epoch)?;
    let kept: Vec<KeptFile> = found
        .files
        .iter()
        .filter(|file| files.contains(&file.file) && !taken.useless.contains(&file.file))
        .filter(|file| file.file.is_data() || file.file < chain)
        .filter_map(|file| {
            let last_sequence = file.sequences?.1;
            Some(KeptFile { file: file.file, end: file.end, last_sequence })
        })
        .collect();
    let info = SnapshotInfo { frame_sequence: end.0, epoch, position: end.1, shard_time };
    let chunks = state.snapshot();
    write_snapshot(disk, (SHARD_ID, log_id, OsRng.next_u64()), &info, chain, &kept, chunks.chunks())
        .map_err(|error| error.to_string())
}

/// The first file of those that follow one another up to the newest.
fn chain_of(found: &Inspection) -> Option<FileId> {
    let mut logs: Vec<FileId> =
        found.files.iter().map(|file| file.file).filter(|file| !file.is_data()).collect();
    logs.sort_unstable();
    let mut first = logs.pop()?;
    while let Some(before) = logs.pop().filter(|before| before.0 + 1 == first.0) {
        first = before;
    }
    Some(first)
}

/// Oldest first, without those that the log itself says were dropped.
fn live_files(disk: &dyn Disk, found: &Inspection) -> Result<Vec<FileId>, String> {
    let mut files: Vec<(i64, FileId)> =
        found.files.iter().map(|file| (file.times.map_or(i64::MAX, |(_, last)| last), file.file)).collect();
    files.sort_unstable();
    let mut dropped = BTreeSet::new();
    let logs: Vec<FileId> = found.files.iter().map(|file| file.file).filter(|file| !file.is_data()).collect();
    for file in logs {
        walk(disk, file, &mut |found| {
            if let Found::Files(files) = found {
                dropped.extend(files.removed);
            }
            Ok(())
        })?;
    }
    Ok(files.into_iter().map(|(_, file)| file).filter(|file| !dropped.contains(file)).collect())
}

/// Goes through one file.
fn walk(
    disk: &dyn Disk,
    file: FileId,
    visit: &mut dyn FnMut(Found) -> Result<(), String>,
) -> Result<(), String> {
    let mut failed = None;
    let names = BTreeSet::from([file.file_name()]);
    let walked = dump(disk, SHARD_ID, Some(&names), &mut |found| match visit(found) {
        Ok(()) => ControlFlow::Continue(()),
        Err(why) => {
            failed = Some(why);
            ControlFlow::Break(())
        }
    });
    walked.map_err(|error: OpenError| error.to_string())?;
    failed.map_or(Ok(()), Err)
}

/// All batches of the control log, by their first offsets.
fn control_log(disk: &dyn Disk, files: &[FileId]) -> Result<Vec<(ShardTime, Entry)>, String> {
    let mut batches = BTreeMap::new();
    for file in files {
        let mut time = ShardTime(0);
        walk(disk, *file, &mut |found| {
            match found {
                Found::Frame(frame) => time = ShardTime(frame.shard_time),
                Found::Batch(entry) if entry.partition.topic_id == CONTROL_LOG => {
                    batches.entry(entry.header.base_offset).or_insert((time, entry));
                }
                Found::Damage(damage) => {
                    return Err(format!(
                        "{} at byte {}: {}, and what it held cannot be told",
                        file.file_name(),
                        damage.at,
                        damage.what
                    ));
                }
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(batches.into_values().collect())
}

/// What a walk through everything has come to.
#[derive(Default)]
struct Taken {
    /// The last frame of the log, and its last decision.
    last: Option<(FrameSequence, u64)>,
    /// Files of which nothing was new.
    useless: BTreeSet<FileId>,
}

fn take_all(disk: &dyn Disk, files: &[FileId], state: &mut Rebuild) -> Result<Taken, String> {
    let mut taken = Taken::default();
    for file in files {
        let (mut time, mut new, mut known) = (ShardTime(0), 0_u64, 0_u64);
        walk(disk, *file, &mut |found| {
            match found {
                Found::Frame(frame) => {
                    time = ShardTime(frame.shard_time);
                    if !file.is_data() && taken.last.is_none_or(|(last, _)| last < frame.frame_sequence) {
                        taken.last = Some((frame.frame_sequence, frame.position));
                    }
                }
                Found::Batch(entry) if entry.kind != EntryKind::Batch => {}
                Found::Batch(entry) if entry.partition.topic_id == CONTROL_LOG => {}
                Found::Batch(entry) => match state.batch(&entry, time) {
                    Ok(Rebuilt::Taken) => new += 1,
                    Ok(Rebuilt::Known) => known += 1,
                    Ok(Rebuilt::Deleted) => {}
                    Err(error) => return Err(error.to_string()),
                },
                Found::DamagedBatch(batch) => refuse_internal(state, &batch)?,
                _ => {}
            }
            Ok(())
        })?;
        if known > 0 && new > 0 {
            return Err(format!("{} holds offsets that another file holds too", file.file_name()));
        }
        if known > 0 {
            taken.useless.insert(*file);
        }
    }
    Ok(taken)
}

/// A hole in a client's topic is a hole; in a coordinator's it is a state that cannot be known.
fn refuse_internal(state: &Rebuild, batch: &DamagedBatch) -> Result<(), String> {
    match state.role_of(&batch.partition) {
        Some(Role::Data) | None => Ok(()),
        Some(_) => Err(format!(
            "a damaged batch of partition {} held records of a coordinator, offsets {} to {}",
            batch.partition.partition, batch.base_offset, batch.last_offset
        )),
    }
}
