//! Exponential back-off with a ceiling. No jitter: clients of one process do not march in step, and tests and
//! the simulator want the same pauses every time.

use std::time::Duration;

/// Pauses that double from `first` to `max`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max: max.max(first), failures: 0 }
    }

    /// The pause after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1).min(31);
        pause.min(self.max)
    }

    /// Goes on behind that many failures.
    pub(crate) fn skip(&mut self, failures: u32) {
        self.failures = failures.min(31);
    }

    /// Starts over after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that pauses double, stop at the ceiling for ever, and start over.
    #[test]
    fn doubles_to_the_ceiling() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(300));
        let pauses: Vec<u128> = (0..5).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 300, 300]);
        assert!((0..100).all(|_| backoff.next().as_millis() == 300));
        backoff.reset();
        assert_eq!(backoff.next().as_millis(), 50);
    }
}
