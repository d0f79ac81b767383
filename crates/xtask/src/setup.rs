//! What the tests need beside Rust, and how it is had: by apt-get where we may, else by asking.
//!
//! The list is short on purpose: the tests bring their own clients. Real foreign clients are installed by the
//! scripts under `compat/`, when `cargo xtask compat` is asked for.

use std::process::Command;

use anyhow::{Result, bail};

use crate::run;

/// A program, the Debian package that has it, and why it is needed.
struct Need {
    program: &'static str,
    packages: &'static [&'static str],
    reason: &'static str,
}

/// Everything that a build and the tests start.
const NEEDS: &[Need] = &[Need {
    program: "cc",
    packages: &["gcc", "libc6-dev"],
    reason: "links Rust programs and compiles zstd",
}];

/// Installs what is missing, or says what to install.
pub(crate) fn ensure() -> Result<()> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !run::on_path(need.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        eprintln!("missing: {} ({})", need.program, need.reason);
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    if !run::on_path("apt-get") || !is_root() {
        bail!("please install: {}", packages.join(" "));
    }
    run::step(&format!("installing {}", packages.join(" ")));
    run::check(apt().arg("update"))?;
    run::check(apt().args(["install", "--yes", "--no-install-recommends"]).args(packages))
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    run::output(Command::new("id").arg("-u")).is_ok_and(|text| text.trim() == "0")
}
