//! The broker: joins the pure core to the storage and to the network.
//!
//! The walk: `net` (connection, frames) -> `dispatch` (header, one match) -> `handlers` (one file per API) ->
//! `shard` (inbox, owner, log thread) -> published view and answers. See ARCHITECTURE.md.

pub mod backup;
pub mod broker;
pub mod config;
pub mod dispatch;
pub mod doctor;
pub mod dump;
pub mod handlers;
pub mod limits;
pub mod metrics;
pub mod net;
pub mod shard;
pub mod shared;

pub use broker::{Broker, BrokerError};
pub use config::{Config, ConfigError};
