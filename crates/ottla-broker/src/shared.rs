//! What all connections share: handles, the published view, budgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ottla_env::clock::Clock;
use ottla_env::disk::Disk;
use tokio::sync::{Notify, Semaphore, watch};

use crate::config::Config;
use crate::handlers::fetch::sessions::FetchSessions;
use crate::limits;
use crate::metrics::Metrics;
use crate::net::frames::RequestBudget;
use crate::net::quotas::Quotas;
use crate::shard::ShardHandle;
use crate::shard::desk::SurveyDesk;
use crate::shard::time::SharedTime;
use crate::shard::view::View;

/// The state that connections share.
pub struct Shared {
    /// The settings.
    pub config: Config,
    /// Host and port that clients are told.
    pub advertised: (String, u16),
    /// Where commands go.
    pub shard: ShardHandle,
    /// What readers see.
    pub view: Arc<View>,
    /// Bytes of requests in the broker.
    pub request_budget: RequestBudget,
    /// Who may connect.
    pub quotas: Arc<Quotas>,
    /// Connections that still read requests.
    pub readers: Readers,
    /// Bytes of fetched data between disk and socket.
    pub fetch_budget: Arc<Semaphore>,
    /// Fetches that wait for some of these.
    pub fetch_waiting: AtomicUsize,
    /// Incremental fetch sessions (KIP-227).
    pub sessions: FetchSessions,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Where the state is surveyed.
    pub desk: Arc<SurveyDesk>,
    /// The machine's clock, for timestamps' bounds.
    pub clock: Arc<dyn Clock>,
    /// The folder of the data, to ask how much room there is.
    pub disk: Arc<dyn Disk>,
    time: SharedTime,
    stop: watch::Receiver<bool>,
}

impl Shared {
    #[allow(clippy::too_many_arguments)] // each is one part, and there is one caller
    /// Puts the parts together; `stop` turns true when the broker stops.
    pub fn new(
        config: Config,
        advertised: (String, u16),
        shard: ShardHandle,
        view: Arc<View>,
        (clock, disk, time): (Arc<dyn Clock>, Arc<dyn Disk>, SharedTime),
        session_seed: u64,
        sockets_max: usize,
        (metrics, desk): (Arc<Metrics>, Arc<SurveyDesk>),
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            request_budget: RequestBudget::new(
                config.queued_max_request_bytes,
                config.socket_request_max_bytes,
            ),
            quotas: Arc::new(Quotas::new(
                view.image().config.clone(),
                sockets_max,
                config.connections_max_idle(),
            )),
            readers: Readers::default(),
            fetch_budget: Arc::new(Semaphore::new(limits::FETCH_IN_FLIGHT_BYTES_MAX)),
            fetch_waiting: AtomicUsize::new(0),
            sessions: FetchSessions::new(config.fetch_sessions_max, session_seed),
            config,
            advertised,
            shard,
            view,
            metrics,
            desk,
            clock,
            disk,
            time,
            stop,
        }
    }

    /// The folder of the data as an absolute path, under which clients know it.
    pub fn log_dir(&self) -> String {
        let dir = &self.config.dir;
        std::path::absolute(dir).map_or_else(|_| dir.clone(), |path| path.to_string_lossy().into_owned())
    }

    /// Shard time now, ms: what records' timestamps are compared with.
    pub fn shard_time_ms(&self) -> i64 {
        self.time.now_ms(&*self.clock)
    }

    /// Whether a fetch waits for bytes that others hold.
    pub fn is_fetch_room_wanted(&self) -> bool {
        self.fetch_waiting.load(Ordering::Relaxed) > 0
    }

    /// Ready once the broker stops.
    pub async fn stopping(&self) {
        let mut stop = self.stop.clone();
        // An error means that the broker is gone, which is a stop as well.
        drop(stop.wait_for(|stop| *stop).await);
    }
}

/// Counts who still reads requests: when a stopping broker has none left, nothing new reaches the shard.
#[derive(Default)]
pub struct Readers {
    count: AtomicUsize,
    left: Notify,
}

/// One of them, until dropped.
pub struct Reading<'a>(&'a Readers);

impl Readers {
    /// One more.
    pub fn enter(&self) -> Reading<'_> {
        self.count.fetch_add(1, Ordering::AcqRel);
        Reading(self)
    }

    /// Waits until there is none.
    pub async fn gone(&self) {
        loop {
            let left = self.left.notified();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.left.notify_waiters();
        }
    }
}
