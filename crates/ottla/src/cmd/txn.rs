//! `ottla txn`: transactions, who holds back readers, and how to end it.

mod abort;
mod hanging;
mod why;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use ottla_client::Admin;
use ottla_client::admin::{TransactionDescription, TransactionFilter};
use ottla_env::clock::{Clock, OsClock};
use ottla_protocol::types::Text;
use serde_json::json;

use crate::cli::{Client, Place, one_of, place};
use crate::{output, text};

/// States of transactions under Kafka's names.
const STATES: &[&str] = &[
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
];

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla txn list --state Ongoing
  ottla txn describe billing-7
  ottla txn why orders          who holds back readers of any partition of orders
  ottla txn find-hanging        transactions that nobody will ever end
  ottla txn abort billing-7     shows what it has open, and the token that aborts exactly that")]
pub(crate) struct Options {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// List transactional ids
    #[command(after_help = "Examples:
  ottla txn list --state Ongoing
  ottla txn list --longer-than 60000 --json")]
    List {
        /// Only in this state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort; repeatable
        #[arg(long = "state", value_name = "STATE", value_parser = one_of(STATES))]
        states: Vec<String>,
        /// Only with a transaction open for longer than this, in ms
        #[arg(long, value_name = "MS")]
        longer_than: Option<i64>,
        /// One JSON object per id
        #[arg(long)]
        json: bool,
    },
    /// Show one transactional id
    #[command(after_help = "Examples:
  ottla txn describe billing-7 --json")]
    Describe {
        /// The id
        transactional_id: String,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Tell who holds back `read_committed` readers, since when, what is hidden, and how to end it
    #[command(after_help = "Examples:
  ottla txn why orders
  ottla txn why orders/2 --json")]
    Why {
        /// Topic, or TOPIC/PARTITION
        #[arg(value_parser = place, value_name = "TOPIC[/PARTITION]")]
        topic: Place,
        /// One JSON object per partition
        #[arg(long)]
        json: bool,
    },
    /// Find transactions that are open on a partition and that no coordinator will ever end
    FindHanging(hanging::Options),
    /// End a transaction by force: first shows it with a token, then aborts exactly that
    Abort(abort::Options),
}

/// Runs the command.
pub(crate) async fn run(options: Options) -> Result<ExitCode> {
    let admin = options.client.connect_admin().await?;
    match options.command {
        Command::List { states, longer_than, json } => {
            let states = states.into_iter().map(Text::from).collect();
            list(
                &admin,
                TransactionFilter { states, running_longer_than_ms: longer_than, ..Default::default() },
                json,
            )
            .await?;
        }
        Command::Describe { transactional_id, json } => {
            describe(&admin, &Text::from(transactional_id), json).await?
        }
        Command::Why { topic, json } => return why::run(&admin, &options.client, &topic, json).await,
        Command::FindHanging(options) => return hanging::run(&admin, options).await,
        Command::Abort(options) => abort::run(&admin, options).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(admin: &Admin, filter: TransactionFilter, json: bool) -> Result<()> {
    let listings = admin.list_transactions(&filter).await?;
    if json {
        return listings.iter().try_for_each(|listing| {
            output::json(&json!({
                "transactional_id": listing.transactional_id.as_str(),
                "state": listing.state.as_str(),
                "producer_id": listing.producer_id,
            }))
        });
    }
    let rows: Vec<_> = listings
        .iter()
        .map(|l| vec![l.transactional_id.to_string(), l.state.to_string(), l.producer_id.to_string()])
        .collect();
    output::table(&["TRANSACTIONAL ID", "STATE", "PRODUCER ID"], &rows)
}

async fn describe(admin: &Admin, id: &Text, json: bool) -> Result<()> {
    let found = admin.describe_transaction(id).await?;
    if json {
        return output::json(&description_json(&found));
    }
    let partitions = found.partitions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let mut rows = vec![
        vec!["transactional id".to_owned(), found.transactional_id.to_string()],
        vec!["state".to_owned(), found.state.to_string()],
        vec!["producer id, epoch".to_owned(), format!("{}, {}", found.producer_id, found.producer_epoch)],
        vec!["timeout".to_owned(), text::duration_ms(i64::from(found.timeout_ms))],
        vec!["coordinator".to_owned(), format!("broker {}", found.coordinator_id)],
    ];
    if is_open(&found) {
        let age = text::duration_ms(OsClock.wall_ms() - found.start_time_ms);
        rows.push(vec!["open since".to_owned(), format!("{} ({age})", text::time(found.start_time_ms))]);
        rows.push(vec!["partitions".to_owned(), partitions]);
    }
    output::table(&["WHAT", "VALUE"], &rows)
}

/// Whether a transaction is open; a finished one keeps its start time until the next.
fn is_open(found: &TransactionDescription) -> bool {
    found.start_time_ms >= 0 && matches!(found.state.as_str(), "Ongoing" | "PrepareCommit" | "PrepareAbort")
}

/// A description as JSON.
fn description_json(found: &TransactionDescription) -> serde_json::Value {
    json!({
        "transactional_id": found.transactional_id.as_str(),
        "state": found.state.as_str(),
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_time_ms": is_open(found).then_some(found.start_time_ms),
        "partitions": found.partitions.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "coordinator": found.coordinator_id,
    })
}
