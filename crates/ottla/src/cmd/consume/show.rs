//! What is shown of a record.

use anyhow::Result;
use ottla_client::ConsumerRecord;
use serde_json::{Map, Value, json};

use crate::text;

/// What is shown.
pub(super) struct Shape {
    pub(super) json: bool,
    pub(super) keys: bool,
    pub(super) separator: String,
    pub(super) headers: bool,
    pub(super) offsets: bool,
    pub(super) timestamps: bool,
}

impl Shape {
    /// Appends a record and a line end.
    pub(super) fn show(&self, record: &ConsumerRecord, out: &mut Vec<u8>) -> Result<()> {
        if self.json {
            serde_json::to_writer(&mut *out, &as_json(record))?;
        } else {
            self.show_plain(record, out);
        }
        out.push(b'\n');
        Ok(())
    }

    fn show_plain(&self, record: &ConsumerRecord, out: &mut Vec<u8>) {
        if self.offsets {
            out.extend_from_slice(
                format!("{}:{}", record.topic_partition.partition, record.offset).as_bytes(),
            );
            out.extend_from_slice(self.separator.as_bytes());
        }
        if self.timestamps {
            out.extend_from_slice(text::time(record.timestamp).as_bytes());
            out.extend_from_slice(self.separator.as_bytes());
        }
        if self.headers {
            let headers = record.headers.iter().map(|header| match &header.value {
                Some(value) => format!("{}={}", header.key, String::from_utf8_lossy(value)),
                None => header.key.to_string(),
            });
            out.extend_from_slice(headers.collect::<Vec<_>>().join(",").as_bytes());
            out.extend_from_slice(self.separator.as_bytes());
        }
        if self.keys {
            out.extend_from_slice(record.key.as_deref().unwrap_or(b"null"));
            out.extend_from_slice(self.separator.as_bytes());
        }
        out.extend_from_slice(record.value.as_deref().unwrap_or(b"null"));
    }
}

/// A record as JSON; what is not UTF-8 is shown as base64 under a name of its own.
fn as_json(record: &ConsumerRecord) -> Value {
    let mut fields = Map::new();
    fields.insert("topic".to_owned(), json!(record.topic_partition.topic.as_str()));
    fields.insert("partition".to_owned(), json!(record.topic_partition.partition));
    fields.insert("offset".to_owned(), json!(record.offset));
    fields.insert("timestamp".to_owned(), json!(record.timestamp));
    insert(&mut fields, "key", record.key.as_deref());
    insert(&mut fields, "value", record.value.as_deref());
    let headers = record.headers.iter().map(|header| {
        let value = header.value.as_deref().map(|value| match std::str::from_utf8(value) {
            Ok(text) => json!(text),
            Err(_) => json!({ "base64": text::base64(value) }),
        });
        json!([header.key.as_str(), value])
    });
    fields.insert("headers".to_owned(), headers.collect());
    Value::Object(fields)
}

fn insert(fields: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(std::str::from_utf8) {
        None => fields.insert(name.to_owned(), Value::Null),
        Some(Ok(text)) => fields.insert(name.to_owned(), json!(text)),
        Some(Err(_)) => fields
            .insert(format!("{name}_base64"), json!(text::base64(bytes.expect("it was just looked at")))),
    };
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ottla_client::{Header, TopicPartition};

    use super::*;

    /// Proves that everything chosen is shown in order, and that bytes that are no text survive as base64.
    #[test]
    fn shapes() {
        let record = ConsumerRecord {
            topic_partition: TopicPartition::new("t", 3),
            offset: 7,
            leader_epoch: 0,
            timestamp: 0,
            key: Some(Bytes::from_static(b"k")),
            value: Some(Bytes::from_static(b"\xff")),
            headers: vec![Header { key: "h".into(), value: Some("1".into()) }],
        };
        let mut shape = Shape {
            json: false,
            keys: true,
            separator: "|".to_owned(),
            headers: true,
            offsets: true,
            timestamps: true,
        };
        let mut out = Vec::new();
        shape.show(&record, &mut out).expect("shown");
        assert_eq!(out, b"3:7|1970-01-01 00:00:00.000Z|h=1|k|\xff\n");
        shape.json = true;
        out.clear();
        shape.show(&record, &mut out).expect("shown");
        let value: Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!((&value["key"], &value["value_base64"]), (&json!("k"), &json!("/w==")));
        assert_eq!(value["headers"], json!([["h", "1"]]));
    }
}
