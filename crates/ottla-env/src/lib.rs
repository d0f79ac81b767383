//! The only door to the operating system: clock, randomness, disk, network, threads.
//!
//! Everything else in the workspace is free of them (clippy.toml enforces it), so that the whole broker can be
//! run by the simulator from one seed. Each door has an operating-system side and, where the simulator needs
//! one, a simulated side: `disk::{os, sim}`, `clock::{OsClock, ManualClock}`, `rng::{OsRng, SeededRng}`.

pub mod clock;
pub mod disk;
pub mod files;
pub mod net;
pub mod process;
pub mod rng;
pub mod spawn;
pub mod time;
pub mod usage;
