//! The command line of the examples.

use std::path::PathBuf;

/// Most records that an example writes.
const RECORDS_MAX: usize = 1_000_000;
/// Most kills.
const KILLS_MAX: usize = 1_000;

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Brokers; absent: one of our own.
    pub(crate) brokers: Option<String>,
    /// Kill the application in the middle.
    pub(crate) chaos: bool,
    /// How often. Default 8.
    pub(crate) kills: usize,
    /// Records of the input; absent: the example's own idea.
    pub(crate) records: Option<usize>,
    /// A text file, for the example that reads one.
    pub(crate) file: Option<PathBuf>,
    /// Report as one JSON object, and draw nothing.
    pub(crate) json: bool,
}

pub(crate) fn help(name: &str) -> String {
    format!(
        "usage: cargo run --release -p ottla-streams --example {name} -- [options]

  --brokers HOST:PORT  a Kafka 2.5 or later, or Ottla; without it the example starts a broker of its own.
                       Topics, group and state get a name of this run; the topics stay there.
  --chaos              run the application as a child process that is killed (SIGKILL) in the middle
  --kills N            how often; 1 to {KILLS_MAX}, default 8
  --records N          records of the input; 1 to {RECORDS_MAX}
  --file PATH          text to count the words of (word_count; default: this project's README)
  --json               report one JSON object
  --help               this text

Exit code: 0 proved, 1 not proved or failed, 2 wrong arguments."
    )
}

impl Options {
    /// Parses arguments; `None` when help is asked for.
    pub(crate) fn parse<S: AsRef<str>>(arguments: &[S]) -> Result<Option<Self>, String> {
        let mut options = Self { kills: 8, ..Self::default() };
        let mut arguments = arguments.iter().map(AsRef::as_ref);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument {
                "--brokers" => options.brokers = Some(value()?.to_owned()),
                "--chaos" => options.chaos = true,
                "--kills" => options.kills = number(argument, value()?, KILLS_MAX)?,
                "--records" => options.records = Some(number(argument, value()?, RECORDS_MAX)?),
                "--file" => options.file = Some(value()?.into()),
                "--json" => options.json = true,
                "--help" | "-h" => return Ok(None),
                other => return Err(format!("unknown argument `{other}`")),
            }
        }
        Ok(Some(options))
    }
}

fn number(name: &str, value: &str, max: usize) -> Result<usize, String> {
    match value.parse() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        Ok(_) | Err(_) => Err(format!("{name} must be a number from 1 to {max}, not `{value}`")),
    }
}
