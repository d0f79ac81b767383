//! What Kafka means, as pure state machines: `decide(command, now)` gives records and a reply, `apply(record)`
//! is the only way durable state changes, loading is replaying.
//!
//! Place in the walk: the shard's owner thread calls [`ShardState::step`] for every command, in one order. What
//! it returns (entries, answers and what they rest on) is made durable and let out by the shell around it.
//!
//! Reading guide:
//! - [`shard`]: the state, one step through it, applying entries, snapshots.
//! - [`partition`]: appends, producer state, open and aborted transactions of one partition.
//! - [`clean`]: what compaction may leave out of a partition.
//! - [`cluster`]: topics, configs and features as data.
//! - `txn` and `group`: the coordinators; `produce`: the request that joins partition and coordinator.
//!
//! No async, no clock, no randomness, no I/O: time is an argument, and so is the seed of every hash table.

pub mod clean;
pub mod cluster;
pub mod command;
pub mod config;
pub mod decision;
pub mod event;
pub(crate) mod group;
pub(crate) mod paged;
pub mod partition;
pub(crate) mod produce;
pub mod shard;
pub mod survey;
#[cfg(test)]
mod testing;
pub(crate) mod txn;

pub use config::CoreConfig;
pub use shard::{ReplayError, Restore, RestoreError, ShardState, Snapshot};
