//! Why bytes could not be decoded, or a message not be encoded.

use thiserror::Error;

/// Bytes that are no message of the wanted type and version. Nothing was done; the connection is given up.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("{wanted} bytes wanted, {left} left")]
    UnexpectedEnd {
        /// Bytes that should follow.
        wanted: usize,
        /// Bytes that do follow.
        left: usize,
    },
    /// A variable-length integer has more bytes or bits than its type.
    #[error("variable-length integer too long")]
    BadVarint,
    /// A length below -1, or longer than its type allows.
    #[error("length {0} not allowed")]
    BadLength(i64),
    /// A string is not UTF-8.
    #[error("string is not UTF-8")]
    NotUtf8,
    /// A field is null that must not be.
    #[error("field {0} must not be null")]
    Null(&'static str),
    /// An array claims more elements than the bytes behind it can hold.
    #[error("array of {count} elements in {left} bytes")]
    BadCount {
        /// Elements claimed.
        count: usize,
        /// Bytes left.
        left: usize,
    },
    /// The message would need more memory than allowed.
    #[error("message needs more memory than its budget of {0} bytes")]
    OverBudget(usize),
    /// A tagged field does not end where its size says.
    #[error("tagged field ends {0} bytes before its size")]
    BadTagSize(u32),
    /// The message does not exist in that version.
    #[error("{name} has no version {version}")]
    UnsupportedVersion {
        /// Kafka's name of the message.
        name: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// No API has this key.
    #[error("no API has key {0}")]
    UnknownApi(i16),
}

/// A message that cannot be written in the wanted version. The writer's content is of no use any more.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EncodeError {
    /// The message does not exist in that version.
    #[error("{name} has no version {version}")]
    UnsupportedVersion {
        /// Kafka's name of the message.
        name: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// A field holds a value and the version has no such field.
    #[error("{field} is set, version {version} has no such field")]
    FieldNotInVersion {
        /// Structure and field.
        field: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// A field is null that must not be in that version.
    #[error("{0} must not be null")]
    Null(&'static str),
    /// A string, array or byte field is longer than the wire can say.
    #[error("length {0} does not fit the wire")]
    TooLong(usize),
}
