//! `cargo xtask compat`: other people's clients against a started `ottla serve`.
//!
//! Each suite is a script under `compat/` that prints `PASS`, `FAIL` or `SKIP` per case and closes with
//! `N passed, N failed, N skipped`. Every suite gets a broker of its own on an empty folder, and its result is
//! one section of docs/compatibility.md.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::broker::{self, Broker, Kind};
use crate::report;
use crate::run::{self, Lines, Next, Workspace};

/// A suite and what is asked of it today.
struct Suite {
    name: &'static str,
    script: &'static str,
    about: &'static str,
    /// Arguments behind the bootstrap address: the part that Ottla is built for so far.
    arguments: &'static str,
    /// Settings that the broker is started with, by file name without its end: .toml for ours, .properties for
    /// Kafka's.
    config: Option<&'static str>,
    /// Whether it is given a command that kills and restarts the broker.
    restarts: bool,
    /// Whether its clients are all healthy ones, so that none may lose a request to the guard of transactions v1.
    healthy: bool,
    /// Whether it runs when none is named.
    usual: bool,
    /// An example of `ottla-client` that is built first, and the variable that tells the script where it is.
    example: Option<(&'static str, &'static str)>,
}

/// All of suite-java but compaction, share groups and the streams protocol, which Ottla does not have yet.
const JAVA_CASES: &str = "api-versions features topics configs client-compatibility console verifiable-classic \
    verifiable-consumer perf-idempotent perf-transactions end-to-end-latency groups get-offsets \
    delete-records transactions transaction-timeout fencing copier-plain copier-aborts copier-kill \
    copier-metadata-kill copier-group copier-group-metadata copier-group-kill \
    copier-group-metadata-kill streams-smoke streams-smoke-eos streams-eos connect-eos-source";

const SUITES: &[Suite] = &[
    Suite {
        name: "clients",
        script: "suite-clients",
        about: "one list of cases for six clients",
        arguments: "",
        config: None,
        restarts: false,
        healthy: true,
        usual: true,
        example: None,
    },
    Suite {
        name: "ottla-client",
        script: "suite-clients",
        about: "the same list of cases for our own client",
        arguments: "ottla",
        config: None,
        restarts: false,
        healthy: true,
        usual: true,
        example: Some(("suite", "SUITE_OTTLA")),
    },
    Suite {
        name: "eos",
        script: "suite-eos",
        about: "exactly-once semantics at the wire, and late messages",
        arguments: "--target ottla",
        config: Some("eos/short-sweeps"),
        restarts: true,
        healthy: false,
        usual: true,
        example: None,
    },
    Suite {
        name: "settings",
        script: "suite-settings",
        about: "settings, names of topics and unknown requests beside Kafka's",
        arguments: "--target ottla",
        config: None,
        restarts: false,
        healthy: true,
        usual: true,
        example: None,
    },
    Suite {
        name: "kgo",
        script: "suite-kgo",
        about: "franz-go's own tests",
        arguments: "",
        config: None,
        restarts: false,
        healthy: true,
        usual: false,
        example: None,
    },
    Suite {
        name: "java",
        script: "suite-java",
        about: "Kafka's own tools and clients",
        arguments: JAVA_CASES,
        config: None,
        restarts: false,
        healthy: true,
        usual: false,
        example: None,
    },
    Suite {
        name: "tools",
        script: "suite-tools",
        about: "Kafka's command line tools",
        arguments: "",
        config: None,
        restarts: true,
        healthy: true,
        usual: false,
        example: None,
    },
    Suite {
        name: "librdkafka",
        script: "suite-librdkafka",
        about: "librdkafka's own tests",
        arguments: "without=ottla all",
        config: Some("oracle-suites"),
        restarts: false,
        healthy: true,
        usual: false,
        example: None,
    },
    Suite {
        name: "sarama",
        script: "suite-sarama",
        about: "three Go clients",
        arguments: "",
        config: None,
        restarts: false,
        healthy: true,
        usual: false,
        example: None,
    },
    Suite {
        name: "mixed",
        script: "suite-mixed",
        about: "one group with members of five clients, ours among them",
        arguments: "",
        config: Some("mixed"),
        restarts: false,
        healthy: true,
        usual: false,
        example: Some(("mixed_member", "MIXED_OTTLA")),
    },
    Suite {
        name: "kafka-python",
        script: "suite-kafka-python",
        about: "kafka-python's integration tests",
        arguments: "",
        config: Some("oracle-suites"),
        restarts: false,
        healthy: true,
        usual: false,
        example: None,
    },
];

/// A suite that takes longer is ended and counts as failed.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Suites (default: those that cover what is built)
    suites: Vec<String>,
    /// Arguments instead of the suite's usual ones, as one text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    args: Option<String>,
    /// Run against Apache Kafka instead, to tell a flaw of ours from one of the suite; writes nothing
    #[arg(long)]
    oracle: bool,
    /// A broker config file instead of the suite's usual one
    #[arg(long)]
    config: Option<std::path::PathBuf>,
    /// Do not write docs/compatibility.md
    #[arg(long)]
    dry: bool,
    /// Close with one JSON object
    #[arg(long)]
    json: bool,
}

/// Counts and lines of one suite.
#[derive(Default)]
struct Outcome {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// FAIL and SKIP lines.
    notes: Vec<String>,
    finished: bool,
    /// What the broker says of late requests of transactions v1, at the end.
    late: Option<Late>,
    /// A client that did nothing wrong lost a request.
    cut: bool,
}

/// Requests of transactions v1 that looked late, as the broker counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Late {
    dropped: u64,
    let_through: u64,
}

impl Late {
    /// From the text of the metrics.
    fn read(metrics: &str) -> Result<Self> {
        let value = |name: &str| -> Result<u64> {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.with_context(|| format!("no {name} among the metrics"))?.trim().parse().context("no number")
        };
        Ok(Self {
            dropped: value("ottla_transaction_v1_late_requests_total")?,
            let_through: value("ottla_transaction_v1_late_requests_let_through_total")?,
        })
    }
}

/// The broker's metrics, as text.
fn metrics(address: &str) -> Result<String> {
    let mut socket = TcpStream::connect(address).with_context(|| format!("metrics at {address}"))?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.write_all(b"GET /metrics HTTP/1.0\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    socket.read_to_string(&mut text).context("metrics")?;
    Ok(text)
}

impl Outcome {
    /// The guard of transactions v1 may not hit a healthy client.
    fn judge_late(&mut self, healthy: bool) {
        let dropped = self.late.map_or(0, |late| late.dropped);
        self.cut = healthy && dropped > 0;
        if self.cut {
            self.notes.push(format!(
                "FAIL the guard of transactions v1 dropped {dropped} requests of healthy clients"
            ));
        }
    }

    fn read(&mut self, line: &str) {
        match line.split_once(' ').unwrap_or((line, "")).0 {
            "PASS" => self.passed += 1,
            "FAIL" => {
                self.failed += 1;
                self.notes.push(line.to_owned());
            }
            "SKIP" => {
                self.skipped += 1;
                self.notes.push(line.to_owned());
            }
            _ => {
                self.finished |= line
                    == format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
            }
        }
    }
}

/// Runs the command; true when nothing failed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let workspace = Workspace::find()?;
    let mut results: Vec<Value> = Vec::new();
    let mut good = true;
    for suite in chosen(&options.suites)? {
        let began = Instant::now();
        let kind = if options.oracle { Kind::Kafka } else { Kind::Ottla };
        let ending = if options.oracle { "properties" } else { "toml" };
        let usual = suite.config.map(|name| workspace.path(format!("compat/{name}.{ending}")));
        let http = format!("127.0.0.1:{}", broker::free_port()?);
        let environment = [("OTTLA_HTTP_LISTEN", http.as_str())];
        let broker = Broker::start(&workspace, kind, options.config.clone().or(usual), &environment)?;
        let arguments = options.args.as_deref().unwrap_or(suite.arguments);
        let mut outcome = judge(&workspace, suite, arguments, &broker)?;
        if kind == Kind::Ottla {
            outcome.late = Some(Late::read(&metrics(&http)?)?);
            outcome.judge_late(suite.healthy);
        }
        let seconds = began.elapsed().as_secs();
        good &= outcome.failed == 0 && outcome.finished && !outcome.cut;
        if !options.oracle && !options.dry {
            let text = section(suite, arguments, &outcome, seconds);
            let title = format!("`{}`: {}", suite.script, suite.about);
            report::write_section(&workspace.path("docs/compatibility.md"), suite.name, &title, &text)?;
        }
        let Outcome { passed, failed, skipped, finished, late, .. } = outcome;
        println!("{}: {passed} passed, {failed} failed, {skipped} skipped [{seconds} s]", suite.name);
        results.push(json!({"suite": suite.name, "passed": passed, "failed": failed, "skipped": skipped,
            "finished": finished, "seconds": seconds, "late_requests": late.map(|late| late.dropped)}));
    }
    if options.json {
        println!("{}", json!({"good": good, "suites": results}));
    }
    Ok(good)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(SUITES.iter().filter(|suite| suite.usual).collect());
    }
    let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    let mut found = Vec::new();
    for name in names {
        match SUITES.iter().find(|suite| suite.name == name) {
            Some(suite) => found.push(suite),
            None => bail!("no suite {name}; there are {}", known.join(", ")),
        }
    }
    Ok(found)
}

/// Runs one suite to its end, showing its lines as they come.
fn judge(workspace: &Workspace, suite: &Suite, arguments: &str, broker: &Broker) -> Result<Outcome> {
    let mut command = Command::new(workspace.path("compat").join(suite.script));
    command.arg(&broker.bootstrap);
    if let Some((example, variable)) = suite.example {
        command.env(variable, workspace.example("ottla-client", example)?);
    }
    if suite.restarts {
        command.args(["--restart-cmd", &broker.restart_command()]);
    }
    command.args(arguments.split_whitespace());
    run::step(&run::shown(&command));
    let mut outcome = Outcome::default();
    let mut lines = Lines::start(command, LIMIT)?;
    loop {
        match lines.next()? {
            Next::Line(line) => {
                eprintln!("{line}");
                outcome.read(&line);
            }
            Next::Quiet => {}
            Next::End(Some(_)) => return Ok(outcome),
            Next::End(None) => {
                outcome.notes.push(format!("ended at the limit of {} s", LIMIT.as_secs()));
                return Ok(outcome);
            }
        }
    }
}

/// The section of docs/compatibility.md.
fn section(suite: &Suite, arguments: &str, outcome: &Outcome, seconds: u64) -> String {
    let Outcome { passed, failed, skipped, notes, finished, late, .. } = outcome;
    let mut text =
        format!("{}: **{passed} passed, {failed} failed, {skipped} skipped**, {seconds} s", report::stamp());
    text += if *finished { ".\n" } else { "; the suite did not close by itself.\n" };
    text += &format!("\n`cargo xtask compat {} --args \"{arguments}\"`\n", suite.name);
    if let Some(Late { dropped, let_through }) = late {
        text += &format!(
            "\nRequests of transactions v1 dropped as late: {dropped}; looked late and were served: {let_through}.\n"
        );
    }
    if !notes.is_empty() {
        text += &format!("\n```text\n{}\n```\n", notes.join("\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a suite's lines are counted and that a suite whose closing line is missing or does not agree
    /// is not taken for finished.
    #[test]
    fn lines_are_counted_and_the_close_is_checked() {
        let mut outcome = Outcome::default();
        ["PASS a", "FAIL b (why)", "noise", "SKIP c (why)"].iter().for_each(|line| outcome.read(line));
        assert_eq!((outcome.passed, outcome.failed, outcome.skipped), (1, 1, 1));
        outcome.read("2 passed, 1 failed, 1 skipped");
        assert!(!outcome.finished);
        outcome.read("1 passed, 1 failed, 1 skipped");
        assert!(outcome.finished);
        assert_eq!(outcome.notes, ["FAIL b (why)", "SKIP c (why)"]);
    }

    /// Proves that the broker's count of dropped requests is read, that a suite of healthy clients fails by it, and
    /// that one which sends late on purpose does not.
    #[test]
    fn a_dropped_request_of_a_healthy_client_fails_a_suite() {
        let text = |dropped| {
            format!(
                "HTTP/1.0 200 OK\n\n# TYPE ottla_transaction_v1_late_requests_total counter\n\
                 ottla_transaction_v1_late_requests_total {dropped}\n\
                 ottla_transaction_v1_late_requests_let_through_total 7\n"
            )
        };
        assert_eq!(Late::read(&text(2)).expect("read"), Late { dropped: 2, let_through: 7 });
        assert!(Late::read("ottla_transaction_v1_late_requests_total_more 1\n").is_err());
        for (healthy, dropped, cut) in [(true, 0, false), (true, 2, true), (false, 2, false)] {
            let late = Some(Late::read(&text(dropped)).expect("read"));
            let mut outcome = Outcome { late, ..Outcome::default() };
            outcome.judge_late(healthy);
            assert_eq!((outcome.cut, outcome.notes.len()), (cut, usize::from(cut)));
        }
    }
}
