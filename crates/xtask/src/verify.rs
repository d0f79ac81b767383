//! `cargo xtask verify`, the gate that reads only, and `cargo xtask fix`, which writes.
//!
//! Every step runs even if an earlier one failed, so that one run shows everything that is to be done.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use crate::run::{self, Workspace};
use crate::{prove, schema, test, tidy};

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

impl Verdict {
    /// Of a step that has said itself what is wrong.
    fn of(good: bool) -> Self {
        if good { Self::Passed } else { Self::Failed("see above".into()) }
    }
}

type Action = fn(&Workspace) -> Result<Verdict>;

/// The steps in order: what fails fast comes first.
fn steps() -> [(&'static str, Action); 8] {
    [
        ("format", |workspace| cargo(workspace, &["fmt", "--all", "--", "--check"])),
        ("tidy", tidy_tree),
        ("lints", |workspace| {
            cargo(workspace, &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])
        }),
        ("docs", docs),
        ("licences", licences),
        ("schema", schema_check),
        ("tests", |_| Ok(Verdict::of(test::run(&test::Options::default())?))),
        ("simulation", |workspace| Ok(Verdict::of(prove::power_cut(workspace, SMOKE_SEEDS, true)?.passed))),
    ]
}

fn tidy_tree(workspace: &Workspace) -> Result<Verdict> {
    let problems = tidy::problems(workspace)?;
    problems.iter().for_each(|problem| println!("{problem}"));
    Ok(Verdict::of(problems.is_empty()))
}

fn docs(workspace: &Workspace) -> Result<Verdict> {
    let mut command = run::cargo();
    command.current_dir(&workspace.root).env("RUSTDOCFLAGS", "--deny warnings");
    run::check(command.args(["doc", "--workspace", "--no-deps", "--document-private-items"]))?;
    Ok(Verdict::Passed)
}

fn licences(workspace: &Workspace) -> Result<Verdict> {
    if !run::on_path("cargo-deny") {
        return Ok(Verdict::Skipped("cargo-deny is not installed"));
    }
    cargo(workspace, &["deny", "--offline", "check", "licenses", "bans", "sources"])
}

fn schema_check(_: &Workspace) -> Result<Verdict> {
    if !schema::default_jar_dir().is_dir() {
        return Ok(Verdict::Skipped("Kafka's jars are not here; `compat/kafka-oracle install` fetches them"));
    }
    Ok(Verdict::of(schema::run(&schema::Options::default())?))
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<Verdict> {
    run::check(run::cargo().current_dir(&workspace.root).args(arguments))?;
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
