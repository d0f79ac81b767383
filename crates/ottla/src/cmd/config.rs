//! `ottla config`: settings of topics, brokers and groups.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use ottla_client::Admin;
use ottla_client::admin::{AlterConfig, ConfigEntry, ConfigResource};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::{Client, Usage, name_and_value};
use crate::output;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla config describe topic orders
  ottla config describe broker 1 --all --json
  ottla config set topic orders retention.ms=86400000 cleanup.policy=compact
  ottla config unset topic orders retention.ms
  ottla config list")]
pub(crate) struct Options {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show settings: those that were set, or all
    #[command(after_help = "Examples:
  ottla config describe topic orders
  ottla config describe group billing --all
  ottla config describe broker 1 --all --json")]
    Describe {
        #[command(flatten)]
        resource: Resource,
        /// Those with their defaults too
        #[arg(short, long)]
        all: bool,
        /// One JSON object per setting
        #[arg(long)]
        json: bool,
    },
    /// Change settings, all of them or none
    #[command(after_help = "Examples:
  ottla config set topic orders retention.ms=86400000
  ottla config set group billing consumer.session.timeout.ms=50000")]
    Set {
        #[command(flatten)]
        resource: Resource,
        /// Kafka's name and the value; several are set together
        #[arg(value_name = "NAME=VALUE", required = true, value_parser = name_and_value)]
        changes: Vec<(String, String)>,
        /// Only ask whether it would be taken
        #[arg(long)]
        dry_run: bool,
    },
    /// Set settings back to their defaults, all of them or none
    #[command(after_help = "Examples:
  ottla config unset topic orders retention.ms cleanup.policy")]
    Unset {
        #[command(flatten)]
        resource: Resource,
        /// Kafka's name; several are set back together
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Only ask whether it would be taken
        #[arg(long)]
        dry_run: bool,
    },
    /// List what has settings
    #[command(after_help = "Examples:
  ottla config list --json")]
    List {
        /// One JSON object per resource
        #[arg(long)]
        json: bool,
    },
}

/// Whose settings.
#[derive(Clone, Debug, Args)]
struct Resource {
    /// What kind of thing
    kind: Kind,
    /// Its name; a broker's id, or `default` for all brokers
    name: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    Topic,
    Broker,
    Group,
}

impl Resource {
    /// The same, and a broker is one that the cluster has: requests about others would wait for it to come.
    async fn found(&self, admin: &Admin) -> Result<ConfigResource> {
        if matches!(self.kind, Kind::Broker) && self.name != "default" {
            let name = &self.name;
            let id: i32 =
                name.parse().map_err(|_| Usage(format!("`{name}` is not a broker's id, nor `default`")))?;
            let brokers = admin.describe_cluster().await?.brokers;
            if !brokers.iter().any(|broker| broker.node_id == id) {
                let ids: Vec<_> = brokers.iter().map(|broker| broker.node_id.to_string()).collect();
                bail!("the cluster has no broker {id}, it has {}", ids.join(", "));
            }
        }
        Ok(self.resource())
    }

    fn resource(&self) -> ConfigResource {
        let name = Text::from(self.name.as_str());
        match self.kind {
            Kind::Topic => ConfigResource::Topic(name),
            Kind::Broker if self.name == "default" => ConfigResource::Broker(Text::EMPTY),
            Kind::Broker => ConfigResource::Broker(name),
            Kind::Group => ConfigResource::Group(name),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let admin = options.client.connect_admin().await?;
    match options.command {
        Command::Describe { resource, all, json } => {
            describe(&admin, &resource.found(&admin).await?, all, json).await?
        }
        Command::Set { resource, changes, dry_run } => {
            let changes = changes.iter().map(|(name, value)| AlterConfig::set(name.as_str(), value.as_str()));
            alter(&admin, &resource.found(&admin).await?, changes.collect(), dry_run).await?;
        }
        Command::Unset { resource, names, dry_run } => {
            let changes = names.iter().map(|name| AlterConfig::delete(name.as_str()));
            alter(&admin, &resource.found(&admin).await?, changes.collect(), dry_run).await?;
        }
        Command::List { json } => list(&admin, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes settings, or only asks whether they would be taken.
pub(super) async fn alter(
    admin: &Admin,
    resource: &ConfigResource,
    changes: Vec<AlterConfig>,
    dry_run: bool,
) -> Result<()> {
    let changes = std::collections::BTreeMap::from([(resource.clone(), changes)]);
    let mut results = admin.alter_configs_of(&changes, dry_run).await;
    results.pop_first().expect("one resource has one result").1?;
    if dry_run {
        output::note("it would be taken; nothing was changed");
    }
    Ok(())
}

async fn describe(admin: &Admin, resource: &ConfigResource, all: bool, json: bool) -> Result<()> {
    let mut entries = admin.describe_configs(resource).await?;
    entries.retain(|entry| all || !entry.is_default);
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if json {
        return entries.iter().try_for_each(|entry| output::json(&entry_json(resource, entry)));
    }
    if entries.is_empty() {
        return output::line("nothing was set; --all shows the defaults");
    }
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| {
            let mut marks = vec![entry.source.name().to_lowercase().replace('_', " ")];
            if entry.is_read_only {
                marks.push("read only".to_owned());
            }
            vec![entry.name.to_string(), shown(entry), marks.join(", ")]
        })
        .collect();
    output::table(&["SETTING", "VALUE", "FROM"], &rows)
}

fn shown(entry: &ConfigEntry) -> String {
    match &entry.value {
        Some(value) => value.to_string(),
        None if entry.is_sensitive => "(secret)".to_owned(),
        None => String::new(),
    }
}

fn entry_json(resource: &ConfigResource, entry: &ConfigEntry) -> serde_json::Value {
    json!({
        "resource_type": resource.kind_name(),
        "resource": resource.name().as_str(),
        "name": entry.name.as_str(),
        "value": entry.value.as_ref().map(|value| value.as_str().to_owned()),
        "source": entry.source.name(),
        "is_default": entry.is_default,
        "is_read_only": entry.is_read_only,
        "is_sensitive": entry.is_sensitive,
        "documentation": entry.documentation.as_ref().map(|text| text.as_str().to_owned()),
        "synonyms": entry.synonyms.iter().map(|synonym| json!({
            "name": synonym.name.as_str(),
            "value": synonym.value.as_ref().map(|value| value.as_str().to_owned()),
            "source": synonym.source.name(),
        })).collect::<Vec<_>>(),
    })
}

async fn list(admin: &Admin, json: bool) -> Result<()> {
    let resources = admin.list_config_resources().await?;
    if json {
        return resources.iter().try_for_each(|resource| {
            output::json(&json!({
                "resource_type": resource.kind_name(),
                "resource": resource.name().as_str(),
            }))
        });
    }
    let rows: Vec<_> = resources
        .iter()
        .map(|resource| vec![resource.kind_name().to_owned(), resource.name().to_string()])
        .collect();
    output::table(&["KIND", "NAME"], &rows)
}
