//! The traits of messages and of their parts, and how the notation's types map to Rust's.

use bytes::Bytes;

use super::error::{DecodeError, EncodeError};
use super::reader::Reader;
use super::records::Records;
use super::writer::Writer;
use crate::api::ApiKey;
use crate::types::{Text, Uuid};

/// A part of a message: a field's value or a structure. Versions are checked by [`Message`], not here.
pub trait Wire: Sized {
    /// Bytes that any encoding has at least, 1 or more: bounds the count of an array.
    const SMALLEST: usize = 1;

    /// Reads one in the given version of its message.
    fn read(reader: &mut Reader, version: i16) -> Result<Self, DecodeError>;

    /// Writes it in the given version of its message; errors are kept by the writer.
    fn write(&self, writer: &mut Writer, version: i16);
}

/// A message of the schema.
pub trait Message: Wire + Default {
    /// Kafka's name.
    const NAME: &'static str;
    /// First version that exists.
    const MIN_VERSION: i16;
    /// Last version that exists.
    const MAX_VERSION: i16;
    /// First version with compact lengths and tagged fields; `i16::MAX` for none.
    const FIRST_FLEXIBLE: i16;

    /// Reads the message. Bytes behind its end stay in the reader: Kafka ignores them in requests.
    fn decode(reader: &mut Reader, version: i16) -> Result<Self, DecodeError> {
        if version < Self::MIN_VERSION || version > Self::MAX_VERSION {
            return Err(DecodeError::UnsupportedVersion { name: Self::NAME, version });
        }
        reader.set_flexible(version >= Self::FIRST_FLEXIBLE);
        Self::read(reader, version)
    }

    /// Writes the message. A field that the version has not is dropped when it holds its default or Kafka calls it
    /// ignorable, and is an error otherwise. After an error the writer's content is of no use.
    fn encode(&self, writer: &mut Writer, version: i16) -> Result<(), EncodeError> {
        if version < Self::MIN_VERSION || version > Self::MAX_VERSION {
            return Err(EncodeError::UnsupportedVersion { name: Self::NAME, version });
        }
        writer.set_flexible(version >= Self::FIRST_FLEXIBLE);
        self.write(writer, version);
        writer.take_error().map_or(Ok(()), Err)
    }
}

/// A request: knows its API and its response.
pub trait Request: Message {
    /// The API.
    const API: ApiKey;
    /// What answers it, in the same version.
    type Response: Message;
}

/// The key of a record in an internal topic.
pub trait RecordKey: Message {
    /// The 16-bit number in front of the key, which tells the types of records apart.
    const RECORD_TYPE: i16;
}

/// Refuses null in the versions that do not allow it.
pub(crate) fn not_null<T>(
    value: Option<T>,
    null_allowed: bool,
    field: &'static str,
) -> Result<Option<T>, DecodeError> {
    if value.is_none() && !null_allowed { Err(DecodeError::Null(field)) } else { Ok(value) }
}

macro_rules! plain {
    ($($type:ty, $name:ident, $smallest:expr;)*) => { $(
        impl Wire for $type {
            const SMALLEST: usize = $smallest;
            fn read(reader: &mut Reader, _version: i16) -> Result<Self, DecodeError> {
                reader.$name()
            }
            fn write(&self, writer: &mut Writer, _version: i16) {
                writer.$name(*self);
            }
        }
    )* };
}

plain! {
    bool, bool, 1;
    i8, i8, 1;
    i16, i16, 2;
    u16, u16, 2;
    i32, i32, 4;
    u32, u32, 4;
    i64, i64, 8;
    f64, f64, 8;
    Uuid, uuid, 16;
}

impl Wire for Text {
    fn read(reader: &mut Reader, _version: i16) -> Result<Self, DecodeError> {
        reader.nullable_string()?.ok_or(DecodeError::Null("string"))
    }

    fn write(&self, writer: &mut Writer, _version: i16) {
        writer.nullable_string(Some(self));
    }
}

impl Wire for Option<Text> {
    fn read(reader: &mut Reader, _version: i16) -> Result<Self, DecodeError> {
        reader.nullable_string()
    }

    fn write(&self, writer: &mut Writer, _version: i16) {
        writer.nullable_string(self.as_ref());
    }
}

impl Wire for Bytes {
    fn read(reader: &mut Reader, _version: i16) -> Result<Self, DecodeError> {
        reader.nullable_bytes()?.ok_or(DecodeError::Null("bytes"))
    }

    fn write(&self, writer: &mut Writer, _version: i16) {
        writer.nullable_bytes(Some(self));
    }
}

impl Wire for Option<Bytes> {
    fn read(reader: &mut Reader, _version: i16) -> Result<Self, DecodeError> {
        reader.nullable_bytes()
    }

    fn write(&self, writer: &mut Writer, _version: i16) {
        writer.nullable_bytes(self.as_ref());
    }
}

impl Wire for Option<Records> {
    fn read(reader: &mut Reader, _version: i16) -> Result<Self, DecodeError> {
        Ok(reader.nullable_bytes()?.map(Records::from))
    }

    fn write(&self, writer: &mut Writer, _version: i16) {
        writer.nullable_records(self.as_ref());
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn read(reader: &mut Reader, version: i16) -> Result<Self, DecodeError> {
        reader.nullable_array(version)?.ok_or(DecodeError::Null("array"))
    }

    fn write(&self, writer: &mut Writer, version: i16) {
        writer.length(Some(self.len()), false);
        self.iter().for_each(|element| element.write(writer, version));
    }
}

impl<T: Wire> Wire for Option<Vec<T>> {
    fn read(reader: &mut Reader, version: i16) -> Result<Self, DecodeError> {
        reader.nullable_array(version)
    }

    fn write(&self, writer: &mut Writer, version: i16) {
        match self {
            Some(elements) => elements.write(writer, version),
            None => writer.length(None, false),
        }
    }
}

/// A structure that may be null: a byte, 1 for present and -1 for null, in front of it.
impl<T: Wire> Wire for Option<Box<T>> {
    fn read(reader: &mut Reader, version: i16) -> Result<Self, DecodeError> {
        if reader.i8()? < 0 {
            return Ok(None);
        }
        reader.charge(size_of::<T>())?;
        Ok(Some(Box::new(T::read(reader, version)?)))
    }

    fn write(&self, writer: &mut Writer, version: i16) {
        match self {
            Some(structure) => {
                writer.i8(1);
                structure.write(writer, version);
            }
            None => writer.i8(-1),
        }
    }
}
