//! The primitive types, the budget and the rope, each alone.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::messages::consumer_group_member_metadata_value::{
    ClassicMemberMetadata, ConsumerGroupMemberMetadataValue,
};
use crate::messages::fetch_request::{FetchRequest, ReplicaState};
use crate::messages::{
    ApiVersionsRequest, DeleteTopicsResponse, MetadataRequest, ProduceRequest, delete_topics_response,
};
use crate::types::Text;

fn written(write: impl FnOnce(&mut Writer)) -> Bytes {
    let mut writer = Writer::new();
    write(&mut writer);
    writer.finish_bytes()
}

fn encoded<M: Message>(message: &M, version: i16) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    message.encode(&mut writer, version)?;
    Ok(writer.finish_bytes())
}

proptest! {
    #[test]
    fn variable_length_integers_survive(a in any::<u32>(), b in any::<i32>(), c in any::<i64>(), shift in 0u32..64) {
        // Proves that all three kinds of variable-length integers are read back, small and large ones.
        let (a, b, c) = (a >> (shift % 32), b >> (shift % 32), c >> shift);
        let bytes = written(|w| { w.unsigned_varint(a); w.varint(b); w.varlong(c); });
        let mut reader = Reader::new(bytes);
        prop_assert_eq!(reader.unsigned_varint(), Ok(a));
        prop_assert_eq!(reader.varint(), Ok(b));
        prop_assert_eq!(reader.varlong(), Ok(c));
        prop_assert_eq!(reader.remaining(), 0);
    }

    #[test]
    fn a_rope_is_what_was_written(lengths in proptest::collection::vec(0usize..3000, 0..12)) {
        // Proves that splicing keeps order and length, and that long pieces are shared instead of copied.
        let pieces: Vec<Bytes> = lengths.iter().enumerate().map(|(i, n)| vec![i as u8; *n].into()).collect();
        let mut writer = Writer::new();
        for piece in &pieces {
            writer.raw(piece);
            writer.u8(255);
        }
        let total = writer.len();
        let chunks = writer.finish();
        let long = pieces.iter().filter(|piece| piece.len() >= SPLICE_BYTES_MIN);
        for piece in long {
            prop_assert!(chunks.iter().any(|chunk| chunk.as_ptr() == piece.as_ptr()));
        }
        let all = Records::from(chunks).to_bytes();
        let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied().chain([255])).collect();
        prop_assert_eq!(total, expected.len());
        prop_assert_eq!(&all[..], &expected[..]);
    }
}

#[test]
fn overlong_integers_are_refused() {
    // Proves that a variable-length integer ends within its type's bytes and bits.
    let read = |bytes: &'static [u8]| Reader::new(Bytes::from_static(bytes));
    assert_eq!(read(&[255, 255, 255, 255, 15]).unsigned_varint(), Ok(u32::MAX));
    assert_eq!(read(&[255, 255, 255, 255, 16]).unsigned_varint(), Err(DecodeError::BadVarint));
    assert_eq!(read(&[255, 255, 255, 255, 255, 1]).unsigned_varint(), Err(DecodeError::BadVarint));
    assert_eq!(read(&[255; 11]).varlong(), Err(DecodeError::BadVarint));
    let nine = [255, 255, 255, 255, 255, 255, 255, 255, 255];
    let ends_with = |last: u8| Reader::new(nine.into_iter().chain([last]).collect::<Vec<u8>>().into());
    assert_eq!(ends_with(1).varlong(), Ok(i64::MIN));
    assert_eq!(ends_with(2).varlong(), Err(DecodeError::BadVarint));
    assert_eq!(read(&[128]).varint(), Err(DecodeError::UnexpectedEnd { wanted: 1, left: 0 }));
}

#[test]
fn lengths_are_checked_before_anything_is_taken() {
    // Proves that negative and too long lengths are refused, in both encodings.
    let mut reader = Reader::new(Bytes::from_static(&[255, 254]));
    assert_eq!(reader.nullable_string(), Err(DecodeError::BadLength(-2)));
    let mut reader = Reader::new(Bytes::from_static(&[127, 255, 255, 255, 0]));
    assert_eq!(reader.nullable_bytes(), Err(DecodeError::UnexpectedEnd { wanted: 0x7fff_ffff, left: 1 }));
    let mut reader = Reader::new(Bytes::from_static(&[255, 255, 255, 255, 15]));
    reader.set_flexible(true);
    assert_eq!(reader.nullable_bytes(), Err(DecodeError::BadLength(0xffff_fffe)));
    let mut reader = Reader::new(Bytes::from_static(&[0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(reader.nullable_array::<i32>(0), Err(DecodeError::BadCount { count: 3, left: 8 }));
    let mut reader = Reader::new(Bytes::from_static(&[0, 2, 0xc3, 0x28]));
    assert_eq!(reader.nullable_string(), Err(DecodeError::NotUtf8));
}

#[test]
fn the_budget_is_for_all_arrays_together() {
    // Proves that arrays share one budget, and that exactly the budget is enough.
    let bytes = written(|w| {
        vec![1i32, 2, 3].write(w, 0);
        vec![4i32].write(w, 0);
    });
    for (budget, second) in [(16, Ok(Some(vec![4]))), (15, Err(DecodeError::OverBudget(15)))] {
        let mut reader = Reader::with_budget(bytes.clone(), budget);
        assert_eq!(reader.nullable_array(0), Ok(Some(vec![1i32, 2, 3])));
        assert_eq!(reader.nullable_array::<i32>(0), second);
    }
}

#[test]
fn records_and_strings_share_the_request() {
    // Proves that decoding copies no payload.
    let bytes = written(|w| {
        let mut request = ProduceRequest { transactional_id: Some("id".into()), ..Default::default() };
        request.topic_data.push(Default::default());
        request.topic_data[0].partition_data.push(Default::default());
        request.topic_data[0].partition_data[0].records = Some(Bytes::from(vec![7; 5000]).into());
        request.encode(w, 9).expect("every field exists in version 9");
    });
    let inside = bytes.as_ptr_range();
    let request = ProduceRequest::decode(&mut Reader::new(bytes), 9).expect("our own bytes");
    let records = request.topic_data[0].partition_data[0].records.as_ref().expect("not null");
    assert!(inside.contains(&records.chunks()[0].as_ptr()));
    assert!(inside.contains(&request.transactional_id.expect("not null").as_bytes().as_ptr()));
}

#[test]
fn fields_that_a_version_has_not() {
    // Proves Kafka's rule: defaults and ignorable values are dropped, other values are errors that name the field.
    let mut request = FetchRequest { cluster_id: Some("c".into()), session_id: 5, ..Default::default() };
    assert!(encoded(&request, 4).is_ok());
    request.replica_state = ReplicaState { replica_id: 1, ..Default::default() };
    let error = EncodeError::FieldNotInVersion { field: "FetchRequest.ReplicaState", version: 4 };
    assert_eq!(encoded(&request, 4), Err(error));
    assert!(encoded(&request, 15).is_ok());
    request.replica_id = 3;
    let error = EncodeError::FieldNotInVersion { field: "FetchRequest.ReplicaId", version: 15 };
    assert_eq!(encoded(&request, 15), Err(error));
    let error = EncodeError::UnsupportedVersion { name: "FetchRequest", version: 3 };
    assert_eq!(encoded(&request, 3), Err(error));
    assert_eq!(
        FetchRequest::decode(&mut Reader::new(Bytes::new()), 19),
        Err(DecodeError::UnsupportedVersion { name: "FetchRequest", version: 19 })
    );
}

#[test]
fn null_only_where_the_version_allows_it() {
    // Proves that a field which may be null in some versions is refused as null in the others, both ways.
    let all_topics = MetadataRequest { topics: None, ..Default::default() };
    assert_eq!(encoded(&all_topics, 0), Err(EncodeError::Null("MetadataRequest.Topics")));
    assert_eq!(encoded(&all_topics, 1).expect("null means all from version 1 on").as_ref(), [255; 4]);
    let null = Bytes::from_static(&[255; 4]);
    assert_eq!(MetadataRequest::decode(&mut Reader::new(null.clone()), 0), Err(DecodeError::Null("Topics")));
    assert_eq!(MetadataRequest::decode(&mut Reader::new(null), 1).map(|m| m.topics), Ok(None));
    let result = delete_topics_response::DeletableTopicResult { name: None, ..Default::default() };
    let response = DeleteTopicsResponse { responses: vec![result], ..Default::default() };
    assert!(encoded(&response, 5).is_err());
    assert!(encoded(&response, 6).is_ok());
}

#[test]
fn unknown_tagged_fields_survive_in_order() {
    // Proves that tags of a later Kafka are kept, and written between the known ones in the order of their numbers.
    let bytes = Bytes::from_static(&[1, 1, 2, 9, 2, 7, 7, 200, 1, 0]);
    let request = ApiVersionsRequest::decode(&mut Reader::new(bytes.clone()), 3).expect("well formed");
    assert_eq!(request.unknown_tagged_fields.fields().len(), 2);
    assert_eq!(encoded(&request, 3), Ok(bytes));

    let mut request = FetchRequest { cluster_id: Some("c".into()), ..Default::default() };
    request.replica_state.replica_id = 1;
    request.unknown_tagged_fields.push(70, Bytes::from_static(&[5]));
    let bytes = encoded(&request, 15).expect("every field exists in version 15");
    assert_eq!(
        bytes.last_chunk(),
        Some(&[3u8, 0, 2, 2, b'c', 1, 13, 0, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 0, 70, 1, 5])
    );
    assert_eq!(FetchRequest::decode(&mut Reader::new(bytes), 15), Ok(request));
}

#[test]
fn a_tagged_field_ends_where_its_size_says() {
    // Proves that a known tag whose body is shorter or longer than its size is refused.
    for (size, body) in [(1u8, &[0u8][..]), (3, &[2, b'c', 0])] {
        let mut bytes = encoded(&FetchRequest::default(), 12).expect("defaults").to_vec();
        assert_eq!(bytes.pop(), Some(0), "no tagged fields");
        bytes.extend([1, 0, size]);
        bytes.extend(body);
        let result = FetchRequest::decode(&mut Reader::new(bytes.into()), 12).map(|m| m.cluster_id);
        if size == 1 {
            assert_eq!(result, Ok(None), "null");
        } else {
            assert_eq!(result, Err(DecodeError::BadTagSize(1)));
        }
    }
}

#[test]
fn a_tagged_structure_that_is_null() {
    // Proves the odd encoding of the one tagged structure that may be null: a byte 0, not -1, and a default that is
    // not null.
    let value = ConsumerGroupMemberMetadataValue { classic_member_metadata: None, ..Default::default() };
    let bytes = encoded(&value, 0).expect("version 0 has every field");
    assert_eq!(bytes.last_chunk(), Some(&[1u8, 0, 1, 0]));
    assert_eq!(ConsumerGroupMemberMetadataValue::decode(&mut Reader::new(bytes), 0), Ok(value.clone()));
    let classic = ClassicMemberMetadata { session_timeout_ms: 9, ..Default::default() };
    let value =
        ConsumerGroupMemberMetadataValue { classic_member_metadata: Some(Box::new(classic)), ..value };
    let bytes = encoded(&value, 0).expect("version 0 has every field");
    assert_eq!(bytes.last_chunk(), Some(&[1u8, 0, 7, 1, 0, 0, 0, 9, 1, 0]));
    assert_eq!(ConsumerGroupMemberMetadataValue::decode(&mut Reader::new(bytes), 0), Ok(value));
    assert_eq!(encoded(&ConsumerGroupMemberMetadataValue::default(), 0).expect("defaults").last(), Some(&0));
}

#[test]
fn too_long_strings_are_refused() {
    // Proves that what the wire cannot say is an error of the encoder, and that the error does not stick.
    let request = MetadataRequest::default();
    let long =
        ProduceRequest { transactional_id: Some(Text::from("x".repeat(40_000))), ..Default::default() };
    let mut writer = Writer::new();
    assert_eq!(long.encode(&mut writer, 9), Err(EncodeError::TooLong(40_000)));
    assert_eq!(request.encode(&mut writer, 9), Ok(()));
}

/// Proves that an answer's errors are counted by code wherever they stand, that success is not, and that a fifth code
/// is counted under the fourth instead of getting lost.
#[test]
fn error_codes_are_counted() {
    let topic =
        |error_code| delete_topics_response::DeletableTopicResult { error_code, ..Default::default() };
    let tally = |codes: &[i16]| {
        let responses = codes.iter().map(|code| topic(*code)).collect();
        let mut writer = Writer::new();
        DeleteTopicsResponse { responses, ..Default::default() }.encode(&mut writer, 4).expect("it fits");
        writer.error_tally().iter().collect::<Vec<_>>()
    };
    assert_eq!(tally(&[0, 0]), vec![]);
    assert_eq!(tally(&[3, 0, 7, 3, -1]), vec![(3, 2), (7, 1), (-1, 1)]);
    assert_eq!(tally(&[1, 2, 3, 4, 5, 5, 1]), vec![(1, 2), (2, 1), (3, 1), (4, 3)]);
}
