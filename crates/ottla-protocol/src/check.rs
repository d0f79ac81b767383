//! What a produced batch must be before the shard sees it: every rule of Kafka's that needs no state.
//!
//! Place in the walk: the connection runs it on each partition of a Produce request, in parallel between
//! connections; what passes goes to the shard as header and tail. The tail of a batch that needs no change is a
//! slice of the request. The CRC is computed once, the records are walked once, without allocating.
//!
//! Rules and codes follow Kafka 4.4.0 as measured (docs: semantics, section 9), stricter where it stores what
//! readers cannot use: undecodable records, offset deltas with gaps and impossible headers are INVALID_RECORD.
//! Not here: authorization, the transactional id, leadership, sequences and epochs.
//!
//! Deliberately accepted: an epoch or sequence beside producer id -1. Non-idempotent producers of KafkaJS and
//! older Sarama send zeros in both fields.

#[cfg(test)]
mod tests;
mod walk;

use bytes::Bytes;

use crate::batch::{
    BATCH_HEAD_BYTES, BATCH_LENGTH_MIN, BatchHeader, CODEC_MASK, LENGTH_OVERHEAD_BYTES, MAGIC,
    TAIL_HEADER_BYTES, TRANSACTIONAL_BIT, TimestampType, crc_of, restamp,
};
use crate::compression::{self, Codec, CompressionError};
use crate::error::ErrorCode;

/// The smallest length field of any format version: below it, bytes are no batch at all.
const ANY_LENGTH_MIN: i32 = 14;
/// Bytes up to and with the magic, in every format version.
const MAGIC_END: usize = 17;
/// The first Produce version that may carry zstd.
const ZSTD_PRODUCE_VERSION: i16 = 7;
/// Attribute bits that a producer may set; LogAppendTime and control have answers of their own.
const PRODUCER_BITS: i16 = CODEC_MASK | TRANSACTIONAL_BIT;

/// A topic's `compression.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionType {
    /// Whatever the producer sent.
    #[default]
    Producer,
    /// This codec; batches that come with another are compressed anew.
    Codec(Codec),
}

/// The topic's settings and the request's circumstances that the rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceRules {
    /// `max.message.bytes`: largest whole batch.
    pub max_message_bytes: usize,
    /// `segment.bytes`: a larger batch fits no segment.
    pub segment_bytes: usize,
    /// Whether `cleanup.policy` holds `compact`: every record needs a key.
    pub compacted: bool,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`: how far a record's timestamp may lie behind `now_ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`: how far it may lie ahead.
    pub timestamp_after_max_ms: i64,
    /// `compression.type`.
    pub compression: CompressionType,
    /// Level for that codec (`compression.gzip.level`, `compression.zstd.level`); none for the codec's own default.
    pub compression_level: Option<i32>,
    /// Wall clock, ms.
    pub now_ms: i64,
    /// Version of the Produce request.
    pub produce_version: i16,
    /// Most bytes that a batch may hold when decompressed.
    pub decompressed_bytes_max: usize,
}

impl Default for ProduceRules {
    /// Kafka's defaults for a topic; 16 MiB decompressed.
    fn default() -> Self {
        Self {
            max_message_bytes: 1_048_588,
            segment_bytes: 1 << 30,
            compacted: false,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            compression: CompressionType::Producer,
            compression_level: None,
            now_ms: 0,
            produce_version: 13,
            decompressed_bytes_max: 16 << 20,
        }
    }
}

/// A batch that passed: what the log would store, but for the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Its header; base offset 0, leader epoch as sent.
    pub header: BatchHeader,
    /// The batch from byte 21 on.
    pub tail: Bytes,
}

/// Why a batch is refused, as the answer says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Error code of the partition.
    pub code: ErrorCode,
    /// For people.
    pub message: Option<String>,
    /// Records at fault: index in the batch and a text; at most 100 of them.
    pub record_errors: Vec<(i32, Option<String>)>,
}

impl Refusal {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()), record_errors: Vec::new() }
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRecord, message)
    }

    fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::CorruptMessage, message)
    }
}

/// Checks the records of one partition of a Produce request: exactly one batch, whole, sound and allowed.
/// For a topic with LogAppendTime the timestamp is stamped later (`batch::stamp_log_append_time`).
pub fn check_produce(records: Option<&Bytes>, rules: &ProduceRules) -> Result<Checked, Refusal> {
    let bytes = one_batch(records, rules)?;
    let header = BatchHeader::parse(&bytes).map_err(|error| Refusal::corrupt(error.to_string()))?;
    check_batch(&header, &bytes, rules)?;
    let codec = check_flags(&header)?;
    let tail = bytes.slice(BATCH_HEAD_BYTES..);
    let body = tail.slice(TAIL_HEADER_BYTES..);
    let body = match codec {
        Codec::None => body,
        codec => {
            compression::decompress(codec, &body, rules.decompressed_bytes_max).map_err(refuse_compression)?
        }
    };
    let max_timestamp = walk::walk(&header, &body, rules)?;
    let wanted = match rules.compression {
        CompressionType::Producer => codec,
        CompressionType::Codec(wanted) => wanted,
    };
    if wanted != codec {
        return recompress(&header, wanted, max_timestamp, &body, rules);
    }
    if header.max_timestamp != max_timestamp && rules.timestamp_type == TimestampType::CreateTime {
        let (header, tail) = restamp(&BatchHeader { max_timestamp, ..header }, &tail);
        return Ok(Checked { header, tail });
    }
    Ok(Checked { header, tail })
}

/// How long the batch at the start of `bytes` is, when there is a whole one of any format version.
fn whole_batch(bytes: &[u8]) -> Option<(usize, i8)> {
    let length = length_field(bytes).filter(|length| *length >= ANY_LENGTH_MIN)?;
    let total = usize::try_from(length).ok()? + LENGTH_OVERHEAD_BYTES;
    let magic = *bytes.get(MAGIC_END - 1)? as i8;
    (total <= bytes.len()).then_some((total, magic))
}

fn length_field(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_be_bytes(*bytes.get(8..)?.first_chunk()?))
}

/// The one batch that the field must hold. Bytes behind it that are no batch are ignored, as Kafka does.
fn one_batch(records: Option<&Bytes>, rules: &ProduceRules) -> Result<Bytes, Refusal> {
    let none = || Refusal::invalid("the request holds no whole record batch for this partition");
    let records = records.ok_or_else(none)?;
    let length = length_field(records).ok_or_else(none)?;
    if length < ANY_LENGTH_MIN {
        return Err(Refusal::corrupt(format!("batch length {length} is smaller than any record")));
    }
    let (total, magic) = whole_batch(records).ok_or_else(none)?;
    if magic != MAGIC {
        return Err(Refusal::invalid(format!("record batch has magic {magic}, only 2 is accepted")));
    }
    if length < BATCH_LENGTH_MIN {
        return Err(Refusal::corrupt(format!("batch length {length} is smaller than a header")));
    }
    let is_zstd = records
        .get(BATCH_HEAD_BYTES + 1)
        .is_some_and(|low| i16::from(*low) & CODEC_MASK == Codec::Zstd.bits());
    if is_zstd && rules.produce_version < ZSTD_PRODUCE_VERSION {
        return Err(Refusal::new(
            ErrorCode::UnsupportedCompressionType,
            format!("Produce version {} cannot carry zstd", rules.produce_version),
        ));
    }
    if records.get(total..).and_then(whole_batch).is_some() {
        return Err(Refusal::invalid("more than one record batch for this partition"));
    }
    Ok(records.slice(..total))
}

/// The rules on the batch as a whole: place, size, sum, counts.
fn check_batch(header: &BatchHeader, bytes: &Bytes, rules: &ProduceRules) -> Result<(), Refusal> {
    if header.base_offset != 0 {
        return Err(Refusal::invalid(format!("base offset is {}, not 0", header.base_offset)));
    }
    check_size(bytes.len(), rules)?;
    header
        .check_crc(bytes.get(BATCH_HEAD_BYTES..).unwrap_or_default())
        .map_err(|error| Refusal::corrupt(error.to_string()))?;
    let range = i64::from(header.last_offset_delta) + 1;
    if header.records_count <= 0 || range != i64::from(header.records_count) {
        return Err(Refusal::invalid(format!(
            "batch declares {} records and {range} offsets",
            header.records_count
        )));
    }
    if bytes.len() > rules.segment_bytes {
        return Err(Refusal::new(
            ErrorCode::RecordListTooLarge,
            format!("batch of {} bytes is larger than a segment of {}", bytes.len(), rules.segment_bytes),
        ));
    }
    Ok(())
}

fn check_size(batch_bytes: usize, rules: &ProduceRules) -> Result<(), Refusal> {
    if batch_bytes > rules.max_message_bytes {
        return Err(Refusal::new(
            ErrorCode::MessageTooLarge,
            format!(
                "batch of {batch_bytes} bytes is larger than max.message.bytes, {}",
                rules.max_message_bytes
            ),
        ));
    }
    Ok(())
}

/// The rules on attributes and producer fields; returns the codec.
fn check_flags(header: &BatchHeader) -> Result<Codec, Refusal> {
    if header.is_control() {
        return Err(Refusal::invalid("clients cannot write control batches"));
    }
    if header.producer_id < -1 {
        return Err(Refusal::invalid(format!("producer id is {}", header.producer_id)));
    }
    if header.has_producer_id() && (header.base_sequence < 0 || header.producer_epoch < 0) {
        return Err(Refusal::invalid(format!(
            "producer id {} comes with epoch {} and sequence {}",
            header.producer_id, header.producer_epoch, header.base_sequence
        )));
    }
    if header.is_transactional() && !header.has_producer_id() {
        return Err(Refusal::invalid("transactional batch without a producer id"));
    }
    let codec = header
        .codec()
        .map_err(|error| Refusal::new(ErrorCode::UnsupportedCompressionType, error.to_string()))?;
    if header.timestamp_type() == TimestampType::LogAppendTime {
        return Err(Refusal::new(ErrorCode::InvalidTimestamp, "LogAppendTime is set by the broker only"));
    }
    if header.attributes & !PRODUCER_BITS != 0 {
        return Err(Refusal::invalid(format!("attributes {:#06x} hold unknown bits", header.attributes)));
    }
    Ok(codec)
}

/// Too much when decompressed is "too large", upon which producers split their batch; the rest is garbage.
fn refuse_compression(error: CompressionError) -> Refusal {
    let code = match error {
        CompressionError::TooLarge { .. } => ErrorCode::MessageTooLarge,
        CompressionError::Corrupt(_) => ErrorCode::InvalidRecord,
    };
    Refusal::new(code, error.to_string())
}

/// The batch with another codec; producer fields and flags stay.
fn recompress(
    header: &BatchHeader,
    codec: Codec,
    max_timestamp: i64,
    body: &[u8],
    rules: &ProduceRules,
) -> Result<Checked, Refusal> {
    let mut header = BatchHeader { attributes: header.attributes & !CODEC_MASK | codec.bits(), ..*header };
    if rules.timestamp_type == TimestampType::CreateTime {
        header.max_timestamp = max_timestamp;
    }
    let mut tail = Vec::with_capacity(TAIL_HEADER_BYTES + body.len());
    tail.extend_from_slice(&header.tail_header());
    compression::compress_at_level(codec, rules.compression_level, body, &mut tail);
    let batch_bytes = BATCH_HEAD_BYTES + tail.len();
    check_size(batch_bytes, rules)?;
    header.batch_length = i32::try_from(batch_bytes - LENGTH_OVERHEAD_BYTES)
        .map_err(|_| Refusal::new(ErrorCode::MessageTooLarge, "batch is larger than 2 GiB"))?;
    header.crc = crc_of(&tail);
    tail.shrink_to_fit();
    Ok(Checked { header, tail: Bytes::from(tail) })
}
