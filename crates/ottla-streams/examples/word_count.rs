//! Counts the words of a real text: a file of yours, or this project's README.
//!
//! `cargo run --release -p ottla-streams --example word_count -- [--file PATH] [--chaos]` (`--help` for more)
//!
//! ```text
//!   lines ── words of each ── key_by "by-word" (a topic: each word to its task) ── count "counts" ──> counts
//! ```
//!
//! Lines go round robin to all partitions, and the text is read again from its beginning when more records are asked
//! for than it has lines. The proof: each word's counts came out as 1, 2, 3, ... up to what the text has; the store
//! says the same.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ottla_client::Record;
use ottla_env::files;
use ottla_streams::app::App;
use ottla_streams::codec::{NoKey, Utf8};
use ottla_streams::store::KvStore;
use ottla_streams::topology::{Topology, TopologyError};

#[path = "kit/mod.rs"]
pub(crate) mod kit;
use kit::{Example, Failure, Found, Options, Proof, Table, topic};

const README: &str = include_str!("../../../README.md");
/// Longest file.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Words shown.
const SHOWN: usize = 15;

/// The words of a line: letters and digits, without case.
fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// The example.
pub(crate) struct WordCount {
    lines: Vec<String>,
    records: usize,
}

impl WordCount {
    fn line(&self, number: usize) -> &str {
        &self.lines[number % self.lines.len()]
    }

    /// How often each word comes.
    fn expected(&self) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        for number in 0..self.records {
            for word in words(self.line(number)) {
                *counts.entry(word).or_default() += 1;
            }
        }
        counts
    }
}

impl Example for WordCount {
    const NAME: &'static str = "word_count";
    const ABOUT: &'static str = "A word count over a text, exactly once.";
    const PARTITIONS: i32 = 3;
    const INPUTS: &'static [&'static str] = &["lines"];
    const OUTPUTS: &'static [&'static str] = &["counts"];

    fn new(options: &Options) -> Result<Self, Failure> {
        let text = match &options.file {
            Some(path) => files::read_text(path, FILE_BYTES_MAX)
                .map_err(|error| format!("{} cannot be read: {error}", path.display()))?,
            None => README.to_owned(),
        };
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.is_empty() {
            return Err("the text is empty".into());
        }
        let many = if options.chaos { 5_000 } else { 0 };
        let records = options.records.unwrap_or(lines.len().max(many));
        Ok(Self { lines, records })
    }

    fn topology(application: &str) -> Result<Topology, TopologyError> {
        Topology::new(application, |b| {
            let lines = b.stream(&topic(application, "lines"), NoKey, Utf8);
            let words = lines.flat_map_values(|(), line| words(&line).collect::<Vec<_>>()).values_as(Utf8);
            let counts = words.key_by("by-word", Utf8, |r| r.value.clone()).group().count("counts");
            counts.to(&topic(application, "counts"));
        })
    }

    fn tables(&self, _application: &str) -> Vec<Record> {
        Vec::new()
    }

    fn len(&self) -> usize {
        self.records
    }

    fn record(&self, application: &str, number: usize) -> Record {
        let partition = number % usize::try_from(Self::PARTITIONS).expect("small");
        let record = Record::to(topic(application, "lines")).value(self.line(number).to_owned());
        record.partition(i32::try_from(partition).expect("small"))
    }

    fn is_loaded(&self, _app: &App) -> Result<bool, Failure> {
        Ok(true) // there is no table
    }

    fn is_done(&self, app: &App, _found: &Found) -> Result<bool, Failure> {
        // More than the text has is no reason to wait either: the proof will tell.
        let counted: i64 =
            app.store::<KvStore<String, i64>>("counts")?.all()?.iter().map(|entry| entry.1).sum();
        Ok(counted >= self.expected().values().sum())
    }

    fn view(&self, app: &App) -> Result<Table, Failure> {
        let mut counts = app.store::<KvStore<String, i64>>("counts")?.all()?;
        counts.sort_by(|one, two| two.1.cmp(&one.1).then_with(|| one.0.cmp(&two.0)));
        let rows = counts.into_iter().take(SHOWN).map(|(word, count)| vec![word, count.to_string()]);
        Ok(Table { head: vec!["word", "count"], rows: rows.collect() })
    }

    fn prove(&self, app: &App, found: &Found) -> Result<Proof, Failure> {
        let expected = self.expected();
        let mut seen: BTreeMap<String, i64> = BTreeMap::new();
        for record in found.of("counts") {
            let word = String::from_utf8(record.key.clone().unwrap_or_default().to_vec())?;
            let count = i64::from_be_bytes(record.value.clone().unwrap_or_default()[..].try_into()?);
            let before = seen.insert(word.clone(), count).unwrap_or(0);
            if count != before + 1 {
                return Err(format!("the count of `{word}` went from {before} to {count}").into());
            }
        }
        let stored: BTreeMap<_, _> =
            app.store::<KvStore<String, i64>>("counts")?.all()?.into_iter().collect();
        for (what, counts) in [("topic", &seen), ("store", &stored)] {
            if *counts != expected {
                let differs = expected.iter().find(|(word, count)| counts.get(*word) != Some(*count));
                return Err(format!("the {what} differs from the text, first in {differs:?}").into());
            }
        }
        let total = expected.values().sum::<i64>();
        Ok(Proof {
            sentence: format!(
                "{total} words in {} lines, {} different ones: each counted up one by one to what the text has; the \
                 store says the same",
                self.records,
                expected.len()
            ),
            figures: vec![
                ("lines", self.records as u64),
                ("words", total.unsigned_abs()),
                ("different_words", expected.len() as u64),
            ],
        })
    }
}

#[allow(dead_code)] // a test runs it otherwise
fn main() -> ExitCode {
    kit::main::<WordCount>()
}
