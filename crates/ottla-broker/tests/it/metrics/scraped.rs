//! A small and strict reader of Prometheus' text format, and a client that gets a page.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ottla_env::{net, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::wire::PATIENCE;

/// An answer of the http listener.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends bytes and reads the answer until the end; none when there was none.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Option<Page> {
    let mut stream = net::connect(&address.to_string(), PATIENCE).await.expect("it listens");
    let talk = async {
        // The listener may close before it has read everything.
        if stream.write_all(request).await.is_ok() {
            drop(stream.flush().await);
        }
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes).await;
        if read.is_err() && bytes.is_empty() { None } else { Some(bytes) }
    };
    let bytes = time::timeout(PATIENCE, talk).await.expect("an answer or a close in time")?;
    if bytes.is_empty() {
        return None;
    }
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Some(Page { status, head: head.to_owned(), body: body.to_owned() })
}

/// Gets a page.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Page {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: */*\r\n\r\n");
    exchange(address, request.as_bytes()).await.expect("an answer")
}

/// What a scrape said.
#[derive(Debug, Default)]
pub(crate) struct Scraped {
    pub(crate) kinds: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Scraped {
    /// Gets /metrics and reads it.
    pub(crate) async fn get(address: SocketAddr) -> Self {
        let page = get(address, "/metrics").await;
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(
            page.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
            "{}",
            page.head
        );
        parse(&page.body)
    }

    /// A sample as it stands in the text, with its labels; 0 when there is none, as for a counter that never moved.
    pub(crate) fn value(&self, series: &str) -> f64 {
        self.samples.get(series).copied().unwrap_or(0.0)
    }

    /// Whether there is such a sample.
    pub(crate) fn has(&self, series: &str) -> bool {
        self.samples.contains_key(series)
    }

    /// How much a sample has grown since another scrape.
    pub(crate) fn grown(&self, before: &Self, series: &str) -> f64 {
        self.value(series) - before.value(series)
    }
}

/// Reads a text; panics at whatever the format does not allow.
pub(crate) fn parse(text: &str) -> Scraped {
    assert!(text.ends_with('\n'), "the last line ends");
    let mut scraped = Scraped::default();
    let mut family: Option<(String, Option<String>)> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a text");
            assert!(!help.is_empty() && is_name(name), "{line}");
            assert!(!scraped.kinds.contains_key(name), "a family twice: {name}");
            family = Some((name.to_owned(), None));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a kind");
            let of = family.as_mut().filter(|(of, seen)| of == name && seen.is_none());
            of.expect("TYPE follows HELP of the same family").1 = Some(kind.to_owned());
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            scraped.kinds.insert(name.to_owned(), kind.to_owned());
        } else {
            let (of, kind) = family.as_ref().expect("samples follow a family");
            sample(line, of, kind.as_deref().expect("a kind comes first"), &mut scraped);
        }
    }
    check_histograms(&scraped);
    scraped
}

fn sample(line: &str, family: &str, kind: &str, scraped: &mut Scraped) {
    let (series, value) = line.rsplit_once(' ').expect("a series and a value");
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').expect("labels are closed")),
        None => (series, ""),
    };
    let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} is not of {family}"));
    match kind {
        "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
        _ => assert!(suffix.is_empty(), "{line}"),
    }
    assert_eq!(kind == "counter", family.ends_with("_total"), "only counters are called _total: {family}");
    check_labels(labels);
    let number: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    assert!(number.is_finite() && (kind == "gauge" || number >= 0.0), "{line}");
    assert!(scraped.samples.insert(series.to_owned(), number).is_none(), "a series twice: {series}");
}

/// Labels are `name="value"` with commas between; in a value quotes, backslashes and line feeds are escaped.
fn check_labels(mut labels: &str) {
    let mut names = BTreeSet::new();
    while !labels.is_empty() {
        let (name, rest) = labels.split_once("=\"").expect("a name and a quoted value");
        assert!(is_name(name) && names.insert(name), "{labels}");
        let mut letters = rest.char_indices();
        let end = loop {
            match letters.next().expect("the value is closed") {
                (_, '\\') => {
                    let (_, escaped) = letters.next().expect("something is escaped");
                    assert!(['\\', '"', 'n'].contains(&escaped), "{labels}");
                }
                (at, '"') => break at,
                _ => {}
            }
        };
        labels = &rest[end + 1..];
        labels = labels.strip_prefix(',').unwrap_or(labels);
    }
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && name.starts_with(|letter: char| letter.is_ascii_lowercase())
}

/// Buckets grow with their bounds, and the last one is the count.
fn check_histograms(scraped: &Scraped) {
    let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (series, value) in scraped.samples.iter().filter(|(series, _)| series.contains("_bucket{")) {
        let (rest, le) = series.rsplit_once("le=\"").expect("a bucket has a bound");
        let bound = le.trim_end_matches("\"}").parse().expect("a number or +Inf");
        buckets.entry(rest.to_owned()).or_default().push((bound, *value));
    }
    for (of, mut buckets) in buckets {
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.is_sorted_by(|one, other| one.1 <= other.1), "{of}: {buckets:?}");
        let labels = of.replace("_bucket{", "_count{");
        let labels = labels.trim_end_matches(',');
        let count = match labels.strip_suffix('{') {
            Some(bare) => bare.to_owned(),
            None => format!("{labels}}}"),
        };
        let last = buckets.last().expect("there are some");
        assert_eq!(*last, (f64::INFINITY, scraped.value(&count)), "{count}");
    }
}
