//! `ottla group`: groups, their members, what they have committed, and how far behind they are.

mod describe;
mod reset;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use ottla_client::admin::{GroupFilter, Results};
use ottla_client::{Admin, TopicPartition};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::{Client, Place, one_of, place};
use crate::cmd::confirm::Confirm;
use crate::output;
use crate::text::count;

/// States of groups under Kafka's names.
const STATES: &[&str] = &[
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
    "NotReady",
];
/// Types of groups under Kafka's names.
const TYPES: &[&str] = &["classic", "consumer", "share", "streams"];

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla group list
  ottla group describe billing              members, offsets, and how far behind they are
  ottla group reset billing --topic orders --to-earliest              shows what would change
  ottla group reset billing --topic orders --to-earliest --execute
  ottla group delete billing")]
pub(crate) struct Options {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// List groups
    #[command(after_help = "Examples:
  ottla group list
  ottla group list --state Stable --type consumer --json")]
    List {
        /// Only in this state: Empty, Stable, PreparingRebalance, CompletingRebalance, Assigning,
        /// Reconciling, Dead; repeatable
        #[arg(long = "state", value_name = "STATE", value_parser = one_of(STATES))]
        states: Vec<String>,
        /// Only of this type: classic, consumer, share, streams; repeatable
        #[arg(long = "type", value_name = "TYPE", value_parser = one_of(TYPES))]
        types: Vec<String>,
        /// One JSON object per group
        #[arg(long)]
        json: bool,
    },
    /// Show a group's members, what they read, and how far behind they are
    #[command(after_help = "Examples:
  ottla group describe billing
  ottla group describe billing --json

BEHIND are records that a read_committed reader could have by now. HIDDEN are records behind an open
transaction: `ottla txn why TOPIC` tells whose it is.")]
    Describe {
        /// The group
        group: String,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show the committed offsets of a group, and how far behind they are
    #[command(after_help = "Examples:
  ottla group offsets billing --json")]
    Offsets {
        /// The group
        group: String,
        /// One JSON object per partition
        #[arg(long)]
        json: bool,
    },
    /// Set the committed offsets of a group that nobody is in; only shows what would change, until --execute
    Reset(reset::Options),
    /// Delete groups with their offsets; refused while somebody is in them
    #[command(after_help = "Examples:
  ottla group delete billing
  ottla group delete billing reports --yes")]
    Delete {
        /// The groups
        #[arg(required = true, value_name = "GROUP")]
        groups: Vec<String>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Delete committed offsets of a group; refused for topics that its members read
    #[command(after_help = "Examples:
  ottla group delete-offsets billing orders
  ottla group delete-offsets billing orders/2 --yes")]
    DeleteOffsets {
        /// The group
        group: String,
        /// Topics, or partitions of them
        #[arg(required = true, value_parser = place, value_name = "TOPIC[/PARTITION]")]
        places: Vec<Place>,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let admin = options.client.connect_admin().await?;
    match options.command {
        Command::List { states, types, json } => {
            let texts = |words: Vec<String>| words.into_iter().map(Text::from).collect();
            list(&admin, GroupFilter { states: texts(states), types: texts(types) }, json).await?;
        }
        Command::Describe { group, json } => describe::group(&admin, &Text::from(group), json).await?,
        Command::Offsets { group, json } => describe::offsets(&admin, &Text::from(group), json).await?,
        Command::Reset(options) => reset::run(&admin, options).await?,
        Command::Delete { groups, confirm } => {
            confirm.ask(&format!("This deletes {} with all offsets.", groups.join(", ")), &groups[0])?;
            let groups: Vec<Text> = groups.into_iter().map(Text::from).collect();
            each(admin.delete_groups(&groups).await)?;
        }
        Command::DeleteOffsets { group, places, confirm } => {
            let group = Text::from(group);
            let partitions = committed_in(&admin, &group, &places).await?;
            let what = format!("This deletes {} of group `{group}`.", count(partitions.len(), "offset"));
            confirm.ask(&what, group.as_str())?;
            each(admin.delete_group_offsets(&group, &partitions).await)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The first error of a batch ends the command, behind a word on each of the others.
pub(super) fn each<K>(results: Results<K, ()>) -> Result<()> {
    let mut errors = results.into_values().filter_map(Result::err);
    let Some(first) = errors.next() else { return Ok(()) };
    errors.for_each(|error| output::complain(&error.to_string()));
    Err(first.into())
}

/// The partitions of these places that the group has offsets for; the partition itself where it is named.
async fn committed_in(admin: &Admin, group: &Text, places: &[Place]) -> Result<Vec<TopicPartition>> {
    let committed = admin.group_offsets(group).await?;
    let mut partitions = Vec::new();
    for place in places {
        let topic = Text::from(place.topic.as_str());
        match place.partition {
            Some(partition) => partitions.push(TopicPartition::new(topic, partition)),
            None => {
                let of_topic = committed.iter().map(|offset| &offset.topic_partition);
                let before = partitions.len();
                partitions.extend(of_topic.filter(|at| at.topic == topic).cloned());
                if partitions.len() == before {
                    bail!("group `{group}` has no offsets of topic `{topic}`");
                }
            }
        }
    }
    Ok(partitions)
}

async fn list(admin: &Admin, filter: GroupFilter, json: bool) -> Result<()> {
    let groups = admin.list_groups(&filter).await?;
    if json {
        return groups.iter().try_for_each(|group| {
            output::json(&json!({
                "group": group.group_id.as_str(),
                "type": group.group_type.as_str(),
                "protocol_type": group.protocol_type.as_str(),
                "state": group.state.as_str(),
            }))
        });
    }
    let rows: Vec<_> = groups
        .iter()
        .map(|g| [&g.group_id, &g.group_type, &g.protocol_type, &g.state].map(Text::to_string).to_vec())
        .collect();
    output::table(&["GROUP", "TYPE", "PROTOCOL", "STATE"], &rows)
}
