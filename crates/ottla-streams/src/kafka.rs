//! The ports of a worker on a real cluster, through `ottla-client`.
//!
//! A worker is an OS thread and its calls block; the client is asynchronous. [`KafkaWriter`] hands its calls to a task
//! that owns the producer, [`KafkaReader`] waits for each call itself. Both are bounded by the client's time-outs.
//!
//! Place in the walk: worker and recovery -> here -> client. Not here: membership and fetching of inputs
//! ([`crate::app`]).

mod reader;
mod writer;

pub use reader::KafkaReader;
pub use writer::{KafkaWriter, PlainWriter};
