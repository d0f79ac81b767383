//! Framing: a request or response is its length in four bytes, then its header and body.
//!
//! Pure: given the bytes so far, says what is missing. Who reads the socket must not make room for a whole frame
//! because its first four bytes claim one: grow with what arrives.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use crate::api::ApiKey;
use crate::codec::{EncodeError, Message, Writer};
use crate::header::{RequestHeader, ResponseHeader};

/// Bytes of the length in front of a frame.
pub const PREFIX_BYTES: usize = 4;

/// What the bytes so far hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framed {
    /// At least this many more bytes are missing.
    Need(usize),
    /// A frame without its length, shared with the buffer it was taken from.
    Frame(Bytes),
}

/// A length that no frame can have; nothing behind it can be understood.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The length is negative.
    #[error("frame of {0} bytes")]
    Negative(i32),
    /// The length is above the cap.
    #[error("frame of {length} bytes, at most {max} are taken")]
    TooLong {
        /// Bytes announced.
        length: usize,
        /// Bytes allowed.
        max: usize,
    },
}

/// Takes the next frame out of `buffer`, if it is complete. `frame_bytes_max` caps the length without its prefix.
pub fn take_frame(buffer: &mut BytesMut, frame_bytes_max: usize) -> Result<Framed, FrameError> {
    let Some(prefix) = buffer.first_chunk::<PREFIX_BYTES>() else {
        return Ok(Framed::Need(PREFIX_BYTES - buffer.len()));
    };
    let length = i32::from_be_bytes(*prefix);
    let length = usize::try_from(length).map_err(|_| FrameError::Negative(length))?;
    if length > frame_bytes_max {
        return Err(FrameError::TooLong { length, max: frame_bytes_max });
    }
    let missing = (PREFIX_BYTES + length).saturating_sub(buffer.len());
    if missing > 0 {
        return Ok(Framed::Need(missing));
    }
    buffer.advance(PREFIX_BYTES);
    Ok(Framed::Frame(buffer.split_to(length).freeze()))
}

/// A whole request frame, prefix included, as chunks to send in order.
pub fn encode_request<M: Message>(header: &RequestHeader, request: &M) -> Result<Vec<Bytes>, EncodeError> {
    let mut writer = start();
    header.encode(&mut writer);
    request.encode(&mut writer, header.api_version)?;
    Ok(finish(writer))
}

/// A whole response frame, prefix included, as chunks to send in order. `body_version` is the request's, or 0 for
/// the answer to an ApiVersions request in an unknown version.
pub fn encode_response<M: Message>(
    api: ApiKey,
    body_version: i16,
    correlation_id: i32,
    response: &M,
) -> Result<Vec<Bytes>, EncodeError> {
    let mut writer = start();
    ResponseHeader::new(correlation_id).encode(&mut writer, api, body_version);
    response.encode(&mut writer, body_version)?;
    Ok(finish(writer))
}

fn start() -> Writer {
    let mut writer = Writer::with_capacity(128);
    writer.i32(0);
    writer
}

fn finish(writer: Writer) -> Vec<Bytes> {
    let length = (writer.len() - PREFIX_BYTES) as i32;
    let mut chunks = writer.finish();
    let first = chunks.first_mut().expect("the prefix was written");
    // In place while the buffer is not shared, that is when nothing was spliced; a small copy otherwise.
    let mut patched =
        std::mem::take(first).try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    patched
        .first_chunk_mut::<PREFIX_BYTES>()
        .expect("the prefix was written in one piece")
        .copy_from_slice(&length.to_be_bytes());
    *first = patched.freeze();
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Records;
    use crate::messages::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};

    #[test]
    fn frames_come_out_whole_or_not_at_all() {
        // Proves that every split of two frames gives the same frames, and tells how much is missing.
        let stream = [0, 0, 0, 2, 7, 8, 0, 0, 0, 0, 0, 0, 0, 1, 9];
        for cut in 0..stream.len() {
            let mut buffer = BytesMut::from(&stream[..cut]);
            let mut frames = Vec::new();
            while let Framed::Frame(frame) = take_frame(&mut buffer, 2).expect("lengths within the cap") {
                frames.push(frame);
            }
            buffer.extend_from_slice(&stream[cut..]);
            while let Framed::Frame(frame) = take_frame(&mut buffer, 2).expect("lengths within the cap") {
                frames.push(frame);
            }
            assert_eq!(frames, [&[7u8, 8][..], &[], &[9]]);
        }
        assert_eq!(take_frame(&mut BytesMut::from(&[0u8, 0, 0][..]), 9), Ok(Framed::Need(1)));
        assert_eq!(take_frame(&mut BytesMut::from(&[0u8, 0, 0, 9, 1][..]), 9), Ok(Framed::Need(8)));
    }

    #[test]
    fn hostile_lengths_are_refused() {
        // Proves that a length is refused before any byte behind it is waited for.
        let mut buffer = BytesMut::from(&[0u8, 0, 0, 10][..]);
        assert_eq!(take_frame(&mut buffer, 9), Err(FrameError::TooLong { length: 10, max: 9 }));
        let mut buffer = BytesMut::from(&[255u8, 255, 255, 255][..]);
        assert_eq!(take_frame(&mut buffer, 9), Err(FrameError::Negative(-1)));
    }

    #[test]
    fn large_records_are_shared_and_the_length_is_right() {
        // Proves that records of a response are not copied, and that the prefix counts all chunks.
        let records = Bytes::from(vec![5u8; 4096]);
        let partition = PartitionData {
            records: Some(Records::from(vec![records.clone(), records.clone()])),
            ..Default::default()
        };
        let topic = FetchableTopicResponse { partitions: vec![partition], ..Default::default() };
        let response = FetchResponse { responses: vec![topic], ..Default::default() };
        let chunks = encode_response(ApiKey::Fetch, 12, 3, &response).expect("defaults encode");
        assert_eq!(chunks.iter().filter(|chunk| chunk.as_ptr() == records.as_ptr()).count(), 2);
        let total: usize = chunks.iter().map(Bytes::len).sum();
        let mut buffer: BytesMut = chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect();
        assert!(
            matches!(take_frame(&mut buffer, total), Ok(Framed::Frame(frame)) if frame.len() + 4 == total)
        );
    }
}
