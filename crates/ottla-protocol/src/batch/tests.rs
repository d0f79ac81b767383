//! Headers, builders, markers and the walk over buffers of batches.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::record::{NewRecord, records_of};

fn sample(codec: Codec) -> BatchBuilder {
    let mut builder = BatchBuilder::new(codec);
    for (key, value) in [(Some(&b"a"[..]), Some(&b"1"[..])), (None, Some(b"2")), (Some(b"c"), None)] {
        let record = NewRecord { timestamp: 1000, key, value, headers: &[(b"h", Some(b"v")), (b"", None)] };
        builder.append(&record).expect("small");
    }
    builder
}

/// A header is read back as it was written, in one piece and in two.
#[test]
fn header_round_trip() {
    let header = BatchHeader {
        base_offset: 0x0102_0304_0506_0708,
        batch_length: 49,
        partition_leader_epoch: 7,
        magic: 2,
        crc: 0xdead_beef,
        attributes: 0x1234,
        last_offset_delta: 41,
        base_timestamp: -1,
        max_timestamp: i64::MAX,
        producer_id: 99,
        producer_epoch: i16::MAX,
        base_sequence: i32::MAX,
        records_count: 42,
    };
    assert_eq!(BatchHeader::parse(&header.write()), Ok(header));
    assert_eq!(BatchHeader::from_parts(&header.head(), &header.tail_header()), Ok(header));
    assert_eq!(header.batch_bytes(), 61);
    assert_eq!(header.last_offset(), 0x0102_0304_0506_0708 + 41);
    assert_eq!(header.last_sequence(), 40);
}

/// Headers that no batch can have are refused by name, and never read behind the end.
#[test]
fn bad_headers() {
    let (header, _) = sample(Codec::None).build_parts();
    let bytes = header.write();
    for length in 0..BATCH_HEADER_BYTES {
        let cut = BatchError::Cut { needed_bytes: 61, available_bytes: length };
        assert_eq!(BatchHeader::parse(&bytes[..length]), Err(cut), "{length} bytes");
    }
    for magic in [-1, 0, 1, 3] {
        let changed = BatchHeader { magic, ..header };
        assert_eq!(BatchHeader::parse(&changed.write()), Err(BatchError::Magic(magic)));
    }
    for batch_length in [i32::MIN, -1, 0, 48] {
        let changed = BatchHeader { batch_length, ..header };
        assert_eq!(BatchHeader::parse(&changed.write()), Err(BatchError::Length(batch_length)));
        assert_eq!(changed.batch_bytes(), usize::try_from(batch_length).map_or(0, |length| length + 12));
    }
}

/// Every attribute bit means what Kafka says.
#[test]
fn attribute_bits() {
    let (header, _) = sample(Codec::None).build_parts();
    let with = |attributes| BatchHeader { attributes, ..header };
    assert_eq!((0..5).map(|bits| with(bits).codec().expect("known")).collect::<Vec<_>>(), Codec::ALL);
    for bits in 5..8 {
        assert_eq!(with(bits).codec(), Err(UnknownCodec(bits)));
    }
    assert_eq!(with(0x08).timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(with(!0x08).timestamp_type(), TimestampType::CreateTime);
    assert!(with(0x10).is_transactional() && !with(!0x10).is_transactional());
    assert!(with(0x20).is_control() && !with(!0x20).is_control());
    assert!(with(0x40).has_delete_horizon() && !with(!0x40).has_delete_horizon());
}

/// The CRC is CRC-32C, by its published check value.
#[test]
fn crc_vector() {
    assert_eq!(crc_of(b"123456789"), 0xe306_9283);
}

/// Sequences wrap from 2147483647 to 0 and back.
#[test]
fn sequences_wrap() {
    for (sequence, by, sum) in [
        (0, 0, 0),
        (0, 5, 5),
        (i32::MAX, 1, 0),
        (i32::MAX, i32::MAX, i32::MAX - 1),
        (i32::MAX - 10, 20, 9),
        (5, i32::MAX, 4),
    ] {
        assert_eq!(increment_sequence(sequence, by), sum, "{sequence} + {by}");
        assert_eq!(decrement_sequence(sum, by), sequence, "{sum} - {by}");
    }
    let (header, _) = sample(Codec::None).build_parts();
    let header = BatchHeader { base_sequence: 2_147_483_637, last_offset_delta: 20, ..header };
    assert_eq!(header.last_sequence(), 9);
    assert_eq!(BatchHeader { base_sequence: -1, ..header }.last_sequence(), -1);
}

/// A builder fills every field, for a batch of several records and for an empty one.
#[test]
fn builder_fields() {
    let mut builder = sample(Codec::None);
    let producer = Producer { producer_id: 5, producer_epoch: 2, base_sequence: 9, transactional: true };
    builder.set_producer(producer).set_base_offset(100).set_partition_leader_epoch(3);
    let estimated_bytes = builder.estimated_bytes();
    let bytes = builder.build();
    assert_eq!(bytes.len(), estimated_bytes);
    let batch = Batch::parse(&bytes).expect("a batch");
    batch.check_crc().expect("its CRC");
    let header = batch.header;
    assert_eq!((header.base_offset, header.last_offset(), header.records_count), (100, 102, 3));
    assert_eq!((header.partition_leader_epoch, header.attributes), (3, 0x10));
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (5, 2, 9));
    assert_eq!((header.base_timestamp, header.max_timestamp), (1000, 1000));
    assert_eq!(header.batch_bytes(), bytes.len());
    let empty = Batch::parse(&BatchBuilder::new(Codec::None).build()).expect("a batch").header;
    assert_eq!((empty.records_count, empty.last_offset_delta, empty.batch_length), (0, 0, 49));
}

/// A batch as Kafka's Java client writes it (bytes checked by hand against the layout) is built byte for byte.
#[test]
fn known_bytes() {
    let mut builder = BatchBuilder::new(Codec::None);
    builder
        .append(&NewRecord { timestamp: 1, key: Some(b"k"), value: Some(b"v"), headers: &[] })
        .expect("small");
    let bytes = builder.build();
    let mut expected = Vec::new();
    expected.extend_from_slice(&[0; 8]);
    expected.extend_from_slice(&[0, 0, 0, 58, 0xff, 0xff, 0xff, 0xff, 2]);
    expected.extend_from_slice(&bytes[17..21]);
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    expected.extend_from_slice(&[0xff; 14]);
    expected.extend_from_slice(&[0, 0, 0, 1]);
    expected.extend_from_slice(&[16, 0, 0, 0, 2, b'k', 2, b'v', 0]);
    assert_eq!(bytes, expected);
}

/// Plain batches of the coordinators are what the builder makes, with the same bytes.
#[test]
fn plain_batches() {
    let records = [(&b"k1"[..], Some(&b"v1"[..])), (b"k2", None)];
    let producer = Producer { producer_id: 7, producer_epoch: 1, base_sequence: -1, transactional: true };
    let (header, tail) = build_plain(55, producer, records);
    let mut builder = BatchBuilder::new(Codec::None);
    builder.set_producer(producer);
    for (key, value) in records {
        builder.append(&NewRecord { timestamp: 55, key: Some(key), value, headers: &[] }).expect("small");
    }
    assert_eq!((header, tail), builder.build_parts());
}

/// Markers are 78 bytes, say what they were told, and carry the flags of a transactional control batch.
#[test]
fn markers() {
    for commit in [false, true] {
        let (header, tail) = build_marker(1 << 40, 32_766, commit, 17, 1234);
        assert_eq!(tail.len() + BATCH_HEAD_BYTES, MARKER_BATCH_BYTES);
        assert_eq!(header.batch_bytes(), MARKER_BATCH_BYTES);
        assert_eq!(BatchHeader::from_parts(&header.head(), &tail), Ok(header));
        header.check_crc(&tail).expect("its CRC");
        assert!(header.is_control() && header.is_transactional());
        assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (1 << 40, 32_766, -1));
        assert_eq!((header.records_count, header.last_offset_delta, header.max_timestamp), (1, 0, 1234));
        assert_eq!(parse_marker(&header, &tail), Ok(Some(Marker { commit, coordinator_epoch: 17 })));
        let record =
            records_of(&header, &tail, 0).expect("not compressed").next().expect("one").expect("sound");
        assert_eq!(record.key.as_deref(), Some(&[0, 0, 0, u8::from(commit)][..]));
        assert_eq!(record.value.as_deref(), Some(&[0, 0, 0, 0, 0, 17][..]));
    }
}

/// Control records of other types, of newer versions and damaged ones are told apart.
#[test]
fn control_records() {
    let control = |key: &[u8], value: Option<&[u8]>| {
        let (header, tail) = build_plain(0, Producer::NONE, [(key, value)]);
        parse_marker(&header, &tail)
    };
    let marker = Marker { commit: true, coordinator_epoch: 4 };
    assert_eq!(control(&[0, 0, 0, 1], Some(&[0, 0, 0, 0, 0, 4])), Ok(Some(marker)));
    assert_eq!(
        control(&[0, 9, 0, 1, 5, 5], Some(&[0, 3, 0, 0, 0, 4, 1])),
        Ok(Some(marker)),
        "newer versions"
    );
    for kind in 2..7 {
        assert_eq!(control(&[0, 0, 0, kind], None), Ok(None), "type {kind} is skipped");
    }
    assert_eq!(control(&[0xff, 0xff, 0, 1], Some(&[0; 6])), Err(MarkerError::Malformed("key version")));
    assert_eq!(control(&[0, 0, 0], Some(&[0; 6])), Err(MarkerError::Malformed("key")));
    assert_eq!(control(&[0, 0, 0, 1], None), Err(MarkerError::Malformed("value")));
    assert_eq!(control(&[0, 0, 0, 1], Some(&[0; 5])), Err(MarkerError::Malformed("value")));
    assert_eq!(
        control(&[0, 0, 0, 1], Some(&[0x80, 0, 0, 0, 0, 0])),
        Err(MarkerError::Malformed("value version"))
    );
    let (header, tail) = BatchBuilder::new(Codec::None).build_parts();
    assert_eq!(parse_marker(&header, &tail), Ok(None), "emptied by compaction");
    assert!(matches!(
        parse_marker(&BatchHeader { records_count: 1, ..header }, &tail),
        Err(MarkerError::Record(_))
    ));
}

/// Stamping sets the bit, the time and the CRC, and leaves everything else.
#[test]
fn log_append_time() {
    let (header, tail) = sample(Codec::Lz4).build_parts();
    let (stamped, stamped_tail) = stamp_log_append_time(&header, &tail, 777);
    stamped.check_crc(&stamped_tail).expect("its CRC");
    assert_eq!(BatchHeader::from_parts(&stamped.head(), &stamped_tail), Ok(stamped));
    assert_eq!(stamped.timestamp_type(), TimestampType::LogAppendTime);
    let back = BatchHeader { attributes: header.attributes, max_timestamp: 1000, crc: header.crc, ..stamped };
    assert_eq!((stamped.max_timestamp, back), (777, header));
    assert_eq!(stamped_tail[TAIL_HEADER_BYTES..], tail[TAIL_HEADER_BYTES..]);
    for record in records_of(&stamped, &stamped_tail, 1 << 20).expect("lz4") {
        assert_eq!(record.expect("sound").timestamp, 777);
    }
}

/// A buffer of batches is walked to its end; a cut or broken batch ends the walk with its error.
#[test]
fn iteration() {
    let one = sample(Codec::None).build();
    let two = sample(Codec::Zstd).build();
    let mut both = BytesMut::from(&one[..]);
    both.extend_from_slice(&two);
    let both = both.freeze();
    let batches: Vec<_> = BatchIter::new(both.clone()).map(|batch| batch.expect("whole").bytes).collect();
    assert_eq!(batches, [one.clone(), two.clone()]);
    assert_eq!(batches[1].as_ptr(), both[one.len()..].as_ptr(), "shared, not copied");
    assert_eq!(BatchIter::new(Bytes::new()).count(), 0);
    for cut in one.len() + 1..both.len() {
        let mut walk = BatchIter::new(both.slice(..cut));
        assert!(matches!(walk.next(), Some(Ok(_))));
        assert!(matches!(walk.next(), Some(Err(BatchError::Cut { .. }))), "cut at {cut}");
        assert_eq!(walk.next(), None);
    }
}

fn any_bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200))
}

type AnyRecord = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>);

fn any_record() -> impl Strategy<Value = AnyRecord> {
    let header = (proptest::collection::vec(any::<u8>(), 0..20), any_bytes());
    (any::<i64>(), any_bytes(), any_bytes(), proptest::collection::vec(header, 0..4))
}

fn build(codec: Codec, records: &[AnyRecord]) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    builder.set_base_offset(1 << 33);
    for (timestamp, key, value, headers) in records {
        let headers: Vec<_> = headers.iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
        let record = NewRecord {
            timestamp: *timestamp,
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
        };
        builder.append(&record).expect("small");
    }
    builder.build()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// What is built is read back the same, through every codec.
    #[test]
    fn round_trip(records in proptest::collection::vec(any_record(), 1..20)) {
        for codec in Codec::ALL {
            let batch = Batch::parse(&build(codec, &records)).expect("a batch");
            prop_assert_eq!(batch.check_crc(), Ok(()));
            prop_assert_eq!(batch.header.codec(), Ok(codec));
            let read = records_of(&batch.header, &batch.tail(), 1 << 20).expect("fits");
            let read: Vec<_> = read.map(|record| record.expect("sound")).collect();
            prop_assert_eq!(read.len(), records.len());
            for (index, (record, (timestamp, key, value, headers))) in read.iter().zip(&records).enumerate() {
                prop_assert_eq!(record.offset, (1 << 33) + index as i64);
                prop_assert_eq!(record.timestamp, *timestamp);
                prop_assert_eq!(record.key.as_deref(), key.as_deref());
                prop_assert_eq!(record.value.as_deref(), value.as_deref());
                let found: Vec<_> =
                    record.headers.iter().map(|h| (h.key.to_vec(), h.value.as_ref().map(|v| v.to_vec()))).collect();
                prop_assert_eq!(&found, headers);
            }
        }
    }

    /// A flipped bit behind the head is always caught by the CRC; reading on regardless never panics.
    #[test]
    fn flipped_bits(records in proptest::collection::vec(any_record(), 1..6), codec in 0usize..5, bits in
        proptest::collection::vec(any::<proptest::sample::Index>(), 1..4))
    {
        let sound = build(Codec::ALL[codec], &records);
        let mut broken = sound.to_vec();
        for bit in bits {
            let bit = bit.index(broken.len() * 8);
            broken[bit / 8] ^= 1 << (bit % 8);
        }
        let same_tail = broken[BATCH_HEAD_BYTES..] == sound[BATCH_HEAD_BYTES..];
        let same_crc = broken[17..21] == sound[17..21];
        if let Ok(header) = BatchHeader::parse(&broken) {
            let tail = Bytes::from(broken).slice(BATCH_HEAD_BYTES..);
            prop_assert_eq!(header.check_crc(&tail).is_ok(), same_tail && same_crc);
            if let Ok(records) = records_of(&header, &tail, 1 << 20) {
                records.for_each(drop);
            }
        }
    }

    /// Random bytes never panic the readers.
    #[test]
    fn garbage(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        BatchIter::new(Bytes::from(bytes)).for_each(drop);
    }

    /// Sequence arithmetic is addition modulo 2^31.
    #[test]
    fn sequence_arithmetic(sequence in 0..=i32::MAX, by in 0..=i32::MAX) {
        let sum = (i64::from(sequence) + i64::from(by)) % (1 << 31);
        prop_assert_eq!(i64::from(increment_sequence(sequence, by)), sum);
        prop_assert_eq!(decrement_sequence(increment_sequence(sequence, by), by), sequence);
    }
}

proptest! {
    /// Proves: leaving records out keeps the others' offsets, timestamps, keys, values and headers, in every codec and
    /// for every timestamp, with a delete horizon and without; the header says what is there, and the CRC holds. The
    /// emptied batch keeps its place and its producer.
    #[test]
    fn leaving_records_out(
        timestamps in prop::collection::vec(any::<i64>(), 1..20),
        kept in prop::collection::vec(any::<bool>(), 20),
        codec in 0usize..5,
        horizon in prop::option::of(any::<i64>()),
        log_append_time in any::<bool>(),
    ) {
        let codec = Codec::ALL[codec];
        let mut builder = BatchBuilder::new(codec);
        for (index, timestamp) in timestamps.iter().enumerate() {
            let key = index.to_string();
            let record = NewRecord {
                timestamp: *timestamp,
                key: (index % 3 > 0).then_some(key.as_bytes()),
                value: (index % 4 > 0).then_some(b"value"),
                headers: &[(b"h", Some(b"v")), (b"", None)],
            };
            builder.append(&record).expect("small");
        }
        let producer = Producer { producer_id: 5, producer_epoch: 6, base_sequence: 7, transactional: true };
        builder.set_producer(producer).set_base_offset(100).set_partition_leader_epoch(3);
        let (mut header, mut tail) = builder.build_parts();
        if log_append_time {
            (header, tail) = stamp_log_append_time(&header, &tail, 77);
        }
        let all: Vec<_> =
            records_of(&header, &tail, 1 << 20).expect("known codec").map(|record| record.expect("sound")).collect();
        let body = crate::record::body_of(&header, &tail, 1 << 20).expect("known codec");
        let mut cursor = crate::record::Cursor::new(&body);
        let (mut wanted, mut ranges) = (Vec::new(), Vec::new());
        for (record, keep) in all.into_iter().zip(kept) {
            let start = cursor.position();
            let raw = cursor.record().expect("sound");
            if keep {
                wanted.push(record);
                ranges.push(KeptRecord { bytes: start..raw.end, timestamp_delta: raw.timestamp_delta });
            }
        }
        let (left, left_tail) = if ranges.is_empty() {
            empty_batch(&header)
        } else {
            retain_records(&header, &body, &ranges, horizon).expect("sound")
        };
        left.check_crc(&left_tail).expect("the CRC is anew");
        prop_assert_eq!(BatchHeader::from_parts(&left.head(), &left_tail), Ok(left));
        prop_assert_eq!(left.batch_bytes(), 21 + left_tail.len());
        let found: Vec<_> =
            records_of(&left, &left_tail, 1 << 20).expect("known codec").map(|record| record.expect("sound")).collect();
        prop_assert_eq!(&found, &wanted);
        prop_assert_eq!((left.base_offset, left.last_offset()), (100, header.last_offset()));
        prop_assert_eq!((left.producer_id, left.base_sequence, left.partition_leader_epoch), (5, 7, 3));
        prop_assert!(left.is_transactional());
        prop_assert_eq!(left.timestamp_type(), header.timestamp_type());
        prop_assert_eq!(left.has_delete_horizon(), horizon.is_some() && !wanted.is_empty());
        if log_append_time || wanted.is_empty() {
            prop_assert_eq!(left.max_timestamp, header.max_timestamp);
        } else {
            prop_assert_eq!(Some(left.max_timestamp), wanted.iter().map(|record| record.timestamp).max());
        }
    }
}
