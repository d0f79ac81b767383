//! The demonstration's broker process: `ottla serve`, which ends with its parent.

use std::process::ExitCode;

use anyhow::{Context, Result};
use ottla_env::spawn;

use crate::broker_process::parent_gone;
use crate::cmd::serve;

/// Runs the command.
pub(crate) fn run(options: &serve::Options) -> Result<ExitCode> {
    let config = serve::config(options)?;
    let runtime = spawn::runtime(spawn::parallelism()).context("cannot start the runtime")?;
    runtime.block_on(serve::serve(config, parent_gone()?))?;
    runtime.shutdown_background(); // the thread that waits for the parent may still do so
    Ok(ExitCode::SUCCESS)
}
