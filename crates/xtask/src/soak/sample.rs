//! One look at a broker: what the system says of its process, what its folder takes, what its metrics say.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// What is sampled, in the order of the columns.
const COLUMNS: [&str; 20] = [
    "second",
    "life",
    "rss_bytes",
    "descriptors",
    "threads",
    "disk_bytes",
    "files",
    "requests_per_second",
    "commits_per_second",
    "commit_p50_ms",
    "commit_p99_ms",
    "garbage_bytes",
    "settled_bytes",
    "topics",
    "groups",
    "producers",
    "transactional_ids",
    "fetch_sessions",
    "connections",
    "load_rss_bytes",
];

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    values: [f64; COLUMNS.len()],
}

impl Sample {
    /// The value of a column; it must be there.
    pub(crate) fn get(&self, column: &str) -> f64 {
        let at = COLUMNS.iter().position(|name| *name == column);
        self.values[at.expect("a column of the table")]
    }

    #[cfg(test)]
    pub(crate) fn of(values: &[(&str, f64)]) -> Self {
        let value =
            |column: &&str| values.iter().find(|(name, _)| name == column).map_or(0.0, |(_, value)| *value);
        Self { values: std::array::from_fn(|at| value(&COLUMNS[at])) }
    }
}

/// For people who watch.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |column| self.get(column) / f64::from(1 << 20);
        write!(
            f,
            "{:>5.0} s  life {:>2}  rss {:>6.1} MiB  fds {:>4}  threads {:>2}  disk {:>6.0} MiB in {:>3} files  \
             {:>6.0} req/s  {:>4.0} commits/s  p99 {:>6.1} ms  garbage {:>4.0} of {:>4.0} MiB  topics {} groups {} \
             producers {} ids {} sessions {}  load {:.0} MiB",
            self.get("second"),
            self.get("life"),
            mib("rss_bytes"),
            self.get("descriptors"),
            self.get("threads"),
            mib("disk_bytes"),
            self.get("files"),
            self.get("requests_per_second"),
            self.get("commits_per_second"),
            self.get("commit_p99_ms"),
            mib("garbage_bytes"),
            mib("settled_bytes"),
            self.get("topics"),
            self.get("groups"),
            self.get("producers"),
            self.get("transactional_ids"),
            self.get("fetch_sessions"),
            mib("load_rss_bytes"),
        )
    }
}

/// All rows under the names of the columns.
pub(crate) fn csv(samples: &[Sample]) -> String {
    let mut text = COLUMNS.join(",") + "\n";
    for sample in samples {
        let cells: Vec<String> = sample
            .values
            .iter()
            .map(|value| if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") })
            .collect();
        text += &(cells.join(",") + "\n");
    }
    text
}

/// Looks at one broker again and again.
pub(crate) struct Sampler {
    data: PathBuf,
    http: u16,
    load: u32,
    /// Time, life and requests of the last look, for rates.
    last: (f64, u64, f64),
}

impl Sampler {
    /// `http`: port of the metrics page; `load`: process of the load.
    pub(crate) fn new(data: PathBuf, http: u16, load: u32) -> Self {
        Self { data, http, load, last: (0.0, 0, 0.0) }
    }

    /// One look, `second` seconds after the begin.
    pub(crate) fn take(&mut self, second: f64, pid: u32, life: u64, progress: &Value) -> Result<Sample> {
        let status =
            std::fs::read_to_string(format!("/proc/{pid}/status")).context("the broker has ended")?;
        let load = std::fs::read_to_string(format!("/proc/{}/status", self.load)).unwrap_or_default();
        let page = page(self.http).context("the broker's metrics")?;
        let requests = sum(&page, "kafka_network_requestmetrics_requests_total");
        let (last_second, last_life, last_requests) = self.last;
        let before = if last_life == life { last_requests } else { 0.0 };
        self.last = (second, life, requests);
        let (disk_bytes, files) = folder(&self.data)?;
        let told = |name: &str| progress.get(name).and_then(Value::as_f64).unwrap_or(0.0);
        let metric = |name: &str| sum(&page, name);
        let values = [
            second,
            life as f64,
            field(&status, "VmRSS:") * 1024.0,
            std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64,
            field(&status, "Threads:"),
            disk_bytes as f64,
            files as f64,
            (requests - before) / (second - last_second).max(0.001),
            told("commits") / 10.0,
            told("commit_p50_ms"),
            told("commit_p99_ms"),
            metric("ottla_log_garbage_bytes"),
            metric("ottla_log_settled_bytes"),
            metric("kafka_controller_kafkacontroller_globaltopiccount"),
            metric("ottla_groups"),
            metric("ottla_producers"),
            metric("ottla_transactional_ids"),
            metric("kafka_server_fetchsessioncache_numincrementalfetchsessions"),
            metric("kafka_server_socketservermetrics_connection_count"),
            field(&load, "VmRSS:") * 1024.0,
        ];
        Ok(Sample { values })
    }
}

/// The number behind a name of `/proc/PID/status`.
fn field(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

/// Bytes that the folder takes of the disk, and its files. One that goes meanwhile is not counted.
fn folder(path: &Path) -> Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let (mut bytes, mut files) = (0, 0);
    for entry in std::fs::read_dir(path).with_context(|| path.display().to_string())? {
        let Ok(metadata) = entry?.metadata() else { continue };
        if metadata.is_file() {
            bytes += metadata.blocks() * 512;
            files += 1;
        }
    }
    Ok((bytes, files))
}

/// The page of metrics.
pub(crate) fn page(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The sum of a metric over its labels.
pub(crate) fn sum(page: &str, name: &str) -> f64 {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with(['{', ' ']) {
            return None;
        }
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    });
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a metric is summed over its labels and not mixed up with one whose name begins alike.
    #[test]
    fn metrics_are_summed() {
        let page = "# HELP ottla_groups x\nottla_groups{type=\"classic\"} 2\nottla_groups{type=\"consumer\"} 3\n\
                    ottla_groups_more 9\nottla_producers 7\n";
        assert_eq!((sum(page, "ottla_groups"), sum(page, "ottla_producers")), (5.0, 7.0));
    }

    /// Proves: what is sampled is written under its column.
    #[test]
    fn samples_are_rows() {
        let text = csv(&[Sample::of(&[("second", 10.0), ("commit_p99_ms", 1.5)])]);
        let (head, row) = text.trim().split_once('\n').expect("two lines");
        let at = head.split(',').position(|name| name == "commit_p99_ms").expect("a column");
        assert_eq!(row.split(',').nth(at), Some("1.500"));
        assert_eq!(row.split(',').next(), Some("10"));
    }
}
