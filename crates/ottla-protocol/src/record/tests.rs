//! Strict decoding of records, and agreement with another implementation of the format.

use bytes::{Bytes, BytesMut};
use kafka_protocol::records as other;

use super::*;
use crate::batch::{Batch, BatchBuilder, Producer};

fn decode(bytes: &[u8]) -> Result<RawRecord, RecordError> {
    Cursor::new(bytes).record()
}

/// Varints are read by their zigzag rule, up to the ends of their types, and no further.
#[test]
fn varints() {
    for (bytes, value) in [
        (&[0][..], Ok(0)),
        (&[1], Ok(-1)),
        (&[2], Ok(1)),
        (&[0x7f], Ok(-64)),
        (&[0x80, 0x01], Ok(64)),
        (&[0x80, 0x00], Ok(0)),
        (&[0xfe, 0xff, 0xff, 0xff, 0x0f], Ok(i32::MAX)),
        (&[0xff, 0xff, 0xff, 0xff, 0x0f], Ok(i32::MIN)),
        (&[0xff, 0xff, 0xff, 0xff, 0x1f], Err(RecordError::Varint)),
        (&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00], Err(RecordError::Varint)),
        (&[0x80, 0x80], Err(RecordError::Cut)),
        (&[], Err(RecordError::Cut)),
    ] {
        assert_eq!(Cursor::new(bytes).varint(), value, "{bytes:x?}");
    }
    let longest = [0xff; 9];
    for (last, value) in [(1, Ok(i64::MIN)), (2, Err(RecordError::Varint)), (0x81, Err(RecordError::Varint))]
    {
        let mut bytes = longest.to_vec();
        bytes.push(last);
        assert_eq!(Cursor::new(&bytes).varlong(), value, "ends in {last:#x}");
    }
    for value in [0, -1, 1, 63, 64, -64, -65, i64::MAX, i64::MIN, 1 << 31, -(1 << 40)] {
        let mut bytes = Vec::new();
        put_varlong(&mut bytes, value);
        assert_eq!(bytes.len(), varlong_bytes(value), "size of {value}");
        let mut cursor = Cursor::new(&bytes);
        assert_eq!((cursor.varlong(), cursor.is_at_end()), (Ok(value), true));
    }
}

/// Each way a record can be wrong has its error; nothing reads outside the record.
#[test]
fn bad_records() {
    // size, attributes, timestamp delta, offset delta, key length, value length, header count
    let sound = [12, 0, 0, 0, 1, 1, 0];
    assert_eq!(decode(&sound).expect("sound").end, 7);
    for (what, bytes, error) in [
        ("empty", &[][..], RecordError::Cut),
        ("negative size", &[1, 0, 0, 0, 1, 1, 0], RecordError::Length),
        ("size behind the end", &[14, 0, 0, 0, 1, 1, 0], RecordError::Cut),
        ("size too small", &[10, 0, 0, 0, 1, 1, 0], RecordError::Cut),
        ("size too large", &[14, 0, 0, 0, 1, 1, 0, 0], RecordError::Size),
        ("key length -2", &[12, 0, 0, 0, 3, 1, 0], RecordError::Length),
        ("key reaches out", &[12, 0, 0, 0, 8, 1, 0, 9, 9, 9], RecordError::Length),
        ("value length -2", &[12, 0, 0, 0, 1, 3, 0], RecordError::Length),
        ("negative header count", &[12, 0, 0, 0, 1, 1, 1], RecordError::Length),
        ("headers that cannot be there", &[16, 0, 0, 0, 1, 1, 4, 0, 1], RecordError::Length),
        ("header without a key", &[16, 0, 0, 0, 1, 1, 2, 1, 1], RecordError::Length),
        ("endless varint", &[0xff; 20], RecordError::Varint),
        ("zeros", &[0; 20], RecordError::Cut),
    ] {
        assert_eq!(decode(bytes), Err(error), "{what}");
    }
}

/// The iterator ends behind the last record, reports what follows it, and stops at the first error.
#[test]
fn iteration_ends() {
    let (header, tail) = crate::batch::build_plain(5, Producer::NONE, [(&b"a"[..], None), (b"b", None)]);
    let body = body_of(&header, &tail, 0).expect("not compressed");
    assert_eq!(RecordIter::new(&header, body.clone()).filter(Result::is_ok).count(), 2);
    let mut longer = BytesMut::from(&body[..]);
    longer.extend_from_slice(&[0]);
    let mut records = RecordIter::new(&header, longer.freeze()).skip(2);
    assert_eq!((records.next(), records.next()), (Some(Err(RecordError::Trailing)), None));
    let more = crate::batch::BatchHeader { records_count: i32::MAX, ..header };
    let mut records = RecordIter::new(&more, body).skip(2);
    assert_eq!((records.next(), records.next()), (Some(Err(RecordError::Cut)), None));
    let none = crate::batch::BatchHeader { records_count: -5, ..header };
    assert_eq!(RecordIter::new(&none, Bytes::new()).next(), None);
}

/// Keys and values share the body's buffer.
#[test]
fn nothing_is_copied() {
    let (header, tail) = crate::batch::build_plain(5, Producer::NONE, [(&b"key"[..], Some(&b"value"[..]))]);
    let record = records_of(&header, &tail, 0).expect("plain").next().expect("one").expect("sound");
    let inside = tail.as_ptr_range();
    assert!(inside.contains(&record.key.expect("a key").as_ptr()));
    assert!(inside.contains(&record.value.expect("a value").as_ptr()));
}

/// The size that a builder reserves is never too small, and a batch refuses what would make it too large.
#[test]
fn encoded_sizes() {
    let long = vec![7; 70_000];
    let headers = [(&b"h"[..], Some(&long[..])), (b"", None)];
    for record in [
        NewRecord { timestamp: 0, key: None, value: None, headers: &[] },
        NewRecord { timestamp: i64::MIN, key: Some(&long), value: Some(&long), headers: &headers },
    ] {
        let mut out = Vec::new();
        encode(&mut out, i64::MIN, i32::MAX, &record);
        assert!(out.len() <= record.encoded_bytes_max());
        let raw = decode(&out).expect("sound");
        assert_eq!((raw.timestamp_delta, raw.offset_delta, raw.end), (i64::MIN, i32::MAX, out.len()));
    }
}

fn other_record(index: usize, compressible: bool) -> other::Record {
    let value = if compressible { vec![b'x'; 500] } else { (0..index as u8 * 3).collect() };
    other::Record {
        transactional: true,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: 4,
        producer_id: 77,
        producer_epoch: 3,
        timestamp_type: other::TimestampType::Creation,
        offset: 1000 + index as i64,
        sequence: 50 + index as i32,
        timestamp: 1_700_000_000_000 + index as i64,
        key: (!index.is_multiple_of(3)).then(|| Bytes::from(format!("key {index}"))),
        value: (!index.is_multiple_of(5)).then(|| Bytes::from(value)),
        headers: (0..index % 4)
            .map(|n| (format!("h{n}").into(), (n != 1).then(|| Bytes::from_static(b"value"))))
            .collect(),
    }
}

const CODECS: [(Codec, other::Compression); 5] = [
    (Codec::None, other::Compression::None),
    (Codec::Gzip, other::Compression::Gzip),
    (Codec::Snappy, other::Compression::Snappy),
    (Codec::Lz4, other::Compression::Lz4),
    (Codec::Zstd, other::Compression::Zstd),
];

/// Batches written by the kafka-protocol crate read the same here, through every codec.
#[test]
fn reads_what_others_write() {
    let records: Vec<_> = (0..40).map(|index| other_record(index, index % 2 == 0)).collect();
    for (codec, compression) in CODECS {
        let mut bytes = BytesMut::new();
        let options = other::RecordEncodeOptions { version: 2, compression };
        other::RecordBatchEncoder::encode(&mut bytes, &records, &options).expect("encodes");
        let batch = Batch::parse(&bytes.freeze()).expect("a batch");
        batch.check_crc().expect("its CRC");
        let header = batch.header;
        assert_eq!((header.codec(), header.is_transactional()), (Ok(codec), true));
        assert_eq!((header.base_offset, header.base_sequence, header.last_sequence()), (1000, 50, 89));
        assert_eq!((header.producer_id, header.producer_epoch), (77, 3));
        let read: Vec<_> =
            records_of(&header, &batch.tail(), 1 << 20).expect("fits").map(|r| r.expect("sound")).collect();
        assert_eq!(read.len(), records.len());
        for (ours, theirs) in read.iter().zip(&records) {
            assert_eq!((ours.offset, ours.timestamp), (theirs.offset, theirs.timestamp));
            assert_eq!((&ours.key, &ours.value), (&theirs.key, &theirs.value));
            let headers: Vec<_> = theirs
                .headers
                .iter()
                .map(|(key, value)| Header {
                    key: Bytes::copy_from_slice(key.as_bytes()),
                    value: value.clone(),
                })
                .collect();
            assert_eq!(ours.headers, headers);
        }
    }
}

/// Batches written here read the same in the kafka-protocol crate; uncompressed ones are equal byte for byte.
#[test]
fn others_read_what_is_written() {
    let records: Vec<_> = (0..40).map(|index| other_record(index, index % 2 == 0)).collect();
    for (codec, compression) in CODECS {
        let mut builder = BatchBuilder::new(codec);
        let producer =
            Producer { producer_id: 77, producer_epoch: 3, base_sequence: 50, transactional: true };
        builder.set_base_offset(1000).set_partition_leader_epoch(4).set_producer(producer);
        for record in &records {
            let headers: Vec<_> =
                record.headers.iter().map(|(key, value)| (key.as_bytes(), value.as_deref())).collect();
            let record = NewRecord {
                timestamp: record.timestamp,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: &headers,
            };
            builder.append(&record).expect("small");
        }
        let bytes = builder.build();
        let read = other::RecordBatchDecoder::decode(&mut bytes.clone()).expect("decodes");
        assert_eq!((read.compression, &read.records), (compression, &records), "{codec:?}");
        if codec == Codec::None {
            let mut theirs = BytesMut::new();
            let options = other::RecordEncodeOptions { version: 2, compression };
            other::RecordBatchEncoder::encode(&mut theirs, &records, &options).expect("encodes");
            assert_eq!(bytes, theirs);
        }
    }
}
