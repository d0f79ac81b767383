//! Connections: accept, frames in and out, answers in request order, back-pressure by bytes.

pub mod accept;
pub mod connection;
pub mod frames;
