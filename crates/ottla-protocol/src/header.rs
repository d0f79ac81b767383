//! Headers in front of requests and responses, in the version that the API and its version ask for.
//!
//! A broker that gets an ApiVersions request in a version it does not know reads the header all the same (it is a
//! version 2 header from version 3 on) and answers error 35 with a version 0 body; response headers of ApiVersions
//! are always version 0, so every client can read that.

use crate::api::ApiKey;
use crate::codec::{DecodeError, Reader, TaggedFields, Writer};
use crate::types::Text;

/// Header of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestHeader {
    /// The API asked for.
    pub api: ApiKey,
    /// Version of the request; not checked against the table.
    pub api_version: i16,
    /// The client's number for the request, handed back in the response.
    pub correlation_id: i32,
    /// The client's name for itself.
    pub client_id: Option<Text>,
    /// Tagged fields of a version 2 header.
    pub unknown_tagged_fields: TaggedFields,
}

impl RequestHeader {
    /// A header as a client writes it.
    pub fn new(api: ApiKey, api_version: i16, correlation_id: i32, client_id: Option<Text>) -> Self {
        Self { api, api_version, correlation_id, client_id, unknown_tagged_fields: TaggedFields::EMPTY }
    }

    /// Reads the header; the body follows. An unknown API key is an error, an unknown version is not.
    pub fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let key = reader.i16()?;
        let api = ApiKey::from_code(key).ok_or(DecodeError::UnknownApi(key))?;
        let api_version = reader.i16()?;
        let correlation_id = reader.i32()?;
        let client_id = reader.inflexible_nullable_string()?;
        reader.set_flexible(api.request_header_version(api_version) >= 2);
        let unknown_tagged_fields = reader.tagged_fields()?;
        Ok(Self { api, api_version, correlation_id, client_id, unknown_tagged_fields })
    }

    /// Writes the header.
    pub fn encode(&self, writer: &mut Writer) {
        writer.i16(self.api.code());
        writer.i16(self.api_version);
        writer.i32(self.correlation_id);
        writer.inflexible_nullable_string(self.client_id.as_ref());
        writer.set_flexible(self.api.request_header_version(self.api_version) >= 2);
        writer.tagged_fields(&self.unknown_tagged_fields);
    }
}

/// Header of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseHeader {
    /// The number of the request that is answered.
    pub correlation_id: i32,
    /// Tagged fields of a version 1 header.
    pub unknown_tagged_fields: TaggedFields,
}

impl ResponseHeader {
    /// The header that answers a request.
    pub fn new(correlation_id: i32) -> Self {
        Self { correlation_id, unknown_tagged_fields: TaggedFields::EMPTY }
    }

    /// Reads the header of a response to a request of that API and version.
    pub fn decode(reader: &mut Reader, api: ApiKey, api_version: i16) -> Result<Self, DecodeError> {
        let correlation_id = reader.i32()?;
        reader.set_flexible(api.response_header_version(api_version) >= 1);
        Ok(Self { correlation_id, unknown_tagged_fields: reader.tagged_fields()? })
    }

    /// Writes the header of a response to a request of that API and version.
    pub fn encode(&self, writer: &mut Writer, api: ApiKey, api_version: i16) {
        writer.i32(self.correlation_id);
        writer.set_flexible(api.response_header_version(api_version) >= 1);
        writer.tagged_fields(&self.unknown_tagged_fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{self, Message};

    #[test]
    fn headers_agree_with_the_schema() {
        // Proves that the hand-written header has the bytes of the schema's message, in both versions.
        for (api, api_version, version) in [(ApiKey::Metadata, 8, 1), (ApiKey::Metadata, 9, 2)] {
            let header = RequestHeader::new(api, api_version, 7, Some("client".into()));
            let mut ours = Writer::new();
            header.encode(&mut ours);
            let ours = ours.finish_bytes();
            let schema = messages::RequestHeader {
                request_api_key: api.code(),
                request_api_version: api_version,
                correlation_id: 7,
                client_id: Some("client".into()),
                unknown_tagged_fields: TaggedFields::EMPTY,
            };
            let mut theirs = Writer::new();
            schema.encode(&mut theirs, version).expect("all fields exist in both versions");
            assert_eq!(ours, theirs.finish_bytes());
            let mut reader = Reader::new(ours);
            assert_eq!(RequestHeader::decode(&mut reader), Ok(header));
            assert_eq!(reader.remaining(), 0);
        }
    }

    #[test]
    fn api_versions_is_answered_with_the_oldest_header() {
        // Proves KIP-511's exception: a response header without tagged fields in flexible versions.
        let mut writer = Writer::new();
        ResponseHeader::new(5).encode(&mut writer, ApiKey::ApiVersions, 3);
        assert_eq!(writer.len(), 4);
        let mut writer = Writer::new();
        ResponseHeader::new(5).encode(&mut writer, ApiKey::Metadata, 9);
        assert_eq!(writer.len(), 5);
        // A version from the future has a version 2 header, and its client id can be read.
        let mut writer = Writer::new();
        RequestHeader::new(ApiKey::ApiVersions, 99, 5, Some("future".into())).encode(&mut writer);
        let header = RequestHeader::decode(&mut Reader::new(writer.finish_bytes())).expect("a known API");
        assert_eq!((header.api_version, header.correlation_id), (99, 5));
    }

    #[test]
    fn unknown_api_is_named() {
        // Proves that a key without a row in the table is refused with its number.
        let reader = &mut Reader::new(bytes::Bytes::from_static(&[0, 4, 0, 0, 0, 0, 0, 0, 255, 255]));
        assert_eq!(RequestHeader::decode(reader), Err(DecodeError::UnknownApi(4)));
    }
}
