//! One case of `compat/suite-clients`, with this client: the same names and the same assertions as in
//! `compat/clients/cases.py`.
//!
//! `cargo run -p ottla-client --example suite -- BOOTSTRAP CASE`
//!
//! Exit code 0: passed; 1: failed, with the reason as the last line of standard error. Every wait inside is bounded,
//! and so is the case as a whole.

mod admin;
mod groups;
mod harness;
mod records;
mod transactions;

use std::process::ExitCode;
use std::time::Duration;

use harness::{Failure, Suite};
use ottla_client::{ClientSettings, Codec};
use ottla_env::time;

/// Longest that one case may take.
const LIMIT: Duration = Duration::from_secs(90);

/// The cases, in the order of the script.
pub(crate) const CASES: &[&str] = &[
    "codec_none",
    "codec_gzip",
    "codec_snappy",
    "codec_lz4",
    "codec_zstd",
    "keys",
    "headers",
    "idempotent",
    "txn_commit",
    "txn_abort",
    "txn_offsets",
    "txn_fencing",
    "txn_timeout",
    "isolation",
    "group_rebalance",
    "commit_resume",
    "seek_timestamp",
    "delete_records",
    "offset_reset",
    "admin_topic",
    "admin_config",
    "admin_groups",
    "unknown_topic",
    "too_large",
];

/// Runs one case.
pub(crate) async fn run(client: ClientSettings, case: &str) -> Result<(), Failure> {
    time::timeout(LIMIT, dispatch(&Suite::connect(client).await?, case)).await?
}

async fn dispatch(suite: &Suite, case: &str) -> Result<(), Failure> {
    match case {
        "codec_none" => records::codec(suite, Codec::None).await,
        "codec_gzip" => records::codec(suite, Codec::Gzip).await,
        "codec_snappy" => records::codec(suite, Codec::Snappy).await,
        "codec_lz4" => records::codec(suite, Codec::Lz4).await,
        "codec_zstd" => records::codec(suite, Codec::Zstd).await,
        "keys" => records::keys(suite).await,
        "headers" => records::headers(suite).await,
        "idempotent" => records::idempotent(suite).await,
        "too_large" => records::too_large(suite).await,
        "txn_commit" => transactions::commit(suite).await,
        "txn_abort" => transactions::abort(suite).await,
        "txn_offsets" => transactions::offsets(suite).await,
        "txn_fencing" => transactions::fencing(suite).await,
        "txn_timeout" => transactions::timeout(suite).await,
        "isolation" => transactions::isolation(suite).await,
        "group_rebalance" => groups::rebalance(suite).await,
        "commit_resume" => groups::commit_resume(suite).await,
        "seek_timestamp" => groups::seek_timestamp(suite).await,
        "delete_records" => groups::delete_records(suite).await,
        "offset_reset" => groups::offset_reset(suite).await,
        "admin_topic" => admin::topic(suite).await,
        "admin_config" => admin::config(suite).await,
        "admin_groups" => admin::groups(suite).await,
        "unknown_topic" => admin::unknown_topic(suite).await,
        _ => Err(format!("no such case; there are {}", CASES.join(" ")).into()),
    }
}

#[allow(dead_code)] // a test runs `run` instead
#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, case] = &arguments[..] else {
        eprintln!("usage: suite BOOTSTRAP CASE; cases: {}", CASES.join(" "));
        return ExitCode::from(2);
    };
    let ran = match ClientSettings::new(bootstrap) {
        Ok(client) => run(client, case).await,
        Err(error) => Err(error.into()),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}
