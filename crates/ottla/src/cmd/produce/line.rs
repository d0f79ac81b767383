//! From a line to a record.

use std::io::{self, BufRead, Read};

use bytes::Bytes;
use ottla_client::{Header, Record};
use ottla_protocol::types::Text;
use serde_json::Value;

use crate::text;

/// Reads one line without its end; none at the end of the input. A line longer than `bytes_max` is an error.
pub(super) fn read_line(input: &mut dyn BufRead, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = input.take(bytes_max + 1).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    } else if read as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line is longer than {bytes_max} bytes"),
        ));
    }
    Ok(Some(line))
}

/// How lines are read.
pub(super) struct Parser {
    pub(super) topic: Text,
    pub(super) partition: Option<i32>,
    pub(super) json: bool,
    pub(super) separator: Option<String>,
    pub(super) headers: Vec<(String, String)>,
}

impl Parser {
    /// The record of a line.
    pub(super) fn record(&self, line: Vec<u8>) -> Result<Record, String> {
        let mut record = Record { partition: self.partition, ..Record::to(self.topic.clone()) };
        for (name, value) in &self.headers {
            record = record.header(name.as_str(), value.clone());
        }
        if self.json {
            return from_json(record, &line);
        }
        let line = Bytes::from(line);
        let Some(separator) = &self.separator else { return Ok(record.value(line)) };
        let at =
            find(&line, separator.as_bytes()).ok_or_else(|| format!("has no key separator {separator:?}"))?;
        Ok(record.key(line.slice(..at)).value(line.slice(at + separator.len()..)))
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    if needle.is_empty() {
        return None;
    }
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn from_json(mut record: Record, line: &[u8]) -> Result<Record, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("is not JSON: {error}"))?;
    let Value::Object(fields) = value else { return Err("is not a JSON object".to_owned()) };
    for (name, value) in fields {
        match name.as_str() {
            "key" => record.key = bytes(value),
            "value" => record.value = bytes(value),
            "key_base64" => record.key = Some(from_base64(&name, &value)?),
            "value_base64" => record.value = Some(from_base64(&name, &value)?),
            "headers" => record.headers.extend(headers(value)?),
            "partition" => {
                let number = value.as_i64().and_then(|number| i32::try_from(number).ok()).filter(|n| *n >= 0);
                record.partition = Some(number.ok_or("`partition` is not a partition")?);
            }
            "timestamp" => {
                record.timestamp = Some(value.as_i64().ok_or("`timestamp` is not a time in milliseconds")?);
            }
            "topic" | "offset" => {} // what `consume --json` prints can be fed back
            other => return Err(format!("has an unknown field `{other}`")),
        }
    }
    Ok(record)
}

/// A string's bytes; null is none; anything else is its JSON text.
fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(Bytes::from(text)),
        other => Some(Bytes::from(other.to_string())),
    }
}

/// The bytes of a string of base64.
fn from_base64(name: &str, value: &Value) -> Result<Bytes, String> {
    let bytes = value.as_str().and_then(text::from_base64);
    bytes.map(Bytes::from).ok_or_else(|| format!("`{name}` is not base64"))
}

/// A header's bytes: as `bytes`, or `{"base64": TEXT}` as `consume --json` prints what is not UTF-8.
fn header_bytes(value: Value) -> Result<Option<Bytes>, String> {
    match &value {
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("base64") => {
            from_base64("base64", &fields["base64"]).map(Some)
        }
        _ => Ok(bytes(value)),
    }
}

fn headers(value: Value) -> Result<Vec<Header>, String> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| Ok(Header { key: Text::from(key), value: header_bytes(value)? }))
            .collect(),
        Value::Array(pairs) => pairs
            .into_iter()
            .map(|pair| match pair {
                Value::Array(pair) => match <[Value; 2]>::try_from(pair) {
                    Ok([Value::String(key), value]) => {
                        Ok(Header { key: Text::from(key), value: header_bytes(value)? })
                    }
                    _ => Err("`headers` holds something that is not [name, value]".to_owned()),
                },
                _ => Err("`headers` holds something that is not [name, value]".to_owned()),
            })
            .collect(),
        _ => Err("`headers` is neither an object nor a list".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parser(json: bool, separator: Option<&str>) -> Parser {
        let separator = separator.map(str::to_owned);
        Parser { topic: Text::from_static("t"), partition: None, json, separator, headers: Vec::new() }
    }

    /// Proves that lines end at either line end, that the last needs none, and that long ones are refused.
    #[test]
    fn lines() {
        let mut input: &[u8] = b"a\r\n\nlast";
        let mut next = || read_line(&mut input, 4).expect("short enough");
        assert_eq!(
            (next(), next(), next(), next()),
            (Some(b"a".into()), Some(vec![]), Some(b"last".into()), None)
        );
        let mut long: &[u8] = b"12345";
        assert!(read_line(&mut long, 4).is_err());
    }

    /// Proves how keys are cut off, and that a line without the separator is refused.
    #[test]
    fn keys() {
        let record = parser(false, Some("::")).record(b"k::v::w".to_vec()).expect("has a separator");
        assert_eq!((record.key, record.value), (Some("k".into()), Some("v::w".into())));
        assert!(parser(false, Some(":")).record(b"kv".to_vec()).is_err());
        assert_eq!(parser(false, None).record(b"a:b".to_vec()).expect("a value").key, None);
    }

    /// Proves every field of a JSON line, and that bad ones are named.
    #[test]
    fn json() {
        let line =
            br#"{"key":"k","value":{"a":1},"headers":[["h","1"],["n",null]],"partition":2,"timestamp":7}"#;
        let record = parser(true, None).record(line.to_vec()).expect("valid");
        assert_eq!(record.value.as_deref(), Some(&br#"{"a":1}"#[..]));
        assert_eq!((record.partition, record.timestamp, record.headers.len()), (Some(2), Some(7), 2));
        for (line, word) in [
            ("[]", "object"),
            ("{", "JSON"),
            ("{\"x\":1}", "`x`"),
            ("{\"headers\":1}", "headers"),
            ("{\"value_base64\":\"_\"}", "`value_base64`"),
            ("{\"headers\":{\"h\":{\"base64\":1}}}", "base64"),
        ] {
            let problem = parser(true, None).record(line.as_bytes().to_vec()).expect_err("refused");
            assert!(problem.contains(word), "{problem}");
        }
    }
}
