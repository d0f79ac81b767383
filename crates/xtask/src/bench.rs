//! `cargo xtask bench`: Ottla and Apache Kafka measured by the same foreign clients, one after the other, on
//! this machine; the figures go to docs/benchmarks.md.
//!
//! Kafka runs with its own JVM options, once as it comes (it does not sync before it acknowledges) and once
//! with a sync per write. Nothing else should run meanwhile; only figures of one run may be compared.

mod streams;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::broker::{Broker, Kind};
use crate::cold;
use crate::report;
use crate::run::{self, Workspace};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer messages: to see that it works, not to be quoted
    #[arg(long)]
    quick: bool,
    /// Only these parts: endpoint, kgo, disk; load, client, cold, streams and recovery have tables of their own and run
    /// only when named; recovery is Ottla's alone and needs 25 GiB of disk
    #[arg(long, value_delimiter = ',', default_value = "endpoint,kgo,disk")]
    parts: Vec<String>,
    /// Only these brokers: ottla, kafka, kafka-flush
    #[arg(long, value_delimiter = ',', default_value = "ottla,kafka,kafka-flush")]
    brokers: Vec<String>,
    #[command(flatten)]
    cold: cold::Load,
    #[command(flatten)]
    streams: streams::Asked,
    /// cold, streams: this binary as Ottla (and cold's client), instead of a release build of this tree
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Do not write docs/benchmarks.md
    #[arg(long)]
    dry: bool,
    /// Close with one JSON object
    #[arg(long)]
    json: bool,
}

/// The JVM options of Kafka's own start script.
pub(crate) const KAFKA_JVM: &str = "-Xms1g -Xmx1g -XX:+UseG1GC -XX:MaxGCPauseMillis=20";
/// How long a started broker rests before its idle memory is read.
const REST: Duration = Duration::from_secs(5);

/// Figures by name.
type Figures = BTreeMap<String, f64>;

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let workspace = Workspace::find()?;
    let is_cold = options.parts.iter().any(|part| part == "cold");
    if is_cold && options.parts.len() > 1 {
        anyhow::bail!("cold is measured alone: --parts cold");
    }
    let mut columns: Vec<(&str, Figures)> = Vec::new();
    if options.parts == ["streams"] {
        columns = streams::measure(&workspace, options)?;
    }
    for name in cold::columns(&options.brokers).into_iter().filter(|_| is_cold) {
        columns.push((name, cold::measure(&workspace, name, &options.cold, options.binary.as_deref())?));
    }
    let is_recovery = options.parts == ["recovery"];
    if is_recovery {
        columns.push(("ottla", recovery(&workspace, options)?));
    }
    let has_own = is_cold || is_recovery || options.parts == ["streams"];
    for name in options.brokers.iter().filter(|_| !has_own) {
        columns.push((name, measure(&workspace, name, options)?));
    }
    let disk =
        if options.parts.iter().any(|part| part == "disk") { disk(&workspace)? } else { Figures::new() };
    let text = format!("{}\n\n{}", table(&columns), disk_table(&disk));
    println!("{text}");
    if !options.dry && !options.quick {
        let parts = options.parts.join(",");
        let load = match () {
            () if is_cold => format!(" {}", options.cold.shown()),
            () if options.parts == ["streams"] => format!(" {}", options.streams.shown()),
            () => String::new(),
        };
        let text = format!("{}. `cargo xtask bench --parts {parts}{load}`\n\n{text}", report::stamp());
        let (name, title) = match is_cold {
            true => options.cold.section(),
            false => {
                let (name, title) = section(&options.parts);
                (name.to_owned(), title.to_owned())
            }
        };
        report::write_section(&workspace.path("docs/benchmarks.md"), &name, &title, &text)?;
    }
    if options.json {
        let brokers: BTreeMap<&str, &Figures> =
            columns.iter().map(|(name, figures)| (*name, figures)).collect();
        println!("{}", json!({"brokers": brokers, "disk": disk}));
    }
    Ok(true)
}

/// Which section of the document a run belongs to, and its title.
fn section(parts: &[String]) -> (&'static str, &'static str) {
    match parts {
        [part] if part == "load" => ("load", "Many connections, fetches and members"),
        [part] if part == "streams" => ("streams", "Streams beside Kafka Streams"),
        [part] if part == "recovery" => {
            ("recovery", "Starts after kills, and a broker with a million producers")
        }
        [part] if part == "client" => ("client", "Ottla's own client beside librdkafka"),
        _ => ("bench", "Beside Apache Kafka"),
    }
}

/// All figures of one broker.
fn measure(workspace: &Workspace, name: &str, options: &Options) -> Result<Figures> {
    let broker = match name {
        "ottla" => Broker::start(workspace, Kind::Ottla, None, &[])?,
        "kafka" => Broker::start(workspace, Kind::Kafka, None, &[("ORACLE_JVM", KAFKA_JVM)])?,
        "kafka-flush" => {
            let config = flush_config(workspace)?;
            Broker::start(workspace, Kind::Kafka, Some(config), &[("ORACLE_JVM", KAFKA_JVM)])?
        }
        other => anyhow::bail!("no broker {other}; there are ottla, kafka, kafka-flush"),
    };
    let mut figures = Figures::new();
    figures.insert("start to ready, s".into(), broker.started_in.as_secs_f64());
    std::thread::sleep(REST);
    figures.insert("idle memory, MiB".into(), mebibytes(broker.resident_bytes()?));
    for part in &options.parts {
        let mut command = match part.as_str() {
            "endpoint" => Command::new(workspace.path("compat/bench-endpoint")),
            "kgo" => Command::new(workspace.path("compat/bench-kgo")),
            "client" => Command::new(workspace.path("compat/bench-client")),
            "load" => {
                load(workspace, &broker, options.quick, &mut figures)?;
                continue;
            }
            _ => continue,
        };
        command.arg(&broker.bootstrap);
        if part == "client" {
            command.arg(workspace.release_binary("ottla", "ottla")?);
        }
        if part != "kgo" && options.quick {
            command.arg("--quick");
        }
        flatten(part, &object(&mut command)?, &mut figures);
    }
    figures.insert("memory after the run, MiB".into(), mebibytes(broker.resident_bytes()?));
    figures.insert("broker's processor time, s".into(), broker.cpu_seconds()?);
    Ok(figures)
}

/// Many connections, parked fetches and group members, from our own generator: other people's clients would need a
/// machine of their own for so many.
fn load(workspace: &Workspace, broker: &Broker, quick: bool, figures: &mut Figures) -> Result<()> {
    let binary = workspace.release_binary("ottla", "ottla")?;
    let many = if quick { "500" } else { "10000" };
    let (groups, large) = if quick { ("20", "50") } else { ("1000", "500") };
    let scenarios: [(&str, &[&str]); 6] = [
        ("idle connections", &["idle", "--count", many]),
        ("parked fetches", &["fetches", "--count", many]),
        ("classic groups", &["classic", "--groups", groups, "--members", "3"]),
        ("KIP-848 groups", &["consumer", "--groups", groups, "--members", "3"]),
        ("large classic group", &["classic", "--groups", "1", "--members", large]),
        ("large KIP-848 group", &["consumer", "--groups", "1", "--members", large]),
    ];
    let pid = broker.pid().to_string();
    for (name, arguments) in scenarios {
        let mut command = Command::new(&binary);
        command.args(["bench-load", "--bootstrap", &broker.bootstrap, "--pid", &pid]).args(arguments);
        flatten(&format!("load: {name}"), &object(&mut command)?, figures);
    }
    Ok(())
}

/// Starts after kills in the middle of everything, and a broker with many producers; each on a folder of its own.
fn recovery(workspace: &Workspace, options: &Options) -> Result<Figures> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => workspace.release_binary("ottla", "ottla")?,
    };
    let quick = options.quick;
    let mut figures = Figures::new();
    let (gib, count, transactions) = if quick { ("0.5", "20000", "200") } else { ("10", "1000000", "10000") };
    let scenarios: [(&str, &[&str]); 2] = [
        ("recovery", &["--gib", gib, "--partitions", "1000"]),
        ("producers", &["--count", count, "--transactions", transactions]),
    ];
    for (name, arguments) in scenarios {
        let folder = workspace.target.join(format!("bench-{name}-{}", std::process::id()));
        let mut command = Command::new(&binary);
        command.args(["bench-load", name, "--folder"]).arg(&folder).args(arguments);
        let measured = object(&mut command);
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        flatten(name, &measured?, &mut figures);
    }
    Ok(figures)
}

/// What this disk allows: appends of several sizes, each followed by fdatasync.
fn disk(workspace: &Workspace) -> Result<Figures> {
    let mut figures = Figures::new();
    let mut command = Command::new(workspace.path("compat/bench-disk"));
    flatten("disk", &object(command.arg(&workspace.target))?, &mut figures);
    Ok(figures)
}

/// Runs a program that prints one JSON object.
pub(crate) fn object(command: &mut Command) -> Result<Value> {
    run::step(&run::shown(command));
    let text = run::output(command)?;
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).with_context(|| format!("{} printed no JSON object", run::shown(command)))
}

/// Numbers of a JSON object, named by their path.
fn flatten(prefix: &str, value: &Value, figures: &mut Figures) {
    if let Some(number) = value.as_f64() {
        figures.insert(prefix.to_owned(), number);
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        flatten(&format!("{prefix}: {name}"), value, figures);
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Kafka with a sync per write.
fn flush_config(workspace: &Workspace) -> Result<PathBuf> {
    let path = workspace.target.join("kafka-flush.properties");
    std::fs::write(&path, "log.flush.interval.messages=1\n").with_context(|| path.display().to_string())?;
    Ok(path)
}

/// One row per figure, one column per broker.
fn table(columns: &[(&str, Figures)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut text = format!("| figure | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let mut rows: Vec<&String> = columns.iter().flat_map(|(_, figures)| figures.keys()).collect();
    rows.sort();
    rows.dedup();
    for row in rows {
        let cells: Vec<String> = columns
            .iter()
            .map(|(_, figures)| figures.get(row).map_or("-".into(), |number| rounded(*number)))
            .collect();
        text += &format!("| {row} | {} |\n", cells.join(" | "));
    }
    text
}

fn disk_table(figures: &Figures) -> String {
    if figures.is_empty() {
        return String::new();
    }
    let mut text = String::from("| disk, write and fdatasync | figure |\n|---|---|\n");
    figures.iter().for_each(|(name, number)| text += &format!("| {name} | {} |\n", rounded(*number)));
    text
}

/// Three digits that matter.
fn rounded(number: f64) -> String {
    let digits = if number.abs() >= 100.0 { 0 } else { 2 };
    format!("{number:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that nested figures are named by their path and that brokers stand side by side.
    #[test]
    fn figures_stand_side_by_side() {
        let mut figures = Figures::new();
        flatten("kgo", &json!({"plain_p50_ms": 0.5, "txn": {"txn_s": 300}, "bootstrap": "x"}), &mut figures);
        assert_eq!(figures.keys().collect::<Vec<_>>(), ["kgo: plain_p50_ms", "kgo: txn: txn_s"]);
        let text = table(&[("ottla", figures), ("kafka", Figures::new())]);
        assert!(text.contains("| kgo: txn: txn_s | 300 | - |"), "{text}");
    }
}
