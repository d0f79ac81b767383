//! `ottla`: the one binary. Serves an event log, and is the tool to look into one.
//!
//! Place: outermost; joins the broker and the client to a command line. One file per command under `cmd`, the
//! demonstration under `demo`, the crash harness under `prove_kill`. Results go to standard output (`output`),
//! logs to standard error through `tracing` (filter: `--log-level` of `serve`, `OTTLA_LOG`).
//!
//! Exit codes: 0 done, 1 failed or a promise was broken, 2 the command line or a setting is wrong, 3 refused for
//! safety, 4 looked and found damage, or a transaction that hangs.

mod broker_process;
mod cli;
mod cmd;
mod demo;
mod output;
mod prove_kill;
mod text;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    if let Err(error) = start_logs(&cli) {
        output::complain(&output::reasons(&error));
        return ExitCode::from(2);
    }
    match cmd::run(cli) {
        Ok(code) => code,
        Err(error) if output::is_closed(&error) => ExitCode::SUCCESS, // the reader of our output had enough
        Err(error) => {
            output::complain(&output::reasons(&error));
            match error {
                error if cli::is_usage(&error) => ExitCode::from(2),
                error if cli::is_unsafe(&error) => ExitCode::from(3),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Logs go to standard error: what `--log-level` says, else `OTTLA_LOG`, else the command's level.
fn start_logs(cli: &cli::Cli) -> anyhow::Result<()> {
    let logging = cli.logging();
    let variable = std::env::var("OTTLA_LOG").ok().filter(|text| !text.is_empty());
    let filter = match (logging.level, &variable) {
        (Some(level), _) => levels(level).context("--log-level")?,
        (None, Some(level)) => levels(level).context("environment OTTLA_LOG")?,
        (None, None) => EnvFilter::new(logging.default_level),
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if logging.is_json {
        logs.json().flatten_event(true).init();
    } else {
        logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
    Ok(())
}

/// Reads a filter. A word alone has to be a level: it would pass as the name of a module, and nothing be logged.
fn levels(text: &str) -> anyhow::Result<EnvFilter> {
    let mut words = text.split(',').map(str::trim).filter(|word| !word.contains(['=', '[']));
    match words.find(|word| word.parse::<LevelFilter>().is_err()) {
        Some(word) => anyhow::bail!("`{word}` is none of off, error, warn, info, debug, trace"),
        None => Ok(EnvFilter::try_new(text)?),
    }
}
