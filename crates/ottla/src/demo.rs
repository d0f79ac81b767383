//! stub
use std::process::ExitCode;
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {}
pub(crate) async fn run(_: Options) -> anyhow::Result<ExitCode> { Ok(ExitCode::SUCCESS) }
pub(crate) mod broker { 
use std::process::ExitCode;
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {}
pub(crate) fn run(_: &Options) -> anyhow::Result<ExitCode> { Ok(ExitCode::SUCCESS) }
}
pub(crate) mod source { 
use std::process::ExitCode;
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {}
pub(crate) async fn run(_: Options) -> anyhow::Result<ExitCode> { Ok(ExitCode::SUCCESS) }
}
pub(crate) mod worker { 
use std::process::ExitCode;
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {}
pub(crate) async fn run(_: Options) -> anyhow::Result<ExitCode> { Ok(ExitCode::SUCCESS) }
}
