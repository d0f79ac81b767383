//! `ottla doctor`: looks into a broker's folder without changing anything, and explains it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ottla_broker::doctor::{
    DamagedPlace, Examination, ExamineError, FileInspection, Footer, OffsetRange, Start, examine,
};
use serde_json::{Value, json};

use crate::cli::Unsafe;
use crate::output::{self, Progress};
use crate::text;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla doctor /var/lib/ottla
  ottla doctor ./ottla-data --json

All of the log is read and every frame checked; nothing is written, not even the lock file. A folder
that a broker works on is refused: stop the broker, or look at a copy.

Exit codes: 0 the folder is whole, 1 it cannot be read, 3 a broker works on it, 4 something is
damaged.")]
pub(crate) struct Options {
    /// The folder
    dir: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut progress = Progress::new("MiB read", 0);
    let found = examine(&options.dir, |done, of| {
        progress.at((done >> 20) as usize, (of >> 20) as usize);
    });
    let found = match found {
        Ok(found) => found,
        Err(error @ ExamineError::InUse { .. }) => return Err(Unsafe(error.to_string()).into()),
        Err(error) => return Err(error.into()),
    };
    if options.json {
        output::json(&json_of(&found))?
    } else {
        explain(&found)?
    }
    Ok(if is_whole(&found) { ExitCode::SUCCESS } else { ExitCode::from(4) })
}

fn is_whole(found: &Examination) -> bool {
    let files = &found.inspection.files;
    files.iter().all(|file| file.damage.is_empty() && !file.header_copy_damaged)
        && found.inspection.snapshots.iter().all(|snapshot| snapshot.contents.is_ok())
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

fn explain(found: &Examination) -> Result<()> {
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
            Err(damage) => output::line(&format!("snapshot {damage}"))?,
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
    for name in &inspection.unknown {
        output::line(&format!("{name}: not one of the log's files; it is left alone"))?;
    }
    for name in &inspection.unfinished {
        output::line(&format!("{name}: begun and not finished; the next start removes it"))?;
    }
    output::line("")?;
    for file in &inspection.files {
        explain_file(found, file)?;
    }
    explain_start(found)
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
            "{name}: one of the two copies of its header is damaged; the other one is used, nothing is lost"
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

fn explain_start(found: &Examination) -> Result<()> {
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
            if is_damaged {
                output::line(
                    "what to do: the damaged places are not needed for a start; readers of those offsets get \
                     KAFKA_STORAGE_ERROR, everything else works. Copy the folder, check the disk (smartctl, dmesg), and \
                     restore the files that are named above from a backup of the same log if there is one.",
                )?;
            } else {
                output::line("everything is whole; there is nothing to do")?;
            }
        }
        Start::Refused(reason) => {
            output::line(&format!("a start is refused: {reason}"))?;
            output::line(
                "what to do: copy the folder before anything else; check the disk (smartctl, dmesg); restore the file \
                 that is named above from a backup of the same log. Nothing that was acknowledged is cut away by \
                 itself, which is why the start is refused.",
            )?;
        }
    }
    Ok(())
}

fn json_of(found: &Examination) -> Value {
    let inspection = &found.inspection;
    let range = |range: &OffsetRange| {
        json!({
            "topic": found.topics.get(&range.partition.topic_id).map(|topic| topic.name.to_string()),
            "topic_id": range.partition.topic_id.to_string(),
            "partition": range.partition.partition,
            "first_offset": range.first_offset,
            "last_offset": range.last_offset,
        })
    };
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
        "unfinished": inspection.unfinished,
        "unknown": inspection.unknown,
    })
}
