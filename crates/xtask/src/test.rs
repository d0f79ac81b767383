//! `cargo xtask test`: builds every test of the workspace, runs each test binary, then the doc tests, and
//! closes with one line, `N passed, N failed, N skipped`.
//!
//! The binaries are started by us and not by cargo, so that each has a time limit, a row in the summary and its
//! output shown only when it fails. Counts come from libtest's own lines (`libtest`).

mod libtest;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::run::{self, Lines, Next, Workspace};
use crate::setup;
use libtest::Tally;

/// A test binary that runs longer is ended and counts as failed.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// What to test.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Only these packages (default: all)
    #[arg(short, long)]
    package: Vec<String>,
    /// Close with one JSON object instead of the summary line
    #[arg(long)]
    json: bool,
    /// Show the output of passing tests too
    #[arg(long)]
    verbose: bool,
    /// Only tests whose path contains this
    filter: Option<String>,
}

/// One row of the summary.
struct Row {
    package: String,
    target: String,
    tally: Tally,
    seconds: f64,
}

/// A test binary that cargo built.
struct Binary {
    package: String,
    target: String,
    folder: PathBuf,
    executable: PathBuf,
}

/// Runs the command; true when nothing failed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    setup::ensure()?;
    let workspace = Workspace::find()?;
    run::step("building the tests");
    let binaries = build(&workspace, options)?;
    let mut rows = Vec::new();
    for (number, binary) in binaries.iter().enumerate() {
        let name = format!("{} {}", binary.package, binary.target);
        run::step(&format!("[{}/{}] {name}", number + 1, binaries.len() + 1));
        let mut command = Command::new(&binary.executable);
        command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder).args(&options.filter);
        rows.push(row(&binary.package, &binary.target, command, options)?);
    }
    let libraries: Vec<&Binary> = binaries.iter().filter(|binary| binary.target == "lib").collect();
    if !libraries.is_empty() {
        run::step(&format!("[{0}/{0}] doc tests", binaries.len() + 1));
        let mut command = run::cargo();
        command.current_dir(&workspace.root).args(["test", "--doc", "--no-fail-fast"]);
        command.args(libraries.iter().flat_map(|library| ["--package", &library.package]));
        command.arg("--").args(&options.filter);
        rows.push(row("(all)", "doc tests", command, options)?);
    }
    Ok(summarize(&rows, options))
}

/// Cargo's arguments for the chosen packages.
fn selection(options: &Options) -> Vec<String> {
    if options.package.is_empty() {
        return vec!["--workspace".into()];
    }
    options.package.iter().flat_map(|package| ["--package".into(), package.clone()]).collect()
}

/// Builds the tests; cargo's own progress goes to standard error.
fn build(workspace: &Workspace, options: &Options) -> Result<Vec<Binary>> {
    let mut command = run::cargo();
    command.current_dir(&workspace.root).args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    command.args(selection(options)).stdin(Stdio::null()).stderr(Stdio::inherit());
    let done = command.output().context("cannot run cargo")?;
    if !done.status.success() {
        bail!("the tests do not build");
    }
    let text = String::from_utf8_lossy(&done.stdout);
    let mut binaries: Vec<Binary> = text.lines().filter_map(binary).collect();
    binaries.sort_by(|a, b| (&a.package, &a.target).cmp(&(&b.package, &b.target)));
    Ok(binaries)
}

/// The test binary that a line of cargo's JSON output names, if it names one.
fn binary(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let kind = message["target"]["kind"][0].as_str()?;
    let target = match kind {
        "test" => format!("tests/{}", message["target"]["name"].as_str()?),
        other => other.to_owned(),
    };
    Some(Binary {
        package: folder.file_name()?.to_string_lossy().into_owned(),
        target,
        executable: message["executable"].as_str()?.into(),
        folder,
    })
}

/// Runs one command that speaks libtest and tallies it.
fn row(package: &str, target: &str, command: Command, options: &Options) -> Result<Row> {
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut kept = Vec::new();
    let mut lines = Lines::start(command, LIMIT)?;
    let ended_well = loop {
        match lines.next()? {
            Next::Line(line) => {
                tally.read(&line);
                if options.verbose {
                    eprintln!("    {line}");
                } else {
                    kept.push(line);
                }
            }
            Next::Quiet => {
                eprintln!("    {} passed so far, {:.0} s", tally.seen(), began.elapsed().as_secs_f64())
            }
            Next::End(Some(status)) => break status.success(),
            Next::End(None) => {
                kept.push(format!("ended at the limit of {} s", LIMIT.as_secs()));
                break false;
            }
        }
    };
    tally.close(ended_well);
    if tally.failed > 0 {
        kept.iter().filter(|line| !libtest::is_pass(line)).for_each(|line| eprintln!("    {line}"));
    }
    let seconds = began.elapsed().as_secs_f64();
    eprintln!(
        "    {} passed, {} failed, {} skipped in {seconds:.1} s",
        tally.passed, tally.failed, tally.skipped
    );
    Ok(Row { package: package.into(), target: target.into(), tally, seconds })
}

/// Prints the table, the failures and the closing line; true when nothing failed.
fn summarize(rows: &[Row], options: &Options) -> bool {
    println!(
        "\n{:<16} {:<20} {:>7} {:>7} {:>8} {:>8}",
        "crate", "target", "passed", "failed", "skipped", "seconds"
    );
    for row in rows {
        let Tally { passed, failed, skipped, .. } = row.tally;
        println!(
            "{:<16} {:<20} {passed:>7} {failed:>7} {skipped:>8} {:>8.1}",
            row.package, row.target, row.seconds
        );
    }
    println!();
    for row in rows {
        row.tally.failures.iter().for_each(|name| println!("FAIL {} {}: {name}", row.package, row.target));
    }
    let sum = |count: fn(&Tally) -> usize| rows.iter().map(|row| count(&row.tally)).sum::<usize>();
    let (passed, failed, skipped) = (sum(|t| t.passed), sum(|t| t.failed), sum(|t| t.skipped));
    if options.json {
        let failures: Vec<&String> = rows.iter().flat_map(|row| &row.tally.failures).collect();
        println!("{}", json!({"passed": passed, "failed": failed, "skipped": skipped, "failures": failures}));
    } else {
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    failed == 0
}
