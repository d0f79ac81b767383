//! What is counted into: relaxed atomics, never a lock, never an allocation.
//!
//! Place: the fields of [`super::Metrics`]. Values that many connections change are [`Sharded`], one cache line or
//! more per group of connections, so that two cores do not fight for one; values with one writer (the owner, the log
//! thread) are plain. A reader that adds up sees each value at some instant, not all at one.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use ottla_core::command::ConnectionId;

/// Groups of connections that count apart.
const SHARDS: usize = 16;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets it to what somebody else has counted.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that comes and goes.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets it.
    pub fn set(&self, n: i64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds one until the guard is dropped.
    pub fn hold(&self) -> Held<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(self)
    }
}

/// One unit of a [`Gauge`].
#[derive(Debug)]
pub struct Held<'a>(&'a Gauge);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Upper bounds of the buckets of a histogram, smallest first; one more bucket holds what is above the last.
pub type Bounds = [u64; 16];

/// Bounds of times, in nanoseconds: 0.1 ms to 10 s.
pub const TIMES: &Bounds = &[
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Bounds of the owner's steps, in nanoseconds: 1 µs to 1 s.
pub const SHORT_TIMES: &Bounds = &[
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
];

/// Bounds of counts: powers of two.
pub const COUNTS: &Bounds = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// How often a value fell into which range, and the sum of all.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static Bounds,
    buckets: [AtomicU64; 17],
    sum: AtomicU64,
}

impl Histogram {
    /// Nothing observed.
    pub fn new(bounds: &'static Bounds) -> Self {
        Self { bounds, buckets: Default::default(), sum: AtomicU64::new(0) }
    }

    /// Counts one value, in the unit of the bounds.
    pub fn observe(&self, value: u64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Counts a time, where the bounds are nanoseconds.
    pub fn observe_time(&self, time: Duration) {
        self.observe(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4));
    }

    /// What was counted.
    pub fn read(&self) -> Observed {
        let buckets = std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed));
        Observed { bounds: self.bounds, buckets, sum: self.sum.load(Ordering::Relaxed) }
    }
}

/// What a histogram has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The upper bounds.
    pub bounds: &'static Bounds,
    /// Values per bucket, the last one without a bound.
    pub buckets: [u64; 17],
    /// Of all values.
    pub sum: u64,
}

impl Observed {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Both together.
    pub fn plus(mut self, other: Self) -> Self {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(own, others)| *own += others);
        self.sum = self.sum.wrapping_add(other.sum);
        self
    }
}

/// Cells that connections share in groups.
#[derive(Debug)]
pub struct Sharded<T> {
    shards: Box<[Padded<T>]>,
}

/// On cache lines of its own; two, since processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);

impl<T> Sharded<T> {
    /// One for each group.
    pub fn new(make: impl Fn() -> T) -> Self {
        Self { shards: (0..SHARDS).map(|_| Padded(make())).collect() }
    }

    /// That of a connection.
    pub fn of(&self, connection: ConnectionId) -> &T {
        &self.shards[connection.0 as usize % SHARDS].0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().map(|shard| &shard.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a value lands in the first bucket whose bound is not below it, the last one takes the rest, and two
    /// histograms add up.
    #[test]
    fn buckets_and_sums() {
        let histogram = Histogram::new(COUNTS);
        for value in [0, 1, 2, 3, 4, 32_768, 32_769, 1 << 40] {
            histogram.observe(value);
        }
        let observed = histogram.read();
        assert_eq!(observed.buckets[..3], [2, 1, 2]);
        assert_eq!(observed.buckets[15..], [1, 2]);
        assert_eq!((observed.count(), observed.sum), (8, 10 + 32_768 + 32_769 + (1 << 40)));
        assert_eq!(observed.plus(observed).count(), 16);
        let times = Histogram::new(TIMES);
        times.observe_time(Duration::from_micros(100));
        times.observe_time(Duration::from_micros(101));
        assert_eq!(times.read().buckets[..2], [1, 1]);
    }

    /// Proves: a held unit of a gauge is given back when its guard goes, and connections of different groups do not
    /// share a cell.
    #[test]
    fn guards_and_groups() {
        let gauge = Gauge::default();
        let held = gauge.hold();
        assert_eq!(gauge.get(), 1);
        drop(held);
        assert_eq!(gauge.get(), 0);
        let cells = Sharded::new(Counter::default);
        cells.of(ConnectionId(1)).add(2);
        cells.of(ConnectionId(17)).add(3);
        cells.of(ConnectionId(2)).add(5);
        assert_eq!(cells.of(ConnectionId(1)).get(), 5);
        assert_eq!(cells.iter().map(Counter::get).sum::<u64>(), 10);
    }
}
