//! Every rule on a produced batch and its code, by table; what passes passes unchanged unless a rule says so.

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::batch::{Batch, BatchBuilder, CONTROL_BIT, LOG_APPEND_TIME_BIT, Producer, build_marker};
use crate::record::{NewRecord, RecordIter, body_of, records_of};

const NOW: i64 = 1_700_000_000_000;
const COMPRESSED: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

fn rules() -> ProduceRules {
    ProduceRules { now_ms: NOW, ..ProduceRules::default() }
}

/// A record as a test writes it: key, value, timestamp.
type Item<'a> = (Option<&'a [u8]>, &'a [u8], i64);

fn batch_of(codec: Codec, producer: Producer, items: &[Item<'_>]) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    builder.set_producer(producer);
    for (key, value, timestamp) in items {
        let record = NewRecord { timestamp: *timestamp, key: *key, value: Some(value), headers: &[] };
        builder.append(&record).expect("small");
    }
    builder.build()
}

fn batch(codec: Codec) -> Bytes {
    batch_of(codec, Producer::NONE, &[(Some(b"a"), b"1", NOW), (Some(b"b"), b"2", NOW + 1)])
}

/// The batch with its header changed and summed anew.
fn with(bytes: &Bytes, change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut header = BatchHeader::parse(bytes).expect("a batch");
    change(&mut header);
    let (header, tail) = restamp(&header, &bytes[BATCH_HEAD_BYTES..]);
    join(&header, &tail)
}

/// The batch with other bytes for its records; counts stay.
fn with_body(bytes: &Bytes, codec: Codec, body: &[u8]) -> Bytes {
    let mut header = BatchHeader::parse(bytes).expect("a batch");
    header.attributes = header.attributes & !CODEC_MASK | codec.bits();
    let mut tail = header.tail_header().to_vec();
    compression::compress_into(codec, body, &mut tail);
    header.batch_length = (tail.len() + 9) as i32;
    header.crc = crc_of(&tail);
    join(&header, &tail)
}

fn join(header: &BatchHeader, tail: &[u8]) -> Bytes {
    let mut out = BytesMut::from(&header.head()[..]);
    out.extend_from_slice(tail);
    out.freeze()
}

fn code(bytes: &[u8], rules: &ProduceRules) -> i16 {
    match check_produce(Some(&Bytes::copy_from_slice(bytes)), rules) {
        Ok(_) => 0,
        Err(refusal) => refusal.code.code(),
    }
}

fn passes(bytes: &Bytes, rules: &ProduceRules) -> Checked {
    let checked = check_produce(Some(bytes), rules).expect("passes");
    checked.header.check_crc(&checked.tail).expect("its CRC");
    assert_eq!(BatchHeader::from_parts(&checked.header.head(), &checked.tail), Ok(checked.header));
    assert_eq!(checked.header.batch_bytes(), checked.tail.len() + BATCH_HEAD_BYTES);
    checked
}

/// A sound batch passes as it is, its tail a slice of the request, in every codec.
#[test]
fn sound_batches_pass_without_a_copy() {
    for codec in Codec::ALL {
        let bytes = batch(codec);
        let checked = passes(&bytes, &rules());
        assert_eq!(checked.header, BatchHeader::parse(&bytes).expect("a batch"));
        assert_eq!(checked.tail.as_ptr(), bytes[BATCH_HEAD_BYTES..].as_ptr(), "{codec:?}");
        assert_eq!(checked.tail, bytes[BATCH_HEAD_BYTES..]);
    }
}

/// The frame of a batch: none, cut, too many, wrong lengths and sums (semantics 1.3 and 9).
#[test]
fn frames() {
    let good = batch(Codec::None);
    let length = |length: i32| {
        let mut bytes = good.to_vec();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes
    };
    let size = (good.len() - 12) as i32;
    let twice = [&good[..], &good].concat();
    let flipped = {
        let mut bytes = good.to_vec();
        *bytes.last_mut().expect("not empty") ^= 1;
        bytes
    };
    let wrong_crc = {
        let mut bytes = good.to_vec();
        bytes[20] ^= 1;
        bytes
    };
    for (what, bytes, expected) in [
        ("no byte", &[][..], 87),
        ("11 bytes", &good[..11], 87),
        ("17 bytes", &good[..17], 87),
        ("cut at the header", &good[..61], 87),
        ("cut by three", &good[..good.len() - 3], 87),
        ("length one too large", &length(size + 1), 87),
        ("largest length", &length(i32::MAX), 87),
        ("length one too small", &length(size - 1), 2),
        ("length below a header", &length(48), 2),
        ("length below the smallest", &length(10), 2),
        ("negative length", &length(-1), 2),
        ("most negative length", &length(i32::MIN), 2),
        ("two batches", &twice, 87),
        ("flipped byte", &flipped, 2),
        ("wrong checksum", &wrong_crc, 2),
    ] {
        assert_eq!(code(bytes, &rules()), expected, "{what}");
    }
    assert_eq!(check_produce(None, &rules()).expect_err("null records").code.code(), 87);
    for magic in [0u8, 1, 3, 0xff] {
        let mut bytes = good.to_vec();
        bytes[16] = magic;
        assert_eq!(code(&bytes, &rules()), 87, "magic {magic}");
    }
}

/// A message set of format 0 or 1 is refused with INVALID_RECORD, although it is shorter than a v2 header.
#[test]
fn old_message_sets() {
    for magic in [0u8, 1] {
        let mut bytes = vec![0; 8];
        bytes.extend_from_slice(&14i32.to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 0, 0, magic]);
        bytes.extend_from_slice(&[0xff; 9]);
        assert_eq!(code(&bytes, &rules()), 87, "magic {magic}");
    }
}

/// Bytes behind the batch that are no whole batch are ignored and not stored.
#[test]
fn bytes_behind_the_batch_are_ignored() {
    let good = batch(Codec::None);
    for behind in [&[0u8][..], &[0; 61], &[0xff; 100], &good[..good.len() - 1]] {
        let bytes = Bytes::from([&good[..], behind].concat());
        assert_eq!(passes(&bytes, &rules()).tail, good[BATCH_HEAD_BYTES..]);
    }
}

/// A change of one header field.
type Change = fn(&mut BatchHeader);

/// The header's fields, one wrong at a time.
#[test]
fn headers() {
    let good = batch(Codec::None);
    let cases: &[(&str, Change, i16)] = &[
        ("as it is", |_| (), 0),
        ("leader epoch", |h| h.partition_leader_epoch = 9, 0),
        ("base offset", |h| h.base_offset = 7, 87),
        ("negative base offset", |h| h.base_offset = -1, 87),
        ("more records declared", |h| (h.records_count, h.last_offset_delta) = (3, 2), 87),
        ("fewer records declared", |h| (h.records_count, h.last_offset_delta) = (1, 0), 87),
        ("count and range differ", |h| h.records_count = 3, 87),
        ("negative range", |h| h.last_offset_delta = -1, 87),
        ("no record", |h| (h.records_count, h.last_offset_delta) = (0, -1), 87),
        ("negative count", |h| (h.records_count, h.last_offset_delta) = (-5, -6), 87),
        ("largest count", |h| (h.records_count, h.last_offset_delta) = (i32::MAX, i32::MAX - 1), 87),
        ("range overflows", |h| (h.records_count, h.last_offset_delta) = (i32::MIN, i32::MAX), 87),
        ("control bit", |h| h.attributes |= CONTROL_BIT, 87),
        ("LogAppendTime bit", |h| h.attributes |= LOG_APPEND_TIME_BIT, 32),
        ("delete horizon bit", |h| h.attributes |= 0x40, 87),
        ("bit 7", |h| h.attributes |= 0x80, 87),
        ("bit 15", |h| h.attributes |= i16::MIN, 87),
        ("codec 5", |h| h.attributes |= 5, 76),
        ("codec 6", |h| h.attributes |= 6, 76),
        ("codec 7", |h| h.attributes |= 7, 76),
        ("not gzip", |h| h.attributes |= 1, 87),
        ("not snappy", |h| h.attributes |= 2, 87),
        ("not lz4", |h| h.attributes |= 3, 87),
        ("not zstd", |h| h.attributes |= 4, 87),
        ("idempotent", |h| (h.producer_id, h.producer_epoch, h.base_sequence) = (1, 0, 0), 0),
        ("producer id without sequence", |h| (h.producer_id, h.producer_epoch) = (5, 0), 87),
        ("producer id without epoch", |h| (h.producer_id, h.base_sequence) = (5, 0), 87),
        ("producer id -5", |h| h.producer_id = -5, 87),
        ("epoch and sequence without producer id", |h| (h.producer_epoch, h.base_sequence) = (0, 0), 0),
        ("transactional without producer id", |h| h.attributes |= TRANSACTIONAL_BIT, 87),
        (
            "transactional",
            |h| {
                h.attributes |= TRANSACTIONAL_BIT;
                (h.producer_id, h.producer_epoch, h.base_sequence) = (1, 0, i32::MAX);
            },
            0,
        ),
    ];
    for (what, change, expected) in cases {
        assert_eq!(code(&with(&good, change), &rules()), *expected, "{what}");
    }
    let (header, tail) = build_marker(1, 0, true, 0, NOW);
    assert_eq!(code(&join(&header, &tail), &rules()), 87, "a marker");
}

/// Zstd needs Produce 7; the other codecs do not.
#[test]
fn zstd_needs_produce_7() {
    for (version, expected) in [(3, 76), (6, 76), (7, 0), (13, 0)] {
        let rules = ProduceRules { produce_version: version, ..rules() };
        assert_eq!(code(&batch(Codec::Zstd), &rules), expected, "zstd in version {version}");
        assert_eq!(code(&batch(Codec::Lz4), &rules), 0, "lz4 in version {version}");
    }
}

/// A batch of exactly the largest size passes; one byte more is too large, before its CRC is looked at.
#[test]
fn sizes() {
    let bytes = batch(Codec::None);
    let exactly = ProduceRules { max_message_bytes: bytes.len(), segment_bytes: bytes.len(), ..rules() };
    assert_eq!(code(&bytes, &exactly), 0);
    assert_eq!(code(&bytes, &ProduceRules { max_message_bytes: bytes.len() - 1, ..exactly }), 10);
    assert_eq!(code(&bytes, &ProduceRules { segment_bytes: bytes.len() - 1, ..exactly }), 18);
    let mut broken = bytes.to_vec();
    broken[20] ^= 1;
    assert_eq!(code(&broken, &ProduceRules { max_message_bytes: 60, ..rules() }), 10);
}

/// What decompresses to more than allowed is "too large", so that producers split it.
#[test]
fn bombs() {
    let zeros = vec![0; 2 << 20];
    for codec in COMPRESSED {
        let bytes = batch_of(codec, Producer::NONE, &[(None, &zeros, NOW)]);
        let tight = ProduceRules { decompressed_bytes_max: 1 << 20, ..rules() };
        assert_eq!(code(&bytes, &tight), 10, "{codec:?}");
        assert_eq!(code(&bytes, &rules()), 0, "{codec:?}");
    }
}

/// Records that cannot be decoded, offsets with gaps, wrong counts and trailing bytes, plain and compressed.
/// Public cases: KAFKA-6554 (80).
#[test]
fn records() {
    let good = batch(Codec::None);
    // size, attributes, timestamp delta, offset delta, key length, value length, header count
    let record = |offset_delta: u8| [12, 0, 0, offset_delta << 1, 1, 1, 0];
    let offsets = |deltas: &[u8]| deltas.iter().flat_map(|delta| record(*delta)).collect::<Vec<_>>();
    for codec in Codec::ALL {
        for (what, body, expected) in [
            ("sound", offsets(&[0, 1]), 0),
            ("other attributes", [&[12, 9, 0, 0, 1, 1, 0][..], &record(1)].concat(), 0),
            ("deltas 0 3", offsets(&[0, 3]), 87),
            ("deltas 1 2", offsets(&[1, 2]), 87),
            ("deltas 1 0", offsets(&[1, 0]), 87),
            ("deltas 0 0", offsets(&[0, 0]), 87),
            ("a third record", offsets(&[0, 1, 2]), 87),
            ("one record", offsets(&[0]), 87),
            ("no record", vec![], 87),
            ("a trailing byte", [&offsets(&[0, 1])[..], &[0]].concat(), 87),
            ("zeros", vec![0; 20], 87),
            ("endless varint", vec![0xff; 20], 87),
            ("a header that is cut", [&record(0)[..], &[16, 0, 0, 2, 1, 1, 2, 2, b'h']].concat(), 87),
        ] {
            assert_eq!(code(&with_body(&good, codec, &body), &rules()), expected, "{what}, {codec:?}");
        }
    }
}

/// Null keys are refused on compacted topics only, and each record is named.
#[test]
fn null_keys() {
    for codec in Codec::ALL {
        let items: [Item<'_>; 4] =
            [(Some(b"a"), b"1", NOW), (None, b"2", NOW), (Some(b""), b"3", NOW), (None, b"4", NOW)];
        let bytes = batch_of(codec, Producer::NONE, &items);
        assert_eq!(code(&bytes, &rules()), 0);
        let compacted = ProduceRules { compacted: true, ..rules() };
        let refusal = check_produce(Some(&bytes), &compacted).expect_err("null keys");
        assert_eq!(refusal.code.code(), 87);
        assert!(refusal.message.is_some());
        assert_eq!(refusal.record_errors.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 3]);
        assert!(refusal.record_errors.iter().all(|(_, text)| text.is_some()));
        assert_eq!(code(&batch(codec), &compacted), 0);
    }
}

/// Timestamps are bounded on both sides, inclusive; -1 always passes; LogAppendTime topics do not look.
#[test]
fn timestamps() {
    let bounded = ProduceRules { timestamp_before_max_ms: 1000, timestamp_after_max_ms: 100, ..rules() };
    for (timestamp, expected) in [
        (NOW, 0),
        (NOW + 100, 0),
        (NOW + 101, 32),
        (NOW - 1000, 0),
        (NOW - 1001, 32),
        (-1, 0),
        (0, 32),
        (i64::MAX, 32),
        (i64::MIN, 32),
    ] {
        let bytes = batch_of(Codec::None, Producer::NONE, &[(None, b"", NOW), (None, b"", timestamp)]);
        assert_eq!(code(&bytes, &bounded), expected, "{timestamp}");
        let stamped = ProduceRules { timestamp_type: TimestampType::LogAppendTime, ..bounded };
        assert_eq!(code(&bytes, &stamped), 0, "{timestamp} on a LogAppendTime topic");
        if expected != 0 {
            let refusal = check_produce(Some(&bytes), &bounded).expect_err("out of bounds");
            assert_eq!(refusal.record_errors.first().map(|(index, _)| *index), Some(1));
        }
    }
    for timestamp in [0, NOW + 3_600_000] {
        assert_eq!(
            code(&batch_of(Codec::None, Producer::NONE, &[(None, b"", timestamp)]), &rules()),
            0,
            "defaults"
        );
    }
    let both = batch_of(Codec::None, Producer::NONE, &[(None, b"", NOW), (None, b"", NOW + 101)]);
    assert_eq!(code(&both, &ProduceRules { compacted: true, ..bounded }), 32, "a timestamp outweighs a key");
}

/// An answer names at most a hundred records, however many are at fault.
#[test]
fn record_errors_are_bounded() {
    let items: Vec<Item<'_>> = vec![(None, b"", NOW); 5000];
    let bytes = batch_of(Codec::Zstd, Producer::NONE, &items);
    let refusal =
        check_produce(Some(&bytes), &ProduceRules { compacted: true, ..rules() }).expect_err("null keys");
    assert_eq!(refusal.record_errors.len(), 100);
    assert_eq!(refusal.message.as_deref(), Some("5000 records without a key"));
}

/// A wrong maxTimestamp is put right with its CRC, on CreateTime topics; the records are not touched.
#[test]
fn max_timestamp_is_recomputed() {
    for codec in Codec::ALL {
        let good = batch_of(codec, Producer::NONE, &[(None, b"a", 100), (None, b"b", 50)]);
        for wrong in [5, 1 << 60, -1] {
            let bytes = with(&good, |header| header.max_timestamp = wrong);
            let checked = passes(&bytes, &rules());
            assert_eq!(checked.header, BatchHeader::parse(&good).expect("a batch"));
            assert_eq!(checked.tail, good[BATCH_HEAD_BYTES..]);
            let stamped = ProduceRules { timestamp_type: TimestampType::LogAppendTime, ..rules() };
            assert_eq!(passes(&bytes, &stamped).header.max_timestamp, wrong, "stamped by the shard anyway");
        }
    }
}

/// A topic with a codec of its own gets its batches in it; producer, bits, counts and records stay.
#[test]
fn recompression() {
    let value = vec![b'x'; 3000];
    let producer = Producer { producer_id: 9, producer_epoch: 4, base_sequence: 77, transactional: true };
    let items: [Item<'_>; 2] = [(Some(b"a"), &value, NOW), (Some(b"b"), &value, NOW + 9)];
    for from in Codec::ALL {
        let bytes = with(&batch_of(from, producer, &items), |header| header.max_timestamp = 1);
        for to in Codec::ALL {
            let rules = ProduceRules { compression: CompressionType::Codec(to), ..rules() };
            let checked = passes(&bytes, &rules);
            let header = checked.header;
            assert_eq!((header.codec(), header.is_transactional()), (Ok(to), true));
            assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (9, 4, 77));
            assert_eq!((header.records_count, header.last_offset_delta), (2, 1));
            assert_eq!((header.base_timestamp, header.max_timestamp), (NOW, NOW + 9));
            let read = |header: &BatchHeader, tail: &Bytes| {
                let records = records_of(header, tail, 1 << 20).expect("fits");
                records.map(|record| record.expect("sound")).collect::<Vec<_>>()
            };
            let sent = Batch::parse(&bytes).expect("a batch");
            assert_eq!(read(&header, &checked.tail), read(&sent.header, &sent.tail()));
        }
    }
}

/// The level counts when a batch is compressed anew, for the codecs that have levels; what was sent in the topic's
/// codec stays as it is.
#[test]
fn recompression_levels() {
    let value: Vec<u8> = (0..20_000u32).flat_map(|number| (number * number % 977).to_le_bytes()).collect();
    let plain = batch_of(Codec::None, Producer::NONE, &[(None, &value, NOW)]);
    let bytes_at = |codec, level| {
        let compression_level = Some(level);
        let rules = ProduceRules { compression: CompressionType::Codec(codec), compression_level, ..rules() };
        passes(&plain, &rules).tail.len()
    };
    assert!(bytes_at(Codec::Gzip, 9) < bytes_at(Codec::Gzip, 1));
    assert_eq!(bytes_at(Codec::Gzip, -1), bytes_at(Codec::Gzip, 6));
    assert!(bytes_at(Codec::Zstd, 22) < bytes_at(Codec::Zstd, -50));
    let sent = batch_of(Codec::Gzip, Producer::NONE, &[(None, &value, NOW)]);
    let compression = CompressionType::Codec(Codec::Gzip);
    let leveled = ProduceRules { compression, compression_level: Some(1), ..rules() };
    assert_eq!(passes(&sent, &leveled).tail, passes(&sent, &rules()).tail);
}

/// The size is checked again after recompression.
#[test]
fn recompression_can_be_too_large() {
    let bytes = batch_of(Codec::Gzip, Producer::NONE, &[(None, &[0; 5000], NOW)]);
    let rules =
        ProduceRules { max_message_bytes: 1000, compression: CompressionType::Codec(Codec::None), ..rules() };
    assert_eq!(code(&bytes, &rules), 10);
    assert_eq!(code(&bytes, &ProduceRules { compression: CompressionType::Producer, ..rules }), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No mutation of a batch panics the check; one behind the head never passes.
    #[test]
    fn mutations(codec in 0usize..5, at in any::<proptest::sample::Index>(), flip in 1u8..) {
        let good = batch(Codec::ALL[codec]);
        let mut bytes = good.to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let refused = check_produce(Some(&Bytes::from(bytes)), &rules()).is_err();
        // Only the leader epoch is the producer's to choose.
        prop_assert_eq!(refused, !(12..16).contains(&at));
    }

    /// A batch whose CRC is right but whose bytes are random is refused or sound, never a panic; what passes
    /// can be read to its end.
    #[test]
    fn summed_garbage(codec in 0usize..5, body in proptest::collection::vec(0u8..20, 0..200), count in 1i32..9,
        compress in any::<bool>())
    {
        let codec = Codec::ALL[codec];
        let mut header = BatchHeader::parse(&batch(codec)).expect("a batch");
        (header.records_count, header.last_offset_delta) = (count, count - 1);
        let mut tail = header.tail_header().to_vec();
        compression::compress_into(if compress { codec } else { Codec::None }, &body, &mut tail);
        header.batch_length = (tail.len() + 9) as i32;
        header.crc = crc_of(&tail);
        if let Ok(checked) = check_produce(Some(&join(&header, &tail)), &rules()) {
            let body = body_of(&checked.header, &checked.tail, 1 << 20).expect("fits");
            prop_assert!(RecordIter::new(&checked.header, body).all(|record| record.is_ok()));
        }
    }

    /// Random bytes are refused.
    #[test]
    fn garbage(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(check_produce(Some(&Bytes::from(bytes)), &rules()).is_err());
    }
}
