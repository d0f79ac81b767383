//! What the integration tests share: decode-and-encode of any API, and random messages out of the schema.
#![allow(dead_code)] // each test binary uses a part

pub(crate) mod random;

use ottla_protocol::api::ApiKey;
use ottla_protocol::codec::{DecodeError, Message, Reader, Writer};
use ottla_protocol::messages::{self, for_each_api};

/// Kind of a body: a request.
pub(crate) const REQUEST: u8 = 0;
/// Kind of a body: a response.
pub(crate) const RESPONSE: u8 = 1;

fn recode_one<M: Message>(reader: &mut Reader, writer: &mut Writer, version: i16) -> Result<(), DecodeError> {
    let message = M::decode(reader, version)?;
    message.encode(writer, version).expect("what was decoded in a version can be encoded in it");
    Ok(())
}

/// Decodes the body of a request or response and encodes it again.
pub(crate) fn recode(
    kind: u8,
    api: ApiKey,
    version: i16,
    reader: &mut Reader,
    writer: &mut Writer,
) -> Result<(), DecodeError> {
    macro_rules! all {
        ($(($api:ident, $request:ident, $response:ident))*) => {
            match (api, kind) {
                $((ApiKey::$api, REQUEST) => recode_one::<messages::$request>(reader, writer, version),
                (ApiKey::$api, _) => recode_one::<messages::$response>(reader, writer, version),)*
            }
        };
    }
    for_each_api!(all)
}
