//! Connections: accept, frames in and out, answers in request order, back-pressure by bytes.
//!
//! What one client may cost is bounded: connections (`quotas`), bytes of its requests and of all requests
//! (`frames`, `line`), answers that it does not take (`connection`).

pub mod accept;
pub mod connection;
pub mod frames;
pub mod line;
pub mod quotas;
