//! The command line: every command with its options, and what options commands share.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ottla_client::{Admin, ClientSettings, SettingError, TopicPartition};
use ottla_env::time;

use crate::{cmd, demo, output, prove_kill};

/// An event log that speaks Kafka's protocol and delivers exactly once, with nothing else to run.
#[derive(Debug, Parser)]
#[command(name = "ottla", version, max_term_width = 110, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "Examples:
  ottla demo                              see exactly once survive five kill -9, in under a minute
  ottla serve --data ./data               serve clients on 127.0.0.1:9092
  ottla topic create orders -p 3
  printf 'alice:one lamp\\n' | ottla produce orders --key-separator :
  ottla consume orders --from beginning --until-end --keys
  ottla txn why orders                    who holds back readers, since when, and how to end it

Exit codes: 0 done, 1 failed or a promise was broken, 2 the command line or a setting is wrong,
3 refused for safety (nothing was changed), 4 looked and found damage, or a transaction that hangs.
Environment: OTTLA_BOOTSTRAP is the default of --bootstrap, OTTLA_LOG filters the logs (`debug`,
`warn`, ...).";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve an event log from a folder
    Serve(cmd::serve::Options),
    /// Create, list, describe, alter and delete topics
    Topic(cmd::topic::Options),
    /// Write records from lines
    Produce(cmd::produce::Options),
    /// Read records
    Consume(cmd::consume::Options),
    /// Look at transactions, find out who holds back readers, and end them
    Txn(cmd::txn::Options),
    /// List, describe, reset and delete groups
    Group(cmd::group::Options),
    /// Describe and change settings of topics, brokers and groups
    Config(cmd::config::Options),
    /// Describe the cluster: brokers, features, folders, quorum
    Cluster(cmd::cluster::Options),
    /// Look into a broker's folder, without changing anything, and explain what is there
    Doctor(cmd::doctor::Options),
    /// Copy a broker's folder to a consistent point, while the broker goes on
    Backup(cmd::backup::Options),
    /// Show what a broker's folder holds: frames, batches, records of coordinators
    Log(cmd::log::Options),
    /// Print a completion script for a shell
    Completions(cmd::completions::Options),
    /// Measure a broker with the built-in client
    Bench(cmd::bench::Options),
    /// Many partitions, read when nothing of them is in memory
    #[command(hide = true)]
    BenchCold(cmd::bench_cold::Options),
    /// Many connections, parked fetches and group members at once
    #[command(hide = true)]
    BenchLoad(cmd::bench_load::Options),
    /// Kill a broker, a source and workers at random and check that every record arrives exactly once
    Demo(demo::Options),
    /// One of the demonstration's processes
    #[command(hide = true)]
    DemoBroker(cmd::serve::Options),
    /// One of the demonstration's processes
    #[command(hide = true)]
    DemoSource(demo::source::Options),
    /// One of the demonstration's processes
    #[command(hide = true)]
    DemoWorker(demo::worker::Options),
    /// Kill a broker under load again and again and check everything it acknowledged
    #[command(hide = true)]
    ProveKill(prove_kill::Options),
}

impl Cli {
    /// What is logged, and how.
    pub(crate) fn logging(&self) -> Logging<'_> {
        match &self.command {
            Command::Serve(options) | Command::DemoBroker(options) => Logging {
                default_level: "info",
                level: options.log_level.as_deref(),
                is_json: options.log_format == cmd::serve::LogFormat::Json,
            },
            Command::DemoSource(_) | Command::DemoWorker(_) => {
                Logging { default_level: "info", level: None, is_json: false }
            }
            _ => Logging { default_level: "error", level: None, is_json: false },
        }
    }
}

/// What is logged, and how.
pub(crate) struct Logging<'a> {
    /// When neither the command line nor `OTTLA_LOG` says.
    pub(crate) default_level: &'static str,
    /// What the command line says.
    pub(crate) level: Option<&'a str>,
    /// One JSON object per line.
    pub(crate) is_json: bool,
}

/// How long people wait for a first answer before they are told that there is none.
const SILENCE: Duration = Duration::from_millis(1500);

/// How to reach a cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct Client {
    /// Brokers to ask first, comma separated
    #[arg(
        short,
        long,
        global = true,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9092",
        env = "OTTLA_BOOTSTRAP"
    )]
    pub(crate) bootstrap: String,
    /// A setting of the client under Kafka's name, e.g. -X request.timeout.ms=5000; repeatable
    #[arg(short = 'X', global = true, value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub(crate) settings: Vec<(String, String)>,
}

impl Client {
    /// Settings without the given ones, which may belong to a producer or consumer.
    pub(crate) fn base(&self) -> Result<ClientSettings, SettingError> {
        Ok(ClientSettings::new(&self.bootstrap)?.client_id("ottla-cli"))
    }

    /// Settings of an admin client.
    pub(crate) fn admin(&self) -> Result<ClientSettings, SettingError> {
        let mut settings = self.base()?;
        self.settings.iter().try_for_each(|(name, value)| settings.set(name, value))?;
        Ok(settings)
    }

    /// An admin client of the cluster.
    pub(crate) async fn connect_admin(&self) -> anyhow::Result<Admin> {
        Ok(self.first_answer(Admin::connect(self.admin()?)).await?)
    }

    /// Waits for a cluster's first answer, and tells people when there is none for a while.
    pub(crate) async fn first_answer<F: Future>(&self, connecting: F) -> F::Output {
        let mut connecting = std::pin::pin!(connecting);
        match time::timeout(SILENCE, &mut connecting).await {
            Ok(connected) => connected,
            Err(time::Elapsed) => {
                output::complain(&format!("no answer from {} yet; still trying", self.bootstrap));
                connecting.await
            }
        }
    }
}

/// Reads one of a few words, in whatever case, as Kafka writes it.
pub(crate) fn one_of(
    known: &'static [&'static str],
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| {
        let found = known.iter().find(|word| word.eq_ignore_ascii_case(text));
        found.map(|word| (*word).to_owned()).ok_or_else(|| format!("is none of {}", known.join(", ")))
    }
}

/// Reads `NAME=VALUE`.
pub(crate) fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err("is not NAME=VALUE".to_owned()),
    }
}

/// A topic, or one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) topic: String,
    pub(crate) partition: Option<i32>,
}

/// Reads `TOPIC` or `TOPIC/PARTITION`.
pub(crate) fn place(text: &str) -> Result<Place, String> {
    let (topic, partition) = match text.split_once('/') {
        Some((topic, partition)) => {
            let number = partition.parse().ok().filter(|number: &i32| *number >= 0);
            (topic, Some(number.ok_or_else(|| format!("`{partition}` is not a partition"))?))
        }
        None => (text, None),
    };
    if topic.is_empty() {
        return Err("the topic is missing".to_owned());
    }
    Ok(Place { topic: topic.to_owned(), partition })
}

/// Reads `TOPIC/PARTITION`.
pub(crate) fn partition(text: &str) -> Result<TopicPartition, String> {
    let place = place(text)?;
    let partition = place.partition.ok_or("is not TOPIC/PARTITION")?;
    Ok(TopicPartition::new(place.topic, partition))
}

/// The command line is wrong in a way that clap does not see.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What was asked for would not be safe, so nothing was changed.
#[derive(Debug)]
pub(crate) struct Unsafe(pub(crate) String);

impl std::fmt::Display for Unsafe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsafe {}

/// Whether an error says that something was refused for safety.
pub(crate) fn is_unsafe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Unsafe>())
}

/// Whether an error says that the command line or a setting is wrong.
pub(crate) fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Usage>() || cause.is::<SettingError>() || cause.is::<ottla_broker::ConfigError>()
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    /// The words of an example as a shell would split them; what follows two spaces is a remark, what follows a pipe
    /// is another program's.
    fn words(example: &str) -> Vec<String> {
        let command = example.split("  ").next().unwrap_or_default();
        let command = command.split(" | ").find(|part| part.starts_with("ottla")).unwrap_or(command);
        let command = command.split(" > ").next().unwrap_or_default();
        let mut words = vec![String::new()];
        let mut quote = None;
        for letter in command.chars() {
            let word = words.last_mut().expect("there is always a last word");
            match (letter, quote) {
                ('\'' | '"', None) => quote = Some(letter),
                (letter, Some(open)) if letter == open => quote = None,
                (' ', None) => words.push(String::new()),
                (letter, _) => word.push(letter),
            }
        }
        words
    }

    /// Columns of a help page that is not shown at a terminal; longer lines are broken, and tables with them.
    const HELP_COLUMNS: usize = 100;

    fn check_examples(command: &clap::Command, path: &str, checked: &mut usize) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.starts_with("Example"), "`{path} --help` shows no examples");
        let widest = help.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(HELP_COLUMNS), "`{path} --help` is {widest:?} columns wide and would be cut");
        let own = help.lines().skip(1).take_while(|line| !line.is_empty()).map(str::trim_start);
        let mut of_this = 0;
        for line in own.filter(|line| line.contains("ottla ")) {
            let words = words(line);
            let parsed = Cli::try_parse_from(&words);
            let fine = parsed.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::DisplayVersion);
            assert!(fine, "`{path} --help`: {line}: {:?}", parsed.err().map(|error| error.to_string()));
            of_this += usize::from(words.join(" ").starts_with(path));
        }
        let is_client = command.get_arguments().any(|argument| argument.get_id() == "bootstrap");
        for (id, short) in [("settings", 'X'), ("bootstrap", 'b')].into_iter().filter(|_| is_client) {
            let mut own = command.get_arguments().filter(|argument| argument.get_id() == id);
            let hidden = "an argument of its own hides a global one";
            assert!(own.all(|argument| argument.get_short() == Some(short)), "{path}: {hidden}: {id}");
        }
        assert!(of_this > 0, "no example of `{path} --help` is of {path} itself");
        *checked += 1;
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            check_examples(sub, &format!("{path} {}", sub.get_name()), checked);
        }
    }

    /// Proves that every `--help` ends with examples, and that each of them is a command line that we take.
    #[test]
    fn every_help_has_examples_that_parse() {
        let mut command = Cli::command();
        command.build();
        let mut checked = 0;
        check_examples(&command, "ottla", &mut checked);
        assert!(checked > 30, "only {checked} commands were looked at");
    }

    /// Proves that the command line is consistent: no option is declared twice, every default can be read.
    #[test]
    fn commands_are_consistent() {
        Cli::command().debug_assert();
    }

    /// Proves that words are taken in any case and told as Kafka writes them, and that others are refused by name.
    #[test]
    fn words_of_a_list() {
        let read = one_of(&["Empty", "PrepareAbort"]);
        assert_eq!(read("prepareabort"), Ok("PrepareAbort".to_owned()));
        assert_eq!(read("Nonsense"), Err("is none of Empty, PrepareAbort".to_owned()));
    }

    /// Proves how places are read.
    #[test]
    fn places() {
        assert_eq!(place("orders"), Ok(Place { topic: "orders".to_owned(), partition: None }));
        assert_eq!(place("orders/2"), Ok(Place { topic: "orders".to_owned(), partition: Some(2) }));
        assert!(place("orders/x").is_err() && place("/1").is_err() && place("orders/-1").is_err());
        assert!(
            partition("orders").is_err() && name_and_value("a").is_err() && name_and_value("=b").is_err()
        );
        assert_eq!(name_and_value("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
    }
}
