//! `ottla doctor`: looks into a broker's folder and explains it; with `--repair` mends what can be mended. Of the state
//! folder of a streams application it tells what is there.

mod state;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ottla_broker::doctor::{
    DamagedPlace, Examination, ExamineError, FileInspection, Footer, OffsetRange, Repairs, Start, examine,
    repair,
};
use serde_json::{Value, json};

use crate::cli::Unsafe;
use crate::output::{self, Progress};
use crate::text;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla doctor /var/lib/ottla
  ottla doctor ./ottla-data --json
  ottla doctor ./ottla-data --repair
  ottla doctor ./state               a streams application's: what lies set aside

All of the log is read and every frame checked; nothing is written, not even the lock file. A folder
that a broker works on is refused: stop the broker, or look at a copy (`ottla backup`).

--repair puts damaged snapshots aside, makes damaged file headers anew, makes a snapshot from the
frames where no good one is left to start from, and takes a copy that has lost something as it is.
Old bytes stay in the folder, in files that end in .aside; nobody reads them. No record is ever
removed, and a damaged frame stays what it is.

Exit codes: 0 the folder is whole, 1 it cannot be read, 3 a broker works on it, 4 something is
damaged.")]
pub(crate) struct Options {
    /// The folder
    dir: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Mend what can be mended, and keep the old bytes
    #[arg(long)]
    repair: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let applications = state::find(&options.dir)?;
    if !applications.is_empty() {
        if options.json {
            output::json(&state::json_of(&applications))?;
        } else {
            state::explain(&applications)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut progress = Progress::new("MiB read", 0);
    let mut told = |done: u64, of: u64| progress.at((done >> 20) as usize, (of >> 20) as usize);
    let repairs = match options.repair {
        true => Some(safely(repair(&options.dir, &mut told))?),
        false => None,
    };
    let found = safely(examine(&options.dir, &mut told))?;
    if options.json {
        output::json(&json_of(&found, repairs.as_ref()))?
    } else {
        if let Some(repairs) = &repairs {
            explain_repairs(repairs)?;
        }
        explain(&found, options.repair)?
    }
    Ok(if is_whole(&found) { ExitCode::SUCCESS } else { ExitCode::from(4) })
}

fn safely<T>(result: Result<T, ExamineError>) -> Result<T> {
    match result {
        Err(error @ ExamineError::InUse { .. }) => Err(Unsafe(error.to_string()).into()),
        other => Ok(other?),
    }
}

fn explain_repairs(repairs: &Repairs) -> Result<()> {
    for repaired in &repairs.files {
        output::line(&format!(
            "{}: {}; its old bytes are in {}",
            repaired.name, repaired.what, repaired.kept
        ))?;
    }
    if repairs.accepted {
        output::line("the copy is taken as it is from now on; what it has lost is told below")?;
    }
    match &repairs.rebuilt {
        Some(Ok(())) => output::line(
            "there was no good snapshot to start from; one was made from all frames that are left",
        )?,
        Some(Err(why)) => {
            output::line(&format!("there is no good snapshot to start from, and none can be made: {why}"))?
        }
        None => {}
    }
    if repairs.files.is_empty() && !repairs.accepted && repairs.rebuilt.is_none() {
        output::line("there was nothing that could be mended")?;
    }
    output::line("")
}

fn is_whole(found: &Examination) -> bool {
    let files = &found.inspection.files;
    files.iter().all(|file| file.damage.is_empty() && !file.header_copy_damaged)
        && found.inspection.snapshots.iter().all(|snapshot| snapshot.contents.is_ok())
        && found.inspection.missing.is_empty()
        && found.lost.is_empty()
        && matches!(found.start, Start::Works(_))
}

fn footer_word(footer: Footer) -> &'static str {
    match footer {
        Footer::InUse => "in use",
        Footer::Sound => "good",
        Footer::Missing => "missing",
    }
}

/// A range of offsets with its topic's name, when a start comes far enough to know it.
fn range_words(found: &Examination, range: &OffsetRange) -> String {
    let topic = found.topics.get(&range.partition.topic_id);
    let topic = topic
        .map_or_else(|| format!("topic id {}", range.partition.topic_id), |topic| topic.name.to_string());
    format!("{topic}/{} offsets {} to {}", range.partition.partition, range.first_offset, range.last_offset)
}

fn explain(found: &Examination, is_repaired: bool) -> Result<()> {
    let inspection = &found.inspection;
    let bytes: u64 = inspection.files.iter().map(|file| file.bytes).sum();
    let id = inspection.log_id.map_or_else(|| "unknown".to_owned(), |id| format!("{id:016x}"));
    output::line(&format!(
        "log {id}, format version {}: {}, {}, {}",
        inspection.format_version,
        text::count(inspection.files.len(), "file"),
        text::size(bytes),
        text::count(inspection.snapshots.len(), "snapshot")
    ))?;
    let rows: Vec<_> = inspection.files.iter().map(file_row).collect();
    output::table(
        &["FILE", "OPENING", "FRAMES", "BATCHES", "LOG BYTES", "INDEX", "LAST WRITTEN", "STATE"],
        &rows,
    )?;
    for snapshot in &inspection.snapshots {
        match &snapshot.contents {
            Ok(info) => output::line(&format!(
                "snapshot {}: good, up to frame {}, {}",
                snapshot.name,
                info.frame_sequence.0,
                text::time(info.shard_time)
            ))?,
            Err(damage) => output::line(&format!(
                "snapshot {damage}; a start takes the one before it, or the log, and nothing is lost"
            ))?,
        }
    }
    if !found.topics.is_empty() {
        let partitions: usize = found.topics.values().map(|topic| topic.partitions).sum();
        output::line(&format!(
            "{} with {}",
            text::count(found.topics.len(), "topic"),
            text::count(partitions, "partition")
        ))?;
    }
    explain_names(found)?;
    output::line("")?;
    for file in &inspection.files {
        explain_file(found, file)?;
    }
    explain_losses(found)?;
    explain_start(found, is_repaired)
}

/// Files that are there and do nothing, and files that are not there.
fn explain_names(found: &Examination) -> Result<()> {
    let inspection = &found.inspection;
    for name in &inspection.unknown {
        output::line(&format!("{name}: not one of the log's files; it is left alone"))?;
    }
    for name in &inspection.unfinished {
        output::line(&format!("{name}: begun and not finished; the next start removes it"))?;
    }
    for name in &inspection.aside {
        output::line(&format!(
            "{name}: what a repair has replaced; nobody reads it, remove it when you are sure"
        ))?;
    }
    for file in &inspection.missing {
        output::line(&format!("{}: MISSING; the log needs it", file.file_name()))?;
    }
    if found.copied {
        output::line(
            "the folder is a copy on which no broker has been started yet; the first start reads all of it and is \
             refused when anything is missing",
        )?;
    }
    Ok(())
}

/// Offsets that no good batch holds.
fn explain_losses(found: &Examination) -> Result<()> {
    for range in &found.lost {
        output::line(&format!("not readable: {}", range_words(found, range)))?;
    }
    Ok(())
}

fn file_row(file: &FileInspection) -> Vec<String> {
    let state = match (&file.damage[..], file.torn) {
        ([], None) => "good".to_owned(),
        ([], Some(_)) => "good, torn end".to_owned(),
        (places, _) => text::count(places.len(), "damaged place"),
    };
    vec![
        file.file.file_name(),
        file.epoch.map_or_else(|| "?".to_owned(), |epoch| epoch.to_string()),
        file.frames.to_string(),
        file.batches.to_string(),
        file.end.to_string(),
        footer_word(file.footer).to_owned(),
        file.times.map_or_else(|| "-".to_owned(), |(_, last)| text::time(last)),
        state,
    ]
}

fn explain_file(found: &Examination, file: &FileInspection) -> Result<()> {
    let name = file.file.file_name();
    if file.header_copy_damaged {
        output::line(&format!(
            "{name}: one of the two copies of its header is damaged; the other one is used, nothing is lost; --repair \
             makes it anew"
        ))?;
    }
    if file.footer == Footer::Missing {
        output::line(&format!(
            "{name}: its index at the end is missing or damaged; the next start makes it anew from the frames, nothing \
             is lost"
        ))?;
    }
    if let Some(at) = file.torn {
        output::line(&format!(
            "{name} at byte {at}: a frame that was not written to its end, by a broker that was killed or lost power; \
             nobody was told of it, the next start leaves it out"
        ))?;
    }
    for place in &file.damage {
        explain_place(found, &name, place)?;
    }
    Ok(())
}

fn explain_place(found: &Examination, name: &str, place: &DamagedPlace) -> Result<()> {
    let upto = match place.resumes_at {
        Some(resumes_at) => format!("good frames go on at byte {resumes_at}"),
        None => "nothing good lies behind it in this file".to_owned(),
    };
    output::line(&format!("{name} at byte {}: {}; {upto}", place.position, place.what))?;
    for range in &place.holds {
        output::line(&format!("  it holds {}", range_words(found, range)))?;
    }
    if place.holds.is_empty() {
        output::line("  which offsets it held cannot be told from what is left")?;
    }
    Ok(())
}

fn explain_start(found: &Examination, is_repaired: bool) -> Result<()> {
    let is_damaged = !is_whole(found);
    match &found.start {
        Start::Works(report) => {
            let from = match report.snapshot {
                Some(info) => format!("from the snapshot at frame {}", info.frame_sequence.0),
                None => "from the log's first frame".to_owned(),
            };
            output::line(&format!(
                "a start works: {from}, {} replayed, up to frame {}",
                text::count(report.frames_replayed, "frame"),
                report.frame_sequence.0
            ))?;
        }
        Start::Refused(reason) => output::line(&format!("a start is refused: {reason}"))?,
    }
    for advice in advice(found, is_repaired) {
        output::line(&format!("what to do: {advice}"))?;
    }
    if !is_damaged {
        output::line("everything is whole; there is nothing to do")?;
    }
    Ok(())
}

/// What to do, by what was found.
fn advice(found: &Examination, is_repaired: bool) -> Vec<&'static str> {
    let inspection = &found.inspection;
    let mut advice = Vec::new();
    if is_whole(found) {
        return advice;
    }
    let works = matches!(found.start, Start::Works(_));
    let has_lost = !found.lost.is_empty()
        || !inspection.missing.is_empty()
        || inspection.files.iter().any(|file| !file.damage.is_empty());
    let has_snapshot = inspection.snapshots.iter().any(|snapshot| snapshot.contents.is_ok());
    if !works && !has_snapshot && !is_repaired {
        advice.push(
            "`ottla doctor --repair` makes a snapshot from all frames that are left, if what is left of the control log \
             and of the coordinators is whole",
        );
    }
    let can_be_mended = inspection.snapshots.iter().any(|snapshot| snapshot.contents.is_err())
        || inspection.files.iter().any(|file| file.header_copy_damaged || file.epoch.is_none());
    if can_be_mended && !is_repaired {
        advice.push(
            "`ottla doctor --repair` mends headers and puts damaged snapshots aside; it keeps the old bytes",
        );
    }
    if found.copied && !works {
        advice.push(
            "copy the folder again with `ottla backup`, which may be done while its broker is at work, or from a \
             stopped broker",
        );
        if found.works_as_it_is {
            advice
                .push("or accept what this copy has lost, as told above, with --repair; then a start works");
        }
    } else if !works {
        advice.push(
            "copy the folder before anything else; check the disk (smartctl, dmesg); restore the file that is named \
             above from a backup of the same log. Nothing that was acknowledged is cut away by itself, which is why \
             the start is refused",
        );
    } else if has_lost {
        advice.push(
            "the damaged places are not needed for a start; readers of those offsets get KAFKA_STORAGE_ERROR, \
             everything else works. Copy the folder, check the disk (smartctl, dmesg), and restore the files that are \
             named above from a backup of the same log if there is one",
        );
    }
    advice
}

fn range_json(found: &Examination, range: &OffsetRange) -> Value {
    json!({
        "topic": found.topics.get(&range.partition.topic_id).map(|topic| topic.name.to_string()),
        "topic_id": range.partition.topic_id.to_string(),
        "partition": range.partition.partition,
        "first_offset": range.first_offset,
        "last_offset": range.last_offset,
    })
}

fn repairs_json(repairs: &Repairs) -> Value {
    json!({
        "files": repairs.files.iter().map(|repaired| json!({
            "file": repaired.name, "kept": repaired.kept, "what": repaired.what,
        })).collect::<Vec<_>>(),
        "copy_accepted": repairs.accepted,
        "snapshot_made": repairs.rebuilt.as_ref().map(Result::is_ok),
        "snapshot_refused": repairs.rebuilt.as_ref().and_then(|made| made.as_ref().err()),
    })
}

fn json_of(found: &Examination, repairs: Option<&Repairs>) -> Value {
    let inspection = &found.inspection;
    let range = |range: &OffsetRange| range_json(found, range);
    let place = |place: &DamagedPlace| {
        json!({
            "position": place.position,
            "resumes_at": place.resumes_at,
            "what": place.what,
            "holds": place.holds.iter().map(range).collect::<Vec<_>>(),
        })
    };
    let start = match &found.start {
        Start::Works(report) => json!({
            "works": true,
            "snapshot_frame": report.snapshot.map(|info| info.frame_sequence.0),
            "frames_replayed": report.frames_replayed,
            "last_frame": report.frame_sequence.0,
        }),
        Start::Refused(reason) => json!({ "works": false, "reason": reason }),
    };
    json!({
        "format_version": inspection.format_version,
        "log_id": inspection.log_id.map(|id| format!("{id:016x}")),
        "whole": is_whole(found),
        "start": start,
        "files": inspection.files.iter().map(|file| json!({
            "file": file.file.file_name(),
            "bytes": file.bytes,
            "log_bytes": file.end,
            "opening": file.epoch,
            "sealed": file.sealed,
            "frames": file.frames,
            "batches": file.batches,
            "first_frame": file.sequences.map(|(first, _)| first.0),
            "last_frame": file.sequences.map(|(_, last)| last.0),
            "first_time": file.times.map(|(first, _)| first),
            "last_time": file.times.map(|(_, last)| last),
            "index": footer_word(file.footer),
            "header_copy_damaged": file.header_copy_damaged,
            "torn_at": file.torn,
            "damage": file.damage.iter().map(place).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "snapshots": inspection.snapshots.iter().map(|snapshot| json!({
            "file": snapshot.name,
            "frame": snapshot.contents.as_ref().ok().map(|info| info.frame_sequence.0),
            "damage": snapshot.contents.as_ref().err().map(ToString::to_string),
        })).collect::<Vec<_>>(),
        "topics": found.topics.iter().map(|(id, topic)| json!({
            "topic": topic.name.as_str(), "topic_id": id.to_string(), "partitions": topic.partitions,
        })).collect::<Vec<_>>(),
        "missing": inspection.missing.iter().map(|file| file.file_name()).collect::<Vec<_>>(),
        "not_readable": found.lost.iter().map(range).collect::<Vec<_>>(),
        "copied": found.copied,
        "advice": advice(found, repairs.is_some()),
        "repaired": repairs.map(repairs_json),
        "aside": inspection.aside,
        "unfinished": inspection.unfinished,
        "unknown": inspection.unknown,
    })
}
