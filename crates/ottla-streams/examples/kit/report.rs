//! What an example shows: a view while it runs, a result at its end.

use std::io::{IsTerminal, Write};

use serde_json::json;

use super::chaos::Kills;
use super::{Example, Failure, Options};

/// Rows to show under a heading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// Names of the columns.
    pub(crate) head: Vec<&'static str>,
    /// As many cells each.
    pub(crate) rows: Vec<Vec<String>>,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut widths: Vec<usize> = self.head.iter().map(|name| name.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let head: Vec<String> = self.head.iter().map(|name| (*name).to_owned()).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            for (place, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match place {
                    0 => write!(f, "{cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// What was compared and found equal.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    /// In a sentence.
    pub(crate) sentence: String,
    /// In figures.
    pub(crate) figures: Vec<(&'static str, u64)>,
}

/// Draws the view over the last one, on a terminal.
pub(super) fn draw(options: &Options, view: &Table) {
    let mut out = std::io::stdout();
    if !options.json && !options.chaos && out.is_terminal() {
        // Clear from the upper left corner; a terminal that is gone is no reason to stop.
        let _ = write!(out, "\x1b[H\x1b[2J{view}").and_then(|()| out.flush());
    }
}

pub(super) fn proved<E: Example>(
    options: &Options,
    view: &Table,
    proof: &Proof,
    kills: &Kills,
    (records, seconds): (usize, f64),
) {
    if options.json {
        let figures: serde_json::Map<_, _> =
            proof.figures.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let report = json!({
            "example": E::NAME, "proved": true, "records": records, "kills": kills.count,
            "kills_with_open_transaction": kills.met_open, "seconds": seconds, "figures": figures,
        });
        println!("{report}");
        return;
    }
    draw(options, &Table::default());
    println!("{view}");
    if options.chaos {
        println!(
            "{} kills (SIGKILL), {} of them with a transaction open, {seconds:.1} s",
            kills.count, kills.met_open
        );
    }
    println!("proved: {}", proof.sentence);
}

pub(super) fn failed<E: Example>(options: &Options, error: &Failure) {
    if options.json {
        println!("{}", json!({"example": E::NAME, "proved": false, "error": error.to_string()}));
    } else {
        eprintln!("not proved: {error}");
    }
}
