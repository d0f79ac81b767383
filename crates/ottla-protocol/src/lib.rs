//! Kafka's wire and record format, usable alone.
//!
//! Place in the walk: the connection decodes requests with it, the shard encodes coordinator records with it,
//! the log stores its batches. Pure: no I/O, no clock, no randomness. Every length that comes from outside is
//! checked against the bytes that are left and against a budget before anything is allocated.

#![cfg_attr(not(test), warn(clippy::indexing_slicing))] // bytes from outside decide indexes here

pub mod api;
pub mod batch;
pub mod check;
pub mod codec;
pub mod compression;
pub mod coordinator;
pub mod entry;
pub mod error;
pub mod frame;
pub mod header;
pub mod messages;
pub mod record;
pub mod types;
