//! How the owner spends its time: waiting for work, and deciding step by step.
//!
//! Place: beside the owner, which tells it each instant that it looks at the clock anyway; the numbers go to the
//! metrics. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::metrics::{Metrics, nanos};

/// The longest step is kept for the current and the last period of this length.
const PERIOD: Duration = Duration::from_secs(60);

/// The owner's stopwatch.
pub struct Pulse {
    metrics: Arc<Metrics>,
    /// When it last woke up.
    woke: Duration,
    /// When the present step began.
    step: Option<Duration>,
    period: Duration,
    longest: [Duration; 2],
}

impl Pulse {
    /// Starts at `now`.
    pub fn new(metrics: Arc<Metrics>, now: Duration) -> Self {
        Self { metrics, woke: now, step: None, period: now, longest: [Duration::ZERO; 2] }
    }

    /// Work was there, or time was over.
    pub fn wake(&mut self, now: Duration) {
        self.woke = now;
    }

    /// A step begins, and with it ends the one before.
    pub fn begin(&mut self, now: Duration) {
        self.end(now);
        self.step = Some(now);
    }

    /// A step begins with a command that has waited since `arrived`.
    pub fn begin_command(&mut self, now: Duration, arrived: Duration) {
        self.metrics.owner.queue_time.observe_time(now.saturating_sub(arrived));
        self.begin(now);
    }

    /// When the present step began; when there is none, when the owner woke up.
    pub fn began(&self) -> Duration {
        self.step.unwrap_or(self.woke)
    }

    /// The present step, if there is one, has ended.
    pub fn end(&mut self, now: Duration) {
        let Some(began) = self.step.take() else { return };
        let took = now.saturating_sub(began);
        self.metrics.owner.step_time.observe_time(took);
        if now.saturating_sub(self.period) >= PERIOD {
            let [current, _] = self.longest;
            let is_next = now.saturating_sub(self.period) < 2 * PERIOD;
            self.longest = [Duration::ZERO, if is_next { current } else { Duration::ZERO }];
            self.period = now;
        }
        let [current, last] = &mut self.longest;
        *current = took.max(*current);
        self.metrics.owner.longest_step_nanos.set(nanos((*current).max(*last)));
    }

    /// There is nothing to do.
    pub fn rest(&mut self, now: Duration) {
        self.metrics.owner.busy_nanos.add(nanos(now.saturating_sub(self.woke)));
        self.woke = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: steps are measured from one beginning to the next, waiting is not work, and the longest step is
    /// forgotten after two minutes.
    #[test]
    fn time_is_accounted_for() {
        let at = Duration::from_millis;
        let metrics = Arc::new(Metrics::new(at(0)));
        let mut pulse = Pulse::new(metrics.clone(), at(0));
        let longest = || Duration::from_nanos(metrics.owner.longest_step_nanos.get());
        pulse.wake(at(100));
        pulse.begin_command(at(100), at(60));
        pulse.begin_command(at(107), at(100));
        assert_eq!(pulse.began(), at(107));
        pulse.end(at(110));
        pulse.rest(at(112));
        let steps = metrics.owner.step_time.read();
        assert_eq!((steps.count(), Duration::from_nanos(steps.sum)), (2, at(10)));
        assert_eq!(Duration::from_nanos(metrics.owner.queue_time.read().sum), at(47));
        assert_eq!(Duration::from_nanos(metrics.owner.busy_nanos.get()), at(12));
        assert_eq!(longest(), at(7));
        let mut step = |from, to| {
            pulse.wake(at(from));
            pulse.begin(at(from));
            pulse.end(at(to));
            longest()
        };
        assert_eq!(step(60_000, 60_002), at(7), "of the minute before");
        assert_eq!(step(120_100, 120_101), at(2));
        assert_eq!(step(400_000, 400_001), at(1), "nothing for long");
    }
}
