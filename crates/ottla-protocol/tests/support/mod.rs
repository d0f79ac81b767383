//! What the integration tests share: decode-and-encode of any message, and random messages out of the schema.
#![allow(dead_code)] // each test binary uses a part

pub(crate) mod random;

use ottla_protocol::codec::{DecodeError, Message, Reader, Writer};
use ottla_protocol::messages::{self, for_each_message};

fn recode_one<M: Message>(reader: &mut Reader, writer: &mut Writer, version: i16) -> Result<(), DecodeError> {
    let message = M::decode(reader, version)?;
    message.encode(writer, version).expect("what was decoded in a version can be encoded in it");
    Ok(())
}

/// Decodes the message of that name and encodes it again.
pub(crate) fn recode(
    name: &str,
    version: i16,
    reader: &mut Reader,
    writer: &mut Writer,
) -> Result<(), DecodeError> {
    macro_rules! all {
        ($($message:ident)*) => {
            match name {
                $(stringify!($message) => recode_one::<messages::$message>(reader, writer, version),)*
                other => panic!("no message {other}"),
            }
        };
    }
    for_each_message!(all)
}

/// Decodes the message of that name and drops it.
pub(crate) fn decode(name: &str, version: i16, reader: &mut Reader) -> Result<(), DecodeError> {
    macro_rules! all {
        ($($message:ident)*) => {
            match name {
                $(stringify!($message) => messages::$message::decode(reader, version).map(drop),)*
                other => panic!("no message {other}"),
            }
        };
    }
    for_each_message!(all)
}
