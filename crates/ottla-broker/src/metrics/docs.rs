//! docs/metrics.md, made from the metric table; a test keeps the file true.

use std::fmt::Write;

use super::table::{GROUPS, Kind, Metric};

/// What stands before the tables.
const HEAD: &str = "# Metrics, health, logs

<!-- Made from crates/ottla-broker/src/metrics; written by `OTTLA_WRITE_DOCS=1 cargo test -p ottla-broker documented`. -->

## Switching them on

```sh
ottla serve --data ./data --http 127.0.0.1:9404
```

`--http` (setting `http.listen`, environment `OTTLA_HTTP_LISTEN`) is off unless it is set. The listener knows no
passwords and changes nothing; bind it where only your own machines can reach it. After `ready HOST:PORT` the broker
prints `http HOST:PORT`.

| page | what it is |
|---|---|
| `/metrics` | Prometheus text format 0.0.4 |
| `/health` | JSON; 200 while all requests are served, else 503 |
| `/` | links to both |

```yaml
scrape_configs:
  - job_name: ottla
    static_configs:
      - targets: [\"127.0.0.1:9404\"]
```

[docs/grafana/ottla.json](grafana/ottla.json) is a board for Grafana that shows them.

## Health

`/health` answers `{\"status\", \"reason\", \"status_seconds\", \"uptime_seconds\", \"version\"}`. The status is one of:

| status | code | meaning |
|---|---|---|
| `ready` | 200 | everything is served |
| `recovering` | 503 | the folder is being loaded, at start (the Kafka port is not open yet) or after a failed write (requests wait) |
| `refusing_writes` | 503 | the log cannot be written: reads are served, changes are refused with errors that clients retry |
| `stopping` | 503 | the broker is shutting down |

The page is there before the folder is loaded, so a long recovery is `recovering` and not a refused connection.

## Logs

Logs go to standard error, one line per event, at the level of `--log-level` (`error`, `warn`, `info`, `debug`, `trace`, or
a filter such as `info,ottla_core=debug`; environment `OTTLA_LOG`; default `info`). `--log-format json` writes one JSON object
per line. Standard output carries `ready HOST:PORT` and `http HOST:PORT` and nothing else. Lines carry the ids they speak of
(topic, partition, group, transactional id, producer id, connection) and never records, keys or secrets. What strangers can bring about (refused
connections, malformed requests) is written once in ten seconds with a count.

## Names and bounds

Names are those of Kafka's own metrics, as its Prometheus exporters write them, where the meaning is the same; others begin
with `ottla_`. Counters begin at 0 when the broker starts. Times are in seconds.

";

/// The whole text.
pub fn markdown() -> String {
    let mut out = HEAD.to_owned();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(format!(
        "Labels are bounded: {} topics have series of their own, the others are counted under `topic=\"{}\"`; the lag \
         of {} committed offsets is told, of groups whose id has at most {} bytes; a last stable offset lag is told of \
         {} partitions. `{}` says what is missing. A scrape asks the shard for its state in steps of a few thousand \
         ids or offsets, so that nobody waits for it; when the shard does not answer within {} seconds, the metrics of \
         transactions and groups have no samples in that scrape.",
        crate::limits::METRICS_TOPICS_MAX,
        super::topics::OTHER,
        crate::limits::METRICS_LAGS_MAX,
        crate::limits::METRICS_LABEL_BYTES_MAX,
        crate::limits::METRICS_PARTITIONS_MAX,
        super::table::LEFT_OUT.name,
        crate::limits::METRICS_SURVEY_TIME.as_secs(),
    ));
    for group in GROUPS {
        line(format!(
            "\n## {}\n\n| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|",
            group.title
        ));
        group.metrics.iter().for_each(|metric| line(row(metric)));
    }
    out
}

fn row(metric: &Metric) -> String {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram { .. } => "histogram",
    };
    let mut labels = String::new();
    for label in metric.labels {
        let separator = if labels.is_empty() { "" } else { ", " };
        write!(labels, "{separator}`{label}`").expect("writing to a string does not fail");
    }
    let unit = if metric.unit.is_empty() { "-" } else { metric.unit };
    let labels = if labels.is_empty() { "-".to_owned() } else { labels };
    format!("| `{}` | {kind} | {unit} | {labels} | {} |", metric.name, metric.help)
}
