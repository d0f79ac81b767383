//! The only door to the operating system: clock, randomness, disk, network, threads.
//!
//! Everything else in the workspace is free of them (clippy.toml enforces it), so that the whole broker can be
//! run by the simulator from one seed.

pub mod clock;
pub mod disk;
