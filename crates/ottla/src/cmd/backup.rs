//! `ottla backup`: copies a broker's folder to a consistent point, while the broker goes on.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ottla_broker::backup::{CopyError, copy};
use ottla_env::process;
use serde_json::json;

use crate::cli::Unsafe;
use crate::output::{self, Progress};
use crate::text;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla backup ./backup-monday                       of ./ottla-data
  ottla backup /backup/monday --data /var/lib/ottla
  ottla serve --data /backup/monday                  a broker on the copy

Everything that was acknowledged before the command began is in the copy, with transactions,
groups and offsets as of one moment. The broker may be at work and is not slowed down but for
the reading. Files that do not change any more become a second name of the same file (hard
link) where both folders are on one file system: that costs no space, and guards against
everything but the loss of the disk; --no-links copies all bytes. What is copied once more from
there with cp or tar is whole too.

A plain `cp -r` of a running broker's folder is of no moment. The first start on such a copy
reads all of it, and refuses it when anything is missing.

Exit codes: 0 copied, 1 failed (the folder holds a part that is never taken for whole), 3 the
folder to copy to is not empty, or the other is a copy that was never opened.")]
pub(crate) struct Options {
    /// The folder to make; must be absent or empty
    dir: PathBuf,
    /// The broker's folder
    #[arg(long, value_name = "DIR", default_value = "./ottla-data")]
    data: PathBuf,
    /// Copy every byte
    #[arg(long)]
    no_links: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    // every file is held open until it is copied
    if let Err(error) = process::raise_open_files_max() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let mut progress = Progress::new("MiB copied", 0);
    let copied = copy(&options.data, &options.dir, !options.no_links, |done, of| {
        progress.at((done >> 20) as usize, (of >> 20) as usize);
    });
    let report = match copied {
        Ok(report) => report,
        Err(error @ (CopyError::NotEmpty { .. } | CopyError::Unclaimed { .. })) => {
            return Err(Unsafe(error.to_string()).into());
        }
        Err(error) => return Err(error.into()),
    };
    if options.json {
        output::json(&json!({
            "folder": options.dir.display().to_string(),
            "files": report.files,
            "linked": report.linked,
            "bytes": report.bytes,
            "last_frame": report.last_frame,
            "time": report.shard_time,
        }))?;
    } else {
        output::line(&format!(
            "{}: {} ({} linked), {}, up to frame {}{}",
            options.dir.display(),
            text::count(report.files, "file"),
            report.linked,
            text::size(report.bytes),
            report.last_frame,
            if report.shard_time > 0 {
                format!(" of {}", text::time(report.shard_time))
            } else {
                String::new()
            },
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
