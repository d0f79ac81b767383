//! What all connections share: handles, the published view, budgets.

use std::sync::Arc;

use ottla_env::clock::Clock;
use ottla_env::disk::Disk;
use tokio::sync::{Semaphore, watch};

use crate::config::Config;
use crate::handlers::fetch::sessions::FetchSessions;
use crate::limits;
use crate::net::frames::RequestBudget;
use crate::shard::ShardHandle;
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
    /// Bytes of fetched data between disk and socket.
    pub fetch_budget: Arc<Semaphore>,
    /// Incremental fetch sessions (KIP-227).
    pub sessions: FetchSessions,
    /// The machine's clock, for timestamps' bounds.
    pub clock: Arc<dyn Clock>,
    /// The folder of the data, to ask how much room there is.
    pub disk: Arc<dyn Disk>,
    time: SharedTime,
    stop: watch::Receiver<bool>,
}

impl Shared {
    /// Puts the parts together; `stop` turns true when the broker stops.
    pub fn new(
        config: Config,
        advertised: (String, u16),
        shard: ShardHandle,
        view: Arc<View>,
        (clock, disk, time): (Arc<dyn Clock>, Arc<dyn Disk>, SharedTime),
        session_seed: u64,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            request_budget: RequestBudget::new(
                config.queued_max_request_bytes,
                config.socket_request_max_bytes,
            ),
            fetch_budget: Arc::new(Semaphore::new(limits::FETCH_IN_FLIGHT_BYTES_MAX)),
            sessions: FetchSessions::new(config.fetch_sessions_max, session_seed),
            config,
            advertised,
            shard,
            view,
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

    /// Ready once the broker stops.
    pub async fn stopping(&self) {
        let mut stop = self.stop.clone();
        // An error means that the broker is gone, which is a stop as well.
        drop(stop.wait_for(|stop| *stop).await);
    }
}
