//! `ottla serve`: a broker on a folder, until it is told to stop.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use ottla_broker::config::listed;
use ottla_broker::{Broker, Config};
use ottla_env::{files, spawn};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Usage, name_and_value};
use crate::output;

/// Largest configuration file in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Variables of the environment with our prefix that are not settings of the broker.
const NOT_SETTINGS: &[&str] = &["OTTLA_LOG", "OTTLA_BOOTSTRAP", "OTTLA_CACHE"];

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla serve                                        on 127.0.0.1:9092, data in ./ottla-data
  ottla serve --data /var/lib/ottla --listen 0.0.0.0:9092 --advertise events.example.org:9092
  ottla serve --config ottla.toml --set num.partitions=6 --print-config
  ottla serve --settings                             every setting with its default
  ottla serve --http 127.0.0.1:9404 --log-format json   metrics, a health page, logs for machines

Prints `ready HOST:PORT` once it answers, and `http HOST:PORT` with --http. SIGTERM and SIGINT stop
it in order, a second one at once; SIGKILL loses nothing.
A setting is taken from --set, else from the environment (OTTLA_NUM_PARTITIONS), else from the file.")]
pub(crate) struct Options {
    /// Folder of the data; made when it is absent
    #[arg(long, visible_alias = "dir", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:9092]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Address that clients are told, when it is another
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Address for /metrics (Prometheus) and /health, e.g. 127.0.0.1:9404 [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http: Option<String>,
    /// What is logged to standard error: error, warn, info, debug, trace, or a filter like
    /// info,ottla_core=debug [default: OTTLA_LOG, else info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// How it is logged
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Configuration file (TOML: "name" = value)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A setting, e.g. num.partitions=6; repeatable
    #[arg(short = 'o', long = "set", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub(crate) set: Vec<(String, String)>,
    /// Print the settings in use as a configuration file, and end
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Print every setting with its default and what it does, and end
    #[arg(long)]
    pub(crate) settings: bool,
}

/// How logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.settings {
        return list_settings();
    }
    let config = config(options)?;
    if options.print_config {
        return print_config(&config);
    }
    let threads = if config.network_threads == 0 { spawn::parallelism() } else { config.network_threads };
    let runtime = spawn::runtime(threads).context("cannot start the runtime")?;
    runtime.block_on(serve(config, std::future::pending()))?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration: file, then environment, then flags.
pub(crate) fn config(options: &Options) -> Result<Config> {
    let mut config = Config::default();
    if let Some(path) = &options.config {
        let name = path.display().to_string();
        let text = files::read_text(path, CONFIG_BYTES_MAX)
            .map_err(|error| Usage(format!("cannot read the configuration file {name}: {error}")))?;
        config.set_from_toml(&name, &text)?;
    }
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        (!NOT_SETTINGS.contains(&name.as_str())).then_some((name, value))
    });
    config.set_from_environment(variables)?;
    if let Some(dir) = &options.data {
        let dir = dir.to_str().ok_or_else(|| Usage("--data: the path is not UTF-8".to_owned()))?;
        config.set("--data", "dir", dir)?;
    }
    if let Some(listen) = &options.listen {
        config.set("--listen", "listen", listen)?;
    }
    if let Some(advertise) = &options.advertise {
        config.set("--advertise", "advertised.listener", advertise)?;
    }
    if let Some(http) = &options.http {
        config.set("--http", "http.listen", http)?;
    }
    for (name, value) in &options.set {
        config.set("--set", name, value)?;
    }
    config.check()?;
    for name in ["listen", "advertised.listener", "http.listen"] {
        check_address(name, &config.get(name).unwrap_or_default())?;
    }
    Ok(config)
}

/// An address is wrong before the folder is made or loaded, which may take long.
fn check_address(name: &str, address: &str) -> Result<(), Usage> {
    let is_one =
        address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_one || (address.is_empty() && name != "listen") {
        return Ok(());
    }
    Err(Usage(format!("{name} {address:?} is not HOST:PORT")))
}

/// Serves until a signal, or until `stopped` ends.
pub(crate) async fn serve(config: Config, stopped: impl Future<Output = ()>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    if let Err(error) = ottla_env::process::raise_open_files_max() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let dir = config.dir.clone();
    let broker = tokio::select! {
        broker = Broker::start(config) => broker?,
        _ = terminate.recv() => return Ok(()), // recovery only reads; the next start does it again
        _ = interrupt.recv() => return Ok(()),
    };
    tracing::info!(address = %broker.local_addr(), %dir, "serving");
    output::line(&format!("ready {}", broker.local_addr()))?;
    if let Some(http) = broker.http_addr() {
        output::line(&format!("http {http}"))?;
    }
    let reason = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        () = stopped => "the parent ended",
    };
    tracing::info!(reason, "stopping");
    tokio::select! {
        () = broker.shutdown() => {}
        _ = terminate.recv() => stop_at_once(),
        _ = interrupt.recv() => stop_at_once(),
    }
    Ok(())
}

/// A second signal: nothing that was acknowledged needs more time, the next start only replays more.
fn stop_at_once() {
    tracing::warn!("a second signal: ending at once");
    std::process::exit(1);
}

fn print_config(config: &Config) -> Result<ExitCode> {
    for setting in listed() {
        let Some(value) = config.get(setting.name) else { continue };
        let is_plain = value.parse::<i64>().is_ok() || value.parse::<bool>().is_ok();
        let value = if is_plain { value } else { format!("{value:?}") };
        output::line(&format!("{:?} = {value}", setting.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list_settings() -> Result<ExitCode> {
    let rows = listed().into_iter().map(|setting| {
        vec![setting.name.to_owned(), setting.default.unwrap_or_default(), setting.about.to_owned()]
    });
    output::table(&["SETTING", "DEFAULT", "WHAT IT DOES"], &rows.collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}
