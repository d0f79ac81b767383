//! The application under test, as a process of its own: counts and sums per key through a repartition topic, until it
//! is told to stop, killed, or fails; whoever started it starts it again.
//!
//! On standard output it tells, a line of JSON each, what was restored, in which state it is, and what befell it.

use std::fmt::Debug;
use std::io::BufRead;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ottla_client::GroupProtocol;
use ottla_env::spawn;
use ottla_streams::app::{App, AppSettings, AppState};
use ottla_streams::codec::{Json, NoKey, Utf8};
use ottla_streams::topology::{Topology, TopologyError};
use tokio::sync::oneshot;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::{Failure, client};

/// The first argument of an application's process.
pub(crate) const COMMAND: &str = "application";
/// What a process is told to end in order.
pub(crate) const STOP: &str = "stop";
pub(crate) const SESSION: Duration = Duration::from_secs(6);
pub(crate) const TRANSACTION: Duration = Duration::from_secs(10);
const COMMIT: Duration = Duration::from_millis(100);
const WORKERS: usize = 2;

/// Store of the counts.
pub(crate) const COUNTS: &str = "counts";
/// Store of counts with sums.
pub(crate) const TOTALS: &str = "totals";

/// Input topic of an application.
pub(crate) fn input_of(name: &str) -> String {
    format!("{name}-in")
}

/// Output topic of an application.
pub(crate) fn output_of(name: &str) -> String {
    format!("{name}-out")
}

/// Per key: how many numbers, and count with sum; each change of the latter goes to the output. Input: (key, number).
pub(crate) fn topology(name: &str) -> Result<Topology, TopologyError> {
    Topology::new(name, |b| {
        let numbers = b.stream(&input_of(name), NoKey, Json::<(String, i64)>::new());
        let left = AtomicU64::new(panic_at());
        let by_key = numbers.key_by("by-key", Utf8, move |r| {
            assert!(left.fetch_sub(1, Ordering::Relaxed) != 1, "the panic that was asked for");
            r.value.0.clone()
        });
        let by_key = by_key.group();
        by_key.count(COUNTS);
        let totals = by_key.aggregate(
            TOTALS,
            Json::<(i64, i64)>::new(),
            || (0, 0),
            |(count, sum), r| (count + 1, sum + r.value.1),
        );
        totals.changes().to(&output_of(name));
    })
}

/// The user's code panics once, at the record of that number of this process (`PROVE_PANIC`): a rollback.
fn panic_at() -> u64 {
    std::env::var("PROVE_PANIC").ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

/// Works. Arguments: BOOTSTRAP NAME FOLDER PROCESS
pub(crate) async fn run(arguments: &[String]) -> Result<(), Failure> {
    let [bootstrap, name, folder, process] = arguments else {
        return Err("an application has four arguments".into());
    };
    let is_verbose = std::env::var_os("PROVE_VERBOSE").is_some();
    tracing::subscriber::set_global_default(Teller { process: process.clone(), is_verbose })?;
    let stop = told_to_stop()?;
    let group_protocol = match std::env::var_os("PROVE_848") {
        Some(_) => GroupProtocol::Consumer,
        None => GroupProtocol::Classic,
    };
    let settings = AppSettings {
        group_protocol,
        workers: WORKERS,
        commit_interval: COMMIT,
        transaction_timeout: TRANSACTION,
        session_timeout: SESSION,
        heartbeat_interval: Duration::from_secs(1),
        purge_interval: Duration::from_secs(2),
        ..AppSettings::new(client(bootstrap, process)?, folder)
    };
    let app = App::start(topology(name)?, settings).await?;
    tokio::select! {
        ended = app.wait() => ended?,
        shown = show(&app) => shown,
        _ = stop => app.stop().await?,
    }
    Ok(())
}

/// Tells each change of the state, for ever.
async fn show(app: &App) {
    let mut last = None;
    loop {
        let tasks = match app.state() {
            AppState::Running { tasks } => Some(tasks),
            _ => None,
        };
        if tasks != last {
            println!("{}", serde_json::json!({ "running": tasks }));
            last = tasks;
        }
        ottla_env::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Resolves at the word; ends this process when whoever started it has ended, which closes our standard input.
fn told_to_stop() -> Result<oneshot::Receiver<()>, Failure> {
    let (tell, told) = oneshot::channel();
    spawn::thread("prove-parent", move || {
        let mut lines = std::io::stdin().lock().lines();
        if let Some(Ok(line)) = lines.next()
            && line == STOP
        {
            let _ = tell.send(()); // it ends already
        }
        lines.for_each(drop); // closed or broken: either way nobody is there
        process::exit(0);
    })?;
    Ok(told)
}

/// What is worth telling of an event.
fn happening(message: &str, fields: &Fields) -> Option<&'static str> {
    let reason = fields.get("reason");
    match message {
        "held" => Some("held"),
        "the outcome of a commit is not known" => Some("unknown"),
        "a transaction was rolled back" if reason.contains("time-out") => Some("timed_out"),
        "a transaction was rolled back" if reason.contains("another member") => Some("not_owner"),
        "a transaction was rolled back" => Some("rolled_back"),
        _ => None,
    }
}

/// Writes down what was restored, before the task runs; and what went wrong.
struct Teller {
    process: String,
    is_verbose: bool,
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Vec<(&'static str, String)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.rest.push((name, format!("{value:?}"))),
        }
    }
}

impl Fields {
    fn get(&self, name: &str) -> &str {
        self.rest.iter().find(|(found, _)| *found == name).map_or("null", |(_, value)| value)
    }
}

impl Subscriber for Teller {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("ottla_") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.message == "restored" {
            let (replayed, from, to) = (fields.get("replayed"), fields.get("from"), fields.get("to"));
            let task = fields.get("task");
            println!("{{\"task\": \"{task}\", \"replayed\": {replayed}, \"from\": {from}, \"to\": {to}}}");
        }
        if let Some(happened) = happening(&fields.message, &fields) {
            println!("{}", serde_json::json!({ "happened": happened }));
        }
        if self.is_verbose || *event.metadata().level() == Level::ERROR {
            let rest: Vec<String> =
                fields.rest.iter().map(|(name, value)| format!("{name}={value}")).collect();
            eprintln!("{}: {} {}", self.process, fields.message, rest.join(" "));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
