//! Figures of an application, and the page that a scraper reads.
//!
//! The library opens no port: an application serves [`AppMetrics::text`] where it likes. What each figure means is said
//! once, in [`METRICS`]; docs/streams-metrics.md is made from it.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Arc;

use crate::record::TaskId;
use crate::worker::{LATENCY_BOUNDS_MS, WorkerMetrics};

/// Figures of an application, as they are at this moment. The workers' are live.
#[derive(Clone, Debug)]
pub struct AppMetrics {
    /// By worker.
    pub workers: Vec<Arc<WorkerMetrics>>,
    /// Changelog offsets left to replay, by task that is being restored.
    pub restore_left: BTreeMap<TaskId, i64>,
    /// Uncommitted bytes of all workers.
    pub uncommitted_bytes: usize,
    /// Copies of stores that were damaged or replaced and lie beside in the state folder until somebody removes them.
    pub set_aside: u64,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, with its unit.
    pub name: &'static str,
    /// `gauge`, `counter` or `histogram`.
    pub kind: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

const fn metric(
    name: &'static str,
    kind: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, labels, help }
}

const TASKS: &str = "ottla_streams_tasks";
const RESTORING: &str = "ottla_streams_restoring_tasks";
const RESTORE_LEFT: &str = "ottla_streams_restore_left_offsets";
const PARKED: &str = "ottla_streams_parked_tasks";
const SET_ASIDE: &str = "ottla_streams_set_aside_stores";
const LAG: &str = "ottla_streams_lag_offsets";
const UNCOMMITTED: &str = "ottla_streams_uncommitted_bytes";
const AGE: &str = "ottla_streams_transaction_age_seconds";
const COMMIT: &str = "ottla_streams_commit_seconds";
const RECORDS: &str = "ottla_streams_records_total";
const LEFT_OUT: &str = "ottla_streams_records_left_out_total";
const LATE: &str = "ottla_streams_records_late_total";
const ROLLBACKS: &str = "ottla_streams_rollbacks_total";
const TIMED_OUT: &str = "ottla_streams_transactions_timed_out_total";
const NOT_OWNER: &str = "ottla_streams_offsets_refused_total";
const UNKNOWN: &str = "ottla_streams_unknown_outcomes_total";
const RESOLVED: &str = "ottla_streams_unknown_outcomes_resolved_total";

/// Every metric of an application.
pub const METRICS: &[Metric] = &[
    metric(TASKS, "gauge", &["worker"], "Tasks at work."),
    metric(RESTORING, "gauge", &[], "Tasks whose stores are being opened or brought forward."),
    metric(
        RESTORE_LEFT,
        "gauge",
        &["task"],
        "Changelog offsets that are left until the task's stores stand at their committed boundary. Only tasks that are being restored.",
    ),
    metric(
        PARKED,
        "gauge",
        &["worker"],
        "Tasks whose disk refuses a committed boundary. They wait and try again; after 10 s their stores are opened anew.",
    ),
    metric(
        SET_ASIDE,
        "gauge",
        &[],
        "Copies of stores that were damaged or replaced, in folders `aside-N` with a note beside each. They take disk space until somebody removes them.",
    ),
    metric(
        LAG,
        "gauge",
        &["topic", "partition"],
        "Offsets between what is committed and the last stable offset of an input, as far as its tasks are here.",
    ),
    metric(UNCOMMITTED, "gauge", &[], "Bytes of writes to stores that are not committed, of all workers."),
    metric(AGE, "gauge", &["worker"], "Age of the open transaction; 0 when none is open."),
    metric(
        COMMIT,
        "histogram",
        &[],
        "From the beginning of a commit to its end in the stores, of all workers. Its count is that of the committed transactions.",
    ),
    metric(RECORDS, "counter", &["worker"], "Records processed, those of aborted transactions included."),
    metric(
        LEFT_OUT,
        "counter",
        &["worker"],
        "Records left out by a policy (Skip, DeadLetter), those of aborted transactions included.",
    ),
    metric(
        LATE,
        "counter",
        &["worker"],
        "Records that came after their windows had closed, those of aborted transactions included.",
    ),
    metric(ROLLBACKS, "counter", &["worker"], "Transactions that were given up, for whatever reason."),
    metric(
        TIMED_OUT,
        "counter",
        &["worker"],
        "Transactions that the coordinator ended since they were open for longer than `transaction_timeout`.",
    ),
    metric(NOT_OWNER, "counter", &["worker"], "Offsets that were refused since the group had moved on."),
    metric(UNKNOWN, "counter", &["worker"], "Commits whose answer was lost."),
    metric(
        RESOLVED,
        "counter",
        &["worker", "outcome"],
        "What the committed offsets said of them: committed or aborted.",
    ),
];

/// The page under way.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str) {
        let metric = METRICS.iter().find(|metric| metric.name == name).expect("every metric is in the table");
        self.line(format_args!("# HELP {name} {}", metric.help));
        self.line(format_args!("# TYPE {name} {}", metric.kind));
    }

    fn line(&mut self, text: impl Display) {
        writeln!(self.0, "{text}").expect("a text takes everything");
    }

    /// Topic names and numbers need no escape in label values.
    fn sample(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(label, text)| format!("{label}=\"{text}\"")).collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {value}")),
            false => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
        }
    }
}

impl AppMetrics {
    /// All figures in Prometheus' text format 0.0.4 (`Content-Type: text/plain; version=0.0.4`), as in [`METRICS`].
    pub fn text(&self) -> String {
        let mut page = Page(String::new());
        page.head(RESTORING);
        page.sample(RESTORING, &[], self.restore_left.len());
        page.head(RESTORE_LEFT);
        for (task, left) in &self.restore_left {
            page.sample(RESTORE_LEFT, &[("task", task)], left);
        }
        page.head(SET_ASIDE);
        page.sample(SET_ASIDE, &[], self.set_aside);
        page.head(UNCOMMITTED);
        page.sample(UNCOMMITTED, &[], self.uncommitted_bytes);
        page.head(LAG);
        for (at, lag) in self.workers.iter().flat_map(|worker| worker.lag()) {
            page.sample(LAG, &[("topic", &at.topic), ("partition", &at.partition)], lag);
        }
        self.commits(&mut page);
        self.by_worker(&mut page);
        page.0
    }

    fn by_worker(&self, page: &mut Page) {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        type Figure = (&'static str, fn(&WorkerMetrics) -> u64);
        let figures: [Figure; 9] = [
            (TASKS, |worker| worker.tasks.get()),
            (PARKED, |worker| worker.parked_tasks.get()),
            (RECORDS, |worker| worker.records.get()),
            (LEFT_OUT, |worker| worker.left_out.get()),
            (LATE, |worker| worker.late.get()),
            (ROLLBACKS, |worker| worker.rollbacks.get()),
            (TIMED_OUT, |worker| worker.timed_out.get()),
            (NOT_OWNER, |worker| worker.not_owner.get()),
            (UNKNOWN, |worker| worker.unknown_outcomes.get()),
        ];
        for (name, figure) in figures {
            page.head(name);
            for (number, worker) in self.workers.iter().enumerate() {
                page.sample(name, &[("worker", &number)], figure(worker));
            }
        }
        page.head(AGE);
        for (number, worker) in self.workers.iter().enumerate() {
            page.sample(AGE, &[("worker", &number)], seconds(worker.transaction_age_ms.get()));
        }
        page.head(RESOLVED);
        for (number, worker) in self.workers.iter().enumerate() {
            for (outcome, cell) in
                [("committed", &worker.resolved_committed), ("aborted", &worker.resolved_aborted)]
            {
                page.sample(RESOLVED, &[("worker", &number), ("outcome", &outcome)], cell.get());
            }
        }
    }

    fn commits(&self, page: &mut Page) {
        let all: Vec<_> = self.workers.iter().map(|worker| worker.commit_latency()).collect();
        let (bucket, sum, count) =
            (format!("{COMMIT}_bucket"), format!("{COMMIT}_sum"), format!("{COMMIT}_count"));
        page.head(COMMIT);
        let mut total: u64 = 0;
        let bounds = LATENCY_BOUNDS_MS.iter().map(|ms| (*ms as f64 / 1000.0).to_string());
        for (place, bound) in bounds.chain(["+Inf".to_owned()]).enumerate() {
            total += all.iter().map(|latency| latency.buckets.get(place).copied().unwrap_or(0)).sum::<u64>();
            page.sample(&bucket, &[("le", &bound)], total);
        }
        let us: u64 = all.iter().map(|latency| latency.sum_us).sum();
        page.sample(&sum, &[], us as f64 / 1e6);
        page.sample(&count, &[], total);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ottla_env::files;

    use super::*;

    fn metrics() -> AppMetrics {
        AppMetrics {
            workers: vec![Arc::new(WorkerMetrics::default()), Arc::new(WorkerMetrics::default())],
            restore_left: [(TaskId { sub_topology: 1, partition: 2 }, 77)].into(),
            uncommitted_bytes: 5,
            set_aside: 3,
        }
    }

    /// Proves that every metric of the table is on the page, once, with its kind, and nothing else; and that a
    /// histogram's buckets go up to its count.
    #[test]
    fn the_page_is_the_table() {
        let metrics = metrics();
        metrics.workers[0].commit_for_test(std::time::Duration::from_millis(3));
        metrics.workers[1].commit_for_test(std::time::Duration::from_secs(90));
        let text = metrics.text();
        for metric in METRICS {
            assert_eq!(text.matches(&format!("# TYPE {} {}\n", metric.name, metric.kind)).count(), 1);
        }
        assert_eq!(text.matches("# TYPE ").count(), METRICS.len());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let name = name.split('{').next().expect("a name");
            assert!(METRICS.iter().any(|metric| name.starts_with(metric.name)), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        for line in [
            "ottla_streams_restore_left_offsets{task=\"1_2\"} 77",
            "ottla_streams_set_aside_stores 3",
            "ottla_streams_commit_seconds_bucket{le=\"0.002\"} 0",
            "ottla_streams_commit_seconds_bucket{le=\"0.005\"} 1",
            "ottla_streams_commit_seconds_bucket{le=\"+Inf\"} 2",
            "ottla_streams_commit_seconds_count 2",
            "ottla_streams_tasks{worker=\"1\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    /// Proves that docs/streams-metrics.md says what the table says. `OTTLA_WRITE_DOCS=1` writes it.
    #[test]
    fn documented() {
        let mut text = "# Metrics of a streams application\n\n\
            <!-- Made from crates/ottla-streams/src/app/metrics.rs; written by `OTTLA_WRITE_DOCS=1 cargo test -p ottla-streams documented`. -->\n\n\
            `App::metrics().text()` gives them as a page in Prometheus' text format; the application serves it where it likes.\n\
            The broker's own are in [metrics.md](metrics.md).\n\n\
            | metric | kind | labels | meaning |\n|---|---|---|---|\n"
            .to_owned();
        for Metric { name, kind, labels, help } in METRICS {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let labels = if labels.is_empty() { "-".to_owned() } else { labels.join(", ") };
            text += &format!("| `{name}` | {kind} | {labels} | {help} |\n");
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/streams-metrics.md");
        if std::env::var_os("OTTLA_WRITE_DOCS").is_some() {
            files::write(&path, text.as_bytes()).expect("written");
        }
        assert_eq!(files::read_text(&path, 1 << 20).expect("read"), text, "write it with OTTLA_WRITE_DOCS=1");
    }
}
