//! Shard time: starts at max(wall clock, last frame's time), runs by the monotonic clock, follows the wall clock
//! only forward and never goes back.
//!
//! A wall clock that runs more than an hour ahead is reported once and not followed: a wrong date must not
//! expire transactions and ids. It is followed again after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ottla_core::decision::ShardTime;
use ottla_env::clock::Clock;

use crate::limits::CLOCK_STEP_MAX_MS;

/// What tells shard time to everybody else: milliseconds to add to the monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct SharedTime(Arc<AtomicI64>);

impl SharedTime {
    /// Shard time now, ms. Never behind what the owner last used.
    pub fn now_ms(&self, clock: &dyn Clock) -> i64 {
        self.0.load(Ordering::Acquire).saturating_add(as_ms(clock.monotonic()))
    }
}

fn as_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4)
}

/// The shard's clock; owned by the owner thread.
pub struct ShardClock {
    clock: Arc<dyn Clock>,
    /// Shard time at `anchor`, in ms.
    base_ms: i64,
    anchor: Duration,
    reported: bool,
    shared: SharedTime,
}

impl ShardClock {
    /// Starts at the later of the wall clock and the time of the last frame; keeps `shared` up to date.
    pub fn new(clock: Arc<dyn Clock>, last_frame_ms: i64, shared: SharedTime) -> Self {
        let base_ms = clock.wall_ms().max(last_frame_ms);
        let anchor = clock.monotonic();
        let time = Self { clock, base_ms, anchor, reported: false, shared };
        time.share();
        time
    }

    fn share(&self) {
        self.shared.0.store(self.base_ms - as_ms(self.anchor), Ordering::Release);
    }

    /// Now.
    pub fn now(&mut self) -> ShardTime {
        let elapsed = self.clock.monotonic().saturating_sub(self.anchor);
        let mut now = self.base_ms + as_ms(elapsed);
        let ahead = self.clock.wall_ms() - now;
        if ahead > CLOCK_STEP_MAX_MS {
            if !std::mem::replace(&mut self.reported, true) {
                tracing::error!(ahead_ms = ahead, "wall clock stepped ahead by over an hour; not followed");
            }
        } else {
            self.reported = false;
            if ahead > 0 {
                self.base_ms += ahead;
                now += ahead;
                self.share();
            }
        }
        ShardTime(now)
    }

    /// Time by the monotonic clock, for measuring the owner's own gaps.
    pub fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct TestClock(Mutex<(Duration, i64)>);

    impl TestClock {
        fn set(&self, monotonic_ms: u64, wall_ms: i64) {
            *self.0.lock().expect("no panic holds it") = (Duration::from_millis(monotonic_ms), wall_ms);
        }
    }

    impl Clock for TestClock {
        fn monotonic(&self) -> Duration {
            self.0.lock().expect("no panic holds it").0
        }
        fn wall_ms(&self) -> i64 {
            self.0.lock().expect("no panic holds it").1
        }
    }

    /// Proves: the rules of the module's first paragraph, one by one.
    #[test]
    fn never_back_and_only_small_steps_forward() {
        let clock = Arc::new(TestClock(Mutex::new((Duration::ZERO, 1_000))));
        let shared = SharedTime::default();
        let mut time = ShardClock::new(clock.clone(), 5_000, shared.clone());
        assert_eq!(time.now(), ShardTime(5_000), "the last frame's time wins over an older wall clock");
        clock.set(700, 1_700);
        assert_eq!(time.now(), ShardTime(5_700), "runs by the monotonic clock");
        clock.set(800, 60_000);
        assert_eq!(time.now(), ShardTime(60_000), "follows the wall clock forward");
        clock.set(900, 0);
        assert_eq!(time.now(), ShardTime(60_100), "never goes back");
        assert_eq!(shared.now_ms(&*clock), 60_100, "connections see the same time");
        clock.set(1_000, 60_000 + 2 * CLOCK_STEP_MAX_MS);
        assert_eq!(time.now(), ShardTime(60_200), "a step over an hour is not followed");
    }
}
