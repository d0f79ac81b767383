//! The project's own commands, run as `cargo xtask NAME`: everything that a developer or the CI asks of the
//! workspace beside plain `cargo build`.
//!
//! One module per command; `run` starts programs, `report` writes results into the docs. The crate depends on
//! none of the others, so that it compiles in seconds and still works when they do not: whatever needs their
//! code is started as a program.

// A developer's tool beside the product: it reads files, measures time and starts programs as it likes.
#![allow(clippy::disallowed_methods)]

mod bench;
mod broker;
mod cold;
mod compat;
mod draw;
mod prove;
mod report;
mod run;
mod schema;
mod setup;
mod soak;
mod test;
mod tidy;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up what the tests need, build and run all of them, and close with `N passed, N failed, N skipped`
    Test(test::Options),
    /// The read-only gate: format, lints, tests, docs, licences, tidy and a short simulation
    Verify(verify::Options),
    /// Write what can be mended by itself: format and machine-applicable lints
    Fix,
    /// Check what no compiler checks: module docs, file lengths, links, dependencies, decision records
    Tidy(tidy::Options),
    /// Draw the pictures of the docs from the texts beside them
    Draw,
    /// Compare our schema, field by field, with the definitions inside the published Kafka jars
    SchemaCheck(schema::Options),
    /// Show a promise by force and keep the result in docs/proofs.md
    Prove(prove::Options),
    /// Run other people's clients against a started `ottla serve`; results go to docs/compatibility.md
    Compat(compat::Options),
    /// Measure Ottla and Apache Kafka one after the other; results go to docs/benchmarks.md
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Test(options) => test::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Fix => verify::fix(),
        Command::Tidy(options) => tidy::run(&options),
        Command::Draw => draw::run(),
        Command::SchemaCheck(options) => schema::run(&options),
        Command::Prove(options) => prove::run(&options),
        Command::Compat(options) => compat::run(&options),
        Command::Bench(options) => bench::run(&options),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
