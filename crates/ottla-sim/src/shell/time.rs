//! Shard time as architecture section 3 has it: starts at the later of wall clock and last frame, runs by the
//! monotonic clock, follows the wall clock only forward and not over steps of more than an hour.

use std::sync::Arc;
use std::time::Duration;

use ottla_core::decision::ShardTime;
use ottla_env::clock::{Clock, ManualClock};

/// Largest step forward that is followed, ms.
const STEP_MAX_MS: i64 = 3_600_000;

/// The shard's clock.
pub(crate) struct ShardClock {
    clock: Arc<ManualClock>,
    base_ms: i64,
    anchor: Duration,
    /// The planted bug: shard time is the wall clock.
    follows_wall: bool,
}

impl ShardClock {
    pub(crate) fn new(clock: Arc<ManualClock>, last_frame_ms: i64, follows_wall: bool) -> Self {
        let base_ms = clock.wall_ms().max(last_frame_ms);
        let anchor = clock.monotonic();
        Self { clock, base_ms, anchor, follows_wall }
    }

    pub(crate) fn now(&mut self) -> ShardTime {
        if self.follows_wall {
            return ShardTime(self.clock.wall_ms());
        }
        let elapsed = self.clock.monotonic() - self.anchor;
        let now = self.base_ms + i64::try_from(elapsed.as_millis()).expect("virtual time is short");
        let ahead = self.clock.wall_ms() - now;
        if ahead > 0 && ahead <= STEP_MAX_MS {
            self.base_ms += ahead;
            return ShardTime(now + ahead);
        }
        ShardTime(now)
    }

    pub(crate) fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).expect("virtual time is short")
    }
}
