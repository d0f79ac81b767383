//! What is shown while the demonstration runs: a picture that changes on a terminal, plain lines elsewhere.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use ottla_env::time::{self, Instant};

use crate::text;

/// How often a plain line says how far it is.
const PLAIN_EVERY: Duration = Duration::from_secs(2);
/// How often the picture changes.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// Cells of the bar.
const BAR: u64 = 32;

/// What is shown.
pub(super) struct Picture {
    pub(super) done: u64,
    pub(super) records: u64,
    pub(super) repeated: u64,
    pub(super) elapsed: Duration,
    /// How long nothing came.
    pub(super) quiet: Duration,
    pub(super) rows: Vec<Row>,
    pub(super) last: String,
}

/// A process.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) state: String,
    pub(super) kills: usize,
}

/// Where it is shown.
pub(super) struct Display {
    to_stderr: bool,
    is_terminal: bool,
    /// Lines of the last picture, to be written over.
    drawn: usize,
    plain_at: Option<Instant>,
    drawn_at: Option<Instant>,
    done: u64,
}

impl Display {
    /// On standard output, or on standard error when that belongs to a machine.
    pub(super) fn new(to_stderr: bool) -> Self {
        let is_terminal = if to_stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        Self { to_stderr, is_terminal, drawn: 0, plain_at: None, drawn_at: None, done: 0 }
    }

    fn write(&mut self, text: &str) {
        // a display that nobody sees is no reason to stop
        let _ = if self.to_stderr {
            io::stderr().lock().write_all(text.as_bytes())
        } else {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }

    /// A line that stays.
    pub(super) fn line(&mut self, text: &str) {
        let text = format!("{}{text}\n", self.erase());
        self.write(&text);
    }

    /// Something happened.
    pub(super) fn event(&mut self, text: &str) {
        if !self.is_terminal {
            let percent = self.done;
            self.line(&format!("  {percent:>3} %  {text}"));
        }
    }

    /// Removes the picture.
    pub(super) fn end(&mut self) {
        let erase = self.erase();
        self.write(&erase);
    }

    /// Terminal codes that take the picture away.
    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }

    /// Shows how things are.
    pub(super) fn draw(&mut self, picture: &Picture) {
        self.done = picture.done * 100 / picture.records.max(1);
        if self.is_terminal {
            if self.drawn_at.is_some_and(|at| at.elapsed() < DRAW_EVERY) {
                return;
            }
            self.drawn_at = Some(time::now());
            let text = self.erase() + &picture.text(self.done);
            self.drawn = text.matches('\n').count();
            return self.write(&text);
        }
        if self.plain_at.is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            self.plain_at = Some(time::now());
            let line = format!("  {:>3} %  {}", self.done, picture.counts());
            self.line(&line);
        }
    }
}

impl Picture {
    fn counts(&self) -> String {
        let repeated =
            if self.repeated == 0 { String::new() } else { format!(", {} repeated", self.repeated) };
        let per_second = self.done as f64 / self.elapsed.as_secs_f64().max(0.001);
        format!(
            "{} of {} results{repeated}, {per_second:.0}/s, {}",
            self.done,
            self.records,
            text::duration(self.elapsed)
        )
    }

    fn text(&self, percent: u64) -> String {
        let filled = percent * BAR / 100;
        let bar: String = (0..BAR).map(|cell| if cell < filled { '█' } else { '░' }).collect();
        let mut out = format!("\n  {bar} {percent:>3} %  {}\n", self.counts());
        for row in &self.rows {
            let kills = "✖".repeat(row.kills.min(40));
            let _ = writeln!(out, "  {:<10} {:<14} \x1b[31m{kills}\x1b[0m", row.name, row.state); // a String takes all
        }
        let quiet = if self.quiet > Duration::from_millis(300) {
            format!("recovering for {}", text::duration(self.quiet))
        } else {
            String::new()
        };
        let _ = writeln!(out, "  {}  {quiet}", self.last); // a String takes all
        out
    }
}
