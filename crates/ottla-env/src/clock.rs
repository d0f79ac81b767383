//! The door to time.

use std::time::Duration;

/// Two clocks: one that measures, one that tells the date.
pub trait Clock: Send + Sync {
    /// Time since some fixed point; never goes back, counts while the process is stopped.
    fn monotonic(&self) -> Duration;
    /// Milliseconds since the Unix epoch; may jump either way.
    fn wall_ms(&self) -> i64;
}
