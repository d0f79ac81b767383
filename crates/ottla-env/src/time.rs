//! The door to timers of the asynchronous shell. Deadlines that decide anything durable use shard time instead.

use std::future::Future;
use std::time::Duration;

pub use tokio::time::Instant;

/// The deadline passed before the future was ready.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// The present instant of the timers.
pub fn now() -> Instant {
    Instant::now()
}

/// Waits for a duration.
pub async fn sleep(duration: Duration) {
    sleep_until(now() + duration).await;
}

/// Waits until an instant.
pub async fn sleep_until(deadline: Instant) {
    tokio::time::sleep_until(deadline).await;
}

/// Runs the future, at most so long; it is dropped when the time is over.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    tokio::time::timeout(duration, future).await.map_err(|_| Elapsed)
}

/// Runs the future, at most until then; it is dropped when the time is over.
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    tokio::time::timeout_at(deadline, future).await.map_err(|_| Elapsed)
}
