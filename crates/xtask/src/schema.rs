//! `cargo xtask schema-check`: is our schema, field by field, what the published Kafka jars define?
//!
//! Reads the JSON definitions inside the jars (through the `unzip` program; nothing is written) and the notation
//! of `crates/ottla-protocol/schema`. Both sides are spread into the same flat facts, one per message and one per
//! field along each path, with version ranges cut to those that exist; the two lists must be equal.

mod definitions;
#[allow(dead_code)] // shared with the protocol's build script, which uses all of it
#[path = "../../ottla-protocol/build/notation.rs"]
mod notation;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use self::definitions::Definition;
use self::notation::{Kind, Message, Range, Type};
use crate::run::{self, Workspace};

/// Jars with definitions that we have too.
const JARS: [&str; 4] =
    ["kafka-clients", "kafka-group-coordinator", "kafka-share-coordinator", "kafka-transaction-coordinator"];

/// Requests that brokers take and we leave out, with the reason.
const LEFT_OUT: [(&str, &str); 2] = [
    ("GetTelemetrySubscriptions", "announced only by a broker with a telemetry plugin"),
    ("PushTelemetry", "announced only by a broker with a telemetry plugin"),
];

/// Where the jars are.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Folder with kafka-clients-*.jar and the coordinators' jars [default: the oracle's, see compat/]
    #[arg(long, value_name = "DIR")]
    jar_dir: Option<PathBuf>,
}

/// One line per message or field: its path, and everything that must be equal.
type Facts = BTreeMap<String, String>;

/// Runs the command; true when both sides are equal.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let jar_dir = options.jar_dir.clone().unwrap_or_else(default_jar_dir);
    let definitions = read_jars(&jar_dir)?;
    let ours = read_schema(&Workspace::find()?.path("crates/ottla-protocol/schema"))?;
    let problems = compare(&ours, &definitions)?;
    for problem in &problems {
        println!("{problem}");
    }
    let fields: usize = ours.iter().map(|message| our_facts(message).len() - 1).sum();
    println!("{} messages, {fields} fields compared, {} differences", ours.len(), problems.len());
    Ok(problems.is_empty())
}

/// Where `compat/kafka-oracle install` puts the jars.
pub(crate) fn default_jar_dir() -> PathBuf {
    let compat = env::var_os("COMPAT_DIR").map(PathBuf::from).unwrap_or_else(|| {
        let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        home.join(".cache/ottla-compat")
    });
    compat.join("kafka-4.4.0/libs")
}

fn read_jars(folder: &Path) -> Result<BTreeMap<String, Definition>> {
    let mut definitions = BTreeMap::new();
    let listing = fs::read_dir(folder)
        .with_context(|| format!("no jars in {} (--jar-dir, or `kafka-oracle install`)", folder.display()))?;
    let files: Vec<PathBuf> = listing.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    for name in JARS {
        // The name, a dash, a version: not `kafka-clients-something-1.0.jar`.
        let is_it = |path: &&PathBuf| {
            let file = path.file_name().and_then(|f| f.to_str()).unwrap_or_default();
            let version = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
            file.ends_with(".jar") && version.is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()))
        };
        let jar =
            files.iter().find(is_it).with_context(|| format!("no {name}-*.jar in {}", folder.display()))?;
        for entry in run::output(Command::new("unzip").arg("-Z1").arg(jar))?.lines() {
            if entry.starts_with("common/message/") && entry.ends_with(".json") {
                let text = run::output(Command::new("unzip").arg("-p").arg(jar).arg(entry))?;
                let definition = Definition::parse(&text).with_context(|| entry.to_string())?;
                definitions.insert(definition.name.clone(), definition);
            }
        }
    }
    Ok(definitions)
}

fn read_schema(folder: &Path) -> Result<Vec<Message>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    // The control log's records are ours alone.
    files.retain(|f| {
        f.extension().is_some_and(|e| e == "schema") && f.file_stem().is_some_and(|s| s != "control")
    });
    files.sort();
    let mut messages = Vec::new();
    for file in files {
        match notation::parse(&fs::read_to_string(&file)?) {
            Ok(parsed) => messages.extend(parsed),
            Err(error) => bail!("{}: {error}", file.display()),
        }
    }
    Ok(messages)
}

fn compare(ours: &[Message], definitions: &BTreeMap<String, Definition>) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for definition in definitions.values().filter(|d| d.is_wanted(definitions)) {
        let left_out = LEFT_OUT.iter().any(|(api, _)| definition.api_name() == *api);
        if !left_out && !ours.iter().any(|message| message.name == definition.name) {
            problems.push(format!("{}: missing in our schema", definition.name));
        }
    }
    for message in ours {
        let Some(definition) = definitions.get(&message.name) else {
            problems.push(format!("{}: in none of the jars", message.name));
            continue;
        };
        let (mine, theirs) = (our_facts(message), definition.facts(definitions)?);
        let paths: std::collections::BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        for path in paths {
            let (mine, theirs) = (mine.get(path), theirs.get(path));
            if mine != theirs {
                let show =
                    |fact: Option<&String>| fact.map_or("nothing".to_string(), |fact| format!("`{fact}`"));
                problems.push(format!("{path}: ours {}, Kafka's {}", show(mine), show(theirs)));
            }
        }
    }
    Ok(problems)
}

/// The fact of a whole message.
fn message_fact(kind: &str, number: Option<i64>, versions: Range, flexible: Range) -> String {
    format!("{kind} {number:?} versions {} flexible {}", shown(versions), shown(flexible.within(versions)))
}

/// What must be equal of a field, already in a form that both sides reach.
struct FieldFact<'a> {
    kind: &'a str,
    versions: Range,
    nullable: Range,
    tag: Option<u32>,
    default: Option<String>,
    ignorable: bool,
    inflexible: bool,
}

impl FieldFact<'_> {
    fn text(&self) -> String {
        let mut text = format!("{} {}", self.kind, shown(self.versions));
        let nullable = self.nullable.within(self.versions);
        if !nullable.is_empty() {
            text += &format!(" nullable {}", shown(nullable));
        }
        if let Some(tag) = self.tag {
            text += &format!(" tag {tag}");
        }
        if self.inflexible {
            text += " inflexible";
        }
        if self.ignorable {
            text += " ignorable";
        }
        if let Some(default) = canonical_default(self.kind, self.default.as_deref()) {
            text += &format!(" = {default}");
        }
        text
    }
}

/// The default in one spelling; none when it is the type's empty value.
fn canonical_default(kind: &str, default: Option<&str>) -> Option<String> {
    let text = default?.trim();
    let empty = match kind {
        "bool" => "false",
        "float64" => "0",
        _ if kind.starts_with("int") || kind.starts_with("uint") => "0",
        _ => "",
    };
    let number = match text.strip_prefix("0x") {
        Some(hex) if empty == "0" => i128::from_str_radix(hex, 16).ok(),
        _ => text.parse().ok(),
    };
    let text = match number {
        Some(number) if empty == "0" => number.to_string(),
        _ => text.trim_matches('"').to_string(),
    };
    (text != empty && !(kind == "float64" && text == "0.0")).then_some(text)
}

fn shown(range: Range) -> String {
    if range.is_empty() { "none".into() } else { format!("{}-{}", range.first, range.last) }
}

fn our_facts(message: &Message) -> Facts {
    let kind = match message.kind {
        Kind::Request => "request",
        Kind::Response => "response",
        Kind::Header => "header",
        Kind::Key => "coordinator-key",
        Kind::Value => "coordinator-value",
        Kind::Data => "data",
    };
    let number = message.number.map(i64::from);
    let fact = message_fact(kind, number, message.versions, message.flexible);
    let mut facts = Facts::from([(message.name.clone(), fact)]);
    walk_ours(message, &message.name, &message.name, message.versions, &mut facts);
    facts
}

fn walk_ours(message: &Message, structure: &str, path: &str, versions: Range, facts: &mut Facts) {
    for field in message.find(structure).map(|s| s.fields.as_slice()).unwrap_or_default() {
        let here = field.versions.within(versions);
        if field.own || here.is_empty() {
            continue;
        }
        let path = format!("{path}.{}", field.name);
        let fact = FieldFact {
            kind: &type_text(&field.kind),
            versions: here,
            nullable: field.nullable,
            tag: field.tag,
            default: field.default.clone(),
            ignorable: field.ignorable,
            inflexible: field.inflexible,
        };
        facts.insert(path.clone(), fact.text());
        if let Some(name) = notation::struct_name(&field.kind) {
            walk_ours(message, name, &path, here, facts);
        }
    }
}

fn type_text(kind: &Type) -> String {
    match kind {
        Type::Plain(name) | Type::Struct(name) => name.clone(),
        Type::Array(element) => format!("[]{}", type_text(element)),
    }
}

#[cfg(test)]
mod tests;
