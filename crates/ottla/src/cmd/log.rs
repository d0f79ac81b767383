//! `ottla log`: shows what a broker's folder holds, file by file, in order.
//!
//! Nothing is changed or locked, so it may be used on a folder that a broker works on. Memory is that of one frame.

mod records;
mod show;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ottla_broker::dump::Folder;

use crate::cli::{Place, place};
use crate::output;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:
  ottla log dump ./ottla-data")]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show frames, batches, markers, and the records of coordinators and of the control log
    Dump(Dump),
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla log dump /var/lib/ottla                      all of it
  ottla log dump ./ottla-data --topic orders/0 --offsets 100..200 --records
  ottla log dump ./ottla-data/00000000000000000003.log --json
  ottla log dump ./ottla-data --topic __transaction_state
  ottla log dump ./ottla-data --file 00000000000000000041-0000000002.snapshot

A broker may be at work on the folder: nothing is changed, not even the lock file. Damaged
places are shown as such, and what lies behind them too. Records of __consumer_offsets,
__transaction_state and of the control log, and markers, are decoded; those of other topics are
shown with --records.

Exit codes: 0 shown, 1 it cannot be read, 4 something shown is damaged.")]
pub(crate) struct Dump {
    /// The folder, or one of its files
    path: PathBuf,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// Only batches of this topic (name or id) or partition; `@control` is the control log
    #[arg(long, value_name = "TOPIC[/PARTITION]", value_parser = place)]
    topic: Option<Place>,
    /// Only batches of partitions with this number
    #[arg(long, value_name = "NUMBER")]
    partition: Option<i32>,
    /// Only batches with any of these offsets: `7`, `7..9` (9 included), `7..`, `..9`
    #[arg(long, value_name = "FROM..TO", value_parser = offsets)]
    offsets: Option<Offsets>,
    /// Only this file of the folder; repeatable
    #[arg(long, value_name = "NAME")]
    file: Vec<String>,
    /// Show the records of topics too
    #[arg(long)]
    records: bool,
}

/// A range of offsets, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offsets {
    first: i64,
    last: i64,
}

fn offsets(text: &str) -> Result<Offsets, String> {
    let help = || "is no range of offsets like 7, 7..9, 7.. or ..9".to_owned();
    let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number >= 0).ok_or_else(help);
    let found = match text.split_once("..") {
        None => number(text).map(|at| Offsets { first: at, last: at })?,
        Some((first, last)) => Offsets {
            first: if first.is_empty() { 0 } else { number(first)? },
            last: if last.is_empty() { i64::MAX } else { number(last)? },
        },
    };
    if found.first <= found.last && text != ".." { Ok(found) } else { Err(help()) }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let Command::Dump(options) = &options.command;
    let mut folder = Folder::open(&options.path)?;
    folder.only(&options.file);
    let mut show = show::Show::new(options, folder.topics()?);
    let mut failed = None;
    folder.walk(&mut |found| match show.found(found) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    show.end()?;
    output::flush()?;
    Ok(if show.saw_damage() { ExitCode::from(4) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves every way to name offsets, and that others are refused.
    #[test]
    fn ranges() {
        assert_eq!(offsets("7"), Ok(Offsets { first: 7, last: 7 }));
        assert_eq!(offsets("7..9"), Ok(Offsets { first: 7, last: 9 }));
        assert_eq!(offsets("7.."), Ok(Offsets { first: 7, last: i64::MAX }));
        assert_eq!(offsets("..9"), Ok(Offsets { first: 0, last: 9 }));
        for bad in ["", "..", "9..7", "-1", "a..b", "1...2"] {
            assert!(offsets(bad).is_err(), "{bad}");
        }
    }
}
