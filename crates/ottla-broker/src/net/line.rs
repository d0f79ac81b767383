//! The line of a connection's outstanding answers: how many, for how many bytes of requests, and who waits.
//!
//! A parked Fetch asks it whether somebody waits behind; the reader asks it whether there is room for a request.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ottla_env::time::{self, Instant};
use tokio::sync::Notify;

use crate::limits::REQUEST_BYTES_PER_CONNECTION_MAX;

/// What is outstanding on one connection. Its reader and its writer are one task; handlers only look.
pub struct Line {
    outstanding: AtomicUsize,
    bytes: AtomicUsize,
    /// A request has begun to arrive, or has arrived and waits for its turn.
    coming: AtomicBool,
    joined: Notify,
    left: Notify,
    opened: Instant,
    /// When the last answer left, ms after `opened`.
    last_left_ms: AtomicU64,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            outstanding: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            coming: AtomicBool::new(false),
            joined: Notify::new(),
            left: Notify::new(),
            opened: time::now(),
            last_left_ms: AtomicU64::new(0),
        }
    }
}

impl Line {
    /// Waits until another request stands behind the one at the head of the line, or is on its way.
    pub async fn somebody_behind(&self) {
        loop {
            let joined = self.joined.notified();
            let coming = usize::from(self.coming.load(Ordering::Acquire));
            if self.outstanding.load(Ordering::Acquire) + coming > 1 {
                return;
            }
            joined.await;
        }
    }

    /// A request has begun to arrive.
    pub fn announce(&self) {
        self.coming.store(true, Ordering::Release);
        self.joined.notify_waiters();
    }

    /// The request that was announced needs no answer.
    pub fn pass(&self) {
        self.coming.store(false, Ordering::Release);
    }

    /// The request that was announced waits for its answer now.
    pub fn join(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        self.coming.store(false, Ordering::Release);
        self.joined.notify_waiters();
    }

    /// An answer was handed to the system.
    pub fn leave(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.last_left_ms.store(self.opened_ms(), Ordering::Relaxed);
        self.left.notify_waiters();
    }

    /// Waits until a request of so many bytes may be outstanding too.
    pub async fn room(&self, bytes: usize) {
        self.until(|line| {
            line.is_empty()
                || line.bytes.load(Ordering::Acquire).saturating_add(bytes)
                    <= REQUEST_BYTES_PER_CONNECTION_MAX
        })
        .await;
    }

    /// Waits until nothing is outstanding.
    pub async fn empty(&self) {
        self.until(Self::is_empty).await;
    }

    /// How long nothing has been outstanding; none while something is.
    pub fn resting(&self) -> Option<Duration> {
        let since = Duration::from_millis(self.last_left_ms.load(Ordering::Relaxed));
        self.is_empty().then(|| self.opened.elapsed().saturating_sub(since))
    }

    fn is_empty(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) == 0
    }

    async fn until(&self, ready: impl Fn(&Self) -> bool) {
        loop {
            let left = self.left.notified();
            if ready(self) {
                return;
            }
            left.await;
        }
    }

    fn opened_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
