//! `ottla group reset`: where a group goes on.
//!
//! Shows what would change, and changes it only with `--execute`. Refused while somebody is in the group: members
//! keep their own positions and would commit over what was set. New offsets are kept within what the partition has.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::{ArgGroup, Args};
use ottla_client::admin::{GroupType, OffsetSpec};
use ottla_client::{Admin, IsolationLevel, OffsetToCommit, TopicPartition};
use ottla_env::clock::{Clock, OsClock};
use ottla_protocol::error::ErrorCode;
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::{Place, Unsafe, Usage, place};
use crate::output;
use crate::text::{self, count};

#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("where").required(true).multiple(false), after_help = "Examples:
  ottla group reset billing --topic orders --to-earliest
  ottla group reset billing --topic orders/2 --to-offset 4711 --execute
  ottla group reset billing --all-topics --shift-by -100
  ottla group reset billing --topic orders --to-datetime 2026-11-29T18:00:00Z --execute
  ottla group reset billing --topic orders --by-duration 2h

Without --execute nothing is changed. Exit code 3: refused, because somebody is in the group.")]
pub(super) struct Options {
    /// The group; it may be a new one
    group: String,
    /// A topic, or one of its partitions; repeatable
    #[arg(short, long = "topic", value_parser = place, value_name = "TOPIC[/PARTITION]", required_unless_present = "all_topics")]
    topics: Vec<Place>,
    /// Everything that the group has committed
    #[arg(long, conflicts_with = "topics")]
    all_topics: bool,
    /// To the first record that is still there
    #[arg(long, group = "where")]
    to_earliest: bool,
    /// Behind the last record
    #[arg(long, group = "where")]
    to_latest: bool,
    /// To this offset
    #[arg(long, group = "where", value_name = "OFFSET")]
    to_offset: Option<i64>,
    /// By so many records from what is committed; back with a minus
    #[arg(long, group = "where", value_name = "N", allow_negative_numbers = true)]
    shift_by: Option<i64>,
    /// To the first record of that time or later: 2026-11-29T18:00:00Z, or ms since 1970
    #[arg(long, group = "where", value_name = "TIME", value_parser = text::parse_time)]
    to_datetime: Option<i64>,
    /// To the first record of that long ago or later: 90s, 10m, 2h, 7d, or PT2H
    #[arg(long, group = "where", value_name = "DURATION", value_parser = text::parse_duration)]
    by_duration: Option<Duration>,
    /// To what is committed, within what is still there
    #[arg(long, group = "where")]
    to_current: bool,
    /// Change it, instead of only showing what would change
    #[arg(long)]
    execute: bool,
    /// Only show what would change: what happens without --execute
    #[arg(long, conflicts_with = "execute")]
    dry_run: bool,
    /// One JSON object per partition
    #[arg(long)]
    json: bool,
}

/// A partition's old and new offset.
struct Change {
    at: TopicPartition,
    old: Option<i64>,
    new: i64,
}

/// Runs the command.
pub(super) async fn run(admin: &Admin, options: Options) -> Result<()> {
    let group = Text::from(options.group.as_str());
    refuse_members(admin, &group).await?;
    let committed = admin.group_offsets(&group).await?;
    let committed: BTreeMap<TopicPartition, i64> =
        committed.into_iter().filter_map(|offset| Some((offset.topic_partition, offset.offset?))).collect();
    let partitions = partitions(admin, &options, &committed).await?;
    let changes = changes(admin, &options, &committed, partitions).await?;
    if changes.is_empty() {
        output::note(&format!("group `{group}` has no offsets, so there is nothing to change"));
        return Ok(());
    }
    if options.execute {
        let offsets: Vec<OffsetToCommit> =
            changes.iter().map(|change| OffsetToCommit::new(change.at.clone(), change.new)).collect();
        for (at, result) in admin.alter_group_offsets(&group, &offsets).await {
            match result {
                Err(error) if error.code() == Some(ErrorCode::UnknownMemberId) => {
                    return Err(
                        Unsafe(format!("somebody joined group `{group}`; {at} was not changed")).into()
                    );
                }
                other => other?,
            }
        }
    }
    show(&changes, &options)
}

/// A group with members is left alone.
async fn refuse_members(admin: &Admin, group: &Text) -> Result<()> {
    let description = match admin.describe_group(group).await {
        Ok(description) => description,
        Err(error) if error.code() == Some(ErrorCode::GroupIdNotFound) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if description.is_empty() {
        return Ok(());
    }
    let names: Vec<String> =
        description.members.iter().take(5).map(|member| member.client_id.to_string()).collect();
    let hint = match description.group_type {
        GroupType::Classic => "when one was killed, its session ends by itself after session.timeout.ms",
        GroupType::Consumer => {
            "when one was killed, its session ends by itself after group.consumer.session.timeout.ms"
        }
    };
    Err(Unsafe(format!(
        "group `{group}` is {} with {} (client ids: {}); they would commit over what is set here. Stop \
         them first; {hint}",
        description.state,
        count(description.members.len(), "member"),
        names.join(", "),
    ))
    .into())
}

async fn partitions(
    admin: &Admin,
    options: &Options,
    committed: &BTreeMap<TopicPartition, i64>,
) -> Result<Vec<TopicPartition>> {
    if options.all_topics {
        return Ok(committed.keys().cloned().collect());
    }
    let mut partitions = Vec::new();
    for place in &options.topics {
        let topic = Text::from(place.topic.as_str());
        match place.partition {
            Some(partition) => partitions.push(TopicPartition::new(topic, partition)),
            None => {
                let count = admin.describe_topic(&topic).await?.partition_count;
                partitions.extend((0..count).map(|index| TopicPartition::new(topic.clone(), index)));
            }
        }
    }
    Ok(partitions)
}

async fn changes(
    admin: &Admin,
    options: &Options,
    committed: &BTreeMap<TopicPartition, i64>,
    partitions: Vec<TopicPartition>,
) -> Result<Vec<Change>> {
    let starts = lookup(admin, &partitions, OffsetSpec::Earliest).await?;
    let ends = lookup(admin, &partitions, OffsetSpec::Latest).await?;
    let time = options.to_datetime.or_else(|| {
        let ago = i64::try_from(options.by_duration?.as_millis()).unwrap_or(i64::MAX);
        Some(OsClock.wall_ms().saturating_sub(ago))
    });
    let by_time = match time {
        Some(ms) => lookup(admin, &partitions, OffsetSpec::Timestamp(ms)).await?,
        None => BTreeMap::new(),
    };
    let mut changes = Vec::new();
    for at in partitions {
        let old = committed.get(&at).copied();
        let (start, end) =
            (starts.get(&at).copied().flatten().unwrap_or(0), ends.get(&at).copied().flatten().unwrap_or(0));
        let wanted = if options.to_earliest {
            start
        } else if options.to_latest {
            end
        } else if let Some(offset) = options.to_offset {
            offset
        } else if time.is_some() {
            by_time.get(&at).copied().flatten().unwrap_or(end) // nothing is that young
        } else {
            let Some(old) = old else {
                return Err(Usage(format!(
                    "nothing is committed for {at}, so there is nothing to go from; choose --to-earliest, \
                     --to-latest, --to-offset or a time"
                ))
                .into());
            };
            old.saturating_add(options.shift_by.unwrap_or(0))
        };
        changes.push(Change { at, old, new: wanted.clamp(start, end) });
    }
    Ok(changes)
}

async fn lookup(
    admin: &Admin,
    partitions: &[TopicPartition],
    spec: OffsetSpec,
) -> Result<BTreeMap<TopicPartition, Option<i64>>> {
    let specs = partitions.iter().map(|at| (at.clone(), spec)).collect();
    let mut found = BTreeMap::new();
    for (at, result) in admin.list_offsets(&specs, IsolationLevel::ReadUncommitted).await {
        found.insert(at, result?.map(|found| found.offset));
    }
    Ok(found)
}

fn show(changes: &[Change], options: &Options) -> Result<()> {
    if options.json {
        return changes.iter().try_for_each(|change| {
            output::json(&json!({
                "group": options.group,
                "topic": change.at.topic.as_str(),
                "partition": change.at.partition,
                "old_offset": change.old,
                "new_offset": change.new,
                "executed": options.execute,
            }))
        });
    }
    let rows: Vec<_> = changes
        .iter()
        .map(|change| {
            let old = change.old.map_or_else(|| "-".to_owned(), |old| old.to_string());
            vec![change.at.topic.to_string(), change.at.partition.to_string(), old, change.new.to_string()]
        })
        .collect();
    output::table(&["TOPIC", "PARTITION", "OLD", "NEW"], &rows)?;
    if !options.execute {
        output::note("nothing was changed; the same with --execute changes it");
    }
    Ok(())
}
