//! What Kafka means, as pure state machines: `decide(command, now)` gives records and a reply, `apply(record)`
//! is the only way durable state changes, loading is replaying.
//!
//! Place in the walk: the shard's owner thread calls it. No async, no clock, no randomness, no I/O.

pub mod command;
pub mod decision;
