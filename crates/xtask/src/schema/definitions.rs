//! Kafka's message definitions: JSON with `//` comments, spread into the facts that are compared.
//!
//! An attribute that we do not know is an error: it could mean something on the wire.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::notation::Range;
use super::{Facts, FieldFact, message_fact};

/// Attributes of a field that say what is on the wire, and those that do not (from `entityType` on).
const ATTRIBUTES: [&str; 14] = [
    "name",
    "type",
    "versions",
    "nullableVersions",
    "taggedVersions",
    "tag",
    "default",
    "ignorable",
    "flexibleVersions",
    "fields",
    "entityType",
    "about",
    "mapKey",
    "zeroCopy",
];

/// A message as Kafka defines it.
pub(super) struct Definition {
    pub(super) name: String,
    json: Value,
}

impl Definition {
    /// Parses the text of a definition.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(&without_comments(text))?;
        Ok(Self { name: text_of(&json, "name").context("no name")?.to_string(), json })
    }

    /// The API's name: the message's without its kind.
    pub(super) fn api_name(&self) -> &str {
        let name = self.name.strip_suffix("Request").or_else(|| self.name.strip_suffix("Response"));
        name.unwrap_or(&self.name)
    }

    fn kind(&self) -> &str {
        text_of(&self.json, "type").unwrap_or_default()
    }

    /// Whether we must have it: what brokers take from clients, what answers that, and coordinator records.
    pub(super) fn is_wanted(&self, all: &BTreeMap<String, Self>) -> bool {
        match self.kind() {
            "request" => {
                let listeners = self.json.get("listeners").and_then(Value::as_array);
                let broker = listeners.is_some_and(|l| l.iter().any(|l| l == "broker"));
                broker && range(&self.json, "validVersions").is_ok_and(|range| !range.is_empty())
            }
            "response" => self.request(all).is_some_and(|request| request.is_wanted(all)),
            kind => kind.starts_with("coordinator-"),
        }
    }

    fn request<'a>(&self, all: &'a BTreeMap<String, Self>) -> Option<&'a Self> {
        all.get(&format!("{}Request", self.api_name()))
    }

    /// Versions that Kafka announces: without an unstable last one, which only the request marks.
    fn versions(&self, all: &BTreeMap<String, Self>) -> Result<Range> {
        let mut versions = range(&self.json, "validVersions")?;
        let marked = self.request(all).unwrap_or(self);
        if marked.json.get("latestVersionUnstable").is_some_and(is_true) {
            versions.last = versions.last.min(range(&marked.json, "validVersions")?.last - 1);
        }
        Ok(versions)
    }

    /// Everything that must be equal.
    pub(super) fn facts(&self, all: &BTreeMap<String, Self>) -> Result<Facts> {
        let versions = self.versions(all)?;
        let number = self.json.get("apiKey").and_then(Value::as_i64);
        let fact = message_fact(self.kind(), number, versions, range(&self.json, "flexibleVersions")?);
        let mut facts = Facts::from([(self.name.clone(), fact)]);
        self.walk(fields(&self.json), &self.name, versions, &mut facts)?;
        Ok(facts)
    }

    fn walk(&self, fields: &[Value], path: &str, versions: Range, facts: &mut Facts) -> Result<()> {
        ensure!(path.len() < 1000, "{path}: a structure inside itself");
        for field in fields {
            let name = text_of(field, "name").with_context(|| format!("{path}: a field without a name"))?;
            let path = format!("{path}.{name}");
            let (fact, here) = field_fact(field, versions).with_context(|| path.clone())?;
            if here.is_empty() {
                continue;
            }
            facts.insert(path.clone(), fact);
            let kind = text_of(field, "type").unwrap_or_default().trim_start_matches("[]");
            if kind.starts_with(|c: char| c.is_ascii_uppercase()) {
                let (inner, range) = self.structure(field, kind).with_context(|| path.clone())?;
                self.walk(inner, &path, here.within(range), facts)?;
            }
        }
        Ok(())
    }

    /// Fields of a structure: given with the field, or in common.
    fn structure<'a>(&'a self, field: &'a Value, name: &str) -> Result<(&'a [Value], Range)> {
        const ALWAYS: Range = Range { first: 0, last: i16::MAX };
        if field.get("fields").is_some() {
            return Ok((fields(field), ALWAYS));
        }
        let common = self.json.get("commonStructs").and_then(Value::as_array).context("no such structure")?;
        let found = common.iter().find(|s| text_of(s, "name") == Some(name)).context("no such structure")?;
        Ok((fields(found), if found.get("versions").is_some() { range(found, "versions")? } else { ALWAYS }))
    }
}

fn field_fact(field: &Value, outer: Range) -> Result<(String, Range)> {
    let attributes: &Map<String, Value> = field.as_object().context("not an object")?;
    if let Some(unknown) = attributes.keys().find(|key| !ATTRIBUTES.contains(&key.as_str())) {
        bail!("attribute {unknown} is not known here");
    }
    let tagged = range(field, "taggedVersions")?;
    let versions = if field.get("versions").is_some() { range(field, "versions")? } else { tagged };
    let here = versions.within(outer);
    let tag = field.get("tag").and_then(Value::as_u64).map(|tag| tag as u32);
    ensure!(tag.is_none() || tagged.within(outer) == here, "tagged in some of its versions only");
    let default = match field.get("default") {
        // A JSON null is no default to Kafka's generator, a "null" in quotes is.
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    };
    let fact = FieldFact {
        kind: text_of(field, "type").context("no type")?,
        versions: here,
        nullable: range(field, "nullableVersions")?,
        tag,
        default,
        ignorable: field.get("ignorable").is_some_and(is_true),
        inflexible: text_of(field, "flexibleVersions") == Some("none"),
    };
    Ok((fact.text(), here))
}

fn fields(json: &Value) -> &[Value] {
    json.get("fields").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text_of<'a>(json: &'a Value, key: &str) -> Option<&'a str> {
    json.get(key).and_then(Value::as_str)
}

fn is_true(value: &Value) -> bool {
    value == true || value == "true"
}

/// A range of versions; none when it is not given.
fn range(json: &Value, key: &str) -> Result<Range> {
    match text_of(json, key) {
        None | Some("none") => Ok(Range::NONE),
        Some(text) => Range::parse(text).with_context(|| format!("{key}: {text}")),
    }
}

/// JSON as serde_json reads it: comments outside of strings are dropped.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if !in_string && letter == '/' && letters.peek() == Some(&'/') {
            letters.by_ref().find(|c| *c == '\n');
            out.push('\n');
            continue;
        }
        if letter == '"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && letter == '\\' && !escaped;
        out.push(letter);
    }
    out
}
