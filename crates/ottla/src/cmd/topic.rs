//! `ottla topic`: create, list, describe and delete topics.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ottla_client::admin::{ConfigEntry, ConfigResource, NewTopic, TopicDescription};
use ottla_client::{Admin, TopicPartition};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::{Client, name_and_value};
use crate::output;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla topic create orders --partitions 3 --config cleanup.policy=compact
  ottla topic list
  ottla topic describe orders --json
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
    List {
        /// Kafka's own topics too
        #[arg(short, long)]
        all: bool,
        /// One JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Show a topic's partitions with their offsets, and its settings
    Describe {
        /// Its name
        topic: String,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Delete a topic with all its records
    Delete {
        /// Its name
        topic: String,
    },
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let admin = Admin::connect(options.client.admin()?).await?;
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
        Command::Describe { topic, json } => describe(&admin, &Text::from(topic), json).await?,
        Command::Delete { topic } => admin.delete_topic(&Text::from(topic)).await?,
    }
    Ok(ExitCode::SUCCESS)
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

async fn describe(admin: &Admin, name: &Text, json: bool) -> Result<()> {
    let topic = admin.describe_topic(name).await?;
    let metadata = admin.cluster().topic(name).await?;
    let partitions: Vec<_> =
        (0..topic.partition_count).map(|partition| TopicPartition::new(name.clone(), partition)).collect();
    let starts = admin.beginning_offsets(&partitions).await?;
    let stable = admin.last_stable_offsets(&partitions).await?;
    let ends = admin.high_watermarks(&partitions).await?;
    let mut configs = admin.describe_configs(&ConfigResource::Topic(name.clone())).await?;
    configs.sort_by(|a, b| a.name.cmp(&b.name));
    let offset = |offsets: &std::collections::BTreeMap<TopicPartition, i64>, at| {
        offsets.get(at).copied().unwrap_or(-1)
    };
    if json {
        let partitions: Vec<_> = partitions
            .iter()
            .zip(&metadata.leaders)
            .map(|(at, leader)| {
                json!({
                    "partition": at.partition,
                    "leader": leader,
                    "log_start_offset": offset(&starts, at),
                    "last_stable_offset": offset(&stable, at),
                    "high_watermark": offset(&ends, at),
                })
            })
            .collect();
        let value = |config: &ConfigEntry| config.value.as_ref().map(|value| value.as_str().to_owned());
        let configs: serde_json::Map<_, _> =
            configs.iter().map(|config| (config.name.to_string(), json!(value(config)))).collect();
        return output::json(&json!({
            "topic": name.as_str(),
            "topic_id": topic.topic_id.to_string(),
            "internal": topic.is_internal,
            "partitions": partitions,
            "configs": configs,
        }));
    }
    output::line(&format!("topic {name}, id {}, {} partitions", topic.topic_id, topic.partition_count))?;
    let rows: Vec<_> = partitions
        .iter()
        .zip(&metadata.leaders)
        .map(|(at, leader)| {
            let numbers = [offset(&starts, at), offset(&stable, at), offset(&ends, at)];
            [at.partition.to_string(), leader.to_string()]
                .into_iter()
                .chain(numbers.map(|n| n.to_string()))
                .collect()
        })
        .collect();
    output::table(&["PARTITION", "LEADER", "LOG START", "LAST STABLE", "HIGH WATERMARK"], &rows)?;
    let changed = configs.iter().filter(|config| !config.is_default);
    let rows: Vec<_> = changed
        .map(|config| {
            vec![config.name.to_string(), config.value.as_ref().map_or_else(String::new, Text::to_string)]
        })
        .collect();
    if rows.is_empty() {
        return output::line("all settings have their defaults");
    }
    output::table(&["SETTING", "VALUE"], &rows)
}
