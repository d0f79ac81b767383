//! `ottla cluster`: brokers, features, folders and the quorum.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ottla_client::Admin;
use ottla_client::admin::{Feature, FeatureUpgrade, LogDir, QuorumMember};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::{Client, Usage, name_and_value};
use crate::{output, text};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla cluster describe
  ottla cluster features --json
  ottla cluster log-dirs")]
pub(crate) struct Options {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show the cluster's id and its brokers
    #[command(after_help = "Examples:
  ottla cluster describe --json")]
    Describe {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show the levels of features
    #[command(after_help = "Examples:
  ottla cluster features
  ottla cluster features --json")]
    Features {
        /// One JSON object per feature
        #[arg(long)]
        json: bool,
    },
    /// Move a feature to another level
    #[command(after_help = "Examples:
  ottla cluster set-feature transaction.version=2
  ottla cluster set-feature transaction.version=1 --downgrade --dry-run")]
    SetFeature {
        /// The feature and its level; 0 switches it off
        #[arg(value_name = "NAME=LEVEL", value_parser = name_and_value)]
        feature: (String, String),
        /// It may go down
        #[arg(long)]
        downgrade: bool,
        /// Only ask whether it would be taken
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the brokers' folders and what topics take in them
    #[command(after_help = "Examples:
  ottla cluster log-dirs
  ottla cluster log-dirs --json")]
    LogDirs {
        /// One JSON object per folder
        #[arg(long)]
        json: bool,
    },
    /// Show the quorum that keeps the cluster's metadata
    #[command(after_help = "Examples:
  ottla cluster quorum --json")]
    Quorum {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let admin = options.client.connect_admin().await?;
    match options.command {
        Command::Describe { json } => describe(&admin, json).await?,
        Command::Features { json } => features(&admin, json).await?,
        Command::SetFeature { feature: (name, level), downgrade, dry_run } => {
            let level =
                level.trim().parse::<i16>().map_err(|_| Usage(format!("`{level}` is not a level")))?;
            let upgrade = if downgrade { FeatureUpgrade::SafeDowngrade } else { FeatureUpgrade::Upgrade };
            let updates = std::collections::BTreeMap::from([(Text::from(name), (level, upgrade))]);
            admin.update_features(&updates, dry_run).await?;
            if dry_run {
                output::note("it would be taken; nothing was changed");
            }
        }
        Command::LogDirs { json } => log_dirs(&admin, json).await?,
        Command::Quorum { json } => quorum(&admin, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn describe(admin: &Admin, json: bool) -> Result<()> {
    let cluster = admin.describe_cluster().await?;
    if json {
        return output::json(&json!({
            "cluster_id": cluster.cluster_id.as_str(),
            "controller": cluster.controller_id,
            "brokers": cluster.brokers.iter().map(|broker| json!({
                "broker": broker.node_id,
                "host": broker.address.host,
                "port": broker.address.port,
            })).collect::<Vec<_>>(),
        }));
    }
    output::line(&format!("cluster {}, controller {}", cluster.cluster_id, cluster.controller_id))?;
    let rows: Vec<_> = cluster
        .brokers
        .iter()
        .map(|broker| vec![broker.node_id.to_string(), broker.address.to_string()])
        .collect();
    output::table(&["BROKER", "ADDRESS"], &rows)
}

async fn features(admin: &Admin, json: bool) -> Result<()> {
    let features = admin.describe_features().await?;
    if json {
        return features.iter().try_for_each(|feature| {
            output::json(&json!({
                "feature": feature.name.as_str(),
                "finalized": feature.finalized,
                "supported_min": feature.supported.map(|versions| versions.min),
                "supported_max": feature.supported.map(|versions| versions.max),
            }))
        });
    }
    let supported = |feature: &Feature| feature.supported.map_or_else(String::new, |v| v.to_string());
    let rows: Vec<_> = features
        .iter()
        .map(|feature| {
            let finalized = feature.finalized.map_or_else(|| "-".to_owned(), |level| level.to_string());
            vec![feature.name.to_string(), finalized, supported(feature)]
        })
        .collect();
    output::table(&["FEATURE", "LEVEL", "SUPPORTED"], &rows)
}

/// Bytes per topic of a folder, the largest first.
fn by_topic(dir: &LogDir) -> Vec<(&Text, i64, usize)> {
    let mut topics: std::collections::BTreeMap<&Text, (i64, usize)> = std::collections::BTreeMap::new();
    for (at, bytes) in &dir.partitions {
        let topic = topics.entry(&at.topic).or_default();
        topic.0 += bytes.max(&0);
        topic.1 += 1;
    }
    let mut topics: Vec<_> =
        topics.into_iter().map(|(topic, (bytes, count))| (topic, bytes, count)).collect();
    topics.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
    topics
}

async fn log_dirs(admin: &Admin, json: bool) -> Result<()> {
    let size = |bytes: i64| text::size(u64::try_from(bytes).unwrap_or(0));
    for (broker, dirs) in admin.describe_log_dirs(&[]).await {
        for dir in dirs.with_context(|| format!("broker {broker}"))? {
            if json {
                output::json(&json!({
                    "broker": broker,
                    "path": dir.path.as_str(),
                    "total_bytes": dir.total_bytes,
                    "usable_bytes": dir.usable_bytes,
                    "partitions": dir.partitions.iter().map(|(at, bytes)| json!({
                        "topic": at.topic.as_str(), "partition": at.partition, "bytes": bytes,
                    })).collect::<Vec<_>>(),
                }))?;
                continue;
            }
            let room = match (dir.usable_bytes, dir.total_bytes) {
                (Some(usable), Some(total)) => format!(", {} of {} free", size(usable), size(total)),
                _ => String::new(),
            };
            output::line(&format!("broker {broker}: {}{room}", dir.path))?;
            let rows: Vec<_> = by_topic(&dir)
                .into_iter()
                .map(|(topic, bytes, count)| vec![topic.to_string(), count.to_string(), size(bytes)])
                .collect();
            output::table(&["TOPIC", "PARTITIONS", "SIZE"], &rows)?;
        }
    }
    Ok(())
}

async fn quorum(admin: &Admin, json: bool) -> Result<()> {
    let quorum = admin.describe_quorum().await?;
    let member = |member: &QuorumMember| {
        json!({
            "replica": member.replica_id,
            "log_end_offset": member.log_end_offset,
            "last_fetch_timestamp": member.last_fetch_timestamp,
        })
    };
    if json {
        return output::json(&json!({
            "leader": quorum.leader_id,
            "leader_epoch": quorum.leader_epoch,
            "high_watermark": quorum.high_watermark,
            "voters": quorum.voters.iter().map(member).collect::<Vec<_>>(),
            "observers": quorum.observers.iter().map(member).collect::<Vec<_>>(),
        }));
    }
    output::line(&format!(
        "leader {}, epoch {}, high watermark {}",
        quorum.leader_id, quorum.leader_epoch, quorum.high_watermark
    ))?;
    let rows = |role: &str, members: &[QuorumMember]| -> Vec<Vec<String>> {
        let rows = members.iter().map(|member| {
            vec![member.replica_id.to_string(), role.to_owned(), member.log_end_offset.to_string()]
        });
        rows.collect()
    };
    let mut all = rows("voter", &quorum.voters);
    all.extend(rows("observer", &quorum.observers));
    output::table(&["REPLICA", "ROLE", "LOG END"], &all)
}
