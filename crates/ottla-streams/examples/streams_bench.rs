//! Our side of `cargo xtask bench --parts streams`: the topology of `compat/java/StreamsBench.java`, told line by line.
//!
//! `streams_bench BOOTSTRAP STATE_DIR [APPLICATION]`
//!
//! ```text
//!   bench-in (4 partitions) ── per key: count and last value, store "state" in RocksDB ── the count ──> bench-out
//! ```
//!
//! Runs until it is killed. Each line of standard output is an event, `MILLISECONDS EVENT details`, with the time since
//! the start of the process. Topics are made and filled by the Java program's `load`, so that both sides read the same.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ottla_client::admin::OffsetSpec;
use ottla_client::{Admin, ClientSettings, IsolationLevel, Text, TopicPartition};
use ottla_env::clock::{Clock, OsClock};
use ottla_env::{spawn, time};
use ottla_streams::app::{App, AppSettings, AppState};
use ottla_streams::codec::{self, Utf8};
use ottla_streams::topology::{Topology, TopologyError};
use ottla_streams::worker::LATENCY_BOUNDS_MS;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const INPUT: &str = "bench-in";
const OUTPUT: &str = "bench-out";
const PARTITIONS: i32 = 4;
/// As many as Kafka Streams gets threads.
const WORKERS: usize = 2;
/// Default of Kafka Streams under exactly once.
const COMMIT: Duration = Duration::from_millis(100);
/// How often committed offsets are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// What the topology counts, and when the process began.
#[derive(Default)]
struct Seen {
    processed: AtomicU64,
    any: AtomicBool,
    began: Duration,
}

impl Seen {
    fn event(&self, what: &str) {
        println!("{} {what}", OsClock.monotonic().saturating_sub(self.began).as_millis());
    }
}

/// The new state of a key: 8 bytes of count, and the value.
fn bump(old: &Bytes, value: &Bytes) -> Bytes {
    let count = old.first_chunk::<8>().map_or(1, |count| i64::from_be_bytes(*count) + 1);
    let mut next = Vec::with_capacity(8 + value.len());
    next.extend_from_slice(&count.to_be_bytes());
    next.extend_from_slice(value);
    next.into()
}

fn topology(name: &str, seen: &Arc<Seen>) -> Result<Topology, TopologyError> {
    let seen = Arc::clone(seen);
    Topology::new(name, |b| {
        let records = b.stream(INPUT, Utf8, codec::Bytes).peek(move |_| {
            seen.processed.fetch_add(1, Ordering::Relaxed);
            if !seen.any.swap(true, Ordering::Relaxed) {
                seen.event("FIRST_RECORD");
            }
        });
        let state =
            records.group().aggregate("state", codec::Bytes, Bytes::new, |old, r| bump(&old, &r.value));
        let counts = state.changes().map_values(|_, state| state.slice(..8.min(state.len())));
        counts.values_as(codec::Bytes).to(OUTPUT);
    })
}

async fn run(bootstrap: &str, folder: &str, name: &str) -> Result<(), Failure> {
    let seen = Arc::new(Seen { began: OsClock.monotonic(), ..Seen::default() });
    tracing::subscriber::set_global_default(Teller { seen: Arc::clone(&seen), restored: AtomicU64::new(0) })?;
    let client = ClientSettings::new(bootstrap)?;
    let admin = Admin::connect(client.clone()).await?;
    let total = end(&admin).await?;
    let settings =
        AppSettings { workers: WORKERS, commit_interval: COMMIT, ..AppSettings::new(client, folder) };
    let app = App::start(topology(name, &seen)?, settings).await?;
    let (mut last, mut shown, mut done) = (-1, None, false);
    loop {
        let state = app.state();
        if shown.as_ref() != Some(&state) {
            seen.event(&format!("STATE {state:?}"));
        }
        if let AppState::Failed(reason) = &state {
            return Err(reason.clone().into());
        }
        shown = Some(state);
        let committed = committed(&admin, name).await?;
        let processed = seen.processed.load(Ordering::Relaxed);
        if committed != last {
            seen.event(&format!("COMMITTED {committed} of {total} processed {processed}"));
        }
        last = committed;
        if !done && committed >= total {
            done = true;
            seen.event(&latency(&app));
            seen.event(&format!("CAUGHT_UP processed {processed}"));
        }
        time::sleep(LOOK).await;
    }
}

/// `COMMIT_LATENCY commits N mean_ms N p50_ms N p99_ms N max_ms N` over all workers since the start; quantiles and
/// maximum are upper bounds of their buckets.
fn latency(app: &App) -> String {
    let (mut buckets, mut sum_us) = (vec![0; LATENCY_BOUNDS_MS.len() + 1], 0);
    for worker in app.metrics().workers {
        let latency = worker.commit_latency();
        sum_us += latency.sum_us;
        latency.buckets.iter().zip(&mut buckets).for_each(|(count, sum)| *sum += count);
    }
    let commits: u64 = buckets.iter().sum();
    let at = |share: f64| {
        let wanted = (commits as f64 * share).ceil() as u64;
        let mut below = 0;
        let place = buckets.iter().position(|count| {
            below += count;
            below >= wanted
        });
        place.and_then(|place| LATENCY_BOUNDS_MS.get(place)).copied().unwrap_or(u64::MAX)
    };
    let mean = sum_us as f64 / 1000.0 / commits.max(1) as f64;
    let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
    format!("COMMIT_LATENCY commits {commits} mean_ms {mean:.2} p50_ms {p50} p99_ms {p99} max_ms {max}")
}

fn partitions() -> impl Iterator<Item = TopicPartition> {
    (0..PARTITIONS).map(|partition| TopicPartition::new(INPUT, partition))
}

async fn end(admin: &Admin) -> Result<i64, Failure> {
    let specs: BTreeMap<_, _> = partitions().map(|at| (at, OffsetSpec::Latest)).collect();
    let mut sum = 0;
    for found in admin.list_offsets(&specs, IsolationLevel::ReadCommitted).await.into_values() {
        sum += found?.map_or(0, |found| found.offset);
    }
    Ok(sum)
}

async fn committed(admin: &Admin, name: &str) -> Result<i64, Failure> {
    match admin.group_offsets(&Text::from(name)).await {
        Ok(found) => Ok(found.iter().filter_map(|committed| committed.offset).sum()),
        Err(_) => Ok(0), // the group has not committed yet
    }
}

/// Tells what was restored, and what went wrong.
struct Teller {
    seen: Arc<Seen>,
    restored: AtomicU64,
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Teller {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("ottla_") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let get = |name: &str| fields.0.get(name).map_or("", String::as_str);
        if get("message") == "restored" {
            let replayed: u64 = get("replayed").parse().unwrap_or(0);
            let sum = self.restored.fetch_add(replayed, Ordering::Relaxed) + replayed;
            let (task, took) = (get("task"), get("milliseconds"));
            self.seen.event(&format!("RESTORE_END {task} {sum} took_ms {took}"));
        } else {
            eprintln!("{}: {:?}", event.metadata().level(), fields.0);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (bootstrap, folder, name) = match &arguments[..] {
        [bootstrap, folder] => (bootstrap, folder, "bench-streams"),
        [bootstrap, folder, name] => (bootstrap, folder, name.as_str()),
        _ => {
            eprintln!("usage: streams_bench BOOTSTRAP STATE_DIR [APPLICATION]");
            return ExitCode::from(2);
        }
    };
    let ran = spawn::runtime(WORKERS).map_err(Failure::from);
    match ran.and_then(|runtime| runtime.block_on(run(bootstrap, folder, name))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("streams_bench: {error}");
            ExitCode::FAILURE
        }
    }
}
