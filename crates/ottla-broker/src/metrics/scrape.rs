//! One scrape: adds up what was counted, asks for what is state, writes the text.
//!
//! Place: the http listener calls it. One scrape runs at a time, away from the threads of connections. While the
//! folder is being loaded there is only what was counted; the rest follows once the broker runs.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ottla_core::survey::Survey;
use ottla_env::clock::Clock;
use ottla_env::disk::Disk;
use ottla_env::{spawn, time, usage};
use ottla_protocol::error::ErrorCode;

use super::disk::FileKind;
use super::health::Status;
use super::requests::OfApi;
use super::state;
use super::table as t;
use super::text::{Family, Text};
use super::topics::{OTHER, TopicCells};
use super::{CloseReason, Metrics};
use crate::limits::{METRICS_DISK_INTERVAL, METRICS_LAGS_MAX, METRICS_SURVEY_TIME};
use crate::shared::Shared;

/// Who answers scrapes.
pub struct Scraper {
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    started: Duration,
    running: OnceLock<Arc<Shared>>,
    turn: Arc<tokio::sync::Mutex<Remembered>>,
}

/// What is not found out anew at each scrape.
#[derive(Default)]
struct Remembered {
    /// When the files were measured, and their bytes.
    log_bytes: Option<(Duration, u64)>,
}

impl Scraper {
    /// Of a broker that is starting.
    pub fn new(metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        let started = clock.monotonic();
        Self { metrics, clock, started, running: OnceLock::new(), turn: Arc::default() }
    }

    /// The broker runs.
    pub fn attach(&self, shared: Arc<Shared>) {
        let is_first = self.running.set(shared).is_ok();
        assert!(is_first, "a broker starts once");
    }

    /// Whether everything is served, and the health page.
    pub fn health(&self) -> (bool, String) {
        let (status, since) = self.metrics.health.get();
        let now = self.clock.monotonic();
        let page = serde_json::json!({
            "status": status.name(),
            "reason": status.reason(),
            "status_seconds": now.saturating_sub(since).as_secs(),
            "uptime_seconds": now.saturating_sub(self.started).as_secs(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        (status == Status::Ready, format!("{page}\n"))
    }

    /// The text of one scrape; none when it could not be made, which is a bug and was logged.
    pub async fn scrape(self: &Arc<Self>) -> Option<String> {
        let mut remembered = self.turn.clone().lock_owned().await;
        let survey = match self.shared() {
            Some(shared) => {
                time::timeout(METRICS_SURVEY_TIME, shared.desk.survey(METRICS_LAGS_MAX)).await.ok().flatten()
            }
            None => None,
        };
        let scraper = self.clone();
        let write = move || scraper.write(&mut remembered, survey.as_ref());
        let written = spawn::blocking("scrape", write).await;
        written.inspect_err(|error| tracing::error!(%error, "a scrape panicked")).ok()
    }

    fn write(&self, remembered: &mut Remembered, survey: Option<&Survey>) -> String {
        let mut text = Text::default();
        let requests = self.metrics.requests.read();
        self.write_topics(&mut text);
        write_requests(&mut text, &requests);
        self.write_budgets(&mut text);
        self.write_connections(&mut text);
        self.write_fetching(&mut text);
        self.write_owner(&mut text);
        self.write_log(&mut text);
        self.write_disk(&mut text, remembered);
        self.write_snapshots(&mut text);
        self.write_cluster(&mut text);
        self.write_transactions(&mut text, &requests, survey);
        self.write_groups(&mut text, survey);
        self.write_process(&mut text);
        state::write_left_out(&mut text, self.shared(), survey);
        text.finish()
    }

    fn shared(&self) -> Option<&Arc<Shared>> {
        self.running.get()
    }

    fn write_topics(&self, text: &mut Text) {
        let image = self.shared().map(|shared| shared.view.image());
        let topics = image.as_ref().map(|image| image.topics()).unwrap_or_default();
        let table = &self.metrics.topics;
        if image.is_some() {
            table.keep(topics.iter().map(|topic| topic.id));
        }
        let named = topics.iter().filter_map(|topic| Some((&*topic.name, table.get(topic.id)?)));
        let all: Vec<(&str, &TopicCells)> = named.chain([(OTHER, table.other())]).collect();
        let mut write = |metric, of: fn(&TopicCells) -> u64| {
            let mut family = text.family(metric);
            for (name, cells) in &all {
                family.sample(&[name], of(cells));
            }
        };
        write(&t::MESSAGES_IN, |cells| cells.messages_in.get());
        write(&t::BYTES_IN, |cells| cells.bytes_in.get());
        write(&t::BYTES_OUT, |cells| cells.read.bytes_out.get());
        write(&t::PRODUCE_REQUESTS, |cells| cells.read.produce_requests.get());
        write(&t::FAILED_PRODUCE_REQUESTS, |cells| cells.read.failed_produce_requests.get());
        write(&t::FETCH_REQUESTS, |cells| cells.read.fetch_requests.get());
        write(&t::FAILED_FETCH_REQUESTS, |cells| cells.read.failed_fetch_requests.get());
    }

    fn write_budgets(&self, text: &mut Text) {
        let budget = self.shared().map(|shared| &shared.request_budget);
        text.value(&t::REQUESTS_IN_FLIGHT, budget.map_or(0, |budget| budget.in_use()));
        text.value(&t::REQUESTS_IN_FLIGHT_MAX, budget.map_or(0, |budget| budget.capacity()));
        let fetch = self.shared().map_or(0, |shared| {
            crate::limits::FETCH_IN_FLIGHT_BYTES_MAX.saturating_sub(shared.fetch_budget.available_permits())
        });
        text.value(&t::FETCH_IN_FLIGHT, fetch);
    }

    fn write_connections(&self, text: &mut Text) {
        let cells = &self.metrics.connections;
        text.value(&t::CONNECTIONS, self.shared().map_or(0, |shared| shared.quotas.connections()));
        text.value(&t::CONNECTIONS_ACCEPTED, cells.accepted.get());
        text.value(&t::CONNECTIONS_REFUSED, cells.refused.get());
        let mut closed = text.family(&t::CONNECTIONS_CLOSED);
        for reason in CloseReason::ALL {
            let count: u64 = cells.closed.iter().map(|of| of[reason as usize].get()).sum();
            closed.sample(&[reason.name()], count);
        }
    }

    fn write_fetching(&self, text: &mut Text) {
        text.value(&t::PARKED_FETCHES, self.metrics.parked_fetches.get());
        let counts = self.shared().map(|shared| shared.sessions.counts()).unwrap_or_default();
        text.value(&t::FETCH_SESSIONS, counts.sessions);
        text.value(&t::FETCH_SESSION_PARTITIONS, counts.partitions);
        text.value(&t::FETCH_SESSION_EVICTIONS, counts.evictions);
    }

    fn write_owner(&self, text: &mut Text) {
        let owner = &self.metrics.owner;
        text.family(&t::OWNER_QUEUE_TIME).histogram(&[], &owner.queue_time.read());
        text.family(&t::OWNER_STEP_TIME).histogram(&[], &owner.step_time.read());
        text.value(&t::OWNER_STEP_LONGEST, seconds(owner.longest_step_nanos.get()));
        text.value(&t::OWNER_BUSY, seconds(owner.busy_nanos.get()));
        text.value(&t::OWNER_WAITING, self.shared().map_or(0, |shared| shared.shard.waiting()));
    }

    fn write_log(&self, text: &mut Text) {
        let log = &self.metrics.log;
        text.family(&t::FLUSH_TIME).histogram(&[], &log.flush_time.read());
        text.family(&t::SYNC_WAIT).histogram(&[], &log.sync_wait.read());
        text.value(&t::FRAMES, log.frames.get());
        text.family(&t::FRAME_BATCHES).histogram(&[], &log.frame_batches.read());
        text.value(&t::LOG_FAILURES, log.failures.get());
    }

    fn write_disk(&self, text: &mut Text, remembered: &mut Remembered) {
        let disk = self.shared().map(|shared| &*shared.disk);
        let mut log_bytes = text.family(&t::LOG_BYTES);
        if let Some(bytes) = disk.and_then(|disk| self.log_bytes(disk, remembered)) {
            log_bytes.sample(&[], bytes);
        }
        let mut free = text.family(&t::DISK_FREE);
        if let Some(bytes) = disk.and_then(|disk| disk.free_bytes().ok()) {
            free.sample(&[], bytes);
        }
        let cells = &self.metrics.disk;
        let mut syncs = text.family(&t::DISK_SYNC_TIME);
        FileKind::ALL.iter().for_each(|kind| {
            syncs.histogram(&[kind.name()], &cells.of(*kind).syncs.read());
        });
        let each = |mut family: Family<'_>, of: &dyn Fn(FileKind) -> u64| {
            FileKind::ALL.iter().for_each(|kind| {
                family.sample(&[kind.name()], of(*kind));
            });
        };
        each(text.family(&t::DISK_WRITTEN), &|kind| cells.of(kind).written_bytes.get());
        each(text.family(&t::DISK_WRITES), &|kind| cells.of(kind).writes.get());
        each(text.family(&t::DISK_READ), &|kind| cells.of(kind).read_bytes.get());
        each(text.family(&t::DISK_READS), &|kind| cells.of(kind).reads.get());
        let mut errors = text.family(&t::DISK_ERRORS);
        for kind in FileKind::ALL {
            let cells = cells.of(kind);
            errors.sample(&[kind.name(), "read"], cells.read_errors.get());
            errors.sample(&[kind.name(), "write"], cells.write_errors.get());
            errors.sample(&[kind.name(), "sync"], cells.sync_errors.get());
        }
    }

    /// Bytes of the log's files, measured from time to time; none when the disk does not tell.
    fn log_bytes(&self, disk: &dyn Disk, remembered: &mut Remembered) -> Option<u64> {
        let now = self.clock.monotonic();
        if let Some((at, bytes)) = remembered.log_bytes
            && now.saturating_sub(at) < METRICS_DISK_INTERVAL
        {
            return Some(bytes);
        }
        let names = disk.list().ok()?;
        let logs = names.iter().filter(|name| name.ends_with(".log") || name.ends_with(".data"));
        // A file may be removed between its name and its length.
        let bytes = logs.filter_map(|name| disk.open(name).and_then(|file| file.len()).ok()).sum();
        remembered.log_bytes = Some((now, bytes));
        Some(bytes)
    }

    fn write_snapshots(&self, text: &mut Text) {
        let log = &self.metrics.log;
        text.family(&t::SNAPSHOTS)
            .sample(&["written"], log.snapshots.get())
            .sample(&["failed"], log.snapshot_failures.get());
        text.value(&t::SNAPSHOT_TIME, seconds(log.snapshot_nanos.get()));
        text.value(&t::SNAPSHOT_BYTES, log.snapshot_bytes.get());
        let mut age = text.family(&t::SNAPSHOT_AGE);
        let at = Duration::from_nanos(log.snapshot_at_nanos.get());
        if !at.is_zero() {
            age.sample(&[], self.clock.monotonic().saturating_sub(at).as_secs_f64());
        }
        text.value(&t::RECOVERY_TIME, seconds(log.recovery_nanos.get()));
        text.value(&t::RELOADS, self.metrics.owner.reloads.get());
        text.value(&t::LOG_WRITTEN, log.written_bytes.get());
        text.value(&t::LOG_REWRITTEN, log.rewritten_bytes.get());
        text.value(&t::LOG_FILES_REMOVED, log.files_removed.get());
        text.value(&t::LOG_SETTLED, log.settled_bytes.get());
        text.value(&t::LOG_GARBAGE, log.garbage_bytes.get());
        text.value(&t::LOG_STARTS_MOVED, log.log_starts_moved.get());
        let cleaner = &self.metrics.cleaner;
        text.value(&t::CLEANER_PASSES, cleaner.passes.get());
        text.value(&t::CLEANER_BEFORE, cleaner.bytes_before.get());
        text.value(&t::CLEANER_AFTER, cleaner.bytes_after.get());
        text.value(&t::CLEANER_RECORDS, cleaner.records_removed.get());
        text.value(&t::CLEANER_UNREADABLE, cleaner.unreadable_batches.get());
        text.value(&t::CLEANER_SEALED, cleaner.files_sealed.get());
        text.value(&t::CLEANER_DIRTY, cleaner.max_dirty_percent.get());
        text.value(&t::CLEANER_UNCLEANABLE, cleaner.uncleanable.get());
    }

    fn write_cluster(&self, text: &mut Text) {
        let image = self.shared().map(|shared| shared.view.image());
        let topics = image.as_ref().map(|image| image.topics()).unwrap_or_default();
        text.value(&t::TOPICS, topics.len());
        let partitions: i64 = topics.iter().map(|topic| i64::from(topic.partition_count)).sum();
        text.value(&t::PARTITIONS, partitions);
    }

    fn write_transactions(&self, text: &mut Text, requests: &[OfApi], survey: Option<&Survey>) {
        text.value(&t::LATE_REQUESTS, self.metrics.owner.late_requests.get());
        text.value(&t::LET_THROUGH, self.metrics.owner.late_requests_let_through.get());
        state::write_transactions(text, survey);
        let owner = &self.metrics.owner;
        text.value(&t::TIMED_OUT, owner.transactions_timed_out.get());
        text.value(&t::PRODUCERS_FENCED, owner.producers_fenced.get());
        state::write_stable_lag(text, self.shared());
        let errors = requests.iter().flat_map(|of_api| &of_api.errors);
        let is_fenced =
            |code: ErrorCode| matches!(code, ErrorCode::InvalidProducerEpoch | ErrorCode::ProducerFenced);
        let fenced = errors.filter(|(code, _)| is_fenced(*code)).map(|(_, count)| count);
        text.value(&t::FENCED_REQUESTS, fenced.sum::<u64>());
    }

    fn write_groups(&self, text: &mut Text, survey: Option<&Survey>) {
        state::write_groups(text, survey);
        text.family(&t::REBALANCES)
            .sample(&["classic"], self.metrics.owner.classic_rebalances.get())
            .sample(&["consumer"], self.metrics.owner.consumer_rebalances.get());
        state::write_lags(text, self.shared(), survey);
    }

    fn write_process(&self, text: &mut Text) {
        let (status, _) = self.metrics.health.get();
        text.family(&t::READY).sample(&[status.name()], u64::from(status == Status::Ready));
        text.family(&t::BUILD).sample(&[env!("CARGO_PKG_VERSION")], 1_u64);
        text.value(&t::UPTIME, self.clock.monotonic().saturating_sub(self.started).as_secs_f64());
        let used = usage::of_this_process().ok();
        let mut sample = |metric, value: Option<f64>| {
            let mut family = text.family(metric);
            if let Some(value) = value {
                family.sample(&[], value);
            }
        };
        sample(&t::MEMORY, used.map(|used| used.resident_bytes as f64));
        sample(&t::OPEN_FILES, used.map(|used| used.open_files as f64));
        sample(&t::CPU, used.map(|used| used.cpu_time.as_secs_f64()));
    }
}

fn write_requests(text: &mut Text, requests: &[OfApi]) {
    let mut counts = text.family(&t::REQUESTS);
    for of_api in requests {
        for (version, count) in &of_api.versions {
            counts.sample(&[of_api.api.name, &version.to_string()], *count);
        }
    }
    let mut errors = text.family(&t::ERRORS);
    for of_api in requests {
        for (code, count) in &of_api.errors {
            errors.sample(&[of_api.api.name, code.name()], *count);
        }
    }
    let mut times = text.family(&t::TOTAL_TIME);
    for of_api in requests {
        times.histogram(&[of_api.api.name], &of_api.total_time);
    }
    let mut bytes = text.family(&t::REQUEST_BYTES);
    for of_api in requests {
        bytes.sample(&[of_api.api.name], of_api.request_bytes);
    }
    let mut bytes = text.family(&t::RESPONSE_BYTES);
    for of_api in requests {
        bytes.sample(&[of_api.api.name], of_api.response_bytes);
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
