//! How `ottla log dump` shows what it meets: lines for people, or JSON objects.
//!
//! A filter holds back files and frames until something in them passes it; damage is always shown.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ottla_broker::dump::{
    DamagedBatch, DamagedBytes, Durability, FileEnd, FileFacts, FilesFacts, Found, FrameFacts, SnapshotInfo,
    TopicName, section_facts,
};
use ottla_protocol::batch::TimestampType;
use ottla_protocol::entry::{Entry, EntryKind};
use ottla_protocol::record::{Record, records_of};
use ottla_protocol::types::{TopicIdPartition, Uuid};
use serde_json::{Map, Value, json};

use super::records::{self, Kind};
use super::{Dump, Offsets};
use crate::{output, text};

/// Most bytes that a compressed batch may grow to when its records are shown.
const RECORDS_BYTES_MAX: usize = 256 << 20;
/// Most bytes of a key or value that a line shows; JSON has all of them.
const LINE_BYTES_MAX: usize = 200;
/// Topic id of the control log.
const CONTROL_LOG: Uuid = Uuid(*b"ottla.controllog");

/// A snapshot while its chunks go by.
struct ShownSnapshot {
    name: String,
    info: SnapshotInfo,
    files: FilesFacts,
    header: Option<[u64; 4]>,
    /// Chunks and bytes by kind of section.
    sections: BTreeMap<u8, (&'static str, u64, u64)>,
    unreadable: Option<String>,
}

/// Shows one thing after the other.
pub(super) struct Show {
    json: bool,
    with_records: bool,
    topic: Option<String>,
    partition: Option<i32>,
    offsets: Option<Offsets>,
    names: BTreeMap<Uuid, TopicName>,
    /// The file that is gone through.
    file: String,
    /// Its frame.
    frame: Option<FrameFacts>,
    /// What is shown before the next thing that passes the filter.
    held: Vec<Value>,
    snapshot: Option<ShownSnapshot>,
    saw_damage: bool,
}

impl Show {
    pub(super) fn new(options: &Dump, names: BTreeMap<Uuid, TopicName>) -> Self {
        let place = options.topic.as_ref();
        Self {
            json: options.json,
            with_records: options.records,
            topic: place.map(|place| place.topic.clone()),
            partition: options.partition.or(place.and_then(|place| place.partition)),
            offsets: options.offsets,
            names,
            file: String::new(),
            frame: None,
            held: Vec::new(),
            snapshot: None,
            saw_damage: false,
        }
    }

    /// Whether anything shown was damaged.
    pub(super) fn saw_damage(&self) -> bool {
        self.saw_damage
    }

    fn is_filtered(&self) -> bool {
        self.topic.is_some() || self.partition.is_some() || self.offsets.is_some()
    }

    /// Shows what was met.
    pub(super) fn found(&mut self, found: Found) -> Result<()> {
        if !matches!(found, Found::SnapshotChunk(_)) {
            self.end()?;
        }
        match found {
            Found::File(facts) => {
                self.file = facts.file.file_name();
                self.held.clear();
                self.hold(file_json(&facts))
            }
            Found::Frame(facts) => {
                self.frame = Some(facts);
                self.held.retain(|held| held["type"] == "file");
                let shown = frame_json(&self.file, &facts);
                self.hold(shown)
            }
            Found::Batch(entry) => self.batch(&entry),
            Found::DamagedBatch(batch) => {
                self.saw_damage = true;
                let shown = self.damaged_batch_json(&batch);
                self.show(shown)
            }
            Found::Files(files) => match self.is_filtered() {
                true => Ok(()),
                false => {
                    let frame = self.frame.map(|frame| frame.frame_sequence.0);
                    self.show(files_json(&files, json!({ "file": self.file, "frame": frame })))
                }
            },
            Found::Damage(damage) => {
                self.saw_damage = true;
                self.held.retain(|held| held["type"] == "file");
                let shown = damage_json(&self.file, &damage);
                self.show(shown)
            }
            Found::End(end) => self.file_end(end),
            Found::Snapshot { name, info, files } => {
                self.snapshot = Some(ShownSnapshot {
                    name,
                    info,
                    files,
                    header: None,
                    sections: BTreeMap::new(),
                    unreadable: None,
                });
                Ok(())
            }
            Found::SnapshotChunk(chunk) => {
                self.chunk(&chunk);
                Ok(())
            }
            Found::Refused { name, what, is_damage } => {
                self.saw_damage |= is_damage;
                self.file.clone_from(&name);
                self.held.clear();
                self.show(json!({ "type": "refused", "file": name, "what": what, "damaged": is_damage }))
            }
            Found::Gone { name } => self.show(json!({ "type": "gone", "file": name })),
        }
    }

    /// Shows now what has no end of its own.
    pub(super) fn end(&mut self) -> Result<()> {
        let Some(snapshot) = self.snapshot.take() else { return Ok(()) };
        if self.is_filtered() {
            return Ok(());
        }
        self.saw_damage |= snapshot.unreadable.is_some();
        self.show(snapshot_json(&snapshot))
    }

    fn chunk(&mut self, chunk: &[u8]) {
        let Some(snapshot) = &mut self.snapshot else { return };
        match section_facts(chunk) {
            Ok(facts) => {
                snapshot.header = snapshot.header.or(facts.header);
                let (_, chunks, bytes) = snapshot.sections.entry(facts.kind).or_insert((facts.name, 0, 0));
                *chunks += 1;
                *bytes += chunk.len() as u64;
            }
            Err(why) => snapshot.unreadable = Some(why),
        }
    }

    fn file_end(&mut self, end: FileEnd) -> Result<()> {
        self.held.retain(|held| held["type"] == "file");
        if self.is_filtered() && !end.is_torn {
            return Ok(());
        }
        self.show(json!({ "type": "end", "file": self.file, "position": end.at, "torn": end.is_torn }))
    }

    /// Keeps a heading back while a filter may leave nothing below it.
    fn hold(&mut self, value: Value) -> Result<()> {
        if self.is_filtered() {
            self.held.push(value);
            return Ok(());
        }
        self.show(value)
    }

    fn show(&mut self, value: Value) -> Result<()> {
        for held in std::mem::take(&mut self.held) {
            self.write(&held)?;
        }
        self.write(&value)
    }

    fn write(&self, value: &Value) -> Result<()> {
        let mut line = if self.json { serde_json::to_string(value)? } else { line(value) };
        line.push('\n');
        output::bytes(line.as_bytes())
    }

    fn batch(&mut self, entry: &Entry) -> Result<()> {
        let kind = self.kind_of(entry);
        if entry.kind == EntryKind::Control {
            self.learn_names(entry);
        }
        if !self.passes(entry) {
            return Ok(());
        }
        let shown = self.batch_json(entry);
        self.show(shown)?;
        if kind == Kind::Data && !self.with_records {
            return Ok(());
        }
        let records = match records_of(&entry.header, &entry.tail, RECORDS_BYTES_MAX) {
            Ok(records) => records,
            Err(error) => return self.unreadable(entry, &error.to_string()),
        };
        for record in records {
            match record {
                Ok(record) if self.offsets.is_none_or(|wanted| wanted.has(record.offset)) => {
                    let shown = self.record_json(entry, kind, &record);
                    self.show(shown)?;
                }
                Ok(_) => {}
                Err(error) => return self.unreadable(entry, &error.to_string()),
            }
        }
        Ok(())
    }

    /// The batch is what its writer made, but its records cannot be read.
    fn unreadable(&mut self, entry: &Entry, why: &str) -> Result<()> {
        let place = self.place(&entry.partition);
        self.show(merge(
            json!({ "type": "unreadable", "base_offset": entry.header.base_offset, "what": why }),
            place,
        ))
    }

    fn kind_of(&self, entry: &Entry) -> Kind {
        if entry.kind == EntryKind::Control || entry.partition.topic_id == CONTROL_LOG {
            return Kind::Control;
        }
        if entry.header.is_control() {
            return Kind::Markers;
        }
        match self.names.get(&entry.partition.topic_id).map(|topic| topic.role) {
            Some(1) => Kind::Groups,
            Some(2) => Kind::Transactions,
            _ => Kind::Data,
        }
    }

    /// Control records name the topics of what follows.
    fn learn_names(&mut self, entry: &Entry) {
        let Ok(records) = records_of(&entry.header, &entry.tail, RECORDS_BYTES_MAX) else { return };
        for (id, topic) in records.flatten().filter_map(|record| records::named_topic(&record)) {
            if let Some((name, role)) = topic {
                self.names.insert(id, TopicName { name, role });
            }
        }
    }

    fn passes(&self, entry: &Entry) -> bool {
        let (first, last) = (entry.header.base_offset, entry.last_offset());
        self.is_wanted(&entry.partition)
            && self.offsets.is_none_or(|wanted| first <= wanted.last && wanted.first <= last)
    }

    fn is_wanted(&self, at: &TopicIdPartition) -> bool {
        let named = self.names.get(&at.topic_id).map(|topic| topic.name.as_str());
        let is_topic = self.topic.as_ref().is_none_or(|topic| {
            named == Some(topic)
                || at.topic_id.to_string() == *topic
                || (topic == "@control" && at.topic_id == CONTROL_LOG)
        });
        is_topic && self.partition.is_none_or(|partition| partition == at.partition)
    }

    fn place(&self, at: &TopicIdPartition) -> Value {
        let name = match at.topic_id {
            CONTROL_LOG => Some("@control"),
            id => self.names.get(&id).map(|topic| topic.name.as_str()),
        };
        json!({ "topic": name, "topic_id": at.topic_id.to_string(), "partition": at.partition })
    }

    fn batch_json(&self, entry: &Entry) -> Value {
        let header = &entry.header;
        let codec = header.codec().map_or_else(|_| "unknown".to_owned(), |codec| format!("{codec:?}"));
        let shown = json!({
            "type": "batch",
            "file": self.file,
            "frame": self.frame.map(|frame| frame.frame_sequence.0),
            "kind": kind_word(entry.kind),
            "base_offset": header.base_offset,
            "last_offset": header.last_offset(),
            "records": header.records_count,
            "bytes": entry.batch_bytes(),
            "leader_epoch": header.partition_leader_epoch,
            "codec": codec.to_lowercase(),
            "append_time": header.timestamp_type() == TimestampType::LogAppendTime,
            "base_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp,
            "delete_horizon": header.has_delete_horizon(),
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "transactional": header.is_transactional(),
            "control": header.is_control(),
        });
        merge(shown, self.place(&entry.partition))
    }

    fn record_json(&self, entry: &Entry, kind: Kind, record: &Record) -> Value {
        let mut fields = Map::new();
        fields.insert("type".to_owned(), json!("record"));
        fields.insert("offset".to_owned(), json!(record.offset));
        fields.insert("timestamp".to_owned(), json!(record.timestamp));
        match records::decode(kind, record) {
            Ok(Some((what, decoded))) => {
                fields.insert("what".to_owned(), json!(what));
                fields.insert("decoded".to_owned(), decoded);
            }
            other => {
                if let Err(error) = other {
                    fields.insert("undecodable".to_owned(), json!(error.to_string()));
                }
                put_bytes(&mut fields, "key", record.key.as_deref());
                put_bytes(&mut fields, "value", record.value.as_deref());
                let headers = record.headers.iter().map(|header| {
                    json!([String::from_utf8_lossy(&header.key), header.value.as_deref().map(lossless)])
                });
                fields.insert("headers".to_owned(), headers.collect());
            }
        }
        merge(Value::Object(fields), self.place(&entry.partition))
    }

    fn damaged_batch_json(&self, batch: &DamagedBatch) -> Value {
        let shown = json!({
            "type": "damaged_batch",
            "file": self.file,
            "frame": self.frame.map(|frame| frame.frame_sequence.0),
            "kind": kind_word(batch.kind),
            "position": batch.at,
            "bytes": batch.bytes,
            "base_offset": batch.base_offset,
            "last_offset": batch.last_offset,
        });
        merge(shown, self.place(&batch.partition))
    }
}

impl Offsets {
    fn has(&self, offset: i64) -> bool {
        (self.first..=self.last).contains(&offset)
    }
}

fn merge(into: Value, more: Value) -> Value {
    match (into, more) {
        (Value::Object(mut into), Value::Object(more)) => {
            into.extend(more);
            Value::Object(into)
        }
        (into, _) => into,
    }
}

/// Text where the bytes are text, else base64 in an object.
fn lossless(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!({ "base64": text::base64(bytes) }), |text| json!(text))
}

fn put_bytes(fields: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(std::str::from_utf8) {
        None => fields.insert(name.to_owned(), Value::Null),
        Some(Ok(text)) => fields.insert(name.to_owned(), json!(text)),
        Some(Err(_)) => fields.insert(format!("{name}_base64"), json!(bytes.map(text::base64))),
    };
}

fn kind_word(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Batch => "batch",
        EntryKind::Control => "control",
        EntryKind::PartitionLeave => "partition_leave",
        EntryKind::PartitionEnter => "partition_enter",
        EntryKind::Files => "files",
    }
}

fn file_json(facts: &FileFacts) -> Value {
    let previous = facts
        .previous
        .map(|(file, end, frame)| json!({ "file": file.file_name(), "end": end, "last_frame": frame.0 }));
    json!({
        "type": "file",
        "file": facts.file.file_name(),
        "bytes": facts.bytes,
        "rewritten": facts.file.is_data(),
        "log_id": format!("{:016x}", facts.log_id),
        "opening": facts.epoch,
        "synced": facts.durability == Durability::Fsync,
        "sealed_end": facts.sealed_end,
        "previous": previous,
        "header_copy_damaged": facts.header_copy_damaged,
    })
}

fn frame_json(file: &str, facts: &FrameFacts) -> Value {
    json!({
        "type": "frame",
        "file": file,
        "position": facts.at,
        "bytes": facts.bytes,
        "frame": facts.frame_sequence.0,
        "opening": facts.epoch,
        "decision": facts.position,
        "time": facts.shard_time,
        "batches": facts.entries,
    })
}

fn damage_json(file: &str, damage: &DamagedBytes) -> Value {
    json!({
        "type": "damage",
        "file": file,
        "position": damage.at,
        "resumes_at": damage.resumes_at,
        "what": damage.what,
    })
}

fn files_json(files: &FilesFacts, more: Value) -> Value {
    let added = files.added.iter().map(|(file, end, newest)| {
        json!({ "file": file.file_name(), "sealed_end": end, "newest_source": newest.file_name() })
    });
    let shown = json!({
        "type": "files_change",
        "chain": files.chain,
        "removed": files.removed.iter().map(|file| file.file_name()).collect::<Vec<_>>(),
        "added": added.collect::<Value>(),
    });
    merge(shown, more)
}

fn snapshot_json(snapshot: &ShownSnapshot) -> Value {
    let sections = snapshot.sections.iter().map(
        |(kind, (name, chunks, bytes))| json!({ "kind": kind, "what": name, "chunks": chunks, "bytes": bytes }),
    );
    let [_, topics, partitions, producers] = snapshot.header.unwrap_or_default();
    let listed: BTreeSet<String> = snapshot.files.added.iter().map(|(file, ..)| file.file_name()).collect();
    json!({
        "type": "snapshot",
        "file": snapshot.name,
        "frame": snapshot.info.frame_sequence.0,
        "opening": snapshot.info.epoch,
        "decision": snapshot.info.position,
        "time": snapshot.info.shard_time,
        "topics": topics,
        "partitions": partitions,
        "producers": producers,
        "chain": snapshot.files.chain,
        "listed_files": listed,
        "sections": sections.collect::<Value>(),
        "unreadable": snapshot.unreadable,
    })
}

/// One thing as a line for people.
fn line(value: &Value) -> String {
    let number = |name: &str| value[name].as_i64().unwrap_or_default();
    let word = |name: &str| value[name].as_str().unwrap_or_default();
    match word("type") {
        "file" => file_line(value),
        "frame" => format!(
            "  frame {} at byte {}: opening {}, decision {}, {}, {}, {} bytes",
            value["frame"],
            value["position"],
            value["opening"],
            value["decision"],
            text::time(number("time")),
            batches(number("batches")),
            value["bytes"],
        ),
        "batch" => batch_line(value),
        "record" => record_line(value),
        "damaged_batch" => format!(
            "    {} DAMAGED: its {} bytes at byte {} are not what was written",
            range_word(value),
            value["bytes"],
            value["position"],
        ),
        "unreadable" => format!("      its records cannot be read: {}", word("what")),
        "files_change" => format!(
            "    files: all from {} on are live; out: {}; in: {}",
            value["chain"],
            names(&value["removed"]),
            names(&value["added"]),
        ),
        "damage" => format!(
            "  DAMAGED at byte {}: {}; {}",
            value["position"],
            word("what"),
            value["resumes_at"].as_u64().map_or_else(
                || "no frame of this file lies behind it".to_owned(),
                |at| format!("frames go on at byte {at}"),
            ),
        ),
        "end" if value["torn"] == true => format!(
            "  a frame at byte {} is not written to its end: its writer was killed, or is at work",
            value["position"],
        ),
        "end" => format!("  end at byte {}", value["position"]),
        "snapshot" => snapshot_line(value),
        "refused" => format!("{}: {}", word("file"), word("what")),
        "gone" => format!("{}: a broker has removed it meanwhile", word("file")),
        _ => value.to_string(),
    }
}

fn batches(count: i64) -> String {
    if count == 1 { "1 batch".to_owned() } else { format!("{count} batches") }
}

fn names(list: &Value) -> String {
    let listed = list.as_array().into_iter().flatten();
    let names: Vec<&str> = listed.filter_map(|name| name.as_str().or(name["file"].as_str())).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

fn file_line(value: &Value) -> String {
    let word = |name: &str| value[name].as_str().unwrap_or_default();
    let previous = value["previous"]["file"].as_str().map_or_else(
        || if value["rewritten"] == true { "rewritten".to_owned() } else { "the first".to_owned() },
        |file| {
            format!(
                "behind {file} (frame {}, byte {})",
                value["previous"]["last_frame"], value["previous"]["end"]
            )
        },
    );
    format!(
        "{}: log {}, opening {}, {}, {}{}{}",
        word("file"),
        word("log_id"),
        value["opening"],
        value["sealed_end"]
            .as_u64()
            .map_or_else(|| "in use".to_owned(), |end| format!("sealed at byte {end}")),
        previous,
        if value["synced"] == true { "" } else { ", frames not synced" },
        if value["header_copy_damaged"] == true { ", ONE COPY OF ITS HEADER IS DAMAGED" } else { "" },
    )
}

/// Topic, partition and offsets.
fn range_word(value: &Value) -> String {
    let topic = value["topic"].as_str().or(value["topic_id"].as_str()).unwrap_or_default();
    format!("{topic}/{} {}..{}", value["partition"], value["base_offset"], value["last_offset"])
}

fn batch_line(value: &Value) -> String {
    let mut words = vec![format!("    {}:", range_word(value))];
    let count = value["records"].as_i64().unwrap_or_default();
    words.push(if count == 1 { "1 record,".to_owned() } else { format!("{count} records,") });
    words.push(format!("{} bytes, leader epoch {},", value["bytes"], value["leader_epoch"]));
    words.push(text::time(value["max_timestamp"].as_i64().unwrap_or_default()));
    if value["append_time"] == true {
        words.push("(append time)".to_owned());
    }
    if value["producer_id"].as_i64().is_some_and(|id| id >= 0) {
        words.push(format!("producer {}/{}", value["producer_id"], value["producer_epoch"]));
        if value["base_sequence"].as_i64().is_some_and(|sequence| sequence >= 0) {
            words.push(format!("sequence {}", value["base_sequence"]));
        }
    }
    let flags =
        [("transactional", "transactional"), ("control", "marker"), ("delete_horizon", "delete horizon")];
    words.extend(flags.iter().filter(|(name, _)| value[*name] == true).map(|(_, word)| (*word).to_owned()));
    if value["codec"] != "none" {
        words.push(value["codec"].as_str().unwrap_or_default().to_owned());
    }
    words.join(" ")
}

fn record_line(value: &Value) -> String {
    let head = format!("      {}", value["offset"]);
    if let Some(what) = value["what"].as_str() {
        return format!("{head} {what}: {}", fields_line(&value["decoded"]));
    }
    let shown = |name: &str| match (&value[name], &value[format!("{name}_base64")]) {
        (Value::String(text), _) => cut(text),
        (_, Value::String(text)) => format!("base64:{}", cut(text)),
        _ => "null".to_owned(),
    };
    let headers = value["headers"].as_array().filter(|headers| !headers.is_empty());
    let headers =
        headers.map_or_else(String::new, |headers| format!(" headers={}", cut(&json!(headers).to_string())));
    let odd = value["undecodable"].as_str().map_or_else(String::new, |why| format!(" (not decoded: {why})"));
    format!("{head} key={} value={}{headers}{odd}", shown("key"), shown("value"))
}

fn cut(text: &str) -> String {
    let shown: String = text.chars().take(LINE_BYTES_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(LINE_BYTES_MAX).is_some() { format!("{shown}…") } else { shown }
}

/// An object as `name=value`, without what is absent.
fn fields_line(value: &Value) -> String {
    let Value::Object(fields) = value else { return value.to_string() };
    let words = fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| match value {
        Value::String(text) if !text.is_empty() && !text.contains(char::is_whitespace) => {
            format!("{name}={}", cut(text))
        }
        other => format!("{name}={other}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn snapshot_line(value: &Value) -> String {
    let mut lines = vec![format!(
        "{}: up to frame {} (decision {}, {}), {} topics, {} partitions, {} producers",
        value["file"].as_str().unwrap_or_default(),
        value["frame"],
        value["decision"],
        text::time(value["time"].as_i64().unwrap_or_default()),
        value["topics"],
        value["partitions"],
        value["producers"],
    )];
    lines.push(format!("  files: all from {} on, and {}", value["chain"], names(&value["listed_files"])));
    for section in value["sections"].as_array().into_iter().flatten() {
        lines.push(format!(
            "  {}: {} bytes in {} chunks",
            section["what"].as_str().unwrap_or_default(),
            section["bytes"],
            section["chunks"],
        ));
    }
    if let Some(why) = value["unreadable"].as_str() {
        lines.push(format!("  NOT READABLE: {why}"));
    }
    lines.join("\n")
}
