//! `ottla group`: what a group has committed.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ottla_client::{Admin, TopicPartition};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::Client;
use crate::output;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:
  ottla group offsets billing --json")]
pub(crate) struct Options {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show the committed offsets of a group, and how far behind the end of the log they are
    Offsets {
        /// The group
        group: String,
        /// One JSON object per partition
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let admin = Admin::connect(options.client.admin()?).await?;
    let Command::Offsets { group, json } = options.command;
    let mut offsets = admin.group_offsets(&Text::from(group)).await?;
    offsets.sort_by(|a, b| a.topic_partition.cmp(&b.topic_partition));
    let partitions: Vec<TopicPartition> =
        offsets.iter().map(|offset| offset.topic_partition.clone()).collect();
    let ends = admin.last_stable_offsets(&partitions).await?;
    let mut rows = Vec::new();
    for offset in &offsets {
        let at = &offset.topic_partition;
        let end = ends.get(at).copied().unwrap_or(-1);
        let committed = offset.offset.unwrap_or(-1);
        let lag = offset.offset.map(|committed| (end - committed).max(0));
        if json {
            output::json(&json!({
                "topic": at.topic.as_str(), "partition": at.partition, "offset": offset.offset,
                "last_stable_offset": end, "lag": lag, "metadata": offset.metadata.as_str(),
            }))?;
        }
        let lag = lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string());
        rows.push(vec![
            at.topic.to_string(),
            at.partition.to_string(),
            committed.to_string(),
            end.to_string(),
            lag,
        ]);
    }
    if !json {
        output::table(&["TOPIC", "PARTITION", "OFFSET", "LAST STABLE", "LAG"], &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}
