//! The wire codec: a bounded reader, a rope writer, and what the generated messages are made of.
//!
//! Place in the walk: `frame` cuts the bytes of a request out of the stream, `header` says which API and version
//! it is, the generated code in `messages` reads it with [`Reader`] and writes the answer with [`Writer`].
//!
//! Invariants: reading never panics and never allocates more than its budget, whatever the bytes claim; strings,
//! bytes and records share the buffer they were read from. It does not know any message.

mod error;
mod reader;
mod records;
mod tags;
mod wire;
mod writer;

pub use error::{DecodeError, EncodeError};
pub use reader::{DEFAULT_BUDGET_BYTES, Reader};
pub use records::Records;
pub(crate) use tags::TagWriter;
pub use tags::TaggedFields;
pub(crate) use wire::not_null;
pub use wire::{Message, RecordKey, Request, Wire};
pub use writer::{ErrorTally, SPLICE_BYTES_MIN, Writer};

#[cfg(test)]
mod tests;
