//! `ottla topic`: create, list, describe, alter and delete topics.

pub(crate) mod describe;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ottla_client::Admin;
use ottla_client::admin::{AlterConfig, ConfigResource, NewTopic, TopicDescription, TopicRef};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::{Client, Place, Usage, name_and_value, place};
use crate::cmd::confirm::Confirm;
use crate::cmd::{config, group};
use crate::output;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla topic create orders --partitions 3 --config cleanup.policy=compact
  ottla topic list
  ottla topic describe orders --json
  ottla topic alter orders --partitions 6 --config retention.ms=86400000
  ottla topic delete orders")]
pub(crate) struct Options {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Create a topic
    #[command(after_help = "Examples:
  ottla topic create orders
  ottla topic create orders --partitions 3 --config cleanup.policy=compact --if-not-exists")]
    Create {
        /// Its name
        topic: String,
        /// How many partitions; the broker's default when not given
        #[arg(short, long, default_value_t = -1, allow_negative_numbers = true)]
        partitions: i32,
        /// One of Kafka's topic settings, e.g. retention.ms=86400000; repeatable
        #[arg(short, long = "config", value_name = "NAME=VALUE", value_parser = name_and_value)]
        configs: Vec<(String, String)>,
        /// It is fine when the topic exists
        #[arg(long)]
        if_not_exists: bool,
    },
    /// List topics
    #[command(after_help = "Examples:
  ottla topic list --all
  ottla topic list --json")]
    List {
        /// Kafka's own topics too
        #[arg(short, long)]
        all: bool,
        /// One JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Show a topic's partitions with their offsets, and its settings
    #[command(after_help = "Examples:
  ottla topic describe orders
  ottla topic describe orders --json")]
    Describe {
        /// Its name
        topic: String,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Give a topic more partitions, change its settings
    #[command(after_help = "Examples:
  ottla topic alter orders --partitions 6
  ottla topic alter orders --config retention.ms=86400000 --unset cleanup.policy --dry-run

More partitions send keys to other partitions than before: records of one key are then in
two of them.")]
    Alter {
        /// Its name
        topic: String,
        /// How many partitions it is to have, all in all
        #[arg(short, long)]
        partitions: Option<i32>,
        /// One of Kafka's topic settings, e.g. retention.ms=86400000; repeatable
        #[arg(short, long = "config", value_name = "NAME=VALUE", value_parser = name_and_value)]
        configs: Vec<(String, String)>,
        /// A setting that is to have its default again; repeatable
        #[arg(long, value_name = "NAME")]
        unset: Vec<String>,
        /// Only ask whether it would be taken
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete topics with all their records
    #[command(after_help = "Examples:
  ottla topic delete orders
  ottla topic delete orders reports --yes")]
    Delete {
        /// Their names
        #[arg(required = true, value_name = "TOPIC")]
        topics: Vec<String>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Delete the records of partitions from their start up to an offset
    #[command(after_help = "Examples:
  ottla topic delete-records orders/0 --before 4711
  ottla topic delete-records orders --before -1 --yes        all that is there")]
    DeleteRecords {
        /// A topic, or one of its partitions
        #[arg(value_parser = place, value_name = "TOPIC[/PARTITION]")]
        place: Place,
        /// The first offset that stays; -1 for all up to the high watermark
        #[arg(long, value_name = "OFFSET", allow_negative_numbers = true)]
        before: i64,
        /// One JSON object per partition
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let admin = options.client.connect_admin().await?;
    match options.command {
        Command::Create { topic, partitions, configs, if_not_exists } => {
            let configs = configs.into_iter().map(|(name, value)| (Text::from(name), Text::from(value)));
            let new = NewTopic { configs: configs.collect(), ..NewTopic::new(topic.as_str(), partitions) };
            match admin.create_topic(&new).await {
                Err(error)
                    if if_not_exists
                        && error.code().is_some_and(|code| code.name() == "TOPIC_ALREADY_EXISTS") => {}
                result => result?,
            }
        }
        Command::List { all, json } => list(&admin, all, json).await?,
        Command::Describe { topic, json } => describe::run(&admin, &Text::from(topic), json).await?,
        Command::Alter { topic, partitions, configs, unset, dry_run } => {
            let set = configs.iter().map(|(name, value)| AlterConfig::set(name.as_str(), value.as_str()));
            let unset = unset.iter().map(|name| AlterConfig::delete(name.as_str()));
            alter(&admin, &Text::from(topic), partitions, set.chain(unset).collect(), dry_run).await?;
        }
        Command::Delete { topics, confirm } => {
            confirm.ask(&format!("This deletes all records of {}.", topics.join(", ")), &topics[0])?;
            let topics: Vec<_> = topics.into_iter().map(TopicRef::name).collect();
            group::each(admin.delete_topics(&topics).await)?;
        }
        Command::DeleteRecords { place, before, json, confirm } => {
            let what = format!("This deletes records of {} for good.", place.topic);
            confirm.ask(&what, &place.topic)?;
            delete_records(&admin, &place, before, json).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn alter(
    admin: &Admin,
    topic: &Text,
    partitions: Option<i32>,
    changes: Vec<AlterConfig>,
    dry_run: bool,
) -> Result<()> {
    if partitions.is_none() && changes.is_empty() {
        return Err(Usage("give --partitions, --config or --unset".to_owned()).into());
    }
    if !changes.is_empty() {
        config::alter(admin, &ConfigResource::Topic(topic.clone()), changes, dry_run).await?;
    }
    if let Some(count) = partitions {
        let counts = BTreeMap::from([(topic.clone(), count)]);
        group::each(admin.create_partitions(&counts, dry_run).await)?;
    }
    Ok(())
}

async fn delete_records(admin: &Admin, place: &Place, before: i64, json: bool) -> Result<()> {
    let partitions = describe::partitions(admin, place).await?;
    let before = partitions.into_iter().map(|at| (at, before)).collect();
    let mut rows = Vec::new();
    for (at, start) in admin.delete_records_of(&before).await {
        let start = start?;
        if json {
            output::json(&json!({
                "topic": at.topic.as_str(), "partition": at.partition, "log_start_offset": start,
            }))?;
        }
        rows.push(vec![at.topic.to_string(), at.partition.to_string(), start.to_string()]);
    }
    if json { Ok(()) } else { output::table(&["TOPIC", "PARTITION", "LOG START"], &rows) }
}

async fn list(admin: &Admin, all: bool, json: bool) -> Result<()> {
    let topics = admin.list_topics().await?;
    let topics: Vec<&TopicDescription> = topics.iter().filter(|topic| all || !topic.is_internal).collect();
    if json {
        return topics.into_iter().try_for_each(|topic| {
            output::json(&json!({
                "topic": topic.name.as_str(),
                "topic_id": topic.topic_id.to_string(),
                "partitions": topic.partition_count,
                "internal": topic.is_internal,
            }))
        });
    }
    let rows: Vec<_> = topics
        .into_iter()
        .map(|topic| {
            vec![topic.name.to_string(), topic.partition_count.to_string(), topic.topic_id.to_string()]
        })
        .collect();
    output::table(&["TOPIC", "PARTITIONS", "ID"], &rows)
}
