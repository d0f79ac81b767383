//! The commands, and what runs them.

pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod bench_cold;
pub(crate) mod bench_load;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod confirm;
pub(crate) mod consume;
pub(crate) mod doctor;
pub(crate) mod group;
pub(crate) mod log;
pub(crate) mod produce;
pub(crate) mod serve;
pub(crate) mod topic;
pub(crate) mod txn;

use std::future::Future;
use std::process::ExitCode;

use anyhow::{Context, Result};
use ottla_env::spawn;

use crate::cli::{Cli, Command};
use crate::{demo, prove_kill};

/// Runs the command; an exit code that is not 0 without an error means that a promise was broken.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Serve(options) => serve::run(&options),
        Command::Topic(options) => client(topic::run(options)),
        Command::Produce(options) => client(produce::run(options)),
        Command::Consume(options) => client(consume::run(options)),
        Command::Txn(options) => client(txn::run(options)),
        Command::Group(options) => client(group::run(options)),
        Command::Config(options) => client(config::run(options)),
        Command::Cluster(options) => client(cluster::run(options)),
        Command::Doctor(options) => doctor::run(&options),
        Command::Backup(options) => backup::run(&options),
        Command::Log(options) => log::run(&options),
        Command::Completions(options) => completions::run(&options),
        Command::Bench(options) => client(bench::run(options)),
        Command::BenchCold(options) => client(bench_cold::run(options)),
        Command::BenchLoad(options) => client(bench_load::run(options)),
        Command::Demo(options) => client(demo::run(options)),
        Command::DemoBroker(options) => demo::broker::run(&options),
        Command::DemoSource(options) => client(demo::source::run(options)),
        Command::DemoWorker(options) => client(demo::worker::run(options)),
        Command::ProveKill(options) => client(prove_kill::run(options)),
    }
}

/// Runs a command that talks to brokers.
fn client(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let runtime = spawn::runtime(spawn::parallelism().clamp(1, 4)).context("cannot start the runtime")?;
    let result = runtime.block_on(command);
    runtime.shutdown_background(); // a thread may wait for standard input for ever
    result
}
