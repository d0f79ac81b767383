//! The door to time.
//!
//! `monotonic` measures and counts while the machine is suspended or the process stopped; `wall_ms` tells the
//! date and may jump. Shard time (which never goes back) is made from both by the broker, not here.

use std::sync::Mutex;
use std::time::Duration;

/// Two clocks: one that measures, one that tells the date.
pub trait Clock: Send + Sync {
    /// Time since some fixed point; never goes back, counts while the process is stopped.
    fn monotonic(&self) -> Duration;
    /// Milliseconds since the Unix epoch; may jump either way.
    fn wall_ms(&self) -> i64;
}

/// The clocks of the operating system: CLOCK_BOOTTIME and CLOCK_REALTIME.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsClock;

impl Clock for OsClock {
    fn monotonic(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            u64::try_from(now.tv_sec).expect("the time since boot is positive"),
            u32::try_from(now.tv_nsec).expect("nanoseconds of a second fit"),
        )
    }

    #[allow(clippy::disallowed_methods)] // the seam itself; through libc, so that libfaketime can move it
    fn wall_ms(&self) -> i64 {
        let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => ms(since),
            Err(before) => -ms(before.duration()),
        }
    }
}

/// A clock that stands still until it is moved; for tests and the simulator.
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<(Duration, i64)>,
}

impl ManualClock {
    /// A clock whose monotonic side begins at zero and whose date is `wall_ms`.
    pub fn new(wall_ms: i64) -> Self {
        Self { state: Mutex::new((Duration::ZERO, wall_ms)) }
    }

    /// Time passes on both clocks. The date moves by whole milliseconds.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state.lock().expect("no holder of the clock panics");
        let before = state.0.as_millis();
        state.0 += by;
        let passed = i64::try_from(state.0.as_millis() - before).expect("a step of time fits 63 bits of ms");
        state.1 = state.1.saturating_add(passed);
    }

    /// The date jumps by `by_ms`, either way; the monotonic side does not notice.
    pub fn step_wall(&self, by_ms: i64) {
        let mut state = self.state.lock().expect("no holder of the clock panics");
        state.1 = state.1.saturating_add(by_ms);
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        self.state.lock().expect("no holder of the clock panics").0
    }

    fn wall_ms(&self) -> i64 {
        self.state.lock().expect("no holder of the clock panics").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a step of the date leaves the monotonic clock alone, and that time moves both.
    #[test]
    fn manual_clock_moves_as_told() {
        let clock = ManualClock::new(1_000);
        clock.advance(Duration::from_micros(1_500));
        assert_eq!((clock.monotonic(), clock.wall_ms()), (Duration::from_micros(1_500), 1_001));
        clock.step_wall(-500);
        assert_eq!((clock.monotonic(), clock.wall_ms()), (Duration::from_micros(1_500), 501));
        clock.advance(Duration::from_micros(500));
        assert_eq!(clock.wall_ms(), 502, "halves of milliseconds add up");
    }

    /// Proves that the operating system's clocks answer, and that the measuring one does not go back.
    #[test]
    fn os_clock_answers() {
        let first = OsClock.monotonic();
        assert!(OsClock.monotonic() >= first);
        assert!(OsClock.wall_ms() > 1_600_000_000_000);
    }
}
