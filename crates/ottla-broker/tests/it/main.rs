//! The broker from outside, over its socket: one binary, one folder, a file per concern.

mod admin;
mod daily;
mod documents;
mod faults;
mod full_disk;
mod gated;
mod hostile;
mod metrics;
mod public_bugs;
mod requests;
mod retention;
mod sessions;
mod settings;
mod shutdown;
mod syncs;
mod wire;
