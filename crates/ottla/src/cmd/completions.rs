//! `ottla completions`: what a shell needs to complete our commands and options.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  ottla completions bash > ~/.local/share/bash-completion/completions/ottla
  ottla completions zsh > ~/.zfunc/_ottla
  ottla completions fish > ~/.config/fish/completions/ottla.fish")]
pub(crate) struct Options {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "ottla", &mut script);
    output::bytes(&script)?;
    output::flush()?;
    Ok(ExitCode::SUCCESS)
}
