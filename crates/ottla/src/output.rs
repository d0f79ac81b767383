//! The seam to standard output and standard error: lines, tables, JSON objects.
//!
//! Results go to standard output, one complaint of a failed command to standard error. A closed pipe is not a
//! failure of ours (`is_closed`).

use std::io::{self, Write};
use std::time::Duration;

use ottla_env::time::{self, Instant};
use serde::Serialize;

/// Writes one line.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Writes bytes as they are, without a flush: for bulk output.
pub(crate) fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    Ok(io::stdout().lock().write_all(bytes)?)
}

/// Pushes out what was written.
pub(crate) fn flush() -> anyhow::Result<()> {
    Ok(io::stdout().lock().flush()?)
}

/// Writes one JSON object on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string(value)?)
}

/// Writes a table with aligned columns; columns of numbers to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let is_number = |cell: &String| !cell.is_empty() && cell.chars().all(|c| c.is_ascii_digit() || c == '-');
    let numbers = |column: usize| rows.iter().filter_map(|row| row.get(column)).all(is_number);
    let columns: Vec<(usize, bool)> =
        (0..head.len()).map(|column| (width(column), !rows.is_empty() && numbers(column))).collect();
    let shown = |cells: &[&str]| {
        let padded = cells.iter().zip(&columns).map(|(cell, (width, to_the_right))| {
            if *to_the_right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    line(&shown(head))?;
    for row in rows {
        line(&shown(&row.iter().map(String::as_str).collect::<Vec<_>>()))?;
    }
    Ok(())
}

/// A note for people beside the results, on standard error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}"); // nobody reads it: fine
}

/// What went wrong, on standard error.
pub(crate) fn complain(text: &str) {
    note(&format!("ottla: {text}"));
}

/// An error with its causes; what an error has said of its cause already is not said again.
pub(crate) fn reasons(error: &anyhow::Error) -> String {
    let mut chain = error.chain().map(ToString::to_string);
    let first = chain.next().unwrap_or_default();
    chain.fold(first, |told, cause| if told.ends_with(&cause) { told } else { format!("{told}: {cause}") })
}

/// When progress is first told, and how often then.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Tells people at a terminal how far a long command is: nothing in its first two seconds, then a line now and then.
pub(crate) struct Progress {
    what: &'static str,
    of: usize,
    done: usize,
    next: Instant,
    /// Only a terminal has somebody who waits.
    told: bool,
}

impl Progress {
    /// Of so many in all.
    pub(crate) fn new(what: &'static str, of: usize) -> Self {
        let told = io::IsTerminal::is_terminal(&io::stderr());
        Self { what, of, done: 0, next: time::now() + PROGRESS_EVERY, told }
    }

    /// So many more are done.
    pub(crate) fn add(&mut self, count: usize) {
        self.at(self.done + count, self.of);
    }

    /// So many are done, of so many.
    pub(crate) fn at(&mut self, done: usize, of: usize) {
        (self.done, self.of) = (done, of);
        if self.told && time::now() >= self.next {
            note(&format!("{} of {} {}", self.done, self.of, self.what));
            self.next = time::now() + PROGRESS_EVERY;
        }
    }
}

/// Whether an error only says that nobody reads our output any more.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    /// Proves that causes are told, and that none is told twice where an error ends with its own cause.
    #[test]
    fn causes_once() {
        let error = anyhow!("no such file").context("cannot open x: no such file").context("the folder");
        assert_eq!(reasons(&error), "the folder: cannot open x: no such file");
        assert_eq!(reasons(&anyhow!("b").context("a")), "a: b");
    }
}
