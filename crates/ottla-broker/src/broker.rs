//! Wiring: from a folder and a configuration to a running broker, and back down in order.
//!
//! Start: lock and recover the folder, start owner and log threads, write the first records of a new folder, and
//! only then listen: no client ever sees an empty Metadata. Stop: the listener, then reading; then the owner
//! decides what was read and the log syncs it, which releases the answers; a last snapshot; connections close
//! once their answers have left.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ottla_core::command::CommandBody;
use ottla_env::clock::{Clock, OsClock};
use ottla_env::disk::os::OsDisk;
use ottla_env::disk::{Disk, LockError};
use ottla_env::net;
use ottla_env::rng::{OsRng, Rng};
use ottla_env::spawn::{self, TaskHandle, ThreadHandle};
use ottla_env::time;
use ottla_protocol::types::Uuid;
use ottla_storage::OpenError;
use tokio::sync::watch;

use crate::config::{Config, Durability};
use crate::limits::{FILES_RESERVED, LOCK_RETRY, LOCK_WAIT};
use crate::metrics::disk::MeteredDisk;
use crate::metrics::health::Status;
use crate::metrics::http::HttpServer;
use crate::metrics::scrape::Scraper;
use crate::metrics::{Metrics, nanos};
use crate::net::accept;
use crate::shard::desk::{FilesDesk, SurveyDesk};
use crate::shard::inbox::Inbox;
use crate::shard::owner::{Owner, OwnerSetup, StartError};
use crate::shard::recovery::{RecoverError, Recovered, recover};
use crate::shard::time::SharedTime;
use crate::shard::view::View;
use crate::shard::{Origin, Request, ShardHandle};
use crate::shared::Shared;

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum BrokerError {
    #[error("folder {dir}: {error}")]
    Folder { dir: String, error: std::io::Error },
    #[error("folder {dir}: {error}")]
    Recover { dir: String, error: Box<RecoverError> },
    #[error(transparent)]
    Threads(#[from] StartError),
    #[error("http.listen: cannot listen on {address}: {error}")]
    Http { address: String, error: std::io::Error },
    #[error("cannot listen on {address}: {error}")]
    Listen { address: String, error: std::io::Error },
    #[error("advertised.listener {0:?} is not host:port")]
    Advertised(String),
    #[error("the first records of the folder could not be written")]
    Bootstrap,
    #[error("no random numbers from the system: {0}")]
    Random(std::io::Error),
}

/// A running broker.
pub struct Broker {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    shared: Arc<Shared>,
    listener: TaskHandle<()>,
    settings: TaskHandle<()>,
    wakeups: TaskHandle<()>,
    inbox: Arc<Inbox<Request>>,
    owner: ThreadHandle<()>,
    http: Option<HttpServer>,
}

impl Broker {
    /// Starts a broker on a folder of this machine, on the current runtime.
    pub async fn start(config: Config) -> Result<Self, BrokerError> {
        let folder = |error| BrokerError::Folder { dir: config.dir.clone(), error };
        let disk = OsDisk::open_or_create(std::path::Path::new(&config.dir)).map_err(folder)?;
        Self::start_on(config, Arc::new(disk), Arc::new(OsClock)).await
    }

    /// Starts a broker on any disk and clock.
    pub async fn start_on(
        mut config: Config,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BrokerError> {
        let mut random = OsRng;
        config.core.hash_seed = random.next_u64();
        let (inbox, time) = (Arc::new(Inbox::default()), SharedTime::default());
        let metrics = Arc::new(Metrics::new(clock.monotonic()));
        let disk: Arc<dyn Disk> = Arc::new(MeteredDisk::new(disk, clock.clone(), metrics.disk.clone()));
        let desk = Arc::new(SurveyDesk::new(inbox.clone()));
        let machine = (clock.clone(), disk.clone(), time.clone());
        let (stop, stopping) = watch::channel(false);
        let scraper = Arc::new(Scraper::new(metrics.clone(), clock.clone()));
        let http = serve_http(&config, &scraper).await?;
        let shard = ShardHandle::new(inbox.clone(), clock.clone());
        let setup = OwnerSetup {
            disk,
            log: log_options(&config),
            core: config.core.clone(),
            clock: clock.clone(),
            time: time.clone(),
            inbox: inbox.clone(),
            shard: shard.clone(),
            snapshot_bytes: config.snapshot_log_bytes,
            metrics: metrics.clone(),
            desk: desk.clone(),
            files_desk: Arc::new(FilesDesk::new(inbox.clone())),
        };
        let recovered = load_and_tell(&config.dir, &setup).await?;
        let is_new = !recovered.state.is_bootstrapped();
        let reader = recovered.opened.reader.clone();
        let view = Arc::new(View::new(recovered.state.image(), reader, random.next_u64()));
        let owner = Owner::start(setup, recovered, view.clone())?;
        let owner = spawn::thread("ottla-shard", move || owner.run()).map_err(StartError::from)?;
        if is_new {
            bootstrap(&shard, &mut random).await?;
        }
        let listen = |error| BrokerError::Listen { address: config.listen.clone(), error };
        let socket = net::bind(&config.listen).await.map_err(listen)?;
        let address = socket.local_addr().map_err(listen)?;
        let advertised = advertised(&config, address)?;
        let seed = random.next_u64();
        let sockets_max = sockets_max(&config);
        let shared = Shared::new(
            config,
            advertised,
            shard,
            view.clone(),
            machine,
            seed,
            sockets_max,
            (metrics.clone(), desk),
            stopping,
        );
        let shared = Arc::new(shared);
        scraper.attach(shared.clone());
        metrics.health.set(Status::Ready, clock.monotonic());
        let wakeups = spawn::task("wakeups", async move { view.run_wakeups().await });
        let settings = spawn::task("settings", follow_settings(shared.clone()));
        let listener = spawn::task("listener", accept::run(socket, shared.clone()));
        Ok(Self { address, stop, shared, listener, settings, wakeups, inbox, owner, http })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Where /metrics and /health are, if `http.listen` is set.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpServer::local_addr)
    }

    /// Stops in order, in about `shutdown.timeout.ms` at the most: requests that were read are answered, parked
    /// fetches with what there is, waiting group members with NOT_COORDINATOR; a snapshot makes the next start
    /// quick. Everything acknowledged was on disk before, so nothing is lost if this is cut short.
    pub async fn shutdown(self) {
        let Self { stop, shared, mut listener, settings, wakeups, inbox, owner, http, .. } = self;
        let deadline = time::now() + Duration::from_millis(shared.config.shutdown_timeout_ms);
        shared.metrics.health.set(Status::Stopping, shared.clock.monotonic());
        stop.send_replace(true);
        if time::timeout_at(deadline, shared.readers.gone()).await.is_err() {
            tracing::warn!("connections did not stop reading in time");
        }
        inbox.close();
        let joined = spawn::blocking("join", move || owner.join().is_ok());
        if time::timeout_at(deadline, &mut listener).await.is_err() {
            tracing::warn!("not every answer left in time; the connections are cut");
            listener.abort();
        }
        settings.abort();
        wakeups.abort();
        if !joined.await.unwrap_or(false) {
            tracing::error!("the shard's thread panicked");
        }
        drop(http); // the last to go, so that a stop can be watched
    }
}

/// Binds the listener of metrics and health, if there is to be one.
async fn serve_http(config: &Config, scraper: &Arc<Scraper>) -> Result<Option<HttpServer>, BrokerError> {
    if config.http_listen.is_empty() {
        return Ok(None);
    }
    let started = HttpServer::start(&config.http_listen, scraper.clone()).await;
    started.map(Some).map_err(|error| BrokerError::Http { address: config.http_listen.clone(), error })
}

/// Puts settings in force that change while the broker runs.
async fn follow_settings(shared: Arc<Shared>) {
    loop {
        shared.view.settings_changed(&shared.quotas.followed()).await;
        shared.quotas.follow(&shared.view.image().config);
    }
}

/// How many sockets the process may open; says so if that is less than the settings want.
fn sockets_max(config: &Config) -> usize {
    let files = usize::try_from(ottla_env::process::open_files_max()).unwrap_or(usize::MAX);
    let most = files.saturating_sub(FILES_RESERVED).max(1);
    let wanted = usize::try_from(config.core.max_connections).unwrap_or(0);
    if most < wanted {
        tracing::warn!(
            max_connections = wanted,
            open_files = files,
            used = most,
            "the system's limit of open files (ulimit -n) is too low for max.connections"
        );
    }
    most
}

/// Loads the folder, and says what was found there.
async fn load_and_tell(dir: &str, setup: &OwnerSetup) -> Result<Recovered, BrokerError> {
    let began = setup.clock.monotonic();
    let recovered = load(setup).await;
    let took = setup.clock.monotonic().saturating_sub(began);
    setup.metrics.log.recovery_nanos.set(nanos(took));
    let recovered =
        recovered.map_err(|error| BrokerError::Recover { dir: dir.to_owned(), error: Box::new(error) })?;
    let report = &recovered.opened.report;
    tracing::info!(
        dir,
        ?took,
        epoch = recovered.opened.epoch,
        position = recovered.state.position().0,
        files = report.files,
        frames_replayed = report.frames_replayed,
        from_snapshot = report.snapshot.is_some(),
        torn_tail = report.cut.is_some(),
        damaged_places = report.damage.len() + report.damaged_snapshots.len(),
        "the folder is loaded"
    );
    Ok(recovered)
}

/// Recovers the folder. A process that was just killed may still hold its lock while it is torn down, so a held
/// lock is tried again for a moment.
async fn load(setup: &OwnerSetup) -> Result<Recovered, RecoverError> {
    let deadline = ottla_env::time::now() + LOCK_WAIT;
    loop {
        let setup = setup.clone();
        let load = move || recover(&setup.disk, &setup.log, &setup.core, &setup.clock, &setup.time);
        match spawn::blocking("recover", load).await.expect("recovery does not panic") {
            Err(RecoverError::Open(OpenError::Lock(LockError::Held { .. })))
                if ottla_env::time::now() < deadline =>
            {
                ottla_env::time::sleep(LOCK_RETRY).await;
            }
            loaded => return loaded,
        }
    }
}

fn log_options(config: &Config) -> ottla_storage::LogOptions {
    let nonces = ottla_storage::Nonces::new(|| OsRng.next_u64());
    let mut options = ottla_storage::LogOptions::new(nonces);
    options.file_bytes = config.log_file_bytes;
    options.tail_bytes_max = config.tail_cache_bytes;
    options.levels = config.levels;
    options.reserve_files = config.log_reserve_files;
    options.durability = match config.durability {
        Durability::Fsync => ottla_storage::Durability::Fsync,
        Durability::Os => ottla_storage::Durability::Os,
    };
    options
}

async fn bootstrap(shard: &ShardHandle, random: &mut OsRng) -> Result<(), BrokerError> {
    let mut uuid = || {
        let mut bytes = [0; 16];
        random.fill(&mut bytes);
        // Version 4, variant 1, as Kafka's ids are; and never the reserved all-zero id.
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Uuid(bytes)
    };
    let body = CommandBody::Bootstrap { cluster_id: uuid(), topic_ids: [uuid(), uuid()] };
    let answer = shard.submit(&Origin::default(), body, 1, None).map_err(|_| BrokerError::Bootstrap)?;
    answer.await.map(drop).map_err(|_| BrokerError::Bootstrap)
}

fn advertised(config: &Config, address: SocketAddr) -> Result<(String, u16), BrokerError> {
    if config.advertised_listener.is_empty() {
        let host = config.listen.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
        // Nobody can connect to "all addresses"; without a word from the user the loopback is the only safe one.
        let host = if matches!(host, "0.0.0.0" | "[::]" | "") { "127.0.0.1" } else { host };
        return Ok((host.trim_matches(['[', ']']).to_owned(), address.port()));
    }
    let parsed = config.advertised_listener.rsplit_once(':');
    let parsed = parsed.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    match parsed {
        Some((host, port)) if !host.is_empty() => Ok((host.trim_matches(['[', ']']).to_owned(), port)),
        _ => Err(BrokerError::Advertised(config.advertised_listener.clone())),
    }
}
