//! Who may connect: `max.connections`, `max.connections.per.ip` with its overrides, `max.connection.creation.rate`.
//!
//! As in Kafka, a connection above the number for its address is closed at once, one above the number for all
//! waits to be accepted until another ends, and so does one above the rate. The numbers can be replaced while the
//! broker runs; connections that are there stay.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use ottla_core::config::CoreConfig;
use ottla_env::time::{self, Instant};
use tokio::sync::Notify;

use crate::limits::STRANGERS_LOG_EVERY;

/// The numbers in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections at once (`max.connections`).
    pub max: usize,
    /// Of one address (`max.connections.per.ip`).
    pub per_ip: usize,
    /// Of the addresses that have a number of their own (`max.connections.per.ip.overrides`).
    pub overrides: BTreeMap<IpAddr, usize>,
    /// Accepted in a second (`max.connection.creation.rate`); `i32::MAX` for any number.
    pub rate: usize,
    /// How long a connection may rest (`connections.max.idle.ms`).
    pub idle_max: Duration,
}

impl ConnectionLimits {
    /// What the settings say, with `max.connections` cut to `most`, the number of sockets the process may open.
    pub fn of(config: &CoreConfig, most: usize, idle_max: Duration) -> Self {
        let count = |number: i32| usize::try_from(number).unwrap_or(0);
        Self {
            max: count(config.max_connections).min(most),
            per_ip: count(config.max_connections_per_ip),
            overrides: overrides(&config.max_connections_per_ip_overrides),
            rate: count(config.max_connection_creation_rate),
            idle_max,
        }
    }

    fn of_ip(&self, ip: IpAddr) -> usize {
        self.overrides.get(&ip).copied().unwrap_or(self.per_ip)
    }
}

/// Reads `ADDRESS:NUMBER,...`; what is none of these was refused when it was set.
fn overrides(text: &str) -> BTreeMap<IpAddr, usize> {
    let one = |part: &str| {
        let (address, number) = part.rsplit_once(':')?;
        let address: IpAddr = address.trim().trim_matches(['[', ']']).parse().ok()?;
        Some((address.to_canonical(), number.trim().parse().ok()?))
    };
    text.split(',').filter_map(one).collect()
}

/// Counts connections and admits new ones.
pub struct Quotas {
    limits: RwLock<Arc<ConnectionLimits>>,
    /// The settings that they are of, and the sockets that the process may open.
    followed: Mutex<Arc<CoreConfig>>,
    most: usize,
    idle_ms: AtomicU64,
    counts: Mutex<Counts>,
    freed: Notify,
    /// For the line about connections that are refused or wait.
    pub refused: Seldom,
    /// For the line about connections that are closed since what they sent is no request.
    pub malformed: Seldom,
}

#[derive(Default)]
struct Counts {
    all: usize,
    by_ip: BTreeMap<IpAddr, usize>,
}

/// More connections from one address than it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} connections from one address are too many (max.connections.per.ip)")]
pub struct TooMany {
    /// The number it may have.
    pub limit: usize,
}

/// A connection's place among all; given back when dropped.
pub struct Slot {
    quotas: Arc<Quotas>,
    ip: IpAddr,
}

impl Quotas {
    /// No connections yet; `most` is the number of sockets that the process may open.
    pub fn new(config: Arc<CoreConfig>, most: usize, idle_max: Duration) -> Self {
        let limits = ConnectionLimits::of(&config, most, idle_max);
        Self {
            followed: Mutex::new(config),
            most,
            idle_ms: AtomicU64::new(millis(limits.idle_max)),
            limits: RwLock::new(Arc::new(limits)),
            counts: Mutex::new(Counts::default()),
            freed: Notify::new(),
            refused: Seldom::default(),
            malformed: Seldom::default(),
        }
    }

    /// The settings that are in force.
    pub fn followed(&self) -> Arc<CoreConfig> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts in force what other settings say.
    pub fn follow(&self, config: &Arc<CoreConfig>) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&followed, config) {
            *followed = config.clone();
            self.replace(ConnectionLimits::of(config, self.most, self.idle_max()));
        }
    }

    /// The numbers in force.
    pub fn limits(&self) -> Arc<ConnectionLimits> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other numbers in force, at once for new connections and with the next rest of the others.
    pub fn replace(&self, limits: ConnectionLimits) {
        self.idle_ms.store(millis(limits.idle_max), Ordering::Relaxed);
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
        self.freed.notify_waiters();
    }

    /// How long a connection may rest.
    pub fn idle_max(&self) -> Duration {
        Duration::from_millis(self.idle_ms.load(Ordering::Relaxed))
    }

    /// Connections that are there.
    pub fn connections(&self) -> usize {
        self.counts().all
    }

    /// A place for a connection; waits for one while there are too many in all.
    pub async fn admit(self: &Arc<Self>, ip: IpAddr) -> Result<Slot, TooMany> {
        let ip = ip.to_canonical();
        loop {
            // Noted before the look, so that a place that is freed in between is seen.
            let freed = self.freed.notified();
            if let Some(slot) = self.try_admit(ip)? {
                return Ok(slot);
            }
            if let Some(times) = self.refused.due() {
                let max = self.limits().max;
                tracing::warn!(%ip, max, times, "a connection waits: there are max.connections already");
            }
            freed.await;
        }
    }

    fn try_admit(self: &Arc<Self>, ip: IpAddr) -> Result<Option<Slot>, TooMany> {
        let limits = self.limits();
        let mut counts = self.counts();
        let limit = limits.of_ip(ip);
        if counts.by_ip.get(&ip).copied().unwrap_or(0) >= limit {
            return Err(TooMany { limit });
        }
        if counts.all >= limits.max {
            return Ok(None);
        }
        counts.all += 1;
        *counts.by_ip.entry(ip).or_default() += 1;
        Ok(Some(Slot { quotas: self.clone(), ip }))
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.quotas.counts();
        counts.all -= 1;
        let of_ip = counts.by_ip.get_mut(&self.ip).expect("a slot is counted");
        *of_ip -= 1;
        if *of_ip == 0 {
            counts.by_ip.remove(&self.ip);
        }
        drop(counts);
        self.quotas.freed.notify_waiters();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Spreads accepted connections: a second's worth may come at once, then they come at the rate.
pub struct Pace {
    ready: f64,
    at: Instant,
}

impl Pace {
    /// Nothing has come yet.
    pub fn new() -> Self {
        Self { ready: f64::from(i32::MAX), at: time::now() }
    }

    /// How long the connection that has just come has to wait.
    pub fn wait(&mut self, rate: usize) -> Duration {
        let now = time::now();
        let rate = rate.max(1) as f64;
        self.ready = (self.ready + (now - self.at).as_secs_f64() * rate).min(rate);
        self.at = now;
        self.ready -= 1.0;
        Duration::from_secs_f64((-self.ready / rate).max(0.0))
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}

/// Lets a line of the log out once in a while, with the number of times it was due.
#[derive(Default)]
pub struct Seldom {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Seldom {
    /// The number of times since the last line, this one included; none while it is too early for another.
    pub fn due(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, times) = &mut *state;
        *times += 1;
        let now = time::now();
        if last.is_some_and(|last| now - last < STRANGERS_LOG_EVERY) {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(max: i32, per_ip: i32, overrides: &str) -> Arc<CoreConfig> {
        Arc::new(CoreConfig {
            max_connections: max,
            max_connections_per_ip: per_ip,
            max_connections_per_ip_overrides: overrides.to_owned(),
            ..CoreConfig::default()
        })
    }

    /// Proves: addresses are counted apart, overrides hold, IPv4 in IPv6 is the same address, places come back,
    /// and other numbers hold at once.
    #[test]
    fn places_are_counted_and_given_back() {
        let config = settings(4, 2, "10.0.0.1:1, [::1]:0");
        let quotas = Arc::new(Quotas::new(config, 9, Duration::from_secs(1)));
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address").to_canonical();
        let admit = |text: &str| quotas.try_admit(ip(text)).map(|slot| slot.expect("not too many in all"));
        let first = admit("10.0.0.2").expect("admitted");
        let _second = admit("::ffff:10.0.0.2").expect("admitted");
        assert_eq!(admit("10.0.0.2").err(), Some(TooMany { limit: 2 }));
        let _third = admit("10.0.0.1").expect("admitted");
        assert_eq!(admit("10.0.0.1").err(), Some(TooMany { limit: 1 }));
        assert_eq!(admit("::1").err(), Some(TooMany { limit: 0 }));
        let _fourth = admit("10.0.0.3").expect("admitted");
        assert!(quotas.try_admit(ip("10.0.0.4")).expect("its first").is_none(), "four in all");
        drop(first);
        assert_eq!(quotas.connections(), 3);
        quotas.follow(&settings(100, 1, ""));
        assert_eq!(quotas.limits().max, 9, "the process cannot open more");
        assert_eq!(admit("10.0.0.2").err(), Some(TooMany { limit: 1 }));
        assert!(admit("10.0.0.4").is_ok());
    }

    /// Proves: a second's worth comes at once, the next ones wait for their turn.
    #[test]
    fn the_rate_is_kept() {
        let (mut pace, began) = (Pace::new(), time::now());
        for _ in 0..10 {
            assert_eq!(pace.wait(10), Duration::ZERO);
        }
        for n in 1..=20_u32 {
            let (wait, due) = (pace.wait(10), Duration::from_millis(u64::from(n) * 100));
            // Whatever time has passed meanwhile is not waited for again.
            assert!(wait <= due && wait + began.elapsed() + Duration::from_millis(1) >= due, "{n}: {wait:?}");
        }
    }
}
