//! Frames that real clients and Apache Kafka exchanged decode and encode back to the same bytes.
//!
//! `tests/corpus/README.md` says what is recorded and how the file is laid out.

mod support;

use std::collections::BTreeMap;
use std::io::Read;

use bytes::Bytes;
use ottla_protocol::api::ApiKey;
use ottla_protocol::codec::{Reader, Writer};
use ottla_protocol::header::{RequestHeader, ResponseHeader};
use support::recode;

/// Kind of a frame: a request.
const REQUEST: u8 = 0;
/// Kind of a frame: a response.
const RESPONSE: u8 = 1;

/// A recorded frame.
struct Frame {
    api: ApiKey,
    version: i16,
    kind: u8,
    name: String,
    bytes: Bytes,
}

/// Bytes that librdkafka sends behind the end of these requests; Kafka ignores them.
const SPARE: [(&str, ApiKey, usize); 2] =
    [("librdkafka", ApiKey::Metadata, 3), ("librdkafka", ApiKey::AlterUserScramCredentials, 1)];

fn frames() -> Vec<Frame> {
    let mut all = Vec::new();
    let packed = include_bytes!("corpus/frames.gz");
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut all).expect("the packed corpus is whole");
    let mut reader = Reader::new(Bytes::from(all));
    let mut frames = Vec::new();
    while reader.remaining() > 0 {
        let api = ApiKey::from_code(reader.i16().expect("key")).expect("a known API");
        let (version, kind) = (reader.i16().expect("version"), reader.u8().expect("kind"));
        let name = usize::from(reader.u8().expect("name length"));
        let name = String::from_utf8(reader.raw(name).expect("name").to_vec()).expect("ASCII");
        let length = reader.u32().expect("length") as usize;
        frames.push(Frame { api, version, kind, name, bytes: reader.raw(length).expect("frame") });
    }
    frames
}

/// Decodes a frame and encodes it again: the bytes written, and how many were left unread.
fn again(frame: &Frame) -> (Bytes, usize) {
    let mut reader = Reader::new(frame.bytes.clone());
    let mut writer = Writer::new();
    if frame.kind == REQUEST {
        let header = RequestHeader::decode(&mut reader).expect("header");
        assert_eq!((header.api, header.api_version), (frame.api, frame.version), "{}", frame.name);
        header.encode(&mut writer);
    } else {
        let header = ResponseHeader::decode(&mut reader, frame.api, frame.version).expect("header");
        header.encode(&mut writer, frame.api, frame.version);
    }
    let message = format!("{}{}", frame.api, if frame.kind == REQUEST { "Request" } else { "Response" });
    recode(&message, frame.version, &mut reader, &mut writer)
        .unwrap_or_else(|error| panic!("{}: {error}", frame.name));
    (writer.finish_bytes(), reader.remaining())
}

#[test]
fn recorded_frames_encode_to_the_same_bytes() {
    // Proves that what real clients and Kafka send is understood to the last byte, in every version they use, and
    // that spare bytes behind four requests of librdkafka do no harm.
    let mut apis = BTreeMap::new();
    let mut spare_frames = 0;
    let frames = frames();
    for frame in &frames {
        let (bytes, left) = again(frame);
        let known = SPARE.iter().find(|(client, api, _)| frame.name.contains(client) && frame.api == *api);
        let allowed = known.map_or(0, |(_, _, spare)| *spare);
        assert!(left == 0 || frame.kind == REQUEST && left == allowed, "{}: {left} bytes left", frame.name);
        spare_frames += usize::from(left > 0);
        let end = frame.bytes.len() - left;
        assert_eq!(bytes, frame.bytes.slice(..end), "{}", frame.name);
        *apis.entry((frame.api, frame.kind)).or_insert(0) += 1;
    }
    assert_eq!(frames.len(), 1403);
    assert_eq!(spare_frames, 4);
    assert_eq!(apis.keys().filter(|(_, kind)| *kind == RESPONSE).count(), 56);
}
