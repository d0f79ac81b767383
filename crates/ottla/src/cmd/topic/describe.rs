//! `ottla topic describe`: partitions with their offsets, and what was set.

use anyhow::Result;
use ottla_client::admin::{ConfigEntry, ConfigResource};
use ottla_client::{Admin, TopicPartition};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::Place;
use crate::output;
use crate::text::count;

/// The partitions of a place.
pub(crate) async fn partitions(admin: &Admin, place: &Place) -> Result<Vec<TopicPartition>> {
    let topic = Text::from(place.topic.as_str());
    Ok(match place.partition {
        Some(partition) => vec![TopicPartition::new(topic, partition)],
        None => {
            let count = admin.describe_topic(&topic).await?.partition_count;
            (0..count).map(|partition| TopicPartition::new(topic.clone(), partition)).collect()
        }
    })
}

/// Shows the topic.
pub(super) async fn run(admin: &Admin, name: &Text, json: bool) -> Result<()> {
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
    output::line(&format!(
        "topic {name}, id {}, {}",
        topic.topic_id,
        count(topic.partition_count, "partition")
    ))?;
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
