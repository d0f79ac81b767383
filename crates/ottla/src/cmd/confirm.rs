//! Asking before something is lost: a person at a terminal types its name, a script says `--yes` or has no terminal.

use std::io::{BufRead, IsTerminal};

use anyhow::Result;
use clap::Args;

use crate::cli::Unsafe;
use crate::output;

/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 1024;

/// Whether the question was answered on the command line.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Confirm {
    /// Do not ask at a terminal
    #[arg(short, long)]
    yes: bool,
}

impl Confirm {
    /// Asks, when standard input is a terminal; anything but the name is a no.
    pub(crate) fn ask(self, what: &str, name: &str) -> Result<()> {
        if self.yes || !std::io::stdin().is_terminal() {
            return Ok(());
        }
        output::note(&format!("{what}\nType `{name}` to go on:"));
        let mut answer = String::new();
        let stdin = std::io::stdin().lock();
        std::io::Read::take(stdin, ANSWER_BYTES_MAX).read_line(&mut answer)?;
        if answer.trim() == name {
            return Ok(());
        }
        Err(Unsafe("not confirmed, nothing was changed".to_owned()).into())
    }
}
