//! The one walk over a batch's records: count, offset deltas, keys and timestamps, in one pass.
//!
//! A record that cannot be decoded, or a wrong count or offset, refuses the batch at once; null keys and
//! timestamps out of bounds are collected, so that the answer can name the records.

use crate::batch::{BatchHeader, TimestampType};
use crate::error::ErrorCode;
use crate::record::{Cursor, RECORD_BYTES_MIN, RecordError};

use super::{ProduceRules, Refusal};

/// Records named in one answer at most.
const RECORD_ERRORS_MAX: usize = 100;
/// "No timestamp": always allowed.
const NO_TIMESTAMP: i64 = -1;

/// Timestamps that may pass, both ends included.
struct Window {
    oldest: i64,
    newest: i64,
}

impl Window {
    fn of(rules: &ProduceRules) -> Self {
        match rules.timestamp_type {
            TimestampType::CreateTime => Self {
                oldest: rules.now_ms.saturating_sub(rules.timestamp_before_max_ms),
                newest: rules.now_ms.saturating_add(rules.timestamp_after_max_ms),
            },
            // The producer's timestamps will not be seen.
            TimestampType::LogAppendTime => Self { oldest: i64::MIN, newest: i64::MAX },
        }
    }

    fn holds(&self, timestamp: i64) -> bool {
        timestamp == NO_TIMESTAMP || (self.oldest..=self.newest).contains(&timestamp)
    }
}

/// Walks the decompressed body; returns the largest timestamp, -1 when there is none above.
pub(super) fn walk(header: &BatchHeader, body: &[u8], rules: &ProduceRules) -> Result<i64, Refusal> {
    let count = header.records_count;
    if count as usize > body.len() / RECORD_BYTES_MIN {
        return Err(undecodable(body.len() / RECORD_BYTES_MIN, RecordError::Cut));
    }
    let window = Window::of(rules);
    let mut max_timestamp = NO_TIMESTAMP;
    let mut problems = Problems::default();
    let mut cursor = Cursor::new(body);
    for index in 0..count {
        let record = cursor.record().map_err(|error| undecodable(index as usize, error))?;
        if record.offset_delta != index {
            return Err(Refusal::invalid(format!("record {index} has offset delta {}", record.offset_delta)));
        }
        let timestamp = header.base_timestamp.wrapping_add(record.timestamp_delta);
        max_timestamp = max_timestamp.max(timestamp);
        if !window.holds(timestamp) {
            problems.timestamp(index, timestamp, &window);
        }
        if rules.compacted && record.key.is_none() {
            problems.null_key(index);
        }
    }
    if !cursor.is_at_end() {
        return Err(undecodable(count as usize, RecordError::Trailing));
    }
    problems.into_result().map(|()| max_timestamp)
}

fn undecodable(index: usize, error: RecordError) -> Refusal {
    Refusal::invalid(format!("record {index}: {error}"))
}

/// What is wrong with single records.
#[derive(Default)]
struct Problems {
    timestamps: usize,
    null_keys: usize,
    record_errors: Vec<(i32, Option<String>)>,
}

impl Problems {
    #[cold]
    fn timestamp(&mut self, index: i32, timestamp: i64, window: &Window) {
        self.timestamps += 1;
        self.name(index, || {
            format!("timestamp {timestamp} is not within {} to {}", window.oldest, window.newest)
        });
    }

    #[cold]
    fn null_key(&mut self, index: i32) {
        self.null_keys += 1;
        self.name(index, || "compacted topic: the record has no key".to_owned());
    }

    fn name(&mut self, index: i32, text: impl FnOnce() -> String) {
        if self.record_errors.len() < RECORD_ERRORS_MAX {
            self.record_errors.push((index, Some(text())));
        }
    }

    /// A bad timestamp decides the code when both kinds occur, as in Kafka.
    fn into_result(self) -> Result<(), Refusal> {
        let (code, message) = match (self.timestamps, self.null_keys) {
            (0, 0) => return Ok(()),
            (0, keys) => (ErrorCode::InvalidRecord, format!("{keys} records without a key")),
            (timestamps, _) => {
                (ErrorCode::InvalidTimestamp, format!("{timestamps} records with a timestamp out of bounds"))
            }
        };
        Err(Refusal { code, message: Some(message), record_errors: self.record_errors })
    }
}
