//! `cargo xtask verify`, the gate that reads only, and `cargo xtask fix`, which writes.
//!
//! Every step runs even if an earlier one failed, so that one run shows everything that is to be done.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use crate::run::{self, Workspace};
use crate::{prove, test, tidy};

/// Seeds of the short simulation.
const SMOKE_SEEDS: u64 = 50;

/// How to run the gate.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Close with one JSON object instead of the summary line
    #[arg(long)]
    json: bool,
}

/// What became of a step.
enum Verdict {
    Passed,
    Failed(String),
    Skipped(&'static str),
}

/// Runs the gate; true when no step failed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let workspace = Workspace::find()?;
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, action) in steps() {
        run::step(name);
        let began = Instant::now();
        let verdict = action(&workspace).unwrap_or_else(|error| Verdict::Failed(format!("{error:#}")));
        let seconds = began.elapsed().as_secs_f64();
        match verdict {
            Verdict::Passed => {
                passed += 1;
                println!("PASS {name} [{seconds:.1} s]");
            }
            Verdict::Failed(why) => {
                failed += 1;
                println!("FAIL {name} ({why})");
            }
            Verdict::Skipped(why) => {
                skipped += 1;
                println!("SKIP {name} ({why})");
            }
        }
    }
    if options.json {
        println!("{}", json!({"passed": passed, "failed": failed, "skipped": skipped}));
    } else {
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    Ok(failed == 0)
}

type Action = fn(&Workspace) -> Result<Verdict>;

/// The steps in order: what fails fast comes first.
fn steps() -> [(&'static str, Action); 7] {
    [
        ("format", |workspace| cargo(workspace, &["fmt", "--all", "--", "--check"])),
        ("tidy", |workspace| {
            let problems = tidy::problems(workspace)?;
            problems.iter().for_each(|problem| println!("{problem}"));
            Ok(if problems.is_empty() {
                Verdict::Passed
            } else {
                Verdict::Failed(format!("{}", problems.len()))
            })
        }),
        ("lints", |workspace| {
            cargo(workspace, &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])
        }),
        ("docs", |workspace| {
            let mut command = run::cargo();
            command.env("RUSTDOCFLAGS", "--deny warnings");
            command.args(["doc", "--workspace", "--no-deps", "--document-private-items"]);
            finish(command.current_dir(&workspace.root))
        }),
        ("licences", |workspace| {
            if run::on_path("cargo-deny") {
                return cargo(workspace, &["deny", "--offline", "check", "licenses", "bans", "sources"]);
            }
            Ok(Verdict::Skipped("cargo-deny is not installed"))
        }),
        ("tests", |_| {
            let passed = test::run(&test::Options::default())?;
            Ok(if passed { Verdict::Passed } else { Verdict::Failed("see above".into()) })
        }),
        ("simulation", |workspace| {
            let proof = prove::power_cut(workspace, SMOKE_SEEDS)?;
            Ok(if proof.passed { Verdict::Passed } else { Verdict::Failed(proof.result.to_string()) })
        }),
    ]
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<Verdict> {
    finish(run::cargo().current_dir(&workspace.root).args(arguments))
}

fn finish(command: &mut Command) -> Result<Verdict> {
    run::check(command)?;
    Ok(Verdict::Passed)
}

/// Writes what can be mended by itself.
pub(crate) fn fix() -> Result<bool> {
    let workspace = Workspace::find()?;
    let clippy = ["clippy", "--fix", "--workspace", "--all-targets", "--allow-dirty", "--allow-staged"];
    for arguments in [&clippy[..], &["fmt", "--all"]] {
        run::step(&format!("cargo {}", arguments.join(" ")));
        run::check(run::cargo().current_dir(&workspace.root).args(arguments))?;
    }
    Ok(true)
}
